"""Builds the documentation site, and looks at it in a browser if asked to.

``python3 tools/docs.py [FOLDER]`` installs the checkout and what its site needs into .venv and writes the site to
FOLDER (build/docs by default); a warning of Sphinx is an error.  ``python3 tools/docs.py --look`` then opens every
page in Chromium, and a report of ``polyconv bench``, wide and narrow: the tests say what is wrong with a page.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from pathlib import Path

from environment import ROOT, environment

LOOKED_AT = ("tests/docs/test_site.py", "tests/benchmark/test_report_in_browser.py")
"""What opens HTML in a browser."""


def main() -> int:
    """Build, and look; the exit code of the first step that fails."""
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "docs")
    parser.add_argument("--look", action="store_true", help="open every page in Chromium too")
    words = parser.parse_args()
    site = words.folder.resolve()
    python = environment("docs", "look") if words.look else environment("docs")
    if _is_ours(site):  # pages that are gone must not stay
        shutil.rmtree(site)
    # --fresh-env: pages are made from docstrings and tables of the package, whose changes Sphinx does not see
    sphinx = ["-m", "sphinx", "--fail-on-warning", "--keep-going", "--fresh-env", "--quiet", "-b", "html"]
    code = subprocess.run([python, *sphinx, ROOT / "docs", site], cwd=ROOT, check=False).returncode
    if code:
        return code
    print(f"the site is {site / 'index.html'}", flush=True)
    if not words.look:
        return 0
    look = [python, "-m", "pytest", "-m", "browser", *LOOKED_AT]
    return subprocess.run(look, cwd=ROOT, env={**os.environ, "POLYCONV_SITE": str(site)}, check=False).returncode


def _is_ours(folder: Path) -> bool:
    """Whether a folder holds an earlier site of this project, by Sphinx's list of what is in it."""
    listed = folder / "objects.inv"
    return listed.exists() and b"# Project: polyconv\n" in listed.read_bytes()[:200]


if __name__ == "__main__":
    raise SystemExit(main())
