"""LLVM text of the runner of jobs: functions that draw items and run them, and the life of a worker.

A job is a list of steps.  Each thread, the caller among them, draws the items of its own share from a ticket word, then
what others have left of theirs: a worker that wakes late, or never, costs nothing, as the caller waits only for items
that were taken.  A share is the same part of every job with as many threads: what a thread reads lies mostly in the
caches of the CPU that has written it, and not in those of another, perhaps beyond the last cache that both share.
It must know nothing of Python's threads.

A job has eleven words: steps, their number, items, frame, workspace, its bytes per thread, floating-point
control word, check mode, error cell, threads, wake (0 never, 1 in a burst of jobs, 2 always).  A step has
four: driver, words, their bytes, items.
"""

from __future__ import annotations

from polyconv.runtime.architecture import Architecture
from polyconv.runtime.control import SHARE_BYTES
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

; Run one item of a job in a thread's part of the workspace.
define internal void @item(ptr %job, i64 %number, ptr %space) {
entry:
  %steps = load ptr, ptr %job
  %q3 = getelementptr i64, ptr %job, i64 3
  %frame = load ptr, ptr %q3
  %q7 = getelementptr i64, ptr %job, i64 7
  %check = load i64, ptr %q7
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
  %q5 = getelementptr i64, ptr %job, i64 5
  %share = load i64, ptr %q5
  %q8 = getelementptr i64, ptr %job, i64 8
  %cell = load ptr, ptr %q8
  call void %driver(ptr %frame, i64 FRAME, i64 0, ptr %words, i64 %bytes, i64 0, i64 %n,
                    ptr %space, i64 %share, i64 0, ptr %cell)
  ret void
}

; The first item of a thread's share of a job: as many for each, next to each other.
define internal i64 @begin(i64 %total, i64 %share, i64 %threads) {
  %product = mul i64 %total, %share
  %less = sub i64 %threads, 1
  %up = add i64 %product, %less
  %first = udiv i64 %up, %threads
  ret i64 %first
}

; All items of a job in one part of a workspace.
define internal void @items(ptr %job, ptr %space) {
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
  call void @item(ptr %job, i64 %i, ptr %space)
  %next = add i64 %i, 1
  br label %test
done:
  call void @exchange(ptr %word)
  ret void
}

; All items of a job on this thread.
define void @serial(ptr %job) {
entry:
  %q4 = getelementptr i64, ptr %job, i64 4
  %space = load ptr, ptr %q4
  call void @items(ptr %job, ptr %space)
  ret void
}

; An item that is a lane: jobs one after another on the thread that draws it.  The words have three for each lane: its
; jobs, their number, and where the counter is noted before the first and after each.
define void @lane(ptr %frame, ptr %words, i64 %number, ptr %space) {
entry:
  %at = mul i64 %number, 3
  %row = getelementptr i64, ptr %words, i64 %at
  %jobs = load ptr, ptr %row
  %countp = getelementptr i64, ptr %row, i64 1
  %count = load i64, ptr %countp
  %timesp = getelementptr i64, ptr %row, i64 2
  %times = load ptr, ptr %timesp
  br label %note
note:
  %i = phi i64 [0, %entry], [%next, %body]
  %t = call i64 @llvm.readcyclecounter()
  %mark = getelementptr i64, ptr %times, i64 %i
  store i64 %t, ptr %mark
  %more = icmp ult i64 %i, %count
  br i1 %more, label %body, label %done
body:
  %place = getelementptr ptr, ptr %jobs, i64 %i
  %job = load ptr, ptr %place
  call void @items(ptr %job, ptr %space)
  %next = add i64 %i, 1
  br label %note
done:
  ret void
}

; Draw items of the posted job while there are any for thread %id: those of its own share, then what others have left.
; Nobody posts the next job before this thread has said how many it has done.
define internal void @draw(ptr %control, i64 %id) {
entry:
  %word = alloca i64
  %at = getelementptr i8, ptr %control, i64 192
  %w0 = load atomic i64, ptr %control acquire, align 64
  %high0 = lshr i64 %w0, 32
  %shares = and i64 %high0, 255
  %takes = icmp ult i64 %id, %shares
  br i1 %takes, label %look, label %end
look:
  %share = phi i64 [%id, %entry], [%share, %take], [%share, %run], [%next, %further]
  %seen = phi i64 [0, %entry], [%seen, %take], [%seen, %run], [%seen1, %further]
  %count = phi i64 [0, %entry], [%count, %take], [%count1, %run], [%count, %further]
  %offset = mul i64 %share, SHARE
  %place = getelementptr i8, ptr %control, i64 %offset
  %w = load atomic i64, ptr %place acquire, align 64
  %left = and i64 %w, 4294967295
  %high = lshr i64 %w, 32
  %threads = and i64 %high, 255
  %some = icmp ne i64 %left, 0
  %mine = icmp ult i64 %id, %threads
  %go = and i1 %some, %mine
  br i1 %go, label %take, label %further
take:
  %w1 = sub i64 %w, 1
  %pair = cmpxchg ptr %place, i64 %w, i64 %w1 acq_rel acquire
  %ok = extractvalue { i64, i1 } %pair, 1
  br i1 %ok, label %work, label %look
work:
  %job = load ptr, ptr %at
  %first = icmp eq i64 %count, 0
  br i1 %first, label %enter, label %run
enter:
  %q6 = getelementptr i64, ptr %job, i64 6
  %environment = load i64, ptr %q6
  store i64 %environment, ptr %word
  call void @exchange(ptr %word)
  br label %run
run:
  %q2 = getelementptr i64, ptr %job, i64 2
  %total = load i64, ptr %q2
  %share1 = add i64 %share, 1
  %end1 = call i64 @begin(i64 %total, i64 %share1, i64 %threads)
  %number = sub i64 %end1, %left
  %q4 = getelementptr i64, ptr %job, i64 4
  %base = load ptr, ptr %q4
  %q5 = getelementptr i64, ptr %job, i64 5
  %bytes = load i64, ptr %q5
  %before = mul i64 %bytes, %id
  %space = getelementptr i8, ptr %base, i64 %before
  call void @item(ptr %job, i64 %number, ptr %space)
  %count1 = add i64 %count, 1
  br label %look
further:
  %seen1 = add i64 %seen, 1
  %after = add i64 %share, 1
  %round = icmp eq i64 %after, %shares
  %next = select i1 %round, i64 0, i64 %after
  %more = icmp ult i64 %seen1, %shares
  br i1 %more, label %look, label %out
out:
  %none = icmp eq i64 %count, 0
  br i1 %none, label %end, label %leave
leave:
  call void @exchange(ptr %word)
  %finished = getelementptr i8, ptr %control, i64 128
  %f = atomicrmw add ptr %finished, i64 %count release
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
    text = text.replace("FRAME", str(8 * FRAME_WORDS)).replace("SHARE", str(SHARE_BYTES))
    return architecture.exchange + text


def without_system(text: str) -> str:
    """The text with functions that do nothing in place of Linux's."""
    declared = tuple(f"@{name}(" for name in SYSTEM)
    lines = text.splitlines()
    kept = [line for line in lines if not line.startswith("declare") or not any(name in line for name in declared)]
    return _STUBS + "\n".join(kept)
