"""The budget of the house: lines of a file, of a function and of a folder, so that growth is seen where it happens."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import polyconv

SOURCE = Path(polyconv.__file__).parent

MOST_LINES = 400
LONG_FILES: dict[str, tuple[int, str]] = {}
"""Files above it, with the lines that each may have and the reason.  They may shrink, not grow."""

MOST_BODY_LINES = 60
LONG_FUNCTIONS = {
    "kernels/depthwise.py _reader": (62, "five ways to read an input, tied to what they share"),
    "kernels/depthwise.py depthwise_tile": (74, "the kernel as one text, its parts inside"),
    "kernels/depthwise_plane.py depthwise_plane": (150, "the kernel as one text, its parts inside"),
}
"""Functions above it, docstring and signature not counted."""

FOLDERS = {
    ".": 4450, "algorithms": 21060, "benchmark": 5955, "cli": 4410, "conformance": 6340, "dialects": 2260,
    "fields": 750, "gpu": 7280, "kernels": 10240, "lowering": 2960, "machine": 705, "models": 16280, "ndimage": 2000,
    "operators": 10760, "planning": 1120, "problem": 1880, "runtime": 2020,
}  # fmt: skip
"""Lines that a folder of the package may have; ``.`` are the files beside the folders."""

WAY_OUT = "say in the commit why it needs more, and raise the figure in tests/unit/test_house.py"


def files() -> Iterator[tuple[str, str]]:
    """Every file of the package: its path in it, and its text."""
    for file in sorted(SOURCE.rglob("*.py")):
        yield file.relative_to(SOURCE).as_posix(), file.read_text("utf-8")


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement after the docstring to the last."""
    first = function.body[1 if ast.get_docstring(function) is not None and len(function.body) > 1 else 0]
    return (function.end_lineno or first.lineno) - first.lineno + 1


def long_functions() -> dict[str, int]:
    """Functions whose bodies are too long, by file and name."""
    found: dict[str, int] = {}
    for path, text in files():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{path} {node.name}"
                found[name] = max(body_lines(node), found.get(name, 0))
    return {name: lines for name, lines in found.items() if lines > MOST_BODY_LINES}


def compared(found: dict[str, int], table: dict[str, tuple[int, str]], most: int) -> list[str]:
    """What exceeds its row of a table, or the most where it has none; and rows that nothing needs."""
    over = [
        f"{name} has {lines} lines, at most {allowed} are allowed: cut it where two ideas meet"
        for name, lines in found.items()
        if lines > (allowed := table.get(name, (most, ""))[0])
    ]
    return over + [f"{name} has no more than {most} lines: take its row out" for name in table if name not in found]


def test_files_are_short() -> None:
    long = {path: lines for path, text in files() if (lines := text.count("\n")) > MOST_LINES}
    assert compared(long, LONG_FILES, MOST_LINES) == []


def test_functions_are_short() -> None:
    assert compared(long_functions(), LONG_FUNCTIONS, MOST_BODY_LINES) == []


def test_folders_stay_within_their_budget() -> None:
    lines: Counter[str] = Counter()
    for path, text in files():
        lines[path.split("/")[0] if "/" in path else "."] += text.count("\n")
    assert set(lines) == set(FOLDERS), "give a new folder a row, and take out that of one that is gone"
    over = [f"{name} has {lines[name]} lines, its budget is {FOLDERS[name]}" for name in FOLDERS
            if lines[name] > FOLDERS[name]]  # fmt: skip
    assert over == [], WAY_OUT


def test_what_is_too_long_is_found() -> None:
    """The measure itself: a body without docstring and signature, a row that is exceeded, one that is not needed."""
    source = "def f(\n    a,\n):\n    '''Say.\n\n    More.\n    '''\n    a += 1\n    return a\n"
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    assert body_lines(function) == 2
    table = {"a.py": (500, "so"), "b.py": (500, "so")}
    said = compared({"a.py": 501, "c.py": 401}, table, 400)
    assert [sentence.split()[0] for sentence in said] == ["a.py", "c.py", "b.py"]
    assert compared({"a.py": 450, "b.py": 500}, table, 400) == []
