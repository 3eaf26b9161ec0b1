"""Boxes of Winograd with the tiles of several images, or of several rows of other axes, multiplied together."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from algorithms import result
from levels import BOTH_ENDS, LEVELS

from polyconv.algorithms.winograd.channels import WinogradForm, forms
from polyconv.algorithms.winograd.cost import is_stacked
from polyconv.benchmark.runs import restricted
from polyconv.conformance.judge import complaint, expected, widened
from polyconv.conformance.kernel_texts import TARGETS
from polyconv.conformance.operands import operands
from polyconv.lowering.situation import FREE_BYTES, Situation
from polyconv.machine.profile import presets
from polyconv.problem.problem import Problem
from polyconv.target import target

IMAGES = [
    "conv f32 NCHW n5 c35 i7x8 m40 k3x3 p1 b1 r1 act=Relu", "conv f32 NHWC n3 c64 i7x7 m160 k3x3 p1 g2",
    "conv f32 NHWC n17 c16 i9 m24 k5 p2", "conv_transpose f32 NCHW n4 c64 i7x6 m48 k4x4 s2 p1",
    "conv f64 NCHW n6 c20 i5x11 m20 k3x3 p1 d1x2", "conv f32 NCHW n3 c32 i13x9 m40 k3x3 s2 p1",
]  # fmt: skip
ROWS = [
    "conv f32 NCHW n2 c32 i9x8x8 m40 k3x3x3 p1", "conv f32 NHWC n1 c35 i6x7x13 m33 k3x3x3 p2x1x1 s2x1x1",
    "conv f32 NCHW n2 c32 i5x17 m48 k1x7 p0x3", "conv f32 NHWC n1 c32 i4x7x9 m32 k1x3x3",
]  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("line", IMAGES + ROWS)
def test_an_image_has_the_same_bits_alone(line: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        p = Problem.parse(line)
        made = operands(p, np.random.default_rng(0), "normal")
        got = result(p, made, "winograd")
        assert got is not None
        assert complaint(p, widened(p, made, expected(p, made)), got) is None
        again = result(p, made, "winograd", threads=3)
        assert again is not None and np.array_equal(got, again)
        for image in range(p.n or 0):
            some = slice(image, image + 1)
            one = replace(made, x=made.x[some], residual=None if made.residual is None else made.residual[some])
            alone = result(replace(p, n=1), one, "winograd")
            assert alone is not None and np.array_equal(got[some], alone)


FAR = [
    "conv f32 NCHW n2 c32 i29x31 m32 k3x3 p2 d2", "conv f32 NHWC n1 c16 i70 m40 k3 p4 d4",
    "conv f32 NCHW n1 c16 i9x21 m16 k3x3 p3 d3", "conv f32 NHWC n2 c32 i11x40 m32 k1x3 p0x5 d1x5",
    "conv f32 NCHW n2 c64 i28x26 m64 k3x3 p1",
]  # fmt: skip


@pytest.mark.parametrize("level", BOTH_ENDS)
@pytest.mark.parametrize("line", IMAGES + ROWS + FAR)
def test_what_is_not_finite_changes_no_bits_of_other_tiles(line: str, level: str | None) -> None:
    """How boxes are cut depends on threads and images; what is computed again must not."""
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        p = Problem.parse(line)
        made = operands(p, np.random.default_rng(1), "normal")
        clean = result(p, made, "winograd")
        rng = np.random.default_rng(2)
        for value in (np.nan, np.inf, 0.3 * np.finfo(made.x.dtype).max):
            made.x[-1][tuple(rng.integers(0, made.x.shape[1:]))] = value
            got = result(p, made, "winograd")
            assert clean is not None and got is not None
            assert complaint(p, widened(p, made, expected(p, made)), got) is None
            assert np.array_equal(got[:-1], clean[:-1])
            for threads in (2, 5):
                assert np.array_equal(got, result(p, made, "winograd", threads=threads), equal_nan=True)
            last = replace(made, x=made.x[-1:], residual=None if made.residual is None else made.residual[-1:])
            assert np.array_equal(got[-1:], result(replace(p, n=1), last, "winograd"), equal_nan=True)


def _share_boxes(s: Situation) -> bool:
    (form,) = forms(s)
    assert isinstance(form, WinogradForm)
    return any(
        part.boxes is not None and is_stacked(s.problem, part.sweep) and part.boxes.outer[0] > 1 for part in form.parts
    )


@pytest.mark.parametrize("line", IMAGES)
def test_images_share_boxes_where_room_is(line: str) -> None:
    """With tiles of 14 rows by two vectors; others are filled by an image of fewer tiles."""
    p = Problem.parse(line)
    assert _share_boxes(Situation(p, TARGETS["avx512"], profile=presets()["zen5"]))
    none_or_small = forms(Situation(p, target(None), limit=0))
    assert isinstance(none_or_small, str) or all(form.workspace <= FREE_BYTES for form in none_or_small)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("line", [
    "conv f32 NCHW n5 c35 i3x4 m40 k3x3 p1", "conv f32 NHWC n4 c64 i4x4 m64 k3x3 p1 g2",
    "conv f32 NCHW n3 c32 i6x6 m40 k3x3 s2 p1",
])  # fmt: skip
def test_images_of_a_tile_share_boxes_whatever_the_vectors(line: str, level: str | None) -> None:
    within: Any = nullcontext() if level is None else restricted(level)
    with within:
        p = Problem.parse(line)
        assert _share_boxes(Situation(p, target(level)))
        made = operands(p, np.random.default_rng(0), "normal")
        got = result(p, made, "winograd")
        assert got is not None
        assert complaint(p, widened(p, made, expected(p, made)), got) is None


def test_an_image_whose_sums_are_not_finite_is_repaired() -> None:
    p = Problem.parse("conv f32 NCHW n5 c32 i7x7 m40 k3x3 p1")
    made = operands(p, np.random.default_rng(0), "normal")
    made.w[39] *= 1e30
    made.x[2, 3, 5, 1] = 1e30
    made.x[4, 0, 0, 0] = np.nan
    got = result(p, made, "winograd")
    assert got is not None
    assert complaint(p, widened(p, made, expected(p, made)), got) is None
    assert np.isfinite(got[[0, 1, 3]]).all() and np.isfinite(got[2, :39]).all() and not np.isfinite(got[2, 39]).all()
