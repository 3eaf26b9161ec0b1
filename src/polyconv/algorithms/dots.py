"""Small integers by dot products: dense, any rank, stride, dilation, group, pads and layout.

A box of outputs gets a panel of its inputs, their padding written out; where nothing is padded and words lie as the
instructions take them, tiles read the tensor itself.  Tiles broadcast words of several channels against vectors of
output channels, and reduce over (tap, words) or, where taps of a kernel's line follow each other, over whole lines of
a kernel.  Results leave from registers to their place, or by slots and a move.

Bytes are multiplied as u8 by i8: i8 inputs and u8 weights move by 128, and what zero points add to a sum is the same
for all outputs of a channel, since padding holds the input's zero point: a bias.  In 16 bits numbers less their zero
points are multiplied.  Cost: the products, and one pass over input and output.  Exact: sums are taken modulo 2^32.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.dense.weights import packed_weights
from polyconv.algorithms.dots_plan import Plan, channel_bytes, plan_of, workspace
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
    row_source,
)
from polyconv.algorithms.program import (
    Program,
    Request,
    Step,
    address_of,
    along_in,
    along_out,
    boxed_words,
    epilogue_tables,
    move_in_address,
    move_out_address,
    near_equal,
    row_lists,
    rows_follow,
    word_address,
)
from polyconv.algorithms.sweep import Axis, Sweep, sweeps
from polyconv.kernels.fused import FusedTile, WordWalk, of_sums
from polyconv.kernels.isa import lanes, run_tiles
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import Epilogue, Move, MoveIn, MoveOut
from polyconv.kernels.record import Counted, Function, Memory, Record, Word, counted_words, filled
from polyconv.kernels.signature import Address
from polyconv.kernels.words import fill_bytes, words_in
from polyconv.runtime.arrays import aligned

__all__ = [
    "DotPanel", "DotTile", "DotWords", "build", "driver_address", "finished_in_registers", "pack_lines", "padding_of",
    "panel_common", "panel_words", "result_words", "with_bias",
]  # fmt: skip

_COLLIDING = 2048
"""Pixels so many bytes apart share few sets of a first-level cache: they are not read in place."""


class DotTile(Record):
    """A tile of a row: its first pixel, how many follow each other, and their function."""

    first: Word
    times: Word
    function: Function[WordWalk]


class DotPanel(Record):
    """Words of a panel that is filled with a box's inputs, if tiles do not read them ``in_place``.

    Each of its planes has ``plane_channels`` of a group.  Lines whose pixels lie as in the panel are moved as
    ``one_run``; ``padding`` is the byte of what lies outside.
    """

    in_place: Word
    channels: Word
    plane_channels: Word
    channel_bytes: Word
    pixel_bytes: Word
    line_bytes: Word
    plane_bytes: Word
    one_run: Word
    padding: Word
    move_in: Function[MoveIn]


class DotResults(Record):
    """Words with which results leave: ``fused`` from registers, or by slots.

    Slots have ``slot_bytes`` an output, and leave when ``run_rows`` rows are there.
    """

    tables: EpilogueTables
    fused: Word
    slots: Word
    slot_bytes: Word
    slot_row: Word
    slot_row_last: Word
    run_rows: Word
    move_out: Function[MoveOut]


class DotWords(Record):
    """The driver's words.

    ``tiles`` holds four tables (last block or not, box cut short along the last axis or not).  A block of outputs reads
    the channels that the one before it does, or those ``source_block`` bytes further.
    """

    common: Common
    panel: DotPanel
    row_step: Word
    word_step: Word
    source_block: Word
    rows: RowLists
    weights: Memory
    w_group: Word
    w_block: Word
    w_last: Word
    w_last_group: Word
    outputs: Word
    blocks: Word
    split_blocks: Word
    block_outputs: Word
    last_outputs: Word
    last_lanes: Word
    tiles: Counted[DotTile]
    table_words: Word
    results: DotResults


def driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver to a module: an item is some blocks of outputs of a box."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = DotWords.read(k, given.words)
        item = decode(k, p.common, given.item, workspace)
        with k.when(p.panel.in_place.equals(0)):
            pack_lines(k, p.common, p.panel, item, frame.x, workspace + p.common.panel, vector_bytes)
        first = item.split * p.split_blocks
        rows = box_rows(k, p.common, item)
        with k.loop(first, k.minimum(first + p.split_blocks, p.blocks)) as block:
            _block(k, p, item, frame, workspace, block.index, rows)


def pack_lines(k: Module, common: Common, lines: DotPanel, item: Item, x: Buffer, panel: Buffer, vector_bytes: int
               ) -> None:  # fmt: skip
    """Bring the lines of a box, and write their padding."""
    pixel_step = common.step * axis_words(common, common.axes - 1).x_stride
    byte = vector("i8", vector_bytes)
    padding = k.splat(k.cast("trunc", lines.padding, byte.scalar), vector_bytes)
    one_run = lines.one_run.equals(1)

    def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
        place = panel + (line * lines.line_bytes + first_line * lines.pixel_bytes)
        with k.loop(0, lines.channels, lines.plane_channels, [place, source]) as plane:
            target, planes = plane.values
            with k.when(head > 0):
                fill_bytes(k, target, head * lines.pixel_bytes, padding)
            with k.when(end < count):
                fill_bytes(k, target + end * lines.pixel_bytes, (count - end) * lines.pixel_bytes, padding)
            pixels, channels = end - head, k.minimum(lines.plane_channels, lines.channels - plane.index)
            k.call(lines.move_in, MoveIn(
                planes, pixel_step, common.x_c,
                target + head * lines.pixel_bytes, lines.pixel_bytes, lines.channel_bytes,
                k.select(one_run, k.minimum(pixels, 1), pixels), k.select(one_run, pixels * channels, channels),
                common.zero_point,
            ))  # fmt: skip
            plane.next(target + lines.plane_bytes, planes + lines.plane_channels * common.x_c)

    fill(k, common, item, x, k.constant(INT, 0), put)


def _block(k: Module, p: DotWords, item: Item, frame: Frame, workspace: Buffer, block: Value, rows: Value) -> None:
    """All rows of outputs of a block of output channels."""
    last, results, tables = axis_words(p.common, p.common.axes - 1), p.results, p.results.tables
    is_last = block.equals(p.blocks - 1)
    pixels = item.extent(p.common.axes - 1)
    table = p.tiles + k.select(is_last, p.table_words * 16, 0) + k.select(pixels < last.block, p.table_words * 8, 0)
    weights = p.weights + k.select(
        is_last, p.w_last + item.g * p.w_last_group, item.g * p.w_group + block * p.w_block
    )
    channel = item.g * p.outputs + block * p.block_outputs
    outputs = k.select(is_last, p.last_outputs, p.block_outputs)
    bias, scale, constants = tables.bias + channel * 4, tables.scale + channel * 4, tables.constants
    slot_row = k.select(is_last, results.slot_row_last, results.slot_row)
    beside_y, beside_r = block * p.block_outputs * p.common.y_c, block * p.block_outputs * p.common.r_c
    fused, in_place = results.fused.equals(1), p.panel.in_place.equals(1)
    begin = workspace + p.common.panel
    with k.loop(0, rows, carry=[k.constant(INT, 0), k.constant(INT, 0), k.constant(INT, 0)]) as row:
        waiting, y_run, r_run = row.values  # rows in the slots, and where they begin
        line, y_row, r_row = row_place(k, p.common, item, row.index)
        there = frame.x + row_source(k, p.common, item, row.index)
        source = k.either(in_place, there, begin + line * p.panel.line_bytes) + block * p.source_block
        entries, count = row_entries(k, p.common, p.rows, item, row.index)
        slot = results.slots + waiting * pixels * slot_row
        y = k.either(fused, frame.y + (y_row + beside_y), workspace + slot)
        y_step = k.select(fused, last.y_stride, slot_row)
        r = k.either(fused, frame.residual + (r_row + beside_r), workspace)
        r_step = k.select(fused, last.r_stride, 0)
        with k.loop(0, table.count) as number:
            tile = table.at(number.index)
            first, times, function = tile.first, tile.times, tile.function
            k.call(function, WordWalk(
                source + first * p.row_step, p.row_step, entries, count, weights, y + first * y_step, y_step,
                r + first * r_step, r_step, times, p.last_lanes, bias, scale, constants, workspace, p.word_step,
            ))  # fmt: skip
        begins = waiting.equals(0)
        y_run, r_run, waiting = k.select(begins, y_row, y_run), k.select(begins, r_row, r_run), waiting + 1
        leaves = waiting.equals(results.run_rows) | (row.index + 1).equals(rows)
        with k.when(leaves & results.fused.equals(0)):
            k.call(results.move_out, MoveOut(
                workspace + results.slots, slot_row, results.slot_bytes, frame.y + (y_run + beside_y), last.y_stride,
                p.common.y_c, waiting * pixels, outputs, bias, scale,
                frame.residual + (r_run + beside_r), last.r_stride, p.common.r_c, constants,
            ))  # fmt: skip
        row.next(k.select(leaves, 0, waiting), y_run, r_run)


def build(r: Request) -> Program:
    """Program of a request: one step per sweep."""
    keep: list[Any] = []
    address = driver_address(r)
    steps = [_step(r, sweep, address, keep) for sweep in sweeps(r.problem)]
    return Program(tuple(step for step in steps if step.items), workspace(r.situation), tuple(keep))


def driver_address(r: Request) -> Address[Driver]:
    """Address of the driver."""
    wide = r.target.vector_bytes
    return address_of(r, "dots", "dots", Driver, lambda k, name: driver(k, name, wide))


def _step(r: Request, sweep: Sweep, address: Address[Driver], keep: list[Any]) -> Step:
    p, arith, last = r.problem, r.arith, sweep[-1]
    together = r.x.c == r.x.itemsize
    plan = plan_of(r.situation, arith, sweep, planes=not together)
    group_in, group_out = p.c // p.groups, p.m // p.groups
    lane, of_vector = lanes(r.target, arith), r.target.vector_bytes
    w, padding = r.weights(sweep), padding_of(r)
    in_place = together and _lies(r, sweep, plan)
    r = with_bias(r, w, padding)
    words = -(-group_in * (last.taps if plan.merged else 1) // arith.channels)
    cut_words = plan.merged and group_in % arith.channels > 0  # else words are the same tap by tap
    key = ("dots", arith.name, lane, plan.vectors, cut_words, tuple((a.taps, a.first_tap, a.tap_step) for a in sweep))
    packed = r.packed(key, lambda: packed_weights(
        r, _merged(w, last.taps) if cut_words else w, plan.vectors, plan.last_vectors, max(1, words),
    ))  # fmt: skip
    rows = math.prod(axis.taps for axis in sweep[:-1]) * words * (1 if plan.merged else last.taps)
    main, rest = rows * plan.vectors * of_vector, rows * plan.last_vectors * of_vector
    sets, channels, outputs = p.groups, group_in, group_out
    if plan.at_once:
        sets, channels, outputs = 1, p.c, p.m
    in_registers = finished_in_registers(r, last)
    spec = FusedTile(arith.name, p.y, r.epilogue) if in_registers else of_sums(arith.name)
    tiles = _tiles(r, last, plan, spec, (group_out - 1) % lane + 1 < lane and in_registers)
    of_sets = replace(r, situation=replace(r.situation, problem=replace(p, groups=sets)))
    common, items = boxed_words(of_sets, sweep, plan.box, plan.held, plan.splits, panel=plan.header)
    move = _move_in(r, replace(last, stride=plan.step), plan, group_in, together=together)
    values = DotWords(
        common=panel_common(r, common, plan),
        panel=panel_words(r, plan, channels, padding, move, in_place=in_place),
        row_step=last.stride * r.x.spatial[-1] if in_place else plan.pixel_bytes * (last.stride // plan.step),
        word_step=plan.plane_bytes if plan.planes else arith.bytes,
        source_block=words * arith.bytes if plan.at_once else 0,
        rows=row_lists(sweep[:-1], _entries(r, sweep, plan, words, in_place=in_place), 3, whole=padding > 0),
        weights=packed, w_group=main * (plan.blocks - 1), w_block=main,
        w_last=main * (plan.blocks - 1) * sets, w_last_group=rest,
        outputs=outputs, blocks=plan.blocks, split_blocks=-(-plan.blocks // plan.splits),
        block_outputs=plan.vectors * lane, last_outputs=outputs - (plan.blocks - 1) * plan.vectors * lane,
        last_lanes=(group_out - 1) % lane + 1, tiles=tiles, table_words=counted_words(DotTile, tiles),
        results=result_words(r, sweep, plan, lane, in_registers=in_registers),
    )  # fmt: skip
    return Step(address, filled(values, keep), items)


def padding_of(r: Request) -> int:
    """The byte that stands for the input's zero point in a panel: bytes are multiplied with their zero point."""
    if r.arith.name != "u8s8":
        return 0
    return r.zero_point + (128 if r.problem.x == "i8" else 0)


def panel_common(r: Request, common: Common, plan: Plan) -> Common:
    """The words of every blocked driver, and what is taken off numbers on their way into the panel."""
    moved = -128 if r.problem.x == "i8" else 0
    return replace(common, step=plan.step, zero_point=moved if r.arith.name == "u8s8" else r.zero_point)


def panel_words(r: Request, plan: Plan, channels: int, padding: int, move_in: Address[MoveIn], *, in_place: bool = False
                ) -> DotPanel:  # fmt: skip
    """Words of the panel for so many channels of an item."""
    size, of_pixel = channel_bytes(r.arith), channels * r.x.itemsize
    runs = r.x.c == r.x.itemsize and plan.step == 1 and channels == r.x_channels and r.x.spatial[-1] == of_pixel
    return DotPanel(
        in_place=int(in_place), channels=channels, plane_channels=r.arith.channels if plan.planes else max(1, channels),
        channel_bytes=size, pixel_bytes=plan.pixel_bytes, line_bytes=plan.held[-1].count * plan.pixel_bytes,
        plane_bytes=plan.plane_bytes, one_run=int(runs and plan.pixel_bytes == channels * size), padding=padding,
        move_in=move_in,
    )  # fmt: skip


def finished_in_registers(r: Request, last: Axis) -> bool:
    """Whether results are finished where their sums are: they lie together, or leave as bytes by slots."""
    along = along_out(r, last, "c")
    return along == "cc" or (along == "cp" and r.problem.y_dtype.bits == 8 and r.residual is None)


def result_words(r: Request, sweep: Sweep, plan: Plan, lane: int, *, in_registers: bool) -> DotResults:
    """Words with which results leave, of blocks of ``plan.vectors`` times so many lanes."""
    p, along = r.problem, along_out(r, sweep[-1], "c")
    fused, by_bytes = in_registers and along == "cc", in_registers and along != "cc"
    size = p.y_dtype.itemsize if by_bytes else r.arith.bytes
    return DotResults(
        tables=epilogue_tables(r), fused=int(fused), slots=plan.header + plan.panel, slot_bytes=size,
        slot_row=plan.vectors * lane * size, slot_row_last=plan.last_vectors * lane * size,
        run_rows=plan.run_rows if rows_follow(r, sweep) else 1,
        move_out=move_out_address(
            r, Move("i8", p.y, along, Epilogue()) if by_bytes else Move("i32", p.y, along, r.epilogue)
        ),
    )  # fmt: skip


def _lies(r: Request, sweep: Sweep, plan: Plan) -> bool:
    """Whether tiles can read words from the input as it lies: nothing is padded or moved, words hold whole channels."""
    p, arith = r.problem, r.arith
    if p.x != ("u8" if arith.name == "u8s8" else "i16") or (arith.name == "i16" and r.zero_point):
        return False
    if p.c // p.groups % arith.channels or r.x.spatial[-1] % _COLLIDING == 0:
        return False
    return all(
        axis.pad <= 0 and (axis.out - 1) * axis.stride - axis.pad + (axis.taps - 1) * axis.dilation < axis.inp
        for axis in sweep
    )


def with_bias(r: Request, w: NDArray[Any], padding: int) -> Request:
    """The request with what the input's zero point adds to sums taken off by its bias."""
    if not padding:
        return r
    bias = aligned((r.problem.m,), np.int32)
    bias[...] = 0 if r.bias is None else r.bias
    bias -= w.sum(axis=(2, 3), dtype=np.int32).reshape(-1) * np.int32(padding)
    return replace(r, bias=bias)


def _merged(w: NDArray[Any], taps: int) -> NDArray[Any]:
    """Weights (groups, m, c, taps) with those of a line of the kernel, tap by tap, as channels."""
    groups, m, c, all_taps = w.shape
    lines = all_taps // max(1, taps)
    by_line = w.reshape(groups, m, c, lines, taps).transpose(0, 1, 4, 2, 3)
    return np.ascontiguousarray(by_line).reshape(groups, m, taps * c, lines)


def _entries(r: Request, sweep: Sweep, plan: Plan, words: int, *, in_place: bool) -> list[list[int]]:
    """For every combination of taps of the outer axes the words of its entries: offset, words, weights before it."""
    last = sweep[-1]
    outer = [0]
    for axis, h, stride in zip(sweep[:-1], plan.held[:-1], r.x.spatial[:-1], strict=True):
        if in_place:
            outer = [o + t * axis.dilation * stride for o in outer for t in range(axis.taps)]
        else:
            outer = [o * h.count + t for o in outer for t in h.start]
    line, pixel, starts = plan.held[-1].count * plan.pixel_bytes, plan.pixel_bytes, plan.held[-1].start
    whole = plan.merged
    if in_place:
        line, pixel, starts = 1, r.x.spatial[-1], tuple(t * last.dilation for t in range(last.taps))
        whole = whole and (last.taps <= 1 or pixel == r.problem.c // r.problem.groups * r.x.itemsize)
    if not words or not last.taps:
        return [[] for _ in outer]
    if whole:
        return [[o * line, words, tap * words] for tap, o in enumerate(outer)]
    if plan.merged:
        words //= last.taps
    return [
        [v for t, at in enumerate(starts) for v in (o * line + at * pixel, words, (tap * last.taps + t) * words)]
        for tap, o in enumerate(outer)
    ]


def _tiles(r: Request, last: Axis, plan: Plan, spec: FusedTile, cut: bool) -> list[list[DotTile]]:
    """The tables of tiles; those of the last block mask its last vector where it is cut."""
    edge = last.out % plan.box[-1] or plan.box[-1]
    tables: list[list[DotTile]] = []
    for vectors, is_cut, is_there in ((plan.vectors, False, plan.blocks > 1), (plan.last_vectors, cut, True)):
        of_block = replace(spec, edge=is_cut)
        for pixels in (plan.box[-1], edge):
            parts = near_equal(pixels, run_tiles(r.target)[vectors]) if is_there else []
            functions = {n: word_address(r, of_block, n, vectors) for n in sorted({n for _, n in parts})}
            tables.append([DotTile(first, 1, functions[n]) for first, n in parts])
    return tables


def _move_in(r: Request, last: Axis, plan: Plan, group_in: int, *, together: bool) -> Address[MoveIn]:
    """The move of pixels into the panel."""
    p, arith = r.problem, r.arith
    element = f"i{8 * channel_bytes(arith)}"
    along = "cc" if together else along_in(r, last, "c")
    if not plan.planes and along == "pc" and 0 < group_in <= arith.channels:
        return move_in_address(r, Move(p.x, element, "pc", together=group_in))
    if not plan.planes or along not in ("pc", "2c"):
        return move_in_address(r, Move(p.x, element, along if together else "any"))
    spec, count = Move(p.x, element, along, together=arith.channels), r.target.vector_bytes // channel_bytes(arith)

    def make(k: Module, name: str) -> None:
        words_in(k, name, spec, count if r.target.has_masks else 16 // channel_bytes(arith), f16c=False)

    return address_of(r, f"{spec} words", "move", MoveIn, make)
