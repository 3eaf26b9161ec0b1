"""Transposed convolutions woven along planes: around the edges of tiles, boxes, rows and phases."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from algorithms import result
from levels import LEVELS

from polyconv.benchmark.runs import restricted
from polyconv.conformance.judge import complaint, expected
from polyconv.conformance.operands import operands
from polyconv.problem.problem import Problem
from polyconv.target import target


def _agrees(line: str, **options: Any) -> None:
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(0), "normal" if p.x_dtype.is_float else "small")
    got = result(p, made, "woven", **options)
    if target().registers < 32 and _phases(p) > 4:
        assert got is None, line
        return
    assert got is not None, line
    assert complaint(p, expected(p, made), got) is None, line


def _phases(p: Problem) -> int:
    """Phases of the last axis that have taps.  A tile has a row for each; those of 16 registers have at most 4."""
    return min(p.k[-1], p.s[-1] // math.gcd(p.s[-1], p.d[-1]))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64"])
def test_pixels_around_the_edges_of_tiles(dtype: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for pixels in (1, 2, 15, 16, 17, 31, 33, 47, 48, 49, 97, 700):
            _agrees(f"conv_transpose {dtype} NCHW n2 c5 i{pixels} m7 k4 s2 p1 b1")
            _agrees(f"conv_transpose {dtype} NCHW n1 c3 i3x{pixels} m3 k3x3 s2x2 p1x1 b1")


@pytest.mark.parametrize("epilogue", ["", " b1 r1 act=Relu", " b1 act=Gelu"])
def test_kernels_strides_and_pads(epilogue: str) -> None:
    for stride in (2, 3, 4, 5, 6, 7, 8):
        for k in {stride, stride + 1, 2 * stride - 1, 2 * stride, 3 * stride + 2}:
            for pads in ("0", str(k // 2), f"{k - 1}:0", f"0:{k - 1}"):
                _agrees(f"conv_transpose f32 NCHW n1 c4 i21 m5 k{k} s{stride} p{pads}{epilogue}")


@pytest.mark.parametrize("epilogue", ["", " b1 r1 act=HardSwish", " b1 act=Tanh"])
def test_phases_of_outer_axes(epilogue: str) -> None:
    _agrees(f"conv_transpose f32 NCHW n1 c9 i5x7 m70 k2x2 s2x2{epilogue}")
    _agrees(f"conv_transpose f32 NCHW n1 c12 i3x9 m20 k3x4 s3x4 g2{epilogue}")
    _agrees(f"conv_transpose f32 NCHW n1 c6 i5x9 m4 k3x3 s1x2 p1x1{epilogue}")
    _agrees(f"conv_transpose f32 NCHW n1 c6 i1x1 m4 k4x4 s2x2 p1x1{epilogue}")
    _agrees(f"conv_transpose f32 NCHW n2 c5 i2x3x19 m9 k3x4x5 s2x3x2 p1x1x2{epilogue}")
    _agrees(f"conv_transpose f32 NCHW n1 c64 i9x130 m5 k3x3 s2x2 p1x1 y18x260{epilogue}")
    _agrees(f"conv_transpose f32 NCHW n1 c300 i20x21 m5 k2x2 s2x2{epilogue}")


LINES = ["n2 c70 i9x33 m13 k3x3 s2x2 p1x1", "n1 c40 i600 m6 k4 s2 p1", "n1 c8 i6x5 m8 k2x2 s2x2"]


@pytest.mark.parametrize("line", LINES)
def test_threads_and_workspace_change_no_bits(line: str) -> None:
    p = Problem.parse(f"conv_transpose f32 NCHW {line}")
    made = operands(p, np.random.default_rng(0), "normal")
    alone = result(p, made, "woven")
    assert alone is not None
    for options in ({"threads": 2}, {"threads": 3}, {"workspace_limit": 0}, {"workspace_limit": 1 << 15}):
        other = result(p, made, "woven", **options)
        assert other is None or np.array_equal(alone, other)


def test_arrays_that_lie_otherwise() -> None:
    p = Problem.parse("conv_transpose f32 NCHW n2 c9 i5x21 m7 k4x4 s2x2 p1x1 b1 r1")
    made = operands(p, np.random.default_rng(0), "normal")
    plain = result(p, made, "woven")
    assert plain is not None
    x = np.ascontiguousarray(made.x[..., ::-1, ::-1])[..., ::-1, ::-1]
    for out in (np.zeros((2, 10, 42, 7), np.float32).transpose(0, 3, 1, 2), np.zeros_like(plain)[:, :, ::-1, ::-1]):
        result(p, replace(made, x=x), "woven", out=out)
        assert np.array_equal(plain, out)


@pytest.mark.parametrize("types", ["f16", "bf16", "u8*i8>i32", "f32>f64"])
def test_types(types: str) -> None:
    _agrees(f"conv_transpose {types} NCHW n1 c6 i5x19 m5 k3x3 s2x2 p1x1 b1")


def test_dilations() -> None:
    for stride, dilation in ((2, 2), (2, 3), (2, 6), (3, 2), (4, 6), (5, 3), (6, 4), (1, 3)):
        for k in (1, 2, 3, 7):
            pads = f"{k // 2}x0:{min((k - 1) * dilation, 9)}"
            _agrees(f"conv_transpose f32 NCHW n1 c3 i4x19 m5 k2x{k} s2x{stride} d1x{dilation} p0x{k // 2} b1")
            _agrees(f"conv_transpose f32 NCHW n1 c3 i6x9 m5 k{k} s{stride}x2 d{dilation}x{stride} p{pads} b1 r1")


@pytest.mark.parametrize("level", LEVELS)
def test_kernels_shorter_than_their_stride(level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for pixels in (1, 3, 15, 16, 17, 70):
            _agrees(f"conv_transpose f32 NCHW n2 c5 i{max(2, pixels)} m9 k1 s5 p0 b1")  # one has no stride
            _agrees(f"conv_transpose i32 NCHW n1 c4 i5x{pixels} m9 k1x2 s3x5 d1x2 b1")
            _agrees(f"conv_transpose f64 NCHW n1 c4 i3x2x{pixels} m4 k2x1x1 s3x2x1 d2x1x1 p1x0x0 op1x0x0 g2 b1")
    _agrees("conv_transpose u8 NCHW n1 c4 i5x9 m4 k1x2 s3x5 act=Relu")
    _agrees("conv_transpose f32 NCHW n1 c4 i5x9 m4 k1x2 s3x5 b1 r1 act=Gelu")
