"""Ctrl-C ends every command with exit code 130 and one line, also while Python is still importing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., subprocess.CompletedProcess[str]]

SOURCE = Path(__file__).parents[2] / "src"
PROBLEM = "conv f32 NCHW n1 c3 i8x8 m4 k3x3"

HOOK = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may ignore it from the start

class Interrupting:
    # sends SIGINT to this process when a module is about to be imported
    def find_spec(self, name, path=None, target=None):
        if name == os.environ.get("INTERRUPT_AT"):
            del os.environ["INTERRUPT_AT"]
            for _ in range(int(os.environ.get("TIMES", "1"))):
                signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
"""

ENTRIES = {
    "script": ["-c", "import sys; from polyconv.cli import main; sys.exit(main())"],
    "module": ["-m", "polyconv.cli"],
    "ignoring": [
        "-c", "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "from polyconv.cli import main; sys.exit(main())",
    ],
}  # fmt: skip


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """``command(words, at)``: the process of a command that is interrupted when it imports a module."""
    (tmp_path / "sitecustomize.py").write_text(HOOK)

    def call(words: list[str], at: str, entry: str = "script", **variables: str) -> subprocess.CompletedProcess[str]:
        paths = [str(tmp_path), str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "INTERRUPT_AT": at, **variables}
        line = [sys.executable, *ENTRIES[entry], *words]
        return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120, check=False)

    return call


@pytest.mark.parametrize("entry", ["script", "module"])
@pytest.mark.parametrize("at", ["typer", "rich", "numpy.linalg", "polyconv.problem.problem", "polyconv.cli.run"])
def test_an_interrupt_while_modules_are_imported(command: Command, at: str, entry: str) -> None:
    done = command(["run", PROBLEM], at, entry)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "polyconv: interrupted\n")


@pytest.mark.parametrize("at", ["numpy", "llvmlite", "polyconv.kernels.language"])
def test_an_interrupt_as_a_document(command: Command, at: str) -> None:
    done = command(["run", PROBLEM, "--json"], at)
    assert done.returncode == 130
    assert json.loads(done.stdout)["error"]["code"] == "interrupted"
    assert done.stderr == ""


def test_an_impatient_second_one(command: Command) -> None:
    """It does not wait for the imports to end."""
    done = command(["run", PROBLEM], "numpy", TIMES="2")
    assert done.returncode == 130
    assert done.stderr.endswith("polyconv: interrupted\n")
    assert "Traceback" not in done.stderr


def test_an_interrupt_that_arrives_as_another_error(command: Command, tmp_path: Path) -> None:
    """A package written in C may tell of it as an ImportError of its own."""
    (tmp_path / "onnx.py").write_text(
        "import signal\n"
        "try:\n    signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt:\n    raise ImportError('half')\n"
    )
    (tmp_path / "model.onnx").write_bytes(b"\x08\x07")
    done = command(["run", str(tmp_path / "model.onnx")], "")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "polyconv: interrupted\n")


def test_ignored_interrupts_stay_ignored(command: Command) -> None:
    """As a shell has it for a job in the background."""
    done = command(["info"], "numpy", "ignoring")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_that_a_finaliser_swallows_is_not_lost() -> None:
    """What is raised in ``__del__`` is printed and ignored."""
    code = (
        "import signal, sys, polyconv.cli\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from polyconv.conformance import fuzz\n"
        "class Swallowing:\n"
        "    def __del__(self): signal.raise_signal(signal.SIGINT)\n"
        "drawn = fuzz.drawn\n"
        "def swallow(seed, index, **more):\n"
        "    if index == 3: Swallowing()\n"
        "    return drawn(seed, index, **more)\n"
        "fuzz.drawn = swallow\n"
        "sys.exit(polyconv.cli.main(['check', '--fuzz', '1000000', '--peers', '']))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300,
                          check=False)  # fmt: skip
    assert done.returncode == 130, done.stderr
    assert "interrupted" in done.stderr
