#!/usr/bin/env bash
# halflin allocate as a user meets it: a file that the other commands take, and how it refuses.
#   allocate_test.sh HALFLIN FIXTURES
set -euo pipefail
halflin=$1
fixtures=$2
model=$fixtures/models/llama_gguf/model.gguf
. "$(dirname "${BASH_SOURCE[0]}")/checks.sh"

for i in $(seq 1500); do
  echo "the ants $((i * 7919 % 997)) saw $((i * 31 % 89)) of them in the $((i * i % 613)) hills"
done >"$work/text"
small=(--text "$work/text" --window 24 --fit-tokens 2000 --train-tokens 2000
  --calibration-tokens 1000 --eval-tokens 1000 --harm-tokens 500 --bootstrap 200)

# refuse STATUS PATTERN ARGUMENT...: in one line.
refuse() {
  check "$1" "$2" allocate "$model" "${@:3}" --quiet
  [[ $(wc -l <"$work/err") == 1 ]] || wrong "more than one line for: $*"
}

# --- refusals ---
refuse 2 'expected a percentage' "${small[@]}" --budget much
refuse 2 'expected a percentage' "${small[@]}" --budget -1%
refuse 2 'expected a percentage' "${small[@]}" --budget nan%
refuse 2 'is no path' "${small[@]}" --budget 1% --paths linear,curved
refuse 2 'whole numbers' "${small[@]}" --budget 1% --paths low-rank --rank 0.5
check 2 'most-paths' allocate "$model" "${small[@]}" --budget 1% --most-paths 0
refuse 2 'above 0 and below 1' "${small[@]}" --budget 1% --kept 1.5
refuse 1 '1056024 tokens are needed' --text "$work/text" --budget 1% --fit-tokens 1000000 --window 24
refuse 1 'nowhere' "${small[@]}" --budget 1% --out /proc/nowhere/a
[[ ! -e $work/a ]] || wrong 'a refused command left a file'

# --- an allocation that the others take ---
"$halflin" allocate "$model" "${small[@]}" --budget 1% --controls --out "$work/a" --json --quiet \
  >"$work/json" 2>"$work/err"
[[ ! -s $work/err ]] || wrong "--quiet said: $(cat "$work/err")"
for key in price ci_lo ci_hi flops_saved_pct delta_ppl_pct rate pareto 'random routing'; do
  grep -q "\"$key\"" "$work/json" || grep -q "$key" "$work/json" || wrong "no $key in JSON"
done
leftover=$(find "$work" -name '*.work*')
[[ -z $leftover ]] || wrong "left behind: $leftover"
"$halflin" ppl "$model" --text "$work/text" --window 24 --windows 0:40 --allocation "$work/a" \
  --json >"$work/ppl"
"$halflin" ppl "$model" --text "$work/text" --window 24 --windows 0:40 --json >"$work/dense"
cmp -s <(grep '"ppl"' "$work/ppl") <(grep '"ppl"' "$work/dense") && wrong 'ppl took no notice'
"$halflin" run "$model" --allocation "$work/a" --show-route --prompt 'the ants saw' \
  --max-tokens 4 >"$work/out" 2>"$work/err" || wrong "run: $(cat "$work/err")"
"$halflin" bench "$model" --allocation "$work/a" --prompt-tokens 8 --generate 4 --repetitions 1 \
  --json --quiet >"$work/bench" 2>"$work/err" || wrong "bench: $(cat "$work/err")"

# --- and the report ---
"$halflin" sweep "$model" --text "$work/text" --window 24 --fit-tokens 500 --eval-tokens 500 --harm-tokens 0 \
  --gates none --bootstrap 200 --quiet --out "$work/sweep" >/dev/null
"$halflin" report "$work/sweep" --allocation "$work/a" --bench "$work/bench" >"$work/out" 2>"$work/err" \
  || wrong "report: $(cat "$work/err")"
grep -q 'gates and price' "$work/out" && grep -q 'one by one' "$work/out" || wrong 'no Pareto or timing table'
check 1 'found no "speedup"' report "$work/sweep" --bench "$work/json"
check 1 'header length' report "$work/sweep" --allocation "$work/text"
"$halflin" sweep "$fixtures/models/gpt2_gguf/model.gguf" --text "$work/text" --window 24 --fit-tokens 500 --eval-tokens 500 \
  --harm-tokens 0 --gates none --bootstrap 200 --quiet --out "$work/other" >/dev/null
check 1 'made for the model' report "$work/other" --allocation "$work/a"

# --- the same bytes again, for any number of threads ---
"$halflin" allocate "$model" "${small[@]}" --budget 1% --controls --out "$work/b" --json --quiet \
  --threads 1 >"$work/json2"
cmp -s <(grep -v '"command"\|"threads"' "$work/json") \
  <(grep -v '"command"\|"threads"' "$work/json2") || wrong 'threads change the result'

# --- a full disk leaves nothing ---
(
  ulimit -f 4
  "$halflin" allocate "$model" "${small[@]}" --budget 1% --fit dense --out "$work/c" --quiet \
    >"$work/out" 2>"$work/err" && wrong 'a full disk was not noticed'
  [[ $(wc -l <"$work/err") == 1 ]] || wrong "full disk: $(cat "$work/err")"
  exit "$failures"
) || failures=$((failures + $?))
[[ ! -e $work/c ]] || wrong 'a full disk left an allocation'

# --- killed at any time, the same command ends with the same bytes ---
mv "$work/a" "$work/whole"
for delay in 0.1 0.25 0.4 0.6 0.9; do
  timeout -s KILL "$delay" "$halflin" allocate "$model" "${small[@]}" --budget 1% --controls \
    --out "$work/a" --json --quiet >/dev/null 2>&1 || true
done
"$halflin" allocate "$model" "${small[@]}" --budget 1% --controls --out "$work/a" --json --quiet \
  >/dev/null
cmp -s "$work/a" "$work/whole" || wrong 'after kills the allocation is another'
[[ ! -e $work/a.work ]] || wrong 'the work folder is left'

# --- by the clock: times are taken once, and those that were taken count ---
timed=(allocate "$model" "${small[@]}" --budget 5% --save time --fit dense --multiples 1 --json --quiet --out "$work/t")
mkdir "$work/t" # where a file cannot be written
"$halflin" "${timed[@]}" >/dev/null 2>&1 && wrong 'a folder was overwritten'
rmdir "$work/t"
rm -r "$work/t.work/dense"
python3 - "$work/t.work/times.json" <<'PYTHON'
import json, sys
times = json.load(open(sys.argv[1]))
assert all(time.keys() == {"whole", "token", "fixed", "decode"} for time in times)
fixed = {"whole": 0.5, "token": 0.02, "fixed": 0.001, "decode": 0.04}
json.dump([fixed for _ in times], open(sys.argv[1], "w"))
PYTHON
"$halflin" "${timed[@]}" >"$work/json" 2>"$work/err" || wrong "--save time: $(cat "$work/err")"
python3 - "$work/json" <<'PYTHON' || wrong 'the times in JSON'
import json, sys
result = json.load(open(sys.argv[1]))
test = result["test"]
assert test["decode_time_saved_pct"] > 0
paths = sum(len(layer["options"]) for layer in result["layers"])
expected = test["decode_time_saved_pct"] / 2 - 100 * 0.001 * paths
assert abs(expected - test["prefill_time_saved_pct"]) < 1e-9
PYTHON

# --- a layer's paths are as many as are allowed, and an unfinished run with more is none of its ---
fewer=(allocate "$model" "${small[@]}" --budget 5% --fit dense --multiples 1 --json --quiet --out "$work/f")
mkdir "$work/f"
"$halflin" "${fewer[@]}" >/dev/null 2>&1 && wrong 'a folder was overwritten'
rmdir "$work/f"
check 1 'most_paths' "${fewer[@]}" --most-paths 1
rm -r "$work/f.work"
"$halflin" "${fewer[@]}" --most-paths 1 >"$work/json" 2>"$work/err" || wrong "--most-paths: $(cat "$work/err")"
python3 - "$work/json" <<'PYTHON' || wrong 'the number of paths'
import json, sys
result = json.load(open(sys.argv[1]))
assert result["settings"]["most_paths"] == 1
assert max(len(layer["options"]) for layer in result["layers"]) == 1
PYTHON

# --- healed ---
head -c 20000 "$work/text" | tr 'a-m' 'n-z' >"$work/text2"
healed=(allocate "$model" "${small[@]}" --budget 1% --fit dense --multiples 1 --heal-tokens 2000 --heal-from 4
  --heal-lr 1e-3 --json --quiet)
"$halflin" "${healed[@]}" --heal --out "$work/h" >"$work/json" 2>"$work/err" || wrong "--heal: $(cat "$work/err")"
grep -q before_healing "$work/json" || wrong 'nothing was healed'
mv "$work/h" "$work/whole"
for delay in 0.2 0.4 0.6; do
  timeout -s KILL "$delay" "$halflin" "${healed[@]}" --heal --out "$work/h" >/dev/null 2>&1 || true
done
"$halflin" "${healed[@]}" --heal --out "$work/h" >/dev/null
cmp -s "$work/h" "$work/whole" || wrong 'after kills the healed allocation is another'
"$halflin" "${healed[@]}" --heal-weights "$work/healed" --heal-text "$work/text2" --controls --out "$work/w" \
  >"$work/json" 2>"$work/err" || wrong "--heal-weights: $(cat "$work/err")"
if grep -q '"fit": "healed"' "$work/json"; then
  grep -q against_control "$work/json" || wrong 'healed weights without their control'
  "$halflin" ppl "$work/healed" --text "$work/text" --window 24 --windows 0:40 --allocation "$work/w" >/dev/null \
    || wrong 'the allocation is not for the healed model'
else
  wrong 'healed weights were not kept'
fi
refuse 2 'needs --heal' "${small[@]}" --budget 1% --heal-tokens 1000
refuse 1 'the same text' "${small[@]}" --budget 1% --heal --heal-text "$work/text"
refuse 1 'too short to heal on' "${small[@]}" --budget 1% --heal --heal-batch 100000

# --- whole layers ---
"$halflin" allocate "$model" "${small[@]}" --budget 5% --static --out "$work/s" >"$work/out" 2>/dev/null
grep -q 'allocation:' "$work/out" || wrong "--static: $(cat "$work/out")"

exit $((failures > 0))
