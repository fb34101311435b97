#!/usr/bin/env bash
# halflin run as a user meets it: what it writes where, and how it ends.
#   run_test.sh HALFLIN FIXTURES
set -euo pipefail
halflin=$1
fixtures=$2
plain=$fixtures/models/llama_gguf/model.gguf # 48 positions, no chat template
. "$(dirname "${BASH_SOURCE[0]}")/checks.sh"

# --- refusals ---
check 2 'length zero' run "$plain" --prompt a --stop ''
check 2 'not in range' run "$plain" --prompt a --threads 0
check 2 'temperature: expected' run "$plain" --prompt a --temperature -1
check 2 'top-p: expected' run "$plain" --prompt a --top-p nan
check 2 'whole number' run "$plain" --prompt a --seed -1
check 2 'seed=: a value is missing' run "$plain" --prompt a --seed= --quiet
check 2 'excludes' run "$plain" --prompt a --chat --no-chat
check 2 'for chats alone' run "$plain" --prompt a --system b
check 1 'prompt: byte offset 4: expected UTF-8, found byte 0xff' run "$plain" --prompt $'the \xff'
check 1 "prompt's 41 tokens do not fit the context of 10" run "$plain" --context 10 \
  --prompt "the ants the ants the ants the ants the ants the ants the ants the ants"
check 1 'made for 48 positions' run "$plain" --prompt a --context 49
check 1 'has no chat template' run "$plain" --prompt a --chat
check 1 'nowhere.txt' run "$plain" --file "$work/nowhere.txt"
printf 'the \xc3' >"$work/cut.txt"
check 1 'cut.txt: byte offset 4' run "$plain" --file "$work/cut.txt"

# --- the same text from every source, and nothing else on stdout ---
"$halflin" run "$plain" --prompt 'the ants' --max-tokens 12 --quiet >"$work/a" 2>"$work/err"
[[ ! -s $work/err ]] || wrong "--quiet said: $(cat "$work/err")"
printf 'the ants\n' >"$work/prompt"
"$halflin" run "$plain" --file "$work/prompt" --max-tokens 12 >"$work/b" 2>"$work/err"
grep -q 'tokens/s; stopped at --max-tokens' "$work/err" || wrong "no summary: $(cat "$work/err")"
printf 'the ants\r\n' | "$halflin" run "$plain" --max-tokens 12 --quiet --threads 1 >"$work/c"
cmp "$work/a" "$work/b" || wrong '--file differs from --prompt'
cmp "$work/a" "$work/c" || wrong 'standard input differs from --prompt'
"$halflin" run "$plain" --prompt 'the ants' --max-tokens 12 --json >"$work/json"
grep -q '"stop_reason": "length"' "$work/json" || wrong 'no stop_reason in JSON'
text=$(sed -n 's/^  "text": "\(.*\)",$/\1/p' "$work/json")
[[ $text == "$(cat "$work/a")" ]] || wrong "JSON has another text: $text"

# --- stop strings and the context ---
"$halflin" run "$plain" --prompt 'the ants' --max-tokens 12 --stop zzz --stop 'e t' --json >"$work/json"
grep -q '"stop": "e t"' "$work/json" || wrong 'the stop string was not found'
check 0 'context of 20 tokens is full' run "$plain" --prompt 'the ants' --context 20 --ignore-end
check 0 'older half of the context dropped' run "$plain" --prompt 'the ants' --context 20 \
  --ignore-end --shift --max-tokens 60

# --- Ctrl-C: what was generated is there, and the status is 130 ---
interrupt() {
  rm -f "$work/out" "$work/err"
  "$halflin" run "$plain" --prompt 'the ants' --ignore-end --shift --max-tokens 1000000000 "$@" \
    >"$work/out" 2>"$work/err" &
  local child=$! got=0
  for ((i = 0; i < 600; i++)); do
    # With --json nothing says that it is under way: it is given two seconds.
    [[ -s $work/out || ($1 == --json && $i -gt 20) ]] && break
    sleep 0.1
  done
  kill -INT "$child"
  wait "$child" || got=$?
  [[ $got == 130 ]] || wrong "status $got after Ctrl-C with $1"
}
interrupt --no-chat
[[ $(head -c 4 "$work/out") == ' the' ]] || wrong "text lost after Ctrl-C: $(head -c 100 "$work/out")"
[[ $(tail -c 1 "$work/out" | od -An -c) == *'\n'* ]] || wrong 'the text is not ended after Ctrl-C'
grep -q 'interrupted$' "$work/err" || wrong "after Ctrl-C: $(cat "$work/err")"
interrupt --json
grep -q '"stop_reason": "interrupted"' "$work/out" || wrong 'no JSON after Ctrl-C'

# --- chats: a model whose tokens are single letters, and a template ---
chat=$work/chat
mkdir "$chat"
cp "$fixtures"/models/gpt2_base/{config.json,model.safetensors} "$chat"
vocabulary='"Ġ":0,"Ċ":1,":":2'
id=3
for letter in {a..z}; do
  vocabulary+=",\"$letter\":$id"
  id=$((id + 1))
done
cat >"$chat/tokenizer.json" <<END
{"model":{"type":"BPE","vocab":{$vocabulary},"merges":[]},"decoder":{"type":"ByteLevel"},
 "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},
 "added_tokens":[{"id":29,"content":"<end>","special":true}]}
END
cat >"$chat/chat_template.jinja" <<'END'
{% for m in messages %}
{{ m.role }}:{{ m.content }}<end>
{% endfor %}
END
run_chat() { "$halflin" run "$chat" --max-tokens 4 --json "$@" | sed -n 's/^  "prompt_tokens": \([0-9]*\),$/\1/p'; }
[[ $(run_chat --prompt hi) == 9 ]] || wrong "a chat's prompt: $(run_chat --prompt hi) tokens, not 9" # user:hi<end>\n
[[ $(run_chat --prompt hi --system bye) == 21 ]] || wrong "with a system message: $(run_chat --prompt hi --system bye)"
[[ $(run_chat --prompt hi --no-chat) == 2 ]] || wrong "--no-chat: $(run_chat --prompt hi --no-chat)"
printf '{%% include "x" %%}' >"$chat/chat_template.jinja"
check 1 "line 1: the statement 'include' is not supported \(--no-chat" run "$chat" --prompt hi
check 0 'tokens/s' run "$chat" --prompt hi --no-chat --max-tokens 2

# A conversation needs a terminal: script(1) makes one.
if command -v script >/dev/null; then
  printf '{%% for m in messages %%}{{ m.content }}:{%% endfor %%}' >"$chat/chat_template.jinja"
  printf 'hi\nabcdefghijklm\nno\n' | script -qec "$halflin run $chat --max-tokens 5 --ignore-end" /dev/null >"$work/talk" \
    || wrong 'the conversation failed'
  # Three lines and the end are asked for; the context of 37 tokens loses the first turn.
  [[ $(grep -cE '^> ' "$work/talk") == 4 && $(grep -cE '^> [a-z: ]{5}' "$work/talk") -ge 2 ]] || wrong "talk: $(cat -A "$work/talk")"
  grep -q 'the oldest 2 messages no longer fit the context of 37' "$work/talk" || wrong "talk: $(cat -A "$work/talk")"
else
  echo 'no script(1): the conversation on a terminal was not tested'
fi
((failures == 0)) || exit 1
echo 'all as expected'
