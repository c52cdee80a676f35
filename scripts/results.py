"""Writes a script's result: JSON whose key `report` is what `djinn-bench report` prints of it, in Markdown."""

import datetime
import json
import sys
from pathlib import Path


def write(path, result, report):
    path.write_text(json.dumps(result | {"report": report}, indent=1) + "\n")


def table(left, head, rows):
    """A table whose first `left` columns are text and the others numbers."""
    lines = [head, *rows]
    text = [f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines]
    rule = f"|{'|'.join('---' if i < left else '--:' for i in range(len(head)))}|\n"
    return "".join([text[0], rule, *text[1:]])


def machine(gpu):
    """What a report calls the machine of a GPU, e.g. "NVIDIA H200"."""
    return f"one {gpu.removeprefix('NVIDIA ').split()[0]} machine"


def finish(path, gpu, commit, failures, text, **more):
    """Writes what a script found of kernels of a commit, `text` under a heading, and ends it: with 1 if there are failures."""
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    command = " ".join([f"scripts/{Path(sys.argv[0]).name}", *(a for a in sys.argv[1:] if "/" not in a)])
    heading = f"{machine(gpu)}, {gpu}, {date}, kernels of {commit}: `{command}`\n\n"
    write(path, {"date": date, "gpu": gpu, "commit": commit, "failures": failures} | more, heading + text)
    sys.exit(bool(failures))
