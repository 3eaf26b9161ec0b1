"""Winograd with dilations: tiles of the outputs of one residue, many residues in a box."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from algorithms import agrees, result
from levels import LEVELS

from polyconv.algorithms.winograd.boxes import Boxes
from polyconv.algorithms.winograd.channels import WinogradForm
from polyconv.algorithms.winograd.schemes import options
from polyconv.algorithms.winograd.tiles import cuts
from polyconv.benchmark.runs import restricted
from polyconv.conformance.judge import complaint, expected, widened
from polyconv.conformance.operands import operands
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import sweeps
from polyconv.planning.planner import form_of
from polyconv.problem.problem import Problem
from polyconv.target import target

KERNELS = [
    # one residue more or less than outputs, one axis or both, unequal ones, an axis left alone, a stride beside
    "k3x3 p2x2 d2x2", "k3x3 p3x3 d3x3", "k3x3 p0x7 d1x7", "k3x3 p5x0 d5x1", "k3x3 p2x4 d2x4", "k2x2 d3x5", "k5x5 d2x2",
    "k5x3 p8x9 d4x9", "k3x3 p20x30 d20x30", "k3x3 p21x1 d21x1", "k2x3 p0:1x2 d2x2", "k3x3 p1x2 s2x1 d1x2",
]  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_dilated_kernels(kernel: str, layout: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        assert agrees(f"conv f32 {layout} n2 c35 i21x32 m20 {kernel} b1 r1 act=Relu", "winograd")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_every_remainder_of_extent_and_dilation(layout: str) -> None:
    taken = [
        agrees(f"conv f32 {layout} n1 c16 i{h}x{h + 3} m8 k3x3 p{d}x{d} d{d}x{d}", "winograd")
        for d in (2, 3, 5) for h in range(4, 22)
    ]  # fmt: skip
    assert sum(taken) >= 50


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_other_ranks_groups_and_types(layout: str) -> None:
    for length in (130, 131, 191, 192, 400):
        assert agrees(f"conv f64 {layout} n1 c9 i{length} m17 k2 d64 b1", "winograd")
        assert agrees(f"conv f32 {layout} n1 c18 i{length} m36 g2 k3 p8:0 d4", "winograd")
    assert agrees(f"conv f32 {layout} n1 c8 i9x14x13 m9 k3x3x3 p2x2x3 d2x2x3", "winograd")
    assert agrees(f"conv_transpose f32 {layout} n1 c24 i12x13 m24 k3x3 p2x2 d2x2", "winograd")


def _boxes(p: Problem, limit: int | None) -> Boxes:
    form = form_of("winograd", Situation(p, target(None), limit))
    assert isinstance(form, WinogradForm)
    (part,) = form.parts
    assert part.boxes is not None
    return part.boxes


def test_threads_and_workspace_change_no_bits() -> None:
    line = "conv f32 NHWC n1 c40 i40x41 m70 k3x3 p3x3 d3x3"
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(0), "normal")
    alone = result(p, made, "winograd", threads=1)
    assert alone is not None
    scheme = form_of("winograd", Situation(p, target(None))).scheme
    limits = [
        limit << 10 for limit in range(200, 1600, 100)
        if form_of("winograd", Situation(p, target(None), limit << 10)).scheme == scheme
    ]  # fmt: skip
    assert len({_boxes(p, limit).rows for limit in limits}) > 1
    for settings in ({"threads": 2}, {"threads": 5}, *({"workspace_limit": limit} for limit in limits)):
        again = result(p, made, "winograd", **settings)
        assert again is not None and np.array_equal(alone, again)


@pytest.mark.parametrize("kernel", ["k3x3 p5x5 d5x5", "k5x3 p12:16x0:0 d7x1", "k3 p70:70 d70"])
def test_boxes_of_unequal_numbers_of_residues(kernel: str) -> None:
    unequal = 0
    for extents in ("i40x29", "i30x22") if "x" in kernel else ("i600",):  # lanes decide which ones are cut so
        p = Problem.parse(f"conv f32 NHWC n1 c24 {extents} m20 {kernel} b1")
        made = operands(p, np.random.default_rng(0), "normal")
        for limit in range(20 << 10, 480 << 10, 20 << 10):
            got = result(p, made, "winograd", workspace_limit=limit)
            if got is not None:
                assert complaint(p, widened(p, made, expected(p, made)), got) is None, limit
                boxes = _boxes(p, limit)
                unequal += any(len({cut.residues for cut in along.boxes}) > 1 for along in (boxes.rows, boxes.columns))
    assert unequal


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_residues_of_two_inputs_or_one(layout: str, level: str | None) -> None:
    """Taps beyond those meet padding; an output fewer than inputs would meet the second of two."""
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        for pads in ("18x18", "18:19x18:24", "18:4x18:17", "18:18x4:18"):
            for extents in ("33x35", "19x36", "36x20"):
                line = f"conv f32 {layout} n2 c35 i{extents} m20 k3x3 p{pads} d18x18 b1"
                agrees(line, "winograd")
        assert agrees(f"conv f32 {layout} n3 c35 i2x2 m20 k3x3 p1 b1", "winograd")
        assert agrees(f"conv f64 {layout} n1 c16 i5x41x150 m20 k3x3x3 p1x5x90 d1x5x90 r1", "winograd")
    (axis,) = sweeps(Problem.parse(f"conv f32 {layout} n1 c35 i33 m20 k3 p18 d18"))[0]
    assert [str(scheme) for scheme in options(axis)] == ["T(2,3)", "F(4,3)", "F(2,3)"]


@pytest.mark.parametrize("limit", [None, 200 << 10])
@pytest.mark.parametrize("kernel", ["p3x3 d3x3", "p4x0 d4x1", "p0x9 d1x9", "p18x18 d18x18"])
def test_a_sum_that_is_not_finite_is_repaired(kernel: str, limit: int | None) -> None:
    p = Problem.parse(f"conv f32 NCHW n1 c32 i23x29 m40 k3x3 {kernel} b1")
    made = operands(p, np.random.default_rng(0), "normal")
    made.x[0, 3, 7, 9] = np.inf
    got = result(p, made, "winograd", workspace_limit=limit)
    assert got is not None
    assert complaint(p, widened(p, made, expected(p, made)), got) is None
    assert np.isfinite(got[0, :, 0, 0]).all()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_boxes_of_some_residues_of_a_long_line(layout: str) -> None:
    """A box holds segments of outputs next to each other, a dilation apart; so does what is done again."""
    p = Problem.parse(f"conv f32 {layout} n1 c32 i2500 m24 k3 p160:0 d160 b1 r1")
    assert _boxes(p, 150 << 10).columns.first.residues < 160
    made = operands(p, np.random.default_rng(0), "normal")
    got = result(p, made, "winograd", workspace_limit=150 << 10)
    assert got is not None
    assert complaint(p, widened(p, made, expected(p, made)), got) is None
    same = result(p, made, "winograd")
    assert same is not None and np.array_equal(same, got)
    made.x[(0, 3, 1444) if layout == "NCHW" else (0, 1444, 3)] = np.nan
    got = result(p, made, "winograd", workspace_limit=150 << 10)
    assert got is not None
    assert complaint(p, widened(p, made, expected(p, made)), got) is None
    assert np.isnan(got).sum() == 3 * 24


def test_cuts_hold_every_output_once() -> None:
    for out in (4, 7, 13, 38, 57):
        for d in (1, 2, 3):
            axis = sweeps(Problem.parse(f"conv f32 NCHW n1 c8 i{out + 2 * d} m8 k3 d{d}"))[0][0]
            for most, residues in ((1, 1), (2, 1), (2, d), (99, 2), (99, d)):
                found = []
                for cut in cuts(axis, 4, most, residues).boxes:
                    here = [o for r in range(cut.residues) for o in range(r, cut.span, cut.apart)]
                    count, size, end = cut.segments
                    step = cut.apart
                    assert sorted(here) == [
                        i * step + o for i in range(count) for o in range(end if i == count - 1 else size)
                    ]  # fmt: skip
                    assert cut.covers == len(here)
                    found += [cut.first + o for o in here]
                assert sorted(found) == list(range(out))
