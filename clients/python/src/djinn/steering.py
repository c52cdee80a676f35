"""What requests and sessions are steered with: the server's vectors, by name, and lasting changes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from .arrays import indices, vector
from .http import Http
from .types import Vector


@dataclass(frozen=True, eq=False)
class Edit:
    """A change at a hook of all tokens of a prompt and its answer, in the words of :class:`djinn.Pause`'s changes.

    >>> Edit("blocks.5.attn.hook_z", "scale", factor=0, columns=range(3 * 64, 4 * 64))
    """

    hook: str
    op: Literal["set", "add", "scale", "clamp", "project_out"]
    #: For `set`, `add` and `project_out` (a direction): one row for all tokens.
    values: Any = None
    #: For `add`: the values are multiplied by it.
    strength: float | None = None
    #: For `scale`.
    factor: float | None = None
    #: For `clamp`.
    low: float | None = None
    high: float | None = None
    #: Those of a head, say; all, if None. `values` have one for each.
    columns: Sequence[int] | range | None = None
    #: Whether the prompt's tokens are changed, and those that the model chooses.
    prompt: bool = True
    generation: bool = True

    def json(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "hook": self.hook, "op": self.op, "apply": {"prompt": self.prompt, "generation": self.generation},
        }
        if self.values is not None:
            body["values"] = vector(self.values).tolist()
        for name in ("strength", "factor", "low", "high"):
            if (number := getattr(self, name)) is not None:
                body[name] = float(number)
        if self.columns is not None:
            body["columns"] = indices(self.columns)
        return body


def uses(given: Sequence[Vector | Edit | str]) -> dict[str, Any]:
    """The lists of the field `steering`."""
    vectors = [Vector(one) if isinstance(one, str) else one for one in given if not isinstance(one, Edit)]
    edits = [one.json() for one in given if isinstance(one, Edit)]
    return {"vectors": [one.json() for one in vectors]} | ({"edits": edits} if edits else {})


def steering(*given: Vector | Edit | str) -> dict[str, Any]:
    """The field of a request that steers it: `extra_body=steering("calm")` for the openai client. Vectors come before
    edits."""
    return {"steering": uses(given)}


class SteeringStore:
    """Vectors that requests and sessions are steered with: `client.steering`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def put(self, name: str, vectors: Any, *, layer: int | None = None, hook: str | None = None,
            model: str | None = None) -> dict[str, Any]:
        """Stores vectors under a name, in the place of what was there.

        :param vectors: by layer, `{12: v}`, each f32 `[hidden]`; or one vector, with its `layer` or `hook`. A layer's
            is added to what its block gives to the next.
        :param model: may be left out where the server has one model.
        """
        body: dict[str, Any] = {"name": name} | ({} if model is None else {"model": model})
        if isinstance(vectors, Mapping):
            if layer is not None or hook is not None:
                raise ValueError("vectors by layer have no `layer` or `hook` beside them")
            body["layers"] = {str(int(at)): vector(one).tolist() for at, one in vectors.items()}
        else:
            if (layer is None) == (hook is None):
                raise ValueError("one vector needs either `layer` or `hook`")
            body |= {"vector": vector(vectors).tolist()} | ({"hook": hook} if layer is None else {"layer": layer})
        return self._http.ask("POST", "/v1/steering", json=body)

    def put_file(self, name: str, path: str | os.PathLike[str], *, model: str | None = None) -> dict[str, Any]:
        """Stores the control vectors of a safetensors or GGUF file (`direction.{layer}`)."""
        content = Path(path).read_bytes()
        return self._http.ask("POST", "/v1/steering", query={"name": name, "model": model}, content=content,
                              headers={"content-type": "application/octet-stream"})

    def list(self) -> list[dict[str, Any]]:
        """What is stored, without the numbers."""
        found: list[dict[str, Any]] = self._http.ask("GET", "/v1/steering")["data"]
        return found

    def get(self, name: str, *, model: str | None = None) -> dict[str, Any]:
        """One of them, with the numbers.

        :param model: here and below, may be left out where one model has vectors of this name.
        """
        return self._http.ask("GET", self._path(name), query={"model": model})

    def delete(self, name: str, *, model: str | None = None) -> None:
        """Removes it."""
        self._http.ask("DELETE", self._path(name), query={"model": model})

    def set_default(self, name: str, scale: float = 1.0, *, prompt: bool = True, generation: bool = True,
                    model: str | None = None) -> None:
        """Steers all requests of the key that have no field `steering`."""
        body = {"scale": float(scale), "apply": {"prompt": prompt, "generation": generation}}
        self._http.ask("PUT", self._path(name) + "/default", query={"model": model}, json=body)

    def clear_default(self, name: str, *, model: str | None = None) -> None:
        """Ends that."""
        self._http.ask("DELETE", self._path(name) + "/default", query={"model": model})

    @staticmethod
    def _path(name: str) -> str:
        return f"/v1/steering/{quote(name, safe='')}"
