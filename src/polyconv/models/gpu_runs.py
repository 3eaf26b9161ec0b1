"""A run on a GPU: what it is fed is brought there, or taken where it lies there; results stay.

Work is started on the stream that is current for the library whose arrays are fed, and nothing waits for it.  It must
not know what a program computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from polyconv.errors import ArgumentError, DtypeError
from polyconv.gpu.arrays import Borrowed, GpuArray, current_stream, on_stream, to_gpu
from polyconv.gpu.driver import driver
from polyconv.gpu.guests import as_own, device_of, guest_of
from polyconv.models.elements import BY_TYPE
from polyconv.models.feeding import check_shape, fed
from polyconv.models.graph import Value
from polyconv.models.limits import shorten
from polyconv.models.ort_value import OrtValue
from polyconv.models.program import Program
from polyconv.models.session_options import leaves_results_to_stream
from polyconv.models.steps import Times

__all__ = ["fed_there", "run_there", "stream_for", "wait_unless_left"]


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
    check_shape(value, array.shape, name)
    return array


def stream_for(values: Iterable[Any], device: int | None) -> AbstractContextManager[None]:
    """The stream that is current for the library of the first value on a GPU; the default one where there is none."""
    if device is None:
        return nullcontext()
    for a in values:
        if type(a) is GpuArray and isinstance(a.memory, Borrowed) and a.memory.holder is not None:
            return on_stream(guest_of(a.memory.holder).stream(device))
    return on_stream(current_stream())


def wait_unless_left(run_options: Any, device: int | None) -> None:
    """Wait for the current stream, unless it is captured, or options leave results to it."""
    if device is None or leaves_results_to_stream(run_options) or driver().is_capturing(current_stream()):
        return
    driver().synchronize(current_stream())


def run_there(program: Program, feeds: Mapping[str, Any], results: Sequence[str], is_halted: Callable[[], bool],
              device: int) -> tuple[list[Any], Times]:  # fmt: skip
    """Run a program of a GPU on the current stream; results lie there, but for those that stay in the CPU's memory."""
    driver().enter(device)
    sent = {
        name: to_gpu(a, device, wait=False) if isinstance(a, np.ndarray) and name not in program.here else a
        for name, a in feeds.items()
    }
    return program.run(sent, results, is_halted)
