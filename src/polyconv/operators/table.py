"""The table of operators: which families may take an operation, asked in turn.

The one idea: a family answers with what runs, or with a sentence that says why not; it is imported when it is first
asked, since a network needs few.  It must not know how.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

from polyconv.operators import elementwise, views
from polyconv.operators.building import Fragment
from polyconv.operators.job import Operation, Own
from polyconv.operators.views import View

__all__ = ["BY_FAMILY", "OPERATORS", "Taken", "taken"]

Taken = Fragment | View | Own
"""What runs an operation: as part of a pass, as a view, or as a step of its own."""

Family = Callable[[Operation], Taken | str]

BY_FAMILY: dict[str, tuple[str, ...]] = {
    "elementwise.fragment": elementwise.OPERATORS,
    "views.view": views.OPERATORS,
    "pooling.pooling": ("AveragePool", "MaxPool"),
    "reduction.reduction": (
        "GlobalAveragePool", "GlobalMaxPool", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin",
        "ReduceSum", "ReduceSumSquare",
    ),
    "moving.moving": ("Concat", "DepthToSpace", "SpaceToDepth", "Tile", "Transpose"),
    "resizing.resizing": ("Resize", "Upsample"),
    "padding.padding": ("Pad",),
    "normalisation.normalisation": (
        "GroupNormalization", "InstanceNormalization", "LayerNormalization", "LogSoftmax", "Softmax",
    ),
    "responses.response": ("LRN",),
    "multiplying.multiplying": ("MatMul",),
    "selecting.selecting": ("GatherElements",), "grids.gridding": ("GridSample",),
    "regions.regions": ("RoiAlign",),
    "finding.finding": ("GatherND", "NonMaxSuppression", "NonZero", "ScatterND"),
    "counting.counting": (
        "ArgMax", "ArgMin", "ConstantOfShape", "Cos", "Einsum", "GatherElements", "Mod", "Range",
        "ReduceProd", "ReverseSequence", "ScatterElements", "Sin", "Size", "TopK",
    ),
}  # fmt: skip
"""Module and function of each family -> names of the operators that it knows."""

_ON_GPU: dict[str, tuple[str, ...]] = {
    "gathering.gathering": ("Gather",), "responding.responding": ("LRN",),
}  # fmt: skip
"""Those whose kernels are of a GPU only."""

_INNER: dict[str, tuple[str, ...]] = {
    "attending.attending": ("Attention",), "multiplying.product": ("Product",),
    "ranging.ranging": ("SpanningQuantity",), "recurrence.recurrence": ("Recurrence",),
}  # fmt: skip
"""Those that only rewrites ask for, and no specification knows."""

OPERATORS = frozenset(name for names in BY_FAMILY.values() for name in names)
"""Names of all operators that some family knows on the CPU."""


@cache
def _family(place: str) -> Family:
    module, _, name = place.partition(".")
    found: Family = getattr(import_module(f"polyconv.operators.{module}"), name)
    return found


def taken(operation: Operation) -> Taken | str:
    """What runs an operation on polyconv's own kernels, or why nothing does."""
    answer: Taken | str = f"{operation.op} is not computed here"
    families = BY_FAMILY | (_ON_GPU if operation.on_gpu else _INNER)
    for place, names in families.items():
        if operation.op in names:
            answer = _family(place)(operation)
            if not isinstance(answer, str):
                break
    return answer
