"""What goes over the wire, and what becomes of answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy
from fake import BREAKPOINT, PAUSED, Fake, error

import djinn
from djinn import arrays
from djinn.pause import Pause
from djinn.types import PausedAt

AT = "/v1/sessions/s"


@pytest.fixture
def fake() -> Fake:
    return Fake()


def test_every_request_carries_the_key_and_the_session_its_model(fake: Fake) -> None:
    fake.on("GET", AT, {"id": "s"})
    fake.session.info()
    request = fake.requests[0]
    assert request.headers["authorization"] == "Bearer key"
    assert dict(request.url.params) == {"model": "m"}


def test_names_are_quoted_in_paths(fake: Fake) -> None:
    fake.on("GET", "/v1/sessions/a/b?c", {"id": "a/b?c"})
    djinn.Session(fake.client._http, "a/b?c", None).info()
    assert fake.requests[0].url.raw_path == b"/v1/sessions/a%2Fb%3Fc"


def test_a_session_that_exists_is_taken(fake: Fake) -> None:
    fake.on("POST", "/v1/sessions", lambda _: error(409, "there is a session", code="session_exists"))
    fake.on("GET", AT, {"id": "s", "model": "m"})
    assert repr(fake.client.session("s", ttl=90)) == "Session('s', model='m')"
    assert fake.body("POST", "/v1/sessions") == {"id": "s", "ttl_s": 90}


def test_hooks_are_of_the_first_model_if_none_is_named(fake: Fake) -> None:
    fake.on("GET", "/v1/models", {"data": [{"id": "org/model"}]})
    hook = {"name": "embed.hook_out", "aliases": ["hook_embed"], "shape": ["tokens", 64], "dtype": "float32"}
    fake.on("GET", "/v1/models/org/model/hooks", {"data": [hook | {"writable": True}]})
    assert fake.client.hooks() == [djinn.Hook("embed.hook_out", ("hook_embed",), 64, True)]
    pattern = hook | {"shape": [9, "tokens", "keys"], "writable": False, "logits_only": True, "paused_only": True}
    assert djinn.Hook.of(pattern) == djinn.Hook("embed.hook_out", ("hook_embed",), 0, False, True, True)
    assert fake.requests[-1].url.raw_path == b"/v1/models/org%2Fmodel/hooks"


def test_a_breakpoint_says_what_was_asked_and_no_more(fake: Fake) -> None:
    fake.on("POST", f"{AT}/breakpoints", BREAKPOINT)
    assert fake.session.breakpoint("blocks.1.hook_out").id == "bp_1"
    plain = {"hook": "blocks.1.hook_out", "action": "pause", "tokens": "any", "on_ttl": "resume"}
    assert fake.body("POST", f"{AT}/breakpoints") == plain
    fake.session.breakpoint(
        "embed.hook_out", action="pause_and_capture", tokens="generated", positions=range(2, 9), steps=(1, None),
        condition=djinn.ProbeCondition(np.array([1.0, -0.5]), 2), hits=3, ttl=1.5, on_ttl="abort")
    assert fake.body("POST", f"{AT}/breakpoints") == {
        "hook": "embed.hook_out", "action": "pause_and_capture", "tokens": "generated", "on_ttl": "abort",
        "positions": {"from": 2, "to": 9}, "steps": {"from": 1}, "hits": 3, "ttl_ms": 1500,
        "condition": {"type": "probe", "direction": [1.0, -0.5], "above": 2.0},
    }
    with pytest.raises(ValueError, match="ones"):
        fake.session.breakpoint("embed.hook_out", positions=range(0, 9, 2))
    wrong: Any
    for wrong in ([3, 5], [4], (4,), 4):
        with pytest.raises(TypeError, match="a range, or a tuple of from and to"):
            fake.session.breakpoint("embed.hook_out", positions=wrong)


@pytest.mark.parametrize(("condition", "wanted"), [
    (djinn.TokenCondition([5, 6]), {"type": "token", "tokens": [5, 6]}),
    (djinn.EntropyCondition(2), {"type": "entropy", "above": 2.0}),
])
def test_conditions(fake: Fake, condition: Any, wanted: Any) -> None:
    fake.on("POST", f"{AT}/breakpoints", BREAKPOINT)
    fake.session.breakpoint("blocks.1.hook_out", condition=condition)
    assert fake.body("POST", f"{AT}/breakpoints")["condition"] == wanted


def test_a_pause_is_waited_for_and_ends_with_the_block(fake: Fake) -> None:
    fake.on("POST", f"{AT}/breakpoints", BREAKPOINT)
    fake.on("GET", f"{AT}/pause", {"paused_at": None}, {"paused_at": None}, {"paused_at": PAUSED})
    fake.on("DELETE", f"{AT}/breakpoints/bp_1", {})
    fake.on("POST", f"{AT}/resume", {})
    with fake.session.pause_at("blocks.1.hook_out") as pause:
        assert (pause.hook, pause.positions, pause.token_ids) == ("blocks.1.hook_out", range(3, 5), [7, 8])
        assert pause.at.expires_in == 299.98
    assert [request.url.path for request in fake.requests[-2:]] == [f"{AT}/breakpoints/bp_1", f"{AT}/resume"]
    assert fake.requests[-1].content == b""


@pytest.mark.parametrize("how", ["resumed", "raised", "expired"])
def test_a_pause_is_left_once(fake: Fake, how: str) -> None:
    fake.on("POST", f"{AT}/breakpoints", BREAKPOINT)
    fake.on("GET", f"{AT}/pause", {"paused_at": PAUSED})
    expired = how == "expired"
    fake.on("POST", f"{AT}/resume", (lambda _: error(409, "it is not paused")) if expired else {})
    try:
        with fake.session.pause_at("blocks.1.hook_out") as pause:
            if how == "resumed":
                pause.resume()
            if how == "raised":
                raise KeyError
    except KeyError:
        assert how == "raised"
    assert len(fake.sent("POST", f"{AT}/resume")) == 1


def test_what_pauses_at_the_last_moment_goes_on(fake: Fake) -> None:
    fake.on("POST", f"{AT}/breakpoints", BREAKPOINT)
    fake.on("GET", f"{AT}/pause", {"paused_at": None})
    fake.on("GET", AT, {"id": "s", "paused_at": PAUSED})
    fake.on("POST", f"{AT}/resume", {})
    with pytest.raises(djinn.PauseNotReached, match="within 0.01 s"):
        with fake.session.pause_at("blocks.1.hook_out", timeout=0.01):
            raise AssertionError("it is not paused")
    assert fake.sent("DELETE", f"{AT}/breakpoints/bp_1") and fake.sent("POST", f"{AT}/resume")


def test_an_answer_that_ends_or_fails_ends_the_wait(fake: Fake) -> None:
    fake.on("POST", f"{AT}/breakpoints", BREAKPOINT)
    fake.on("GET", f"{AT}/pause", {"paused_at": None})
    fake.on("GET", AT, {"id": "s", "paused_at": None})
    answer = {"choices": [{"text": "x", "finish_reason": "stop"}]}
    fake.on("POST", "/v1/completions", answer, lambda _: error(400, "too hot", param="temperature"))
    with pytest.raises(djinn.PauseNotReached, match="ended before"):
        with fake.session.pause_at("blocks.1.hook_out", [1, 2], max_tokens=4, timeout=60):
            pass
    sent = fake.sent("POST", "/v1/completions")[0]
    assert sent.headers["x-session-id"] == "s"
    assert fake.body("POST", "/v1/completions") == {"model": "m", "prompt": [1, 2], "max_tokens": 4}
    with pytest.raises(djinn.BadRequest, match="too hot"):
        with fake.session.pause_at("blocks.1.hook_out", "text", temperature=9, timeout=60):
            pass


def test_answers_of_both_apis(fake: Fake) -> None:
    called = {"message": {"content": None}, "finish_reason": "tool_calls"}
    fake.on("POST", "/v1/chat/completions", {"choices": [called]})
    fake.on("POST", "/v1/completions", {"choices": [{"text": "yes", "finish_reason": "length"}]})
    chat = [{"role": "user", "content": "Hi"}]
    answer = fake.session.generate(messages=chat, **djinn.steering("calm", djinn.Vector("x", 2, layers=[3])))
    assert (answer.text, answer.finish_reason) == ("", "tool_calls")
    apply = {"prompt": True, "generation": True}
    assert fake.body("POST", "/v1/chat/completions") == {
        "model": "m", "messages": chat, "steering": {"vectors": [
            {"source": "calm", "scale": 1.0, "normalize": False, "apply": apply},
            {"source": "x", "scale": 2.0, "normalize": False, "apply": apply, "layers": [3]},
        ]},
    }
    assert fake.session.generate("?").text == "yes"
    with pytest.raises(ValueError, match="either"):
        fake.session.start()


def pause(fake: Fake) -> Pause:
    return Pause(fake.session, PausedAt.of(PAUSED), None)


def test_activations_are_read_as_safetensors_once(fake: Fake) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    reply = httpx.Response(200, content=arrays.pack(values=values))
    fake.on("GET", f"{AT}/activations/blocks.1.hook_out", lambda _: reply)
    fake.on("GET", f"{AT}/activations/logits", lambda _: reply)
    stopped = pause(fake)
    assert stopped.activation.dtype == np.float32 and (stopped.activation == values).all()
    assert (stopped.logits == values).all()
    assert [request.url.params["format"] for request in fake.requests] == ["safetensors"] * 2


def test_what_waits_for_a_step_has_no_end_of_time(fake: Fake, tmp_path: Path) -> None:
    reply = httpx.Response(200, content=arrays.pack(values=np.zeros((2, 3), np.float32)))
    fake.on("GET", f"{AT}/activations/logits", lambda _: reply)
    fake.on("POST", f"{AT}/lens", {"data": []})
    fake.on("POST", f"{AT}/resume", {})
    fake.on("GET", f"{AT}/export", lambda _: httpx.Response(200, content=b""))
    fake.on("GET", "/v1/models", {"data": []})
    stopped = pause(fake)
    stopped.read("logits")
    stopped.lens()
    stopped.resume()
    fake.session.export(tmp_path / "s")
    waits = [request.extensions["timeout"] for request in fake.requests]
    assert [(wait["read"], wait["connect"]) for wait in waits] == [(None, 60.0)] * 4
    fake.client.models()
    assert fake.requests[-1].extensions["timeout"]["read"] == 60.0


def test_changes(fake: Fake) -> None:
    at = f"{AT}/activations/blocks.1.hook_out"
    fake.on("POST", at, {"object": "edit", "hook": "blocks.1.hook_out", "op": "set", "tokens": 2})
    stopped = pause(fake)
    changes: list[tuple[Callable[[], int], dict[str, Any]]] = [
        (lambda: stopped.set([1, 2, 3]), {"op": "set", "values": [1, 2, 3]}),
        (lambda: stopped.add([1, 2, 3], 0.5, positions=range(3, 5)),
         {"op": "add", "values": [1, 2, 3], "strength": 0.5, "positions": [3, 4]}),
        (lambda: stopped.add([[1, 2, 3]], 2.0), {"op": "add", "values": [[1, 2, 3]], "strength": 2.0}),
        (lambda: stopped.scale(0, positions=[4]), {"op": "scale", "factor": 0, "positions": [4]}),
        (lambda: stopped.clamp(high=1), {"op": "clamp", "high": 1}),
        (lambda: stopped.project_out([0, 1, 0]), {"op": "project_out", "values": [0, 1, 0]}),
        (lambda: stopped.scale(0, columns=range(1, 3)), {"op": "scale", "factor": 0, "columns": [1, 2]}),
        (lambda: stopped.set([[5], [6]], columns=np.array([2])), {"op": "set", "values": [[5], [6]], "columns": [2]}),
        (lambda: stopped.set(7, columns=[2], positions=np.array([4])),
         {"op": "set", "values": [7], "columns": [2], "positions": [4]}),
    ]
    for change, wanted in changes:
        assert change() == 2
        assert fake.body("POST", at) == wanted
    stopped.set(np.ones((2, 3)), hook="blocks.1.hook_out")
    request = fake.requests[-1]
    assert (request.url.params["op"], request.headers["content-type"]) == ("set", "application/x-safetensors")
    assert arrays.unpack(request.content)[0]["values"].tolist() == [[1, 1, 1], [1, 1, 1]]


def test_changes_of_other_shapes_are_refused_before_they_are_sent(fake: Fake) -> None:
    stopped = pause(fake)
    batch = np.ones((1, 2, 3))
    for change in (lambda: stopped.set(batch), lambda: stopped.add(batch, 2.0)):
        with pytest.raises(ValueError, match=r"not of shape \(1, 2, 3\); there is no batch"):
            change()
    for change in (lambda: stopped.project_out(np.ones((1, 3))), lambda: fake.client.steering.put("v", {1: [[1.0]]})):
        with pytest.raises(ValueError, match=r"a vector is \[width\]"):
            change()
    with pytest.raises(TypeError):
        stopped.scale(0, positions=[1.5])  # type: ignore[list-item]
    assert fake.sent("POST", f"{AT}/activations/blocks.1.hook_out") == []


def test_texts_and_tokens(fake: Fake) -> None:
    fake.on("POST", "/tokenize", {"tokens": [5, 6], "count": 2})
    assert fake.client.tokenize("hi", model="m") == [5, 6]
    assert fake.body("POST", "/tokenize") == {"prompt": "hi", "model": "m"}
    fake.on("POST", "/detokenize", {"prompt": "hi"})
    assert fake.client.detokenize(np.array([5, 6])) == "hi"
    assert fake.body("POST", "/detokenize") == {"tokens": [5, 6]}
    fake.on("POST", "/v1/logits", {"logits": [[0.5, 1.5], [2.5, -1]]})
    logits = fake.client.logits([5, 6])
    assert logits.dtype == np.float32 and logits.tolist() == [[0.5, 1.5], [2.5, -1.0]]


def test_a_cache_is_read_and_written(fake: Fake) -> None:
    at = f"{AT}/kv/3"
    keys = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    fake.on("GET", at, lambda _: httpx.Response(200, content=arrays.pack(keys=keys, values=-keys)))
    fake.on("POST", at, {"object": "kv.edit", "layer": 3, "tokens": 2})
    stopped = pause(fake)
    cache = stopped.cache(3, range(1, 3))
    assert (cache.keys == keys).all() and (cache.values == -keys).all()
    assert dict(fake.requests[-1].url.params) == {"model": "m", "format": "safetensors", "from": "1", "to": "3"}
    assert stopped.write_cache(3, values=cache.values, start=1, add=True) == 2
    request = fake.requests[-1]
    assert dict(request.url.params) == {"model": "m", "op": "add", "from": "1"}
    assert list(arrays.unpack(request.content)[0]) == ["values"]
    assert stopped.scale_cache(3, "keys", 0.5, range(1, 3)) == 2
    assert fake.body("POST", at) == {
        "op": "scale", "part": "keys", "factor": 0.5, "positions": {"from": 1, "to": 3},
    }
    assert stopped.clamp_cache(3, "values", high=1.5) == 2
    assert fake.body("POST", at) == {"op": "clamp", "part": "values", "high": 1.5}
    assert stopped.project_cache_out(3, "keys", keys[0], range(0, 1)) == 2
    assert fake.body("POST", at) == {
        "op": "project_out", "part": "keys", "values": [0, 1, 2, 3, 4, 5], "positions": {"from": 0, "to": 1},
    }
    with pytest.raises(ValueError, match="give keys, values or both"):
        stopped.write_cache(3)


def test_numbers_keep_their_bits_as_json(fake: Fake) -> None:
    at = f"{AT}/activations/blocks.1.hook_out"
    fake.on("POST", at, {"tokens": 2})
    values = np.random.default_rng(7).standard_normal(1000).astype(np.float32)
    pause(fake).set(values)
    sent = np.array(fake.body("POST", at)["values"], dtype=np.float32)
    assert (sent.view(np.uint32) == values.view(np.uint32)).all()


def test_steps_are_new_pauses(fake: Fake) -> None:
    fake.on("POST", f"{AT}/resume", {})
    fake.on("GET", f"{AT}/pause", {"paused_at": PAUSED | {"hook": "blocks.2.hook_out", "breakpoint": None}})
    stopped = pause(fake)
    assert stopped.step_layer() is stopped and stopped.hook == "blocks.2.hook_out"
    assert fake.body("POST", f"{AT}/resume") == {"until": "next_layer"}
    stopped.step_token()
    assert fake.body("POST", f"{AT}/resume") == {"until": "next_token"}
    stopped.step_to("ln_final.hook_out")
    assert fake.body("POST", f"{AT}/resume") == {"until": {"hook": "ln_final.hook_out"}}
    stopped.leave()
    assert len(fake.sent("POST", f"{AT}/resume")) == 4


def test_the_lens(fake: Fake) -> None:
    top = [{"token_id": 5, "text": " Paris", "probability": 0.5}]
    fake.on("POST", f"{AT}/lens", {"data": [{"hook": "blocks.0.hook_out", "top": top}]})
    rows = pause(fake).lens(top=1, position=4)
    assert fake.body("POST", f"{AT}/lens") == {"top": 1, "position": 4}
    assert rows == [djinn.LensRow("blocks.0.hook_out", [djinn.LensToken(5, " Paris", 0.5)])]
    assert "' Paris' 0.500" in str(rows[0])


def test_a_fork_is_paused_too(fake: Fake) -> None:
    fake.on("POST", f"{AT}/fork", {"id": "t"})
    fake.on("GET", "/v1/sessions/t", {"id": "t", "paused_at": PAUSED}, {"id": "t", "paused_at": None})
    fake.on("POST", "/v1/sessions/t/resume", {})
    with pause(fake).fork("t") as other:
        assert (other.session.name, other.positions) == ("t", range(3, 5))
    assert fake.body("POST", f"{AT}/fork") == {"id": "t"} and fake.sent("POST", "/v1/sessions/t/resume")
    with pytest.raises(djinn.Conflict, match="not paused"):
        pause(fake).fork("t")


def safetensors_of(metadata: dict[str, str], **tensors: Any) -> httpx.Response:
    return httpx.Response(200, content=safetensors.numpy.save(tensors, metadata=metadata))


def test_captures_of_the_same_tokens(fake: Fake) -> None:
    values = np.zeros((2, 3), np.float32)
    tensors = {"blocks.0.hook_out": values, "token_ids": np.array([4, 5]), "positions": np.array([0, 1])}
    tensors |= {"hidden_states": values[:, None]}
    answer = safetensors_of({"hooks": "blocks.0.hook_out", "dropped": "0"}, **tensors)
    fake.on("GET", f"{AT}/captures", lambda _: answer)
    captures = fake.session.captures()
    assert list(captures.values) == ["blocks.0.hook_out"] and captures["blocks.0.hook_out"].shape == (2, 3)
    assert captures.hidden_states is not None and captures.hidden_states.shape == (2, 1, 3)
    assert captures.token_ids["blocks.0.hook_out"].tolist() == [4, 5]
    assert captures.positions["blocks.0.hook_out"].tolist() == [0, 1]


def test_captures_of_different_tokens(fake: Fake) -> None:
    none, some = np.zeros(0, np.int64), np.array([7])
    tensors: dict[str, Any] = {"a": np.ones((1, 3), np.float32), "b": np.ones((1, 2), np.float32)}
    tensors |= {"token_ids": none, "positions": none, "a.token_ids": some, "a.positions": some}
    tensors |= {"b.token_ids": some + 1, "b.positions": some + 2}
    fake.on("GET", f"{AT}/captures", lambda _: safetensors_of({"hooks": "a,b", "dropped": "3"}, **tensors))
    captures = fake.session.captures()
    assert list(captures.values) == ["a", "b"] and captures.hidden_states is None and captures.dropped == 3
    assert (captures.token_ids["b"].tolist(), captures.positions["b"].tolist()) == ([8], [9])
    fake.on("GET", "/v1/sessions/t/captures",
            lambda _: safetensors_of({"hooks": "", "dropped": "0"}, token_ids=none, positions=none))
    assert djinn.Session(fake.client._http, "t", None).captures().values == {}


def test_the_steering_store(fake: Fake, tmp_path: Path) -> None:
    store = fake.client.steering
    fake.on("POST", "/v1/steering", {"name": "v"})
    store.put("v", {3: np.array([1.0, 2.0])})
    assert fake.body("POST", "/v1/steering") == {"name": "v", "layers": {"3": [1.0, 2.0]}}
    store.put("v", [1, 2], layer=0)
    assert fake.body("POST", "/v1/steering") == {"name": "v", "layer": 0, "vector": [1, 2]}
    store.put("v", [1, 2], hook="blocks.0.hook_in")
    assert fake.body("POST", "/v1/steering") == {"name": "v", "hook": "blocks.0.hook_in", "vector": [1, 2]}
    wrongs: list[dict[str, Any]] = [
        dict(vectors=[1]), dict(vectors=[1], layer=1, hook="h"), dict(vectors={1: [1]}, layer=1),
    ]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="layer"):
            store.put("v", **wrong)
    (tmp_path / "v.gguf").write_bytes(b"GGUF")
    store.put_file("v", tmp_path / "v.gguf")
    assert (fake.requests[-1].content, fake.requests[-1].url.params["name"]) == (b"GGUF", "v")
    for method in ("GET", "DELETE"):
        fake.on(method, "/v1/steering/v", {"name": "v"})
    fake.on("DELETE", "/v1/steering/v/default", {})
    for call in (store.get, store.delete, store.clear_default):
        call("v", model="m")
        assert dict(fake.requests[-1].url.params) == {"model": "m"}
    fake.on("PUT", "/v1/steering/a b/default", {})
    store.set_default("a b", 0.5, prompt=False, model="m")
    assert dict(fake.requests[-1].url.params) == {"model": "m"}
    wanted = {"scale": 0.5, "apply": {"prompt": False, "generation": True}}
    assert fake.body("PUT", "/v1/steering/a b/default") == wanted
    fake.on("POST", f"{AT}/steering", {})
    fake.session.steer("v")
    assert fake.body("POST", f"{AT}/steering")["vectors"][0]["source"] == "v"
    fake.session.steer(djinn.Vector("v", algorithm="erase"))
    assert fake.body("POST", f"{AT}/steering")["vectors"][0]["algorithm"] == "erase"
    fake.session.steer()
    assert fake.body("POST", f"{AT}/steering") == {"vectors": []}
    both = {"prompt": True, "generation": True}
    edits: list[tuple[djinn.Edit, dict[str, Any]]] = [
        (djinn.Edit("h", "scale", factor=0, columns=range(2, 4)), {"factor": 0, "columns": [2, 3], "apply": both}),
        (djinn.Edit("h", "add", np.array([1, 2]), 0.5), {"values": [1, 2], "strength": 0.5, "apply": both}),
        (djinn.Edit("h", "set", 7, columns=[2], generation=False),
         {"values": [7], "columns": [2], "apply": {"prompt": True, "generation": False}}),
        (djinn.Edit("h", "clamp", high=0), {"high": 0, "apply": both}),
    ]
    fake.session.steer(edits[0][0], "v", *(edit for edit, _ in edits[1:]))
    body = fake.body("POST", f"{AT}/steering")
    assert [vector["source"] for vector in body["vectors"]] == ["v"]
    assert body["edits"] == [{"hook": "h", "op": edit.op, **wanted} for edit, wanted in edits]
    assert djinn.steering(edits[3][0]) == {"steering": {"vectors": [], "edits": [body["edits"][3]]}}
    for wrong in (djinn.Edit("h", "set", [[1.0]]), djinn.Edit("h", "set", [float("nan")])):
        with pytest.raises(ValueError):
            fake.session.steer(wrong)


def test_sessions_are_moved(fake: Fake, tmp_path: Path) -> None:
    fake.on("GET", f"{AT}/export", lambda _: httpx.Response(200, content=b"x" * 3_000_000))
    fake.on("POST", "/v1/sessions/import", {"id": "t", "model": "m"})
    fake.session.export(tmp_path / "s")
    assert (tmp_path / "s").stat().st_size == 3_000_000
    assert fake.client.import_session(tmp_path / "s", "t").name == "t"
    request = fake.requests[-1]
    assert (len(request.content), dict(request.url.params)) == (3_000_000, {"id": "t"})
    with pytest.raises(djinn.NotFound):
        djinn.Session(fake.client._http, "gone", None).export(tmp_path / "t")
    assert not (tmp_path / "t").exists()

    def broken() -> Iterator[bytes]:
        yield b"x" * 3_000_000
        raise httpx.ReadError("the connection broke off")

    fake.on("GET", "/v1/sessions/broken/export", lambda _: httpx.Response(200, content=broken()))
    with pytest.raises(djinn.ServerUnreachable):
        djinn.Session(fake.client._http, "broken", None).export(tmp_path / "t")
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_signals(fake: Fake) -> None:
    fake.on("POST", f"{AT}/signal", {"outcome": "accepted"})
    fake.session.signal("io_wait", tool="bash", resume_in=9)
    assert fake.body("POST", f"{AT}/signal") == {"phase": "io_wait", "tool": "bash", "estimated_resume_ms": 9000}


def test_a_session_is_back_from_its_tools_when_the_last_one_ends(fake: Fake) -> None:
    fake.on("POST", f"{AT}/signal", {"outcome": "accepted"})
    with fake.session.tool("search", resume_in=0.5) as told, fake.session.tool("bash"):
        assert told == {"outcome": "accepted"}
    with pytest.raises(KeyError), fake.session.tool("search"):
        raise KeyError
    told_all = [json.loads(request.content) for request in fake.sent("POST", f"{AT}/signal")]
    wait, back = {"phase": "io_wait", "tool": "search"}, {"phase": "compute"}
    assert told_all == [wait | {"estimated_resume_ms": 500}, wait | {"tool": "bash"}, back, wait, back]
    with djinn.Session(fake.client._http, "empty", None).tool("search") as told:
        assert told is None


def test_signals_of_overlapping_tools_arrive_in_order(fake: Fake) -> None:
    arrived: list[str] = []
    back, entered = threading.Event(), threading.Event()

    def answer(request: httpx.Request) -> httpx.Response:
        phase = json.loads(request.content)["phase"]
        if phase == "compute" and not back.is_set():
            back.set()
            # Long enough for the other tool's signal, if it did not wait for this answer.
            entered.wait(0.3)
        arrived.append(phase)
        return httpx.Response(200, json={"outcome": "accepted"})

    fake.on("POST", f"{AT}/signal", answer)

    def second() -> None:
        back.wait()
        with fake.session.tool("bash"):
            entered.set()

    thread = threading.Thread(target=second)
    thread.start()
    with fake.session.tool("search"):
        pass
    thread.join()
    assert arrived == ["io_wait", "compute", "io_wait", "compute"]


MODEL: dict[str, Any] = {
    "id": "m", "up": True,
    "segments": {"resident": 1 << 20, "ring": 0, "data": 1 << 19, "stack": 2, "other": 3, "total": 1_572_869},
    "host": {"weights": 5, "pages": 6},
    "pages": {"bytes": 7, "tokens": 16, "device": 8, "device_free": 3, "host": 4, "host_free": 4, "cells": []},
    "sessions": [{"id": None, "state": "running", "tokens": 9, "kv_bytes": 14, "residency": "device", "number": 1}],
}


def test_a_server_is_watched(fake: Fake) -> None:
    live = {"object": "live", "time": 1.5, "models": [MODEL, {"id": "n", "up": False}]}
    events = [json.dumps(body) for body in (live, {"object": "ping"}, live | {"time": 2})]
    fake.on("GET", "/v1/live", live, lambda _: httpx.Response(200, text="".join(f"data: {e}\n\n" for e in events)))
    view = fake.client.live("m")
    model = view.models["m"]
    assert model.device is not None and model.device.data == 1 << 19 and model.host == djinn.HostMemory(5, 6)
    assert model.pages is not None and (model.pages.device, model.pages.device_free) == (8, 3)
    assert model.sessions == [djinn.LiveSession(None, "running", 9, 14, "device")]
    assert view.models["n"].device is None
    assert str(view) == ("m: 1.5 MiB on the device (resident 1.0, ring 0.0, data 0.5, stack 0.0, other 0.0), "
                         "5 of 8 KV pages in use, 1 sessions\nn: its engine does not run")
    assert [view.time for view in fake.client.watch(0.5)] == [1.5, 2]
    assert [dict(request.url.params) for request in fake.requests] == [{"model": "m"}, {"every_ms": "500"}]


@pytest.mark.parametrize(("status", "kind"), [
    (400, djinn.BadRequest), (401, djinn.Unauthorized), (404, djinn.NotFound), (409, djinn.Conflict),
    (413, djinn.TooMuch), (429, djinn.TooMuch), (500, djinn.ServerError), (503, djinn.ServerError),
    (405, djinn.ApiError),
])
def test_refusals_are_exceptions(fake: Fake, status: int, kind: type[djinn.ApiError]) -> None:
    fake.on("GET", AT, lambda _: error(status, "no", param="hook", code="c", headers={"retry-after": "2"}))
    with pytest.raises(kind) as caught:
        fake.session.info()
    refusal = caught.value
    assert type(refusal) is kind
    assert (refusal.status, refusal.message, refusal.param, refusal.code) == (status, "no", "hook", "c")
    assert refusal.retry_after == 2 and str(refusal) == f"{status}: no (field `hook`)"


@pytest.mark.parametrize("body", [b"<html>Bad Gateway</html>", b"[]", b'{"error": "words"}', b""])
def test_refusals_of_others_are_told_as_they_are(fake: Fake, body: bytes) -> None:
    fake.on("GET", AT, lambda _: httpx.Response(502, content=body))
    with pytest.raises(djinn.ServerError, match=r"502: ."):
        fake.session.info()


def test_what_is_no_djinn_server_is_told(fake: Fake) -> None:
    fake.on("GET", AT, lambda _: httpx.Response(200, content=b"<html>"))
    with pytest.raises(djinn.DjinnError, match="is this a Djinn server"):
        fake.session.info()

    def broken(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("Connection refused", request=request)

    fake.on("GET", "/v1/models", broken)
    with pytest.raises(djinn.ServerUnreachable, match="GET /v1/models: Connection refused"):
        fake.client.models()


def test_tensors_become_float32() -> None:
    class Tensor:
        """As PyTorch's, of a type that numpy does not know."""

        def detach(self) -> Tensor:
            return self

        def cpu(self) -> Tensor:
            return self

        def float(self) -> Tensor:
            return self

        def numpy(self) -> Any:
            return np.array([1.5], np.float32)

    for wrong in [float("nan"), float("inf"), 1e39]:
        with pytest.raises(ValueError, match="finite"):
            arrays.floats([wrong])
    for values in [Tensor(), [1.5], np.array([1.5], np.float64), np.array([0, 1.5, 0])[1:2]]:
        found = arrays.floats(values)
        assert found.dtype == np.float32 and found.tolist() == [1.5] and found.flags.c_contiguous
