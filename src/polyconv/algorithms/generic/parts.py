"""Families of sweeps to boxes of outputs whose taps that meet no padding are the same.

With a large kernel on a small map most products are with padding; in boxes they are left out.  It must not know what a
box costs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from polyconv.lowering.sweep import Family, Sweep, anywhere, pieces

__all__ = ["in_pieces"]


def in_pieces(whole: Sequence[Family], *, joined: bool) -> tuple[Family, ...]:
    """Families in such boxes, where these save enough products.

    If ``joined``, boxes with the same taps and inputs become one family: outputs of an axis with one input, each of
    which has a tap of its own, are rows of the same tiles.
    """
    found: list[Family] = []
    alike: dict[Sweep, int] = {}
    for box in itertools.chain.from_iterable(map(_boxes, whole)):
        key = tuple(anywhere(axis, axis.pad) for axis in box.sweep)
        if not joined or not all(axis.taps for axis in key) or any(any(shifts) for _, shifts in box.members):
            found.append(box)
        elif key in alike:
            first = found[alike[key]]
            found[alike[key]] = replace(first, members=first.members + box.members)
        else:
            alike[key] = len(found)
            found.append(box)
    return tuple(found)


def _boxes(family: Family) -> Iterator[Family]:
    """Those of a family; along an axis where members read different inputs it stays whole."""
    along = []
    for a, axis in enumerate(family.sweep):
        own = [member[a] for member, _ in family.members]
        alike = not any(shifts[a] for _, shifts in family.members)
        alike = alike and all(anywhere(of, of.pad) == anywhere(axis, axis.pad) for of in own)
        cut = pieces(axis) if alike and axis.taps else (axis,)
        of_members = [pieces(of) if len(cut) > 1 else (of,) for of in own]
        along.append([*zip(cut, zip(*of_members, strict=True), strict=True)])
    for box in itertools.product(*along):
        members = tuple(
            (tuple(of[number] for _, of in box), shifts) for number, (_, shifts) in enumerate(family.members)
        )
        yield Family(tuple(axis for axis, _ in box), members)
