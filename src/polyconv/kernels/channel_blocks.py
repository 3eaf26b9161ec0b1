"""What tiles with output channels in their rows are given, whatever brings their pixels: blocks of channels of a tile.

It must not know how words of pixels are found.
"""

from __future__ import annotations

from polyconv.kernels.language import Buffer
from polyconv.kernels.signature import Int, Signature

__all__ = ["ChannelWalk"]


class ChannelWalk(Signature):
    """Some ``blocks`` of output channels of the first ``pixels`` of a tile, with the words that a pixel has.

    Weights, biases and scales are those of the first channel, whose results begin at ``y``.
    """

    words: Int
    weights: Buffer
    y: Buffer
    y_channel: Int
    blocks: Int
    pixels: Int
    bias: Buffer
    scale: Buffer
    constants: Buffer
