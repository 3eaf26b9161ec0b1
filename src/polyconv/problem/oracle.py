"""The definition of right: every operator in float64 or exact 64-bit integers, a page long.

Straight from the formulas of the specifications: for each kernel tap, the inputs it meets times its
weights, summed.  Padding is never multiplied ("padding contributes nothing"), so Inf and NaN spread
exactly as far as real products carry them.  Independent of all kernels; itself checked against
other engines in the tests.  Integers are summed modulo 2^64.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyconv.dtypes import DTYPES, Dtype
from polyconv.problem.problem import Problem
from polyconv.problem.quantisation import Quantisation

__all__ = ["convert", "magnitude", "oracle", "tolerance"]

Array = NDArray[Any]


def oracle(
    p: Problem,
    x: ArrayLike,
    w: ArrayLike,
    bias: ArrayLike | None = None,
    residual: ArrayLike | None = None,
    *,
    offset: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    past: ArrayLike | None = None,
    raw: bool = False,
    quantities: Mapping[str, ArrayLike | None] | None = None,
) -> Array:
    """Right answer of a problem.

    Parameters
    ----------
    p : Problem
        With all extents known.
    x, w, bias, residual, offset, mask, past : array
        Operands in the layout and types of the problem.
    raw : bool
        Return float64 (or the 64-bit accumulator, or int32 where a scale follows) before the
        conversion to the result type.
    quantities : mapping
        Run-time ``zx zw zy sx sw sy zr sr zs ss``; a number in ``p.quantisation`` needs none.

    Returns
    -------
    ndarray
        In the shape and type of the problem's result.
    """
    is_float = p.y_dtype.is_float and p.x_dtype.is_float
    wide = np.dtype(np.float64 if is_float else np.int64)
    x, w = _first(np.asarray(x), p).astype(wide), np.asarray(w).astype(wide)
    q, quantities = p.quantisation or Quantisation(), quantities or {}
    with np.errstate(all="ignore"):
        if q.zx is not None:
            x = x - np.asarray(_value(q.zx, quantities, "zx")).astype(wide)
        if q.zw is not None:
            w = w - _per_output(np.asarray(_value(q.zw, quantities, "zw")).astype(wide), w, p)
        acc = _accumulate(p, x, w, offset, mask, past)
        column = (-1,) + (1,) * p.rank
        if bias is not None:
            acc = acc + np.asarray(bias).astype(wide).reshape(column)
        if residual is not None and not q.adds:
            acc = acc + _first(np.asarray(residual), p).astype(wide)
        if q.rescales:
            # Multiplier and product in float32 (the operator's definition), ties to even, then zy.
            scale = np.float32(_value(q.sx, quantities, "sx")) * np.asarray(_value(q.sw, quantities, "sw"), np.float32)
            scale = np.broadcast_to((scale / np.float32(_value(q.sy, quantities, "sy"))).reshape(-1), (p.m,))
            scaled = acc.astype(np.int32).astype(np.float32) * scale.reshape(column)
            zy = int(np.asarray(_value(q.zy, quantities, "zy") or 0).reshape(-1)[0])
            lo, hi = p.y_dtype.limits
            rounded = np.rint(np.clip(scaled.astype(np.float64), -(2.0**40), 2.0**40))
            y = np.clip(rounded + zy, lo, hi)
            if q.adds:
                assert residual is not None
                y = _summed(p, q, quantities, y - zy, _first(np.asarray(residual), p))
            return _back(y.astype(p.y_dtype.numpy), p)
        if p.activation is not None:
            acc = p.activation(acc.view(np.uint64) if p.y == "u64" else acc)
    return _back(acc if raw else convert(acc, p.y_dtype, p.overflow), p)


def _summed(p: Problem, q: Quantisation, quantities: Mapping[str, Any], y: Array, residual: Array) -> Array:
    """``saturate(round(fl(fl(y sy) + fl((r - zr) sr)) / ss) + zs)``, fl and / rounding to f32; NaN is the least."""
    def given(name: str) -> Any:
        return np.asarray(_value(getattr(q, name) or 0, quantities, name)).reshape(-1)[0]

    sy, sr, ss = (np.float32(given(name)) for name in ("sy", "sr", "ss"))
    beside = (residual.astype(np.int64) - int(given("zr"))).astype(np.float32) * sr
    steps = ((y.astype(np.float32) * sy + beside) / ss).astype(np.float64)
    steps = np.clip(np.nan_to_num(steps, nan=-np.inf), -(2.0**40), 2.0**40)
    whole: Array = np.clip(np.rint(steps) + int(given("zs")), *p.y_dtype.limits)
    return whole


def magnitude(p: Problem, x: ArrayLike, w: ArrayLike, bias: ArrayLike | None = None,
              residual: ArrayLike | None = None, **more: Any) -> Array:  # fmt: skip
    """Sum of ``|x||w|`` (+ ``|bias|`` + ``|residual|``) of every output: what error bounds scale with."""
    from dataclasses import replace

    def size(a: Any) -> Any:
        return None if a is None else np.abs(np.asarray(a).astype(np.float64))

    p = replace(p, activation=None, x="f64", w="f64", y="f64", quantisation=None)
    more |= {name: size(more.get(name)) for name in ("mask", "past")}
    total = oracle(p, size(x), size(w), size(bias), size(residual), raw=True, **more)
    return total + _position_slack(p, size(x), size(w), more["mask"]) if p.op == "deform_conv" else total


def _position_slack(p: Problem, x: Array, w: Array, mask: Any) -> Array:
    """What rounding the sample positions adds to a deformable magnitude.

    A position inside the image errs by ``eps/2`` of the extent; the interpolation's slope is at most
    ``2 max|x|`` along each of the two axes.  Divided by the number of products, by which ``tolerance``
    multiplies.
    """
    finite = x[np.isfinite(x)]
    steepest = 2.0 * (max(int(e or 0) for e in p.i) + 2) * finite.max(initial=0.0)
    heaviest = 1.0 if mask is None else float(np.max(mask, initial=0.0))
    total = w.reshape(p.m, -1).sum(axis=1) / max(1, (p.c // p.groups) * int(np.prod(p.k)))
    slack = steepest * heaviest * total.reshape(-1, *(1,) * p.rank)
    return np.moveaxis(slack, 0, -1) if p.layout == "NHWC" else slack


def tolerance(p: Problem, size: Array, exact: Array) -> Array:
    """Own bound of an output, ``k eps sum|x||w|``, plus one rounding of the result.

    Parameters
    ----------
    p : Problem
    size : array
        ``magnitude`` of the outputs.
    exact : array
        ``oracle(..., raw=True)``.

    Notes
    -----
    A sum of k products in any fixed order errs by at most ``(k + 2) eps/2 sum|x||w|`` to first order
    (Higham, Accuracy and Stability, section 3.1); an activation scales that by its slope and adds 4 ulp.
    """
    if not p.y_dtype.is_float:
        return np.zeros(exact.shape)
    accumulator = DTYPES[p.y_dtype.accumulator] if p.x != "f64" else DTYPES["f64"]
    k = (p.c // p.groups) * int(np.prod(p.k)) + 4
    slope = 1.0
    if p.activation is not None:
        from polyconv.problem.epilogue import ACTIVATIONS

        row = ACTIVATIONS[p.activation.name]
        scaling = (abs(v) for n, v in zip(row.parameters, p.activation.parameters, strict=True) if n == "alpha")
        slope = row.lipschitz * max(1.0, *scaling, 1.0)
    # half an ulp of the result type, half its smallest subnormal, and subnormals flushed in "fast"
    info = np.finfo(np.float32) if accumulator.name == "f32" else np.finfo(np.float64)
    tiny = 2.0 * float(info.tiny) * k
    if p.y == "f16":
        tiny += 2.0**-24
    rounding = (0.5 * p.y_dtype.eps if p.y_dtype is not accumulator else 0.0) * np.abs(exact)
    activation = 0.0 if p.activation is None else 4 * accumulator.eps * np.abs(exact)
    return k * accumulator.eps * slope * size + rounding * (1 + 1e-6) + activation + tiny


def convert(acc: Array, dtype: Dtype, overflow: str) -> Array:
    """Accumulator to result: one rounding to nearest even, or integer wrap or saturation."""
    if dtype.is_float:
        if dtype.name in ("f16", "bf16"):
            acc = acc.astype(np.float32)  # kernels keep f32 sums; the oracle's f64 sum is rounded there too
        return acc.astype(dtype.numpy)
    if overflow == "saturate":
        if dtype.name == "u64":
            return acc.view(np.uint64)
        lo, hi = dtype.limits
        acc = np.clip(acc, max(lo, -(2**63)), min(hi, 2**63 - 1))
    return acc.astype(dtype.numpy)


def _first(a: Array, p: Problem) -> Array:
    return np.moveaxis(a, -1, 1) if p.layout == "NHWC" else a


def _back(a: Array, p: Problem) -> Array:
    return np.ascontiguousarray(np.moveaxis(a, 1, -1)) if p.layout == "NHWC" else a


def _value(given: Any, quantities: Mapping[str, Any], name: str) -> Any:
    return quantities[name] if isinstance(given, str) else given


def _per_output(z: Array, w: Array, p: Problem) -> Array:
    if z.size == 1:
        return z.reshape(())
    if p.op == "conv_transpose":  # w is (c, m / groups, ...): input channel i belongs to group i // (c / groups)
        group = np.arange(p.c) // max(1, p.c // p.groups)
        return z.reshape(p.groups, -1)[group].reshape(w.shape[:2] + (1,) * (w.ndim - 2))
    return z.reshape((-1,) + (1,) * (w.ndim - 1))


def _accumulate(p: Problem, x: Array, w: Array, offset: Any, mask: Any, past: Any) -> Array:
    """Sum over channels and taps, channels first; each tap adds where it meets real input."""
    n, out = x.shape[0], tuple(int(e or 0) for e in p.out)
    if p.op == "causal_conv":
        history = np.zeros((*x.shape[:2], p.k[0] - 1)) if past is None else np.asarray(past).astype(x.dtype)
        x = np.concatenate([history, x], axis=2)
        out = (x.shape[2] - p.k[0] + 1,)
    g = p.groups
    acc = np.zeros((n, g, p.m // g, *out), x.dtype)
    xg = x.reshape(n, g, p.c // g, *x.shape[2:])
    if p.op == "conv_transpose":
        wg = np.swapaxes(w.reshape(g, p.c // g, p.m // g, *p.k), 1, 2)
    else:
        wg = w.reshape(g, p.m // g, p.c // g, *p.k)
    for tap in itertools.product(*(range(k) for k in p.k)):
        weights = wg[(slice(None),) * 3 + tap]
        if p.op == "deform_conv":
            acc += np.einsum("ngc...,gmc->ngm...", _sampled(p, xg, tap, offset, mask), weights)
            continue
        place, source = [], []
        for a, t in enumerate(tap):
            s, d = p.s[a], p.d[a]
            begin = 0 if p.op == "causal_conv" else p.pads[a][0]
            at = t * d - begin
            extent = x.shape[2 + a]
            if p.op == "conv_transpose":  # output i*s + at for every input i
                i0 = max(0, -(at // s)) if at < 0 else 0
                i1 = min(extent, (out[a] - 1 - at) // s + 1)
                source.append(slice(i0, max(i0, i1)))
                place.append(
                    slice(i0 * s + at, i0 * s + at + (max(i1, i0) - i0 - 1) * s + 1 if i1 > i0 else i0 * s + at, s)
                )
            else:  # input o*s + at for every output o
                o0 = max(0, -(at // s)) if at < 0 else 0
                o1 = min(out[a], (extent - 1 - at) // s + 1)
                place.append(slice(o0, max(o0, o1)))
                source.append(slice(o0 * s + at, o0 * s + at + (o1 - o0 - 1) * s + 1 if o1 > o0 else o0 * s + at, s))
        head = (slice(None),) * 3
        part = xg[head + tuple(source)]
        if part.size and weights.size:
            acc[head + tuple(place)] += np.einsum("ngc...,gmc->ngm...", part, weights)
    return acc.reshape(n, p.m, *out)


def _sampled(p: Problem, xg: Array, tap: tuple[int, ...], offset: Any, mask: Any) -> Array:
    """Bilinear samples of a deformable convolution for one tap (ONNX DeformConv: corners outside count 0)."""
    (h, wd), (oh, ow) = xg.shape[3:], (int(p.out[0] or 0), int(p.out[1] or 0))
    n, og, c = xg.shape[0], p.offset_groups, p.c
    t = tap[0] * p.k[1] + tap[1]
    off = np.asarray(offset).astype(np.float64).reshape(n, og, p.k[0] * p.k[1], 2, oh, ow)[:, :, t]
    yy = (np.arange(oh) * p.s[0] - p.pads[0][0] + tap[0] * p.d[0])[:, None] + off[:, :, 0]
    xx = (np.arange(ow) * p.s[1] - p.pads[1][0] + tap[1] * p.d[1])[None, :] + off[:, :, 1]
    x = xg.reshape(n, og, c // og, h, wd)
    result = np.zeros((n, og, c // og, oh, ow))
    y0, x0 = np.floor(yy), np.floor(xx)
    b, g = np.arange(n)[:, None, None, None], np.arange(og)[None, :, None, None]
    for dy, dx in itertools.product((0, 1), (0, 1)):
        cy, cx = y0 + dy, x0 + dx
        weight = (1 - np.abs(yy - cy)) * (1 - np.abs(xx - cx))
        inside = (cy >= 0) & (cy < h) & (cx >= 0) & (cx < wd) & (weight != 0)
        if h and wd:
            iy, ix = (np.where(inside, corner, 0).astype(int) for corner in (cy, cx))
            value = np.moveaxis(x[b, g, :, iy, ix], -1, 2)
            result += np.where(inside[:, :, None], value * np.where(inside, weight, 0)[:, :, None], 0)
    if mask is not None:
        result *= np.asarray(mask).astype(np.float64).reshape(n, og, 1, p.k[0] * p.k[1], oh, ow)[:, :, :, t]
    return result.reshape(n, p.groups, c // p.groups, oh, ow)
