"""Some lanes of a vector: the first ones, loaded and stored by parts of it, and every second one or fewer.

LLVM takes a masked load or store apart into a branch for every lane where there is no instruction; and masked stores of
AVX2 take 12 cycles on a Zen 3 and a Zen 4, where parts take 3 or 4, and lanes that lie apart about one each.  A part is
a power of two of lanes: the binary digits of a count say which there are, the larger ones first.  Most counts stay the
same while a loop runs, and a CPU foresees the branches that they decide.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from polyconv.kernels.values import Buffer, Type, Value

if TYPE_CHECKING:
    from polyconv.kernels.language import Module

__all__ = ["has_parts", "load_parts", "store_every", "store_parts"]


def has_parts(type_: Type) -> bool:
    """Whether halves of halves of a vector are vectors."""
    return type_.lanes > 1 and type_.lanes & (type_.lanes - 1) == 0


def store_parts(k: Module, value: Value, target: Buffer, count: Value | None, step: int = 1) -> None:
    """Store all lanes, or the first ``count``, to elements 0, ``step``, ...: one by one, if they lie apart."""
    size = step * value.type.element_bytes

    def store(lanes: Value, place: Buffer) -> None:
        if step == 1:
            k.store(lanes, place)
        else:
            k.scatter(lanes, place, size)

    if count is None:
        store(value, target)
        return
    with k.when(count.equals(value.type.lanes)):
        store(value, target)
    while value.type.lanes > 1:
        whole, part = value.type.lanes, value.type.lanes // 2
        low, high = (k.shuffle(value, value, range(first, first + part)) for first in (0, part))
        with k.choice((count & part).equals(part), [low]) as rest:
            store(low, target + (count & -whole) * size)  # behind all larger parts
            rest.next(high)
        (value,) = rest.results


def load_parts(k: Module, type_: Type, source: Buffer, count: Value) -> Value:
    """Load the first ``count`` lanes, of 0 to all; the others are 0.

    Parts lie from the largest to the smallest, so the smallest is loaded first and moves on as others come before it.
    """
    found = k.constant(replace(type_, lanes=1), 0)
    while (part := found.type.lanes) < type_.lanes:
        both = replace(type_, lanes=2 * part)
        last = k.shuffle(found, k.constant(found.type, 0), range(2 * part))
        with k.choice((count & part).equals(part), [last]) as more:
            place = source + (count & -both.lanes) * both.element_bytes  # behind all larger parts
            more.next(k.shuffle(k.load(found.type, place), found, range(2 * part)))
        (found,) = more.results
    with k.choice(count.equals(type_.lanes), [found]) as every:
        every.next(k.load(type_, source))
    whole: Value = every.results[0]
    return whole


def store_every(k: Module, value: Value, target: Buffer, step: int, first: int, count: Value) -> None:
    """Store the first ``count`` of lanes ``first``, ``first + step``, ...; the others' memory is not touched."""
    lanes = range(value.type.lanes)
    count = k.maximum(k.minimum(count, len(lanes[first::step])), 0)
    ramp = ", ".join(f"i32 {(i - first) // step if i in lanes[first::step] else len(lanes)}" for i in lanes)
    wide = k.splat(k.cast("trunc", count, Type("i32")), len(lanes))
    bits = k.emit(f"icmp ult <{len(lanes)} x i32> <{ramp}>, {wide.name}", value.type.of("i1"))
    size = k.select(count > 0, (count - 1) * step + (first + 1), 0) * value.type.element_bytes
    k.store_masked(value, target, bits, size)
