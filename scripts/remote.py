#!/usr/bin/env python3
"""A client without weights and device, and a server, in two network namespaces: what is sent, what comes back, what the
network costs.

    sudo python3 scripts/remote.py --djinn target/release/djinn --model FILE.gguf --json OUT.json [--runs 5] [--tokens 48] \\
        [--bench target/release/djinn-bench --exp2 EXP2.json --figures DIR]

The model is sent, and sent again. A copy of it is sent in which every byte run of 32 KiB in its last tenth was changed, as a
fine-tune that shares nine tenths. Then another copy, whose client is killed twice and whose server once while it is sent, goes
on each time. A piece with a changed byte is refused. The same prompt is answered on this machine and `--runs` times
through the network: tokens, text and logits must be equal. At last the store is on a disk (a tmpfs) without room, and on one that
fills while a piece comes: the push is refused in one line, others are answered, and it goes on once there is room. Exits with 1
where one of these does not hold. With `--bench djinn-bench`, experiment 2 runs between the namespaces as well, with a store that
has nothing; `--exp2` keeps its JSON, and `--figures` its figure. Needs root, `ip`, `curl` and Python 3.9; Linux.
"""

import argparse
import contextlib
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
        self.process, self.store = None, folder / "store"

    def serve(self):
        tiny = "tiny-gqa=synthetic:tiny-gqa"
        command = [self.djinn, "serve", tiny, f"--host={ADDRESSES[1]}", "--device=cpu", f"--store={self.store}",
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

    def models(self):
        command = ["ip", "netns", "exec", SPACES[0], "curl", "-sf", "-H", f"authorization: Bearer {KEY}", f"{self.url}/v1/models"]
        told = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        return [model["id"] for model in json.loads(told)["data"]]

    def held(self):
        """Bytes of pieces that the store has, whole or not."""
        total = 0
        for path in [path for part in ("partial", "blobs") for path in (self.store / part).rglob("*")]:
            with contextlib.suppress(FileNotFoundError):  # It has come whole since.
                total += path.stat().st_size if path.is_file() else 0
        return total

    def push_a_part(self, model, name):
        """A push under way, once 4 MiB of it have come."""
        at = self.held()
        client = self.client("push", model, f"--to={self.url}", f"--name={name}", "--json", "--connections=1")
        until = time.monotonic() + 60
        while self.held() < at + (4 << 20) and client.poll() is None and time.monotonic() < until:
            time.sleep(0.001)
        return client


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
    before, killed = remote.held(), []
    for victim in ("client", "server", "client"):
        client = remote.push_a_part(model, "broken")
        (client.kill if victim == "client" else remote.kill)()
        if victim == "server":
            remote.serve()
            client.kill()
        client.wait()
        killed.append({"killed": victim, "arrived": remote.held() - before})
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


def full_disk(remote, model, faults):
    """A store without room for the model, then one whose disk fills while it comes."""
    disk = remote.folder / "disk"
    disk.mkdir()
    sh("mount", "-t", "tmpfs", "-o", f"size={model.stat().st_size + (32 << 20)}", "tmpfs", disk)
    try:
        remote.store = disk / "store"
        remote.serve()
        filler = disk / "filler"

        def fill(keep):
            with filler.open("ab") as file:
                while (free := shutil.disk_usage(disk).free) > keep:
                    with contextlib.suppress(OSError):  # The store has taken some of it since.
                        os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), free - keep)

        def refused(client, what):
            _, error = client.communicate()
            lines = error.strip().splitlines()
            if client.returncode == 0 or len(lines) != 1 or "the store is full" not in lines[0]:
                faults.append(f"{what}: {client.returncode}, {error!r}")
            if remote.models() != ["tiny-gqa"]:
                faults.append(f"{what}: {remote.models()} are visible")
            remote.output("run", "tiny-gqa", "Hi", "-n=4", "--json", f"--server={remote.url}")
            return error.strip()

        said = []
        fill(model.stat().st_size // 2)
        said.append(refused(remote.client("push", model, f"--to={remote.url}", "--name=full"), "a disk without room"))
        filler.unlink()
        client = remote.push_a_part(model, "full")
        fill(4 << 20)
        said.append(refused(client, "a disk that fills"))
        filler.unlink()
        arrived, pushed = remote.held(), remote.push(model, "full")
        if not 0 < arrived or pushed["sent_bytes"] + arrived != pushed["bytes"]:
            faults.append(f"of {pushed['bytes']} bytes {arrived} had come, and {pushed['sent_bytes']} were sent")
        remote.output("run", "full", "Hi", "-n=4", "--json", f"--server={remote.url}")
        return {"said": said, "arrived": arrived, "sent_bytes": pushed["sent_bytes"]}
    finally:
        remote.kill()
        sh("umount", disk)


def experiment(remote, args, faults):
    """Experiment 2 between the namespaces: the model is sent, and answers."""
    remote.store = remote.folder / "experiment"
    remote.serve()
    json_file = args.exp2 or remote.folder / "exp2.json"
    command = ["ip", "netns", "exec", SPACES[0], args.bench.resolve(), "exp2", f"--server={remote.url}", f"--model={args.model}",
               f"--runs={args.runs}", f"--tokens={args.tokens}", "--prompt=64", "--device=cpu", f"--json={json_file}"]
    command += [f"--figures={args.figures}"] if args.figures else []
    try:
        done = subprocess.run(command, env={**remote.environment, "DJINN_API_KEY": KEY}, stdout=subprocess.PIPE)
    finally:
        remote.kill()
    if done.returncode:
        faults.append("experiment 2 fails")
        return None
    told = json.loads(json_file.read_text())
    return {name: told[name] for name in ("config", "push", "again", "round_trip_ms", "medians", "same_tokens")}


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
    told += f"\nA disk that fills: {result['full_disk']['said'][1]}\n"
    told += (f"\n{result['runs']} answers of {result['tokens']} tokens: {ms['client']:.2f} ms a token at the client, "
             f"{ms['server']:.2f} at the server, {ms['local']:.2f} without one; {len(result['fault_lines'])} faults.\n")
    return told


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--djinn", required=True, type=Path)
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--bench", type=Path)
    parser.add_argument("--exp2", type=Path)
    parser.add_argument("--figures", type=Path)
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
            exp2 = experiment(remote, args, faults) if args.bench else None
            full = full_disk(remote, args.model, faults)
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
        "full_disk": full, "exp2": exp2, "fault_lines": faults,
    }
    print(markdown(result))
    print(*faults, sep="\n")
    if args.json:
        results.write(args.json, result, markdown(result))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
