"""A quantised convolution as networks bring it to engines that have no QLinearConv: nodes that quantise round a Conv.

DequantizeLinear of input, weights and bias, Conv, QuantizeLinear.  An engine that fuses them computes in integers; it
may round otherwise than QLinearConv, by a quantum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.benchmark.engines.ready import Lacking
from polyconv.conformance.operands import Operands
from polyconv.problem.problem import Problem

__all__ = ["check_rescaled", "quantised_model", "zero_points_and_scales"]


def check_rescaled(p: Problem) -> None:
    """Leave out everything but a quantised forward convolution.

    Raises
    ------
    Lacking
        If it is another problem.
    """
    if p.op != "conv" or p.quantisation is None or not p.quantisation.rescales:
        raise Lacking("for quantised convolutions whose result is quantised")
    if p.residual or p.activation is not None:
        raise Lacking("quantised models are made of forward convolutions alone")


def zero_points_and_scales(p: Problem, made: Operands) -> dict[str, NDArray[Any]]:
    """Zero points in the types of what they belong to, those not given 0, and scales."""
    from polyconv.conformance.guests.onnxruntime import quantities

    given = quantities(p, made)
    scales = {name: np.asarray(given[name], np.float32) for name in ("sx", "sw", "sy")}
    return scales | {name: np.asarray(given.get(name, 0), kind.numpy)
                     for name, kind in (("zx", p.x_dtype), ("zw", p.w_dtype), ("zy", p.y_dtype))}  # fmt: skip


def quantised_model(p: Problem, made: Operands, *, last: bool) -> bytes:
    """The model, serialised; with channels ``last`` on both sides, it transposes floats round the Conv.

    Raises
    ------
    ImportError
        Without the package onnx.
    Lacking
        If there is no such model of the problem.
    """
    from onnx import helper, numpy_helper

    check_rescaled(p)
    given = zero_points_and_scales(p, made)
    by_channel = given["sw"].ndim > 0 or given["zw"].ndim > 0
    if by_channel:
        given |= {name: np.ascontiguousarray(np.broadcast_to(given[name], (p.m,))) for name in ("sw", "zw")}
    sx, sw = given["sx"], given["sw"]
    arrays = {"w": np.ascontiguousarray(made.w), **given}
    along = {"axis": 0} if by_channel else {}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "sx", "zx"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["wf"], **along),
    ]
    if made.bias is not None:
        arrays |= {"b": made.bias, "sb": sx * sw, "zb": np.zeros(sw.shape, np.int32)}
        nodes.append(helper.make_node("DequantizeLinear", ["b", "sb", "zb"], ["bf"], **along))
    begins, ends = zip(*p.pads, strict=True)
    inner, outer = [0, p.rank + 1, *range(1, p.rank + 1)], [0, *range(2, p.rank + 2), 1]
    source, found = "xf", "yf"
    if last:
        nodes.append(helper.make_node("Transpose", ["xf"], ["xc"], perm=inner))
        source = "xc"
    nodes.append(helper.make_node(
        "Conv", [source, "wf", *(["bf"] if made.bias is not None else [])], ["yf"], pads=[*begins, *ends],
        strides=p.s, dilations=p.d, group=p.groups,
    ))  # fmt: skip
    if last:
        nodes.append(helper.make_node("Transpose", ["yf"], ["yc"], perm=outer))
        found = "yc"
    nodes.append(helper.make_node("QuantizeLinear", [found, "sy", "zy"], ["y"]))

    def info(name: str, kind: Any, channels: int, extents: Any) -> Any:
        shape = [p.n, *extents, channels] if last else [p.n, channels, *extents]
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(kind.numpy), shape)

    graph = helper.make_graph(
        nodes, "quantised", [info("x", p.x_dtype, p.c, p.i)], [info("y", p.y_dtype, p.m, p.out)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    text: bytes = model.SerializeToString()
    return text
