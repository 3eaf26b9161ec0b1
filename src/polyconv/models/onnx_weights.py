"""Constants of ONNX's nodes by channel: which axis of weights has outputs, and what normalising comes to.

Weights of convolutions are (m, c / groups, ...), of transposed ones (c, m / groups, ...).
"""

from __future__ import annotations

import numpy as np

from polyconv.models.graph import Array, Node
from polyconv.models.rewriting import View

__all__ = ["is_transposed", "normalisation", "output_channels"]


def is_transposed(conv: Node) -> bool:
    """Whether output channels are the second axis of the weights, group by group."""
    return conv.op == "ConvTranspose"


def output_channels(conv: Node, w: Array) -> int:
    """How many output channels a convolution has."""
    groups: int = conv.attributes.get("group", 1)
    return int(w.shape[1]) * groups if is_transposed(conv) else len(w)


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
