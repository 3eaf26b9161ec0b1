"""Arithmetic on a few numbers, as exporters write it round shapes: done here, so that no engine is started.

Of halves of channels, for example, models say ``Shape -> Gather -> Add 1 -> Div 2``; of the scale of attention,
``Shape -> Slice -> Cast -> Sqrt``.  The one idea: whatever is not plainly a few numbers, and valid, is left to the
host, which says what is wrong.  It must not know what is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from polyconv.models.elements import BY_ONNX
from polyconv.models.graph import Array, Node

__all__ = ["are_few", "onnx_extents"]

_MOST = 64
"""Numbers of an input."""
_ROUND = 2**53
"""Below which every whole number is one of all types that are counted in."""
_LEAST_OPSET = 7
"""From which shapes are matched as NumPy matches them."""


def _gathered(node: Node, inputs: Sequence[Array]) -> Array:
    data, indices = inputs
    return np.take(data, indices, node.attributes.get("axis", 0), mode="raise")


def _divided(node: Node, inputs: Sequence[Array]) -> Array:
    """Quotients; those of integers without their fraction: -7 / 2 is -3."""
    a, b = inputs
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    if not b.all() or (b == -1).any():  # the least number over -1 is no number of its type
        raise ValueError
    below = (a % b != 0) & ((a < 0) != (b < 0))
    return np.asarray(a // b + below, a.dtype)


def _cast(node: Node, inputs: Sequence[Array]) -> Array:
    row = BY_ONNX[node.attributes["to"]]
    made = inputs[0].astype(row.numpy)
    is_kept = made.dtype.kind in "iu" and (np.abs(inputs[0]) < _ROUND).all() and not (made != inputs[0]).any()
    if not is_kept and made.dtype not in _REAL:
        raise ValueError
    return made


def _expanded(node: Node, inputs: Sequence[Array]) -> Array:
    data, extents = inputs
    shape = np.broadcast_shapes(data.shape, tuple(extents.tolist()))
    if math.prod(shape) > _MOST:
        raise ValueError
    return np.broadcast_to(data, shape)


def _remainder(node: Node, inputs: Sequence[Array]) -> Array:
    """What is left of a quotient that is rounded down, with the sign of the divisor; by ``fmod`` it has the other."""
    a, b = inputs
    if not b.all() or node.attributes.get("fmod", 0):
        raise ValueError
    return np.asarray(np.mod(a, b), a.dtype)


def _chosen(node: Node, inputs: Sequence[Array]) -> Array:
    condition, a, b = inputs
    if condition.dtype.kind != "b":
        raise TypeError
    _same([a, b])
    return np.where(condition, a, b)


def _counted(node: Node, inputs: Sequence[Array]) -> Array:
    start, limit, delta = (int(a.reshape(()).item()) for a in _same(inputs))
    if delta == 0 or abs(limit - start) > _MOST * abs(delta):
        raise ValueError
    return np.array(range(start, limit, delta), inputs[0].dtype)


def _same(inputs: Sequence[Array]) -> Sequence[Array]:
    """Inputs of one type, as arithmetic takes them."""
    if len({a.dtype for a in inputs}) > 1:
        raise TypeError
    return inputs


_COMPUTED: Mapping[str, Callable[[Node, Sequence[Array]], Array]] = {
    "Add": lambda node, inputs: np.add(*_same(inputs)),
    "Cast": _cast,
    "Ceil": lambda node, inputs: np.ceil(inputs[0]),
    "Concat": lambda node, inputs: np.concatenate(_same(inputs), node.attributes["axis"]),
    "Div": lambda node, inputs: _divided(node, _same(inputs)),
    "Equal": lambda node, inputs: np.equal(*_same(inputs)),
    "Expand": _expanded,
    "Floor": lambda node, inputs: np.floor(inputs[0]),
    "Gather": _gathered,
    "Mod": lambda node, inputs: _remainder(node, _same(inputs)),
    "Mul": lambda node, inputs: np.multiply(*_same(inputs)),
    "Range": _counted,
    "Sqrt": lambda node, inputs: np.sqrt(inputs[0]),
    "Sub": lambda node, inputs: np.subtract(*_same(inputs)),
    "Where": _chosen,
}


_ONLY_REAL = frozenset(("Ceil", "Floor", "Sqrt"))
_OF_REAL = frozenset(("Add", "Cast", "Div", "Mul", "Sub")) | _ONLY_REAL
"""Those that do the same with real numbers, rounded once as IEEE 754 says, so that everybody's bits are the same."""
_REAL = (np.float32, np.float64)


def are_few(arrays: Sequence[Array]) -> bool:
    """Whether they are numbers, or answers to a question, and few."""
    return all((a.dtype.kind in "iub" or a.dtype in _REAL) and a.size <= _MOST for a in arrays)


def _few(op: str, compute: Callable[[Node, Sequence[Array]], Array]
         ) -> Callable[[Node, Sequence[Array]], Array | None]:  # fmt: skip
    """The same for a few numbers, and nothing for all else."""
    def computed(node: Node, inputs: Sequence[Array]) -> Array | None:
        numbers = inputs[1:] if op == "Where" else inputs
        kinds = "f" if op in _ONLY_REAL else "iuf" if op in _OF_REAL else "iu"
        if node.version < _LEAST_OPSET or not are_few(inputs) or any(a.dtype.kind not in kinds for a in numbers):
            return None
        try:
            with np.errstate(all="ignore"):
                return np.asarray(compute(node, inputs))
        except (ArithmeticError, IndexError, KeyError, TypeError, ValueError):
            return None

    return computed


onnx_extents: Mapping[str, Callable[[Node, Sequence[Array]], Array | None]] = {
    op: _few(op, compute) for op, compute in _COMPUTED.items()
}
"""By operator: its result of a few numbers; None for anything else."""
