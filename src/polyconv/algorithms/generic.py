"""The generic algorithm: pixels in the lanes, always applicable, for any rank, type, group and layout.

A box of outputs gets a zero-padded panel, [channel][line][pixel]; because inputs a stride apart lie
together in it, every tap of every channel is a contiguous vector load, whatever stride and dilation.
Lanes run along rows, or along the whole flattened box where rows are short.  Rows of results that lie together
are stored from registers, others leave through slots and a move.  Cost: the products over
lane use, plus a pass over the inputs of every group.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.least import least
from polyconv.algorithms.panel import (
    Ahead,
    Common,
    Driver,
    EpilogueTables,
    Frame,
    Item,
    ahead_place,
    axis_words,
    box_rows,
    decode,
    fill,
    row_place,
    row_source,
)
from polyconv.algorithms.pixels import Tile, packed_weights, panel_tiles, pixel_tables, tile_rows
from polyconv.algorithms.program import (
    Operand,
    Program,
    Request,
    Situation,
    Step,
    accumulator_arithmetic,
    address_of,
    ahead_words,
    along_in,
    along_out,
    asks_ahead,
    boxed_words,
    boxes,
    epilogue_tables,
    far_cycles,
    fused_address,
    is_apart,
    is_fusible,
    move_in_address,
    move_out_address,
    moved_apart,
    near_equal,
    near_equal_sizes,
    tile_cycles,
)  # fmt: skip
from polyconv.algorithms.sweep import Axis, Family, Lines, Sweep, families, lines, sweeps
from polyconv.kernels.fused import FusedTile, Walk
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, lanes, pixel_tiles
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import Move, MoveIn, MoveOut, zero_rows
from polyconv.kernels.record import Function, Functions, Memory, Record, Table, Word, filled, words
from polyconv.kernels.signature import Address
from polyconv.kernels.tile import PanelTile
from polyconv.kernels.unzip import MoveApart
from polyconv.problem.problem import Problem

__all__ = ["applicable", "at_least", "build", "cost", "driver", "scheme", "workspace"]

PANEL_BYTES = 256 << 10
MOST_GROUPS = 64
"""Panel of a box: a quarter of a 1 MiB second-level cache, so that it stays while it is read m/groups
times; most groups of an item."""

_NEAR_BYTES = 16 << 10
"""Inputs of one tile beyond this do not stay in the first-level cache until the next tile reads them again."""

_ASKED = 0.2
"""Share of the cycles of inputs from memory that is left where whole rows are asked for a box early."""

_SHORT_STEP = 8.0
"""Where sums go through slots a step takes a cycle more, but for whole boxes of so many cycles a step."""

_CALL = 1.2
"""Cycles in which a vector of results leaves a fused tile."""

_FAR_LINES = 1.07
"""Factor on the multiply-adds of a row of outputs whose taps lie in several lines of the panel."""


class GenericWords(Record):
    """The driver's words: panel geometry, entry list and packed weights, tiles of output channels, moves.

    An item is a box of ``block_groups`` groups: small groups share the work of finding lines and rows.  Where there
    is one group its channels may come in chunks, and the chain of additions goes on through the slots; and the phases
    of a transposed convolution may be members of one sweep, each a set of rows of its tiles.  A member's words: shifts
    of result and residual in bytes, then for every axis the outputs of the sweep, low and end, that are the member's.
    """

    common: Common
    block_groups: Word
    group_total: Word
    channels: Word
    plane_bytes: Word
    line_bytes: Word
    word_bytes: Word
    lane_bytes: Word
    lanes: Word
    ahead: Ahead
    chunk: Word
    chunks: Word
    channel_entries: Word
    entries: Memory
    weights: Memory
    w_group: Word
    tile_count: Word
    split_tiles: Word
    tiles: Table[Tile]
    functions: Functions[PanelTile | Walk]
    flat: Word
    fused: Word
    slots: Word
    slot_output: Word
    slot_row: Word
    sum_row: Word
    outputs: Word
    member_count: Word
    members: Memory
    tables: EpilogueTables
    move_in: Function[MoveIn]
    move_out: Function[MoveOut]


def driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = GenericWords.read(k, given.words)
        item = decode(k, p.common, given.item, workspace)
        k.clear(workspace + p.common.scratch, 512)  # sums start from these zeros
        rows = box_rows(k, p.common, item)
        groups = k.minimum(p.block_groups, p.group_total - item.g * p.block_groups)
        first_tile = item.split * p.split_tiles
        end_tile = k.minimum(first_tile + p.split_tiles, p.tile_count)
        single = p.block_groups.equals(1) & p.member_count.equals(1)
        with k.loop(0, p.chunks) as chunk:
            first = chunk.index * p.chunk
            channels = k.minimum(p.chunk, p.channels - first)
            _pack(k, p, item, frame.x, workspace + p.common.panel, first, channels * groups, vector_bytes)
            with k.loop(0, groups) as group, k.loop(first_tile, end_tile) as tile:
                t = p.tiles.at(tile.index)
                slot = p.slots + (group.index * p.outputs + t.first) * p.slot_output
                fused = p.fused.equals(1)
                with k.when(fused):
                    _results(k, p, t, item, frame, workspace, rows, tile.index)
                with k.when(fused, otherwise=True):
                    _sums(k, p, t, item, workspace, slot, chunk.index, channels, group.index, rows)
                    with k.when(single & chunk.index.equals(p.chunks - 1)):
                        _out(k, p, item, frame, workspace + slot, rows, t.first, t.rows, p.members)
        with k.when(single, otherwise=True), k.loop(0, p.member_count) as member:
            sums = workspace + (p.slots + member.index * p.outputs * p.slot_output)
            record = p.members + member.index * (p.common.axes + 1) * 16
            _out(k, p, item, frame, sums, rows, k.constant(INT, 0), groups * p.outputs, record)


def _pack(k: Module, p: GenericWords, item: Item, x: Buffer, panel: Buffer, first: Value, channels: Value,
          vector_bytes: int) -> None:  # fmt: skip
    """Fill the panel with channels from ``first`` on."""
    c = p.common
    pixel_step = c.step * axis_words(c, c.axes - 1).x_stride
    words_of_4 = vector("i32", vector_bytes // 4)

    def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
        target = panel + (line * p.line_bytes + first_line * p.word_bytes)
        with k.when((head > 0) | (end < count)), k.loop(0, c.residues) as residue:
            place = target + k.word(c.residue_places, residue.index)
            low, high, all_ = ((n + (c.residues - 1 - residue.index)) // c.residues for n in (head, end, count))
            for first_, end_ in ((k.constant(INT, 0), low), (high, all_)):
                words_ = ((end_ - first_) * p.word_bytes) >> 2
                with k.when(words_ > 0):
                    zero_rows(k, place + first_ * p.word_bytes, p.plane_bytes, channels, words_, words_of_4)
        with k.when((end > head) & (c.residues > 1)):
            k.call(c.move_apart, MoveApart(
                source, pixel_step, c.x_c, target, p.word_bytes, p.plane_bytes, end - head,
                channels, c.zero_point, c.residue_places, head,
            ))  # fmt: skip
        with k.when((end > head) & c.residues.equals(1)):
            k.call(p.move_in, MoveIn(
                source, pixel_step, c.x_c, target + head * p.word_bytes, p.word_bytes,
                p.plane_bytes, end - head, channels, c.zero_point,
            ))  # fmt: skip

    fill(k, c, item, x, first, put)


def _results(k: Module, p: GenericWords, t: Tile, item: Item, frame: Frame, workspace: Buffer, rows: Value,
             number: Value) -> None:  # fmt: skip
    """Fused tiles of one set of output channels over the box, in near-equal walks; the last vector may be masked."""
    last = axis_words(p.common, p.common.axes - 1)
    width = item.extent(p.common.axes - 1)
    vectors = (width + p.lanes - 1) // p.lanes
    last_lanes = width - (vectors - 1) * p.lanes
    cut = k.select(last_lanes < p.lanes, 1, k.constant(INT, 0))
    parts = (vectors + t.most - 1) // t.most
    less, more = vectors // parts, vectors % parts
    weights = p.weights + (item.g * p.w_group + t.weights)
    channel = (item.g * p.outputs + t.first) * p.word_bytes
    x = frame.x + row_source(k, p.common, item, k.constant(INT, 0))
    with k.loop(0, rows) as row:
        soon = ahead_place(k, p.common, p.ahead, x, number * rows + row.index, p.tile_count * rows)
        line, y_row, r_row = row_place(k, p.common, item, row.index)
        panel = workspace + (p.common.panel + line * p.line_bytes)
        y, r = frame.y + (y_row + t.first * p.common.y_c), frame.residual + (r_row + t.first * p.common.r_c)
        begin = k.constant(INT, 0)
        for size, times, kind in ((less + 1, more, 0), (less, parts - more - cut, 0), (less, cut, t.most * 2)):
            first = begin * p.lanes
            with k.when(times > 0):
                k.call(p.functions.at_word(t.table + size * 2 + kind), Walk(
                    panel + begin * p.lane_bytes, 0,
                    p.entries, p.channels * p.channel_entries, weights, y + first * last.y_stride, p.common.y_c,
                    r + first * last.r_stride, p.common.r_c, times, last_lanes, p.tables.bias + channel,
                    p.tables.scale + channel, p.tables.constants, soon,
                ))  # fmt: skip
            soon = soon + times * p.channels * (p.channel_entries * 64)
            begin = begin + size * times


def _sums(k: Module, p: GenericWords, t: Tile, item: Item, workspace: Buffer, slot: Value, chunk: Value,
          channels: Value, group: Value, rows: Value) -> None:  # fmt: skip
    """Tiles of one set of output channels over the box; sums go on from the slot after the first chunk."""
    flat = p.flat.equals(1)
    last_line, _, _ = row_place(k, p.common, item, rows - 1)
    width = item.extent(p.common.axes - 1)
    width = k.select(flat, last_line * (p.line_bytes // p.word_bytes) + width, width)
    vectors = (width + p.lanes - 1) // p.lanes
    begins = chunk.equals(0)
    planes = workspace + p.common.panel + group * p.channels * p.plane_bytes
    weights = p.weights + ((item.g * p.block_groups + group) * p.w_group + t.weights + chunk * t.chunk_weights)
    with k.loop(0, k.select(flat, 1, rows)) as row:
        line, _, _ = row_place(k, p.common, item, row.index)
        panel = planes + line * p.line_bytes
        sums = slot + row.index * p.slot_row
        with k.loop(0, vectors, t.most) as v:
            here = k.minimum(vectors - v.index, t.most)
            at = v.index * p.lane_bytes
            k.call(p.functions.at_word(t.table + here * 2), PanelTile(
                panel + at, channels * p.channel_entries, p.entries, weights,
                workspace + k.select(begins, p.common.scratch, sums + at), k.select(begins, 0, p.sum_row),
                workspace + (sums + at), p.sum_row,
            ))  # fmt: skip


def _out(k: Module, p: GenericWords, item: Item, frame: Frame, sums: Buffer, rows: Value, first: Value, count: Value,
         member: Buffer) -> None:  # fmt: skip
    """Move the sums of some output channels of the item to the result, row by row."""
    c = p.common
    last = axis_words(c, c.axes - 1)
    channel = item.g * p.block_groups * p.outputs + first

    def bounds(axis: Value) -> tuple[Value, Value]:
        return k.word(member, axis * 2 + 2), k.word(member, axis * 2 + 3)

    low, end = bounds(c.axes - 1)
    begin = item.first(c.axes - 1)
    low, end = k.maximum(low - begin, 0), k.minimum(end - begin, item.extent(c.axes - 1))
    with k.loop(0, rows) as row:
        with k.loop(1, c.axes, carry=[row.index, end - low]) as back:
            q, pixels = back.values
            axis = c.axes - 1 - back.index
            from_, to = bounds(axis)
            place = item.first(axis) + q % item.extent(axis)
            back.next(q // item.extent(axis), k.select((place - from_).below(to - from_), pixels, 0))
        pixels = back.results[1]
        line, y_offset, r_offset = row_place(k, c, item, row.index)
        place = k.select(p.flat.equals(1), line, row.index) * p.slot_row + low * p.word_bytes
        y_offset = y_offset + k.word(member) + low * last.y_stride
        r_offset = r_offset + k.word(member, 1) + low * last.r_stride
        with k.when(pixels > 0):
            k.call(p.move_out, MoveOut(
                sums + place, p.word_bytes, p.sum_row,
                frame.y + (y_offset + first * c.y_c), last.y_stride, c.y_c, pixels, count,
                p.tables.bias + channel * p.word_bytes, p.tables.scale + channel * p.word_bytes,
                frame.residual + (r_offset + first * c.r_c), last.r_stride, c.r_c, p.tables.constants,
            ))  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Plan:
    """Sizes of one sweep's blocks, and the order of its axes: the last one lies along the lanes."""

    order: tuple[int, ...]
    sweep: Sweep
    outputs: int
    members: int
    box: tuple[int, ...]
    held: tuple[Lines, ...]
    flat: bool
    fused: bool
    block_groups: int
    chunk: int
    line_words: int
    plane_bytes: int
    slot_row: int
    sum_row: int
    slot_output: int
    panel: int
    workspace: int
    splits: int = 1


def build(r: Request) -> Program:
    """Program of a request: one step per sweep."""
    keep: list[Any] = []
    wide = r.target.vector_bytes
    address = address_of(r, "generic", "generic", Driver, lambda k, name: driver(k, name, wide))
    found = _families(r.problem)
    plans = [_suited(r, family) for family in found]
    made = [_step(r, family, plan, address, keep) for family, plan in zip(found, plans, strict=True)]
    steps = tuple(step for step in made if step.items)
    return Program(steps, max((plan.workspace for plan in plans), default=0), tuple(keep))


def _families(p: Problem) -> tuple[Family, ...]:
    """What is computed together: phases that read the same inputs, where there is one group."""
    if p.groups == 1:
        return families(p)
    return tuple(Family(sweep, ((sweep, (0,) * len(sweep)),)) for sweep in sweeps(p))


def _suited(r: Request, family: Family) -> _Plan:
    """The plan of a sweep; results that do not lie as their layout says leave through slots, taps in the same order."""
    plan = _plan(r.situation, r.arith, family)
    if not plan.fused or along_out(r, family.sweep[-1], "p") == "pp":
        return plan
    return _plan_in_order(r.situation, r.arith, family, plan.order, fused=False)


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    if s.problem.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {s.problem.op}"
    if not s.finite:
        return "weights hold Inf or NaN, which would meet the zeros of the padding"
    return None


def workspace(s: Situation) -> int:
    """Bytes a thread needs."""
    arith = ARITHMETIC[accumulator_arithmetic(s)]
    plans = [(family, _plan(s, arith, family)) for family in _families(s.problem)]
    slots = [_plan_in_order(s, arith, family, plan.order, fused=False) for family, plan in plans if plan.fused]
    return max((plan.workspace for plan in (*(plan for _, plan in plans), *slots)), default=0)


def scheme(s: Situation) -> str:
    """The order of the axes, where it is not their own, and which phases have it: taps are summed in it."""
    arith = ARITHMETIC[accumulator_arithmetic(s)]
    phases: dict[tuple[int, ...], list[int]] = {}
    for number, family in enumerate(_families(s.problem)):
        phases.setdefault(_plan(s, arith, family).order, []).append(number)
    own = tuple(range(s.problem.rank))
    return " ".join(
        f"axes {','.join(map(str, order))}" + (f" of phases {','.join(map(str, some))}" if len(phases) > 1 else "")
        for order, some in sorted(phases.items()) if order != own
    )  # fmt: skip


def cost(s: Situation) -> dict[str, float]:
    """Cycles: multiply-adds with the lanes that rows or boxes fill, and the moves."""
    arith = ARITHMETIC[accumulator_arithmetic(s)]
    terms = [_cost(s, arith, _plan(s, arith, family)) for family in _families(s.problem)]
    return {name: sum(t[name] for t in terms) for name in terms[0]} if terms else {"products": 0.0}


def at_least(s: Situation) -> float:
    """Cycles that products, and the ways in and out take, whatever the boxes, the order of axes and the tiles."""
    p, arith, work = s.problem, ARITHMETIC[accumulator_arithmetic(s)], least(s.problem)
    group_in, group_out = p.c // p.groups, p.m // p.groups
    lane, planes = lanes(s.target, arith), p.layout == "NCHW"
    if not work.taken or not group_in:
        return 0.0
    leaving = _CALL / lane if planes and is_fusible(p) else 0.4 if planes or p.m == 1 else 0.6
    cycles = work.taken * group_in * group_out / (lane * s.rates(arith).multiply_adds)
    cycles += work.outputs * group_out * leaving + work.brought * group_in * (0.3 if planes else 0.35)
    return cycles * (p.n or 0) * p.groups


def _cost(s: Situation, arith: Arithmetic, plan: _Plan) -> dict[str, float]:
    p = s.problem
    group_in, group_out = p.c // p.groups, plan.outputs
    lane, heights, last = lanes(s.target, arith), pixel_tiles(s.target), plan.sweep[-1]
    box_count = math.prod(-(-axis.out // max(1, b)) for axis, b in zip(plan.sweep, plan.box, strict=True))
    entries = group_in * math.prod(axis.taps for axis in plan.sweep)
    at_once = max(1, entries // -(-group_in // plan.chunk)) if group_in else 1
    vectors = -(-plan.box[-1] // lane) if plan.fused else plan.sum_row // (lane * arith.bytes)
    outer = math.prod(axis.taps for axis in plan.sweep[:-1])
    step, rates = 0.0, s.rates(arith)

    def tile(rows: int, vectors: int) -> float:
        """Cycles of a step: neighbouring taps load across lines, one vector a cycle."""
        cycles = max(tile_cycles(rates, rows, vectors), vectors if last.taps > 1 else 0.0)
        return cycles * _FAR_LINES if outer > 1 and not plan.flat else cycles

    for rows, times in Counter(rows for _, rows in tile_rows(group_out, s.target)).items():
        if plan.fused:
            walks = near_equal_sizes(vectors, heights[rows])
            number = sum(count for _, count in walks)
            calls = 2 * 40 + 10 * number + _CALL * rows * vectors
            line = -(-vectors // max(1, number)) * s.target.vector_bytes + last.taps * arith.bytes
            missed = 1.5 * vectors if group_in * outer * line > _NEAR_BYTES else 0.0
            cycles = sum(count * tile(rows, v) for v, count in walks) + missed + calls / max(1, entries)
            step += times * math.prod(plan.box[:-1]) * cycles
            continue
        full, rest = divmod(vectors, heights[rows])
        step += times * (full + (rest > 0)) * 30 / at_once
        for v, count in ((heights[rows], full), (rest, int(rest > 0))):
            late = 0.0 if plan.flat and plan.members == 1 and tile(rows, v) >= _SHORT_STEP else 1.0
            step += times * count * (tile(rows, v) + late)
    innermost = plan.order[-1] == len(plan.order) - 1
    halved = p.layout == "NCHW" and innermost
    apart = halved and is_apart(p, last, lane, "p")  # a line is found and moved once, not run by run
    runs = 1 if apart else max(1, len(plan.held[-1].runs))
    rows_in = math.prod(max(1, h.count) for h in plan.held[:-1]) * runs
    rows_out, width = math.prod(plan.box[:-1]), plan.box[-1]
    copies_in = p.layout == "NCHW" and last.stride == 1 and innermost
    copies_out = (p.layout == "NCHW" or p.m == 1) and last.out_step == 1 and innermost
    wide_in, wide_out = plan.block_groups * group_in >= 8, plan.block_groups * group_out >= 8
    squares = p.layout == "NHWC"
    squared_in = 0.35 if squares and wide_in else 1.6
    per_in = 0.3 if copies_in else 0.3 * last.stride if halved and last.stride <= 4 else squared_in
    per_in = 0.4 if apart else per_in
    per_out = 0.4 if copies_out else 0.6 if halved and last.out_step == 2 else 0.6 if squares and wide_out else 1.5
    panels = rows_in * (30.0 * len(plan.sweep) / plan.block_groups + group_in * (8 + plan.line_words / runs * per_in))
    moves = 300.0 / plan.block_groups
    if not plan.fused:
        moves += rows_out * (40.0 * len(plan.sweep) / plan.block_groups + group_out * (8 + width * per_out))
    bytes_in = math.prod(max(1, h.count) for h in plan.held) * group_in * p.x_dtype.itemsize
    boxes_in = box_count * p.groups
    far = far_cycles(p, boxes_in * bytes_in, soon=True) * (p.n or 0)
    far *= _ASKED if plan.fused and plan.box[-1] == last.out else 1.0
    items = boxes_in * (p.n or 0)
    return {"products": items * entries * step, "panels": items * panels + far, "moves": items * moves}


@lru_cache(256)
def _plan(s: Situation, arith: Arithmetic, family: Family) -> _Plan:
    """The cheapest order of axes: the innermost reads in place, a longer one fills more lanes."""
    sweep = family.sweep
    rank = len(sweep)
    orders = [tuple(range(rank))]
    longest = max(range(rank), key=lambda a: (sweep[a].out, a))
    if longest != rank - 1 and sweep[longest].out > 2 * sweep[-1].out:
        orders.append((*(a for a in range(rank) if a != longest), longest))
    one = replace(s, threads=1)  # their number decides no order
    plans = [_plan_in_order(one, arith, family, order, fused=False) for order in orders]
    alone = len(family.members) == 1 and sweep[-1].out_step == 1
    if s.problem.layout == "NCHW" and alone and is_fusible(s.problem):
        fused = _plan_in_order(one, arith, family, orders[0], fused=True)
        plans += [fused] if fused.fused else []
    best = plans[0]
    if len(plans) > 1:
        best = min(plans, key=lambda plan: s.price(plan, sum(_cost(one, arith, plan).values())))
    return best if s.threads == 1 else _plan_in_order(s, arith, family, best.order, fused=best.fused)


def _plan_in_order(s: Situation, arith: Arithmetic, family: Family, order: tuple[int, ...], *, fused: bool) -> _Plan:
    sweep, members = tuple(family.sweep[a] for a in order), len(family.members)
    p = s.problem
    group_in, group_out = p.c // p.groups, p.m // p.groups * members
    lane = lanes(s.target, arith)
    tiles = tile_rows(group_out, s.target)
    most_rows = max((rows for _, rows in tiles), default=1)
    header = -(-(24 * len(sweep)) // 64) * 64

    def sizes(box: tuple[int, ...], block_groups: int, chunk: int) -> _Plan:
        held = tuple(lines(axis, b) for axis, b in zip(sweep, box, strict=True))
        pitches = [math.prod(h.count for h in held[a + 1 :]) for a in range(len(held))]
        outer = math.prod(box[:-1])
        whole = sum((b - 1) * pitch for b, pitch in zip(box, pitches, strict=True)) + 1
        direct = fused and chunk >= group_in and block_groups == 1
        flat = not direct and -(-whole // lane) < outer * -(-box[-1] // lane)
        padded = -(-(whole if flat else box[-1]) // lane) * lane
        line_words = held[-1].count
        slot_row = (line_words if flat else padded) * arith.bytes
        sum_row = (padded + lane if flat else padded * outer) * arith.bytes
        plane = (math.prod(h.count for h in held) + 2 * lane) * arith.bytes
        whole_slots = block_groups > 1 or chunk < group_in or members > 1
        sums = 0 if direct else sum_row * (block_groups * group_out if whole_slots else most_rows)
        panel = -(-min(chunk, group_in) * block_groups * plane // 64) * 64
        return _Plan(
            order, sweep, group_out, members, box, held, flat, direct, block_groups, chunk, line_words, plane, slot_row,
            sum_row,
            sum_row if whole_slots else 0, panel, header + panel + 512 + sums + 128,
        )  # fmt: skip

    budget = s.budget(PANEL_BYTES if len(tiles) > 2 else 2 * PANEL_BYTES)
    extents = tuple(axis.out for axis in sweep)
    start = (*extents[:-1], min(extents[-1], 4096))
    enough = min(4 * lane, math.prod(extents))  # outputs of a box: fewer read the panel badly

    # channels that lie together should be read together: boxes small enough for a cache line of them
    together = min(p.groups, -(-16 // max(1, group_in))) if p.layout == "NHWC" or extents[-1] < 64 else 1
    together = 1 if fused else together

    def fitted(chunk: int) -> _Plan:
        return sizes(boxes(start, lambda box: sizes(box, together, chunk).workspace, budget), 1, chunk)

    chunk = max(1, group_in)
    plan = fitted(chunk)
    while chunk > 1 and (plan.workspace > budget or math.prod(plan.box) < enough):
        chunk = -(-chunk // 2)
        less = fitted(chunk)
        if plan.workspace <= budget and math.prod(less.box) <= math.prod(plan.box):
            break  # sums take the room, not channels
        plan = less
    chunk = plan.chunk
    if plan.chunk >= group_in and p.groups > 1 and not fused:
        one = plan.workspace - header - 640
        block_groups = max(1, min(p.groups, MOST_GROUPS, (budget - header - 640) // max(1, one)))
        while block_groups > 1 and sizes(plan.box, block_groups, chunk).workspace > budget:
            block_groups = -(-block_groups // 2)
        plan = sizes(plan.box, block_groups, chunk)
    return _shared(s, arith, plan, len(tiles), lambda box: sizes(box, plan.block_groups, chunk))


_LATE = 0.1
"""Share of an item by which one thread is done later than another."""


def _shared(s: Situation, arith: Arithmetic, plan: _Plan, tiles: int,
            sizes: Callable[[tuple[int, ...]], _Plan]) -> _Plan:  # fmt: skip
    """With smaller boxes, or the sets of output channels cut, so that the busiest thread has least to do.

    Boxes share lines of inputs, which each brings in place; every part of the sets does so with all of them.
    """
    p = s.problem
    if s.threads == 1 or 0 in plan.box or not p.n:
        return plan
    outer = next((a for a, axis in enumerate(plan.sweep) if axis.out > 1), 0)
    extent, fewest = plan.sweep[outer].out, -(-plan.sweep[outer].out // plan.box[outer])
    most_splits = 1 if plan.block_groups > 1 or plan.members > 1 else max(1, tiles)
    best, least = plan, math.inf
    for cuts in range(fewest, max(fewest, min(extent, 4 * s.threads)) + 1):
        cut = sizes((*plan.box[:outer], -(-extent // cuts), *plan.box[outer + 1 :]))
        boxes_held = math.prod(-(-axis.out // b) for axis, b in zip(cut.sweep, cut.box, strict=True))
        cycles, items = _cost(s, arith, cut), p.n * -(-p.groups // plan.block_groups) * boxes_held
        for splits in range(1, min(most_splits, 4 * s.threads) + 1):
            parts = -(-tiles // -(-tiles // splits))
            total = cycles["products"] + parts * cycles["panels"] + cycles["moves"]
            turns = -(-items * parts // s.threads) + _LATE
            load = total * turns / (items * parts)
            if load < 0.99 * least and cut.workspace <= plan.workspace:
                best, least = replace(cut, splits=parts), load
    return best


def _in_order(o: Operand, order: tuple[int, ...]) -> Operand:
    return replace(o, spatial=tuple(o.spatial[a] for a in order))


def _step(given: Request, family: Family, plan: _Plan, address: Address[Driver], keep: list[Any]) -> Step:
    sweep, order = plan.sweep, plan.order
    r = replace(
        given, x=_in_order(given.x, order), y=_in_order(given.y, order),
        residual=None if given.residual is None else _in_order(given.residual, order),
    )  # fmt: skip
    p, arith = r.problem, r.arith
    group_in, group_out = p.c // p.groups, plan.outputs
    taps = math.prod(axis.taps for axis in sweep)
    last = sweep[-1]
    tiles = tile_rows(group_out, r.target)

    def of_rows(rows: int) -> Sequence[Address[PanelTile | Walk] | None]:
        return _fused_tiles(r, plan, rows) if plan.fused else panel_tiles(r, rows)

    functions, records = pixel_tables(r, tiles, group_in * taps, plan.chunk * taps, of_rows)
    key = tuple((a.taps, a.first_tap, a.tap_step) for member, _ in family.members for a in member)
    packed = r.packed(
        ("generic", arith.name, r.target.level, order, key),
        lambda: packed_weights(r, _weights(r, family, order), tiles),
    )
    outer = [0]
    for h in plan.held[:-1]:
        outer = [o * h.count + s for o in outer for s in h.start]
    places = [(o * plan.line_words + s) * arith.bytes for o in outer for s in plan.held[-1].start]
    entries = [c * plan.plane_bytes + at for c in range(min(plan.chunk, group_in)) for at in places]
    header = -(-(24 * len(sweep)) // 64) * 64
    scratch = header + plan.panel
    common, items = boxed_words(
        r, sweep, plan.box, plan.held, plan.splits, plan.block_groups, panel=header, scratch=scratch
    )
    write = _along(r, last, plan.block_groups, reading=False)
    values = GenericWords(
        common=moved_apart(common, r, last, plan.held[-1], "p", arith.bytes), block_groups=plan.block_groups,
        group_total=p.groups, channels=group_in, plane_bytes=plan.plane_bytes,
        line_bytes=plan.line_words * arith.bytes, word_bytes=arith.bytes, lane_bytes=r.target.vector_bytes,
        lanes=lanes(r.target, arith), ahead=_ahead(r, plan), chunk=plan.chunk,
        chunks=max(1, -(-group_in // plan.chunk)), channel_entries=len(places), entries=words(entries),
        weights=packed, w_group=group_out * group_in * taps * arith.bytes, tile_count=len(tiles),
        split_tiles=-(-len(tiles) // plan.splits), tiles=records, functions=functions, flat=int(plan.flat),
        fused=int(plan.fused), slots=scratch + 512, slot_output=plan.slot_output, slot_row=plan.slot_row,
        sum_row=plan.sum_row, outputs=p.m // p.groups, member_count=plan.members,
        members=words(_members(r, family, order)), tables=epilogue_tables(r),
        move_in=move_in_address(r, Move(p.x, arith.accumulator, _along(r, last, plan.block_groups, reading=True))),
        move_out=move_out_address(r, Move(arith.accumulator, p.y, write, r.epilogue)),
    )  # fmt: skip
    return Step(address, filled(values, keep), items if group_out else 0)


def _ahead(r: Request, plan: _Plan) -> Ahead:
    planes = r.problem.c // r.problem.groups if r.x.spatial[-1] == r.x.itemsize else 0
    return ahead_words(r, plan.sweep, plan.box, planes)


def _fused_tiles(r: Request, plan: _Plan, rows: int) -> list[Address[Walk] | None]:
    """Tiles of 1, 2, ... vectors, then those whose last vector is masked; None for sizes that no row is cut into."""
    lane, most = lanes(r.target, r.arith), pixel_tiles(r.target)[rows]
    whole, masked = set(), set()
    for width in (plan.box[-1], plan.sweep[-1].out % plan.box[-1]):
        cut = [size for _, size in near_equal(-(-width // lane), most)]
        masked |= set(cut[-1:]) if width % lane else set()
        whole |= set(cut[: -1 if width % lane else None])
    asked = int(asks_ahead(_ahead(r, plan)))
    spec = FusedTile(r.arith.name, r.problem.y, r.epilogue, asked=asked)
    sizes = range(1, most + 1)
    return [
        fused_address(r, "pixel", kind, rows, size) if size in wanted else None
        for kind, wanted in ((spec, whole), (replace(spec, edge=True), masked))
        for size in sizes
    ]


def _members(r: Request, family: Family, order: tuple[int, ...]) -> list[int]:
    """Records of the members of a family; ``r`` has its axes in order already."""
    strides = [o.spatial if o is not None else (0,) * len(order) for o in (r.y, r.residual)]
    records: list[int] = []
    for member, shifts in family.members:
        ordered = [(family.sweep[a], member[a], shifts[a]) for a in order]
        places = [own.first_out - whole.first_out - shift * whole.out_step for whole, own, shift in ordered]
        records += [sum(at * step for at, step in zip(places, of, strict=True)) for of in strides]
        records += [v for _, own, shift in ordered for v in (shift, shift + own.out)]
    return records


def _weights(r: Request, family: Family, order: tuple[int, ...]) -> NDArray[Any]:
    """Weights of a family whose axes were put in order, taps in that order too, one member after the other."""
    parts = []
    for member, _ in family.members:
        w = r.weights(member)
        spread = w.reshape(*w.shape[:3], *(axis.taps for axis in member))
        parts.append(spread.transpose(0, 1, 2, *(3 + a for a in order)).reshape(w.shape))
    return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]


def _along(r: Request, last: Axis, block_groups: int, *, reading: bool) -> str:
    """Contiguous axes of a move; few channels are cheaper element by element than through squares."""
    p = r.problem
    channels = (p.c if reading else p.m) // p.groups * block_groups
    found = along_in(r, last, "p") if reading else along_out(r, last, "p")
    return "any" if found in ("pc", "cp") and channels < 8 else found
