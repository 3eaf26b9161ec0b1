"""Inputs whose values a plan depends on, as pads and repeats are: constants, or numbers that come with a run.

It must not know operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from polyconv.errors import ArgumentError
from polyconv.operators.job import Conditions, Known, Operation, Own, Plan
from polyconv.operators.lying import Lies

__all__ = ["COMES_WITH_THE_RUN", "MOST_NUMBERS", "with_numbers"]

COMES_WITH_THE_RUN = "a parameter comes with the run"
"""Why nothing is known of an operation yet, though it may be once a run has given its numbers."""

MOST_NUMBERS = 128
"""Of an input: two for each axis that an array can have at most."""


def with_numbers(operation: Operation, positions: Sequence[int], read: Callable[[Operation], Own | str]) -> Own | str:
    """An operation of which some inputs are numbers: read at once where they are constants, else when a run has them.

    Parameters
    ----------
    positions : sequence of int
        Of those inputs; the first input is none of them.
    read : callable
        What runs the operation, if all of them are constants; it reads the first input alone.
    """
    found = read(operation)
    late = [at for at in positions if at < len(operation.inputs) and (given := operation.inputs[at]) is not None
            and given.value is None]  # fmt: skip
    x = operation.inputs[0]
    if found != COMES_WITH_THE_RUN or not late or x is None:
        return found

    def planned(given: Sequence[Lies], c: Conditions) -> Plan:
        inputs = list(operation.inputs)
        for at, lie in zip(late, given[1:], strict=True):
            if lie.values is None:
                raise ArgumentError("its numbers are not known before a run")
            if len(lie.values) > MOST_NUMBERS:
                raise ArgumentError(f"it is given more than {MOST_NUMBERS} numbers for the axes of an array")
            inputs[at] = Known(lie.dtype.name, lie.shape, np.array(lie.values, lie.dtype).reshape(lie.shape))
        own = read(replace(operation, inputs=tuple(inputs)))
        if isinstance(own, str):
            raise ArgumentError(own)
        return _after(own.planner(given[:1], c), len(late))

    return Own((0, *late), (x.dtype,), planned, tuple(range(1, 1 + len(late))))


def _after(plan: Plan, more: int) -> Plan:
    """A plan of one input as one of some more inputs behind it, which its jobs do not read."""
    jobs = (replace(job, operands=tuple(n + more if n else n for n in job.operands)) for job in plan.jobs)
    launches = (replace(one, operands=tuple((n + more if n else n, o) for n, o in one.operands))
                for one in plan.launches)  # fmt: skip
    return replace(plan, jobs=tuple(jobs), launches=tuple(launches))
