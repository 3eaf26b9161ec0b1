"""Tables that the driver of matrix products reads: the tiles of every box, and the entries of products.

The tiles of a box are numbered so that those a point needs are neighbours: first those with a full column and one
output short along the rows, then those full along both, those short along the columns, those short along both.  The
point at infinity of an axis does without the tiles that are short along it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from polyconv.algorithms.winograd.boxes import Boxes
from polyconv.algorithms.winograd.tiles import Cut
from polyconv.algorithms.winograd.words import EntryList, KindTiles, TileBox, TileRow, TileRun
from polyconv.kernels.tile import ROW_WORDS
from polyconv.lowering.bands import Bands

__all__ = ["TileTables", "entries", "tile_tables"]

TileTables = tuple[list[TileBox], list[TileRow], list[TileRun], list[KindTiles]]
"""Boxes, the rows of tiles of each, the runs of a row, and for each kind of point its tiles."""


def tile_tables(boxes: Boxes, most: int) -> TileTables:
    """The tables of all boxes, for products of up to ``most`` tiles a call; boxes with equal tiles share theirs."""
    tile_rows: list[TileRow] = []
    runs: list[TileRun] = []
    kind_tiles: list[KindTiles] = []
    runs_of, of_tiles = dict[Any, tuple[int, int]](), dict[Any, tuple[int, ...]]()
    for columns, _ in boxes.columns.alike:
        here = _row_of_tiles(columns, boxes.case.x.m, boxes.columns.first.residues)
        runs_of[columns.shape] = len(runs), len(here)
        runs += here
    for (rows, _), (columns, _) in itertools.product(boxes.rows.alike, boxes.columns.alike):
        begins = _class_begins(rows, columns)
        here_rows = _rows_of_tiles(boxes, rows, columns, begins)
        of_tiles[rows.shape, columns.shape] = (
            *columns.segments, len(tile_rows), len(here_rows), *runs_of[columns.shape], len(kind_tiles),
            int(begins[-1] == boxes.tiles),
        )  # fmt: skip
        tile_rows += here_rows
        for low, high in ((0, 4), (0, 2), (1, 3), (1, 2)):
            tiles = begins[high] - begins[low]
            calls = -(-tiles // most)
            kind_tiles.append(KindTiles(begins[low], calls, *divmod(tiles, max(1, calls))))
    found = [
        TileBox(rows.first, rows.span, columns.first, columns.span, *of_tiles[rows.shape, columns.shape])
        for rows, columns in itertools.product(boxes.rows.boxes, boxes.columns.boxes)
    ]
    return found, tile_rows, runs, kind_tiles


def _class_begins(rows: Cut, columns: Cut) -> list[int]:
    """Where the four classes of tiles begin, and where the last ends."""
    short_rows, short_columns = rows.tiles - rows.full, columns.tiles - columns.full
    counts = (
        short_rows * columns.full, rows.full * columns.full, rows.full * short_columns, short_rows * short_columns,
    )  # fmt: skip
    return [0, *itertools.accumulate(counts)]


def _row_of_tiles(columns: Cut, m: int, pitch: int) -> list[TileRun]:
    """Runs of tiles next to each other: those of a residue, or of residues alike, whichever are fewer.

    Neighbours in a tile lie ``pitch`` pixels apart in the panel.
    """
    by_residue = [
        (low + r + pitch * sum(sizes[:first]), sizes[first], count, pitch * sizes[first])
        for low, residues, sizes in columns.alike for r in range(residues)
        for first, count in ((0, sizes.count(m)), (sizes.count(m), len(sizes) - sizes.count(m))) if count
    ]  # fmt: skip
    by_tile = [
        (low + pitch * sum(sizes[:i]), size, residues, 1)
        for low, residues, sizes in columns.alike for i, size in enumerate(sizes)
    ] if columns.residues > 1 else by_residue  # fmt: skip
    runs: list[TileRun] = []
    done = [0, 0]  # full tiles, and those one output short
    for pixel, size, count, step in min(by_residue, by_tile, key=len):
        short = int(size != m)
        runs.append(TileRun(pixel, done[short], count, step, size, short))
        done[short] += count
    return runs


def _rows_of_tiles(boxes: Boxes, rows: Cut, columns: Cut, begins: Sequence[int]) -> list[TileRow]:
    """The rows of tiles of a box."""
    short_columns, pitch = columns.tiles - columns.full, boxes.rows.first.residues
    found: list[TileRow] = []
    full = short = 0
    for low, residues, sizes in rows.alike:
        for r in range(low, low + residues):
            done = 0
            for size in sizes:
                if size == boxes.case.y.m:
                    tiles = begins[1] + full * columns.full, begins[2] + full * short_columns
                    full += 1
                else:
                    tiles = short * columns.full, begins[3] + short * short_columns
                    short += 1
                found.append(TileRow(pitch * done + r, rows.apart * done + r, size, *tiles))
                done += size
    return found


def entries(boxes: Boxes, found: Sequence[Bands]) -> tuple[list[int], list[EntryList]]:
    """Words of the entries of products, and which of them every combination of bands and kind of point has.

    An entry is a block of channels of a phase and a tap: where its transformed inputs lie, how many channels there are,
    and the rows of weights before its own.
    """
    held, group_in = boxes.held[: len(found)], boxes.case.groups[0]
    taps = math.prod(len(h.start) for h in held)
    entries: list[int] = []
    lists: list[EntryList] = []
    for ranges in itertools.product(*(of_axis for of_axis, _ in found)):
        outer = [(0, 0)]
        for h, some in zip(held, ranges, strict=True):
            outer = [(o * h.count + h.start[t], tap * len(h.start) + t) for o, tap in outer for t in some]
        of_phases: dict[tuple[int, ...], EntryList] = {}  # most kinds of points have the same
        for kind in range(4):
            entering = tuple([number for number, phase in enumerate(boxes.case.phases) if phase.enters(kind)])
            if entering not in of_phases:
                begin = len(entries) // 3
                for block, first in enumerate(range(0, group_in, ROW_WORDS)):
                    count = min(ROW_WORDS, group_in - first)
                    for place, number in enumerate(entering):
                        before = (first * len(entering) + place * count) * taps
                        for o, tap in outer:
                            where = o * boxes.v_line + number * boxes.v_phase + block * boxes.v_block
                            entries += (where, count, before + tap * count)
                of_phases[entering] = EntryList(begin, len(entries) // 3 - begin)
            lists.append(of_phases[entering])
    return entries, lists
