"""Filters for pictures and fields of any rank, with the names, arguments and results of ``scipy.ndimage``.

``correlate`` and ``convolve`` take any weights, ``correlate1d`` and ``convolve1d`` those of one axis;
``gaussian_filter`` and ``uniform_filter`` smooth; ``sobel``, ``prewitt`` and ``laplace`` differentiate.  ``axes=``
names the axes to filter along: ``(0, 1)`` for a picture with channels last, ``(-2, -1)`` for a batch of planes.

Borders are read through the padding mode while boxes of the field come into a cache: no padded copy is made.
"""

from __future__ import annotations

from polyconv.ndimage.edges import gaussian_gradient_magnitude, gaussian_laplace, laplace, prewitt, sobel
from polyconv.ndimage.filters import convolve, convolve1d, correlate, correlate1d
from polyconv.ndimage.smoothing import gaussian_filter, gaussian_filter1d, uniform_filter, uniform_filter1d

__all__ = [
    "convolve", "convolve1d", "correlate", "correlate1d", "gaussian_filter", "gaussian_filter1d",
    "gaussian_gradient_magnitude", "gaussian_laplace", "laplace", "prewitt", "sobel", "uniform_filter",
    "uniform_filter1d",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
