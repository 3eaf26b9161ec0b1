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
    """Add the move in of planes of channels to planes of words, of ``spec.together`` channels each, or fewer.

    Words of a plane follow each other; planes lie ``target_channel`` bytes apart.  In place of a channel that is not
    there it takes the first of its word.
    """
    count = spec.together
    with k.function(name, MoveIn) as g:
        apart = g.source_pixel if spec.along == "any" else None
        block = Block(k, spec, Type(spec.element, lanes), f16c, apart)
        load, size = load_in(block, g.zero_point), Type(spec.element).bytes
        step = block.source_bytes if apart is None else apart

        def weave(planes: list[Buffer], target: Buffer, pixel: Value, whole: bool) -> None:
            mask = None if whole else k.mask(g.pixels - pixel, lanes)
            vectors = [load(plane + pixel * step, mask) for plane in planes]
            for v, merged in enumerate(woven(k, vectors)):
                place = target + (pixel * (count * size) + v * lanes * size)
                if whole:
                    k.store(merged, place)
                else:
                    k.store_first(merged, place, k.mask((g.pixels - pixel) * count - v * lanes, lanes))

        full = g.pixels - g.pixels % lanes
        with k.loop(0, g.channels, count, [g.source, g.target]) as plane:
            source, target = plane.values
            left = g.channels - plane.index
            planes = [source + k.select(left > c, g.source_channel * c, 0) for c in range(count)]
            with k.loop(0, full, lanes) as p:
                weave(planes, target, p.index, True)
            with k.when(full < g.pixels):
                weave(planes, target, full, False)
            plane.next(source + g.source_channel * count, target + g.target_channel)


def fill_bytes(k: Module, target: Buffer, size: Value, pattern: Value) -> None:
    """Fill ``size`` bytes with a vector of equal ones, and up to a vector's bytes behind them."""
    with k.loop(0, size, pattern.type.bytes) as at:
        k.store(pattern, target + at.index)
