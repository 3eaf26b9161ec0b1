"""What is done with the elements of a result on their way out: an element-wise pass that another operator takes in.

The one idea: it reads nothing but the element and numbers that are the same for all.  It must not know operators.
"""

from __future__ import annotations

from polyconv.dataclass import dataclass
from polyconv.operators.expression import Expression
from polyconv.operators.lying import Array

__all__ = ["Finish"]


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
