"""Smoothing: Gaussians and means, axis by axis; ``scipy.ndimage``'s functions of these names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from polyconv.errors import ArgumentError
from polyconv.ndimage.applying import apply
from polyconv.ndimage.arguments import axes_of, axis_of, check_mode, fitting_origin, integer, number, one_each
from polyconv.ndimage.passes import Pass
from polyconv.ndimage.windows import gaussian

__all__ = ["gaussian_filter", "gaussian_filter1d", "gaussian_passes", "uniform_filter", "uniform_filter1d"]

_NARROWEST = 1e-15
"""SciPy leaves out axes whose Gaussian is no wider."""

Ints = int | Sequence[int]
Floats = float | Sequence[float]
Modes = str | Sequence[str]


def gaussian_filter(input: ArrayLike, sigma: Floats, order: Ints = 0, output: Any = None, mode: Modes = "reflect",
                    cval: complex = 0.0, truncate: float = 4.0, *, radius: Ints | None = None,
                    axes: Ints | None = None, accuracy: str | None = None, threads: int | None = None
                    ) -> Any:  # fmt: skip
    """Smooth an array of any rank with a Gaussian, or differentiate the smoothed array.

    Parameters
    ----------
    input : array_like
        Real or complex, of any strides; never written.
    sigma : number, or one for each of ``axes``
        Standard deviation, in elements; 0 leaves an axis as it is.
    order : int, or one for each of ``axes``
        Of the derivative: 0 for none.
    output : dtype or array, optional
        Type of the result, or where it goes; the input's type by default.
    mode : str, or one for each of ``axes``
        What lies beyond the border, as for ``correlate``.
    cval : number
        For the mode ``constant``.
    truncate : number
        The Gaussian ends after so many standard deviations.
    radius : int, or one for each of ``axes``, optional
        Where it ends, in elements; ``truncate`` then has no meaning.
    axes : int or sequence of int, optional
        The axes to filter along: ``(0, 1)`` for a picture with channels last.  All by default.
    accuracy, threads
        As for ``correlate``.

    Returns
    -------
    ndarray
        Of the input's shape; ``output`` if that was an array.

    Raises
    ------
    ArgumentError, DtypeError
        Naming the argument, what disagrees and the way out.

    Notes
    -----
    Results are those of ``scipy.ndimage.gaussian_filter``, which filters axis by axis and keeps what is between two of
    them in the type of the result: of integers it cuts each time.  ``output=numpy.float32`` keeps fractions.

    Examples
    --------
    >>> import numpy as np
    >>> from polyconv import ndimage
    >>> picture = np.zeros((5, 5, 3), np.uint8)
    >>> picture[2, 2] = 255
    >>> ndimage.gaussian_filter(picture, 1, axes=(0, 1))[2, :, 0]
    array([ 5, 24, 40, 24,  5], dtype=uint8)
    """
    return apply(_gaussian, input, output, cval, accuracy, threads, axes, sigma, order, mode, truncate, radius)


def gaussian_filter1d(input: ArrayLike, sigma: float, axis: int = -1, order: int = 0, output: Any = None,
                      mode: str = "reflect", cval: complex = 0.0, truncate: float = 4.0, *,
                      radius: int | None = None, accuracy: str | None = None, threads: int | None = None
                      ) -> Any:  # fmt: skip
    """Smooth the lines of an array along one axis with a Gaussian, or differentiate them.

    Parameters are those of ``gaussian_filter``; results are those of ``scipy.ndimage.gaussian_filter1d``.

    Examples
    --------
    >>> from polyconv import ndimage
    >>> ndimage.gaussian_filter1d([1.0, 2.0, 3.0, 4.0, 5.0], 1).round(8)
    array([1.42704095, 2.06782203, 3.        , 3.93217797, 4.57295905])
    """
    return apply(_gaussian_line, input, output, cval, accuracy, threads, axis, sigma, order, mode, truncate, radius)


def _gaussian(rank: int, axes: Ints | None, *arguments: Any) -> list[Pass]:
    return gaussian_passes(axes_of(axes, rank), *arguments)


def _gaussian_line(rank: int, axis: int, sigma: float, order: int, mode: str, truncate: float, radius: int | None
                   ) -> list[Pass]:  # fmt: skip
    one = _gaussian_pass(
        axis_of(axis, rank), number(sigma, "sigma"), integer(order, "order"), check_mode(mode, "mode"),
        number(truncate, "truncate"), radius,
    )  # fmt: skip
    return [one]


def gaussian_passes(axes: Sequence[int], sigma: Floats, order: Ints, mode: Modes, truncate: float,
                    radius: Ints | None) -> list[Pass]:  # fmt: skip
    """The passes of a Gaussian, those along axes that it leaves as they are left out."""
    values = zip(
        axes, one_each(sigma, axes, "sigma", number), one_each(order, axes, "order", integer),
        one_each(mode, axes, "mode", check_mode), one_each(radius, axes, "radius", lambda given, name: given),
        strict=True,
    )  # fmt: skip
    width = number(truncate, "truncate")
    return [_gaussian_pass(a, s, o, m, width, r) for a, s, o, m, r in values if not abs(s) <= _NARROWEST]


def _gaussian_pass(axis: int, sigma: float, order: int, mode: str, truncate: float, radius: Any) -> Pass:
    if not (sigma > 0 and math.isfinite(sigma)):
        raise ArgumentError(f"sigma={sigma} must be positive and finite")
    if order < 0:
        raise ArgumentError(f"order={order} must not be negative")
    if radius is None:
        if not math.isfinite(truncate * sigma):
            raise ArgumentError(f"truncate={truncate} must be finite")
        reach, name = int(truncate * sigma + 0.5), f"truncate={truncate}"
    else:
        reach, name = integer(radius, "radius"), f"radius={radius}"
    if reach < 0:
        raise ArgumentError(f"{name} must not be negative")
    return Pass("line", (axis,), gaussian(sigma, order, reach)[::-1], (0,), (mode,))


def uniform_filter(input: ArrayLike, size: Ints = 3, output: Any = None, mode: Modes = "reflect", cval: complex = 0.0,
                   origin: Ints = 0, *, axes: Ints | None = None, accuracy: str | None = None,
                   threads: int | None = None) -> Any:  # fmt: skip
    """Mean of the elements around each one, along every axis of an array of any rank.

    Parameters
    ----------
    size : int, or one for each of ``axes``
        Elements of the mean.
    origin : int, or one for each of ``axes``
        Moves the window to the left; to the right, if negative.
    others
        As for ``gaussian_filter``.

    Notes
    -----
    Results are those of ``scipy.ndimage.uniform_filter``, with one exception: SciPy's sums of floats run along a whole
    line, so their rounding errors grow with it, and a NaN or an infinity stays in them; here each mean is summed anew.

    Examples
    --------
    >>> import numpy as np
    >>> from polyconv import ndimage
    >>> ndimage.uniform_filter(np.arange(12, dtype=np.uint8).reshape(3, 4), 3)
    array([[1, 2, 3, 3],
           [4, 5, 6, 6],
           [6, 7, 8, 8]], dtype=uint8)
    """
    return apply(_means, input, output, cval, accuracy, threads, size, mode, origin, axes)


def _means(rank: int, size: Ints, mode: Modes, origin: Ints, axes: Ints | None) -> list[Pass]:
    along = axes_of(axes, rank)
    values = zip(
        along, one_each(size, along, "size", _size), one_each(origin, along, "origin", integer),
        one_each(mode, along, "mode", check_mode), strict=True,
    )  # fmt: skip
    return [_mean(a, n, o, m) for a, n, o, m in values if n > 1]


def uniform_filter1d(input: ArrayLike, size: int, axis: int = -1, output: Any = None, mode: str = "reflect",
                     cval: complex = 0.0, origin: int = 0, *, accuracy: str | None = None,
                     threads: int | None = None) -> Any:  # fmt: skip
    """Mean of the elements around each one, along one axis.

    Parameters are those of ``uniform_filter``; results are those of ``scipy.ndimage.uniform_filter1d``, with the same
    exception.

    Examples
    --------
    >>> from polyconv import ndimage
    >>> ndimage.uniform_filter1d([2, 8, 0, 4, 1, 9, 9, 0], 3)
    array([4, 3, 4, 1, 4, 6, 6, 3])
    """
    return apply(_mean_line, input, output, cval, accuracy, threads, size, axis, mode, origin)


def _mean_line(rank: int, size: int, axis: int, mode: str, origin: int) -> list[Pass]:
    return [_mean(axis_of(axis, rank), _size(size, "size"), integer(origin, "origin"), check_mode(mode, "mode"))]


def _size(given: Any, name: str) -> int:
    size = int(given) if isinstance(given, float) and given.is_integer() else integer(given, name)
    if size < 1:
        raise ArgumentError(f"{name}={given!r} must be at least 1")
    return size


def _mean(axis: int, size: int, origin: int, mode: str) -> Pass:
    return Pass("mean", (axis,), np.ones(size), (fitting_origin(origin, size),), (mode,))
