#!/usr/bin/env bash
# Forward pass of 512 tokens, halflin against transformers, alternating in one run.
#
#   bench/compare/forward.sh HF_DIRECTORY [ROUNDS]
#
# PYTHON names a Python with torch and transformers, BUILD a build made with -DHALFLIN_BENCH=ON.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
model=${1:?usage: forward.sh HF_DIRECTORY [ROUNDS]}
rounds=${2:-3}
build=${BUILD:-$here/../../build}
python=${PYTHON:-python3}
threads=$(nproc)
results=$(mktemp)
trap 'rm -f "$results"' EXIT
for ((round = 0; round < rounds; round++)); do
  for dtype in f32 bf16; do
    ours=$("$build/bench/bench_forward" "$model" "$dtype" 512 "$threads" 7)
    theirs=$("$python" "$here/forward_torch.py" "$model" "$dtype" 512 "$threads" 7 2>/dev/null)
    echo "$ours $theirs" >>"$results"
  done
done
"$python" - "$results" <<'EOF'
import json, statistics, sys
rows = [json.loads("[" + line.replace("} {", "},{") + "]") for line in open(sys.argv[1])]
for dtype in ("f32", "bf16"):
    pairs = [(o, t) for o, t in rows if o["dtype"] == dtype]
    ratios = [o["tokens_per_s"] / t["tokens_per_s"] for o, t in pairs]
    print(
        f"{dtype:5} halflin {statistics.median(o['tokens_per_s'] for o, _ in pairs):7.0f} tokens/s"
        f"  transformers {statistics.median(t['tokens_per_s'] for _, t in pairs):7.0f} tokens/s"
        f"  ratio {statistics.median(ratios):.2f} (of {len(ratios)} rounds: {min(ratios):.2f} to {max(ratios):.2f})"
        f"  share of oneDNN's rate {statistics.median(o['share_of_onednn'] for o, _ in pairs):.2f}"
    )
EOF
