"""Programs of convolution by Fourier transforms: driver, tables and spectra of the weights.

What they carry out, its cost and its error are in ``fft_plan``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.dense import direct
from polyconv.algorithms.dense.driver import DirectBox, DirectWords
from polyconv.algorithms.depthwise import slide
from polyconv.algorithms.fft_plan import FEW_TAPS, Plan, parts, radices, workspace
from polyconv.algorithms.panel import Common, Driver, Frame, Item, axis_words, decode
from polyconv.algorithms.program import (
    Operand,
    Program,
    Request,
    Step,
    address_of,
    along_in,
    along_out,
    boxed_words,
    move_in_address,
    move_out_address,
    zeros,
)
from polyconv.algorithms.sweep import Axis, Lines, Sweep
from polyconv.kernels import fft
from polyconv.kernels.fft import ChannelProduct, PairProduct, Pairs, Pass, Scan, Spread
from polyconv.kernels.language import INT, Buffer, Module, Type, Value, vector
from polyconv.kernels.layout import Move, MoveIn, MoveOut
from polyconv.kernels.objects import kernel
from polyconv.kernels.record import Function, Functions, Memory, Record, Span, Table, Word, filled, words
from polyconv.kernels.signature import Address, Signature
from polyconv.runtime.arrays import aligned

__all__ = ["build"]

Points = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Where the two values of every pair stand in a whole spectrum."""

_NEAR_BYTES = 16 << 10
"""Lines that a pass goes over before the next one does: they stay in the first-level cache."""


class PassWords(Record):
    """A pass over the points of a line, as ``kernels.fft.Pass`` takes it."""

    function: Function[Pass]
    leg: Word
    inner: Word
    step: Word
    outer: Word
    outer_step: Word
    twiddles: Memory


class LineWords(Record):
    """The lines of an axis: the first of their passes either way, and how many passes there are.

    Then the first line, how many there are, and how many of them a pass goes over at a time.
    """

    forward: Word
    backward: Word
    passes: Word
    first: Word
    count: Word
    together: Word


class PartWords(Record):
    """Outputs of the real or the imaginary part: from ``first`` on, ``step`` apart, at point ``begin``.

    There are ``count`` of them in a whole tile.
    """

    first: Word
    step: Word
    begin: Word
    count: Word


class TileWords(Record):
    """The points of a tile.

    Rows are lines of points along the last axis: for each its place, whether outputs lie there, its position along the
    other axes, and its outputs there of either part.  A part is the real or the imaginary one: real rows, or every
    second pixel of the only axis.
    """

    rows: Word
    row_words: Word
    row_table: Memory
    points: Word
    pixel_step: Word
    reaches: Memory
    parts: Table[PartWords]
    from_step: Word
    lines: Table[LineWords]
    passes: Table[PassWords]
    offsets: Memory


class PointFunctions(Record):
    """What is done at the points of a tile; ``products`` are those of 1, 2, ... tiles."""

    products: Functions[ChannelProduct]
    product: Function[PairProduct]
    scan: Function[Scan]
    spread: Function[Spread]
    apart: Function[Pairs]
    unite: Function[Pairs]


class LaneWords(Record):
    """Bytes between lanes in input, result and residual, and in the last two between blocks of outputs."""

    x_lane: Word
    y_lane: Word
    y_block: Word
    r_lane: Word
    r_block: Word


class FftWords(Record):
    """The driver's words."""

    common: Common
    lanes: Word
    total: Word
    together: Word
    inputs: Word
    channels: Word
    outputs: Word
    last_outputs: Word
    split_outputs: Word
    planes: Word
    plane: Word
    target: Word
    headers: Word
    runs: Word
    run_number: Word
    seen: Word
    point: Word
    part: Word
    element: Word
    tile: TileWords
    pairs: Memory
    pair_count: Word
    weights: Memory
    w_g: Word
    w_block: Word
    functions: PointFunctions
    slot_count: Word
    slots: Memory
    beside: LaneWords
    bias_g: Word
    bias_block: Word
    word_bytes: Word
    bias: Memory
    constants: Memory
    move_in: Function[MoveIn]
    move_out: Function[MoveOut]
    again: Function[Driver | DirectBox]
    again_words: Memory
    again_blocks: Word


def driver(k: Module, name: str, kind: str, vector_bytes: int, element: str, lanes: int) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` of a kind to a module."""
    of_lane = vector(element, lanes)
    with k.function(name, Driver) as given:
        frame, number, workspace = given.frame, given.item, given.workspace
        p = FftWords.read(k, given.words)
        item = decode(k, p.common, number, workspace)
        used = _runs(k, p, item, workspace, number, kind)
        with k.loop(0, used if kind == "dense" else 1) as tile:
            k.store(k.constant(of_lane, 0), workspace + (p.seen + tile.index * of_lane.bytes))
        first = item.split * p.split_outputs
        outputs = first, k.minimum(first + p.split_outputs, p.outputs)
        (_several if kind == "dense" else _single)(k, p, item, frame, workspace, used, outputs, kind, of_lane)
        _repair(k, p, item, frame, workspace, number, used, outputs, kind, of_lane)


def _single(k: Module, p: FftWords, item: Item, frame: Frame, workspace: Buffer, used: Value,
            outputs: tuple[Value, Value], kind: str, of_lane: Type) -> None:  # fmt: skip
    """A tile in every lane: its products are lane by lane."""
    planes = workspace + p.planes
    with k.loop(0, p.inputs) as channel:
        _forward(k, p, item, frame, workspace, planes + channel.index * p.plane, channel.index, used, kind, of_lane)
    target = planes + p.target
    with k.loop(*outputs) as block:
        weights = p.weights + (item.g * p.w_g + block.index * p.w_block)
        k.call(p.functions.product, PairProduct(
            planes, p.plane, p.inputs, p.pairs, p.pair_count, weights, target,
        ))  # fmt: skip
        _back(k, p, item, frame, workspace, target, block.index, workspace + p.seen, kind)


def _several(k: Module, p: FftWords, item: Item, frame: Frame, workspace: Buffer, used: Value,
             outputs: tuple[Value, Value], kind: str, of_lane: Type) -> None:  # fmt: skip
    """Channels in the lanes: at every point a matrix product for all tiles of the item."""
    planes, runs = workspace + p.planes, workspace + p.runs
    tile_step = p.inputs * p.plane
    k.store(k.constant(INT, 1), workspace + p.run_number, 8)
    k.store(k.constant(INT, 0), runs + 8, 8)
    with k.loop(0, used) as tile, k.loop(0, p.inputs) as v:
        plane = planes + (tile.index * tile_step + v.index * p.plane)
        channel = v.index * p.lanes
        here = k.minimum(p.lanes, p.channels - channel)
        k.store(tile.index, runs, 8)
        k.store(here, runs + 16, 8)
        _forward(k, p, item, frame, workspace, plane, channel, here, kind, of_lane)
        k.call(p.functions.apart, Pairs(plane, p.pairs, p.pair_count))
    target = planes + p.target
    with k.loop(*outputs) as block:
        weights = p.weights + (item.g * p.w_g + block.index * p.w_block)
        k.call(p.functions.products.at(used - 1), ChannelProduct(
            planes, tile_step, p.plane, p.channels,
            p.slots, p.slot_count, weights, target, p.plane,
        ))  # fmt: skip
        with k.loop(0, used) as tile:
            plane = target + tile.index * p.plane
            k.call(p.functions.unite, Pairs(plane, p.pairs, p.pair_count))
            k.store(tile.index, runs, 8)
            seen = workspace + (p.seen + tile.index * of_lane.bytes)
            _back(k, p, item, frame, workspace, plane, block.index, seen, kind)


def _forward(k: Module, p: FftWords, item: Item, frame: Frame, workspace: Buffer, plane: Buffer, channel: Value,
             used: Value, kind: str, of_lane: Type) -> None:  # fmt: skip
    _load(k, p, item, frame.x, workspace, plane, channel, used, kind, of_lane)
    with k.loop(1, p.common.axes) as axis:
        _columns(k, p, plane, p.common.axes - 1 - axis.index, back=False)


def _back(k: Module, p: FftWords, item: Item, frame: Frame, workspace: Buffer, plane: Buffer, block: Value,
          seen: Buffer, kind: str) -> None:  # fmt: skip
    with k.loop(0, p.common.axes - 1) as axis:
        _columns(k, p, plane, axis.index, back=True)
    _store(k, p, item, frame, workspace, plane, block, seen, kind)


def _runs(k: Module, p: FftWords, item: Item, workspace: Buffer, number: Value, kind: str) -> Value:
    """Write the boxes of the item's tiles, and runs of lanes that are read and written alike.

    A run is (tile of its first lane, first lane, lanes).  Returns how many lanes the item uses, or tiles.
    """
    runs = workspace + p.runs
    if kind in ("own", "shared"):
        used = k.minimum(p.lanes, p.total - item.g * p.lanes) if kind == "own" else k.constant(INT, 1)
        for index, word in enumerate((k.constant(INT, 0), k.constant(INT, 0), used)):
            k.store(word, runs + 8 * index, 8)
        k.store(k.constant(INT, 1), workspace + p.run_number, 8)
        return used
    first = number % p.common.boxes * p.together
    used = k.minimum(p.together, p.total - first)
    last = axis_words(p.common, p.common.axes - 1)
    reach = k.word(p.tile.reaches, p.common.axes - 1)
    with k.loop(0, used, carry=[k.constant(INT, 0), k.constant(INT, 0)]) as lane:
        count, before = lane.values
        header = workspace + (p.headers + lane.index * p.common.axes * 24)
        with k.loop(0, p.common.axes, carry=[first + lane.index]) as back:
            axis = p.common.axes - 1 - back.index
            record, (q,) = axis_words(p.common, axis), back.values
            output = (q % record.boxes) * record.block
            for index, word in enumerate(
                (output * record.stride - record.pad, k.minimum(record.block, record.out - output), output)
            ):
                k.store(word, header + (axis * 24 + 8 * index), 8)
            back.next(q // record.boxes)
        of_lane = Item(k, header, item.n, item.g, item.split)
        origin, extent = of_lane.origin(p.common.axes - 1), of_lane.extent(p.common.axes - 1)
        inside = (origin >= 0) & (origin + reach <= last.inp) & extent.equals(last.block)
        inside_word = k.cast("zext", inside, INT)
        follows = k.cast("zext", (of_lane.first(p.common.axes - 1) > 0), INT) & inside_word & before
        count = count + 1 - follows
        place = runs + (count - 1) * 24
        begin = k.select(follows.equals(1), k.word(place), lane.index)
        for index, word in enumerate((begin, begin, lane.index + 1 - begin)):
            k.store(word, place + 8 * index, 8)
        lane.next(count, inside_word)
    k.store(lane.results[0], workspace + p.run_number, 8)
    return used


def _clear(k: Module, p: FftWords, points: Buffer, low: Value | int, high: Value, zero: Value) -> None:
    with k.loop(low, high) as i:
        k.store(zero, points + i.index * p.point)


def _load(k: Module, p: FftWords, item: Item, x: Buffer, workspace: Buffer, plane: Buffer, channel: Value, used: Value,
          kind: str, of_lane: Type) -> None:  # fmt: skip
    """Bring a tile into a plane, and transform its rows that are not all zeros along the last axis."""
    start = p.common.x_base + item.n * p.common.x_n + item.g * p.common.x_g + channel * p.common.x_c
    zero = k.constant(of_lane, 0)
    last = p.common.axes - 1
    only = last.equals(0)
    along = axis_words(p.common, last)
    row_lines = p.tile.lines.at(last)
    with k.loop(0, p.tile.rows) as row:
        record = p.tile.row_table + row.index * (p.tile.row_words * 8)
        line = plane + k.word(record)
        with k.loop(0, 2, carry=[k.constant(INT, 0)]) as parts:
            part = parts.index
            points = line + p.part * part
            # a run that fills all lanes leaves zeros around it; others go where there are zeros already
            whole = used.equals(p.lanes) & k.word(workspace + p.run_number).equals(1)
            with k.when(whole, otherwise=True):
                _clear(k, p, points, 0, p.tile.points, zero)
            with k.loop(0, k.word(workspace + p.run_number), carry=parts.values) as run:
                of_run = workspace + (p.runs + run.index * 24)
                tile, first, count = k.word(of_run), k.word(of_run, 1), k.word(of_run, 2)
                here = Item(k, workspace + (p.headers + tile * p.common.axes * 24), item.n, item.g, item.split)
                with k.loop(0, last, carry=[start, k.constant(INT, 1)]) as outer:
                    offset, inside = outer.values
                    axis, of_axis = outer.index, axis_words(p.common, outer.index)
                    at = k.word(record, 2 + axis) + k.select(axis.equals(0), part, 0)
                    position = here.origin(axis) + at
                    within = (at < k.word(p.tile.reaches, axis)) & position.below(of_axis.inp)
                    outer.next(offset + position * of_axis.x_stride, inside & k.cast("zext", within, INT))
                offset, inside = outer.results
                step = p.tile.pixel_step  # 1 or 2: a shift by step - 1 divides
                at, before = here.origin(last) + k.select(only, part, 0), k.select(only, part, 0)
                reach = (k.word(p.tile.reaches, last) - before + step - 1) >> (step - 1)
                head = k.minimum(k.select(at < 0, (step - 1 - at) >> (step - 1), 0), reach)
                end = k.select(at < along.inp, (along.inp - at + step - 1) >> (step - 1), 0)
                end = k.select(inside.equals(1), k.maximum(k.minimum(end, reach), head), head)
                with k.when(whole):
                    _clear(k, p, points, 0, head, zero)
                    _clear(k, p, points, end, p.tile.points, zero)
                there = end > head
                with k.when(there):
                    k.call(p.move_in, MoveIn(
                        x + (offset + (at + head * step) * along.x_stride),
                        step * along.x_stride, p.beside.x_lane, points + (head * p.point + first * p.element), p.point,
                        p.element, end - head, count, 0,
                    ))  # fmt: skip
                run.next(run.values[0] | k.cast("zext", there, INT))
            parts.next(*run.results)
            if kind == "shared":
                k.call(p.functions.spread, Spread(points, p.tile.points, p.point))
        with k.when(parts.results[0].equals(1)):
            _passes(k, p, plane, record, 1, row_lines.forward, row_lines.passes)


def _passes(k: Module, p: FftWords, plane: Buffer, places: Buffer, lines: Value | int, first: Value,
            count: Value) -> None:  # fmt: skip
    with k.loop(0, count) as each:
        one = p.tile.passes.at(first + each.index)
        k.call(one.function, Pass(
            plane, places, lines, one.leg, one.inner, one.step, one.outer, one.outer_step, one.twiddles,
        ))  # fmt: skip


def _columns(k: Module, p: FftWords, plane: Buffer, axis: Value, *, back: bool) -> None:
    """Transform all lines along an axis, as many at a time as stay near."""
    lines = p.tile.lines.at(axis)
    first, count = lines.backward if back else lines.forward, lines.passes
    with k.loop(0, lines.count, lines.together) as line:
        places = p.tile.offsets + (lines.first + line.index) * 8
        _passes(k, p, plane, places, k.minimum(lines.together, lines.count - line.index), first, count)


def _store(k: Module, p: FftWords, item: Item, frame: Frame, workspace: Buffer, plane: Buffer, block: Value,
           seen: Buffer, kind: str) -> None:  # fmt: skip
    """Back along the last axis and out, row by row, leaving out what holds no output."""
    last = p.common.axes - 1
    along = axis_words(p.common, last)
    row_lines = p.tile.lines.at(last)
    y_start = p.common.y_base + item.n * p.common.y_n + item.g * p.common.y_g + block * p.beside.y_block
    r_start = p.common.r_base + item.n * p.common.r_n + item.g * p.common.r_g + block * p.beside.r_block
    bias = item.g * p.bias_g + block * p.bias_block
    with k.loop(0, p.tile.rows) as row:
        record = p.tile.row_table + row.index * (p.tile.row_words * 8)
        line = plane + k.word(record)
        with k.when(k.word(record, 1).equals(1)):
            _passes(k, p, plane, record, 1, row_lines.backward, row_lines.passes)
            with k.loop(0, 2) as parts:
                part = parts.index
                of_part = p.tile.parts.at(part)
                points = line + (p.part * part + of_part.begin * p.point)
                step = p.tile.from_step * p.point
                with k.loop(0, k.word(workspace + p.run_number)) as run:
                    of_run = workspace + (p.runs + run.index * 24)
                    tile, first, count = k.word(of_run), k.word(of_run, 1), k.word(of_run, 2)
                    if kind in ("shared", "dense"):
                        count = k.select(block.equals(p.outputs - 1), p.last_outputs, p.lanes)
                    here = Item(k, workspace + (p.headers + tile * p.common.axes * 24), item.n, item.g, item.split)
                    with k.loop(0, last, carry=[y_start, r_start, k.constant(INT, 1)]) as outer:
                        y, r, inside = outer.values
                        axis, of_axis = outer.index, axis_words(p.common, outer.index)
                        output = k.word(record, last * (part + 1) + axis + 2)
                        there = k.cast("zext", output < here.extent(axis), INT)
                        o = here.first(axis) + output
                        outer.next(y + o * of_axis.y_stride, r + o * of_axis.r_stride, inside & there)
                    y, r, inside = outer.results
                    o = here.first(last) + of_part.first
                    pixels = (here.extent(last) - of_part.first + of_part.step - 1) // of_part.step
                    pixels = k.select(here.extent(last) > of_part.first, k.minimum(pixels, of_part.count), 0)
                    with k.when(inside.equals(1) & (pixels > 0)):
                        k.call(p.functions.scan, Scan(points, of_part.count, step, seen))
                        k.call(p.move_out, MoveOut(
                            points + first * p.element, step, p.element,
                            frame.y + (y + o * along.y_stride), of_part.step * along.y_stride, p.beside.y_lane,
                            pixels, count, p.bias + bias, p.bias,
                            frame.residual + (r + o * along.r_stride), of_part.step * along.r_stride, p.beside.r_lane,
                            p.constants,
                        ))  # fmt: skip


def _repair(k: Module, p: FftWords, item: Item, frame: Frame, workspace: Buffer, number: Value, used: Value,
            outputs: tuple[Value, Value], kind: str, of_lane: Type) -> None:  # fmt: skip
    """Compute again, without transforms, what is not finite."""
    seen, free = workspace + p.seen, workspace + p.planes
    if kind == "own":
        with k.when(k.any(k.load(of_lane, seen).is_nan()) > 0):
            k.call(p.again, Driver(frame, p.again_words, number, free))
        return

    blocks = (k.constant(INT, 0), p.again_blocks) if kind == "blocks" else outputs

    def again(header: Buffer) -> None:
        with k.loop(0, p.common.axes * 3) as word:
            k.store(k.word(header, word.index), free + word.index * 8, 8)
        k.call(p.again, DirectBox(
            frame, DirectWords.read(k, p.again_words), free, item.n, item.g, *blocks,
        ))  # fmt: skip

    if kind == "shared":
        with k.when(k.any(k.load(of_lane, seen).is_nan()) > 0):
            again(workspace)
        return
    with k.loop(0, used) as tile:
        if kind == "dense":
            found = k.any(k.load(of_lane, seen + tile.index * of_lane.bytes).is_nan()) > 0
        else:
            found = k.load(of_lane.scalar, seen + tile.index * of_lane.element_bytes).is_nan()
        with k.when(found):
            again(workspace + (p.headers + tile.index * p.common.axes * 24))


def build(r: Request) -> Program:
    """Program of a request: one step per sweep."""
    keep: list[Any] = []
    steps = [_step(r, sweep, plan, keep) for sweep, plan in parts(r.situation) if plan is not None]
    return Program(tuple(step for step in steps if step.items), workspace(r.situation), tuple(keep))


def _step(r: Request, sweep: Sweep, plan: Plan, keep: list[Any]) -> Step:
    p, arith, kind, lane = r.problem, r.arith, plan.kind, plan.lane
    axes, group_in, group_out = len(sweep), p.c // p.groups, p.m // p.groups
    vector_bytes = r.target.vector_bytes
    address = address_of(
        r, f"fft {kind} {arith.accumulator}", "fft", Driver,
        lambda k, name: driver(k, name, kind, vector_bytes, arith.accumulator, lane),
    )  # fmt: skip
    common, items = boxed_words(
        r, sweep, plan.outputs, [Lines((), (), ())] * axes, block_groups=lane if kind == "own" else 1
    )
    if kind in ("blocks", "dense"):
        boxes = -(-plan.count // plan.together)
        common, items = replace(common, boxes=boxes), (p.n or 0) * p.groups * boxes
    outputs = {"own": 1, "blocks": group_out}.get(kind, -(-group_out // lane))
    splits = 1
    if kind in ("shared", "dense") and 0 < items < 2 * r.situation.threads and r.situation.threads > 1:
        splits = -(-outputs // -(-outputs // -(-2 * r.situation.threads // items)))
        common, items = replace(common, splits=splits), items * splits
    order = [_order(radices(tile.points)) for tile in plan.tiles]
    pairs, spectrum = _pairs(plan, order, np.dtype(np.float64 if arith.bytes == 8 else np.float32))
    headers = 24 * axes if kind in ("blocks", "dense") else 0
    runs = 24 * axes * (1 + plan.together)
    inputs = {"own": 1, "dense": -(-group_in // lane)}.get(kind, group_in)
    key = tuple((a.taps, a.first_tap, a.tap_step, a.dilation) for a in sweep)
    weights = r.packed(
        ("fft", arith.name, kind, lane, key, tuple(tile.length for tile in plan.tiles)),
        lambda: _packed_weights(r.weights(sweep), sweep, plan, spectrum),
    )
    block_bytes = weights.nbytes // max(1, outputs * (-(-p.groups // lane) if kind == "own" else p.groups))
    again, again_words, again_blocks = _again(r, sweep, plan, keep)
    bias_words = lane if kind == "blocks" else 1  # a channel's bias stands in the table so often
    moves_in, moves_out = _moves(r, sweep[-1], plan, axes)
    values = FftWords(
        common=common, lanes=lane, total=p.c if kind == "own" else plan.count, together=plan.together, inputs=inputs,
        channels=group_in, outputs=outputs, last_outputs=group_out - (outputs - 1) * lane,
        split_outputs=-(-outputs // splits), planes=plan.header, plane=plan.plane,
        target={"own": 0, "dense": plan.together}.get(kind, 1) * inputs * plan.plane,
        headers=headers, runs=runs, run_number=runs + 24 * lane, seen=plan.header - plan.together * vector_bytes,
        point=2 * vector_bytes, part=vector_bytes, element=arith.bytes, tile=_tile(r, sweep, plan, keep), pairs=pairs,
        pair_count=len(pairs), weights=weights, w_g=block_bytes * outputs, w_block=block_bytes,
        functions=_functions(r, plan), slot_count=2 * len(pairs), slots=words(pairs[:, [0, 4]].ravel().tolist()),
        beside=_lane_words(r, sweep[-1], plan),
        bias_g=arith.bytes * (lane if kind == "own" else group_out * bias_words),
        bias_block=arith.bytes * (1 if kind == "own" else lane), word_bytes=arith.bytes,
        bias=zeros() if r.bias is None else np.repeat(r.bias, lane) if kind == "blocks" else r.bias,
        constants=r.constants,
        move_in=move_in_address(r, Move(p.x, arith.accumulator, moves_in)),
        move_out=move_out_address(r, Move(arith.accumulator, p.y, moves_out, r.epilogue)),
        again=again, again_words=again_words, again_blocks=again_blocks,
    )  # fmt: skip
    return Step(address, filled(values, keep), items)


def _lane_words(r: Request, last: Axis, plan: Plan) -> LaneWords:
    residual = r.residual or Operand(0, 0, (0,) * len(r.y.spatial), 0, 1)
    if plan.kind == "blocks":
        x, y, z = (plan.outputs[-1] * o.spatial[-1] for o in (r.x, r.y, residual))
        return LaneWords(last.stride * x, last.out_step * y, r.y.c, last.out_step * z, residual.c)
    x = 0 if plan.kind == "shared" else r.x.c
    return LaneWords(x, r.y.c, r.y.c * plan.lane, residual.c, residual.c * plan.lane)


def _moves(r: Request, last: Axis, plan: Plan, axes: int) -> tuple[str, str]:
    """Which axes lie contiguous on the way in and out, as a ``Move`` spells it."""
    step_in, step_out = (2, 2 if last.stride % 2 else 1) if axes == 1 else (1, 1)
    if plan.kind != "blocks":
        whole = replace(last, stride=step_in, out_step=step_out * last.out_step)
        return along_in(r, whole, "c"), along_out(r, whole, "c")
    moves_in, moves_out = _along(r.x, step_in), _along(r.y, step_out * last.out_step)
    if r.residual is not None and (moves_out == "2" or moves_out != _along(r.residual, step_out * last.out_step)):
        moves_out = ""
    return moves_in + "c" if moves_in else "any", "c" + moves_out if moves_out else "any"


def _along(o: Operand, step: int) -> str:
    """How pixels lie: together, every second one, or any way."""
    if o.spatial[-1] * step == o.itemsize:
        return "p"
    return "2" if o.spatial[-1] == o.itemsize and step == 2 else ""


def _again(r: Request, sweep: Sweep, plan: Plan, keep: list[Any]
           ) -> tuple[Address[Driver | DirectBox], NDArray[np.int64], int]:  # fmt: skip
    """Driver, words and blocks of outputs of the algorithm that repairs."""
    if plan.kind == "own":
        step = slide.box_step(r, sweep, plan.outputs, plan.lane, keep)
        return step.driver, step.words, 0
    values, blocks = direct.plain_words(r, sweep, plan.outputs)
    return direct.repair_address(r), filled(values, keep), blocks


def _order(passes: Sequence[int]) -> NDArray[np.int64]:
    """Frequency at every place of a transformed line."""
    if not passes:
        return np.zeros(1, np.int64)
    rest = _order(passes[1:])
    return np.concatenate([q + passes[0] * rest for q in range(passes[0])])


def _pairs(
    plan: Plan, order: list[NDArray[np.int64]], kind: np.dtype[Any]
) -> tuple[NDArray[np.int64], Points]:
    """Table of the pairs of points, and where in the whole spectrum the two values of each stand."""
    lengths = [tile.length for tile in plan.tiles]
    freq = np.meshgrid(*order, indexing="ij")
    inverse = [np.argsort(of_axis) for of_axis in order]
    opposite = [inverse[a][-f % len(order[a])] for a, f in enumerate(freq)]
    own = np.meshgrid(*(np.arange(len(of_axis)) for of_axis in order), indexing="ij")
    places, there = (np.tensordot(plan.strides, np.array(at), 1).ravel() for at in (own, opposite))
    once = np.flatnonzero(places <= there)
    table: NDArray[np.int64] = aligned((len(once), len(fft.PAIR)), np.int64)
    angle = 2 * np.pi * freq[0].ravel()[once] / lengths[0]
    table[:, 0], table[:, 1], table[:, 4] = places[once], there[once], there[once]
    single = table[:, 0] == table[:, 1]
    point = plan.strides[-1]
    table[single, 4] = plan.tiles[0].points * plan.strides[0] + point * np.arange(np.count_nonzero(single))
    low = [f.ravel()[once] for f in freq]
    high = [low[0] + plan.tiles[0].points, *low[1:]]
    at = np.ravel_multi_index(tuple(low), lengths), np.ravel_multi_index(tuple(high), lengths)
    per_slot = 8 // kind.itemsize
    table.view(kind)[:, 2 * per_slot : 4 * per_slot : per_slot] = np.stack([np.cos(angle), np.sin(angle)], -1)
    return table, at


def _tile(r: Request, sweep: Sweep, plan: Plan, keep: list[Any]) -> TileWords:
    """Rows, parts, lines and passes."""
    axes, tiles, strides = len(sweep), plan.tiles, plan.strides
    step = 2 if axes == 1 else 1
    rows: list[int] = []
    outer = [range(tile.points) for tile in tiles[:-1]]
    for at in itertools.product(*outer):
        positions = [2 * at[0], *at[1:]] if at else []
        of_parts = [_outputs([positions[0] + part, *positions[1:]] if at else [], plan, sweep) for part in range(2)]
        wanted = any(_NOWHERE not in outputs for outputs in of_parts)
        place = sum(q * s for q, s in zip(at, strides, strict=False))
        rows += [place, int(wanted), *positions, *of_parts[0], *of_parts[1]]
    parts, from_step = _parts(sweep[-1], tiles[-1].outputs, step)
    of_axes, passes, offsets = _lines(r, plan, keep)
    return TileWords(
        rows=math.prod(len(o) for o in outer), row_words=2 + 3 * (axes - 1), row_table=words(rows),
        points=tiles[-1].points, pixel_step=step, reaches=words([tile.reach for tile in tiles]),
        parts=parts, from_step=from_step, lines=of_axes, passes=passes, offsets=words(offsets),
    )  # fmt: skip


_NOWHERE = 1 << 40


def _outputs(positions: list[int], plan: Plan, sweep: Sweep) -> list[int]:
    """Outputs of a tile at some positions along the outer axes; beyond all outputs where there are none."""
    return [
        q // axis.stride if q % axis.stride == 0 and q // axis.stride < tile.outputs else _NOWHERE
        for q, axis, tile in zip(positions, sweep, plan.tiles, strict=False)
    ]


def _parts(axis: Axis, outputs: int, step: int) -> tuple[list[PartWords], int]:
    """Outputs of the real and the imaginary part along the last axis, and points from one to the next."""
    if step == 1:
        return [PartWords(0, 1, 0, outputs)] * 2, axis.stride
    if axis.stride % 2 == 0:
        return [PartWords(0, 1, 0, outputs), PartWords(0, 1, 0, 0)], axis.stride // 2
    second = (axis.stride - 1) // 2
    return [PartWords(0, 2, 0, (outputs + 1) // 2), PartWords(1, 2, second, outputs // 2)], axis.stride


def _lines(r: Request, plan: Plan, keep: list[Any]) -> tuple[list[LineWords], list[PassWords], list[int]]:
    """The lines of every axis, their passes both ways, and where the lines begin."""
    kind = np.float64 if r.arith.bytes == 8 else np.float32
    lines: list[LineWords] = []
    offsets: list[int] = []
    table: list[PassWords] = []
    factors: list[NDArray[Any]] = []
    records: list[tuple[int, ...]] = []
    for a, (tile, stride) in enumerate(zip(plan.tiles, plan.strides, strict=True)):
        forward, length = [], tile.points
        for radix in radices(tile.points):
            inner = length // radix
            angle = -2 * np.pi * np.outer(np.arange(inner), np.arange(1, radix)) / length
            forward.append((radix, inner, stride, tile.points // length, length * stride, len(factors)))
            factors.append(np.stack([np.cos(angle), np.sin(angle)], -1).ravel().astype(kind))
            length = inner
        others = [
            [q * s for q in range(t.points)]
            for b, (t, s) in enumerate(zip(plan.tiles, plan.strides, strict=True)) if b != a
        ]  # fmt: skip
        places = [sum(at) for at in itertools.product(*others)]
        near = max(1, min(len(places), r.situation.near(_NEAR_BYTES) // (tile.points * plan.strides[-1])))
        begin = len(records)
        lines.append(LineWords(begin, begin + len(forward), len(forward), len(offsets), len(places), near))
        offsets += places
        records += [(*one, 0) for one in forward] + [(*one, 1) for one in reversed(forward)]
    joined = np.concatenate([*factors, np.zeros(1, kind)])
    twiddles = aligned(joined.size, kind)
    twiddles[:] = joined
    starts = np.cumsum([0, *(f.nbytes for f in factors)])
    for radix, inner, step, outer, outer_step, factor, back in records:
        functions = _pass_functions(r, radix)
        name = ("backward" if inner > 1 else "backward_first") if back else ("forward" if inner > 1 else "forward_last")
        start = int(starts[factor])
        factors_of = Span(twiddles.ctypes.data + start, twiddles.nbytes - start)
        table.append(PassWords(functions[name], inner * step, inner, step, outer, outer_step, factors_of))
    keep.append(twiddles)
    return lines, table, offsets


def _pass_functions(r: Request, radix: int) -> dict[str, Address[Pass]]:
    """Addresses of the passes of a radix."""
    element, count = r.arith.accumulator, r.target.vector_bytes // r.arith.bytes
    names = ("forward", "forward_last", "backward", "backward_first")
    return kernel(
        f"fft radix {radix} {element}", dict.fromkeys(names, Pass), lambda k: fft.passes(k, radix, element, count),
        r.target, check=r.check,
    )  # fmt: skip


def _functions(r: Request, plan: Plan) -> PointFunctions:
    """Addresses of the products of a kind, and of what serves them."""
    element, lane, kind = r.arith.accumulator, plan.lane, plan.kind

    def points(k: Module) -> None:
        fft.pair_product(k, "product", element, lane, kind != "blocks")
        fft.scan(k, "scan", element, lane)
        fft.spread(k, "spread", element, lane)

    def ends(k: Module) -> None:
        fft.apart(k, "apart", element, lane)
        fft.together(k, "unite", element, lane)

    names: dict[str, type[Signature]] = {"product": PairProduct, "scan": Scan, "spread": Spread}
    label = f"fft points {element}{' blocks' * (kind == 'blocks')}"
    found: dict[str, Address[Any]] = kernel(label, names, points, r.target, check=r.check)
    if kind != "dense":
        return PointFunctions([], found["product"], found["scan"], found["spread"], apart=None, unite=None)
    products: list[Address[ChannelProduct] | None] = []
    for tiles in range(1, plan.together + 1):
        used = tiles == plan.together or tiles == plan.count % plan.together

        def product(k: Module, name: str, tiles: int = tiles) -> None:
            fft.channel_product(k, name, element, lane, tiles)

        label = f"fft product {element} {tiles}"
        products.append(address_of(r, label, "product", ChannelProduct, product) if used else None)
    ways = kernel(f"fft ends {element}", dict.fromkeys(("apart", "unite"), Pairs), ends, r.target, check=r.check)
    return PointFunctions(products, found["product"], found["scan"], found["spread"], ways["apart"], ways["unite"])


def _packed_weights(w: NDArray[Any], sweep: Sweep, plan: Plan, at: Points) -> NDArray[Any]:
    """Spectra of the weights (groups, m, c, taps) as they stream; made in float64 and rounded once."""
    groups, m, c, _ = w.shape
    lane, pairs = plan.lane, len(at[0])
    spectra = _transform(sweep, plan, at)
    if plan.kind == "blocks":
        packed = aligned((groups, m, pairs, c, 4), w.dtype)
        for g, of_group in enumerate(packed):
            for one, target in zip(w[g], of_group, strict=True):
                target[...] = spectra(one).transpose(0, 2, 1)
        return packed
    blocks = -(-m // lane)
    if plan.kind == "own":
        rows = w.reshape(groups, 1, -1)
        blocks, parts = -(-groups // lane), [rows[v : v + lane] for v in range(0, groups, lane)]
        shape = (blocks, pairs, 1, 4, lane)
    else:
        parts = [of_group[v : v + lane] for of_group in w for v in range(0, m, lane)]
        # lane by lane channels follow pairs, else they stand between the two values of a pair
        halves = (2, c, 2) if plan.kind == "dense" else (1, c, 4)
        shape = (groups * blocks, pairs * halves[0], *halves[1:], lane)
    packed = aligned(shape, w.dtype)
    step = max(1, _MADE_BYTES // (8 * lane * math.prod(tile.length for tile in plan.tiles)))
    for some, target in zip(parts, packed, strict=True):
        for first in range(0, c, step):
            rows = some[:, first : first + step].transpose(1, 0, 2)
            made = spectra(rows.reshape(-1, rows.shape[-1])).reshape(len(target), -1, *rows.shape[:2])
            target[:, first : first + step, :, : len(some)] = made.transpose(0, 2, 1, 3)
        target[..., len(some) :] = 0
    return packed


_MADE_BYTES = 1 << 20
"""Spectra in float64 that are made at a time."""

_ONE_THREAD = 1 << 18
"""Multiply-adds up to which NumPy's BLAS stays on the caller's thread.  The threads that it starts for more spin beside
polyconv's own: on two busy cores a first run of HiFi-GAN took 13 s with them and 3.7 s without."""


def _transform(sweep: Sweep, plan: Plan, at: Points) -> Callable[[NDArray[Any]], NDArray[np.float64]]:
    """What gives the spectra of rows of taps: (pair; re, im, re, im; row), conjugate, as outputs are correlations.

    Scaled by 2/N of the transform back, and 1/2 each for taking spectra apart and together.
    """
    lengths = [tile.length for tile in plan.tiles]
    scale = 1 / (2 * math.prod(lengths))
    if math.prod(axis.taps for axis in sweep) <= FEW_TAPS:
        turns = np.zeros((1, 2, len(at[0])))
        for axis, length, of_axis in zip(sweep, lengths, np.unravel_index(np.stack(at), lengths), strict=True):
            steps = np.arange(axis.taps) * axis.dilation % length
            of_taps = (steps[:, None, None] * of_axis % length) / length
            turns = (turns[:, None] + of_taps).reshape(-1, *turns.shape[1:])
        angle = 2 * np.pi * turns
        matrix = np.stack([np.cos(angle), np.sin(angle)], 2).transpose(3, 1, 2, 0).reshape(-1, len(turns)) * scale

        def by_matrix(w: NDArray[Any]) -> NDArray[np.float64]:
            made = np.empty((len(matrix), len(w)))
            step = max(1, _ONE_THREAD // matrix.size)
            for first in range(0, len(w), step):
                some = slice(first, first + step)
                np.matmul(matrix, w[some].T.astype(np.float64), out=made[:, some])
            return made.reshape(-1, 4, len(w))

        return by_matrix
    # taps a period apart share a place
    extents = [min(length, (axis.taps - 1) * axis.dilation + 1) for axis, length in zip(sweep, lengths, strict=True)]
    places = np.zeros(1, np.int64)
    for axis, extent in zip(sweep, extents, strict=True):
        places = (places[:, None] * extent + np.arange(axis.taps) * axis.dilation % extent).ravel()
    distinct = len(np.unique(places)) == len(places)
    # half of a real spectrum: frequencies in the other half are conjugates of their opposites
    parts = []
    for part in at:
        frequencies = np.unravel_index(part, lengths)
        far = frequencies[-1] > lengths[-1] // 2
        near = [np.where(far, -f % length, f) for f, length in zip(frequencies, lengths, strict=True)]
        half = (*lengths[:-1], lengths[-1] // 2 + 1)
        parts.append((np.ravel_multi_index(tuple(near), half), np.where(far, scale, -scale)))

    def by_transform(w: NDArray[Any]) -> NDArray[np.float64]:
        grid = np.zeros((len(w), math.prod(extents)))
        if distinct:
            grid[:, places] = w
        else:
            for place, of_tap in zip(places, w.T, strict=True):
                grid[:, place] += of_tap
        whole = np.fft.rfft(grid.reshape(-1, *extents), lengths[-1])
        for axis in range(len(lengths) - 1, 0, -1):
            whole = np.fft.fft(whole, lengths[axis - 1], axis)
        values = [(whole.reshape(len(w), -1).T[place], sign[:, None]) for place, sign in parts]
        return np.stack([v for z, sign in values for v in (z.real * scale, z.imag * sign)], 1)

    return by_transform
