#!/usr/bin/env bash
# Installs what is missing, builds everything and runs all tests; ctest's summary comes last.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

install_packages
configure_and_build release
ctest --preset release -j "$(nproc)"
