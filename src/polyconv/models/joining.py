"""Values that a step only puts behind each other: they are written there at once, so that nothing is copied.

Turns the steps of a run into steps that copy what is left to copy, and says in which value's memory others lie.  The
one idea: a value has one place, so it lies within one whole; whoever wants it elsewhere as well copies it.  It must not
know operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from polyconv.models.told import Told

__all__ = ["Within", "joined"]


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


def joined(told: Sequence[Told], sizes: Mapping[str, int], shown: Mapping[str, str]) -> tuple[list[Told], Within]:
    """Steps that copy no more than what cannot lie in place, and where values lie.

    Parameters
    ----------
    told : sequence of Told
        All steps of a run, in order.
    sizes : mapping
        Bytes of the values that are made in memory of the run.
    shown : mapping
        Of these values and of those that show them: which one each shows.
    """
    within, found = Within(), list[Told]()
    for step in told:
        for name, source, offset in step.looks:
            if shown.get(name, name) != name:
                within.begins[name] = source, offset
        joins = step.plan.joins if step.plan is not None else None
        if step.plan is not None and joins is not None and step.writes[0] in sizes:
            names = [step.reads[number] for number in joins.inputs]
            left = _left(names, joins.begins, step.writes[0], sizes, within)
            if len(left) < len(names):
                jobs = joins.copies(left) if left else ()
                step = replace(step, plan=replace(step.plan, jobs=jobs))
        found.append(step)
    return found, within


def _left(names: Sequence[str], begins: Sequence[int], whole: str, sizes: Mapping[str, int], within: Within
          ) -> list[int]:  # fmt: skip
    """Which of the values that a whole is made of have to be copied; the others are told that they lie in it."""
    left = []
    room, ends = sizes[whole], [*begins[1:], sizes[whole]]
    for at, name in enumerate(names):
        place, offset = within.place(name)
        if place == whole:
            if offset != begins[at]:
                left.append(at)
            continue
        begin = begins[at] - offset
        end = begin + sizes.get(place, room + 1)
        others = (n for n, (low, high) in enumerate(zip(begins, ends, strict=True)) if low < end and begin < high)
        if begin < 0 or end > room or any(within.place(names[n]) != (place, begins[n] - begin) for n in others):
            left.append(at)
        else:
            within.begins[place] = whole, begin
    return left
