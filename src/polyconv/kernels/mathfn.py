"""The activations as vector code: a name, a value and its parameters to the instructions that apply it.

Everything exponential grows from one reduction, ``x = n ln 2 + r`` with a polynomial in ``r``; nothing is
called, no table is read, and no lane takes a branch, so every target and every number of lanes has the
same code.  It must not know where values come from or go: it sees floats and doubles (Relu and Clip:
integers too), and its meaning is the table of ``problem/epilogue.py``.

Results are within 4 units in the last place of the exact value, with subnormal numbers or without; those of
ReluAffine and HardSwishAffine are, but where their two terms cancel.
NaN passes through: clamps compare and select, and a comparison with NaN selects the NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyconv.kernels.emitter import Emitter
from polyconv.kernels.formats import FORMATS
from polyconv.kernels.logarithm import logarithm
from polyconv.kernels.values import Value
from polyconv.problem.epilogue import ACTIVATIONS

__all__ = ["PARAMETERS", "apply", "error_function", "exponential", "exponential_below", "polynomial", "softplus"]

PARAMETERS = {name: len(row.parameters) for name, row in ACTIVATIONS.items()}
"""How many parameters each activation takes."""


def apply(k: Emitter, name: str, v: Value, parameters: Sequence[Value]) -> Value:
    """Emit ``activation(v)``.

    Parameters
    ----------
    k : Emitter
        Receives the instructions.
    name : str
        A key of ``ACTIVATIONS``.
    v : Value
        Of ``float`` or ``double``, any number of lanes or a scalar; Relu and Clip also of (signed)
        ``i32`` or ``i64``.
    parameters : sequence of Value
        In the order of ``ACTIVATIONS[name].parameters``, of the type of ``v``.

    Returns
    -------
    Value
        Of the type of ``v``.
    """
    return _FORMS[name](k, v, *parameters)


_LOG2_E = 1.4426950408889634


def _at_least(k: Emitter, v: Value, low: Value | float) -> Value:
    return k.select(v < low, low, v)


def _at_most(k: Emitter, v: Value, high: Value | float) -> Value:
    return k.select(v > high, high, v)


def _absolute(k: Emitter, v: Value) -> Value:
    return k.intrinsic("fabs", v.type, v)


def polynomial(k: Emitter, x: Value, coefficients: Sequence[float]) -> Value:
    """Horner's rule; the constant stands first."""
    total = k.constant(x.type, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = k.fma(total, x, k.constant(x.type, c))
    return total


# -- the exponential -----------------------------------------------------------------------------------
#
#   e^x = 2^n (1 + p(r)),  n = round(x / ln 2),  r = x - n ln 2,  p(r) = e^r - 1 = r + r^2 q(r)
#
# after W. J. Cody and W. Waite, Software Manual for the Elementary Functions (1980), ch. 6.  Adding
# 1.5 * 2^fraction rounds to an integer and leaves it in the low bits of the sum, so no rounding instruction
# is needed (SSE2 has none).  As n * ln2_high and its difference to x are exact, r has one rounding; and as
# p has r itself as its first term, it keeps its relative accuracy down to r = 0, which expm1 needs.
#
# q is the Chebyshev fit to (e^r - 1 - r) / r^2 on |r| <= 0.35, a little more than ln 2 / 2:
#   mpmath.chebyfit(lambda r: (expm1(r) - r) / r**2 if r else 0.5, [-0.35, 0.35], count)
# with 5 coefficients for float and 10 for double; r^2 q is then off by at most 2^-26.8 and 2^-55.9.


def _exponential(k: Emitter, x: Value, factor: Value | None = None) -> tuple[Value, Value]:
    """``p`` and ``n`` of ``e^x``, or of ``e^(x factor)``, as ``2^n (1 + p)``: p in -0.3 .. 0.42, n in integers.

    That is in their low bits.  The exponent is at least the format's floor and small enough for the result to be
    finite.  A product is not rounded before ``n * ln2_high``, which is exact, is taken off it.
    """
    f = FORMATS[x.type.element]
    rounder = 1.5 * 2.0**f.fraction
    exponent = x if factor is None else x * factor
    shifted = k.fma(exponent, k.constant(x.type, _LOG2_E), k.constant(x.type, rounder))
    n = shifted - rounder
    high = k.constant(x.type, -f.ln2_high)
    r = k.fma(n, high, x) if factor is None else _multiply_add(k, x, factor, n * high)
    r = k.fma(n, k.constant(x.type, -f.ln2_low), r)
    p = k.fma(r * r, polynomial(k, r, f.exponential), r)
    return p, k.cast("bitcast", shifted, x.type.of(f.integer))


def _power(k: Emitter, n: Value, element: str, extra: int = 0) -> Value:
    """``2^(n + extra)``, a normal number; the shift drops the bits above n that ``_exponential`` left."""
    f = FORMATS[element]
    return k.cast("bitcast", (n << f.fraction) + ((f.bias + extra) << f.fraction), n.type.of(element))


def _scaled(k: Emitter, m: Value, n: Value) -> Value:
    """``m 2^n`` also where ``2^n`` alone is below the smallest normal number."""
    guard = FORMATS[m.type.element].guard
    return m * _power(k, n, m.type.element, guard) * 2.0**-guard


def _times_power(k: Emitter, m: Value, p: Value, n: Value) -> Value:
    """``m 2^n (1 + p)``, without the rounding of ``1 + p``."""
    return _scaled(k, k.fma(m, p, m), n)


def _expm1(k: Emitter, x: Value) -> Value:
    """``e^x - 1 = 2^n p + (2^n - 1)`` for x <= 0; below -60 it is -1 in either format."""
    p, n = _exponential(k, _at_least(k, x, -60.0))
    power = _power(k, n, x.type.element)
    return k.fma(power, p, power - 1.0)


# -- exact products ------------------------------------------------------------------------------------


def _leading(k: Emitter, v: Value) -> Value:
    """The leading half of the fraction; the product of two such halves is exact."""
    f = FORMATS[v.type.element]
    bits = k.cast("bitcast", v, v.type.of(f.integer)) & -(1 << f.low_bits)
    return k.cast("bitcast", bits, v.type)


def _multiply_add(k: Emitter, a: Value, b: Value, c: Value) -> Value:
    """``a b + c`` rounded once, or as good as once where the target rounds the product first.

    There the errors of product and sum are found and added back: T. J. Dekker, Numerische Mathematik 18
    (1971), with halves cut off the bits; and D. E. Knuth, TAOCP volume 2, 4.2.2, theorem B.
    """
    if k.has_fma:
        return k.fma(a, b, c)
    product = a * b
    a_high, b_high = _leading(k, a), _leading(k, b)
    a_low, b_low = a - a_high, b - b_high
    error = (a_high * b_high - product) + a_high * b_low + a_low * b_high + a_low * b_low
    total = product + c
    c_part = total - product
    error = error + ((product - (total - c_part)) + (c - c_part))
    return k.select(error.is_nan(), total, total + error)  # NaN: the total is infinite or NaN itself


# -- the activations -----------------------------------------------------------------------------------


def _relu(k: Emitter, v: Value) -> Value:
    return _at_least(k, v, 0)


def _leaky_relu(k: Emitter, v: Value, alpha: Value) -> Value:
    return k.select(v >= 0.0, v, alpha * v)


def _clip(k: Emitter, v: Value, low: Value, high: Value) -> Value:
    return _at_most(k, _at_least(k, v, low), high)


def _hard_sigmoid(k: Emitter, v: Value, alpha: Value, beta: Value) -> Value:
    return _at_most(k, _at_least(k, _multiply_add(k, alpha, v, beta), 0.0), 1.0)


def _hard_swish(k: Emitter, v: Value) -> Value:
    # (v + 3) / 6 is exact to rounding near -3, where v / 6 + 0.5 cancels.  Below -3 the product is 0
    # whatever v is; -3 in place of v makes that so for an infinity too.
    gate = _at_most(k, _at_least(k, v + 3.0, 0.0), 6.0)
    return _at_least(k, v, -3.0) * (gate * (1.0 / 6.0))


def _relu_affine(k: Emitter, v: Value, alpha: Value, beta: Value) -> Value:
    return k.fma(alpha, _relu(k, v), beta)


def _hard_swish_affine(k: Emitter, v: Value, alpha: Value, beta: Value) -> Value:
    return k.fma(alpha, _hard_swish(k, v), beta)


def _decay(k: Emitter, v: Value) -> tuple[Value, Value, Value]:
    """``e^-|v|``, and the ``p`` and ``n`` it is made of."""
    p, n = _exponential(k, _at_least(k, -_absolute(k, v), FORMATS[v.type.element].floor))
    return _scaled(k, p + 1.0, n), p, n


def _sigmoid(k: Emitter, v: Value) -> Value:
    # 1 / (1 + e^-v) = e^v / (1 + e^v), of which the form with the power below 1 is taken
    e, _, _ = _decay(k, v)
    return k.select(v < 0.0, e, 1.0) / (e + 1.0)


def _silu(k: Emitter, v: Value) -> Value:
    # Below 0 the power comes in last: v e^v is a normal number where e^v no longer is.
    e, p, n = _decay(k, v)
    quotient = _at_least(k, v, FORMATS[v.type.element].floor) / (e + 1.0)
    return k.select(v < 0.0, _times_power(k, quotient, p, n), quotient)


def _tanh(k: Emitter, v: Value) -> Value:
    # tanh |v| = -t / (t + 2) with t = e^(-2 |v|) - 1
    t = _expm1(k, _absolute(k, v) * -2.0)
    return k.intrinsic("copysign", v.type, -t / (t + 2.0), v)


def _mish(k: Emitter, v: Value) -> Value:
    # With e = e^v and d = (1 + e)^2 + 1, tanh(ln(1 + e)) = 1 - 2 / d = e (1 - e (1 + e) / d).  The first form
    # is taken from 0 on, the second, its factor e coming in last as in _silu, below: what is taken from 1
    # is at most 0.4.  Beyond 30 the function is v in either format.
    negative = v < 0.0
    x = _at_most(k, _at_least(k, v, FORMATS[v.type.element].floor), 30.0)
    p, n = _exponential(k, x)
    e = _scaled(k, p + 1.0, n)
    share = k.select(negative, e * (e + 1.0), 2.0) / k.fma(e, e + 2.0, k.constant(v.type, 2.0))
    rest = x * (1.0 - share)
    return k.select(v > 30.0, v, k.select(negative, _times_power(k, rest, p, n), rest))


def _elu(k: Emitter, v: Value, alpha: Value) -> Value:
    return k.select(v > 0.0, v, alpha * _expm1(k, _at_most(k, v, 0.0)))


# Gelu(v) = v Phi(v) = max(v, 0) - y Phi(-y), y = |v|.  The tail is taken from Mills' ratio (J. P. Mills,
# Biometrika 18, 1926; here without its factor sqrt(2 pi)):
#
#   Phi(-y) = M(y) e^(-y^2 / 2),  M(y) = e^(y^2 / 2) erfc(y / sqrt 2) / 2
#   M(y) = (1 + R(y)) / (2 + c y),  c = sqrt(2 pi) as the format rounds it
#
# M falls from 1/2 like 1 / (c y), so R is 0 at both ends and never above 0.19: its rounding errors count
# for little.  R is fitted by N / D, polynomials with positive coefficients, in which nothing cancels: of
# degrees 4 and 5 on 0 .. 15 for float (off by at most 2^-26.7), 10 and 11 on 0 .. 40 for double (2^-59.4).
# The fit, in 60 digits of mpmath: least squares of w (N - R D) with N(0) = 0 and D(0) = 1 over 16 (degree
# of D) points y = 3 (1 + t) / (1 - t), t Chebyshev points, six times over with w = 1 / D of the time before
# (at first 1).
#
# (1 + N / D) / (2 + c y) takes one division as (D + N) / (D (2 + c y)), where what D is off by cancels but for its
# share in R.  The exponent would carry the rounding error of y^2, up to 800 times the last place: see _exponential.
_MILLS_SLOPE = 2.5066282746310002


def _gelu(k: Emitter, v: Value) -> Value:
    f = FORMATS[v.type.element]
    y = _at_most(k, _absolute(k, v), f.gelu_floor)
    tail = _tail(k, y, y)
    return _at_least(k, v, 0.0) - tail


def _tail(k: Emitter, y: Value, factor: Value | float) -> Value:
    """``factor Phi(-y)`` for y from 0 to the format's ``gelu_floor``."""
    p, n = _exponential(k, y * -0.5, y)
    numerator, denominator = (polynomial(k, y, part) for part in FORMATS[y.type.element].mills)
    slope = k.fma(y, k.constant(y.type, _MILLS_SLOPE), k.constant(y.type, 2.0))
    return _times_power(k, (denominator + numerator) * factor / (denominator * slope), p, n)


# -- functions that are no activations -----------------------------------------------------------------


def exponential(k: Emitter, v: Value) -> Value:
    """``e^v``; infinite beyond the largest number.  Its power of two is taken in two factors: neither overflows."""
    f = FORMATS[v.type.element]
    x = _at_most(k, _at_least(k, v, f.floor), f.ceiling)
    p, n = _exponential(k, x)
    negative = v < 0.0
    shift = k.select(negative, k.constant(n.type, f.guard), -f.guard)
    return (p + 1.0) * _power(k, n + shift, v.type.element) * k.select(
        negative, k.constant(v.type, 2.0**-f.guard), 2.0**f.guard
    )


def exponential_below(k: Emitter, v: Value) -> Value:
    """``e^v`` of a v of at most 0; 0 where that is below the smallest normal number."""
    f = FORMATS[v.type.element]
    p, n = _exponential(k, v)  # of a v that is too small these are anything
    power = _power(k, n, v.type.element)
    return k.select(v < f.least, k.constant(v.type, 0.0), k.fma(p, power, power))


def softplus(k: Emitter, v: Value) -> Value:
    """``ln(1 + e^v) = max(v, 0) + ln(1 + e)`` with ``e = e^-|v|``.

    ``u = 1 + e`` is rounded, by ``e - (u - 1)``, which is exact; that over u is what its logarithm lacks.
    """
    e, _, _ = _decay(k, v)
    u = e + 1.0
    return _at_least(k, v, 0.0) + (logarithm(k, u) + (e - (u - 1.0)) / u)


def error_function(k: Emitter, v: Value) -> Value:
    """``erf v``: below 1 an odd polynomial, beyond it 1 - 2 Phi(-sqrt(2) |v|).

    The polynomial is the Chebyshev fit to erf(sqrt t) / sqrt t on 0 .. 1, off by at most 2^-29.5 and 2^-62.7:
    ``mpmath.chebyfit(lambda t: erf(sqrt(t)) / sqrt(t), [0, 1], count)`` with 7 and 13 coefficients.
    """
    f = FORMATS[v.type.element]
    size = _absolute(k, v)
    near = _at_most(k, size, 1.0)
    inside = v * polynomial(k, near * near, f.error)
    tail = _tail(k, _at_most(k, size * 2.0**0.5, f.gelu_floor), 2.0)
    return k.select(size > 1.0, k.intrinsic("copysign", v.type, 1.0 - tail, v), inside)


_FORMS: dict[str, Callable[..., Value]] = {
    "Relu": _relu,
    "LeakyRelu": _leaky_relu,
    "Clip": _clip,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Sigmoid": _sigmoid,
    "Tanh": _tanh,
    "Silu": _silu,
    "Mish": _mish,
    "Gelu": _gelu,
    "Elu": _elu,
    "ReluAffine": _relu_affine,
    "HardSwishAffine": _hard_swish_affine,
}
