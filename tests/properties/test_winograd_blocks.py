"""Winograd's blocks of output channels, the last of which may be narrower than others; and what their weights cost."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from algorithms import result
from levels import LEVELS

from polyconv.benchmark.runs import restricted
from polyconv.conformance.judge import complaint, expected, widened
from polyconv.conformance.kernel_texts import TARGETS
from polyconv.conformance.operands import operands
from polyconv.lowering.situation import Situation
from polyconv.machine.profile import presets
from polyconv.planning.planner import form_of
from polyconv.problem.problem import Problem
from polyconv.target import target

LINES = [
    "conv f32 NCHW n2 c35 i21x20 m40 k3x3 p1 b1 r1 act=Relu", "conv f32 NHWC n1 c32 i17x30 m80 k3x3 p1 b1",
    "conv f32 NHWC n1 c64 i14x15 m160 k3x3 p1 g2", "conv f64 NCHW n1 c32 i9x18 m24 k3x3 p1",
    "conv f32 NCHW n1 c32 i40 m72 k5 p2", "conv f32 NHWC n1 c33 i5x12x13 m43 k3x3x3 p1 s1x2x2",
    "conv_transpose f32 NCHW n1 c32 i9x10 m48 k4x4 s2 p1", "conv f32 NCHW n3 c64 i64x64 m48 k3x3 p1",
]  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("line", LINES)
def test_a_narrow_last_block(line: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        p = Problem.parse(line)
        made = operands(p, np.random.default_rng(0), "normal")
        got = result(p, made, "winograd")
        assert got is not None
        assert complaint(p, widened(p, made, expected(p, made)), got) is None
        again = result(p, made, "winograd", threads=3)
        assert again is not None and np.array_equal(got, again)


def test_a_sum_of_the_last_block_that_is_not_finite_is_repaired() -> None:
    p = Problem.parse("conv f32 NCHW n1 c32 i20x20 m40 k3x3 p1")
    made = operands(p, np.random.default_rng(0), "normal")
    made.w[39] *= 1e30
    made.x[0, 3, 7, 9] = 1e30
    got = result(p, made, "winograd")
    assert got is not None
    assert complaint(p, widened(p, made, expected(p, made)), got) is None
    assert np.isfinite(got[0, :39]).all() and not np.isfinite(got[0, 39]).all()


@pytest.mark.parametrize(("profile", "level"), [(of, level) for of in presets() for level in presets()[of].levels])
def test_small_tiles_have_fewer_weights_to_come_from_memory(profile: str, level: str) -> None:
    """They are the better ones then, where it is not their advantage before that a last cache holds theirs alone."""
    if level not in TARGETS:
        pytest.skip("of another architecture")
    of = presets()[profile]
    c = math.isqrt(int(of.numbers["l3.bytes"]) // 2 // (6 * 6 * 4)) // 64 * 64  # it holds those of all schemes
    few = Problem.parse(f"conv f32 NCHW n1 c{c} i7x7 m{c} k3x3 p1")
    here, away = (form_of("winograd", Situation(few, TARGETS[level], far=far, profile=of)) for far in (False, True))
    assert sum(away.cost().values()) >= sum(here.cost().values())
    assert sum(of.boxes.case.weight_bytes for of in away.parts) <= sum(of.boxes.case.weight_bytes for of in here.parts)


def test_weights_of_a_network_that_come_from_memory_have_a_price() -> None:
    """Where a near cache keeps them nothing changes."""
    few = Problem.parse("conv f32 NCHW n1 c512 i7x7 m512 k3x3 p1")
    here, away = (form_of("winograd", Situation(few, target(None), far=far)) for far in (False, True))
    assert sum(away.cost().values()) >= sum(here.cost().values())
    wide = Situation(few, TARGETS["avx512"], profile=presets()["zen5"])
    here, away = (form_of("winograd", replace(wide, far=far)) for far in (False, True))
    assert sum(of.boxes.case.weight_bytes for of in away.parts) <= sum(of.boxes.case.weight_bytes for of in here.parts)
    small = Problem.parse("conv f32 NCHW n1 c32 i56x56 m32 k3x3 p1")
    here, away = (form_of("winograd", Situation(small, target(None), far=far)) for far in (False, True))
    assert here.cost() == away.cost()
