"""Winograd with strides: phases of a stride are summed in the transform domain."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from algorithms import agrees, result
from levels import LEVELS

from polyconv.benchmark.runs import restricted
from polyconv.conformance.judge import complaint, expected, widened
from polyconv.conformance.operands import operands
from polyconv.problem.problem import Problem

KERNELS = [
    # taps a phase: 2 and 1, 2, 3 and 2, 3, 5 and 4, 5; one or both axes; stride 3; an axis left alone
    "k3x3 s2x2", "k4x4 s2x2", "k5x5 s2x2", "k6x6 s2x2", "k9x9 s2x2", "k10x3 s2x2", "k5x3 s1x2", "k3x5 s2x1",
    "k4x8 s3x3", "k5x7 s3x3", "k7x3 s1x2", "k1x3 s2x2", "k3x3 s3x2",
]  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_strided_kernels(kernel: str, layout: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        assert agrees(f"conv f32 {layout} n2 c35 i21x32 m20 {kernel} p2x3 b1 r1 act=Relu", "winograd")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_sizes_around_the_edges_of_tiles(layout: str) -> None:
    taken = [agrees(f"conv f32 {layout} n1 c16 i{h}x{h + 3} m8 k3x3 s2x2 p1x1", "winograd") for h in range(3, 24)]
    assert sum(taken) >= 20
    for length in (30, 31, 32, 33, 34, 90):
        assert agrees(f"conv f64 {layout} n1 c9 i{length} m17 k8 s4 p1:2 b1", "winograd")
        assert agrees(f"conv f32 {layout} n1 c8 i5x{length}x6 m9 k3x3x3 s2x2x1 p1x1x1", "winograd")


def test_a_strided_sum_that_is_not_finite_is_repaired() -> None:
    p = Problem.parse("conv f32 NCHW n1 c32 i20x20 m32 k3x3 s2x2 p1x1")
    made = operands(p, np.random.default_rng(0), "normal")
    made.x[0, 3, 7, 9] = np.inf
    got = result(p, made, "winograd")
    assert got is not None
    assert complaint(p, widened(p, made, expected(p, made)), got) is None
    assert np.isfinite(got[0, :, 0, 0]).all()


def test_threads_and_workspace_change_no_bits() -> None:
    p = Problem.parse("conv f32 NHWC n1 c40 i40x41 m70 k5x5 s2x2 p2x2")
    made = operands(p, np.random.default_rng(0), "normal")
    alone = result(p, made, "winograd", threads=1)
    assert alone is not None
    for options in ({"threads": 2}, {"threads": 3}, {"workspace_limit": 600 << 10}):
        again = result(p, made, "winograd", **options)
        assert again is not None and np.array_equal(alone, again)
