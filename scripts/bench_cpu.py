#!/usr/bin/env python3
"""Times Djinn beside llama.cpp on the CPU: SmolLM2 in bf16, in f16 and as stored, one prompt, greedy decoding.

    python3 scripts/bench_cpu.py --djinn target/release/djinn --models DIR --json OUT.json
        [--threads 2] [--runs 5] [--prompt-tokens 512] [--decode-tokens 64]
        [--stored SmolLM2-135M-Instruct.Q4_1.gguf]
        [--djinn-dtypes bf16 f16 stored int8] [--llama-dtypes bf16 f16 stored] [--djinn-args ...]

Needs llama-cpp-python (built for this machine) and numpy; DIR is what make_smollm2.py wrote. The type `stored` stands for
the file of --stored, in blocks, as each program runs it by default: llama.cpp then rounds activations to 8 bits, and
Djinn does not. `int8` is Djinn with the same file and --activations int8. Without --djinn only llama.cpp is timed. Every sample is a fresh process; the programs take turns (A B C D A B C D …), so that a
change of the machine's mood meets all of them.

    ttft_ms       from the prompt's tokens to the first token chosen: one pass over all prompt tokens, and an argmax
    tpot_ms       mean over the following single-token passes, argmax included
    peak_rss      of the whole process, in bytes; llama.cpp's is Python's process, whose own share before the model
                  is loaded is base_rss
    wall_s        the process from start to end; llama.cpp's runs the prompt twice

llama.cpp gets its defaults (mapped weights, f16 KV cache, flash attention as it decides) with n_batch = n_ubatch =
the prompt's length, at least 512. It is timed after a whole untimed prompt in the same process (`ttft_ms`), and that
first prompt is reported as cold_ttft_ms. Djinn's figures are those of the only prompt in its process, by its own
`stats`. Decode figures are also given as a share of the memory bandwidth that two reading threads of numpy reach.
"""

import argparse
import datetime
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import results

METRICS = ("ttft_ms", "tpot_ms")
FIRST_PLAIN_TOKEN = 17  # smaller ids are special tokens
TIMEOUT_S = 600
STORED = "stored"
INT8 = "int8"


def prompt_tokens(count, vocab=49152):
    """A fixed sequence of ordinary tokens, by a linear congruence; the values do not matter for the time."""
    state, out = 12345, []
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        out.append(FIRST_PLAIN_TOKEN + (state >> 8) % (vocab - FIRST_PLAIN_TOKEN))
    return out


def model_path(arguments, dtype):
    if dtype in (STORED, INT8):
        if arguments.stored is None or not arguments.stored.is_file():
            sys.exit(f"the type {dtype} needs --stored FILE, and the file")
        return arguments.stored
    path = arguments.models / f"smollm2-{dtype}.gguf"
    if not path.is_file():
        sys.exit(f"{path}: no such file (scripts/make_smollm2.py writes it)")
    return path


def llama_sample(path, prompt, decode, threads):
    """One sample of llama.cpp in this process."""
    from oracle_llama_cpp import Model

    base_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    start = time.perf_counter()
    model = Model(path, threads, exact=False, context=len(prompt) + decode + 64, batch=max(512, len(prompt)))
    load_ms = (time.perf_counter() - start) * 1e3

    def first():
        start = time.perf_counter()
        token = int(model.decode(prompt).argmax())
        return token, (time.perf_counter() - start) * 1e3

    _, cold_ttft_ms = first()
    model.decode([prompt[0]])
    model.reset()
    token, ttft_ms = first()
    tokens = [token]
    start = time.perf_counter()
    for _ in range(decode):
        tokens.append(int(model.decode(tokens[-1:]).argmax()))
    tpot_ms = (time.perf_counter() - start) * 1e3 / decode
    return {
        "ttft_ms": ttft_ms,
        "tpot_ms": tpot_ms,
        "cold_ttft_ms": cold_ttft_ms,
        "load_ms": load_ms,
        "base_rss": base_rss,
        "tokens": tokens,
    }


def run_child(command, environment):
    """The command's standard output, its wall time and its peak resident bytes; exits when it fails."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment)
        timer = threading.Timer(TIMEOUT_S, child.kill)
        timer.start()
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            child.kill()
            raise
        finally:
            timer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.perf_counter() - start
        out.seek(0)
        err.seek(0)
        text, problem = out.read().decode(), err.read().decode(errors="replace").strip()
    if child.returncode != 0:
        last = problem.splitlines()[-1] if problem else "no message"
        sys.exit(f"{Path(command[0]).name} ended with status {child.returncode}: {last}")
    return text, wall_s, usage.ru_maxrss * 1024


def djinn_command(arguments, dtype, prompt):
    return [
        str(arguments.djinn),
        "run",
        str(model_path(arguments, dtype)),
        "--prompt-tokens",
        ",".join(map(str, prompt)),
        "--max-tokens",
        str(arguments.decode_tokens + 1),
        "--greedy",
        "--ignore-eos",
        "--json",
        *(["--activations", "int8"] if dtype == INT8 else []),
        *arguments.djinn_args,
    ]


def djinn_sample(arguments, dtype, prompt):
    environment = {**os.environ, "DJINN_THREADS": str(arguments.threads)}
    text, wall_s, peak = run_child(djinn_command(arguments, dtype, prompt), environment)
    answer = json.loads(text)
    wanted = arguments.decode_tokens + 1
    if len(answer["tokens"]) != wanted:
        sys.exit(f"djinn gave {len(answer['tokens'])} tokens instead of {wanted}")
    stats = answer["stats"]
    return {
        "ttft_ms": float(stats["ttft_ms"]),
        "tpot_ms": float(stats["tpot_ms"]),
        "wall_s": wall_s,
        "peak_rss": peak,
        "stats": stats,
        "tokens": answer["tokens"],
    }


def llama_child(arguments, dtype):
    command = [sys.executable, str(Path(__file__).resolve()), "--llama-sample", dtype]
    command += ["--models", str(arguments.models), "--threads", str(arguments.threads)]
    command += ["--prompt-tokens", str(arguments.prompt_tokens)]
    command += ["--decode-tokens", str(arguments.decode_tokens)]
    if arguments.stored is not None:
        command += ["--stored", str(arguments.stored)]
    text, wall_s, peak = run_child(command, os.environ)
    return {**json.loads(text), "wall_s": wall_s, "peak_rss": peak}


def bandwidth_sample(threads, size=1 << 30, repeats=5):
    """Bytes per second that `threads` threads read together: the best of some maxima over 1 GiB of int32."""
    import numpy as np

    parts = np.array_split(np.ones(size // 4, dtype=np.int32), threads)
    best = float("inf")
    for _ in range(repeats):
        workers = [threading.Thread(target=part.max) for part in parts]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = min(best, time.perf_counter() - start)
    return size / best


def read_bandwidth(arguments):
    """In a process of its own: a child's peak resident size starts at that of the process that forks it, so this
    one stays small."""
    command = [sys.executable, str(Path(__file__).resolve()), "--bandwidth-sample", "--models", "."]
    return float(run_child([*command, "--threads", str(arguments.threads)], os.environ)[0])


def first_line(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else None


def machine():
    info = Path("/proc/cpuinfo").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in reversed(info) if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    flags = fields.get("flags", "").split()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": fields.get("model name"),
        "family_model": [fields.get("cpu family"), fields.get("model")],
        "features": [flag for flag in flags if flag.startswith(("avx", "fma", "f16c", "amx"))],
        "cores": os.cpu_count(),
        "memory_bytes": memory,
    }


def library_versions():
    """Imports the libraries, so it is called after the last sample."""
    import llama_cpp
    import numpy

    return {
        "llama-cpp-python": llama_cpp.__version__,
        "llama.cpp": llama_cpp.llama_print_system_info().decode().strip(" |"),
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def commit(djinn):
    """That of the binary, as it was recorded when it was built."""
    version = djinn and first_line([str(djinn), "--version"])
    found = version and re.search(r"\(commit (.+)\)", version)
    return found.group(1) if found else "unknown"


def shown_command():
    """The command line without the directories of this machine."""
    return " ".join(Path(word).name if "/" in word else word for word in ["python3", *sys.argv])


def measure(arguments):
    """Configuration name -> samples, in turns."""
    prompt = prompt_tokens(arguments.prompt_tokens)
    jobs = []
    for dtype in dict.fromkeys([*arguments.djinn_dtypes, *arguments.llama_dtypes]):
        if arguments.djinn and dtype in arguments.djinn_dtypes:
            jobs.append((f"djinn {dtype}", lambda d=dtype: djinn_sample(arguments, d, prompt)))
        if dtype in arguments.llama_dtypes:
            jobs.append((f"llama.cpp {dtype}", lambda d=dtype: llama_child(arguments, d)))
    for dtype in {name.split()[1] for name, _ in jobs}:
        with model_path(arguments, dtype).open("rb") as file:  # into the page cache
            while file.read(1 << 24):
                pass
    samples = {name: [] for name, _ in jobs}
    for turn in range(arguments.runs):
        for name, job in jobs:
            load = os.getloadavg()[0]
            sample = job()
            samples[name].append({**sample, "load_before": load})
            figures = " ".join(f"{metric} {sample[metric]:.2f}" for metric in METRICS)
            print(f"run {turn + 1}: {name}: {figures}", file=sys.stderr)
    return samples


def medians(samples):
    keys = ("ttft_ms", "tpot_ms", "cold_ttft_ms", "load_ms", "wall_s", "peak_rss", "base_rss")
    return {
        name: {key: statistics.median(s[key] for s in runs) for key in keys if key in runs[0]}
        for name, runs in samples.items()
    }


def ratios(middle):
    """Djinn's median over llama.cpp's: below 1, Djinn is faster."""
    out = {}
    for ours in (name for name in middle if name.startswith("djinn")):
        for theirs in (name for name in middle if name.startswith("llama.cpp")):
            out[f"{ours} / {theirs}"] = {m: middle[ours][m] / middle[theirs][m] for m in METRICS}
    return out


def agreement(samples):
    """How many leading greedy tokens of Djinn's first sample llama.cpp's has too, by element type. They part where
    two logits are close, because llama.cpp rounds activations to the weights' type."""
    out = {}
    for name, runs in samples.items():
        other = samples.get(name.replace("djinn", "llama.cpp").replace(INT8, STORED))
        if name.startswith("djinn") and other:
            pairs = zip(runs[0]["tokens"], other[0]["tokens"])
            out[name] = next((i for i, (a, b) in enumerate(pairs) if a != b), len(runs[0]["tokens"]))
    return out


def markdown(report):
    settings = report["settings"]
    where = f"{report['machine']['cpu']}, {settings['threads']} threads, {report['date']}, commit {report['commit']}"
    how = f"medians of {settings['runs']} runs, {settings['prompt_tokens']}-token prompt, {settings['decode_tokens']} further tokens."
    rows = [
        [name, f"{row['ttft_ms']:.1f}", f"{row['tpot_ms']:.2f}", f"{row['peak_rss'] / (1 << 20):.0f}"]
        for name, row in report["medians"].items()
    ]
    return f"{where}: `{report['command']}`\n\n{how}\n\n" + results.table(1, ["", "TTFT ms", "ms/token", "peak MiB"], rows)


def print_table(report):
    bandwidth = report["read_bandwidth"]["bytes_per_s"]
    print(f"{report['machine']['cpu']}, {report['settings']['threads']} threads, read {bandwidth / 1e9:.1f} GB/s")
    print(f"{'':16}{'TTFT ms':>10}{'cold ms':>10}{'ms/token':>10}{'of read':>9}{'peak MB':>9}")
    for name, row in report["medians"].items():
        cold = f"{row['cold_ttft_ms']:10.1f}" if "cold_ttft_ms" in row else f"{'':10}"
        share = report["decode_share_of_bandwidth"][name]
        print(
            f"{name:16}{row['ttft_ms']:10.1f}{cold}{row['tpot_ms']:10.2f}{share:9.0%}{row['peak_rss'] / 1e6:9.0f}"
        )
    for name, row in report["ratios"].items():
        print(f"{name}: TTFT {row['ttft_ms']:.3f}, time per token {row['tpot_ms']:.3f}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--djinn", type=Path, help="the release binary")
    parser.add_argument("--models", type=Path, required=True, help="directory written by make_smollm2.py")
    parser.add_argument("--stored", type=Path, help="the quantised file")
    parser.add_argument("--json", type=Path, help="report to write")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--decode-tokens", type=int, default=64)
    parser.add_argument("--djinn-dtypes", nargs="+", default=["bf16", "f16"])
    parser.add_argument("--llama-dtypes", nargs="+", default=["bf16", "f16"])
    parser.add_argument("--djinn-args", nargs=argparse.REMAINDER, default=[], help="further flags of djinn run, last")
    parser.add_argument("--llama-sample", metavar="DTYPE", help=argparse.SUPPRESS)
    parser.add_argument("--bandwidth-sample", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for name in ("threads", "runs", "prompt_tokens", "decode_tokens"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    internal = arguments.llama_sample is not None or arguments.bandwidth_sample
    if not internal and arguments.json is None:
        parser.error("--json is required")
    if arguments.djinn is not None and not os.access(arguments.djinn, os.X_OK):
        parser.error(f"{arguments.djinn} is no program")
    return arguments


def main():
    arguments = parse()
    if arguments.bandwidth_sample:
        print(bandwidth_sample(arguments.threads))
        return
    if arguments.llama_sample is not None:
        path = model_path(arguments, arguments.llama_sample)
        prompt = prompt_tokens(arguments.prompt_tokens)
        print(json.dumps(llama_sample(path, prompt, arguments.decode_tokens, arguments.threads)))
        return
    before = read_bandwidth(arguments)
    samples = measure(arguments)
    bandwidth = max(before, read_bandwidth(arguments))
    middle = medians(samples)
    weights = {name: model_path(arguments, name.split()[1]).stat().st_size for name in samples}
    settings = ("threads", "runs", "prompt_tokens", "decode_tokens", "djinn_args")
    report = {
        "machine": machine(),
        "commit": commit(arguments.djinn),
        "command": shown_command(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "versions": {"djinn": arguments.djinn and first_line([str(arguments.djinn), "--version"])}
        | library_versions(),
        "settings": {key: getattr(arguments, key) for key in settings},
        "read_bandwidth": {"bytes_per_s": bandwidth, "before": before, "method": "numpy int32 max over 1 GiB"},
        "file_bytes": weights,
        "medians": middle,
        "ratios": ratios(middle),
        "equal_leading_tokens": agreement(samples),
        "decode_share_of_bandwidth": {
            name: weights[name] / (middle[name]["tpot_ms"] / 1e3) / bandwidth for name in samples
        },
        "samples": samples,
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    results.write(arguments.json, report, markdown(report))
    print_table(report)


if __name__ == "__main__":
    main()
