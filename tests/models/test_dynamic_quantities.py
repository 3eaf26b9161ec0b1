"""Graphs that are quantised dynamically, bit for bit as ONNX defines their nodes one by one."""

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

from polyconv import dialects

node = helper.make_node
U8 = np.uint8


def quantised(x: np.ndarray) -> tuple[np.ndarray, np.float32, np.uint8]:
    """DynamicQuantizeLinear as its definition has it; of nothing but zeros the scale is 1."""
    low, high = np.float32(min(0, x.min())), np.float32(max(0, x.max()))
    scale = np.float32(np.float32(high - low) / np.float32(255))
    scale = np.float32(1) if scale == 0 else scale
    zero = np.rint(np.clip(np.float32(0) - np.float32(low / scale), 0, 255)).astype(U8)
    y = np.clip(np.rint(x / scale) + np.float32(zero), 0, 255).astype(U8)
    return y, scale, zero


def convolution(w: np.ndarray, zero_of_w: np.ndarray | None, shape: tuple[Any, ...], **attributes: Any
                ) -> onnx.ModelProto:  # fmt: skip
    inputs = ["q", "w", "z", *(["zw"] if zero_of_w is not None else [])]
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "quantise"),
        node("ConvInteger", inputs, ["y"], "conv", **attributes),
    ]
    constants = {"w": w, **({} if zero_of_w is None else {"zw": zero_of_w})}
    outputs = [info("y", None, TensorProto.INT32), info("s"), info("z", None, TensorProto.UINT8)]
    return onnx_model(nodes, [info("x", shape)], outputs, constants)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, dict[str, Any]]:
    rank, group = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3]))
    inputs, outputs = group * draw(st.integers(1, 5)), group * draw(st.integers(1, 9))
    kernel = [draw(st.integers(1, 4)) for _ in range(rank)]
    attributes = {
        "group": group, "pads": [draw(st.integers(0, 3)) for _ in range(2 * rank)],
        "strides": [draw(st.integers(1, 2)) for _ in range(rank)],
        "dilations": [draw(st.integers(1, 2)) for _ in range(rank)],
    }  # fmt: skip
    extents = [draw(st.integers(7, 12)) for _ in range(rank)]
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    kind = draw(st.sampled_from([np.uint8, np.int8]))
    limits = np.iinfo(kind)
    w = rng.integers(limits.min, limits.max, (outputs, inputs // group, *kernel), endpoint=True).astype(kind)
    zero = draw(st.sampled_from([None, (), (1,), (outputs,)]))
    of_w = None if zero is None else rng.integers(limits.min, limits.max, zero, endpoint=True).astype(kind)
    x = rng.normal(draw(st.sampled_from([0, 0, 3, -3])), 1, (draw(st.integers(1, 2)), inputs, *extents))
    return (x * draw(st.sampled_from([1, 1, 0]))).astype(np.float32), w, of_w, attributes


@settings(max_examples=60, deadline=None)
@given(convolutions())
def test_convolutions(case: tuple[np.ndarray, np.ndarray, np.ndarray | None, dict[str, Any]]) -> None:
    x, w, of_w, attributes = case
    made = session(convolution(w, of_w, x.shape, **attributes))
    y, scale, zero = made.run(None, {"x": x})
    q, s, z = quantised(x)
    assert (scale, zero) == (s, z)
    right = dialects.onnx.ConvInteger(**attributes)(q, w, z, *(() if of_w is None else (of_w,)))
    np.testing.assert_array_equal(y, right, strict=True)
    assert set(engines(made).values()) <= {"polyconv", "constant"}
    assert not any(record.once for record in made.nodes)


def test_weights_are_packed_once() -> None:
    """Other zero points come with other inputs; a session must not prepare weights for each."""
    made = session(convolution(random(8, 4, 3, 3).astype(np.int8), None, (1, 4, 9, 9), pads=[1, 1, 1, 1]))
    for seed in range(4):
        made.run(None, {"x": random(1, 4, 9, 9, seed=seed) + seed - 2})
    assert [record.once for record in made.nodes] == [False] * len(made.nodes)


@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (2, 5, 7), (2, 3, 5, 7), ("n", 7), ("a", "b", 7), ("a", 3, "b", 7)])
@pytest.mark.parametrize("of_w", [None, (), (9,)])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_products(shape: tuple[Any, ...], of_w: tuple[int, ...] | None, kind: Any) -> None:
    rng = np.random.default_rng(0)
    limits = np.iinfo(kind)
    w = rng.integers(limits.min, limits.max, (7, 9), endpoint=True).astype(kind)
    zero = None if of_w is None else rng.integers(limits.min, limits.max, of_w, endpoint=True).astype(kind)
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("MatMulInteger", ["q", "w", "z", *([] if zero is None else ["zw"])], ["y"], "product"),
    ]
    constants = {"w": w, **({} if zero is None else {"zw": zero})}
    made = session(onnx_model(nodes, [info("x", shape)], [info("y", None, TensorProto.INT32)], constants))
    x = random(*(4 if isinstance(extent, str) else extent for extent in shape), seed=3)
    q, _, z = quantised(x)
    right = (q.astype(np.int64) - int(z)) @ (w.astype(np.int64) - (0 if zero is None else zero.astype(np.int64)))
    np.testing.assert_array_equal(made.run(None, {"x": x})[0], right.astype(np.int32), strict=True)
    assert engines(made)["product"] == "polyconv"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 3, 40, 41), (0, 3), (1, 3, 1, 1)])
def test_the_quantity_that_spans_a_tensor(shape: tuple[int, ...], level: str | None) -> None:
    model = onnx_model([node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "quantise")], [info("x", shape)],
                       [info("q", None, TensorProto.UINT8), info("s"), info("z", None, TensorProto.UINT8)])  # fmt: skip
    with at_level(level):
        made = session(model)
    for offset, factor in ((0, 1), (5, 1), (-5, 1), (0, 0), (0, 1e-30), (0, 1e30)):
        x = ((random(*shape) + np.float32(offset)) * np.float32(factor)).astype(np.float32)
        right = quantised(x) if x.size else (np.zeros(shape, U8), np.float32(1), U8(0))
        with at_level(level):
            results = made.run(None, {"x": x})
        for found, expected in zip(results, right, strict=True):
            np.testing.assert_array_equal(found, np.asarray(expected), strict=True)
    assert engines(made)["quantise"] == "polyconv"


def test_single_numbers_that_come_with_a_run() -> None:
    """QuantizeLinear and DequantizeLinear by a scale and a zero point that are inputs."""
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], "there"),
        node("DequantizeLinear", ["q", "s", "z"], ["y"], "back"),
    ]
    inputs = [info("x", [2, 3, 17]), info("s", []), info("z", [], TensorProto.INT8)]
    made = session(onnx_model(nodes, inputs, [info("q", None, TensorProto.INT8), info("y")]))
    x = random(2, 3, 17) * 10
    for s, z in ((0.1, -3), (0.02, 100), (3.0, 0)):
        scale, zero = np.float32(s), np.int8(z)
        q, y = made.run(None, {"x": x, "s": np.asarray(scale), "z": np.asarray(zero)})
        right = np.clip(np.rint(x / scale) + np.float32(zero), -128, 127).astype(np.int8)
        np.testing.assert_array_equal(q, right, strict=True)
        np.testing.assert_array_equal(y, (right.astype(np.int32) - int(zero)).astype(np.float32) * scale, strict=True)
    assert set(engines(made).values()) == {"polyconv"}
