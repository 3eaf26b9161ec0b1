"""``depthwise``: a window that slides along one axis, in place, any rank.

Padded taps are left out of the list of entries, padded positions of the window are skipped, padded lanes are masked:
nothing is copied.  Arrays that lie otherwise than their layout says are read as they lie, and their sums run in that
order.  Several outputs of a channel are convolutions of their own where lanes are pixels; else inputs are repeated in
lanes.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.depthwise import requests
from polyconv.algorithms.depthwise.parts import sizes_of_parts, tiles_by_size
from polyconv.algorithms.depthwise.requests import StepOf, item_words, of_every_output, program_of, turned
from polyconv.algorithms.depthwise.situations import (
    DepthwiseForm,
    beyond_cycles,
    by_pixels,
    far_bytes,
    of_one_output,
    outputs_fit_lanes,
    refusal,
)
from polyconv.algorithms.depthwise.slide_driver import AheadWords, SlideWords, driver
from polyconv.algorithms.depthwise.slide_plan import Plan, cost_of, order_name, order_of, plan_of
from polyconv.algorithms.depthwise.taps import KindWords, tap_words, workspace_of
from polyconv.algorithms.form import Forms
from polyconv.dataclass import dataclass
from polyconv.kernels.depthwise import DepthwiseTile, Slide, SlideSettings, depthwise_tile
from polyconv.kernels.isa import lanes
from polyconv.kernels.language import Module
from polyconv.kernels.signature import Address
from polyconv.lowering.panel import Driver
from polyconv.lowering.program import Operand, Program, Request, address_of, epilogue_tables, residual_of
from polyconv.lowering.situation import Situation, image_bytes
from polyconv.lowering.sweep import inside, sweeps
from polyconv.runtime.arrays import aligned

__all__ = ["SlideForm", "forms", "slide_words"]

_STREAM = 30 / 61
"""Of the bytes a cycle that a second-level cache gives, those of input and result, at most."""

_FAR_AGAIN = 2.5 / 10.6
"""Of the bytes a cycle that memory gives, those of lines of results that every phase of a transposed convolution writes
in parts, and so brings and takes away again.  Measured on Zen 5: 1.2 to 5.4 bytes; 13 to 42 in the last cache."""


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    return refusal(s) or (SlideForm.of(s),)


@dataclass(frozen=True, slots=True)
class SlideForm(DepthwiseForm):
    """A window that slides over arrays that lie as the layout says; where they do not, ``build`` plans anew."""

    plans: tuple[Plan, ...]

    @classmethod
    def of(cls, s: Situation) -> SlideForm:
        """The form of a situation that is taken."""
        return cls(s, _plans(s, by_pixels(s.problem)))

    @classmethod
    def usual(cls, s: Situation) -> SlideForm:
        """The same, sliding along the usual axes whatever the price: for algorithms whose name says nothing of axes."""
        return cls(s, _plans(s, by_pixels(s.problem), usual=True))

    @property
    def scheme(self) -> str:
        """Along which axes windows slide, if not as usual."""
        return order_name(self.plans)

    @property
    def workspace(self) -> int:
        """Bytes a thread needs: an item's box and a list of entries."""
        return workspace_of(self.s)

    def cost(self) -> dict[str, float]:
        """Cycles: multiply-adds or loads of tiles, starting tiles; lists; at least the stream of input and result."""
        p, one = self.s.problem, self.s
        if by_pixels(p):
            one = of_one_output(self.s)
        terms = [cost_of(one, plan) for plan in self.plans]
        products, moves = (p.m // one.problem.m * sum(term[i] for term in terms) for i in range(2))
        size, batch = sum(image_bytes(p)), p.n or 0
        streamed = size / self.s.profile.stream("l2", _STREAM)
        moves += self._again() + (beyond_cycles(self.s, size) if p.layout == "NCHW" else 0.0)
        return {"products": max(products, streamed) * batch, "moves": moves * batch}

    def _again(self) -> float:
        """Cycles in which lines of results come again for each phase along lines of pixels."""
        s, (_, written) = self.s, image_bytes(self.s.problem)
        if not by_pixels(s.problem) or written <= s.cache("l2", 1):
            return 0.0
        pixels = math.prod(int(o or 0) for o in s.problem.out)
        lines = sum(
            math.prod(axis.out for axis in plan.sweep[:-1]) * plan.sweep[-1].out * plan.sweep[-1].out_step
            for plan in self.plans if plan.sweep[-1].out_step > 1
        )  # fmt: skip
        far = sum(image_bytes(s.problem)) > far_bytes(s)
        rate = s.profile.stream(*(("memory", _FAR_AGAIN) if far else ("l3", 1.0)))
        return written * lines / max(1, pixels) / rate

    def choices(self) -> dict[str, object]:
        """Along which axis the window slides, and how it is cut."""
        plan = self.plans[0]
        return {
            "lanes": "channels" if plan.lanes == "c" else "pixels",
            "window slides along axis": plan.axis,
            "tile": f"up to {plan.most} outputs by a vector", "box": plan.box, "channels of an item": plan.chunk,
        }  # fmt: skip

    def build(self, r: Request) -> Program:
        """Program of a request: one step per sweep."""
        pixels = _over_pixels(r)
        # bits may depend on how arrays lie, but on no price that the name of the arithmetic does not show
        plans = self.plans if pixels == by_pixels(r.problem) else _plans(r.situation, pixels, usual=True)
        return program_of(self, [
            _step_of(turned(one, sweep, plan.order), plan)
            for one in (of_every_output(r) if pixels else [r])
            for sweep, plan in zip(sweeps(r.problem), plans, strict=True)
        ])  # fmt: skip


def _plans(s: Situation, pixels: bool, *, usual: bool = False) -> tuple[Plan, ...]:
    """Plans of all sweeps; ``usual`` ones slide along the usual axes, whatever the price of others."""
    one = of_one_output(s) if pixels else s
    return tuple(plan_of(one, sweep, pixels, order_of(sweep, pixels) if usual else None) for sweep in sweeps(s.problem))


def _over_pixels(r: Request) -> bool:
    """Whether lanes are pixels: as the input lies, of which there are more loads than stores of the result."""
    channels, pixels = (stride == r.x.itemsize for stride in (r.x.c, r.x.spatial[-1]))
    if channels == pixels or r.problem.c == 1 or not r.situation.finite or not outputs_fit_lanes(r.situation):
        return by_pixels(r.problem)
    return pixels


def _step_of(r: Request, plan: Plan) -> StepOf:
    """Driver, words and number of items of a sweep."""
    pixels = plan.lanes == "p"
    name = "pixels" if pixels else "channels"
    address = address_of(r, f"depthwise {name}", name, Driver, lambda k, name: driver(k, name, pixels))
    return address, *slide_words(r, plan)


def slide_words(r: Request, plan: Plan, together: int = 1) -> tuple[SlideWords, int]:
    """Words of a sweep, for a request whose axes are in the plan's order, and how many items there are.

    So many neighbouring sizes of tiles are compiled ``together``.
    """
    p, arith, sweep = r.problem, r.arith, plan.sweep
    lane, slid, last = lanes(r.target, arith), sweep[plan.slid], sweep[-1]
    wide, step = (lane, plan.across(lane)) if plan.lanes == "c" else (1, lane // plan.channels)
    weights = r.packed(
        requests.key_of("depthwise", r, sweep, plan.lanes, lane, plan.kinds),
        lambda: _packed_weights(r.weights(sweep), plan, lane, step),
    )
    taps = tap_words(
        sweep, plan.slid, [KindWords(*kind) for kind in plan.kinds], wide * arith.bytes,
        lane_step=1 if last.stride == 2 else last.stride,
        lane_span=2 * lane - 2 if last.stride == 2 else lane // plan.channels - 1,
    )  # fmt: skip
    common, items = item_words(r, sweep, plan.box, plan.chunk // plan.repeats)
    return SlideWords(
        common=common, taps=taps, channels=p.m, chunk_channels=plan.chunk, lanes=step, repeats=plan.repeats,
        masked=int(lane % step > 0), lane_reach=(last.taps - 1) * last.dilation, reach=(slid.taps - 1) * slid.dilation,
        phases=plan.phases, most=plan.most, weights=weights, w_shared=min(wide, step),
        w_vector=wide * plan.taps * arith.bytes, tiles=_tile_addresses(r, plan, together),
        settings=_settings(r, plan, lane), ahead=_ahead(r, plan, lane),
    ), items  # fmt: skip


def _ahead(r: Request, plan: Plan, lane: int) -> AheadWords:
    """Where what follows an item begins, and bytes of it that a strip asks for, as if rows lay together."""
    p, slid, last = r.problem, plan.sweep[plan.slid], plan.sweep[-1]
    rows, strips = plan.box[plan.slid] * plan.ahead, -(-last.out // lane)
    read, written = rows * slid.stride * last.inp * p.x_dtype.itemsize, rows * last.out * p.y_dtype.itemsize
    x_far, y_far, x_plane = read, written, 0
    if plan.ahead and plan.slid:  # the next plane of results, and of the input the one that no item has read
        outer, x_plane = plan.outer[-1], r.x.spatial[-3]
        x_far = ((outer.taps - 1) * outer.dilation + outer.stride) * x_plane
        y_far = r.y.spatial[-3] * outer.out_step
    return AheadWords(x_far, x_plane, -(-read // max(1, strips)), y_far, -(-written // max(1, strips)))


def _settings(r: Request, plan: Plan, lane: int) -> SlideSettings:
    """What the tiles of a step share."""
    slid, last, across = plan.sweep[plan.slid], plan.sweep[-1], plan.across(lane)
    residual, step = residual_of(r), plan.phases * slid.out_step

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


def _lying(plan: Plan, o: Operand, step: int) -> str:
    """How the lanes of an operand lie: together, every second element, or any way."""
    if plan.lanes == "c":
        return "1" if o.c == o.itemsize else "any"
    if o.spatial[-1] * step == o.itemsize:
        return "1"
    return "2" if o.spatial[-1] == o.itemsize and step == 2 else "any"


def _spec(r: Request, plan: Plan) -> DepthwiseTile:
    """The kind of tile for a plan and how arrays lie."""
    p, last = r.problem, plan.sweep[-1]
    writes = _lying(plan, r.y, last.out_step)
    if r.residual is not None and (writes == "2" or writes != _lying(plan, r.residual, last.out_step)):
        writes = "any"
    reads = _lying(plan, r.x, last.stride)
    if reads == "any" and plan.lanes == "p" and last.stride == 2:
        reads = "any2"
    return DepthwiseTile(
        p.x, p.y, r.arith.accumulator, r.epilogue, plan.lanes, reads, writes, plan.stride,
        tuple((taps, across) for _, taps, _, _, across, *_ in plan.kinds), plan.channels, plan.repeats,
    )  # fmt: skip


def _tile_addresses(r: Request, plan: Plan, together: int) -> list[Address[Slide] | None]:
    """Addresses of the tiles that a step uses, by kind and outputs; None for the others."""
    lane, spec, there = lanes(r.target, r.arith), _spec(r, plan), _kinds_of_tiles(r, plan)
    sizes = sizes_of_parts(plan.sweep[plan.slid], plan.box[plan.slid], plan.phases, plan.most)
    table: list[Address[Slide] | None] = []
    for edge, masked in itertools.product((False, True), repeat=2):

        def tile(k: Module, name: str, rows: int, edge: bool = edge, masked: bool = masked) -> None:
            depthwise_tile(k, name, spec, lane, rows, f16c=r.target.converts_f16, edge=edge, masked=masked)

        mark, some = " edge" * edge + " masked" * masked, sizes if (edge, masked) in there else set()
        table += tiles_by_size(r, f"{spec} {lane}", Slide, plan.most, some, tile, together=together, mark=mark)
    return table


def _kinds_of_tiles(r: Request, plan: Plan) -> set[tuple[bool, bool]]:
    """Kinds of tiles that the driver may ask for: whether they are at an edge, and masked."""
    channels, lane = r.problem.m, lanes(r.target, r.arith)
    slid, last = plan.sweep[plan.slid], plan.sweep[-1]
    if plan.lanes == "c":
        partial = plan.across(lane) < lane
        whole, part = channels >= lane and not partial, channels % lane > 0 or partial
    else:
        lane //= plan.channels
        first, end = inside(last).start, inside(last).stop
        whole, part = -(-first // lane) * lane + lane <= end, first > 0 or end < last.out or last.out % lane > 0
        if plan.box[-1] < last.out:  # strips begin where boxes do
            whole, part = lane <= min(plan.box[-1], end - first), True
    rows = inside(slid)
    return set(itertools.product(
        [edge for edge, there in ((False, len(rows) > 0), (True, rows != range(slid.out))) if there],
        [masked for masked, there in ((False, whole), (True, part)) if there],
    ))  # fmt: skip


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
