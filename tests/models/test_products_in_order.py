"""Products that read and store arrays with their axes in another order, and are scaled and added to, as attention's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from levels import LEVELS
from making import close, info, onnx_model, random, session, steps
from onnx import TensorProto, helper
from own_models import at_level

node = helper.make_node
HEADS = [0, 2, 1, 3]
"""Order of axes by which heads come before tokens, and back."""


def network(nodes: Sequence[onnx.NodeProto], feeds: dict[str, np.ndarray], results: Sequence[str] = ("y",),
            **constants: Any) -> onnx.ModelProto:  # fmt: skip
    kind = TensorProto.DOUBLE if next(iter(feeds.values())).dtype == np.float64 else TensorProto.FLOAT
    given = [info(name, array.shape, kind) for name, array in feeds.items()]
    held = {name: np.asarray(array) for name, array in constants.items()}
    return onnx_model(list(nodes), given, [info(name, None, kind) for name in results], held)


def work(made: Any) -> list[str]:
    """What each step that is not a view stands for."""
    views = {"Reshape", "Split", "Squeeze", "Gather", "Unsqueeze"}
    return [names for names in steps(made) if not views.issuperset(names.split("+"))]


Q, K, V = random(2, 5, 3, 8), random(2, 5, 3, 8, seed=1), random(2, 5, 3, 7, seed=2)
ADDENDS = {
    "all": random(2, 3, 5, 5, seed=3), "heads": random(3, 5, 5, seed=3), "a row": random(5, seed=3),
    "rows of images": random(2, 1, 1, 5, seed=3), "rows": random(1, 5, seed=3),
}  # fmt: skip


def attention(*, scale: str = "", added: str = "", dtype: Any = np.float32, between: str = "Softmax"
              ) -> tuple[onnx.ModelProto, dict[str, Any]]:  # fmt: skip
    """Tokens with heads behind them, as products of three arrays; ``scale`` says of what."""
    feeds = {"q": Q.astype(dtype), "k": K.astype(dtype), "v": V.astype(dtype)}
    s = np.asarray(0.3, dtype)
    nodes = [node("Transpose", ["q"], ["qh"], perm=HEADS), node("Transpose", ["k"], ["kh"], perm=[0, 2, 3, 1]),
             node("Transpose", ["v"], ["vh"], perm=HEADS)]  # fmt: skip
    a, b, sums = "qh", "kh", "sums"
    if scale in ("left", "both"):
        nodes.append(node("Mul", [a, "s"], ["a"]))
        a = "a"
    if scale in ("right", "both"):
        nodes.append(node("Mul", ["s", b], ["b"]))
        b = "b"
    nodes.append(node("MatMul", [a, b], [sums]))
    if scale in ("sums", "divided"):
        nodes.append(node("Mul" if scale == "sums" else "Div", [sums, "s"], ["scaled"]))
        sums = "scaled"
    if added:
        nodes.append(node("Add", [sums, "c"], ["shifted"]))
        sums = "shifted"
    axis = {"axis": -1} if between == "Softmax" else {}
    nodes += [node(between, [sums], ["p"], **axis), node("MatMul", ["p", "vh"], ["o"]),
              node("Transpose", ["o"], ["y"], perm=HEADS)]  # fmt: skip
    constants = {"s": s, "c": ADDENDS[added].astype(dtype) if added else s}
    read = {name for each in nodes for name in each.input}
    return network(nodes, feeds, **{n: c for n, c in constants.items() if n in read}), feeds


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", ["", "left", "right", "both", "sums", "divided"])
def test_products_copy_nothing(scale: str, dtype: Any) -> None:
    made = close(*attention(scale=scale, dtype=dtype, between="Tanh"))
    names = work(made)
    assert len(names) == 3
    factors = {"": [], "both": ["Mul", "Mul"], "divided": ["Div"]}.get(scale, ["Mul"])
    assert sorted(names[0].split("+")) == sorted(["MatMul", "Transpose", "Transpose", *factors])
    assert names[1] == "Tanh"
    assert sorted(names[2].split("+")) == ["MatMul", "Transpose", "Transpose"]


@pytest.mark.parametrize("added", ADDENDS)
@pytest.mark.parametrize("scale", ["", "sums"])
def test_what_is_added_is_part_of_a_product(added: str, scale: str) -> None:
    assert work(close(*attention(added=added, scale=scale, between="Tanh")))[0].endswith("Add")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("terms", [1, 127, 128, 129, 300])
def test_long_sums_are_finished_once(terms: int, level: str) -> None:
    """Longer ones are summed in parts: what multiplies and what is added comes after the last one."""
    feeds = {"a": random(2, 11, terms), "b": random(2, terms, 37, seed=1)}
    nodes = [node("MatMul", ["a", "b"], ["t"]), node("Mul", ["t", "s"], ["u"]), node("Add", ["c", "u"], ["y"])]
    model = network(nodes, feeds, s=np.float32(0.1), c=random(11, 37, seed=2))
    with at_level(level):
        made = close(model, feeds)
    assert len(work(made)) == 1
    whole = 0.1 * (feeds["a"].astype(np.float64) @ feeds["b"]) + random(11, 37, seed=2)
    bound = np.abs(feeds["a"]).astype(np.float64) @ np.abs(feeds["b"]) * (terms + 3) * np.finfo(np.float32).eps
    found = made.run(None, feeds)[0]
    assert (np.abs(found - whole) <= bound + 4 * np.finfo(np.float32).eps * np.abs(whole)).all()


@pytest.mark.parametrize("how", ["Split", "Gather"])
@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_queries_keys_and_values_of_one_product(how: str, images: int, threads: int) -> None:
    """As PyTorch exports them: one product, heads in front by a Transpose, cut apart."""
    n, t, heads, wide = images, 6, 2, 5
    feeds = {"x": random(n, t, 9)}
    nodes = [
        node("MatMul", ["x", "w"], ["xw"]), node("Reshape", ["xw", "shape"], ["parts"]),
        node("Transpose", ["parts"], ["turned"], perm=[2, 0, 3, 1, 4]),
    ]  # fmt: skip
    if how == "Split":
        nodes.append(node("Split", ["turned", "ones"], ["q1", "k1", "v1"], axis=0))
        nodes += [node("Squeeze", [name + "1", "first"], [name]) for name in "qkv"]
    else:
        nodes += [node("Gather", ["turned", f"at{i}"], [name], axis=0) for i, name in enumerate("qkv")]
    nodes += [
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]), node("MatMul", ["q", "kt"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1), node("MatMul", ["p", "v"], ["o"]),
        node("Transpose", ["o"], ["back"], perm=HEADS), node("Reshape", ["back", "flat"], ["y"]),
    ]  # fmt: skip
    constants = {
        "w": random(9, 3 * heads * wide, seed=1), "shape": np.array([n, t, 3, heads, wide]),
        "flat": np.array([n, t, heads * wide]), "ones": np.array([1, 1, 1]), "first": np.array([0]),
        "at0": np.array(0), "at1": np.array(1), "at2": np.array(-1),
    }  # fmt: skip
    read = {name for each in nodes for name in each.input}
    model = network(nodes, feeds, **{name: array for name, array in constants.items() if name in read})
    made = close(model, feeds, threads=threads)
    again = [made.run(None, feeds)[0] for _ in range(3)]
    assert all((array == again[0]).all() for array in again)
    assert [name for name in work(made) if "Transpose" in name and "MatMul" not in name] == []


def test_more_axes_before_the_last_two_than_join() -> None:
    feeds = {"a": random(2, 3, 2, 4, 5), "b": random(3, 1, 2, 5, 6, seed=1)}
    nodes = [
        node("Transpose", ["a"], ["at"], perm=[2, 1, 0, 3, 4]), node("Transpose", ["b"], ["bt"], perm=[1, 0, 2, 3, 4]),
        node("MatMul", ["at", "bt"], ["t"]), node("Add", ["t", "c"], ["u"]),
        node("Transpose", ["u"], ["y"], perm=[3, 2, 0, 1, 4]),
    ]  # fmt: skip
    made = close(network(nodes, feeds, c=random(3, 1, 4, 6, seed=2)), feeds)
    assert len(work(made)) == 1


KEPT = {
    "columns apart": ([node("MatMul", ["a", "b"], ["t"]), node("Transpose", ["t"], ["y"], perm=[0, 2, 1])], {}),
    "an addend of one column": ([node("MatMul", ["a", "b"], ["t"]), node("Add", ["t", "c"], ["y"])],
                                {"c": random(4, 1)}),
    "a large addend": ([node("MatMul", ["a", "b"], ["t"]), node("Add", ["t", "c"], ["y"])],
                       {"c": random(2, 300, 300)}),
    "several numbers": ([node("Mul", ["a", "c"], ["s"]), node("MatMul", ["s", "b"], ["y"])], {"c": random(8)}),
    "zero": ([node("Mul", ["a", "c"], ["s"]), node("MatMul", ["s", "b"], ["y"])], {"c": np.float32(0)}),
    "too small a number": ([node("Mul", ["a", "c"], ["s"]), node("MatMul", ["s", "b"], ["y"])],
                           {"c": np.float32(1e-20)}),
    "not a number": ([node("Mul", ["a", "c"], ["s"]), node("MatMul", ["s", "b"], ["y"])], {"c": np.float32("nan")}),
    "one over it": ([node("MatMul", ["a", "b"], ["t"]), node("Div", ["c", "t"], ["y"])], {"c": np.float32(2)}),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_what_a_product_cannot_take_stays(name: str) -> None:
    nodes, constants = KEPT[name]
    extent = 300 if name == "a large addend" else 4
    feeds = {"a": random(2, extent, 8), "b": random(2, 8, extent, seed=1)}
    made = session(network(nodes, feeds, **constants))
    assert len(work(made)) == 2
    found = made.run(None, feeds)[0]
    with np.errstate(all="ignore"):
        values = {name: np.asarray(array, np.float64) for name, array in {**feeds, **constants}.items()}
        functions = {"MatMul": np.matmul, "Mul": np.multiply, "Add": np.add, "Div": np.divide,
                     "Transpose": lambda x: x.transpose(0, 2, 1)}  # fmt: skip
        for each in nodes:
            values[each.output[0]] = functions[each.op_type](*(values[n] for n in each.input))
    np.testing.assert_allclose(found, values["y"], rtol=2e-3, atol=1e-4)


def test_a_number_with_more_axes_than_an_operand_stays() -> None:
    """It gives the product another axis."""
    feeds = {"a": random(2, 4, 8), "b": random(2, 8, 5, seed=1)}
    nodes = [node("Mul", ["a", "s"], ["m"]), node("MatMul", ["m", "b"], ["y"])]
    made = close(network(nodes, feeds, s=np.full((1, 1, 1, 1), 0.5, np.float32)), feeds)
    assert made.run(None, feeds)[0].shape == (1, 2, 4, 5)


def test_long_chains_of_factors() -> None:
    feeds, nodes, last = {"x": random(2, 3, 4)}, [node("Transpose", ["x"], ["t"], perm=[1, 0, 2])], "q"
    nodes.append(node("Split", ["t", "parts"], ["q", "k", "v"], axis=0))
    for at in range(1500):
        nodes.append(node("Mul", [last, "s"], [f"m{at}"]))
        last = f"m{at}"
    nodes.append(node("Add", [last, "k"], ["y"]))
    model = network(nodes, feeds, s=np.float32(1.001), parts=np.array([1, 1, 1]))
    assert np.isfinite(session(model).run(None, feeds)[0]).all()


def test_a_value_that_is_returned_stays() -> None:
    feeds = {"a": random(2, 4, 3, 8), "b": random(2, 3, 8, 4, seed=1)}
    nodes = [node("Transpose", ["a"], ["at"], perm=HEADS), node("MatMul", ["at", "b"], ["t"]),
             node("Mul", ["t", "s"], ["y"])]  # fmt: skip
    made = close(network(nodes, feeds, ("y", "t", "at"), s=np.float32(0.5)), feeds)
    assert work(made) == ["Transpose", "MatMul", "Mul"]


def test_only_orders_change_no_bit() -> None:
    model, feeds = attention(between="Tanh")
    exact, whole = (session(model, rewrites=rewrites).run(None, feeds)[0] for rewrites in ("exact", "all"))
    assert (exact == whole).all()
    assert len(work(session(model, rewrites="exact"))) == 3


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_extents_of_nothing(shape: tuple[int, ...]) -> None:
    n, rows, terms = shape
    feeds = {"a": np.zeros((rows, n, terms), np.float32), "b": np.zeros((n, terms, 5), np.float32)}
    nodes = [node("Transpose", ["a"], ["at"], perm=[1, 0, 2]), node("MatMul", ["at", "b"], ["t"]),
             node("Add", ["t", "c"], ["u"]), node("Transpose", ["u"], ["y"], perm=[1, 0, 2])]  # fmt: skip
    found = session(network(nodes, feeds, c=random(5))).run(None, feeds)[0]
    np.testing.assert_array_equal(found, np.broadcast_to(random(5), (rows, n, 5)))


def test_open_extents() -> None:
    nodes = [node("Transpose", ["q"], ["qh"], perm=HEADS), node("Transpose", ["k"], ["kt"], perm=[0, 2, 3, 1]),
             node("MatMul", ["qh", "kt"], ["t"]), node("Transpose", ["t"], ["y"], perm=HEADS)]  # fmt: skip
    kind = TensorProto.FLOAT
    model = onnx_model(nodes, [info("q", ["n", "t", 3, 8], kind), info("k", ["n", "s", 3, 8], kind)],
                       [info("y", None, kind)])  # fmt: skip
    made = session(model)
    for n, t, s in ((1, 4, 5), (2, 7, 3), (1, 4, 5)):
        q, k = random(n, t, 3, 8), random(n, s, 3, 8, seed=1)
        right = np.einsum("nthd,nshd->nths", q.astype(np.float64), k)
        np.testing.assert_allclose(made.run(None, {"q": q, "k": k})[0], right, rtol=1e-4, atol=1e-5)
    assert len(work(made)) == 1
