"""One ONNX tensor, inside the model or in a file beside it, turned into an array.

The one idea: the declared shape is believed only after the bytes that are there have been counted,
whether they lie in the model or beside it.  It knows nothing of graphs and operators.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from polyconv.errors import ModelError
from polyconv.models.beside import Beside
from polyconv.models.elements import BY_ONNX, Element
from polyconv.models.graph import Array
from polyconv.models.limits import check_bytes, shorten

if TYPE_CHECKING:
    from onnx import TensorProto

__all__ = ["EXTERNAL", "tensor_array", "viewed"]

EXTERNAL = 1
"""TensorProto.DataLocation of data that lie in another file."""

_PACKED = {21: 2, 22: 2, 23: 2, 25: 4, 26: 4}  # elements per byte of the sub-byte types


def tensor_array(tensor: TensorProto, who: str, files: Beside | None, values: Array | None = None) -> Array:
    """Values of a tensor.

    Parameters
    ----------
    tensor : TensorProto
        As in the file.
    who : str
        How messages call it.
    files : Beside or None
        Files beside the model; None for a model given as bytes.
    values : array of uint8, optional
        What ``raw_data`` holds, where it was taken out.

    Returns
    -------
    ndarray
        Read-only where it is a view of the model or of what was read.

    Raises
    ------
    ModelError
        If type, shape and data disagree, or the data lie outside the folder or the file.
    """
    row = BY_ONNX.get(tensor.data_type)
    if row is None:
        raise ModelError(f"{who} has the element type number {tensor.data_type}, which ONNX does not define")
    shape = tuple(tensor.dims)
    if len(shape) > 64:
        raise ModelError(f"{who} has {len(shape)} axes; arrays have at most 64")
    check_bytes(who, shape, row.numpy.itemsize)
    if tensor.data_location == EXTERNAL:
        return _external(tensor, who, files, row, shape)
    if tensor.HasField("raw_data"):
        if tensor.data_type not in _PACKED and row.type != "tensor(string)":
            return viewed(tensor.raw_data if values is None else values.data, who, row, shape)
        if values is not None:
            tensor.raw_data = values.tobytes()
        _check_packed(len(tensor.raw_data), who, tensor.data_type, shape)
    from onnx import numpy_helper

    try:
        array: Array = numpy_helper.to_array(tensor)
    except Exception as error:
        raise ModelError(
            f"{who} of shape {shape} and type {row.type} cannot be read: {shorten(str(error))}"
        ) from error
    if array.shape != shape:
        raise ModelError(f"{who} declares the shape {shape}, its values have the shape {array.shape}")
    return array


def viewed(data: bytes | memoryview, who: str, row: Element, shape: tuple[int, ...]) -> Array:
    """Bytes as an array of a type and shape.

    Raises
    ------
    ModelError
        If they are more or less than it needs.
    """
    needed = math.prod(shape) * row.numpy.itemsize
    if len(data) != needed:
        raise ModelError(
            f"{who} of shape {shape} and type {row.type} needs {needed} bytes, the file holds {len(data)}"
        )
    values = np.frombuffer(data, row.numpy.newbyteorder("<")).astype(row.numpy, copy=False)
    return np.asarray(values).reshape(shape)


def _check_packed(length: int, who: str, number: int, shape: tuple[int, ...]) -> None:
    if number in _PACKED:
        needed = -(-math.prod(shape) // _PACKED[number])
        if length != needed:
            raise ModelError(f"{who} of shape {shape} needs {needed} bytes, the file holds {length}")


def _external(
    tensor: TensorProto, who: str, files: Beside | None, row: Element, shape: tuple[int, ...]
) -> Array:
    if files is None:
        raise ModelError(
            f"{who} keeps its data in another file, and the model came as bytes; give the model's path"
        )
    if row.type == "tensor(string)":
        raise ModelError(f"{who} keeps strings in another file, which ONNX does not allow")
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if tensor.data_type in _PACKED:
        raise ModelError(f"{who} of type {row.type} keeps its data in another file; save it in the model")
    needed = math.prod(shape) * row.numpy.itemsize
    offset = _number(entries, "offset", 0, who)
    length = _number(entries, "length", needed, who)
    if length != needed:
        raise ModelError(
            f"{who} of shape {shape} and type {row.type} needs {needed} bytes, its entry says {length}"
        )
    data = files.read(entries.get("location", ""), offset, length, who)
    return viewed(data.data, who, row, shape) if needed else np.empty(shape, row.numpy)


def _number(entries: Mapping[str, Any], key: str, default: int, who: str) -> int:
    text = entries.get(key, "")
    if text == "":
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ModelError(f"{who} has {key}={shorten(text)!r} where a number of bytes belongs")
    return int(text)
