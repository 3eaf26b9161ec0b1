"""The table of element functions: a name and values in registers to the instructions that compute it.

Each does what NumPy does with one element of its types, with one rounding where ONNX has one operator; exponentials and
their kin are within 4 units in the last place.  The one idea: a row says for which kinds of numbers it is defined, so
that what stands in no row is never taken.  It must not know where values come from or go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.dtypes import Dtype
from polyconv.kernels import mathfn
from polyconv.kernels.angles import cosine, sine
from polyconv.kernels.convert import cut
from polyconv.kernels.emitter import Emitter
from polyconv.kernels.logarithm import logarithm
from polyconv.kernels.values import Value
from polyconv.operators.types import LLVM, TRUTH, TYPES

__all__ = ["FUNCTIONS", "Function", "converted", "may_multiply"]

Emit = Callable[..., Value]
"""``emit(k, dtype, *values)``: instructions for values of one dtype."""


@dataclass(frozen=True, slots=True)
class Function:
    """An element function.

    Parameters
    ----------
    arguments : int
        How many values it takes.
    emit : callable
        ``emit(k, dtype, *values)``: its result, of the values' dtype.
    kinds : str
        Kinds of dtypes that it is defined on, as ``Dtype.kind`` spells them.
    cycles : float
        About the cycles of one vector, for predictions.
    """

    arguments: int
    emit: Emit
    kinds: str = "f"
    cycles: float = 1.0


def _less(dtype: Dtype, a: Value, b: Value) -> Value:
    return a.below(b) if dtype.kind == "u" else a < b


def _maximum(k: Emitter, dtype: Dtype, a: Value, b: Value) -> Value:
    """The larger one; NaN if either is."""
    larger = k.select(_less(dtype, a, b), b, a)
    return k.select(b.is_nan(), b, larger) if dtype.is_float else larger


def _minimum(k: Emitter, dtype: Dtype, a: Value, b: Value) -> Value:
    """The smaller one; NaN if either is."""
    smaller = k.select(_less(dtype, b, a), b, a)
    return k.select(b.is_nan(), b, smaller) if dtype.is_float else smaller


def _clip(k: Emitter, dtype: Dtype, v: Value, low: Value, high: Value) -> Value:
    """``min(max(v, low), high)`` with bounds that are numbers; a NaN stays."""
    v = k.select(_less(dtype, v, low), low, v)
    return k.select(_less(dtype, high, v), high, v)


def _relu(k: Emitter, dtype: Dtype, v: Value) -> Value:
    return v if dtype.kind == "u" else k.select(v < 0, 0, v)


def _sloped(k: Emitter, dtype: Dtype, v: Value, slope: Value) -> Value:
    """PRelu and LeakyRelu: the slope counts below 0, where only a number can be."""
    return k.select(v < 0, slope * v, v)


def _root_power(k: Emitter, dtype: Dtype, v: Value) -> Value:
    """``v ** 0.5``: as the root, but for -0, whose power is 0, and -Inf, whose power is Inf."""
    root = k.intrinsic("sqrt", v.type, v + 0.0)
    return k.select(v.equals(float("-inf")), float("inf"), root)


def _negative(k: Emitter, dtype: Dtype, v: Value) -> Value:
    return -v


def _absolute(k: Emitter, dtype: Dtype, v: Value) -> Value:
    if dtype.is_float:
        return k.intrinsic("fabs", v.type, v)
    return v if dtype.kind == "u" else k.select(v < 0, 0 - v, v)


def _rounded(k: Emitter, dtype: Dtype, v: Value) -> Value:
    """The nearest whole number, ties to even; the sign stays, of a 0 too.

    Adding the power of two from which on all floats are whole rounds; larger numbers, and what is none, are kept.
    """
    whole = 2.0 ** (23 if dtype.bits == 32 else 52)
    size = k.intrinsic("fabs", v.type, v)
    near = k.intrinsic("copysign", v.type, (size + whole) - whole, v)
    return k.select(size < whole, near, v)


def _floor(k: Emitter, dtype: Dtype, v: Value) -> Value:
    near = _rounded(k, dtype, v)
    return k.select(near > v, near - 1.0, near)


def _ceil(k: Emitter, dtype: Dtype, v: Value) -> Value:
    near = _rounded(k, dtype, v)
    above = k.intrinsic("copysign", v.type, near + 1.0, v)  # of -0.5 it is -0
    return k.select(near < v, above, near)


def _activation(name: str) -> Emit:
    return lambda k, dtype, v, *parameters: mathfn.apply(k, name, v, parameters)


def _truth(k: Emitter, condition: Value, like: Value) -> Value:
    """A condition as a byte of 0 or 1."""
    return k.cast("zext", condition, like.type.of("i8"))


def _compared(holds: Callable[[Dtype, Value, Value], Value]) -> Emit:
    return lambda k, dtype, a, b: _truth(k, holds(dtype, a, b), a)


def _is_infinite(k: Emitter, v: Value) -> Value:
    return k.intrinsic("fabs", v.type, v).equals(float("inf"))


def _no_more(dtype: Dtype, a: Value, b: Value) -> Value:
    return a <= b if dtype.kind != "u" else a.below(b) | a.equals(b)


def chosen(k: Emitter, condition: Value, a: Value, b: Value) -> Value:
    """``a`` where a truth value holds, else ``b``."""
    return k.select(condition.equals(0), b, a)


COMPARED = frozenset(("Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual"))
"""Functions of operands of one type that make a truth value; they are told the operands' type."""

FUNCTIONS: Mapping[str, Function] = {
    "Less": Function(2, _compared(_less), "fiu"),
    "Greater": Function(2, _compared(lambda dtype, a, b: _less(dtype, b, a)), "fiu"),
    "LessOrEqual": Function(2, _compared(_no_more), "fiu", 2),
    "GreaterOrEqual": Function(2, _compared(lambda dtype, a, b: _no_more(dtype, b, a)), "fiu", 2),
    "Equal": Function(2, _compared(lambda dtype, a, b: a.equals(b)), "fiub"),
    "IsNaN": Function(1, lambda k, dtype, v: _truth(k, v.is_nan(), v)),
    "IsInf": Function(1, lambda k, dtype, v: _truth(k, _is_infinite(k, v), v), cycles=2),
    "Not": Function(1, lambda k, dtype, v: _truth(k, v.equals(0), v), "b"),
    "And": Function(2, lambda k, dtype, a, b: a & b, "b"),
    "Or": Function(2, lambda k, dtype, a, b: a | b, "b"),
    "Xor": Function(2, lambda k, dtype, a, b: a ^ b, "b"),
    "Identity": Function(1, lambda k, dtype, v: v, "fiu", 0.0),
    "Add": Function(2, lambda k, dtype, a, b: a + b, "fiu"),
    "Sub": Function(2, lambda k, dtype, a, b: a - b, "fiu"),
    "Mul": Function(2, lambda k, dtype, a, b: a * b, "fiu"),
    "Div": Function(2, lambda k, dtype, a, b: a / b, cycles=8),
    "Max": Function(2, _maximum, "fiu", 2),
    "Min": Function(2, _minimum, "fiu", 2),
    "Neg": Function(1, _negative, "fi"),
    "OneForZero": Function(1, lambda k, dtype, v: k.select(v.equals(0), 1, v), cycles=2),
    "Abs": Function(1, _absolute, "fiu"),
    "Reciprocal": Function(1, lambda k, dtype, v: 1.0 / v, cycles=8),
    "Sqrt": Function(1, lambda k, dtype, v: k.intrinsic("sqrt", v.type, v), cycles=10),
    "RootPower": Function(1, _root_power, cycles=12),
    "Exp": Function(1, lambda k, dtype, v: mathfn.exponential(k, v), cycles=16),
    "Log": Function(1, lambda k, dtype, v: logarithm(k, v), cycles=30),
    "Softplus": Function(1, lambda k, dtype, v: mathfn.softplus(k, v), cycles=60),
    "Sin": Function(1, lambda k, dtype, v: sine(k, v), cycles=25),
    "Cos": Function(1, lambda k, dtype, v: cosine(k, v), cycles=25),
    "Round": Function(1, _rounded, cycles=4),
    "Floor": Function(1, _floor, cycles=6),
    "Ceil": Function(1, _ceil, cycles=7),
    "Erf": Function(1, lambda k, dtype, v: mathfn.error_function(k, v), cycles=33),
    "Relu": Function(1, _relu, "fiu"),
    "Clip": Function(3, _clip, "fiu", 2),
    "Sloped": Function(2, _sloped, cycles=2),
    "Sigmoid": Function(1, _activation("Sigmoid"), cycles=22),
    "Tanh": Function(1, _activation("Tanh"), cycles=25),
    "HardSigmoid": Function(3, _activation("HardSigmoid"), cycles=3),
    "HardSwish": Function(1, _activation("HardSwish"), cycles=5),
    "Silu": Function(1, _activation("Silu"), cycles=25),
    "Mish": Function(1, _activation("Mish"), cycles=40),
    "Gelu": Function(1, _activation("Gelu"), cycles=22),
    "Elu": Function(2, _activation("Elu"), cycles=20),
}
"""Name -> function."""


def converted(k: Emitter, value: Value, source: Dtype, target: Dtype) -> Value:
    """A value of one dtype as another: exact, rounded to nearest, cut towards 0 for integers, or their low bits.

    bf16 is a type of its own here, as on a GPU; the CPU's passes do not compute with it.
    """
    to = value.type.of("bfloat" if target.name == "bf16" else LLVM[target.name])
    if TRUTH in (source.name, target.name):
        return k.select(value.equals(0), k.constant(to, 0), k.constant(to, 1))
    if source.is_float and target.is_float:
        if source.bits == target.bits:
            return value
        return k.cast("fptrunc" if source.bits > target.bits else "fpext", value, to)
    if source.is_float:
        whole = cut(k, value, "i64" if target.bits == 64 or target.name == "u32" else "i32")
        return k.cast("trunc", whole, to) if to.element_bytes < whole.type.element_bytes else whole
    if target.is_float:
        return k.cast("uitofp" if source.kind == "u" else "sitofp", value, to)
    if source.bits == target.bits:
        return value
    if source.bits > target.bits:
        return k.cast("trunc", value, to)
    return k.cast("zext" if source.kind == "u" else "sext", value, to)


def quantised(k: Emitter, value: Value, scale: Value, zero: Value, target: Dtype, reciprocal: Value | None = None
              ) -> Value:  # fmt: skip
    """``saturate(round(value / scale) + zero)``, ties to even; ``zero`` has the target's type.  NaN becomes the least.

    Adding 1.5 * 2^23 leaves the nearest integer in the low bits of a float, so no rounding instruction is needed.
    With the reciprocal of the scale, which ``may_multiply`` must allow, nothing is divided.
    """
    low, high = target.limits
    wide = value.type.of("i32")
    offset = converted(k, zero, target, TYPES["i32"])
    shift = k.cast("sitofp", offset, value.type)
    least, most = low - shift, high - shift
    if reciprocal is None or not k.has_fma:
        scaled = _within(k, value / scale, least, most)
    else:  # a limit times the scale, over the scale, is rounded to the limit
        scaled = _quotient(k, _within(k, value, least * scale, most * scale), scale, reciprocal)
    bits = k.cast("bitcast", scaled + 1.5 * 2.0**23, wide)
    return k.cast("trunc", bits + (offset - 0x4B400000), wide.of(LLVM[target.name]))


def _within(k: Emitter, value: Value, least: Value, most: Value) -> Value:
    """The nearest value between two; the least for NaN."""
    value = k.select(value > least, value, least)
    return k.select(value < most, value, most)


def _quotient(k: Emitter, a: Value, b: Value, reciprocal: Value) -> Value:
    """``a / b``, rounded once, from the rounded reciprocal r of b, which is sooner done than a division of vectors.

    q = a r is within 1.5 units in the last place of a / b, and q + (a - q b) r within one.  For that q the difference
    a - q b is exact, and the same step rounds correctly (P. Markstein, Computation of elementary functions on the IBM
    RISC System/6000 processor, 1990).  Quotients far below 1, whose products may be too small for a float, round to 0.
    """
    less = 0.0 - b
    q = a * reciprocal
    for _ in range(2):
        q = k.fma(k.fma(q, less, a), reciprocal, q)
    return q


def may_multiply(scale: NDArray[np.float32]) -> bool:
    """Whether ``quantised`` may take the reciprocals of scales: no product on its way leaves the range of floats."""
    return bool(np.all((scale >= 2.0**-60) & (scale <= 2.0**60)))


def dequantised(k: Emitter, value: Value, scale: Value, zero: Value, source: Dtype) -> Value:
    """``(value - zero) * scale``; the difference is exact."""
    row = TYPES["i32"]
    difference = converted(k, value, source, row) - converted(k, zero, source, row)
    return k.cast("sitofp", difference, scale.type) * scale
