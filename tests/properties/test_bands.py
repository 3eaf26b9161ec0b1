"""Rows of outputs leave out the taps that meet only padding: which those are, and that results stay right."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from algorithms import result
from levels import HIGHEST_TWO

from polyconv.benchmark.runs import restricted
from polyconv.conformance.judge import complaint, expected
from polyconv.conformance.operands import operands
from polyconv.lowering.bands import Kinds, bands
from polyconv.lowering.sweep import Axis
from polyconv.problem.problem import Problem


def test_taps_that_meet_input() -> None:
    for out, inp, taps, stride, dilation, pad in itertools.product(
        (1, 2, 5), (1, 3, 4), (0, 1, 2, 5), (1, 2, 3), (1, 2, 4), (-2, 0, 1, 6)
    ):
        ((kinds, of_output),) = bands((Axis(out, inp, taps, stride, dilation, pad),), 99)
        of_each = list(of_output)
        assert len(of_each) == out and len(set(kinds)) == len(kinds)
        for o, kind in enumerate(of_each):
            met = [t for t in range(taps) if 0 <= o * stride - pad + t * dilation < inp]
            assert list(kinds[kind]) == met


def test_no_more_combinations_than_asked_for() -> None:
    axes = Axis(9, 9, 5, 1, 1, 2), Axis(7, 7, 3, 1, 1, 1)
    assert [len(kinds) for kinds, _ in bands(axes, 15)] == [5, 3]
    assert [len(kinds) for kinds, _ in bands(axes, 14)] == [1, 3]
    assert bands(axes, 2) == [((range(5),), Kinds(((0, 9),))), ((range(3),), Kinds(((0, 7),)))]


@pytest.mark.parametrize("problem", [
    "c16 i4x9x9 m32 k3x3x3 p1",
    "c40 i2x9x14 m20 k5x3x3 p4:4x1:1x1:1",        # first and last rows meet no input at all
    "c16 i6x5x8 m16 k3x3x3 p1 s2x1x1",
    "c16 i7x20 m16 k3x3 p1 d2x1",
    "c24 i5x12 m16 k3x3 p1 s3x1",
])  # fmt: skip
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_results_of_winograd(layout: str, problem: str) -> None:
    for kind, more in (("f32", ""), ("f64", " b1 act=Relu")):
        p = Problem.parse(f"conv {kind} {layout} n2 {problem}{more}")
        made = operands(p, np.random.default_rng(7), "normal")
        got: Any = result(p, made, "winograd")
        assert got is not None, p
        assert complaint(p, expected(p, made), got) is None, p


@pytest.mark.parametrize("level", HIGHEST_TWO)
@pytest.mark.parametrize("problem", [
    "c16 i7x7 m32 k3x3 p1",
    "c40 i4x9 m20 k5x3 p4:4x1:1",                 # first and last rows meet no input at all
    "c16 i9x6 m16 k3x3 s2x1 p1",
    "c16 i12x7 m16 k5x3 p8x1 d4x1",
    "c16 i3x4x5 m32 k3x3x3 p1",
    "c33 i2x6x7 m17 k5x3x2 p2:3x2:1x1:0 s1x2x1",
    "c600 i3x6 m40 k3x3 p1",
    "c1100 i5x30 m16 k3x3 p1",                    # chunks of channels, the last one short
    "c16 i64x3 m16 k33x2 p16x1",                  # as many bands as rows
])  # fmt: skip
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_results(layout: str, problem: str, level: str | None) -> None:
    with restricted(level):
        _agree(layout, problem)


def _agree(layout: str, problem: str) -> None:
    for kind, more in (("f32", ""), ("u8*i8>i32", ""), ("bf16", " b1"), ("f32", " b1 r1 act=Relu")):
        p = Problem.parse(f"conv {kind} {layout} n2 {problem}{more}")
        made = operands(p, np.random.default_rng(7), "normal" if p.x_dtype.is_float else "small")
        for options in ({}, {"workspace_limit": 1 << 18}, {"workspace_limit": 1 << 16}):
            got: Any = result(p, made, "direct", **options)
            assert got is not None, p
            assert complaint(p, expected(p, made), got) is None, p
