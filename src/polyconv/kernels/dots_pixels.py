"""Tiles whose lanes are pixels: words of several channels against words of weights, for planes.

A panel holds planes of words: a word is a pixel's channels that one instruction multiplies.  Rows of a tile are output
channels, whose weights are broadcast, so results of a channel lie together as they are stored, and none is transposed.
A tile's vectors run on over the ends of lines of the panel; sums of the pixels there are left out as others are stored.
A call walks over blocks of output channels while its pixels stay in the nearest cache.  Needs AVX-512.
It must not know sizes of a problem.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyconv.dtypes import DTYPES
from polyconv.kernels.epilogue import Epilogue, rescaled
from polyconv.kernels.isa import ARITHMETIC
from polyconv.kernels.language import INT, Buffer, Mask, Module, Type, Value, vector
from polyconv.kernels.layout import Block, Move
from polyconv.kernels.move import finished
from polyconv.kernels.signature import Int, Signature
from polyconv.kernels.tile import multiply_add

__all__ = ["GAP_WORDS", "DotPixels", "PixelWalk", "dot_pixels"]

GAP_WORDS = 3
"""Of a vector, in the table of a tile with gaps."""
_PACKED = 4
"""Vectors of sums whose bytes fill one vector."""


class PixelWalk(Signature):
    """Some ``blocks`` of output channels of a tile's pixels.

    Word by word and tap by tap, ``offsets`` lead from the panel's place of the tile to what its pixels meet.  The first
    ``pixels`` are stored, or those that the tile's words of ``gaps`` say, as ``DotPixels`` has it.
    """

    panel: Buffer
    offsets: Buffer
    words: Int
    gaps: Buffer
    weights: Buffer
    y: Buffer
    y_channel: Int
    blocks: Int
    pixels: Int
    bias: Buffer
    scale: Buffer
    constants: Buffer


@dataclass(frozen=True, slots=True)
class DotPixels:
    """A kind of tile.

    Parameters
    ----------
    arithmetic : str
        Row of ``ARITHMETIC``.
    target : str
        dtype of the result.
    epilogue : Epilogue
    gaps : bool
        Whether some pixels of a tile have no results.  Then ``GAP_WORDS`` words of each of its vectors tell the lanes
        that have one, a bit each, how many these are, and the byte of a channel's results where the first belongs.
    """

    arithmetic: str
    target: str
    epilogue: Epilogue
    gaps: bool = False


def dot_pixels(k: Module, name: str, spec: DotPixels, lanes: int, rows: int, vectors: int) -> None:
    """Add the tile of ``rows`` output channels by ``vectors`` vectors of pixels to a module."""
    arithmetic = ARITHMETIC[spec.arithmetic]
    kind, words = (vector(element, lanes) for element in (arithmetic.accumulator, arithmetic.word))
    block_bytes = rows * arithmetic.bytes
    with k.function(name, PixelWalk) as g:
        stores = _stores(k, spec, g, lanes, vectors)
        with k.loop(0, g.blocks, carry=[g.weights, g.y, g.bias, g.scale]) as block:
            weights, y, bias, scale = block.values
            totals: list[Value] = []
            for r in range(rows):
                begins = spec.epilogue.bias and not kind.is_float  # sums of floats get it at their end
                first = k.broadcast(kind, bias + r * kind.element_bytes) if begins else k.constant(kind, 0)
                totals += [first] * vectors
            with k.loop(0, g.words, carry=[weights, *totals], runs=True) as word:
                weight, *totals = word.values
                place = g.panel + k.word(g.offsets, word.index)
                pixels = [k.load(words, place + j * words.bytes) for j in range(vectors)]
                for r in range(rows):
                    of_row = k.broadcast(words, weight + r * arithmetic.bytes)
                    for j in range(vectors):
                        at = r * vectors + j
                        totals[at] = multiply_add(k, arithmetic, pixels[j], of_row, totals[at])
                word.next(weight + block_bytes, *totals)
            weight, *totals = word.results
            for r in range(rows):
                sums = totals[r * vectors : (r + 1) * vectors]
                if spec.gaps:
                    sums = [_closed(k, g, number, value) for number, value in enumerate(sums)]
                results = _finished(k, spec, g, sums, bias + r * kind.element_bytes, scale + r * 4)
                for value, (begin, mask) in zip(results, stores, strict=True):
                    k.store_first(value, y + begin, mask)
                y = y + g.y_channel
            block.next(weight, y, bias + rows * kind.element_bytes, scale + rows * 4)


def _is_packed(spec: DotPixels) -> bool:
    """Whether results are bytes of scaled sums without gaps: those of several vectors are stored at once."""
    return spec.epilogue.rescale and not spec.epilogue.activation and DTYPES[spec.target].bits == 8 and not spec.gaps


def _stores(k: Module, spec: DotPixels, g: PixelWalk, lanes: int, vectors: int) -> list[tuple[Value | int, Mask]]:
    """Where vectors of results of a channel are stored, and how much of each."""
    if spec.gaps:
        words = [g.gaps + number * GAP_WORDS * 8 for number in range(vectors)]
        return [(k.word(of_vector, 2), k.mask(k.word(of_vector, 1), lanes)) for of_vector in words]
    together, size = _PACKED if _is_packed(spec) else 1, DTYPES[spec.target].itemsize
    return [
        (first * lanes * size, k.mask(g.pixels - first * lanes, together * lanes))
        for first in range(0, vectors, together)
    ]


def _closed(k: Module, g: PixelWalk, number: int, value: Value) -> Value:
    """The lanes of a vector that have results, moved together at its beginning."""
    kind = value.type
    bits = k.cast("trunc", k.word(g.gaps, number * GAP_WORDS), Type(f"i{kind.lanes}"))
    mask = k.cast("bitcast", bits, Type("i1", kind.lanes))
    name = f"llvm.x86.avx512.mask.compress.{kind.suffix}"
    return k.target_intrinsic(name, kind, f"{kind}, {kind}, {mask.type}", [value, k.constant(kind, 0), mask])


def _finished(k: Module, spec: DotPixels, g: PixelWalk, sums: list[Value], bias: Buffer, scale: Buffer
              ) -> list[Value]:  # fmt: skip
    """Vectors of results of a channel; in sums of integers its bias is."""
    kind, nothing = sums[0].type, k.constant(INT, 0)
    if not _is_packed(spec):
        epilogue = spec.epilogue if kind.is_float else replace(spec.epilogue, bias=False)
        block = Block(k, Move(kind.element, spec.target, "pp", epilogue), kind, False)
        finish = finished(block, bias, scale, g.y, nothing, nothing, g.constants)
        return [finish(total, nothing, nothing, None) for total in sums]
    floats = kind.of("float")
    low, high = k.broadcast(floats, g.constants), k.broadcast(floats, g.constants + 8)
    factor, zero_point = k.broadcast(floats, scale), k.broadcast(kind, g.constants + 16)
    values = [rescaled(k, total, factor, low, high, zero_point) for total in sums]
    is_signed = DTYPES[spec.target].limits[0] < 0
    return [_bytes(k, values[first : first + _PACKED], is_signed) for first in range(0, len(values), _PACKED)]


def _bytes(k: Module, values: list[Value], is_signed: bool) -> Value:
    """The low bytes of up to four vectors of numbers that bytes can hold, in their order; the last stands in for more.

    Instructions that pack pairs of vectors do so within each 128 bits; at the end words of 32 bits are put in order.
    """
    values = values + values[-1:] * (_PACKED - len(values))
    kind = values[0].type
    shorts, small = vector("i16", 2 * kind.lanes), vector("i8", 4 * kind.lanes)
    pairs = [
        k.target_intrinsic("llvm.x86.avx512.packssdw.512", shorts, f"{kind}, {kind}", values[first : first + 2])
        for first in (0, 2)
    ]
    narrow = f"llvm.x86.avx512.pack{'ss' if is_signed else 'us'}wb.512"
    packed = k.cast("bitcast", k.target_intrinsic(narrow, small, f"{shorts}, {shorts}", pairs), kind)
    pieces = kind.lanes // _PACKED
    ordered = k.shuffle(packed, packed, [piece * _PACKED + v for v in range(_PACKED) for piece in range(pieces)])
    return k.cast("bitcast", ordered, Type("i8", small.lanes))
