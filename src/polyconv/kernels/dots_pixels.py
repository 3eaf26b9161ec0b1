"""Tiles whose lanes are pixels: words of several channels against words of weights, for planes.

A panel holds planes of words: a word is a pixel's channels that one instruction multiplies.  Rows of a tile are output
channels, whose weights are broadcast, so results of a channel lie together as they are stored, and none is transposed.
A tile's vectors run on over the ends of lines of the panel; sums of the pixels there are left out as others are stored.
A call walks over blocks of output channels while its pixels stay in the nearest cache.  Needs AVX-512.
It must not know sizes of a problem.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyconv.dtypes import DTYPES
from polyconv.kernels.channel_blocks import ChannelWalk
from polyconv.kernels.epilogue import Epilogue
from polyconv.kernels.isa import ARITHMETIC
from polyconv.kernels.language import Buffer, Mask, Module, Type, Value, vector
from polyconv.kernels.move import finished_sums, rounds_pairs
from polyconv.kernels.rescale import PACKED, is_packed, packed_bytes, packed_place
from polyconv.kernels.tile import multiply_add

__all__ = ["GAP_WORDS", "DotPixels", "PixelWalk", "dot_pixels", "stored_together"]

GAP_WORDS = 3
"""Of vectors that are stored together, in the table of a tile with gaps."""


class PixelWalk(ChannelWalk):
    """A walk over blocks of output channels of a tile's pixels.

    Word by word and tap by tap, ``offsets`` lead from the panel's place of the tile to what its pixels meet.  The first
    ``pixels`` are stored, or those that the tile's words of ``gaps`` say, as ``DotPixels`` has it.
    """

    panel: Buffer
    offsets: Buffer
    gaps: Buffer


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
        Whether some pixels of a tile have no results.  Then ``GAP_WORDS`` words of vectors that are stored together
        tell the lanes that have one, a bit each, how many these are, and the byte of a channel's results where the
        first belongs.
    vbmi2 : bool
        Whether the CPU has instructions that close gaps between bytes.
    windows : str
        ``all``: a row more is summed, and taken off all others; ``each``: times what follows a block's weights for each
        of the others; empty: there is none.
    """

    arithmetic: str
    target: str
    epilogue: Epilogue
    gaps: bool = False
    vbmi2: bool = False
    windows: str = ""


def dot_pixels(k: Module, name: str, spec: DotPixels, lanes: int, rows: int, vectors: int) -> None:
    """Add the tile of ``rows`` output channels by ``vectors`` vectors of pixels to a module."""
    arithmetic = ARITHMETIC[spec.arithmetic]
    kind, words = (vector(element, lanes) for element in (arithmetic.accumulator, arithmetic.word))
    all_rows = rows + (spec.windows > "")
    with k.function(name, PixelWalk) as g:
        stores = _stores(k, spec, g, kind, vectors)
        with k.loop(0, g.blocks, carry=[g.weights, g.y, g.bias, g.scale]) as block:
            weights, y, bias, scale = block.values
            totals: list[Value] = []
            for r in range(rows):
                begins = spec.epilogue.bias and not kind.is_float  # sums of floats get it at their end
                first = k.broadcast(kind, bias + r * kind.element_bytes) if begins else k.constant(kind, 0)
                totals += [first] * vectors
            totals += [k.constant(kind, 0)] * (vectors * (all_rows - rows))
            with k.loop(0, g.words, carry=[weights, *totals], runs=True) as word:
                weight, *totals = word.values
                place = g.panel + k.word(g.offsets, word.index)
                pixels = [k.load(words, place + j * words.bytes) for j in range(vectors)]
                for r in range(all_rows):
                    of_row = k.broadcast(words, weight + r * arithmetic.bytes)
                    for j in range(vectors):
                        at = r * vectors + j
                        totals[at] = multiply_add(k, arithmetic, pixels[j], of_row, totals[at])
                word.next(weight + all_rows * arithmetic.bytes, *totals)
            weight, *totals = word.results
            of_windows = totals[rows * vectors :]
            for r in range(rows):
                row_sums, row_bias = totals[r * vectors : (r + 1) * vectors], bias + r * kind.element_bytes
                taken = of_windows
                if spec.windows == "each":
                    factor = k.broadcast(kind, weight)
                    weight, taken = weight + kind.element_bytes, [total * factor for total in of_windows]
                if taken:
                    row_sums = [total - less for total, less in zip(row_sums, taken, strict=True)]
                results = _finished(k, spec, g, row_sums, row_bias, scale + r * 4)
                for value, (begin, mask) in zip(results, stores, strict=True):
                    k.store_first(value, y + begin, mask)
                y = y + g.y_channel
            block.next(weight, y, bias + rows * kind.element_bytes, scale + rows * 4)


def stored_together(spec: DotPixels, kind: Type) -> int:
    """Vectors of sums whose results are stored at once: as bytes several, unless the CPU cannot close their gaps."""
    if is_packed(kind, spec.target, spec.epilogue):
        return PACKED if spec.vbmi2 or not spec.gaps else 1
    return 2 if rounds_pairs(kind, spec.target, spec.epilogue) and not spec.gaps else 1


def _stores(k: Module, spec: DotPixels, g: PixelWalk, kind: Type, vectors: int) -> list[tuple[Value | int, Mask]]:
    """Where vectors of results of a channel are stored, and how much of each."""
    together, size = stored_together(spec, kind), DTYPES[spec.target].itemsize
    lanes = together * kind.lanes
    if spec.gaps:
        words = [g.gaps + number * GAP_WORDS * 8 for number in range(-(-vectors // together))]
        return [(k.word(of_vector, 2), k.mask(k.word(of_vector, 1), lanes)) for of_vector in words]
    firsts = range(0, vectors * kind.lanes, lanes)
    return [(first * size, k.mask(g.pixels - first, lanes)) for first in firsts]


def _closed(k: Module, g: PixelWalk, number: int, value: Value) -> Value:
    """The lanes of a vector that have results, moved together at its beginning."""
    kind, word = value.type, Type(f"i{value.type.lanes}")
    bits = k.word(g.gaps, number * GAP_WORDS)
    mask = k.cast("bitcast", bits if bits.type == word else k.cast("trunc", bits, word), Type("i1", kind.lanes))
    name = f"llvm.x86.avx512.mask.compress.{kind.suffix}"
    return k.target_intrinsic(name, kind, f"{kind}, {kind}, {mask.type}", [value, k.constant(kind, 0), mask])


def _finished(k: Module, spec: DotPixels, g: PixelWalk, sums: list[Value], bias: Buffer, scale: Buffer
              ) -> list[Value]:  # fmt: skip
    """Vectors of results of a channel; in sums of integers its bias is."""
    kind = sums[0].type
    if stored_together(spec, kind) < PACKED:
        if spec.gaps:
            sums = [_closed(k, g, number, value) for number, value in enumerate(sums)]
        return finished_sums(k, spec.target, spec.epilogue, sums, bias, scale, g.y, g.constants, apart=spec.gaps)
    factor = k.broadcast(kind.of("float"), scale)
    order = [packed_place(number, lane) for number in range(PACKED) for lane in range(kind.lanes)]
    found = []
    for first in range(0, len(sums), PACKED):
        some = sums[first : first + PACKED]
        packed = packed_bytes(k, some, [factor] * len(some), g.constants, spec.target, spec.epilogue)
        found.append(k.shuffle(packed, packed, order))
    return [_closed(k, g, number, value) for number, value in enumerate(found)] if spec.gaps else found
