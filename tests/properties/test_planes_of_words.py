"""Panels of planes of words: what a row writes beyond its end must not stand where other rows are already."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from algorithms import result
from levels import LEVELS

from polyconv.benchmark.runs import restricted
from polyconv.conformance.judge import complaint, expected
from polyconv.conformance.operands import operands
from polyconv.problem.problem import Problem
from polyconv.target import host_target

BF16 = pytest.param("bf16", marks=pytest.mark.skipif(not host_target().bf16, reason="needs dot products of bf16 pairs"))
GEOMETRIES = (
    "i7x{} m5 k2x1 s2x1", "i7x{} m5 k3x1 s3x1", "i7x{} m5 k3x3 s2x1 p1", "i9x{} m5 k2x2 s2x1 d3x1 p1",
    "i7x{} m5 k3x3 p1", "i7x{} m5 k2x1 d2x1", "i7x{} m5 k1x2 s1x2", "i7x{} m5 k3x3 s2 p1", "i3x5x{} m5 k1x2x1 s1x2x1",
    "i3x5x{} m5 k2x2x1 s2x1x1", "i3x5x{} m5 k2x2x3 p1", "i4x5x{} m5 k2x3x1 s2x2x1",
)  # fmt: skip
"""Rows in one run, and in several where a stride or a dilation takes them apart."""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("types", ["u8*i8>i32", "i8>i32", "i16>i32", BF16])
@pytest.mark.parametrize("algorithm", ["dots", "dots_pixels", "dots_matrix", "dots_matrix_pixels"])
def test_rows_of_planes_stay_apart(algorithm: str, types: str, level: str | None) -> None:
    """Rows shorter and longer than what a move takes at a time, of several planes, also in several dimensions."""
    within: Any = nullcontext() if level is None else restricted(level)
    rng = np.random.default_rng(7)
    with within:
        for width, geometry in itertools.product((15, 33, 65, 66, 127, 130), GEOMETRIES):
            p = Problem.parse(f"conv {types} NCHW n1 c10 {geometry.format(width)}")
            made = operands(p, rng, "normal" if p.x_dtype.is_float else "spread")
            got = result(p, made, algorithm)
            assert got is None or complaint(p, expected(p, made), got) is None, str(p)
