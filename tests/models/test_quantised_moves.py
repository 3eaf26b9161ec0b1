"""Moves of what integers stand for: the integers are moved, and no bit changes.

DequantizeLinear and QuantizeLinear are defined in f32 to the last bit, so that NumPy gives the very integers.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import pytest
from making import info, onnx_model, onnxruntime_run, session
from onnx import TensorProto, helper
from test_integer_rewrites import arrays, steps_of

from polyconv.errors import Error

node = helper.make_node
SHAPE = (2, 8, 4, 6)
SAME = {"s": np.float32(0.02), "z": np.uint8(7), "t": np.float32(0.02), "u": np.uint8(7)}
OTHER = SAME | {"t": np.float32(0.03), "u": np.uint8(90)}


def bytes_of(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def again(q: np.ndarray, given: dict[str, Any], s: str = "s", z: str = "z") -> np.ndarray:
    """Quantised anew: from the quantities s and z to t and u, in f32 as ONNX says."""
    real = (q.astype(np.float32) - np.float32(given[z])) * given[s]
    return np.clip(np.rint(real / given["t"]) + np.float32(given["u"]), 0, 255).astype(np.uint8)


def blocks(x: np.ndarray) -> np.ndarray:
    n, c, h, w = x.shape
    return x.reshape(n, 2, 2, c // 4, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(n, c // 4, 2 * h, 2 * w)


MOVED = {
    "Slice": (node("Slice", ["x", "begin", "end", "axes", "steps"], ["m"]), lambda x: x[:, 1:7:2]),
    "DepthToSpace": (node("DepthToSpace", ["x"], ["m"], blocksize=2), blocks),
    "Transpose": (node("Transpose", ["x"], ["m"], perm=[0, 2, 3, 1]), lambda x: x.transpose(0, 2, 3, 1)),
    "Resize": (node("Resize", ["x", "", "factors"], ["m"], mode="nearest"),
               lambda x: x.repeat(2, axis=2).repeat(2, axis=3)),
    "Flatten": (node("Flatten", ["x"], ["m"]), lambda x: x.reshape(2, -1)),
}  # fmt: skip
NUMBERS = {"begin": np.array([1]), "end": np.array([7]), "axes": np.array([1]), "steps": np.array([2]),
           "factors": np.array([1, 1, 2, 2], np.float32)}  # fmt: skip


@pytest.mark.parametrize("given", [SAME, OTHER], ids=["same", "other"])
@pytest.mark.parametrize("op", MOVED)
def test_bytes_are_moved(op: str, given: dict[str, Any]) -> None:
    move, expected = MOVED[op]
    nodes = [node("DequantizeLinear", ["q", "s", "z"], ["x"]), move, node("QuantizeLinear", ["m", "t", "u"], ["y"])]
    kept = {name: a for name, a in NUMBERS.items() if name in move.input}
    made = session(onnx_model(nodes, [info("q", list(SHAPE), TensorProto.UINT8)], ["y"], arrays(given | kept)))
    q = bytes_of(*SHAPE)
    np.testing.assert_array_equal(made.run(None, {"q": q})[0], again(expected(q), given))
    assert steps_of(made)[0] == ("polyconv", op + ("+QuantizeLinear" if given is SAME else ""))


def test_a_split_is_moved_as_bytes_whoever_reads_its_parts() -> None:
    """One part is quantised again, the other read as real numbers."""
    nodes = [
        node("DequantizeLinear", ["q", "s", "z"], ["x"]), node("Split", ["x", "parts"], ["a", "b"], axis=1),
        node("QuantizeLinear", ["a", "t", "u"], ["y"]), node("Relu", ["b"], ["r"]),
    ]  # fmt: skip
    kept = arrays(OTHER | {"parts": np.array([3, 5])})
    made = session(onnx_model(nodes, [info("q", list(SHAPE), TensorProto.UINT8)], ["y", "r"], kept))
    q = bytes_of(*SHAPE)
    y, r = made.run(None, {"q": q})
    np.testing.assert_array_equal(y, again(q[:, :3], OTHER))
    np.testing.assert_array_equal(r, np.maximum((q[:, 3:].astype(np.float32) - 7) * OTHER["s"], 0))
    assert steps_of(made)[0] == ("polyconv", "Split")


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_parts_are_quantised_before_they_are_joined(parts: int) -> None:
    """Each by a table, but those that have the quantities of the whole already; a part of floats by itself."""
    given: dict[str, Any] = dict(OTHER)
    nodes, inputs, feeds, expected = [], [], {}, []
    for at in range(parts):
        given |= {f"s{at}": np.float32(0.03 if at % 2 else 0.01 + at / 100), f"z{at}": np.uint8(90 if at % 2 else at)}
        feeds[f"q{at}"] = bytes_of(1, 3 + at, 4, 5, seed=at)
        inputs.append(info(f"q{at}", [1, 3 + at, 4, 5], TensorProto.UINT8))
        nodes.append(node("DequantizeLinear", [f"q{at}", f"s{at}", f"z{at}"], [f"x{at}"]))
        expected.append(again(feeds[f"q{at}"], given, f"s{at}", f"z{at}"))
    feeds["f"], names = np.linspace(-1, 1, 40, dtype=np.float32).reshape(1, 2, 4, 5), [f"x{at}" for at in range(parts)]
    expected.append(np.clip(np.rint(feeds["f"] / given["t"]) + 90, 0, 255).astype(np.uint8))
    nodes += [node("Concat", [*names, "f"], ["m"], axis=1), node("QuantizeLinear", ["m", "t", "u"], ["y"])]
    kept = {name: a for name, a in given.items() if name not in ("s", "z")}
    made = session(onnx_model(nodes, [*inputs, info("f", [1, 2, 4, 5])], ["y"], arrays(kept)))
    np.testing.assert_array_equal(made.run(None, feeds)[0], np.concatenate(expected, 1))
    assert ("polyconv", "Concat") in steps_of(made)


def test_windows_of_real_numbers_may_be_pooled_as_bytes() -> None:
    """What is pooled is quantised first, so that a convolution before it can run on integers."""
    nodes = [
        node("Relu", ["f"], ["x"]), node("MaxPool", ["x"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        node("QuantizeLinear", ["m", "t", "u"], ["y"]),
    ]  # fmt: skip
    made = session(onnx_model(nodes, [info("f", [1, 3, 6, 6])], ["y"], arrays({"t": OTHER["t"], "u": OTHER["u"]})))
    f = np.random.default_rng(0).standard_normal((1, 3, 6, 6)).astype(np.float32)
    largest = np.maximum(f, 0).reshape(1, 3, 3, 2, 3, 2).max((3, 5))
    np.testing.assert_array_equal(made.run(None, {"f": f})[0], np.clip(np.rint(largest / OTHER["t"]) + 90, 0, 255))


def test_a_value_that_others_read_is_not_quantised_before_it_is_moved() -> None:
    nodes = [
        node("Transpose", ["f"], ["m"], perm=[1, 0]), node("QuantizeLinear", ["m", "t", "u"], ["y"]),
        node("Neg", ["m"], ["z"]),
    ]  # fmt: skip
    made = session(onnx_model(nodes, [info("f", [5, 7])], ["y", "z"], arrays({"t": OTHER["t"], "u": OTHER["u"]})))
    f = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    y, z = made.run(None, {"f": f})
    np.testing.assert_array_equal(z, -f.T)
    np.testing.assert_array_equal(y, np.clip(np.rint(f.T / OTHER["t"]) + 90, 0, 255))


def test_quantities_of_channels_stay_where_they_are() -> None:
    """A turn moves the axis that scales belong to."""
    scales, zeros = np.linspace(0.01, 0.08, 8, dtype=np.float32), np.arange(8, dtype=np.uint8)
    nodes = [
        node("DequantizeLinear", ["q", "s", "z"], ["x"], axis=1), node("Transpose", ["x"], ["m"], perm=[0, 2, 3, 1]),
        node("QuantizeLinear", ["m", "t", "u"], ["y"]),
    ]  # fmt: skip
    kept = arrays({"s": scales, "z": zeros, "t": OTHER["t"], "u": OTHER["u"]})
    q = bytes_of(*SHAPE)
    [y] = session(onnx_model(nodes, [info("q", list(SHAPE), TensorProto.UINT8)], ["y"], kept)).run(None, {"q": q})
    real = (q.astype(np.float32) - zeros.reshape(-1, 1, 1)) * scales.reshape(-1, 1, 1)
    np.testing.assert_array_equal(y, np.clip(np.rint(real.transpose(0, 2, 3, 1) / OTHER["t"]) + 90, 0, 255))


QUANTISED: dict[str, tuple[list[str], dict[str, Any]]] = {
    "QLinearConcat": (["t", "u", "q0", "s", "z", "q1", "t", "u"], {"axis": 1}),
    "QLinearAveragePool": (
        ["q0", "s", "z", "t", "u"], {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1], "strides": [2, 1]},
    ),
    "QLinearSoftmax": (["q0", "s", "z", "t", "u"], {"axis": 1, "opset": 17}),
}  # fmt: skip


@pytest.mark.parametrize("op", QUANTISED)
def test_quantised_operators_of_another_domain(op: str) -> None:
    """Against onnxruntime, whose operators these are: where it does not round to the nearest it differs by a step."""
    names, words = QUANTISED[op]
    given = OTHER | ({"t": np.float32(1 / 256), "u": np.uint8(0)} if op == "QLinearSoftmax" else {})
    feeds = {name: bytes_of(*SHAPE, seed=at) for at, name in enumerate(("q0", "q1")) if name in names}
    model = onnx_model(
        [node(op, names, ["y"], domain="com.microsoft", **words)],
        [info(name, list(SHAPE), TensorProto.UINT8) for name in feeds], [info("y", None, TensorProto.UINT8)],
        arrays(given), domains={"com.microsoft": 1},
    )  # fmt: skip
    made = session(model)
    [y], [theirs] = made.run(None, feeds), onnxruntime_run(model, feeds)
    assert {engine for engine, _ in steps_of(made)} == {"polyconv"}
    assert (np.abs(y.astype(int) - theirs) <= 1).all()
    if op == "QLinearConcat":
        np.testing.assert_array_equal(y, np.concatenate([again(feeds["q0"], given), feeds["q1"]], 1))


@pytest.mark.parametrize("op", ["MatMul", "QLinearMatMul", "turned"])
@pytest.mark.parametrize("scales", [1, 9])
@pytest.mark.parametrize("shape", [(12, 30), (2, 12, 30), (2, 3, 4, 30)], ids=str)
def test_rows_of_any_rank_are_multiplied_as_integers(op: str, scales: int, shape: tuple[int, ...]) -> None:
    rng, sw = np.random.default_rng(1), np.linspace(0.004, 0.01, scales, dtype=np.float32)
    w = rng.integers(-127, 128, (30, 9)).astype(np.int8)
    given: dict[str, Any] = {
        "s": np.float32(0.02), "z": np.uint8(120), "w": w, "t": np.float32(0.05), "u": np.uint8(128),
        "sw": sw if scales > 1 else sw[0], "zw": np.zeros(scales, np.int8) if scales > 1 else np.int8(0),
    }  # fmt: skip
    quantities = ["q", "s", "z", "w", "sw", "zw", "t", "u"]
    nodes: list[onnx.NodeProto] = [node("QLinearMatMul", quantities, ["y"])]
    if op == "turned":  # as exporters write a linear layer
        given["w"] = np.ascontiguousarray(w.T)
    if op != "QLinearMatMul":
        nodes = [
            node("DequantizeLinear", ["q", "s", "z"], ["x"]),
            node("DequantizeLinear", ["w", "sw", "zw"], ["wf"], axis=int(op == "MatMul")),
            *([node("Transpose", ["wf"], ["wt"])] if op == "turned" else []),
            node("MatMul", ["x", "wt" if op == "turned" else "wf"], ["m"]),
            node("QuantizeLinear", ["m", "t", "u"], ["y"]),
        ]  # fmt: skip
    made = session(onnx_model(nodes, [info("q", list(shape), TensorProto.UINT8)], ["y"], arrays(given)))
    q = bytes_of(*shape)
    [y] = made.run(None, {"q": q})
    sums = (q.astype(np.int64) - 120) @ w.astype(np.int64)
    want = sums * (np.float64(given["s"]) * sw.astype(np.float64) / np.float64(given["t"])) + 128
    assert y.shape == (*shape[:-1], 9)
    assert (np.abs(y - np.clip(want, 0, 255)) <= 0.5 + 1e-4).all()
    assert not any("Dequantize" in names for _, names in steps_of(made))
    assert {engine for engine, _ in steps_of(made)} == {"polyconv"}


def test_nodes_made_of_one_may_all_run_elsewhere() -> None:
    """The readers of all parts are onnxruntime's, which takes no two nodes of one name."""
    nodes = [
        node("DequantizeLinear", ["q", "s", "z"], ["x"], "one"),
        node("Split", ["x", "parts"], ["a", "b"], "two", axis=1),
        node("Softsign", ["a"], ["y"], "three"), node("Softsign", ["b"], ["w"], "four"),
    ]  # fmt: skip
    kept = arrays({"s": OTHER["s"], "z": OTHER["z"], "parts": np.array([3, 5])})
    made = session(onnx_model(nodes, [info("q", list(SHAPE), TensorProto.UINT8)], ["y", "w"], kept))
    q = bytes_of(*SHAPE)
    x = (q.astype(np.float64) - 7) * float(OTHER["s"])
    for found, part in zip(made.run(None, {"q": q}), (x[:, :3], x[:, 3:]), strict=True):
        np.testing.assert_allclose(found, part / (1 + np.abs(part)), rtol=1e-6)


def test_a_product_without_quantities_of_its_result_makes_real_numbers() -> None:
    w = np.random.default_rng(1).integers(-127, 128, (6, 4)).astype(np.int8)
    given = arrays(OTHER | {"w": w, "sw": np.float32(0.01), "zw": np.int8(0)})
    nodes = [
        node("QGemm", ["q", "s", "z", "w", "sw", "zw"], ["p"], domain="com.microsoft"), node("Relu", ["p"], ["y"]),
    ]  # fmt: skip
    kept = {name: a for name, a in given.items() if name not in ("t", "u")}
    made = session(onnx_model(nodes, [info("q", [3, 6], TensorProto.UINT8)], ["y"], kept, domains={"com.microsoft": 1}))
    q = bytes_of(3, 6)
    real = (q.astype(np.int64) - 7) @ w.astype(np.int64) * (0.02 * 0.01)
    np.testing.assert_allclose(made.run(None, {"q": q})[0], np.maximum(real, 0), rtol=1e-5, atol=1e-6)


def test_single_numbers_in_bytes_are_real_constants() -> None:
    nodes = [
        node("DequantizeLinear", ["two", "s", "z"], ["c"]), node("Mul", ["f", "c"], ["m"]), node("Relu", ["m"], ["y"]),
    ]  # fmt: skip
    given = arrays({"two": np.uint8(107), "s": OTHER["s"], "z": OTHER["z"]})
    f = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    [y] = session(onnx_model(nodes, [info("f", [3, 4])], ["y"], given)).run(None, {"f": f})
    np.testing.assert_array_equal(y, np.maximum(f * (np.float32(100) * OTHER["s"]), 0))


WRONG = {
    "QLinearConcat": (["t", "u", "q", "s", "z", "q", "t", "u"], {"axis": 1}),
    "QLinearSoftmax": (["q", "s", "z", "t", "u"], {"axis": 1, "opset": 13}),
    "QLinearAveragePool": (["q", "s", "z", "t", "u"], {"kernel_shape": [2, 2]}),
    "QLinearAdd": (["q", "s", "z", "q", "t", "u", "t", "u"], {}),
    "QGemm": (["q", "s", "z", "w", "s", "zw", "", "t", "u"], {"transB": 0}),
    "QLinearMatMul": (["q", "s", "z", "w", "s", "zw", "t", "u"], {}),
}  # fmt: skip


@pytest.mark.parametrize("op", WRONG)
def test_wrong_quantised_operators_are_errors_or_run(op: str) -> None:
    """Other inputs than belong there, attributes of other types, inputs that are left out: no other exception."""
    rng = np.random.default_rng(len(op))
    right, words = WRONG[op]
    given = arrays(OTHER | {
        "many": np.full(3, 0.1, np.float32), "zeros": np.zeros(3, np.uint8), "negative": np.float32(-1),
        "nan": np.float32(np.nan), "none": np.zeros(0, np.float32), "zw": np.int8(0),
        "w": rng.integers(-127, 128, (6, 4)).astype(np.int8),
    })  # fmt: skip
    for _ in range(60):
        names, shape = list(right), ([2, 3, 4, 6], [3, 6], [0, 6], [6], [])[rng.integers(5)]
        for _ in range(rng.integers(3)):
            names[rng.integers(len(names))] = [*given, "q", "f", ""][rng.integers(len(given) + 3)]
        names = names[: rng.integers(1, len(names) + 1)] if rng.random() < 0.15 else names
        first = next(iter(words), None)
        other = {first: (3, -9, [7], 1.5, "x")[rng.integers(5)]} if first and rng.random() < 0.3 else {}
        domain = "" if op == "QLinearMatMul" else "com.microsoft"
        nodes = [
            node("QuantizeLinear", ["f", "s", "z"], ["q"]), node(op, names, ["p"], domain=domain, **(words | other)),
            node("DequantizeLinear", ["p", "t", "u"], ["r"]), node("Relu", ["r"], ["y"]),
        ]  # fmt: skip
        model = onnx_model(nodes, [info("f", shape)], ["y"], given, domains={"com.microsoft": 1})
        with suppress(Error):
            session(model).run(None, {"f": rng.standard_normal(shape).astype(np.float32)})
