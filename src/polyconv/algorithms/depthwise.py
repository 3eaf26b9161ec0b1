"""Depthwise convolution in place, channels last: one input and one output channel a group, any rank.

Lanes are channels that lie together in memory; padded taps are left out of each row's list of entries,
and of the lists of the columns at its edges, so nothing is copied and Inf or NaN weights are no matter.
Cost: a load per tap and vector.  Error: own bound, k eps sum|x||w|; sums run over the taps in order.
"""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

from polyconv.algorithms.panel import COMMON, Item, Words, axis_record, box_rows, decode, row_place
from polyconv.algorithms.program import (
    Program,
    Request,
    Situation,
    accumulator_arithmetic,
    common_words,
    fill_words,
    one_step,
    zeros,
)
from polyconv.algorithms.sweep import Sweep, lines, sweeps
from polyconv.kernels.depthwise import ENTRY_BYTES, DepthwiseTile, depthwise_tile
from polyconv.kernels.isa import ARITHMETIC, lanes
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.objects import kernel
from polyconv.runtime.arrays import aligned, words

__all__ = ["applicable", "build", "cost", "workspace"]

ROWS = 8
"""Outputs of the largest tile: enough sums to hide the latency of a multiply-add."""

_MOST_TAPS = 4096

WORDS = (
    *COMMON,
    "channels", "chunk_channels", "lanes", "taps_outer", "taps_inner", "dilation", "*tap_offsets", "list", "edge_list",
    "interior_low", "interior_high", "*weights", "w_tap", "x_lane", "y_lane", "r_lane", "word_bytes", "*tiles",
    "*bias", "*scale", "*constants",
)  # fmt: skip


def driver(k: Module, name: str) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module."""
    with k.function(name, "buffer", "buffer", "int", "buffer") as (frame, table, number, workspace):
        p = Words(k, table, WORDS)
        item = decode(k, p, number, workspace)
        channels = k.minimum(p.chunk_channels, p.channels - item.g * p.chunk_channels)
        with k.loop(0, box_rows(k, p, item)) as row:
            _row(k, p, item, frame, workspace, row.index, channels)


def _entries(k: Module, p: Words, item: Item, workspace: Buffer, row: Value) -> Value:
    """Write the list of a row: the taps whose lines exist, in order; their number."""
    last = axis_record(k, p, p.axes - 1)
    with k.loop(0, p.taps_outer, carry=[k.constant(INT, 0)]) as tap:
        (count,) = tap.values
        offsets = p.buffer("tap_offsets") + tap.index * p.axes * 8
        start = [row, k.constant(INT, 0), k.constant(INT, 1)]
        with k.loop(1, p.axes, carry=start) as back:
            q, offset, inside = back.values
            axis = p.axes - 1 - back.index
            record = axis_record(k, p, axis)
            position = item.origin(axis) + q % item.extent(axis) * record.stride + k.word(offsets, axis)
            within = k.cast("zext", position.below(record.inp), INT)
            back.next(q // item.extent(axis), offset + position * record.x_stride, inside & within)
        _, offset, inside = back.results
        with k.when(inside.equals(1)), k.loop(0, p.taps_inner) as t:
            place = workspace + (p.list + (count + t.index) * ENTRY_BYTES)
            shift = t.index * p.dilation
            k.store(offset + shift * last.x_stride, place, 8)
            k.store((tap.index * p.taps_inner + t.index) * p.w_tap, place + 8, 8)
            k.store(shift, place + 16, 8)
        tap.next(count + p.taps_inner * inside)
    total: Value = tap.results[0]
    return total


def _row(k: Module, p: Words, item: Item, frame: Buffer, workspace: Buffer, row: Value, channels: Value) -> None:
    """A row of outputs: the interior in tiles, edge columns with lists of their own."""
    last = axis_record(k, p, p.axes - 1)
    count = _entries(k, p, item, workspace, row)
    _, y_row, r_row = row_place(k, p, item, row)
    x0 = p.x_base + item.n * p.x_n + item.g * p.x_g
    width = item.extent(p.axes - 1)
    step = last.stride * last.x_stride
    low, high = p.interior_low, p.interior_high

    def run(entries: Buffer, n: Value, column: Value, rows: Value) -> None:
        whole = channels - channels % p.lanes
        for first, there, tiles in ((0, whole, 0), (whole, channels - whole, ROWS)):
            with k.when(there > 0):
                channel = item.g * p.chunk_channels + first
                _tile(
                    k, p, frame, entries, p.buffer("tiles") + (rows + (tiles - 1)) * 16, n,
                    x0 + first * p.x_c + item.origin(p.axes - 1) * last.x_stride + column * step, step,
                    p.buffer("weights") + channel * p.word_bytes,
                    y_row + first * p.y_c + column * last.y_stride, last.y_stride,
                    r_row + first * p.r_c + column * last.r_stride, last.r_stride, channel, there,
                )  # fmt: skip

    parts = (high - low + ROWS - 1) // ROWS
    with k.when(parts > 0):
        share = (high - low + parts - 1) // parts
        with k.loop(low, high, share) as column:
            run(workspace + p.list, count, column.index, k.minimum(share, high - column.index))
    with k.loop(0, width) as column, k.when((column.index < low) | (column.index >= high)):
        position = item.origin(p.axes - 1) + column.index * last.stride
        with k.loop(0, count, carry=[k.constant(INT, 0)]) as entry:
            (kept,) = entry.values
            source = workspace + (p.list + entry.index * ENTRY_BYTES)
            inside = (position + k.word(source, 2)).below(last.inp)
            with k.when(inside):
                target = workspace + (p.edge_list + kept * ENTRY_BYTES)
                for word in range(3):
                    k.store(k.word(source, word), target + 8 * word, 8)
            entry.next(kept + k.cast("zext", inside, INT))
        run(workspace + p.edge_list, entry.results[0], column.index, k.constant(INT, 1))


def _tile(k: Module, p: Words, frame: Buffer, entries: Buffer, tile: Buffer, count: Value, x: Value, x_step: Value,
          weights: Buffer, y: Value, y_step: Value, r: Value, r_step: Value, channel: Value,
          left: Value) -> None:  # fmt: skip
    k.call(
        k.buffer(tile), k.buffer(frame, 0) + x, x_step, entries, count, weights, k.buffer(frame, 2) + y, y_step,
        p.buffer("bias") + channel * p.word_bytes, p.buffer("scale") + channel * p.word_bytes,
        k.buffer(frame, 4) + r, r_step, p.buffer("constants"), left, p.x_lane, p.y_lane,
        p.r_lane,
    )  # fmt: skip


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    p = s.problem
    if p.op != "conv" or p.c != p.groups or p.m != p.groups:
        return "computes conv with one input and one output channel a group"
    if p.quantisation is not None and p.quantisation.zx is not None:
        return "inputs with a zero point are converted in a panel"
    if math.prod(p.k) > _MOST_TAPS:
        return f"lists at most {_MOST_TAPS} taps, the kernel has {math.prod(p.k)}"
    if p.layout != "NHWC":
        return "reads channels that lie together, layout NHWC"
    return None


def workspace(s: Situation) -> int:
    """Bytes a thread needs: two lists of entries."""
    return 64 * (s.problem.rank + 2) + 2 * ENTRY_BYTES * math.prod(s.problem.k) + 256


def cost(s: Situation) -> dict[str, float]:
    """Cycles: loads of taps, building lists, starting tiles; or the stream of input and result."""
    p, arith = s.problem, ARITHMETIC[accumulator_arithmetic(s)]
    lane, taps = lanes(s.target, arith), math.prod(p.k)
    out = [o or 0 for o in p.out]
    rows, width = math.prod(out[:-1]), out[-1]
    vectors = rows * width * -(-p.c // lane)
    edges = rows * min(width, 2 * ((p.k[-1] - 1) * p.d[-1] // 2 // p.s[-1])) * -(-p.c // lane)
    loads = 0.65 * vectors * taps + vectors / ROWS * 20 + edges * (4.0 * taps + 60)
    lists = rows * (60 + taps * 8.0 + min(width, p.k[-1]) * (40 + 10.0 * taps))
    moved = (math.prod(i or 0 for i in p.i) * p.x_dtype.itemsize + rows * width * p.y_dtype.itemsize) * p.c / 12.0
    batch = p.n or 0
    return {"products": max(loads, moved) * batch, "moves": lists * batch}


def build(r: Request) -> Program:
    """Program of a request: one step."""
    p, arith = r.problem, r.arith
    keep: list[Any] = []
    (sweep,) = sweeps(p)
    lane = lanes(r.target, arith)
    last = sweep[-1]
    chunk = min(p.c, 8 * lane)
    box = _box(r, sweep, chunk)
    held = [lines(axis, b) for axis, b in zip(sweep, box, strict=True)]
    values = common_words(r, sweep, box, held, 1, keep, chunk)
    offsets: list[list[int]] = [[]]
    for axis in sweep[:-1]:
        offsets = [[*o, t * axis.dilation] for o in offsets for t in range(axis.taps)]
    outer = [v for o in offsets for v in (*o, 0)]
    interior = _interior(last.pad, last.stride, (last.taps - 1) * last.dilation, last.inp, last.out)
    taps = math.prod(axis.taps for axis in sweep)
    header = -(-(24 * len(sweep)) // 64) * 64
    weights = r.packed(
        ("depthwise", arith.name, lane, tuple((a.taps, a.first_tap, a.tap_step) for a in sweep)),
        lambda: _packed_weights(r.weights(sweep), lane),
    )
    padded = -(-p.c // lane) * lane
    made = kernel("depthwise", ("depthwise",), lambda k: driver(k, "depthwise"), r.target, check=r.check)
    tensors = [r.x, r.y] + ([r.residual] if r.residual is not None else [])
    together = all(t.c == t.itemsize for t in tensors)
    values.update({
        "channels": p.c, "chunk_channels": chunk, "lanes": lane, "taps_outer": math.prod(a.taps for a in sweep[:-1]),
        "taps_inner": last.taps, "dilation": last.dilation, "tap_offsets": words(outer), "list": header,
        "edge_list": header + ENTRY_BYTES * taps, "interior_low": interior[0], "interior_high": interior[1],
        "weights": weights, "w_tap": padded * arith.bytes, "x_lane": r.x.c, "y_lane": r.y.c,
        "r_lane": 0 if r.residual is None else r.residual.c, "word_bytes": arith.bytes,
        "tiles": words(_tiles(r, together, lane)), "bias": zeros() if r.bias is None else r.bias,
        "scale": zeros() if r.scale is None else r.scale, "constants": r.constants, "panel": 0, "scratch": 0,
    })  # fmt: skip
    return one_step(made["depthwise"], fill_words(WORDS, values, keep), values["items"], workspace(r.situation), keep)


def _box(r: Request, sweep: Sweep, chunk: int) -> tuple[int, ...]:
    """Whole rows; cut along the outer axes until there are items for the threads."""
    p, threads = r.problem, r.situation.threads
    box = [axis.out for axis in sweep]
    box[: max(0, len(box) - 2)] = [1] * max(0, len(box) - 2)
    items = (p.n or 0) * -(-p.c // chunk) * math.prod(axis.out for axis in sweep[:-2])
    if len(sweep) > 1 and threads > 1 and items < 4 * threads:
        box[-2] = max(ROWS, -(-box[-2] // -(-4 * threads // max(1, items))))
    return tuple(max(1, b) for b in box)


def _interior(pad: int, stride: int, reach: int, inp: int, out: int) -> tuple[int, int]:
    """Outputs low..high whose taps all lie inside."""
    low = min(out, max(0, -(-pad // stride)))
    high = min(out, (inp - 1 - reach + pad) // stride + 1)
    return low, max(low, high)


def _tiles(r: Request, together: bool, lane: int) -> list[int]:
    """Addresses of the tiles: whole ones of 1 to ROWS outputs, then those at an edge."""
    p = r.problem
    spec = DepthwiseTile(p.x, p.y, r.arith.accumulator, r.epilogue, together)
    names = [f"{kind}{rows}" for kind in ("whole", "edge") for rows in range(1, ROWS + 1)]

    def build(k: Module) -> None:
        for name in names:
            edge, rows = name.startswith("edge"), int(name[5:] if name.startswith("whole") else name[4:])
            depthwise_tile(k, name, spec, lane, rows, f16c=r.target.level != "baseline", edge=edge)

    found = kernel(f"{spec} {lane}", tuple(names), build, r.target, check=r.check)
    return [v for name in names for v in (found[name], 0)]


def _packed_weights(w: NDArray[Any], lane: int) -> NDArray[Any]:
    """Weights (groups, 1, 1, taps) as a row of channels per tap."""
    groups, taps = w.shape[0], w.shape[3]
    packed = aligned((taps, -(-groups // lane) * lane), w.dtype)
    packed[:, :groups] = w.reshape(groups, taps).T
    return packed
