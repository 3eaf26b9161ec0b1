"""``depthwise_last``: the sliding window of channels-first arrays over a copy with channels last, any rank and stride.

Where lines are short, or strides lead over pixels, vectors of pixels are mostly empty; vectors of channels are full.
An item copies rows of the input, vector by vector of channels, in the type of sums; windows slide over the copy along
the axis that suits best, whichever it is; then sums become planes again.  All phases of a transposed convolution share
an item, so that their results leave together, as whole lines.
Cost: that of ``slide``, and both copies.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from polyconv.algorithms.depthwise.last_driver import ArrayWords, LastWords, OutputWords, PhaseWords, StepWords, driver
from polyconv.algorithms.depthwise.parts import ITEMS
from polyconv.algorithms.depthwise.requests import of_every_output, turned
from polyconv.algorithms.depthwise.situations import (
    DepthwiseForm,
    arithmetic_of,
    beyond_cycles,
    by_pixels,
    lane_of,
    of_one_output,
    rates_of,
    too_many_taps,
)
from polyconv.algorithms.depthwise.slide import slide_words
from polyconv.algorithms.depthwise.slide_driver import SlideWords
from polyconv.algorithms.depthwise.slide_plan import Plan, cost_of, cycles_of_output, order_name, plan_of
from polyconv.algorithms.depthwise.taps import list_bytes, list_place, workspace_of
from polyconv.algorithms.form import Forms
from polyconv.algorithms.least import least
from polyconv.dataclass import dataclass
from polyconv.kernels.isa import ARITHMETIC
from polyconv.kernels.layout import Move
from polyconv.kernels.record import filled
from polyconv.lowering.gaps import gaps
from polyconv.lowering.moves import along_in, along_out, move_in_address, move_out_address
from polyconv.lowering.panel import Driver
from polyconv.lowering.program import Operand, Program, Request, address_of, epilogue_tables, one_step, residual_of
from polyconv.lowering.situation import FREE_BYTES, Situation, changed, image_bytes, of_one_image
from polyconv.lowering.sweep import Axis, Sweep, phases_of, sweeps, without_taps
from polyconv.lowering.traffic import far_cycles
from polyconv.problem.problem import Problem

__all__ = ["LastForm", "at_least", "forms"]

_NEAR, _MOST = 1 / 2, 2.0
"""Shares of the second-level cache for the workspace: of boxes that can be smaller, and of any."""

_VECTORS = 8
"""Most vectors of channels of an item, which share the lists of taps."""

_LISTS = 1 / 8
"""Share of the first-level cache for lists of rows, which a vector of channels computes one after the other: what
neighbouring rows read stays near meanwhile."""

_TOGETHER = 4
"""Sizes of tiles that are compiled together where extents vary: images of other sizes soon need the next one."""

_IN, _OUT, _RUN = 3.5, 4.0, 40.0
"""Cycles of a vector of the copy, of one of results, and of a run of pixels.  Measured on Zen 5."""

_FAR = 3 / 8
"""Of the cycles in which lines of a panel come from memory, those of planes that are copied whole.  Measured on Zen 5,
images of 15 to 41 MB: 7 to 11 bytes a cycle."""


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    p = s.problem
    if p.op not in ("conv", "conv_transpose") or p.c != p.groups or not p.m or p.c == 1:
        return "computes conv and conv_transpose of several channels, with one input channel a group"
    if not by_pixels(p) and (p.m != p.c or p.quantisation is not None):
        return "copies channels-first arrays, and those with channels last for one output of a channel"
    if (reason := too_many_taps(p)) is not None:
        return reason
    one = changed(of_one_image(s), limit=None)  # neither threads nor a limit decide what is summed
    swept = *sweeps(p), *_phase_by_phase(p)
    if not swept:
        return "computes results that have elements"
    cut, usual = _cut_of(s, swept), _cut_of(one, swept)
    if cut is None or usual is None:
        return "the workspace holds no rows of a vector of channels"
    return (LastForm(s, tuple(_plan_of(one, sweep, usual) for sweep in swept), cut),)


def _phase_by_phase(p: Problem) -> Iterator[Sweep]:
    """Sweeps without taps, as items have some outputs of every phase of the first axis."""
    for whole, *others in gaps(p):
        phases = phases_of(p)[0] if whole.out == p.out[0] else [whole]
        yield from ((without_taps(axis.first_out, axis.out, axis.out_step), *others) for axis in phases)


def at_least(s: Situation) -> float:
    """Cycles that tiles and both copies take, whatever the items and the axes along which windows slide."""
    p = s.problem
    if not p.m or p.c != p.groups:
        return math.inf
    work, one = least(p), _of_one_vector(s)
    leaving = _OUT * by_pixels(p) * s.moving
    of_output = work.met / rates_of(one).multiply_adds + work.outputs * (cycles_of_output(one) + leaving)
    return (work.brought * _IN * s.moving + p.m // p.groups * of_output) * -(-p.groups // lane_of(s)) * (p.n or 0)


def _of_one_vector(s: Situation) -> Situation:
    """The same situation for one vector of channels of a copy, whose elements have the type of sums."""
    one, name, lane = of_one_output(s), ARITHMETIC[arithmetic_of(s)].weight, lane_of(s)
    p = replace(
        one.problem, x=name, w=name, y=name, layout="NHWC", c=lane, m=lane, groups=lane, bias=False, residual=False,
        activation=None, quantisation=None, overflow="wrap",
    )  # fmt: skip
    return replace(one, problem=p)


def _copied_from(s: Situation) -> Situation:
    """The situation of arrays with channels last whose input is a copy; results are written where they lie."""
    name = ARITHMETIC[arithmetic_of(s)].weight
    return replace(s, problem=replace(s.problem, x=name, w=name))


@dataclass(frozen=True, slots=True)
class Cut:
    """How outputs are cut into items: ``vectors`` of channels, and ``block`` outputs of every phase of the first axis.

    Neighbouring outputs of a phase are ``apart`` rows.  Box ``i`` of ``boxes`` reads rows from
    ``i * block * stride + low`` to ``((i + 1) * block - 1) * stride + high``, ``rows`` of them at most.  Copies of
    input and results begin at ``inputs`` and ``sums`` in the workspace, which has so many ``bytes``.
    """

    vectors: int
    boxes: int
    block: int
    apart: int
    stride: int
    low: int
    high: int
    rows: int
    inputs: int
    sums: int
    bytes: int


def _cut_of(s: Situation, swept: tuple[Sweep, ...]) -> Cut | None:
    """The largest items that stay near; None if the workspace is too small for the smallest."""
    p, firsts = s.problem, [sweep[0] for sweep in swept]
    reading, (apart, stride) = [axis for axis in firsts if axis.taps], (firsts[0].out_step, firsts[0].stride)
    low = min((-axis.pad for axis in reading), default=0)
    high = max(((axis.taps - 1) * axis.dilation - axis.pad for axis in reading), default=low - 1)
    regular = all(axis.out_step == apart and axis.first_out < apart for axis in firsts)
    regular = regular and all(axis.stride == stride for axis in reading)
    inp, out, most = int(p.i[0] or 0), int(p.out[0] or 0), max(1, *(axis.out for axis in firsts))
    row_in, row_out = (s.target.vector_bytes * math.prod(int(e or 0) for e in all_[1:]) for all_ in (p.i, p.out))
    inputs = -(-(workspace_of(s) + s.cache("l1", _LISTS)) // 64) * 64

    def cut(vectors: int, block: int) -> Cut:
        if block == most:
            box, rows, results = (1, most, max(1, out), 0, 0, inp - 1), inp, out
        else:
            rows, results = max(0, min(inp, (block - 1) * stride + high - low + 1)), min(out, block * apart)
            box = -(-most // block), block, apart, stride, low, high
        sums = inputs + vectors * rows * row_in
        return Cut(vectors, *box, rows, inputs, sums, sums + vectors * results * row_out * by_pixels(p) + 64)

    near, far = (round(share * s.profile.numbers["l2.bytes"]) for share in (_NEAR, _MOST))
    far = far if s.limit is None else min(far, s.limit + FREE_BYTES)
    near = min(far, s.near(near))
    total, least = -(-p.groups // lane_of(s)), max(1, -(-(high - low) // stride))  # boxes share rows, no more than half
    vectors, block = max(1, min(total, _VECTORS, total * (p.n or 1) // (ITEMS * s.threads))), most
    while vectors > 1 and cut(vectors, block).bytes > near:
        vectors -= 1
    found, few = cut(vectors, block), ITEMS * s.threads * int(s.threads > 1)
    while regular and block > 1 and (
        found.bytes > (near if block > least else far)
        or (block > least and (p.n or 0) * -(-total // vectors) * found.boxes < few)
    ):
        block = -(-block // 2)
        found = cut(vectors, block)
    return found if found.bytes <= far else None


def _plan_of(s: Situation, sweep: Sweep, cut: Cut) -> Plan:
    """How windows slide over the copy of a sweep: along the axis where that costs least."""
    one, axes = _of_one_vector(s), range(len(sweep))
    orders = [(*(a for a in axes if a != slid), slid) for slid in reversed(axes)]
    plans = [plan_of(one, sweep, False, order) for order in orders]
    return min(plans, key=lambda plan: s.price(plan.order, sum(_costs(one, plan, cut))))


def _costs(one: Situation, plan: Plan, cut: Cut) -> tuple[float, float]:
    """Cycles of the tiles of a sweep of one vector of channels, and of its lists: all boxes take as the middle one."""
    axis = plan.own_sweep[0]
    boxes = max(1, min(cut.boxes, -(-axis.out // cut.block)))
    some = replace(axis, out=min(axis.out, cut.block), pad=axis.pad - boxes // 2 * cut.block * axis.stride)
    box = tuple(some if a == 0 else of for a, of in zip(plan.order, plan.sweep, strict=True))
    tiles, lists = cost_of(one, replace(plan, sweep=box))
    return boxes * tiles, boxes * lists


@dataclass(frozen=True, slots=True)
class LastForm(DepthwiseForm):
    """The plan of every sweep, and how all of them are cut into items."""

    plans: tuple[Plan, ...]
    cut: Cut

    @property
    def is_whole(self) -> bool:
        """Copies of results have all of them."""
        return True

    @property
    def workspace(self) -> int:
        """Bytes a thread needs: the item's box, a list of taps, both copies."""
        return self.cut.bytes

    @property
    def scheme(self) -> str:
        """Along which axes windows slide, if not as usual."""
        return order_name(self.plans)

    def cost(self) -> dict[str, float]:
        """Cycles: multiply-adds or loads of tiles, starting them; lists and copies."""
        s, p, cut = self.s, self.s.problem, self.cut
        one, blocks = _of_one_vector(s), -(-p.groups // lane_of(s))
        costs = [_costs(one, plan, cut) for plan in self.plans]
        pixels_in = math.prod(int(e or 0) for e in p.i[1:]) * cut.rows * cut.boxes
        pixels_out = math.prod(int(e or 0) for e in p.out)
        lists = -(-blocks // cut.vectors) * sum(lists for _, lists in costs)
        of_output = blocks * (pixels_out * _OUT + cut.boxes * _RUN) * by_pixels(p) + lists
        moves = blocks * (pixels_in * _IN + cut.boxes * _RUN) + p.m // p.groups * of_output
        far = _FAR * far_cycles(s, image_bytes(p)[0], soon=True)
        far += beyond_cycles(s, sum(image_bytes(p))) if p.layout == "NCHW" else 0.0
        products = p.m // p.groups * blocks * sum(tiles for tiles, _ in costs)
        return {"products": products * (p.n or 0), "moves": (moves + far) * (p.n or 0)}

    def choices(self) -> dict[str, object]:
        """Along which axis windows slide, and how it is cut."""
        plan, cut = self.plans[0], self.cut
        return {
            "window slides along axis": plan.axis, "tile": f"up to {plan.most} outputs by a vector",
            "vectors of an item": cut.vectors, "items of a vector": cut.boxes,
        }  # fmt: skip

    def build(self, r: Request) -> Program:
        """Program of a request: one step, for all outputs of a channel."""
        p, cut, keep = r.problem, self.cut, list[Any]()
        total, pixel, residual = -(-p.groups // lane_of(r.situation)), r.target.vector_bytes, residual_of(r)
        line, groups = Axis(int(p.out[-1] or 0), int(p.i[-1] or 0), 1, 1, 1, 0), -(-total // cut.vectors)
        outputs = [self._output(one) for one in of_every_output(r)]
        one, *_ = of_every_output(r)
        rows_out = min(cut.block * cut.apart, int(p.out[0] or 0))
        words = LastWords(
            output_count=len(outputs), outputs=outputs, phase_count=len(self.plans), boxes=cut.boxes, block=cut.block,
            stride=cut.stride, apart=cut.apart, low=cut.low, high=cut.high, items=groups, vectors=cut.vectors,
            vector_count=total, channels=p.groups, lanes=lane_of(r.situation), x_base=r.x.offset,
            x=_array(r.x, p.i, pixel, cut.rows), y=_array(one.y, p.out, pixel, rows_out, r.residual),
            r_n=residual.n, r_c=residual_of(one).c, r_row=residual.spatial[0], r_pixel=residual.spatial[-1],
            inputs=cut.inputs, sums=cut.sums, pixel_bytes=pixel, word_bytes=r.arith.bytes, zero_point=r.zero_point,
            move_in=move_in_address(r, Move(p.x, r.arith.accumulator, along_in(r, line, "c"))),
            move_out=move_out_address(r, Move(r.arith.accumulator, p.y, along_out(one, line, "c"), r.epilogue)),
        )  # fmt: skip
        items = (p.n or 0) * groups * cut.boxes
        name, taken = ("last", True) if by_pixels(p) else ("panel", False)
        address = address_of(r, f"depthwise {name}", name, Driver, lambda k, name: driver(k, name, taken=taken))
        return one_step(address, filled(words, keep), items, self.workspace, keep)

    def _output(self, r: Request) -> OutputWords:
        """Words of one output of every channel."""
        p, size, pixel = r.problem, r.arith.bytes, r.target.vector_bytes
        if by_pixels(p):
            inside = replace(
                r, situation=_of_one_vector(r.situation), y=_copied(p.out, pixel, size), residual=None, bias=None,
                scale=None,
            )  # fmt: skip
        else:
            inside = replace(r, situation=_copied_from(r.situation))
        inside = replace(inside, x=_copied(p.i, pixel, size))
        phases = [_slide_words(inside, plan, self.cut) for plan in self.plans]
        lists = [_list_bytes(plan) for plan in self.plans]
        return OutputWords([
            PhaseWords(slide, size, max(1, (self.cut.inputs - list_place(len(p.i))) // size))
            for slide, size in zip(phases, lists, strict=True)
        ], r.y.offset, residual_of(r).offset, epilogue_tables(r))  # fmt: skip


def _list_bytes(plan: Plan) -> int:
    """Bytes of the list of a row of outputs, whole cache lines; an entry that is left out is written behind others."""
    return -(-list_bytes(math.prod(axis.taps for axis in plan.outer) * plan.entries + 1) // 64) * 64


def _slide_words(r: Request, plan: Plan, cut: Cut) -> SlideWords:
    """Words of a sweep over the copy."""
    box = tuple(max(1, min(cut.block, of.out) if a == 0 else of.out)
                for a, of in zip(plan.order, plan.sweep, strict=True))  # fmt: skip
    own = replace(plan, box=box, chunk=lane_of(r.situation), ahead=False)
    return slide_words(turned(r, plan.own_sweep, plan.order), own, _TOGETHER)[0]


def _copied(extents: tuple[int | None, ...], pixel: int, size: int) -> Operand:
    """How a copy of one vector of channels lies."""
    inner = [math.prod(int(e or 0) for e in extents[a + 1 :]) for a in range(len(extents))]
    return Operand(0, size, tuple(pixel * n for n in inner), 0, size)


def _array(o: Operand, extents: tuple[int | None, ...], pixel: int, rows: int, beside: Operand | None = None
           ) -> ArrayWords:  # fmt: skip
    """Words of an array, of which an item has so many rows, with a residual ``beside`` it."""
    *outer, last = (int(e or 0) for e in extents)
    arrays = (o,) if beside is None else (o, beside)
    together = all(
        of.spatial[a] == of.spatial[a + 1] * extent for of in arrays for a, extent in enumerate((*outer, last)[1:])
    )
    row = math.prod((*outer[1:], last)) if outer else 1
    steps = zip(outer, o.spatial, beside.spatial if beside else [0] * len(outer), strict=False)
    return ArrayWords(
        n=o.n, c=o.c, row=o.spatial[0], pixel=o.spatial[-1], row_pixels=row,
        row_runs=0 if together else math.prod(outer[1:]), axis_count=0 if together else len(outer),
        axes=[] if together else [StepWords(*step) for step in steps], extent=(*outer, last)[0],
        copied_row=pixel * row, copied_vector=pixel * row * rows,
    )  # fmt: skip
