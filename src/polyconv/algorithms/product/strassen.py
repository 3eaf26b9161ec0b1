"""One level of Strassen's product for windows that do not overlap: seven products of halves in place of eight.

Outputs, entries and the pixels of a box are cut into halves; weights of the seven products are summed once, inputs as
a box comes in, and the products become results before these leave (``kernels.strassen`` has the scheme).  Tiles are
those of ``pointwise``, which read inputs where they lie together, else from a panel.
Cost: 7/8 of the products, two passes over the inputs of a box, and a pass over seven sums for every four results.
Error: window bound, k eps max|x| sum|w| over a pair of pixels; admitted in accuracy "fast" only.  The weights of every
output are first scaled by a power of two, so that those of the output it is paired with are about as large: none is
disturbed by another whose weights are larger.  Boxes with a result that is not finite are done again by ``careful``.
Source: Strassen 1969.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms import careful
from polyconv.algorithms.form import Form, Forms, Refusal
from polyconv.algorithms.least import least
from polyconv.algorithms.product import strassen_weights
from polyconv.algorithms.product.axes import large_boxes
from polyconv.algorithms.product.rows import OutputSet
from polyconv.algorithms.product.sets import (
    OutputSets,
    Slots,
    channel_cycles,
    cut_outputs,
    late_planes,
    product_words,
    slot_words,
)
from polyconv.algorithms.product.strassen_driver import BoxWords, StrassenWords, driver
from polyconv.algorithms.product.strassen_panel import (
    Panel,
    copy_cycles,
    is_apart,
    panel_of,
    panel_words,
    vector_share,
)
from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.isa import lanes
from polyconv.kernels.record import altered, filled
from polyconv.kernels.strassen import PRODUCTS, InputSums, ResultSums, input_sums, result_sums
from polyconv.lowering import packing
from polyconv.lowering.boxes import boxed_words, lie_together, rows_follow, thread_parts
from polyconv.lowering.moves import along_out
from polyconv.lowering.panel import Driver, header_bytes
from polyconv.lowering.program import Program, Request, Step, address_of, program_of
from polyconv.lowering.situation import (
    Situation,
    accumulator_arithmetic,
    arith_of,
    image_bytes,
    of_one_image,
    transform_refusal,
)
from polyconv.lowering.sweep import Sweep, box_count, lines, sweeps
from polyconv.lowering.traffic import far_cycles, planes_collide, streamed_cycles, waiting_cycles

__all__ = ["at_least", "forms"]

_LEAST_ENTRIES = 16
"""With fewer the error comes to more than twice that of a direct sum.  Measured: 2.3 times at 8 entries, 1.8 at 16, 1.5
at 64, 1.4 from 512 on."""
_WAYS = 24
"""Ways to cut an axis that are compared."""
_STREAMED, _AGAIN = 22 / 24, 140 / 127
"""By the bytes a cycle that a last cache gives, those of weights that no second-level cache holds; by those of a
first-level one, those of sums of inputs, which every set reads again."""
_RATES = ((1 / 8, 300 / 24), (3 / 8, 200 / 24), (math.inf, 80 / 24))
"""By the bytes a cycle that a last cache gives, those of the weights, which every box reads again, by what share of
that cache they are at most."""
_SUM_CYCLES = 20.0
"""Cycles of the sums of four vectors of 64 bytes of inputs, which go to a second-level cache."""
_RESULT_CYCLES = 36.0
"""Cycles of the results of seven such vectors of sums."""
_LATE = 1.2
"""Cycles by which steps of long sums over planes are late.  Measured on Zen 5 with AVX2: 18 to 21 % of their time."""


# -- choosing ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cut:
    """A box of outputs and its halves, and where things lie in the workspace.

    Parameters
    ----------
    panel : Panel
    outputs : OutputSets
        Of the first half of the outputs.
    half_entries : int
    pixel_bytes, entry_bytes, product_bytes : int
        In the sums of inputs: from one to the next.
    slots : Slots
        For the sums of products.
    slot_product : int
        From one product to the next.
    sums, not_finite, missing, again : int
        Where the sums of inputs begin, the words on what is not finite, the inputs of a missing pixel, and the box that
        is done again.
    workspace : int
    """

    panel: Panel
    outputs: OutputSets
    half_entries: int
    pixel_bytes: int
    entry_bytes: int
    product_bytes: int
    slots: Slots
    slot_product: int
    sums: int
    not_finite: int
    missing: int
    again: int
    workspace: int


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    return _refusal(s) or (StrassenForm(s, sweeps(s.problem)[0], _cheapest(of_one_image(s))),)


def _refusal(s: Situation) -> Refusal | None:
    p, reason = s.problem, transform_refusal(s)
    if reason is not None:
        return reason
    if p.op != "conv" or p.groups != 1:
        return "computes convolutions of one group"
    if p.fused() != p:
        return "pairs pixels along axes that lie together"
    sweep = sweeps(p)[0]
    entries = p.c * math.prod(axis.taps for axis in sweep)  # taps that meet no input are left out
    if entries % 2 or p.m % 2 or not p.m:
        return f"halves even numbers of entries and outputs, this has {entries} and {p.m}"
    if entries < _LEAST_ENTRIES:
        return f"needs {_LEAST_ENTRIES} entries for its error, this has {entries}"
    if not all(is_apart(axis) for axis in sweep):
        return "needs windows that do not overlap and meet no padding"
    return None


def at_least(s: Situation) -> float:
    """Cycles that products, sums and the way out take, whatever the boxes."""
    p, arith, work = s.problem, arith_of(s), least(s.problem)
    lane = lanes(s.target, arith)
    cycles = PRODUCTS / 8 * work.taken * p.c * p.m / (lane * s.rates(arith).multiply_adds)
    wide = vector_share(s)
    moves = work.outputs * p.m / lane * (_RESULT_CYCLES / 4 * wide + 2.0)
    moves += work.taken * p.c / lane * _SUM_CYCLES / 4 * wide
    return (cycles + moves * s.moving) * (p.n or 0)


@lru_cache(512)
def _cheapest(s: Situation) -> Cut:
    """The cheapest of the largest boxes that fit: one axis cut, those after it whole, those before it single.

    The same for any batch and any threads, since results depend on which pixels are paired.
    """
    sweep, size = sweeps(s.problem)[0], arith_of(s).bytes
    budget = s.budget(round(2 * s.profile.numbers["l2.bytes"]))
    halved = replace(s, problem=replace(s.problem, m=s.problem.m // 2))
    least = _cut(halved, (1,) * len(sweep))
    entries = least.panel.entries * size
    row, half = (entries, entries / 2) if least.panel.planes else (least.panel.pixel_bytes, least.pixel_bytes)
    most = max(2, int(budget / (row + (half + least.slots.pixel) * PRODUCTS / 2)))
    # two threads would not share few boxes of an odd number evenly
    found = [_cut(halved, box) for parts, box in large_boxes(sweep, most, _WAYS) if parts not in range(3, 16, 2)]
    fitting = [cut for cut in found if cut.workspace <= budget]
    return min(fitting, key=lambda cut: s.price(cut, sum(_cost(s, sweep, cut).values())), default=least)


def _cut(s: Situation, box: tuple[int, ...]) -> Cut:
    """The cut into boxes, for a situation with half of the outputs.  No two rows of sums share all sets of a cache."""
    arith, outputs = arith_of(s), cut_outputs(s, "channel")
    panel = panel_of(s, sweeps(s.problem)[0], box)
    half, half_entries = -(-math.prod(box) // 2), panel.entries // 2
    row = (-(-(half if panel.planes else half_entries) * arith.bytes // 64) | 1) * 64
    pixel_bytes, entry_bytes = (arith.bytes, row) if panel.planes else (row, arith.bytes)
    product_bytes = ((half_entries if panel.planes else half) * row // 64 | 1) * 64
    sums = header_bytes(len(box)) + panel.size
    slots = outputs.slots(arith, lanes(s.target, arith), sums + PRODUCTS * product_bytes, half)
    slot_product = (-(-half * slots.pixel // 64) | 1) * 64
    not_finite = slots.begin + PRODUCTS * slot_product
    missing = not_finite + -(-(half + 1) * 8 // 64) * 64
    again = missing + (0 if panel.planes else 64)
    return Cut(
        panel, outputs, half_entries, pixel_bytes, entry_bytes, product_bytes, slots, slot_product, sums, not_finite,
        missing, again, again + careful.box_bytes(s, len(box)),
    )  # fmt: skip


def _cost(s: Situation, sweep: Sweep, cut: Cut) -> dict[str, float]:
    """Cycles: multiply-adds with the lanes that are filled, the sums, and the moves."""
    p, arith, panel = s.problem, arith_of(s), cut.panel
    lane, times = lanes(s.target, arith), box_count(sweep, panel.box)
    half = math.ceil(math.prod(axis.out for axis in sweep) / times / 2)
    weights, wide = PRODUCTS / 4 * p.m * panel.entries * arith.bytes, vector_share(s)
    products = sums = moves = 0.0
    # results of a set of outputs: squares of planes, or a line or two of every pixel, which may meet in few sets
    collide = planes_collide(p, reading=False) or (p.layout == "NHWC" and p.m * p.y_dtype.itemsize % 2048 == 0)
    leaving = 10.0 if collide else 4.0 * wide if p.layout == "NCHW" else 2.0
    for outputs, alike in cut.outputs.sizes.items():
        used = -(-outputs // lane)
        stream = used * s.target.vector_bytes / s.profile.stream("l3", _STREAMED) if weights > s.cache("l2", 1) else 0.0
        late = 0.0
        if panel.planes:  # sums of inputs come from a second-level cache for every set
            late = max(late_planes(s, cut.half_entries, _LATE), streamed_cycles(s, used * s.target.vector_bytes))
        products += alike * PRODUCTS * channel_cycles(s, arith, used, cut.half_entries, half, stream, late)
        sums += alike * half * used * _RESULT_CYCLES * wide
        moves += alike * 4 * half * used * leaving
    rows, row = (cut.half_entries, half) if panel.planes else (half, cut.half_entries)
    # threads that share a box sum its inputs each: two sums, for any threads, as the choice depends on none
    sums += rows * (6 + math.ceil(row / lane) * _SUM_CYCLES * wide) * (2 if times == 1 else 1)
    if PRODUCTS * cut.product_bytes > s.cache("l2", 25 / 64):
        sums += len(cut.outputs.sets) * PRODUCTS * cut.product_bytes / s.profile.stream("l1", _AGAIN)
    held = weights / s.profile.cache("l3", 1.0)
    sums += weights / s.profile.stream("l3", next(of for most, of in _RATES if held <= most))
    if s.far:  # three more for every four of other algorithms come from where a network's weights lie
        sums += (1 - 4 / PRODUCTS) * weights / s.profile.stream("memory", 1.0)
    if not (_is_readable(s, sweep) and all(axis.stride == 1 for axis in sweep)):
        moves += copy_cycles(s, panel, sweep)
    batch = (p.n or 0) * times
    moves = (moves + 300.0) * batch
    if p.layout == "NHWC":  # nothing asks for it early
        moves += (p.n or 0) * far_cycles(s, image_bytes(p)[0])
    moves += (p.n or 0) * waiting_cycles(s, image_bytes(p)[0] + times * weights, apart=panel.planes)
    return {"products": products * batch, "sums": sums * batch, "moves": moves}


def _is_readable(s: Situation, sweep: Sweep) -> bool:
    """Whether every output takes one input as it is: a single tap, no padding, of the type of the sums."""
    return LLVM_NAMES[s.problem.x] == arith_of(s).accumulator and not any(a.taps > 1 or a.pad for a in sweep)


# -- the form ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StrassenForm(Form):
    """The only sweep, and how it is cut."""

    sweep: Sweep
    cut: Cut

    @property
    def workspace(self) -> int:
        """Bytes a thread needs."""
        return self.cut.workspace

    @property
    def scheme(self) -> str:
        """Which pixels are paired: with them the bits change."""
        return "x".join(str(extent) for extent in self.cut.panel.box)

    @property
    def bound(self) -> tuple[str, float]:
        """Window bound.

        With S the sum of an output's weights and at most 2 S that of its partner's, the terms of a result come to no
        more than 3 S + 6 * 2 S times the largest input.
        """
        p = self.s.problem
        return "window", (p.c * math.prod(p.k) / 2 + 8) * DTYPES[accumulator_arithmetic(self.s)].eps * 15

    def cost(self) -> dict[str, float]:
        """Cycles of products, of the sums before and after them, and of the ways in and out."""
        return _cost(self.s, self.sweep, self.cut)

    def preparing(self) -> float:
        """Cycles in which a program is made and the weights are summed."""
        size = math.prod(e or 0 for e in self.s.problem.w_shape) * self.s.problem.w_dtype.itemsize
        return 2 * packing.cycles(self.s) + 4.0 * size

    def choices(self) -> Mapping[str, object]:
        """The tile, and the box whose halves are paired."""
        return {"tile": self.cut.outputs.tile(self.s), "box": self.cut.panel.box}

    def build(self, r: Request) -> Program:
        """A single step."""
        keep: list[Any] = []
        return program_of([_step(r, self, keep)], self.workspace, keep)


# -- building ------------------------------------------------------------------------------------------


def _step(r: Request, form: StrassenForm, keep: list[Any]) -> Step:
    s, p, arith, sweep, cut = r.situation, r.problem, r.arith, form.sweep, form.cut
    panel, outputs, lane, last = cut.panel, cut.outputs, lanes(r.target, r.arith), sweep[-1]
    name = f"strassen {'planes' if panel.planes else 'rows'}"
    address = address_of(r, name, "driver", Driver, lambda k, name: driver(k, name, planes=panel.planes))
    along = along_out(r, last, "c")
    cycles = form.cost()
    items = (p.n or 0) * box_count(sweep, panel.box)
    parts = thread_parts(s.threads, items, len(outputs.sets), sum(cycles.values()) / cycles["products"] - 1)
    folded = rows_follow(r, sweep)
    in_place = _lies_together(r, sweep, planes=panel.planes)
    held = [lines(axis, b) for axis, b in zip(sweep, panel.box, strict=True)]
    common, items = boxed_words(r, sweep, panel.box, held, parts, panel=header_bytes(len(sweep)))
    pixel_step, entry_step = (
        (last.stride * r.x.spatial[-1], r.x.c) if in_place else (panel.pixel_bytes, panel.entry_bytes)
    )
    weights = cache(lambda: _weights_by_tap(r, sweep))  # may be a copy: made once, and only if needed
    key, kind = (arith.name, lane, outputs.sets), f"{arith.accumulator} {lane}"
    scales = r.packed(("strassen scales", arith.name), lambda: strassen_weights.scales(weights()[0]))
    r_c = 0 if r.residual is None else r.residual.c
    both = [
        OutputSet(
            first + low, n, weights=0, most=0, functions=0, edges=0, there=0, early=0, early_step=0,
            y=(first + low) * r.y.c, r=(first + low) * r_c,
        )
        for first, n in outputs.sets for low in (0, p.m // 2)
    ]  # fmt: skip
    packed = r.packed(("strassen", *key), lambda: strassen_weights.packed(r, weights()[0], scales, outputs.sets))
    of_scheme = product_words(
        r, outputs, cut.half_entries, packed, cut.slots, along, parts=parts, places=(((0, 0),) * PRODUCTS,),
    )  # fmt: skip
    values = StrassenWords(
        scheme=BoxWords(
            common=common, panel=panel_words(r, sweep, panel), products=of_scheme, folded=int(folded),
            in_place=int(in_place), source_pixel=pixel_step, source_entry=entry_step, half_entries=cut.half_entries,
            sums=cut.sums, sums_product=cut.product_bytes, sums_pixel=cut.pixel_bytes,
            sums_entry=cut.entry_bytes, missing=cut.missing, slot_product=cut.slot_product,
        ),
        scale_lower=p.m // 2 * arith.bytes,
        inputs=address_of(r, f"strassen inputs {kind}", "sums", InputSums,
                          lambda k, name: input_sums(k, name, arith.accumulator, lane)),
        results=address_of(r, f"strassen results {kind}", "sums", ResultSums,
                           lambda k, name: result_sums(k, name, arith.accumulator, lane)),
        scales=scales,
        not_finite=cut.not_finite, leaving=altered(slot_words(r, cut.slots, along, len(both), parts), sets=both),
        again_box=cut.again, again_words=careful.box_words(r, sweep), again=careful.repair_address(r),
    )  # fmt: skip
    return Step(address, filled(values, keep), items)


def _weights_by_tap(r: Request, sweep: Sweep) -> NDArray[Any]:
    """Weights (groups, m, entries): for every tap all channels."""
    w = r.weights(sweep)
    return np.ascontiguousarray(w.transpose(0, 1, 3, 2)).reshape(*w.shape[:2], -1)


def _lies_together(r: Request, sweep: Sweep, *, planes: bool) -> bool:
    """Whether the pixels of any box follow each other in the input, and so do the elements of their rows."""
    read = tuple(replace(axis, out_step=axis.stride) for axis in sweep)  # from input to input, as if to results
    element = sweep[-1].stride * r.x.spatial[-1] if planes else r.x.c
    forward = min(*r.x.spatial, r.x.c) > 0
    together = forward and element == r.x.itemsize and lie_together(read, r.x)
    return together and _is_readable(r.situation, sweep)
