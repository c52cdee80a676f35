#!/usr/bin/env python3
"""Tokens per second of streaming clients of `djinn serve`, beside the same load on the engine without HTTP.

    python3 scripts/http_throughput.py --bin FOLDER --json OUT.json [--model synthetic:llama-3.1-8b] [--device cuda]
        [--vram 60GiB] [--clients 64] [--prompt 512] [--tokens 256] [--warm-up 6] [--seconds 15] [--pairs 2]

Each client asks for `tokens` greedy tokens after a prompt of its own, and asks again once its stream has ended. Without
HTTP the same is a closed loop of `djinn-bench exp1` whose agents do not wait. Both have the same KV pages and take turns in
fresh processes. The clients begin together and go on in waves, so tokens are not counted in a span that may cut a wave:
throughput is that of the mean cycle, from a client's request to its next one. Needs Python 3.9 and nothing else.
"""

import argparse
import asyncio
import json
import pathlib
import random
import statistics
import subprocess
import tempfile
import time

import results
from bench_gpu import commit
from exp1_http import Server, serve

VOCABULARY = 30_000


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("target/release"), help="folder of the binaries")
    parser.add_argument("--model", default="synthetic:llama-3.1-8b?distinct=8")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--vram", default="60GiB", help="as for djinn-bench exp1")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--warm-up", type=float, default=6)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY, help="prompts have ids below this")
    parser.add_argument("--json", type=pathlib.Path)
    return parser.parse_args()


def without_http(args):
    """One run of the closed loop: its document."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "exp1.json"
        command = [
            args.bin / "djinn-bench", "exp1", f"--model={args.model}", f"--device={args.device}", f"--vram={args.vram}",
            "--policies=none", "--host-kv=0", f"--agents={args.clients}", f"--context={args.prompt + args.tokens}",
            "--turns=1", f"--turn-tokens={args.tokens}", "--think=0,0", f"--warm-up={args.warm_up}",
            f"--seconds={args.seconds}", f"--json={path}",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(path.read_text())


async def stream(port, payload, tokens):
    """One stream, read to its end; the events that came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(payload)}\r\n\r\n".encode() + payload)
        answer = await reader.read(-1)
    finally:
        writer.close()
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(answer[:500].decode(errors="replace"))
    # All clients share one core: what they do between two requests counts as the server's time.
    last = answer[answer.rfind(b"data: {") + 6:].split(b"\n", 1)
    usage = json.loads(last[0])["usage"] if len(last) == 2 and b"data: [DONE]" in last[1] else None
    if usage is None or usage["completion_tokens"] != tokens:
        raise RuntimeError(f"a stream that is not whole: {answer[-500:].decode(errors='replace')}")
    return answer.count(b"data: ")


async def client(port, number, args, ended):
    dice = random.Random(number)

    def payload():
        prompt = [dice.randrange(5, args.vocabulary) for _ in range(args.prompt)]
        body = {"prompt": prompt, "max_tokens": args.tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        body["stream_options"] = {"include_usage": True}
        return json.dumps(body).encode()

    following = payload()
    while True:
        began, answer = time.monotonic(), asyncio.create_task(stream(port, following, args.tokens))
        await asyncio.sleep(0)
        # While the server works.
        following = payload()
        ended.append((number, began, await answer))


async def drive(port, args):
    """Each stream's client, when it was asked for, and its events."""
    ended = []
    clients = [asyncio.create_task(client(port, number, args, ended)) for number in range(args.clients)]
    # A client that fails ends the run.
    done, _ = await asyncio.wait(clients, timeout=args.warm_up + args.seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in clients:
        task.cancel()
    for task in done:
        task.result()
    return ended


def cycles(began, args):
    """Seconds from one request of a client to its next, where the first came after the warm-up."""
    first = min(at for _, at in began)
    found = []
    for number in range(args.clients):
        times = sorted(at for client, at in began if client == number)
        found += [later - at for at, later in zip(times, times[1:]) if at - first >= args.warm_up]
    if not found:
        raise SystemExit("no client asked twice after the warm-up; raise --seconds")
    return found


def turns(row, args):
    """The same of experiment 1, whose agents do not wait: a turn's latency is its cycle."""
    samples = [list(map(float, sample.split())) for sample in row["turn_samples"]]
    # Session, beginning, queue, restore, prefill, decode, tokens.
    return [sum(parts[2:6]) for parts in samples if parts[1] >= args.warm_up]


def with_http(args, room):
    process, port = serve(args, *room)
    try:
        ended = asyncio.run(drive(port, args))
    finally:
        process.terminate()
        process.wait()
    found = cycles([(number, at) for number, at, _ in ended], args)
    return {"tokens_per_s": rate(found, args), "cycles": len(found), "events": sum(events for _, _, events in ended)}


def rate(cycles, args):
    return args.clients * args.tokens / statistics.mean(cycles)


def markdown(result):
    rows = [
        (f"{pair['without']:.1f}", f"{pair['through']['tokens_per_s']:.1f}", f"{pair['ratio']:.4f}", pair["through"]["cycles"])
        for pair in result["pairs"]
    ]
    machine = result["machine"]
    told = f"{machine.get('gpu') or machine['cpu']}, {result['date']}, commit {result['commit']}: `{result['command']}`\n\n"
    told += f"{result['clients']} clients, median of the ratios {result['ratio']:.4f}.\n\n"
    return told + results.table(0, ("tokens/s without HTTP", "through HTTP", "ratio", "cycles"), rows)


def main():
    args = arguments()
    # What `serve` reads of experiment 1's arguments.
    args.context, args.agents, args.policy = args.prompt + args.tokens, args.clients, "none"
    result, pairs, room = None, [], None
    for number in range(args.pairs):
        without, through = None, None
        if number % 2 == 1:
            through = with_http(args, room)
        inside = without_http(args)
        without = rate(turns(inside["policies"][0], args), args)
        room = room or (inside["capacity"], inside["profile"]["cost"]["page_bytes"])
        through = through or with_http(args, room)
        pairs.append({"without": without, "through": through, "ratio": through["tokens_per_s"] / without})
        flags = ("clients", "prompt", "tokens", "warm_up", "seconds")
        result = {
            "experiment": "http-throughput",
            "date": inside["date"],
            "commit": commit(args.bin / "djinn"),
            "machine": inside["machine"],
            "command": "scripts/http_throughput.py " + " ".join(
                f"--{name.replace('_', '-')} {getattr(args, name)}" for name in ("model", "device", *flags, "pairs")
            ),
            **{name: getattr(args, name) for name in flags},
            "capacity": inside["capacity"],
            "pairs": pairs,
            "ratio": statistics.median(pair["ratio"] for pair in pairs),
        }
        print(json.dumps(pairs[-1]), flush=True)
        if args.json:
            results.write(args.json, result, markdown(result))
    print(markdown(result))


if __name__ == "__main__":
    main()
