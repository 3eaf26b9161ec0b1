"""``depthwise_last``: channels-first arrays by a copy with channels last, whatever its boxes and how arrays lie."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from algorithms import result
from levels import LEVELS

from polyconv.algorithms.depthwise.last import LastForm
from polyconv.algorithms.table import ALGORITHMS
from polyconv.benchmark.runs import restricted
from polyconv.conformance.judge import complaint, expected
from polyconv.conformance.operands import operands
from polyconv.layer import compute
from polyconv.lowering.situation import Situation
from polyconv.problem.problem import Problem
from polyconv.target import target

NAME = "depthwise_last"
TYPES = ["f32", "f64", "f16", "bf16", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "u8*i8>i32", "i16>i64"]
EDGES = [
    "conv f32 NCHW n2 c19 i9x20 m19 k3x3 p1 g19 b1 r1 act=Relu",
    "conv f32 NCHW n1 c2 i1x1 m2 k3x3 p1 g2 b1",  # one pixel
    "conv f32 NCHW n1 c33 i1 m33 k1 g33",
    "conv f64 NCHW n2 c17 i40x3x2 m17 k3x1x2 s1x1x2 p2:0x0x1 g17 r1",  # the longest axis is the first
    "conv f32 NCHW n1 c16 i5x6 m16 k15x17 p7x8 g16",  # a kernel larger than the image
    "conv f32 NCHW n1 c18 i5x9 m18 k3x63 p1x31 d1x1 g18 b1",
    "conv f32 NCHW n1 c7 i30x31 m28 k4x2 s3x5 p1:0x0 d2x3 g7 b1 r1",  # several outputs of a channel
    "conv f32 NCHW n1 c3 i4x3x5x4 m3 k2x3x2x3 s1x2x1x1 p0x1x1x1 g3",
    "conv_transpose f32 NCHW n2 c20 i6x3 m20 k4x3 s2x3 p1x0 g20 b1 r1 act=Relu",
    "conv_transpose f32 NCHW n1 c9 i7x4 m18 k2x1 s3x4 g9 b1",  # outputs that no tap reaches
    "conv_transpose f32 NCHW n1 c5 i1x8 m5 k6x3 s2x1 d3x2 g5",  # one input along the first axis
    "conv_transpose f64 NCHW n1 c12 i5x1x6 m12 k3x2x2 s2x1x3 p1x0x1 d1x3x1 g12 r1",
    "conv_transpose f32 NCHW n1 c17 i9 m17 k5 s3 p4 g17",
    "conv f32 NHWC n2 c40 i9x20 m40 k3x3 p1 g40 b1 r1 act=Relu",  # channels last: results are written where they lie
    "conv f64 NHWC n2 c17 i9x20 m17 k5x7 p2:9x1 s2x1 g17 r1", "conv f16 NHWC n2 c37 i40 m37 k9 p3 g37 b1",
    "conv_transpose f64 NHWC n1 c12 i5x1x6 m12 k3x2x2 s2x1x3 p1x0x1 d1x3x1 g12 r1",
    "conv u32 NHWC n1 c50 i9x9 m50 k3x3 p1 g50 b1 overflow=saturate", "conv i8>i32 NHWC n2 c3 i1x1 m3 k3x3 p1 g3",
]  # fmt: skip


def judged(line: str, level: str | None = None, **options: Any) -> np.ndarray[Any, Any]:
    """The result, which must be right and the same on three threads."""
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(0), "normal")
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        got = result(p, made, NAME, **options)
        assert got is not None, line
        assert complaint(p, expected(p, made), got) is None, line
        assert np.array_equal(result(p, made, NAME, threads=3, **options), got), line  # type: ignore[arg-type]
    return got


def form_of(line: str, **more: Any) -> LastForm:
    found = ALGORITHMS[NAME].form(Situation(Problem.parse(line), target(None), **more))
    assert isinstance(found, LastForm), found
    return found


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("line", EDGES)
def test_edges(line: str, level: str | None) -> None:
    judged(line, level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("types", TYPES)
def test_every_type(types: str, level: str | None) -> None:
    judged(f"conv {types} NCHW n2 c21 i7x5x3 m42 k3x2x2 s2x1x1 p1x1x0 g21 b1", level)
    judged(f"conv_transpose {types} NCHW n1 c10 i4x5 m10 k3x3 s2x3 p1 g10", level)


@pytest.mark.parametrize("text", [
    "conv u8*i8>i32 NCHW n1 c19 i9x4 m19 k3x2 p1 g19 zx=t zw=t",
    "conv u8 NCHW n2 c6 i7x5 m12 k3x3 s2 p1 g6 b1 zx=t zw=t zy=t sx=t sw=c sy=t",
    "conv i8 NCHW n1 c40 i6x5x2 m40 k3x5x2 p1x2x1 g40 zx=t zw=t zy=t sx=t sw=t sy=t",
])  # fmt: skip
def test_zero_points_and_scales(text: str) -> None:
    judged(text)


@pytest.mark.parametrize("line", [
    "conv f32 NCHW n1 c35 i521x9 m70 k5x3 s2x1 p2x1 d3x1 g35 b1 r1", "conv f32 NCHW n1 c17 i3000 m17 k9 s3 p4 g17",
    "conv_transpose f32 NCHW n1 c33 i141x5 m33 k5x3 s3x2 p2x1 g33 b1 r1",
    "conv_transpose f64 NCHW n2 c9 i90x3x4 m9 k2x1x3 s3x1x2 g9",  # phases along the first axis without taps
    "conv_transpose f32 NCHW n1 c16 i700x3 m16 k3x3 s2x1 p1:3x1 g16",
])  # fmt: skip
def test_boxes_of_any_size_give_the_same_bits(line: str) -> None:
    whole = judged(line)
    counts = set()
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(0), "normal")
    for limit in (256 << 10, 128 << 10, 64 << 10, 32 << 10, 0):
        counts.add(form_of(line, limit=limit).cut.boxes)
        for threads in (1, 2):
            got = result(p, made, NAME, workspace_limit=threads * limit, threads=threads)
            assert np.array_equal(got, whole), (line, limit)  # type: ignore[arg-type]
    assert len(counts) > 2


def test_threads_and_limits_decide_no_order_of_sums() -> None:
    line = "conv_transpose f32 NCHW n1 c13 i85x164x4 m26 k7x1x3 s1x2x2 p3x0x0:6 d1x1x6 g13 b1"  # boxes of few rows
    schemes = {form_of(line, limit=limit, threads=threads).scheme for limit in (None, 1 << 20) for threads in (1, 2, 4)}
    assert schemes == {"along 1+along 1+along 1"}


def test_no_results() -> None:
    p = Problem.parse("conv_transpose f32 NCHW n1 c5 i0x8 m5 k2x3 s2x1 g5")
    assert ALGORITHMS[NAME].form(Situation(p, target(None))) == "computes results that have elements"


@pytest.mark.parametrize("chance", range(12))
def test_forms_drawn_by_chance(chance: int) -> None:
    for line in (
        "conv f32 NCHW n2 c35 i13x7 m70 k3x3 s2x1 p1 g35 b1",
        "conv_transpose f32 NCHW n1 c19 i9x4 m19 k3x2 s2x3 p1x0 g19",
        "conv i16 NCHW n1 c18 i11x3x5 m18 k3x2x1 p1x1x0 g18",
    ):  # fmt: skip
        judged(line, chance=chance)


def test_arrays_that_lie_otherwise_get_the_same_bits() -> None:
    p = Problem.parse("conv f32 NCHW n2 c19 i9x6x5 m38 k3x2x3 s1x1x2 p1 g19 b1 r1")
    made = operands(p, np.random.default_rng(0), "normal")
    assert made.residual is not None
    right = judged(str(p))

    def lying(a: np.ndarray[Any, Any], order: tuple[int, ...], step: int) -> np.ndarray[Any, Any]:
        """The same numbers, with axes in another order in memory and ``step`` elements apart along the last."""
        moved = np.ascontiguousarray(a.transpose(order)).transpose(np.argsort(order))
        return np.repeat(moved, step, axis=-1)[..., ::step] if step > 1 else moved[..., ::-1].copy()[..., ::-1]

    for order, step in (((0, 2, 3, 4, 1), 1), ((0, 1, 2, 3, 4), 3), ((0, 1, 3, 2, 4), 1), ((4, 0, 2, 1, 3), 2)):
        for x, r in ((lying(made.x, order, step), made.residual), (made.x, lying(made.residual, order, step))):
            got = compute(p, x, made.w, made.bias, r, algorithm=NAME)
            assert np.array_equal(got, right), (order, step)
        out = lying(np.zeros_like(right), order, 1)
        compute(p, made.x, made.w, made.bias, made.residual, algorithm=NAME, out=out)
        assert np.array_equal(out, right), order


def test_weights_that_are_not_finite() -> None:
    """Padding is left out, never multiplied, and lanes behind the channels reach nobody."""
    w = np.ones((18, 1, 3, 3), np.float32)
    w[17] = np.inf
    p = Problem.parse("conv f32 NCHW n1 c18 i9x9 m18 k3x3 p1x1 g18")
    y = compute(p, np.ones((1, 18, 9, 9), np.float32), w, None, None, algorithm=NAME)
    assert np.isposinf(y[:, 17]).all()
    assert np.isfinite(y[:, :17]).all()


def test_windows_slide_along_the_axis_that_suits_best() -> None:
    """Short lines are not walked along, and the plan says which axis it is: sums run in another order."""
    assert form_of("conv f32 NCHW n1 c64 i95x9x3 m64 k3x3x3 p1 g64").scheme == "along 0"
    assert form_of("conv f32 NCHW n1 c64 i9x95 m64 k3x3 p1 g64").scheme == ""


def test_what_it_does_not_take() -> None:
    for line, reason in (
        ("conv f32 NHWC n1 c18 i9x9 m36 k3x3 g18", "channels-first"),
        ("conv f32 NCHW n1 c18 i9x9 m18 k3x3 g9", "one input channel"),
        ("conv f32 NCHW n1 c18 i200x200 m18 k131x131 g18", "16384 taps"),
        ("conv f32 NCHW n1 c18 i3x300000 m18 k3x3 p1 g18", "workspace"),
    ):  # fmt: skip
        found = ALGORITHMS[NAME].form(Situation(Problem.parse(line), target(None)))
        assert isinstance(found, str)
        assert reason in found
