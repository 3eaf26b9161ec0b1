"""Inputs read in place, output channels in the lanes: dense, any rank, stride, dilation, group, pads, layout.

A box of outputs gets a zero-padded copy of its input lines, [line][pixel][channel]: there the taps of a row of the
kernel and their channels are one run of words, read by a tile whose rows lie a run-time step apart.  Where the input
lies so itself, only tiles that meet padding at the ends of a row read a copy; without padding planes of channels are
read in place as well, the taps of a row of a channel being a run.  Where output channels lie together, results go from
registers to their place; else through slots and a move.
Cost: the products, with lanes filled to m/groups of a multiple of the vector.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from polyconv.algorithms.dense.sizes import channel_words
from polyconv.algorithms.dense.weights import packed_weights
from polyconv.algorithms.least import least
from polyconv.algorithms.panel import (
    Ahead,
    Common,
    Driver,
    EpilogueTables,
    Frame,
    Item,
    ListWords,
    RowLists,
    ahead_place,
    axis_words,
    box_rows,
    decode,
    fill,
    row_entries,
    row_place,
    row_source,
)
from polyconv.algorithms.program import (
    Program,
    Request,
    Situation,
    accumulator_arithmetic,
    address_of,
    ahead_words,
    along_out,
    asks_ahead,
    boxed_words,
    boxes,
    epilogue_tables,
    far_cycles,
    fused_address,
    image_bytes,
    is_fusible,
    listed_rows,
    move_in_address,
    move_out_address,
    near_equal,
    one_step,
    planes_collide,
    tile_cycles,
)  # fmt: skip
from polyconv.algorithms.sweep import (
    Axis,
    Lines,
    Sweep,
    bands,
    bands_table,
    inside,
    lines,
    mean_taps,
    sweeps,
    whole_bands,
)
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.fused import FusedTile, Walk, of_sums
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, lanes, run_tiles
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import Move, MoveIn, MoveOut, zero_words
from polyconv.kernels.record import Counted, Function, Memory, Record, Word, counted_words, filled, words
from polyconv.kernels.tile import ROW_WORDS
from polyconv.problem.problem import Problem

__all__ = ["applicable", "at_least", "build", "cost", "driver", "workspace"]

PANEL_BYTES = 256 << 10
"""Workspace of a thread: a quarter of a 1 MiB second-level cache."""

_STREAMS, _NEAR_BYTES, _MISSED_BYTES = 16, 32 << 10, 12.0
"""Lines of a row that the hardware foresees; bytes of more than those that stay in the first-level cache from row to
row, and bytes a cycle at which others come."""

_STREAMED = ((25 << 20, 14.0), (math.inf, 7.5))
"""Bytes a cycle at which weights stream in, by how many there are."""

_ASKED = 0.6
"""Share of the cycles of inputs from memory: they are asked for early."""

_SHORT_STEP, _SHORT_CYCLES = 6.0, 0.35
"""A step of a tile of several vectors and fewer cycles takes so much longer."""

_PLANE_RUN, _MANY_RUN = 1.5, 20.0
"""Cycles in which a tile comes to the next run of a plane, and of lines that the hardware does not foresee."""

_FAR_VECTORS = 2
"""Most vectors of outputs of a tile whose weights leave a first-level cache: tall tiles read them less often."""

_LEAST_LINE = 1 << 10
"""Bytes of a line that is copied as a whole sooner than its two ends."""

_ENTRY_WORDS = 3

_SQUARE = 8
"""Channels from which transposing squares of vectors is cheaper than merging planes."""

class WalkWords(Record):
    """A walk along a row: its first pixel, how many tiles, whether they read the input in place, and their function."""

    first: Word
    times: Word
    near: Word
    function: Function[Walk]


class StemWords(Record):
    """The driver's words.

    ``tiles`` holds four tables (last block or not, box cut short along the last axis or not): a count, then every walk
    along a row.  Tiles that read the input in place have the same entries, with its offsets, ``near_entries`` bytes
    further.
    """

    common: Common
    channels: Word
    dense: Word
    pixel_bytes: Word
    line_bytes: Word
    rows: RowLists
    near_entries: Word
    ahead: Ahead
    ahead_tile: Word
    weights: Memory
    w_group: Word
    w_block: Word
    w_last: Word
    w_last_group: Word
    outputs: Word
    blocks: Word
    block_outputs: Word
    last_outputs: Word
    last_lanes: Word
    row_step: Word
    near_step: Word
    fused: Word
    slots: Word
    sum_row: Word
    sum_row_last: Word
    tiles: Counted[WalkWords]
    table_words: Word
    word_bytes: Word
    tables: EpilogueTables
    move_in: Function[MoveIn]
    move_out: Function[MoveOut]


def driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = StemWords.read(k, given.words)
        item = decode(k, p.common, given.item, workspace)
        x = frame.x
        _pack(k, p, item, x, workspace + p.common.panel, vector_bytes)
        begin = x + row_source(k, p.common, item, k.constant(INT, 0))
        rows = box_rows(k, p.common, item)
        with k.loop(0, p.blocks) as block, k.loop(0, rows) as row:
            line, y, r = row_place(k, p.common, item, row.index)
            lines = workspace + (p.common.panel + line * p.line_bytes), x + row_source(k, p.common, item, row.index)
            listed = row_entries(k, p.common, p.rows, item, row.index)
            soon = ahead_place(k, p.common, p.ahead, begin, block.index * rows + row.index, rows * p.blocks)
            _block(k, p, item, frame, workspace, lines, listed, block.index, (y, r), soon)


def _pack(k: Module, p: StemWords, item: Item, x: Buffer, panel: Buffer, vector_bytes: int) -> None:
    """Copy the lines of a box."""
    words_of_4 = vector("i32", vector_bytes // 4)
    pixel_step = axis_words(p.common, p.common.axes - 1).x_stride

    def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
        target = panel + (line * p.line_bytes + first_line * p.pixel_bytes)
        zero_words(k, target, (head * p.pixel_bytes) >> 2, words_of_4)
        zero_words(k, target + end * p.pixel_bytes, ((count - end) * p.pixel_bytes) >> 2, words_of_4)
        with k.when(end > head):
            pixels = end - head
            dense = p.dense.equals(1)
            k.call(p.move_in, MoveIn(
                source, pixel_step, p.common.x_c, target + head * p.pixel_bytes, p.pixel_bytes,
                p.word_bytes, k.select(dense, 1, pixels), k.select(dense, pixels * p.channels, p.channels),
                p.common.zero_point,
            ))  # fmt: skip

    fill(k, p.common, item, x, k.constant(INT, 0), put)


def _block(k: Module, p: StemWords, item: Item, frame: Frame, workspace: Buffer, lines: tuple[Buffer, Buffer],
           listed: tuple[Buffer, Value], block: Value, places: tuple[Value, Value], ahead: Buffer) -> None:  # fmt: skip
    """One row of outputs of one block of output channels."""
    last = axis_words(p.common, p.common.axes - 1)
    is_last = block.equals(p.blocks - 1)
    pixels = item.extent(p.common.axes - 1)
    weights = k.select(is_last, p.w_last + item.g * p.w_last_group, item.g * p.w_group + block * p.w_block)
    table = p.tiles + k.select(is_last, p.table_words * 16, 0)
    table = table + k.select(pixels < last.block, p.table_words * 8, 0)
    channel = block * p.block_outputs
    here = (item.g * p.outputs + channel) * p.word_bytes
    bias, scale = p.tables.bias + here, p.tables.scale + here
    y, r = frame.y + (places[0] + channel * p.common.y_c), frame.residual + (places[1] + channel * p.common.r_c)
    sum_row = k.select(is_last, p.sum_row_last, p.sum_row)
    fused = p.fused.equals(1)
    (panel, x), (entries, count) = lines, listed
    with k.loop(0, table.count, carry=[ahead]) as tile:
        (soon,) = tile.values
        walk = table.at(tile.index)
        first, times, function = walk.first, walk.times, walk.function
        near = walk.near.equals(1)
        source = k.either(near, x + first * p.near_step, panel + first * p.row_step)
        step = k.select(near, p.near_step, p.row_step)
        list_, of_block = entries + k.select(near, p.near_entries, 0), p.weights + weights
        rest = times, p.last_lanes, bias, scale, p.tables.constants, soon
        with k.when(fused):
            k.call(function, Walk(
                source, step, list_, count, of_block, y + first * last.y_stride, last.y_stride,
                r + first * last.r_stride, last.r_stride, *rest,
            ))  # fmt: skip
        with k.when(fused, otherwise=True):
            slot = workspace + (p.slots + first * sum_row)
            k.call(function, Walk(source, step, list_, count, of_block, slot, sum_row, workspace, 0, *rest))
        tile.next(soon + times * p.ahead_tile)
    with k.when(fused, otherwise=True):
        k.call(p.move_out, MoveOut(
            workspace + p.slots, sum_row, p.word_bytes, y, last.y_stride, p.common.y_c,
            pixels, k.select(is_last, p.last_outputs, p.block_outputs), bias, scale, r, last.r_stride, p.common.r_c,
            p.tables.constants,
        ))  # fmt: skip


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    p = s.problem
    if p.op != "conv":
        return f"computes conv, not {p.op}"
    if not s.finite:
        return "weights hold Inf or NaN, which would meet the zeros of the padding"
    near = _is_same(s) and p.groups == 1 if p.layout == "NHWC" else _is_whole(s)
    if p.c // p.groups > ROW_WORDS and not near:
        return f"takes at most {ROW_WORDS} input channels a group where it cannot read in place, not {p.c // p.groups}"
    return None


def _is_same(s: Situation) -> bool:
    """Whether elements are what the tile multiplies."""
    p = s.problem
    return p.x_dtype.is_float and LLVM_NAMES[p.x] == ARITHMETIC[accumulator_arithmetic(s)].accumulator


def _is_whole(s: Situation) -> bool:
    """Whether no window meets padding, so that all is read in place."""
    return _is_same(s) and all(inside(axis) == range(axis.out) for axis in sweeps(s.problem)[0])


def _by_planes(s: Situation) -> bool:
    """Whether runs are the taps of a row of one channel, not of all."""
    return s.problem.layout == "NCHW" and s.problem.c > s.problem.groups and _is_whole(s)


def scheme(s: Situation) -> str:
    """The order in which products are summed, where it is not tap by tap."""
    return "channel by channel" if _by_planes(s) else ""


def workspace(s: Situation) -> int:
    """Bytes a thread needs."""
    return _plan(s, ARITHMETIC[accumulator_arithmetic(s)]).workspace


def cost(s: Situation) -> dict[str, float]:
    """Cycles: multiply-adds at full tiles or at the loads that short rows need, and the moves."""
    arith = ARITHMETIC[accumulator_arithmetic(s)]
    p, plan = s.problem, _plan(s, arith)
    group_in, sweep = p.c // p.groups, plan.sweep
    box_count = math.prod(-(-axis.out // max(1, b)) for axis, b in zip(sweep, plan.box, strict=True))
    rows = math.prod(axis.out for axis in sweep[:-1]) * -(-sweep[-1].out // max(1, plan.box[-1]))
    lines_of_row = math.prod(mean_taps(axis) for axis in sweep[:-1])
    steps = group_in * lines_of_row * sweep[-1].taps
    misses = lines_of_row > _STREAMS and lines_of_row * plan.line_bytes > _NEAR_BYTES
    missed = lines_of_row * plan.line_bytes / _MISSED_BYTES if misses else 0.0
    planes = _by_planes(s)
    per_run = _PLANE_RUN if planes else _MANY_RUN if lines_of_row > _STREAMS else 6.0
    runs = len(plan.places) * (group_in if planes else len(_runs(sweep[-1])))
    products = moves = 0.0
    last_vectors, rates = plan.last_vectors, s.rates(arith)
    for vectors, count in ((plan.vectors, plan.blocks - 1), (last_vectors, 1)):
        tiles = near_equal(plan.box[-1], run_tiles(s.target)[vectors])
        each = [tile_cycles(rates, n, vectors) for _, n in tiles]
        row = sum(c + (_SHORT_CYCLES if vectors > 1 and c < _SHORT_STEP else 0.0) for c in each) * steps
        row += 1.2 * plan.box[-1] * vectors
        products += rows * count * (row + len(tiles) * (25 + per_run * runs) + 40 + missed)
        moves += rows * count * plan.box[-1] * vectors * _leaving(p)
    weights = p.m * group_in * math.prod(axis.taps for axis in sweep) * arith.bytes
    streamed = weights / next(rate for most, rate in _STREAMED if weights <= most)
    products = max(products, box_count * streamed / p.groups)  # each box brings them all
    held = math.prod(max(1, h.count) for h in plan.held)
    dense = (p.layout == "NHWC" and p.groups == 1) or p.c == 1
    per_word = 0.5 if group_in > 1 and p.layout == "NCHW" else 1.0 if p.layout == "NCHW" else 2.5
    slow = 2.0 if group_in >= _SQUARE and planes_collide(p, reading=True) else 1.0
    moves += box_count * (300 + held * group_in * (0.0 if planes else 0.15 if dense else per_word * slow))
    batch = (p.n or 0) * p.groups
    far = _ASKED * far_cycles(p, image_bytes(p)[0], soon=True) * (p.n or 0)
    return {"products": products * batch, "moves": moves * batch + far}


def at_least(s: Situation) -> float:
    """Cycles that products and the way out take, whatever the boxes and tiles."""
    p, arith, work = s.problem, ARITHMETIC[accumulator_arithmetic(s)], least(s.problem)
    cycles = work.met * (p.c // p.groups) / s.rates(arith).multiply_adds + work.outputs * (1.2 + _leaving(p))
    return cycles * -(-(p.m // p.groups) // lanes(s.target, arith)) * (p.n or 0) * p.groups


def _leaving(p: Problem) -> float:
    """Cycles in which a vector of results leaves."""
    if p.layout == "NHWC":
        return 0.0 if is_fusible(p) else 4.0
    return 16.0 if planes_collide(p, reading=False) else 11.0


def build(r: Request) -> Program:
    """Program of a request: one step."""
    plan = _plan(r.situation, r.arith)
    keep: list[Any] = []
    wide = r.target.vector_bytes
    address = address_of(r, "stem", "stem", Driver, lambda k, name: driver(k, name, wide))
    values, items = _words(r, plan)
    return one_step(address, filled(values, keep), items, plan.workspace, keep)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Sizes of a problem's blocks."""

    sweep: Sweep
    box: tuple[int, ...]
    held: tuple[Lines, ...]
    vectors: int
    last_vectors: int
    blocks: int
    places: tuple[int, ...]
    line_bytes: int
    panel: int
    workspace: int


@lru_cache(256)
def _plan(s: Situation, arith: Arithmetic) -> _Plan:
    p = s.problem
    (sweep,) = sweeps(p)
    budget = s.budget(PANEL_BYTES)
    extents = tuple(axis.out for axis in sweep)
    start = (*extents[:-1], min(extents[-1], 1024))
    items = (p.n or 0) * p.groups
    if s.threads > 1 and items < 4 * s.threads:  # a few items for every thread, as many for each
        parts = -(-4 * s.threads // max(1, items))
        axis = 0 if len(extents) == 1 or extents[0] >= parts else len(extents) - 2
        extent = max(1, start[axis])
        blocks = {-(-extent // n) for n in range(parts, 2 * parts + 1)}
        least = min(blocks, key=lambda b: (-(-(-(-extent // b) * max(1, items)) // s.threads) * b, -b))
        start = tuple(least if a == axis else e for a, e in enumerate(start))
    return _sizes(s, arith, sweep, boxes(start, lambda box: _sizes(s, arith, sweep, box).workspace, budget))


def _sizes(s: Situation, arith: Arithmetic, sweep: Sweep, box: tuple[int, ...]) -> _Plan:
    p = s.problem
    group_in, group_out, lane = p.c // p.groups, p.m // p.groups, lanes(s.target, arith)
    last = sweep[-1]
    total = max(1, -(-group_out // lane))
    most = max(run_tiles(s.target))
    weights = group_in * math.prod(axis.taps for axis in sweep) * min(most, total) * s.target.vector_bytes
    if weights > s.near(_NEAR_BYTES):
        most = min(most, _FAR_VECTORS)
    blocks = -(-total // most)
    vectors = -(-total // blocks)
    blocks = -(-total // vectors)
    last_vectors = total - (blocks - 1) * vectors
    block_outputs = vectors * lane
    span = (box[-1] - 1) * last.stride + (last.taps - 1) * last.dilation + 1 if last.taps and box[-1] else 0
    run = Lines(range(span), ((0, span, 0),), tuple(t * last.dilation for t in range(last.taps)))
    held = (*(lines(axis, b) for axis, b in zip(sweep[:-1], box[:-1], strict=True)), run)
    pixel = group_in * arith.bytes
    line_bytes = (-(-span * pixel // 64) | 1) * 64  # odd: lines do not share all their sets
    outer = [0]
    for h in held[:-1]:
        outer = [o * h.count + t for o in outer for t in h.start]
    places = tuple(o * line_bytes for o in outer)
    header = -(-(24 * len(sweep)) // 64) * 64
    panel = math.prod(max(1, h.count) for h in held[:-1]) * line_bytes
    sums = box[-1] * block_outputs * arith.bytes
    return _Plan(
        sweep, box, held, vectors, last_vectors, blocks, places, line_bytes, panel, header + panel + sums + 128
    )


def _words(r: Request, plan: _Plan) -> tuple[StemWords, int]:
    """The driver's words, and how many items there are."""
    p, arith, sweep = r.problem, r.arith, plan.sweep
    group_in, group_out, lane = p.c // p.groups, p.m // p.groups, lanes(r.target, arith)
    last = sweep[-1]
    epilogue = r.epilogue
    fused = along_out(r, last, "c") == "cc" and is_fusible(p)
    left = group_out - (plan.blocks - 1) * plan.vectors * lane
    last_lanes = left - (plan.last_vectors - 1) * lane
    edge = last.out % plan.box[-1] or plan.box[-1]
    dense = (r.x.c == r.x.itemsize or p.c == 1) and r.x.spatial[-1] == group_in * r.x.itemsize
    planes = _by_planes(r.situation)
    (lists, near_entries, near), held = _lists(r, plan, dense), plan.held
    if near:
        held = (*held[:-1], replace(held[-1], runs=_copied(r, plan, near)))
    ahead = ahead_words(r, sweep, plan.box, 1 if dense else group_in if r.x.spatial[-1] == r.x.itemsize else 0)
    tables = []
    for vectors, cut in ((plan.vectors, False), (plan.last_vectors, fused and last_lanes < lane)):
        spec = FusedTile(arith.name, p.y, epilogue, cut) if fused else of_sums(arith.name)
        spec = replace(spec, asked=int(asks_ahead(ahead)))
        tables += [_walks(r, spec, pixels, vectors, near) for pixels in (plan.box[-1], edge)]
    together = 1 if planes else max(ROW_WORDS, group_in)
    key = tuple((a.taps, a.first_tap, a.tap_step) for a in sweep)
    packed = r.packed(
        ("direct", arith.name, lane, plan.vectors, key, *([together] if together != ROW_WORDS else [])),
        lambda: packed_weights(r, r.weights(sweep), plan.vectors, plan.last_vectors, together),
    )
    steps = channel_words(group_in, arith) * math.prod(a.taps for a in sweep)
    main = steps * plan.vectors * lane * arith.bytes
    header = -(-(24 * len(sweep)) // 64) * 64
    common, items = boxed_words(r, sweep, plan.box, held, panel=header)
    common = replace(common, step=1) if held[-1].runs else replace(common, step=1, line_count=0)
    return StemWords(
        common=common, channels=group_in, dense=int(dense),
        pixel_bytes=group_in * arith.bytes, line_bytes=plan.line_bytes, rows=lists, near_entries=near_entries,
        ahead=ahead, ahead_tile=64 * steps,
        weights=packed, w_group=main * (plan.blocks - 1), w_block=main, w_last=main * (plan.blocks - 1) * p.groups,
        w_last_group=steps * plan.last_vectors * lane * arith.bytes,
        outputs=group_out, blocks=plan.blocks, block_outputs=plan.vectors * lane, last_outputs=left,
        last_lanes=last_lanes, row_step=last.stride * group_in * arith.bytes, near_step=last.stride * r.x.spatial[-1],
        fused=int(fused), slots=header + plan.panel, sum_row=plan.vectors * lane * arith.bytes,
        sum_row_last=plan.last_vectors * lane * arith.bytes, tiles=tables, table_words=counted_words(WalkWords, tables),
        word_bytes=arith.bytes, tables=epilogue_tables(r), move_in=move_in_address(r, _way_in(r, dense)),
        move_out=move_out_address(r, Move(arith.accumulator, p.y, along_out(r, last, "c"), epilogue)),
    ), items  # fmt: skip


def _way_in(r: Request, dense: bool) -> Move:
    """The move of a line into the panel."""
    group_in = r.problem.c // r.problem.groups
    planes = r.x.spatial[-1] == r.x.itemsize
    if dense or r.x.c == r.x.itemsize:
        return Move(r.problem.x, r.arith.accumulator, "cc" if dense or group_in >= _SQUARE else "any")
    if not planes or group_in == 1:
        return Move(r.problem.x, r.arith.accumulator, "any")
    return Move(r.problem.x, r.arith.accumulator, "pc", together=group_in if group_in < _SQUARE else 0)


def _entries(last: Axis, channels: int, places: Sequence[int], pixel: int) -> tuple[tuple[int, ...], ...]:
    """Words of the entries of every combination of the outer axes' taps, whose inputs begin at some places."""
    row_words = channels * last.taps
    return tuple(
        tuple(
            v for at, taps in _runs(last) if row_words
            for v in (place + at * pixel, taps * channels, tap * row_words + at // last.dilation * channels)
        ) for tap, place in enumerate(places)
    )  # fmt: skip


def _runs(last: Axis) -> list[tuple[int, int]]:
    """Runs of taps of a row that lie together: the first one's offset in pixels, and how many."""
    return [(0, last.taps)] if last.dilation == 1 else [(t * last.dilation, 1) for t in range(last.taps)]


def _plane_entries(last: Axis, channels: int, places: Sequence[int], pixel: int, channel: int, *,
                   together: bool) -> tuple[tuple[int, ...], ...]:  # fmt: skip
    """The same channel by channel, which lie some bytes apart, for weights in that order; all are one combination.

    Taps of a row may lie ``together``, and are a run.
    """
    runs = [(0, last.taps)] if together and last.taps else [(t, 1) for t in range(last.taps)]
    taps = len(places) * last.taps
    return (tuple(
        v for c in range(channels) for tap, place in enumerate(places) for t, count in runs
        for v in (c * channel + place + t * last.dilation * pixel, count, c * taps + tap * last.taps + t)
    ),)  # fmt: skip


def _lists(r: Request, plan: _Plan, dense: bool) -> tuple[RowLists, int, range]:
    """Lists of entries, bytes to those that read the input in place, and which outputs of a row do so.

    Those whose taps meet no padding, where runs of words lie together as the tile multiplies them, if boxes have whole
    rows, not too short, and rows leave out all lines of padding.
    """
    p, outer, last = r.problem, plan.sweep[:-1], plan.sweep[-1]
    group_in, pixel, places = p.c // p.groups, r.x.spatial[-1], [0]
    for axis, step in zip(outer, r.x.spatial, strict=False):
        places = [place + t * axis.dilation * step for place in places for t in range(axis.taps)]
    whole = _is_whole(r.situation)
    if _by_planes(r.situation):
        near = range(plan.box[-1]) if pixel == r.x.itemsize else range(0)
        if near:
            (entries,) = _plane_entries(last, group_in, places, pixel, r.x.c, together=last.dilation == 1)
        else:
            size = r.arith.bytes
            (entries,) = _plane_entries(last, group_in, plan.places, group_in * size, size, together=False)
        one = ListWords(0, len(entries) // _ENTRY_WORDS)
        return RowLists(words(bands_table(whole_bands(outer))), [one], words(list(entries))), 0, near
    of_panel = _entries(last, group_in, plan.places, group_in * r.arith.bytes)
    of_rows, lists, listed = listed_rows(outer, of_panel, _ENTRY_WORDS)
    told_apart = len(lists) == math.prod(len(kinds) for kinds, _ in bands(outer, sys.maxsize))
    long = plan.box[-1] == last.out and plan.line_bytes >= r.situation.near(_LEAST_LINE)
    if not (dense and _is_same(r.situation) and told_apart and (whole or long)):
        return RowLists(of_rows, lists, words(listed)), 0, range(0)
    _, _, others = listed_rows(outer, _entries(last, group_in, places, pixel), _ENTRY_WORDS)
    both = words(words(listed).tolist() + words(others).tolist())
    return RowLists(of_rows, lists, both), words(listed).nbytes, range(plan.box[-1]) if whole else inside(last)


def _copied(r: Request, plan: _Plan, near: range) -> tuple[tuple[int, int, int], ...]:
    """Runs of pixels of a line that tiles read which do not read the input in place."""
    last, low, high = plan.sweep[-1], 0, plan.box[-1]
    for vectors in (plan.vectors, plan.last_vectors):
        for first, rows in near_equal(plan.box[-1], run_tiles(r.target)[vectors]):
            low = max(low, first + rows) if first < near.start else low
            high = min(high, first) if first + rows > near.stop else high
    span = plan.held[-1].count
    left = (low - 1) * last.stride + (last.taps - 1) * last.dilation + 1 if low else 0
    right = high * last.stride if high < plan.box[-1] else span
    if left >= right:
        return ((0, span, 0),)
    return tuple((first, end - first, first) for first, end in ((0, left), (right, span)) if first < end)


def _walks(r: Request, spec: FusedTile, pixels: int, vectors: int, near: range) -> list[WalkWords]:
    """Tiles of a row of pixels, equal ones together."""
    tiles = near_equal(pixels, run_tiles(r.target)[vectors])
    walks = []
    for (rows, in_place), alike in itertools.groupby(
        tiles, lambda tile: (tile[1], near.start <= tile[0] and sum(tile) <= near.stop)
    ):
        (first, _), *more = alike
        walks.append(WalkWords(first, 1 + len(more), int(in_place), fused_address(r, "channel", spec, rows, vectors)))
    return walks
