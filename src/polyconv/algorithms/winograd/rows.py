"""Winograd convolution along columns, with the pixels of a row in the lanes: groups of few channels fill no vector.

Tiles are 4 outputs below each other, by F(4,3); taps along rows and further axes are products of their own, summed in
the transform domain.  A box of a group is transformed, multiplied point by point and transformed back; where pixels lie
together the transforms read the inputs and write the results as they lie, else planes are brought and taken away.

Cost: half the products of a direct sum, a few additions for each input and output.  Error: window bound, k eps
max|x| sum|w| over a tile's inputs; admitted in accuracy "fast" only.  Groups of a box with an output that is not finite
are done again by the direct algorithm.  Sources: as ``channels``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms import packing
from polyconv.algorithms.dense import direct
from polyconv.algorithms.dense.driver import DirectBox, DirectWords
from polyconv.algorithms.dense.plan import again_workspace
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
    is_fusible,
    move_out_address,
    near_equal,
    of_one_image,
    planes_collide,
    row_lists,
    scheme_of,
    transform_refusal,
)
from polyconv.algorithms.sweep import Axis, Lines, Sweep, lines, mean_taps, sweeps
from polyconv.dtypes import DTYPES
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, lanes, pixel_tiles
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import Epilogue, Move, MoveOut, zero_words
from polyconv.kernels.objects import kernel
from polyconv.kernels.record import Callees, Function, Link, Memory, Record, Word, filled, word_count, words, words_of
from polyconv.kernels.rows import (
    ENTRY_WORDS,
    RowsApart,
    RowsIn,
    RowsMultiply,
    RowsOut,
    rows_apart,
    rows_in,
    rows_multiply,
    rows_out,
)
from polyconv.kernels.signature import Address
from polyconv.kernels.transform import Scheme
from polyconv.problem.problem import Problem
from polyconv.runtime.arrays import aligned
from polyconv.target import Target

__all__ = [
    "SCHEME", "again_header", "applicable", "as_it_lies", "at_least", "bound", "build", "cost", "in_tiles", "odd_lines",
    "preparing", "scheme", "workspace",
]  # fmt: skip

SCHEME = Scheme(4, 3, (5 / 8, 3 / 2))

_LEAST_TERMS = 8
"""Products a point must sum: shorter direct sums are more accurate than twice its error.  Measured rms errors, as
multiples of that of a direct f32 sum, for 3x3 kernels of 2 / 3 / 4 / 8 / 16 channels: 2.1 / 1.9 / 1.7 / 1.5 / 1.4."""
_NEAR_BYTES, _BOX_BYTES = 96 << 10, 768 << 10
"""Workspace of a thread where that takes a row of tiles at least; else, or where lines of further axes or planes are
held as well, what a second-level cache holds beside the weights."""
_STREAMED, _HELD_BYTES = 16.0, 512 << 10
"""Bytes a cycle at which weights come from the last cache, and how many stay in a nearer one."""
_SLOWER, _FAR_LINES = 1.04, 1.06
"""Measured over counted cycles of the products, and again where transformed lines of further axes are read."""
_PASS, _FAR_PASS, _NEAR_IMAGE, _FEW_PLANES = 14.0, 24.0, 1 << 20, 16
"""Cycles in which a vector is transformed: where input and result stay in a second-level cache or a group has few
planes, and where not."""
_CACHED_BYTES, _LAST_BYTES, _ASKED_BYTES = 6 << 20, 3.0, 8.0
"""Of input and result, those beyond this come and go between the last cache and the transforms; bytes a cycle, and
where they are asked for."""
_COLLIDING, _SET_PLANES = 20.0, 32
"""Cycles more that a vector takes where so many planes on both sides lie in the same sets of a cache."""
_FAR_BYTES = 8 << 20
"""Results beyond this are asked for before they are written.  Measured: 4 to 16 % off; with less, 3 % lost."""
_MOST_CHANNELS = 64
"""Channels of a group: with more, lanes of channels are full and ``winograd`` has less products."""


class TilesDown(Record):
    """Tiles of the axis before the last: lines of outputs with a place in one, all there are, and lines of inputs."""

    places: Word
    out_y: Word
    y_taps: Word


class TileWords(Record):
    """A tile of output channels: its first, bytes before its weights, and of them at a point.

    Behind these stand its functions of 1, 2, ... vectors.
    """

    first: Word
    weights: Word
    point: Word


class RowWords(Record):
    """The driver's words."""

    common: Common
    total_groups: Word
    item_groups: Word
    group_in: Word
    group_out: Word
    word_bytes: Word
    lanes: Word
    pitch: Word
    reach: Word
    outer_lines: Word
    near_in: Word
    near_out: Word
    down: TilesDown
    y_lines: Word
    channel_bytes: Word
    move_in: Function[RowsApart]
    transform_in: Function[RowsIn]
    v: Word
    v_point: Word
    v_line: Word
    v_channel: Word
    rows: RowLists
    most_vectors: Word
    vector_bytes: Word
    tiles: Memory
    tile_count: Word
    tile_words: Word
    weights: Memory
    w_group: Word
    sums: Word
    s_point: Word
    s_channel: Word
    points: Word
    transform_out: Function[RowsOut]
    y_row: Word
    r_row: Word
    out: Word
    out_line: Word
    out_row: Word
    out_channel: Word
    move_out: Function[MoveOut]
    tables: EpilogueTables
    flags: Word
    again: Word
    again_words: Link[DirectWords]
    again_blocks: Word
    repair: Function[DirectBox]


def driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = RowWords.read(k, given.words)
        item = decode(k, p.common, given.item, workspace)
        first = item.g * p.item_groups
        groups = k.minimum(p.item_groups, p.total_groups - first)
        with k.when(p.near_in.equals(0)):
            _bring(k, p, item, frame.x, workspace + p.common.panel, groups, vector_bytes)
        rows = box_rows(k, p.common, item, 2)
        with k.loop(0, groups) as group:
            flag = workspace + (p.flags + group.index * 8)
            k.store(k.constant(INT, 0), flag, 8)
            _transform_inputs(k, p, item, frame.x, workspace, group.index)
            with k.loop(0, rows) as row:
                _multiply(k, p, item, workspace, first + group.index, row.index)
                _back(k, p, item, frame, workspace, group.index, first + group.index, row.index, flag)
        with k.when(p.near_out.equals(0)):
            _take_away(k, p, item, frame, workspace, first, groups, rows)
        with k.loop(0, groups) as group:
            found = k.word(workspace + (p.flags + group.index * 8)) > 0
            with k.when(found):
                header = again_header(k, p.common, p.down, item, workspace, workspace + p.again)
                k.call(p.repair, DirectBox(
                    frame, p.again_words, header, item.n, first + group.index, 0,
                    p.again_blocks,
                ))  # fmt: skip


def _bring(k: Module, p: RowWords, item: Item, x: Buffer, panel: Buffer, groups: Value, vector_bytes: int) -> None:
    """Copy the inputs of a box into planes."""
    channels = groups * p.group_in

    def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
        target = panel + line * (p.pitch * p.word_bytes)
        with k.when(head < end):
            k.call(p.move_in, RowsApart(
                source, axis_words(p.common, p.common.axes - 1).x_stride, p.common.x_c, target, p.channel_bytes,
                head, end, count, channels,
            ))  # fmt: skip
        with k.when(head < end, otherwise=True), k.loop(0, channels) as c:
            place = target + c.index * p.channel_bytes
            zero_words(k, place, p.pitch * p.word_bytes >> 2, vector("i32", vector_bytes // 4))

    fill(k, p.common, item, x, k.constant(INT, 0), put)


def _transform_inputs(k: Module, p: RowWords, item: Item, x: Buffer, workspace: Buffer, group: Value) -> None:
    """All lines of a group."""
    y, last = axis_words(p.common, p.common.axes - 2), axis_words(p.common, p.common.axes - 1)
    start = p.common.x_base + item.n * p.common.x_n + item.g * p.common.x_g + group * p.group_in * p.common.x_c
    pixels, at = item.extent(p.common.axes - 1) + p.reach, item.origin(p.common.axes - 1)
    head = k.minimum(k.maximum(0 - at, 0), pixels)
    end = k.maximum(k.minimum(last.inp - at, pixels), head)
    with k.loop(0, p.outer_lines) as line:
        offset, inside = line_place(k, p.common, item, line.index, start, 2)
        with k.loop(0, item.extent(p.common.axes - 2)) as t:
            target = workspace + (p.v + line.index * p.v_line + t.index * p.pitch * p.word_bytes)
            first = item.origin(p.common.axes - 2) + t.index * p.down.places
            bottom = k.select(inside.equals(1), k.minimum(y.inp - first, p.down.y_taps), 0)
            with k.when(p.near_in.equals(1)):
                k.call(p.transform_in, RowsIn(
                    x + (offset + first * y.x_stride + (at + head) * last.x_stride),
                    y.x_stride, p.common.x_c, target, p.v_point, p.v_channel, p.group_in, head, end, pixels, 0 - first,
                    bottom,
                ))  # fmt: skip
            with k.when(p.near_in.equals(0)):
                lines_before = line.index * p.y_lines + t.index * p.down.places
                panel = workspace + (p.common.panel + group * p.group_in * p.channel_bytes)
                k.call(p.transform_in, RowsIn(
                    panel + lines_before * (p.pitch * p.word_bytes), p.pitch * p.word_bytes,
                    p.channel_bytes, target, p.v_point, p.v_channel, p.group_in, 0, pixels, pixels, 0, p.down.y_taps,
                ))  # fmt: skip


def _multiply(k: Module, p: RowWords, item: Item, workspace: Buffer, group: Value, row: Value) -> None:
    """The products of a group, for a row of the outer axes."""
    tall = item.extent(p.common.axes - 2)
    line, _, _ = row_place(k, p.common, item, row * tall)
    entries, count = row_entries(k, p.common, p.rows, item, row, 2)
    v = workspace + (p.v + line // p.y_lines * p.v_line)
    weights = p.weights + group * p.w_group
    vectors = ((tall - 1) * p.pitch + item.extent(p.common.axes - 1) + p.lanes - 1) // p.lanes
    parts = (vectors + p.most_vectors - 1) // p.most_vectors
    with k.loop(0, parts) as part, k.loop(0, p.tile_count) as tile:
        low = part.index * vectors // parts
        here = (part.index + 1) * vectors // parts - low
        place = p.tiles + tile.index * p.tile_words * 8
        of_tile, functions = TileWords.read(k, place), Callees(k, place, (RowsMultiply,))
        k.call(functions.at_word(here * 2 + 1), RowsMultiply(
            v + low * p.vector_bytes, p.v_point, entries, count, weights + of_tile.weights, of_tile.point,
            workspace + (p.sums + of_tile.first * p.s_channel + low * p.vector_bytes), p.s_point, p.s_channel, p.points,
        ))  # fmt: skip


def _back(k: Module, p: RowWords, item: Item, frame: Frame, workspace: Buffer, group: Value, absolute: Value,
          row: Value, flag: Buffer) -> None:  # fmt: skip
    """Results of a row of the outer axes, or planes of them."""
    tall, pixels = item.extent(p.common.axes - 2), item.extent(p.common.axes - 1)
    channel = absolute * p.group_out
    bias = p.tables.bias + channel * p.word_bytes
    beside = group * p.group_out
    with k.loop(0, tall) as t:
        _, y_row, r_row = row_place(k, p.common, item, row * tall + t.index)
        sums = workspace + (p.sums + t.index * p.pitch * p.word_bytes)
        valid = k.minimum(p.down.places, p.down.out_y - (item.first(p.common.axes - 2) + t.index) * p.down.places)
        given = sums, p.s_point, p.s_channel
        with k.when(p.near_out.equals(1)):
            k.call(p.transform_out, RowsOut(
                *given, frame.y + (y_row + beside * p.common.y_c), p.y_row, p.common.y_c,
                p.group_out, pixels, valid, bias, frame.residual + (r_row + beside * p.common.r_c), p.r_row,
                p.common.r_c, p.tables.constants, flag,
            ))  # fmt: skip
        with k.when(p.near_out.equals(0)):
            place = p.out + beside * p.out_channel + row * p.out_row + t.index * p.down.places * p.out_line
            k.call(p.transform_out, RowsOut(
                *given, workspace + place, p.out_line, p.out_channel, p.group_out, pixels,
                valid, bias, workspace, 0, 0, p.tables.constants, flag,
            ))  # fmt: skip


def _take_away(k: Module, p: RowWords, item: Item, frame: Frame, workspace: Buffer, first: Value, groups: Value,
               rows: Value) -> None:  # fmt: skip
    """Planes of results to their places."""
    last = axis_words(p.common, p.common.axes - 1)
    tall, channel = item.extent(p.common.axes - 2), first * p.group_out
    with k.loop(0, rows) as row, k.loop(0, tall) as t:
        _, y_row, r_row = row_place(k, p.common, item, row.index * tall + t.index)
        valid = k.minimum(p.down.places, p.down.out_y - (item.first(p.common.axes - 2) + t.index) * p.down.places)
        with k.loop(0, valid) as i:
            line = t.index * p.down.places + i.index
            k.call(p.move_out, MoveOut(
                workspace + (p.out + row.index * p.out_row + line * p.out_line), p.word_bytes,
                p.out_channel, frame.y + (y_row + i.index * p.y_row), last.y_stride, p.common.y_c,
                item.extent(p.common.axes - 1), groups * p.group_out, p.tables.bias + channel * p.word_bytes,
                p.tables.scale, frame.residual + (r_row + i.index * p.r_row), last.r_stride, p.common.r_c,
                p.tables.constants,
            ))  # fmt: skip


def again_header(k: Module, p: Common, down: TilesDown, item: Item, workspace: Buffer, header: Buffer) -> Buffer:
    """Write the box in outputs instead of tiles, for the direct algorithm."""
    with k.loop(0, p.axes * 3) as word:
        k.store(k.word(workspace, word.index), header + word.index * 8, 8)
    begins = item.first(p.axes - 2) * down.places
    place = header + (p.axes - 2) * 24
    k.store(k.minimum(item.extent(p.axes - 2) * down.places, down.out_y - begins), place + 8, 8)
    k.store(begins, place + 16, 8)
    return header


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    reason = transform_refusal(s)
    if reason is not None:
        return reason
    p = s.problem
    if not (0 < p.c // p.groups <= _MOST_CHANNELS and 0 < p.m // p.groups <= _MOST_CHANNELS):
        return f"takes groups of up to {_MOST_CHANNELS} channels on both sides"
    if p.c // p.groups * math.prod(p.k) < _LEAST_TERMS * SCHEME.r:
        return f"sums of less than {_LEAST_TERMS * SCHEME.r} products are more accurate than it is"
    if not all(_admits(sweep) for sweep in sweeps(p)):
        return "needs 3 taps without stride or dilation along the last axis but one, and stride 1 along the last"
    return None


def _admits(sweep: Sweep) -> bool:
    if len(sweep) < 2 or not all(axis.taps and axis.out for axis in sweep):
        return False
    y, x = sweep[-2:]
    return (y.taps, y.stride, y.dilation, x.stride) == (3, 1, 1, 1) and y.out > 1


def bound(s: Situation) -> tuple[str, float]:
    """Window bound: the additions of a point and of the transforms, times how far the transforms enlarge terms."""
    p, eps = s.problem, DTYPES[accumulator_arithmetic(s)].eps
    products = p.c // p.groups * math.prod(p.k)
    transformed = (products // SCHEME.r + 2 * SCHEME.n + 4) * eps * SCHEME.growth
    return "window", max((products + 4) * eps, transformed)


def scheme(s: Situation) -> str:
    """The scheme, and the boxes that are done again where a result is not finite: with them the bits change."""
    arith, near = ARITHMETIC[accumulator_arithmetic(s)], s.problem.layout == "NCHW" and is_fusible(s.problem)
    return scheme_of([of_boxes(_plan(s, arith, sweep, near).box) for sweep in sweeps(s.problem)])


def of_boxes(box: tuple[int, ...]) -> str:
    """Name of the scheme with boxes of so many rows of tiles and pixels."""
    return f"F({SCHEME.m},{SCHEME.r}) boxes {'x'.join(map(str, box))}"


def preparing(s: Situation) -> float:
    """Cycles in which a program is made and the weights are transformed, in NumPy."""
    p = s.problem
    size = math.prod(e or 0 for e in p.w_shape) * p.w_dtype.itemsize
    return packing.cycles(s) + 1.5 * packing.TABLES_CYCLES + 45.0 * size


def workspace(s: Situation) -> int:
    """Bytes a thread needs."""
    arith = ARITHMETIC[accumulator_arithmetic(s)]
    workspaces = (_plan(s, arith, sweep, near).workspace for sweep in sweeps(s.problem) for near in (False, True))
    return max(workspaces, default=0)


def cost(s: Situation) -> dict[str, float]:
    """Cycles: products, transforms and moves."""
    p, arith = s.problem, ARITHMETIC[accumulator_arithmetic(s)]
    group_in, group_out, near = p.c // p.groups, p.m // p.groups, p.layout == "NCHW"
    lane, slower = lanes(s.target, arith), s.rates(arith).slower
    read, written = image_bytes(p)
    transforming = s.transforming(arith)
    each = _PASS * transforming
    if near and read + written > _NEAR_IMAGE and group_in + group_out > _FEW_PLANES:
        collides = planes_collide(p, reading=True) or planes_collide(p, reading=False)
        each = _FAR_PASS * transforming + (_COLLIDING if collides and min(group_in, group_out) >= _SET_PLANES else 0.0)
    products = transforms = moves = 0.0
    for sweep in sweeps(p):
        plan = _plan(s, arith, sweep, near)
        # boxes, the last ones as the part of a box that they are
        box_count = math.prod(axis.out / b for axis, b in zip(in_tiles(sweep), plan.box, strict=True))
        rows, outer_lines, tall = math.prod(plan.box[:-2]), math.prod(h.count for h in plan.held[:-2]), plan.box[-2]
        taps = math.prod(mean_taps(axis) for axis in sweep[:-2]) * sweep[-1].taps
        times = (p.n or 0) * p.groups * box_count
        cycles = (_FAR_LINES if outer_lines > 1 else 1.0) * taps * group_in * (group_out / 2 + 0.6)
        products += _SLOWER * slower * times * rows * plan.vectors * SCHEME.n * (cycles + group_out + 4)
        weights = p.c * group_out * math.prod(axis.taps for axis in sweep) * SCHEME.n // SCHEME.r * arith.bytes
        products += (p.n or 0) * weights / _STREAMED if weights > _HELD_BYTES else 0.0
        across_in, across_out = -(-plan.pitch // lane), -(-plan.box[-1] // lane)
        transforms += times * tall * (outer_lines * across_in * group_in + rows * across_out * group_out) * each
        transforms += times * tall * (outer_lines + rows) * 60
        if not near:
            lines_in = outer_lines * (tall * SCHEME.m + 2)
            moves += times * lines_in * across_in * group_in / lane * (230 if read > 2 * _CACHED_BYTES else 110)
            moves += times * rows * tall * SCHEME.m * across_out * group_out / lane * 140
        moves += times * 400 / plan.groups
    moves += (p.n or 0) * max(0, read + written - _CACHED_BYTES) / (_ASKED_BYTES if near else _LAST_BYTES)
    return {"products": products, "transforms": transforms, "moves": moves}


def at_least(s: Situation) -> float:
    """Cycles that products and transforms take, whatever the boxes."""
    p, arith = s.problem, ARITHMETIC[accumulator_arithmetic(s)]
    group_in, group_out = p.c // p.groups, p.m // p.groups
    if group_in == 0 or not all(_admits(sweep) for sweep in sweeps(p)):
        return math.inf
    total = 0.0
    for sweep in sweeps(p):
        taps = math.prod(mean_taps(axis) for axis in sweep[:-2]) * sweep[-1].taps
        cycles = taps * group_in * (group_out / 2 + 0.6) + group_out + 4
        cycles = _SLOWER * s.rates(arith).slower * SCHEME.n * cycles + _PASS * s.transforming(arith) * group_out
        total += math.prod(axis.out for axis in in_tiles(sweep)) * cycles
    return total / lanes(s.target, arith) * (p.n or 0) * p.groups


@dataclass(frozen=True, slots=True)
class _Plan:
    """Sizes of one sweep's boxes, in tiles along the last axis but one, and where things lie."""

    box: tuple[int, ...]
    held: tuple[Lines, ...]
    groups: int
    pitch: int
    vectors: int
    most_vectors: int
    heights: tuple[tuple[int, int], ...]
    channel_bytes: int
    panel: int
    v: int
    v_point: int
    v_channel: int
    sums: int
    s_point: int
    out: int
    out_line: int
    out_channel: int
    flags: int
    workspace: int


def in_tiles(sweep: Sweep) -> Sweep:
    """The sweep with tiles for outputs along the last axis but one."""
    y = sweep[-2]
    tiles = replace(y, out=-(-y.out // SCHEME.m), taps=SCHEME.n, stride=SCHEME.m, out_step=y.out_step * SCHEME.m)
    return (*sweep[:-2], tiles, sweep[-1])


def _item_groups(p: Problem, lane: int) -> int:
    """Groups of an item: as many as fill vectors of channels well, which moves transpose."""
    group = min(p.c, p.m) // p.groups
    most = max(1, min(p.groups, 2 * lane // group))
    return max(range(1, most + 1), key=lambda n: (round(n * group / (-(-n * group // lane) * lane), 1), -n))


def _tile(target: Target, outputs: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """Heights of tiles of output channels, and most vectors of each."""
    sizes = pixel_tiles(target)
    heights = tuple(near_equal(outputs, max(sizes)))
    most = max(height for _, height in heights)
    return heights, next(sizes[n] for n in sorted(sizes) if n >= most)


@lru_cache(512)
def _plan(s: Situation, arith: Arithmetic, sweep: Sweep, near: bool) -> _Plan:
    """The plan of a sweep; ``near`` if pixels lie together on both sides."""
    s = of_one_image(s)  # boxes are what is done again
    tiled = in_tiles(sweep)
    order = (len(tiled) - 2, *range(len(tiled) - 2), len(tiled) - 1)  # rows of tiles are cut first

    def sizes(cut: tuple[int, ...]) -> _Plan:
        box = dict(zip(order, cut, strict=True))
        return _sizes(s, arith, sweep, tuple(box[a] for a in range(len(cut))), near)

    whole = [tiled[a].out for a in order]
    fits = near and len(sweep) == 2 and sizes((1, *whole[1:])).workspace <= _NEAR_BYTES
    budget = s.budget(_NEAR_BYTES if fits else _BOX_BYTES)
    return sizes(boxes(whole, lambda cut: sizes(cut).workspace, budget))


def _sizes(s: Situation, arith: Arithmetic, sweep: Sweep, box: tuple[int, ...], near: bool) -> _Plan:
    p, lane = s.problem, lanes(s.target, arith)
    group_in, group_out = p.c // p.groups, p.m // p.groups
    groups = 1 if near else _item_groups(p, lane)
    outputs = (*box[:-2], box[-2] * SCHEME.m, box[-1])
    outer = (lines(axis, b) for axis, b in zip(sweep[:-1], outputs[:-1], strict=True))
    held = (*outer, as_it_lies(sweep[-1], box[-1]))
    vector_bytes = lane * arith.bytes
    pitch = held[-1].count
    outer_lines, rows = math.prod(h.count for h in held[:-2]), math.prod(box[:-2])
    whole = -(-pitch // lane) * lane  # written by whole vectors
    channel_bytes = 0 if near else odd_lines((outer_lines * held[-2].count * pitch + whole) * arith.bytes)
    channels = -(-groups * group_in // lane) * lane  # squares of pixels and channels come whole
    vectors = -(-((box[-2] - 1) * pitch + box[-1]) // lane)
    heights, most_vectors = _tile(s.target, group_out)
    most_vectors = min(most_vectors, vectors)
    v_channel = (box[-2] - 1) * pitch * arith.bytes + (whole + 2 * lane) * arith.bytes
    v_channel = -(-v_channel // 64) * 64
    v_point = odd_lines(group_in * v_channel)
    s_point = odd_lines(group_out * vectors * vector_bytes)
    out_line = box[-1] * arith.bytes
    out_channel = 0 if near else odd_lines(rows * box[-2] * SCHEME.m * out_line + vector_bytes)
    panel = -(-(24 * len(sweep)) // 64) * 64
    v = panel + channels * channel_bytes
    sums = v + outer_lines * SCHEME.n * v_point
    out = sums + SCHEME.n * s_point
    flags = max(out + groups * group_out * out_channel, panel + again_workspace(s, arith, sweep, outputs))
    return _Plan(
        box, held, groups, pitch, vectors, most_vectors, heights, channel_bytes, panel, v, v_point, v_channel, sums,
        s_point, out, out_line, out_channel, flags, flags + 8 * groups,
    )  # fmt: skip


def as_it_lies(axis: Axis, pixels: int) -> Lines:
    """All input positions between the first and the last that some outputs of an axis of stride 1 need."""
    count = pixels + (axis.taps - 1) * axis.dilation
    return Lines(tuple(range(count)), ((0, count, 0),), tuple(t * axis.dilation for t in range(axis.taps)))


def odd_lines(size: int) -> int:
    """At least so many bytes, in an odd number of cache lines: what lies so far apart shares no set."""
    return (-(-size // 64) | 1) * 64


def build(r: Request) -> Program:
    """Program of a request: one step per sweep."""
    keep: list[Any] = []
    name, wide = "winograd_rows", r.target.vector_bytes
    address = address_of(r, name, name, Driver, lambda k, name: driver(k, name, wide))
    steps = [_step(r, sweep, address, keep) for sweep in sweeps(r.problem)]
    return Program(tuple(step for step in steps if step.items), workspace(r.situation), tuple(keep))


def _step(r: Request, sweep: Sweep, address: Address[Driver], keep: list[Any]) -> Step:
    p, arith, last = r.problem, r.arith, sweep[-1]
    move_in, move_out = (
        Move(p.x, arith.accumulator, along_in(r, last, "p")),
        Move(arith.accumulator, p.y, along_out(r, last, "p"), r.epilogue),
    )
    near = move_in.along == move_out.along == "pp" and r.epilogue.is_cheap
    plan, lane = _plan(r.situation, arith, sweep, near), lanes(r.target, arith)
    group_in, group_out = p.c // p.groups, p.m // p.groups
    vector_bytes, v_line = lane * arith.bytes, SCHEME.n * plan.v_point
    taps = math.prod(axis.taps for axis in sweep[:-2]) * last.taps
    outer = [0]
    for h in plan.held[:-2]:
        outer = [o * h.count + t for o in outer for t in h.start]
    entries = [
        [v for t, pixel in enumerate(plan.held[-1].start) for c in range(group_in)
         for v in (o * v_line + c * plan.v_channel + pixel * arith.bytes, (tap * last.taps + t) * group_in + c)]
        for tap, o in enumerate(outer)
    ]  # fmt: skip
    of_output = taps * group_in * arith.bytes  # bytes of weights of an output channel at a point
    tiles: list[int] = []
    for first, height in plan.heights:
        tiles += words_of(TileWords(first, SCHEME.n * first * of_output, height * of_output))
        tiles += (v for f in _functions(r, height)[: plan.most_vectors] for v in (f, 0))
    key = tuple((a.taps, a.first_tap, a.tap_step) for a in sweep)
    packed = r.packed(
        ("winograd_rows", arith.name, plan.heights, key),
        lambda: _packed_weights(r.weights(sweep), last.taps, plan.heights),
    )
    y_row, r_row = (0 if o is None else o.spatial[-2] * sweep[-2].out_step for o in (r.y, r.residual))
    outputs = (*plan.box[:-2], plan.box[-2] * SCHEME.m, plan.box[-1])
    again_vectors = min(-(-group_out // lane), 2)
    asks_in, asks_out = (
        (p.n or 0) * size > r.situation.near(held)
        for size, held in zip(image_bytes(p), (_NEAR_IMAGE, _FAR_BYTES), strict=True)
    )
    common, items = boxed_words(
        r, in_tiles(sweep), plan.box, plan.held, block_groups=plan.groups, panel=plan.panel
    )
    values = RowWords(
        common=common, total_groups=p.groups, item_groups=plan.groups, group_in=group_in, group_out=group_out,
        word_bytes=arith.bytes, lanes=lane, pitch=plan.pitch, reach=plan.pitch - plan.box[-1],
        outer_lines=math.prod(h.count for h in plan.held[:-2]), near_in=int(near), near_out=int(near),
        down=TilesDown(SCHEME.m, sweep[-2].out, SCHEME.n), y_lines=plan.held[-2].count,
        channel_bytes=plan.channel_bytes, move_in=None if near else _apart(r, move_in),
        transform_in=_row(r, move_in, RowsIn, asks=asks_in) if near
        else _row(r, Move(arith.name, arith.accumulator, "pp"), RowsIn),
        v=plan.v, v_point=plan.v_point, v_line=v_line, v_channel=plan.v_channel,
        rows=row_lists(sweep[:-2], entries, ENTRY_WORDS), most_vectors=plan.most_vectors, vector_bytes=vector_bytes,
        tiles=words(tiles), tile_count=len(plan.heights),
        tile_words=word_count(TileWords) + 2 * plan.most_vectors, weights=packed,
        w_group=SCHEME.n * group_out * of_output, sums=plan.sums, s_point=plan.s_point,
        s_channel=plan.vectors * vector_bytes, points=SCHEME.n,
        transform_out=_row(r, move_out, RowsOut, asks=asks_out) if near
        else _row(r, Move(arith.accumulator, arith.name, "pp", Epilogue()), RowsOut),
        y_row=y_row, r_row=r_row, out=plan.out, out_line=plan.out_line,
        out_row=plan.box[-2] * SCHEME.m * plan.out_line, out_channel=plan.out_channel,
        move_out=None if near else move_out_address(r, move_out), tables=epilogue_tables(r), flags=plan.flags,
        again=plan.panel, again_words=direct.again_words(r, sweep, outputs, again_vectors),
        again_blocks=-(-group_out // (again_vectors * lane)), repair=direct.repair_address(r),
    )  # fmt: skip
    return Step(address, filled(values, keep), items)


Way = TypeVar("Way", RowsIn, RowsOut)


def _row(r: Request, spec: Move, signature: type[Way], *, asks: bool = False) -> Address[Way]:
    """Address of the transform of a row of tiles, one way or the other."""
    lane, f16c = lanes(r.target, r.arith), r.target.converts_f16
    names = ("row", "asking")
    transform = rows_in if spec.epilogue is None else rows_out

    def build(k: Module) -> None:
        for name in names:  # both together: a layer that sees images of many sizes compiles once
            transform(k, name, spec, SCHEME, lane, f16c=f16c, asks=name == "asking")

    functions = dict.fromkeys(names, signature)
    return kernel(f"winograd_rows {SCHEME} {spec} {lane}", functions, build, r.target, check=r.check)[names[asks]]


def _apart(r: Request, spec: Move) -> Address[RowsApart]:
    """Address of the way of a row into planes where its pixels lie apart."""
    lane, f16c = lanes(r.target, r.arith), r.target.converts_f16
    spec = replace(spec, along="cp" if spec.along == "cp" else "any")

    def make(k: Module, name: str) -> None:
        rows_apart(k, name, spec, lane, f16c=f16c)

    return address_of(r, f"rows apart {spec} {lane}", "row", RowsApart, make)


def _functions(r: Request, height: int) -> list[Address[RowsMultiply]]:
    """Addresses of the products of so many output channels by 1, 2, ... vectors."""
    element, lane = r.arith.accumulator, lanes(r.target, r.arith)
    _, most = _tile(r.target, r.problem.m // r.problem.groups)
    names = {f"multiply{vectors}": vectors for vectors in range(1, most + 1)}

    def build(k: Module) -> None:
        for name, vectors in names.items():
            rows_multiply(k, name, element, lane, height, vectors)

    label = f"winograd_rows {element} {lane} {height} {most}"
    found = kernel(label, dict.fromkeys(names, RowsMultiply), build, r.target, check=r.check)
    return [found[name] for name in names]


def _packed_weights(w: NDArray[Any], wide: int, heights: tuple[tuple[int, int], ...]) -> NDArray[Any]:
    """Weights (groups, m, c, taps) as they stream: [group][tile][point][tap not transformed][channel][output].

    Transformed in float64 and rounded once.
    """
    groups, m, c, taps = w.shape
    inner = w.astype(np.float64).reshape(groups, m, c, taps // (SCHEME.r * wide), SCHEME.r, wide)
    made = np.einsum("iy,gmctyx->gitxcm", SCHEME.weights, inner).reshape(groups, SCHEME.n, -1, m)
    packed = aligned((groups, made[0].size), w.dtype)
    for first, height in heights:
        begin = first * made[0, ..., 0].size
        part = made[..., first : first + height].reshape(groups, -1)
        packed[:, begin : begin + part.shape[1]] = part
    return packed
