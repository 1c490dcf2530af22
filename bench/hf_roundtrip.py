#!/usr/bin/env python3
"""A model that the engine trained, consolidated and opened by HuggingFace transformers, gives the engine's loss.

Trains the GPT-2 of tests/data/parity with ZeRO-3 on two ranks, saves, consolidates, and compares three losses on the
first windows of the text: the engine's, that of transformers in fp32, and that of a checkpoint made back from the
HuggingFace files. Then the safetensors files of the checkpoint themselves are read with Python's safetensors.
Needs numpy, safetensors, torch and transformers. Prints one JSON object; exit status 1 where a difference is above 1e-5.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

import numpy
import safetensors.numpy
import torch
import transformers

WINDOWS = 8
TOKENS = 64
BOUND = 1e-5


def run(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def engine_loss(train, folder, load):
    """Loss of the step after the load, before its update: the mean over the first windows."""
    metrics = folder / "metrics.jsonl"
    steps = json.loads(run(train.zero, "checkpoint", "inspect", load, "--json"))["counters"].get("global_steps", 0)
    run(*train.command, "--load", load, "--steps", steps + 1, "--metrics", metrics, "--train-batch", WINDOWS)
    return json.loads(metrics.read_text().splitlines()[0])["loss"]


def transformers_loss(model_folder, tokens, first):
    model = transformers.GPT2LMHeadModel.from_pretrained(model_folder, torch_dtype=torch.float32).eval()
    starts = [(first + window) * TOKENS for window in range(WINDOWS)]
    inputs = torch.tensor(numpy.stack([tokens[s : s + TOKENS] for s in starts]).astype(numpy.int64))
    targets = torch.tensor(numpy.stack([tokens[s + 1 : s + TOKENS + 1] for s in starts]).astype(numpy.int64))
    with torch.no_grad():
        logits = model(inputs).logits.double()
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)).item()


def compare_values(checkpoint, consolidated):
    """Every fp32 weight of the consolidated file against the extents of the checkpoint, read by Python's safetensors."""
    text = (checkpoint / "manifest.json").read_text()
    manifest = json.loads(text[: text.rstrip("\n").rindex("\n")])
    files = [safetensors.numpy.load_file(checkpoint / entry["name"]) for entry in manifest["files"]]
    whole = safetensors.numpy.load_file(consolidated / "model.safetensors")
    values = 0
    for parameter, state, begin, end, file, _ in manifest["extents"]:
        if state == 0:
            name = manifest["parameters"][parameter]["name"]
            assert (files[file][f"master|{name}|{begin}"] == whole[name].reshape(-1)[begin:end]).all(), name
            values += end - begin
    assert values == sum(tensor.size for tensor in whole.values())
    return values


class Train:
    def __init__(self, programs, data, folder):
        config = folder / "ds.json"
        config.write_text(json.dumps({
            "train_micro_batch_size_per_gpu": WINDOWS // 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "zero_optimization": {"stage": 3}}))
        self.zero = programs / "zero"
        self.command = [programs / "train_lm", "--config", config, "--data", data / "tokens.bin", "--model",
                        data / "config.json", "--init", data / "init.safetensors", "--ranks", 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--bin", type=pathlib.Path, default=root / "build/bin", help="folder of zero and train_lm")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    data = root / "tests/data/parity"
    tokens = numpy.frombuffer((data / "tokens.bin").read_bytes(), dtype=numpy.uint8)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        train = Train(options.bin, data, folder)
        saved, exported, back = folder / "saved", folder / "hf", folder / "back"
        run(*train.command, "--steps", options.steps, "--save", saved)
        run(train.zero, "checkpoint", "consolidate", saved, exported)
        values = compare_values(saved / f"global_step{options.steps}", exported)
        (exported / "config.json").write_text((data / "config.json").read_text())
        run(train.zero, "checkpoint", "convert", "--from", "hf", exported, back)
        result = {
            "parameters": values,
            "engine": engine_loss(train, folder, saved),
            "transformers": transformers_loss(exported, tokens, options.steps * WINDOWS),
            "engine_converted_back": engine_loss(train, folder, back),
            "transformers_first_windows": transformers_loss(exported, tokens, 0),
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__}}
        (folder / "published").mkdir()
        (folder / "published/config.json").write_text((data / "config.json").read_text())
        (folder / "published/model.safetensors").write_bytes((data / "final_fp32.safetensors").read_bytes())
        result["transformers_published_weights"] = transformers_loss(folder / "published", tokens, 0)
    print(json.dumps(result, indent=1))
    same = (abs(result["engine"] - result["transformers"]) <= BOUND
            and abs(result["engine_converted_back"] - result["transformers_first_windows"]) <= BOUND)
    raise SystemExit(0 if same else 1)


if __name__ == "__main__":
    main()
