"""Winograd with 4 taps and with many, which are summed in parts."""

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
from polyconv.lowering.situation import Situation
from polyconv.planning.planner import form_of
from polyconv.problem.problem import Problem
from polyconv.target import target

KERNELS = [
    # 4 taps, a last part of 4, 3, 2 and 1 taps, one axis or both, with a dilation, with a stride of the other axis
    "k4x4", "k8x8 p3x3", "k7x7 p3x3", "k6x6 p2x2", "k9x5 p4x2", "k1x11 p0x5", "k12x1 p6x0", "k7x3 p6x2 d2x2",
    "k3x6 d1x3",
    "k7x7 p3x3 s2x2", "k3x7 s2x1 p1x3", "k10x4 p5x0",
    # the axis before the last alone, the last one with a stride as well
    "k3x1 p1x0", "k3x1 s2x1 p1x0", "k5x1 s2x2 p2x0", "k7x1 p3x1 s1x2", "k3x1 p4x0 d4x1", "k3x1 s1x5 d1x3",
]  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_in_parts(kernel: str, layout: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        assert agrees(f"conv f32 {layout} n2 c18 i19x33 m20 {kernel} b1 r1 act=Relu", "winograd")


@pytest.mark.parametrize("taps", range(2, 13))
def test_every_number_of_taps_and_outputs(taps: int) -> None:
    for out in range(2, 16):
        assert agrees(f"conv f32 NCHW n1 c8 i{out + taps - 1} m9 k{taps}", "winograd")
        assert agrees(f"conv f32 NHWC n1 c32 i{out + taps - 1} m9 k{taps}", "winograd")
    assert agrees(f"conv f64 NHWC n1 c17 i70 m8 k{taps} p{taps} d3", "winograd")


def test_phases_of_a_transposed_convolution() -> None:
    assert agrees("conv_transpose f32 NHWC n1 c64 i7x30 m64 k8x8 s2x2 p3x3 b1", "winograd")


def test_a_sum_that_is_not_finite_is_repaired() -> None:
    """The last part reads inputs beyond its taps: weights of zero would make NaN of an Inf there."""
    p = Problem.parse("conv f32 NCHW n1 c16 i90 m24 k6 p3:2")
    for at in range(40, 56):
        made = operands(p, np.random.default_rng(0), "normal")
        made.x[0, 3, at] = np.inf
        got = result(p, made, "winograd")
        assert got is not None and (~np.isfinite(got)).sum() == 6 * 24
        assert complaint(p, widened(p, made, expected(p, made)), got) is None


@pytest.mark.parametrize(
    ("line", "scheme"),
    [
        ("conv f32 NHWC n1 c32 i30x30 m32 k4x4", "F(3,4)"), ("conv f32 NHWC n1 c32 i30x30 m32 k7x7", "F("),
        ("conv f32 NHWC n1 c32 i30x30 m32 k11x11", "F("), ("conv f32 NHWC n1 c32 i40x40 m32 k5x5", "F(4,3)xF(4,3)"),
        ("conv f32 NHWC n1 c32 i1200 m32 k5", "F(4,3)"), ("conv f32 NHWC n1 c32 i1200 m32 k2", "F(5,2)"),
        ("conv f32 NHWC n1 c32 i40x40 m32 k2x2", "F(5,2)xF(3,2)"),
        ("conv f32 NHWC n1 c32 i60x60 m32 k4x4 s2x2", "F(5,2)xF(3,2)"),
        ("conv f32 NHWC n1 c32 i1200 m32 k8 s4", "F(5,2)"), ("conv f32 NHWC n1 c32 i1200 m32 k3 s2", "F(3,2)"),
        ("conv_transpose f32 NHWC n1 c64 i20x20 m64 k4x4 s2x2 p1x1", "F(5,2)xF(3,2)"),
        ("conv f32 NHWC n1 c32 i60x30 m32 k3x1", "F(4,3)xF(1,1)"),
    ],
)  # fmt: skip
def test_errors_stay_near_those_of_direct_sums(line: str, scheme: str) -> None:
    p = Problem.parse(line)
    assert form_of("winograd", Situation(p, target(None))).scheme.startswith(scheme)
    made = operands(p, np.random.default_rng(3), "normal")
    exact = expected(p, made).exact
    errors = []
    for algorithm in ("winograd", "direct"):
        got = result(p, made, algorithm)
        assert got is not None
        errors.append(float(np.sqrt(np.mean((got - exact) ** 2))))
    assert errors[0] < 2 * errors[1]
