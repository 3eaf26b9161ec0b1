"""Stacks of matrices: where those of a number begin, of several arrays that are walked together.

Axes before rows and columns are counted through, the last one fastest; each array has a step of its own along them, 0
where it is repeated.  It must not know what is done with the matrices.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyconv.kernels.language import Module, Value
from polyconv.kernels.record import Record, Table, Word, at_once
from polyconv.kernels.values import Buffer
from polyconv.operators.along import Along
from polyconv.operators.lying import Lies

__all__ = ["Stack", "begins", "stack_of"]


class _Axis(Record):
    """Its extent, and the steps in bytes of up to five arrays."""

    extent: Word
    first: Word
    second: Word
    third: Word
    fourth: Word
    fifth: Word


class Stack(Record):
    """Words of a stack: axes, of which the first one varies fastest, and where the arrays' first matrices begin."""

    count: Word
    axes: Table[_Axis]
    base: _Axis


def stack_of(outer: Sequence[int], lies: Sequence[Lies], along: Sequence[Along]) -> Stack:
    """The stack of some arrays.

    Parameters
    ----------
    outer : sequence of int
        Extents of the axes.
    lies : sequence of Lies
        How up to five arrays lie.
    along : sequence of Along
        Their steps along the axes.
    """
    steps = [each.strides for each in along]
    axes = [_axis(extent, [each[at] for each in steps]) for at, extent in enumerate(outer)]
    return Stack(count=len(axes), axes=axes[::-1], base=_axis(0, [lie.offset for lie in lies]))


def _axis(extent: int, steps: Sequence[int]) -> _Axis:
    first, second, third, fourth, fifth = (*steps, *[0] * (5 - len(steps)))
    return _Axis(extent=extent, first=first, second=second, third=third, fourth=fourth, fifth=fifth)


def begins(k: Module, frame: Buffer, stack: Stack, number: Value, count: int) -> list[Buffer]:
    """Where the matrices of a number begin, of the first ``count`` operands of a frame."""
    start = [number, *_steps(stack.base)[:count]]
    with k.loop(0, stack.count, carry=start) as each:
        rest, *places = each.values
        axis = at_once(stack.axes.at(each.index))
        here = rest % axis.extent
        each.next(rest // axis.extent, *(p + here * s for p, s in zip(places, _steps(axis)[:count], strict=True)))
    return [k.buffer(frame, 2 * at) + place for at, place in enumerate(each.results[1:])]


def _steps(axis: _Axis) -> list[Value]:
    return [axis.first, axis.second, axis.third, axis.fourth, axis.fifth]
