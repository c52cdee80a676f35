#!/bin/sh
# Stands in for Python, called as `-I -c BOOT MODULE ARGUMENTS` in the pull's folder: `pip ... -r FILE` writes a "wheel"
# that holds the requirement's name, `zipfile -e WHEEL FOLDER` unpacks it. The requirements `failing` and `full` fail.
[ "$1" = -I ] || exit 9
shift 3
if [ "$1" = pip ]; then
    while [ $# -gt 2 ]; do
        [ "$1" != --dest ] || wheels=$2
        shift
    done
    read -r name hash <"$2"
    case "$hash" in --hash=sha256:*) ;; *) exit 9 ;; esac
    if [ "$name" = failing ]; then
        echo "WARNING: Retrying" >&2
        echo "ERROR: No matching distribution found for failing" >&2
        echo "[notice] A new release of pip is available" >&2
        exit 1
    fi
    if [ "$name" = full ]; then
        echo "ERROR: Exception:" >&2
        echo "Traceback (most recent call last):" >&2
        echo "OSError: [Errno 28] No space left on device" >&2
        exit 1
    fi
    mkdir -p "$wheels" && printf '%s' "$name" >"$wheels/package-1-py3-none-any.whl"
else
    mkdir -p "$4/package" && printf 'model of %s' "$(cat "$3")" >"$4/package/model.gguf"
fi
