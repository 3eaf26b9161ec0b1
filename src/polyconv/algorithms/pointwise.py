"""Pointwise convolution in place: one tap an axis, or windows that meet no padding; any stride, group and layout.

Every output is a product of weights with the channels of one pixel, or with those of a window, by a list of where its
entries lie: nothing is packed.  Three forms, the first of them for windows: lanes are output channels, with words of
the input broadcast from wherever they lie; where pixels lie together and fill vectors, lanes are pixels; and so they
are where channels lie together and outputs are few, or few remain beside whole vectors of them, by squares of pixels
and channels that are transposed in registers.  Axes that lie together are one.  Results go from registers to their
place where lanes lie together in it, else through a move; those of the phases of a transposed convolution leave
together.  Outputs that meet only padding are filled by moves alone.
Cost: the products over lane use.  Error: own bound; sums run over the channels in order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms import points
from polyconv.algorithms.panel import Common, Driver, Frame, Item, axis_words, box_rows, decode, row_place
from polyconv.algorithms.points import OutputSet, PointWords, Row
from polyconv.algorithms.program import (
    Operand,
    Program,
    Request,
    Situation,
    Step,
    accumulator_arithmetic,
    address_of,
    along_out,
    apart_cycles,
    boxed_words,
    boxes,
    epilogue_tables,
    far_cycles,
    image_bytes,
    is_fusible,
    move_out_address,
    near_equal_sizes,
    planes_collide,
    thread_parts,
    tile_cycles,
    zeros,
)  # fmt: skip
from polyconv.algorithms.sweep import Axis, Sweep, lines, sweeps
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, channel_tile, lanes, pixel_tiles, square_tile
from polyconv.kernels.language import INT, Module, Value
from polyconv.kernels.layout import Move
from polyconv.kernels.record import Memory, Record, Word, filled, words
from polyconv.problem.problem import Problem

__all__ = ["applicable", "build", "cost", "fill_step", "is_inside", "pieces", "workspace"]

_REPEATED = 0.02
"""Share of an item's work that every part of its outputs does anew: its inputs come from the third cache once more."""
_INPUT_BYTES = 256 << 10
"""Input of an item where lanes are channels: it is read once per block of outputs, from a second-level cache."""
_NEAR_BYTES = 32 << 10
"""The same where lanes are pixels: it is read once per set of outputs, from a first-level cache if it fits."""
_FAR_BYTES, _MOST_NEAR = 3 << 20, 1 << 20
"""An input that only the third cache or memory holds, of images that the second does not: its items ask for what the
next one reads, and are as large as the second cache likes.  Measured on Zen 5: 5-30 % off."""
_TWICE_BYTES = 8 << 20
"""Inputs up to this are near enough to be read once for whole vectors of outputs and once for the rest.  Measured on
Zen 5: 5-17 % off for 1 to 6 outputs beside a vector, and from 16 MB on as slow or slower."""
_STACKED_BYTES = 128 << 10
"""Images of planes of which boxes hold several, for fewer passes over the weights."""
_CACHED_BYTES, _EARLY_ENTRIES, _MOST_EARLY = 16 << 20, 32, 3
"""Inputs and results beyond this come from memory, call after call.  Tiles of so many entries take as long as a line of
results to come from there; of fewer entries some tiles.  Measured on Zen 5: 2-40 % off."""
_STREAMED_BYTES = 22.0
"""Bytes a cycle of weights that a first-level cache does not hold: short rows of strided pixels wait for them."""
_SLOT_BYTES = 48 << 10
"""Most bytes of sums on their way through a move; with the header below the workspace that is always there."""
_MOST_PIXELS = 512
_LINES_BYTES = 30.0
"""Bytes a cycle of input and result, beyond the second-level cache, that come and go group by group where channels lie
together."""

_LISTED_LATE, _LIST_LOADS = 0.25, 6
"""How much of what comes from memory is not there when a list has asked for it; loads of a step for that."""
_AHEAD = {"NCHW": 16, "NHWC": 48}
"""Entries of a list by which inputs are asked for early: lines of planes may share the ways of one set of a cache."""


class PointwiseWords(Record):
    """The driver's words: entries of an output, in a list or as many as there are channels, and how pixels lie.

    Results of ``phases`` sets follow each other, those of a pixel ``y_pixel`` bytes apart.
    """

    common: Common
    channels: Word
    entries: Memory
    x_pixel: Word
    phases: Word
    y_pixel: Word
    r_pixel: Word
    point: PointWords


def driver(k: Module, name: str, *, pixels: bool, listed: bool = False) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module; lanes are pixels or channels.

    Entries lie so many bytes apart, or as a list says.
    """
    tiles = points.pixel_tiles_along if pixels else points.channel_tiles
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = PointwiseWords.read(k, given.words)
        item = decode(k, p.common, given.item, workspace)
        rows = box_rows(k, p.common, item)
        first = item.split * p.point.split_sets
        end = k.minimum(first + p.point.split_sets, p.point.set_count)
        with k.loop(first, end) as of_set, k.loop(0, rows) as row:
            here = _row(k, p, item, frame, of_set.index * p.phases, row.index, listed=listed)
            with k.when(p.point.fused.equals(1)):
                tiles(k, here, None)
            with k.when(p.point.fused.equals(1), otherwise=True):
                slot = workspace + p.point.slots
                with k.loop(0, p.phases) as phase:
                    number = of_set.index * p.phases + phase.index
                    of_phase = _row(k, p, item, frame, number, row.index, listed=listed)
                    tiles(k, of_phase, slot + phase.index * p.point.slot_pixel)
                points.move_row(k, _all_phases(p, here), slot, p.point.slot_pixel)


def _all_phases(p: PointwiseWords, row: Row) -> Row:
    """A row of results with those of all phases, which follow each other, by the first's."""
    return replace(row, pixels=row.pixels * p.phases, y_pixel=p.y_pixel, r_pixel=p.r_pixel)


def fill_driver(k: Module, name: str) -> None:
    """Add the driver that gives outputs which meet only padding the epilogue of a sum of nothing."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = PointwiseWords.read(k, given.words)
        item = decode(k, p.common, given.item, workspace)
        k.clear(workspace + p.point.slots, 256)  # a vector or two of zeros serve as all pixels
        with k.loop(0, p.point.set_count) as of_set, k.loop(0, box_rows(k, p.common, item)) as row:
            here = _row(k, p, item, frame, of_set.index, row.index)
            points.move_row(k, here, workspace + p.point.slots, k.constant(INT, 0))


def _row(k: Module, p: PointwiseWords, item: Item, frame: Frame, number: Value, row: Value, *, listed: bool = False
         ) -> Row:  # fmt: skip
    """A row of the box for the set of outputs of a number."""
    of_set, c = p.point.sets.at(number), p.common
    last = axis_words(c, c.axes - 1)
    x0 = c.x_base + item.n * c.x_n + item.g * c.x_g + item.origin(c.axes - 1) * last.x_stride
    with k.loop(1, c.axes, carry=[row, x0]) as back:
        q, x = back.values
        axis = c.axes - 1 - back.index
        record = axis_words(c, axis)
        position = item.origin(axis) + q % item.extent(axis) * record.stride
        back.next(q // item.extent(axis), x + position * record.x_stride)
    _, y, r = row_place(k, c, item, row)
    return Row(
        c, p.point, item.g, of_set, frame.x + back.results[1], p.x_pixel, p.entries if listed else c.x_c, p.channels,
        item.extent(c.axes - 1), frame.y + (y + of_set.y), last.y_stride,
        frame.residual + (r + of_set.r), last.r_stride,
    )  # fmt: skip


# -- planning ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plan:
    """Orientation of a family of sweeps, the first's axes after folding, its box, and the sets of output channels.

    The sets are there for every sweep: ``times`` as many as there are ``phases``, whose results follow each other along
    the last axis and leave together.
    """

    form: str
    sweep: Sweep
    box: tuple[int, ...]
    sets: tuple[tuple[int, int], ...]
    width: int
    times: int
    phases: int

    @property
    def pixels(self) -> bool:
        """Whether lanes are pixels."""
        return self.form != "channel"

    @property
    def part(self) -> tuple[int, int]:
        """First output of a group, and how many."""
        return (self.sets[0][0] if self.sets else 0), sum(count for _, count in self.sets)


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
    if not all(axis.taps == 1 or is_inside(p, axis) for sweep in sweeps(p) for axis in sweep):
        return "needs a kernel of one tap, or windows that meet no padding"
    return None


def is_inside(p: Problem, axis: Axis) -> bool:
    """Whether windows meet no padding."""
    span = (axis.taps - 1) * axis.dilation
    whole = axis.pad <= 0 and (axis.out - 1) * axis.stride - axis.pad + span < axis.inp
    return p.op == "conv" and axis.out > 0 and axis.taps > 0 and whole


def _is_listed(sweep: Sweep) -> bool:
    """Whether a list says where the entries of a window lie."""
    return any(axis.taps > 1 for axis in sweep)


def _entries(p: Problem, sweep: Sweep) -> int:
    """Entries of an output's sum; of one that meets only padding as if it had one."""
    return p.c // p.groups * math.prod(max(1, axis.taps) for axis in sweep)


def pieces(sweep: Sweep) -> tuple[Sweep, list[Sweep]]:
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
    """Neighbouring axes that lie together in all operands (the input first) as one, and none of a single result."""
    axes, spatial = [sweep[-1]], [[o.spatial[-1]] for o in operands]
    for a in range(len(sweep) - 2, -1, -1):
        outer, inner = sweep[a], axes[0]
        whole = inner.out == inner.inp and inner.stride == outer.stride == 1 and inner.pad == outer.pad == 0
        plain = inner.out_step == outer.out_step == 1 and inner.first_out == outer.first_out == 0
        if plain and inner.out == 1 and inner.pad == 0:
            axes[0] = replace(outer, taps=outer.taps * inner.taps)
            for o, known in zip(operands, spatial, strict=True):
                known[0] = o.spatial[a]
        elif whole and plain and all(
            o.spatial[a] == inner.out * known[0] for o, known in zip(operands, spatial, strict=True)
        ):  # fmt: skip
            taps = outer.taps * inner.taps
            axes[0] = replace(inner, out=outer.out * inner.out, inp=outer.inp * inner.inp, taps=taps)
        else:
            axes.insert(0, outer)
            for o, known in zip(operands, spatial, strict=True):
                known.insert(0, o.spatial[a])
    return tuple(axes), [replace(o, spatial=tuple(known)) for o, known in zip(operands, spatial, strict=True)]


_Family = tuple[Sweep, ...]
"""Sweeps that read the same pixels."""


@lru_cache(256)
def _families(p: Problem) -> tuple[_Family, ...]:
    """Sweeps without the outputs that meet only padding."""
    found: dict[Sweep, list[Sweep]] = {}
    for sweep in sweeps(p):
        inner, _ = pieces(sweep)
        if all(axis.out for axis in inner):
            found.setdefault(tuple(replace(axis, first_out=0, first_tap=0) for axis in inner), []).append(inner)
    return tuple(tuple(family) for family in found.values())


def _phases(family: _Family) -> int:
    """How many sweeps at a time have results that follow each other along the last axis, if all of them are there."""
    step = family[0][-1].out_step
    places = [tuple(axis.first_out for axis in sweep) for sweep in family]
    groups = [places[first : first + step] for first in range(0, len(family), step)]
    together = all(group == [(*group[0][:-1], phase) for phase in range(step)] for group in groups)
    return step if together else 1


@lru_cache(512)
def _plan(s: Situation, arith: Arithmetic, sweep: Sweep, size: int, form: str, phases: int,
          part: tuple[int, int] | None = None) -> _Plan:  # fmt: skip
    """Sizes of a family of so many sweeps whose axes are folded, for all outputs or a part: the first, how many."""
    p = s.problem
    lane = lanes(s.target, arith)
    apart = p.c // p.groups * math.prod(i or 0 for i in p.i) // max(1, math.prod(o or 0 for o in p.out))
    read = max(p.c // p.groups, min(_entries(p, sweep), apart)) * arith.bytes  # for a pixel of many
    first, outputs = part or (0, p.m // p.groups)
    sets, width = points.cut_outputs(s, lane, form, outputs)
    sets = tuple((first + begin, count) for begin, count in sets)
    tall = max((outputs for _, outputs in sets), default=1) if form != "channel" else width * lane
    if form != "channel":  # a whole number of the tiles that most outputs take
        least = lane if form == "square" else lane * pixel_tiles(s.target)[tall]
        wanted = s.near(_INPUT_BYTES if _is_far(s, sweep) else _NEAR_BYTES) // read // least * least
    else:
        least, wanted = channel_tile(s.target, width), s.near(_INPUT_BYTES) // read
    slot_pixels = _SLOT_BYTES // (arith.bytes * tall * phases)
    most = min(max(least, wanted), _MOST_PIXELS, slot_pixels // lane * lane)
    extents = [axis.out for axis in sweep]
    if form == "channel" and extents[-1] > most:  # no rest that starts tiles for a few pixels
        extents[-1] = -(-extents[-1] // -(-extents[-1] // most))
    box = boxes((*extents[:-1], min(extents[-1], most)), math.prod, most)
    return _Plan(form, sweep, box, sets, width, size // phases, phases)


def _is_far(s: Situation, axes: Sweep) -> bool:
    """Whether the items of folded axes, perhaps the batch among them, ask early for the input."""
    p = s.problem
    image, _ = image_bytes(p)
    one = len(axes) == axes[0].stride == axes[0].taps == p.groups == 1 and p.m > 0
    whole = math.prod(axis.inp for axis in axes) * p.c * p.x_dtype.itemsize * (p.n or 0)
    return one and image > s.near(_MOST_NEAR) and whole > s.near(_FAR_BYTES)


def _packed_strides(axes: Sequence[Axis], extent: str) -> Operand:
    """Strides of a packed tensor of a sweep's extents, in elements of one byte: enough to see what folds."""
    step, strides = 1, list[int]()
    for axis in reversed(axes):
        strides.insert(0, step)
        step *= axis.inp if extent == "inp" else axis.out
    return Operand(0, 0, tuple(strides), 0, 1)


def _ahead(r: Request, axes: Sweep, plan: _Plan) -> tuple[int, int]:
    """Bytes from a tile's input to that of a thread's next item, and between what steps of the tile ask for of it.

    That is a line of each channel, or the tile's share of the pixels where channels lie together.
    """
    together = channel_tile(r.target, plan.width) * r.x.itemsize
    return (r.situation.threads * plan.box[-1] * r.x.spatial[-1],
            together if r.x.c == r.x.itemsize else r.x.c)  # fmt: skip


def _written_ahead(s: Situation, plan: _Plan) -> int:
    """How many tiles early results are asked for: those that memory holds, not in parts where channels lie together."""
    p = s.problem
    several = p.layout == "NHWC" and (len(plan.sets) > 1 or plan.part[1] < p.m // p.groups)
    entries = max(1, _entries(p, plan.sweep))
    near = (p.n or 0) * sum(image_bytes(p)) <= s.near(_CACHED_BYTES)
    if near or several or plan.times * plan.phases > 1 or entries > 2 * _EARLY_ENTRIES:
        return 0
    return min(_MOST_EARLY, -(-_EARLY_ENTRIES // entries))


def _expected(s: Situation, arith: Arithmetic, family: _Family) -> tuple[_Plan, ...]:
    """The plans for packed tensors: of all outputs, or of whole vectors of them and of the rest; the cheapest."""
    sweep, lane, outputs = family[0], lanes(s.target, arith), s.problem.m // s.problem.groups
    axes, _ = _folded(sweep, [_packed_strides(sweep, "inp"), _packed_strides(sweep, "out")])
    forms = [("channel", _phases(family) if s.problem.layout == "NCHW" else 1)]
    if _lies_in_rows(s, axes) and not _is_listed(sweep):
        forms.append(("pixel", 1))
    elif s.problem.layout == "NHWC" and not _is_listed(sweep):
        forms.append(("square", 1))
    plans: list[tuple[_Plan, ...]] = [(_plan(s, arith, axes, len(family), form, phases),) for form, phases in forms]
    rest = outputs % lane
    near = (s.problem.n or 0) * image_bytes(s.problem)[0] <= s.near(_TWICE_BYTES)
    if ("square", 1) in forms and near and 0 < rest < outputs and rest <= square_tile(s.target):
        parts = (("channel", (0, outputs - rest)), ("square", (outputs - rest, rest)))
        plans.append(tuple(_plan(s, arith, axes, len(family), form, 1, part) for form, part in parts))
    return min(plans, key=lambda some: s.price(some, sum(sum(_cost(s, arith, plan).values()) for plan in some)))


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
        _, around = pieces(sweep)
        moves += sum(math.prod(axis.out for axis in piece) for piece in around) * p.m * (p.n or 0) * 0.5
    for family in _families(p):
        for plan in _expected(s, arith, family):
            terms = _cost(s, arith, plan)
            products, moves = products + terms["products"], moves + terms["moves"]
    return {"products": products, "moves": moves}


def _cost(s: Situation, arith: Arithmetic, plan: _Plan) -> dict[str, float]:
    p = s.problem
    group_in, listed = _entries(p, plan.sweep), _is_listed(plan.sweep)
    lane, rates = lanes(s.target, arith), s.rates(arith)
    box_count = math.prod(-(-axis.out // max(1, b)) for axis, b in zip(plan.sweep, plan.box, strict=True))
    parts = -(-plan.sweep[-1].out // plan.box[-1])
    rows, width = math.prod(axis.out for axis in plan.sweep[:-1]) * parts, plan.sweep[-1].out / parts
    plane = math.prod(i or 0 for i in p.i) * arith.bytes
    products = moves = 0.0
    for outputs, times in Counter(outputs for _, outputs in plan.sets).items():
        if plan.form == "square":
            vectors = math.ceil(plan.sweep[-1].out / lane) / parts  # boxes but the last of a row hold whole ones
            each = points.square_cycles(outputs) * rates.slower
            products += times * vectors * (each * -(-group_in // lane) * lane + 15)
            moves += times * vectors * (4.0 if p.m == 1 else lane)
        elif plan.pixels:
            vectors = -(-width // lane)
            products += times * points.pixel_set_cycles(s, arith, outputs, group_in, int(vectors), plane)
            moves += times * vectors * outputs * ((1.5 if is_fusible(p) else 4.0) + apart_cycles(p, plan.sweep[-1]))
            moves += 0.0 if is_fusible(p) and plan.sweep[-1].out_step == 1 else times * 300.0  # a row is moved
        else:
            used = -(-outputs // lane)
            pixel_bytes = p.c * arith.bytes * plan.sweep[-1].stride if p.layout == "NHWC" else arith.bytes
            tiles = near_equal_sizes(math.ceil(width), points.most_rows(s.target, used, pixel_bytes))
            across = p.layout == "NCHW" and p.m > 1
            # one vector of results a pixel: loads are what tiles wait for, and those of pixels far apart are slow
            apart = _apart(plan, group_in, arith) if p.layout == "NCHW" else 1.15 if plan.width == 1 else 1.0
            if listed:
                apart = 1.03 if p.layout == "NCHW" else 1.0
            beside = _LIST_LOADS if listed else 0
            streams = used * s.target.vector_bytes / _STREAMED_BYTES + (1.5 if across and not listed else 0.0)
            if plan.sweep[-1].stride == 1 or group_in * used * s.target.vector_bytes < _NEAR_BYTES // 2:
                streams = 0.0
            steps = [
                (each, max(tile_cycles(rates, n, used) * apart, streams, (n + used + beside) / rates.loads))
                for n, each in tiles
            ]
            products += times * sum(each * (cycles * group_in + 15) for each, cycles in steps)
            leaving = 1.5 if is_fusible(p) else 4.0
            if across:
                leaving = (16.0 if planes_collide(p, reading=False) else 8.0) + apart_cycles(p, _last_out(plan))
            if plan.phases > 1 and image_bytes(p)[1] > 8 << 20:
                leaving += 12.0  # squares of results, a line or two of many planes
            if plan.phases > 1 and plan.sweep[-1].out * plan.phases < 3 * lane:
                leaving += 24.0  # and of rows that are as short as these squares
            moves += times * width * used * leaving
    batch, far = (p.n or 0) * p.groups, 0.0
    if p.layout == "NHWC" and not _is_far(s, plan.sweep):
        far = far_cycles(p, rows * width * group_in * arith.bytes) * (_LISTED_LATE if listed else 1.0)
    rows *= plan.times * plan.phases
    moves = (moves * rows + 250.0 * box_count + far) * batch
    if p.layout == "NHWC" and p.groups > 1:  # of every pixel a line or two at a time
        moves += (p.n or 0) * max(0, sum(image_bytes(p)) - _MOST_NEAR) / _LINES_BYTES
    return {"products": products * rows * batch, "moves": moves}


def _apart(plan: _Plan, channels: int, arith: Arithmetic) -> float:
    """How much longer products take where each channel's pixels lie in lines of their own, a few of each in use."""
    lines_of_row = plan.box[-1] * plan.sweep[-1].stride * arith.bytes / 64 + 0.9
    touched = channels * math.prod(plan.box[:-1]) * lines_of_row * 64
    cut = 0.04 if plan.box[-1] < plan.sweep[-1].out else 0.0  # no line follows the last of a channel
    return 1.01 + cut + min(0.3, max(0.0, 0.6 * (touched - 1.4 * _INPUT_BYTES) / (1 << 20)))


# -- building ------------------------------------------------------------------------------------------


def build(r: Request) -> Program:
    """Program of a request: one step per sweep, and one for every box of outputs that meet only padding."""
    keep: list[Any] = []
    steps = []
    for sweep in sweeps(r.problem):
        steps += [fill_step(r, piece, keep) for piece in pieces(sweep)[1]]
    for family in _families(r.problem):
        steps += [_step(r, family, plan, keep) for plan in _expected(r.situation, r.arith, family)]
    return Program(tuple(step for step in steps if step.items), workspace(r.situation), tuple(keep))


def _step(given: Request, family: _Family, expected: _Plan, keep: list[Any]) -> Step:
    s, arith, p = given.situation, given.arith, given.problem
    r, axes = _with_folded(*_stacked(given, family[0]))
    plan = _fitting(r, axes, expected)
    pixels, listed = plan.pixels, _is_listed(family[0])
    name = f"pointwise {'pixels' if pixels else 'listed' if listed else 'channels'}"
    address = address_of(r, name, "driver", Driver, lambda k, name: driver(k, name, pixels=pixels, listed=listed))
    along = along_out(r, _last_out(plan), "p" if pixels else "c")
    fused = is_fusible(p) and along in ("cc", "pp")
    entries, pixel_bytes = _entries(p, family[0]), axes[-1].stride * r.x.spatial[-1]
    if plan.form == "square":
        entries = -(-entries // lanes(r.target, arith)) * lanes(r.target, arith)

    def most(vectors: int) -> int:
        return 1 if plan.form == "square" else points.most_rows(r.target, vectors, pixel_bytes)

    functions, of_sets = points.set_tables(
        r, plan.sets, entries, fused, "listed" if listed else plan.form, most, _places(given, family, plan.phases),
        _ahead(r, axes, plan) if _is_far(s, axes) else (0, 0), _written_ahead(s, plan),
    )
    key = ("point", plan.phases, *(tuple((a.taps, a.first_tap, a.tap_step) for a in sweep) for sweep in family))
    packed = points.packed_weights(
        r, key, lambda: _of_family(r, family), plan.sets, plan.form, (plan.times, plan.phases)
    )
    boxes_of = math.prod(-(-axis.out // b) for axis, b in zip(axes, plan.box, strict=True))
    items = (r.problem.n or 0) * p.groups * boxes_of
    move = Move(arith.accumulator, p.y, along, r.epilogue)
    parts = thread_parts(s.threads, items, plan.times * len(plan.sets), _REPEATED)
    values, items = _words(r, axes, plan, parts, move)
    values = replace(
        values, channels=_entries(p, family[0]),
        entries=words(_list(given, family[0], most(plan.width))) if listed else zeros(),
        point=replace(
            values.point, weights=packed, w_group=packed.nbytes // max(1, p.groups), sets=of_sets,
            functions=functions, fused=int(fused),
        ),
    )  # fmt: skip
    return Step(address, filled(values, keep), items)


def _of_family(r: Request, family: _Family) -> NDArray[Any]:
    """Weights (groups, m, entries) of the phases of a family, one after another; those of one are not copied."""
    parts = [_by_entry(r, sweep) for sweep in family]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _by_entry(r: Request, sweep: Sweep) -> NDArray[Any]:
    """Weights (groups, m, entries): of every channel all taps where pixels lie together, else for every tap all."""
    w = r.weights(sweep)
    return (w if r.problem.layout == "NCHW" else w.swapaxes(2, 3)).reshape(*w.shape[:2], -1)


def _list(r: Request, sweep: Sweep, tall: int) -> list[int]:
    """Where the entries of a window lie, and meanwhile those of the lines that entries to come have in a tile."""
    taps = [0]
    for axis, stride in zip(sweep, r.x.spatial, strict=True):
        taps = [at + t * axis.dilation * stride for at in taps for t in range(axis.taps)]
    channels = [c * r.x.c for c in range(r.problem.c // r.problem.groups)]
    pixel, run = sweep[-1].stride * r.x.spatial[-1], sweep[-1].taps
    if r.problem.layout == "NCHW":  # runs of a row of the kernel, whose pixels follow each other
        places = [c + at for c in channels for at in taps]
        later = [(i // run * run, i % run * 64) for i in range(len(places))]
    else:
        places = [c + at for at in taps for c in channels]
        later = [(i, min(i % 16, tall - 1) * pixel) for i in range(len(places))]
    ahead = min(_AHEAD[r.problem.layout], len(places))
    places += [tall * pixel + at for at in places]  # the next tile's
    return [word for i, (first, lines) in enumerate(later) for word in (places[i], places[first + ahead] + lines)]


def _last_out(plan: _Plan) -> Axis:
    """The last axis as results that leave together lie along it."""
    last = plan.sweep[-1]
    return replace(last, out_step=last.out_step // plan.phases)


def _fitting(r: Request, axes: Sweep, plan: _Plan) -> _Plan:
    """A plan, or one whose lanes are channels where the input does not lie together as packed tensors do."""
    step = {"pixel": r.x.spatial[-1] * axes[-1].stride, "square": r.x.c}.get(plan.form, r.x.itemsize)
    form = plan.form if step == r.x.itemsize else "channel"
    return _plan(r.situation, r.arith, axes, plan.times * plan.phases, form, plan.phases, plan.part)


def _places(r: Request, family: _Family, phases: int) -> list[list[tuple[int, int]]]:
    """Bytes from the first sweep's results to those of each, in result and residual, by groups of phases."""
    origin = family[0]

    def apart(o: Operand | None, sweep: Sweep) -> int:
        axes = zip(sweep, origin, () if o is None else o.spatial, strict=False)
        return sum((axis.first_out - first.first_out) * stride for axis, first, stride in axes)

    places = [(apart(r.y, sweep), apart(r.residual, sweep)) for sweep in family]
    return [places[first : first + phases] for first in range(0, len(places), phases)]


def fill_step(given: Request, sweep: Sweep, keep: list[Any]) -> Step:
    r, axes = _with_folded(given, sweep)
    plan = _plan(r.situation, r.arith, axes, 1, "channel", 1)
    address = address_of(r, "pointwise fill", "driver", Driver, fill_driver)
    move = Move(r.arith.accumulator, r.problem.y, along_out(r, axes[-1], "c"), r.epilogue)
    r_c = 0 if r.residual is None else r.residual.c
    of_sets = [
        OutputSet(
            first, outputs, weights=0, most=0, functions=0, edges=0, there=0, early=0, early_step=0,
            y=first * r.y.c, r=first * r_c,
        )
        for first, outputs in plan.sets
    ]  # fmt: skip
    values, items = _words(r, axes, plan, 1, move)
    return Step(address, filled(replace(values, point=replace(values.point, sets=of_sets)), keep), items)


def _stacked(r: Request, sweep: Sweep) -> tuple[Request, Sweep]:
    """The request with its batch as the outermost axis, if boxes may hold several images; no bits depend on it."""
    p = r.problem
    images = p.n or 0
    if images < 2 or (p.layout == "NCHW" and image_bytes(p)[0] > r.situation.near(_STACKED_BYTES)):
        return r, sweep

    def stack(o: Operand) -> Operand:
        return replace(o, n=0, spatial=(o.n, *o.spatial))

    situation = replace(r.situation, problem=replace(p, n=1))
    residual = None if r.residual is None else stack(r.residual)
    return (replace(r, situation=situation, x=stack(r.x), y=stack(r.y), residual=residual),
            (Axis(images, images, 1, 1, 1, 0), *sweep))  # fmt: skip


def _with_folded(r: Request, sweep: Sweep) -> tuple[Request, Sweep]:
    """The request and the sweep with axes that lie together in all operands as one."""
    operands = [r.x, r.y] + ([r.residual] if r.residual is not None else [])
    axes, folded = _folded(sweep, operands)
    return replace(r, x=folded[0], y=folded[1], residual=folded[2] if r.residual is not None else None), axes


def _words(r: Request, axes: Sweep, plan: _Plan, splits: int, move: Move) -> tuple[PointwiseWords, int]:
    """Words of both drivers, without sets of outputs, weights and entries, and how many items there are."""
    p, arith, lane = r.problem, r.arith, lanes(r.target, r.arith)
    held = [lines(axis, b) for axis, b in zip(axes, plan.box, strict=True)]
    common, items = boxed_words(r, axes, plan.box, held, splits)
    out_step, set_count = _last_out(plan).out_step, plan.times * len(plan.sets)
    block_bytes = plan.width * lane * arith.bytes
    point = PointWords(
        weights=zeros(), w_group=0, set_count=set_count, split_sets=-(-set_count // splits), sets=[],
        functions=[], outputs=p.m // p.groups, word_bytes=arith.bytes, result_bytes=r.y.itemsize, lanes=lane, fused=0,
        slots=-(-(24 * len(axes)) // 64) * 64, slot_pixel=arith.bytes if plan.pixels else block_bytes,
        slot_step=plan.phases * block_bytes, slot_channel=plan.box[-1] * arith.bytes if plan.pixels else arith.bytes,
        tables=epilogue_tables(r), move_out=move_out_address(r, move),
    )  # fmt: skip
    return PointwiseWords(
        common=common, channels=0, entries=zeros(), x_pixel=axes[-1].stride * r.x.spatial[-1], phases=plan.phases,
        y_pixel=out_step * r.y.spatial[-1],
        r_pixel=0 if r.residual is None else out_step * r.residual.spatial[-1], point=point,
    ), items  # fmt: skip
