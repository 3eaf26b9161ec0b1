"""Tiles of few output channels: lanes are the words of a window's line, whose products are added at the end.

A step multiplies as many neighbouring words of a pixel's window as a vector has lanes, by those of each output's
weights.  So no lane is idle where there are fewer outputs than lanes.  The sums of all lanes become one vector of
results: pixel by pixel, its outputs in order.  Needs AVX-512.  It must not know sizes of a problem.
"""

from __future__ import annotations

from polyconv.dtypes import DTYPES
from polyconv.kernels.fused import LEAPS, FusedTile, WordWalk
from polyconv.kernels.isa import ARITHMETIC
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import Block, Move
from polyconv.kernels.move import finished
from polyconv.kernels.tile import multiply_add

__all__ = ["inner_tile"]

_PIECE = 4
"""Lanes of 128 bits."""


def inner_tile(k: Module, name: str, spec: FusedTile, lanes: int, rows: int, outputs: int) -> None:
    """Add the tile of ``rows`` pixels by ``outputs`` output channels, no more together than lanes, to a module.

    An entry is (offset, vectors, vectors of each output's weights before it).  Biases and scales are those of a
    vector of results.
    """
    arithmetic = ARITHMETIC[spec.arithmetic]
    kind, words = (vector(element, lanes) for element in (arithmetic.accumulator, arithmetic.word))
    each = outputs + (spec.windows > "")
    with k.function(name, WordWalk) as g:
        first = g.weights + (kind.bytes if spec.windows == "each" else 0)
        leads, leap = [g.row * r for r in range(LEAPS)], g.row * LEAPS
        with k.loop(0, g.tiles, carry=[g.panel, g.y]) as tile:
            pixels, y = tile.values
            with k.loop(0, g.count, carry=[k.constant(kind, 0)] * (rows * each)) as entry:
                place = g.entries + entry.index * 24
                begin = first + k.word(place, 2) * (each * words.bytes)
                carry = [pixels + k.word(place), begin, *entry.values]
                with k.loop(0, k.word(place, 1), carry=carry, runs=True) as step:
                    a, b, *total = step.values
                    weights = [k.load(words, b + j * words.bytes) for j in range(each)]
                    pixel = k.opaque(a)
                    for r in range(rows):
                        if r and r % LEAPS == 0:
                            pixel = k.rebase(pixel + leap)
                        value = k.load(words, pixel + leads[r % LEAPS])
                        for j, weight in enumerate(weights):
                            total[r * each + j] = multiply_add(k, arithmetic, value, weight, total[r * each + j])
                    step.next(a + words.bytes, b + each * words.bytes, *total)
                entry.next(*step.results[2:])
            _store(k, spec, g, _added(k, entry.results), y, rows, outputs)
            tile.next(pixels + g.row * rows, y + g.y_row * rows)


def _added(k: Module, sums: list[Value]) -> Value:
    """A vector that has in each lane what the lanes of one of the sums are together, in their order."""
    count = sums[0].type.lanes
    for of_both in (  # within 128 bits: lanes two apart, then those beside each other
        ((0, count, 1, count + 1), (2, count + 2, 3, count + 3)),
        ((0, 1, count, count + 1), (2, 3, count + 2, count + 3)),
    ):
        sums = _paired(k, sums, *([first + at for first in range(0, count, _PIECE) for at in of] for of in of_both))
    pieces = count // _PIECE
    for some_pieces in (  # then 128 bits of each, far ones and neighbours
        (range(pieces // 2), range(pieces // 2, pieces)),
        (range(0, pieces, 2), range(1, pieces, 2)),
    ):
        sums = _paired(k, sums, *(
            [(piece + of) * _PIECE + lane for of in (0, pieces) for piece in some for lane in range(_PIECE)]
            for some in some_pieces
        ))  # fmt: skip
    return sums[0]


def _paired(k: Module, sums: list[Value], low: list[int], high: list[int]) -> list[Value]:
    """Half as many vectors: lanes ``low`` of each two, the last maybe itself, with lanes ``high`` added to them."""
    pairs = zip(sums[::2], [*sums[1::2], *sums[-1:]], strict=False)
    return [k.shuffle(a, b, low) + k.shuffle(a, b, high) for a, b in pairs]


def _store(k: Module, spec: FusedTile, g: WordWalk, sums: Value, y: Buffer, rows: int, outputs: int) -> None:
    """Store the results of a tile, or its sums, from a vector that has them pixel by pixel."""
    kind, zero = sums.type, k.constant(INT, 0)
    if spec.windows:
        each = outputs + 1
        lanes = [min(number, rows * outputs - 1) for number in range(kind.lanes)]
        of_windows = k.shuffle(sums, sums, [lane // outputs * each + outputs for lane in lanes])
        if spec.windows == "each":
            of_windows = of_windows * k.load(kind, g.weights)
        sums = k.shuffle(sums, sums, [lane // outputs * each + lane % outputs for lane in lanes]) - of_windows
    block = Block(k, Move(kind.element, spec.target, "cc", spec.epilogue), kind, False)
    finish = finished(block, g.bias, g.scale, g.residual, zero, zero, g.constants)
    value = finish(sums, zero, zero, None)
    size = DTYPES[spec.target].itemsize
    follow = g.y_row.equals(outputs * size)
    with k.when(follow):
        k.store_first(value, y, k.mask(k.constant(INT, rows * outputs), kind.lanes))
    with k.when(follow, otherwise=True):
        for r in range(rows):
            k.store(k.shuffle(value, value, range(r * outputs, (r + 1) * outputs)), y + g.y_row * r)
