"""How threads share boxes of tiles: smaller boxes, or some of a box's output channels for each thread.

Every box streams the transformed weights, every item of a box transforms its inputs: both are counted.  No tile, and no
bit, depends on it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from polyconv.algorithms.winograd.boxes import Boxes, sizes
from polyconv.algorithms.winograd.cost import cycles, is_stacked
from polyconv.algorithms.winograd.tiles import cuts, halves
from polyconv.lowering.situation import Situation
from polyconv.lowering.traffic import is_slow_beyond

__all__ = ["shared"]

_WORTH_CUTTING = 0.95
"""Boxes are cut for threads where the busiest one then takes less than this share of its cycles."""
_AGAIN = 3.0
"""How much longer than predicted inputs take that each item of a box transforms anew, where the last cache is slow: ten
layers on two threads of an Emerald Rapids, each by all boxes and items."""
_COUNTED_ITEMS = 64
"""Of so many items a thread it is found out which thread takes which; of more, how they come out is estimated."""


def shared(s: Situation, boxes: Boxes) -> tuple[Boxes, int]:
    """Boxes with which the busiest thread has least to do, and into how many items each is cut by output channels."""
    return (boxes, 1) if s.threads == 1 else _shared(s, boxes)


@lru_cache(256)
def _shared(s: Situation, boxes: Boxes) -> tuple[Boxes, int]:
    whole, blocks = replace(boxes, case=replace(boxes.case, s=s)), boxes.case.blocks
    splits = sorted({-(-blocks // -(-blocks // n)) for n in range(1, 2 * s.threads + 1)})
    loads = [(load, some, n) for some in _finer(whole) for load, n in zip(_loads(some, splits), splits, strict=True)]
    least, found, n = min(loads, key=lambda choice: choice[0])
    return (found, n) if least < _WORTH_CUTTING * loads[0][0] else loads[0][1:]


def _finer(boxes: Boxes) -> list[Boxes]:
    """The boxes, and others with fewer rows of tiles each, or with parts of the one row there is."""
    case, both = boxes.case, boxes.case.transformed == 2
    axis, m, cut = (case.sweep[-2], case.y.m, boxes.rows) if both else (case.sweep[-1], case.x.m, boxes.columns)
    inner = [cuts(axis, m, most, cut.first.residues) for most in halves(len(cut.first.sizes))]
    depths = [(*boxes.outer[:-1], depth) for depth in halves(boxes.outer[-1])] if boxes.outer else [()]
    found = (
        sizes(case, *((some, boxes.columns) if both else (boxes.rows, some)), outer, boxes.together)
        for outer, some in itertools.product(depths, inner)
    )
    return [boxes, *(other for other in found if other.workspace < boxes.workspace)]


def _loads(b: Boxes, splits: Sequence[int]) -> list[float]:
    """Cycles of the thread that has most to do, by items of a box: each thread takes the next when it has done one."""
    s, terms, blocks = b.case.s, cycles(b), b.case.blocks
    cut = [
        [len(range(axis.out)[first : first + deep]) for first in range(0, axis.out, deep)]
        for axis, deep in zip(b.case.outer, b.outer, strict=True)
    ]  # fmt: skip
    cut += [[rows.tiles for rows in b.rows.boxes], [columns.tiles for columns in b.columns.boxes]]
    tiles = [math.prod(sizes) for sizes in itertools.product(*cut)]
    times = s.problem.groups * (1 if is_stacked(s.problem, b.case.sweep) else s.problem.n or 0)
    of_tiles, again = 1 / max(1, sum(tiles) * times), _AGAIN if is_slow_beyond(s.profile) else 1.0
    found = []
    for n in splits:
        share, inputs = -(-blocks // n), terms["inputs"] * (again if n > 1 else 1.0)
        parts = [min(share, blocks - first) / blocks for first in range(0, blocks, share)]
        of_items = [inputs + (terms["products"] + terms["outputs"]) * part for part in parts]
        if len(tiles) * n * times > _COUNTED_ITEMS * s.threads:
            found.append(sum(of_items) / s.threads + max(tiles) * max(of_items) * of_tiles / 2)
            continue
        busy = [0.0] * s.threads
        for of_item, count in itertools.product(of_items * times, tiles):
            heapq.heapreplace(busy, busy[0] + of_item * count * of_tiles)
        found.append(max(busy))
    return found
