#!/usr/bin/env bash
# Builds halflin and runs every test and check. Debian 12 or 13, as root or with sudo; installs what is missing.
#
# Usage: ./test.sh            everything but clang-tidy
#        ./test.sh --quick    the g++ build and its tests alone
#        ./test.sh --tidy     everything, clang-tidy too, which takes as long as all the rest
#
#   1. packages, and SmolLM2-135M for the tests on a real model (skipped where it cannot be fetched)
#   2. clang-format
#   3. g++, Release, warnings are errors: all tests
#   4. clang, address and undefined-behaviour sanitizers, warnings are errors: unit tests, and each fuzz target for
#      ten seconds
#   5. with --tidy: clang-tidy, on files that changed since it last passed
#
# HALFLIN_JOBS: compilers to run at once (default: one a core, memory permitting).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. scripts/common.sh

quick=false
tidy=false
case "${1:-}" in
  '') ;;
  --quick) quick=true ;;
  --tidy) tidy=true ;;
  -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
  *) printf 'usage: %s [--quick|--tidy]\n' "$0" >&2; exit 2 ;;
esac

# The code is formatted and tidied with this version; others judge differently.
readonly llvm=14
is_llvm() { command -v "$1" >/dev/null && "$1" --version | grep -qE "version $llvm\."; }
sources() { find halflin cli tests bench -name '*.cc' -o -name '*.h' | LC_ALL=C sort; }

run_tests() {  # run_tests PRESET
  if [[ -t 1 ]]; then
    ctest --preset "$1" -j "$(nproc)" --progress
  else
    ctest --preset "$1" -j "$(nproc)" | grep -vE '^ +Start +[0-9]+: '
  fi || die "tests failed (above)"
}

install_packages "${build_packages[@]}" "${fetch_packages[@]}" "${test_packages[@]}"

if HALFLIN_SMOLLM2="$(scripts/get-smollm2.sh | tail -n 1)"; then
  export HALFLIN_SMOLLM2
else
  say "SmolLM2 could not be fetched: tests on it are skipped"
  export HALFLIN_SMOLLM2=/nonexistent
fi

if ! $quick; then
  if is_llvm clang-format; then
    say "clang-format"
    sources | xargs clang-format --dry-run --Werror || die "format with: clang-format -i FILE"
  else
    say "clang-format: skipped, version $llvm formats this code"
  fi
fi

say "g++, Release"
build ci
run_tests ci
if $quick; then exit 0; fi

say "clang, address and undefined-behaviour sanitizers"
build sanitize
# The real model is for optimised code: it is skipped here.
HALFLIN_SMOLLM2=/nonexistent run_tests sanitize

if ! $tidy; then
  say "clang-tidy: run by ./test.sh --tidy"
elif is_llvm clang-tidy; then
  # A file is tidied again when it, any header or the configuration changes.
  stamps=build-sanitize/tidy
  mkdir -p "$stamps"
  common="$({ cat .clang-tidy; sources | grep '\.h$' | xargs cat; } | sha256sum)"
  stale=()
  for file in $(sources | grep -E '^(halflin|cli)/.*\.cc$'); do
    key="$({ echo "$common"; cat "$file"; } | sha256sum | cut -c1-16)"
    stamp="$stamps/${file//\//_}"
    [[ "$(cat "$stamp" 2>/dev/null)" == "$key" ]] || stale+=("$file $stamp $key")
  done
  say "clang-tidy: ${#stale[@]} files"
  tidy_file() {
    clang-tidy -p build-sanitize --quiet "$1" 2>/dev/null && echo "$3" >"$2"
  }
  export -f tidy_file
  if [[ ${#stale[@]} -gt 0 ]]; then
    printf '%s\n' "${stale[@]}" | xargs -P "$(build_jobs)" -L 1 bash -c 'tidy_file "$@"' tidy_file \
      || die "clang-tidy found something (above)"
  fi
else
  say "clang-tidy: skipped, version $llvm knows this code"
fi
say "All tests and checks passed"
