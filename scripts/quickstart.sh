#!/usr/bin/env bash
# Trains a byte-level GPT of 3 million parameters under ZeRO-3 on two ranks, from nothing.
#   scripts/quickstart.sh [TEXT FILE or FOLDER]
set -euo pipefail
text=${1:-/usr/share/common-licenses}
if [ $# -gt 1 ]; then
  printf 'error: %d arguments, command line, give one text file or folder, or nothing\n' $# >&2
  exit 2
fi
if [ ! -e "$text" ]; then
  printf 'error: no such text, %s, give a file or a folder\n' "$text" >&2
  exit 2
fi
text=$(realpath "$text")
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

install_packages
configure_and_build release train_lm
say "Training on $text"
build/bin/train_lm --config ds_config_samples/zero3.json --model byte-3m --data "$text" \
  --ranks 2 --steps 1200 --shuffle 1 --seed 1234 --sample 300
