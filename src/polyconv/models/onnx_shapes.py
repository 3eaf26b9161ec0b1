"""Types and extents of a graph's inner values, as far as onnx's shape inference can prove them.

Turns nodes, inputs and constants into named values.  The one idea: every unknown extent of a graph
input gets a symbol of its own, so that two values with equal extents here are equal in every run.
It computes nothing and knows no convolution.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from polyconv.dialects import ort
from polyconv.models.elements import BY_ONNX, BY_TYPE, type_of
from polyconv.models.graph import Array, Node, Value
from polyconv.models.onnx_counts import reshaped
from polyconv.models.onnx_extents import are_few
from polyconv.models.onnx_views import onnx_views

if TYPE_CHECKING:
    from onnx import NodeProto, ValueInfoProto

__all__ = ["counted", "stated", "value_info"]

_MOST_PASSES = 256
_AHEAD = 256
"""Nodes that are looked at in a pass, as long as something is proven of them: a pass is as long as what it looks at."""
_SMALL = 4096  # bytes: what a Reshape or Slice reads; weights are only declared


def stated(
    nodes: Sequence[Node], inputs: Iterable[Value], constants: Mapping[str, Array], opsets: Mapping[str, int]
) -> dict[str, Value]:
    """Every value that inference reaches; what it cannot prove is absent.

    Where extents are read, counted with and cut by, as halves of channels are, what follows is proven in another pass.

    Parameters
    ----------
    nodes : sequence of Node
        In running order.
    inputs : iterable of Value
        Of the graph; the symbols of their extents are not believed to be equal.
    constants : mapping
        Initialisers; only small ones are looked into.
    opsets : mapping
        Version of every domain.
    """
    known, found, left = dict(constants), dict[str, Value](), list(nodes)
    countable = _countable(nodes, constants)
    given = {value.name: _with_own_symbols(value) for value in inputs}
    ahead = _AHEAD
    for _ in range(_MOST_PASSES):
        some = left[:ahead]
        found |= _inferred(some, given.values(), known, opsets)
        new = counted(some, found, known)
        # inference names others anew each time
        own = {extent for value in given.values() for extent in value.dims or ()}
        shaped = {name: _with_own_symbols(value, own) for name, value in reshaped(some, found, known).items()}
        found |= {name: Value(name, type_of(array.dtype), array.shape) for name, array in new.items()} | shaped
        known |= new
        is_done = partial(_is_done, known, found, countable)
        done = {node for node in some if all(map(is_done, node.writes))}
        if not new and not shaped and not done:
            if ahead >= len(left):
                break
            ahead *= 4
        told = {name: found[name] for node in done for name in node.writes if name not in known} | shaped
        left = [node for node in left if node not in done and not told.keys() >= set(node.outputs)]
        read = {name for node in left for name in node.reads}
        given = {name: value for name, value in {**given, **told}.items() if name in read}
    return found


def _countable(nodes: Sequence[Node], constants: Collection[str]) -> set[str]:
    """Values that follow from extents and constants alone, so that their numbers may be known before a run."""
    found = set[str]()
    for node in nodes:
        follows = node.op in onnx_views and all(name in found or name in constants for name in node.reads)
        if not node.domain and (node.op == "Shape" or follows):
            found.update(node.writes)
    return found


def _is_done(known: Collection[str], found: Mapping[str, Value], countable: Collection[str], name: str) -> bool:
    """Whether nothing more can be said of a value; of numbers that are counted with, what they are can."""
    if name in known:
        return True
    value = found.get(name)
    if value is None or value.type not in BY_TYPE or value.dims is None:
        return False
    extents = [extent for extent in value.dims if isinstance(extent, int)]
    counts = BY_TYPE[value.type].numpy.kind in "iub" or math.prod(extents) == 1
    return not (counts and name in countable) and len(extents) == len(value.dims)


def counted(nodes: Sequence[Node], values: Mapping[str, Value], known: Mapping[str, Array]) -> dict[str, Array]:
    """Extents that are numbers, and what nodes make of a few of them, or of constants.

    Parameters
    ----------
    nodes : sequence of Node
        In running order.
    values : mapping
        What is known of values.
    known : mapping
        Values that are the same in every run.
    """
    found: dict[str, Array] = {}
    for node in nodes:
        made = None
        if node.op == "Shape" and not node.domain:
            name = node.inputs[0]
            array, value = found.get(name, known.get(name)), values.get(name)
            extents = (value and value.dims) or ("",) if array is None else array.shape
            dims = extents[node.attributes.get("start", 0) : node.attributes.get("end")]
            made = np.array(dims, np.int64) if all(isinstance(extent, int) for extent in dims) else None
        elif node.op in onnx_views and not node.domain:
            given = [found.get(name, known.get(name)) for name in node.inputs]
            few = [a for a in given if a is not None]
            if len(few) == len(given) and are_few(few):
                with suppress(Exception):  # whoever runs the node reports what is wrong with it
                    made = onnx_views[node.op](node, few)
                made = made if made is None or are_few([made]) else None
        if made is not None:
            found[node.outputs[0]] = made
    return found


def _inferred(
    nodes: Sequence[Node], inputs: Iterable[Value], constants: Mapping[str, Array], opsets: Mapping[str, int]
) -> dict[str, Value]:
    """What one pass of onnx's inference proves."""
    import onnx
    from onnx import helper, numpy_helper

    read = {name for node in nodes for name in node.reads}
    constants = {name: array for name, array in constants.items() if name in read}
    small = {name for name, array in constants.items() if array.nbytes <= _SMALL and array.dtype.kind in "iu"}
    declared = [value_info(value) for value in inputs if value.name not in constants]
    declared += [
        value_info(Value(name, type_of(array.dtype), array.shape))
        for name, array in constants.items()
        if name not in small
    ]
    graph = helper.make_graph(
        [_known_to_onnx(node) for node in nodes], "shapes", declared, [],
        [numpy_helper.from_array(constants[name], name) for name in sorted(small)],
    )  # fmt: skip
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    try:
        inferred = onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=imports, ir_version=10)
        )
    except (
        Exception
    ):  # a proof that fails proves nothing; whoever runs the node reports what is wrong with it
        return {}
    return {
        v.name: _read(v)
        for v in (*inferred.graph.value_info, *inferred.graph.input)
        if v.name not in constants
    }


_STANDS_FOR: Mapping[str, tuple[str, slice]] = {
    "QGemm": ("Gemm", slice(0, 9, 3)), "QLinearAdd": ("Add", slice(0, 6, 3)), "QLinearMul": ("Mul", slice(0, 6, 3)),
    "QLinearAveragePool": ("AveragePool", slice(1)), "QLinearConcat": ("Concat", slice(2, None, 3)),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", slice(1)), "DynamicQuantizeLSTM": ("LSTM", slice(3)),
    **dict.fromkeys(("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"), ("Identity", slice(1))),
}  # fmt: skip
"""By operator of com.microsoft, which onnx does not know: one of ONNX whose results have its type and extents, and the
inputs that say them."""


def _known_to_onnx(node: Node) -> NodeProto:
    """The node's message, or one whose results are of the same types and extents."""
    from onnx import helper

    found = _STANDS_FOR.get(node.op) if node.domain == ort.CONTRIB else None
    is_real = node.op == "QGemm" and not (len(node.inputs) == 9 and all(node.inputs[7:]))  # which it then returns
    if found is None or node.attributes.get("channels_last") or is_real:
        message: NodeProto = node.origin.message
        return message
    op, which = found
    words = {} if op == "Identity" else {k: v for k, v in node.attributes.items() if k != "channels_last"}
    return helper.make_node(op, node.inputs[which], node.outputs, **words)


def _read(info: ValueInfoProto) -> Value:
    tensor = info.type.tensor_type
    row = BY_ONNX.get(tensor.elem_type)
    dims = tuple(d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in tensor.shape.dim)
    return Value(info.name, row.type if row else "", dims if tensor.HasField("shape") else None)


def _with_own_symbols(value: Value, kept: Collection[int | str | None] = ()) -> Value:
    """A value whose open extents have symbols that no other has, but for those that are kept."""
    if value.dims is None:
        return value
    dims = (e if isinstance(e, int) or e in kept else f"{value.name}[{axis}]" for axis, e in enumerate(value.dims))
    return replace(value, dims=tuple(dims))


def value_info(value: Value) -> ValueInfoProto:
    """A value as ONNX declares it; what is unknown stays open."""
    from onnx import ValueInfoProto, helper

    row = BY_TYPE.get(value.type)
    if row is not None:
        return helper.make_tensor_value_info(value.name, row.onnx, value.dims)
    inner = BY_TYPE.get(value.type.removeprefix("seq(").removesuffix(")"))
    if value.type.startswith("seq(") and inner is not None:
        return helper.make_tensor_sequence_value_info(value.name, inner.onnx, None)
    return ValueInfoProto(name=value.name)
