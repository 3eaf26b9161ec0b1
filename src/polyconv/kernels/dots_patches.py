"""Tiles whose lanes are pixels of a row: words of the entries of their windows, woven by the first block of outputs.

An entry is a channel of a tap; a word holds those of a pixel that one instruction multiplies: two numbers of 16 bits,
or four bytes.  The tile of the first block of output channels loads pixels of each entry where they lie, weaves them
into words, multiplies these and stores them; that of all other blocks loads them again while a near cache holds them.
So weaving goes on beside products and costs little.  Needs AVX-512.

Vectors are woven within each 128 bits, as many at once as a word has entries, so that pixels lie in an order of their
own in them: of ``n`` vectors lane ``4 l + i`` of vector ``v`` is pixel ``4 n l + 4 v + i``.  Results are put right as
they are stored.  It must not know sizes of a problem, or what lies in padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polyconv.dtypes import DTYPES
from polyconv.kernels.channel_blocks import ChannelWalk
from polyconv.kernels.epilogue import Epilogue
from polyconv.kernels.isa import ARITHMETIC, Arithmetic
from polyconv.kernels.language import Buffer, Mask, Module, Value, vector
from polyconv.kernels.move import finished_sums
from polyconv.kernels.rescale import PACKED, is_packed, packed_bytes, packed_place
from polyconv.kernels.signature import Int
from polyconv.kernels.tile import multiply_add

__all__ = ["DotPatches", "PatchWalk", "dot_patches"]

_PIECE = 4
"""Words of 128 bits, within which vectors are woven."""

_VECTOR = 64
"""Bytes of a vector."""


class PatchWalk(ChannelWalk):
    """A walk over blocks of output channels of a tile's pixels.

    ``places`` has, word by word, the bytes from ``source`` to where the entries of the tile's first pixel lie.  Words
    go to ``patch``, or come from there.
    """

    source: Buffer
    places: Buffer
    patch: Buffer
    y_pixel: Int


@dataclass(frozen=True, slots=True)
class DotPatches:
    """A kind of tile.

    Parameters
    ----------
    arithmetic : str
        Row of ``ARITHMETIC``.
    target : str
        dtype of the result.
    epilogue : Epilogue
    weaves : bool
        Whether it weaves the words, else loads them.
    edge : bool
        Whether it may have fewer pixels than its vectors.
    half : bool
        Whether the second entry of the last word is none: it counts as 0.
    apart : bool
        Whether neighbouring pixels of the result do not follow each other.
    """

    arithmetic: str
    target: str
    epilogue: Epilogue
    weaves: bool
    edge: bool = False
    half: bool = False
    apart: bool = False


def dot_patches(k: Module, name: str, spec: DotPatches, lanes: int, rows: int, vectors: int) -> None:
    """Add the tile of ``rows`` output channels by ``vectors`` vectors of pixels, a multiple of a word's entries."""
    arithmetic = ARITHMETIC[spec.arithmetic]
    kind, words = (vector(element, lanes) for element in (arithmetic.accumulator, arithmetic.word))
    with k.function(name, PatchWalk) as g:
        weave = _weaving(k, spec, g, arithmetic, vectors) if spec.weaves else None
        with k.loop(0, g.blocks, carry=[g.weights, g.y, g.bias, g.scale]) as block:
            weights, y, bias, scale = block.values
            begins = spec.epilogue.bias and not kind.is_float  # sums of floats get it at their end
            totals = [total for r in range(rows) for total in vectors * [
                k.broadcast(kind, bias + r * kind.element_bytes) if begins else k.constant(kind, 0)
            ]]  # fmt: skip
            with k.loop(0, g.words, carry=[weights, g.patch, *totals], runs=True) as word:
                weight, patch, *totals = word.values
                if weave is not None:
                    pixels = weave(word.index, patch)
                else:
                    pixels = [k.load(words, patch + j * words.bytes) for j in range(vectors)]
                for r in range(rows):
                    of_row = k.broadcast(words, weight + r * arithmetic.bytes)
                    for j in range(vectors):
                        at = r * vectors + j
                        totals[at] = multiply_add(k, arithmetic, pixels[j], of_row, totals[at])
                word.next(weight + rows * arithmetic.bytes, patch + vectors * words.bytes, *totals)
            weight, _, *totals = word.results
            for r in range(rows):
                sums = totals[r * vectors : (r + 1) * vectors]
                _store(k, spec, g, sums, y, bias + r * kind.element_bytes, scale + r * 4)
                y = y + g.y_channel
            block.next(weight, y, bias + rows * kind.element_bytes, scale + rows * 4)


def _weaving(k: Module, spec: DotPatches, g: PatchWalk, arithmetic: Arithmetic, vectors: int
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
        entries = [g.source + k.word(g.places, number * count + entry) for entry in range(count)]
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


def _store(k: Module, spec: DotPatches, g: PatchWalk, sums: list[Value], y: Buffer, bias: Buffer, scale: Buffer
           ) -> None:  # fmt: skip
    """Store the results of a channel, in the order of their pixels."""
    lanes, size = sums[0].type.lanes, DTYPES[spec.target].itemsize
    group = ARITHMETIC[spec.arithmetic].channels
    if is_packed(sums[0].type, spec.target, spec.epilogue):
        factor, values = k.broadcast(sums[0].type.of("float"), scale), []
        for first in range(0, len(sums), PACKED):
            some = sums[first : first + PACKED]
            packed = packed_bytes(k, some, [factor] * len(some), g.constants, spec.target, spec.epilogue)
            order = [packed_place(v, lane) for v, lane in _order(len(some), lanes, group)]
            values.append(packed if order == list(range(packed.type.lanes)) else k.shuffle(packed, packed, order))
    else:
        whole = k.joined(finished_sums(k, spec.target, spec.epilogue, sums, bias, scale, y, g.constants))
        order = [v * lanes + lane for v, lane in _order(len(sums), lanes, group)]
        each = min(len(order), _VECTOR // size)
        values = [k.shuffle(whole, whole, order[first : first + each]) for first in range(0, len(order), each)]
    first = 0
    for value in values:
        place = y + first * (g.y_pixel if spec.apart else size)
        mask = k.mask(g.pixels - first, value.type.lanes) if spec.edge else None
        if spec.apart:
            k.scatter(value, place, g.y_pixel, mask)
        elif mask is None:
            k.store(value, place)
        else:
            k.store_first(value, place, mask)
        first += value.type.lanes


def _order(vectors: int, lanes: int, group: int) -> list[tuple[int, int]]:
    """For every pixel of some vectors the number of the vector that has it, and its lane."""
    found = []
    for pixel in range(vectors * lanes):
        of_group, within = divmod(pixel, group * lanes)
        piece, rest = divmod(within, group * _PIECE)
        found.append((of_group * group + rest // _PIECE, piece * _PIECE + rest % _PIECE))
    return found
