"""Winograd where kernels have one tap along the last axis, or along the last two."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from algorithms import agrees, result
from levels import LEVELS

from polyconv.algorithms.winograd.channels import order
from polyconv.benchmark.runs import restricted
from polyconv.conformance.judge import complaint, expected, widened
from polyconv.conformance.operands import operands
from polyconv.problem.problem import Problem

PROBLEMS = [
    "i17x13 {} k7x1 p3x0", "i17x13 {} k3x1 p1x0", "i19x13 {} k3x1 s2x1 p1x0", "i19x13 {} k3x1 d3x1 p3x0",
    "i19x13 {} k5x1 p2x1", "i7x6x9 {} k3x1x1 p1x0x0", "i9x6x7 {} k5x1x1 s2x1x1 p2x0x0", "i9x6x7 {} k3x1x1 s1x2x1",
    "i9x6x7 {} k2x1x1 p0x1x1", "i4x9x6x7 {} k3x3x1x1 p1x1x0x0", "i9x4x6x7 {} k3x1x1x1 d2x1x1x1 p2x0x0x0",
]  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_one_tap_along_the_last_axes(problem: str, layout: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        assert agrees(f"conv f32 {layout} n2 c18 {problem.format('m20')} b1 r1 act=Relu", "winograd")


@pytest.mark.parametrize("problem", PROBLEMS)
def test_groups_threads_and_little_room(problem: str) -> None:
    line = f"conv f32 NHWC n2 c32 {problem.format('m32')}"
    assert agrees(f"{line} g2", "winograd", threads=2)
    agrees(line, "winograd", workspace_limit=1 << 17)


def test_phases_of_a_transposed_convolution() -> None:
    assert agrees("conv_transpose f32 NCHW n1 c64 i17x8x9 m64 k6x1x1 s2x1x1 p2x0x0 b1", "winograd")


@pytest.mark.parametrize("line", ["i60x7 m24 k3x1 p1x0", "i60x3x5 m24 k3x1x1 p1x0x0"])
def test_a_sum_that_is_not_finite_is_repaired(line: str) -> None:
    p = Problem.parse(f"conv f32 NCHW n1 c16 {line}")
    for at in range(20, 30):
        made = operands(p, np.random.default_rng(0), "normal")
        made.x[(0, 3, at, *(2,) * (made.x.ndim - 3))] = np.inf
        got = result(p, made, "winograd")
        assert got is not None and (~np.isfinite(got)).sum() == 3 * 24
        assert complaint(p, widened(p, made, expected(p, made)), got) is None


def test_order_moves_one_axis_at_most() -> None:
    def of(kernel: str, extents: str) -> tuple[int, ...]:
        return order(Problem.parse(f"conv f32 NCHW n1 c16 i{extents} m16 k{kernel}"))

    assert of("3x1x1", "9x8x7") == (1, 0, 2)
    assert of("3x3x1x1", "9x9x8x7") == (0, 2, 1, 3)
    assert of("1x3x1", "9x8x7") == of("1x1x1", "9x8x7") == of("3x1x3", "9x8x7") == (0, 1, 2)
    assert of("3", "9") == (0,)
