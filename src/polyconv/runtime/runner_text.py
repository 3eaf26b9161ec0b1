"""LLVM text of the runner of jobs: functions that draw items and run them, and the life of a worker.

A job is a list of steps; all threads, the caller among them, draw its items from one ticket word, so a
worker that wakes late, or never, costs nothing: the caller waits only for items that were taken.
It must know nothing of Python's threads.

A job has eleven words: steps, their number, items, frame, workspace, its bytes per thread, floating-point
control word, check mode, error cell, threads, wake (0 never, 1 in a burst of jobs, 2 always).  A step has
four: driver, words, their bytes, items.
"""

from __future__ import annotations

from polyconv.runtime.architecture import Architecture
from polyconv.runtime.pool_text import POOL_TEXT

__all__ = ["FRAME_WORDS", "SYSTEM", "runner_text", "without_system"]

FRAME_WORDS = 32
"""Words of the longest frame: address and bytes of up to 16 operands."""

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

; A worker's life: draw, spin, sleep.  Amid a chain, whose next jobs are sure to come, it spins longer; after one too,
; for as long as that took, since another may follow.
define void @worker(ptr %control, i64 %id, i64 %spin) {
entry:
  %futex = getelementptr i8, ptr %control, i64 4
  %asleep = getelementptr i8, ptr %control, i64 64
  %staying = getelementptr i8, ptr %control, i64 72
  br label %again
again: ; a job that is posted while this thread leaves the one before must not be taken for that one
  %seen = load atomic i32, ptr %futex acquire, align 4
  call void @draw(ptr %control, i64 %id)
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
  %longer = load atomic i64, ptr %staying monotonic, align 8
  %limit = add i64 %spin, %longer
  %more = icmp ult i64 %passed, %limit
  br i1 %more, label %wait, label %sleep
sleep:
  store atomic i64 0, ptr %staying monotonic, align 8
  br label %down
down:
  %a = atomicrmw add ptr %asleep, i32 1 seq_cst
  %r = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %futex, i64 128, i32 %seen, ptr null, ptr null, i64 0)
  %b = atomicrmw sub ptr %asleep, i32 1 seq_cst
  %then = load atomic i32, ptr %futex acquire, align 4
  %same = icmp eq i32 %then, %seen
  br i1 %same, label %down, label %again
}

define i64 @counter() {
  %t = call i64 @llvm.readcyclecounter()
  ret i64 %t
}
"""

SYSTEM = ("syscall", "sched_yield", "sched_getcpu", "sched_setaffinity")
"""Functions of Linux that the runner calls."""
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


def runner_text(architecture: Architecture) -> str:
    """Text of the runner for an architecture, as LLVM reads it."""
    text = (_TEXT + POOL_TEXT).replace("PAUSE", architecture.pause).replace("FUTEX", str(architecture.futex or 0))
    text = text.replace("FRAME", str(8 * FRAME_WORDS))
    return architecture.exchange + text


def without_system(text: str) -> str:
    """The text with functions that do nothing in place of Linux's."""
    declared = tuple(f"@{name}(" for name in SYSTEM)
    lines = text.splitlines()
    kept = [line for line in lines if not line.startswith("declare") or not any(name in line for name in declared)]
    return _STUBS + "\n".join(kept)
