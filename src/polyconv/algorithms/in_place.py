"""Groups in place, where channels lie together: any rank, stride and dilation.

Outputs with the same taps inside the input are a box of their own, so nothing is padded and nothing is copied: tiles
read pixels where they lie and write results to their place.  Where groups are as wide out as in and no wider than a
vector, several lie side by side in the lanes as in ``grouped``; else lanes are the output channels of one group as in
``direct``.  A box is walked along its last axis, or the one before it where that fills tiles better.  Arrays whose
channels do not lie together are left to these two, which add in the same order.
Cost: the products, with lanes filled to whole groups.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from numpy.typing import NDArray

from polyconv.algorithms import grouped
from polyconv.algorithms.dense import direct
from polyconv.algorithms.dense.weights import packed_weights
from polyconv.algorithms.grouped import WalkWords
from polyconv.algorithms.panel import Driver, EpilogueTables
from polyconv.algorithms.program import (
    Operand,
    Program,
    Request,
    Situation,
    Step,
    accumulator_arithmetic,
    address_of,
    along_out,
    epilogue_tables,
    fused_address,
    image_bytes,
    is_fusible,
    near_equal,
    tile_cycles,
)
from polyconv.algorithms.sweep import Kinds, Sweep, bands, sweeps
from polyconv.kernels.fused import FusedTile, Walk
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, lanes, run_tiles
from polyconv.kernels.language import Buffer, Module, Value
from polyconv.kernels.record import Counted, CountedRows, Memory, Record, Table, Word, counted_words, filled, words
from polyconv.kernels.signature import Address
from polyconv.kernels.tile import ROW_WORDS
from polyconv.machine.profile import Rates

__all__ = [
    "Block", "Piece", "PieceLine", "PlaceWords", "Steps", "applicable", "build", "cost", "parts_of", "place_words",
    "runs", "visit", "workspace",
]  # fmt: skip
_MOST_ENTRIES, _MOST_PIECES = 1 << 16, 1 << 12
"""Most entries of all lists, and most boxes of a sweep."""
_LAST_BYTES = 30.0
"""Bytes of input and result that come and go a cycle, beside the products."""
_MISSED = {1024: 0.7, 2048: 3.5, 4096: 3.5}
"""Cycles that a vector of a pixel takes to come into the first-level cache where pixels lie a multiple of so many bytes
apart, and so share few of its sets; else 0.4."""

_IMAGE_BYTES, _PART_BYTES, _WEIGHT_BYTES, _MOST_READ = 1 << 20, 384 << 10, 512 << 10, 4
"""Input and result that no second-level cache holds are cut into parts that it does, for all blocks of channels, if it
holds the weights as well and an input is read so few times that bringing it takes longest.  Measured where pixels lie 1
or 2 KiB apart: 3 to 20 % off; with 7 or 9 reads 5 to 10 % lost."""

R = TypeVar("R", bound=Record)


class Steps(Record):
    """Bytes from one to the next in input, result and residual."""

    x: Word
    y: Word
    r: Word


class Piece(Record):
    """A box of outputs with the same taps: where it begins, its list of entries, its lines and the steps in them.

    ``table`` is the number of the table of tiles for lines of its length.
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


class Block(Record):
    """A block of output channels.

    Bytes before its channels, which tables it takes, bytes before its weights and before its biases, and the lanes of
    its last vector.
    """

    x: Word
    y: Word
    r: Word
    table: Word
    weights: Word
    words: Word
    lanes: Word


class PlaceWords(Record):
    """Words of a driver whatever its tiles are: there is a table of these for every length of a line and kind of block.

    The boxes of a block are cut into ``parts``, which threads share.
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


class InPlaceWords(Record):
    """The driver's words."""

    shared: PlaceWords
    tiles: Counted[WalkWords]


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


def driver(k: Module, name: str) -> None:
    """Add the driver to a module: a part of the boxes of a block, by tiles that walk."""
    with k.function(name, Driver) as given:
        p = InPlaceWords.read(k, given.words)

        def walks(line: PieceLine, walk: WalkWords) -> None:
            first, function, times = walk.first, walk.function, walk.times
            k.call(function, Walk(*line.places(first), times, line.block.lanes, *line.tables, line.x))

        visit(k, p.shared, p.tiles, given, walks)


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
            here = PieceLine(line.index, piece, block, x, y, r, entries, weights, (bias, scale, constants))
            tile(here, tiles.at(one.index))


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    p = s.problem
    reason = direct.refusal(s)
    if reason is not None:
        return reason
    if p.layout != "NHWC" or p.groups == 1 or p.c == p.groups or p.m == 0:
        return "computes groups of several channels that lie together"
    if p.x != p.w or p.x not in ("f32", "f64") or accumulator_arithmetic(s) != p.x or not is_fusible(p):
        return "reads and writes numbers as they are summed, with a cheap epilogue"
    for sweep in sweeps(p):
        kinds = bands(sweep, _MOST_ENTRIES)
        entries = math.prod(sum(map(len, ranges)) for ranges, _ in kinds) * -(-p.c // p.groups // ROW_WORDS)
        pieces = math.prod(len(runs(of)) for _, of in kinds[-2:]) * math.prod(axis.out for axis in sweep[:-2])
        if entries > _MOST_ENTRIES or pieces > _MOST_PIECES:
            return "has too many boxes of outputs with taps of their own"
    return None


def workspace(s: Situation) -> int:
    """Bytes a thread needs where arrays lie otherwise."""
    return grouped.workspace(s) if _side_by_side(s, ARITHMETIC[s.problem.x]) else direct.DirectForm.of(s).workspace


def cost(s: Situation) -> dict[str, float]:
    """Cycles: multiply-adds or loads, starting tiles, and what comes from the last cache."""
    arith = ARITHMETIC[s.problem.x]
    form = _grouped_form(s, arith) if _side_by_side(s, arith) else _channel_form(s, arith)
    batch = s.problem.n or 0
    return {"products": batch * _products(s, arith, form), "moves": batch * sum(image_bytes(s.problem)) / _LAST_BYTES}


@dataclass(frozen=True, slots=True)
class _Form:
    """How channels fill lanes: groups of a block, vectors of its outputs, most outputs of a tile."""

    side_by_side: bool
    block_groups: int
    group_blocks: int
    vectors: int
    last_vectors: int
    most: int


def _grouped_form(s: Situation, arith: Arithmetic) -> _Form:
    group = s.problem.c // s.problem.groups
    return _Form(True, lanes(s.target, arith) // group, 1, 1, 1, grouped.most_rows(s.target, group))


def _channel_form(s: Situation, arith: Arithmetic) -> _Form:
    total = -(-(s.problem.m // s.problem.groups) // lanes(s.target, arith))
    blocks = -(-total // 2) if total != 3 or 3 not in run_tiles(s.target) else 1
    vectors = -(-total // blocks)
    blocks = -(-total // vectors)
    last = total - (blocks - 1) * vectors
    return _Form(False, 1, blocks, vectors, last, run_tiles(s.target)[vectors])


@lru_cache(256)
def _side_by_side(s: Situation, arith: Arithmetic) -> bool:
    """Whether several groups share a vector."""
    p = s.problem
    if p.c != p.m or p.c // p.groups > lanes(s.target, arith):
        return False
    return _products(s, arith, _grouped_form(s, arith)) < _products(s, arith, _channel_form(s, arith))


def _products(s: Situation, arith: Arithmetic, form: _Form) -> float:
    """Cycles of the tiles of an image."""
    p, rates = s.problem, s.rates(arith)
    group = p.c // p.groups
    missed = _MISSED.get(math.gcd(p.c * arith.bytes, 4096), 0.4)
    cycles = 0.0
    for sweep in sweeps(p):
        for box in _boxes(sweep):
            along = _along(form, box.extents)
            lines = math.prod(box.extents) // max(1, box.extents[along])
            if form.side_by_side:
                tiles = near_equal(box.extents[along], form.most)
                row = sum(_grouped_cycles(rates, n, group, box.taps) for _, n in tiles)
                row += 25.0 + missed * box.extents[along] * box.taps
                cycles += lines * -(-p.groups // form.block_groups) * row
                continue
            steps = group * box.taps
            for vectors, count in ((form.vectors, form.group_blocks - 1), (form.last_vectors, 1)):
                tiles = near_equal(box.extents[along], run_tiles(s.target)[vectors])
                per_tile = 25 + 8.0 * box.taps
                row = sum(tile_cycles(rates, n, vectors) * steps + per_tile + 1.2 * n * vectors for _, n in tiles)
                cycles += lines * count * p.groups * (row + 25.0)
    return cycles


def _grouped_cycles(rates: Rates, rows: int, group: int, taps: int) -> float:
    """Cycles of a tile of several groups side by side."""
    step = tile_cycles(rates, rows, group)
    alone = 2.0 * group if rows == 1 else 0.0  # nothing else to do while its sums are added
    return taps * step + 4 + 0.35 * rows * group + alone


@dataclass(frozen=True, slots=True)
class _Box:
    """Outputs with the same taps: first and number along every axis, which taps, and their number."""

    first: tuple[int, ...]
    extents: tuple[int, ...]
    kinds: tuple[int, ...]
    taps: int


def runs(of_output: Kinds) -> list[tuple[int, int, int]]:
    """Neighbours of the same kind: first, number, kind."""
    found, first = [], 0
    for kind, run in itertools.groupby(of_output.runs, key=lambda run: run[0]):
        count = sum(outputs for _, outputs in run)
        if count:
            found.append((first, count, kind))
        first += count
    return found


@lru_cache(256)
def _boxes(sweep: Sweep) -> tuple[_Box, ...]:
    """The boxes of a sweep, a single output along all axes but the last two."""
    found = bands(sweep, _MOST_ENTRIES)
    along = [runs(of_output) for _, of_output in found]
    along[:-2] = [[(o, 1, kind) for first, count, kind in some for o in range(first, first + count)]
                  for some in along[:-2]]  # fmt: skip
    return tuple(
        _Box(
            tuple(first for first, _, _ in box), tuple(count for _, count, _ in box), tuple(kind for _, _, kind in box),
            math.prod(len(kinds[kind]) for (kinds, _), (_, _, kind) in zip(found, box, strict=True)),
        )
        for box in itertools.product(*along)
    )  # fmt: skip


def _along(form: _Form, extents: tuple[int, ...]) -> int:
    """The axis along which tiles of a box lie: the last, or the one before it where a line has more outputs."""
    last = len(extents) - 1
    few = last > 0 and extents[last] < min(form.most, extents[last - 1]) // 2
    return last - 1 if few else last


def build(r: Request) -> Program:
    """Program of a request: one step per sweep."""
    s, side_by_side = r.situation, _side_by_side(r.situation, r.arith)
    lying = r.x.c == r.x.itemsize and all(along_out(r, sweep[-1], "c") == "cc" for sweep in sweeps(r.problem))
    if not lying:
        return grouped.build(r) if side_by_side else direct.DirectForm.of(s).build(r)
    form = _grouped_form(s, r.arith) if side_by_side else _channel_form(s, r.arith)
    keep: list[Any] = []
    address = address_of(r, "in_place", "in_place", Driver, driver)
    steps = [_step(r, sweep, form, address, keep) for sweep in sweeps(r.problem)]
    return Program(tuple(step for step in steps if step.items), 0, tuple(keep))


def _step(r: Request, sweep: Sweep, form: _Form, address: Address[Driver], keep: list[Any]) -> Step:
    arith = r.arith
    residual = r.residual or Operand(0, 0, (0,) * len(sweep), 0, 1)
    key = tuple((a.taps, a.first_tap, a.tap_step) for a in sweep)
    lane = lanes(r.target, arith)
    if form.side_by_side:
        packed = r.packed(("grouped", arith.name, lane, key), lambda: grouped.packed_weights(r.weights(sweep), lane))
    else:
        packed = r.packed(
            ("direct", arith.name, lane, form.vectors, key),
            lambda: packed_weights(r, r.weights(sweep), form.vectors, form.last_vectors),
        )
    blocks = list(_blocks(r, form, residual, math.prod(a.taps for a in sweep)))
    entries, lists = _lists(r, sweep, form)
    cut = [(box, along) for whole in _boxes(sweep) for box, along in _cut(form, whole, parts_of(r, len(blocks)))]
    cut.sort(key=lambda found: found[0].first)
    lengths = sorted({box.extents[along] for box, along in cut})
    tables = [_walks(r, form, length, last) for length in lengths for last in (False, True)]
    pieces = [
        _piece(r, sweep, residual, box, along, lists[box.kinds], 2 * lengths.index(box.extents[along]))
        for box, along in cut
    ]  # fmt: skip
    shared, items = place_words(r, sweep, pieces, blocks, entries, counted_words(WalkWords, tables), packed)
    return Step(address, filled(InPlaceWords(shared, tables), keep), items)


def parts_of(r: Request, blocks: int) -> int:
    """Into how many parts the boxes of so many blocks are cut: every thread has a few, and blocks share near pixels."""
    p, threads, near = r.problem, r.situation.threads, r.situation.near
    parts = 1 if threads == 1 else -(-4 * threads // max(1, (p.n or 0) * blocks))
    image, weights = sum(image_bytes(p)), p.m * p.c // p.groups * math.prod(p.k) * p.w_dtype.itemsize
    seldom = math.prod(p.k) <= _MOST_READ * math.prod(p.s)
    if p.layout == "NCHW" or not seldom or image <= near(_IMAGE_BYTES) or weights > _WEIGHT_BYTES:
        return parts
    return max(parts, -(-image // near(_PART_BYTES)))


def place_words(r: Request, sweep: Sweep, pieces: Sequence[Piece], blocks: Sequence[Block], entries: list[int],
                table_words: int, packed: NDArray[Any]) -> tuple[PlaceWords, int]:  # fmt: skip
    """Words of a sweep whatever its tiles, and how many items there are."""
    residual = r.residual or Operand(0, 0, (0,) * len(sweep), 0, 1)

    def begins(o: Operand) -> int:
        return o.offset + sum(a.first_out * step for a, step in zip(sweep, o.spatial, strict=True))

    part_pieces = -(-len(pieces) // parts_of(r, len(blocks)))
    parts = -(-len(pieces) // max(1, part_pieces))
    shared = PlaceWords(
        x_base=r.x.offset, x_n=r.x.n, y_base=begins(r.y), y_n=r.y.n, r_base=begins(residual), r_n=residual.n,
        pieces=len(pieces), piece=pieces, parts=parts, part_pieces=part_pieces, blocks=len(blocks), block=blocks,
        entries=words(entries), weights=packed, tables=epilogue_tables(r), table_words=table_words,
    )  # fmt: skip
    return shared, (r.problem.n or 0) * parts * len(blocks)


def _cut(form: _Form, box: _Box, parts: int) -> Iterator[tuple[_Box, int]]:
    """A box in at most so many parts of lines, or of outputs if it is one line; and the axis of its lines."""
    along = _along(form, box.extents)
    cut = _across(along, len(box.first))
    for first, count in near_equal(box.extents[cut], -(-box.extents[cut] // min(parts, box.extents[cut]))):
        begins = [o + first * (a == cut) for a, o in enumerate(box.first)]
        extents = [count if a == cut else e for a, e in enumerate(box.extents)]
        yield replace(box, first=tuple(begins), extents=tuple(extents)), along


def _across(along: int, axes: int) -> int:
    """The axis across the lines of a box: of the last two the other, if there are two."""
    return 2 * axes - 3 - along if axes > 1 else along


def _piece(r: Request, sweep: Sweep, residual: Operand, box: _Box, along: int, found: tuple[int, int],
           table: int) -> Piece:  # fmt: skip
    """Words of a box."""
    across = _across(along, len(sweep))
    x = sum((o * a.stride - a.pad) * step for o, a, step in zip(box.first, sweep, r.x.spatial, strict=True))
    y, other = (
        sum(o * a.out_step * step for o, a, step in zip(box.first, sweep, of.spatial, strict=True))
        for of in (r.y, residual)
    )

    def steps(axis: int) -> Steps:
        a = sweep[axis]
        return Steps(
            a.stride * r.x.spatial[axis], a.out_step * r.y.spatial[axis], a.out_step * residual.spatial[axis]
        )

    return Piece(
        x, y, other, *found, box.extents[across] if across != along else 1, steps(across), steps(along), table
    )


def _lists(r: Request, sweep: Sweep, form: _Form) -> tuple[list[int], dict[tuple[int, ...], tuple[int, int]]]:
    """Entries, and for every combination of kinds the first word of its list and how many there are."""
    group, size = r.problem.c // r.problem.groups, r.arith.bytes
    taps = math.prod(a.taps for a in sweep)
    found = bands(sweep, _MOST_ENTRIES)
    entries: list[int] = []
    lists: dict[tuple[int, ...], tuple[int, int]] = {}
    for kinds in itertools.product(*(range(len(ranges)) for ranges, _ in found)):
        places = [(0, 0)]
        for axis, step, (ranges, _), kind in zip(sweep, r.x.spatial, found, kinds, strict=True):
            places = [(at + t * axis.dilation * step, tap * axis.taps + t) for at, tap in places for t in ranges[kind]]
        if form.side_by_side:
            of_kinds = [v for at, tap in places for v in (at, tap * group * r.target.vector_bytes)]
        else:
            of_kinds = [
                v for first in range(0, group, ROW_WORDS)
                for count in (min(ROW_WORDS, group - first),)
                for at, tap in places
                for v in (at + first * size, count, first * taps + tap * count)
            ]  # fmt: skip
        lists[kinds] = len(entries), len(of_kinds) // (2 if form.side_by_side else 3)
        entries += of_kinds
    return entries, lists


def _blocks(r: Request, form: _Form, residual: Operand, taps: int) -> Iterator[Block]:
    """Words of every block."""
    p, arith, lane = r.problem, r.arith, lanes(r.target, r.arith)
    group_in, group_out = p.c // p.groups, p.m // p.groups
    if form.side_by_side:
        used = form.block_groups * group_in
        for first in range(0, p.c, used):
            count = min(used, p.c - first)
            of_block = first // used * taps * group_in * r.target.vector_bytes
            yield Block(
                first * r.x.c, first * r.y.c, first * residual.c, int(count < lane), of_block, first * arith.bytes,
                count,
            )  # fmt: skip
        return
    outputs, steps = form.vectors * lane, group_in * taps * lane * arith.bytes
    before = (form.group_blocks - 1) * form.vectors * steps
    for g in range(p.groups):
        for b in range(form.group_blocks):
            first, last = g * group_out + b * outputs, b == form.group_blocks - 1
            of_block = g * before + b * form.vectors * steps
            if last:  # these follow after all others
                of_block = p.groups * before + g * form.last_vectors * steps
            yield Block(
                g * group_in * r.x.c, first * r.y.c, first * residual.c, int(last), of_block, first * arith.bytes,
                (group_out - 1) % lane + 1,
            )  # fmt: skip


def _walks(r: Request, form: _Form, length: int, last: bool) -> list[WalkWords]:
    """Tiles of a line, equal ones together; none for blocks that there are none of."""
    p, lane = r.problem, lanes(r.target, r.arith)
    if form.side_by_side:
        group = p.c // p.groups
        used = form.block_groups * group
        if not (p.c % used > 0 or used < lane if last else used == lane):
            return []
        tiles = grouped.tile_functions(r, FusedTile(r.arith.name, p.y, r.epilogue, last), group, near=True)
        return grouped.walks_of(tiles, length, form.most)
    if not last and form.group_blocks == 1:
        return []
    vectors = form.last_vectors if last else form.vectors
    spec = FusedTile(r.arith.name, p.y, r.epilogue, last and (p.m // p.groups) % lane > 0)
    most = run_tiles(r.target)[vectors]
    wanted = {n for _, n in near_equal(length, most)}
    functions = [fused_address(r, "channel", spec, n, vectors) if n in wanted else None for n in range(1, most + 1)]
    return grouped.walks_of(functions, length, most)
