"""Models that are sent to a server's store, without what it has already. Needs `blake3`."""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ApiError, Conflict, DjinnError, ServerUnreachable
from .http import Http

#: The small files that a model is opened from: `djinn_models::SMALL_FILES`.
_SMALL = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.json", "chat_template.jinja", "additional_chat_templates/tool_use.jinja",
    "vocab.json", "merges.txt", "tokenizer.model",
)
#: The longest header of a safetensors file.
_MAX_HEADER = 100_000_000
#: Bytes that are read at a time.
_RUN = 1 << 20
#: Times that a piece is sent, from where it has come to.
_ATTEMPTS = 5


@dataclass(frozen=True)
class Pushed:
    """What came of it."""

    name: str
    #: Bytes of the model, and those that were sent, since the server lacked them.
    bytes: int
    sent: int


@dataclass(frozen=True)
class _Piece:
    """A run of a file."""

    path: Path
    start: int
    end: int
    tensor: dict[str, Any] | None


def push(http: Http, model: Path, name: str, connections: int, progress: Callable[[int, int], None] | None) -> Pushed:
    files, places = _manifest(model)
    told = http.ask("POST", "/v1/store/manifests", json={"name": name, "files": files})
    if not all(_is_own(piece, places) for piece in told["lacking"]):
        raise DjinnError("the server asks for a piece that is no part of the model")
    sent, total = 0, int(told["lacking_bytes"])
    if progress is not None:
        progress(sent, total)
    with ThreadPoolExecutor(connections) as pool:
        for count in pool.map(lambda piece: _send(http, piece, places), told["lacking"]):
            sent += count
            if progress is not None:
                progress(sent, total)
    if not told["committed"]:
        http.ask("POST", f"/v1/store/manifests/{told['id']}/commit", timeout=None)
    return Pushed(told["name"], int(told["bytes"]), sent)


def _is_own(lacking: dict[str, Any], places: dict[str, _Piece]) -> bool:
    piece = places.get(lacking["hash"])
    return piece is not None and 0 <= int(lacking["have"]) <= int(lacking["bytes"]) == piece.end - piece.start


def _send(http: Http, lacking: dict[str, Any], places: dict[str, _Piece]) -> int:
    """Sends what the server lacks of a piece; the bytes of that."""
    piece, path = places[lacking["hash"]], f"/v1/store/blobs/{lacking['hash']}"
    have = first = int(lacking["have"])
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            if attempt > 1:
                have = int(http.send("HEAD", path).headers["upload-offset"])
            http.send("PUT", path, content=_read(piece, have), headers={
                "content-type": "application/octet-stream", "upload-offset": str(have),
            })
            return piece.end - piece.start - first
        except (ServerUnreachable, ApiError) as error:
            if isinstance(error, Conflict) and error.code == "piece_exists":
                return 0
            # 408: too slow; 409: another number of bytes has come; 422: they were changed on the way.
            again = not isinstance(error, ApiError) or error.status in (408, 409, 422, 429) or error.status >= 500
            if attempt == _ATTEMPTS or not again or getattr(error, "status", None) == 507:
                raise
            time.sleep(0.2 * attempt)
    raise AssertionError("the last attempt returns or raises")


def _read(piece: _Piece, have: int) -> Iterator[bytes]:
    with piece.path.open("rb") as file:
        file.seek(piece.start + have)
        left = piece.end - piece.start - have
        while left > 0:
            run = file.read(min(left, _RUN))
            if not run:
                raise DjinnError(f"{piece.path} became shorter while it was sent")
            left -= len(run)
            yield run


def _manifest(model: Path) -> tuple[list[dict[str, Any]], dict[str, _Piece]]:
    """What the model consists of, and where each piece lies, by its hash."""
    if model.is_dir():
        if not (model / "config.json").exists():
            raise ValueError(f"{model} has no config.json")
        files = [model / name for name in _SMALL if (model / name).exists()] + _weights(model)
    elif model.suffix.lower() == ".gguf":
        files = [model]
    else:
        raise ValueError(f"{model} is neither a folder nor a .gguf file")
    root = model if model.is_dir() else model.parent
    told: list[dict[str, Any]] = []
    places: dict[str, _Piece] = {}
    for path in files:
        pieces = []
        if path.stat().st_size == 0:
            raise ValueError(f"{path} has no bytes")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for piece in _cut(path, data):
                hash = _hash(data, piece)
                places.setdefault(hash, piece)
                tensor = {} if piece.tensor is None else {"tensor": piece.tensor}
                pieces.append({"hash": hash, "bytes": piece.end - piece.start} | tensor)
        told.append({"path": path.relative_to(root).as_posix(), "pieces": pieces})
    return told, places


def _weights(model: Path) -> list[Path]:
    """The files of its weights, as the server's command chooses them: `model.safetensors`, or else those of the index."""
    single, index = model / "model.safetensors", model / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if not index.exists():
        raise ValueError(f"{model} has neither {single.name} nor {index.name}")
    try:
        shards = [model / name for name in sorted(set(json.loads(index.read_bytes())["weight_map"].values()))]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{index} is no index of shards: {error}") from error
    for shard in shards:
        if shard.parent != model or not shard.is_file():
            raise ValueError(f"{index} names {shard.name}, which is not beside it")
    if not shards:
        raise ValueError(f"{index} names no shard")
    return shards


def _cut(path: Path, data: mmap.mmap) -> list[_Piece]:
    """A safetensors file is cut at its tensors, as the server's command does it; others are one piece."""
    if path.suffix != ".safetensors":
        return [_Piece(path, 0, len(data), None)]
    length = int.from_bytes(data[:8], "little")
    try:
        if length > min(_MAX_HEADER, len(data) - 8):
            raise ValueError("its header is longer than the file, or than 100 MB")
        header = json.loads(data[8:8 + length])
        header.pop("__metadata__", None)
        tensors = sorted((8 + length + int(body["data_offsets"][0]), name, body) for name, body in header.items())
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise ValueError(f"{path} is no file of safetensors: {error}") from error
    cuts: list[tuple[int, dict[str, Any] | None]] = [(0, None)]
    for start, name, body in tensors:
        # One without bytes begins where the next one does.
        if cuts[-1][0] < start < len(data):
            cuts.append((start, {"name": name, "dtype": body["dtype"], "shape": body["shape"]}))
    ends = [start for start, _ in cuts[1:]] + [len(data)]
    return [_Piece(path, start, end, tensor) for (start, tensor), end in zip(cuts, ends, strict=True)]


def _hash(data: mmap.mmap, piece: _Piece) -> str:
    try:
        from blake3 import blake3
    except ImportError as error:
        raise DjinnError("pushing a model needs blake3: pip install 'djinn[push]'") from error
    with memoryview(data) as view, view[piece.start:piece.end] as run:
        return str(blake3(run, max_threads=blake3.AUTO).hexdigest())


def name_of(model: str | os.PathLike[str]) -> str:
    """The name of a folder, or of a file without its ending."""
    path = Path(model).resolve()
    return path.name if path.is_dir() else path.stem
