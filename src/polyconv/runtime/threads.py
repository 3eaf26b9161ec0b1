"""The pool: worker threads that enter native code once and stay, and the native runner of jobs.

A job is a list of steps; all threads, the caller among them, draw its items from one ticket word, so a
worker that wakes late, or never, costs nothing: the caller waits only for items that were taken.
It must know nothing of convolutions.

The control block is one page that is never freed:

====  ==========================================================================================
  0   ticket word: generation (24 bits) | threads (8) | items left (32); its upper half is the futex
 64   workers asleep
128   items finished
192   address of the job
256   lock: a job, with the shared workspace, is running
264   shared workspace: address, bytes
280   CPU that workers are kept away from; number of workers
288   cycle counter at the end of the last shared job; cycles that a worker spins; counter at the begin of the burst
320   thread ids of the workers (64)
576   allowed CPUs (1024 bits); 704 scratch for the same
====  ==========================================================================================

A job has eleven words: steps, their number, items, frame, workspace, its bytes per thread, floating-point
control word, check mode, error cell, threads, wake (0 never, 1 in a burst of jobs, 2 always).  A step has
four: driver, words, their bytes, items.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.errors import Error
from polyconv.kernels.language import ERROR_CELL_BYTES
from polyconv.kernels.objects import EVENTS, kernel_text
from polyconv.kernels.record import words
from polyconv.runtime.architecture import Architecture, architecture_of
from polyconv.runtime.arrays import aligned, mark, unwritten
from polyconv.target import host_target

__all__ = [
    "CONTROL", "FRAME_WORDS", "MOST_ITEMS", "MOST_WORKERS", "Chain", "Ready", "control_word", "grow_workspace",
    "mark_workspace", "native", "run_steps", "start_workers", "workspace_bytes",
]  # fmt: skip

MOST_WORKERS = 63
MOST_ITEMS = 1 << 31
"""More items are not shared: a ticket counts them in 32 bits."""
FRAME_WORDS = 32
"""Words of the longest frame: address and bytes of up to 16 operands."""
_SPIN_NANOSECONDS = 50_000

Words = NDArray[np.int64]

_memory = aligned(8192, np.uint8)
CONTROL: int = _memory.ctypes.data
"""Address of the control block."""
_eternal = [ctypes.py_object(_memory)]
ctypes.pythonapi.Py_IncRef(_eternal[0])

_HERE = architecture_of(platform.machine())
_FUTEX = sys.platform == "linux" and _HERE.futex is not None

_TEXT = """
declare i64 @syscall(i64, ...)
declare i32 @sched_yield()
declare i32 @sched_getcpu()
declare i32 @sched_setaffinity(i32, i64, ptr)
declare i64 @llvm.readcyclecounter()
declare void @llvm.memcpy.inline.p0.p0.i64(ptr, ptr, i64, i1)

; Run one item of a job on thread number %id.
define internal void @item(ptr %job, i64 %number, i64 %id) {
entry:
  %steps = load ptr, ptr %job
  %q3 = getelementptr i64, ptr %job, i64 3
  %frame = load ptr, ptr %q3
  %q4 = getelementptr i64, ptr %job, i64 4
  %base = load ptr, ptr %q4
  %q5 = getelementptr i64, ptr %job, i64 5
  %share = load i64, ptr %q5
  %q7 = getelementptr i64, ptr %job, i64 7
  %check = load i64, ptr %q7
  %offset = mul i64 %share, %id
  %space = getelementptr i8, ptr %base, i64 %offset
  br label %find
find:
  %step = phi ptr [%steps, %entry], [%following, %further]
  %n = phi i64 [%number, %entry], [%rest, %further]
  %s3 = getelementptr i64, ptr %step, i64 3
  %items = load i64, ptr %s3
  %here = icmp ult i64 %n, %items
  br i1 %here, label %found, label %further
further:
  %rest = sub i64 %n, %items
  %following = getelementptr i64, ptr %step, i64 4
  br label %find
found:
  %driver = load ptr, ptr %step
  %s1 = getelementptr i64, ptr %step, i64 1
  %words = load ptr, ptr %s1
  %plain = icmp eq i64 %check, 0
  br i1 %plain, label %run, label %checked
run:
  call void %driver(ptr %frame, ptr %words, i64 %n, ptr %space)
  ret void
checked:
  %s2 = getelementptr i64, ptr %step, i64 2
  %bytes = load i64, ptr %s2
  %q8 = getelementptr i64, ptr %job, i64 8
  %cell = load ptr, ptr %q8
  call void %driver(ptr %frame, i64 FRAME, i64 0, ptr %words, i64 %bytes, i64 0, i64 %n,
                    ptr %space, i64 %share, i64 0, ptr %cell)
  ret void
}

; All items of a job on this thread.
define void @serial(ptr %job) {
entry:
  %word = alloca i64
  %q2 = getelementptr i64, ptr %job, i64 2
  %total = load i64, ptr %q2
  %q6 = getelementptr i64, ptr %job, i64 6
  %environment = load i64, ptr %q6
  store i64 %environment, ptr %word
  call void @exchange(ptr %word)
  br label %test
test:
  %i = phi i64 [0, %entry], [%next, %body]
  %more = icmp ult i64 %i, %total
  br i1 %more, label %body, label %done
body:
  call void @item(ptr %job, i64 %i, i64 0)
  %next = add i64 %i, 1
  br label %test
done:
  call void @exchange(ptr %word)
  ret void
}

; Draw items of the posted job while there are any for thread %id.
define internal void @draw(ptr %control, i64 %id) {
entry:
  %word = alloca i64
  %other = alloca i64
  %set = alloca i64
  store i64 -1, ptr %set
  %at = getelementptr i8, ptr %control, i64 192
  %finished = getelementptr i8, ptr %control, i64 128
  br label %look
look:
  %w = load atomic i64, ptr %control acquire, align 64
  %left = and i64 %w, 4294967295
  %high = lshr i64 %w, 32
  %threads = and i64 %high, 255
  %some = icmp ne i64 %left, 0
  %mine = icmp ult i64 %id, %threads
  %go = and i1 %some, %mine
  br i1 %go, label %take, label %out
take:
  %w1 = sub i64 %w, 1
  %pair = cmpxchg ptr %control, i64 %w, i64 %w1 acq_rel acquire
  %ok = extractvalue { i64, i1 } %pair, 1
  br i1 %ok, label %work, label %look
work:
  %job = load ptr, ptr %at
  %q6 = getelementptr i64, ptr %job, i64 6
  %environment = load i64, ptr %q6
  %was = load i64, ptr %set
  %same = icmp eq i64 %was, %environment
  br i1 %same, label %run, label %enter
enter: ; the first item, or one of a job that was posted before this thread looked up from the one before
  %fresh = icmp eq i64 %was, -1
  %kept = select i1 %fresh, ptr %word, ptr %other
  store i64 %environment, ptr %kept
  call void @exchange(ptr %kept)
  store i64 %environment, ptr %set
  br label %run
run:
  %q2 = getelementptr i64, ptr %job, i64 2
  %total = load i64, ptr %q2
  %number = sub i64 %total, %left
  call void @item(ptr %job, i64 %number, i64 %id)
  %f = atomicrmw add ptr %finished, i64 1 release
  br label %look
out:
  %used = load i64, ptr %set
  %restore = icmp ne i64 %used, -1
  br i1 %restore, label %leave, label %end
leave:
  call void @exchange(ptr %word)
  br label %end
end:
  ret void
}

; A worker's life: draw, spin, sleep.
define void @worker(ptr %control, i64 %id, i64 %spin) {
entry:
  %futex = getelementptr i8, ptr %control, i64 4
  %asleep = getelementptr i8, ptr %control, i64 64
  br label %again
again:
  call void @draw(ptr %control, i64 %id)
  %seen = load atomic i32, ptr %futex acquire, align 4
  %t0 = call i64 @llvm.readcyclecounter()
  br label %wait
wait:
  %now = load atomic i32, ptr %futex acquire, align 4
  %new = icmp ne i32 %now, %seen
  br i1 %new, label %again, label %spinning
spinning:
  PAUSE
  %t1 = call i64 @llvm.readcyclecounter()
  %passed = sub i64 %t1, %t0
  %more = icmp ult i64 %passed, %spin
  br i1 %more, label %wait, label %sleep
sleep:
  %a = atomicrmw add ptr %asleep, i32 1 seq_cst
  %r = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %futex, i64 128, i32 %seen, ptr null, ptr null, i64 0)
  %b = atomicrmw sub ptr %asleep, i32 1 seq_cst
  %then = load atomic i32, ptr %futex acquire, align 4
  %same = icmp eq i32 %then, %seen
  br i1 %same, label %sleep, label %again
}

; The scheduler likes to wake workers on the caller's CPU and leave them there: keep them off it.
define internal void @keep_away(ptr %control, i32 %cpu) noinline {
entry:
  %kept = getelementptr i8, ptr %control, i64 280
  store i32 %cpu, ptr %kept
  %count = getelementptr i8, ptr %control, i64 284
  %workers = load i32, ptr %count
  %allowed = getelementptr i8, ptr %control, i64 576
  %mask = getelementptr i8, ptr %control, i64 704
  call void @llvm.memcpy.inline.p0.p0.i64(ptr %mask, ptr %allowed, i64 128, i1 false)
  %group = lshr i32 %cpu, 6
  %groupw = zext i32 %group to i64
  %place = getelementptr i64, ptr %mask, i64 %groupw
  %bit = and i32 %cpu, 63
  %bitw = zext i32 %bit to i64
  %one = shl i64 1, %bitw
  %not = xor i64 %one, -1
  %old = load i64, ptr %place
  %cut = and i64 %old, %not
  store i64 %cut, ptr %place
  br label %test
test:
  %i = phi i32 [0, %entry], [%next, %body]
  %more = icmp ult i32 %i, %workers
  br i1 %more, label %body, label %done
body:
  %iw = zext i32 %i to i64
  %ids = getelementptr i8, ptr %control, i64 320
  %idp = getelementptr i32, ptr %ids, i64 %iw
  %id = load i32, ptr %idp
  %r = call i32 @sched_setaffinity(i32 %id, i64 128, ptr %mask)
  %next = add i32 %i, 1
  br label %test
done:
  ret void
}

; A job on the pool; the caller holds the lock.
define void @shared(ptr %control, ptr %job) {
entry:
  %count = getelementptr i8, ptr %control, i64 284
  %workers = load i32, ptr %count
  %none = icmp eq i32 %workers, 0
  %q9 = getelementptr i64, ptr %job, i64 9
  %threads = load i64, ptr %q9
  %single = icmp ult i64 %threads, 2
  %alone = or i1 %none, %single
  br i1 %alone, label %serial, label %pool
serial:
  call void @serial(ptr %job)
  ret void
pool:
  %q10 = getelementptr i64, ptr %job, i64 10
  %wake = load i64, ptr %q10
  %cpu = call i32 @sched_getcpu()
  %keptp = getelementptr i8, ptr %control, i64 280
  %kept = load i32, ptr %keptp
  %moved = icmp ne i32 %cpu, %kept
  ; A sleeper comes too late for a short job, but not for those that follow it within the time it then spins.  Once a
  ; burst of them has lasted that long, it is likely to last long enough to repay the waking.
  %lastp = getelementptr i8, ptr %control, i64 288
  %last = load i64, ptr %lastp
  %begin = call i64 @llvm.readcyclecounter()
  %gap = sub i64 %begin, %last
  %windowp = getelementptr i8, ptr %control, i64 296
  %window = load i64, ptr %windowp
  %apart = icmp uge i64 %gap, %window
  %firstp = getelementptr i8, ptr %control, i64 304
  %first0 = load i64, ptr %firstp
  %first = select i1 %apart, i64 %begin, i64 %first0
  store i64 %first, ptr %firstp
  %lasted = sub i64 %begin, %first
  %burst = icmp uge i64 %lasted, %window
  %in = zext i1 %burst to i64
  %level = add i64 %wake, %in
  %willing = icmp ugt i64 %level, 1
  %away = and i1 %moved, %willing
  br i1 %away, label %keep, label %post
keep:
  call void @keep_away(ptr %control, i32 %cpu)
  br label %post
post:
  %at = getelementptr i8, ptr %control, i64 192
  store ptr %job, ptr %at
  %finished = getelementptr i8, ptr %control, i64 128
  store atomic i64 0, ptr %finished seq_cst, align 64
  %q2 = getelementptr i64, ptr %job, i64 2
  %total = load i64, ptr %q2
  %old = load i64, ptr %control
  %gen = lshr i64 %old, 40
  %gen1 = add i64 %gen, 1
  %genbits = shl i64 %gen1, 40
  %threadbits = shl i64 %threads, 32
  %upper = or i64 %genbits, %threadbits
  %w = or i64 %upper, %total
  %x = atomicrmw xchg ptr %control, i64 %w seq_cst
  %asleepp = getelementptr i8, ptr %control, i64 64
  %asleep = load atomic i32, ptr %asleepp seq_cst, align 64
  %sleeping = icmp ne i32 %asleep, 0
  %must = and i1 %sleeping, %willing
  br i1 %must, label %rouse, label %work
rouse:
  %futex = getelementptr i8, ptr %control, i64 4
  %others = sub i64 %threads, 1
  %r = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %futex, i64 129, i64 64, ptr null, ptr null, i64 0)
  br label %work
work:
  call void @draw(ptr %control, i64 0)
  br label %wait
wait:
  %spins = phi i64 [0, %work], [%more, %pause]
  %done = load atomic i64, ptr %finished acquire, align 64
  %all = icmp eq i64 %done, %total
  br i1 %all, label %out, label %spin
spin:
  PAUSE
  %more = add i64 %spins, 1
  %long = icmp ugt i64 %more, 20000
  br i1 %long, label %yield, label %pause
yield:
  %y = call i32 @sched_yield()
  br label %pause
pause:
  br label %wait
out:
  %end = call i64 @llvm.readcyclecounter()
  store i64 %end, ptr %lastp
  ret void
}

; Jobs one after another, on the pool or on this thread; the counter before the first and after each.
define void @chain(ptr %control, ptr %jobs, i64 %count, ptr %times, i64 %pool) {
entry:
  %t0 = call i64 @llvm.readcyclecounter()
  store i64 %t0, ptr %times
  %alone = icmp eq i64 %pool, 0
  br label %test
test:
  %i = phi i64 [0, %entry], [%next, %after]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %body, label %done
body:
  %place = getelementptr ptr, ptr %jobs, i64 %i
  %job = load ptr, ptr %place
  br i1 %alone, label %serial, label %shared
serial:
  call void @serial(ptr %job)
  br label %after
shared:
  call void @shared(ptr %control, ptr %job)
  br label %after
after:
  %next = add i64 %i, 1
  %t = call i64 @llvm.readcyclecounter()
  %mark = getelementptr i64, ptr %times, i64 %next
  store i64 %t, ptr %mark
  br label %test
done:
  ret void
}

define i64 @counter() {
  %t = call i64 @llvm.readcyclecounter()
  ret i64 %t
}

; Take the lock: 1 if it was free.
define i64 @acquire(ptr %control) {
  %lock = getelementptr i8, ptr %control, i64 256
  %pair = cmpxchg ptr %lock, i64 0, i64 1 acquire monotonic
  %ok = extractvalue { i64, i1 } %pair, 1
  %r = zext i1 %ok to i64
  ret i64 %r
}

define void @release(ptr %control) {
  %lock = getelementptr i8, ptr %control, i64 256
  store atomic i64 0, ptr %lock release, align 64
  ret void
}
"""

# Without Linux's futex there are no workers: jobs run on the caller.
_STUBS = """
define i64 @syscall(i64 %n, ...) {
  ret i64 0
}
define i32 @sched_yield() {
  ret i32 0
}
define i32 @sched_getcpu() {
  ret i32 0
}
define i32 @sched_setaffinity(i32 %a, i64 %b, ptr %c) {
  ret i32 0
}
"""


def _runner(architecture: Architecture) -> str:
    text = _TEXT.replace("PAUSE", architecture.pause).replace("FUTEX", str(architecture.futex or 0))
    text = text.replace("FRAME", str(8 * FRAME_WORDS))
    return architecture.exchange + text


@cache
def native() -> dict[str, int]:
    """Addresses of the runner's functions: serial, shared, chain, worker, acquire, release, counter."""
    text = _runner(_HERE)
    symbols = {}
    names = ("syscall", "sched_yield", "sched_getcpu", "sched_setaffinity")
    if _FUTEX:
        process = ctypes.CDLL(None)
        symbols = {n: ctypes.cast(getattr(process, n), ctypes.c_void_p).value or 0 for n in names}
    else:
        lines = [
            line
            for line in text.splitlines()
            if not line.startswith("declare") or not any(f"@{n}(" in line for n in names)
        ]
        text = _STUBS + "\n".join(lines)
    functions = ("serial", "shared", "chain", "worker", "acquire", "release", "counter")
    return kernel_text("runner", functions, text, host_target(), symbols)


@cache
def _callable(name: str, *kinds: Any, result: Any = None) -> Any:
    return ctypes.CFUNCTYPE(result, *kinds)(native()[name])


_starting = threading.Lock()
_starter = [0]
"""The thread that holds it; 0 for none."""
_workers: list[threading.Thread] = []


def _poke(offset: int, kind: Any, value: int) -> None:
    kind.from_address(CONTROL + offset).value = value


def start_workers(threads: int) -> None:
    """Have at least ``threads - 1`` workers; none on systems without futex or during shutdown."""
    wanted = min(threads - 1, MOST_WORKERS)
    if not _FUTEX or len(_workers) >= wanted or sys.is_finalizing():
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
        _poke(576 + 8 * group, ctypes.c_uint64, bits)
    spin = int(_SPIN_NANOSECONDS * _cycles_per_nanosecond())
    enter = _callable("worker", ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
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
        _poke(320 + 4 * at, ctypes.c_int32, worker.native_id or -1)  # 0 would mean the caller
    _poke(288, ctypes.c_uint64, 0)
    _poke(296, ctypes.c_uint64, spin)
    _poke(280, ctypes.c_int32, -1)
    _poke(284, ctypes.c_int32, len(_workers))


@cache
def _cycles_per_nanosecond() -> float:
    """Rate of the cycle counter; only the length of a spin depends on it."""
    read = _callable("counter", result=ctypes.c_int64)
    start, first = time.perf_counter_ns(), read()
    while time.perf_counter_ns() - start < 200_000:
        pass
    return float(max(0.01, (read() - first) / (time.perf_counter_ns() - start)))


def _after_fork() -> None:
    """In a child there are no workers, and the lock may have been held by a thread that is gone."""
    global _starting
    _workers.clear()
    _starting, _starter[0] = threading.Lock(), 0
    for offset in (0, 64, 128, 192, 256, 264, 280):
        _poke(offset, ctypes.c_uint64, 0)
    # less than any job needs: native entries refuse, and on its way through Python a call makes the pool anew
    _poke(272, ctypes.c_int64, -1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def grow_workspace(size: int) -> None:
    """Make the shared workspace at least ``size`` bytes, if nobody is using it."""
    if ctypes.c_int64.from_address(CONTROL + 272).value >= size:
        return
    if not _callable("acquire", ctypes.c_void_p, result=ctypes.c_int64)(CONTROL):
        return
    try:
        memory = aligned(size, np.uint8)
        _poke(264, ctypes.c_uint64, memory.ctypes.data)
        _poke(272, ctypes.c_int64, size)
        _shared_workspace[:] = [memory]
    finally:
        _callable("release", ctypes.c_void_p)(CONTROL)


# Never freed, so that a daemon thread may still compute in it while the interpreter shuts down.
_shared_workspace: list[Any] = []
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_shared_workspace))


def mark_workspace() -> None:
    """Let the shared workspace start as the mark of ``arrays.marked``; nobody may be using it."""
    for memory in _shared_workspace:
        mark(memory)


def control_word(*, strict: bool) -> int:
    """Floating-point control word: nearest, exceptions masked; subnormals flushed unless strict."""
    return _HERE.strict if strict else _HERE.fast


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
    """

    __slots__ = ("_address", "_cell", "_held", "_pool", "operands")

    def __init__(self, steps: Words, frame: Words, share: int, *, environment: int, threads: int = 1, wake: int = 0,
                 check: bool = False, workspace: NDArray[np.uint8] | None = None) -> None:  # fmt: skip
        share, items = -(-share // 64) * 64, int(steps[3::4].sum())
        if check:  # which takes every frame to be as long as the longest
            frame = np.concatenate([frame, np.zeros(FRAME_WORDS - len(frame), np.int64)])
        if workspace is None:
            workspace = unwritten(workspace_bytes(share, threads), np.uint8)
        cell = aligned(ERROR_CELL_BYTES, np.uint8)
        job = words([
            steps.ctypes.data, len(steps) // 4, items, frame.ctypes.data, workspace.ctypes.data, share, environment,
            int(check), cell.ctypes.data, threads, wake,
        ])  # fmt: skip
        self.operands = frame.data
        self._held, self._address, self._cell = (steps, workspace, job), job.ctypes.data, cell.data
        self._pool = threads > 1 and items < MOST_ITEMS

    def __call__(self) -> None:
        """Run them, on the pool if it is free, else on this thread alone."""
        _run(self._address, pool=self._pool)
        site = int.from_bytes(self._cell[:8], "little")
        if site:
            self._cell[:8] = bytes(8)
            raise Error(f"a kernel reached beyond its buffers or tables, at {EVENTS.sites[site - 1]}; please report it")


def workspace_bytes(share: int, threads: int) -> int:
    """Bytes of the workspace of steps that need so many for each thread."""
    return max(64, -(-share // 64) * 64 * threads)


class Chain:
    """Jobs that run one after another by one native call; for one caller at a time.

    Between jobs no thread goes to sleep, and Python is not asked.

    Parameters
    ----------
    jobs : sequence of Ready
        None of which checks its accesses.
    """

    __slots__ = ("_addresses", "_jobs", "_pool", "_times")

    def __init__(self, jobs: Sequence[Ready]) -> None:
        self._jobs, self._pool = tuple(jobs), any(job._pool for job in jobs)
        self._addresses = words([job._address for job in jobs])
        self._times = np.zeros(len(jobs) + 1, np.int64)

    def __call__(self) -> list[float]:
        """Run them, on the pool if it is free, else on this thread alone; the seconds of each."""
        kinds = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64
        run, count = _callable("chain", *kinds), len(self._jobs)
        pool = self._pool and not sys.is_finalizing() and _acquire()
        try:
            run(CONTROL, self._addresses.ctypes.data, count, self._times.ctypes.data, int(pool))
        finally:
            if pool:
                _callable("release", ctypes.c_void_p)(CONTROL)
        return list(np.diff(self._times) / (1e9 * _cycles_per_nanosecond()))


def _acquire() -> bool:
    """Take the pool's lock, if it is free."""
    return bool(_callable("acquire", ctypes.c_void_p, result=ctypes.c_int64)(CONTROL))


def run_steps(steps: Words, frame: Words, share: int, *, environment: int, threads: int = 1, wake: int = 0,
              check: bool = False) -> None:  # fmt: skip
    """Run steps once, in a workspace of their own; parameters as for ``Ready``."""
    Ready(steps, frame, share, environment=environment, threads=threads, wake=wake, check=check)()


def _run(address: int, *, pool: bool) -> None:
    if pool and not sys.is_finalizing() and _callable("acquire", ctypes.c_void_p, result=ctypes.c_int64)(CONTROL):
        try:
            _callable("shared", ctypes.c_void_p, ctypes.c_void_p)(CONTROL, address)
        finally:
            _callable("release", ctypes.c_void_p)(CONTROL)
    else:
        _callable("serial", ctypes.c_void_p)(address)
