"""Depthwise convolution in place: one input channel a group, any rank.

Padded taps are left out of the list of entries, padded positions of the window are skipped, padded lanes are masked:
nothing is copied.  Arrays that lie otherwise than their layout says are read as they lie, and their sums run in that
order.  Several outputs of a channel are convolutions of their own where lanes are pixels; else inputs are repeated in
lanes.  Error: own bound, k eps sum|x||w|.  How it is cut, and the cost: ``depthwise_plan``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.depthwise_driver import Ask, DepthwiseWords, KindWords, driver
from polyconv.algorithms.depthwise_plan import (
    Plan,
    by_pixels,
    interior,
    list_place,
    order_of,
    plan_of,
    repeated,
    workspace,
)
from polyconv.algorithms.panel import Driver
from polyconv.algorithms.program import (
    Operand,
    Program,
    Request,
    Step,
    address_of,
    boxed_words,
    epilogue_tables,
    near_equal,
)
from polyconv.algorithms.sweep import Lines, Sweep, sweeps
from polyconv.kernels.depthwise import DepthwiseTile, Slide, SlideSettings, depthwise_tile
from polyconv.kernels.isa import lanes
from polyconv.kernels.language import Module
from polyconv.kernels.objects import kernel
from polyconv.kernels.record import filled, words
from polyconv.kernels.signature import Address
from polyconv.runtime.arrays import aligned

__all__ = ["box_step", "build", "shares", "sweep_words", "turned"]


def build(r: Request) -> Program:
    """Program of a request: one step per sweep."""
    keep: list[Any] = []
    pixels = _over_pixels(r)
    address = _driver_address(r, pixels)
    steps = []
    for one, sweep in itertools.product(shares(r) if pixels else [r], sweeps(r.problem)):
        order = order_of(sweep, pixels)
        axes = tuple(sweep[a] for a in order)
        plan = plan_of(one.situation, axes, pixels)
        steps.append(_step(turned(one, sweep, order), plan, axes, address, keep))
    return Program(tuple(step for step in steps if step.items), workspace(r.situation), tuple(keep))


def shares(r: Request) -> list[Request]:
    """Requests for one output of every channel each, for lanes that are pixels."""
    p, times = r.problem, r.problem.m // r.problem.groups
    if times == 1:
        return [r]

    def share(j: int) -> Request:
        def of(o: Operand) -> Operand:
            return replace(o, c=o.c * times, offset=o.offset + j * o.c)

        def packed(key: Any, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
            return r.packed((j, key), make)

        def some(a: NDArray[Any] | None) -> NDArray[Any] | None:
            return None if a is None else np.ascontiguousarray(a[j::times])

        return replace(
            r, situation=replace(r.situation, problem=replace(p, m=p.groups)), y=of(r.y),
            residual=r.residual and of(r.residual), weights=lambda sweep: r.weights(sweep)[:, j : j + 1],
            packed=packed, bias=some(r.bias), scale=some(r.scale),
        )  # fmt: skip

    return [share(j) for j in range(times)]


def turned(r: Request, sweep: Sweep, order: tuple[int, ...]) -> Request:
    """A request with its axes in another order."""
    if order == tuple(range(len(sweep))):
        return r

    def of(o: Operand) -> Operand:
        return replace(o, spatial=tuple(o.spatial[a] for a in order))

    def weights(_: Sweep) -> NDArray[Any]:
        w = r.weights(sweep)
        apart = w.reshape(*w.shape[:3], *(axis.taps for axis in sweep))
        return apart.transpose(0, 1, 2, *(3 + a for a in order)).reshape(w.shape)

    def packed(key: Any, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        return r.packed((order, key), make)

    residual = None if r.residual is None else of(r.residual)
    return replace(r, x=of(r.x), y=of(r.y), residual=residual, weights=weights, packed=packed)


def box_step(r: Request, sweep: Sweep, box: tuple[int, ...], chunk: int, keep: list[Any]) -> Step:
    """Step whose items are boxes of outputs of ``chunk`` channels, for algorithms that have some done again."""
    pixels = _over_pixels(r)
    address = _driver_address(r, pixels)
    plan = plan_of(r.situation, sweep, pixels)
    box = (1,) * (len(plan.sweep) - len(sweep)) + box
    return _step(r, replace(plan, box=box, chunk=chunk, banded=False), sweep, address, keep)


def _driver_address(r: Request, pixels: bool) -> Address[Driver]:
    name = "pixels" if pixels else "channels"
    return address_of(r, f"depthwise {name}", name, Driver, lambda k, name: driver(k, name, pixels))


def _over_pixels(r: Request) -> bool:
    """Whether lanes are pixels: as the input lies, of which there are more loads than stores of the result."""
    channels, pixels = (stride == r.x.itemsize for stride in (r.x.c, r.x.spatial[-1]))
    if channels == pixels or r.problem.c == 1 or not r.situation.finite or not repeated(r.situation):
        return by_pixels(r.problem)
    return pixels


def _step(r: Request, plan: Plan, sweep: Sweep, address: Address[Driver], keep: list[Any]) -> Step:
    values, items = sweep_words(r, plan, sweep)
    return Step(address, filled(values, keep), items)


def sweep_words(r: Request, plan: Plan, sweep: Sweep) -> tuple[DepthwiseWords, int]:
    """Words of a sweep, and how many items there are."""
    p, arith = r.problem, r.arith
    if len(plan.sweep) > len(sweep):
        r = replace(r, x=_with_axis(r.x), y=_with_axis(r.y), residual=r.residual and _with_axis(r.residual))
    lane, slid, last = lanes(r.target, arith), plan.sweep[plan.slid], plan.sweep[-1]
    wide, step = (lane, plan.across(lane)) if plan.lanes == "c" else (1, lane // plan.channels)
    offsets: list[list[int]] = [[]]
    for axis in plan.outer:
        offsets = [[*o, t * axis.dilation] for o in offsets for t in range(axis.taps)]
    of_sweep = tuple((a.taps, a.first_tap, a.tap_step) for a in sweep)
    weights = r.packed(
        ("depthwise", arith.name, plan.lanes, lane, plan.kinds, of_sweep),
        lambda: _packed_weights(r.weights(sweep), plan, lane, step),
    )
    held, groups = [Lines((), (), ())] * len(plan.sweep), plan.chunk // plan.repeats
    common, items = boxed_words(r, plan.sweep, plan.box, held, block_groups=groups)
    return DepthwiseWords(
        common=common, slid=plan.slid, channels=p.m, chunk_channels=plan.chunk, lanes=step, repeats=plan.repeats,
        masked=int(lane % step > 0), taps_outer=len(offsets), tap_offsets=words([v for o in offsets for v in o]),
        lane_step=1 if last.stride == 2 else last.stride, lane_reach=(last.taps - 1) * last.dilation,
        lane_span=2 * lane - 2 if last.stride == 2 else lane // plan.channels - 1, lane_dilation=last.dilation,
        reach=(slid.taps - 1) * slid.dilation, kind_count=len(plan.kinds),
        kinds=[KindWords(*kind) for kind in plan.kinds], dilation=slid.dilation, phases=plan.phases, most=plan.most,
        list_place=list_place(len(plan.sweep)), weights=weights, w_shared=min(wide, step),
        w_vector=wide * plan.taps * arith.bytes, w_tap=wide * arith.bytes, tiles=_tile_addresses(r, plan),
        settings=_settings(r, plan, lane), ask=_asks(r, plan, lane), held=int(plan.held),
    ), items  # fmt: skip


def _asks(r: Request, plan: Plan, lane: int) -> Ask:
    """Where what follows an item begins, and bytes of it that a strip asks for, as if rows lay together."""
    p, slid, last = r.problem, plan.sweep[plan.slid], plan.sweep[-1]
    rows, strips = plan.box[plan.slid] * plan.banded, -(-last.out // lane)
    read, written = rows * slid.stride * last.inp * p.x_dtype.itemsize, rows * last.out * p.y_dtype.itemsize
    x_far, y_far, x_turn = read, written, 0
    if plan.banded and plan.slid:  # the next plane of results, and of the input the one that no item has read
        turn, x_turn = plan.outer[-1], r.x.spatial[-3]
        x_far = ((turn.taps - 1) * turn.dilation + turn.stride) * x_turn
        y_far = r.y.spatial[-3] * turn.out_step
    return Ask(x_far, x_turn, -(-read // max(1, strips)), y_far, -(-written // max(1, strips)))


def _settings(r: Request, plan: Plan, lane: int) -> SlideSettings:
    """What the tiles of a step share."""
    slid, last, across = plan.sweep[plan.slid], plan.sweep[-1], plan.across(lane)
    residual = r.residual or Operand(0, 0, (0,) * len(plan.sweep), 0, 1)
    step = plan.phases * slid.out_step

    def lanes_apart(o: Operand, pixels: int) -> int:
        return o.c if plan.lanes == "c" else o.spatial[-1] * pixels

    return SlideSettings(
        x_channel=across * r.x.c // plan.repeats, x_step=plan.dilation * r.x.spatial[plan.slid],
        x_lane=lanes_apart(r.x, last.stride), x_element=r.x.spatial[-1],
        w_channel=(lane if plan.lanes == "c" else across) * plan.taps * r.arith.bytes, y_channel=across * r.y.c,
        y_step=step * r.y.spatial[plan.slid], y_lane=lanes_apart(r.y, last.out_step),
        r_channel=across * residual.c, r_step=step * residual.spatial[plan.slid],
        r_lane=lanes_apart(residual, last.out_step), unit=plan.dilation, extent=slid.inp, tables=epilogue_tables(r),
    )  # fmt: skip


def _with_axis(o: Operand) -> Operand:
    return replace(o, spatial=(0, *o.spatial))


def _lying(plan: Plan, o: Operand, step: int) -> str:
    """How the lanes of an operand lie: together, every second element, or any way."""
    if plan.lanes == "c":
        return "1" if o.c == o.itemsize else "any"
    if o.spatial[-1] * step == o.itemsize:
        return "1"
    return "2" if o.spatial[-1] == o.itemsize and step == 2 else "any"


def _tile_addresses(r: Request, plan: Plan) -> list[Address[Slide] | None]:
    """Addresses of the tiles that a step uses, by kind and outputs; None for the others."""
    p, last, lane = r.problem, plan.sweep[-1], lanes(r.target, r.arith)
    writes = _lying(plan, r.y, last.out_step)
    if r.residual is not None and (writes == "2" or writes != _lying(plan, r.residual, last.out_step)):
        writes = "any"
    reads = "1" if plan.held else _lying(plan, r.x, last.stride)
    if reads == "any" and plan.lanes == "p" and last.stride == 2:
        reads = "any2"
    spec = DepthwiseTile(
        p.x, p.y, r.arith.accumulator, r.epilogue, plan.lanes, reads, writes, plan.stride,
        tuple((taps, across) for _, taps, _, _, across, *_ in plan.kinds), plan.channels, plan.repeats,
    )  # fmt: skip
    table: list[Address[Slide] | None] = [None] * (4 * plan.most)
    slid, box = plan.sweep[plan.slid].out, plan.box[plan.slid]
    phases = {n for extent in (min(box, slid), slid % box) for n in (extent // plan.phases, -(-extent // plan.phases))}
    sizes = {size for n in phases for _, size in near_equal(n, plan.most)}
    for kind, rows in itertools.product(_kinds(plan, p.m, lane), sorted(sizes)):  # each compiles in less than 50 ms
        edge, masked = kind >= 2, kind % 2 == 1

        def tile(k: Module, rows: int = rows, edge: bool = edge, masked: bool = masked) -> None:
            depthwise_tile(k, "tile", spec, lane, rows, f16c=r.target.converts_f16, edge=edge, masked=masked)

        label = f"{spec} {lane} {rows}{' edge' * edge}{' masked' * masked}"
        found = kernel(label, {"tile": Slide}, tile, r.target, check=r.check)
        table[kind * plan.most + rows - 1] = found["tile"]
    return table


def _kinds(plan: Plan, channels: int, lane: int) -> list[int]:
    """Kinds of tiles that the driver may ask for: 1 for masked ones, 2 for those at an edge."""
    slid, last = plan.sweep[plan.slid], plan.sweep[-1]
    if plan.lanes == "c":
        partial = plan.across(lane) < lane
        masked = [m for m, there in ((0, channels >= lane and not partial), (1, channels % lane or partial)) if there]
    else:
        lane //= plan.channels
        first, end = interior(last)
        whole, part = -(-first // lane) * lane + lane <= end, first > 0 or end < last.out or last.out % lane > 0
        if plan.box[-1] < last.out:  # strips begin where boxes do
            whole, part = lane <= min(plan.box[-1], end - first), True
        masked = [m for m, there in ((0, whole), (1, part)) if there]
    low, high = interior(slid)
    edges = [e for e, there in ((0, high > low), (2, low > 0 or high < slid.out)) if there]
    if plan.held:
        edges = [0]
    return [e + m for e in edges for m in masked]


def _packed_weights(w: NDArray[Any], plan: Plan, lane: int, step: int) -> NDArray[Any]:
    """Weights (groups, outputs, 1, taps) as rows of taps in the list's order, for every vector of channels."""
    channels, taps = w.shape[0] * w.shape[1], plan.taps
    outer = math.prod(axis.taps for axis in plan.outer)
    w = w.reshape(channels, outer, plan.sweep[plan.slid].taps, -1 if taps else 0)
    flat = np.zeros((channels, taps), w.dtype)
    for rows, size, first, groups, across, first_across, before in plan.kinds:
        part = w[:, :, first : first + rows * size, first_across : first_across + groups * across]
        part = part.reshape(channels, outer, rows, size, groups, across).transpose(0, 1, 2, 4, 5, 3)
        flat[:, before : before + outer * rows * size * groups * across] = part.reshape(channels, -1)
    if plan.lanes == "p":
        packed = aligned((channels, taps), w.dtype)
        packed[:] = flat
        return packed
    vectors = -(-channels // step)
    wide = aligned((vectors, taps, lane), w.dtype)
    padded = np.zeros((vectors * step, taps), w.dtype)
    padded[:channels] = flat
    wide[:, :, :step] = padded.reshape(vectors, step, taps).transpose(0, 2, 1)
    return wide
