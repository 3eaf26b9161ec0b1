"""Code blocks of a page, and running them in order in one folder as a reader who pastes them would."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

SHOWN = ("text", "dockerfile", "py")
"""Languages of blocks that show something and are not run: output, a grammar, a file of the package or another tool."""

_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, its text, the line on which its text begins."""

    language: str
    text: str
    line: int


def pages() -> list[Path]:
    """Pages that people wrote: not those that a build of the site makes."""
    return sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "made")


def blocks(page: Path) -> list[Block]:
    """The blocks of a page; Sphinx's directives, ``{name}``, are left out."""
    text = page.read_text(encoding="utf-8")
    found = [Block(m[1].strip(), m[2], text.count("\n", 0, m.start()) + 2) for m in _FENCE.finditer(text)]
    return [block for block in found if not block.language.startswith("{")]


def run(page: Path, shell: Mapping[str, str], instead: Callable[[str], str] = str) -> None:
    """Run the Python in this process and the shell commands by bash, all in the folder that is current now.

    Parameters
    ----------
    shell : mapping
        Environment of the commands.
    instead : callable
        What is run in place of a line of shell; the line itself by default.
    """
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        where = f"{page.name}, line {block.line}"
        if block.language == "python":
            # as many empty lines before it as there are in the page: tracebacks name the page's lines
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)
        elif block.language == "sh":
            lines = [instead(line) for line in block.text.splitlines()]
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", "\n".join(lines)],
                env={**os.environ, **shell}, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        else:
            assert block.language in SHOWN, f"{where}: what is a block of '{block.language}'?"
