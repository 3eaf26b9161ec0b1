"""Depthwise convolution over channels-last lines and maps whose window a cache would not hold, from a panel.

Pixels of many channels lie some cache lines apart, so that those of a window meet only some of the sets of the
first-level cache and push each other out.  A panel holds the input of a box, one plane for every vector of channels,
with zeros for the padding along the last axis; lanes are channels, and tiles, entries and their order are those of
``depthwise``, to which arrays whose channels do not lie together are left.
Cost: that of ``depthwise`` with few cycles for a load, and the copy.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from polyconv.algorithms import depthwise, depthwise_driver, depthwise_plan
from polyconv.algorithms.depthwise_plan import Plan
from polyconv.algorithms.panel import Driver, Item, axis_words, decode
from polyconv.algorithms.program import (
    Operand,
    Program,
    Request,
    Situation,
    Step,
    accumulator_arithmetic,
    address_of,
)
from polyconv.algorithms.sweep import Sweep, mean_taps, sweeps
from polyconv.kernels.depthwise import LIST_HEADER
from polyconv.kernels.isa import ARITHMETIC, lanes
from polyconv.kernels.language import INT, Buffer, Module, Type, Value
from polyconv.kernels.record import Record, Word, filled

__all__ = ["applicable", "build", "cost", "workspace"]

_BYTES = 512 << 10
"""Workspace: half of a second-level cache."""

_WINDOW_BYTES = 128 << 10
"""Window of a row of outputs in a plane."""

_MOST_VECTORS = 8
"""Planes of a panel, which share the lists of its rows."""

_LEAST_TAPS = {1: 50, 2: 25}
"""By rank: taps that are worth a copy."""

_LEAST_MET = 0.8
"""Share of the taps along the last axis that meet the input: the others are computed."""

_COPY = 4.0
"""Cycles of a vector that is copied."""


class HeldWords(Record):
    """The driver's words: those of ``depthwise``, whose input is a plane; lists of rows; the planes.

    What is ``held`` of the input comes ``from`` there.
    """

    plain: depthwise_driver.DepthwiseWords
    list_bytes: Word
    planes: Word
    from_base: Word
    from_n: Word
    from_g: Word
    from_row: Word
    from_pixel: Word
    held_rows: Word
    held_columns: Word


def driver(k: Module, name: str, size: int, lane: int) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module, for vectors of elements of ``size`` bytes."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        held = HeldWords.read(k, given.words)
        p, c = held.plain, held.plain.common
        item = decode(k, c, given.item, workspace)
        lists, planes = workspace + p.list_place, workspace + held.planes
        one, zero = k.constant(INT, 1), k.constant(INT, 0)
        with k.loop(0, p.slid, carry=[one, zero]) as axis:
            rows, skipped = axis.values
            back = item.origin(axis.index) * axis_words(c, axis.index).x_stride
            axis.next(rows * item.extent(axis.index), skipped + back)
        rows, skipped = axis.results
        with k.loop(0, rows) as row:
            depthwise_driver.write_list(k, p, item, lists + row.index * held.list_bytes, row.index, None)
        first = item.g * p.chunk_channels
        channels = k.minimum(p.chunk_channels, p.channels - first)
        _fill(k, held, item, frame.x, planes, channels, Type(f"i{8 * size}", lane))
        with k.loop(0, channels, lane) as vector, k.loop(0, rows) as row:
            _, y, r = depthwise_driver.place_of(k, p, item, frame, row.index)
            x = planes + (vector.index * c.x_c - skipped)
            at = (x, y + vector.index * c.y_c, r + vector.index * c.r_c)
            used = k.minimum(channels - vector.index, lane)
            depthwise_driver.tiles_of_row(
                k, p, item, lists + row.index * held.list_bytes, at, first + vector.index, used, used,
                k.select(used < lane, one, zero),
            )  # fmt: skip


def _fill(k: Module, held: HeldWords, item: Item, x: Buffer, planes: Buffer, channels: Value, kind: Type) -> None:
    """Copy what the item reads, vector after vector, with zeros for columns outside; rows outside are left out."""
    p = held.plain
    slid = axis_words(p.common, p.slid)
    at, columns = item.origin(p.slid), held.held_columns
    head = k.minimum(k.maximum(-at, 0), columns)
    end = k.maximum(k.minimum(slid.inp - at, columns), head)
    source = x + (held.from_base + item.n * held.from_n + item.g * held.from_g + at * held.from_pixel)
    nothing = k.constant(kind, 0)
    with k.loop(0, channels, kind.lanes) as vector, k.loop(0, held.held_rows) as row:
        position = (item.origin(0) + row.index) * p.slid  # along the only axis before the last, if there is one
        with k.when(position.below(axis_words(p.common, 0).inp)):
            to = planes + (vector.index * p.common.x_c + row.index * columns * kind.bytes)
            come = source + (position * held.from_row + vector.index * kind.element_bytes)
            for low, high in ((k.constant(INT, 0), head), (end, columns)):
                with k.loop(low, high) as column:
                    k.store(nothing, to + column.index * kind.bytes)
            mask = k.mask(channels - vector.index, kind.lanes)
            with k.loop(head, end) as column:
                value = k.load_first(kind, come + column.index * held.from_pixel, mask)
                k.store(value, to + column.index * kind.bytes)


@dataclass(frozen=True, slots=True)
class _Held:
    """A plan of ``depthwise``, and the rows and columns of the planes of its items.

    Parameters
    ----------
    plan : Plan
    rows, columns : int
    list_bytes : int
        Of the list of a row of outputs.
    planes : int
        Where they begin in the workspace.
    bytes : int
        Of the workspace.
    """

    plan: Plan
    rows: int
    columns: int
    list_bytes: int
    planes: int
    bytes: int


@lru_cache(256)
def _held(s: Situation, sweep: Sweep) -> _Held | None:
    """Geometry of a sweep in place; None where the workspace is too small."""
    p, lane = s.problem, lanes(s.target, ARITHMETIC[accumulator_arithmetic(s)])
    plan = depthwise_plan.plan_of(s, sweep, False)
    size, slid = lane * p.x_dtype.itemsize, sweep[-1]
    entries = math.prod(a.taps for a in plan.outer) * sum(kind[0] * kind[3] for kind in plan.kinds)
    list_bytes = -(-(LIST_HEADER + entries * depthwise_driver.ENTRY_BYTES) // 64) * 64

    def extent(axis: int, outputs: int) -> int:
        return (outputs - 1) * sweep[axis].stride + (sweep[axis].taps - 1) * sweep[axis].dilation + 1

    def held(vectors: int, rows: int, columns: int) -> _Held:
        down, across = extent(0, rows) if plan.slid else 1, extent(-1, columns)
        planes = depthwise_plan.list_place(len(sweep)) + -(-rows * list_bytes // 64) * 64
        box = (rows, columns) if plan.slid else (columns,)
        own = replace(plan, box=box, chunk=min(p.m, vectors * lane), held=True)
        return _Held(own, down, across, list_bytes, planes, planes + vectors * down * across * size)

    columns = max(1, slid.out)
    window = plan.outer[0].taps if plan.slid else 1
    while columns > plan.most and window * extent(-1, columns) * size > s.near(_WINDOW_BYTES):
        columns = -(-columns // 2)
    whole = max(1, sweep[0].out) if plan.slid else 1
    rows, vectors = whole, min(_MOST_VECTORS, max(1, -(-p.m // lane)))
    while (found := held(vectors, rows, columns)).bytes > s.budget(_BYTES):
        if vectors > 2 or (vectors == 2 and rows <= plan.most):
            vectors -= 1
        elif rows > 1:
            rows = -(-rows // 2)
        elif s.chance is not None and s.limit is None:
            break
        else:
            return None
    if s.threads > 1:
        parts = -(-p.m // (vectors * lane)) * -(-whole // rows) * -(-max(1, slid.out) // columns) * (p.n or 0)
        if 0 < parts < 4 * s.threads:
            found = held(vectors, max(min(4, rows), -(-rows * parts // (4 * s.threads))), columns)
    return found


def _of_problem(s: Situation) -> list[tuple[Sweep, tuple[int, ...], _Held | None]]:
    """Every sweep, the order of its axes and its geometry."""
    found = []
    for sweep in sweeps(s.problem):
        order = depthwise_plan.order_of(sweep, False)
        found.append((sweep, order, _held(s, tuple(sweep[a] for a in order))))
    return found


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    reason = depthwise_plan.applicable(s)
    if reason is not None:
        return reason
    p = s.problem
    if p.op != "conv" or p.layout != "NHWC" or p.m != p.c or not 1 <= p.rank <= 2:
        return "computes convolutions of channels-last lines and maps, one output of a channel"
    if not s.finite:
        return "weights hold Inf or NaN, which would meet the zeros of the padding"
    for sweep, order, held in _of_problem(s):
        if held is None:
            return "the workspace holds no panel"
        if s.chance is not None:  # worth it or not
            continue
        slid, least = sweep[order[-1]], _LEAST_TAPS[p.rank]
        if math.prod(axis.taps for axis in sweep) < least or mean_taps(slid) < _LEAST_MET * slid.taps:
            return f"copies inputs for at least {least} taps, most of which meet the input"
        if depthwise_plan.window_share(s, held.plan) < depthwise_plan.FAR_SHARE:
            return "the first-level cache holds the window of a row of outputs"
    return None


def workspace(s: Situation) -> int:
    """Bytes a thread needs: lists of all rows of an item, and its planes."""
    return max(depthwise_plan.workspace(s), *(held.bytes for *_, held in _of_problem(s) if held))


def cost(s: Situation) -> dict[str, float]:
    """Cycles: those of ``depthwise`` where the first-level cache holds the window, and the copy."""
    p, lane = s.problem, lanes(s.target, ARITHMETIC[accumulator_arithmetic(s)])
    products = moves = 0.0
    for *_, held in _of_problem(s):
        assert held is not None
        tiles, lists = depthwise_plan.cost_of(s, held.plan)
        boxes = math.prod(-(-a.out // b) for a, b in zip(held.plan.sweep, held.plan.box, strict=True))
        copied = boxes * -(-p.m // lane) * held.rows * held.columns
        products, moves = products + tiles, moves + lists + _COPY * copied
    batch = p.n or 0
    return {"products": products * batch, "moves": moves * batch}


def build(r: Request) -> Program:
    """Program of a request: one step per sweep."""
    if r.x.c != r.x.itemsize:
        return depthwise.build(r)
    keep: list[Any] = []
    size, lane = r.x.itemsize, lanes(r.target, r.arith)
    name = "panel"
    label = f"depthwise {name} {size} {lane}"
    address = address_of(r, label, name, Driver, lambda k, name: driver(k, name, size, lane))
    steps = []
    for sweep, order, held in _of_problem(r.situation):
        assert held is not None
        one = depthwise.turned(r, sweep, order)
        pixel = lane * size
        plane = held.rows * held.columns * pixel
        strides = (held.columns * pixel, pixel)[-len(order) :]
        panel = replace(one, x=Operand(0, plane // lane, strides, 0, size))
        plain, items = depthwise.sweep_words(panel, held.plan, held.plan.sweep)
        values = HeldWords(
            plain=plain, list_bytes=held.list_bytes, planes=held.planes, from_base=one.x.offset, from_n=one.x.n,
            from_g=held.plan.chunk * one.x.c, from_row=one.x.spatial[0], from_pixel=one.x.spatial[-1],
            held_rows=held.rows, held_columns=held.columns,
        )  # fmt: skip
        steps.append(Step(address, filled(values, keep), items))
    return Program(tuple(step for step in steps if step.items), workspace(r.situation), tuple(keep))
