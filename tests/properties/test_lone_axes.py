"""Axes with one input and one output: left out, with the weights of the tap that joins the two."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from algorithms import algorithms, result

import polyconv
from polyconv.conformance.judge import complaint, expected, widened
from polyconv.conformance.operands import operands
from polyconv.operands import fused, packed
from polyconv.problem.problem import Problem

LINES = [
    "f32 NCHW n2 c9 i7x6x1 m12 k3x3x3 p1", "f32 NHWC n2 c9 i1x7x6 m12 k5x3x3 s3x1x1 p2x1x1 b1",
    "f32 NCHW n1 c8 i1x9x1 m8 k1x3x1 r1", "f32 NCHW n3 c8 i1x1 m8 k3x3 p1 b1 act=Relu", "f32 NHWC n3 c16 i1 m24 k7 p3",
    "f64 NCHW n2 c5 i9x1 m7 k1x7 p0x18 d1x6", "bf16 NHWC n1 c16 i1x30 m16 k9x3 p4x1 g16",
    "i16 NCHW n2 c3 i13x11x1 m34 k3x1x7 s1x1x3 p6x0x18 d6x1x6 b1",
    "u8*i8>i32 NCHW n2 c6 i12x1 m9 k3x2 p1x1:0 zx=t zw=t", "f32 NCHW n1 c12 i8x1x9 m18 k1x4x1 p0x3:0x0 g3",
    "u8 NHWC n2 c20 i1x14 m30 k3x1 p1x0 b1 zx=t zw=t zy=t sx=t sw=c sy=t",
]
TRANSPOSED = [
    "f32 NCHW n2 c8 i6x1 m8 k3x4 s2 p1x2:1", "f32 NHWC n1 c6 i1x7 m9 k3x3 s5x2 p1 b1",
    "f32 NCHW n1 c4 i1x1x5 m6 k2x3x2 p1x1x0 g2", "i8 NCHW n2 c3 i15x1 m20 k1x5 s3x2 p0x2 b1",
    "f16 NCHW n1 c8 i1 m8 k5 p2 r1",
]
PROBLEMS = [Problem.parse(f"conv {line}") for line in LINES]
PROBLEMS += [Problem.parse(f"conv_transpose {line}") for line in TRANSPOSED]


@pytest.mark.parametrize("algorithm", algorithms())
def test_every_algorithm_agrees_with_the_oracle(algorithm: str | None) -> None:
    for p in PROBLEMS:
        made = operands(p, np.random.default_rng(3), "normal")
        got = result(p, made, algorithm)
        if got is not None:
            assert complaint(p, widened(p, made, expected(p, made)), got) is None, p


@pytest.mark.parametrize("p", PROBLEMS, ids=str)
def test_they_are_left_out_however_arrays_lie(p: Problem) -> None:
    lone = p.lone_taps()
    assert any(tap is not None for tap in lone)
    found, (x, y, _) = fused(p, packed(p))
    assert found == p.fused()
    assert found.rank == len(x.spatial) == len(y.spatial) <= max(1, lone.count(None))
    assert (found.c, found.m) == (p.c, p.m)
    assert np.prod(found.x_shape) == np.prod(p.x_shape)  # type: ignore[arg-type]
    assert np.prod(found.y_shape) == np.prod(p.y_shape)  # type: ignore[arg-type]


def test_other_axes_stay() -> None:
    for line in ("i1x8 k3x3 p2x1", "i8x8 k3x3 p1", "i1x8 k1x3 s1 p3x0", "i1x8 k4x1 d2x1 p3x0", "i3x8 k3x3 p0x1"):
        p = Problem.parse(f"conv f32 NCHW n1 c4 m4 {line}")
        assert p.lone_taps() == (None, None) and p.without_lone_axes() is p
    causal = Problem.parse("causal_conv f32 NCHW n1 c4 i1 m4 k3 g4")
    assert causal.lone_taps() == (None,)


def test_taps_are_those_that_meet_the_input() -> None:
    assert Problem.parse("conv f32 NCHW n1 c4 i5x1x1 m4 k3x5x3 p1x4x3 d1x2x3").lone_taps() == (None, 2, 1)
    assert Problem.parse("conv_transpose f32 NCHW n1 c4 i5x1 m4 k3x5 s2 p1x2").lone_taps() == (None, 2)


@pytest.mark.parametrize("rigor", ["estimate", "measure"])
def test_a_layer_tells_which_taps_apart(rigor: str) -> None:
    """The same problem is left of images of one row and of one column, but not the same weights."""
    rng = np.random.default_rng(5)
    w = rng.standard_normal((16, 16, 3, 3)).astype(np.float32)
    layer = polyconv.Conv(w, pads=1, rigor=rigor)
    for _ in range(2):
        for shape in ((1, 16, 1, 20), (1, 16, 20, 1), (1, 16, 20, 20), (1, 16, 1, 1)):
            p = Problem.parse(f"conv f32 NCHW n1 c16 i{shape[2]}x{shape[3]} m16 k3x3 p1")
            made = operands(p, rng, "normal")
            made = replace(made, w=w)
            assert complaint(p, widened(p, made, expected(p, made)), layer(made.x)) is None, shape
            assert layer.plan(shape).algorithm in layer._layer.algorithms.values()


def test_taps_that_meet_padding_alone_may_be_anything() -> None:
    w = np.full((8, 8, 3, 3), np.nan, np.float32)
    w[..., 1] = np.random.default_rng(1).standard_normal((8, 8, 3))
    x = np.ones((1, 8, 9, 1), np.float32)
    got, column = polyconv.conv(x, w, pads=1), polyconv.conv(x, np.ascontiguousarray(w[..., 1:2]), pads=(1, 0, 1, 0))
    np.testing.assert_allclose(got, column, rtol=1e-5, atol=1e-5)


def test_a_plan_is_that_of_what_is_left() -> None:
    volume = polyconv.plan("conv f32 NCHW n1 c64 i40x50x1 m64 k3x3x3 p1")
    plane = polyconv.plan("conv f32 NCHW n1 c64 i40x50 m64 k3x3 p1")
    assert (volume.algorithm, volume.form, volume.seconds) == (plane.algorithm, plane.form, plane.seconds)
