"""Deformable convolution: bilinear samples of one row of outputs as a panel, then the pixel tile.

The panel is [channel][tap][pixel] for a segment of an output row; coordinates and corner weights are
found once per offset group and tap, in double, and serve all its channels.  Cost: four loads and
multiplies a sample, plus the products.  Error: own bound, (k + 8) eps sum|sample||w|.
Source: ONNX DeformConv-22; corners outside the image count zero (semantics 5.5).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from polyconv.algorithms.panel import Common, Driver, EpilogueTables, Frame, Item, axis_words, decode, row_place
from polyconv.algorithms.pixels import Tile, packed_weights, panel_tiles, pixel_tables, tile_rows
from polyconv.algorithms.program import (
    Program,
    Request,
    Situation,
    accumulator_arithmetic,
    address_of,
    along_out,
    boxed_words,
    epilogue_tables,
    move_out_address,
    one_step,
    tile_cycles,
)  # fmt: skip
from polyconv.algorithms.sweep import Sweep, lines, sweeps
from polyconv.dtypes import Dtype
from polyconv.kernels.convert import LLVM_NAMES, widen
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, lanes
from polyconv.kernels.language import INT, Buffer, Module, Type, Value
from polyconv.kernels.layout import Move, MoveOut
from polyconv.kernels.record import Function, Functions, Memory, Record, Table, Word, filled, words
from polyconv.kernels.tile import PanelTile

__all__ = ["applicable", "build", "cost", "workspace"]

PANEL_BYTES = 256 << 10
_SEGMENT = 64
_CORNERS = 4

_DOUBLE = Type("double")


class DeformableWords(Record):
    """The driver's words: where inputs, offsets and masks lie, the panel of samples, tiles, moves."""

    common: Common
    kernel_height: Word
    kernel_width: Word
    dilation_height: Word
    dilation_width: Word
    height: Word
    width: Word
    x_height: Word
    x_width: Word
    o_base: Word
    o_n: Word
    o_group: Word
    o_c: Word
    o_height: Word
    o_width: Word
    has_mask: Word
    m_base: Word
    m_n: Word
    m_group: Word
    m_c: Word
    m_height: Word
    m_width: Word
    channels: Word
    group_channels: Word
    chunk: Word
    chunks: Word
    corners: Word
    segment_bytes: Word
    word_bytes: Word
    lane_bytes: Word
    lanes: Word
    taps: Word
    entries: Memory
    weights: Memory
    w_group: Word
    tile_count: Word
    tiles: Table[Tile]
    functions: Functions[PanelTile]
    slots: Word
    slot_tile: Word
    outputs: Word
    tables: EpilogueTables
    move_out: Function[MoveOut]


def _driver(k: Module, name: str, dtype: Dtype, element: str, f16c: bool) -> None:
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = DeformableWords.read(k, given.words)
        item = decode(k, p.common, given.item, workspace)
        k.clear(workspace + p.common.scratch, 512)
        with k.loop(0, p.chunks) as chunk:
            first = chunk.index * p.chunk
            _sample(k, p, item, frame, workspace, first, dtype, element, f16c)
            with k.loop(0, p.tile_count) as tile:
                t = p.tiles.at(tile.index)
                slot = p.slots + tile.index * p.slot_tile
                _sums(k, p, t, item, workspace, slot, chunk.index)
                with k.when(chunk.index.equals(p.chunks - 1)):
                    _out(k, p, t, item, frame, workspace + slot)


def _sample(k: Module, p: DeformableWords, item: Item, frame: Frame, workspace: Buffer, first: Value,
            dtype: Dtype, element: str, f16c: bool) -> None:  # fmt: skip
    """Fill the panel with one chunk of a group's channels, offset group by offset group."""
    end = k.minimum(first + p.chunk, p.channels)
    base = item.g * p.channels
    low, high = (base + first) // p.group_channels, (base + end - 1) // p.group_channels
    with k.loop(low, high + 1) as og:
        c0 = k.maximum(og.index * p.group_channels - base, first)
        c1 = k.minimum((og.index + 1) * p.group_channels - base, end)
        with k.loop(0, p.kernel_height) as i, k.loop(0, p.kernel_width) as j:
            tap = i.index * p.kernel_width + j.index
            with k.loop(0, item.extent(1)) as pixel:
                at = (og.index, i.index, j.index, tap, pixel.index)
                _corners(k, p, item, frame, workspace, *at, dtype, element, f16c)
            with k.loop(c0, c1) as c:
                panel = workspace + p.common.panel + ((c.index - first) * p.taps + tap) * p.segment_bytes
                plane = frame.x + (p.common.x_base + item.n * p.common.x_n + (base + c.index) * p.common.x_c)
                with k.loop(0, item.extent(1)) as pixel:
                    record = workspace + p.corners + pixel.index * (16 * _CORNERS)
                    total = k.constant(Type(element), 0)
                    for corner in range(_CORNERS):
                        weight = k.load(Type(element), record + 16 * corner)
                        place = plane + k.word(record, 2 * corner + 1)
                        value = widen(k, k.load(Type(LLVM_NAMES[dtype.name]), place), dtype, element, f16c=f16c)
                        # a corner of weight 0 may stand for one outside the image: it adds nothing
                        total = k.select(weight.equals(0), total, total + weight * value)
                    k.store(total, panel + pixel.index * p.word_bytes)


def _corners(k: Module, p: DeformableWords, item: Item, frame: Frame, workspace: Buffer, og: Value, i: Value, j: Value,
             tap: Value, pixel: Value, dtype: Dtype, element: str, f16c: bool) -> None:  # fmt: skip
    """Weights and plane offsets of the four corners of one sample, times its modulation."""
    oy, ox = item.first(0), item.first(1) + pixel

    def read(memory: Buffer, offset: Value) -> Value:
        value = k.load(Type(LLVM_NAMES[dtype.name]), memory + offset)
        return widen(k, value, dtype, "double", f16c=f16c)

    at = p.o_base + item.n * p.o_n + og * p.o_group + tap * 2 * p.o_c + oy * p.o_height + ox * p.o_width
    offsets = frame.offset
    modulation = k.constant(_DOUBLE, 1)
    store = workspace + p.corners + pixel * (16 * _CORNERS)
    k.store(modulation, store + 8)  # a slot to bring the mask through the branch
    with k.when(p.has_mask.equals(1)):
        place = p.m_base + item.n * p.m_n + og * p.m_group + tap * p.m_c + oy * p.m_height + ox * p.m_width
        k.store(read(frame.mask, place), store + 8)
    modulation = k.load(_DOUBLE, store + 8)
    position_y = k.cast("sitofp", item.origin(0) + i * p.dilation_height, _DOUBLE) + read(offsets, at)
    column = item.origin(1) + pixel * p.common.step + j * p.dilation_width
    position_x = k.cast("sitofp", column, _DOUBLE) + read(offsets, at + p.o_c)
    height, width = k.cast("sitofp", p.height, _DOUBLE), k.cast("sitofp", p.width, _DOUBLE)
    # NaN compares false: such a sample is outside, as one beyond the image
    inside = (position_y > -1) & (position_y < height) & (position_x > -1) & (position_x < width)
    y0, fy = _floor(k, k.select(inside, position_y, 0.0))
    x0, fx = _floor(k, k.select(inside, position_x, 0.0))
    for corner, (dy, dx) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        weight = (fy if dy else 1.0 - fy) * (fx if dx else 1.0 - fx)
        y, x = y0 + dy, x0 + dx
        real = inside & y.below(p.height) & x.below(p.width)
        weight = k.select(weight.equals(0), 0.0, weight * modulation)
        weight = k.select(real, weight, 0.0)
        if element == "float":
            weight = k.cast("fptrunc", weight, Type("float"))
        k.store(weight, store + 16 * corner)
        k.store(k.select(real, y * p.x_height + x * p.x_width, 0), store + 16 * corner + 8)


def _floor(k: Module, value: Value) -> tuple[Value, Value]:
    """Whole part (towards -inf) and rest of a value known to lie within an image."""
    whole = k.cast("fptosi", value, INT)
    whole = k.select(k.cast("sitofp", whole, _DOUBLE) > value, whole - 1, whole)
    return whole, value - k.cast("sitofp", whole, _DOUBLE)


def _sums(k: Module, p: DeformableWords, t: Tile, item: Item, workspace: Buffer, slot: Value, chunk: Value) -> None:
    vectors = (item.extent(1) + p.lanes - 1) // p.lanes
    channels = k.minimum(p.chunk, p.channels - chunk * p.chunk)
    begins = chunk.equals(0)
    with k.loop(0, vectors, t.most) as v:
        here, at = k.minimum(vectors - v.index, t.most), v.index * p.lane_bytes
        k.call(p.functions.at_word(t.table + here * 2), PanelTile(
            workspace + (p.common.panel + at), channels * p.taps,
            p.entries, p.weights + (item.g * p.w_group + t.weights + chunk * t.chunk_weights),
            workspace + k.select(begins, p.common.scratch, slot + at), k.select(begins, 0, p.segment_bytes),
            workspace + (slot + at), p.segment_bytes,
        ))  # fmt: skip


def _out(k: Module, p: DeformableWords, t: Tile, item: Item, frame: Frame, sums: Buffer) -> None:
    last = axis_words(p.common, 1)
    channel = item.g * p.outputs + t.first
    _, y_offset, r_offset = row_place(k, p.common, item, k.constant(INT, 0))
    k.call(p.move_out, MoveOut(
        sums, p.word_bytes, p.segment_bytes,
        frame.y + (y_offset + t.first * p.common.y_c), last.y_stride, p.common.y_c, item.extent(1), t.rows,
        p.tables.bias + channel * p.word_bytes, p.tables.scale + channel * p.word_bytes,
        frame.residual + (r_offset + t.first * p.common.r_c), last.r_stride, p.common.r_c, p.tables.constants,
    ))  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Plan:
    """Sizes: pixels of a segment (rounded to vectors), channels at a time, and where things lie."""

    segment: int
    row_bytes: int
    chunk: int
    chunks: int
    corners: int
    panel: int
    scratch: int
    slot_tile: int
    workspace: int


def _plan(s: Situation, arith: Arithmetic, sweep: Sweep) -> _Plan:
    p = s.problem
    lane = lanes(s.target, arith)
    group_in, taps = max(1, p.c // p.groups), math.prod(p.k)
    tiles = tile_rows(p.m // p.groups, s.target)

    def sizes(segment: int, chunk: int) -> _Plan:
        row_bytes = -(-segment // lane) * lane * arith.bytes
        chunks = -(-group_in // chunk)
        panel = 64 + segment * 16 * _CORNERS
        scratch = panel + chunk * taps * row_bytes
        slot_tile = 8 * row_bytes if chunks > 1 else 0
        slots = slot_tile * len(tiles) if chunks > 1 else 8 * row_bytes
        return _Plan(segment, row_bytes, chunk, chunks, 64, panel, scratch, slot_tile, scratch + 512 + slots + 128)

    budget = s.budget(PANEL_BYTES)
    segment, chunk = min(_SEGMENT, max(1, sweep[1].out)), group_in
    while sizes(segment, chunk).workspace > budget and (chunk > 1 or segment > lane):
        if chunk > 1:
            chunk = -(-chunk // 2)
        else:
            segment = max(lane, segment // 2)
    return sizes(segment, chunk)


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    p = s.problem
    if p.op != "deform_conv":
        return f"computes deform_conv, not {p.op}"
    if p.rank != 2:
        return f"deform_conv is defined for 2 spatial axes, not {p.rank}"
    return None


def workspace(s: Situation) -> int:
    """Bytes a thread needs."""
    return _plan(s, ARITHMETIC[accumulator_arithmetic(s)], sweeps(s.problem)[0]).workspace


def cost(s: Situation) -> dict[str, float]:
    """Cycles: samples, corner coordinates, products."""
    p, arith = s.problem, ARITHMETIC[accumulator_arithmetic(s)]
    outputs = (p.n or 0) * math.prod(o or 0 for o in p.out)
    samples = outputs * math.prod(p.k)
    tiles = sum(tile_cycles(s.rates(arith), rows, 2) / 2 for _, rows in tile_rows(p.m // p.groups, s.target))
    return {
        "samples": samples * (p.c * 8.0 + p.offset_groups * 60.0),
        "products": samples * (p.c // p.groups) * p.groups * tiles / lanes(s.target, arith),
    }


def build(r: Request) -> Program:
    """Program of a request: one step."""
    p, arith, keep = r.problem, r.arith, list[Any]()
    (sweep,) = sweeps(p)
    plan = _plan(r.situation, arith, sweep)
    f16c = r.target.converts_f16
    address = address_of(
        r, f"deformable {p.x} {arith.name}", "deformable", Driver,
        lambda k, name: _driver(k, name, p.x_dtype, arith.accumulator, f16c),
    )  # fmt: skip
    group_in, group_out, taps = p.c // p.groups, p.m // p.groups, math.prod(p.k)
    tiles = tile_rows(group_out, r.target)
    functions, records = pixel_tables(r, tiles, group_in * taps, plan.chunk * taps, lambda rows: panel_tiles(r, rows))
    held = [lines(sweep[0], 1), lines(sweep[1], plan.segment)]
    common, items = boxed_words(r, sweep, (1, plan.segment), held, panel=plan.panel, scratch=plan.scratch)
    offset, mask = r.offset, r.mask
    assert offset is not None
    write = along_out(r, sweep[1], "p")
    if write == "pc" and group_out < 8:
        write = "any"
    values = DeformableWords(
        common=common, kernel_height=p.k[0], kernel_width=p.k[1], dilation_height=p.d[0], dilation_width=p.d[1],
        height=sweep[0].inp, width=sweep[1].inp, x_height=r.x.spatial[0], x_width=r.x.spatial[1],
        o_base=offset.offset, o_n=offset.n, o_group=2 * taps * offset.c, o_c=offset.c,
        o_height=offset.spatial[0], o_width=offset.spatial[1], has_mask=int(mask is not None),
        m_base=mask.offset if mask else 0, m_n=mask.n if mask else 0,
        m_group=taps * mask.c if mask else 0, m_c=mask.c if mask else 0,
        m_height=mask.spatial[0] if mask else 0, m_width=mask.spatial[1] if mask else 0,
        channels=group_in, group_channels=max(1, p.c // p.offset_groups), chunk=plan.chunk,
        chunks=plan.chunks if group_in else 1, corners=plan.corners, segment_bytes=plan.row_bytes,
        word_bytes=arith.bytes, lane_bytes=r.target.vector_bytes, lanes=lanes(r.target, arith), taps=taps,
        entries=words([e * plan.row_bytes for e in range(plan.chunk * taps)]),
        weights=r.packed(("generic", arith.name, r.target.level, "deformable"),
                         lambda: packed_weights(r, r.weights(sweep), tiles)),
        w_group=group_out * group_in * taps * arith.bytes, tile_count=len(tiles), tiles=records,
        functions=functions, slots=plan.scratch + 512, slot_tile=plan.slot_tile, outputs=group_out,
        tables=epilogue_tables(r), move_out=move_out_address(r, Move(arith.accumulator, p.y, write, r.epilogue)),
    )  # fmt: skip
    return one_step(address, filled(values, keep), items, plan.workspace, keep)
