"""The matrix unit: exact for bytes, within bounds for bf16, round every edge of registers, steps, rows and blocks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from algorithms import refused, result
from extremes import extreme

from polyconv.algorithms.table import ALGORITHMS
from polyconv.conformance.judge import complaint, expected
from polyconv.conformance.operands import Operands
from polyconv.lowering.situation import Situation
from polyconv.problem.problem import Problem
from polyconv.target import host_target, target

needs_unit = pytest.mark.skipif(not host_target().matrix, reason="needs a matrix unit (AMX)")

ALGORITHM = "dots_matrix"
LAYOUT = pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
SCALED = "zx=t zw=t zy=t sx=t sw=c sy=t"
ENDS = ("u8*i8", "i8", "u8", "i8*u8")


def _check(line: str, made: Operands | None = None, **options: Any) -> np.ndarray[Any, Any]:
    p = Problem.parse(line)
    made = extreme(p) if made is None else made
    got = result(p, made, ALGORITHM, **options)
    assert got is not None, line
    assert complaint(p, expected(p, made), got) is None, f"{line} {options}"
    return got


@needs_unit
@LAYOUT
@pytest.mark.parametrize("types", [*ENDS, "bf16"])
def test_rows_of_outputs_share_registers(types: str, layout: str) -> None:
    """Rows shorter and longer than a register, which has 16 pixels: with gaps of every width, and of many registers."""
    for width in (1, 2, 3, 5, 7, 8, 13, 15, 16, 17, 31, 33):
        for height, kernel in ((1, "k1x1"), (3, "k2x3 p0x1"), (6, "k1x5 p0x2"), (5, "k2x1 s2x1"), (4, "k3x3 p2 d2")):
            _check(f"conv {types} {layout} n2 c{9 + width % 2} i{height + 2}x{width} m5 {kernel}")


@needs_unit
@LAYOUT
@pytest.mark.parametrize("types", ["u8*i8>i32", "i8", "bf16>f32", "bf16"])
def test_channels_make_up_steps_and_vectors(types: str, layout: str) -> None:
    """Words of a step divide those of an entry; blocks of output channels have one to four vectors, the last fewer."""
    channels = (1, 2, 3, 4, 5, 18, 33, 34, 62, 64, 66, 76, 128, 130)
    for c, m in itertools.product(channels, (1, 16, 31, 48, 49, 64, 65, 130)):
        _check(f"conv {types} {layout} n1 c{c} i5x6 m{m} k{1 + c % 3}x{1 + m % 3} b1")


@needs_unit
@LAYOUT
@pytest.mark.parametrize("types", [*ENDS, "bf16"])
@pytest.mark.parametrize("geometry", [
    "i1 k1", "i9 k3 p1", "i1x1 k3x3 p1", "i4x33 k3x2 p2:0x1", "i9x7 k2x3 s3x2 d2x1 p0x3", "i3x4x5 k2x1x3 p1x0x2",
    "i12x9 k2x2 s2", "i12x14 k3x3 s2 p1", "i9x20 k3x3 s3 p1", "i2x3x4x5 k2x1x2x3 p1", "i9x9 k3x3 p-1:2x1:-2",
    "i3x9 k2x3 p1x70",
])  # fmt: skip
def test_geometry(geometry: str, types: str, layout: str) -> None:
    first, rest = geometry.split(" ", 1)
    for op, groups, channels in itertools.product(("conv", "conv_transpose"), (1, 2), (3, 8)):
        pads = [] if op == "conv" else [word for word in rest.split() if word[0] == "p"]
        if any(int(n) > 2 or int(n) < 0 for word in pads for n in word[1:].replace(":", "x").split("x")):
            continue
        line = f"{op} {types} {layout} n2 c{channels * groups} {first} m{18 * groups} {rest} g{groups} b1"
        p = Problem.parse(line)
        if 0 in p.y_shape:
            continue
        whole = _check(line)
        for option in ({"chance": 1}, {"chance": 2}, {"threads": 2}, {"threads": 5}, {"workspace_limit": 0}):
            again = result(p, extreme(p), ALGORITHM, **option)  # type: ignore[arg-type]
            assert again is None or again.tobytes() == whole.tobytes(), f"{line} {option}"


@needs_unit
@LAYOUT
@pytest.mark.parametrize("types", ENDS)
def test_zero_points_and_scales(types: str, layout: str) -> None:
    for number, (m, zw) in enumerate(itertools.product((1, 15, 16, 17, 47, 63, 64, 65), "tc")):
        for zero_points in ("", " zx=t", f" zx=t zw={zw}"):
            _check(f"conv {types}>i32 {layout} n1 c8 i6x7 m{m} k3x3 p1 b1{zero_points}")
        line = f"conv {types} {layout} n2 c12 i7x9 m{m} k3x3 p1x2:0 b1 {SCALED.replace('zw=t', f'zw={zw}')}"
        made = extreme(Problem.parse(line), number)
        _check(line, made, chance=number)
        _check(line, made)


@needs_unit
@LAYOUT
@pytest.mark.parametrize("types", ["i8>i32", "bf16", "bf16>f32", "u8*i8>i32"])
@pytest.mark.parametrize("more", ["r1", "r1 act=Relu", "act=Clip(-3,5) b1", "b1 r1"])
def test_what_follows_sums(more: str, types: str, layout: str) -> None:
    for sizes in ("c16 i9x11 m20 k3x3 p1", "c64 i4x40 m70 k1x1", "c8 i12x12 m33 k3x3 s2"):
        p = Problem.parse(f"conv {types} {layout} n2 {sizes} {more}")
        s = Situation(p, target())
        if ALGORITHMS[ALGORITHM].refusal(s) is None:
            _check(str(p))
        else:
            assert "Clip" in more or "Relu" in more, p


@needs_unit
@LAYOUT
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_stays_in_its_windows(value: float, layout: str) -> None:
    """Registers hold pixels that are no outputs, and what lies behind a panel; none of it may reach a result."""
    for sizes in ("c6 i9x13 m20 k3x3 p1", "c5 i9x13 m20 k3x3 p1", "c3 i9x30 m7 k1x2 d1x3", "c10 i7x7 m33 k1x1",
                  "c34 i5x40 m9 k1x3", "c2 i12x12 m16 k3x3 s2 p1"):  # fmt: skip
        p = Problem.parse(f"conv bf16 {layout} n2 {sizes}")
        made = extreme(p)
        x = made.x.copy()
        bad = np.random.default_rng(1).random(x.shape) < 2 / x.size
        bad.reshape(-1)[x.size // 2] = True
        x[bad] = value
        spread = replace(made, x=x)
        clean, got = result(p, made, ALGORITHM), result(p, spread, ALGORITHM)
        reach = Problem.parse(f"conv f32 {layout} n2 {sizes}")
        ones = result(reach, replace(made, x=bad.astype(np.float32), w=np.ones(p.w_shape, np.float32)), "direct")
        assert clean is not None
        assert got is not None
        assert ones is not None
        assert np.array_equal(got[ones == 0], clean[ones == 0]), sizes
        assert not np.isfinite(got[ones > 0].astype(np.float32)).any(), sizes


@needs_unit
@pytest.mark.parametrize("types", ["u8*i8>i32", "bf16"])
def test_pixels_are_read_in_place_to_the_last_one(types: str) -> None:
    """Registers end with a row where what lies behind it is no panel: the last row of a tensor ends a page."""
    for width, c, m in itertools.product((16, 17, 30, 31, 47), (4, 64), (16, 40)):
        _check(f"conv {types} NHWC n1 c{c} i{width} m{m} k1")
        _check(f"conv {types} NHWC n2 c{c} i3x{width} m{m} k1x2")


@needs_unit
def test_what_it_refuses() -> None:
    """Each with a sentence that says why."""
    assert "not i16" in refused("conv i16>i32 NHWC n1 c4 i9x9 m8 k3x3", ALGORITHM)
    assert refused("conv f32 NHWC n1 c4 i9x9 m8 k3x3", ALGORITHM)
    assert refused("conv bf16 NHWC n1 c4 i9x9 m8 k3x3", ALGORITHM, strict=True)


def test_a_cpu_without_the_unit_says_so() -> None:
    s = Situation(Problem.parse("conv i8>i32 NHWC n1 c64 i9x9 m64 k3x3"), replace(host_target(), matrix=False))
    assert "matrix unit" in str(ALGORITHMS[ALGORITHM].form(s))
