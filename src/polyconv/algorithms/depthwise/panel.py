"""``depthwise_panel``: the sliding window of channels-last lines and maps over a copy of its input.

Pixels of many channels lie some cache lines apart, so that those of a window meet only some of the sets of the
first-level cache and push each other out.  A panel holds the input of a box, one plane for every vector of channels,
with zeros for the padding along the last axis; tiles, entries and their order are those of ``slide``, to which arrays
whose channels do not lie together are left.
Cost: that of ``slide`` with few cycles for a load, and the copy.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from polyconv.algorithms.depthwise.form import DepthwiseForm
from polyconv.algorithms.depthwise.parts import ITEMS
from polyconv.algorithms.depthwise.requests import StepOf, program_of, turned
from polyconv.algorithms.depthwise.situations import lane_of, refusal
from polyconv.algorithms.depthwise.slide import SlideForm, slide_words
from polyconv.algorithms.depthwise.slide_driver import SlideWords, channels_of, tiles_of_row
from polyconv.algorithms.depthwise.slide_plan import (
    FAR_SHARE,
    Plan,
    cost_of,
    order_name,
    order_of,
    plan_of,
    window_share,
)
from polyconv.algorithms.depthwise.taps import list_bytes, list_place, row_place, workspace_of, write_list
from polyconv.algorithms.form import Forms
from polyconv.kernels.language import INT, Buffer, Module, Type, Value
from polyconv.kernels.record import Record, Word
from polyconv.lowering.panel import Driver, Item, axis_words, decode
from polyconv.lowering.program import Operand, Program, Request, address_of
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Sweep, mean_taps, sweeps

__all__ = ["forms"]

_PANEL, _WINDOW = 1 / 2, 1 / 8
"""Shares of the second-level cache for the workspace, and for the window of a row of outputs in a plane."""

_MOST_VECTORS = 8
"""Planes of a panel, which share the lists of its rows."""

_LEAST_ROWS = 4
"""Fewest rows of a box that is cut for threads."""

_LEAST_TAPS = {1: 50, 2: 25}
"""By rank: taps that are worth a copy."""

_LEAST_MET = 0.8
"""Share of the taps along the last axis that meet the input: the others are computed."""

_COPY = 4.0
"""Cycles of a vector that is copied.  Measured on Zen 5."""


class PanelWords(Record):
    """The driver's words: those of ``slide``, whose input is a plane; lists of rows; the planes.

    Their rows and columns come ``from`` the input there.
    """

    slide: SlideWords
    list_bytes: Word
    planes: Word
    from_base: Word
    from_n: Word
    from_g: Word
    from_row: Word
    from_column: Word
    rows: Word
    columns: Word


def driver(k: Module, name: str, size: int, lane: int) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module, for vectors of elements of ``size`` bytes."""
    with k.function(name, Driver) as given:
        panel = PanelWords.read(k, given.words)
        p, c, taps = panel.slide, panel.slide.common, panel.slide.taps
        item = decode(k, c, given.item, given.workspace)
        lists, planes = given.workspace + taps.place, given.workspace + panel.planes
        one, zero = k.constant(INT, 1), k.constant(INT, 0)
        with k.loop(0, taps.slid, carry=[one, zero]) as axis:
            rows, skipped = axis.values
            back = item.origin(axis.index) * axis_words(c, axis.index).x_stride
            axis.next(rows * item.extent(axis.index), skipped + back)
        rows, skipped = axis.results
        with k.loop(0, rows) as row:
            write_list(k, c, taps, item, lists + row.index * panel.list_bytes, row.index)
        first, channels = channels_of(k, p, item)
        _fill(k, panel, item, given.frame.x, planes, channels, Type(f"i{8 * size}", lane))
        with k.loop(0, channels, lane) as vector, k.loop(0, rows) as row:
            _, y, r = row_place(k, c, taps.slid, item, given.frame, row.index, item.g)
            x = planes + (vector.index * c.x_c - skipped)
            place = x, y + vector.index * c.y_c, r + vector.index * c.r_c
            used = k.minimum(channels - vector.index, lane)
            entries, masked = lists + row.index * panel.list_bytes, k.select(used < lane, one, zero)
            tiles_of_row(k, p, item, entries, place, first + vector.index, used, used, masked)


def _fill(k: Module, panel: PanelWords, item: Item, x: Buffer, planes: Buffer, channels: Value, kind: Type) -> None:
    """Copy what the item reads, vector after vector, with zeros for columns outside; rows outside are left out."""
    c, axis = panel.slide.common, panel.slide.taps.slid
    slid = axis_words(c, axis)
    at, columns = item.origin(axis), panel.columns
    head = k.minimum(k.maximum(-at, 0), columns)
    end = k.maximum(k.minimum(slid.inp - at, columns), head)
    source = x + (panel.from_base + item.n * panel.from_n + item.g * panel.from_g + at * panel.from_column)
    nothing = k.constant(kind, 0)
    with k.loop(0, channels, kind.lanes) as vector, k.loop(0, panel.rows) as row:
        position = (item.origin(0) + row.index) * axis  # along the only axis before the last, if there is one
        with k.when(position.below(axis_words(c, 0).inp)):
            to = planes + (vector.index * c.x_c + row.index * columns * kind.bytes)
            come = source + (position * panel.from_row + vector.index * kind.element_bytes)
            for low, high in ((k.constant(INT, 0), head), (end, columns)):
                with k.loop(low, high) as column:
                    k.store(nothing, to + column.index * kind.bytes)
            mask = k.mask(channels - vector.index, kind.lanes)
            with k.loop(head, end) as column:
                value = k.load_first(kind, come + column.index * panel.from_column, mask)
                k.store(value, to + column.index * kind.bytes)


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    p = s.problem
    if (reason := refusal(s)) is not None:
        return reason
    if p.op != "conv" or p.layout != "NHWC" or p.m != p.c or not 1 <= p.rank <= 2:
        return "computes convolutions of channels-last lines and maps, one output of a channel"
    if not s.finite:
        return "weights hold Inf or NaN, which would meet the zeros of the padding"
    (sweep,) = sweeps(p)
    cut = _cut_of(s, sweep)
    if cut is None:
        return "the workspace holds no panel"
    if s.chance is None:  # else worth it or not
        slid, least = cut.plan.sweep[-1], _LEAST_TAPS[p.rank]
        if cut.plan.taps < least or mean_taps(slid) < _LEAST_MET * slid.taps:
            return f"copies inputs for at least {least} taps, most of which meet the input"
        if window_share(s, cut.plan) < FAR_SHARE:
            return "the first-level cache holds the window of a row of outputs"
    return (PanelForm(s, sweep, cut),)


@dataclass(frozen=True, slots=True)
class Cut:
    """A plan of ``slide``, and the panels of its items: ``vectors`` planes of so many rows and columns.

    The workspace has the ``bytes`` of an item's box, lists of all rows, and planes.
    """

    plan: Plan
    vectors: int
    rows: int
    columns: int
    bytes: int


def _list_bytes(plan: Plan) -> int:
    """Bytes of the list of a row of outputs."""
    return -(-list_bytes(math.prod(axis.taps for axis in plan.outer) * plan.entries) // 64) * 64


def _planes(plan: Plan) -> int:
    """Where planes begin in the workspace: behind an item's box and the lists of its rows."""
    rows = plan.box[0] if plan.slid else 1
    return list_place(len(plan.sweep)) + -(-rows * _list_bytes(plan) // 64) * 64


def _cut_of(s: Situation, sweep: Sweep) -> Cut | None:
    """The largest panels that fit; None where the workspace is too small."""
    p, lane = s.problem, lane_of(s)
    plan = plan_of(s, sweep, False, order_of(sweep, False))
    size, slid, maps = lane * p.x_dtype.itemsize, plan.sweep[-1], plan.slid > 0

    def extent(axis: int, outputs: int) -> int:
        of = plan.sweep[axis]
        return (outputs - 1) * of.stride + (of.taps - 1) * of.dilation + 1

    def cut(vectors: int, rows: int, columns: int) -> Cut:
        box = (rows, columns)[-len(plan.sweep) :]
        own = replace(plan, box=box, chunk=min(p.m, vectors * lane), padded=True)
        down, across = extent(0, rows) if maps else 1, extent(-1, columns)
        return Cut(own, vectors, down, across, _planes(own) + vectors * down * across * size)

    columns, window = max(1, slid.out), plan.outer[0].taps if maps else 1
    while columns > plan.most and window * extent(-1, columns) * size > s.cache("l2", _WINDOW):
        columns = -(-columns // 2)
    whole = rows = max(1, plan.sweep[0].out) if maps else 1
    vectors, budget = min(_MOST_VECTORS, max(1, -(-p.m // lane))), s.budget(int(s.profile.numbers["l2.bytes"] * _PANEL))
    while (found := cut(vectors, rows, columns)).bytes > budget:
        if vectors > 2 or (vectors == 2 and rows <= plan.most):
            vectors -= 1
        elif rows > 1:
            rows = -(-rows // 2)
        elif s.chance is not None and s.limit is None:
            break
        else:
            return None
    items = -(-p.m // (vectors * lane)) * -(-whole // rows) * -(-max(1, slid.out) // columns) * (p.n or 0)
    if s.threads > 1 and 0 < items < ITEMS * s.threads:
        rows = max(min(_LEAST_ROWS, rows), -(-rows * items // (ITEMS * s.threads)))
        found = cut(vectors, rows, columns)
    return found


@dataclass(frozen=True, slots=True)
class PanelForm(DepthwiseForm):
    """Lines or maps, cut into boxes whose input is copied."""

    sweep: Sweep
    cut: Cut

    @property
    def workspace(self) -> int:
        """Bytes a thread needs: lists of all rows of an item, and its planes."""
        return max(workspace_of(self.s), self.cut.bytes)  # where channels do not lie together it is that of ``slide``

    @property
    def scheme(self) -> str:
        """Along which axis windows slide, if not as usual."""
        return order_name((self.cut.plan,))

    def cost(self) -> dict[str, float]:
        """Cycles: those of ``slide`` where the first-level cache holds the window, and the copy."""
        p, cut, plan = self.s.problem, self.cut, self.cut.plan
        tiles, lists = cost_of(self.s, plan)
        boxes = math.prod(-(-a.out // b) for a, b in zip(plan.sweep, plan.box, strict=True))
        copied = boxes * -(-p.m // lane_of(self.s)) * cut.rows * cut.columns
        batch = p.n or 0
        return {"products": tiles * batch, "moves": (lists + _COPY * copied) * batch}

    def choices(self) -> dict[str, object]:
        """What a panel holds."""
        cut, plan = self.cut, self.cut.plan
        return {
            "window slides along axis": plan.axis, "tile": f"up to {plan.most} outputs by a vector",
            "panel": f"{cut.vectors} vectors of channels, {cut.rows} rows, {cut.columns} columns", "box": plan.box,
        }  # fmt: skip

    def build(self, r: Request) -> Program:
        """Program of a request."""
        if r.x.c != r.x.itemsize:
            return SlideForm.usual(self.s).build(r)
        return program_of(self, [_step_of(turned(r, self.sweep, self.cut.plan.order), self.cut)])


def _step_of(r: Request, cut: Cut) -> StepOf:
    """Driver, words and number of items, for a request whose axes are in the plan's order."""
    size, lane = r.x.itemsize, lane_of(r.situation)
    label = f"depthwise panel {size} {lane}"
    address = address_of(r, label, "panel", Driver, lambda k, name: driver(k, name, size, lane))
    pixel = lane * size
    strides = (cut.columns * pixel, pixel)[-len(cut.plan.sweep) :]
    values, items = slide_words(replace(r, x=Operand(0, cut.rows * cut.columns * size, strides, 0, size)), cut.plan)
    return address, PanelWords(
        slide=values, list_bytes=_list_bytes(cut.plan), planes=_planes(cut.plan), from_base=r.x.offset, from_n=r.x.n,
        from_g=cut.plan.chunk * r.x.c, from_row=r.x.spatial[0], from_column=r.x.spatial[-1], rows=cut.rows,
        columns=cut.columns,
    ), items  # fmt: skip
