#!/usr/bin/env bash
# kill -9 in the middle of a sweep; the same command must go on and end with the same bytes.
#   resume_test.sh HALFLIN FIXTURES
set -euo pipefail
halflin=$1
source "${BASH_SOURCE%/*}/kill.sh"
model=$2/models/gpt2_gguf/model.gguf
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The fixture's vocabulary is lower-case letters.
for ((i = 0; i < 400; i++)); do
  printf 'the ants in an inn thin then an anthem %s ' "$(tr '0-9' 'a-j' <<<"$((i * i * 7919))")"
done | tr -d '\n' >"$work/text"
run() {
  "$halflin" sweep "$model" --text "$work/text" --window 32 --fit-tokens 1000 --train-tokens 2000 \
    --calibration-tokens 600 --eval-tokens 1000 --controls --fold 0.5 --bootstrap 20000 --seed 3 \
    --out "$work/out" --quiet --threads "${1:-2}" >/dev/null
}

timed run
whole=$milliseconds
if [[ -e $work/out/gradients ]]; then
  echo "a finished run left its gradients" >&2
  exit 1
fi
cp "$work/out/result.json" "$work/whole.json"
for ((attempt = 1; attempt <= 12; attempt++)); do
  rm -rf "$work/out"
  # Later and later into the run, in steps that fall before, between and after the two layers.
  kill_after $((whole * attempt / 13)) run
  run 1 # another thread count changes the header alone
  sed 's/"threads": 1$/"threads": 2/' "$work/out/result.json" | sed 's/--threads 1"/--threads 2"/' >"$work/resumed.json"
  if ! cmp "$work/whole.json" "$work/resumed.json"; then
    diff "$work/whole.json" "$work/resumed.json" | head -20 >&2
    echo "attempt $attempt: the resumed result differs" >&2
    exit 1
  fi
done
echo "killed $kills of 12 runs; every resumed result is identical"
((kills >= 3)) || {
  echo "too few runs were killed in time for this to say anything" >&2
  exit 1
}
