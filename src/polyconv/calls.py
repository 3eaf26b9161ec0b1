"""Calls: a program bound to arrays of given shapes and strides, run again and again.

Turns a program and how arrays lie into native steps and, where a layer calls itself often, into a native entry that
looks at arrays without Python.  In check mode every call runs twice and must not depend on memory that nobody wrote.
It must not know weights or algorithms.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.errors import Error
from polyconv.kernels.record import words
from polyconv.lowering.program import Program, Step
from polyconv.machine.profile import Profile
from polyconv.operands import span
from polyconv.planning.planner import waking
from polyconv.runtime import threads as pool
from polyconv.runtime.arrays import MARKS, mark, marked, may_overlap
from polyconv.runtime.call import make_entry
from polyconv.runtime.memory import allocating
from polyconv.settings import spelled_bytes

__all__ = ["Call", "Operands", "bound", "execute", "make_ready", "run_now"]

Array = NDArray[Any]
Operands = tuple[Array, Array, Array | None, Array | None, Array | None]
"""Input, result, residual, offset and mask."""

_KEEP_GIL_SECONDS = 5e-6
"""A call predicted shorter keeps the interpreter's lock: letting go and taking it again would take longer."""


@dataclass(frozen=True, slots=True)
class Call:
    """A program bound to arrays of given shapes and strides.

    Parameters
    ----------
    key : tuple
        Shapes, strides and what else it was made for.
    algorithm : str
        Which one the program is of.
    plan_threads : int
        Most threads that share it.
    program : Program
    steps : array
        Address, words, their bytes and items of each step.
    is_strict : bool
        Whether subnormal numbers count.
    wake : int
        As ``planner.waking`` says.
    check : bool
        Whether kernels check bounds, and results are computed twice.
    entry : object or None
        The native entry; None where arrays must be looked at in Python.
    shape, dtype
        Of the result.
    copies : bool
        Whether the program is one for packed arrays, of which copies are made.
    table_bytes : int
        Of the program's words and the tables that they point to.
    """

    key: Any
    algorithm: str
    plan_threads: int
    program: Program
    steps: NDArray[np.int64]
    is_strict: bool
    wake: int
    check: bool
    entry: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    copies: bool
    table_bytes: int


def bound(program: Program, key: Any, algorithm: str, arrays: Operands, *, threads: int, strict: bool, seconds: float,
          profile: Profile, check: bool, often: bool, copies: bool) -> Call:  # fmt: skip
    """Bind a program to arrays.

    Parameters
    ----------
    threads : int
        Most that share it, if it has so many items.
    seconds : float
        Predicted of a call.
    often : bool
        Whether calls with such arrays are expected again, so that an entry is worth making.
    copies : bool
        Whether the program is one for packed arrays.
    """
    x, y, _, offset, _ = arrays
    table = pool.step_table(program.steps)
    items = sum(step.items for step in program.steps)
    threads = min(threads, max(1, items))
    environment, wake, entry = pool.control_word(strict=strict), waking(profile, seconds), None
    if often and not copies and not check and x.size and items < pool.MOST_ITEMS:
        taken = arrays[:3] if offset is None else arrays
        entry = make_entry(taken, table, items, program.workspace, environment, threads, wake,
                           seconds < _KEEP_GIL_SECONDS, (program,))  # fmt: skip
    call = Call(key, algorithm, threads, program, table, strict, wake, check, entry, y.shape, y.dtype, copies,
                program.table_bytes)  # fmt: skip
    make_ready(call)
    return call


def make_ready(call: Call) -> None:
    """Have what a call shares with others: the pool's threads and its workspace (both are lost in a fork)."""
    if call.plan_threads > 1:
        pool.start_workers(call.plan_threads)
    if call.entry is not None:
        with _in_workspace(call):
            pool.grow_workspace(call.program.workspace * call.plan_threads)


def execute(call: Call, arrays: Operands) -> None:
    """Run a call on arrays.

    Raises
    ------
    Error
        In check mode, if a result depends on memory that nobody wrote.
    """
    if call.copies:
        _execute_packed(replace(call, copies=False), arrays)
        return
    _, y, residual, _, _ = arrays
    frame = words([v for a in arrays for v in ((0, 0) if a is None else span(a))])

    def run() -> None:
        with _in_workspace(call):
            pool.run_steps(
                call.steps, frame, call.program.workspace, environment=pool.control_word(strict=call.is_strict),
                threads=call.plan_threads, wake=call.wake, check=call.check,
            )  # fmt: skip

    if not call.check:
        run()
        return
    # what depends on memory that nobody wrote differs between the marks such memory starts as
    added = residual.copy() if residual is not None and may_overlap(residual, y) else None
    found = []
    for pattern in MARKS:
        with marked(pattern):
            if added is None:
                mark(y)
            else:
                y[...] = added
            run()
        found.append(y.copy("C"))
    _same_or_raise(*found)


def _execute_packed(call: Call, arrays: Operands) -> None:
    """Run a call on packed copies of the arrays."""
    x, y, residual, offset, mask = arrays
    with allocating(f"{call.algorithm} needs packed arrays: a copy of each", "pass such arrays"):
        result = np.empty(y.shape, y.dtype)
        x, residual = np.ascontiguousarray(x), None if residual is None else np.ascontiguousarray(residual)
    execute(call, (x, result, residual, offset, mask))
    y[...] = result


def run_now(step: Step, scratch: int, threads: int, *, check: bool) -> None:
    """Run a single step that reads no operands, as those do that pack weights."""
    pool.run_steps(
        pool.step_table([step]), words([0] * 10), scratch, environment=pool.control_word(strict=True),
        threads=threads, wake=2, check=check,
    )  # fmt: skip


def _in_workspace(call: Call) -> AbstractContextManager[None]:
    def needed() -> str:
        size = spelled_bytes(call.program.workspace * call.plan_threads)
        return f"the workspace of {call.plan_threads} thread(s) takes {size}"

    return allocating(needed, "lower threads, or set a workspace_limit")


def _same_or_raise(one: Array, other: Array) -> None:
    """Compare two runs bit by bit.

    Raises
    ------
    Error
        If outputs differ: they were never written, or computed from memory that was not.
    """
    bits = (one.nbytes // max(1, one.size),)
    differ = (one.view(np.uint8).reshape(one.shape + bits) != other.view(np.uint8).reshape(one.shape + bits)).any(-1)
    if differ.any():
        at = tuple(int(i) for i in np.argwhere(differ)[0])
        raise Error(
            f"{int(differ.sum())} of {one.size} outputs, the first at {at}, were not written or come from memory that "
            f"was not; please report it"
        )
