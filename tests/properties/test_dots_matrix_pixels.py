"""The matrix unit with pixels in its lanes: exact for bytes, within bounds for bf16, round every edge of its tiles."""

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

ALGORITHM = "dots_matrix_pixels"
ENDS = ("u8*i8", "i8", "u8", "i8*u8")
CHANCES = range(6)
"""Lots that between them draw patches and planes, tiles that run on over lines and others, and boxes of all sizes."""


def _check(line: str, made: Operands | None = None, **options: Any) -> np.ndarray[Any, Any] | None:
    p = Problem.parse(line)
    made = extreme(p, most=127) if made is None else made
    got = result(p, made, ALGORITHM, **options)
    if got is not None:
        assert complaint(p, expected(p, made), got) is None, f"{line} {options}"
    return got


@needs_unit
@pytest.mark.parametrize("types", ["u8*i8>i32", "i8", "bf16", "bf16>f32"])
def test_channels_make_up_steps_and_blocks(types: str) -> None:
    """Words of a step divide those of a tap; blocks have 16 or 32 output channels, the last one fewer."""
    channels = (1, 2, 3, 4, 5, 18, 33, 34, 62, 64, 66, 76, 130)
    for c, m in itertools.product(channels, (1, 15, 16, 17, 31, 32, 33, 64, 65)):
        line = f"conv {types} NCHW n1 c{c} i5x9 m{m} k{1 + c % 3}x{1 + m % 3} b1"
        assert _check(line) is not None, line
        _check(line, chance=c + m)


@needs_unit
@pytest.mark.parametrize("types", ["i8", "bf16"])
def test_lines_of_every_width(types: str) -> None:
    """Rows shorter and longer than a register, which has 16 pixels, with gaps between them and without."""
    for width in (1, 2, 5, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130):
        for height, kernel in ((1, "k1x1"), (3, "k2x3 p0x1"), (6, "k1x5 p0x2"), (5, "k2x1 s2x1"), (4, "k3x3 p2 d2")):
            line = f"conv {types} NCHW n2 c{8 + width % 3} i{height + 2}x{width} m5 {kernel}"
            assert _check(line) is not None, line
            _check(line, chance=width)


@needs_unit
@pytest.mark.parametrize("types", [*(f"{ends}>i32" for ends in ENDS[:2]), "bf16"])
@pytest.mark.parametrize("geometry", [
    "i1 k1", "i9 k3 p1", "i1x1 k3x3 p1", "i4x33 k3x2 p2:0x1", "i9x7 k2x3 s3x2 d2x1 p0x3", "i3x4x5 k2x1x3 p1x0x2",
    "i12x9 k2x2 s2", "i12x14 k3x3 s2 p1", "i9x20 k3x3 s3 p1", "i2x3x4x5 k2x1x2x3 p1", "i9x9 k3x3 p-1:2x1:-2",
    "i3x9 k2x3 p1x70",
])  # fmt: skip
def test_geometry(geometry: str, types: str) -> None:
    """The same bits for all boxes and threads of a form, and right ones in every form."""
    first, rest = geometry.split(" ", 1)
    for groups, channels in itertools.product((1, 2), (3, 8)):
        line = f"conv {types} NCHW n2 c{channels * groups} {first} m{18 * groups} {rest} g{groups} b1"
        p = Problem.parse(line)
        if 0 in p.y_shape:
            continue
        whole = _check(line)
        assert whole is not None, line
        for threads in (2, 5):
            again = _check(line, threads=threads)
            assert again is not None
            assert again.tobytes() == whole.tobytes(), f"{line} threads {threads}"
        for chance in CHANCES:
            _check(line, chance=chance)
        _check(line, workspace_limit=0)


@needs_unit
@pytest.mark.parametrize("types", ENDS)
def test_zero_points_and_scales(types: str) -> None:
    for number, (m, zw) in enumerate(itertools.product((1, 16, 17, 47, 64), "tc")):
        for zero_points in ("", " zx=t", f" zx=t zw={zw}"):
            _check(f"conv {types}>i32 NCHW n1 c8 i6x7 m{m} k3x3 p1 b1{zero_points}")
        line = f"conv {types} NCHW n2 c12 i7x9 m{m} k3x3 p1x2:0 b1 zx=t zw={zw} zy=t sx=t sw=c sy=t"
        made = extreme(Problem.parse(line), number, most=127)
        for chance in (None, *CHANCES):
            _check(line, made, chance=chance)
    line = f"conv {types} NCHW n2 c12 i7x9 m40 k3x3 p1 b1 zx=t zy=t sx=t sw=c sy=t"
    p = Problem.parse(line)
    if p.w == "i8":
        assert _check(line) is not None, "weights of i8 without a zero point are always taken"


@needs_unit
@pytest.mark.parametrize("types", ["i8>i32", "bf16", "bf16>f32"])
@pytest.mark.parametrize("more", ["act=Relu b1", "act=Clip(-3,5) b1", "b1"])
def test_what_follows_sums(more: str, types: str) -> None:
    for sizes in ("c16 i9x11 m20 k3x3 p1", "c64 i4x40 m70 k1x1", "c8 i12x12 m33 k3x3 s2", "c3 i9x40 m33 k3x3"):
        p = Problem.parse(f"conv {types} NCHW n2 {sizes} {more}")
        if ALGORITHMS[ALGORITHM].refusal(Situation(p, target())) is None:
            for chance in (None, *CHANCES):
                _check(str(p), chance=chance)
        else:
            assert "act" in more, p


@needs_unit
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_stays_in_its_windows(value: float) -> None:
    """Registers hold pixels that are no outputs, and words that no tap has; none of it may reach a result."""
    for sizes in ("c6 i9x13 m20 k3x3 p1", "c5 i9x13 m20 k3x3 p1", "c3 i9x30 m7 k1x2 d1x3", "c10 i7x7 m33 k1x1",
                  "c34 i5x40 m9 k1x3", "c2 i12x12 m16 k3x3 s2 p1", "c1 i12x12 m16 k5x5"):  # fmt: skip
        p = Problem.parse(f"conv bf16 NCHW n2 {sizes}")
        made = extreme(p, most=127)
        x = made.x.copy()
        bad = np.random.default_rng(1).random(x.shape) < 2 / x.size
        bad.reshape(-1)[x.size // 2] = True
        x[bad] = value
        reach = Problem.parse(f"conv f32 NCHW n2 {sizes}")
        ones = result(reach, replace(made, x=bad.astype(np.float32), w=np.ones(p.w_shape, np.float32)), "direct")
        assert ones is not None
        for chance in (None, *CHANCES):
            clean = result(p, made, ALGORITHM, chance=chance)
            got = result(p, replace(made, x=x), ALGORITHM, chance=chance)
            assert (clean is None) == (got is None)
            if clean is not None and got is not None:
                assert np.array_equal(got[ones == 0], clean[ones == 0]), sizes
                assert not np.isfinite(got[ones > 0].astype(np.float32)).any(), sizes


@needs_unit
def test_what_it_refuses() -> None:
    """Each with a sentence that says why."""
    assert "channels-first" in refused("conv bf16 NHWC n1 c4 i9x9 m8 k3x3", ALGORITHM)
    assert "residual" in refused("conv bf16 NCHW n1 c4 i9x9 m8 k3x3 r1", ALGORITHM)
    assert "not i16" in refused("conv i16>i32 NCHW n1 c4 i9x9 m8 k3x3", ALGORITHM)
    assert "phases" in refused("conv_transpose bf16 NCHW n1 c4 i9x9 m8 k3x3 s2", ALGORITHM)
    assert "i8" in refused("conv u8 NCHW n1 c4 i9x9 m8 k3x3 zw=t", ALGORITHM, narrow=False)
    assert refused("conv f32 NCHW n1 c4 i9x9 m8 k3x3", ALGORITHM)


def test_a_cpu_without_the_unit_says_so() -> None:
    s = Situation(Problem.parse("conv i8>i32 NCHW n1 c64 i9x9 m64 k3x3"), replace(host_target(), matrix=False))
    assert "matrix unit" in str(ALGORITHMS[ALGORITHM].form(s))


@needs_unit
def test_neither_threads_nor_batch_decide_the_order_of_sums() -> None:
    """Words in planes, or of patches, are summed in different orders: what is cheaper must not hang on boxes."""
    sizes = ("c4 i{0}x{0} m16 k3x3 p1", "c8 i{0}x{0} m64 k3x3 p1", "c16 i{0}x{0} m32 k2x2", "c64 i{0} m64 k2 d8")
    for size, extent in itertools.product(sizes, (9, 17, 40, 56, 113, 230)):
        p = Problem.parse(f"conv bf16 NCHW n1 {size.format(extent)}")
        schemes = {
            getattr(ALGORITHMS[ALGORITHM].form(Situation(replace(p, n=n), target(), threads=threads)), "scheme", None)
            for n, threads in itertools.product((1, 3), (1, 2, 3, 8, 32))
        }
        assert len(schemes) == 1, p
