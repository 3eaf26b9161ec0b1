"""Where the values of a run lie in one memory: a place is free again after the last step that reads what lies there.

It must not know how a step runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyconv.models.told import Told, name_between

__all__ = ["LINE", "places"]

LINE = 64


def _lives(told: Sequence[Told], sources: Mapping[str, str], results: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The steps that make and last read every place, in whatever values it shows."""
    lives: dict[str, tuple[int, int]] = {}
    seen: dict[str, set[str]] = {}  # places in which what a run looks at anew may lie

    def touch(name: str, at: int) -> None:
        for place in {sources.get(name, name)} | seen.get(name, set()):
            lives[place] = lives.get(place, (at, at))[0], at

    for at, step in enumerate(told):
        own = [name_between(step, number) for number in range(len(step.plan.between))] if step.plan is not None else []
        if step.segment.views:
            within = {sources.get(name, name) for name in step.reads}.union(*(seen.get(n, set()) for n in step.reads))
            seen.update(dict.fromkeys(step.writes, within))
        for name in (*step.reads, *step.writes, *own):
            touch(name, at)
    for name in results:
        touch(name, len(told))
    return lives


def places(told: Sequence[Told], sources: Mapping[str, str], sizes: Mapping[str, int], results: Sequence[str]
            ) -> tuple[dict[str, int], int]:  # fmt: skip
    """Where values begin in a memory, and its size: large ones first, each where all that live with it leave room."""
    lives = _lives(told, sources, results)
    placed: list[tuple[str, int, int]] = []
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        first, last = lives[name]
        begin, size = 0, -(-sizes[name] // LINE) * LINE
        for other, low, high in sorted(placed, key=lambda one: one[1]):
            meets = lives[other][0] <= last and first <= lives[other][1]
            if meets and low < begin + size and begin < high:
                begin = high
        placed.append((name, begin, begin + size))
    return {name: begin for name, begin, _ in placed}, max((end for _, _, end in placed), default=0)
