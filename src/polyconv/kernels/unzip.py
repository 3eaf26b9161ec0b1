"""Move rows of planes to a panel, every residue of their pixels modulo a stride to a place of its own.

One pass over contiguous pixels serves all taps of a kernel: whole vectors are read once and taken apart in registers.
It must know nothing of problems.
"""

from __future__ import annotations

from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.language import INT, Buffer, Module, Type, Value
from polyconv.kernels.layout import Apart, Block, Listed, Move, MoveIn, MoveOut
from polyconv.kernels.move import ends, load_in, store_in
from polyconv.kernels.signature import Int

__all__ = ["ListedMoveIn", "ListedMoveOut", "MoveApart", "move_apart", "move_listed", "residues"]


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
