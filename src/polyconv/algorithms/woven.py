"""Transposed convolution along planes: pixels in the lanes, the phases of the last axis woven together.

Outputs ``s j - p + r`` with r in 0..s, one in each phase of the stride s, read the same inputs.  A box of such groups
gets a zero-padded panel of its inputs, [channel][line][pixel], for all its phases; every tile computes those along the
last axis together, so that inputs are read once and every line of the result is written once, whole.  Tiles go along
rows, to their place; where rows leave lanes unfilled they go along the flattened box, and their sums through slots.
Cost: the products over lane use.  Error: own bound; sums run over the channels, the taps all phases have first.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.packing import Set, packed_sets
from polyconv.algorithms.panel import (
    Common,
    Driver,
    EpilogueTables,
    Item,
    axis_words,
    box_rows,
    decode,
    fill,
    row_place,
)
from polyconv.algorithms.program import (
    Program,
    Request,
    Situation,
    accumulator_arithmetic,
    address_of,
    along_in,
    along_out,
    boxed_words,
    boxes,
    bytes_between,
    epilogue_tables,
    far_cycles,
    is_fusible,
    move_in_address,
    move_out_address,
    near_equal,
    one_step,
    thread_parts,
    tile_cycles,
)  # fmt: skip
from polyconv.algorithms.sweep import Axis, Lines, Sweep, lines
from polyconv.kernels.fused import FusedTile, of_sums
from polyconv.kernels.isa import ARITHMETIC, lanes, pixel_tiles
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import Move, MoveIn, MoveOut, zero_rows
from polyconv.kernels.objects import kernel
from polyconv.kernels.record import (
    Function,
    Functions,
    Memory,
    Record,
    Table,
    Word,
    filled,
    word_count,
    words,
    words_of,
)
from polyconv.kernels.signature import Address
from polyconv.kernels.weave import WeaveTile, weave_tile
from polyconv.machine.profile import Rates
from polyconv.problem.problem import Problem
from polyconv.target import Target

__all__ = ["applicable", "build", "cost", "workspace"]

PANEL_BYTES = 160 << 10
"""Part of a 1 MiB second-level cache: every tile reads its part of the panel again, beside streaming weights."""


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
    """

    common: Common
    channels: Word
    plane_bytes: Word
    line_words: Word
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
    rows: Buffer
    ahead: Buffer


def driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = WovenWords.read(k, given.words)
        c = p.common
        item = decode(k, c, given.item, workspace)
        _pack(k, p, item, frame.x, workspace + c.panel, vector_bytes)
        rows = box_rows(k, c, item)
        _find_rows(k, p, item, rows, workspace + p.row_table)
        with k.loop(0, c.axes, carry=[p.ahead + c.x_base + item.n * c.x_n + item.g * c.x_g]) as axis:
            axis.next(axis.values[0] + item.origin(axis.index) * axis_words(c, axis.index).x_stride)
        ahead = frame.x + axis.results[0]
        flat, pixels = p.flat.equals(1), item.extent(c.axes - 1)
        last_line, _, _ = row_place(k, c, item, rows - 1)
        along = k.select(flat, last_line * p.line_words + pixels, pixels)
        vectors, zero = (along + p.lanes - 1) // p.lanes, k.constant(INT, 0)
        begin = p.first_out + item.first(c.axes - 1) * p.times
        head, end = k.maximum(0 - begin, 0), k.minimum(pixels * p.times, p.last_out - begin)
        first = item.split * p.split_sets
        last = k.minimum(first + p.split_sets, p.set_count * p.phases)
        with k.loop(first, last) as number:
            phase = PhaseWords.read(k, p.phase + number.index % p.phases * p.phase_words * 8)
            of_set = p.sets.at(number.index // p.phases)
            parts = (vectors + of_set.most - 1) // of_set.most
            of_rows = workspace + p.row_table + (number.index % p.phases) * rows * (word_count(RowWords) * 8)
            turn = _Turn(item, phase, of_set, parts, vectors // parts, vectors % parts, of_rows, ahead)
            done = (number.index - first) * k.select(flat, 1, rows)
            slots, panel = workspace + p.slots, workspace + c.panel
            with k.when(flat):
                to = _Place(slots, p.slot_channel, p.word_bytes, slots, zero, zero, vectors * p.lanes * p.times)
                _tiles(k, p, turn, panel, to, done)
            with k.loop(0, rows) as row:
                here = RowWords.at(k, of_rows, row.index)
                at = here.line * p.word_bytes
                y = frame.y + (here.y + of_set.first * c.y_c)
                r = frame.residual + (here.r + of_set.first * c.r_c)
                with k.when((here.line >= 0) & p.flat.equals(0)):
                    _tiles(k, p, turn, panel + at, _Place(y, c.y_c, p.result_bytes, r, c.r_c, head, end),
                           done + row.index)  # fmt: skip
                with k.when((here.line >= 0) & flat):
                    bias, scale, constants = _tables(p, turn)
                    k.call(p.move_out, MoveOut(
                        slots + (at * p.times + head * p.word_bytes), p.word_bytes,
                        p.slot_channel, y + head * p.y_pixel, p.y_pixel, c.y_c, end - head, of_set.rows, bias, scale,
                        r + head * p.r_pixel, p.r_pixel, c.r_c, constants,
                    ))  # fmt: skip


def _pack(k: Module, p: WovenWords, item: Item, x: Buffer, panel: Buffer, vector_bytes: int) -> None:
    """Fill the panel."""
    c = p.common
    pixel_step = axis_words(c, c.axes - 1).x_stride
    words_of_4 = vector("i32", vector_bytes // 4)

    def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
        target = panel + (line * p.line_words + first_line) * p.word_bytes
        for begin, stop in ((k.constant(INT, 0), head), (end, count)):
            with k.when(stop > begin):
                size = ((stop - begin) * p.word_bytes) >> 2
                zero_rows(k, target + begin * p.word_bytes, p.plane_bytes, p.channels, size, words_of_4)
        with k.when(end > head):
            k.call(p.move_in, MoveIn(
                source, pixel_step, c.x_c, target + head * p.word_bytes, p.word_bytes,
                p.plane_bytes, end - head, p.channels, c.zero_point,
            ))  # fmt: skip

    fill(k, c, item, x, k.constant(INT, 0), put)


def _find_rows(k: Module, p: WovenWords, item: Item, rows: Value, table: Buffer) -> None:
    """Write the ``RowWords`` of all rows of the box, phase by phase."""
    c = p.common
    with k.loop(0, p.phases) as number, k.loop(0, rows) as row:
        place_of_phase = p.phase + number.index * p.phase_words * 8
        phase = PhaseWords.read(k, place_of_phase)
        line, y, r = row_place(k, c, item, row.index)
        with k.loop(1, c.axes, carry=[row.index, line * p.line_words]) as back:
            q, there = back.values
            axis = c.axes - 1 - back.index
            bounds = place_of_phase + (axis * 2 + word_count(PhaseWords)) * 8
            low, high = k.word(bounds), k.word(bounds, 1)
            place = item.first(axis) + q % item.extent(axis)
            back.next(q // item.extent(axis), k.select((place - low).below(high - low), there, -1))
        here = table + (number.index * rows + row.index) * (word_count(RowWords) * 8)
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


# -- planning ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plan:
    """Sizes of the boxes of groups, whether tiles go along the flattened box, and their walks of so many vectors."""

    sweep: Sweep
    box: tuple[int, ...]
    held: tuple[Lines, ...]
    flat: bool
    walks: int
    vectors: int
    sets: tuple[tuple[int, int], ...]
    line_words: int
    plane_bytes: int
    slot_channel: int
    panel: int
    rows: int
    workspace: int


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    p = s.problem
    if p.op != "conv_transpose":
        return f"computes conv_transpose, not {p.op}"
    if not s.finite:
        return "weights hold Inf or NaN, which would meet the zeros of the padding"
    if p.layout != "NCHW":
        return "weaves pixels that lie together, in NCHW"
    if any(d > 1 and k > 1 for k, d in zip(p.k, p.d, strict=True)):
        return "needs a kernel without dilation"
    if not p.c or not p.m:
        return "there are no channels"
    if any(k < s for k, s in zip(p.k, p.s, strict=True)):
        return "needs a tap for every phase"
    if p.s[-1] < 2 or not _heights(s.target, p.s[-1]):
        return f"has no tiles for a stride of {p.s[-1]} along the last axis"
    return None


def _heights(target: Target, times: int) -> dict[int, int]:
    """Output channels of a tile -> most vectors of pixels, where it has so many phases."""
    return {rows // times: most for rows, most in pixel_tiles(target).items() if rows % times == 0}


@lru_cache(256)
def _sweep(p: Problem) -> Sweep:
    """The groups of outputs that read the same inputs as outputs of a sweep, with the taps of the first phase."""
    axes = []
    for i, o, k, s, (begin, _) in zip(p.i, p.out, p.k, p.s, p.pads, strict=True):
        assert i is not None and o is not None
        first = begin // s
        groups = (o - 1 + begin) // s - first + 1 if o else 0
        taps = -(-k // s)
        axes.append(Axis(groups, i, taps, 1, 1, taps - 1 - first, s * first - begin, s))
    return tuple(axes)


def _taps(k: int, s: int, phase: int) -> int:
    """Taps of a phase: ``phase``, ``phase + s``, ..."""
    return -(-(k - phase) // s)


def _shares(p: Problem) -> list[tuple[int, int]]:
    """Entries of every phase of the outer axes: of all phases of the last, and of those with one tap more."""
    channels, (k, s) = p.c // p.groups, (p.k[-1], p.s[-1])
    outer = [[_taps(k, s, phase) for phase in range(s)] for k, s in zip(p.k[:-1], p.s[:-1], strict=True)]
    counts = [channels * math.prod(taps) for taps in itertools.product(*outer)]
    return [(count * (k // s), count if k % s else 0) for count in counts]


@lru_cache(256)
def _plan(s: Situation, *, flat: bool) -> _Plan:
    p, arith = s.problem, ARITHMETIC[accumulator_arithmetic(s)]
    sweep, lane, times = _sweep(p), lanes(s.target, arith), p.s[-1]
    heights = _heights(s.target, times)
    sets: list[tuple[int, int]] = []
    outputs, first = p.m // p.groups, 0
    for rows in sorted(heights, reverse=True):
        while outputs - first >= rows:
            sets.append((first, rows))
            first += rows
    header = -(-(24 * len(sweep)) // 64) * 64
    tall = max((rows for _, rows in sets), default=1)

    def sizes(box: tuple[int, ...]) -> _Plan:
        held = tuple(lines(axis, b) for axis, b in zip(sweep, box, strict=True))
        # whole vectors of a row that tiles go along, so that none lies across two cache lines
        line = held[-1].count if flat else -(-held[-1].count // lane) * lane
        pixels = math.prod(h.count for h in held[:-1]) * line
        # an odd number of cache lines: planes share few sets
        plane = (-(-(pixels + 2 * lane) * arith.bytes // 64) | 1) * 64
        panel = plane * (p.c // p.groups)
        slot = plane * times if flat else 0
        rows = -(-8 * word_count(RowWords) * math.prod((*box[:-1], *p.s[:-1])) // 64) * 64
        walks = 1 if flat else math.prod(box[:-1])
        along = pixels - line + box[-1] if flat else box[-1]
        return _Plan(
            sweep, box, held, flat, walks, -(-along // lane), tuple(sets), line, plane, slot, panel, rows,
            header + panel + rows + slot * tall + 128,
        )  # fmt: skip

    extents = tuple(axis.out for axis in sweep)
    box = boxes((*extents[:-1], min(extents[-1], 4096)), lambda box: sizes(box).workspace, s.budget(PANEL_BYTES))
    return sizes(box)


def _expected(s: Situation) -> _Plan:
    """The cheaper plan for packed tensors."""
    flat = _plan(s, flat=True)
    if not is_fusible(s.problem):
        return flat
    return min((_plan(s, flat=False), flat), key=lambda plan: s.price(plan, sum(_cost(s, plan).values())))


def workspace(s: Situation) -> int:
    """Bytes a thread needs, however the result lies."""
    return max(_expected(s).workspace, _plan(s, flat=True).workspace)


def cost(s: Situation) -> dict[str, float]:
    """Cycles: multiply-adds with the lanes that rows or boxes fill, and the moves."""
    return _cost(s, _expected(s))


def _cost(s: Situation, plan: _Plan) -> dict[str, float]:
    p, arith = s.problem, ARITHMETIC[accumulator_arithmetic(s)]
    lane, times, rates = lanes(s.target, arith), p.s[-1], s.rates(arith)
    longer, heights = p.k[-1] % times, _heights(s.target, times)
    box_count = math.prod(-(-axis.out // max(1, b)) for axis, b in zip(plan.sweep, plan.box, strict=True))
    rows, channels = math.prod(plan.box[:-1]), p.c // p.groups
    width = plan.sweep[-1].out / max(1, -(-plan.sweep[-1].out // max(1, plan.box[-1])))
    products = 0.0
    for _, height in plan.sets:
        for _, each in near_equal(plan.vectors, heights[height]):
            cycles = sum(count * _cycles(rates, height * times, each) + more * _cycles(rates, height * longer, each)
                         for count, more in _shares(p))  # fmt: skip
            products += plan.walks * (cycles + _TILE_CYCLES * len(_shares(p)))
    turns = len(plan.sets) * len(_shares(p))
    line_count = math.prod(h.count for h in plan.held[:-1])
    panels = line_count * (60.0 + channels * (8 + plan.held[-1].count * 0.3))
    moves = 300.0 + turns * rows * 40.0
    if plan.flat:
        moves += turns / max(1, len(plan.sets)) * p.m / p.groups * rows * (12 + width * times / lane * 4.0)
    batch = (p.n or 0) * p.groups * box_count
    far = _LATE_SHARE * far_cycles(p, batch * plan.panel)
    products *= _STREAMING[plan.flat]
    return {"products": products * batch, "panels": panels * batch + far, "moves": moves * batch}


_TILE_CYCLES, _LATE_SHARE = 60.0, 0.6
"""Cycles of a tile beside its products, and how much of what comes from memory is not there when it is needed."""
_STREAMING = {False: 1.07, True: 1.12}
"""How much longer products take, whose pixels come from a second-level cache; where tiles go along the box or not."""


def _cycles(rates: Rates, rows: int, vectors: int) -> float:
    """Cycles of a tap of a tile: beside its own words it loads entries, and asks for inputs to come."""
    return max(tile_cycles(rates, rows, vectors), (rows + vectors + 3) / rates.loads) if rows else 0.0


# -- building ------------------------------------------------------------------------------------------


def build(r: Request) -> Program:
    """Program of a request."""
    s, p, arith = r.situation, r.problem, r.arith
    plan, keep = _expected(s), list[Any]()
    last, lane, times = plan.sweep[-1], lanes(r.target, r.arith), p.s[-1]
    along = along_out(r, replace(last, out_step=1), "p")
    if along != "pp":
        plan = _plan(s, flat=True)
    longer = p.k[-1] % times
    wide = r.target.vector_bytes
    address = address_of(r, "woven", "driver", Driver, lambda k, name: driver(k, name, wide))
    functions, of_sets = _set_tables(r, plan, longer)
    phases = [_phase(r, plan, phase, keep) for phase in itertools.product(*(range(step) for step in p.s[:-1]))]
    turns = len(plan.sets) * len(phases)
    items = (p.n or 0) * p.groups * math.prod(-(-axis.out // b) for axis, b in zip(plan.sweep, plan.box, strict=True))
    cycles = _cost(s, plan)
    parts = thread_parts(s.threads, items, turns, cycles["panels"] / max(1.0, cycles["products"]))
    tiles = -(-turns // parts) * plan.walks * -(-plan.vectors // max(_heights(r.target, times).values()))
    ahead = bytes_between(r, plan.sweep, plan.box)
    header = -(-(24 * len(plan.sweep)) // 64) * 64
    common, number = boxed_words(r, plan.sweep, plan.box, plan.held, parts, panel=header)
    last_out = p.out[-1]
    assert last_out is not None
    values = WovenWords(
        common=common, channels=p.c // p.groups, plane_bytes=plan.plane_bytes, line_words=plan.line_words,
        word_bytes=arith.bytes, result_bytes=r.y.itemsize, lanes=lane, times=times, taps=p.k[-1] // times,
        ahead=s.threads * ahead, ahead_bytes=ahead, ahead_step=min(64 << 8, (ahead << 8) // tiles),
        first_out=last.first_out, last_out=last_out, outputs=p.m // p.groups, phases=len(phases),
        phase_words=len(phases[0]), phase=words(list(itertools.chain.from_iterable(phases))),
        set_count=len(plan.sets), split_sets=-(-turns // parts), sets=of_sets, functions=functions,
        flat=int(plan.flat), row_table=header + plan.panel, slots=header + plan.panel + plan.rows,
        slot_channel=plan.slot_channel, y_pixel=r.y.spatial[-1],
        r_pixel=0 if r.residual is None else r.residual.spatial[-1], tables=epilogue_tables(r),
        move_in=move_in_address(r, Move(p.x, arith.accumulator, along_in(r, last, "p"))),
        move_out=move_out_address(r, Move(arith.accumulator, p.y, along, r.epilogue)),
    )  # fmt: skip
    return one_step(address, filled(values, keep), number, plan.workspace, keep)


def _set_tables(r: Request, plan: _Plan, longer: int) -> tuple[list[Address[WeaveTile]], list[SetWords]]:
    """Functions of tiles, and the words of every set of output channels."""
    lane, times, f16c = lanes(r.target, r.arith), r.problem.s[-1], r.target.converts_f16
    spec = of_sums(r.arith.name) if plan.flat else FusedTile(r.arith.name, r.problem.y, r.epilogue)
    functions: list[Address[WeaveTile]] = []
    places: dict[int, list[int]] = {}
    records: list[SetWords] = []
    for first, rows in plan.sets:
        most = _heights(r.target, times)[rows]
        if rows not in places:
            places[rows] = []
            for edge in (False, not plan.flat):
                names = {f"tile{n}": n for n in range(1, most + 1)}

                def build(k: Module, names: dict[str, int] = names, edge: bool = edge, rows: int = rows) -> None:
                    for name, n in names.items():
                        weave_tile(k, name, replace(spec, edge=edge), lane, rows, times, longer, n, f16c=f16c)

                label = f"weave {replace(spec, edge=edge)} {rows} {times} {longer}"
                found = kernel(label, dict.fromkeys(names, WeaveTile), build, r.target, check=r.check)
                places[rows].append(2 * len(functions) - 2)  # the function of n vectors is at word 2 n
                functions += [found[name] for name in names]
        records.append(SetWords(first, rows, most, *places[rows]))
    return functions, records


def _phase(r: Request, plan: _Plan, phase: tuple[int, ...], keep: list[Any]) -> list[int]:
    """The words of a phase of the outer axes: ``PhaseWords``, and of every axis which groups have it."""
    p, outer = r.problem, plan.sweep[:-1]
    y = sum(at * stride for at, stride in zip(phase, r.y.spatial, strict=False))
    residual = 0 if r.residual is None else sum(at * step for at, step in zip(phase, r.residual.spatial, strict=False))
    bounds: list[int] = []
    for axis, at, o in zip(outer, phase, p.out, strict=False):
        first = axis.first_out + at
        bounds += (max(0, -(first // axis.out_step)), -((first - int(o or 0)) // axis.out_step))
    lines_of = [held.start[len(held.start) - _taps(k, axis.out_step, at) :]
                for held, k, axis, at in zip(plan.held, p.k, outer, phase, strict=False)]  # fmt: skip
    places = [0]
    for of_axis, held in zip(lines_of, plan.held, strict=False):
        places = [at * held.count + line for at in places for line in of_axis]
    first_tap, width, channels = -(-p.k[-1] // p.s[-1]) - p.k[-1] // p.s[-1], plan.line_words, p.c // p.groups
    entries = words([
        word for c in range(channels) for number, at in enumerate(places)
        for word in (c * plan.plane_bytes + (at * width + first_tap) * r.arith.bytes, c * r.x.c + 64 * number)
    ])  # fmt: skip
    packed = r.packed(("woven", r.arith.name, r.target.level, p.k, p.s, phase), lambda: _packed(r, plan, phase))
    keep += (entries, packed)
    own = PhaseWords(
        weights=packed, w_group=packed.nbytes // p.groups, w_output=packed.nbytes // p.m, entries=entries,
        count=channels * len(places), y=y, r=residual,
    )  # fmt: skip
    return [*words_of(own), *bounds]


def _packed(r: Request, plan: _Plan, phase: tuple[int, ...]) -> NDArray[Any]:
    """Weights of a phase of the outer axes: by set [channel][outer tap][tap][output channel][phase of the last axis].

    The first phases' tap more follows those that all have, in every entry.
    """
    p = r.problem
    *outer, last = plan.sweep
    step, whole, more = last.out_step, p.k[-1] // last.out_step, p.k[-1] % last.out_step

    def taps(axis: Axis, first: int, count: int) -> Axis:
        return replace(axis, taps=count, first_tap=first + (count - 1) * axis.out_step, tap_step=-axis.out_step)

    others = tuple(taps(axis, at, _taps(k, axis.out_step, at)) for axis, at, k in zip(outer, phase, p.k, strict=False))

    def streams(of_last: list[Axis]) -> list[NDArray[Any]]:
        """Of every height of sets: (groups, sets, entries, weights)."""
        by_tap = [r.weights((*others, axis)).transpose(3, 0, 2, 1) for axis in of_last]
        w = np.stack(by_tap, axis=-1).reshape(*by_tap[0].shape[:3], -1).transpose(1, 3, 2, 0)
        groups, m, c, count = w.shape
        phases = len(of_last)
        sets = [Set(first * phases, rows * phases, rows * phases, first * phases * c * count, m * c * count)
                for first, rows in plan.sets]  # fmt: skip
        packed = packed_sets(r, w, sets, 1, w.size).reshape(groups, m * c * count)
        found, at = [], 0
        for rows, number in Counter(rows for _, rows in plan.sets).items():
            size = number * rows * phases * c * count
            entries = c * count // of_last[0].taps
            found.append(packed[:, at : at + size].reshape(groups, number, entries, -1))
            at += size
        return found

    parts = streams([taps(last, at, whole) for at in range(step)])
    if more:
        beside = streams([taps(last, at + step * whole, 1) for at in range(more)])
        parts = [np.concatenate(pair, axis=-1) for pair in zip(parts, beside, strict=True)]
    one = [part.reshape(part.shape[0], -1) for part in parts]
    return one[0].reshape(-1) if len(one) == 1 else np.concatenate(one, axis=1).reshape(-1)
