"""Packed weights: [group][block of output channels][entry][channel], as tiles stream them.

An entry is a tap of some input channels.  The last blocks of all groups, which may be narrower, follow all others.
It must not know where inputs lie.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from polyconv.algorithms.dense.driver import BlockWords
from polyconv.algorithms.dense.sizes import Sizes, channel_words, steps_of
from polyconv.kernels.isa import lanes
from polyconv.kernels.tile import ROW_WORDS
from polyconv.lowering.packing import Set, packed_sets
from polyconv.lowering.program import Request
from polyconv.lowering.sweep import Sweep, taps_of

__all__ = ["block_words", "packed_weights"]


def block_words(r: Request, sweep: Sweep, sizes: Sizes, together: int = ROW_WORDS) -> BlockWords:
    """Words of a sweep's blocks of output channels, with packed weights.

    So many words of input channels ``together`` follow each other before the next tap.
    """
    blocks, widths = sizes.blocks, (sizes.blocks.vectors, sizes.blocks.last_vectors)
    order = [] if together == ROW_WORDS else [together]
    key = (r.arith.name, blocks.lanes, blocks.vectors, taps_of(sweep), *order)
    packed = r.packed(("direct", *key), lambda: packed_weights(r, r.weights(sweep), *widths, together))
    row, last_row = blocks.outputs * r.arith.bytes, blocks.last_vectors * blocks.lanes * r.arith.bytes
    steps, chunk_steps = steps_of(r.situation, r.arith, sweep), sizes.chunk_steps(r.problem, r.arith, sweep)
    return BlockWords(
        weights=packed, w_group=steps * row * (blocks.count - 1), w_block=steps * row, w_chunk=chunk_steps * row,
        w_last=steps * row * (blocks.count - 1) * r.problem.groups, w_last_group=steps * last_row,
        w_last_chunk=chunk_steps * last_row, of_group=r.problem.m // r.problem.groups, count=blocks.count,
        split=-(-blocks.count // sizes.splits), outputs=blocks.outputs, last_outputs=blocks.last_outputs,
        last_lanes=blocks.last_lanes, sum_row=row, sum_row_last=last_row,
    )  # fmt: skip


def packed_weights(r: Request, w: NDArray[Any], vectors: int, last_vectors: int, together: int = ROW_WORDS
                   ) -> NDArray[Any]:  # fmt: skip
    """Weights (groups, m, c, taps) in the order in which tiles of so many vectors stream them."""
    return packed_sets(r, w, *_sets(r, w.shape, vectors, last_vectors, together))


def _sets(r: Request, shape: tuple[int, ...], vectors: int, last_vectors: int, together: int
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
