# For tests that kill -9 what they test. To be sourced.
kills=0 # how many were still at work when they were killed

# Runs the command and sets `milliseconds` to what it took.
timed() {
  local begin=${EPOCHREALTIME/[.,]/}
  "$@"
  milliseconds=$(((${EPOCHREALTIME/[.,]/} - begin) / 1000))
}

# Runs the command, a function around a program, and kills the program after that time.
kill_after() { # MILLISECONDS, command...
  local delay
  printf -v delay '%d.%03d' $(($1 / 1000)) $(($1 % 1000))
  shift
  "$@" >/dev/null &
  local child=$!
  sleep "$delay"
  pkill -9 -P "$child" 2>/dev/null && kills=$((kills + 1)) || true
  wait "$child" 2>/dev/null || true
}
