"""Element conversions in the kernel language: memory types to accumulators and back, exactly rounded.

Where the CPU converts, LLVM's conversion is used; where it does not (f16 without F16C, bf16 where subnormal numbers
count: the hardware form flushes them) integer code does the same, so no kernel calls out.
It must know nothing of where values come from.
"""

from __future__ import annotations

from polyconv.dtypes import Dtype
from polyconv.kernels.emitter import Emitter
from polyconv.kernels.language import Module, Value, vector

__all__ = ["LLVM_NAMES", "ROUNDED", "cut", "cut_unsigned", "narrow", "rounded_pair", "saturate", "widen"]

LLVM_NAMES = {
    "f16": "half", "bf16": "i16", "f32": "float", "f64": "double",
    "i8": "i8", "u8": "i8", "i16": "i16", "u16": "i16", "i32": "i32", "u32": "i32", "i64": "i64", "u64": "i64",
}  # fmt: skip
"""LLVM element under which a dtype is loaded and stored."""


def widen(k: Module, value: Value, dtype: Dtype, to: str, *, f16c: bool) -> Value:
    """Convert a loaded value of ``dtype`` to the accumulator element ``to``; exact."""
    kind = value.type
    if kind.element == to:  # also bf16 taken as it is, for dot products of pairs
        return value
    if dtype.name == "bf16":
        bits = k.cast("zext", value, kind.of("i32")) << 16
        value = k.cast("bitcast", bits, kind.of("float"))
    elif dtype.name == "f16":
        value = k.cast("fpext", value, kind.of("float")) if f16c else _half_to_float(k, value)
    if value.type.element == to:
        return value
    if value.type.is_float:
        return k.cast("fpext", value, kind.of(to))
    if to in ("float", "double"):
        return k.cast("uitofp" if dtype.kind == "u" else "sitofp", value, kind.of(to))
    if value.type.element_bytes > kind.of(to).element_bytes:
        return k.cast("trunc", value, kind.of(to))
    return k.cast("zext" if dtype.kind == "u" else "sext", value, kind.of(to))


def narrow(k: Module, value: Value, dtype: Dtype, *, f16c: bool, flushed: bool = False) -> Value:
    """Convert an accumulator to the element stored for ``dtype``: nearest even, integers modulo their size.

    Where subnormal numbers may be ``flushed``, whole vectors become bf16 by one instruction.
    """
    kind = value.type
    to = kind.of(LLVM_NAMES[dtype.name])
    if kind == to:
        return value
    if not dtype.is_float:
        return k.cast("trunc", value, to)
    if kind.element == "double":
        raise AssertionError("f64 sums are stored as f64")
    if dtype.name == "bf16":
        return _rounded_by_cpu(k, value) if flushed and kind.lanes == ROUNDED else _float_to_bfloat(k, value)
    return k.cast("fptrunc", value, to) if f16c else _float_to_half(k, value)


def saturate(k: Module, value: Value, dtype: Dtype) -> Value:
    """Clamp an integer accumulator to the range of ``dtype``; a u64 result keeps its bits."""
    low, high = dtype.limits
    bits = value.type.element_bytes * 8
    if (dtype.bits >= bits and dtype.kind == "i") or dtype.name == "u64":
        return value
    high = min(high, 2 ** (bits - 1) - 1)
    value = k.select(value < low, low, value)
    return k.select(value > high, high, value)


def cut(k: Emitter, value: Value, to: str) -> Value:
    """Cut a float towards zero; beyond the range of ``to``, and for NaN, the least number, as x86 has it."""
    kind = value.type.of(to)
    bits = 8 * kind.element_bytes
    beyond, least = 2.0 ** (bits - 1), -(2 ** (bits - 1))
    # what is cut may reach below the least number by less than 1, if the float has a fraction there
    fits = (value > -beyond - 1 if bits == 32 else value >= -beyond) & (value < beyond)
    return k.select(fits, k.cast("fptosi", k.select(fits, value, 0.0), kind), least)


def cut_unsigned(k: Emitter, value: Value) -> Value:
    """Cut a float to 64 bits that have no sign: the upper half of the range by what it is more than the lower."""
    high = value >= 2.0**63
    found = cut(k, k.select(high, value - 2.0**63, value), "i64")
    return k.select(high, found ^ -(2**63), found)


def _half_to_float(k: Module, value: Value) -> Value:
    """Integer form: shift exponent and fraction into place, rebias; subnormals are fraction * 2^-24."""
    kind, wide = value.type, value.type.of("i32")
    bits = k.cast("zext", k.cast("bitcast", value, kind.of("i16")), wide)
    sign = (bits & 0x8000) << 16
    rest = bits & 0x7FFF
    normal = (rest << 13) + ((127 - 15) << 23)
    special = normal + ((255 - 31 - (127 - 15)) << 23)  # infinity and NaN: exponent 31 becomes 255
    tiny = k.cast("bitcast", k.cast("sitofp", rest, kind.of("float")) * 2.0**-24, wide)
    chosen = k.select(rest < 0x0400, tiny, k.select(rest < 0x7C00, normal, special))
    return k.cast("bitcast", chosen | sign, kind.of("float"))


def _float_to_half(k: Module, value: Value) -> Value:
    """Integer form, to nearest even; results below 2^-14 are rounded by adding 0.5, whose ulp is 2^-24."""
    kind, wide = value.type, value.type.of("i32")
    bits = k.cast("bitcast", value, wide)
    sign = (bits >> 16) & 0x8000
    size = bits & 0x7FFFFFFF
    shifted = k.cast("bitcast", size, kind) + 0.5
    tiny = k.cast("bitcast", shifted, wide) - 0x3F000000
    rounded = (size + (((15 - 127) << 23) + 0x0FFF) + ((size >> 13) & 1)) >> 13
    chosen = k.select(size < 0x38800000, tiny, rounded)
    chosen = k.select(size < 0x477FF000, chosen, 0x7C00)  # 65520 and more: infinity
    chosen = k.select(size > 0x7F800000, 0x7E00, chosen)  # NaN stays quiet NaN
    return k.cast("bitcast", k.cast("trunc", chosen | sign, kind.of("i16")), kind.of("half"))


ROUNDED = 16
"""Lanes of the instructions that round to bf16."""


def _rounded_by_cpu(k: Module, value: Value) -> Value:
    """Nearest even, subnormal numbers as zero; NaN keeps its upper bits and becomes quiet."""
    rounded = k.target_intrinsic(
        "llvm.x86.avx512bf16.cvtneps2bf16.512", vector("bfloat", ROUNDED), str(value.type), [value]
    )
    return k.cast("bitcast", rounded, value.type.of("i16"))


def rounded_pair(k: Module, first: Value, second: Value) -> Value:
    """Two vectors of floats, one behind the other, as bf16: as ``_rounded_by_cpu`` rounds each."""
    both, kind = vector("bfloat", 2 * ROUNDED), first.type
    name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
    return k.cast("bitcast", k.target_intrinsic(name, both, f"{kind}, {kind}", [second, first]), both.of("i16"))


def _float_to_bfloat(k: Module, value: Value) -> Value:
    """Upper half of the float, to nearest even; NaN keeps its upper bits and becomes quiet."""
    wide = value.type.of("i32")
    bits = k.cast("bitcast", value, wide)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    chosen = k.select((bits & 0x7FFFFFFF) > 0x7F800000, bits | 0x400000, rounded) >> 16
    return k.cast("trunc", chosen, value.type.of("i16"))
