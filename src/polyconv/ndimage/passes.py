"""A pass: what one step of a filter sums, along which axes, and what lies beyond their ends.

Filters end in passes, and everything below starts from them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from polyconv.dataclass import dataclass

__all__ = ["Pass"]


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One pass of a filter over an array.

    Parameters
    ----------
    kind : str
        ``window``: a sum over several axes.  ``line``: over one.  ``mean``: the mean along one.
    axes : tuple of int
        Ascending.
    weights : array of float64, an axis for each of ``axes``
        Of a correlation; ones, for a mean.
    origins : tuple of int
        By how many positions a window begins earlier than one that is centred.
    modes : tuple of str
        What lies beyond the ends of each axis.
    """

    kind: str
    axes: tuple[int, ...]
    weights: NDArray[Any]
    origins: tuple[int, ...]
    modes: tuple[str, ...]

    def reversed(self) -> Pass:
        """The correlation that is the convolution with these weights."""
        w = self.weights
        origins = tuple(-o - (size % 2 == 0) for o, size in zip(self.origins, w.shape, strict=True))
        return replace(self, weights=w[(slice(None, None, -1),) * w.ndim], origins=origins)

    def conjugate(self) -> Pass:
        """The pass with conjugate weights."""
        return replace(self, weights=self.weights.conj())
