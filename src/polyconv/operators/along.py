"""How arrays lie in the space that a pass walks, and fewer axes of a space where all arrays allow it.

It must not know what is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from polyconv.dataclass import dataclass

__all__ = ["Along", "across", "joined", "sorted_by"]


@dataclass(frozen=True, slots=True)
class Along:
    """How an operand lies in the space of a pass: its first element, and byte strides; 0 where it is repeated."""

    offset: int
    strides: tuple[int, ...]


def across(shape: Sequence[int], strides: Sequence[int], extents: Sequence[int], offset: int) -> Along:
    """An array that is broadcast to some extents, as NumPy does."""
    more = len(extents) - len(shape)
    steps = (0,) * more + tuple(0 if e == 1 else s for e, s in zip(shape, strides, strict=True))
    return Along(offset, steps)


def sorted_by(one: Along, extents: Sequence[int], operands: Sequence[Along]) -> tuple[list[int], list[Along]]:
    """A space whose axes follow each other as those of one operand do in memory: its elements lie together last."""
    order = sorted(range(len(extents)), key=lambda a: -abs(one.strides[a]))
    return [extents[a] for a in order], [Along(o.offset, tuple(o.strides[a] for a in order)) for o in operands]


def joined(extents: Sequence[int], operands: Sequence[Along]) -> tuple[list[int], list[Along]]:
    """Axes of one element left out, and neighbours merged that every operand walks as one."""
    axes = [a for a, extent in enumerate(extents) if extent != 1] or [0] * bool(extents)
    if not axes:
        return [1], [Along(o.offset, (0,)) for o in operands]
    groups = [[axes[0]]]
    for a in axes[1:]:
        before = groups[-1][-1]
        if all(o.strides[before] == o.strides[a] * extents[a] for o in operands):
            groups[-1].append(a)
        else:
            groups.append([a])
    joined = [math.prod(extents[a] for a in group) for group in groups]
    return joined, [Along(o.offset, tuple(o.strides[group[-1]] for group in groups)) for o in operands]
