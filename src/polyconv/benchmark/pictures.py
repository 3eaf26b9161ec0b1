"""Filters of pictures against SciPy and OpenCV: what is measured, and seconds of a call.

All run in this process, with as many threads; rounds go from one to the next in random order, a burst of calls each,
and the median over rounds counts.  SciPy, which has one thread and may take a minute, filters the first rows only where
the whole picture takes long: its time is that of the rows, by their share of the picture.  It must not know tables.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv import ndimage
from polyconv.benchmark.sets import pattern_of
from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError

__all__ = ["ENGINES", "Case", "Times", "cases", "means", "measure", "missing"]

SIZES, KERNELS = (512, 1024, 2048, 4096), (3, 5, 7, 9, 15, 31)
TYPES = {"u8": np.uint8, "f32": np.float32}
ENGINES = ("polyconv", "opencv", "scipy")
_MODULES = {"opencv": "cv2", "scipy": "scipy.ndimage"}

_MOST_PRODUCTS = 5e7
"""Products of a call of SciPy, which forms about 1e9 a second, beyond which it filters the first rows only."""

_SAMPLE_SECONDS = 2e-4
"""Shorter calls are timed several together."""

_CROP = 96
"""Rows and columns on which results are compared with SciPy's."""

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A picture and weights.

    Parameters
    ----------
    size, kernel : int
        Rows, and columns, of picture and weights.
    dtype : str
        ``u8`` or ``f32``.
    weights : str
        ``random``, ``gaussian`` (a product of two lines) or ``whole``: whole numbers from -4 to 4.
    """

    size: int
    kernel: int
    dtype: str
    weights: str

    def __str__(self) -> str:
        return f"{self.size}x{self.size} {self.dtype} {self.kernel}x{self.kernel} {self.weights}"


@dataclass(frozen=True, slots=True)
class Times:
    """What was measured of a case.

    Parameters
    ----------
    seconds : mapping
        Of a call, by engine: medians of rounds.
    scipy_rows : int
        Rows of the picture that SciPy filtered.
    differing : int or None
        Results, of a part of the picture, that are not SciPy's; None without SciPy.
    difference : float or None
        The largest difference, in units of ``eps sum|weights||picture|``, or of 1 for integers.
    """

    case: Case
    seconds: Mapping[str, float]
    scipy_rows: int
    differing: int | None
    difference: float | None


def missing() -> dict[str, str]:
    """Engines that are not installed, and what brings them."""
    extra = "install polyconv[bench]"
    return {name: extra for name, module in _MODULES.items() if find_spec(module.partition(".")[0]) is None}


def cases(match: str | None) -> list[Case]:
    """Cases in whose line a regular expression is found.

    Raises
    ------
    ArgumentError
        If the expression is none, or fits no case.
    """
    every = [Case(n, k, t, w) for t in TYPES for w in ("random", "gaussian", "whole") for n in SIZES for k in KERNELS]
    pattern = pattern_of(match)
    found = [case for case in every if pattern.search(str(case))]
    if not found:
        raise ArgumentError(f"--match {match!r} fits none of the {len(every)} filters, such as '{every[0]}'")
    return found


def measure(case: Case, threads: int, seconds: float, rounds: int, seed: int) -> Times:
    """Time a case on every engine that is installed.

    Parameters
    ----------
    seconds : float
        For all engines together, about.
    """
    rng = np.random.default_rng(seed)
    picture = (rng.random((case.size, case.size)) * 255).astype(TYPES[case.dtype])
    weights = _weights(case, rng)
    rows = min(case.size, max(case.kernel, int(_MOST_PRODUCTS / (case.size * weights.size))))
    calls = _calls(picture, weights, threads, rows)
    found: dict[str, list[float]] = {name: [] for name in calls}
    typical = {name: _once(call) for name, call in calls.items()}
    part = seconds / rounds / len(calls)
    for _ in range(rounds):
        for name in rng.permutation(list(calls)).tolist():
            if name != "scipy" or not found[name] or typical[name] < part:
                found[name].append(_burst(calls[name], typical[name], part))
    times = {name: statistics.median(each) for name, each in found.items()}
    if "scipy" in times:
        times["scipy"] *= case.size / rows
    differing, difference = _compared(picture, weights, threads) if "scipy" in times else (None, None)
    return Times(case, times, rows, differing, difference)


def _weights(case: Case, rng: np.random.Generator) -> Array:
    k = case.kernel
    if case.weights == "whole":
        return rng.integers(-4, 5, (k, k)).astype(np.float64)
    line = np.exp(-np.linspace(-2, 2, k) ** 2)
    weights: Array = rng.random((k, k)) if case.weights == "random" else np.outer(line, line)
    weights /= weights.sum()
    return weights


def _calls(picture: Array, weights: Array, threads: int, rows: int) -> dict[str, Callable[[], object]]:
    """A call of every engine, into a result of its own where it takes one."""
    out = np.empty_like(picture)
    calls: dict[str, Callable[[], object]] = {
        "polyconv": lambda: ndimage.correlate(picture, weights, output=out, threads=threads)
    }
    absent = missing()
    if "opencv" not in absent:
        cv2: Any = import_module("cv2")
        cv2.setNumThreads(threads)
        result, single = np.empty_like(picture), weights.astype(np.float32)
        border = cv2.BORDER_REFLECT
        calls["opencv"] = lambda: cv2.filter2D(picture, -1, single, dst=result, borderType=border)
    if "scipy" not in absent:
        scipy: Any = import_module("scipy.ndimage")
        some, part = picture[:rows], np.empty_like(picture[:rows])
        calls["scipy"] = lambda: scipy.correlate(some, weights, output=part)
    return calls


def _once(call: Callable[[], object]) -> float:
    """About the seconds of a call that has been made before."""
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _burst(call: Callable[[], object], typical: float, seconds: float) -> float:
    """Median seconds of a call over a time."""
    together = max(1, int(_SAMPLE_SECONDS / max(typical, 1e-9)))
    samples: list[float] = []
    begin = time.perf_counter()
    while not samples or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        for _ in range(together):
            call()
        samples.append((time.perf_counter() - start) / together)
    return statistics.median(samples)


def _compared(picture: Array, weights: Array, threads: int) -> tuple[int, float]:
    """How many results differ from SciPy's on a part of the picture, and the largest difference."""
    scipy: Any = import_module("scipy.ndimage")
    some = np.ascontiguousarray(picture[:_CROP, :_CROP])
    ours, theirs = (np.asarray(f(some, weights), np.float64) for f in (ndimage.correlate, scipy.correlate))
    unit: Array | float = 1.0
    if picture.dtype.kind == "f":
        scale = scipy.correlate(np.abs(some).astype(np.float64), np.abs(weights))
        unit = np.finfo(picture.dtype).eps * np.maximum(scale, np.finfo(picture.dtype).tiny)
    apart = np.abs(ours - theirs)
    return int(np.count_nonzero(apart)), float((apart / unit).max())


def means(times: Sequence[Times], engine: str) -> float | None:
    """Geometric mean of an engine's time over polyconv's, of the cases that it ran; None if it ran none."""
    ratios = [t.seconds[engine] / t.seconds["polyconv"] for t in times if engine in t.seconds]
    return statistics.geometric_mean(ratios) if ratios else None
