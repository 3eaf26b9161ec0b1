"""LiteRT in a comparison: a model of one convolution in its own format, computed by XNNPACK, channels last.

What XNNPACK does not take runs in LiteRT's plain kernels, which nobody who needs speed would choose: such
problems are left out.  Runs in a worker process only.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from numpy.typing import NDArray

from polyconv.benchmark.engines.qdq import check_rescaled, zero_points_and_scales
from polyconv.benchmark.engines.ready import Lacking, Ready, Task, channels_last, check_geometry, check_plain
from polyconv.conformance.operands import Operands
from polyconv.dataclass import dataclass
from polyconv.problem.extents import effective_kernel
from polyconv.problem.problem import Problem

__all__ = ["ready", "start", "version"]

Array = NDArray[Any]

_VALID, _SAME = int(schema.Padding.VALID), int(schema.Padding.SAME)
_KINDS = {
    np.dtype(np.float32): schema.TensorType.FLOAT32, np.dtype(np.int32): schema.TensorType.INT32,
    np.dtype(np.int8): schema.TensorType.INT8,
}  # fmt: skip

_FUSED = {
    None: schema.ActivationFunctionType.NONE,
    "Relu": schema.ActivationFunctionType.RELU,
    "Clip(0,6)": schema.ActivationFunctionType.RELU6,
    "Clip(-1,1)": schema.ActivationFunctionType.RELU_N1_TO_1,
}
"""Activations at the end of its operators, by their text."""


def version() -> str:
    """Version of the guest."""
    return importlib.metadata.version("ai-edge-litert")


def start(task: Task) -> None:
    """Nothing to set before the first problem: threads are a property of an interpreter."""


def ready(engine: str, p: Problem, made: Operands, task: Task) -> Ready:
    """An interpreter with its inputs set, all of its work given to XNNPACK."""
    if p.quantisation is None:
        check_plain(p, axes=2)
    else:
        check_rescaled(p)
        check_geometry(p, axes=2)
        if not p.x == p.w == p.y == "i8":
            raise Lacking("quantised convolutions are of i8 throughout")
    if (str(p.activation) if p.activation else None) not in _FUSED:
        raise Lacking(f"no operator ends with {p.activation}")
    arrays = [_image(p, made.x)] + ([] if made.residual is None else [_image(p, made.residual)])
    interpreter = Interpreter(model_content=_model(p, made, arrays), num_threads=task.threads)
    interpreter.allocate_tensors()
    given, (found,) = interpreter.get_input_details(), interpreter.get_output_details()
    if not _is_delegated(interpreter, [row["index"] for row in given], found["index"]):
        raise Lacking("XNNPACK does not take it")
    for row, array in zip(given, arrays, strict=True):
        interpreter.tensor(row["index"])()[...] = array

    def result() -> Array:
        y = interpreter.get_tensor(found["index"])
        return np.moveaxis(y[:, 0] if p.rank == 1 else y, -1, 1)

    return Ready(interpreter.invoke, result, lambda: {"precision": p.x, "kernel": "XNNPACK"})


def _is_delegated(interpreter: Interpreter, given: Sequence[int], found: int) -> bool:
    """Whether one delegate takes all inputs and makes the result."""
    nodes = [row for row in interpreter._get_ops_details() if row["op_name"] == "DELEGATE"]
    return len(nodes) == 1 and set(given) <= set(nodes[0]["inputs"]) and found in nodes[0]["outputs"]


def _image(p: Problem, a: Array) -> Array:
    """A batch with two spatial axes, channels last."""
    return channels_last(a[:, :, None] if p.rank == 1 else a)


def _planar(p: Problem, values: Sequence[Any], first: Any) -> list[Any]:
    """Values of two axes; those of a single one with an axis before it."""
    return [first, *values] if p.rank == 1 else list(values)


@dataclass(frozen=True, slots=True)
class _Form:
    """Shape, type and scales of a tensor; without scales its numbers mean themselves."""

    shape: tuple[int, ...]
    kind: np.dtype[Any]
    scales: Array | None = None
    zero: int = 0
    axis: int = 0


@dataclass(frozen=True, slots=True)
class _Graph:
    """A model as it grows: tensors are named by their numbers."""

    forms: list[_Form] = field(default_factory=list)
    tensors: list[Any] = field(default_factory=list)
    buffers: list[Any] = field(default_factory=lambda: [schema.BufferT()])  # number 0 is the empty one
    codes: list[Any] = field(default_factory=list)
    operators: list[Any] = field(default_factory=list)

    def tensor(self, form: _Form, values: Array | None = None) -> int:
        """A new tensor, constant if it has values."""
        made = schema.TensorT()
        made.shape, made.type, made.name = list(form.shape), _KINDS[form.kind], f"t{len(self.tensors)}"
        made.buffer = 0
        if form.scales is not None:
            scales = np.atleast_1d(form.scales)
            made.quantization = schema.QuantizationParametersT()
            made.quantization.scale, made.quantization.zeroPoint = scales.tolist(), [form.zero] * scales.size
            made.quantization.quantizedDimension = form.axis
        if values is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
            made.buffer = len(self.buffers)
            self.buffers.append(buffer)
        self.tensors.append(made)
        self.forms.append(form)
        return len(self.tensors) - 1

    def constant(self, values: Array, scales: Array | None = None, axis: int = 0) -> int:
        """A constant tensor, with a scale for all or for each index of an axis."""
        return self.tensor(_Form(values.shape, values.dtype, scales, axis=axis), values)

    def operator(self, name: str, inputs: Sequence[int], form: _Form, options: str, **values: Any) -> int:
        """The tensor that an operator makes; ``options`` names the kind of its attributes."""
        code, made = schema.OperatorCodeT(), schema.OperatorT()
        code.builtinCode = code.deprecatedBuiltinCode = getattr(schema.BuiltinOperator, name)
        code.version = 1
        made.opcodeIndex, made.inputs = len(self.codes), list(inputs)
        made.builtinOptionsType = getattr(schema.BuiltinOptions, options)
        made.builtinOptions = getattr(schema, options + "T")()
        for key, value in values.items():
            setattr(made.builtinOptions, key, value)
        made.outputs = [self.tensor(form)]
        self.codes.append(code)
        self.operators.append(made)
        return int(made.outputs[0])

    def serialised(self, inputs: Sequence[int], output: int) -> bytes:
        """The model."""
        graph, model, builder = schema.SubGraphT(), schema.ModelT(), flatbuffers.Builder(1024)
        graph.tensors, graph.operators, graph.name = self.tensors, self.operators, "problem"
        graph.inputs, graph.outputs = list(inputs), [output]
        model.version, model.description = 3, "one convolution"
        model.operatorCodes, model.subgraphs, model.buffers = self.codes, [graph], self.buffers
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def _model(p: Problem, made: Operands, arrays: Sequence[Array]) -> bytes:
    """The convolution, an addition for a residual, and the activation in the last of them."""
    graph, given = _Graph(), {} if p.quantisation is None else zero_points_and_scales(p, made)
    if given and given["zw"].any():
        raise Lacking("the zero point of weights is 0")
    forms = {a: (given.get(f"s{a}"), int(given.get(f"z{a}", 0))) for a in "xy"}
    inputs = [graph.tensor(_Form(a.shape, a.dtype, *forms["x"])) for a in arrays]
    fused = _FUSED[str(p.activation) if p.activation else None]
    before = fused if made.residual is None else schema.ActivationFunctionType.NONE
    shape = (int(p.n or 0), *_planar(p, [int(o or 0) for o in p.out], 1), p.m)
    form = _Form(shape, p.y_dtype.numpy, *forms["y"])
    bias = np.zeros(p.m, np.int32 if given else np.float32) if made.bias is None else made.bias
    add = graph.constant(bias, given["sx"] * given["sw"] if given else None)
    build: Callable[..., int] = _transposed if p.op == "conv_transpose" else _forward
    w = made.w[:, :, None] if p.rank == 1 else made.w
    found = build(p, graph, inputs[0], w, given.get("sw"), add, form, before)
    if made.residual is not None:
        found = graph.operator("ADD", [found, inputs[1]], form, "AddOptions", fusedActivationFunction=fused)
    return graph.serialised(inputs, found)


def _forward(p: Problem, graph: _Graph, x: int, w: Array, scales: Array | None, bias: int, form: _Form,
             activation: int) -> int:  # fmt: skip
    """CONV_2D, or DEPTHWISE_CONV_2D where a group is one channel; a PAD before it, which XNNPACK takes into it."""
    (sh, sw), (dh, dw) = (_planar(p, values, 1) for values in (p.s, p.d))
    padding = _padding(p)
    if padding is None:
        pads = [(0, 0), *_planar(p, p.pads, (0, 0)), (0, 0)]
        shape = tuple(e + begin + end for e, (begin, end) in zip(graph.forms[x].shape, pads, strict=True))
        amounts = graph.constant(np.array(pads, np.int32))
        x, padding = graph.operator("PAD", [x, amounts], replace(graph.forms[x], shape=shape), "PadOptions"), _VALID
    common = {"padding": padding, "strideH": sh, "strideW": sw, "dilationHFactor": dh, "dilationWFactor": dw,
              "fusedActivationFunction": activation}  # fmt: skip
    if p.groups == p.c > 1:
        weights = graph.constant(np.ascontiguousarray(w.transpose(1, 2, 3, 0)), scales, axis=3)
        common["depthMultiplier"] = p.m // p.c
        return graph.operator("DEPTHWISE_CONV_2D", [x, weights, bias], form, "DepthwiseConv2DOptions", **common)
    weights = graph.constant(channels_last(w), scales)
    return graph.operator("CONV_2D", [x, weights, bias], form, "Conv2DOptions", **common)


def _transposed(p: Problem, graph: _Graph, x: int, w: Array, scales: Array | None, bias: int, form: _Form,
                activation: int) -> int:  # fmt: skip
    """TRANSPOSE_CONV, which has neither groups nor dilations nor pads of its own."""
    padding = _padding(p)
    if p.groups > 1 or max(p.d) > 1 or padding is None:
        raise Lacking("its transposed convolution has no groups, no dilations, and only the pads SAME and VALID")
    sh, sw = _planar(p, p.s, 1)
    weights = graph.constant(np.ascontiguousarray(w.transpose(1, 2, 3, 0)), scales)
    inputs = [graph.constant(np.array(form.shape, np.int32)), weights, x, bias]
    return graph.operator("TRANSPOSE_CONV", inputs, form, "TransposeConvOptions", padding=padding, strideH=sh,
                          strideW=sw, fusedActivationFunction=activation)  # fmt: skip


def _padding(p: Problem) -> int | None:
    """VALID or SAME where they mean the problem's pads, else None."""
    large, small = (p.i, p.out) if p.op == "conv" else (p.out, p.i)
    axes = [(int(a or 0), int(b or 0), s, effective_kernel(k, d), pads)
            for a, b, k, s, d, pads in zip(large, small, p.k, p.s, p.d, p.pads, strict=True)]  # fmt: skip
    if all((begin, end) == (0, 0) and (a - ke) // s + 1 == b for a, b, s, ke, (begin, end) in axes):
        return _VALID
    same = [(-(-a // s) == b, max((b - 1) * s + ke - a, 0), pads) for a, b, s, ke, pads in axes]
    if all(fits and pads == (total // 2, total - total // 2) for fits, total, pads in same):
        return _SAME
    return None
