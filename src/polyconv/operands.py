"""Operands of a call, checked against the problem before the first store.

Nothing is copied but lists and byte-swapped elements.  Each function looks at one operand, and ``check_apart`` at what
the result shares with the others.  It must not know how anything is computed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyconv.dtypes import Dtype, of_array
from polyconv.errors import ArgumentError, DtypeError
from polyconv.lowering.program import Operand
from polyconv.problem.problem import Problem
from polyconv.problem.quantisation import Quantisation
from polyconv.runtime.arrays import mark, overlap, place, reach
from polyconv.runtime.guests import as_array, is_plain
from polyconv.runtime.memory import allocating, native_order, sized

__all__ = [
    "Lying", "check_apart", "check_weights", "check_writable", "deformation", "extents_of",
    "fused", "narrow_and_light", "operand", "outputs_first", "packed", "result_of", "span", "strides",
]  # fmt: skip

Array = NDArray[Any]

Lying = tuple[Operand, Operand, Operand | None]
"""How input, result and residual lie."""


def span(a: Array) -> tuple[int, int]:
    where = place(a)
    return where.address, where.size


def strides(a: Array, p: Problem) -> Operand:
    """Strides as kernels are told; an axis of extent 1, whose own may be anything, gets that of a packed array."""
    told = list(a.strides)
    packed = a.itemsize
    for axis in range(a.ndim - 1, -1, -1):
        if a.shape[axis] == 1:
            told[axis] = packed
        packed = told[axis] * a.shape[axis]
    n, *rest = told
    c, spatial = (rest[-1], rest[:-1]) if p.layout == "NHWC" else (rest[0], rest[1:])
    return Operand(n, c, tuple(spatial), reach(a)[1], a.itemsize)


def packed(p: Problem) -> Lying:
    """How packed arrays of a problem lie."""
    x, y = (
        strides(np.empty([extent or 0 for extent in shape], dtype.numpy), p)
        for shape, dtype in ((p.x_shape, p.x_dtype), (p.y_shape, p.y_dtype))
    )
    return x, y, y if p.residual else None


def fused(p: Problem, lying: Lying) -> tuple[Problem, Lying]:
    """The problem without lone axes, and others as one where the kernel does nothing along them and they lie together.

    As ``Problem.fused``, but for axes that do not lie together in all operands.
    """
    lone = p.lone_taps()
    if any(tap is not None for tap in lone):
        some = [a for a, tap in enumerate(lone) if tap is None] or [p.rank - 1]
        p, lying = p.without_lone_axes(), _with_axes(lying, some)
    runs = p.plain_runs()
    axes = [a for first, end in runs for a in range(first + 1, end)]
    if any(o.spatial[a - 1] != o.spatial[a] * (p.i[a] or 0) for o in lying if o for a in axes):
        return p, lying
    lying = _with_axes(lying, [end - 1 for _, end in runs])
    found = p.with_runs_joined()
    is_one = found.has_images_of_pixels() and all(o.n == o.spatial[0] * (found.i[0] or 0) for o in lying if o)
    return found.images_as_pixels() if is_one else found, lying


def _with_axes(lying: Lying, axes: Sequence[int]) -> Lying:
    """How arrays lie that are looked at along some of their spatial axes alone."""
    x, y, residual = lying
    return x.along(axes), y.along(axes), None if residual is None else residual.along(axes)


def operand(value: ArrayLike, name: str, dtype: Dtype, shape: tuple[int | None, ...]) -> Array:
    """An array of a type and shape, in native byte order."""
    a = as_array(value, name, dtype.numpy)
    given = of_array(a.dtype, name)
    if given is not dtype:
        raise DtypeError(f"{name} has type {given.name} where {dtype.name} is needed; convert it with {name}.astype")
    if a.shape != shape:
        raise ArgumentError(f"{name} has shape {a.shape}, this convolution needs {shape}")
    return native_order(a, name)


def narrow_and_light(p: Problem, w: Array | None = None, zx: Any = None, zw: Any = None) -> tuple[bool, bool]:
    """What ``Situation`` says of weights of 8 bits; of weights or zero points not known yet the best is taken."""
    if p.w_dtype.bits != 8:
        return False, False
    if p.overflow == "wrap" and p.y_dtype.bits == 8 and p.quantisation is None and p.activation is None:
        return True, True  # modulo 2^8 all weights are numbers of i8, and what sums lose above does not count
    q = p.quantisation or Quantisation()
    known_x, known_w = (
        0 if given is None else given if not isinstance(given, str) else at_run_time
        for given, at_run_time in ((q.zx, zx), (q.zw, zw))
    )
    if known_w is None:
        return True, True
    zero = np.asarray(known_w).astype(np.int16).reshape(-1)
    if w is None:
        least, most = p.w_dtype.limits
        return bool(least - zero[0] >= -128 and most - zero[0] <= 127), True
    if w.size == 0:
        return True, True
    if p.w == "i8" and not zero.any():
        narrow = True
    else:
        by_output, axes = (outputs_first(p, w), tuple(range(1, w.ndim))) if zero.size > 1 else (w, None)
        low, high = (end.astype(np.int16) - zero for end in (by_output.min(axes), by_output.max(axes)))
        narrow = bool((low >= -128).all() and (high <= 127).all())
    return narrow, narrow and _heaviest(p, w, zero) * _farthest(p, known_x) < _LIGHT


_LIGHT = 1 << 25


def outputs_first(p: Problem, w: Array) -> Array:
    """Weights as (m, c / groups, ...): those of a transposed convolution are (c, m / groups, ...)."""
    if p.op != "conv_transpose":
        return w
    by_group = w.reshape(p.groups, p.c // p.groups, p.m // p.groups, *p.k)
    return by_group.swapaxes(1, 2).reshape(p.m, p.c // p.groups, *p.k)


def _farthest(p: Problem, zx: Any) -> int:
    """The farthest that an input is from its zero point; of one that is not known yet, from the best."""
    least, most = p.x_dtype.limits
    at = (least + most + 1) // 2 if zx is None else int(np.asarray(zx).reshape(-1)[0])
    return max(most - at, at - least)


def _heaviest(p: Problem, w: Array, zero: Array) -> int:
    """The largest sum of sizes of the weights of an output channel, or a number that is not smaller and light."""
    products = p.c // p.groups * math.prod(p.k)
    if products * 128 * 255 < _LIGHT:
        return products * 128
    rows, zeros = outputs_first(p, w).reshape(p.m, -1), np.broadcast_to(zero, (p.m,)).reshape(-1, 1)
    some = max(1, _AT_ONCE // max(1, rows.shape[1]))  # not the whole: as numbers of 16 bits it is far larger
    parts = (np.abs(rows[at : at + some] - zeros[at : at + some]) for at in range(0, p.m, some))
    return max((int(part.sum(axis=1, dtype=np.int64).max(initial=0)) for part in parts), default=0)


_AT_ONCE = 1 << 18
"""Weights whose sizes are found together."""


def check_weights(p: Problem, w: Array, bias: Array | None) -> None:
    if of_array(w.dtype, "w") is not p.w_dtype:
        raise DtypeError(f"w has type {w.dtype}, the problem needs {p.w}")
    if w.shape != p.w_shape:
        raise ArgumentError(f"w has shape {w.shape}, the problem needs {p.w_shape}")
    if (bias is not None) != p.bias:
        raise ArgumentError(f"the problem has bias={p.bias}, but b is {'missing' if bias is None else 'given'}")
    if bias is not None and of_array(bias.dtype, "b").is_float != p.y_dtype.is_float:
        raise DtypeError(f"b has type {bias.dtype}, the result {p.y}; one is of floats, the other of integers")
    if bias is not None and bias.shape != (p.m,):
        raise ArgumentError(f"b has shape {bias.shape}, the {p.m} output channels need ({p.m},)")


def deformation(p: Problem, offset: Any, mask: Any) -> tuple[Array | None, Array | None]:
    if p.op != "deform_conv":
        return None, None
    if offset is None:
        raise ArgumentError("a deformable convolution needs offset")
    offset = operand(offset, "offset", p.x_dtype, p.offset_shape)
    if p.mask != (mask is not None):
        raise ArgumentError(f"the problem has mask={p.mask}, but mask is {'given' if mask is not None else 'missing'}")
    if mask is not None:
        mask = operand(mask, "mask", p.x_dtype, p.mask_shape)
    return offset, mask


_SMALLER = "compute parts of the batch or the image, or give an out= of your own, such as a numpy.memmap"


def result_of(p: Problem, out: Any) -> tuple[Any, Array]:
    """What the call returns, and the array to write."""
    shape = tuple(int(e or 0) for e in p.y_shape)
    if out is None:
        with allocating(lambda: sized("the result", shape, p.y_dtype.numpy), _SMALLER):
            fresh = mark(np.empty(shape, p.y_dtype.numpy))
        return fresh, fresh
    array = as_array(out, "out")
    if array is not out and (is_plain(out) or place(array) != place(as_array(out, "out"))):
        raise ArgumentError(f"out is of type {type(out).__name__}, whose memory cannot be written; pass an array")
    if array.dtype != p.y_dtype.numpy:
        raise DtypeError(
            f"out has type {array.dtype} where the result is {p.y_dtype.numpy}; pass an array of that type"
        )
    check_writable(array, "out", shape)
    return out, array


def check_writable(array: Array, name: str, shape: tuple[int, ...]) -> None:
    """Raise if a result of a shape cannot be written into an array."""
    if array.shape != shape:
        raise ArgumentError(f"{name} has shape {array.shape}, the result has {shape}; pass an array of that shape")
    if not array.flags.writeable:
        raise ArgumentError(f"{name} is read-only; pass a writable array")
    if _overlaps_itself(array):
        raise ArgumentError(
            f"{name} has strides {array.strides} for shape {shape}: elements overlap each other; pass a plain array"
        )


def _overlaps_itself(a: Array) -> bool:
    """Whether two elements may share memory: sorted by stride, each axis must step over the ones inside."""
    if a.size <= 1:
        return False
    span = a.itemsize
    for stride, extent in sorted((abs(s), e) for s, e in zip(a.strides, a.shape, strict=True) if e > 1):
        if stride < span:
            return True
        span = stride * (extent - 1) + span
    return False


def check_apart(result: Array, **operands: Array | None) -> None:
    """Refuse a result that overlaps an operand in memory; exactly the residual's it may be.

    Raises
    ------
    ArgumentError
        Naming the operand.
    """
    at = place(result)
    for name, other in operands.items():
        if other is None or not overlap(place(other), at):
            continue
        if name == "residual" and _same_memory(other, result):
            continue
        raise ArgumentError(
            f"out overlaps {name} in memory; pass an array of its own"
            + (" (or exactly the residual's memory)" if name == "residual" else "")
        )


def _same_memory(a: Array, b: Array) -> bool:
    return (
        a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
        and a.strides == b.strides
        and a.shape == b.shape
    )


def extents_of(shape: Any) -> tuple[int, ...]:
    """A shape given by a caller, its extents as int: 8.0 would be found for 8 in tables, and 8 for 8.0."""
    try:
        found = tuple(operator.index(e) for e in shape)
    except TypeError:
        raise ArgumentError(f"shape={shape!r} must be a list of whole numbers, that of an input x") from None
    if any(e < 0 for e in found):
        raise ArgumentError(f"shape={shape!r} has a negative extent; give the shape of an input x")
    return found
