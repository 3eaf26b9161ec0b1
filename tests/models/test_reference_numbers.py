"""Operators that the reference evaluator runs in our form: right where a plain formula underflows or loses a sum."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from making import engines, info, onnx_model, onnxruntime_run, random, session
from onnx import TensorProto, helper

from polyconv.models import asking, onnx_host

SOFT = ("Softmax", "LogSoftmax", "Hardmax")


@pytest.fixture(autouse=True)
def _reference_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither onnxruntime nor kernels of our own."""
    monkeypatch.setattr(onnx_host, "find_spec", lambda name: None)
    monkeypatch.setattr(asking, "native", lambda *given, **named: "left to the reference evaluator")


def run(op: str, x: np.ndarray, opset: int, **attributes: int) -> np.ndarray:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    node = helper.make_node(op, ["x"], ["y"], "it", **attributes)
    made = session(onnx_model([node], [info("x", x.shape, kind)], ["y"], opset=opset))
    assert engines(made) == {"it": "onnx.reference"}
    (y,) = made.run(None, {"x": x})
    assert y.dtype == x.dtype and y.shape == x.shape
    return y


@pytest.mark.parametrize("opset", [7, 11, 12, 13, 17])
@pytest.mark.parametrize("op", SOFT)
def test_all_axes_and_both_meanings(op: str, opset: int) -> None:
    x = random(2, 3, 4, 5)
    for axis in (None, 0, 1, 3) if opset < 11 else (None, 0, 1, 3, -1, -3):
        given = {} if axis is None else {"axis": axis}
        model = onnx_model([helper.make_node(op, ["x"], ["y"], **given)], [info("x", x.shape)], ["y"], opset=opset)
        (expected,) = onnxruntime_run(model, {"x": x})
        np.testing.assert_allclose(run(op, x, opset, **given), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [11, 13])
def test_log_softmax_is_finite_where_softmax_underflows(opset: int) -> None:
    """The largest element is 0 apart from the others' traces; log(1 + t) is t to all digits of a float."""
    x = np.array([[0.0, -200.0, 300.0], [1e30, -1e30, 0.0]], np.float32)
    y = run("LogSoftmax", x, opset, axis=1)
    np.testing.assert_array_equal(y, np.array([[-300.0, -500.0, 0.0], [0.0, -2e30, -1e30]], np.float32))
    assert (run("LogSoftmax", x.astype(np.float64), opset, axis=1)[0] == [-300.0, -500.0, 0.0]).all()


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", [0, 1])
def test_long_sums_of_halves(opset: int, axis: int) -> None:
    """Ones added up in half precision get stuck at 2048."""
    shape = (3, 5000) if axis else (5000, 1 if opset < 13 else 3)
    x = np.zeros(shape, np.float16)
    one = np.float16(float(Fraction(1, 5000)))
    assert (run("Softmax", x, opset, axis=axis) == one).all()
    assert (run("LogSoftmax", x, opset, axis=axis) == np.float16(-np.log(5000.0))).all()


def test_a_long_hardmax_takes_no_square() -> None:
    x = np.zeros((1, 20_000), np.float32)
    x[0, 777] = 1.0
    tracemalloc.start()
    y = run("Hardmax", x, 11, axis=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert y[0, 777] == 1.0 and y.sum() == 1.0
    assert peak < 100 << 20


def test_nothing_to_normalise() -> None:
    for op in SOFT:
        assert run(op, np.zeros((0, 3), np.float32), 13).size == 0
        assert run(op, np.zeros((2, 0), np.float32), 11).size == 0


def test_bfloat16_is_computed_in_float32() -> None:
    import ml_dtypes

    x = np.array([[0.0, 1.0, 2.0]], ml_dtypes.bfloat16)
    model = onnx_model([helper.make_node("Softmax", ["x"], ["y"])], [info("x", [1, 3], TensorProto.BFLOAT16)], ["y"])
    (y,) = session(model).run(None, {"x": x})
    e = np.exp(np.array([-2.0, -1.0, 0.0], np.float32))
    np.testing.assert_array_equal(y[0], (e / e.sum()).astype(ml_dtypes.bfloat16))
