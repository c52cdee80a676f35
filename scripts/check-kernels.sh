#!/usr/bin/env bash
# Compiles the kernels up to objects: with CUDA 12.4 for 8.0 (no runtime of it is at hand to link with, nor an older driver), and
# with 13.0 and 12.4 for Hopper. The latter takes minutes. It is left out for sources of which kernels/hopper.sha256 says that
# they compile; `--record` compiles everything, and writes that file.
set -euo pipefail
# The order of the hashes is that of the files' names.
export LC_ALL=C
cd "$(dirname "$0")/.."
known=kernels/hopper.sha256
hashes=$(sha256sum scripts/check-kernels.sh scripts/setup-nvcc.sh kernels/*.cu kernels/*.cuh kernels/*.h)

# Objects are not run, so they need not be optimised, which takes minutes more.
compile() {
    local version=$1 arch=$2 source=$3
    local options=(-std=c++17 "-gencode=arch=compute_$arch,code=sm_$arch" -I kernels -O0)
    if [ "$version" = 13.0 ]; then
        options+=(-Ofc=max)
    else
        options+=(-Xptxas=-O0)
        # After cicc -O1, this ptxas breaks down over linear_blocks.cu, and does not end for linear_blocks_wide.cu.
        [[ $source == */linear_blocks* ]] || options+=(-Xcicc=-O1)
    fi
    "$CUDA_HOME/bin/nvcc" -c "${options[@]}" -o "$objects/$(basename "$source").o" "$source"
}
objects=$(mktemp -d)
trap 'rm -r "$objects"' EXIT
export objects
export -f compile

compile_all() {
    local version=$1 exports
    exports=$(./scripts/setup-nvcc.sh "$version")
    eval "$exports"
    shift
    for arch in "$@"; do
        echo "CUDA $version, sm_$arch (after $SECONDS s)"
        # The longest come first.
        { ls kernels/linear_blocks*.cu; ls -S kernels/*.cu | grep -v /linear_blocks; } |
            xargs -n 1 -P "$(nproc)" bash -euc 'compile "$@"' compile "$version" "$arch"
    done
}

if [ "${1:-}" != --record ] && diff -q "$known" - <<<"$hashes" >/dev/null; then
    compile_all 12.4 80
    exit
fi
compile_all 12.4 80 90a
compile_all 13.0 90a
[ "${1:-}" != --record ] || echo "$hashes" >"$known"
