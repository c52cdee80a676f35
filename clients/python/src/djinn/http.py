"""Requests to the server: paths, errors, and nothing of what they mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from . import errors

SAFETENSORS = "application/x-safetensors"
#: Seconds for a connection, and for answers that wait for no computation.
TIMEOUT = 60.0


class Http:
    """One server, with the key that every request carries. Safe to use from several threads."""

    def __init__(self, base_url: str, api_key: str | None, transport: httpx.BaseTransport | None) -> None:
        # The openai client wants the address with `/v1`: both forms are taken.
        base = base_url.rstrip("/").removesuffix("/v1")
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        # A streamed or waiting request holds a connection, so their number is not bounded here.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self.client = httpx.Client(
            base_url=base, headers=headers, timeout=TIMEOUT, limits=limits, transport=transport, trust_env=False)

    def send(self, method: str, path: str, *, query: dict[str, Any] | None = None, json: Any = None,
             content: bytes | Iterator[bytes] | None = None, headers: dict[str, str] | None = None,
             timeout: float | None = TIMEOUT) -> httpx.Response:
        """The answer of one request; `timeout` is in seconds, None waits as long as it takes.

        :raises ApiError: the server refuses it.
        :raises ServerUnreachable: no answer came.
        """
        extra = dict(headers or {})
        if content is not None:
            extra.setdefault("content-type", SAFETENSORS)
        query = {name: value for name, value in (query or {}).items() if value is not None}
        try:
            answer = self.client.request(
                method, path, params=query, json=json, content=content, headers=extra,
                timeout=httpx.Timeout(timeout, connect=TIMEOUT))
        except httpx.TransportError as error:
            raise unreachable(error, method, path) from error
        if answer.is_error:
            raise refusal(answer)
        return answer

    def ask(self, method: str, path: str, **how: Any) -> dict[str, Any]:
        """The JSON object that the server answers."""
        answer = self.send(method, path, **how)
        try:
            body = answer.json()
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise errors.DjinnError(f"{method} {path} was answered with no JSON object; is this a Djinn server?")
        return body

    @contextmanager
    def stream(self, path: str, query: dict[str, Any], timeout: float | None = TIMEOUT) -> Iterator[httpx.Response]:
        """What a path answers, before its body is read; `timeout` is in seconds, for each part of it."""
        query = {name: value for name, value in query.items() if value is not None}
        try:
            with self.client.stream("GET", path, params=query,
                                    timeout=httpx.Timeout(timeout, connect=TIMEOUT)) as answer:
                if answer.is_error:
                    answer.read()
                    raise refusal(answer)
                yield answer
        except httpx.TransportError as error:
            raise unreachable(error, "GET", path) from error


def unreachable(error: httpx.TransportError, method: str, path: str) -> errors.ServerUnreachable:
    return errors.ServerUnreachable(f"{method} {path}: {error or type(error).__name__}")


def refusal(answer: httpx.Response) -> errors.ApiError:
    try:
        body = answer.json()
    except ValueError:
        body = None
    return errors.of_answer(answer.status_code, body, answer.text, answer.headers.get("retry-after"))
