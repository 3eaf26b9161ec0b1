"""Pointwise convolution in place: around every edge of its tiles, boxes, vectors and sets of outputs."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from algorithms import agrees, result
from levels import HIGHEST_TWO, LEVELS

import polyconv
from polyconv.benchmark.runs import restricted
from polyconv.conformance.judge import complaint, expected, widened
from polyconv.conformance.operands import operands
from polyconv.layer import compute
from polyconv.machine.host import profile_in_force
from polyconv.prepared import Layer
from polyconv.problem.problem import Problem
from polyconv.target import levels, target


def _agrees(line: str) -> None:
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(0), "normal" if p.x_dtype.is_float else "small")
    got = result(p, made, "pointwise")
    assert got is not None, line
    assert complaint(p, expected(p, made), got) is None


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64"])
def test_pixels_around_the_edges_of_tiles(dtype: str, layout: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for pixels in (1, 2, 7, 13, 14, 15, 16, 17, 28, 29, 47, 48, 49, 63, 97, 513):
            _agrees(f"conv {dtype} {layout} n2 c5 i{pixels} m19 k1 b1")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("geometry", ["i16x40 m9", "i320 m24", "i613 m65 r1", "i30x97 m7 b1", "i5x9x33 m6"])
def test_boxes_begin_where_vectors_do_wherever_planes_begin(geometry: str, dtype: str, level: str | None) -> None:
    """The first box takes fewer pixels, the last one more: each result once, with the same bits."""
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        p = Problem.parse(f"conv {dtype} NCHW n2 c24 {geometry} k1")
        made = operands(p, np.random.default_rng(0), "normal")
        want = result(p, made, "pointwise")
        assert want is not None
        assert complaint(p, expected(p, made), want) is None
        memory = np.zeros(made.x.nbytes + 128, np.uint8)
        begin = -memory.ctypes.data % 64
        for offset, chance, threads in itertools.product((0, 1, 4, 8, 16, 60), (None, 1, 2, 3), (1, 2)):
            x = memory[begin + offset : begin + offset + made.x.nbytes].view(made.x.dtype).reshape(made.x.shape)
            x[...] = made.x
            got = result(p, replace(made, x=x), "pointwise", chance=chance, threads=threads)
            assert got is not None
            if chance is None:
                assert got.tobytes() == want.tobytes(), offset
            else:
                assert complaint(p, expected(p, made), got) is None, (offset, chance)


@pytest.mark.parametrize("level", [level for level in levels() if target(level).vector_bytes < 64])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_pixels_that_are_copied(dtype: str, level: str) -> None:
    """Planes of a type that tiles do not sum in: only a copy makes it theirs."""
    with restricted(level):
        for pixels, c, m in itertools.product((1, 7, 8, 16, 23, 24, 25, 49, 197), (3, 40), (1, 5, 24)):
            _agrees(f"conv {dtype} NCHW n2 c{c} i{pixels} m{m} k1 b1")
        for more in ("k1x1 s2x3", "k1x1 g2 b1 r1 act=Relu", "k1x1 b1 act=Gelu", "k1x1 s2 g4"):
            _agrees(f"conv {dtype} NCHW n2 c24 i9x31 m20 {more}")
        _agrees(f"conv_transpose {dtype} NCHW n1 c33 i5x6 m2 k2x2 s2x2 b1")


@pytest.mark.parametrize("level", LEVELS)
def test_without_a_workspace_pixels_are_read_in_place(level: str | None) -> None:
    """To the same bits: a limit takes the copy away, not the algorithm."""
    within: Any = nullcontext() if level is None else restricted(level)
    p = Problem.parse("conv f32 NCHW n1 c700 i14x14 m60 k1x1 b1")
    made = operands(p, np.random.default_rng(0), "normal")
    with within:
        free, none = (result(p, made, "pointwise", workspace_limit=limit) for limit in (None, 0))
    assert free is not None and none is not None
    np.testing.assert_array_equal(free, none)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("epilogue", ["", " b1", " b1 r1 act=Relu"])
def test_outputs_around_the_edges_of_vectors(layout: str, epilogue: str) -> None:
    for m in (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 79):
        _agrees(f"conv f32 {layout} n1 c3 i3x19 m{m} k1x1{epilogue}")
        _agrees(f"conv f32 {layout} n1 c6 i3x19 m{3 * m} k1x1 g3{epilogue}")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64"])
def test_few_outputs_of_pixels_whose_channels_lie_together(dtype: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for pixels, c, m in itertools.product((1, 15, 16, 17, 70), (2, 16, 35), (1, 2, 5)):
            _agrees(f"conv {dtype} NHWC n2 c{c} i{pixels} m{m} k1 b1 r1")
    _agrees("conv f32 NHWC n1 c40 i9x40 m4 k1x1 s2x2 g2 b1")
    _agrees("conv f32 NHWC n1 c20 i9x40 m1 k1x1 s2x3 act=Gelu")
    _agrees("conv_transpose f32 NHWC n1 c33 i5x6 m2 k2x2 s2x2 b1")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("epilogue", ["", " b1 r1 act=Relu", " b1 act=Gelu"])
def test_phases_leave_together(layout: str, epilogue: str) -> None:
    """Transposed convolutions whose windows do not overlap, with and without all phases of the last axis."""
    for m in (1, 3, 32, 70):
        _agrees(f"conv_transpose f32 {layout} n2 c9 i5x7 m{m} k2x2 s2x2{epilogue}")
    _agrees(f"conv_transpose f32 {layout} n1 c40 i3x300 m40 k2x2 s2x2{epilogue}")
    _agrees(f"conv_transpose f32 {layout} n1 c12 i3x9 m20 k3x4 s3x4 g2{epilogue}")
    _agrees(f"conv_transpose f32 {layout} n1 c5 i3x9 m20 k2x2 s2x2 p1x1{epilogue}")
    _agrees(f"conv_transpose f32 {layout} n1 c5 i3x9 m20 k2x3 s2x3 p0x1:0{epilogue}")
    _agrees(f"conv_transpose f64 {layout} n1 c5 i2x3x9 m20 k2x1x2 s2x1x2{epilogue}")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_inputs_that_no_second_cache_holds(layout: str, level: str | None) -> None:
    """Their items ask for what the next one reads, for any number of sets of outputs."""
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for m in (3, 13, 50):
            _agrees(f"conv f32 {layout} n2 c37 i87x141 m{m} k1x1 b1")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_strides_crops_and_transposes(layout: str) -> None:
    _agrees(f"conv f32 {layout} n2 c7 i9x40 m20 k1x1 s2x2 b1 r1")
    _agrees(f"conv f32 {layout} n2 c7 i5x6x30 m20 k1x1x1 s1x2x1")
    _agrees(f"conv f32 {layout} n2 c7 i9x40 m20 k1x1 p-1:-2x-3:0")
    _agrees(f"conv_transpose f32 {layout} n1 c7 i9x40 m20 k1x1 b1")
    _agrees(f"conv_transpose f32 {layout} n1 c40 i3x4 m20 k3x2 s3x2 b1")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_windows_that_meet_no_padding(layout: str, level: str | None) -> None:
    """Their entries are read in place, by a list, whole windows of any shape and some that leave inputs out."""
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        _agrees(f"conv f32 {layout} n2 c5 i8x12 m19 k2x2 s2x2 b1")
        _agrees(f"conv f32 {layout} n1 c3 i32x64 m70 k16x16 s16x16 b1 act=Gelu")
        _agrees(f"conv f64 {layout} n2 c7 i31 m20 k3 s3")
        _agrees(f"conv f32 {layout} n1 c6 i9x9x9 m48 k2x3x1 s3x3x2 r1 act=Relu")
        _agrees(f"conv f32 {layout} n1 c6 i16x64 m40 k2x2 s4x3 d2x1 g2")
        _agrees(f"conv i32 {layout} n1 c1 i8x8x8 m48 k2x2x2 s2x2x2")
        _agrees(f"conv f32 {layout} n1 c8 i64x40 m20 k4x2 s4x2 p-4:0x0")
        _agrees(f"conv f32 {layout} n9 c7 i5x6 m70 k5x6 b1")
        _agrees(f"conv f32 {layout} n2 c3 i4x50 m20 k4x1 b1")
        _agrees(f"conv f32 {layout} n2 c3 i19x50 m20 k3x5 s1x2 d2x1 p-2:-1x-1:-3")


@pytest.mark.parametrize("level", HIGHEST_TWO)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_images_of_a_batch_share_boxes(layout: str, level: str | None) -> None:
    """With the bits of each image alone, whatever lies between them."""
    within: Any = nullcontext() if level is None else restricted(level)
    rng = np.random.default_rng(0)
    with within:
        for extents, c in (((1, 1), 40), ((1, 3), 17), ((2, 2), 300), ((7, 7), 33)):
            _agrees(f"conv f32 {layout} n9 c{c} i{extents[0]}x{extents[1]} m50 k1x1 b1 r1 act=Relu")
            layer = polyconv.Conv(rng.standard_normal((50, c, 1, 1), np.float32), layout=layout)
            x = rng.standard_normal((9, c, *extents) if layout == "NCHW" else (9, *extents, c), np.float32)
            alone = np.concatenate([layer(x[at : at + 1]) for at in range(9)])
            wide = np.repeat(x, 2, axis=0)
            for some in (x, wide[::2], wide[::-2][::-1]):
                assert np.array_equal(layer(some), alone)
    _agrees(f"conv f32 {layout} n5 c7 i9x9 m20 k1x1 s2x2 b1")
    _agrees(f"conv_transpose f32 {layout} n5 c7 i1x1 m20 k2x2 s2x2 b1")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("geometry", ["i1 k1", "i1x1 k1x1", "i1x1x1 k1x1x1"])
def test_images_of_one_pixel_are_pixels(geometry: str, layout: str, level: str | None) -> None:
    """Tiles are those of as many pixels; each image has the bits that it has alone."""
    within: Any = nullcontext() if level is None else restricted(level)
    i, k = geometry.split()
    with within:
        for n, c, m, more in itertools.product((2, 7, 15, 31), (3, 40), (5, 70), ("", " b1 r1 act=Relu")):
            p = Problem.parse(f"conv f32 {layout} n{n} c{c} {i} m{m} {k}{more}")
            made = operands(p, np.random.default_rng(n), "normal")
            got = result(p, made, "pointwise")
            assert got is not None
            assert complaint(p, expected(p, made), got) is None
            for at in range(n):
                part = replace(made, x=made.x[at : at + 1],
                               residual=None if made.residual is None else made.residual[at : at + 1])  # fmt: skip
                alone = result(replace(p, n=1), part, "pointwise")
                assert alone is not None
                np.testing.assert_array_equal(alone[0], got[at])


def test_a_layer_whose_results_outgrow_a_cache() -> None:
    """Where they do other sets of outputs are packed, for the same bits."""
    rng = np.random.default_rng(0)
    layer = polyconv.Conv(rng.standard_normal((80, 3, 1, 1), np.float32), layout="NHWC")
    x = rng.standard_normal((1, 100, 100, 3), np.float32)
    rows = np.concatenate([layer(x[:, at : at + 20]) for at in range(0, 100, 20)], axis=1)
    assert np.array_equal(layer(x), rows)
    _agrees("conv f32 NHWC n1 c3 i99x101 m150 k1x1 b1")


@pytest.mark.parametrize("level", HIGHEST_TWO)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_results_that_memory_holds(layout: str, level: str | None) -> None:
    """Tiles ask for those of later tiles, and the last of them for none that are there."""
    with nullcontext() if level is None else restricted(level):
        _agrees(f"conv f32 {layout} n1 c2 i701x997 m5 k1x1 b1")
        _agrees(f"conv f32 {layout} n1 c1 i1402x998 m19 k2x2 s2x2")


@pytest.mark.parametrize("algorithm", ["direct", "generic"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_outputs_that_meet_only_padding(layout: str, algorithm: str) -> None:
    """They are what the epilogue makes of nothing: bias, residual, activation."""
    for epilogue in ("", " b1", " b1 r1 act=Relu", " b1 act=Gelu"):
        assert agrees(f"conv f32 {layout} n2 c7 i5x6 m20 k1x1 p2:3x1:4{epilogue}", algorithm)
        assert agrees(f"conv f32 {layout} n1 c40 i7x7 m50 k1x1 s2x2 p3x3{epilogue}", algorithm)
    assert agrees(f"conv f64 {layout} n1 c3 i2x3x4 m5 k1x1x1 p1x0x2 s1x2x3 b1", algorithm)
    assert agrees(f"conv i32 {layout} n1 c3 i1x1 m5 k3x3 p1x1 s2x2 b1", algorithm)
    assert agrees(f"conv f32 {layout} n1 c3 i4 m5 k1 p3:9 s5 b1", algorithm)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_any_strides_of_the_arrays(layout: str) -> None:
    """Rows, pixels and channels reversed, repeated, interleaved or in the order of the other layout."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((18, 6, 1, 1), np.float32)
    layer = polyconv.Conv(w, layout=layout)
    shape = (2, 6, 7, 20) if layout == "NCHW" else (2, 7, 20, 6)
    other = (0, 2, 3, 1) if layout == "NCHW" else (0, 3, 1, 2)
    x = rng.standard_normal(shape, np.float32)
    wide = rng.standard_normal([2 * e for e in shape], np.float32)
    swapped = np.transpose(np.ascontiguousarray(np.transpose(x, other)), np.argsort(other))
    views = [
        x, x[:, ::-1, ::-1, ::-1], swapped, wide[::2, ::2, ::2, ::2], np.broadcast_to(x[:, :, :1], shape),
    ]  # fmt: skip
    for view in views:
        y = layer(view)
        assert np.array_equal(y, layer(np.ascontiguousarray(view)))
        out = np.zeros([2 * e for e in y.shape], np.float32)[::2, ::2, ::2, ::2]
        assert np.array_equal(layer(view, out=out), y)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_no_workspace_and_any_threads(layout: str) -> None:
    p = Problem.parse(f"conv f32 {layout} n1 c70 i30x31 m90 k1x1 b1 r1 act=Relu")
    made = operands(p, np.random.default_rng(0), "normal")
    alone = result(p, made, "pointwise", workspace_limit=0)
    assert alone is not None
    assert complaint(p, expected(p, made), alone) is None
    for threads in (1, 2, 3):
        again = result(p, made, "pointwise", threads=threads)
        assert again is not None and np.array_equal(alone, again)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_threads_share_pixels_where_outputs_are_few(layout: str) -> None:
    """Of outputs that are one set; of an image of one pixel they share the outputs, since its weights take long."""
    # a quarter of the second-level cache holds such an image, so that it is one box
    c = min(256, int(profile_in_force().numbers["l2.bytes"]) // (4 * 4 * 16 * 16))
    for line, items in ((f"conv f32 {layout} n1 c{c} i13x13 m48 k1x1 b1", {1: 1, 2: 2, 3: 3, 4: 4}),
                        (f"conv f32 {layout} n1 c960 i1x1 m240 k1x1", {1: 1, 2: 2})):  # fmt: skip
        p = Problem.parse(line)
        made = operands(p, np.random.default_rng(0), "normal")
        alone = result(p, made, "pointwise", threads=1)
        for threads, count in items.items():
            layer = Layer(p.with_extents, made.w, made.bias, layout=layout, algorithm="pointwise", threads=threads)
            assert np.array_equal(layer(made.x), alone), (line, threads)
            call = layer.call(made.x, None)
            assert (int(call.steps[3::4].sum()), call.plan_threads) == (count, threads), line


def test_non_finite_weights_stay_where_they_belong() -> None:
    """No padding is multiplied, so Inf and NaN need no care."""
    w = np.ones((20, 3, 1, 1), np.float32)
    w[7, 1], w[19, 2] = np.inf, np.nan
    y = polyconv.conv(np.ones((1, 3, 5, 7), np.float32), w)
    assert np.isinf(y[0, 7]).all() and np.isnan(y[0, 19]).all()
    assert (np.delete(y, (7, 19), axis=1) == 3).all()


@pytest.mark.parametrize("level", LEVELS)
def test_few_outputs_beside_whole_vectors(level: str | None) -> None:
    """Whole vectors of outputs and the rest are computed apart, to the same bits as any lying of the input gives."""
    for line in (
        "conv f32 NHWC n1 c240 i12x17 m60 k1x1 g3 b1", "conv f32 NHWC n2 c67 i5x7 m19 k1x1 b1 r1 act=Relu",
        "conv f32 NHWC n1 c33 i9x9 m35 k1x1 s2", "conv f64 NHWC n1 c50 i9x9 m20 k1x1 g2",
        "conv f32 NHWC n1 c70 i90 m9 k1",
    ):  # fmt: skip
        p = Problem.parse(line)
        made = operands(p, np.random.default_rng(0), "normal")
        within: Any = nullcontext() if level is None else restricted(level)
        with within:
            got = result(p, made, "pointwise")
            reversed_ = replace(made, x=made.x[..., ::-1].copy()[..., ::-1])
            assert got is not None
            assert np.array_equal(result(p, reversed_, "pointwise", threads=3), got), line
        assert complaint(p, expected(p, made), got) is None, line


@pytest.mark.parametrize("fields", ["n1 c20 i1x1 m50 k4x4", "n1 c9 i1x1 m70 k3x5 b1 r1 act=Relu", "n3 c2 i1x1 m33 k2x3",
                                    "n1 c6 i1x1x1 m34 g2 k2x3x2 b1", "n1 c16 i1x1 m20 k4x4 p1"])  # fmt: skip
def test_all_results_of_one_pixel(fields: str) -> None:
    p = Problem.parse(f"conv_transpose f32 NCHW {fields}")
    made = operands(p, np.random.default_rng(0), "normal")
    wide = np.zeros((*p.y_shape[:-1], 2 * p.y_shape[-1]), np.float32)
    for out in (np.zeros(p.y_shape, np.float32), wide[..., ::2], wide[..., : p.y_shape[-1]]):
        y = compute(p, made.x, made.w, made.bias, made.residual, out=out, algorithm="pointwise")
        assert complaint(p, widened(p, made, expected(p, made)), y) is None
