"""Few input or output channels, or no padding: rows as wide as several tiles, every edge of them, every way out.

Tiles that store results themselves walk along a row; corpus problems are too narrow for a second step.
"""

from __future__ import annotations

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

WIDTHS = (1, 15, 16, 17, 47, 49, 96, 113, 225)


def agree(line: str, algorithm: str, **options: Any) -> None:
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(len(line)), "normal" if p.x_dtype.is_float else "small")
    got = result(p, made, algorithm, **options)
    assert got is not None
    assert complaint(p, expected(p, made), got) is None, line


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("algorithm", ["stem", "generic"])
def test_widths(algorithm: str, layout: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for width in WIDTHS:
            for c, m, more in ((1, 16, ""), (3, 37, " s2x2"), (2, 70, " b1"), (4, 3, " s1x3 d2x1"), (1, 130, " d1x2")):
                agree(f"conv f32 {layout} n1 c{c} i4x{width * 2} m{m} k3x2 p1x1{more}", algorithm)


@pytest.mark.parametrize("kinds", ["f64", "f16", "bf16", "i8>i32", "u8*i8>i32", "i64", "i16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("algorithm", ["stem", "generic"])
def test_types(algorithm: str, layout: str, kinds: str) -> None:
    for width in (17, 113):
        agree(f"conv {kinds} {layout} n2 c3 i5x{width} m19 k3x3 s1x2 p1x1", algorithm)


@pytest.mark.parametrize(
    "epilogue", ["act=Relu", "b1 act=Clip(-1,1)", "b1 r1", "b1 r1 act=LeakyRelu(0.1)", "b1 act=Gelu"]
)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("algorithm", ["stem", "generic"])
def test_epilogues(algorithm: str, layout: str, epilogue: str) -> None:
    for c, m in ((1, 20), (3, 64)):
        agree(f"conv f32 {layout} n1 c{c} i6x101 m{m} k3x3 p1x1 {epilogue}", algorithm)


@pytest.mark.parametrize("line", [
    "conv f32 {} n2 c3 i700 m24 k9 s2 p4", "conv f32 {} n1 c2 i5x9x60 m18 k3x3x3 p1x1x1 s2x2x2",
    "conv f32 {} n1 c6 i7x130 m40 k3x3 p1x1 g2", "conv f32 {} n1 c3 i40x3 m8 k5x5 p2x2",
    "conv f32 {} n1 c1 i3x90 m8 k3x200 p1x70",
    "conv f32 {} n1 c1 i20x75 m8 k5x20 s2x8 p8x8", "conv f32 {} n1 c3 i6x9x40 m20 k7x7x7 s2x2x2 p3x3x3",
    "conv f32 {} n1 c2 i5x30 m5 k4x3 p9x1 d2x2",
])  # fmt: skip
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("algorithm", ["stem", "generic"])
def test_ranks_groups_and_limits(algorithm: str, layout: str, line: str) -> None:
    agree(line.format(layout), algorithm)
    agree(line.format(layout), algorithm, workspace_limit=0)


@pytest.mark.parametrize("algorithm", ["stem", "generic"])
def test_threads_and_strides_change_no_bit(algorithm: str) -> None:
    for layout in ("NCHW", "NHWC"):
        p = Problem.parse(f"conv f32 {layout} n1 c3 i64x300 m40 k3x3 p1x1 b1")
        made = operands(p, np.random.default_rng(0), "normal")
        alone = result(p, made, algorithm, threads=1)
        shared = result(p, made, algorithm, threads=2)
        assert alone is not None and shared is not None
        wide = np.zeros((*alone.shape[:-1], 2 * alone.shape[-1]), alone.dtype)[..., ::2]
        result(p, made, algorithm, threads=1, out=wide)
        assert np.array_equal(alone, shared)
        assert np.array_equal(alone, wide)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("line", [
    "conv f32 {} n2 c40 i9x50 m37 k2x3 s2x3 b1", "conv f64 {} n1 c18 i8x20 m9 k3x2 s1x2 d2x3 act=Relu",
    "conv f32 {} n1 c8 i6x130 m12 k1x3 s1x2 g2", "conv f32 {} n1 c17 i4x5x6 m70 k4x2x2 s1x2x3",
    "conv f32 {} n1 c33 i2200 m20 k2 s2", "conv f32 {} n1 c3 i40x40 m100 k9x9 s3 r1",
])  # fmt: skip
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_windows_without_padding(layout: str, line: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        agree(line.format(layout), "stem")
        agree(line.format(layout), "stem", workspace_limit=0)


@pytest.mark.parametrize("line", [
    "conv f32 NHWC n2 c40 i9x50 m37 k3x3 s2x2 p1x1 b1", "conv f64 NHWC n1 c18 i8x20 m9 k3x2 s1x2 d2x3 p3x1",
    "conv f32 NHWC n1 c20 i4x5x6 m70 k3x3x3 p1x1x1", "conv f32 NHWC n1 c33 i2200 m20 k3 s2 p1",
])  # fmt: skip
def test_many_channels_that_lie_together(line: str) -> None:
    agree(line, "stem")
    agree(line, "stem", workspace_limit=0)
    agree(line, "stem", threads=3)


@pytest.mark.parametrize("line", [
    "conv f32 {} n2 c40 i9x34 m20 k2x3 s2x3", "conv f32 {} n1 c4 i9x34 m20 k2x3 s2x3 d1x2",
    "conv f32 {} n2 c3 i9x130 m20 k3x3 s2x2 p1x1", "conv f32 {} n1 c1 i12x90 m33 k5x4 p7x1 d3x2",
    "conv f64 {} n1 c4 i6x7x50 m9 k3x3x2 s1x2x1 p1x1x30", "conv f32 {} n1 c2 i8x64 m16 k2x3 s2x3",
])  # fmt: skip
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("algorithm", ["stem", "generic"])
def test_where_an_input_lies_changes_no_bit(algorithm: str, layout: str, line: str) -> None:
    """Some arrays are read in place, others line by line into a panel."""
    p = Problem.parse(line.format(layout))
    made = operands(p, np.random.default_rng(0), "normal")
    whole = result(p, made, algorithm)
    every = (slice(None),) * made.x.ndim
    for axis in range(made.x.ndim):
        gaps = np.repeat(made.x, 2, axis)[(*every[:axis], slice(1, None, 2))]
        turned = np.flip(np.ascontiguousarray(np.flip(made.x, axis)), axis)
        for x in (gaps, turned):
            got = result(p, replace(made, x=x), algorithm)
            assert got is not None and whole is not None
            assert np.array_equal(got, whole)


@pytest.mark.parametrize("line", [
    "conv_transpose f32 {} n1 c9 i17x33 m3 k4x4 s2x2 p1x1",
    "conv_transpose f32 {} n2 c5 i20x19 m1 k9x9 s3x3 p4x4 op2x2 b1",
    "conv_transpose f32 {} n1 c7 i40 m2 k5 s2 p1 b1 r1 act=Relu",
    "conv_transpose f64 {} n1 c3 i6x9x10 m2 k4x3x4 s2x1x2 p1x1x1",
    "conv_transpose i8>i32 {} n1 c6 i24x24 m3 k3x4 s2x2 p1x1",
    "conv_transpose f16 {} n1 c4 i50x3 m3 k6x2 s3x1 p2x0",
    "conv_transpose f32 {} n1 c4 i30x31 m4 k2x3 s3x2",
    "conv_transpose f32 {} n1 c4 i30x31 m4 k5x5 s2x4 d3x2 p2:3x1:2 g2",
])  # fmt: skip
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_phases_that_share_their_inputs(layout: str, line: str) -> None:
    agree(line.format(layout), "generic")
    agree(line.format(layout), "generic", workspace_limit=0)
    p = Problem.parse(line.format(layout))
    made = operands(p, np.random.default_rng(0), "normal" if p.x_dtype.is_float else "small")
    alone, shared = (result(p, made, "generic", threads=n) for n in (1, 2))
    assert alone is not None and shared is not None
    assert np.array_equal(alone, shared)
