"""Weights whose products are summed in 16 bits first, and the words of them that are multiplied apart.

What leaves a sum in 16 bits no room is taken off the weights, and multiplied in further steps, of which each block of
outputs has its own.  It must not know how weights were packed, but for the order in which tiles stream them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.dots.form import Sizes
from polyconv.algorithms.dots.weights import block_weights
from polyconv.kernels.isa import lanes
from polyconv.lowering.presums import beyond
from polyconv.lowering.program import Request
from polyconv.lowering.sweep import Sweep, taps_of
from polyconv.runtime.arrays import as_aligned

__all__ = ["entries_of_blocks", "presummed"]

Back = Callable[[NDArray[Any], NDArray[Any]], None]
"""Writes packed weights into an array, as they were given."""


def presummed(r: Request, sweep: Sweep, sizes: Sizes, w: NDArray[Any], words: int
              ) -> tuple[NDArray[Any], NDArray[np.int64]]:  # fmt: skip
    """Weights (1, m, c, taps) of blocks, so many words of inputs together, with rows that are multiplied apart.

    Returns
    -------
    weights : array
        [block][step, then row][output channel][channel of the word].
    apart : array
        (blocks, rows): the step whose word each of those rows is multiplied with; -1 for rows that fill up a block.
    """
    lane, found = lanes(r.target, r.arith), list[tuple[NDArray[Any], NDArray[np.int64]]]()

    def both() -> tuple[NDArray[Any], NDArray[np.int64]]:
        if not found:
            told: list[tuple[NDArray[Any], Back]] = []
            alone = replace(r, packed=lambda key, make: make(), moved=lambda w, packed, back: told.append((w, back)))
            packed = block_weights(alone, sweep, sizes, w, words)
            weights, apart = _with_rows(packed, sizes, lane)
            for given, back in told:
                r.moved(given, weights, partial(_put_back, sizes=sizes, lane=lane, apart=apart, back=back))
            found.append((weights, apart))
        return found[0]

    key = ("presums", sizes.vectors, sizes.whole_lines, taps_of(sweep))
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


def _blocks(packed: NDArray[Any], sizes: Sizes, lane: int) -> Iterator[NDArray[np.int8]]:
    """Blocks of packed weights, (steps, outputs, 2, 2): the last one may have fewer outputs."""
    end = 0
    all_vectors = (sizes.blocks - 1) * sizes.vectors + sizes.last_vectors
    for vectors in (*[sizes.vectors] * (sizes.blocks - 1), sizes.last_vectors):
        shape = (packed.size // (all_vectors * lane * 4), vectors * lane, 2, 2)
        begin, end = end, end + math.prod(shape)
        yield packed[begin:end].reshape(shape)


def _with_rows(packed: NDArray[Any], sizes: Sizes, lane: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Packed weights less what they have beyond their room, with rows of that, and the steps of these rows."""
    over = [beyond(block.astype(np.int16)) for block in _blocks(packed, sizes, lane)]
    steps = [np.nonzero(some.any(axis=(1, 2)))[0] for some in over]
    apart, found = np.full((len(over), max(map(len, steps))), -1, np.int64), list[NDArray[Any]]()
    if not apart.size:
        return packed, apart
    for block, some, of_block, which in zip(_blocks(packed, sizes, lane), over, steps, apart, strict=True):
        which[: len(of_block)] = of_block
        w = np.concatenate([block, np.zeros((len(which), *block.shape[1:]), block.dtype)])
        w[: len(block), ..., 0] -= some.astype(block.dtype)  # modulo 2^8: what is left is a number of i8
        w[len(block) : len(block) + len(of_block), ..., 0] = some[of_block]
        found.append(w.ravel())
    return as_aligned(np.concatenate(found)), apart


def _put_back(weights: NDArray[Any], target: NDArray[Any], *, sizes: Sizes, lane: int, apart: NDArray[np.int64],
              back: Back) -> None:  # fmt: skip
    """Write weights with rows as they were given, by what writes those without rows."""
    found = []
    for w, steps in zip(_blocks(weights, sizes, lane), apart, strict=True):
        block, rows = w[: len(w) - len(steps)].copy(), w[len(w) - len(steps) :]
        np.add.at(block, steps[steps >= 0], rows[steps >= 0])
        found.append(block.ravel())
    back(np.concatenate(found), target)
