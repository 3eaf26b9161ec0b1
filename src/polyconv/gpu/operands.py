"""Arrays on a GPU that come with a call, checked against its problem before the first launch.

Types, shapes, devices, and what the result shares with others.  It must not know how anything is computed.
"""

from __future__ import annotations

from typing import Any

from polyconv.dtypes import Dtype
from polyconv.errors import ArgumentError, DtypeError
from polyconv.gpu.guests import DeviceArray, device_of, read
from polyconv.problem.problem import Problem

__all__ = ["check_apart", "check_operand", "check_operands", "check_out", "operand"]


def operand(value: Any, name: str) -> DeviceArray:
    """An array on a GPU, as it is given to a call.

    Raises
    ------
    ArgumentError
        If it lies in the CPU's memory.
    """
    if device_of(value) is None:
        raise ArgumentError(f"{name} lies in the CPU's memory, x on a GPU; copy one of them, so that they lie together")
    return read(value, name)


def check_operands(p: Problem, x: DeviceArray, w: DeviceArray, b: DeviceArray | None, *, residual: DeviceArray | None,
                   offset: DeviceArray | None, mask: DeviceArray | None) -> None:  # fmt: skip
    """Refuse operands that are not the problem's.

    Raises
    ------
    ArgumentError, DtypeError
        Naming the operand, what it is and what it has to be.
    """
    is_deformable = p.op == "deform_conv"
    for name, array, is_there in (
        ("b", b, p.bias), ("offset", offset, is_deformable), ("mask", mask, is_deformable and p.mask),
    ):  # fmt: skip
        if is_there != (array is not None):
            raise ArgumentError(f"{name} is {'missing' if is_there else 'given'}: this is '{p}'")
    if b is not None and b.dtype.is_float != p.y_dtype.is_float:
        raise DtypeError(f"b has type {b.dtype.name}, the result {p.y}; one is of floats, the other of integers")
    for name, array, dtype, shape in (
        ("x", x, p.x_dtype, p.x_shape), ("w", w, p.w_dtype, p.w_shape), ("b", b, b.dtype if b else None, (p.m,)),
        ("residual", residual, p.y_dtype, p.y_shape), ("offset", offset, p.x_dtype, p.offset_shape),
        ("mask", mask, p.x_dtype, p.mask_shape),
    ):  # fmt: skip
        if array is not None:
            check_operand(name, array, dtype or array.dtype, shape, x.device)


def check_operand(name: str, array: DeviceArray, dtype: Dtype, shape: tuple[int | None, ...], device: int) -> None:
    """Refuse an array of another type or shape, or on another device than the input's.

    Raises
    ------
    ArgumentError, DtypeError
        Naming it, what it is and what it has to be.
    """
    if array.device != device:
        raise ArgumentError(_devices(device, name, array.device))
    if array.dtype is not dtype:
        raise DtypeError(f"{name} has type {array.dtype.name} where {dtype.name} is needed; convert it")
    if array.shape != shape:
        raise ArgumentError(f"{name} has shape {array.shape}, this convolution needs {shape}")


def check_out(out: DeviceArray, p: Problem, x: DeviceArray, **others: DeviceArray | None) -> None:
    """Refuse an array that cannot take the problem's result beside its operands; the residual's memory can.

    Raises
    ------
    ArgumentError, DtypeError
        Naming what is wrong with it, or the operand that it overlaps.
    """
    if out.dtype is not p.y_dtype:
        raise DtypeError(f"out has type {out.dtype.name}, the result is {p.y}; pass an array of that type")
    if out.shape != p.y_shape:
        raise ArgumentError(f"out has shape {out.shape}, the result has {p.y_shape}; pass an array of that shape")
    if out.device != x.device:
        raise ArgumentError(_devices(x.device, "out", out.device))
    if _overlaps_itself(out):
        raise ArgumentError(f"out has strides {out.strides}: elements overlap each other; pass a plain array")
    check_apart(out, x=x, **others)


def check_apart(out: DeviceArray, **others: DeviceArray | None) -> None:
    """Refuse a result's array that shares memory with operands; the residual's own is its.

    Raises
    ------
    ArgumentError
        Naming the operand.
    """
    for name, other in others.items():
        if other is None or not _meet(other.span, out.span):
            continue
        if name == "residual" and (other.address, other.strides) == (out.address, out.strides):
            continue
        raise ArgumentError(f"out overlaps {name} in memory; pass an array of its own")


def _devices(of_x: int, name: str, other: int) -> str:
    return f"x lies on CUDA device {of_x}, {name} on CUDA device {other}; copy one of them to the other's"


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _overlaps_itself(a: DeviceArray) -> bool:
    if 0 in a.shape:
        return False
    span = 1
    for step, extent in sorted((abs(s), e) for s, e in zip(a.strides, a.shape, strict=True) if e > 1):
        if step < span:
            return True
        span = step * (extent - 1) + span
    return False
