"""Models that are sent to a store, in pieces that may break off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy
from blake3 import blake3

import djinn


class Store:
    """A store that remembers pieces. `breaks` requests of pieces break off after 10 bytes."""

    def __init__(self, breaks: int = 0, looks_that_fail: int = 0) -> None:
        self.looks_that_fail = looks_that_fail
        self.pieces: dict[str, bytes] = {}
        self.wanted: dict[str, int] = {}
        self.manifest: dict[str, Any] = {}
        self.breaks, self.received, self.committed = breaks, 0, False
        self.client = djinn.Djinn("http://djinn.test", transport=httpx.MockTransport(self.answer))

    def whole(self, hash: str) -> bool:
        return len(self.pieces.get(hash, b"")) == self.wanted[hash]

    def answer(self, request: httpx.Request) -> httpx.Response:
        path, hash = request.url.path, request.url.path.rsplit("/", 1)[1]
        if path == "/v1/store/manifests":
            self.manifest = json.loads(request.content)
            self.wanted = {p["hash"]: p["bytes"] for file in self.manifest["files"] for p in file["pieces"]}
            lacking: list[dict[str, Any]] = [
                {"hash": hash, "bytes": size, "have": len(self.pieces.get(hash, b""))}
                for hash, size in self.wanted.items() if not self.whole(hash)
            ]
            return httpx.Response(200, json={
                "id": "m", "name": self.manifest["name"], "bytes": sum(self.wanted.values()), "committed": self.committed,
                "lacking": lacking, "lacking_bytes": sum(piece["bytes"] - piece["have"] for piece in lacking),
            })
        if path == "/v1/store/manifests/m/commit":
            assert all(map(self.whole, self.wanted))
            self.committed = True
            return httpx.Response(201, json={"id": self.manifest["name"]})
        have = self.pieces.get(hash, b"")
        if request.method == "HEAD" and self.looks_that_fail > 0:
            self.looks_that_fail -= 1
            raise httpx.ConnectError("Connection refused", request=request)
        if request.method == "PUT":
            assert int(request.headers["upload-offset"]) == len(have)
            body = request.read()
            if self.breaks > 0:
                self.breaks -= 1
                self.pieces[hash] = have + body[:10]
                raise httpx.WriteError("Broken pipe", request=request)
            self.received += len(body)
            have = self.pieces[hash] = have + body
            assert blake3(have).hexdigest() == hash
        return httpx.Response(200, headers={"upload-offset": str(len(have))}, json={})


def checkpoint(folder: Path, **tensors: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "notes.txt").write_text("is not sent")
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return folder


SHARED, OWN = np.arange(4096, dtype=np.float32), np.ones((2, 8), np.float16)


def test_what_the_server_has_is_not_sent(tmp_path: Path) -> None:
    store = Store()
    first = store.client.push(checkpoint(tmp_path / "base", shared=SHARED, own=OWN))
    assert (first.name, first.sent, store.received, store.committed) == ("base", first.bytes, first.bytes, True)
    files = {file["path"]: file["pieces"] for file in store.manifest["files"]}
    assert list(files) == ["config.json", "model.safetensors"]
    tensors = [piece.get("tensor") for piece in files["model.safetensors"]]
    assert {"name": "own", "dtype": "F16", "shape": [2, 8]} in tensors and tensors[0] is None and len(tensors) == 3
    store.committed, store.received, seen = False, 0, []
    tuned = checkpoint(tmp_path / "tuned", shared=SHARED, own=OWN * 2)
    second = store.client.push(tuned, "mine", progress=lambda sent, total: seen.append((sent, total)))
    assert second == djinn.Pushed("mine", second.bytes, OWN.nbytes) and store.received == OWN.nbytes
    assert seen == [(0, 32), (32, 32)]
    assert store.client.push(tuned, "mine").sent == 0


def test_a_push_goes_on_where_it_broke_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("djinn.push.time.sleep", lambda _: None)
    store = Store(breaks=3, looks_that_fail=1)
    folder = checkpoint(tmp_path / "base", shared=SHARED, own=OWN)
    pushed = store.client.push(folder, connections=1)
    assert store.committed and pushed.sent == pushed.bytes and store.received < pushed.bytes
    broken = Store(breaks=100)
    with pytest.raises(djinn.ServerUnreachable):
        broken.client.push(folder, connections=1)
    assert not broken.committed


def test_the_files_of_weights_are_those_that_the_command_sends(tmp_path: Path) -> None:
    def sent(folder: Path) -> list[str]:
        store = Store()
        store.client.push(folder)
        return [file["path"] for file in store.manifest["files"] if file["path"].endswith(".safetensors")]

    folder = checkpoint(tmp_path / "model", own=OWN)
    whole, (first, second) = folder / "model.safetensors", (folder / f"model-{n}.safetensors" for n in "12")
    for copy in (first, second, folder / "consolidated.safetensors"):
        copy.write_bytes(whole.read_bytes())
    assert sent(folder) == ["model.safetensors"]
    whole.unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"b": second.name, "a": first.name, "c": first.name}}))
    assert sent(folder) == [first.name, second.name]
    for wrong in ({"a": "gone.safetensors"}, {"a": "../model/model-1.safetensors"}, {"a": 1}, {}):
        index.write_text(json.dumps({"weight_map": wrong}))
        with pytest.raises(ValueError, match=r"index\.json"):
            sent(folder)
    index.unlink()
    with pytest.raises(ValueError, match="neither"):
        sent(folder)


def test_what_is_no_model_is_not_sent(tmp_path: Path) -> None:
    bad = checkpoint(tmp_path / "bad", own=OWN)
    (bad / "model.safetensors").write_bytes(b"\xff" * 16)
    (tmp_path / "empty").mkdir()
    for wrong in (bad, tmp_path / "empty", bad / "notes.txt"):
        with pytest.raises(ValueError, match=wrong.name):
            Store().client.push(wrong)
    hollow = checkpoint(tmp_path / "hollow", own=OWN)
    (hollow / "merges.txt").touch()
    with pytest.raises(ValueError, match=r"merges\.txt has no bytes"):
        Store().client.push(hollow)


def test_a_server_that_asks_for_another_piece_gets_none(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "base", own=OWN)
    size = (folder / "config.json").stat().st_size
    own = blake3((folder / "config.json").read_bytes()).hexdigest()
    for lacking in ({"hash": "0" * 64, "bytes": 1, "have": 0}, {"hash": own, "bytes": size, "have": size + 1},
                    {"hash": own, "bytes": size + 1, "have": 0}):
        told = {"id": "m", "name": "base", "bytes": 1, "committed": False, "lacking": [lacking], "lacking_bytes": 1}
        transport = httpx.MockTransport(lambda request, told=told: httpx.Response(200, json=told))
        with pytest.raises(djinn.DjinnError, match="no part of the model"):
            djinn.Djinn("http://djinn.test", transport=transport).push(folder)
