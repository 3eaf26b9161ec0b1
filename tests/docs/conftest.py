"""A newcomer's folder: the part of the checkout that pages use, with an environment that is installed already."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from blocks import ROOT

from polyconv import wisdom

PIP = """\
\"\"\"In place of pip: the packages are there already, of the environment that runs the tests.\"\"\"
import sys

assert sys.argv[1] == "install" and "--editable" in sys.argv, sys.argv
"""
"""Installing is for .ci/run, which begins with an empty environment and calls ``python3 tools/demo.py`` too."""


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """Environment of the commands: those of ``.venv`` first, as after ``. .venv/bin/activate``."""
    return _shell(tmp_path)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, for one test: what a fresh clone has, and ``.venv``."""
    _clone(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    wisdom.forget()  # what a page measured is not for other tests


@pytest.fixture
def after_demo(checkout: Path, _demo: Path) -> Path:
    """The same, with what ``python3 tools/demo.py`` leaves behind."""
    (checkout / "demo-output").symlink_to(_demo)
    return checkout


@pytest.fixture(scope="session")
def _demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    _clone(folder)
    command = ["python3", "tools/demo.py"]
    subprocess.run(command, cwd=folder, env={**os.environ, **_shell(folder)}, capture_output=True, check=True)
    return folder / "demo-output"


def _clone(folder: Path) -> None:
    for name in ("tools", "examples"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    made = folder / ".venv"
    venv.create(made, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(made), "platbase": str(made)}))
    places = [str(ROOT / "src"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    (site / "outer.pth").write_text("\n".join(places) + "\n")
    (site / "pip.py").write_text(PIP)
    command = made / "bin" / "polyconv"
    command.write_text(f"#!{made}/bin/python\nimport sys\nfrom polyconv.cli import main\nsys.exit(main())\n")
    command.chmod(0o755)


def _shell(folder: Path) -> dict[str, str]:
    return {
        "PATH": f"{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),  # before an editable installation of another checkout
        "POLYCONV_VENV": "",
        "POLYCONV_WISDOM": str(folder / "wisdom-of-user.json"),
        "COLUMNS": "120",
    }
