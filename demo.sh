#!/usr/bin/env bash
# From a fresh Debian 12 or 13 to a measurement: installs packages (as root or with sudo), builds halflin, and measures
# how linear each MLP of a language model is. Run again, it shows the result at once.
#
# Usage: ./demo.sh            the small GPT-2 in models/gpt2-books on a novel; under two minutes after the build
#        ./demo.sh smollm2    a few layers of SmolLM2-135M, which is fetched (84 MB); under five
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. scripts/common.sh

case "${1:-books}" in
  books | smollm2) model_name="${1:-books}" ;;
  -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
  *) printf 'usage: %s [smollm2]\n' "$0" >&2; exit 2 ;;
esac

work=build/demo

# download PACKAGE: the file of a Debian package, in $work. Text is taken out of packages that are not installed, because
# they would bring others, or because small images tell dpkg to leave out /usr/share/doc.
download() {
  (cd "$work" && rm -f "$1"_*.deb && apt-get -qq download "$1") >/dev/null 2>&1 \
    || { apt_get update && (cd "$work" && apt-get -qq download "$1" 2>/dev/null) >/dev/null; } \
    || die "apt-get could not download the package $1, where the text comes from"
}

# Emma: none of the model's training text, but of its kind.
get_novel() {
  [[ ! -s "$text" ]] || return 0
  download r-cran-janeaustenr
  python3 scripts/austen.py "$work"/r-cran-janeaustenr_*.deb emma >"$text.new"
  mv "$text.new" "$text"
}

# The Debian Policy Manual: half a megabyte of plain English in sentences, the same path in Debian 12 and 13.
get_policy() {
  [[ ! -s "$text" ]] || return 0
  download debian-policy
  dpkg-deb --fsys-tarfile "$work"/debian-policy_*.deb | tar -xO ./usr/share/doc/debian-policy/policy.txt.gz \
    | gzip -d >"$text.new"
  mv "$text.new" "$text"
}

say "[1/5] Packages"
install_packages "${build_packages[@]}" "${fetch_packages[@]}"

say "[2/5] Building (a few minutes the first time)"
build release
halflin=build/halflin
mkdir -p "$work"

# bfloat16 where the processor has it: twice as fast or more, and as good for this purpose.
dtype=f32
if grep -qwE 'avx512_bf16|amx_bf16' /proc/cpuinfo; then dtype=bf16; fi

if [[ $model_name == books ]]; then
  say "[3/5] The model: GPT-2's architecture, 4 million parameters, trained by halflin on public-domain books"
  model=models/gpt2-books
  say "[4/5] The text: Jane Austen's Emma"
  text="$work/emma.txt"
  get_novel
  options=(--dtype $dtype --controls --fold 0.25,0.5)
else
  say "[3/5] The model: SmolLM2-135M-Instruct"
  model="$(scripts/get-smollm2.sh | tail -n 1)"
  say "[4/5] The text: the Debian Policy Manual"
  text="$work/policy.txt"
  get_policy
  # Where float32 makes it slow, fewer layers and no controls.
  if [[ $dtype == bf16 ]]; then options=(--layers 4,12,20,28 --controls); else options=(--layers 12,20,28); fi
  options+=(--dtype $dtype --gates linear,harm --rates 0.5 --fit-tokens 8000 --train-tokens 10000
    --calibration-tokens 4000 --eval-tokens 12000)
fi
"$halflin" info "$model"
printf '%s: %s words\n' "$text" "$(wc -w <"$text")"

# A directory for this program, text and these options: a later version starts afresh.
out="$work/sweep-$({ sha256sum "$halflin" "$text"; echo "$model ${options[*]}"; } | sha256sum | cut -c1-12)"
say "[5/5] Measuring its layers"
printf '%s\n\n' "$halflin sweep $model --text $text ${options[*]} --out $out"
"$halflin" sweep "$model" --text "$text" "${options[@]}" --out "$out"
"$halflin" report "$out" --html "$out/report.html" --quiet
cat <<EOF

Each line is a layer whose MLP was replaced by one matrix, fitted on other parts of the text. "all linear": how much
perplexity rises when every token takes the matrix. "gate": the same when a gate sends only some tokens there; "linear"
says how many. See README.md for the verdicts, and docs/formats.md for all that is in result.json.

The same with charts, in a browser: $out/report.html
EOF
