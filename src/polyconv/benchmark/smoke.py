"""The smoke benchmark: a minute's look at start-up, call overhead, compile times and dense speed.

Start-up is timed in processes of their own, calls by the interpreter's timer, layers against the
measured peak of one core.  Rows of numbers come out; showing them is the command's business.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from polyconv import cache
from polyconv.benchmark.load import environment_of
from polyconv.benchmark.peaks import peak
from polyconv.benchmark.runs import median_seconds, prepared, restricted
from polyconv.dataclass import dataclass
from polyconv.kernels import objects
from polyconv.layer import Conv, conv, plan
from polyconv.problem.problem import Problem
from polyconv.target import host_target, levels, target

__all__ = [
    "LAYERS", "CallTimes", "LayerSpeed", "StartTimes", "call_times", "compile_times", "layer_speeds", "start_times",
]  # fmt: skip

LAYERS = {
    "resnet50 2b_3x3": "c64 i56x56 m64 k3x3 p1",
    "resnet50 3b_3x3": "c128 i28x28 m128 k3x3 p1",
    "resnet50 4b_3x3": "c256 i14x14 m256 k3x3 p1",
    "resnet50 4a_1x1a": "c512 i28x28 m256 k1x1",
    "vgg16 conv3_2": "c256 i56x56 m256 k3x3 p1",
    "yolov3 r3_3x3": "c128 i52x52 m256 k3x3 p1",
}
"""Six dense f32 layers of published networks."""

_PROBE = """
import json, time
import numpy
start = time.perf_counter()
import polyconv
imported = time.perf_counter()
x, w = numpy.ones((1, 16, 14, 14), "f4"), numpy.ones((32, 16, 3, 3), "f4")
before = time.perf_counter()
polyconv.conv(x, w, pads=1)
print(json.dumps([imported - start, time.perf_counter() - before]))
"""


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Seconds, medians of fresh processes: import beyond NumPy, first result without and with the object cache."""

    imported: float
    first_cold: float
    first_warm: float


@dataclass(frozen=True, slots=True)
class CallTimes:
    """Seconds of a call of a tiny layer, with ``out`` and without, and of ``conv`` with the same weights again.

    Best of several rounds.
    """

    with_out: float
    without_out: float
    with_weights: float


@dataclass(frozen=True, slots=True)
class LayerSpeed:
    """One layer: median seconds, GFLOP/s and the share of the target's own peak and of the machine's."""

    name: str
    layout: str
    level: str
    algorithm: str
    seconds: float
    gflops: float
    share: float
    share_of_machine: float


def start_times(rounds: int = 5) -> StartTimes:
    """Time fresh processes."""
    cold, warm = [], []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(rounds):
            environment = environment_of(folder, str(i))
            cold.append(_probe(environment))
            warm.append(_probe(environment))
    imported = statistics.median(a for a, _ in cold + warm)
    return StartTimes(imported, statistics.median(b for _, b in cold), statistics.median(b for _, b in warm))


def _probe(environment: dict[str, str]) -> tuple[float, float]:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE], env=environment, capture_output=True, text=True, check=True
    )  # fmt: skip
    imported, first = json.loads(done.stdout)
    return imported, first


def call_times(rounds: int = 7, calls: int = 20_000) -> CallTimes:
    """Overhead of a call, on a layer that has next to nothing to do."""
    w = np.ones((1, 1, 1), np.float32)
    layer = Conv(w, threads=1)
    x = np.ones((1, 1, 4), np.float32)
    out = layer(x)

    def best(call: Callable[[], Any], calls: int = calls) -> float:
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            for _ in range(calls):
                call()
            times.append((time.perf_counter() - start) / calls)
        return min(times)

    return CallTimes(best(lambda: layer(x, out=out)), best(lambda: layer(x)), best(lambda: conv(x, w), calls // 20))


def compile_times() -> dict[str, float]:
    """Seconds to generate and compile every kernel that the six layers need, by kernel."""
    folder, loaded = cache.cache_folder(), dict(objects._loaded)
    objects.EVENTS.seconds.clear()
    objects._loaded.clear()
    cache.use_folder(None)
    try:
        for text in LAYERS.values():
            for layout in ("NHWC", "NCHW"):
                prepared(Problem.parse(f"conv f32 {layout} n1 {text}")).run()
        return dict(objects.EVENTS.seconds)
    finally:
        cache.use_folder(folder)
        objects._loaded.update(loaded)


def layer_speeds(progress: Callable[[LayerSpeed], None] = lambda row: None) -> list[LayerSpeed]:
    """Speed of the six layers on one thread: both layouts, all vector levels this machine has.

    Where the planner chose another algorithm the direct one is measured too: only its multiply-adds are
    those that GFLOP/s count, so only its share of the peak is at most 1.
    """
    host = host_target()
    measured = [level for level in reversed(levels()) if level != "baseline"] or [host.level]
    rows = []
    for level in measured:
        for layout in ("NHWC", "NCHW"):
            for name, text in LAYERS.items():
                problem = Problem.parse(f"conv f32 {layout} n1 {text}")
                with restricted(level):
                    chosen = plan(problem).algorithm
                    times = {
                        algorithm: median_seconds(prepared(problem, algorithm).run, least=9, seconds=0.25)
                        for algorithm in dict.fromkeys((chosen, "direct"))
                    }
                own, machine = peak(target(level), "f32"), peak(host, "f32")
                for algorithm, seconds in times.items():
                    gflops = 2.0 * problem.macs / seconds / 1e9
                    rows.append(
                        LayerSpeed(name, layout, level, algorithm, seconds, gflops, gflops / own, gflops / machine)
                    )
                    progress(rows[-1])
    return rows
