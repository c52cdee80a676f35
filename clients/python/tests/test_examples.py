"""The examples of the README run as they stand, against SmolLM2."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()
SECTIONS = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", README, re.M | re.S)
EXAMPLES = [(title, code) for title, text in SECTIONS for code in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)]


@pytest.mark.parametrize(("title", "code"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_example(title: str, code: str, smollm2: str, capsys: pytest.CaptureFixture[str]) -> None:
    own = code.replace("http://127.0.0.1:5556", smollm2)
    assert own != code, "it names no server"
    exec(compile(own, f"README.md, {title}", "exec"), {})
    assert capsys.readouterr().out.strip()
