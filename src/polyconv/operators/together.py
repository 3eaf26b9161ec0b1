"""What is found of all elements of a line that lie beside each other, joined: the largest, the sum.

The one idea: several vectors take turns, as the result of one joining waits for the one before it.  It must not know
what lines are for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from polyconv.dataclass import dataclass
from polyconv.kernels import mathfn
from polyconv.kernels.language import Mask, Module, Type, Value
from polyconv.kernels.values import Buffer
from polyconv.operators.reduction import across_lanes
from polyconv.operators.rows import write

__all__ = ["CHAINS", "Loaded", "Walk", "added", "larger", "raised", "spread", "taken_together"]

CHAINS = 4
"""Vectors whose results take turns: one waits for the one before it."""

Loaded = Callable[[Value, Type, Mask | None], Value]
"""What is done with the elements from one on, as a scalar or a vector, which may have a mask."""


def spread(k: Module, value: Value, type_: Type) -> Value:
    """A scalar as such, or in every lane."""
    return k.splat(value, type_.lanes) if type_.lanes else value


def larger(k: Module, a: Value, b: Value) -> Value:
    """The larger one, or any of the two if one is NaN: as an exponential NaN makes all of a line NaN."""
    return k.select(a > b, a, b)


def added(a: Value, b: Value) -> Value:
    """The sum of two."""
    return a + b


@dataclass(frozen=True, slots=True)
class Walk:
    """How elements that lie beside each other are walked: so many, by vectors, whose rest has a mask or none."""

    k: Module
    kind: Type
    length: Value
    masks: bool


def taken_together(walk: Walk, neutral: float, of: Loaded, join: Callable[[Value, Value], Value]) -> Value:
    """What is found of all elements of a line, joined."""
    k, kind, length = walk.k, walk.kind, walk.length
    start, block = k.constant(kind, neutral), CHAINS * kind.lanes
    full, whole = length - length % block, length - length % kind.lanes
    with k.loop(0, full, block, carry=[start] * CHAINS) as each:
        each.next(*(join(held, of(each.index + at * kind.lanes, kind, None)) for at, held in enumerate(each.values)))
    with k.loop(full, whole, kind.lanes, carry=[each.results[0]]) as one:
        one.next(join(one.values[0], of(one.index, kind, None)))
    total: Value = one.results[0]
    for other in each.results[1:]:
        total = join(total, other)
    if walk.masks:
        mask = k.mask(length - whole, kind.lanes)
        return across_lanes(k, join(total, k.select(mask.bits, of(whole, kind, mask), start)), join)
    with k.loop(whole, length, carry=[across_lanes(k, total, join)]) as rest:
        rest.next(join(rest.values[0], of(rest.index, kind.scalar, None)))
    found: Value = rest.results[0]
    return found


def raised(walk: Walk, loaded: Loaded, y: Buffer) -> Value:
    """Store ``exp(x - max)`` of the elements of a line, each of which is loaded twice; one over the sum of them."""
    k, kind = walk.k, walk.kind
    top = taken_together(walk, float("-inf"), loaded, partial(larger, k))

    def power(at: Value, type_: Type, mask: Mask | None) -> Value:
        value = mathfn.exponential_below(k, loaded(at, type_, mask) - spread(k, top, type_))
        write(k, value, y + at * kind.element_bytes, mask)
        return value

    return 1.0 / taken_together(walk, 0.0, power, added)
