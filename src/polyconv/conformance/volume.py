"""A large layer in a process of its own: its values at sampled places, and the memory that it took.

The process first runs a small layer, so that everything loaded once is loaded; what its resident
set then gains at most, less input and output, is the memory of the large layer.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from polyconv.conformance.layers_ir import LAYERS, LayerIR, written
from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError, Error
from polyconv.models.session import InferenceSession
from polyconv.problem.oracle import magnitude, oracle, tolerance
from polyconv.problem.problem import Problem

__all__ = ["Volume", "measured"]

_SAMPLES = 200


@dataclass(frozen=True, slots=True)
class Volume:
    """What the process reported.

    Parameters
    ----------
    shape : tuple of int
        Of the result.
    wrong : int
        Sampled outputs outside the bound.
    extra_bytes : int
        Peak resident memory beyond input, output and the process before.
    """

    shape: tuple[int, ...]
    wrong: int
    extra_bytes: int


def measured(layer: LayerIR, seconds: float = 600.0) -> Volume:
    """Run a layer without padding through a session in a fresh process.

    Parameters
    ----------
    layer : LayerIR
        One of ``LAYERS``; every output must have its whole window inside the input.
    seconds : float
        Time limit.

    Raises
    ------
    ArgumentError
        If the layer pads.
    Error
        If the process died or took longer than ``seconds``; its last words are in the message.
    """
    if any(layer.parsed.pads[a] != (0, 0) for a in range(layer.parsed.rank)):
        raise ArgumentError(
            f"layer {layer.name} pads its input; sampled windows must lie inside: choose another"
        )
    command = [sys.executable, "-m", "polyconv.conformance.volume", layer.name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Error(f"layer {layer.name} took longer than {seconds:g} s") from None
    if done.returncode:
        raise Error(f"layer {layer.name} ended with {done.returncode}: {done.stderr[-1000:]}")
    found = json.loads(done.stdout)
    return Volume(tuple(found["shape"]), found["wrong"], found["extra_bytes"])


def _memory(row: str) -> int:
    """Resident bytes of this process: now (``VmRSS``) or at most so far (``VmHWM``)."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent had when it forked
        line = next(line for line in status.read_text().splitlines() if line.startswith(row))
        return int(line.split()[1]) * 1024
    import resource  # Unix only; knows the peak alone

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _filters(layer: LayerIR) -> Any:
    return np.random.default_rng(1).standard_normal(layer.filters, dtype=np.float32)


def _run(layer: LayerIR, folder: Path) -> tuple[Any, Any]:
    """Input and output; the input is filled in place, so that no second copy ever exists."""
    session = InferenceSession(str(written(layer, _filters(layer), folder)))
    x = np.empty(layer.data, np.float32)
    np.random.default_rng(0).random(out=x, dtype=np.float32)
    (value,) = session.get_inputs()
    return x, session.run(None, {value.name: x})[0]


def _wrong(layer: LayerIR, x: Any, y: Any) -> int:
    """Outputs outside the bound, at sampled places: all output channels of the window there."""
    p, rng, wrong = layer.parsed, np.random.default_rng(2), 0
    reach = tuple((k - 1) * d + 1 for k, d in zip(p.k, p.d, strict=True))
    window = Problem("conv", "f32", "f32", "f32", "NCHW", 1, p.c, reach, p.m, p.k, d=p.d)
    w = _filters(layer)
    for _ in range(_SAMPLES):
        o = tuple(int(rng.integers(e)) for e in y.shape[2:])
        cut = tuple(slice(a * s, a * s + r) for a, s, r in zip(o, p.s, reach, strict=True))
        part = x[(slice(None), slice(None), *cut)]
        exact = oracle(window, part, w, raw=True)
        allowed = tolerance(window, magnitude(window, part, w), exact)
        got = y[(slice(None), slice(None), *(slice(a, a + 1) for a in o))]
        wrong += int((~(np.abs(got - exact) <= allowed)).sum())
    return wrong


def _main(name: str) -> None:
    layer = next(row for row in LAYERS if row.name == name)
    with tempfile.TemporaryDirectory() as folder:
        _run(LAYERS[0], Path(folder))
        before = _memory("VmRSS")
        x, y = _run(layer, Path(folder))
        extra = _memory("VmHWM") - before - x.nbytes - y.nbytes
    sys.stdout.write(json.dumps({"shape": y.shape, "wrong": _wrong(layer, x, y), "extra_bytes": extra}))


if __name__ == "__main__":
    _main(sys.argv[1])
