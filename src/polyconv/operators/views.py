"""Operators that only look at their input in another way, and those that compute extents: lines of NumPy.

The one idea: what NumPy does as a view needs no kernel, nor do the few integers that say how.  ONNX's own rule counts
where the two differ.  A reshape of what does not lie together is a copy.  It must not know kernels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError
from polyconv.operators.job import Array, Operation
from polyconv.operators.lying import reshaped

__all__ = ["OPERATORS", "Dims", "Look", "View", "maker", "view"]

M = TypeVar("M")

Dims = tuple[int | None, ...]
Look = Callable[[Sequence[Array | None]], Sequence[Array]]
"""All inputs of an operator by position, None where left out, to its outputs, which may lie in their memory."""


@dataclass(frozen=True, slots=True)
class View:
    """An operator that only looks at its first input in another way, or counts.

    Parameters
    ----------
    look : callable
    dtypes : tuple of str
        Of each output, or one of all; empty where unknown.
    counts : bool
        Whether its outputs are other numbers than those of its first input, or as many as some number says.
    dims : tuple or None
        Extents of the outputs of one that counts, as far as they are known; those of others are seen by looking.
    """

    look: Look
    dtypes: tuple[str, ...]
    counts: bool = False
    dims: Dims | None = None


def view(operation: Operation) -> View | str:
    """An operation as a view, or why not."""
    make = maker(_TABLE, operation)
    if isinstance(make, str):
        return make
    first = operation.inputs[0] if operation.inputs else None
    if first is None:
        return "it has no input"
    made = make(operation)
    return made if isinstance(made, str) else View(made, ("int64" if operation.op == "Shape" else first.dtype,))


def maker(table: Mapping[str, tuple[Sequence[str], M]], operation: Operation) -> M | str:
    """What makes an operation, by a table of the attributes that operators may have and of makers; or why not."""
    allowed, make = table[operation.op]
    return "it has attributes that are not done here" if set(operation.attributes).difference(allowed) else make


def _given(inputs: Sequence[Array | None], at: int) -> Array | None:
    return inputs[at] if at < len(inputs) else None


def _list(inputs: Sequence[Array | None], at: int, attribute: Any) -> list[int] | None:
    """Numbers of an input, or of an attribute in older opsets; None where neither is there."""
    given = _given(inputs, at)
    if given is not None:
        return [int(v) for v in np.asarray(given).reshape(-1)]
    return None if attribute is None else [int(v) for v in attribute]


def _first(inputs: Sequence[Array | None]) -> Array:
    assert inputs[0] is not None
    return inputs[0]


def _one(look: Callable[[Operation, Sequence[Array | None]], Array]) -> Callable[[Operation], Look | str]:
    return lambda operation: lambda inputs: [look(operation, inputs)]


def _reshaped(operation: Operation, inputs: Sequence[Array | None]) -> Array:
    """Reshape: 0 keeps an extent, unless ``allowzero``; -1 is what is left."""
    x, asked = _first(inputs), _list(inputs, 1, operation.attributes.get("shape")) or []
    if not operation.attributes.get("allowzero", 0):
        if any(e == 0 and at >= x.ndim for at, e in enumerate(asked)):
            raise ArgumentError(f"the shape {asked} keeps an extent that the input of shape {x.shape} does not have")
        asked = [x.shape[at] if e == 0 else e for at, e in enumerate(asked)]
    known = math.prod(e for e in asked if e != -1)
    if asked.count(-1) > 1 or min(asked, default=0) < -1 or (known == 0 and -1 in asked and x.size):
        raise ArgumentError(f"the input of shape {x.shape} cannot be reshaped to {asked}")
    asked = [(x.size // known if known else 0) if e == -1 else e for e in asked]
    if math.prod(asked) != x.size:
        raise ArgumentError(f"the input of shape {x.shape} cannot be reshaped to {asked}")
    return reshaped(x, asked)


def _flattened(operation: Operation, inputs: Sequence[Array | None]) -> Array:
    x, axis = _first(inputs), operation.attributes.get("axis", 1)
    at = axis if axis >= 0 else axis + x.ndim
    if not 0 <= at <= x.ndim:
        raise ArgumentError(f"axis={axis} lies outside the input of shape {x.shape}")
    return reshaped(x, (math.prod(x.shape[:at]), math.prod(x.shape[at:])))


def _squeezed(operation: Operation, inputs: Sequence[Array | None]) -> Array:
    axes = _list(inputs, 1, operation.attributes.get("axes"))
    return _first(inputs).squeeze(None if axes is None else tuple(axes))


def _unsqueezed(operation: Operation, inputs: Sequence[Array | None]) -> Array:
    return np.expand_dims(_first(inputs), tuple(_list(inputs, 1, operation.attributes.get("axes")) or ()))


def _sliced(operation: Operation, inputs: Sequence[Array | None]) -> Array:
    """Slice: Python's own rule for starts, ends and steps, for the axes that are named.

    Translations alone know ``taken``, axes of one element that go then, and ``new``, axes of the result that are added.
    """
    x, a = _first(inputs), operation.attributes
    starts, ends = _list(inputs, 1, a.get("starts")), _list(inputs, 2, a.get("ends"))
    if starts is None or ends is None or len(starts) != len(ends):
        raise ArgumentError(f"starts={starts} and ends={ends} must be lists of one length")
    axes = _list(inputs, 3, a.get("axes"))
    axes = list(range(len(starts))) if axes is None else axes
    steps = _list(inputs, 4, a.get("steps")) or [1] * len(starts)
    cuts = [slice(None)] * x.ndim
    if not len(starts) == len(axes) == len(steps) or any(not -x.ndim <= axis < x.ndim for axis in axes) or 0 in steps:
        raise ArgumentError(f"axes={axes} and steps={steps} do not fit starts={starts} of an input of shape {x.shape}")
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        cuts[axis] = slice(*_indices(start, end, step, x.shape[axis]))
    found: Array = x[tuple(cuts)]
    for axis in a.get("taken", ()):
        if found.shape[axis] != 1:
            raise ArgumentError(f"axis {axis} of the input of shape {x.shape} has no element {cuts[axis].start}")
    found = found.squeeze(tuple(a["taken"])) if a.get("taken") else found
    return np.expand_dims(found, tuple(a["new"])) if a.get("new") else found


def _indices(start: int, end: int, step: int, extent: int) -> tuple[int, int | None, int]:
    """A slice as Python takes it, whose end before the first element is None."""
    begin, stop, step = slice(start, end, step).indices(extent)
    return begin, None if stop < 0 else stop, step


def _split(operation: Operation) -> Look | str:
    """Split: parts by sizes, or so many near-equal ones, the last of which may be smaller."""
    if operation.version < 2:
        return "sizes were an input before opset 2"

    def look(inputs: Sequence[Array | None]) -> Sequence[Array]:
        x, axis = _first(inputs), operation.attributes.get("axis", 0)
        if not -x.ndim <= axis < x.ndim:
            raise ArgumentError(f"axis={axis} lies outside the input of shape {x.shape}")
        extent, count = x.shape[axis], operation.outputs
        sizes = _list(inputs, 1, operation.attributes.get("split"))
        if sizes is None:
            part = -(-extent // count)
            sizes = [max(0, min(part, extent - part * at)) for at in range(count)]
        if len(sizes) != count or sum(sizes) != extent or min(sizes) < 0:
            raise ArgumentError(f"split={sizes} does not fit {count} outputs of an extent of {extent}")
        ends = list(itertools.accumulate(sizes))
        at = axis % x.ndim
        return [x[(slice(None),) * at + (slice(e - s, e),)] for s, e in zip(sizes, ends, strict=True)]

    return look


def _gathered(steps: Sequence[int] | None, operation: Operation, inputs: Sequence[Array | None]) -> Array:
    """Gather: one element along an axis is a view, and so are windows of it, as where indices grow by equal steps.

    ``steps`` are those by which the indices grow along each of their axes; None where they do not, or come with a run:
    then several are a copy.
    """
    x, axis, indices = _first(inputs), operation.attributes.get("axis", 0), _given(inputs, 1)
    if indices is None or not -x.ndim <= axis < x.ndim:
        raise ArgumentError(f"axis={axis} lies outside the input of shape {x.shape}")
    extent, axis = x.shape[axis], axis % x.ndim
    if indices.size and not -extent <= indices.min() <= indices.max() < extent:
        raise ArgumentError(
            f"elements {indices.min()} to {indices.max()} of axis {axis} lie outside the input of shape {x.shape}"
        )
    before = (slice(None),) * axis
    if not indices.ndim:
        return np.asarray(x[(*before, int(indices), ...)])
    if steps is None or not indices.size or (indices.min() < 0 <= indices.max()):
        return np.take(x, indices, axis)
    first = x[(*before, slice(int(indices.flat[0]) % extent, None))]
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    strides = (*x.strides[:axis], *(step * x.strides[axis] for step in steps), *x.strides[axis + 1 :])
    return np.lib.stride_tricks.as_strided(first, shape, strides, writeable=False)


def _gather(operation: Operation) -> Look | str:
    indices = operation.inputs[1] if len(operation.inputs) > 1 else None
    if operation.on_gpu and indices is not None and indices.dims != ():
        return "several elements are no view"
    held = None if indices is None or indices.value is None else indices.value
    return _one(partial(_gathered, None if held is None or not held.size else _steps(held)))(operation)


def _steps(indices: Array) -> tuple[int, ...] | None:
    """The steps by which whole numbers grow along each of their axes; None where they do not by equal ones."""
    first, expected, steps = (0,) * indices.ndim, indices[(slice(1),) * indices.ndim], list[int]()
    for axis, extent in enumerate(indices.shape):
        beside = indices[(*first[:axis], 1, *first[axis + 1 :])] if extent > 1 else indices[first]
        steps.append(int(beside) - int(indices[first]))
        along = np.arange(extent, dtype=indices.dtype) * steps[-1]
        expected = expected + along.reshape(-1, *(1,) * (indices.ndim - 1 - axis))
    return tuple(steps) if (indices == expected).all() else None


def _expanded(operation: Operation, inputs: Sequence[Array | None]) -> Array:
    """Expand: the input is repeated along axes of one element, which takes no memory."""
    x, asked = _first(inputs), _list(inputs, 1, None)
    if asked is None:
        raise ArgumentError("it has no shape to expand to")
    try:
        return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(asked)))
    except ValueError:
        raise ArgumentError(f"the input of shape {x.shape} cannot be expanded to {asked}") from None


def _whole_quotient(operation: Operation) -> Look | str:
    """Div of integers, as shapes are computed: towards 0."""
    dtypes = {"f4" if x is None else x.dtype or "f4" for x in operation.inputs}
    if len(operation.inputs) != 2 or any(np.dtype(dtype).kind not in "iu" for dtype in dtypes):
        return "it is not done here for these types"

    def look(inputs: Sequence[Array | None]) -> Sequence[Array]:
        a, b = inputs
        assert a is not None and b is not None
        if not b.all():
            raise ArgumentError("integers are divided by 0")
        quotient = a // b
        return [np.asarray(quotient + (((a < 0) != (b < 0)) & (quotient * b != a)).astype(quotient.dtype))]

    return look


def _shape(operation: Operation, inputs: Sequence[Array | None]) -> Array:
    x, a = _first(inputs), operation.attributes
    return np.array(x.shape[slice(a.get("start"), a.get("end"))], np.int64)


_TABLE: Mapping[str, tuple[Sequence[str], Callable[[Operation], Look | str]]] = {
    "Identity": ((), _one(lambda operation, inputs: _first(inputs))),
    "Reshape": (("allowzero", "shape"), _one(_reshaped)),
    "Flatten": (("axis",), _one(_flattened)),
    "Squeeze": (("axes",), _one(_squeezed)),
    "Unsqueeze": (("axes",), _one(_unsqueezed)),
    "Expand": ((), _one(_expanded)),
    "Slice": (("axes", "starts", "ends", "steps", "taken", "new"), _one(_sliced)),
    "Split": (("axis", "split", "num_outputs"), _split),
    "Gather": (("axis",), _gather),
    "Div": ((), _whole_quotient),
    "Shape": (("start", "end"), _one(_shape)),
}
"""Operator -> the attributes that it may have, and what makes its view."""

OPERATORS = tuple(_TABLE)
"""Operators of this family."""
