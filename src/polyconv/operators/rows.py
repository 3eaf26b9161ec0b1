"""Rows of elements that lie beside each other: reading, writing and walking them, whole vectors first.

What is left of a vector is one more with a mask, where the target has masks, else single elements.  It must not know
what is done with the elements.
"""

from __future__ import annotations

from collections.abc import Callable

from polyconv.kernels.language import Mask, Module, Type, Value
from polyconv.kernels.values import Buffer

__all__ = ["Block", "Some", "each_block", "each_vector", "read", "write"]

Some = Callable[[Value, Type, Mask | None], object]
"""What is done with the elements from one on: a scalar, or a vector, which may have a mask."""

Block = Callable[[Value, Type, int, Mask | None], object]
"""As ``Some``, with a number of vectors that follow each other."""


def read(k: Module, type_: Type, place: Buffer, mask: Mask | None) -> Value:
    """Elements; 0 where the mask has none."""
    return k.load(type_, place) if mask is None else k.load_first(type_, place, mask)


def write(k: Module, value: Value, place: Buffer, mask: Mask | None) -> None:
    """Store elements, those of the mask if there is one."""
    if mask is None:
        k.store(value, place)
    else:
        k.store_first(value, place, mask)


def each_vector(k: Module, kind: Type, begin: Value | int, end: Value, masks: bool, some: Some) -> None:
    """Do something with all elements from ``begin`` to ``end``."""
    full = end - (end - begin) % kind.lanes
    with k.loop(begin, full, kind.lanes) as each:
        some(each.index, kind, None)
    _rest(k, kind, full, end, masks, some)


def each_block(k: Module, kind: Type, begin: Value | int, end: Value, masks: bool, count: int, some: Block) -> None:
    """The same with ``count`` vectors at once, as long as there are so many."""
    most = end - (end - begin) % (count * kind.lanes)
    full = end - (end - begin) % kind.lanes
    with k.loop(begin, most, count * kind.lanes) as each:
        some(each.index, kind, count, None)
    with k.loop(most, full, kind.lanes) as each:
        some(each.index, kind, 1, None)
    _rest(k, kind, full, end, masks, lambda at, type_, mask: some(at, type_, 1, mask))


def _rest(k: Module, kind: Type, begin: Value, end: Value, masks: bool, some: Some) -> None:
    """What is left of a vector."""
    if masks:
        with k.when(begin < end):
            some(begin, kind, k.mask(end - begin, kind.lanes))
        return
    with k.loop(begin, end) as each:
        some(each.index, kind.scalar, None)
