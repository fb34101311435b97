#!/usr/bin/env bash
# Prompts and single tokens a second, halflin against llama.cpp on the same GGUF files and threads, alternating in one run.
#
#   bench/compare/llama.sh MODEL.gguf [ROUNDS] [FORMAT...]
#
# FORMATs are `stored` (MODEL as it is), f32, f16, bf16, q8_0, q4_0 (made from it by llama.cpp); default: all but f16. llama-cpp-python
# is built from PyPI's source into $XDG_CACHE_HOME/halflin/llama-cpp the first time. DEPTH is the number of tokens in the cache
# when single tokens begin (0), THREADS those of both.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
model=${1:?usage: llama.sh MODEL.gguf [ROUNDS] [FORMAT...]}
rounds=${2:-5}
formats=("${@:3}")
[ ${#formats[@]} -gt 0 ] || formats=(f32 bf16 q8_0 q4_0 stored)
halflin=${BUILD:-$here/../../build}/halflin
cache=${XDG_CACHE_HOME:-$HOME/.cache}/halflin/llama-cpp
threads=${THREADS:-$(nproc)}
depth=${DEPTH:-0}
if [ ! -x "$cache/bin/python" ] || ! "$cache/bin/python" -c "import llama_cpp" 2>/dev/null; then
  python3 -m venv "$cache"
  "$cache/bin/pip" install --quiet llama-cpp-python
fi
python=$cache/bin/python
results=$(mktemp)
trap 'rm -f "$results"' EXIT
file_of() {
  if [ "$1" = stored ]; then
    echo "$model"
    return
  fi
  local file=$cache/$(basename "$model" .gguf)-$1.gguf
  if [ ! -e "$file" ]; then
    "$python" "$here/llama_bench.py" quantize "$model" "$file.part" "$1" >/dev/null 2>&1
    mv "$file.part" "$file"
  fi
  echo "$file"
}
for ((round = 0; round < rounds; round++)); do
  for format in "${formats[@]}"; do
    file=$(file_of "$format")
    ours=$("$halflin" bench "$file" --depth "$depth" --threads "$threads" --repetitions 3 --json --quiet)
    theirs=$("$python" "$here/llama_bench.py" bench "$file" 512 96 "$depth" "$threads" 3 2>/dev/null)
    echo "{\"format\": \"$format\", \"load\": $(cut -d' ' -f1 /proc/loadavg), \"ours\": $(echo "$ours" | tr -d '\n'), \"theirs\": $theirs}" >>"$results"
  done
done
"$python" - "$results" "${formats[@]}" <<'PYTHON'
import json, statistics, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
print(f"{len(rows) // len(sys.argv[2:])} rounds; load average {min(r['load'] for r in rows)} to {max(r['load'] for r in rows)}")
for format in sys.argv[2:]:
    mine = [r for r in rows if r["format"] == format]
    for what in ("prefill", "decode"):
        key = what + "_tokens_per_s"
        ratios = [r["ours"][key] / r["theirs"][key] for r in mine]
        line = (
            f"{format:7} {what:8} halflin {statistics.median(r['ours'][key] for r in mine):7.1f}"
            f"  llama.cpp {statistics.median(r['theirs'][key] for r in mine):7.1f} tokens/s"
            f"  ratio {statistics.median(ratios):5.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )
        if what == "decode":
            line += f"  {100 * statistics.median(r['ours']['decode']['share_of_reads'] for r in mine):.0f} % of the machine's reads"
        print(line)
PYTHON
