#!/usr/bin/env python3
"""Sends generated hostile requests to `djinn serve`, and holds thousands of idle and slow connections against it.

    python3 scripts/fuzz_server.py --djinn target/release/djinn --json results/fuzz-server.json [--requests 20000]
        [--idle 10000] [--seed 1] [--only types,deep,…] [--keep DIR]

Starts the server itself, on 127.0.0.1. Every request must be answered with 2xx or with 4xx and a reason, or, where it is
no HTTP or ends too early, its connection be closed; nothing may take longer than 40 s. Idle connections and slow senders
must be ended by the server's limits. Meanwhile `/health` answers and a control request gives what it gave at first. No
panic may be in the log, and memory stays bounded. A case that breaks a rule is listed with its seed, which makes it
again; `--keep DIR` keeps its bytes. Idle connections take as many descriptors: `ulimit -n` must allow for them.
"""

import argparse
import asyncio
import collections
import json
import random
import resource
import sys
import time
import urllib.parse
from pathlib import Path

import results
from served import Served

AT_ONCE, MOST_SECONDS = 48, 40
# After this a client closes its side.
WAITS = 3
# The server's limits for heads and bodies are 30 s.
CLOSED_WITHIN = 75
# Resident at any time, and what the last third of the work may add to the highest before it. Two moments are not compared: an
# allocator gives memory back when it likes to.
MOST_PEAK_KIB, MOST_GROWTH_KIB = 1 << 20, 32 << 10
CONTROL = {"model": "tiny", "prompt": "control", "max_tokens": 24, "ignore_eos": True, "temperature": 0.9, "seed": 11,
           "logprobs": 3}
POSTS = {
    "/v1/completions": {"model": "tiny", "prompt": "Hi", "max_tokens": 4},
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
    "/v1/responses": {"model": "tiny", "input": "Hi", "max_output_tokens": 16, "store": False},
    "/v1/messages": {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]},
    "/tokenize": {"model": "tiny", "prompt": "Hi"},
    "/detokenize": {"model": "tiny", "tokens": [72, 105]},
}
GETS = ["/v1/models", "/v1/models/tiny", "/v1/responses/resp_1", "/v1/responses/resp_1/input_items", "/health", "/ready",
        "/version", "/metrics", "/v1/sessions", "/openapi.json", "/"]
FIELDS = [
    "model", "prompt", "messages", "input", "max_tokens", "max_completion_tokens", "max_output_tokens", "temperature",
    "top_p", "top_k", "min_p", "n", "best_of", "stop", "stop_token_ids", "stop_sequences", "stream", "stream_options",
    "seed", "logprobs", "top_logprobs", "logit_bias", "frequency_penalty", "presence_penalty", "repetition_penalty", "user",
    "tools", "tool_choice", "functions", "response_format", "text", "reasoning", "previous_response_id", "store", "metadata",
    "instructions", "system", "thinking", "cache_salt", "priority", "echo", "suffix", "ignore_eos", "tokens",
    "add_special_tokens", "chat_template_kwargs", "documents", "include", "truncation", "parallel_tool_calls",
    "session_id", "prompt_cache_key", "agent_hints", "nvext", "kv_hints", "conversation", "background",
]


def value(rng, depth=0):
    """Any JSON value."""
    plain = [
        None, rng.random() < 0.5, rng.choice([0, 1, -1, 2**31, 2**53, -2**63, 2**64, 10**400]), rng.choice([[], {}]), "",
        rng.choice([0.5, -1.5, 1e308, 1e-320]), rng.choice(["tiny", "x", "auto", "user", "null", "\0", "\ud7ff\uffff𐍈"]),
        "x" * rng.choice([100, 5_000, 70_000]), rng.choice(["json_object", "required", "../../etc"]),
    ]
    kind = rng.randrange(14 if depth < 3 else 9)
    if kind < 9:
        return plain[kind]
    inner = [value(rng, depth + 1) for _ in range(rng.randrange(1, 5))]
    return [
        inner, [rng.randrange(-5, 300) for _ in range(rng.randrange(600))], {rng.choice(FIELDS): part for part in inner},
        [{"role": rng.choice(["user", "assistant", "system", "tool", "developer", "", 5]), "content": inner[0]}],
        [{"type": rng.choice(["text", "function", "image_url", "input_text", "tool_result", 1]),
          rng.choice(["text", "function", "image_url", "content"]): inner[0]}],
    ][kind - 9]


def post(path, body, *headers):
    """A request that asks for its connection to be closed."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "host: localhost", "connection: close", f"content-length: {len(body)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def get(path, *headers, method="GET"):
    head = [f"{method} {path} HTTP/1.1", "host: localhost", "connection: close", *headers]
    return "\r\n".join(head).encode(errors="surrogateescape") + b"\r\n\r\n"


def any_post(rng):
    path = rng.choice(list(POSTS))
    return path, dict(POSTS[path])


def types(rng):
    path, body = any_post(rng)
    for _ in range(rng.randrange(1, 4)):
        body[rng.choice(FIELDS + list(body) * 8)] = value(rng)
    if rng.random() < 0.1:
        body = value(rng)
    return post(path, body)


def deep(rng):
    """JSON that nests, repeats or grows until a parser overflows."""
    path, body = any_post(rng)
    n = rng.choice([100, 127, 128, 129, 1_000, 30_000, 300_000])
    text = rng.choice([
        lambda: "[" * n, lambda: "[" * n + "]" * n, lambda: '{"a":' * n + "1" + "}" * n,
        lambda: json.dumps(body)[:-1] + ',"tools":' + '[{"a":' * n + "1" + "}]" * n + "}",
        lambda: json.dumps(body)[:-1] + ',"x":"' + "\\u0000" * n + '"}',
        lambda: "{" + ",".join(f'"k{i}":{i}' for i in range(min(n, 30_000))) + "}",
        lambda: "{" + ",".join('"model":"tiny"' for _ in range(min(n, 30_000))) + "}",
        lambda: '{"n":' + "9" * n + "}", lambda: '{"seed":1e' + "9" * n + "}", lambda: " " * n + json.dumps(body),
        lambda: json.dumps(body | {"stop": ["x" * 50] * min(n, 1_000)}),
        lambda: json.dumps(body | {"logit_bias": {str(i): 1 for i in range(min(n, 10_000))}}),
        lambda: json.dumps(body | {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema":
                                   nested({"type": "object"}, min(n, 300))}}}),
    ])()
    return post(path, text.encode())


def nested(schema, n):
    for _ in range(n):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def utf8(rng):
    path, body = any_post(rng)
    bad = rng.choice([b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xc0\xaf", b"\x80", b"\0", b"\xef\xbb\xbf"])
    data = json.dumps(body).encode()
    at = rng.randrange(len(data) + 1)
    where = rng.randrange(4)
    if where == 0:
        return post(path, data[:at] + bad + data[at:])
    if where == 1:
        return post(path, data).replace(b"host:", b"x-bad: " + bad + b"\r\nhost:", 1)
    if where == 2:
        return b"GET /v1/" + bad + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    escape = rng.choice(["\\ud800", "\\udc00\\ud800", "\\u0000", "\\uZZZZ", "\\x41", "\\"])
    return post(path, data.replace(b"Hi", escape.encode()))


def headers(rng):
    """Heads that are too large or contradict themselves. What is no HTTP may just be closed."""
    n = rng.choice([1_000, 70_000, 1 << 20])
    path, body = any_post(rng)
    data = json.dumps(body).encode()
    plain = b"POST " + path.encode() + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    return rng.choice([
        lambda: get("/health", "x-a: " + "y" * n), lambda: get("/health", *["a: b"] * (n // 10)),
        lambda: get("/" + "z" * n), lambda: get("/health?" + "q=1&" * (n // 4)), lambda: get("/health", "y" * n + ": 1"),
        lambda: get("/health", "cookie: " + "a=b; " * (n // 5)), lambda: get("/health", "authorization: Bearer " + "k" * n),
        lambda: plain + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello", lambda: plain + b"content-length: -1\r\n\r\n",
        lambda: plain + b"content-length: 99999999999999999999999\r\n\r\n", lambda: plain + b"content-length: 0x10\r\n\r\n" + data,
        lambda: plain + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        lambda: plain + b"transfer-encoding: gzip\r\n\r\n" + data, lambda: plain + b"expect: 200-ok\r\ncontent-length: 2\r\n\r\n{}",
        lambda: post(path, data, "content-encoding: gzip"), lambda: post(path, data, "content-type: " + "x" * 5_000),
        lambda: post(path, data, f"x-request-id: {'i' * n}"), lambda: post(path, data, "x-session-id: ../../" + "s" * 3_000),
        lambda: get("/health", "host: evil.example"), lambda: get("/health").replace(b"localhost", b"evil.example"),
        lambda: get("/health").replace(b"host: localhost\r\n", b""), lambda: get("/v1/models", "origin: http://evil.example"),
        lambda: get("/health").replace(b"HTTP/1.1", b"HTTP/9.9"), lambda: get("/health").replace(b"\r\n", b"\n"),
        lambda: get("/health").replace(b" HTTP/1.1", b""), lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", lambda: bytes(rng.randrange(256) for _ in range(500)) + b"\r\n\r\n",
        lambda: get("http://evil.example/health"), lambda: get("*", method="OPTIONS"), lambda: get("localhost:1", method="CONNECT"),
        lambda: get("/health", "upgrade: websocket", "connection: upgrade"), lambda: get("/health", " folded: x"),
    ])()


def chunked(rng):
    """Bodies in chunks that are wrong, late or cut."""
    path, body = any_post(rng)
    data = json.dumps(body).encode()
    head = (f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n").encode()
    cut = rng.randrange(1, len(data))
    whole = b"%x\r\n%s\r\n%x\r\n%s\r\n" % (cut, data[:cut], len(data) - cut, data[cut:])
    return head + rng.choice([
        whole + b"0\r\n\r\n", whole, whole + b"0\r\n", b"zz\r\n", b"-1\r\n\r\n", b"ffffffffffffffffff\r\n", b"7fffffffffffffff\r\nx",
        b"5\r\nhell", b"5\r\nhelloworld\r\n0\r\n\r\n", b"5;" + b"e" * 70_000 + b"\r\nhello\r\n0\r\n\r\n",
        whole + b"0\r\nx-trailer: 1\r\n\r\n", whole + b"0\r\n" + b"t: 1\r\n" * 20_000 + b"\r\n", b"1\r\n \r\n" * 20_000 + b"0\r\n\r\n",
        b"\r\n\r\n", b"", b"00000000000000000005\r\nhello\r\n0\r\n\r\n", (b"10000\r\n" + b" " * 65_536 + b"\r\n") * 140 + b"0\r\n\r\n",
    ])


def context(rng):
    """Prompts at the context's end and beyond."""
    n = rng.choice([480, 511, 512, 513, 600, 5_000, 100_000, 1_000_000])
    path = rng.choice(["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/tokenize", "/v1/messages/count_tokens"])
    body = dict(POSTS[path])
    if "prompt" in body:
        body["prompt"] = rng.choice(["x" * n, [rng.randrange(128)] * min(n, 100_000), "é" * n])
    elif "input" in body:
        body["input"] = "x" * n
    else:
        body["messages"] = rng.choice([[{"role": "user", "content": "x" * n}],
                                       [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}] * min(n, 4_000)])
    if rng.random() < 0.5 and "max_tokens" in body:
        body["max_tokens"] = rng.choice([1, 512, 513, 10**9])
    return post(path, body)


def ids(rng):
    """Names and ids that mean other things elsewhere."""
    name = rng.choice(["../../../etc/passwd", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "%00", "%ff%fe", "%", "%zz", "a" * 20_000, "%0d%0aset-cookie:x",
                       "resp_%f0%9f%92%a9", "'%20or%201=1--", "$%7bjndi:x%7d", "%1b%5b31m", "..", ".", "", "tiny%20", "con", "-1", "null"])
    route = rng.choice(["/v1/models/{}", "/v1/responses/{}", "/v1/responses/{}/input_items", "/v1/responses/{}/cancel", "/{}",
                        "/v1/sessions/{}", "/v1/responses/{}/input_items?limit={}", "/v1/responses/{}?stream={}"])
    method = rng.choice(["GET", "GET", "DELETE", "POST", "PUT", "PATCH", "HEAD", "OPTIONS", "TRACE", "BREW"])
    return get(route.format(name, name), "content-length: 0", method=method)


def half_closed(rng):
    """Clients that send a part, or all, and close their side."""
    whole = rng.choice([types, context, chunked, lambda rng: get(rng.choice(GETS))])(rng)
    return whole[:rng.randrange(1, len(whole) + 1)]


def pipelined(rng):
    """Several requests at once; the last one may be anything."""
    first = b"".join(get(rng.choice(["/health", "/version", "/v1/models"])).replace(b"connection: close\r\n", b"") for _ in range(rng.randrange(1, 30)))
    return first + rng.choice([types, headers, chunked, utf8])(rng)


def flipped(rng):
    """A good request with some bytes changed, taken away or put in."""
    path, body = any_post(rng)
    data = bytearray(rng.choice([post(path, body), post(path, body | {"stream": True}), get(rng.choice(GETS))]))
    for _ in range(rng.choice([1, 1, 2, 5, 30])):
        at = rng.randrange(len(data))
        choice = rng.randrange(3)
        if choice == 0:
            data[at] = rng.randrange(256)
        elif choice == 1 and len(data) > 1:
            del data[at]
        else:
            data.insert(at, rng.randrange(256))
    return bytes(data)


KINDS = {"types": types, "deep": deep, "utf8": utf8, "headers": headers, "chunked": chunked, "context": context, "ids": ids,
         "half closed": half_closed, "pipelined": pipelined, "flipped": flipped}
SHARES = {"types": 0.3, "deep": 0.06, "utf8": 0.1, "headers": 0.1, "chunked": 0.1, "context": 0.04, "ids": 0.1,
          "half closed": 0.08, "pipelined": 0.04, "flipped": 0.08}
# What may be closed without a word: it is no HTTP, or does not come to its end.
MAY_CLOSE = {"headers", "chunked", "half closed", "pipelined", "flipped", "utf8"}


async def exchange(port, data, kind):
    """Sends bytes, and closes this side at once or, where the server may wait for more, soon; the whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        writer.write(data)
        answer = asyncio.ensure_future(reader.read(-1))
        if kind != "half closed":
            await asyncio.wait([answer], timeout=WAITS if kind in MAY_CLOSE else None)
        if not answer.done():
            await writer.drain()
            writer.write_eof()
        return await answer
    except OSError:
        # It was answered and closed before all was sent; some of the answer may have come.
        return bytes(reader._buffer)
    finally:
        answer.cancel()
        writer.transport.abort()


def judge(kind, answer):
    """The statuses of an answer, and what is wrong with it."""
    if not answer:
        return ["closed"], [] if kind in MAY_CLOSE else ["closed without an answer"]
    statuses, wrong = [], []
    for part in answer.split(b"HTTP/1.1 ")[1:]:
        status = part[:3].decode(errors="replace")
        statuses.append(status)
        if status[0] not in "24":
            wrong.append(f"status {status}")
        # The HTTP library's own refusals have no body; ours have a reason.
        _, _, body = part.partition(b"\r\n\r\n")
        if status[0] == "4" and body and b'"message"' not in body:
            wrong.append(f"status {status} without a reason")
    return statuses or ["none"], wrong + ([] if statuses else ["no HTTP"])


async def fuzz(server, cases, report, keep):
    queue = asyncio.Queue()
    for case in cases:
        queue.put_nowait(case)

    async def sender():
        while not queue.empty():
            kind, seed = queue.get_nowait()
            data = KINDS[kind](random.Random(f"{kind} {seed}"))
            try:
                answer = await asyncio.wait_for(exchange(server.port, data, kind), MOST_SECONDS)
                statuses, wrong = judge(kind, answer)
            except (OSError, TimeoutError, ValueError) as error:
                statuses, wrong, answer = ["none"], [f"{type(error).__name__} {error}"], b""
            report["kinds"].setdefault(kind, collections.Counter()).update(statuses)
            report["requests"] += 1
            if wrong:
                report["faults"].append({"kind": kind, "seed": seed, "what": wrong, "answer": answer[:300].decode(errors="replace")})
                if keep:
                    Path(keep).mkdir(exist_ok=True)
                    (Path(keep) / f"{kind.replace(' ', '-')}-{seed}").write_bytes(data)

    await asyncio.gather(*(sender() for _ in range(AT_ONCE)))


async def control(server, first, report, quiet):
    """Sees that the server answers, until it is cancelled."""
    while True:
        for method, path, body in [("GET", "/health", None), ("POST", "/v1/completions", CONTROL)]:
            try:
                async with quiet:
                    status, answer = await asyncio.to_thread(server.ask, method, path, body)
                good = status == 200 and (body is None or json.loads(answer)["choices"] == first)
            except (OSError, ValueError) as error:
                good, answer = False, f"{type(error).__name__} {error}"
            report["controls"] += 1
            if not good:
                report["faults"].append({"kind": "control", "what": [path], "answer": answer[:300]})
        await asyncio.sleep(0.2)


async def hold(server, number, report, gate):
    """A connection that sends nothing, too little or too slowly; the server ends it."""
    kind = ["idle", "half a head", "slow head", "slow body", "kept alive"][0 if number % 10 else number // 10 % 5]
    async with gate:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=4096)
        except OSError as error:
            report["faults"].append({"kind": kind, "what": [f"{type(error).__name__} {error}"], "answer": ""})
            return
    report["open"] += 1
    report["most_open"] = max(report["most_open"], report["open"])
    began = time.monotonic()
    try:
        if kind in ("half a head", "slow head"):
            writer.write(b"GET /health HTTP/1.1\r\nhost: local")
        if kind == "slow body":
            writer.write(b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5000\r\n\r\n{")
        if kind == "kept alive":
            writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        read = asyncio.ensure_future(reader.read(-1))
        while not read.done() and time.monotonic() < began + CLOSED_WITHIN:
            await asyncio.wait([read], timeout=2)
            if kind.startswith("slow") and not read.done():
                writer.write(b"x")
        if not read.done():
            read.cancel()
            report["faults"].append({"kind": kind, "what": [f"open after {CLOSED_WITHIN} s"], "answer": ""})
            return
        answer = read.result()
        good = not answer or answer.startswith((b"HTTP/1.1 408", b"HTTP/1.1 200") if kind != "idle" else b"HTTP/1.1 408")
        if not good:
            report["faults"].append({"kind": kind, "what": ["another answer"], "answer": answer[:200].decode(errors="replace")})
        report["held"].update([f"{kind}: {'closed' if not answer else answer[9:12].decode()}"])
    except ConnectionError:
        report["held"].update([f"{kind}: closed"])
    finally:
        report["open"] -= 1
        writer.transport.abort()


async def run(server, args, first, report):
    """Three rounds of a third of the requests and all idle connections each; what the process holds after each."""
    rng = random.Random(args.seed)
    kinds = args.only.split(",")
    weights = [SHARES[kind] for kind in kinds]
    cases = [(kind, args.seed * 1_000_000 + at) for at, kind in enumerate(rng.choices(kinds, weights, k=args.requests))]
    quiet = asyncio.Lock()
    controls = asyncio.ensure_future(control(server, first, report, quiet))
    held = []
    third = -(-len(cases) // 3)
    for part in (cases[at : at + third] for at in range(0, len(cases), third)):
        began = time.monotonic()
        await fuzz(server, part, report, args.keep)
        report["seconds"] += round(time.monotonic() - began)
        gate = asyncio.Semaphore(64)
        holds = [asyncio.ensure_future(hold(server, number, report, gate)) for number in range(args.idle)]
        while not all(hold.done() for hold in holds):
            report["idle_rss_kib"] = max(report["idle_rss_kib"], server.held()["rss_kib"])
            await asyncio.sleep(1)
        await asyncio.gather(*holds)
        # Threads for blocking work end after 10 s without any.
        await asyncio.sleep(15)
        async with quiet:
            held.append(server.held())
    controls.cancel()
    return held


def markdown(result):
    rows = []
    for kind, counts in result["kinds"].items():
        share = {name: sum(n for status, n in counts.items() if status[0] == name[0]) for name in ["2xx", "4xx", "closed"]}
        rows.append((kind, sum(counts.values()), *share.values()))
    told = (f"{result['requests']} requests in {result['seconds']} s, and {result['most_open']} connections at once that send "
            f"nothing or too slowly: {len(result['faults'])} faults. {result['controls']} control requests meanwhile, all as at "
            f"first. Resident memory: {result['before']['peak_rss_kib'] >> 10} MiB at most in the first two thirds of both, "
            f"{result['after']['peak_rss_kib'] >> 10} MiB in all, {result['after']['rss_kib'] >> 10} MiB afterwards.\n\n")
    return told + results.table(1, ("kind", "answers", "2xx", "4xx", "closed"), rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--djinn", required=True, type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--keep")
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < args.idle + 500:
        sys.exit(f"{args.idle} connections need more descriptors than `ulimit -Hn` allows: {hard}")
    report = {"requests": 0, "controls": 0, "seconds": 0, "open": 0, "most_open": 0, "idle_rss_kib": 0, "kinds": {},
              "held": collections.Counter(), "faults": []}
    flags = ["--ctx=512", "--max-num-seqs=8", f"--max-connections={args.idle + 300}"]
    with Served(args.djinn, *flags) as server:
        status, answer = server.ask("POST", "/v1/completions", CONTROL)
        assert status == 200, answer
        _, before, after = asyncio.run(run(server, args, json.loads(answer)["choices"], report))
        # Sessions that requests named keep their pages until they are deleted.
        _, answer = server.ask("GET", "/v1/sessions")
        for session in json.loads(answer)["data"]:
            server.ask("DELETE", f"/v1/sessions/{urllib.parse.quote(session['id'], safe='')}")
        left = server.rests()
        ready, _ = server.ask("GET", "/ready")
        result = server.facts()
        faults = report["faults"]
        faults += [{"kind": "log", "what": [line], "answer": ""} for line in server.complaints()]
    if any(left) or ready != 200:
        faults.append({"kind": "end", "what": [f"sessions left {left}, ready {ready}"], "answer": ""})
    if after["peak_rss_kib"] > MOST_PEAK_KIB or after["peak_rss_kib"] > before["peak_rss_kib"] + MOST_GROWTH_KIB:
        faults.append({"kind": "memory", "what": [f"{before} {after}"], "answer": ""})
    if after["descriptors"] > before["descriptors"]:
        faults.append({"kind": "descriptors", "what": [f"{before} {after}"], "answer": ""})
    del report["open"]
    result |= {"command": f"scripts/fuzz_server.py --requests {args.requests} --idle {args.idle} --seed {args.seed}",
               "server": " ".join(flags)} | report | {"before": before, "after": after}
    print(markdown(result))
    print(*(f"{count:7} {what}" for what, count in sorted(report["held"].items())), sep="\n")
    print(*map(json.dumps, faults[:40]), sep="\n")
    if args.json:
        results.write(args.json, result, markdown(result))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
