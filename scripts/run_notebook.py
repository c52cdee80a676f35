#!/usr/bin/env python3
"""Runs the cells of clients/python/notebooks/steering.ipynb against a `djinn serve` of SmolLM2, and writes their outputs into it.

    python3 scripts/run_notebook.py DJINN [NOTEBOOK]

Needs nbclient, ipykernel, matplotlib, and clients/python installed."""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

import served

NOTEBOOK = served.ROOT / "clients/python/notebooks/steering.ipynb"


def main():
    djinn, path = sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else NOTEBOOK
    notebook = nbformat.read(path, as_version=4)
    with served.Served(djinn, "--alias=smollm2", "--ctx=256", model="smollm2") as server:
        os.environ["DJINN_URL"] = f"http://127.0.0.1:{server.port}"
        NotebookClient(notebook, timeout=600).execute()
    # When and for how long cells ran changes with every run.
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
