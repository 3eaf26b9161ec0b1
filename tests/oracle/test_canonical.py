"""The text of a problem reads back, and its canonical form computes the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyconv.conformance import corpus
from polyconv.conformance.operands import Operands, operands
from polyconv.errors import Error
from polyconv.problem.oracle import oracle
from polyconv.problem.problem import Problem

SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS, st.sampled_from(sorted(corpus.OPERATORS)))
@settings(max_examples=300, deadline=None)
def test_text_round_trip(seed: int, operator: str) -> None:
    p = corpus.problem(seed, 0, operator=operator)
    text = str(p)
    assert Problem.parse(text) == p
    assert "  " not in text
    assert str(Problem.parse(text)) == text


@given(SEEDS)
@settings(max_examples=100, deadline=None)
def test_text_round_trip_with_unknown_extents(seed: int) -> None:
    p = corpus.problem(seed, 0, operator="conv").with_extents(
        None, (None,) * corpus.problem(seed, 0, operator="conv").rank
    )  # type: ignore[arg-type]
    assert Problem.parse(str(p)) == p


@given(st.text(alphabet="convf32NCHWnimkspdgy10:x?=,() -", max_size=60))
@settings(max_examples=300, deadline=None)
def test_garbage_is_refused_with_a_message(text: str) -> None:
    for line in (text, f"conv f32 NCHW {text}", f"conv f32 NCHW n1 c1 i4x4 m1 k3x3 {text}"):
        try:
            p = Problem.parse(line)
        except Error as error:
            assert str(error)
        else:
            assert Problem.parse(str(p)) == p


def reshaped(p: Problem, made: Operands, q: Problem) -> Operands:
    """The same operands in the shapes of the canonical problem."""
    residual = None if made.residual is None else made.residual.reshape([int(e or 0) for e in q.y_shape])
    x = made.x.reshape([int(e or 0) for e in q.x_shape])
    return Operands(x, made.w.reshape(q.w_shape), made.bias, residual, quantities=made.quantities)


@pytest.mark.parametrize("operator", ["conv", "conv_transpose", "quantised"])
def test_canonical_computes_the_same(operator: str) -> None:
    changed = 0
    for index, p in enumerate(corpus.problems(8, 400, operator=operator, budget=20_000)):
        q = p.canonical()
        assert q.canonical() == q, p
        changed += q != p
        made = operands(p, np.random.default_rng(index), kind="small")
        there = reshaped(p, made, q)
        right = oracle(p, made.x, made.w, made.bias, made.residual, **made.keywords())
        got = oracle(q, there.x, there.w, there.bias, there.residual, **there.keywords())
        np.testing.assert_array_equal(got.reshape(right.shape), right, err_msg=f"{p} -> {q}")
    assert changed > 50


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("conv f32 NCHW n1 c8 i7x9 m4 k1x1", "conv f32 NCHW n1 c8 i63 m4 k1"),
        ("conv f32 NCDHW n1 c8 i1x7x9 m4 k1x3x3 p0x1x1", "conv f32 NCHW n1 c8 i7x9 m4 k3x3 p1"),
        ("conv f32 NCHW n1 c8 i1x1 m4 k1x1", "conv f32 NCHW n1 c8 i1 m4 k1"),
    ],
)  # fmt: skip
def test_canonical_drops_and_fuses(text: str, canonical: str) -> None:
    assert Problem.parse(text).canonical() == Problem.parse(canonical)
