"""A session: a conversation that can be stopped, looked at, changed, steered, forked and moved."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from . import arrays
from .errors import Conflict, NotFound, PauseNotReached
from .http import Http
from .pause import Pause
from .steering import Edit, uses
from .turn import Answer, Turn
from .types import Action, AtTtl, Breakpoint, Captures, Condition, PausedAt, Text, Tokens, Vector
from .waits import Waits

#: Seconds that one request waits for a pause. Between two of them, :meth:`Session.paused` looks whether the answer ended.
_POLL = 2.0


class Session:
    """A session that the server knows by name. :meth:`djinn.Djinn.session` gives it.

    Requests of other clients belong to it that carry :attr:`headers`.
    """

    def __init__(self, http: Http, name: str, model: str | None) -> None:
        self._http = http
        self.name = name
        self.model = model
        self._waits = Waits(self.signal)

    def __repr__(self) -> str:
        return f"Session({self.name!r}, model={self.model!r})"

    @property
    def headers(self) -> dict[str, str]:
        """What a request carries to be of this session: `extra_headers=session.headers` for the openai client."""
        return {"x-session-id": self.name}

    def _ask(self, method: str, action: str = "", **how: Any) -> dict[str, Any]:
        # The server answers between steps, and a step of a streamed model may take minutes.
        return self._http.ask(method, self._path(action), query=self._query(how.pop("query", {})), timeout=None, **how)

    def _path(self, action: str) -> str:
        return f"/v1/sessions/{quote(self.name, safe='')}" + (f"/{action}" if action else "")

    def _query(self, more: dict[str, Any]) -> dict[str, Any]:
        return {"model": self.model, **more}

    # ------------------------------------------------------------------ requests

    def start(self, prompt: str | Sequence[int] | None = None, *, messages: Sequence[dict[str, Any]] | None = None,
              **fields: Any) -> Turn:
        """Begins an answer and returns at once, so that the session can be debugged while it is computed.

        :param prompt: a text or token ids, for `/v1/completions`; or
        :param messages: a chat, for `/v1/chat/completions`.
        :param fields: of that request: `max_tokens=16`, `temperature=0`, `steering=…`.
        """
        if (prompt is None) == (messages is None):
            raise ValueError("give either `prompt` or `messages`")
        body: dict[str, Any] = {"model": self.model} if self.model else {}
        if messages is not None:
            body["messages"] = list(messages)
        else:
            body["prompt"] = prompt if isinstance(prompt, str) else [int(token) for token in prompt or []]
        return Turn(self._http, self.headers, body | fields)

    def generate(self, prompt: str | Sequence[int] | None = None, *,
                 messages: Sequence[dict[str, Any]] | None = None, **fields: Any) -> Answer:
        """The answer to a prompt or chat; waits for it. As :meth:`start`."""
        return self.start(prompt, messages=messages, **fields).result()

    # ------------------------------------------------------------------ breakpoints

    def breakpoint(self, hook: str, *, action: Action = "pause", tokens: Tokens = "any",
                   positions: range | tuple[int | None, int | None] | None = None,
                   steps: range | tuple[int | None, int | None] | None = None, condition: Condition | None = None,
                   hits: int | None = None, ttl: float | None = None, on_ttl: AtTtl = "resume") -> Breakpoint:
        """Sets a breakpoint, from the next token on.

        :param hook: a name that :meth:`djinn.Djinn.hooks` gives.
        :param action: pause there, copy the values, or both.
        :param tokens: the prompt's, those that the model chose, or any.
        :param positions: places in the conversation, from, to: `range(3, 5)` are 3 and 4.
        :param steps: places of generated tokens in their turn, from, to; the first is 1. Tokens of prompts are left out.
        :param condition: hits only there.
        :param hits: how often; once for a pause, without an end for a capture, if not given.
        :param ttl: seconds that a pause may last.
        :param on_ttl: what happens then.
        """
        body: dict[str, Any] = {"hook": hook, "action": action, "tokens": tokens, "on_ttl": on_ttl}
        for name, bounds in [("positions", positions), ("steps", steps)]:
            if bounds is not None:
                body[name] = _range(bounds)
        if condition is not None:
            body["condition"] = condition.json()
        if hits is not None:
            body["hits"] = hits
        if ttl is not None:
            body["ttl_ms"] = round(ttl * 1000)
        return Breakpoint.of(self._ask("POST", "breakpoints", json=body))

    def breakpoints(self) -> list[Breakpoint]:
        """Those that are set."""
        return [Breakpoint.of(body) for body in self._ask("GET", "breakpoints")["data"]]

    def clear(self, breakpoint: Breakpoint | str) -> None:
        """Removes a breakpoint; nothing happens if it is gone."""
        name = breakpoint if isinstance(breakpoint, str) else breakpoint.id
        with suppress(NotFound):
            self._ask("DELETE", f"breakpoints/{quote(name, safe='')}")

    def paused(self, timeout: float = 60.0, *, turn: Turn | None = None) -> Pause:
        """Waits until the session is paused at a breakpoint.

        :param timeout: seconds.
        :param turn: the answer that should pause: its end is the end of the wait.
        :raises PauseNotReached: it did not.
        """
        end = time.monotonic() + timeout
        while True:
            ended = turn is not None and turn.done
            left = 0.0 if ended else min(max(end - time.monotonic(), 0.0), _POLL)
            found = self._ask("GET", "pause", query={"timeout_ms": round(left * 1000)})["paused_at"]
            if found is not None:
                return Pause(self, PausedAt.of(found), turn)
            if turn is not None and ended:
                turn.result(0)
                raise PauseNotReached(f"the answer of `{self.name}` ended before it paused")
            if time.monotonic() >= end:
                raise PauseNotReached(f"`{self.name}` did not pause within {timeout:g} s")

    @contextmanager
    def pause_at(self, hook: str, prompt: str | Sequence[int] | None = None, *,
                 messages: Sequence[dict[str, Any]] | None = None, timeout: float = 60.0, action: Action = "pause",
                 tokens: Tokens = "any", positions: range | tuple[int | None, int | None] | None = None,
                 steps: range | tuple[int | None, int | None] | None = None, condition: Condition | None = None,
                 hits: int | None = None, ttl: float | None = None, on_ttl: AtTtl = "resume",
                 **fields: Any) -> Iterator[Pause]:
        """Sets a breakpoint, begins an answer if `prompt` or `messages` is given, and waits until it pauses. The
        session goes on at the end of the block, if it did not before, and the breakpoint is removed.

        >>> with session.pause_at("blocks.20.hook_out", "The sky is", max_tokens=8) as p:
        ...     p.add(vector)
        >>> p.turn.result().text
        """
        armed = self.breakpoint(hook, action=action, tokens=tokens, positions=positions, steps=steps,
                                condition=condition, hits=hits, ttl=ttl, on_ttl=on_ttl)
        try:
            turn = None
            if prompt is not None or messages is not None:
                turn = self.start(prompt, messages=messages, **fields)
            elif fields:
                raise TypeError(f"fields of a request without one: {', '.join(fields)}")
            pause = self.paused(timeout, turn=turn)
        except BaseException:
            self.clear(armed)
            # It may have paused at the last moment.
            with suppress(Conflict, NotFound):
                if (at := self.paused_at()) is not None and at.breakpoint == armed.id:
                    self.resume()
            raise
        try:
            yield pause
        finally:
            self.clear(armed)
            pause.leave()

    def paused_at(self) -> PausedAt | None:
        """Where it is paused now."""
        found = self.info().get("paused_at")
        return None if found is None else PausedAt.of(found)

    def captures(self) -> Captures:
        """Takes what capture breakpoints have read since this was last asked."""
        tensors, about = arrays.unpack(self._safetensors("captures"))
        hooks = [hook for hook in about["hooks"].split(",") if hook]
        values = {hook: tensors[hook] for hook in hooks}
        tokens, positions = ({hook: tensors.get(f"{hook}.{list_}", tensors[list_]) for hook in hooks}
                             for list_ in ("token_ids", "positions"))
        return Captures(values, tokens, positions, tensors.get("hidden_states"), int(about["dropped"]))

    def _safetensors(self, path: str, **query: str) -> bytes:
        asked = self._query({"format": "safetensors", **query})
        return self._http.send("GET", self._path(path), query=asked, timeout=None).content

    # ------------------------------------------------------------------ steering

    def steer(self, *given: Vector | Edit | str) -> dict[str, Any]:
        """Steers the session with stored vectors and edits from the next token on, in the place of what steered it; with
        none given, it is steered no more."""
        return self._ask("POST", "steering", json=uses(given))

    # ------------------------------------------------------------------ the session itself

    def info(self) -> dict[str, Any]:
        """The session as the server shows it."""
        return self._ask("GET")

    def tokens(self, wait: float | None = None) -> Text:
        """Its tokens so far.

        :param wait: seconds to wait for the end of what is being computed.
        """
        query = {} if wait is None else {"wait_ms": round(wait * 1000)}
        body = self._ask("GET", "tokens", query=query)
        return Text(list(body["token_ids"]), body["text"], int(body["generated_from"]), body["state"])

    def signal(self, phase: str, *, tool: str | None = None, resume_in: float | None = None) -> dict[str, Any]:
        """Tells the scheduler what the session does.

        :param phase: `io_wait`, `compute` or `idle`.
        :param tool: what it waits for; waits are learned by this name.
        :param resume_in: seconds until its next request.
        """
        resume = None if resume_in is None else round(resume_in * 1000)
        wanted = {"phase": phase, "tool": tool, "estimated_resume_ms": resume}
        return self._ask("POST", "signal", json={key: value for key, value in wanted.items() if value is not None})

    def tool(self, name: str, *, resume_in: float | None = None) -> AbstractContextManager[dict[str, Any] | None]:
        """A block in which the session waits for a tool: its pages may leave the device, and are called back at the end.

        >>> with session.tool("search", resume_in=9):
        ...     found = search(words)

        It gives the server's answer to the signal; nothing where the session has no keys and values yet. Blocks of
        several threads may overlap: the session is back when the last one ends.

        :param name: waits are learned by this name.
        :param resume_in: seconds until its next request, where they are known.
        """
        return self._waits.tool(name, resume_in)

    def pause(self) -> dict[str, Any]:
        """Holds it and the request that it answers, at no breakpoint."""
        return self._ask("POST", "pause")

    def resume(self, until: str | dict[str, str] | None = None) -> dict[str, Any]:
        """Lets it go on; until `next_layer`, `next_token` or `{"hook": …}`, if given."""
        return self._ask("POST", "resume", **({} if until is None else {"json": {"until": until}}))

    def abort(self) -> dict[str, Any]:
        """Ends its turn, also a paused one; what was computed stays."""
        return self._ask("POST", "abort")

    def heartbeat(self) -> dict[str, Any]:
        """Keeps it from being forgotten."""
        return self._ask("POST", "heartbeat")

    def fork(self, name: str | None = None) -> Session:
        """A session that begins with all tokens of this one, with its keys and values shared."""
        made = self._ask("POST", "fork", **({} if name is None else {"json": {"id": name}}))
        return Session(self._http, made["id"], self.model)

    def delete(self) -> None:
        """Forgets it, and ends what it computes."""
        self._ask("DELETE")

    def export(self, path: str | os.PathLike[str]) -> None:
        """Writes it to a file that :meth:`djinn.Djinn.import_session` reads. The file is there once it is whole."""
        part = Path(f"{os.fspath(path)}.part")
        with self._http.stream(self._path("export"), self._query({}), timeout=None) as answer:
            try:
                with part.open("wb") as file:
                    for piece in answer.iter_bytes():
                        file.write(piece)
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)


def _range(bounds: range | tuple[int | None, int | None]) -> dict[str, int]:
    # A list could be meant as the places themselves.
    if not (isinstance(bounds, range) or (isinstance(bounds, tuple) and len(bounds) == 2)):
        raise TypeError(f"positions and steps are a range, or a tuple of from and to, not {bounds!r}")
    if isinstance(bounds, range):
        if bounds.step != 1:
            raise ValueError("a range of positions or steps goes by ones")
        bounds = (bounds.start, bounds.stop)
    return {name: int(value) for name, value in zip(("from", "to"), bounds, strict=True) if value is not None}
