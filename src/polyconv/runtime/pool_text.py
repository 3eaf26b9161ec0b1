"""LLVM text of those who call on the pool: jobs and chains of jobs are posted, and sleepers woken and kept apart.

Part of the runner's text, which has what threads do with a job: a caller posts it in the control block, draws its items
as the workers do, and waits for those that they have drawn.
It must not know how an item is run.
"""

from __future__ import annotations

__all__ = ["POOL_TEXT"]

_STAYING = 19
"""Spins that a worker adds to its one amid a chain and, at most, after it: 1 ms in all.

Longer than most steps that have no work for it, and than what lies between two runs of a model that follow each other.
Waking it takes 50 us, and several ms where the system has given its CPU to others meanwhile.
"""

POOL_TEXT = """
; The scheduler likes to wake workers on the caller's CPU and leave them there: keep them off it.
define internal void @keep_away(ptr %control) noinline {
entry:
  %cpu = call i32 @sched_getcpu()
  %keptp = getelementptr i8, ptr %control, i64 280
  %kept = load i32, ptr %keptp
  %moved = icmp ne i32 %cpu, %kept
  br i1 %moved, label %keep, label %done
keep:
  store i32 %cpu, ptr %keptp
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
  %i = phi i32 [0, %keep], [%next, %body]
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

; Wake the workers that sleep, for jobs that come soon; the caller holds the lock.
define internal void @stir(ptr %control) {
entry:
  %asleepp = getelementptr i8, ptr %control, i64 64
  %asleep = load atomic i32, ptr %asleepp seq_cst, align 64
  %none = icmp eq i32 %asleep, 0
  br i1 %none, label %out, label %post
post: ; a job without items: a sleeper only looks up where the ticket word has changed
  call void @keep_away(ptr %control)
  %old = load i64, ptr %control
  %gen = lshr i64 %old, 40
  %gen1 = add i64 %gen, 1
  %w = shl i64 %gen1, 40
  %x = atomicrmw xchg ptr %control, i64 %w seq_cst
  %futex = getelementptr i8, ptr %control, i64 4
  %r = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %futex, i64 129, i64 64, ptr null, ptr null, i64 0)
  br label %out
out:
  ret void
}

; The same, if the pool is free.
define void @rouse(ptr %control) {
entry:
  %got = call i64 @acquire(ptr %control)
  %busy = icmp eq i64 %got, 0
  br i1 %busy, label %out, label %free
free:
  call void @stir(ptr %control)
  call void @release(ptr %control)
  br label %out
out:
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
  br i1 %willing, label %keep, label %post
keep:
  call void @keep_away(ptr %control)
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
  br label %give
give: ; every thread its share, the caller's last: its word is the one that the others look up at
  %share = phi i64 [%threads, %post], [%lower, %given]
  %lower = sub i64 %share, 1
  %from = call i64 @begin(i64 %total, i64 %lower, i64 %threads)
  %to = call i64 @begin(i64 %total, i64 %share, i64 %threads)
  %items = sub i64 %to, %from
  %w = or i64 %upper, %items
  %own = icmp eq i64 %lower, 0
  br i1 %own, label %open, label %given
given:
  %offset = mul i64 %lower, SHARE
  %place = getelementptr i8, ptr %control, i64 %offset
  store atomic i64 %w, ptr %place release, align 64
  br label %give
open:
  %x = atomicrmw xchg ptr %control, i64 %w seq_cst
  %asleepp = getelementptr i8, ptr %control, i64 64
  %asleep = load atomic i32, ptr %asleepp seq_cst, align 64
  %sleeping = icmp ne i32 %asleep, 0
  %must = and i1 %sleeping, %willing
  br i1 %must, label %rouse, label %work
rouse:
  %futex = getelementptr i8, ptr %control, i64 4
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

; Jobs one after another; the counter before the first and after each.  %pool: 0 on this thread, 1 on the pool, 2 on
; the pool, whose sleepers are woken first.
define void @chain(ptr %control, ptr %jobs, i64 %count, ptr %times, i64 %pool) {
entry:
  %t0 = call i64 @llvm.readcyclecounter()
  store i64 %t0, ptr %times
  %alone = icmp eq i64 %pool, 0
  %staying = getelementptr i8, ptr %control, i64 72
  %windowp = getelementptr i8, ptr %control, i64 296
  %window = load i64, ptr %windowp
  %most = mul i64 %window, STAYING
  br i1 %alone, label %test, label %stay
stay:
  store atomic i64 %most, ptr %staying monotonic, align 8
  %long = icmp eq i64 %pool, 2
  br i1 %long, label %wake, label %test
wake:
  call void @stir(ptr %control)
  br label %test
test:
  %i = phi i64 [0, %entry], [0, %stay], [0, %wake], [%next, %after]
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
  br i1 %alone, label %out, label %leave
leave:
  %t1 = call i64 @llvm.readcyclecounter()
  %took = sub i64 %t1, %t0
  %less = icmp ult i64 %took, %most
  %stays = select i1 %less, i64 %took, i64 %most
  store atomic i64 %stays, ptr %staying monotonic, align 8
  br label %out
out:
  ret void
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
""".replace("STAYING", str(_STAYING))
