#!/usr/bin/env bash
# Training steps of 512 tokens (forward, backward, clipping, AdamW), halflin against transformers
# with torch.optim.AdamW, alternating in one run.
#
#   bench/compare/train.sh HF_DIRECTORY TEXT [ROUNDS]
#
# PYTHON names a Python with torch and transformers, HALFLIN the program (default: build/halflin).
# Needs about 17 bytes of free disk a parameter in TMPDIR.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
model=${1:?usage: train.sh HF_DIRECTORY TEXT [ROUNDS]}
text=${2:?usage: train.sh HF_DIRECTORY TEXT [ROUNDS]}
rounds=${3:-3}
python=${PYTHON:-python3}
export HALFLIN=${HALFLIN:-$here/../../build/halflin}
threads=$(nproc)
steps=6
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for ((round = 0; round < rounds; round++)); do
  for dtype in f32 bf16; do
    rm -rf "$work/out"
    ours=$("$python" - "$model" "$text" "$dtype" "$threads" "$steps" "$work/out" <<'EOF'
import json, os, resource, statistics, subprocess, sys
model, text, dtype, threads, steps, out = sys.argv[1:]
subprocess.run([os.environ["HALFLIN"], "finetune", model, "--text", text, "--steps", steps, "--batch", "1",
                "--window", "512", "--lr", "1e-5", "--dtype", dtype, "--threads", threads, "--save-every", "0",
                "--save-dtype", "bf16", "--out", out, "--json", "--quiet"], check=True, stdout=open(out + ".json", "w"))
lines = [json.loads(line) for line in open(out + "/log.jsonl")]
trained = json.load(open(out + ".json"))["trained_parameters"]
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
print(json.dumps({"tokens_per_s": statistics.median(l["tokens_per_s"] for l in lines[2:]), "peak_bytes": peak,
                  "parameters": trained}))
EOF
)
    theirs=$("$python" "$here/train_torch.py" "$model" "$dtype" 512 "$threads" "$steps" 2>/dev/null)
    echo "{\"dtype\": \"$dtype\", \"ours\": $ours, \"theirs\": $theirs}" >>"$work/results"
  done
done
"$python" - "$work/results" <<'EOF'
import json, statistics, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
speed = {}
for dtype in ("f32", "bf16"):
    mine = [r for r in rows if r["dtype"] == dtype]
    ratios = [r["ours"]["tokens_per_s"] / r["theirs"]["tokens_per_s"] for r in mine]
    speed[dtype] = [r["ours"]["tokens_per_s"] for r in mine], [r["theirs"]["tokens_per_s"] for r in mine]
    peak = max(r["ours"]["peak_bytes"] for r in mine)
    n = mine[0]["ours"]["parameters"]
    print(f"{dtype:5} halflin {statistics.median(speed[dtype][0]):6.1f} tokens/s  "
          f"transformers {statistics.median(speed[dtype][1]):6.1f} tokens/s  "
          f"ratio {statistics.median(ratios):.2f} (of {len(ratios)} rounds: {min(ratios):.2f} to {max(ratios):.2f})  "
          f"peak memory {peak / 1e9:.2f} GB = {peak / n:.1f} bytes a parameter, "
          f"transformers {max(r['theirs']['peak_bytes'] for r in mine) / 1e9:.2f} GB")
across = [a / b for a, b in zip(speed["bf16"][0], speed["f32"][1])]
print(f"halflin's bf16 against transformers' f32: ratio {statistics.median(across):.2f}")
EOF
