"""The pool's manners: forks, exits, interrupts, idleness, and how many threads there are, each in a fresh process."""

from __future__ import annotations

import os
import sys

import pytest
from fresh import finish, run, start

FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, or sets affinity")

COMMON = """
import signal

x = image()
right = layer(threads=1)(x)
one = layer(threads=2)
assert one.plan(x.shape).threads == 2

def workers():
    return [t.native_id for t in threading.enumerate() if t.name.startswith("polyconv")]

def check(one=one):
    for _ in range(3):
        assert (one(x) == right).all()

def in_child(body):
    # the exit code of a child that runs the body; a child that hangs is ended by its alarm
    pid = os.fork()
    if pid == 0:
        signal.alarm(round(30 * patience))
        try:
            body()
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def forever(body):
    # a daemon thread that does nothing else; returns once it is at work
    turns = threading.Event()
    def loop():
        while True:
            body()
            turns.set()
    threading.Thread(target=loop, daemon=True).start()
    turns.wait()

check()
"""


@FORKS
def test_fork_while_idle() -> None:
    """Both sides go on; the child has a pool of its own again, also for a layer that was called before the fork."""
    out = run(
        COMMON
        + """
def child():
    assert workers() == []
    check()
    if sys.platform == "linux":
        assert len(workers()) == 1
    check(layer(threads=3))
    assert in_child(check) == 0

for _ in range(3):
    assert in_child(child) == 0
    check()
print("done")
"""
    )
    assert out.strip() == "done"


@FORKS
def test_fork_while_another_thread_computes() -> None:
    out = run(
        COMMON
        + """
forever(lambda: one(x))
for _ in range(20):
    assert in_child(check) == 0
    check()
print("done")
"""
    )
    assert out.strip() == "done"


@FORKS
def test_fork_while_another_thread_compiles() -> None:
    """The child needs a kernel of its own at once: no lock that the other thread held may be taken for ever."""
    out = run(
        COMMON
        + """
from polyconv import cache
cache.use_folder(None)
kinds = iter([(k, a) for k in ("f4", "f8", "f2", "i2", "i4", "i8") for a in ("Relu", "Clip", None)])

def compile_another():
    for kind, activation in kinds:
        params = {"activation": activation, "activation_params": (1, 2) if activation == "Clip" else None}
        polyconv.Conv(np.ones((9, 9, 3, 3), kind), **params)(np.ones((1, 9, 8, 8), kind))
        return
    time.sleep(0.01)

def child():
    check()
    y = polyconv.Conv(np.ones((9, 9, 3, 3), "u1"), np.ones(9, "u1"), layout="NHWC")(np.ones((1, 8, 8, 9), "u1"))
    assert (y == 82).all()

forever(compile_another)
while next(kinds, None):
    assert in_child(child) == 0
print("done")
"""
    )
    assert out.strip() == "done"


@FORKS
def test_children_of_multiprocessing() -> None:
    out = run("""
import multiprocessing

def job(number):
    return float(one(x).sum()), float(layer(c=32, m=16 + number)(x).sum())

x, one = image(), layer()
if __name__ == "__main__":
    right = [job(n) for n in range(6)]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(job, range(6)) == right
        assert pool.map(one, [x, x])[1].tobytes() == one(x).tobytes()  # the layer itself travels
    print("done")
""")
    assert out.strip() == "done"


BUSY = """
busy = layer(c=128, m=128)
big = image(n=2, c=128, size=64)
forever(lambda: busy(big))
"""

LONG = """
long, big = layer(c=256, m=256), image(n=3, c=256, size=round(96 / patience))
out = np.empty_like(big)
long(big, out=out)
forever(lambda: long(big, out=out))  # from the first turn's end on, through the native entry
"""

EXITS = {
    "the end": ("", 0, ""),
    "the end while another thread computes": (BUSY, 0, ""),
    "the end in the middle of a long call": (LONG, 0, ""),
    "the end while two threads compute": (BUSY + "forever(lambda: one(x))", 0, ""),
    "a thread that ends later": ("threading.Thread(target=lambda: (time.sleep(0.2), check())).start()", 0, ""),
    "an exception": ("raise ValueError('on purpose')", 1, "on purpose"),
    "an exception while another thread computes": (BUSY + "raise ValueError('on purpose')", 1, "on purpose"),
    "sys.exit": ("sys.exit(3)", 3, ""),
    "sys.exit while another thread computes": (BUSY + "sys.exit(3)", 3, ""),
    "os._exit": ("os._exit(7)", 7, ""),
    "os._exit while another thread computes": (BUSY + "os._exit(7)", 7, ""),
    "a call in atexit": ("import atexit; atexit.register(lambda: (check(), check(layer(threads=3))))", 0, ""),
    "a call in a finaliser": ("""
class Last:
    def __del__(self, one=one, x=x, total=float(right.sum())):
        assert float(one(x).sum()) == total
last = Last()
""", 0, ""),
}  # fmt: skip


@pytest.mark.parametrize("way", EXITS)
def test_exit(way: str) -> None:
    code, status, message = EXITS[way]
    for process in [start(COMMON + code) for _ in range(2)]:
        found, _, err = finish(process)
        assert found == status, err
        assert (message in err) if message else not err


@LINUX
def test_an_idle_pool_takes_no_cpu() -> None:
    used = run(
        COMMON
        + """
time.sleep(0.05)
before = time.process_time()
time.sleep(1)
print(time.process_time() - before)
"""
    )
    assert float(used) < 0.05


CHAINS = """
import ctypes
from polyconv.kernels.record import words
from polyconv.operands import span
from polyconv.runtime import threads as pool
from polyconv.runtime.control import CONTROL

def until(happened):
    end = time.monotonic() + 10 * patience
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.001)

def status(name):
    # what the system says of the worker
    text = open(f"/proc/self/task/{workers()[0]}/status").read()
    return text.split(f"\\n{name}:")[1].split()[0]

def asleep():
    # a worker that has said so may still be on its way to sleep, and then look up once more
    return ctypes.c_int32.from_address(CONTROL + 64).value == 1 and status("State") == "S"

def naps():
    # how often the worker went to sleep
    return int(status("voluntary_ctxt_switches"))

def job(y, threads):
    call = one._layer.call(x, None)
    frame = words([v for a in (x, y) for v in span(a)] + [0] * 6)
    return pool.Ready(call.steps, frame, call.program.workspace, environment=pool.control_word(strict=False),
                      threads=threads, wake=1)

until(asleep)
"""


@LINUX
def test_a_chain_of_jobs_wakes_the_pool_and_lets_it_sleep() -> None:
    """Of jobs that are shared and jobs that are not, for every way to wake; afterwards the pool takes no CPU."""
    used = run(
        COMMON
        + CHAINS
        + """
for wake in (1, 2, 2, 2):
    made = [np.zeros_like(right) for _ in range(4)]
    chain = pool.Chain([job(y, threads) for y, threads in zip(made, (2, 1, 1, 2))], wake)
    before = naps()
    seconds = chain()()
    assert len(seconds) == 4 and min(seconds) > 0
    assert all((y == right).all() for y in made)
    until(lambda: asleep() and (wake == 1 or naps() > before))
before = time.process_time()
time.sleep(1)
print(time.process_time() - before)
"""
    )
    assert float(used) < 0.05


SHARES = """
import ctypes
from collections import Counter
from polyconv.kernels.record import words
from polyconv.runtime import threads as pool

KINDS = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p

def job(items, threads, done):
    # items that are calls of Python
    function = ctypes.CFUNCTYPE(None, *KINDS)(lambda frame, words, item, space: done(item))
    held.append(function)
    steps = [word for n in items for word in (ctypes.cast(function, ctypes.c_void_p).value, 0, 0, n)]
    word = pool.control_word(strict=True)
    return pool.Ready(words(steps), words([0, 0]), 0, environment=word, threads=threads, wake=2)

held = []
pool.start_workers(4)
"""


@LINUX
def test_every_item_is_done_once() -> None:
    """Of jobs of few items and many, for more and fewer threads than there are workers."""
    run(
        SHARES
        + """
for threads in (1, 2, 3, 4, 7, 64):
    for items in ((1,), (2,), (3, 4), (64,), (0, 65, 0), (130,)):
        done = []
        job(items, threads, done.append)()
        assert Counter(done) == sum((Counter(range(n)) for n in items), Counter()), (threads, items)
"""
    )


@LINUX
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_begin_with_their_own_share(threads: int) -> None:
    """The same one in every job: the caller's is the first."""
    out = run(
        SHARES
        + f"""
threads = {threads}
for _ in range(3):
    first, all_there = dict(), threading.Barrier(threads, timeout=20 * patience)
    def done(item):
        me = threading.current_thread().name
        if me not in first:
            first[me] = item
            all_there.wait()
    job((10,), threads, done)()
    print(*sorted(first.values()), first[threading.main_thread().name])
"""
    )
    begins = {2: "0 5 0", 3: "0 4 7 0"}[threads]
    assert out.splitlines() == [begins] * 3


@LINUX
def test_the_pool_is_roused_only_where_it_is_free() -> None:
    run(
        COMMON
        + CHAINS
        + """
def ticket():
    return ctypes.c_uint64.from_address(CONTROL).value

before, word = naps(), ticket()
assert pool._acquire()
pool.rouse()
assert ticket() == word and asleep()
pool._release()
pool.rouse()
until(lambda: naps() > before)
until(asleep)
check()
"""
    )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("calls_before", [0, 1], ids=["first call", "native entry"])
def test_an_interrupt_takes_effect_when_the_call_ends(threads: int, calls_before: int) -> None:
    """The result is whole, the exception arrives, and everything works as before."""
    out = run(
        COMMON
        + f"""
import ctypes
from polyconv.runtime.control import CONTROL

signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may ignore it from the start
big = image(n=3, c=256, size=round(96 / patience))
out = np.empty_like(big)
long = layer(c=256, m=256, threads={threads})
expected = layer(c=256, m=256, threads=2)(big)
for _ in range({calls_before}):
    long(big, out=out)
out.fill(0)
def interrupt():
    while not out[:, :, ::8, ::8].any():  # until the call is under way
        time.sleep(0.001)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    long(big, out=out)
    time.sleep(5)
    print("no interrupt")
except KeyboardInterrupt:
    assert (out == expected).all()
    assert ctypes.c_int64.from_address(CONTROL + 256).value == 0  # the pool is free
    check()
    assert (long(big) == expected).all()
    print("interrupted")
"""
    )
    assert out.strip() == "interrupted"


def test_a_context_says_how_many_threads() -> None:
    """Also for a layer that has been called outside it: its native entry is bound to a number of threads."""
    run(
        COMMON
        + """
one, x = layer(threads=None), image(size=128)
right = layer(threads=1)(x)

def used():
    check(one)
    return one.plan(x.shape).threads, one._layer._last[0].plan_threads

with polyconv.settings(threads=2, check=False):
    assert used() == (2, 2)
    with polyconv.settings(threads=1):
        assert used() == (1, 1)
    assert used() == (2, 2)
with polyconv.settings(threads=3):
    assert used() == (3, 3)
assert layer(threads=1).plan(x.shape).threads == 1
"""
    )


@LINUX
@pytest.mark.parametrize(
    ("variables", "threads"),
    [
        ({"OMP_NUM_THREADS": "1"}, 1),
        ({"OMP_NUM_THREADS": "3,2"}, 3),
        ({"OMP_NUM_THREADS": "1", "POLYCONV_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "", "POLYCONV_NUM_THREADS": "1"}, 1),
    ],
    ids=str,
)
def test_variables_say_how_many_threads(variables: dict[str, str], threads: int) -> None:
    """As the plan says; that many workers and the caller do exist."""
    out = run("""
one, x = layer(threads=None), image(size=128)
y = one(x)
print(one.plan(x.shape).threads, sum(t.name.startswith("polyconv") for t in threading.enumerate()))
""", **variables)  # fmt: skip
    assert out.split() == [str(threads), str(threads - 1)]


@LINUX
def test_one_cpu() -> None:
    """Alone by default; a number given is obeyed, on that CPU; nobody's affinity is widened."""
    out = run("""
cpu = max(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cpu})
x = image(size=128)
assert layer(threads=None).plan(x.shape).threads == 1
right = layer(threads=1)(x)
one = layer(threads=3)
for _ in range(5):
    assert (one(x) == right).all()
threads = [t.native_id for t in threading.enumerate()]
print(len(threads), all(os.sched_getaffinity(t) == {cpu} for t in threads))
""")
    assert out.split() == ["3", "True"]


@LINUX
def test_affinity_of_the_caller_is_its_own() -> None:
    out = run(
        COMMON
        + """
before = os.sched_getaffinity(0)
for _ in range(50):
    check()
print(os.sched_getaffinity(0) == before, len(workers()), all(os.sched_getaffinity(w) <= before for w in workers()))
"""
    )
    assert out.split() == ["True", "1", "True"]
