"""A plan runs: what it computes is right for every operator, by the algorithm it names, and no other input is taken."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyconv
from polyconv import ArgumentError, DtypeError, Unsupported
from polyconv.conformance.judge import complaint, expected, present_state, widened
from polyconv.conformance.operands import Operands, operands
from polyconv.layer import compute
from polyconv.target import LEVELS

PROBLEMS = [
    "conv f32 NCHW n1 c64 i28x28 m64 k3x3 p1 b1 act=Relu",
    "conv f32 NHWC n2 c16 i15x17 m24 k3x5 s2 p0:1x2 r1 act=LeakyRelu(0.1)",
    "conv f64 NCHW n1 c3 i200 m5 k31 p15",
    "conv bf16>f32 NHWC n1 c8 i9x9x9 m8 k3x3x3 d2 p2 b1",
    "conv u8 NHWC n1 c3 i12x12 m3 k3x3 p1 g3 overflow=saturate",
    "conv f32 NCHW n2 c32 i28x28 m32 k3x3 p1 g32",
    "conv_transpose f32 NCHW n1 c16 i9x9 m8 k3x3 s2 p1 op1 b1",
    "conv_transpose f32 NHWC n1 c8 i9x9 m8 k2x2 s2 y19x19",
    "conv u8*i8>i32 NCHW n1 c16 i9x9 m8 k3x3 p1 zx=t zw=c",
    "conv u8*i8 NHWC n1 c16 i9x9 m8 k3x3 p1 b1 zx=t zw=t zy=t sx=t sw=c sy=t",
    "conv u8*i8 NHWC n1 c16 i9x9 m8 k3x3 p1 zx=3.0 zy=t sx=0.05 sw=c sy=0.5",
    "deform_conv f32 NCHW n1 c16 i12x12 m8 k3x3 p1 b1 og2 mask",
    "causal_conv f32 NCHW n2 c16 i50 m16 k4 p3:0 g16 b1 act=Silu",
    "causal_conv f32 NCHW n1 c64 i40 m64 k2 p1:0",
    "causal_conv f32 NCHW n1 c4 i2 m4 k9 p8:0",
]


def drawn(text: str) -> tuple[polyconv.Problem, Operands]:
    problem = polyconv.Problem.parse(text)
    return problem, operands(problem, np.random.default_rng(7), "normal")


def keywords(made: Operands) -> dict[str, Any]:
    named = {"residual": made.residual, "offset": made.offset, "mask": made.mask, "past": made.past}
    return {name: a for name, a in named.items() if a is not None}


def bits(result: Any) -> list[bytes]:
    """Bits of a result, or of result and state."""
    return [a.tobytes() for a in (result if isinstance(result, tuple) else (result,))]


def check(text: str, got: Any) -> None:
    """The result is the oracle's, within the bound that the plan states."""
    problem, made = drawn(text)
    if problem.op == "causal_conv":
        got, state = got
        np.testing.assert_array_equal(state, present_state(problem, made))
    want = expected(problem, made)
    if polyconv.plan(problem).bound_kind == "window" and problem.x_dtype.is_float:
        want = widened(problem, made, want)
    assert complaint(problem, want, got) is None


@pytest.mark.parametrize("text", PROBLEMS)
def test_the_answer_is_the_problems(text: str) -> None:
    problem, made = drawn(text)
    plan = polyconv.plan(text)
    assert plan.problem == problem
    y = plan(made.x, made.w, made.bias, **keywords(made), **made.quantities)
    check(text, y)
    layer = plan.prepare(made.w, made.bias, **made.quantities)
    for other in (layer, layer, pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        again = other(made.x, **keywords(made))
        assert bits(again) == bits(y)
    first = y[0] if problem.op == "causal_conv" else y
    out = np.zeros_like(first)
    result = layer(made.x, **keywords(made), out=out)
    assert (result[0] if problem.op == "causal_conv" else result) is out
    np.testing.assert_array_equal(out, first)


ALGORITHMS = ["direct", "generic", "winograd", "winograd_rows"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_algorithm_it_names_is_what_runs(algorithm: str) -> None:
    text = PROBLEMS[0]
    problem, made = drawn(text)
    plan = polyconv.plan(text)
    assert algorithm == plan.algorithm or algorithm in [c.algorithm for c in plan.candidates]
    named = replace(plan, algorithm=algorithm)
    y = named(made.x, made.w, made.bias)
    right = compute(problem, made.x, made.w, made.bias, algorithm=algorithm)
    assert y.tobytes() == right.tobytes()
    layer = named.prepare(made.w, made.bias)
    assert layer(made.x).tobytes() == right.tobytes()
    assert layer.algorithms == {made.x.shape: algorithm}
    assert algorithm in repr(layer)


def test_a_plan_has_the_bits_of_the_layer_that_names_the_same_arithmetic() -> None:
    _, made = drawn(PROBLEMS[0])
    layer = polyconv.Conv(made.w, made.bias, pads=1, activation="Relu")
    plan = layer.plan(made.x.shape)
    assert isinstance(plan, polyconv.Plan)
    assert plan.arithmetic == polyconv.plan(PROBLEMS[0]).arithmetic
    assert plan(made.x, made.w, made.bias).tobytes() == layer(made.x).tobytes()


def test_a_plan_keeps_what_it_was_asked_for() -> None:
    _, made = drawn(PROBLEMS[0])
    asked = {"accuracy": "strict", "workspace_limit": 0, "threads": 1}
    plan = polyconv.plan(PROBLEMS[0], **asked)  # type: ignore[arg-type]
    assert (plan.accuracy, plan.workspace_limit, plan.threads, plan.workspace_bytes) == ("strict", 0, 1, 0)
    assert "accuracy strict, workspace at most 0 B" in str(plan)
    layer = plan.prepare(made.w, made.bias)
    assert (layer.accuracy, layer.workspace_limit) == ("strict", 0)
    right = polyconv.conv(made.x, made.w, made.bias, pads=1, activation="Relu", **asked)  # type: ignore[arg-type]
    if polyconv.plan(PROBLEMS[0], once=True, **asked).arithmetic == plan.arithmetic:  # type: ignore[arg-type]
        assert layer(made.x).tobytes() == right.tobytes()
    np.testing.assert_allclose(layer(made.x), right, rtol=1e-4, atol=1e-4)


def test_measured_plans_run_too() -> None:
    text = "conv f32 NCHW n1 c8 i9x9 m8 k3x3"
    problem, made = drawn(text)
    plan = polyconv.plan(text, rigor="measure")
    assert complaint(problem, expected(problem, made), plan(made.x, made.w)) is None
    polyconv.wisdom.forget()


def test_plans_travel_and_run_where_they_arrive() -> None:
    _, made = drawn(PROBLEMS[0])
    plan = polyconv.plan(PROBLEMS[0])
    for other in (pickle.loads(pickle.dumps(plan)), copy.copy(plan), copy.deepcopy(plan)):
        assert other == plan
        assert other(made.x, made.w, made.bias).tobytes() == plan(made.x, made.w, made.bias).tobytes()
    level = next(level for level in LEVELS if level != plan.target)
    with pytest.raises(Unsupported, match=rf"for {level}, this process uses {plan.target}.*polyconv\.plan\('conv"):
        replace(plan, target=level)(made.x, made.w, made.bias)


def test_lists_take_the_problems_types() -> None:
    plan = polyconv.plan("conv f16>f32 NCHW n1 c1 i4 m1 k2 b1")
    y = plan([[[1, 2, 3, 4]]], [[[1, 1]]], [0.5])
    assert (y.dtype, y.tolist()) == (np.float32, [[[3.5, 5.5, 7.5]]])


# What is not the problem's


X, W, B = np.ones((1, 4, 8, 8), np.float32), np.ones((6, 4, 3, 3), np.float32), np.ones(6, np.float32)
BASE = "conv f32 NCHW n1 c4 i8x8 m6 k3x3"
QUANTISED = "conv u8*i8 NCHW n1 c4 i8x8 m6 k3x3 zx=t zy=t sx=t sw=c sy=t"
Q: dict[str, Any] = {"zx": 3, "zy": 1, "sx": 0.1, "sw": np.full(6, 0.1, np.float32), "sy": 0.5}
XQ, WQ = X.astype(np.uint8), W.astype(np.int8)

REFUSED: dict[str, tuple[type[Exception], Any, str]] = {
    "bias missing": (ArgumentError, lambda: polyconv.plan(f"{BASE} b1")(X, W), "b is missing.*has b1"),
    "bias given": (ArgumentError, lambda: polyconv.plan(BASE)(X, W, B), "b is given.*plan with b1"),
    "bias of another type": (DtypeError, lambda: polyconv.plan(f"{BASE} b1")(X, W, B.astype("f8")), "b has type f64"),
    "residual missing": (ArgumentError, lambda: polyconv.plan(f"{BASE} r1")(X, W), "residual is missing"),
    "residual given": (ArgumentError, lambda: polyconv.plan(BASE)(X, W, residual=X), "residual is given.*with r1"),
    "other extents": (ArgumentError, lambda: polyconv.plan(BASE)(X[:, :, 1:], W), r"\(1, 4, 7, 8\).*\(1, 4, 8, 8\)"),
    "other batch": (ArgumentError, lambda: polyconv.plan(BASE)(np.repeat(X, 2, 0), W), r"x has shape \(2, 4"),
    "other rank": (ArgumentError, lambda: polyconv.plan(BASE)(X[0], W), r"x has shape \(1, 4, 8\)|x has shape"),
    "other channels": (ArgumentError, lambda: polyconv.plan(BASE)(X[:, 1:], W), r"x has shape \(1, 3, 8, 8\)"),
    "other weights": (ArgumentError, lambda: polyconv.plan(BASE)(X, W[1:]), r"w has shape \(5, 4, 3, 3\)"),
    "type of x": (DtypeError, lambda: polyconv.plan(BASE)(X.astype("f8"), W), "x has type f64"),
    "type of w": (DtypeError, lambda: polyconv.plan(BASE)(X, W.astype("f8")), "w has type float64"),
    "infinite weights": (
        Unsupported,
        lambda: polyconv.plan("conv f32 NCHW n1 c64 i28x28 m64 k3x3 p1")(
            np.ones((1, 64, 28, 28), np.float32), np.full((64, 64, 3, 3), np.inf, np.float32)
        ),
        "winograd.*Inf or NaN.*polyconv.Conv choose anew",
    ),
    "past": (ArgumentError, lambda: polyconv.plan(BASE)(X, W, past=X), "past is the state of a causal_conv"),
    "offset missing": (
        ArgumentError,
        lambda: polyconv.plan(f"deform_{BASE} og1")(X, W),
        "needs offset",
    ),
    "unknown keyword": (TypeError, lambda: polyconv.plan(BASE)(X, W, stride=2), "stride: no keyword of this plan"),
    "zero point of floats": (TypeError, lambda: polyconv.plan(BASE)(X, W, zx=2), "leaves nothing to the call"),
    "scale missing": (
        ArgumentError,
        lambda: polyconv.plan(QUANTISED)(XQ, WQ, **{k: v for k, v in Q.items() if k != "sx"}),
        "sx is missing",
    ),
    "scales of another count": (
        ArgumentError,
        lambda: polyconv.plan(QUANTISED)(XQ, WQ, **{**Q, "sw": np.ones(5)}),
        r"sw has shape \(5,\).*\(6,\), one value for each output channel",
    ),
    "zero points": (
        ArgumentError,
        lambda: polyconv.plan(QUANTISED)(XQ, WQ, **{**Q, "zx": [1, 2]}),
        r"zx has shape \(2,\).*one value",
    ),
    "zero point beyond its type": (
        ArgumentError,
        lambda: polyconv.plan(QUANTISED)(XQ, WQ, **{**Q, "zx": 256}),
        "zx=256.*from 0 to 255",
    ),
    "fraction of a zero point": (
        ArgumentError,
        lambda: polyconv.plan(QUANTISED)(XQ, WQ, **{**Q, "zy": 1.5}),
        "zy=1.5 must be whole numbers",
    ),
    "layer of another shape": (
        ArgumentError,
        lambda: polyconv.plan(BASE).prepare(W)(X[:, :, 1:]),
        r"\(1, 4, 7, 8\).*polyconv.Conv, which takes any",
    ),
    "layer's plan for another shape": (
        ArgumentError,
        lambda: polyconv.plan(BASE).prepare(W).plan((1, 4, 9, 9)),
        r"\(1, 4, 9, 9\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_the_plans_problem_is_refused(case: str) -> None:
    error, call, words = REFUSED[case]
    with pytest.raises(error, match=words):
        call()


def test_quantities_come_as_numbers_or_arrays() -> None:
    plan = polyconv.plan(QUANTISED)
    y = plan(XQ, WQ, **Q)
    arrays = {name: np.asarray(v, np.float32 if name[0] == "s" else np.uint8) for name, v in Q.items()}
    np.testing.assert_array_equal(plan.prepare(WQ, **arrays)(XQ), y)
    # (36 taps of 1 - 3) * (0.1 * 0.1 / 0.5) = -1.44, rounded to -1, plus the zero point
    assert y.max() == y.min() == 0
