"""The epilogue of a sum: bias, residual, scale, activation, and what saturates, before it is stored.

It must not know where sums come from or where results lie.
"""

from __future__ import annotations

from polyconv.dataclass import dataclass
from polyconv.kernels.language import Module, Value
from polyconv.kernels.record import Memory, Record

__all__ = ["ROUNDING", "ROUNDING_BITS", "Epilogue", "EpilogueTables", "rescaled"]

ROUNDING = 1.5 * 2.0**23
"""Added to a float far below 2^22 it leaves the nearest whole number in the low bits, ties to even."""

ROUNDING_BITS = 0x4B400000
"""The bits of that number."""

_CHEAP = ("", "Relu", "LeakyRelu", "Clip", "HardSigmoid", "HardSwish")


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


def rescaled(k: Module, total: Value, scale: Value, low: Value, high: Value, zero_point: Value) -> Value:
    """``round_half_even(total * scale) + zero_point`` in i32, saturated; QLinearConv's order (semantics 5.2).

    Adding 1.5 * 2^23 leaves the nearest integer, ties to even, in the low bits of the float, which ``zero_point``
    makes up for.  The bounds are those of the result without its zero point: whole numbers, so rounding keeps them.
    """
    scaled = k.cast("sitofp", total, scale.type) * scale
    scaled = k.select(scaled > low, scaled, low)
    scaled = k.select(scaled < high, scaled, high)
    return k.cast("bitcast", scaled + ROUNDING, total.type) + zero_point
