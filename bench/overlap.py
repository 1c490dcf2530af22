#!/usr/bin/env python3
"""Exposed communication of each ZeRO stage behind a network of known speed, and stage 3 against stage 0.

24 equal blocks, byte vocabulary, 24 million parameters, two ranks of one thread on the local back end. For each stage
the same run goes over an infinite link (compute only) and over links on which one step's traffic takes 70 % and 150 %
of compute-only time, alternating. Prints one JSON line a round and the medians.

Usage: bench/overlap.py [--bin build/bin] [--rounds 5] [--steps 8] [--stages 1,2,3] [--threads 1] [--micro-batch 2]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

MODEL = {"model_type": "gpt2", "n_layer": 24, "n_embd": 288, "n_head": 6, "n_positions": 128, "vocab_size": 256}
WARM_UP = 2  # steps that record traces and touch memory


class Runs:
    def __init__(self, options, folder):
        self.options = options
        self.folder = pathlib.Path(folder)
        (self.folder / "model.json").write_text(json.dumps(MODEL))
        text = pathlib.Path(__file__).resolve().parents[1] / "docs" / "CONFIG.md"
        (self.folder / "data.txt").write_bytes(text.read_bytes() * 20)

    def go(self, stage, link="inf,0us", steps=None):
        """Seconds of a step (median), and bytes that rank 0 moved in the whole run."""
        steps = steps or self.options.steps + WARM_UP
        config = {"train_micro_batch_size_per_gpu": self.options.micro_batch,
                  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
                  "zero_optimization": {"stage": stage}}
        (self.folder / "ds.json").write_text(json.dumps(config))
        metrics = self.folder / "metrics.jsonl"
        subprocess.run(
            [self.options.bin + "/train_lm", "--config", self.folder / "ds.json", "--model", self.folder / "model.json",
             "--data", self.folder / "data.txt", "--ranks", "2", "--threads", str(self.options.threads), "--steps", str(steps),
             "--link", link, "--metrics", metrics],
            check=True, capture_output=True)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        traffic = lines[-1]["traffic"]
        seconds = [line["step_s"] for line in lines[WARM_UP:-1]]
        return statistics.median(seconds), max(traffic["bytes_in"], traffic["bytes_out"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/bin")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--stages", default="1,2,3")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(options, folder)
        rows = []
        for stage in [int(stage) for stage in options.stages.split(",")]:
            moved = (runs.go(stage, steps=7)[1] - runs.go(stage, steps=3)[1]) / 4
            for number in range(options.rounds):
                compute = runs.go(stage)[0]
                row = {"stage": stage, "round": number, "compute_s": round(compute, 4), "bytes_a_step": int(moved)}
                for share in (0.7, 1.5):
                    seconds = runs.go(stage, f"{int(moved / (share * compute))}B/s,0us")[0]
                    row[f"over_compute_{share}"] = round(seconds / row["compute_s"], 3)
                    row[f"over_communication_{share}"] = round(seconds / (share * row["compute_s"]), 3)
                rows.append(row)
                print(json.dumps(row), flush=True)
        for stage in sorted({row["stage"] for row in rows}):
            mine = [row for row in rows if row["stage"] == stage]
            print(json.dumps({"stage": stage,
                              "exposed_at_0.7": round(statistics.median(r["over_compute_0.7"] for r in mine) - 1, 3),
                              "step_over_communication_at_1.5":
                                  statistics.median(r["over_communication_1.5"] for r in mine)}))
        ratios = []
        for _ in range(options.rounds):
            ratios.append(runs.go(0)[0] / runs.go(3)[0])
        print(json.dumps({"stage_3_over_stage_0": round(statistics.median(ratios), 3), "rounds": [round(r, 3) for r in ratios]}))


if __name__ == "__main__":
    main()
