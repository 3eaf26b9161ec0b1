"""``generic`` in pieces: boxes of outputs whose taps that meet no padding are the same, those alike joined."""

from __future__ import annotations

import math

import numpy as np
import pytest
from algorithms import result

from polyconv.algorithms.generic.form import GenericForm
from polyconv.algorithms.generic.parts import in_pieces
from polyconv.algorithms.table import ALGORITHMS
from polyconv.conformance.judge import complaint, expected
from polyconv.conformance.operands import operands
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import families
from polyconv.problem.problem import Problem
from polyconv.target import target

NAME = "generic"
LINES = [
    "conv_transpose u64 NCHW n1 c3 i11x8x1 m1 k3x17x36 s2x1x5 p1x0x0 b1",  # 36 outputs of an input, a tap each
    "conv_transpose f32 NCHW n2 c3 i11x3x1 m5 k3x7x40 s2x1x5 p1x0x0 b1 r1",
    "conv_transpose f32 NHWC n1 c3 i2x5x20 m7 k2x7x4 s1x2x1 p0x0x5 d3x1x3 b1",
    "conv f32 NCHW n1 c3 i74x9x2 m22 k4x4x4 s1x2x2 p9x2x2 d6x1x1 b1 r1 act=Relu",
    "conv_transpose f64 NCHW n2 c4 i4x3 m6 k9x8 s3x5 p0x2 g2",
    "conv_transpose f32 NCHW n1 c5 i1 m9 k40 s2 p3",
    "conv u8*i8>i32 NHWC n1 c9 i44x9x2 m4 k5x5x4 s1x1x3 p4x6x1 d2x3x1 zx=t zw=t",
]


def form_of(line: str, chance: int | None = None) -> GenericForm:
    found = ALGORITHMS[NAME].form(Situation(Problem.parse(line), target(None), chance=chance))
    assert isinstance(found, GenericForm), found
    return found


@pytest.mark.parametrize("line", LINES)
def test_results(line: str) -> None:
    """As planned, on three threads, and whichever pieces chance draws."""
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(0), "normal")
    got = result(p, made, NAME)
    assert got is not None
    assert complaint(p, expected(p, made), got) is None
    assert np.array_equal(result(p, made, NAME, threads=3), got)  # type: ignore[arg-type]
    for chance in range(4):
        other = result(p, made, NAME, chance=chance)
        assert other is not None
        assert complaint(p, expected(p, made), other) is None, chance


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("line", [line for line in LINES if " g2" not in line])
def test_every_output_is_in_one_piece(line: str, joined: bool) -> None:
    p = Problem.parse(line)
    seen = np.zeros([int(o or 0) for o in p.out], int)
    for family in in_pieces(families(p), joined=joined):
        for member, shifts in family.members:
            seen[np.ix_(*(axis.first_out + axis.out_step * np.arange(axis.out) for axis in member))] += 1
            for whole, own, shift in zip(family.sweep, member, shifts, strict=True):
                assert (own.taps, own.stride, own.dilation) == (whole.taps, whole.stride, whole.dilation)
                assert own.pad + shift == whole.pad
    assert (seen == 1).all()


def test_products_with_padding_are_left_out() -> None:
    """They were 15 of 16 here: 31 ms became 1.6."""
    line = "conv_transpose u64 NCHW n1 c33 i111x8x1 m1 k3x17x36 s2x1x5 p1x0x0 b1"
    taken = sum(math.prod(a.out * a.taps for a in cut.sweep) * cut.members for cut in form_of(line).cuts)
    met = 8 * 17 * 36 * (2 * 111 + 110)  # every input with every tap, but the first with the one cut off
    assert taken <= 1.02 * met
    assert form_of("conv f32 NCHW n1 c9 i64x64 m9 k3x3 p1").cuts[0].family in families(
        Problem.parse("conv f32 NCHW n1 c9 i64x64 m9 k3x3 p1"))  # fmt: skip

