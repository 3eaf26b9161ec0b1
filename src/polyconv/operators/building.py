"""Element-wise operators as parts of a pass, and how one is built step by step.

The one idea: what stands in an operator as a number is an operand like any other.  It must not know operators.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyconv.dataclass import dataclass
from polyconv.operators.expression import Apply, Expression
from polyconv.operators.job import Array
from polyconv.operators.types import dtype_name

__all__ = ["Builder", "Fragment"]


@dataclass(frozen=True, slots=True)
class Fragment:
    """An element-wise operator.

    Parameters
    ----------
    reads : tuple of int
        Positions of the operator's inputs that it reads: the expression's first inputs.
    constants : tuple of array
        The expression's other inputs.
    expression : Expression
        With one result.
    follows : bool
        Whether the result has the first input's shape, to which all else is broadcast.
    """

    reads: tuple[int, ...]
    constants: tuple[Array, ...]
    expression: Expression
    follows: bool = False


class Builder:
    """An expression that grows."""

    def __init__(self, reads: Sequence[int], dtypes: Sequence[str], constants: Sequence[Array] = ()) -> None:
        self.reads, self.constants = tuple(reads), tuple(constants)
        own = [dtype_name(a.dtype, has_halves=True, has_truth=True) for a in constants]
        self.inputs = (*dtypes, *(name for name in own if name is not None))
        self.steps: list[Apply] = []

    def apply(self, function: str, *arguments: int, dtype: str | None = None) -> int:
        """Append a step; the number of what it makes."""
        known = Expression(self.inputs, tuple(self.steps), ())
        self.steps.append(Apply(function, arguments, dtype or known.dtype(arguments[0])))
        return len(self.inputs) + len(self.steps) - 1

    def fragment(self, *, follows: bool = False) -> Fragment:
        """What has been built; the last step makes the result."""
        last = len(self.inputs) + len(self.steps) - 1
        return Fragment(self.reads, self.constants, Expression(self.inputs, tuple(self.steps), (last,)), follows)
