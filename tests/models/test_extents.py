"""A few numbers are computed when a model is read, as onnxruntime computes them; all else is left to the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from making import info, onnx_model, onnxruntime_run, random, session
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


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Mod"])
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_arithmetic_is_onnxruntime_s(op: str, dtype: type) -> None:
    rng = np.random.default_rng(1)
    for shapes in (((), (3,)), ((4,), (4,)), ((2, 1), (3,))):
        a, b = (rng.integers(-20, 20, shape).astype(dtype) for shape in shapes)
        if op in ("Div", "Mod"):
            b = np.where((b == 0) | (b == -1), 7, b).astype(dtype)
        mine = onnx_extents[op](_node(op), [a, b])
        assert mine is not None and mine.dtype == dtype
        np.testing.assert_array_equal(mine, _theirs(op, [a, b]), strict=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arithmetic_of_real_numbers_is_onnxruntime_s(dtype: type) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(3).astype(dtype) for _ in range(2))
    b[0] = 0
    for op in ("Add", "Sub", "Mul", "Div"):
        mine = onnx_extents[op](_node(op), [a, b])
        np.testing.assert_array_equal(mine, _theirs(op, [a, b]), strict=True)
    for op in ("Sqrt", "Ceil", "Floor"):
        np.testing.assert_array_equal(onnx_extents[op](_node(op), [a]), _theirs(op, [a]), strict=True)
    whole = np.array([3, -2, 0, 1e6], dtype)
    mine = onnx_extents["Cast"](_node("Cast", to=TensorProto.INT64), [whole])
    np.testing.assert_array_equal(mine, _theirs("Cast", [whole], to=TensorProto.INT64), strict=True)
    for given in (a, np.array([3, 2**53 + 1, -5])):
        for to in (TensorProto.FLOAT, TensorProto.DOUBLE):
            mine = onnx_extents["Cast"](_node("Cast", to=to), [given])
            np.testing.assert_array_equal(mine, _theirs("Cast", [given], to=to), strict=True)


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


def test_asking_and_counting_is_onnxruntime_s() -> None:
    a, b = np.array([[3, -1, 4]]), np.array([[3], [4]])
    mine = onnx_extents["Equal"](_node("Equal"), [a, b])
    np.testing.assert_array_equal(mine, _theirs("Equal", [a, b]), strict=True)
    mine = onnx_extents["Where"](_node("Where"), [a == b, a, b])
    np.testing.assert_array_equal(mine, _theirs("Where", [a == b, a, b]), strict=True)
    for numbers in ((0, 7, 2), (5, -4, -3), (2, 2, 1), (3, 0, 1)):
        given = [np.array(n) for n in numbers]
        mine = onnx_extents["Range"](_node("Range"), given)
        np.testing.assert_array_equal(mine, _theirs("Range", given), strict=True)


A = np.array([1, 2])


@pytest.mark.parametrize(
    ("node", "inputs"),
    [
        (_node("Add"), [A.astype(np.float16), A.astype(np.float16)]), (_node("Add"), [np.arange(65), A[:1]]),
        (_node("Add"), [A, A.astype(np.int32)]), (_node("Add"), [A, np.arange(3)]), (_node("Add"), [A]),
        (_node("Add", 6, broadcast=1), [A, A]), (_node("Div"), [A, A * 0]),
        (_node("Div"), [np.array([-(2**63)]), np.array([-1])]), (_node("Gather"), [A, np.array(2)]),
        (_node("Gather", axis=1), [A, np.array(0)]), (_node("Concat"), [A, A]),
        (_node("Cast", to=TensorProto.INT8), [np.array([300])]), (_node("Cast", to=TensorProto.FLOAT16), [A]),
            (_node("Cast", to=TensorProto.INT64), [A / 2]), (_node("Cast", to=TensorProto.INT64), [A * 1e17]),
            (_node("Gather"), [A / 2, A[:1]]), (_node("Sqrt"), [A]),
        (_node("Cast", to=99), [A]), (_node("Mod"), [A, A * 0]), (_node("Mod", fmod=1), [-A, A]),
        (_node("Where"), [A, A, A]), (_node("Where"), [A > 1, A, A.astype(np.int32)]), (_node("Add"), [A > 1, A > 0]),
        (_node("Range"), [np.array(0), np.array(65), np.array(1)]),
        (_node("Range"), [np.array(0), np.array(5), np.array(0)]),
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


def _in_windows(extent: int) -> onnx.ModelProto:
    """Twice: padded to a multiple of 4 pixels, and seen in windows, by what PyTorch exports for it."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], "conv")]

    def op(kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind} {len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [name], name, **attributes))
        return name

    last = "c"
    filling = helper.make_tensor("zero", TensorProto.INT64, [1], [0])
    for _ in range(2):
        rest = op("Mod", op("Sub", "four", op("Mod", op("Gather", op("Shape", last), "two"), "four")), "four")
        pads = op("Concat", "zero", op("Unsqueeze", rest, "zero"), op("ConstantOfShape", "more", value=filling), axis=0)
        pairs = op("Slice", op("Reshape", pads, "pairs"), "minus", "least", "zero", "minus")
        padded = op("Pad", last, op("Reshape", op("Transpose", pairs, perm=[1, 0]), "minus"))
        length = op("Gather", op("Shape", padded), "two")
        windows = op("Concat", "minus", op("Unsqueeze", op("Div", length, "four"), "zero"), "fours", axis=0)
        there = op("Relu", op("Reshape", padded, windows))
        last = op("Reshape", there, op("Concat", "ones", "sixes", op("Unsqueeze", length, "zero"), axis=0))
    constants = {
        "w": random(6, 6, 1), "two": np.array(2), "four": np.array(4), "zero": np.array([0]), "more": np.array([4]),
        "pairs": np.array([-1, 2]), "minus": np.array([-1]), "least": np.array([-(2**63) + 1]),
        "fours": np.array([4]), "ones": np.array([1]), "sixes": np.array([6]),
    }  # fmt: skip
    return onnx_model(nodes, [info("x", [1, 6, extent])], [last], constants)


@pytest.mark.parametrize("extent", [12, 13])
def test_chains_of_shapes_are_gone(extent: int) -> None:
    model, x = _in_windows(extent), random(1, 6, extent)
    made = session(model)
    there = {record.op for record in made.nodes if record.engine not in ("removed", "constant")}
    assert there == {"Conv", "Pad", "Reshape", "Relu"}
    np.testing.assert_allclose(made.run(None, {"x": x})[0], onnxruntime_run(model, {"x": x})[0], rtol=1e-5, atol=1e-5)
    assert made.memory.node  # its extents are all known before a run


def test_nothing_is_padded_without_a_copy() -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Pad", ["c", "pads"], ["p"]),
             helper.make_node("Sigmoid", ["p"], ["y"])]  # fmt: skip
    constants = {"w": random(6, 6, 1), "pads": np.zeros(6, np.int64)}
    model = onnx_model(nodes, [info("x", [1, 6, 9])], ["y"], constants)
    made, x = session(model), random(1, 6, 9)
    for _ in range(3):
        np.testing.assert_allclose(made.run(None, {"x": x})[0], onnxruntime_run(model, {"x": x})[0], rtol=1e-5)
    assert made.memory.sum_bytes == 2 * 4 * 6 * 9
