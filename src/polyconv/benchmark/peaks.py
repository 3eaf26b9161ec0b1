"""Peaks of one core, measured: multiply-adds a second in each arithmetic, and bytes a second of a copy.

A kernel of nothing but multiply-adds on registers; the best of several short runs is the peak.  What
it is compared with is the caller's business.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import cache

import numpy as np

from polyconv.kernels.isa import ARITHMETIC, Arithmetic, lanes
from polyconv.kernels.language import Buffer, Module, Value, vector
from polyconv.kernels.objects import kernel
from polyconv.kernels.signature import Int, Signature
from polyconv.kernels.tile import multiply_add
from polyconv.runtime.arrays import aligned
from polyconv.target import Target

__all__ = ["THREAD_CLOCK", "burner", "copy_bandwidth", "peak"]

THREAD_CLOCK = time.thread_time if time.get_clock_info("thread_time").resolution <= 1e-6 else time.perf_counter
"""Seconds in which this thread had a CPU, where the system counts them finely: others may have it in between."""

_SUMS, _UNROLLED, _TURNS, _RUNS = 12, 4, 20_000, 25
_LARGE = 64 << 20


class Burn(Signature):
    """Numbers to multiply and add, so many times."""

    memory: Buffer
    turns: Int


def _burn(k: Module, arithmetic: Arithmetic, count: int) -> None:
    kind, word = vector(arithmetic.accumulator, count), vector(arithmetic.word, count)
    with k.function("burn", Burn) as given:
        memory, turns = given.memory, given.turns
        a, b = k.load(word, memory), k.load(word, memory + kind.bytes)
        sums = [k.load(kind, memory + (2 + i) * kind.bytes) for i in range(_SUMS)]
        with k.loop(0, turns, carry=sums, runs=True) as loop:
            values = loop.values
            for _ in range(_UNROLLED):
                values = [_step(k, arithmetic, a, b, v) for v in values]
            loop.next(*values)
        for i, value in enumerate(loop.results):
            k.store(value, memory + i * kind.bytes)


def _step(k: Module, arithmetic: Arithmetic, a: Value, b: Value, total: Value) -> Value:
    """A multiply-add; of whole numbers the sum is a factor, as a product of two constants would be formed once."""
    if total.type.is_float:
        return multiply_add(k, arithmetic, a, b, total)
    return multiply_add(k, arithmetic, total, a, b)


@cache
def burner(target: Target, name: str) -> tuple[Callable[[], None], float]:
    """A run of multiply-adds on registers, callable from any thread, and how many operations it does.

    Parameters
    ----------
    name : str
        Row of ``ARITHMETIC``, of which the target has the instructions.
    """
    arithmetic = ARITHMETIC[name]
    count = lanes(target, arithmetic)
    address = kernel(f"burn {name}", {"burn": Burn}, lambda k: _burn(k, arithmetic, count), target)["burn"]
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(address)

    def burn() -> None:
        memory = aligned(4096, np.uint8)
        memory[:] = 0
        run(memory.ctypes.data, _TURNS)

    return burn, 2.0 * _SUMS * _UNROLLED * _TURNS * count * arithmetic.channels


@cache
def peak(target: Target, name: str) -> float:
    """Multiply-adds, times two, a second: GFLOP/s (or GOP/s) of one core in an arithmetic.

    Parameters
    ----------
    name : str
        Row of ``ARITHMETIC``, of which the target has the instructions.
    """
    burn, operations = burner(target, name)
    best = float("inf")
    for _ in range(_RUNS):
        start = THREAD_CLOCK()
        burn()
        best = min(best, THREAD_CLOCK() - start)
    return operations / best / 1e9


def copy_bandwidth(size: int = 2 * _LARGE) -> float:
    """Bytes a second, read and written, of a copy between arrays that have so many bytes together.

    Parameters
    ----------
    size : int
        Rounded up to a power of two, of at least 64 KiB; by default the copy leaves the caches.
    """
    return _copy_bandwidth(min(2 * _LARGE, max(1 << 16, 1 << (size - 1).bit_length())))


@cache
def _copy_bandwidth(size: int) -> float:
    source, target_ = np.ones(size // 2, np.uint8), np.empty(size // 2, np.uint8)
    copies = max(1, _LARGE // size)  # of small arrays many, as the clock and the first access take their time
    best = float("inf")
    for _ in range(_RUNS):
        start = THREAD_CLOCK()
        for _ in range(copies):
            np.copyto(target_, source)
        best = min(best, THREAD_CLOCK() - start)
    return size * copies / best
