"""The table of operators: which families may take an operation, asked in turn.

The one idea: a family answers with what runs, or with a sentence that says why not.  It must not know how.
"""

from __future__ import annotations

from collections.abc import Callable

from polyconv.operators import (
    elementwise,
    gathering,
    moving,
    multiplying,
    normalisation,
    padding,
    pooling,
    reduction,
    resizing,
    responding,
    responses,
    views,
)
from polyconv.operators.elementwise import Fragment
from polyconv.operators.job import Operation, Own
from polyconv.operators.views import View

__all__ = ["OPERATORS", "Taken", "taken"]

Taken = Fragment | View | Own
"""What runs an operation: as part of a pass, as a view, or as a step of its own."""

Family = Callable[[Operation], Taken | str]

_FAMILIES: dict[Family, tuple[str, ...]] = {
    elementwise.fragment: elementwise.OPERATORS,
    views.view: views.OPERATORS,
    pooling.pooling: pooling.OPERATORS,
    reduction.reduction: reduction.OPERATORS,
    moving.moving: moving.OPERATORS,
    resizing.resizing: resizing.OPERATORS,
    padding.padding: padding.OPERATORS,
    normalisation.normalisation: normalisation.OPERATORS,
    responses.response: responses.OPERATORS,
}
"""Family -> names of the operators that it knows."""

_ON_GPU: dict[Family, tuple[str, ...]] = {
    gathering.gathering: gathering.OPERATORS,
    responding.responding: responding.OPERATORS,
    multiplying.multiplying: multiplying.OPERATORS,
}
"""Those whose kernels are of a GPU only."""

OPERATORS = frozenset(name for names in _FAMILIES.values() for name in names)
"""Names of all operators that some family knows on the CPU."""


def taken(operation: Operation) -> Taken | str:
    """What runs an operation on polyconv's own kernels, or why nothing does."""
    answer: Taken | str = f"{operation.op} is not computed here"
    families = _FAMILIES | _ON_GPU if operation.on_gpu else _FAMILIES
    for family, names in families.items():
        if operation.op in names:
            answer = family(operation)
            if not isinstance(answer, str):
                break
    return answer
