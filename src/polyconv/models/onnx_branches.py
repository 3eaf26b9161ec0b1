"""Sums of what convolutions and normalisations make of one value: one convolution, whose weights are sums.

Networks that are trained with branches beside each other (RepVGG, MobileOne, FastViT, RepViT) are one convolution a
layer once their statistics are known: a convolution is linear in its weights, so that

    Conv(x, v) + Conv(x, w) = Conv(x, v + w),

where the taps of the smaller kernel lie among those of the larger one, and ``scale x + shift``, of each channel, is a
convolution whose only tap is the scale.  It knows no other rule.
Source: Ding et al., RepVGG, 2021.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.models.graph import Array, Node
from polyconv.models.onnx_weights import normalisation
from polyconv.models.rewriting import Change, View, standing_for

__all__ = ["branches"]


@dataclass(frozen=True, slots=True, eq=False)
class _Branch:
    """One side of a sum: the value that it reads, the nodes that compute it, weights and bias in f64.

    ``taps`` are, along every spatial axis, the pads before and after, how many taps there are, and how far apart.
    """

    x: str
    nodes: tuple[Node, ...]
    w: Array
    bias: Array
    taps: tuple[tuple[int, int, int, int], ...]


def branches(node: Node, view: View) -> Change | None:
    """``Add(Conv(x), Conv(x))``, or with ``BatchNormalization(x)`` on one side -> ``Conv(x)``, weights added.

    Where the taps of one lie among those of the other.  Sums in f64, rounded once.  A depthwise convolution takes up
    ``x`` itself, too.
    """
    if len(node.inputs) != 2 or node.inputs[0] == node.inputs[1]:
        return None
    convs = [_conv(name, node, view) for name in node.inputs]
    sizes = [0 if each is None else each[1].w.size for each in convs]
    at = int(sizes[1] > sizes[0])
    chosen, other = convs[at], convs[1 - at]
    if chosen is None:
        return None
    conv, large = chosen
    small = _scaled_channels(node.inputs[1 - at], node, view, conv, large) if other is None else other[1]
    if small is None or small.x != large.x or (other is not None and not _alike(conv, other[0])):
        return None
    if small.w.shape[:2] != large.w.shape[:2]:
        return None
    offsets = [_offset(one, another) for one, another in zip(large.taps, small.taps, strict=True)]
    if None in offsets:
        return None
    w = large.w.copy()
    at_taps = tuple(slice(o or 0, (o or 0) + taps) for o, (_, _, taps, _) in zip(offsets, small.taps, strict=True))
    w[(slice(None), slice(None), *at_taps)] += small.w
    given = view.constant(conv, 1)
    assert given is not None
    names = view.fresh(f"weights of {node.outputs[0]}"), view.fresh(f"bias of {node.outputs[0]}")
    with np.errstate(over="ignore"):
        constants = {names[0]: w.astype(given.dtype), names[1]: (large.bias + small.bias).astype(given.dtype)}
    sides = (small, large) if at else (large, small)
    gone = (*sides[0].nodes, *sides[1].nodes, node)
    made = standing_for(conv, gone, inputs=(large.x, *names), outputs=node.outputs)
    return Change(gone, (made,), constants)


def _conv(name: str, node: Node, view: View) -> tuple[Node, _Branch] | None:
    """A convolution with constant weights that only the node reads."""
    conv = view.makers.get(name)
    if conv is None or conv.op != "Conv" or conv.domain or view.only_reader(name) is not node:
        return None
    w, bias, a = view.constant(conv, 1), view.constant(conv, 2), conv.attributes
    has_bias = len(conv.inputs) > 2 and bool(conv.inputs[2])
    if w is None or w.dtype.kind != "f" or w.ndim < 3 or (has_bias and bias is None) or len(conv.inputs) > 3:
        return None
    if "activation" in a or a.get("auto_pad", "NOTSET") != "NOTSET" or not _has_whole_numbers(a, w.ndim - 2):
        return None
    rank = w.ndim - 2
    pads, apart = a.get("pads") or [0] * 2 * rank, a.get("dilations") or [1] * rank
    taps = tuple(zip(pads[:rank], pads[rank:], w.shape[2:], apart, strict=True))
    added = np.zeros(len(w)) if bias is None else bias.astype(np.float64)
    if added.shape != (len(w),):
        return None
    return conv, _Branch(conv.inputs[0], (conv,), w.astype(np.float64), added, taps)


def _has_whole_numbers(attributes: Any, rank: int) -> bool:
    """Whether what is given for each axis is given for all of them."""
    counts = {"pads": 2 * rank, "strides": rank, "dilations": rank, "kernel_shape": rank}
    return all(len(attributes[name]) == count for name, count in counts.items() if attributes.get(name))


def _alike(conv: Node, other: Node) -> bool:
    """Whether two convolutions have the same groups and strides."""
    def given(node: Node) -> tuple[int, set[int] | Sequence[int]]:
        strides = node.attributes.get("strides") or [1]
        return node.attributes.get("group", 1), {1} if set(strides) == {1} else strides

    return given(conv) == given(other)


def _offset(one: tuple[int, int, int, int], another: tuple[int, int, int, int]) -> int | None:
    """Which tap of one axis the first tap of another is; None unless all of its taps are among them."""
    (begin, end, taps, apart), (other_begin, other_end, others, other_apart) = one, another
    reach, other_reach = (taps - 1) * apart, (others - 1) * other_apart
    if begin + end - reach != other_begin + other_end - other_reach:  # they have as many outputs
        return None
    ahead, rest = divmod(begin - other_begin, apart)
    if rest or ahead < 0 or ahead + others > taps or (others > 1 and apart != other_apart):
        return None
    return ahead


def _scaled_channels(name: str, node: Node, view: View, conv: Node, large: _Branch) -> _Branch | None:
    """A normalisation of what the convolution reads, or that itself, as a convolution of one tap."""
    groups, m = conv.attributes.get("group", 1), len(large.w)
    of_group = large.w.shape[1]
    if m != groups * of_group or set(conv.attributes.get("strides") or [1]) != {1}:
        return None
    if name == large.x and of_group == 1:
        nodes: tuple[Node, ...] = ()
        scale, shift = np.ones(m), np.zeros(m)
    else:
        norm = view.makers.get(name)
        if norm is None or norm.op != "BatchNormalization" or norm.domain or len(norm.outputs) != 1:
            return None
        found = normalisation(norm, view) if view.only_reader(name) is node and norm.inputs[0] == large.x else None
        if found is None or any(each.shape != (m,) for each in found):
            return None
        nodes, (scale, shift) = (norm,), found
    w = np.zeros((m, of_group, *itertools.repeat(1, large.w.ndim - 2)))
    w[np.arange(m), np.arange(m) % of_group] = scale.reshape(m, *itertools.repeat(1, large.w.ndim - 2))
    return _Branch(large.x, nodes, w, shift, ((0, 0, 1, 1),) * (large.w.ndim - 2))
