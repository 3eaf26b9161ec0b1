"""Depthwise tiles along a line: neighbouring vectors of pixels, whose taps lie along the lanes.

An entry of the list is some neighbouring taps: every vector of the line is loaded once and shifted in registers for
each of them, since a load that crosses a line of the cache takes the time of two.  Taps are added in their order, as
by other tiles.  It knows neither extents nor kernel size nor pads.
"""

from __future__ import annotations

import itertools

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.kernels.depthwise_tile import Tile, store_sums
from polyconv.kernels.epilogue import EpilogueTables
from polyconv.kernels.language import INT, Buffer, Module, Type, vector
from polyconv.kernels.record import Memory, Record, Word, at_once
from polyconv.kernels.signature import Int, Signature

__all__ = ["AHEAD", "DepthwiseLine", "Line", "LineSettings", "depthwise_line"]

AHEAD = 2 << 10
"""Bytes of the input ahead that are asked for."""

_INTERLEAVED = 4
"""Vectors whose sums take turns: a sum waits for the one before it."""


class LineSettings(Record):
    """What all calls of a step share: offsets of the entries in bytes, how many are of the first kind, and others."""

    entries: Memory
    tables: EpilogueTables
    count: Word
    others: Word


class Line(Signature):
    """A tile's outputs: the input is that of the first tap, and so many lanes of the last vector are ``used``."""

    settings: LineSettings
    x: Buffer
    weights: Buffer
    y: Buffer
    residual: Buffer
    channel: Int
    used: Int


@dataclass(frozen=True, slots=True)
class DepthwiseLine(Tile):
    """A kind of tile, beside what all say.

    Parameters
    ----------
    taps : tuple of int
        The kinds of entries, one or two, in the list's order: neighbouring taps.  Entries of several read one vector
        more.
    ahead : bool
        Ask for memory ahead.
    """

    taps: tuple[int, ...]
    ahead: bool


def depthwise_line(k: Module, name: str, spec: DepthwiseLine, lanes: int, vectors: int, *, f16c: bool) -> None:
    """Add the tile of some ``vectors`` of outputs, the last of which may be part of one."""
    kind = vector(spec.element, lanes)
    memory = spec.in_memory(lanes)
    whole = Type(f"i{8 * memory.element_bytes}", lanes)
    written = lanes * DTYPES[spec.target].itemsize
    with k.function(name, Line) as given:
        settings, x, y = given.settings, given.x, given.y
        entries, tables = settings.entries, at_once(settings.tables)
        zero = k.constant(INT, 0)
        w, start, totals = given.weights, zero, [k.constant(kind, 0)] * vectors
        for number, across in enumerate(spec.taps):
            end = start + (settings.others if number else settings.count)
            with k.loop(start, end, carry=[w, *totals]) as entry:
                w, totals = entry.values[0], list(entry.values[1:])
                here = k.rebase(x + k.word(entries, entry.index))
                of_tap = [k.broadcast(kind, w + t * kind.element_bytes) for t in range(across)]
                held = [k.load(whole, here)]
                for first in range(0, vectors, _INTERLEAVED):
                    group = range(first, min(first + _INTERLEAVED, vectors))
                    held = held[-1:] + [
                        k.load(whole, here + (i + 1) * whole.bytes) for i in group if across > 1 or i + 1 < vectors
                    ]
                    for j, i in itertools.product(range(across), group):
                        bits = held[i - first]
                        if j:
                            bits = k.shuffle(bits, held[i - first + 1], range(j, lanes + j))
                        value = bits if whole == memory else k.cast("bitcast", bits, memory)
                        totals[i] = k.fma(spec.as_factor(k, value, f16c=f16c), of_tap[j], totals[i])
                entry.next(w + across * kind.element_bytes, *totals)
            w, totals, start = entry.results[0], list(entry.results[1:]), end
        out = spec.way_out(k, "pp", lanes, f16c=f16c)
        last = k.mask(given.used, lanes)
        for i, total in enumerate(totals):
            if spec.ahead:
                k.prefetch(x + (AHEAD + i * memory.bytes))
                k.prefetch(y + (vectors + i) * written, writing=True)
            mask = last if i == vectors - 1 else None
            store_sums(out, tables, total, y + i * written, given.residual + i * written, given.channel, mask)


