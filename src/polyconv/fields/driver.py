"""The driver of field filters: a box of the field with its border into a panel, then stage after stage of sums.

A *surface* is where lines lie: the panel that the field comes into, panels that stages leave for the next one, and last
the result.  Along every axis a surface has as many lines as the box has outputs and ``left`` more, which later stages
still need.  All panels have the same steps, so that a tap is an offset.  Its words are made in ``program``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from polyconv.dataclass import dataclass
from polyconv.kernels.field import FILLING, LineOfField
from polyconv.kernels.field_sums import TilesOfField
from polyconv.kernels.language import INT, Buffer, Module, Type, Value
from polyconv.kernels.record import Function, Functions, Memory, Record, Table, Word
from polyconv.lowering.panel import BoxWords, Driver, Item, axis_words, decode

__all__ = ["TILES", "FieldWords", "StageWords", "driver"]

TILES = ("rows", "rows_end", "row", "row_end")


class StageWords(Record):
    """A stage: its surfaces; what ``TILES`` it has: rows, columns of a wide one, of a vector; and its taps.

    What starts with ``again`` is for sums that are done again.
    """

    source: Word
    target: Word
    is_last: Word
    is_blanked: Word
    rows: Word
    columns: Word
    lanes: Word
    tiles: Functions[TilesOfField]
    entries: Memory
    entry_count: Word
    weights: Memory
    down: Word
    along: Word
    tap: Word
    places: Memory
    outer: Word
    again_surface: Word
    again: Memory
    again_count: Word
    again_down: Word
    again_along: Word
    constants: Memory


class FieldWords(Record):
    """The driver's words.

    A surface takes ``surface_words`` in the table of ``surfaces``: its base and, for every axis, lines that later
    stages need and bytes between lines.
    """

    boxes: BoxWords
    x_base: Word
    y_base: Word
    line: Function[LineOfField]
    surfaces: Memory
    surface_words: Word
    stage_count: Word
    stages: Table[StageWords]
    constants: Memory
    room: Word
    ahead: Word


@dataclass(frozen=True, slots=True)
class _Surface:
    """A surface of an item; axes are counted from the outermost."""

    k: Module
    p: FieldWords
    item: Item
    number: Value

    def _word(self, place: Value | int) -> Value:
        return self.k.word(self.p.surfaces, self.number * self.p.surface_words + place)

    @property
    def base(self) -> Value:
        """Where it begins, in the workspace or the result."""
        return self._word(0)

    def left(self, axis: Value) -> Value:
        """Lines that later stages need."""
        return self._word(axis * 2 + 1)

    def step(self, axis: Value) -> Value:
        """Bytes between lines along an axis."""
        return self._word(axis * 2 + 2)

    def extent(self, axis: Value) -> Value:
        """Lines along an axis."""
        return self.item.extent(axis) + self.left(axis)

    def bundles(self) -> Value:
        """Lines of all axes but rows and columns."""
        with self.k.loop(0, self.p.boxes.axes - 2, carry=[self.k.constant(INT, 1)]) as axis:
            axis.next(axis.values[0] * self.extent(axis.index))
        found: Value = axis.results[0]
        return found

    def split(self, number: Value, carry: list[Value], step: Callable[[Value, Value, list[Value]], list[Value]]
              ) -> list[Value]:  # fmt: skip
        """What ``step(axis, place, values)`` makes of values, axis by axis, for one of the bundles."""
        k, p = self.k, self.p.boxes
        with k.loop(1, p.axes - 1, carry=[number, *carry]) as back:
            rest, *values = back.values
            axis = p.axes - 2 - back.index
            extent = self.extent(axis)
            back.next(rest // extent, *step(axis, rest % extent, values))
        return back.results[1:]


def driver(k: Module, name: str, panel: str, vector_bytes: int) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module; ``panel`` is the element of the panels."""
    kind = Type(panel)
    lanes = vector_bytes // kind.element_bytes
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = FieldWords.read(k, given.words)
        item = decode(k, p.boxes, given.item, workspace)
        filling = k.load(kind, p.constants + FILLING)
        wide = k.splat(filling, lanes)
        k.store(k.constant(kind, math.nan), workspace + p.room + vector_bytes)  # no number's window is summed yet
        y, lines = frame.y, _Lines(k, p, item, frame.x, workspace, wide)
        with k.loop(0, lines.panel.bundles()) as bundle:
            lines.bring(bundle.index)
        with k.loop(0, p.stage_count) as s:
            one = _Tiles(k, p, item, p.stages.at(s.index), y, workspace)
            with k.loop(0, one.target.bundles()) as bundle:
                one.sum_up(bundle.index)
            with k.when(one.stage.is_blanked.equals(1)):
                _blank(k, p.boxes, one.target, workspace, filling, wide)


class _Lines:
    """The first panel of an item, filled line by line from where a position is found, or with the border's constant."""

    def __init__(self, k: Module, p: FieldWords, item: Item, x: Buffer, workspace: Buffer, filling: Value) -> None:
        self.k, self.p, self.item, self.x, self.workspace, self.filling = k, p, item, x, workspace, filling
        self.panel = _Surface(k, p, item, k.constant(INT, 0))
        self.rows, self.columns = p.boxes.axes - 2, p.boxes.axes - 1
        self.count = self.panel.extent(self.columns)

    def bring(self, bundle: Value) -> None:
        """Fill the lines of a bundle."""
        k, p = self.k, self.p
        record, none = axis_words(p.boxes, self.columns), k.constant(INT, 1)
        start = self.panel.split(bundle, [p.x_base, self.panel.base, none], self._further)
        with k.loop(0, self.panel.extent(self.rows)) as row:
            offset, target, there = self._further(self.rows, row.index, start)
            place = self.workspace + target
            with k.when(there > 0):
                k.call(p.line, LineOfField(
                    self.x + offset, record.x_stride, p.boxes.positions, record.positions,
                    self.item.origin(self.columns), record.inp, place, p.constants, p.ahead, self.count,
                ))  # fmt: skip
            with k.when(there > 0, otherwise=True):
                _fill(k, place, self.count, self.filling)

    def _further(self, axis: Value, place: Value, values: list[Value]) -> list[Value]:
        """Offsets in the field and in the panel along an axis, and whether there is such a line."""
        k, (offset, target, there) = self.k, values
        position = _position(k, self.p.boxes, axis, self.item.origin(axis) + place)
        exists = k.select(position >= 0, there, 0)
        stride = axis_words(self.p.boxes, axis).x_stride
        return [offset + k.maximum(position, 0) * stride, target + place * self.panel.step(axis), exists]


def _position(k: Module, p: BoxWords, axis: Value, at: Value) -> Value:
    """Which position of the field stands for one that may lie beyond it; -1 for the border's constant."""
    record = axis_words(p, axis)
    with k.choice(at.below(record.inp).equals(0), [at]) as outside:
        beyond = k.select(at < 0, at, at - record.inp)
        outside.next(k.word(p.positions, record.positions + beyond))
    found: Value = outside.results[0]
    return found


def _fill(k: Module, target: Buffer, count: Value, filling: Value) -> None:
    """Fill a line of a panel, which has room for whole vectors."""
    with k.loop(0, count, filling.type.lanes) as i:
        k.store(filling, target + i.index * filling.type.element_bytes)


class _Tiles:
    """The sums of a stage of an item: rows by rows, tiles along them; rows too few for tall tiles one by one."""

    def __init__(self, k: Module, p: FieldWords, item: Item, stage: StageWords, y: Buffer, workspace: Buffer) -> None:
        self.k, self.p, self.stage, self.workspace = k, p, stage, workspace
        self.rows, self.columns = p.boxes.axes - 2, p.boxes.axes - 1
        self.source, self.target, self.again = (
            _Surface(k, p, item, number) for number in (stage.source, stage.target, stage.again_surface)
        )
        self.out = k.either(stage.is_last.equals(1), y, workspace)
        width = self.target.extent(self.columns)
        self.wide = width // stage.columns
        rest = width - self.wide * stage.columns
        self.ends = (rest + stage.lanes - 1) // stage.lanes
        self.last = rest - (self.ends - 1) * stage.lanes

    def sum_up(self, bundle: Value) -> None:
        """All rows of a bundle."""
        k, stage = self.k, self.stage
        at, height = self._begin(bundle), self.target.extent(self.rows)
        whole = height // stage.rows * stage.rows
        with k.loop(0, whole, stage.rows) as row:
            self._tiles(TILES.index("rows"), at, row.index)
        with k.loop(whole, height) as row:
            self._tiles(TILES.index("row"), at, row.index)

    def _begin(self, bundle: Value) -> list[Value]:
        """Offsets of a bundle's lines in what the stage reads and writes, and in what it reads again."""
        k, surfaces = self.k, (self.source, self.target, self.again)

        def further(axis: Value, place: Value, values: list[Value]) -> list[Value]:
            return [value + place * surface.step(axis) for value, surface in zip(values, surfaces, strict=True)]

        with k.loop(0, self.p.boxes.axes, carry=[self.target.base]) as axis:
            # a result, unlike a panel, has other boxes, too
            place = self.target.item.first(axis.index) * self.target.step(axis.index)
            axis.next(axis.values[0] + k.select(self.stage.is_last.equals(1), place, 0))
        return self.target.split(bundle, [self.source.base, axis.results[0], self.again.base], further)

    def _tiles(self, number: int, at: list[Value], row: Value) -> None:
        k, stage, workspace = self.k, self.stage, self.workspace
        row_in, row_out, row_again = (surface.step(self.rows) for surface in (self.source, self.target, self.again))
        column_in, column_out = self.source.step(self.columns), self.target.step(self.columns)
        panel = workspace + (at[0] + row * row_in)
        result = self.out + (at[1] + row * row_out)
        again = workspace + (at[2] + row * row_again)
        skipped = self.wide * stage.columns
        for end, times, begin in ((0, self.wide, k.constant(INT, 0)), (1, self.ends, skipped)):
            with k.when(times > 0):
                k.call(stage.tiles.at(number + end), TilesOfField(
                    panel + begin * column_in, row_in, stage.entries, stage.entry_count, stage.weights, stage.down,
                    stage.along, stage.tap, stage.places, stage.outer, result + begin * column_out, row_out,
                    column_out, times, self.last, stage.constants, again + begin * column_in, row_again, stage.again,
                    stage.again_count, stage.again_down, stage.again_along, workspace + self.p.room,
                ))  # fmt: skip


def _blank(k: Module, p: BoxWords, panel: _Surface, workspace: Buffer, filling: Value, wide: Value) -> None:
    """Put the border's constant where the next stages look beyond the field and it stands there."""
    rows, columns, item = p.axes - 2, p.axes - 1, panel.item

    def is_there(axis: Value, place: Value) -> Value:
        with k.choice(panel.left(axis) > 0, [k.constant(INT, 0)]) as needed:
            needed.next(_position(k, p, axis, item.origin(axis) + place))
        position: Value = needed.results[0]
        return position >= 0

    def found(axis: Value, place: Value, values: list[Value]) -> list[Value]:
        target, there = values
        return [target + place * panel.step(axis), k.select(is_there(axis, place), there, 0)]

    inp, count = axis_words(p, columns).inp, panel.extent(columns)
    head = k.minimum(k.maximum(0 - item.origin(columns), 0), count)
    tail = k.minimum(k.maximum(inp - item.origin(columns), head), count)
    with k.loop(0, panel.bundles()) as bundle:
        start = panel.split(bundle.index, [panel.base, k.constant(INT, 1)], found)
        with k.loop(0, panel.extent(rows)) as row:
            target, there = found(rows, row.index, start)
            place = workspace + target
            with k.when(there.equals(0)):
                _fill(k, place, count, wide)
            for low, high in ((k.constant(INT, 0), head), (tail, count)):
                with k.loop(low, high) as i, k.when(is_there(columns, i.index), otherwise=True):
                    k.store(filling, place + i.index * filling.type.element_bytes)
