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

__all__ = ["PlanesIn", "fill_bytes", "planes_in", "spread_in", "words_in"]

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
        step = block.sizes[0] if apart is None else apart

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


def planes_in(k: Module, name: str, spec: Move, lanes: int, *, short: bool, spills: bool) -> None:
    """Add the move of rows to planes of words of ``spec.together`` channels, for CPUs with masks.

    Vectors with the first and the last pixel that lies in the tensor have masks, those between need none.  Rows with
    more padding than these two hold are filled with it before.

    Parameters
    ----------
    lanes : int
        Pixels at a time.
    short : bool
        Whether rows have no more than these.
    spills : bool
        Whether the last vector of a row is stored whole: what lies behind a row is written later, or never read.
    """
    apart, count = int(spec.along[0]) if spec.along[0].isdigit() else 1, spec.together
    read_whole = 2 if apart == 2 else 1  # of every second pixel, all are read at once
    pixels_in = Type(LLVM_NAMES[spec.source], read_whole * lanes)
    in_pairs = apart == 2 and pixels_in.element_bytes == 2  # a pixel, and its neighbour that nobody needs
    block = Block(k, spec, Type(spec.element, (1 + in_pairs) * lanes), False)
    piece = vector("i32", lanes) if in_pairs else block.kind
    with k.function(name, PlanesIn) as g:
        filling = k.splat(k.cast("trunc", g.padding, block.kind.scalar), _VECTOR // block.kind.element_bytes)
        padding = k.splat(k.cast("trunc", g.padding, block.kind.scalar), block.kind.lanes)
        padding = k.cast("bitcast", padding, piece) if in_pairs else padding

        def load(place: Buffer, mask: Mask | None) -> Value:
            if apart > 2:
                return converted(block, block.read(pixels_in, place, mask, None), g.zero_point)
            value = k.load(pixels_in, place) if mask is None else k.load_first(pixels_in, place, mask)
            if apart == 2 and not in_pairs:
                value = k.cast("trunc", k.cast("bitcast", value, vector("i16", lanes)), vector("i8", lanes))
            value = converted(block, value, g.zero_point)
            return k.cast("bitcast", value, piece) if in_pairs else value

        def weave(planes: Sequence[Buffer], line: Buffer, first: Value, end: tuple[Mask, Mask, list[Mask]] | None
                  ) -> None:  # fmt: skip
            """The words of some pixels; an ``end`` tells which of them and of their elements lie in the tensor."""
            there, read, parts = end or (None, None, [])
            values = [load(plane + first * block.sizes[0], read) for plane in planes]
            values = [value if there is None else k.select(there.bits, value, padding) for value in values]
            if in_pairs:
                values = [(values[0] & 0xFFFF) | (values[1] << 16)]
            _put(k, values if in_pairs else _words(k, values), line + first * _WORD, [] if spills else parts)

        zero = k.constant(INT, 0)
        first = zero if short else g.head // lanes * lanes
        last = zero if short else k.maximum(g.end - 1, 0) // lanes * lanes
        begin, end = (_end(k, g, at, lanes, read_whole) for at in (first, last))
        is_filled = (first > 0) | (last + lanes < g.pixels)
        end_row = k.select(g.head < g.end, g.end_row, g.first_row)
        with k.loop(0, g.channels, count, carry=[g.source, g.target]) as plane:
            source, target = plane.values
            rest = g.channels - plane.index
            channels = [source + (k.select(rest > c, g.source_channel * c, 0) if c else 0) for c in range(count)]
            with k.loop(0, g.rows, carry=[*channels, target]) as row:
                *planes, line = row.values
                outside = (row.index < g.first_row) | (row.index >= end_row)
                with k.when(is_filled | outside), k.loop(0, g.pixels, _VECTOR // _WORD) as at:
                    parts = [] if spills else _parts(k, g.pixels - at.index, _VECTOR // _WORD)
                    _put(k, [filling], line + at.index * _WORD, parts)
                with k.when(outside, otherwise=True):
                    weave(planes, line, first, begin)
                    with k.loop(first + lanes, last, lanes) as at:
                        weave(planes, line, at.index, None)
                    with k.when(last > first):
                        weave(planes, line, last, end)
                row.next(*(place + g.source_row for place in planes), line + g.target_row)
            plane.next(source + g.source_channel * count, target + g.target_plane)


def spread_in(k: Module, name: str, element: str, channels: int) -> None:
    """Add the move of pixels whose few channels lie together, to pixels with one more, a zero; for CPUs with masks."""
    lanes = _VECTOR // Type(element).bytes
    together, kind = lanes // (channels + 1), vector(element, lanes)
    places = [divmod(lane, channels + 1) for lane in range(lanes)]
    picks = [pixel * channels + c if c < channels and pixel < together else lanes for pixel, c in places]
    with k.function(name, MoveIn) as g:
        zeros = k.constant(kind, 0)
        with k.loop(0, g.pixels, together, [g.source, g.target]) as at:
            source, target = at.values
            count = k.minimum(g.pixels - at.index, together)
            found = k.load_first(kind, source, k.mask(count * channels, lanes))
            k.store_first(k.shuffle(found, zeros, picks), target, k.mask(count * (channels + 1), lanes))
            size = kind.element_bytes * together
            at.next(source + size * channels, target + size * (channels + 1))


def _end(k: Module, g: PlanesIn, first: Value, lanes: int, apart: int) -> tuple[Mask, Mask, list[Mask]]:
    """Of the pixels from one on those that lie in the tensor, their elements so far apart, and the words of the row."""
    head, end = g.head - first, g.end - first
    there = _lanes(k, end, lanes, head)
    read = there if apart == 1 else _lanes(k, end * 2 - 1, 2 * lanes, head * 2)
    return there, read, _parts(k, g.pixels - first, lanes)


def _parts(k: Module, pixels: Value, lanes: int) -> list[Mask]:
    """Of the vectors that so many lanes of words make, those that are pixels."""
    return [_lanes(k, pixels - at, _VECTOR // _WORD) for at in range(0, lanes, _VECTOR // _WORD)]


def _put(k: Module, values: Sequence[Value], place: Buffer, parts: Sequence[Mask]) -> None:
    """Store vectors of words, or some lanes of each."""
    for v, value in enumerate(values):
        if parts:
            with k.when(parts[v].count > 0):
                k.store_first(k.cast("bitcast", value, vector("i32", _VECTOR // _WORD)), place + v * _VECTOR, parts[v])
        else:
            k.store(value, place + v * _VECTOR)


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


def fill_bytes(k: Module, target: Buffer, size: Value, pattern: Value) -> None:
    """Fill ``size`` bytes with a vector of equal ones, and up to a vector's bytes behind them."""
    with k.loop(0, size, pattern.type.bytes) as at:
        k.store(pattern, target + at.index)
