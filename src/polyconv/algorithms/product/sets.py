"""Sets of output channels that tiles of products compute together: how they are cut, what they cost, tiles and weights.

A *kind* of tile says what its lanes are: ``channel``, output channels; ``listed``, the same for entries that a list
has; ``pixel``, pixels that lie together; ``panel``, the same where a tile's pixels are copied to lie together, channel
by channel; ``square``, the same for pixels whose channels lie together, by squares of pixels and channels that are
transposed in registers.  It must not know how pixels come to lie where tiles read them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.product.rows import OutputSet, ProductWords
from polyconv.dataclass import dataclass
from polyconv.kernels.fused import FusedTile, of_sums
from polyconv.kernels.isa import Arithmetic, channel_tile, lanes, pixel_tiles, square_tile
from polyconv.kernels.language import Module
from polyconv.kernels.layout import Move
from polyconv.kernels.objects import kernel
from polyconv.kernels.point import (
    ListedPointTile,
    PointTile,
    channel_point_tile,
    listed_point_tile,
    pixel_point_tile,
    square_point_tile,
)
from polyconv.kernels.record import altered
from polyconv.kernels.signature import Address
from polyconv.lowering.boxes import near_equal, near_equal_sizes
from polyconv.lowering.moves import move_out_address
from polyconv.lowering.packing import Set, packed_sets
from polyconv.lowering.pixels import tile_rows
from polyconv.lowering.program import Request, epilogue_tables, zeros
from polyconv.lowering.situation import Situation, arith_of, image_bytes
from polyconv.lowering.tiles import is_fusible, tile_cycles
from polyconv.lowering.traffic import streamed_cycles
from polyconv.problem.problem import Problem
from polyconv.target import Target

__all__ = [
    "Early", "OutputSets", "Places", "Slots", "channel_cycles", "colliding_cycles", "cut_outputs", "late_planes",
    "leaving_cycles", "most_pixels", "packed_weights", "pixel_cycles", "product_words", "slot_words",
    "square_cycles",
]  # fmt: skip

Places: TypeAlias = Sequence[Sequence[tuple[int, int]]]
"""Places in result and residual, in bytes, that all sets are computed for: those of a group one after another."""

_MAKE = {"channel": channel_point_tile, "listed": listed_point_tile, "pixel": pixel_point_tile,
         "panel": pixel_point_tile, "square": square_point_tile}  # fmt: skip
_FEW_PIXELS = 3
"""Images of so few pixels have sets of four vectors too: sums of fewer wait for each other.  Measured: 3-20 % off."""
_NEAR_LINES = 12
"""Lines that a set of a first-level cache holds."""
_SHARED_SETS = 256 << 10
"""Planes that lie a multiple of this apart share the sets of all caches."""
_COLLIDING_LINE = 4.5
"""Cycles of a line that comes from a second-level cache for every tile, as too many planes share the sets of a
first-level one.  Measured on Zen 5: 4.2 to 5.6."""
_LINE = 64
"""Bytes of a cache line."""
_SENT, _HIDDEN = 1.25, 2.2
"""Times that lines of planes take which do not begin where vectors do; cycles of them that a step of a tile hides."""
_START_CYCLES = 15
"""In which a tile is called, its sums begin and leave."""
_MOST_COLLIDING = 10
"""Most pixels of a tile that lie a multiple of 4 KiB apart: they share the ways of one set of a first-level cache.
Measured on Zen 5: 0-6 % off 7, and 14 no worse than 10."""


# -- cutting -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slots:
    """Where sums wait for their move, in bytes of the workspace, and how far apart they lie there."""

    begin: int
    pixel: int
    step: int
    channel: int


@dataclass(frozen=True, slots=True)
class OutputSets:
    """The output channels of a group, or some of them, cut into sets.

    Parameters
    ----------
    kind : str
        Of their tiles.
    sets : tuple of (int, int)
        First output channel, and how many.
    vectors : int
        Most of a set, where lanes are channels; else 1.
    """

    kind: str
    sets: tuple[tuple[int, int], ...]
    vectors: int

    @property
    def pixels(self) -> bool:
        """Whether lanes are pixels."""
        return self.kind in ("pixel", "panel", "square")

    @property
    def part(self) -> tuple[int, int]:
        """First output channel, and how many."""
        return (self.sets[0][0] if self.sets else 0), sum(count for _, count in self.sets)

    @property
    def sizes(self) -> dict[int, int]:
        """How many sets there are of each number of output channels."""
        found: dict[int, int] = {}
        for _, count in self.sets:
            found[count] = found.get(count, 0) + 1
        return found

    @property
    def most(self) -> int:
        """Output channels of the largest set."""
        return max((count for _, count in self.sets), default=0)

    def tile(self, s: Situation) -> str:
        """The largest tile, for people."""
        if not self.pixels:
            return f"{channel_tile(s.target, arith_of(s), self.vectors)} outputs by {self.vectors} vectors of channels"
        return f"{self.most} channels by {self.width(s, self.most)} vectors of outputs"

    def width(self, s: Situation, outputs: int) -> int:
        """Most vectors of pixels of a tile of so many outputs.  Those of a panel have as many for all sets."""
        if self.kind == "square" or not outputs:
            return 1
        return pixel_tiles(s.target, arith_of(s))[outputs if self.kind == "pixel" else self.most]

    def tall(self, lane: int) -> int:
        """Sums of a pixel in a slot."""
        return max(1, self.most) if self.pixels else self.vectors * lane

    def slots(self, arith: Arithmetic, lane: int, begin: int, pixels: int, phases: int = 1) -> Slots:
        """Slots for so many pixels, those of all phases side by side, from a place in the workspace on."""
        size, block = arith.bytes, self.vectors * lane * arith.bytes
        return Slots(begin, size if self.pixels else block, phases * block, pixels * size if self.pixels else size)


@lru_cache(256)
def cut_outputs(s: Situation, kind: str, part: tuple[int, int] | None = None) -> OutputSets:
    """The sets of a group's outputs, or of a part of them: the first, how many.

    An odd number of vectors ends with three, if there is such a tile: one alone is held up by its loads.  Large results
    leave in runs of four vectors a pixel where channels lie together: else stores wait for lines that are written in
    parts.  Measured on Zen 5: 0-14 % off where results are more than 8 MB.
    """
    p, arith = s.problem, arith_of(s)
    lane = lanes(s.target, arith)
    begin, outputs = part or (0, p.m // p.groups)
    if kind != "channel":
        found = near_equal(outputs, square_tile(s.target)) if kind == "square" else tile_rows(outputs, s.target, arith)
        return OutputSets(kind, tuple((begin + first, count) for first, count in found), 1)
    vectors = -(-outputs // lane)
    large = p.layout == "NHWC" and image_bytes(p)[1] > s.cache("l2", 2)
    four = channel_tile(s.target, arith, 4) > 0 and (large or math.prod(o or 0 for o in p.out) <= _FEW_PIXELS)
    wide = max(0, vectors // 4 - (vectors % 4 == 1)) if four else 0
    left = vectors - 4 * wide
    odd = left % 2 == 1 and left > 1 and channel_tile(s.target, arith, 3) > 0
    widths = [4] * wide + [2] * (left // 2 - odd) + ([3] if odd else [1] * (left % 2))
    firsts = itertools.accumulate((width * lane for width in widths), initial=0)
    sets = ((begin + first, min(n * lane, outputs - first)) for first, n in zip(firsts, widths, strict=False))
    return OutputSets(kind, tuple(sets), max(widths, default=1))


def most_pixels(target: Target, arith: Arithmetic, vectors: int, pixel_bytes: int) -> int:
    """Most pixels of a tile of so many vectors of channels; the pixels lie so far apart."""
    most = channel_tile(target, arith, vectors)
    return min(most, _MOST_COLLIDING) if pixel_bytes % 4096 == 0 else most


# -- costs ---------------------------------------------------------------------------------------------


def channel_cycles(s: Situation, arith: Arithmetic, vectors: int, entries: int, pixels: int, streams: float = 0.0,
                   late: float = 0.0) -> float:  # fmt: skip
    """Cycles of pixels for a set of so many vectors.

    A row of weights comes in so many as ``streams`` says, and a step takes those of ``late`` more.
    """
    tiles, rates = near_equal_sizes(pixels, channel_tile(s.target, arith, vectors)), s.rates(arith)
    return sum(
        each * ((max(tile_cycles(rates, n, vectors), streams) + late) * entries + _START_CYCLES) for n, each in tiles
    )  # fmt: skip


def late_planes(s: Situation, entries: int, most: float) -> float:
    """Cycles that a step of tiles waits for a line of weights and one of a plane, where lanes are channels.

    They are ``most`` where a first-level cache does not hold these lines, or what the second takes to send them if that
    is longer than a step hides; and none where they take a third of the first.  Measured with AVX2, 15 pointwise
    layers: on Zen 5 what ``most`` says, on Zen 3 3 cycles; steps of AVX-512 are twice as long.
    """
    if s.target.vector_bytes >= _LINE:
        return 0.0
    most = max(most, _SENT * 2 * _LINE / s.profile.numbers["l2.read"] - _HIDDEN)
    return most * min(1.0, max(0.0, 2 * entries * 2 * _LINE / s.cache("l1", 1) - 2 / 3))


def pixel_cycles(s: Situation, arith: Arithmetic, outputs: int, entries: int, vectors: int, apart: int = 0) -> float:
    """Cycles of ``vectors`` of pixels for a set of outputs, lanes are pixels, those of entries so many bytes apart.

    Pixels of one tile that are far more than a first-level cache come late for every set, above all if their planes
    share the sets of a cache.  Measured on Zen 5, beside inputs that are packed: 3-12 % slower, far ones 17-40 %.
    """
    most, rates = pixel_tiles(s.target, arith)[outputs], s.rates(arith)
    width = most * s.target.vector_bytes
    tile_bytes = width * entries
    far = 1.06 if tile_bytes > s.cache("l1", 7 / 3) else 1.0
    late = streamed_cycles(s, width) * min(2.0, tile_bytes / s.cache("l1", 1))
    if _collide(apart, entries):
        far = 1.2 if far > 1 or apart % _SHARED_SETS == 0 else 1.06
    full, rest = divmod(vectors, most)

    def tile(n: int) -> float:
        size = n * s.target.vector_bytes / 64
        lines = size if size.is_integer() else size + 0.5  # others begin or end within a line
        step = max(tile_cycles(rates, outputs, n) * far + late, colliding_cycles(apart, entries, lines))
        return step * entries + _START_CYCLES

    return full * tile(most) + (tile(rest) if rest else 0.0)


def _collide(apart: int, entries: int) -> bool:
    """Whether entries so many bytes apart share sets of a first-level cache, which holds fewer of them."""
    return apart > 0 and apart % 4096 == 0 and entries > _NEAR_LINES


def colliding_cycles(apart: int, entries: int, lines: float) -> float:
    """Least cycles of a step that reads so many lines of an entry, where planes so far apart collide; else 0."""
    return lines * _COLLIDING_LINE if _collide(apart, entries) else 0.0


def leaving_cycles(p: Problem) -> float:
    """Cycles of a vector of results on its way, where lanes lie together: from registers, or through a move."""
    return 1.5 if is_fusible(p) else 4.0


def square_cycles(outputs: int) -> float:
    """Cycles of a channel of a vector of pixels, transposed in registers, for so many outputs."""
    return max(4.2, 3.2 + 0.47 * outputs)


# -- building ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Early:
    """What tiles ask for long before it is read.

    Parameters
    ----------
    ahead : (int, int)
        The last sets ask for what lies so many bytes ahead of their input, for every entry a step further; where lanes
        are pixels they share its lines.
    written : int
        Fused tiles ask for the results of the tile that is so many after them.
    """

    ahead: tuple[int, int] = (0, 0)
    written: int = 0


_NOTHING = Early()
_ONE_PLACE = (((0, 0),),)


def slot_words(r: Request, slots: Slots, along: str, set_count: int, parts: int) -> ProductWords:
    """Words of slots and the move out of them, without sets, weights and tiles."""
    p, arith = r.problem, r.arith
    return ProductWords(
        weights=zeros(), w_group=0, set_count=set_count, split_sets=-(-set_count // parts), sets=[], functions=[],
        outputs=p.m // p.groups, word_bytes=arith.bytes, result_bytes=r.y.itemsize, lanes=lanes(r.target, arith),
        fused=0, slots=slots.begin, slot_pixel=slots.pixel, slot_step=slots.step, slot_channel=slots.channel,
        tables=epilogue_tables(r), move_out=move_out_address(r, Move(arith.accumulator, p.y, along, r.epilogue)),
    )  # fmt: skip


def product_words(r: Request, outputs: OutputSets, entries: int, packed: NDArray[Any], slots: Slots, along: str, *,
                  parts: int, fused: bool = False, places: Places = _ONE_PLACE, pixel_bytes: int = 1,
                  early: Early = _NOTHING) -> ProductWords:  # fmt: skip
    """Words of sets at some places, of their tiles and packed weights, and of slots; items share them in ``parts``."""
    functions, records = _set_tables(r, outputs, entries, fused, places, pixel_bytes, early)
    return altered(
        slot_words(r, slots, along, len(places) * len(outputs.sets), parts), weights=packed,
        w_group=packed.nbytes // max(1, r.problem.groups), sets=records, functions=functions, fused=int(fused),
    )  # fmt: skip


def _set_tables(r: Request, outputs: OutputSets, entries: int, fused: bool, places: Places, pixel_bytes: int,
                early: Early) -> tuple[list[Address[PointTile | ListedPointTile]], list[OutputSet]]:  # fmt: skip
    """Functions of tiles of 1, 2, ... pixels or vectors of them, and a record for every set at every place."""
    lane, kind, sets, pixels = lanes(r.target, r.arith), outputs.kind, outputs.sets, outputs.pixels
    spec = FusedTile(r.arith.name, r.problem.y, r.epilogue, written=early.written) if fused else of_sums(r.arith.name)
    spec = replace(spec, padded=kind == "panel")
    asking, lines = 0, 1  # the last sets that ask ahead, and lines that a tile reads of an entry
    if early.ahead[0]:  # more weights than these would drive what comes out of the second cache again
        of_set = sets[0][1] * entries * r.arith.bytes
        asking = min(len(sets), max(1, r.situation.cache("l2", 1 / 4) // of_set))
        if kind == "pixel":
            lines = -(-pixel_tiles(r.target, r.arith)[sets[0][1]] * r.target.vector_bytes // 64)
        asking = min(asking, lines)  # none asks again.  Measured on Zen 5 with AVX2: 5-14 % off
        spec = replace(spec, asked=-(-lines // asking))
    functions: list[Address[PointTile | ListedPointTile]] = []
    tables: dict[tuple[int, bool], int] = {}
    records: list[OutputSet] = []
    at, r_c = 0, 0 if r.residual is None else r.residual.c
    of_sets = [(place, one) for group in places for one in sets for place in group]
    for number, ((y, residual), (first, count)) in enumerate(of_sets):
        vectors, there = -(-count // lane), (count - 1) % lane + 1
        tiles = (count, False) if pixels else (vectors, there < lane)
        most = outputs.width(r.situation, count) if pixels else most_pixels(r.target, r.arith, vectors, pixel_bytes)
        if tiles not in tables:
            tables[tiles] = 2 * len(functions) - 2  # the function of size n is at word 2 n
            functions += _tiles(r, kind, tiles[0], range(1, most + 1), spec, (False, True) if pixels else (tiles[1],))
        whole = tables[tiles]
        turn = number // len(places[0]) % len(sets) + asking - len(sets)
        ask = (early.ahead[0] + turn * lines // asking * 64, early.ahead[1]) if turn >= 0 < asking else (0, 0)
        records.append(OutputSet(
            first, count, weights=at, most=most, functions=whole, edges=whole + 2 * most if pixels else whole,
            there=0 if pixels else there, early=ask[0], early_step=ask[1], y=y + first * r.y.c,
            r=residual + first * r_c,
        ))  # fmt: skip
        at += (count if pixels else vectors * lane) * entries * r.arith.bytes
    return functions, records


def _tiles(r: Request, kind: str, fixed: int, sizes: Sequence[int], spec: FusedTile,
           edges: Sequence[bool]) -> list[Address[PointTile | ListedPointTile]]:  # fmt: skip
    """Addresses of a family of tiles: of all sizes whole, or cut short, or first whole and then cut short."""
    make = _MAKE[kind]
    kinds = {f"{'edge' if edge else 'whole'}{n}": (edge, n) for edge in edges for n in sizes}

    def build(k: Module) -> None:
        for name, (edge, n) in kinds.items():
            size = (n, fixed) if kind in ("channel", "listed") else (fixed, n)
            make(k, name, replace(spec, edge=edge), lanes(r.target, r.arith), *size, f16c=r.target.converts_f16)

    label = f"point {kind} {spec} {fixed} {len(sizes)} {edges}"
    signature: type[PointTile | ListedPointTile] = ListedPointTile if kind == "listed" else PointTile
    found = kernel(label, dict.fromkeys(kinds, signature), build, r.target, check=r.check)
    return [found[name] for name in kinds]


def packed_weights(r: Request, key: tuple[object, ...], weights: Callable[[], NDArray[Any]], outputs: OutputSets,
                   places: tuple[int, int] = (1, 1)) -> NDArray[Any]:  # fmt: skip
    """Weights (groups, m, entries) in streaming order: per group and set of outputs, a row of outputs per entry.

    Entries may be given as (c, taps): then they are those of a tap's channels, tap by tap.  Outputs are those of the
    sets as many times as there are places: groups of them, and places of a group.
    """
    lane = lanes(r.target, r.arith)

    def pack() -> NDArray[Any]:
        w = weights()
        w = w if w.ndim == 4 else w[..., None]
        if outputs.kind == "square" and w.shape[2] % lane:  # zeros for the channels that the last square lacks
            w = np.pad(w, ((0, 0), (0, 0), (0, -w.shape[2] % lane), (0, 0)))
        return packed_sets(r, w, *_order(w.shape, outputs.sets, 1 if outputs.pixels else lane, places))

    return r.packed((r.arith.name, r.target.level, outputs.kind, outputs.sets, *key), pack)


def _order(shape: tuple[int, ...], sets: Sequence[tuple[int, int]], step: int, places: tuple[int, int]
           ) -> tuple[list[Set], int, int]:  # fmt: skip
    """Sets, channels of a block and size of packed weights; rows are multiples of a step."""
    (times, phases), entries = places, shape[2] * shape[3]
    m = shape[1] // (times * phases)
    widths = [(first, outputs, -(-outputs // step) * step) for first, outputs in sets]
    whole = times * phases * sum(width for *_, width in widths) * entries
    of_sets: list[Set] = []
    at = 0
    for group, (first, outputs, width), phase in itertools.product(range(times), widths, range(phases)):
        of_sets.append(Set((group * phases + phase) * m + first, outputs, width, at, whole))
        at += width * entries
    return of_sets, shape[2], shape[0] * whole
