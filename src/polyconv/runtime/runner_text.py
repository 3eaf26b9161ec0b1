"""LLVM text of the runner of jobs: functions that draw items and run them, put workers to sleep and wake them.

A job is a list of steps; all threads, the caller among them, draw its items from one ticket word, so a
worker that wakes late, or never, costs nothing: the caller waits only for items that were taken.
It must know nothing of Python's threads.

A job has eleven words: steps, their number, items, frame, workspace, its bytes per thread, floating-point
control word, check mode, error cell, threads, wake (0 never, 1 in a burst of jobs, 2 always).  A step has
four: driver, words, their bytes, items.
"""

from __future__ import annotations

from polyconv.runtime.architecture import Architecture

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
    text = _TEXT.replace("PAUSE", architecture.pause).replace("FUTEX", str(architecture.futex or 0))
    text = text.replace("FRAME", str(8 * FRAME_WORDS))
    return architecture.exchange + text


def without_system(text: str) -> str:
    """The text with functions that do nothing in place of Linux's."""
    declared = tuple(f"@{name}(" for name in SYSTEM)
    lines = text.splitlines()
    kept = [line for line in lines if not line.startswith("declare") or not any(name in line for name in declared)]
    return _STUBS + "\n".join(kept)
