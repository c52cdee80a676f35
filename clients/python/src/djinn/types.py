"""What the server answers, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

#: f32, most often `[tokens, width]`.
Floats = npt.NDArray[np.float32]
Action = Literal["pause", "capture", "pause_and_capture"]
Tokens = Literal["any", "prompt", "generated"]
AtTtl = Literal["resume", "abort"]


@dataclass(frozen=True)
class Hook:
    """A place of a model where values can be read and changed."""

    name: str
    #: Other names of the same values, such as TransformerLens' older ones and the checkpoint's modules.
    aliases: tuple[str, ...]
    #: How many values each token has there; 0 for a pattern, which has one for each key.
    width: int
    writable: bool
    #: Only tokens with logits have values there: generated ones, and the last one of a prompt.
    logits_only: bool = False
    #: It can be read at a pause, and not captured, and no breakpoint is set there.
    paused_only: bool = False

    @staticmethod
    def of(body: dict[str, Any]) -> Hook:
        last = body["shape"][-1]
        width = last if isinstance(last, int) else 0
        flags = (bool(body.get(name)) for name in ("writable", "logits_only", "paused_only"))
        return Hook(body["name"], tuple(body["aliases"]), width, *flags)


@dataclass(frozen=True)
class TokenCondition:
    """Hits where the token is one of these ids."""

    tokens: Sequence[int]

    def json(self) -> dict[str, Any]:
        return {"type": "token", "tokens": [int(token) for token in self.tokens]}


@dataclass(frozen=True)
class EntropyCondition:
    """Hits where the next token's distribution has an entropy above this many nats."""

    above: float

    def json(self) -> dict[str, Any]:
        return {"type": "entropy", "above": float(self.above)}


@dataclass(frozen=True)
class ProbeCondition:
    """Hits where the dot product of the values at the hook with a direction, `[width]`, is above a bound."""

    direction: Any
    above: float

    def json(self) -> dict[str, Any]:
        from .arrays import floats

        return {"type": "probe", "direction": floats(self.direction).tolist(), "above": float(self.above)}


Condition = TokenCondition | EntropyCondition | ProbeCondition


@dataclass(frozen=True)
class Breakpoint:
    """A breakpoint as the server has it. `raw` is all that it says of it."""

    id: str
    hook: str
    action: str
    hit_count: int
    raw: dict[str, Any]

    @staticmethod
    def of(body: dict[str, Any]) -> Breakpoint:
        return Breakpoint(body["id"], body["hook"], body["action"], int(body["hit_count"]), body)


@dataclass(frozen=True)
class PausedAt:
    """Where a session is paused."""

    #: Its id; None where the session paused after `step_layer`, `step_token` or `step_to`.
    breakpoint: str | None
    hook: str
    #: The tokens' places in the conversation.
    positions: range
    token_ids: list[int]
    #: Seconds since the pause.
    since: float
    #: Seconds until the server goes on by itself, or ends the session.
    expires_in: float | None
    #: Those of the positions that met the breakpoint.
    hit_positions: list[int] = field(default_factory=list)

    @staticmethod
    def of(body: dict[str, Any]) -> PausedAt:
        positions, expires = body["positions"], body.get("expires_in_ms")
        return PausedAt(
            body.get("breakpoint"), body["hook"], range(positions["from"], positions["to"]), list(body["token_ids"]),
            body["since_ms"] / 1000, None if expires is None else expires / 1000, list(body.get("hit_positions", [])),
        )


@dataclass(frozen=True)
class LensToken:
    """A token that a layer would choose."""

    token_id: int
    text: str
    probability: float


@dataclass(frozen=True)
class LensRow:
    """What the model would say if it ended after a hook: the most probable tokens, the best first."""

    hook: str
    top: list[LensToken]

    @staticmethod
    def of(body: dict[str, Any]) -> LensRow:
        top = [LensToken(int(token["token_id"]), token["text"], float(token["probability"])) for token in body["top"]]
        return LensRow(body["hook"], top)

    def __str__(self) -> str:
        return f"{self.hook:24} " + "  ".join(f"{token.text!r} {token.probability:.3f}" for token in self.top)


@dataclass(frozen=True)
class Cache:
    """A block's keys and values, f32 `[tokens, kv_heads, head_dim]`."""

    keys: Floats
    values: Floats


@dataclass(frozen=True)
class Text:
    """A session's tokens so far."""

    token_ids: list[int]
    text: str
    #: The place of the first token that the model chose.
    generated_from: int
    state: str


@dataclass(frozen=True)
class Captures:
    """What capture breakpoints have read, by hook: rows are tokens, in order of time."""

    #: f32 `[tokens, width]`.
    values: dict[str, Floats]
    #: The rows' tokens, and their places in the conversation.
    token_ids: dict[str, npt.NDArray[np.int64]]
    positions: dict[str, npt.NDArray[np.int64]]
    #: f32 `[tokens, layers, hidden]`, where the hooks are one of each layer and have read the same tokens.
    hidden_states: Floats | None
    #: How many values the server had no room to keep.
    dropped: int

    def __getitem__(self, hook: str) -> Floats:
        return self.values[hook]


@dataclass(frozen=True)
class Vector:
    """A use of a stored steering vector, in EasySteer's words."""

    source: str
    scale: float = 1.0
    #: These of its layers, instead of all.
    layers: Sequence[int] | None = None
    #: EasySteer's field. The server refuses `True`.
    normalize: bool = False
    #: Whether the prompt's tokens are steered, and those that the model chooses.
    prompt: bool = True
    generation: bool = True
    #: `direct` adds the vector; `erase` removes the values' component along it.
    algorithm: Literal["direct", "erase"] = "direct"

    def json(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "source": self.source, "scale": float(self.scale), "normalize": self.normalize,
            "apply": {"prompt": self.prompt, "generation": self.generation},
        }
        if self.algorithm != "direct":
            body["algorithm"] = self.algorithm
        if self.layers is not None:
            body["layers"] = [int(layer) for layer in self.layers]
        return body
