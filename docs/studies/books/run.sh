#!/usr/bin/env bash
# The paper's questions on the two models in models/, alike but for the residual stream: each layer linear, its gates,
# all layers together, progressive linearisation and two-phase training against a control. Prints docs/results.md's tables.
#
#   docs/studies/books/run.sh TRAIN TEST SECOND OUT
#
# TRAIN is the models' own training text (so that more training is no change of domain), TEST text of the same kind that they
# have not seen, SECOND text of another kind. HALFLIN names the program (default: build/halflin). Stopped, it goes on where it was.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
usage="usage: run.sh TRAIN TEST SECOND OUT"
train=${1:?$usage} test=${2:?$usage} second=${3:?$usage} out=${4:?$usage}
root=$here/../../..
halflin=${HALFLIN:-$root/build/halflin}
mkdir -p "$out"
for family in gpt2 neox; do
  model=$root/models/$family-books
  "$halflin" sweep "$model" --text "$test" --controls --fold 0.25,0.5 --dtype bf16 --out "$out/$family-sweep"
  [[ -e $out/$family.allocation ]] || "$halflin" allocate "$model" --text "$test" --budget 1% --controls --dtype bf16 --out "$out/$family.allocation"
  training=(--text "$train" --test-text "$test" --second-text "$second" --layers 2:6 --dtype bf16 --window 256 --batch 8 --lr 5e-5
    --warmup 10)
  "$halflin" linearize "$model" "${training[@]}" --steps-per-layer 50 --final-steps 200 --out "$out/$family-progressive"
  "$halflin" linearize "$model" "${training[@]}" --two-phase --steps 400 --gate-steps 400 --out "$out/$family-two-phase"
done
python3 "$here/table.py" "$out"
