"""Groups of every width up to a vector and beyond: whole and cut blocks of groups, every way in and out."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from algorithms import Array, result
from levels import LEVELS

from polyconv.algorithms.grouped import pieces
from polyconv.benchmark.runs import restricted
from polyconv.conformance.judge import complaint, expected
from polyconv.conformance.operands import operands
from polyconv.problem.problem import Problem
from polyconv.target import host_target, target


def agree(line: str, algorithm: str | None, **options: Any) -> bool:
    """Check a problem; whether the algorithm takes it."""
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(len(line)), "normal" if p.x_dtype.is_float else "small")
    got = result(p, made, algorithm, **options)
    if got is not None:
        assert complaint(p, expected(p, made), got) is None, line
    return got is not None


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("algorithm", ["in_place", None])
def test_widths(algorithm: str | None, layout: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for group in (*range(1, 18), 24, 31, 32, 40):
            groups = 1 + 40 // group
            c, more = group * groups, ("", " s2x2", " d1x2", " s1x3 d2x1 b1")[group % 4]
            taken = agree(f"conv f32 {layout} n1 c{c} i6x21 m{c} k3x3 p1x1{more} g{groups}", algorithm)
            assert taken == (algorithm is None or (layout == "NHWC" and group > 1))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("line", [
    "conv {} NHWC n2 c40 i7x7 m40 k3x3 p1x1 g5 b1 r1 act=Relu", "conv {} NHWC n1 c36 i60 m36 k9 s2 p4 g9",
    "conv {} NHWC n1 c48 i1x1 m48 k1x1 g12", "conv {} NHWC n1 c12 i90 m36 k3 d40 g3 b1",
    "conv {} NHWC n1 c33 i5x6x9 m33 k3x3x3 p1x1x1 g11 b1 r1", "conv {} NHWC n1 c40 i7x9 m22 k3x2 s2 g2",
    "conv {} NHWC n1 c16 i3x4x5x6 m16 k2x2x2x2 p1x0x1x0 g2", "conv {} NHWC n1 c6 i31 m100 k3 p1 g2 b1 r1",
    "conv_transpose {} NHWC n1 c21 i9x9 m21 k3x3 s3x2 p1x1 op1x1 d2x1 g3",
])  # fmt: skip
def test_types_in_place(line: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    types = "f64 f16 bf16 f32>f64 f16>f32 i8>i32 u8*i8>i32 i16 u16 i16>i64 i32 u64"
    with within:
        for some in types.split():
            assert agree(line.format(some), "in_place", workspace_limit=0)


@pytest.mark.parametrize("line", [
    "conv f32 NHWC n2 c32 i13x17 m32 k3x3 s2x2 p1x1 g4 b1", "conv f32 NHWC n1 c40 i9x11 m100 k1x1 g5",
    "conv f32 NHWC n1 c24 i131 m24 k3 s2 p1 g3", "conv f32 NHWC n1 c16 i5x6x7 m32 k2x2x2 s2x2x2 g2",
])  # fmt: skip
def test_in_place_by_parts(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(0), "normal")
    whole = result(p, made, "in_place")
    monkeypatch.setattr(pieces, "IMAGE_SHARE", 0.0)
    monkeypatch.setattr(pieces, "PART_SHARE", 1 / 1024)
    parts = result(p, made, "in_place")
    assert whole is not None and parts is not None
    assert np.array_equal(whole, parts)


@pytest.mark.parametrize("level", LEVELS)
def test_in_place(level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for group_in, group_out in itertools.product((2, 3, 8, 17, 40), (1, 3, 8, 20, 50)):
            more = ("", " s2x2", " d1x2 b1 act=Relu", " s1x3 d2x1 b1 r1")[(group_in + group_out) % 4]
            line = f"conv f32 NHWC n2 c{3 * group_in} i7x19 m{3 * group_out} k3x4 p1x2{more} g3"
            assert agree(line, "in_place")
            assert agree(line.replace("conv", "conv_transpose", 1), "in_place")


@pytest.mark.skipif(not host_target().has_masks, reason="needs loads and stores with masks")
@pytest.mark.parametrize("kernel", ["i7x19 k3x4 p1x2", "i9x75 k3x3 p1x1", "i6x130 k2x5 p0x4"])
def test_in_planes(kernel: str) -> None:
    extents, taps = kernel.split(" ", 1)
    for group_in, group_out in itertools.product((2, 8, 17), (1, 3, 8, 13, 27)):
        more = ("", " s2x2", " d1x2 b1 act=Relu", " s1x2 d2x3 b1 r1")[(group_in + group_out) % 4]
        assert agree(f"conv f32 NCHW n2 c{3 * group_in} {extents} m{3 * group_out} {taps}{more} g3", "in_planes")


@pytest.mark.skipif(not host_target().has_masks, reason="needs loads and stores with masks")
@pytest.mark.parametrize("types", [
    "f32", "f64", "f16", "bf16", "f32>f64", "f16>f32", "i8>i32", "u8>i32", "u8*i8>i32", "i16", "u16", "i16>i64", "i32",
    "u32", "i64", "u64",
])  # fmt: skip
def test_few_outputs_in_planes(types: str) -> None:
    """Of one group, from inputs that are converted as they are loaded; extents of 1, taps that meet only padding."""
    for (geometry, c), m in itertools.product((
        ("i7x19 k3x4 p1x2", 5), ("i1 k1", 1), ("i1x1 k3x3 p1", 3), ("i33 k5 s2 p6:0", 17),
        ("i4x3x50 k2x3x7 d1x1x6 p0x2x18", 2),
    ), (1, 2, 3, 24)):  # fmt: skip
        first, rest = geometry.split(" ", 1)
        for more in ("", " b1 act=Relu", " b1 r1"):
            assert agree(f"conv {types} NCHW n2 c{c} {first} m{m} {rest}{more}", "in_planes", accuracy="strict")
    assert agree("conv i16 NCHW n1 c5 i9x31 m3 k3x3 p1 b1 overflow=saturate", "in_planes")
    assert not agree(f"conv {types} NCHW n1 c5 i9x31 m25 k3x3", "in_planes", accuracy="strict")


@pytest.mark.parametrize("line", [
    "conv f32 NHWC n1 c36 i600 m36 k9 s2 p4 g9", "conv f32 NHWC n1 c36 i9 m18 k12 p8 g2 b1",
    "conv f64 NHWC n2 c20 i5x6x9 m20 k3x3x3 p1x1x1 g5 b1 r1", "conv f32 NHWC n1 c40 i1x30 m40 k3x3 p1x1 g4",
    "conv f32 NHWC n1 c40 i30x1 m40 k3x5 p1x2 g2", "conv f32 NHWC n3 c64 i14x14 m64 k3x3 s2x2 p1x1 g4",
    "conv f32>f16 NHWC n1 c24 i9x9 m24 k3x3 p1x1 g3", "conv f32 NHWC n0 c24 i9x9 m24 k3x3 p1x1 g3",
    "conv f16 NHWC n2 c20 i9x7 m70 k3x3 p1x1 g2 b1 r1", "conv bf16 NHWC n2 c26 i9x7 m26 k3x3 p1x1 g2 b1 r1",
    "conv u8 NHWC n2 c26 i9x7 m80 k3x3 p1x1 g2 b1 r1",
])  # fmt: skip
def test_in_place_by_threads_and_strides(line: str) -> None:
    plain = shared_by_threads(line, "in_place")
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(0), "normal")
    for axis in range(plain.ndim):
        every_second = tuple(slice(None, None, 2) if a == axis else slice(None) for a in range(plain.ndim))
        apart = np.zeros([2 * e if a == axis else e for a, e in enumerate(plain.shape)], plain.dtype)[every_second]
        result(p, made, "in_place", out=apart)
        assert np.array_equal(plain, apart)
    backwards = replace(made, x=np.ascontiguousarray(made.x[:, ::-1])[:, ::-1])
    turned = result(p, backwards, "in_place")
    assert turned is not None
    assert np.array_equal(plain, turned)


def shared_by_threads(line: str, algorithm: str) -> Array:
    """What one thread computes, which is right, and what two do."""
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(0), "normal")
    alone, shared = (result(p, made, algorithm, threads=n) for n in (1, 2))
    assert alone is not None and shared is not None
    assert complaint(p, expected(p, made), alone) is None
    assert np.array_equal(alone, shared)
    return alone


@pytest.mark.skipif(not host_target().has_masks, reason="needs loads and stores with masks")
@pytest.mark.parametrize("line", [
    "conv f32 NCHW n1 c36 i600 m36 k9 s2 p4 g9", "conv f32 NCHW n1 c36 i9 m18 k12 p8 g2 b1",
    "conv f64 NCHW n2 c20 i5x6x9 m20 k3x3x3 p1x1x1 g5 b1 r1", "conv f32 NCHW n1 c40 i1x30 m40 k3x3 p1x1 g4",
    "conv f32 NCHW n1 c40 i30x1 m40 k3x5 p1x2 g2", "conv f32 NCHW n3 c64 i14x14 m64 k3x3 s2x2 p1x1 g4",
    "conv f32>f16 NCHW n1 c24 i9x9 m24 k3x3 p1x1 g3", "conv f32 NCHW n0 c24 i9x9 m24 k3x3 p1x1 g3",
    "conv f32 NCHW n1 c8 i3x200 m8 k1x40 p0x39 g2 s1x2", "conv f16 NCHW n1 c8 i3x40 m18 k3x3 p1x5 g2 s1x2 b1 r1",
    "conv u16 NCHW n2 c18 i3x40 m8 k2x5 p0x5 g2 b1 r1",
])  # fmt: skip
def test_in_planes_by_threads_and_strides(line: str) -> None:
    plain = shared_by_threads(line, "in_planes")
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(0), "normal")
    backwards = replace(made, x=np.ascontiguousarray(made.x[:, ::-1])[:, ::-1])  # planes in the other order
    turned = result(p, backwards, "in_planes")
    assert turned is not None
    assert np.array_equal(plain, turned)
    for axis in range(plain.ndim):
        every_second = tuple(slice(None, None, 2) if a == axis else slice(None) for a in range(plain.ndim))
        apart = np.zeros([2 * e if a == axis else e for a, e in enumerate(plain.shape)], plain.dtype)[every_second]
        result(p, made, "in_planes", out=apart)
        assert np.array_equal(plain, apart)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_rows_of_tiles(layout: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    lanes = target(level).vector_bytes // 4
    with within:
        for group in (3, 4, 5, 7, 8, 12, 16, 20, 33, 48):
            groups = 1 + 20 // group
            c, m = group * groups, (group + group % 3) * groups
            more = ("x1", "x2 b1 act=Relu", "x0 d1x2", "x1 b1 r1")[group % 4]
            line = f"conv f32 {layout} n1 c{c} i{5 + group}x21 m{{}} k3x3 p1{more} g{groups}"
            assert agree(line.format(m), "winograd_rows") == (layout == "NCHW")
            assert agree(line.format(c), "winograd_groups") == (layout == "NHWC" and group <= lanes)


BY_LAYOUT = ("winograd_rows", "NCHW"), ("winograd_groups", "NHWC")


@pytest.mark.parametrize("line", [
    "conv f32 {} n2 c40 i7x7 m40 k3x3 p1x1 g5 b1 r1 act=Relu", "conv f32 {} n1 c24 i9x40 m24 k3x5 p1x2 g3 b1",
    "conv f32 {} n1 c24 i5x6x9 m24 k3x3x3 p1x1x1 g3 b1 r1", "conv f32 {} n1 c16 i7x8x18 m16 k3x3x1 s2x1x1 d2x1x1 g4",
    "conv f32 {} n1 c12 i70x60 m24 k3x3 p1x1 g3", "conv f64 {} n1 c20 i9x9 m20 k3x3 p1x1 g5 b1",
    "conv f16 {} n1 c24 i9x9 m24 k3x3 p1x1 g4 b1 r1", "conv bf16 {} n1 c24 i9x9 m24 k3x3 p2x0 g3",
    "conv_transpose f32 {} n1 c24 i9x9 m24 k3x3 p1x1 g6 b1", "conv f32 {} n1 c8 i3x700 m8 k3x3 p1 g1",
    "conv f32 {} n1 c256 i3x5x33 m256 k3x3x3 p1x1x1 g32 b1 r1", "conv f32 {} n1 c768 i6x9 m768 k3x3 p1x1 g64",
])  # fmt: skip
@pytest.mark.parametrize(("algorithm", "layout"), BY_LAYOUT)
def test_shapes_of_rows_of_tiles(algorithm: str, layout: str, line: str) -> None:
    p = Problem.parse(line.format(layout))
    lanes = target(None).vector_bytes // max(4, p.x_dtype.itemsize)
    fits = algorithm == "winograd_rows" or p.c // p.groups <= lanes
    assert agree(line.format(layout), algorithm) == fits or p.c != p.m
    agree(line.format(layout), algorithm, workspace_limit=0)
    made = operands(p, np.random.default_rng(0), "normal")
    alone, shared = (result(p, made, algorithm, threads=n) for n in (1, 2))
    assert (alone is None and shared is None) or np.array_equal(alone, shared)


def test_outputs_apart_along_a_line() -> None:
    line = "conv_transpose f32 {} n3 c84 i5x8 m84 k3x2 s1x2 d1x3 g12"
    assert not agree(line.format("NCHW"), "winograd_rows")
    assert agree(line.format("NHWC"), "winograd_groups")


@pytest.mark.parametrize("level", LEVELS)
def test_rows_of_tiles_beyond_the_caches(level: str | None) -> None:
    """A batch whose results are asked for before they are written has the bits of its images alone."""
    p = Problem.parse("conv f32 NCHW n5 c3 i83x101 m64 k3x3 p1x1 b1")
    made = operands(p, np.random.default_rng(0), "normal")
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        whole = result(p, made, "winograd_rows")
        assert whole is not None and whole.nbytes > 8 << 20
        for b in range(5):
            alone = result(replace(p, n=1), replace(made, x=made.x[b : b + 1]), "winograd_rows")
            assert alone is not None and np.array_equal(alone[0], whole[b])


@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize(("algorithm", "layout"), BY_LAYOUT)
@pytest.mark.parametrize(("channels", "value"), [(40, 0), (512, 0), (256, np.inf)])
def test_rows_of_tiles_that_lie_apart(algorithm: str, layout: str, channels: int, value: float, axis: int) -> None:
    """Inputs and results of any strides, with the same bits."""
    p = Problem.parse(f"conv f32 {layout} n1 c{channels} i9x19 m{channels} k3x3 p1x1 g{channels // 8} b1")
    made = operands(p, np.random.default_rng(0), "normal")
    made.x[(0, 35, 6, 7) if layout == "NCHW" else (0, 6, 7, 35)] += value
    plain = result(p, made, algorithm)
    assert plain is not None
    every_second = tuple(slice(None, None, 2) if a == axis else slice(None) for a in range(4))
    x = np.zeros([2 * e if a == axis else e for a, e in enumerate(made.x.shape)], made.x.dtype)[every_second]
    x[...] = made.x
    out = np.zeros([2 * e if a == axis else e for a, e in enumerate(plain.shape)], plain.dtype)[every_second]
    result(p, replace(made, x=x), algorithm, out=out)
    assert np.array_equal(plain, out, equal_nan=True)


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize(("algorithm", "layout"), BY_LAYOUT)
def test_rows_of_tiles_keep_what_is_not_finite_where_it_belongs(algorithm: str, layout: str, value: float) -> None:
    p = Problem.parse(f"conv f32 {layout} n1 c24 i13x19 m24 k3x3 p1x1 g3")
    made = operands(p, np.random.default_rng(0), "normal")
    x = made.x.copy()
    x[(0, 3, 6, 7) if layout == "NCHW" else (0, 6, 7, 3)] = value
    got = result(p, replace(made, x=x), algorithm)
    assert got is not None
    wrong = ~np.isfinite(got)
    assert wrong.sum() == 9 * 8 and np.array_equal(wrong, ~np.isfinite(expected(p, replace(made, x=x)).values))
