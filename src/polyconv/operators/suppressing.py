"""Boxes that others suppress: of those in order, each that stays takes out all behind it that it overlaps too much.

Turns boxes, the best one first, into a number for each: 1 where it stays.  The one idea: a box that stays is compared
with a vector of those behind it at a time, while all of them are in a near cache.  It must not know scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.kernels.language import Mask, Module, Type, Value, vector
from polyconv.kernels.record import Record, Word, at_once, filled
from polyconv.kernels.values import Buffer
from polyconv.operators.job import Array, Conditions, Drive, Plan, Planning, Step, address_of
from polyconv.operators.lying import Lies
from polyconv.operators.rows import each_vector, read, write
from polyconv.operators.running import Planned
from polyconv.runtime.arrays import aligned

__all__ = ["staying"]

_ROWS = 5
"""Of the kernel's array: left, lower, right and upper ends, and areas."""
_CYCLES = 12.0
"""Of a vector that is compared."""
_LEAST = 256
"""Boxes for which a plan has room; the next ones have twice as much each, so that few plans are made."""


def staying(boxes: Array, threshold: float, most: int) -> NDArray[np.intp]:
    """Numbers of the boxes that stay.

    Parameters
    ----------
    boxes : array of f32 (4, boxes)
        Lower ends along both axes, then upper ends; a better box comes before those that it may take out.
    threshold : float
        Share of what two boxes cover together; if they overlap by more, only one stays.
    most : int
        Boxes that may stay.
    """
    count = boxes.shape[1]
    room = _LEAST << max(0, (count - 1) // _LEAST).bit_length()
    rows = aligned((_ROWS, room), np.float32)
    rows[:4, :count] = boxes
    with np.errstate(all="ignore"):
        rows[4, :count] = (boxes[2] - boxes[0]) * (boxes[3] - boxes[1])
    (flags,) = _PLANNED([rows, np.array([count, most]), np.array([threshold], np.float32)])
    return np.flatnonzero(flags[:count])[:most]


class _Words(Record):
    """Words of the driver: bytes of a row."""

    row: Word


def _planned(given: Sequence[Lies], c: Conditions) -> Plan:
    planning, room = Planning(given, c), given[0].shape[1]
    y = planning.result((room,), np.float32, alike=False)
    lanes = c.target.vector_bytes // 4
    cycles = _CYCLES * room * room / (8 * lanes)  # if a quarter stays

    def steps(threads: int) -> list[Step]:
        keep: list[Any] = []
        driver = address_of("boxes that stay", lambda k, name: _drive(k, name, lanes, c.target.has_masks), c)
        return [Step(driver, filled(_Words(row=room * 4), keep), 1, tuple(keep))]

    planning.job(steps, [0, 1, 2, y], cycles)
    return planning.plan()


_PLANNED = Planned(_planned, 1)


def _drive(k: Module, name: str, lanes: int, masks: bool) -> None:
    """Add the driver; its operands are the rows, how many boxes there are and may stay, the threshold, the result."""
    kind = vector("float", lanes)
    with k.function(name, Drive) as given:
        w = at_once(_Words.read(k, given.words))
        rows = [k.buffer(given.frame) + w.row * at for at in range(_ROWS)]
        numbers, y = k.buffer(given.frame, 2), k.buffer(given.frame, 6)
        count, most = k.word(numbers, 0), k.word(numbers, 1)
        threshold = k.load(kind.scalar, k.buffer(given.frame, 4))

        def there(at: Value, type_: Type, mask: Mask | None) -> None:
            write(k, k.constant(type_, 1.0), y + at * 4, mask)

        each_vector(k, kind, 0, count, masks, there)
        one, none = count - count + 1, count - count
        with k.loop(0, count, carry=[none]) as each:
            stays = k.load(kind.scalar, y + each.index * 4) > 0.5
            kept = each.values[0] + k.select(stays, one, none)
            with k.when(stays & (kept < most)):  # behind the last one nobody asks
                own = [k.load(kind.scalar, row + each.index * 4) for row in rows]

                compared = partial(_compare, k, rows, own, threshold, y)
                begin = each.index - each.index % lanes  # boxes before it that stay do so beside it
                each_vector(k, kind, begin, count, masks, compared)
                k.store(k.constant(kind.scalar, 1.0), y + each.index * 4)  # it overlaps itself
            each.next(kept)


def _compare(k: Module, rows: Sequence[Buffer], own: Sequence[Value], threshold: Value, y: Buffer, at: Value,
             type_: Type, mask: Mask | None) -> None:  # fmt: skip
    """Take out those of some boxes that another one overlaps by more than the threshold.

    They overlap where what they share has an extent along both axes.
    """
    low_a, low_b, high_a, high_b, area = (k.splat(value, type_.lanes) if type_.lanes else value for value in own)
    ends = [read(k, type_, row + at * 4, mask) for row in rows[:4]]
    along, across = (
        k.minimum(end, high) - k.maximum(begin, low)
        for begin, end, low, high in ((ends[0], ends[2], low_a, high_a), (ends[1], ends[3], low_b, high_b))
    )
    none = k.constant(type_, 0.0)
    are_near = (along > none) & (across > none)
    with k.when(k.any(are_near) > 0 if type_.lanes else are_near):  # few are, and quotients take long
        shared, place = along * across, y + at * 4
        together = read(k, type_, rows[4] + at * 4, mask) + area - shared
        limit = k.splat(threshold, type_.lanes) if type_.lanes else threshold
        is_much = are_near & (shared / together > limit)
        write(k, k.select(is_much, none, read(k, type_, place, mask)), place, mask)
