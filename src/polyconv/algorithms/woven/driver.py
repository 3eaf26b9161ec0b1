"""The driver of ``woven``: boxes of groups of outputs, for all phases of the strides, from one panel of inputs.

Item by item it fills the panel, finds which rows of the box every phase of the outer axes has, and goes through phases
and sets of output channels; tiles compute all phases of the last axis.  They go along rows, straight to the result, or
along the flattened box, into slots from which rows are moved.  It must not know how boxes are chosen.
"""

from __future__ import annotations

from polyconv.dataclass import dataclass
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.layout import MoveIn, MoveOut
from polyconv.kernels.move_rows import RowsOut
from polyconv.kernels.record import Function, Functions, Memory, Record, Table, Word, word_count
from polyconv.kernels.signature import Address
from polyconv.kernels.weave import WeaveTile
from polyconv.lowering.panel import (
    Common,
    Driver,
    EpilogueTables,
    Item,
    axis_words,
    box_rows,
    decode,
    fill_planes,
    row_place,
)
from polyconv.lowering.program import Request, address_of

__all__ = ["PhaseWords", "RowWords", "SetWords", "WovenWords", "address"]


class SetWords(Record):
    """A set of output channels: its first, how many, and most vectors of a tile.

    ``whole`` and ``edges`` are the words where its functions of 0, 1, 2, ... vectors would begin.
    """

    first: Word
    rows: Word
    most: Word
    whole: Word
    edges: Word


class PhaseWords(Record):
    """A phase of the outer axes: weights, bytes of them of a group and of an output channel, entries, bytes to results.

    Behind it stand, for every outer axis, the groups that have such an output: first and end.
    """

    weights: Memory
    w_group: Word
    w_output: Word
    entries: Memory
    count: Word
    y: Word
    r: Word


class RowWords(Record):
    """A row of the box in a phase: words before its line of the panel, bytes to its results and its residual.

    The line is -1 where the phase has no such row.
    """

    line: Word
    y: Word
    r: Word


class WovenWords(Record):
    """The driver's words.

    Every one of the ``phases`` of the outer axes takes ``phase_words`` in their table.  Results of the last axis from
    ``first_out`` to ``last_out`` are there.  Tiles ask for ``ahead_bytes`` of each channel, from ``ahead`` on, a tile
    for ``ahead_step`` / 256 of them.  Rows of the box are found once: the ``row_table`` in the workspace says where.
    Short rows leave ``together`` with their neighbours.
    """

    common: Common
    channels: Word
    planes: Word
    plane_bytes: Word
    line_words: Word
    line_bytes: Word
    word_bytes: Word
    result_bytes: Word
    lanes: Word
    times: Word
    taps: Word
    ahead: Word
    ahead_bytes: Word
    ahead_step: Word
    first_out: Word
    last_out: Word
    outputs: Word
    phases: Word
    phase_words: Word
    phase: Memory
    set_count: Word
    split_sets: Word
    sets: Table[SetWords]
    functions: Functions[WeaveTile]
    flat: Word
    row_table: Word
    slots: Word
    slot_channel: Word
    y_pixel: Word
    r_pixel: Word
    tables: EpilogueTables
    together: Word
    rows_out: Function[RowsOut]
    move_in: Function[MoveIn]
    move_out: Function[MoveOut]


@dataclass(frozen=True, slots=True)
class _Turn:
    """A set of output channels in a phase of the outer axes, over the box of an item."""

    item: Item
    phase: PhaseWords
    set: SetWords
    parts: Value
    share: Value
    larger: Value
    ahead: Buffer


def address(r: Request) -> Address[Driver]:
    """Address of the driver."""
    return address_of(r, "woven", "driver", Driver, lambda k, name: _driver(k, name, r.target.vector_bytes))


def _driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = WovenWords.read(k, given.words)
        c = p.common
        item = decode(k, c, given.item, workspace)
        zero, panel = k.constant(INT, 0), workspace + c.panel
        fill_planes(k, c, p, p.word_bytes, item, frame.x, panel, zero, p.channels, vector_bytes, p.planes)
        rows = box_rows(k, c, item)
        _find_rows(k, p, item, rows, workspace + p.row_table)
        with k.loop(0, c.axes, carry=[p.ahead + c.x_base + item.n * c.x_n + item.g * c.x_g]) as axis:
            axis.next(axis.values[0] + item.origin(axis.index) * axis_words(c, axis.index).x_stride)
        ahead = frame.x + axis.results[0]
        flat, pixels = p.flat.equals(1), item.extent(c.axes - 1)
        last_line, _, _ = row_place(k, c, item, rows - 1)
        along = k.select(flat, last_line * p.line_words + pixels, pixels)
        vectors = (along + p.lanes - 1) // p.lanes
        begin = p.first_out + item.first(c.axes - 1) * p.times
        head, end = k.maximum(0 - begin, 0), k.minimum(pixels * p.times, p.last_out - begin)
        first = item.split * p.split_sets
        last = k.minimum(first + p.split_sets, p.set_count * p.phases)
        with k.loop(first, last) as number:
            phase = PhaseWords.read(k, p.phase + number.index % p.phases * p.phase_words * 8)
            of_set = p.sets.at(number.index // p.phases)
            parts = (vectors + of_set.most - 1) // of_set.most
            of_rows = workspace + p.row_table + (number.index % p.phases) * rows * (word_count(RowWords) * 8)
            turn = _Turn(item, phase, of_set, parts, vectors // parts, vectors % parts, ahead)
            done = (number.index - first) * k.select(flat, 1, rows)
            slots = workspace + p.slots
            with k.when(flat):
                to = _Place(slots, p.slot_channel, p.word_bytes, slots, zero, zero, vectors * p.lanes * p.times)
                _tiles(k, p, turn, panel, to, done)
            low, run = _neighbours(k, p, item, p.phase + number.index % p.phases * p.phase_words * 8)
            with k.loop(0, rows // run[0]) as part:
                row = part.index * run[0] + low
                here = RowWords.at(k, of_rows, row)
                at = here.line * p.word_bytes
                y = frame.y + (here.y + of_set.first * c.y_c)
                r = frame.residual + (here.r + of_set.first * c.r_c)
                with k.when((here.line >= 0) & p.flat.equals(0)):
                    _tiles(k, p, turn, panel + at, _Place(y, c.y_c, p.result_bytes, r, c.r_c, head, end), done + row)
                bias, scale, constants = _tables(p, turn)
                block = (
                    slots + (at * p.times + head * p.word_bytes), p.word_bytes,
                    p.slot_channel, y + head * p.y_pixel, p.y_pixel, c.y_c, end - head, of_set.rows, bias, scale,
                    r + head * p.r_pixel, p.r_pixel, c.r_c, constants,
                )  # fmt: skip
                with k.when((here.line >= 0) & flat & p.together.equals(0)):
                    k.call(p.move_out, MoveOut(*block))
                with k.when((run[1] > 0) & p.together.equals(1)), k.when(here.line >= 0):  # else nobody wrote it
                    inner = axis_words(c, c.axes - 2)
                    k.call(p.rows_out, RowsOut(
                        *block, run[1], inner.pitch * p.line_bytes * p.times, inner.y_stride,
                        inner.r_stride,
                    ))  # fmt: skip


def _neighbours(k: Module, p: WovenWords, item: Item, phase: Buffer) -> tuple[Value, tuple[Value, Value]]:
    """The first row of a run along the last axis but one that a phase has, how many rows a run is and how many it has.

    Rows that leave one by one are runs of one.
    """
    second, lines = k.maximum(p.common.axes - 2, 0), p.together.equals(1)
    bounds = phase + (second * 2 + word_count(PhaseWords)) * 8
    run = k.select(lines, item.extent(second), 1)
    with k.choice(lines, [k.constant(INT, 0), k.constant(INT, 1)]) as found:
        low = k.maximum(k.word(bounds) - item.first(second), 0)
        many = k.minimum(k.word(bounds, 1) - item.first(second), run) - low
        found.next(k.minimum(low, run - 1), many)
    low, many = found.results
    return low, (run, many)


def _find_rows(k: Module, p: WovenWords, item: Item, rows: Value, table: Buffer) -> None:
    """Write the ``RowWords`` of all rows of the box, or of the first of every run, phase by phase."""
    with k.loop(0, p.phases) as number:
        place_of_phase = p.phase + number.index * p.phase_words * 8
        phase = PhaseWords.read(k, place_of_phase)
        low, (run, many) = _neighbours(k, p, item, place_of_phase)
        with k.loop(0, rows // run) as part, k.when(many > 0):
            _find_row(k, p, item, part.index * run + low, number.index * rows, place_of_phase, phase, table)


def _find_row(k: Module, p: WovenWords, item: Item, row: Value, before: Value, place_of_phase: Buffer,
              phase: PhaseWords, table: Buffer) -> None:  # fmt: skip
    c = p.common
    line, y, r = row_place(k, c, item, row)
    with k.loop(1, c.axes, carry=[row, line * p.line_words]) as back:
        q, there = back.values
        axis = c.axes - 1 - back.index
        bounds = place_of_phase + (axis * 2 + word_count(PhaseWords)) * 8
        low, high = k.word(bounds), k.word(bounds, 1)
        place = item.first(axis) + q % item.extent(axis)
        back.next(q // item.extent(axis), k.select((place - low).below(high - low), there, -1))
    here = table + (before + row) * (word_count(RowWords) * 8)
    k.store(back.results[1], here, 8)
    k.store(y + phase.y, here + 8, 8)
    k.store(r + phase.r, here + 16, 8)


def _tables(p: WovenWords, turn: _Turn) -> tuple[Buffer, Buffer, Buffer]:
    """Bias and scale of a turn's channels, and the constants."""
    at = (turn.item.g * p.outputs + turn.set.first) * p.word_bytes
    return p.tables.bias + at, p.tables.scale + at, p.tables.constants


@dataclass(frozen=True, slots=True)
class _Place:
    """Where results of a line begin, and the residual: steps between channels, bytes of a result, which are there."""

    y: Buffer
    y_channel: Value
    y_bytes: Value
    r: Buffer
    r_channel: Value
    head: Value
    end: Value


def _tiles(k: Module, p: WovenWords, turn: _Turn, panel: Buffer, to: _Place, walks: Value) -> None:
    """Near-equal tiles of a turn along a line of the panel, the ``walks``-th of the item.

    Beside their products they ask for the inputs of a box to come, a line of every channel at a time.
    """
    item, phase, of_set = turn.item, turn.phase, turn.set
    weights = phase.weights + (item.g * phase.w_group + of_set.first * phase.w_output)
    with k.loop(0, turn.parts, carry=[k.constant(INT, 0)]) as part:
        first = part.values[0] * p.lanes
        size = turn.share + k.cast("zext", part.index < turn.larger, INT)
        at, along = first * p.times, size * p.lanes * p.times
        edge = (at < to.head) | (at + along > to.end)
        asked = (walks * turn.parts + part.index) * p.ahead_step >> 8
        asks = k.select(asked < p.ahead_bytes, k.constant(INT, -1), 0)
        k.call(p.functions.at_word(k.select(edge, of_set.edges, of_set.whole) + size * 2), WeaveTile(
            panel + first * p.word_bytes, turn.ahead + asked, asks, phase.entries, phase.count, p.taps, weights,
            to.y + at * to.y_bytes, to.y_channel, to.r + at * p.result_bytes, to.r_channel, to.head - at, to.end - at,
            *_tables(p, turn),
        ))  # fmt: skip
        part.next(part.values[0] + size)
