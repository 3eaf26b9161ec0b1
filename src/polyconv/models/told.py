"""What the steps of a run told of themselves, from which runs that are alike are replayed.

The one idea: a step that does native work says so once, for arrays that lie in a given way; where its only reader shows
its result in another shape and that is what the run returns, it may as well write that.
It must not know operators.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.kernels.address import address
from polyconv.models.graph import Array
from polyconv.models.segment import ENGINE, Chosen, Segment
from polyconv.operators.job import Plan
from polyconv.operators.lying import Lies, lies, like, packed
from polyconv.runtime.arrays import may_overlap

__all__ = [
    "Told",
    "direct",
    "lies_so",
    "name_between",
    "native_steps",
    "packed_results",
    "renamed",
    "settled",
    "shown_as",
    "told_of",
    "without_counting",
]  # fmt: skip

_LITTLE = 1 << 20
"""Bytes of a step's results that a replay may hold."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a step of a run told of itself.

    Parameters
    ----------
    index : int
        Of the step.
    reads, writes : tuple of str
        Names of its values.
    segment : Segment
    plan : Plan or None
        Its native work, if that is all it does.
    looks : tuple of (str, str, int)
        Of a view: results, the values in whose memory they lie, and how many bytes behind its first element.
    made : tuple of Lies
        How its results lay.
    seconds : float
    numbers : tuple of array
        What it made, where that is little; else empty.
    chosen : Chosen or None
        Of a branch: the steps that stand for it while its condition is the same.
    lane : int or None
        Of steps of several images at once, the number of the image; see ``models.lanes``.
    """

    index: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    segment: Segment
    plan: Plan | None
    looks: tuple[tuple[str, str, int], ...]
    made: tuple[Lies, ...]
    seconds: float
    numbers: tuple[Array, ...] = ()
    chosen: Chosen | None = None
    lane: int | None = None


def told_of(index: int, reads: tuple[str, ...], writes: tuple[str, ...], segment: Segment, arrays: Sequence[Any],
            made: Sequence[Any], seconds: float, counts: bool, chosen: Chosen | None) -> Told | None:  # fmt: skip
    """What a step that just ran on some arrays tells of itself; None if it had others than arrays of numbers.

    Of one that counts with extents it keeps what it made.
    """
    writes = writes[: len(made)]
    if not all(type(a) is np.ndarray and a.dtype != object for a in (*arrays, *made)):
        return None
    looks = _seen(reads[0], writes, arrays[0], made) if segment.looks else ()
    plan = None if segment.views and (looks or not segment.looks) else segment.plan(arrays, ())
    if plan is not None and not all(lies_so(m, lie) for m, lie in zip(made, plan.results, strict=False)):
        plan = None  # steps after it have plans for what the run made
    is_little = counts and sum(m.nbytes for m in made) <= _LITTLE
    numbers = tuple(np.array(m) for m in made) if is_little else ()
    return Told(index, reads, writes, segment, plan, looks, tuple(lies(m) for m in made), seconds, numbers, chosen)


def _seen(read: str, writes: Sequence[str], source: Array, made: Sequence[Array]) -> tuple[tuple[str, str, int], ...]:
    """Where a view's results lie in the memory of what it reads, as ``Told.looks``; none if one of them is a copy."""
    if not all(may_overlap(source, m) for m in made):  # as a reshape may be
        return ()
    return tuple((w, read, address(m) - address(source)) for w, m in zip(writes, made, strict=False))


def _seen_alike(step: Told, source: Array, made: Sequence[Array]) -> tuple[tuple[str, str, int], ...]:
    """The same of a step whose results lay as it told; none if these lie otherwise."""
    is_alike = all(lies_so(m, lie) for m, lie in zip(made, step.made, strict=True))
    return _seen(step.reads[0], step.writes, source, made) if is_alike else ()


def shown_as(name: str, other: str, lie: Lies) -> Told:
    """A step that shows a value under another name."""
    segment = Segment(ENGINE, (), list, views=True, looks=True)
    return Told(0, (name,), (other,), segment, None, ((other, name, 0),), (lie,), 0.0)


def native_steps(told: Sequence[Told]) -> int:
    """How many steps do native work, those that stand for branches included."""
    return sum(native_steps(step.chosen.steps) if step.chosen else step.plan is not None for step in told)


def renamed(step: Told, name_of: Callable[[str], str]) -> Told:
    """A step whose values have other names."""
    chosen = step.chosen
    if chosen is not None:
        steps = tuple(renamed(inner, name_of) for inner in chosen.steps)
        chosen = Chosen(name_of(chosen.condition), steps)
    return replace(
        step, reads=tuple(map(name_of, step.reads)), writes=tuple(map(name_of, step.writes)), chosen=chosen,
        looks=tuple((name_of(name), name_of(source), begin) for name, source, begin in step.looks),
    )  # fmt: skip


def without_counting(told: Sequence[Told], steady: Mapping[str, Array]
                     ) -> tuple[list[Told], dict[str, Array], list[int]]:  # fmt: skip
    """The steps but for those that runs with such extents need not do again.

    What a model counts with extents, to cut and to reshape by, is the same in all of them; and so is the choice of a
    branch by such counts.

    Parameters
    ----------
    told : sequence of Told
        Every step of a run, in order.
    steady : mapping
        Values that are the same in every run that is replayed.

    Returns
    -------
    list of Told, dict of array, list of int
        The steps, what those left out made, and their numbers.
    """
    kept, known, gone = list[Told](), dict[str, Array](), list[int]()

    def visit(step: Told) -> None:
        is_same = step.segment.extents or all(name in steady or name in known for name in step.reads)
        if is_same and step.numbers and not step.segment.varies:
            known.update(zip(step.writes, step.numbers, strict=True))
            gone.append(step.index)
        elif (chosen := step.chosen) is not None and (chosen.condition in steady or chosen.condition in known):
            for inner in chosen.steps:
                visit(replace(inner, index=step.index))
        else:
            kept.append(step)

    for step in told:
        visit(step)
    return kept, known, gone


def settled(told: Sequence[Told], held: Mapping[str, Array], lie_of: Mapping[str, Lies]) -> list[Told]:
    """The steps; those whose plans follow from numbers have them where these are the same in all runs.

    Such numbers are pads, and those by which views reshape and cut.

    Parameters
    ----------
    held : mapping
        Values that are.
    lie_of : mapping
        How others lie that no step makes.
    """
    lying, found = dict(lie_of), list[Told]()
    for step in told:
        segment = step.segment
        if segment.settled is not None and all(step.reads[at] in held for at in segment.numbers):
            arrays = [held[name] if name in held else like(lying[name]) for name in step.reads]
            known = replace(segment.settled(arrays), by_image=segment.by_image, gaps=segment.gaps)
            looks = _seen_alike(step, arrays[0], known.run(arrays)) if known.looks else ()
            plan = None if looks else known.plan(arrays, ())
            if looks or (plan is not None and plan.results == step.made):
                reads = step.reads[:1] if known.looks else step.reads
                step = replace(step, segment=known, reads=reads, plan=plan, looks=looks)
        lying.update(zip(step.writes, step.made, strict=True))
        found.append(step)
    return found


def name_between(step: Told, number: int) -> str:
    """The name of an array between the jobs of a step, which no value has."""
    return f"{step.writes[0]}\0{number}"


def lies_so(a: Any, lie: Lies) -> bool:
    """Whether it is an array that lies so."""
    return isinstance(a, np.ndarray) and (a.shape, a.strides, a.dtype) == (lie.shape, lie.strides, lie.dtype)


def direct(told: Sequence[Told], results: Collection[str]) -> tuple[list[Told], list[int]]:
    """The steps, without those that only show a result of the run in another shape: who makes it writes it as shown.

    Returns
    -------
    list of Told, list of int
        The steps, and the numbers of those left out.
    """
    readers: dict[str, list[Told]] = {}
    for step in told:
        for name in step.reads:
            readers.setdefault(name, []).append(step)
    makers = {name: at for at, step in enumerate(told) if step.plan is not None for name in step.writes}
    kept: dict[int, Told] = dict(enumerate(told))
    gone: list[int] = []
    for at, step in enumerate(told):
        if not step.looks or len(step.writes) != 1 or step.writes[0] not in results:
            continue
        (name,), lie = step.reads, step.made[0]
        maker = makers.get(name)
        whole = maker is not None and name not in results and readers[name] == [step]
        if maker is None or not whole or lie != packed(lie.shape, lie.dtype):
            continue
        by = kept[maker]
        if lie.size == by.made[by.writes.index(name)].size:  # a slice may lie together as well
            kept[maker] = _writing(by, name, step.writes[0], lie)
            gone.append(step.index)
            del kept[at]
    return list(kept.values()), gone


def _writing(step: Told, name: str, other: str, lie: Lies) -> Told:
    """A step that writes a result under another name, which lies so."""
    assert step.plan is not None
    at = step.writes.index(name)

    def put(lies: tuple[Lies, ...]) -> tuple[Lies, ...]:
        return (*lies[:at], lie, *lies[at + 1 :])

    writes = (*step.writes[:at], other, *step.writes[at + 1 :])
    return replace(step, writes=writes, plan=replace(step.plan, results=put(step.plan.results)), made=put(step.made))


def packed_results(told: Sequence[Told], results: Collection[str], threads: int) -> list[Told]:
    """The steps, and copies in the order of the model of those results that native work makes in another one."""
    lies_of = {n: lie for step in told if step.plan for n, lie in zip(step.writes, step.plan.results, strict=False)}
    inner = {n: f"{n}\0" for n, lie in lies_of.items() if n in results and lie != packed(lie.shape, lie.dtype)}
    if not inner:
        return list(told)
    from polyconv.operators.packing import packed_copy  # here, as few networks need it
    from polyconv.operators.running import conditions

    def named(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(inner.get(name, name) for name in names)

    def made_plan(arrays: Sequence[Any], into: tuple[Lies, ...]) -> Plan:
        return packed_copy(lies(arrays[0]), arrays[0].shape, conditions(threads))

    found = list[Told]()
    for step in told:
        looks = tuple((inner.get(n, n), inner.get(source, source), at) for n, source, at in step.looks)
        found.append(replace(step, reads=named(step.reads), writes=named(step.writes), looks=looks))
        for name in (n for n in step.writes if n in inner):
            lie = lies_of[name]
            plan = made_plan([like(lie)], ())
            segment = Segment(ENGINE, (), lambda arrays: [np.ascontiguousarray(arrays[0])], plan=made_plan)
            found.append(Told(step.index, (inner[name],), (name,), segment, plan, (), plan.results, 0.0))
    return found
