"""Output channels of ONNX's convolutions, by their weights: (m, c / groups, ...), transposed ones (c, m / groups, ...).

It must not know values.
"""

from __future__ import annotations

from polyconv.models.graph import Array, Node

__all__ = ["is_transposed", "output_channels"]


def is_transposed(conv: Node) -> bool:
    """Whether output channels are the second axis of the weights, group by group."""
    return conv.op == "ConvTranspose"


def output_channels(conv: Node, w: Array) -> int:
    """How many output channels a convolution has."""
    groups: int = conv.attributes.get("group", 1)
    return int(w.shape[1]) * groups if is_transposed(conv) else len(w)
