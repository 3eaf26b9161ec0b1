"""The Python of the pages runs, block after block."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ["arrays.md", "problem-text.md", "sessions.md"]


@pytest.mark.parametrize("name", PAGES)
def test_the_python_runs(name: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / name).read_text(encoding="utf-8"), re.M | re.S)
    assert blocks
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{name}, Python block {number + 1}", "exec"), names)
