"""Small groups of small integers: groups of 1, 2, 4 and 8 channels, as wide out as in, with their words in the lanes.

A box of outputs gets a panel of its inputs as in ``dots``, channels together, by whose driver it is computed: a block
of outputs is a vector of words.  Channels of groups narrower than a word meet weights of zero in the other groups'
sums.  Any rank, stride, dilation, pads and layout.  Cost: the products, with words filled to whole groups, and one pass
over input and output.  Exact: sums are taken modulo 2^32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms import dots, dots_plan
from polyconv.algorithms.dots import DotTile
from polyconv.algorithms.dots_plan import Plan, channel_bytes
from polyconv.algorithms.panel import Driver, RowLists
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

__all__ = [
    "Form", "applicable", "block_channels", "blocks_step", "build", "cost", "line_offsets", "plan_of", "workspace",
]  # fmt: skip

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
    return max((plan_of(s, arith, sweep).workspace for sweep in sweeps(s.problem)), default=0)


def cost(s: Situation) -> dict[str, float]:
    """Cycles: the products or the loads of their operands, what follows sums, and one pass over input and output."""
    p, arith = s.problem, ARITHMETIC[dots_plan.arithmetic(s)]
    group, rates, slow = p.c // p.groups, s.rates(arith), 1.0 if s.target.vnni else 1.5
    count, most = sum_count(arith.name, group), _most_rows(s.target, arith, group)
    products = moves = 0.0
    for sweep in sweeps(p):
        plan = plan_of(s, arith, sweep)
        box_count = math.prod(-(-axis.out // max(1, b)) for axis, b in zip(sweep, plan.box, strict=True))
        rows, width = math.prod(plan.box[:-1]) * box_count, plan.box[-1]
        taps = math.prod(axis.taps for axis in sweep)
        for pixels, alike in near_equal_sizes(width, most):
            step = max(slow * pixels * count / rates.multiply_adds, (pixels + count) / rates.loads, rates.latency)
            products += rows * alike * plan.blocks * (taps * (step + 1) + 15 + pixels * (4.0 * arith.channels + count))
        held = math.prod(max(1, h.count) for h in plan.held)
        moves += box_count * (400 + held * plan.blocks * (3.0 if p.layout == "NHWC" else 8.0))
        moves += rows * width * plan.blocks * (0.0 if p.layout == "NHWC" else 10.0)
        moves += far_cycles(p, box_count * held * p.c * p.x_dtype.itemsize)
    return {"products": products * (p.n or 0), "moves": moves * (p.n or 0)}


def _most_rows(target: Target, arith: Arithmetic, group: int) -> int:
    """Most rows of a tile: sums, the weights or pixels that are used again, and two more must fit the registers."""
    count, spare = sum_count(arith.name, group), 2 if target.vnni else 3
    fits = [n for n in range(1, _MOST_ROWS + 1) if n * count + min(n, count) + spare <= target.registers]
    return max(fits, default=1)


@lru_cache(256)
def plan_of(s: Situation, arith: Arithmetic, sweep: Sweep) -> Plan:
    """Sizes of a sweep's boxes."""
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
    blocks = max(1, -(-s.problem.c // block_channels(s.target, arith)))
    pixel = blocks * wide
    line = run.count * pixel
    panel = math.prod(max(1, h.count) for h in held[:-1]) * line + 64
    run_rows = rows_together(sweep, box, dots_plan.RUN_PIXELS)
    vectors = arith.channels
    slots = run_rows * box[-1] * vectors * wide
    return Plan(box, held, step, False, False, pixel, line, panel, panel, vectors, vectors, blocks, run_rows, slots)


def block_channels(target: Target, arith: Arithmetic) -> int:
    """Channels of a vector of words."""
    return lanes(target, arith) * arith.channels


def build(r: Request) -> Program:
    """Program of a request: one step per sweep."""
    keep: list[Any] = []
    address = dots.driver_address(r)
    steps = [_step(r, sweep, address, keep) for sweep in sweeps(r.problem)]
    return Program(tuple(step for step in steps if step.items), workspace(r.situation), tuple(keep))


@dataclass(frozen=True, slots=True)
class Form:
    """How a vector's worth of words is multiplied.

    Parameters
    ----------
    weights : array
        Of all blocks.
    rows : RowLists
        Entries of rows of outputs.
    channels : tuple of int
        For every lane of every sum the channel of a block that it is of.
    tiles : callable
        ``tiles(spec)``: addresses of the tiles of 1, 2, ... rows.
    whole_rows : bool
        Whether the only tile walks along a whole row.
    """

    weights: NDArray[Any]
    rows: RowLists
    channels: tuple[int, ...]
    tiles: Callable[[FusedTile], Sequence[Address[WordWalk]]]
    whole_rows: bool = False


def _step(r: Request, sweep: Sweep, address: Address[Driver], keep: list[Any]) -> Step:
    arith, plan, block = r.arith, plan_of(r.situation, r.arith, sweep), block_channels(r.target, r.arith)
    group, last, padding = r.problem.c // r.problem.groups, sweep[-1], dots.padding_of(r)
    key = ("dots_grouped", arith.name, r.target.vector_bytes, tuple((a.taps, a.first_tap, a.tap_step) for a in sweep))
    entries = [
        [v for t, at in enumerate(plan.held[-1].start) for v in (line + at * plan.pixel_bytes, 1, tap * last.taps + t)]
        for tap, line in enumerate(line_offsets(plan))
    ]
    form = Form(
        weights=r.packed(key, lambda: _packed(r.weights(sweep), arith, block)),
        rows=row_lists(sweep[:-1], entries, 3, whole=padding > 0),
        channels=tuple(np.arange(block).reshape(-1, arith.channels).T.reshape(-1).tolist()),
        tiles=lambda spec: _functions(r, spec, group, _most_rows(r.target, arith, group)),
    )
    return blocks_step(r, sweep, plan, form, address, keep)


def line_offsets(plan: Plan) -> list[int]:
    """Bytes in the panel before the lines that taps of the outer axes meet, for the first outputs of a box."""
    found = [0]
    for h in plan.held[:-1]:
        found = [o * h.count + t for o in found for t in h.start]
    return [o * plan.line_bytes for o in found]


def blocks_step(r: Request, sweep: Sweep, plan: Plan, form: Form, address: Address[Driver], keep: list[Any]) -> Step:
    """Step of a sweep whose blocks of outputs are made of as many input channels, in one of the forms."""
    p, arith, last = r.problem, r.arith, sweep[-1]
    block, padding = block_channels(r.target, arith), dots.padding_of(r)
    in_registers = p.y_dtype.bits == 8 and dots.finished_in_registers(r, last) and r.residual is None
    r = dots.with_bias(r, r.weights(sweep), padding)
    if in_registers:
        r = _by_sums(r, plan.blocks, form.channels)
    spec = FusedTile(arith.name, p.y, r.epilogue) if in_registers else of_sums(arith.name)
    one_group = replace(r, situation=replace(r.situation, problem=replace(p, groups=1)))
    common, items = boxed_words(one_group, sweep, plan.box, plan.held, plan.splits, panel=plan.header)
    edge = last.out % plan.box[-1] or plan.box[-1]
    tiles = _tiles(plan, spec, edge, form, cut=in_registers and p.c % block > 0)
    of_block = form.weights.nbytes // plan.blocks
    move = Move(p.x, f"i{8 * channel_bytes(arith)}", along_in(r, replace(last, stride=plan.step), "c"))
    outputs = p.m - (plan.blocks - 1) * block
    values = dots.DotWords(
        common=dots.panel_common(r, common, plan),
        panel=dots.panel_words(r, plan, p.c, padding, move_in_address(r, move)),
        row_step=plan.pixel_bytes * (last.stride // plan.step), word_step=plan.pixel_bytes,
        source_block=r.target.vector_bytes, rows=form.rows,
        weights=form.weights, w_group=0, w_block=of_block, w_last=of_block * (plan.blocks - 1), w_last_group=0,
        outputs=p.m, blocks=plan.blocks, split_blocks=-(-plan.blocks // plan.splits), block_outputs=block,
        last_outputs=outputs, last_lanes=outputs, tiles=tiles, table_words=counted_words(DotTile, tiles),
        results=dots.result_words(r, sweep, plan, lanes(r.target, arith), in_registers=in_registers),
    )  # fmt: skip
    return Step(address, filled(values, keep), items)


def _by_sums(r: Request, blocks: int, channels: tuple[int, ...]) -> Request:
    """The request with biases and scales in the order of the lanes of sums, for whole blocks."""

    def ordered(table: NDArray[Any] | None) -> NDArray[Any] | None:
        if table is None:
            return None
        whole, found = np.zeros((blocks, len(channels)), table.dtype), aligned((blocks * len(channels),), table.dtype)
        whole.reshape(-1)[: table.size] = table
        found[...] = whole[:, channels].reshape(-1)
        return found

    return replace(r, bias=ordered(r.bias), scale=ordered(r.scale))


def _tiles(plan: Plan, spec: FusedTile, edge: int, form: Form, *, cut: bool) -> list[list[DotTile]]:
    """The tables of tiles; those of the last block mask its last channels where it is cut."""
    tables: list[list[DotTile]] = []
    for is_cut, is_there in ((False, plan.blocks > 1), (cut, True)):
        functions = form.tiles(replace(spec, edge=is_cut)) if is_there else []
        for pixels in (plan.box[-1], edge):
            if is_there and form.whole_rows:
                tables.append([DotTile(0, pixels, functions[0])])
            else:
                parts = near_equal(pixels, len(functions)) if is_there else []
                tables.append([DotTile(first, 1, functions[n - 1]) for first, n in parts])
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
