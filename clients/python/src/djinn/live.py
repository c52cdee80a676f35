"""What a server holds and does: memory by segment, KV pages, sessions, as `/v1/live` tells it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .http import Http


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of the device, by segment."""

    #: Weights that stay there.
    resident: int
    #: Where weights stream through.
    ring: int
    #: Keys and values, in pages.
    data: int
    #: Activations.
    stack: int
    #: The driver's part, and what checks and copies need.
    other: int
    total: int


@dataclass(frozen=True)
class HostMemory:
    """Bytes of the host."""

    #: Weights that stream, and copies of others.
    weights: int
    #: Pages of sessions that wait.
    pages: int


@dataclass(frozen=True)
class KvPages:
    """Pages of keys and values."""

    #: Bytes of a page, and tokens that it holds.
    bytes: int
    tokens: int
    #: How many there are on the device and on the host, and how many of these hold nothing.
    device: int
    device_free: int
    host: int
    host_free: int


@dataclass(frozen=True)
class LiveSession:
    """A session as it is now."""

    #: Its name; requests without one have none.
    name: str | None
    #: `running`, `waiting`, `paused` or `empty`.
    state: str
    tokens: int
    kv_bytes: int
    #: Where its pages are: `device`, `host`, `both` while they are copied, or `none`.
    residency: str


@dataclass(frozen=True)
class LiveModel:
    """A model as it is now. `raw` is all that the server says of it."""

    id: str
    #: Whether its engine runs. Without one there is nothing to tell of memory.
    up: bool
    device: DeviceMemory | None
    host: HostMemory | None
    pages: KvPages | None
    sessions: list[LiveSession]
    raw: dict[str, Any]

    @staticmethod
    def of(body: dict[str, Any]) -> LiveModel:
        segments, host, pages = body.get("segments"), body.get("host"), body.get("pages")
        sessions = [
            LiveSession(row["id"], row["state"], row["tokens"], row["kv_bytes"], row["residency"])
            for row in body.get("sessions", [])
        ]
        return LiveModel(
            body["id"], bool(body["up"]), _fields(DeviceMemory, segments), _fields(HostMemory, host),
            _fields(KvPages, pages), sessions, body,
        )

    def __str__(self) -> str:
        if self.device is None or self.host is None or self.pages is None:
            return f"{self.id}: its engine does not run"
        mib = {name: getattr(self.device, name) / (1 << 20) for name in ("resident", "ring", "data", "stack", "other")}
        parts = ", ".join(f"{name} {size:.1f}" for name, size in mib.items())
        used = self.pages.device - self.pages.device_free
        return (f"{self.id}: {self.device.total / (1 << 20):.1f} MiB on the device ({parts}), "
                f"{used} of {self.pages.device} KV pages in use, {len(self.sessions)} sessions")


def _fields(kind: Any, body: dict[str, Any] | None) -> Any:
    return None if body is None else kind(**{name: body[name] for name in kind.__dataclass_fields__})


@dataclass(frozen=True)
class Live:
    """One look at a server. `raw` is its whole answer."""

    #: Seconds since 1970.
    time: float
    models: dict[str, LiveModel]
    raw: dict[str, Any]

    @staticmethod
    def of(body: dict[str, Any]) -> Live:
        models = [LiveModel.of(model) for model in body["models"]]
        return Live(float(body["time"]), {model.id: model for model in models}, body)

    def __str__(self) -> str:
        return "\n".join(map(str, self.models.values()))


def look(http: Http, model: str | None) -> Live:
    return Live.of(http.ask("GET", "/v1/live", query={"model": model}))


def watch(http: Http, every: float, model: str | None) -> Iterator[Live]:
    query = {"every_ms": round(every * 1000), "model": model}
    with http.stream("/v1/live", query) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data:"):
                continue
            body = json.loads(line[len("data:"):])
            # A ping keeps the connection; the stream's last event is no object of it.
            if isinstance(body, dict) and body.get("object") == "live":
                yield Live.of(body)
