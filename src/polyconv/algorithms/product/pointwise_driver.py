"""Native code of pointwise convolutions: rows of a box of outputs, set after set.

Entries of a pixel lie so many bytes apart, or as a list says; or pixels of a tile are copied first.  Results of the
phases of a transposed convolution, which follow each other along the last axis, wait in slots and leave together.
"""

from __future__ import annotations

from dataclasses import replace

from polyconv.algorithms.product.rows import ProductWords, Row, move_row, multiply, multiply_tile, sets_of
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.layout import Move, MoveIn
from polyconv.kernels.record import Function, Memory, Record, Word, words
from polyconv.lowering.boxes import boxed_words
from polyconv.lowering.moves import along_in, move_in_address
from polyconv.lowering.panel import (
    Common,
    Driver,
    Frame,
    Item,
    axis_words,
    box_rows,
    decode,
    header_bytes,
    row_place,
    row_source,
)
from polyconv.lowering.program import Request, zeros
from polyconv.lowering.sweep import Sweep, lines

__all__ = ["driver", "panel_driver", "pointwise_words"]


class PointwiseWords(Record):
    """The driver's words: entries of an output, in a list or as many as there are channels, and how pixels lie.

    Results of ``phases`` sets follow each other, those of a pixel ``y_pixel`` bytes apart.  Of tiles whose pixels are
    copied, those of an entry take ``tile_bytes``.
    """

    common: Common
    channels: Word
    entries: Memory
    x_pixel: Word
    phases: Word
    y_pixel: Word
    r_pixel: Word
    tile_bytes: Word
    move_in: Function[MoveIn]
    products: ProductWords


def driver(k: Module, name: str, *, pixels: bool, listed: bool) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module; lanes are pixels or channels."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = PointwiseWords.read(k, given.words)
        item = decode(k, p.common, given.item, workspace)
        if pixels:
            _align(k, p, item, frame, workspace)
        rows = box_rows(k, p.common, item)
        with k.loop(*sets_of(k, p.products, item)) as of_set, k.loop(0, rows) as row:
            here = _row_of_box(k, p, item, frame, of_set.index * p.phases, row.index, listed=listed)
            with k.when(p.products.fused.equals(1)):
                multiply(k, here, None, pixels=pixels)
            with k.when(p.products.fused.equals(1), otherwise=True):
                slot = workspace + p.products.slots
                with k.loop(0, p.phases) as phase:
                    number = of_set.index * p.phases + phase.index
                    of_phase = _row_of_box(k, p, item, frame, number, row.index, listed=listed)
                    multiply(k, of_phase, slot + phase.index * p.products.slot_pixel, pixels=pixels)
                of_all = replace(here, pixels=here.pixels * p.phases, y_pixel=p.y_pixel, r_pixel=p.r_pixel)
                move_row(k, of_all, slot, p.products.slot_pixel)


def _align(k: Module, p: PointwiseWords, item: Item, frame: Frame, header: Buffer) -> None:
    """Let all boxes of a row but the first begin where a vector of its pixels does: the last takes what is left.

    Arrays of NumPy begin 16 bytes behind a line, so that each load of a vector would take two lines.  On an Emerald
    Rapids layers of AVX-512 took 1.1 to 1.25 times as long.
    """
    c, inner = p.common, p.common.axes - 1
    last, first, end = axis_words(c, inner), item.first(inner), item.first(inner) + item.extent(inner)
    wide = p.products.lanes * p.products.word_bytes
    behind = (k.address(frame.x + row_source(k, c, item, k.constant(INT, 0))) & (wide - 1)) // p.products.word_bytes
    cut = (last.block % p.products.lanes).equals(0) & p.products.fused.equals(1)
    behind = k.select(cut & (last.out > last.block), behind, 0)
    begin = k.maximum(first - behind, 0)
    end = k.select(end < last.out, end - behind, end)
    place = header + inner * 24
    k.store(item.origin(inner) - (first - begin) * last.stride, place, 8)
    k.store(end - begin, place + 8, 8)
    k.store(begin, place + 16, 8)


def panel_driver(k: Module, name: str) -> None:
    """Add the driver that copies the pixels of a tile to a panel, [entry][pixel], which all sets of outputs read."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = PointwiseWords.read(k, given.words)
        item, lanes = decode(k, p.common, given.item, workspace), p.products.lanes
        begin, end = sets_of(k, p.products, item)
        panel, slot = workspace + p.common.panel, workspace + p.products.slots
        most = p.tile_bytes // (lanes * p.products.word_bytes)
        with k.loop(0, box_rows(k, p.common, item)) as row:
            of_row = _row_of_box(k, p, item, frame, begin, row.index, listed=False)
            vectors, y, r = (of_row.pixels + lanes - 1) // lanes, of_row.set.y, of_row.set.r
            parts = (vectors + most - 1) // most
            share, larger = vectors // parts, vectors % parts
            with k.loop(0, parts, carry=[k.constant(INT, 0)]) as part:
                (before,) = part.values
                several = share + k.cast("zext", part.index < larger, INT)
                first = before * lanes
                pixels = k.minimum(several * lanes, of_row.pixels - first)
                k.call(p.move_in, MoveIn(
                    of_row.x + first * p.x_pixel, p.x_pixel, p.common.x_c, panel, p.products.word_bytes, p.tile_bytes,
                    pixels, p.channels, p.common.zero_point,
                ))  # fmt: skip
                following = of_row.x + (first + several * lanes) * p.x_pixel  # the next tile's, on their way meanwhile
                with k.loop(0, p.channels, carry=[following]) as entry:
                    (place,) = entry.values
                    for line in range(2):
                        k.prefetch(place + 64 * line, far=True)
                    entry.next(place + p.common.x_c)
                with k.loop(begin, end) as of_set:
                    own = p.products.sets.at(of_set.index)
                    here = replace(
                        of_row, set=own, x=panel, x_pixel=p.products.word_bytes, x_entry=p.tile_bytes, pixels=pixels,
                        y=of_row.y + (own.y - y + first * of_row.y_pixel),
                        r=of_row.r + (own.r - r + first * of_row.r_pixel),
                    )  # fmt: skip
                    fused, nothing = p.products.fused.equals(1), k.constant(INT, 0)
                    with k.when(fused):
                        multiply_tile(k, here, None, nothing, several)
                    with k.when(fused, otherwise=True):
                        multiply_tile(k, here, slot, nothing, several)
                        move_row(k, here, slot, p.products.slot_pixel)
                part.next(before + several)


def _row_of_box(k: Module, p: PointwiseWords, item: Item, frame: Frame, number: Value, row: Value, *,
               listed: bool) -> Row:  # fmt: skip
    """A row of the box for the set of outputs of a number."""
    of_set, c = p.products.sets.at(number), p.common
    last = axis_words(c, c.axes - 1)
    _, y, r = row_place(k, c, item, row)
    return Row(
        c, p.products, item.g, of_set, frame.x + row_source(k, c, item, row), p.x_pixel, p.entries if listed else c.x_c,
        p.channels, item.extent(c.axes - 1), frame.y + (y + of_set.y), last.y_stride,
        frame.residual + (r + of_set.r), last.r_stride,
    )  # fmt: skip


def pointwise_words(r: Request, axes: Sweep, box: tuple[int, ...], parts: int, products: ProductWords, *,
                    entries: int, listed: list[int] | None, phases: int, copied: int
                    ) -> tuple[PointwiseWords, int]:  # fmt: skip
    """Words for boxes of folded axes, of so many ``entries`` an output, and how many items there are.

    Of so many bytes is the panel to which pixels of a tile are copied, if they are.
    """
    held = [lines(axis, b) for axis, b in zip(axes, box, strict=True)]
    common, items = boxed_words(r, axes, box, held, parts, panel=header_bytes(len(axes)))
    out_step = axes[-1].out_step // phases
    move = Move(r.problem.x, r.arith.accumulator, along_in(r, axes[-1], "p"))
    return PointwiseWords(
        common=common, channels=entries, entries=words(listed) if listed else zeros(),
        x_pixel=axes[-1].stride * r.x.spatial[-1], phases=phases, y_pixel=out_step * r.y.spatial[-1],
        r_pixel=0 if r.residual is None else out_step * r.residual.spatial[-1],
        tile_bytes=copied // entries, move_in=move_in_address(r, move) if copied else None, products=products,
    ), items  # fmt: skip
