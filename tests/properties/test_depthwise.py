"""Depthwise convolution around every edge of its tiles: widths, strides, dilations, pads and kernels of all sizes."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from algorithms import Array, result
from levels import LEVELS

from polyconv.algorithms.table import ALGORITHMS
from polyconv.benchmark.runs import restricted
from polyconv.conformance.judge import complaint, expected
from polyconv.conformance.operands import operands
from polyconv.errors import Unsupported
from polyconv.layer import compute
from polyconv.lowering.situation import Situation
from polyconv.problem.problem import Problem
from polyconv.target import target

BLOCKS = pytest.mark.skipif(target().registers < 32, reason="needs 32 vector registers")
PLANES = pytest.mark.skipif(not target().has_masks, reason="needs masks")


def _judged(line: str, seed: int = 0, level: str | None = None, algorithm: str = "depthwise") -> None:
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(seed), "normal" if p.x_dtype.is_float else "small")
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        got = result(p, made, algorithm)
    assert got is not None
    assert complaint(p, expected(p, made), got) is None, line


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("stride", [1, 2])
def test_every_width_and_height(stride: int, layout: str, level: str | None) -> None:
    for extent in (*range(1, 36), 47, 48, 49):
        s = f"s{stride}x{stride}"
        _judged(f"conv f32 {layout} n1 c3 i5x{extent} m3 k3x3 {s} p1x1 g3 b1 act=Relu", extent, level)
        _judged(f"conv f32 {layout} n1 c17 i{extent}x6 m17 k5x2 {s} p2x1 g17 r1", extent, level)
        if extent < 18:
            _judged(f"conv f32 {layout} n1 c6 i5x{extent} m6 k3x5 {s} p1x2 g6 b1 r1", extent, level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_kernels_larger_than_the_map_and_pads_larger_than_the_kernel(layout: str, level: str | None) -> None:
    for kernel, pads in (("9x9", "4x4"), ("17x19", "8x9"), ("1x31", "0x15"), ("31x1", "15x0"), ("2x3", "7x40")):
        for extent in ("7x7", "20x33"):
            _judged(f"conv f32 {layout} n2 c18 i{extent} m18 k{kernel} p{pads} g18 b1", 0, level)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_strides_and_dilations(layout: str) -> None:
    for strides in ("1x1", "2x2", "3x1", "1x3", "2x5", "4x2"):
        for dilations in ("1x1", "2x2", "3x1", "1x4", "6x6", "2x18"):
            _judged(f"conv f32 {layout} n1 c5 i40x41 m5 k3x3 s{strides} p2x3 d{dilations} g5")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_other_ranks_and_transposed(layout: str) -> None:
    for line in (
        "conv f32 {} n2 c17 i50 m17 k31 p15 g17 b1 r1", "conv f64 {} n1 c9 i6x7x20 m9 k3x3x3 s2x1x2 p1x1x1 g9",
        "conv_transpose f32 {} n1 c20 i9x20 m20 k3x3 s2x2 p1x1 g20 op1x1 b1 r1",
        "conv_transpose f32 {} n1 c20 i9x20 m20 k4x4 s2x2 p1x1 g20", "conv_transpose f32 {} n1 c3 i9x9 m3 k2x2 s3x3 g3",
        "conv_transpose f16 {} n1 c20 i11 m20 k5 s2 d3 p1 g20", "conv f32 {} n1 c1 i30x70 m1 k9x9 p4x4",
        # the last axis has one tap; lines so long that they are cut
        "conv f32 {} n2 c40 i20x32 m40 k11x1 p5x0 g40 b1 r1", "conv f32 {} n1 c24 i9x8x12 m24 k3x5x1 s1x2x3 p1x2x0 g24",
        "conv f32 {} n1 c70 i7x1999 m70 k3x3 p1x1 g70 b1",
    ):  # fmt: skip
        _judged(line.format(layout))


@pytest.mark.parametrize("level", LEVELS)
def test_bands_of_large_maps(level: str | None) -> None:
    _judged("conv f32 NCHW n1 c9 i501x430 m9 k5x3 p2x1 g9 b1 r1", 0, level)
    _judged("conv f32 NCHW n1 c5 i931x599 m5 k3x5 s2x2 p1x2 g5", 0, level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("types", ["f16", "bf16", "f64", "i8>i32", "u8*i8>i32", "i16", "u64", "i64", "f16>f32"])
def test_every_type(types: str, level: str | None) -> None:
    for layout in ("NCHW", "NHWC"):
        _judged(f"conv {types} {layout} n1 c19 i16x37 m19 k3x3 p1x1 g19 b1", 0, level)
        _judged(f"conv {types} {layout} n1 c19 i16x37 m19 k3x3 s2x2 p1x1 g19 r1", 0, level)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("width", [7, 40])
def test_unusual_strides_and_the_result_in_the_residual(width: int, stride: int, layout: str) -> None:
    p = Problem.parse(f"conv f32 {layout} n2 c18 i15x{width} m18 k3x3 s{stride}x{stride} p1x1 g18 b1 r1")
    made = operands(p, np.random.default_rng(0), "normal")
    assert made.residual is not None
    want = expected(p, made)
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (0, 2, 3, 1), (1, 0, 3, 2)):
        for step in (1, -1, 3):
            x, y = (_lying(a, order, step) for a in (made.x, made.residual))
            assert compute(p, x, made.w, made.bias, y, out=y, algorithm="depthwise") is y
            assert complaint(p, want, y) is None


def _lying(a: Array, order: tuple[int, ...], step: int) -> Array:
    """A copy with axes in this order in memory, the last of them every so many elements."""
    spread = a.transpose(order)
    memory = np.zeros([*spread.shape[:-1], spread.shape[-1] * abs(step)], a.dtype)
    view = memory[..., ::step].transpose(np.argsort(order))
    view[:] = a
    return view


@BLOCKS
def test_blocks_of_outputs_as_far_apart_as_taps() -> None:
    for dilation in ("2x2", "1x3", "5x1", "7x9", "14x12"):
        for pads in (dilation, "0x0", "2x1", "1:0x0:2"):
            _judged(f"conv f32 NHWC n1 c20 i29x30 m20 k3x3 p{pads} d{dilation} g20 b1 r1", algorithm="depthwise_block")
        _judged(f"conv f32 NHWC n1 c20 i17x15 m20 k3x3 p{dilation} d{dilation} g20", algorithm="depthwise_block")


@BLOCKS
@pytest.mark.parametrize("stride", ["1x1", "2x2", "1x2"])
def test_blocks_of_every_size_at_every_edge(stride: str) -> None:
    for extent in range(4, 15):
        for pads in ("1x1", "2:0x1:2", "0x0"):
            line = f"conv f32 NHWC n2 c{3 * extent} i{extent}x{18 - extent} m{3 * extent} k3x3 s{stride} p{pads}"
            _judged(f"{line} g{3 * extent} b1 r1", extent, algorithm="depthwise_block")


@BLOCKS
def test_blocks_of_many_channels_wherever_cache_lines_begin() -> None:
    p = Problem.parse("conv f32 NHWC n2 c1040 i9x10 m1040 k3x3 p1x1 g1040 b1 r1")
    made = operands(p, np.random.default_rng(0), "normal")
    want = expected(p, made)
    for at in (0, 4, 16, 60):
        x, y = _placed(made.x, at), _placed(made.residual, at)
        assert compute(p, x, made.w, made.bias, y, out=y, algorithm="depthwise_block") is y
        assert complaint(p, want, y) is None


def _placed(a: Array, at: int) -> Array:
    """A copy that begins ``at`` bytes into a cache line."""
    memory = np.empty(a.nbytes + 128, np.uint8)
    first = -memory.ctypes.data % 64 + at
    view = memory[first : first + a.nbytes].view(a.dtype).reshape(a.shape)
    view[:] = a
    return view


@BLOCKS
def test_blocks_of_other_types_ranks_and_channels_that_lie_apart() -> None:
    for line in (
        "conv f64 NHWC n1 c21 i9x10 m21 k3x3 p1x1 g21 b1 r1", "conv f16 NHWC n1 c50 i9x10 m50 k3x3 p1x1 g50 b1",
        "conv bf16 NHWC n1 c50 i9x10 m50 k3x3 s2x2 p1x1 g50 r1", "conv i8>i32 NHWC n1 c300 i9x10 m300 k3x3 p1x1 g300",
        "conv u64 NHWC n1 c21 i9x10 m21 k3x3 p1x1 g21", "conv f32 NHWC n1 c20 i5x9x10 m20 k3x3x3 s2x1x1 p1x1x1 g20 r1",
        "conv f32 NHWC n1 c20 i6x5x9x10 m20 k2x3x3x3 p1x1x1x1 d2x1x1x1 g20 b1 act=HardSwish",
    ):  # fmt: skip
        _judged(line, algorithm="depthwise_block")
    p = Problem.parse("conv f32 NHWC n2 c18 i15x9 m18 k3x3 p1x1 g18 b1 r1")
    made = operands(p, np.random.default_rng(0), "normal")
    x = _lying(made.x, (0, 3, 1, 2), 1)
    y = compute(p, x, made.w, made.bias, made.residual, algorithm="depthwise_block")
    assert complaint(p, expected(p, made), y) is None


@BLOCKS
def test_blocks_of_maps_beyond_all_caches() -> None:
    _judged("conv f32 NHWC n1 c70 i150x151 m70 k3x3 p1x1 g70 b1", algorithm="depthwise_block")
    _judged("conv f32 NHWC n1 c72 i229x201 m72 k3x3 s2x2 p1x1 g72 r1", algorithm="depthwise_block")


@PLANES
@pytest.mark.parametrize("stride", ["1x1", "2x2", "1x2", "2x1"])
def test_planes_of_every_height_and_width(stride: str) -> None:
    """Of as many rows as there are tiles, and so wide that the last strip lacks a lane, has few or all of them."""
    for extent, width in enumerate([*range(1, 8), 15, 16, 17, 18, 31, 32, 33, 34, 47, 49, 64, 65, 66]):
        for pads in ("1x1", "2:0x1:2", "0:1x0:1", "3x20"):
            line = f"conv f32 NCHW n2 c3 i{extent + 3}x{width + 2} m3 k3x3 s{stride} p{pads} g3"
            _judged(f"{line} b1 r1", extent, algorithm="depthwise_plane")


@PLANES
def test_planes_beyond_the_cache() -> None:
    for line in (
        "conv f32 NCHW n2 c71 i35x60 m71 k3x3 p1x1 g71 b1 r1", "conv f32 NCHW n1 c71 i45x70 m71 k3x3 s2x2 p1x1 g71",
        "conv f32 NCHW n1 c21 i101x91 m21 k3x3 p2x2 d2x2 g21", "conv f16 NCHW n1 c600 i27x23 m600 k3x3 p1x1 g600",
        "conv f32 NCHW n1 c3001 i8x7 m3001 k3x3 p1x1 g3001", "conv f64 NCHW n1 c9 i5x50x60 m9 k3x3x3 s1x2x1 p1x1x1 g9",
    ):  # fmt: skip
        _judged(line, 0, None, "depthwise_plane")


@PLANES
def test_planes_with_taps_far_apart() -> None:
    for dilation in ("2x2", "1x3", "5x1", "7x9", "14x12"):
        for pads in (dilation, "0x0", "2x1", "1:0x0:2"):
            line = f"conv f32 NCHW n1 c3 i29x30 m3 k3x3 p{pads} d{dilation} g3 b1 r1"
            _judged(line, algorithm="depthwise_plane")
        _judged(f"conv f32 NCHW n1 c4 i17x35 m4 k3x3 p{dilation} d{dilation} g4", algorithm="depthwise_plane")
    _judged("conv f32 NCHW n1 c2 i29x40 m2 k3x3 s2x1 p1x2 d1x2 g2", algorithm="depthwise_plane")
    for line in ("i33x33 m3 k3x3 p18x18 d18x18", "i40x41 m3 k3x3 p30:2x5:18 d18x12", "i40x40 m3 k3x3 p1x1 d18x18"):
        _judged(f"conv f32 NCHW n2 c3 {line} g3 b1 r1", algorithm="depthwise_plane")
        _judged(f"conv f64 NCHW n2 c3 {line} g3", algorithm="depthwise_plane")


@PLANES
def test_planes_of_other_types_and_ranks_and_pixels_that_lie_apart() -> None:
    for line in (
        "conv f64 NCHW n1 c3 i9x30 m3 k3x3 p1x1 g3 b1 r1", "conv f64 NCHW n1 c3 i9x33 m3 k3x3 s2x2 g3 b1 r1",
        "conv f16 NCHW n1 c5 i9x40 m5 k3x3 p1x1 g5 b1", "conv bf16 NCHW n1 c5 i9x40 m5 k3x3 s2x2 p1x1 g5 r1",
        "conv i8>i32 NCHW n1 c3 i9x50 m3 k3x3 p1x1 g3", "conv u64 NCHW n1 c2 i9x20 m2 k3x3 s1x2 p1x1 g2",
        "conv i8>i32 NCHW n1 c3 i9x65 m3 k3x3 s2x2 g3", "conv f32 NCHW n1 c4 i5x9x40 m4 k3x3x3 s2x1x1 p1x1x1 g4 r1",
        "conv f32 NCHW n1 c4 i6x5x9x33 m4 k2x3x3x3 s1x1x2x2 p1x1x1x0 d2x1x1x1 g4 b1 act=HardSwish",
    ):  # fmt: skip
        _judged(line, algorithm="depthwise_plane")
    p = Problem.parse("conv f32 NCHW n2 c6 i15x33 m6 k3x3 p1x1 g6 b1 r1")
    made = operands(p, np.random.default_rng(0), "normal")
    assert made.residual is not None
    for order, step in (((0, 2, 3, 1), 1), ((0, 1, 2, 3), 2), ((0, 1, 2, 3), -1), ((1, 0, 2, 3), 1)):
        x = _lying(made.x, order, step)
        y = compute(p, x, made.w, made.bias, made.residual, algorithm="depthwise_plane")
        assert complaint(p, expected(p, made), y) is None
    y = made.residual.copy()
    assert compute(p, made.x, made.w, made.bias, y, out=y, algorithm="depthwise_plane") is y
    assert complaint(p, expected(p, made), y) is None


@pytest.mark.parametrize("level", LEVELS)
def test_lines_of_every_length(level: str | None) -> None:
    """Around every number of vectors, taps and pads, where tiles lie inside or read a copy; rows of several axes."""
    for extent in (2, 7, 15, 16, 17, 33, 64, 100, 255, 256, 257, 300, 700):
        for taps, pads in ((2, "1:0"), (3, "1"), (5, "4:0"), (16, "8:7"), (17, "0:30"), (33, "16"), (66, "40")):
            _judged(f"conv f32 NCHW n2 c3 i{extent} m3 k{taps} p{pads} g3 b1 r1", extent, level, "depthwise_line")
    for line in (
        "f32 NCHW n2 c9 i12x70 m9 k1x7 p0x3 g9 b1", "f32 NCHW n1 c3 i4x5x40 m3 k1x1x21 s2x1x1 p0x0x10 g3 r1",
        "f32 NCHW n1 c4 i300 m8 k5 p4:0 g4 b1 act=Relu", "f32 NCHW n1 c4 i300 m4 k3 p128:0 d64 g4",
        "f16 NCHW n1 c5 i310 m5 k7 p3 g5 b1", "bf16 NCHW n1 c5 i9x40 m5 k1x5 p0x2 g5 r1",
        "f64 NCHW n1 c3 i300 m3 k20 p9 g3", "i8>i32 NCHW n1 c3 i100 m3 k5 p2 g3", "u64 NCHW n1 c2 i99 m2 k9 p4 g2",
        "f32 NCHW n1 c300 i1200 m300 k6 p5:0 g300", "f32 NCHW n1 c1 i500 m1 k9",
    ):  # fmt: skip
        _judged(f"conv {line}", 0, level, "depthwise_line")


def test_lines_by_any_number_of_threads_and_pixels_that_lie_apart() -> None:
    for line in ("f32 NCHW n1 c2 i5000 m2 k35 p17 g2", "f32 NCHW n1 c3 i50x90 m3 k1x9 p0x4 g3 r1"):
        p = Problem.parse(f"conv {line}")
        made = operands(p, np.random.default_rng(0), "normal")
        got = result(p, made, "depthwise_line")
        assert np.array_equal(result(p, made, "depthwise_line", threads=3), got)
    for order, step in (((0, 2, 3, 1), 1), ((0, 1, 2, 3), 2), ((0, 1, 2, 3), -1), ((1, 0, 2, 3), 1)):
        y = compute(p, _lying(made.x, order, step), made.w, None, made.residual, algorithm="depthwise_line")
        assert complaint(p, expected(p, made), y) is None


def test_weights_that_are_not_finite() -> None:
    """Padding is left out, never multiplied; where it would be, such weights are refused."""
    w = np.ones((18, 1, 3, 3), np.float32)
    w[0] = np.inf
    p = Problem.parse("conv f32 NHWC n1 c18 i9x9 m18 k3x3 p1x1 g18")
    y = compute(p, np.ones((1, 9, 9, 18), np.float32), w, None, None, algorithm="depthwise")
    assert np.isposinf(y[..., 0]).all()
    assert np.isfinite(y[..., 1:]).all()
    with pytest.raises(Unsupported, match="Inf or NaN"):
        compute(replace(p, layout="NCHW"), np.ones((1, 18, 9, 9), np.float32), w, None, None, algorithm="depthwise")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_several_outputs_of_a_channel(layout: str, level: str | None) -> None:
    for line in (
        "conv f32 {} n2 c19 i9x20 m38 k7x7 p3x3 g19 b1 r1 act=Relu", "conv f16 {} n1 c7 i9x20 m28 k3x3 s2x2 p1x1 g7 b1",
        "conv f64 {} n1 c21 i30 m42 k5 p2 g21 r1", "conv_transpose f32 {} n1 c9 i5x6 m18 k3x3 s2x2 p1x1 g9 b1",
        "conv f32 {} n1 c40 i4x9x8 m80 k3x3x3 p1x1x1 g40", "conv f32 {} n1 c33 i7x5 m66 k5x1 p2x0 g33 b1",
        "conv u8*i8>i32 {} n1 c12 i8x17 m24 k3x3 p1x1 g12", "conv f32 {} n1 c5 i12x40 m15 k3x5 p1x2 g5 b1 r1",
        "conv f32 {} n1 c23 i9x7 m69 k3x3 p1x1 g23",
    ):  # fmt: skip
        _judged(line.format(layout), 0, level)


@pytest.mark.parametrize("level", LEVELS)
def test_windows_that_a_cache_does_not_hold(level: str | None) -> None:
    for line in (
        "conv f32 NHWC n2 c512 i21x20 m512 k7x7 p3x3 g512 b1 r1 act=Relu",
        "conv f32 NHWC n1 c512 i40x30 m512 k9x3 s2x1 p4x1 g512", "conv f32 NHWC n1 c20 i20x280 m20 k9x7 p4x3 g20",
        "conv f32 NHWC n1 c1024 i300 m1024 k61 p30 g1024 b1",
        "conv f16 NHWC n1 c1024 i17x60 m1024 k5x5 s2x2 p2x2 g1024 b1",
        "conv f64 NHWC n1 c256 i15x30 m256 k5x5 d2x2 p4x4 g256 r1",
        "conv f32 NHWC n1 c1024 i900 m1024 k75 p20:90 g1024",
    ):  # fmt: skip
        p = Problem.parse(line)
        made = operands(p, np.random.default_rng(0), "normal")
        within: Any = nullcontext() if level is None else restricted(level)
        with within:
            got = result(p, made, "depthwise_last")
            assert np.array_equal(result(p, made, "depthwise_last", threads=3), got)
        assert complaint(p, expected(p, made), got) is None, line


def test_planes_that_come_from_memory() -> None:
    for line in (
        "conv f32 NCHW n1 c41 i9x65x70 m41 k3x3x3 p1x1x1 g41 b1 r1",
        "conv f32 NCHW n1 c43 i11x60x71 m43 k2x5x3 s2x1x1 p1x2x1 g43",
        "conv f64 NCHW n1 c30 i4x5x40x31 m30 k3x2x3x3 p1x0x1x1 d1x2x1x1 g30",
    ):  # fmt: skip
        p = Problem.parse(line)
        made = operands(p, np.random.default_rng(0), "normal")
        got = result(p, made, "depthwise")
        assert got is not None
        assert np.array_equal(result(p, made, "depthwise", threads=3), got)
        assert complaint(p, expected(p, made), got) is None, line


@pytest.mark.parametrize("level", LEVELS)
def test_lines_that_do_not_lie_together_get_the_same_bits(level: str | None) -> None:
    for line in (
        "conv f32 NCHW n1 c8 i300 m8 k33 p16 g8", "conv f32 NCHW n2 c5 i12x90 m10 k1x21 p0x10 g5",
        "conv f64 NCHW n1 c3 i200 m3 k19 d2 p18 g3",
    ):  # fmt: skip
        p = Problem.parse(line)
        made = operands(p, np.random.default_rng(0), "normal")
        within: Any = nullcontext() if level is None else restricted(level)
        with within:
            reversed_ = replace(made, x=made.x[..., ::-1].copy()[..., ::-1])
            got = result(p, made, "depthwise_line")
            assert got is not None
            assert np.array_equal(result(p, reversed_, "depthwise_line"), got), line


@pytest.mark.parametrize("level", LEVELS)
def test_windows_over_channels_slide_along_the_axis_that_costs_least(level: str | None) -> None:
    """The plan says so where it is another axis than the last: taps are summed in that order."""
    for line in (
        "conv f32 NHWC n2 c20 i58x3 m20 k5x3 p1:4x1 g20 b1 r1",
        "conv bf16 NHWC n1 c19 i31x4x5 m38 k3x2x4 s2x1x3 p1x0x2 g19",
        "conv i16 NHWC n1 c18 i40x2 m18 k7x1 d2x1 p3x0 g18", "conv f64 NHWC n1 c9 i1x33x2 m9 k1x6x2 s1x2x1 g9",
    ):  # fmt: skip
        _judged(line, 0, level)
    s = Situation(Problem.parse("conv f32 NHWC n1 c64 i158x3 m64 k5x3 p1:4x1 g64"), target(None))
    form = ALGORITHMS["depthwise"].form(s)
    assert not isinstance(form, str)
    assert form.scheme == "along 0"
    other = Problem.parse("conv f32 NHWC n1 c64 i158x30 m64 k3x5 p1x2 g64")
    wide = ALGORITHMS["depthwise"].form(replace(s, problem=other))
    assert not isinstance(wide, str)
    assert wide.scheme == ""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("types", ["i8", "u8", "i16", "u16", "i16>i8", "u8*i8>i16"])
def test_sums_modulo_2_to_16_of_numbers_of_the_whole_range(types: str, level: str | None) -> None:
    """In 16 bits where the result has no more and wraps around, however large a sum is; else in 32."""
    for algorithm, shape in (
        ("depthwise", "NHWC n1 c35 i9x20 m35 k3x5 p1x2 g35 b1 r1"), ("depthwise", "NCHW n1 c6 i9x40 m12 k5x3 s1x2 g6"),
        ("depthwise_line", "NCHW n1 c3 i2x77 m3 k1x7 p0x3 g3"), ("depthwise_last", "NCHW n1 c37 i20x3 m37 k5x3 p2 g37"),
        ("depthwise_plane", "NCHW n1 c4 i9x40 m4 k3x3 p1 g4"), ("depthwise_block", "NHWC n1 c40 i9x9 m40 k3x3 p1 g40"),
    ):  # fmt: skip
        for more, sums in (("", "i16 sums"), (" overflow=saturate", "i32")):
            p = Problem.parse(f"conv {types} {shape}{more}")
            made = operands(p, np.random.default_rng(3), "normal")
            with nullcontext() if level is None else restricted(level):
                got = result(p, made, algorithm)
                form = ALGORITHMS[algorithm].form(Situation(p, target(level)))
            if got is None:
                continue
            assert complaint(p, expected(p, made), got) is None, p
            assert not isinstance(form, str)
            assert form.arithmetic == sums or p.x_dtype.bits > 8


@BLOCKS
def test_blocks_whose_channels_do_not_lie_together_get_the_same_bits() -> None:
    p = Problem.parse("conv f32 NHWC n1 c19 i40x4 m19 k3x3 p1 g19 b1")
    made = operands(p, np.random.default_rng(0), "normal")
    apart = replace(made, x=np.repeat(made.x, 2, axis=3)[..., ::2])
    got = result(p, made, "depthwise_block")
    assert got is not None
    assert np.array_equal(result(p, apart, "depthwise_block"), got)  # type: ignore[arg-type]


def test_copies_of_channels_that_lie_otherwise_get_the_same_bits() -> None:
    p = Problem.parse("conv f64 NHWC n1 c32 i9x97 m32 k9x9 p4x4 g32 r1")
    made = operands(p, np.random.default_rng(0), "normal")
    planes = np.moveaxis(np.ascontiguousarray(np.moveaxis(made.x, -1, 1)), 1, -1)
    apart = np.repeat(made.x, 2, -1)[..., ::2]  # neither channels nor pixels lie together
    want = expected(p, made)
    for x in (made.x, planes, apart):
        for residual in (made.residual, np.asfortranarray(made.residual)):
            got = {compute(p, x, made.w, None, residual, algorithm="depthwise_last", chance=chance).tobytes()
                   for chance in range(12)}  # fmt: skip
            assert len(got) <= 2  # a window along either axis
            y = compute(p, x, made.w, None, residual, algorithm="depthwise_last")
            assert complaint(p, want, y) is None
            assert np.array_equal(y, result(p, made, "depthwise_last"))
