"""Copy rows of planes to a panel, every residue of their pixels modulo a stride to a place of its own.

One pass over contiguous pixels serves all taps of a kernel: whole vectors are read once and taken apart in registers,
and a channel's lines are read one after the other.  Converts like a move in.  It must know nothing of problems.
"""

from __future__ import annotations

from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.language import INT, Buffer, Module, Type, Value
from polyconv.kernels.layout import Apart, Block, Listed, Move, MoveIn, MoveOut
from polyconv.kernels.move import converted, ends, load_in, store_in
from polyconv.kernels.signature import Int, Signature

__all__ = [
    "STEPS", "ListedMoveIn", "ListedMoveOut", "MoveApart", "Unzip", "move_apart", "move_listed", "residues", "unzip",
]  # fmt: skip

STEPS = (1, 2, 3, 4, 8, 16)
"""Strides there are kernels for."""


class Unzip(Signature):
    """Rows of planes, and lines of a row, to taps of a panel."""

    source: Buffer
    source_channel: Int
    source_row: Int
    source_line: Int
    target: Buffer
    target_channel: Int
    target_row: Int
    target_line: Int
    target_tap: Int
    channels: Int
    rows: Int
    lines: Int
    pixels: Int
    zero_point: Int


def unzip(k: Module, name: str, spec: Move, lanes: int, step: int, taps: int, *, f16c: bool) -> None:
    """Add the copy that stores element ``i * step + t`` of a row as pixel ``i`` of tap ``t``, for the first taps."""
    block = Block(k, spec, Type(spec.target, lanes), f16c)
    source_type = block.kind.of(LLVM_NAMES[spec.source])
    with k.function(name, Unzip) as given:
        left = given.pixels % lanes
        full = given.pixels - left
        stored = k.mask(left, lanes)
        needed = [k.mask((left - 1) * step + taps - number * lanes, lanes) for number in range(step)]

        def ask_early(here: Buffer) -> None:
            """Ask for the same of the next channel: the hardware foresees no rows of which some are left out."""
            for number in range(step):
                k.prefetch(here + (given.source_channel + number * source_type.bytes))

        def part(here: Buffer, number: int) -> Value:
            """A vector of whole pixels; nothing behind the last tap of the last one is touched."""
            place, there = here + number * source_type.bytes, lanes * (step - number) - (step - taps)
            if there >= lanes:
                return k.load(source_type, place)
            if there <= 0:
                return k.constant(source_type, 0)
            return k.load_first(source_type, place, k.mask(k.constant(INT, there), lanes))

        with k.loop(0, given.channels) as c, k.loop(0, given.rows) as row, k.loop(0, given.lines) as line:
            source = given.source + (
                c.index * given.source_channel + row.index * given.source_row + line.index * given.source_line
            )
            target = given.target + (
                c.index * given.target_channel + row.index * given.target_row + line.index * given.target_line
            )

            def put(parts: list[Value], first: Value, masked: bool, target: Buffer = target) -> None:
                for t, value in enumerate(residues(k, parts)[:taps]):
                    place = target + (first * block.kind.element_bytes + given.target_tap * t)
                    value = converted(block, value, given.zero_point)
                    if masked:
                        k.store_first(value, place, stored)
                    else:
                        k.store(value, place)

            with k.loop(0, full, lanes) as i:
                here = source + i.index * (step * source_type.element_bytes)
                ask_early(here)
                put([part(here, n) for n in range(step)], i.index, masked=False)
            with k.when(left > 0):
                here = source + full * (step * source_type.element_bytes)
                ask_early(here)
                put([
                    k.load_first(source_type, here + number * source_type.bytes, needed[number])
                    for number in range(step)
                ], full, masked=True)  # fmt: skip


class MoveApart(MoveIn):
    """A move in whose pixels go to the places that ``Apart`` has for them."""

    table: Buffer
    first: Int


def move_apart(k: Module, name: str, spec: Move, lanes: int, step: int, *, f16c: bool) -> None:
    """Add the move in of rows of planes whose residues lie apart in the panel, by pixels (``pp``) or channels (``pc``).

    Where channels lie together ``step`` divides the number of lanes.
    """
    with k.function(name, MoveApart) as g:
        block, apart = Block(k, spec, Type(spec.target, lanes), f16c), Apart(g.table, g.first, step)
        load, store = load_in(block, g.zero_point), store_in(block)
        if spec.along == "pc":
            block.transposed(g, load, store, apart)
            return
        size, zero = block.kind.of(LLVM_NAMES[spec.source]).element_bytes, k.constant(INT, 0)
        rounds = g.pixels // (lanes * step) * lanes
        rest = g.pixels - rounds * step
        needed = [k.mask(rest - part * lanes, lanes) for part in range(step)]
        stored = [k.mask((rest + (step - 1 - residue)) // step, lanes) for residue in range(step)]
        begins = apart.places(k, g.target, zero, g.target_pixel)
        with k.loop(0, g.channels) as c:
            source = g.source + c.index * g.source_channel
            targets = [place + c.index * g.target_channel for place in begins]
            with k.loop(0, rounds, lanes) as i:
                here = source + i.index * (step * size)
                parts = [load(here + part * lanes * size, None) for part in range(step)]
                for target, value in zip(targets, residues(k, parts), strict=True):
                    store(value, target + i.index * block.kind.element_bytes, i.index, c.index, None)
            with k.when(rest > 0):
                here = source + rounds * (step * size)
                parts = [load(here + part * lanes * size, mask) for part, mask in enumerate(needed)]
                for target, value, mask in zip(targets, residues(k, parts), stored, strict=True):
                    store(value, target + rounds * block.kind.element_bytes, rounds, c.index, mask)


class ListedMoveIn(MoveIn):
    """A move in with the table of ``Listed``."""

    places: Buffer


class ListedMoveOut(MoveOut):
    """A move out with the table of ``Listed``."""

    places: Buffer


def move_listed(k: Module, name: str, spec: Move, lanes: int, *, f16c: bool) -> None:
    """Add the move in, or out, of pixels that lie together in planes, not in the panel: rows with padding between."""
    block = Block(k, spec, Type(spec.element, lanes), f16c)
    with k.function(name, ListedMoveIn if spec.epilogue is None else ListedMoveOut) as g:
        assert isinstance(g, ListedMoveIn | ListedMoveOut)
        block.transposed(g, *ends(block, g), Listed(g.places, lanes))


def residues(k: Module, parts: list[Value]) -> list[Value]:
    """Contiguous vectors, as many as the stride, taken apart: one vector per residue."""
    step, n = len(parts), parts[0].type.lanes
    if step == 1:
        return parts
    if step % 2 == 0:
        pairs = list(zip(parts[::2], parts[1::2], strict=True))
        even, odd = (
            residues(k, [k.shuffle(a, b, [2 * lane + side for lane in range(n)]) for a, b in pairs])
            for side in range(2)
        )
        return [vector for both in zip(even, odd, strict=True) for vector in both]
    found = []
    for residue in range(step):
        places = [divmod(lane * step + residue, n) for lane in range(n)]  # (part, lane) of each element
        merged = parts[0]
        for part in range(1, step):
            picks = [
                n + at if own == part else at if part == 1 and own == 0 else lane
                for lane, (own, at) in enumerate(places)
            ]
            merged = k.shuffle(merged, parts[part], picks)
        found.append(merged)
    return found
