"""A run on a GPU: what it is fed is brought there, or taken where it lies there; results stay.

Work is started on the stream that is current for the library whose arrays are fed, and nothing waits for it.  It must
not know what a program computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from polyconv.errors import ArgumentError, DtypeError
from polyconv.gpu.arrays import Borrowed, GpuArray, on_stream, to_gpu
from polyconv.gpu.driver import driver
from polyconv.gpu.guests import as_own, device_of, guest_of
from polyconv.models.elements import BY_TYPE
from polyconv.models.feeding import fed, fits
from polyconv.models.graph import Value
from polyconv.models.limits import shorten
from polyconv.models.ort_value import OrtValue
from polyconv.models.program import Program
from polyconv.models.steps import Times

__all__ = ["fed_there", "run_there", "stream_of"]


def fed_there(value: Value, given: Any, device: int) -> Any:
    """An input of a session on a GPU: an array there, in place, or one of the CPU's memory that a run brings there.

    Raises
    ------
    ArgumentError, DtypeError
        Naming the input and what differs.
    """
    if isinstance(given, OrtValue):
        given = given._value
    number = device_of(given)
    if number is None:
        return fed(value, given)
    name = f"the input {shorten(value.name)!r}"
    if number != device:
        raise ArgumentError(
            f"{name} lies on CUDA device {number}, the session computes on {device}; copy it, or make a session with "
            f"device_id {number}"
        )
    array = as_own(given, name)
    element = BY_TYPE.get(value.type)
    if element is None or array.dtype != element.numpy:
        raise DtypeError(f"{name} has type {array.dtype}, the model wants {value.type}: convert it")
    if not fits(value, array.shape):
        raise ArgumentError(f"{name} has shape {array.shape}, the model wants {list(value.dims or ())}: reshape it")
    return array


def stream_of(feeds: Mapping[str, Any], device: int) -> int:
    """The stream that is current for the library of the first array on the GPU; the default one where there is none."""
    for a in feeds.values():
        if type(a) is GpuArray:
            holder = a.memory.holder if isinstance(a.memory, Borrowed) else a
            return guest_of(holder if holder is not None else a).stream(device)
    return 0


def run_there(program: Program, feeds: Mapping[str, Any], results: Sequence[str], is_halted: Callable[[], bool],
              device: int) -> tuple[list[Any], Times]:  # fmt: skip
    """Run a program of a GPU; results lie there, but for those that are computed in the CPU's memory."""
    driver().enter(device)
    with on_stream(stream_of(feeds, device)):
        sent = {
            name: to_gpu(a, device, wait=False) if isinstance(a, np.ndarray) and name not in program.here else a
            for name, a in feeds.items()
        }
        return program.run(sent, results, is_halted)
