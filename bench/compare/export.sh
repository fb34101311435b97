#!/usr/bin/env bash
# Perplexity of a static allocation in halflin, and of the models exported from it in transformers and llama.cpp.
#
#   bench/compare/export.sh HF_DIRECTORY ALLOCATION TEXT [WINDOW [WINDOWS]]
#
# PYTHON names a Python with torch and transformers, LLAMA_PYTHON one with llama-cpp-python (default: PYTHON), HALFLIN the program.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
usage='usage: export.sh HF_DIRECTORY ALLOCATION TEXT [WINDOW [WINDOWS]]'
model=${1:?$usage}
allocation=${2:?$usage}
text=${3:?$usage}
window=${4:-256}
windows=${5:-16}
halflin=${HALFLIN:-$here/../../build/halflin}
python=${PYTHON:-python3}
llama=${LLAMA_PYTHON:-$python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$halflin" export "$model" --allocation "$allocation" --as hf --out "$work/hf" --quiet
"$halflin" export "$model" --allocation "$allocation" --as gguf --out "$work/gguf"
"$halflin" export "$model" --as gguf --out "$work/dense" --quiet
sed 's/\r$//' "$text" | "$halflin" tokenize "$model" --json >"$work/ids" # as ppl reads a text
ours() { "$halflin" ppl "$@" --text "$text" --window "$window" --windows "0:$windows" --json --quiet |
  sed -n 's/^ *"ppl": \([0-9.e+-]*\).*/\1/p'; }
peer() { "$1" "$here/export_peers.py" "$2" "$3" "$work/ids" "$window" "$windows" 2>/dev/null; }

dense=$(ours "$model")
want=$(ours "$model" --allocation "$allocation")
report() {
  [[ -n $2 ]] || { printf '%-44s gave nothing\n' "$1"; return; }
  awk -v name="$1" -v got="$2" -v want="$3" 'BEGIN { printf "%-44s %.6f  %+.1e relative\n", name, got, got / want - 1 }'
}
printf '%-44s %.6f\n' 'halflin, model' "$dense"
report 'transformers, model' "$(peer "$python" hf "$model")" "$dense"
# How far llama.cpp is by itself: it looks GELU up in a table of half floats, and GPT-NeoX's as the other kind.
report 'llama.cpp, model' "$(peer "$llama" gguf "$work/dense/model.gguf")" "$dense"
printf '%-44s %.6f\n' 'halflin, allocation' "$want"
report 'halflin, exported as hf' "$(ours "$work/hf")" "$want"
report 'halflin, exported as gguf' "$(ours "$work/gguf")" "$want"
report 'transformers, exported as hf' "$(peer "$python" hf "$work/hf")" "$want"
report 'llama.cpp, exported as gguf' "$(peer "$llama" gguf "$work/gguf/model.gguf")" "$want"
