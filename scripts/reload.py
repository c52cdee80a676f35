#!/usr/bin/env python3
"""Unloads and loads the model of `djinn serve` again under load, in the process and by beginning anew.

    python3 scripts/reload.py --djinn target/release/djinn --json OUT.json [--model synthetic:llama-3.1-8b?distinct=8]
        [--device cuda] [--vram 40GiB] [--clients 32] [--prompt 256] [--tokens 128] [--rounds renew,reload,renew,reload]

Each client has a greedy prompt of its own, whose stream with log-probabilities is taken first while nobody else asks. Then
all clients ask again and again, and the server is told to `renew` (SIGUSR2: the program runs itself again at its socket) or
to `reload` (SIGUSR1: a new device and the weights from the files again, in the same process) while streams are under way.
Every request must end as its whole stream, or be told to come again before it has begun: by a 503 with Retry-After, or by a
connection that closes without a byte. `/ready` must be false in between and true again, and each client must have its stream
after that. At the end each prompt alone gives its stream once more, and device memory (by nvidia-smi), descriptors and
threads are as before. Exits with 1 where one of these does not hold. Needs Python 3.9 and nothing else; Linux.
"""

import argparse
import asyncio
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import results
from load import stream_of
from served import CHECKPOINT, Served

SIGNALS = {"renew": signal.SIGUSR2, "reload": signal.SIGUSR1}
# What the log says of each: that it was asked for.
ASKED = {"renew": "beginning anew", "reload": "loading again"}
# What device memory may differ by: the driver's own, which is not given back at once.
MOST_MEMORY_MIB = 256
# Descriptors and threads that the driver of a card may keep: a context has dozens.
MOST_OF_DRIVER = 16
# What memory on the CPU may grow by: fragments of the allocator.
MOST_GROWTH_KIB = 64 << 10


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--djinn", required=True, type=Path)
    parser.add_argument("--model", help="a tiny checkpoint, if not given")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--vram", help="as for djinn serve")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=120, help="prompts have ids below this")
    parser.add_argument("--rounds", default="renew,reload,renew,reload")
    parser.add_argument("--patience", type=float, default=300, help="seconds for the model to be there again")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.rounds = args.rounds.split(",")
    if not all(how in SIGNALS for how in args.rounds):
        parser.error("--rounds has renew and reload, with commas")
    return args


def request(number, args):
    dice = random.Random(number)
    prompt = [dice.randrange(5, args.vocabulary) for _ in range(args.prompt)]
    body = {"prompt": prompt, "max_tokens": args.tokens, "temperature": 0, "ignore_eos": True, "stream": True, "logprobs": 1}
    payload = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(payload)}\r\n\r\n".encode() + payload


async def ask(port, payload, begun=None):
    """The answer's bytes; `begun` is called once some have come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(payload)
        answer = await reader.read(1 << 16)
        if begun and answer:
            begun()
        return answer + await reader.read(-1)
    finally:
        writer.close()


class Clients:
    """Streaming clients that ask until they are told to stop."""

    def __init__(self, port, alone, args):
        self.port, self.alone = port, alone
        self.requests = [request(number, args) for number in range(args.clients)]
        self.counts, self.faults = Counter(), []
        # Streams that each client has had, and clients whose stream is under way.
        self.whole, self.streaming = [0] * args.clients, set()
        self.stopped = False

    async def run(self):
        await asyncio.gather(*(self.client(number) for number in range(len(self.requests))))

    async def client(self, number):
        while not self.stopped:
            try:
                answer = await ask(self.port, self.requests[number], lambda: self.streaming.add(number))
            except ConnectionError as error:
                answer = b""
                if number in self.streaming:
                    self.faults.append(f"client {number}: a stream broke off: {error}")
            self.streaming.discard(number)
            self.take(number, answer)
            if not answer or answer.startswith(b"HTTP/1.1 503"):
                await asyncio.sleep(0.05)

    def take(self, number, answer):
        if not answer:
            self.counts["closed before they began"] += 1
            return
        status, choices = stream_of(answer)
        if status == 503 and b"retry-after:" in answer.lower():
            self.counts["told to come again"] += 1
        elif choices is not None and choices == self.alone[number]:
            self.counts["whole"] += 1
            self.whole[number] += 1
        else:
            kind = "another stream than alone" if choices else answer[-300:].decode(errors="replace")
            self.faults.append(f"client {number}: status {status}: {kind}")

    async def each_has_another(self, seconds):
        """Waits until each client has had a whole stream from now on; whether that came."""
        before, until = list(self.whole), time.monotonic() + seconds
        while time.monotonic() < until:
            if all(now > then for now, then in zip(self.whole, before)):
                return True
            await asyncio.sleep(0.01)
        return False


async def is_ready(connection):
    """What `/ready` says on a connection; `None` if that closes first."""
    reader, writer = connection
    try:
        writer.write(b"GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        answer = await reader.read(-1)
        return answer.startswith(b"HTTP/1.1 200") if answer else None
    except ConnectionError:
        return None
    finally:
        writer.close()


async def connected(port):
    return await asyncio.open_connection("127.0.0.1", port)


async def one_round(how, server, clients, args):
    """Unloads and loads once: what was seen, and what was wrong."""
    faults = []
    if not await clients.each_has_another(args.patience) or not clients.streaming:
        faults.append("no stream was under way")
    # A server that begins anew accepts nothing meanwhile: what was connected before hears that it is not ready. Connections
    # are accepted in order, so these are once a later one is answered.
    early = [await connected(server.port) for _ in range(40)] if how == "renew" else []
    if not await is_ready(await connected(server.port)):
        faults.append("the server was not ready before")
    said = server.log.read_text(errors="replace").count(ASKED[how])
    streaming, counts = len(clients.streaming), clients.counts.copy()
    began = time.monotonic()
    server.process.send_signal(SIGNALS[how])
    while server.log.read_text(errors="replace").count(ASKED[how]) == said and time.monotonic() < began + 30:
        await asyncio.sleep(0.001)
    not_ready = None
    while not_ready is None and time.monotonic() < began + 30 and (early or how == "reload"):
        connection = early.pop() if how == "renew" else await connected(server.port)
        if await is_ready(connection) is False:
            not_ready = time.monotonic() - began
        await asyncio.sleep(0.005)
    for _, writer in early:
        writer.close()
    if not_ready is None:
        faults.append(f"{how}: `/ready` was never false")
    ready, end = None, time.monotonic() + args.patience
    while ready is None and time.monotonic() < end and server.process.poll() is None:
        if await is_ready(await connected(server.port)):
            ready = time.monotonic() - began
        await asyncio.sleep(0.005)
    if ready is None:
        faults.append(f"{how}: the model did not come back")
    elif not await clients.each_has_another(args.patience):
        faults.append(f"{how}: not every client had its stream afterwards")
    since = clients.counts - counts
    return {"how": how, "streams_under_way": streaming, "not_ready_after_s": not_ready, "ready_after_s": ready,
            "requests": dict(since)}, faults


def device_memory(args):
    """MiB of the card that are in use; `None` where there is none."""
    if args.device == "cpu" or not shutil.which("nvidia-smi"):
        return None
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, check=True, capture_output=True, text=True).stdout.split()[0])


async def alone_streams(port, args):
    return [stream_of(await ask(port, request(number, args)))[1] for number in range(args.clients)]


async def drive(server, args):
    alone = await alone_streams(server.port, args)
    if not all(alone):
        raise SystemExit("a request alone does not end well")
    clients = Clients(server.port, alone, args)
    load = asyncio.create_task(clients.run())
    # What grows with use once.
    await clients.each_has_another(args.patience)
    rounds, faults = [], []
    memory = [device_memory(args)]
    for how in args.rounds:
        seen, wrong = await one_round(how, server, clients, args)
        print(json.dumps(seen), flush=True)
        memory.append(device_memory(args))
        rounds.append(seen)
        faults += wrong
        if server.process.poll() is not None:
            raise SystemExit(f"the server ended: {server.log.read_text(errors='replace')[-2000:]}")
    clients.stopped = True
    await load
    faults += clients.faults
    again = await alone_streams(server.port, args)
    faults += [f"prompt {number} has another stream now" for number in range(args.clients) if again[number] != alone[number]]
    return rounds, faults, clients.counts, memory


def compare(before, after, memory, args):
    """What is held in excess of before."""
    most = 0 if args.device == "cpu" else MOST_OF_DRIVER
    grew = [what for what in ("descriptors", "threads") if after[what] > before[what] + most]
    faults = [f"{what} grew from {before[what]} to {after[what]}" for what in grew]
    if after["rss_kib"] > before["rss_kib"] + MOST_GROWTH_KIB:
        faults.append(f"resident memory grew from {before['rss_kib']} to {after['rss_kib']} KiB")
    if memory[0] is not None and max(memory) > memory[0] + MOST_MEMORY_MIB:
        faults.append(f"device memory grew: {memory} MiB")
    return faults


def markdown(result):
    shown = lambda seconds: "never" if seconds is None else f"{seconds:.3f}"
    rows = [
        (at["how"], at["streams_under_way"], shown(at["not_ready_after_s"]), shown(at["ready_after_s"]),
         *(at["requests"].get(what, 0) for what in ["whole", "told to come again", "closed before they began"]))
        for at in result["rounds"]
    ]
    told = f"{result['machine']}, {result['date']}, {result['version']}: `{result['command']}`\n\n"
    told += f"{result['clients']} clients, {result['streams']} streams, each as the request alone; "
    told += f"{len(result['fault_lines'])} faults. "
    if result["device_memory_mib"][0] is not None:
        told += "Device memory before and after each, MiB: " + ", ".join(map(str, result["device_memory_mib"])) + "."
    told += "\n\n"
    head = ("", "streams under way", "not ready after s", "ready after s", "whole streams", "503", "closed before")
    return told + results.table(1, head, rows)


def main():
    args = arguments()
    context = args.prompt + args.tokens
    flags = [f"--ctx={context}", f"--max-num-seqs={args.clients}", *([f"--vram={args.vram}"] if args.vram else [])]
    free = device_memory(args)
    with Served(args.djinn, *flags, model=args.model or CHECKPOINT, device=args.device, patience=args.patience) as server:
        asyncio.run(alone_streams(server.port, args))
        # Threads for blocking work end after 10 s without any.
        time.sleep(12)
        before = server.held()
        rounds, faults, counts, memory = asyncio.run(drive(server, args))
        time.sleep(12)
        faults += compare(before, server.held(), memory, args) + server.complaints()
        result = server.facts() | {"before": before, "after": server.held()}
    left = device_memory(args)
    if free is not None and left > free + MOST_MEMORY_MIB:
        faults.append(f"{left} MiB of the card are in use after the server, and {free} MiB before")
    given = ["model", "device", "vram", "clients", "prompt", "tokens", "rounds"]
    words = {name: ",".join(value) if isinstance(value, list) else value for name, value in vars(args).items()}
    result |= {
        "command": "scripts/reload.py " + " ".join(f"--{name} {words[name]}" for name in given if words[name] is not None),
        "server": " ".join(flags), "clients": args.clients, "rounds": rounds, "streams": counts["whole"],
        "counts": dict(counts), "device_memory_mib": memory, "card_without_server_mib": [free, left], "fault_lines": faults[:40],
    }
    print(markdown(result))
    print(*faults[:40], sep="\n")
    if args.json:
        results.write(args.json, result, markdown(result))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
