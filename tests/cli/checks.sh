# What tests of commands share; sourced, not run. $halflin is the program, $work a folder of this test's own.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
wrong() {
  echo "wrong: $*" >&2
  failures=$((failures + 1))
}

# check STATUS PATTERN ARGUMENT...: exit status, and a pattern in what is said on stderr, one line where it fails.
check() {
  local status=$1 pattern=$2 got=0
  shift 2
  "$halflin" "$@" >"$work/out" 2>"$work/err" </dev/null || got=$?
  [[ $got == "$status" ]] || wrong "status $got, not $status: $* ($(cat "$work/err"))"
  grep -qE -- "$pattern" "$work/err" || wrong "no '$pattern' for: $* ($(cat "$work/err"))"
  [[ $status != 1 || $(wc -l <"$work/err") == 1 ]] || wrong "more than one line for: $*"
}
