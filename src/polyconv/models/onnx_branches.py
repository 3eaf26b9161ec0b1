"""Sums of what convolutions and normalisations make of one value: one convolution, whose weights are sums.

Networks that are trained with branches beside each other (RepVGG, MobileOne, FastViT, RepViT) are one convolution a
layer once their statistics are known: a convolution is linear in its weights, so that

    Conv(x, v) + Conv(x, w) = Conv(x, v + w),

where the taps of the smaller kernel lie among those of the larger one, and ``scale x + shift``, of each channel, is a
convolution whose only tap is the scale.  It knows no other rule.
Source: Ding et al., RepVGG, 2021.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.models.graph import Array, Node
from polyconv.models.onnx_weights import held_weights, normalisation, with_weights
from polyconv.models.rewriting import Change, View

__all__ = ["branches"]


@dataclass(frozen=True, slots=True)
class _Taps:
    """Those of a kernel along an axis: how many, how far apart, and the padding before and behind the input."""

    count: int = 1
    apart: int = 1
    before: int = 0
    behind: int = 0

    @property
    def shrinks(self) -> int:
        """Elements that the axis is shorter by, at a stride of 1."""
        return (self.count - 1) * self.apart - self.before - self.behind


@dataclass(frozen=True, slots=True, eq=False)
class _Branch:
    """One side of a sum as a convolution: what it is like, the value that it reads, and the nodes that compute it."""

    conv: Node
    x: str
    nodes: tuple[Node, ...]
    w: Array
    bias: Array | None
    taps: tuple[_Taps, ...]
    groups: int
    strides: tuple[int, ...]

    @property
    def alike(self) -> tuple[object, ...]:
        """What both sides have to have alike."""
        return self.x, self.groups, self.strides, self.w.shape[:2]


def branches(node: Node, view: View) -> Change | None:
    """``Add(Conv(x), Conv(x))``, or with ``BatchNormalization(x)`` on one side -> ``Conv(x)``, weights added.

    Where the taps of one lie among those of the other.  Sums in f64, rounded once.  A depthwise convolution takes up
    ``x`` itself, too.
    """
    if len(node.inputs) != 2 or node.inputs[0] == node.inputs[1]:
        return None
    one, other = (_convolution(name, node, view) for name in node.inputs)
    if one is None and other is not None:
        one = _one_tap(node.inputs[0], node, view, other)
    if other is None and one is not None:
        other = _one_tap(node.inputs[1], node, view, one)
    if one is None or other is None or one.alike != other.alike:
        return None
    large, small = (other, one) if other.w.size > one.w.size else (one, other)
    places = [_place(many, few) for many, few in zip(large.taps, small.taps, strict=True)]
    among = tuple(place for place in places if place is not None)
    if len(among) < len(places):
        return None
    w, bias = large.w.astype(np.float64), np.zeros(len(large.w))
    w[:, :, *among] += small.w
    for each in (large, small):
        bias = bias if each.bias is None else bias + each.bias
    return with_weights(large.conv, (*one.nodes, *other.nodes, node), w, bias, view)


def _convolution(name: str, node: Node, view: View) -> _Branch | None:
    """A convolution that only the node reads."""
    conv = view.makers.get(name)
    if conv is None or conv.op != "Conv" or conv.domain or view.only_reader(name) is not node:
        return None
    held, a = held_weights(conv, view), conv.attributes
    if held is None or a.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    w, bias = held
    m, _, *kernel = w.shape
    rank = len(kernel)
    pads, apart = a.get("pads") or [0] * 2 * rank, a.get("dilations") or [1] * rank
    strides = a.get("strides") or [1] * rank
    if (len(pads), len(apart), len(strides)) != (2 * rank, rank, rank) or (bias is not None and bias.shape != (m,)):
        return None  # it is wrong, as an error will say
    if list(a.get("kernel_shape") or kernel) != kernel:
        return None
    taps = tuple(map(_Taps, kernel, apart, pads[:rank], pads[rank:]))
    return _Branch(conv, conv.inputs[0], (conv,), w, bias, taps, a.get("group", 1), tuple(strides))


def _one_tap(name: str, node: Node, view: View, beside: _Branch) -> _Branch | None:
    """A normalisation of what a convolution reads, or of a depthwise one that itself, as a convolution like it."""
    m, of_group, *kernel = beside.w.shape
    if m != beside.groups * of_group or set(beside.strides) != {1}:
        return None
    nodes: tuple[Node, ...] = ()
    scale, shift = np.ones(m), None
    if name != beside.x or of_group > 1:
        norm = view.makers.get(name)
        if norm is None or norm.op != "BatchNormalization" or norm.domain or len(norm.outputs) != 1:
            return None
        if norm.inputs[0] != beside.x or view.only_reader(name) is not node:
            return None
        found = normalisation(norm, view)
        if found is None or any(each.shape != (m,) for each in found):
            return None
        nodes, (scale, shift) = (norm,), found
    w = np.zeros((m, of_group))
    w[np.arange(m), np.arange(m) % of_group] = scale
    w = w.reshape(m, of_group, *[1] * len(kernel))
    return replace(beside, nodes=nodes, w=w, bias=shift, taps=(_Taps(),) * len(kernel))


def _place(one: _Taps, other: _Taps) -> slice | None:
    """Which taps of one axis those of another are; None unless all are among them, and outputs are as many."""
    first, rest = divmod(one.before - other.before, one.apart)
    if one.shrinks != other.shrinks or rest or first < 0 or first + other.count > one.count:
        return None
    return slice(first, first + other.count) if other.count == 1 or other.apart == one.apart else None
