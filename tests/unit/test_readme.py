"""The README does what it says: its Python runs, its commands and pages exist."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from polyconv import wisdom
from polyconv.cli import VERBS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)


def test_the_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "make_filter_bank.py"))
    example["write_onnx"](tmp_path / "filter_bank.onnx", example["the_bank"]())
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    assert len(BLOCKS) >= 6
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"README.md, Python block {number + 1}", "exec"), names)
    wisdom.forget()  # what it measured is not for other tests


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target


def test_the_two_commands_exist_and_ci_runs_the_second() -> None:
    [first, second] = re.findall(r"^python3 (tools/\w+\.py)", README, re.M)
    assert (first, second) == ("tools/demo.py", "tools/test.py")
    for script in (first, second):
        assert (ROOT / script).exists()
    assert f"python3 {second}" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_every_verb_it_names_is_one() -> None:
    shell = "".join(re.findall(r"^```sh\n(.*?)^```", README, re.M | re.S))
    named = set(re.findall(r"^polyconv (\w+)", shell, re.M)) | set(re.findall(r"`polyconv (\w+)", README))
    assert {"run", "explain", "check", "info", "cache"} <= named <= set(VERBS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_bytes().decode("ascii")
    for path in re.findall(r"`((?:src/polyconv|tools|docs|tests|examples)/[\w./-]+\.(?:py|md))`", text):
        assert "NAME" in path or (ROOT / path).exists(), path
