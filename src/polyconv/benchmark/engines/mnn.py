"""MNN in a comparison: an ONNX model of one convolution, brought into MNN's form by its converter.

The converter is the native module; the script round it sends reports, and is left alone.  Runs in a worker
process only.
"""

from __future__ import annotations

import importlib.metadata
import tempfile
from pathlib import Path
from typing import Any

import _tools as converter
import MNN
import numpy as np
import onnx
from numpy.typing import NDArray

from polyconv.benchmark.engines.one_node import one_node
from polyconv.benchmark.engines.ready import Lacking, Ready, Task, check_plain, keeping
from polyconv.conformance.operands import Operands
from polyconv.problem.problem import Problem

__all__ = ["ready", "start", "version"]

_WINOGRAD = 3  # the hint that says how much memory Winograd's scheme may take, and so how large its tiles are
_SMALL_TILES = 2  # of levels 0 to 3; 3, the default, takes tiles that err in the fourth digit


def version() -> str:
    """Version of the guest."""
    return importlib.metadata.version("mnn")


def start(task: Task) -> None:
    """Nothing to set before the first problem: threads are a property of a module's runtime."""


def ready(engine: str, p: Problem, made: Operands, task: Task) -> Ready:
    """A module with its inputs set."""
    check_plain(p, axes=2)
    settings = {"backend": "CPU", "numThread": task.threads, "precision": "high", "memory": "normal"}
    runtime = MNN.nn.create_runtime_manager((settings,))
    if engine == "mnn-small-tiles":
        runtime.set_hint(_WINOGRAD, _SMALL_TILES)
    module, arrays = _module(p, made, runtime)
    # A module, as a session reuses its input's memory: its second call would compute something else.
    inputs = [MNN.expr.const(a, list(a.shape), MNN.expr.NCHW) for a in arrays]
    run, last = keeping(lambda: module.onForward(inputs))

    def result() -> NDArray[Any]:
        found = MNN.expr.convert(last()[0], MNN.expr.NCHW).read()
        return np.array(found).reshape([int(e or 0) for e in p.y_shape])  # of lines, without the axis that it adds

    return Ready(run, result, lambda: {"precision": "f32", "kernel": "MNN", "remark": "precision=high"})


def _module(p: Problem, made: Operands, runtime: Any) -> tuple[Any, list[NDArray[Any]]]:
    """The converted model, and the arrays that it is fed."""
    model, fed = one_node(p, made)
    output = onnx.ModelProto.FromString(model).graph.output[0].name
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder, "given.onnx"), Path(folder, "found.mnn")
        given.write_bytes(model)
        converter.mnnconvert(["mnnconvert", "-f", "ONNX", "--modelFile", str(given), "--MNNModel", str(found)])
        if not found.exists():
            raise Lacking("its converter refuses the model")
        module = MNN.nn.load_module_from_file(str(found), list(fed), [output], runtime_manager=runtime)
    return module, [np.ascontiguousarray(a) for a in fed.values()]
