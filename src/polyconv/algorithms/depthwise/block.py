"""``depthwise_block``: 3x3 taps of channels-last maps, dilated too, in blocks of rows by columns, in place.

Lanes are channels.  A block's window is read once for all of its outputs; taps outside the input are left out row
by row and read as zeros column by column.  Arrays whose channels do not lie together are left to ``slide``, which adds
in the same order.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import itertools
from typing import Any

from numpy.typing import NDArray

from polyconv.algorithms.depthwise.maps import TAPS, map_box, map_refusal, map_taps, outer_extent
from polyconv.algorithms.depthwise.parts import near_equal_parts, number_of_parts, sizes_of_parts, tiles_by_size
from polyconv.algorithms.depthwise.requests import StepOf, item_words, key_of, program_of
from polyconv.algorithms.depthwise.situations import (
    DepthwiseForm,
    channel_bytes,
    far_bytes,
    lane_of,
    lies_together,
    rates_of,
)
from polyconv.algorithms.depthwise.slide import SlideForm
from polyconv.algorithms.depthwise.taps import TapWords, row_place, workspace_of, write_list
from polyconv.algorithms.form import Forms
from polyconv.dataclass import dataclass
from polyconv.kernels.depthwise_block import BlockOfOutputs, BlockSettings, DepthwiseBlock, depthwise_block
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.record import Functions, Link, Memory, Record, Word
from polyconv.kernels.signature import Address
from polyconv.lowering.panel import Common, Driver, axis_words, decode
from polyconv.lowering.program import Program, Request, address_of, epilogue_tables, residual_of
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Axis, Sweep, sweeps
from polyconv.runtime.arrays import aligned

__all__ = ["forms"]

_MOST = 4
"""Rows and columns of the largest block: its sums, nine weights and an input fit 32 registers."""

_MANY = 6
"""Vectors of channels from which on one more costs less than accesses across lines."""

_CHUNK = 1 / 16
"""Share of the second-level cache for the input of a row of blocks that the channels of an item share, if all of input
and result stay in the cache; what streams through it does so in whole pixels."""

_AHEAD = 8
"""Pixels of the input ahead that are asked for if they come from memory and have no more than ``_PIXEL_BYTES``."""

_PIXEL_BYTES = 1 << 10


class BlockWords(Record):
    """The driver's words.

    ``blocks`` stand by guard, rows and columns; ``lanes`` may be shifted, so that vectors begin where lines do.
    """

    common: Common
    taps: TapWords
    channels: Word
    chunk_channels: Word
    lanes: Word
    shifts: Word
    weights: Memory
    w_channel: Word
    phases_down: Word
    phases_along: Word
    blocks: Functions[BlockOfOutputs]
    settings: Link[BlockSettings]


def driver(k: Module, name: str) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module."""
    with k.function(name, Driver) as given:
        p = BlockWords.read(k, given.words)
        c, zero = p.common, k.constant(INT, 0)
        item = decode(k, c, given.item, given.workspace)
        entries = given.workspace + p.taps.place
        write_list(k, c, p.taps, item, entries, zero)
        first_channel = item.g * p.chunk_channels
        down, along = c.axes - 2, c.axes - 1
        rows, columns = axis_words(c, down), axis_words(c, along)
        x, y, other = row_place(k, c, down, item, given.frame, zero, zero)
        x = x + item.origin(along) * columns.x_stride
        parts = _parts(k, p, first_channel, item.g + 1 < c.groups, x, y)

        with near_equal_parts(k, item.extent(down), p.phases_down, _MOST) as (o, height):
            row = item.origin(down) + o * rows.stride
            bottom = row + ((height - 1) * rows.stride + (TAPS - 1)) * p.phases_down
            top = (row >= 0) & (bottom < rows.inp)
            with near_equal_parts(k, item.extent(along), p.phases_along, _MOST) as (q, width):
                column = item.origin(along) + q * columns.stride
                right = column + ((width - 1) * columns.stride + (TAPS - 1)) * p.phases_along
                inside = top & (column >= 0) & (right < columns.inp)
                here = x + o * rows.stride * rows.x_stride + q * columns.stride * columns.x_stride
                from_first = item.first(along) + q
                there = y + o * rows.y_stride + from_first * columns.y_stride
                beside = other + o * rows.r_stride + from_first * columns.r_stride
                size = (height - 1) * _MOST + width - 1
                guarded = size + _MOST * _MOST
                open_ = k.select(inside, size, guarded)
                for first, count, masked in parts:
                    with k.when(count > 0):
                        k.call(p.blocks.at(guarded if masked else open_), BlockOfOutputs(
                            p.settings, here + first * c.x_c, entries, p.weights + first * p.w_channel,
                            there + first * c.y_c, beside + first * c.r_c, first, count, count, row, column,
                        ))  # fmt: skip


def _parts(k: Module, p: BlockWords, begin: Value, has_next: Value, x: Buffer, y: Buffer
           ) -> list[tuple[Value, Value, bool]]:  # fmt: skip
    """The item's channels as runs of whole vectors and, masked, of part of one: first and number of each.

    Where channels are many and every pixel of input and result begins at the same place in a cache line, vectors
    begin where lines do: an access across lines takes twice as long.
    """
    line = p.lanes * p.common.y_c - 1
    alike = ((k.address(x) ^ k.address(y)) & line).equals(0)
    lead = k.select(alike, (-k.address(y) & line) // p.common.y_c * p.shifts, 0)
    shift = k.select(lead > 0, p.lanes - lead, 0)
    first = k.maximum(begin - shift, 0)
    end = k.select(has_next, begin + p.chunk_channels - shift, p.channels)
    lead = k.select(first > 0, k.constant(INT, 0), k.minimum(lead, end))
    rest = end - first - lead
    tail = rest % p.lanes
    return [(first, lead, True), (first + lead, rest - tail, False), (end - tail, tail, True)]


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    reason = map_refusal(s, "NHWC", _meets_input, ", every output with one inside", several=False)
    return reason or (BlockForm(s, tuple(_cut_of(s, sweep) for sweep in sweeps(s.problem))),)


def _meets_input(axis: Axis) -> bool:
    """Whether every output of an axis has a tap inside the input."""
    reach = (TAPS - 1) * axis.dilation
    over = (axis.out - 1) * axis.stride - axis.pad + reach - (axis.inp - 1)
    return axis.pad <= reach and over <= reach


@dataclass(frozen=True, slots=True)
class Cut:
    """How a sweep is cut: into items of ``chunk`` channels by a ``box`` of outputs.

    Blocks ask for memory ``ahead`` or not.
    """

    sweep: Sweep
    chunk: int
    box: tuple[int, ...]
    ahead: bool


def _cut_of(s: Situation, sweep: Sweep) -> Cut:
    p, lane = s.problem, lane_of(s)
    total, size = p.c * channel_bytes(s, sweep), p.x_dtype.itemsize
    chunk = p.c
    if total <= s.cache("l2", 1):
        held = sweep[-1].inp * size * lane * (_MOST * sweep[-2].stride + TAPS)
        chunk = min(p.c, lane * max(4, s.cache("l2", _CHUNK) // held))
    ahead = total > far_bytes(s) and p.c * size <= _PIXEL_BYTES
    return Cut(sweep, chunk, map_box(s, sweep, chunk, _MOST), ahead)


@dataclass(frozen=True, slots=True)
class BlockForm(DepthwiseForm):
    """Maps, cut into blocks of rows by columns."""

    cuts: tuple[Cut, ...]

    @property
    def workspace(self) -> int:
        """Bytes a thread needs: the item's box and a list of outer taps."""
        return workspace_of(self.s)

    def cost(self) -> dict[str, float]:
        """Cycles: multiply-adds and calls of blocks; the stream of input and result, which hardly overlaps."""
        s, p, rates, lane = self.s, self.s.problem, rates_of(self.s), lane_of(self.s)
        cycles = streamed = 0.0
        for cut in self.cuts:
            rows, columns = cut.sweep[-2:]
            lines, entries = outer_extent(cut.sweep)
            blocks = lines
            for axis in (rows, columns):
                blocks *= number_of_parts(axis.out, axis.dilation, _MOST)
            vectors = -(-p.c // lane)
            cycles += blocks * (50 + 12 * vectors + (p.c % lane > 0) * 30)
            cycles += lines * rows.out * columns.out * vectors * entries * TAPS * TAPS / rates.multiply_adds
            streamed += p.c * channel_bytes(s, cut.sweep)
        streams, batch = 0.025 * streamed, p.n or 0
        # the same sums by fewer loads: measured, never slower than there
        share = min(1.0, 0.95 * sum(SlideForm.of(s).cost().values()) / max(1.0, (cycles + streams) * batch))
        return {"products": cycles * batch * share, "streams": streams * batch * share}

    def choices(self) -> dict[str, object]:
        """How maps are cut."""
        cut, tile = self.cuts[0], f"up to {_MOST} x {_MOST} outputs by a vector"
        return {"tile": tile, "box": cut.box, "channels of an item": cut.chunk}

    def build(self, r: Request) -> Program:
        """Program of a request: one step per sweep."""
        if not lies_together(r, "channels"):
            return SlideForm.usual(self.s).build(r)
        return program_of(self, (_step_of(r, cut) for cut in self.cuts))


def _step_of(r: Request, cut: Cut) -> StepOf:
    """Driver, words and number of items of a sweep."""
    sweep, arith, lane = cut.sweep, r.arith, lane_of(r.situation)
    weights = r.packed(key_of("depthwise block", r, sweep, lane), lambda: _packed_weights(r.weights(sweep), lane))
    w_tap = weights.shape[1] * arith.bytes
    common, items = item_words(r, sweep, cut.box, cut.chunk)
    return address_of(r, "depthwise blocks", "blocks", Driver, driver), BlockWords(
        common=common, taps=map_taps(sweep, w_tap), channels=r.problem.c, chunk_channels=cut.chunk, lanes=lane,
        shifts=_shifts(r, lane), weights=weights, w_channel=arith.bytes, phases_down=sweep[-2].dilation,
        phases_along=sweep[-1].dilation, blocks=_block_addresses(r, cut), settings=_settings(r, sweep, lane, w_tap),
    ), items  # fmt: skip


def _settings(r: Request, sweep: Sweep, lane: int, w_tap: int) -> BlockSettings:
    """What the blocks of a step share."""
    (rows, columns), residual = sweep[-2:], residual_of(r)
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


def _block_addresses(r: Request, cut: Cut) -> list[Address[BlockOfOutputs] | None]:
    """Addresses of the blocks that a step uses, by guard, rows and columns; None for the others."""
    p, lane, (rows, columns) = r.problem, lane_of(r.situation), cut.sweep[-2:]
    spec = DepthwiseBlock(
        p.x, p.y, r.arith.accumulator, r.epilogue, (TAPS, TAPS), (rows.stride, columns.stride), cut.ahead
    )
    heights, widths = (_alike(sizes_of_parts(axis, b, axis.dilation, _MOST)) for axis, b in zip(
        (rows, columns), cut.box[-2:], strict=True,
    ))  # fmt: skip
    table: list[Address[BlockOfOutputs] | None] = []
    for guarded, height in itertools.product((False, True), range(1, _MOST + 1)):

        def block(k: Module, name: str, width: int, height: int = height, guarded: bool = guarded) -> None:
            depthwise_block(k, name, spec, lane, height, width, guarded=guarded)

        some = widths if height in heights else set()
        table += tiles_by_size(
            r, f"{spec} {lane} {height}", BlockOfOutputs, _MOST, some, block, mark=" guarded" * guarded
        )
    return table


def _alike(sizes: set[int]) -> set[int]:
    """Sizes with their like, either both of 1 and 2 or none, and so 3 and 4: other extents then rarely compile more."""
    return {size for alike in ({1, 2}, {3, 4}) if alike & sizes for size in alike}


def _shifts(r: Request, lane: int) -> int:
    """Whether vectors may begin where lines do, at the cost of one more: 1 or 0."""
    steps = [*r.x.spatial, *r.y.spatial, r.x.n, r.y.n]
    return int(
        r.problem.c >= _MANY * lane and r.x.c == r.y.c and all(step % (lane * r.y.itemsize) == 0 for step in steps)
    )


def _packed_weights(w: NDArray[Any], lane: int) -> NDArray[Any]:
    """Weights (groups, 1, 1, taps) as rows of channels, tap after tap, an odd number of vectors apart."""
    channels, taps = w.shape[0], w.shape[3]
    packed = aligned((taps + 1, (-(-channels // lane) | 1) * lane), w.dtype)  # the last vector may reach beyond a row
    packed[:taps, :channels] = w.reshape(channels, taps).T
    return packed
