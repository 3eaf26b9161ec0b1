"""What results are held against: the oracle on some channels, and the error of a plain f32 sum."""

from __future__ import annotations

import numpy as np
import pytest

from polyconv.benchmark import truth as under_test
from polyconv.benchmark.truth import truth
from polyconv.conformance.operands import operands
from polyconv.problem.oracle import oracle
from polyconv.problem.problem import Problem

PROBLEMS = [
    "conv f32 NCHW n2 c6 i9x7 m12 k3x2 s2x1 p1:0x0:1 d2x1 g3 b1 r1 act=Relu",
    "conv f32 NCHW n1 c5 i20 m7 k4 p3:0",
    "conv_transpose f32 NCHW n1 c6 i5x4 m9 k3x2 s2 p1 g3 op1",
    "conv_transpose f32 NCHW n3 c4 i3x3x3 m4 k2x2x2 s2 d2x1x1",
    "conv f64 NCHW n1 c4 i6x6 m8 k3x3",
    "conv u8*i8>i32 NCHW n1 c8 i6x6 m8 k3x3",
]


@pytest.mark.parametrize("text", PROBLEMS)
@pytest.mark.parametrize("products", [1.0, 2e8])
def test_some_channels_are_exact(text: str, products: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "_PRODUCTS", products)
    p, rng = Problem.parse(text), np.random.default_rng(3)
    made = operands(p, rng, "normal")
    whole = oracle(p, made.x, made.w, made.bias, made.residual, raw=p.y_dtype.is_float)
    right = truth(p, made, rng)
    assert len(right.channels) == (p.m if products > 1.0 else 1)
    np.testing.assert_allclose(right.exact, whole[-1:, right.channels], rtol=1e-12, atol=1e-12)


def test_the_error_is_relative_to_the_size_of_the_result() -> None:
    p = Problem.parse(PROBLEMS[1])
    rng = np.random.default_rng(0)
    right = truth(p, operands(p, rng, "normal"), rng)
    assert right.error(right.exact) == 0.0
    assert right.error(right.exact * 1.001) == pytest.approx(1e-3)
    assert right.error(np.zeros_like(right.exact)) == pytest.approx(1.0)


@pytest.mark.parametrize("text", PROBLEMS[:4])
def test_a_plain_sum_of_small_whole_numbers_has_no_error(text: str) -> None:
    p, rng = Problem.parse(text), np.random.default_rng(1)
    assert truth(p, operands(p, rng, "small"), rng).chain == 0.0


@pytest.mark.parametrize("text", PROBLEMS[:4])
def test_the_factors_of_a_plain_sum_give_the_exact_result(text: str) -> None:
    # whole numbers up to 2^24 leave no room for chance: the sums are among the outputs, and are as many as asked for
    p = Problem.parse(text.replace(" r1", "").replace(" b1", "").replace(" act=Relu", "").replace(" n2", " n1"))
    rng = np.random.default_rng(2)
    made = operands(p, rng, "small")
    exact = oracle(p, made.x, made.w, raw=True)[0].reshape(p.m, -1)
    left, right = under_test._products(p, made.x, made.w, np.random.default_rng(5))
    sums = (left * right).sum(axis=1)
    channels = np.repeat(under_test._spread(p.m, under_test._CHAIN_CHANNELS), len(sums) // min(p.m, 8))
    rng = np.random.default_rng(5)
    each = len(sums)
    at = np.stack([rng.integers(0, int(o or 0), each) for o in p.out], axis=1)
    flat = np.ravel_multi_index(tuple(at.T), tuple(int(o or 0) for o in p.out))
    np.testing.assert_array_equal(sums, exact[channels, flat])


def test_a_plain_sum_errs_by_some_roundings() -> None:
    p, rng = Problem.parse("conv f32 NCHW n1 c256 i14x14 m16 k3x3 p1"), np.random.default_rng(0)
    chain = truth(p, operands(p, rng, "normal"), rng).chain
    # published for 256 channels: 8.5e-7 of the output's rms, for a chain of fused multiply-adds
    assert chain == pytest.approx(8.5e-7, rel=0.25)


def test_types_without_a_plain_f32_sum_have_none() -> None:
    for text in PROBLEMS[4:]:
        p, rng = Problem.parse(text), np.random.default_rng(0)
        assert truth(p, operands(p, rng, "normal"), rng).chain is None
