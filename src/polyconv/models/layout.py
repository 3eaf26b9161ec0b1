"""In which order of axes the values of a network lie in memory: as the model has them, or with channels last.

The one idea: convolutions read and write best what lies together, so all of a network has one order, and the prices
of its convolutions in both say which.  Extents and axes are the model's in either.  It must not know algorithms.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import field, replace

from polyconv.dataclass import dataclass
from polyconv.lowering.situation import Situation, changed
from polyconv.machine.host import profile_in_force
from polyconv.models.elements import BY_TYPE
from polyconv.models.graph import Node, Value
from polyconv.models.steps import bytes_of
from polyconv.operators.running import dry
from polyconv.planning.planner import take
from polyconv.planning.remembered import remembered

__all__ = ["Layout", "Price", "joining"]

Price = Callable[[], tuple[float, float]]
"""Predicted seconds of a step, as the model has the axes and with channels last."""

_WORTH = 0.97
"""Share of the seconds as the model has the axes that channels last may take at most: prices err by as much."""


@dataclass(slots=True)
class Layout:
    """The order of a network, which is decided when its first convolution is made ready.

    It follows from the model and the machine alone, not from the sizes that a run brings, so that a session has the
    same bits in each.

    Parameters
    ----------
    asked : str
        A value of the setting ``layout``.
    convolutions : list of callable
        What the plans of each depend on with channels last; None where that is not known before a run.
    others : list of Price
        Of other steps that count.
    """

    asked: str
    convolutions: list[Callable[[], Situation | None]] = field(default_factory=list)
    others: list[Price] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _found: bool | None = None

    @property
    def is_last(self) -> bool:
        """Whether channels are last."""
        if self._found is None:
            with self._lock:
                if self._found is None:
                    self._found = self._is_worth_it() if self.asked == "auto" else self.asked == "channels_last"
        return self._found

    def _is_worth_it(self) -> bool:
        first = next((s for each in self.convolutions if (s := each()) is not None), None)
        if first is None:
            return False
        network = f"channels last for {len(self.convolutions)} and {len(self.others)}"
        found: bool = remembered(network, first, lambda _: self._is_cheaper())
        return found

    def _is_cheaper(self) -> bool:
        """What prices say of all steps; a process that finds it remembered need not ask them."""
        prices = [_priced(s) for each in self.convolutions if (s := each()) is not None]
        planes, pixels = (float(sum(each)) for each in zip(*prices, *(price() for price in self.others), strict=True))
        return pixels < _WORTH * planes


def _priced(s: Situation) -> tuple[float, float]:
    """Predicted seconds of a convolution in both orders."""
    every = (changed(s, problem=replace(s.problem, layout=layout)) for layout in ("NCHW", "NHWC"))
    planes, pixels = (take(each).running() / s.profile.clock for each in every)
    return planes, pixels


def joining(node: Node, copied_of: Callable[[], Sequence[Value]]) -> Price | None:
    """The price of a Concat along channels, some parts of which are copied if channels are last, and else none.

    Parameters
    ----------
    node : Node
    copied_of : callable
        What is known of those parts: asked for a Concat alone.
    """
    if node.op != "Concat" or node.domain:
        return None
    copied = copied_of()
    dims = [value.dims for value in copied if value.dims is not None and len(value.dims) > 2]
    if not dims or len(dims) < len(copied):
        return None
    images = [replace(value, dims=(1, *of_one[1:])) for value, of_one in zip(copied, dims, strict=True)]
    sizes = [size for image in images if (size := bytes_of(image)) is not None]
    if node.attributes.get("axis", 1) not in (1, 1 - len(dims[0])) or len(sizes) < len(images):
        return None
    dtype = BY_TYPE[copied[0].type].numpy
    elements = sum(sizes) // dtype.itemsize

    def price() -> tuple[float, float]:
        from polyconv.operators.moving import copy_of  # here, as few networks need it
        from polyconv.operators.strided import cycles

        return 0.0, cycles(copy_of(dtype), elements, dry()) / profile_in_force().clock

    return price
