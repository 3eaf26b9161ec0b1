"""Measures a profile on the CPU at hand, in about 0.3 s, and keeps it in a file.

Each number is the best of a few short runs of a kernel that does nothing else.  What was measured once stays: choices
follow from it, and results' bits from choices.  Which CPUs need it is not its business.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from polyconv.cache import usable
from polyconv.errors import ArgumentError
from polyconv.kernels.isa import ARITHMETIC, lanes
from polyconv.kernels.language import Buffer, Module, Value, vector
from polyconv.kernels.objects import kernel
from polyconv.kernels.signature import Int, Signature
from polyconv.kernels.tile import multiply_add
from polyconv.machine.caches import caches
from polyconv.machine.profile import Profile, arithmetics, of_file, profile_of, spelled
from polyconv.runtime.arrays import aligned
from polyconv.runtime.clock import cycles_a_second
from polyconv.target import Target

__all__ = ["kept", "measured"]

_log = logging.getLogger("polyconv")

_TRIES, _SECONDS = 5, 2e-4
"""Runs of which the fastest counts, and about how long each takes."""
_UNROLLED = 4
_STREAMED = 16
"""Vectors that a turn of the kernels for loads and stores takes."""
_NEAR_BYTES = 4096
_ASSUMED = {"L1d": 32 << 10, "L2": 512 << 10, "L3": 8 << 20}
_MOST_FAR_BYTES = 192 << 20
_WAKES = 9
_LONGEST_WAIT_SECONDS = 30.0


class Run(Signature):
    """Memory to work in, and how often."""

    memory: Buffer
    turns: Int


class Pass(Signature):
    """Memory to go through, in so many steps of ``_STREAMED`` vectors, and how often."""

    memory: Buffer
    steps: Int
    turns: Int


# -- kernels ---------------------------------------------------------------------------------------------


def _products(k: Module, name: str, arithmetic: str, count: int, rows: int, vectors: int) -> None:
    """A tile of sums in registers: each step loads a word a row, and adds its products with the same weights."""
    arith = ARITHMETIC[arithmetic]
    total, word = vector(arith.accumulator, count), vector(arith.word, count)
    with k.function(name, Run) as given:
        weights = [k.load(word, given.memory + i * word.bytes) for i in range(vectors)]
        sums = [k.load(total, given.memory + (vectors + i) * total.bytes) for i in range(rows * vectors)]
        with k.loop(0, given.turns, carry=sums, runs=True) as loop:
            values = list(loop.values)
            for step in range(_UNROLLED):
                for row in range(rows):
                    one = k.load(word, given.memory + (step * rows + row) * word.bytes)
                    for i in range(row * vectors, (row + 1) * vectors):
                        values[i] = multiply_add(k, arith, one, weights[i - row * vectors], values[i])
            loop.next(*values)
        for i, value in enumerate(loop.results):
            k.store(value, given.memory + i * total.bytes)


def _loads(k: Module, count: int) -> None:
    kind = vector("i32", count)
    with k.function("loads", Pass) as given:
        first: list[Value] = [k.load(kind, given.memory + i * kind.bytes) for i in range(4)]
        with k.loop(0, given.turns, carry=first, runs=True) as turn:
            with k.loop(0, given.steps, carry=turn.values, runs=True) as step:
                values, place = list(step.values), given.memory + step.index * (_STREAMED * kind.bytes)
                for i in range(_STREAMED):
                    values[i % 4] = values[i % 4] | k.load(kind, place + i * kind.bytes)
                step.next(*values)
            turn.next(*step.results)
        for i, value in enumerate(turn.results):
            k.store(value, given.memory + i * kind.bytes)


def _stores(k: Module, count: int) -> None:
    kind = vector("i32", count)
    with k.function("stores", Run) as given:
        value = k.load(kind, given.memory)
        with k.loop(0, given.turns, runs=True):
            for i in range(_STREAMED):
                k.store(value, given.memory + i * kind.bytes)


def _tile(target: Target) -> tuple[int, int]:
    """Rows and vectors of a tile with more sums than are added at once, and no more than the registers hold."""
    return (10, 2) if target.registers == 32 else (5, 2)


def _kernels(target: Target) -> dict[str, Callable[..., None]]:
    """The functions of one level, by name."""
    names = [name for name in arithmetics(target.level) if name != "bf16" or target.bf16]
    rows, vectors = _tile(target)
    signatures: dict[str, type[Signature]] = {"loads": Pass, "stores": Run}
    signatures |= {f"{what}_{name}": Run for name in names for what in ("products", "chain")}

    def build(k: Module) -> None:
        for name in names:
            count = lanes(target, ARITHMETIC[name])
            _products(k, f"products_{name}", name, count, rows, vectors)
            _products(k, f"chain_{name}", name, count, 1, 1)
        _loads(k, target.vector_bytes // 4)
        _stores(k, target.vector_bytes // 4)

    found = kernel("calibrate", signatures, build, target)
    integers = {Run: 1, Pass: 2}
    return {
        name: ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * integers[kind])(found[name])
        for name, kind in signatures.items()
    }


# -- measuring -------------------------------------------------------------------------------------------


def _seconds(run: Callable[[int], None]) -> float:
    """Seconds of a turn: so many turns are timed together as take long enough, and the fastest run counts."""
    turns, once = 1, 0.0
    while once < _SECONDS:
        turns = turns * 2 if once < _SECONDS / 64 else int(turns * 1.2 * _SECONDS / once) + 1
        once = _timed(run, turns)
    return min(once, *(_timed(run, turns) for _ in range(_TRIES))) / turns


def _timed(run: Callable[[int], None], turns: int) -> float:
    start = time.perf_counter()
    run(turns)
    return time.perf_counter() - start


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _rates(target: Target, clock: float) -> dict[str, float]:
    """Numbers of one level, by key without the level."""
    functions, memory = _kernels(target), aligned(1 << 16, np.uint8)
    place, steps = memory.ctypes.data, _NEAR_BYTES // (_STREAMED * target.vector_bytes)
    rows, vectors = _tile(target)

    def cycles(name: str, *more: int) -> float:
        return _seconds(lambda turns: functions[name](place, *more, turns)) * clock

    found = {
        "loads": steps * _STREAMED / cycles("loads", steps),
        "stores": _STREAMED / cycles("stores"),
    }
    for name in arithmetics(target.level):
        known = name if f"products_{name}" in functions else "f32"  # the CPU has no such instruction: nobody asks
        found[f"multiply_adds.{name}"] = _UNROLLED * rows * vectors / cycles(f"products_{known}")
        found[f"latency.{name}"] = cycles(f"chain_{known}") / _UNROLLED
    return {key: _rounded(value) for key, value in found.items()}


def _reads(target: Target, clock: float, sizes: Mapping[str, int]) -> dict[str, float]:
    """Bytes a cycle that come from half of each cache, and from memory."""
    loads, step = _kernels(target)["loads"], _STREAMED * target.vector_bytes
    far = _far_bytes(sizes)
    memory = aligned(far, np.uint8)
    memory[:] = 1
    found = {}
    for key, size in (*((name, sizes[of] // 2) for name, of in _LEVELS.items()), ("memory", far)):
        steps = max(1, min(size, far) // step)
        seconds = _seconds(lambda turns, steps=steps: loads(memory.ctypes.data, steps, turns))  # type: ignore[misc]
        found[f"{key}.read"] = _rounded(steps * step / (seconds * clock))
    return found


_LEVELS = {"l1": "L1d", "l2": "L2", "l3": "L3"}


def _far_bytes(sizes: Mapping[str, int]) -> int:
    """Bytes that no cache holds, unless the last one is very large."""
    return min(_MOST_FAR_BYTES, 3 * sizes["L3"])


def _wake() -> float:
    """Seconds from an event to the thread that sleeps until it comes, the median of a few."""
    waits, woken = [threading.Event() for _ in range(_WAKES)], [0.0] * _WAKES

    def sleep() -> None:
        for i, event in enumerate(waits):
            event.wait()
            woken[i] = time.perf_counter()

    sleeper = threading.Thread(target=sleep, daemon=True)
    sleeper.start()
    told = []
    for event in waits:
        time.sleep(1e-3)  # until it sleeps
        told.append(time.perf_counter())
        event.set()
    sleeper.join()
    return _rounded(max(1e-7, statistics.median(then - start for start, then in zip(told, woken, strict=True))))


def measured(targets: Sequence[Target]) -> Profile:
    """The profile of this CPU, measured now.

    Parameters
    ----------
    targets : sequence of Target
        Its levels, in ascending order.
    """
    clock, told = cycles_a_second(), caches()
    sizes = {name: told[name].bytes if name in told else size for name, size in _ASSUMED.items()}
    sources = {"page": "told by the system", "line": "told by the system" if told else "assumed"}
    sources |= {f"{key}.bytes": "told by the system" if of in told else "assumed" for key, of in _LEVELS.items()}
    numbers: dict[str, float] = {
        "clock": clock, "wake": _wake(), "page": mmap.PAGESIZE, "line": told["L1d"].line if "L1d" in told else 64,
        **{f"{key}.bytes": sizes[of] for key, of in _LEVELS.items()}, **_reads(targets[-1], clock, sizes),
    }  # fmt: skip
    for target in targets:
        numbers |= {f"{target.level}.{key}": value for key, value in _rates(target, clock).items()}
    today = f"measured on {time.strftime('%Y-%m-%d')} by polyconv"
    if _far_bytes(sizes) < 2 * sizes["L3"]:
        sources["memory.read"] = f"{today}; the last cache holds most of it"
    table = _nested(numbers) | {"cpus": [targets[-1].cpu], "sources": dict.fromkeys(numbers, today) | sources}
    return profile_of("calibrated", table, "calibration")


def _nested(numbers: Mapping[str, float]) -> dict[str, object]:
    """Keys with points as tables in tables."""
    table: dict[str, object] = {}
    for key, value in numbers.items():
        *outer, last = key.split(".")
        inner = table
        for name in outer:
            inner = inner.setdefault(name, {})  # type: ignore[assignment]
        inner[last] = value
    return table


# -- keeping ---------------------------------------------------------------------------------------------


def kept(targets: Sequence[Target], folder: Path) -> Profile:
    """The profile of this CPU that a folder keeps; measured and kept there the first time.

    Processes that come at the same time wait for the first.  A folder that cannot be used, or a file that is no
    profile of this CPU, costs a warning and measuring.
    """
    if not usable(folder):
        _log.warning("%s", _unkept(folder))
        return measured(targets)
    from filelock import FileLock, Timeout  # only here: most processes never measure

    file = folder / "calibrated.toml"
    try:
        with FileLock(f"{file}.lock", timeout=_LONGEST_WAIT_SECONDS, mode=0o600):
            found = _read(file, targets) if os.path.lexists(file) else None
            if found is None:
                found = measured(targets)
                _write(file, spelled(found))
                _log.info("calibrated this machine, which no preset describes: %s", file)
            return found
    except (OSError, Timeout) as error:
        _log.warning("%s: %s", _unkept(folder), error)
        return measured(targets)


def _unkept(folder: Path) -> str:
    return (
        f"what this machine was measured to do cannot be kept in {folder}, and the next process measures anew, which "
        "may choose other algorithms; set POLYCONV_CACHE_DIR to a folder of your own, or POLYCONV_PROFILE"
    )


def _read(file: Path, targets: Sequence[Target]) -> Profile | None:
    """A profile of this CPU and its levels, or None with a warning."""
    try:
        found = of_file(file)
    except ArgumentError as error:
        _log.warning("%s; measuring this machine anew", error)
        return None
    here = targets[-1].cpu
    if here not in found.cpus or not {target.level for target in targets} <= set(found.levels):
        _log.warning("%s is the profile of another CPU, %s; measuring this one", file, ", ".join(found.cpus))
        return None
    return found


def _write(file: Path, text: str) -> None:
    """Write a file in one step: a temporary one beside it, then a rename."""
    temporary = file.with_name(f"{file.name}.{os.urandom(8).hex()}.part")
    try:
        with temporary.open("x", encoding="utf-8") as stream:
            stream.write(text)
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
