"""Quantised transposed convolutions: the operator of ONNX Runtime, and nodes that quantise round ConvTranspose.

No engine here runs the operator, so that expected values come from sums in 64 bits, a tap at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from making import info, onnx_model, session
from onnx import TensorProto, helper
from test_integer_rewrites import steps_of

from polyconv.dialects import ort
from polyconv.errors import ArgumentError

node = helper.make_node
Array = np.ndarray
KINDS = {"u8": (np.uint8, TensorProto.UINT8), "i8": (np.int8, TensorProto.INT8)}


def sums(x: Array, w: Array, groups: int, stride: int, pad: int) -> Array:
    """Sums of a transposed convolution of integers, or of numbers in f64: every input spreads over the outputs."""
    n, c, *extents = x.shape
    per_group, k = w.shape[1], w.shape[2:]
    whole = [(extent - 1) * stride + taps for extent, taps in zip(extents, k, strict=True)]
    y = np.zeros((n, groups, per_group, *whole), np.result_type(x, w))
    by_group = x.reshape(n, groups, c // groups, *extents)
    of_group = w.reshape(groups, c // groups, per_group, *k)
    for tap in np.ndindex(*k):
        at = tuple(slice(t, t + (extent - 1) * stride + 1, stride) for t, extent in zip(tap, extents, strict=True))
        y[(slice(None),) * 3 + at] += np.einsum("ngc...,gcm->ngm...", by_group, of_group[(slice(None),) * 3 + tap])
    inner = tuple(slice(pad, extent - pad) for extent in whole)
    return y.reshape(n, groups * per_group, *whole)[(slice(None),) * 2 + inner]


def column(numbers: Any, rank: int) -> Array:
    """Numbers of output channels, in a shape that is broadcast to results."""
    return np.asarray(numbers).reshape(-1, *(1,) * rank)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("each", [False, True], ids=["one", "each"])
@pytest.mark.parametrize(("shape", "w_shape", "groups", "stride", "pad"), [
    ((2, 5, 7), (5, 3, 4), 1, 2, 1), ((1, 6, 4, 5), (6, 2, 3, 3), 3, 1, 1), ((1, 8, 3, 4), (8, 20, 2, 2), 1, 2, 0),
    ((1, 4, 5, 3), (4, 1, 4, 4), 4, 2, 1), ((1, 4, 2, 3, 2), (4, 3, 2, 2, 2), 2, 3, 0),
])  # fmt: skip
def test_the_operator(shape: tuple[int, ...], w_shape: tuple[int, ...], groups: int, stride: int, pad: int, each: bool,
                      kind: str) -> None:  # fmt: skip
    """Channels second and last; one scale and zero point of the weights, or one for each output channel."""
    dtype, _ = KINDS[kind]
    rng, limits, rank, m = np.random.default_rng(1), np.iinfo(dtype), len(shape) - 2, groups * w_shape[1]
    x = rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
    w = rng.integers(-128, 128, w_shape).astype(np.int8)
    sx, sy, zx, zy = np.float32(0.03), np.float32(0.7), dtype(limits.min + 99), dtype(limits.min + 120)
    sw = rng.uniform(0.002, 0.02, m if each else ()).astype(np.float32)
    zw, bias = rng.integers(-9, 9, sw.shape).astype(np.int8), rng.integers(-900, 900, m).astype(np.int32)
    by_group = np.broadcast_to(zw.reshape(-1), (m,)).reshape(groups, 1, -1)
    zeros = np.broadcast_to(by_group, (groups, shape[1] // groups, w_shape[1])).reshape(*w_shape[:2], *(1,) * rank)
    total = sums(x.astype(np.int64) - int(zx), w.astype(np.int64) - zeros, groups, stride, pad) + column(bias, rank)
    scale = column(np.broadcast_to((sx * sw.reshape(-1)) / sy, (m,)), rank)
    want = np.clip(np.rint(total.astype(np.float32) * scale) + int(zy), limits.min, limits.max).astype(dtype)
    words = {"group": groups, "strides": [stride] * rank, "pads": [pad] * 2 * rank}
    operands = sx, zx, w, sw, zw, sy, zy, bias
    first = ort.QLinearConvTranspose(domain=ort.CONTRIB, **words)(x, *operands)
    np.testing.assert_array_equal(first, want, strict=True)
    last = ort.QLinearConvTranspose(domain=ort.NHWC, **words)(np.moveaxis(x, 1, -1), *operands)
    np.testing.assert_array_equal(np.moveaxis(last, -1, 1), want, strict=True)
    assert np.unique(want).size > 20


def test_scales_of_other_channels_are_refused() -> None:
    x, w, one = np.zeros((1, 4, 5, 5), np.uint8), np.zeros((4, 3, 2, 2), np.int8), np.float32(1)
    with pytest.raises(ArgumentError, match=r"w_scale.*must have shape \(6,\)"):
        ort.QLinearConvTranspose(domain=ort.CONTRIB, group=2)(
            x, one, np.uint8(0), w, np.ones(4, np.float32), np.zeros(4, np.int8), one, np.uint8(0)
        )


def between_quantities(kind: str, bias: str, *, groups: int = 1, each: bool = True, relu: bool = False, axis: int = 1
                       ) -> tuple[onnx.ModelProto, dict[str, Any]]:  # fmt: skip
    """A transposed convolution between quantities, and the numbers that it is made of."""
    dtype, element = KINDS[kind]
    rng, limits, per_group = np.random.default_rng(7), np.iinfo(dtype), 6
    m = per_group * groups
    held: dict[str, Any] = {
        "sx": np.float32(0.021), "zx": dtype(limits.min + 100), "sy": np.float32(0.06),
        "zy": dtype(limits.min + (0 if relu else 120)),
        "w": rng.integers(-127, 128, (6, per_group, 4, 4)).astype(np.int8),
        "sw": rng.uniform(0.002, 0.02, per_group if each else ()).astype(np.float32),
    }  # fmt: skip
    held["zw"] = np.zeros(held["sw"].shape, np.int8)
    along = {"axis": axis} if each else {}
    nodes = [
        node("DequantizeLinear", ["q", "sx", "zx"], ["x"]),
        node("DequantizeLinear", ["w", "sw", "zw"], ["wf"], **along),
        node("ConvTranspose", ["x", "wf", "b"] if bias == "integers" else ["x", "wf"], ["c"], strides=[2, 2],
             pads=[1, 1, 1, 1], group=groups),
    ]  # fmt: skip
    last = "c"
    if bias == "integers":
        held["bi"] = rng.integers(-3000, 3000, m).astype(np.int32)
        held["sb"] = np.broadcast_to(held["sx"] * np.tile(held["sw"].reshape(-1), groups if each else m), (m,))
        nodes.insert(2, node("DequantizeLinear", ["bi", "sb"], ["b"], axis=0))
    elif bias == "added":
        held["b"] = rng.uniform(-1, 1, (1, m, 1, 1)).astype(np.float32)
        nodes.append(node("Add", [last, "b"], ["added"]))
        last = "added"
    if relu:
        nodes.append(node("Relu", [last], ["r"]))
        last = "r"
    nodes.append(node("QuantizeLinear", [last, "sy", "zy"], ["y"]))
    arrays = {name: np.asarray(number) for name, number in held.items()}
    return onnx_model(nodes, [info("q", [2, 6, 5, 4], element)], ["y"], arrays), held


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", ["none", "integers", "added"])
@pytest.mark.parametrize(("groups", "each"), [(1, True), (1, False), (3, True)])
@pytest.mark.parametrize("relu", [False, True])
def test_between_quantities_it_runs_on_integers(relu: bool, groups: int, each: bool, bias: str, kind: str) -> None:
    """A result is the real one to half a step, and as far as one factor and one bias, rounded once each, move it."""
    model, held = between_quantities(kind, bias, groups=groups, each=each, relu=relu)
    dtype, _ = KINDS[kind]
    limits = np.iinfo(dtype)
    q = np.random.default_rng(3).integers(limits.min, limits.max + 1, (2, 6, 5, 4)).astype(dtype)
    made = session(model)
    [found] = made.run(None, {"q": q})
    x = (q.astype(np.float64) - float(held["zx"])) * float(held["sx"])
    m = 6 * groups
    scales = np.broadcast_to(np.tile(held["sw"].reshape(-1), groups if each else m), (m,)).astype(np.float64)
    real = sums(x, held["w"] * held["sw"].astype(np.float64).reshape(1, -1, 1, 1), groups, 2, 1)
    moved = np.zeros(m)
    if bias == "integers":
        real = real + column(held["bi"] * held["sb"].astype(np.float64), 2)
    elif bias == "added":
        real, moved = real + held["b"], 0.5 * float(held["sx"]) * scales
    real = np.maximum(real, 0.0) if relu else real
    eps = float(np.finfo(np.float32).eps)
    place = np.clip(real / float(held["sy"]) + float(held["zy"]), limits.min, limits.max)
    slack = column(moved, 2) / float(held["sy"]) + 4 * eps * (np.abs(real) / float(held["sy"]) + 3000)
    assert (np.abs(found - place) <= 0.5 + slack).all()
    assert np.unique(found).size > 20
    [(engine, operators)] = steps_of(made)
    assert (engine, operators.split("+")[-1]) == ("polyconv", "QuantizeLinear")
    assert not any("Dequantize" in names for _, names in steps_of(made))
    [problem] = {str(record.problem) for record in made.nodes if record.op == "ConvTranspose"}
    assert problem.startswith(f"conv_transpose {'u8*i8' if kind == 'u8' else 'i8'} ")


def test_scales_of_input_channels_stay_real() -> None:
    """Weights with a scale for each input channel are no weights of integers: the sums are of real numbers."""
    model, _ = between_quantities("u8", "none", axis=0)
    made = session(model)
    q = np.random.default_rng(3).integers(0, 256, (2, 6, 5, 4)).astype(np.uint8)
    [found], [want] = made.run(None, {"q": q}), session(model, rewrites="exact").run(None, {"q": q})
    [problem] = {str(record.problem) for record in made.nodes if record.op == "ConvTranspose"}
    assert problem.startswith("conv_transpose f32 ")
    assert np.abs(found.astype(int) - want).max() <= 1
