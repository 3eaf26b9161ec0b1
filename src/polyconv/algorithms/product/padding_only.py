"""Outputs of kernels of one tap that meet only padding: boxes of them, filled with the epilogue of a sum of nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from polyconv.algorithms.panel import Driver, box_rows, decode, header_bytes
from polyconv.algorithms.product.folding import with_folded
from polyconv.algorithms.product.pointwise_driver import PointwiseWords, pointwise_words, row_of_box
from polyconv.algorithms.product.rows import OutputSet, move_row
from polyconv.algorithms.product.sets import Slots, cut_outputs, slot_words
from polyconv.algorithms.program import Request, Step, address_of, along_out, boxes
from polyconv.algorithms.sweep import Axis, Sweep
from polyconv.kernels.language import INT, Module
from polyconv.kernels.record import filled

__all__ = ["fill_step", "padding_apart"]

_MOST_PIXELS = 512
"""Outputs of a box."""


def padding_apart(sweep: Sweep) -> tuple[Sweep, list[Sweep]]:
    """The box of outputs whose tap lies inside the input, and the boxes around it."""
    inner: list[Axis] = []
    around: list[Sweep] = []
    for a, axis in enumerate(sweep):
        low = min(axis.out, max(0, -(-axis.pad // axis.stride)))
        high = max(low, min(axis.out, (axis.inp - 1 + axis.pad) // axis.stride + 1))
        for first, end in ((0, low), (high, axis.out)):
            if end > first:
                here = Axis(end - first, 1, 0, 1, 1, 0, axis.first_out + first * axis.out_step, axis.out_step)
                around.append((*inner, here, *sweep[a + 1 :]))
        inner.append(replace(axis, out=high - low, pad=axis.pad - low * axis.stride,
                             first_out=axis.first_out + low * axis.out_step))  # fmt: skip
    return tuple(inner), around


def driver(k: Module, name: str) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = PointwiseWords.read(k, given.words)
        item = decode(k, p.common, given.item, workspace)
        k.clear(workspace + p.point.slots, 256)  # a vector or two of zeros serve as all pixels
        with k.loop(0, p.point.set_count) as of_set, k.loop(0, box_rows(k, p.common, item)) as row:
            here = row_of_box(k, p, item, frame, of_set.index, row.index)
            move_row(k, here, workspace + p.point.slots, k.constant(INT, 0))


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
    point = replace(slot_words(r, slots, along_out(r, axes[-1], "c"), len(sets), 1), sets=of_sets)
    box = boxes([axis.out for axis in axes], math.prod, _MOST_PIXELS)
    values, items = pointwise_words(r, axes, box, 1, point)
    return Step(address_of(r, "pointwise fill", "driver", Driver, driver), filled(values, keep), items)
