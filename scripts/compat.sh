#!/usr/bin/env bash
# Public clients, and the test suites of clients and servers, against `djinn serve` with SmolLM2 on the CPU. Their packages
# are pinned in scripts/compat/suites.toml and installed below target/compat; nothing of them lies in this repository.
# Needs Python 3.11.4 or newer, pip, Node 20 or newer and npm. Writes docs/compatibility.md when every suite has run.
#
#   scripts/compat.sh [--suite NAME] [--quick] [--if-available] [DJINN]
#
# DJINN is the command to test [default: target/debug/djinn, built if it is missing]. --suite runs one suite, --quick the
# quick tests of each, and with --if-available a package that cannot be had is told and is no failure.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x "${CARGO_TARGET_DIR:-target}/debug/djinn" ] || cargo build --workspace --locked
exec python3 scripts/compat/run.py "$@"
