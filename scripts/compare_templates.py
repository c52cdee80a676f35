#!/usr/bin/env python3
"""Renders chat templates with transformers and with djinn-template, and counts where they differ.

    pip install transformers jinja2
    python scripts/compare_templates.py TEMPLATES [--out results/chat-templates.json] [--show N]

TEMPLATES is a folder of published templates (*.jinja). They are other people's: they stay out of this repository.
For each one the result counts the renderings of all conversations, with and without the generation prompt:

  equal       the same text
  both_raise  both refuse
  we_raise    transformers renders, Djinn refuses
  they_raise  transformers refuses, Djinn renders
  differ      two texts
"""
import argparse
import collections
import contextlib
import io
import json
import pathlib
import subprocess

import jinja2
import results
import transformers
from make_chats import CALL, CALL_TEXT, CONVERSATIONS, NOW, PARTS, SPECIAL, SYSTEM, TIME, WEATHER, FixedTime, chat, datetime, msg, render

ROOT = pathlib.Path(__file__).resolve().parent.parent
THINK = "<think>\nLet me see.\n</think>\n\nIt is 4."
MORE = {
    "floats": {"messages": [msg("user", "x"), msg("assistant", None, tool_calls=[{"type": "function", "id": "abcdefghi", "function": {
        "name": "f", "arguments": {"a": 1e-07, "b": 1e16, "c": 0.1, "d": -0.0, "e": 3.0, "f": 12345678901234567890, "g": [1.5, {"h": None}]}}}]),
        msg("tool", {"x": 1e-07, "y": "\u2028"}, name="f", tool_call_id="abcdefghi")], "tools": [WEATHER]},
    "separators": {"messages": [msg("user", "a\u2028b\u2029c\x85d\x0be"), msg("assistant", "\u200b\u00ad\ufeff\ue000")], "tools": [TIME]},
    "html": {"messages": [SYSTEM, msg("user", "<b>\"x\" & 'y'</b>"), msg("assistant", "<&>", tool_calls=[CALL])], "tools": [WEATHER]},
    "thinking again": {"messages": [msg("user", "2+2"), msg("assistant", THINK, tool_calls=[CALL]), msg("tool", "4", tool_call_id="call00001"), msg("assistant", THINK), msg("user", "go on")], "tools": [TIME], "enable_thinking": True},
    "reasoning": {"messages": [SYSTEM, msg("user", "2+2"), msg("assistant", "4", reasoning_content="so"), msg("user", "3+3"), msg("assistant", "", thinking="hm", tool_calls=[CALL_TEXT])]},
    "no thinking": {"messages": [msg("user", "hi")], "enable_thinking": False, "reasoning_effort": "high", "model_identity": "You are X."},
    "thinking on": {"messages": [SYSTEM, msg("user", "hi")], "enable_thinking": True, "thinking": True, "reasoning_effort": "low"},
    "developer": {"messages": [msg("developer", "Do."), msg("user", "hi"), msg("assistant", "yes")]},
    "tool role alone": {"messages": [msg("tool", "x", tool_call_id="1")]},
    "tool parts": {"messages": [msg("user", PARTS), msg("assistant", "", tool_calls=[CALL]), msg("tool", [{"type": "text", "text": "3"}], name="get_weather", tool_call_id="call00001")], "tools": [WEATHER]},
    "system parts": {"messages": [msg("system", [{"type": "text", "text": "Be kind."}]), msg("user", [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "x"}}, {"type": "video"}, {"type": "audio"}])]},
    "documents and tools": {"messages": [SYSTEM, msg("user", "Sum up")], "tools": [WEATHER], "documents": [{"doc_id": 1, "title": "Ä", "text": "one\ntwo", "contents": "x"}], "citation_mode": "fast"},
    "markers": {"messages": [msg("user", "<|im_end|>\n<|im_start|>system\n[INST] </s> <tool_call> </think> x"), msg("assistant", "<|eot_id|>")]},
    "builtin tools": {"messages": [msg("user", "x")], "tools": [WEATHER], "builtin_tools": ["code_interpreter", "brave_search"], "tools_in_user_message": False, "date_string": "01 Jan 2030"},
    "numbers as content": {"messages": [msg("user", 3), msg("assistant", 1.5)]},
    "no role": {"messages": [{"content": "x"}]},
    "plain function tools": {"messages": [msg("user", "x")], "tools": [{"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": ["string", "null"]}}}}]},
    "three calls": {"messages": [msg("user", "x"), {"role": "assistant", "content": None, "tool_calls": [CALL, CALL_TEXT, CALL]}, msg("tool", "1", tool_call_id="call00001"), msg("tool", "2", tool_call_id="call00002"), msg("tool", "3", tool_call_id="call00001"), msg("user", "and?")], "tools": [WEATHER, TIME]},
    "assistant last": {"messages": [SYSTEM, msg("user", "x"), msg("assistant", "  half an ans")]},
    "white space": {"messages": [msg("system", " \n "), msg("user", "\t\n x \u00a0"), msg("assistant", "\n\n y \n")]},
}


def ours(requests):
    build = ["cargo", "build", "-q", "--locked", "-p", "djinn-template", "--example", "render"]
    subprocess.run(build, cwd=ROOT, check=True)
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    run = subprocess.run([ROOT / "target/debug/examples/render"], input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in run.stdout.split("\n") if line]


def markdown(result):
    text = (f"{result['templates']} published templates and {result['conversations']} conversations, with and without the beginning "
            f"of an answer, beside transformers {result['transformers']} and Jinja2 {result['jinja2']}.\n\n")
    outcomes = ["equal", "both_raise", "we_raise", "they_raise", "differ"]
    head = ["renderings", "equal", "both raise", "only Djinn raises", "only Python raises", "differ"]
    return text + results.table(0, head, [[result["renderings"], *(result["total"].get(kind, 0) for kind in outcomes)]])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("templates", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--show", type=int, default=0, help="differences to print")
    args = parser.parse_args()
    chat.datetime = FixedTime
    conversations = CONVERSATIONS | MORE
    now = int(NOW.replace(tzinfo=datetime.timezone.utc).timestamp())
    requests, wanted, keys = [], [], []
    for path in sorted(args.templates.rglob("*.jinja")):
        source = path.read_bytes().decode()
        for name, given in conversations.items():
            messages = chat._alias_reasoning_fields(given["messages"])
            for prompt in (False, True):
                with contextlib.redirect_stdout(io.StringIO()) as said:
                    wanted.append(render(source, given, prompt))
                variables = {"tools": None, "documents": None, **given, "messages": messages, "add_generation_prompt": prompt}
                requests.append({"template": source, "variables": json.dumps(variables), "tokens": SPECIAL, "now": now})
                keys.append((path.stem, name, prompt, said.getvalue().strip()))
    counts = collections.defaultdict(collections.Counter)
    for (template, name, prompt, said), theirs, found in zip(keys, wanted, ours(requests), strict=True):
        text = found.get("text")
        kind = ("both_raise" if theirs is None and text is None else "they_raise" if theirs is None
                else "we_raise" if text is None else "equal" if text == theirs else "differ")
        counts[template][kind] += 1
        if kind not in ("equal", "both_raise") and args.show > 0:
            args.show -= 1
            print(f"--- {kind}: {template}, {name}, {prompt}: {found.get('error', '')} {said}")
            if kind == "differ":
                at = next(i for i, (a, b) in enumerate(zip(text + "\0", theirs + "\1")) if a != b)
                print(f"  found  {text[max(0, at - 40):at + 60]!r}\n  wanted {theirs[max(0, at - 40):at + 60]!r}")
    total = sum(counts.values(), collections.Counter())
    print(dict(total))
    if args.out:
        result = {
            "transformers": transformers.__version__, "jinja2": jinja2.__version__,
            "templates": len(counts), "conversations": len(conversations), "renderings": total.total(),
            "total": dict(sorted(total.items())),
            "by_template": {name: dict(sorted(found.items())) for name, found in sorted(counts.items())},
        }
        results.write(args.out, result, markdown(result))


if __name__ == "__main__":
    main()
