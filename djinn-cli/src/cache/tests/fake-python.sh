#!/bin/sh
# Stands in for Python: `-m pip download ... --dest DIR REQUIREMENT` writes a "wheel" that holds the
# requirement's name, `-m zipfile -e WHEEL DIR` unpacks it. The requirement `failing` fails.
while [ $# -gt 2 ]; do
    case "$1" in pip) what=pip ;; zipfile) what=zipfile ;; esac
    shift
done
if [ "$what" = pip ]; then
    if [ "$2" = failing ]; then
        echo "WARNING: Retrying" >&2
        echo "ERROR: No matching distribution found for failing" >&2
        echo "[notice] A new release of pip is available" >&2
        exit 1
    fi
    mkdir -p "$1" && printf '%s' "$2" >"$1/package-1-py3-none-any.whl"
else
    mkdir -p "$2/package" && printf 'model of %s' "$(cat "$1")" >"$2/package/model.gguf"
fi
