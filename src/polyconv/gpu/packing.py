"""What kernels read and a layer makes once: weights in a kernel's order, bias, what zero points add to it, padding.

Each is made by a kernel on the stream of the call that first needs it, and kept.  It must not know how forms are
chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.gpu.calling import launched
from polyconv.gpu.driver import driver
from polyconv.gpu.guests import DeviceArray, Guest
from polyconv.gpu.job import Form, Step
from polyconv.gpu.kernels import move
from polyconv.gpu.kernels.finish import sum_type
from polyconv.gpu.kernels.zeros import Compensation, Padding

__all__ = ["Packing", "Where"]

Wanted = move.Arrange | Compensation | Padding
"""A kernel that makes an array."""


@dataclass(frozen=True, slots=True)
class Where:
    """On whose memory and which stream arrays are made."""

    guest: Guest
    stream: int


class Packing:
    """Weights and bias of a layer, and what is made of them.

    Parameters
    ----------
    w : DeviceArray
    b : DeviceArray or None
    is_kept : bool
        Whether what is made serves later calls, too.
    """

    def __init__(self, w: DeviceArray, b: DeviceArray | None, *, is_kept: bool) -> None:
        self.w, self.b, self._is_kept = w, b, is_kept
        self._made: dict[tuple[Wanted, str], DeviceArray] = {}

    @property
    def bytes(self) -> int:
        """Of the weights, in all their forms."""
        whole = int(np.prod(self.w.shape)) * self.w.dtype.itemsize
        return whole + sum(wanted.bytes for wanted, _ in self._made)

    def of_form(self, form: Form, quantities: Mapping[str, int], at: Where
                ) -> tuple[list[dict[str, int]], tuple[DeviceArray, ...]]:  # fmt: skip
        """Addresses of what each step reads, by the argument's name, and arrays to be kept as long as they are used.

        Parameters
        ----------
        quantities : mapping
            Zero points and scales: their values or addresses.
        """
        keep: list[DeviceArray] = []

        def made(wanted: Wanted, of: str, told: Mapping[str, int]) -> int:
            keep.append(self._found(wanted, of, told, at))
            return keep[-1].address

        found = []
        bias = {} if self.b is None else {"b": self._bias(form.steps[0], self.b, made)}
        for step in form.steps:
            addresses = {**quantities, **bias}
            if step.weights.size:
                told = {"source": self.w.address, "zero": quantities.get("zw", 0)}
                addresses["w"] = made(step.weights, "w", told)
            if step.compensation is not None:
                addresses["b"] = made(step.compensation, repr(step.weights), addresses)
            if step.padding is not None:
                addresses["padding"] = made(step.padding, "zx", quantities)
            found.append(addresses)
        return found, tuple(keep)

    def _bias(self, step: Step, b: DeviceArray, made: Callable[[Wanted, str, Mapping[str, int]], int]) -> int:
        """Address of the bias as numbers of the type of sums."""
        axis = move.Axis(b.shape[0], b.strides[0], b.shape[0])
        return made(move.Arrange((axis,), b.dtype.name, sum_type(step.kernel.g)), "b", {"source": b.address})

    def _found(self, wanted: Wanted, of: str, told: Mapping[str, int], at: Where) -> DeviceArray:
        """An array, made on this stream if it is not there; ``of`` tells of what, where kernels are alike."""
        found = self._made.get((wanted, of))
        if found is not None:
            return found
        device = self.w.device
        made = at.guest.empty(device, (max(1, wanted.bytes),), DTYPES["u8"])
        launched(wanted, {**told, "target": made.address}, at.stream, device)
        if self._is_kept and not driver().is_capturing(at.stream):
            driver().synchronize(at.stream)  # once: later calls may come on other streams
            self._made[wanted, of] = made
        return made
