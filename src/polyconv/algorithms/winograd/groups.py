"""Winograd convolution along columns, with the channels of several small groups in the lanes: no lane ever moves.

Tiles, their scheme, its error and what is done again are those of ``winograd_rows``; blocks of groups and the products
those of ``grouped``.  A row of tiles of a block is transformed from where it lies, multiplied point by point and
transformed back to its place, all within a first-level cache; where channels lie apart, panels are brought and taken
away.

Cost: half the products of a direct sum, with lanes filled to whole groups, and the additions of each point's distances.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.dense import direct
from polyconv.algorithms.dense.driver import DirectBox, DirectWords
from polyconv.algorithms.dense.plan import again_workspace
from polyconv.algorithms.grouped.side_by_side import (
    WalkWords,
    block_count,
    lanes_used,
    most_rows,
    of_blocks,
    packed_weights,
    tile_functions,
    walks_of,
)
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
    line_place,
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
    image_bytes,
    move_in_address,
    move_out_address,
    near_equal,
    of_one_image,
    planes_collide,
    row_lists,
    scheme_of,
    tile_cycles,
)
from polyconv.algorithms.sweep import Lines, Sweep, lines, mean_taps, sweeps
from polyconv.algorithms.winograd import rows as winograd_rows
from polyconv.algorithms.winograd.rows import SCHEME, TilesDown, again_header, as_it_lies, in_tiles, odd_lines, of_boxes
from polyconv.kernels.fused import Walk, of_sums
from polyconv.kernels.grouped import ENTRY_WORDS, ColumnsIn, ColumnsOut, columns_in, columns_out
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, lanes
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import Epilogue, Move, MoveIn, MoveOut, zero_words
from polyconv.kernels.record import Counted, Function, Link, Memory, Record, Word, counted_words, filled
from polyconv.kernels.signature import Address

__all__ = ["applicable", "build", "cost", "scheme", "workspace"]

_NEAR_BYTES, _BOX_BYTES = 128 << 10, 512 << 10
"""Workspace of a thread, half of which is in use where channels lie together; where taps of further axes hold lines,
what a second-level cache has."""
_MOST_BLOCKS = 16
"""Blocks of an item: neighbours in memory, which come together."""

_COLLIDING = 8.0
"""Cycles more that a column takes where pixels lie a multiple of 512 bytes apart: in few sets of a cache."""
_SHARED, _TOGETHER = 1024, 4
"""Where pixels lie a multiple of so many bytes apart they share few sets of a cache, and what comes of a line for one
block would be gone before the next; so many blocks are transformed side by side there.  Measured: 5 to 40 % off."""
_CACHED_BYTES, _LAST_BYTES = 6 << 20, 5.0
"""Input and result beyond this come and go a vector of each pixel at a time; bytes a cycle."""


class GroupWords(Record):
    """The driver's words.

    ``tiles`` holds two tables, of boxes and of those cut short along the last axis: the walks of a row.
    """

    common: Common
    lanes_used: Word
    total_channels: Word
    total_blocks: Word
    item_blocks: Word
    block_groups: Word
    total_groups: Word
    word_bytes: Word
    vector_bytes: Word
    reach: Word
    near_in: Word
    near_out: Word
    down: TilesDown
    outer_lines: Word
    line_bytes: Word
    move_in: Function[MoveIn]
    columns_in: Function[ColumnsIn]
    together: Word
    beside: Word
    v: Word
    v_point: Word
    v_line: Word
    v_vector: Word
    rows: RowLists
    tiles: Counted[WalkWords]
    table_words: Word
    weights: Memory
    w_block: Word
    w_point: Word
    sums: Word
    s_point: Word
    sums_vector: Word
    columns_out: Function[ColumnsOut]
    y_row: Word
    r_row: Word
    out: Word
    out_line: Word
    move_out: Function[MoveOut]
    tables: EpilogueTables
    again: Word
    again_words: Link[DirectWords]
    again_blocks: Word
    repair: Function[DirectBox]


def driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module: rows of tiles, of some blocks of groups."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = GroupWords.read(k, given.words)
        item = decode(k, p.common, given.item, workspace)
        first = item.g * p.item_blocks
        rows = box_rows(k, p.common, item, 2)
        flag = workspace + p.common.axes * 24
        blocks = k.minimum(p.item_blocks, p.total_blocks - first)
        with k.loop(0, blocks, p.together) as some:  # what is done again, if anything
            end = k.minimum(some.index + p.together, blocks)
            k.store(k.constant(INT, 0), flag, 8)
            with k.loop(some.index, end, p.beside) as block:
                absolute, vectors = first + block.index, k.minimum(p.beside, end - block.index)
                channels = k.minimum(p.lanes_used, p.total_channels - absolute * p.lanes_used)
                x = frame.x
                _transform_inputs(k, p, item, x, workspace, block.index, vectors, channels, vector_bytes)
                with k.loop(0, rows) as row:
                    with k.loop(0, vectors) as v:
                        _multiply(k, p, item, workspace, absolute + v.index, v.index, row.index)
                    _back(k, p, item, frame, workspace, block.index, absolute, vectors, channels, row.index, flag)
            with k.when(k.word(flag) > 0):
                header = again_header(k, p.common, p.down, item, workspace, workspace + p.again)
                begins, past = (first + some.index) * p.block_groups, (first + end) * p.block_groups
                with k.loop(begins, k.minimum(past, p.total_groups)) as group:
                    k.call(p.repair, DirectBox(
                        frame, p.again_words, header, item.n, group.index, 0,
                        p.again_blocks,
                    ))  # fmt: skip


def _transform_inputs(k: Module, p: GroupWords, item: Item, x: Buffer, workspace: Buffer, block: Value, vectors: Value,
                      channels: Value, vector_bytes: int) -> None:  # fmt: skip
    """All lines of some blocks."""
    y, last = axis_words(p.common, p.common.axes - 2), axis_words(p.common, p.common.axes - 1)
    beside = block * p.lanes_used
    panel, near = workspace + p.common.panel, p.near_in.equals(1)
    with k.when(p.near_in.equals(0)):
        _bring(k, p, item, x, panel, beside, channels, vector_bytes)
    start = p.common.x_base + item.n * p.common.x_n + item.g * p.common.x_g + beside * p.common.x_c
    pixels, at = item.extent(p.common.axes - 1) + p.reach, item.origin(p.common.axes - 1)
    head = k.minimum(k.maximum(0 - at, 0), pixels)
    end = k.maximum(k.minimum(last.inp - at, pixels), head)
    first = item.origin(p.common.axes - 2)
    with k.loop(0, p.outer_lines) as line:
        target = workspace + (p.v + line.index * p.v_line)
        with k.when(near):
            offset, inside = line_place(k, p.common, item, line.index, start, 2)
            there = k.select(inside.equals(1), end, head)
            k.call(p.columns_in, ColumnsIn(
                x + (offset + first * y.x_stride + (at + head) * last.x_stride), y.x_stride,
                last.x_stride, p.lanes_used * p.common.x_c, target, p.v_point, p.v_vector, vectors, channels, head,
                there, pixels, 0 - first, k.minimum(y.inp - first, p.down.y_taps),
            ))  # fmt: skip
        with k.when(near, otherwise=True):
            k.call(p.columns_in, ColumnsIn(
                panel + line.index * (p.down.y_taps * p.line_bytes), p.line_bytes, p.vector_bytes, 0,
                target, p.v_point, 0, 1, channels, 0, pixels, pixels, 0, p.down.y_taps,
            ))  # fmt: skip


def _bring(k: Module, p: GroupWords, item: Item, x: Buffer, panel: Buffer, beside: Value, channels: Value,
           vector_bytes: int) -> None:  # fmt: skip
    """Copy the inputs of a block into lines of pixels."""
    words_of_4 = vector("i32", vector_bytes // 4)

    def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
        target = panel + line * p.line_bytes
        zero_words(k, target, (head * vector_bytes) >> 2, words_of_4)
        zero_words(k, target + end * vector_bytes, ((count - end) * vector_bytes) >> 2, words_of_4)
        with k.when(head < end):
            k.call(p.move_in, MoveIn(
                source, axis_words(p.common, p.common.axes - 1).x_stride, p.common.x_c,
                target + head * vector_bytes, p.vector_bytes, p.word_bytes, end - head, channels, p.common.zero_point,
            ))  # fmt: skip

    fill(k, p.common, item, x, beside, put)


def _multiply(k: Module, p: GroupWords, item: Item, workspace: Buffer, block: Value, beside: Value, row: Value) -> None:
    """The products of a block, for a row of the outer axes."""
    line, _, _ = row_place(k, p.common, item, row)
    entries, count = row_entries(k, p.common, p.rows, item, row, 2)
    v = workspace + (p.v + line // p.down.y_taps * p.v_line + beside * p.v_vector)
    sums = workspace + (p.sums + beside * p.sums_vector)
    weights = p.weights + block * p.w_block
    short = item.extent(p.common.axes - 1) < axis_words(p.common, p.common.axes - 1).block
    table = p.tiles + k.select(short, p.table_words * 8, 0)
    with k.loop(0, _points(k, p, item)) as point, k.loop(0, table.count) as tile:
        walk = table.at(tile.index)
        first, times = walk.first * p.vector_bytes, walk.times
        k.call(walk.function, Walk(
            v + (point.index * p.v_point + first), p.vector_bytes, entries, count,
            weights + point.index * p.w_point, sums + (point.index * p.s_point + first), p.vector_bytes,
            workspace, 0, times, p.lanes_used, p.tables.bias, p.tables.scale, p.tables.constants, workspace,
        ))  # fmt: skip


def _lines(k: Module, p: GroupWords, item: Item) -> Value:
    """Lines of outputs."""
    return k.minimum(p.down.places, p.down.out_y - item.first(p.common.axes - 2) * p.down.places)


def _points(k: Module, p: GroupWords, item: Item) -> Value:
    """Points: the one at infinity is that of the last line alone."""
    return p.down.y_taps - k.select(_lines(k, p, item) < p.down.places, 1, 0)


def _back(k: Module, p: GroupWords, item: Item, frame: Frame, workspace: Buffer, block: Value, absolute: Value,
          vectors: Value, channels: Value, row: Value, flag: Buffer) -> None:  # fmt: skip
    """Results of a row of the outer axes."""
    last, pixels, valid = axis_words(p.common, p.common.axes - 1), item.extent(p.common.axes - 1), _lines(k, p, item)
    _, y_row, r_row = row_place(k, p.common, item, row)
    beside = block * p.lanes_used
    y, r = frame.y + (y_row + beside * p.common.y_c), frame.residual + (r_row + beside * p.common.r_c)
    of_block = absolute * p.lanes_used * p.word_bytes
    bias, scale, constants = p.tables.bias + of_block, p.tables.scale + of_block, p.tables.constants
    sums, near = workspace + p.sums, p.near_out.equals(1)
    with k.when(near):
        k.call(p.columns_out, ColumnsOut(
            sums, p.s_point, p.sums_vector, y, p.y_row, last.y_stride, p.lanes_used * p.common.y_c,
            vectors, channels, p.lanes_used, pixels, valid, bias, r, p.r_row, last.r_stride, p.common.r_c, constants,
            flag,
        ))  # fmt: skip
    with k.when(near, otherwise=True):
        out = workspace + p.out
        k.call(p.columns_out, ColumnsOut(
            sums, p.s_point, 0, out, p.out_line, p.vector_bytes, 0, 1, channels, 0, pixels,
            valid, bias, workspace, 0, 0, 0, constants, flag,
        ))  # fmt: skip
        with k.loop(0, valid) as i:
            k.call(p.move_out, MoveOut(
                out + i.index * p.out_line, p.vector_bytes, p.word_bytes, y + i.index * p.y_row,
                last.y_stride, p.common.y_c, pixels, channels, bias, scale, r + i.index * p.r_row, last.r_stride,
                p.common.r_c, constants,
            ))  # fmt: skip


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    p = s.problem
    reason = winograd_rows.applicable(s)
    if reason is not None:
        return reason
    if p.c != p.m:
        return f"needs groups with as many channels out as in, not {p.c // p.groups} and {p.m // p.groups}"
    if p.c // p.groups > lanes(s.target, ARITHMETIC[accumulator_arithmetic(s)]):
        return "a group is wider than a vector"
    return None


def scheme(s: Situation) -> str:
    """The scheme, and the boxes that are done again where a result is not finite: with them the bits change."""
    arith = ARITHMETIC[accumulator_arithmetic(s)]
    return scheme_of([of_boxes(_plan(s, arith, sweep).box) for sweep in sweeps(s.problem)])


def workspace(s: Situation) -> int:
    """Bytes a thread needs."""
    arith = ARITHMETIC[accumulator_arithmetic(s)]
    return max((_plan(s, arith, sweep).workspace for sweep in sweeps(s.problem)), default=0)


def cost(s: Situation) -> dict[str, float]:
    """Cycles: products, transforms and moves."""
    p, arith = s.problem, ARITHMETIC[accumulator_arithmetic(s)]
    group, near, blocks = p.c // p.groups, p.layout == "NHWC", block_count(s, arith)
    most, rates = most_rows(s.target, group), s.rates(arith)
    products = transforms = moves = 0.0
    for sweep in sweeps(p):
        plan = _plan(s, arith, sweep)
        # rows of tiles, the last of which is short
        box_count = sweep[-2].out / SCHEME.m + 0.2
        box_count *= math.prod(-(-sweep[a].out // plan.box[a]) for a in range(len(sweep)) if a != len(sweep) - 2)
        rows, outer_lines = math.prod(plan.box[:-2]), math.prod(h.count for h in plan.held[:-2])
        taps = math.prod(mean_taps(axis) for axis in sweep[:-2]) * sweep[-1].taps
        far, each = 1.2 if outer_lines > 1 else 1.0, 10.0 * s.transforming(arith)
        if near and p.c * p.x_dtype.itemsize % 512 == 0 and plan.box[-1] > 8:
            each += _COLLIDING
        for _, pixels in near_equal(plan.box[-1], most):
            step = tile_cycles(rates, pixels, group) * far
            alone = group / 2 if pixels == 1 else 0.0  # little else to do while its sums are added
            products += box_count * rows * SCHEME.n * (taps * step + 4 + 0.35 * pixels * group + alone)
        products += box_count * rows * SCHEME.n * 20.0
        transforms += box_count * (200.0 + outer_lines * (40 + plan.held[-1].count * each))
        transforms += box_count * rows * (80 + plan.box[-1] * each)
        if not near:
            per_in = 9.0 if planes_collide(p, reading=True) else 7.0
            per_out = 9.0 if planes_collide(p, reading=False) else 5.5
            moves += box_count * outer_lines * SCHEME.n * (40 + plan.held[-1].count * per_in)
            moves += box_count * rows * SCHEME.m * (40 + plan.box[-1] * per_out)
    batch = (p.n or 0) * blocks
    moves = moves * batch + (p.n or 0) * max(0, sum(image_bytes(p)) - _CACHED_BYTES) / _LAST_BYTES
    return {"products": products * batch, "transforms": transforms * batch, "moves": moves}


@dataclass(frozen=True, slots=True)
class _Plan:
    """Sizes of one sweep's boxes, in tiles along the last axis but one, and where things lie."""

    box: tuple[int, ...]
    held: tuple[Lines, ...]
    blocks: int
    line_bytes: int
    panel: int
    v: int
    v_point: int
    sums: int
    s_point: int
    out: int
    out_line: int
    workspace: int


@lru_cache(256)
def _plan(s: Situation, arith: Arithmetic, sweep: Sweep) -> _Plan:
    s = of_one_image(s)  # boxes are what is done again
    whole = tuple(axis.out for axis in (*sweep[:-2], sweep[-1]))
    budget = s.budget(_NEAR_BYTES if len(sweep) == 2 else _BOX_BYTES)

    def sizes(cut: tuple[int, ...]) -> _Plan:
        return _sizes(s, arith, sweep, (*cut[:-1], 1, cut[-1]))

    return sizes(boxes(whole, lambda cut: sizes(cut).workspace, budget))


def _sizes(s: Situation, arith: Arithmetic, sweep: Sweep, box: tuple[int, ...]) -> _Plan:
    total, pixel = block_count(s, arith), s.target.vector_bytes
    outputs = (*box[:-2], SCHEME.m, box[-1])
    held = (*(lines(axis, b) for axis, b in zip(sweep[:-1], outputs[:-1], strict=True)), as_it_lies(sweep[-1], box[-1]))
    outer_lines, line_bytes = math.prod(h.count for h in held[:-2]), odd_lines(held[-1].count * pixel)
    panel = -(-(24 * len(sweep) + 8) // 64) * 64
    v = panel + outer_lines * SCHEME.n * line_bytes
    together = _together(s, arith)
    sums = v + together * outer_lines * SCHEME.n * line_bytes
    s_point = odd_lines(box[-1] * pixel)
    out = sums + together * SCHEME.n * s_point
    end = max(out + SCHEME.m * box[-1] * pixel, panel + again_workspace(s, arith, sweep, outputs))
    blocks = -(-total // -(-total // _MOST_BLOCKS))
    return _Plan(box, held, blocks, line_bytes, panel, v, line_bytes, sums, s_point, out, box[-1] * pixel, end)


def _together(s: Situation, arith: Arithmetic) -> int:
    """Blocks whose columns are transformed side by side."""
    p = s.problem
    whole = p.layout == "NHWC" and p.c % lanes_used(s, arith) == 0
    return min(_TOGETHER, block_count(s, arith)) if whole and p.c * p.x_dtype.itemsize % _SHARED == 0 else 1


def build(r: Request) -> Program:
    """Program of a request: one step per sweep."""
    keep: list[Any] = []
    name, wide = "winograd_groups", r.target.vector_bytes
    address = address_of(r, name, name, Driver, lambda k, name: driver(k, name, wide))
    steps = [_step(r, sweep, address, keep) for sweep in sweeps(r.problem)]
    return Program(tuple(step for step in steps if step.items), workspace(r.situation), tuple(keep))


def _step(r: Request, sweep: Sweep, address: Address[Driver], keep: list[Any]) -> Step:
    p, arith, last, plan = r.problem, r.arith, sweep[-1], _plan(r.situation, r.arith, sweep)
    group, used, blocks = p.c // p.groups, lanes_used(r.situation, arith), block_count(r.situation, arith)
    pixel, v_line, together = r.target.vector_bytes, SCHEME.n * plan.v_point, _together(r.situation, arith)
    move_in, move_out = (
        Move(p.x, arith.accumulator, along_in(r, last, "c")),
        Move(arith.accumulator, p.y, along_out(r, last, "c"), r.epilogue),
    )
    near_in, near_out = move_in.along == "cc", move_out.along == "cc" and r.epilogue.is_cheap
    beside = together if near_in and near_out else 1
    taps = math.prod(axis.taps for axis in sweep[:-2]) * last.taps
    outer = [0]
    for h in plan.held[:-2]:
        outer = [o * h.count + t for o in outer for t in h.start]
    of_tap = group * pixel
    entries = [
        [v for t, at in enumerate(plan.held[-1].start)
         for v in (o * v_line + at * pixel, (tap * last.taps + t) * of_tap)]
        for tap, o in enumerate(outer)
    ]  # fmt: skip
    functions, most = tile_functions(r, of_sums(arith.name), group), most_rows(r.target, group)
    tables = [walks_of(functions, pixels, most) for pixels in (plan.box[-1], last.out % plan.box[-1])]
    key = tuple((a.taps, a.first_tap, a.tap_step) for a in sweep)
    packed = r.packed(
        ("winograd_groups", arith.name, lanes(r.target, arith), key),
        lambda: _packed_weights(r.weights(sweep), last.taps, lanes(r.target, arith)),
    )
    blocked = replace(r, situation=replace(r.situation, problem=of_blocks(p, used, blocks)))
    common, items = boxed_words(
        blocked, in_tiles(sweep), plan.box, plan.held, block_groups=plan.blocks, panel=plan.panel
    )
    y_row, r_row = (0 if o is None else o.spatial[-2] * sweep[-2].out_step for o in (r.y, r.residual))
    columns_in = _columns(r, move_in if near_in else Move(arith.name, arith.accumulator, "cc"), beside > 1, ColumnsIn)
    columns_out = _columns(
        r, move_out if near_out else Move(arith.accumulator, arith.name, "cc", Epilogue()), beside > 1, ColumnsOut
    )
    values = GroupWords(
        common=common, lanes_used=used, total_channels=p.c, total_blocks=blocks, item_blocks=plan.blocks,
        block_groups=used // group, total_groups=p.groups, word_bytes=arith.bytes, vector_bytes=pixel,
        reach=plan.held[-1].count - plan.box[-1], near_in=int(near_in), near_out=int(near_out),
        down=TilesDown(SCHEME.m, sweep[-2].out, SCHEME.n), outer_lines=math.prod(h.count for h in plan.held[:-2]),
        line_bytes=plan.line_bytes, move_in=None if near_in else move_in_address(r, move_in), columns_in=columns_in,
        together=together, beside=beside, v=plan.v, v_point=plan.v_point, v_line=v_line,
        v_vector=math.prod(h.count for h in plan.held[:-2]) * v_line,
        rows=row_lists(sweep[:-2], entries, ENTRY_WORDS), tiles=tables,
        table_words=counted_words(WalkWords, tables), weights=packed, w_block=SCHEME.n * taps * of_tap,
        w_point=taps * of_tap, sums=plan.sums, s_point=plan.s_point, sums_vector=SCHEME.n * plan.s_point,
        columns_out=columns_out, y_row=y_row, r_row=r_row, out=plan.out, out_line=plan.out_line,
        move_out=None if near_out else move_out_address(r, move_out), tables=epilogue_tables(r), again=plan.panel,
        again_words=direct.again_words(r, sweep, (*plan.box[:-2], SCHEME.m, plan.box[-1]), 1), again_blocks=1,
        repair=direct.repair_address(r),
    )  # fmt: skip
    return Step(address, filled(values, keep), items)


Columns = TypeVar("Columns", ColumnsIn, ColumnsOut)


def _columns(r: Request, spec: Move, several: bool, signature: type[Columns]) -> Address[Columns]:
    """Address of the transform of a row of tiles, one way or the other."""
    lane, f16c = lanes(r.target, r.arith), r.target.converts_f16
    make = columns_in if spec.epilogue is None else columns_out

    label = f"columns {SCHEME} {spec} {lane}{' several' * several}"
    return address_of(
        r, label, "columns", signature, lambda k, name: make(k, name, spec, SCHEME, lane, several=several, f16c=f16c)
    )


def _packed_weights(w: NDArray[Any], wide: int, lane: int) -> NDArray[Any]:
    """Weights (groups, m, c, taps) as [block][point][tap not transformed][distance][lane].

    Transformed in float64 and rounded once.
    """
    groups, m, c, taps = w.shape
    inner = w.astype(np.float64).reshape(groups, m, c, taps // (SCHEME.r * wide), SCHEME.r, wide)
    made = np.einsum("iy,gmctyx->gmcitx", SCHEME.weights, inner).reshape(groups, m, c, -1)
    return packed_weights(made.astype(w.dtype), lane)
