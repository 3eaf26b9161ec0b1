"""Values that a step only puts behind each other: they are written there at once, so that nothing is copied.

Turns the steps of a run into steps that copy what is left to copy, and says in which value's memory others lie.  The
one idea: a value has one place, so it lies within one whole; whoever wants it elsewhere as well copies it.  It must not
know operators.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace

from polyconv.dataclass import dataclass
from polyconv.models.told import Told

__all__ = ["Within", "joined", "left_of"]


@dataclass(frozen=True, slots=True)
class Within:
    """Values that lie in the memory of others: in which one each begins, and at which byte."""

    begins: dict[str, tuple[str, int]] = field(default_factory=dict)

    def place(self, name: str) -> tuple[str, int]:
        """The value that has memory of its own in which one lies, and the byte at which it begins there."""
        offset = 0
        while name in self.begins:
            name, more = self.begins[name]
            offset += more
        return name, offset


def joined(told: Sequence[Told], sizes: Mapping[str, int], shown: Mapping[str, str], results: Collection[str],
           first: Collection[str] = (), within: Within | None = None) -> tuple[list[Told], Within]:  # fmt: skip
    """Steps that copy no more than what cannot lie in place, and where values lie.

    Parameters
    ----------
    told : sequence of Told
        All steps of a run, in order.
    sizes : mapping
        Bytes of the values that native work makes.
    shown : mapping
        Of the values that lie in memory of the run, and of those that show them: which one each shows.
    results : collection of str
        Values whose memory comes with each run, so that nobody can look beforehand at what lies in them.
    first : collection of str
        Wholes that are put together before others.
    within : Within, optional
        What lies in others already.
    """
    within, found = within or Within(), list(told)
    for step in told:
        within.begins.update((n, (source, at)) for n, source, at in step.looks if shown.get(n, n) != n)
    seen = frozenset(name for step in told if step.plan is None for name in step.reads)
    for at in sorted(range(len(told)), key=lambda at: set(first).isdisjoint(told[at].writes)):
        plan = told[at].plan
        if plan is None or plan.joins is None or plan.joins.in_pixels:
            continue
        (whole,) = told[at].writes
        parts = [(told[at].reads[n], begin) for n, begin in zip(plan.joins.inputs, plan.joins.begins, strict=True)]
        fixed = results if within.place(whole)[0] not in results else {*results, *seen, *_wholes(within)}
        left = left_of(parts, whole, sizes, fixed, within)
        if len(left) < len(parts):
            found[at] = replace(told[at], plan=replace(plan, jobs=plan.joins.copies(left) if left else ()))
    return found, within


def _wholes(within: Within) -> set[str]:
    """Values in whose memory others lie."""
    return {whole for whole, _ in within.begins.values()}


def left_of(parts: Sequence[tuple[str, int]], whole: str, sizes: Mapping[str, int], fixed: Collection[str],
          within: Within) -> list[int]:  # fmt: skip
    """Which parts of a whole have to be copied; of the others it is told that they lie in it.

    Parameters
    ----------
    parts : sequence of (str, int)
        Values, and the byte of the whole at which each begins.
    fixed : collection of str
        Values that cannot lie elsewhere.
    """
    left, room = list[int](), sizes[whole]
    ends = [*(begin for _, begin in parts[1:]), room]
    root, shift = within.place(whole)
    for at, (name, wanted) in enumerate(parts):
        place, offset = within.place(name)
        if place == root:
            if offset != shift + wanted:
                left.append(at)
            continue
        low = wanted - offset
        high = low + sizes.get(place, room + 1)
        others = (part for part, end in zip(parts, ends, strict=True) if part[1] < high and low < end)
        is_free = place not in fixed and low >= 0 and high <= room
        if is_free and all(within.place(other) == (place, begin - low) for other, begin in others):
            within.begins[place] = whole, low
        else:
            left.append(at)
    return left
