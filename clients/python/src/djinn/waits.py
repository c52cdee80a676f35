"""Waits for tools: what tells the scheduler that a session's agent is away, and that it is back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .errors import NotFound


class Waits:
    """The tools that a session waits for. Several may run at once: it is back when the last one is."""

    def __init__(self, signal: Callable[..., dict[str, Any]]) -> None:
        self._signal = signal
        self._lock = threading.Lock()
        self._open = 0

    @contextmanager
    def tool(self, name: str, resume_in: float | None) -> Iterator[dict[str, Any] | None]:
        with self._lock:
            self._open += 1
        try:
            # The lock is held until the server has answered: signals arrive in the order of the blocks.
            with self._lock:
                told = self._tell("io_wait", tool=name, resume_in=resume_in)
            yield told
        finally:
            with self._lock:
                self._open -= 1
                if self._open == 0:
                    self._tell("compute")

    def _tell(self, phase: str, **more: Any) -> dict[str, Any] | None:
        # A session without keys and values has nothing that could move.
        with suppress(NotFound):
            return self._signal(phase, **more)
        return None
