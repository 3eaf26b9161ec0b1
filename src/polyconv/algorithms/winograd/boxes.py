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
import operator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from polyconv.algorithms.dense.plan import again_workspace
from polyconv.algorithms.winograd.schemes import NONE, Phase, lines_of, phases
from polyconv.algorithms.winograd.tiles import UNCUT, Cut, cuts, halves, tile_count
from polyconv.kernels.isa import Arithmetic, lanes
from polyconv.kernels.tile import ROW_WORDS
from polyconv.kernels.transform import Scheme
from polyconv.lowering.bands import Bands, bands
from polyconv.lowering.panel import header_bytes
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Lines, Sweep, lines
from polyconv.problem.hashed import Hashed

__all__ = ["LIST_BYTES", "Boxes", "Case", "candidates", "near_bytes", "odd_lines", "outer_bands", "repair_box", "sizes"]

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
class Case(Hashed):
    """A sweep to be computed by schemes of its last two axes, ``y`` and ``x``; ``y`` is ``NONE`` if only one is.

    The sweep may be one of several that are alike but for where they lie, as ``anywhere`` leaves it.
    """

    s: Situation
    arith: Arithmetic
    sweep: Sweep
    y: Scheme
    x: Scheme
    transformed: int = field(init=False, repr=False, compare=False)
    """Number of transformed axes: the last one or two."""
    outer: Sweep = field(init=False, repr=False, compare=False)
    """The other axes."""
    outer_taps: int = field(init=False, repr=False, compare=False)
    """Combinations of their taps."""
    groups: tuple[int, int] = field(init=False, repr=False, compare=False)
    """Channels of a group, of the input and of the result."""
    lane: int = field(init=False, repr=False, compare=False)
    """Numbers of a vector."""

    __hash__ = Hashed.__hash__

    def __post_init__(self) -> None:
        fill, p = object.__setattr__, self.s.problem
        fill(self, "transformed", 1 if self.y == NONE else 2)
        fill(self, "outer", self.sweep[: -self.transformed])
        fill(self, "outer_taps", math.prod([axis.taps for axis in self.outer]))
        fill(self, "groups", (p.c // p.groups, p.m // p.groups))
        fill(self, "lane", lanes(self.s.target, self.arith))


@dataclass(frozen=True, slots=True)
class Boxes(Hashed):
    """A case cut into boxes of tiles.

    Sizes are in bytes; ``panel``, ``v`` (transformed inputs), ``sums``, ``out`` (results of a row of tiles), ``flags``
    (tiles whose results are not finite) and the two lists of notes are places in the workspace.

    Parameters
    ----------
    rows, columns : tuple of Cut
        Tiles along the two transformed axes.
    outer : tuple of int
        Outputs of a box along the other axes.
    held : tuple of Lines
        Input lines of a box along every axis.
    points : tuple of int
        How many points there are of each kind: 0 finite ones, 1 infinity along the last axis, 2 along the one before,
        3 along both.
    entering : tuple of int
        How many phases have products at points of each kind.
    products : int
        Those of a tile for an input channel and an output channel: every point by the phases that enter it.
    vectors, last_vectors, blocks : int
        Vectors of output channels in a block, those of the last block, and blocks of a group.
    together : int
        Blocks of outputs whose sums are held at a time.
    tiles : int
        Most tiles of a box in a row of the axes that are not transformed.
    chunk : int
        Channels that are in the panel at a time.
    """

    case: Case
    rows: tuple[Cut, ...]
    columns: tuple[Cut, ...]
    outer: tuple[int, ...]
    held: tuple[Lines, ...]
    phases: tuple[Phase, ...]
    points: tuple[int, int, int, int]
    entering: tuple[int, int, int, int]
    products: int
    vectors: int
    last_vectors: int
    blocks: int
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

    @property
    def vectors_out(self) -> int:
        """Vectors of output channels; the last block may have one less than others."""
        return (self.blocks - 1) * self.vectors + self.last_vectors

    @property
    def weight_bytes(self) -> int:
        """Bytes of the transformed weights of a group."""
        rows = self.products * self.case.outer_taps * self.case.groups[0]
        return rows * self.vectors_out * self.case.lane * self.case.arith.bytes

    @property
    def kinds(self) -> list[int]:
        """Kind of every point."""
        y, x = self.case.y, self.case.x
        infinite = y.ends if self.case.transformed == 2 else 0
        row = [0] * (x.n - x.ends) + [1] * x.ends
        return row * (y.n - infinite) + [2 + kind for kind in row] * infinite


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


def sizes(case: Case, rows: tuple[Cut, ...], columns: tuple[Cut, ...], outer: tuple[int, ...], together: int = 0
          ) -> Boxes:  # fmt: skip
    """Sizes of boxes, with so many blocks of outputs together, or 0 for as many as fit."""
    s, arith, sweep, y, x, transformed = case.s, case.arith, case.sweep, case.y, case.x, case.transformed
    (group_in, group_out), lane, points = case.groups, case.lane, y.n * x.n
    vectors_out = -(-group_out // lane)
    vectors = min(vectors_out, 2)
    blocks = -(-vectors_out // vectors)
    held, width = _held(case, rows, columns, outer)
    row_bytes, sum_row = ROW_WORDS * arith.bytes, vectors * lane * arith.bytes
    line_bytes = (held[-1].count | 1) * row_bytes
    all_lines = math.prod([h.count for h in held[:-1]])
    block_bytes = all_lines * line_bytes + 64
    in_blocks = -(-group_in // ROW_WORDS)
    chunk_blocks = min(in_blocks, max(1, s.near(s.profile.cache("l1", _PANEL)) // block_bytes))
    tiles = max([cut.tiles for cut in rows]) * max([cut.tiles for cut in columns])
    v_line = tiles * row_bytes
    v_block = math.prod([h.count for h in held[: len(outer)]]) * v_line
    v_phase = in_blocks * v_block
    of_taps = phases(sweep, held, transformed, y, x)
    # an odd number of cache lines between points: their stores fall into different sets
    v_point = odd_lines(len(of_taps) * v_phase)
    sums_bytes = math.prod(outer) * tiles * sum_row
    if not together:
        most = s.near(s.profile.cache("l2", _SUMS)) // (points * sums_bytes) if s.limit is None else 1
        together = _equal(blocks, max(1, min(_MOST_TOGETHER, most)))
    s_point = odd_lines(together * sums_bytes)
    out_line = (width + x.m) * sum_row
    panel = header_bytes(len(sweep)) + 256
    v = panel + chunk_blocks * block_bytes
    sums = v + points * v_point
    out = sums + points * s_point
    repair = again_workspace(s, arith, sweep, repair_box(transformed, rows, columns, outer), vectors)
    flags = max(out + y.m * out_line, v + repair)
    row_notes = flags + 8 * (1 + blocks * (1 + tiles * math.prod(outer)))
    notes = row_notes + 56 * math.prod(outer)
    of_kinds, entering = _points(transformed, y, x), _entering(tuple([phase.full for phase in of_taps]))
    return Boxes(
        case, rows, columns, outer, held, of_taps, of_kinds, entering, sum(map(operator.mul, of_kinds, entering)),
        vectors, vectors_out - (blocks - 1) * vectors, blocks, together, tiles, chunk_blocks * ROW_WORDS, line_bytes, block_bytes, v_block, v_line, v_phase, v_point, s_point,
        out_line, panel, v, sums, out, flags, row_notes, notes, notes + 24 * len(sweep) + 8 * (all_lines + 2) + 64,
    )  # fmt: skip


def odd_lines(size: int) -> int:
    """At least so many bytes, in an odd number of cache lines: what lies so far apart shares no set."""
    return (-(-size // 64) | 1) * 64


def _held(case: Case, rows: tuple[Cut, ...], columns: tuple[Cut, ...], outer: tuple[int, ...]
          ) -> tuple[tuple[Lines, ...], int]:  # fmt: skip
    """Input lines of a box along every axis, and outputs of its longest line."""
    tall, wide = max([len(cut.sizes) for cut in rows]), max([len(cut.sizes) for cut in columns])
    inner = (case.y, rows[0].residues, tall * case.y.m), (case.x, columns[0].residues, wide * case.x.m)
    held = [lines(axis, outputs) for axis, outputs in zip(case.sweep, outer, strict=False)]
    held += [lines_of(axis, *of) for axis, of in zip(case.sweep[len(outer) :], inner[-case.transformed :], strict=True)]
    return tuple(held), columns[0].residues * wide * case.x.m


def _points(transformed: int, y: Scheme, x: Scheme) -> tuple[int, int, int, int]:
    """How many points there are of each kind."""
    inner, ends = x.n - x.ends, x.ends
    if transformed == 1:
        return inner * y.n, ends * y.n, 0, 0
    return inner * (y.n - y.ends), ends * (y.n - y.ends), inner * y.ends, ends * y.ends


@cache
def _entering(full: tuple[tuple[bool, bool], ...]) -> tuple[int, int, int, int]:
    """How many phases, with all taps or one less along the two axes, have products at points of each kind."""
    along_y, along_x = sum(y for y, _ in full), sum(x for _, x in full)
    return len(full), along_x, along_y, sum(y and x for y, x in full)


def repair_box(transformed: int, rows: tuple[Cut, ...], columns: tuple[Cut, ...], outer: tuple[int, ...]
               ) -> tuple[int, ...]:  # fmt: skip
    """Most outputs that are computed again at a time, where results are not finite: neighbouring tiles of a row."""
    tall = (max([cut.sizes[0] for cut in rows]),) if transformed == 2 else ()  # full tiles come first
    return (*(1 for _ in outer), *tall, max([max(cut.segments[1:]) for cut in columns]))


def outer_bands(case: Case, phases: int) -> list[Bands]:
    """Taps of the axes that are not transformed, by rows of outputs: those that meet only padding are left out."""
    entries = 4 * phases * -(-case.groups[0] // ROW_WORDS) * case.outer_taps
    return bands(case.outer, LIST_BYTES // (24 * max(1, entries)))
