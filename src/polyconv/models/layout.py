"""In which order of axes the values of a network lie in memory: as the model has them, or with channels last.

The one idea: convolutions read and write best what lies together, so all of a network has one order, and the prices
of its convolutions in both say which.  Extents and axes are the model's in either.  It must not know how a convolution
is planned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from polyconv.machine.host import profile_in_force
from polyconv.models.elements import BY_TYPE
from polyconv.models.graph import Node, Value
from polyconv.operators.running import dry

__all__ = ["Layout", "Price", "joining"]

Price = Callable[[], tuple[float, float] | None]
"""Predicted seconds of a step, as the model has the axes and with channels last; None where that is not known."""

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
    """

    asked: str
    _prices: list[Price] = field(default_factory=list)
    _found: bool | None = None

    def add(self, price: Price) -> None:
        """Have a step counted."""
        self._prices.append(price)

    @property
    def is_last(self) -> bool:
        """Whether channels are last."""
        if self._found is None:
            self._found = self._is_worth_it() if self.asked == "auto" else self.asked == "channels_last"
        return self._found

    def _is_worth_it(self) -> bool:
        known = [seconds for price in self._prices if (seconds := price()) is not None]
        planes, pixels = (sum(each) for each in zip(*known, strict=True)) if known else (0.0, 0.0)
        return pixels < _WORTH * planes


def joining(node: Node, made: Value) -> Price | None:
    """The price of a Concat along channels, which copies where these are last and else has its parts lie in place."""
    dims, element = made.dims, BY_TYPE.get(made.type)
    if node.op != "Concat" or node.domain or dims is None or len(dims) < 3 or element is None:
        return None
    if node.attributes.get("axis", 1) not in (1, 1 - len(dims)) or not all(isinstance(d, int) for d in dims[1:]):
        return None
    elements, dtype = math.prod(d for d in dims[1:] if isinstance(d, int)), element.numpy

    def price() -> tuple[float, float]:
        from polyconv.operators.moving import copy_of  # here, as few networks need it
        from polyconv.operators.strided import cycles

        return 0.0, cycles(copy_of(dtype), elements, dry()) / profile_in_force().clock

    return price
