"""A panel of words: the inputs of a box as tiles take them, their padding written out.

Channels of a pixel lie together, where neighbouring pixels can follow each other without a gap; or words lie in
planes, woven from planes of channels.  It must not know what tiles make of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from polyconv.algorithms.dots.form import Sizes
from polyconv.algorithms.dots.situations import channel_bytes, padding_of, taken_off
from polyconv.kernels.isa import Arithmetic
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import Move, MoveIn
from polyconv.kernels.record import Function, Record, Table, Word, altered
from polyconv.kernels.signature import Address
from polyconv.kernels.words import PlanesIn, fill_bytes, planes_in
from polyconv.lowering.moves import along_in
from polyconv.lowering.panel import Common, Item, RunWords, axis_words, fill, line_place
from polyconv.lowering.program import Request, address_of
from polyconv.lowering.situation import Situation, image_bytes
from polyconv.lowering.sweep import Axis, Lines

__all__ = [
    "DotPanel", "by_planes", "copying_cycles", "pack", "panel_common", "panel_words", "turning_cycles",
    "weaving_cycles",
]  # fmt: skip


_WIDTHS = (16, 32, 64)
"""Pixels that a move of planes may take at a time: those of a short row at once."""
_LINE_CYCLES, _ROW_CYCLES, _PIXEL_CYCLES, _SLAB_CYCLES = 35.0, 4.0, 0.27, 90.0
"""Of a line of a plane of words, where lines come one by one: 30 to 45 in 20 layers on Zen 5; of one, and each of its
pixels, where many come at once: 8 for 17 pixels, 18 to 25 for 58 and 36 for 98 there, in six layers of bf16 and bytes;
and of lines that come at once, those of the axis before the last."""
_FAR, _FAR_CYCLES = 2, 0.45
"""Of a second-level cache, images beyond which a pixel of many lines takes so much longer: 3.3 MB of bf16 there."""


def weaving_cycles(s: Situation, arith: Arithmetic, held: Sequence[Lines], pixels: float, channels: int, stride: int
                   ) -> float:  # fmt: skip
    """Cycles in which the lines of a box become planes of words, so many pixels of each, taken a stride apart."""
    outer = [max(1, h.count) for h in held[:-1]]
    words, lines = -(-channels // arith.channels), math.prod(outer)
    if not s.target.has_masks or stride > 2:
        return words * lines * (_LINE_CYCLES + pixels * arith.bytes * stride / 28)
    slabs = math.prod(outer[:-1])
    far = _FAR_CYCLES if image_bytes(s.problem)[0] > s.profile.cache("l2", _FAR) else 0.0
    return 100.0 + slabs * _SLAB_CYCLES + words * lines * (_ROW_CYCLES + pixels * (_PIXEL_CYCLES * stride + far))


_ALONE_CYCLES, _BYTES = 5.0, 120
"""Of copying a pixel that does not follow the one before it, as those of a group: 4 to 7 for 6 to 17 channels on Zen 5;
and bytes that come in a cycle."""


def copying_cycles(arith: Arithmetic, sizes: Sizes, channels: int, *, follow: bool) -> float:
    """Cycles in which pixels of so many channels, that may ``follow`` each other as in the panel, are copied."""
    of_pixel = 1.0 if follow and sizes.step == 1 else _ALONE_CYCLES
    pixels = math.prod(max(1, h.count) for h in sizes.held)
    return pixels * (of_pixel + channels * channel_bytes(arith) / _BYTES)


_SQUARE_LINE, _SQUARE_CYCLES = 35.0, {1: 50.0, 2: 150.0}
"""Of a line of all channels that is turned from planes; and of a square of 16 pixels by 64 channels of bytes, or of 32
by 32 of 16 bits.  Measured on Zen 5."""


def turning_cycles(arith: Arithmetic, sizes: Sizes, channels: int) -> float:
    """Cycles in which pixels of so many channels are brought from planes, all channels of one together."""
    size, (*outer, run) = channel_bytes(arith), (max(1, h.count) for h in sizes.held)
    squares = -(-run // (16 * size)) * -(-channels // (64 // size))
    return math.prod(outer) * (_SQUARE_LINE + squares * _SQUARE_CYCLES[size])


class DotPanel(Record):
    """Words of a panel that is filled with a box's inputs, if tiles do not read them ``in_place``.

    Each of its planes has ``plane_channels`` of a group.  Lines whose pixels lie as in the panel are moved as
    ``one_run``; ``padding`` is the byte of what lies outside.

    Planes of words may come in runs of rows, the lines of the axis before the last: of ``slabs``, each of so many rows.
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
    by_planes: Word
    slabs: Word
    slab_rows: Word
    row_run_count: Word
    row_runs: Table[RunWords]
    planes_in: Function[PlanesIn]


def pack(k: Module, common: Common, lines: DotPanel, item: Item, x: Buffer, panel: Buffer, vector_bytes: int) -> None:
    """Bring the inputs of a box, and write their padding."""
    by_planes = lines.by_planes.equals(1)
    with k.when(by_planes):
        _pack_planes(k, common, lines, item, x, panel)
    with k.when(by_planes, otherwise=True):
        _pack_lines(k, common, lines, item, x, panel, vector_bytes)


def _pack_planes(k: Module, common: Common, lines: DotPanel, item: Item, x: Buffer, panel: Buffer) -> None:
    """Bring rows of all channels of an item at once, as many as follow each other."""
    inner, has_rows = common.axes - 1, common.axes > 1
    outer = k.maximum(inner - 1, 0)
    across, along = axis_words(common, outer), axis_words(common, inner)
    stride, height = k.select(has_rows, across.stride, 1), k.select(has_rows, across.inp, 1)
    row_step = stride * across.x_stride
    start = common.x_base + item.n * common.x_n + item.g * common.x_g
    with k.loop(0, lines.slabs) as slab:
        offset, inside = line_place(k, common, item, slab.index, start, 2)
        with k.loop(0, lines.row_run_count) as row_number, k.loop(0, common.run_count) as number:
            rows, run = lines.row_runs.at(row_number.index), common.runs.at(number.index)
            top = k.select(has_rows, item.origin(outer), 0) + rows.position
            left = item.origin(inner) + run.position
            first_row, end_row = _inside(k, top, stride, height, rows.count)
            head, end = _inside(k, left, common.step, along.inp, run.count)
            line = slab.index * lines.slab_rows + rows.first
            k.call(lines.planes_in, PlanesIn(
                x + (offset + top * across.x_stride + left * along.x_stride), row_step, common.x_c, lines.channels,
                panel + (line * lines.line_bytes + run.first * lines.pixel_bytes), lines.line_bytes, lines.plane_bytes,
                rows.count, first_row, k.select(inside.equals(1), end_row, first_row), run.count, head, end,
                lines.padding, common.zero_point,
            ))  # fmt: skip


def _inside(k: Module, position: Value, step: Value, extent: Value, count: Value) -> tuple[Value, Value]:
    """Of so many positions a step apart those that lie inside: the first, and the one behind the last."""
    before, until = ((v + (step - 1)) / step for v in (0 - position, extent - position))
    first = k.minimum(k.maximum(before, 0), count)
    return first, k.maximum(k.minimum(until, count), first)


def _pack_lines(k: Module, common: Common, lines: DotPanel, item: Item, x: Buffer, panel: Buffer, vector_bytes: int
               ) -> None:  # fmt: skip
    """Bring line after line."""
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


def panel_common(r: Request, common: Common, step: int) -> Common:
    """The words of every blocked driver, for lines of pixels so many apart, and what is taken off inputs."""
    return altered(common, step=step, zero_point=taken_off(r))


def panel_words(r: Request, sizes: Sizes, channels: int, move_in: Address[MoveIn], last: Axis, *,
                in_place: bool = False) -> DotPanel:  # fmt: skip
    """Words of the panel for so many channels of an item."""
    size, of_pixel = channel_bytes(r.arith), channels * r.x.itemsize
    runs = r.x.c == r.x.itemsize and sizes.step == 1 and channels == r.x_channels and r.x.spatial[-1] == of_pixel
    panel = DotPanel(
        in_place=int(in_place), channels=channels, channel_bytes=size,
        plane_channels=r.arith.channels if sizes.planes else max(1, channels), pixel_bytes=sizes.pixel_bytes,
        line_bytes=sizes.held[-1].count * sizes.pixel_bytes, plane_bytes=sizes.plane_bytes,
        one_run=int(runs and sizes.pixel_bytes == channels * size), padding=padding_of(r), move_in=move_in,
        by_planes=0, slabs=0, slab_rows=0, row_run_count=0, row_runs=[], planes_in=None,
    )  # fmt: skip
    return by_planes(panel, r, sizes.held, replace(last, stride=sizes.step)) if sizes.planes else panel


def by_planes(panel: DotPanel, r: Request, held: Sequence[Lines], last: Axis) -> DotPanel:
    """Words of a panel of planes, whose rows come many at a time where their pixels lie together, and masks are cheap.

    Pixels of ``last`` are its stride apart.
    """
    along, size = along_in(r, last, "c"), channel_bytes(r.arith)
    if not r.target.has_masks or along in ("cc", "any"):
        return panel
    most = max(_WIDTHS) // (2 * r.x.itemsize if along == "2c" else size)
    longest, widths = max((count for _, count, _ in held[-1].runs), default=0), [n for n in _WIDTHS if n <= most]
    wide = next((n for n in widths if n >= longest), widths[-1])
    spec, short = Move(r.problem.x, f"i{8 * size}", along, together=r.arith.channels), longest <= wide
    *outer, rows = held[:-1] or [Lines((0,), ((0, 1, 0),), (0,))]
    slabs = math.prod(h.count for h in outer)
    # a row may be written beyond its end where what follows comes later: not where it is a run of pixels, nor, behind
    # the last row of a plane, where the next plane has some of its rows already
    spills = slabs == len(rows.runs) == len(held[-1].runs) == 1

    def make(k: Module, name: str) -> None:
        planes_in(k, name, spec, wide, short=short, spills=spills)

    return altered(
        panel, by_planes=1, slabs=slabs, slab_rows=rows.count,
        row_run_count=len(rows.runs), row_runs=[RunWords(*run) for run in rows.runs],
        planes_in=address_of(r, f"{spec} planes {wide} {short} {spills}", "planes", PlanesIn, make),
    )  # fmt: skip
