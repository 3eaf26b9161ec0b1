"""A few integers are computed when a model is read, as onnxruntime computes them; all else is left to the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from making import info, onnx_model, onnxruntime_run
from onnx import TensorProto, helper

from polyconv import ModelError
from polyconv.models import InferenceSession, onnx_host
from polyconv.models.graph import Node
from polyconv.models.onnx_extents import onnx_extents


def _node(op: str, version: int = 17, **attributes: Any) -> Node:
    return Node(op, op, "", version, ("a", "b"), ("y",), attributes)


def _theirs(op: str, inputs: list[np.ndarray], **attributes: Any) -> np.ndarray:
    names = [f"i{n}" for n in range(len(inputs))]
    kinds = [helper.np_dtype_to_tensor_dtype(a.dtype) for a in inputs]
    fed = [info(name, a.shape, kind) for name, a, kind in zip(names, inputs, kinds, strict=True)]
    model = onnx_model([helper.make_node(op, names, ["y"], **attributes)], fed, ["y"])
    return onnxruntime_run(model, dict(zip(names, inputs, strict=True)))[0]


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_arithmetic_is_onnxruntime_s(op: str, dtype: type) -> None:
    rng = np.random.default_rng(1)
    for shapes in (((), (3,)), ((4,), (4,)), ((2, 1), (3,))):
        a, b = (rng.integers(-20, 20, shape).astype(dtype) for shape in shapes)
        if op == "Div":
            b = np.where((b == 0) | (b == -1), 7, b).astype(dtype)
        mine = onnx_extents[op](_node(op), [a, b])
        assert mine is not None and mine.dtype == dtype
        np.testing.assert_array_equal(mine, _theirs(op, [a, b]), strict=True)


def test_picking_and_joining_is_onnxruntime_s() -> None:
    a, b = np.arange(12, dtype=np.int64).reshape(3, 4), np.array([2, -1, 0])
    for axis in (0, 1, -1):
        mine = onnx_extents["Gather"](_node("Gather", axis=axis), [a, b])
        np.testing.assert_array_equal(mine, _theirs("Gather", [a, b], axis=axis), strict=True)
    mine = onnx_extents["Gather"](_node("Gather"), [b, np.array(1)])
    np.testing.assert_array_equal(mine, _theirs("Gather", [b, np.array(1)]), strict=True)
    mine = onnx_extents["Concat"](_node("Concat", axis=1), [a, a[:, :1]])
    np.testing.assert_array_equal(mine, _theirs("Concat", [a, a[:, :1].copy()], axis=1), strict=True)
    mine = onnx_extents["Cast"](_node("Cast", to=TensorProto.INT32), [a])
    np.testing.assert_array_equal(mine, _theirs("Cast", [a], to=TensorProto.INT32), strict=True)


A = np.array([1, 2])


@pytest.mark.parametrize(
    ("node", "inputs"),
    [
        (_node("Add"), [A.astype(np.float32), A.astype(np.float32)]), (_node("Add"), [np.arange(65), A[:1]]),
        (_node("Add"), [A, A.astype(np.int32)]), (_node("Add"), [A, np.arange(3)]), (_node("Add"), [A]),
        (_node("Add", 6, broadcast=1), [A, A]), (_node("Div"), [A, A * 0]),
        (_node("Div"), [np.array([-(2**63)]), np.array([-1])]), (_node("Gather"), [A, np.array(2)]),
        (_node("Gather", axis=1), [A, np.array(0)]), (_node("Concat"), [A, A]),
        (_node("Cast", to=TensorProto.INT8), [np.array([300])]), (_node("Cast", to=TensorProto.FLOAT), [A]),
        (_node("Cast", to=99), [A]),
    ],
)  # fmt: skip
def test_anything_else_is_the_host_s(node: Node, inputs: list[np.ndarray]) -> None:
    assert onnx_extents[node.op](node, inputs) is None


def _halves(divisor: int) -> bytes:
    """Channels in two halves, the first by a count that is computed from the input's shape."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], "shape"), helper.make_node("Gather", ["s", "one"], ["c"], "pick"),
        helper.make_node("Add", ["c", "one"], ["more"], "more"),
        helper.make_node("Div", ["more", "two"], ["half"], "divide"),
        helper.make_node("Slice", ["x", "zero", "half", "one"], ["y"], "slice"),
    ]  # fmt: skip
    constants = {"one": np.array([1]), "two": np.array([divisor]), "zero": np.array([0])}
    return onnx_model(nodes, [info("x", [1, 5, 2, 2])], [info("y")], constants).SerializeToString()


def test_halves_of_channels_start_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a host was asked")

    monkeypatch.setattr(onnx_host, "_onnxruntime", refuse)
    monkeypatch.setattr(onnx_host, "_reference", refuse)
    x = np.arange(20, dtype=np.float32).reshape(1, 5, 2, 2)
    [y] = InferenceSession(_halves(2)).run(None, {"x": x})
    np.testing.assert_array_equal(y, x[:, :3])


def test_a_division_by_zero_is_named() -> None:
    with pytest.raises(ModelError, match="Div node 'divide': onnxruntime refuses"):
        InferenceSession(_halves(0))


@pytest.mark.parametrize("is_open", [False, True])
def test_halves_of_halves_are_known(is_open: bool) -> None:
    """The second count depends on what the first one cuts; with an open batch runs count."""
    constants = {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2])}
    nodes = []
    for before, after in (("x", "y"), ("y", "z")):
        nodes += [
            helper.make_node("Shape", [before], [f"{after} s"]),
            helper.make_node("Gather", [f"{after} s", "one"], [f"{after} c"]),
            helper.make_node("Div", [f"{after} c", "two"], [f"{after} half"]),
            helper.make_node("Slice", [before, "zero", f"{after} half", "one"], [f"{after} part"]),
            helper.make_node("Relu", [f"{after} part"], [after]),
        ]
    x = np.random.default_rng(2).standard_normal((2, 9, 3, 3)).astype(np.float32)
    model = onnx_model(nodes, [info("x", ["n" if is_open else 2, *x.shape[1:]])], ["z"], constants)
    session = InferenceSession(model)
    assert is_open or session.get_outputs()[0].shape == [2, 2, 3, 3]
    ran = {node.op: node.engine for node in session.nodes}
    assert is_open or (ran["Gather"], ran["Div"]) == ("constant", "constant")
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.maximum(x[:, :2], 0))
