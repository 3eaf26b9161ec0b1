"""Convolutions of few channels, or without padding: a tile multiplies runs of taps and their channels.

Output channels are in the lanes, as in ``direct``, whose driver this uses; any rank, stride, dilation, group and pads.
What tiles read, a panel without gaps between pixels or the input in place, is told in ``runs``.  Where output channels
lie together, results go from registers to their place; else through slots and a move.
Cost: the products, with lanes filled to m/groups of a multiple of the vector.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from polyconv.algorithms.dense.channel_panel import PanelWords
from polyconv.algorithms.dense.driver import DirectWords, TileWords, address
from polyconv.algorithms.dense.price import ROW_CYCLES, SHORT_CYCLES, SHORT_STEP
from polyconv.algorithms.dense.runs import by_planes, copied, is_same, is_whole, runs, runs_of
from polyconv.algorithms.dense.sizes import Sizes, blocks_of
from polyconv.algorithms.dense.tiles import walk_tables
from polyconv.algorithms.dense.weights import block_words
from polyconv.algorithms.form import Form, Forms
from polyconv.algorithms.least import least
from polyconv.dataclass import dataclass
from polyconv.kernels.isa import lanes, run_tiles
from polyconv.kernels.layout import Move
from polyconv.kernels.record import altered, counted_words, filled, words
from polyconv.kernels.tile import ROW_WORDS
from polyconv.lowering.bands import bands_table
from polyconv.lowering.boxes import ahead_words, asks_ahead, boxed_words, boxes, near_equal_sizes, thread_parts
from polyconv.lowering.moves import along_out, move_in_address, move_out_address
from polyconv.lowering.panel import header_bytes
from polyconv.lowering.program import Program, Request, epilogue_tables, one_step
from polyconv.lowering.situation import Situation, arith_of, image_bytes
from polyconv.lowering.sweep import Lines, Sweep, lines, mean_taps, sweeps, terms_of
from polyconv.lowering.tiles import is_fusible, tile_cycles
from polyconv.lowering.traffic import far_cycles, planes_collide, streamed_cycles
from polyconv.problem.problem import Problem

__all__ = ["StemForm", "at_least", "forms"]

_PANEL = 0.25
"""Share of a second-level cache: workspace of a thread."""

_STREAMS, _NEAR, _MISSED, _MISSED_NEAR = 16, 2 / 3, 12 / 24, 12 / 61
"""Lines of a row that the hardware foresees; share of a first-level cache in which more than those stay from row to
row; and of the bytes a cycle of the last cache and of the second one, those at which others come, the more of both.
Measured on Zen 5, as all that follows; the last on an Emerald Rapids."""

_STREAMED = ((25 / 32, "l3", 14 / 24), (math.inf, "memory", 7.5 / 10.6))
"""Whence weights stream in, by the share of a last cache that they take, and what they get of its bytes a cycle."""

_ASKED = 0.6
"""Share of the cycles of inputs from memory: they are asked for early."""

_START, _PLANE_RUN, _MANY_RUN, _RUN = 25.0, 1.5, 20.0, 6.0
"""Cycles in which a tile starts, and in which it comes to the next run: of a plane, of lines that the hardware does not
foresee, of others."""

_FAR_VECTORS = 2
"""Most vectors of outputs of a tile whose weights leave a first-level cache: tall tiles read them less often."""

_LINE_CYCLES = 45.0
"""Of a line that is copied, however short: what short lines in three dimensions took beyond their elements."""

_SQUARE = 8
"""Channels from which transposing squares of vectors is cheaper than merging planes."""

_KEPT, _REPEATED = 1 / 2, 0.05
"""Share of a second-level cache in which weights stay from box to box; and what threads that share a box do anew, as a
share of the box."""

_LONGEST_ROW = 1024
"""Most outputs of a row of a box."""


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    p = s.problem
    if p.op != "conv":
        return f"computes conv, not {p.op}"
    if not s.finite:
        return "weights hold Inf or NaN, which would meet the zeros of the padding"
    in_place = is_same(s) and p.groups == 1 if p.layout == "NHWC" else is_whole(s)
    if p.c // p.groups > ROW_WORDS and not in_place:
        return f"takes at most {ROW_WORDS} input channels a group where it cannot read in place, not {p.c // p.groups}"
    return (StemForm.of(s),)


def at_least(s: Situation) -> float:
    """Cycles that products, the start of tiles and the way out take, whatever the boxes and tiles."""
    p, arith, work = s.problem, arith_of(s), least(s.problem)
    if p.op != "conv":
        return math.inf
    lane, tiles = lanes(s.target, arith), run_tiles(s.target, arith)
    tallest = max(vectors * pixels for vectors, pixels in tiles.items())
    starting = _START + (_PLANE_RUN if by_planes(s) else _RUN) * _runs_of_tile(s, *sweeps(p))
    cycles = work.met * (p.c // p.groups) / s.rates(arith).multiply_adds
    cycles += work.outputs * (1.2 + starting / tallest + _leaving(p, lane, _LONGEST_ROW) * s.moving)
    return cycles * -(-(p.m // p.groups) // lane) * (p.n or 0) * p.groups


def _runs_of_tile(s: Situation, sweep: Sweep) -> int:
    """Runs of inputs that a tile reads: planes of a row of taps, or taps of a pixel's channels."""
    of_row = s.problem.c // s.problem.groups if by_planes(s) else max(1, len(runs_of(sweep[-1])))
    return math.prod(axis.taps for axis in sweep[:-1]) * of_row


def _leaving(p: Problem, lane: int, width: int) -> float:
    """Cycles in which a vector of results leaves, of a row so wide: to planes by squares, which short rows do not fill.

    Measured on Zen 5, AVX-512 and AVX2, rows of 3 to 112 pixels.
    """
    if p.layout == "NHWC":
        return 0.0 if is_fusible(p) else 4.0
    return lane * max(0.45, 2.5 / max(1, width)) * (1.5 if planes_collide(p, reading=False) else 1.0)


@dataclass(frozen=True, slots=True)
class StemForm(Form):
    """The sizes of boxes, and of blocks of output channels."""

    sweep: Sweep
    sizes: Sizes

    @classmethod
    def of(cls, s: Situation) -> Self:
        """That of a situation which has one."""
        (sweep,) = sweeps(s.problem)
        box = boxes(_largest(s, sweep), lambda box: _sizes(s, sweep, box).workspace,
                    s.budget(round(_PANEL * s.profile.numbers["l2.bytes"])))  # fmt: skip
        found, items = _sizes(s, sweep, box), (s.problem.n or 0) * s.problem.groups
        parts = thread_parts(s.threads, items * found.boxes(sweep), found.blocks.count, _REPEATED)
        return cls(s, sweep, replace(found, splits=parts))

    @property
    def scheme(self) -> str:
        """The order in which products are summed, where it is not tap by tap."""
        return "channel by channel" if by_planes(self.s) else ""

    @property
    def workspace(self) -> int:
        """Bytes a thread needs."""
        return self.sizes.workspace

    def choices(self) -> dict[str, object]:
        """Tiles and boxes."""
        return self.sizes.choices(run_tiles(self.s.target, arith_of(self.s))[self.sizes.blocks.vectors])

    def cost(self) -> Mapping[str, float]:
        """Cycles: multiply-adds at full tiles or at the loads that short rows need, and the moves."""
        s, p, sweep, sizes = self.s, self.s.problem, self.sweep, self.sizes
        group_in, box_count, planes, caches = p.c // p.groups, sizes.boxes(sweep), by_planes(s), s.profile.numbers
        rows = math.prod(axis.out for axis in sweep[:-1]) * -(-sweep[-1].out // max(1, sizes.box[-1]))
        lines_of_row = math.prod(mean_taps(axis) for axis in sweep[:-1])
        near = round(_NEAR * caches["l1.bytes"])
        misses = lines_of_row > _STREAMS and lines_of_row * sizes.line_bytes > near
        rate = max(s.profile.stream("l3", _MISSED), s.profile.stream("l2", _MISSED_NEAR))
        missed = lines_of_row * sizes.line_bytes / rate if misses else 0.0
        per_run = _PLANE_RUN if planes else _MANY_RUN if lines_of_row > _STREAMS else _RUN
        starting = _START + per_run * _runs_of_tile(s, sweep)
        products, moves, entries = 0.0, 0.0, terms_of(s.problem, sweep)
        for vectors, count in ((sizes.blocks.vectors, sizes.blocks.count - 1), (sizes.blocks.last_vectors, 1)):
            tiles = near_equal_sizes(sizes.box[-1], run_tiles(s.target, arith_of(s))[vectors])
            each = [(alike, tile_cycles(s.rates(arith_of(s)), n, vectors)) for n, alike in tiles]
            width = vectors * s.target.vector_bytes
            late = streamed_cycles(s, width) * min(1.0, entries * width / caches["l1.bytes"]) * (2 if planes else 1)
            row = sum(n * (c + late + (SHORT_CYCLES if vectors > 1 and c < SHORT_STEP else 0.0)) for n, c in each)
            row = row * group_in * lines_of_row * sweep[-1].taps + 1.2 * sizes.box[-1] * vectors
            products += rows * count * (row + sum(n for n, _ in each) * starting + ROW_CYCLES + missed)
            moves += rows * count * sizes.box[-1] * vectors * _leaving(p, sizes.blocks.lanes, sizes.box[-1])
        weights = p.m * entries * arith_of(s).bytes
        level, share = next((by, of) for most, by, of in _STREAMED if weights <= most * s.profile.cache("l3", 1.0))
        streamed = weights / s.profile.stream(level, share)
        products = max(products, box_count * streamed / p.groups)  # each box brings them all
        moves += box_count * self._bringing()
        batch = (p.n or 0) * p.groups
        far = _ASKED * far_cycles(s, image_bytes(p)[0], soon=True) * (p.n or 0)
        return {"products": products * batch, "moves": moves * batch + far}

    def _bringing(self) -> float:
        """Cycles in which the lines of a box are copied."""
        p, group_in = self.s.problem, self.s.problem.c // self.s.problem.groups
        held = math.prod(max(1, h.count) for h in self.sizes.held)
        if by_planes(self.s):
            return 300.0
        begun = 300 + _LINE_CYCLES * math.prod(max(1, h.count) for h in self.sizes.held[:-1])
        if (p.layout == "NHWC" and p.groups == 1) or p.c == 1:
            return begun + held * group_in * 0.15
        slow = 2.0 if group_in >= _SQUARE and planes_collide(p, reading=True) else 1.0
        return begun + held * group_in * (2.5 if p.layout == "NHWC" else 0.5 if group_in > 1 else 1.0) * slow

    def build(self, r: Request) -> Program:
        """Program of a request: one step."""
        keep: list[Any] = []
        values, items = _words(r, self.sweep, self.sizes)
        return one_step(address(r), filled(values, keep), items, self.workspace, keep)


def _largest(s: Situation, sweep: Sweep) -> tuple[int, ...]:
    """The largest box that is considered: a few items for every thread, as many for each.

    But each box brings all weights: where these are many, threads share the output channels of whole boxes instead.
    """
    box, items = [*(axis.out for axis in sweep[:-1]), min(sweep[-1].out, _LONGEST_ROW)], s.problem.groups
    items *= s.problem.n or 0
    weights = s.problem.m // s.problem.groups * terms_of(s.problem, sweep) * arith_of(s).bytes
    if s.threads > 1 and items < 4 * s.threads and weights <= s.cache("l2", _KEPT):
        parts = -(-4 * s.threads // max(1, items))
        axis = 0 if len(box) == 1 or box[0] >= parts else len(box) - 2
        extent = max(1, box[axis])
        ways = {-(-extent // n) for n in range(parts, 2 * parts + 1)}
        box[axis] = min(ways, key=lambda b: (-(-(-(-extent // b) * max(1, items)) // s.threads) * b, -b))
    return tuple(box)


def _sizes(s: Situation, sweep: Sweep, box: tuple[int, ...]) -> Sizes:
    p, arith, last = s.problem, arith_of(s), sweep[-1]
    group_in, most = p.c // p.groups, max(run_tiles(s.target, arith))
    total = max(1, -(-(p.m // p.groups) // lanes(s.target, arith)))
    weights = terms_of(s.problem, sweep) * min(most, total) * s.target.vector_bytes
    if weights > s.cache("l1", _NEAR):
        most = min(most, _FAR_VECTORS)
    blocks = blocks_of(s, arith, -(-total // -(-total // most)))
    span = (box[-1] - 1) * last.stride + (last.taps - 1) * last.dilation + 1 if last.taps and box[-1] else 0
    run = Lines(range(span), ((0, span, 0),), tuple(t * last.dilation for t in range(last.taps)))
    held = (*(lines(axis, b) for axis, b in zip(sweep[:-1], box[:-1], strict=True)), run)
    pixel = group_in * arith.bytes
    line_bytes = (-(-span * pixel // 64) | 1) * 64  # odd: lines do not share all their sets
    panel = math.prod(max(1, h.count) for h in held[:-1]) * line_bytes
    workspace = header_bytes(len(sweep)) + panel + box[-1] * blocks.outputs * arith.bytes + 128
    return Sizes(box, held, blocks, group_in, 1, pixel, line_bytes, 0, panel, 0, 0, workspace)


def _words(r: Request, sweep: Sweep, sizes: Sizes) -> tuple[DirectWords, int]:
    """The driver's words, and how many items there are."""
    p, arith, last, group_in = r.problem, r.arith, sweep[-1], r.problem.c // r.problem.groups
    lies, held, header = along_out(r, last, "c"), sizes.held, header_bytes(len(sweep))
    fused = lies == "cc" and is_fusible(p)
    gapless = (r.x.c == r.x.itemsize or p.c == 1) and r.x.spatial[-1] == group_in * r.x.itemsize
    entries, x_entries, in_place = runs(r, sweep, sizes, gapless=gapless)
    if in_place:
        held = (*held[:-1], replace(held[-1], runs=copied(r, last, sizes, in_place)))
    ahead = ahead_words(r, sweep, sizes.box, 1 if gapless else group_in if r.x.spatial[-1] == r.x.itemsize else 0)
    tiles = walk_tables(r, sweep, sizes, run_tiles(r.target, arith).__getitem__, fused=fused,
                        asked=int(asks_ahead(ahead)), in_place=in_place)  # fmt: skip
    blocks = block_words(r, sweep, sizes, 1 if by_planes(r.situation) else max(ROW_WORDS, group_in))
    common, items = boxed_words(r, sweep, sizes.box, held, sizes.splits, panel=header)
    common = altered(common, step=1) if held[-1].runs else altered(common, step=1, line_count=0)
    steps = sizes.chunk_steps(p, arith, sweep)
    return DirectWords(
        common=common,
        inputs=PanelWords(
            total_channels=r.x_channels, channels=group_in, block_channels=max(1, group_in), unpaired=0,
            channel_bytes=arith.bytes, row_bytes=sizes.row_bytes, block_bytes=0, line_bytes=sizes.line_bytes,
            chunk=group_in, gapless=int(gapless), move_in=move_in_address(r, _way_in(r, gapless)),
        ),
        chunks=1, entries=words(entries.words), x_entries=x_entries,
        bands=words(bands_table(entries.bands)), lists=entries.lists, blocks=blocks, total_outputs=r.y_channels,
        ahead=ahead, ahead_weights=0, ahead_tile=64 * steps, chunk_steps=max(1, steps), row_tiles=1, ask_results=0,
        slots=header + sizes.panel, slot_block=0, slot_row=0, flat=0, row_pixels=sizes.row,
        panel_step=last.stride * sizes.row_bytes,
        x_step=last.stride * r.x.spatial[-1] if in_place else 0, tiles=tiles,
        table_words=counted_words(TileWords, tiles), walk=1, fused=int(fused), word_bytes=arith.bytes,
        tables=epilogue_tables(r), move_out=move_out_address(r, Move(arith.accumulator, p.y, lies, r.epilogue)),
    ), items  # fmt: skip


def _way_in(r: Request, gapless: bool) -> Move:
    """The move of a line into the panel."""
    p = r.problem
    group_in = p.c // p.groups
    if gapless or r.x.c == r.x.itemsize:
        return Move(p.x, r.arith.accumulator, "cc" if gapless or group_in >= _SQUARE else "any")
    if r.x.spatial[-1] != r.x.itemsize or group_in == 1:
        return Move(p.x, r.arith.accumulator, "any")
    return Move(p.x, r.arith.accumulator, "pc", together=group_in if group_in < _SQUARE else 0)
