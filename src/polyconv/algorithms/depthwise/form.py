"""What the forms of all depthwise algorithms share: the arithmetic of their sums."""

from __future__ import annotations

from polyconv.algorithms.depthwise.situations import arithmetic_of
from polyconv.algorithms.form import Form

__all__ = ["DepthwiseForm"]


class DepthwiseForm(Form):
    """A form whose products are formed as ``arithmetic_of`` says."""

    __slots__ = ()

    @property
    def arithmetic(self) -> str:
        """Row of ``ARITHMETIC`` in which products are formed."""
        return arithmetic_of(self.s)
