"""``deformable``: samples anywhere, of channels and pixels in any number, however little room there is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from algorithms import result

from polyconv.conformance.judge import complaint, expected
from polyconv.conformance.operands import Operands, operands
from polyconv.problem.problem import Problem

NAME = "deformable"


def judged(line: str, offsets: Any = None, **options: Any) -> None:
    """The result, with a copy of the image and without one, must be right and the same on three threads."""
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(0), "normal")
    if offsets is not None:
        assert made.offset is not None
        made = replace(made, offset=offsets(made.offset).astype(made.offset.dtype))
    exact = expected(p, made)
    first = agreed(p, made, exact, **options)
    assert np.array_equal(agreed(p, made, exact, workspace_limit=0), first), line
    assert np.array_equal(agreed(p, made, exact, threads=3, **options), first), line


def agreed(p: Problem, made: Operands, exact: Any, **options: Any) -> np.ndarray[Any, Any]:
    got = result(p, made, NAME, **options)
    assert got is not None, p
    assert complaint(p, exact, got) is None, p
    return got


@pytest.mark.parametrize("dtype", ("f32", "f64", "f16", "bf16"))
@pytest.mark.parametrize("channels", (1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 36))
def test_channels(dtype: str, channels: int) -> None:
    """Whole vectors of channels, and what is left of them in each width."""
    judged(f"deform_conv {dtype} NCHW n2 c{2 * channels} i7x9 m3 k2x3 p1 b1 og2 mask")
    judged(f"deform_conv {dtype} NCHW n1 c{2 * channels} i5x6 m4 k3x1 d1x2 g2 og1")


@pytest.mark.parametrize("extents", ("1x1", "1x40", "40x1", "3x33", "150x5"))
def test_extents(extents: str) -> None:
    judged(f"deform_conv f32 NCHW n1 c5 i{extents} m9 k3 p1 og1")
    judged(f"deform_conv f32 NCHW n1 c5 i{extents} m2 k2x5 p3x4 s2x3 og5 mask")


def test_many_samples_of_a_pixel() -> None:
    """More than a panel holds: taps, and channels of a tap, go by chunks."""
    judged("deform_conv f32 NCHW n1 c700 i6x9 m5 k3 p1 og1")
    judged("deform_conv f64 NCHW n1 c90 i9x8 m21 k5x4 p2 g3 og2 mask")


@pytest.mark.parametrize("dtype", ("f32", "f64", "f16", "bf16"))
@pytest.mark.parametrize("size", (1e-6, 30.0, 1e4, 3e9, 1e30))
def test_offsets_of_any_size(dtype: str, size: float) -> None:
    """Near none, beyond the image, and beyond the integers that positions are kept in."""
    line = f"deform_conv {dtype} NCHW n1 c6 i12x70 m3 k3 p1 og2 mask"
    with np.errstate(over="ignore"):
        judged(line, lambda offset: offset.astype(np.float64) * size)


def test_offsets_that_are_no_numbers() -> None:
    """NaN and infinity are outside the image, where whole offsets meet single pixels."""

    def strange(offset: Any) -> Any:
        whole = np.round(offset)
        whole.flat[::7], whole.flat[1::11], whole.flat[2::13] = np.nan, np.inf, -np.inf
        return whole

    for dtype in ("f32", "f64"):
        judged(f"deform_conv {dtype} NCHW n1 c6 i12x17 m3 k3 p1 og2 mask", strange)
