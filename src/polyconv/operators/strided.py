"""One pass over arrays of any strides: an expression of their elements, stored where the results lie.

Turns an expression and the ways its operands lie into a step.  The one idea: axes that every operand walks alike become
one, so that most passes are a loop over rows of vectors, whatever the rank; along the last axis an operand lies
together, is one value, or has its elements apart.  It must not know what is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from polyconv.dataclass import dataclass
from polyconv.kernels.language import Mask, Module, Type, Value, vector
from polyconv.kernels.record import words
from polyconv.kernels.signature import Address
from polyconv.kernels.values import Buffer
from polyconv.machine.host import profile_in_force
from polyconv.operators.along import Along, across, joined, sorted_by
from polyconv.operators.expression import Expression, cycles_of, evaluated
from polyconv.operators.job import Conditions, Drive, Planning, Step, address_of
from polyconv.operators.types import LLVM, TYPES

if TYPE_CHECKING:
    from polyconv.operators.on_gpu.launching import Launching

__all__ = ["cycles", "pass_over", "passed", "swept", "walk_step", "walked"]

_ITEMS = 4
"""Parts of a pass for each thread, so that a thread that starts late has less to do."""
_LEAST_PART = 1024
"""Elements of a row below which it is not cut."""
_TOGETHER, _LONG = 4, 10.0
"""Vectors of an expression of so many cycles that are computed together, where a vector has 8 numbers of 32 bits.
Measured on a Zen 3: of a sigmoid before quantising, 2 take 1.3 times less time than one after another, and 4 1.5 times,
although some of what they hold leaves its registers."""
_LEAST_ROW = 256
"""Elements of a row that are enough for what a row takes beside them."""
_NEAR, _FAR = 1.0, 8 / 24
"""Operands that are together more than this share of a second-level cache come at this share of the bytes a cycle that
the last one gives."""


def swept(expression: Expression, extents: Sequence[int], operands: Sequence[Along], c: Conditions,
          threads: int, numbers: Sequence[int] | None = None) -> Step:  # fmt: skip
    """The step of a pass.

    Parameters
    ----------
    expression : Expression
    extents : sequence of int
        The space: every element of it is computed; none may be 0.
    operands : sequence of Along
        Inputs, then results.
    c : Conditions
    threads : int
        That will share it.
    numbers : sequence of int, optional
        Which operands of the job they are; by default all in their order.
    """
    sizes = [TYPES[expression.dtype(n)].itemsize for n in (*range(len(expression.inputs)), *expression.results)]
    extents, operands = joined(*sorted_by(operands[-1], extents, operands))
    kinds = "".join(
        "s" if o.strides[-1] == 0 and at < len(expression.inputs) else "v" if o.strides[-1] == size else "g"
        for at, (o, size) in enumerate(zip(operands, sizes, strict=True))
    )
    places = tuple(range(len(operands))) if numbers is None else tuple(numbers)
    together = _together(expression, c) if extents[-1] >= _TOGETHER * _lanes(expression, c.target.vector_bytes) else 1
    spec = _Pass(expression, len(extents), kinds, places, c.target.vector_bytes, c.target.has_masks, together)
    driver = address_of(f"pass {spec}", lambda k, name: _drive(k, name, spec), c)
    return walk_step(driver, extents, operands, threads)


def walk_step(driver: Address[Drive], extents: Sequence[int], operands: Sequence[Along], threads: int) -> Step:
    """The step of a driver made of ``walked``: it walks a space, of which an item has a part of one axis."""
    split, chunk = _cut(extents, threads)
    table = [split, chunk, *extents]
    for operand in operands:
        table += [operand.offset, *operand.strides]
    return Step(driver, words(table), -(-extents[split] // chunk))


def passed(planning: Planning, expression: Expression, extents: Sequence[int], along: Sequence[Along],
           operands: Sequence[int]) -> Launching:  # fmt: skip
    """The pass as a kernel of a GPU, told which powers of two up to 16 divide the addresses where operands begin."""
    from polyconv.operators.on_gpu.passing import passed as launched  # here, as on a CPU no kernel of a GPU is needed

    lies = [planning.lie(number) for number in operands]
    aligns = [math.gcd(lie.align, o.offset - lie.offset) for lie, o in zip(lies, along, strict=True)]
    return launched(expression, extents, along, operands, aligns)


def pass_over(planning: Planning, expression: Expression, extents: Sequence[int], operands: Sequence[int]) -> None:
    """Add the job of a pass over arrays of a plan, inputs then results, that are broadcast to some extents."""
    if 0 in extents:
        return
    lies = [planning.lie(number) for number in operands]
    along: Sequence[Along] = [across(lie.shape, lie.strides, extents, lie.offset) for lie in lies]
    if not planning.c.on_gpu:
        extents, operands, along = _longer_rows(planning, extents, operands, along)
    work = cycles(expression, math.prod(extents), planning.c)
    planning.job(
        lambda threads: [swept(expression, extents, along, planning.c, threads)], operands, work,
        kernels=lambda: [passed(planning, expression, extents, along, operands)],
    )  # fmt: skip


def _longer_rows(planning: Planning, extents: Sequence[int], operands: Sequence[int], along: Sequence[Along]
                 ) -> tuple[Sequence[int], Sequence[int], Sequence[Along]]:  # fmt: skip
    """The same pass with several rows in one, where constants are all that is the same in each of them.

    Rows of few channels, of which each has a scale of its own, for example: numbers of the scale are repeated.
    """
    joint, ways = joined(*sorted_by(along[-1], extents, along))
    repeats = _repeats(joint)
    if repeats == 1:
        return extents, operands, along
    (rows, row), found, numbers = joint[-2:], list[Along](), list[int]()
    for number, way in zip(operands, ways, strict=True):
        outer, inner = way.strides[-2:]
        array = planning.array(number)
        if outer == inner * row:  # row behind row, or one number
            strides = *way.strides[:-2], outer * repeats, inner
        elif array is not None and array.size == row and array.flags.c_contiguous and not any(way.strides[:-1]):
            number = planning.repeated(number, repeats)
            way, strides = Along(0, ()), (*way.strides[:-1], inner)
        else:
            return extents, operands, along
        found.append(Along(way.offset, strides))
        numbers.append(number)
    return [*joint[:-2], rows // repeats, row * repeats], numbers, found


def _repeats(extents: Sequence[int]) -> int:
    """How many rows become one: as many as divide their number and are not longer than they need be."""
    if len(extents) < 2 or extents[-1] >= _LEAST_ROW:
        return 1
    most = -(-_LEAST_ROW // extents[-1])
    return next(n for n in range(min(most, extents[-2]), 0, -1) if extents[-2] % n == 0)


def cycles(expression: Expression, elements: int, c: Conditions) -> float:
    """About the cycles that a pass over so many elements takes on one thread."""
    sizes = [TYPES[expression.dtype(n)].itemsize for n in (*range(len(expression.inputs)), *expression.results)]
    lanes = _lanes(expression, c.target.vector_bytes)
    near = elements / lanes * (cycles_of(expression) + len(sizes))
    total = elements * sum(sizes)
    profile = profile_in_force()
    return max(near, total / profile.stream("l3", _FAR)) if total > profile.cache("l2", _NEAR) else near


def _cut(extents: Sequence[int], threads: int) -> tuple[int, int]:
    """The axis whose parts are items, and how long these are."""
    last = len(extents) - 1
    parts = _ITEMS * threads
    if threads == 1:
        return 0, extents[0]
    able = [extent if a < last else extent // _LEAST_PART for a, extent in enumerate(extents)]
    axis = next((a for a, most in enumerate(able) if most >= parts), max(range(len(able)), key=able.__getitem__))
    chunk = -(-extents[axis] // max(1, min(parts, able[axis])))
    return axis, -(-chunk // 64) * 64 if axis == last else chunk


@dataclass(frozen=True, slots=True)
class _Pass:
    """All that shapes the code of a pass; an operand's kind is how it lies along the last axis.

    ``v``: elements lie together; ``s``: it is one value; ``g``: they lie apart.  So many vectors are computed
    ``together``, as long as there are so many.
    """

    expression: Expression
    rank: int
    kinds: str
    places: tuple[int, ...]
    vector_bytes: int
    masks: bool
    together: int = 1

    def __str__(self) -> str:
        return f"{self.rank} {self.kinds} {','.join(map(str, self.places))} {self.together} {self.expression}"


def _together(expression: Expression, c: Conditions) -> int:
    """Vectors that are computed together: several of a long chain of instructions, each of which waits for another."""
    return _TOGETHER if c.target.level == "avx2" and cycles_of(expression) >= _LONG else 1


def _lanes(expression: Expression, vector_bytes: int) -> int:
    """Elements of a vector: as many as the widest type allows that occurs."""
    dtypes = {*expression.inputs, *(step.dtype for step in expression.steps)}
    widest = max(TYPES[name].itemsize for name in dtypes)
    between = 4 if len(dtypes) > 1 else 1  # conversions go through 32 bits
    return vector_bytes // max(widest, between)


Row = Callable[[list[Buffer], list[list[Value]], list[tuple[Value, Value]]], None]
"""What is done with the inner axes: where each operand begins, its steps along them, and the part to do of each."""


def walked(k: Module, name: str, rank: int, inner: int, places: Sequence[int], row: Row) -> None:
    """Add a driver that loops over all axes but the inner ones; an item has a part of one axis.

    Parameters
    ----------
    rank, inner : int
        How many axes there are, and how many ``row`` walks.
    places : sequence of int
        Which operands of the job it has.
    """
    with k.function(name, Drive) as given:
        split, chunk = k.word(given.words), k.word(given.words, 1)
        ends: list[tuple[Value, Value]] = []
        for a in range(rank):
            extent, here = k.word(given.words, 2 + a), split.equals(a)
            begin = k.select(here, given.item * chunk, 0)
            ends.append((begin, k.select(here, k.minimum(begin + chunk, extent), extent)))
        strides: list[list[Value]] = []
        starts: list[Buffer] = []
        for number, at in enumerate(places):
            base = 2 + rank + number * (1 + rank)
            strides.append([k.word(given.words, base + 1 + a) for a in range(rank)])
            starts.append(k.buffer(given.frame, 2 * at) + k.word(given.words, base))

        def nest(axis: int, places: list[Buffer]) -> None:
            if axis == rank - inner:
                row(places, [s[axis:] for s in strides], ends[axis:])
                return
            with k.loop(*ends[axis]) as line:
                nest(axis + 1, [p + s[axis] * line.index for p, s in zip(places, strides, strict=True)])

        nest(0, starts)


def _drive(k: Module, name: str, spec: _Pass) -> None:
    """Add the driver of a pass."""

    def row(places: list[Buffer], steps: list[list[Value]], ends: list[tuple[Value, Value]]) -> None:
        _row(k, spec, places, [each[0] for each in steps], *ends[0])

    walked(k, name, spec.rank, 1, spec.places, row)


def _row(k: Module, spec: _Pass, places: list[Buffer], steps: list[Value], begin: Value, end: Value) -> None:
    """Elements of the last axis: vectors, then what is left of one."""
    expression = spec.expression
    inputs = len(expression.inputs)
    lanes = _lanes(expression, spec.vector_bytes)
    numbers = [*range(inputs), *expression.results]
    elements = [LLVM[expression.dtype(n)] for n in numbers]
    places = [k.rebase(p) for p in places]
    single = [k.load(Type(e), p) if kind == "s" else None
              for e, p, kind in zip(elements, places, spec.kinds, strict=True)]  # fmt: skip
    splats = {count: [None if v is None else k.splat(v, count) for v in single]
              for count in {lanes, lanes * spec.together} if count > 1}  # fmt: skip

    def some(index: Value, count: int, mask: Mask | None = None) -> None:
        kinds = [vector(e, count) if count > 1 else Type(e) for e in elements]
        held = splats.get(count, single)
        values: list[Value] = []
        for at in range(inputs):
            one = held[at]
            values.append(one if one is not None else _loaded(k, spec.kinds[at], kinds[at], places[at], steps[at],
                                                              index, mask))  # fmt: skip
        for at, value in enumerate(evaluated(k, expression, values), inputs):
            _stored(k, spec.kinds[at], value, places[at], steps[at], index, mask)

    if lanes == 1:
        with k.loop(begin, end) as each:
            some(each.index, 1)
        return
    full = end - (end - begin) % lanes
    if spec.together > 1:
        wide = lanes * spec.together
        most = end - (end - begin) % wide
        with k.loop(begin, most, wide) as each:
            some(each.index, wide)
        begin = most
    with k.loop(begin, full, lanes) as each:
        some(each.index, lanes)
    if spec.masks:
        with k.when(full < end):
            some(full, lanes, k.mask(end - full, lanes))
        return
    with k.loop(full, end) as each:
        some(each.index, 1)


def _loaded(k: Module, kind: str, type_: Type, place: Buffer, step: Value, index: Value, mask: Mask | None) -> Value:
    if kind == "v":
        here = place + index * type_.element_bytes
        return k.load(type_, here) if mask is None else k.load_first(type_, here, mask)
    here = place + index * step
    return k.gather(type_, here, step, mask) if type_.lanes else k.load(type_, here)


def _stored(k: Module, kind: str, value: Value, place: Buffer, step: Value, index: Value, mask: Mask | None) -> None:
    if kind == "v":
        here = place + index * value.type.element_bytes
        if mask is None:
            k.store(value, here)
        else:
            k.store_first(value, here, mask)
        return
    here = place + index * step
    if value.type.lanes:
        k.scatter(value, here, step, mask)
    else:
        k.store(value, here)


