"""Channels around every edge of a vector and of what caches hold.

Several whole vectors, part of one, both; with every operand of the epilogue, whose tables and residual must
advance with the channels.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from algorithms import algorithms, result
from levels import LEVELS

from polyconv.benchmark.runs import restricted
from polyconv.conformance.judge import complaint, expected
from polyconv.conformance.operands import operands
from polyconv.problem.problem import Problem


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i32"])
@pytest.mark.parametrize("algorithm", algorithms(), ids=str)
def test_depthwise_with_a_whole_epilogue(algorithm: str | None, dtype: str, level: str | None) -> None:
    taken = 0
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for channels in (1, 7, 8, 16, 17, 32, 35, 129, 150):
            p = Problem.parse(
                f"conv {dtype} NHWC n2 c{channels} i5x11 m{channels} k3x3 s1x1 p1x1 g{channels} b1 r1 act=Relu"
            )
            made = operands(p, np.random.default_rng(channels), "normal" if p.x_dtype.is_float else "small")
            got = result(p, made, algorithm)
            if got is not None:
                taken += 1
                assert complaint(p, expected(p, made), got) is None
    assert taken or algorithm not in (None, "direct", "depthwise", "generic")


@pytest.mark.parametrize("m", [1, 3, 16, 17, 40])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("algorithm", ["direct", "generic", "stem"])
def test_one_or_three_channels(algorithm: str, stride: int, layout: str, m: int) -> None:
    for c in (1, 3):
        p = Problem.parse(f"conv f32 {layout} n1 c{c} i9x37 m{m} k3x5 s{stride}x{stride} p1x2 b1 r1")
        made = operands(p, np.random.default_rng(m), "normal")
        got = result(p, made, algorithm)
        assert got is not None
        assert complaint(p, expected(p, made), got) is None


def test_weights_beyond_the_caches() -> None:
    """Channels then come in chunks, which must not change a bit."""
    p = Problem.parse("conv f32 NCHW n1 c1024 i14x14 m256 k3x3 p1")
    made = operands(p, np.random.default_rng(0), "normal")
    got, limited = (result(p, made, "direct", workspace_limit=limit) for limit in (None, 1 << 18))
    assert got is not None and limited is not None
    assert complaint(p, expected(p, made), got) is None
    assert np.array_equal(got, limited)
