"""CPUs to what they give right now: multiply-adds a second alone and together, and bytes copied.

Virtual CPUs are sometimes two halves of one core, or lent to somebody else for a second; a figure taken
then says nothing.  So a short burn stands beside every round of measurements.  It must not know engines.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from polyconv.benchmark.peaks import burner
from polyconv.dataclass import dataclass
from polyconv.target import Target

__all__ = ["Peaks", "burn", "cpus_for", "peaks", "pin"]

_BURN_SECONDS = 4e-3
_COPY_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Peaks:
    """What the CPUs in use can do.

    Parameters
    ----------
    cpus : tuple of int
        As the operating system numbers them.
    flops : float
        f32 multiply-adds, times two, a second, of all of them together.
    alone : float
        The same of the first one while the others rest.
    bandwidth : float
        Bytes a second, read and written, of large copies by all together.
    """

    cpus: tuple[int, ...]
    flops: float
    alone: float
    bandwidth: float


def pin(cpus: Sequence[int]) -> None:
    """Keep the calling thread on these CPUs, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)


def cpus_for(threads: int) -> tuple[int, ...]:
    """CPUs for a number of threads: the last ones allowed, as the first serves most interrupts."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    return tuple(allowed[-threads:])


def _together(cpus: Sequence[int], work: Callable[[], float]) -> list[float]:
    """Result of the same work on each CPU, all beginning at one moment."""
    start = threading.Barrier(len(cpus))
    results = [0.0] * len(cpus)

    def one(index: int) -> None:
        pin(cpus[index : index + 1])
        start.wait()
        results[index] = work()

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(cpus))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _rate(run: Callable[[], None], amount: float) -> float:
    """Amount a second, over the burn's time."""
    done = 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < _BURN_SECONDS:
        run()
        done += 1
    return done * amount / (time.perf_counter() - begin)


def burn(target: Target, cpus: Sequence[int]) -> tuple[float, float]:
    """Operations a second of the first CPU alone, and the smallest share of that which one gets when all burn.

    Two CPUs that are really one give 0.5; a single CPU gives 1.0.
    """
    work = partial(_rate, *burner(target, "f32"))
    alone = _together(cpus[:1], work)[0]
    return alone, min(_together(cpus, work)) / alone if len(cpus) > 1 else 1.0


def peaks(target: Target, cpus: Sequence[int], tries: int = 10) -> Peaks:
    """Best of several short tries of everything."""
    work = partial(_rate, *burner(target, "f32"))
    buffers = [(np.ones(_COPY_BYTES, np.uint8), np.ones(_COPY_BYTES, np.uint8)) for _ in cpus]
    free = list(buffers)

    def copy() -> float:
        source, result = free.pop()
        begin = time.perf_counter()
        np.copyto(result, source)
        return 2.0 * _COPY_BYTES / (time.perf_counter() - begin)

    alone, all_, bandwidth = 0.0, 0.0, 0.0
    for _ in range(tries):
        alone = max(alone, _together(cpus[:1], work)[0])
        all_ = max(all_, sum(_together(cpus, work)))
        free[:] = buffers
        bandwidth = max(bandwidth, sum(_together(cpus, copy)))
    return Peaks(tuple(cpus), all_, alone, bandwidth)
