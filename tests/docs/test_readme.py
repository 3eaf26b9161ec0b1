"""The README does what it says: a newcomer can paste block after block, and its commands and pages exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from blocks import ROOT, blocks, pages, run

from polyconv.cli import VERBS

README = ROOT / "README.md"
PAGES = [*sorted(ROOT.glob("*.md")), *pages()]

INSTEAD = {
    # .ci/run ends with it, and it would run this test again
    "python3 tools/test.py": "test -f tools/test.py",
    # pip needs an index: .ci/run installs the wheel in an empty environment
    "pip install '.[all]'": "grep '^all = ' pyproject.toml",
    # takes minutes: fewer problems, layers and rounds
    "polyconv check --fuzz 1000": "polyconv check --fuzz 1000 --fuzz 10",
    "polyconv bench --set resnet50": "polyconv bench --set resnet50 --match 5a --seconds 0.05 --rounds 1",
    "polyconv bench --random 100": "polyconv bench --random 2",
    # takes a minute, and has tests of its own in tests/conformance and tests/benchmark: the words are read
    "polyconv check --conformance": "polyconv check --conformance --help",
    "polyconv bench --smoke": "polyconv bench --smoke --help",
}
"""What is run in place of a line that cannot run as it stands, or takes too long."""


def instead(line: str) -> str:
    """The line that is run, without its comment where another takes its place."""
    command = line.partition("  #")[0].rstrip()
    return INSTEAD.get(command, line)


def test_every_block_runs(checkout: Path, shell: dict[str, str]) -> None:
    languages = [block.language for block in blocks(README)]
    assert languages.count("python") >= 6
    assert languages.count("sh") >= 3
    run(README, shell, instead)
    assert (checkout / "demo-output" / "contact-sheet.png").exists()
    assert (checkout / "wisdom.json").exists()


def test_every_line_that_is_replaced_is_there() -> None:
    lines = [line for block in blocks(README) if block.language == "sh" for line in block.text.splitlines()]
    assert {line.partition("  #")[0].rstrip() for line in lines if instead(line) != line} == set(INSTEAD)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target


def test_ci_runs_the_two_commands() -> None:
    commands = re.findall(r"^python3 tools/\w+\.py", README.read_text(encoding="utf-8"), re.M)
    assert commands == ["python3 tools/demo.py", "python3 tools/test.py"]
    for command in commands:
        assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_every_verb_it_names_is_one() -> None:
    text = README.read_text(encoding="utf-8")
    shell = "".join(block.text for block in blocks(README) if block.language == "sh")
    named = set(re.findall(r"^polyconv (\w+)", shell, re.M)) | set(re.findall(r"`polyconv (\w+)", text))
    assert {"run", "explain", "check", "info", "cache"} <= named <= set(VERBS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_bytes().decode("ascii")
    for path in re.findall(r"`((?:src/polyconv|tools|docs|tests|examples)/[\w./-]+\.(?:py|md))`", text):
        assert "NAME" in path or (ROOT / path).exists(), path
