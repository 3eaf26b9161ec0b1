"""No kernel reads or writes beyond its operands, tables, packed weights or workspace: memory ends where they do."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fenced import PAGE, fenced
from fresh import PATIENCE, environment

from polyconv.target import levels

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="protects pages with mprotect")


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("level", levels())
def test_nothing_is_touched_beyond_any_array(level: str, seed: int) -> None:
    """Every algorithm on problems of every kind; operands plain, reversed, strided and transposed."""
    found = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("fenced.py")), str(seed), "40"],
        env=environment(POLYCONV_TARGET=level), capture_output=True, text=True, timeout=300 * PATIENCE,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]


@pytest.mark.parametrize(
    ("touch", "at_end"), [("a[5]", True), ("a[-1]", False), ("a[5] = 1", True), ("a[-1] = 1", False)]
)
def test_the_fence_holds(touch: str, at_end: bool) -> None:
    """Reading or writing one byte beyond is fatal; the bytes before are not."""
    code = f"""
import ctypes
from fenced import fenced
array = fenced(5, "u1", at_end={at_end})
array[:] = 1
a = ctypes.cast(array.ctypes.data, ctypes.POINTER(ctypes.c_uint8))
print(a[0] + a[4], flush=True)
{touch}
"""
    found = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert found.stdout.strip() == "2"
    assert found.returncode == -signal.SIGSEGV


def test_fenced_arrays_lie_where_they_should() -> None:
    for shape, dtype in (((3, 5), np.float32), ((PAGE,), np.int8), ((1,), np.float64), ((0, 4), np.int16)):
        last, first = fenced(shape, dtype), fenced(shape, dtype, at_end=False)
        assert last.shape == first.shape == shape
        assert (last.ctypes.data + last.nbytes) % PAGE == 0
        assert first.ctypes.data % PAGE == 0
