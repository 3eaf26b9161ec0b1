"""Fused Winograd convolution: kernels of 2 to 5 taps a stride along the last one or two axes.

A box of tiles is brought to the transform domain, every point is a small matrix product by the same
channel tile as the direct algorithm, and sums come back tile by tile; axes that are not transformed
sum their taps in the transform domain, as further entries of the list.  Cost: (m + r - 1)^2 products
for m^2 outputs, the transforms, and the transformed weights streaming once per box.

A stride s splits an axis into s phases, inputs s apart, each with every s-th tap: their products are summed in the
transform domain as if phases were channels.  A phase with a tap less than others does without the point at
infinity: a 3x3 kernel of stride 2 by F(3,2) takes 16 + 12 + 12 + 9 products for 9 outputs, where a direct sum takes 81.

Tiles one output short skip the point at infinity with the same weights, so edges waste nothing.
Error: window bound, k eps max|x| sum|w| over a tile's inputs; admitted in accuracy "fast" only.  Blocks
of outputs with a non-finite value are done again by the direct algorithm, which spreads it no further
than it belongs.  Sources: Winograd 1980; Lavin and Gray 2015; points after Barabasz et al. 2020.
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

from polyconv.algorithms import direct
from polyconv.algorithms.panel import COMMON, Item, Words, axis_record, decode, row_place
from polyconv.algorithms.program import (
    Program,
    Request,
    Situation,
    Step,
    accumulator_arithmetic,
    along_in,
    along_out,
    common_words,
    fill_words,
    move_address,
    near_equal,
    planes_collide,
    tile_addresses,
    tile_cycles,
    zeros,
)
from polyconv.algorithms.sweep import Axis, Lines, Sweep, lines, sweeps
from polyconv.dtypes import DTYPES
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, channel_tile, lanes
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import Move, zero_words
from polyconv.kernels.objects import kernel
from polyconv.kernels.tile import ROW_WORDS
from polyconv.kernels.transform import Scheme, input_transform, output_transform
from polyconv.runtime.arrays import aligned, words

__all__ = ["applicable", "bound", "build", "cost", "scheme", "workspace"]

_PAIRS = (5 / 8, 3 / 2)

# Schemes by number of taps, the largest tile first.  Measured rms errors in two dimensions, as multiples of that
# of a direct f32 sum, for 16 / 32 / 64 channels: F(3,2) 1.1 / 0.9 / 0.9, F(2,3) 0.8 / 0.7 / 0.6, F(2,5) 1.5 / 1.3 /
# 1.2, F(4,3) 2.2 / 1.9 / 1.8 with these points, which are exact in binary (2.3 / 2.0 / 1.9 with 2^-1/2 and 2^1/2,
# 2.4 / 2.1 / 2.0 with 3/4 and 3/2).  F(2,7) stayed above 2 with all points tried and is left out.
SCHEMES: dict[int, tuple[Scheme, ...]] = {
    2: (Scheme(3, 2, (1.0,)),),
    3: (Scheme(4, 3, _PAIRS), Scheme(2, 3, (1.0,))),
    5: (Scheme(2, 5, _PAIRS),),
}
_LEAST_TERMS = 32
"""Products a point must sum for F(4,3) along both axes: short direct sums are more accurate than twice its error."""
_NONE = Scheme(1, 1)

TRANSFORMED_BYTES = 4 << 20
"""Most workspace of a box.  Beyond the second-level cache transformed inputs are read again from the third, once per
block of outputs; every box less saves a pass over the transformed weights, which is longer where those are large."""

_NEAR_BYTES, _FAR_BYTES = 1 << 20, 48.0
"""Workspace that stays in a second-level cache, and bytes a cycle that cost time where it does not."""
_REPEATED_BYTES = 2 << 20
"""Transformed weights that each of several threads streams rather than transforming all inputs."""

_RECORD = ("line", "valid", "x0", "t0", "count0", "x1", "t1", "count1")
_PHASE = ("line", "pixel", "place", "*transform")
_KIND = ("first", "count")
_BOX = ("first_y", "rows", "first_x", "columns", "records", "record_count", "lists")

WORDS = (
    *COMMON,
    "total_channels", "channels", "block_channels", "unpaired", "channel_bytes", "row_bytes", "block_bytes",
    "line_bytes", "chunk",
    "transformed", "y_lines", "outer_lines", "points", "inner_points", "*boxes_table", "*records", "*lists",
    "v", "v_point", "v_line", "v_block", "sums", "s_point", "unused_words", "sum_row", "tile", "out", "out_line",
    "phase_count", "*phases", "*entries", "*kinds", "*weights", "*point_weights", "w_group", "w_block",
    "outputs", "blocks", "split_blocks", "block_outputs", "last_outputs", "word_bytes",
    "flags", "again", "*again_words",
    "*output_transform", "*bias", "*scale", "*constants", "*move_in", "*move_out",
)  # fmt: skip


def driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module."""
    direct.box_body(k, f"{name}_again")
    with k.function(name, "buffer", "buffer", "int", "buffer") as (frame, table, number, workspace):
        p = Words(k, table, WORDS)
        item = decode(k, p, number, workspace)
        box = _place_box(k, p, item, workspace)
        panel = workspace + p.panel
        direct.pack_panel(k, p, item, k.buffer(frame, 0), panel, k.constant(INT, 0))
        _transform_inputs(k, p, box, panel, workspace + p.v)
        first = item.split * p.split_blocks
        end = k.minimum(first + p.split_blocks, p.blocks)
        k.clear(workspace + p.scratch, 256)
        # products that short tiles do without enter outputs that are thrown away, but must be finite
        zero_words(k, workspace + p.sums, p.unused_words, vector("i32", vector_bytes // 4))
        with k.loop(1, p.axes - (p.transformed - 1), carry=[k.constant(INT, 1)]) as back:
            back.next(back.values[0] * item.extent(back.index - 1))
        rows = back.results[0]
        with k.loop(first, end) as block:
            flag = workspace + (p.flags + block.index * 8)
            k.store(k.constant(INT, 0), flag, 8)
            with k.loop(0, rows) as row:
                _multiply(k, p, item, box, workspace, block.index, row.index)
                _out(k, p, item, box, frame, workspace, block.index, row.index, flag)
        # once the transformed inputs are no longer needed their place serves to repair
        with k.loop(first, end) as block, k.when(k.word(workspace + (p.flags + block.index * 8)) > 0):
            with k.loop(0, p.axes * 3) as word:
                k.store(k.word(workspace, word.index), workspace + (p.again + word.index * 8), 8)
            k.call(
                f"{name}_again", frame, p.buffer("again_words"), workspace + p.again, item.n, item.g,
                block.index, block.index + 1,
            )  # fmt: skip


def _place_box(k: Module, p: Words, item: Item, workspace: Buffer) -> Words:
    """Write where the box really lies: tiles are not all of one size, so a table says where each begins."""
    last = p.axes - 1
    x_box = item.first(last)
    y_box = k.select(p.transformed.equals(2), item.first(k.maximum(last - 1, 0)), 0)
    box = Words(k, p.buffer("boxes_table"), _BOX).at(
        y_box * axis_record(k, p, last).boxes + x_box, len(_BOX)
    )

    def write(axis: Value, first: Value, extent: Value) -> None:
        place = workspace + axis * 24
        k.store(first * axis_record(k, p, axis).stride - axis_record(k, p, axis).pad, place, 8)
        k.store(extent, place + 8, 8)
        k.store(first, place + 16, 8)

    write(last, box.first_x, box.columns)
    with k.when(p.transformed.equals(2)):
        write(last - 1, box.first_y, box.rows)
    return box


def _transform_inputs(k: Module, p: Words, box: Words, panel: Buffer, v: Buffer) -> None:
    with k.loop(0, p.outer_lines) as outer, k.loop(0, p.phase_count) as number:
        phase = Words(k, p.buffer("phases"), _PHASE).at(number.index, len(_PHASE) + 1)
        with k.loop(0, p.channels, p.block_channels) as c, k.loop(0, box.record_count) as r:
            block = c.index // p.block_channels
            target = v + (outer.index * p.v_line + phase.place + block * p.v_block)
            record = Words(k, p.buffer("records"), _RECORD).at(box.records + r.index, len(_RECORD))
            at = (outer.index * p.y_lines + phase.line + record.line) * p.line_bytes + phase.pixel * p.row_bytes
            line = panel + (block * p.block_bytes + at)
            runs = ((record.x0, record.t0, record.count0, p.tile), (record.x1, record.t1, record.count1, p.tile - 1))
            for x, t, count, step in runs:
                k.call(
                    phase.buffer("transform"), line + x * p.row_bytes, p.line_bytes, target + t * p.row_bytes,
                    p.v_point, count, step,
                )  # fmt: skip


def _multiply(k: Module, p: Words, item: Item, box: Words, workspace: Buffer, block: Value, row: Value) -> None:
    """The matrix products of all points, for a row of the axes that are not transformed."""
    y_rows = k.select(p.transformed.equals(2), item.extent(k.maximum(p.axes - 2, 0)), 1)
    line, _, _ = row_place(k, p, item, row * y_rows)
    v = workspace + (p.v + line // p.y_lines * p.v_line)
    weights = p.buffer("weights") + (item.g * p.w_group + block * p.w_block)
    with k.loop(0, p.points) as point:
        at_end = k.cast("zext", (point.index % p.inner_points).equals(p.inner_points - 1), INT)
        low_end = k.cast("zext", point.index >= p.points - p.inner_points, INT)
        kind = k.select(p.transformed.equals(2), low_end * 2 + at_end, at_end)
        tiles = p.buffer("lists") + k.word(p.buffer("lists"), box.lists + kind) * 8
        of_kind = Words(k, p.buffer("kinds"), _KIND).at(kind, len(_KIND))
        stream = weights + k.word(p.buffer("point_weights"), point.index)
        source, target = v + point.index * p.v_point, workspace + (p.sums + point.index * p.s_point)
        with k.loop(0, k.word(tiles)) as tile:
            place = tiles + (tile.index * 24 + 8)
            first = k.word(place)
            k.call(
                k.buffer(place, 1), source + first * p.row_bytes, of_kind.count,
                p.buffer("entries") + of_kind.first * 16, stream, workspace + p.scratch, 0,
                target + first * p.sum_row, p.sum_row,
            )  # fmt: skip


def _out(k: Module, p: Words, item: Item, box: Words, frame: Buffer, workspace: Buffer, block: Value, row: Value,
         flag: Buffer) -> None:  # fmt: skip
    """Back from the transform domain and out, one row of tiles at a time."""
    last = axis_record(k, p, p.axes - 1)
    y_rows = k.select(p.transformed.equals(2), item.extent(k.maximum(p.axes - 2, 0)), 1)
    channel = block * p.block_outputs
    outputs = k.select(block.equals(p.blocks - 1), p.last_outputs, p.block_outputs)
    table_place = (item.g * p.outputs + channel) * p.word_bytes
    with k.loop(0, box.record_count) as r:
        record = Words(k, p.buffer("records"), _RECORD).at(box.records + r.index, len(_RECORD))
        runs = ((record.x0, record.t0, record.count0, p.tile), (record.x1, record.t1, record.count1, p.tile - 1))
        for x, t, count, step in runs:
            k.call(
                p.buffer("output_transform"), workspace + (p.sums + t * p.sum_row), p.s_point,
                workspace + (p.out + x * p.sum_row), p.out_line, count, step, flag,
            )  # fmt: skip
        with k.loop(0, record.valid) as i:
            _, y_offset, r_offset = row_place(k, p, item, row * y_rows + record.line + i.index)
            k.call(
                p.buffer("move_out"), workspace + (p.out + i.index * p.out_line), p.sum_row, p.word_bytes,
                k.buffer(frame, 2) + (y_offset + channel * p.y_c), last.y_stride, p.y_c, box.columns, outputs,
                p.buffer("bias") + table_place, p.buffer("scale") + table_place,
                k.buffer(frame, 4) + (r_offset + channel * p.r_c), last.r_stride, p.r_c, p.buffer("constants"),
            )  # fmt: skip


# -- planning ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Phase:
    """Inputs a stride apart along each transformed axis.

    Parameters
    ----------
    taps : (int, int)
        First tap along the two axes.
    line, pixel : int
        Where they begin in a panel.
    full : (bool, bool)
        Whether they have as many taps as any phase.
    """

    taps: tuple[int, int]
    line: int
    pixel: int
    full: tuple[bool, bool]

    def enters(self, kind: int) -> bool:
        """Whether it has products at the points of a kind: 1 infinity along the last axis, 2 along the one before."""
        return (self.full[1] or not kind & 1) and (self.full[0] or not kind & 2)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Sizes of one sweep: its schemes, how outputs are cut into tiles and tiles into boxes, where things lie."""

    y: Scheme
    x: Scheme
    transformed: int
    rows: tuple[tuple[int, ...], ...]
    columns: tuple[tuple[int, ...], ...]
    outer: tuple[int, ...]
    held: tuple[Lines, ...]
    phases: tuple[_Phase, ...]
    vectors: int
    blocks: int
    tiles: int
    line_bytes: int
    block_bytes: int
    v_block: int
    v_line: int
    v_point: int
    s_point: int
    out_line: int
    panel: int
    v: int
    sums: int
    out: int
    flags: int
    workspace: int

    def kind(self, point: int) -> int:
        """Kind of a point: which of its axes are at infinity."""
        low_end = self.transformed == 2 and point >= (self.y.n - 1) * self.x.n
        return 2 * low_end + (point % self.x.n == self.x.n - 1)

    @property
    def point_phases(self) -> list[int]:
        """Phases that have products, by point."""
        by_kind = [sum(phase.enters(kind) for phase in self.phases) for kind in range(4)]
        return [by_kind[self.kind(point)] for point in range(self.y.n * self.x.n)]


def tile_sizes(out: int, m: int) -> tuple[int, ...]:
    """Cut outputs into tiles of m, the last ones one short where that ends exactly; else the last is cut."""
    count = -(-out // m)
    short = count * m - out
    if m > 1 and short <= count:
        return (m,) * (count - short) + (m - 1,) * short
    return (m,) * (count - 1) + (out - (count - 1) * m,)


def _boxes(sizes: tuple[int, ...], most: int) -> tuple[tuple[int, ...], ...]:
    return tuple(sizes[first : first + count] for first, count in near_equal(len(sizes), most))


def _schemes(sweep: Sweep, channels: int) -> list[tuple[Scheme, Scheme]]:
    """Pairs of schemes for the last two axes that a sweep admits; F(1, 1) stands for an axis left alone."""
    terms = channels * math.prod(axis.taps for axis in sweep[:-2])

    def admits(axis: Axis) -> bool:
        return axis.dilation == 1 and _phase_taps(axis) in SCHEMES and axis.out > 1

    found: list[tuple[Scheme, Scheme]] = []
    last = sweep[-1]
    if not admits(last) or not all(axis.taps and axis.out for axis in sweep):
        return found
    if len(sweep) > 1 and admits(sweep[-2]):
        found += [
            (y, x) for y, x in itertools.product(SCHEMES[_phase_taps(sweep[-2])], SCHEMES[_phase_taps(last)])
            if terms >= _LEAST_TERMS or y.m + x.m < 8
        ]  # fmt: skip
    else:
        found += [(_NONE, x) for x in SCHEMES[_phase_taps(last)]]
    return found


def _phase_taps(axis: Axis) -> int:
    """Most taps of a phase."""
    return -(-axis.taps // axis.stride)


def _phases(sweep: Sweep, held: Sequence[Lines], transformed: int) -> tuple[_Phase, ...]:
    """Phases of the transformed axes; a run of lines holds the inputs of one."""

    def along(axis: Axis, lines: Lines) -> list[tuple[int, int, bool]]:
        taps = [len(range(tap, axis.taps, axis.stride)) for _, _, tap in lines.runs]
        return [(tap, first, n == max(taps)) for (first, _, tap), n in zip(lines.runs, taps, strict=True)]

    rows = along(sweep[-2], held[-2]) if transformed == 2 else [(0, 0, True)]
    return tuple(
        _Phase((ty, tx), line, pixel, (tall, wide))
        for (ty, line, tall), (tx, pixel, wide) in itertools.product(rows, along(sweep[-1], held[-1]))
    )


@lru_cache(256)
def _plan(s: Situation, arith: Arithmetic, sweep: Sweep) -> _Plan | None:
    """The cheapest schemes and boxes; None where the sweep admits no scheme."""
    pairs = _schemes(sweep, s.problem.c // s.problem.groups)
    plans = [plan for y, x in pairs for plan in _candidates(s, arith, sweep, y, x)]
    return min(plans, key=lambda plan: sum(_cost(s, arith, sweep, plan).values()), default=None)


def _candidates(s: Situation, arith: Arithmetic, sweep: Sweep, y: Scheme, x: Scheme) -> list[_Plan]:
    """Boxes of a few shapes whose transformed inputs fit."""
    transformed = 1 if y is _NONE else 2
    rows = tile_sizes(sweep[-2].out, y.m) if transformed == 2 else (1,)
    columns = tile_sizes(sweep[-1].out, x.m)
    extents = tuple(axis.out for axis in sweep[: len(sweep) - transformed])
    budget = s.budget(TRANSFORMED_BYTES)
    plans = []
    for most_rows in sorted({1, 2, 3, 4, 7, len(rows)}):
        if most_rows > len(rows):
            continue
        for depth in sorted({1, 2, 4, 8}):
            outer = (*(1 for _ in extents[:-1]), min(depth, extents[-1])) if extents else ()
            if depth > 1 and (not extents or depth > extents[-1]):
                continue
            plan = _sizes(s, arith, sweep, y, x, _boxes(rows, most_rows), _boxes(columns, len(columns)), outer)
            if plan.workspace <= budget:
                plans.append(plan)
    most = len(columns)
    while most > 1:  # parts of a single row of tiles, down to what stays near
        most = -(-most // 2)
        plan = _sizes(s, arith, sweep, y, x, _boxes(rows, 1), _boxes(columns, most), (1,) * len(extents))
        if plan.workspace <= (budget if plans or s.limit is not None else 4 * TRANSFORMED_BYTES):
            plans.append(plan)
        if plan.workspace <= _NEAR_BYTES:
            break
    return plans


def _sizes(s: Situation, arith: Arithmetic, sweep: Sweep, y: Scheme, x: Scheme, rows: tuple[tuple[int, ...], ...],
           columns: tuple[tuple[int, ...], ...], outer: tuple[int, ...]) -> _Plan:  # fmt: skip
    p = s.problem
    group_in, group_out = p.c // p.groups, p.m // p.groups
    lane, transformed = lanes(s.target, arith), 1 if y is _NONE else 2
    vectors = 1 if group_out <= lane or (-(-group_out // lane) % 2 and group_out < 4 * lane) else 2
    blocks = -(-group_out // (vectors * lane))
    tall, wide = max(len(box) for box in rows), max(len(box) for box in columns)
    box = (*outer, *((tall * y.m,) if transformed == 2 else ()), wide * x.m)
    held = tuple(lines(axis, b) for axis, b in zip(sweep, box, strict=True))
    row_bytes = ROW_WORDS * arith.bytes
    line_bytes = (held[-1].count | 1) * row_bytes
    all_lines = math.prod(h.count for h in held[:-1])
    block_bytes = all_lines * line_bytes + 64
    in_blocks = -(-group_in // ROW_WORDS)
    outer_lines = math.prod(h.count for h in held[: len(sweep) - transformed])
    tiles = tall * wide
    v_block = tiles * row_bytes
    phases = _phases(sweep, held, transformed)
    v_line = len(phases) * in_blocks * v_block
    # an odd number of cache lines between points: their stores fall into different sets
    v_point = (-(-outer_lines * v_line // 64) | 1) * 64
    sum_row = vectors * lane * arith.bytes
    s_point = (-(-tiles * sum_row // 64) | 1) * 64
    out_line = (wide * x.m + x.m) * sum_row
    header = -(-(24 * len(sweep)) // 64) * 64 + 256
    v = header + in_blocks * block_bytes
    sums = v + y.n * x.n * v_point
    out = sums + y.n * x.n * s_point
    flags = out + y.m * out_line
    again = direct.again_workspace(s, arith, sweep, box, vectors)
    end = max(flags + 8 * blocks + 64, v + again)
    return _Plan(
        y, x, transformed, rows, columns, outer, held, phases, vectors, blocks, tiles, line_bytes, block_bytes, v_block,
        v_line, v_point, s_point, out_line, header, v, sums, out, max(flags, v + again), end + 8 * blocks + 128,
    )  # fmt: skip


def _cost(s: Situation, arith: Arithmetic, sweep: Sweep, plan: _Plan) -> dict[str, float]:
    """Cycles: products or the stream of weights, whichever is longer, and the passes over tiles."""
    p = s.problem
    group_in = p.c // p.groups
    most = channel_tile(s.target, plan.vectors)
    lane = lanes(s.target, arith)
    taps = math.prod(axis.taps for axis in sweep[: len(sweep) - plan.transformed])
    products = stream = transforms = moves = 0.0
    outer_boxes = math.prod(-(-axis.out // b) for axis, b in zip(sweep, plan.outer, strict=False))
    outer_rows = math.prod(axis.out for axis in sweep[: len(sweep) - plan.transformed])
    outer_lines = math.prod(h.count for h in plan.held[: len(sweep) - plan.transformed])
    products_entering = sum(plan.point_phases)
    weight_bytes = products_entering * taps * group_in * plan.vectors * lane * arith.bytes * plan.blocks
    bytes_a_cycle = 32.0 if weight_bytes < 512 << 10 else 14.0 if weight_bytes < 24 << 20 else 7.0
    points = plan.y.n * plan.x.n
    vectors_in = -(-group_in // ROW_WORDS) * (ROW_WORDS // lane)
    per_in, per_out = 4.0, 4.0
    if p.layout == "NCHW":
        per_in = (14.0 if planes_collide(p, reading=True) else 7.0) * (1 + (sweep[-1].stride > 1))
        per_out = 12.0 if planes_collide(p, reading=False) else 7.0
    # what leaves the second-level cache is written to the third and read from there
    far = 2 * plan.y.n * plan.x.n * plan.v_point if plan.workspace > _NEAR_BYTES else 0
    for rows, columns in itertools.product(plan.rows, plan.columns):
        for i_end, j_end in itertools.product((False, True), (False, True)):
            tall = sum(1 for r in rows if not i_end or r == plan.y.m or plan.transformed == 1)
            wide = sum(1 for c in columns if not j_end or c == plan.x.m)
            share = ((1 if i_end else plan.y.n - 1) if plan.transformed == 2 else (0 if i_end else 1)) * (
                1 if j_end else plan.x.n - 1
            )
            steps = taps * group_in * sum(phase.enters(2 * i_end + j_end) for phase in plan.phases)
            tiles = near_equal(tall * wide, most)
            cycles = sum(tile_cycles(rows_, plan.vectors) for _, rows_ in tiles)
            starts = 20 * len(tiles) + 1.0 * tall * wide * plan.vectors
            products += share * plan.blocks * outer_rows * (1.15 * cycles * steps + starts)
        tile_count = len(rows) * len(columns)
        transforms += outer_boxes * outer_lines * vectors_in * tile_count * products_entering * 3.6
        transforms += outer_rows * plan.blocks * plan.vectors * tile_count * points * 3.6
        stream += outer_rows * weight_bytes / bytes_a_cycle
        outputs = sum(rows) * sum(columns)
        moves += outer_rows * plan.blocks * plan.vectors * outputs * per_out
        moves += outer_boxes * math.prod(h.count for h in plan.held) * vectors_in * per_in
        moves += outer_boxes * (1500.0 + far / _FAR_BYTES)
    batch = (p.n or 0) * p.groups
    return {"products": max(products, stream) * batch, "transforms": transforms * batch, "moves": moves * batch}


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    p = s.problem
    if p.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {p.op}"
    if s.strict:
        return "its error bound is over a tile's inputs; accuracy='strict' admits bounds over an output's own products"
    if not p.x_dtype.is_float:
        return "transforms floating-point numbers only"
    if not s.finite:
        return "weights hold Inf or NaN"
    if p.c // p.groups < 8 or p.m // p.groups < 8:
        return f"needs 8 channels a group on both sides, this has {p.c // p.groups} and {p.m // p.groups}"
    if all(plan is None for _, plan in _parts(s)):
        return "needs dilation 1 and 2, 3 or 5 taps a stride along the last axis, several outputs, and room"
    return None


@lru_cache(256)
def _parts(s: Situation) -> tuple[tuple[Sweep, _Plan | None], ...]:
    """Every sweep with its plan; None where the direct algorithm does it better."""
    s = replace(s, problem=replace(s.problem, n=1), threads=1)  # neither may change what is chosen, not even a tie
    arith = ARITHMETIC[accumulator_arithmetic(s)]
    parts: list[tuple[Sweep, _Plan | None]] = []
    for sweep in sweeps(s.problem):
        plan = _plan(s, arith, sweep)
        if plan is not None and len(sweeps(s.problem)) > 1:
            plain = direct.sweep_cost(s, arith, sweep)
            plan = plan if sum(_cost(s, arith, sweep, plan).values()) < sum(plain.values()) else None
        parts.append((sweep, plan))
    return tuple(parts)


def scheme(s: Situation) -> str:
    """Which schemes compute the sweeps: with them the bits change."""
    names = [
        "direct" if plan is None else f"F({plan.x.m},{plan.x.r})" if plan.transformed == 1
        else f"F({plan.y.m},{plan.y.r})xF({plan.x.m},{plan.x.r})"
        for _, plan in _parts(s)
    ]  # fmt: skip
    return "+".join(dict.fromkeys(names))


def bound(s: Situation) -> tuple[str, float]:
    """Window bound: the additions of a point and of the transforms, times how far the transforms enlarge terms."""
    p, eps = s.problem, DTYPES[accumulator_arithmetic(s)].eps
    products = p.c // p.groups
    worst = (products * math.prod(p.k) + 4) * eps
    for sweep, plan in _parts(s):
        if plan is not None:
            taps = math.prod(axis.taps for axis in sweep[: len(sweep) - plan.transformed])
            growth = plan.y.growth * plan.x.growth
            worst = max(worst, (products * taps * len(plan.phases) + 2 * (plan.y.n + plan.x.n) + 4) * eps * growth)
    return "window", worst


def workspace(s: Situation) -> int:
    """Bytes a thread needs."""
    arith = ARITHMETIC[accumulator_arithmetic(s)]
    return max(
        direct.sweep_workspace(s, arith, sweep) if plan is None else plan.workspace for sweep, plan in _parts(s)
    )


def cost(s: Situation) -> dict[str, float]:
    """Cycles by term."""
    arith = ARITHMETIC[accumulator_arithmetic(s)]
    terms = [
        direct.sweep_cost(s, arith, sweep) if plan is None else _cost(s, arith, sweep, plan)
        for sweep, plan in _parts(s)
    ]
    return {name: sum(t.get(name, 0.0) for t in terms) for name in ("products", "transforms", "moves")}


# -- building ------------------------------------------------------------------------------------------


def build(r: Request) -> Program:
    """Program of a request: one step per sweep."""
    keep: list[Any] = []
    address = kernel(
        "winograd", ("winograd",), lambda k: driver(k, "winograd", r.target.vector_bytes), r.target, check=r.check
    )["winograd"]
    steps = [
        direct.sweep_step(r, sweep, keep) if plan is None else _step(r, sweep, plan, address, keep)
        for sweep, plan in _parts(r.situation)
    ]
    return Program(tuple(step for step in steps if step.items), workspace(r.situation), tuple(keep))


def _step(r: Request, sweep: Sweep, alone: _Plan, address: int, keep: list[Any]) -> Step:
    p, arith = r.problem, r.arith
    plan, splits = _shared(r.situation, arith, sweep, alone)
    group_in, group_out = p.c // p.groups, p.m // p.groups
    lane = lanes(r.target, arith)
    row_bytes, block_outputs = ROW_WORDS * arith.bytes, plan.vectors * lane
    sum_row = block_outputs * arith.bytes
    outer_axes = len(sweep) - plan.transformed
    box_counts = (*plan.outer, *((1, 1) if plan.transformed == 2 else (1,)))
    cuts = ((len(plan.rows),) if plan.transformed == 2 else ()) + (len(plan.columns),)
    counted = sweep[:outer_axes] + tuple(
        replace(axis, out=count) for axis, count in zip(sweep[outer_axes:], cuts, strict=True)
    )  # as decode sees them: boxes instead of outputs; a table says where they lie
    values = common_words(r, counted, box_counts, list(plan.held), splits, keep)
    boxes_table, records, lists = _tables(r, plan)
    outer = [0]
    for h in plan.held[:outer_axes]:
        outer = [o * h.count + t for o in outer for t in h.start]
    v_phase = plan.v_line // len(plan.phases)
    entries: list[int] = []
    kinds: list[int] = []
    for kind in range(4):
        entering = [number for number, phase in enumerate(plan.phases) if phase.enters(kind)]
        of_kind = [
            v for block, first in enumerate(range(0, group_in, ROW_WORDS)) for number in entering for o in outer
            for v in (o * plan.v_line + number * v_phase + block * plan.v_block, min(ROW_WORDS, group_in - first))
        ]  # fmt: skip
        kinds += (len(entries) // 2, len(of_kind) // 2)
        entries += of_kind
    points = plan.y.n * plan.x.n
    per_phase = group_in * len(outer) * block_outputs * arith.bytes
    point_weights = [0, *itertools.accumulate(count * per_phase for count in plan.point_phases)]
    transforms = {full: _input_transform(r, plan, full) for full in {phase.full for phase in plan.phases}}
    phases = [
        v for number, phase in enumerate(plan.phases)
        for v in (phase.line, phase.pixel, number * v_phase, transforms[phase.full], 0)
    ]  # fmt: skip
    key = tuple((a.taps, a.first_tap, a.tap_step) for a in sweep)
    packed = r.packed(
        ("winograd", arith.name, lane, plan.vectors, plan.y, plan.x, key),
        lambda: _packed_weights(r.weights(sweep), sweep, plan, lane),
    )
    last = sweep[-1]
    box = (*plan.outer, *((max(len(b) for b in plan.rows) * plan.y.m,) if plan.transformed == 2 else ()),
           max(len(b) for b in plan.columns) * plan.x.m)  # fmt: skip
    again_words = direct.again_words(r, sweep, box, plan.vectors, keep)
    values.update({
        "panel": plan.panel, "scratch": plan.panel - 256, "total_channels": p.c, "channels": group_in,
        "block_channels": ROW_WORDS, "unpaired": 0, "channel_bytes": arith.bytes, "row_bytes": row_bytes,
        "block_bytes": plan.block_bytes,
        "line_bytes": plan.line_bytes, "chunk": -(-group_in // ROW_WORDS) * ROW_WORDS, "transformed": plan.transformed,
        "y_lines": plan.held[-2].count if plan.transformed == 2 else 1,
        "outer_lines": math.prod(h.count for h in plan.held[:outer_axes]), "points": points,
        "inner_points": plan.x.n, "boxes_table": words(boxes_table), "records": words(records), "lists": words(lists),
        "v": plan.v, "v_point": plan.v_point, "v_line": plan.v_line, "v_block": plan.v_block, "sums": plan.sums,
        "s_point": plan.s_point, "unused_words": points * plan.s_point // 4 if _has_short(plan) else 0,
        "sum_row": sum_row, "tile": plan.x.m, "out": plan.out, "out_line": plan.out_line,
        "phase_count": len(plan.phases), "phases": words(phases), "entries": words(entries), "kinds": words(kinds),
        "weights": packed, "point_weights": words(point_weights), "w_group": plan.blocks * point_weights[-1],
        "w_block": point_weights[-1],
        "outputs": group_out, "blocks": plan.blocks, "split_blocks": -(-plan.blocks // splits),
        "block_outputs": block_outputs, "last_outputs": group_out - (plan.blocks - 1) * block_outputs,
        "word_bytes": arith.bytes, "flags": plan.flags, "again": plan.v, "again_words": again_words,
        "output_transform": _output_transform(r, plan),
        "bias": zeros() if r.bias is None else r.bias, "scale": zeros(), "constants": r.constants,
        "move_in": move_address(r, Move(p.x, arith.accumulator, along_in(r, last, "c"))),
        "move_out": move_address(r, Move(arith.accumulator, p.y, along_out(r, last, "c"), r.epilogue)),
    })  # fmt: skip
    return Step(address, fill_words(WORDS, values, keep), values["items"])


def _shared(s: Situation, arith: Arithmetic, sweep: Sweep, plan: _Plan) -> tuple[_Plan, int]:
    """The plan in boxes enough for the threads, and into how many parts its output channels are cut instead.

    Every box streams the transformed weights, every part transforms the inputs: whichever is less is repeated.
    """
    p = s.problem
    outer = math.prod(-(-axis.out // b) for axis, b in zip(sweep, plan.outer, strict=False))
    items = max(1, (p.n or 0) * p.groups * outer * len(plan.rows) * len(plan.columns))
    if s.threads == 1 or items >= 2 * s.threads:
        return plan, 1
    taps = math.prod(axis.taps for axis in sweep[: len(sweep) - plan.transformed])
    lane = lanes(s.target, arith)
    weight_bytes = sum(plan.point_phases) * taps * (p.c // p.groups) * plan.vectors * lane * arith.bytes * plan.blocks
    if weight_bytes > _REPEATED_BYTES:
        splits = min(plan.blocks, -(-s.threads // items))
        return plan, -(-plan.blocks // -(-plan.blocks // splits))
    cuts = plan.rows if plan.transformed == 2 else plan.columns
    sizes = tuple(itertools.chain.from_iterable(cuts))
    most = -(-len(sizes) // min(len(sizes), len(cuts) * -(-2 * s.threads // items)))
    finer = _boxes(sizes, most)
    rows, columns = (finer, plan.columns) if plan.transformed == 2 else (plan.rows, finer)
    return _sizes(s, arith, sweep, plan.y, plan.x, rows, columns, plan.outer), 1


def _tables(r: Request, plan: _Plan) -> tuple[list[int], list[int], list[int]]:
    """Boxes, the rows of tiles of each, and for each kind of point the list of its channel tiles.

    The tiles of a box are numbered so that those a point needs are neighbours: short row and full column,
    full both, short column, short both.  The point at infinity of an axis does without its short tiles.
    """
    most = channel_tile(r.target, plan.vectors)
    functions = [0, *tile_addresses(r, "channel", range(1, most + 1), plan.vectors)]
    boxes_table: list[int] = []
    records: list[int] = []
    lists: list[int] = []
    first_y = 0
    for rows in plan.rows:
        first_x = 0
        for columns in plan.columns:
            lists_at = len(lists)
            at = len(records) // len(_RECORD)
            boxes_table += (first_y, sum(rows), first_x, sum(columns), at, len(rows), lists_at)
            records += _records(plan, rows, columns)
            ends = _class_ends(plan, rows, columns)
            lists += [0, 0, 0, 0]
            for kind, (low, high) in enumerate(((0, 4), (0, 2), (1, 3), (1, 2))):
                lists[lists_at + kind] = len(lists)
                parts = near_equal(ends[high] - ends[low], most)
                lists.append(len(parts))
                lists += [v for first, count in parts for v in (ends[low] + first, functions[count], 0)]
            first_x += sum(columns)
        first_y += sum(rows)
    return boxes_table, records, lists


def _full(sizes: tuple[int, ...], scheme: Scheme, transformed: bool) -> int:
    return sum(1 for size in sizes if size == scheme.m) if transformed else len(sizes)


def _class_ends(plan: _Plan, rows: tuple[int, ...], columns: tuple[int, ...]) -> list[int]:
    """Where the four classes of tiles begin, and where the last ends."""
    full_rows, full_columns = _full(rows, plan.y, plan.transformed == 2), _full(columns, plan.x, True)
    short_rows, short_columns = len(rows) - full_rows, len(columns) - full_columns
    counts = (
        short_rows * full_columns, full_rows * full_columns, full_rows * short_columns, short_rows * short_columns,
    )  # fmt: skip
    return [0, *itertools.accumulate(counts)]


def _records(plan: _Plan, rows: tuple[int, ...], columns: tuple[int, ...]) -> list[int]:
    full_rows, full_columns = _full(rows, plan.y, plan.transformed == 2), _full(columns, plan.x, True)
    short_columns = len(columns) - full_columns
    _, class_1, class_2, class_3, _ = _class_ends(plan, rows, columns)
    records: list[int] = []
    line = 0
    for i, size in enumerate(rows):
        if i < full_rows:
            t0, t1 = class_1 + i * full_columns, class_2 + i * short_columns
        else:
            t0, t1 = (i - full_rows) * full_columns, class_3 + (i - full_rows) * short_columns
        records += (line, size, 0, t0, full_columns, full_columns * plan.x.m, t1, short_columns)
        line += size
    return records


def _has_short(plan: _Plan) -> bool:
    sizes = [(size, plan.x.m) for box in plan.columns for size in box]
    if plan.transformed == 2:
        sizes += [(size, plan.y.m) for box in plan.rows for size in box]
    return any(size < m for size, m in sizes)


def _input_transform(r: Request, plan: _Plan, full: tuple[bool, bool]) -> int:
    """Address of the input transform of phases with all taps, or one less, along the two axes."""
    element, lane, y, x = r.arith.accumulator, lanes(r.target, r.arith), plan.y, plan.x

    def build(k: Module) -> None:
        input_transform(k, "transform", y, x, element, lane, full)

    label = f"winograd input {y} {x} {element} {full}"
    return kernel(label, ("transform",), build, r.target, check=r.check)["transform"]


def _output_transform(r: Request, plan: _Plan) -> int:
    """Address of the output transform."""
    element, lane, y, x = r.arith.accumulator, lanes(r.target, r.arith), plan.y, plan.x

    def build(k: Module) -> None:
        output_transform(k, "transform", y, x, element, lane, plan.vectors)

    label = f"winograd output {y} {x} {element} {plan.vectors}"
    return kernel(label, ("transform",), build, r.target, check=r.check)["transform"]


def _packed_weights(w: NDArray[Any], sweep: Sweep, plan: _Plan, lane: int) -> NDArray[Any]:
    """Transformed weights as they stream: [group][block][point][channel block][phase][outer tap][channel][output].

    The transform is done in float64 and rounded once.
    """
    groups, m, c, _ = w.shape
    width = plan.vectors * lane
    taps = [axis.taps for axis in sweep]
    outer = math.prod(taps[: len(taps) - plan.transformed])
    steps = sweep[-2].stride if plan.transformed == 2 else 1, sweep[-1].stride
    spread = w.reshape(groups, m, c, outer, taps[-2] if plan.transformed == 2 else 1, taps[-1])
    points = plan.y.n * plan.x.n
    transform = np.kron(plan.y.weights, plan.x.weights)
    whole = c // ROW_WORDS * ROW_WORDS
    chunks = [(0, whole, ROW_WORDS)] * (whole > 0) + [(whole, c, c - whole)] * (whole < c)
    enters = [
        [number for number, phase in enumerate(plan.phases) if phase.enters(plan.kind(point))]
        for point in range(points)
    ]  # fmt: skip
    packed = aligned(groups * plan.blocks * sum(plan.point_phases) * c * outer * width, w.dtype)
    made = np.empty((len(plan.phases), points, c, outer, width))
    for one, into in zip(spread, packed.reshape(groups, plan.blocks, -1), strict=True):
        for block, target in enumerate(into):  # one after the other: its points stay in the cache
            some = one[block * width : (block + 1) * width]
            for phase, values in zip(plan.phases, made, strict=True):
                taps_first = np.zeros((plan.y.r, plan.x.r, c, outer, width))
                part = some[..., phase.taps[0] :: steps[0], phase.taps[1] :: steps[1]]
                taps_first[: part.shape[-2], : part.shape[-1], ..., : len(some)] = part.transpose(3, 4, 1, 2, 0)
                values[...] = (transform @ taps_first.reshape(transform.shape[1], -1)).reshape(values.shape)
            at = 0
            for point, entering in enumerate(enters):
                of_point = made[:, point] if len(entering) == len(made) else made[entering, point]
                for first, last, size in chunks:
                    part = of_point[:, first:last].reshape(len(entering), -1, size, outer, width)
                    part = part.transpose(1, 0, 3, 2, 4)
                    target[at : at + part.size].reshape(part.shape)[...] = part
                    at += part.size
    return packed
