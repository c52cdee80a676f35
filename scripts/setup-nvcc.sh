#!/usr/bin/env bash
# Sets nvcc up from packages, on a machine without a CUDA toolkit, and prints what to export:
#   eval "$(scripts/setup-nvcc.sh [13.0|12.4] [FOLDER])"
# 13.0 is made of Python packages (270 MB) and links. 12.4 is Debian's compiler with headers from Python packages (130 MB):
# it compiles and does not link, since the runtime to link with lies in a package of 934 MB. It needs apt and Debian's
# keys, and changes nothing of the system's.
set -euo pipefail
version=${1:-13.0}
folder=${2:-${XDG_CACHE_HOME:-$HOME/.cache}/djinn/nvcc${1:+-$1}}
case $version in
13.0) packages=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-nvvm==13.0.88
    nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85) ;;
12.4) packages=(nvidia-cuda-nvcc-cu12==12.4.131 nvidia-cuda-runtime-cu12==12.4.127 nvidia-cuda-cccl-cu12==12.9.27) ;;
*) echo "usage: setup-nvcc.sh [13.0|12.4] [FOLDER]" >&2; exit 2 ;;
esac
[ -x "$folder/bin/python" ] || python3 -I -m venv "$folder" >&2
"$folder/bin/python" -I -m pip install -q --disable-pip-version-check --no-deps "${packages[@]}" >&2
site=$("$folder/bin/python" -I -c 'import sysconfig; print(sysconfig.get_paths()["purelib"] + "/nvidia")')
if [ "$version" = 13.0 ]; then
    echo "export CUDA_HOME=$site/cu13"
    exit
fi

home=$folder/cuda
if [ ! -e "$home/complete" ]; then
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    if ! command -v apt-get >/dev/null || [ ! -e "$keys" ]; then
        echo "setup-nvcc.sh: nvcc 12.4 is taken from Debian's packages: apt-get and $keys are needed" >&2
        exit 1
    fi
    apt=$folder/apt
    mkdir -p "$apt/lists/partial" "$apt/archives/partial"
    # Where the system's own packages come from.
    mirror=$(apt-get indextargets --format '$(SITE)' | grep '/debian$' | head -n 1)
    if [ -z "$mirror" ]; then
        echo "setup-nvcc.sh: nvcc 12.4 is taken from Debian's packages, and apt names no mirror of Debian" >&2
        exit 1
    fi
    echo "deb [signed-by=$keys] $mirror trixie non-free" >"$apt/sources.list"
    options=(-qq -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt" -o APT::Sandbox::User=root)
    (cd "$apt" && apt-get "${options[@]}" update && apt-get "${options[@]}" download nvidia-cuda-toolkit) >&2
    dpkg -x "$apt"/nvidia-cuda-toolkit_*.deb "$apt/tree"
    # In the places where NVIDIA's own toolkit has them.
    mkdir -p "$home/bin" "$home/nvvm/bin" "$home/include"
    cp "$apt"/tree/usr/bin/{bin2c,cudafe++,fatbinary,nvlink,ptxas} "$apt"/tree/usr/lib/nvidia-cuda-toolkit/bin/nvcc "$home/bin/"
    cp "$apt/tree/usr/lib/nvidia-cuda-toolkit/bin/cicc" "$home/nvvm/bin/"
    cp -r "$apt/tree/usr/lib/nvidia-cuda-toolkit/libdevice" "$home/nvvm/"
    cp -r "$site"/cuda_{cccl,nvcc,runtime}/include/[!_]* "$home/include/"
    cat >"$home/bin/nvcc.profile" <<'PROFILE'
TOP = $(_HERE_)/..
CICC_PATH = $(TOP)/nvvm/bin
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib"
PROFILE
    rm -rf "$apt"
    touch "$home/complete"
fi
echo "export CUDA_HOME=$home"
