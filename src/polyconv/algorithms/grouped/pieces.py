"""Outputs computed from where the input lies: what ``channel_sums``, ``in_place`` and ``in_planes`` share.

A *piece* is a box of outputs with the same taps inside the input, so nothing is padded and nothing is copied: a list
has the entries of its taps.  A *block* is some output channels.  An item is a block and a part of the pieces; it visits
every line of every piece.  It must not know what tiles compute.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.kernels.fused import PlaceWalk
from polyconv.kernels.language import Buffer, Module, Value
from polyconv.kernels.record import Counted, CountedRows, Function, Memory, Record, Table, Word, counted_words, filled
from polyconv.lowering.bands import Kinds, bands
from polyconv.lowering.boxes import near_equal
from polyconv.lowering.panel import Driver, EpilogueTables
from polyconv.lowering.program import Request, Step, address_of, epilogue_tables, first_output, residual_of
from polyconv.lowering.situation import image_bytes
from polyconv.lowering.sweep import Sweep

__all__ = [
    "Block", "Box", "Piece", "PieceLine", "PlaceWords", "Steps", "TileWords", "along", "boxes_of", "channel_steps",
    "counts_of", "cut_lines", "lines_at", "parts_of", "piece_at", "place_words", "steps_along", "tap_places", "visit",
    "walked_step",
]  # fmt: skip

IMAGE_SHARE, PART_SHARE, _WEIGHT_SHARE, _MOST_READ = 1.0, 3 / 8, 1 / 2, 4
"""An image that exceeds the first share of a second-level cache is cut into parts of the second, each for all blocks of
channels, if the weights need no more than the third, and an input is read at most so many times: then bringing it
takes longest.  Measured on Zen 5 where pixels lie 1 or 2 KiB apart: 3 to 20 % off; with 7 or 9 reads 5 to 10 % lost."""

R = TypeVar("R", bound=Record)


class Steps(Record):
    """Bytes from one to the next in input, result and residual."""

    x: Word
    y: Word
    r: Word


class Piece(Record):
    """A box of outputs with the same taps: where it begins, its list of entries, its lines and the steps in them.

    ``table`` is the number of the table of tiles for lines of its length; so many bytes come before its biases.  Inputs
    ``early`` bytes behind what an output meets are those to ask for.
    """

    x: Word
    y: Word
    r: Word
    entries: Word
    count: Word
    lines: Word
    line: Steps
    step: Steps
    table: Word
    biases: Word
    early: Word


class Block(Record):
    """A block of output channels.

    Bytes before its channels, which tables it takes, and bytes before its weights and before its biases.
    """

    x: Word
    y: Word
    r: Word
    table: Word
    weights: Word
    words: Word


class PlaceWords(Record):
    """Words of a driver whatever its tiles are: there is a table of these for every length of a line and kind of block.

    The boxes of a block are cut into ``parts``, which threads share; lanes lie a ``lane`` apart.
    """

    x_base: Word
    x_n: Word
    y_base: Word
    y_n: Word
    r_base: Word
    r_n: Word
    pieces: Word
    piece: Table[Piece]
    parts: Word
    part_pieces: Word
    blocks: Word
    block: Table[Block]
    entries: Memory
    weights: Memory
    tables: EpilogueTables
    table_words: Word
    lane: Steps


class TileWords(Record):
    """Tiles along a line: the first output, how many, the lanes of their last vector, and their function."""

    first: Word
    times: Word
    lanes: Word
    function: Function[PlaceWalk]


class WalkedWords(Record):
    """Words of the driver of tiles that walk."""

    shared: PlaceWords
    tiles: Counted[TileWords]


@dataclass(frozen=True, slots=True)
class PieceLine:
    """A line of a piece, for a block of output channels."""

    index: Value
    piece: Piece
    block: Block
    x: Buffer
    y: Buffer
    r: Buffer
    entries: Buffer
    weights: Buffer
    tables: tuple[Buffer, Buffer, Buffer]

    def places(self, first: Value) -> tuple[Buffer, Value, Buffer, Value, Buffer, Buffer, Value, Buffer, Value]:
        """What tiles take that begin with an output: input and entries, weights, result and residual."""
        piece, line = self.piece, self.index
        return (
            self.x + (piece.x + line * piece.line.x + first * piece.step.x), piece.step.x, self.entries, piece.count,
            self.weights, self.y + (piece.y + line * piece.line.y + first * piece.step.y), piece.step.y,
            self.r + (piece.r + line * piece.line.r + first * piece.step.r), piece.step.r,
        )  # fmt: skip


def visit(k: Module, p: PlaceWords, tables: CountedRows[R], given: Driver, tile: Callable[[PieceLine, R], None]
          ) -> None:  # fmt: skip
    """Do an item: every tile of every line of some boxes of a block."""
    frame, number = given.frame, given.item
    part, n = number // p.blocks % p.parts, number // p.blocks // p.parts
    block = p.block.at(number % p.blocks)
    x = frame.x + (p.x_base + n * p.x_n + block.x)
    y = frame.y + (p.y_base + n * p.y_n + block.y)
    r = frame.residual + (p.r_base + n * p.r_n + block.r)
    weights, bias = p.weights + block.weights, p.tables.bias + block.words
    scale, constants = p.tables.scale + block.words, p.tables.constants
    first = part * p.part_pieces
    with k.loop(first, k.minimum(first + p.part_pieces, p.pieces)) as number_of_piece:
        piece = p.piece.at(number_of_piece.index)
        entries = p.entries + piece.entries * 8
        tiles = tables + (piece.table + block.table) * p.table_words * 8
        with k.loop(0, piece.lines) as line, k.loop(0, tiles.count) as one:
            epilogue = bias + piece.biases, scale, constants
            here = PieceLine(line.index, piece, block, x, y, r, entries, weights, epilogue)
            tile(here, tiles.at(one.index))


def driver(k: Module, name: str) -> None:
    """Add the driver of tiles that walk to a module: a part of the boxes of a block."""
    with k.function(name, Driver) as given:
        p = WalkedWords.read(k, given.words)

        def walks(line: PieceLine, tile: TileWords) -> None:
            first, function, times, last, lane = tile.first, tile.function, tile.times, tile.lanes, p.shared.lane
            k.call(function, PlaceWalk(
                *line.places(first), times, last, *line.tables, line.x, lane.x, lane.y, lane.r
            ))  # fmt: skip

        visit(k, p.shared, p.tiles, given, walks)


def walked_step(r: Request, sweep: Sweep, visited: Sequence[Piece], blocks: Sequence[Block], entries: list[int],
                tables: list[list[TileWords]], packed: NDArray[Any], lane: Steps, keep: list[Any]
                ) -> Step:  # fmt: skip
    """The step of a sweep whose tiles walk."""
    shared, items = place_words(
        r, sweep, visited, blocks, entries, counted_words(TileWords, tables), packed, lane
    )
    address = address_of(r, "in_place", "in_place", Driver, driver)
    return Step(address, filled(WalkedWords(shared, tables), keep), items)


# -- boxes and their words -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Box:
    """Outputs with the same taps inside the input: first and number along every axis, and which taps."""

    first: tuple[int, ...]
    extents: tuple[int, ...]
    ranges: tuple[range, ...]

    @property
    def taps(self) -> int:
        """How many taps."""
        return math.prod(map(len, self.ranges))


@lru_cache(256)
def boxes_of(axes: Sweep, whole: int, most: int) -> tuple[Box, ...]:
    """The boxes of all outputs, a single output along all axes but some ``whole`` ones at the end.

    There are at most so many combinations of taps: axes with more have all their taps for all outputs, which
    ``bands`` says.
    """
    found = bands(axes, most)
    along = [[(first, count, kinds[kind]) for first, count, kind in _runs(of_output)] for kinds, of_output in found]
    outer = max(0, len(axes) - whole)
    along[:outer] = [[(o, 1, taps) for first, count, taps in some for o in range(first, first + count)]
                     for some in along[:outer]]  # fmt: skip
    return tuple(
        Box(tuple(first for first, _, _ in box), tuple(count for _, count, _ in box), tuple(taps for _, _, taps in box))
        for box in itertools.product(*along)
    )


def counts_of(axes: Sweep, whole: int, most: int) -> tuple[int, int]:
    """Taps of all combinations together, and how many boxes there are; found without making them."""
    found, outer = bands(axes, most), max(0, len(axes) - whole)
    taps = math.prod(sum(map(len, ranges)) for ranges, _ in found)
    boxes = math.prod(axis.out for axis in axes[:outer]) * math.prod(len(_runs(of)) for _, of in found[outer:])
    return taps, boxes


def _runs(of_output: Kinds) -> list[tuple[int, int, int]]:
    """Neighbours of the same kind: first, number, kind."""
    found, first = [], 0
    for kind, run in itertools.groupby(of_output.runs, key=lambda run: run[0]):
        count = sum(outputs for _, outputs in run)
        if count:
            found.append((first, count, kind))
        first += count
    return found


def along(extents: Sequence[int], most: int) -> int:
    """The axis along which tiles of ``most`` outputs lie: the last, or the one before it where a line has more."""
    last = len(extents) - 1
    few = last > 0 and extents[last] < min(most, extents[last - 1]) // 2
    return last - 1 if few else last


def _across(axis: int, axes: int) -> int:
    """The axis across the lines of a box: of the last two the other, if there are two."""
    return 2 * axes - 3 - axis if axes > 1 else axis


def cut_lines(box: Box, most: int, parts: int) -> Iterator[tuple[Box, int]]:
    """A box in at most so many parts of lines, or of outputs if it is one line; and the axis of its lines."""
    axis = along(box.extents, most)
    cut = _across(axis, len(box.first))
    for first, count in near_equal(box.extents[cut], -(-box.extents[cut] // min(parts, box.extents[cut]))):
        begins = [o + first * (a == cut) for a, o in enumerate(box.first)]
        extents = [count if a == cut else e for a, e in enumerate(box.extents)]
        yield replace(box, first=tuple(begins), extents=tuple(extents)), axis


def tap_places(r: Request, axes: Sweep, ranges: tuple[range, ...]) -> list[tuple[int, int]]:
    """Bytes to what taps meet in the input, and their numbers, of some taps of outer axes."""
    places = [(0, 0)]
    for axis, step, some in zip(axes, r.x.spatial, ranges, strict=False):
        places = [(at + t * axis.dilation * step, tap * axis.taps + t) for at, tap in places for t in some]
    return places


def channel_steps(r: Request) -> Steps:
    """Bytes between channels."""
    return Steps(r.x.c, r.y.c, residual_of(r).c)


def steps_along(r: Request, sweep: Sweep, axis: int) -> Steps:
    """Bytes between neighbours along an axis."""
    a, y_step, r_step = sweep[axis], r.y.spatial[axis], residual_of(r).spatial[axis]
    return Steps(a.stride * r.x.spatial[axis], a.out_step * y_step, a.out_step * r_step)


def piece_at(r: Request, sweep: Sweep, first: Sequence[int], lines: int, line: Steps, step: Steps,
             entries: tuple[int, int], table: int, biases: int = 0, early: int = 0) -> Piece:  # fmt: skip
    """Words of a box that begins with an output."""
    x = sum((o * a.stride - a.pad) * step for o, a, step in zip(first, sweep, r.x.spatial, strict=True))
    y, other = (
        sum(o * a.out_step * step for o, a, step in zip(first, sweep, of.spatial, strict=True))
        for of in (r.y, residual_of(r))
    )
    return Piece(x, y, other, *entries, lines, line, step, table, biases, early)


_SOON = 8 << 10
"""Bytes of inputs that come from afar between those that are asked for and those that are read."""


def lines_at(r: Request, sweep: Sweep, box: Box, axis: int, entries: tuple[int, int], table: int, biases: int = 0
             ) -> Piece:  # fmt: skip
    """Words of a box whose lines lie along an axis.

    What is asked for early lies in lines to come, where these are short.
    """
    across = _across(axis, len(sweep))
    lines = box.extents[across] if across != axis else 1
    steps = steps_along(r, sweep, across), steps_along(r, sweep, axis)
    to_next = sweep[across].stride * r.x.spatial[across]
    ahead = to_next * -(-_SOON // to_next) if 0 < to_next <= _SOON else _SOON
    return piece_at(r, sweep, box.first, lines, *steps, entries, table, biases, ahead)


def parts_of(r: Request, blocks: int) -> int:
    """Into how many parts the boxes of so many blocks are cut: every thread has a few, and blocks share near pixels."""
    p, s, threads = r.problem, r.situation, r.situation.threads
    parts = 1 if threads == 1 else -(-4 * threads // max(1, (p.n or 0) * blocks))
    image, weights = sum(image_bytes(p)), p.m * p.c // p.groups * math.prod(p.k) * p.w_dtype.itemsize
    seldom = math.prod(p.k) <= _MOST_READ * math.prod(p.s)
    far = image > s.cache("l2", IMAGE_SHARE) and weights <= s.cache("l2", _WEIGHT_SHARE)
    if p.layout == "NCHW" or not seldom or not far:
        return parts
    return max(parts, -(-image // s.cache("l2", PART_SHARE)))


def place_words(r: Request, sweep: Sweep, pieces: Sequence[Piece], blocks: Sequence[Block], entries: list[int],
                table_words: int, packed: NDArray[Any], lane: Steps) -> tuple[PlaceWords, int]:  # fmt: skip
    """Words of a sweep whatever its tiles, and how many items there are."""
    residual = residual_of(r)
    part_pieces = -(-len(pieces) // parts_of(r, len(blocks)))
    parts = -(-len(pieces) // max(1, part_pieces))
    shared = PlaceWords(
        x_base=r.x.offset, x_n=r.x.n, y_base=first_output(r.y, sweep), y_n=r.y.n,
        r_base=first_output(residual, sweep), r_n=residual.n,
        pieces=len(pieces), piece=pieces, parts=parts, part_pieces=part_pieces, blocks=len(blocks), block=blocks,
        entries=entries, weights=packed, tables=epilogue_tables(r), table_words=table_words,
        lane=lane,
    )  # fmt: skip
    return shared, (r.problem.n or 0) * parts * len(blocks)
