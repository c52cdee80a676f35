#!/usr/bin/env bash
# Builds the wheel of clients/python, installs it into a fresh environment below target/python, checks its types, and runs
# its tests and the examples of its README against `djinn serve`, with a tiny model and with SmolLM2 on the CPU.
# Needs Python 3.10 or newer and pip.
#
#   scripts/test_python.sh [--if-available] [DJINN]
#
# DJINN is the command to test [default: target/debug/djinn, built if it is missing]. With --if-available, packages that
# cannot be had are told and are no failure.
set -euo pipefail
cd "$(dirname "$0")/.."
optional=
[ "${1:-}" != --if-available ] || { optional=1; shift; }
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
DJINN=$(realpath -m "${1:-$target/debug/djinn}")
export DJINN DJINN_CACHE="${DJINN_CACHE:-$target/test-cache}"
[ -x "$DJINN" ] || cargo build --workspace --locked

place=$target/python
python=$place/venv/bin/python
rm -rf "$place"
mkdir -p "$place"
# uv installs in a second what takes pip fifteen. It trusts the certificates that the system trusts.
uv=$place/tools/bin/uv
export UV_CACHE_DIR=$target/uv-cache UV_NATIVE_TLS=1 UV_PYTHON_DOWNLOADS=never
packages() {
    python3 -m pip install -q --no-compile --only-binary :all: --target "$place/tools" uv==0.13.9
    "$uv" venv -q --python "$(command -v python3)" "$place/venv"
    # The build leaves a folder beside the sources, so it gets a copy of them.
    cp -r clients/python "$place/source"
    "$uv" build -q --wheel --out-dir "$place" "$place/source"
    "$uv" pip install -q --python "$python" --no-build "$place"/djinn-*.whl pytest==8.4.2 mypy==2.4.1 \
        blake3==1.0.11 openai==3.54.0 langchain-openai==1.7.3 'pydantic-ai-slim[openai]==2.68.0'
    "$DJINN" --quiet pull smollm2
}
if ! packages >"$place/packages.log" 2>&1; then
    echo "the Python client's tests: a package cannot be had: $(tail -n 1 "$place/packages.log")"
    [ -n "$optional" ] && exit 0
    exit 1
fi

cd "$place/source"
# The tests see the wheel, not the sources.
rm -r src
"$python" -m mypy --strict -p djinn
PYTHONDONTWRITEBYTECODE=1 SCRIPTS="$OLDPWD/scripts" "$python" -m pytest -q -p no:cacheprovider
