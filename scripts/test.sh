#!/usr/bin/env bash
# Installs what is missing, builds everything and runs all tests; ctest's summary comes last.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

install_packages
configure_and_build release
# Device memory that only accel can read: proves that nothing above it does.
configure_and_build biased test_accel test_engine
ctest --preset biased -j "$(nproc)" -R '^(unit[.]accel|ranks[.]engine)$'
ctest --preset release -j "$(nproc)"
