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
from polyconv.algorithms.panel import COMMON, Driver, Item, Words, axis_record, box_rows, decode, fill, row_place
from polyconv.algorithms.points import SET, Row
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
    common_words,
    fill_words,
    image_bytes,
    is_fusible,
    move_in_address,
    move_out_address,
    near_equal_sizes,
    planes_collide,
    thread_parts,
    tile_cycles,
    zeros,
)  # fmt: skip
from polyconv.algorithms.sweep import Axis, Lines, Sweep, lines, sweeps
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, channel_tile, lanes
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import Move, MoveIn, zero_words
from polyconv.kernels.objects import kernel
from polyconv.kernels.signature import Address
from polyconv.kernels.unzip import STEPS, Unzip, unzip
from polyconv.problem.problem import Problem
from polyconv.runtime.arrays import words

__all__ = [
    "PANEL", "Plan", "applicable", "build", "by_entry", "cost", "folds", "pack_cycles", "pack_panel", "panel_words",
    "sizes", "workspace",
]  # fmt: skip

PANEL_BYTES = 512 << 10
"""Workspace of a thread: half of a 1 MiB second-level cache, beside the streaming weights."""

PANEL = (
    *COMMON,
    "channels", "entries", "entry_bytes", "pixel_bytes", "*line_places", "*run_places", "*reach",
    "row_sets", "row_lines", "row_taps", "row_step", "row_dilation", "row_bytes", "tap_bytes", "row_tap_bytes",
    "*unzip", "*move_in",
)  # fmt: skip
"""Words of a box's panel: bytes between entries and between pixels, where lines of the box and runs of its last axis
begin."""
WORDS = (*PANEL, *points.WORDS, "folded", "x_pixel")
"""The driver's words.  ``folded``: rows of results follow each other as the panel's do."""


def driver(k: Module, name: str, vector_bytes: int, *, pixels: bool, planes: bool) -> None:
    """Add the driver ``name(frame, words, item, workspace)``: lanes are pixels or channels, planes of pixels or not."""
    tiles = points.pixel_tiles_along if pixels else points.channel_tiles
    with k.function(name, Driver) as given:
        frame, table, number, workspace = given.frame, given.words, given.item, given.workspace
        p = Words(k, table, WORDS)
        item = decode(k, p, number, workspace)
        x, panel = k.buffer(frame, 0), workspace + p.panel
        pack_panel(k, p, item, x, panel, vector_bytes, planes=planes)
        first = item.split * p.split_sets
        end = k.minimum(first + p.split_sets, p.sets)
        rows, width = box_rows(k, p, item), item.extent(p.axes - 1)
        folded = p.folded.equals(1)
        parts = k.select(folded, 1, rows)
        with k.loop(first, end) as of_set:
            all_rows = replace(
                _row(k, p, item, frame, workspace, of_set.index, k.constant(INT, 0), rows * width),
                away=k.address(x + (p.x_base + item.n * p.x_n + item.origin(p.axes - 1) * p.x_pixel)) - k.address(panel)
            )
            with k.when(p.fused.equals(1)):
                tiles(k, all_rows, None)
            with k.when(p.fused.equals(1), otherwise=True):
                tiles(k, all_rows, workspace + p.slots)
                with k.loop(0, parts) as part:
                    here = _row(
                        k, p, item, frame, workspace, of_set.index, part.index, k.select(folded, rows * width, width)
                    )
                    place = part.index * width * (p.word_bytes if pixels else p.slot_pixel)
                    points.move_row(k, here, workspace + (p.slots + place), p.slot_pixel)


def _row(k: Module, p: Words, item: Item, frame: Buffer, workspace: Buffer, number: Value, row: Value,
         pixels: Value) -> Row:  # fmt: skip
    """Pixels from a row of the box on, for the set of outputs of a number."""
    of_set = Words(k, p.buffer("set"), SET).at(number, len(SET))
    last = axis_record(k, p, p.axes - 1)
    _, y, r = row_place(k, p, item, row)
    return Row(
        p, item.g, of_set, workspace + p.panel, p.pixel_bytes, p.entry_bytes, p.entries, pixels,
        k.buffer(frame, 2) + (y + of_set.y), last.y_stride,
        k.buffer(frame, 4) + (r + of_set.r), last.r_stride,
    )  # fmt: skip


def pack_panel(k: Module, p: Words, item: Item, x: Buffer, panel: Buffer, vector_bytes: int, *, planes: bool) -> None:
    """Copy the inputs of a box."""
    whole = _is_inside(k, p, item) if planes else k.constant(INT, 0)
    with k.when(whole.equals(1)):
        _unzip(k, p, item, x, panel)
    with k.when(whole.equals(1), otherwise=True):
        _pack(k, p, item, x, panel, vector_bytes, planes=planes)


def _is_inside(k: Module, p: Words, item: Item) -> Value:
    """1 if the rows of planes can be taken apart in one pass, and no tap of the box meets the padding."""
    with k.loop(0, p.axes, carry=[k.select(p.row_sets > 0, 1, k.constant(INT, 0))]) as axis:
        record = axis_record(k, p, axis.index)
        # lines of the axes outside those rows are all brought, also where the last box has fewer outputs
        outputs = k.select(axis.index < p.axes - 2, record.block, item.extent(axis.index))
        end = (outputs - 1) * record.stride + k.word(p.buffer("reach"), axis.index)
        first = item.origin(axis.index)
        fits = (first >= 0) & (first + end < record.inp)
        axis.next(axis.values[0] & k.cast("zext", fits, INT))
    inside: Value = axis.results[0]
    return inside


def _unzip(k: Module, p: Words, item: Item, x: Buffer, panel: Buffer) -> None:
    """Copy the inputs of a box, all rows and taps of a row of the kernel at once."""
    start = p.x_base + item.n * p.x_n + item.g * p.x_g
    start = start + item.origin(p.axes - 1) * axis_record(k, p, p.axes - 1).x_stride
    rows = k.select(p.axes > 1, item.extent(k.maximum(p.axes - 2, 0)), 1)
    with k.loop(0, p.row_sets) as set_of_rows:
        line = set_of_rows.index * p.row_lines  # the first tap's, of the first row
        with k.loop(1, p.axes, carry=[line, start]) as back:
            q, offset = back.values
            axis = p.axes - 1 - back.index
            record = axis_record(k, p, axis)
            position = item.origin(axis) + k.word(p.buffer("positions"), record.positions + q % record.lines)
            back.next(q // record.lines, offset + position * record.x_stride)
        k.call(p.buffer("unzip"), Unzip(
            x + back.results[1], p.x_c, p.row_step, p.row_dilation,
            panel + k.word(p.buffer("line_places"), line), p.entry_bytes, p.row_bytes, p.row_tap_bytes, p.tap_bytes,
            p.channels, rows, p.row_taps, item.extent(p.axes - 1), p.zero_point,
        ))  # fmt: skip


def _pack(k: Module, p: Words, item: Item, x: Buffer, panel: Buffer, vector_bytes: int, *, planes: bool) -> None:
    """Copy the inputs of a box."""
    pixel_step = p.step * axis_record(k, p, p.axes - 1).x_stride
    words_of_4 = vector("i32", vector_bytes // 4)

    def clear(target: Buffer, low: Value, high: Value) -> None:
        count = k.maximum(high - low, 0)
        outer, inner = (p.channels, count) if planes else (count, p.channels)
        step = p.entry_bytes if planes else p.pixel_bytes
        with k.loop(0, outer) as at:
            zero_words(k, target + (low * p.pixel_bytes + at.index * step), (inner * p.word_bytes) >> 2, words_of_4)

    def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
        place = k.word(p.buffer("line_places"), line) + k.word(p.buffer("run_places"), first_line)
        target = panel + place
        clear(target, k.constant(INT, 0), head)
        clear(target, end, count)
        with k.when(end > head):
            k.call(p.buffer("move_in"), MoveIn(
                source, pixel_step, p.x_c, target + head * p.pixel_bytes, p.pixel_bytes,
                p.entry_bytes, end - head, p.channels, p.zero_point,
            ))  # fmt: skip

    fill(k, p, item, x, k.constant(INT, 0), put)


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
    header = -(-(24 * len(sweep)) // 64) * 64
    return Plan(
        pixels, planes, box, held, entries, entry_bytes, pixel_bytes, sets, width, tall, panel,
        header + -(-panel // 64) * 64 + slots + 128,
    )  # fmt: skip


def _cost(s: Situation, plan: Plan, sweep: Sweep) -> dict[str, float]:
    p, arith = s.problem, ARITHMETIC[accumulator_arithmetic(s)]
    lane = lanes(s.target, arith)
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
            cycles = sum(each * (tile_cycles(n, used) * plan.entries + 15) for n, each in tiles)
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
    functions, records = points.set_tables(
        r, plan.sets, plan.entries, fused, form, lambda vectors: channel_tile(r.target, vectors),
        ahead=_ahead(r, sweep, plan),
    )
    key = ("patches", tuple((a.taps, a.first_tap, a.tap_step) for a in whole))
    packed = points.packed_weights(r, key, lambda: by_entry(r, whole), plan.sets, form)
    count = math.prod(plan.box)
    items = (p.n or 0) * p.groups * math.prod(-(-axis.out // b) for axis, b in zip(sweep, plan.box, strict=True))
    cycles = _cost(s, plan, sweep)
    parts = thread_parts(s.threads, items, len(plan.sets), cycles["moves"] / max(1.0, cycles["products"]))
    values = panel_words(r, sweep, plan, parts, keep)
    block = plan.width * lane
    values.update({
        "folded": int(folded), "x_pixel": r.x.spatial[-1],
        "weights": packed, "w_group": packed.nbytes // max(1, p.groups), "set": words(records),
        "functions": words(functions), "fused": int(fused),
        "sets": len(plan.sets), "split_sets": -(-len(plan.sets) // parts), "outputs": p.m // p.groups,
        "result_bytes": r.y.itemsize, "lanes": lane, "slots": values["panel"] + -(-plan.panel // 64) * 64,
        "slot_pixel": arith.bytes if plan.pixels else block * arith.bytes,
        "slot_step": block * arith.bytes,
        "slot_channel": -(-count // lane) * lane * arith.bytes if plan.pixels else arith.bytes,
        "bias": zeros() if r.bias is None else r.bias, "scale": zeros() if r.scale is None else r.scale,
        "constants": r.constants, "move_out": move_out_address(r, Move(arith.accumulator, p.y, along, r.epilogue)),
    })  # fmt: skip
    return Step(address, fill_words(WORDS, values, keep), values["items"])


def _ahead(r: Request, sweep: Sweep, plan: Plan) -> tuple[int, int]:
    """Bytes from the input of a box to that of a thread's next, and between its channels, if tiles are to ask for it.

    They do where no second-level cache holds the planes, a few lines of each at a time.  Measured: 0-6 % off.
    """
    axis, p = sweep[-1], r.problem
    plain = len(sweep) == axis.taps == axis.stride == p.groups == 1 and r.x.spatial[-1] == r.x.itemsize
    if not (plain and plan.planes and image_bytes(p)[0] > r.situation.near(_HELD_BYTES)):
        return 0, 0
    return r.situation.threads * plan.box[-1] * r.x.itemsize, r.x.c


def panel_words(r: Request, sweep: Sweep, plan: Plan, splits: int, keep: list[Any]) -> dict[str, Any]:
    """Words of boxes and of their panels."""
    p, channels = r.problem, r.problem.c // r.problem.groups
    last, along = sweep[-1], along_in(r, sweep[-1], "p" if plan.planes else "c")
    if _is_run(r.situation, plan, sweep) and r.x.c == r.x.itemsize and r.x.spatial[-1] == channels * r.x.c:
        channels, along, last = channels * last.taps, "cc", replace(last, taps=1)
        sweep, plan = (*sweep[:-1], last), replace(plan, held=(*plan.held[:-1], lines(last, plan.box[-1])))
    unzips = plan.planes and last.dilation == 1 and last.stride in STEPS and r.x.spatial[-1] == r.x.itemsize
    line_places, run_places = _places(sweep, plan, channels)
    return common_words(r, sweep, plan.box, list(plan.held), splits, keep) | {
        "panel": -(-(24 * len(sweep)) // 64) * 64, "scratch": 0, "channels": channels, "entries": plan.entries,
        "entry_bytes": plan.entry_bytes, "pixel_bytes": plan.pixel_bytes, "line_places": words(line_places),
        "run_places": words(run_places), "reach": words([(axis.taps - 1) * axis.dilation for axis in sweep]),
        "row_sets": math.prod(h.count for h in plan.held[:-2]) if unzips else 0, **_row_words(r, sweep, plan),
        "unzip": _unzip_address(r, last) if unzips else 0, "word_bytes": r.arith.bytes,
        "move_in": move_in_address(r, Move(p.x, r.arith.accumulator, along)),
    }  # fmt: skip


def _row_words(r: Request, sweep: Sweep, plan: Plan) -> dict[str, int]:
    """How rows of a box and taps along the axis they follow each other on lie in the input and in the panel."""
    tap = r.problem.c // r.problem.groups * plan.entry_bytes
    found = {"row_bytes": plan.box[-1] * plan.pixel_bytes, "tap_bytes": tap, "row_tap_bytes": sweep[-1].taps * tap}
    if len(sweep) == 1:
        return found | {"row_lines": 1, "row_taps": 1, "row_step": 0, "row_dilation": 0}
    axis, stride = sweep[-2], r.x.spatial[-2]
    return found | {
        "row_lines": plan.held[-2].count, "row_taps": axis.taps, "row_step": axis.stride * stride,
        "row_dilation": axis.dilation * stride,
    }  # fmt: skip


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
