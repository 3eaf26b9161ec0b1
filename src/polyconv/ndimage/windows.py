"""Windows and their weights: the Gaussian and its derivatives, and windows that are products of one-dimensional ones.

Numbers in, numbers out: it knows nothing of arrays that are filtered, or of how sums are formed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Weights", "factors", "gaussian", "whole_bits"]

Weights = NDArray[np.float64]

def gaussian(sigma: float, order: int, radius: int) -> Weights:
    """Weights of a Gaussian, or of a derivative of it, at -radius, ..., radius, for a convolution.

    The Gaussian is made to sum to 1.  Its derivative of some order is itself times a polynomial q: differentiating
    ``q(x) exp(-x^2 / (2 sigma^2))`` makes ``q' - x q / sigma^2`` of q.
    """
    x = np.arange(-radius, radius + 1)
    bell: Weights = np.exp(-0.5 / (sigma * sigma) * x**2)
    bell = bell / bell.sum()
    if order == 0:
        return bell
    step = np.diag(np.arange(1.0, order + 1), 1) + np.diag(np.ones(order) / -(sigma * sigma), -1)
    q = np.zeros(order + 1)
    q[0] = 1
    for _ in range(order):
        q = step.dot(q)
    found: Weights = (x[:, None] ** np.arange(order + 1)).dot(q) * bell
    return found


def whole_bits(weights: Weights) -> int:
    """Bits behind the point with which all weights, which must be finite, can be written.

    Examples
    --------
    >>> whole_bits(np.array([3.0, 0.75])), whole_bits(np.array([4.0, 0.0]))
    (2, 0)
    """
    fraction, exponent = np.frexp(weights)
    digits = np.ldexp(fraction, 53).astype(np.int64)
    last = np.frexp((digits & -digits).astype(np.float64))[1] - 1  # zeros at the end
    return int(np.max(np.where(digits == 0, 0, 53 - exponent - last), initial=0))


def factors(weights: Weights, tolerance: float) -> tuple[Weights, ...] | None:
    """One-dimensional weights whose product these are, within a tolerance relative to every weight; None if none are.

    They are found along the lines through the largest weight; whole numbers stay whole where they can.

    Examples
    --------
    >>> [f.tolist() for f in factors(np.outer([1.0, 2, 1], [4.0, -2, 2]), 0.0)]
    [[1.0, 2.0, 1.0], [4.0, -2.0, 2.0]]
    """
    if weights.ndim < 2 or not np.isfinite(weights).all() or not weights.any():
        return None
    pivot = np.unravel_index(np.argmax(np.abs(weights)), weights.shape)
    found = []
    for axis in range(weights.ndim):
        line = weights[tuple(slice(None) if a == axis else pivot[a] for a in range(weights.ndim))]
        found.append(line / _common(line) if axis < weights.ndim - 1 else line)
    # every factor but the last was scaled freely: the last takes what makes the product right at the pivot
    at_pivot = math.prod(float(factor[p]) for factor, p in zip(found[:-1], pivot[:-1], strict=True))
    found[-1] = found[-1] / at_pivot
    return tuple(found) if _is_product(weights, found, tolerance) else None


def _is_product(weights: Weights, found: Sequence[Weights], tolerance: float) -> bool:
    product = found[0]
    for factor in found[1:]:
        product = np.multiply.outer(product, factor)
    with np.errstate(all="ignore"):
        return bool((np.abs(product - weights) <= tolerance * np.abs(weights)).all())


def _common(line: Weights) -> float:
    """The largest number of which all entries are whole multiples, if that can be told exactly; else the largest."""
    bits, largest = whole_bits(line), float(np.abs(line).max())
    if math.frexp(largest)[1] + bits > 53:
        return largest
    return math.ldexp(math.gcd(*(int(v) for v in np.ldexp(line, bits))), -bits)
