#!/bin/sh
# Memory and bandwidth of a save and a load of 416 million parameters on two ranks, beside fio on the same disk in the
# same run. Usage: bench/checkpoint.sh [DIR] (a folder with 15 GB of space; default: build/bench). Options for the
# program: BENCH_OPTIONS="--precision bf16". RUNS=3 alternating runs. Needs fio and 12 GB of memory.
set -eu
cd "$(dirname "$0")/.."
dir=${1:-build/bench}
preset=${PRESET:-release}
[ -d "build/$preset" ] || cmake --preset "$preset" >&2
cmake --build "build/$preset" --target bench_checkpoint -j"$(nproc)" >&2
bin=build/$preset/bin
[ "$preset" = release ] && bin=build/bin
mkdir -p "$dir"
work=$(mktemp -d "$dir/checkpoint.XXXXXX")
trap 'rm -rf "$work"' EXIT

# GB/s of two processes with 1 MiB blocks, direct; as many bytes as the checkpoint has
disk() {
  fio --name=disk --directory="$work" --rw="$1" --bs=1M --size=2400M --numjobs=2 --ioengine=libaio --iodepth=8 \
    --direct=1 --end_fsync=1 --group_reporting --output-format=json |
    python3 -c "import json, sys; print(round(json.load(sys.stdin)['jobs'][0]['$1']['bw_bytes'] / 1e9, 3))"
}

# A virtual machine gets its memory at the first touch, which would be measured as the page cache's slowness.
touch_memory() {
  python3 -c "
import os
memory = bytearray(min(14 << 30, int(0.6 * os.sysconf('SC_AVPHYS_PAGES')) * 4096))
memory[::4096] = b'1' * len(memory[::4096])"
}

for _ in $(seq "${RUNS:-3}"); do
  write=$(disk write)
  read=$(disk read)
  rm -f "$work"/disk*
  touch_memory
  mkdir "$work/run"
  mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 $bin/bench_checkpoint --dir "$work/run" ${BENCH_OPTIONS:-}
  rm -rf "$work/run"
  echo "{\"disk_write_gb_s\": $write, \"disk_read_gb_s\": $read}"
done
