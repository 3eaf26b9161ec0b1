"""Dot products of bf16 pairs: within the derived bound, the same bits however work is cut, nothing spread by words."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from algorithms import Array, result

from polyconv.algorithms.table import ALGORITHMS
from polyconv.conformance.judge import complaint, expected
from polyconv.conformance.operands import Operands, operands
from polyconv.lowering.situation import Situation
from polyconv.problem.problem import Problem
from polyconv.target import host_target, target

pytestmark = pytest.mark.skipif(not host_target().bf16, reason="needs dot products of bf16 pairs")

BF16 = ml_dtypes.bfloat16
ALGORITHM = pytest.mark.parametrize(
    "algorithm", ["direct", "dots", "dots_patches", "dots_pixels", "woven", *["dots_matrix"] * host_target().matrix]
)
LAYOUT = pytest.mark.parametrize("layout", ["NCHW", "NHWC"])

PLANES = (
    "c3 i40x50 m64 k7x7 s2 p3 b1", "c3 i9x40 m33 k3x3 p1", "c1 i9x13 m20 k5x5 p2 b1", "c1 i30 m5 k4",
    "c2 i13x13 m17 k2x2 s4",
    "c5 i9x30 m18 k3x3 p2 d2 b1", "c7 i8x13 m20 k3x3 d2x1 p2 act=Relu b1", "c8 i9x30 m30 k5x6 s2x5 p2",
    "c9 i6x9x7 m16 k3x2x3 s1x2x1 p1", "c12 i13x13 m12 k3x3 s3x2 d5x4 p5 g2", "c64 i14x14 m70 k1x1 b1 act=Clip(-1,1)",
    "c63 i14x14 m24 k1x1", "c66 i15x14 m48 k1x1 s2 b1", "c64 i13x14 m64 k3x3 p1 g4 b1", "c6 i20x9 m96 k4x4 s4 p1",
    "c34 i7x7 m40 k3x3 p1", "c20 i40 m9 k7 p6:0 d3", "c96 i8x8 m2 k1x1", "c12 i9x9 m16 k3x3 p-1:2x1:-2",
    "c6 i3x9 m17 k2x3 p1x70", "c7 i3x150 m16 k3x3 p1x33:2", "c6 i5x77 m17 k1x1 s2", "c5 i3x99 m16 k2x3 s1x2 p0x35:1",
)  # fmt: skip
"""Even and odd channels, lines whose taps follow each other or not, strides, groups, and pads wider than vectors."""

TRANSPOSED = ("c16 i5x5x5 m32 k2x2x2 s2 b1", "c12 i8x8 m20 k4x4 s2 p1", "c5 i7x9 m17 k3x3 s2x1 p1 b1",
              "c6 i9 m8 k5 s3 g2", "c8 i17x30 m5 k3x5 s2x2 p1:0x2 b1 act=Relu", "c4 i3x40 m9 k2x3 s1x3 b1")  # fmt: skip


def _drawn(line: str) -> tuple[Problem, Operands]:
    p = Problem.parse(line)
    return p, operands(p, np.random.default_rng(len(line)), "normal")


def _lines(layout: str, more: str = "") -> list[str]:
    found = [f"conv bf16{more} {layout} n2 {rest}" for rest in PLANES]
    return [*found, *(f"conv_transpose bf16{more} {layout} n2 {rest}" for rest in TRANSPOSED)]


@ALGORITHM
@LAYOUT
@pytest.mark.parametrize("more", ["", ">f32"])
def test_within_the_bound_and_the_same_bits(algorithm: str, layout: str, more: str) -> None:
    taken = 0
    for line in _lines(layout, more):
        p, made = _drawn(line)
        whole = result(p, made, algorithm, threads=1)
        if whole is None:
            continue
        taken += 1
        assert complaint(p, expected(p, made), whole) is None, line
        options: list[dict[str, Any]] = [{"chance": seed} for seed in (1, 2, 3)]
        for option in (*options, {"threads": 2}, {"workspace_limit": 0}):
            again = result(p, made, algorithm, **option)
            assert again is None or again.tobytes() == whole.tobytes(), f"{line} {option}"
    assert taken or (layout == "NHWC" and algorithm in ("dots_patches", "dots_pixels", "woven"))


@LAYOUT
@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("algorithm", ["direct", "dots", "dots_patches"])
def test_what_is_not_finite_stays_in_its_windows(algorithm: str, value: float, layout: str) -> None:
    """Of words with an odd channel the other half is a neighbour's, or nobody's."""
    for line in _lines(layout):
        p, made = _drawn(line)
        x = made.x.copy()
        bad = np.random.default_rng(1).random(x.shape) < 2 / x.size
        bad.reshape(-1)[x.size // 2] = True
        x[bad] = value
        plain = result(p, made, algorithm)
        got = result(p, Operands(x, made.w, made.bias), algorithm)
        if algorithm == "dots_patches" and (layout == "NHWC" or p.op == "conv_transpose"):
            assert plain is None and got is None
            continue
        assert plain is not None and got is not None
        met = _meeting(p, made, bad)
        assert p.activation or not np.isfinite(got[met].astype(np.float32)).any(), line
        np.testing.assert_array_equal(got[~met].view(np.uint16), plain[~met].view(np.uint16), line)


def _meeting(p: Problem, made: Operands, bad: Array) -> Array:
    """Which outputs have one of these inputs in their windows."""
    plain = Problem.parse(str(p).replace(" b1", "").replace(" act=Relu", "").replace(" act=Clip(-1,1)", ""))
    ones = Operands(bad.astype(BF16), np.ones_like(made.w), None)
    found = result(plain, ones, "generic")
    assert found is not None
    return found.astype(np.float32) > 0


@pytest.mark.parametrize("algorithm", ["direct", "dots", "dots_patches", "dots_pixels"])
@LAYOUT
def test_arrays_that_lie_in_the_other_layout(algorithm: str, layout: str) -> None:
    for rest in ("c64 i9x10 m40 k1x1 b1", "c3 i20x21 m30 k5x5 s2 p2", "c6 i9x10 m33 k3x3 p1", "c7 i9x9 m33 k3x3 d2"):
        p, made = _drawn(f"conv bf16 {layout} n2 {rest}")
        there = (0, 2, 3, 1) if layout == "NCHW" else (0, 3, 1, 2)
        back = (0, 3, 1, 2) if layout == "NCHW" else (0, 2, 3, 1)
        turned = Operands(np.ascontiguousarray(made.x.transpose(there)).transpose(back), made.w, made.bias)
        plain, other = result(p, made, algorithm), result(p, turned, algorithm)
        assert (plain is None) == (other is None)
        if plain is not None and other is not None:
            assert plain.tobytes() == other.tobytes(), rest


@pytest.mark.parametrize("algorithm", ["direct", "dots", "dots_patches", "dots_pixels"])
@LAYOUT
def test_results_are_rounded_to_even(algorithm: str, layout: str) -> None:
    """Sums that f32 holds exactly, of which many lie in the middle between two numbers of bf16."""
    rng = np.random.default_rng(5)
    p = Problem.parse(f"conv bf16 {layout} n1 c2 i40x41 m48 k1x1")
    x = rng.integers(-255, 256, [int(e or 0) for e in p.x_shape]).astype(BF16)
    w = rng.integers(-4, 5, p.w_shape).astype(BF16)
    got = result(p, Operands(x, w, None), algorithm)
    if algorithm in ("dots_patches", "dots_pixels") and layout == "NHWC":
        assert got is None
        return
    planes = x if layout == "NCHW" else x.transpose(0, 3, 1, 2)
    sums = np.einsum("mc,nchw->nmhw", w[:, :, 0, 0].astype(np.float32), planes.astype(np.float32))
    want = (sums if layout == "NCHW" else sums.transpose(0, 2, 3, 1)).astype(BF16)
    assert (want.astype(np.float32) != (sums if layout == "NCHW" else sums.transpose(0, 2, 3, 1))).any()
    assert got is not None
    np.testing.assert_array_equal(got.view(np.uint16), np.ascontiguousarray(want).view(np.uint16))


def test_only_where_subnormal_numbers_may_count_as_zero_and_weights_are_finite() -> None:
    s = Situation(Problem.parse("conv bf16 NCHW n1 c3 i40x50 m64 k7x7 s2 p3"), target(None))
    assert ALGORITHMS["dots"].refusal(s) is None
    for other in ({"strict": True}, {"finite": False}, {"target": target("avx2")}):
        assert ALGORITHMS["dots"].refusal(Situation(**{"problem": s.problem, "target": s.target, **other})) is not None
    assert "whole words" in str(ALGORITHMS["dots_pixels"].refusal(s))
