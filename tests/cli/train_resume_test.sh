#!/usr/bin/env bash
# kill -9 in the middle of training; the same command must go on and end with the same bytes. And
# what stops a run: another setting, a text too short, a disk too small, a loss that diverges.
#   train_resume_test.sh HALFLIN FIXTURES
set -euo pipefail
halflin=$1
fixtures=$2
source "${BASH_SOURCE%/*}/kill.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tokenizer"
cp "$fixtures/tokenizers/gpt2.json" "$work/tokenizer/tokenizer.json"
cat >"$work/config.json" <<'EOF'
{"family": "gpt2", "layers": 3, "d_model": 32, "heads": 2, "positions": 32, "tokenizer": "tokenizer",
 "mlp": {"layers": {"1": {"kind": "hybrid", "width": 16}, "2": {"kind": "gated", "gate_hidden": 4}}},
 "gate_penalty": {"target": 0.5, "target_weight": 1}}
EOF
for ((i = 0; i < 1500; i++)); do
  printf 'the ants in an inn thin then an anthem %s ' "$(tr '0-9' 'a-j' <<<"$((i * i * 7919))")"
done >"$work/text"
head -c 5000 "$work/text" | tac -s ' ' >"$work/valid"
rate=3e-3
valid=$work/valid
train() { # OUT, more options
  local out=$1
  shift
  "$halflin" train --config "$work/config.json" --text "$work/text" --valid-text "$valid" \
    --steps 120 --window 32 --batch 4 --accumulate 2 --lr "$rate" --seed 3 --save-every 7 \
    --evaluate-every 25 --out "$out" --quiet "$@"
}
without_speed() { sed 's/,"tokens_per_s":[^,}]*//' "$1"; }
fail() {
  echo "$1" >&2
  exit 1
}

timed train "$work/whole" --threads 2 >/dev/null
whole=$milliseconds
(($(wc -l <"$work/whole/log.jsonl") == 120)) || fail "the log should hold 120 lines"
for ((attempt = 1; attempt <= 6; attempt++)); do
  rm -rf "$work/out"
  # Killed again and again, later and later, until it is through.
  for ((again = 0; again < 3; again++)); do
    kill_after $((whole * (2 * attempt + again) / 16)) train "$work/out" --threads 2
  done
  train "$work/out" --threads 1 >/dev/null
  for file in model.safetensors places.safetensors state.safetensors losses.safetensors config.json; do
    cmp "$work/whole/$file" "$work/out/$file" || fail "attempt $attempt: the resumed run's $file differs"
  done
  cmp <(without_speed "$work/whole/log.jsonl") <(without_speed "$work/out/log.jsonl") ||
    fail "attempt $attempt: the resumed log differs"
  if ls -A "$work/out" | grep '\.tmp$'; then fail "attempt $attempt: a temporary file was left"; fi
done
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
rate=4e-3 refused 1 "settings/learning_rate is 0.003 there and 0.004 here" train "$work/whole"
valid=$work/text refused 2 "the text to train on" train "$work/other"
head -c 300 "$work/text" >"$work/short"
refused 1 "too short" "$halflin" train --config "$work/config.json" --text "$work/short" --steps 5 \
  --window 32 --batch 64 --out "$work/short.out" --quiet
rate=1e30 refused 1 "diverged" train "$work/nan" --clip 0

# A disk that is full: the state that was there stays as it was.
rm -rf "$work/full"
train "$work/full" --threads 2 >/dev/null &
child=$!
for ((i = 0; i < 100; i++)); do
  [[ -e $work/full/state.safetensors ]] && break
  sleep 0.05
done
pkill -9 -P "$child" 2>/dev/null || true
wait "$child" 2>/dev/null || true
rm -f "$work/full/"{result.json,model.safetensors,places.safetensors,.*.tmp}
before=$(sha256sum <"$work/full/state.safetensors")
(
  ulimit -f 64 # blocks of 1024 bytes
  refused 1 "cannot write" train "$work/full"
)
[[ $before == "$(sha256sum <"$work/full/state.safetensors")" ]] || fail "the state did not stay whole"
if ls -A "$work/full" | grep '\.tmp$'; then fail "a temporary file was left behind"; fi
train "$work/full" >/dev/null
cmp "$work/whole/model.safetensors" "$work/full/model.safetensors" || fail "not the same after a full disk"
