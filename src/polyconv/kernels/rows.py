"""Winograd's transforms along columns of pixels, with neighbouring pixels of a row in the lanes, and their products.

Lanes never meet, so a group may have any number of channels on either side: nothing is padded to a vector, and no
value is moved between lanes.  Rows of planes are read and written as they lie.  ``transform`` has the arithmetic.  It
must know nothing of problems.
"""

from __future__ import annotations

from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.language import INT, Buffer, Mask, Module, Value, vector
from polyconv.kernels.layout import Block, Move
from polyconv.kernels.move import converted, store_out
from polyconv.kernels.signature import Int, Signature
from polyconv.kernels.transform import Scheme

__all__ = [
    "ENTRY_WORDS", "RowsIn", "RowsMultiply", "RowsOut", "rows_in", "rows_multiply", "rows_out",
]  # fmt: skip

ENTRY_WORDS = 2
"""Words of an entry, a channel of a tap: its offset in the transformed inputs, and rows of weights before its own."""


class RowsIn(Signature):
    """A row of tiles, to be transformed: pixels head..end of lines top..bottom come from memory, others are zeros.

    Pixel ``head`` of line 0 would lie at ``x``.  Targets are written by whole vectors, up to one more than ``count``
    pixels.
    """

    x: Buffer
    x_line: Int
    x_channel: Int
    target: Buffer
    target_point: Int
    target_channel: Int
    channels: Int
    head: Int
    end: Int
    count: Int
    top: Int
    bottom: Int


def rows_in(k: Module, name: str, spec: Move, y: Scheme, lanes: int, *, f16c: bool, asks: bool = False) -> None:
    """Add the way in.

    Parameters
    ----------
    asks : bool
        Ask for lines a channel ahead, but those that a row of tiles shares with the one above: what is read under a
        mask no hardware foresees.
    """
    block = Block(k, spec, vector(spec.target, lanes), f16c)
    kind = block.kind.of(LLVM_NAMES[spec.source])
    with k.function(name, RowsIn) as given:
        line, channel, channels = given.x_line, given.x_channel, given.channels
        nothing, every = (k.constant(vector("i1", lanes), bit) for bit in (0, 1))
        there = [(given.top <= i) & (given.bottom > i) for i in range(y.n)]
        rows = [k.select(here, every, nothing) for here in there]
        with k.loop(0, channels, carry=[given.x + (0 - given.head * kind.element_bytes), given.target]) as c:
            # to the same pixels of the next channel, or of the first one in the row of tiles below
            ahead = k.select(c.index + 1 < channels, channel, line * y.m - c.index * channel)
            with k.loop(0, given.count, lanes, carry=c.values) as u:
                source, place = u.values
                pixels = k.span(given.head - u.index, given.end - u.index, lanes)
                assert pixels.first is not None
                values, at = [], source
                for i, (here, row) in enumerate(zip(there, rows, strict=True)):
                    if asks and i >= y.n - y.m:
                        k.prefetch(at + ahead)
                    mask = Mask(pixels.bits & row, k.select(here, pixels.count, 0), k.select(here, pixels.first, 0))
                    values.append(converted(block, k.load_first(kind, at, mask), k.constant(INT, 0)))
                    at = at + line
                at = k.rebase(place)
                for value in y.forward(k, values):
                    k.store(value, at)
                    at = k.rebase(at + given.target_point)
                u.next(source + lanes * kind.element_bytes, place + lanes * block.kind.element_bytes)
            c.next(c.values[0] + channel, c.values[1] + given.target_channel)


class RowsMultiply(Signature):
    """Products of ``count`` entries, summed, at all ``points`` of a tile."""

    v: Buffer
    v_point: Int
    entries: Buffer
    count: Int
    weights: Buffer
    w_point: Int
    sums: Buffer
    s_point: Int
    s_row: Int
    points: Int


def rows_multiply(k: Module, name: str, element: str, lanes: int, rows: int, vectors: int) -> None:
    """Add the tile of ``rows`` output channels by ``vectors`` vectors; sums add their entries in their order."""
    kind = vector(element, lanes)
    with k.function(name, RowsMultiply) as given, k.loop(0, given.points) as point:
        source = k.rebase(given.v + point.index * given.v_point)
        stream = k.rebase(given.weights + point.index * given.w_point)
        with k.loop(0, given.count, carry=[k.constant(kind, 0)] * (rows * vectors)) as entry:
            place = given.entries + entry.index * (8 * ENTRY_WORDS)
            tiles = k.rebase(source + k.word(place))
            row = k.rebase(stream + k.word(place, 1) * (rows * kind.element_bytes))
            held = [k.load(kind, tiles + j * kind.bytes) for j in range(vectors)]
            total = list(entry.values)
            for r in range(rows):
                weight = k.broadcast(kind, row + r * kind.element_bytes)
                for j, value in enumerate(held):
                    total[r * vectors + j] = k.fma(weight, value, total[r * vectors + j])
            entry.next(*total)
        target = k.rebase(given.sums + point.index * given.s_point)
        for r in range(rows):
            for j in range(vectors):
                k.store(entry.results[r * vectors + j], target + j * kind.bytes)
            target = k.rebase(target + given.s_row)


class RowsOut(Signature):
    """A row of tiles on its way back: its first ``lines`` and ``pixels``, with their epilogue.

    Where an output is not finite ``flag`` becomes non-zero.
    """

    sums: Buffer
    sums_point: Int
    sums_channel: Int
    target: Buffer
    target_line: Int
    target_channel: Int
    channels: Int
    pixels: Int
    lines: Int
    bias: Buffer
    residual: Buffer
    r_line: Int
    r_channel: Int
    constants: Buffer
    flag: Buffer


def rows_out(k: Module, name: str, spec: Move, y: Scheme, lanes: int, *, f16c: bool, asks: bool = False) -> None:
    """Add the way back.

    Parameters
    ----------
    asks : bool
        Ask for lines of the result a channel ahead: they come from memory.
    """
    block = Block(k, spec, vector(spec.source, lanes), f16c)
    kind, size = block.kind, DTYPES[spec.target].itemsize
    with k.function(name, RowsOut) as given:
        line, target_channel, channels, lines = given.target_line, given.target_channel, given.channels, given.lines
        bias, residual = given.bias, given.residual
        nothing, every = (k.constant(vector("i1", lanes), bit) for bit in (0, 1))
        pixel_bytes = k.constant(INT, size)
        # lines that are not there have the place of one that is: see ``Buffer.rows``
        there = [lines > i for i in range(y.m)]
        stores = [
            store_out(block, bias, bias, residual + k.select(there[i], given.r_line * i, 0) if i else residual,
                      pixel_bytes, given.r_channel, given.constants)
            for i in range(y.m)
        ]  # fmt: skip
        steps = [k.select(each, line, 0) for each in there[1:]] + [line]
        inside = [k.select(each, every, nothing) for each in there]
        with k.loop(0, channels, carry=[given.sums, given.target, k.constant(kind, 0)]) as c:
            ahead = k.select(c.index + 1 < channels, target_channel, line * y.m - c.index * target_channel)
            with k.loop(0, given.pixels, lanes, carry=c.values) as u:
                source, place, seen = u.values
                mask = k.mask(given.pixels - u.index, lanes)
                at, products = source, []
                for _ in range(y.n):
                    products.append(k.load_first(kind, at, mask))
                    at = at + given.sums_point
                outputs = y.back(k, products)
                at = place
                for i, (value, store) in enumerate(zip(outputs, stores, strict=True)):
                    here = Mask(mask.bits & inside[i], k.select(there[i], mask.count, 0))
                    if asks:
                        k.prefetch(at + ahead, writing=True)
                    store(value, at, u.index, c.index, here)
                    at = at + steps[i]
                total: Value = outputs[0]
                for value in outputs[1:]:
                    total = total + value
                # 0 * Inf and 0 * NaN are NaN, of a sum too: one multiply-add finds them
                u.next(
                    source + lanes * kind.element_bytes, place + lanes * size, k.fma(total, k.constant(kind, 0), seen)
                )
            c.next(c.values[0] + given.sums_channel, c.values[1] + target_channel, u.results[2])
        found = k.any(c.results[2].is_nan())
        with k.when(found > 0):
            k.store(found, given.flag)
