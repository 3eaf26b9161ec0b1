"""ONNX Runtime as a witness: a problem becomes an ONNX model, bias inside, the rest as nodes behind.

One thread, float models as they are written; layouts and causal history are arranged in NumPy.
Runs in a worker process only.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

from polyconv.conformance.operands import Operands
from polyconv.problem.epilogue import WITHOUT_AFFINE
from polyconv.problem.extents import effective_kernel
from polyconv.problem.problem import Problem
from polyconv.problem.quantisation import QUANTITIES

__all__ = ["activation", "convolution", "quantities", "run_model", "run_problem", "version"]

Array = NDArray[Any]

_OPERATOR = {
    "conv": "Conv",
    "causal_conv": "Conv",
    "conv_transpose": "ConvTranspose",
    "deform_conv": "DeformConv",
}


def version() -> str:
    """Version of the guest."""
    return importlib.metadata.version("onnxruntime")


def run_model(model: bytes, feeds: dict[str, Array]) -> list[Array]:
    """Outputs of a serialised model on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def run_problem(p: Problem, made: Operands) -> Array:
    """Result of a problem."""
    feeds, nodes = convolution(p, made)
    last = nodes[-1].output[0]
    if made.residual is not None:
        feeds["Z"] = _first(p, made.residual)
        nodes += _quantised_sum(p, last, feeds) if "ss" in feeds else [helper.make_node("Add", [last, "Z"], ["sum"])]
        last = "sum"
    if p.activation is not None:
        nodes += activation(p, last, feeds)
        last = nodes[-1].output[0]
    if p.op == "causal_conv":
        past = np.zeros((*made.x.shape[:2], p.k[0] - 1), made.x.dtype) if made.past is None else made.past
        feeds["X"] = np.concatenate([past, made.x], axis=2)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in feeds.items()
    ]
    output = helper.make_tensor_value_info(last, TensorProto.UNDEFINED, None)
    graph = helper.make_graph(nodes, "problem", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return _back(p, run_model(onnx.shape_inference.infer_shapes(model).SerializeToString(), feeds)[0])


def _quantised_sum(p: Problem, last: str, feeds: dict[str, Array]) -> list[Any]:
    """Nodes that add a scaled result and the residual as what they stand for."""
    for zero in ("zy", "zr", "zs"):
        feeds.setdefault(zero, np.zeros((), p.y_dtype.numpy))
    return [
        helper.make_node("DequantizeLinear", [last, "sy", "zy"], ["own"]),
        helper.make_node("DequantizeLinear", ["Z", "sr", "zr"], ["beside"]),
        helper.make_node("Add", ["own", "beside"], ["real sum"]),
        helper.make_node("QuantizeLinear", ["real sum", "ss", "zs"], ["sum"]),
    ]


def _first(p: Problem, a: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(a, -1, 1) if p.layout == "NHWC" else a)


def _back(p: Problem, a: Array) -> Array:
    return np.moveaxis(a, 1, -1) if p.layout == "NHWC" else a


def convolution(p: Problem, made: Operands) -> tuple[dict[str, Array], list[Any]]:
    """Arrays by name, X first, and the nodes that convolve them."""
    begins, ends = [list(v) for v in zip(*p.pads, strict=True)]
    attributes: dict[str, Any] = {"strides": p.s, "dilations": p.d, "group": p.groups}
    feeds = {"X": _first(p, made.x), "W": np.ascontiguousarray(made.w)}
    if made.bias is not None:
        feeds["B"] = made.bias
    inputs, operator = ["X", "W", "B" if p.bias else ""], _OPERATOR[p.op]
    if p.op == "causal_conv":
        begins = ends = [0]
    if p.op == "conv_transpose":
        # Extents stated outright are the natural ones with other end pads.
        natural = [
            (int(i or 0) - 1) * s + effective_kernel(k, d)
            for i, s, k, d in zip(p.i, p.s, p.k, p.d, strict=True)
        ]
        if p.o is not None:
            ends = [
                n + op - b - o for n, op, b, o in zip(natural, p.output_padding, begins, p.o, strict=True)
            ]
        attributes["output_padding"] = p.output_padding
    if p.op == "deform_conv":
        assert made.offset is not None
        feeds["offset"] = made.offset
        inputs = ["X", "W", "offset", "B" if p.bias else "", "mask" if p.mask else ""]
        attributes["offset_group"] = p.offset_groups
        if made.mask is not None:
            feeds["mask"] = made.mask
    if p.quantisation is not None:
        feeds |= quantities(p, made)
        if p.quantisation.rescales:
            operator = "QLinearConv"
            inputs = ["X", "sx", "zx", "W", "sw", "zw", "sy", "zy", "B" if p.bias else ""]
        else:
            operator = "ConvInteger"
            inputs = ["X", "W", *("" if f"z{a}" not in feeds else f"z{a}" for a in "xw")]
    elif not p.y_dtype.is_float:
        operator, inputs = "ConvInteger", ["X", "W"]
    while inputs and not inputs[-1]:
        inputs.pop()
    node = helper.make_node(operator, inputs, ["conv"], pads=[*begins, *ends], **attributes)
    return feeds, [node]


def quantities(p: Problem, made: Operands) -> dict[str, Array]:
    """Zero points and scales by name, those that the problem states among them."""
    stated = {name: getattr(p.quantisation, name) for name in QUANTITIES}
    found = {
        name: np.asarray(value, p.quantity_dtype(name).numpy)
        for name, value in stated.items() if value is not None and not isinstance(value, str)
    }  # fmt: skip
    return found | {name: np.asarray(a) for name, a in made.quantities.items()}


def activation(p: Problem, source: str, feeds: dict[str, Array]) -> list[Any]:
    """Nodes that apply the problem's activation to a value; what they need in addition joins the feeds."""
    assert p.activation is not None
    name, parameters = p.activation.name, p.activation.parameters
    if name == "Silu":
        return [
            helper.make_node("Sigmoid", [source], ["gate"]),
            helper.make_node("Mul", [source, "gate"], ["act"]),
        ]
    if name == "Clip":
        feeds |= {f"clip{n}": np.asarray(v, p.y_dtype.numpy) for n, v in enumerate(parameters)}
        return [helper.make_node("Clip", [source, "clip0", "clip1"], ["act"])]
    if name in WITHOUT_AFFINE:
        feeds |= {f"affine{n}": np.asarray(v, p.y_dtype.numpy) for n, v in enumerate(parameters)}
        return [
            helper.make_node(WITHOUT_AFFINE[name], [source], ["plain"]),
            helper.make_node("Mul", ["plain", "affine0"], ["scaled"]),
            helper.make_node("Add", ["scaled", "affine1"], ["act"]),
        ]
    names = {"LeakyRelu": ("alpha",), "Elu": ("alpha",), "HardSigmoid": ("alpha", "beta")}.get(name, ())
    attributes = dict(zip(names, parameters, strict=True))
    return [helper.make_node(name, [source], ["act"], **attributes)]
