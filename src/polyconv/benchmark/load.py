"""What a network's convolutions cost before they run, and what layers cost that see ever new image sizes.

Both are measured in fresh processes.  Loading: weights are there, then every layer is made and called once, which
plans, packs, and compiles or finds its kernels on disk; the time of a second call is taken off, and that of importing
the package is told apart.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from polyconv.benchmark.sets import layer_sets
from polyconv.dataclass import dataclass

__all__ = ["LoadTimes", "Sizes", "environment_of", "fresh", "load_times", "network", "sizes"]

_TIMES = {
    "2b_3x3": 3, "2a_proj": 4, "2b_1x1a": 2, "3_1x1c": 4, "3b_1x1a": 3, "3b_3x3": 3, "4_1x1c": 6, "4b_1x1a": 5,
    "4b_3x3": 5, "5_1x1c": 3, "5b_1x1a": 2, "5b_3x3": 2,
}  # fmt: skip
"""How often a distinct layer stands in ResNet-50, where that is more than once."""

_LOAD = """
import json, sys, time
import numpy
import polyconv
problems = [polyconv.Problem.parse(text) for text in json.load(sys.stdin)]
rng = numpy.random.default_rng(0)
weights = [rng.standard_normal(p.w_shape, numpy.float32) for p in problems]
inputs = [numpy.zeros(p.x_shape, numpy.float32) for p in problems]
layers, again = [], 0.0
begin = time.perf_counter()
polyconv.Conv  # imported with its first use
start = time.perf_counter()
for p, w, x in zip(problems, weights, inputs):
    layers.append(polyconv.Conv(w, strides=p.s, pads=p.pads, layout=p.layout, threads=1))
    layers[-1](x)
    middle = time.perf_counter()
    layers[-1](x)
    again += 2 * (time.perf_counter() - middle)
print(json.dumps([time.perf_counter() - start - again, start - begin]))
"""

_SIZES = """
import json, os, sys
import numpy
import polyconv
from polyconv.kernels.objects import EVENTS
images, least, most, seed = json.load(sys.stdin)
def resident():
    if not os.path.exists("/proc/self/statm"):
        return 0
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
rng = numpy.random.default_rng(seed)
layer = polyconv.Conv(rng.standard_normal((32, 16, 3, 3), numpy.float32), pads=1, activation="Relu")
x, y = (numpy.ones(c * most * most, numpy.float32) for c in (16, 32))
events, before = 0, None
for h, w in rng.integers(least, most + 1, (images, 2)).tolist():
    compiled = EVENTS.compiled
    layer(x[: 16 * h * w].reshape(1, 16, h, w), out=y[: 32 * h * w].reshape(1, 32, h, w))
    events += EVENTS.compiled > compiled
    before = before or resident()
print(json.dumps([events, EVENTS.compiled, resident() - before]))
"""


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """Seconds to load a number of layers: without and with the object cache; the best of several processes.

    ``importing`` the package comes before.
    """

    layers: int
    cold: float
    warm: float
    importing: float


@dataclass(frozen=True, slots=True)
class Sizes:
    """What images of many sizes cost one layer.

    Parameters
    ----------
    images : int
        How many there were.
    events : int
        Calls that had to compile, the first one among them.
    kernels : int
        What these compiled.
    grown : int
        Bytes by which the process grew after the first call.
    """

    images: int
    events: int
    kernels: int
    grown: int


def network(*, repeated: bool) -> tuple[str, ...]:
    """Problem lines of the convolutions of ResNet-50: all 53, or the 23 distinct ones."""
    cases = layer_sets()["resnet50"]
    return tuple(str(case.problem) for case in cases for _ in range(_TIMES.get(case.name, 1) if repeated else 1))


def load_times(problems: Sequence[str], rounds: int = 3) -> LoadTimes:
    """Time fresh processes that load all of some forward convolutions."""
    cold, warm = [], []
    with tempfile.TemporaryDirectory() as folder:
        fresh(_LOAD, list(problems[:1]), folder, "first")  # leaves Python's bytecode
        for i in range(rounds):
            cold.append(fresh(_LOAD, list(problems), folder, str(i)))
            warm.append(fresh(_LOAD, list(problems), folder, str(i)))
    return LoadTimes(len(problems), min(t for t, _ in cold), *map(min, zip(*warm, strict=True)))


def sizes(images: int = 1000, least: int = 16, most: int = 224, seed: int = 0) -> Sizes:
    """Call one 3x3 layer, in a fresh process without object cache, with images of random extents."""
    with tempfile.TemporaryDirectory() as folder:
        return Sizes(images, *fresh(_SIZES, [images, least, most, seed], folder, "sizes"))


def fresh(code: str, given: Any, folder: str, cache: str) -> Any:
    """What a fresh process answers to what it is given."""
    words, environment = [sys.executable, "-c", code], environment_of(folder, cache)
    done = subprocess.run(words, input=json.dumps(given), env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def environment_of(folder: str, cache: str) -> dict[str, str]:
    """Environment of a fresh process: an object cache of its own, nothing learnt, Python's bytecode kept."""
    environment = {
        **os.environ, "POLYCONV_CACHE_DIR": f"{folder}/{cache}", "POLYCONV_WISDOM": "off",
        "PYTHONPYCACHEPREFIX": f"{folder}/python",
    }  # fmt: skip
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    return environment
