"""Spectra of the weights: made in float64 and rounded once, in the order in which products stream them.

A tile of real numbers is kept as half as many complex points.  Points k and -k together hold the values of its spectrum
at both, so products go over pairs of points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.fourier.plan import Plan
from polyconv.algorithms.fourier.tiles import radices, window
from polyconv.kernels.fft import PAIR
from polyconv.runtime.arrays import aligned

__all__ = ["FEW_TAPS", "pairs_of", "spectra_of"]

FEW_TAPS = 56
"""Taps whose spectrum is found sooner by a matrix product."""
_MADE_BYTES = 1 << 20
"""Spectra in float64 that are made at a time."""
_ONE_THREAD = 1 << 18
"""Multiply-adds up to which NumPy's BLAS stays on the caller's thread.  The threads that it starts for more spin beside
polyconv's own: on two busy cores a first run of HiFi-GAN took 13 s with them and 3.7 s without."""

Points = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Where the two values of every pair stand in a whole spectrum."""


def _frequencies(passes: Sequence[int]) -> NDArray[np.int64]:
    """Frequency at every place of a transformed line."""
    if not passes:
        return np.zeros(1, np.int64)
    rest = _frequencies(passes[1:])
    return np.concatenate([q + passes[0] * rest for q in range(passes[0])])


def pairs_of(plan: Plan, kind: np.dtype[Any]) -> tuple[NDArray[np.int64], Points]:
    """Table of the pairs of points, as ``kernels.fft.PAIR`` names its words, and where their values stand."""
    order = [_frequencies(radices(tile.points)) for tile in plan.tiles]
    lengths = [tile.length for tile in plan.tiles]
    freq = np.meshgrid(*order, indexing="ij")
    opposite = [np.argsort(of_axis)[-f % len(of_axis)] for of_axis, f in zip(order, freq, strict=True)]
    own = np.indices([len(of_axis) for of_axis in order])
    places, there = (np.tensordot(plan.strides, np.array(at), 1).ravel() for at in (own, opposite))
    once = np.flatnonzero(places <= there)
    table: NDArray[np.int64] = aligned((len(once), len(PAIR)), np.int64)
    angle = 2 * np.pi * freq[0].ravel()[once] / lengths[0]
    table[:, 0], table[:, 1], table[:, 4] = places[once], there[once], there[once]
    single = table[:, 0] == table[:, 1]
    table[single, 4] = plan.tiles[0].points * plan.strides[0] + plan.strides[-1] * np.arange(np.count_nonzero(single))
    low = [f.ravel()[once] for f in freq]
    high = [low[0] + plan.tiles[0].points, *low[1:]]
    at = np.ravel_multi_index(tuple(low), lengths), np.ravel_multi_index(tuple(high), lengths)
    per_slot = 8 // kind.itemsize
    table.view(kind)[:, 2 * per_slot : 4 * per_slot : per_slot] = np.stack([np.cos(angle), np.sin(angle)], -1)
    return table, at


def spectra_of(w: NDArray[Any], plan: Plan, at: Points) -> NDArray[Any]:
    """Spectra of weights (groups, m, c, taps): in blocks of a vector of outputs, pair by pair, channel by channel."""
    groups, m, c, _ = w.shape
    lane, pairs = plan.lane, len(at[0])
    spectra = _by_matrix(plan, at) if math.prod(axis.taps for axis in plan.sweep) <= FEW_TAPS else _by_fft(plan, at)
    if plan.kind == "blocks":
        packed = aligned((groups, m, pairs, c, 4), w.dtype)
        for of_group, target in zip(w.reshape(-1, c, w.shape[-1]), packed.reshape(-1, pairs, c, 4), strict=True):
            target[...] = spectra(of_group).transpose(0, 2, 1)
        return packed
    if plan.kind == "own":
        w = w.reshape(1, -1, 1, w.shape[-1])
        groups, m, c, _ = w.shape
    # the two values of a pair stand apart where products are those of matrices
    halves = (2, c, 2) if plan.kind == "dense" else (1, c, 4)
    packed = aligned((groups * -(-m // lane), pairs * halves[0], *halves[1:], lane), w.dtype)
    parts = [of_group[v : v + lane] for of_group in w for v in range(0, m, lane)]
    step = max(1, _MADE_BYTES // (8 * lane * math.prod(tile.length for tile in plan.tiles)))
    for some, target in zip(parts, packed, strict=True):
        for first in range(0, c, step):
            rows = some[:, first : first + step].transpose(1, 0, 2)
            made = spectra(rows.reshape(-1, rows.shape[-1])).reshape(len(target), -1, *rows.shape[:2])
            target[:, first : first + step, :, : len(some)] = made.transpose(0, 2, 1, 3)
        target[..., len(some) :] = 0
    return packed


# Spectra of rows of taps: (pair; re, im, re, im; row), conjugate, as outputs are correlations.  They are scaled by 2/N
# of the transform back, and by 1/2 each for taking spectra apart and together.


def _by_matrix(plan: Plan, at: Points) -> Callable[[NDArray[Any]], NDArray[np.float64]]:
    lengths = [tile.length for tile in plan.tiles]
    turns = np.zeros((1, 2, len(at[0])))
    for axis, length, of_axis in zip(plan.sweep, lengths, np.unravel_index(np.stack(at), lengths), strict=True):
        steps = np.arange(axis.taps) * axis.dilation % length
        of_taps = (steps[:, None, None] * of_axis % length) / length
        turns = (turns[:, None] + of_taps).reshape(-1, *turns.shape[1:])
    angle, scale = 2 * np.pi * turns, 1 / (2 * math.prod(lengths))
    matrix = np.stack([np.cos(angle), np.sin(angle)], 2).transpose(3, 1, 2, 0).reshape(-1, len(turns)) * scale

    def by_matrix(w: NDArray[Any]) -> NDArray[np.float64]:
        made = np.empty((len(matrix), len(w)))
        step = max(1, _ONE_THREAD // matrix.size)
        for first in range(0, len(w), step):
            some = slice(first, first + step)
            np.matmul(matrix, w[some].T.astype(np.float64), out=made[:, some])
        return made.reshape(-1, 4, len(w))

    return by_matrix


def _by_fft(plan: Plan, at: Points) -> Callable[[NDArray[Any]], NDArray[np.float64]]:
    lengths = [tile.length for tile in plan.tiles]
    # taps a period apart share a place
    extents = [min(length, window(axis)) for axis, length in zip(plan.sweep, lengths, strict=True)]
    places = np.zeros(1, np.int64)
    for axis, extent in zip(plan.sweep, extents, strict=True):
        places = (places[:, None] * extent + np.arange(axis.taps) * axis.dilation % extent).ravel()
    distinct, scale = len(np.unique(places)) == len(places), 1 / (2 * math.prod(lengths))
    # half of a real spectrum: frequencies in the other half are conjugates of their opposites
    parts = []
    for part in at:
        frequencies = np.unravel_index(part, lengths)
        far = frequencies[-1] > lengths[-1] // 2
        near = [np.where(far, -f % length, f) for f, length in zip(frequencies, lengths, strict=True)]
        half = (*lengths[:-1], lengths[-1] // 2 + 1)
        parts.append((np.ravel_multi_index(tuple(near), half), np.where(far, scale, -scale)[:, None]))

    def spectra(w: NDArray[Any]) -> NDArray[np.float64]:
        grid = np.zeros((len(w), math.prod(extents)))
        if distinct:
            grid[:, places] = w
        else:
            for place, of_tap in zip(places, w.T, strict=True):
                grid[:, place] += of_tap
        whole = np.fft.rfft(grid.reshape(-1, *extents), lengths[-1])
        for axis in range(len(lengths) - 1, 0, -1):
            whole = np.fft.fft(whole, lengths[axis - 1], axis)
        values = [(whole.reshape(len(w), -1).T[place], sign) for place, sign in parts]
        return np.stack([v for z, sign in values for v in (z.real * scale, z.imag * sign)], 1)

    return spectra
