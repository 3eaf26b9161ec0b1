"""Where an operator's result is computed: on the CPU, or on the GPU where its inputs lie.

The compiler is imported at the first call, so that shape inference needs none.  It must not know the name of any
operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from polyconv.dialects import inputs as given
from polyconv.dialects.node import Lowering
from polyconv.dialects.reading import SIZES, check_count, lower, operands_of, values_of
from polyconv.problem.quantisation import QUANTITIES
from polyconv.settings import resolve

if TYPE_CHECKING:
    from polyconv.dialects.call import Operator

__all__ = ["Result", "any_on_gpu", "compute", "compute_on_gpu"]

Array = NDArray[Any]
Result = Array | tuple[Array, ...]


def compute(operator: Operator, lowering: Lowering, arrays: Sequence[Array | None], out: Array | None) -> Result:
    """Compute on the CPU."""
    from polyconv.recent import compute as compute_here  # here, so that shape inference needs no compiler

    assert lowering.problem is not None  # all shapes and types are known
    operands: dict[str, Any] = dict(operands_of(operator, lowering, arrays))
    quantities = {role: operands.pop(role) for role in QUANTITIES if role in operands}
    result: Result = compute_here(lowering.problem, **operands, out=out, quantities=quantities, **operator.options)
    return result


def compute_on_gpu(operator: Operator, inputs: Sequence[Any], out: Any) -> Result:
    """Compute where the inputs lie; sizes lie in the CPU's memory, and lone zero points and scales may."""
    from polyconv.gpu.guests import device_of, stand_in, where  # here, so that shape inference needs no compiler
    from polyconv.gpu.layer import compute as compute_there
    from polyconv.in_force import keep_where_settings_say

    check_count(operator, [a is not None for a in inputs])
    rows = operator.row.inputs
    padded = (*inputs, *[None] * (len(rows) - len(inputs)))
    may_stay = {SIZES, *QUANTITIES}
    where({row.name: value for row, value in zip(rows, padded, strict=True) if row.role not in may_stay} | {"out": out})
    is_there = [device_of(a) is not None and row.role != SIZES for row, a in zip(rows, padded, strict=True)]
    shown = tuple(
        None if a is None else stand_in(a, row.name) if there else given.array(a, row.name)
        for row, a, there in zip(rows, padded, is_there, strict=True)
    )
    lowering = lower(operator, values_of(operator, shown))
    assert lowering.problem is not None  # all shapes and types are known
    operands = {r.role: v for r, v in zip(rows, padded, strict=True) if v is not None and r.role != SIZES}
    quantities = {role: operands.pop(role) for role in QUANTITIES if role in operands}
    keep_where_settings_say()
    result: Result = compute_there(
        lowering.problem, **operands, out=out, quantities=quantities,
        accuracy=resolve("accuracy", operator.options.get("accuracy")),
        limit=resolve("workspace_limit", operator.options.get("workspace_limit")),
    )  # fmt: skip
    return result


def any_on_gpu(inputs: Sequence[Any]) -> bool:
    """Whether one of some arrays lies on a GPU."""
    from polyconv.gpu.guests import device_of

    return any(device_of(value) is not None for value in inputs)
