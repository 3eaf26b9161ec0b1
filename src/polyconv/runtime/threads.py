"""The pool: worker threads that enter native code once and stay, the workspace they share, and jobs for them.

``runner`` is the code they stay in, ``runner_text`` says what a job is, and ``control`` is where they find it.  A job
runs on the pool if that is free, else on the caller alone.  It must know nothing of convolutions.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from polyconv.errors import Error
from polyconv.kernels.address import address
from polyconv.kernels.language import ERROR_CELL_BYTES
from polyconv.kernels.objects import EVENTS
from polyconv.kernels.record import words
from polyconv.runtime.arrays import aligned, mark, unwritten
from polyconv.runtime.control import CONTROL, poke
from polyconv.runtime.runner import HAS_FUTEX, HERE, function, native
from polyconv.runtime.runner_text import FRAME_WORDS

__all__ = [
    "MOST_ITEMS", "MOST_WORKERS", "Chain", "Ready", "control_word", "grow_workspace", "mark_workspace", "rouse",
    "run_steps", "side_by_side", "start_workers", "step_table", "workspace_bytes",
]  # fmt: skip

MOST_WORKERS = 63
MOST_ITEMS = 1 << 31
"""More items are not shared: a ticket counts them in 32 bits."""
_SPIN_NANOSECONDS = 50_000

Words = NDArray[np.int64]


class _Step(Protocol):
    """A driver's address, its words, and how many items it has."""

    @property
    def driver(self) -> int: ...
    @property
    def words(self) -> Words: ...
    @property
    def items(self) -> int: ...


_starting = threading.Lock()
_starter = [0]
"""The thread that holds it; 0 for none."""
_workers: list[threading.Thread] = []


def start_workers(threads: int) -> None:
    """Have at least ``threads - 1`` workers; none on systems without futex or during shutdown."""
    wanted = min(threads - 1, MOST_WORKERS)
    if not HAS_FUTEX or len(_workers) >= wanted or sys.is_finalizing():
        return
    if _starter[0] == threading.get_ident():  # a finaliser, run amid the lines below: what they start is enough
        return
    with _starting:
        _starter[0] = threading.get_ident()
        try:
            _start(wanted)
        finally:
            _starter[0] = 0


def _start(wanted: int) -> None:
    """Start workers up to a number, and tell the control block of them all."""
    allowed = os.sched_getaffinity(0)
    for group in range(16):
        bits = sum(1 << (c - 64 * group) for c in allowed if c // 64 == group)
        poke(576 + 8 * group, ctypes.c_uint64, bits)
    spin = int(_SPIN_NANOSECONDS * _cycles_per_nanosecond())
    enter = function("worker", ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    while len(_workers) < wanted:
        number = len(_workers) + 1
        thread = threading.Thread(target=enter, args=(CONTROL, number, spin), daemon=True, name=f"polyconv-{number}")
        _workers.append(thread)  # before it starts: an interrupt must not leave its number to another
        try:
            thread.start()
        except RuntimeError:  # no more threads to be had: those that run are enough
            _workers.pop()
            break
    for at, worker in enumerate(_workers):
        poke(320 + 4 * at, ctypes.c_int32, worker.native_id or -1)  # 0 would mean the caller
    poke(288, ctypes.c_uint64, 0)
    poke(296, ctypes.c_uint64, spin)
    poke(280, ctypes.c_int32, -1)
    poke(284, ctypes.c_int32, len(_workers))


@cache
def _cycles_per_nanosecond() -> float:
    """Rate of the cycle counter; only the length of a spin depends on it."""
    read = function("counter", result=ctypes.c_int64)
    start, first = time.perf_counter_ns(), read()
    while time.perf_counter_ns() - start < 200_000:
        pass
    return float(max(0.01, (read() - first) / (time.perf_counter_ns() - start)))


def _after_fork() -> None:
    """In a child there are no workers, and the lock may have been held by a thread that is gone."""
    global _starting
    _workers.clear()
    _starting, _starter[0] = threading.Lock(), 0
    for offset in (0, 64, 72, 128, 192, 256, 264, 280):
        poke(offset, ctypes.c_uint64, 0)
    # less than any job needs: native entries refuse, and on its way through Python a call makes the pool anew
    poke(272, ctypes.c_int64, -1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def grow_workspace(size: int) -> None:
    """Make the shared workspace at least ``size`` bytes, if nobody is using it."""
    if ctypes.c_int64.from_address(CONTROL + 272).value >= size:
        return
    if not _acquire():
        return
    try:
        memory = aligned(size, np.uint8)
        poke(264, ctypes.c_uint64, memory.ctypes.data)
        poke(272, ctypes.c_int64, size)
        _shared_workspace[:] = [memory]
    finally:
        _release()


# Never freed, so that a daemon thread may still compute in it while the interpreter shuts down.
_shared_workspace: list[Any] = []
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_shared_workspace))


def mark_workspace() -> None:
    """Let the shared workspace start as the mark of ``arrays.marked``; nobody may be using it."""
    for memory in _shared_workspace:
        mark(memory)


def control_word(*, strict: bool) -> int:
    """Floating-point control word: nearest, exceptions masked; subnormals flushed unless strict."""
    return HERE.strict if strict else HERE.fast


class Ready:
    """Steps that run again and again without anything made anew; for one caller at a time.

    Parameters
    ----------
    steps : array
        Four words each: driver, words, their bytes, items.
    frame : array
        Addresses and bytes of the operands.
    share : int
        Bytes of workspace of a thread.
    environment : int
        Floating-point control word.
    threads, wake
        How many may share the items, and whether those that sleep are woken.
    check : bool
        Whether the drivers check their accesses; one that fails raises ``Error``.
    workspace : array, optional
        Memory that others use as well, each while it runs; by default its own.

    Attributes
    ----------
    operands : memoryview
        The frame's words: whoever runs the steps on other arrays writes their addresses there.
    notes : tuple of array
        Of a job of lanes, for each: the counter before its first job and after each; see ``side_by_side``.
    """

    __slots__ = ("_address", "_cell", "_held", "_pool", "notes", "operands")

    def __init__(self, steps: Words, frame: Words, share: int, *, environment: int, threads: int = 1, wake: int = 0,
                 check: bool = False, workspace: NDArray[np.uint8] | None = None) -> None:  # fmt: skip
        share, items = -(-share // 64) * 64, sum(steps.tolist()[3::4])
        cell = None
        if check:  # which takes every frame to be as long as the longest
            frame = np.concatenate([frame, np.zeros(FRAME_WORDS - len(frame), np.int64)])
            cell = aligned(ERROR_CELL_BYTES, np.uint8)
        if workspace is None:
            workspace = unwritten(workspace_bytes(share, threads), np.uint8)
        job = words([
            address(steps), len(steps) // 4, items, address(frame), address(workspace), share, environment,
            int(check), 0 if cell is None else address(cell), threads if items < MOST_ITEMS else 1, wake,
        ])  # fmt: skip
        self.operands, self.notes = frame.data, tuple[Words, ...]()
        self._held: tuple[Any, ...] = steps, workspace, job
        self._address, self._cell = address(job), None if cell is None else cell.data
        self._pool = threads > 1 and items < MOST_ITEMS

    def __call__(self) -> None:
        """Run them, on the pool if it is free, else on this thread alone."""
        _run(self._address, pool=self._pool)
        if self._cell is None:  # nothing is checked
            return
        site = int.from_bytes(self._cell[:8], "little")
        if site:
            self._cell[:8] = bytes(8)
            raise Error(f"a kernel reached beyond its buffers or tables, at {EVENTS.sites[site - 1]}; please report it")


def side_by_side(lanes: Sequence[Sequence[Ready]], share: int, wake: int, workspace: NDArray[np.uint8]) -> Ready:
    """A job of lanes: each lane's jobs run one after another on one thread, beside those of the others.

    Parameters
    ----------
    lanes : sequence of sequence of Ready
        None of which checks its accesses.  What they say of threads, waking and workspace does not count.
    share, wake, workspace
        As for ``Ready``; the share is of the job that needs most.
    """
    tables = [words([job._address for job in lane]) for lane in lanes]
    notes = tuple(aligned(len(lane) + 1, np.int64) for lane in lanes)
    table = words([v for t, n in zip(tables, notes, strict=True) for v in (address(t), len(t), address(n))])
    step = words([native()["lane"], address(table), table.nbytes, len(lanes)])
    environment = control_word(strict=True)  # each job sets its own
    row = Ready(step, words([]), share, environment=environment, threads=len(lanes), wake=wake, workspace=workspace)
    row._held, row.notes = (*row._held, lanes, tables, table), notes
    return row


def workspace_bytes(share: int, threads: int) -> int:
    """Bytes of the workspace of steps that need so many for each thread."""
    return max(64, -(-share // 64) * 64 * threads)


class Chain:
    """Jobs that run one after another by one native call; for one caller at a time.

    Between jobs no thread goes to sleep, and Python is not asked.

    Parameters
    ----------
    jobs : sequence of Ready
        None of which checks its accesses.  One of lanes counts as all of their jobs where times are told.
    wake : int
        For all of them: 2 wakes threads that sleep before the first one.
    """

    __slots__ = ("_addresses", "_has_lanes", "_jobs", "_level", "_words")

    def __init__(self, jobs: Sequence[Ready], wake: int = 1) -> None:
        self._jobs = tuple(jobs)
        self._level = min(2, wake) if any(job._pool for job in jobs) else 0
        self._has_lanes = any(job.notes for job in jobs)
        self._words = words([job._address for job in jobs])
        self._addresses = address(self._words)

    def __call__(self) -> Callable[[], list[float]]:
        """Run them, on the pool if it is free, else on this thread alone; what tells the seconds of each."""
        kinds = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64
        run, count = function("chain", *kinds), len(self._jobs)
        times = (ctypes.c_int64 * (count + 1))()
        pool = self._level > 0 and not sys.is_finalizing() and _acquire()
        try:
            run(CONTROL, self._addresses, count, ctypes.addressof(times), self._level if pool else 0)
        finally:
            if pool:
                _release()
        if not self._has_lanes:
            return partial(_between, times)
        return partial(_passed, times, [[note.copy() for note in job.notes] for job in self._jobs])


def _between(times: Iterable[int]) -> list[float]:
    """Seconds between times that the cycle counter told."""
    rate = 1e9 * _cycles_per_nanosecond()
    return [(after - before) / rate for before, after in pairwise(times)]


def _passed(times: Iterable[int], notes: Iterable[Sequence[Words]]) -> list[float]:
    """As ``_between``; each job of lanes has its part of the time of them all."""
    found = list[float]()
    for passed, lanes in zip(_between(times), notes, strict=True):
        parts = np.concatenate([np.diff(note) for note in lanes]) if lanes else np.ones(1)
        found += (passed / max(1, parts.sum()) * parts).tolist()
    return found


def rouse() -> None:
    """Wake the workers that sleep, if the pool is free: jobs that need them come soon, but not at once."""
    if _workers and not sys.is_finalizing():
        function("rouse", ctypes.c_void_p)(CONTROL)


def _acquire() -> bool:
    """Take the pool's lock, if it is free."""
    return bool(function("acquire", ctypes.c_void_p, result=ctypes.c_int64)(CONTROL))


def _release() -> None:
    """Give the pool's lock back."""
    function("release", ctypes.c_void_p)(CONTROL)


def step_table(steps: Iterable[_Step]) -> Words:
    """Steps as jobs have them: four words each, the driver, its words, their bytes, and items."""
    return words([v for step in steps for v in (step.driver, address(step.words), step.words.nbytes, step.items)])


def run_steps(steps: Words, frame: Words, share: int, *, environment: int, threads: int = 1, wake: int = 0,
              check: bool = False) -> None:  # fmt: skip
    """Run steps once, in a workspace of their own; parameters as for ``Ready``."""
    Ready(steps, frame, share, environment=environment, threads=threads, wake=wake, check=check)()


def _run(address: int, *, pool: bool) -> None:
    if pool and not sys.is_finalizing() and _acquire():
        try:
            function("shared", ctypes.c_void_p, ctypes.c_void_p)(CONTROL, address)
        finally:
            _release()
    else:
        function("serial", ctypes.c_void_p)(address)
