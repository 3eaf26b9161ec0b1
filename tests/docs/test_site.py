"""The built site in a real browser, and every public name in it: ``python3 tools/docs.py --look`` runs this.

POLYCONV_SITE is the folder of the site.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import chromium, faults
from test_examples import WISDOM

import polyconv
from polyconv import dialects, ndimage
from polyconv.cli import VERBS
from polyconv.settings import SETTINGS

pytestmark = pytest.mark.browser

SITE = Path(os.environ.get("POLYCONV_SITE", "build/docs"))
PAGES = sorted(str(page.relative_to(SITE)) for page in SITE.rglob("*.html") if "_static" not in page.parts)
MODULES = ("dialects", "ndimage", "wisdom")

FAULTY = """<!doctype html><title>faulty</title><main>
<div style="width: 1500px">too wide</div>
<div style="overflow-x: auto"><h1>text</h1><p style="width: 800px">cut off</p></div>
<pre style="overflow-x: auto"><code style="display: block; width: 900px">code may scroll</code></pre>
<img src="missing.png"><link rel="stylesheet" href="https://example.org/x.css">
<script>console.error("a complaint"); missing()</script></main>"""

SEEN = (
    "at 1280 px: the page is", "at 400 px: div ends at", "at 400 px: p ends at", "console: a complaint",
    "script: missing", "network: https://example.org/x.css", "no picture",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


def test_there_is_a_site() -> None:
    assert "index.html" in PAGES, f"no site in {SITE.resolve()}: python3 tools/docs.py makes it"


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wrong_in_a_browser(browser: Any, name: str) -> None:
    assert faults(browser, SITE / name) == []


def test_faults_are_seen(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "faulty.html").write_text(FAULTY)
    found = "\n".join(faults(browser, tmp_path / "faulty.html"))
    assert [fault for fault in SEEN if fault not in found] == []
    assert "code" not in found


def test_every_public_name_has_its_place() -> None:
    places = set()
    for page in (SITE / "reference").glob("*.html"):
        places |= set(re.findall(r'<dt[^>]* id="([\w.]+)"', page.read_text(encoding="utf-8")))
    wanted = {f"polyconv.{name}" for name in polyconv.__all__ if name not in MODULES}
    wanted |= {f"polyconv.ndimage.{name}" for name in ndimage.__all__}
    wanted |= {f"polyconv.wisdom.{name}" for name in WISDOM}
    assert wanted <= places


def test_every_operator_setting_and_verb_has_its_place() -> None:
    reference = {page.stem: page.read_text(encoding="utf-8") for page in (SITE / "reference").glob("*.html")}
    for dialect in dialects.__all__:
        module = getattr(dialects, dialect)
        for name, _ in module.OPERATORS if dialect != "ort" else [(row.name, 0) for row in module.OPERATORS.values()]:
            assert f">{dialect}.{name}<" in reference["dialects"], name
    for verb in VERBS:
        assert f"polyconv {verb} [OPTIONS]" in reference["command-line"]
    settings = (SITE / "settings.html").read_text(encoding="utf-8")
    for row in SETTINGS.values():
        assert all(variable in settings for variable in row.variables)
