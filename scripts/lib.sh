# Shared by the scripts; to be sourced, with the repository root as the current folder.
# shellcheck shell=bash

say() { printf '%s\n' "$*" >&2; }

fail() { # EXIT-CODE WHAT, WHERE, WHAT TO DO
  local code=$1
  shift
  say "error: $*"
  exit "$code"
}

is_installed() {
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# Installs what scripts/packages.txt lists and this system lacks; exit 3 if it may not.
install_packages() {
  local package packages missing=() run=()
  mapfile -t packages < <(grep -v '^#' scripts/packages.txt)
  say "Needs these Debian packages: ${packages[*]}"
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    say "This system has no apt-get: going on with what is there."
    return
  fi
  for package in "${packages[@]}"; do
    is_installed "$package" || missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    say "All of them are installed."
    return
  fi
  say "Missing: ${missing[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
      run=(sudo)
    else
      fail 3 "packages are missing and this user may not install them, scripts/packages.txt," \
        "run: su -c 'apt-get update && apt-get install -y --no-install-recommends ${missing[*]}'"
    fi
  fi
  { "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -q &&
    "${run[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -q -y --no-install-recommends "${missing[@]}"; } >&2 ||
    fail 3 "apt-get could not install the packages, scripts/packages.txt, see its messages above"
}

# configure_and_build PRESET [TARGET…]: everything the preset builds, or only these targets.
configure_and_build() {
  local preset=$1 targets=()
  shift
  [ $# -eq 0 ] || targets=(--target "$@")
  { cmake --preset "$preset" && cmake --build --preset "$preset" "${targets[@]}"; } >&2 ||
    fail 3 "the build failed, preset $preset, see the messages above"
}
