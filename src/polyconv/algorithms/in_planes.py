"""Groups in place, where pixels lie together: any rank and dilation, a stride of one or two along rows.

Lanes are pixels of a row, read where they lie; those in the padding are masked by tables, and rows leave out the taps
of outer axes that meet only padding, so nothing is copied.  Arrays whose pixels do not lie together are left to
``direct``, which adds in the same order.
Cost: the products over lane use, and loads across lines.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from polyconv.algorithms.dense import direct
from polyconv.algorithms.in_place import Block, Piece, PieceLine, PlaceWords, Steps, parts_of, place_words, runs, visit
from polyconv.algorithms.panel import Driver
from polyconv.algorithms.program import (
    Operand,
    Program,
    Request,
    Situation,
    Step,
    accumulator_arithmetic,
    address_of,
    along_out,
    image_bytes,
    is_fusible,
    near_equal,
    tile_cycles,
)
from polyconv.algorithms.sweep import Sweep, bands, mean_taps, sweeps
from polyconv.kernels.fused import FusedTile
from polyconv.kernels.isa import ARITHMETIC, lanes
from polyconv.kernels.language import Module
from polyconv.kernels.plane import PlaneTile, entry_words, plane_tile
from polyconv.kernels.record import Counted, Function, Record, Word, counted_words, filled
from polyconv.kernels.signature import Address
from polyconv.kernels.tile import ROW_WORDS
from polyconv.runtime.arrays import aligned

__all__ = ["applicable", "build", "cost", "workspace"]

_TILES = {1: 24, 2: 12, 3: 8}
"""Vectors of neighbouring outputs -> most output channels."""
_MOST_WORDS, _MOST_PIECES = 1 << 17, 1 << 12
"""Most words of all lists of entries, and most boxes."""
_LAST_BYTES = 45.0
"""Bytes of input and result that come and go a cycle, beside the products."""


class TileWords(Record):
    """A tile of a line: its first output, the lanes of its last vector, and its function."""

    first: Word
    lanes: Word
    function: Function[PlaneTile]


class InPlanesWords(Record):
    """The driver's words."""

    shared: PlaceWords
    tiles: Counted[TileWords]


def driver(k: Module, name: str) -> None:
    """Add the driver to a module: as ``in_place.driver``, with tiles of planes."""
    with k.function(name, Driver) as given:
        p = InPlanesWords.read(k, given.words)

        def tiles(line: PieceLine, tile: TileWords) -> None:
            first, function, last = tile.first, tile.function, tile.lanes
            k.call(function, PlaneTile(*line.places(first), last, *line.tables))

        visit(k, p.shared, p.tiles, given, tiles)


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    p = s.problem
    reason = direct.refusal(s)
    if reason is not None:
        return reason
    if p.op != "conv" or p.layout != "NCHW" or p.groups == 1 or p.c == p.groups:
        return "computes groups of several channels, channels first"
    if p.x not in ("f32", "f64") or accumulator_arithmetic(s) != p.x or not is_fusible(p):
        return "reads numbers as they are summed, with a cheap epilogue"
    (sweep,) = sweeps(p)
    if sweep[-1].stride > 2:
        return "takes strides of one and two along rows"
    kinds = bands(sweep[:-1], _MOST_WORDS)
    lists = math.prod(sum(map(len, ranges)) for ranges, _ in kinds)
    positions = len(_positions(s, sweep))
    pieces = math.prod(len(runs(of)) for _, of in kinds[-1:]) * math.prod(axis.out for axis in sweep[:-2]) * positions
    if lists * sweep[-1].taps * positions * 8 > _MOST_WORDS or pieces > _MOST_PIECES:
        return "has too many rows or parts of rows with taps of their own"
    return None


def _positions(s: Situation, sweep: Sweep) -> list[tuple[int, int, int]]:
    """Tiles along a row: first output, vectors, and lanes of the last."""
    lane, out = lanes(s.target, ARITHMETIC[s.problem.x]), sweep[-1].out
    parts = near_equal(-(-out // lane), max(_TILES))
    return [(first * lane, count, min(out - (first + count - 1) * lane, lane)) for first, count in parts]


def _sets(s: Situation, sweep: Sweep) -> list[tuple[int, int]]:
    """Sets of output channels of a group: first and number."""
    widest = max((vectors for _, vectors, _ in _positions(s, sweep)), default=1)
    return near_equal(s.problem.m // s.problem.groups, _TILES[widest])


def workspace(s: Situation) -> int:
    """Bytes a thread needs where arrays lie otherwise."""
    return direct.DirectForm.of(s).workspace


def cost(s: Situation) -> dict[str, float]:
    """Cycles: multiply-adds, loads or the latency of sums, whichever is most, and what comes from the last cache."""
    p, rates = s.problem, s.rates(ARITHMETIC[accumulator_arithmetic(s)])
    (sweep,) = sweeps(p)
    stride, taps = sweep[-1].stride, math.prod(mean_taps(axis) for axis in sweep[:-1]) * sweep[-1].taps
    row = 0.0
    for (_, rows), (_, vectors, _) in itertools.product(_sets(s, sweep), _positions(s, sweep)):
        step = max(tile_cycles(rates, rows, vectors), (rows + 2 * vectors * stride) / rates.loads)
        row += taps * (p.c // p.groups * step + 3.0 * -(-p.c // p.groups // ROW_WORDS)) + 30.0 + 1.5 * rows * vectors
    times = (p.n or 0) * p.groups * math.prod(axis.out for axis in sweep[:-1])
    return {"products": times * row, "moves": (p.n or 0) * sum(image_bytes(p)) / _LAST_BYTES}


def build(r: Request) -> Program:
    """Program of a request: one step."""
    (sweep,) = sweeps(r.problem)
    if r.x.spatial[-1] != r.x.itemsize or along_out(r, sweep[-1], "p") != "pp":
        return direct.DirectForm.of(r.situation).build(r)
    keep: list[Any] = []
    step = _step(r, sweep, keep)
    return Program((step,) if step.items else (), 0, tuple(keep))


def _step(r: Request, sweep: Sweep, keep: list[Any]) -> Step:
    p, size = r.problem, r.arith.bytes
    group_in, group_out = p.c // p.groups, p.m // p.groups
    residual = r.residual or Operand(0, 0, (0,) * len(sweep), 0, 1)
    taps = math.prod(axis.taps for axis in sweep)
    sets, positions = _sets(r.situation, sweep), _positions(r.situation, sweep)
    heights = sorted({rows for _, rows in sets})
    key = tuple((a.taps, a.first_tap, a.tap_step) for a in sweep)
    packed = r.packed(("planes", r.arith.name, tuple(sets), key), lambda: _packed_weights(r.weights(sweep), sets))
    blocks = [
        Block(
            g * group_in * r.x.c, m * r.y.c, m * residual.c, heights.index(rows), m * group_in * taps * size, m * size,
            0,
        )
        for g in range(p.groups) for first, rows in sets for m in (g * group_out + first,)
    ]  # fmt: skip
    stride = sweep[-1].stride
    tables = [
        [TileWords(0, left, _function(r, rows, vectors, stride))] for _, vectors, left in positions for rows in heights
    ]  # fmt: skip
    entries: list[int] = []
    pieces = []
    found = bands(sweep[:-1], _MOST_WORDS)
    outer = [runs(of_output) for _, of_output in found]
    outer[:-1] = [[(o, 1, kind) for first, count, kind in some for o in range(first, first + count)]
                  for some in outer[:-1]]  # fmt: skip
    lists: dict[tuple[int, ...], tuple[int, int]] = {}
    parts = -(-parts_of(r, len(blocks)) // max(1, len(positions)))
    for number, (begin, vectors, _) in enumerate(positions):
        for box in itertools.product(*outer):
            ranges = tuple(kinds[kind] for (kinds, _), (_, _, kind) in zip(found, box, strict=True))
            which = (number, *(kind for _, _, kind in box))
            if which not in lists:
                made = list(_entries(r, sweep, ranges, begin, vectors))
                lists[which] = len(entries), len(made) // entry_words(vectors, stride)
                entries += made
            lines = box[-1][1] if box else 1
            for first, count in near_equal(lines, -(-lines // min(parts, lines))):
                places = [*(o for o, _, _ in box), begin]
                if box:
                    places[-2] += first
                pieces.append(_piece(r, sweep, residual, places, count, lists[which], number * len(heights)))
    address = address_of(r, "in_planes", "in_planes", Driver, driver)
    shared, items = place_words(r, sweep, pieces, blocks, entries, counted_words(TileWords, tables), packed)
    return Step(address, filled(InPlanesWords(shared, tables), keep), items)


def _piece(r: Request, sweep: Sweep, residual: Operand, places: list[int], lines: int, found: tuple[int, int],
           table: int) -> Piece:  # fmt: skip
    """Words of a box: rows of outputs from a place on, part of their pixels.  Columns of the input are the entries'."""
    x = sum((o * a.stride - a.pad) * step for o, a, step in zip(places[:-1], sweep[:-1], r.x.spatial, strict=False))
    y, other = (sum(o * step for o, step in zip(places, of.spatial, strict=True)) for of in (r.y, residual))
    down = Steps(0, 0, 0)
    if len(sweep) > 1:
        down = Steps(sweep[-2].stride * r.x.spatial[-2], r.y.spatial[-2], residual.spatial[-2])
    return Piece(x, y, other, *found, lines, down, Steps(r.x.c, r.y.c, residual.c), table)


def _entries(r: Request, sweep: Sweep, ranges: tuple[range, ...], begin: int, vectors: int) -> Iterator[int]:
    """Words of the entries of some taps of the outer axes, for a tile of outputs from ``begin`` on."""
    last, lane, group = sweep[-1], lanes(r.target, r.arith), r.problem.c // r.problem.groups
    taps = math.prod(axis.taps for axis in sweep)
    outer = [(0, 0)]
    for axis, step, some in zip(sweep[:-1], r.x.spatial, ranges, strict=False):
        outer = [(at + t * axis.dilation * step, tap * axis.taps + t) for at, tap in outer for t in some]
    for first in range(0, group, ROW_WORDS):
        count = min(ROW_WORDS, group - first)
        for (at, tap), t in itertools.product(outer, range(last.taps)):
            column = begin * last.stride - last.pad + t * last.dilation
            firsts = [column + part * lane for part in range(vectors * last.stride)]
            low = [min(max(0, -of_load), lane) for of_load in firsts]
            spans = [(a, max(a, min(lane, last.inp - of_load))) for a, of_load in zip(low, firsts, strict=True)]
            if any(a < b for a, b in spans):
                yield at + column * r.arith.bytes + first * r.x.c
                yield first * taps + (tap * last.taps + t) * count
                yield count
                yield from ((1 << b) - (1 << a) | a << 32 | b << 48 for a, b in spans)


def _function(r: Request, rows: int, vectors: int, stride: int) -> Address[PlaneTile]:
    """Address of a tile."""
    spec = FusedTile(r.arith.name, r.problem.y, r.epilogue, edge=True)
    count, f16c = lanes(r.target, r.arith), r.target.converts_f16

    def make(k: Module, name: str) -> None:
        plane_tile(k, name, spec, count, rows, vectors, stride, f16c=f16c)

    return address_of(r, f"plane {spec} {rows} {vectors} {stride}", "tile", PlaneTile, make)


def _packed_weights(w: NDArray[Any], sets: list[tuple[int, int]]) -> NDArray[Any]:
    """Weights (groups, m, c, taps) as they stream: [group][set][block of channels][tap][channel][output]."""
    groups, _, c, taps = w.shape
    packed = aligned((groups, w[0].size), w.dtype)
    for (first, rows), channel in itertools.product(sets, range(0, c, ROW_WORDS)):
        part = w[:, first : first + rows, channel : channel + ROW_WORDS].transpose(0, 3, 2, 1).reshape(groups, -1)
        begin = (first * c + rows * channel) * taps
        packed[:, begin : begin + part.shape[1]] = part
    return packed
