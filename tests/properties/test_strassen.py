"""One level of Strassen's product: around every edge of boxes, halves, tiles and vectors."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from algorithms import result
from levels import BOTH_ENDS, HIGHEST_TWO, LEVELS

from polyconv.algorithms.table import ALGORITHMS
from polyconv.benchmark.runs import restricted
from polyconv.conformance.judge import complaint, expected, widened
from polyconv.conformance.operands import operands
from polyconv.layer import compute
from polyconv.lowering.situation import FREE_BYTES, Situation
from polyconv.planning.planner import form_of
from polyconv.problem.problem import Problem
from polyconv.target import target


def _agrees(line: str, **options: Any) -> None:
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(len(line)), "normal")
    got = result(p, made, "strassen", **options)
    assert got is not None, line
    assert complaint(p, widened(p, made, expected(p, made)), got) is None, line


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_sizes_around_every_edge(layout: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for pixels in (1, 2, 3, 15, 27, 28, 29, 33, 57, 131):
            _agrees(f"conv f32 {layout} n2 c64 i{pixels} m70 k1 b1")
        for c, m in ((16, 2), (18, 30), (66, 64), (94, 66), (96, 94), (98, 96), (130, 130), (200, 226)):
            _agrees(f"conv f32 {layout} n1 c{c} i5x7 m{m} k1x1")


@pytest.mark.parametrize("level", HIGHEST_TWO)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_inputs_that_no_second_cache_holds(layout: str, level: str | None) -> None:
    """Products ask for those of the next box or image, and the last of them for none that are there."""
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for line in ("n2 c64 i97x101 m66 k1x1", "n3 c128 i61x63 m66 k1x1 s2x2", "n1 c32 i180x200 m66 k2x2 s2x2",
                     "n9 c512 i14x14 m34 k1x1"):  # fmt: skip
            _agrees(f"conv f32 {layout} {line} b1")
            _agrees(f"conv f32 {layout} {line} b1", threads=2)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("step", [1, 2, 3, 5, 8, 16])
def test_strides_taps_and_widths(step: int, layout: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for taps in sorted({1, max(1, step - 1), step}):
            for outputs in (1, 2, 15, 17, 50):
                wide = (outputs - 1) * step + taps
                _agrees(f"conv f32 {layout} n2 c16 i{wide} m18 k{taps} s{step} b1")
                _agrees(f"conv f32 {layout} n1 c8 i7x{wide + step - 1} m34 k2x{taps} s3x{step}")


@pytest.mark.parametrize("line", [
    "c16 i9x40 m20 k2x2 s3x3 d2x2", "c6 i9x10x41 m20 k2x1x4 s2x3x4", "c8 i6x5x4x9 m4 k2x2x1x3 s2x2x2x3",
    "c90 i30x31 m90 k2x2 s2x2", "c16 i9x40 m20 k2x2 s2x2 p-1:-2x-3:0", "c32 i5000 m6 k4 s4", "c2 i64x80 m20 k4x4 s4",
    "c1 i64x80 m20 k4x4 s4",
])  # fmt: skip
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_ranks_dilations_and_limits(layout: str, line: str) -> None:
    _agrees(f"conv f32 {layout} n1 {line}")
    if "c90" not in line:  # not even a pixel fits then
        _agrees(f"conv f32 {layout} n1 {line}", workspace_limit=0)


@pytest.mark.parametrize("kernel", [1, 2])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_any_strides_of_the_arrays_and_threads(layout: str, kernel: int) -> None:
    """The same bits wherever inputs and results lie, and however many share the work."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((18, 16, kernel, kernel), np.float32)
    shape = (2, 16, 8, 40) if layout == "NCHW" else (2, 8, 40, 16)
    x = rng.standard_normal(shape, np.float32)
    wide = rng.standard_normal([2 * e for e in shape], np.float32)
    p = Problem.parse(f"conv f32 {layout} n2 c16 i8x40 m18 k{kernel}x{kernel} s{kernel}x{kernel}").fused()
    if kernel == 1:  # axes that lie together are one
        p, w = Problem.parse(f"conv f32 {layout} n2 c16 i320 m18 k1"), w[..., 0]
        x, wide = (v.reshape(*v.shape[:2], -1) if layout == "NCHW" else v.reshape(len(v), -1, v.shape[-1])
                   for v in (x, wide))  # fmt: skip
    every = tuple(slice(None, None, 2) if n else slice(0, 4, 2) for n in range(x.ndim))
    for view in (x, x[:, ::-1, ::-1], wide[every][tuple(slice(0, e) for e in x.shape)], x[::-1]):
        y = compute(p, np.ascontiguousarray(view), w, algorithm="strassen")
        for threads in (1, 2):
            out = np.zeros([2 * e for e in y.shape], np.float32)[tuple(slice(None, None, 2) for _ in y.shape)]
            assert np.array_equal(compute(p, view, w, algorithm="strassen", threads=threads, out=out), y)
            assert np.array_equal(out, y)


LINES = [
    "conv f32 {} n2 c40 i9x41 m70 k2x3 s2x3 b1", "conv f32 {} n1 c64 i13x14 m64 k1x1 s2x2 b1 r1 act=Relu",
    "conv f32 {} n1 c33 i9x10x11 m66 k2x1x2 s2x1x2", "conv f64 {} n3 c64 i9x7 m64 k1x1 act=Gelu",
    "conv f16 {} n1 c64 i9x7 m64 k1x1 b1 r1", "conv bf16 {} n1 c128 i9x7 m64 k1x1",
    "conv f32 {} n1 c17 i30x32 m80 k2x2 s2", "conv f32 {} n1 c7 i64 m64 k16 s16",
    "conv f32 {} n3 c512 i7x7 m256 k1x1 act=Relu",
]  # fmt: skip


@pytest.mark.parametrize("level", BOTH_ENDS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("line", LINES)
def test_bits_are_those_of_any_batch_threads_and_values_elsewhere(line: str, layout: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        p = Problem.parse(line.format(layout))
        _agrees(line.format(layout))
        made = operands(p, np.random.default_rng(1), "normal")
        clean = result(p, made, "strassen")
        rng = np.random.default_rng(2)
        for value in (np.nan, np.inf, 0.3 * float(np.finfo(p.y_dtype.numpy).max) if p.y != "bf16" else 1e38):
            made.x[-1][tuple(rng.integers(0, made.x.shape[1:]))] = value
            got = result(p, made, "strassen")
            assert clean is not None and got is not None
            assert complaint(p, widened(p, made, expected(p, made)), got) is None
            assert np.array_equal(got[:-1], clean[:-1])
            for threads in (2, 5):
                assert np.array_equal(got, result(p, made, "strassen", threads=threads), equal_nan=True)
            last = replace(made, x=made.x[-1:], residual=None if made.residual is None else made.residual[-1:])
            assert np.array_equal(got[-1:], result(replace(p, n=1), last, "strassen"), equal_nan=True)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_what_is_not_finite_spreads_no_further_than_it_belongs(layout: str) -> None:
    p = Problem.parse(f"conv f32 {layout} n1 c64 i6x9 m64 k1x1")
    made = operands(p, np.random.default_rng(0), "normal")
    pixel = (0, slice(None), 2, 3) if layout == "NCHW" else (0, 2, 3)
    made.x[pixel] = np.inf
    made.w[5] = 0.0
    got = result(p, made, "strassen")
    assert got is not None
    others = np.ones(got.shape, bool)
    others[pixel] = False
    assert np.isfinite(got[others]).all() and np.isnan(got[pixel][5]) and not np.isfinite(got[pixel]).any()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_large_weights_of_one_output_disturb_no_other(layout: str) -> None:
    """The window bound is over an output's own weights, however large those of the output it is paired with."""
    p = Problem.parse(f"conv f32 {layout} n1 c128 i6x9 m128 k1x1")
    made = operands(p, np.random.default_rng(0), "normal")
    made.w[::3] *= 1e12
    made.w[1::3] *= 1e-12
    made.w[7] = 0.0
    got = result(p, made, "strassen")
    assert got is not None
    assert complaint(p, widened(p, made, expected(p, made)), got) is None


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_whole_numbers_come_back_whole(layout: str) -> None:
    p = Problem.parse(f"conv f32 {layout} n1 c200 i6x9 m128 k1x1")
    made = operands(p, np.random.default_rng(0), "small")
    assert np.array_equal(made.x, np.round(made.x)) and np.array_equal(made.w, np.round(made.w))
    got = result(p, made, "strassen")
    assert got is not None and np.array_equal(got, expected(p, made).exact)


def test_error_stays_below_twice_that_of_a_chain() -> None:
    rng = np.random.default_rng(0)
    for line in ("conv f32 NHWC n1 c64 i20x20 m64 k1x1", "conv f32 NCHW n1 c512 i9x9 m128 k1x1"):
        p = Problem.parse(line)
        made = operands(p, rng, "normal")
        exact = expected(p, made).exact
        axis = 1 if p.layout == "NCHW" else -1
        x, w = np.moveaxis(made.x[0], axis - 1 if axis > 0 else -1, 0), made.w[:, :, 0, 0]
        chain = np.zeros((p.m, *x.shape[1:]), np.float32)
        for c in range(p.c):
            chain += w[:, c, None, None] * x[c]
        got = result(p, made, "strassen")
        assert got is not None
        y, e = (np.moveaxis(a[0], axis - 1 if axis > 0 else -1, 0) for a in (got, exact))
        assert np.sqrt(np.mean((y - e) ** 2)) < 2 * np.sqrt(np.mean((chain - e) ** 2))


def test_a_limit_of_workspace_is_kept() -> None:
    for layout in ("NCHW", "NHWC"):
        p = Problem.parse(f"conv f32 {layout} n1 c64 i50x50 m64 k1x1").fused()
        whole, less = (Situation(p, target(None), limit=limit) for limit in (None, 0))
        assert form_of("strassen", less).workspace <= FREE_BYTES < form_of("strassen", whole).workspace
    _agrees("conv f32 NCHW n1 c64 i50x50 m64 k1x1", workspace_limit=0)


def test_what_it_leaves_to_others() -> None:
    def refusal(line: str) -> str:
        return ALGORITHMS["strassen"].refusal(Situation(Problem.parse(line), target(None))) or ""

    assert "even numbers" in refusal("conv f32 NCHW n1 c65 i50 m64 k1")
    assert "for its error" in refusal("conv f32 NCHW n1 c14 i50 m64 k1")
    assert "one group" in refusal("conv f32 NCHW n1 c128 i50 m128 k1 g2")
    assert "do not overlap" in refusal("conv f32 NCHW n1 c128 i50 m128 k3")
    assert "meet no padding" in refusal("conv f32 NCHW n1 c128 i50 m128 k1 p1")
    assert "lie together" in refusal("conv f32 NCHW n1 c128 i5x5 m128 k1x1")


@pytest.mark.parametrize(("algorithm", "line"), [
    ("strassen", "conv f32 NCHW n1 c4096 i196 m4096 k1"), ("stem", "conv f32 NHWC n1 c16 i2000 m8192 k128"),
])  # fmt: skip
def test_weights_that_no_cache_holds_have_a_price(algorithm: str, line: str) -> None:
    s = Situation(Problem.parse(line), target(None))
    assert 1e6 < sum(form_of(algorithm, s).cost().values()) < 1e12
