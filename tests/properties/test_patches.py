"""Windows that do not overlap: around every edge of boxes, tiles and vectors, with and without padding."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from algorithms import result
from levels import LEVELS

import polyconv
from polyconv.benchmark.runs import restricted
from polyconv.conformance.judge import complaint, expected
from polyconv.conformance.operands import operands
from polyconv.lowering.situation import Situation
from polyconv.planning.planner import form_of
from polyconv.problem.problem import Problem
from polyconv.target import target


def _agrees(line: str, **options: Any) -> None:
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(len(line)), "normal" if p.x_dtype.is_float else "small")
    got = result(p, made, "patches", **options)
    assert got is not None, line
    assert complaint(p, expected(p, made), got) is None, line


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 8, 16])
def test_strides_taps_and_widths(step: int, layout: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for taps in sorted({1, max(1, step - 1), step}):
            for outputs in (1, 3, 15, 16, 17, 49):
                wide = (outputs - 1) * step + taps
                _agrees(f"conv f32 {layout} n2 c5 i{wide} m19 k{taps} s{step} b1")
                _agrees(f"conv f32 {layout} n1 c3 i7x{wide + step - 1} m9 k3x{taps} s3x{step}")


@pytest.mark.parametrize("kinds", ["f64", "f16", "bf16", "i8>i32", "u8*i8>i32", "i64", "i16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_types(layout: str, kinds: str) -> None:
    for width in (18, 97):
        _agrees(f"conv {kinds} {layout} n2 c7 i6x{width} m19 k2x2 s2x2")
        _agrees(f"conv {kinds} {layout} n1 c5 i6x{width} m33 k1x3 s2x4 p1x2")


@pytest.mark.parametrize("epilogue", ["", " b1 act=Relu", " b1 r1", " b1 r1 act=LeakyRelu(0.1)", " b1 act=Gelu"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_epilogues_and_outputs_around_the_edges_of_vectors(layout: str, epilogue: str) -> None:
    for m in (1, 7, 8, 16, 17, 33, 79):
        _agrees(f"conv f32 {layout} n1 c3 i8x38 m{m} k2x2 s2x2{epilogue}")
        _agrees(f"conv f32 {layout} n1 c6 i9x40 m{3 * m} k1x1 s2x2 g3{epilogue}")


@pytest.mark.parametrize("line", [
    "conv f32 {} n2 c7 i9x40 m20 k2x3 s2x3 p1x2 b1", "conv f32 {} n1 c5 i9x40 m20 k2x2 s3x3 d2x2 p2x2",
    "conv f32 {} n1 c5 i9x10x41 m20 k2x1x4 s2x3x4 p1x0x3", "conv f32 {} n2 c40 i7x7 m50 k1x1 s2x2 p3x3 b1",
    "conv f32 {} n1 c3 i6x5x4x9 m4 k2x2x1x3 s2x2x2x3", "conv f32 {} n1 c90 i30x31 m90 k2x2 s2x2",
    "conv f32 {} n1 c12 i64x80 m20 k4x4 s4x4 g2", "conv_transpose f32 {} n1 c40 i3x4 m20 k3x2 s3x2 b1",
    "conv f32 {} n2 c6 i5x40 m20 k5x1 b1", "conv f32 {} n1 c6 i9x5x40 m20 k5x5x1 d2x1x1 r1",
    "conv f32 {} n1 c9 i64x5 m7 k1x5",
    "conv f32 {} n2 c7 i9x40 m20 k2x2 s2x2 p-1:-2x-3:0", "conv f32 {} n1 c33 i5000 m5 k4 s4",
])  # fmt: skip
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_ranks_pads_groups_and_limits(layout: str, line: str) -> None:
    _agrees(line.format(layout))
    _agrees(line.format(layout), workspace_limit=0)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_any_strides_of_the_arrays_and_threads(layout: str) -> None:
    """The same bits wherever inputs and results lie, and however many share the work."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((18, 6, 2, 2), np.float32)
    shape = (2, 6, 8, 40) if layout == "NCHW" else (2, 8, 40, 6)
    x = rng.standard_normal(shape, np.float32)
    wide = rng.standard_normal([2 * e for e in shape], np.float32)
    layers = [polyconv.Conv(w, strides=2, layout=layout, threads=threads) for threads in (1, 2)]
    for view in (x, x[:, ::-1, ::-1, ::-1], wide[::2, ::2, ::2, ::2], np.broadcast_to(x[:, :, :1], shape)):
        y = layers[0](np.ascontiguousarray(view))
        for layer in layers:
            assert np.array_equal(layer(view), y)
            out = np.zeros([2 * e for e in y.shape], np.float32)[::2, ::2, ::2, ::2]
            assert np.array_equal(layer(view, out=out), y)


@pytest.mark.parametrize("algorithm", ["patches", "strassen"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_long_axis_costs_as_much_a_pixel_as_a_short_one(layout: str, algorithm: str) -> None:
    """Boxes that fit are found however many there are."""
    for kernel in ("c32 i{} m64 k2 s2", "c128 i{} m512 k1", "c4 i{} m256 k4 s4"):
        short, long = (
            sum(form_of(
                algorithm, Situation(Problem.parse(f"conv f32 {layout} n1 {kernel.format(n)}"), target(None))
            ).cost().values())
            for n in (16000, 1600000)
        )
        assert long < 200 * short  # of which memory takes some
