"""The list of taps of a row of outputs: those whose inputs exist, found once for all tiles of the row.

An entry is some neighbouring taps along the axis that tiles slide along, of one combination of taps of the axes before
it.  The list lies in the workspace behind the item's box: how many entries there are of each kind, then these.  It
must not know what a tile does with an entry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from polyconv.kernels.depthwise_tile import LIST_HEADER, Entry
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.record import Record, Table, Word, at_once, word_count
from polyconv.lowering.panel import Common, Frame, Item, axis_words, header_bytes
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Sweep

__all__ = [
    "KindWords", "Place", "TapWords", "list_bytes", "list_place", "list_words", "row_offsets", "row_place", "tap_words",
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


class OuterWords(Record):
    """An axis before the slid one: its taps, their dilation, and combinations of taps of the axes behind it."""

    taps: Word
    dilation: Word
    behind: Word


class TapWords(Record):
    """All taps of a sweep.

    Those of the ``outer`` axes, the ones before the ``slid`` one, make combinations.  Along lanes of pixels an entry
    counts in steps of ``lane_step`` elements, at most ``lane_span``.  The list lies at ``place`` in the workspace,
    behind an item's box and the ``MetWords`` of all outer axes.
    """

    slid: Word
    outer: Table[OuterWords]
    kind_count: Word
    kinds: Table[KindWords]
    dilation: Word
    lane_dilation: Word
    lane_step: Word
    lane_span: Word
    w_tap: Word
    place: Word


class MetWords(Record):
    """Taps of an outer axis that meet the input in a row: how many, and what follows one of them is further on.

    In bytes of the input, and in combinations of taps.
    """

    count: Word
    x_step: Word
    number: Word


Place: TypeAlias = tuple[Buffer, Buffer, Buffer]
"""Of input, result and residual."""


def tap_words(sweep: Sweep, slid: int, kinds: Sequence[KindWords], w_tap: int, *, lane_step: int = 1,
              lane_span: int = 0) -> TapWords:  # fmt: skip
    """Words of the taps of a sweep, as kinds of entries, each tap with so many bytes of weights."""
    behind = [math.prod(axis.taps for axis in sweep[a + 1 : slid]) for a in range(slid)]
    return TapWords(
        slid=slid, outer=[OuterWords(*axis) for axis in zip(
            (axis.taps for axis in sweep[:slid]), (axis.dilation for axis in sweep[:slid]), behind, strict=True)],
        kind_count=len(kinds), kinds=kinds, dilation=sweep[slid].dilation, lane_dilation=sweep[-1].dilation,
        lane_step=lane_step, lane_span=lane_span, w_tap=w_tap, place=list_place(len(sweep)),
    )  # fmt: skip


def list_place(axes: int) -> int:
    """Where the first list begins in the workspace of a sweep."""
    return 2 * header_bytes(axes)


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
    return list_place(s.problem.rank + 1) + list_bytes(math.prod(s.problem.k) + 1)


def write_list(k: Module, c: Common, taps: TapWords, item: Item, entries: Buffer, row: Value,
               column: Value | None = None) -> None:  # fmt: skip
    """Write the list of a row: the taps whose lines exist and, of lanes from a ``column`` on, that have some inside."""
    zero, slid = k.constant(INT, 0), taps.slid
    runs, offset, first = _taps_met(k, c, taps, item, row)
    innermost = at_once(MetWords.read(k, _met(taps, item, slid)))
    with k.loop(0, taps.kind_count, carry=[zero]) as number:
        kind, (before,) = at_once(taps.kinds.at(number.index)), number.values
        of_tap = kind.parts * kind.groups * (kind.taps * kind.across)
        with k.loop(0, runs, carry=[before]) as run:
            with k.loop(1, slid, carry=[run.index, offset, first]) as back:
                q, x, tap = back.values
                met = at_once(MetWords.read(k, _met(taps, item, slid - back.index)))
                own = q % met.count
                back.next(q // met.count, x + own * met.x_step, tap + own * met.number)
            _, x, tap = back.results
            with k.loop(0, innermost.count, carry=[*run.values, x, kind.weights + tap * of_tap]) as each:
                count, x, weights = each.values
                count = _write_entries(k, c, taps, kind, entries, count, x, weights, column)
                each.next(count, x + innermost.x_step, weights + of_tap)
            run.next(each.results[0])
        k.store(run.results[0] - before, entries + number.index * 8, 8)
        number.next(run.results[0])


def _met(taps: TapWords, item: Item, axis: Value | int) -> Buffer:
    """Place of the words of the outer axis before one; before the first stands an axis of one tap, which is met."""
    return item.header + ((taps.place >> 1) + axis * (8 * word_count(MetWords)))


def _taps_met(k: Module, c: Common, taps: TapWords, item: Item, row: Value) -> tuple[Value, Value, Value]:
    """Find which taps of the outer axes meet the input in a row.

    Gives how many combinations there are of all but the innermost axis, the first one's bytes into the input, and its
    number among all combinations.
    """
    zero, one = k.constant(INT, 0), k.constant(INT, 1)
    _store(k, (one, zero, zero), _met(taps, item, 0))
    with k.loop(0, taps.slid, carry=[row, zero, zero, one, one]) as back:
        q, offset, first, runs, count = back.values
        axis = taps.slid - 1 - back.index
        record, outer, extent = at_once(axis_words(c, axis)), at_once(taps.outer.at(axis)), item.extent(axis)
        position, step = item.origin(axis) + q % extent * record.stride, outer.dilation
        left = record.inp - position
        at_edge = k.cast("zext", (position < 0) | (left <= (outer.taps - 1) * step), INT)
        with k.loop(0, at_edge, carry=[zero, outer.taps]) as edge:  # divisions that few rows need
            low = k.select(position < 0, (step - 1 - position) // step, 0)
            end = k.minimum(k.select(left > 0, (left + step - 1) // step, 0), outer.taps)
            edge.next(low, k.maximum(end - low, 0))
        low, count = edge.results
        x_step = step * record.x_stride
        _store(k, (count, x_step, outer.behind), _met(taps, item, axis + 1))
        own = k.select(back.index.equals(0), one, count)
        back.next(q // extent, offset + position * record.x_stride + low * x_step, first + low * outer.behind,
                  runs * own, count)  # fmt: skip
    _, offset, first, runs, _ = back.results
    return runs, offset, first


def _write_entries(k: Module, c: Common, taps: TapWords, kind: KindWords, entries: Buffer, count: Value, offset: Value,
                   weights: Value, column: Value | None) -> Value:  # fmt: skip
    """Write the entries of a kind of one combination of outer taps behind ``count`` others; how many there are then."""
    slid, last = axis_words(c, taps.slid), axis_words(c, c.axes - 1)
    slid_stride, last_stride, last_inp = slid.x_stride, last.x_stride, last.inp
    dilation, lane_dilation, step, span = taps.dilation, taps.lane_dilation, taps.lane_step, taps.lane_span
    w_tap, size = taps.w_tap, kind.taps * kind.across
    with k.loop(0, kind.parts, carry=[count, kind.first * dilation, weights]) as part:
        count, shift, weights = part.values
        with k.loop(0, kind.groups, carry=[count, weights, kind.first_across * lane_dilation]) as group:
            count, weights, across = group.values
            entry, kept = [offset + shift * slid_stride, weights * w_tap, shift], k.constant(INT, 1)
            if column is not None:
                entry[0] = entry[0] + across * last_stride
                first, end = column + across, last_inp - column - across
                first = k.select(first < 0, (step - 1 - first) // step, 0)
                end = k.select(end > 0, (end + step - 1) // step, 0)
                entry += [first, end]
                kept = k.cast("zext", (first < end) & (first < span + kind.across), INT)
            _store(k, entry, entries + count * (8 * word_count(Entry)) + LIST_HEADER)
            group.next(count + kept, weights + size, across + kind.across * lane_dilation)
        part.next(group.results[0], shift + kind.taps * dilation, group.results[1])
    found: Value = part.results[0]
    return found


def _store(k: Module, words: Sequence[Value], place: Buffer) -> None:
    for index, word in enumerate(words):
        k.store(word, place + 8 * index, 8)


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
