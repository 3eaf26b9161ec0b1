"""One level of Strassen's product for windows that do not overlap: seven products of halves in place of eight.

Outputs of a box are a product of weights, outputs by entries, with inputs, entries by pixels; an entry is a channel
of a tap.  Outputs, entries and the pixels of a box are cut into halves; weights of the seven products are summed once,
inputs as a box comes in, and the products become results before these leave (``kernels.strassen`` has the scheme).
Tiles are those of ``patches``.
Cost: 7/8 of the products, two passes over the inputs of a box, and a pass over seven sums for every four results.
Error: window bound, k eps max|x| sum|w| over a pair of pixels; admitted in accuracy "fast" only.  The weights of every
output are first scaled by a power of two, so that those of the output it is paired with are about as large: none is
disturbed by another whose weights are larger.  Pairs of pixels with a result that is not finite are done again by
plain products.  Source: Strassen 1969.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from numpy.typing import NDArray

from polyconv.algorithms import packing, patches, points, strassen_weights
from polyconv.algorithms.least import least
from polyconv.algorithms.packing import LateWords, late_words, when_needed
from polyconv.algorithms.panel import Driver, Frame, Item, axis_words, box_rows, decode, row_place
from polyconv.algorithms.patches import PatchWords
from polyconv.algorithms.points import PointWords, Row
from polyconv.algorithms.program import (
    Program,
    Request,
    Situation,
    Step,
    accumulator_arithmetic,
    address_of,
    along_out,
    epilogue_tables,
    far_cycles,
    image_bytes,
    move_out_address,
    near_equal_sizes,
    of_one_image,
    planes_collide,
    thread_parts,
    tile_cycles,
    transform_refusal,
)  # fmt: skip
from polyconv.algorithms.sweep import Sweep, sweeps
from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, channel_tile, lanes
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.layout import Move
from polyconv.kernels.record import Callees, Function, Functions, Link, Memory, Record, Word, filled
from polyconv.kernels.signature import Address, memory_of
from polyconv.kernels.strassen import PRODUCTS, SINGLE, InputSums, ResultSums, input_sums, result_sums

__all__ = ["applicable", "at_least", "bound", "build", "cost", "preparing", "scheme", "workspace"]

_BOX_BYTES = 2 << 20
"""Workspace of a thread that a box may take: sums of its inputs, which stay in a second-level cache."""
_COLLIDING = 4096
"""Where pixels or entries lie a multiple of these bytes apart they meet in one set of a cache: tiles read copies."""
_FAR_BYTES = 3 << 20
"""Inputs that the second cache does not hold: products ask for the next box's.  Measured on Zen 5: 0-6 % off."""
_LEAST_ENTRIES = 16
"""With fewer the error comes to more than twice that of a direct sum.  Measured: 2.3 times at 8 entries, 1.8 at 16, 1.5
at 64, 1.4 from 512 on."""


class ProductWords(PatchWords):
    """Words of the products of a box.

    Its inputs lie in the tensor (``in_place``) or in the panel, with steps between pixels and between entries; their
    sums at ``v``.
    """

    in_place: Word
    source_pixel: Word
    source_entry: Word
    half_entries: Word
    source: Word
    v: Word
    v_product: Word
    v_pixel: Word
    v_entry: Word
    nothing: Word
    slot_product: Word


class StrassenWords(Record):
    """The driver's words: those of the products of the scheme, and of ``plain`` ones, which need none."""

    products: ProductWords
    scale_lower: Word
    copies: Word
    inputs: Functions[InputSums]
    results: Function[ResultSums]
    scales: Memory
    notes: Word
    plain: Link[ProductWords]
    late: LateWords


def driver(k: Module, name: str, vector_bytes: int, *, planes: bool) -> None:
    """Add the driver ``name(frame, words, item, workspace)``: pixels of a box lie together, or channels."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        w = StrassenWords.read(k, given.words)
        p, point = w.products, w.products.point
        item = decode(k, p.common, given.item, workspace)
        count = box_rows(k, p.common, item, 0)
        half = (count + 1) // 2
        source = _source(k, p, item, frame, workspace, vector_bytes, planes=planes)
        copies = k.select(half * 2 > count, 1, w.copies)  # the last of an odd number of pixels has no partner to read
        _sum_inputs(k, p, w.inputs, source, workspace, count, half, copies, planes=planes)
        first = item.split * point.split_sets
        slot, notes = workspace + point.slots, workspace + w.notes
        inputs = k.word(workspace + p.source, 2)
        plain = w.plain
        with k.loop(first, k.minimum(first + point.split_sets, point.set_count)) as of_set:
            with k.loop(0, PRODUCTS) as product:
                number, sums = of_set.index * PRODUCTS + product.index, slot + product.index * p.slot_product
                last = product.index.equals(SINGLE[1])
                is_copy = copies.equals(1) | (product.index.equals(SINGLE[0]) | last).equals(0)

                def multiply(v: Buffer, pixel: Value, entry: Value) -> None:
                    row = _row(k, p, item, frame, number, v, pixel, entry, p.half_entries, half)
                    points.channel_tiles(k, replace(row, away=inputs - k.address(v)), sums)

                with k.when(is_copy):
                    multiply(workspace + (p.v + product.index * p.v_product), p.v_pixel, p.v_entry)
                with k.when(is_copy, otherwise=True):
                    behind = k.select(last, half * p.source_pixel + p.half_entries * p.source_entry, 0)
                    multiply(source + behind, p.source_pixel, p.source_entry)
            outputs = point.sets.at(of_set.index * PRODUCTS)
            scales = w.scales + outputs.first * point.word_bytes
            k.call(w.results, ResultSums(
                slot, p.slot_product, point.slot_step, half, outputs.outputs, scales, w.scale_lower, notes,
            ))  # fmt: skip
            with k.when(k.word(notes) > 0):
                when_needed(k, w.late)
                with k.loop(0, half) as pair, k.when(k.word(notes, pair.index + 1) > 0):
                    _again(k, plain, item, frame, of_set.index, source, slot, pair.index, half, count)
            _leave(k, plain, item, frame, of_set.index, slot, half, count)


def _source(k: Module, p: ProductWords, item: Item, frame: Frame, workspace: Buffer, vector_bytes: int,
            *, planes: bool) -> Buffer:  # fmt: skip
    """The inputs of a box, where they are: in the tensor, for kernels of one tap, or brought into the panel."""
    c, arrays = p.common, memory_of(frame)
    start = c.x_base + item.n * c.x_n
    with k.loop(0, c.axes, carry=[start]) as axis:
        axis.next(axis.values[0] + item.origin(axis.index) * axis_words(c, axis.index).x_stride)
    place, panel, in_place = axis.results[0], workspace + c.panel, p.in_place.equals(1)
    with k.when(in_place, otherwise=True):
        patches.pack_panel(k, p, item, frame.x, panel, vector_bytes, planes=planes)
    found = workspace + p.source
    k.store(k.select(in_place, k.word(arrays) + place, k.address(panel)), found, 8)
    k.store(k.select(in_place, k.word(arrays, 1) - place, p.v - c.panel), found + 8, 8)
    k.store(k.word(arrays) + place, found + 16, 8)
    return k.buffer(found)


def _sum_inputs(k: Module, p: ProductWords, sums: Callees[InputSums], source: Buffer, workspace: Buffer, count: Value,
                half: Value, copies: Value, *, planes: bool) -> None:  # fmt: skip
    """Inputs of the products, from those of a box."""
    function = sums.at_word(copies * 2)
    lower, target = p.half_entries * p.source_entry, workspace + p.v
    second = source + half * p.source_pixel
    if planes:
        k.call(function, InputSums(
            source, second, p.source_entry, lower, p.half_entries, half, count - half, target,
            p.v_product, p.v_entry,
        ))  # fmt: skip
        return
    k.call(function, InputSums(
        source, second, p.source_pixel, lower, count - half, p.half_entries, p.half_entries,
        target, p.v_product, p.v_pixel,
    ))  # fmt: skip
    with k.when(count - half < half):  # the last pixel is alone
        last = half - 1
        k.call(function, InputSums(
            source + last * p.source_pixel, workspace + p.nothing, 0, lower, 1, p.half_entries,
            0, target + last * p.v_pixel, p.v_product, p.v_pixel,
        ))  # fmt: skip


def _row(k: Module, p: ProductWords, item: Item, frame: Frame, number: Value, x: Buffer, x_pixel: Value,
         x_entry: Value, entries: Value, pixels: Value) -> Row:  # fmt: skip
    """A row of pixels for a set of outputs, whose sums go to a slot."""
    of_set, nothing = p.point.sets.at(number), k.constant(INT, 0)
    return Row(
        p.common, p.point, item.g, of_set, x, x_pixel, x_entry, entries, pixels, frame.y, nothing, frame.residual,
        nothing,
    )  # fmt: skip


def _again(k: Module, p: ProductWords, item: Item, frame: Frame, number: Value, source: Buffer, slot: Buffer,
           pair: Value, half: Value, count: Value) -> None:  # fmt: skip
    """Results of a pair of pixels for a pair of sets of outputs, by plain products."""
    with k.loop(0, 4) as quarter:
        pixel = pair + (quarter.index & 1) * half
        with k.when(pixel < count):
            row = _row(
                k, p, item, frame, number * 2 + (quarter.index >> 1), source + pixel * p.source_pixel, p.source_pixel,
                p.source_entry, p.panel.entries, k.constant(INT, 1),
            )  # fmt: skip
            points.channel_tiles(k, row, slot + (quarter.index * p.slot_product + pair * p.point.slot_step))


def _leave(k: Module, p: ProductWords, item: Item, frame: Frame, number: Value, slot: Buffer, half: Value,
           count: Value) -> None:  # fmt: skip
    """Results of a pair of sets of outputs, to their places."""
    c, point = p.common, p.point
    last = axis_words(c, c.axes - 1)
    folded = p.folded.equals(1)
    width = k.select(folded, count, item.extent(c.axes - 1))
    with k.loop(0, count // width) as part, k.loop(0, 4) as quarter:
        _, y, r = row_place(k, c, item, part.index)
        begin = (quarter.index & 1) * half
        low = k.maximum(part.index * width, begin)
        high = k.minimum(part.index * width + width, k.select(begin > 0, count, half))
        with k.when(low < high):
            of_set = point.sets.at(number * 2 + (quarter.index >> 1))
            at, nothing = low - part.index * width, k.constant(INT, 0)
            row = Row(
                c, point, item.g, of_set, slot, nothing, nothing, nothing, high - low,
                frame.y + (y + of_set.y + at * last.y_stride), last.y_stride,
                frame.residual + (r + of_set.r + at * last.r_stride), last.r_stride,
            )  # fmt: skip
            points.move_row(k, row, slot + (quarter.index * p.slot_product + (low - begin) * point.slot_pixel),
                            point.slot_pixel)  # fmt: skip


# -- planning ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plan:
    """Sizes of a box and of its halves: the panel's, rows of the sums of inputs, and of the sums of products."""

    panel: patches.Plan
    half_entries: int
    v_pixel: int
    v_entry: int
    v_product: int
    slot_row: int
    slot_product: int
    v: int
    slots: int
    notes: int
    nothing: int
    workspace: int


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    p, reason = s.problem, transform_refusal(s) or patches.applicable(s)
    if reason is not None:
        return reason
    if p.op != "conv" or p.groups != 1:
        return "computes convolutions of one group"
    if p.fused() != p:
        return "pairs pixels along axes that lie together"
    entries = p.c * math.prod(p.k)
    if entries % 2 or p.m % 2 or not p.m:
        return f"halves even numbers of entries and outputs, this has {entries} and {p.m}"
    if entries < _LEAST_ENTRIES:
        return f"needs {_LEAST_ENTRIES} entries for its error, this has {entries}"
    if any(axis.taps == 1 and axis.pad for axis in _sweep(s)):
        return "needs taps that meet inputs"
    return None


def _sweep(s: Situation) -> Sweep:
    return sweeps(s.problem)[0]


def workspace(s: Situation) -> int:
    """Bytes a thread needs."""
    return _cheapest(s).workspace


def scheme(s: Situation) -> str:
    """Which pixels are paired: with them the bits change."""
    return "x".join(str(extent) for extent in _cheapest(s).panel.box)


def bound(s: Situation) -> tuple[str, float]:
    """Window bound.

    With S the sum of an output's weights and at most 2 S that of its partner's, the terms of a result come to no more
    than 3 S + 6 * 2 S times the largest input.
    """
    p = s.problem
    return "window", (p.c * math.prod(p.k) / 2 + 8) * DTYPES[accumulator_arithmetic(s)].eps * 15


def preparing(s: Situation) -> float:
    """Cycles in which a program is made and the weights are summed."""
    size = math.prod(e or 0 for e in s.problem.w_shape) * s.problem.w_dtype.itemsize
    return 2 * packing.cycles(s) + 4.0 * size


def cost(s: Situation) -> dict[str, float]:
    """Cycles: multiply-adds with the lanes that are filled, the sums, and the moves."""
    return _cost(s, _cheapest(s))


def at_least(s: Situation) -> float:
    """Cycles that products, sums and the way out take, whatever the boxes."""
    p, arith, work = s.problem, _arith(s), least(s.problem)
    lane = lanes(s.target, arith)
    cycles = _SLOWER * PRODUCTS / 8 * work.taken * p.c * p.m / (lane * s.rates(arith).multiply_adds)
    cycles += work.outputs * p.m / lane * (_RESULT_CYCLES / 4 + 2.0) + work.taken * p.c / lane * _SUM_CYCLES / 4
    return cycles * (p.n or 0)


_CUTS = 24
"""Ways to cut an axis that are compared."""


@lru_cache(512)
def _cheapest(s: Situation) -> _Plan:
    """The cheapest of the largest boxes that fit: one axis cut, those after it whole, those before it single.

    The same for any batch and any threads.
    """
    s = of_one_image(s)
    budget, halved = s.budget(_BOX_BYTES), replace(s, problem=replace(s.problem, m=s.problem.m // 2))
    extents = tuple(axis.out for axis in _sweep(s))
    single = (1,) * len(extents)
    best = _sizes(halved, single)
    entries = best.panel.entries * _arith(s).bytes
    row, half = (entries, entries / 2) if best.panel.planes else (best.panel.pixel_bytes, best.v_pixel)
    most = max(2, int(budget / (row + (half + best.slot_row) * PRODUCTS / 2)))
    axis = next((a for a in range(len(extents)) if math.prod(extents[a + 1 :]) <= most), len(extents) - 1)
    inner = math.prod(extents[axis + 1 :])
    block, least = min(extents[axis], max(1, most // inner)) + 1, math.inf
    for _ in range(min(_CUTS, block - 1)):
        count = -(-extents[axis] // max(1, block - 1))
        block = -(-extents[axis] // count)  # the next smaller of near-equal parts
        if count in (3, 5, 7):  # two threads would not share them evenly
            continue
        plan = _sizes(halved, (*single[:axis], block, *extents[axis + 1 :]))
        price = s.price(plan, sum(_cost(s, plan).values()))
        if plan.workspace <= budget and price < least:
            best, least = plan, price
    return best


def _sizes(s: Situation, box: tuple[int, ...]) -> _Plan:
    """Sizes for a situation with half of the outputs."""
    arith = _arith(s)
    lane, size = lanes(s.target, arith), arith.bytes
    panel = patches.sizes(s, arith, _sweep(s), False, box)
    half, half_entries = -(-math.prod(box) // 2), panel.entries // 2
    # an odd number of cache lines between rows: no two share all their sets
    if panel.planes:
        v_pixel, v_entry = size, (-(-half * size // 64) | 1) * 64
        v_product = (half_entries * v_entry // 64 | 1) * 64
    else:
        v_pixel, v_entry = (-(-half_entries * size // 64) | 1) * 64, size
        v_product = (half * v_pixel // 64 | 1) * 64
    slot_row = panel.width * lane * size
    slot_product = (-(-half * slot_row // 64) | 1) * 64
    v = -(-(24 * len(box)) // 64) * 64 + -(-panel.panel // 64) * 64
    slots = v + PRODUCTS * v_product
    notes = slots + PRODUCTS * slot_product + 64  # behind where inputs are
    nothing = notes + -(-(half + 1) * 8 // 64) * 64
    return _Plan(
        panel, half_entries, v_pixel, v_entry, v_product, slot_row, slot_product, v, slots, notes, nothing,
        nothing + (0 if panel.planes else 64),
    )  # fmt: skip


_NEAR_BYTES, _STREAMED_BYTES = 1 << 20, 22.0
"""Weights of the products that a second-level cache holds, and bytes a cycle at which others stream in."""
_HELD_BYTES, _AGAIN_BYTES = 400 << 10, 140.0
"""Sums of inputs that a second-level cache holds beside the weights; bytes a cycle of more, which every set of outputs
reads again."""
_RATES = ((4 << 20, 300.0), (12 << 20, 200.0), (1 << 62, 80.0))
"""Bytes a cycle of the weights, which every box reads again, by how many there are."""
_SLOWER = 1.04
"""Where other tenants of a machine slow its caches, products wait for their sums: small gains are not worth it."""
_SUM_CYCLES = 20.0
"""Cycles of the sums of four vectors of inputs, which go to a second-level cache."""
_RESULT_CYCLES = 36.0
"""Cycles of the results of seven vectors of sums."""


def _cost(s: Situation, plan: _Plan) -> dict[str, float]:
    p, arith, panel, sweep = s.problem, _arith(s), plan.panel, _sweep(s)
    lane, rates = lanes(s.target, arith), s.rates(arith)
    box_count = math.prod(-(-axis.out // b) for axis, b in zip(sweep, panel.box, strict=True))
    half = math.ceil(math.prod(axis.out for axis in sweep) / box_count / 2)
    weights = PRODUCTS / 4 * p.m * panel.entries * arith.bytes
    products = sums = moves = 0.0
    # results of a set of outputs: squares of planes, or a line or two of every pixel, which may meet in few sets
    collide = planes_collide(p, reading=False) or (p.layout == "NHWC" and p.m * p.y_dtype.itemsize % 2048 == 0)
    leaving = 10.0 if collide else 4.0 if p.layout == "NCHW" else 2.0
    for outputs, times in Counter(outputs for _, outputs in panel.sets).items():
        used = -(-outputs // lane)
        tiles = near_equal_sizes(half, channel_tile(s.target, used))
        stream = used * s.target.vector_bytes / _STREAMED_BYTES if weights > _NEAR_BYTES else 0.0
        cycles = sum(each * (max(tile_cycles(rates, n, used), stream) * plan.half_entries + 15) for n, each in tiles)
        products += times * PRODUCTS * cycles
        sums += times * half * used * _RESULT_CYCLES
        moves += times * 4 * half * used * leaving
    if panel.planes:
        sums += plan.half_entries * (6 + math.ceil(half / lane) * _SUM_CYCLES)
    else:
        sums += half * (6 + math.ceil(plan.half_entries / lane) * _SUM_CYCLES)
    if PRODUCTS * plan.v_product > _HELD_BYTES:
        sums += len(panel.sets) * PRODUCTS * plan.v_product / _AGAIN_BYTES
    sums += weights / next(rate for most, rate in _RATES if weights <= most)
    if not (_is_readable(s) and all(axis.stride == 1 for axis in sweep)):
        moves += patches.pack_cycles(s, panel, sweep)
    batch = (p.n or 0) * box_count
    moves = (moves + 300.0) * batch
    if p.layout == "NHWC":  # nothing asks for it early
        moves += (p.n or 0) * far_cycles(p, image_bytes(p)[0])
    return {"products": products * batch * _SLOWER, "sums": sums * batch, "moves": moves}


def _is_readable(s: Situation) -> bool:
    """Whether every output takes one input as it is: a single tap, no padding, of the type of the sums."""
    return LLVM_NAMES[s.problem.x] == _arith(s).accumulator and not any(a.taps > 1 or a.pad for a in _sweep(s))


def _arith(s: Situation) -> Arithmetic:
    return ARITHMETIC[accumulator_arithmetic(s)]


# -- building ------------------------------------------------------------------------------------------


def build(r: Request) -> Program:
    """Program of a request: a single step."""
    keep: list[Any] = []
    step = _step(r, keep)
    return Program((step,) if step.items else (), workspace(r.situation), tuple(keep))


def _step(r: Request, keep: list[Any]) -> Step:
    s, p, arith, sweep = r.situation, r.problem, r.arith, _sweep(r.situation)
    plan = _cheapest(s)
    panel, lane, last = plan.panel, lanes(r.target, r.arith), sweep[-1]
    name, size = f"strassen {'planes' if panel.planes else 'rows'}", r.target.vector_bytes
    address = address_of(r, name, "driver", Driver, lambda k, name: driver(k, name, size, planes=panel.planes))
    along = along_out(r, last, "c")
    cycles = _cost(s, plan)
    items = (p.n or 0) * math.prod(-(-axis.out // b) for axis, b in zip(sweep, panel.box, strict=True))
    parts = thread_parts(s.threads, items, len(panel.sets), sum(cycles.values()) / cycles["products"] - 1)
    folded = patches.folds(sweep, r.y) and (r.residual is None or patches.folds(sweep, r.residual))
    in_place = _lies_together(r, sweep, planes=panel.planes)
    common, inputs, items = patches.panel_words(r, sweep, panel, parts)
    pixel_step, entry_step = (
        (last.stride * r.x.spatial[-1], r.x.c) if in_place else (panel.pixel_bytes, panel.entry_bytes)
    )
    weights = cache(lambda: patches.by_entry(r, sweep))  # may be a copy: made once, and only if a form is not there
    key = (arith.name, lane, tuple(panel.sets))
    scales = r.packed(("strassen scales", arith.name), lambda: strassen_weights.scales(weights()[0]))
    plain_sets = [(first + low, outputs) for first, outputs in panel.sets for low in (0, p.m // 2)]
    late = r.late(("strassen late", *key), lambda: points.late_weights(r, weights(), plain_sets))
    move = Move(arith.accumulator, p.y, along, r.epilogue)
    point = _point_words(r, plan, parts, move, plain_sets, panel.entries, 1, late.weights)
    plain = ProductWords(
        common=common, panel=inputs, point=point, folded=int(folded), in_place=int(in_place), source_pixel=pixel_step,
        source_entry=entry_step, half_entries=plan.half_entries, source=plan.notes - 64, v=plan.v,
        v_product=plan.v_product, v_pixel=plan.v_pixel, v_entry=plan.v_entry, nothing=plan.nothing,
        slot_product=plan.slot_product,
    )  # fmt: skip
    packed = r.packed(
        ("strassen", *key), lambda: strassen_weights.packed_weights(r, weights()[0], scales, panel.sets)
    )
    asks = _asks(r, sweep, plan) if parts == 1 else []
    of_scheme = _point_words(r, plan, parts, move, panel.sets, plan.half_entries, PRODUCTS, packed, asks)
    values = StrassenWords(
        products=replace(plain, point=of_scheme), scale_lower=p.m // 2 * arith.bytes,
        copies=int(max(pixel_step, entry_step) % _COLLIDING == 0),
        inputs=[_input_sums(r, "inputs without copies"), _input_sums(r, "inputs")], results=_result_sums(r),
        scales=scales, notes=plan.notes, plain=plain, late=late_words(r, late),
    )  # fmt: skip
    return Step(address, filled(values, keep), items)


def _asks(r: Request, sweep: Sweep, plan: _Plan) -> list[tuple[int, int]]:
    """What the products of every set of outputs ask for, bytes from the inputs of a box and bytes between entries.

    Together the last ones ask for the inputs of a thread's next box, a line of each plane or one line after another;
    those that read inputs as they are, whose steps differ, ask for none.
    """
    p, panel, x = r.problem, plan.panel, r.x
    whole = all(axis.taps == (1 if panel.planes else axis.stride) for axis in sweep)
    if not whole or (p.n or 0) * image_bytes(p)[0] <= r.situation.near(_FAR_BYTES):
        return []
    cut = next((a for a, (axis, b) in enumerate(zip(sweep, panel.box, strict=True)) if b < axis.out), None)
    size = x.spatial[0] * sweep[0].inp if cut is None else panel.box[cut] * sweep[cut].stride * x.spatial[cut]
    ahead = r.situation.threads * (x.n if cut is None else size)
    parts = (0, plan.half_entries * x.c) if panel.planes else (0,)
    turns = [at + part for at in range(0, size, -(-math.prod(panel.box) // 2) * plan.v_pixel) for part in parts]
    found = [(0, 0)] * (len(panel.sets) * PRODUCTS)
    places = [i for i in range(len(found)) if i % PRODUCTS not in SINGLE][-len(turns):]
    for place, at in zip(places, turns, strict=False):
        found[place] = ahead + at, x.c if panel.planes else 64
    return found


def _point_words(r: Request, plan: _Plan, parts: int, move: Move, sets: Sequence[tuple[int, int]], entries: int,
                 places: int, packed: NDArray[Any], asks: Sequence[tuple[int, int]] = ()) -> PointWords:  # fmt: skip
    """Words of sets of outputs, at so many places, and of their packed weights."""
    functions, of_sets = points.set_tables(
        r, sets, entries, False, "channel", lambda vectors: channel_tile(r.target, vectors), (((0, 0),) * places,),
        asks=asks,
    )
    count = len(plan.panel.sets)
    return PointWords(
        weights=packed, w_group=packed.nbytes, set_count=count, split_sets=-(-count // parts), sets=of_sets,
        functions=functions, outputs=r.problem.m, word_bytes=r.arith.bytes, result_bytes=r.y.itemsize,
        lanes=lanes(r.target, r.arith), fused=0, slots=plan.slots, slot_pixel=plan.slot_row, slot_step=plan.slot_row,
        slot_channel=r.arith.bytes, tables=epilogue_tables(r), move_out=move_out_address(r, move),
    )  # fmt: skip


def _input_sums(r: Request, what: str) -> Address[InputSums]:
    """Address of the sums of inputs: "inputs", or "inputs without copies"."""
    element, lane = r.arith.accumulator, lanes(r.target, r.arith)

    def make(k: Module, name: str) -> None:
        input_sums(k, name, element, lane, single=what == "inputs")

    return address_of(r, f"strassen {what} {element} {lane}", "sums", InputSums, make)


def _result_sums(r: Request) -> Address[ResultSums]:
    """Address of the sums of products."""
    element, lane = r.arith.accumulator, lanes(r.target, r.arith)

    def make(k: Module, name: str) -> None:
        result_sums(k, name, element, lane)

    return address_of(r, f"strassen results {element} {lane}", "sums", ResultSums, make)


def _lies_together(r: Request, sweep: Sweep, *, planes: bool) -> bool:
    """Whether the pixels of any box follow each other in the input, and so do the elements of their rows."""
    read = tuple(replace(axis, out_step=axis.stride) for axis in sweep)  # from input to input, as if to results
    element = sweep[-1].stride * r.x.spatial[-1] if planes else r.x.c
    forward = min(*r.x.spatial, r.x.c) > 0
    return _is_readable(r.situation) and forward and element == r.x.itemsize and patches.folds(read, r.x)
