"""Tiles of output channels by pixels of a row, straight on planes: lanes are pixels, some of them in the padding.

Every vector of pixels is read where it lies, of every second pixel where the stride is two; what lies outside a row is
masked by bits that stand in the entries, so that padding costs no copy.
"""

from __future__ import annotations

from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES, widen
from polyconv.kernels.fused import FusedTile, Out, PlaceWalk, lanes_apart
from polyconv.kernels.isa import ARITHMETIC
from polyconv.kernels.language import Buffer, Mask, Module, Type, Value, vector

__all__ = ["entry_words", "plane_tile"]


def entry_words(vectors: int, stride: int) -> int:
    """Words of an entry, a tap of some channels: its offset, rows of weights before it, channels, and of each load."""
    return 3 + vectors * stride


def plane_tile(k: Module, name: str, spec: FusedTile, lanes: int, rows: int, vectors: int, stride: int, *,
               f16c: bool) -> None:  # fmt: skip
    """Add the tile of ``rows`` output channels by ``vectors`` vectors of neighbouring outputs.

    It walks over one.  Rows of the input are planes, those of the result channels, whose lanes are pixels.  The word
    of a load holds the lanes there are: a bit for each, the first, and the end.
    """
    kind = vector(ARITHMETIC[spec.arithmetic].accumulator, lanes)
    lying, source = kind.of(LLVM_NAMES[spec.source]), DTYPES[spec.source]
    even = [2 * lane for lane in range(lanes)]
    with k.function(name, PlaceWalk) as given:
        out = Out(k, spec, kind, f16c, given.bias, given.scale, given.constants, given.last, "pp",
                  lanes_apart(spec, given))  # fmt: skip

        def load(first: Buffer, part: int, there: Mask) -> Value:
            """Pixels of a part of a row, as they are summed."""
            if not spec.apart:
                value = k.load_first(lying, first + part * lying.bytes, there)
            else:
                with k.choice(there.first < there.count, [k.constant(lying, 0)]) as some:  # type: ignore[operator]
                    some.next(k.gather(lying, first + given.word * (part * lanes), given.word, there))
                value = some.results[0]
            return widen(k, value, source, kind.element, f16c=f16c)

        with k.loop(0, given.count, carry=[k.constant(kind, 0)] * (rows * vectors)) as entry:
            place = given.entries + entry.index * (8 * entry_words(vectors, stride))
            there = [_mask(k, k.word(place, 3 + part), lanes) for part in range(vectors * stride)]
            begin = given.panel + k.word(place)
            stream = given.weights + k.word(place, 1) * (rows * kind.element_bytes)
            with k.loop(0, k.word(place, 2), carry=[begin, stream, *entry.values]) as channel:
                pixels, b, *total = channel.values
                loads = [load(pixels, part, mask) for part, mask in enumerate(there)]
                if stride == 2:
                    loads = [k.shuffle(loads[j], loads[j + 1], even) for j in range(0, len(loads), 2)]
                for r in range(rows):
                    weight = k.broadcast(kind, b + r * kind.element_bytes)
                    for j, value in enumerate(loads):
                        total[r * vectors + j] = k.fma(weight, value, total[r * vectors + j])
                channel.next(pixels + given.row, b + rows * kind.element_bytes, *total)
            entry.next(*channel.results[2:])
        out.store(entry.results, vectors, given.y, given.y_row, given.residual, given.r_row)


def _mask(k: Module, word: Value, lanes: int) -> Mask:
    bits = k.cast("bitcast", k.cast("trunc", word, Type(f"i{lanes}")), vector("i1", lanes))
    return Mask(bits, word >> 48, (word >> 32) & 255)
