"""Dot products of small integers: which problems take them, how their inputs lie in a panel, boxes, and prices.

A word holds the channels that one instruction multiplies and adds: four bytes, or two numbers of 16 bits.  Pixels lie
in the panel as in the tensor: channel after channel, where taps of a kernel's line then follow each other without a
gap; or as planes of words, where channels lie in planes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from polyconv.algorithms.program import (
    Situation,
    accumulator_arithmetic,
    boxes,
    far_cycles,
    is_fusible,
    near_equal_sizes,
    rows_together,
    thread_parts,
    tile_cycles,
)
from polyconv.algorithms.sweep import Lines, Sweep, line_pixels, lines, share_met, sweeps
from polyconv.algorithms.sweep import bands as bands_of
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, lanes, run_tiles

__all__ = ["RUN_PIXELS", "Plan", "applicable", "arithmetic", "channel_bytes", "cost", "plan_of", "workspace"]

_PANEL_BYTES = 400 << 10
"""Workspace of a thread, beside which weights stay in a second-level cache."""
RUN_PIXELS = 256
"""Pixels that leave in one move at least, where rows follow each other in the result."""
_LINE_PIXELS = 256
"""Most outputs of a box along the last axis."""
_MOST_VECTORS = 2
"""Vectors of outputs of groups that share a panel."""
_MOST_MORE = 2
"""Pixels of a line come as they lie, if those that outputs need are not fewer by more than this factor."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of one sweep's boxes.

    Parameters
    ----------
    box : tuple of int
        Outputs along every axis.
    held : tuple of Lines
        Lines that it needs.
    step : int
        Between neighbouring pixels of a line of the panel.
    planes : bool
        Whether words lie in planes.
    merged : bool
        Whether the taps of a kernel's line follow each other without a gap.
    pixel_bytes, line_bytes, plane_bytes : int
        Of a pixel, a line and a plane of the panel.
    panel : int
        Bytes of the panel.
    vectors, last_vectors, blocks : int
        Vectors of output channels of a block and of the last one, and blocks of a group.
    run_rows : int
        Rows of outputs that leave together, where they leave through slots.
    slots : int
        Bytes of these.
    at_once : bool
        Whether a box is of all groups, each of them a block of outputs.
    splits : int
        Parts into which the blocks of a box are cut, for threads.
    """

    box: tuple[int, ...]
    held: tuple[Lines, ...]
    step: int
    planes: bool
    merged: bool
    pixel_bytes: int
    line_bytes: int
    plane_bytes: int
    panel: int
    vectors: int
    last_vectors: int
    blocks: int
    run_rows: int
    slots: int
    at_once: bool = False
    splits: int = 1

    @property
    def workspace(self) -> int:
        """Bytes a thread needs."""
        return self.header + self.panel + self.slots + 128

    @property
    def header(self) -> int:
        """Bytes before the panel."""
        return -(-(24 * len(self.box)) // 64) * 64


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    p = s.problem
    if p.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {p.op}"
    if p.x not in ("u8", "i8", "i16"):
        return f"multiplies numbers of u8, i8 and i16, not {p.x}"
    if accumulator_arithmetic(s) != "i32":
        return "sums modulo 2^32, which this result does not allow"
    if not is_fusible(p):
        return "needs a cheap epilogue"
    return None


def arithmetic(s: Situation) -> str:
    """Dot products of bytes where the CPU has them and weights fit; else of pairs of 16 bits."""
    return "u8s8" if s.target.vnni and s.narrow and s.problem.x != "i16" else "i16"


def channel_bytes(arith: Arithmetic) -> int:
    """Bytes of a channel in a word."""
    return arith.bytes // arith.channels


def workspace(s: Situation) -> int:
    """Bytes a thread needs, however arrays lie."""
    arith = ARITHMETIC[arithmetic(s)]
    return max(
        (plan_of(s, arith, sweep, planes=planes).workspace for sweep in sweeps(s.problem) for planes in (False, True)),
        default=0,
    )


def cost(s: Situation) -> dict[str, float]:
    """Cycles: the products at full tiles, and one pass over input and output."""
    p, arith = s.problem, ARITHMETIC[arithmetic(s)]
    lane, group_in, group_out = lanes(s.target, arith), p.c // p.groups, p.m // p.groups
    products = moves = 0.0
    for sweep in sweeps(p):
        plan = plan_of(s, arith, sweep, planes=p.layout == "NCHW")
        box_count = math.prod(-(-axis.out // max(1, b)) for axis, b in zip(sweep, plan.box, strict=True))
        rows, width = math.prod(plan.box[:-1]) * box_count, plan.box[-1]
        met = 1.0 if arith.name == "u8s8" else share_met(sweep[:-1], bands_of(sweep[:-1], 1 << 10))
        steps = met * math.prod(axis.taps for axis in sweep) * -(-group_in // arith.channels)
        if plan.merged:
            steps = met * math.prod(a.taps for a in sweep[:-1]) * -(-sweep[-1].taps * group_in // arith.channels)
        sets, panel_in = (1, p.c) if plan.at_once else (p.groups, group_in)
        products += sets * rows * _row_cycles(s, arith, plan.vectors, plan.last_vectors, plan.blocks, width, steps)
        held = math.prod(max(1, h.count) for h in plan.held)
        moves += sets * box_count * (400 + held * (1 + panel_in * channel_bytes(arith) / (40 if plan.planes else 120)))
        moves += far_cycles(p, sets * box_count * held * panel_in * p.x_dtype.itemsize)
        across = 0.4 if p.layout == "NHWC" else 1.2 if p.y_dtype.bits == 8 and not p.residual else 2.0
        moves += p.groups * rows * width * -(-group_out // lane) * across
    return {"products": products * (p.n or 0), "moves": moves * (p.n or 0)}


def _row_cycles(s: Situation, arith: Arithmetic, vectors: int, last: int, blocks: int, width: int, steps: float
                ) -> float:  # fmt: skip
    """Cycles of the tiles of a row of outputs in all blocks; additions beside products of pairs use other ports."""
    rates, total = s.rates(arith), 0.0
    for some, count in ((vectors, blocks - 1), (last, 1)):
        for rows, alike in near_equal_sizes(width, run_tiles(s.target)[some]):
            total += count * alike * (tile_cycles(rates, rows, some) * steps + 20 + 2.0 * rows * some)
    return total


@lru_cache(256)
def plan_of(s: Situation, arith: Arithmetic, sweep: Sweep, *, planes: bool) -> Plan:
    """Sizes of a sweep's boxes, for inputs whose channels lie in planes or together."""
    p = s.problem
    extents = tuple(axis.out for axis in sweep)
    start = (*extents[:-1], min(extents[-1], s.near(_LINE_PIXELS)))
    vectors = _vectors(s, arith, sweep, start[-1])

    def fitted(box: tuple[int, ...]) -> Plan:
        return _sizes(s, arith, sweep, box, planes=planes, vectors=vectors)

    plan = fitted(boxes(start, lambda box: fitted(box).workspace, s.budget(_PANEL_BYTES)))
    items = (p.n or 0) * math.prod(-(-e // b) for e, b in zip(extents, plan.box, strict=True))
    if plan.at_once:
        return replace(plan, splits=thread_parts(s.threads, items, plan.blocks, 0.3))
    return replace(plan, splits=thread_parts(s.threads, items * p.groups, plan.blocks, 0.05))


def _sizes(s: Situation, arith: Arithmetic, sweep: Sweep, box: tuple[int, ...], *, planes: bool, vectors: int) -> Plan:
    """Sizes for a box and so many vectors of output channels."""
    p, last, size = s.problem, sweep[-1], channel_bytes(arith)
    group_in, group_out = p.c // p.groups, p.m // p.groups
    run, step = line_pixels(last, box[-1], _MOST_MORE)
    held = (*(lines(axis, b) for axis, b in zip(sweep[:-1], box[:-1], strict=True)), run)
    at_once = not planes and _at_once(s, arith)
    follow = not at_once and (last.taps <= 1 or (last.dilation == 1 and step == 1))
    planes = planes and not (follow and group_in <= arith.channels)
    merged = follow and not planes
    words = -(-(p.c if at_once else group_in) // arith.channels)
    pixel = arith.bytes if planes else group_in * size if merged else words * arith.bytes
    rows_in = math.prod(max(1, h.count) for h in held[:-1])
    line = run.count * pixel
    plane = (-(-(rows_in * line) // 64) | 1) * 64 + 128  # an odd number of cache lines, and room to read and write more
    panel = plane * (words if planes else 1)
    total = max(1, -(-group_out // lanes(s.target, arith)))
    vectors = total if at_once else vectors
    blocks = -(-total // vectors)
    last_vectors = total - (blocks - 1) * vectors
    run_rows = rows_together(sweep, box, RUN_PIXELS)
    slots = run_rows * box[-1] * vectors * s.target.vector_bytes
    return Plan(
        box, held, step, planes, merged, pixel, line, plane, panel, vectors, last_vectors,
        p.groups if at_once else blocks, run_rows, slots, at_once,
    )  # fmt: skip


def _at_once(s: Situation, arith: Arithmetic) -> bool:
    """Whether groups are whole words of inputs and few whole vectors of outputs, so that they can share a panel.

    Measured on Zen 5: 5 % off where channels lie together, nothing where they lie in planes.
    """
    p = s.problem
    vectors, rest = divmod(p.m // p.groups, lanes(s.target, arith))
    return p.groups > 1 and 0 < vectors <= _MOST_VECTORS and not rest and p.c // p.groups % arith.channels == 0 < p.c


@lru_cache(256)
def _vectors(s: Situation, arith: Arithmetic, sweep: Sweep, width: int) -> int:
    """Vectors of output channels of a tile: those with which a row takes least."""
    p = s.problem
    total = max(1, -(-(p.m // p.groups) // lanes(s.target, arith)))
    steps = math.prod(axis.taps for axis in sweep) * -(-(p.c // p.groups) // arith.channels)

    def price(some: int) -> float:
        blocks = -(-total // some)
        cycles = _row_cycles(s, arith, some, total - (blocks - 1) * some, blocks, max(1, width), steps)
        return s.price(("vectors", some), cycles)

    return min((v for v in run_tiles(s.target) if v <= total), key=price)

