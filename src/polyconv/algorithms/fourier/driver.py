"""The driver of convolution by Fourier transforms: tiles into planes, products of spectra, and back.

It must not know how tiles are chosen.
"""

from __future__ import annotations

from polyconv.algorithms.careful import CarefulBox
from polyconv.algorithms.fourier.words import FftWords
from polyconv.dataclass import dataclass
from polyconv.kernels.fft import ChannelProduct, PairProduct, Pairs, Pass, Scan
from polyconv.kernels.language import INT, Buffer, Module, Type, Value, vector
from polyconv.kernels.layout import MoveIn, MoveOut
from polyconv.lowering.panel import Driver, Frame, Item, axis_words, decode, write_box

__all__ = ["driver"]


@dataclass(frozen=True, slots=True)
class _Work:
    """An item: what its call, its words and its number say; ``used`` are the lanes, or tiles, that it has.

    A run is one of lanes that are read and written alike: tile of the first lane, first lane, lanes.
    """

    k: Module
    p: FftWords
    kind: str
    of_lane: Type
    frame: Frame
    workspace: Buffer
    item: Item
    used: Value

    @property
    def point(self) -> int:
        """Bytes of a complex point."""
        return 2 * self.of_lane.bytes

    @property
    def run_count(self) -> Value:
        """How many runs there are."""
        return self.k.word(self.workspace + self.p.runs)

    def run(self, number: Value) -> tuple[Item, Value, Value]:
        """Box, first lane and lanes of a run."""
        of_run = self.workspace + (self.p.runs + number * 24)
        return self.box(self.k.word(of_run, 1)), self.k.word(of_run, 2), self.k.word(of_run, 3)

    def box(self, tile: Value) -> Item:
        """The box of a tile; where an item has one tile, it is the item's."""
        item = self.item
        header = self.workspace if self.kind == "own" else self.workspace + (tile + 1) * (self.p.common.axes * 24)
        return Item(self.k, header, item.n, item.g, item.split)

    def saw(self, tile: Value) -> Buffer:
        """Where NaN stands once a result of a tile was not finite."""
        return self.workspace + (self.p.seen + tile * self.of_lane.bytes)


def driver(k: Module, name: str, kind: str, element: str, lanes: int) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` of a kind to a module."""
    of_lane = vector(element, lanes)
    with k.function(name, Driver) as given:
        p = FftWords.read(k, given.words)
        item = decode(k, p.common, given.item, given.workspace)
        used = _runs(k, p, item, given.workspace, given.item, kind, lanes)
        work = _Work(k, p, kind, of_lane, given.frame, given.workspace, item, used)
        with k.loop(0, used if kind == "dense" else 1) as tile:
            k.store(k.constant(of_lane, 0), work.saw(tile.index))
        first = item.split * p.split_outputs
        outputs = first, k.minimum(first + p.split_outputs, p.outputs)
        (_matrices if kind == "dense" else _lane_by_lane)(work, outputs)
        _repair(work, outputs)


def _write(k: Module, place: Buffer, *values: Value | int) -> None:
    """Write words that follow each other."""
    for index, value in enumerate(values):
        k.store(k.constant(INT, value) if isinstance(value, int) else value, place + 8 * index, 8)


def _runs(k: Module, p: FftWords, item: Item, workspace: Buffer, number: Value, kind: str, lanes: int) -> Value:
    """Write the boxes of the item's tiles, and its runs; returns how many lanes it uses, or tiles."""
    runs = workspace + p.runs
    if kind == "own":
        used = k.minimum(p.total - item.g * lanes, lanes)
        _write(k, runs, 1, 0, 0, used)
        return used
    first = number % p.common.boxes * p.together
    used = k.minimum(p.together, p.total - first)
    axes = p.common.axes
    last, reach = axis_words(p.common, axes - 1), k.word(p.tile.reaches, axes - 1)
    with k.loop(0, used, carry=[k.constant(INT, 0), k.constant(INT, 0)]) as tile:
        count, before = tile.values
        header = workspace + (tile.index + 1) * (axes * 24)
        write_box(k, p.common, first + tile.index, header)
        box = Item(k, header, item.n, item.g, item.split)
        origin, extent = box.origin(axes - 1), box.extent(axes - 1)
        inside = (origin >= 0) & (origin + reach <= last.inp) & extent.equals(last.block)
        inside_word = k.cast("zext", inside, INT)
        follows = k.cast("zext", (box.first(axes - 1) > 0), INT) & inside_word & before
        count = count + 1 - follows
        run = runs + (count - 1) * 24
        begin = k.select(follows.equals(1), k.word(run, 1), tile.index)
        _write(k, run + 8, begin, begin, tile.index + 1 - begin)
        tile.next(count, inside_word)
    _write(k, runs, tile.results[0])
    return used


def _lane_by_lane(work: _Work, outputs: tuple[Value, Value]) -> None:
    """A tile in every lane: its products are lane by lane."""
    k, p, planes = work.k, work.p, work.workspace + work.p.planes
    with k.loop(0, p.inputs) as channel:
        _forward(work, planes + channel.index * p.plane, channel.index, work.used)
    target = planes + p.target
    with k.loop(*outputs) as block:
        weights = p.weights + (work.item.g * p.w_g + block.index * p.w_block)
        k.call(p.functions.product, PairProduct(planes, p.plane, p.inputs, p.pairs, p.pair_count, weights, target))
        _back(work, target, block.index, work.workspace + p.seen)


def _matrices(work: _Work, outputs: tuple[Value, Value]) -> None:
    """Channels in the lanes: at every point a matrix product for all tiles of the item."""
    k, p, lanes = work.k, work.p, work.of_lane.lanes
    planes, runs = work.workspace + p.planes, work.workspace + p.runs
    tile_step = p.inputs * p.plane
    with k.loop(0, work.used) as tile, k.loop(0, p.inputs) as v:
        plane = planes + (tile.index * tile_step + v.index * p.plane)
        channel = v.index * lanes
        here = k.minimum(p.channels - channel, lanes)
        _write(k, runs, 1, tile.index, 0, here)
        _forward(work, plane, channel, here)
        k.call(p.functions.apart, Pairs(plane, p.pairs, p.pair_count))
    target = planes + p.target
    with k.loop(*outputs) as block:
        weights = p.weights + (work.item.g * p.w_g + block.index * p.w_block)
        k.call(p.functions.products.at(work.used - 1), ChannelProduct(
            planes, tile_step, p.plane, p.channels, p.slots, p.pair_count * 2, weights, target, p.plane,
        ))  # fmt: skip
        with k.loop(0, work.used) as tile:
            plane = target + tile.index * p.plane
            k.call(p.functions.unite, Pairs(plane, p.pairs, p.pair_count))
            _write(k, runs + 8, tile.index)
            _back(work, plane, block.index, work.saw(tile.index))


def _forward(work: _Work, plane: Buffer, channel: Value, lanes: Value) -> None:
    """Bring a tile into a plane row by row, and transform it; rows that are all zeros stay as they are."""
    k, p, last = work.k, work.p, work.p.common.axes - 1
    c, item = p.common, work.item
    start = c.x_base + item.n * c.x_n + item.g * c.x_g + channel * c.x_c
    of_row = p.tile.lines.at(last)
    with k.loop(0, p.tile.rows) as row:
        record = p.tile.row_table + row.index * (p.tile.row_words * 8)
        line = plane + k.word(record)
        with k.loop(0, 2, carry=[k.constant(INT, 0)]) as parts:
            points = line + parts.index * work.of_lane.bytes
            parts.next(parts.values[0] | _bring(work, record, parts.index, points, start, lanes))
        with k.when(parts.results[0].equals(1)):
            _passes(work, plane, record, 1, of_row.forward, of_row.passes)
    with k.loop(1, p.common.axes) as axis:
        _columns(work, plane, p.common.axes - 1 - axis.index, back=False)


def _bring(work: _Work, record: Buffer, part: Value, points: Buffer, start: Value, lanes: Value) -> Value:
    """Bring one part of a row into its points, with zeros around; 1 if there was input, else 0."""
    k, p, c, last = work.k, work.p, work.p.common, work.p.common.axes - 1
    along, element, zero = axis_words(c, last), work.of_lane.element_bytes, k.constant(work.of_lane, 0)

    def clear(low: Value | int, high: Value) -> None:
        with k.loop(low, high) as i:
            k.store(zero, points + i.index * work.point)

    # a run that fills all lanes leaves zeros around it; others go where there are zeros already
    whole = lanes.equals(work.of_lane.lanes) & work.run_count.equals(1)
    with k.when(whole, otherwise=True):
        clear(0, p.tile.points)
    with k.loop(0, work.run_count, carry=[k.constant(INT, 0)]) as run:
        box, first, count = work.run(run.index)
        with k.loop(0, last, carry=[start, k.constant(INT, 1)]) as outer:
            offset, inside = outer.values
            axis, of_axis = outer.index, axis_words(c, outer.index)
            at = k.word(record, 2 + axis) + k.select(axis.equals(0), part, 0)
            position = box.origin(axis) + at
            within = (at < k.word(p.tile.reaches, axis)) & position.below(of_axis.inp)
            outer.next(offset + position * of_axis.x_stride, inside & k.cast("zext", within, INT))
        offset, inside = outer.results
        step = p.tile.pixel_step  # 1 or 2: a shift by step - 1 divides
        before = k.select(last.equals(0), part, 0)
        at = box.origin(last) + before
        reach = (k.word(p.tile.reaches, last) - before + step - 1) >> (step - 1)
        head = k.minimum(k.select(at < 0, (step - 1 - at) >> (step - 1), 0), reach)
        end = k.select(at < along.inp, (along.inp - at + step - 1) >> (step - 1), 0)
        end = k.select(inside.equals(1), k.maximum(k.minimum(end, reach), head), head)
        with k.when(whole):
            clear(0, head)
            clear(end, p.tile.points)
        there = end > head
        with k.when(there):
            k.call(p.move_in, MoveIn(
                work.frame.x + (offset + (at + head * step) * along.x_stride), step * along.x_stride, p.beside.x_lane,
                points + (head * work.point + first * element), work.point, element, end - head, count, 0,
            ))  # fmt: skip
        run.next(run.values[0] | k.cast("zext", there, INT))
    found: Value = run.results[0]
    return found


def _passes(work: _Work, plane: Buffer, places: Buffer, lines: Value | int, first: Value, count: Value) -> None:
    with work.k.loop(0, count) as each:
        one = work.p.tile.passes.at(first + each.index)
        work.k.call(one.function, Pass(
            plane, places, lines, one.leg, one.inner, one.step, one.outer, one.outer_step, one.twiddles,
        ))  # fmt: skip


def _columns(work: _Work, plane: Buffer, axis: Value, *, back: bool) -> None:
    """Transform all lines along an axis, as many at a time as stay near."""
    k, tile = work.k, work.p.tile
    lines = tile.lines.at(axis)
    first, count = lines.backward if back else lines.forward, lines.passes
    with k.loop(0, lines.count, lines.together) as line:
        places = tile.offsets + (lines.first + line.index) * 8
        _passes(work, plane, places, k.minimum(lines.together, lines.count - line.index), first, count)


def _back(work: _Work, plane: Buffer, block: Value, seen: Buffer) -> None:
    """Transform a plane back, along the last axis row by row, leaving out what holds no output."""
    k, p, last = work.k, work.p, work.p.common.axes - 1
    with k.loop(0, p.common.axes - 1) as axis:
        _columns(work, plane, axis.index, back=True)
    of_row = p.tile.lines.at(last)
    with k.loop(0, p.tile.rows) as row:
        record = p.tile.row_table + row.index * (p.tile.row_words * 8)
        with k.when(k.word(record, 1).equals(1)):
            _passes(work, plane, record, 1, of_row.backward, of_row.passes)
            with k.loop(0, 2) as parts:
                _put(work, record, parts.index, plane + k.word(record), block, seen)


def _put(work: _Work, record: Buffer, part: Value, line: Buffer, block: Value, seen: Buffer) -> None:
    """Move one part of a row to its place in the result."""
    k, p, c, last = work.k, work.p, work.p.common, work.p.common.axes - 1
    item, along, of_part = work.item, axis_words(c, last), p.tile.parts.at(part)
    element, step = work.of_lane.element_bytes, p.tile.from_step * work.point
    y_start = c.y_base + item.n * c.y_n + item.g * c.y_g + block * p.beside.y_block
    r_start = c.r_base + item.n * c.r_n + item.g * c.r_g + block * p.beside.r_block
    bias = p.bias + (item.g * p.bias_g + block * p.bias_block)
    points = line + (part * work.of_lane.bytes + of_part.begin * work.point)
    with k.loop(0, work.run_count) as run:
        box, first, count = work.run(run.index)
        if work.kind == "dense":
            count = k.select(block.equals(p.outputs - 1), p.last_outputs, work.of_lane.lanes)
        with k.loop(0, last, carry=[y_start, r_start, k.constant(INT, 1)]) as outer:
            y, r, inside = outer.values
            axis, of_axis = outer.index, axis_words(c, outer.index)
            output = k.word(record, last * (part + 1) + axis + 2)
            there = k.cast("zext", output < box.extent(axis), INT)
            o = box.first(axis) + output
            outer.next(y + o * of_axis.y_stride, r + o * of_axis.r_stride, inside & there)
        y, r, inside = outer.results
        o = box.first(last) + of_part.first
        pixels = (box.extent(last) - of_part.first + of_part.step - 1) // of_part.step
        pixels = k.select(box.extent(last) > of_part.first, k.minimum(pixels, of_part.count), 0)
        with k.when(inside.equals(1) & (pixels > 0)):
            k.call(p.functions.scan, Scan(points, of_part.count, step, seen))
            k.call(p.move_out, MoveOut(
                points + first * element, step, element,
                work.frame.y + (y + o * along.y_stride), of_part.step * along.y_stride, p.beside.y_lane,
                pixels, count, bias, p.bias,
                work.frame.residual + (r + o * along.r_stride), of_part.step * along.r_stride, p.beside.r_lane,
                p.constants,
            ))  # fmt: skip


def _repair(work: _Work, outputs: tuple[Value, Value]) -> None:
    """Compute again, without transforms, tiles with a result that is not finite."""
    k, p, item, free, of_lane = work.k, work.p, work.item, work.workspace + work.p.planes, work.of_lane
    blocks = [k.constant(INT, 0), p.again_words.outputs]
    if work.kind == "dense":
        blocks = [k.minimum(block * of_lane.lanes, p.again_words.outputs) for block in outputs]
    with k.loop(0, work.used) as each:
        if work.kind == "dense":
            found = k.any(k.load(of_lane, work.saw(each.index)).is_nan()) > 0
        else:
            found = k.load(of_lane.scalar, work.workspace + (p.seen + each.index * of_lane.element_bytes)).is_nan()
        with k.when(found):
            header = work.box(each.index).header
            with k.loop(0, p.common.axes * 3) as word:
                k.store(k.word(header, word.index), free + word.index * 8, 8)
            group = item.g * of_lane.lanes + each.index if work.kind == "own" else item.g
            k.call(p.again, CarefulBox(work.frame, p.again_words, free, item.n, group, *blocks))
