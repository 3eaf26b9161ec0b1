"""Boxes of tiles: how a sweep is cut for given schemes, and where a box keeps what in the workspace of a thread.

A box brings its inputs into a panel, as many channels at a time as a first-level cache holds, and transforms them into
[point][phase][block of channels][line][tile][channel].  Sums lie as [point][block of outputs][row][tile][output], and a
row of tiles of results as [line][pixel][output].  Axes that are not transformed sum their taps at the points.
A box may hold tiles of several rows of such axes, or of several images: their products are one matrix product then.
What is said here changes no bits; it must not know what boxes cost.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from polyconv.algorithms.careful import box_bytes
from polyconv.algorithms.winograd.case import Case
from polyconv.algorithms.winograd.schemes import lines_of
from polyconv.algorithms.winograd.tiles import UNCUT, Cut, Cuts, cuts, halves, tile_count
from polyconv.algorithms.winograd.words import ZERO_BYTES
from polyconv.dataclass import dataclass
from polyconv.kernels.tile import ROW_WORDS
from polyconv.lowering.bands import Bands, bands
from polyconv.lowering.panel import header_bytes
from polyconv.lowering.sweep import Lines, lines
from polyconv.problem.hashed import Hashed

__all__ = ["LIST_BYTES", "Boxes", "candidates", "near_bytes", "odd_lines", "outer_bands", "sizes"]

_ROOM, _MOST_ROOM = 4.0, 16.0
"""Most workspace of a box, as shares of a second-level cache; and where no box fits into that.  Beyond that cache
transformed inputs are read again from the third, once per block of outputs; but every box less saves a pass over the
transformed weights.  Twice the first measured the same on one thread of a Zen 5, and took up to twice as long on two:
they push each other's out of the third."""
_NEAR, _NEAR_LINE = 1.0, 5 / 8
"""Workspace that stays in a second-level cache, as shares of it: where two axes are transformed, and where one is,
with half as many products for each byte."""
_PANEL = 2 / 3
"""Share of a first-level cache for a panel, which stays there until it is transformed."""
_MOST_TOGETHER, _SUMS = 4, 11 / 32
"""Most blocks of outputs whose sums are held together, and most bytes of these as a share of a second-level cache:
every block that is alone reads all transformed inputs again.  Measured on Zen 5: 3 to 10 % off on maps of 7 to 28 with
256 channels and more; 8 blocks were no better."""
_DEPTHS = (1, 2, 4, 8, 16)
"""Most outputs of a box along the last axis that is not transformed."""
_HEIGHTS = (1, 2, 3, 4, 7)
"""Most rows of tiles of a box."""
_LEAST_RESIDUES = 16
"""Residues along the last axis that a box may be cut down to: inputs and outputs of so many lie together."""
LIST_BYTES = 512 << 10
"""Most bytes of lists of entries; where more would be needed, fewer axes leave out taps that meet only padding."""


@dataclass(frozen=True, slots=True)
class Boxes(Hashed):
    """A case cut into boxes of tiles.

    Sizes are in bytes; ``panel``, ``v`` (transformed inputs), ``sums``, ``out`` (results of a row of tiles), ``flags``
    (tiles whose results are not finite) and the two lists of notes are places in the workspace.

    Parameters
    ----------
    rows, columns : Cuts
        Tiles along the two transformed axes.
    outer : tuple of int
        Outputs of a box along the other axes.
    held : tuple of Lines
        Input lines of a box along every axis.
    together : int
        Blocks of outputs whose sums are held at a time.
    tiles : int
        Most tiles of a box in a row of the axes that are not transformed.
    chunk : int
        Channels that are in the panel at a time.
    """

    case: Case
    rows: Cuts
    columns: Cuts
    outer: tuple[int, ...]
    held: tuple[Lines, ...]
    together: int
    tiles: int
    chunk: int
    line_bytes: int
    block_bytes: int
    v_block: int
    v_line: int
    v_phase: int
    v_point: int
    s_point: int
    out_line: int
    panel: int
    v: int
    sums: int
    out: int
    flags: int
    row_notes: int
    notes: int
    workspace: int

    __hash__ = Hashed.__hash__

    @property
    def outer_lines(self) -> int:
        """Combinations of input lines of the axes that are not transformed."""
        return math.prod([h.count for h in self.held[: len(self.outer)]])


def candidates(case: Case, together: int = 0) -> list[Boxes]:
    """Boxes of a few shapes whose workspace fits.

    Parameters
    ----------
    together : int
        Blocks of outputs whose sums are held at a time; 0 for as many as fit.
    """
    s, y, x, transformed = case.s, case.y, case.x, case.transformed
    down, last = case.sweep[-transformed], case.sweep[-1]
    tall, high = (tile_count(down, y.m), down.dilation) if transformed == 2 else (1, 1)
    wide, across = tile_count(last, x.m), last.dilation
    extents = tuple(axis.out for axis in case.outer)
    depths = sorted({_equal(extents[-1], most) for most in _DEPTHS}) if extents else [1]
    budget = s.budget(s.profile.cache("l2", _ROOM))
    found: dict[tuple[Any, ...], Boxes] = {}

    def keep(of_rows: tuple[int, int], of_columns: tuple[int, int], outer: tuple[int, ...], room: int) -> Boxes:
        """The boxes of some tiles and residues, which are a candidate if there is room; some are met twice."""
        key = of_rows, of_columns, outer
        rows = cuts(down, y.m, *of_rows) if transformed == 2 else UNCUT
        boxes = found.get(key) or sizes(case, rows, cuts(last, x.m, *of_columns), outer, together)
        if boxes.workspace <= room:
            found[key] = boxes
        return boxes

    heights = [(most, high) for most in sorted({_equal(tall, most) for most in (*_HEIGHTS, tall)})]
    heights += [(tall, residues) for residues in sorted({1, 2, 3, -(-high // 2)}) if residues < high]
    for height, depth in itertools.product(heights, depths):
        keep(height, (wide, across), (*(1 for _ in extents[:-1]), depth) if extents else (), budget)
    near, single = min(near_bytes(case), budget), (1,) * len(extents)
    for most in halves(wide):  # a single row of tiles or parts of it, down to what stays near
        room = budget if found or s.limit is not None else s.profile.cache("l2", _MOST_ROOM)
        if keep((1, 1), (most, across), single, room).workspace <= near:
            break
    for residues in halves(across)[1:]:
        if residues < _LEAST_RESIDUES or keep((1, 1), (wide, residues), single, budget).workspace <= near:
            break
    return list(found.values())


def _equal(whole: int, most: int) -> int:
    """The largest of the near-equal parts of a number, none larger than ``most``."""
    return -(-whole // -(-whole // most))


def near_bytes(case: Case) -> int:
    """Workspace of a box that stays in a second-level cache."""
    return case.s.profile.cache("l2", _NEAR if case.transformed == 2 else _NEAR_LINE)


def sizes(case: Case, rows: Cuts, columns: Cuts, outer: tuple[int, ...], together: int = 0) -> Boxes:
    """Sizes of boxes, with so many blocks of outputs together, or 0 for as many as fit."""
    s, arith, points, blocks = case.s, case.arith, case.y.n * case.x.n, case.blocks
    held, width = _held(case, rows.first, columns.first, outer)
    row_bytes, sum_row = ROW_WORDS * arith.bytes, case.vectors * case.lane * arith.bytes
    line_bytes = (held[-1].count | 1) * row_bytes
    all_lines = math.prod([h.count for h in held[:-1]])
    block_bytes = all_lines * line_bytes + 64
    in_blocks = -(-case.groups[0] // ROW_WORDS)
    chunk_blocks = min(in_blocks, max(1, s.cache("l1", _PANEL) // block_bytes))
    tiles, outputs = rows.first.tiles * columns.first.tiles, math.prod(outer)
    v_line = tiles * row_bytes
    v_block = math.prod([h.count for h in held[: len(outer)]]) * v_line
    v_phase = in_blocks * v_block
    # an odd number of cache lines between points: their stores fall into different sets
    v_point = odd_lines(len(case.phases) * v_phase)
    sums_bytes = outputs * tiles * sum_row
    if not together:
        most = s.cache("l2", _SUMS) // (points * sums_bytes) if s.limit is None else 1
        together = _equal(blocks, max(1, min(_MOST_TOGETHER, most)))
    s_point = odd_lines(together * sums_bytes)
    out_line = (width + case.x.m) * sum_row
    panel = header_bytes(len(case.sweep)) + ZERO_BYTES
    v = panel + chunk_blocks * block_bytes
    sums = v + points * v_point
    out = sums + points * s_point
    flags = max(out + case.y.m * out_line, v + box_bytes(s, len(case.sweep)))
    row_notes = flags + 8 * (1 + blocks * (1 + tiles * outputs))
    notes = row_notes + 56 * outputs
    workspace = notes + 24 * len(case.sweep) + 8 * (all_lines + 2) + 64
    return Boxes(
        case, rows, columns, outer, held, together, tiles, chunk_blocks * ROW_WORDS, line_bytes, block_bytes, v_block,
        v_line, v_phase, v_point, s_point, out_line, panel, v, sums, out, flags, row_notes, notes, workspace,
    )  # fmt: skip


def odd_lines(size: int) -> int:
    """At least so many bytes, in an odd number of cache lines: what lies so far apart shares no set."""
    return (-(-size // 64) | 1) * 64


def _held(case: Case, rows: Cut, columns: Cut, outer: tuple[int, ...]) -> tuple[tuple[Lines, ...], int]:
    """Input lines of the largest box along every axis, and outputs of its longest line."""
    held = [lines(axis, outputs) for axis, outputs in zip(case.outer, outer, strict=True)]
    if case.transformed == 2:
        held.append(lines_of(case.sweep[-2], case.y, rows.residues, len(rows.sizes) * case.y.m))
    held.append(lines_of(case.sweep[-1], case.x, columns.residues, len(columns.sizes) * case.x.m))
    return tuple(held), columns.residues * len(columns.sizes) * case.x.m


def outer_bands(case: Case) -> list[Bands]:
    """Taps of the axes that are not transformed, by rows of outputs: those that meet only padding are left out."""
    entries = 4 * len(case.phases) * -(-case.groups[0] // ROW_WORDS) * case.outer_taps
    return bands(case.outer, LIST_BYTES // (24 * max(1, entries)))
