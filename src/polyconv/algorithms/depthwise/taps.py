"""The list of taps of a row of outputs: those whose inputs exist, found once for all tiles of the row.

An entry is some neighbouring taps along the axis that tiles slide along, of one combination of taps of the axes before
it.  The list lies in the workspace behind the item's box: how many entries there are of each kind, then these.  It
must not know what a tile does with an entry.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TypeAlias

from polyconv.kernels.depthwise_tile import LIST_HEADER, Entry
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.record import Memory, Record, Table, Word, word_count
from polyconv.lowering.panel import Common, Frame, Item, axis_words, header_bytes
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Sweep

__all__ = [
    "KindWords", "Place", "TapWords", "list_bytes", "list_words", "row_offsets", "row_place", "tap_words",
    "workspace_of", "write_list",
]  # fmt: skip


class KindWords(Record):
    """A kind of entries of one combination of outer taps.

    Along the sliding axis they are so many ``parts`` of ``taps`` each, from tap ``first`` on; across the lanes
    ``groups`` of ``across`` taps, from ``first_across`` on.  Their weights begin ``weights`` taps further on.
    """

    parts: Word
    taps: Word
    first: Word
    groups: Word
    across: Word
    first_across: Word
    weights: Word


class TapWords(Record):
    """All taps of a sweep.

    Those of the axes before the ``slid`` one make ``outer`` combinations, each with its ``offsets`` in input
    positions.  Along lanes of pixels an entry counts in steps of ``lane_step`` elements, at most ``lane_span``.
    """

    slid: Word
    outer: Word
    offsets: Memory
    kind_count: Word
    kinds: Table[KindWords]
    dilation: Word
    lane_dilation: Word
    lane_step: Word
    lane_span: Word
    w_tap: Word
    place: Word


Place: TypeAlias = tuple[Buffer, Buffer, Buffer]
"""Of input, result and residual."""


def tap_words(sweep: Sweep, slid: int, kinds: Sequence[KindWords], w_tap: int, *, lane_step: int = 1,
              lane_span: int = 0) -> TapWords:  # fmt: skip
    """Words of the taps of a sweep, as kinds of entries, each tap with so many bytes of weights."""
    outer = list(itertools.product(*([t * axis.dilation for t in range(axis.taps)] for axis in sweep[:slid])))
    return TapWords(
        slid=slid, outer=len(outer), offsets=[offset for taps in outer for offset in taps],
        kind_count=len(kinds), kinds=kinds, dilation=sweep[slid].dilation, lane_dilation=sweep[-1].dilation,
        lane_step=lane_step, lane_span=lane_span, w_tap=w_tap, place=header_bytes(len(sweep)),
    )  # fmt: skip


def list_bytes(entries: int) -> int:
    """Bytes of a list of so many entries."""
    return LIST_HEADER + 8 * word_count(Entry) * entries


def list_words(entries: Sequence[tuple[int, int]]) -> list[int]:
    """A list as ``write_list`` writes it, of one kind, from the offsets in input and weights of all entries."""
    found = [len(entries), *[0] * (LIST_HEADER // 8 - 1)]
    for offsets in entries:
        found += [*offsets, *[0] * (word_count(Entry) - 2)]
    return found


def workspace_of(s: Situation) -> int:
    """Bytes of an item's box and a list of all taps; what is written for an entry that is left out lies behind it."""
    return header_bytes(s.problem.rank + 1) + list_bytes(math.prod(s.problem.k) + 1)


def write_list(k: Module, c: Common, taps: TapWords, item: Item, entries: Buffer, row: Value,
               column: Value | None = None) -> None:  # fmt: skip
    """Write the list of a row: the taps whose lines exist and, of lanes from a ``column`` on, that have some inside."""
    zero = k.constant(INT, 0)
    with k.loop(0, taps.kind_count, carry=[zero]) as number:
        kind, (before,) = taps.kinds.at(number.index), number.values
        with k.loop(0, taps.outer, carry=[before]) as tap:
            with k.loop(0, taps.slid, carry=[row, zero, k.constant(INT, 1)]) as back:
                q, offset, inside = back.values
                axis = taps.slid - 1 - back.index
                record, extent = axis_words(c, axis), item.extent(axis)
                shift = k.word(taps.offsets, tap.index * taps.slid + axis)
                position = item.origin(axis) + q % extent * record.stride + shift
                within = k.cast("zext", position.below(record.inp), INT)
                back.next(q // extent, offset + position * record.x_stride, inside & within)
            _, offset, inside = back.results
            weights = kind.weights + tap.index * kind.parts * kind.groups * (kind.taps * kind.across)
            with k.loop(0, kind.parts * kind.groups * inside, carry=tap.values) as each:
                (count,) = each.values
                kept = _write_entry(k, c, taps, kind, each.index, entries, count, offset, weights, column)
                each.next(count + kept)
            tap.next(each.results[0])
        k.store(tap.results[0] - before, entries + number.index * 8, 8)
        number.next(tap.results[0])


def _write_entry(
    k: Module, c: Common, taps: TapWords, kind: KindWords, number: Value, entries: Buffer, count: Value,
    offset: Value, weights: Value, column: Value | None,
) -> Value:  # fmt: skip
    """Write an entry of a kind as the next one of the list; 1 if it counts, else 0."""
    slid, last = axis_words(c, taps.slid), axis_words(c, c.axes - 1)
    shift = (kind.first + number // kind.groups * kind.taps) * taps.dilation
    offset = offset + shift * slid.x_stride
    entry, kept = [offset, (weights + number * (kind.taps * kind.across)) * taps.w_tap, shift], k.constant(INT, 1)
    if column is not None:
        across = (kind.first_across + number % kind.groups * kind.across) * taps.lane_dilation
        entry[0] = offset + across * last.x_stride
        first, end, step = column + across, last.inp - column - across, taps.lane_step
        first = k.select(first < 0, (step - 1 - first) // step, 0)
        end = k.select(end > 0, (end + step - 1) // step, 0)
        entry += [first, end]
        kept = k.cast("zext", (first < end) & (first < taps.lane_span + kind.across), INT)
    for index, word in enumerate(entry):
        k.store(word, entries + count * (8 * word_count(Entry)) + (LIST_HEADER + 8 * index), 8)
    return kept


def row_place(k: Module, c: Common, slid: Value, item: Item, frame: Frame, row: Value, g: Value) -> Place:
    """Where a row of a box begins in the arrays of a call."""
    x, y, r = row_offsets(k, c, slid, item, row, g)
    return frame.x + x, frame.y + y, frame.residual + r


def row_offsets(k: Module, c: Common, slid: Value, item: Item, row: Value, g: Value) -> tuple[Value, Value, Value]:
    """Bytes to where a row of a box begins, of the channels of item ``g``, for its first output along the sliding axis.

    The input is at its first position before tap offsets, without the axes that entries know.
    """
    of_axis, o = axis_words(c, slid), item.first(slid)
    y = c.y_base + item.n * c.y_n + g * c.y_g + o * of_axis.y_stride
    r = c.r_base + item.n * c.r_n + g * c.r_g + o * of_axis.r_stride
    with k.loop(0, slid, carry=[row, y, r]) as back:
        q, y, r = back.values
        axis = slid - 1 - back.index
        record, extent = axis_words(c, axis), item.extent(axis)
        o = item.first(axis) + q % extent
        back.next(q // extent, y + o * record.y_stride, r + o * record.r_stride)
    _, y, r = back.results
    x = c.x_base + item.n * c.x_n + g * c.x_g + item.origin(slid) * of_axis.x_stride
    return x, y, r
