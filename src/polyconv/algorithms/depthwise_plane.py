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
from polyconv.algorithms.depthwise_block import channel_bytes, lane_of, outer_list, results_place, workspace
from polyconv.algorithms.depthwise_driver import near_equal_parts
from polyconv.algorithms.depthwise_plan import parts_of_phases
from polyconv.algorithms.panel import COMMON, Driver, Words, axis_record, decode
from polyconv.algorithms.program import (
    Operand,
    Program,
    Request,
    Situation,
    Step,
    address_of,
    common_words,
    fill_words,
    near_equal,
    zeros,
)
from polyconv.algorithms.sweep import Axis, Lines, Sweep, bands, sweeps
from polyconv.kernels.depthwise_plane import (
    SETTINGS,
    SPAN,
    STRIPS,
    DepthwisePlane,
    RowsOfOutputs,
    depthwise_plane,
    loads,
)
from polyconv.kernels.language import Buffer, Module, Value
from polyconv.kernels.objects import kernel
from polyconv.problem.problem import Problem
from polyconv.runtime.arrays import aligned, words

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

WORDS = (
    *COMMON, "channels", "chunk_channels", "together", "taps_outer", "*tap_offsets", "w_outer", "list", "*weights",
    "w_channel", "phases", "most", "*tiles", "*settings", "bands", "*band", "*entries",
)  # fmt: skip

BAND = ("first", "rows", "entry", "entries")
"""Rows that have the same taps inside the input, and which entries those are."""


def driver(k: Module, name: str, alone: bool) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module; rows share inputs or stand ``alone``."""
    with k.function(name, Driver) as given:
        frame, table, number, workspace = given.frame, given.words, given.item, given.workspace
        p = Words(k, table, WORDS)
        item = decode(k, p, number, workspace)
        down = p.axes - 2
        rows = axis_record(k, p, down)
        begin = item.g * p.chunk_channels
        end = k.minimum(begin + p.chunk_channels, p.channels)
        x = k.buffer(frame, 0) + (p.x_base + item.n * p.x_n)
        y, other = results_place(k, p, item, frame, p.y_base + item.n * p.y_n, p.r_base + item.n * p.r_n)

        def call(first: Value, o: Value, height: Value, entries: Buffer, taps: Value) -> None:
            row = item.origin(down) + o * rows.stride
            o = item.first(down) + o
            k.call(k.buffer(p.buffer("tiles") + (height - 1) * 16), RowsOfOutputs(
                p.buffer("settings"),
                x + first * p.x_c + row * rows.x_stride, entries, taps, p.buffer("weights") + first * p.w_channel,
                y + first * p.y_c + o * rows.y_stride, other + first * p.r_c + o * rows.r_stride,
                first, k.minimum(p.together, end - first), row,
            ))  # fmt: skip

        if alone:
            with k.loop(begin, end, p.together) as channel, k.loop(0, p.bands) as number_of_band:
                band = Words(k, p.buffer("band"), BAND).at(number_of_band.index, len(BAND))
                call(channel.index, band.first, band.rows, p.buffer("entries") + band.entry * 16, band.entries)
            return
        entries = workspace + p.list
        taps = outer_list(k, p, item, entries)
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
    if s.problem.c * plane <= s.near(_CACHE_BYTES) or _alone(sweep, lane_of(s)):
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
    p, lane = s.problem, lane_of(s)
    cycles = streamed = 0.0
    for sweep in sweeps(p):
        lines = math.prod(axis.out for axis in sweep[:-2]) * p.c
        share = 1.0 if _channels(p, sweep[-1], lane) == 1 else _SHARE
        cycles += lines * share * min(_together_cycles(sweep, lane), _alone_cycles(sweep, lane))
        streamed += p.c * channel_bytes(s, sweep)
    again = streamed > depthwise_plan.FAR_BYTES and p.rank > 2  # planes come from memory for every tap of outer axes
    moves = streamed * (0.012 if streamed <= _CACHE_BYTES else 0.2 if again else 0.027)
    batch = (p.n or 0) * (p.m // p.groups)
    return {"products": cycles * batch, "moves": moves * batch}


def _alone(sweep: Sweep, lane: int) -> bool:
    """Whether rows of outputs stand alone: taps are so far apart that few rows would share inputs."""
    return _alone_cycles(sweep, lane) < _together_cycles(sweep, lane)


def _together_cycles(sweep: Sweep, lane: int) -> float:
    """Cycles of a channel of a map, all outer taps."""
    rows, columns = sweep[-2:]
    strips = -(-columns.out // lane) * math.prod(axis.taps for axis in sweep[:-2])
    tiles = parts_of_phases(rows.out, rows.dilation, _MOST[columns.stride])
    return tiles * (20 + 10 * strips) + rows.out * strips * _ROW[columns.stride]


@lru_cache(256)
def _alone_cycles(sweep: Sweep, lane: int) -> float:
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
    return sum(20 + 10 * strips + (1.1 * n + 5) * band_taps * taps for _, n, _, band_taps in _bands(rows))


def _bands(axis: Axis) -> list[tuple[int, int, int, int]]:
    """Rows in the words of ``BAND``, for entries that are the taps of the axis."""
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
    alone = _alone(sweep, lane_of(s))
    most = _MOST_ALONE if alone else _MOST[sweep[-1].stride]
    name = "planes_alone" if alone else "planes"
    address = address_of(r, f"depthwise {name}", name, Driver, lambda k, name: driver(k, name, alone))
    if s.threads > 1 and not alone:
        items = (p.n or 0) * -(-p.c // chunk) * math.prod(axis.out for axis in outer)
        parts = -(-4 * s.threads // max(1, items))
        box = (*box[:-2], max(min(most, box[-2]), -(-box[-2] // parts)), box[-1])
    offsets: list[list[int]] = [[]]
    for axis in outer:
        offsets = [[*o, t * axis.dilation] for o in offsets for t in range(axis.taps)]
    taps = len(offsets) * _TAPS * _TAPS
    of_sweep = tuple((a.taps, a.first_tap, a.tap_step) for a in sweep)
    weights = r.packed(("depthwise plane", arith.name, of_sweep), lambda: _packed_weights(r.weights(sweep), taps))
    of_rows = _bands(rows) if alone else []
    apart = _ahead(s, sweep) and channel_bytes(s, sweep) > s.near(_PLANE_BYTES)
    row_taps = [(t * rows.dilation * r.x.spatial[-2], t * _TAPS * arith.bytes) for t in range(_TAPS)]
    values = common_words(r, sweep, box, [Lines((), (), ())] * len(sweep), 1, keep, chunk)
    values.update({
        "channels": p.c, "chunk_channels": chunk, "together": _channels(p, sweep[-1], lane_of(s)) if apart else chunk,
        "taps_outer": len(offsets), "tap_offsets": words([v for o in offsets for v in o]),
        "w_outer": _TAPS * _TAPS * arith.bytes, "list": depthwise_plan.list_place(len(sweep)),
        "weights": weights, "w_channel": taps * arith.bytes,
        "phases": rows.dilation, "most": most, "tiles": words(_tile_addresses(r, sweep, box[-2], alone)),
        "settings": fill_words(SETTINGS, _settings(r, sweep, taps * arith.bytes, alone), keep),
        "bands": len(of_rows), "band": words([v for band in of_rows for v in band]),
        "entries": words([v for entry in row_taps for v in entry]), "panel": 0, "scratch": 0,
    })  # fmt: skip
    return Step(address, fill_words(WORDS, values, keep), values["items"])


def _channels(p: Problem, axis: Axis, lane: int) -> int:
    """Channels of a vector."""
    return 2 if p.c > 1 and 2 * axis.out <= lane else 1


def _settings(r: Request, sweep: Sweep, w_channel: int, alone: bool) -> dict[str, Any]:
    """What the tiles of a step share."""
    rows, columns = sweep[-2:]
    channels = _channels(r.problem, columns, lane_of(r.situation))
    lane, residual = lane_of(r.situation) // channels, r.residual or Operand(0, 0, (0,) * len(sweep), 0, 1)
    of_strip = loads(columns.stride, _apart(columns, channels), lane)
    strips = _strips(columns, lane, of_strip, (r.x.itemsize, r.y.itemsize, residual.spatial[-1]))
    step = 1 if alone else rows.dilation  # outputs so far apart are neighbours in a tile
    return {
        "x_row": r.x.spatial[-2] * step, "y_row": r.y.spatial[-2] * step, "r_row": residual.spatial[-2] * step,
        "x_channel": r.x.c, "w_channel": w_channel, "y_channel": r.y.c, "r_channel": residual.c,
        "r_lane": residual.spatial[-1], "x_strip": -lane * columns.stride * r.x.itemsize,
        "y_strip": -lane * r.y.itemsize, "r_strip": -lane * residual.spatial[-1], "unit": step, "height": rows.inp,
        "groups": len(strips) // (len(STRIPS) + len(of_strip) * len(SPAN)),
        "strips": words(strips),
        "bias": zeros() if r.bias is None else r.bias, "scale": zeros() if r.scale is None else r.scale,
        "constants": r.constants,
    }  # fmt: skip


def _apart(axis: Axis, channels: int = 1) -> bool:
    return axis.stride == 1 and (axis.dilation > 1 or channels > 1)


def _strips(axis: Axis, lane: int, places: list[tuple[int, int]], sizes: tuple[int, int, int]) -> list[int]:
    """The kernel's table of strips, from right to left; those that read the same lanes in groups."""
    x_size, y_size, r_step = sizes

    def span(column: int, there: int) -> list[int]:
        """The load of lanes from a column on; at a place inside even where it has no lanes."""
        first = min(there, max(0, -column))
        end = max(first, min(there, axis.inp - column))
        if first == end:
            return [0, 0, 0, 0]
        return [column * x_size, (1 << end) - (1 << first), first, end]

    beyond = axis.out * axis.stride - axis.pad
    lacking = axis.stride == 2 and axis.out % lane == 0 and 0 <= beyond < axis.inp
    table = [int(lacking), *span(beyond, 1)]
    inner = False
    for first in reversed(range(0, axis.out, lane)):
        used = min(lane, axis.out - first)
        column = first * axis.stride - axis.pad
        spans = [span(column + step * axis.dilation, there) for step, there in places]
        found = [(1 << used) - 1, used, *(word for s in spans for word in s)]
        whole = used == lane and all(s[3] - s[2] == there for s, (_, there) in zip(spans, places, strict=True))
        if whole and inner:
            table[-len(STRIPS) - len(places) * len(SPAN)] += 1
        else:
            table += [1, first * y_size, first * r_step, *found]
        inner = whole
    return table


def _tile_addresses(r: Request, sweep: Sweep, box: int, alone: bool) -> list[int]:
    """Addresses of the tiles that a step uses, by rows; 0 for the others."""
    p, lane, rows = r.problem, lane_of(r.situation), sweep[-2]
    most = _MOST_ALONE if alone else _MOST[sweep[-1].stride]
    stride = rows.stride, sweep[-1].stride
    channels = _channels(p, sweep[-1], lane)
    apart, ahead = _apart(sweep[-1], channels), _ahead(r.situation, sweep)
    spec = DepthwisePlane(p.x, p.y, r.arith.accumulator, r.epilogue, stride, apart, alone, channels, ahead)
    table = [0] * (2 * most)
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
        table[2 * (n - 1)] = found["tile"]
    return table


def _packed_weights(w: NDArray[Any], taps: int) -> NDArray[Any]:
    """Weights (groups, 1, 1, taps), channel after channel."""
    packed = aligned((w.shape[0], taps), w.dtype)
    packed[:] = np.reshape(w, (w.shape[0], taps))
    return packed
