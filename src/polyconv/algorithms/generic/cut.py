"""How the generic algorithm cuts outputs into boxes, and what that costs.

A box is as large as its panel and sums may be.  Which axis lies along the lanes, whether sums leave from registers and
how many channels are in the panel at a time follow from the cost.  It must not know drivers or words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from polyconv.dataclass import dataclass
from polyconv.kernels.isa import Arithmetic, lanes, pixel_tiles
from polyconv.lowering.boxes import boxes, near_equal_sizes
from polyconv.lowering.moves import MOST_STEP, are_short, is_apart, row_cycles
from polyconv.lowering.panel import header_bytes
from polyconv.lowering.pixels import ZERO_BYTES, tile_rows
from polyconv.lowering.situation import Situation, image_bytes
from polyconv.lowering.sweep import Family, Lines, Sweep, box_count, lines, sweeps
from polyconv.lowering.tiles import is_fusible, tile_cycles
from polyconv.lowering.traffic import beyond_cycles, far_cycles, streamed_cycles
from polyconv.machine.profile import Rates
from polyconv.target import Target

__all__ = ["CALL_CYCLES", "FUSED_CYCLES", "Cut", "cost", "cut_of", "cut_with_slots"]

_PANEL_SHARES = (("l2", 1 / 4), ("l1", 16 / 3))
"""Of caches, for the panel of a box: it stays in the second-level one while it is read m/groups times, and one of more
than a few first-level ones spares nothing.  Measured on Emerald Rapids, with 2 MiB: 1-39 % off by the second."""
_MOST_GROUPS = 64
"""Groups of an item."""
_LONGEST_ROW = 32768
"""Outputs of a row of a box."""

_APART_SHARE = 1 / 4
"""Share of a first-level cache: what the taps of a stride read for a vector of pixels each stays there up to it."""
_NEAR_SHARE = 1 / 3
"""Of a first-level cache, for the inputs of one tile: more do not stay until the next tile reads them again."""

FUSED_CYCLES, CALL_CYCLES = 1.2, 90.0
"""Cycles in which a vector of results leaves a fused tile, and in which a row of these begins."""

_ASKED = 0.2
"""Share of the cycles of inputs from memory that is left where whole rows are asked for a box early."""

_STREAMS, _FORESEEN = 16, 0.7
"""Planes of which the hardware asks for lines early where whole rows of so few are read at a time, and what is left."""

_SHORT_STEP = 8.0
"""Where sums go through slots a step takes a cycle more, but for whole boxes of so many cycles a step."""

_FAR_LINES = 1.07
"""Factor on the multiply-adds of a row of outputs whose taps lie in several lines of the panel."""

_SPARE = 128
"""Bytes behind the sums, so that the last vector may be whole."""

_FAR_STORE = 1.8
"""Cycles that a result takes more which is alone in a line that a first cache does not hold.  Measured on Zen 5."""

_CALL = 60.0
"""Cycles in which a call for many rows begins."""

_LATE = 0.1
"""Share of an item by which one thread is done later than another."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a family of sweeps is cut, and what a thread keeps in its workspace.

    Parameters
    ----------
    family : Family
        Phases of a transposed convolution that are computed together; else the only sweep.
    order : tuple of int
        Axes of the problem, outermost first; the last lies along the lanes.
    sweep : Sweep
        The family's, in that order.
    outputs : int
        Rows of tiles: output channels of a group, of every member.
    box : tuple of int
        Outputs of an item along every axis.
    held : tuple of Lines
        Inputs of a box along every axis.
    flat : bool
        Whether lanes go along the flattened box, over its rows and what lies between them.
    fused : bool
        Whether results leave from registers; else sums go through slots.
    block_groups : int
        Groups of an item.
    chunk : int
        Channels of a group that are in the panel at a time.
    plane_bytes, panel : int
        Bytes of a channel in the panel, and of the panel.
    row_bytes, output_bytes, slot_bytes : int
        From a row of an output's sums to the next, from an output of a tile to the next, and from an output to the
        next where all have sums at a time.
    workspace : int
        Bytes.
    splits : int
        Parts of the sets of outputs, each an item.
    """

    family: Family
    order: tuple[int, ...]
    sweep: Sweep
    outputs: int
    box: tuple[int, ...]
    held: tuple[Lines, ...]
    flat: bool
    fused: bool
    block_groups: int
    chunk: int
    plane_bytes: int
    panel: int
    row_bytes: int
    output_bytes: int
    slot_bytes: int
    workspace: int
    splits: int = 1

    @property
    def members(self) -> int:
        """Sweeps of the family."""
        return len(self.family.members)

    @property
    def line_pixels(self) -> int:
        """Pixels of a line of the panel."""
        return self.held[-1].count

    @property
    def taps(self) -> int:
        """Taps of a channel."""
        return math.prod(axis.taps for axis in self.sweep)

    @property
    def boxes(self) -> int:
        """Boxes of a group of an image."""
        return box_count(self.sweep, self.box)


def cut_of(s: Situation, arith: Arithmetic, family: Family) -> Cut:
    """The cheapest order of axes: the innermost reads in place, a longer one fills more lanes."""
    sweep = family.sweep
    rank = len(sweep)
    own = tuple(range(rank))
    orders = [own]
    rows = tuple(sorted(own, key=lambda a: sweep[a].out > 1))  # of more than an output
    longest = max(own, key=lambda a: (sweep[a].out, a))
    if rows != own:
        orders.append(rows)
    if longest not in (rank - 1, rows[-1]) and sweep[longest].out > 2 * sweep[-1].out:
        orders.append((*(a for a in own if a != longest), longest))
    one = replace(s, threads=1) if s.threads > 1 else s  # their number decides no order
    cuts = [_cut_in_order(one, arith, family, order, fused=False) for order in orders]
    alone = len(family.members) == 1 and sweep[-1].out_step == 1
    if s.problem.layout == "NCHW" and alone and is_fusible(s.problem):
        fused = _cut_in_order(one, arith, family, orders[0], fused=True)
        cuts += [fused] if fused.fused else []
    best = cuts[0]
    if len(cuts) > 1:
        best = min(cuts, key=lambda cut: s.price(cut, sum(cost(one, arith, cut).values())))
    return best if s is one else _cut_in_order(s, arith, family, best.order, fused=best.fused)


def cut_with_slots(s: Situation, arith: Arithmetic, cut: Cut) -> Cut:
    """The same order for results that do not lie as their layout says: they cannot leave from registers."""
    return _cut_in_order(s, arith, cut.family, cut.order, fused=False) if cut.fused else cut


def _cut_in_order(s: Situation, arith: Arithmetic, family: Family, order: tuple[int, ...], *, fused: bool) -> Cut:
    """The largest box that fits, with as few chunks of channels, or as many groups, as there is room for."""
    p, sweep = s.problem, tuple(family.sweep[a] for a in order)
    group_in = max(1, p.c // p.groups)
    sets = len(tile_rows(p.m // p.groups * len(family.members), s.target, arith))
    room = min(round(share * s.profile.numbers[f"{level}.bytes"]) for level, share in _PANEL_SHARES)
    budget = s.budget(room if sets > 2 else 2 * room)
    extents = tuple(axis.out for axis in sweep)
    start = (*extents[:-1], min(extents[-1], _LONGEST_ROW))
    enough = min(4 * lanes(s.target, arith), math.prod(extents))  # outputs of a box: fewer read the panel badly

    # channels that lie together should be read together: boxes small enough for a cache line of them
    together = min(p.groups, -(-16 // group_in)) if p.layout == "NHWC" or extents[-1] < 64 else 1
    together = 1 if fused else together

    def sizes(box: tuple[int, ...], block_groups: int, chunk: int) -> Cut:
        return _sizes(s, arith, family, order, fused, box, block_groups, chunk)

    def fitted(chunk: int) -> Cut:
        return sizes(boxes(start, lambda box: sizes(box, together, chunk).workspace, budget), 1, chunk)

    chunk = group_in
    cut = fitted(chunk)
    while chunk > 1 and (cut.workspace > budget or math.prod(cut.box) < enough):
        chunk = -(-chunk // 2)
        less = fitted(chunk)
        if cut.workspace <= budget and math.prod(less.box) <= math.prod(cut.box):
            break  # sums take the room, not channels
        cut = less
    if p.groups == 1 and p.layout == "NCHW" and not fused:
        cut = _of_fewer_channels(s, arith, cut, fitted)
    if cut.chunk >= group_in and p.groups > 1 and not fused:
        beside = header_bytes(len(sweep)) + ZERO_BYTES + _SPARE
        most = (budget - beside) // max(1, cut.workspace - beside)
        block_groups = max(1, min(p.groups, _MOST_GROUPS, most))
        while block_groups > 1 and sizes(cut.box, block_groups, cut.chunk).workspace > budget:
            block_groups = -(-block_groups // 2)
        cut = sizes(cut.box, block_groups, cut.chunk)
    return _shared(s, arith, cut, sets, lambda box: sizes(box, cut.block_groups, cut.chunk))


def _of_fewer_channels(s: Situation, arith: Arithmetic, cut: Cut, fitted: Callable[[int], Cut]) -> Cut:
    """With fewer channels in the panel at a time, as long as that is cheaper: larger boxes share more lines."""
    least = math.inf
    while (price := s.price(("chunk", cut.chunk), sum(cost(s, arith, cut).values()))) < least:
        best, least = cut, price
        if cut.chunk == 1 or cut.box == tuple(axis.out for axis in cut.sweep):
            break
        cut = fitted(-(-cut.chunk // 2))
    return best


def _sizes(s: Situation, arith: Arithmetic, family: Family, order: tuple[int, ...], fused: bool, box: tuple[int, ...],
           block_groups: int, chunk: int) -> Cut:  # fmt: skip
    """What a box takes."""
    p, members = s.problem, len(family.members)
    sweep, lane = tuple(family.sweep[a] for a in order), lanes(s.target, arith)
    group_in, group_out = p.c // p.groups, p.m // p.groups * members
    held = tuple(lines(axis, b) for axis, b in zip(sweep, box, strict=True))
    counts = [h.count for h in held]
    rows, pixels = math.prod(box[:-1]), math.prod(counts)
    pitches = [math.prod(counts[a + 1 :]) for a in range(len(held))]
    whole = sum((b - 1) * pitch for b, pitch in zip(box, pitches, strict=True)) + 1
    fused = fused and chunk >= group_in and block_groups == 1
    row, rates = -(-box[-1] // lane), s.rates(arith)
    flat = not fused and rows > 1 and _tap_cycles(
        s.target, arith, rates, group_out, -(-whole // lane)
    ) < rows * _tap_cycles(s.target, arith, rates, group_out, row)
    padded = -(-(whole if flat else box[-1]) // lane) * lane
    row_bytes = (counts[-1] if flat else padded) * arith.bytes
    output_bytes = (padded + lane if flat else padded * rows) * arith.bytes
    plane = (pixels + 2 * lane) * arith.bytes
    all_slots = block_groups > 1 or chunk < group_in or members > 1
    tallest = max((height for _, height in tile_rows(group_out, s.target, arith)), default=1)
    sums = 0 if fused else output_bytes * (block_groups * group_out if all_slots else tallest)
    panel = -(-min(chunk, group_in) * block_groups * plane // 64) * 64
    workspace = header_bytes(len(sweep)) + panel + ZERO_BYTES + sums + _SPARE
    return Cut(
        family, order, sweep, group_out, box, held, flat, fused, block_groups, chunk, plane, panel, row_bytes,
        output_bytes, output_bytes if all_slots else 0, workspace,
    )  # fmt: skip


def _shared(s: Situation, arith: Arithmetic, cut: Cut, sets: int, sizes: Callable[[tuple[int, ...]], Cut]) -> Cut:
    """With smaller boxes, or the sets of output channels split, so that the busiest thread has least to do.

    Boxes share lines of inputs, which each brings in place; every part of the sets does so with all of them.
    """
    p = s.problem
    if s.threads == 1 or 0 in cut.box or not p.n:
        return cut
    outer = next((a for a, axis in enumerate(cut.sweep) if axis.out > 1), 0)
    extent, fewest = cut.sweep[outer].out, -(-cut.sweep[outer].out // cut.box[outer])
    most_splits = 1 if cut.block_groups > 1 or cut.members > 1 else max(1, sets)
    best, least = cut, math.inf
    for parts in range(fewest, max(fewest, min(extent, 4 * s.threads)) + 1):
        smaller = sizes((*cut.box[:outer], -(-extent // parts), *cut.box[outer + 1 :]))
        cycles, items = cost(s, arith, smaller), p.n * -(-p.groups // cut.block_groups) * smaller.boxes
        for splits in range(1, min(most_splits, 4 * s.threads) + 1):
            of_sets = -(-sets // -(-sets // splits))
            total = cycles["products"] + of_sets * cycles["panels"] + cycles["moves"]
            turns = -(-items * of_sets // s.threads) + _LATE
            load = total * turns / (items * of_sets)
            if load < 0.99 * least and smaller.workspace <= cut.workspace:
                best, least = replace(smaller, splits=of_sets), load
    return best


def cost(s: Situation, arith: Arithmetic, cut: Cut) -> dict[str, float]:
    """Cycles: multiply-adds with the lanes that rows or boxes fill, filling panels, and moving sums out."""
    p, last = s.problem, cut.sweep[-1]
    group_in, items = p.c // p.groups, cut.boxes * p.groups * (p.n or 0)
    bytes_in = math.prod(max(1, h.count) for h in cut.held) * group_in * p.x_dtype.itemsize
    far = far_cycles(s, cut.boxes * p.groups * bytes_in, soon=True) * (p.n or 0)
    if cut.box[-1] == last.out:
        far *= _ASKED if cut.fused else _FORESEEN if cut.chunk <= _STREAMS else 1.0
    if not cut.fused and are_short(cut.sweep, cut.line_pixels):
        members = len(sweeps(p))  # every one reads the input, and writes its part of the result
        far += beyond_cycles(s, image_bytes(p)[0] + image_bytes(p)[1] // members) * (p.n or 0)
    products = max(1, group_in * cut.taps) * _step_cycles(s, arith, cut)  # outputs without taps leave by tiles too
    panel, moves = _panel_cycles(s, arith, cut), _moves_cycles(s, arith, cut)
    return {"products": items * products, "panels": items * panel + far, "moves": items * moves}


@lru_cache(4096)
def _tap_cycles(target: Target, arith: Arithmetic, rates: Rates, outputs: int, vectors: int) -> float:
    """Cycles of a tap of a channel, for all outputs of so many vectors of pixels."""
    heights, cycles = pixel_tiles(target, arith), 0.0
    for rows, times in Counter(rows for _, rows in tile_rows(outputs, target, arith)).items():
        full, rest = divmod(vectors, heights[rows])
        for v, count in ((heights[rows], full), (rest, int(rest > 0))):
            cycles += times * count * (tile_cycles(rates, rows, v) + 1.0)
    return cycles


def _step_cycles(s: Situation, arith: Arithmetic, cut: Cut) -> float:
    """Cycles of a tap of a channel, for all outputs of a box."""
    p, lane, rates, last = s.problem, lanes(s.target, arith), s.rates(arith), cut.sweep[-1]
    group_in, heights = p.c // p.groups, pixel_tiles(s.target, arith)
    entries, outer = group_in * cut.taps, math.prod(axis.taps for axis in cut.sweep[:-1])
    of_chunk = max(1, entries // -(-group_in // cut.chunk)) if group_in else 1
    vectors = -(-cut.box[-1] // lane) if cut.fused else cut.output_bytes // (lane * arith.bytes)

    def tile(rows: int, vectors: int) -> float:
        """Cycles of a step: neighbouring taps load across lines, one vector a cycle, and a weight for each output."""
        cycles = max(tile_cycles(rates, rows, vectors), vectors + rows / rates.loads if last.taps > 1 else 0.0)
        return cycles * _FAR_LINES if outer > 1 and not cut.flat else cycles

    # of a panel that a first-level cache is far from holding every set of outputs streams all, once for its taps
    far_share = min(1.0, max(0.0, cut.panel / s.cache("l1", 4) - 1 / 2)) / max(1, cut.taps)
    step = 0.0
    for rows, times in Counter(rows for _, rows in tile_rows(cut.outputs, s.target, arith)).items():
        if cut.fused:
            walks = near_equal_sizes(vectors, heights[rows])
            number = sum(count for _, count in walks)
            calls = CALL_CYCLES + 10 * (number - 1) + FUSED_CYCLES * rows * vectors
            walk = -(-vectors // max(1, number)) * s.target.vector_bytes
            line = walk + last.taps * arith.bytes
            far = group_in * outer * line > s.cache("l1", _NEAR_SHARE)
            cycles = sum(count * tile(rows, v) for v, count in walks) + (1.5 * vectors if far else 0.0)
            cycles += number * streamed_cycles(s, line) * far_share
            # taps of a stride lie in lines of their own, each of which is read again after all others
            if min(last.taps, last.stride) * walk > s.cache("l1", _APART_SHARE):
                cycles += number * streamed_cycles(s, walk, apart=True)
            step += times * math.prod(cut.box[:-1]) * (cycles + calls / max(1, entries))
            continue
        full, rest = divmod(vectors, heights[rows])
        step += times * (full + (rest > 0)) * 30 / of_chunk
        for v, count in ((heights[rows], full), (rest, int(rest > 0))):
            late = 0.0 if cut.flat and cut.members == 1 and tile(rows, v) >= _SHORT_STEP else 1.0
            step += times * count * (tile(rows, v) + late)
    return step


def _panel_cycles(s: Situation, arith: Arithmetic, cut: Cut) -> float:
    """Cycles in which the panel of a box of a group is filled."""
    p, last = s.problem, cut.sweep[-1]
    group_in = p.c // p.groups
    planes = p.layout == "NCHW" and cut.order[-1] == len(cut.order) - 1
    apart = planes and is_apart(p, last, lanes(s.target, arith), "p")  # a line is found and moved once, not run by run
    if apart:
        pixel = 0.4
    elif planes and last.stride <= MOST_STEP:
        pixel = 0.3 * last.stride
    else:
        pixel = 0.35 if p.layout == "NHWC" and cut.block_groups * group_in >= 8 else 0.9
    pixel *= 1.7 if arith.bytes == 8 else 1.0  # measured on Zen 5: 1.5 to 2 times as long
    runs = 1 if apart else max(1, len(cut.held[-1].runs))
    lines = math.prod(max(1, h.count) for h in cut.held[:-1]) * runs
    if planes and not apart and last.stride <= MOST_STEP and are_short(cut.sweep, cut.line_pixels):
        calls, lane = lines / max(1, cut.held[-2].count) * max(1, len(cut.held[-2].runs)), lanes(s.target, arith)
        of_line = row_cycles(cut.line_pixels / runs, lane, last.stride)
        zeros = cut.plane_bytes / s.target.vector_bytes
        return calls * (30.0 * len(cut.sweep) + _CALL) / cut.block_groups + group_in * (lines * of_line + zeros)
    return lines * (30.0 * len(cut.sweep) / cut.block_groups + group_in * (8 + cut.line_pixels / runs * pixel))


def _far_cycles(s: Situation, cut: Cut) -> float:
    """Cycles that a result takes more whose neighbours along the lanes lie in lines that no first cache holds."""
    p, numbers = s.problem, s.profile.numbers
    apart = cut.sweep[-1].out_step * math.prod(o or 0 for o in p.out[cut.order[-1] + 1 :]) * p.y_dtype.itemsize
    return _FAR_STORE if apart >= numbers["line"] and image_bytes(p)[1] > numbers["l1.bytes"] else 0.0


def _moves_cycles(s: Situation, arith: Arithmetic, cut: Cut) -> float:
    """Cycles in which an item begins, and sums of a box of a group go to the result."""
    p, last = s.problem, cut.sweep[-1]
    begin = 300.0 / cut.block_groups
    if cut.fused:
        return begin
    innermost, group_out, near = cut.order[-1] == len(cut.order) - 1, cut.outputs, last.out_step <= MOST_STEP
    rows, width = math.prod(cut.box[:-1]), cut.box[-1]
    if p.layout == "NCHW" and innermost and near and are_short(cut.sweep, last.out):
        calls = rows / cut.box[-2] * cut.members
        of_row = row_cycles(width, lanes(s.target, arith), last.out_step)
        return begin + calls * (40.0 * len(cut.sweep) + _CALL) / cut.block_groups + group_out * rows * of_row
    if (p.layout == "NCHW" or p.m == 1) and last.out_step == 1 and innermost:
        pixel = 0.4
    elif p.layout == "NCHW" and innermost and last.out_step <= (MOST_STEP if s.target.has_masks else 2):
        pixel = 0.3 * last.out_step
    elif p.layout == "NHWC":
        pixel = 0.6 if cut.block_groups * group_out >= 8 else 1.5
    else:
        pixel = 1.5 + _far_cycles(s, cut)
    return begin + rows * (40.0 * len(cut.sweep) / cut.block_groups + group_out * (8 + width * pixel))
