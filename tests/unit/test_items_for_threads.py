"""Boxes of depthwise layers are cut so that threads have as much to do."""

from __future__ import annotations

import pytest

from polyconv.algorithms.depthwise.parts import cut_for_threads
from polyconv.algorithms.depthwise.slide_plan import plan_of
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Axis, sweeps
from polyconv.problem.problem import Problem
from polyconv.target import target


def _situation(text: str, threads: int) -> Situation:
    return Situation(Problem.parse(text), target("avx512"), threads=threads)


def _line(out: int) -> tuple[Axis, ...]:
    return (Axis(out, out, 3, 1, 1, 1),)


@pytest.mark.parametrize("threads", [2, 3, 4, 16])
@pytest.mark.parametrize("out", [1, 2, 7, 14, 28, 56, 97, 112])
@pytest.mark.parametrize("unit", [1, 4])
def test_the_first_share_is_nearly_the_least_there_can_be(out: int, threads: int, unit: int) -> None:
    """Parts of c of u units leave the first of t threads less than u / t + c, and half of what threads need may be c.

    The first share has ``ceil(ceil(u / c) / t)`` parts, which is at most ``(u + c t - 1) / (c t)``.
    """
    (cut,) = cut_for_threads(_situation("conv f32 NHWC n1 c8 i9 m8 k3 g8", threads), _line(out), (out,), 8, 0, 1, unit)
    assert cut == out or cut % unit == 0
    units, parts = -(-out // unit), -(-out // cut)
    needed = -(-units // (4 * threads))
    half = -(-needed // 2)
    first = -(-parts // threads) * -(-cut // unit)
    assert threads * first < units + half * threads
    assert parts >= min(units, 2 * threads)  # a thread that is late leaves some of its own to others


def test_rows_of_maps_as_networks_have_them() -> None:
    s = _situation("conv f32 NHWC n1 c8 i9 m8 k3 g8", 2)
    assert [cut_for_threads(s, _line(out), (out,), 8, 0, 1)[0] for out in (7, 14, 28, 56, 112)] == [1, 1, 2, 7, 14]
    assert cut_for_threads(s, _line(28), (28,), 8, 0, 5) == (5,)
    alone = _situation("conv f32 NHWC n1 c8 i9 m8 k3 g8", 1)
    assert cut_for_threads(alone, _line(28), (28,), 8, 0, 1) == (28,)


@pytest.mark.parametrize("threads", [2, 7, 64])
def test_extents_without_end_are_cut_at_once(threads: int) -> None:
    s, out = _situation("conv f32 NHWC n1 c8 i9 m8 k3 g8", threads), 1 << 40
    (cut,) = cut_for_threads(s, _line(out), (out,), 8, 0, 1)
    parts = -(-out // cut)
    assert 4 * threads <= parts <= 8 * threads


@pytest.mark.parametrize("extent", [7, 14, 28])
def test_maps_with_few_rows_are_shared(extent: int) -> None:
    """A window that slides along a row says nothing of how many rows an item has."""
    s = _situation(f"conv f32 NHWC n1 c256 i{extent}x{extent} m256 k5x5 p2 g256", 2)
    plan = plan_of(s, sweeps(s.problem)[0], False, (0, 1))
    assert plan.box[1] == extent
    assert -(-extent // plan.box[0]) >= 4
