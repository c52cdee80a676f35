"""A request that runs beside the code that debugs it."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from threading import Thread
from typing import Any

from .http import Http


@dataclass(frozen=True)
class Answer:
    """What the model said. `raw` is the server's whole answer."""

    text: str
    finish_reason: str | None
    raw: dict[str, Any]


class Turn:
    """A completion that was begun on a thread of its own, since it waits wherever its session is paused."""

    def __init__(self, http: Http, headers: dict[str, str], body: dict[str, Any]) -> None:
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        self._future: Future[Answer] = Future()

        def run() -> None:
            try:
                # A paused session is answered when it goes on.
                raw = http.ask("POST", path, json=body, headers=headers, timeout=None)
                choice = raw["choices"][0]
                text = choice["message"]["content"] if "message" in choice else choice["text"]
                self._future.set_result(Answer(text or "", choice.get("finish_reason"), raw))
            except BaseException as error:  # it is raised where the answer is read
                self._future.set_exception(error)

        Thread(target=run, name="djinn-turn", daemon=True).start()

    @property
    def done(self) -> bool:
        """Whether it has been answered, or has failed."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> Answer:
        """The answer, once it is there; within `timeout` seconds, if given.

        :raises ApiError: the server refused the request.
        :raises TimeoutError: it is not there yet.
        """
        try:
            return self._future.result(timeout)
        except FutureTimeout:
            if self._future.done():
                raise
            raise TimeoutError("the answer is not there yet; is its session paused?") from None
