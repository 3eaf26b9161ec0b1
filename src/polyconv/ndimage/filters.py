"""Correlation and convolution of fields with any weights: ``scipy.ndimage``'s functions of these names.

Arguments become passes over the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import ArrayLike

from polyconv.errors import ArgumentError
from polyconv.ndimage.applying import apply
from polyconv.ndimage.arguments import axes_of, axis_of, check_mode, fitting_origin, integer, one_each, weights_of
from polyconv.ndimage.passes import Pass

__all__ = ["convolve", "convolve1d", "correlate", "correlate1d"]

Ints = int | Sequence[int]


def correlate(input: ArrayLike, weights: ArrayLike, output: Any = None, mode: str | Sequence[str] = "reflect",
              cval: complex = 0.0, origin: Ints = 0, *, axes: Ints | None = None,
              accuracy: str | None = None, threads: int | None = None) -> Any:  # fmt: skip
    """Correlate an array of any rank with weights.

    Parameters
    ----------
    input : array_like
        Real or complex, of any strides; never written.
    weights : array_like, an axis for each of ``axes``
        Output ``o`` is the sum of ``weights[t] * input[o + t - size // 2 - origin]`` over all t.
    output : dtype or array, optional
        Type of the result, or where it goes; the input's type by default.
    mode : str, or one for each of ``axes``
        What lies beyond the border: ``reflect`` (d c b a | a b c d | d c b a), ``constant`` (``cval``), ``nearest``
        (a a a a | a b c d | d d d d), ``mirror`` (d c b | a b c d | c b a), ``wrap`` (a b c d | a b c d | a b c d), or
        their aliases ``grid-mirror``, ``grid-constant`` and ``grid-wrap``.
    cval : number
        For the mode ``constant``.
    origin : int, or one for each of ``axes``
        Moves the window to the left; to the right, if negative.
    axes : int or sequence of int, optional
        The axes to filter along: ``(0, 1)`` for a picture with channels last, ``(-2, -1)`` for a batch of planes.  All
        by default.
    accuracy : str, optional
        ``fast`` or ``strict``: whether float32 may be summed in float32, or is summed in float64 as all else.
    threads : int, optional
        Most threads.

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
    Results are those of ``scipy.ndimage.correlate``.  Sums are formed in float64, one tap after the other, and cut
    towards zero for an integer type; one that is too large for it keeps its lowest bits.  With accuracy ``fast``,
    float32 results of float32 or of integers of up to 16 bits differ by rounding, at most
    ``(taps + 2) 2^-23 sum|weights||input|``; large windows of them are summed by Fourier transforms.

    Examples
    --------
    >>> import numpy as np
    >>> from polyconv import ndimage
    >>> ndimage.correlate(np.arange(4.0), [1.0, 0.0, -1.0])
    array([-1., -2., -2., -1.])
    """
    return apply(_window, input, output, cval, accuracy, threads, weights, mode, origin, axes, False)


def convolve(input: ArrayLike, weights: ArrayLike, output: Any = None, mode: str | Sequence[str] = "reflect",
             cval: complex = 0.0, origin: Ints = 0, *, axes: Ints | None = None,
             accuracy: str | None = None, threads: int | None = None) -> Any:  # fmt: skip
    """Convolve an array of any rank with weights: ``correlate`` with the weights reversed along every axis.

    Parameters are those of ``correlate``; results are those of ``scipy.ndimage.convolve``.

    Examples
    --------
    >>> import numpy as np
    >>> from polyconv import ndimage
    >>> picture = np.eye(4, dtype=np.uint8)
    >>> ndimage.convolve(picture, [[1, 2], [3, 4]], mode="constant")
    array([[5, 2, 0, 0],
           [3, 5, 2, 0],
           [0, 3, 5, 2],
           [0, 0, 3, 4]], dtype=uint8)
    """
    return apply(_window, input, output, cval, accuracy, threads, weights, mode, origin, axes, True)


def correlate1d(input: ArrayLike, weights: ArrayLike, axis: int = -1, output: Any = None, mode: str = "reflect",
                cval: complex = 0.0, origin: int = 0, *, accuracy: str | None = None,
                threads: int | None = None) -> Any:  # fmt: skip
    """Correlate the lines of an array along one axis with weights.

    Parameters
    ----------
    weights : array_like, one axis
    axis : int
    others
        As for ``correlate``.

    Notes
    -----
    Results are those of ``scipy.ndimage.correlate1d``: where the halves of an odd number of weights are equal, or
    opposite, it adds, or subtracts, pairs of elements before it multiplies.

    Examples
    --------
    >>> from polyconv import ndimage
    >>> ndimage.correlate1d([2, 8, 0, 4, 1, 9, 9, 0], [1, 3])
    array([ 8, 26,  8, 12,  7, 28, 36,  9])
    """
    return apply(_line, input, output, cval, accuracy, threads, weights, axis, mode, origin, False)


def convolve1d(input: ArrayLike, weights: ArrayLike, axis: int = -1, output: Any = None, mode: str = "reflect",
               cval: complex = 0.0, origin: int = 0, *, accuracy: str | None = None,
               threads: int | None = None) -> Any:  # fmt: skip
    """Convolve the lines of an array along one axis with weights: ``correlate1d`` with the weights reversed.

    Parameters are those of ``correlate1d``; results are those of ``scipy.ndimage.convolve1d``.

    Examples
    --------
    >>> from polyconv import ndimage
    >>> ndimage.convolve1d([2, 8, 0, 4, 1, 9, 9, 0], [1, 3])
    array([14, 24,  4, 13, 12, 36, 27,  0])
    """
    return apply(_line, input, output, cval, accuracy, threads, weights, axis, mode, origin, True)


def _window(rank: int, weights: ArrayLike, mode: str | Sequence[str], origin: Ints, axes: Ints | None,
            is_convolution: bool) -> list[Pass]:  # fmt: skip
    w = weights_of(weights)
    along = axes_of(axes, rank)
    if w.ndim != len(along):
        raise ArgumentError(
            f"weights have shape {w.shape}, which is {w.ndim} axes, but {len(along)} of the input's {rank} axes are "
            f"filtered; name {w.ndim} with axes=, as in axes=(0, 1) for a picture with channels last"
        )
    origins, modes = one_each(origin, along, "origin", integer), one_each(mode, along, "mode", check_mode)
    if len(along) < rank:  # like SciPy: weights lie along ascending axes, the others as they are named
        order = sorted(range(len(along)), key=lambda place: along[place])
        origins, modes = tuple(origins[place] for place in order), tuple(modes[place] for place in order)
    return [_sum(Pass("window", tuple(sorted(along)), w, origins, modes), is_convolution)]


def _line(rank: int, weights: ArrayLike, axis: int, mode: str, origin: int, is_convolution: bool) -> list[Pass]:
    w = weights_of(weights, ndim=1)
    one = Pass("line", (axis_of(axis, rank),), w, (integer(origin, "origin"),), (check_mode(mode, "mode"),))
    return [_sum(one, is_convolution)]


def _sum(one: Pass, is_convolution: bool) -> Pass:
    """The pass of a correlation, whose weights are conjugate, or of a convolution, whose weights are reversed."""
    one = one.reversed() if is_convolution else one.conjugate()
    for origin, size in zip(one.origins, one.weights.shape, strict=True):
        fitting_origin(origin, size)
    return one
