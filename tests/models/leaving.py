"""Programs of every algorithm as bytes, and a process that runs them: ``leave FILE`` and ``run FILE``."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np

from polyconv.algorithms.table import ALGORITHMS
from polyconv.conformance import corpus
from polyconv.conformance.operands import operands
from polyconv.errors import Unsupported
from polyconv.in_force import keep_where_settings_say
from polyconv.kernels.word import Pointing, pointing
from polyconv.layer import Layer
from polyconv.models.arena import Arena
from polyconv.models.kept_runs import About
from polyconv.models.laid import Laid
from polyconv.models.laying import laid_out
from polyconv.models.replay import Replay
from polyconv.models.segment import ENGINE, Segment
from polyconv.models.snapshot import bytes_of, laid_of
from polyconv.models.steps import Times
from polyconv.models.told import Told
from polyconv.operators.job import Job, Plan
from polyconv.operators.lying import lies
from polyconv.problem.problem import Problem
from polyconv.runtime.arrays import aligned
from polyconv.target import target

LAYERS = (
    "conv f32 NCHW n1 c8 i12x12 m8 k3x3 p1",
    "conv f32 NCHW n1 c24 i20x20 m24 k3x3 p1",
    "conv f32 NHWC n1 c24 i20x20 m24 k3x3 p1",
    "conv f32 NCHW n1 c16 i9x9 m32 k1x1",
    "conv f32 NCHW n1 c3 i24x24 m16 k3x3 s2 p1",
    "conv f32 NCHW n1 c32 i14x14 m32 k3x3 p1 g8",
    "conv f32 NHWC n1 c32 i14x14 m32 k3x3 p1 g8",
    "conv f32 NCHW n1 c32 i14x14 m32 k3x3 p1 g32",
    "conv f32 NHWC n1 c32 i14x14 m32 k5x5 p2 g32",
    "conv f32 NCHW n1 c4 i100 m4 k9 p4 g4",
    "conv f32 NCHW n1 c4 i40x40 m4 k21x21 p10 g4",
    "conv f32 NCHW n1 c256 i16x16 m256 k1x1",
    "conv f32 NCHW n1 c16 i20x20 m2 k3x3 p1",
    "conv_transpose f32 NCHW n1 c16 i9x9 m8 k4x4 s2 p1",
    "conv i8>i32 NCHW n1 c32 i14x14 m32 k3x3 p1",
    "conv i8>i32 NHWC n1 c32 i14x14 m32 k3x3 p1",
    "conv i8>i32 NHWC n1 c32 i14x14 m32 k3x3 p1 g32",
    "conv i8>i32 NCHW n1 c32 i14x14 m32 k3x3 p1 g8",
    "conv i8>i32 NCHW n1 c3 i9x40 m3 k3x3 p1 g3",
    "conv bf16 NHWC n1 c64 i14x14 m64 k1x1",
)
"""Layers such that each algorithm takes one, beside those that are drawn; of the first one a weight is infinite."""


def laid(layer: Layer, feeds: dict[str, Any], y: Any) -> Laid | None:
    """A run of one call, laid out; None where Python looks at each call."""
    call = layer.call(feeds["x"], feeds.get("residual"), y)
    if call.entry is None:
        return None
    operands = 0, len(feeds), 1 if "residual" in feeds else None, None, None
    job = Job(call.steps, operands, call.program.workspace, call.plan_threads, call.wake, (call,), call.is_strict)
    plan = Plan((lies(y),), (job,))
    told = Told(0, tuple(feeds), ("y",), Segment(ENGINE, (), list), plan, (), plan.results, 1e-6)
    return laid_out([told], ["y"], {}, {name: lies(a) for name, a in feeds.items()}, {})


def leave(file: Path) -> None:
    """Write programs, their inputs and what they make; print how many there are of each algorithm."""
    rows, runs = [], dict[str, int]()
    for p in (*map(Problem.parse, LAYERS), *corpus.problems(71, 30, budget=200_000)):
        if p.op not in ("conv", "conv_transpose") or 0 in (*p.y_shape, *p.x_shape):
            continue
        made = operands(p, np.random.default_rng(0), "small")
        if str(p) == LAYERS[0]:
            made.w[0, 0, 0, 0] = np.inf
        feeds = {"x": np.ascontiguousarray(made.x)}
        if made.residual is not None:
            feeds["residual"] = np.ascontiguousarray(made.residual)
        for algorithm in ALGORITHMS:
            layer = Layer(lambda n, i, p=p: p, made.w, made.bias, layout=p.layout, threads=1,  # type: ignore[misc]
                          algorithm=algorithm, quantities=made.quantities)  # fmt: skip
            y = np.empty([int(e or 0) for e in p.y_shape], p.y_dtype.numpy)
            try:
                with pointing(told := Pointing()):
                    found = laid(layer, feeds, y)
            except Unsupported:
                continue
            if found is None:
                continue
            pieces = bytes_of(found, told, About((), {}), 1 << 40)
            assert pieces is not None, f"{algorithm}: {p}"
            data = b"".join(pieces)
            layer(feeds["x"], residual=feeds.get("residual"), out=y)
            rows.append((f"{algorithm}: {p}", data, feeds, y.tobytes()))
            runs[algorithm] = runs.get(algorithm, 0) + 1
    file.write_bytes(pickle.dumps(rows))
    print(json.dumps(runs))


def run(file: Path) -> None:
    """Run them; print those that make something else."""
    keep_where_settings_say()
    for what, data, feeds, want in pickle.loads(file.read_bytes()):
        memory = aligned(len(data), np.uint8)
        memory[:] = np.frombuffer(data, np.uint8)
        found = laid_of(memory.data, target())
        assert found is not None, what
        done = Replay(found[0], Arena(1 << 30)).run(feeds, Times(1), lambda index: None)
        assert done is not None
        if done[0]["y"].tobytes() != want:
            print(what)


if __name__ == "__main__":
    {"leave": leave, "run": run}[sys.argv[1]](Path(sys.argv[2]))
