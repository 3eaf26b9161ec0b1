"""A filter applied to arrays: its passes are made once for calls alike, and complex arrays go through part by part.

``apply`` is what every filter ends in.  It must not know which one asks, or how sums are formed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyconv.errors import ArgumentError
from polyconv.ndimage.arguments import field_of, result_for
from polyconv.ndimage.passes import Pass
from polyconv.ndimage.running import Run, filtered
from polyconv.runtime.arrays import may_overlap
from polyconv.settings import context as settings_context
from polyconv.settings import resolve

__all__ = ["apply", "run"]

Array = NDArray[Any]
Passes = Callable[..., Sequence[Pass]]

_MOST_KEPT, _MOST_WEIGHTS = 128, 16 << 10
"""Calls that are known by their arguments, and bytes of weights up to which a call is."""

_lock = threading.Lock()
_known: OrderedDict[Any, tuple[Any, Run]] = OrderedDict()
"""What a call ran, and the settings that it ran under, by all that it was given."""


def apply(passes: Passes, input: ArrayLike, output: Any, cval: complex, accuracy: str | None, threads: int | None,
          *arguments: Any) -> Any:  # fmt: skip
    """Filter an array; what the caller of the filter gets.

    Parameters
    ----------
    passes : callable
        ``passes(rank, *arguments)``: the passes of the filter over an array of that rank.
    """
    key = _key(passes, input, output, cval, accuracy, threads, arguments)
    known = None if key is None else _known.get(key)
    if known is not None and type(input) is np.ndarray and known[0] is settings_context():
        found = known[1](input, output if type(output) is np.ndarray else None)
        if found is not None:
            return found
    x = field_of(input)
    made = passes(x.ndim, *arguments)
    has_parts = any(one.weights.dtype.kind == "c" for one in made)
    result, y = result_for(x, output, is_complex=has_parts or x.dtype.kind == "c")
    if has_parts:
        _run_complex(x, y, made[0], cval, accuracy, threads)
        return result
    ran = run(x, y, made, cval, accuracy, threads)
    if key is not None and ran is not None and x is input:
        with _lock:
            _known[key] = settings_context(), ran
            while len(_known) > _MOST_KEPT:
                _known.popitem(last=False)
    return result


def _key(passes: Passes, input: Any, output: Any, cval: complex, accuracy: str | None, threads: int | None,
         arguments: tuple[Any, ...]) -> Any:  # fmt: skip
    """All that decides what a call runs; None if that is not told by looking."""
    if type(input) is not np.ndarray:
        return None
    parts: list[Any] = []
    for one in arguments:
        if type(one) is np.ndarray:
            if one.nbytes > _MOST_WEIGHTS:
                return None
            parts.append((one.shape, one.dtype, one.tobytes()))
        else:
            parts.append((type(one), one))
    to = (output.shape, output.strides, output.dtype) if type(output) is np.ndarray else (None, output)
    key = passes, input.shape, input.strides, input.dtype, to, cval, accuracy, threads, *parts
    try:
        hash(key)
    except TypeError:
        return None
    return key


def run(x: Array, y: Array, passes: Sequence[Pass], cval: complex, accuracy: str | None,
        threads: int | None) -> Run | None:  # fmt: skip
    """Write into ``y`` what passes with real weights make of ``x``, part by part if it is complex.

    Returns
    -------
    Run or None
        What ran, if that is all, so that it may run again for arrays alike.
    """
    strict, most = resolve("accuracy", accuracy) == "strict", resolve("threads", threads)
    if not y.dtype.isnative:
        native = np.empty(y.shape, y.dtype.newbyteorder("="))
        run(x, native, passes, cval, accuracy, threads)
        y[...] = native
        return None
    if x.dtype.kind == "c":
        filling = complex(_number(cval))
        filtered(x.real, y.real, passes, cval=filling.real, strict=strict, threads=most)
        filtered(x.imag, y.imag, passes, cval=filling.imag, strict=strict, threads=most)
        return None
    real = _number(cval)
    if isinstance(real, complex):
        raise ArgumentError(f"cval={cval!r} is complex, but the input is real; pass a real number")
    return filtered(x, y, passes, cval=real, strict=strict, threads=most)


def _run_complex(x: Array, y: Array, one: Pass, cval: complex, accuracy: str | None, threads: int | None) -> None:
    """Write into ``y`` what a pass with complex weights makes of ``x``."""
    if may_overlap(x, y):
        x = x.copy()
    real, imaginary = (replace(one, weights=np.ascontiguousarray(w)) for w in (one.weights.real, one.weights.imag))
    if x.dtype.kind != "c":
        run(x, y.real, [real], cval, accuracy, threads)
        run(x, y.imag, [imaginary], cval, accuracy, threads)
        return
    filling = complex(_number(cval))
    rest = np.empty(x.shape, x.real.dtype)
    for part, of_real, of_imaginary, add in (
        (y.real, real, imaginary, np.subtract),
        (y.imag, imaginary, real, np.add),
    ):
        run(x.real, part, [of_real], filling.real, accuracy, threads)
        run(x.imag, rest, [of_imaginary], filling.imag, accuracy, threads)
        add(part, rest, out=part)


def _number(cval: Any) -> Any:
    """A real or complex number."""
    try:
        return complex(cval) if np.iscomplexobj(cval) else float(cval)
    except (TypeError, ValueError):
        raise ArgumentError(f"cval={cval!r} must be a number") from None
