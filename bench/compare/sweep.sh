#!/usr/bin/env bash
# A sweep in the paper's protocol, halflin against the paper's official script, on a tenth of the
# default tokens: one layer each, and halflin's whole sweep against the script's cost of as many
# layers (it recomputes the whole model for every layer, so each costs it the same).
#
#   OFFICIAL=folder of scale_test_universal.py, with a `datasets` module that reads $WIKITEXT
#   WIKITEXT=wiki.test.raw   PYTHON=python with torch, transformers, scikit-learn
#   bench/compare/sweep.sh HF_DIRECTORY [LAYER]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
model=${1:?usage: sweep.sh HF_DIRECTORY [LAYER]}
layer=${2:-15}
halflin=${BUILD:-$here/../../build}/halflin
python=${PYTHON:-python3}
: "${OFFICIAL:?the folder of scale_test_universal.py}" "${WIKITEXT:?a raw WikiText file}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$OFFICIAL"/*.py "$work" # it writes its result beside itself

now() { date +%s.%N; }
ours() { # DTYPE LAYERS -> seconds
  local start
  start=$(now)
  "$halflin" sweep "$model" --text "$WIKITEXT" --protocol paper --layers "$2" --dtype "$1" \
    --fit-tokens 1000 --train-tokens 2500 --eval-tokens 1200 --out "$work/$1-$2" --quiet --json \
    >"$work/$1-$2.json"
  "$python" -c "print($(now) - $start)"
}

one_f32=$(ours f32 "$layer")
start=$(now)
(cd "$work" && WIKITEXT=$WIKITEXT "$python" scale_test_universal.py --model "$model" --layers "$layer" \
  --n_fit 1000 --n_train 2500 --n_eval 1200) >"$work/official.txt" 2>&1
official=$(grep -oP 'done \[\K[0-9]+' "$work/official.txt") # its own time for the layer, loading apart
one_bf16=$(ours bf16 "$layer")
all_f32=$(ours f32 :)
all_bf16=$(ours bf16 :)
"$python" - "$work" "$layer" "$official" "$one_f32" "$one_bf16" "$all_f32" "$all_bf16" <<'EOF'
import json, sys
work, layer = sys.argv[1:3]
official, one_f32, one_bf16, all_f32, all_bf16 = (float(a) for a in sys.argv[3:])
result = json.load(open(f"{work}/f32-:.json"))
layers = len(result["layers"])
ours = json.load(open(f"{work}/f32-{layer}.json"))["layers"][0]
print("official script:")
print("\n".join(l.rstrip() for l in open(f"{work}/official.txt") if "all_linear" in l or "params)" in l))
print("halflin, f32, the same text and tokens:")
print(f"  all_linear: {ours['all_linear']['delta_ppl_pct']:+.2f}%")
for g in ours["gates"]:
    print(f"  {g['name']:>8}: {g['delta_ppl_pct']:+.2f}%  {g['pct_linear']:.1f}% linear")
print(f"seconds for layer {layer}: official {official:.0f}, halflin f32 {one_f32:.1f}, bf16 {one_bf16:.1f} (loading included)")
print(f"ratio, one layer: f32 {official / one_f32:.1f}, bf16 {official / one_bf16:.1f}")
print(f"ratio, all {layers} layers: f32 {official * layers / all_f32:.1f}, bf16 {official * layers / all_bf16:.1f}")
EOF
