"""Bands: the ranges of taps that meet the input, and which of them every output of an axis has.

Outputs near an edge have fewer taps than others; with the bands of its axes known, an algorithm lists taps once for all
outputs that share them.  It must not know what a list looks like.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

from polyconv.dataclass import dataclass
from polyconv.lowering.sweep import Axis, Sweep, changes

__all__ = ["Bands", "Kinds", "bands", "bands_table", "share_met", "whole_bands"]


@dataclass(frozen=True, slots=True)
class Kinds:
    """A number for every output of an axis, as runs of equal ones: (number, outputs).  There may be 2^33 outputs."""

    runs: tuple[tuple[int, int], ...]

    def __iter__(self) -> Iterator[int]:
        return itertools.chain.from_iterable(itertools.repeat(kind, count) for kind, count in self.runs)


Bands = tuple[tuple[range, ...], Kinds]
"""Ranges of taps of an axis, and for every output which of them it has."""


def bands(axes: Sweep, most: int) -> list[Bands]:
    """The ranges of taps that meet input for some output, axis by axis, in at most ``most`` combinations.

    Axes with more have all their taps for all outputs.
    """
    found = [_met(axis) for axis in axes]
    while math.prod(len(kinds) for kinds, _ in found) > max(1, most):
        a = max(range(len(found)), key=lambda a: len(found[a][0]))
        found[a] = whole_bands((axes[a],))[0]
    return found


def whole_bands(axes: Sweep) -> list[Bands]:
    """All taps for all outputs."""
    return [((range(axis.taps),), Kinds(((0, axis.out),))) for axis in axes]


def share_met(axes: Sweep, found: Sequence[Bands]) -> float:
    """Share of the taps of all outputs that bands leave."""
    shares = [
        sum(count * len(kinds[kind]) for kind, count in of_output.runs) / max(1, axis.out * axis.taps)
        for axis, (kinds, of_output) in zip(axes, found, strict=False)
    ]
    return math.prod(shares)


def bands_table(found: Sequence[Bands]) -> list[int]:
    """Where the table of every axis begins, and for each of its outputs what it adds to the number of a combination."""
    begins: list[int] = []
    table: list[int] = []
    for a, (_, of_output) in enumerate(found):
        begins.append(len(found) + len(table))
        scale = math.prod(len(kinds) for kinds, _ in found[a + 1 :])
        table += [scale * kind for kind in of_output]
    return begins + table


@lru_cache(256)
def _met(axis: Axis) -> Bands:
    found: dict[range, int] = {}

    def kind(o: int) -> int:
        at = o * axis.stride - axis.pad
        first = min(axis.taps, max(0, -(at // axis.dilation)))
        end = max(first, min(axis.taps, (axis.inp - 1 - at) // axis.dilation + 1))
        return found.setdefault(range(first, end), len(found))

    cuts = range(axis.out + 1) if axis.out <= 2 * axis.taps else changes(axis)
    runs = tuple((kind(low), high - low) for low, high in itertools.pairwise(cuts))
    return tuple(found), Kinds(runs)
