"""Where the values of a run lie in one memory: a place is free again after the last step that reads what lies there.

Lanes run side by side, so a place that one of them leaves is free for that lane alone until all are through.
It must not know how a step runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from polyconv.dataclass import dataclass
from polyconv.models.lanes import rows
from polyconv.models.told import Told, name_between

__all__ = ["LINE", "places"]

LINE = 64


@dataclass(slots=True)
class _Life:
    """The first and the last step that touches a place; of a row of lanes, all steps: from its first to its last.

    ``own`` are those alone that do, where all are of one ``lane``, which is its row's first step and its number.
    """

    first: int
    last: int
    own: tuple[int, int]
    lane: tuple[int, int | None] | None

    def meets(self, other: _Life) -> bool:
        """Whether two places are in use at once."""
        if self.lane is not None and self.lane == other.lane:
            return self.own[0] <= other.own[1] and other.own[0] <= self.own[1]
        return self.first <= other.last and other.first <= self.last


def _moments(told: Sequence[Told]) -> Iterator[tuple[Told, _Life]]:
    """The steps, each with the life of a place that it alone touches."""
    begin = 0
    for row in rows(told):
        last = begin + len(row) - 1
        for at, step in enumerate(row, begin):
            yield step, _Life(begin, last, (at, at), None if step.lane is None else (begin, step.lane))
        begin = last + 1


def _lives(told: Sequence[Told], sources: Mapping[str, str], results: Sequence[str]) -> dict[str, _Life]:
    """When every place is in use, in whatever values it shows."""
    lives: dict[str, _Life] = {}
    seen: dict[str, set[str]] = {}  # places in which what a run looks at anew may lie

    def touch(name: str, now: _Life) -> None:
        for place in {sources.get(name, name)} | seen.get(name, set()):
            was = lives.get(place, now)
            lane = was.lane if was.lane == now.lane else None
            lives[place] = _Life(was.first, now.last, (was.own[0], now.own[1]), lane)

    for step, now in _moments(told):
        own = [name_between(step, number) for number in range(len(step.plan.between))] if step.plan is not None else []
        if step.segment.views:
            within = {sources.get(name, name) for name in step.reads}.union(*(seen.get(n, set()) for n in step.reads))
            seen.update(dict.fromkeys(step.writes, within))
        for name in (*step.reads, *step.writes, *own):
            touch(name, now)
    for name in results:
        touch(name, _Life(len(told), len(told), (len(told), len(told)), None))
    return lives


def places(told: Sequence[Told], sources: Mapping[str, str], sizes: Mapping[str, int], results: Sequence[str]
            ) -> tuple[dict[str, int], int]:  # fmt: skip
    """Where values begin in a memory, and its size: large ones first, each where all that live with it leave room."""
    lives = _lives(told, sources, results)
    placed: list[tuple[str, int, int]] = []
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        begin, size = 0, -(-sizes[name] // LINE) * LINE
        for other, low, high in sorted(placed, key=lambda one: one[1]):
            if low < begin + size and begin < high and lives[name].meets(lives[other]):
                begin = high
        placed.append((name, begin, begin + size))
    return {name: begin for name, begin, _ in placed}, max((end for _, _, end in placed), default=0)
