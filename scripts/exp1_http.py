"""Experiment 1 through HTTP: agents that send only what real agents send, beside the same work in one process.

Runs `djinn-bench exp1` with one policy, then `djinn serve` with the same KV pages and as many agents in a closed loop.
Each agent names its session in a header, is told to call a tool, waits as the tool would take, and sends the tool's
message. No signal is sent: the server infers the waits. Turns per second are compared: an answer's tokens vary with the
white space of its JSON. Needs Python 3.9 and nothing else.

    python3 scripts/exp1_http.py --model synthetic:tiny --agents 12 --context 1792 --turn-tokens 96 \
        --think 1,2 --seconds 30 --vram 10MiB --json results/exp1-http-cpu.json
"""

import argparse
import asyncio
import datetime
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading
import time

import results

TURNS = 3
TOOL = "think"
# Tokens of each prompt after the first, as experiment 1 has them.
NEXT_PROMPT = 16
# Tokens by which contexts over HTTP may be longer: templates write more around a tool's message.
SLACK = 256


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("target/release"), help="folder of the binaries")
    parser.add_argument("--model", default="synthetic:tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--vram", default="3MiB", help="as for djinn-bench exp1")
    parser.add_argument("--agents", type=int, default=12)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--turn-tokens", type=int, default=96)
    parser.add_argument("--think", default="1,2", help="least and most seconds of a tool")
    parser.add_argument("--policy", default="signal")
    parser.add_argument("--warm-up", type=float, default=5)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path)
    return parser.parse_args()


class Server:
    """One HTTP/1.1 request at a time on a connection of its own, to the server on this machine."""

    def __init__(self, port):
        self.port = port

    async def request(self, method, path, body=None, headers=()):
        """The status, and the lines of the body as they come."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        data = b"" if body is None else json.dumps(body).encode()
        head = [f"{method} {path} HTTP/1.1", "host: localhost", "connection: close", f"content-length: {len(data)}"]
        head += ["content-type: application/json", *headers]
        writer.write("\r\n".join(head + ["", ""]).encode() + data)
        await writer.drain()
        status = int((await reader.readline()).split()[1])
        chunked = False
        while (line := await reader.readline()) not in (b"\r\n", b""):
            chunked |= line.lower().startswith(b"transfer-encoding: chunked")
        return status, self.lines(reader, writer, chunked)

    async def lines(self, reader, writer, chunked):
        rest = b""
        try:
            while True:
                if chunked:
                    size = int(await reader.readline() or b"0", 16)
                    part = await reader.readexactly(size)
                    await reader.readline()
                else:
                    part = await reader.read(1 << 16)
                if not part:
                    break
                *whole, rest = (rest + part).split(b"\n")
                for line in whole:
                    yield line.decode().rstrip("\r")
            if rest:
                yield rest.decode()
        finally:
            writer.close()

    async def json(self, method, path, body=None, headers=()):
        status, lines = await self.request(method, path, body, headers)
        text = "\n".join([line async for line in lines])
        if status != 200:
            raise RuntimeError(f"{method} {path}: {status}: {text}")
        return json.loads(text)

    async def generated(self):
        _, lines = await self.request("GET", "/metrics")
        named = [line async for line in lines if line.startswith("djinn_generation_tokens_total{")]
        return float(named[0].split()[-1])


def request(messages, letters, most):
    """A turn that must call the tool, with a note of some letters."""
    note = {"type": "string", "pattern": f"^[a-z]{{{letters}}}$"}
    parameters = {"type": "object", "properties": {"note": note}, "required": ["note"], "additionalProperties": False}
    function = {"name": TOOL, "description": "Thinks.", "parameters": parameters}
    return {
        "messages": messages,
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": most,
        "temperature": 1,
    }


async def turn(server, body, session, last=False):
    """The call that the model makes, and the usage."""
    headers = [f"x-dynamo-session-id: {session}"] + ["x-dynamo-session-final: true"] * last
    status, lines = await server.request("POST", "/v1/chat/completions", body, headers)
    call, usage, arguments = None, None, ""
    async for line in lines:
        if not line.startswith("data: {"):
            if status != 200:
                raise RuntimeError(f"{status}: {line}")
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(line)
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            for piece in choice["delta"].get("tool_calls") or []:
                call = call or piece
                arguments += piece["function"].get("arguments", "")
    if call is None:
        raise RuntimeError(f"an answer without a call: {usage}")
    call = {"id": call["id"], "type": "function", "function": {"name": TOOL, "arguments": arguments}}
    return call, usage


async def shape(server, first, tokens):
    """Letters of the first message and of a note, such that the first prompt has `first` tokens and an answer `tokens`."""
    letters, note = first // 2, tokens // 2
    for _ in range(4):
        _, usage = await turn(server, request([{"role": "user", "content": "x" * letters}], note, 4 * tokens), "shape", True)
        letters += first - usage["prompt_tokens"]
        note += tokens - usage["completion_tokens"]
        if letters < 1 or note < 1:
            raise SystemExit("the context or the turns are too short for the template and a call; raise them")
    return letters, note


async def agent(server, number, args, sizes, turns):
    """Sessions one after the other, until it is cancelled."""
    dice = random.Random(args.seed * 100_003 + number)
    low, high = map(float, args.think.split(","))
    letters, note = sizes
    await asyncio.sleep(dice.uniform(0, high))
    for session in range(1 << 30):
        text = "".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=letters))
        messages = [{"role": "user", "content": text}]
        for at in range(TURNS):
            began = time.monotonic()
            body = request(messages, note, 2 * args.turn_tokens)
            call, usage = await turn(server, body, f"agent-{number}-{session}", at + 1 == TURNS)
            turns.append((began, time.monotonic(), usage))
            await asyncio.sleep(dice.uniform(low, high))
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "done"})


async def drive(port, args, first):
    server = Server(port)
    sizes = await shape(server, first, args.turn_tokens)
    turns = []
    agents = [asyncio.create_task(agent(server, n, args, sizes, turns)) for n in range(args.agents)]
    await asyncio.sleep(args.warm_up)
    before, began = await server.generated(), time.monotonic()
    done, _ = await asyncio.wait(agents, timeout=args.seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()
    seconds = time.monotonic() - began
    tokens_per_s = (await server.generated() - before) / seconds
    for task in agents:
        task.cancel()
    measured = [(end - start, usage) for start, end, usage in turns if began <= end <= began + seconds]
    return tokens_per_s, len(measured) / seconds, measured


def serve(args, capacity, page_bytes):
    """The server's process and port, with as many pages as experiment 1 had."""
    command = [
        args.bin / "djinn", "serve", args.model, "--port=0", f"--device={args.device}", f"--ctx={args.context + SLACK}",
        f"--max-num-seqs={args.agents}", f"--kv-cache={capacity['device_pages'] * page_bytes}",
        f"--swap-space={capacity['host_pages'] * page_bytes}", f"--policy={args.policy}",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if found := re.search(r"at http://127\.0\.0\.1:(\d+)", line):
            # The log is read to its end: a pipe that is full loses lines.
            threading.Thread(target=lambda: [None for _ in process.stderr], daemon=True).start()
            return process, int(found[1])
    raise SystemExit("djinn serve ended before it served")


def main():
    args = arguments()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "exp1.json"
        command = [
            args.bin / "djinn-bench", "exp1", f"--model={args.model}", f"--device={args.device}", f"--vram={args.vram}",
            f"--policies={args.policy}", f"--agents={args.agents}", f"--context={args.context}", f"--turns={TURNS}",
            f"--turn-tokens={args.turn_tokens}", f"--think={args.think}", f"--warm-up={args.warm_up}",
            f"--seconds={args.seconds}", f"--seed={args.seed}", f"--json={path}",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        inside = json.loads(path.read_text())
    row, capacity = inside["policies"][0], inside["capacity"]
    first = args.context - NEXT_PROMPT * (TURNS - 1) - args.turn_tokens * TURNS
    process, port = serve(args, capacity, inside["profile"]["cost"]["page_bytes"])
    try:
        tokens_per_s, rate, turns = asyncio.run(drive(port, args, first))
    finally:
        process.terminate()
        process.wait()
    cached = sum((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0) for _, usage in turns)
    latencies = sorted(latency for latency, _ in turns)
    prompts = sum(usage["prompt_tokens"] for _, usage in turns)
    through = {
        "turns_per_s": rate,
        "tokens_per_s": tokens_per_s,
        "turns": len(turns),
        "turn_p50_s": latencies[len(latencies) // 2],
        "turn_p99_s": latencies[int(len(latencies) * 0.99)],
        "prompt_tokens": prompts,
        "cached_tokens": cached,
    }
    inside_rate = row["turns"] / row["measured_s"]
    ratio = rate / inside_rate
    print(json.dumps({"in_process": inside_rate, "through_http": through, "ratio": ratio}, indent=1))
    if args.json:
        version = subprocess.run([args.bin / "djinn", "--version"], check=True, capture_output=True, text=True)
        flags = {name: str(value) for name, value in vars(args).items() if name not in ("json", "bin")}
        result = {
            "experiment": "exp1-http",
            "command": "scripts/exp1_http.py " + " ".join(sys.argv[1:]),
            "date": datetime.date.today().isoformat(),
            "version": version.stdout.strip(),
            "machine": inside["machine"],
            "arguments": flags,
            "capacity": capacity,
            "in_process": {"turns_per_s": inside_rate} | {name: row[name] for name in ("tokens_per_s", "turns", "p50", "p99")},
            "through_http": through,
            "ratio": ratio,
        }
        head = ("", "in process", "through HTTP", "ratio")
        lines = [("turns/s", f"{inside_rate:.3f}", f"{rate:.3f}", f"{ratio:.3f}")]
        lines += [("tokens/s", f"{row['tokens_per_s']:.1f}", f"{tokens_per_s:.1f}", "")]
        lines += [("turn P50, s", f"{row['p50']['latency_s']:.3f}", f"{through['turn_p50_s']:.3f}", "")]
        lines += [("turn P99, s", f"{row['p99']['latency_s']:.3f}", f"{through['turn_p99_s']:.3f}", "")]
        text = f"{args.agents} agents that send a header, a forced tool call and the tool's message; {args.model}, "
        results.write(args.json, result, f"{text}{args.policy}.\n\n{results.table(1, head, lines)}")


if __name__ == "__main__":
    main()
