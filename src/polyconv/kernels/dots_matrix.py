"""Tiles of the matrix unit: some registers of pixels by vectors of output channels, and their way out.

Rows of a register are pixels that lie a run-time step apart in a panel.  Some of them may be no outputs: ``pieces`` say
which are, and where their results go.  Sums are stored as they are, row by row, and leave from there as those of
``fused`` do.  It must not know how large a problem is.
"""

from __future__ import annotations

from polyconv.kernels import matrix_unit
from polyconv.kernels.fused import FusedTile, Out, less_windows
from polyconv.kernels.isa import ARITHMETIC
from polyconv.kernels.language import Buffer, Module, Value, vector
from polyconv.kernels.record import Record, Word, word_count
from polyconv.kernels.rescale import PACKED, packs_rows
from polyconv.kernels.signature import Int, Signature

__all__ = ["MATRIX_TILES", "PIECE_BYTES", "TILE_BYTES", "MatrixWalk", "PieceWords", "TileWords", "matrix_tile"]

MATRIX_TILES = {1: 4, 2: 2, 3: 1, 4: 1}
"""Vectors of output channels -> registers of pixels, of the largest tile: four registers have its sums."""


class TileWords(Record):
    """A register of pixels: bytes before the first, and the pieces that it has."""

    source: Word
    first: Word
    end: Word


class PieceWords(Record):
    """Some rows of a register that are outputs, and bytes before the result and the residual of the first."""

    row: Word
    count: Word
    y: Word
    r: Word


TILE_BYTES, PIECE_BYTES = 8 * word_count(TileWords), 8 * word_count(PieceWords)


class MatrixWalk(Signature):
    """So many ``groups`` of registers, from ``tiles`` on, by the vectors of a block.

    An entry is (offset, steps, rows of weights before it); a step multiplies so many ``words`` of so many ``rows``.
    ``sums`` is memory for the sums of two groups.  While a block is multiplied the weights of the next are on their
    way: every step asks for so many more ``lines`` of them, each as long as a vector, and every group begins
    ``asked_bytes`` behind where the group before it began.
    """

    source: Buffer
    row: Int
    rows: Int
    words: Int
    entries: Buffer
    count: Int
    weights: Buffer
    tiles: Buffer
    groups: Int
    pieces: Buffer
    y: Buffer
    y_row: Int
    residual: Buffer
    r_row: Int
    last: Int
    bias: Buffer
    scale: Buffer
    constants: Buffer
    sums: Buffer
    next_weights: Buffer
    lines: Int
    asked_bytes: Int


def matrix_tile(k: Module, name: str, spec: FusedTile, lanes: int, tiles: int, vectors: int, *, f16c: bool) -> None:
    """Add the tile of so many registers of pixels by ``vectors`` vectors of output channels.

    Bytes of a group leave while the next is multiplied: a register that is stored can be read only a while later.
    """
    kind = vector(ARITHMETIC[spec.arithmetic].accumulator, lanes)
    late = int(packs_rows(kind, spec.target, spec.epilogue, vectors))
    size = matrix_unit.TALLEST * vectors * kind.bytes
    with k.function(name, MatrixWalk) as given:
        out = Out(k, spec, kind, f16c, given.bias, given.scale, given.constants, given.last, "cc")

        def found(number: Value) -> tuple[list[TileWords], Buffer]:
            """Registers of a group, and where their sums lie."""
            place = given.tiles + number * (tiles * TILE_BYTES)
            sums = given.sums + (number & 1) * (tiles * size)
            return [TileWords.at(k, place, register) for register in range(tiles)], sums

        with k.loop(0, given.groups + late) as group:
            with k.when(group.index < given.groups):
                some, sums = found(group.index)
                ahead = given.next_weights + group.index * given.asked_bytes
                places = [given.source + tile.source for tile in some]
                _multiply(k, spec, given, places, sums, vectors, kind.bytes, ahead)
            with k.when(group.index >= late):
                some, sums = found(group.index - late)
                for number, tile in enumerate(some):
                    with k.loop(tile.first, tile.end) as turn:
                        piece = PieceWords.at(k, given.pieces, turn.index)
                        _leave(k, spec, given, out, piece, sums + number * size, vectors)


def _multiply(k: Module, spec: FusedTile, given: MatrixWalk, begins: list[Buffer], sums: Buffer, vectors: int,
              size: int, ahead: Buffer) -> None:  # fmt: skip
    """Store the sums of some registers of pixels, and ask for weights from ``ahead`` on."""
    arithmetic, wide = ARITHMETIC[spec.arithmetic], vectors * size
    for register in range(len(begins) * vectors):
        matrix_unit.clear(k, register)
    with k.loop(0, given.count, carry=[ahead]) as entry:
        place = given.entries + entry.index * 24
        offset, steps = k.word(place), k.word(place, 1)
        streamed = given.weights + k.word(place, 2) * wide
        with k.loop(0, steps, carry=[offset, streamed, *entry.values], runs=True) as step:
            at, weights, far = step.values
            _products(k, spec, given, [begin + at for begin in begins], weights, vectors, size)
            with k.loop(0, given.lines) as line:
                k.prefetch(far + line.index * size, far=True)
            step.next(at + given.words * arithmetic.bytes, weights + given.words * wide, far + given.lines * size)
        entry.next(step.results[2])
    for number in range(len(begins)):
        for j in range(vectors):
            place = sums + (number * matrix_unit.TALLEST * wide + j * size)
            matrix_unit.store(k, number * vectors + j, place, wide, given.rows, size)


def _products(k: Module, spec: FusedTile, given: MatrixWalk, places: list[Buffer], weights: Buffer, vectors: int,
              size: int) -> None:  # fmt: skip
    """Add the products of a step: registers of weights take turns, and those of pixels where vectors are few."""
    arithmetic, width = ARITHMETIC[spec.arithmetic], given.words * 4
    pixels, wide = matrix_unit.ROWS, vectors * size

    def load_weights(j: int) -> int:
        register = matrix_unit.WORDS[j % 2]
        matrix_unit.load(k, register, weights + j * size, wide, given.words, size)
        return register

    def load_pixels(number: int) -> int:
        register = pixels[number % 2]
        matrix_unit.load(k, register, places[number], given.row, given.rows, width)
        return register

    of_weights = [load_weights(j) for j in range(vectors)] if vectors <= len(matrix_unit.WORDS) else []
    for number in range(len(places)):
        own = load_pixels(number)
        for j in range(vectors):
            register = of_weights[j] if of_weights else load_weights(j)
            matrix_unit.multiply(k, arithmetic, number * vectors + j, own, register)


def _leave(k: Module, spec: FusedTile, given: MatrixWalk, out: Out, piece: PieceWords, sums: Buffer, vectors: int
           ) -> None:  # fmt: skip
    """Results of the rows of a piece: as many rows at once as vectors of bytes are packed together."""
    kind = out.block.kind
    together = max(1, PACKED // vectors) if packs_rows(kind, spec.target, spec.epilogue, vectors) else 1
    wide = vectors * kind.bytes

    def rows_from(count: int, place: Buffer, y: Buffer, residual: Buffer) -> tuple[Buffer, Buffer]:
        held = [k.load(kind, place + (row * wide + j * kind.bytes)) for row in range(count) for j in range(vectors)]
        held = less_windows(k, spec, held, vectors, given.weights)
        return out.store(held, vectors, y, given.y_row, residual, given.r_row)

    first = sums + piece.row * wide
    whole: Value = piece.count - piece.count % together
    carry = [first, given.y + piece.y, given.residual + piece.r]
    for low, high, count in ((0, whole, together), (whole, piece.count, 1))[: 2 if together > 1 else 1]:
        with k.loop(low, high, count, carry=carry) as loop:
            place, y, residual = loop.values
            y, residual = rows_from(count, place, y, residual)
            loop.next(place + count * wide, y, residual)
        carry = loop.results
