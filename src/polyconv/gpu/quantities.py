"""Zero points and scales of a call on a GPU: numbers that a launch is told, or arrays that kernels read.

One value may lie anywhere: from the CPU's memory it goes along with the launch, so that nothing is copied and nobody
waits.  It must not know kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polyconv.dtypes import Dtype
from polyconv.errors import ArgumentError, DtypeError
from polyconv.gpu.geometry import Quantities
from polyconv.gpu.guests import DeviceArray, device_of, read
from polyconv.problem.problem import Problem
from polyconv.problem.quantisation import QUANTITIES

__all__ = ["Held", "described", "held"]

Held = tuple[Quantities, dict[str, int]]
"""How quantities come to kernels, and of each its value or its address."""


def held(p: Problem, given: Mapping[str, Any], device: int) -> Held:
    """Quantities of a problem, of which some are given at run time.

    Raises
    ------
    ArgumentError, DtypeError
        Naming the one that is missing, lies elsewhere, or is not what the problem says.
    """
    words: dict[str, str] = {}
    values: dict[str, int] = {}
    for name, form, dtype in _forms(p):
        if not isinstance(form, str):
            words[name], values[name] = "number", _told(np.asarray(form), dtype)
            continue
        value = given.get(name)
        if value is None:
            raise ArgumentError(f"{name} is given at run time by this problem, but was not passed")
        if device_of(value) is None:
            words[name], values[name] = "number", _told(_lone(np.asarray(value), name, form, dtype), dtype)
            continue
        a = read(value, name)
        _check(a, name, form, dtype, p.m, device)
        words[name], values[name] = "each" if a.shape == (p.m,) and form == "c" else "one", a.address
    return Quantities(**words), values


def described(p: Problem) -> Quantities:
    """Quantities of a problem that is only planned: a number for each that is one for all channels."""
    return Quantities(**{name: "each" if form == "c" else "number" for name, form, _ in _forms(p)})


def _forms(p: Problem) -> list[tuple[str, float | str, Dtype]]:
    """Name, form and type of the quantities that a problem has."""
    found = ((name, getattr(p.quantisation, name, None), p.quantity_dtype(name)) for name in QUANTITIES)
    return [(name, form, dtype) for name, form, dtype in found if form is not None]


def _told(value: Any, dtype: Dtype) -> int:
    """A value as a launch is told it: a whole number, or the bits of a float."""
    if dtype.is_float:
        return int(np.float32(value.reshape(())).view(np.uint32))
    return int(value.reshape(()))


def _lone(value: Any, name: str, form: str, dtype: Dtype) -> Any:
    if value.size != 1:
        raise ArgumentError(
            f"{name} has {value.size} values in the CPU's memory, x lies on a GPU; copy it there, so that they lie "
            f"together: one value alone may stay"
        )
    if value.dtype != dtype.numpy:
        raise DtypeError(f"{name} has type {value.dtype} where {dtype.name} is needed; convert it")
    return value


def _check(a: DeviceArray, name: str, form: str, dtype: Dtype, m: int, device: int) -> None:
    if a.dtype is not dtype:
        raise DtypeError(f"{name} has type {a.dtype.name} where {dtype.name} is needed; convert it")
    if a.device != device:
        raise ArgumentError(f"x lies on CUDA device {device}, {name} on CUDA device {a.device}; copy one of them")
    if int(np.prod(a.shape)) != 1 and (form != "c" or a.shape != (m,)):
        wanted = f"one value, or {m} of them" if form == "c" else "one value"
        raise ArgumentError(f"{name} has shape {a.shape}, this convolution needs {wanted}")
