"""Products of matrices that come with a run, and shapes that are known in part, as attention has both."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from levels import LEVELS
from making import engines, info, onnx_model, random, session
from onnx import TensorProto, helper
from own_models import at_level

from polyconv.models.graph import Node, Value
from polyconv.models.onnx_counts import reshaped

node = helper.make_node
TYPES = {np.float32: TensorProto.FLOAT, np.float64: TensorProto.DOUBLE}


def product(a: Any, b: Any, dtype: Any) -> onnx.ModelProto:
    kind = TYPES[dtype]
    return onnx_model([node("MatMul", ["a", "b"], ["y"], "product")],
                      [info("a", a, kind), info("b", b, kind)], [info("y", None, kind)])  # fmt: skip


def check(model: onnx.ModelProto, a: np.ndarray, b: np.ndarray, level: str | None = None) -> None:
    with at_level(level):
        made = session(model)
        for _ in range(2):
            found = made.run(None, {"a": a, "b": b})[0]
    right = a.astype(np.longdouble) @ b.astype(np.longdouble)
    sums = np.abs(a).astype(np.longdouble) @ np.abs(b).astype(np.longdouble)
    bound = (a.shape[-1] + 1) * np.finfo(a.dtype).eps * sums
    assert found.shape == right.shape
    assert found.dtype == a.dtype
    assert (np.abs(found - right) <= bound).all()
    assert engines(made) == {"product": "polyconv"}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("columns", [1, 3, 4, 7, 8, 15, 16, 17, 24, 25, 48, 53])
def test_columns_around_vectors(columns: int, dtype: Any, level: str | None) -> None:
    for rows, terms in ((1, 1), (3, 5), (4, 16), (9, 33)):
        a, b = random(2, rows, terms, dtype=dtype), random(2, terms, columns, seed=1, dtype=dtype)
        check(product(a.shape, b.shape, dtype), a, b, level)


@st.composite
def operands(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Operands whose axes before the last two are broadcast, and which may lie in any order."""
    rows, terms, columns = (draw(st.sampled_from([0, 1, 2, 5, 13])) for _ in range(3))
    outer = draw(st.lists(st.sampled_from([1, 2, 3]), max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    found = []
    for inner in ((rows, terms), (terms, columns)):
        kept = outer[draw(st.integers(0, len(outer))):]  # fmt: skip
        shape = (*(1 if draw(st.booleans()) else extent for extent in kept), *inner)
        a = rng.standard_normal(shape).astype(np.float32)
        found.append(np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2) if draw(st.booleans()) else a)
    return found[0], found[1]


@settings(max_examples=80, deadline=None)
@given(operands())
def test_any_broadcast(case: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = case
    check(product(["?"] * a.ndim, ["?"] * b.ndim, np.float32), a, b)


def test_threads_and_large_products() -> None:
    a, b = random(3, 70, 90), random(3, 90, 110, seed=1)
    results = [session(product(a.shape, b.shape, np.float32), threads=n).run(None, {"a": a, "b": b})[0] for n in (1, 2)]
    np.testing.assert_array_equal(*results)
    check(product(a.shape, b.shape, np.float32), a, b)


def test_attention_runs_here() -> None:
    """Heads are split by a shape of which only the last extents are known before a run."""
    nodes = [
        node("Shape", ["x"], ["shape"]), node("Slice", ["shape", "zero", "two"], ["rows"]),
        node("Concat", ["rows", "heads"], ["split"], axis=0),
        *(node("MatMul", ["x", f"w{n}"], [f"{n} 0"]) for n in "qkv"),
        *(node("Reshape", [f"{n} 0", "split"], [f"{n} 1"]) for n in "qkv"),
        node("Transpose", ["q 1"], ["q"], perm=[0, 2, 1, 3]), node("Transpose", ["k 1"], ["k"], perm=[0, 2, 3, 1]),
        node("Transpose", ["v 1"], ["v"], perm=[0, 2, 1, 3]), node("MatMul", ["q", "k"], ["scores"]),
        node("Softmax", ["scores"], ["shares"], axis=-1), node("MatMul", ["shares", "v"], ["mixed"]),
        node("Transpose", ["mixed"], ["turned"], perm=[0, 2, 1, 3]), node("Reshape", ["turned", "join"], ["joined"]),
        node("MatMul", ["joined", "wq"], ["y"]),
    ]  # fmt: skip
    constants = {
        **{f"w{n}": random(24, 24, seed=at) / 5 for at, n in enumerate("qkv")}, "zero": np.array([0]),
        "two": np.array([2]), "heads": np.array([3, 8]), "join": np.array([0, 0, 24]),
    }  # fmt: skip
    made = session(onnx_model(nodes, [info("x", ["n", "t", 24])], ["y"], constants))
    assert set(engines(made).values()) <= {"polyconv", "constant", "removed"}
    for shape in ((1, 7, 24), (2, 30, 24)):
        x = random(*shape).astype(np.float64)
        w = [constants[f"w{n}"].astype(np.float64) for n in "qkv"]
        q, k, v = ((x @ each).reshape(*shape[:2], 3, 8).transpose(0, 2, 1, 3) for each in w)
        scores = np.exp(q @ k.swapaxes(-1, -2))
        mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ v
        right = mixed.transpose(0, 2, 1, 3).reshape(shape) @ w[0]
        np.testing.assert_allclose(made.run(None, {"x": x.astype(np.float32)})[0], right, rtol=0, atol=1e-4)


def counting(*nodes: Node) -> dict[str, Value]:
    values = {"x": Value("x", "tensor(float)", ("n", 4, "w")), "long": Value("long", "tensor(int64)", (3,))}
    constants = {"minus": np.array([-1]), "two": np.array([2]), "none": np.array([0, 0, -1]), "i": np.array(1)}
    return reshaped(nodes, values, constants)


def made(op: str, inputs: str, output: str, **attributes: Any) -> Node:
    return Node(output, op, "", 17, tuple(inputs.split()), (output,), attributes)


@pytest.mark.parametrize(
    ("nodes", "dims"),
    [
        ([made("Concat", "s minus", "c", axis=0)], ("n", 4, "w", 1)),
        ([made("Gather", "s i", "g"), made("Concat", "minus g", "c", axis=0)], (None, 4)),
        ([made("Mul", "s two", "c")], (None, 8, None)),
        ([made("Identity", "none", "c")], ("n", 4, "w")),
        ([made("Slice", "s i two i", "c")], None),
        ([made("Slice", "s two long", "c")], None),
        ([made("Identity", "long", "c")], (None, None, None)),
        ([made("Gather", "s minus", "g"), made("Concat", "g two minus", "c", axis=0)], ("w", 2, None)),
    ],
)
def test_shapes_that_are_known_in_part(nodes: list[Node], dims: Any) -> None:
    found = counting(made("Shape", "x", "s"), *nodes, made("Reshape", "x c", "y"))
    assert found.get("y", Value("y")).dims == dims
