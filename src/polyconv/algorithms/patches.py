"""Windows that do not overlap, as products: kernels of one tap or no larger than the stride, any rank, group, layout.

Every input word meets one tap at most, so the inputs of a box of outputs are copied once to a panel whose pixels
follow each other across the rows of the box: [entry][pixel] where pixels lie together in the input, else
[pixel][entry]; an entry is a channel of a tap.  Nothing is transposed on the way in.  Tiles as of a pointwise
product run over all pixels of the box; lanes are pixels, which go from registers to planes of channels, or
output channels.  Cost: the products over lane use, and a copy of the input.  Error: own bound.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from polyconv.algorithms import points
from polyconv.algorithms.least import least
from polyconv.algorithms.panel import Common, Driver, Frame, Item, axis_words, box_rows, decode, fill, row_place
from polyconv.algorithms.points import PointWords, Row
from polyconv.algorithms.pointwise import fill_step, is_inside, pieces
from polyconv.algorithms.program import (
    Operand,
    Program,
    Request,
    Situation,
    Step,
    accumulator_arithmetic,
    address_of,
    along_in,
    along_out,
    apart_cycles,
    boxed_words,
    epilogue_tables,
    image_bytes,
    is_fusible,
    move_in_address,
    move_out_address,
    near_equal_sizes,
    planes_collide,
    thread_parts,
    tile_cycles,
)  # fmt: skip
from polyconv.algorithms.sweep import Axis, Lines, Sweep, lines, sweeps
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, channel_tile, lanes
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import Move, MoveIn, zero_words
from polyconv.kernels.objects import kernel
from polyconv.kernels.record import Function, Memory, Record, Word, filled, words
from polyconv.kernels.signature import Address
from polyconv.kernels.unzip import STEPS, Unzip, unzip
from polyconv.problem.problem import Problem

__all__ = [
    "PanelWords", "PatchWords", "Plan", "applicable", "at_least", "build", "by_entry", "cost", "folds", "header_bytes",
    "pack_cycles", "pack_panel", "panel_words", "sizes", "workspace",
]  # fmt: skip

PANEL_BYTES = 512 << 10
"""Workspace of a thread: half of a 1 MiB second-level cache, beside the streaming weights."""


class UnzipRows(Record):
    """How rows of a box and taps along the axis they follow each other on lie in the input and in the panel."""

    lines: Word
    taps: Word
    step: Word
    dilation: Word
    row_bytes: Word
    tap_bytes: Word
    row_tap_bytes: Word


class PanelWords(Record):
    """Words of a box's panel.

    Bytes between entries and between pixels, where lines of the box and runs of its last axis begin, and how far taps
    reach along every axis.  Where rows of planes are taken apart in one pass, so many ``row_sets`` of them are.
    """

    channels: Word
    entries: Word
    entry_bytes: Word
    pixel_bytes: Word
    line_places: Memory
    run_places: Memory
    reach: Memory
    row_sets: Word
    rows: UnzipRows
    unzip: Function[Unzip]
    move_in: Function[MoveIn]


class PatchWords(Record):
    """Words of boxes whose inputs are copied.  ``folded``: rows of results follow each other as the panel's do."""

    common: Common
    panel: PanelWords
    point: PointWords
    folded: Word


class PatchesWords(PatchWords):
    """The driver's words."""

    x_pixel: Word


def driver(k: Module, name: str, vector_bytes: int, *, pixels: bool, planes: bool) -> None:
    """Add the driver ``name(frame, words, item, workspace)``: lanes are pixels or channels, planes of pixels or not."""
    tiles = points.pixel_tiles_along if pixels else points.channel_tiles
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = PatchesWords.read(k, given.words)
        c, point = p.common, p.point
        item = decode(k, c, given.item, workspace)
        x, panel = frame.x, workspace + c.panel
        pack_panel(k, p, item, x, panel, vector_bytes, planes=planes)
        first = item.split * point.split_sets
        end = k.minimum(first + point.split_sets, point.set_count)
        rows, width = box_rows(k, c, item), item.extent(c.axes - 1)
        folded = p.folded.equals(1)
        parts = k.select(folded, 1, rows)
        with k.loop(first, end) as of_set:
            all_rows = replace(
                _row(k, p, item, frame, workspace, of_set.index, k.constant(INT, 0), rows * width),
                away=k.address(x + (c.x_base + item.n * c.x_n + item.origin(c.axes - 1) * p.x_pixel)) - k.address(panel)
            )
            with k.when(point.fused.equals(1)):
                tiles(k, all_rows, None)
            with k.when(point.fused.equals(1), otherwise=True):
                tiles(k, all_rows, workspace + point.slots)
                with k.loop(0, parts) as part:
                    here = _row(
                        k, p, item, frame, workspace, of_set.index, part.index, k.select(folded, rows * width, width)
                    )
                    place = part.index * width * (point.word_bytes if pixels else point.slot_pixel)
                    points.move_row(k, here, workspace + (point.slots + place), point.slot_pixel)


def _row(k: Module, p: PatchesWords, item: Item, frame: Frame, workspace: Buffer, number: Value, row: Value,
         pixels: Value) -> Row:  # fmt: skip
    """Pixels from a row of the box on, for the set of outputs of a number."""
    c, of_set = p.common, p.point.sets.at(number)
    last = axis_words(c, c.axes - 1)
    _, y, r = row_place(k, c, item, row)
    return Row(
        c, p.point, item.g, of_set, workspace + c.panel, p.panel.pixel_bytes, p.panel.entry_bytes, p.panel.entries,
        pixels, frame.y + (y + of_set.y), last.y_stride, frame.residual + (r + of_set.r), last.r_stride,
    )  # fmt: skip


def pack_panel(k: Module, p: PatchWords, item: Item, x: Buffer, panel: Buffer, vector_bytes: int, *, planes: bool
               ) -> None:  # fmt: skip
    """Copy the inputs of a box."""
    whole = _is_inside(k, p, item) if planes else k.constant(INT, 0)
    with k.when(whole.equals(1)):
        _unzip(k, p, item, x, panel)
    with k.when(whole.equals(1), otherwise=True):
        _pack(k, p, item, x, panel, vector_bytes, planes=planes)


def _is_inside(k: Module, p: PatchWords, item: Item) -> Value:
    """1 if the rows of planes can be taken apart in one pass, and no tap of the box meets the padding."""
    c = p.common
    with k.loop(0, c.axes, carry=[k.select(p.panel.row_sets > 0, 1, k.constant(INT, 0))]) as axis:
        record = axis_words(c, axis.index)
        # lines of the axes outside those rows are all brought, also where the last box has fewer outputs
        outputs = k.select(axis.index < c.axes - 2, record.block, item.extent(axis.index))
        end = (outputs - 1) * record.stride + k.word(p.panel.reach, axis.index)
        first = item.origin(axis.index)
        fits = (first >= 0) & (first + end < record.inp)
        axis.next(axis.values[0] & k.cast("zext", fits, INT))
    inside: Value = axis.results[0]
    return inside


def _unzip(k: Module, p: PatchWords, item: Item, x: Buffer, panel: Buffer) -> None:
    """Copy the inputs of a box, all rows and taps of a row of the kernel at once."""
    c, to, apart = p.common, p.panel, p.panel.rows
    start = c.x_base + item.n * c.x_n + item.g * c.x_g
    start = start + item.origin(c.axes - 1) * axis_words(c, c.axes - 1).x_stride
    rows = k.select(c.axes > 1, item.extent(k.maximum(c.axes - 2, 0)), 1)
    with k.loop(0, to.row_sets) as set_of_rows:
        line = set_of_rows.index * apart.lines  # the first tap's, of the first row
        with k.loop(1, c.axes, carry=[line, start]) as back:
            q, offset = back.values
            axis = c.axes - 1 - back.index
            record = axis_words(c, axis)
            position = item.origin(axis) + k.word(c.positions, record.positions + q % record.lines)
            back.next(q // record.lines, offset + position * record.x_stride)
        k.call(to.unzip, Unzip(
            x + back.results[1], c.x_c, apart.step, apart.dilation,
            panel + k.word(to.line_places, line), to.entry_bytes, apart.row_bytes, apart.row_tap_bytes, apart.tap_bytes,
            to.channels, rows, apart.taps, item.extent(c.axes - 1), c.zero_point,
        ))  # fmt: skip


def _pack(k: Module, p: PatchWords, item: Item, x: Buffer, panel: Buffer, vector_bytes: int, *, planes: bool) -> None:
    """Copy the inputs of a box."""
    c, to = p.common, p.panel
    pixel_step = c.step * axis_words(c, c.axes - 1).x_stride
    words_of_4 = vector("i32", vector_bytes // 4)

    def clear(target: Buffer, low: Value, high: Value) -> None:
        count = k.maximum(high - low, 0)
        outer, inner = (to.channels, count) if planes else (count, to.channels)
        step = to.entry_bytes if planes else to.pixel_bytes
        with k.loop(0, outer) as at:
            place = target + (low * to.pixel_bytes + at.index * step)
            zero_words(k, place, (inner * p.point.word_bytes) >> 2, words_of_4)

    def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
        place = k.word(to.line_places, line) + k.word(to.run_places, first_line)
        target = panel + place
        clear(target, k.constant(INT, 0), head)
        clear(target, end, count)
        with k.when(end > head):
            k.call(to.move_in, MoveIn(
                source, pixel_step, c.x_c, target + head * to.pixel_bytes, to.pixel_bytes,
                to.entry_bytes, end - head, to.channels, c.zero_point,
            ))  # fmt: skip

    fill(k, c, item, x, k.constant(INT, 0), put)


# -- planning ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of one sweep's boxes: orientation of lanes and panel, and the sets of output channels."""

    pixels: bool
    planes: bool
    box: tuple[int, ...]
    held: tuple[Lines, ...]
    entries: int
    entry_bytes: int
    pixel_bytes: int
    sets: tuple[tuple[int, int], ...]
    width: int
    tall: int
    panel: int
    workspace: int


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    p = s.problem
    if p.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {p.op}"
    if not s.finite:
        return "weights hold Inf or NaN, which would meet the zeros of the padding"
    if p.c == 0:
        return "there are no channels to add up"
    if not all(_apart(axis) for sweep in _sweeps(p) for axis in sweep):
        return "needs windows that do not overlap"
    return None


def _sweeps(p: Problem) -> list[Sweep]:
    """The sweeps; along an axis with a single output no window overlaps another, whatever the stride."""

    def spread(axis: Axis) -> Axis:
        return replace(axis, stride=max(1, axis.taps * axis.dilation)) if axis.out == 1 else axis

    found = sweeps(p)
    return [tuple(map(spread, sweep)) if math.prod(axis.out for axis in sweep) > 1 else sweep for sweep in found]


def _apart(axis: Axis) -> bool:
    """Whether no input meets two taps, and there is one."""
    return 0 < axis.taps == len({t * axis.dilation % axis.stride for t in range(axis.taps)})


def workspace(s: Situation) -> int:
    """Bytes a thread needs."""
    return max((*(_cheapest(s, sweep).workspace for sweep in _inner(s)), 64 * (s.problem.rank + 2) + 256))


def cost(s: Situation) -> dict[str, float]:
    """Cycles: multiply-adds with the lanes that are filled, and the moves."""
    terms = [_cost(s, _cheapest(s, sweep), sweep) for sweep in _inner(s)]
    return {name: sum(t[name] for t in terms) for name in ("products", "moves")}


def at_least(s: Situation) -> float:
    """Cycles that products, and the ways in and out take, whatever the boxes and tiles."""
    p, arith, work = s.problem, ARITHMETIC[accumulator_arithmetic(s)], least(s.problem)
    lane, group_in, group_out = lanes(s.target, arith), p.c // p.groups, p.m // p.groups
    cycles = work.met * group_in * group_out / (lane * s.rates(arith).multiply_adds)
    cycles += min(work.met, work.outputs) * group_out / lane * (1.5 if is_fusible(p) else 4.0)
    cycles += work.met * group_in / lane * (4.0 if p.layout == "NCHW" else 5.0)
    return cycles * (p.n or 0) * p.groups


def _inner(s: Situation) -> list[Sweep]:
    """The sweeps that take products: of kernels of one tap, without the outputs that meet only padding."""
    found = [pieces(sweep)[0] if _is_point(sweep) else sweep for sweep in _sweeps(s.problem)]
    return [sweep for sweep in found if all(axis.out for axis in sweep)]


def _is_point(sweep: Sweep) -> bool:
    return all(axis.taps == 1 for axis in sweep)


def _cheapest(s: Situation, sweep: Sweep) -> Plan:
    """The plan for tensors that lie as their layout says, if there is a choice one that fits."""
    plans = [_plan(s, pixels, sweep) for pixels in ((False, True) if s.problem.layout == "NCHW" else (False,))]
    budget = s.budget(PANEL_BYTES)
    return min(plans, key=lambda plan: (plan.workspace > budget, s.price(plan, sum(_cost(s, plan, sweep).values()))))


_HELD_BYTES, _AGAIN = 1 << 20, 0.3
"""Of the inputs and results of a phase of a transposed convolution, those beyond this cost so many cycles a byte."""
_NEAR_BYTES = 32 << 10
"""Panel that a first-level cache holds."""
_CUTS = 12
"""Ways to cut an axis that are compared."""


@lru_cache(512)
def _plan(s: Situation, pixels: bool, sweep: Sweep) -> Plan:
    """The cheapest of the largest boxes that fit: one axis cut, those after it whole, those before it single."""
    arith, budget = ARITHMETIC[accumulator_arithmetic(s)], s.budget(PANEL_BYTES)
    extents = tuple(axis.out for axis in sweep)
    single = (1,) * len(extents)
    best = sizes(s, arith, sweep, pixels, single)
    row = best.entries * arith.bytes if best.planes else best.pixel_bytes
    most = max(1, budget // (row + best.tall * arith.bytes))
    axis = next((a for a in range(len(extents)) if math.prod(extents[a + 1 :]) <= most), len(extents) - 1)
    whole, inner = extents[axis], math.prod(extents[axis + 1 :])
    block, least = min(whole, max(1, most // inner)) + 1, math.inf
    vector = lanes(s.target, arith) if pixels and inner == 1 else 1
    for _ in range(_CUTS):
        block = -(-whole // -(-whole // max(1, block - 1)))  # the next smaller of near-equal parts
        block = max(1, block // vector * vector)
        box = (*single[:axis], block, *extents[axis + 1 :])
        plan = sizes(s, arith, sweep, pixels, box)
        price = s.price(plan, sum(_cost(s, plan, sweep).values()))
        if plan.workspace <= budget and price < least:
            best, least = plan, price
    return best


def sizes(s: Situation, arith: Arithmetic, sweep: Sweep, pixels: bool, box: tuple[int, ...]) -> Plan:
    p = s.problem
    lane = lanes(s.target, arith)
    planes = pixels or p.layout == "NCHW"
    held = tuple(lines(axis, b) for axis, b in zip(sweep, box, strict=True))
    entries = p.c // p.groups * math.prod(axis.taps for axis in sweep)
    count = math.prod(box)
    # an odd number of cache lines between rows of the panel: no two share all their sets
    if planes:
        pixel_bytes, entry_bytes = arith.bytes, (-(-count * arith.bytes // 64) | 1) * 64
    else:
        pixel_bytes, entry_bytes = (-(-entries * arith.bytes // 64) | 1) * 64, arith.bytes
    panel = entries * entry_bytes if planes else count * pixel_bytes
    sets, width = points.cut_outputs(s, lane, "pixel" if pixels else "channel")
    tall = max((outputs for _, outputs in sets), default=1) if pixels else width * lane
    slots = (-(-count // lane) * lane) * tall * arith.bytes
    return Plan(
        pixels, planes, box, held, entries, entry_bytes, pixel_bytes, sets, width, tall, panel,
        header_bytes(sweep) + -(-panel // 64) * 64 + slots + 128,
    )  # fmt: skip


def _cost(s: Situation, plan: Plan, sweep: Sweep) -> dict[str, float]:
    p, arith = s.problem, ARITHMETIC[accumulator_arithmetic(s)]
    lane, rates = lanes(s.target, arith), s.rates(arith)
    box_count = math.prod(-(-axis.out // b) for axis, b in zip(sweep, plan.box, strict=True))
    count = math.prod(axis.out for axis in sweep) / box_count  # pixels of a box
    fits = is_fusible(p)
    products = moves = 0.0
    for outputs, times in Counter(outputs for _, outputs in plan.sets).items():
        if plan.pixels:
            far = 1.05 if plan.panel > _NEAR_BYTES else 1.0  # every set of outputs reads the panel once more
            cycles = points.pixel_set_cycles(s, arith, outputs, plan.entries, math.ceil(count / lane)) * far
            leaving = math.ceil(count / lane) * outputs * ((1.5 if fits else 4.0) + apart_cycles(p, sweep[-1]))
        else:
            used = -(-outputs // lane)
            tiles = near_equal_sizes(math.ceil(count), channel_tile(s.target, used))
            cycles = sum(each * (tile_cycles(rates, n, used) * plan.entries + 15) for n, each in tiles)
            across = (16.0 if planes_collide(p, reading=False) else 9.0) + apart_cycles(p, sweep[-1])
            leaving = count * used * (across if p.layout == "NCHW" else 1.5 if fits else 4.0)
        products += times * cycles
        moves += times * leaving
    moves += pack_cycles(s, plan, sweep)
    batch = (p.n or 0) * p.groups * box_count
    moves = (moves + 300.0) * batch
    phases = math.prod(axis.out_step for axis in sweep)
    if phases > 1:  # every phase reads the image anew and writes between the results of others
        read, written = image_bytes(p)
        moves += (p.n or 0) * max(0.0, read + written / phases - _HELD_BYTES) * _AGAIN
    return {"products": products * batch, "moves": moves}


def _is_run(s: Situation, plan: Plan, sweep: Sweep) -> bool:
    """Whether a window's inputs along the last axis, channels of all taps, follow each other and are there."""
    return not plan.planes and s.problem.groups == sweep[-1].dilation == 1 and is_inside(s.problem, sweep[-1])


def pack_cycles(s: Situation, plan: Plan, sweep: Sweep) -> float:
    """Cycles in which the inputs of a box are copied."""
    lane = lanes(s.target, ARITHMETIC[accumulator_arithmetic(s)])
    calls = math.prod(axis.taps * b for axis, b in zip(sweep[:-1], plan.box[:-1], strict=True))
    channels = s.problem.c // s.problem.groups
    if _is_run(s, plan, sweep):
        channels *= sweep[-1].taps
    else:
        calls *= sweep[-1].taps
    if plan.planes:
        vectors = math.ceil(plan.box[-1] / lane)
        if sweep[-1].stride in STEPS and sweep[-1].dilation == 1:
            return channels * (20 + calls * (6 + vectors * 4.0))
        return calls * (40 + channels * (4 + vectors * 1.5 * lane))
    return calls * (40 + plan.box[-1] * (4 + math.ceil(channels / lane) * 5.0))


# -- building ------------------------------------------------------------------------------------------


def build(r: Request) -> Program:
    """Program of a request: one step per sweep, and one for every box of outputs that meet only padding."""
    keep: list[Any] = []
    steps = []
    for sweep in _sweeps(r.problem):
        inner, around = pieces(sweep) if _is_point(sweep) else (sweep, [])
        steps += [fill_step(r, piece, keep) for piece in around]
        if all(axis.out for axis in inner):
            steps.append(_step(r, sweep, inner, keep))
    return Program(tuple(step for step in steps if step.items), workspace(r.situation), tuple(keep))


def _step(r: Request, whole: Sweep, sweep: Sweep, keep: list[Any]) -> Step:
    s, p, arith = r.situation, r.problem, r.arith
    last, lane = sweep[-1], lanes(r.target, r.arith)
    plan = _cheapest(s, sweep)
    pixels_lie = "p" if plan.pixels else "c"
    along = along_out(r, last, pixels_lie)
    folded = folds(sweep, r.y) and (r.residual is None or folds(sweep, r.residual))
    fused = folded and is_fusible(p) and along in ("cc", "pp")
    name = f"patches {'pixels' if plan.pixels else 'channels'} {'planes' if plan.planes else 'rows'}"
    wide = r.target.vector_bytes
    address = address_of(
        r, name, "driver", Driver, lambda k, name: driver(k, name, wide, pixels=plan.pixels, planes=plan.planes)
    )
    form = "pixel" if plan.pixels else "channel"
    functions, of_sets = points.set_tables(
        r, plan.sets, plan.entries, fused, form, lambda vectors: channel_tile(r.target, vectors),
        ahead=_ahead(r, sweep, plan),
    )
    key = ("patches", tuple((a.taps, a.first_tap, a.tap_step) for a in whole))
    packed = points.packed_weights(r, key, lambda: by_entry(r, whole), plan.sets, form)
    count = math.prod(plan.box)
    items = (p.n or 0) * p.groups * math.prod(-(-axis.out // b) for axis, b in zip(sweep, plan.box, strict=True))
    cycles = _cost(s, plan, sweep)
    parts = thread_parts(s.threads, items, len(plan.sets), cycles["moves"] / max(1.0, cycles["products"]))
    common, panel, items = panel_words(r, sweep, plan, parts)
    block_bytes = plan.width * lane * arith.bytes
    point = PointWords(
        weights=packed, w_group=packed.nbytes // max(1, p.groups), set_count=len(plan.sets),
        split_sets=-(-len(plan.sets) // parts), sets=of_sets, functions=functions, outputs=p.m // p.groups,
        word_bytes=arith.bytes, result_bytes=r.y.itemsize, lanes=lane, fused=int(fused),
        slots=header_bytes(sweep) + -(-plan.panel // 64) * 64, slot_pixel=arith.bytes if plan.pixels else block_bytes,
        slot_step=block_bytes, slot_channel=-(-count // lane) * lane * arith.bytes if plan.pixels else arith.bytes,
        tables=epilogue_tables(r), move_out=move_out_address(r, Move(arith.accumulator, p.y, along, r.epilogue)),
    )  # fmt: skip
    values = PatchesWords(common=common, panel=panel, point=point, folded=int(folded), x_pixel=r.x.spatial[-1])
    return Step(address, filled(values, keep), items)


def _ahead(r: Request, sweep: Sweep, plan: Plan) -> tuple[int, int]:
    """Bytes from the input of a box to that of a thread's next, and between its channels, if tiles are to ask for it.

    They do where no second-level cache holds the planes, a few lines of each at a time.  Measured: 0-6 % off.
    """
    axis, p = sweep[-1], r.problem
    plain = len(sweep) == axis.taps == axis.stride == p.groups == 1 and r.x.spatial[-1] == r.x.itemsize
    if not (plain and plan.planes and image_bytes(p)[0] > r.situation.near(_HELD_BYTES)):
        return 0, 0
    return r.situation.threads * plan.box[-1] * r.x.itemsize, r.x.c


def panel_words(r: Request, sweep: Sweep, plan: Plan, splits: int) -> tuple[Common, PanelWords, int]:
    """Words of boxes and of their panels, and how many items there are."""
    p, channels = r.problem, r.problem.c // r.problem.groups
    last, along = sweep[-1], along_in(r, sweep[-1], "p" if plan.planes else "c")
    if _is_run(r.situation, plan, sweep) and r.x.c == r.x.itemsize and r.x.spatial[-1] == channels * r.x.c:
        channels, along, last = channels * last.taps, "cc", replace(last, taps=1)
        sweep, plan = (*sweep[:-1], last), replace(plan, held=(*plan.held[:-1], lines(last, plan.box[-1])))
    unzips = plan.planes and last.dilation == 1 and last.stride in STEPS and r.x.spatial[-1] == r.x.itemsize
    line_places, run_places = _places(sweep, plan, channels)
    common, items = boxed_words(r, sweep, plan.box, plan.held, splits, panel=header_bytes(sweep))
    return common, PanelWords(
        channels=channels, entries=plan.entries, entry_bytes=plan.entry_bytes, pixel_bytes=plan.pixel_bytes,
        line_places=words(line_places), run_places=words(run_places),
        reach=words([(axis.taps - 1) * axis.dilation for axis in sweep]),
        row_sets=math.prod(h.count for h in plan.held[:-2]) if unzips else 0, rows=_unzip_rows(r, sweep, plan),
        unzip=_unzip_address(r, last) if unzips else None,
        move_in=move_in_address(r, Move(p.x, r.arith.accumulator, along)),
    ), items  # fmt: skip


def header_bytes(sweep: Sweep) -> int:
    """Bytes of the workspace's header."""
    return -(-(24 * len(sweep)) // 64) * 64


def _unzip_rows(r: Request, sweep: Sweep, plan: Plan) -> UnzipRows:
    tap = r.problem.c // r.problem.groups * plan.entry_bytes
    found = UnzipRows(1, 1, 0, 0, plan.box[-1] * plan.pixel_bytes, tap, sweep[-1].taps * tap)
    if len(sweep) == 1:
        return found
    axis, stride = sweep[-2], r.x.spatial[-2]
    return replace(
        found, lines=plan.held[-2].count, taps=axis.taps, step=axis.stride * stride, dilation=axis.dilation * stride
    )


def _unzip_address(r: Request, last: Axis) -> Address[Unzip]:
    """Address of the copy that takes rows of the last axis apart."""
    target, lane = r.target, lanes(r.target, r.arith)
    move = Move(r.problem.x, r.arith.accumulator, "pp")

    def build(k: Module) -> None:
        unzip(k, "unzip", move, lane, last.stride, last.taps, f16c=target.converts_f16)

    return kernel(f"unzip {move} {last.stride} {last.taps}", {"unzip": Unzip}, build, target, check=r.check)["unzip"]


def folds(sweep: Sweep, o: Operand) -> bool:
    """Whether all results lie one step of the last axis apart in an operand, row after row.

    An axis with a single output takes no step, so it must not stand between its neighbours.
    """
    steps = [(axis.out, stride * axis.out_step) for axis, stride in zip(sweep, o.spatial, strict=True)]
    taken = [*(axis for axis in steps[:-1] if axis[0] > 1), steps[-1]]
    return all(outer == count * inner for (_, outer), (count, inner) in itertools.pairwise(taken))


def by_entry(r: Request, sweep: Sweep) -> Any:
    """Weights (groups, m, entries): for every tap all channels."""
    w = r.weights(sweep)
    return np.ascontiguousarray(w.transpose(0, 1, 3, 2)).reshape(*w.shape[:2], -1)


def _places(sweep: Sweep, plan: Plan, channels: int) -> tuple[list[int], list[int]]:
    """Bytes at which lines of the outer axes, and lines of the last one, begin in the panel."""
    places: list[tuple[int, int]] = [(0, 0)]  # tap and row, in mixed radix
    for axis, b, held in zip(sweep[:-1], plan.box[:-1], plan.held[:-1], strict=True):
        of_line = {start + row: (t, row) for t, start in enumerate(held.start) for row in range(b)}
        places = [
            (tap * axis.taps + of_line[line][0], row * b + of_line[line][1])
            for tap, row in places for line in range(held.count)
        ]  # fmt: skip
    last, width = sweep[-1], plan.box[-1]
    per_tap = channels * plan.entry_bytes
    outer = [tap * last.taps * per_tap + row * width * plan.pixel_bytes for tap, row in places]
    of_run = {start: t for t, start in enumerate(plan.held[-1].start)}
    runs = [of_run.get(line, 0) * per_tap for line in range(plan.held[-1].count)]
    return outer, runs
