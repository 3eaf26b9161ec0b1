"""What scalar instructions compute, as functions of NumPy's arrays; of integers the type is that of the operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from .fused import rounded_to_bf16

__all__ = [
    "bit_field", "bits_inserted", "bits_reversed", "bytes_permuted", "dot_of_bytes", "extreme", "flushed",
    "funnel", "high_product", "leading_zeros", "nearest", "ones", "remainder", "shift_left", "shift_right",
    "table_logic", "truncated_quotient",
]  # fmt: skip

_CANONICAL_NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF}
"""Bits of the NaN that min and max return; f64 keeps one of its operands' NaNs."""


def flushed(x: Any) -> Any:
    """Subnormal numbers as zeros of their sign: what ``.ftz`` asks for."""
    tiny = np.finfo(np.float32).tiny
    return np.where(np.abs(x) < tiny, np.copysign(np.float32(0), x), x)


def truncated_quotient(a: Any, b: Any) -> Any:
    """Division of integers toward zero; by zero gives all ones."""
    safe = np.where(b == 0, np.ones_like(b), b)
    quotient = a // safe
    if np.issubdtype(np.asarray(a).dtype, np.signedinteger):
        quotient = quotient + ((a % safe != 0) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, np.invert(np.zeros_like(quotient)), quotient)


def remainder(a: Any, b: Any) -> Any:
    return np.where(b == 0, a, a - truncated_quotient(a, b) * b)


def high_product(a: Any, b: Any) -> Any:
    """The upper half of the product of two integers."""
    dtype = np.asarray(a).dtype
    bits = 8 * dtype.itemsize
    if bits < 64:
        wide = np.int64 if dtype.kind == "i" else np.uint64
        return (np.asarray(a).astype(wide) * np.asarray(b).astype(wide) >> wide(bits)).astype(dtype)
    # 64 bits: four products of halves, then corrections for the signs
    x, y, low = np.asarray(a).astype(np.uint64), np.asarray(b).astype(np.uint64), np.uint64(0xFFFFFFFF)
    s = np.uint64(32)
    x0, x1, y0, y1 = x & low, x >> s, y & low, y >> s
    middle = x1 * y0 + (x0 * y0 >> s)
    carry = (middle & low) + x0 * y1
    high = x1 * y1 + (middle >> s) + (carry >> s)
    if dtype.kind == "i":
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return high.astype(dtype)


def extreme(largest: bool, nan: bool) -> Callable[[Any, Any], Any]:
    """Min or max of floats: -0 below +0; a NaN gives way to a number, or with ``nan`` wins."""

    def compute(a: Any, b: Any) -> Any:
        a, b = np.broadcast_arrays(np.asarray(a), np.asarray(b))
        dtype, unsigned = a.dtype, np.dtype(f"u{a.itemsize}")
        one = np.where(np.isnan(a), b, np.where(np.isnan(b), a, np.where((a > b) == largest, a, b))).astype(dtype)
        bits_a, bits_b = np.ascontiguousarray(a).view(unsigned), np.ascontiguousarray(b).view(unsigned)
        # equal numbers have equal bits, but for the two zeros
        equal = (bits_a & bits_b if largest else bits_a | bits_b).view(dtype)
        one = np.where(a == b, equal, one).astype(dtype)
        spoilt = (np.isnan(a) | np.isnan(b)) if nan else (np.isnan(a) & np.isnan(b))
        if dtype == np.float64:
            return np.where(spoilt, np.where(np.isnan(a), a, b), one)
        name = {2: "f16", 4: "f32"}[a.itemsize]
        return np.where(spoilt, np.array([_CANONICAL_NAN[name]], unsigned).view(dtype), one)

    return compute


def shift_left(a: Any, amount: Any) -> Any:
    bits = 8 * np.asarray(a).dtype.itemsize
    dtype = np.asarray(a).dtype.type
    return np.where(amount >= bits, dtype(0), a << np.minimum(amount, bits - 1).astype(dtype))


def shift_right(a: Any, amount: Any) -> Any:
    dtype = np.asarray(a).dtype
    bits = 8 * dtype.itemsize
    shifted = a >> np.minimum(amount, bits - 1).astype(dtype)
    return shifted if dtype.kind == "i" else np.where(amount >= bits, dtype.type(0), shifted)


def ones(bits: Any) -> Any:
    """That many ones, up to 64."""
    full = np.minimum(bits, 63).astype(np.uint64)
    return np.where(bits >= 64, np.uint64(2**64 - 1), (np.uint64(1) << full) - np.uint64(1))


def bit_field(a: Any, position: Any, length: Any) -> Any:
    """Bit field extract; a signed one extends its highest bit, or that of the value where it ends there."""
    dtype = np.asarray(a).dtype
    bits = 8 * dtype.itemsize
    position, length = np.asarray(position) & 255, np.asarray(length) & 255
    wide = np.asarray(a).astype(np.int64 if dtype.kind == "i" else np.uint64)
    got = (wide >> np.minimum(position, 63).astype(wide.dtype)).view(np.uint64)
    got = np.where((position >= 64) & (dtype.kind == "u"), np.uint64(0), got) & ones(length)
    if dtype.kind == "i":
        top = np.minimum(position.astype(np.int64) + length - 1, bits - 1)
        negative = (length > 0) & ((wide >> np.maximum(top, 0)) & 1 == 1)
        got = np.where(negative, got | ~ones(length), got)
    return got.astype(np.dtype(f"u{dtype.itemsize}")).view(dtype)


def bits_inserted(a: Any, b: Any, position: Any, length: Any) -> Any:
    """Bit field insert: the low bits of a into b."""
    dtype = np.asarray(b).dtype
    position, length = np.asarray(position) & 255, np.asarray(length) & 255
    inside = np.where(position >= 64, np.uint64(0), ones(length) << np.minimum(position, 63).astype(np.uint64))
    moved = np.asarray(a).astype(np.uint64) << np.minimum(position, 63).astype(np.uint64)
    return (np.asarray(b).astype(np.uint64) & ~inside | moved & inside).astype(dtype)


def bytes_permuted(a: Any, b: Any, selector: Any) -> Any:
    """Four bytes picked among eight; bit 3 of a pick repeats the byte's sign instead."""
    eight = np.asarray(a).astype(np.uint64) | np.asarray(b).astype(np.uint64) << np.uint64(32)
    out: Any = np.uint32(0)
    for i in range(4):
        pick = np.asarray(selector).astype(np.uint64) >> np.uint64(4 * i) & np.uint64(15)
        byte = eight >> (pick & np.uint64(7)) * np.uint64(8) & np.uint64(255)
        sign = np.where(byte >= 128, np.uint64(255), np.uint64(0))
        out = out | np.where(pick >= 8, sign, byte).astype(np.uint32) << np.uint32(8 * i)
    return out


def table_logic(a: Any, b: Any, c: Any, table: Any) -> Any:
    """lop3: bit (4a + 2b + c) of the table, for every bit."""
    out: Any = np.uint32(0)
    for i in range(8):
        if int(table) >> i & 1:
            out = out | (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
    return np.broadcast_to(out, np.broadcast(a, b, c).shape)


def funnel(left: bool, wrap: bool) -> Callable[..., Any]:
    def compute(low: Any, high: Any, amount: Any) -> Any:
        both = np.asarray(high).astype(np.uint64) << np.uint64(32) | np.asarray(low).astype(np.uint64)
        amount = (amount & np.uint32(31) if wrap else np.minimum(amount, np.uint32(32))).astype(np.uint64)
        moved = both << amount >> np.uint64(32) if left else both >> amount
        if left:
            moved = np.where(amount == 32, np.asarray(low).astype(np.uint64), moved)
        return moved.astype(np.uint32)

    return compute


def bits_reversed(a: Any) -> Any:
    dtype = np.asarray(a).dtype
    out = np.zeros_like(a)
    for i in range(8 * dtype.itemsize):
        out = out | (a >> dtype.type(i) & dtype.type(1)) << dtype.type(8 * dtype.itemsize - 1 - i)
    return out


def leading_zeros(a: Any) -> Any:
    bits = 8 * np.asarray(a).dtype.itemsize
    for shift in (1, 2, 4, 8, 16, 32)[: bits.bit_length() - 1]:
        a = a | a >> np.asarray(a).dtype.type(shift)
    return bits - np.bitwise_count(a).astype(np.uint32)


def dot_of_bytes(a: Any, b: Any, c: Any) -> Any:
    """Four products of bytes added to c; a and b come as rows of bytes."""
    total = (a.astype(np.int64) * b.astype(np.int64)).sum(axis=-1) + np.asarray(c).astype(np.int64)
    return total.astype(np.asarray(c).dtype)


def nearest(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An approximate function of the hardware: here the nearest value, which its error bound contains."""

    def compute(x: Any) -> Any:
        dtype = np.asarray(x).dtype
        value = function(np.asarray(x).astype(np.float64))
        return rounded_to_bf16(value) if dtype == ml_dtypes.bfloat16 else value.astype(dtype)

    return compute
