"""Steps of several images at once: each thread does all of them for one image, and none waits for another.

Says which steps of a run are such a row: its lanes follow each other, from the first image to the last.  The one idea:
what a lane writes is read on the CPU that has written it.  It must not know how a step runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from polyconv.models.told import Told

__all__ = ["only_native", "rows"]


def rows(told: Sequence[Told]) -> Iterator[list[Told]]:
    """The steps of a run: those of each row of lanes together, each of the others alone."""
    row = list[Told]()
    for step in told:
        if row and (step.lane is None or row[-1].lane is None or step.lane < row[-1].lane):
            yield row
            row = []
        row.append(step)
    if row:
        yield row


def only_native(told: Sequence[Told], moving: Collection[str]) -> list[Told]:
    """The steps, without lanes where a row has steps that need Python in each run.

    Parameters
    ----------
    moving : collection of str
        Values whose memory comes with each run.
    """
    found = list[Told]()
    for row in rows(told):
        needs_python = any(s.plan is None and not (s.looks and set(s.reads).isdisjoint(moving)) for s in row)
        found += [replace(step, lane=None) for step in row] if needs_python else row
    return found
