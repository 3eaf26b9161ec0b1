"""What a random graph grows by: one node, or several that belong together as exporters write them.

Each step takes a drawing and appends to it, or raises ``Unfit``.  The one idea: a step is what a rewrite, a fusion or
an operator of its own looks for, in one of its forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from polyconv.conformance.graph_bytes import multiplied_bytes, of_integers, quantised, rounded, summed_bytes
from polyconv.conformance.graphs import Drawing, Unfit

__all__ = ["STEPS", "Step", "activation", "normalisation"]

Step = Callable[[Drawing], Any]


def _spatial(shape: tuple[int, ...]) -> bool:
    return 3 <= len(shape) <= 5


def _planar(shape: tuple[int, ...]) -> bool:
    return len(shape) == 4


def _window(d: Drawing, extents: tuple[int, ...]) -> dict[str, Any]:
    """Kernel, strides, dilations and pads that fit the extents."""
    rank = len(extents)
    if d.chance(0.35):
        return {"kernel_shape": [1] * rank, "strides": [2 if d.chance(0.1) else 1] * rank}
    k = [int(d.pick((1, 2, 3, 3, 3, 5, 7))) for _ in range(rank)] if d.chance(0.3) else [int(d.pick((3, 3, 5)))] * rank
    strides = [int(d.pick((1, 1, 1, 2, 3)))] * rank
    dilations = [int(d.pick((1, 1, 1, 2)))] * rank
    chosen: dict[str, Any] = {"kernel_shape": k, "strides": strides, "dilations": dilations}
    way = d.pick(("same", "same", "none", "random", "auto"))
    if way == "auto":
        chosen["auto_pad"] = str(d.pick(("SAME_UPPER", "SAME_LOWER", "VALID")))
        pads = [0] * (2 * rank)
    else:
        halves = [dil * (taps - 1) // 2 for dil, taps in zip(dilations, k, strict=True)]
        pads = halves * 2 if way == "same" else [int(d.pick((0, 1, 2))) if way == "random" else 0] * (2 * rank)
        chosen["pads"] = pads
    for axis, extent in enumerate(extents):
        if extent + pads[axis] + pads[rank + axis] < dilations[axis] * (k[axis] - 1) + 1:
            raise Unfit
    return chosen


def _filters(d: Drawing, *shape: int) -> str:
    """Weights, some of them through nodes that constant folding removes."""
    scale = 1.0 / math.sqrt(math.prod(shape[1:]))
    if d.chance(0.1):
        turned = d.weights(shape[1], shape[0], *shape[2:], scale=scale)
        return d.one("Transpose", turned, perm=[1, 0, *range(2, len(shape))])
    found = d.weights(*shape, scale=scale)
    return d.one("Identity", found) if d.chance(0.05) else found


def convolution(d: Drawing, x: str | None = None) -> str:
    """Conv: dense, in groups, depthwise, pointwise, with and without bias."""
    x = d.operand(_spatial) if x is None else x
    n, c, *extents = d.shape(x)
    kind = d.pick(("dense", "dense", "groups", "depthwise"))
    some = [g for g in (1, 2, 3, 4) if c % g == 0]
    groups = c if kind == "depthwise" else int(d.pick(some)) if kind == "groups" else 1
    m = groups * int(d.pick((1, 1, 2))) if kind == "depthwise" else groups * int(d.pick((1, 3, 4, 8, 16, 24)))
    window = _window(d, tuple(extents))
    if n * m * (c // groups) * math.prod(window["kernel_shape"]) * math.prod(extents) > 20_000_000:
        raise Unfit
    inputs = [x, _filters(d, m, c // groups, *window["kernel_shape"])]
    if d.chance(0.6):
        inputs.append(d.weights(m))
    return d.one("Conv", *inputs, group=groups, **window)


def transposed(d: Drawing) -> str:
    """ConvTranspose."""
    x = d.operand(lambda shape: _spatial(shape) and math.prod(shape) < 4_000)
    _, c, *extents = d.shape(x)
    groups = int(d.pick([g for g in (1, 1, 2, 4) if c % g == 0]))
    k, stride = int(d.pick((2, 3, 4))), int(d.pick((1, 2, 2, 3)))
    per_group = int(d.pick((1, 2, 4, 8)))
    rank = len(extents)
    scale = 1.0 / math.sqrt(c * k**rank)
    inputs = [x, d.weights(c, per_group, *[k] * rank, scale=scale)]
    if d.chance(0.5):
        inputs.append(d.weights(groups * per_group))
    more = {"output_padding": [1] * rank} if stride > 1 and d.chance(0.3) else {}
    pads = [int(d.chance(0.4))] * (2 * rank)
    if any((e - 1) * stride + k - 2 * pads[0] < 1 for e in extents):
        raise Unfit
    return d.one("ConvTranspose", *inputs, group=groups, strides=[stride] * rank, pads=pads, **more)


def normalisation(d: Drawing, x: str | None = None) -> str:
    """BatchNormalization with statistics that are known."""
    x = d.operand(_spatial) if x is None else x
    c = d.shape(x)[1]
    statistics = [d.weights(c, low=0.5), d.weights(c), d.weights(c, scale=0.3), d.weights(c, low=0.3)]
    return d.one("BatchNormalization", x, *statistics, epsilon=1e-3 if d.chance(0.5) else None)


def activation(d: Drawing, x: str | None = None) -> str:
    """A function of one number, as one node."""
    x = d.operand(lambda shape: True) if x is None else x
    op = d.pick([name for name, since in _FUNCTIONS if d.opset >= since])
    if op == "Clip":
        low, high = sorted(float(v) for v in d.rng.uniform(-2, 3, 2))
        return d.one("Clip", x, d.constant(low) if d.chance(0.8) else "", d.constant(high))
    if op == "PRelu":
        shape = d.shape(x)
        c = () if d.chance(0.5) or len(shape) < 3 else (shape[1], *(1,) * (len(shape) - 2))
        return d.one("PRelu", x, d.weights(*c, low=0.0) if c else d.constant([float(d.rng.uniform())]))
    if op in ("LeakyRelu", "Elu"):
        return d.one(op, x, alpha=float(np.float32(d.rng.uniform(0, 1))))
    return d.one(op, x)


_FUNCTIONS = (
    *(("Relu", 1),) * 3, ("Clip", 11), ("LeakyRelu", 6), ("Elu", 6), ("HardSigmoid", 6), ("HardSwish", 14),
    ("Sigmoid", 6), ("Tanh", 6), ("Softplus", 1), ("Softsign", 1), ("PRelu", 9), ("Abs", 6), ("Neg", 6), ("Erf", 9),
    ("Mish", 18), ("Gelu", 20), ("Sin", 7), ("Cos", 7),
)  # fmt: skip


def spelled(d: Drawing, x: str | None = None) -> str:
    """An activation in several nodes, or nearly one."""
    x = d.operand(lambda shape: True) if x is None else x
    kind = d.pick(("silu", "gelu", "hard swish", "mish", "sigmoid", "snake", "not quite"))
    number = d.constant
    if kind == "silu":
        gate = d.one("Sigmoid", x)
        return d.one("Mul", *((x, gate) if d.chance(0.5) else (gate, x)))
    if kind == "gelu":
        erf = d.one("Erf", d.one("Div", x, number(math.sqrt(2.0))))
        product = d.one("Mul", x, d.one("Add", erf, number(1.0)))
        return d.one("Mul", product, number(0.5))
    if kind == "mish":
        return d.one("Mul", x, d.one("Tanh", d.one("Softplus", x)))
    if kind == "snake":
        wave = d.one("Sin", d.one("Mul", x, number(1.5)))
        return d.one("Add", x, d.one("Div", d.one("Mul", wave, wave), number(1.5)))
    if kind == "sigmoid":
        return d.one("Div", number(1.0), d.one("Add", d.one("Exp", d.one("Neg", x)), number(1.0)))
    most = number(6.0 if kind == "hard swish" else 5.0)
    clipped = d.one("Clip", d.one("Add", x, number(3.0)), number(0.0), most)
    return d.one("Div", d.one("Mul", x, clipped), number(6.0))


def block(d: Drawing) -> None:
    """Convolution, perhaps BatchNormalization, perhaps a residual, perhaps an activation."""
    y = convolution(d)
    if d.chance(0.5):
        y = normalisation(d, y)
    if d.chance(0.3):
        y = arithmetic(d, y)
    if d.chance(0.7):
        (activation if d.chance(0.7) else spelled)(d, y)


def padded(d: Drawing) -> str:
    """Pad, before a convolution or alone."""
    x = d.operand(_spatial)
    rank = len(d.shape(x))
    mode = d.pick(("constant", "constant", "constant", "edge", "reflect", "wrap" if d.opset >= 19 else "edge"))
    spare = min(d.shape(x)[2:])
    pads = [0, 0, *(int(d.rng.integers(0, min(3, spare))) for _ in range(rank - 2))] * 2
    more = [d.constant(float(d.pick((0.0, 0.0, 0.5))))] if mode == "constant" and d.chance(0.5) else []
    y = d.one("Pad", x, d.constant(pads, np.int64), *more, mode=mode)
    return convolution(d, y) if d.chance(0.7) else y


def arithmetic(d: Drawing, x: str | None = None) -> str:
    """Add, Sub, Mul, Div, Max, Min or Sum with another value, or with a constant."""
    x = d.operand(lambda shape: True) if x is None else x
    shape = d.shape(x)
    op = d.pick(("Add", "Add", "Add", "Mul", "Mul", "Sub", "Div", "Max", "Min", "Sum"))
    if op == "Div" or d.chance(0.4):
        kinds: list[tuple[int, ...]] = [(), (1,), shape]
        if len(shape) > 2:
            kinds += [(shape[1], *(1,) * (len(shape) - 2)), (1, shape[1], *(1,) * (len(shape) - 2))]
        other = d.weights(*d.pick(kinds), low=0.25 if op == "Div" or d.chance(0.5) else None)
    else:
        other = d.operand(lambda s: _broadcasts(s, shape))
    return d.one(op, *((x, other) if op == "Div" or d.chance(0.5) else (other, x)))


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))


def pooling(d: Drawing) -> str:
    """MaxPool, AveragePool, or one over everything."""
    x = d.operand(_spatial)
    op = d.pick(("MaxPool", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"))
    if op.startswith("Global"):
        return d.one(op, x)
    extents = d.shape(x)[2:]
    k, stride = int(d.pick((2, 3))), int(d.pick((1, 2, 2)))
    pads = [int(k == 3 and d.chance(0.6))] * (2 * len(extents))
    dilation = 2 if op == "MaxPool" and d.chance(0.15) else 1
    if any(e + 2 * pads[0] < dilation * (k - 1) + 1 for e in extents):
        raise Unfit
    more: dict[str, Any] = {"dilations": [dilation] * len(extents)} if dilation > 1 else {}
    if op == "MaxPool" and d.chance(0.3):
        more["ceil_mode"] = 1
    if op == "AveragePool" and d.chance(0.5):
        more["count_include_pad"] = 1
    return d.one(op, x, kernel_shape=[k] * len(extents), strides=[stride] * len(extents), pads=pads, **more)


def squeeze_excite(d: Drawing) -> str:
    """Global pooling, two pointwise convolutions, and a product with what was pooled."""
    x = d.operand(_planar)
    c = d.shape(x)[1]
    y = d.one("GlobalAveragePool", x) if d.chance(0.7) else _mean(d, x, (2, 3), keep=True)
    inner = max(1, c // 4)
    y = d.one("Relu", d.one("Conv", y, d.weights(inner, c, 1, 1, scale=c**-0.5), d.weights(inner)))
    y = d.one("Conv", y, d.weights(c, inner, 1, 1, scale=inner**-0.5), d.weights(c))
    return d.one("Mul", x, d.one(str(d.pick(("Sigmoid", "HardSigmoid"))), y))


def concat(d: Drawing) -> str:
    """Concat of two or three values, one of them perhaps twice."""
    x = d.operand(_spatial)
    shape = d.shape(x)
    axis = 1 if d.chance(0.8) else int(d.rng.integers(len(shape)))

    def fits(other: tuple[int, ...]) -> bool:
        return len(other) == len(shape) and all(a == axis or other[a] == e for a, e in enumerate(shape))

    return d.one("Concat", *(d.operand(fits) for _ in range(int(d.pick((1, 1, 2))))), x, axis=axis)


def split(d: Drawing) -> None:
    """Split into two or three, of which some may be read by nobody."""
    x = d.operand(lambda shape: _spatial(shape) and shape[1] > 1)
    c = d.shape(x)[1]
    first = int(d.rng.integers(1, c))
    sizes = [first, c - first] if c - first < 2 or d.chance(0.6) else [first, 1, c - first - 1]
    d.node("Split", [x, d.constant(sizes, np.int64)], len(sizes), axis=1)


def sliced(d: Drawing) -> str:
    """Slice with steps, some of them backwards."""
    x = d.operand(lambda shape: max(shape, default=1) > 2)
    shape = d.shape(x)
    axis = int(d.pick([a for a, e in enumerate(shape) if e > 2]))
    if d.chance(0.2):
        ends = [-1], [-(shape[axis] + 1)], [axis], [-1]
    else:
        ends = [int(d.rng.integers(0, 2))], [int(d.pick((shape[axis], -1, 1 << 60)))], [axis], [int(d.pick((1, 1, 2)))]
    return d.one("Slice", x, *(d.constant(each, np.int64) for each in ends))


def shuffle(d: Drawing) -> str:
    """Channel shuffle, its extents from Shape or known."""
    x = d.operand(lambda shape: _planar(shape) and shape[1] % 2 == 0)
    n, c, h, w = d.shape(x)

    def integers(*numbers: int) -> str:
        return d.constant(numbers, np.int64)

    if d.chance(0.5):
        inner, outer = integers(n, 2, c // 2, h, w), integers(n, c, h, w)
    else:
        extents = d.one("Shape", x)
        batch, channels = (d.one("Gather", extents, integers(axis), axis=0) for axis in (0, 1))
        half = d.one("Div", channels, integers(2))
        inner = d.one("Concat", batch, integers(2), half, integers(h), integers(w), axis=0)
        outer = d.one("Shape", x) if d.chance(0.5) else d.one("Concat", batch, integers(-1, h, w), axis=0)
    y = d.one("Transpose", d.one("Reshape", x, inner), perm=[0, 2, 1, 3, 4])
    return d.one("Reshape", y, outer)


def reshaped(d: Drawing) -> str:
    """Flatten, Reshape with a -1, Squeeze and Unsqueeze, Transpose, Expand or Tile."""
    x = d.operand(lambda shape: 2 <= len(shape) <= 5)
    shape = d.shape(x)
    way = d.pick(("Flatten", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Expand", "Tile"))
    if way == "Flatten":
        return d.one("Flatten", x, axis=int(d.rng.integers(0, len(shape))))
    if way == "Reshape":
        return d.one("Reshape", x, d.constant([0, 0, -1] if len(shape) > 2 else [-1, shape[1]], np.int64))
    if way == "Transpose":
        return d.one("Transpose", x, perm=[int(a) for a in d.rng.permutation(len(shape))])
    if way == "Unsqueeze" and len(shape) < 5:
        return d.one("Unsqueeze", x, d.constant([int(d.pick((1, -1)))], np.int64))
    ones = [a for a, e in enumerate(shape) if e == 1]
    if way == "Squeeze" and len(ones) > 1:
        return d.one("Squeeze", x, d.constant(ones[-1:], np.int64))
    if way == "Expand" and ones:
        return d.one("Expand", x, d.constant([3 if a == ones[0] else e for a, e in enumerate(shape)], np.int64))
    if way == "Tile":
        return d.one("Tile", x, d.constant([1] * (len(shape) - 1) + [2], np.int64))
    raise Unfit


def product(d: Drawing) -> str:
    """MatMul with weights, or Gemm behind Flatten, with a bias."""
    x = d.operand(lambda shape: 2 <= len(shape) <= 5 and shape[-1] <= 600)
    k, m = d.shape(x)[-1], int(d.pick((3, 10, 16, 64)))
    if len(d.shape(x)) == 2 and d.chance(0.5):
        turned = d.chance(0.5)
        w = d.weights(*((m, k) if turned else (k, m)), scale=k**-0.5)
        return d.one("Gemm", x, w, d.weights(m), transB=int(turned))
    y = d.one("MatMul", x, d.weights(k, m, scale=k**-0.5))
    return d.one("Add", y, d.weights(m)) if d.chance(0.6) else y


def wide_product(d: Drawing) -> str:
    """A product large enough to run as a convolution, channels last, from a value that is channels first."""
    x = d.operand(lambda shape: _planar(shape) and math.prod(shape) >= 1_500)
    c = d.shape(x)[1]
    m = max(8, -(-(1 << 20) // math.prod(d.shape(x))))
    y = d.one("MatMul", d.one("Transpose", x, perm=[0, 2, 3, 1]), d.weights(c, m, scale=c**-0.5))
    y = d.one("Add", y, d.weights(m)) if d.chance(0.7) else y
    return d.one("Transpose", spelled(d, y) if d.chance(0.5) else y, perm=[0, 3, 1, 2])


def softmax(d: Drawing) -> str:
    """Softmax over some axis, or its logarithm."""
    x = d.operand(lambda shape: len(shape) > 1)
    return d.one("LogSoftmax" if d.chance(0.3) else "Softmax", x, axis=int(d.pick((1, -1))))


def reduced(d: Drawing) -> str:
    """ReduceMean, ReduceSum, ReduceMax or ReduceMin."""
    x = d.operand(lambda shape: len(shape) > 1)
    rank = len(d.shape(x))
    axes = tuple(sorted({int(a) for a in d.rng.integers(0, rank, 2)}))
    keep = d.chance(0.5)
    op = d.pick(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"))
    return _mean(d, x, axes, keep=keep) if op == "ReduceMean" else _over(d, op, x, axes, keep=keep)


def _mean(d: Drawing, x: str, axes: tuple[int, ...], *, keep: bool) -> str:
    return _over(d, "ReduceMean", x, axes, keep=keep)


def _over(d: Drawing, op: str, x: str, axes: tuple[int, ...], *, keep: bool) -> str:
    if d.opset >= 18 or op == "ReduceSum":
        return d.one(op, x, d.constant(axes, np.int64), keepdims=int(keep))
    return d.one(op, x, axes=list(axes), keepdims=int(keep))


def layer_normalisation(d: Drawing) -> str:
    """LayerNormalization over the last axis, or InstanceNormalization."""
    x = d.operand(lambda shape: _spatial(shape) and shape[-1] > 2 and math.prod(shape[2:]) > 3)
    shape = d.shape(x)
    if d.opset >= 17 and d.chance(0.6):
        return d.one("LayerNormalization", x, d.weights(shape[-1], low=0.5), d.weights(shape[-1]), axis=-1)
    return d.one("InstanceNormalization", x, d.weights(shape[1], low=0.5), d.weights(shape[1]))


def same(d: Drawing) -> str:
    """What leaves values as they are: Identity, Dropout, Cast to another type and back."""
    x = d.operand(lambda shape: True)
    way = d.pick(("Identity", "Dropout", "Cast"))
    if way == "Cast":
        return d.one("Cast", d.one("Cast", x, to=11) if d.chance(0.5) else x, to=1)
    return d.one(way, x)


def resized(d: Drawing) -> str:
    """Resize by scales or to sizes: nearest or linear, as exporters count places."""
    x = d.operand(lambda shape: _planar(shape) and min(shape[2:]) > 1)
    by_two = [1, 1, *(int(d.pick((1, 2, 2, 4))) for _ in range(2))]
    ways = ("half_pixel", "align_corners", "pytorch_half_pixel")
    nearest = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    a = nearest if d.chance(0.5) else {"mode": "linear", "coordinate_transformation_mode": str(d.pick(ways))}
    if d.chance(0.6):
        return d.one("Resize", x, "", d.constant(by_two, np.float32), **a)
    extents = d.shape(x)
    sizes = [*extents[:2], *(max(1, e * int(d.pick((1, 2, 3, 4, 6))) // 2) for e in extents[2:])]
    return d.one("Resize", x, "", "", d.constant(sizes, np.int64), **a)


def depth_and_space(d: Drawing) -> str:
    """DepthToSpace in both orders, or SpaceToDepth."""
    if d.chance(0.6):
        x = d.operand(lambda shape: _planar(shape) and shape[1] % 4 == 0)
        return d.one("DepthToSpace", x, blocksize=2, mode=str(d.pick(("DCR", "CRD"))))
    x = d.operand(lambda shape: _planar(shape) and shape[2] % 2 == shape[3] % 2 == 0)
    return d.one("SpaceToDepth", x, blocksize=2)


STEPS: tuple[tuple[Step, float], ...] = (
    (block, 6), (convolution, 4), (transposed, 1.5), (normalisation, 1), (activation, 2), (spelled, 1), (padded, 1),
    (arithmetic, 4), (pooling, 2.5), (squeeze_excite, 1), (concat, 2), (split, 1), (sliced, 1), (shuffle, 1),
    (reshaped, 1.5), (product, 1.3), (wide_product, 0.3), (softmax, 0.7), (reduced, 1), (layer_normalisation, 0.8),
    (same, 1), (resized, 0.8), (depth_and_space, 0.7), (quantised, 1.3), (of_integers, 0.7),
    (rounded, 1.5), (multiplied_bytes, 0.7), (summed_bytes, 0.7),
)  # fmt: skip
"""The steps, and how often each is tried beside the others."""
