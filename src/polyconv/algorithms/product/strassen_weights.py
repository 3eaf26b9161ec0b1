"""Weights of Strassen's algorithm: summed for the seven products, in the order in which they stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.kernels.isa import lanes
from polyconv.kernels.language import Module
from polyconv.kernels.record import Function, Memory, Record, Word, filled, words
from polyconv.kernels.strassen import PRODUCTS, WeightSums, weight_sums
from polyconv.kernels.tile import ROW_WORDS
from polyconv.lowering.packing import Set, SourceWords, bring_rows, forward_strides, run, set_words, source_words
from polyconv.lowering.panel import Driver
from polyconv.lowering.program import Request, Step, address_of
from polyconv.runtime.arrays import unwritten

__all__ = ["packed", "scales"]


class SumWords(Record):
    """The driver's words.

    ``half`` of the entries; bytes from an output's weights to those of its partner, ``upper``, and from its scale to
    its partner's; bytes of the rows of a ``quarter`` in the scratch; the first output of every set.
    """

    weights: SourceWords
    half: Word
    upper: Word
    quarter: Word
    scales: Memory
    scale_upper: Word
    firsts: Memory
    sums: Function[WeightSums]


def driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver to a module: an item is a pair of sets of outputs."""
    with k.function(name, Driver) as given:
        p, rows = SumWords.read(k, given.words), given.workspace
        of_set, source, target = set_words(p.weights, given.item)
        scales = p.scales + k.word(p.firsts, given.item) * p.weights.word_bytes
        with k.loop(0, p.half, ROW_WORDS) as entry:
            count = k.minimum(p.half - entry.index, ROW_WORDS)
            with k.loop(0, 4) as quarter:
                # outputs of the first half with entries of both, then those of the second
                first = entry.index + (quarter.index & 1) * p.half
                bring_rows(
                    k, p.weights, of_set, source + (quarter.index >> 1) * p.upper, first, count,
                    rows + quarter.index * p.quarter, vector_bytes,
                )  # fmt: skip
            k.call(p.sums, WeightSums(
                rows, p.quarter, count, of_set.row, scales, scales + p.scale_upper,
                target + entry.index * of_set.row, p.half * of_set.row,
            ))  # fmt: skip


def packed(r: Request, w: NDArray[Any], scales: NDArray[Any], sets: Sequence[tuple[int, int]]) -> NDArray[Any]:
    """Weights (m, entries) over the scales of their outputs, summed: of a set [product][entry][output].

    Quotients are exact, but for weights that are far smaller than the largest of their output; sums are rounded once.
    """
    arith, w = r.arith, forward_strides(w)
    m, entries = w.shape
    half, lane = entries // 2, lanes(r.target, arith)
    of_sets: list[Set] = []
    at = 0
    for first, outputs in sets:
        width = -(-outputs // lane) * lane
        of_sets.append(Set(first, outputs, width, at, 0))
        at += PRODUCTS * half * width
    target, widest = unwritten(at, w.dtype), max(s.width for s in of_sets)
    divisors = np.ones(m + widest, w.dtype)  # lanes beyond the last output, whose weights are zeros, have some too
    np.copyto(divisors[:m], scales, where=scales > 0)
    quarter = ROW_WORDS * widest * w.itemsize
    element, vector_lanes = arith.accumulator, lane
    values = SumWords(
        weights=source_words(r, w[None, :, :, None], of_sets, target), half=half, upper=m // 2 * w.strides[0],
        quarter=quarter, scales=divisors, scale_upper=m // 2 * w.itemsize, firsts=words([s.first for s in of_sets]),
        sums=address_of(
            r, f"strassen weights {element} {lane}", "sums", WeightSums,
            lambda k, name: weight_sums(k, name, element, vector_lanes),
        ),
    )  # fmt: skip
    vector_bytes = r.target.vector_bytes
    address = address_of(r, "strassen pack", "pack", Driver, lambda k, name: driver(k, name, vector_bytes))
    keep: list[Any] = []
    run(r, Step(address, filled(values, keep), len(of_sets)), 4 * quarter, w.nbytes)
    return target


def scales(w: NDArray[Any]) -> NDArray[Any]:
    """The powers of two that divide the weights of outputs so that their sums are 1 to 2; 0 where there are none."""
    size = np.empty(len(w), np.float64)
    rows = max(1, _CHUNK // max(1, w.shape[1]))
    for first in range(0, len(w), rows):
        size[first : first + rows] = np.abs(w[first : first + rows]).sum(axis=1, dtype=np.float64)
    return np.where(size > 0, np.exp2(np.floor(np.log2(np.where(size > 0, size, 1.0)))), 0.0).astype(w.dtype)


_CHUNK = 1 << 15
"""Weights whose absolute values stay in a cache until they are summed."""
