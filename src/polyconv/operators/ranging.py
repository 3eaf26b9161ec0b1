"""The quantity of bytes that spans what a tensor holds: a scale and a zero point, as DynamicQuantizeLinear finds them.

The one idea: the least and the largest number of all are reductions, what follows from the two is an expression of
single numbers.  It must not know how either is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from polyconv.operators.expression import QUANTISE, Apply, Expression
from polyconv.operators.job import Conditions, Operation, Own, Plan, Planning
from polyconv.operators.lying import Lies, is_channels_last
from polyconv.operators.moving import as_packed, without_gaps
from polyconv.operators.reduction import Over, reduced
from polyconv.operators.strided import pass_over

__all__ = ["ranging"]

# The steps of ONNX's own definition, on values 0 least, 1 largest, 2 zero, 3 levels and 4 the zero point's type: with 0
# among the numbers, their range over 255 is the scale, and the least of them is the integer 0.
_QUANTITY = Expression(
    ("f32", "f32", "f32", "f32", "u8"),
    (
        Apply("Min", (0, 2), "f32"), Apply("Max", (1, 2), "f32"), Apply("Sub", (6, 5), "f32"),
        Apply("Div", (7, 3), "f32"), Apply("OneForZero", (8,), "f32"), Apply("Sub", (2, 5), "f32"),
        Apply(QUANTISE, (10, 9, 4), "u8"),
    ),
    (9, 11),
)  # fmt: skip


def ranging(operation: Operation) -> Own | str:
    """``SpanningQuantity(x)`` -> ``scale, zero point``; or why not.

    A tensor of nothing but zeros has the scale 1, as onnxruntime has it; the definition would divide by 0.
    """
    x = operation.inputs[0] if len(operation.inputs) == 1 else None
    if x is None or x.dtype != "float32" or operation.outputs != 2 or operation.attributes or operation.on_gpu:
        return "it takes one tensor of f32 and gives a scale and a zero point, on a CPU"
    return Own((0,), ("float32", "uint8"), _planned)


def _planned(given: Sequence[Lies], c: Conditions) -> Plan:
    planning = Planning(given, c)
    scale, zero = planning.result((), np.float32), planning.result((), np.uint8)
    if 0 in given[0].shape:
        ends = [planning.constant(np.zeros((), np.float32)) for _ in range(2)]
    else:
        x = without_gaps(planning, 0) if is_channels_last(given[0]) else as_packed(planning, 0)
        ends = [planning.between((), np.float32) for _ in range(2)]
        for function, end in zip(("Min", "Max"), ends, strict=True):
            reduced(planning, Over(function, "f32"), x, end, (1, math.prod(given[0].shape), 1))
    held = [planning.constant(np.asarray(v)) for v in (np.float32(0), np.float32(255), np.uint8(0))]
    pass_over(planning, _QUANTITY, (), [*ends, *held, scale, zero])
    return planning.plan()
