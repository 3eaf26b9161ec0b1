"""Python code run in a process of its own, with settings of its own: what a test may break or exhaust."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import textwrap
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"

_FORGOTTEN = (
    "OMP_NUM_THREADS", "POLYCONV_ACCURACY", "POLYCONV_CHECK", "POLYCONV_NUM_THREADS", "POLYCONV_RIGOR",
    "POLYCONV_PROFILE", "POLYCONV_VERBOSE", "POLYCONV_WORKSPACE_LIMIT",
)  # fmt: skip

PATIENCE = float(os.environ.get("POLYCONV_TEST_PATIENCE", "1"))
"""By how much longer a process may take before it counts as hanging: an emulated one is slow."""

PREAMBLE = f"patience = {PATIENCE}\n" + """
import os, sys, threading, time
import numpy as np
import polyconv

def layer(c=32, m=32, k=3, threads=2, **options):
    w = (np.arange(m * c * k * k, dtype=np.float32) % 7 - 3).reshape(m, c, k, k)
    return polyconv.Conv(w, pads=k // 2, threads=threads, **{"accuracy": "strict", **options})

def image(n=1, c=32, size=56):
    return (np.arange(n * c * size * size, dtype=np.float32) % 5 - 2).reshape(n, c, size, size)
"""
"""Every script starts with this; whole numbers make all results exact where no algorithm transforms them."""


def environment(cache: Path | None = None, **variables: str) -> dict[str, str]:
    """Variables of a new process: this one's, less the settings that change what polyconv does."""
    kept = {name: value for name, value in os.environ.items() if name not in _FORGOTTEN}
    if platform.machine() in ("x86_64", "AMD64"):
        kept["POLYCONV_PROFILE"] = "zen5"  # how many threads a layer has, and which algorithm, follows from the profile
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    if cache is not None:
        kept["POLYCONV_CACHE_DIR"] = str(cache)
    return kept | variables


def start(code: str, cache: Path | None = None, **variables: str) -> subprocess.Popen[str]:
    """A process that runs the code after ``PREAMBLE``."""
    return subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(code)],
        env=environment(cache, **variables), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str], timeout: float = 120) -> tuple[int, str, str]:
    """Exit code, standard output and standard error; a process that hangs is killed and fails the test."""
    try:
        out, err = process.communicate(timeout=timeout * PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err


def run(code: str, cache: Path | None = None, **variables: str) -> str:
    """What the code prints; it must exit with 0."""
    status, out, err = finish(start(code, cache, **variables))
    assert status == 0, f"exit code {status}\n{out}\n{err}"
    return out
