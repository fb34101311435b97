#!/usr/bin/env bash
# From a fresh Debian 12 or 13 to a measurement on a real model: installs packages (as root or with sudo), builds
# halflin, fetches SmolLM2-135M, and measures how linear a few of its MLPs are. Under five minutes after the build on two
# cores. Run again, it shows the result at once.
#
# Usage: ./demo.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. scripts/common.sh

work=build/demo
text="$work/policy.txt"

# The text: the Debian Policy Manual as plain text, from the package debian-policy: about half a megabyte of plain English
# in sentences, the same path in Debian 12 and 13, free to use, in every mirror. It is taken out of the package and not
# installed, because small images tell dpkg to leave out /usr/share/doc, where it would go.
get_text() {
  local inside=usr/share/doc/debian-policy/policy.txt.gz
  local tmp="$work/fetch"
  if [[ ! -s "$text" ]]; then
    if [[ -s "/$inside" ]]; then
      gzip -dc "/$inside" >"$text.new"
    else
      rm -rf "$tmp"
      mkdir -p "$tmp"
      (cd "$tmp" && apt-get -qq download debian-policy) >/dev/null 2>&1 \
        || { apt_get update && (cd "$tmp" && apt-get -qq download debian-policy 2>/dev/null) >/dev/null; } \
        || die "apt-get could not download the package debian-policy, where the text comes from"
      dpkg-deb --fsys-tarfile "$tmp"/debian-policy_*.deb | tar -xO "./$inside" | gzip -d >"$text.new"
      rm -rf "$tmp"
    fi
    mv "$text.new" "$text"
  fi
}

say "[1/5] Packages"
install_packages "${build_packages[@]}" "${fetch_packages[@]}"

say "[2/5] Building (a few minutes the first time)"
build release
halflin=build/halflin

say "[3/5] The model: SmolLM2-135M-Instruct"
model="$(scripts/get-smollm2.sh | tail -n 1)"
"$halflin" info "$model"

say "[4/5] The text: the Debian Policy Manual"
mkdir -p "$work"
get_text
printf '%s: %s words\n' "$text" "$(wc -w <"$text")"

# bfloat16 where the processor has it: twice as fast or more, and as good for this purpose. Elsewhere fewer layers and
# no controls, so that it stays under five minutes.
if grep -qwE 'avx512_bf16|amx_bf16' /proc/cpuinfo; then
  options=(--dtype bf16 --layers 4,12,20,28 --controls)
else
  options=(--dtype f32 --layers 12,20,28)
fi
options+=(--gates linear,harm --rates 0.5 --fit-tokens 8000 --train-tokens 10000 --calibration-tokens 4000
  --eval-tokens 12000)

# A directory for this program, text and these options: a later version starts afresh.
out="$work/sweep-$({ sha256sum "$halflin" "$text"; echo "${options[*]}"; } | sha256sum | cut -c1-12)"
say "[5/5] Measuring a few of the 30 layers"
printf '%s\n\n' "$halflin sweep $model --text $text ${options[*]} --out $out"
"$halflin" sweep "$model" --text "$text" "${options[@]}" --out "$out"
cat <<'EOF'

Each line is a layer whose MLP was replaced by one matrix, fitted on other parts of the text. "all linear": how much
perplexity rises when every token takes the matrix. "gate": the same when a gate with 577 parameters sends only some tokens
there; "linear" says how many. See README.md for the verdicts, and docs/formats.md for all that is in result.json.
EOF
