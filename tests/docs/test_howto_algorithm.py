"""The page on adding an algorithm is right: its steps, done in a copy of the package, make an algorithm that passes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from blocks import DOCS, ROOT, blocks

PAGE = DOCS / "howto-algorithm.md"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package to which the page's algorithm is added."""
    folder = tmp_path_factory.mktemp("copy")
    package = folder / "polyconv"
    shutil.copytree(ROOT / "src" / "polyconv", package, ignore=shutil.ignore_patterns("__pycache__"))
    code, row = [block.text for block in blocks(PAGE) if block.language == "py"]
    (package / "algorithms" / "scalar.py").write_text(code)
    table = package / "algorithms" / "table.py"
    text = table.read_text()
    start = "    for row in (\n"
    assert text.count(start) == 1
    table.write_text(text.replace(start, start + "        " + row))
    return folder


def _run(copy: Path, *arguments: str, check: bool = False) -> str:
    mode = {"POLYCONV_CHECK": "1"} if check else {}
    environment = {**os.environ, **mode, "PYTHONPATH": str(copy), "POLYCONV_CACHE_DIR": str(copy / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "polyconv", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_planner_prices_it(copy: Path) -> None:
    told = _run(copy, "explain", "--json", "conv f32 NCHW n1 c3 i8x8 m4 k3x3 p1")
    (plan,) = json.loads(told)["plans"]
    assert "scalar" in {candidate["algorithm"] for candidate in plan["candidates"]}


@pytest.mark.parametrize("check", [False, True], ids=["plain", "checked"])
def test_it_passes_random_problems(copy: Path, check: bool) -> None:
    told = json.loads(_run(copy, "check", "--json", "--fuzz", "90", "--algorithm", "scalar", check=check))["fuzz"]
    assert told["findings"] == [] and told["next"] - told["not_applicable"] >= 10
