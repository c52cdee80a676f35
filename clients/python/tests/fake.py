"""A server that remembers requests and gives prepared answers: what goes over the wire, without a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx

from djinn import Djinn, Session

Route = tuple[str, str]
Reply = dict[str, Any] | Callable[[httpx.Request], httpx.Response]


class Fake:
    """Answers by method and path, in the order of their preparation; the last answer stays."""

    def __init__(self) -> None:
        self.replies: dict[Route, list[Reply]] = {}
        self.requests: list[httpx.Request] = []
        self.client = Djinn("http://djinn.test/v1", "key", transport=httpx.MockTransport(self.answer))
        self.session = Session(self.client._http, "s", "m")

    def on(self, method: str, path: str, *replies: Reply) -> None:
        self.replies.setdefault((method, path), []).extend(replies)

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        replies = self.replies.get((request.method, request.url.path))
        if not replies:
            return error(404, f"there is no {request.method} {request.url.path}")
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        return reply(request) if callable(reply) else httpx.Response(200, json=reply)

    def sent(self, method: str, path: str) -> list[httpx.Request]:
        return [request for request in self.requests if (request.method, request.url.path) == (method, path)]

    def body(self, method: str, path: str) -> Any:
        """The JSON of the last request to this path."""
        return json.loads(self.sent(method, path)[-1].content)


def error(status: int, message: str, **more: Any) -> httpx.Response:
    body = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    headers = more.pop("headers", {})
    return httpx.Response(status, json={"error": body | more}, headers=headers)


PAUSED = {
    "breakpoint": "bp_1", "hook": "blocks.1.hook_out", "positions": {"from": 3, "to": 5}, "token_ids": [7, 8],
    "since_ms": 20, "expires_in_ms": 299_980,
}
BREAKPOINT = {"id": "bp_1", "object": "breakpoint", "hook": "blocks.1.hook_out", "action": "pause", "hit_count": 0}
