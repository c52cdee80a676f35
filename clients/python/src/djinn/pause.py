"""A session that is paused: reading, changing, stepping, forking, going on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from . import arrays
from .errors import Conflict, NotFound
from .turn import Turn
from .types import Cache, Floats, LensRow, PausedAt

if TYPE_CHECKING:
    from .session import Session

#: Places in the conversation; all that are paused, if None.
Positions = Sequence[int] | range | None
#: Of the values at a hook: those of a head, say, or of some neurons; all, if None.
Columns = Sequence[int] | range | None


class Pause:
    """A pause of a session, until :meth:`resume` or the end of a `with` block.

    Changes are made to the paused tokens; `positions` chooses some of them, by their places in the conversation,
    `columns` some of their values, such as a head's, and `hook` another hook than the one where the session stopped.
    `values` have a column for each of `columns` then. Changes take effect when the session goes on; what is read
    before has them already.
    """

    def __init__(self, session: Session, at: PausedAt, turn: Turn | None) -> None:
        self.session = session
        #: Where, in the server's words.
        self.at = at
        #: The answer that is paused, if this client began it.
        self.turn = turn
        self._activation: Floats | None = None
        self._over = False

    def __repr__(self) -> str:
        return f"Pause({self.session.name!r}, {self.hook!r}, {self.positions})"

    def __enter__(self) -> Pause:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.leave()

    @property
    def hook(self) -> str:
        """Where it stopped."""
        return self.at.hook

    @property
    def positions(self) -> range:
        """The paused tokens' places in the conversation."""
        return self.at.positions

    @property
    def hit_positions(self) -> list[int]:
        """Those of the paused tokens that met the breakpoint; the others were computed together with them."""
        return self.at.hit_positions

    @property
    def token_ids(self) -> list[int]:
        """The paused tokens."""
        return self.at.token_ids

    @property
    def activation(self) -> Floats:
        """The values where it stopped, f32 `[tokens, width]`. Writing to the array changes nothing: see :meth:`set`."""
        if self._activation is None:
            self._activation = self.read(self.hook)
        return self._activation

    @property
    def logits(self) -> Floats:
        """What the model would choose the next token by: f32 `[1, vocabulary]`, of the last of the paused tokens."""
        return self.read("logits")

    def read(self, hook: str) -> Floats:
        """The paused tokens' values at any hook, before or after the one where it stopped: f32 `[tokens, width]`. After
        the last block, only the last token has values."""
        path = f"activations/{quote(hook, safe='')}"
        tensors, _ = arrays.unpack(self.session._safetensors(path))
        values: Floats = tensors["values"]
        return values

    def lens(self, top: int = 5, *, hooks: Sequence[str] | None = None, position: int | None = None) -> list[LensRow]:
        """What the model would say if it ended after each block, or after these hooks.

        :param top: how many tokens of each.
        :param position: of the paused tokens, the last one if not given.
        """
        body: dict[str, Any] = {"top": top}
        if hooks is not None:
            body["hooks"] = list(hooks)
        if position is not None:
            body["position"] = position
        return [LensRow.of(row) for row in self.session._ask("POST", "lens", json=body)["data"]]

    def pattern(self, layer: int) -> Floats:
        """What a block's attention weighs the paused tokens by: f32 `[heads, tokens, keys]`."""
        return self.read(f"blocks.{layer}.attn.hook_pattern")

    def cache(self, layer: int, positions: range | None = None) -> Cache:
        """A block's keys and values, of all tokens up to the paused ones or of some."""
        query = {} if positions is None else {"from": str(positions.start), "to": str(positions.stop)}
        tensors, _ = arrays.unpack(self.session._safetensors(f"kv/{layer}", **query))
        return Cache(tensors["keys"], tensors["values"])

    # ------------------------------------------------------------------ changes

    def write_cache(self, layer: int, *, keys: Any = None, values: Any = None, start: int = 0, add: bool = False) -> int:
        """Writes over a block's keys, values or both, `[tokens, kv_heads, head_dim]`, of tokens before the paused ones, from
        `start` on. Gives how many tokens were changed.

        :param add: adds to what is there.
        """
        both = {"keys": keys, "values": values}
        given = {name: arrays.floats(array) for name, array in both.items() if array is not None}
        if not given:
            raise ValueError("give keys, values or both")
        query = {"op": "add" if add else "set", "from": str(start)}
        return self._cached(self.session._ask("POST", f"kv/{layer}", query=query, content=arrays.pack(**given)))

    def scale_cache(self, layer: int, part: Literal["keys", "values"], factor: float,
                    positions: range | None = None) -> int:
        """Multiplies a block's keys or values of tokens before the paused ones, of all or of some."""
        return self._change_cache(layer, part, positions, op="scale", factor=factor)

    def clamp_cache(self, layer: int, part: Literal["keys", "values"], low: float | None = None,
                    high: float | None = None, positions: range | None = None) -> int:
        """Keeps a block's keys or values within bounds."""
        bounds = {name: bound for name, bound in (("low", low), ("high", high)) if bound is not None}
        return self._change_cache(layer, part, positions, op="clamp", **bounds)

    def project_cache_out(self, layer: int, part: Literal["keys", "values"], direction: Any,
                          positions: range | None = None) -> int:
        """Takes a direction, `[kv_heads, head_dim]`, out of a block's keys or values."""
        values = arrays.floats(direction).reshape(-1).tolist()
        return self._change_cache(layer, part, positions, op="project_out", values=values)

    def _change_cache(self, layer: int, part: str, positions: range | None, **how: Any) -> int:
        body: dict[str, Any] = {"part": part, **how}
        if positions is not None:
            body["positions"] = {"from": positions.start, "to": positions.stop}
        return self._cached(self.session._ask("POST", f"kv/{layer}", json=body))

    def _cached(self, changed: dict[str, Any]) -> int:
        self._activation = None
        return int(changed["tokens"])

    def set(self, values: Any, *, hook: str | None = None, positions: Positions = None, columns: Columns = None) -> int:
        """Replaces the values: `[width]` for every token, or `[tokens, width]`. Gives how many tokens were changed, as
        the other changes do."""
        return self._write("set", hook, positions, columns, values=_rows(values))

    def add(self, vector: Any, strength: float = 1.0, *, hook: str | None = None, positions: Positions = None,
            columns: Columns = None) -> int:
        """Adds `strength` times a vector: `[width]` for every token, or `[tokens, width]`."""
        return self._write("add", hook, positions, columns, values=_rows(vector), strength=float(strength))

    def scale(self, factor: float, *, hook: str | None = None, positions: Positions = None,
              columns: Columns = None) -> int:
        """Multiplies the values. With 0, a head or a neuron is ablated:

        >>> p.scale(0, hook="blocks.5.attn.hook_z", columns=range(3 * 64, 4 * 64))
        """
        return self._write("scale", hook, positions, columns, factor=float(factor))

    def clamp(self, low: float | None = None, high: float | None = None, *, hook: str | None = None,
              positions: Positions = None, columns: Columns = None) -> int:
        """Keeps each value within bounds."""
        bounds = {"low": low, "high": high}
        given = {k: float(v) for k, v in bounds.items() if v is not None}
        return self._write("clamp", hook, positions, columns, **given)

    def project_out(self, direction: Any, *, hook: str | None = None, positions: Positions = None,
                    columns: Columns = None) -> int:
        """Takes away the values' part along a direction, `[width]`. Columns must have no gaps."""
        return self._write("project_out", hook, positions, columns, values=arrays.vector(direction))

    def _write(self, op: str, hook: str | None, positions: Positions, columns: Columns, **how: Any) -> int:
        path = f"activations/{quote(hook or self.hook, safe='')}"
        values = how.pop("values", None)
        is_plain = positions is None and columns is None and how.get("strength", 1.0) == 1.0
        if values is not None and values.ndim == 2 and is_plain:
            # A row for each token may be large.
            content = arrays.pack(values=values)
            changed = self.session._ask("POST", path, query={"op": op}, content=content)
        else:
            body: dict[str, Any] = {"op": op, **how}
            if values is not None:
                body["values"] = values.tolist()
            for name, chosen in (("positions", positions), ("columns", columns)):
                if chosen is not None:
                    body[name] = arrays.indices(chosen)
            changed = self.session._ask("POST", path, json=body)
        self._activation = None
        return int(changed["tokens"])

    # ------------------------------------------------------------------ going on

    def step_layer(self, timeout: float = 60.0) -> Pause:
        """Goes on to the same hook of the next block; after the last block, to that of the next token's first one. This
        is the new pause then."""
        return self._step("next_layer", timeout)

    def step_token(self, timeout: float = 60.0) -> Pause:
        """Goes on to the same hook of the next token."""
        return self._step("next_token", timeout)

    def step_to(self, hook: str, timeout: float = 60.0) -> Pause:
        """Goes on to a later hook of the same tokens."""
        return self._step({"hook": hook}, timeout)

    def _step(self, until: str | dict[str, str], timeout: float) -> Pause:
        self.session.resume(until)
        self._over = True
        self.at = self.session.paused(timeout, turn=self.turn).at
        self._activation, self._over = None, False
        return self

    def fork(self, name: str | None = None) -> Pause:
        """Another session that is paused at the same place, and goes on by itself: see :meth:`Session.tokens`."""
        child = self.session.fork(name)
        at = child.paused_at()
        if at is None:
            raise Conflict(409, f"the fork `{child.name}` is not paused")
        return Pause(child, at, None)

    def resume(self) -> None:
        """Goes on, with all changes."""
        self.session.resume()
        self._over = True

    def abort(self) -> None:
        """Ends the turn here; the session keeps what was computed."""
        self.session.abort()
        self._over = True

    def leave(self) -> None:
        """Goes on, unless it did, or its time came to an end."""
        if not self._over:
            with suppress(Conflict, NotFound):
                self.session.resume()
            self._over = True


def _rows(values: Any) -> Floats:
    array = arrays.floats(values)
    if array.ndim > 2:
        raise ValueError(f"values are [width] or [tokens, width], not of shape {array.shape}; there is no batch")
    return array
