"""Packed weights: [group][block of output channels][entry][channel], as tiles stream them.

An entry is a tap of some input channels.  The last blocks of all groups, which may be narrower, follow all others.
It must not know where inputs lie.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from polyconv.algorithms.dense.sizes import channel_words
from polyconv.algorithms.packing import Set, packed_sets
from polyconv.algorithms.program import Request
from polyconv.kernels.isa import lanes
from polyconv.kernels.tile import ROW_WORDS

__all__ = ["packed_weights", "weight_sets"]


def packed_weights(r: Request, w: NDArray[Any], vectors: int, last_vectors: int, together: int = ROW_WORDS
                   ) -> NDArray[Any]:  # fmt: skip
    """Weights (groups, m, c, taps) in the order in which tiles stream them.

    So many words of input channels ``together`` follow each other before the next tap.
    """
    return packed_sets(r, w, *weight_sets(r, w.shape, vectors, last_vectors, together))


def weight_sets(r: Request, shape: tuple[int, ...], vectors: int, last_vectors: int, together: int = ROW_WORDS
                ) -> tuple[list[Set], int, int]:  # fmt: skip
    """Sets, input channels that lie together, and size of packed weights."""
    groups, m, c, taps = shape
    lane = lanes(r.target, r.arith)
    step, last = vectors * lane, last_vectors * lane
    rows = channel_words(c, r.arith) * r.arith.channels * taps
    blocks = max(1, -(-m // step))
    sets = [Set(b * step, step, step, b * step * rows, (blocks - 1) * step * rows) for b in range(blocks - 1)]
    end = (blocks - 1) * step
    sets.append(Set(end, m - end, last, groups * end * rows, last * rows))
    return sets, together * r.arith.channels, groups * (end + last) * rows
