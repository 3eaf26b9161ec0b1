"""Whole models on a GPU: polyconv beside ONNX Runtime's CUDA provider, inputs and outputs bound to memory there.

Both return when results are there, so that a clock of the CPU measures both; rounds go from one to the other.  It must
not know tables.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.benchmark.networks import difference
from polyconv.dataclass import dataclass
from polyconv.models.session import InferenceSession

__all__ = ["OnGpu", "measure"]

_ALIKE = 3
"""Runs after which a session replays: two that are alike, and the first that is replayed."""
_ROUND_SECONDS = 0.05
_PROVIDER = "CUDAExecutionProvider"

Feeds = Mapping[str, NDArray[Any]]
Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class OnGpu:
    """A model on a GPU.

    Parameters
    ----------
    name : str
        Of the file.
    seconds, peer_seconds : float or None
        Median over rounds of a run of polyconv and of ONNX Runtime.
    load_seconds, first_seconds : float
        Of opening the file and of the first run, with polyconv.
    memory_bytes : int
        Between steps of a run, with polyconv.
    on_cpu : int
        Steps that run on the CPU, with copies there and back.
    error : float
        rms difference of outputs from polyconv's on the CPU, over their rms; the largest of all outputs.
    why : str
        Why ONNX Runtime has no time.
    """

    name: str
    seconds: float
    peer_seconds: float | None
    load_seconds: float
    first_seconds: float
    memory_bytes: int
    on_cpu: int
    error: float
    why: str

    @property
    def ratio(self) -> float | None:
        """ONNX Runtime's time over polyconv's."""
        return None if self.peer_seconds is None else self.peer_seconds / self.seconds


def measure(path: Path, feeds: Feeds, providers: list[Any], number: int, rounds: int) -> OnGpu:
    """Open a model, run it on a GPU and compare.

    Parameters
    ----------
    feeds : mapping
        Arrays for its inputs.
    providers : list
        Of polyconv's session.
    number : int
        Of the GPU.
    """
    begin = perf_counter()
    session = InferenceSession(str(path), providers=providers)
    loaded = perf_counter()
    outputs = session.run(None, feeds)
    first = perf_counter()
    here = InferenceSession(str(path)).run(None, feeds)
    runs = {"polyconv": _bound(session, feeds, outputs, number)}
    peer, why = _peer(path, number)
    if peer is not None:
        runs["onnxruntime"] = _bound(peer, feeds, outputs, number)
    times = _times(runs, rounds)
    on_cpu = sum(step.copies for step in session.steps)
    return OnGpu(path.stem, times["polyconv"], times.get("onnxruntime"), loaded - begin, first - loaded,
                 session.memory.replay_bytes, on_cpu, difference(outputs, here), why)  # fmt: skip


def _peer(path: Path, number: int) -> tuple[Any, str]:
    """ONNX Runtime's session on the GPU, or why there is none."""
    try:
        ort = importlib.import_module("onnxruntime")
    except ImportError:
        return None, "onnxruntime is not installed; pip install onnxruntime-gpu"
    if _PROVIDER not in ort.get_available_providers():
        return None, "the onnxruntime that is installed has no CUDA provider; pip install onnxruntime-gpu in its place"
    return ort.InferenceSession(str(path), providers=[(_PROVIDER, {"device_id": number}), "CPUExecutionProvider"]), ""


def _bound(session: Any, feeds: Feeds, outputs: list[Any], number: int) -> Run:
    """What runs a session on memory of the GPU; the values hold it."""
    values: Any = type(session).__module__.partition(".")[0]
    make = importlib.import_module(values).OrtValue.ortvalue_from_numpy
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, make(np.ascontiguousarray(array), "cuda", number))
    for value, array in zip(session.get_outputs(), outputs, strict=True):
        binding.bind_ortvalue_output(value.name, make(np.ascontiguousarray(array), "cuda", number))
    return lambda: session.run_with_iobinding(binding)


def _times(runs: Mapping[str, Run], rounds: int) -> dict[str, float]:
    """Median seconds of a run: in each round every engine runs for a while."""
    counts = {}
    for name, run in runs.items():
        for _ in range(_ALIKE):
            begin = perf_counter()
            run()
        counts[name] = max(1, int(_ROUND_SECONDS / max(1e-6, perf_counter() - begin)))
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            begin = perf_counter()
            for _ in range(counts[name]):
                run()
            found[name].append((perf_counter() - begin) / counts[name])
    return {name: statistics.median(seconds) for name, seconds in found.items()}
