"""polyconv in a comparison: a layer that owns its packed weights, called with a result array.

Runs in a worker process only.
"""

from __future__ import annotations

import importlib.metadata
import time
from dataclasses import replace
from typing import Any

import numpy as np

from polyconv.benchmark.engines.ready import Ready, Task, channels_last, keeping
from polyconv.conformance.operands import Operands
from polyconv.kernels.objects import EVENTS
from polyconv.layer import Layer
from polyconv.models.session import InferenceSession
from polyconv.problem.problem import Problem

__all__ = ["network", "ready", "start", "version"]


def version() -> str:
    """Version of the package; the source tree has none."""
    try:
        return importlib.metadata.version("polyconv")
    except importlib.metadata.PackageNotFoundError:
        return "source tree"


def start(task: Task) -> None:
    """Nothing to set before the first problem."""


def ready(engine: str, p: Problem, made: Operands, task: Task) -> Ready:
    """A layer for the problem in the engine's layout."""
    last = engine == "polyconv-nhwc"
    problem = replace(p, layout="NHWC" if last else "NCHW")
    x, residual = made.x, made.residual
    if last:
        x, residual = channels_last(x), None if residual is None else channels_last(residual)
    layer = Layer(
        lambda n, i: replace(problem, n=n, i=i), made.w, made.bias, layout=problem.layout, threads=task.threads,
        accuracy=task.accuracy, algorithm=task.algorithm, quantities=made.quantities,
    )  # fmt: skip
    out = np.empty(tuple(int(e or 0) for e in problem.y_shape), problem.y_dtype.numpy)
    begin = time.perf_counter()
    plan = layer.plan(x.shape)
    planned = time.perf_counter() - begin
    compiled = sum(EVENTS.seconds.values())

    def facts() -> dict[str, Any]:
        return {
            "precision": plan.arithmetic, "kernel": plan.algorithm, "plan_seconds": planned,
            "compile_seconds": sum(EVENTS.seconds.values()) - compiled,
            "remark": f"{plan.target}, {plan.threads} thread(s), workspace {plan.workspace_bytes} bytes",
        }  # fmt: skip

    def run() -> object:
        return layer(x, out=out)

    def run_all() -> object:
        return layer(x, residual=residual, out=out, offset=made.offset, mask=made.mask)

    plain = residual is None and made.offset is None
    return Ready(run if plain else run_all, lambda: np.moveaxis(out, -1, 1) if last else out, facts)


def network(path: str, feeds: dict[str, Any], task: Task) -> Ready:
    """A session on a model's file."""
    session = InferenceSession(path, threads=task.threads, accuracy=task.accuracy)
    return Ready(*keeping(lambda: session.run(None, feeds)), visit=lambda other: session.run(None, other))
