"""The generic algorithm: pixels in the lanes, always applicable, for any rank, type, group and layout.

A box of outputs gets a zero-padded panel, [channel][line][pixel]; because inputs a stride apart lie
together in it, every tap of every channel is a contiguous vector load, whatever stride and dilation.
Lanes run along rows, or along the whole flattened box where rows are short.  Cost: the products over
lane use, plus a pass over the inputs of every group.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from polyconv.algorithms.panel import COMMON, Item, Words, axis_record, box_rows, decode, fill, row_place
from polyconv.algorithms.pixels import TILE, packed_weights, pixel_tables, tile_rows
from polyconv.algorithms.program import (
    FREE_BYTES,
    Program,
    Request,
    Situation,
    Step,
    accumulator_arithmetic,
    along,
    boxes,
    common_words,
    fill_words,
    move_address,
    tile_cycles,
    zeros,
)  # fmt: skip
from polyconv.algorithms.sweep import Axis, Lines, Sweep, lines, sweeps
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, lanes, pixel_tiles
from polyconv.kernels.language import Buffer, Module, Value, vector
from polyconv.kernels.layout import Move, zero_words
from polyconv.kernels.objects import kernel
from polyconv.runtime.arrays import words

__all__ = ["WORDS", "applicable", "arithmetic", "build", "cost", "driver", "workspace"]

PANEL_BYTES = 256 << 10
"""Panel of a box: a quarter of a 1 MiB second-level cache, so that it stays while it is read m/groups times."""

WORDS = (
    *COMMON,
    "channels", "plane_bytes", "line_bytes", "word_bytes", "lane_bytes", "lanes",
    "chunk", "chunks", "channel_entries", "*entries", "*weights", "w_group",
    "tile_count", "split_tiles", "*tiles", "*functions",
    "flat", "slots", "slot_tile", "slot_row", "sum_row", "outputs",
    "*bias", "*scale", "*constants", "*move_in", "*move_out",
)  # fmt: skip
"""The driver's words: panel geometry, entry list and packed weights, tiles of output channels, moves."""


def driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module."""
    with k.function(name, "buffer", "buffer", "int", "buffer") as (frame, table, number, workspace):
        p = Words(k, table, WORDS)
        item = decode(k, p, number, workspace)
        k.clear(workspace + p.scratch, 512)  # sums start from these zeros
        rows = box_rows(k, p, item)
        first_tile = item.split * p.split_tiles
        end_tile = k.minimum(first_tile + p.split_tiles, p.tile_count)
        with k.loop(0, p.chunks) as chunk:
            _pack(k, p, item, k.buffer(frame, 0), workspace + p.panel, chunk.index * p.chunk, vector_bytes)
            with k.loop(first_tile, end_tile) as tile:
                t = Words(k, p.buffer("tiles"), TILE).at(tile.index, len(TILE))
                slot = p.slots + (tile.index - first_tile) * p.slot_tile
                _sums(k, p, t, item, workspace, slot, chunk.index, rows)
                with k.when(chunk.index.equals(p.chunks - 1)):
                    _out(k, p, t, item, frame, workspace + slot, rows)


def _pack(k: Module, p: Words, item: Item, x: Buffer, panel: Buffer, first: Value, vector_bytes: int) -> None:
    """Fill the panel with one chunk of channels, from ``first`` on."""
    channels = k.minimum(p.chunk, p.channels - first)
    pixel_step = p.step * axis_record(k, p, p.axes - 1).x_stride
    words_of_4 = vector("i32", vector_bytes // 4)

    def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
        target = panel + (line * p.line_bytes + first_line * p.word_bytes)
        with k.when((head > 0) | (end < count)), k.loop(0, channels) as c:
            here = target + c.index * p.plane_bytes
            zero_words(k, here, (head * p.word_bytes) >> 2, words_of_4)
            zero_words(k, here + end * p.word_bytes, ((count - end) * p.word_bytes) >> 2, words_of_4)
        k.call(
            p.buffer("move_in"), source, pixel_step, p.x_c, target + head * p.word_bytes, p.word_bytes, p.plane_bytes,
            end - head, channels, p.zero_point,
        )  # fmt: skip

    fill(k, p, item, x, first, put)


def _sums(k: Module, p: Words, t: Words, item: Item, workspace: Buffer, slot: Value, chunk: Value, rows: Value) -> None:
    """Tiles of one set of output channels over the box; sums go on from the slot after the first chunk."""
    flat = p.flat.equals(1)
    last_line, _, _ = row_place(k, p, item, rows - 1)
    width = item.extent(p.axes - 1)
    width = k.select(flat, last_line * (p.line_bytes // p.word_bytes) + width, width)
    vectors = (width + p.lanes - 1) // p.lanes
    channels = k.minimum(p.chunk, p.channels - chunk * p.chunk)
    begins = chunk.equals(0)
    with k.loop(0, k.select(flat, 1, rows)) as row:
        line, _, _ = row_place(k, p, item, row.index)
        panel = workspace + p.panel + line * p.line_bytes
        sums = slot + row.index * p.slot_row
        with k.loop(0, vectors, t.most) as v:
            here = k.minimum(vectors - v.index, t.most)
            at = v.index * p.lane_bytes
            k.call(
                k.buffer(p.buffer("functions"), t.table + here * 2), panel + at, channels * p.channel_entries,
                p.buffer("entries"), p.buffer("weights") + (item.g * p.w_group + t.weights + chunk * t.chunk_weights),
                workspace + k.select(begins, p.scratch, sums + at), k.select(begins, 0, p.sum_row),
                workspace + (sums + at), p.sum_row,
            )  # fmt: skip


def _out(k: Module, p: Words, t: Words, item: Item, frame: Buffer, sums: Buffer, rows: Value) -> None:
    """Move the sums of a set of output channels to the result, row by row."""
    last = axis_record(k, p, p.axes - 1)
    channel = item.g * p.outputs + t.first
    with k.loop(0, rows) as row:
        line, y_offset, r_offset = row_place(k, p, item, row.index)
        place = k.select(p.flat.equals(1), line, row.index) * p.slot_row
        k.call(
            p.buffer("move_out"), sums + place, p.word_bytes, p.sum_row,
            k.buffer(frame, 2) + (y_offset + t.first * p.y_c), last.y_stride, p.y_c, item.extent(p.axes - 1), t.rows,
            p.buffer("bias") + channel * p.word_bytes, p.buffer("scale") + channel * p.word_bytes,
            k.buffer(frame, 4) + (r_offset + t.first * p.r_c), last.r_stride, p.r_c, p.buffer("constants"),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Plan:
    """Sizes of one sweep's blocks."""

    box: tuple[int, ...]
    held: tuple[Lines, ...]
    flat: bool
    chunk: int
    line_words: int
    plane_bytes: int
    slot_row: int
    sum_row: int
    slot_tile: int
    panel: int
    workspace: int
    splits: int = 1


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    if s.problem.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {s.problem.op}"
    if not s.finite:
        return "weights hold Inf or NaN, which would meet the zeros of the padding"
    needed = workspace(s)
    if s.limit is not None and needed > s.limit + FREE_BYTES:
        return f"needs {needed - FREE_BYTES} bytes of workspace, the limit is {s.limit}"
    return None


def arithmetic(s: Situation) -> str:
    """The accumulator's."""
    return accumulator_arithmetic(s.problem)


def workspace(s: Situation) -> int:
    """Bytes a thread needs."""
    arith = ARITHMETIC[arithmetic(s)]
    return max(_plan(s, arith, sweep).workspace for sweep in sweeps(s.problem))


def cost(s: Situation) -> dict[str, float]:
    """Cycles: multiply-adds with the lanes that rows or boxes fill, and the moves."""
    p, arith = s.problem, ARITHMETIC[arithmetic(s)]
    group_in, group_out = p.c // p.groups, p.m // p.groups
    lane, heights = lanes(s.target, arith), pixel_tiles(s.target)
    products = moved = 0.0
    for sweep in sweeps(p):
        plan = _plan(s, arith, sweep)
        box_count = math.prod(-(-axis.out // max(1, b)) for axis, b in zip(sweep, plan.box, strict=True))
        entries = group_in * math.prod(axis.taps for axis in sweep)
        vectors = plan.sum_row // (lane * arith.bytes)
        step = 0.0
        for _, rows in tile_rows(group_out, s.target):
            full, rest = divmod(vectors, heights[rows])
            step += full * (tile_cycles(rows, heights[rows]) + 1) + (tile_cycles(rows, rest) + 1 if rest else 0)
        products += box_count * entries * step
        in_place = p.layout == "NCHW" and sweep[-1].stride == 1
        per_word = 0.3 if in_place else 1.0 if p.layout == "NHWC" and group_in >= 8 else 2.5
        lines_held = math.prod(max(1, h.count) for h in plan.held)
        moved += box_count * (600 + group_in * (lines_held * per_word + 15 * lines_held / max(1, plan.line_words)))
        outputs = math.prod(plan.box)
        per_output = 0.4 if p.layout == "NCHW" and sweep[-1].out_step == 1 else 1.0 if group_out >= 8 else 2.5
        moved += box_count * group_out * (outputs * per_output + 40 * outputs / max(1, plan.box[-1]) / 8)
    batch = (p.n or 0) * p.groups
    return {"products": products * batch, "moves": moved * batch}


def build(r: Request) -> Program:
    """Program of a request: one step per sweep."""
    keep: list[Any] = []
    wide = r.target.vector_bytes
    address = kernel("generic", ("generic",), lambda k: driver(k, "generic", wide), r.target, check=r.check)["generic"]
    plans = [(sweep, _plan(r.situation, r.arith, sweep)) for sweep in sweeps(r.problem)]
    steps = tuple(step for sweep, plan in plans if (step := _step(r, sweep, plan, address, keep)).items)
    return Program(steps, max((plan.workspace for _, plan in plans), default=0), tuple(keep))


def _plan(s: Situation, arith: Arithmetic, sweep: Sweep) -> _Plan:
    p = s.problem
    group_in, group_out = p.c // p.groups, p.m // p.groups
    lane = lanes(s.target, arith)
    tiles = tile_rows(group_out, s.target)
    header = -(-(24 * len(sweep)) // 64) * 64

    def sizes(box: tuple[int, ...], chunk: int) -> _Plan:
        held = tuple(lines(axis, b) for axis, b in zip(sweep, box, strict=True))
        pitches = [math.prod(h.count for h in held[a + 1 :]) for a in range(len(held))]
        outer = math.prod(box[:-1])
        whole = sum((b - 1) * pitch for b, pitch in zip(box, pitches, strict=True)) + 1
        flat = -(-whole // lane) < outer * -(-box[-1] // lane)
        width = whole if flat else box[-1]
        padded = -(-width // lane) * lane
        most_rows = max((rows for _, rows in tiles), default=1)
        line_words = held[-1].count
        slot_row = (line_words if flat else padded) * arith.bytes
        sum_row = (padded + lane if flat else padded * outer) * arith.bytes
        plane = (math.prod(h.count for h in held) + 2 * lane) * arith.bytes
        chunks = max(1, -(-group_in // chunk))
        slot_tile = 0 if chunks == 1 else most_rows * sum_row
        sums = most_rows * sum_row * (len(tiles) if chunks > 1 else 1)
        panel = -(-min(chunk, group_in) * plane // 64) * 64
        workspace = header + panel + 512 + sums + 128
        return _Plan(box, held, flat, chunk, line_words, plane, slot_row, sum_row, slot_tile, panel, workspace)

    budget = s.budget(PANEL_BYTES)
    extents = tuple(axis.out for axis in sweep)
    start = (*extents[:-1], min(extents[-1], 4096))
    enough = min(4 * lane, math.prod(extents))  # outputs of a box: fewer read the panel badly

    def fitted(chunk: int) -> _Plan:
        return sizes(boxes(start, lambda box: sizes(box, chunk).workspace, budget), chunk)

    chunk = max(1, group_in)
    plan = fitted(chunk)
    while chunk > 1 and (plan.workspace > budget or math.prod(plan.box) < enough):
        chunk = -(-chunk // 2)
        plan = fitted(chunk)
    wanted = 1 if s.threads == 1 else 3 * s.threads
    items = (p.n or 0) * p.groups * math.prod(-(-e // b) for e, b in zip(extents, plan.box, strict=True))
    splits = min(max(1, len(tiles)), -(-wanted // max(1, items)))
    per_split = -(-len(tiles) // splits) or 1
    return replace(plan, splits=max(1, -(-len(tiles) // per_split)))


def _step(r: Request, sweep: Sweep, plan: _Plan, address: int, keep: list[Any]) -> Step:
    p, arith = r.problem, r.arith
    group_in, group_out = p.c // p.groups, p.m // p.groups
    taps = math.prod(axis.taps for axis in sweep)
    last = sweep[-1]
    tiles = tile_rows(group_out, r.target)
    functions, records = pixel_tables(r, tiles, group_in * taps, plan.chunk * taps)
    packed = r.packed(
        ("generic", arith.name, r.target.level, tuple((a.taps, a.first_tap, a.tap_step) for a in sweep)),
        lambda: packed_weights(r.weights(sweep), tiles),
    )
    outer = [0]
    for h in plan.held[:-1]:
        outer = [o * h.count + s for o in outer for s in h.start]
    places = [(o * plan.line_words + s) * arith.bytes for o in outer for s in plan.held[-1].start]
    entries = [c * plan.plane_bytes + at for c in range(min(plan.chunk, group_in)) for at in places]
    header = -(-(24 * len(sweep)) // 64) * 64
    scratch = header + plan.panel
    values = common_words(r, sweep, plan.box, list(plan.held), plan.splits, keep)
    write = _along(r, last, reading=False)
    values.update({
        "panel": header, "scratch": scratch, "channels": group_in, "plane_bytes": plan.plane_bytes,
        "line_bytes": plan.line_words * arith.bytes, "word_bytes": arith.bytes,
        "lane_bytes": r.target.vector_bytes, "lanes": lanes(r.target, arith), "chunk": plan.chunk,
        "chunks": max(1, -(-group_in // plan.chunk)), "channel_entries": len(places), "entries": words(entries),
        "weights": packed, "w_group": group_out * group_in * taps * arith.bytes, "tile_count": len(tiles),
        "split_tiles": -(-len(tiles) // plan.splits), "tiles": words(records), "functions": words(functions),
        "flat": int(plan.flat), "slots": scratch + 512, "slot_tile": plan.slot_tile, "slot_row": plan.slot_row,
        "sum_row": plan.sum_row, "outputs": group_out,
        "bias": zeros() if r.bias is None else r.bias, "scale": zeros() if r.scale is None else r.scale,
        "constants": r.constants,
        "move_in": move_address(r, Move(p.x, arith.accumulator, _along(r, last, reading=True))),
        "move_out": move_address(r, Move(arith.accumulator, p.y, write, r.epilogue)),
    })  # fmt: skip
    return Step(address, fill_words(WORDS, values, keep), values["items"] if group_out else 0)


def _along(r: Request, last: Axis, *, reading: bool) -> str:
    """Contiguous axes of a move; few channels are cheaper element by element than through squares."""
    p = r.problem
    channels = (p.c if reading else p.m) // p.groups
    if reading:
        found = along(r.x, last, "p", reading=True, itemsize=r.x.itemsize, step=last.stride)
    else:
        found = along(r.y, last, "p", reading=False, itemsize=r.y.itemsize, step=last.out_step)
        if r.residual is not None and found != along(
            r.residual, last, "p", reading=False, itemsize=r.y.itemsize, step=last.out_step
        ):
            return "any"
    return "any" if found != "pp" and channels < 8 else found
