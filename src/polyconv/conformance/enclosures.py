"""Between which numbers a value of an ONNX graph must lie, whoever computes it in f32.

A node and the enclosures of its inputs become the enclosures of its outputs: exact arithmetic at both ends, in
float64, and what rounding may add, from the number of operations and the sum of magnitudes.  The one idea: whatever an
engine fuses, reorders or leaves out, its result stays within bounds that were derived for the nodes one by one.  It
must not know how a graph was drawn, nor who runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass

if TYPE_CHECKING:
    from onnx import NodeProto

__all__ = ["Array", "Call", "Enclosure", "added", "at_both_ends", "exact", "reference", "rounded", "summed"]

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Enclosure:
    """The least and the greatest that a value may be, element by element.

    Parameters
    ----------
    low, high : array
        float64, or int64 of integers; one array where rounding adds nothing.
    dtype : numpy.dtype
        Of the value itself.
    """

    low: Array
    high: Array
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.low.shape

    @property
    def is_float(self) -> bool:
        """Whether the value is of floating-point numbers."""
        return self.dtype.kind == "f"

    def ends(self, of: Callable[[Array], Array]) -> tuple[Array, Array]:
        """What a function makes of the low end and of the high one."""
        return of(self.low), of(self.high)

    @cached_property
    def middle(self) -> Array:
        """Half way between the ends."""
        return self.low if self.low is self.high else (self.low + self.high) / 2

    @cached_property
    def radius(self) -> Array:
        """From the middle to the ends."""
        return (self.high - self.low) / 2

    @cached_property
    def largest(self) -> Array:
        """The greatest magnitude."""
        return np.maximum(np.abs(self.low), np.abs(self.high))


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A node with the enclosures of its inputs; None for one that is left out."""

    node: NodeProto
    opset: int
    given: tuple[Enclosure | None, ...]

    def attribute(self, name: str, default: Any = None) -> Any:
        """A number, a str or a list of numbers."""
        from onnx import helper

        for each in self.node.attribute:
            if each.name == name:
                value = helper.get_attribute_value(each)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def at(self, position: int) -> Enclosure:
        """An input that must be there."""
        found = self.optional(position)
        assert found is not None, (self.node.op_type, position)
        return found

    def optional(self, position: int) -> Enclosure | None:
        """An input that may be left out."""
        return self.given[position] if position < len(self.given) else None


def exact(array: Array) -> Enclosure:
    """A value that is known: an initialiser, or what a graph is fed."""
    wide = array.astype(np.float64 if array.dtype.kind == "f" else np.int64 if array.dtype.kind in "iu" else bool)
    return Enclosure(wide, wide, array.dtype)


def rounded(low: Array, high: Array, dtype: np.dtype[Any], units: float, size: Array | float | None = None
            ) -> Enclosure:  # fmt: skip
    """Ends moved apart by ``units`` roundings of numbers of a ``size``; of the ends themselves where it is None."""
    info = np.finfo(dtype)
    magnitude = np.maximum(np.abs(low), np.abs(high)) if size is None else size
    slack = units * (float(info.eps) * magnitude + float(info.tiny))
    return Enclosure(low - slack, high + slack, dtype)


def summed(low: Array, high: Array, dtype: np.dtype[Any], terms: int, size: Array) -> Enclosure:
    """A sum: ``(terms + 4) eps`` of the sum of its terms' magnitudes.

    Half of that bounds a sum in any order (Higham, Accuracy and Stability, section 3.1); the other half is for factors
    that are rounded once more where they are multiplied into the terms beforehand.
    """
    return rounded(low, high, dtype, terms + 4, size)


def added(a: Enclosure, b: Enclosure, units: float = 1) -> Enclosure:
    """The sum of two."""
    return rounded(a.low + b.low, a.high + b.high, a.dtype, units, a.largest + b.largest)


def reference(call: Call, arrays: Sequence[Array | None]) -> list[Array]:
    """What onnx's reference evaluator makes of a node, in the types of the arrays."""
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    opsets = [helper.make_opsetid("", call.opset)]
    names = [name for name in call.node.input if name]
    function = helper.make_function(
        "enclosures", "one", list(dict.fromkeys(names)), list(call.node.output), [call.node], opsets
    )
    feeds = {name: a for name, a in zip(call.node.input, arrays, strict=True) if name}
    return [np.asarray(a) for a in ReferenceEvaluator(function).run(None, feeds, {})]


def at_both_ends(call: Call) -> list[tuple[Array, Array]]:
    """The ends of an operator's results, if it rounds nothing and keeps order: those of its inputs' ends."""
    low = reference(call, [None if e is None else e.low for e in call.given])
    if all(e is None or e.low is e.high for e in call.given):
        return [(array, array) for array in low]
    return list(zip(low, reference(call, [None if e is None else e.high for e in call.given]), strict=True))
