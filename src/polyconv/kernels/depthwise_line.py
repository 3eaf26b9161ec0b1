"""Depthwise tiles along a line: neighbouring vectors of pixels, whose taps lie along the lanes.

An entry of the list is some neighbouring taps and those a vector further on: every vector of the line is loaded once,
shifted in registers for each of the neighbours, since a load that crosses a line of the cache takes the time of two,
and multiplied for all vectors of outputs that it feeds.  It knows neither extents nor kernel size nor pads.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES, widen
from polyconv.kernels.language import INT, Module, Type, vector
from polyconv.kernels.layout import Block, Epilogue, Move, store_out

__all__ = ["AHEAD", "KINDS", "SETTINGS", "DepthwiseLine", "depthwise_line"]

AHEAD = 2 << 10
"""Bytes of the input ahead that are asked for."""

KINDS = 4
"""Most kinds of entries."""

_INTERLEAVED = 4
"""Vectors whose sums take turns: a sum waits for the one before it."""

SETTINGS = ("*entries", "*bias", "*scale", "*constants", *(f"count_{i}" for i in range(KINDS)))
"""What all calls of a step share: offsets of the entries in bytes, how many there are of every kind."""

# settings, input of the first tap, weights, result, residual, channel, lanes of the last vector that count
_SIGNATURE = ("buffer", "buffer", "buffer", "buffer", "buffer", "int", "int")


@dataclass(frozen=True, slots=True)
class DepthwiseLine:
    """A kind of tile.

    Parameters
    ----------
    source, target : str
        dtypes of input and result.
    element : str
        LLVM accumulator.
    epilogue : Epilogue
    taps : tuple of (int, int)
        Kinds of entries, in the list's order: neighbouring taps, and how many vectors on from each there is another.
        Entries of several neighbours read one vector more.
    ahead : bool
        Ask for memory ahead.
    """

    source: str
    target: str
    element: str
    epilogue: Epilogue
    taps: tuple[tuple[int, int], ...]
    ahead: bool


def depthwise_line(k: Module, name: str, spec: DepthwiseLine, lanes: int, vectors: int, *, f16c: bool) -> None:
    """Add the tile of some ``vectors`` of outputs, the last of which may be part of one."""
    kind = vector(spec.element, lanes)
    dtype = DTYPES[spec.source]
    memory = kind.of(LLVM_NAMES[dtype.name])
    whole = Type(f"i{8 * memory.element_bytes}", lanes)
    written = lanes * DTYPES[spec.target].itemsize
    with k.function(name, *_SIGNATURE) as (settings, x, weights, y, residual, channel, used):
        entries, bias, scale, constants = (k.buffer(settings, 2 * i) for i in range(4))
        zero = k.constant(INT, 0)
        w, start, totals = weights, zero, [k.constant(kind, 0)] * vectors
        for number, (across, deep) in enumerate(spec.taps):
            end = start + k.word(settings, 8 + number)
            with k.loop(start, end, carry=[w, *totals]) as entry:
                w, totals = entry.values[0], list(entry.values[1:])
                here = k.rebase(x + k.word(entries, entry.index))
                of_tap = [k.broadcast(kind, w + t * kind.element_bytes) for t in range(across * deep)]
                reach, held = vectors + deep - 1, [k.load(whole, here)]
                step = _INTERLEAVED if deep == 1 else 1  # outputs that two of a group feed would differ in order
                for first in range(0, reach, step):
                    group = range(first, min(first + step, reach))
                    held = held[-1:] + [
                        k.load(whole, here + (i + 1) * whole.bytes) for i in group if across > 1 or i + 1 < reach
                    ]
                    for j, i in itertools.product(range(across), group):
                        bits = held[i - first]
                        if j:
                            bits = k.shuffle(bits, held[i - first + 1], range(j, lanes + j))
                        value = bits if whole == memory else k.cast("bitcast", bits, memory)
                        value = widen(k, value, dtype, spec.element, f16c=f16c)
                        for q in range(max(0, i + 1 - vectors), min(deep, i + 1)):
                            totals[i - q] = k.fma(value, of_tap[j * deep + q], totals[i - q])
                entry.next(w + across * deep * kind.element_bytes, *totals)
            w, totals, start = entry.results[0], list(entry.results[1:]), end
        block = Block(k, Move(spec.element, spec.target, "pp", spec.epilogue), kind, f16c)
        last = k.mask(used, lanes)
        for i, total in enumerate(totals):
            if spec.ahead:
                k.prefetch(x + (AHEAD + i * memory.bytes))
                k.prefetch(y + (vectors + i) * written, writing=True)
            store = store_out(block, bias, scale, residual + i * written, zero, zero, constants)
            store(total, y + i * written, zero, channel, last if i == vectors - 1 else None)


