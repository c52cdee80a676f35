"""Writes a script's result: JSON whose key `report` is what `djinn-bench report` prints of it, in Markdown."""

import json


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
