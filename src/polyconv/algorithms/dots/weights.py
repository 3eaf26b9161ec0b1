"""Weights of words as tiles stream them, with those of windows where zero points are left in weights.

Blocks of output channels in the lanes, or runs of output channels whose weights are broadcast.  It must not know where
inputs lie.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.dense.weights import packed_weights
from polyconv.algorithms.dots.form import Sizes
from polyconv.algorithms.dots.situations import windows, zero_weight
from polyconv.kernels.isa import lanes
from polyconv.kernels.lane_sums import vectors_of
from polyconv.lowering.program import Request
from polyconv.lowering.sweep import Sweep, taps_of
from polyconv.runtime.arrays import aligned, as_aligned

__all__ = ["block_bytes", "block_weights", "by_lanes", "inner_weights", "run_weights"]


def block_weights(r: Request, sweep: Sweep, sizes: Sizes, w: NDArray[Any], words: int) -> NDArray[Any]:
    """Weights (groups, m, c, taps) of blocks of output channels, so many words of inputs together."""
    arith, lane, taps = r.arith, lanes(r.target, r.arith), sweep[-1].taps
    cut = sizes.whole_lines and w.shape[2] % arith.channels > 0  # else words are the same tap by tap

    def make() -> NDArray[Any]:
        if sizes.beside > 1:
            return _side_by_side(r, w, sizes, lane, max(1, words))
        of_words = _by_lines(w, taps) if cut else w
        if windows(r):
            of_words = _beside(of_words, zero_weight(r), sizes, lane)
        packed = packed_weights(r, of_words, sizes.vectors, sizes.last_vectors, max(1, words))
        return _after_factors(r, packed, sizes, lane) if windows(r) == "each" else packed

    return r.packed(("dots", arith.name, lane, sizes.vectors, sizes.beside, cut, taps_of(sweep)), make)


def _side_by_side(r: Request, w: NDArray[Any], sizes: Sizes, lane: int, words: int) -> NDArray[Any]:
    """Weights (groups, m, c, taps) of blocks of several groups, after a row of the places of each lane's word in bytes.

    Windows of groups are in the last lanes.  A row of zero points follows the places, where they differ.
    """
    groups, m, c, _ = w.shape
    size, first, found = r.arith.bytes // r.arith.channels, (sizes.blocks - 1) * sizes.beside, []
    for some, beside, vectors in (
        (slice(first), sizes.beside, sizes.vectors), (slice(first, None), groups - first, sizes.last_vectors)
    ):  # fmt: skip
        width, blocks, own = vectors * lane, len(w[some]) // beside, slice(beside * m)
        lanes_of, group = np.zeros((blocks, width, *w.shape[2:]), w.dtype), np.zeros((width, 1), np.int64)
        lanes_of[:, own] = w[some].reshape(blocks, beside * m, *w.shape[2:])
        group[own, 0] = np.arange(beside * m) // m
        if windows(r):
            lanes_of[:, width - beside :], group[width - beside :, 0] = zero_weight(r), np.arange(beside)
        places = (group * (c * size) + np.arange(r.arith.bytes)).astype(np.uint8)
        rows = [np.broadcast_to(places.reshape(1, -1), (blocks, places.size))]
        if windows(r) == "each":
            assert r.zero_left is not None
            factors = np.zeros((blocks, width), np.int32)
            factors[:, own] = r.zero_left.reshape(groups, m)[some].reshape(blocks, beside * m)
            rows.append(factors.view(np.uint8))
        packed = packed_weights(r, lanes_of, vectors, vectors, words).view(np.uint8)
        found.append(np.hstack([*rows, packed.reshape(blocks, packed.size // max(1, blocks))]).ravel())
    return as_aligned(np.concatenate(found))


def _by_lines(w: NDArray[Any], taps: int) -> NDArray[Any]:
    """Weights (groups, m, c, taps) with those of a line of the kernel, tap by tap, as channels."""
    groups, m, c, all_taps = w.shape
    lines = all_taps // max(1, taps)
    by_line = w.reshape(groups, m, c, lines, taps).transpose(0, 1, 4, 2, 3)
    return np.ascontiguousarray(by_line).reshape(groups, m, taps * c, lines)


def _beside(w: NDArray[Any], more: int, sizes: Sizes, lane: int) -> NDArray[Any]:
    """Weights (groups, m, c, taps) with one more output in the last lane of each block, with all weights alike."""
    groups, m, c, taps = w.shape
    width, last = sizes.vectors * lane, sizes.last_vectors * lane
    whole = np.zeros((groups, (sizes.group_blocks - 1) * width + last, c, taps), w.dtype)
    for block in range(sizes.group_blocks):
        lanes_of, first = whole[:, block * width : (block + 1) * width], block * (width - 1)
        outputs = min(width - 1, m - first)
        lanes_of[:, :outputs] = w[:, first : first + outputs]
        lanes_of[:, -1] = more
    return whole


def _after_factors(r: Request, packed: NDArray[Any], sizes: Sizes, lane: int) -> NDArray[Any]:
    """Packed weights with a row before those of each block: zero points, in the order of its lanes."""
    assert r.zero_left is not None
    factors = _beside(r.zero_left.reshape(r.problem.groups, -1, 1, 1), 0, sizes, lane)[..., 0, 0]
    end, width = (sizes.group_blocks - 1) * sizes.vectors * lane, sizes.vectors * lane
    whole = packed.size // factors.shape[1] * end
    blocks = (factors[:, :end].reshape(-1, width), packed[:whole]), (factors[:, end:], packed[whole:])
    return as_aligned(np.concatenate([
        np.hstack([np.ascontiguousarray(rows).view(packed.dtype), weights.reshape(len(rows), -1)]).ravel()
        for rows, weights in blocks if len(rows)
    ]))  # fmt: skip


def run_weights(r: Request, w: NDArray[Any], runs: list[tuple[int, int]]) -> NDArray[Any]:
    """Weights (groups, m, c, taps) as [group][block][tap][word][output channel][channel of the word].

    Runs are output channels of a block, and blocks.  Weights of windows, if there are, are a block's last channel; its
    zero points follow them where they differ.
    """
    (groups, m, c, taps), together = w.shape, r.arith.channels
    words = -(-c // together)
    whole = np.zeros((groups, m, words * together, taps), w.dtype)
    whole[:, :, :c] = w
    packed, first = [], 0
    for rows, blocks in runs:
        outputs = slice(first, first + rows * blocks)
        some = whole[:, outputs].reshape(groups, blocks, rows, words * together, taps)
        if windows(r):
            some = np.pad(some, ((0, 0), (0, 0), (0, 1), (0, 0), (0, 0)))
            some[:, :, -1, :c] = zero_weight(r)
        some = some.reshape(*some.shape[:3], words, together, taps).transpose(0, 1, 5, 3, 2, 4)
        some = some.reshape(groups, blocks, -1)
        if r.zero_left is not None and r.zero_left.size > 1:
            factors = np.ascontiguousarray(r.zero_left.reshape(groups, m)[:, outputs])
            some = np.concatenate([some, factors.view(w.dtype).reshape(groups, blocks, -1)], axis=2)
        packed.append(some.reshape(groups, -1))
        first += rows * blocks
    return np.ascontiguousarray(np.concatenate(packed, axis=1))


def block_bytes(r: Request, rows: int, words: int) -> int:
    """Bytes of a block of these: so many output channels of so many words, and what goes with windows."""
    return ((rows + (windows(r) > "")) * words + rows * (windows(r) == "each")) * r.arith.bytes


def inner_weights(r: Request, w: NDArray[Any], taps: int, steps: int, wide: int, *, overlaps: bool = False
                  ) -> NDArray[Any]:  # fmt: skip
    """Weights (groups, m, c, taps) as [group][entry][step][output][channel]; so many ``taps`` are one entry.

    A last step that is not whole begins with its channels, or ends with them where steps overlap. Weights of windows
    are a group's last output; its zero points come before them all where they differ.
    """
    w = _by_lines(w, taps)
    groups, m, channels, entries = w.shape
    lane, of_step = lanes(r.target, r.arith), wide * r.arith.channels
    each = vectors_of(m + (windows(r) > ""), lane, wide) * (lane // wide)
    whole = np.zeros((groups, each, steps * of_step, entries), w.dtype)
    places = np.arange(channels)
    if overlaps:
        places[(steps - 1) * of_step :] += steps * of_step - channels
    whole[:, :m, places] = w
    if windows(r):
        whole[:, m, places] = zero_weight(r)
    found = whole.reshape(groups, each, steps, of_step, entries).transpose(0, 4, 2, 1, 3).reshape(groups, -1)
    if windows(r) == "each":
        assert r.zero_left is not None
        factors = r.zero_left.reshape(groups, m)[:, np.arange(lane) % m]
        found = np.concatenate([np.ascontiguousarray(factors).view(w.dtype), found], axis=1)
    return as_aligned(found)


def by_lanes(r: Request, lane: int) -> Request:
    """The request with the biases and scales of each group in as many lanes as results of some pixels have."""
    outputs = r.problem.m // r.problem.groups

    def repeated(table: NDArray[Any] | None) -> NDArray[Any] | None:
        if table is None:
            return None
        of_groups = table.reshape(-1, outputs)
        found = aligned((len(of_groups) * lane,), table.dtype)
        found[...] = of_groups[:, np.arange(lane) % outputs].reshape(-1)
        return found

    return replace(r, bias=repeated(r.bias), scale=repeated(r.scale))
