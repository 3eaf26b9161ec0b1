"""Pointwise convolution in place: one tap an axis, any stride, pads, group and layout.

Every output is a product of weights with the channels of one pixel, so nothing is packed.  Two orientations:
lanes are output channels, with words of the input broadcast from wherever they lie; or, where pixels lie
together and fill vectors, lanes are pixels.  Axes that lie together are one.  Results go from registers to their
place where lanes lie together in it, else through a move.  Outputs that meet only padding are filled by moves alone.
Cost: the products over lane use.  Error: own bound; sums run over the channels in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from polyconv.algorithms.packing import Set, packed_sets
from polyconv.algorithms.panel import COMMON, Item, Words, axis_record, box_rows, decode, row_place
from polyconv.algorithms.pixels import tile_rows
from polyconv.algorithms.program import (
    Operand,
    Program,
    Request,
    Situation,
    Step,
    accumulator_arithmetic,
    along_out,
    boxes,
    common_words,
    fill_words,
    is_fusible,
    move_address,
    near_equal,
    tile_cycles,
    zeros,
)  # fmt: skip
from polyconv.algorithms.sweep import Axis, Sweep, lines, sweeps
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.fused import FusedTile, of_sums
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, channel_tile, lanes, pixel_tiles
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.layout import Move
from polyconv.kernels.objects import kernel
from polyconv.kernels.point import channel_point_tile, pixel_point_tile
from polyconv.runtime.arrays import words
from polyconv.target import Target

__all__ = ["applicable", "build", "cost", "workspace"]

_INPUT_BYTES = 256 << 10
"""Input of an item where lanes are channels: it is read once per block of outputs, from a second-level cache."""
_NEAR_BYTES = 32 << 10
"""The same where lanes are pixels: it is read once per set of outputs, from a first-level cache if it fits."""
_SLOT_BYTES = 48 << 10
"""Most bytes of sums on their way through a move; with the header below the workspace that is always there."""
_MOST_PIXELS = 512

_SET = ("first", "outputs", "weights", "most", "functions", "edges", "there")
"""Words of a set of output channels: its first, how many, bytes of weights before it, the most pixels (lanes are
channels) or vectors (lanes are pixels) of a tile, where the functions for 1, 2, ... of them stand, and outputs in the
last vector."""

WORDS = (
    *COMMON,
    "channels", "x_pixel", "*weights", "w_group", "sets", "split_sets", "*set", "*functions",
    "outputs", "word_bytes", "result_bytes", "lanes", "fused", "slots", "slot_pixel", "slot_channel",
    "*bias", "*scale", "*constants", "*move_out",
)  # fmt: skip


def driver(k: Module, name: str, *, pixels: bool) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module; lanes are pixels or channels."""
    tiles = _pixel_tiles if pixels else _channel_tiles
    with k.function(name, "buffer", "buffer", "int", "buffer") as (frame, table, number, workspace):
        p = Words(k, table, WORDS)
        item = decode(k, p, number, workspace)
        rows = box_rows(k, p, item)
        first = item.split * p.split_sets
        end = k.minimum(first + p.split_sets, p.sets)
        with k.loop(first, end) as of_set, k.loop(0, rows) as row:
            here = _row(k, p, item, frame, of_set.index, row.index)
            with k.when(p.fused.equals(1)):
                tiles(k, here, None)
            with k.when(p.fused.equals(1), otherwise=True):
                tiles(k, here, workspace + p.slots)
                _move(k, here, workspace + p.slots, p.slot_pixel)


def fill_driver(k: Module, name: str) -> None:
    """Add the driver that gives outputs which meet only padding the epilogue of a sum of nothing."""
    with k.function(name, "buffer", "buffer", "int", "buffer") as (frame, table, number, workspace):
        p = Words(k, table, WORDS)
        item = decode(k, p, number, workspace)
        k.clear(workspace + p.slots, 256)  # a vector or two of zeros serve as all pixels
        with k.loop(0, p.sets) as of_set, k.loop(0, box_rows(k, p, item)) as row:
            here = _row(k, p, item, frame, of_set.index, row.index)
            _move(k, here, workspace + p.slots, k.constant(INT, 0))


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a box for a set of outputs: where it begins in input, result and residual."""

    p: Words
    item: Item
    set: Words
    x: Buffer
    y: Buffer
    r: Buffer

    @property
    def last(self) -> Words:
        """Record of the row's axis."""
        return axis_record(self.item.k, self.p, self.p.axes - 1)

    @property
    def pixels(self) -> Value:
        """Its outputs."""
        return self.item.extent(self.p.axes - 1)

    @property
    def weights(self) -> Buffer:
        """The set's weights."""
        return self.p.buffer("weights") + (self.item.g * self.p.w_group + self.set.weights)

    @property
    def tables(self) -> tuple[Buffer, Buffer, Buffer]:
        """Bias and scale of the set, and the constants."""
        p = self.p
        at = (self.item.g * p.outputs + self.set.first) * p.word_bytes
        return p.buffer("bias") + at, p.buffer("scale") + at, p.buffer("constants")


def _move(k: Module, row: _Row, sums: Buffer, pixel: Value) -> None:
    """Sums of a row to its place, through the epilogue."""
    p, (bias, scale, constants) = row.p, row.tables
    k.call(
        p.buffer("move_out"), sums, pixel, p.slot_channel, row.y, row.last.y_stride, p.y_c, row.pixels, row.set.outputs,
        bias, scale, row.r, row.last.r_stride, p.r_c, constants,
    )  # fmt: skip


def _row(k: Module, p: Words, item: Item, frame: Buffer, number: Value, row: Value) -> _Row:
    """A row of the box for the set of outputs of a number."""
    of_set = Words(k, p.buffer("set"), _SET).at(number, len(_SET))
    last = axis_record(k, p, p.axes - 1)
    x0 = p.x_base + item.n * p.x_n + item.g * p.x_g + item.origin(p.axes - 1) * last.x_stride
    with k.loop(1, p.axes, carry=[row, x0]) as back:
        q, x = back.values
        axis = p.axes - 1 - back.index
        record = axis_record(k, p, axis)
        position = item.origin(axis) + q % item.extent(axis) * record.stride
        back.next(q // item.extent(axis), x + position * record.x_stride)
    _, y, r = row_place(k, p, item, row)
    return _Row(
        p, item, of_set, k.buffer(frame, 0) + back.results[1], k.buffer(frame, 2) + (y + of_set.first * p.y_c),
        k.buffer(frame, 4) + (r + of_set.first * p.r_c),
    )  # fmt: skip


def _channel_tiles(k: Module, row: _Row, slot: Buffer | None) -> None:
    """A row in near-equal tiles to its place or to the slot, lanes are channels."""
    p, of_set, last = row.p, row.set, row.last
    parts = (row.pixels + of_set.most - 1) // of_set.most
    share, larger = row.pixels // parts, row.pixels % parts
    y, y_step = (row.y, last.y_stride) if slot is None else (slot, p.slot_pixel)
    with k.loop(0, parts, carry=[k.constant(INT, 0)]) as tile:
        (first,) = tile.values
        count = share + k.cast("zext", tile.index < larger, INT)
        k.call(
            k.buffer(p.buffer("functions"), of_set.functions + count * 2), row.x + first * p.x_pixel, p.x_pixel, p.x_c,
            p.channels, row.weights, y + first * y_step, y_step, row.r + first * last.r_stride, last.r_stride,
            of_set.there, *row.tables,
        )  # fmt: skip
        tile.next(first + count)


def _pixel_tiles(k: Module, row: _Row, slot: Buffer | None) -> None:
    """A row in the largest tiles there are, the last vector cut short; lanes are pixels."""
    p, of_set = row.p, row.set
    y, y_step, size = (row.y, p.y_c, p.result_bytes) if slot is None else (slot, p.slot_channel, p.word_bytes)
    with k.loop(0, row.pixels, of_set.most * p.lanes) as tile:
        left = row.pixels - tile.index
        vectors = k.minimum((left + p.lanes - 1) // p.lanes, of_set.most)
        there = left - (vectors - 1) * p.lanes
        family = k.select(there < p.lanes, of_set.edges, of_set.functions)
        k.call(
            k.buffer(p.buffer("functions"), family + vectors * 2), row.x + tile.index * p.word_bytes, 0, p.x_c,
            p.channels, row.weights, y + tile.index * size, y_step, row.r + tile.index * p.result_bytes, p.r_c, there,
            *row.tables,
        )  # fmt: skip


# -- planning ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plan:
    """Orientation of one sweep, its axes after folding, its box, and the sets of output channels."""

    pixels: bool
    sweep: Sweep
    box: tuple[int, ...]
    sets: tuple[tuple[int, int], ...]
    width: int


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    p = s.problem
    if p.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {p.op}"
    arith = ARITHMETIC[accumulator_arithmetic(s)]
    if LLVM_NAMES[p.x] != arith.accumulator:
        return f"reads the input in place, which is not of the sum's type: {p.x}, {arith.name}"
    if p.quantisation is not None:
        return "inputs with a zero point are converted in a panel"
    if p.c == 0:
        return "there are no channels to add up"
    if not all(axis.taps == 1 for sweep in sweeps(p) for axis in sweep):
        return "needs a kernel of one tap"
    return None


def _pieces(sweep: Sweep) -> tuple[Sweep, list[Sweep]]:
    """The box of outputs whose tap lies inside the input, and the boxes around it."""
    inner: list[Axis] = []
    around: list[Sweep] = []
    for a, axis in enumerate(sweep):
        low = min(axis.out, max(0, -(-axis.pad // axis.stride)))
        high = max(low, min(axis.out, (axis.inp - 1 + axis.pad) // axis.stride + 1))
        for first, end in ((0, low), (high, axis.out)):
            if end > first:
                here = Axis(end - first, 1, 0, 1, 1, 0, axis.first_out + first * axis.out_step, axis.out_step)
                around.append((*inner, here, *sweep[a + 1 :]))
        inner.append(replace(axis, out=high - low, pad=axis.pad - low * axis.stride,
                             first_out=axis.first_out + low * axis.out_step))  # fmt: skip
    return tuple(inner), around


def _folded(sweep: Sweep, operands: Sequence[Operand]) -> tuple[Sweep, list[Operand]]:
    """Neighbouring axes that lie together in all operands (the input first) as one."""
    axes, spatial = [sweep[-1]], [[o.spatial[-1]] for o in operands]
    for a in range(len(sweep) - 2, -1, -1):
        outer, inner = sweep[a], axes[0]
        whole = inner.out == inner.inp and inner.stride == outer.stride == 1 and inner.pad == outer.pad == 0
        plain = inner.out_step == outer.out_step == 1 and inner.first_out == outer.first_out == 0
        if whole and plain and all(
            o.spatial[a] == inner.out * known[0] for o, known in zip(operands, spatial, strict=True)
        ):  # fmt: skip
            axes[0] = replace(inner, out=outer.out * inner.out, inp=outer.inp * inner.inp)
        else:
            axes.insert(0, outer)
            for o, known in zip(operands, spatial, strict=True):
                known.insert(0, o.spatial[a])
    return tuple(axes), [replace(o, spatial=tuple(known)) for o, known in zip(operands, spatial, strict=True)]


@lru_cache(512)
def _plan(s: Situation, arith: Arithmetic, sweep: Sweep, pixels: bool) -> _Plan:
    """Sizes of a sweep whose axes are folded."""
    p = s.problem
    group_in, group_out = p.c // p.groups, p.m // p.groups
    lane = lanes(s.target, arith)
    width = 1 if pixels or group_out <= lane else 2
    sets = tuple(tile_rows(group_out, s.target)) if pixels else tuple(
        (first, min(width * lane, group_out - first)) for first in range(0, group_out, width * lane)
    )  # fmt: skip
    tall = max((outputs for _, outputs in sets), default=1) if pixels else width * lane
    if pixels:  # a whole number of the tiles that most outputs take
        least = lane * pixel_tiles(s.target)[tall]
        wanted = _NEAR_BYTES // (group_in * arith.bytes) // least * least
    else:
        least, wanted = channel_tile(s.target, width), _INPUT_BYTES // (group_in * arith.bytes)
    slot_pixels = _SLOT_BYTES // (arith.bytes * tall)
    most = min(max(least, wanted), _MOST_PIXELS, slot_pixels // lane * lane)
    extents = [axis.out for axis in sweep]
    if not pixels and extents[-1] > most:  # no rest that starts tiles for a few pixels
        extents[-1] = -(-extents[-1] // -(-extents[-1] // most))
    box = boxes((*extents[:-1], min(extents[-1], most)), math.prod, most)
    return _Plan(pixels, sweep, box, sets, width)


def _most_rows(target: Target, vectors: int, pixel_bytes: int) -> int:
    """Most pixels of a tile; where they lie a multiple of 4 KiB apart they share the ways of one set of a cache."""
    most = channel_tile(target, vectors)
    return min(most, 7) if pixel_bytes % 4096 == 0 else most


def _packed_strides(axes: Sequence[Axis], extent: str) -> Operand:
    """Strides of a packed tensor of a sweep's extents, in elements of one byte: enough to see what folds."""
    step, strides = 1, list[int]()
    for axis in reversed(axes):
        strides.insert(0, step)
        step *= axis.inp if extent == "inp" else axis.out
    return Operand(0, 0, tuple(strides), 0, 1)


def _expected(s: Situation, arith: Arithmetic, sweep: Sweep) -> _Plan:
    """The plan for packed tensors: the cheaper orientation."""
    axes, _ = _folded(sweep, [_packed_strides(sweep, "inp"), _packed_strides(sweep, "out")])
    plans = [_plan(s, arith, axes, pixels) for pixels in ((False, True) if _lies_in_rows(s, axes) else (False,))]
    return min(plans, key=lambda plan: sum(_cost(s, arith, plan).values()))


def _lies_in_rows(s: Situation, axes: Sweep) -> bool:
    return (s.problem.layout == "NCHW" or s.problem.c == 1) and axes[-1].stride == 1


def workspace(s: Situation) -> int:
    """Bytes a thread needs: the header, and the sums of a set of outputs for a row of the box."""
    return 64 * (s.problem.rank + 2) + _SLOT_BYTES + 256


def cost(s: Situation) -> dict[str, float]:
    """Cycles: multiply-adds or the loads of short tiles, and the way out."""
    arith, p = ARITHMETIC[accumulator_arithmetic(s)], s.problem
    products = moves = 0.0
    for sweep in sweeps(p):
        inner, around = _pieces(sweep)
        moves += sum(math.prod(axis.out for axis in piece) for piece in around) * p.m * (p.n or 0) * 0.5
        if all(axis.out for axis in inner):
            terms = _cost(s, arith, _expected(s, arith, inner))
            products, moves = products + terms["products"], moves + terms["moves"]
    return {"products": products, "moves": moves}


def _cost(s: Situation, arith: Arithmetic, plan: _Plan) -> dict[str, float]:
    p = s.problem
    group_in = p.c // p.groups
    lane, heights = lanes(s.target, arith), pixel_tiles(s.target)
    box_count = math.prod(-(-axis.out // max(1, b)) for axis, b in zip(plan.sweep, plan.box, strict=True))
    rows = math.prod(plan.box[:-1]) * box_count
    width = plan.sweep[-1].out / -(-plan.sweep[-1].out // plan.box[-1])
    products = moves = 0.0
    for _, outputs in plan.sets:
        if plan.pixels:
            vectors = -(-width // lane)
            full, rest = divmod(vectors, heights[outputs])
            products += full * (tile_cycles(outputs, heights[outputs]) * group_in + 15)
            products += (tile_cycles(outputs, int(rest)) * group_in + 15) if rest else 0
            moves += vectors * outputs * (1.5 if is_fusible(p) else 4.0)
        else:
            used = -(-outputs // lane)
            pixel_bytes = p.c * arith.bytes * plan.sweep[-1].stride if p.layout == "NHWC" else arith.bytes
            tiles = near_equal(math.ceil(width), _most_rows(s.target, plan.width, pixel_bytes))
            across = p.layout == "NCHW" and p.m > 1
            apart = 1.01 if p.layout == "NCHW" else 1.0  # each channel's pixels in a line of their own
            products += sum(tile_cycles(n, used) * group_in * apart + 15 for _, n in tiles)
            moves += width * used * (8.0 if across else 1.5 if is_fusible(p) else 4.0)
    batch = (p.n or 0) * p.groups
    return {"products": products * rows * batch, "moves": (moves * rows + 250.0 * box_count) * batch}


# -- building ------------------------------------------------------------------------------------------


def build(r: Request) -> Program:
    """Program of a request: one step per sweep, and one for every box of outputs that meet only padding."""
    keep: list[Any] = []
    steps = []
    for sweep in sweeps(r.problem):
        inner, around = _pieces(sweep)
        steps += [_fill_step(r, piece, keep) for piece in around]
        if all(axis.out for axis in inner):
            steps.append(_step(r, inner, keep))
    return Program(tuple(step for step in steps if step.items), workspace(r.situation), tuple(keep))


def _step(given: Request, sweep: Sweep, keep: list[Any]) -> Step:
    s, arith, p = given.situation, given.arith, given.problem
    r, axes = _with_folded(given, sweep)
    lies_in_rows = r.x.spatial[-1] * axes[-1].stride == r.x.itemsize
    plan = _plan(s, arith, axes, _expected(s, arith, sweep).pixels and lies_in_rows)
    name = f"pointwise {'pixels' if plan.pixels else 'channels'}"
    address = kernel(name, ("driver",), lambda k: driver(k, "driver", pixels=plan.pixels), r.target, check=r.check)
    along = along_out(r, axes[-1], "p" if plan.pixels else "c")
    fused = is_fusible(p) and along in ("cc", "pp")
    functions, records = (_pixel_sets if plan.pixels else _channel_sets)(r, plan, fused)
    packed = _packed_weights(r, sweep, plan)
    values = _words(r, axes, plan, _splits(s, plan, axes), Move(arith.accumulator, p.y, along, r.epilogue), keep)
    values.update({
        "weights": packed, "w_group": packed.nbytes // max(1, p.groups), "set": words(records),
        "functions": words(functions), "fused": int(fused),
    })  # fmt: skip
    return Step(address["driver"], fill_words(WORDS, values, keep), values["items"])


def _fill_step(given: Request, sweep: Sweep, keep: list[Any]) -> Step:
    r, axes = _with_folded(given, sweep)
    plan = _plan(r.situation, r.arith, axes, False)
    address = kernel("pointwise fill", ("driver",), lambda k: fill_driver(k, "driver"), r.target, check=r.check)
    move = Move(r.arith.accumulator, r.problem.y, along_out(r, axes[-1], "c"), r.epilogue)
    values = _words(r, axes, plan, 1, move, keep)
    records = [v for first, outputs in plan.sets for v in (first, outputs, *[0] * (len(_SET) - 2))]
    values.update({
        "weights": zeros(), "w_group": 0, "set": words(records), "functions": zeros(), "fused": 0,
    })  # fmt: skip
    return Step(address["driver"], fill_words(WORDS, values, keep), values["items"])


def _with_folded(r: Request, sweep: Sweep) -> tuple[Request, Sweep]:
    """The request and the sweep with axes that lie together in all operands as one."""
    operands = [r.x, r.y] + ([r.residual] if r.residual is not None else [])
    axes, folded = _folded(sweep, operands)
    return replace(r, x=folded[0], y=folded[1], residual=folded[2] if r.residual is not None else None), axes


def _words(r: Request, axes: Sweep, plan: _Plan, splits: int, move: Move, keep: list[Any]) -> dict[str, Any]:
    """Words that both drivers read."""
    p, arith = r.problem, r.arith
    held = [lines(axis, b) for axis, b in zip(axes, plan.box, strict=True)]
    values = common_words(r, axes, plan.box, held, splits, keep)
    block = plan.width * lanes(r.target, arith)
    values.update({
        "panel": 0, "scratch": 0, "channels": p.c // p.groups, "x_pixel": axes[-1].stride * r.x.spatial[-1],
        "sets": len(plan.sets), "split_sets": -(-len(plan.sets) // splits), "outputs": p.m // p.groups,
        "word_bytes": arith.bytes, "result_bytes": r.y.itemsize, "lanes": lanes(r.target, arith),
        "slots": -(-(24 * len(axes)) // 64) * 64,
        "slot_pixel": arith.bytes if plan.pixels else block * arith.bytes,
        "slot_channel": plan.box[-1] * arith.bytes if plan.pixels else arith.bytes,
        "bias": zeros() if r.bias is None else r.bias, "scale": zeros() if r.scale is None else r.scale,
        "constants": r.constants, "move_out": move_address(r, move),
    })  # fmt: skip
    return values


def _splits(s: Situation, plan: _Plan, axes: Sweep) -> int:
    """Into how many parts the sets of outputs are cut so that every thread has a few items."""
    p = s.problem
    if s.threads == 1:
        return 1
    items = (p.n or 0) * p.groups * math.prod(-(-axis.out // b) for axis, b in zip(axes, plan.box, strict=True))
    splits = min(max(1, len(plan.sets)), -(-3 * s.threads // max(1, items)))
    per_split = -(-len(plan.sets) // splits) or 1
    return max(1, -(-len(plan.sets) // per_split))


def _channel_sets(r: Request, plan: _Plan, fused: bool) -> tuple[list[int], list[int]]:
    """Functions for 1, 2, ... pixels by the vectors of a block, and a record (``_SET``) per block."""
    lane = lanes(r.target, r.arith)
    most = _most_rows(r.target, plan.width, plan.sweep[-1].stride * r.x.spatial[-1])
    functions: list[int] = []
    tables: dict[tuple[int, bool], int] = {}
    records: list[int] = []
    at = 0
    for first, outputs in plan.sets:
        vectors, there = -(-outputs // lane), (outputs - 1) % lane + 1
        kind = vectors, there < lane
        if kind not in tables:
            tables[kind] = len(functions) - 2  # the function of n pixels is at word 2 n
            for address in _tiles(r, "channel", vectors, range(1, most + 1), fused, edges=(there < lane,)):
                functions += (address, 0)
        records += (first, outputs, at, most, tables[kind], tables[kind], there)
        at += vectors * lane * (r.problem.c // r.problem.groups) * r.arith.bytes
    return functions, records


def _pixel_sets(r: Request, plan: _Plan, fused: bool) -> tuple[list[int], list[int]]:
    """Functions for 1, 2, ... vectors, whole and at an edge, by outputs; and a record (``_SET``) per set."""
    heights = pixel_tiles(r.target)
    functions: list[int] = []
    tables: dict[int, int] = {}
    records: list[int] = []
    for first, outputs in plan.sets:
        if outputs not in tables:
            tables[outputs] = len(functions) - 2
            for address in _tiles(r, "pixel", outputs, range(1, heights[outputs] + 1), fused, edges=(False, True)):
                functions += (address, 0)
        table = tables[outputs]
        records += (first, outputs, first * (r.problem.c // r.problem.groups) * r.arith.bytes, heights[outputs],
                    table, table + 2 * heights[outputs], 0)  # fmt: skip
    return functions, records


def _tiles(r: Request, orientation: str, fixed: int, sizes: Sequence[int], fused: bool,
           edges: Sequence[bool]) -> list[int]:  # fmt: skip
    """Addresses of a family of tiles: of all sizes whole, or cut short, or first whole and then cut short."""
    make = {"channel": channel_point_tile, "pixel": pixel_point_tile}[orientation]
    spec = FusedTile(r.arith.name, r.problem.y, r.epilogue) if fused else of_sums(r.arith.name)
    kinds = {f"{'edge' if edge else 'whole'}{n}": (edge, n) for edge in edges for n in sizes}

    def build(k: Module) -> None:
        for name, (edge, n) in kinds.items():
            size = (fixed, n) if orientation == "pixel" else (n, fixed)
            make(k, name, replace(spec, edge=edge), lanes(r.target, r.arith), *size, f16c=r.target.level != "baseline")

    label = f"point {orientation} {spec} {fixed} {len(sizes)} {edges}"
    found = kernel(label, tuple(kinds), build, r.target, check=r.check)
    return [found[name] for name in kinds]


def _packed_weights(r: Request, sweep: Sweep, plan: _Plan) -> Any:
    """Weights in streaming order: per group and set of outputs, a row of outputs per channel."""
    key = (r.arith.name, r.target.level, plan.pixels, tuple((a.taps, a.first_tap, a.tap_step) for a in sweep))
    c, m, lane = r.problem.c // r.problem.groups, r.problem.m // r.problem.groups, lanes(r.target, r.arith)
    whole = (m if plan.pixels else -(-m // lane) * lane) * c
    sets = [
        Set(first, outputs, outputs if plan.pixels else -(-outputs // lane) * lane, first * c, whole)
        for first, outputs in plan.sets
    ]
    return r.packed(("point", *key), lambda: packed_sets(r, r.weights(sweep), sets, 1, r.problem.groups * whole))
