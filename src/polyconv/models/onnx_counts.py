"""Integers of which only some are known before a run, as models compute shapes to reshape to: ``[n, 120, -1]``.

The one idea: extents are numbers or symbols, and moving them about keeps both; what is computed with a symbol is not
known.  It must not know what is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from polyconv.models.graph import Array, Dims, Node, Value

__all__ = ["reshaped"]

Counts = tuple[int | str | None, ...]
"""A list of integers: numbers, symbols of extents, or None where nothing is known."""

_MOST = 64


def reshaped(nodes: Sequence[Node], values: Mapping[str, Value], constants: Mapping[str, Array]) -> dict[str, Value]:
    """What Reshape nodes make whose shapes are known in part, where ``values`` do not say it yet.

    Parameters
    ----------
    nodes : sequence of Node
        In running order.
    values : mapping
        What is known of values; extents with one symbol are equal.
    constants : mapping
        Values that are the same in every run.
    """
    counts: dict[str, Counts] = {}
    found: dict[str, Value] = {}

    def of(name: str) -> Counts | None:
        array = constants.get(name)
        if array is not None and array.dtype.kind in "iu" and array.ndim < 2 and array.size <= _MOST:
            return tuple(array.reshape(-1).tolist())
        dims = values.get(name, Value(name)).dims  # of a list, its length may be all that is known
        length = dims[0] if dims is not None and len(dims) == 1 else None
        return counts.get(name, (None,) * length if isinstance(length, int) and length <= _MOST else None)

    for node in nodes:
        if node.domain or not node.inputs:
            continue
        first = values.get(node.inputs[0], Value(""))
        if node.op == "Reshape":
            before = values.get(node.outputs[0])
            shape = of(node.inputs[1]) if len(node.inputs) > 1 else None
            if shape is not None and first.type and (before is None or before.dims is None):
                dims = _dims(first.dims, shape, keeps_zero=bool(node.attributes.get("allowzero", 0)))
                found[node.outputs[0]] = Value(node.outputs[0], first.type, dims)
        if node.op == "Shape":
            if first.dims is not None:
                counts[node.outputs[0]] = first.dims[node.attributes.get("start", 0) : node.attributes.get("end")]
        elif node.op in _COUNTED:
            given = [of(name) for name in node.inputs]
            known = [g for g in given if g is not None]
            made = _COUNTED[node.op](node, known) if len(known) == len(given) else None
            if made is not None:
                counts[node.outputs[0]] = made
    return found


def _dims(x: Dims | None, shape: Counts, *, keeps_zero: bool) -> Dims:
    """Extents of a tensor that is reshaped."""
    dims = list(shape)
    for at, extent in enumerate(dims):
        if extent == 0 and not keeps_zero:
            dims[at] = x[at] if x is not None and at < len(x) else None
    if dims.count(-1) == 1:
        at = dims.index(-1)
        dims[at] = _rest(x, [extent for extent in dims if extent != -1])
    return tuple(None if extent == -1 else extent for extent in dims)


def _rest(x: Dims | None, others: Sequence[int | str | None]) -> int | str | None:
    """The extent that is left of a tensor's elements beside others; a symbol where nothing else is left."""
    if x is None or None in x or None in others:
        return None
    left = [extent for extent in x if isinstance(extent, str)]
    for extent in others:
        if isinstance(extent, str):
            if extent not in left:
                return None
            left.remove(extent)
    above, below = (math.prod(e for e in each if isinstance(e, int)) for each in (x, others))
    if not below or above % below:
        return None
    return above // below if not left else left[0] if len(left) == 1 and above == below else None


def _joined(node: Node, given: list[Counts]) -> Counts | None:
    return tuple(extent for each in given for extent in each)


def _gathered(node: Node, given: list[Counts]) -> Counts | None:
    data, indices = given
    numbers = [i for i in indices if isinstance(i, int) and -len(data) <= i < len(data)]
    return tuple(data[i] for i in numbers) if len(numbers) == len(indices) and not node.attributes.get("axis") else None


def _sliced(node: Node, given: list[Counts]) -> Counts | None:
    data, *cuts = given
    numbers = [cut[0] for cut in cuts if len(cut) == 1 and isinstance(cut[0], int)]
    if len(numbers) != len(cuts) or not 2 <= len(cuts) <= 4:
        return None
    start, end, axis, step = (numbers + [0, 1][len(cuts) - 2 :])[:4]
    return data[slice(start, end, step)] if axis in (0, -1) and step else None


def _computed(function: Callable[[int, int], int]) -> Callable[[Node, list[Counts]], Counts | None]:
    def made(node: Node, given: list[Counts]) -> Counts | None:
        a, b = given
        count = max(len(a), len(b))
        if {len(a), len(b)} - {1, count}:
            return None
        pairs = zip(a * (count // len(a)), b * (count // len(b)), strict=True) if a and b else []
        return tuple(function(p, q) if isinstance(p, int) and isinstance(q, int) else None for p, q in pairs)

    return made


_COUNTED: Mapping[str, Callable[[Node, list[Counts]], Counts | None]] = {
    **dict.fromkeys(("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"), lambda node, given: given[0]),
    "Concat": _joined,
    "Gather": _gathered,
    "Slice": _sliced,
    "Add": _computed(lambda p, q: p + q),
    "Sub": _computed(lambda p, q: p - q),
    "Mul": _computed(lambda p, q: p * q),
}
"""Operators on counts."""
