"""Small groups with the channels of several groups in the lanes: up to a vector wide, as many out as in.

A box of outputs gets a zero-padded copy of its input lines, [block of groups][line][pixel][lane], read by a tile that
walks along a row; taps whose lines lie in the padding are left out.  Where channels lie together, results go from
registers to their place; else through slots and a move.  Any rank, stride, dilation and layout.
Cost: the products, with lanes filled to whole groups, plus one pass over input and output.  Error: own bound,
k eps sum|x||w|.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

from polyconv.algorithms.dense.direct import refusal
from polyconv.algorithms.form import Form, Forms
from polyconv.algorithms.grouped import side_by_side
from polyconv.algorithms.grouped.padded_driver import GroupedWords, driver
from polyconv.algorithms.grouped.side_by_side import block_count, lanes_used, most_rows, packed_weights, tile_functions
from polyconv.algorithms.least import least
from polyconv.kernels.fused import FusedTile, Walk, of_sums
from polyconv.kernels.grouped import ENTRY_WORDS, BlocksIn, blocks_in
from polyconv.kernels.isa import lanes
from polyconv.kernels.layout import Move, MoveIn
from polyconv.kernels.record import altered, counted_words, filled
from polyconv.kernels.signature import Address
from polyconv.lowering.boxes import boxed_words, boxes, row_lists, rows_follow, rows_together, tap_entries
from polyconv.lowering.moves import along_in, along_out, move_in_address, move_out_address
from polyconv.lowering.panel import Driver, header_bytes
from polyconv.lowering.program import Program, Request, Step, address_of, epilogue_tables, program_of
from polyconv.lowering.situation import Situation, arith_of
from polyconv.lowering.sweep import Axis, Lines, Sweep, box_count, line_pixels, lines, mean_taps, sweeps, taps_of
from polyconv.lowering.tiles import is_fusible

__all__ = ["GroupedForm", "at_least", "forms"]

_PANEL_SHARE = {"NCHW": 1 / 4, "NHWC": 1 / 2}
"""Workspace of a thread, as a share of a second-level cache: more where items have many blocks."""
_MOST_BLOCKS, _MOST_REPEATED = 16, 1.3
"""Where channels lie together, most blocks of an item, and how often lines may be brought for them."""
_MOST_PIXELS, _RUN_PIXELS = 512, 64
"""Most pixels of a row; those that leave in one move at least, where rows are shorter and follow each other."""


# -- choosing ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of one sweep's items.

    Parameters
    ----------
    box : tuple of int
        Outputs.
    blocks : int
        Of groups.
    held : tuple of Lines
        Lines of the input along each axis; pixels of the last lie ``step`` apart in the input.
    line_bytes, block_bytes : int
        From one to the next in the panel.
    slots, run_rows : int
        Where sums wait in the workspace, and rows of them that leave together.
    workspace : int
    """

    box: tuple[int, ...]
    blocks: int
    held: tuple[Lines, ...]
    step: int
    line_bytes: int
    block_bytes: int
    slots: int
    run_rows: int
    workspace: int


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    p, reason = s.problem, refusal(s)
    if reason is not None:
        return reason
    if p.c != p.m:
        return f"needs groups with as many channels out as in, not {p.c // p.groups} and {p.m // p.groups}"
    if not 0 < p.c // p.groups <= lanes(s.target, arith_of(s)):
        return "a group is wider than a vector"
    return (GroupedForm.of(s),)


def at_least(s: Situation) -> float:
    """Cycles that products and the way in take, whatever the boxes and tiles."""
    p, arith, work = s.problem, arith_of(s), least(s.problem)
    group = p.c // p.groups
    if not 0 < group <= lanes(s.target, arith):
        return math.inf
    step = max(group / s.rates(arith).multiply_adds, 1.3 if group == 1 else 0.0)
    cycles = work.met * step + work.outputs * 0.35 * group + work.brought * (7.0 if p.layout == "NCHW" else 5.5)
    return cycles * (p.n or 0) * block_count(s, arith)


@lru_cache(256)
def _sizes_of(s: Situation, sweep: Sweep) -> Sizes:
    """The largest items that fit; every thread has a few."""
    total = block_count(s, arith_of(s))
    budget = s.budget(s.profile.cache("l2", _PANEL_SHARE[s.problem.layout]))
    extents = tuple(axis.out for axis in sweep)
    start = (*extents[:-1], min(extents[-1], _MOST_PIXELS))
    batch = s.problem.n or 0
    if s.threads > 1 and batch * total < 4 * s.threads:
        parts = -(-4 * s.threads // max(1, batch * total))
        axis = 0 if len(extents) == 1 or extents[0] >= parts else len(extents) - 2
        start = tuple(max(1, -(-e // parts)) if a == axis else e for a, e in enumerate(start))
    most = total if s.threads == 1 else max(1, min(total, batch * total // (4 * s.threads)))

    def fitted(blocks: int) -> Sizes:
        box = boxes(start, lambda box: _sized(s, sweep, box, blocks).workspace, budget)
        return _sized(s, sweep, box, blocks)

    blocks = min(most, _MOST_BLOCKS) if s.problem.layout == "NHWC" else 1
    found = fitted(blocks)
    while blocks > 1 and _repeated(sweep, found) > _MOST_REPEATED:
        blocks = -(-blocks // 2)
        found = fitted(blocks)
    while found.blocks < most:
        more = _sized(s, sweep, found.box, found.blocks + 1)
        if more.workspace > budget:
            break
        found = more
    return found


def _repeated(sweep: Sweep, sizes: Sizes) -> float:
    """Lines of input that boxes bring, as a multiple of what one box of all would."""
    whole = math.prod(max(1, lines(axis, axis.out).count) for axis in sweep[:-1])
    return box_count(sweep[:-1], sizes.box[:-1]) * math.prod(max(1, h.count) for h in sizes.held[:-1]) / whole


def _sized(s: Situation, sweep: Sweep, box: tuple[int, ...], blocks: int) -> Sizes:
    last, pixel = sweep[-1], s.target.vector_bytes
    run, step = line_pixels(last, box[-1])
    held = (*(lines(axis, b) for axis, b in zip(sweep[:-1], box[:-1], strict=True)), run)
    # an odd number of cache lines: lines of the panel do not share all their sets
    line_bytes = (-(-run.count * pixel // 64) | 1) * 64
    block_bytes = math.prod(max(1, h.count) for h in held[:-1]) * line_bytes + 64
    run_rows = rows_together(sweep, box, _RUN_PIXELS)
    slots = header_bytes(len(sweep)) + block_bytes * blocks
    workspace = slots + run_rows * box[-1] * pixel + 128
    return Sizes(box, blocks, held, step, line_bytes, block_bytes, slots, run_rows, workspace)


def _cost(s: Situation, sweep: Sweep, sizes: Sizes) -> tuple[float, float]:
    """Cycles of the products of a block of groups of an image, and of its ways in and out."""
    p, rates, group, box = s.problem, s.rates(arith_of(s)), s.problem.c // s.problem.groups, sizes.box
    times = box_count(sweep, box)
    rows = math.prod(box[:-1]) * times
    taps = math.prod(mean_taps(axis) for axis in sweep[:-1]) * sweep[-1].taps
    row = side_by_side.row_cycles(rates, box[-1], most_rows(s.target, group), group, taps)
    products = rows * (row + 60.0 + 4 * len(sweep))
    rows_in = math.prod(max(1, h.count) for h in sizes.held[:-1])
    per_in, per_out = 5.5, 0.0 if is_fusible(p) else 2.5
    if p.layout == "NCHW":
        per_in, per_out = side_by_side.plane_cycles(p)
    moves = times * (200 / sizes.blocks + rows_in * (40 + max(1, sizes.held[-1].count) * per_in))
    return products, moves + rows * box[-1] * per_out


# -- the form ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupedForm(Form):
    """Every sweep and the sizes of its items."""

    parts: tuple[tuple[Sweep, Sizes], ...]

    @classmethod
    def of(cls, s: Situation) -> Self:
        """The form of a situation that has one."""
        return cls(s, tuple((sweep, _sizes_of(s, sweep)) for sweep in sweeps(s.problem)))

    @property
    def workspace(self) -> int:
        """Bytes a thread needs."""
        return max((sizes.workspace for _, sizes in self.parts), default=0)

    def cost(self) -> dict[str, float]:
        """Cycles: multiply-adds or the latency of sums, starting tiles, and the moves."""
        costs = [_cost(self.s, sweep, sizes) for sweep, sizes in self.parts]
        times = (self.s.problem.n or 0) * block_count(self.s, arith_of(self.s))
        return {"products": sum(c for c, _ in costs) * times, "moves": sum(moves for _, moves in costs) * times}

    def choices(self) -> Mapping[str, object]:
        """The tile and items; of a transposed convolution those of the first phase."""
        p, used = self.s.problem, lanes_used(self.s, arith_of(self.s))
        rows, groups = most_rows(self.s.target, p.c // p.groups), used * p.groups // p.c
        tile = f"{rows} outputs by a vector of {groups} groups"
        return next(({"tile": tile, "box": z.box, "vectors of an item": z.blocks} for _, z in self.parts), {})

    def build(self, r: Request) -> Program:
        """One step per sweep."""
        keep: list[Any] = []
        wide = r.target.vector_bytes
        address = address_of(r, "grouped", "grouped", Driver, lambda k, name: driver(k, name, wide))
        return program_of([_step(r, sweep, sizes, address, keep) for sweep, sizes in self.parts], self.workspace, keep)


# -- building ------------------------------------------------------------------------------------------


def _step(r: Request, sweep: Sweep, sizes: Sizes, address: Address[Driver], keep: list[Any]) -> Step:
    p, arith, last, lane = r.problem, r.arith, sweep[-1], lanes(r.target, r.arith)
    group, used, blocks = p.c // p.groups, lanes_used(r.situation, arith), block_count(r.situation, arith)
    pixel = r.target.vector_bytes
    along, most = along_out(r, last, "c"), most_rows(r.target, group)
    fused = along == "cc" and is_fusible(p)
    edge = last.out % sizes.box[-1] or sizes.box[-1] if last.out else 0
    tables = []
    for cut in (False, True):
        spec = FusedTile(arith.name, p.y, r.epilogue, cut) if fused else of_sums(arith.name)
        wanted = used == lane if not cut else used < lane or p.c % used > 0
        functions: Sequence[Address[Walk] | None] = tile_functions(r, spec, group) if wanted else [None] * most
        tables += [side_by_side.walks_of(functions, pixels, most) for pixels in (sizes.box[-1], edge)]
    key = ("grouped", arith.name, lane, taps_of(sweep))
    common, items = boxed_words(
        side_by_side.of_blocks(r), sweep, sizes.box, sizes.held, block_groups=sizes.blocks,
        panel=header_bytes(len(sweep)),
    )  # fmt: skip
    entries = tap_entries(sizes.held, sizes.line_bytes, pixel, group * pixel)
    move_in, move_blocks = _moves_in(r, replace(last, stride=sizes.step), used)
    values = GroupedWords(
        common=altered(common, step=sizes.step), lanes_used=used, total_channels=p.c, total_outputs=p.m,
        total_blocks=blocks, item_blocks=sizes.blocks, pixel_bytes=pixel, line_bytes=sizes.line_bytes,
        block_bytes=sizes.block_bytes, row_step=pixel * (last.stride if sizes.step == 1 else 1),
        rows=row_lists(sweep[:-1], entries, ENTRY_WORDS),
        weights=r.packed(key, lambda: packed_weights(r.weights(sweep), lane)),
        w_block=math.prod(a.taps for a in sweep) * group * pixel, always_cut=int(used < lane),
        fused=int(fused), slots=sizes.slots, sum_row=pixel, run_rows=sizes.run_rows if rows_follow(r, sweep) else 1,
        tiles=tables, table_words=counted_words(side_by_side.WalkWords, tables), word_bytes=arith.bytes,
        tables=epilogue_tables(r), together=int(r.x.c == r.x.itemsize), move_in=move_in, move_blocks=move_blocks,
        move_out=move_out_address(r, Move(arith.accumulator, p.y, along, r.epilogue)),
    )  # fmt: skip
    return Step(address, filled(values, keep), items)


def _moves_in(r: Request, last: Axis, used: int) -> tuple[Address[MoveIn] | None, Address[BlocksIn] | None]:
    """The move into the panel: block by block, or of all at once."""
    if r.x.c != r.x.itemsize:
        return move_in_address(r, Move(r.problem.x, r.arith.accumulator, along_in(r, last, "c"))), None
    spec = Move(r.problem.x, r.arith.accumulator, "cc")
    count, f16c = lanes(r.target, r.arith), r.target.converts_f16
    return None, address_of(
        r, f"grouped in {spec} {used}", "move", BlocksIn,
        lambda k, name: blocks_in(k, name, spec, count, used, f16c=f16c),
    )  # fmt: skip
