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
from polyconv.kernels.layout import Block, Move, store_out, woven

__all__ = ["weave_tile"]

# panel; place from which to ask for what comes next, and -1 to ask, 0 not to; entries, their number and taps, weights;
# result and residual with their steps between channels, the first of the tile's results in a row that is there and the
# one after the last, bias, scale, constants
_SIGNATURE = (
    "buffer", "buffer", "int", "buffer", "int", "int", "buffer", "buffer", "int", "buffer", "int", "int", "int",
    "buffer", "buffer", "buffer",
)  # fmt: skip


def weave_tile(k: Module, name: str, spec: FusedTile, lanes: int, rows: int, phases: int, longer: int, vectors: int,
               *, f16c: bool) -> None:  # fmt: skip
    """Add the tile of ``rows`` output channels by ``vectors`` vectors of pixels.

    An entry is the offset of a channel's pixels in the panel, for the first of the taps that all phases have, and that
    of a line of inputs which a later panel needs.

    Parameters
    ----------
    phases : int
        The stride.
    longer : int
        How many phases have one tap more, of the pixels before.
    """
    arithmetic = ARITHMETIC[spec.arithmetic]
    kind = vector(arithmetic.accumulator, lanes)
    with k.function(name, *_SIGNATURE) as given:
        panel, ahead, asks, entries, n, taps, weights, y, y_step, residual, r_step, *rest = given
        head, end, bias, scale, constants = rest
        result_bytes = DTYPES[spec.target].itemsize
        masks = []
        if spec.edge:
            masks = [k.span(head - first, end - first, lanes) for first in range(0, phases * vectors * lanes, lanes)]

        for r in range(rows):  # else stores wait for memory
            for line in range(0, phases * vectors * lanes * result_bytes, 64):
                k.prefetch(y + (y_step * r if r else 0) + line, writing=True)

        def multiplied(pixels: Buffer, b: Buffer, held: Sequence[Value], of: int) -> list[Any]:
            """The weights that follow, and sums with a tap's products for the first phases."""
            total = list(held)
            of_pixels = [k.load(kind, pixels + j * kind.bytes) for j in range(vectors)]
            for row, (r, phase) in enumerate(itertools.product(range(rows), range(of))):
                weight = k.broadcast(kind, b + row * arithmetic.bytes)
                for j, value in enumerate(of_pixels, (r * phases + phase) * vectors):
                    total[j] = k.fma(weight, value, total[j])
            return [b + rows * of * arithmetic.bytes, *total]

        with k.loop(0, n, carry=[weights, *[k.constant(kind, 0)] * (rows * phases * vectors)], runs=True) as entry:
            here = entries + entry.index * 16
            place = k.rebase(panel + k.word(here))
            k.prefetch(ahead + (k.word(here, 1) & asks))
            with k.loop(0, taps, carry=[place, *entry.values], runs=True) as tap:
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
                store = store_out(block, bias, scale, residual + at, zero, zero, constants)
                store(value, y + at, zero, k.constant(INT, r), masks[i] if masks else None)
            y, residual = y + y_step, residual + r_step
