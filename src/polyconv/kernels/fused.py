"""The register tiles with their way out: sums get their epilogue in registers and go straight to the result.

Both orientations of ``tile``, for results whose lanes lie together.  What differs from those tiles: rows of a panel
lie a run-time step apart, so that a run of pixels with few channels is read as it lies; and a call walks several
tiles along a line, since with few products a call costs as much as they do.
The chain of additions of a sum is the order of the list, as in ``tile``; it must not know sizes of a problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES, rounded_pair, widen
from polyconv.kernels.epilogue import Epilogue
from polyconv.kernels.isa import ARITHMETIC
from polyconv.kernels.language import INT, Buffer, Module, Type, Value, vector
from polyconv.kernels.layout import Block, Move
from polyconv.kernels.move import finished, rounds_pairs, store_out
from polyconv.kernels.rescale import PACKED, packed_bytes, packed_place, packs_rows
from polyconv.kernels.signature import Int, Signature
from polyconv.kernels.steps import repeated
from polyconv.kernels.tile import ask_early, multiply_add

__all__ = [
    "FusedTile", "Out", "PlaceWalk", "Walk", "WordWalk", "ask_for_results", "fused_channel_tile",
    "fused_pixel_tile", "lanes_apart", "leads_of", "less_windows", "of_sums", "places_of_rows",
]  # fmt: skip


class Walk(Signature):
    """So many ``tiles`` along a line.

    ``row`` is the step between rows of the panel, ``y_row`` and ``r_row`` those of result and residual; so many lanes
    of the ``last`` vector count.  Tiles that ask for lines early do so from ``early`` on, to others it is any place.
    """

    panel: Buffer
    row: Int
    entries: Buffer
    count: Int
    weights: Buffer
    y: Buffer
    y_row: Int
    residual: Buffer
    r_row: Int
    tiles: Int
    last: Int
    bias: Buffer
    scale: Buffer
    constants: Buffer
    early: Buffer


class WordWalk(Walk):
    """A walk over pixels whose words, of several channels each, lie ``word`` bytes apart."""

    word: Int


class PlaceWalk(WordWalk):
    """A walk over pixels in place: lanes of results and residuals lie so many bytes apart, if a tile has them apart."""

    y_word: Int
    r_word: Int


_FIRST_OF_TWO = 0xFFFF
"""The bits of the first channel of a word of two."""

_MOST_TOGETHER = 7
"""Rows of a vector each whose steps may stand together.  Of more, LLVM puts sums aside between two steps with AVX2:
tiles of 8 to 12 rows take 1.15 to 1.3 times as long.  Measured on a Zen 3."""

_LEAPS = 4
"""Rows of a panel that are found from one pointer.  With one each, loads wait for a chain of additions as long as the
tile is tall.  Measured on Zen 5: 1-5 % off, 10 % where the other thread of the core is busy."""


@dataclass(frozen=True, slots=True)
class FusedTile:
    """A kind of tile.

    Parameters
    ----------
    arithmetic : str
        Row of ``ARITHMETIC``.
    target : str
        dtype of the result.
    epilogue : Epilogue
    edge : bool
        Whether the last vector of a row is masked.
    asked : int
        Lines of the input that each step asks for, long before they are read: of tiles that walk one or none.
    written : int
        So many tiles ahead of the one that will write them lines of results are asked for, if not 0: of point tiles.
    half : bool
        Whether only the first channel of an entry's last word counts, of two: the other may be Inf or NaN.
    windows : str
        ``all``: the sum in the last lane of a pixel's last vector is taken off all of its sums; ``each``: times what a
        row before the weights has for every lane; empty: that sum is one as the others.
    beside : int
        Groups side by side in the vectors of a row: each lane's word is picked from as many bytes of a pixel as a
        vector has, by a row of places before all weights.  0 where all lanes have the same word.  Each has a sum of
        ``windows`` of its own then, in the last lanes.
    width : int
        Outputs of each of these groups, where there are ``windows``.
    source : str
        dtype of pixels that are read in place, and converted as they are; empty where words are those of a panel.
    apart : bool
        Of such a tile, whether lanes lie apart where they are read or written, as arrays need not be contiguous.
    padded : bool
        Of a point tile whose lanes are pixels, whether it may read a whole vector of which some lanes do not count.
    """

    arithmetic: str
    target: str
    epilogue: Epilogue
    edge: bool = False
    asked: int = 0
    written: int = 0
    half: bool = False
    windows: str = ""
    beside: int = 0
    width: int = 0
    source: str = ""
    apart: bool = False
    padded: bool = False


def leads_of(row: Value, rows: int = _LEAPS) -> list[Value]:
    """Steps to the first of so many rows from one pointer, and the leap to the next pointer."""
    return [row * r for r in range(min(rows, _LEAPS))] + [row * _LEAPS]


def places_of_rows(k: Module, first: Buffer, leads: Sequence[Value], rows: int) -> Iterator[Buffer]:
    """Where rows lie from the first one on, a few from each pointer."""
    *steps, leap = leads
    pointer = k.opaque(first)
    for r in range(rows):
        if r and r % _LEAPS == 0:
            pointer = k.rebase(pointer + leap)
        yield pointer + steps[r % _LEAPS]


def of_sums(arithmetic: str) -> FusedTile:
    """The tile that stores its sums as they are."""
    accumulator = ARITHMETIC[arithmetic].accumulator
    target = {"float": "f32", "double": "f64"}.get(accumulator, accumulator)
    return FusedTile(arithmetic, target, Epilogue())


def fused_channel_tile(k: Module, name: str, spec: FusedTile, lanes: int, rows: int, vectors: int, *,
                       f16c: bool) -> None:  # fmt: skip
    """Add the tile of ``rows`` pixels by ``vectors`` vectors of output channels.

    An entry is (offset, words, rows of weights before it), so that a list may leave some out.  Words of one channel
    follow each other in a panel; others lie as a ``WordWalk`` says.
    """
    arithmetic = ARITHMETIC[spec.arithmetic]
    kind, words = (vector(element, lanes) for element in (arithmetic.accumulator, arithmetic.word))
    with k.function(name, PlaceWalk if spec.source else Walk if arithmetic.channels == 1 else WordWalk) as given:
        step, align = (given.word, 1) if isinstance(given, WordWalk) else (arithmetic.bytes, None)
        from_zero = kind.is_float or not spec.epilogue.bias
        after = spec if from_zero else replace(spec, epilogue=replace(spec.epilogue, bias=False))
        out = Out(k, after, kind, f16c, given.bias, given.scale, given.constants, given.last, "cc",
                  lanes_apart(spec, given))  # fmt: skip
        leads = leads_of(given.row)
        asks, factors, picks = spec.asked, given.weights, list[Value]()
        if spec.beside:
            of_bytes, factors = vector("i8", kind.bytes), factors + vectors * kind.bytes
            picks = [k.load(of_bytes, given.weights + j * kind.bytes) for j in range(vectors)]
        with k.loop(0, given.tiles, carry=[given.panel, given.y, given.residual, *[given.early] * asks]) as group:
            rows_in, rows_out, rows_beside, *soon = group.values
            if vectors > 1 and not spec.apart:  # with one, loads are what a tile waits for
                ask_for_results(k, rows_out + given.y_row * rows, given.y_row, rows, vectors, out.bytes)
            begin = [k.constant(kind, 0)] * vectors if from_zero else out.of_channels(given.bias, kind, vectors)
            with k.loop(0, given.count, carry=[*soon, *begin * rows]) as entry:
                place = given.entries + entry.index * 24
                run, count = rows_in + k.word(place), k.word(place, 1)
                streamed = given.weights + k.word(place, 2) * (vectors * kind.bytes)

                def multiplied(a: Buffer, b: Buffer, carried: list[Any], keep: int | None = None) -> list[Any]:
                    """The carried values after a word, of which the bits to ``keep`` count."""
                    soon, total = _asked(k, carried, asks)
                    ask_early(k, b, kind, vectors)
                    of_b = [k.load(words, b + j * kind.bytes) for j in range(vectors)]
                    for r, at in enumerate(places_of_rows(k, a, leads, rows)):
                        if spec.source:
                            value = _spread(k, spec, words, at, f16c)
                        else:
                            value = k.load(words, at, 1) if spec.beside else k.broadcast(words, at, align)
                        value = value if keep is None else value & keep
                        for j in range(vectors):
                            own = k.picked(value, picks[j]) if spec.beside else value
                            held = total[r * vectors + j]
                            total[r * vectors + j] = multiply_add(k, arithmetic, own, of_b[j], held)
                    return [*soon, *total]

                def word(_: Value, values: list[Any]) -> list[Any]:
                    a, b, *carried = values
                    found = multiplied(a, b, carried)
                    return [a + step, b + vectors * kind.bytes, *found]

                whole = count - 1 if spec.half else count
                a, b, *carried = repeated(
                    k, arithmetic, whole, [run, streamed, *entry.values], word, runs=not spec.half,
                    alone=vectors == 1 and rows > _MOST_TOGETHER,
                )
                entry.next(*(multiplied(a, b, carried, _FIRST_OF_TWO) if spec.half else carried))
            sums = less_windows(k, spec, entry.results[asks:], vectors, factors)
            group.next(
                rows_in + given.row * rows,
                *out.store(sums, vectors, rows_out, given.y_row, rows_beside, given.r_row),
                *entry.results[:asks],
            )


def _spread(k: Module, spec: FusedTile, kind: Type, place: Buffer, f16c: bool) -> Value:
    """An element of the source in every lane."""
    lying = kind.scalar.of(LLVM_NAMES[spec.source])
    return k.splat(widen(k, k.load(lying, place), DTYPES[spec.source], kind.element, f16c=f16c), kind.lanes)


def less_windows(k: Module, spec: FusedTile, sums: list[Value], vectors: int, factors: Buffer) -> list[Value]:
    """Sums of rows of so many vectors, less what ``windows`` says."""
    if not spec.windows:
        return sums
    kind, found = sums[0].type, list[Value]()
    last, lanes = kind.lanes - max(1, spec.beside), range(kind.lanes)  # where windows begin, of one group or several
    of_lanes = [
        [last + min(max(0, spec.beside - 1), (j * kind.lanes + lane) // max(1, spec.width)) for lane in lanes]
        for j in range(vectors)
    ]
    times = [k.load(kind, factors + j * kind.bytes) for j in range(vectors)] if spec.windows == "each" else []
    for first in range(0, len(sums), vectors):
        row = sums[first : first + vectors]
        of_windows = [k.shuffle(row[-1], row[-1], of_vector) for of_vector in of_lanes]
        taken = [of_window * factor for of_window, factor in zip(of_windows, times, strict=False)] or of_windows
        found += [total - less for total, less in zip(row, taken, strict=True)]
    return found


def fused_pixel_tile(k: Module, name: str, spec: FusedTile, lanes: int, rows: int, vectors: int, *,
                     f16c: bool) -> None:  # fmt: skip
    """Add the tile of ``rows`` output channels by ``vectors`` vectors of pixels; an entry is an offset.

    Tiles follow each other along the pixels: ``row`` is not used, rows of the result are channels.
    """
    arithmetic = ARITHMETIC[spec.arithmetic]
    kind = vector(arithmetic.accumulator, lanes)
    with k.function(name, Walk) as given:
        out = Out(k, spec, kind, f16c, given.bias, given.scale, given.constants, given.last, "pp")
        asks = spec.asked
        with k.loop(0, given.tiles, carry=[given.panel, given.y, given.residual, *[given.early] * asks]) as group:
            pixels_in, rows_out, rows_beside, *soon = group.values
            held = [k.constant(kind, 0)] * (rows * vectors)

            def entry(index: Value, values: list[Any]) -> list[Any]:
                b, *total = values
                soon, total = _asked(k, total, asks)
                place = k.rebase(pixels_in + k.word(given.entries, index))
                pixels = [k.load(kind, place + j * kind.bytes) for j in range(vectors)]
                for r in range(rows):
                    value = k.broadcast(kind, b + r * arithmetic.bytes)
                    for j in range(vectors):
                        total[r * vectors + j] = k.fma(value, pixels[j], total[r * vectors + j])
                return [b + rows * arithmetic.bytes, *soon, *total]

            _, *found = repeated(k, arithmetic, given.count, [given.weights, *soon, *held], entry, runs=False)
            out.store(found[asks:], vectors, rows_out, given.y_row, rows_beside, given.r_row)
            along = vectors * out.bytes
            group.next(pixels_in + vectors * kind.bytes, rows_out + along, rows_beside + along, *found[:asks])


def _asked(k: Module, carried: list[Any], asks: int) -> tuple[list[Any], list[Any]]:
    """Ask for the line at the first of the carried values, if there is such; where the next lies, the other values."""
    for place in carried[:asks]:
        k.prefetch(place, far=True)
    return [place + 64 for place in carried[:asks]], carried[asks:]


def ask_for_results(k: Module, y: Buffer, y_step: Value, rows: int, vectors: int, size: int) -> None:
    """Ask for the lines that a tile will write, before it does: else its stores wait for memory.

    Measured on Zen 5: 20 % off where results are more than the caches hold (22 MB), nothing where they are less.
    """
    for _ in range(rows):
        for line in range(0, vectors * size, 64):
            k.prefetch(y + line, writing=True)
        y = y + y_step


def lanes_apart(spec: FusedTile, given: Walk) -> tuple[Value, Value] | None:
    """Bytes between lanes of results and of residuals, if they lie apart."""
    return (given.y_word, given.r_word) if spec.apart and isinstance(given, PlaceWalk) else None


class Out:
    """Stores of one tile: epilogue, conversion, and a mask for its last vector.

    Lanes of results and residuals follow each other, or lie so many bytes ``apart``.
    """

    def __init__(self, k: Module, spec: FusedTile, kind: Type, f16c: bool, bias: Buffer, scale: Buffer,
                 constants: Buffer, last: Value, along: str, apart: tuple[Value, Value] | None = None
                 ) -> None:  # fmt: skip
        self.k, self.tables, self.zero = k, (bias, scale), k.constant(INT, 0)
        self.constants, self.last, self.apart = constants, last, apart
        move = Move(kind.element, spec.target, along, spec.epilogue)
        self.block = Block(k, move, kind, f16c, None, None if apart is None else apart[0])
        self.mask = k.mask(last, kind.lanes) if spec.edge else None
        self.bytes = kind.lanes * DTYPES[spec.target].itemsize

    def of_channels(self, table: Buffer, kind: Type, vectors: int) -> list[Value]:
        """What a table has for the channels of a row."""
        places = [(table + j * kind.bytes, self.mask if j == vectors - 1 else None) for j in range(vectors)]
        return [
            self.k.load(kind, at) if mask is None else self.k.load_first(kind, at, mask) for at, mask in places
        ]  # fmt: skip

    def store(self, sums: Sequence[Value], vectors: int, y: Buffer, y_step: Value, residual: Buffer,
              r_step: Value) -> tuple[Buffer, Buffer]:  # fmt: skip
        """Store rows of ``vectors`` sums; the places of result and residual after the last row.

        A row is a pixel, whose lanes are channels, or a channel, whose lanes are pixels.
        """
        k, spec, by_channel = self.k, self.block.spec, self.block.spec.along == "cc"
        assert spec.epilogue is not None
        together, lanes = self.apart is None, self.block.kind.lanes
        if together and by_channel and packs_rows(self.block.kind, spec.target, spec.epilogue, vectors):
            return self._store_packed(sums, vectors, y, y_step, residual, r_step)
        if together and vectors % 2 == 0 and rounds_pairs(self.block.kind, spec.target, spec.epilogue):
            return self._store_pairs(sums, vectors, y, y_step), residual
        y_vector, r_vector = (self.bytes,) * 2 if self.apart is None else (step * lanes for step in self.apart)
        r_lane = self.zero if self.apart is None else self.apart[1]
        for first in range(0, len(sums), vectors):
            for j in range(vectors):
                channel = k.constant(INT, j * lanes if by_channel else first // vectors)
                beside = residual + r_vector * j
                store = store_out(self.block, *self.tables, beside, r_lane, self.zero, self.constants)
                mask = self.mask if j == vectors - 1 else None
                store(sums[first + j], y + y_vector * j, self.zero, channel, mask)
            y, residual = y + y_step, residual + r_step
        return y, residual

    def _store_pairs(self, sums: Sequence[Value], vectors: int, y: Buffer, y_step: Value) -> Buffer:
        """Store rows of bf16, of which one instruction makes a vector of two of sums."""
        k, kind, zero = self.k, self.block.kind, self.zero
        floats = Block(k, replace(self.block.spec, target="f32"), kind, False)
        finish = finished(floats, *self.tables, y, zero, zero, self.constants)
        whole = None if self.mask is None else k.mask(self.last + kind.lanes, 2 * kind.lanes)
        for first in range(0, len(sums), vectors):
            found = []
            for j in range(vectors):
                channel = j * kind.lanes if self.block.spec.along == "cc" else first // vectors
                mask = self.mask if j == vectors - 1 else None
                found.append(finish(sums[first + j], zero, k.constant(INT, channel), mask))
            for j in range(0, vectors, 2):
                value, place = rounded_pair(k, *found[j : j + 2]), y + j * self.bytes
                if whole is None or j + 2 < vectors:
                    k.store(value, place)
                else:
                    k.store_first(value, place, whole)
            y = y + y_step
        return y

    def _store_packed(self, sums: Sequence[Value], vectors: int, y: Buffer, y_step: Value, residual: Buffer,
                      r_step: Value) -> tuple[Buffer, Buffer]:  # fmt: skip
        """Store rows of bytes, as many at once as vectors of sums are packed together."""
        k, spec, kind, (bias, scale) = self.k, self.block.spec, self.block.kind, self.tables
        assert spec.epilogue is not None
        if spec.epilogue.bias:
            sums = [a + b for a, b in zip(sums, self.of_channels(bias, kind, vectors) * len(sums), strict=False)]
        scales, row = self.of_channels(scale, kind.of("float"), vectors), vectors * kind.lanes
        together = PACKED // vectors * vectors
        for first in range(0, len(sums), together):
            some, beside = sums[first : first + together], list[Value]()
            for _ in range(len(some) // vectors if spec.epilogue.residual else 0):
                read = self.of_channels(residual, kind.of("i8"), vectors)
                beside += [widen(k, byte, DTYPES[spec.target], "float", f16c=False) for byte in read]
                residual = residual + r_step
            packed = packed_bytes(k, some, (scales * PACKED)[: len(some)], self.constants, spec.target, spec.epilogue,
                                  beside)  # fmt: skip
            for number in range(len(some) // vectors):
                lanes = range(number * row, (number + 1) * row)
                if vectors == 3 and self.mask is not None:  # LLVM has no masks of three quarters of a vector
                    lanes = range(PACKED * kind.lanes)
                places = [packed_place(*divmod(lane, kind.lanes)) for lane in lanes]
                value = k.shuffle(packed, packed, places)
                if self.mask is None:
                    k.store(value, y)
                else:
                    k.store_first(value, y, k.mask(self.last + (row - kind.lanes), len(places)))
                y = y + y_step
        return y, residual
