"""Depthwise 3x3 over channels-last maps, dilated too, in blocks of rows by columns, straight on the tensors.

Lanes are channels.  A block's window is read once for all of its outputs; taps outside the input are left out row
by row and read as zeros column by column.  More axes than two are lists of entries.  Arrays whose channels do not
lie together are left to ``depthwise``, which adds in the same order.
Cost: the multiply-adds and the stream of input and result.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from numpy.typing import NDArray

from polyconv.algorithms import depthwise, depthwise_plan
from polyconv.algorithms.depthwise_driver import near_equal_parts
from polyconv.algorithms.depthwise_plan import parts_of_phases
from polyconv.algorithms.panel import Common, Driver, Frame, Item, axis_words, decode
from polyconv.algorithms.program import (
    Operand,
    Program,
    Request,
    Situation,
    Step,
    accumulator_arithmetic,
    address_of,
    boxed_words,
    epilogue_tables,
    near_equal,
)
from polyconv.algorithms.sweep import Axis, Lines, Sweep, sweeps
from polyconv.kernels.depthwise_block import BlockOfOutputs, BlockSettings, DepthwiseBlock, depthwise_block
from polyconv.kernels.isa import ARITHMETIC, lanes
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.objects import kernel
from polyconv.kernels.record import Functions, Link, Memory, Record, Word, filled, words
from polyconv.kernels.signature import Address
from polyconv.machine.profile import Rates
from polyconv.runtime.arrays import aligned

__all__ = [
    "OuterTaps", "applicable", "build", "channel_bytes", "cost", "lane_of", "outer_list", "outer_taps", "results_place",
    "workspace",
]  # fmt: skip

_MOST = 4
"""Rows and columns of the largest block: its sums, nine weights and an input fit 32 registers."""

_TAPS = 3
_MANY = 6
"""Vectors of channels from which on one more costs less than accesses across lines."""

_FAMILIES = ({1, 2}, {3}, {4})
"""Columns of the blocks that share a kernel: it compiles in less than 50 ms."""

_CACHE_BYTES = 1 << 20
_CHUNK_BYTES = 64 << 10
"""Input of a row of blocks that the channels of an item share, if all of input and result stay in the cache; what
streams through it does so in whole pixels."""

_AHEAD = 8
"""Pixels of the input ahead that are asked for if they come from memory and have no more than ``_PIXEL_BYTES``."""

_PIXEL_BYTES = 1 << 10


class OuterTaps(Record):
    """Taps of all axes but the last two: how many, their input offset along each axis, bytes of weights of one.

    The list of those that meet the input is at a place in the workspace.
    """

    count: Word
    offsets: Memory
    w_step: Word
    list_place: Word


class BlockWords(Record):
    """The driver's words.

    ``blocks`` stand by guard, rows and columns; ``lanes`` may be shifted, so that vectors begin where lines do.
    """

    common: Common
    channels: Word
    chunk_channels: Word
    lanes: Word
    shifts: Word
    outer: OuterTaps
    weights: Memory
    w_channel: Word
    phases_down: Word
    phases_along: Word
    blocks: Functions[BlockOfOutputs]
    settings: Link[BlockSettings]


def driver(k: Module, name: str) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = BlockWords.read(k, given.words)
        c = p.common
        item = decode(k, c, given.item, workspace)
        entries = workspace + p.outer.list_place
        taps = outer_list(k, c, p.outer, item, entries)
        down, along = c.axes - 2, c.axes - 1
        rows, columns = axis_words(c, down), axis_words(c, along)
        x = frame.x + (c.x_base + item.n * c.x_n)
        y, other = results_place(k, c, item, frame, c.y_base + item.n * c.y_n, c.r_base + item.n * c.r_n)
        parts = _parts(k, p, item, x, y)

        with near_equal_parts(k, item.extent(down), p.phases_down, _MOST) as (o, height):
            row = item.origin(down) + o * rows.stride
            bottom = row + ((height - 1) * rows.stride + (_TAPS - 1)) * p.phases_down
            top = (row >= 0) & (bottom < rows.inp)
            o = item.first(down) + o
            with near_equal_parts(k, item.extent(along), p.phases_along, _MOST) as (q, width):
                column = item.origin(along) + q * columns.stride
                right = column + ((width - 1) * columns.stride + (_TAPS - 1)) * p.phases_along
                inside = top & (column >= 0) & (right < columns.inp)
                q = item.first(along) + q
                here = x + row * rows.x_stride + column * columns.x_stride
                there = y + o * rows.y_stride + q * columns.y_stride
                beside = other + o * rows.r_stride + q * columns.r_stride
                size = (height - 1) * _MOST + width - 1
                guarded = size + _MOST * _MOST
                open_ = k.select(inside, size, guarded)
                for first, count, masked in parts:
                    with k.when(count > 0):
                        k.call(p.blocks.at(guarded if masked else open_), BlockOfOutputs(
                            p.settings, here + first * c.x_c, entries, taps, p.weights + first * p.w_channel,
                            there + first * c.y_c, beside + first * c.r_c, first, count, count, row, column,
                        ))  # fmt: skip


def _parts(k: Module, p: BlockWords, item: Item, x: Buffer, y: Buffer) -> list[tuple[Value, Value, bool]]:
    """The item's channels as runs of whole vectors and, masked, of part of one: first and number of each.

    Where channels are many and every pixel of input and result begins at the same place in a cache line, vectors
    begin where lines do: an access across lines takes twice as long.
    """
    c = p.common
    line = p.lanes * c.y_c - 1
    alike = ((k.address(x) ^ k.address(y)) & line).equals(0)
    lead = k.select(alike, (-k.address(y) & line) // c.y_c * p.shifts, 0)
    shift = k.select(lead > 0, p.lanes - lead, 0)
    first = k.maximum(item.g * p.chunk_channels - shift, 0)
    end = item.g * p.chunk_channels + p.chunk_channels - shift
    end = k.select(item.g + 1 < c.groups, end, p.channels)
    lead = k.select(first > 0, k.constant(INT, 0), k.minimum(lead, end))
    rest = end - first - lead
    tail = rest % p.lanes
    return [(first, lead, True), (first + lead, rest - tail, False), (end - tail, tail, True)]


def results_place(k: Module, c: Common, item: Item, frame: Frame, y: Value, other: Value) -> tuple[Buffer, Buffer]:
    """Where results and residuals of an item begin, from these offsets on, along all axes but the last two."""
    with k.loop(0, c.axes - 2, carry=[y, other]) as axis:
        record = axis_words(c, axis.index)
        o = item.first(axis.index)
        axis.next(axis.values[0] + o * record.y_stride, axis.values[1] + o * record.r_stride)
    return frame.y + axis.results[0], frame.residual + axis.results[1]


def outer_list(k: Module, c: Common, taps: OuterTaps, item: Item, entries: Buffer) -> Value:
    """Write the list of outer taps that meet the input; their number."""
    zero = k.constant(INT, 0)
    with k.loop(0, taps.count, carry=[zero]) as tap:
        (count,) = tap.values
        with k.loop(0, c.axes - 2, carry=[zero, k.constant(INT, 1)]) as axis:
            offset, inside = axis.values
            record = axis_words(c, axis.index)
            position = item.origin(axis.index) + k.word(taps.offsets, tap.index * (c.axes - 2) + axis.index)
            within = k.cast("zext", position.below(record.inp), INT)
            axis.next(offset + position * record.x_stride, inside & within)
        offset, inside = axis.results
        place = entries + count * 16
        k.store(offset, place, 8)
        k.store(tap.index * taps.w_step, place + 8, 8)
        tap.next(count + inside)
    found: Value = tap.results[0]
    return found


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    reason = depthwise_plan.applicable(s)
    if reason is not None:
        return reason
    p = s.problem
    if p.layout != "NHWC":
        return "computes channels-last maps"
    if p.m != p.c:
        return "computes one output of a channel"
    if not s.finite:
        return "weights hold Inf or NaN, which would meet the columns of the padding"
    for sweep in sweeps(p):
        if len(sweep) < 2 or not all(_fits(axis) for axis in sweep[-2:]):
            return "computes 3x3 taps, dilated or by strides of two, every output with one inside"
    return None


def _fits(axis: Axis) -> bool:
    """Whether blocks take an axis: three taps, no stride between those far apart, and every output meets the input."""
    reach = (_TAPS - 1) * axis.dilation
    over = (axis.out - 1) * axis.stride - axis.pad + reach - (axis.inp - 1)
    strided = axis.stride == 1 or (axis.stride == 2 and axis.dilation == 1)
    return axis.taps == _TAPS and strided and axis.pad <= reach and over <= reach


def workspace(s: Situation) -> int:
    """Bytes a thread needs: the item's box and a list of outer taps."""
    return depthwise_plan.list_place(s.problem.rank) + 16 * (math.prod(s.problem.k[:-2]) + 1)


def channel_bytes(s: Situation, sweep: Sweep) -> int:
    """Bytes of a channel of input and result."""
    p = s.problem
    read, written = math.prod(axis.inp for axis in sweep), math.prod(axis.out for axis in sweep)
    return read * p.x_dtype.itemsize + written * p.y_dtype.itemsize


def _asks(s: Situation, sweep: Sweep) -> bool:
    """Whether blocks ask for memory ahead."""
    p = s.problem
    return p.c * channel_bytes(s, sweep) > s.near(depthwise_plan.FAR_BYTES) and p.c * p.x_dtype.itemsize <= _PIXEL_BYTES


def _chunk(s: Situation, sweep: Sweep) -> int:
    """Channels of an item."""
    p, lane = s.problem, lane_of(s)
    size = p.x_dtype.itemsize
    if p.c * channel_bytes(s, sweep) > s.near(_CACHE_BYTES):
        return p.c
    held = sweep[-1].inp * size * lane * (_MOST * sweep[-2].stride + _TAPS)
    return min(p.c, lane * max(4, s.near(_CHUNK_BYTES) // held))


def lane_of(s: Situation) -> int:
    """Lanes of a vector of sums."""
    return lanes(s.target, ARITHMETIC[accumulator_arithmetic(s)])


def rates_of(s: Situation) -> Rates:
    """What the machine does with vectors of sums."""
    return s.rates(ARITHMETIC[accumulator_arithmetic(s)])


def cost(s: Situation) -> dict[str, float]:
    """Cycles: multiply-adds and calls of blocks; the stream of input and result, which hardly overlaps with them."""
    p, rates = s.problem, rates_of(s)
    cycles = streamed = 0.0
    for sweep in sweeps(p):
        outer, rows, columns = sweep[:-2], sweep[-2], sweep[-1]
        lines = math.prod(axis.out for axis in outer)
        blocks = lines * math.prod(parts_of_phases(axis.out, axis.dilation, _MOST) for axis in (rows, columns))
        vectors, entries = -(-p.c // lane_of(s)), math.prod(axis.taps for axis in outer)
        cycles += blocks * (50 + 12 * vectors + (p.c % lane_of(s) > 0) * 30)
        cycles += lines * rows.out * columns.out * vectors * entries * _TAPS * _TAPS / rates.multiply_adds
        streamed += p.c * channel_bytes(s, sweep)
    streams, batch = 0.025 * streamed, p.n or 0
    # the same sums by fewer loads: measured, never slower than there
    share = min(1.0, 0.95 * sum(depthwise_plan.cost(s).values()) / max(1.0, (cycles + streams) * batch))
    return {"products": cycles * batch * share, "streams": streams * batch * share}


def build(r: Request) -> Program:
    """Program of a request: one step per sweep."""
    lying = [o.c == o.itemsize for o in (r.x, r.y, r.residual) if o is not None]
    if not all(lying):
        return depthwise.build(r)
    keep: list[Any] = []
    address = address_of(r, "depthwise blocks", "blocks", Driver, driver)
    steps = [_step(r, sweep, address, keep) for sweep in sweeps(r.problem)]
    return Program(tuple(step for step in steps if step.items), workspace(r.situation), tuple(keep))


def _step(r: Request, sweep: Sweep, address: Address[Driver], keep: list[Any]) -> Step:
    s, p, arith = r.situation, r.problem, r.arith
    lane, chunk, outer = lane_of(s), _chunk(s, sweep), sweep[:-2]
    box = (*(1 for _ in outer), max(1, sweep[-2].out), max(1, sweep[-1].out))
    if s.threads > 1:
        items = (p.n or 0) * -(-p.c // chunk) * math.prod(axis.out for axis in outer)
        parts = -(-4 * s.threads // max(1, items))
        box = (*box[:-2], max(_MOST, -(-box[-2] // parts)), box[-1])
    taps = math.prod(axis.taps for axis in outer) * _TAPS * _TAPS
    of_sweep = tuple((a.taps, a.first_tap, a.tap_step) for a in sweep)
    weights = r.packed(
        ("depthwise block", arith.name, lane, of_sweep), lambda: _packed_weights(r.weights(sweep), taps, lane)
    )
    w_tap = weights.shape[1] * arith.bytes
    common, items = boxed_words(r, sweep, box, [Lines((), (), ())] * len(sweep), block_groups=chunk)
    values = BlockWords(
        common=common, channels=p.c, chunk_channels=chunk, lanes=lane, shifts=_shifts(r, lane),
        outer=outer_taps(sweep, _TAPS * _TAPS * w_tap), weights=weights, w_channel=arith.bytes,
        phases_down=sweep[-2].dilation, phases_along=sweep[-1].dilation, blocks=_block_addresses(r, sweep, box),
        settings=_settings(r, sweep, lane, w_tap),
    )  # fmt: skip
    return Step(address, filled(values, keep), items)


def outer_taps(sweep: Sweep, w_step: int) -> OuterTaps:
    """Words of the taps of all axes but the last two, each of which has so many bytes of weights."""
    offsets: list[list[int]] = [[]]
    for axis in sweep[:-2]:
        offsets = [[*o, t * axis.dilation] for o in offsets for t in range(axis.taps)]
    places = words([v for o in offsets for v in o])
    return OuterTaps(len(offsets), places, w_step, depthwise_plan.list_place(len(sweep)))


def _settings(r: Request, sweep: Sweep, lane: int, w_tap: int) -> BlockSettings:
    """What the blocks of a step share."""
    rows, columns = sweep[-2:]
    residual = r.residual or Operand(0, 0, (0,) * len(sweep), 0, 1)
    down, along = rows.dilation, columns.dilation  # outputs so far apart are neighbours in a block
    return BlockSettings(
        x_row=r.x.spatial[-2] * down, x_column=r.x.spatial[-1] * along, x_pixel=r.x.spatial[-1],
        unit_row=down, unit_column=along, y_row=r.y.spatial[-2] * rows.out_step * down,
        y_column=r.y.spatial[-1] * columns.out_step * along, r_row=residual.spatial[-2] * rows.out_step * down,
        r_column=residual.spatial[-1] * columns.out_step * along, x_channel=lane * r.x.c,
        w_channel=lane * r.arith.bytes, w_tap=w_tap, y_channel=lane * r.y.c, r_channel=lane * residual.c,
        x_ahead=_AHEAD * r.x.spatial[-1], y_ahead=_AHEAD // columns.stride * r.y.spatial[-1],
        height=rows.inp, width=columns.inp, tables=epilogue_tables(r),
    )  # fmt: skip


def _block_addresses(r: Request, sweep: Sweep, box: tuple[int, ...]) -> list[Address[BlockOfOutputs] | None]:
    """Addresses of the blocks that a step uses, by guard, rows and columns; None for the others."""
    p, lane = r.problem, lane_of(r.situation)
    stride = sweep[-2].stride, sweep[-1].stride
    spec = DepthwiseBlock(p.x, p.y, r.arith.accumulator, r.epilogue, (_TAPS, _TAPS), stride, _asks(r.situation, sweep))
    table: list[Address[BlockOfOutputs] | None] = [None] * (2 * _MOST * _MOST)
    for guarded, rows, few in itertools.product((False, True), _sizes(sweep[-2], box[-2]), _FAMILIES):
        if not few & _sizes(sweep[-1], box[-1]):
            continue
        names = {f"block{columns}": columns for columns in sorted(few)}

        def blocks(
            k: Module, rows: int = rows, names: dict[str, int] = names, guarded: bool = guarded
        ) -> None:
            for name, columns in names.items():
                depthwise_block(k, name, spec, lane, rows, columns, guarded=guarded)

        label = f"{spec} {lane} {rows} {' '.join(names)}{' guarded' * guarded}"
        found = kernel(label, dict.fromkeys(names, BlockOfOutputs), blocks, r.target, check=r.check)
        for name, columns in names.items():
            table[(guarded * _MOST + rows - 1) * _MOST + columns - 1] = found[name]
    return table


def _sizes(axis: Axis, box: int) -> set[int]:
    """Parts that extents are cut into: those of every phase of whole boxes and of the last, and their like.

    Either both of 1 and 2 or none, and so 3 and 4: other extents then rarely compile anything.
    """
    extents = (min(box, axis.out), axis.out % box)
    outputs = {n for e in extents for n in (e // axis.dilation, -(-e // axis.dilation))}
    found = {size for n in outputs for _, size in near_equal(n, _MOST)}
    return {size for alike in ({1, 2}, {3, 4}) if alike & found for size in alike}


def _shifts(r: Request, lane: int) -> int:
    """Whether vectors may begin where lines do, at the cost of one more: 1 or 0."""
    steps = [*r.x.spatial, *r.y.spatial, r.x.n, r.y.n]
    return int(
        r.problem.c >= _MANY * lane and r.x.c == r.y.c and all(step % (lane * r.y.itemsize) == 0 for step in steps)
    )


def _packed_weights(w: NDArray[Any], taps: int, lane: int) -> NDArray[Any]:
    """Weights (groups, 1, 1, taps) as rows of channels, tap after tap, an odd number of vectors apart."""
    channels = w.shape[0]
    packed = aligned((taps + 1, (-(-channels // lane) | 1) * lane), w.dtype)  # the last vector may reach beyond a row
    packed[:taps, :channels] = w.reshape(channels, taps).T
    return packed
