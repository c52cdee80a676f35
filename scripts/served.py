"""A `djinn serve` of a tiny model on a free port of this machine, and what is seen of it from outside."""

import datetime
import http.client
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHECKPOINT = ROOT / "djinn-models/tests/checkpoints/tied-f32"
TEMPLATE = ("{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
            "{% if add_generation_prompt %}>{% endif %}")


def tokenizer():
    """Byte-level BPE without merges over ASCII. Bytes that do not print have names above U+00FF, in order (GPT-2)."""
    def name(byte):
        return chr(byte if 33 <= byte < 127 else 0x121 if byte == 127 else 0x100 + byte)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {name(byte): byte for byte in range(128)}, "merges": []},
    }


class Served:
    """The server, until the block ends. The model's 128 tokens are the bytes of ASCII; its name is `tiny`. Another tiny
    checkpoint may be given as a folder, another model by its place, and another `name`, or none for the model's own. It is on the CPU if no device is
    given; `patience` is how many seconds it may take to load."""

    def __init__(self, djinn, *flags, model=CHECKPOINT, name="tiny", device="cpu", patience=60):
        self.djinn, self.flags, self.model, self.name = Path(djinn).resolve(), flags, model, name
        self.device = ["--device=cpu", "--threads=1"] if device == "cpu" else [f"--device={device}"]
        self.patience = patience

    def copy_model(self):
        """The checkpoint with a tokenizer and a template."""
        folder = self.folder / "model"
        folder.mkdir()
        for file in self.model.iterdir():
            shutil.copy(file, folder)
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        return folder

    def __enter__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="djinn-served-"))
        model = self.copy_model() if isinstance(self.model, Path) else self.model
        self.log = self.folder / "log"
        # A process inherits the soft limit; the hard one is the most that it may have.
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        alias = [f"--alias={self.name}"] if self.name else []
        command = [self.djinn, "serve", model, "--port=0", *self.device, *alias, *self.flags]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        self.port = None
        for _ in range(int(self.patience * 10)):
            found = re.search(r"at http://127\.0\.0\.1:(\d+)/", self.log.read_text(errors="replace"))
            if found:
                self.port = int(found[1])
                return self
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        self.process.kill()
        sys.exit(f"the server does not start: {self.log.read_text(errors='replace')[-2000:]}")

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, method, path, body=None, timeout=60):
        """The status and body of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        finally:
            connection.close()

    def metrics(self):
        """Samples of `/metrics`: by name, with labels as they stand."""
        status, page = self.ask("GET", "/metrics")
        assert status == 200, page
        lines = (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    def held(self):
        """Descriptors, threads and KiB of resident memory of the process, now and at most."""
        place = Path(f"/proc/{self.process.pid}")
        status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines() if ":" in line)
        return {
            "descriptors": len(os.listdir(place / "fd")),
            "threads": int(status["Threads"]),
            "rss_kib": int(status["VmRSS"].split()[0]),
            "peak_rss_kib": int(status["VmHWM"].split()[0]),
        }

    def sessions(self):
        """Sessions that compute, that wait, and the share of KV pages in use: nothing is left if all are 0."""
        metrics = self.metrics()
        names = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"]
        return [metrics[f'djinn_{name}{{model_name="{self.name}"}}'] for name in names]

    def rests(self, seconds=30):
        """Waits until no session is left; what is left then."""
        end = time.monotonic() + seconds
        while any(left := self.sessions()) and time.monotonic() < end:
            time.sleep(0.1)
        return left

    def complaints(self):
        """Lines of the log that tell of a panic or of a failure of the engine."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if "panicked" in line or "the engine failed" in line]

    def facts(self):
        """What a result says of the binary and the machine."""
        version = subprocess.run([self.djinn, "--version"], capture_output=True, text=True).stdout.strip()
        return {"date": datetime.date.today().isoformat(), "version": version,
                "machine": f"{platform.machine()}, {os.cpu_count()} cores"}


def quantile(before, after, name, share):
    """The smallest bucket bound, in seconds, that holds this share of what a histogram counted between two pages."""
    prefix = f'{name}_bucket{{le="'
    counts = [(key[len(prefix):-2], after[key] - before.get(key, 0)) for key in after if key.startswith(prefix)]
    counts = [(float("inf") if bound == "+Inf" else float(bound), count) for bound, count in counts]
    total = max(count for _, count in counts)
    return min(bound for bound, count in counts if count >= share * total) if total else None
