"""Moves: which code brings inputs into a panel and results out of it, by how arrays lie.

Turns operands and a panel's own order into addresses of generated moves.  It must not know what the panel is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from polyconv.dtypes import DTYPES
from polyconv.kernels.isa import lanes
from polyconv.kernels.language import Module, Type
from polyconv.kernels.layout import Move, MoveIn, MoveOut
from polyconv.kernels.move import move
from polyconv.kernels.move_rows import RowsIn, RowsOut, move_rows
from polyconv.kernels.record import altered
from polyconv.kernels.signature import Address
from polyconv.kernels.turned import turn_in, turn_out
from polyconv.kernels.unzip import ListedMoveIn, MoveApart, move_apart, move_listed
from polyconv.kernels.words import words_in
from polyconv.lowering.panel import Common, RunWords
from polyconv.lowering.program import Operand, Request, S, address_of
from polyconv.lowering.sweep import Axis, Lines, Sweep
from polyconv.problem.problem import Problem
from polyconv.target import Target

__all__ = [
    "MOST_LISTED", "MOST_STEP", "SHORT", "along_in", "along_out", "are_short", "is_apart", "listed_address",
    "move_in_address", "move_out_address", "moved_apart", "moved_by_planes", "moved_by_rows", "places_of",
    "row_cycles", "rows_out_address", "words_in_address",
]  # fmt: skip


def along_in(r: Request, axis: Axis, panel: str) -> str:
    """Which axes lie contiguous on the way in, as a ``Move`` spells it; ``panel`` is the panel's own axis."""
    most = MOST_STEP if r.target.has_masks or panel == "p" else 2
    found = _contiguous(r.x, r.x_channels, axis.stride, panel, most)
    return found + panel if found else "any"


def along_out(r: Request, axis: Axis, panel: str) -> str:
    """The same on the way out, where a residual must lie as the result does."""
    most = MOST_STEP if r.target.has_masks else 2
    found = _contiguous(r.y, r.y_channels, axis.out_step, panel, most)
    if r.residual is not None and (
        found.isdigit() or found != _contiguous(r.residual, r.y_channels, axis.out_step, panel, most)
    ):
        return "any"
    return panel + found if found else "any"


MOST_STEP = 5
"""Most pixels between those that a move takes from a line, or brings to it, by whole vectors."""


def _contiguous(o: Operand, channels: int, step: int, panel: str, most: int) -> str:
    # a single channel is a vector of one, whatever its stride: better pixels, even ones far apart
    single = channels == 1 and panel == "c"
    if o.c == o.itemsize and not single and not (panel == "p" and o.spatial[-1] * step == o.itemsize):
        return "c"
    if o.spatial[-1] * step == o.itemsize:
        return "p"
    apart, rest = divmod(o.spatial[-1] * step, o.itemsize)
    return str(apart) if not rest and 1 < apart <= most else ""


def move_in_address(r: Request, spec: Move) -> Address[MoveIn]:
    """Address of a move into a panel."""
    return _move_address(r, spec, MoveIn, r.problem.c)


def move_out_address(r: Request, spec: Move, most: int = 0) -> Address[MoveOut]:
    """Address of a move to the result, of that many channels at most if it is known."""
    return _move_address(r, spec, MoveOut, most or r.problem.m)


def words_in_address(r: Request, spec: Move) -> Address[MoveIn]:
    """Address of the move of planes of channels into planes of words of several channels."""
    count = (r.target.vector_bytes if r.target.has_masks else 16) // Type(spec.element).bytes
    return address_of(r, f"{spec} words", "move", MoveIn, lambda k, name: words_in(k, name, spec, count, f16c=False))


def _move_address(r: Request, spec: Move, signature: type[S], most: int) -> Address[S]:
    return r.once((spec, signature, most), lambda: _found(r, spec, signature, most))


def _found(r: Request, spec: Move, signature: type[S], most: int) -> Address[S]:
    count, f16c = _elements(r.target, spec), r.target.converts_f16
    if _turns_bytes(r.target, spec):
        turn, wide = turn_in if spec.epilogue is None else turn_out, 64 if most >= 64 else 32 if most >= 32 else 16
        return address_of(r, f"{spec} turned {wide}", "move", signature, lambda k, name: turn(k, name, spec, wide))
    return address_of(r, f"{spec} {count}", "move", signature, lambda k, name: move(k, name, spec, count, f16c=f16c))


def _turns_bytes(target: Target, spec: Move) -> bool:
    """Whether a move brings bytes from planes to pixels, there maybe as 16 bits, or back, on a CPU with masks."""
    tensor = DTYPES[spec.source if spec.epilogue is None else spec.target]
    along, elements = ("pc", ("i8", "i16")) if spec.epilogue is None else ("cp", ("i8",))
    narrow = tensor.itemsize == 1 and spec.element in elements
    return narrow and target.has_masks and spec.along == along and not spec.together


def _elements(target: Target, spec: Move) -> int:
    """Elements of a panel that a move takes at once; of bytes 16 where it transposes them or the CPU has no masks."""
    element = Type(spec.element)
    large = element.bytes > 1 or (target.has_masks and (spec.along == "cc" or spec.together > 0))
    return (target.vector_bytes if large else 16) // element.bytes


_APART = {"p": (2, 3, 4, 5, 8), "c": (2, 4, 8)}
"""Strides whose residues are told apart while a line is moved, by the panel's own axis."""


def is_apart(p: Problem, axis: Axis, lane: int, panel: str) -> bool:
    """Whether lines of planes are moved once for all residues modulo the stride: all of which the kernel meets."""
    whole = axis.dilation == 1 and axis.taps >= axis.stride
    return p.layout == "NCHW" and whole and axis.stride in _APART[panel] and (panel == "p" or lane % axis.stride == 0)


def moved_apart(common: Common, r: Request, axis: Axis, held: Lines, panel: str, pixel_bytes: int,
                element: str = "") -> Common:  # fmt: skip
    """Words with which lines are moved into the panel once, not once for every residue modulo the stride, if possible.

    Parameters
    ----------
    panel : str
        Its own axis: ``p`` or ``c``.
    pixel_bytes : int
        Bytes between neighbours of a residue in the panel.
    element : str
        LLVM element of the panel, if not the accumulator.
    """
    element = element or r.arith.accumulator
    count = r.target.vector_bytes // (2 if element == "i16" else r.arith.bytes)
    planes = r.x.spatial[-1] == r.x.itemsize
    if not planes or r.x.c == r.x.itemsize or not is_apart(r.problem, axis, count, panel):
        return common
    step, spec = axis.stride, Move(r.problem.x, element, f"p{panel}")
    firsts = [first for first, _, _ in held.runs]
    places = [(firsts[i % step] + i // step) * pixel_bytes for i in range(2 * step - 1)]
    span = max(position + 1 for position in held.positions)

    def make(k: Module, name: str) -> None:
        move_apart(k, name, spec, count, step, f16c=r.target.converts_f16)

    return altered(
        common, step=1, run_count=1, runs=[RunWords(0, span, 0)], residues=step, residue_places=places, row_run_count=0,
        move_apart=address_of(r, f"{spec} {count} apart {step}", "move", MoveApart, make),
    )  # fmt: skip


SHORT = 64
"""Most pixels of a line that is moved together with its neighbours."""


def are_short(sweep: Sweep, pixels: int) -> bool:
    """Whether rows of planes of so many pixels are moved together with their neighbours."""
    return len(sweep) > 1 and pixels <= SHORT


def row_cycles(pixels: float, lanes: int, step: int = 1) -> float:
    """Cycles in which such a row of a channel is moved, pixels ``step`` apart, in near caches.  Measured on Zen 5."""
    return 2.5 + 1.8 * step * -(-pixels // lanes)


def moved_by_rows(common: Common, r: Request, sweep: Sweep, held: Sequence[Lines], spec: Move) -> Common:
    """Words with which short lines of planes come into the panel many at a time, if possible."""
    if "c" in spec.along or not are_short(sweep, held[-1].count):
        return common
    runs = [RunWords(*run) for run in held[-2].runs]
    return altered(common, row_run_count=len(runs), row_runs=runs, rows_in=_rows_address(r, spec, RowsIn))


def rows_out_address(r: Request, sweep: Sweep, spec: Move) -> Address[RowsOut] | None:
    """Address of the move of short rows to the result, many at a time; None if it is not possible."""
    short = are_short(sweep, sweep[-1].out)
    return _rows_address(r, spec, RowsOut) if short and "c" not in spec.along else None


def _rows_address(r: Request, spec: Move, signature: type[S]) -> Address[S]:
    count = _elements(r.target, spec)

    def make(k: Module, name: str) -> None:
        move_rows(k, name, spec, count, f16c=r.target.converts_f16)

    return r.once((spec, signature, count), lambda: address_of(r, f"{spec} {count} rows", "move", signature, make))


MOST_LISTED = 1 << 14
"""Most pixels of a list of places."""


def moved_by_planes(common: Common, r: Request, sweep: Sweep, held: Sequence[Lines], line_bytes: int,
                    row_bytes: int) -> Common:  # fmt: skip
    """Words with which all lines of planes come into the panel at once, where these follow each other.

    Squares of pixels and channels then are whole, and calls few.  Measured: layers of Winograd 3 to 25 % off.

    Parameters
    ----------
    held : sequence of Lines
        Those of a box, which has whole lines of the last axis.
    line_bytes, row_bytes : int
        Bytes between lines, and between pixels, in the panel.
    """
    last, count = sweep[-1], lanes(r.target, r.arith)
    if len(sweep) < 2 or r.x.c == r.x.itemsize or count * r.arith.bytes != row_bytes:
        return common
    rows, columns = held[-2:]
    gapless = all(h.runs == ((0, h.count, 0),) for h in held[-2:])
    follow = r.x.spatial[-1] == r.x.itemsize and r.x.spatial[-2] == last.inp * r.x.itemsize
    padded = 0 <= last.pad <= columns.count - last.inp and 0 < rows.count * last.inp <= MOST_LISTED
    if not (follow and padded and last.stride == sweep[-2].stride == 1 and gapless):
        return common
    spec, lines = Move(r.problem.x, r.arith.accumulator, "pc"), min(rows.count, sweep[-2].inp)
    places = places_of(lines, line_bytes, last.inp, row_bytes, count, last.pad * row_bytes)
    return altered(common, planes=1, plane_places=places, move_planes=listed_address(r, spec, ListedMoveIn))


@lru_cache(16)  # layers of a network often have the same extents
def places_of(lines: int, line_bytes: int, pixels: int, pixel_bytes: int, more: int, first: int = 0
              ) -> NDArray[np.int64]:  # fmt: skip
    """Places of the pixels of some lines, for moves that take a list of them: the last one so often again."""
    count = lines * pixels
    places = np.empty(count + more, np.int64)
    of_lines = np.arange(first, first + lines * line_bytes, line_bytes)
    of_pixels = np.arange(0, pixels * pixel_bytes, pixel_bytes)
    np.add(of_lines[:, None], of_pixels, out=places[:count].reshape(lines, pixels))
    places[count:] = places[count - 1]
    return places


def listed_address(r: Request, spec: Move, signature: type[S]) -> Address[S]:
    """Address of a move between planes and a panel, in or out, that takes a list of places in the panel."""
    count = lanes(r.target, r.arith)

    def make(k: Module, name: str) -> None:
        move_listed(k, name, spec, count, f16c=r.target.converts_f16)

    return r.once((spec, signature, count), lambda: address_of(r, f"{spec} {count} listed", "move", signature, make))
