"""How ``woven`` cuts a transposed convolution: groups of outputs that read the same inputs, their boxes, and the cost.

Outputs ``s j - p + r`` with r in 0..s, one in each phase of the stride s, are a group.  With a dilation d tap t of the
kernel is one of phase ``t d mod s``, and reads the input ``t d // s`` before the group's.  Sweeps here are of groups.
It must not know how panels and tiles are made.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

from polyconv.algorithms.woven.driver import RowWords
from polyconv.dataclass import dataclass
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, lanes, pixel_tiles
from polyconv.kernels.record import word_count
from polyconv.lowering.boxes import boxes, near_equal
from polyconv.lowering.moves import are_short, row_cycles
from polyconv.lowering.panel import header_bytes
from polyconv.lowering.pixels import by_heights
from polyconv.lowering.situation import Situation, arith_of, has_pairs, image_bytes
from polyconv.lowering.sweep import Axis, Lines, Sweep, box_count
from polyconv.lowering.tiles import tile_cycles
from polyconv.lowering.traffic import beyond_cycles, far_cycles
from polyconv.machine.profile import Rates
from polyconv.problem.problem import Problem

__all__ = ["Cut", "Taps", "arithmetic_of", "cost", "cut", "heights", "taps_along"]

_PANEL = 160 / 1024
"""Share of a second-level cache: every tile reads its part of the panel again, beside streaming weights."""

_LONGEST_ROW = 4096
"""Most groups of a row of a box."""

_MOST_PHASES = 8
"""Of the last axis: a tile's code writes out the results of all of them."""

_TILE_CYCLES, _LATE_SHARE = 20.0, 0.6
"""Cycles of a tile beside its products and stores, and how much of what comes from memory is not there when it is
needed.  Measured on Zen 5, as the following."""

_STORED = {False: 2.0, True: 1.2}
"""Cycles in which a vector of results leaves a tile, or of sums where tiles go along the box."""

_STREAMING = {(1, False): 1.0, (1, True): 1.0, (2, False): 1.0, (2, True): 0.9}
"""How much longer products take, whose pixels come from a second-level cache: by the channels of a word, and whether
tiles go along the box.  Pairs are half as many pixels, and ends of tiles along the box overlap with the next tile."""

_LEAVING = {1: 4.0, 2: 1.6}
"""Cycles in which a vector of sums leaves its slots, by the channels of a word: results of pairs are half as wide."""


@dataclass(frozen=True, slots=True)
class Taps:
    """Taps of an axis: every ``period``-th is of the same phase, and reads an input ``step`` before the last one's.

    Parameters
    ----------
    phases : tuple of (int, int)
        Of the first taps, each of another phase: the phase, and how far before the group's own their input lies.
    """

    k: int
    stride: int
    dilation: int
    period: int
    step: int
    phases: tuple[tuple[int, int], ...]

    @property
    def span(self) -> int:
        """How far before the group's own the last tap's input lies."""
        return self.back(self.k - 1)

    @property
    def common(self) -> int:
        """How many taps all of the phases have."""
        return self.k // self.period

    @property
    def longer(self) -> int:
        """How many of the phases, the first ones, have a tap more."""
        return self.k % self.period

    def back(self, tap: int) -> int:
        """How far before the group's own a tap's input lies."""
        return tap * self.dilation // self.stride

    def of_phase(self, phase: int) -> list[int]:
        """Taps of a phase, the first input's first."""
        return [t for t in reversed(range(self.k)) if t * self.dilation % self.stride == phase]


def taps_along(p: Problem) -> list[Taps]:
    """Taps of every axis."""
    found = []
    for k, s, d in zip(p.k, p.s, p.d, strict=True):
        period = s // math.gcd(s, d)
        phases = tuple((t * d % s, t * d // s) for t in range(min(k, period)))
        found.append(Taps(k, s, d, period, d // math.gcd(s, d), phases))
    return found


@dataclass(frozen=True, slots=True)
class Cut:
    """Sizes of a problem's boxes.

    Parameters
    ----------
    sweep : Sweep
        Of groups of outputs.
    box : tuple of int
        Groups of a box.
    held : tuple of Lines
        Lines of its inputs along every axis.
    flat : bool
        Whether tiles go along the flattened box, not along its rows.
    walks, vectors : int
        How often tiles go along something, and of how many vectors that is.
    sets : tuple of (int, int)
        First output channel and number of those that tiles compute together.
    line_words, plane_bytes, panel : int
        Of the panel: words of a line, bytes of the lines of a plane of words and of all.
    row_table, slot_channel, workspace : int
        Bytes of the table of rows, of the sums of an output channel if tiles go along the box, and of all.
    """

    sweep: Sweep
    box: tuple[int, ...]
    held: tuple[Lines, ...]
    flat: bool
    walks: int
    vectors: int
    sets: tuple[tuple[int, int], ...]
    line_words: int
    plane_bytes: int
    panel: int
    row_table: int
    slot_channel: int
    workspace: int


def arithmetic_of(s: Situation) -> Arithmetic:
    """Dot products of bf16 pairs where channels of a group fill pairs, and the CPU has them; else the accumulator's."""
    pairs = has_pairs(s) and s.problem.c // s.problem.groups % ARITHMETIC["bf16"].channels == 0
    return ARITHMETIC["bf16"] if pairs else arith_of(s)


def heights(s: Situation) -> dict[int, int]:
    """Output channels of a tile -> most vectors of pixels, where it has sums of all phases that have taps."""
    p, times = s.problem, len(taps_along(s.problem)[-1].phases)
    found = {rows // times: most for rows, most in pixel_tiles(s.target, arithmetic_of(s)).items() if rows % times == 0}
    return found if p.s[-1] <= _MOST_PHASES else {}


@lru_cache(256)
def _sweep(p: Problem) -> Sweep:
    """The groups of outputs as outputs of a sweep, with all inputs between those of the first tap and of the last."""
    axes = []
    for i, o, taps, (begin, _) in zip(p.i, p.out, taps_along(p), p.pads, strict=True):
        assert i is not None and o is not None
        s, span = taps.stride, taps.span
        first = begin // s
        groups = (o - 1 + begin) // s - first + 1 if o else 0
        axes.append(Axis(groups, i, span + 1, 1, 1, span - first, s * first - begin, s))
    return tuple(axes)


def _held(taps: Taps, block: int, *, last: bool) -> Lines:
    """Inputs of so many groups, and the line of each tap's first; of the last axis with what lies between them."""
    firsts = [taps.span - taps.back(t) for t in range(taps.k)]
    positions = sorted({first + b for first in firsts for b in range(block)})
    if last:
        positions = [*range(taps.span + block)]
    begins = [at for at, position in enumerate(positions) if not at or positions[at - 1] < position - 1]
    runs = tuple((at, end - at, positions[at]) for at, end in itertools.pairwise((*begins, len(positions))))
    return Lines(tuple(positions), runs, tuple(map(positions.index, firsts)))


def cut(s: Situation, *, flat: bool) -> Cut:
    """The largest boxes whose panel stays in a near cache."""
    sweep, budget = _sweep(s.problem), s.budget(s.profile.cache("l2", _PANEL))
    start = (*(axis.out for axis in sweep[:-1]), min(sweep[-1].out, _LONGEST_ROW))
    return _of_box(s, sweep, boxes(start, lambda box: _of_box(s, sweep, box, flat).workspace, budget), flat)


def _of_box(s: Situation, sweep: Sweep, box: tuple[int, ...], flat: bool) -> Cut:
    p, arith = s.problem, arithmetic_of(s)
    lane, times = lanes(s.target, arith), p.s[-1]
    sets = tuple(by_heights(p.m // p.groups, heights(s)))
    taps = taps_along(p)
    held = (*(_held(own, b, last=False) for own, b in zip(taps, box[:-1], strict=False)),
            _held(taps[-1], box[-1], last=True))  # fmt: skip
    # whole vectors of a row that tiles go along, so that none lies across two cache lines
    line = held[-1].count if flat else -(-held[-1].count // lane) * lane
    pixels = math.prod(h.count for h in held[:-1]) * line
    # an odd number of cache lines: planes share few sets
    plane = (-(-(pixels + 2 * lane) * arith.bytes // 64) | 1) * 64
    panel, slot = plane * (p.c // p.groups // arith.channels), plane * times if flat else 0
    rows = -(-8 * word_count(RowWords) * math.prod((*box[:-1], *p.s[:-1])) // 64) * 64
    tall = max((rows for _, rows in sets), default=1)
    return Cut(
        sweep, box, held, flat, 1 if flat else math.prod(box[:-1]),
        -(-(pixels - line + box[-1] if flat else box[-1]) // lane), sets, line, plane, panel, rows, slot,
        header_bytes(len(sweep)) + panel + rows + slot * tall + 128,
    )  # fmt: skip


def cost(s: Situation, c: Cut) -> dict[str, float]:
    """Cycles: multiply-adds with the lanes that rows or boxes fill, and the moves."""
    p, arith = s.problem, arithmetic_of(s)
    along, rates, shares = taps_along(p)[-1], s.rates(arith), _shares(p, arith)
    times, most = len(along.phases), heights(s)
    boxes_of_image = box_count(c.sweep, c.box)
    calls, leaving = (len(shares) * c.walks if c.vectors else 0), _STORED[c.flat] * along.stride
    products = 0.0
    for _, height in c.sets:
        for _, each in near_equal(c.vectors, most[height]):
            common, longer = (_cycles(rates, height * of, each) for of in (times, along.longer))
            cycles = sum(count * common + more * longer for count, more in shares)
            products += c.walks * cycles * _STREAMING[arith.channels, c.flat]
            products += calls * (_TILE_CYCLES + leaving * height * each)
    batch = (p.n or 0) * p.groups * boxes_of_image
    far = _LATE_SHARE * far_cycles(s, batch * c.panel)
    far += beyond_cycles(s, image_bytes(p)[1]) * (p.n or 0)
    return {"products": products * batch, "panels": _panel_cycles(s, arith, c) * batch + far,
            "moves": _moves_cycles(s, arith, c, len(shares)) * batch}  # fmt: skip


def _panel_cycles(s: Situation, arith: Arithmetic, c: Cut) -> float:
    """Cycles in which the panel of a box is filled."""
    planes, lines, pixels = s.problem.c // s.problem.groups // arith.channels, 1, c.held[-1].count
    for held in c.held[:-1]:
        lines *= held.count
    if arith.channels > 1 or not are_short(c.sweep, pixels):
        return lines * (60.0 + planes * (8 + pixels * 0.3))
    calls = lines / c.held[-2].count * len(c.held[-2].runs)
    zeros = c.plane_bytes / s.target.vector_bytes
    return calls * 100.0 + planes * (lines * row_cycles(pixels, lanes(s.target, arith)) + zeros)


def _moves_cycles(s: Situation, arith: Arithmetic, c: Cut, phases: int) -> float:
    """Cycles in which an item begins and finds its rows, and sums leave their slots."""
    p, rows, lane = s.problem, math.prod(c.box[:-1]), lanes(s.target, arith)
    width = p.s[-1] * c.sweep[-1].out / max(1, -(-c.sweep[-1].out // max(1, c.box[-1])))
    together = c.flat and are_short(c.sweep, c.sweep[-1].out)
    runs = rows / c.box[-2] if together else rows
    moves = 300.0 + len(c.sets) * phases * runs * (100.0 if together else 40.0)
    of_row = row_cycles(width, lane) if together else 12 + width / lane * _LEAVING[arith.channels]
    return moves + (phases * p.m / p.groups * rows * of_row if c.flat else 0.0)


def _shares(p: Problem, arith: Arithmetic) -> list[tuple[int, int]]:
    """Entries of every phase of the outer axes: of all phases of the last, and of those with one tap more."""
    channel_words, (*others, last) = p.c // p.groups // arith.channels, taps_along(p)
    outer = [[len(taps.of_phase(phase)) for phase in range(taps.stride)] for taps in others]
    counts = [channel_words * math.prod(taps) for taps in itertools.product(*outer)]
    return [(count * last.common, count if last.longer else 0) for count in counts]


def _cycles(rates: Rates, rows: int, vectors: int) -> float:
    """Cycles of a tap of a tile: beside its own words it loads entries, and asks for inputs to come."""
    return max(tile_cycles(rates, rows, vectors), (rows + vectors + 3) / rates.loads) if rows else 0.0
