#!/usr/bin/env python3
"""What `djinn serve` costs its threads for each token of streaming clients: system calls, sleeps, processor time.

    python3 scripts/http_costs.py [--bin FOLDER] [--model synthetic:tiny] [--device cpu] [--clients 64] [--seconds 5]

System calls of the engine's thread come from strace, in a run of its own, since it slows what it watches; sleeps (voluntary
switches) and processor time from /proc. On Linux; needs Python 3.9, and strace for the calls.
"""

import argparse
import asyncio
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import types

import http_throughput
from exp1_http import Server, serve


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("target/release"), help="folder of the binary")
    parser.add_argument("--model", default="synthetic:tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=200, help="prompts have ids below this")
    parser.add_argument("--seconds", type=float, default=5)
    return parser.parse_args()


def threads(process):
    """Of each thread: its name, voluntary switches, and nanoseconds on a processor."""
    found = {}
    for task in pathlib.Path(f"/proc/{process.pid}/task").iterdir():
        switches = re.search(r"\nvoluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text())
        busy = (task / "schedstat").read_text().split()[0]
        found[int(task.name)] = ((task / "comm").read_text().strip(), int(switches[1]), int(busy))
    return found


async def load(process, port, args, calls):
    """Tokens of a span under load, and what it cost the threads; system calls of the engine's thread go to `calls`."""
    run = types.SimpleNamespace(**vars(args))
    clients = [asyncio.create_task(http_throughput.client(port, number, run, [])) for number in range(args.clients)]
    await asyncio.sleep(2)
    server = Server(port)
    tracer = None
    if calls:
        engine = next(thread for thread, (name, *_) in threads(process).items() if name == "djinn-engine")
        tracer = subprocess.Popen(["strace", "-c", "-o", calls, "-p", str(engine)], stderr=subprocess.DEVNULL)
        await asyncio.sleep(1)
    before, tokens = threads(process), await server.generated()
    await asyncio.sleep(args.seconds)
    after, tokens = threads(process), await server.generated() - tokens
    if tracer:
        tracer.terminate()
        tracer.wait()
    for task in clients:
        task.cancel()
    costs = {}
    for thread, (name, switches, busy) in after.items():
        _, switches_before, busy_before = before.get(thread, (name, 0, 0))
        cost = costs.setdefault(name, [0, 0])
        cost[0] += switches - switches_before
        cost[1] += busy - busy_before
    return tokens, costs


def measure(args, calls=None):
    room = args.clients * ((args.prompt + args.tokens) // 16 + 2)
    run = types.SimpleNamespace(**vars(args), context=args.prompt + args.tokens, agents=args.clients, policy="none")
    process, port = serve(run, {"device_pages": room, "host_pages": 0}, 64 << 10)
    try:
        return asyncio.run(load(process, port, args, calls))
    finally:
        process.terminate()
        process.wait()


def main():
    args = arguments()
    tokens, costs = measure(args)
    print(f"{args.clients} clients, {tokens:.0f} tokens in {args.seconds} s")
    print(f"{'thread':<16} {'sleeps/token':>12} {'us/token':>10}")
    for name, (switches, busy) in sorted(costs.items()):
        print(f"{name:<16} {switches / tokens:>12.4f} {busy / 1e3 / tokens:>10.3f}")
    if shutil.which("strace"):
        with tempfile.TemporaryDirectory() as folder:
            calls = pathlib.Path(folder) / "calls"
            tokens, _ = measure(args, calls)
            print(f"\nsystem calls of djinn-engine, over {tokens:.0f} tokens and a moment before and after:")
            print(calls.read_text())


if __name__ == "__main__":
    main()
