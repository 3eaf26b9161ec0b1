"""Groups, and few outputs, in place, where pixels lie together: any rank and dilation, a stride of 1 or 2 along rows.

Lanes are pixels of a row, read where they lie; those in the padding are masked by tables, and rows leave out the taps
of outer axes that meet only padding, so nothing is copied.
Cost: the products over lane use, and loads across lines.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from polyconv.algorithms.dense import direct
from polyconv.algorithms.form import Form, Forms, Refusal
from polyconv.algorithms.grouped import pieces
from polyconv.algorithms.grouped.pieces import (
    Steps,
    TileWords,
    boxes_of,
    channel_steps,
    steps_along,
    tap_places,
    walked_step,
)
from polyconv.dataclass import dataclass
from polyconv.kernels.fused import FusedTile, PlaceWalk
from polyconv.kernels.isa import lanes
from polyconv.kernels.plane import entry_words, plane_tile
from polyconv.kernels.signature import Address
from polyconv.kernels.tile import ROW_WORDS
from polyconv.lowering.boxes import near_equal
from polyconv.lowering.program import Program, Request, Step, address_of, program_of, residual_of
from polyconv.lowering.situation import Situation, arith_of, has_pairs, image_bytes
from polyconv.lowering.sweep import Sweep, mean_taps, sweeps, taps_of
from polyconv.lowering.tiles import is_fusible, tile_cycles
from polyconv.lowering.traffic import far_cycles
from polyconv.runtime.arrays import aligned

__all__ = ["forms"]

_TILES = {1: 24, 2: 12, 3: 8}
"""Vectors of neighbouring outputs -> most output channels."""
_MOST_OUTPUTS, _MOST_SHARE = 24, 5 / 2
"""Where there is one group: most outputs, and most of input and result of an image as a multiple of a second-level
cache.  Measured on Zen 5: ``generic``, which brings inputs once and writes whole rows, is up to 1.3 times as fast with
90 outputs of few products, or 5 MB, twice with 13 MB."""
_MOST_WORDS, _MOST_BOXES = 1 << 17, 1 << 12
"""Most words of all lists of entries, and most boxes."""
_LAST = 45 / 24
"""Input and result come and go, beside the products, at this multiple of the bytes a cycle that a last cache gives."""


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    reason = _refusal(s)
    if reason is not None:
        return reason
    (sweep,) = sweeps(s.problem)
    tiles = _row_tiles(s, sweep)
    widest = max((tile.vectors for tile in tiles), default=1)
    return (InPlanesForm(s, sweep, tiles, tuple(near_equal(s.problem.m // s.problem.groups, _TILES[widest]))),)


def _refusal(s: Situation) -> Refusal | None:
    p, reason = s.problem, direct.refusal(s)
    if reason is not None:
        return reason
    if p.op != "conv" or p.layout != "NCHW" or (p.c == p.groups and p.c > 1):
        return "computes several channels a group, channels first"
    if p.groups == 1 and (p.m > _MOST_OUTPUTS or sum(image_bytes(p)) > s.cache("l2", _MOST_SHARE)):
        return f"computes groups, or up to {_MOST_OUTPUTS} outputs of small images"
    if has_pairs(s) or p.quantisation is not None or not is_fusible(p):
        return "takes no pairs of bf16, no zero points and no dear epilogue"
    (sweep,) = sweeps(p)
    if sweep[-1].stride > 2:
        return "takes strides of one and two along rows"
    (taps, boxes), tiles = pieces.counts_of(sweep[:-1], 1, _MOST_WORDS), len(_row_tiles(s, sweep))
    if taps * sweep[-1].taps * tiles * 8 > _MOST_WORDS or boxes * tiles > _MOST_BOXES:
        return "has too many rows or parts of rows with taps of their own"
    return None


@dataclass(frozen=True, slots=True)
class RowTile:
    """A tile along a row: its first output, how many vectors, and lanes of the last one."""

    first: int
    vectors: int
    last: int


def _row_tiles(s: Situation, sweep: Sweep) -> tuple[RowTile, ...]:
    lane, out = lanes(s.target, arith_of(s)), sweep[-1].out
    parts = near_equal(-(-out // lane), max(_TILES))
    return tuple(RowTile(first * lane, n, min(out - (first + n - 1) * lane, lane)) for first, n in parts)


@dataclass(frozen=True, slots=True)
class InPlanesForm(Form):
    """The only sweep, tiles along a row, and sets of a group's output channels: first and number."""

    sweep: Sweep
    tiles: tuple[RowTile, ...]
    sets: tuple[tuple[int, int], ...]

    @property
    def workspace(self) -> int:
        """None: rows are read and written in place."""
        return 0

    def cost(self) -> dict[str, float]:
        """Cycles: multiply-adds, loads or the latency of sums, the most of them, and what comes from the last cache."""
        p, rates, sweep = self.s.problem, self.s.rates(arith_of(self.s)), self.sweep
        group, stride = p.c // p.groups, sweep[-1].stride
        taps = math.prod(mean_taps(axis) for axis in sweep[:-1]) * sweep[-1].taps
        row = 0.0
        for (_, rows), tile in itertools.product(self.sets, self.tiles):
            step = max(tile_cycles(rates, rows, tile.vectors), (rows + 2 * tile.vectors * stride) / rates.loads)
            row += taps * (group * step + 3.0 * -(-group // ROW_WORDS)) + 30.0 + 1.5 * rows * tile.vectors
        times = (p.n or 0) * p.groups * math.prod(axis.out for axis in sweep[:-1])
        images = image_bytes(p)
        far = sum(images) / self.s.profile.stream("l3", _LAST)
        if any(axis.stride > axis.taps for axis in sweep[:-1]):  # rows that are left out: no hardware foresees the next
            far += far_cycles(self.s, images[0])
        return {"products": times * row, "moves": (p.n or 0) * far}

    def choices(self) -> Mapping[str, object]:
        """The largest tile."""
        rows, vectors = max((n for _, n in self.sets), default=0), max((tile.vectors for tile in self.tiles), default=0)
        return {"tile": f"{rows} channels by {vectors} vectors of outputs"}

    def build(self, r: Request) -> Program:
        """One step."""
        keep: list[Any] = []
        return program_of([_step(r, self, keep)], 0, keep)


def _step(r: Request, form: InPlanesForm, keep: list[Any]) -> Step:
    p, sweep, sets, size, residual = r.problem, form.sweep, form.sets, r.arith.bytes, residual_of(r)
    group_in, group_out = p.c // p.groups, p.m // p.groups
    taps, stride = math.prod(axis.taps for axis in sweep), sweep[-1].stride
    heights = sorted({rows for _, rows in sets})
    key = ("planes", r.arith.name, sets, taps_of(sweep))
    packed = r.packed(key, lambda: _packed_weights(r.weights(sweep), sets))
    blocks = [
        pieces.Block(
            g * group_in * r.x.c, m * r.y.c, m * residual.c, heights.index(rows), m * group_in * taps * size, m * size
        )
        for g in range(p.groups) for first, rows in sets for m in (g * group_out + first,)
    ]  # fmt: skip
    tables = [[TileWords(0, 1, t.last, _function(r, rows, t.vectors, stride))] for t in form.tiles for rows in heights]
    entries: list[int] = []
    visited = []
    parts = -(-pieces.parts_of(r, len(blocks)) // max(1, len(form.tiles)))
    down = steps_along(r, sweep, -2) if len(sweep) > 1 else Steps(0, 0, 0)
    for number, tile in enumerate(form.tiles):
        lists: dict[tuple[range, ...], tuple[int, int]] = {}
        for box in boxes_of(sweep[:-1], 1, _MOST_WORDS):
            if box.ranges not in lists:
                found = list(_entries(r, sweep, box.ranges, tile))
                lists[box.ranges] = len(entries), len(found) // entry_words(tile.vectors, stride)
                entries += found
            lines = box.extents[-1] if box.extents else 1
            for first, count in near_equal(lines, -(-lines // min(parts, lines))):
                begins = [*box.first, tile.first]
                if box.first:
                    begins[-2] += first
                table = number * len(heights)
                visited.append(
                    pieces.piece_at(r, sweep, begins, count, down, channel_steps(r), lists[box.ranges], table)
                )
    pixel = Steps(r.x.spatial[-1], r.y.spatial[-1], residual.spatial[-1])
    return walked_step(r, sweep, visited, blocks, entries, tables, packed, pixel, keep)


def _entries(r: Request, sweep: Sweep, ranges: tuple[range, ...], tile: RowTile) -> Iterator[int]:
    """Words of the entries of some taps of the outer axes, for a tile of a row."""
    last, lane, group = sweep[-1], lanes(r.target, r.arith), r.problem.c // r.problem.groups
    taps, outer = math.prod(axis.taps for axis in sweep), tap_places(r, sweep[:-1], ranges)
    for first in range(0, group, ROW_WORDS):
        count = min(ROW_WORDS, group - first)
        for (at, tap), t in itertools.product(outer, range(last.taps)):
            column = tile.first * last.stride - last.pad + t * last.dilation
            firsts = [column + part * lane for part in range(tile.vectors * last.stride)]
            low = [min(max(0, -of_load), lane) for of_load in firsts]
            spans = [(a, max(a, min(lane, last.inp - of_load))) for a, of_load in zip(low, firsts, strict=True)]
            if any(a < b for a, b in spans):
                yield at + t * last.dilation * r.x.spatial[-1] + first * r.x.c
                yield first * taps + (tap * last.taps + t) * count
                yield count
                yield from ((1 << b) - (1 << a) | a << 32 | b << 48 for a, b in spans)


def _function(r: Request, rows: int, vectors: int, stride: int) -> Address[PlaceWalk]:
    """Address of a tile."""
    apart = any(o.spatial[-1] != o.itemsize for o in (r.x, r.y, r.residual) if o is not None)
    spec = FusedTile(r.arith.name, r.problem.y, r.epilogue, edge=True, source=r.problem.x, apart=apart)
    count, f16c = lanes(r.target, r.arith), r.target.converts_f16
    return address_of(
        r, f"plane {spec} {rows} {vectors} {stride}", "tile", PlaceWalk,
        lambda k, name: plane_tile(k, name, spec, count, rows, vectors, stride, f16c=f16c),
    )  # fmt: skip


def _packed_weights(w: NDArray[Any], sets: tuple[tuple[int, int], ...]) -> NDArray[Any]:
    """Weights (groups, m, c, taps) as they stream: [group][set][block of channels][tap][channel][output]."""
    groups, _, c, taps = w.shape
    packed = aligned((groups, w[0].size), w.dtype)
    for (first, rows), channel in itertools.product(sets, range(0, c, ROW_WORDS)):
        part = w[:, first : first + rows, channel : channel + ROW_WORDS].transpose(0, 3, 2, 1).reshape(groups, -1)
        begin = (first * c + rows * channel) * taps
        packed[:, begin : begin + part.shape[1]] = part
    return packed
