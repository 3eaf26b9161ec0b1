"""The table of element types: one row each, from which kernels, dialects and tests read.

A type's short name (``f32``) is how problems, errors and kernels spell it.  This file knows numbers
and names only: nothing of operators, nothing of code generation.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from polyconv.dataclass import dataclass
from polyconv.errors import DtypeError

__all__ = ["DTYPES", "Dtype", "of_array"]


@dataclass(frozen=True, slots=True)
class Dtype:
    """One element type.

    Parameters
    ----------
    name : str
        Short name, as in a problem's text.
    numpy : numpy.dtype
        The NumPy type object (bfloat16 comes from ml_dtypes).
    kind : str
        ``"f"`` float, ``"i"`` signed integer, ``"u"`` unsigned integer.
    bits : int
        Width in memory.
    accumulator : str
        Type in which a convolution's sum is kept, before the one conversion to the result.
    eps : float
        Distance from 1 to the next larger value; 0 for integers.
    """

    name: str
    numpy: np.dtype[Any]
    kind: str
    bits: int
    accumulator: str
    eps: float

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """Whether the type is a floating-point type."""
        return self.kind == "f"

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest value of an integer type."""
        info = np.iinfo(self.numpy)
        return int(info.min), int(info.max)


DTYPES: dict[str, Dtype] = {
    row.name: row
    for row in (
        Dtype("f16", np.dtype(np.float16), "f", 16, "f32", 2.0**-10),
        Dtype("bf16", np.dtype(ml_dtypes.bfloat16), "f", 16, "f32", 2.0**-7),
        Dtype("f32", np.dtype(np.float32), "f", 32, "f32", 2.0**-23),
        Dtype("f64", np.dtype(np.float64), "f", 64, "f64", 2.0**-52),
        Dtype("i8", np.dtype(np.int8), "i", 8, "i64", 0.0),
        Dtype("i16", np.dtype(np.int16), "i", 16, "i64", 0.0),
        Dtype("i32", np.dtype(np.int32), "i", 32, "i64", 0.0),
        Dtype("i64", np.dtype(np.int64), "i", 64, "i64", 0.0),
        Dtype("u8", np.dtype(np.uint8), "u", 8, "i64", 0.0),
        Dtype("u16", np.dtype(np.uint16), "u", 16, "i64", 0.0),
        Dtype("u32", np.dtype(np.uint32), "u", 32, "i64", 0.0),
        Dtype("u64", np.dtype(np.uint64), "u", 64, "i64", 0.0),
    )
}

_BY_NUMPY = {row.numpy: row for row in DTYPES.values()}


def of_array(dtype: np.dtype[Any], argument: str) -> Dtype:
    """Row of a NumPy dtype; byte order is not part of the type.

    Parameters
    ----------
    dtype : numpy.dtype
        The array's dtype.
    argument : str
        Name of the argument it belongs to, for the message.

    Raises
    ------
    DtypeError
        If convolutions of that type are not defined here.
    """
    row = _BY_NUMPY.get(dtype.newbyteorder("=") if dtype.byteorder == ">" else dtype)
    if row is None:
        raise DtypeError(
            f"{argument} has dtype {dtype}; polyconv computes {', '.join(DTYPES)}: "
            f"convert it with {argument}.astype(...)"
        )
    return row
