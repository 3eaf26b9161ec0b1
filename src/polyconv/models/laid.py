"""The steps of runs that are alike, and where their values lie: all of a replay that does not know a single address.

It must not know how they are found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from polyconv.dataclass import dataclass
from polyconv.models.told import Told
from polyconv.operators.lying import Lies

__all__ = ["Laid"]


@dataclass(frozen=True, slots=True)
class Laid:
    """Steps of runs that are alike, and where values lie.

    Parameters
    ----------
    told : sequence of Told
        The steps, in order.
    results : tuple of str
        What a run returns.
    feeds : mapping
        How arrays lie that come with each.
    switches : mapping
        Of those feeds by which branches are chosen: their numbers.
    lies : mapping
        How values lie.
    held : mapping
        Values that are the same in every run.
    moving : frozenset of str
        Values whose memory comes with each run.
    inside : mapping
        Of values that lie in the memory of one of those: in which, and at which byte.
    begins : mapping
        Of the others: where in the memory of the run they begin.
    size : int
        Bytes of that memory.
    still : tuple of int
        Numbers of the steps of which a run has nothing to do.
    threads : int
        Most that work on a step.
    """

    told: Sequence[Told]
    results: tuple[str, ...]
    feeds: Mapping[str, Lies]
    switches: Mapping[str, Any]
    lies: Mapping[str, Lies]
    held: Mapping[str, Any]
    moving: frozenset[str]
    inside: Mapping[str, tuple[str, int]]
    begins: Mapping[str, int]
    size: int
    still: tuple[int, ...]
    threads: int
