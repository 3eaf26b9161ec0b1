"""Element-wise operators that run as one pass: a small graph of fragments, planned for inputs as they come.

The one idea: where all that is made in between has the shape of the results, one expression computes everything with
each element read once; where it turns out to have another, each operator is a pass of its own, with the same bits.
Passes that differ in the values of their constants alone, as those of a network's blocks do, share their plans.
It must not know what an operator is called.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError
from polyconv.machine.host import profile_in_force
from polyconv.machine.profile import Profile
from polyconv.operators.along import Along
from polyconv.operators.building import Fragment
from polyconv.operators.bytewise import BYTES, look_up, table_of
from polyconv.operators.expression import Apply, Expression
from polyconv.operators.finish import Finish
from polyconv.operators.job import MOST_OPERANDS, Array, Conditions, Plan, Planner, Planning
from polyconv.operators.lying import Lies, is_channels_last, lies, lies_like, packed
from polyconv.operators.moving import as_packed, copied
from polyconv.operators.strided import pass_over
from polyconv.operators.turning import is_turned
from polyconv.operators.types import TYPES, dtype_name
from polyconv.target import Target

__all__ = ["Fused", "Member", "finish_of", "operand_count", "planner_of"]

_WORTH_TURNING = 4096
"""Elements from which two passes are sooner done than one whose vectors are short, or gathered element by element."""
_LITTLE = 16 << 10
"""Bytes of constants that a shared plan may hold, as long as it is kept."""


@dataclass(frozen=True, slots=True)
class Member:
    """An operator of a pass, and the values it reads: inputs, then constants, then what members before it make."""

    fragment: Fragment
    reads: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fused:
    """Operators that may run as one pass.

    Parameters
    ----------
    inputs : int
        Values that come with a run.
    constants : tuple of array
        Values that are the same in every run.
    members : tuple of Member
        In running order.
    results : tuple of int
        Values that come out.
    """

    inputs: int
    constants: tuple[Array, ...]
    members: tuple[Member, ...]
    results: tuple[int, ...]


def operand_count(fused: Fused) -> int:
    """Operands of the one pass."""
    own = sum(len(member.fragment.constants) for member in fused.members)
    return fused.inputs + len(fused.constants) + own + len(fused.results)


def finish_of(fused: Fused, dtype: np.dtype[Any], rank: int) -> Finish | None:
    """A pass over an array of so many axes as what its maker does with each element; None if it needs more than that.

    It may read single numbers beside the array, and store one result.
    """
    held = _held(fused)
    if fused.inputs != 1 or len(fused.results) != 1 or any(a.size != 1 or a.ndim > rank for a in held):
        return None
    dtypes = _dtypes(fused, [packed((), dtype)])
    numbers, expression = _joint(fused, range(len(fused.members)), fused.results, dtypes, 1 + len(fused.constants))
    arrays = [None if n == 0 else fused.constants[n - 1] for n in numbers] + held[len(fused.constants) :]
    order = sorted(range(len(arrays)), key=lambda at: arrays[at] is not None)  # the element comes first
    places = {old: new for new, old in enumerate(order)}
    steps = tuple(Apply(s.function, tuple(places.get(a, a) for a in s.arguments), s.dtype) for s in expression.steps)
    return Finish(
        Expression(tuple(expression.inputs[at] for at in order), steps, expression.results),
        tuple(array for array in arrays if array is not None),
    )  # fmt: skip


def planner_of(fused: Fused) -> Planner:
    """What plans a pass for inputs that lie in a given way.

    It raises ``ArgumentError`` if shapes cannot be broadcast to each other.
    """
    constants = _held(fused)
    kind = _kind_of(fused) if sum(array.nbytes for array in constants) <= _LITTLE else None

    def in_passes(given: Sequence[Lies], c: Conditions) -> Plan:
        if kind is None:
            return _planned(fused, given, c)[0]
        plan, origins = _shared(kind, tuple(given), c, profile_in_force())
        own = (constants[at] if times == 1 else np.tile(constants[at].reshape(-1), times) for at, times in origins)
        return replace(plan, constants=tuple(own))

    if not _is_bytewise(fused):
        return in_passes
    rank = max((array.ndim for array in constants), default=0)

    @cache
    def tables(dtype: np.dtype[Any], rank: int, _: Target) -> list[Array]:  # targets may round differently
        return table_of(in_passes, dtype, rank)

    def planned(given: Sequence[Lies], c: Conditions) -> Plan:
        (x,) = given
        if c.on_gpu or c.dry or len(x.shape) < rank:
            return in_passes(given, c)
        planning = Planning(given, c)
        for table in tables(x.dtype, max(1, len(x.shape)), c.target):
            look_up(planning, 0, planning.result(x.shape, table.dtype), table)
        return planning.plan()

    return planned


def _is_bytewise(fused: Fused) -> bool:
    """Whether a pass makes bytes of every byte of its one input, by way of other numbers."""
    if fused.inputs != 1 or any(array.size != 1 for array in _held(fused)):
        return False
    members = [member.fragment.expression for member in fused.members]
    read = {e.inputs[at] for member, e in zip(fused.members, members, strict=True)
            for at, number in enumerate(member.reads) if number == 0}  # fmt: skip
    first = fused.inputs + len(fused.constants)
    made = {members[number - first].made for number in fused.results}
    between = {step.dtype for e in members for step in e.steps}
    return BYTES.issuperset(read | made) and not BYTES.issuperset(between)


def _held(fused: Fused) -> list[Array]:
    """All constants of a pass."""
    return [*fused.constants, *(array for member in fused.members for array in member.fragment.constants)]


_Origins = Sequence[tuple[int, int]]
"""Of each constant of a plan: which of those of ``_held`` it is, so many times behind itself."""


class _Kind:
    """Passes that differ in the values of their constants alone, and one of them."""

    __slots__ = ("__weakref__", "fused")

    def __init__(self, fused: Fused) -> None:
        self.fused = fused


_kinds: WeakValueDictionary[Any, _Kind] = WeakValueDictionary()


def _kind_of(fused: Fused) -> _Kind:
    members = tuple((m.fragment.expression, m.fragment.follows, m.reads) for m in fused.members)
    lie = tuple((a.shape, a.dtype.str, a.strides) for a in _held(fused))
    return _kinds.setdefault((fused.inputs, len(fused.constants), members, lie, fused.results), _Kind(fused))


@lru_cache(1024)
def _shared(kind: _Kind, given: tuple[Lies, ...], c: Conditions, _: Profile) -> tuple[Plan, _Origins]:
    """The plan of passes of a kind, with the constants of one of them; a profile says how work is cut."""
    return _planned(kind.fused, given, c)


def _planned(fused: Fused, given: Sequence[Lies], c: Conditions) -> tuple[Plan, _Origins]:
    held = [lies(a) for a in fused.constants]
    shapes = [lie.shape for lie in (*given, *held)]
    for member in fused.members:
        own = [shapes[number] for number in member.reads]
        shapes.append(_broadcast([*own, *(a.shape for a in member.fragment.constants)]))
        if member.fragment.follows and shapes[-1] != own[0]:
            raise ArgumentError(f"operands of the shapes {', '.join(map(str, own))} cannot be broadcast to the first")
    first = len(given) + len(held)
    made = range(first, first + len(fused.members))
    shape = shapes[fused.results[0]]
    if all(shapes[number] == shape for number in made) and operand_count(fused) <= MOST_OPERANDS:
        parts = [(range(len(made)), fused.results)]
    else:
        parts = [(range(at, at + 1), (number,)) for at, number in enumerate(made)]
    return _in_parts(fused, given, shapes, parts, c)


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ArgumentError(f"operands of the shapes {', '.join(map(str, shapes))} cannot be broadcast") from None


_Part = tuple[range, Sequence[int]]
"""Which members are a pass, and the values that it stores."""


def _in_parts(fused: Fused, given: Sequence[Lies], shapes: Sequence[tuple[int, ...]], parts: Sequence[_Part],
              c: Conditions) -> tuple[Plan, _Origins]:  # fmt: skip
    """The plan of passes that follow each other."""
    dtypes, planning = _dtypes(fused, given), Planning(given, c)
    places = dict(enumerate((*range(len(given)), *map(planning.constant, fused.constants))))
    first = len(places)
    for number in fused.results:
        places[number] = planning.result(shapes[number], TYPES[dtypes[number]].numpy)
    for _, results in parts:
        for number in results:
            if number not in places:
                places[number] = planning.between(shapes[number], TYPES[dtypes[number]].numpy)
    for which, results in parts:
        numbers, expression = _joint(fused, which, results, dtypes, first)
        own = [planning.constant(array) for at in which for array in fused.members[at].fragment.constants]
        operands = [*(places[n] for n in numbers), *own, *(places[n] for n in results)]
        _pass(planning, expression, shapes[results[0]], operands)
    return planning.plan(), planning.origins()


def _pass(planning: Planning, expression: Expression, extents: tuple[int, ...], operands: list[int]) -> None:
    """Add a pass; where its one array lies across its one result, in the order of one of them, and turn the narrower.

    A network's input is quantised so, with its channels first, for a convolution that reads them last: vectors of 3
    channels would take 5 times as long.
    """
    arrays = [n for n in operands[:-1] if math.prod(planning.lie(n).shape) > 1]
    if planning.c.on_gpu or len(expression.results) > 1 or not arrays or math.prod(extents) < _WORTH_TURNING:
        pass_over(planning, expression, extents, operands)
        return
    if len(arrays) > 1:
        turned_by = {n: _turned_like(planning, n, operands[-1]) for n in dict.fromkeys(arrays)}
        pass_over(planning, expression, extents, [turned_by.get(n, n) for n in operands])
        return
    (x,), y = arrays, operands[-1]
    of_x, of_y = planning.lie(x), planning.lie(y)
    if of_x.shape != extents or not _lies_across(of_x, of_y):
        pass_over(planning, expression, extents, operands)
    elif of_y.dtype.itemsize > of_x.dtype.itemsize and is_channels_last(of_x):
        turned = as_packed(planning, x)
        pass_over(planning, expression, extents, [turned if n == x else n for n in operands])
    else:
        turned = planning.between(extents, of_y.dtype, alike=is_channels_last(of_x))
        pass_over(planning, expression, extents, [*operands[:-1], turned])
        copied(planning, turned, y, extents, *(Along(n.offset, n.strides) for n in (planning.lie(turned), of_y)))


def _turned_like(planning: Planning, x: int, y: int) -> int:
    """One of several arrays, or a copy of it whose rows run as those of a packed result do: vectors read it so."""
    of_x, of_y = planning.lie(x), planning.lie(y)
    if math.prod(of_x.shape) < _WORTH_TURNING or not lies_like(of_y, packed(of_y.shape, of_y.dtype)):
        return x
    rows = Along(0, packed(of_x.shape, of_x.dtype).strides)
    across = is_turned(of_x.shape, Along(of_x.offset, of_x.strides), rows, of_x.dtype.itemsize)
    return as_packed(planning, x) if across else x


def _lies_across(one: Lies, other: Lies) -> bool:
    """Whether one of two arrays is packed and the other has channels last."""
    pairs = (one, other), (other, one)
    return any(lies_like(a, packed(a.shape, a.dtype)) and is_channels_last(b) for a, b in pairs)


def _dtypes(fused: Fused, given: Sequence[Lies]) -> list[str]:
    """Element types of all values."""
    kinds = [lie.dtype for lie in given] + [a.dtype for a in fused.constants]
    found = [dtype_name(kind, has_halves=True, has_truth=True) or "" for kind in kinds]
    return found + [member.fragment.expression.made for member in fused.members]


def _joint(fused: Fused, which: range, results: Sequence[int], dtypes: Sequence[str], first: int
           ) -> tuple[list[int], Expression]:  # fmt: skip
    """The values that some members read from elsewhere, and one expression of these and of the members' constants."""
    made = range(first + which.start, first + which.stop)
    numbers = list(dict.fromkeys(n for at in which for n in fused.members[at].reads if n not in made))
    fragments = [fused.members[at].fragment for at in which]
    own_dtypes = [f.expression.inputs[len(f.reads) :] for f in fragments]
    inputs = (*(dtypes[n] for n in numbers), *(name for own in own_dtypes for name in own))
    where = {n: at for at, n in enumerate(numbers)}
    steps: list[Apply] = []
    held = len(numbers)
    for number, at in zip(made, which, strict=True):
        member = fused.members[at]
        own = [where[n] for n in member.reads]
        own += range(held, held + len(member.fragment.constants))
        held += len(member.fragment.constants)
        for step in member.fragment.expression.steps:
            steps.append(Apply(step.function, tuple(own[a] for a in step.arguments), step.dtype))
            own.append(len(inputs) + len(steps) - 1)
        where[number] = own[member.fragment.expression.results[0]]
    return numbers, Expression(inputs, tuple(steps), tuple(where[n] for n in results))
