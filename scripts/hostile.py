#!/usr/bin/env python3
"""Runs `djinn` on thousands of generated hostile templates, tokenizers, texts, files and settings.

    python3 scripts/hostile.py --djinn target/release/djinn --json results/hostile.json [--cases 5000] [--seed 1]
        [--only template,tokenizer,text,file,settings] [--keep DIR]

Every case is a process of its own on a copy of a tiny checkpoint. It must end by itself, without a signal and without
a panic, within 2 s of processor time and 1 GiB of resident memory; where it fails, with exactly one line on standard
error that begins with "error: ", holds no control character and has at most 1,000 bytes. A case that breaks a rule is
listed with its seed; `--keep DIR` keeps its folder. The same seed makes the same cases. The memory that is told is an
upper bound: the system also counts what this script held when it began the process.
"""

import argparse
import collections
import datetime
import json
import os
import platform
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import results

ROOT = Path(__file__).resolve().parent.parent
CHECKPOINT = ROOT / "djinn-models/tests/checkpoints/tied-f32"
TOKENIZERS = ROOT / "djinn-models/tests/tokenizers"
MOST_SECONDS, MOST_BYTES, MOST_LINE = 2.0, 1 << 30, 1000
KILL_AFTER_S = 10
SHARES = {"template": 0.36, "tokenizer": 0.26, "text": 0.18, "file": 0.1, "settings": 0.1}
FOLDER_FILES = [
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
    "chat_template.json", "config.json", "generation_config.json", "model.safetensors", "vocab.json", "merges.txt",
    "tokenizer.model", "model.safetensors.index.json",
]


# Templates

def chain(rng):
    """An expression of one operator repeated until a recursive parser, compiler or destructor overflows."""
    n = rng.choice([50, 500, 5_000, 20_000, 60_000, 300_000])
    left, middle, right = rng.choice([
        ("not ", "1", ""), ("-", "1", ""), ("(", "1", ")"), ("[", "", "]"), ("{1:", "1", "}"), ("", "1", "+1"),
        ("", "'a'", "~'a'"), ("", "a", ".b"), ("", "a", "()"), ("", "a", "[0]"), ("", "a", "|e"),
        ("", "1", " if 1 else 1"), ("", "1", " and 1"), ("", "1", "**1"), ("", "1", " is defined"), ("", "1", "<1"),
        ("", "a", "[:]"), ("", "1", ",1"), ("f(", "1", ")"), ("", "1", " in 1"),
    ])
    return "{{ " + left * n + middle + right * n + " }}"


def nest(rng):
    n = rng.choice([50, 1_000, 30_000])
    opening, closing = rng.choice([
        ("{% if 1 %}", "{% endif %}"), ("{% for a in [1] %}", "{% endfor %}"), ("{% set a %}", "{% endset %}"),
        ("{% filter upper %}", "{% endfilter %}"), ("{% macro m() %}", "{% endmacro %}"), ("{% raw %}", "{% endraw %}"),
        ("{% if 1 %}{% elif 1 %}", "{% endif %}"), ("{% generation %}", "{% endgeneration %}"),
    ])
    return opening * n + "x" + (closing * n if rng.random() < 0.7 else "")


GROW = [
    "ns.s ~ ns.s", "ns.s + ns.s", "ns.s * 2", "ns.s.replace('x', 'xx')", "ns.s | replace('x', 'xx')", "[ns.s, ns.s] | join",
    "ns.s | indent(1000)", "ns.s | indent(2, True)", "'%s%s' % (ns.s, ns.s)", "'{}{}'.format(ns.s, ns.s)", "ns.s | tojson | tojson",
    "ns.s.join([ns.s, ns.s, ns.s])", "ns.s | upper ~ ns.s | lower", "ns.s.split('x') | join('xx')", "(ns.s | list + ns.s | list) | join",
    "ns.s.strip() ~ ns.s[::-1]", "ns.s.title() ~ ns.s", "ns.s ~ (ns.s | urlencode)", "ns.s | center(100000) ~ ns.s",
]


def grow(rng):
    """Text that doubles."""
    turns = rng.choice([20, 40, 400, 100_000])
    body = rng.choice(GROW)
    return f"{{% set ns = namespace(s='{'x' * rng.choice([1, 8, 1000])}') %}}{{% for i in range({turns}) %}}{{% set ns.s = {body} %}}{{% endfor %}}" + (
        "{{ ns.s }}" if rng.random() < 0.5 else "{{ ns.s | length }}")


def grow_value(rng):
    """Lists, cycles and trees that double, and what then walks over them."""
    make = rng.choice([
        "{% set ns = namespace(l=[1]) %}{% for i in range(N) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(N) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(N) %}{% set ns.l = [ns.l] %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(N) %}{% set ns.l = {'a': ns.l, 'b': ns.l} %}{% endfor %}",
        "{% set ns = namespace() %}{% set ns.l = ns %}", "{% set ns = namespace() %}{% set ns.l = [ns, {'a': ns}] %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(N) %}{{ ns.l.append(ns.l) }}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(N) %}{% set _ = ns.l.append([ns.l]) %}{% endfor %}",
        "{% set ns = namespace(l={}) %}{% for i in range(N) %}{% set _ = ns.l.update({i: ns.l}) %}{% endfor %}",
        "{% set ns = namespace(l=range(N) | list) %}", "{% set ns = namespace(l=range(N * 1000000)) %}",
        "{% set ns = namespace(l='x' * N * 1000) %}",
    ]).replace("N", str(rng.choice([5, 30, 60, 1_000, 100_000])))
    use = rng.choice([
        "{{ ns.l }}", "{{ ns.l == ns.l }}", "{{ ns == ns }}", "{{ ns.l ~ '' }}", "{{ {ns.l: 1} }}", "{{ ns.l | tojson }}", "{{ ns.l | string | length }}",
        "{{ ns.l | length }}", "{{ ns.l in ns.l }}", "{{ ns.l | sort }}", "{{ ns.l | unique | list }}", "{{ ns.l < ns.l }}", "{{ ns.l | list | last }}",
        "{{ ns.l | batch(2000000000) | list }}", "{{ ns.l | slice(2000000000) | list }}", "{{ ns.l | sum }}", "{{ ns.l | join }}", "{{ ns.l | reverse | list }}",
        "{% for a in ns.l recursive %}{{ loop(a) }}{% endfor %}", "{{ ns.l | map('string') | list }}", "{{ ns.l | pprint }}", "{{ ns.l | groupby(0) }}",
    ])
    if rng.random() < 0.3:
        use = "{% for j in range(100000) %}" + use + "{% endfor %}"
    return make + use


def slow(rng):
    """Much work in one instruction, repeated."""
    size, turns = rng.choice([1_000, 100_000, 5_000_000]), rng.choice([100, 100_000, 2_000_000])
    work = rng.choice([
        "'b' in s", "s | upper", "s.strip()", "s.split('a')", "s | tojson", "s | length", "s == s ~ ''", "s.find('b')", "s.replace('b', 'c')", "s | trim",
        "s.count('aa')", "s[::-1]", "s | lower", "s.startswith(s)", "s.rstrip('a')", "s | e", "s | list", "s | wordcount", "s.splitlines()", "s | title",
        "'%1000000000d' % 1", "'{:>2000000000}'.format(1)", "'%.1000000000f' % 1.5", "9 ** 9 ** 9", "2 ** 100000000", "10 ** 400 * 10 ** 400", "1 // 0", "'a' * 2000000000",
        "[0] * 2000000000", "range(0, 1000000000000) | list", "s | wordwrap(1)", "s | truncate(3)", "'a'.center(2000000000)", "'\\t'.expandtabs(2000000000)", "s | int", "s | float",
    ])
    if rng.random() < 0.5:
        return f"{{% set s = 'a' * {size} %}}{{% for i in range({turns}) %}}{{% if {work} %}}{{% endif %}}{{% endfor %}}"
    return f"{{% set s = '{'a' * min(size, 100_000)}' %}}{{% for i in range({turns}) %}}{{% for j in range({turns}) %}}{{% set x = {work} %}}{{% endfor %}}{{% endfor %}}"


LARGE = [
    ("", "s.startswith((s,) * 1000000)"), ("", "s.endswith(t)"), ("{% set d = {s: 1, 'x': 2} %}", "'%(' ~ s ~ ')s' % d"), ("{% set d = {s: 1, 'x': 2} %}{% set f = '%(' ~ s ~ ')s' %}", "f % d"),
    ("{% set d = {s: 1, 'x': 2} %}", "'' | format(**d)"), ("{% set d = {(s,): 1, 2: 3} %}{% set e = {(s ~ '',): 1, 2: 3} %}", "d == e"), ("{% set d = {s: 1, 'x': 2} %}", "d[t]"), ("", "s == t"), ("", "(s,) < (t,)"),
    ("{% set d = {'a': 1, 'b': 2} %}", "d.NAME"), ("{% set d = namespace(a=1, b=2) %}", "d.NAME"), ("{% macro m(PARAMETERS) %}{{ kwargs }}{% endmacro %}{% set e = dict(range(N)|map('string')|batch(2)) %}", "m(**e)"),
    ("{% set e = dict(range(N)|map('string')|batch(2)) %}", "('{z}' * N).format(**dict(e, z=''))"), ("{% macro m(NAME) %}{{ kwargs }}{% endmacro %}{% set e = dict(range(100)|map('string')|map('center', 90000)|batch(2)) %}", "m(**e)"),
    ("", "'%.10000g' % 1.1e-300"), ("", "'%.10000e' % 1.1e300"), ("", "'{:,.10000f}'.format(1.1e300)"), ("", "'%.10000d' % 1"), ("", "'%f' % 1.7976931348623157e308"), ("", "1.1e300 | round(300)"), ("", "5e-324 | string"),
    ("", "1e308 % 3e-323"), ("", "'a'.find(s)"), ("", "'a'.count(s)"), ("", "'a'.replace(s, '')"), ("", "'a' | replace(s, '')"), ("", "'a'.split(s)"), ("", "'a'.rsplit(s)"), ("", "'a'.partition(s)"), ("", "s.count('a')"), ("", "s.find('a' * 1000 ~ 'b' ~ 'a' * 1000)"),
    ("{% set t = '\\n' * N * 10 %}", "t.splitlines()"), ("{% set t = '\\n' * N * 10 %}", "t | indent"), ("", "'abc' | truncate(1000000000, end=s, leeway=0)"), ("{% set t = 'é' * N %}", "t.isprintable()"), ("{% set t = '​' * 1000 %}", "[t] | string"),
    ("{% set t = '\\x01' * 1000 %}", "t | tojson"), ("{% set t = 'é' * 1000 %}", "t | tojson(ensure_ascii=true)"), ("{% set t = 'é' * 1000 %}", "t | urlencode"), ("{% set t = 'Σ' * N %}", "t.lower()"), ("{% set t = '1_' * N ~ 1 %}", "t | int"), ("{% set t = '1' * N %}", "t | float"),
    ("{% set t = 'é' * 50000 %}{% set c = 'ĩ' * 1000 ~ 'é' %}", "t.strip(c)"), ("{% set f = '%' ~ '-' * N ~ 'd' %}", "f % 1"), ("{% set f = '{' ~ '0' * N ~ '}' %}", "f.format(1)"), ("", "MINUS1"), ("{% set l = loop %}", "l.index"),
    ("", "1.5 | round(-2147483648)"), ("", "range(0, 9223372036854775807, 4611686018427387904)[::1099511627776][::1099511627776]"), ("{% set l = range(100000) | list %}", "l | sort"), ("{% set l = [s, t] * 1000 %}", "l | unique | list"), ("{% set l = [s, t] * 1000 %}", "l | sort"),
    ("{% set l = [[s], [t]] * 1000 %}", "l | groupby(0)"), ("{% set l = [s, t] * 1000 %}", "s ~ '' in l"), ("{% set l = [s, t] * 1000 %}", "l | max"),
]


def large(rng):
    """One operation whose cost lies in what it compares, hashes, searches or formats."""
    setup, work = rng.choice(LARGE)
    n = rng.choice([1_000, 100_000, 5_000_000])
    many = min(n, 100_000)
    filled = [
        text.replace("NAME", "a" * min(n, 900_000)).replace("PARAMETERS", ", ".join(f"a{i}" for i in range(min(n, 5_000)))).replace("MINUS", "-" * min(n, 900_000))
        .replace("range(N)", f"range({many})").replace("N", str(n))
        for text in (setup, work)
    ]
    begin = f"{{% set s = 'ab' * {n} %}}{{% set t = s ~ '' %}}{{% set r = range(100000) %}}{{% for first in [1] %}}{filled[0]}"
    return begin + f"{{% for i in r %}}{{% for j in r %}}{{% set x = {filled[1]} %}}{{% endfor %}}{{% endfor %}}{{% endfor %}}"


def recurse(rng):
    return rng.choice([
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{% macro m(x) %}{{ m(x ~ x) }}{% endmacro %}{{ m('x') }}",
        "{% macro a() %}{{ b() }}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{{ a() }}{% endmacro %}{{ a() }}",
        "{% include 'default' %}", "{% import 'default' as x %}", "{% extends 'default' %}", "{% from 'default' import x %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(N) }}".replace("N", str(rng.choice([10, 60, 10_000]))),
        "{% for i in range(N) recursive %}{{ loop(range(N)) }}{% endfor %}".replace("N", str(rng.choice([3, 1000]))),
        "{{ caller() }}", "{% call m() %}{% endcall %}", "{{ self }}{{ self.x() }}", "{{ loop }}", "{{ cycler(1)|tojson }}", "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__ }}", "{{ lipsum.__globals__ }}", "{{ raise_exception('\x1b]0;x\x07' ~ 'y' * 10000000) }}", "{{ raise_exception(messages * 1000000) }}",
        "{{ strftime_now('%' ~ 'Y' * 1000000) }}", "{{ strftime_now('%Y' * 10000000) }}", "{{ raise_exception('a\\nb\u202ec') }}",
    ])


PIECES = [
    "{{", "}}", "{%", "%}", "{#", "#}", "-", "+", "if", "else", "elif", "endif", "for", "in", "endfor", "set", "endset", "macro", "endmacro", "messages", "m.content",
    "loop.index", "'x'", '"', "'", "1", "0x", "1e999", "[", "]", "(", ")", "{", "}", ":", ",", "|", "trim", "tojson", "is", "not", "defined", "~", "*", "**", "//", "%", "==",
    "<", "\n", " ", "\\", "\x00", "é", "\U0001f600", "namespace(", "ns.a", "=", ".", "range(9999999)", "break", "continue", "raw", "endraw", "generation", "endgeneration", "call", "do",
]


def soup(rng):
    return rng.choice(["", " "]).join(rng.choice(PIECES) for _ in range(rng.choice([3, 30, 3_000, 200_000])))


def mutated_template(rng):
    source = rng.choice(sorted((ROOT / "djinn-models/tests/chats").glob("*.jinja"))).read_text()
    for _ in range(rng.choice([1, 3, 20])):
        at, to = sorted(rng.randrange(len(source) + 1) for _ in range(2))
        to = min(to, at + rng.choice([1, 10, 200]))
        source = source[:at] + rng.choice(["", source[at:to] * rng.choice([2, 50, 5_000]), rng.choice(PIECES)]) + source[to:]
    return source[: 8 << 20]


def template_case(rng, folder):
    make = rng.choice([chain, nest, grow, grow_value, grow_value, slow, slow, large, large, recurse, soup, mutated_template])
    (folder / "chat_template.jinja").write_text(make(rng), errors="surrogatepass")
    base_tokenizer(rng, folder)
    return make.__name__, [rng.choice([["run", ".", "hi", "-n", "1", "-q"], ["plan", ".", "-q"]])] if rng.random() < 0.2 else [["run", ".", "hi", "-n", "1", "-q"]], b""


# Tokenizers

def base_tokenizer(rng, folder, name=None):
    source = TOKENIZERS / (name or rng.choice(["llama3", "smollm", "llama2-first", "qwen2"]))
    for file in source.iterdir():
        if file.name != "expected.json":
            shutil.copy(file, folder / file.name)


PATTERNS = [
    "(a+)+$", "(a|aa)+$", "((a*)*)*$", "\\p{L}+" * 5_000, "(.*)*x", "(a?){60}a{60}", "(x+x+)+y", "(?:(?:a+)+)+b", "a{1,1000}{1,1000}", "(" * 5_000 + "a" + ")" * 5_000,
    "(?<=a*)b", "\\1", "(?R)", "[", "(?>", "\\p{Nope}", "", "(a{0,30}){0,30}$", "(\\s*)*\\S", "(?i:" * 300 + "a" + ")" * 300, "a**", "(?=(a+))*b", "(a*)*(a*)*(a*)*$", "\\X*", "[^\\W\\D]*" * 500,
    "(?:a|b|ab)*c", "(\\w+\\s?)*$", "^(a|a?)+$", "(?:.?){200}$",
]
CHARSMAPS = ["", "AQAAAA==", "/////w==", "AAAA", "!!", "BAAAAAAAAAA=", "AAAAAA==", "A" * 4_000_000]


def parts(rng, depth=0):
    """A normalizer or pre-tokenizer, hostile more often than not."""
    kind = rng.randrange(12)
    if kind == 0 and depth < 200:
        field = rng.choice(["normalizers", "pretokenizers"])
        return {"type": "Sequence", field: [parts(rng, depth + 1) for _ in range(rng.choice([0, 1, 1, 3]))]}
    if kind == 1:
        return {"type": "Precompiled", "precompiled_charsmap": rng.choice(CHARSMAPS)}
    if kind == 2:
        return {"type": "FixedLength", "length": rng.choice([0, 1, -1, 1 << 62, 3])}
    if kind in (3, 4):
        return {"type": "Replace", "pattern": {rng.choice(["String", "Regex"]): rng.choice(PATTERNS + ["a", " ", "x"])}, "content": rng.choice(["", "x", "aa", "a" * 1000, "a" * 1_000_000])}
    if kind in (5, 6):
        return {"type": "Split", "pattern": {rng.choice(["String", "Regex"]): rng.choice(PATTERNS)}, "behavior": rng.choice(["Isolated", "Removed", "MergedWithNext", "Contiguous", "Nope"]), "invert": rng.random() < 0.3}
    if kind == 7:
        return {"type": "Prepend", "prepend": rng.choice(["", "a", "x" * 100_000])}
    if kind == 8:
        return {"type": "Metaspace", "replacement": rng.choice(["", "▁", "aa", "\x00"]), "prepend_scheme": rng.choice(["first", "always", "x"]), "split": True}
    if kind == 9:
        return {"type": rng.choice(["NFC", "NFKD", "Lowercase", "StripAccents", "Nmt", "BertNormalizer", "ByteLevel", "Whitespace", "UnicodeScripts", "Digits", "Punctuation", "Nope", ""])}
    if kind == 10:
        return {"type": "Strip", "strip_left": True, "strip_right": rng.choice([True, None, 3])}
    return rng.choice([None, [], {}, 5, "x", {"type": "CharDelimiterSplit", "delimiter": rng.choice(["", "ab", "a"])}])


def deep(rng):
    value, levels = {"type": "Lowercase"}, rng.choice([2, 20, 60, 120, 5_000])
    field = rng.choice(["normalizers", "pretokenizers"])
    text = json.dumps(value)
    return ('{"type":"Sequence","%s":[' % field) * levels + text + "]}" * levels


def json_tokenizer(rng, folder):
    base_tokenizer(rng, folder, rng.choice(["llama3", "smollm", "llama2-first", "qwen2", "gpt2-prefix"]))
    path = folder / "tokenizer.json"
    t = json.loads(path.read_text())
    kind = rng.randrange(9)
    if kind == 0:
        t["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * rng.choice([5, 40, 100_000])}
    elif kind == 1:
        t["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "x" * 100_000}] * rng.choice([10, 1000])}
    elif kind == 2:
        n = rng.choice([1_000, 100_000, 1_000_000])
        first = 1 + max([*t["model"]["vocab"].values(), *(token["id"] for token in t["added_tokens"])])
        t["added_tokens"] += [{"id": first + i, "content": f"<{i}>", "single_word": False, "lstrip": rng.random() < 0.5, "rstrip": False, "normalized": rng.random() < 0.5, "special": True} for i in range(n)]
    elif kind == 3:
        t["model"] = rng.choice([{"type": "Unigram", "vocab": [["a", -1.0]] * 1000, "unk_id": 0}, {"type": "WordPiece", "vocab": {"a": 0}}, {"type": "BPE", "vocab": {}, "merges": []},
                                 {"type": "BPE", "vocab": {"a": (1 << 32) - 1}, "merges": []}, {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": ["a b"] * 1000}, {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "b"}])
    elif kind == 4:
        text = json.dumps(t)
        spot = rng.choice(['"normalizer":', '"pre_tokenizer":', '"decoder":', '"post_processor":'])
        path.write_text(text.replace(spot, spot + " " + deep(rng) + ', "was":', 1))
        return "json deep", ["run", ".", "aaaa", "-n", "1", "-q", "--raw"], b""
    elif kind == 5:
        data = bytearray(json.dumps(t).encode())
        for _ in range(rng.choice([1, 10, 200])):
            at = rng.randrange(len(data))
            data[at : at + rng.choice([0, 1, 100])] = rng.randbytes(rng.choice([0, 1, 4]))
        path.write_bytes(bytes(data))
        return "json bytes", ["run", ".", "aaaa", "-n", "1", "-q", "--raw"], b""
    elif kind == 6:
        t[rng.choice(["decoder", "post_processor", "truncation", "padding", "version", "added_tokens"])] = rng.choice([parts(rng), deep(rng)[:50], -1, {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {"x": {"id": "x", "ids": [1 << 31], "tokens": []}}}])
    else:
        t["normalizer"], t["pre_tokenizer"] = parts(rng), parts(rng)
    path.write_text(json.dumps(t))
    text = rng.choice(["a" * 40 + "!", "a" * 30_000 + "!", " " * 5_000 + "x", "x" * 5_000, "é" * 100, "hi"])
    return f"json {kind}", ["run", ".", "-", "-n", "1", "-q", "--raw"], text.encode()


def other_tokenizer(rng, folder):
    name = rng.choice(["llama2-model", "llama2-model-newer", "qwen2-files", "gpt2-files"])
    base_tokenizer(rng, folder, name)
    files = [f for f in folder.iterdir() if f.name in ("tokenizer.model", "vocab.json", "merges.txt", "tokenizer_config.json")]
    path = rng.choice(sorted(files))
    data = bytearray(path.read_bytes())
    kind = rng.randrange(5)
    if kind == 0:
        data = data[: rng.randrange(len(data) + 1)]
    elif kind == 1:
        for _ in range(rng.choice([1, 10, 300])):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif kind == 2:
        at = rng.randrange(len(data))
        data[at:at] = rng.choice([b"\xff" * 20, b"\x0a\xff\xff\xff\xff\x0f", struct.pack("<Q", 1 << 62), b"[" * 100_000, b"\n" * 1_000_000, rng.randbytes(64)])
    elif kind == 3:
        data = data * rng.choice([2, 50, 1000])
    else:
        data = bytearray(rng.choice([b"", b"{}", b"null", b"\x00" * 1000, b"a b\n" * 2_000_000, b'{"a":' * 100_000, rng.randbytes(5_000)]))
    path.write_bytes(bytes(data[: 96 << 20]))
    return f"{name} {kind}", ["run", ".", "hello aaaa", "-n", "1", "-q", "--raw"], b""


def tokenizer_case(rng, folder):
    what, command, given = (json_tokenizer if rng.random() < 0.75 else other_tokenizer)(rng, folder)
    return what, [command], given


# Texts

UNITS = [" ", "\n", "\r\n", "\t", "x", "a ", "　", "1", "é", "e\u0301", "\U0001f600", "的", "\x00", "\x1b[31m", "\u202e", "<|im_end|>", "<|eot_id|>", "</s>", "<s>", "'s", "\ufeff", "\u200d", "ﷺ", "{{", "\x7f", "\u0600"]


def text_case(rng, folder):
    """Text alone, with the tokenizers' own patterns and a context of 131,072 tokens: what encodes is then refused by the
    vocabulary, so that no case waits for the model."""
    base_tokenizer(rng, folder, rng.choice(["llama3", "qwen2", "smollm", "gpt2", "falcon", "llama2-first", "llama2-prepend", "llama2-model", "qwen2-files"]))
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = 131_072
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>{% endfor %}zebra quartz")
    n = rng.choice([100, 10_000, 1_000_000, 4_000_000, 10_500_000])
    unit = rng.choice(UNITS)
    text = unit * (n // len(unit.encode()))
    if rng.random() < 0.4:
        text += rng.choice(["x", "\n", "<|im_end|>", "a" * 1000])
    if rng.random() < 0.2:
        text = "".join(rng.choice(UNITS) for _ in range(min(n, 1_000_000) // 3))
    data = text.encode()
    if rng.random() < 0.05:
        data = rng.randbytes(min(n, 1_000_000))
    # The quartz and zebra of the template, or the capital letters here, have ids that the model does not have.
    raw = rng.random() < 0.5
    if raw:
        data = b"Zebra quartz KLMNOP " + data
    return f"{unit!r} x {n}", [["run", ".", "-", "-n", "1", "-q"] + (["--raw"] if raw else [])], data


# Files that are no files, and settings

def file_case(rng, folder):
    base_tokenizer(rng, folder)
    name = rng.choice(FOLDER_FILES)
    path = folder / name
    path.unlink(missing_ok=True)
    if name in ("vocab.json", "merges.txt", "tokenizer.model"):
        (folder / "tokenizer.json").unlink(missing_ok=True)
    if name == "model.safetensors.index.json":
        (folder / "model.safetensors").unlink()
    kind = rng.choice(["fifo", "zero", "urandom", "directory", "socket", "dangling", "loop", "sparse", "random", "deep", "empty", "long"])
    if kind == "fifo":
        os.mkfifo(path)
    elif kind in ("zero", "urandom"):
        path.symlink_to("/dev/" + kind)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as s:
            here = os.open(folder, os.O_RDONLY)
            s.bind(f"/proc/self/fd/{here}/{name}")
            os.close(here)
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "loop":
        path.symlink_to(name)
    elif kind == "sparse":
        with path.open("wb") as f:
            f.truncate(rng.choice([1 << 20, 1 << 30, 1 << 40]))
    elif kind == "random":
        path.write_bytes(rng.randbytes(rng.choice([1, 100, 100_000])))
    elif kind == "deep":
        path.write_text(rng.choice(["[", '{"a":', "{{", "("]) * rng.choice([200, 1_000_000]))
    elif kind == "long":
        path.write_text('{"a": "' + "x\\u001b" * 1_000_000 + '"}')
    else:
        path.write_bytes(b"")
    return f"{name} {kind}", [rng.choice([["plan", ".", "-q"], ["run", ".", "hi", "-n", "1", "-q"], ["logits", ".", "--tokens", "1,2", "-q"]])], b""


KEYS = ["vram", "ram", "ctx", "trace", "threads", "temperature", "top-p", "top-k", "seed", "stop", "system", "max-tokens", "device", "chunk", "ring", "model", "prompt", "config", "quiet", "x" * 100, "run", "json"]
VALUES = ["1", "-1", "'20GiB'", "'x'", "[]", "[1, 2]", "{}", "true", "nan", "1e999", "''", "'/etc/passwd'", "'" + "y" * 100_000 + "'", "9" * 400, "'\\u001b[31m'", "1979-05-27", "&a [*a]", "!!binary x", "*b", "\x00"]


def settings_case(rng, folder):
    base_tokenizer(rng, folder)
    suffix = rng.choice(["toml", "yaml", "yml"])
    equals = " = " if suffix == "toml" else ": "
    lines = [rng.choice(KEYS) + equals + rng.choice(VALUES) for _ in range(rng.choice([1, 1, 2, 5, 1000]))]
    text = "\n".join(lines)
    kind = rng.randrange(8)
    if kind == 0:
        text = rng.choice(["[" * 100_000, "a: &a [*a, *a]\n" * 50, "{a: " * 50_000, "- " * 100_000, "a.b" + ".c" * 50_000 + " = 1"])
    if kind == 1:
        levels = "\n".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9) if i else 1}]" for i in range(12))
        text = levels
    name = f"djinn.{suffix}" if rng.random() < 0.6 else f"given.{suffix}"
    path = folder / name
    if kind == 2:
        rng.choice([lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero"), path.mkdir])()
    elif kind == 3:
        with path.open("wb") as f:
            f.truncate(1 << 32)
    else:
        path.write_text(text)
    command = ["plan", ".", "-q"] + ([] if name.startswith("djinn") else ["--config", name])
    return f"{suffix} {kind}", [command], b""


CASES = {"template": template_case, "tokenizer": tokenizer_case, "text": text_case, "file": file_case, "settings": settings_case}


# Running and judging

def run(djinn, command, folder, given):
    """The process's status, CPU and wall seconds, peak bytes, and the end of what it printed."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "DJINN_CACHE": str(folder / "cache")}

    def limits():
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        stdin.write(given)
        stdin.seek(0)
        start = time.monotonic()
        process = subprocess.Popen([djinn, *command], cwd=folder, env=environment, stdin=stdin, stdout=out, stderr=err, preexec_fn=limits)
        timer = threading.Timer(KILL_AFTER_S, process.kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = 0
        wall = time.monotonic() - start
        err.seek(0)
        return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * 1024, err.read(1 << 20)


def faults(code, cpu, peak, stderr, quiet_settings):
    found = []
    if code < 0:
        found.append(f"ended by {signal.Signals(-code).name}")
    if code == 101 or b"panicked at" in stderr:
        found.append("panicked")
    if cpu > MOST_SECONDS:
        found.append(f"{cpu:.2f} s of processor time")
    if peak > MOST_BYTES:
        found.append(f"{peak >> 20} MiB of memory")
    text = stderr.decode(errors="replace")
    lines = [line for line in text.split("\n") if line]
    if code != 0:
        errors = [line for line in lines if line.startswith("error: ")]
        if len(errors) != 1 or lines[-1] != errors[0] or len(lines) > (2 if quiet_settings else 1):
            found.append(f"{len(lines)} lines on standard error: {lines[:3]!r:.300}")
    if any(len(line.encode()) > MOST_LINE for line in lines):
        found.append("a line of more than 1,000 bytes")
    if any(ord(c) < 32 or ord(c) == 127 or 0x80 <= ord(c) < 0xA0 or c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029" for line in lines for c in line):
        found.append("a control character on standard error")
    return found


def case(djinn, family, seed, keep):
    rng = random.Random(f"{family} {seed}")
    with tempfile.TemporaryDirectory(prefix="djinn-hostile-") as name:
        folder = Path(name) / "model"
        folder.mkdir()
        for file in ("config.json", "generation_config.json", "model.safetensors"):
            shutil.copy(CHECKPOINT / file, folder / file)
        what, commands, given = CASES[family](rng, folder)
        outcomes = []
        for command in commands:
            code, cpu, wall, peak, stderr = run(djinn, command, folder, given)
            found = faults(code, cpu, peak, stderr, family == "settings")
            if found and keep:
                shutil.copytree(folder, Path(keep) / f"{family}-{seed}", symlinks=True, dirs_exist_ok=True, copy_function=lambda a, b, **_: shutil.copy2(a, b, follow_symlinks=False) if os.path.isfile(a) else None)
                (Path(keep) / f"{family}-{seed}" / "stdin").write_bytes(given)
            line = stderr.decode(errors="replace").strip().split("\n")[-1][:200]
            outcomes.append({"family": family, "seed": seed, "what": what, "command": command, "code": code, "cpu_s": cpu, "wall_s": wall, "peak_bytes": peak, "line": line, "faults": found})
    return outcomes


def summary(rows):
    def worst(key):
        return max((row[key] for row in rows), default=0)

    return {
        "cases": len(rows),
        "refused": sum(row["code"] != 0 for row in rows),
        "answered": sum(row["code"] == 0 for row in rows),
        "faults": sum(bool(row["faults"]) for row in rows),
        "most_cpu_s": round(worst("cpu_s"), 3),
        "most_wall_s": round(worst("wall_s"), 3),
        "most_peak_mib": round(worst("peak_bytes") / (1 << 20), 1),
    }


def markdown(result):
    text = (
        f"{result['machine']}, {result['date']}, {result['version']}: `{result['command']}`. Each case is a process; a fault is a signal, a panic, "
        "more than 2 s of processor time or 1 GiB, or a refusal that is not one printable line.\n\n"
    )
    columns = ["cases", "answered", "refused", "faults", "most_cpu_s", "most_peak_mib"]
    head = ["", "cases", "answered", "refused", "faults", "most s of processor time", "most MiB"]
    rows = [[name, *(found[key] for key in columns)] for name, found in result["families"].items()]
    return text + results.table(1, head, rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--djinn", required=True, type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cases", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default=",".join(SHARES))
    parser.add_argument("--keep")
    args = parser.parse_args()
    djinn = args.djinn.resolve()
    families = args.only.split(",")
    total = sum(SHARES[f] for f in families)
    work = [(f, args.seed * 1_000_000 + i) for f in families for i in range(round(args.cases * SHARES[f] / total))]
    start = time.monotonic()
    with ThreadPoolExecutor(args.jobs) as pool:
        rows = [row for found in pool.map(lambda w: case(djinn, *w, args.keep), work) for row in found]
    bad = [row for row in rows if row["faults"]]
    result = {
        "command": "scripts/hostile.py " + " ".join(f"--{k} {v}" for k, v in [("cases", args.cases), ("seed", args.seed)]),
        "date": datetime.date.today().isoformat(),
        "version": subprocess.run([djinn, "--version"], capture_output=True, text=True).stdout.strip(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "limits": {"cpu_s": MOST_SECONDS, "peak_bytes": MOST_BYTES, "lines": 1},
        "seconds": round(time.monotonic() - start),
        "all": summary(rows),
        "families": {f: summary([row for row in rows if row["family"] == f]) for f in families},
        "refusals": dict(collections.Counter(" ".join(row["line"].split()[:7]) for row in rows if row["code"]).most_common(40)),
        "faults": bad,
    }
    for family, row in {"all": result["all"], **result["families"]}.items():
        print(f"{family:10}", *(f"{k} {v}" for k, v in row.items()), sep="  ")
    for row in bad[:40]:
        print(row["family"], row["seed"], row["what"], row["faults"], row["line"], sep=" | ")
    if args.json:
        results.write(args.json, result, markdown(result))
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
