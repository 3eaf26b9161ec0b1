"""Motifs that published networks have, in random dress: several nodes that rewrites look for together.

Each turns a graph under construction into a larger one, as ``graph_steps`` do.  It must not know what rewrites make of
them.
"""

from __future__ import annotations

import math

import numpy as np

from polyconv.conformance.graph_steps import Step, activation, normalisation
from polyconv.conformance.graphs import Drawing, Unfit

__all__ = ["MOTIFS"]


def _image(shape: tuple[int, ...]) -> bool:
    return 3 <= len(shape) <= 5 and math.prod(shape) < 20_000


def branches(d: Drawing) -> str:
    """Convolutions of one value, and a normalisation or that itself, added, as RepVGG and MobileOne are trained."""
    x = d.operand(_image)
    _, c, *extents = d.shape(x)
    rank = len(extents)
    groups = int(d.pick([g for g in (1, 1, 2, c) if c % g == 0]))
    stride = int(d.pick((1, 1, 1, 2)))
    m = c if d.chance(0.7) else groups * int(d.pick((1, 2, 5)))

    def one(taps: int, pad: int) -> str:
        if min(extents) + 2 * pad < taps:
            raise Unfit
        w = d.weights(m, c // groups, *[taps] * rank, scale=1.0 / math.sqrt(c // groups * taps**rank))
        bias = [d.weights(m)] if d.chance(0.5) else []
        y = d.one("Conv", x, w, *bias, group=groups, strides=[stride] * rank, pads=[pad] * 2 * rank)
        return normalisation(d, y) if d.chance(0.4) else y

    taps = int(d.pick((3, 3, 5)))
    parts = [one(taps, taps // 2)]
    if d.chance(0.8):
        parts.append(one(1, 0))
    if d.chance(0.3):
        parts.append(one(3, 1))
    if m == c and stride == 1 and d.chance(0.6):
        parts.append(normalisation(d, x) if d.chance(0.7) else x)
    y = parts.pop(int(d.rng.integers(len(parts))))
    for other in parts:
        y = d.one("Add", *((y, other) if d.chance(0.5) else (other, y)))
    return activation(d, y) if d.chance(0.5) else y


def tokens(d: Drawing) -> str:
    """An image as tokens, these as an image again, a convolution of it, and perhaps back, as in image transformers."""
    x = d.operand(lambda shape: len(shape) == 4 and math.prod(shape) < 20_000)
    n, c, h, w = d.shape(x)
    rows = d.one("Reshape", x, d.constant([n, c, h * w], np.int64))
    y = d.one("Transpose", rows, perm=[0, 2, 1])
    if d.chance(0.7):
        m = int(d.pick((c, 8, 24)))
        y, c = d.one("MatMul", y, d.weights(c, m, scale=1.0 / math.sqrt(c))), m
    if d.chance(0.3):
        y = activation(d, y)
    planes = d.one("Transpose", y, perm=[0, 2, 1])
    image = d.one("Reshape", planes, d.constant([n, c, h, w], np.int64))
    groups = c if d.chance(0.6) else 1
    filters = d.weights(c, c // groups, 3, 3, scale=1.0 / (3 * math.sqrt(c // groups)))
    y = d.one("Conv", image, filters, group=groups, pads=[1] * 4)
    if d.chance(0.7):
        back = d.one("Reshape", y, d.constant([n, c, h * w], np.int64))
        y = d.one("Transpose", back, perm=[0, 2, 1])
    return activation(d, y) if d.chance(0.6) else y


def attention(d: Drawing) -> str:
    """Attention as exporters write it: heads taken apart, products that are scaled and shifted, heads put together."""
    x = d.operand(lambda shape: len(shape) == 3 and math.prod(shape) < 6_000)
    n, t, c = d.shape(x)
    heads, wide = int(d.pick((1, 2, 3))), int(d.pick((1, 4, 7, 16)))
    inner = heads * wide
    y = d.one("MatMul", x, d.weights(c, 3 * inner, scale=1.0 / math.sqrt(c)))
    parts = d.one("Reshape", y, d.constant([n, t, 3, heads, wide], np.int64))
    if d.chance(0.5):
        turned = d.one("Transpose", parts, perm=[2, 0, 3, 1, 4])
        q, k, v = (d.one("Gather", turned, d.constant(at, np.int64), axis=0) for at in range(3))
        across = d.one("Transpose", k, perm=[0, 1, 3, 2])
    else:
        cut = [d.one("Gather", parts, d.constant(at, np.int64), axis=2) for at in range(3)]
        q, across, v = (d.one("Transpose", name, perm=perm) for name, perm in
                        zip(cut, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True))  # fmt: skip
    scale = d.constant(1.0 / math.sqrt(wide), np.float32)
    if d.chance(0.4):
        q = d.one("Mul", q, scale)
    found = d.one("MatMul", q, across)
    if d.chance(0.4):
        found = d.one("Mul", found, scale)
    if d.chance(0.5):
        shape = d.pick(((heads, t, t), (1, 1, t), (heads, 1, t), (n, 1, t, t), (heads, t, 1)))
        found = d.one("Add", found, d.weights(*shape))
    if d.chance(0.7):
        found = d.one("Softmax", found, axis=-1)
    made = d.one("MatMul", found, v)
    made = d.one("Transpose", made, perm=d.pick(([0, 2, 1, 3], [0, 2, 1, 3], [2, 0, 1, 3], [0, 1, 3, 2])))
    return d.one("Reshape", made, d.constant([n, t, inner], np.int64))


def grouped(d: Drawing) -> str:
    """GroupNormalization as PyTorch exports it: groups as the channels of a tensor of three axes, and back."""
    x = d.operand(_image)
    n, c, *extents = d.shape(x)
    groups = int(d.pick([g for g in (1, 1, 2, 4, c) if c % g == 0]))
    y = d.one("Reshape", x, d.constant([0, groups, -1], np.int64))
    y = d.one("InstanceNormalization", y, d.weights(groups), d.weights(groups))
    y = d.one("Reshape", y, d.constant([n, c, *extents], np.int64))
    channels = (c, *[1] * len(extents))
    for op in ("Mul", "Add"):
        if d.chance(0.7):
            y = d.one(op, y, d.weights(*channels))
    return activation(d, y) if d.chance(0.5) else y


def centred(d: Drawing) -> str:
    """A normalisation by means over neighbouring axes, roots and quotients, in one of its spellings, or nearly one."""
    x = d.operand(_image)
    shape = d.shape(x)
    rank = len(shape)
    first = int(d.rng.integers(1, rank))
    axes = list(range(first, int(d.pick((first, rank - 1))) + 1))
    if math.prod(shape[a] for a in axes) < 3:
        raise Unfit

    def mean(of: str, over: list[int]) -> str:
        if d.opset >= 18:
            return d.one("ReduceMean", of, d.constant(over, np.int64), keepdims=1)
        return d.one("ReduceMean", of, axes=over, keepdims=1)

    apart = d.one("Sub", x, mean(x, axes))
    other = d.one("Sub", x, mean(x, axes)) if d.chance(0.3) else apart
    others = axes if d.chance(0.9) else [rank - 1]
    square = d.one("Mul", other, other) if d.chance(0.5) else d.one("Pow", other, d.constant(2.0))
    shifted = d.one("Add", mean(square, others), d.constant(1e-3 if d.chance(0.5) else 0.1))
    root = d.one("Sqrt", shifted) if d.chance(0.7) else d.one("Pow", shifted, d.constant(0.5))
    y = d.one("Mul", apart, d.one("Reciprocal", root)) if d.chance(0.3) else d.one("Div", apart, root)
    own = int(d.pick((1, rank - 1)))
    for op in ("Mul", "Add"):
        if d.chance(0.8):
            y = d.one(op, y, d.weights(shape[own], *[1] * (rank - 1 - own)))
    return activation(d, y) if d.chance(0.4) else y


def embedded(d: Drawing) -> str:
    """A convolution of a constant, added to a value of its shape, as embeddings of positions are."""
    x = d.operand(_image)
    _, c, *extents = d.shape(x)
    m = int(d.pick((1, 4, 8)))
    place = d.weights(1, m, *extents)
    y = d.one("Conv", place, d.weights(c, m, *[1] * len(extents), scale=1.0 / math.sqrt(m)))
    return d.one("Add", *((x, y) if d.chance(0.5) else (y, x)))


MOTIFS: tuple[tuple[Step, float], ...] = (
    (branches, 1.5), (tokens, 1.2), (attention, 1.0), (grouped, 0.7), (centred, 0.8),
    (embedded, 0.4),
)  # fmt: skip
"""The motifs, and how often each is tried beside ``graph_steps.STEPS``."""
