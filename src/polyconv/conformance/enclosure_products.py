"""The enclosures of sums of products: convolutions, matrix products, and convolutions of quantised integers.

A product of two enclosures is the product of their middles, with what the radii add and ``k eps`` of the sum of
magnitudes.  The one idea: sums come from the oracle, in float64.  It must not know other operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from polyconv.conformance.enclosures import Array, Call, Enclosure, added, exact, rounded, summed
from polyconv.conformance.judge import window
from polyconv.models.graph import Node
from polyconv.models.operators import Epilogue, make
from polyconv.models.options import Options
from polyconv.problem.oracle import oracle
from polyconv.problem.problem import Problem

__all__ = ["convolution", "dequantise", "integer_convolution", "product", "quantise"]


def _problem(call: Call, *operands: Enclosure | None) -> Problem:
    message = call.node
    attributes = {each.name: call.attribute(each.name) for each in message.attribute}
    node = Node(message.name, message.op_type, "", call.opset, tuple(message.input), tuple(message.output), attributes)
    shapes = [None if e is None else e.shape for e in operands]
    dtypes = [None if e is None else e.dtype for e in operands]
    found = make(node, Options(), Epilogue()).problem(*shapes, dtypes=dtypes)
    assert found is not None
    return found


def _bilinear(times: Callable[..., Array], x: Enclosure, w: Enclosure) -> tuple[Array, Array, Array]:
    """Middle, spread and sum of magnitudes of a product of two enclosures."""
    size = times(x.largest, w.largest)
    spread = np.zeros_like(size)
    if x.low is not x.high:
        spread = spread + times(x.radius, w.largest)
    if w.low is not w.high:
        spread = spread + times(x.largest, w.radius)
    return times(x.middle, w.middle), spread, size


def convolution(call: Call) -> list[Enclosure]:
    x, w, bias = call.at(0), call.at(1), call.optional(2)
    wide = replace(_problem(call, x, w, bias), x="f64", w="f64", y="f64")
    at, spread, size = _bilinear(lambda a, b: oracle(wide, a, b, raw=True), x, w)
    if bias is not None:
        column = (-1,) + (1,) * wide.rank
        at, spread, size = (
            total + part.reshape(column)
            for total, part in ((at, bias.middle), (spread, bias.radius), (size, bias.largest))
        )
    terms = (wide.c // wide.groups) * math.prod(wide.k)
    return [summed(at - spread, at + spread, x.dtype, terms, size + window(wide, x.largest, w.largest))]


def product(call: Call) -> list[Enclosure]:
    """MatMul and Gemm."""
    a, b, c = call.at(0), call.at(1), call.optional(2)
    a, b = (_turned(e) if call.attribute(name, 0) else e for e, name in ((a, "transA"), (b, "transB")))
    at, spread, size = _bilinear(np.matmul, a, b)
    terms = a.shape[-1]
    largest = float(np.max(a.largest, initial=0.0)) * b.largest.sum(axis=-2, keepdims=b.low.ndim > 2)
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    at, spread, size = alpha * at, abs(alpha) * spread, abs(alpha) * (size + largest)
    found = summed(at - spread, at + spread, a.dtype, terms, size)
    if c is None:
        return [found]
    ends = c.ends(lambda e: e * beta)
    return [added(found, rounded(np.minimum(*ends), np.maximum(*ends), c.dtype, beta != 1), terms)]


def _turned(e: Enclosure) -> Enclosure:
    return Enclosure(e.low.T, e.low.T if e.low is e.high else e.high.T, e.dtype)


def _per_axis(e: Enclosure, call: Call, rank: int) -> Array:
    if e.low.ndim == 0 or e.low.size == 1:
        return e.low.reshape(())
    shape = [1] * rank
    shape[call.attribute("axis", 1)] = -1
    return e.low.reshape(shape)


def _quantised(reals: Enclosure, zero: Enclosure) -> Enclosure:
    """Ends rounded to integers and held within their type."""
    info, shift = np.iinfo(zero.dtype), zero.low.reshape(-1)[0]
    ends = reals.ends(lambda e: np.clip(np.rint(e) + shift, info.min, info.max).astype(np.int64))
    return Enclosure(*ends, zero.dtype)


def quantise(call: Call) -> list[Enclosure]:
    x, scale, zero = call.at(0), call.at(1), call.at(2)
    divisor = _per_axis(scale, call, len(x.shape))
    quotient = rounded(x.low / divisor, x.high / divisor, scale.dtype, 4)
    return [_quantised(quotient, zero)]


def dequantise(call: Call) -> list[Enclosure]:
    x, scale, zero = call.at(0), call.at(1), call.optional(2)
    factor = _per_axis(scale, call, len(x.shape))
    shift = 0 if zero is None else _per_axis(zero, call, len(x.shape))
    return [rounded((x.low - shift) * factor, (x.high - shift) * factor, scale.dtype, 1)]


def integer_convolution(call: Call) -> list[Enclosure]:
    """QLinearConv: exact sums, one factor that an engine may round three times, and quantising."""
    x, sx, zx, w, sw, zw, sy, zy = (call.at(n) for n in range(8))
    bias = call.optional(8)
    wide = replace(_problem(call, *call.given), x="f64", w="f64", y="f64", quantisation=None)
    column = (-1,) + (1,) * wide.rank
    shift = zw.low.reshape(-1, *(1,) * (len(w.shape) - 1)).astype(np.float64)
    weights = exact((w.low - shift).astype(np.float64))
    inputs = Enclosure(*x.ends(lambda e: (e - zx.low.reshape(-1)[0]).astype(np.float64)), sx.dtype)
    at, spread, _ = _bilinear(lambda a, b: oracle(wide, a, b, raw=True), inputs, weights)
    if bias is not None:
        at = at + bias.low.reshape(column)
    factor = sx.low.reshape(-1)[0] * sw.low.reshape(-1) / sy.low.reshape(-1)[0]
    factor = factor.reshape(column)
    scaled = rounded((at - spread) * factor, (at + spread) * factor, sx.dtype, 4)
    return [_quantised(scaled, zy)]
