"""Derivatives: Sobel, Prewitt, Laplace, and those of Gaussians; ``scipy.ndimage``'s functions of these names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyconv.errors import ArgumentError
from polyconv.ndimage.applying import apply, run
from polyconv.ndimage.arguments import axes_of, axis_of, check_mode, field_of, number, one_each, result_for
from polyconv.ndimage.passes import Pass
from polyconv.ndimage.smoothing import gaussian_passes

__all__ = ["gaussian_gradient_magnitude", "gaussian_laplace", "laplace", "prewitt", "sobel"]

Array = NDArray[Any]
Ints = int | Sequence[int]
Floats = float | Sequence[float]
Modes = str | Sequence[str]


def sobel(input: ArrayLike, axis: int = -1, output: Any = None, mode: Modes = "reflect", cval: complex = 0.0, *,
          axes: Ints | None = None, accuracy: str | None = None, threads: int | None = None) -> Any:  # fmt: skip
    """Sobel's derivative along one axis: differences -1, 0, 1 along it, means 1, 2, 1 along the others.

    Parameters
    ----------
    axis : int
        Along which the differences are.
    mode : str, or one for each of ``axes``
        What lies beyond the border, as for ``correlate``.
    axes : int or sequence of int, optional
        The axes of the picture, ``axis`` among them: ``(0, 1)`` where channels lie last.  All by default.
    others
        As for ``gaussian_filter``.

    Notes
    -----
    Results are those of ``scipy.ndimage.sobel``, in the type of the result: a ``uint8`` wraps where a difference is
    negative, so ``output=numpy.int16`` suits a photograph.

    Examples
    --------
    >>> import numpy as np
    >>> from polyconv import ndimage
    >>> step = np.repeat([[0, 0, 100, 100]], 3, axis=0).astype(np.uint8)
    >>> ndimage.sobel(step, output=np.int16)[1]
    array([  0, 400, 400,   0], dtype=int16)
    """
    return apply(_differences, input, output, cval, accuracy, threads, axis, (1.0, 2.0, 1.0), mode, axes)


def prewitt(input: ArrayLike, axis: int = -1, output: Any = None, mode: Modes = "reflect", cval: complex = 0.0, *,
            axes: Ints | None = None, accuracy: str | None = None, threads: int | None = None) -> Any:  # fmt: skip
    """Prewitt's derivative along one axis: ``sobel`` with sums 1, 1, 1 along the other axes.

    Parameters are those of ``sobel``; results are those of ``scipy.ndimage.prewitt``.

    Examples
    --------
    >>> import numpy as np
    >>> from polyconv import ndimage
    >>> ndimage.prewitt(np.arange(12.0).reshape(3, 4), axis=0)[1]
    array([24., 24., 24., 24.])
    """
    return apply(_differences, input, output, cval, accuracy, threads, axis, (1.0, 1.0, 1.0), mode, axes)


def _differences(rank: int, axis: int, beside: Sequence[float], mode: Modes, axes: Ints | None) -> list[Pass]:
    along, first = axes_of(axes, rank), axis_of(axis, rank)
    if first not in along:
        raise ArgumentError(f"axis={axis} is none of axes={axes}; name the axis of the differences among them")
    modes = dict(zip(along, one_each(mode, along, "mode", check_mode), strict=True))
    return [_line(first, (-1.0, 0.0, 1.0), modes[first]), *(_line(a, beside, modes[a]) for a in along if a != first)]


def _line(axis: int, weights: Sequence[float], mode: str) -> Pass:
    return Pass("line", (axis,), np.array(weights), (0,), (mode,))


def laplace(input: ArrayLike, output: Any = None, mode: Modes = "reflect", cval: complex = 0.0, *,
            axes: Ints | None = None, accuracy: str | None = None, threads: int | None = None) -> Any:  # fmt: skip
    """Sum of the second differences 1, -2, 1 along all axes.

    Parameters are those of ``gaussian_filter``; results are those of ``scipy.ndimage.laplace``.

    Examples
    --------
    >>> import numpy as np
    >>> from polyconv import ndimage
    >>> ndimage.laplace(np.eye(3))
    array([[-2.,  2.,  0.],
           [ 2., -4.,  2.],
           [ 0.,  2., -2.]])
    """
    x = field_of(input)
    along = axes_of(axes, x.ndim)
    modes = one_each(mode, along, "mode", check_mode)
    terms = [[_line(axis, [1.0, -2.0, 1.0], m)] for axis, m in zip(along, modes, strict=True)]
    return _summed(x, terms, output, cval, accuracy, threads)


def gaussian_laplace(input: ArrayLike, sigma: Floats, output: Any = None, mode: Modes = "reflect",
                     cval: complex = 0.0, *, axes: Ints | None = None, truncate: float = 4.0,
                     radius: Ints | None = None, accuracy: str | None = None, threads: int | None = None
                     ) -> Any:  # fmt: skip
    """Laplace operator of the array smoothed with a Gaussian: sum of its second derivatives.

    Parameters are those of ``gaussian_filter``; results are those of ``scipy.ndimage.gaussian_laplace``.

    Examples
    --------
    >>> import numpy as np
    >>> from polyconv import ndimage
    >>> spot = np.zeros((7, 7))
    >>> spot[3, 3] = 1
    >>> bool(ndimage.gaussian_laplace(spot, 1)[3, 3] < 0)
    True
    """
    return _derivatives(input, sigma, 2, output, mode, cval, axes, truncate, radius, accuracy, threads, _summed)


def gaussian_gradient_magnitude(input: ArrayLike, sigma: Floats, output: Any = None, mode: Modes = "reflect",
                                cval: complex = 0.0, *, axes: Ints | None = None, truncate: float = 4.0,
                                radius: Ints | None = None, accuracy: str | None = None,
                                threads: int | None = None) -> Any:  # fmt: skip
    """Length of the gradient of the array smoothed with a Gaussian.

    Parameters are those of ``gaussian_filter``; results are those of ``scipy.ndimage.gaussian_gradient_magnitude``,
    whose squares have the type of the result: integers wrap, so ``output=numpy.float32`` suits a photograph.  With
    ``axes`` it smooths along these alone, where SciPy smooths along all.

    Examples
    --------
    >>> import numpy as np
    >>> from polyconv import ndimage
    >>> slope = np.tile(np.arange(32.0), (32, 1))
    >>> float(ndimage.gaussian_gradient_magnitude(slope, 1)[16, 16].round(3))
    1.0
    """
    return _derivatives(input, sigma, 1, output, mode, cval, axes, truncate, radius, accuracy, threads, _length)


Combined = Callable[[Array, Sequence[Sequence[Pass]], Any, complex, str | None, int | None], Any]


def _derivatives(input: ArrayLike, sigma: Floats, order: int, output: Any, mode: Modes, cval: complex,
                 axes: Ints | None, truncate: float, radius: Ints | None, accuracy: str | None, threads: int | None,
                 combined: Combined) -> Any:  # fmt: skip
    """What ``combined`` makes of the derivatives of a Gaussian along every axis."""
    x = field_of(input)
    along = axes_of(axes, x.ndim)
    sigmas, modes = one_each(sigma, along, "sigma", number), one_each(mode, along, "mode", check_mode)
    terms = [  # SciPy smooths along all axes with the mode of the one that it differentiates along
        gaussian_passes(along, sigmas, [order * (a == axis) for a in along], m, truncate, radius)
        for axis, m in zip(along, modes, strict=True)
    ]
    return combined(x, terms, output, cval, accuracy, threads)


def _summed(x: Array, terms: Sequence[Sequence[Pass]], output: Any, cval: complex, accuracy: str | None,
            threads: int | None) -> Any:  # fmt: skip
    """The sum of what some passes make of an array, formed in the type of the result."""
    result, y = result_for(x, output, is_complex=x.dtype.kind == "c")
    x = x.copy() if np.may_share_memory(x, y) else x
    run(x, y, terms[0] if terms else [], cval, accuracy, threads)
    for term in terms[1:]:
        np.add(y, _term(x, y, term, cval, accuracy, threads), out=y)
    return result


def _length(x: Array, terms: Sequence[Sequence[Pass]], output: Any, cval: complex, accuracy: str | None,
            threads: int | None) -> Any:  # fmt: skip
    """The root of the sum of squares of what some passes make of an array, formed in the type of the result."""
    result, y = result_for(x, output, is_complex=x.dtype.kind == "c")
    x = x.copy() if np.may_share_memory(x, y) else x
    run(x, y, terms[0] if terms else [], cval, accuracy, threads)
    if terms:
        np.multiply(y, y, out=y)
        for term in terms[1:]:
            square = _term(x, y, term, cval, accuracy, threads)
            np.add(y, np.multiply(square, square, out=square), out=y)
        _root(y)
    return result


def _root(y: Array) -> None:
    """Square roots in place, of bytes by a table: NumPy forms theirs in float16, which is slow."""
    if y.dtype.itemsize == 1:
        every = np.arange(256, dtype=np.uint8).view(y.dtype)
        with np.errstate(invalid="ignore"):
            np.take(np.sqrt(every).astype(y.dtype), y.view(np.uint8), out=y, mode="wrap")
    else:
        np.sqrt(y, out=y, casting="unsafe")


def _term(x: Array, y: Array, passes: Sequence[Pass], cval: complex, accuracy: str | None,
          threads: int | None) -> Array:  # fmt: skip
    found = np.empty(y.shape, y.dtype)
    run(x, found, passes, cval, accuracy, threads)
    return found
