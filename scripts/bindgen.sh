#!/usr/bin/env bash
# Regenerates djinn-cuda-sys/src/bindings.rs from kernels/djinn.h. Needs bindgen (cargo install bindgen-cli) and
# libclang (LIBCLANG_PATH).
set -euo pipefail
cd "$(dirname "$0")/.."
out=djinn-cuda-sys/src
{
    echo '//! Generated from kernels/djinn.h by scripts/bindgen.sh; do not edit.'
    echo
    bindgen --rust-target 1.85 --rust-edition 2024 --allowlist-item 'djinn_.*|DJINN_.*' --no-layout-tests \
        --no-doc-comments --default-macro-constant-type unsigned kernels/djinn.h -- "$@" |
        sed '1,/^$/{/automatically generated/d}'
} >"$out/bindings.rs"
python3 -I - kernels/djinn.h >"$out/header.hash" <<'PY'
import sys

state = 0xCBF29CE484222325
for byte in open(sys.argv[1], "rb").read():
    state = (state ^ byte) * 0x100000001B3 % 2**64
print(f"{state:016x}")
PY
