"""What a random graph grows by: nodes that quantise, round convolutions and products and by themselves.

The one idea: scales and zero points are those that a calibration would find, so that few integers are at their ends.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from polyconv.conformance.graphs import Drawing, Unfit

__all__ = ["multiplied_bytes", "of_integers", "quantised", "rounded", "summed_bytes"]


def _is_planar(shape: tuple[int, ...]) -> bool:
    return len(shape) == 4


def _quantities(d: Drawing, x: str, kind: Any) -> tuple[str, str]:
    """Scale and zero point that hold a value."""
    e = d.values[x]
    low, high = min(0.0, float(e.low.min())), max(1e-3, float(e.high.max()))
    info = np.iinfo(kind)
    scale = np.float32((high - low) / (int(info.max) - int(info.min)))
    zero = int(np.clip(np.rint(int(info.min) - low / scale), info.min, info.max))
    return d.constant(scale), d.constant(zero, kind)


def _through_bytes(d: Drawing, x: str, kind: Any) -> tuple[str, tuple[str, str]]:
    quantities = _quantities(d, x, kind)
    return d.one("QuantizeLinear", x, *quantities), quantities


def quantised(d: Drawing) -> str:
    """QuantizeLinear and DequantizeLinear round a convolution, as exporters of quantised networks write them.

    Of weights of a transposed one the second axis is the outputs', and groups share its scales.
    """
    x = d.operand(_is_planar)
    kind = d.pick((np.uint8, np.int8))
    q, of_x = _through_bytes(d, x, kind)
    if d.chance(0.3):
        q = _pooled_bytes(d, q)
    c, m = d.shape(x)[1], int(d.pick((2, 4, 8, 16)))
    per_channel, is_transposed = d.chance(0.5), d.chance(0.3) and math.prod(d.shape(x)) < 4_000
    groups = 2 if is_transposed and c % 2 == 0 and d.chance(0.3) else 1
    w = d.rng.integers(-127, 128, (c, m, 3, 3) if is_transposed else (m, c, 3, 3)).astype(np.int8)
    axis = int(is_transposed) if per_channel else None
    scales = d.rng.uniform(0.5, 1.0, m if per_channel else ()).astype(np.float32) / np.float32(127 * (9 * c) ** 0.5)
    of_w = d.constant(scales), d.constant(np.zeros(scales.shape), np.int8)
    real_x = d.one("DequantizeLinear", q, *of_x)
    real_w = d.one("DequantizeLinear", d.constant(w, np.int8), *of_w, axis=axis)
    inputs = [real_x, real_w]
    if d.chance(0.6):
        units = np.tile(scales, groups) if per_channel else scales
        of_bias = d.constant(d.values[of_x[0]].low.astype(np.float32) * units)
        integers = d.constant(d.rng.integers(-2000, 2000, m * groups), np.int32)
        given = [of_bias] + [d.constant(np.zeros(units.shape), np.int32)] * d.chance(0.5)
        inputs.append(d.one("DequantizeLinear", integers, *given, axis=0 if per_channel else None)
                      if per_channel else d.one("DequantizeLinear", integers, *given))  # fmt: skip
    strides, pads = [int(d.pick((1, 2)))] * 2, [1, 1, 1, 1]
    if is_transposed:
        y = d.one("ConvTranspose", *inputs, pads=pads, strides=strides, group=groups)
    else:
        y = d.one("Conv", *inputs, pads=pads, strides=strides)
    y = d.one("Relu", y) if d.chance(0.5) else y
    if d.chance(0.3):
        return y
    q, of_y = _through_bytes(d, y, kind)
    return d.one("DequantizeLinear", q, *of_y)


def summed_bytes(d: Drawing) -> str:
    """A residual block of a quantised network: a convolution's result and what it read are added, and quantised.

    Now and then a second block adds what the first one read, as a long skip connection does.
    """
    x = d.operand(_is_planar)
    kind = d.pick((np.uint8, np.int8))
    (q, of_x), c = _through_bytes(d, x, kind), d.shape(x)[1]
    of_w = d.constant(np.float32(1 / (127 * (9 * c) ** 0.5)))
    read = d.one("DequantizeLinear", q, *of_x)
    made = read
    for _ in range(2 if d.chance(0.3) else 1):
        w = d.constant(d.rng.integers(-127, 128, (c, c, 3, 3)), np.int8)
        y = d.one("Conv", made, d.one("DequantizeLinear", w, of_w), pads=[1, 1, 1, 1])
        q, of_y = _through_bytes(d, y, kind)
        terms = [d.one("DequantizeLinear", q, *of_y), read]
        total = d.one("Add", *(terms if d.chance(0.5) else terms[::-1]))
        q, of_sum = _through_bytes(d, d.one("Relu", total) if d.chance(0.5) else total, kind)
        made = d.one("DequantizeLinear", q, *of_sum)
    return made


def rounded(d: Drawing) -> str:
    """QuantizeLinear and DequantizeLinear of any value, now and then with the quantities of another."""
    x = d.operand(lambda shape: True)
    kind = d.pick((np.uint8, np.int8))
    before = [n for n in d.nodes if n.op_type == "QuantizeLinear" and d.values[n.input[1]].shape == ()]
    if before and d.chance(0.4):
        other = before[-1]
        q, quantities = d.one("QuantizeLinear", x, *other.input[1:]), tuple(other.input[1:])
    else:
        q, quantities = _through_bytes(d, x, kind)
    return d.one("DequantizeLinear", q, *quantities)


def multiplied_bytes(d: Drawing) -> str:
    """MatMul, or Gemm, with weights in bytes, of a value that was quantised; quantised again or not."""
    x = d.operand(lambda shape: 2 <= len(shape) <= 4)
    q, of_x = _through_bytes(d, x, np.uint8)
    real_x, k, m = d.one("DequantizeLinear", q, *of_x), d.shape(x)[-1], int(d.pick((1, 3, 8, 20)))
    per_channel = d.chance(0.5)
    scales = d.rng.uniform(0.5, 1.0, m if per_channel else ()).astype(np.float32) / np.float32(127 * k**0.5)
    of_w = d.constant(scales), d.constant(np.zeros(scales.shape), np.int8)
    w = d.constant(d.rng.integers(-127, 128, (k, m)), np.int8)
    real_w = d.one("DequantizeLinear", w, *of_w, axis=1 if per_channel else None)
    if len(d.shape(x)) == 2 and d.chance(0.5):
        y = d.one("Gemm", real_x, real_w, d.constant(d.rng.standard_normal(m)))
    else:
        y = d.one("MatMul", real_x, real_w)
    if d.chance(0.4):
        return y
    q, of_y = _through_bytes(d, y, np.uint8)
    return d.one("DequantizeLinear", q, *of_y)


def _pooled_bytes(d: Drawing, q: str) -> str:
    if min(d.shape(q)[2:]) < 2:
        raise Unfit
    return d.one("MaxPool", q, kernel_shape=[2, 2], strides=[2, 2])


def of_integers(d: Drawing) -> str:
    """QLinearConv between QuantizeLinear and DequantizeLinear."""
    x = d.operand(_is_planar)
    kind = d.pick((np.uint8, np.int8))
    q, of_x = _through_bytes(d, x, kind)
    c, m = d.shape(x)[1], int(d.pick((2, 8, 16)))
    w = d.constant(d.rng.integers(-127, 128, (m, c, 3, 3)), np.int8)
    of_w = d.constant(np.float32(0.01)), d.constant(0, np.int8)
    of_y = d.constant(np.float32(0.05 * c**0.5)), d.constant(int(d.rng.integers(0, 20)), kind)
    bias = [d.constant(d.rng.integers(-500, 500, m), np.int32)] if d.chance(0.5) else []
    y = d.one("QLinearConv", q, *of_x, w, *of_w, *of_y, *bias, pads=[1, 1, 1, 1])
    return d.one("DequantizeLinear", y, *of_y)
