"""The table of element types as model files spell them: one row each.

Turns ONNX's number, OpenVINO's word and onnxruntime's ``tensor(...)`` spelling into a NumPy dtype
and back.  The one idea: both formats and all hosts meet in the spelling ``tensor(float)``.  Which
types a convolution takes stands in ``polyconv.dtypes``; nothing of it is known here.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from polyconv.dataclass import dataclass

__all__ = ["BY_NUMPY", "BY_ONNX", "BY_OPENVINO", "BY_TYPE", "Element", "type_of"]


@dataclass(frozen=True, slots=True)
class Element:
    """One element type.

    Parameters
    ----------
    type : str
        As onnxruntime's ``NodeArg.type`` spells it.
    onnx : int
        ``TensorProto.DataType``.
    openvino : str or None
        ``element_type`` of an IR file; None where OpenVINO has no such type.
    numpy : numpy.dtype
        How its values lie in memory; sub-byte types take a byte each.
    """

    type: str
    onnx: int
    openvino: str | None
    numpy: np.dtype[Any]


_ROWS = tuple(
    Element(f"tensor({name})", number, openvino, np.dtype(numpy))
    for name, number, openvino, numpy in (
        ("float", 1, "f32", np.float32),
        ("uint8", 2, "u8", np.uint8),
        ("int8", 3, "i8", np.int8),
        ("uint16", 4, "u16", np.uint16),
        ("int16", 5, "i16", np.int16),
        ("int32", 6, "i32", np.int32),
        ("int64", 7, "i64", np.int64),
        ("string", 8, None, np.object_),
        ("bool", 9, "boolean", np.bool_),
        ("float16", 10, "f16", np.float16),
        ("double", 11, "f64", np.float64),
        ("uint32", 12, "u32", np.uint32),
        ("uint64", 13, "u64", np.uint64),
        ("complex64", 14, None, np.complex64),
        ("complex128", 15, None, np.complex128),
        ("bfloat16", 16, "bf16", ml_dtypes.bfloat16),
        ("float8e4m3fn", 17, "f8e4m3", ml_dtypes.float8_e4m3fn),
        ("float8e4m3fnuz", 18, None, ml_dtypes.float8_e4m3fnuz),
        ("float8e5m2", 19, "f8e5m2", ml_dtypes.float8_e5m2),
        ("float8e5m2fnuz", 20, None, ml_dtypes.float8_e5m2fnuz),
        ("uint4", 21, None, ml_dtypes.uint4),
        ("int4", 22, None, ml_dtypes.int4),
        ("float4e2m1", 23, None, ml_dtypes.float4_e2m1fn),
        ("float8e8m0", 24, "f8e8m0", ml_dtypes.float8_e8m0fnu),
        ("uint2", 25, None, ml_dtypes.uint2),
        ("int2", 26, None, ml_dtypes.int2),
    )
)

BY_TYPE = {row.type: row for row in _ROWS}
BY_ONNX = {row.onnx: row for row in _ROWS}
BY_OPENVINO = {row.openvino: row for row in _ROWS if row.openvino is not None}
BY_NUMPY = {row.numpy: row for row in _ROWS}


def type_of(dtype: np.dtype[Any]) -> str:
    """``tensor(...)`` spelling of a NumPy dtype; empty where no file can spell it."""
    row = BY_NUMPY.get(dtype.newbyteorder("=") if dtype.byteorder == ">" else dtype)
    return row.type if row else ""
