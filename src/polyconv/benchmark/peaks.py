"""Peaks of one core, measured: multiply-adds a second in each arithmetic, and bytes a second of a large copy.

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
from polyconv.kernels.language import Buffer, Module, vector
from polyconv.kernels.objects import kernel
from polyconv.kernels.signature import Int, Signature
from polyconv.runtime.arrays import aligned
from polyconv.target import Target

__all__ = ["burner", "copy_bandwidth", "peak"]

_SUMS, _UNROLLED, _TURNS, _RUNS = 12, 4, 20_000, 25


class Burn(Signature):
    """Numbers to multiply and add, so many times."""

    memory: Buffer
    turns: Int


def _burn(k: Module, arithmetic: Arithmetic, count: int) -> None:
    kind = vector(arithmetic.accumulator, count)
    with k.function("burn", Burn) as given:
        memory, turns = given.memory, given.turns
        a, b = k.load(kind, memory), k.load(kind, memory + kind.bytes)
        sums = [k.load(kind, memory + (2 + i) * kind.bytes) for i in range(_SUMS)]
        with k.loop(0, turns, carry=sums, runs=True) as loop:
            values = loop.values
            for _ in range(_UNROLLED):
                values = [k.fma(v, a, b) if not kind.is_float else k.fma(a, b, v) for v in values]
            loop.next(*values)
        for i, value in enumerate(loop.results):
            k.store(value, memory + i * kind.bytes)


@cache
def burner(target: Target, name: str) -> tuple[Callable[[], None], float]:
    """A run of multiply-adds on registers, callable from any thread, and how many operations it does.

    Parameters
    ----------
    name : str
        ``f32``, ``f64``, ``i32`` or ``i64``.
    """
    arithmetic = ARITHMETIC[name]
    count = lanes(target, arithmetic)
    address = kernel(f"burn {name}", {"burn": Burn}, lambda k: _burn(k, arithmetic, count), target)["burn"]
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(address)

    def burn() -> None:
        memory = aligned(4096, np.uint8)
        memory[:] = 0
        run(memory.ctypes.data, _TURNS)

    return burn, 2.0 * _SUMS * _UNROLLED * _TURNS * count


@cache
def peak(target: Target, name: str) -> float:
    """Multiply-adds, times two, a second: GFLOP/s (or GOP/s) of one core in an arithmetic.

    Parameters
    ----------
    name : str
        ``f32``, ``f64``, ``i32`` or ``i64``; dot products of bf16 pairs do twice f32's.
    """
    if name == "bf16":
        return 2.0 * peak(target, "f32")
    burn, operations = burner(target, name)
    best = float("inf")
    for _ in range(_RUNS):
        start = time.perf_counter()
        burn()
        best = min(best, time.perf_counter() - start)
    return operations / best / 1e9


@cache
def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a copy that leaves the caches."""
    size = 64 << 20
    source, target_ = np.ones(size, np.uint8), np.empty(size, np.uint8)
    best = float("inf")
    for _ in range(7):
        start = time.perf_counter()
        np.copyto(target_, source)
        best = min(best, time.perf_counter() - start)
    return 2.0 * size / best
