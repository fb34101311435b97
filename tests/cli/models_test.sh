#!/usr/bin/env bash
# The models in models/ say what transformers says of them: mean loss on this project's licence, 2 windows of 128 tokens.
#   models_test.sh HALFLIN ROOT
set -euo pipefail
halflin=$1
root=$2
# AutoModelForCausalLM in float32, ids from PreTrainedTokenizerFast.
for expected in gpt2:5.089003 neox:4.917763; do
  model=$root/models/${expected%%:*}-books
  got=$("$halflin" ppl "$model" --text "$root/LICENSE" --window 128 --windows 0:2 --json --quiet)
  python3 -c '
import json, sys
loss = json.loads(sys.argv[1])["mean_loss"]
if abs(loss - float(sys.argv[2])) > 1e-4:
    sys.exit(f"mean loss {loss}, transformers has {sys.argv[2]}")' "$got" "${expected##*:}"
done
