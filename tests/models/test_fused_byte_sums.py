"""Sums of quantised values behind quantised convolutions: one step with them, and the same bytes.

What is right comes from NumPy, an operation at a time, on the bytes that the same model delivers before the sum, where
they are results of it as well: then nothing is folded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from making import info, onnx_model, session
from onnx import TensorProto, helper
from test_integer_rewrites import steps_of

node = helper.make_node
KINDS = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8}
F32 = np.float32
SCALES = {"s": 0.021, "t": 0.034, "u": 0.05, "v": 0.01}
"""Of the input, of the convolution's result, of the sum, and of weights."""


def block(dtype: Any = np.uint8, zero: int = 0, *, between: Sequence[str] = (), extents: Sequence[Any] = (1, 8, 9, 10),
          shown: Sequence[str] = (), beside: str = "x", turned: bool = False, m: int = 8, again: str = "t",
          right: int | None = None) -> onnx.ModelProto:  # fmt: skip
    """A quantised convolution whose result is added to what it reads; the sum has ``zero`` bytes below zero."""
    rng, least = np.random.default_rng(3), np.iinfo(dtype).min
    held: dict[str, np.ndarray] = {name: np.asarray(F32(scale)) for name, scale in SCALES.items()}
    held |= {name: np.array(least + steps, dtype) for name, steps in (("zx", 90), ("zy", 120), ("zs", zero))}
    held |= {"n": np.array(0, np.int8), "w": rng.integers(-90, 90, (m, 8, 3, 3)).astype(np.int8)}
    held |= {"one": np.ones((1, 8, 1, 1), F32)}
    chain = [f"after {at}" for at in range(len(between) + 1)]
    terms = ["r", beside]
    nodes = [
        node("DequantizeLinear", ["q", "s", "zx"], ["x"]), node("DequantizeLinear", ["w", "v", "n"], ["f"]),
        node("Conv", ["x", "f"], ["c"], pads=[1, 1, 1, 1]), node("QuantizeLinear", ["c", "t", "zy"], ["b"]),
        node("DequantizeLinear", ["b", again, "zy"], ["r"]),
        node("Add", terms[::-1] if turned else terms, [chain[0]]),
        *(node(op, [chain[at]], [chain[at + 1]]) for at, op in enumerate(between)),
        node("QuantizeLinear", [chain[-1], "u", "zs"], ["y"]),
    ]  # fmt: skip
    if "again" in shown:
        nodes.append(node("QuantizeLinear", ["x", "u", "zy"], ["again"]))
    given = [info("q", extents, KINDS[dtype])]
    if right is not None:
        given.append(info("p", [1, right, 9, 10], KINDS[dtype]))
        nodes.insert(0, node("DequantizeLinear", ["p", "s", "zx"], ["other"]))
    return onnx_model(nodes, given, ["y", *shown], held, opset=17)


def bytes_of(dtype: Any, shape: Sequence[int] = (1, 8, 9, 10)) -> np.ndarray:
    """Any bytes."""
    limits = np.iinfo(dtype)
    return np.random.default_rng(2).integers(limits.min, limits.max + 1, shape).astype(dtype)


def summed(b: np.ndarray, p: np.ndarray, zero: int, *, clipped: bool = False) -> np.ndarray:
    """What the nodes behind the convolution make of its bytes and of those beside."""
    least, most = np.iinfo(b.dtype).min, np.iinfo(b.dtype).max
    own = (b.astype(F32) - F32(least + 120)) * F32(SCALES["t"])
    total = own + (p.astype(F32) - F32(least + 90)) * F32(SCALES["s"])
    total = np.maximum(total, F32(0)) if clipped else total
    return np.clip(np.rint(total / F32(SCALES["u"])) + least + zero, least, most).astype(b.dtype)


def is_one_step(model: onnx.ModelProto) -> bool:
    """Whether the sum is part of the convolution's step."""
    (ops,) = [ops.split("+") for _, ops in steps_of(session(model)) if "Conv" in ops.split("+")]
    return "Add" in ops


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("zero", [0, 77])
@pytest.mark.parametrize("turned", [False, True])
def test_one_step_and_the_same_bytes(dtype: Any, zero: int, turned: bool) -> None:
    q = bytes_of(dtype)
    model = block(dtype, zero, turned=turned)
    assert is_one_step(model)
    (b,) = session(block(dtype, zero, shown=["b"])).run(["b"], {"q": q})
    (y,) = session(model).run(None, {"q": q})
    np.testing.assert_array_equal(y, summed(b, q, zero), strict=True)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("zero", [0, 40, 255])
def test_a_relu_is_the_end_of_the_type_or_clips_bytes(dtype: Any, zero: int) -> None:
    q = bytes_of(dtype)
    model = block(dtype, zero, between=["Relu"])
    assert is_one_step(model)
    assert ("Relu" in [ops for _, ops in steps_of(session(model))]) == (zero > 0)  # a step of its own, on bytes
    (b,) = session(block(dtype, zero, between=["Relu"], shown=["b"])).run(["b"], {"q": q})
    (y,) = session(model).run(None, {"q": q})
    np.testing.assert_array_equal(y, summed(b, q, zero, clipped=True), strict=True)


@pytest.mark.parametrize("given", [
    {"shown": ["b"]}, {"shown": ["r"]}, {"shown": ["after 0"]}, {"between": ["Abs"]}, {"again": "u"}, {"beside": "one"},
    {"beside": "r"}, {"extents": [1, 8, None, 10]},
])  # fmt: skip
def test_other_sums_are_steps_of_their_own(given: dict[str, Any]) -> None:
    """Bytes that somebody else reads, other operators or scales between, constants, and extents that nobody knows."""
    assert not is_one_step(block(**given))


def test_a_residual_of_another_shape_is_broadcast() -> None:
    q, p = bytes_of(np.uint8), bytes_of(np.uint8, (1, 1, 9, 10))
    model = block(beside="other", right=1)
    assert not is_one_step(model)
    (b,) = session(block(beside="other", right=1, shown=["b"])).run(["b"], {"q": q, "p": p})
    (y,) = session(model).run(None, {"q": q, "p": p})
    np.testing.assert_array_equal(y, summed(b, p, 0), strict=True)


def test_one_residual_of_two_sums() -> None:
    """As in networks with a long skip connection; nobody is left who reads it as real numbers."""
    first = block()
    second = [
        node("DequantizeLinear", ["y", "s", "zx"], ["x 2"]),
        node("Conv", ["x 2", "f"], ["c 2"], pads=[1, 1, 1, 1]), node("QuantizeLinear", ["c 2", "t", "zy"], ["b 2"]),
        node("DequantizeLinear", ["b 2", "t", "zy"], ["r 2"]), node("Add", ["x", "r 2"], ["sum 2"]),
        node("QuantizeLinear", ["sum 2", "u", "zs"], ["y 2"]),
    ]  # fmt: skip
    first.graph.node.extend(second)
    del first.graph.output[:]
    first.graph.output.append(info("y 2", None, TensorProto.UINT8))
    q = bytes_of(np.uint8)
    made = session(first)
    (y,) = session(block()).run(None, {"q": q})
    (b,) = session(block(shown=["b"])).run(["b"], {"q": y})
    np.testing.assert_array_equal(made.run(None, {"q": q})[0], summed(b, q, 0), strict=True)
    engines = [(record.op, record.engine) for record in made.nodes]
    assert len(engines) == len(first.graph.node)
    assert ("DequantizeLinear", "removed") in engines


def test_another_input_is_the_residual() -> None:
    q, p = bytes_of(np.uint8), bytes_of(np.uint8, (1, 16, 9, 10))
    model = block(beside="other", right=16, m=16)
    assert is_one_step(model)
    (b,) = session(block(beside="other", right=16, m=16, shown=["b"])).run(["b"], {"q": q, "p": p})
    (y,) = session(model).run(None, {"q": q, "p": p})
    np.testing.assert_array_equal(y, summed(b, p, 0), strict=True)


@pytest.mark.parametrize("extents", [(1, 8, 9, 10), (1, 8, None, 10), (1, None, None, None)])
def test_real_numbers_of_the_residual_that_others_read_too(extents: Sequence[Any]) -> None:
    """Where extents are not known before a run the sum is computed by itself, from bytes."""
    q, shown = bytes_of(np.uint8), ["again"]
    model = block(extents=extents, shown=shown)
    assert is_one_step(model) == (None not in extents)
    y, again = session(model).run(None, {"q": q})
    (b,) = session(block(extents=extents, shown=[*shown, "b"])).run(["b"], {"q": q})
    np.testing.assert_array_equal(y, summed(b, q, 0), strict=True)
    steps = np.rint((q.astype(F32) - F32(90)) * F32(SCALES["s"]) / F32(SCALES["u"])) + 120
    np.testing.assert_array_equal(again, np.clip(steps, 0, 255).astype(np.uint8), strict=True)
