"""Passes from bytes to bytes: what is computed with a byte has 256 results, which a table holds.

``QuantizeLinear(Sigmoid(DequantizeLinear(x)))`` is one of them, however long what stands between.  The one idea: the
pass itself makes the table, of all bytes there are, so that every bit is what it would have made.  It must not know
what is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.kernels.language import Mask, Module, Type, Value, vector
from polyconv.kernels.lookup import PLACES, arranged, looked_up, way_of
from polyconv.kernels.values import Buffer
from polyconv.machine.host import profile_in_force
from polyconv.operators.along import Along, across, joined, sorted_by
from polyconv.operators.job import Array, Conditions, Planner, Planning, Step, address_of
from polyconv.operators.rows import each_vector, read, write
from polyconv.operators.running import Planned
from polyconv.operators.strided import walk_step, walked

__all__ = ["BYTES", "look_up", "table_of"]

BYTES = frozenset(("u8", "i8"))
"""Types that a table may be from and to."""

_CYCLES = {"halves": 4.0, "pieces": 24.0, "single": 1.5}
"""About the cycles that a vector takes by each way, or a byte alone."""
_FAR = 8 / 24
"""Share of a cache's bytes a cycle, as for any other pass."""


def table_of(planner: Planner, dtype: np.dtype[Any], rank: int) -> list[Array]:
    """What a pass makes of every byte, in the order of their bits: an array for each of its results.

    Its input has ``rank`` axes, so that whatever is broadcast to it can be.
    """
    every = np.arange(PLACES, dtype=np.uint8).view(dtype).reshape(*(1,) * (rank - 1), PLACES)
    return [array.reshape(-1) for array in Planned(planner, 1)([every])]


def look_up(planning: Planning, x: int, y: int, table: Array) -> None:
    """Add the job that writes to an array what stands in a table for every byte of another of the same shape."""
    c, extents = planning.c, planning.lie(x).shape
    if 0 in extents:
        return
    way, elements = way_of(c.target), math.prod(extents)
    held = planning.constant(arranged(table, way))
    lies = [planning.lie(number) for number in (x, y)]
    source, target = (across(lie.shape, lie.strides, extents, lie.offset) for lie in lies)
    cycles = elements * _CYCLES[way] / (1 if way == "single" else c.target.vector_bytes)
    cycles = max(cycles, 2 * elements / profile_in_force().stream("l3", _FAR))
    planning.job(lambda threads: [_looking(extents, source, target, c, threads)], [x, held, y], cycles)


def _looking(extents: Sequence[int], x: Along, y: Along, c: Conditions, threads: int) -> Step:
    held = Along(0, (0,) * len(extents))
    extents, operands = joined(*sorted_by(y, extents, [x, held, y]))
    together = all(operand.strides[-1] == 1 for operand in operands[::2])
    way = way_of(c.target) if together else "single"
    spec = _Looking(way, len(extents), together, c.target.vector_bytes, c.target.has_masks)
    driver = address_of(f"lookup {spec}", lambda k, name: _drive(k, name, spec), c)
    return walk_step(driver, extents, operands, threads)


@dataclass(frozen=True, slots=True)
class _Looking:
    """All that shapes the code; ``together`` says that bytes follow each other along the last axis."""

    way: str
    rank: int
    together: bool
    vector_bytes: int
    masks: bool

    def __str__(self) -> str:
        return f"{self.way} {self.rank} {'together' if self.together else 'apart'}"


def _drive(k: Module, name: str, spec: _Looking) -> None:
    """Add the driver."""
    kind = vector("i8", spec.vector_bytes)

    def row(places: list[Buffer], steps: list[list[Value]], ends: list[tuple[Value, Value]]) -> None:
        x, table, y = (k.rebase(place) for place in places)
        find = looked_up(k, spec.way, spec.vector_bytes, table)
        if spec.together and spec.way != "single":

            def some(at: Value, type_: Type, mask: Mask | None) -> None:
                write(k, find(read(k, type_, x + at, mask)), y + at, mask)

            each_vector(k, kind, *ends[0], spec.masks, some)
            return
        with k.loop(*ends[0]) as one:
            place = k.load(kind.scalar, x + one.index * steps[0][0])
            k.store(find(place), y + one.index * steps[2][0])

    walked(k, name, spec.rank, 1, (0, 1, 2), row)
