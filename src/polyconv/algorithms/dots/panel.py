"""A panel of words: the inputs of a box as tiles take them, their padding written out.

Channels of a pixel lie together, where neighbouring pixels can follow each other without a gap; or words lie in
planes, woven from planes of channels.  It must not know what tiles make of them.
"""

from __future__ import annotations

from dataclasses import replace

from polyconv.algorithms.dots.form import Sizes
from polyconv.algorithms.dots.situations import channel_bytes, padding_of, taken_off
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import MoveIn
from polyconv.kernels.record import Function, Record, Word
from polyconv.kernels.signature import Address
from polyconv.kernels.words import fill_bytes
from polyconv.lowering.panel import Common, Item, axis_words, fill
from polyconv.lowering.program import Request

__all__ = ["LINE_CYCLES", "DotPanel", "pack_lines", "panel_common", "panel_words"]


LINE_CYCLES = 35
"""Of a line of a plane of words, whatever its length: 30 to 45 in 20 layers on Zen 5."""


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


def panel_common(r: Request, common: Common, step: int) -> Common:
    """The words of every blocked driver, for lines of pixels so many apart, and what is taken off inputs."""
    return replace(common, step=step, zero_point=taken_off(r))


def panel_words(r: Request, sizes: Sizes, channels: int, move_in: Address[MoveIn], *, in_place: bool = False
                ) -> DotPanel:  # fmt: skip
    """Words of the panel for so many channels of an item."""
    size, of_pixel = channel_bytes(r.arith), channels * r.x.itemsize
    runs = r.x.c == r.x.itemsize and sizes.step == 1 and channels == r.x_channels and r.x.spatial[-1] == of_pixel
    return DotPanel(
        in_place=int(in_place), channels=channels, channel_bytes=size,
        plane_channels=r.arith.channels if sizes.planes else max(1, channels), pixel_bytes=sizes.pixel_bytes,
        line_bytes=sizes.held[-1].count * sizes.pixel_bytes, plane_bytes=sizes.plane_bytes,
        one_run=int(runs and sizes.pixel_bytes == channels * size), padding=padding_of(r), move_in=move_in,
    )  # fmt: skip
