"""Weights of ONNX's convolutions, and what normalising comes to, by channel: taken up, and put back changed.

Weights of convolutions are (m, c / groups, ...), of transposed ones (c, m / groups, ...).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyconv.models.graph import Array, Node
from polyconv.models.rewriting import Change, View, standing_for

__all__ = ["held_weights", "is_transposed", "normalisation", "output_channels", "scaled_weights", "with_weights"]


def is_transposed(conv: Node) -> bool:
    """Whether output channels are the second axis of the weights, group by group."""
    return conv.op == "ConvTranspose"


def output_channels(conv: Node, w: Array) -> int:
    """How many output channels a convolution has."""
    groups: int = conv.attributes.get("group", 1)
    return int(w.shape[1]) * groups if is_transposed(conv) else len(w)


def held_weights(conv: Node, view: View) -> tuple[Array, Array | None] | None:
    """Weights and bias of a convolution, if they are constant real numbers and no activation is part of it."""
    w, bias = view.constant(conv, 1), view.constant(conv, 2)
    has_bias = len(conv.inputs) > 2 and bool(conv.inputs[2])
    if w is None or w.dtype.kind != "f" or w.ndim < 3 or (has_bias and bias is None) or len(conv.inputs) > 3:
        return None
    return None if "activation" in conv.attributes else (w, bias)


def scaled_weights(conv: Node, held: tuple[Array, Array | None], scale: Array, shift: Array) -> tuple[Array, Array]:
    """Weights ``w scale`` and bias ``b scale + shift`` in f64: results come out scaled and shifted, by channel."""
    w, bias = held
    if is_transposed(conv):  # channels of a group of results follow each other
        groups = conv.attributes.get("group", 1)
        by_group = w.astype(np.float64).reshape(groups, -1, *w.shape[1:])
        new = (by_group * scale.reshape(groups, 1, -1, *(1,) * (w.ndim - 2))).reshape(w.shape)
    else:
        new = w.astype(np.float64) * scale.reshape(-1, *(1,) * (w.ndim - 1))
    return new, shift if bias is None else bias.astype(np.float64) * scale + shift


def with_weights(conv: Node, taken: Sequence[Node], w: Array, bias: Array, view: View) -> Change:
    """Some nodes as a convolution with other weights and bias, rounded to its type; the last one makes their result."""
    outputs, given = taken[-1].outputs, view.constants[conv.inputs[1]]
    names = view.fresh(f"weights of {outputs[0]}"), view.fresh(f"bias of {outputs[0]}")
    with np.errstate(over="ignore"):
        constants = {names[0]: w.astype(given.dtype), names[1]: bias.astype(given.dtype)}
    made = standing_for(conv, taken, inputs=(conv.inputs[0], *names), outputs=outputs)
    return Change(tuple(taken), (made,), constants)


def normalisation(node: Node, view: View) -> tuple[Array, Array] | None:
    """Scale and shift of a BatchNormalization with constant statistics."""
    given = [view.constant(node, position) for position in range(1, 5)]
    if node.attributes.get("training_mode", 0) or node.attributes.get("spatial", 1) != 1:
        return None
    if node.version < 7 and not node.attributes.get("is_test", 0):
        return None
    arrays = [a.astype(np.float64) for a in given if a is not None]
    if len(arrays) != 4:
        return None
    gamma, beta, mean, variance = arrays
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + float(np.float32(node.attributes.get("epsilon", 1e-5))))
        shift = beta - mean * scale
    return scale, shift
