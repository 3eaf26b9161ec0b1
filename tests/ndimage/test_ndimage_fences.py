"""No kernel of a filter reads or writes beyond field, result, tables or workspace: memory ends where they do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from polyconv.target import levels

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="protects pages with mprotect")

HERE = Path(__file__).resolve().parent

CODE = """
import sys
import warnings
import numpy as np
from calls import by_chance
from fenced import fenced
from polyconv import ndimage
from polyconv.runtime import arrays, threads
import polyconv.fields.program as field

def of_lines(shape, dtype):
    return fenced(shape, dtype, step=64)

for module in (field, threads):
    module.aligned = of_lines

warnings.simplefilter("ignore")
done = 0
for seed in range(int(sys.argv[1]), int(sys.argv[1]) + 120):
    call = by_chance(seed)
    if call.keywords.get("output"):
        out = np.dtype(call.keywords["output"])
    else:
        out = call.input.dtype
    right = getattr(ndimage, call.function)(call.input, *call.arguments, **call.keywords, threads=1)
    for at_end in (True, False):
        x = fenced(call.input.shape, call.input.dtype, at_end=at_end)
        x[...] = call.input
        y = fenced(call.input.shape, out, at_end=at_end)
        call.keywords["output"] = y
        getattr(ndimage, call.function)(x, *call.arguments, **call.keywords, threads=1)
        assert np.array_equal(y, right, equal_nan=right.dtype.kind == "f"), str(call)
        done += 1
print(done)
"""


@pytest.mark.parametrize("seed", [50_000, 60_000])
@pytest.mark.parametrize("level", levels())
def test_nothing_is_touched_beyond_any_array(level: str, seed: int) -> None:
    found = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", CODE, str(seed)], capture_output=True, text=True, timeout=300,
        env={**os.environ, "POLYCONV_TARGET": level, "PYTHONPATH": os.pathsep.join(
            [str(HERE), str(HERE.parent / "runtime"), str(HERE.parents[1] / "src")])},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout.strip() == "240"
