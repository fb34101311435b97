#!/usr/bin/env bash
# halflin bench as a user meets it. What it measures is another matter: nothing here looks at a clock.
#   bench_test.sh HALFLIN FIXTURES
set -euo pipefail
halflin=$1
fixtures=$2
plain=$fixtures/models/llama_gqa # 12 ids long at least
. "$(dirname "${BASH_SOURCE[0]}")/checks.sh"

small=(--prompt-tokens 6 --generate 3 --repetitions 5 --threads 2)

check 2 'depth: at most the 6 tokens' bench "$plain" "${small[@]}" --depth 7
check 2 'one of them at most' bench "$plain" "${small[@]}" --force-linear --random-route 0.5
check 2 'nan' bench "$plain" "${small[@]}" --random-route nan
check 2 'not in range' bench "$plain" "${small[@]}" --random-route 1.5
check 2 'not in range' bench "$plain" --generate 0
check 1 'made for [0-9]+ positions' bench "$plain"
check 1 'nothing' bench "$plain" "${small[@]}" --allocation "$work/nothing"
check 1 'nowhere' bench "$fixtures/models/llama_gguf/model.gguf" "${small[@]}" --text "$work/nowhere"

"$halflin" bench "$plain" "${small[@]}" --force-linear --json --quiet >"$work/linear.json" 2>"$work/err"
[[ ! -s $work/err ]] || wrong "--quiet says: $(cat "$work/err")"
"$halflin" bench "$plain" "${small[@]}" --random-route 0.5 --json --quiet >"$work/half.json"
"$halflin" bench "$plain" "${small[@]}" --depth 0 --json --quiet >"$work/dense.json"
"$halflin" bench "$plain" "${small[@]}" --quiet | grep -q 'tokens/s' || wrong "no table"
python3 - "$work" <<'PYTHON' || wrong "the JSON"
import json, sys
linear, half, dense = (json.load(open(f"{sys.argv[1]}/{name}.json")) for name in ("linear", "half", "dense"))
for out in (linear, half, dense):
    assert out["prefill_tokens_per_s"] > 0 and out["decode_tokens_per_s"] > 0
    assert out["decode_tokens_per_s"] == out["decode"]["tokens_per_s"]["median"]
    assert out["machine"]["read_gigabytes_per_s"] > 0 and out["machine"]["product_gflop_per_s"] > 0
    assert out["repetitions"] == 5 and out["threads"] == 2
assert "dense" not in dense and "speedup" not in dense
assert linear["decode"]["cheap_pct"] == 100 and linear["prefill"]["cheap_pct"] == 100
assert 30 < half["prefill"]["cheap_pct"] < 70
for out in (linear, half):
    assert out["dense"]["decode"]["cheap_pct"] == 0
    for what in ("prefill", "decode"):
        gain = out["speedup"][what]
        assert gain["ci_lo"] <= gain["times"] <= gain["ci_hi"] and 0 < gain["counted_saved_pct"] < 100
assert linear["speedup"]["decode"]["counted_saved_pct"] > half["speedup"]["decode"]["counted_saved_pct"]
assert dense["decode"]["megabytes_per_token"] < linear["dense"]["decode"]["megabytes_per_token"]  # an emptier cache
PYTHON
if ((failures > 0)); then exit 1; fi
