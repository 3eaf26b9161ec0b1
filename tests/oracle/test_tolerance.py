"""The bound lets rounding through and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from polyconv.conformance import corpus
from polyconv.conformance.judge import Expected, complaint, expected
from polyconv.conformance.operands import operands
from polyconv.problem.oracle import magnitude, oracle, tolerance
from polyconv.problem.problem import Problem

FLOATS = [
    "conv f32 NCHW n1 c37 i9x11 m5 k3x3 p1 b1",
    "conv f64 NHWC n2 c16 i7x7 m4 k5x5 s2",
    "conv f16 NCHW n1 c64 i9x9 m3 k3x3 b1 act=Sigmoid",
    "conv bf16 NCHW n1 c33 i17 m4 k3",
    "conv_transpose f32 NCHW n1 c24 i6x5 m7 k4x4 s2 p1 b1 act=LeakyRelu(0.1)",
    "deform_conv f32 NCHW n1 c4 i9x9 m6 k3x3 p1 og2 mask",
]


def sequential(p: Problem, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, dtype: type) -> np.ndarray:
    """A dense 1-D convolution summed one product after the other in the given type."""
    y = np.zeros(tuple(int(e or 0) for e in p.y_shape), dtype)
    for n, m, o in np.ndindex(*y.shape):
        total = dtype(0)
        for c in range(p.c):
            for t in range(p.k[0]):
                total = dtype(total + dtype(dtype(x[n, c, o * p.s[0] + t * p.d[0]]) * dtype(w[m, c, t])))
        y[n, m, o] = total if bias is None else dtype(total + dtype(bias[m]))
    return y


@pytest.mark.parametrize("kind", ["normal", "spread"])
@pytest.mark.parametrize("text", ["conv f32 NCW n1 c29 i9 m3 k5 b1", "conv f32 NCW n1 c1 i9 m3 k1"])
def test_a_sequential_sum_stays_inside(text: str, kind: str) -> None:
    p = Problem.parse(text)
    for seed in range(5):
        made = operands(p, np.random.default_rng(seed), kind=kind)
        got = sequential(p, made.x, made.w, made.bias, np.float32)
        assert complaint(p, expected(p, made), got) is None


@pytest.mark.parametrize("text", FLOATS)
def test_the_oracle_satisfies_itself_and_twice_the_bound_does_not(text: str) -> None:
    p = Problem.parse(text)
    made = operands(p, np.random.default_rng(3), kind="normal")
    want = expected(p, made)
    assert complaint(p, want, want.values) is None
    planted = want.values.astype(np.float64).copy()
    place = tuple(e // 2 for e in planted.shape)
    planted[place] += 2.5 * want.allowed[place]
    wrong = complaint(p, want, planted.astype(want.values.dtype))
    assert wrong is not None
    assert wrong.startswith("1 of ")


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
def test_the_bound_is_small(dtype: str) -> None:
    """A lost product among 300 of normal size is far outside."""
    p = Problem.parse(f"conv {dtype} NCW n1 c100 i8 m2 k3")
    made = operands(p, np.random.default_rng(0), kind="normal")
    exact = oracle(p, made.x, made.w, raw=True)
    allowed = tolerance(p, magnitude(p, made.x, made.w), exact)
    assert (allowed < 0.05).all()


def test_one_integer_off_is_seen() -> None:
    p = Problem.parse("conv i32 NCHW n1 c3 i5x5 m2 k3x3")
    made = operands(p, np.random.default_rng(0), kind="small")
    want = expected(p, made)
    assert complaint(p, want, want.values) is None
    assert complaint(p, want, want.values + np.int32(1)) is not None


def test_specials_must_stand_where_the_oracle_has_them() -> None:
    p = Problem.parse("conv f32 NCW n1 c1 i4 m1 k1")
    exact = np.array([[[np.nan, np.inf, -np.inf, 1.0]]])
    want = Expected(exact.astype(np.float32), exact, np.full(exact.shape, 1e-6))
    right = exact.astype(np.float32)
    assert complaint(p, want, right) is None
    for at, value in ((0, 1.0), (1, -np.inf), (2, np.nan), (3, np.nan), (3, np.inf), (1, 3e38)):
        wrong = right.copy()
        wrong[0, 0, at] = value
        assert complaint(p, want, wrong) is not None, (at, value)


def test_half_overflow_may_fall_on_either_side_within_the_bound_only() -> None:
    p = Problem.parse("conv f16 NCW n1 c1 i2 m1 k1")
    exact = np.array([[[65519.0, 70000.0]]])
    allowed = np.array([[[40.0, 40.0]]])
    with np.errstate(over="ignore"):
        want = Expected(exact.astype(np.float16), exact, allowed)
        assert complaint(p, want, np.array([[[np.inf, np.inf]]], np.float16)) is None
        assert complaint(p, want, np.array([[[65504.0, np.inf]]], np.float16)) is None
        assert complaint(p, want, np.array([[[65504.0, 65504.0]]], np.float16)) is not None


@pytest.mark.parametrize("operator", sorted(corpus.OPERATORS))
def test_the_oracle_satisfies_itself_everywhere(operator: str) -> None:
    for index, p in enumerate(corpus.problems(5, 60, operator=operator, budget=100_000)):
        made = operands(p, np.random.default_rng(index))
        want = expected(p, made)
        assert complaint(p, want, want.values) is None, p
