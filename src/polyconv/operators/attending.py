"""Attention, which only rewrites ask for: two products with a softmax between them, as one step.

``softmax(q k * scale + added) v``: operands are stacks of matrices with their axes in any order.  Weights that are no
numbers, as those of a row that a mask leaves nothing of, may count as 0.
It must not know kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError
from polyconv.operators.along import Along
from polyconv.operators.attention import Attention, attended
from polyconv.operators.job import Operation, Own, Planning
from polyconv.operators.moving import copied
from polyconv.operators.seen import in_rows, outer_axes, outer_of, own_of, seen, stored, stretched
from polyconv.operators.types import dtype_name

__all__ = ["attending"]


@dataclass(frozen=True, slots=True)
class _Orders:
    """The axes of operands in the order in which these are stacks of matrices, and of the result as it is stored."""

    q_order: tuple[int, ...] | None = None
    k_order: tuple[int, ...] | None = None
    v_order: tuple[int, ...] | None = None
    y_order: tuple[int, ...] | None = None


def attending(operation: Operation) -> Own | str:
    """An ``Attention``, whose attributes say all that is known of it; its fourth input is added."""
    words = operation.attributes
    dtype = dtype_name(words["dtype"])
    assert dtype is not None  # as the rewrite has seen
    orders = _Orders(**{name: tuple(order) for name, order in words.items() if name.endswith("_order")})
    scale, is_guarded = words.get("scale", 1.0), bool(words.get("guarded", 0))
    return own_of(operation, words["dtype"], partial(_plan, dtype, orders, scale, is_guarded))


def _plan(dtype: str, orders: _Orders, scale: float, is_guarded: bool, planning: Planning, numbers: Sequence[int]
          ) -> None:  # fmt: skip
    """Add the kernels of attention on three arrays of a plan."""
    q, k, v, *others = numbers
    of_q, of_k = seen(planning.lie(q), orders.q_order, "left"), seen(planning.lie(k), orders.k_order, "middle")
    of_v = seen(planning.lie(v), orders.v_order, "right")
    (*_, rows, terms), (*_, other_terms, keys), (*_, other_keys, columns) = of_q.shape, of_k.shape, of_v.shape
    outer = outer_of(of_q, of_k, of_v)
    if terms != other_terms or keys != other_keys or outer is None:
        raise ArgumentError(f"operands of the shapes {of_q.shape}, {of_k.shape} and {of_v.shape} are not multiplied")
    added = [in_rows(planning, number, planning.lie(number)) for number in others]
    of_added = [stretched(lie, (*outer, rows, keys)) for _, lie in added]
    y, of_y = stored(planning, (*outer, rows, columns), of_q, orders.y_order)
    if 0 in of_y.shape or planning.c.dry:
        return
    if not keys:
        zero = planning.constant(np.zeros((), of_q.dtype))
        copied(planning, zero, y, of_y.shape, Along(0, (0,) * len(of_y.shape)), Along(of_y.offset, of_y.strides))
        return
    (k, of_k), (v, of_v) = in_rows(planning, k, of_k), in_rows(planning, v, of_v)
    operands, lies = [q, k, v, y, *(number for number, _ in added)], [of_q, of_k, of_v, of_y, *of_added]
    is_scaled = scale != 1.0
    if is_scaled:
        operands.append(planning.constant(np.array(scale, of_q.dtype)))
    along, steps = outer_axes(outer, lies)
    attention = Attention(dtype, tuple(along), rows, keys, terms, columns, is_scaled, bool(others),
                          is_guarded)  # fmt: skip
    attended(planning, attention, operands, lies, steps)
