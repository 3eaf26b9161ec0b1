"""ONNX Runtime in a comparison: a model of one convolution, all arrays but the input inside.

Arrays are bound before the calls, the result's too.  Runs in a worker process only.
"""

from __future__ import annotations

import importlib.metadata
import os
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from polyconv.benchmark.engines.one_node import one_node
from polyconv.benchmark.engines.qdq import quantised_model
from polyconv.benchmark.engines.ready import Lacking, Ready, Task, channels_last, keeping
from polyconv.conformance.deviations import refusal
from polyconv.conformance.operands import Operands
from polyconv.problem.problem import Problem

__all__ = ["network", "ready", "start", "version"]


def version() -> str:
    """Version of the guest."""
    return importlib.metadata.version("onnxruntime")


def start(task: Task) -> None:
    """Keep the calling thread on the first CPU; the session's threads are given the others."""
    if task.threads > 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, task.cpus[:1])


def ready(engine: str, p: Problem, made: Operands, task: Task) -> Ready:
    """A session with bound arrays."""
    last = engine.endswith("nhwc")
    if "qdq" in engine:
        model, arrays = quantised_model(p, made, last=last), {"x": channels_last(made.x) if last else made.x}
    else:
        reason = refusal("onnxruntime", p, made)
        if reason is not None:
            raise Lacking(reason)
        if last and (p.quantisation is None or not p.quantisation.rescales):
            raise Lacking("of its operators for all types only QLinearConv takes channels last")
        model, arrays = one_node(p, made, last=last)
    session = onnxruntime.InferenceSession(model, _options(task), providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in arrays.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)))
    output = session.get_outputs()[0]
    shape = tuple(int(e or 0) for e in (replace(p, layout="NHWC") if last else p).y_shape)
    result = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shape, p.y_dtype.numpy))
    binding.bind_ortvalue_output(output.name, result)

    def run() -> object:
        return session.run_with_iobinding(binding)

    def values() -> NDArray[Any]:
        return np.moveaxis(result.numpy(), -1, 1) if last else np.asarray(result.numpy())

    return Ready(run, values, lambda: {"precision": p.x, "kernel": "MLAS", "remark": ""})


def network(path: str, feeds: dict[str, Any], task: Task) -> Ready:
    """A session on a model's file."""
    session = onnxruntime.InferenceSession(path, _options(task), providers=["CPUExecutionProvider"])
    return Ready(*keeping(lambda: session.run(None, feeds)), visit=lambda other: session.run(None, other))


def _options(task: Task) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = task.threads, 1
    options.log_severity_level = 4
    if task.threads > 1 and task.cpus:
        places = ";".join(str(cpu + 1) for cpu in task.cpus[1:])  # it counts from 1
        options.add_session_config_entry("session.intra_op_thread_affinities", places)
    return options
