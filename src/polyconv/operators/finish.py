"""What is done with the elements of a result on their way out: an element-wise pass that another operator takes in.

The one idea: it reads nothing but the element and numbers that are the same for all.  It must not know operators.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.kernels.language import Module, Type, Value
from polyconv.kernels.values import Buffer
from polyconv.operators.expression import Expression, evaluated
from polyconv.operators.lying import Array
from polyconv.operators.types import LLVM, TYPES

__all__ = ["Finish", "finish_numbers", "finished", "number_table", "stored_bytes"]

_SLOT = 8
"""Bytes of each number in a table."""


@dataclass(frozen=True, slots=True)
class Finish:
    """What is done with each element of a result before it is stored: quantised with a scale and a zero point, say.

    Parameters
    ----------
    expression : Expression
        Of the element, then of some numbers; it has one result.
    numbers : tuple of array
        Of one element each.
    """

    expression: Expression
    numbers: tuple[Array, ...]

    @property
    def dtype(self) -> str:
        """Of what is stored."""
        return self.expression.dtype(self.expression.results[0])


def number_table(finish: Finish | None) -> Array:
    """The numbers as a driver's words point to them."""
    arrays = () if finish is None else finish.numbers
    return np.frombuffer(b"".join(array.tobytes().ljust(_SLOT, b"\0") for array in arrays), np.uint8)


def finish_numbers(k: Module, expression: Expression | None, table: Buffer) -> list[Value]:
    """The numbers, read from their table in generated code."""
    dtypes = () if expression is None else expression.inputs[1:]
    return [k.load(Type(LLVM[dtype]), table + at * _SLOT) for at, dtype in enumerate(dtypes)]


def finished(k: Module, expression: Expression | None, numbers: Sequence[Value], value: Value) -> Value:
    """An element, or a vector of them, as it is stored."""
    if expression is None:
        return value
    lanes = value.type.lanes
    (found,) = evaluated(k, expression, [value, *(k.splat(n, lanes) if lanes else n for n in numbers)])
    return found


def stored_bytes(dtype: str, expression: Expression | None) -> int:
    """Bytes of an element as it is stored."""
    return TYPES[dtype if expression is None else expression.dtype(expression.results[0])].itemsize
