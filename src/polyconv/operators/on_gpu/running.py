"""Plans run on a GPU: kernels of a plan started together, on the current stream of polyconv's own arrays.

The counterpart of ``operators.running``; nothing waits for the GPU.  It must not know operators.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.dtypes import of_array
from polyconv.errors import ArgumentError
from polyconv.gpu.arrays import GpuArray, current_stream, to_gpu
from polyconv.gpu.code import function
from polyconv.gpu.driver import driver
from polyconv.gpu.launches import Launch, Slot, Table
from polyconv.gpu.work import Work
from polyconv.in_force import keep_where_settings_say, target_in_force
from polyconv.operators.job import Array, Conditions, Plan, Planner
from polyconv.operators.lying import Lies
from polyconv.operators.on_gpu.launching import Launching
from polyconv.operators.running import values_of

__all__ = ["Launched", "Ready", "array_of", "launch_of", "lie_alike", "lies_there", "there"]

_MOST_PLANS = 32


def there(device: int, accuracy: str) -> Conditions:
    """Conditions of plans for a GPU."""
    return Conditions(target_in_force(), 1, check=False, on_gpu=True, device=device, accuracy=accuracy)


def lies_there(a: GpuArray) -> Lies:
    """How an array on a GPU lies."""
    low, size = a.reach
    strides = tuple(step * a.kind.itemsize for step in a.strides)
    return Lies(a.shape, a.dtype, strides, -low, size, align=math.gcd(a.address, 16))


def array_of(lie: Lies, device: int) -> GpuArray:
    """A new array that lies so, without gaps."""
    kind = of_array(lie.dtype, "a result")
    return GpuArray(lie.shape, kind, device, strides=[step // kind.itemsize for step in lie.strides])


def launch_of(one: Launching, device: int) -> Launch:
    """The launch of a kernel, whose pointers are offsets in its operands as yet."""
    offsets = [offset for _, offset in one.operands]
    return Launch(function(one.kernel, device), one.kernel.grid, (*offsets, *one.kernel.numbers.values()))


@dataclass(frozen=True, slots=True)
class Ready:
    """A plan on a device: its constants there, and its kernels with the numbers of the arrays that they point to."""

    plan: Plan
    offsets: tuple[int, ...]
    constants: tuple[GpuArray, ...]
    table: Table

    def __call__(self, arrays: Sequence[Any], device: int) -> list[GpuArray]:
        """Start the kernels; the results.  No kernel reads inputs that lie in the CPU's memory."""
        made = [array_of(lie, device) for lie in (*self.plan.results, *self.plan.between)]
        starts = (a.address if type(a) is GpuArray else 0 for a in arrays)
        addresses = [start - offset for start, offset in zip(starts, self.offsets, strict=True)]
        addresses += [a.address for a in (*made, *self.constants)]
        self.table(addresses, current_stream())
        return made[: len(self.plan.results)]


class Launched:
    """An operator's plans on a GPU, by how its inputs lie.  Safe to use from several threads.

    Parameters
    ----------
    planner : callable
        Makes them.
    device : int
    numbers : sequence of int
        Inputs whose values plans depend on; they lie in the CPU's memory.
    accuracy : str
        Of products.
    """

    __slots__ = ("_accuracy", "_device", "_lock", "_numbers", "_planner", "_ready")

    def __init__(self, planner: Planner, device: int, numbers: Sequence[int] = (), accuracy: str = "fast") -> None:
        self._planner, self._device, self._numbers, self._accuracy = planner, device, tuple(numbers), accuracy
        self._ready: OrderedDict[Any, Ready] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, arrays: Sequence[Any]) -> list[GpuArray]:
        """Run the operator; its results, each in new memory."""
        given = [self._there(at, a) for at, a in enumerate(arrays)]
        return self.ready(given)(given, self._device)

    def work(self, arrays: Sequence[Any], results: Sequence[Any]) -> Work | None:
        """What a run with arrays that lie so starts: of inputs, results, arrays between kernels.

        None if its results do not lie so, or begin where kernels cannot store whole vectors.
        """
        ready = self.ready(arrays)
        pairs = zip(results, ready.plan.results, strict=True)
        if not all(_lies_so(a, lie) and a.address % lie.align == 0 for a, lie in pairs):
            return None
        launches = [launch_of(one, self._device) for one in ready.plan.launches if one.kernel.grid[0]]
        kernels = [one for one in ready.plan.launches if one.kernel.grid[0]]
        slots, moving = [], len(arrays) + len(ready.plan.results) + len(ready.plan.between)
        for i, (one, launch) in enumerate(zip(kernels, launches, strict=True)):
            values = list(launch.values)
            for at, (number, _) in enumerate(one.operands):
                if number < moving:
                    slots.append(Slot(i, at, number))
                    values[at] -= ready.offsets[number] if number < len(arrays) else 0
                else:
                    values[at] += ready.constants[number - moving].address
            launches[i] = replace(launch, values=tuple(values))
        own = tuple(lie.size for lie in ready.plan.between)
        return Work(tuple(launches), tuple(slots), own, keep=(ready,))

    def _there(self, at: int, a: Any) -> Any:
        """An input where it is needed: numbers here, all else on the GPU."""
        if at not in self._numbers:
            return a if type(a) is GpuArray else to_gpu(a, self._device, wait=False)
        if type(a) is GpuArray:
            raise ArgumentError(f"input {at} says how to launch kernels and lies on the GPU; give it as a constant")
        return a

    def ready(self, arrays: Sequence[Any]) -> Ready:
        """The plan for arrays that lie so."""
        key = tuple(
            (a.shape, a.dtype, *(values_of(a) if at in self._numbers else (*a.strides, a.address % 16)))
            for at, a in enumerate(arrays)
        )
        with self._lock:
            found = self._ready.get(key)
        if found is None:
            found = self._made(arrays)
            with self._lock:
                self._ready[key] = found
                if len(self._ready) > _MOST_PLANS:
                    self._ready.popitem(last=False)
        return found

    def _constant(self, array: Array) -> GpuArray:
        """A constant on the device, where another plan may have it already."""
        with self._lock:
            known = list(self._ready.values())
        held = (pair for ready in known for pair in zip(ready.plan.constants, ready.constants, strict=True))
        return next((there for a, there in held if a is array), None) or to_gpu(np.asarray(array), self._device)

    def _made(self, arrays: Sequence[Any]) -> Ready:
        keep_where_settings_say()
        given = [_lies_of(a) for a in arrays]
        plan = self._planner(given, there(self._device, self._accuracy))
        constants = tuple(self._constant(a) for a in plan.constants)
        launches = [one for one in plan.launches if one.kernel.grid[0]]
        changing = [
            Slot(i, at, number) for i, one in enumerate(launches) for at, (number, _) in enumerate(one.operands)
        ]
        table = Table(driver(), [launch_of(one, self._device) for one in launches], changing, self._device)
        return Ready(plan, tuple(lie.offset for lie in given), constants, table)


def lie_alike(one: GpuArray, other: GpuArray) -> bool:
    """Whether the elements of arrays of one shape follow each other in the same steps."""
    return _lies_so(one, lies_there(other))


def _lies_so(a: GpuArray, lie: Lies) -> bool:
    steps = zip(a.shape, lies_there(a).strides, lie.strides, strict=True)
    return all(one == other for extent, one, other in steps if extent > 1)


def _lies_of(a: Any) -> Lies:
    """How an input lies; of one in the CPU's memory its values are told."""
    if type(a) is GpuArray:
        return lies_there(a)
    whole: Array = np.ascontiguousarray(a)
    lie = Lies(whole.shape, whole.dtype, whole.strides, 0, whole.nbytes)
    return replace(lie, values=values_of(whole))
