"""A session of a real server, debugged: the tiny checkpoint `tied-f32`, two blocks of width 48."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from conftest import SCRIPTS

import djinn
from djinn import Djinn, Pause, Vector

HOOKS = ["blocks.0.hook_out", "blocks.1.hook_out"]
PROMPT = "The quick brown fox"
# A greedy answer has one text; the tiny model ends none before.
FIELDS: dict[str, Any] = {"max_tokens": 12, "temperature": 0}
CHECKPOINT = SCRIPTS.parent / "djinn-models/tests/checkpoints/tied-f32"


def plain(client: Djinn) -> str:
    return client.session(model="tiny").generate(PROMPT, **FIELDS).text


def test_hooks(client: Djinn) -> None:
    hooks = {hook.name: hook for hook in client.hooks("tiny")}
    assert {name: hooks[name].width for name in ["embed.hook_out", *HOOKS, "unembed.hook_out"]} == {
        "embed.hook_out": 48, HOOKS[0]: 48, HOOKS[1]: 48, "unembed.hook_out": 128,
    }
    assert "blocks.1.hook_resid_post" in hooks[HOOKS[1]].aliases and client.hooks() == client.hooks("tiny")


def test_captures_are_what_transformers_computes(client: Djinn) -> None:
    fixture = safetensors.numpy.load_file(
        SCRIPTS.parent / "djinn-engine/tests/fixtures/transformers-hooks.safetensors")
    prompt = json.loads((CHECKPOINT / "expected.json").read_text())["cases"][1]["prompt"]
    session = client.session()
    for hook in HOOKS:
        session.breakpoint(hook, action="capture", tokens="prompt")
    session.generate(prompt, max_tokens=1)
    captures = session.captures()
    assert captures.token_ids[HOOKS[0]].tolist() == prompt and captures.dropped == 0
    assert captures.positions[HOOKS[0]].tolist() == list(range(len(prompt)))
    assert captures.hidden_states is not None
    for layer, hook in enumerate(HOOKS):
        wanted = fixture[f"tied-f32/{hook}"]
        np.testing.assert_allclose(captures[hook][[0, len(prompt) // 2, -1]], wanted, rtol=1e-4, atol=1e-5)
        assert (captures.hidden_states[:, layer] == captures[hook]).all()
    assert session.captures().values == {}


def test_a_pause_shows_every_hook_of_its_tokens(client: Djinn) -> None:
    session = client.session()
    with session.pause_at(HOOKS[0], PROMPT, **FIELDS) as p:
        assert (p.hook, p.positions, bytes(p.token_ids).decode()) == (HOOKS[0], range(len(PROMPT)), PROMPT)
        assert session.info()["state"] == "paused"
        assert p.activation.shape == (len(PROMPT), 48) and p.activation.dtype == np.float32
        # The parts of the residual stream add up to it, before and after the hook.
        for block, hook in enumerate(HOOKS):
            parts = ["hook_in", "attn.hook_out", "mlp.hook_out"]
            total = sum(p.read(f"blocks.{block}.{part}") for part in parts)
            np.testing.assert_allclose(p.read(hook), total, rtol=1e-5, atol=1e-5)
        embedding = safetensors.numpy.load_file(CHECKPOINT / "model.safetensors")["model.embed_tokens.weight"]
        np.testing.assert_allclose(p.read("embed.hook_out"), embedding[p.token_ids], rtol=1e-6)
        logits = p.read("ln_final.hook_out") @ embedding.T
        np.testing.assert_allclose(p.logits, logits, rtol=1e-4, atol=1e-4)
        # The lens of the last block is what the model would say.
        rows = p.lens(top=100)
        assert [row.hook for row in rows] == HOOKS
        odds = np.exp(p.logits[0] - p.logits[0].max())
        for token in rows[-1].top:
            assert token.probability == pytest.approx(odds[token.token_id] / odds.sum(), rel=1e-3, abs=1e-6)
    assert p.turn is not None and p.turn.result(60).text == plain(client)
    assert session.paused_at() is None


@pytest.mark.parametrize("change", [
    lambda p: p.set(p.activation),
    lambda p: p.add(np.zeros(48)),
    lambda p: p.add(np.ones(48), 0.0),
    lambda p: p.scale(1.0),
    lambda p: p.set(p.read("blocks.0.attn.hook_out"), hook="blocks.0.attn.hook_out"),
], ids=["back", "zero", "strength", "scale", "earlier"])
def test_what_changes_nothing_changes_nothing(client: Djinn, change: Callable[[Pause], int]) -> None:
    with client.session().pause_at(HOOKS[0], PROMPT, **FIELDS) as p:
        assert change(p) == len(PROMPT)
    assert p.turn is not None and p.turn.result(60).text == plain(client)


def test_changes_are_seen_by_later_hooks(client: Djinn) -> None:
    last = len(PROMPT) - 1
    with client.session().pause_at(HOOKS[0], PROMPT, **FIELDS) as p:
        before, after = p.activation, p.read(HOOKS[1])
        direction = np.linspace(-1, 1, 48).astype(np.float32)
        assert p.add(direction, 3.0, positions=[last]) == 1
        np.testing.assert_allclose(p.activation[last], before[last] + 3 * direction, rtol=1e-5, atol=1e-5)
        assert (p.activation[:last] == before[:last]).all()
        assert not np.allclose(p.read(HOOKS[1])[last], after[last])
        p.project_out(direction, positions=[last])
        assert abs(p.activation[last] @ direction) < 1e-3
        p.clamp(-0.5, 0.5, positions=[last])
        assert np.abs(p.activation[last]).max() == 0.5
        p.scale(2.0, positions=[last])
        assert np.abs(p.activation[last]).max() == 1.0
    assert p.turn is not None and len(p.turn.result(60).text) == 12


def test_columns_are_changed_alone(client: Djinn) -> None:
    with client.session().pause_at(HOOKS[0], PROMPT, **FIELDS) as p:
        hook = "blocks.0.attn.hook_z"
        z = p.read(hook).copy()
        p.scale(0, hook=hook, columns=range(8, 16), positions=p.hit_positions[1:])
        z[1:, 8:16] = 0
        assert (p.read(hook) == z).all()
        neurons = [1, 2, 30]
        p.set(np.arange(3), hook="blocks.1.mlp.hook_post", columns=neurons)
        assert (p.read("blocks.1.mlp.hook_post")[:, neurons] == np.arange(3)).all()


def test_tokens_and_logits_without_a_session(client: Djinn) -> None:
    tokens = client.tokenize(PROMPT, model="tiny")
    assert client.detokenize(tokens, model="tiny") == PROMPT
    logits = client.logits(tokens, model="tiny")
    with client.session().pause_at("unembed.hook_out", tokens, **FIELDS) as p:
        assert p.token_ids == tokens and p.hit_positions == [len(tokens) - 1]
        np.testing.assert_allclose(logits[-1], p.logits[0], rtol=1e-5, atol=1e-5)


def test_what_is_erased_has_no_part_along_the_vector(client: Djinn) -> None:
    direction = np.linspace(-1, 1, 48)
    client.steering.put("erased", direction, hook=HOOKS[0])
    session = client.session()
    session.steer(Vector("erased", algorithm="erase"))
    with session.pause_at(HOOKS[0], PROMPT, **FIELDS) as p:
        assert np.abs(p.activation @ direction).max() < 1e-3 < np.abs(p.activation).max()
    client.steering.delete("erased")


def test_edits_last(client: Djinn) -> None:
    head = range(16, 32)
    session = client.session()
    ablated = djinn.Edit("blocks.0.attn.hook_z", "scale", factor=0, columns=head)
    session.steer(ablated)
    with session.pause_at(HOOKS[0], PROMPT, tokens="generated", **FIELDS) as p:
        z = p.read("blocks.0.attn.hook_z")
        assert (z[:, head] == 0).all() and (z[:, :16] != 0).any()
    assert p.turn is not None
    answer = p.turn.result()
    assert answer.raw["djinn"]["steering"] == [{"name": "edits[0]", "tokens": len(PROMPT) + 11}]
    assert client.session().generate(PROMPT, **FIELDS, **djinn.steering(ablated)).text == answer.text
    assert answer.text != plain(client)


def test_a_forks_continuations_differ_by_the_change_alone(client: Djinn) -> None:
    with client.session().pause_at(HOOKS[0], PROMPT, **FIELDS) as p:
        with p.fork() as same, p.fork() as other:
            assert same.positions == p.positions and (same.activation == p.activation).all()
            other.scale(0.0)
            other.resume()
            same.resume()
        texts = [pause.session.tokens(wait=60) for pause in (same, other)]
        assert p.session.info()["state"] == "paused"
    assert p.turn is not None
    assert p.turn.result(60).text == plain(client) == texts[0].text != texts[1].text
    assert bytes(texts[0].token_ids).decode() == PROMPT + texts[0].text
    assert texts[0].generated_from == len(PROMPT)


def test_steps(client: Djinn) -> None:
    with client.session().pause_at(HOOKS[0], PROMPT, **FIELDS) as p:
        assert p.step_layer().hook == HOOKS[1] and p.positions == range(len(PROMPT))
        assert p.step_to("ln_final.hook_out").activation.shape[1] == 48
        for place in range(3):
            p.step_token()
            assert (p.hook, p.positions) == ("ln_final.hook_out", range(len(PROMPT) + place, len(PROMPT) + place + 1))
    assert p.turn is not None and p.turn.result(60).text == plain(client)


def test_conditions_choose_the_tokens(client: Djinn) -> None:
    text = plain(client)
    third = djinn.TokenCondition([ord(text[2])])
    with client.session().pause_at(HOOKS[1], PROMPT, tokens="generated", condition=third, **FIELDS) as p:
        assert p.token_ids == [ord(text[2])]
        assert text[: p.positions[0] - len(PROMPT) + 1].index(text[2]) == p.positions[0] - len(PROMPT)
    with pytest.raises(djinn.PauseNotReached, match="ended before"):
        never = djinn.EntropyCondition(np.log(128) + 0.1)
        with client.session().pause_at("unembed.hook_out", PROMPT, condition=never, **FIELDS):
            pass


def test_steering(client: Djinn) -> None:
    vector = np.linspace(-1, 1, 48)
    client.steering.put("test", {0: vector, 1: -vector})
    try:
        assert [made["name"] for made in client.steering.list()] == ["test"]
        assert client.session().generate(PROMPT, **FIELDS, **djinn.steering(Vector("test", 0.0))).text == plain(client)
        steered = client.session().generate(PROMPT, **FIELDS, **djinn.steering(Vector("test", 5.0)))
        assert steered.text != plain(client)
        assert steered.raw["djinn"]["steering"] == [{"name": "test", "tokens": len(PROMPT) + 11}]
        session = client.session()
        session.steer(Vector("test", 5.0))
        assert session.generate(PROMPT, **FIELDS).text == steered.text
        client.steering.set_default("test", 5.0)
        assert client.session().generate(PROMPT, **FIELDS).text == steered.text
        client.steering.clear_default("test")
        assert client.session().generate(PROMPT, **FIELDS).text == plain(client)
    finally:
        client.steering.delete("test")
    with pytest.raises(djinn.NotFound):
        client.steering.get("test")


def test_two_clients_debug_two_sessions_at_once(address: str) -> None:
    def debug(hook: str) -> tuple[str, str]:
        with Djinn(address) as client, client.session().pause_at(hook, PROMPT, **FIELDS) as p:
            for _ in range(4):
                p.step_token()
                assert p.hook == hook
            p.resume()
            assert p.turn is not None
            return p.turn.result(60).text, plain(client)

    with ThreadPoolExecutor() as pool:
        for found, wanted in pool.map(debug, HOOKS):
            assert found == wanted


def test_a_client_that_vanishes_leaves_nothing_paused(client: Djinn) -> None:
    session = client.session()
    session.breakpoint(HOOKS[0], ttl=0.3)
    turn = session.start(PROMPT, **FIELDS)
    expires = session.paused(turn=turn).at.expires_in
    assert expires is not None and expires <= 0.3
    assert turn.result(60).text == plain(client)
    assert session.paused_at() is None


def test_a_session_that_waits_for_a_tool_is_seen(client: Djinn) -> None:
    session = client.session("waits")
    with session.tool("early") as told:
        assert told is None
    session.generate(PROMPT, **FIELDS)
    with session.tool("search", resume_in=60) as told:
        assert told is not None and told["outcome"] == "accepted"
        assert (session.info()["phase"], session.info()["tool"]) == ("io_wait", "search")
        seen = {at.name: at for at in next(client.watch(0.1)).models["tiny"].sessions}
        assert seen["waits"].state == "waiting" and seen["waits"].residency == "device"
    model = client.live("tiny").models["tiny"]
    assert model.device is not None
    parts = (getattr(model.device, name) for name in ("resident", "ring", "data", "stack", "other"))
    assert sum(parts) == model.device.total
    with pytest.raises(djinn.BadRequest):
        next(client.watch(0.01))


def test_a_pushed_model_answers_and_a_fine_tune_sends_what_differs(client: Djinn, tmp_path: Path) -> None:
    from served import TEMPLATE, tokenizer  # type: ignore[import-not-found]

    base, tuned = tmp_path / "base", tmp_path / "tuned"
    shutil.copytree(CHECKPOINT, base)
    (base / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (base / "chat_template.jinja").write_text(TEMPLATE)
    shutil.copytree(base, tuned)
    tensors = safetensors.numpy.load_file(tuned / "model.safetensors")
    name = next(iter(tensors))
    tensors[name] = tensors[name] + 1
    safetensors.numpy.save_file(tensors, tuned / "model.safetensors")
    first, second = client.push(base), client.push(tuned, "org/tuned")
    assert first.sent == first.bytes
    # With the header, which names the offsets anew.
    assert tensors[name].nbytes <= second.sent < tensors[name].nbytes + 10_000
    assert client.push(base).sent == 0
    try:
        assert set(client.models()) >= {"tiny", "base", "org/tuned"}
        assert client.session(model="base").generate(PROMPT, **FIELDS).text == plain(client)
        assert client.session(model="org/tuned").generate(PROMPT, **FIELDS).text != plain(client)
        with pytest.raises(djinn.Conflict, match="base"):
            client.push(tuned, "base")
    finally:
        client.remove_model("base")
        client.remove_model("org/tuned")
    assert client.models() == ["tiny"]


def test_what_is_refused(client: Djinn) -> None:
    session = client.session()
    with pytest.raises(djinn.BadRequest, match=r"blocks\.0\.hook_out") as unknown:
        session.breakpoint("blocks.0.hook_outt")
    assert unknown.value.param == "hook"
    with session.pause_at(HOOKS[0], PROMPT, **FIELDS) as p:
        p.resume()
        assert p.turn is not None and p.turn.result(60).text
    calls: list[Callable[[], Any]] = [session.resume, p.resume, p.lens, lambda: p.activation, lambda: p.scale(2)]
    for call in calls:
        with pytest.raises(djinn.Conflict):
            call()
    with pytest.raises(djinn.PauseNotReached, match="within 0.1 s"):
        session.paused(timeout=0.1)
    with session.pause_at(HOOKS[0], "Another", **FIELDS) as p:
        with pytest.raises(djinn.BadRequest, match="48"):
            p.set(np.ones(47))
        with pytest.raises(djinn.BadRequest, match="position 99"):
            p.scale(2, positions=[99])
        with pytest.raises(ValueError, match="finite"):
            p.add([float("nan")] * 48)
    with pytest.raises(djinn.NotFound):
        djinn.Session(client._http, f"none-{time.monotonic_ns()}", "tiny").info()
