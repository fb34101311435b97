#!/usr/bin/env bash
# Formats all C++ sources in place with clang-format 14, which test.sh checks with.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
format="$(command -v clang-format-14 || command -v clang-format)"
"$format" --version | grep -q 'version 14\.' || { echo "error: clang-format 14 is needed" >&2; exit 1; }
find halflin cli tests bench -name '*.cc' -o -name '*.h' | xargs "$format" -i
