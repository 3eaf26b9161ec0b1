"""Small groups of small integers: groups of 1, 2, 4 and 8 channels, as wide out as in, with their words in the lanes.

A box of outputs gets a panel of its inputs as in ``dots``, channels together, by whose driver it is computed: a block
of outputs is a vector of words.  Channels of groups narrower than a word meet weights of zero in the other groups'
sums.  Any rank, stride, dilation, pads and layout.  Cost: the products, with words filled to whole groups, and one pass
over input and output.  Exact: sums are taken modulo 2^32.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms import dots, dots_plan
from polyconv.algorithms.dots import DotTile
from polyconv.algorithms.dots_plan import Plan, channel_bytes
from polyconv.algorithms.panel import Driver
from polyconv.algorithms.program import (
    Program,
    Request,
    Situation,
    Step,
    along_in,
    boxed_words,
    boxes,
    far_cycles,
    move_in_address,
    near_equal,
    near_equal_sizes,
    row_lists,
    rows_together,
    thread_parts,
)
from polyconv.algorithms.sweep import Sweep, line_pixels, lines, sweeps
from polyconv.kernels.dots_grouped import grouped_dot_tile, sum_count
from polyconv.kernels.fused import FusedTile, WordWalk, of_sums
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, lanes
from polyconv.kernels.language import Module
from polyconv.kernels.layout import Move
from polyconv.kernels.objects import kernel
from polyconv.kernels.record import counted_words, filled
from polyconv.kernels.signature import Address
from polyconv.runtime.arrays import aligned
from polyconv.target import Target

__all__ = ["applicable", "build", "cost", "workspace"]

_GROUPS = (1, 2, 4, 8)
_MOST_ROWS = 8
_PANEL_BYTES = 320 << 10
"""Workspace of a thread, in a second-level cache."""


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    p = s.problem
    reason = dots_plan.applicable(s)
    if reason is not None:
        return reason
    if p.c != p.m or p.groups == 0 or p.c // p.groups not in _GROUPS:
        return "needs groups of 1, 2, 4 or 8 channels, as many out as in"
    return None


def workspace(s: Situation) -> int:
    """Bytes a thread needs."""
    arith = ARITHMETIC[dots_plan.arithmetic(s)]
    return max((_plan(s, arith, sweep).workspace for sweep in sweeps(s.problem)), default=0)


def cost(s: Situation) -> dict[str, float]:
    """Cycles: the products or the loads of their operands, what follows sums, and one pass over input and output."""
    p, arith = s.problem, ARITHMETIC[dots_plan.arithmetic(s)]
    group, rates, slow = p.c // p.groups, s.rates(arith), 1.0 if s.target.vnni else 1.5
    count, most = sum_count(arith.name, group), _most_rows(s.target, arith, group)
    products = moves = 0.0
    for sweep in sweeps(p):
        plan = _plan(s, arith, sweep)
        box_count = math.prod(-(-axis.out // max(1, b)) for axis, b in zip(sweep, plan.box, strict=True))
        rows, width = math.prod(plan.box[:-1]) * box_count, plan.box[-1]
        taps = math.prod(axis.taps for axis in sweep)
        for pixels, alike in near_equal_sizes(width, most):
            step = max(slow * pixels * count / rates.multiply_adds, (pixels + count) / rates.loads, rates.latency)
            products += rows * alike * plan.blocks * (taps * (step + 1) + 15 + pixels * (4.0 * arith.channels + count))
        held = math.prod(max(1, h.count) for h in plan.held)
        moves += box_count * (400 + held * plan.blocks * (3.0 if p.layout == "NHWC" else 24.0))
        moves += rows * width * plan.blocks * (0.0 if p.layout == "NHWC" else 24.0)
        moves += far_cycles(p, box_count * held * p.c * p.x_dtype.itemsize)
    return {"products": products * (p.n or 0), "moves": moves * (p.n or 0)}


def _most_rows(target: Target, arith: Arithmetic, group: int) -> int:
    """Most rows of a tile: sums, the weights or pixels that are used again, and two more must fit the registers."""
    count, spare = sum_count(arith.name, group), 2 if target.vnni else 3
    fits = [n for n in range(1, _MOST_ROWS + 1) if n * count + min(n, count) + spare <= target.registers]
    return max(fits, default=1)


@lru_cache(256)
def _plan(s: Situation, arith: Arithmetic, sweep: Sweep) -> Plan:
    p = s.problem
    extents = tuple(axis.out for axis in sweep)
    batch = p.n or 0
    start = (*extents[:-1], min(extents[-1], 512))
    if s.threads > 1 and batch < 4 * s.threads:  # a few items for every thread
        parts = -(-4 * s.threads // max(1, batch))
        axis = 0 if len(extents) == 1 or extents[0] >= parts else len(extents) - 2
        start = tuple(max(1, -(-e // parts)) if a == axis else e for a, e in enumerate(start))
    box = boxes(start, lambda box: _sizes(s, arith, sweep, box).workspace, s.budget(_PANEL_BYTES))
    plan = _sizes(s, arith, sweep, box)
    items = batch * math.prod(-(-e // b) for e, b in zip(extents, plan.box, strict=True))
    return replace(plan, splits=thread_parts(s.threads, items, plan.blocks, 0.3))


def _sizes(s: Situation, arith: Arithmetic, sweep: Sweep, box: tuple[int, ...]) -> Plan:
    last, wide = sweep[-1], s.target.vector_bytes
    run, step = line_pixels(last, box[-1])
    held = (*(lines(axis, b) for axis, b in zip(sweep[:-1], box[:-1], strict=True)), run)
    blocks = max(1, -(-s.problem.c // _block_channels(s.target, arith)))
    pixel = blocks * wide
    line = run.count * pixel
    panel = math.prod(max(1, h.count) for h in held[:-1]) * line + 64
    run_rows = rows_together(sweep, box, dots_plan.RUN_PIXELS)
    vectors = arith.channels
    slots = run_rows * box[-1] * vectors * wide
    return Plan(box, held, step, False, False, pixel, line, panel, panel, vectors, vectors, blocks, run_rows, slots)


def _block_channels(target: Target, arith: Arithmetic) -> int:
    return lanes(target, arith) * arith.channels


def build(r: Request) -> Program:
    """Program of a request: one step per sweep."""
    keep: list[Any] = []
    address = dots.driver_address(r)
    steps = [_step(r, sweep, address, keep) for sweep in sweeps(r.problem)]
    return Program(tuple(step for step in steps if step.items), workspace(r.situation), tuple(keep))


def _step(r: Request, sweep: Sweep, address: Address[Driver], keep: list[Any]) -> Step:
    p, arith, last = r.problem, r.arith, sweep[-1]
    plan, block = _plan(r.situation, arith, sweep), _block_channels(r.target, arith)
    group, wide, taps = p.c // p.groups, r.target.vector_bytes, math.prod(axis.taps for axis in sweep)
    w, padding = r.weights(sweep), dots.padding_of(r)
    in_registers = p.y_dtype.bits == 8 and dots.finished_in_registers(r, last) and r.residual is None
    r = _by_sums(dots.with_bias(r, w, padding), plan.blocks * block) if in_registers else dots.with_bias(r, w, padding)
    spec = FusedTile(arith.name, p.y, r.epilogue) if in_registers else of_sums(arith.name)
    key = ("dots_grouped", arith.name, wide, tuple((a.taps, a.first_tap, a.tap_step) for a in sweep))
    packed = r.packed(key, lambda: _packed(w, arith, block))
    outer = [0]
    for h in plan.held[:-1]:
        outer = [o * h.count + t for o in outer for t in h.start]
    entries = [
        [v for t, at in enumerate(plan.held[-1].start) for v in (o * plan.line_bytes + at * plan.pixel_bytes, 1,
                                                                tap * last.taps + t)]
        for tap, o in enumerate(outer)
    ]  # fmt: skip
    one_group = replace(r, situation=replace(r.situation, problem=replace(p, groups=1)))
    common, items = boxed_words(one_group, sweep, plan.box, plan.held, plan.splits, panel=plan.header)
    tiles = _tiles(r, plan, spec, last.out % plan.box[-1] or plan.box[-1], group, cut=in_registers and p.c % block > 0)
    of_block = taps * sum_count(arith.name, group) * wide
    element = f"i{8 * channel_bytes(arith)}"
    move = move_in_address(r, Move(p.x, element, along_in(r, replace(last, stride=plan.step), "c")))
    values = dots.DotWords(
        common=dots.panel_common(r, common, plan), panel=dots.panel_words(r, plan, p.c, padding, move),
        row_step=plan.pixel_bytes * (last.stride // plan.step), word_step=arith.bytes, source_block=wide,
        rows=row_lists(sweep[:-1], entries, 3, whole=padding > 0),
        weights=packed, w_group=0, w_block=of_block, w_last=of_block * (plan.blocks - 1), w_last_group=0,
        outputs=p.m, blocks=plan.blocks, split_blocks=-(-plan.blocks // plan.splits), block_outputs=block,
        last_outputs=p.m - (plan.blocks - 1) * block, last_lanes=p.m - (plan.blocks - 1) * block,
        tiles=tiles, table_words=counted_words(DotTile, tiles),
        results=dots.result_words(r, sweep, plan, lanes(r.target, arith), in_registers=in_registers),
    )  # fmt: skip
    return Step(address, filled(values, keep), items)


def _by_sums(r: Request, channels: int) -> Request:
    """The request with biases and scales in the order of sums: of every block the first channel of each word, ..."""
    lane, together = lanes(r.target, r.arith), r.arith.channels

    def ordered(table: NDArray[Any] | None) -> NDArray[Any] | None:
        if table is None:
            return None
        filled_up = aligned((channels,), table.dtype)
        filled_up[...] = 0
        filled_up[: table.size] = table
        filled_up[...] = filled_up.reshape(-1, lane, together).swapaxes(1, 2).reshape(-1)
        return filled_up

    return replace(r, bias=ordered(r.bias), scale=ordered(r.scale))


def _tiles(r: Request, plan: Plan, spec: FusedTile, edge: int, group: int, *, cut: bool) -> list[list[DotTile]]:
    """The tables of tiles; those of the last block mask its last channels where it is cut."""
    most = _most_rows(r.target, r.arith, group)
    tables: list[list[DotTile]] = []
    for is_cut, is_there in ((False, plan.blocks > 1), (cut, True)):
        for pixels in (plan.box[-1], edge):
            functions = _functions(r, replace(spec, edge=is_cut), group, most) if is_there else []
            tables.append([DotTile(first, functions[n - 1]) for first, n in near_equal(pixels, most) if is_there])
    return tables


def _functions(r: Request, spec: FusedTile, group: int, most: int) -> list[Address[WordWalk]]:
    """Addresses of the tiles of 1, 2, ... rows."""
    names = {f"tile{rows}": rows for rows in range(1, most + 1)}

    def build(k: Module) -> None:
        for name, rows in names.items():
            grouped_dot_tile(k, name, spec, lanes(r.target, r.arith), rows, group)

    label = f"grouped dots {spec} {max(group, r.arith.channels)}"
    found = kernel(label, dict.fromkeys(names, WordWalk), build, r.target, check=r.check)
    return [found[name] for name in names]


def _packed(w: NDArray[Any], arith: Arithmetic, block: int) -> NDArray[Any]:
    """Weights (groups, group, group, taps) as [block][tap][sum][channel], zeros between different groups."""
    groups, group, _, taps = w.shape
    count, together, channels = sum_count(arith.name, group), arith.channels, groups * group
    blocks = -(-channels // block)
    packed = np.zeros((blocks * block, taps, count), w.dtype)
    channel = np.arange(channels)
    for number in range(count):
        output = channel // max(group, together) * max(group, together) + number
        alike = (output // group == channel // group) & (output < channels)
        some, of_some = channel[alike], output[alike]
        packed[some, :, number] = w[some // group, of_some % group, some % group]
    return np.ascontiguousarray(packed.reshape(blocks, block, taps, count).transpose(0, 2, 3, 1))
