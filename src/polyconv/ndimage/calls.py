"""Fields to calls: programs bound to how arrays lie, entered natively where that works.

It must not know passes, or what is summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.fields.plan import Field
from polyconv.fields.program import build
from polyconv.kernels.record import words
from polyconv.lowering.program import Program
from polyconv.machine.host import profile_in_force
from polyconv.operands import span
from polyconv.planning.planner import threads_of, waking
from polyconv.runtime import threads as pool
from polyconv.runtime.call import make_entry
from polyconv.target import Target

__all__ = ["Call", "Conditions", "Ready", "bound"]

Array = NDArray[Any]

_KEEP_GIL_SECONDS = 5e-6

_ENVIRONMENT = pool.control_word(strict=True)
"""Subnormal numbers count, as in SciPy."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Under which a call is made: its target, most threads, the workspace limit, and whether accesses are checked."""

    target: Target
    threads: int
    limit: int | None
    check: bool


class Ready(Protocol):
    """What filters arrays that lie as those it was made for."""

    def enter(self, x: Array, y: Array) -> Any:
        """Filter x into y and return it; None, and nothing done, where the arrays are others or memory is not there."""

    def __call__(self, x: Array, y: Array) -> None:
        """Filter x, of the shape and strides it was made for, into y."""

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A program bound to how its operands lie."""

    program: Program
    table: NDArray[np.int64]
    threads: int
    wake: int
    check: bool
    entry: Any

    def enter(self, x: Array, y: Array) -> Any:
        """As in ``Ready``."""
        return None if self.entry is None else self.entry(x, y, None)

    def __call__(self, x: Array, y: Array) -> None:
        """As in ``Ready``."""
        if self.enter(x, y) is not None:
            return
        if self.threads > 1:
            pool.start_workers(self.threads)
        if self.entry is not None:
            pool.grow_workspace(self.program.workspace * self.threads)
        if self.enter(x, y) is not None:
            return
        frame = words([v for a in (x, y) for v in span(a)] + [0] * 6)
        pool.run_steps(
            self.table, frame, self.program.workspace, environment=_ENVIRONMENT, threads=self.threads, wake=self.wake,
            check=self.check,
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of its tables."""
        return self.table.nbytes + sum(getattr(kept, "nbytes", 0) for kept in self.program.keep)


def bound(fields: Sequence[Field], x: Array, y: Array, c: Conditions) -> Call:
    """A call that computes fields of arrays that lie like these, whose outputs do not overlap."""
    seconds = sum(_seconds(field) for field in fields)
    threads = threads_of(c.threads, c.limit, seconds, 0)
    programs = [build(field, c.target, threads=threads, limit=c.limit, check=c.check) for field in fields]
    program = Program(
        tuple(step for one in programs for step in one.steps), max(one.workspace for one in programs),
        tuple(kept for one in programs for kept in one.keep),
    )  # fmt: skip
    items = sum(step.items for step in program.steps)
    threads = min(threads_of(c.threads, c.limit, seconds, program.workspace), max(1, items))
    table, wake, entry = pool.step_table(program.steps), waking(profile_in_force(), seconds), None
    if not c.check and items < pool.MOST_ITEMS:
        entry = make_entry((x, y, None), table, items, program.workspace, _ENVIRONMENT, threads, wake,
                           seconds < _KEEP_GIL_SECONDS, (program,))  # fmt: skip
    return Call(program, table, threads, wake, c.check, entry)


def _seconds(f: Field) -> float:
    """About the seconds of a field on one thread."""
    outputs, taps = 1.0, sum(stage.weights.size for stage in f.stages)
    for axis in f.axes:
        outputs *= axis.outputs
    return outputs * (1.0 + taps / 8) / profile_in_force().clock
