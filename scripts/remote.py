#!/usr/bin/env python3
"""A client without weights and device, and a server, in two network namespaces: what is sent, what comes back, what the
network costs.

    sudo python3 scripts/remote.py --djinn target/release/djinn --model FILE.gguf --json OUT.json [--runs 5] [--tokens 48]

The model is sent, and sent again. A copy of it is sent in which every byte run of 32 KiB in its last tenth was changed, as a
fine-tune that shares nine tenths. Then another copy, whose client is killed twice and whose server once while it is sent, goes
on each time. A piece with a changed byte is refused. At last the same prompt is answered on this machine and `--runs` times
through the network: tokens, text and logits must be equal. Exits with 1 where one of these does not hold. Needs root, `ip`
and Python 3.9; Linux.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import results

SPACES = ("djinn-client", "djinn-server")
ADDRESSES = ("10.213.77.1", "10.213.77.2")
KEY = "remote"
RUN = 32 << 10


def sh(*words):
    subprocess.run(words, check=True)


class Spaces:
    """Two network namespaces with a link between them."""

    def __enter__(self):
        self.__exit__()
        for space in SPACES:
            sh("ip", "netns", "add", space)
        sh("ip", "link", "add", "djinn0", "netns", SPACES[0], "type", "veth", "peer", "name", "djinn1", "netns", SPACES[1])
        for space, address, link in zip(SPACES, ADDRESSES, ("djinn0", "djinn1")):
            sh("ip", "-n", space, "addr", "add", f"{address}/30", "dev", link)
            sh("ip", "-n", space, "link", "set", link, "up")
        return self

    def __exit__(self, *_):
        for space in SPACES:
            subprocess.run(["ip", "netns", "del", space], stderr=subprocess.DEVNULL)


class Remote:
    def __init__(self, args, folder):
        self.djinn, self.folder, self.args = args.djinn.resolve(), folder, args
        self.url = f"http://{ADDRESSES[1]}:5556"
        self.environment = {**os.environ, "DJINN_CACHE": str(folder / "cache")}
        self.process = None

    def serve(self):
        tiny = "synthetic:tiny-gqa"
        command = [self.djinn, "serve", tiny, f"--host={ADDRESSES[1]}", "--device=cpu", f"--store={self.folder / 'store'}",
                   "--ctx=256", "--quiet"]
        self.process = subprocess.Popen(["ip", "netns", "exec", SPACES[1], *command],
                                        env={**self.environment, "DJINN_PUSH_KEY": KEY})
        for _ in range(1200):
            ask = ["curl", "-sf", f"{self.url}/ready"]
            if subprocess.run(["ip", "netns", "exec", SPACES[0], *ask], stdout=subprocess.DEVNULL).returncode == 0:
                return
            time.sleep(0.05)
        sys.exit("the server does not start")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def client(self, *words, there=True):
        command = [self.djinn, *words, "--quiet"]
        if there:
            command = ["ip", "netns", "exec", SPACES[0], *command]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**self.environment, "DJINN_API_KEY": KEY})

    def output(self, *words, there=True):
        client = self.client(*words, there=there)
        out, error = client.communicate()
        if client.returncode:
            sys.exit(f"{words}: {error}")
        return out

    def push(self, model, name):
        start = time.monotonic()
        told = json.loads(self.output("push", model, f"--to={self.url}", f"--name={name}", "--json"))
        return {**told, "seconds": round(time.monotonic() - start, 3)}


def changed(model, folder, name, first):
    """A copy in which a byte of each run from the byte `first` on is another one."""
    bytes_ = bytearray(model.read_bytes())
    for at in range(first, len(bytes_), RUN):
        bytes_[at] ^= 1
    copy = folder / f"{name}.gguf"
    copy.write_bytes(bytes_)
    return copy


def interrupted(remote, model):
    """Sends a model; its client is killed twice, and its server once. What all attempts sent is not known, but the last one's is."""
    partial = remote.folder / "store/partial"
    held = lambda: sum(path.stat().st_size for path in partial.iterdir()) + sum(
        path.stat().st_size for path in (remote.folder / "store/blobs").rglob("*") if path.is_file())
    before, killed = held(), []
    for victim in ("client", "server", "client"):
        at = held()
        client = remote.client("push", model, f"--to={remote.url}", "--name=broken", "--json", "--connections=1")
        until = time.monotonic() + 60
        while held() < at + (4 << 20) and client.poll() is None and time.monotonic() < until:
            time.sleep(0.001)
        (client.kill if victim == "client" else remote.kill)()
        if victim == "server":
            remote.serve()
            client.kill()
        client.wait()
        killed.append({"killed": victim, "arrived": held() - before})
    return killed


def refuses_changed_byte(remote, model):
    """A piece of a registered manifest with a changed byte, by hand."""
    script = (
        "import http.client, json, sys\n"
        f"c = http.client.HTTPConnection('{ADDRESSES[1]}', 5556)\n"
        f"h = {{'authorization': 'Bearer {KEY}'}}\n"
        "piece = b'x' * 100\n"
        "ask = lambda *w: (c.request(*w), (lambda r: (r.status, r.read()))(c.getresponse()))[1]\n"
        "hash_ = '00' * 32\n"
        "body = json.dumps({'name': 'bad', 'files': [{'path': 'x.gguf', 'pieces': [{'hash': hash_, 'bytes': 100}]}]})\n"
        "ask('POST', '/v1/store/manifests', body, h)\n"
        "print(ask('PUT', '/v1/store/blobs/' + hash_, piece, h)[0])\n"
    )
    command = ["ip", "netns", "exec", SPACES[0], sys.executable, "-c", script]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip() == "422"


def answers(remote, args, model, faults):
    words = ["The capital of France is", "--greedy", "--ignore-eos", f"-n={args.tokens}", "--json"]
    here = json.loads(remote.output("run", str(model), *words, "--device=cpu", "--ctx=256", there=False))
    runs = []
    for _ in range(args.runs):
        there = json.loads(remote.output("run", "mine", *words, f"--server={remote.url}"))
        if (there["tokens"], there["text"]) != (here["tokens"], here["text"]):
            faults.append("an answer through the network differs")
        runs.append(there["stats"])
    tokens = ["--tokens=1,2,3,4,5", "--json"]
    if remote.output("logits", "mine", *tokens, f"--server={remote.url}") != remote.output(
            "logits", str(model), *tokens, "--device=cpu", there=False):
        faults.append("logits through the network differ")
    return here["stats"], runs


def markdown(result):
    row = lambda name, at: (name, at["bytes"], at["sent_bytes"], at["sent_pieces"], at["pieces"], at["seconds"])
    told = f"{result['machine']}, {result['date']}, {result['version']}: `{result['command']}`\n\n"
    told += results.table(1, ("sent", "bytes", "sent bytes", "sent pieces", "pieces", "s"),
                          [row(name, at) for name, at in result["pushes"].items()])
    ms = result["ms_per_token"]
    told += (f"\n{result['runs']} answers of {result['tokens']} tokens: {ms['client']:.2f} ms a token at the client, "
             f"{ms['server']:.2f} at the server, {ms['local']:.2f} without one; {len(result['fault_lines'])} faults.\n")
    return told


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--djinn", required=True, type=Path)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    remote = None
    folder, faults, pushes = Path(tempfile.mkdtemp(prefix="djinn-remote-")), [], {}
    try:
        with Spaces():
            remote = Remote(args, folder)
            remote.serve()
            size = args.model.stat().st_size
            pushes["the model"] = remote.push(args.model, "mine")
            pushes["the same"] = remote.push(args.model, "again")
            pushes["a fine-tune"] = remote.push(changed(args.model, folder, "tuned", size * 9 // 10), "tuned")
            killed = interrupted(remote, changed(args.model, folder, "broken", size // 5))
            pushes["after the kills"] = remote.push(folder / "broken.gguf", "broken")
            first, again, tuned, last = pushes.values()
            if first["sent_bytes"] != first["bytes"] or again["sent_bytes"]:
                faults.append("the model was not sent once")
            if not 0 < tuned["sent_bytes"] < 0.15 * tuned["bytes"]:
                faults.append(f"the fine-tune sent {tuned['sent_bytes']} bytes")
            if last["sent_bytes"] + killed[-1]["arrived"] > last["bytes"] + size // 100:
                faults.append("what had come was sent again")
            if not refuses_changed_byte(remote, args.model):
                faults.append("a changed byte was taken")
            local, runs = answers(remote, args, args.model, faults)
            remote.kill()
    finally:
        if remote and remote.process.poll() is None:
            remote.kill()
        shutil.rmtree(folder)
    version = subprocess.run([args.djinn, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    middle = lambda name: statistics.median(run[name] for run in runs)
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "date": datetime.date.today().isoformat(), "version": version,
        "command": f"scripts/remote.py --model {args.model.name} --runs {args.runs} --tokens {args.tokens}",
        "pushes": pushes, "killed": killed, "runs": args.runs, "tokens": args.tokens, "samples": runs,
        "ms_per_token": {"client": middle("tpot_ms"), "server": middle("server_tpot_ms"), "local": local["tpot_ms"]},
        "fault_lines": faults,
    }
    print(markdown(result))
    print(*faults, sep="\n")
    if args.json:
        results.write(args.json, result, markdown(result))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
