"""Runs of several images: steps whose values are too large for a cache are done for an image after the other.

Turns the steps of a run into more steps, each for some images, so that what lies between two of them stays in a cache.
Of several threads, each does an image of its own where so many images do not crowd the last cache.
The one idea: images are parts of a whole, as what a Concat joins is; where they lie is found out as for those.  It must
not know operators.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from polyconv.errors import Error
from polyconv.machine.host import profile_in_force
from polyconv.models.graph import Array
from polyconv.models.segment import ENGINE, Segment
from polyconv.models.told import Told
from polyconv.operators.job import Known, Operation, Own
from polyconv.operators.lying import Lies, like
from polyconv.operators.running import conditions
from polyconv.operators.table import taken

__all__ = ["by_images"]

_LARGE = 1 / 8
"""Share of a last cache: steps that read and write more lose what the step before wrote."""
_CROWDED = 3 / 4
"""Share of a last cache that images side by side may take.  On two threads of a Zen 5 with 32 MB ESPCN, whose largest
step has 17 MB an image, took 9 % longer; YOLOv8 with 10 MB the same time; networks of 1 to 7 MB took 3 to 9 % less."""
_MOST_GROUPS = 64
"""Of images: each has jobs of its own."""


def by_images(told: Sequence[Told], results: Collection[str], lies: Mapping[str, Lies], threads: int
              ) -> tuple[list[Told], set[str]]:  # fmt: skip
    """Steps, large ones image by image.

    Parameters
    ----------
    told : sequence of Told
        All steps of a run, in order.
    results : collection of str
        What the run returns.
    lies : mapping
        How all values lie.
    threads : int
        That share the work.

    Returns
    -------
    list of Told, set of str
        The steps, and the values that are made of images.
    """
    found, wholes, at = list[Told](), set[str](), 0
    for begin, end, images in _rows(told, lies):
        groups = next((n for n in range(min(images, _MOST_GROUPS), 1, -1) if images % n == 0), 1)
        few = [_for_few(step, lies, images // groups, groups) for step in told[begin:end] if groups > 1]
        for first, steps in _parts(begin, few):
            last = first + len(steps)
            read = set(results).union(*(step.reads for step in (*told[:first], *told[last:])))
            lanes = threads if _fit_side_by_side(steps, threads) else 1
            one_by_one, made = _unrolled(told[first:last], steps, groups, read, lies, lanes)
            found += [*told[at:first], *one_by_one]
            wholes |= made
            at = last
    return [*found, *told[at:]], wholes


def _rows(told: Sequence[Told], lies: Mapping[str, Lies]) -> Iterator[tuple[int, int, int]]:
    """Steps in a row of which it is worth it: the first, the one after the last, and their images."""
    large = profile_in_force().cache("l3", _LARGE)
    sizes = [sum(lies[name].size for name in {*step.reads, *step.writes}) for step in told]
    images = [_images(step, size, lies) for step, size in zip(told, sizes, strict=True)]
    begin = 0
    while begin < len(told):
        end = begin + 1
        while end < len(told) and images[end] == images[begin]:
            end += 1
        heavy = [at for at in range(begin, end) if told[at].plan is not None and sizes[at] > large]
        if images[begin] > 1 and heavy:
            yield heavy[0], heavy[-1] + 1, images[begin]
        begin = end


def _parts(begin: int, few: Sequence[Told | None]) -> Iterator[tuple[int, list[Told]]]:
    """Steps for some images without those that are none, where several do work: the number of the first, and they."""
    part = list[Told]()
    for at, step in enumerate([*few, None], begin):
        if step is not None:
            part.append(step)
            continue
        if sum(each.plan is not None for each in part) > 1:
            yield at - len(part), part
        part = []


def _images(step: Told, size: int, lies: Mapping[str, Lies]) -> int:
    """How many images a step may do one after the other; 1 where it has to do all at once, or had better."""
    read, made = [lies[name] for name in step.reads], step.made
    counts = {lie.shape[0] if lie.shape else 1 for lie in (*read, *made)}
    count = counts.pop() if read and made else 1
    if count == 1 or counts:
        return 1
    if step.plan is None:
        looks = zip(made, step.looks, strict=False)
        return count if step.looks and all(_looks_within(m, read[0], at) for m, (*_, at) in looks) else 1
    is_alone = step.segment.by_image and len({len(lie.shape) for lie in (*read, *made)}) == 1
    return count if is_alone and _weighs_less(step, count, size) else 1


def _weighs_less(step: Told, images: int, size: int) -> bool:
    """Whether weights, which are read again for each image, are smaller than what an image reads and writes."""
    return step.segment.held() * images < size


def _looks_within(made: Lies, read: Lies, offset: int) -> bool:
    """Whether a view shows of each image that image alone."""
    inside = [(e - 1) * s for e, s in zip(made.shape[1:], made.strides[1:], strict=True)]
    low, high = offset + sum(min(0, s) for s in inside), offset + sum(max(0, s) for s in inside)
    return made.strides[0] == read.strides[0] > 0 and low >= 0 and high + made.dtype.itemsize <= read.strides[0]


def _of_group(name: str, number: int) -> str:
    """Of a value's images, those of a group."""
    return f"{name}\0images {number}"


def _fit_side_by_side(few: Sequence[Told], threads: int) -> bool:
    """Whether the last cache has room for what the largest step reads and writes, of a group for each thread."""
    made = {name: lie.size for step in few for name, lie in zip(step.writes, step.made, strict=True)}
    most = max(sum(made.get(name, 0) for name in {*step.reads, *step.writes}) for step in few)
    return most * threads <= profile_in_force().cache("l3", _CROWDED)


def _unrolled(part: Sequence[Told], few: Sequence[Told], groups: int, read: Collection[str],
              lies: Mapping[str, Lies], lanes: int) -> tuple[list[Told], set[str]]:  # fmt: skip
    """A part, for one group of images after the other, and what it makes whole for those who read it.

    Groups that are as many as lanes are done side by side, the rest after them.
    """
    again = _looked_at(part, read)
    seen = {*read, *(name for look in again for name in look.reads)}
    wholes = [name for step in part if step.plan is not None for name in step.writes if name in seen]
    made = {name: lie for step in few for name, lie in zip(step.writes, step.made, strict=True)}
    given = dict.fromkeys(name for step in part for name in step.reads if name not in made)
    images = few[0].made[0].shape[0]
    found = [_cut(part[0].index, name, _few(lies[name], images), groups) for name in given]
    for number in range(groups):
        lane = number % lanes if lanes > 1 and number < groups - groups % lanes else None
        found += [replace(_renamed(step, number), lane=lane) for step in few]
    joins = [_join(part[-1].index, name, made[name], groups) for name in wholes]
    return [*found, *joins, *again], set(wholes)


def _looked_at(part: Sequence[Told], read: Collection[str]) -> list[Told]:
    """Views that somebody looks at beyond a part: they are of whole values."""
    found: list[Told] = []
    for step in reversed(part):
        if step.plan is None and any(n in read or any(n in look.reads for look in found) for n in step.writes):
            found.insert(0, step)
    return found


def _few(lie: Lies, images: int) -> Lies:
    """How some images of a value lie."""
    less = (lie.shape[0] - images) * lie.strides[0]
    return replace(lie, shape=(images, *lie.shape[1:]), size=lie.size - abs(less), offset=lie.offset + min(0, less))


def _for_few(step: Told, lies: Mapping[str, Lies], images: int, groups: int) -> Told | None:
    """A step for some images; None where it makes something else of them."""
    made = tuple(_few(lie, images) for lie in step.made)
    if step.plan is None:
        return replace(step, made=made, segment=_looking(step, images, groups))
    plan = None
    with suppress(Error):  # a constant may be of all images
        plan = step.segment.plan([like(_few(lies[name], images)) for name in step.reads], ())
    if plan is None or [(lie.shape, lie.dtype) for lie in plan.results] != [(lie.shape, lie.dtype) for lie in made]:
        return None
    return replace(step, plan=plan, made=plan.results, seconds=step.seconds / groups)


def _renamed(step: Told, number: int) -> Told:
    """A step of the values of a group."""
    reads, writes = (tuple(_of_group(name, number) for name in names) for names in (step.reads, step.writes))
    looks = tuple((_of_group(name, number), _of_group(source, number), at) for name, source, at in step.looks)
    return replace(step, reads=reads, writes=writes, looks=looks)


def _looking(step: Told, images: int, groups: int) -> Segment:
    """A view for some images: that of all, of which only those are there."""

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        few = arrays[0]
        every = np.lib.stride_tricks.as_strided(few, (images * groups, *few.shape[1:]), few.strides, writeable=False)
        return [view[:images] for view in step.segment.run([every])]  # which reads nothing

    return Segment(ENGINE, (), run, views=True, looks=True)


def _cut(index: int, name: str, few: Lies, groups: int) -> Told:
    """A step that shows groups of images of a value."""
    images = few.shape[0]

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        return [arrays[0][number * images : (number + 1) * images] for number in range(groups)]

    names = tuple(_of_group(name, number) for number in range(groups))
    looks = tuple((each, name, number * images * few.strides[0]) for number, each in enumerate(names))
    segment = Segment(ENGINE, (), run, views=True, looks=True)
    return Told(index, (name,), names, segment, None, looks, (few,) * groups, 0.0)


def _join(index: int, name: str, few: Lies, groups: int) -> Told:
    """A step that makes a value of its groups of images."""
    joining = taken(Operation("Concat", 13, {"axis": 0}, (Known(few.dtype.name, few.shape),) * groups))
    assert isinstance(joining, Own)
    plan = joining.planner([few] * groups, conditions(1))
    segment = Segment(ENGINE, (), lambda arrays: [np.concatenate(arrays)])
    names = tuple(_of_group(name, number) for number in range(groups))
    return Told(index, names, (name,), segment, plan, (), plan.results, 0.0)
