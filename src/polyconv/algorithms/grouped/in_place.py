"""Groups in place, where channels lie together: any rank, stride, dilation and element type.

Outputs with the same taps inside the input are a box of their own, so nothing is padded and nothing is copied: tiles
read pixels where they lie and write results to their place.  Where groups are as wide out as in and no wider than a
vector, several lie side by side in the lanes; else lanes are the output channels of one group as in ``direct``.  A box
is walked along its last axis, or the one before it where that fills tiles better.
Cost: the products, with lanes filled to whole groups.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from polyconv.algorithms.dense import direct
from polyconv.algorithms.dense.weights import packed_weights as channel_weights
from polyconv.algorithms.form import Form, Forms, Refusal
from polyconv.algorithms.grouped import pieces, side_by_side
from polyconv.algorithms.grouped.pieces import (
    Block,
    TileWords,
    along,
    boxes_of,
    channel_steps,
    cut_lines,
    lines_at,
    tap_places,
    walked_step,
)
from polyconv.algorithms.grouped.side_by_side import packed_weights, row_cycles, tile_functions, walks_of
from polyconv.algorithms.least import least
from polyconv.dataclass import dataclass
from polyconv.kernels.fused import FusedTile, PlaceWalk
from polyconv.kernels.isa import lanes, run_tiles
from polyconv.kernels.signature import Address
from polyconv.kernels.tile import ROW_WORDS
from polyconv.lowering.boxes import near_equal
from polyconv.lowering.program import Program, Request, Step, program_of, residual_of
from polyconv.lowering.situation import Situation, arith_of, image_bytes
from polyconv.lowering.sweep import Sweep, sweeps, taps_of
from polyconv.lowering.tiles import is_fusible, place_address, tile_cycles

__all__ = ["forms"]

_MOST_ENTRIES, _MOST_BOXES = 1 << 16, 1 << 12
"""Most entries of all lists, and most boxes of a sweep."""
_LAST = 45 / 24
"""Input and result come and go, beside the products, at this multiple of the bytes a cycle that a last cache gives."""
_MISSED = {1024: 0.7, 2048: 3.5, 4096: 3.5}
"""Cycles that a vector of a pixel takes to come into the first-level cache where pixels lie a multiple of so many bytes
apart, and so share few of its sets; else 0.4.  Measured on Zen 5."""
_CONVERTED = {"f16": 2.0}
"""Cycles in which a single number that has fewer bits than its sum comes into all lanes, else 1.  Measured on Zen 5."""


# -- choosing ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Filling:
    """How channels fill lanes.

    Parameters
    ----------
    groups : int
        That lie side by side in a vector; 0 if lanes are output channels of a single group.
    blocks : int
        Of a group.
    vectors, last_vectors : int
        Of a block's output channels, and of the last one's.
    most : int
        Outputs of a tile.
    """

    groups: int
    blocks: int
    vectors: int
    last_vectors: int
    most: int


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    reason = _refusal(s)
    if reason is not None:
        return reason
    p, lane, group = s.problem, lanes(s.target, arith_of(s)), s.problem.c // s.problem.groups
    by_channel = _by_channel(s)
    if p.c == p.m and group <= lane:
        by_group = Filling(lane // group, 1, 1, 1, side_by_side.most_rows(s.target, group))
        if _products(s, by_group) < _products(s, by_channel):
            return (InPlaceForm(s, by_group),)
    return (InPlaceForm(s, by_channel),)


def _refusal(s: Situation) -> Refusal | None:
    p, reason = s.problem, direct.refusal(s)
    if reason is not None:
        return reason
    if p.layout != "NHWC" or p.groups == 1 or p.c == p.groups or p.m == 0:
        return "computes groups of several channels that lie together"
    if p.quantisation is not None or not is_fusible(p):
        return "takes no zero points and no dear epilogue"
    for sweep in sweeps(p):
        taps, boxes = pieces.counts_of(sweep, 2, _MOST_ENTRIES)
        if taps * -(-p.c // p.groups // ROW_WORDS) > _MOST_ENTRIES or boxes > _MOST_BOXES:
            return "has too many boxes of outputs with taps of their own"
    return None


def _by_channel(s: Situation) -> Filling:
    """Lanes that are output channels of one group."""
    arith = arith_of(s)
    tiles, total = run_tiles(s.target, arith), -(-(s.problem.m // s.problem.groups) // lanes(s.target, arith))
    blocks = -(-total // 2) if total != 3 or 3 not in tiles else 1
    vectors = -(-total // blocks)
    blocks = -(-total // vectors)
    return Filling(0, blocks, vectors, total - (blocks - 1) * vectors, tiles[vectors])


def _products(s: Situation, filling: Filling) -> float:
    """Cycles of the tiles of an image."""
    p, rates, group = s.problem, s.rates(arith_of(s)), s.problem.c // s.problem.groups
    missed = _MISSED.get(math.gcd(p.c * p.x_dtype.itemsize, 4096), 0.4)
    converted = _CONVERTED.get(p.x, 1.0) if p.x_dtype.itemsize < arith_of(s).bytes else 0.0
    cycles = 0.0
    for box in (box for sweep in sweeps(p) for box in boxes_of(sweep, 2, _MOST_ENTRIES)):
        outputs = box.extents[along(box.extents, filling.most)]
        lines = math.prod(box.extents) // max(1, outputs)
        if filling.groups:
            row = row_cycles(rates, outputs, filling.most, group, box.taps) + 25.0 + missed * outputs * box.taps
            cycles += lines * -(-p.groups // filling.groups) * row
            continue
        for vectors, count in ((filling.vectors, filling.blocks - 1), (filling.last_vectors, 1)):
            tiles = near_equal(outputs, run_tiles(s.target, arith_of(s))[vectors])
            steps, per_tile = group * box.taps, 25 + 8.0 * box.taps
            row = sum(
                max(tile_cycles(rates, n, vectors), n * converted) * steps + per_tile + 1.2 * n * vectors
                for _, n in tiles
            )
            cycles += lines * count * p.groups * (row + 25.0)
    return cycles


# -- the form ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InPlaceForm(Form):
    """How channels fill lanes."""

    filling: Filling

    @property
    def workspace(self) -> int:
        """None: a box is read and written in place."""
        return 0

    def cost(self) -> dict[str, float]:
        """Cycles: multiply-adds or loads, starting tiles, and what comes from the last cache."""
        p = self.s.problem
        batch = p.n or 0
        read = least(p).brought * p.c * p.x_dtype.itemsize if p.op == "conv" else image_bytes(p)[0]
        moved = (read + image_bytes(p)[1]) / self.s.profile.stream("l3", _LAST)
        return {"products": batch * _products(self.s, self.filling), "moves": batch * moved}

    def choices(self) -> Mapping[str, object]:
        """The largest tile."""
        f = self.filling
        columns = f"a vector of {f.groups} groups" if f.groups else f"{f.vectors} vectors of channels"
        return {"tile": f"{f.most} outputs by {columns}"}

    def build(self, r: Request) -> Program:
        """One step per sweep."""
        keep: list[Any] = []
        return program_of([_step(r, sweep, self.filling, keep) for sweep in sweeps(r.problem)], 0, keep)


# -- building ------------------------------------------------------------------------------------------


def _step(r: Request, sweep: Sweep, filling: Filling, keep: list[Any]) -> Step:
    arith, lane, key, vectors = r.arith, lanes(r.target, r.arith), taps_of(sweep), filling.vectors
    if filling.groups:
        packed = r.packed(("grouped", arith.name, lane, key), lambda: packed_weights(r.weights(sweep), lane))
    else:
        packed = r.packed(
            ("direct", arith.name, lane, vectors, key),
            lambda: channel_weights(r, r.weights(sweep), vectors, filling.last_vectors),
        )
    blocks = list(_blocks(r, filling, math.prod(a.taps for a in sweep)))
    whole, parts = boxes_of(sweep, 2, _MOST_ENTRIES), pieces.parts_of(r, len(blocks))
    entries: list[int] = []
    lists: dict[tuple[range, ...], tuple[int, int]] = {}
    for box in whole:
        if box.ranges not in lists:
            found = _entries(r, sweep, filling, box.ranges)
            lists[box.ranges] = len(entries), len(found) // (2 if filling.groups else 3)
            entries += found
    cut = [lines for box in whole for lines in cut_lines(box, filling.most, parts)]
    cut.sort(key=lambda found: found[0].first)
    lengths, kinds = sorted({box.extents[axis] for box, axis in cut}), _kinds(r, filling)
    tables = [_walks(r, filling, length, *kind) for length in lengths for kind in kinds]
    visited = [
        lines_at(r, sweep, box, axis, lists[box.ranges], len(kinds) * lengths.index(box.extents[axis]))
        for box, axis in cut
    ]  # fmt: skip
    return walked_step(r, sweep, visited, blocks, entries, tables, packed, channel_steps(r), keep)


def _entries(r: Request, sweep: Sweep, filling: Filling, ranges: tuple[range, ...]) -> list[int]:
    """Words of the entries of some taps, of all channels or chunk by chunk of them."""
    group = r.problem.c // r.problem.groups
    taps, places = math.prod(a.taps for a in sweep), tap_places(r, sweep, ranges)
    if filling.groups:
        return [word for at, tap in places for word in (at, tap * group * r.target.vector_bytes)]
    return [
        word for first in range(0, group, ROW_WORDS)
        for count in (min(ROW_WORDS, group - first),)
        for at, tap in places
        for word in (at + first * r.x.c, count, first * taps + tap * count)
    ]  # fmt: skip


def _kinds(r: Request, filling: Filling) -> list[tuple[int, int]]:
    """Vectors of the kinds of blocks there are, and lanes of the last one; that of the last block comes last."""
    p, lane = r.problem, lanes(r.target, r.arith)
    if filling.groups:
        used = filling.groups * p.c // p.groups
        return [(1, count) for count in dict.fromkeys((min(used, p.c), (p.c - 1) % used + 1))]
    last = filling.last_vectors, (p.m // p.groups - 1) % lane + 1
    return [last] if filling.blocks == 1 else [(filling.vectors, lane), last]


def _blocks(r: Request, filling: Filling, taps: int) -> Iterator[Block]:
    """Words of every block."""
    p, size, lane, residual = r.problem, r.arith.bytes, lanes(r.target, r.arith), residual_of(r)
    group_in, group_out, kinds = p.c // p.groups, p.m // p.groups, len(_kinds(r, filling))

    def block(first_in: int, first_out: int, kind: int, weights: int) -> Block:
        return Block(
            first_in * r.x.c, first_out * r.y.c, first_out * residual.c, kind, weights, first_out * size
        )  # fmt: skip

    if filling.groups:
        used = filling.groups * group_in
        for first in range(0, p.c, used):
            last = first + used >= p.c
            yield block(first, first, last * (kinds - 1), first // used * taps * group_in * r.target.vector_bytes)
        return
    outputs, steps = filling.vectors * lane, group_in * taps * lane * size
    before = (filling.blocks - 1) * filling.vectors * steps
    for g in range(p.groups):
        for b in range(filling.blocks):
            last, of_block = b == filling.blocks - 1, g * before + b * filling.vectors * steps
            if last:  # these follow after all others
                of_block = p.groups * before + g * filling.last_vectors * steps
            yield block(g * group_in, g * group_out + b * outputs, last * (kinds - 1), of_block)


def _walks(r: Request, filling: Filling, length: int, vectors: int, last: int) -> list[TileWords]:
    """Tiles of a line, equal ones together, of so many vectors with so many lanes of the last one."""
    p, lane = r.problem, lanes(r.target, r.arith)
    apart = any(o.c != o.itemsize for o in (r.x, r.y, r.residual) if o is not None)
    spec = FusedTile(r.arith.name, p.y, r.epilogue, last < lane, source=p.x, apart=apart)
    functions: Sequence[Address[PlaceWalk] | None]
    if filling.groups:
        most, functions = filling.most, tile_functions(r, spec, p.c // p.groups, PlaceWalk)
    else:
        most = run_tiles(r.target, r.arith)[vectors]
        wanted = {n for _, n in near_equal(length, most)}
        functions = [place_address(r, spec, n, vectors) if n in wanted else None for n in range(1, most + 1)]
    return [TileWords(first, times, last, function) for first, times, function in walks_of(functions, length, most)]
