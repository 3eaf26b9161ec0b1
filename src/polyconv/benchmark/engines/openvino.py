"""OpenVINO in a comparison: a graph of one convolution, weights as constants, tensors set before the calls.

Without the precision hint its CPU plugin computes f32 models in bf16 where the CPU has it, so the hint is
always given, and what it really ran is read from the compiled model.  Runs in a worker process only.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

import ml_dtypes
import numpy as np
import openvino
from numpy.typing import NDArray
from openvino import opset8, opset13

from polyconv.benchmark.engines.qdq import quantised_model
from polyconv.benchmark.engines.ready import Lacking, Ready, Task, channels_last, keeping
from polyconv.conformance.deviations import refusal
from polyconv.conformance.guests.openvino import activation, convolution
from polyconv.conformance.operands import Operands
from polyconv.problem.problem import Problem

__all__ = ["network", "ready", "start", "version"]

_CORE = openvino.Core()


def version() -> str:
    """Version of the guest."""
    return importlib.metadata.version("openvino")


def start(task: Task) -> None:
    """Nothing to set before the first problem: threads are a property of a compiled model."""


def ready(engine: str, p: Problem, made: Operands, task: Task) -> Ready:
    """A compiled model with its tensors set."""
    if p.quantisation is not None and p.quantisation.rescales:
        return _quantised(p, made, task, last=engine == "openvino-nhwc")
    reason = refusal("openvino", p, made)
    if reason is not None:
        raise Lacking(reason)
    if p.x not in ("f32", "f16", "bf16"):
        raise Lacking(f"computes {p.x} in another type")
    last = engine == "openvino-nhwc"
    inner = (0, p.rank + 1, *range(1, p.rank + 1))
    outer = (0, *range(2, p.rank + 2), 1)
    parameters: list[Any] = []
    arrays: list[NDArray[Any]] = []

    def given(a: NDArray[Any]) -> Any:
        """A constant for weights; for what changes from call to call, an input in the engine's layout."""
        if np.may_share_memory(a, made.w):  # as they are, or with an axis for the groups
            return _constant(p, a)
        a = channels_last(a) if last else np.ascontiguousarray(a)
        parameters.append(opset8.parameter(list(a.shape), getattr(openvino.Type, p.x)))
        arrays.append(a)
        return opset8.transpose(parameters[-1], opset8.constant(np.array(inner))) if last else parameters[-1]

    node = convolution(p, made, given)
    if made.bias is not None:
        node = opset13.add(node, _constant(p, made.bias.reshape(1, -1, *(1,) * p.rank)))
    if made.residual is not None:
        node = opset13.add(node, given(made.residual))
    if p.activation is not None:
        node = activation(p, node)
    if last:
        node = opset8.transpose(node, opset8.constant(np.array(outer)))
    compiled = _CORE.compile_model(openvino.Model([opset8.result(node)], parameters), "CPU", _properties(p.x, task))
    if p.x == "f16" and "bf16" in _facts(compiled)["precision"]:  # whatever the hint, where the CPU has only that
        raise Lacking("computes f16 in bf16")
    request = compiled.create_infer_request()
    for number, array in enumerate(arrays):
        tensor = openvino.Tensor(getattr(openvino.Type, p.x), list(array.shape))
        # bfloat16 is no type of the buffer protocol: the bits are copied
        tensor.data.view(np.uint8).reshape(-1)[:] = array.reshape(-1).view(np.uint8)
        request.set_input_tensor(number, tensor)
    output = openvino.Tensor(getattr(openvino.Type, p.y), [int(e) for e in compiled.output().shape])
    request.set_output_tensor(output)

    def result() -> NDArray[Any]:
        values = np.array(output.data)
        values = values.view(ml_dtypes.bfloat16) if p.y == "bf16" else values
        return np.moveaxis(values, -1, 1) if last else values

    return Ready(request.infer, result, lambda: _facts(compiled))


def _quantised(p: Problem, made: Operands, task: Task, *, last: bool) -> Ready:
    """A compiled model of QDQ form, as quantised networks come to OpenVINO.

    What it does not fuse it computes in floats; ``precision`` says so.
    """
    try:
        model = quantised_model(p, made, last=last)
    except ImportError:
        raise Lacking("its quantised models are written by the package onnx, which is not installed") from None
    compiled = _CORE.compile_model(_CORE.read_model(model), "CPU", _properties("f32", task))
    request, x = compiled.create_infer_request(), channels_last(made.x) if last else made.x
    tensor = openvino.Tensor(getattr(openvino.Type, p.x), list(x.shape))
    tensor.data[...] = x
    request.set_input_tensor(tensor)

    def result() -> NDArray[Any]:
        values = np.array(request.get_output_tensor(0).data)
        return np.moveaxis(values, -1, 1) if last else values

    def facts() -> dict[str, Any]:
        known = _facts(compiled)
        return {**known, "precision": "f32" if known["kernel"].endswith("_f32") else known["precision"]}

    return Ready(request.infer, result, facts)


def network(path: str, feeds: dict[str, Any], task: Task) -> Ready:
    """A compiled model of a file."""
    compiled = _CORE.compile_model(_CORE.read_model(path), "CPU", _properties("f32", task))
    request = compiled.create_infer_request()
    return Ready(*keeping(lambda: list(request.infer(feeds).values())), visit=request.infer)


def _properties(hint: str, task: Task) -> dict[str, Any]:
    return {
        "INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": task.threads, "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY", "ENABLE_CPU_PINNING": True,
    }  # fmt: skip


def _constant(p: Problem, a: NDArray[Any]) -> Any:
    kind = getattr(openvino.Type, p.x)
    if p.x != "bf16":
        return opset8.constant(np.ascontiguousarray(a), dtype=kind)
    tensor = openvino.Tensor(kind, list(a.shape))
    tensor.data.view(np.uint8).reshape(-1)[:] = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
    return opset13.constant(tensor)


def _facts(compiled: Any) -> dict[str, Any]:
    """Precision and implementation of the convolution, as the compiled model states them."""
    kernels, precisions = [], []
    for node in compiled.get_runtime_model().get_ops():
        known = {key: _text(value) for key, value in node.get_rt_info().items()}
        if "onvolution" in known.get("layerType", ""):
            kernels.append(known.get("primitiveType", ""))
            precisions.append(known.get("runtimePrecision", ""))
    hint = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    return {
        "precision": " + ".join(dict.fromkeys(precisions)) or hint, "kernel": " + ".join(kernels),
        "remark": f"INFERENCE_PRECISION_HINT={hint}",
    }  # fmt: skip


def _text(value: Any) -> str:
    return str(value.astype(str)) if hasattr(value, "astype") else str(value)
