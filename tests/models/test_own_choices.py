"""Truth values and what is chosen by them, casts, quotients of whole numbers, clips: NumPy's bits at every level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from levels import LEVELS
from making import engines, info, onnx_model, random, session
from onnx import TensorProto, helper
from own_models import FLOATS, INTEGERS, model_of, node, one, run, same_bits

from polyconv.errors import Error


def test_casts_and_chosen_elements() -> None:
    x = np.array([0.5, -1.5, 2.5, 100.7, -100.2, 0.0], np.float32)
    for to in (TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64, TensorProto.INT8):
        same_bits(one("Cast", x, to=to), x.astype(helper.tensor_dtype_to_np_dtype(to)))
    y = np.arange(-3, 3)
    same_bits(one("Cast", y, to=TensorProto.FLOAT), y.astype(np.float32))
    z = random(3, 4, 5)
    for axis, at in ((0, 2), (1, -1), (-1, 0)):
        for indices in (np.array(at), np.array([[at, 0], [1, at]])):
            model = model_of([node("Gather", ["x0", "at"], ["y"], axis=axis)], [z], constants={"at": indices})
            same_bits(run(model, [z])[0], z.take(indices, axis))


def test_quotients_of_integers() -> None:
    a, b = np.array([7, -7, 7, -7, 0, 6]), np.array([2, 2, -2, -2, 3, -3])
    same_bits(one("Div", a, b), np.array([3, -3, -3, 3, 0, -2]))
    same_bits(one("Div", a.reshape(6)[1:2].reshape(()), np.array(2)), np.array(-3))
    with pytest.raises(Error, match=r"Div.*divided by 0"):
        one("Div", a, b * 0)


COMPARISONS: dict[str, Callable[..., Any]] = {
    "Equal": np.equal, "Greater": np.greater, "GreaterOrEqual": np.greater_equal, "Less": np.less,
    "LessOrEqual": np.less_equal,
}  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS))
@pytest.mark.parametrize("op", COMPARISONS)
def test_comparisons(op: str, dtype: Any, level: str | None) -> None:
    rng = np.random.default_rng(1)
    if dtype in FLOATS:
        a, b = (rng.integers(-3, 3, (5, 37)).astype(dtype) for _ in range(2))
        a[0, :6], b[0, :6] = [np.nan, 1, np.inf, -np.inf, 0.0, np.nan], [1, np.nan, np.inf, np.inf, -0.0, np.nan]
    else:
        limits = np.iinfo(dtype)
        a, b = (rng.integers(limits.min, limits.max, (5, 37), dtype, endpoint=True) for _ in range(2))
        b[:, ::2] = a[:, ::2]
    same_bits(one(op, a, b, level=level), COMPARISONS[op](a, b))
    same_bits(one(op, a, b[:1], level=level), COMPARISONS[op](a, b[:1]))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS, np.bool_))
def test_choices(dtype: Any, level: str | None) -> None:
    rng = np.random.default_rng(2)
    is_met = rng.integers(0, 2, (4, 41)).astype(np.bool_)
    a, b = (rng.integers(0, 100, shape).astype(dtype) for shape in ((4, 41), (1, 41)))
    same_bits(one("Where", is_met, a, b, level=level), np.where(is_met, a, b))
    same_bits(one("Where", is_met[:, :1], a, b[:, :1], level=level), np.where(is_met[:, :1], a, b[:, :1]))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_no_number(dtype: Any, level: str | None) -> None:
    x = np.random.default_rng(1).choice([0.0, 1.5, np.nan, np.inf, -np.inf, np.finfo(dtype).max], (5, 67)).astype(dtype)
    same_bits(one("IsNaN", x, level=level), np.isnan(x))
    same_bits(one("IsNaN", -x, level=level), np.isnan(x))
    same_bits(one("IsInf", x, level=level), np.isinf(x))


@pytest.mark.parametrize("level", LEVELS)
def test_truth_values(level: str | None) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 2, (7, 67)).astype(np.bool_) for _ in range(2))
    for op, function in (("And", np.logical_and), ("Or", np.logical_or), ("Xor", np.logical_xor), ("Equal", np.equal)):
        same_bits(one(op, a, b, level=level), function(a, b))
    same_bits(one("Not", a, level=level), ~a)
    for kind in (np.float32, np.float64, np.int32, np.int64, np.uint8, np.int8):
        to = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        same_bits(one("Cast", a, level=level, to=to), a.astype(kind))
        x = rng.integers(-1, 2, (3, 35)).astype(kind)
        same_bits(one("Cast", x, level=level, to=TensorProto.BOOL), x.astype(np.bool_))
    nan = np.array([np.nan, 0.0, -0.0, 1e-40], np.float32)
    same_bits(one("Cast", nan, level=level, to=TensorProto.BOOL), np.array([True, False, False, True]))


def test_a_mask_is_one_pass() -> None:
    nodes = [
        node("Less", ["x", "limit"], ["low"]), node("Greater", ["x", "least"], ["high"]),
        node("And", ["low", "high"], ["in"]), node("Not", ["in"], ["out"]), node("Where", ["out", "none", "x"], ["y"]),
    ]  # fmt: skip
    constants = {"limit": np.float32(1), "least": np.float32(-1), "none": np.float32(0)}
    made = session(onnx_model(nodes, [info("x", [3, 50])], ["y"], constants))
    x = random(3, 50)
    np.testing.assert_array_equal(made.run(None, {"x": x})[0], np.where(np.abs(x) < 1, x, 0))
    assert [step.ops for step in made.steps] == [("Less", "Greater", "And", "Not", "Where")]


@pytest.mark.parametrize("dtype", (np.float32, np.float64, np.int32, np.uint8))
@pytest.mark.parametrize("given", [("x", "low", "high"), ("x", "low"), ("x", "", "high")])
def test_clips_by_numbers_of_a_run(given: tuple[str, ...], dtype: Any) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [info("x", [3, 37], kind), *(info(name, [], kind) for name in ("low", "high") if name in given)]
    made = session(onnx_model([node("Clip", list(given), ["y"], "clip")], inputs, [info("y", None, kind)]))
    rng = np.random.default_rng(4)
    for low, high in ((1, 5), (3, 3), (0, 100)):
        x = rng.integers(0, 9, (3, 37)).astype(dtype)
        feeds = {"x": x, "low": np.array(low, dtype), "high": np.array(high, dtype)}
        found = made.run(None, {name: a for name, a in feeds.items() if name in given})[0]
        same_bits(found, np.clip(x, low if "low" in given else None, high if "high" in given else None).astype(dtype))
    assert engines(made) == {"clip": "polyconv"}
