"""Convolutions with outputs that no product reaches, and transposed ones of one input, where each has a tap at most."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from algorithms import algorithms, result

from polyconv.conformance.judge import complaint, expected, widened
from polyconv.conformance.operands import operands
from polyconv.errors import ArgumentError
from polyconv.lowering.gaps import gaps
from polyconv.lowering.sweep import Sweep, families, sweeps
from polyconv.problem.problem import Problem

LINES = [
    "n1 c3 i6x1 m5 k4x7 s2x1 p9x14:2 d6", "n2 c4 i5x4x1 m2 k3x1x20 s5x2x5 p0:1x0x0 d6x1x2 b1 r1 act=Relu",
    "n1 c16 i7x9 m16 k3x3 s1x3 d3x6", "n1 c9 i4x5 m18 k1x3 s4x1 g9 b1", "n2 c16 i1x1 m8 k5x19 d2x3 p1x6",
    "n1 c6 i1x12 m6 k9x3 s1x4 p4x0 g6 r1", "n1 c8 i3x1 m8 k2x2 s3x2 p0x3 y7x9 b1", "n1 c5 i1 m3 k30 d1 p4",
    "n1 c4 i2x3x2 m4 k1x1x1 s3x2x4 g2", "n1 c3 i1 m2 k3 s2 d11 p1:3", "n1 c2 i4x1 m3 k2x9 s1x30 p0x80 y5x12 b1",
    "n2 c1 i3x52 m7 k1x1 s3x9 b1",
]  # fmt: skip
FORWARD = [
    "n1 c8 i3x8 m8 k2x3 p9:-4x1 b1", "n2 c8 i3x8 m8 k2x3 p9:-4x1 g8 b1 r1", "n1 c16 i8x3x5 m16 k1x2x3 s1x2x1 p0x9:-3x0",
    "n1 c4 i8x3 m12 k3x2 s2x1 p1x9:-4 g2 b1", "n1 c3 i9 m20 k4 p20:-6 d2",
]  # fmt: skip


def _pairs(sweep: Sweep) -> list[Counter[tuple[int, int, int]]]:
    """Of every axis, the output, tap and input of each product."""
    return [
        Counter(
            (axis.first_out + o * axis.out_step, tap, o * axis.stride - axis.pad + t * axis.dilation)
            for o in range(axis.out)
            for t, tap in enumerate(axis.tap_indices)
            if 0 <= o * axis.stride - axis.pad + t * axis.dilation < axis.inp
        )
        for axis in sweep
    ]


def _outputs(sweep: Sweep) -> list[tuple[int, ...]]:
    return list(itertools.product(*([axis.first_out + o * axis.out_step for o in range(axis.out)] for axis in sweep)))


def _check(p: Problem, found: list[Sweep]) -> None:
    """Every output is written once, with the products that the definition of a transposed convolution gives it."""
    out = [int(o or 0) for o in p.out]
    assert sorted(o for sweep in found for o in _outputs(sweep)) == list(itertools.product(*map(range, out))), p
    products: Counter[tuple[tuple[int, int, int], ...]] = Counter()
    for sweep in found:
        products.update(itertools.product(*(pairs.elements() for pairs in _pairs(sweep))))
    defined = [
        [
            (i * p.s[a] + t * p.d[a] - p.pads[a][0], t, i)
            for i in range(int(p.i[a] or 0))
            for t in range(p.k[a])
            if 0 <= i * p.s[a] + t * p.d[a] - p.pads[a][0] < out[a]
        ]
        for a in range(p.rank)
    ]
    assert products == Counter(itertools.product(*defined)), p


def _random(rng: np.random.Generator) -> Problem | None:
    def some(*values: int) -> tuple[int, ...]:
        return tuple(int(rng.choice(values)) for _ in range(rank))

    rank = int(rng.integers(1, 4))
    pads = tuple(zip(some(0, 0, 1, 3, 9), some(0, 0, 1, 3, 9), strict=True))
    try:
        return Problem(
            "conv_transpose", "f32", "f32", "f32", "NCHW", 1, 1, some(1, 1, 2, 3), 1, some(1, 2, 3, 7, 11),
            s=some(1, 2, 3, 5), d=some(1, 1, 2, 3, 6), pads=pads,
        )  # fmt: skip
    except ArgumentError:  # nothing is left of the result
        return None


def test_sweeps_write_every_output_once() -> None:
    rng = np.random.default_rng(4)
    drawn = [p for p in (_random(rng) for _ in range(300)) if p is not None]
    problems = [Problem.parse(f"conv_transpose f32 NCHW {fields}") for fields in LINES] + drawn
    for p in problems:
        _check(p, [*sweeps(p), *gaps(p)])
        for family in families(p):
            for member, shifts in family.members:
                for axis, own, shift in zip(family.sweep, member, shifts, strict=True):
                    assert (axis.taps, axis.pad - shift) == (own.taps, own.pad) and axis.out >= own.out + shift
        _check(p, [*(member for family in families(p) for member, _ in family.members), *gaps(p)])
        for run in (64, 10**9):
            written = [o for sweep in gaps(p, run) for o in _outputs(sweep)]
            needed = {o for sweep in gaps(p) for o in _outputs(sweep)}
            assert len(written) == len(set(written)) and needed <= set(written), p
            assert bool(needed) == bool(written), p
    assert any(0 in (axis.taps for axis in sweep) for p in drawn for sweep in gaps(p))


def test_outputs_without_taps_are_long_rows() -> None:
    """Where the first axis has no tap, the others are not cut into phases; short gaps are not written one by one."""

    def found(line: str, run: int) -> list[list[tuple[int, int, int]]]:
        of_line = gaps(Problem.parse(line), run)
        return [[(axis.out, axis.first_out, axis.out_step) for axis in sweep] for sweep in of_line]

    line = "conv_transpose f32 NCHW n1 c4 i5x6 m4 k1x3 s2x3"  # 72 bytes of a row lie together
    assert found(line, 0) == found(line, 64) == [[(4, 1, 2), (18, 0, 1)]]
    assert found(line, 128) == [[(9, 0, 1), (18, 0, 1)]]
    line = "conv_transpose f32 NHWC n1 c4 i5x6 m4 k3x1 s3x3"  # 16 of a pixel
    assert found(line, 0) == [[(15, 0, 1), (5, 1, 3)], [(15, 0, 1), (5, 2, 3)]]
    assert found(line, 64) == [[(15, 0, 1), (16, 0, 1)]]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("types", ["f32", "f64", "bf16", "u8*i8>i32"])
@pytest.mark.parametrize(("operator", "fields"), [
    *(("conv_transpose", fields) for fields in LINES), *(("conv", fields) for fields in FORWARD),
])  # fmt: skip
def test_every_algorithm(operator: str, fields: str, types: str, layout: str) -> None:
    if types.startswith("u8"):
        fields = fields.replace(" r1", "").replace(" act=Relu", "")
    p = Problem.parse(f"{operator} {types} {layout} {fields}")
    made = operands(p, np.random.default_rng(0), "normal")
    right = widened(p, made, expected(p, made))
    taken = 0
    for algorithm in algorithms():
        got = result(p, made, algorithm)
        assert got is None or complaint(p, right, got) is None, algorithm
        taken += got is not None
    assert taken > 1


WITH_UNUSED_TAPS = [
    *(f"conv_transpose f32 NCHW {LINES[number]}" for number in (0, 4, 5, 6, 7, 9)),
    "conv_transpose f32 NHWC n1 c8 i1x6 m8 k3x20 s2x1 p1x9", "conv f32 NCHW n1 c8 i1x5 m8 k5x3 p2x1 b1",
    "conv f32 NHWC n2 c16 i1x2 m16 k3x9 p1x9:2", "conv f32 NCHW n1 c6 i7x2x2 m6 k3x2x21 s2x2x1 p1x1x20:7 g6",
    "conv f32 NCHW n1 c2 i30x6x7 m5 k8x1x5 s5x1x1 p4x0x12 d1x3x6 b1", "conv f32 NHWC n1 c8 i6x5 m8 k5x7 p9x18 d5x6 g8",
]  # fmt: skip


def _unused(p: Problem) -> list[tuple[int, ...]]:
    """Taps that meet no input for any output."""
    used = []
    for a in range(p.rank):
        i, o = int(p.i[a] or 0), int(p.out[a] or 0)
        steps, limit = (i, o) if p.op == "conv_transpose" else (o, i)
        places = np.arange(steps)[:, None] * p.s[a] + np.arange(p.k[a]) * p.d[a] - p.pads[a][0]
        used.append(((places >= 0) & (places < limit)).any(axis=0))
    return [tap for tap in np.ndindex(*p.k) if not all(of_axis[t] for of_axis, t in zip(used, tap, strict=True))]


@pytest.mark.parametrize("line", WITH_UNUSED_TAPS)
def test_taps_that_meet_no_input_may_hold_anything(line: str) -> None:
    """Inf and NaN in them count for nothing."""
    p = Problem.parse(line)
    made = operands(p, np.random.default_rng(0), "normal")
    unused = _unused(p)
    assert unused
    right = widened(p, made, expected(p, made))  # of finite weights
    for tap, value in zip(unused, itertools.cycle([np.nan, np.inf, -np.inf]), strict=False):
        made.w[(..., *tap)] = value
    taken = 0
    for algorithm in algorithms():
        got = result(p, made, algorithm)
        assert got is None or complaint(p, right, got) is None, algorithm
        taken += got is not None
    assert taken > 1
