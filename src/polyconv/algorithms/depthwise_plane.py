"""Depthwise 3x3 over channels-first maps, dilated and strided too, straight on the tensors.

Lanes are pixels of one channel.  A tile is some rows of outputs of all columns, strip after strip, for every channel
of an item; masks of loads and stores are tables, so that padding and narrow ends cost no code.  More axes than two
are lists of entries.  Arrays whose pixels do not lie together are left to ``depthwise``.
Cost: the multiply-adds, and the stream of input and result.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms import depthwise, depthwise_plan
from polyconv.algorithms.depthwise_block import (
    OuterTaps,
    channel_bytes,
    lane_of,
    outer_list,
    outer_taps,
    rates_of,
    results_place,
    workspace,
)
from polyconv.algorithms.depthwise_driver import near_equal_parts
from polyconv.algorithms.depthwise_plan import parts_of_phases
from polyconv.algorithms.panel import Common, Driver, axis_words, decode
from polyconv.algorithms.program import (
    Operand,
    Program,
    Request,
    Situation,
    Step,
    address_of,
    boxed_words,
    epilogue_tables,
    near_equal,
)
from polyconv.algorithms.sweep import Axis, Lines, Sweep, bands, sweeps
from polyconv.kernels.depthwise_plane import (
    DepthwisePlane,
    FirstStrip,
    LoadWords,
    PlaneSettings,
    RowsOfOutputs,
    StripWords,
    depthwise_plane,
    loads,
)
from polyconv.kernels.language import Buffer, Module, Value
from polyconv.kernels.objects import kernel
from polyconv.kernels.record import Functions, Link, Memory, Record, Table, Word, filled, words, words_of
from polyconv.kernels.signature import Address
from polyconv.problem.problem import Problem
from polyconv.runtime.arrays import aligned

__all__ = ["applicable", "build", "cost", "workspace"]

_MOST = {1: 14, 2: 8}
"""Rows of the largest tile by stride of the lanes: sums, nine weights and inputs fit 32 registers."""

_FEW = 8
"""Outputs of a phase of the rows from which on they share inputs in any case."""

_MOST_ALONE = 18
"""Where taps load their own inputs weights take one register."""

_TOGETHER = 4
"""Heights of tiles that are compiled together: images of other sizes soon need the next one."""

_TAPS = 3
_CHUNK_BYTES = 128 << 10
"""Input and result of the channels of an item."""

_ROW = {1: 4.5, 2: 8.4}
"""Cycles of a vector of outputs, by stride of the lanes: the multiply-adds, or the loads."""

_SHARE = 0.6
"""Of the cycles of a channel where two share vectors."""

_CACHE_BYTES = 1 << 20
"""Input and result beyond this are asked for ahead."""

_PLANE_BYTES = 3 << 10
"""Input and result of a channel beyond which it is finished before the next one, so that what is asked for is next."""


class BandWords(Record):
    """Rows that have the same taps inside the input, and which entries those are."""

    first: Word
    rows: Word
    entry: Word
    entries: Word


class PlaneWords(Record):
    """The driver's words.

    So many channels ``together`` are computed by a tile, of which there are some by their rows.  Where rows stand alone
    they come in ``bands``, of ``entries`` that are taps.
    """

    common: Common
    channels: Word
    chunk_channels: Word
    together: Word
    outer: OuterTaps
    weights: Memory
    w_channel: Word
    phases: Word
    most: Word
    tiles: Functions[RowsOfOutputs]
    settings: Link[PlaneSettings]
    band_count: Word
    bands: Table[BandWords]
    entries: Memory


def driver(k: Module, name: str, alone: bool) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module; rows share inputs or stand ``alone``."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = PlaneWords.read(k, given.words)
        c = p.common
        item = decode(k, c, given.item, workspace)
        down = c.axes - 2
        rows = axis_words(c, down)
        begin = item.g * p.chunk_channels
        end = k.minimum(begin + p.chunk_channels, p.channels)
        x = frame.x + (c.x_base + item.n * c.x_n)
        y, other = results_place(k, c, item, frame, c.y_base + item.n * c.y_n, c.r_base + item.n * c.r_n)

        def call(first: Value, o: Value, height: Value, entries: Buffer, taps: Value) -> None:
            row = item.origin(down) + o * rows.stride
            o = item.first(down) + o
            k.call(p.tiles.at(height - 1), RowsOfOutputs(
                p.settings,
                x + first * c.x_c + row * rows.x_stride, entries, taps, p.weights + first * p.w_channel,
                y + first * c.y_c + o * rows.y_stride, other + first * c.r_c + o * rows.r_stride,
                first, k.minimum(p.together, end - first), row,
            ))  # fmt: skip

        if alone:
            with k.loop(begin, end, p.together) as channel, k.loop(0, p.band_count) as number:
                band = p.bands.at(number.index)
                call(channel.index, band.first, band.rows, p.entries + band.entry * 16, band.entries)
            return
        entries = workspace + p.outer.list_place
        taps = outer_list(k, c, p.outer, item, entries)
        with (
            k.loop(begin, end, p.together) as channel,
            near_equal_parts(k, item.extent(down), p.phases, p.most) as (o, height),
        ):
            call(channel.index, o, height, entries, taps)


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    reason = depthwise_plan.applicable(s)
    if reason is not None:
        return reason
    p = s.problem
    if p.layout != "NCHW":
        return "computes channels-first maps"
    if not s.finite:
        return "weights hold Inf or NaN, which would meet the columns of the padding"
    for sweep in sweeps(p):
        if len(sweep) < 2 or not all(_fits(axis) for axis in sweep[-2:]):
            return "computes 3x3 taps, dilated or by strides of two"
    return None


def _fits(axis: Axis) -> bool:
    """Whether tiles take an axis: three taps, no stride between those far apart, results that lie together."""
    strided = axis.stride == 1 or (axis.stride == 2 and axis.dilation == 1)
    return axis.taps == _TAPS and strided and axis.out_step == 1


def _ahead(s: Situation, sweep: Sweep) -> str:
    """What tiles ask for ahead: rows where phases of the rows come one after the other, else lines in order."""
    plane = channel_bytes(s, sweep)
    if s.problem.c * plane <= s.near(_CACHE_BYTES) or _alone(s, sweep):
        return ""
    if sweep[-2].dilation == 1:
        return "lines"
    return "rows" if plane > s.near(_CHUNK_BYTES) // 2 else ""


def _chunk(s: Situation, sweep: Sweep) -> int:
    """Channels of an item."""
    channels = _channels(s.problem, sweep[-1], lane_of(s))
    held = s.near(_CHUNK_BYTES) // max(1, channels * channel_bytes(s, sweep))
    return min(s.problem.c, channels * max(1, held))


def cost(s: Situation) -> dict[str, float]:
    """Cycles: multiply-adds and starts of tiles; the stream of input and result, which hardly overlaps with them."""
    p, lane, slower = s.problem, lane_of(s), rates_of(s).slower
    cycles = streamed = 0.0
    for sweep in sweeps(p):
        lines = math.prod(axis.out for axis in sweep[:-2]) * p.c
        share = 1.0 if _channels(p, sweep[-1], lane) == 1 else _SHARE
        cycles += lines * share * min(_together_cycles(sweep, lane, slower), _alone_cycles(sweep, lane, slower))
        streamed += p.c * channel_bytes(s, sweep)
    again = streamed > depthwise_plan.FAR_BYTES and p.rank > 2  # planes come from memory for every tap of outer axes
    streams = streamed * (0.012 if streamed <= _CACHE_BYTES else 0.2 if again else 0.027)
    batch = (p.n or 0) * (p.m // p.groups)
    return {"products": cycles * batch, "streams": streams * batch}


def _alone(s: Situation, sweep: Sweep) -> bool:
    """Whether rows of outputs stand alone: taps are so far apart that few rows would share inputs."""
    lane, slower = lane_of(s), rates_of(s).slower
    return _alone_cycles(sweep, lane, slower) < _together_cycles(sweep, lane, slower)


def _together_cycles(sweep: Sweep, lane: int, slower: float) -> float:
    """Cycles of a channel of a map, all outer taps."""
    rows, columns = sweep[-2:]
    strips = -(-columns.out // lane) * math.prod(axis.taps for axis in sweep[:-2])
    tiles = parts_of_phases(rows.out, rows.dilation, _MOST[columns.stride])
    return tiles * (20 + 10 * strips) + rows.out * strips * _ROW[columns.stride] * slower


@lru_cache(256)
def _alone_cycles(sweep: Sweep, lane: int, slower: float) -> float:
    """Cycles of a channel whose taps load their own inputs; infinite where that cannot be."""
    if len(sweep) > 2 or not _apart(sweep[1]) or sweep[0].out > _FEW * sweep[0].dilation:
        return math.inf
    rows, columns = sweep
    taps = sum(
        column + tap * columns.dilation + lane > 0 and column + tap * columns.dilation < columns.inp
        for column in range(-columns.pad, columns.out - columns.pad, lane)
        for tap in range(_TAPS)
    )
    strips = -(-columns.out // lane)
    return sum(20 + 10 * strips + (1.1 * n * slower + 5) * band_taps * taps for _, n, _, band_taps in _bands(rows))


def _bands(axis: Axis) -> list[tuple[int, int, int, int]]:
    """Rows in the words of ``BandWords``, for entries that are the taps of the axis."""
    ((ranges, of_output),) = bands((axis,), axis.out + 1)
    found, o = [], 0
    for kind, alike in itertools.groupby(of_output):
        taps, height = ranges[kind], len(list(alike))
        found += [(o + first, n, taps.start, len(taps)) for first, n in near_equal(height, _MOST_ALONE)]
        o += height
    return found


def build(r: Request) -> Program:
    """Program of a request: one step per sweep."""
    lying = [o.spatial[-1] == o.itemsize for o in (r.x, r.y, r.residual) if o is not None]
    if not all(lying):
        return depthwise.build(r)
    keep: list[Any] = []
    steps = [_step(share, sweep, keep) for share in depthwise.shares(r) for sweep in sweeps(r.problem)]
    return Program(tuple(step for step in steps if step.items), workspace(r.situation), tuple(keep))


def _step(r: Request, sweep: Sweep, keep: list[Any]) -> Step:
    s, p, arith = r.situation, r.problem, r.arith
    chunk, outer, rows = _chunk(s, sweep), sweep[:-2], sweep[-2]
    box = (*(1 for _ in outer), max(1, rows.out), max(1, sweep[-1].out))
    alone = _alone(s, sweep)
    most = _MOST_ALONE if alone else _MOST[sweep[-1].stride]
    name = "planes_alone" if alone else "planes"
    address = address_of(r, f"depthwise {name}", name, Driver, lambda k, name: driver(k, name, alone))
    if s.threads > 1 and not alone:
        items = (p.n or 0) * -(-p.c // chunk) * math.prod(axis.out for axis in outer)
        parts = -(-4 * s.threads // max(1, items))
        box = (*box[:-2], max(min(most, box[-2]), -(-box[-2] // parts)), box[-1])
    taps = math.prod(axis.taps for axis in outer) * _TAPS * _TAPS
    of_sweep = tuple((a.taps, a.first_tap, a.tap_step) for a in sweep)
    weights = r.packed(("depthwise plane", arith.name, of_sweep), lambda: _packed_weights(r.weights(sweep), taps))
    of_rows = _bands(rows) if alone else []
    apart = _ahead(s, sweep) and channel_bytes(s, sweep) > s.near(_PLANE_BYTES)
    row_taps = [(t * rows.dilation * r.x.spatial[-2], t * _TAPS * arith.bytes) for t in range(_TAPS)]
    common, items = boxed_words(r, sweep, box, [Lines((), (), ())] * len(sweep), block_groups=chunk)
    values = PlaneWords(
        common=common, channels=p.c, chunk_channels=chunk,
        together=_channels(p, sweep[-1], lane_of(s)) if apart else chunk,
        outer=outer_taps(sweep, _TAPS * _TAPS * arith.bytes), weights=weights, w_channel=taps * arith.bytes,
        phases=rows.dilation, most=most, tiles=_tile_addresses(r, sweep, box[-2], alone),
        settings=_settings(r, sweep, taps * arith.bytes, alone), band_count=len(of_rows),
        bands=[BandWords(*band) for band in of_rows], entries=words([v for entry in row_taps for v in entry]),
    )  # fmt: skip
    return Step(address, filled(values, keep), items)


def _channels(p: Problem, axis: Axis, lane: int) -> int:
    """Channels of a vector."""
    return 2 if p.c > 1 and 2 * axis.out <= lane else 1


def _settings(r: Request, sweep: Sweep, w_channel: int, alone: bool) -> PlaneSettings:
    """What the tiles of a step share."""
    rows, columns = sweep[-2:]
    channels = _channels(r.problem, columns, lane_of(r.situation))
    lane, residual = lane_of(r.situation) // channels, r.residual or Operand(0, 0, (0,) * len(sweep), 0, 1)
    of_strip = loads(columns.stride, _apart(columns, channels), lane)
    groups, strips = _strips(columns, lane, of_strip, (r.x.itemsize, r.y.itemsize, residual.spatial[-1]))
    step = 1 if alone else rows.dilation  # outputs so far apart are neighbours in a tile
    return PlaneSettings(
        x_row=r.x.spatial[-2] * step, y_row=r.y.spatial[-2] * step, r_row=residual.spatial[-2] * step,
        x_channel=r.x.c, w_channel=w_channel, y_channel=r.y.c, r_channel=residual.c, r_lane=residual.spatial[-1],
        x_strip=-lane * columns.stride * r.x.itemsize, y_strip=-lane * r.y.itemsize,
        r_strip=-lane * residual.spatial[-1], unit=step, height=rows.inp, groups=groups, strips=words(strips),
        tables=epilogue_tables(r),
    )  # fmt: skip


def _apart(axis: Axis, channels: int = 1) -> bool:
    return axis.stride == 1 and (axis.dilation > 1 or channels > 1)


def _strips(axis: Axis, lane: int, places: list[tuple[int, int]], sizes: tuple[int, int, int]
            ) -> tuple[int, list[int]]:  # fmt: skip
    """Groups of strips that read the same lanes, and the kernel's table of strips, from right to left."""
    x_size, y_size, r_step = sizes

    def load(column: int, there: int) -> tuple[int, int, int, int]:
        """In the words of ``LoadWords``, lanes from a column on; at a place inside even where it has no lanes."""
        first = min(there, max(0, -column))
        end = max(first, min(there, axis.inp - column))
        return (column * x_size, (1 << end) - (1 << first), first, end) if first < end else (0, 0, 0, 0)

    beyond = axis.out * axis.stride - axis.pad
    lacking = axis.stride == 2 and axis.out % lane == 0 and 0 <= beyond < axis.inp
    counts: list[int] = []
    groups: list[tuple[int, int, list[tuple[int, int, int, int]]]] = []  # first output of the rightmost, lanes, loads
    inner = False
    for first in reversed(range(0, axis.out, lane)):
        used, column = min(lane, axis.out - first), first * axis.stride - axis.pad
        found = [load(column + step * axis.dilation, there) for step, there in places]
        whole = used == lane and all(s[3] - s[2] == there for s, (_, there) in zip(found, places, strict=True))
        if whole and inner:
            counts[-1] += 1
        else:
            counts.append(1)
            groups.append((first, used, found))
        inner = whole
    records: list[Record] = [FirstStrip(int(lacking), LoadWords(*load(beyond, 1)))]
    for count, (first, used, found) in zip(counts, groups, strict=True):
        records.append(StripWords(count, first * y_size, first * r_step, (1 << used) - 1, used))
        records += [LoadWords(*of_load) for of_load in found]
    return len(counts), words_of(*records)


def _tile_addresses(r: Request, sweep: Sweep, box: int, alone: bool) -> list[Address[RowsOfOutputs] | None]:
    """Addresses of the tiles that a step uses, by rows; None for the others."""
    p, lane, rows = r.problem, lane_of(r.situation), sweep[-2]
    most = _MOST_ALONE if alone else _MOST[sweep[-1].stride]
    stride = rows.stride, sweep[-1].stride
    channels = _channels(p, sweep[-1], lane)
    apart, ahead = _apart(sweep[-1], channels), _ahead(r.situation, sweep)
    spec = DepthwisePlane(p.x, p.y, r.arith.accumulator, r.epilogue, stride, apart, alone, channels, ahead)
    table: list[Address[RowsOfOutputs] | None] = [None] * most
    extents = {n for e in (min(box, rows.out), rows.out % box) for n in (e // rows.dilation, -(-e // rows.dilation))}
    sizes = {size for n in extents for _, size in near_equal(n, most)}
    if alone:
        sizes = {n for _, n, _, _ in _bands(rows)}
    runs = {(most - n) // _TOGETHER for n in sizes}
    for n in range(1, most + 1):  # each compiles in less than 50 ms
        if (most - n) // _TOGETHER not in runs:
            continue

        def tile(k: Module, n: int = n) -> None:
            depthwise_plane(k, "tile", spec, lane, n)

        found = kernel(f"{spec} {lane} {n}", {"tile": RowsOfOutputs}, tile, r.target, check=r.check)
        table[n - 1] = found["tile"]
    return table


def _packed_weights(w: NDArray[Any], taps: int) -> NDArray[Any]:
    """Weights (groups, 1, 1, taps), channel after channel."""
    packed = aligned((w.shape[0], taps), w.dtype)
    packed[:] = np.reshape(w, (w.shape[0], taps))
    return packed
