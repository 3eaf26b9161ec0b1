"""Copy rows of planes to a panel, every residue of their pixels modulo a stride to a place of its own.

One pass over contiguous pixels serves all taps of a kernel: whole vectors are read once and taken apart in registers,
and a channel's lines are read one after the other.  Converts like a move in.  It must know nothing of problems.
"""

from __future__ import annotations

from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.language import INT, Buffer, Module, Type, Value
from polyconv.kernels.layout import BLOCK, Apart, Block, Given, Listed, Move, beside, converted, ends, load_in, store_in

__all__ = ["STEPS", "move_apart", "move_listed", "unzip"]

STEPS = (1, 2, 3, 4, 8, 16)
"""Strides there are kernels for."""

# source with its steps between channels, rows and lines of a row; target with these and the step between taps;
# numbers of channels, rows, lines and pixels; zero point
_SIGNATURE = ("buffer", *("int",) * 3, "buffer", *("int",) * 9)


def unzip(k: Module, name: str, spec: Move, lanes: int, step: int, taps: int, *, f16c: bool) -> None:
    """Add the copy that stores element ``i * step + t`` of a row as pixel ``i`` of tap ``t``, for the first taps."""
    block = Block(k, spec, Type(spec.target, lanes), f16c)
    source_type = block.kind.of(LLVM_NAMES[spec.source])
    with k.function(name, *_SIGNATURE) as given:
        x, x_channel, x_row, x_line, y, y_channel, y_row, y_line, y_tap, channels, rows, *sizes = given
        lines, pixels, zero_point = sizes
        left = pixels % lanes
        full = pixels - left
        stored = k.mask(left, lanes)
        needed = [k.mask((left - 1) * step + taps - number * lanes, lanes) for number in range(step)]

        def ask_early(here: Buffer) -> None:
            """Ask for the same of the next channel: the hardware foresees no rows of which some are left out."""
            for number in range(step):
                k.prefetch(here + (x_channel + number * source_type.bytes))

        def part(here: Buffer, number: int) -> Value:
            """A vector of whole pixels; nothing behind the last tap of the last one is touched."""
            place, there = here + number * source_type.bytes, lanes * (step - number) - (step - taps)
            if there >= lanes:
                return k.load(source_type, place)
            if there <= 0:
                return k.constant(source_type, 0)
            return k.load_first(source_type, place, k.mask(k.constant(INT, there), lanes))

        with k.loop(0, channels) as c, k.loop(0, rows) as row, k.loop(0, lines) as line:
            source = x + (c.index * x_channel + row.index * x_row + line.index * x_line)
            target = y + (c.index * y_channel + row.index * y_row + line.index * y_line)

            def put(parts: list[Value], first: Value, masked: bool, target: Buffer = target) -> None:
                for t, value in enumerate(_residues(k, parts)[:taps]):
                    place = target + (first * block.kind.element_bytes + y_tap * t)
                    value = converted(block, value, zero_point)
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


def move_apart(k: Module, name: str, spec: Move, lanes: int, step: int, *, f16c: bool) -> None:
    """Add the move in of rows of planes whose residues lie apart in the panel, by pixels (``pp``) or channels (``pc``).

    Signature of a move in, then the table of places and the first pixel of ``Apart``.  Where channels lie together
    ``step`` divides the number of lanes.
    """
    with k.function(name, *BLOCK, "int", "buffer", "int") as arguments:
        g, (zero_point, table, first) = Given(*arguments[:8]), arguments[8:]
        block, apart = Block(k, spec, Type(spec.target, lanes), f16c), Apart(table, first, step)
        load, store = load_in(block, zero_point), store_in(block)
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
                for target, value in zip(targets, _residues(k, parts), strict=True):
                    store(value, target + i.index * block.kind.element_bytes, i.index, c.index, None)
            with k.when(rest > 0):
                here = source + rounds * (step * size)
                parts = [load(here + part * lanes * size, mask) for part, mask in enumerate(needed)]
                for target, value, mask in zip(targets, _residues(k, parts), stored, strict=True):
                    store(value, target + rounds * block.kind.element_bytes, rounds, c.index, mask)


def move_listed(k: Module, name: str, spec: Move, lanes: int, *, f16c: bool) -> None:
    """Add the move in, or out, of pixels that lie together in planes, not in the panel: rows with padding between them.

    Signature of the move, then the table of ``Listed``.
    """
    with k.function(name, *BLOCK, *beside(spec), "buffer") as arguments:
        block = Block(k, spec, Type(spec.element, lanes), f16c)
        block.transposed(Given(*arguments[:8]), *ends(block, arguments[8:-1]), Listed(arguments[-1], lanes))


def _residues(k: Module, parts: list[Value]) -> list[Value]:
    """Contiguous vectors, as many as the stride, taken apart: one vector per residue."""
    step, n = len(parts), parts[0].type.lanes
    if step == 1:
        return parts
    if step % 2 == 0:
        pairs = list(zip(parts[::2], parts[1::2], strict=True))
        even, odd = (
            _residues(k, [k.shuffle(a, b, [2 * lane + side for lane in range(n)]) for a, b in pairs])
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
