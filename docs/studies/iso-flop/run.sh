#!/usr/bin/env bash
# Trains every architecture of this folder with three seeds, at equal inference FLOPs and equal
# tokens, and prints the table.
#
#   docs/studies/iso-flop/run.sh TRAIN VALID TEST OUT [TOKENS]
#
# HALFLIN names the program (default: build/halflin), SEEDS the seeds (default "1 2 3"), THREADS
# the threads. Stopped, it goes on where it was.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
usage="usage: run.sh TRAIN VALID TEST OUT [TOKENS]"
train=${1:?$usage} valid=${2:?$usage} test=${3:?$usage} out=${4:?$usage}
tokens=${5:-10000000}
halflin=${HALFLIN:-$here/../../../build/halflin}
threads=${THREADS:-$(nproc)}
steps=$((tokens / (16 * 256)))
warmup=$((steps / 10 < 100 ? steps / 10 : 100))
mkdir -p "$out"
for seed in ${SEEDS:-1 2 3}; do
  for name in uniform wide-edges wide-middle hybrid gated; do
    config=$here/$name.$seed.json # beside the others: the tokenizer's path is relative
    trap 'rm -f "$config"' EXIT
    sed "s/^{/{\n  \"init\": {\"seed\": $seed},/" "$here/$name.json" >"$config"
    "$halflin" train --config "$config" --text "$train" --valid-text "$valid" --test-text "$test" \
      --steps "$steps" --window 256 --batch 16 --lr 3e-3 --warmup "$warmup" --final-lr 0.05 --dtype bf16 \
      --seed "$seed" --save-every 200 --log-every 20 --threads "$threads" --out "$out/$name-$seed"
    rm -f "$config"
  done
done
python3 "$here/table.py" "$out"
