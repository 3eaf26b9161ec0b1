"""The oracle against loops over Python numbers, on tiny problems of every operator and type."""

from __future__ import annotations

import numpy as np
import pytest
from brute import ACTIVATIONS, brute, wrapped

from polyconv.conformance import corpus
from polyconv.conformance.operands import Operands, operands
from polyconv.problem.epilogue import ACTIVATIONS as ROWS
from polyconv.problem.epilogue import Activation
from polyconv.problem.oracle import oracle
from polyconv.problem.problem import Problem

TINY = 300


def tiny(operator: str, count: int = 60) -> list[Problem]:
    return list(corpus.problems(11, count, operator=operator, budget=TINY))


def activated(p: Problem, value: float) -> float:
    return value if p.activation is None else ACTIVATIONS[p.activation.name](value, *p.activation.parameters)


def integer_result(p: Problem, value: int) -> int:
    """Activation on the 64-bit sum, then wrap or saturation."""
    value = wrapped(value, 64, signed=p.y != "u64")
    if p.activation is not None:
        value = int(ACTIVATIONS[p.activation.name](value, *(int(v) for v in p.activation.parameters)))
    lo, hi = p.y_dtype.limits
    if p.overflow == "saturate":
        return min(max(value, lo), hi)
    return wrapped(value, p.y_dtype.bits, p.y_dtype.kind == "i")


@pytest.mark.parametrize("operator", sorted(corpus.OPERATORS))
def test_oracle_equals_the_loops(operator: str) -> None:
    for number, p in enumerate(tiny(operator)):
        made = operands(p, np.random.default_rng(number), kind=("small", "normal")[number % 2])
        values = brute(p, made)
        got = oracle(p, made.x, made.w, made.bias, made.residual, raw=True, **made.keywords())
        assert got.shape == values.shape, p
        if p.y_dtype.is_float:
            right = np.array([activated(p, float(v)) for v in values.ravel()]).reshape(values.shape)
            np.testing.assert_allclose(got, right, rtol=1e-12, atol=1e-12, err_msg=str(p))
        elif p.quantisation is not None and p.quantisation.rescales:
            assert got.ravel().tolist() == requantised(p, made, values), p
        else:
            got = oracle(p, made.x, made.w, made.bias, made.residual, **made.keywords())
            assert got.ravel().tolist() == [integer_result(p, int(v)) for v in values.ravel()], p


def requantised(p: Problem, made: Operands, values: np.ndarray) -> list[int]:
    """Round half to even of accumulator times f32 multiplier, then the zero point, then saturation.

    A residual with a scale of its own is added to what that stands for, and the sum rounded in the same way.
    """
    q, channel_axis = made.quantities, -1 if p.layout == "NHWC" else 1
    moved = np.moveaxis(values, channel_axis, 1)
    result = np.zeros(moved.shape, np.int64)
    lo, hi = p.y_dtype.limits
    for place in np.ndindex(*moved.shape):
        sw = q["sw"][place[1]] if q["sw"].ndim else q["sw"]
        multiplier = np.float32(np.float32(q["sx"] * np.float32(sw)) / q["sy"])
        scaled = float(np.float32(wrapped(int(moved[place]), 32, signed=True)) * multiplier)
        result[place] = min(max(round(scaled) + int(q["zy"]), lo), hi)  # Python's round: half to even
        if p.quantisation is not None and p.quantisation.adds:
            assert made.residual is not None
            beside = int(np.moveaxis(made.residual, channel_axis, 1)[place]) - int(q.get("zr", 0))
            total = np.float32(result[place] - int(q["zy"])) * q["sy"] + np.float32(beside) * q["sr"]
            result[place] = min(max(round(float(np.float32(total) / q["ss"])) + int(q.get("zs", 0)), lo), hi)
    return np.moveaxis(result, 1, channel_axis).ravel().tolist()


@pytest.mark.parametrize("name", sorted(ROWS))
def test_activation_formula(name: str) -> None:
    arguments = np.concatenate([np.linspace(-20, 20, 401), [-0.0, 1e-9, -1e-9]])
    parameters = {
        "Clip": (-1.5, 4.0), "LeakyRelu": (0.3,), "Elu": (0.7,), "HardSigmoid": (0.3, 0.4),
        "ReluAffine": (0.7, -0.2), "HardSwishAffine": (-0.6, 0.3),
    }.get(name, ())  # fmt: skip
    got = Activation(name, parameters)(arguments)
    right = [ACTIVATIONS[name](float(v), *parameters) for v in arguments]
    np.testing.assert_allclose(got, right, rtol=1e-9, atol=1e-13)


def test_activation_limits() -> None:
    ends = np.array([-np.inf, np.inf, np.nan])
    limits = {
        "Relu": (0.0, np.inf), "Clip": (-1.0, 1.0), "Sigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0),
        "Silu": (0.0, np.inf),
        "Mish": (0.0, np.inf), "Gelu": (0.0, np.inf), "Elu": (-1.0, np.inf), "HardSigmoid": (0.0, 1.0),
        "LeakyRelu": (-np.inf, np.inf),
    }  # fmt: skip
    for name, (low, high) in limits.items():
        parameters = (-1.0, 1.0) if name == "Clip" else ROWS[name].defaults or ()
        with np.errstate(all="ignore"):
            got = Activation(name, parameters)(ends)
        assert got[:2].tolist() == [low, high], name
        assert np.isnan(got[2]), name


def test_clip_of_large_integers_keeps_their_low_bits() -> None:
    value = 2**62 + 1
    assert Activation("Clip", (0.0, np.inf))(np.array([value, -5])).tolist() == [value, 0]


def test_relu_of_large_unsigned_values_is_the_identity() -> None:
    p = Problem.parse("conv u64 NCHW n1 c1 i1 m1 k1 act=Relu")
    x = np.full((1, 1, 1), 2**64 - 3, np.uint64)
    assert oracle(p, x, np.ones((1, 1, 1), np.uint64)).tolist() == [[[2**64 - 3]]]


def test_padding_never_multiplies() -> None:
    p = Problem.parse("conv f32 NCHW n1 c1 i3 m1 k3 p1")
    w = np.array([[[np.inf, 1.0, np.nan]]], np.float32)
    y = oracle(p, np.ones((1, 1, 3), np.float32), w)
    assert np.isnan(y[0, 0, :2]).all()
    assert y[0, 0, 2] == np.inf  # the NaN tap meets padding only
