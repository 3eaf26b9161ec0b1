"""Every operator once more, as slow loops over Python numbers written from the published formulas alone.

Floats are Python's, integers are exact; nothing is shared with the oracle but the problem itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from polyconv.conformance.operands import Operands
from polyconv.problem.problem import Problem


def brute(p: Problem, made: Operands) -> Any:
    """Result of a problem: float64 values, or exact (unbounded) integers as objects before any conversion."""
    flip = p.layout == "NHWC"
    x = np.moveaxis(made.x, -1, 1) if flip else made.x
    residual = (
        None if made.residual is None else (np.moveaxis(made.residual, -1, 1) if flip else made.residual)
    )
    out = tuple(int(e or 0) for e in (p.i if p.op == "causal_conv" else p.out))
    y = np.zeros((x.shape[0], p.m, *out), dtype=object)
    terms = {
        "conv": conv_terms,
        "conv_transpose": transpose_terms,
        "deform_conv": deform_terms,
        "causal_conv": causal_terms,
    }
    for place in np.ndindex(*y.shape):
        b, m, *o = place
        total = sum(terms[p.op](p, made, x, b, m, tuple(o)), 0)
        if made.bias is not None:
            total += number(made.bias[m])
        if residual is not None and not (p.quantisation is not None and p.quantisation.adds):
            total += number(residual[place])
        y[place] = total
    return np.moveaxis(y, 1, -1) if flip else y


def number(value: Any) -> Any:
    """A NumPy scalar as a Python number."""
    return int(value) if np.dtype(value.dtype).kind in "iu" else float(value)


def zero_points(p: Problem, made: Operands, m: int) -> tuple[int, int]:
    """Zero points of input and weights for output channel m."""
    zx = made.quantities.get("zx")
    zw = made.quantities.get("zw")
    pick = None if zw is None else int(zw[m] if zw.ndim else zw)
    return (0 if zx is None else int(zx)), pick or 0


def conv_terms(p: Problem, made: Operands, x: Any, b: int, m: int, o: tuple[int, ...]) -> Iterator[Any]:
    """X[b, c, o*s - pb + t*d] * W[m, c, t] for every channel of the group and every tap inside the input."""
    per_group = p.c // p.groups
    first = (m // (p.m // p.groups)) * per_group
    zx, zw = zero_points(p, made, m)
    for c in range(per_group):
        for t in itertools.product(*map(range, p.k)):
            at = tuple(
                oa * s - pad[0] + ta * d for oa, s, pad, ta, d in zip(o, p.s, p.pads, t, p.d, strict=True)
            )
            if all(0 <= a < e for a, e in zip(at, x.shape[2:], strict=True)):
                yield (number(x[(b, first + c, *at)]) - zx) * (number(made.w[(m, c, *t)]) - zw)


def transpose_terms(p: Problem, made: Operands, x: Any, b: int, m: int, o: tuple[int, ...]) -> Iterator[Any]:
    """X[b, c, i] * W[c, m, t] for every input whose scatter position i*s - pb + t*d is this output."""
    per_group, outs = p.c // p.groups, p.m // p.groups
    group = m // outs
    zx, zw = zero_points(p, made, m)
    for c in range(group * per_group, (group + 1) * per_group):
        for t in itertools.product(*map(range, p.k)):
            for i in itertools.product(*map(range, x.shape[2:])):
                if all(
                    ia * s - pad[0] + ta * d == oa
                    for ia, s, pad, ta, d, oa in zip(i, p.s, p.pads, t, p.d, o, strict=True)
                ):
                    yield (number(x[(b, c, *i)]) - zx) * (number(made.w[(c, m % outs, *t)]) - zw)


def causal_terms(p: Problem, made: Operands, x: Any, b: int, m: int, o: tuple[int, ...]) -> Iterator[Any]:
    """weight[c, 0, j] * E[n, c, t + j], E being the state followed by the input."""
    for j in range(p.k[0]):
        at = o[0] + j - (p.k[0] - 1)
        if at >= 0:
            yield number(x[b, m, at]) * number(made.w[m, 0, j])
        elif made.past is not None:
            yield number(made.past[b, m, at + p.k[0] - 1]) * number(made.w[m, 0, j])


def deform_terms(p: Problem, made: Operands, x: Any, b: int, m: int, o: tuple[int, ...]) -> Iterator[Any]:
    """W * mask * bilinear sample at (o*s - pb + t*d + offset), corners outside the image counting 0."""
    per_group = p.c // p.groups
    first = (m // (p.m // p.groups)) * per_group
    for c in range(per_group):
        og = (first + c) // (p.c // p.offset_groups)
        for ky, kx in itertools.product(range(p.k[0]), range(p.k[1])):
            t = (og * p.k[0] + ky) * p.k[1] + kx
            dy, dx = (float(made.offset[b, 2 * t + a, o[0], o[1]]) for a in (0, 1))
            py = o[0] * p.s[0] - p.pads[0][0] + ky * p.d[0] + dy
            px = o[1] * p.s[1] - p.pads[1][0] + kx * p.d[1] + dx
            sample = 0.0
            for cy in (math.floor(py), math.floor(py) + 1):
                for cx in (math.floor(px), math.floor(px) + 1):
                    if 0 <= cy < x.shape[2] and 0 <= cx < x.shape[3]:
                        sample += (1 - abs(py - cy)) * (1 - abs(px - cx)) * float(x[b, first + c, cy, cx])
            modulation = 1.0 if made.mask is None else float(made.mask[b, t, o[0], o[1]])
            yield float(made.w[m, c, ky, kx]) * modulation * sample


def wrapped(value: int, bits: int, signed: bool) -> int:
    """An integer modulo its type."""
    value %= 1 << bits
    return value - (1 << bits) if signed and value >= 1 << (bits - 1) else value


ACTIVATIONS = {
    "Relu": lambda v: max(v, 0.0),
    "LeakyRelu": lambda v, a: v if v >= 0 else a * v,
    "Clip": lambda v, lo, hi: min(max(v, lo), hi),
    "HardSigmoid": lambda v, a, b: min(max(a * v + b, 0.0), 1.0),
    "HardSwish": lambda v: v * min(max(v / 6 + 0.5, 0.0), 1.0),
    "ReluAffine": lambda v, a, b: a * max(v, 0.0) + b,
    "HardSwishAffine": lambda v, a, b: a * (v * min(max(v / 6 + 0.5, 0.0), 1.0)) + b,
    "Sigmoid": lambda v: 1 / (1 + math.exp(-v)),
    "Tanh": math.tanh,
    "Silu": lambda v: v / (1 + math.exp(-v)),
    "Mish": lambda v: v * math.tanh(math.log1p(math.exp(v))),
    "Gelu": lambda v: v * 0.5 * (1 + math.erf(v / math.sqrt(2))),
    "Elu": lambda v, a: v if v > 0 else a * (math.exp(v) - 1),
}
"""The formulas, for moderate arguments."""
