"""Signals around the tools of a LangChain agent. Needs `langchain-core`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from .session import Session


class ToolSignals(BaseCallbackHandler):
    """A callback that tells the server when a session waits for a tool, and when it is back.

    >>> agent.invoke(question, config={"callbacks": [ToolSignals(session)]})

    The model's requests must carry the session: `ChatOpenAI(…, default_headers=session.headers)`.

    :param resume_in: seconds that a tool takes, by its name, where they are known.
    """

    def __init__(self, session: Session, resume_in: dict[str, float] | None = None) -> None:
        self.session = session
        self.resume_in = resume_in or {}
        self._open: dict[UUID, AbstractContextManager[Any]] = {}

    def on_tool_start(self, serialized: dict[str, Any], input_str: str, *, run_id: UUID, **_: Any) -> None:
        name = str((serialized or {}).get("name", "tool"))
        wait = self.session.tool(name, resume_in=self.resume_in.get(name))
        wait.__enter__()
        self._open[run_id] = wait

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        self._close(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._close(run_id)

    def _close(self, run_id: UUID) -> None:
        wait = self._open.pop(run_id, None)
        if wait is not None:
            wait.__exit__(None, None, None)
