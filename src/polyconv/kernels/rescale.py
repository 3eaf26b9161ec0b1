"""Scaled sums to bytes by instructions that pack vectors: they round, and saturate while they narrow.

Up to four vectors of sums become one of bytes.  Such instructions work within each 128 bits, so that results lie in an
order of their own there, which callers put right, or make use of.  It must not know where sums come from.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyconv.dtypes import DTYPES
from polyconv.kernels.epilogue import SLOTS, Epilogue, bounded, summed
from polyconv.kernels.language import Buffer, Module, Type, Value, vector

__all__ = ["PACKED", "is_packed", "packed_bytes", "packed_place", "packs_rows"]

PACKED = 4
"""Vectors of sums whose bytes fill one vector."""

_PIECE = 4
"""Sums of a vector that are packed together: 128 bits."""

_INSTRUCTIONS = {
    32: ("llvm.x86.avx.cvt.ps2dq.256", "llvm.x86.avx2.pack{}"),
    64: ("llvm.x86.avx512.mask.cvtps2dq.512", "llvm.x86.avx512.pack{}.512"),
}
"""By the bytes of a vector: to whole numbers, as the CPU is set to round; and to numbers half as wide."""


def is_packed(kind: Type, target: str, epilogue: Epilogue, *, beside: bool = False) -> bool:
    """Whether sums of a kind are packed: those that become bytes, scaled and nothing else.

    A residual with a scale of its own is added where bytes ``beside`` can be given.
    """
    alone = not epilogue.residual or (beside and bool(epilogue.adds))
    scaled = epilogue.rescale and alone and not epilogue.activation
    return scaled and DTYPES[target].bits == 8 and kind.element == "i32" and kind.bytes in _INSTRUCTIONS


def packs_rows(kind: Type, target: str, epilogue: Epilogue, vectors: int) -> bool:
    """Whether results of rows of so many vectors are packed, bytes of the residual at hand."""
    return vectors <= PACKED and is_packed(kind, target, epilogue, beside=True)


def packed_place(number: int, lane: int) -> int:
    """Where among packed bytes the result of a lane of one of the vectors is."""
    piece, within = divmod(lane, _PIECE)
    return (piece * PACKED + number) * _PIECE + within


def packed_bytes(k: Module, sums: Sequence[Value], scales: Sequence[Value], constants: Buffer, target: str,
                 epilogue: Epilogue, beside: Sequence[Value] = ()) -> Value:  # fmt: skip
    """The bytes of up to four vectors of sums, each with its scale; the last vector stands in for those that lack.

    ``constants`` are those of ``rescaled``, of which this has the results, with what lies ``beside`` as well: what is
    too small to be a whole number of 32 bits, or is none, becomes the least there is, and so would what is too large,
    which is bounded before.  The zero point is the low half of its constant, as the other half is all of
    ``ROUNDING_BITS``.
    """
    kind = sums[0].type
    floats, shorts = scales[0].type, vector("i16", 2 * kind.lanes)

    def constant(place: int, kind: Type) -> Value:
        return k.splat(k.kept(kind.scalar, constants + place * 8), kind.lanes)

    prefix = "sum_" if beside else ""
    high, zero_point = constant(SLOTS[f"{prefix}most"], floats), constant(SLOTS[f"{prefix}zero"], shorts)
    scaled = [k.cast("sitofp", total, floats) * scale for total, scale in zip(sums, scales, strict=True)]
    if beside:
        scaled = [summed(k, bounded(k, value, constant, ""), other, constant, epilogue.adds)
                  for value, other in zip(scaled, beside, strict=True)]  # fmt: skip
    if beside or not epilogue.below_one:
        scaled = [k.select(high < value, high, value) for value in scaled]
    rounded = [_rounded(k, value, kind) for value in scaled]
    rounded += rounded[-1:] * (PACKED - len(rounded))
    halves = [_packed(k, "ssdw", rounded[:2]), _packed(k, "ssdw", rounded[2:])]
    moved = [k.intrinsic("sadd.sat", shorts, half, zero_point) for half in halves]
    return _packed(k, "sswb" if DTYPES[target].limits[0] < 0 else "uswb", moved)


def _rounded(k: Module, value: Value, kind: Type) -> Value:
    """The nearest whole numbers, ties to even; the least of all where there is none."""
    name, _ = _INSTRUCTIONS[kind.bytes]
    if kind.bytes < 64:
        return k.target_intrinsic(name, kind, f"{value.type}", [value])
    instead, every, as_set = k.constant(kind, 0), k.constant(Type("i16"), -1), k.constant(Type("i32"), 4)
    return k.target_intrinsic(name, kind, f"{value.type}, {kind}, i16, i32", [value, instead, every, as_set])


def _packed(k: Module, how: str, pair: Sequence[Value]) -> Value:
    """Two vectors as one of numbers half as wide."""
    kind = pair[0].type
    small = vector(f"i{4 * kind.element_bytes}", 2 * kind.lanes)
    name = _INSTRUCTIONS[kind.bytes][1].format(how)
    return k.target_intrinsic(name, small, f"{kind}, {kind}", pair)
