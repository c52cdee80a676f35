"""Signals around the tools of a pydantic-ai agent. Needs `pydantic-ai-slim`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.toolsets import ToolsetTool, WrapperToolset

from .session import Session


@dataclass
class ToolSignals(WrapperToolset[Any]):
    """A toolset that tells the server when a session waits for one of its tools, and when it is back.

    >>> agent = Agent(model, toolsets=[ToolSignals(FunctionToolset([search]), session)])

    The model's requests must carry the session: `model_settings={"extra_headers": session.headers}`.
    """

    session: Session
    #: Seconds that a tool takes, by its name, where they are known.
    resume_in: dict[str, float] = field(default_factory=dict)

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any],
                        tool: ToolsetTool[Any]) -> Any:
        wait = self.session.tool(name, resume_in=self.resume_in.get(name))
        # Signals wait for the server's answer, which must not hold up the event loop.
        await asyncio.to_thread(wait.__enter__)
        try:
            return await super().call_tool(name, tool_args, ctx, tool)
        finally:
            await asyncio.to_thread(wait.__exit__, None, None, None)
