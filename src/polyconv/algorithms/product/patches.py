"""Windows that do not overlap, as products: kernels of one tap or no larger than the stride, any rank, group, layout.

Every input word meets one tap at most, so the inputs of a box of outputs are copied once, to the panel of
``patch_panel``.  Tiles as of a pointwise product run over all pixels of the box; lanes are pixels, which go from
registers to planes of channels, or output channels.
Cost: the products over lane use, and a copy of the input.  Error: own bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.form import Form, Forms, Refusal
from polyconv.algorithms.least import least
from polyconv.algorithms.product.axes import large_boxes, padding_apart, results_lie_together
from polyconv.algorithms.product.patch_panel import (
    PatchPanel,
    PatchWords,
    copy_cycles,
    copy_patches,
    panel_of,
    panel_words,
    vector_share,
)
from polyconv.algorithms.product.pointwise_driver import fill_step
from polyconv.algorithms.product.rows import Row, move_row, multiply, sets_of
from polyconv.algorithms.product.sets import (
    Early,
    OutputSets,
    channel_cycles,
    cut_outputs,
    late_planes,
    leaving_cycles,
    packed_weights,
    pixel_cycles,
    product_words,
)
from polyconv.kernels.isa import lanes
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.record import Word, filled
from polyconv.lowering.boxes import thread_parts
from polyconv.lowering.moves import along_out
from polyconv.lowering.panel import Driver, Frame, Item, axis_words, box_rows, decode, header_bytes, row_place
from polyconv.lowering.program import Program, Request, Step, address_of, program_of
from polyconv.lowering.situation import Situation, arith_of, image_bytes
from polyconv.lowering.sweep import Axis, Sweep, box_count, sweeps, taps_of
from polyconv.lowering.tiles import is_fusible
from polyconv.lowering.traffic import apart_cycles, planes_collide
from polyconv.problem.problem import Problem

__all__ = ["at_least", "forms", "refusal", "weights_by_tap"]

_AGAIN = 0.3
"""Of the inputs and results of a phase of a transposed convolution, those beyond a second-level cache cost so many
cycles a byte."""
_LATE = 0.65
"""Cycles by which steps of long sums over planes are late.  Measured on Zen 5 with AVX2: 10 to 17 % of their time."""
_WAYS = 12
"""Ways to cut an axis that are compared."""


class PatchesWords(PatchWords):
    """The driver's words."""

    x_pixel: Word


def driver(k: Module, name: str, vector_bytes: int, *, pixels: bool, planes: bool) -> None:
    """Add the driver ``name(frame, words, item, workspace)``: lanes are pixels or channels, planes of pixels or not."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = PatchesWords.read(k, given.words)
        c, products = p.common, p.products
        item = decode(k, c, given.item, workspace)
        x, panel = frame.x, workspace + c.panel
        copy_patches(k, p, item, x, panel, vector_bytes, planes=planes)
        first, end = sets_of(k, products, item)
        rows, width = box_rows(k, c, item), item.extent(c.axes - 1)
        folded = p.folded.equals(1)
        parts = k.select(folded, 1, rows)
        with k.loop(first, end) as of_set:
            all_rows = replace(
                _row(k, p, item, frame, workspace, of_set.index, k.constant(INT, 0), rows * width),
                away=k.address(x + (c.x_base + item.n * c.x_n + item.origin(c.axes - 1) * p.x_pixel))
                - k.address(panel),
            )
            with k.when(products.fused.equals(1)):
                multiply(k, all_rows, None, pixels=pixels)
            with k.when(products.fused.equals(1), otherwise=True):
                multiply(k, all_rows, workspace + products.slots, pixels=pixels)
                with k.loop(0, parts) as part:
                    here = _row(
                        k, p, item, frame, workspace, of_set.index, part.index, k.select(folded, rows * width, width)
                    )
                    place = part.index * width * (products.word_bytes if pixels else products.slot_pixel)
                    move_row(k, here, workspace + (products.slots + place), products.slot_pixel)


def _row(k: Module, p: PatchesWords, item: Item, frame: Frame, workspace: Buffer, number: Value, row: Value,
         pixels: Value) -> Row:  # fmt: skip
    """Pixels from a row of the box on, for the set of outputs of a number."""
    c, of_set = p.common, p.products.sets.at(number)
    last = axis_words(c, c.axes - 1)
    _, y, r = row_place(k, c, item, row)
    return Row(
        c, p.products, item.g, of_set, workspace + c.panel, p.panel.pixel_bytes, p.panel.entry_bytes, p.panel.entries,
        pixels, frame.y + (y + of_set.y), last.y_stride, frame.residual + (r + of_set.r), last.r_stride,
    )  # fmt: skip


# -- choosing ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cut:
    """How a sweep is cut: the panel of a box of its outputs, and the sets of output channels."""

    panel: PatchPanel
    outputs: OutputSets
    workspace: int


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    reason = refusal(s)
    if reason is not None:
        return reason
    found = [padding_apart(sweep) if _is_point(sweep) else (sweep, []) for sweep in _sweeps(s.problem)]
    inner = [sweep for sweep, _ in found if all(axis.out for axis in sweep)]
    around = tuple(piece for _, pieces in found for piece in pieces)
    return (PatchesForm(s, tuple((sweep, _cheapest(s, sweep)) for sweep in inner), around),)


def refusal(s: Situation) -> Refusal | None:
    """Why windows cannot be copied; None if they can."""
    p = s.problem
    if p.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {p.op}"
    if not s.finite:
        return "weights hold Inf or NaN, which would meet the zeros of the padding"
    if p.c == 0:
        return "there are no channels to add up"
    if not all(_is_apart(axis) for sweep in _sweeps(p) for axis in sweep):
        return "needs windows that do not overlap"
    return None


def _sweeps(p: Problem) -> list[Sweep]:
    """The sweeps; along an axis with a single output no window overlaps another, whatever the stride."""

    def spread(axis: Axis) -> Axis:
        return replace(axis, stride=max(1, axis.taps * axis.dilation)) if axis.out == 1 else axis

    found = sweeps(p)
    return [tuple(map(spread, sweep)) if math.prod(axis.out for axis in sweep) > 1 else sweep for sweep in found]


def _is_apart(axis: Axis) -> bool:
    """Whether no input meets two taps, and there is one."""
    return 0 < axis.taps == len({t * axis.dilation % axis.stride for t in range(axis.taps)})


def _is_point(sweep: Sweep) -> bool:
    return all(axis.taps == 1 for axis in sweep)


def at_least(s: Situation) -> float:
    """Cycles that products, and the ways in and out take, whatever the boxes and tiles."""
    p, arith, work = s.problem, arith_of(s), least(s.problem)
    lane, group_in, group_out = lanes(s.target, arith), p.c // p.groups, p.m // p.groups
    cycles = work.met * group_in * group_out / (lane * s.rates(arith).multiply_adds)
    cycles += min(work.met, work.outputs) * group_out / lane * leaving_cycles(p)
    cycles += work.met * group_in / lane * (4.0 * vector_share(s.target) if p.layout == "NCHW" else 5.0)
    return cycles * (p.n or 0) * p.groups


def _cheapest(s: Situation, sweep: Sweep) -> Cut:
    """The cut for tensors that lie as their layout says, if there is a choice one that fits."""
    cuts = [_cut(s, kind, sweep) for kind in (("channel", "pixel") if s.problem.layout == "NCHW" else ("channel",))]
    budget = _budget(s)
    return min(cuts, key=lambda cut: (cut.workspace > budget, s.price(cut, sum(_cost(s, cut, sweep).values()))))


def _budget(s: Situation) -> int:
    """Workspace of a thread: half of a second-level cache, beside the streaming weights."""
    return s.budget(round(s.profile.numbers["l2.bytes"] / 2))


@lru_cache(512)
def _cut(s: Situation, kind: str, sweep: Sweep) -> Cut:
    """The cheapest cut into large boxes that fit."""
    lane, size, budget = lanes(s.target, arith_of(s)), arith_of(s).bytes, _budget(s)
    least = _sized(s, sweep, kind, (1,) * len(sweep))
    row = least.panel.entries * size if least.panel.planes else least.panel.pixel_bytes
    most = max(1, budget // (row + least.outputs.tall(lane) * size))
    found = [_sized(s, sweep, kind, b) for _, b in large_boxes(sweep, most, _WAYS, lane if kind == "pixel" else 1)]
    fitting = [cut for cut in found if cut.workspace <= budget]
    return min(fitting, key=lambda cut: s.price(cut, sum(_cost(s, cut, sweep).values())), default=least)


def _sized(s: Situation, sweep: Sweep, kind: str, box: tuple[int, ...]) -> Cut:
    """The cut for a box of outputs."""
    arith, outputs = arith_of(s), cut_outputs(s, kind)
    lane = lanes(s.target, arith)
    panel = panel_of(s, sweep, box, planes=outputs.pixels or s.problem.layout == "NCHW")
    sums = -(-math.prod(box) // lane) * lane * outputs.tall(lane)
    return Cut(panel, outputs, header_bytes(len(sweep)) + panel.size + sums * arith.bytes + 128)


def _cost(s: Situation, cut: Cut, sweep: Sweep) -> dict[str, float]:
    """Cycles of products, multiply-adds with the lanes that are filled, and of the ways in and out."""
    p, arith, panel = s.problem, arith_of(s), cut.panel
    lane, times = lanes(s.target, arith), box_count(sweep, panel.box)
    count = math.prod(axis.out for axis in sweep) / times  # pixels of a box
    apart = apart_cycles(s, sweep[-1])
    across = (16.0 if planes_collide(p, reading=False) else 9.0) + apart if p.layout == "NCHW" else leaving_cycles(p)
    products = moves = 0.0
    for outputs, alike in cut.outputs.sizes.items():
        if cut.outputs.pixels:
            far = 1.05 if panel.size > s.cache("l1", 2 / 3) else 1.0  # every set of outputs reads the panel once more
            vectors = math.ceil(count / lane)
            cycles = pixel_cycles(s, arith, outputs, panel.entries, vectors) * far
            leaving = vectors * outputs * (leaving_cycles(p) + apart)
        else:
            used = -(-outputs // lane)
            late = late_planes(s, panel.entries, _LATE) if panel.planes else 0.0
            cycles = channel_cycles(s, arith, used, panel.entries, math.ceil(count), late=late)
            leaving = count * used * across
        products += alike * cycles
        moves += alike * leaving
    moves += copy_cycles(s, panel, sweep)
    batch = (p.n or 0) * p.groups * times
    moves = (moves + 300.0) * batch
    phases = math.prod(axis.out_step for axis in sweep)
    if phases > 1:  # every phase reads the image anew and writes between the results of others
        read, written = image_bytes(p)
        moves += (p.n or 0) * max(0.0, read + written / phases - s.cache("l2", 1)) * _AGAIN
    return {"products": products * batch, "moves": moves}


# -- the form ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PatchesForm(Form):
    """Sweeps with how each is cut, and the boxes of outputs that meet only padding."""

    parts: tuple[tuple[Sweep, Cut], ...]
    padding: tuple[Sweep, ...]

    @property
    def workspace(self) -> int:
        """Bytes a thread needs."""
        return max((*(cut.workspace for _, cut in self.parts), 64 * (self.s.problem.rank + 2) + 256))

    def cost(self) -> dict[str, float]:
        """Cycles: multiply-adds with the lanes that are filled, and the moves."""
        terms = [_cost(self.s, cut, sweep) for sweep, cut in self.parts]
        return {name: sum(t[name] for t in terms) for name in ("products", "moves")}

    def choices(self) -> Mapping[str, object]:
        """The tile and box; of a transposed convolution those of the first phase."""
        return next(({"tile": c.outputs.tile(self.s.target), "box": c.panel.box} for _, c in self.parts), {})

    def build(self, r: Request) -> Program:
        """One step per sweep, and one for every box of outputs that meet only padding."""
        keep: list[Any] = []
        steps = [fill_step(r, piece, keep) for piece in self.padding]
        steps += [_step(r, sweep, cut, keep) for sweep, cut in self.parts]
        return program_of(steps, self.workspace, keep)


def _step(r: Request, sweep: Sweep, cut: Cut, keep: list[Any]) -> Step:
    s, p, panel, outputs = r.situation, r.problem, cut.panel, cut.outputs
    lane, pixels, planes, wide = lanes(r.target, r.arith), outputs.pixels, panel.planes, r.target.vector_bytes
    along = along_out(r, sweep[-1], "p" if pixels else "c")
    folded = results_lie_together(r, sweep)
    name = f"patches {'pixels' if pixels else 'channels'} {'planes' if planes else 'rows'}"
    address = address_of(r, name, "driver", Driver, lambda k, name: driver(k, name, wide, pixels=pixels, planes=planes))
    items = (p.n or 0) * p.groups * box_count(sweep, panel.box)
    cycles = _cost(s, cut, sweep)
    parts = thread_parts(s.threads, items, len(outputs.sets), cycles["moves"] / max(1.0, cycles["products"]))
    common, of_panel, items = panel_words(r, sweep, panel, parts)
    slots = outputs.slots(r.arith, lane, header_bytes(len(sweep)) + panel.size, -(-math.prod(panel.box) // lane) * lane)
    # words of several entries and the filled up ones of squares know no taps: these are given a copy without
    is_copied = r.arith.channels > 1 or outputs.kind == "square"
    weights = partial(weights_by_tap, r, sweep) if is_copied else partial(r.weights, sweep)
    products = product_words(
        r, outputs, panel.entries, packed_weights(r, ("patches", taps_of(sweep)), weights, outputs), slots, along,
        parts=parts, fused=folded and is_fusible(p) and along in ("cc", "pp"), early=Early(_ahead(r, sweep, panel)),
    )  # fmt: skip
    values = PatchesWords(common=common, panel=of_panel, products=products, folded=int(folded), x_pixel=r.x.spatial[-1])
    return Step(address, filled(values, keep), items)


def _ahead(r: Request, sweep: Sweep, panel: PatchPanel) -> tuple[int, int]:
    """Bytes from the input of a box to that of a thread's next, and between its channels, if tiles are to ask for it.

    They do where no second-level cache holds the planes, a few lines of each at a time.  Measured: 0-6 % off.
    """
    axis, p = sweep[-1], r.problem
    plain = len(sweep) == axis.taps == axis.stride == p.groups == 1 and r.x.spatial[-1] == r.x.itemsize
    if not (plain and panel.planes and image_bytes(p)[0] > r.situation.cache("l2", 1)):
        return 0, 0
    return r.situation.threads * panel.box[-1] * r.x.itemsize, r.x.c


def weights_by_tap(r: Request, sweep: Sweep) -> NDArray[Any]:
    """Weights (groups, m, entries): for every tap all channels."""
    w = r.weights(sweep)
    return np.ascontiguousarray(w.transpose(0, 1, 3, 2)).reshape(*w.shape[:2], -1)
