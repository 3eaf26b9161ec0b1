"""Weights whose products are summed in 16 bits first, and the words of them that are multiplied apart.

What leaves a sum in 16 bits no room is taken off the weights, and multiplied in further steps, of which each block of
outputs has its own.  It must not know how weights were packed, but for the order in which tiles stream them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.dots.form import Sizes
from polyconv.kernels.isa import lanes
from polyconv.lowering.presums import beyond
from polyconv.lowering.program import Request
from polyconv.lowering.sweep import Sweep, taps_of
from polyconv.runtime.arrays import as_aligned

__all__ = ["entries_of_blocks", "presummed"]


def presummed(r: Request, sweep: Sweep, sizes: Sizes, packed: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Packed weights of a group's blocks, with rows that are multiplied apart.

    Returns
    -------
    weights : array
        [block][step, then row][output channel][channel of the word].
    apart : array
        (blocks, rows): the step whose word each of those rows is multiplied with; -1 for rows that fill up a block.
    """
    found: list[tuple[NDArray[Any], NDArray[np.int64]]] = []

    def both() -> tuple[NDArray[Any], NDArray[np.int64]]:
        if not found:
            found.append(_with_rows(r, sizes, packed))
        return found[0]

    key = ("presums", r.arith.name, sizes.vectors, sizes.whole_lines, taps_of(sweep))
    return r.packed((*key, "weights"), lambda: both()[0]), r.packed((*key, "apart"), lambda: both()[1])


def entries_of_blocks(entries: Sequence[Sequence[int]], apart: NDArray[np.int64], word_step: int
                      ) -> list[list[list[int]]]:  # fmt: skip
    """The entries of every block of outputs, with a word for each of its rows that are multiplied apart.

    Parameters
    ----------
    entries : sequence of sequence of int
        Offset, words and first step of the runs of every combination of taps of the outer axes.
    apart : array
        As ``presummed`` gives it.
    word_step : int
        Bytes from a word to the next.
    """
    runs = [(taps, *of_taps[at : at + 2]) for taps, of_taps in enumerate(entries) for at in range(0, len(of_taps), 3)]
    steps, found = sum(words for _, _, words in runs), []
    for block in apart.tolist():
        own = [list(of_taps) for of_taps in entries]
        for row, step in enumerate(block):
            if step >= 0:
                taps, offset, words = runs[step // runs[0][2]]
                own[taps] += [offset + step % words * word_step, 1, steps + row]
        found.append(own)
    return found


def _with_rows(r: Request, sizes: Sizes, packed: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """What ``presummed`` finds."""
    lane, end, blocks = lanes(r.target, r.arith), 0, list[NDArray[np.int16]]()
    of_step = ((sizes.blocks - 1) * sizes.vectors + sizes.last_vectors) * lane * r.arith.channels
    for count, vectors in ((sizes.blocks - 1, sizes.vectors), (1, sizes.last_vectors)):
        shape = (count, packed.size // of_step, vectors * lane, 2, 2)
        begin, end = end, end + math.prod(shape)
        blocks.extend(packed[begin:end].reshape(shape).astype(np.int16))
    over = [beyond(w) for w in blocks]
    steps = [np.nonzero(some.any(axis=(1, 2)))[0] for some in over]
    apart = np.full((len(blocks), max(map(len, steps))), -1, np.int64)
    found = []
    for w, some, of_block, which in zip(blocks, over, steps, apart, strict=True):
        which[: len(of_block)] = of_block
        w[..., 0] -= some
        rows = np.zeros((len(which), *w.shape[1:]), np.int16)
        rows[: len(of_block), ..., 0] = some[of_block]
        found.append(np.concatenate([w, rows]).astype(packed.dtype).ravel())
    return as_aligned(np.concatenate(found)), apart
