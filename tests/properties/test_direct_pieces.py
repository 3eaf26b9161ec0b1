"""Direct convolutions of which most taps meet padding: outputs are told apart by the taps that do not."""

from __future__ import annotations

import numpy as np
import pytest
from algorithms import result

from polyconv.conformance.judge import complaint, expected, widened
from polyconv.conformance.operands import operands
from polyconv.lowering.sweep import pieces, sweeps
from polyconv.problem.problem import Problem

LINES = [
    "n2 c35 i15x17 m20 k3x3 p9x9 d9x9 b1 r1 act=Relu", "n1 c16 i13x20 m40 k3x3 p8x1 d8x1",
    "n1 c20 i9x9 m33 k3x3 p6x6 s2x2 d6x6",
    "n1 c16 i40 m24 k7 p24:0 d4", "n1 c24 i12x12 m24 g3 k5x5 p9x9 d5x5", "n1 c16 i4x5x6 m18 k3x3x3 p3x4x5 d3x4x5",
    "n1 c16 i5x6 m17 k3x3 p12x12 d4x4 b1",
]  # fmt: skip


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("fields", LINES)
def test_outputs_by_their_taps(fields: str, layout: str) -> None:
    p = Problem.parse(f"conv f32 {layout} {fields}")
    assert any(len(pieces(axis)) > 1 for axis in sweeps(p)[0])
    made = operands(p, np.random.default_rng(0), "normal")
    got = result(p, made, "direct")
    assert got is not None and complaint(p, widened(p, made, expected(p, made)), got) is None


def test_pieces_hold_every_output_and_tap_inside() -> None:
    for fields in LINES:
        for axis in sweeps(Problem.parse(f"conv f32 NCHW {fields}"))[0]:
            found = pieces(axis)
            assert [piece.first_out for piece in found] == [sum(p.out for p in found[:i]) for i in range(len(found))]
            for piece in found:
                for o in range(piece.out):
                    read = {piece.first_tap + t: o * piece.stride - piece.pad + t * piece.dilation
                            for t in range(piece.taps)}  # fmt: skip
                    whole = {axis.first_tap + t: (piece.first_out + o) * axis.stride - axis.pad + t * axis.dilation
                             for t in range(axis.taps)}  # fmt: skip
                    inside = {t: place for t, place in whole.items() if 0 <= place < axis.inp}
                    assert read == inside or len(found) == 1


SHORT = [
    "n2 c70 i7x7 m50 k1x1 s2 p3", "n1 c40 i9x5 m100 k1x1 s2 b1 r1 act=Relu", "n1 c96 i130x3x6 m40 k1x1x1 g2 s1x2x1",
    "n2 c33 i3x40x3 m20 k1x1x1 s1x2x2 b1", "n1 c17 i5x5 m33 k1x1 p2x0 s3", "n1 c600 i40x9 m70 k1x1 s1x3",
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i8", "i64"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("fields", SHORT)
def test_tiles_run_across_short_rows(fields: str, layout: str, dtype: str) -> None:
    p = Problem.parse(f"conv {dtype} {layout} {fields if dtype[0] != 'i' else fields.replace(' act=Relu', '')}")
    made = operands(p, np.random.default_rng(0), "normal")
    for threads, limit in ((1, None), (2, None), (1, 1 << 16)):
        got = result(p, made, "direct", threads=threads, workspace_limit=limit)
        if limit is None or got is not None:
            assert got is not None and complaint(p, widened(p, made, expected(p, made)), got) is None
