"""Outputs of a transposed convolution that no product reaches: bias and what follows it, written before all others.

Where a stride is longer than a kernel most outputs are such.  They lie in rows, or in gaps between those that products
reach.  Gaps may be too short to be written one by one: one thread, which takes steps in their order, writes all that
lies between them too, before others write it again.
It must not know how products are computed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

from polyconv.kernels.isa import lanes
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import Move, MoveOut, zero_rows
from polyconv.kernels.record import Function, Record, Word, filled
from polyconv.lowering.boxes import boxed_words
from polyconv.lowering.moves import along_out, move_out_address
from polyconv.lowering.panel import Common, Driver, EpilogueTables, box_rows, decode, header_bytes, row_place
from polyconv.lowering.program import Operand, Program, Request, Step, address_of, epilogue_tables, program_of
from polyconv.lowering.situation import Situation, arith_of, image_bytes
from polyconv.lowering.sweep import Sweep, lines, phases_of, without_taps
from polyconv.lowering.traffic import beyond_cycles
from polyconv.problem.problem import Problem

__all__ = ["gap_bytes", "gap_cycles", "gap_step", "gaps", "with_gaps"]

_RUN = 128
"""Bytes that could be written while a run begins and ends: two cache lines."""
_PIXELS, _BLOCK = 1024, 8192
"""Most pixels that a move writes of a channel, and about how many bytes where channels lie together."""
_ITEM = 1 << 16
"""About how many bytes an item writes."""
_MADE = 1024
"""About how many bytes of pixels that are alike are made before they are copied: what was just written is slow to read,
and copies are of whole vectors."""


@lru_cache(256)
def gaps(p: Problem, run: int = 0) -> tuple[Sweep, ...]:
    """Sweeps without taps, which have the outputs that none of ``sweeps`` has.

    Parameters
    ----------
    run : int
        Bytes that could be written while a run of bytes that lie together begins and ends: where all outputs take no
        longer than the runs of gaps, they are among them.
    """
    if p.op != "conv_transpose":
        return ()
    phases, wholes = phases_of(p), [without_taps(0, o or 0) for o in p.out]
    if not all(any(axis.taps for axis in along) for along in phases):
        return ()
    size = p.y_dtype.itemsize * (p.m if p.layout == "NHWC" else 1)
    found: list[Sweep] = []
    for a in reversed(range(p.rank)):  # of the axes from this one on
        some = [without_taps(axis.first_out, axis.out, axis.out_step) for axis in phases[a] if not axis.taps]
        inner = tuple(wholes[a + 1 :])
        own = math.prod(axis.out for axis in inner) * size
        runs = sum(axis.out for axis in some) * (own + run)
        if (run and runs >= int(p.out[a] or 0) * own) or (inner and found == [inner]):
            found = [(wholes[a], *inner)]
            continue
        reached = [without_taps(axis.first_out, axis.out, axis.out_step) for axis in phases[a] if axis.taps]
        reached = reached if some else [wholes[a]]
        found = [*((axis, *inner) for axis in some), *((axis, *sweep) for axis in reached for sweep in found)]
    return tuple(found)


def _written(s: Situation) -> tuple[Sweep, ...]:
    """Those that are written: none with a residual twice, which may lie where the result does, nor beside threads."""
    return gaps(s.problem, 0 if s.problem.residual or s.threads > 1 else _RUN)


_VECTOR = 2.5
"""Cycles in which a vector of results is made, or copied, and written."""


def gap_cycles(s: Situation) -> float:
    """Cycles in which they are written."""
    p = s.problem
    outputs = sum(math.prod(axis.out for axis in sweep) for sweep in _written(s))
    lane = lanes(s.target, arith_of(s))
    vectors = outputs * (-(-p.m // lane) if p.layout == "NHWC" else p.m / lane)
    if p.layout == "NHWC" and _are_copied(s):
        vectors = outputs * p.m * p.y_dtype.itemsize / s.target.vector_bytes
    share = outputs / max(1, math.prod(o or 0 for o in p.out))
    return (p.n or 0) * (_VECTOR * vectors + share * beyond_cycles(s, image_bytes(p)[1])) if outputs else 0.0


def _are_copied(s: Situation) -> bool:
    """Whether pixels whose channels lie together are copied from others: those that are made by parts of vectors."""
    p, size = s.problem, arith_of(s).bytes
    return not p.residual and p.m > 0 and (p.y_dtype.itemsize < size or p.m * size % s.target.vector_bytes > 0)


class GapWords(Record):
    """The driver's words: channels, and sums of none that are kept for a row.

    Of an item's pixels so many are made, and the others are copies; 0 where all are made.
    """

    common: Common
    made: Word
    channels: Word
    zeros: Word
    pixel_bytes: Word
    tables: EpilogueTables
    move_out: Function[MoveOut]


def _driver(k: Module, name: str, vector_bytes: int) -> None:
    with k.function(name, Driver) as given:
        frame, p = given.frame, GapWords.read(k, given.words)
        c = p.common
        item, sums, zero = decode(k, c, given.item, given.workspace), given.workspace + c.scratch, k.constant(INT, 0)
        zero_rows(k, sums, zero, k.constant(INT, 1), p.zeros, vector("i32", vector_bytes // 4))
        along, pixels = c.axis.at(c.axes - 1), item.extent(c.axes - 1)
        _, first, _ = row_place(k, c, item, zero)
        with k.loop(0, box_rows(k, c, item)) as row:
            _, y, residual = row_place(k, c, item, row.index)
            made = k.select(p.made > 0, k.select(row.index > 0, 0, k.minimum(p.made, pixels)), pixels)
            with k.when(made > 0):
                k.call(p.move_out, MoveOut(
                    sums, p.pixel_bytes, zero, frame.y + y, along.y_stride, c.y_c, made, p.channels,
                    p.tables.bias, p.tables.scale, frame.residual + residual, along.r_stride, c.r_c, p.tables.constants,
                ))  # fmt: skip
            copy = (pixels - made) * along.y_stride
            _copied(k, frame.y + first, frame.y + (y + made * along.y_stride), copy, vector_bytes)


def _copied(k: Module, source: Buffer, target: Buffer, size: Value, vector_bytes: int) -> None:
    """Copy so many bytes, the first ones first: those of the source may have been written just before."""
    kind = vector("i8", vector_bytes)
    full = size - size % vector_bytes
    with k.loop(0, full, vector_bytes) as at:
        k.store(k.load(kind, source + at.index), target + at.index)
    with k.when(full < size):
        mask = k.mask(size - full, vector_bytes)
        k.store_first(k.load_first(kind, source + full, mask), target + full, mask)


def with_gaps(r: Request, made: Program) -> Program:
    """A program with steps before its own that write outputs no product reaches."""
    keep: list[Any] = []
    steps = [gap_step(r, sweep, keep) for sweep in _written(r.situation)]
    if not steps:
        return made
    own = program_of(steps, max(made.workspace, gap_bytes(r.situation)), [*made.keep, *keep])
    return replace(own, steps=own.steps + made.steps)


def gap_bytes(s: Situation) -> int:
    """Bytes that a thread needs for them."""
    size = arith_of(s).bytes
    return header_bytes(s.problem.rank) + max(_PIXELS, s.problem.m) * size + 128


def gap_step(given: Request, whole: Sweep, keep: list[Any]) -> Step:
    """Step that writes the outputs of a sweep without taps."""
    r, sweep = _merged(given, whole)
    p, size, last = r.problem, r.arith.bytes, sweep[-1]
    along = along_out(r, last, "p")
    if along[1:] == "c":
        along = "cc"
    together = along == "cc"
    row = p.m * r.y.itemsize
    most = max(1, _BLOCK // max(1, row)) if together else _PIXELS
    box, room = [1] * len(sweep), max(1, _ITEM // max(1, row))
    for a in reversed(range(len(sweep))):
        box[a] = max(1, min(sweep[a].out, room if a < len(sweep) - 1 else most))
        room //= box[a]
    scratch = header_bytes(len(sweep))
    held = [lines(axis, b) for axis, b in zip(sweep, box, strict=True)]
    common, items = boxed_words(r, sweep, tuple(box), held, block_groups=p.groups, scratch=scratch)
    address = address_of(r, "gaps", "gaps", Driver, lambda k, name: _driver(k, name, r.target.vector_bytes))
    follow = together and r.y.spatial[-1] * last.out_step == row
    values = GapWords(
        common=common, made=-(-_MADE // row) if follow and _are_copied(r.situation) else 0, channels=p.m,
        zeros=(p.m if together else box[-1]) * size // 4 + 1,
        pixel_bytes=0 if together else size,
        tables=epilogue_tables(r), move_out=move_out_address(r, Move(r.arith.accumulator, p.y, along, r.epilogue)),
    )  # fmt: skip
    return Step(address, filled(values, keep), items)


def _merged(r: Request, sweep: Sweep) -> tuple[Request, Sweep]:
    """The last axes as one, where rows along them begin where the one before them ends."""
    operands: list[Operand] = [o for o in (r.y, r.residual) if o is not None]
    axes = list(sweep)
    while len(axes) > 1:
        rows, last = axes[-2:]
        if any(o.spatial[-2] * rows.out_step != o.spatial[-1] * last.out_step * last.out for o in operands):
            break
        first = [replace(o, offset=o.offset + rows.first_out * o.spatial[-2] + last.first_out * o.spatial[-1],
                         spatial=(*o.spatial[:-2], o.spatial[-1])) for o in operands]  # fmt: skip
        operands, axes = first, [*axes[:-2], without_taps(0, rows.out * last.out, last.out_step)]
    y, *residual = operands
    x = replace(r.x, spatial=r.x.spatial[: len(axes)])
    return replace(r, x=x, y=y, residual=residual[0] if residual else None), tuple(axes)
