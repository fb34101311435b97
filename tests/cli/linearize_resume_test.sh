#!/usr/bin/env bash
# halflin linearize: kill -9 in the middle, the figures against `halflin ppl`, and bad input.
#   linearize_resume_test.sh HALFLIN FIXTURES
set -euo pipefail
halflin=$1
fixtures=$2
source "${BASH_SOURCE%/*}/kill.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "$1" >&2
  exit 1
}
mkdir "$work/tokenizer"
cp "$fixtures/tokenizers/gpt2.json" "$work/tokenizer/tokenizer.json"
cat >"$work/config.json" <<'EOF'
{"family": "gpt2", "layers": 4, "d_model": 32, "heads": 2, "positions": 64, "tokenizer": "tokenizer"}
EOF
for ((i = 0; i < 2000; i++)); do
  printf 'the ants in an inn thin then an anthem %s ' "$(tr '0-9' 'a-j' <<<"$((i * i * 7919))")"
done >"$work/text"
head -c 9000 "$work/text" | tac -s ' ' >"$work/second"
model=$work/model
"$halflin" train --config "$work/config.json" --text "$work/text" --steps 60 --window 32 --batch 4 \
  --lr 3e-3 --out "$model" --quiet >/dev/null

text=$work/text
rate=1e-3
layers=1:3
eval_window=32
fit=2000
linearize() { # OUT, more options
  local out=$1
  shift
  "$halflin" linearize "$model" --layers "$layers" --text "$text" --second-text "$work/second" \
    --window 16 --eval-window "$eval_window" --fit-tokens "$fit" --eval-tokens 1000 --bootstrap 500 --lr "$rate" \
    --save-every 3 --out "$out" --quiet "$@"
}
two_phase=(--two-phase --steps 30 --gate-steps 30 --gate-units 4 --gate-bias 0)
progressive=(--order cheapest --calibration-tokens 500 --steps-per-layer 15 --final-steps 20)

# Of a JSON result, the perplexity of one model on the test text.
ppl_of() { # RESULT, MODEL NAME
  python3 -c '
import json, sys
for model in json.load(open(sys.argv[1]))["models"]:
    if model["name"] == sys.argv[2]: print(model["test"]["ppl"])' "$1" "$2"
}
same_ppl() { # OUT, MODEL NAME, DIRECTORY, more options of ppl
  local out=$1 name=$2 directory=$3
  shift 3
  local windows want found
  windows=$(python3 -c 'import json, sys
print(":".join(map(str, json.load(open(sys.argv[1]))["splits"]["test"]["windows"])))' "$out/result.json")
  want=$(ppl_of "$out/result.json" "$name")
  found=$("$halflin" ppl "$directory" --text "$text" --window 32 --windows "$windows" --json --quiet "$@" |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["ppl"])')
  # Up to the order of a sum in float64.
  python3 -c 'import sys; sys.exit(abs(float(sys.argv[1]) / float(sys.argv[2]) - 1) > 1e-12)' \
    "$want" "$found" || fail "$name: linearize says $want, ppl says $found"
}

for procedure in progressive two_phase; do
  declare -n options=$procedure
  whole=$work/$procedure
  timed linearize "$whole" "${options[@]}" --threads 2 >"$whole.txt"
  grep -q "against the control" "$whole.txt" || fail "no table: $(cat "$whole.txt")"
  [[ $(ls "$whole" | grep -c 'stages\|control') == 2 ]] || fail "stages and control should be kept"
  same_ppl "$whole" original "$model"
  same_ppl "$whole" linearised "$whole" --allocation "$whole/allocation.safetensors"
  same_ppl "$whole" control "$whole/control"
  for ((attempt = 1; attempt <= 4; attempt++)); do
    rm -rf "$work/out"
    for ((again = 0; again < 3; again++)); do
      kill_after $((milliseconds * (2 * attempt + again) / 12)) linearize "$work/out" "${options[@]}" --threads 2
    done
    linearize "$work/out" "${options[@]}" --threads 1 >/dev/null
    for file in model.safetensors control/model.safetensors allocation.safetensors; do
      cmp "$whole/$file" "$work/out/$file" || fail "$procedure $attempt: $file differs"
    done
    cmp <(grep -v '"command"\|"threads"' "$whole/result.json") \
      <(grep -v '"command"\|"threads"' "$work/out/result.json") ||
      fail "$procedure $attempt: the resumed result differs"
  done
done
same_ppl "$whole" "soft gates, decided" "$whole" --allocation "$whole/allocation-soft.safetensors"
same_ppl "$whole" "hard gates" "$whole" --allocation "$whole/allocation-hard.safetensors"
echo "killed $kills runs; every resumed run is identical"
((kills >= 3)) || fail "too few runs were killed in time for this to say anything"

refused() { # STATUS, PART OF THE MESSAGE, command...
  local status=0 want=$1 part=$2 message
  shift 2
  message=$("$@" 2>&1 >/dev/null) || status=$?
  ((status == want)) || fail "expected status $want, found $status: $message"
  [[ $message == *"$part"* ]] || fail "expected \"$part\" in: $message"
  (($(wc -l <<<"$message") == 1)) || fail "expected one line: $message"
}
rate=2e-3 refused 1 "settings/learning_rate" linearize "$work/two_phase" "${two_phase[@]}"
refused 2 "the text to train on" linearize "$work/x" --test-text "$work/text"
refused 2 "--order" linearize "$work/x" --at-once --order ascending
refused 2 "--steps" linearize "$work/x" --steps 10
refused 2 "needs --two-phase" linearize "$work/x" --gate-steps 10
refused 2 "needs --objective distill" linearize "$work/x" --temperature 2
layers=4 refused 1 "layer" linearize "$work/x"
eval_window=65 refused 1 "positions" linearize "$work/x"
fit=10000000 refused 1 "too short" linearize "$work/x"
rate=1e30 refused 1 "diverged" linearize "$work/nan" --clip 0 --no-control
[[ ! -e $work/x ]] || fail "a refused run left a directory behind"
refused 1 "made for" "$halflin" ppl "$model" --text "$text" --window 32 --quiet \
  --allocation "$work/two_phase/allocation.safetensors"
linearize "$work/distilled" --at-once --steps 20 --objective distill --temperature 2 --json \
  >"$work/distilled.json"
[[ -n $(ppl_of "$work/distilled.json" linearised) ]] || fail "no figures in --json"

# From a GGUF file: the directory has a tokenizer of its own.
tr -d '\n' <"$work/text" >"$work/line"
text=$work/line
"$halflin" linearize "$fixtures/models/gpt2_gguf/model.gguf" --layers 0 --text "$text" --window 16 \
  --eval-window 32 --fit-tokens 1000 --eval-tokens 500 --steps-per-layer 3 --final-steps 0 \
  --no-control --out "$work/gguf" --quiet >/dev/null
same_ppl "$work/gguf" linearised "$work/gguf" --allocation "$work/gguf/allocation.safetensors"
