#!/usr/bin/env bash
# Sets nvcc 13.0 up from Python packages, on a machine without a CUDA toolkit, and prints what to export:
#   eval "$(scripts/setup-nvcc.sh [FOLDER])"
set -euo pipefail
folder=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/djinn/nvcc}
[ -x "$folder/bin/python" ] || python3 -I -m venv "$folder" >&2
"$folder/bin/python" -I -m pip install -q --disable-pip-version-check \
    nvidia-cuda-nvcc==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-nvvm==13.0.88 \
    nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85 >&2
home=$("$folder/bin/python" -I -c 'import sysconfig; print(sysconfig.get_paths()["purelib"] + "/nvidia/cu13")')
echo "export CUDA_HOME=$home"
