"""A quantised convolution as networks bring it to engines that have no QLinearConv: nodes that quantise round a Conv.

DequantizeLinear of input, weights and bias, Conv, QuantizeLinear.  An engine that fuses them computes in integers; it
may round otherwise than QLinearConv, by a quantum.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polyconv.benchmark.engines.ready import Lacking
from polyconv.conformance.operands import Operands
from polyconv.problem.problem import Problem

__all__ = ["quantised_model"]


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

    from polyconv.conformance.guests.onnxruntime import quantities

    if p.op != "conv" or p.residual or p.activation is not None:
        raise Lacking("quantised models are made of forward convolutions alone")
    given = quantities(p, made)
    sx, sw, sy = (np.asarray(given[name], np.float32) for name in ("sx", "sw", "sy"))
    zero = {name: np.asarray(given.get(name, 0), kind.numpy)
            for name, kind in (("zx", p.x_dtype), ("zw", p.w_dtype), ("zy", p.y_dtype))}  # fmt: skip
    by_channel = sw.ndim > 0 or zero["zw"].ndim > 0
    if by_channel:
        sw, zero["zw"] = (np.ascontiguousarray(np.broadcast_to(v, (p.m,))) for v in (sw, zero["zw"]))
    arrays = {"w": np.ascontiguousarray(made.w), "sx": sx, "sw": sw, "sy": sy, **zero}
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
