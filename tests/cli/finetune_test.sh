#!/usr/bin/env bash
# halflin finetune: learns, saves what halflin loads, goes on where it stopped, refuses what does not
# fit.
#   finetune_test.sh HALFLIN FIXTURES
set -euo pipefail
halflin=$1
fixtures=$2
source "${BASH_SOURCE%/*}/kill.sh"
work=$(mktemp -d)
model=$work/model
trap 'rm -rf "$work"' EXIT
fail() {
  echo "$1" >&2
  exit 1
}
for ((i = 0; i < 120; i++)); do
  printf 'the ants in an inn thin then an anthem %s ' "$(tr '0-9' 'a-j' <<<"$((i * i * 7919))")"
done | tr -d '\n' >"$work/text"
head -c 1500 "$work/text" | tac -s ' ' | tr -d '\n' >"$work/valid"
mkdir "$work/tokenizer"
cp "$fixtures/tokenizers/gpt2.json" "$work/tokenizer/tokenizer.json"
cat >"$work/config.json" <<'EOF'
{"family": "gpt_neox", "layers": 2, "d_model": 32, "heads": 4, "positions": 64, "tokenizer": "tokenizer"}
EOF
"$halflin" train --config "$work/config.json" --text "$work/text" --steps 20 --window 32 --batch 2 \
  --lr 3e-3 --seed 1 --out "$model" --quiet >/dev/null
tune() { # OUT, more options
  local out=$1
  shift
  "$halflin" finetune "$model" --text "$work/text" --test-text "$work/valid" --steps 30 --window 32 \
    --batch 2 --seed 4 --save-every 4 --out "$out" --quiet "$@"
}
less() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a < b) }'; }

timed tune "$work/a" --lr 3e-3 --json >"$work/a.json"
whole=$milliseconds
before=$(python3 -c 'import json,sys; r=json.load(open(sys.argv[1])); print(r["before"]["test"]["loss"])' "$work/a.json")
after=$(python3 -c 'import json,sys; r=json.load(open(sys.argv[1])); print(r["test"]["loss"])' "$work/a.json")
less "$after" "$before" || fail "the loss rose from $before to $after"
(($(grep -c '"grad_norm".*"loss".*"step".*"tokens_per_s"' "$work/a/log.jsonl") == 30)) ||
  fail "log.jsonl lacks lines or keys"
# Run again, it says the same and trains no more.
tune "$work/a" --lr 3e-3 --json | cmp - "$work/a.json" || fail "run again, the result differs"

# Killed and resumed.
for share in 25 50 75; do
  rm -rf "$work/b"
  kill_after $((whole * share / 100)) tune "$work/b" --lr 3e-3
  tune "$work/b" --lr 3e-3 --threads 1 >/dev/null
  cmp "$work/a/model.safetensors" "$work/b/model.safetensors" || fail "resumed, the weights differ"
done

# Frozen weights stay; what is saved is a model that halflin reads.
tune "$work/c" --lr 3e-3 --freeze '*' 2>"$work/error" >/dev/null && fail "everything frozen was trained"
grep -q "every parameter is frozen" "$work/error" || fail "$(cat "$work/error")"
tune "$work/d" --lr 3e-3 --freeze 'layers.*' --dtype bf16 --recompute >/dev/null
"$halflin" ppl "$work/d" --text "$work/valid" --window 32 --quiet >/dev/null || fail "the saved model does not load"
python3 - "$work" <<'EOF' || fail "--freeze froze something else"
import json, struct, sys
def tensors(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    return {k: data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]
            for k, v in head.items() if k != "__metadata__"}
a = tensors(sys.argv[1] + "/model/model.safetensors")
b = tensors(sys.argv[1] + "/d/model.safetensors")
assert a.keys() == b.keys()
for name in a:
    assert (a[name] == b[name]) == ("layers." in name), name
EOF

# Distilling the model into itself leaves it (nearly) as it is, whatever the text.
tune "$work/e" --objective distill --lr 1e-4 --weight-decay 0 --temperature 2 --json >"$work/e.json"
python3 - "$work/e.json" <<'EOF' || fail "distilling into itself changed the loss"
import json, sys
r = json.load(open(sys.argv[1]))
assert abs(r["before"]["test"]["loss"] - r["test"]["loss"]) < 0.05, (r["before"], r["test"])
EOF

refused() { # STATUS, PART OF THE MESSAGE, command...
  local status=0 want=$1 part=$2 message
  shift 2
  message=$("$@" 2>&1 >/dev/null) || status=$?
  ((status == want)) || fail "expected status $want, found $status: $message"
  [[ $message == *"$part"* ]] || fail "expected \"$part\" in: $message"
}
refused 1 "settings/learning_rate" tune "$work/a" --lr 1e-3
refused 1 "matches no parameter" tune "$work/f" --freeze 'layer.0.*'
refused 2 "needs --objective distill" tune "$work/f" --teacher "$model"
refused 2 "more than the 30 steps" tune "$work/f" --warmup 31
echo "fine-tuning learns, resumes and refuses"
