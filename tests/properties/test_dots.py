"""Dot products of small integers: exact at the ends of ranges, round every edge of words, vectors, tiles and boxes."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from extremes import extreme
from levels import BOTH_ENDS, LEVELS

import polyconv
from polyconv import prepared, recent
from polyconv.algorithms.table import ALGORITHMS
from polyconv.benchmark.runs import restricted
from polyconv.conformance.kernel_texts import TARGETS
from polyconv.conformance.operands import Operands, operands
from polyconv.lowering.situation import Situation
from polyconv.machine.profile import presets
from polyconv.planning.planner import form_of
from polyconv.problem.oracle import oracle
from polyconv.problem.problem import Problem
from polyconv.target import host_target, target

SCALED = "zx=t zw=t zy=t sx=t sw=c sy=t"
BF16 = pytest.param("bf16", marks=pytest.mark.skipif(not host_target().bf16, reason="needs dot products of bf16 pairs"))


def _check(line: str, made: Operands | None = None, chance: int | None = None, algorithm: str = "dots") -> None:
    p = Problem.parse(line)
    made = extreme(p, 1) if made is None else made
    got = recent.compute(p, made.x, made.w, made.bias, made.residual, quantities=made.quantities, algorithm=algorithm,
                           chance=chance)  # fmt: skip
    want = oracle(p, made.x, made.w, made.bias, made.residual, quantities=made.quantities)
    np.testing.assert_array_equal(got, want, line)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("types", ["u8*i8", "i8", "u8", "i8*u8", "i16"])
def test_types_and_zero_points(types: str, layout: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for zero_points in ("", " zx=t", " zx=t zw=t", " zw=c") if types != "i16" else ("",):
            _check(f"conv {types}>i32 {layout} n1 c9 i6x7 m20 k3x3 p1 b1{zero_points}")
        if types != "i16":
            result = types.split("*")[0]
            _check(f"conv {types}>{result} {layout} n2 c35 i7x9 m37 k3x3 p1x2:0 b1 {SCALED}")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name.startswith("dots")
                                       and name != "dots_lines" and "matrix" not in name])  # fmt: skip
def test_numbers_of_u16_wrap_around(algorithm: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    tried = 0
    with within:
        for op, layout, sizes in itertools.product(("conv", "conv_transpose"), ("NHWC", "NCHW"), (
            "c9 i6x7 m20 k3x3 p1", "c18 i9x5 m21 k2x3 s2x1 g3", "c12 i7x70 m12 k3x3 p1 d1x2 g12",
            "c24 i5x40 m24 k3x1 g6", "c40 i6x33 m3 k3x3 p1", "c1 i8x90 m1 k5x5 p2",
        )):  # fmt: skip
            p = Problem.parse(f"{op} u16 {layout} n2 {sizes} b1")
            s = Situation(p, target(level))
            row = ALGORITHMS[algorithm]
            if (row.excluded(s.target) or row.refusal(s)) is None:
                tried += 1
                _check(str(p), algorithm=algorithm)
                assert row.refusal(replace(s, problem=replace(p, overflow="saturate"))) is not None
    assert tried or not target(level).has_masks


_GEOMETRIES = ("i1 k1", "i1x1 k3x3 p1", "i4x33 k3x2 p2:0x1", "i9x7 k2x3 s3x2 d2x1 p0x3", "i3x4x5 k2x1x3 p1x0x2")
"""Extents of 1, padding alone, pads on one side, strides and dilations, three axes."""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("algorithm", ["dots", "dots_pixels", "dots_patches"])
@pytest.mark.parametrize("types", ["u8*i8", "i8", "u8", "i8*u8"])
def test_weights_less_their_zero_points_need_nine_bits(types: str, algorithm: str, level: str | None) -> None:
    """Zero points at the ends of their range and beside them, alike and not, round the lanes and rows of a tile."""
    x_type, _, w_type = types.partition("*")
    info = np.iinfo({"u8": np.uint8, "i8": np.int8}[w_type or x_type])
    points = (info.min, info.min + 1, info.max // 2 + 2, info.max)
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        if algorithm != "dots" and not target(level).has_masks:
            pytest.skip("needs masks")
        for number, (geometry, point) in enumerate(itertools.product(_GEOMETRIES, points)):
            first, rest = geometry.split(" ", 1)
            m = (1, 7, 15, 16, 23, 24, 31, 32, 40, 63, 64, 65)[number % 12]
            for zw, groups, layout in itertools.product("tc", (1, 2), ("NCHW", "NHWC")):
                if algorithm != "dots" and layout == "NHWC":
                    continue
                spelled = f"{layout} n2 c{5 * groups} {first} m{m * groups} {rest} g{groups}"
                for line in (f"conv {types}>i32 {spelled} b1 zx=t zw={zw}",
                             f"conv {types} {spelled} b1 {SCALED.replace('zw=t', f'zw={zw}')}"):  # fmt: skip
                    made = extreme(Problem.parse(line), number)
                    zero = np.full_like(made.quantities["zw"], point)
                    if zw == "c":
                        zero[::3] = points[(number + 1) % 4]
                    given = replace(made, quantities=made.quantities | {"zw": zero})
                    _check(line, given, chance=number, algorithm=algorithm)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_channels_round_words_and_outputs_round_vectors(layout: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for c, m in itertools.product((1, 2, 3, 4, 5, 8, 33, 64), (1, 15, 16, 17, 40, 65)):
            _check(f"conv u8*i8 {layout} n1 c{c} i3x5 m{m} k1x3 p0x1 b1 {SCALED}")
            _check(f"conv i8>i32 {layout} n1 c{2 * c} i3x5 m{2 * m} k2x2 g2 zx=t")


@pytest.mark.parametrize("algorithm", ["dots", "dots_pixels"])
@pytest.mark.skipif(not target(None).has_masks, reason="needs masks")
def test_rows_of_planes_round_their_vectors(algorithm: str) -> None:
    """Rows shorter and longer than the vectors they are woven in, with padding of less and of more than one."""
    for width, pads, stride in itertools.product((15, 64, 65, 130), ("0", "1", "70:3"), (1, 2, 3, 4, 5)):
        _check(f"conv u8*i8>i32 NCHW n1 c6 i3x{width} m9 k2x3 p1x{pads} s1x{stride} zx=t", algorithm=algorithm)
        if stride > 2:
            _check(f"conv i16 NCHW n1 c5 i3x{width} m9 k2x3 p1x{pads} s1x{stride}", algorithm=algorithm)


@pytest.mark.parametrize("level", BOTH_ENDS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_pixels_round_the_edges_of_tiles(layout: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for pixels in (1, 2, 6, 7, 13, 14, 15, 16, 17, 28, 29, 63, 64, 65, 257):
            _check(f"conv u8*i8 {layout} n2 c8 i{pixels} m33 k1 b1 {SCALED}")
            _check(f"conv u8*i8>i32 {layout} n1 c12 i3x{pixels} m18 k3x3 p1 zx=t")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("geometry", [
    "i11x13 k3x3 s2 p1", "i11x13 k3x3 s3x1 d2x4 p2", "i20 k7 s2 p3", "i12x12 k2x2 s5", "i9x8 k1x1 s2",
    "i5x6x7 k3x2x3 p1", "i4x4 k5x5 p4", "i4x4 k3x3 d5 p5", "i3x3 k3x3 p0:4x3:1", "i13 k3 d9 p9",
])  # fmt: skip
def test_geometry(geometry: str, layout: str) -> None:
    for c, groups in ((3, 1), (8, 1), (40, 2), (6, 3)):
        first, rest = geometry.split(" ", 1)
        spelled = f"{layout} n1 c{c} {first} m{16 * groups} {rest}{f' g{groups}' if groups > 1 else ''}"
        _check(f"conv u8*i8>i32 {spelled} zx=t zw=t")
        for chance in range(3):
            _check(f"conv i8 {spelled} {SCALED}", chance=chance)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_depthwise(layout: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for c, types in itertools.product((1, 7, 16, 64, 65, 150), ("u8*i8", "i8", "u8")):
            _check(f"conv {types} {layout} n2 c{c} i7x9 m{c} k3x3 p1 g{c} b1 {SCALED}", algorithm="dots_depthwise")
            _check(f"conv {types}>i32 {layout} n2 c{c} i7x9 m{c} k3x3 p1 g{c} b1 zx=t", algorithm="dots_depthwise")
        for geometry in (
            "i5x21 k3x3 s2 p1", "i9x9 k5x5 p2", "i8x13 k3x3 d2x1 p2", "i40 k7 s3 p3", "i4x5x6 k2x3x3 p1",
            "i3x3 k4x1 p3x0", "i1x1 k3x3 p1", "i9x30 k5x6 s2x5 p2",
        ):  # fmt: skip
            first, rest = geometry.split(" ", 1)
            for chance in (None, 1, 2):
                _check(f"conv i8 {layout} n1 c70 {first} m70 {rest} g70 {SCALED}", chance=chance,
                       algorithm="dots_depthwise")  # fmt: skip
        _check(f"conv i8 {layout} n1 c70 i6x6 m70 k3x3 g70 b1 r1 act=Relu overflow=saturate",
               algorithm="dots_depthwise")  # fmt: skip


_WINDOWS = (
    "i9x33 k3x3 d2 p2", "i9x33 k3x5 d1x6 s1x2 p0x9", "i60 k13", "i60 k13 s3", "i61 k34 d1 s2 p6:8", "i40 k7 s5 d3 p8:9",
    "i9x9 k1x1 s2", "i11x31 k2x4 s1x3 d6x3 p6x5", "i7x6x5 k3x3x2 s1x2x1 d2x1x3 p2x1x2", "i5x30 k9x2 p4:6x1",
)  # fmt: skip
"""Windows that slide in phases, over every so many taps, with columns that no other output shares, and beyond lines."""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("geometry", _WINDOWS)
def test_depthwise_windows_and_outputs(geometry: str, level: str | None) -> None:
    first, rest = geometry.split(" ", 1)
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for (c, times), chance in itertools.product(((35, 1), (70, 2), (17, 3), (16, 4)), (None, 1)):
            for layout in ("NCHW", "NHWC"):
                spelled = f"{layout} n1 c{c} {first} m{times * c} {rest} g{c} b1"
                for line in (f"conv i8*u8 {spelled} {SCALED}", f"conv u8*i8>i32 {spelled} zx=t", f"conv u8 {spelled}"):
                    _check(line, chance=chance, algorithm="dots_depthwise")
        _check(f"conv_transpose i8 NHWC n1 c34 {first} m68 {rest} g34 b1", algorithm="dots_depthwise")
        _check(f"conv i16 NCHW n1 c17 {first} m51 {rest} g17 b1", algorithm="dots_depthwise")


_LINES = (
    "i5x21 k3x3 s2 p1", "i9x9 k5x5 p2", "i8x13 k3x3 d2x1 p2", "i40x150 k7x7 s2 p3", "i3x3 k4x1 p3x0", "i2x2 k3x3 p1",
    "i9x30 k5x6 s2x4 p2", "i30x64 k3x3 p1", "i30x62 k3x3 p1", "i31x63 k3x3 s1x2 p1", "i20x14 k3x3 p1", "i20x15 k3x3 p1",
    "i28x30 k3x3 p1", "i28x31 k3x3 p1", "i200x300 k3x8 p0:1x2:3", "i12x12 k3x3", "i17x3 k7x7 p3", "i13x13 k2x2 s4",
    "i13x13 k2x2 s3x2 d5x1 p5x0", "i16x18 k3x3 p-2:1x-1:3",
)  # fmt: skip
"""Kernels whose lines end round vectors and words, share vectors, and lie in several bands or residues."""


@pytest.mark.skipif(not (host_target().vnni and host_target().has_masks), reason="needs products of bytes, and masks")
@pytest.mark.parametrize("geometry", _LINES)
def test_depthwise_along_lines(geometry: str) -> None:
    first, rest = geometry.split(" ", 1)
    for multiple, chance in itertools.product((1, 3), (None, 1, 2, 3)):
        spelled = f"NCHW n2 c5 {first} m{5 * multiple} {rest} g5 b1"
        _check(f"conv i8 {spelled} {SCALED.replace('zw=t', 'zw=0')}", chance=chance, algorithm="dots_lines")
        _check(f"conv u8*i8>i32 {spelled} zx=t", chance=chance, algorithm="dots_lines")


LANES_ARE_PIXELS = pytest.mark.parametrize("algorithm", ["dots_pixels", "dots_patches"])


@LANES_ARE_PIXELS
@pytest.mark.skipif(not host_target().has_masks, reason="needs masks")
@pytest.mark.parametrize("types", ["i8", "u8*i8", "i8*u8", "u8*i8>i32", "i16>i32", "i16"])
@pytest.mark.parametrize("geometry", [
    "i1", "i15", "i64", "i65", "i7x9", "i14x14", "i13x29 s2", "i9x31 s3x2", "i5x6x7 s1x2x1", "i40x50", "i16x40",
    "i20x30 p-1:-2x-3:0",
])  # fmt: skip
def test_pointwise_of_planes(geometry: str, types: str, algorithm: str) -> None:
    first, _, rest = geometry.partition(" ")
    kernel = "x".join("1" * (first.count("x") + 1))
    scaled = "" if types.startswith("i16") else "zx=t" if ">" in types else SCALED
    scaled = scaled if types == "i8*u8" else scaled.replace("zw=t", "zw=0")
    for c, m, groups in ((1, 1, 1), (4, 24, 1), (5, 25, 1), (64, 37, 1), (33, 65, 1), (12, 20, 2)):
        for chance in (None, 1, 2, 3):
            spelled = f"NCHW n2 c{c} {first} m{m} k{kernel} {rest} g{groups} b1 {scaled}"
            _check(f"conv {types} {spelled}", chance=chance, algorithm=algorithm)


_PLANES = (
    "i5x21 k3x3 s2 p1", "i9x9 k5x5 p2", "i8x13 k3x3 d2x1 p2", "i40x50 k7x7 s2 p3", "i3x3 k4x1 p3x0", "i1x1 k3x3 p1",
    "i9x30 k5x6 s2x5 p2", "i30x64 k3x3 p1", "i14x14 k3x3 p1", "i7x7 k3x3 p1", "i12x12 k3x3", "i13x13 k2x2 s4",
    "i40 k7 s3 p3", "i70 k3 p1", "i40x70 k1x3 p0x1", "i13x13 k3x3 s3x2 d5x4 p5", "i9x12x8 k2x3x3 s2x1x1 p0x1x1:2",
    "i6x9x7 k3x2x3 s1x2x1 p1", "i4x5x6x7 k2x1x2x3 p1", "i16x18 k3x3 p-2:1x-1:3", "i6x7 k1 p2", "i3x200 k3x3 p1x70",
    "i4x263 k1x5 s1x2 p1x2", "i2x3x129 k1x2x3 s1x1x2 p1", "i9x150 k3x3 d1x2",
)  # fmt: skip
"""Kernels whose lines have padding, strides and gaps, on maps of which boxes cut any axis."""


@LANES_ARE_PIXELS
@pytest.mark.skipif(not host_target().has_masks, reason="needs masks")
@pytest.mark.parametrize("types", ["i8", "u8*i8", "i8*u8", "u8*i8>i32", "i16>i32", "i16"])
@pytest.mark.parametrize("geometry", _PLANES)
def test_planes(geometry: str, types: str, algorithm: str) -> None:
    first, rest = geometry.split(" ", 1)
    scaled = "" if types.startswith("i16") else "zx=t" if ">" in types else SCALED
    for c, m, groups in ((1, 1, 1), (5, 4, 1), (3, 27, 1), (12, 6, 2)):
        for chance in (None, 1, 2):
            _check(f"conv {types} NCHW n2 c{c} {first} m{m} {rest} g{groups} b1 {scaled}", chance=chance,
                   algorithm=algorithm)  # fmt: skip


@pytest.mark.skipif(not host_target().has_masks, reason="needs masks")
def test_gaps_are_closed_without_instructions_for_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    without = replace(host_target(), vbmi2=False)
    monkeypatch.setattr(prepared, "target_in_force", lambda: without)
    for geometry in _PLANES[:8]:
        first, rest = geometry.split(" ", 1)
        _check(f"conv i8 NCHW n1 c5 {first} m13 {rest} b1 {SCALED}", algorithm="dots_pixels")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_threads_take_channels_or_rows_of_their_own(layout: str) -> None:
    for types, algorithm, geometry in (
        ("u8*i8", "dots_depthwise", "c330 i7x9 m330 k3x3 p1 g330"),
        ("i8", "dots_depthwise", "c64 i40x9 m64 k3x3 p1 g64"),
        ("i8", "dots_grouped", "c200 i5x8 m200 k3x3 p1 g50"), ("u8*i8", "dots", "c3 i41x30 m70 k3x3 s2 p1"),
        ("i8", "dots_patches", "c3 i41x130 m20 k3x3 p1"), ("u8*i8", "dots_patches", "c70 i41x30 m20 k1x1"),
        ("i8", "dots_patches", "c130 i7x7 m45 k1x1"), ("u8*i8", "dots_patches", "c6 i3x17 m46 k3x3 p1 g2"),
    ):  # fmt: skip
        if algorithm == "dots_patches" and (layout == "NHWC" or not host_target().has_masks):
            continue
        p = Problem.parse(f"conv {types} {layout} n1 {geometry} b1 {SCALED.replace('zw=t', 'zw=0')}")
        made = extreme(p, 5)
        want = oracle(p, made.x, made.w, made.bias, quantities=made.quantities)
        for threads in (2, 3, 5):
            got = recent.compute(p, made.x, made.w, made.bias, quantities=made.quantities, algorithm=algorithm,
                                   threads=threads)  # fmt: skip
            np.testing.assert_array_equal(got, want, f"{p}, {threads} threads")


@LANES_ARE_PIXELS
@pytest.mark.skipif(not host_target().has_masks, reason="needs masks")
@pytest.mark.parametrize("types", ["u8*i8", "i8", "i16>i32"])
def test_arrays_whose_pixels_lie_apart(types: str, algorithm: str) -> None:
    """Planned for pixels that lie together, in the input and in the result."""
    for rest in ("c64 i9x10 m40 k1x1", "c3 i20x70 m13 k5x5 s1x3 p2", "c6 i9x80 m7 k3x3"):
        p = Problem.parse(f"conv {types} NCHW n2 {rest}{'' if '>' in types else ' ' + SCALED.replace('zw=t', 'zw=0')}")
        made = extreme(p, 7)
        want = oracle(p, made.x, made.w, made.bias, quantities=made.quantities)
        layer = prepared.Layer(lambda n, i, p=p: p, made.w, made.bias, layout="NCHW", accuracy="fast", threads=1,
                               workspace_limit=None, algorithm=algorithm, rigor="estimate",
                               quantities=made.quantities)  # fmt: skip
        turned = np.ascontiguousarray(made.x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        out = np.zeros((*want.shape[:1], *want.shape[2:], want.shape[1]), want.dtype).transpose(0, 3, 1, 2)
        for x in (made.x, turned):
            np.testing.assert_array_equal(layer(x), want)
            layer(x, out=out)
            np.testing.assert_array_equal(out, want)


@pytest.mark.skipif(not host_target().has_masks, reason="needs masks")
@pytest.mark.parametrize("types", ["u8*i8", "i16"])
@pytest.mark.parametrize("geometry", ["i16x40 m9 k1x1", "i320 m5 k3", "i6x64 m11 k1x3", "i5x9x32 m6 k1x1x1"])
def test_tiles_begin_with_a_cache_line_wherever_rows_do(geometry: str, types: str) -> None:
    p = Problem.parse(f"conv {types}>i32 NCHW n2 c24 {geometry}")
    made = extreme(p, 3)
    want = oracle(p, made.x, made.w)
    memory = np.zeros(made.x.nbytes + 128, np.uint8)
    begin = -memory.ctypes.data % 64
    for offset, chance in itertools.product((0, 1, 2, 16, 30, 48, 62), (None, 1, 2)):
        x = memory[begin + offset : begin + offset + made.x.nbytes].view(made.x.dtype).reshape(made.x.shape)
        x[...] = made.x
        for threads in (1, 2):
            got = recent.compute(p, x, made.w, algorithm="dots_patches", chance=chance, threads=threads)
            np.testing.assert_array_equal(got, want, f"{offset} {chance}")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("types", ["u8*i8", "i8", "i8*u8", "i16"])
@pytest.mark.parametrize("geometry", [
    "i1 k1", "i37 k3 p1", "i300 k4 s2", "i7x9 k3x3 p1", "i9x31 k3x2 s3x2 d2 p2:0", "i40x3 k3x3 p1", "i5x6x7 k3x2x3 p1",
    "i3x3 k9x5 p6x3", "i1x1 k3x3 p1",
])  # fmt: skip
def test_few_outputs(geometry: str, types: str, layout: str, level: str | None) -> None:
    """Words and outputs round a vector, in groups too; of weights with any zero points, a lane is that of windows."""
    first, rest = geometry.split(" ", 1)
    lane = target(level).vector_bytes // 4
    sizes = ((1, 1, 1), (5, 3, 1), (64, 2, 1), (65, lane - 1, 1), (22, 2 * (lane - 2), 2), (3, 3 * lane // 2, 3))
    with restricted(level):
        for number, (c, m, groups) in enumerate(sizes):
            spelled = f"{layout} n2 c{c} {first} m{m} {rest} g{groups}"
            lines = [f"conv i16>i32 {spelled} b1"] if types == "i16" else [
                f"conv {types}>i32 {spelled} zx=t zw=c", f"conv {types} {spelled} b1 {SCALED}",
            ]  # fmt: skip
            for line in lines:
                _check(line, chance=number or None, algorithm="dots_inner")


@pytest.mark.parametrize("level", LEVELS)
def test_few_outputs_are_at_most_the_lanes_of_a_vector(level: str | None) -> None:
    lane = target(level).vector_bytes // 4
    most = lane - target(level).vnni  # words of bytes have sums of windows beside
    for m, zw, reason in ((lane, "", None), (lane + 1, "", f"up to {lane}"), (most, "zw=t", None),
                          (most + 1, "zw=t", f"up to {most}")):  # fmt: skip
        s = Situation(Problem.parse(f"conv u8*u8>i32 NHWC n1 c4 i9 m{m} k3 {zw}"), target(level), narrow=not zw)
        found = ALGORITHMS["dots_inner"].refusal(s)
        assert found is None if reason is None else found is not None and reason in found


@pytest.mark.parametrize("level", BOTH_ENDS)
@pytest.mark.parametrize("types", ["u8*i8", "i8*u8"])
def test_groups_of_any_width_share_a_panel(types: str, level: str | None) -> None:
    """The last word of a group begins the next one, whose weights are not its own."""
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for number, (c, m) in enumerate(((1, 1), (3, 5), (6, 11), (7, 16), (9, 15), (13, 17), (4, 31), (5, 33))):
            spelled = f"NHWC n2 c{3 * c} i5x9 m{3 * m} k3x2 p1 d1x2 g3"
            _check(f"conv {types}>i32 {spelled} zx=t zw=c", chance=number or None)
            _check(f"conv {types} {spelled} b1 {SCALED}")


@pytest.mark.parametrize("types", ["u8*i8", "i8*u8", "i8>i32", "i16", BF16])
@pytest.mark.parametrize("outputs", [1, 2, 3, 5, 7, 8, 11, 13, 16, 17, 24, 33])
def test_groups_lie_side_by_side_in_vectors(outputs: int, types: str) -> None:
    """Any number of outputs and channels of a group, with the last block of fewer groups than others."""
    scaled = SCALED if types in ("u8*i8", "i8*u8") else ""
    sizes = [*itertools.product((2, 3, 4, 6, 9, 12), (2, 3, 5, 17))]
    for number, (channels, groups) in enumerate(sizes[outputs % 6 :: 6]):
        if types == "bf16" and channels % 2:
            continue
        extents, rest = ("i5x11 k3x2 p1x0", "i29 k1 s2", "i3x7 k2x3 p1 d1x2")[number % 3].split(" ", 1)
        layout = ("NHWC", "NCHW")[(number + outputs // 6) % 2]
        line = f"conv {types} {layout} n2 c{channels * groups} {extents} m{outputs * groups} {rest} g{groups}"
        p = Problem.parse(f"{line} b1 {scaled}".strip())
        made = operands(p, np.random.default_rng(number), "normal") if types == "bf16" else extreme(p, number)
        for chance in (None, number, number + 1):
            if types == "bf16":
                run = partial(recent.compute, p, made.x, made.w, made.bias, algorithm="dots")
                np.testing.assert_array_equal(run(chance=chance), run(chance=99), str(p))
            else:
                _check(str(p), made, chance)


@pytest.mark.parametrize("level", BOTH_ENDS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("algorithm", ["dots", "dots_inner"])
def test_rows_leave_out_padding_whatever_the_zero_point(algorithm: str, layout: str, level: str | None) -> None:
    """Rows of a box then have biases of their own, where results leave many rows at a time as well."""
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        few = target(level).vector_bytes // 4 - 1
        for number, geometry in enumerate((
            "i5x7 m9 k9x3 p6x1", "i4x24 m5 k7x5 p5:3x2", "i3x4x9 m11 k5x7x1 p2x5x0", "i7x5 m13 k9x1 s2x1 p12:1x0 d2x1",
        )):  # fmt: skip
            first, m, rest = geometry.split(" ", 2)
            rest = f"m{min(int(m[1:]), few)} {rest}" if algorithm == "dots_inner" else f"{m} {rest}"
            for types, more in (("i8>i32", "b1 zx=t"), ("u8", f"b1 {SCALED}"), ("i8*u8>i32", "zx=t zw=c")):
                _check(f"conv {types} {layout} n2 c6 {first} {rest} {more}", chance=number or None, algorithm=algorithm)


@pytest.mark.parametrize("algorithm", ["dots", "dots_inner"])
def test_rows_run_along_the_longest_axis(algorithm: str) -> None:
    few = min(13, host_target().vector_bytes // 4 - 1) if algorithm == "dots_inner" else 13
    for number, line in enumerate((
        f"conv u8 NHWC n2 c9 i90x3 m{few} k3x2 s1x2 p1x0:1 b1 {SCALED}",
        "conv i8>i32 NHWC n1 c24 i5x70x2 m6 k3x3x2 p1 g2 b1",
        "conv_transpose u8*i8>i32 NHWC n1 c5 i60x2 m7 k3x2 s2x1 p1x0 zx=t",
        "conv i16>i32 NHWC n1 c6 i80x4 m8 k5x1 d3x1",
    )):  # fmt: skip
        p = Problem.parse(line)
        form = form_of(algorithm, Situation(p, host_target()))
        assert form.choices()["order of axes"] == ((1, 0) if p.rank == 2 else (0, 2, 1)), line
        for chance in (None, 1 + number, 2 + number):
            _check(line, chance=chance, algorithm=algorithm)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_pixels_that_no_tap_reaches_have_their_bias_alone(layout: str) -> None:
    """Phases of a stride without taps, several in a row and between others."""
    for rest in ("i7x9 m18 k3x1 s1x5 p1x0", "i40 m17 k2 s5", "i4x6 m9 k1x2 s2x7 d1x3 g3", "i3x4x5 m6 k1x1x1 s2x3x4"):
        first, more = rest.split(" ", 1)
        for chance in (None, 1):
            _check(f"conv_transpose u8*i8>i32 {layout} n2 c6 {first} {more} b1 zx=t", chance=chance)
            _check(f"conv_transpose i8 {layout} n1 c6 {first} {more} b1", chance=chance)


@LANES_ARE_PIXELS
@pytest.mark.skipif(not host_target().has_masks, reason="needs masks")
def test_transposed_planes_without_a_stride(algorithm: str) -> None:
    for rest in ("c5 i9x31 m7 k3x3 p1", "c12 i8x13 m6 k3x2 d2x3 p1x2 g2", "c15 i70 m13 k1", "c3 i4x5x20 m9 k2x1x3"):
        for chance in (None, 1, 2):
            _check(f"conv_transpose u8*i8>i32 NCHW n2 {rest} b1 zx=t", chance=chance, algorithm=algorithm)
            _check(f"conv_transpose i8 NCHW n1 {rest} b1", chance=chance, algorithm=algorithm)
    for rest, reason in (("k3x3 s2", "not by phases"), ("k3x3 s1x2", "not by phases"), ("k3x3", None)):
        found = ALGORITHMS[algorithm].refusal(Situation(Problem.parse(f"conv_transpose i8 NCHW n1 c4 i9x9 m5 {rest}"),
                                                        host_target()))  # fmt: skip
        assert found is None if reason is None else found is not None and reason in found


_SCALED = {
    "dots": "c8 i5x20 m33 k3x3 p1", "dots_pixels": "c5 i9x31 m7 k3x3 p1",
    "dots_patches": "c5 i9x70 m7 k3x3 p1", "dots_grouped": "c96 i5x7 m96 k3x3 p1 g24",
    "dots_depthwise": "c70 i6x8 m70 k3x3 p1 g70", "dots_lines": "c3 i9x40 m3 k3x3 p1 g3",
    "dots_inner": "c30 i5x9 m5 k3x3 p1",
    "winograd_dots": "c9 i9x10 m21 k3x3 p1",
}  # fmt: skip
"""A problem for every algorithm."""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("algorithm", _SCALED)
def test_scaled_sums_of_any_size(algorithm: str, layout: str, level: str | None) -> None:
    """Scales round 1, from which on products may be beyond 32 bits, and results on both ends of their type."""
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for types, zy in (("u8*i8", 3), ("u8*i8", 255), ("i8", -128), ("i8", 100)):
            p = Problem.parse(f"conv {types} {layout} n1 {_SCALED[algorithm]} b1 zx=t zw=0 zy=t sx=t sw=c sy=t")
            if (reason := ALGORITHMS[algorithm].refusal(Situation(p, target(level)))) is not None:
                pytest.skip(reason)
            made = extreme(p, 3)
            for scale in (1e-3, 0.5, 0.99999994, 1.0, 1.5, 2.0e7, 1.0e30, -0.75, -3.0e9):
                numbers = {"zy": zy, "sx": scale, "sy": 1.0}
                given = {name: np.asarray(v, made.quantities[name].dtype) for name, v in numbers.items()}
                given["sw"] = np.ones_like(made.quantities["sw"])
                _check(str(p), replace(made, quantities=made.quantities | given), algorithm=algorithm)


@pytest.mark.skipif(not host_target().has_masks, reason="needs masks")
@LANES_ARE_PIXELS
def test_lanes_are_pixels_only_where_there_are_inputs(algorithm: str) -> None:
    for line in ("c0 i8x9 m5 k1x1", "c0 i8x9 m5 k3x3", "c4 i1x1 m5 k2x2 d3 p2:1"):
        s = Situation(Problem.parse(f"conv u8*i8>i32 NCHW n1 {line}"), target(None))
        assert ALGORITHMS[algorithm].refusal(s) == "needs inputs that some tap meets"
        _check(f"conv u8*i8>i32 NCHW n1 {line} b1")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("group", [1, 2, 4, 8])
def test_small_groups(group: int, layout: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for groups, types in itertools.product((1, 3, 8, 17), ("u8*i8", "i8", "u8")):
            c = group * groups
            spelled = f"{layout} n2 c{c} i7x9 m{c} k3x3 p1 g{groups}"
            _check(f"conv {types} {spelled} b1 {SCALED}", algorithm="dots_grouped")
            _check(f"conv {types}>i32 {spelled} b1 zx=t", algorithm="dots_grouped")
        c = group * 40
        for geometry in ("i5x21 k3x3 s2 p1", "i9x9 k5x5 p2", "i8x13 k3x3 d2 p2", "i40 k7 s3 p3", "i4x5x6 k2x3x3 p1"):
            first, rest = geometry.split(" ", 1)
            for chance in (None, 1, 2):
                _check(f"conv i8 {layout} n1 c{c} {first} m{c} {rest} g40 {SCALED}", chance=chance,
                       algorithm="dots_grouped")  # fmt: skip
        _check(f"conv i8 {layout} n1 c{c} i6x6 m{c} k3x3 g40 b1 r1 act=Relu overflow=saturate",
               algorithm="dots_grouped")  # fmt: skip
        _check(f"conv u8>i32 {layout} n1 c{c} i2 m{c} k1 s3 p1:0 d2 g40 zw=c", algorithm="dots_grouped")  # padding only
        _check(f"conv_transpose u8*i8>i32 {layout} n1 c{c} i5x6 m{c} k3x3 s2 p1 g40 zx=t", algorithm="dots_grouped")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_transposed(layout: str) -> None:
    _check(f"conv_transpose u8*i8>i32 {layout} n1 c8 i5x6 m24 k3x3 s2 p1 zx=t zw=t")
    _check(f"conv_transpose i8>i32 {layout} n2 c6 i7 m9 k5 s3 g3 b1")
    _check(f"conv_transpose u8*i8>i32 {layout} n1 c4 i4x9 m2 k3x3 s3x2 p1x2 d1x2 g2")  # phases without taps


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_what_follows_sums(layout: str) -> None:
    for y, more in itertools.product(("i8", "u8", "i16"), ("", " b1 r1", " b1 act=Relu", " r1 act=Clip(-3,90)")):
        for overflow in ("", " overflow=saturate"):
            _check(f"conv i8>{y} {layout} n1 c4 i6x6 m19 k3x3 p1{more}{overflow}")
    _check(f"conv i8>i32 {layout} n1 c4 i6x6 m19 k3x3 p1 b1 r1")


@pytest.mark.parametrize("level", LEVELS)
def test_ties_are_rounded_to_even_and_what_does_not_fit_saturates(level: str | None) -> None:
    x = np.arange(256, dtype=np.uint8).reshape(1, 1, 1, 256)
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for zy, scale in itertools.product((0, 1, 128, 255), (0.5, 0.25, 1.5, 4.0e30)):
            p = Problem.parse("conv u8*i8 NCHW n1 c1 i1x256 m2 k1x1 zx=t zw=t zy=t sx=t sw=t sy=t")
            one = np.float32(1)
            given = {"zx": np.uint8(128), "zw": np.int8(0), "zy": np.uint8(zy)}
            given |= {"sx": np.float32(scale), "sw": one, "sy": one}
            w = np.array([1, -1], np.int8).reshape(2, 1, 1, 1)
            got = recent.compute(p, x, w, quantities=given, algorithm="dots")
            sums = np.stack([np.arange(256) - 128, 128 - np.arange(256)]).reshape(1, 2, 1, 256)
            exact = np.float32(scale) * sums.astype(np.float32)
            want = np.clip(np.rint(exact.astype(np.float64)) + zy, 0, 255).astype(np.uint8)
            np.testing.assert_array_equal(got, want)


def test_arrays_that_lie_otherwise() -> None:
    rng = np.random.default_rng(3)
    w = rng.integers(-128, 128, (24, 12, 3, 3)).astype(np.int8)
    x = rng.integers(0, 256, (2, 12, 9, 10)).astype(np.uint8)
    want = oracle(Problem.parse("conv u8*i8>i32 NCHW n2 c12 i9x10 m24 k3x3"), x, w)
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    spread = np.zeros((2, 12, 18, 30), np.uint8)[:, :, ::2, ::3]
    spread[...] = x
    for given in (x, last, spread, np.ascontiguousarray(x[..., ::-1])[..., ::-1]):
        out = np.zeros((24, 2, 7, 16), np.int32).transpose(1, 0, 2, 3)[..., ::2]
        np.testing.assert_array_equal(polyconv.conv(given, w, out_dtype="int32"), want)
        np.testing.assert_array_equal(polyconv.conv(given, w, out_dtype="int32", out=out), want)


def test_dot_products_of_256_bits_without_avx512(monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_target()
    if "+avxvnni" not in host.features.split(","):
        pytest.skip("this CPU has no AVX-VNNI")
    narrow = replace(target("avx2"), features="+avxvnni", vnni=True)
    monkeypatch.setattr(prepared, "target_in_force", lambda: narrow)
    for layout in ("NCHW", "NHWC"):
        p = Problem.parse(f"conv u8*i8 {layout} n1 c20 i9x11 m37 k3x3 p1 b1 zx=t zw=c zy=t sx=t sw=c sy=t")
        made = extreme(p, 2)
        for zero in (0, -128, 127, np.arange(-18, 19)):
            made.quantities["zw"][...] = zero
            _check(str(p), made)
    assert form_of("dots", Situation(p, narrow)).arithmetic == "u8s8"


def test_weights_decide_between_bytes_and_pairs() -> None:
    """Where zero points of weights are not taken off sums, as those of one channel a group would be."""
    if not host_target().vnni:
        pytest.skip("this CPU multiplies pairs only")
    x = np.full((1, 64, 20, 20), 255, np.uint8)
    for groups, weight, arithmetic in ((1, 127, "u8s8"), (1, 128, "u8s8"), (64, 127, "u8s8"), (64, 128, "i16")):
        w = np.full((64, 64 // groups, 2, 2), weight, np.uint8)
        layer = polyconv.Conv(w, groups=groups, strides=2, out_dtype="int32")
        assert layer.plan(x.shape).arithmetic.endswith(f" {arithmetic}")
        np.testing.assert_array_equal(layer(x), np.full((1, 64, 10, 10), 255 * 4 * 64 // groups * weight))
    unknown = polyconv.plan("conv u8>i32 NCHW n1 c64 i20x20 m64 k2x2 s2 g64")
    assert unknown.arithmetic.endswith(" i16") and "planned without weights" in " ".join(unknown.notes)
    assert polyconv.plan("conv u8>i32 NCHW n1 c64 i20x20 m64 k2x2 s2 g64 zw=128").arithmetic.endswith(" u8s8")


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("level", LEVELS)
def test_threads_share_channels_of_small_planes(level: str | None, layout: str, threads: int) -> None:
    """In chunks of whole blocks, where they are even; each has its weights, bias and scales."""
    for c, group, algorithm in ((384, 1, "dots_depthwise"), (192, 1, "dots_depthwise"), (256, 4, "dots_grouped")):
        for what in ("u8*i8>i32", "u8*i8"):
            line = f"conv {what} {layout} n1 c{c} i7x6 m{c} k3x3 p1 g{c // group} b1"
            p = Problem.parse(line if ">" in what else f"{line} {SCALED}")
            made = extreme(p, 3)
            within: Any = nullcontext() if level is None else restricted(level)
            with within:
                got = recent.compute(p, made.x, made.w, made.bias, quantities=made.quantities, algorithm=algorithm,
                                       threads=threads)  # fmt: skip
            want = oracle(p, made.x, made.w, made.bias, quantities=made.quantities)
            np.testing.assert_array_equal(got, want, f"{p} {algorithm}")


_WIDE = Situation(Problem.parse("conv i8 NCHW n1 c1 i1 m1 k1"), TARGETS["avx512"], profile=presets()["zen5"])
"""Vectors of 64 bytes, whatever this machine has: they decide what is a block."""


def test_chunks_of_channels_are_even_or_rows_are_cut() -> None:
    """Six blocks go to two or three threads, not to five; pixels whose channels lie together are cut by rows."""

    def cut(layout: str, threads: int) -> tuple[int, bool]:
        p = Problem.parse(f"conv u8*i8>i32 {layout} n1 c384 i14x14 m384 k3x3 p1 g384")
        sizes = form_of("dots_depthwise", replace(_WIDE, problem=p, threads=threads)).parts[0].together
        return sizes.blocks, sizes.box == (14, 14)

    assert [cut("NCHW", threads) for threads in (1, 2, 3)] == [(6, True), (3, True), (2, True)]
    assert [cut("NCHW", 5), cut("NHWC", 2)] == [(6, False), (6, False)]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_rows_are_shared_where_outputs_are_few(layout: str, threads: int) -> None:
    """A first layer, whose outputs are one block."""
    p = Problem.parse(f"conv u8*i8>i32 {layout} n1 c3 i63x61 m32 k3x3 s2 p1 b1")
    made = extreme(p, 2)
    got = recent.compute(p, made.x, made.w, made.bias, algorithm="dots", threads=threads)
    np.testing.assert_array_equal(got, oracle(p, made.x, made.w, made.bias))
    sizes = form_of("dots", replace(_WIDE, problem=p, threads=threads)).parts[0].together
    assert (sizes.box, sizes.splits) == ((-(-32 // threads), 31), 1)


def test_no_workspace_beyond_what_is_free() -> None:
    p = Problem.parse("conv u8*i8>i32 NHWC n1 c64 i200x200 m64 k3x3 p1")
    one = Situation(p, target(None), limit=0)
    assert ALGORITHMS["dots"].refusal(one) is None
    assert form_of("dots", one).workspace <= 64 << 10


@pytest.mark.skipif(not target(None).has_masks, reason="needs masks")
@pytest.mark.parametrize("types", ["u8*i8>i32", BF16])
@pytest.mark.parametrize(
    "rest", ["i8x4 m4 k1x4", "i8x2 m4 k2x1 d3x1", "i8x4 m5 k2x2 d3", "i5x3x2 m4 k2x3x1", "i6x4 m4 k1x1"]
)
def test_axes_of_several_taps_are_not_folded(types: str, rest: str) -> None:
    """The taps of a kernel that is as wide as the map lie an element apart, and its results a line."""
    p = Problem.parse(f"conv {types} NCHW n2 c63 {rest}")
    made = operands(p, np.random.default_rng(0), "small")
    got = recent.compute(p, made.x, made.w, made.bias, algorithm="dots_patches")
    np.testing.assert_array_equal(got, oracle(p, made.x, made.w, made.bias))


@pytest.mark.parametrize("types", ["u8*i8>i32", BF16])
def test_no_two_steps_write_the_same_result(types: str) -> None:
    """Steps share threads without waiting for each other: phases that no tap reaches, and all others."""
    p = Problem.parse(f"conv_transpose {types} NCHW n3 c65 i4x3x4 m195 k2x1x2 s3x3x8 p0:2x3x2:0 d6x1x1 g65 b1")
    made = operands(p, np.random.default_rng(0), "small")
    right = oracle(p, made.x, made.w, made.bias)
    for threads in (1, 2, 3):
        for _ in range(5):
            got = recent.compute(p, made.x, made.w, made.bias, algorithm="dots", threads=threads)
            np.testing.assert_array_equal(got, right)
