"""Values that equal good ones, and ones at the end of a range: no table is poisoned, no bare error comes out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polyconv
from polyconv import ArgumentError, Problem
from polyconv.layer import compute

GOOD = Problem.parse("conv f32 NCHW n1 c4 i8x8 m6 k3x3")
X, W = np.ones((1, 4, 8, 8), np.float32), np.ones((6, 4, 3, 3), np.float32)

SHAPES: list[Any] = [
    None, 5, "abc", b"abc", (1, 4, 8.0, 8), (1, 4, "8", 8), (1, 4, [8], 8), (1, 4, np.nan, 8), (None, 4, 8, 8),
    (1, 4, 8), (1, 4, -8, 8), (-1, 4, 8, 8), (1, 4, 1 << 62, 8), (1, 4, 1 << 70, 8),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_shape_to_plan_is_whole_numbers_and_a_bad_one_leaves_no_trace(shape: Any) -> None:
    layer = polyconv.Conv(W, accuracy="strict")
    with pytest.raises(ArgumentError):
        layer.plan(shape)
    assert layer.plan((1, 4, 8, 8)).problem == GOOD
    assert polyconv.plan(GOOD).algorithm
    np.testing.assert_array_equal(layer(X), np.full((1, 6, 6, 6), 36.0))


def test_a_shape_may_be_any_list_of_whole_numbers() -> None:
    layer = polyconv.Conv(W, accuracy="strict")
    for shape in ([1, 4, 8, 8], np.array([1, 4, 8, 8]), (np.int64(1), np.uint8(4), 8, 8), (True, 4, 8, 8)):
        plan = layer.plan(shape)
        assert plan.problem == GOOD
        assert {type(e) for e in plan.problem.x_shape} == {int}


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 1.0}, {"n": True}, {"c": 4.0}, {"m": "6"}, {"m": None}, {"groups": 1.0}, {"groups": None},
        {"i": (8.0, 8)}, {"i": 8}, {"i": "88"}, {"i": None}, {"k": (3.0, 3)}, {"k": (True, 3)}, {"s": (1.0, 1)},
        {"d": (1, None)}, {"pads": ((0.0, 0), (0, 0))}, {"pads": (0, 0)}, {"pads": ((0,), (0,))}, {"o": (6.0, 6)},
        {"pads": ((0, 0, 0), (0, 0))}, {"output_padding": (0.0, 0)}, {"offset_groups": 0.0}, {"activation": "Relu"},
        {"quantisation": 1.0},
    ],
    ids=str,
)  # fmt: skip
def test_a_problem_has_whole_numbers_and_a_bad_one_leaves_no_trace(changes: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(changes))):
        replace(GOOD, **changes)
    assert polyconv.plan(GOOD).algorithm


def test_a_problem_takes_lists_and_numbers_of_numpy() -> None:
    given = {"n": np.int64(1), "i": [np.int32(8), 8], "k": np.array([3, 3]), "pads": [[0, 0], np.array([0, 0])]}
    problem = replace(GOOD, **given)
    assert problem == GOOD and hash(problem) == hash(GOOD) and str(problem) == str(GOOD)
    assert {type(e) for e in (problem.n, *problem.i, *problem.k, *problem.s, *problem.pads[1])} == {int}


FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)


@pytest.mark.parametrize("dtype", FLOATS)
def test_bounds_beyond_the_type_are_infinite(dtype: Any) -> None:
    """Whatever the caller asked NumPy to do about overflow: the cast is ours."""
    x, w = X.astype(dtype), W.astype(dtype)
    with np.errstate(all="raise"):
        for make in (polyconv.conv, lambda x, w, **more: polyconv.Conv(w, **more)(x)):
            y = make(x, w, activation="Clip", activation_params=(-1e300, 1e300), accuracy="strict")
            np.testing.assert_array_equal(y.astype(np.float64), 36.0)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i4", "u8"])
def test_bounds_of_integers(dtype: str) -> None:
    x, w = np.ones((1, 1, 3, 3), dtype), np.full((1, 1, 1, 1), 7, dtype)
    for bounds, right in (((-np.inf, np.inf), 7), ((-1e300, 5), 5), ((9, 1e300), 9), ((9, 5), 5)):
        y = polyconv.conv(x, w, activation="Clip", activation_params=bounds, overflow="wrap")
        assert (y == right).all()
    for bounds in ((np.nan, 5), (0, np.nan)):
        with pytest.raises(ArgumentError, match="NaN"):
            polyconv.conv(x, w, activation="Clip", activation_params=bounds)


@pytest.mark.parametrize(
    "given", [3, 1.5, np.float32(2), object(), 10**400, [10**400], [None], "ab"],
    ids=["int", "float", "float32", "object", "huge", "list of huge", "list of None", "letters"],
)
def test_parameters_of_activations(given: Any) -> None:
    for name in (None, "LeakyRelu"):
        with pytest.raises(ArgumentError, match="activation_params"):
            polyconv.conv(X, W, activation=name, activation_params=given)


TYPES = "conv f32>i32, conv i8>f32, conv f32*i8, conv i8*f32, conv f64>f32, conv f64*f32>f16, deform_conv i32"


@pytest.mark.parametrize("text", TYPES.split(", "))
def test_types_that_no_sum_is_defined_for(text: str) -> None:
    with pytest.raises(polyconv.DtypeError, match=r"one type|does not fit|computes floats"):
        Problem.parse(f"{text} NCHW n1 c4 i8x8 m6 k3x3{' og1' * text.startswith('deform')}")


@pytest.mark.parametrize("bias", [np.ones(6, int), np.ones(6, complex), np.ones(6, object), np.full(6, "a")], ids=repr)
def test_a_bias_of_another_kind(bias: np.ndarray) -> None:
    with pytest.raises(polyconv.DtypeError, match=r"^b "):
        compute(replace(GOOD, bias=True), X, W, bias)
