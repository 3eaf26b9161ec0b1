"""Native code of pointwise convolutions: rows of a box of outputs, set after set, with nothing packed.

Entries of a pixel lie so many bytes apart, or as a list says.  Results of the phases of a transposed convolution, which
follow each other along the last axis, wait in slots and leave together.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from polyconv.algorithms.product.axes import with_folded
from polyconv.algorithms.product.rows import OutputSet, ProductWords, Row, move_row, multiply, sets_of
from polyconv.algorithms.product.sets import Slots, cut_outputs, slot_words
from polyconv.kernels.language import INT, Module, Value
from polyconv.kernels.record import Memory, Record, Word, altered, filled, words
from polyconv.lowering.boxes import boxed_words, boxes
from polyconv.lowering.moves import along_out
from polyconv.lowering.panel import Common, Driver, Frame, Item, axis_words, box_rows, decode, header_bytes, row_place
from polyconv.lowering.program import Request, Step, address_of, zeros
from polyconv.lowering.sweep import Sweep, lines

__all__ = ["driver", "fill_step", "pointwise_words"]

_MOST_FILLED = 512
"""Outputs of a box of those that meet only padding."""


class PointwiseWords(Record):
    """The driver's words: entries of an output, in a list or as many as there are channels, and how pixels lie.

    Results of ``phases`` sets follow each other, those of a pixel ``y_pixel`` bytes apart.
    """

    common: Common
    channels: Word
    entries: Memory
    x_pixel: Word
    phases: Word
    y_pixel: Word
    r_pixel: Word
    products: ProductWords


def driver(k: Module, name: str, *, pixels: bool, listed: bool = False) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module; lanes are pixels or channels."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = PointwiseWords.read(k, given.words)
        item = decode(k, p.common, given.item, workspace)
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


def fill_driver(k: Module, name: str) -> None:
    """Add the driver that gives outputs which meet only padding the epilogue of a sum of nothing."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = PointwiseWords.read(k, given.words)
        item = decode(k, p.common, given.item, workspace)
        k.clear(workspace + p.products.slots, 256)  # a vector or two of zeros serve as all pixels
        with k.loop(0, p.products.set_count) as of_set, k.loop(0, box_rows(k, p.common, item)) as row:
            here = _row_of_box(k, p, item, frame, of_set.index, row.index)
            move_row(k, here, workspace + p.products.slots, k.constant(INT, 0))


def _row_of_box(k: Module, p: PointwiseWords, item: Item, frame: Frame, number: Value, row: Value, *,
               listed: bool = False) -> Row:  # fmt: skip
    """A row of the box for the set of outputs of a number."""
    of_set, c = p.products.sets.at(number), p.common
    last = axis_words(c, c.axes - 1)
    x0 = c.x_base + item.n * c.x_n + item.g * c.x_g + item.origin(c.axes - 1) * last.x_stride
    with k.loop(1, c.axes, carry=[row, x0]) as back:
        q, x = back.values
        axis = c.axes - 1 - back.index
        record = axis_words(c, axis)
        position = item.origin(axis) + q % item.extent(axis) * record.stride
        back.next(q // item.extent(axis), x + position * record.x_stride)
    _, y, r = row_place(k, c, item, row)
    return Row(
        c, p.products, item.g, of_set, frame.x + back.results[1], p.x_pixel, p.entries if listed else c.x_c, p.channels,
        item.extent(c.axes - 1), frame.y + (y + of_set.y), last.y_stride,
        frame.residual + (r + of_set.r), last.r_stride,
    )  # fmt: skip


def pointwise_words(r: Request, axes: Sweep, box: tuple[int, ...], parts: int, products: ProductWords, *,
                    entries: int = 0, listed: list[int] | None = None, phases: int = 1
                    ) -> tuple[PointwiseWords, int]:  # fmt: skip
    """Words for boxes of folded axes, of so many ``entries`` an output, and how many items there are."""
    held = [lines(axis, b) for axis, b in zip(axes, box, strict=True)]
    common, items = boxed_words(r, axes, box, held, parts)
    out_step = axes[-1].out_step // phases
    return PointwiseWords(
        common=common, channels=entries, entries=words(listed) if listed else zeros(),
        x_pixel=axes[-1].stride * r.x.spatial[-1], phases=phases, y_pixel=out_step * r.y.spatial[-1],
        r_pixel=0 if r.residual is None else out_step * r.residual.spatial[-1], products=products,
    ), items  # fmt: skip


def fill_step(given: Request, sweep: Sweep, keep: list[Any]) -> Step:
    """The step of a box of outputs that meet only padding."""
    r, axes = with_folded(given, sweep)
    sets = cut_outputs(r.situation, "channel").sets
    r_c = 0 if r.residual is None else r.residual.c
    of_sets = [
        OutputSet(
            first, outputs, weights=0, most=0, functions=0, edges=0, there=0, early=0, early_step=0,
            y=first * r.y.c, r=first * r_c,
        )
        for first, outputs in sets
    ]  # fmt: skip
    slots = Slots(header_bytes(len(axes)), 0, 0, r.arith.bytes)
    products = altered(slot_words(r, slots, along_out(r, axes[-1], "c"), len(sets), 1), sets=of_sets)
    box = boxes([axis.out for axis in axes], math.prod, _MOST_FILLED)
    values, items = pointwise_words(r, axes, box, 1, products)
    return Step(address_of(r, "pointwise fill", "driver", Driver, fill_driver), filled(values, keep), items)
