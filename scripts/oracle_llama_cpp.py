#!/usr/bin/env python3
"""Writes what llama.cpp says about SmolLM2-135M-Instruct: djinn-models/tests/smollm2-expected.json.

    python3 scripts/oracle_llama_cpp.py --models DIR --stored SmolLM2-135M-Instruct.Q4_1.gguf OUT.json
        [--check OTHER.json] [--threads 2]

Needs llama-cpp-python, jinja2 and numpy; DIR is what make_smollm2.py wrote. Unless said otherwise llama.cpp runs
smollm2-f32.gguf, the decoded weights, in f32 throughout: f32 KV cache, no flash attention. The JSON holds:

    messages, text, prompt   the first chat, rendered with the model's own template, and its token ids. Its answer is
                             odd (the template's default system prompt throws this small model off the sentence), but
                             it is what these weights say
    greedy                   tokens up to the end token (which is the last one) or 32; text without the end token;
                             gaps: by how much each choice won, in logits; min_gap: the smallest of them
    ignoring_end             the same 32 tokens long, going on past end tokens
    last_logits              of the prompt's last position: the 64 best, and every 64th of the vocabulary
    bf16, f16                greedy, ignoring_end and last_logits of the same chat in the same f32 arithmetic, the
                             weights rounded to that type first
    stored                   greedy and ignoring_end of the Q4_1 file as llama.cpp runs it by default (activations
                             quantised to 8 bits, f16 KV cache): another arithmetic, so no exact comparison
    more                     further chats in f32: messages, text, prompt, greedy of up to 24 tokens, ignoring_end;
                             "plain" is text without a chat: no messages

--check compares with another such file, as make_checkpoints.py writes by transformers: the first chat's text and
prompt ids, and its last logits within 1e-3 (relative norm); it fails on a difference.
"""

import argparse
import ctypes
import json
import platform
import sys
from pathlib import Path

import jinja2.sandbox
import llama_cpp as lib
import numpy as np

FIRST = [{"role": "user", "content": "The capital of France is"}]
PLAIN = "The capital of France is"
SAYS_PARIS = ("paris", "complete", "plain")
MORE = {
    "paris": [{"role": "system", "content": "You are a helpful assistant."}, *FIRST],
    "complete": [{"role": "user", "content": "Complete the sentence: The capital of France is"}],
    "english": [
        {"role": "system", "content": "You answer in two short sentences."},
        {
            "role": "user",
            "content": "It hasn't rained for three weeks, and the tomatoes' leaves have curled. The soil is dry "
            "10 cm down. What should I do first?",
        },
    ],
    "code": [
        {
            "role": "user",
            "content": "What does this return for f(6)?\n\n```python\ndef f(n):\n    a, b = 0, 1\n    "
            "for _ in range(n):\n        a, b = b, a + b\n    return a\n```",
        }
    ],
    "unicode": [
        {"role": "user", "content": "Translate: 你好,世界! 🌍👩‍🚀 ça va? naïve Straße 12345"},
        {"role": "assistant", "content": "Hello, world! 🌍"},
        {"role": "user", "content": "ありがとう 🙏\tHow do I say that in English?"},
    ],
}
FIRST_TOKENS, MORE_TOKENS = 32, 24
TOP, STRIDE = 64, 64

_quiet = lib.llama_log_callback(lambda level, text, data: None)


class Model:
    """One model and one context of llama.cpp, on one sequence."""

    def __init__(self, path, threads, exact, context=1024, batch=512):
        """`exact`: f32 KV cache and no flash attention; else llama.cpp's defaults."""
        lib.llama_log_set(_quiet, ctypes.c_void_p(0))
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0
        params.load_mode = lib.LLAMA_LOAD_MODE_MMAP
        self.model = lib.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context, batch, batch
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        if exact:
            params.type_k = params.type_v = lib.GGML_TYPE_F32
            params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = lib.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp makes no context for {path}")
        self.vocab = lib.llama_model_get_vocab(self.model)
        self.size = lib.llama_vocab_n_tokens(self.vocab)

    def close(self):
        lib.llama_free(self.context)
        lib.llama_model_free(self.model)

    def reset(self):
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)

    def decode(self, tokens):
        """Appends `tokens`; the last position's logits, a view that the next call overwrites."""
        array = (lib.llama_token * len(tokens))(*tokens)
        status = lib.llama_decode(self.context, lib.llama_batch_get_one(array, len(tokens)))
        if status != 0:
            raise RuntimeError(f"llama_decode gives {status}")
        return np.ctypeslib.as_array(lib.llama_get_logits_ith(self.context, -1), shape=(self.size,))

    def decode_all(self, tokens, first):
        """The same in one batch: the logits of every position from `first` on."""
        batch = lib.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, i >= first
        status = lib.llama_decode(self.context, batch)
        lib.llama_batch_free(batch)
        if status != 0:
            raise RuntimeError(f"llama_decode gives {status}")
        rows = [lib.llama_get_logits_ith(self.context, i) for i in range(first, len(tokens))]
        return np.stack([np.ctypeslib.as_array(row, shape=(self.size,)).copy() for row in rows])

    def tokenize(self, text):
        data = text.encode()
        room = (lib.llama_token * (len(data) + 8))()
        count = lib.llama_tokenize(self.vocab, data, len(data), room, len(room), False, True)
        if count < 0:
            raise RuntimeError("llama_tokenize fails")
        return list(room[:count])

    def piece(self, token, special=True):
        room = ctypes.create_string_buffer(256)
        count = lib.llama_token_to_piece(self.vocab, token, room, len(room), 0, special)
        return room.raw[:count]

    def detokenize(self, tokens):
        return b"".join(self.piece(token) for token in tokens).decode(errors="replace")

    def is_end(self, token):
        return bool(lib.llama_vocab_is_eog(self.vocab, token))

    def render(self, messages):
        """The chat through the template in the file, with the prompt for an answer."""
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        template = lib.llama_model_chat_template(self.model, None).decode()
        return environment.from_string(template).render(messages=messages, add_generation_prompt=True)


def short(values):
    """Shortest decimals that read back as the same float32."""
    return [float(str(value)) for value in np.asarray(values, dtype=np.float32)]


def last_logits(logits):
    best = np.argsort(-logits, kind="stable")[:TOP]
    return {
        "top_ids": best.tolist(),
        "top": short(logits[best]),
        "stride": STRIDE,
        "every_stride": short(logits[::STRIDE]),
    }


def summary(model, tokens, gaps):
    text = model.detokenize(tokens[:-1] if model.is_end(tokens[-1]) else tokens)
    return {"tokens": tokens, "text": text, "min_gap": min(gaps), "gaps": [round(gap, 4) for gap in gaps]}


def answer(model, prompt, count):
    """greedy, ignoring_end and last_logits of one prompt."""
    model.reset()
    logits = model.decode(prompt)
    first = last_logits(logits)
    tokens, gaps = [], []
    for step in range(count):
        second, best = np.partition(logits, -2)[-2:]
        tokens.append(int(logits.argmax()))
        gaps.append(float(best - second))
        if step + 1 < count:
            logits = model.decode(tokens[-1:])
    end = next((i + 1 for i, token in enumerate(tokens) if model.is_end(token)), count)
    return {
        "greedy": summary(model, tokens[:end], gaps[:end]),
        "ignoring_end": summary(model, tokens, gaps),
        "last_logits": first,
    }


def chat(model, messages, count):
    text = model.render(messages)
    prompt = model.tokenize(text)
    return {"messages": messages, "text": text, "prompt": prompt, **answer(model, prompt, count)}


def plain(model, text, count):
    prompt = model.tokenize(text)
    return {"text": text, "prompt": prompt, **answer(model, prompt, count)}


def check(path, expected):
    """Compares with another answer; exits with one line when they differ."""
    other = json.loads(path.read_text())
    for key in ("messages", "text", "prompt"):
        if other[key] != expected[key]:
            sys.exit(f"{path}: {key} differs: {other[key]!r} instead of {expected[key]!r}")
    ours, theirs = (np.array(entry["last_logits"]["every_stride"]) for entry in (expected, other))
    difference = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
    tokens = expected["ignoring_end"]["tokens"]
    pairs = zip(tokens, other["greedy"]["tokens"])
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(other["greedy"]["tokens"]))
    print(f"against {path.name}: logits differ by {difference:.2e}, the first {same} greedy tokens are equal")
    if difference > 1e-3:
        sys.exit(f"{path}: the logits differ by {difference:.2e}")


def without_logits(entry):
    return {key: value for key, value in entry.items() if key != "last_logits"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", type=Path, required=True, help="directory written by make_smollm2.py")
    parser.add_argument("--stored", type=Path, required=True, help="the Q4_1 file")
    parser.add_argument("--check", type=Path, help="another program's answer to compare with")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    model = Model(arguments.models / "smollm2-f32.gguf", arguments.threads, exact=True)
    expected = {
        "made_by": {
            "llama-cpp-python": lib.__version__,
            "llama.cpp": lib.llama_print_system_info().decode().strip(" |"),
            "python": platform.python_version(),
        },
        **chat(model, FIRST, FIRST_TOKENS),
    }
    more = {name: without_logits(chat(model, messages, MORE_TOKENS)) for name, messages in MORE.items()}
    more["plain"] = without_logits(plain(model, PLAIN, MORE_TOKENS))
    model.close()
    if arguments.check is not None:
        check(arguments.check, expected)
    for kind in ("bf16", "f16"):
        model = Model(arguments.models / f"smollm2-{kind}-as-f32.gguf", arguments.threads, exact=True)
        expected[kind] = answer(model, expected["prompt"], FIRST_TOKENS)
        model.close()
    model = Model(arguments.stored, arguments.threads, exact=False)
    expected["stored"] = without_logits(answer(model, expected["prompt"], FIRST_TOKENS))
    model.close()
    expected["more"] = more
    for name in SAYS_PARIS:
        if "Paris" not in more[name]["greedy"]["text"]:
            sys.exit(f"{name}: llama.cpp does not say Paris: {more[name]['greedy']['text']!r}")
    arguments.out.write_text(json.dumps(expected, ensure_ascii=False) + "\n")
    print(f"{arguments.out.name}: {arguments.out.stat().st_size} bytes")
    entries = {"f32": expected, **{k: expected[k] for k in ("bf16", "f16", "stored")}, **more}
    for name, entry in entries.items():
        greedy, long = entry["greedy"], entry["ignoring_end"]
        print(f"{name}: {greedy['text']!r} ({len(greedy['tokens'])} tokens, gap {greedy['min_gap']:.3f})")
        print(f"{name} past the end: {long['text']!r} (gap {long['min_gap']:.3f})")


if __name__ == "__main__":
    main()
