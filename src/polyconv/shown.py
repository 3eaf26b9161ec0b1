"""What every layer shows of itself: its problem, weights and geometry as attributes, and a line of text.

``Conv``, ``ConvTranspose`` and what ``Plan.prepare`` makes have it in common.  It must not know how a layer was made
nor how it computes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from polyconv.prepared import Layer
from polyconv.problem.epilogue import Activation
from polyconv.problem.problem import Problem
from polyconv.settings import spelled_bytes

__all__ = ["Shown"]

_MOST_SHOWN = 3


class Shown(ABC):
    """Attributes of a layer, all of them read-only."""

    __slots__ = ("_layer",)
    _layer: Layer

    @property
    @abstractmethod
    def problem(self) -> Problem:
        """The convolution; batch and extents are None where the layer takes any."""

    @property
    def weight(self) -> Any:
        """The layer's own weights, as they were given: a read-only view (on a GPU, the array itself)."""
        return _read_only(self._layer.weights.w)

    @property
    def bias(self) -> Any:
        """The layer's own bias: a read-only view, or None."""
        return None if self._layer.weights.bias is None else _read_only(self._layer.weights.bias)

    @property
    def kernel_shape(self) -> tuple[int, ...]:
        """Kernel extents."""
        return self.problem.k

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides by axis."""
        return self.problem.s

    @property
    def dilations(self) -> tuple[int, ...]:
        """Dilations by axis."""
        return self.problem.d

    @property
    def pads(self) -> tuple[tuple[int, int], ...]:
        """Begin and end pads by axis; zeros where ``auto_pad`` makes them, for each input anew."""
        return self.problem.pads

    @property
    def groups(self) -> int:
        """Number of groups."""
        return self.problem.groups

    @property
    def layout(self) -> str:
        """``NCHW`` or ``NHWC``, for any number of axes."""
        return self.problem.layout

    @property
    def activation(self) -> Activation | None:
        """Activation with its parameters, or None."""
        return self.problem.activation

    @property
    def overflow(self) -> str:
        """``wrap`` or ``saturate``."""
        return self.problem.overflow

    @property
    def x_dtype(self) -> np.dtype[Any]:
        """Type of the input."""
        return self.problem.x_dtype.numpy

    @property
    def out_dtype(self) -> np.dtype[Any]:
        """Type of the result."""
        return self.problem.y_dtype.numpy

    @property
    def accuracy(self) -> str:
        """``fast`` or ``strict``; on a GPU perhaps ``tf32``."""
        return str(self._layer._accuracy)

    @property
    def workspace_limit(self) -> int | None:
        """Most bytes a call may take beyond its result; None without a limit."""
        limit: int | None = self._layer._limit
        return limit

    @property
    def packed_bytes(self) -> int:
        """Bytes of the weights this layer owns, in all forms made so far."""
        return self._layer.packed_bytes

    @property
    def algorithms(self) -> dict[tuple[int, ...], str]:
        """Input shapes of recent calls, the last one last, and the algorithm that computed each."""
        return self._layer.algorithms

    def _ran(self) -> str:
        known = list(self.algorithms.items())
        ran = [f"{name} for {shape}" for shape, name in known[-_MOST_SHOWN:]]
        if len(known) > _MOST_SHOWN:
            ran.insert(0, f"{len(known) - _MOST_SHOWN} shapes before")
        return ", ".join(ran) or "not called yet"

    def __repr__(self) -> str:
        """``Conv('conv f32 NCHW n? c64 i?x? m64 k3x3 p1', 144 KiB, winograd for (1, 64, 56, 56))``."""
        return f"{type(self).__name__}('{self.problem}', {spelled_bytes(self.packed_bytes)}, {self._ran()})"


def _read_only(array: Any) -> Any:
    if not isinstance(array, np.ndarray):  # on a GPU, by a library that has no such views
        return array
    view = array.view()
    view.flags.writeable = False
    return view
