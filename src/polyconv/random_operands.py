"""Random operands of a problem, to measure its algorithms with.

Small whole numbers where types are integers: what they are costs nothing.  It must not know layers and clocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.dtypes import Dtype
from polyconv.operands import result_of
from polyconv.problem.problem import Problem
from polyconv.problem.quantisation import QUANTITIES, Quantisation
from polyconv.runtime.memory import allocating, sized

__all__ = ["Operands", "random_operands"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Operands:
    """Arrays of a problem's shapes and types; None where it has no such operand."""

    x: Array
    w: Array
    bias: Array | None
    residual: Array | None
    offset: Array | None
    mask: Array | None
    quantities: dict[str, Array]
    out: Array


def random_operands(p: Problem) -> Operands:
    """Operands for a problem with known extents, and an array for its result.

    Raises
    ------
    OutOfMemory
        If there is no room for one.
    """
    rng = np.random.default_rng(0)

    def values(shape: tuple[int | None, ...], dtype: Dtype) -> Array:
        sizes = tuple(int(e or 0) for e in shape)
        with allocating(sized("an array to measure with", sizes, dtype.numpy), 'choose with rigor="estimate"'):
            if dtype.is_float:
                return rng.standard_normal(sizes, np.float32).astype(dtype.numpy)
            return rng.integers(0, 100, sizes).astype(dtype.numpy)

    q = p.quantisation or Quantisation()
    quantities = {
        name: np.ones((), np.float32)
        for name in QUANTITIES
        if isinstance(getattr(q, name), str)
    }
    offset = mask = None
    if p.op == "deform_conv":
        offset = values(p.offset_shape, p.x_dtype)
        mask = values(p.mask_shape, p.x_dtype) if p.mask else None
    return Operands(
        x=values(p.x_shape, p.x_dtype), w=values(p.w_shape, p.w_dtype),
        bias=np.ones(p.m, p.y_dtype.numpy) if p.bias else None,
        residual=values(p.y_shape, p.y_dtype) if p.residual else None, offset=offset, mask=mask,
        quantities=quantities, out=result_of(p, None)[0],
    )  # fmt: skip
