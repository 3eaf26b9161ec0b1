"""OpenVINO as a witness: a problem becomes a graph of its own opset, computed in f32 on one thread.

Without the precision hint its CPU plugin computes in bf16 here, so the hint is always given.  Runs
in a worker process only.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import openvino
from numpy.typing import NDArray
from openvino import opset8, opset13

from polyconv.conformance.operands import Operands
from polyconv.problem.epilogue import WITHOUT_AFFINE
from polyconv.problem.problem import Problem

__all__ = ["activation", "as_ir", "convolution", "run_backprop", "run_file", "run_model", "run_problem", "version"]

Array = NDArray[Any]

_CORE = openvino.Core()
_CONFIG = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}


def version() -> str:
    """Version of the guest."""
    return importlib.metadata.version("openvino")


def _run(model: Any, arrays: list[Array]) -> list[Array]:
    request = _CORE.compile_model(model, "CPU", _CONFIG).create_infer_request()
    tensors = [_tensor(a, port.get_element_type()) for a, port in zip(arrays, model.inputs, strict=True)]
    request.infer(dict(enumerate(tensors)))
    return [_array(request.get_output_tensor(n)) for n in range(len(model.outputs))]


def _array(tensor: Any) -> Array:
    values = np.array(tensor.data)  # bfloat16 arrives as float16 of the same bits
    return values.view(ml_dtypes.bfloat16) if tensor.element_type == openvino.Type.bf16 else values


def _tensor(a: Array, element_type: Any) -> Any:
    tensor = openvino.Tensor(element_type, list(a.shape))
    # bfloat16 is not a type of the buffer protocol: its bits are copied
    target = tensor.data
    target.view(np.uint8).reshape(-1)[:] = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
    return tensor


def run_model(model: bytes, feeds: dict[str, Array]) -> list[Array]:
    """Outputs of a serialised ONNX model, read by OpenVINO's importer."""
    loaded = _CORE.read_model(model)
    return _run(loaded, [feeds[port.any_name] for port in loaded.inputs])


def as_ir(model: Path, file: Path) -> None:
    """Write an ONNX file as OpenVINO does: an IR, its weights as they are."""
    openvino.save_model(openvino.convert_model(model), file, compress_to_fp16=False)


def run_file(file: Path, arrays: list[Array]) -> list[Array]:
    """Results of a model file on arrays in the order of its inputs."""
    return _run(_CORE.read_model(file), arrays)


def run_backprop(x: Array, w: Array, attributes: dict[str, Any], output_shape: list[int] | None) -> Array:
    """Result of one ConvolutionBackpropData-1 node, or the grouped one for weights of one more axis."""
    data = opset8.parameter(list(x.shape), x.dtype)
    build = opset8.group_convolution_backprop_data if w.ndim > x.ndim else opset8.convolution_backprop_data
    more = [] if output_shape is None else [opset8.constant(np.array(output_shape, np.int64))]
    given = {name: value for name, value in attributes.items() if name != "strides"}
    node = build(data, opset8.constant(w), attributes["strides"], *more, **given)
    return _run(openvino.Model([opset8.result(node)], [data]), [x])[0]


_ELEMENT = {"f16": "f16", "bf16": "bf16", "f32": "f32", "f64": "f64"} | {
    f"{kind}{bits}": f"{kind}{bits}" for kind in "iu" for bits in (8, 16, 32, 64)
}


def run_problem(p: Problem, made: Operands) -> Array:
    """Result of a problem."""
    parameters: list[Any] = []
    arrays: list[Array] = []

    def given(a: Array) -> Any:
        parameters.append(opset8.parameter(list(a.shape), getattr(openvino.Type, _ELEMENT[p.x])))
        arrays.append(a)
        return parameters[-1]

    node = convolution(p, made, given)
    if made.bias is not None:
        node = opset13.add(node, given(made.bias.reshape(1, -1, *(1,) * p.rank)))
    if made.residual is not None:
        node = opset13.add(node, given(_first(p, made.residual)))
    if p.activation is not None:
        node = activation(p, node)
    result = _run(openvino.Model([opset8.result(node)], parameters), arrays)[0]
    return np.moveaxis(result, 1, -1) if p.layout == "NHWC" else result


def _first(p: Problem, a: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(a, -1, 1) if p.layout == "NHWC" else a)


def convolution(p: Problem, made: Operands, given: Any) -> Any:
    """Node of the convolution; ``given(array)`` makes the node of each of its operands."""
    x = made.x
    if p.op == "causal_conv":
        past = np.zeros((*x.shape[:2], p.k[0] - 1), x.dtype) if made.past is None else made.past
        x = np.concatenate([past, x], axis=2)
    begins, ends = [list(v) for v in zip(*p.pads, strict=True)]
    if p.op == "causal_conv":
        begins = ends = [0]
    strides, dilations = list(p.s), list(p.d)
    data = given(_first(p, x))
    if p.op == "deform_conv":
        offsets = given(made.offset)
        weights = given(made.w)
        mask = () if made.mask is None else (given(made.mask),)
        return opset8.deformable_convolution(
            data, offsets, weights, strides, begins, ends, dilations, *mask,
            group=p.groups, deformable_group=p.offset_groups, bilinear_interpolation_pad=True,
        )  # fmt: skip
    w, g = made.w, p.groups
    if p.op == "conv_transpose":
        shape = [] if p.o is None else [opset8.constant(np.array(p.o, np.int64))]
        geometry = dict(
            pads_begin=begins, pads_end=ends, dilations=dilations, auto_pad="explicit",
            output_padding=[] if p.o is not None else list(p.output_padding),
        )  # fmt: skip
        if g == 1:
            return opset8.convolution_backprop_data(data, given(w), strides, *shape, **geometry)
        grouped = given(w.reshape(g, p.c // g, *w.shape[1:]))
        return opset8.group_convolution_backprop_data(data, grouped, strides, *shape, **geometry)
    if g == 1:
        return opset8.convolution(data, given(w), strides, begins, ends, dilations)
    grouped = given(w.reshape(g, p.m // g, *w.shape[1:]))
    return opset8.group_convolution(data, grouped, strides, begins, ends, dilations)


def activation(p: Problem, node: Any) -> Any:
    """Node that applies the problem's activation."""
    assert p.activation is not None
    name, parameters = p.activation.name, p.activation.parameters

    def constant(value: float) -> Any:
        return opset13.constant(value, dtype=getattr(openvino.Type, _ELEMENT[p.y]))

    simple = {
        "Relu": opset13.relu, "Sigmoid": opset13.sigmoid, "Tanh": opset13.tanh,
        "Mish": opset13.mish, "HardSwish": opset13.hswish,
    }  # fmt: skip
    if name in simple:
        return simple[name](node)
    if name in WITHOUT_AFFINE:
        scaled = opset13.multiply(simple[WITHOUT_AFFINE[name]](node), constant(parameters[0]))
        return opset13.add(scaled, constant(parameters[1]))
    if name == "Silu":
        return opset13.swish(node, constant(1.0))
    if name == "Gelu":
        return opset13.gelu(node, "erf")
    if name == "Clip":
        return opset13.clamp(node, *parameters)
    if name == "Elu":
        return opset13.elu(node, parameters[0])
    if name == "LeakyRelu":
        return opset13.prelu(node, constant(parameters[0]))
    return opset13.hard_sigmoid(node, constant(parameters[0]), constant(parameters[1]))
