"""Tiles whose lanes are pixels: words of several channels, or taps, against words of weights.

A word is what one instruction multiplies of a pixel.  Rows of a tile are output channels, whose weights are broadcast,
so results of a channel lie together as they are stored, and none is transposed.  A call walks over blocks of output
channels while its pixels stay in the nearest cache.  Needs AVX-512.  It must not know sizes of a problem.

Words lie in planes of a panel, where a tile's vectors run on over the ends of lines: sums of the pixels there are left
out as others are stored.  Or they are a patch, of the entries of windows, which are channels of taps: the tile of the
first block loads pixels of each entry where they lie, weaves them into words, multiplies these and stores them; that of
all other blocks loads them again while a near cache holds them.  So weaving goes on beside products and costs little.

Vectors are woven within each 128 bits, as many at once as a word has entries, so that pixels lie in an order of their
own in them: of ``n`` vectors lane ``4 l + i`` of vector ``v`` is pixel ``4 n l + 4 v + i``.  Results are put right as
they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES, widen
from polyconv.kernels.epilogue import Epilogue
from polyconv.kernels.isa import ARITHMETIC, Arithmetic
from polyconv.kernels.language import Buffer, Mask, Module, Type, Value, vector
from polyconv.kernels.move import finished_sums, rounds_pairs
from polyconv.kernels.rescale import PACKED, is_packed, packed_bytes, packed_place
from polyconv.kernels.signature import Int, Signature
from polyconv.kernels.tile import multiply_add

__all__ = ["GAP_WORDS", "DotPixels", "PixelWalk", "dot_pixels", "leaving", "stored_together", "weaving"]

GAP_WORDS = 3
"""Of vectors that are stored together, in the table of a tile with gaps."""
_PIECE, _VECTOR = 4, 64
"""Words of 128 bits, within which vectors are woven, and bytes of a vector."""


class PixelWalk(Signature):
    """Some ``blocks`` of output channels of the first ``pixels`` of a tile, with the ``words`` that a pixel has.

    Weights, biases and scales are those of the first channel, whose results begin at ``y``; residuals lie as results
    do.  Word by word ``offsets`` lead from the tile's place in the panel to what its pixels meet; entry by entry to
    where it lies in the source, if words are woven, which go to the ``patch`` or come from there.
    """

    words: Int
    weights: Buffer
    y: Buffer
    residual: Buffer
    y_channel: Int
    blocks: Int
    pixels: Int
    bias: Buffer
    scale: Buffer
    constants: Buffer
    y_pixel: Int
    source: Buffer
    offsets: Buffer
    gaps: Buffer
    patch: Buffer


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
    windows : str
        ``all``: a row more is summed, and taken off all others; ``each``: times what follows a block's weights for each
        of the others; empty: there is none.
    gaps : bool
        Whether some pixels of a tile have no results.  Then ``GAP_WORDS`` words of vectors that are stored together
        tell the lanes that have one, a bit each, how many these are, and the byte of a channel's results where the
        first belongs.
    vbmi2 : bool
        Whether the CPU has instructions that close gaps between bytes.
    patch : str
        ``woven``: it weaves the words of a patch; ``held``: it loads them; empty: words lie in planes.
    edge : bool
        Whether the tile of a patch without gaps may have fewer pixels than its vectors.
    half : bool
        Whether the second entry of the last word is none: it counts as 0.
    apart : bool
        Whether neighbouring pixels of the result do not follow each other.
    """

    arithmetic: str
    target: str
    epilogue: Epilogue
    windows: str = ""
    gaps: bool = False
    vbmi2: bool = False
    patch: str = ""
    edge: bool = False
    half: bool = False
    apart: bool = False


def dot_pixels(k: Module, name: str, spec: DotPixels, lanes: int, rows: int, vectors: int) -> None:
    """Add the tile of ``rows`` output channels by ``vectors`` vectors of pixels, of a patch a multiple of a word's."""
    arithmetic = ARITHMETIC[spec.arithmetic]
    kind, words = (vector(element, lanes) for element in (arithmetic.accumulator, arithmetic.word))
    all_rows = rows + (spec.windows > "")
    with k.function(name, PixelWalk) as g:
        leave = leaving(k, spec, g, kind, vectors)
        weave = weaving(k, spec, g, arithmetic, vectors) if spec.patch == "woven" else None
        with k.loop(0, g.blocks, carry=[g.weights, g.y, g.residual, g.bias, g.scale]) as block:
            weights, y, residual, bias, scale = block.values
            begins = spec.epilogue.bias and not kind.is_float  # sums of floats get it at their end
            totals = [total for r in range(all_rows) for total in vectors * [
                k.broadcast(kind, bias + r * kind.element_bytes) if begins and r < rows else k.constant(kind, 0)
            ]]  # fmt: skip
            with k.loop(0, g.words, carry=[weights, g.patch, *totals], runs=True) as word:
                weight, patch, *totals = word.values
                if weave is not None:
                    pixels = weave(word.index, patch)
                else:
                    place = patch if spec.patch else g.source + k.word(g.offsets, word.index)
                    pixels = [k.load(words, place + j * words.bytes) for j in range(vectors)]
                for r in range(all_rows):
                    of_row = k.broadcast(words, weight + r * arithmetic.bytes)
                    for j in range(vectors):
                        at = r * vectors + j
                        totals[at] = multiply_add(k, arithmetic, pixels[j], of_row, totals[at])
                word.next(weight + all_rows * arithmetic.bytes, patch + vectors * words.bytes, *totals)
            weight, _, *totals = word.results
            of_windows = totals[rows * vectors :]
            for r in range(rows):
                sums, taken = totals[r * vectors : (r + 1) * vectors], of_windows
                if spec.windows == "each":
                    factor = k.broadcast(kind, weight)
                    weight, taken = weight + kind.element_bytes, [total * factor for total in of_windows]
                if taken:
                    sums = [total - less for total, less in zip(sums, taken, strict=True)]
                leave(sums, y, residual, bias + r * kind.element_bytes, scale + r * 4)
                y, residual = y + g.y_channel, residual + g.y_channel
            block.next(weight, y, residual, bias + rows * kind.element_bytes, scale + rows * 4)


def weaving(k: Module, spec: DotPixels, g: PixelWalk, arithmetic: Arithmetic, vectors: int
            ) -> Callable[[Value, Buffer], list[Value]]:  # fmt: skip
    """What weaves the vectors of a word of a number, and stores them in a patch."""
    count = arithmetic.channels
    size = arithmetic.bytes // count
    kind, lanes = vector(f"i{8 * size}", _VECTOR // size), _VECTOR // arithmetic.bytes
    words = vector("i32", lanes)
    masks: list[Mask | None] = [None] * (vectors // count)
    if spec.edge:
        masks = [k.mask(g.pixels - first * kind.lanes, kind.lanes) for first in range(len(masks))]

    def weave(number: Value, patch: Buffer) -> list[Value]:
        entries = [g.source + k.word(g.offsets, number * count + entry) for entry in range(count)]
        found: list[Value] = []
        for first, mask in enumerate(masks):
            places = [entry + first * _VECTOR for entry in entries]
            values = [k.load(kind, at) if mask is None else k.load_first(kind, at, mask) for at in places]
            found += [k.cast("bitcast", value, words) for value in _woven(k, values)]
        if spec.half:
            there = k.select(number.equals(g.words - 1), k.constant(words.scalar, (1 << 8 * size) - 1), -1)
            found = [value & k.splat(there, lanes) for value in found]
        for j, value in enumerate(found):
            k.store(value, patch + j * _VECTOR)
        return found

    return weave


def _woven(k: Module, values: Sequence[Value]) -> list[Value]:
    """Vectors of words from a vector of each of their entries."""
    planes = [[value] for value in values]
    while len(planes) > 1:
        pairs = zip(planes[::2], planes[1::2], strict=True)
        planes = [[half for a, b in zip(*pair, strict=True) for half in _unpacked(k, a, b)] for pair in pairs]
    return planes[0]


def _unpacked(k: Module, a: Value, b: Value) -> list[Value]:
    """The elements of two vectors in pairs, as numbers twice as wide: the lower halves of all 128 bits, the upper."""
    lanes, piece = a.type.lanes, 16 // a.type.element_bytes
    wide = vector(f"i{16 * a.type.element_bytes}", lanes // 2)
    halves = [
        [at for first in range(start, lanes, piece) for i in range(first, first + piece // 2) for at in (i, lanes + i)]
        for start in (0, piece // 2)
    ]  # fmt: skip
    return [k.cast("bitcast", k.shuffle(a, b, half), wide) for half in halves]


def stored_together(spec: DotPixels, kind: Type) -> int:
    """Vectors of sums whose results are stored at once: several, if narrow, and the CPU can close their gaps."""
    if is_packed(kind, spec.target, spec.epilogue, beside=_reads_beside(spec)):
        return PACKED if spec.vbmi2 or not spec.gaps else 1
    return 2 if rounds_pairs(kind, spec.target, spec.epilogue) and (spec.vbmi2 or not spec.gaps) else 1


def _reads_beside(spec: DotPixels) -> bool:
    """Whether tiles may add residuals: pixels of vectors follow each other as those of results do."""
    return not spec.gaps and not spec.patch and not spec.apart


def leaving(k: Module, spec: DotPixels, g: PixelWalk, kind: Type, vectors: int
            ) -> Callable[[list[Value], Buffer, Buffer, Buffer, Buffer], None]:  # fmt: skip
    """What stores the results of a channel's sums: where those of a tile's first pixel belong, with what they take.

    That is the place of its residual, of its bias and of its scale.
    """
    stores = _stores(k, spec, g, kind, vectors)
    masks = [k.mask(g.pixels - j * kind.lanes, kind.lanes) for j in range(vectors)] if spec.epilogue.residual else []
    dtype, memory = DTYPES[spec.target], kind.of(LLVM_NAMES[spec.target])

    def leave(sums: list[Value], y: Buffer, residual: Buffer, bias: Buffer, scale: Buffer) -> None:
        read = [k.load_first(memory, residual + j * memory.bytes, mask) for j, mask in enumerate(masks)]
        beside = [widen(k, value, dtype, "float", f16c=False) for value in read]
        for value, store in zip(_finished(k, spec, g, sums, beside, bias, scale), stores, strict=True):
            _store(k, spec, g, value, y, *store)

    return leave


def _stores(k: Module, spec: DotPixels, g: PixelWalk, kind: Type, vectors: int
            ) -> list[tuple[Value | int, Mask | None]]:  # fmt: skip
    """Where vectors of results of a channel are stored, and how much of each."""
    together, size = stored_together(spec, kind), DTYPES[spec.target].itemsize
    if spec.gaps:
        words = [g.gaps + number * GAP_WORDS * 8 for number in range(-(-vectors // together))]
        return [(k.word(of_vector, 2), k.mask(k.word(of_vector, 1), together * kind.lanes)) for of_vector in words]
    count, whole = vectors * kind.lanes, spec.patch and not spec.edge
    each = _VECTOR // size if spec.patch else together * kind.lanes
    step = g.y_pixel if spec.apart else size
    return [
        (first * step, None if whole else k.mask(g.pixels - first, min(each, count) if spec.patch else each))
        for first in range(0, count, each)
    ]  # fmt: skip


def _store(k: Module, spec: DotPixels, g: PixelWalk, value: Value, y: Buffer, begin: Value | int, mask: Mask | None
           ) -> None:  # fmt: skip
    if spec.apart:
        k.scatter(value, y + begin, g.y_pixel, mask)
    elif mask is None:
        k.store(value, y + begin)
    else:
        k.store_first(value, y + begin, mask)


def _closed(k: Module, g: PixelWalk, number: int, value: Value) -> Value:
    """The lanes of a vector that have results, moved together at its beginning."""
    kind, word = value.type, Type(f"i{value.type.lanes}")
    bits = k.word(g.gaps, number * GAP_WORDS)
    mask = k.cast("bitcast", bits if bits.type == word else k.cast("trunc", bits, word), Type("i1", kind.lanes))
    name = f"llvm.x86.avx512.mask.compress.{kind.suffix}"
    return k.target_intrinsic(name, kind, f"{kind}, {kind}, {mask.type}", [value, k.constant(kind, 0), mask])


def _finished(k: Module, spec: DotPixels, g: PixelWalk, sums: list[Value], beside: list[Value], bias: Buffer,
              scale: Buffer) -> list[Value]:  # fmt: skip
    """Vectors of results of a channel, in the order of their pixels; in sums of integers its bias is."""
    kind = sums[0].type
    if (together := stored_together(spec, kind)) < PACKED:
        early = spec.gaps and together == 1
        if early:
            ordered = _ordered(k, spec, sums, kind, kind.lanes)
            sums = [_closed(k, g, number, value) for number, value in enumerate(ordered)]
        found = finished_sums(k, spec.target, spec.epilogue, sums, bias, scale, g.y, g.constants, apart=together == 1)
        if not early:
            found = _ordered(k, spec, found, kind, _VECTOR // DTYPES[spec.target].itemsize)
        return [_closed(k, g, number, value) for number, value in enumerate(found)] if spec.gaps > early else found
    factor, found = k.broadcast(kind.of("float"), scale), []
    for first in range(0, len(sums), PACKED):
        some = sums[first : first + PACKED]
        packed = packed_bytes(k, some, [factor] * len(some), g.constants, spec.target, spec.epilogue,
                              beside[first : first + PACKED])  # fmt: skip
        count = len(some) if spec.patch else PACKED
        order = [packed_place(v, lane) for v, lane in _order(spec, count, kind.lanes)]
        found.append(packed if order == list(range(packed.type.lanes)) else k.shuffle(packed, packed, order))
    return [_closed(k, g, number, value) for number, value in enumerate(found)] if spec.gaps else found


def _ordered(k: Module, spec: DotPixels, values: list[Value], kind: Type, each: int) -> list[Value]:
    """Vectors of sums, or of results of some of these each, as so many pixels in their order."""
    if not spec.patch:
        return values
    whole = k.joined(values)
    order = [v * kind.lanes + lane for v, lane in _order(spec, whole.type.lanes // kind.lanes, kind.lanes)]
    return [k.shuffle(whole, whole, order[first : first + each]) for first in range(0, len(order), each)]


def _order(spec: DotPixels, vectors: int, lanes: int) -> list[tuple[int, int]]:
    """For every pixel of some vectors the number of the vector that has it, and its lane."""
    if not spec.patch:
        return [(number, lane) for number in range(vectors) for lane in range(lanes)]
    group, found = ARITHMETIC[spec.arithmetic].channels, []
    for pixel in range(vectors * lanes):
        of_group, within = divmod(pixel, group * lanes)
        piece, rest = divmod(within, group * _PIECE)
        found.append((of_group * group + rest // _PIECE, piece * _PIECE + rest % _PIECE))
    return found
