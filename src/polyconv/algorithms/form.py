"""A form: one way to compute a convolution in which every choice is made, and what planning asks of it.

An algorithm turns a situation into forms, or into a sentence that says why it has none.  A form is a value: it can be
printed and compared, and the same object that was priced is built, so nothing is derived twice.  It must not know
other algorithms' forms or how the planner compares them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from polyconv.dataclass import dataclass
from polyconv.lowering import packing
from polyconv.lowering.program import Operand, Program, Request
from polyconv.lowering.situation import Situation, accumulator_arithmetic, own_bound

__all__ = ["Form", "Forms", "Refusal"]

Refusal: TypeAlias = str
"""Why an algorithm cannot compute a problem: one sentence with numbers, as ``explain`` prints it."""


@dataclass(frozen=True, slots=True)
class Form(ABC):
    """One way to compute a situation's problem.

    An algorithm's own form adds what it chose (tiles, boxes, schemes) as fields.

    Parameters
    ----------
    s : Situation
        What it was chosen for.
    """

    s: Situation

    @property
    def is_whole(self) -> bool:
        """Whether its program writes outputs too that no product reaches; else ``gaps`` are written before."""
        return False

    @property
    def arithmetic(self) -> str:
        """Row of ``ARITHMETIC`` in which products are formed."""
        return accumulator_arithmetic(self.s)

    @property
    def scheme(self) -> str:
        """What else fixes the bits of results, such as ``F(4x4,3x3)``; empty if nothing does."""
        return ""

    @property
    def bound(self) -> tuple[str, float]:
        """Kind and factor of the error bound.

        ``own`` scales with the output's own sum of ``|x||w|``, ``window`` with all inputs of a tile.
        """
        return own_bound(self.s)

    @property
    @abstractmethod
    def workspace(self) -> int:
        """Bytes that a thread needs."""

    @abstractmethod
    def cost(self) -> Mapping[str, float]:
        """Predicted cycles of one core by term, once weights are prepared."""

    def preparing(self) -> float:
        """Predicted cycles of what comes before the first call: the program and the weights."""
        return packing.cycles(self.s)

    def takes(self, x: Operand, y: Operand, residual: Operand | None) -> bool:
        """Whether arrays that lie so are computed where they are; others are copied to packed ones."""
        return True

    def choices(self) -> Mapping[str, object]:
        """What was chosen, by name, for people to read: ``{"tile": "6 x 2 vectors", "box": (14, 14)}``."""
        return {}

    @abstractmethod
    def build(self, r: Request) -> Program:
        """The program of a request whose situation this form was chosen for."""


Forms: TypeAlias = Iterable[Form] | Refusal
"""The forms of an algorithm, that predicted fastest first, one at least; or why there are none."""
