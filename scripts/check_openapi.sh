#!/usr/bin/env bash
# Validates the server's /openapi.json with openapi-spec-validator. Needs Python 3 with pip.
#   scripts/check_openapi.sh [DJINN]        DJINN is the command to test [default: target/release/djinn]
set -euo pipefail
cd "$(dirname "$0")/.."
djinn=${1:-target/release/djinn}
place=$(mktemp -d)
port=${DJINN_COMPAT_PORT:-5598}
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install -q openapi-spec-validator==0.9.0
"$djinn" serve synthetic:tiny --port "$port" 2>"$place/log" &
server=$!
trap 'kill $server 2>/dev/null || true; wait $server 2>/dev/null || true; rm -rf "$place"' EXIT
for _ in $(seq 100); do
    curl -fs "http://127.0.0.1:$port/openapi.json" >"$place/openapi.json" && break
    kill -0 $server || { cat "$place/log" >&2; exit 1; }
    sleep 0.1
done
"$place/venv/bin/openapi-spec-validator" "$place/openapi.json"
