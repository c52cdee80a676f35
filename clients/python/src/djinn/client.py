"""The server as a whole: its models, its sessions, its steering vectors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np

from . import arrays
from .errors import Conflict
from .http import Http
from .live import Live, look, watch
from .push import Pushed, name_of, push
from .session import Session
from .steering import SteeringStore
from .types import Floats, Hook


class Djinn:
    """A Djinn server.

    >>> client = Djinn("http://127.0.0.1:5556")
    >>> session = client.session("demo")

    :param base_url: with or without `/v1`.
    :param api_key: the server's key, if it has one; else `DJINN_API_KEY` of the environment.
    :param transport: how requests travel, for tests.

    Requests wait for their answers. From asyncio, call through `asyncio.to_thread`.
    """

    def __init__(self, base_url: str = "http://127.0.0.1:5556", api_key: str | None = None, *,
                 transport: httpx.BaseTransport | None = None) -> None:
        self._http = Http(base_url, api_key or os.environ.get("DJINN_API_KEY"), transport)
        #: The server's steering vectors.
        self.steering = SteeringStore(self._http)

    def close(self) -> None:
        self._http.client.close()

    def __enter__(self) -> Djinn:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def models(self) -> list[str]:
        """The names of the models that it serves."""
        return [model["id"] for model in self._http.ask("GET", "/v1/models")["data"]]

    def live(self, model: str | None = None) -> Live:
        """What the server holds and does now: memory by segment, KV pages, sessions.

        :param model: leaves out the others.
        """
        return look(self._http, model)

    def watch(self, every: float = 1.0, *, model: str | None = None) -> Iterator[Live]:
        """The same again and again, until the server ends or the loop is left.

        >>> for view in client.watch(every=0.5):
        ...     print(view)

        :param every: seconds, 0.1 to 60.
        """
        return watch(self._http, every, model)

    def push(self, model: str | os.PathLike[str], name: str | None = None, *, connections: int = 4,
             progress: Callable[[int, int], None] | None = None) -> Pushed:
        """Sends a model to the server's store, without the tensors that it has, and makes it visible. One that was broken
        off goes on where it was. Needs `blake3`.

        :param model: a folder in Hugging Face's layout with safetensors, or a GGUF file, which is sent as a whole.
        :param name: in requests; the folder's or file's own, if not given.
        :param connections: pieces that are sent at once.
        :param progress: is told the bytes that were sent, and those that the server lacked.
        :raises ValueError: it is no such model.
        :raises ApiError: the server refuses it: no store (404), no right (403), its name is taken (409), no room (507).
        """
        return push(self._http, Path(model), name or name_of(model), connections, progress)

    def remove_model(self, name: str) -> None:
        """Removes a model that was pushed."""
        self._http.ask("DELETE", f"/v1/models/{quote(name)}")

    def hooks(self, model: str | None = None) -> list[Hook]:
        """Where values can be read and changed, in the order of computation; of its first model, if none is named."""
        name = quote(model or self.models()[0], safe="")
        return [Hook.of(hook) for hook in self._http.ask("GET", f"/v1/models/{name}/hooks")["data"]]

    def tokenize(self, text: str, *, model: str | None = None) -> list[int]:
        """The token ids of a text, as a prompt has them.

        :param model: here and below, may be left out where the server has one model.
        """
        body = {"prompt": text} | ({} if model is None else {"model": model})
        return [int(token) for token in self._http.ask("POST", "/tokenize", json=body)["tokens"]]

    def detokenize(self, tokens: Iterable[int], *, model: str | None = None) -> str:
        """The text of token ids."""
        body = {"tokens": arrays.indices(tokens)} | ({} if model is None else {"model": model})
        text: str = self._http.ask("POST", "/detokenize", json=body)["prompt"]
        return text

    def logits(self, tokens: Iterable[int], *, model: str | None = None) -> Floats:
        """The logits of every position, f32 `[tokens, vocabulary]`, without a session; at most 8,388,608 numbers."""
        body = {"tokens": arrays.indices(tokens)} | ({} if model is None else {"model": model})
        rows = self._http.ask("POST", "/v1/logits", json=body, timeout=None)["logits"]
        return np.asarray(rows, dtype=np.float32)

    def session(self, name: str | None = None, *, model: str | None = None, ttl: float | None = None) -> Session:
        """The session of this name, made if there is none; a new one without a name.

        :param model: may be left out where the server has one model.
        :param ttl: seconds that a new session is kept without use.
        """
        wanted = {"id": name, "model": model, "ttl_s": None if ttl is None else int(ttl)}
        body = {key: value for key, value in wanted.items() if value is not None}
        try:
            made = self._http.ask("POST", "/v1/sessions", json=body)
        except Conflict as error:
            if error.code != "session_exists" or name is None:
                raise
            made = Session(self._http, name, model).info()
        return Session(self._http, made["id"], made["model"])

    def sessions(self) -> list[dict[str, Any]]:
        """All sessions of this key, as the server shows them."""
        found: list[dict[str, Any]] = self._http.ask("GET", "/v1/sessions")["data"]
        return found

    def import_session(self, path: str | os.PathLike[str], name: str | None = None, *,
                       model: str | None = None) -> Session:
        """A session from a file that :meth:`Session.export` wrote, on this or another server of the same model."""
        with Path(path).open("rb") as file:
            pieces = iter(lambda: file.read(1 << 20), b"")
            query = {"id": name, "model": model}
            made = self._http.ask("POST", "/v1/sessions/import", query=query, content=pieces, timeout=None)
        return Session(self._http, made["id"], made["model"])
