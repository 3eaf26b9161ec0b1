"""Operators that make, order or pick numbers by other numbers: results are onnxruntime's, errors name the node."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from making import info, onnx_model, random, session
from onnx import ModelProto, TensorProto, helper
from own_models import same_bits

from polyconv.errors import Error

node = helper.make_node
WHOLE = np.array([[3, -1, 3, 0, 7, 7], [2, 2, 2, 2, 2, 2], [-5, 9, 0, 9, -5, 1]])
KINDS = {
    np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float64): TensorProto.DOUBLE,
    np.dtype(np.int64): TensorProto.INT64, np.dtype(np.int32): TensorProto.INT32, np.dtype(np.bool_): TensorProto.BOOL,
    np.dtype(np.uint8): TensorProto.UINT8,
}  # fmt: skip


def _model(op: str, feeds: list[np.ndarray], outputs: int, open_: bool, **attributes: Any) -> ModelProto:
    names = [f"x{at}" for at in range(len(feeds))]
    shapes = [[None] * x.ndim if open_ else list(x.shape) for x in feeds]
    inputs = [info(name, shape, KINDS[x.dtype]) for name, shape, x in zip(names, shapes, feeds, strict=True)]
    made = [f"y{at}" for at in range(outputs)]
    return onnx_model([node(op, names, made, "it", **attributes)], inputs, made)


def _check(op: str, *feeds: np.ndarray, outputs: int = 1, close: bool = False, may_be_open: bool = True,
           **attributes: Any) -> None:  # fmt: skip
    """Whether extents are known before a run or not, twice each, and a third time with what a replay does."""
    for open_ in (False, True)[: 1 + may_be_open]:
        model = _model(op, list(feeds), outputs, open_, **attributes)
        named = {f"x{at}": x for at, x in enumerate(feeds)}
        want = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        wanted = want.run(None, named)
        made = session(model)
        assert {record.engine for record in made.nodes} == {"polyconv"}, made.nodes
        for _ in range(3):
            for mine, theirs in zip(made.run(None, named), wanted, strict=True):
                if close:
                    assert mine.dtype == theirs.dtype
                    np.testing.assert_allclose(mine, theirs, rtol=0, atol=4 * np.finfo(theirs.dtype).eps)
                else:
                    same_bits(mine, theirs)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.int32, np.uint8, np.bool_])
def test_one_number_everywhere(dtype: Any) -> None:
    value = helper.make_tensor("v", KINDS[np.dtype(dtype)], [1], [1])
    for shape in ([2, 3], [0, 4], [], [1, 1, 5, 2]):
        _check("ConstantOfShape", np.array(shape, np.int64), value=value)
    _check("ConstantOfShape", np.array([3], np.int64))


def test_ranges() -> None:
    for start, limit, step in ((0, 5, 1), (5, 0, -2), (3, 3, 1), (4, 2, 1), (-7, 8, 3)):
        _check("Range", *(np.array(v, np.int64) for v in (start, limit, step)))
        _check("Range", *(np.array(v, np.int32) for v in (start, limit, step)))
        _check("Range", *(np.array(v / 2, np.float32) for v in (start, limit, step)))


def test_sizes_and_products() -> None:
    for x in (random(2, 3, 4), WHOLE, np.zeros((0, 3), np.float32), np.array(3.5, np.float32)):
        _check("Size", x)
    for keepdims in (0, 1):
        _check("ReduceProd", WHOLE, keepdims=keepdims)
        for axes in ([0], [1], [-1], [0, 1]):
            _check("ReduceProd", WHOLE, keepdims=keepdims, axes=axes)
            _check("ReduceProd", WHOLE.astype(np.int32), keepdims=keepdims, axes=axes)


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_places_of_the_largest_and_the_smallest(op: str) -> None:
    for x in (WHOLE, random(3, 4, 5), np.ones((2, 3), np.float64), WHOLE.astype(np.int32)):
        for axis in range(-x.ndim, x.ndim):
            for keepdims in (0, 1):
                _check(op, x, axis=axis, keepdims=keepdims, may_be_open=axis in (-1, x.ndim - 1))
    _check(op, random(4))


def test_orders_of_counts() -> None:
    for largest in (0, 1):
        for axis, most in ((0, 3), (1, 6), (-1, 6), (-2, 3)):
            for count in (0, 1, 2, most):
                _check("TopK", WHOLE, np.array([count]), outputs=2, axis=axis, largest=largest)
    lowest = np.array([np.iinfo(np.int64).min, 5, np.iinfo(np.int64).max, 5, np.iinfo(np.int64).min])
    _check("TopK", lowest, np.array([4]), outputs=2)


def test_orders_of_real_numbers() -> None:
    few = np.random.default_rng(3).integers(-4, 5, (3, 6)).astype(np.float32)  # with equal ones
    for largest in (0, 1):
        for axis in (0, 1):
            _check("TopK", few, np.array([2]), outputs=2, axis=axis, largest=largest)
            for count in (1, 7, 300):  # of many the first ones alone are put in order
                many = np.random.default_rng(count).integers(-90, 90, (2, 5000)).astype(np.float64)
                x = many if axis else many.T.copy()
                _check("TopK", x, np.array([count]), outputs=2, axis=axis, largest=largest)


def test_what_is_no_number_comes_last() -> None:
    x = np.full(400, np.nan, np.float32)
    x[[7, 30, 31, 200]] = [2, -np.inf, np.inf, 2]
    made = session(_model("TopK", [x, np.array([3])], 2, True))
    for count, want in ((3, [31, 7, 200]), (5, [31, 7, 200, 30, 0])):
        values, places = made.run(None, {"x0": x, "x1": np.array([count])})
        assert places.tolist() == want
        np.testing.assert_array_equal(values, x[want])


def test_picked_and_scattered_elements() -> None:
    for x in (random(3, 4), WHOLE):
        for axis, places in ((0, [[0, 2, -1]]), (1, [[0, 3], [-1, 1]]), (-1, [[1], [-2], [0]]), (0, [[2, 1], [0, 0]])):
            _check("GatherElements", x, np.array(places), axis=axis)
            _check("GatherElements", x, np.array(places, np.int32), axis=axis)
    for axis, places in ((0, [[0, 2, -1]]), (1, [[0, 3], [-1, 1]]), (-1, [[1], [-2], [0]])):
        at = np.array(places)
        _check("ScatterElements", WHOLE, at, 100 + np.arange(at.size).reshape(at.shape), axis=axis)


def test_sequences_are_turned_up_to_their_lengths() -> None:
    x, lengths = random(5, 3, 2), np.array([5, 1, 3])
    _check("ReverseSequence", x, lengths)
    _check("ReverseSequence", x.swapaxes(0, 1).copy(), lengths, batch_axis=0, time_axis=1)
    _check("ReverseSequence", WHOLE.T.copy(), lengths, batch_axis=1, time_axis=0)


def test_products_without_sums() -> None:
    a, b = random(3), random(4, seed=1)
    for equation in ("i, j -> i j", "i,j->ji"):
        _check("Einsum", a, b, equation=equation)
    _check("Einsum", random(2, 3, 4), equation="abc->cab")
    _check("Einsum", random(2, 3), random(2, 5, seed=1), equation="bi,bj->bij")


@pytest.mark.parametrize("fmod", [0, 1])
def test_remainders(fmod: int) -> None:
    for b in (np.array([3, -3, 7, 1, -2, 80]), np.array(5), np.array([[4], [-4], [2]])):
        _check("Mod", WHOLE, b, fmod=fmod)
    _check("Mod", WHOLE.astype(np.int32), np.array([4], np.int32), fmod=fmod)
    _check("Mod", np.array([7, 255], np.uint8), np.array([4, 9], np.uint8), fmod=fmod)


@pytest.mark.parametrize("op", ["Sin", "Cos"])
def test_angles(op: str) -> None:
    _check(op, random(3, 50) * 20, close=True)
    _check(op, (random(7) * 3).astype(np.float64), close=True)


@pytest.mark.parametrize(("op", "feeds", "attributes"), [
    ("Einsum", [random(3, 4), random(4, 5), random(5)], {"equation": "ij,jk,k->i"}),
    ("ReduceProd", [random(3, 4)], {}),
    ("TopK", [random(300, 300), np.array([2])], {}),
    ("ArgMax", [random(3, 4)], {"select_last_index": 1}), ("ArgMax", [random(5, 128, 128)], {}),
    ("GatherElements", [random(300, 300), np.zeros((300, 300), np.int64)], {}),
    ("ScatterElements", [random(300, 300), np.zeros((300, 300), np.int64), random(300, 300)], {}),
    ("ScatterElements", [random(3), np.array([1]), random(1)], {"reduction": "add"}),
])  # fmt: skip
def test_what_is_no_count_is_left_to_others(op: str, feeds: list[np.ndarray], attributes: dict[str, Any]) -> None:
    made = session(_model(op, feeds, 2 if op == "TopK" else 1, False, **attributes))
    assert {record.engine for record in made.nodes} == {"onnxruntime"}
    made.run(None, {f"x{at}": x for at, x in enumerate(feeds)})


@pytest.mark.parametrize(("op", "good", "bad", "attributes"), [
    ("ConstantOfShape", [np.array([2, 3])], [np.array([2, -3])], {}),
    ("Range", [np.array(0), np.array(3), np.array(1)], [np.array(0), np.array(3), np.array(0)], {}),
    ("Mod", [WHOLE, np.array([2])], [WHOLE, np.array([0])], {}),
    ("TopK", [WHOLE, np.array([2])], [WHOLE, np.array([7])], {}),
    ("TopK", [WHOLE, np.array([2])], [WHOLE, np.array([-1])], {}),
    ("GatherElements", [WHOLE, np.array([[0]])], [WHOLE, np.array([[3]])], {}),
    ("GatherElements", [WHOLE, np.array([[0]])], [WHOLE, np.zeros((1, 7), np.int64)], {}),
    ("ScatterElements", [WHOLE, np.array([[0]]), np.array([[1]])], [WHOLE, np.array([[-4]]), np.array([[1]])], {}),
    ("ScatterElements", [WHOLE, np.array([[0]]), np.array([[1]])], [WHOLE, np.array([[0]]), np.array([[1, 2]])], {}),
    ("ReverseSequence", [WHOLE, np.full(6, 3)], [WHOLE, np.full(6, 4)], {}),
    ("ReverseSequence", [WHOLE, np.full(6, 3)], [WHOLE, np.full(5, 3)], {}),
    ("ArgMax", [WHOLE], [np.zeros((0, 3), np.int64)], {}),
])  # fmt: skip
def test_what_cannot_be_computed_names_the_node_and_the_session_works_afterwards(
    op: str, good: list[np.ndarray], bad: list[np.ndarray], attributes: dict[str, Any]
) -> None:
    made = session(_model(op, good, 2 if op == "TopK" else 1, True, **attributes))
    for _ in range(2):
        with pytest.raises(Error, match=rf"{op}.*it"):
            made.run(None, {f"x{at}": x for at, x in enumerate(bad)})
        made.run(None, {f"x{at}": x for at, x in enumerate(good)})


def test_a_transpose_says_its_rank() -> None:
    """Behind a reshape to a shape of which nothing is known."""
    x, shape = random(2, 3, 4), np.array([4, 6])
    nodes = [node("Reshape", ["x", "s"], ["a"]), node("Transpose", ["a"], ["y"], "turn", perm=[1, 0])]
    made = session(onnx_model(nodes, [info("x", [None] * 3), info("s", [None], TensorProto.INT64)], ["y"]))
    assert {record.engine for record in made.nodes} == {"polyconv"}
    for _ in range(3):
        same_bits(made.run(None, {"x": x, "s": shape})[0], x.reshape(4, 6).T)
    with pytest.raises(Error, match="turn"):
        made.run(None, {"x": x, "s": np.array([4, 3, 2])})
