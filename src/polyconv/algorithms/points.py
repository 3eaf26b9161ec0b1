"""Point tiles over a row of pixels and a set of output channels: walks, tables of tiles, packed weights.

Shared by the algorithms whose outputs are a product of weights with the entries of one pixel, wherever those lie.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms import pixels as by_pixels
from polyconv.algorithms.packing import Set, late_sets, packed_sets
from polyconv.algorithms.panel import Common, EpilogueTables
from polyconv.algorithms.program import Late, Request, Situation, image_bytes, near_equal, tile_cycles
from polyconv.kernels.fused import FusedTile, of_sums
from polyconv.kernels.isa import Arithmetic, channel_tile, lanes, pixel_tiles, square_tile
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.layout import MoveOut
from polyconv.kernels.objects import kernel
from polyconv.kernels.point import (
    ListedPointTile,
    PointTile,
    channel_point_tile,
    listed_point_tile,
    pixel_point_tile,
    square_point_tile,
)
from polyconv.kernels.record import Function, Functions, Memory, Record, Table, Word
from polyconv.kernels.signature import Address
from polyconv.target import Target

__all__ = [
    "OutputSet", "PointWords", "Row", "channel_tiles", "cut_outputs", "late_weights", "most_rows", "move_row",
    "packed_weights", "pixel_set_cycles", "pixel_tiles_along", "set_tables", "square_cycles",
]  # fmt: skip


class OutputSet(Record):
    """A set of output channels: its first, how many, and bytes of weights before it.

    A tile has at most so many pixels (lanes are channels) or vectors (lanes are pixels); where the functions for 1, 2,
    ... of them stand, and for tiles cut short.  Then the outputs in the last vector, bytes to what is asked for early
    and its step, and bytes to its place in result and residual.
    """

    first: Word
    outputs: Word
    weights: Word
    most: Word
    functions: Word
    edges: Word
    there: Word
    early: Word
    early_step: Word
    y: Word
    r: Word


class PointWords(Record):
    """Words that these walks read, beside those of every blocked algorithm."""

    weights: Memory
    w_group: Word
    set_count: Word
    split_sets: Word
    sets: Table[OutputSet]
    functions: Functions[PointTile | ListedPointTile]
    outputs: Word
    word_bytes: Word
    result_bytes: Word
    lanes: Word
    fused: Word
    slots: Word
    slot_pixel: Word
    slot_step: Word
    slot_channel: Word
    tables: EpilogueTables
    move_out: Function[MoveOut]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of pixels for a set of outputs: its entries and where they begin in input, result and residual.

    Entries lie so far apart, or have a list.  What is asked for early lies so many bytes ``away`` from them.
    """

    common: Common
    p: PointWords
    g: Value
    set: OutputSet
    x: Buffer
    x_pixel: Value
    x_entry: Value | Buffer
    entries: Value
    pixels: Value
    y: Buffer
    y_pixel: Value
    r: Buffer
    r_pixel: Value
    away: Value | int = 0

    @property
    def weights(self) -> Buffer:
        """The set's weights."""
        return self.p.weights + (self.g * self.p.w_group + self.set.weights)

    @property
    def tables(self) -> tuple[Buffer, Buffer, Buffer]:
        """Bias and scale of the set, and the constants."""
        p = self.p
        at = (self.g * p.outputs + self.set.first) * p.word_bytes
        return p.tables.bias + at, p.tables.scale + at, p.tables.constants


def move_row(k: Module, row: Row, sums: Buffer, pixel: Value) -> None:
    """Sums of a row, ``pixel`` bytes apart, to its place, through the epilogue."""
    p, (bias, scale, constants) = row.p, row.tables
    k.call(p.move_out, MoveOut(
        sums, pixel, p.slot_channel, row.y, row.y_pixel, row.common.y_c, row.pixels, row.set.outputs,
        bias, scale, row.r, row.r_pixel, row.common.r_c, constants,
    ))  # fmt: skip


def channel_tiles(k: Module, row: Row, slot: Buffer | None) -> None:
    """A row in near-equal tiles to its place or to the slot, lanes are channels."""
    p, of_set = row.p, row.set
    parts = (row.pixels + of_set.most - 1) // of_set.most
    share, larger = row.pixels // parts, row.pixels % parts
    y, y_step = (row.y, row.y_pixel) if slot is None else (slot, p.slot_step)
    with k.loop(0, parts, carry=[k.constant(INT, 0)]) as tile:
        (first,) = tile.values
        count = share + k.cast("zext", tile.index < larger, INT)
        function = p.functions.at_word(of_set.functions + count * 2)
        x = row.x + first * row.x_pixel
        rest = (
            row.entries, row.weights, y + first * y_step, y_step, row.r + first * row.r_pixel, row.r_pixel,
            of_set.there, *row.tables, of_set.early + row.away, of_set.early_step,
        )  # fmt: skip
        if isinstance(row.x_entry, Buffer):
            k.call(function, ListedPointTile(x, row.x_pixel, row.x_entry, *rest))
        else:
            k.call(function, PointTile(x, row.x_pixel, row.x_entry, *rest))
        tile.next(first + count)


def pixel_tiles_along(k: Module, row: Row, slot: Buffer | None) -> None:
    """A row in the largest tiles there are, the last vector cut short; lanes are pixels."""
    p, of_set = row.p, row.set
    assert not isinstance(row.x_entry, Buffer)
    y, y_step, size = (row.y, row.common.y_c, p.result_bytes) if slot is None else (slot, p.slot_channel, p.word_bytes)
    with k.loop(0, row.pixels, of_set.most * p.lanes) as tile:
        left = row.pixels - tile.index
        vectors = k.minimum((left + p.lanes - 1) // p.lanes, of_set.most)
        there = left - (vectors - 1) * p.lanes
        family = k.select(there < p.lanes, of_set.edges, of_set.functions)
        k.call(p.functions.at_word(family + vectors * 2), PointTile(
            row.x + tile.index * row.x_pixel, row.x_pixel,
            row.x_entry, row.entries, row.weights, y + tile.index * size, y_step,
            row.r + tile.index * p.result_bytes, row.common.r_c, there, *row.tables, of_set.early + row.away,
            of_set.early_step,
        ))  # fmt: skip


# -- planning and building -----------------------------------------------------------------------------


_WRITTEN_BYTES = 2 << 20
"""Results beyond this leave in runs of four vectors a pixel, where channels lie together: else stores wait for lines
that are written in parts.  Measured on Zen 5: 0-14 % off where results are more than 8 MB."""
_FEW_PIXELS = 3
"""Images of so few pixels have sets of four vectors too: sums of fewer wait for each other.  Measured: 3-20 % off."""


@lru_cache(256)
def cut_outputs(s: Situation, lane: int, form: str, outputs: int | None = None
                ) -> tuple[tuple[tuple[int, int], ...], int]:  # fmt: skip
    """The sets of a group's outputs, or of so many, (first, outputs), and the most vectors of one (lanes are channels).

    An odd number of vectors ends with three, if there is such a tile: one alone is held up by its loads.
    """
    p = s.problem
    outputs = p.m // p.groups if outputs is None else outputs
    if form == "pixel":
        return tuple(by_pixels.tile_rows(outputs, s.target)), 1
    if form == "square":
        return tuple(near_equal(outputs, square_tile(s.target))), 1
    vectors = -(-outputs // lane)
    large = p.layout == "NHWC" and image_bytes(p)[1] > s.near(_WRITTEN_BYTES)
    four = channel_tile(s.target, 4) > 0 and (large or math.prod(o or 0 for o in p.out) <= _FEW_PIXELS)
    wide = max(0, vectors // 4 - (vectors % 4 == 1)) if four else 0
    left = vectors - 4 * wide
    odd = left % 2 == 1 and left > 1 and channel_tile(s.target, 3) > 0
    widths = [4] * wide + [2] * (left // 2 - odd) + ([3] if odd else [1] * (left % 2))
    firsts = itertools.accumulate((width * lane for width in widths), initial=0)
    sets = ((first, min(width * lane, outputs - first)) for first, width in zip(firsts, widths, strict=False))
    return tuple(sets), max(widths, default=1)


_NEAR_BYTES, _NEAR_LINES = 112 << 10, 12
"""Pixels of a tile that a first-level cache nearly holds, and how many lines of one set it does."""
_PAGES = 256 << 10
"""Where planes are so large a multiple apart they share the sets of all caches."""


def pixel_set_cycles(s: Situation, arith: Arithmetic, outputs: int, entries: int, vectors: int, apart: int = 0
                     ) -> float:  # fmt: skip
    """Cycles of ``vectors`` of pixels for a set of outputs, lanes are pixels, those of entries so many bytes apart.

    Pixels of one tile that are far more than a first-level cache come late for every set, above all if their planes
    share the sets of a cache.  Measured on Zen 5, beside inputs that are packed: 3-12 % slower, far ones 17-40 %.
    """
    most, rates = pixel_tiles(s.target)[outputs], s.rates(arith)
    far = 1.06 if most * entries * lanes(s.target, arith) * arith.bytes > _NEAR_BYTES else 1.0
    if apart and apart % 4096 == 0 and entries > _NEAR_LINES:
        far = 1.2 if far > 1 or apart % _PAGES == 0 else 1.06
    full, rest = divmod(vectors, most)
    cycles = full * (tile_cycles(rates, outputs, most) * entries * far + 15)
    return cycles + ((tile_cycles(rates, outputs, rest) * entries * far + 15) if rest else 0)


def square_cycles(outputs: int) -> float:
    """Cycles of a channel of a vector of pixels, transposed in registers, for so many outputs."""
    return max(4.2, 3.2 + 0.47 * outputs)


_MOST_AWAY = 10
"""Most pixels of a tile that lie a multiple of 4 KiB apart: they share the ways of one set of a first-level cache.
Measured on Zen 5: 0-6 % off 7, and 14 no worse than 10."""


def most_rows(target: Target, width: int, pixel_bytes: int) -> int:
    """Most pixels of a tile, so many bytes apart."""
    most = channel_tile(target, width)
    return min(most, _MOST_AWAY) if pixel_bytes % 4096 == 0 else most


_LATE_BYTES = 256 << 10
"""Weights that stream in while inputs are asked for: more would drive them out of the second cache again."""


def set_tables(r: Request, sets: Sequence[tuple[int, int]], entries: int, fused: bool, form: str,
               most: Callable[[int], int], places: Sequence[Sequence[tuple[int, int]]] = (((0, 0),),),
               ahead: tuple[int, int] = (0, 0), written: int = 0, asks: Sequence[tuple[int, int]] = ()
               ) -> tuple[list[Address[PointTile | ListedPointTile]], list[OutputSet]]:  # fmt: skip
    """Functions of tiles, and a record for every set of outputs.

    Lanes are channels, tiles of 1, 2, ... pixels, ``most`` by their vectors; or pixels, tiles of 1, 2, ... vectors
    ("pixel": as many as there are tiles of so many outputs for), whole and at an edge.  All sets are there for every
    group of places in result and residual, those of a set together.  The last sets ask for what lies so many bytes
    ``ahead`` of their input, for every entry a step further, if it is not 0; where lanes are pixels they share its
    lines.  Or every record has what it ``asks`` for.  Fused tiles ask for the results of the tile that is so many
    after them as ``written`` says.
    """
    lane, by_channel = lanes(r.target, r.arith), form in ("channel", "listed")
    spec = FusedTile(r.arith.name, r.problem.y, r.epilogue, written=written) if fused else of_sums(r.arith.name)
    late, lines = 0, 1
    if ahead[0]:
        late = min(len(sets), max(1, r.situation.near(_LATE_BYTES) // (sets[0][1] * entries * r.arith.bytes)))
        if form == "pixel":
            lines = -(-pixel_tiles(r.target)[sets[0][1]] * r.target.vector_bytes // 64)
        spec = replace(spec, asked=-(-lines // late))
    elif asks:
        spec = replace(spec, asked=1)
    functions: list[Address[PointTile | ListedPointTile]] = []
    tables: dict[tuple[int, bool], int] = {}
    records: list[OutputSet] = []
    at = 0
    r_c = 0 if r.residual is None else r.residual.c
    of_sets = [(place, one) for group in places for one in sets for place in group]
    for number, ((y, residual), (first, outputs)) in enumerate(of_sets):
        vectors, there = -(-outputs // lane), (outputs - 1) % lane + 1
        kind = (vectors, there < lane) if by_channel else (outputs, False)
        sizes = range(1, (pixel_tiles(r.target)[outputs] if form == "pixel" else most(vectors)) + 1)
        if kind not in tables:
            tables[kind] = 2 * len(functions) - 2  # the function of size n is at word 2 n
            edges = (there < lane,) if by_channel else (False, True)
            functions += _tiles(r, form, kind[0], sizes, spec, edges)
        whole = tables[kind]
        edge, there = (whole, there) if by_channel else (whole + 2 * len(sizes), 0)
        turn = number // len(places[0]) % len(sets) + late - len(sets)
        early, step = (ahead[0] + turn * lines // late * 64, ahead[1]) if turn >= 0 < late else (0, 0)
        early, step = asks[number] if asks else (early, step)
        records.append(OutputSet(
            first, outputs, weights=at, most=len(sizes), functions=whole, edges=edge, there=there, early=early,
            early_step=step, y=y + first * r.y.c, r=residual + first * r_c,
        ))  # fmt: skip
        at += (vectors * lane if by_channel else outputs) * entries * r.arith.bytes
    return functions, records


_MAKE = {"channel": channel_point_tile, "listed": listed_point_tile, "pixel": pixel_point_tile,
         "square": square_point_tile}  # fmt: skip


def _tiles(r: Request, form: str, fixed: int, sizes: Sequence[int], spec: FusedTile,
           edges: Sequence[bool]) -> list[Address[PointTile | ListedPointTile]]:  # fmt: skip
    """Addresses of a family of tiles: of all sizes whole, or cut short, or first whole and then cut short."""
    make = _MAKE[form]
    kinds = {f"{'edge' if edge else 'whole'}{n}": (edge, n) for edge in edges for n in sizes}

    def build(k: Module) -> None:
        for name, (edge, n) in kinds.items():
            size = (n, fixed) if form in ("channel", "listed") else (fixed, n)
            make(k, name, replace(spec, edge=edge), lanes(r.target, r.arith), *size, f16c=r.target.converts_f16)

    label = f"point {form} {spec} {fixed} {len(sizes)} {edges}"
    signature: type[PointTile | ListedPointTile] = ListedPointTile if form == "listed" else PointTile
    found = kernel(label, dict.fromkeys(kinds, signature), build, r.target, check=r.check)
    return [found[name] for name in kinds]


def packed_weights(r: Request, key: tuple[object, ...], weights: Callable[[], NDArray[Any]],
                   sets: Sequence[tuple[int, int]], form: str, groups: tuple[int, int] = (1, 1)
                   ) -> NDArray[Any]:  # fmt: skip
    """Weights (groups, m, entries) in streaming order: per group and set of outputs, a row of outputs per entry.

    Outputs are those of the sets as many times as there are places: groups of them, and places of a group.
    """
    lane = lanes(r.target, r.arith)

    def pack() -> NDArray[Any]:
        w = weights()[..., None]
        if form == "square" and w.shape[2] % lane:  # zeros for the channels that the last square lacks
            w = np.pad(w, ((0, 0), (0, 0), (0, -w.shape[2] % lane), (0, 0)))
        return packed_sets(r, w, *_order(w.shape, sets, lane if form == "channel" else 1, groups))

    return r.packed((r.arith.name, r.target.level, form, tuple(sets), *key), pack)


def late_weights(r: Request, w: NDArray[Any], sets: Sequence[tuple[int, int]]) -> Late:
    """Weights (groups, m, entries) for channel tiles, as ``packed_weights`` has them, packed when needed."""
    return late_sets(r, w[..., None], *_order((*w.shape, 1), sets, lanes(r.target, r.arith), (1, 1)))


def _order(shape: tuple[int, ...], sets: Sequence[tuple[int, int]], step: int, groups: tuple[int, int]
           ) -> tuple[list[Set], int, int]:  # fmt: skip
    """Sets, channels of a block and size of packed weights; rows are multiples of a step."""
    (times, phases), entries = groups, shape[2]
    m = shape[1] // (times * phases)
    widths = [(first, outputs, -(-outputs // step) * step) for first, outputs in sets]
    whole = times * phases * sum(width for *_, width in widths) * entries
    of_sets: list[Set] = []
    at = 0
    for group, (first, outputs, width), phase in itertools.product(range(times), widths, range(phases)):
        of_sets.append(Set((group * phases + phase) * m + first, outputs, width, at, whole))
        at += width * entries
    return of_sets, 1, shape[0] * whole
