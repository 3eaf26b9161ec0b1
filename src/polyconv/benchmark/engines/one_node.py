"""A problem to an ONNX model of one convolution, for the guests that read such models."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from polyconv.benchmark.engines.ready import channels_last
from polyconv.conformance.guests.onnxruntime import activation, convolution
from polyconv.conformance.operands import Operands
from polyconv.problem.problem import Problem

__all__ = ["one_node"]


def one_node(p: Problem, made: Operands, *, last: bool = False) -> tuple[bytes, dict[str, NDArray[Any]]]:
    """A serialised model, and the arrays that it is fed; a quantised one may take channels last."""
    constants, nodes = convolution(p, made)
    if last:
        constants["X"] = channels_last(constants["X"])
        nodes[0].domain = "com.microsoft"
        nodes[0].attribute.append(helper.make_attribute("channels_last", 1))
    fed: dict[str, NDArray[Any]] = {n: constants.pop(n) for n in ("X", "offset", "mask") if n in constants}
    found = nodes[-1].output[0]
    if made.residual is not None:
        fed["Z"] = np.ascontiguousarray(made.residual)
        nodes.append(helper.make_node("Add", [found, "Z"], ["sum"]))
        found = "sum"
    if p.activation is not None:
        nodes += activation(p, found, constants)
        found = nodes[-1].output[0]
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in fed.items()
    ]
    kind = helper.np_dtype_to_tensor_dtype(p.y_dtype.numpy) if last else TensorProto.UNDEFINED
    output = helper.make_tensor_value_info(found, kind, None)
    inside = [numpy_helper.from_array(np.ascontiguousarray(a), name) for name, a in constants.items()]
    graph = helper.make_graph(nodes, "problem", inputs, [output], inside)
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnx.shape_inference.infer_shapes(model).SerializeToString(), fed
