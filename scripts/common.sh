# Shared by demo.sh and test.sh; sourced, not run. Needs bash.

# What the library and the program are built from.
readonly build_packages=(cmake ninja-build g++ pkg-config libdnnl-dev libhwy-dev libeigen3-dev libpcre2-dev
  libutf8proc-dev nlohmann-json3-dev libcli11-dev libfmt-dev libssl-dev
  libjs-chart.js)
# What scripts/get-smollm2.sh needs.
readonly fetch_packages=(ca-certificates python3 python3-pip)
# What the tests and checks need besides.
readonly test_packages=(libgtest-dev clang libclang-rt-dev clang-format clang-tidy chromium chromium-driver)

if [[ -t 1 ]]; then bold=$'\e[1m' plain=$'\e[0m'; else bold='' plain=''; fi
say() { printf '%s== %s%s\n' "$bold" "$*" "$plain"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# run_as_root COMMAND...: directly as root, through sudo otherwise. Never asks where nobody can answer.
run_as_root() {
  if [[ $EUID -eq 0 ]]; then
    "$@"
  elif [[ -t 0 ]]; then
    sudo "$@"
  else
    sudo -n "$@"
  fi
}

apt_get() {
  run_as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o APT::Cmd::Disable-Script-Warning=1 \
    "$@" </dev/null
}

# install_packages NAME...: installs those that are missing, and says nothing where none is.
install_packages() {
  command -v dpkg-query >/dev/null && command -v apt-get >/dev/null \
    || die "this script installs Debian packages; elsewhere see \"Building by hand\" in README.md"
  local package missing=()
  for package in "$@"; do
    [[ "$(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null)" == ?i* ]] || missing+=("$package")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  say "Installing packages: ${missing[*]}"
  if [[ $EUID -ne 0 ]] && ! command -v sudo >/dev/null; then
    die "neither root nor sudo: install them as root with: apt-get install ${missing[*]}"
  fi
  apt_get update || printf 'warning: apt-get update failed; going on with the lists there are\n' >&2
  apt_get install -y --no-install-recommends "${missing[@]}" >/dev/null \
    || die "apt-get could not install: ${missing[*]}"
}

# Compilers to run at once: one a core, and 1.5 GiB of memory for each.
build_jobs() {
  local cores memory
  cores="$(nproc)"
  memory="$(awk '/^MemAvailable:/ { print int($2 / 1572864) }' /proc/meminfo)"
  echo "${HALFLIN_JOBS:-$((memory < 1 ? 1 : memory < cores ? memory : cores))}"
}

# build PRESET [cmake option]...: configures and builds; quiet unless it fails or a person watches.
build() {
  local preset="$1" log
  shift
  log="$(mktemp)"
  if ! cmake --preset "$preset" "$@" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    die "cmake could not configure (output above)"
  fi
  if [[ -t 1 ]]; then
    rm -f "$log"
    cmake --build --preset "$preset" -j "$(build_jobs)" || die "the build failed (output above)"
  elif cmake --build --preset "$preset" -j "$(build_jobs)" >"$log" 2>&1; then
    tail -n 1 "$log"
    rm -f "$log"
  else
    grep -vE '^\[[0-9]+/[0-9]+\] ' "$log" >&2 || true
    rm -f "$log"
    die "the build failed (output above)"
  fi
}
