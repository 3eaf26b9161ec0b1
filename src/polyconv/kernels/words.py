"""Words of several channels: planes of a few channels woven into words pixel by pixel, and padding between pixels.

A word has as many channels as an arithmetic multiplies at once; where a group has fewer left, what stands in the
others has weights of zero.  It must know nothing of problems.
"""

from __future__ import annotations

from polyconv.kernels.language import Buffer, Module, Type, Value
from polyconv.kernels.layout import Block, Move, MoveIn, woven
from polyconv.kernels.move import load_in

__all__ = ["fill_bytes", "words_in"]


def words_in(k: Module, name: str, spec: Move, lanes: int, *, f16c: bool) -> None:
    """Add the move in of ``spec.together`` planes, or fewer, to words that follow each other in the panel.

    In place of a plane that is not there it takes the first.
    """
    block, count = Block(k, spec, Type(spec.element, lanes), f16c), spec.together
    with k.function(name, MoveIn) as g:
        load, size = load_in(block, g.zero_point), Type(spec.element).bytes
        planes = [g.source + k.select(g.channels > c, g.source_channel * c, 0) for c in range(count)]

        def weave(pixel: Value, whole: bool) -> None:
            mask = None if whole else k.mask(g.pixels - pixel, lanes)
            vectors = [load(plane + pixel * block.source_bytes, mask) for plane in planes]
            for v, merged in enumerate(woven(k, vectors)):
                place = g.target + (pixel * (count * size) + v * lanes * size)
                if whole:
                    k.store(merged, place)
                else:
                    k.store_first(merged, place, k.mask((g.pixels - pixel) * count - v * lanes, lanes))

        full = g.pixels - g.pixels % lanes
        with k.loop(0, full, lanes) as p:
            weave(p.index, True)
        with k.when(full < g.pixels):
            weave(full, False)


def fill_bytes(k: Module, target: Buffer, size: Value, pattern: Value) -> None:
    """Fill ``size`` bytes with a vector of equal ones, and up to a vector's bytes behind them."""
    with k.loop(0, size, pattern.type.bytes) as at:
        k.store(pattern, target + at.index)
