"""Padding modes as positions: which element of an axis stands for one beyond its ends.

A mode is a row of a table; nothing here copies a field.  Source: scipy.ndimage, "Interpolation boundary handling".
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["FILLED", "MODES", "beyond"]

Positions = NDArray[np.int64]

FILLED = -1
"""Position that stands for ``cval``."""


def _reflect(at: Positions, n: int) -> Positions:
    folded = at % (2 * n)
    return np.minimum(folded, 2 * n - 1 - folded)


def _mirror(at: Positions, n: int) -> Positions:
    folded = at % max(1, 2 * n - 2)
    return np.minimum(folded, 2 * n - 2 - folded)


def _nearest(at: Positions, n: int) -> Positions:
    return np.clip(at, 0, n - 1)


def _wrap(at: Positions, n: int) -> Positions:
    return at % n


def _constant(at: Positions, n: int) -> Positions:
    return np.full_like(at, FILLED)


MODES: dict[str, Callable[[Positions, int], Positions]] = {
    "reflect": _reflect,  # d c b a | a b c d | d c b a
    "constant": _constant,  # k k k k | a b c d | k k k k
    "nearest": _nearest,  # a a a a | a b c d | d d d d
    "mirror": _mirror,  # d c b | a b c d | c b a
    "wrap": _wrap,  # a b c d | a b c d | a b c d
    "grid-mirror": _reflect,
    "grid-constant": _constant,
    "grid-wrap": _wrap,
}


def beyond(mode: str, n: int, before: int, after: int) -> Positions:
    """Positions that stand for -before, ..., -1 and for n, ..., n + after - 1 of an axis of n elements.

    Examples
    --------
    >>> beyond("reflect", 4, 2, 3).tolist(), beyond("constant", 4, 1, 1).tolist()
    ([1, 0, 3, 2, 1], [-1, -1])
    """
    at = np.concatenate([np.arange(-before, 0), np.arange(n, n + after)])
    return MODES[mode](at, n)
