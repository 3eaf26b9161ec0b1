"""Words of several channels: planes of a few channels woven into words pixel by pixel, and padding between pixels.

A word has as many channels as an arithmetic multiplies at once; where a group has fewer left, what stands in the
others has weights of zero.  It must know nothing of problems.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.language import INT, Buffer, Mask, Module, Type, Value, vector
from polyconv.kernels.layout import Block, Move, MoveIn, woven
from polyconv.kernels.move import converted, load_in
from polyconv.kernels.signature import Int, Signature

__all__ = ["PlanesIn", "fill_bytes", "planes_in", "words_in"]

_WORD, _VECTOR = 4, 64
"""Bytes of a word, and of vectors of CPUs with masks."""


class PlanesIn(Signature):
    """Rows of pixels of some ``channels``, to planes of words.

    Of so many ``rows`` those from ``first_row`` to ``end_row`` lie in the tensor, and of their ``pixels`` those from
    ``head`` to ``end``; pixel 0 of row 0, at ``source``, may lie outside.  What does gets ``padding`` in its place.
    """

    source: Buffer
    source_row: Int
    source_channel: Int
    channels: Int
    target: Buffer
    target_row: Int
    target_plane: Int
    rows: Int
    first_row: Int
    end_row: Int
    pixels: Int
    head: Int
    end: Int
    padding: Int
    zero_point: Int


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


def planes_in(k: Module, name: str, spec: Move, lanes: int, *, short: bool) -> None:
    """Add the move of rows to planes of words of ``spec.together`` channels, for CPUs with masks.

    Parameters
    ----------
    lanes : int
        Pixels at a time.
    short : bool
        Whether rows have no more than these.
    """
    block, count = Block(k, spec, Type(spec.element, lanes), False), spec.together
    apart = 2 if spec.along[0] == "2" else 1
    pixels_in = Type(LLVM_NAMES[spec.source], apart * lanes)
    with k.function(name, PlanesIn) as g:
        padding = k.splat(k.cast("trunc", g.padding, block.kind.scalar), lanes)

        def met(head: Value, end: Value) -> tuple[Mask, Mask]:
            """Which pixels lie in the tensor, and which elements of it are read for them."""
            pixels = _lanes(k, end, lanes, head)
            return pixels, pixels if apart == 1 else _lanes(k, end * 2 - 1, 2 * lanes, head * 2)

        def load(place: Buffer, mask: Mask | None) -> Value:
            value = k.load(pixels_in, place) if mask is None else k.load_first(pixels_in, place, mask)
            if apart == 2:
                value = k.cast("trunc", k.cast("bitcast", value, vector("i16", lanes)), vector("i8", lanes))
            return converted(block, value, g.zero_point)

        def weave(planes: Sequence[Buffer], target: Buffer, pixel: Value, masks: tuple[Mask, Mask] | None,
                  parts: Sequence[Mask] = ()) -> None:  # fmt: skip
            there, read = masks or (None, None)
            vectors = [load(plane + pixel * block.source_bytes, read) for plane in planes]
            if there is not None:
                vectors = [k.select(there.bits, value, padding) for value in vectors]
            for v, merged in enumerate(_words(k, vectors)):
                place = target + pixel * _WORD + v * _VECTOR
                if there is None:
                    k.store(merged, place)
                    continue
                with k.when(parts[v].count > 0):
                    k.store_first(k.cast("bitcast", merged, vector("i32", _VECTOR // _WORD)), place, parts[v])

        def of_words(pixel: Value) -> list[Mask]:
            """Which words of the vectors from a pixel on there are."""
            firsts = range(0, lanes * count * block.kind.element_bytes // _WORD, _VECTOR // _WORD)
            return [_lanes(k, g.pixels - pixel - first, _VECTOR // _WORD) for first in firsts]

        start = k.constant(INT, 0)
        every, parts = met(g.head, g.end), of_words(start)
        with k.loop(0, g.channels, count, carry=[g.source, g.target]) as plane:
            source, target = plane.values
            rest = g.channels - plane.index
            begin = [source + (k.select(rest > c, g.source_channel * c, 0) if c else 0) for c in range(count)]
            with k.loop(0, g.rows, carry=[*begin, target]) as row:
                *planes, line = row.values
                inside = (row.index >= g.first_row) & (row.index < g.end_row)
                if short:
                    there, read = (_only_if(k, inside, mask) for mask in every)
                    weave(planes, line, start, (there, read), parts)
                else:
                    head, end = (k.select(inside, v, 0) for v in (g.head, g.end))
                    first = (head + (lanes - 1)) // lanes * lanes  # of the pixels that need no masks
                    last = k.maximum(end - (apart - 1) - first, 0) // lanes * lanes + first
                    with k.loop(first, last, lanes) as p:
                        weave(planes, line, p.index, None)
                    with k.loop(0, 2) as side:
                        before = side.index.equals(0)
                        with k.loop(k.select(before, 0, last), k.select(before, first, g.pixels), lanes) as p:
                            weave(planes, line, p.index, met(head - p.index, end - p.index), of_words(p.index))
                row.next(*(place + g.source_row for place in planes), line + g.target_row)
            plane.next(source + g.source_channel * count, target + g.target_plane)


def _words(k: Module, values: list[Value]) -> list[Value]:
    """Vectors of one kind merged into whole ones: the first element of each, the second of each, ..."""
    count, lanes = len(values), values[0].type.lanes
    while len(values) > 1 and values[0].type.bytes < _VECTOR:
        every = range(2 * values[0].type.lanes)
        values = [k.shuffle(a, b, every) for a, b in zip(values[::2], values[1::2], strict=True)]
    if len(values) == count:
        return woven(k, values)
    size = values[0].type.lanes
    order = [number * lanes + lane for lane in range(lanes) for number in range(count)]
    return [k.shuffle(values[0], values[-1], order[first : first + size]) for first in range(0, len(order), size)]


def _lanes(k: Module, end: Value, lanes: int, first: Value | None = None) -> Mask:
    """Mask of the lanes first..end, both clamped to what there is, by the CPU's registers for numbers."""

    def below(number: Value) -> tuple[Value, Value]:
        number = k.maximum(k.minimum(number, lanes), 0)
        return number, k.select(number > 0, k.constant(INT, -1) >> (64 - number), 0)

    end, bits = below(end)
    if first is not None:
        first, skipped = below(first)
        first, bits = k.minimum(first, end), bits & (skipped ^ -1)
    whole = bits if lanes == 64 else k.cast("trunc", bits, Type(f"i{lanes}"))
    return Mask(k.cast("bitcast", whole, Type("i1", lanes)), end, first)


def _only_if(k: Module, condition: Value, mask: Mask) -> Mask:
    """A mask where a condition holds, else one without lanes."""
    assert mask.first is not None
    bits = k.select(condition, mask.bits, k.constant(mask.bits.type, 0))
    return Mask(bits, k.select(condition, mask.count, 0), k.select(condition, mask.first, 0))


def fill_bytes(k: Module, target: Buffer, size: Value, pattern: Value) -> None:
    """Fill ``size`` bytes with a vector of equal ones, and up to a vector's bytes behind them."""
    with k.loop(0, size, pattern.type.bytes) as at:
        k.store(pattern, target + at.index)
