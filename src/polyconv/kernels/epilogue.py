"""The epilogue of a sum: bias, residual, scale, activation, and what saturates, before it is stored.

It must not know where sums come from or where results lie.
"""

from __future__ import annotations

from collections.abc import Callable

from polyconv.dataclass import dataclass
from polyconv.kernels.language import Module, Type, Value
from polyconv.kernels.record import Memory, Record

__all__ = [
    "ROUNDING", "ROUNDING_BITS", "SLOTS", "Constant", "Epilogue", "EpilogueTables", "bounded", "rescaled", "summed",
    "unsigned_activation",
]  # fmt: skip

ROUNDING = 1.5 * 2.0**23
"""Added to a float far below 2^22 it leaves the nearest whole number in the low bits, ties to even."""

ROUNDING_BITS = 0x4B400000
"""The bits of that number."""

SLOTS = {name: at for at, name in enumerate((
    "least", "most", "zero", "sum_least", "sum_most", "sum_zero", "share", "share_beside", "rest",
    "scale", "zero_beside", "scale_beside", "sum_scale", "together",
))}  # fmt: skip
"""Constants of scaled results, by their place in a table of 8 bytes each: bounds of a result without its zero point,
and that less ``ROUNDING_BITS``; the same of a sum with a residual; and what ``summed`` takes."""

Constant = Callable[[int, Type], Value]
"""``constant(place, kind)``: one of a table, in every lane."""

_CHEAP = ("", "Relu", "LeakyRelu", "Clip", "HardSigmoid", "HardSwish", "ReluAffine", "HardSwishAffine")


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What happens to a sum before it is stored, in this order.

    Parameters
    ----------
    bias : bool
        Add a value per channel.
    residual : bool
        Add an element of a tensor of the result's type.
    rescale : bool
        Multiply by a float per channel, round to nearest even, add a zero point, saturate.
    adds : str
        How a residual with a scale of its own is added to what is rescaled, by constants: ``together`` by two
        multiply-adds, as it is ``defined``, or empty where there is none.
    activation : str
        Name, or empty.
    saturate : bool
        Clamp integers instead of wrapping.
    flushed : bool
        Results of bf16 are rounded by the CPU's own instruction, which counts subnormal numbers as zero.
    below_one : bool
        Whether all those floats are between -1 and 1, so that products with sums of 32 bits are such numbers again.
    """

    bias: bool = False
    residual: bool = False
    rescale: bool = False
    adds: str = ""
    activation: str = ""
    saturate: bool = False
    flushed: bool = False
    below_one: bool = False

    @property
    def is_cheap(self) -> bool:
        """Whether it is short enough to be written out for every register of a tile."""
        return self.activation in _CHEAP


class EpilogueTables(Record):
    """What an epilogue takes: a bias and a scale of every channel, and constants."""

    bias: Memory
    scale: Memory
    constants: Memory


def unsigned_activation(k: Module, activation: str, value: Value, parameters: list[Value]) -> Value:
    """Relu or Clip of unsigned numbers."""
    if activation == "Relu":
        return value
    low, high = parameters
    value = k.select(value.below(low), low, value)
    return k.select(high.below(value), high, value)


def rescaled(k: Module, total: Value, scale: Value, constant: Constant, beside: Value | None, adds: str) -> Value:
    """``round_half_even(total * scale) + zero_point`` in i32, saturated; QLinearConv's order (semantics 5.2).

    Adding 1.5 * 2^23 leaves the nearest integer, ties to even, in the low bits of the float, which the zero point
    makes up for.  The bounds are those of the result without its zero point: whole numbers, so rounding keeps them.
    What lies ``beside``, as a float, is added as ``summed`` does, if anything ``adds``.
    """
    steps, zero = bounded(k, k.cast("sitofp", total, scale.type) * scale, constant, ""), "zero"
    if beside is not None:
        steps, zero = bounded(k, summed(k, steps, beside, constant, adds), constant, "sum_"), "sum_zero"
    return k.cast("bitcast", steps + ROUNDING, total.type) + constant(SLOTS[zero], total.type)


def bounded(k: Module, steps: Value, constant: Constant, prefix: str) -> Value:
    """Steps of a scale within the bounds of a result's type; the least for NaN."""
    least, most = (constant(SLOTS[prefix + end], steps.type) for end in ("least", "most"))
    steps = k.select(steps > least, steps, least)
    return k.select(steps < most, steps, most)


def summed(k: Module, steps: Value, beside: Value, constant: Constant, adds: str) -> Value:
    """Bounded steps of a result, rounded, and a byte of the residual: steps of the scale of their sum.

    ``lowering/rescaling.py`` says what the constants are.
    """
    def given(name: str) -> Value:
        return constant(SLOTS[name], steps.type)

    steps = (steps + ROUNDING) - ROUNDING
    if adds == "together":
        return k.fma(steps, given("share"), k.fma(beside, given("share_beside"), given("rest")))
    own, other = steps * given("scale"), (beside - given("zero_beside")) * given("scale_beside")
    return (own + other) / given("sum_scale")
