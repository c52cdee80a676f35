#!/usr/bin/env python3
"""Streams to many clients at once from `djinn serve` on the CPU, with clients that leave and that read slowly.

    python3 scripts/load.py --djinn target/release/djinn --json results/load-cpu.json [--clients 200] [--seconds 300]
        [--seed 1]

Starts the server itself, on 127.0.0.1. Each client has a request of its own, seeded and sampled, whose stream is taken
first from a server that serves nobody else. Then all clients ask at once, again and again: of their rounds, 15 % leave
after some bytes and 10 % read slowly through a small window. Each stream that ends must be the one of the request alone.
Afterwards no session, KV page, descriptor, thread or memory may be left. Exits with 1 where one of these does not hold.
"""

import argparse
import asyncio
import json
import random
import socket
import sys
import time
from collections import Counter
from pathlib import Path

import results
from served import Served, quantile

LEAVE, SLOW = 0.15, 0.10
# What memory may grow by: fragments of the allocator.
MOST_GROWTH_KIB = 16 << 10
WRITES = "djinn_http_write_seconds"
MOST_P99_S = 0.005


def request(client):
    """A client's request: every second one is a chat."""
    rng = random.Random(client)
    words = "".join(rng.choice("abcdefghij klmnop") for _ in range(rng.randrange(4, 200)))
    body = {"model": "tiny", "stream": True, "max_tokens": rng.randrange(16, 160), "ignore_eos": True,
            "temperature": 0.8, "seed": client}
    if client % 2:
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": words}]
    else:
        path, body["prompt"] = "/v1/completions", words
    payload = json.dumps(body).encode()
    head = (f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(payload)}\r\n\r\n")
    return head.encode() + payload


def stream_of(answer):
    """The status of an answer and the choices of its stream; `None` for one that did not end well."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/1.1 ") else 0
    if status != 200:
        return status, None
    body = bytearray()
    while rest:
        length, _, rest = rest.partition(b"\r\n")
        length = int(length or b"0", 16)
        body += rest[:length]
        rest = rest[length + 2:]
    events = [event.removeprefix("data: ") for event in body.decode().split("\n\n") if event not in ("", ":")]
    if not events or events[-1] != "[DONE]":
        return status, None
    return status, [json.loads(event)["choices"] for event in events[:-1]]


async def ask(port, payload, kind, rng):
    """Sends a request, and takes its answer in as this kind of client does; `None` if it leaves."""
    sock = socket.socket()
    sock.setblocking(False)
    if kind == "slow":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=2048 if kind == "slow" else 1 << 16)
    try:
        writer.write(payload)
        leaves_after = rng.randrange(0, 6000) if kind == "leaves" else None
        answer = bytearray()
        while data := await reader.read(512 if kind == "slow" else 1 << 16):
            answer += data
            if leaves_after is not None and len(answer) >= leaves_after:
                return None
            if kind == "slow":
                await asyncio.sleep(rng.uniform(0.005, 0.05))
        return bytes(answer)
    finally:
        writer.transport.abort()


async def client(port, number, alone, until, counts, wrong):
    rng, payload = random.Random(f"{number} of the load"), request(number)
    while time.monotonic() < until:
        kind = rng.choices(["leaves", "slow", "reads"], [LEAVE, SLOW, 1 - LEAVE - SLOW])[0]
        try:
            answer = await asyncio.wait_for(ask(port, payload, kind, rng), 120)
        except (OSError, TimeoutError) as error:
            wrong.append(f"client {number}: {type(error).__name__} {error}")
            continue
        if answer is None:
            counts["left"] += 1
            continue
        status, choices = stream_of(answer)
        if status == 429:
            # The places of clients that have just left may not be free yet.
            counts["told to come again"] += 1
            await asyncio.sleep(0.1)
        elif choices == alone[number]:
            counts["slow" if kind == "slow" else "whole"] += 1
            counts["tokens"] += sum(bool(choice) for choice in choices)
        else:
            wrong.append(f"client {number}, {kind}: status {status}, not the stream of the request alone")


async def load(port, clients, alone, seconds, counts, wrong):
    until = time.monotonic() + seconds
    await asyncio.gather(*(client(port, at, alone, until, counts, wrong) for at in range(clients)))


async def alone_streams(port, clients):
    rng = random.Random(0)
    return [stream_of(await ask(port, request(at), "reads", rng))[1] for at in range(clients)]


def markdown(result):
    before, after = result["before"], result["after"]
    rows = [(what, before[what], after[what]) for what in ["descriptors", "threads", "rss_kib"]]
    counts = result["counts"]
    told = (f"{result['clients']} clients, {result['seconds']} s: {counts['whole'] + counts['slow']} streams ended "
            f"({counts['slow']} read slowly), each as the request alone; {counts['left']} clients left; "
            f"{result['tokens_per_s']} tokens/s. {result['faults']} faults. From a token to the write of its event: "
            f"p50 {result['write_p50_ms']} ms at most, p99 {result['write_p99_ms']} ms, mean "
            f"{result['write_mean_ms']} ms.\n\n")
    return told + results.table(1, ("left behind", "before", "after"), rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--djinn", required=True, type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    random.seed(args.seed)
    counts, wrong = Counter(), []
    # Room for a tenth of the clients' contexts: sessions queue, and give their pages up for others.
    flags = ["--ctx=512", "--max-num-seqs=32", "--kv-cache=1310720", "--swap-space=1MiB"]
    with Served(args.djinn, *flags) as server:
        alone = asyncio.run(alone_streams(server.port, args.clients))
        assert all(alone), "a request alone does not end well"
        # What grows with use once: threads, buffers, the allocator's arenas.
        asyncio.run(load(server.port, args.clients, alone, min(20, args.seconds), Counter(), wrong))
        server.rests()
        time.sleep(15)
        before, first = server.held(), server.metrics()
        began = time.monotonic()
        asyncio.run(load(server.port, args.clients, alone, args.seconds, counts, wrong))
        seconds = time.monotonic() - began
        left = server.rests()
        # Threads for blocking work end after 10 s without any.
        time.sleep(15)
        after, last = server.held(), server.metrics()
        faults = wrong + server.complaints()
        result = server.facts()
    if any(left):
        faults.append(f"sessions are left: {left}")
    for what, most in [("descriptors", 0), ("threads", 0), ("rss_kib", MOST_GROWTH_KIB)]:
        if after[what] > before[what] + most:
            faults.append(f"{what} grew from {before[what]} to {after[what]}")
    p50, p99 = (quantile(first, last, WRITES, share) for share in (0.5, 0.99))
    if p99 is None or p99 > MOST_P99_S:
        faults.append(f"99 % of the events reach the socket within {p99} s, not {MOST_P99_S} s")
    written = last[f"{WRITES}_count"] - first[f"{WRITES}_count"]
    spent = last[f"{WRITES}_sum"] - first[f"{WRITES}_sum"]
    result |= {
        "command": f"scripts/load.py --clients {args.clients} --seconds {args.seconds} --seed {args.seed}",
        "server": " ".join(flags), "clients": args.clients, "seconds": args.seconds, "counts": dict(counts),
        "tokens_per_s": round(counts["tokens"] / seconds), "writes": round(written),
        "write_mean_ms": round(1e3 * spent / max(written, 1), 4), "write_p50_ms": p50 and round(p50 * 1e3, 3),
        "write_p99_ms": p99 and round(p99 * 1e3, 3), "before": before, "after": after, "faults": len(faults),
        "fault_lines": faults[:40],
    }
    print(markdown(result))
    print(*faults[:40], sep="\n")
    if args.json:
        results.write(args.json, result, markdown(result))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
