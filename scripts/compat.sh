#!/usr/bin/env bash
# Public clients and their own tests against `djinn serve` with SmolLM2; versions are pinned. Needs Python 3.11 or newer
# with pip, and the model (`djinn pull smollm2`). Prints one line for each suite: docs/compatibility.md has the results.
#   scripts/compat.sh [DJINN]        DJINN is the command to test [default: target/release/djinn]
set -euo pipefail
cd "$(dirname "$0")/.."
djinn=${1:-target/release/djinn}
place=${TMPDIR:-/tmp}/djinn-compat
openai=2.8.0
mkdir -p "$place"

if [ ! -d "$place/venv" ]; then
    python3 -m venv "$place/venv"
    "$place/venv/bin/pip" install -q openai==$openai pytest==8.4.2 pytest-asyncio==1.2.0 respx==0.22.0 \
        dirty-equals==0.9.0 rich==14.2.0 aiohttp==3.13.2 httpx-aiohttp==0.1.9
fi
if [ ! -d "$place/openai-$openai" ]; then
    # The source package holds the tests.
    "$place/venv/bin/pip" download -q --no-deps --no-binary :all: openai==$openai -d "$place"
    tar xzf "$place/openai-$openai.tar.gz" -C "$place"
fi

port=${DJINN_COMPAT_PORT:-5599}
"$djinn" serve smollm2 --port "$port" --ctx 1024 --alias smollm2 --alias gpt-4o --alias gpt-4o-mini --alias string \
    >"$place/server.log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null || true; wait $server 2>/dev/null || true' EXIT
for _ in $(seq 600); do
    curl -fs "http://127.0.0.1:$port/ready" >/dev/null && break
    kill -0 $server 2>/dev/null || { cat "$place/server.log" >&2; exit 1; }
    sleep 0.1
done
export TEST_API_BASE_URL="http://127.0.0.1:$port/v1"

# Skipped by name: tests that send values without a meaning (`logit_bias` of the token "foo", 0 tokens to generate, a
# suffix), and those of deleting a model, which a server does not.
python="$place/venv/bin/python"
echo "== openai $openai: its own tests of completions, chat completions and models"
(cd "$place/openai-$openai" && "$python" -m pytest -q -p no:cacheprovider -o addopts= \
    tests/api_resources/chat/test_completions.py tests/api_resources/test_completions.py \
    tests/api_resources/test_models.py \
    -k "not all_params and not delete and not aiohttp and not method_retrieve_path and not chat_completions_stored \
        and not (chat and (retrieve or update or list))" 2>&1 | tail -15) || true
echo "== openai $openai: streams, tools and errors with its helpers"
"$python" scripts/compat_openai.py "$TEST_API_BASE_URL"
