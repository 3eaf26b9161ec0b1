"""The tile of a transposed convolution whose lanes are pixels: neighbouring outputs in all phases, woven together.

Outputs a stride apart read the same inputs through other taps.  A tile has those of all phases of the last axis for
some output channels and vectors of pixels; its results are merged in registers and leave as whole lines, each once.
Where the kernel's length is no multiple of the stride the first phases have one tap more.
The chain of additions of a sum is the order of the entries, then that of their taps.  It must not know sizes of a
problem.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from polyconv.dtypes import DTYPES
from polyconv.kernels.fused import FusedTile
from polyconv.kernels.isa import ARITHMETIC
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import Block, Move, woven
from polyconv.kernels.move import store_out
from polyconv.kernels.signature import Int, Signature
from polyconv.kernels.tile import multiply_add

__all__ = ["WeaveTile", "weave_tile"]


class WeaveTile(Signature):
    """Outputs of some channels in all phases, from ``count`` entries of so many ``taps``.

    Tiles ask from ``ahead`` on for what comes next where ``asks`` is -1, not where it is 0.  Steps of result and
    residual are those between channels; in a row the tile's results from ``head`` to ``end`` are there.
    """

    panel: Buffer
    ahead: Buffer
    asks: Int
    entries: Buffer
    count: Int
    taps: Int
    weights: Buffer
    y: Buffer
    y_channel: Int
    residual: Buffer
    r_channel: Int
    head: Int
    end: Int
    bias: Buffer
    scale: Buffer
    constants: Buffer


def weave_tile(k: Module, name: str, spec: FusedTile, lanes: int, rows: int, phases: int, longer: int, vectors: int,
               *, f16c: bool) -> None:  # fmt: skip
    """Add the tile of ``rows`` output channels by ``vectors`` vectors of pixels.

    An entry is the offset of a plane's pixels in the panel, for the first of the taps that all phases have, and that
    of a line of inputs which a later panel needs.

    Parameters
    ----------
    phases : int
        The stride.
    longer : int
        How many phases have one tap more, of the pixels before.
    """
    arithmetic = ARITHMETIC[spec.arithmetic]
    kind, words = (vector(element, lanes) for element in (arithmetic.accumulator, arithmetic.word))
    with k.function(name, WeaveTile) as given:
        y, residual, head, end = given.y, given.residual, given.head, given.end
        result_bytes = DTYPES[spec.target].itemsize
        masks = []
        if spec.edge:
            masks = [k.span(head - first, end - first, lanes) for first in range(0, phases * vectors * lanes, lanes)]

        for r in range(rows):  # else stores wait for memory
            for line in range(0, phases * vectors * lanes * result_bytes, 64):
                k.prefetch(y + (given.y_channel * r if r else 0) + line, writing=True)

        def multiplied(pixels: Buffer, b: Buffer, held: Sequence[Value], of: int) -> list[Any]:
            """The weights that follow, and sums with a tap's products for the first phases."""
            total = list(held)
            of_pixels = [k.load(words, pixels + j * kind.bytes) for j in range(vectors)]
            for row, (r, phase) in enumerate(itertools.product(range(rows), range(of))):
                weight = k.broadcast(words, b + row * arithmetic.bytes)
                for j, value in enumerate(of_pixels, (r * phases + phase) * vectors):
                    total[j] = multiply_add(k, arithmetic, weight, value, total[j])
            return [b + rows * of * arithmetic.bytes, *total]

        start = [given.weights, *[k.constant(kind, 0)] * (rows * phases * vectors)]
        with k.loop(0, given.count, carry=start, runs=True) as entry:
            here = given.entries + entry.index * 16
            place = k.rebase(given.panel + k.word(here))
            k.prefetch(given.ahead + (k.word(here, 1) & given.asks))
            with k.loop(0, given.taps, carry=[place, *entry.values], runs=True) as tap:
                pixels, b, *held = tap.values
                tap.next(pixels + arithmetic.bytes, *multiplied(k.rebase(pixels), b, held, phases))
            b, *held = tap.results[1:]
            entry.next(*(multiplied(place + -arithmetic.bytes, b, held, longer) if longer else (b, *held)))
        sums = entry.results[1:]
        block = Block(k, Move(kind.element, spec.target, "pp", spec.epilogue), kind, f16c)
        zero = k.constant(INT, 0)
        for r in range(rows):
            runs = [woven(k, sums[r * phases * vectors + j : (r + 1) * phases * vectors : vectors])
                    for j in range(vectors)]  # fmt: skip
            for i, value in enumerate(value for run in runs for value in run):
                at = i * lanes * result_bytes
                store = store_out(block, given.bias, given.scale, residual + at, zero, zero, given.constants)
                store(value, y + at, zero, k.constant(INT, r), masks[i] if masks else None)
            y, residual = y + given.y_channel, residual + given.r_channel
