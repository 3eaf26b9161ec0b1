"""Small groups with the channels of several groups in the lanes: up to a vector wide, as many out as in.

A box of outputs gets a zero-padded copy of its input lines, [block of groups][line][pixel][lane], read by a tile that
walks along a row; taps whose lines lie in the padding are left out.  Where channels lie together, results go from
registers to their place; else through slots and a move.  Any rank, stride, dilation and layout.
Cost: the products, with lanes filled to whole groups, plus one pass over input and output.  Error: own bound,
k eps sum|x||w|.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.least import least
from polyconv.algorithms.panel import (
    Common,
    Driver,
    EpilogueTables,
    Frame,
    Item,
    RowLists,
    axis_words,
    box_rows,
    decode,
    fill,
    row_entries,
    row_place,
)
from polyconv.algorithms.program import (
    Program,
    Request,
    Situation,
    Step,
    accumulator_arithmetic,
    address_of,
    along_in,
    along_out,
    boxed_words,
    boxes,
    epilogue_tables,
    is_fusible,
    move_in_address,
    move_out_address,
    near_equal,
    planes_collide,
    row_lists,
    rows_follow,
    rows_together,
    tile_cycles,
)
from polyconv.algorithms.sweep import Axis, Lines, Sweep, line_pixels, lines, mean_taps, sweeps
from polyconv.kernels.fused import FusedTile, Walk, of_sums
from polyconv.kernels.grouped import ENTRY_WORDS, BlocksIn, blocks_in, grouped_tile
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, lanes
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import Move, MoveIn, MoveOut, zero_words
from polyconv.kernels.objects import kernel
from polyconv.kernels.record import Counted, Function, Memory, Record, Word, counted_words, filled
from polyconv.kernels.signature import Address
from polyconv.problem.problem import Problem
from polyconv.runtime.arrays import aligned
from polyconv.target import Target

__all__ = [
    "applicable", "at_least", "block_count", "build", "cost", "lanes_used", "most_rows", "of_blocks", "packed_weights",
    "tile_functions", "walks_of", "workspace",
]  # fmt: skip

_PANEL_BYTES = {"NCHW": 256 << 10, "NHWC": 512 << 10}
"""Workspace of a thread: a quarter of a 1 MiB second-level cache, or half where items have many blocks."""
_MOST_BLOCKS, _MOST_REPEATED = 16, 1.3
"""Where channels lie together, most blocks of an item, and how often lines may be brought for them."""

_MOST_ROWS = 8
_RUN_PIXELS = 64
"""Most rows of a tile; pixels that leave in one move at least, where rows are shorter and follow each other."""


class WalkWords(Record):
    """A walk along a row: its first pixel, how many tiles, and their function."""

    first: Word
    times: Word
    function: Function[Walk]


class GroupedWords(Record):
    """The driver's words.

    ``tiles`` holds four tables (block of all outputs or cut short, box cut short along the last axis or not): the walks
    of a row.  Where channels lie ``together`` all blocks of an item are moved in at once.
    """

    common: Common
    lanes_used: Word
    total_channels: Word
    total_outputs: Word
    total_blocks: Word
    item_blocks: Word
    pixel_bytes: Word
    line_bytes: Word
    block_bytes: Word
    row_step: Word
    rows: RowLists
    weights: Memory
    w_block: Word
    always_cut: Word
    fused: Word
    slots: Word
    sum_row: Word
    run_rows: Word
    tiles: Counted[WalkWords]
    table_words: Word
    word_bytes: Word
    tables: EpilogueTables
    together: Word
    move_in: Function[MoveIn]
    move_blocks: Function[BlocksIn]
    move_out: Function[MoveOut]


def driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = GroupedWords.read(k, given.words)
        item = decode(k, p.common, given.item, workspace)
        first = item.g * p.item_blocks
        blocks = k.minimum(p.item_blocks, p.total_blocks - first)
        _pack(k, p, item, frame.x, workspace + p.common.panel, first, blocks, vector_bytes)
        rows = box_rows(k, p.common, item)
        with k.loop(0, blocks) as block:
            _block(k, p, item, frame, workspace, block.index, first + block.index, rows)


def _pack(k: Module, p: GroupedWords, item: Item, x: Buffer, panel: Buffer, first: Value, blocks: Value,
          vector_bytes: int) -> None:  # fmt: skip
    """Copy the lines of a box for some blocks."""
    words_of_4 = vector("i32", vector_bytes // 4)
    pixel_step = p.common.step * axis_words(p.common, p.common.axes - 1).x_stride

    def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
        target = panel + (line * p.line_bytes + first_line * p.pixel_bytes)
        channels = k.minimum(blocks * p.lanes_used, p.total_channels - first * p.lanes_used)
        with k.when((head > 0) | (end < count)), k.loop(0, blocks) as block:
            here = target + block.index * p.block_bytes
            zero_words(k, here, (head * p.pixel_bytes) >> 2, words_of_4)
            zero_words(k, here + end * p.pixel_bytes, ((count - end) * p.pixel_bytes) >> 2, words_of_4)
        target, pixels = target + head * p.pixel_bytes, end - head
        together = p.together.equals(1)
        with k.when((pixels > 0) & together):
            k.call(p.move_blocks, BlocksIn(
                source, pixel_step, target, p.pixel_bytes, p.block_bytes, pixels, channels,
                p.common.zero_point,
            ))  # fmt: skip
        with k.loop(0, k.select((pixels > 0) & p.together.equals(0), channels, 0), p.lanes_used, [target]) as block:
            k.call(p.move_in, MoveIn(
                source + block.index * p.common.x_c, pixel_step, p.common.x_c, block.values[0], p.pixel_bytes,
                p.word_bytes, pixels, k.minimum(channels - block.index, p.lanes_used), p.common.zero_point,
            ))  # fmt: skip
            block.next(block.values[0] + p.block_bytes)

    fill(k, p.common, item, x, k.constant(INT, 0), put)


def _block(k: Module, p: GroupedWords, item: Item, frame: Frame, workspace: Buffer, block: Value, absolute: Value,
           rows: Value) -> None:  # fmt: skip
    """All rows of outputs of one block of groups."""
    last = axis_words(p.common, p.common.axes - 1)
    pixels = item.extent(p.common.axes - 1)
    channel = absolute * p.lanes_used
    outputs = k.minimum(p.lanes_used, p.total_outputs - channel)
    cut = k.select(outputs < p.lanes_used, 1, p.always_cut)
    table = p.tiles + cut * p.table_words * 16
    table = table + k.select(pixels < last.block, p.table_words * 8, 0)
    weights = p.weights + absolute * p.w_block
    bias, scale = p.tables.bias + channel * p.word_bytes, p.tables.scale + channel * p.word_bytes
    beside_y, beside_r = block * p.lanes_used * p.common.y_c, block * p.lanes_used * p.common.r_c
    fused = p.fused.equals(1)
    with k.loop(0, rows, carry=[k.constant(INT, 0), k.constant(INT, 0), k.constant(INT, 0)]) as row:
        waiting, y_run, r_run = row.values  # rows in the slots, and where they begin
        line, y_row, r_row = row_place(k, p.common, item, row.index)
        panel = workspace + (p.common.panel + block * p.block_bytes + line * p.line_bytes)
        entries, count = row_entries(k, p.common, p.rows, item, row.index)
        y, r = frame.y + (y_row + beside_y), frame.residual + (r_row + beside_r)
        slot = p.slots + waiting * pixels * p.sum_row
        with k.loop(0, table.count) as tile:
            walk = table.at(tile.index)
            first, times, function = walk.first, walk.times, walk.function
            source, step = panel + first * p.row_step, p.row_step
            rest = times, outputs, bias, scale, p.tables.constants, workspace
            with k.when(fused):
                k.call(function, Walk(
                    source, step, entries, count, weights, y + first * last.y_stride, last.y_stride,
                    r + first * last.r_stride, last.r_stride, *rest,
                ))  # fmt: skip
            with k.when(fused, otherwise=True):
                sums = workspace + (slot + first * p.sum_row)
                k.call(function, Walk(source, step, entries, count, weights, sums, p.sum_row, workspace, 0, *rest))
        begins = waiting.equals(0)
        y_run, r_run, waiting = k.select(begins, y_row, y_run), k.select(begins, r_row, r_run), waiting + 1
        leaves = waiting.equals(p.run_rows) | (row.index + 1).equals(rows)
        with k.when(leaves & p.fused.equals(0)):
            k.call(p.move_out, MoveOut(
                workspace + p.slots, p.sum_row, p.word_bytes,
                frame.y + (y_run + beside_y), last.y_stride, p.common.y_c, waiting * pixels, outputs, bias, scale,
                frame.residual + (r_run + beside_r), last.r_stride, p.common.r_c, p.tables.constants,
            ))  # fmt: skip
        row.next(k.select(leaves, 0, waiting), y_run, r_run)


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    p = s.problem
    if p.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {p.op}"
    if p.c != p.m:
        return f"needs groups with as many channels out as in, not {p.c // p.groups} and {p.m // p.groups}"
    if not s.finite:
        return "weights hold Inf or NaN, which would meet the zeros of the padding"
    if not 0 < p.c // p.groups <= lanes(s.target, ARITHMETIC[accumulator_arithmetic(s)]):
        return "a group is wider than a vector"
    return None


def workspace(s: Situation) -> int:
    """Bytes a thread needs."""
    arith = ARITHMETIC[accumulator_arithmetic(s)]
    return max((_plan(s, arith, sweep).workspace for sweep in sweeps(s.problem)), default=0)


def most_rows(target: Target, group: int) -> int:
    """Most rows of a tile: sums, the weights or pixels that are used again, and two more must fit the registers.

    Without FMA a product needs yet another one.
    """
    spare = 2 if target.has_fma else 3
    fits = [n for n in range(1, _MOST_ROWS + 1) if n * group + min(n, group) + spare <= target.registers]
    return max(fits, default=1)


def cost(s: Situation) -> dict[str, float]:
    """Cycles: multiply-adds or the latency of sums, starting tiles, and the moves."""
    p, arith = s.problem, ARITHMETIC[accumulator_arithmetic(s)]
    group, rates = p.c // p.groups, s.rates(arith)
    most = most_rows(s.target, group)
    products = moves = 0.0
    for sweep in sweeps(p):
        plan = _plan(s, arith, sweep)
        box_count = math.prod(-(-axis.out // max(1, b)) for axis, b in zip(sweep, plan.box, strict=True))
        rows = math.prod(plan.box[:-1]) * box_count
        taps = math.prod(mean_taps(axis) for axis in sweep[:-1]) * sweep[-1].taps
        for _, pixels in near_equal(plan.box[-1], most):
            step = max(tile_cycles(rates, pixels, group), pixels * 1.3 if group == 1 else 0.0)
            alone = 2.0 * group if pixels == 1 else 0.0  # nothing else to do while its sums are added
            products += rows * (taps * step + 4 + 0.35 * pixels * group + alone)
        products += rows * (60.0 + 4 * len(sweep))
        rows_in = math.prod(max(1, h.count) for h in plan.held[:-1])
        per_in, per_out = 5.5, 0.0
        if p.layout == "NCHW":
            per_in = 9.0 if planes_collide(p, reading=True) else 7.0
            per_out = 9.0 if planes_collide(p, reading=False) else 5.5
        elif not is_fusible(p):
            per_out = 2.5
        moves += box_count * (200 / plan.blocks + rows_in * (40 + max(1, plan.held[-1].count) * per_in))
        moves += rows * plan.box[-1] * per_out
    batch = (p.n or 0) * block_count(s, arith)
    return {"products": products * batch, "moves": moves * batch}


def at_least(s: Situation) -> float:
    """Cycles that products and the way in take, whatever the boxes and tiles."""
    p, arith, work = s.problem, ARITHMETIC[accumulator_arithmetic(s)], least(s.problem)
    group = p.c // p.groups
    if not 0 < group <= lanes(s.target, arith):
        return math.inf
    step = max(group / s.rates(arith).multiply_adds, 1.3 if group == 1 else 0.0)
    cycles = work.met * step + work.outputs * 0.35 * group + work.brought * (7.0 if p.layout == "NCHW" else 5.5)
    return cycles * (p.n or 0) * block_count(s, arith)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Sizes of one sweep's blocks."""

    box: tuple[int, ...]
    held: tuple[Lines, ...]
    step: int
    blocks: int
    line_bytes: int
    block_bytes: int
    slots: int
    run_rows: int
    entries: tuple[tuple[int, ...], ...]
    workspace: int


def lanes_used(s: Situation, arith: Arithmetic) -> int:
    """Lanes that whole groups fill."""
    lane, group = lanes(s.target, arith), s.problem.c // s.problem.groups
    return lane // group * group


def block_count(s: Situation, arith: Arithmetic) -> int:
    return -(-s.problem.c // lanes_used(s, arith))


@lru_cache(256)
def _plan(s: Situation, arith: Arithmetic, sweep: Sweep) -> _Plan:
    total = block_count(s, arith)
    budget = s.budget(_PANEL_BYTES[s.problem.layout])
    extents = tuple(axis.out for axis in sweep)
    start = (*extents[:-1], min(extents[-1], 512))
    batch = s.problem.n or 0
    if s.threads > 1 and batch * total < 4 * s.threads:  # a few items for every thread
        parts = -(-4 * s.threads // max(1, batch * total))
        axis = 0 if len(extents) == 1 or extents[0] >= parts else len(extents) - 2
        start = tuple(max(1, -(-e // parts)) if a == axis else e for a, e in enumerate(start))
    most = total if s.threads == 1 else max(1, min(total, batch * total // (4 * s.threads)))

    def fitted(blocks: int) -> _Plan:
        box = boxes(start, lambda box: _sizes(s, arith, sweep, box, blocks).workspace, budget)
        return _sizes(s, arith, sweep, box, blocks)

    blocks = min(most, _MOST_BLOCKS) if s.problem.layout == "NHWC" else 1
    plan = fitted(blocks)
    while blocks > 1 and _repeated(sweep, plan) > _MOST_REPEATED:
        blocks = -(-blocks // 2)
        plan = fitted(blocks)
    while plan.blocks < most:
        more = _sizes(s, arith, sweep, plan.box, plan.blocks + 1)
        if more.workspace > budget:
            break
        plan = more
    return plan


def _repeated(sweep: Sweep, plan: _Plan) -> float:
    """Lines of input that boxes bring, as a multiple of what one box of all would."""
    whole = math.prod(max(1, lines(axis, axis.out).count) for axis in sweep[:-1])
    count = math.prod(-(-axis.out // b) for axis, b in zip(sweep[:-1], plan.box[:-1], strict=True))
    return count * math.prod(max(1, h.count) for h in plan.held[:-1]) / whole


def _sizes(s: Situation, arith: Arithmetic, sweep: Sweep, box: tuple[int, ...], blocks: int) -> _Plan:
    last, pixel = sweep[-1], s.target.vector_bytes
    run, step = line_pixels(last, box[-1])
    held = (*(lines(axis, b) for axis, b in zip(sweep[:-1], box[:-1], strict=True)), run)
    # an odd number of cache lines: lines of the panel do not share all their sets
    line_bytes = (-(-run.count * pixel // 64) | 1) * 64
    rows_in = math.prod(max(1, h.count) for h in held[:-1])
    block_bytes = rows_in * line_bytes + 64
    outer = [0]
    for h in held[:-1]:
        outer = [o * h.count + t for o in outer for t in h.start]
    of_tap = s.problem.c // s.problem.groups * pixel
    entries = tuple(
        tuple(
            v for t, at in enumerate(run.start) for v in (o * line_bytes + at * pixel, (tap * last.taps + t) * of_tap)
        ) for tap, o in enumerate(outer)
    )  # fmt: skip
    run_rows = rows_together(sweep, box, _RUN_PIXELS)
    header = -(-(24 * len(sweep)) // 64) * 64
    slots = header + block_bytes * blocks
    total = slots + run_rows * box[-1] * pixel + 128
    return _Plan(box, held, step, blocks, line_bytes, block_bytes, slots, run_rows, entries, total)


def build(r: Request) -> Program:
    """Program of a request: one step per sweep."""
    keep: list[Any] = []
    wide = r.target.vector_bytes
    address = address_of(r, "grouped", "grouped", Driver, lambda k, name: driver(k, name, wide))
    steps = [_step(r, sweep, address, keep) for sweep in sweeps(r.problem)]
    return Program(tuple(step for step in steps if step.items), workspace(r.situation), tuple(keep))


def _step(r: Request, sweep: Sweep, address: Address[Driver], keep: list[Any]) -> Step:
    p, arith, plan = r.problem, r.arith, _plan(r.situation, r.arith, sweep)
    group, used, last = p.c // p.groups, lanes_used(r.situation, r.arith), sweep[-1]
    blocks, pixel = block_count(r.situation, arith), r.target.vector_bytes
    fused = along_out(r, last, "c") == "cc" and is_fusible(p)
    epilogue = r.epilogue
    edge = last.out % plan.box[-1] or plan.box[-1] if last.out else 0
    tables = []
    for cut in (False, True):
        spec = FusedTile(arith.name, p.y, epilogue, cut) if fused else of_sums(arith.name)
        wanted = (used == lanes(r.target, arith)) if not cut else used < lanes(r.target, arith) or p.c % used > 0
        functions: Sequence[Address[Walk] | None] = tile_functions(r, spec, group) if wanted else [None] * _MOST_ROWS
        tables += [walks_of(functions, pixels, most_rows(r.target, group)) for pixels in (plan.box[-1], edge)]
    key = tuple((a.taps, a.first_tap, a.tap_step) for a in sweep)
    packed = r.packed(
        ("grouped", arith.name, lanes(r.target, arith), key),
        lambda: packed_weights(r.weights(sweep), lanes(r.target, arith)),
    )
    taps = math.prod(a.taps for a in sweep)
    # blocks as one group each
    blocked = replace(r, situation=replace(r.situation, problem=of_blocks(p, used, blocks)))
    common, items = boxed_words(
        blocked, sweep, plan.box, plan.held, block_groups=plan.blocks, panel=-(-(24 * len(sweep)) // 64) * 64
    )
    move_in, move_blocks = _moves_in(r, replace(last, stride=plan.step), used)
    values = GroupedWords(
        common=replace(common, step=plan.step), lanes_used=used, total_channels=p.c, total_outputs=p.m,
        total_blocks=blocks, item_blocks=plan.blocks, pixel_bytes=pixel, line_bytes=plan.line_bytes,
        block_bytes=plan.block_bytes, row_step=pixel * (last.stride if plan.step == 1 else 1),
        rows=row_lists(sweep[:-1], plan.entries, ENTRY_WORDS),
        weights=packed, w_block=taps * group * pixel, always_cut=int(used < lanes(r.target, arith)),
        fused=int(fused), slots=plan.slots, sum_row=pixel, run_rows=plan.run_rows if rows_follow(r, sweep) else 1,
        tiles=tables, table_words=counted_words(WalkWords, tables), word_bytes=arith.bytes, tables=epilogue_tables(r),
        together=int(r.x.c == r.x.itemsize), move_in=move_in, move_blocks=move_blocks,
        move_out=move_out_address(r, Move(arith.accumulator, p.y, along_out(r, last, "c"), epilogue)),
    )  # fmt: skip
    return Step(address, filled(values, keep), items)


def _moves_in(r: Request, last: Axis, used: int) -> tuple[Address[MoveIn] | None, Address[BlocksIn] | None]:
    """The move into the panel: block by block, or of all at once."""
    if r.x.c != r.x.itemsize:
        return move_in_address(r, Move(r.problem.x, r.arith.accumulator, along_in(r, last, "c"))), None
    spec = Move(r.problem.x, r.arith.accumulator, "cc")
    count, f16c = lanes(r.target, r.arith), r.target.converts_f16

    def make(k: Module, name: str) -> None:
        blocks_in(k, name, spec, count, used, f16c=f16c)

    return None, address_of(r, f"grouped in {spec} {used}", "move", BlocksIn, make)


def of_blocks(p: Problem, used: int, blocks: int) -> Problem:
    """The problem with the last block filled up."""
    return replace(p, c=blocks * used, m=blocks * used, groups=blocks)


def tile_functions(r: Request, spec: FusedTile, group: int, *, near: bool = False) -> list[Address[Walk]]:
    """Addresses of the tiles of 1, 2, ... rows."""
    count, f16c = lanes(r.target, r.arith), r.target.converts_f16
    names = {f"tile{rows}": rows for rows in range(1, most_rows(r.target, group) + 1)}

    def build(k: Module) -> None:
        for name, rows in names.items():
            grouped_tile(k, name, spec, count, rows, group, near=near, f16c=f16c)

    label = f"grouped {spec} {group}{' near' * near}"
    found = kernel(label, dict.fromkeys(names, Walk), build, r.target, check=r.check)
    return [found[name] for name in names]


def walks_of(functions: Sequence[Address[Walk] | None], pixels: int, most: int) -> list[WalkWords]:
    """Tiles of a row of pixels, equal ones together."""
    walks = []
    for function, alike in itertools.groupby(near_equal(pixels, most), lambda tile: functions[tile[1] - 1]):
        (first, _), *more = alike
        walks.append(WalkWords(first, 1 + len(more), function))
    return walks


def packed_weights(w: NDArray[Any], lane: int) -> NDArray[Any]:
    """Weights (groups, m, c, taps) as [block][tap][distance][lane]: from input lane to the output that far after it."""
    groups, group, _, taps = w.shape
    per_block = lane // group
    blocks = -(-groups // per_block)
    packed = aligned((blocks, taps, group, lane), w.dtype)
    own, whole = np.arange(group), np.zeros((blocks * per_block, group, taps), w.dtype)
    for distance in range(group if taps else 0):
        whole[:groups] = w[:, (own + distance) % group, own]
        by_block = whole.reshape(blocks, per_block * group, taps).transpose(0, 2, 1)
        packed[:, :, distance, : per_block * group] = by_block
    return packed
