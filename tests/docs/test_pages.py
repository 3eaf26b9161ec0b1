"""The code of the pages runs, block after block, in the folder that ``python3 tools/demo.py`` leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from blocks import DOCS, blocks, pages, run

PAGES = {str(page.relative_to(DOCS)): page for page in pages() if blocks(page)}

LONG = {
    "benchmarks.md": "every layer against every engine takes half an hour",
    "gpu.md": "a GPU is seldom there; tests/gpu run its kernels without one",
    "conformance.md": "thousands of problems by every algorithm take an hour; tests/conformance runs some of them",
    "platforms.md": "an emulated machine takes half an hour",
    "tuning.md": "every layer by every algorithm takes ten minutes; tutorial/tune.md has the commands for one model",
}
"""Pages whose commands are not run here, and why."""


@pytest.mark.parametrize("name", [name for name in PAGES if name not in LONG])
def test_the_code_runs(name: str, after_demo: Path, shell: dict[str, str]) -> None:
    run(PAGES[name], shell)


def test_pages_that_are_not_run_have_no_python() -> None:
    languages = {block.language for name in LONG for block in blocks(PAGES[name])}
    assert languages == {"sh", "pycon"}  # what a session printed, on a GPU
