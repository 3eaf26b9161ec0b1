"""The report of ``polyconv bench`` in a real browser: ``python3 tools/docs.py --look`` runs this."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import chromium, faults

from polyconv.benchmark.report import report
from polyconv.benchmark.run import Options, run
from polyconv.benchmark.sets import of_line

LAYERS = (
    "conv f32 NCHW n1 c64 i56x56 m64 k3x3 p1  # a layer with a name as long as those of networks are, and longer",
    "conv f32 NHWC n2 c6 i9x8 m8 k3x3 p1:0x0:1 s2x1 g2 b1 act=Clip(0,6)  # tiny grouped",
)


@pytest.mark.browser
def test_nothing_is_wrong_in_a_browser(tmp_path: Path) -> None:
    layers, options = [of_line(line) for line in LAYERS], Options(seconds=0.05, rounds=1)
    page = report(run(layers, options, machine={"cpu": {"name": "this"}}))
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    (tmp_path / "opened.html").write_text(page.replace("<details", "<details open"), encoding="utf-8")
    with chromium() as browser:
        for name in ("report.html", "opened.html"):
            assert faults(browser, tmp_path / name) == []
