"""Models that see images of many sizes: a run with each for the first time, and again later.

Sizes grow from those of the given feeds to twice as much, along the extents that the file leaves open.  Engines take
turns with every size.  It must not know how engines are started.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.benchmark.process import GuestError, Process
from polyconv.dataclass import dataclass
from polyconv.models.graph import Value

__all__ = ["Sizes", "varied", "visited"]

_VISITS = 4
"""Runs with each size; engines learn from the first ones what later ones are like."""
_STEP = 32
"""Larger extents are multiples of this, as networks with strides want them."""

Feeds = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """One engine on a model that sees many sizes.

    Parameters
    ----------
    count : int
        How many there were.
    new_seconds, again_seconds : float or None
        Of a run with a size for the first time, and for the last: the medians of all sizes.
    why : str
        Why there is no time.
    """

    count: int
    new_seconds: float | None = None
    again_seconds: float | None = None
    why: str = ""


def varied(inputs: Sequence[Value], feeds: Feeds, count: int, only: Collection[str] = ()) -> list[Feeds]:
    """Feeds of so many sizes, in a random order; none if the file says all extents, or all but those of the batch.

    With names in ``only``, extents of other names stay what they are.
    """
    def varies(extent: int | str | None) -> bool:
        return not isinstance(extent, int) and (not only or extent in only)

    is_open = {value.name: [*map(varies, value.dims[1:])] for value in inputs if value.dims}
    if not any(any(axes) for axes in is_open.values()):
        return []

    def grown(extent: int, number: int) -> int:
        larger = extent * (count + number) // count
        return extent + number if extent < _STEP else max(-(-larger // _STEP), extent // _STEP + number) * _STEP

    def sized(name: str, a: NDArray[Any], number: int) -> NDArray[Any]:
        axes = zip(a.shape[1:], is_open.get(name, [False] * (a.ndim - 1)), strict=True)
        return np.resize(a, (*a.shape[:1], *(grown(e, number) if opened else e for e, opened in axes)))

    order = np.random.default_rng(0).permutation(count) + 1
    return [{name: sized(name, a, int(number)) for name, a in feeds.items()} for number in order]


def visited(processes: Mapping[str, Process], many: Sequence[Feeds], rng: np.random.Generator) -> dict[str, Sizes]:
    """Run a model that engines have open with every size, ``_VISITS`` times one size after the other."""
    times: dict[str, list[list[float]]] = {guest: [] for guest in processes}
    failures: dict[str, str] = {}
    for _ in range(_VISITS):
        for found in times.values():
            found.append([])
        for feeds in many:
            for guest in rng.permutation(sorted(set(processes) - set(failures))):
                try:
                    times[guest][-1].append(processes[guest].call("visit", guest, dict(feeds)))
                except GuestError as error:
                    failures[guest] = str(error)
    return {
        guest: Sizes(len(many), why=failures[guest]) if guest in failures
        else Sizes(len(many), statistics.median(found[0]), statistics.median(found[-1]))
        for guest, found in times.items()
    }  # fmt: skip
