"""Boxes that others suppress: of those in order, each that stays takes out all behind it that it overlaps too much.

Turns boxes, the best one first, into a number for each: 1 where it stays.  The one idea: boxes lie in memory by their
lower ends along an axis, so that those that a box may overlap follow each other, and a vector of them is compared at a
time.  It must not know scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.kernels.language import INT, Mask, Module, Type, Value, vector
from polyconv.kernels.record import Record, Word, at_once, filled
from polyconv.kernels.values import Buffer
from polyconv.operators.job import Array, Conditions, Drive, Plan, Planning, Step, address_of
from polyconv.operators.lying import Lies
from polyconv.operators.rows import each_vector, read, write
from polyconv.operators.running import Planned
from polyconv.operators.together import spread
from polyconv.runtime.arrays import aligned

__all__ = ["staying"]

_ROWS = 5
"""Of the kernel's array: left, lower, right and upper ends, and areas."""
_WORDS = 3
"""Of its table: where a box lies, and from where to where those that it may overlap do."""
_MARGIN = 1 + 2.0**-20
"""Of the widest box, whose ends are rounded."""
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

    Returns
    -------
    array
        The best one first.
    """
    count = boxes.shape[1]
    room = _LEAST << max(0, (count - 1) // _LEAST).bit_length()
    rows, table = aligned((_ROWS, room), np.float32), np.empty((_WORDS, room), np.int64)
    order = np.argsort(boxes[0], kind="stable")
    rows[:4, :count] = boxes[:, order]
    table[0, order] = np.arange(count)
    with np.errstate(all="ignore"):
        rows[4, :count] = (rows[2, :count] - rows[0, :count]) * (rows[3, :count] - rows[1, :count])
        low, high = boxes[0].astype(np.float64), boxes[2]
        widest = float(np.max(high - low, initial=0.0, where=high > low)) * _MARGIN
        table[1, :count] = np.searchsorted(rows[0, :count], low - widest)
    table[2, :count] = np.searchsorted(rows[0, :count], high)
    (flags,) = _PLANNED([rows, table, np.array([count, most]), np.array([threshold], np.float32)])
    return np.flatnonzero(flags[table[0, :count]])[:most]


class _Words(Record):
    """Words of the driver: bytes of a row, and of one of the table."""

    row: Word
    table: Word


def _planned(given: Sequence[Lies], c: Conditions) -> Plan:
    planning, room = Planning(given, c), given[0].shape[1]
    y = planning.result((room,), np.float32, alike=False)
    lanes = c.target.vector_bytes // 4
    cycles = _CYCLES * room * room / (32 * lanes)  # if a quarter stays, and each may overlap a quarter

    def steps(threads: int) -> list[Step]:
        keep: list[Any] = []
        driver = address_of("boxes that stay", lambda k, name: _drive(k, name, lanes, c.target.has_masks), c)
        return [Step(driver, filled(_Words(row=room * 4, table=room * 8), keep), 1, tuple(keep))]

    planning.job(steps, [0, 1, 2, 3, y], cycles)
    return planning.plan()


_PLANNED = Planned(_planned, 1)


def _drive(k: Module, name: str, lanes: int, masks: bool) -> None:
    """Add the driver.

    Its operands are the rows, the table, how many boxes there are and may stay, the threshold, and the result.
    """
    kind = vector("float", lanes)
    with k.function(name, Drive) as given:
        w = at_once(_Words.read(k, given.words))
        rows = [k.buffer(given.frame) + w.row * at for at in range(_ROWS)]
        places, begins, ends = (k.buffer(given.frame, 2) + w.table * at for at in range(_WORDS))
        numbers, y = k.buffer(given.frame, 4), k.buffer(given.frame, 8)
        count, most = k.word(numbers, 0), k.word(numbers, 1)
        threshold = k.load(kind.scalar, k.buffer(given.frame, 6))

        def there(at: Value, type_: Type, mask: Mask | None) -> None:
            write(k, k.constant(type_, 1.0), y + at * 4, mask)

        each_vector(k, kind, 0, count, masks, there)
        none, one = k.constant(INT, 0), k.constant(INT, 1)
        with k.loop(0, count, carry=[none]) as each:
            place = k.word(places, each.index) * 4
            stays = k.load(kind.scalar, y + place) > 0.5
            kept = each.values[0] + k.select(stays, one, none)
            with k.when(stays & (kept < most)):  # behind the last one nobody asks
                own = [k.load(kind.scalar, row + place) for row in rows]
                begin = k.word(begins, each.index)
                compared = partial(_compare, k, rows, own, threshold, y)
                # better ones that stay do not overlap it much, or it would not stay: nothing happens to them
                each_vector(k, kind, begin - begin % lanes, k.word(ends, each.index), masks, compared)
                k.store(k.constant(kind.scalar, 1.0), y + place)  # it overlaps itself
            each.next(kept)


def _compare(k: Module, rows: Sequence[Buffer], own: Sequence[Value], threshold: Value, y: Buffer, at: Value,
             type_: Type, mask: Mask | None) -> None:  # fmt: skip
    """Take out those of some boxes that another one overlaps by more than the threshold.

    They overlap where what they share has an extent along both axes.
    """
    low_a, low_b, high_a, high_b, area, limit = (spread(k, value, type_) for value in (*own, threshold))
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
        is_much = are_near & (shared / together > limit)
        write(k, k.select(is_much, none, read(k, type_, place, mask)), place, mask)
