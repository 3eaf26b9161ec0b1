"""Winograd's tiles of whole numbers: exact up to the bound that packing checks, and refused beyond it."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from levels import BOTH_ENDS, LEVELS

from polyconv import prepared, recent
from polyconv.algorithms.table import ALGORITHMS
from polyconv.benchmark.runs import restricted
from polyconv.conformance.operands import operands
from polyconv.errors import Unsupported
from polyconv.lowering.situation import Situation
from polyconv.planning.planner import form_of
from polyconv.problem.oracle import oracle
from polyconv.problem.problem import Problem
from polyconv.target import target

SCALED = "zx=t zw=t zy=t sx=t sw=c sy=t"


def _check(line: str, *, x: Any = None, w: Any = None, chance: int | None = None, **quantities: Any) -> None:
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(1), "spread")
    given = {**made.quantities, **quantities}
    if "zw" in given and "zw" not in quantities:
        given["zw"] = np.zeros_like(given["zw"]) if p.w == "i8" else np.full_like(given["zw"], 128)
    x, w = made.x if x is None else x, made.w if w is None else w
    got = recent.compute(p, x, w, made.bias, made.residual, quantities=given, algorithm="winograd_dots",
                           chance=chance)  # fmt: skip
    np.testing.assert_array_equal(got, oracle(p, x, w, made.bias, made.residual, quantities=given), line)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("types", ["u8*i8", "i8", "i8*u8", "u8"])
def test_types(types: str, layout: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        _check(f"conv {types} {layout} n2 c20 i13x10 m40 k3x3 p1 b1 {SCALED}")
        _check(f"conv {types}>i32 {layout} n1 c20 i9x11 m9 k3x3 p1x0 b1 zx=t zw=t")


@pytest.mark.parametrize("level", BOTH_ENDS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_every_size(layout: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for c, m in itertools.product((1, 2, 31, 32, 33, 65), (1, 16, 17, 33)):
            _check(f"conv u8*i8 {layout} n1 c{c} i6x5 m{m} k3x3 p1 b1 {SCALED}")
        for height, width in itertools.product((3, 4, 5, 8), (3, 6, 7, 29)):
            _check(f"conv i8 {layout} n1 c4 i{height}x{width} m18 k3x3 p1x2:0 {SCALED}")
        for chance in range(6):
            _check(f"conv u8*i8>i32 {layout} n2 c70 i21x19 m84 k3x3 p1 g2 zx=t", chance=chance)
        _check(f"conv_transpose u8*i8>i32 {layout} n1 c6 i7x9 m12 k3x3 p1 g2 zx=t")
        _check(f"conv i8>i16 {layout} n1 c6 i7x9 m12 k3x3 b1 r1 act=Relu overflow=saturate")


@pytest.mark.parametrize("level", LEVELS)
def test_operands_at_the_ends_of_their_ranges(level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    rng = np.random.default_rng(5)
    with within:
        for zx, c in ((0, 113), (255, 113), (128, 227)):
            for w in (
                np.full((32, c, 3, 3), -128), np.full((32, c, 3, 3), 127), rng.choice([-128, 127], (32, c, 3, 3)),
            ):  # fmt: skip
                for x in (np.zeros((1, c, 9, 9)), np.full((1, c, 9, 9), 255), rng.choice([0, 255], (1, c, 9, 9))):
                    _check(f"conv u8*i8>i32 NCHW n1 c{c} i9x9 m32 k3x3 p1 zx=t", x=x.astype(np.uint8),
                           w=w.astype(np.int8), zx=np.uint8(zx))  # fmt: skip


def test_weights_that_may_reach_the_bound_are_refused() -> None:
    """Sums of 2^25 - 1 at most are right; one more is not computed so."""
    c, zx = 300, np.uint8(0)
    p = Problem.parse(f"conv u8*i8>i32 NHWC n1 c{c} i6x6 m2 k3x3 zx=t")
    x = np.full((1, 6, 6, c), 255, np.uint8)
    sizes = np.zeros((2, c, 3, 3), np.int8)
    most = ((1 << 25) - 1) // 255  # of the sum of the weights of an output channel
    flat = sizes[1].reshape(-1)
    flat[: most // 127] = 127
    flat[most // 127] = most % 127
    _check(str(p), x=x, w=sizes, zx=zx)
    flat[most // 127] += 1
    with pytest.raises(Unsupported, match="2\\^25"):
        _check(str(p), x=x, w=sizes, zx=zx)
    want = oracle(p, x, sizes, quantities={"zx": zx})
    np.testing.assert_array_equal(recent.compute(p, x, sizes, quantities={"zx": zx}), want)
    layer = prepared.Layer(lambda n, i: p, sizes, layout="NHWC", quantities={"zx": zx})
    assert "2^25" in dict(layer.plan(x.shape).refused)["winograd_dots"]


def test_no_workspace_beyond_the_limit() -> None:
    p = Problem.parse("conv u8*i8>i32 NHWC n1 c64 i100x100 m64 k3x3 p1")
    for limit in (1 << 20, 200 << 10, 0):
        s = Situation(p, target(None), limit=limit)
        row = ALGORITHMS["winograd_dots"]
        assert row.refusal(s) is not None or form_of("winograd_dots", s).workspace <= limit + (64 << 10)
    assert ALGORITHMS["winograd_dots"].refusal(Situation(p, target(None), limit=1 << 20)) is None


def test_weights_that_no_cache_holds_from_call_to_call_have_a_price() -> None:
    p = Problem.parse("conv i8>i32 NCHW n1 c256 i14x14 m256 k3x3 p1")
    here, away = (form_of("winograd_dots", Situation(p, target(None), far=far)) for far in (False, True))
    cycles = away.cost()["products"] - here.cost()["products"]
    weights = 36 * 256 * 256 * 2
    assert weights / here.s.profile.stream("memory", 1.0) <= cycles <= weights / here.s.profile.stream("memory", 0.5)
    small = Problem.parse("conv i8>i32 NCHW n1 c32 i56x56 m32 k3x3 p1")
    here, away = (form_of("winograd_dots", Situation(small, target(None), far=far)) for far in (False, True))
    assert here.cost() == away.cost()
