"""Tiles of the matrix unit whose lanes are pixels: some registers of output channels by some of neighbouring pixels.

Rows of a register of sums are output channels, its words pixels, so that results of a channel lie together as they
leave, in the ways of ``dots_pixels``.  Pixels are read as they lie in planes of words, or from a patch that is woven
before it is multiplied.  It must not know sizes of a problem.
"""

from __future__ import annotations

from polyconv.dtypes import DTYPES
from polyconv.kernels import matrix_unit
from polyconv.kernels.dots_pixels import DotPixels, PixelWalk, leaving, weaving
from polyconv.kernels.isa import ARITHMETIC, Arithmetic
from polyconv.kernels.language import INT, Buffer, Module, Type, Value, vector
from polyconv.kernels.record import Record, Word
from polyconv.kernels.signature import Int, altered

__all__ = ["MatrixPixelWalk", "PixelTile", "matrix_pixels"]


class PixelTile(Record):
    """A tile of a box: its pixels, the bytes of the panel and of ``gaps`` before its own, and its kind."""

    first: Word
    pixels: Word
    place: Word
    gaps: Word
    kind: Word


class MatrixPixelWalk(PixelWalk):
    """A walk over so many ``tiles`` from ``first_tile`` on, and blocks that together have so many ``outputs``.

    A step multiplies ``step_words`` words of each pixel, which lie ``plane`` bytes apart; ``steps`` of them each of the
    ``taps``, to which ``offsets`` lead.  A patch is one tap, and there is room for those of two tiles.  ``sums`` is
    memory for the sums of two blocks.
    """

    first_tile: Buffer
    tiles: Int
    outputs: Int
    taps: Int
    steps: Int
    step_words: Int
    plane: Int
    sums: Buffer


def matrix_pixels(k: Module, name: str, spec: DotPixels, lanes: int, vectors: int) -> None:
    """Add the tile of a register of output channels by ``vectors`` of pixels.

    Sums of a block leave, and the patch of the next tile is woven, while a block is multiplied: what is stored for a
    register, or by one, can be read only a while later.
    """
    arithmetic = ARITHMETIC[spec.arithmetic]
    kind = vector(arithmetic.accumulator, lanes)
    height, wide = matrix_unit.TALLEST, vectors * kind.bytes
    with k.function(name, MatrixPixelWalk) as g:
        of_block = g.taps * g.steps * (height * matrix_unit.PIXEL_BYTES)
        of_patch = g.steps * g.step_words * wide

        def of_tile(number: Value) -> MatrixPixelWalk:
            """The walk over a tile alone."""
            tile = PixelTile.at(k, g.first_tile, number)
            before = tile.first * g.y_pixel
            return altered(g, source=g.source + tile.place, pixels=tile.pixels, gaps=g.gaps + tile.gaps, y=g.y + before,
                           residual=g.residual + before, patch=g.patch + (number & 1) * of_patch)  # fmt: skip

        def sums(number: Value) -> Buffer:
            """Where the sums of a turn lie."""
            return g.sums + (number & 1) * (height * wide)

        if spec.patch:
            with k.when(g.tiles > 0):
                _weave(k, spec, of_tile(k.constant(INT, 0)), arithmetic, kind, vectors)
        turns = g.tiles * g.blocks
        with k.loop(0, turns + 1) as turn:
            now, before = turn.index, turn.index - 1
            with k.when(now < turns):
                number, block = now // g.blocks, now % g.blocks
                own, streamed = of_tile(number), g.weights + block * of_block
                _multiply(k, spec, own, arithmetic, streamed, sums(now), vectors)
                _ask(k, own, block * height, vectors * lanes * DTYPES[spec.target].itemsize)
                if spec.patch:
                    with k.when(block.equals(0) & (number + 1 < g.tiles)):
                        _weave(k, spec, of_tile(number + 1), arithmetic, kind, vectors)
            with k.when(now > 0):
                first = before % g.blocks * height
                _leave(k, spec, of_tile(before // g.blocks), kind, first, sums(before), vectors)


def _ask(k: Module, g: MatrixPixelWalk, first: Value, width: int) -> None:
    """Ask for the lines of a block's results, of so many bytes for each channel, a block before they leave.

    Lines of many planes are written in turn: nobody foresees them.  Measured on an Emerald Rapids, 14 layers: up to a
    fifth off where a second-level cache does not hold the results, up to 3 % more where it does.
    """
    with k.loop(0, k.minimum(g.outputs - first, matrix_unit.TALLEST), carry=[g.y + first * g.y_channel]) as row:
        for line in range(0, width, 64):
            k.prefetch(row.values[0] + line, far=True)
        row.next(row.values[0] + g.y_channel)


def _leave(k: Module, spec: DotPixels, g: MatrixPixelWalk, kind: Type, first: Value, sums: Buffer, vectors: int
           ) -> None:  # fmt: skip
    """Store results of a block whose first channel is so far from the walk's."""
    leave = leaving(k, spec, g, kind, vectors)
    before = first * g.y_channel
    begin = [sums, g.y + before, g.residual + before, g.bias + first * kind.element_bytes, g.scale + first * 4]
    with k.loop(0, k.minimum(g.outputs - first, matrix_unit.TALLEST), carry=begin) as row:
        at, y, residual, bias, scale = row.values
        held = [k.load(kind, at + j * kind.bytes) for j in range(vectors)]
        if spec.epilogue.bias and not kind.is_float:  # sums of floats get it at their end
            of_row = k.broadcast(kind, bias)
            held = [total + of_row for total in held]
        leave(held, y, residual, bias, scale)
        y, residual = y + g.y_channel, residual + g.y_channel
        row.next(at + vectors * kind.bytes, y, residual, bias + kind.element_bytes, scale + 4)


def _weave(k: Module, spec: DotPixels, g: MatrixPixelWalk, arithmetic: Arithmetic, kind: Type, vectors: int) -> None:
    """Weave a patch; words that steps have beyond a pixel's are zeros."""
    weave, wide = weaving(k, spec, g, arithmetic, vectors), vectors * kind.bytes
    with k.loop(0, g.words, carry=[g.patch]) as word:
        weave(word.index, word.values[0])
        word.next(word.values[0] + wide)
    with k.loop(g.words, g.steps * g.step_words, carry=word.results) as word:
        for j in range(vectors):
            k.store(k.constant(kind, 0), word.values[0] + j * kind.bytes)
        word.next(word.values[0] + wide)


def _multiply(k: Module, spec: DotPixels, g: MatrixPixelWalk, arithmetic: Arithmetic, weights: Buffer, sums: Buffer,
              vectors: int) -> None:  # fmt: skip
    """Store the sums of a block."""
    row_bytes, of_weights, tall = matrix_unit.PIXEL_BYTES, matrix_unit.ROWS[0], matrix_unit.TALLEST
    for j in range(vectors):
        matrix_unit.clear(k, j)
    plane: Value | int = vectors * row_bytes if spec.patch else g.plane
    with k.loop(0, g.taps, carry=[weights]) as tap:
        place = g.patch if spec.patch else g.source + k.word(g.offsets, tap.index)
        with k.loop(0, g.steps, carry=[place, *tap.values], runs=True) as step:
            pixels, streamed = step.values
            matrix_unit.load(k, of_weights, streamed, row_bytes, tall, g.step_words * arithmetic.bytes)
            for j in range(vectors):
                own = matrix_unit.WORDS[j % 2]
                matrix_unit.load(k, own, pixels + j * row_bytes, plane, g.step_words, row_bytes)
                matrix_unit.multiply(k, arithmetic, j, of_weights, own, turned=True)
            step.next(pixels + g.step_words * plane, streamed + tall * row_bytes)
        tap.next(step.results[1])
    for j in range(vectors):
        matrix_unit.store(k, j, sums + j * row_bytes, vectors * row_bytes, tall, row_bytes)
