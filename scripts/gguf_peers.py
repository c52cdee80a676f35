#!/usr/bin/env python3
"""Times Djinn beside llama.cpp on one GGUF file on one GPU: a long prompt, and tokens after it, batch 1.

    python3 scripts/gguf_peers.py --gguf FILE --djinn-bench BINARY --llama-bench BINARY --json OUT.json
        [--prompt 2048] [--tokens 128] [--rounds 2] [--runs 5] [--device cuda:0]
        [--stream 24GiB] [--cpu-share 0.4] [--stream-prompt 512] [--stream-tokens 8]
        [--offload-layers 47 | --experts-on-cpu 20]

`make_synthetic_gguf.py` writes such a file without a download. The programs take turns, `--rounds` times, and have the
weights on the card. Each process loads the file, warms up, and takes `--runs` samples:

    prompt_ms   the prompt in one go, up to its last logits; Djinn also chooses the first token
    token_ms    per token, the mean over `--tokens` passes after that prompt; Djinn chooses each on the card, llama.cpp
                copies the logits to the host and takes a random one

llama.cpp has flash attention on and f16 keys and values. Its prompts run with physical batches of 512 tokens (its default)
and of 2048; the faster of both counts. `--stream` is a budget that does not hold the weights (repeat for more): Djinn then
streams the rest, and is compared with the bandwidth of the link, measured before; with `--cpu-share` it is timed a second
time, with the CPU beside the link. Within such a budget llama.cpp has a number of layers on the card, `--offload-layers`, and
computes the others on the host; or it has all but the experts of the first layers there, `--experts-on-cpu` (its --n-cpu-moe).
What either occupies at most, with its driver's context, is read from nvidia-smi. Without --llama-bench only Djinn is timed.
"""

import argparse
import datetime
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import results

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
TIMEOUT_S = 300
UBATCHES = (512, 2048)


def size(text):
    unit = next((unit for unit in UNITS if text.endswith(unit)), "")
    try:
        return int(float(text.removesuffix(unit)) * UNITS.get(unit, 1))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is no size such as 24GiB") from None


def run(words):
    """The standard output of a program; says what it said when it fails, and ends."""
    try:
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        sys.exit(f"{shown(words)}: took more than {TIMEOUT_S} s")
    if done.returncode != 0:
        sys.exit(f"{shown(words)}: ended with {done.returncode}: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    return done.stdout


def shown(words):
    """A command without the directories of this machine."""
    return " ".join(Path(word).name if "/" in word else word for word in map(str, words))


class Djinn:
    def __init__(self, args):
        self.args, self.commands = args, []

    def sample(self, prompt, tokens, runs, vram=None, share=None):
        words = [self.args.djinn_bench, "sample", "--system", "RESIDENT" if vram is None else "FULL"]
        words += ["--model", self.args.gguf, "--prompt", prompt, "--tokens", tokens + 1, "--runs", runs]
        words += ["--device", self.args.device] + ([] if vram is None else ["--vram", vram])
        words += [] if share is None else ["--cpu-share", share]
        self.commands.append(shown(words))
        last = [line for line in run(words).splitlines() if line.startswith("{")][-1]
        return json.loads(last)

    def resident(self):
        out = self.sample(self.args.prompt, self.args.tokens, self.args.runs)
        for sample in out["samples"]:
            if sample["streamed_bytes_per_pass"]:
                sys.exit("the weights do not fit on the card: djinn-bench streams some of them")
        return {
            "prompt_ms": [sample["ttft_ms"] for sample in out["samples"]],
            "token_ms": [sample["tpot_mean_ms"] for sample in out["samples"]],
            "load_ms": [out["load_ms"]],
            "device_peak_bytes": [sample["device_peak_bytes"] for sample in out["samples"]],
        }

    def link(self):
        """From pinned host memory to the card, 1e9 bytes/s."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "link.json"
            words = [self.args.djinn_bench, "link", "--device", self.args.device, "--json", path]
            self.commands.append(shown(words))
            run(words)
            return json.loads(path.read_text())["pinned"]["up_gbps"]

    def streamed(self, vram, gbps, share=None):
        args = self.args
        with Occupied() as card:
            samples = self.sample(args.stream_prompt, args.stream_tokens, args.stream_runs, vram, share)["samples"]
        token_ms = statistics.median(sample["tpot_ms"] for sample in samples)
        bytes_per_pass = samples[0]["streamed_bytes_per_pass"]
        return {
            "vram_bytes": vram,
            "cpu_share": share,
            "token_ms": token_ms,
            "prompt_ms": statistics.median(sample["ttft_ms"] for sample in samples),
            "streamed_bytes_per_pass": bytes_per_pass,
            "link_share": bytes_per_pass / (token_ms * 1e6) / gbps,
            "device_peak_bytes": max(sample["device_peak_bytes"] for sample in samples),
            "occupied_bytes": card.peak,
            "samples": samples,
        }


class Llama:
    def __init__(self, args):
        self.args, self.commands, self.build, self.layers = args, [], {}, 0 if args.device == "cpu" else 999

    def bench(self, *more, runs=None, layers=None, experts=None):
        """Tests as llama-bench reports them."""
        words = [self.args.llama_bench, "-m", self.args.gguf, "-fa", "on", "-o", "json", *more]
        words += ["-ngl", self.layers if layers is None else layers, "-r", runs or self.args.runs]
        words += [] if experts is None else ["--n-cpu-moe", experts]
        self.commands.append(shown(words))
        tests = json.loads(run(words))
        keys = ("build_commit", "gpu_info", "backends", "model_type", "model_size", "n_batch", "type_k", "flash_attn")
        self.build = {key: tests[0][key] for key in keys}
        if self.layers and "CUDA" not in tests[0]["backends"]:
            sys.exit(f"{self.args.llama_bench} has no CUDA device: {tests[0]['backends']}")
        return tests

    def resident(self):
        prompt, tokens = self.args.prompt, self.args.tokens
        out = {}
        for test in self.bench("-p", prompt, "-n", 0, "-b", max(UBATCHES), "-ub", ",".join(map(str, UBATCHES))):
            out[f"prompt_ms, physical batch {test['n_ubatch']}"] = [ns / 1e6 for ns in test["samples_ns"]]
        (test,) = self.bench("-p", 0, "-n", tokens, "-d", prompt)
        out["token_ms"] = [ns / 1e6 / tokens for ns in test["samples_ns"]]
        return out

    def offloaded(self):
        """Some layers on the card, the others on the host; or all, but not all experts."""
        args = self.args
        out = {"layers": args.offload_layers, "experts_on_cpu": args.experts_on_cpu}
        prompt, tokens = args.stream_prompt, args.stream_tokens
        more = ("-p", prompt, "-n", tokens, "-d", f"0,{prompt}", "-b", max(UBATCHES), "-ub", min(prompt, max(UBATCHES)))
        with Occupied() as card:
            tests = self.bench(*more, runs=args.stream_runs, layers=args.offload_layers, experts=args.experts_on_cpu)
        out["occupied_bytes"] = card.peak
        for test in tests:
            middle = statistics.median(test["samples_ns"]) / 1e6
            if test["n_prompt"] and not test["n_depth"]:
                out["prompt_ms"] = middle
            elif test["n_gen"] and test["n_depth"]:
                out["token_ms"] = middle / tokens
            out.update({key: test[key] for key in ("cpu_info", "n_threads")})
        return out


class Occupied:
    """The most memory that programs occupied on the first card meanwhile, in steps of a MiB, less what was occupied before."""

    def __enter__(self):
        self.before, self.most, self.done = self.now(), 0, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()
        self.peak = self.most - self.before

    def watch(self):
        while not self.done.wait(0.25):
            self.most = max(self.most, self.now())

    @staticmethod
    def now():
        return int(run(["nvidia-smi", "-i", 0, "--query-gpu=memory.used", "--format=csv,noheader,nounits"])) << 20


def machine(device):
    if device == "cpu" or not shutil.which("nvidia-smi"):
        return {"gpu": None, "driver": None}
    text = run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])
    name, driver = text.strip().splitlines()[0].split(", ")
    return {"gpu": name, "driver": driver}


def medians(samples):
    """Of each program's figures; llama.cpp's prompt is the faster of its two ways."""
    out = {}
    for program, figures in samples.items():
        row = {name: statistics.median(values) for name, values in figures.items()}
        prompts = {name: value for name, value in row.items() if name.startswith("prompt_ms")}
        row["prompt_ms"] = min(prompts.values())
        out[program] = row
    return out


def markdown(report):
    settings, rows = report["settings"], report["medians"]
    where = f"{report['machine']['gpu'] or 'CPU'}, {report['date']}, commit {report['commit']}: `{report['command']}`"
    how = (f"{report['file']['name']}, {report['file']['bytes'] / 1e9:.2f} GB, resident: medians of "
           f"{settings['rounds']} x {settings['runs']} samples, in turns.")
    head = ["", f"prompt of {settings['prompt']}, ms", "ms per token after it"]
    body = [[name, f"{row['prompt_ms']:.1f}", f"{row['token_ms']:.3f}"] for name, row in rows.items()]
    body += [[f"{name}", f"{row['prompt_ms']:.3f}", f"{row['token_ms']:.3f}"] for name, row in report["ratios"].items()]
    text = f"{where}\n" + (f"\n{how}\n\n" + results.table(1, head, body) if rows else "")
    if report["streamed"]:
        head = ["budget, GiB", "occupied, GiB", "share of the CPU", "streamed per pass, GB", "first token, ms", "ms per token",
                "of the link"]
        body = [[f"{row['vram_bytes'] / 2**30:g}", f"{row['occupied_bytes'] / 2**30:.2f}", f"{row['cpu_share'] or 0:g}",
                 f"{row['streamed_bytes_per_pass'] / 1e9:.3f}", f"{row['prompt_ms']:.1f}", f"{row['token_ms']:.2f}",
                 f"{row['link_share']:.3f}"] for row in report["streamed"]]
        text += f"\nThe link gives {report['link_gbps']:.1f} GB/s.\n\n" + results.table(0, head, body)
    if report["offloaded"]:
        row = report["offloaded"]
        how = f"{row['layers']} layers on the card"
        if row["layers"] is None:
            how = f"the experts of {row['experts_on_cpu']} layers on the host"
        text += f"\nllama.cpp with {how}: {row['token_ms']:.2f} ms per token, the prompt in {row['prompt_ms']:.0f} ms, "
        text += f"{row['occupied_bytes'] / 2**30:.2f} GiB of the card.\n"
    return text


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", required=True, type=Path)
    parser.add_argument("--djinn-bench", required=True, type=Path)
    parser.add_argument("--llama-bench", type=Path)
    parser.add_argument("--json", required=True, type=Path)
    parser.add_argument("--device", default="cuda:0", help="of Djinn; llama.cpp takes the first card, or none for cpu")
    for name, default in (("prompt", 2048), ("tokens", 128), ("rounds", 2), ("runs", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--stream", type=size, action="append", default=[], metavar="BYTES")
    for name, default in (("prompt", 512), ("tokens", 8), ("runs", 3)):
        parser.add_argument(f"--stream-{name}", type=int, default=default)
    parser.add_argument("--cpu-share", type=float, metavar="F")
    offload = parser.add_mutually_exclusive_group()
    offload.add_argument("--offload-layers", type=int, metavar="N")
    offload.add_argument("--experts-on-cpu", type=int, metavar="LAYERS")
    args = parser.parse_args()
    for path in (args.gguf, args.djinn_bench, args.llama_bench):
        if path is not None and not path.is_file():
            parser.error(f"{path}: no such file")
    offloads = args.offload_layers is not None or args.experts_on_cpu is not None
    if offloads and not args.llama_bench:
        parser.error("--offload-layers and --experts-on-cpu are llama.cpp's: name --llama-bench")
    if args.cpu_share and not args.stream:
        parser.error("--cpu-share is of a budget's streamed weights: name --stream")
    if min(args.prompt, args.tokens, args.runs, args.stream_prompt, args.stream_tokens, args.stream_runs) < 1:
        parser.error("numbers of tokens and runs are 1 or more")
    if args.rounds < 1 and not args.stream and not offloads:
        parser.error("--rounds 0 alone measures nothing")
    return args


class Report:
    """What was measured so far; each stage adds to the file, so that a later one that fails takes nothing along."""

    def __init__(self, args, programs):
        self.args, self.programs = args, programs
        self.samples, self.link_gbps, self.streamed, self.offloaded = {}, None, [], None
        found = re.search(r"\(commit (.+)\)", run([args.djinn_bench, "--version"]))
        self.commit = found.group(1) if found else "unknown"
        self.machine = machine(args.device)

    def add(self, name, figures):
        for key, values in figures.items():
            self.samples.setdefault(name, {}).setdefault(key, []).extend(values)

    def write(self):
        args, middle, ratios = self.args, medians(self.samples), {}
        if len(middle) == 2:
            ours, theirs = middle["djinn"], middle["llama.cpp"]
            ratios["djinn / llama.cpp"] = {key: ours[key] / theirs[key] for key in ("prompt_ms", "token_ms")}
        report = {
            "machine": self.machine,
            "commit": self.commit,
            "command": shown(["python3", *sys.argv]),
            "commands": {name: list(dict.fromkeys(program.commands)) for name, program in self.programs.items()},
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "llama_cpp": self.programs["llama.cpp"].build if args.llama_bench else {},
            "file": {"name": args.gguf.name, "bytes": args.gguf.stat().st_size},
            "settings": {key: value for key, value in vars(args).items() if isinstance(value, (int, float, list, str))},
            "medians": middle,
            "ratios": ratios,
            "link_gbps": self.link_gbps,
            "streamed": self.streamed,
            "offloaded": self.offloaded,
            "samples": self.samples,
        }
        text = markdown(report)
        results.write(args.json, report, text)
        return text


def main():
    args = parse()
    programs = {"djinn": Djinn(args)} | ({"llama.cpp": Llama(args)} if args.llama_bench else {})
    report = Report(args, programs)
    text = ""
    for turn in range(args.rounds):
        for name, program in programs.items():
            figures = program.resident()
            report.add(name, figures)
            short = " ".join(f"{key} {statistics.median(values):.2f}" for key, values in figures.items() if "_ms" in key)
            print(f"turn {turn + 1}: {name}: {short}", file=sys.stderr, flush=True)
        text = report.write()
    for vram in args.stream:
        djinn = programs["djinn"]
        report.link_gbps = report.link_gbps or djinn.link()
        for share in (None, args.cpu_share)[:2 if args.cpu_share else 1]:
            row = djinn.streamed(vram, report.link_gbps, share)
            short = f"{row['token_ms']:.1f} ms per token, {row['link_share']:.3f} of {report.link_gbps:.1f} GB/s"
            print(f"{vram} bytes, share {share or 0:g}: {short}", file=sys.stderr, flush=True)
            report.streamed.append(row)
            text = report.write()
    if args.offload_layers is not None or args.experts_on_cpu is not None:
        report.offloaded = programs["llama.cpp"].offloaded()
        text = report.write()
    print(text)


if __name__ == "__main__":
    main()
