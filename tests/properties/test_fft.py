"""Convolution by Fourier transforms: every kind of lanes, sizes around the edges of tiles, and what must not change."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from algorithms import Array, result
from levels import HIGHEST_TWO, LEVELS

from polyconv.algorithms.fourier.tiles import radices
from polyconv.algorithms.table import ALGORITHMS
from polyconv.benchmark.runs import restricted
from polyconv.conformance.judge import complaint, expected, widened
from polyconv.conformance.operands import operands
from polyconv.kernels.fft import RADICES
from polyconv.lowering.situation import FREE_BYTES, Situation
from polyconv.planning.planner import form_of
from polyconv.problem.problem import Problem
from polyconv.target import target


def _judged(line: str, seed: int = 0, level: str | None = None, **options: Any) -> bool:
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(seed), "normal")
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        got = result(p, made, "fft", **options)
    if got is not None:
        assert complaint(p, widened(p, made, expected(p, made)), got) is None, line
    return got is not None


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    "line",
    [
        "conv f32 {} n2 c19 i30x41 m19 k9x11 p2:3x1:4 g19 b1 act=Relu",  # channels in the lanes
        "conv f32 {} n1 c1 i50x60 m20 k9x9 p4 b1 r1",  # one channel in all lanes
        "conv f64 {} n1 c2 i40x40 m19 k7x7 p3x2",
        "conv f32 {} n2 c2 i150x90 m1 k12x15 p4 b1",  # tiles in the lanes
        "conv f32 {} n1 c2 i7000 m3 k100 p50 b1 r1 act=Relu",
        "conv f32 {} n1 c4 i15x20x30 m2 k5x3x4 p2 b1 g2",
        "conv f32 {} n2 c37 i30x41 m41 k5x6 p2:3x1:4 b1 r1",  # a matrix product at every point
        "conv f64 {} n1 c24 i200 m32 k31 p15 g2",
        "conv f32 {} n1 c20 i9x12x17 m20 k3x4x5 p1 b1",
        "conv f16 {} n1 c18 i20x21 m18 k7x7 p3 g18 b1",
        "conv bf16>f32 {} n1 c8 i20x21 m9 k7x7 p3",
    ],
)
def test_kinds_ranks_and_types(line: str, layout: str, level: str | None) -> None:
    assert _judged(line.format(layout), 0, level)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_strides_dilations_and_transposed(layout: str) -> None:
    for strides in ("1x2", "2x1", "3x2", "4x5"):
        assert _judged(f"conv f32 {layout} n1 c17 i40x41 m17 k6x7 s{strides} p2x3 g17 b1")
        assert _judged(f"conv f32 {layout} n1 c9 i40x41 m10 k3x5 s{strides} p2x3 d2x3 r1")
    for stride in (1, 2, 3, 4, 5):
        assert _judged(f"conv f32 {layout} n1 c17 i190 m17 k31 s{stride} p15 g17 b1 r1")
        assert _judged(f"conv f32 {layout} n1 c1 i1900 m1 k31 s{stride} p15 b1 r1")
    assert _judged(f"conv_transpose f32 {layout} n1 c16 i20x21 m20 k9x9 s2 p4 b1 r1")
    assert _judged(f"conv_transpose f32 {layout} n1 c1 i500 m1 k100 s3 p4 op2 b1")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_extents_around_the_edges_of_tiles(layout: str) -> None:
    for extent in (*range(3, 20), 31, 32, 33, 63, 64, 65):
        assert _judged(f"conv f32 {layout} n1 c17 i{extent}x13 m17 k9x5 p4x2 g17", extent)
        assert _judged(f"conv f32 {layout} n1 c5 i13x{extent} m9 k4x7 p2x3 b1", extent)
        assert _judged(f"conv f32 {layout} n1 c2 i{8 * extent} m2 k24 p12 b1", extent)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_kernels_larger_than_the_map_and_uneven_pads(layout: str) -> None:
    for kernel, pads in (
        ("17x19", "8x9"), ("5x31", "0x15"), ("31x5", "15x0"), ("5x6", "7:0x0:40"), ("9x9", "8:1x0:30"),
    ):  # fmt: skip
        for extent in ("7x7", "20x33"):
            assert _judged(f"conv f32 {layout} n2 c18 i{extent} m18 k{kernel} p{pads} g18 b1")
            assert _judged(f"conv f32 {layout} n1 c6 i{extent} m9 k{kernel} p{pads}")
            assert _judged(f"conv f32 {layout} n1 c1 i{extent} m1 k{kernel} p{pads}")
    assert _judged(f"conv f32 {layout} n1 c18 i40x40 m18 k9x9 p-2:3x4:-5 g18")


def test_every_radix_and_length() -> None:
    for n in range(1, 400):
        if n in {2**a * 3**b * 5**c for a in range(9) for b in range(6) for c in range(4)}:
            assert np.prod(radices(n)) == n
            assert set(radices(n)) <= set(RADICES)
    for extent in (3, 5, 7, 9, 11, 14, 17, 19, 22, 26, 29, 35, 39, 47, 53, 80, 107, 142):
        assert _judged(f"conv f64 NCHW n1 c16 i{extent} m16 k{extent} p{extent // 2} g16") == (extent >= 24)
        assert _judged(f"conv f64 NCHW n1 c16 i{extent}x6 m16 k{extent}x{extent} p{extent // 2} g16") == (extent > 4)


@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
@pytest.mark.parametrize(
    "line",
    [
        "conv f32 NCHW n1 c20 i40x40 m20 k7x7 p3 g20 b1", "conv f32 NHWC n1 c1 i60x60 m20 k7x7 p3 b1",
        "conv f32 NCHW n1 c1 i3000 m2 k90 p4 b1", "conv f32 NHWC n1 c16 i30x30 m20 k5x5 p2",
        "conv f32 NCHW n1 c16 i14x31 m16 k9x3 s1x4 g16",  # tiles end within the vectors of whoever does them again
    ],
)  # fmt: skip
@pytest.mark.parametrize("level", HIGHEST_TWO)
def test_what_is_not_finite_spreads_no_further(line: str, level: str | None, value: float) -> None:
    with restricted(level):
        _spreads_no_further(line, value)


def _spreads_no_further(line: str, value: float) -> None:
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(0), "normal")
    made.x.flat[made.x.size // 2] = made.x.flat[made.x.size // 2 + 1] = value
    got = result(p, made, "fft")
    direct = result(p, made, "generic")
    assert got is not None and direct is not None
    assert np.array_equal(np.isfinite(got), np.isfinite(direct))
    assert 0 < np.count_nonzero(np.isfinite(got)) < got.size or value == 3e38


@pytest.mark.parametrize(
    "line",
    [
        "conv f32 NCHW n1 c40 i40x41 m40 k9x9 p4 g40", "conv f32 NHWC n1 c1 i40x41 m70 k9x9 p4",
        "conv f32 NCHW n1 c1 i20000 m1 k300", "conv f32 NHWC n1 c20 i30x31 m70 k5x5 p2",
    ],
)  # fmt: skip
def test_threads_and_batch_change_no_bits(line: str) -> None:
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(0), "normal")
    alone = result(p, made, "fft", threads=1)
    assert alone is not None
    for threads in (2, 3, 7):
        again = result(p, made, "fft", threads=threads)
        assert again is not None and np.array_equal(alone, again)
    two = Problem.parse(line.replace("n1", "n2"))
    twice = operands(two, np.random.default_rng(0), "normal")
    twice.x[1] = made.x[0]
    np.copyto(twice.w, made.w)
    both = result(two, twice, "fft")
    assert both is not None and np.array_equal(alone[0], both[1])


def _error(got: Array | None, exact: Array) -> float:
    assert got is not None
    return float(np.sqrt(np.mean((got - exact) ** 2)))


@pytest.mark.parametrize("line", ["c20 i40x40 m20 k9x9 p4 g20", "c1 i5000 m1 k200", "c16 i20x20 m16 k7x7 p3"])
def test_rms_errors_are_near_those_of_a_direct_sum_and_bounds_hold(line: str) -> None:
    p = Problem.parse(f"conv f32 NCHW n1 {line}")
    made = operands(p, np.random.default_rng(0), "normal")
    exact = expected(p, made).exact
    got = result(p, made, "fft")
    assert _error(got, exact) <= 2 * _error(result(p, made, "direct"), exact)
    kind, factor = form_of("fft", Situation(p, target(None))).bound
    heaviest = np.abs(made.w).reshape(p.m, -1).sum(axis=1).reshape(1, -1, *(1,) * p.rank)
    assert kind == "window"
    assert (np.abs(got - exact) <= factor * np.abs(made.x).max() * heaviest).all()


def test_a_small_workspace_takes_smaller_tiles() -> None:
    line = "conv f32 NCHW n1 c1 i300x300 m1 k9x9"
    whole = form_of("fft", Situation(Problem.parse(line), target(None))).workspace
    for limit in (whole // 2, 100 << 10, 0):
        assert _judged(line, workspace_limit=limit)
        assert form_of("fft", Situation(Problem.parse(line), target(None), limit)).workspace <= limit + FREE_BYTES
    assert not _judged("conv f32 NCHW n1 c1 i5000 m1 k2000", workspace_limit=0)


def test_strict_and_short_sums_refuse() -> None:
    row = ALGORITHMS["fft"]
    p = Problem.parse("conv f32 NCHW n1 c16 i40x40 m16 k9x9 p4 g16")
    assert "strict" in (row.refusal(Situation(p, target(None), strict=True)) or "")
    short = Problem.parse("conv f32 NCHW n1 c16 i40x40 m16 k3x3 p1 g16")
    assert "5 taps" in (row.refusal(Situation(short, target(None))) or "")
    few = Problem.parse("conv f32 NCHW n1 c16 i40x40 m16 k3x5 p1x2 g16")
    assert "15 products" in (row.refusal(Situation(few, target(None))) or "")
    none = Problem.parse("conv f32 NCHW n1 c0 i9x9 m4 k9x9 p4")
    assert "no channels" in (row.refusal(Situation(none, target(None))) or "")
