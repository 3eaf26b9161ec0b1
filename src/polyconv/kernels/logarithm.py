"""The natural logarithm as vector code, for floats and doubles: no call, no table, no branch of a lane.

With v = 2^e m, m between the roots of 1/2 and of 2, and s = (m - 1) / (m + 1),

    ln v = e ln 2 + ln m,    ln m = 2 s + s R,    R = 2/3 s^2 + 2/5 s^4 + 2/7 s^6 + ...

after W. J. Cody and W. Waite, Software Manual for the Elementary Functions (1980), ch. 5.  As |s| is at most 0.172, the
terms that are left out are below 2^-28 of ln m for floats and below 2^-57 for doubles.  2 s is ``f - s f`` of the exact
f = m - 1, and only what is added to f is rounded before; results are within 4 units in the last place.
"""

from __future__ import annotations

from polyconv.dataclass import dataclass
from polyconv.kernels.emitter import Emitter
from polyconv.kernels.values import Value

__all__ = ["logarithm"]


@dataclass(frozen=True, slots=True)
class _Format:
    """What the two float formats differ in.

    Their integers, bits of the fraction, the exponent's bias, the bits of the root of 1/2, terms of R, and ln 2 in two
    parts, of which the first times any exponent is exact.
    """

    integer: str
    fraction: int
    bias: int
    root: int
    terms: int
    ln2_high: float
    ln2_low: float


_FORMATS = {
    "float": _Format("i32", 23, 127, 0x3F3504F3, 4, 0.693359375, -2.1219444005469057e-4),
    "double": _Format("i64", 52, 1023, 0x3FE6A09E667F3BCD, 9, float.fromhex("0x1.62e42feep-1"),
                      1.9082149292705877e-10),
}  # fmt: skip


def logarithm(k: Emitter, v: Value) -> Value:
    """``ln v``: of 0 it is -Inf, of Inf itself, and of what is below 0, or no number, NaN."""
    f = _FORMATS[v.type.element]
    up = 2.0**f.fraction
    small = v < 2.0 ** (1 - f.bias)  # a subnormal number is a normal one times a power of two
    bits = k.cast("bitcast", k.select(small, v * up, v), v.type.of(f.integer))
    exponent = ((bits + ((f.bias << f.fraction) - f.root)) >> f.fraction) - f.bias  # shifts bring zeros
    m = k.cast("bitcast", bits - (exponent << f.fraction), v.type)
    e = k.cast("sitofp", exponent, v.type) - k.select(small, k.constant(v.type, f.fraction), k.constant(v.type, 0.0))
    rest = m - 1.0
    s = rest / (rest + 2.0)
    square = s * s
    total = k.constant(v.type, 2.0 / (2 * f.terms + 1))
    for term in range(f.terms - 1, 0, -1):
        total = k.fma(total, square, k.constant(v.type, 2.0 / (2 * term + 1)))
    below = s * (rest - square * total) - e * f.ln2_low
    found = e * f.ln2_high + (rest - below)
    found = k.select(v < float("inf"), found, v)
    found = k.select(v.equals(0.0), float("-inf"), found)
    return k.select(v < 0.0, float("nan"), found)
