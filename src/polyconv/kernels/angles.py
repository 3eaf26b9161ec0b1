"""Sine and cosine of floats of 32 bits as vector code: no call and no table, right to two units in the last place.

With n the whole number next to v 2/pi and r = v - n pi/2, which is at most pi/4 in size, they are by n modulo 4 a sine
or cosine of r, or its negative:

    sin r = r + r^3 S(r^2),    cos r = 1 - r^2 / 2 + r^4 C(r^2),

S and C with three terms whose largest errors relative to the results are 2^-28 and 2^-33 (fitted by weighted least
squares, Lawson's way).  Of numbers up to 2^13 each of three parts of pi/2 is taken off by one rounding (W. J. Cody and
W. Waite, Software Manual for the Elementary Functions, 1980, ch. 8).  Of larger ones, m 2^e, only the bits of 2/pi
count that make less than a whole turn (M. Payne and R. Hanek, Radian reduction for trigonometric functions, 1983): m
times 96 of them, from the one that makes half a turn on, has 62 bits behind the quarter turns.  Results are within two
units in the last place of all floats.
"""

from __future__ import annotations

import math

from polyconv.kernels.emitter import Emitter
from polyconv.kernels.mathfn import polynomial
from polyconv.kernels.values import Value

__all__ = ["cosine", "sine"]

_SINE = -0.16666655242443085, 0.008332155644893646, -0.00019514630548655987
_COSINE = 0.04166664555668831, -0.0013887309469282627, 2.4432411009911448e-05
_HALF_PI = float.fromhex("0x1.921fb6p+0"), float.fromhex("-0x1.777a5cp-25"), float.fromhex("-0x1.ee59dap-50")
_TWO_BY_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561
"""The first 256 bits of 2/pi behind the point."""
_NEAR = 8192.0
"""Up to which parts of pi/2 are taken off, where products are added with one rounding."""
_ROUNDING = 1.5 * 2.0**23
"""What is added to it has its whole part in the last bits."""
_FRACTION, _BIAS = 23, 127


def sine(k: Emitter, v: Value) -> Value:
    """``sin v``; NaN of what is infinite."""
    return k.select(v.equals(0.0), v, _turned(k, v, 0))  # of -0 it is -0


def cosine(k: Emitter, v: Value) -> Value:
    """``cos v``; NaN of what is infinite."""
    return _turned(k, v, 1)


def _turned(k: Emitter, v: Value, more: int) -> Value:
    """The sine of so many quarter turns more."""
    size = k.intrinsic("fabs", v.type, v)
    if k.has_fma:
        whole = v * (2.0 / math.pi) + _ROUNDING
        near, quarters, rest = _NEAR, k.cast("bitcast", whole, v.type.of("i32")), v
        turns = -(whole - _ROUNDING)
        for part in _HALF_PI:
            rest = k.fma(turns, k.constant(v.type, part), rest)
    else:  # below pi/4 nothing is taken off
        near, quarters, rest = 0.785, k.constant(v.type.of("i32"), 0), v
    is_far = size > near
    with k.choice(k.any(is_far) > 0 if v.type.lanes else is_far, [rest, quarters]) as far:
        far_rest, far_quarters = _far(k, v, size)
        far.next(k.select(is_far, far_rest, rest), k.select(is_far, far_quarters, quarters))
    r, n = far.results
    n = n + more
    square = r * r
    of_sine = k.fma(r * square, polynomial(k, square, _SINE), r)
    of_cosine = k.fma(square * square, polynomial(k, square, _COSINE), 1.0 - 0.5 * square)
    found = k.select((n & 1).equals(0), of_sine, of_cosine)
    return k.cast("bitcast", k.cast("bitcast", found, n.type) ^ ((n & 2) << 30), v.type)


def _far(k: Emitter, v: Value, size: Value) -> tuple[Value, Value]:
    """What is left of numbers of 0.5 and more in size, and quarter turns modulo 4."""
    narrow, wide = v.type.of("i32"), v.type.of("i64")
    bits = k.cast("bitcast", size, narrow)
    exponent = (bits >> _FRACTION) - (_BIAS - 1)
    first = k.cast("zext", k.select(exponent > 0, exponent, 0), wide)
    m = k.cast("zext", (bits & ((1 << _FRACTION) - 1)) | (1 << _FRACTION), wide)
    # v is m 2^(exponent - 24): with an exponent of 0 the bit that makes half a turn is the first of 26 zeros and 2/pi
    whole = _TWO_BY_PI >> 26
    words = [whole >> 32 * (7 - at) & 0xFFFFFFFF for at in range(8)]
    number, shift = first >> 5, first & 31

    def word(at: int) -> Value:
        found = k.constant(wide, words[at + 4])
        for q in range(3, -1, -1):
            found = k.select(number.equals(q), k.constant(wide, words[at + q]), found)
        return found

    high, low = (word(0) << 32) | word(1), (word(2) << 32) | word(3)
    window = (high << shift) | ((low >> 1) >> (63 - shift))
    product = m * window + ((m * ((low << shift) >> 32)) >> 32)
    quarters = (product + (1 << 61)) >> 62
    scale = math.pi / 2 * 2.0**-62
    rest = k.cast("fptrunc", k.cast("sitofp", product - (quarters << 62), v.type.of("double")) * scale, v.type)
    is_negative = v < 0.0
    n = k.cast("trunc", quarters, narrow)
    rest = k.select(size < float("inf"), rest, float("nan"))
    return k.select(is_negative, -rest, rest), k.select(is_negative, 0 - n, n)
