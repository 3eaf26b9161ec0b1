"""Weights of bytes whose products are summed by two in 16 bits: how much of them leaves such sums room.

Inputs are 0 to 255.  So x v + y w stays within 16 bits, whatever x and y are, if v + w is at most 128 and at least
-128: 255 * 128 = 32640 < 2^15, and where v and w have different signs the products take from each other.  What two
weights have beyond that is taken off the first, to be multiplied apart.  It must not know how weights are packed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["CERTAIN", "beyond", "crowded"]

CERTAIN = 16
"""What ``crowded`` says where all words are multiplied apart, or nothing is known of the weights."""

_ROOM = 128
_OUTPUTS, _BLOCKS, _CHANNELS, _TAPS = 16, 8, 512, 4
"""Outputs of a block, and how many blocks, channels and taps are looked at: prices need no more."""


def beyond(w: NDArray[np.int16]) -> NDArray[np.int16]:
    """What the first of two weights, which lie along the last axis, has beyond the room of a sum: a number of i8."""
    both = w[..., 0] + w[..., 1]
    found: NDArray[np.int16] = both - np.clip(both, -_ROOM, _ROOM)
    return found


def crowded(w: NDArray[Any]) -> int:
    """How many words of 16 outputs are multiplied apart, in sixteenths and rounded up.

    Parameters
    ----------
    w : array
        Weights (m, c, taps), numbers of i8.  Of many some are looked at.
    """
    m, _, taps = w.shape
    if not w.size:
        return 0
    first = np.unique(np.linspace(0, max(0, m - _OUTPUTS), min(_BLOCKS, -(-m // _OUTPUTS)), dtype=np.int64))
    some = first[:, np.newaxis] + np.arange(min(m, _OUTPUTS))
    looked_at = w[some][:, :, :_CHANNELS, :: -(-taps // _TAPS)]
    whole = np.zeros((*looked_at.shape[:2], -(-looked_at.shape[2] // 4) * 4, looked_at.shape[3]), np.int16)
    whole[:, :, : looked_at.shape[2]] = looked_at
    pairs = np.moveaxis(whole.reshape(*whole.shape[:2], -1, 2, 2, whole.shape[3]), 4, -1)
    return math.ceil(CERTAIN * float(beyond(pairs).any(axis=(1, 3)).mean()))
