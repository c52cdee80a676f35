"""Real servers for tests: `DJINN` names the command, `SCRIPTS` the repository's scripts that start it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from djinn import Djinn

SCRIPTS = Path(os.environ.get("SCRIPTS", Path(__file__).resolve().parents[3] / "scripts"))


def served(*flags: str, **how: Any) -> Any:
    command = os.environ.get("DJINN")
    if command is None:
        pytest.skip("no server: DJINN does not name the command (scripts/test_python.sh does)")
    sys.path.insert(0, str(SCRIPTS))
    from served import Served  # type: ignore[import-not-found]

    return Served(command, *flags, **how)


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a server of a tiny model, whose tokens are the bytes of ASCII, with a store."""
    with served(f"--store={tmp_path_factory.mktemp('store')}") as server:
        yield f"http://127.0.0.1:{server.port}"
        assert not server.complaints()


@pytest.fixture
def client(address: str) -> Iterator[Djinn]:
    with Djinn(address) as client:
        yield client


@pytest.fixture(scope="session")
def smollm2() -> Iterator[str]:
    """The address of a server of SmolLM2."""
    with served("--ctx=512", model="smollm2", name="smollm2") as server:
        yield f"http://127.0.0.1:{server.port}"
        assert not server.complaints()
