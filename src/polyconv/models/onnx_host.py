"""The other nodes of an ONNX model, run by onnxruntime or by onnx's reference evaluator.

Turns a group of nodes into a small model and an engine that runs it; a few nodes that only look at a
constant in another way are NumPy views.  The one idea: onnxruntime when it is installed and has the
operators, else the reference, and whoever it was is told.  It must not see a convolution.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from polyconv.errors import ModelError, Unsupported
from polyconv.models.exact_sums import ask_for_exact_sums
from polyconv.models.graph import Array, Graph, Node, Value
from polyconv.models.limits import shorten
from polyconv.models.onnx_file import IR_VERSION
from polyconv.models.onnx_shapes import value_info
from polyconv.models.onnx_views import filled
from polyconv.models.segment import Segment

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["onnx_host"]

_LARGE = 1 << 16  # bytes from which onnxruntime reads a constant in place instead of from the model's bytes
_HEAVY = frozenset(
    (
        "Attention",
        "DFT",
        "Einsum",
        "GRU",
        "Gemm",
        "LSTM",
        "MatMul",
        "MatMulInteger",
        "QLinearMatMul",
        "RNN",
        "Resize",
    )
)
_MANY = 1 << 17  # elements from which an elementwise pass outlasts the waking of a thread
_LEAST_OPSET = 7  # onnxruntime promises nothing below


def onnx_host(
    graph: Graph,
    nodes: Sequence[Node],
    inputs: Sequence[Value],
    outputs: Sequence[str],
    constants: Mapping[str, Array],
    threads: int,
) -> Segment:
    """Make nodes of an ONNX graph ready to run; see ``segment.Host``."""
    for node in nodes:
        if node.op == "ConstantOfShape" and node.inputs[0] in constants:
            filled(node, [constants[node.inputs[0]]])  # refuses a tensor that the machine cannot hold
    refusal = "onnxruntime is not installed"
    untyped = [value.name for value in inputs if not value.type]
    in_bfloat16 = any(v.type == "tensor(bfloat16)" for v in inputs) or any(
        a.dtype == ml_dtypes.bfloat16 for a in constants.values()
    )
    if in_bfloat16:
        refusal = "onnxruntime takes no bfloat16 arrays from Python"
    elif untyped:
        refusal = f"onnxruntime needs the type of {shorten(untyped[0])!r}, which is unknown"
    elif find_spec("onnxruntime") is not None:
        segment, refusal = _onnxruntime(graph, nodes, inputs, outputs, constants, threads)
        if segment is not None:
            return segment
    return _reference(graph, nodes, inputs, outputs, constants, refusal)


def _submodel(
    graph: Graph,
    nodes: Sequence[Node],
    inputs: Sequence[Value],
    outputs: Sequence[str],
    constants: Mapping[str, Array],
) -> tuple[ModelProto, dict[str, Array]]:
    """The nodes as a model; large constants are left out of it and returned beside it."""
    from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

    large = {
        n: a
        for n, a in constants.items()
        if a.nbytes > _LARGE and a.dtype.kind in "fiu" and a.flags.c_contiguous
    }
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items() if n not in large]
    for name, array in large.items():
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor = TensorProto(name=name, data_type=dtype, dims=array.shape, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", name), ("offset", "0"), ("length", str(array.nbytes))):
            tensor.external_data.add(key=key, value=value)
        tensors.append(tensor)
    body = helper.make_graph(
        _messages(nodes), "segment", [value_info(v) for v in inputs],
        [ValueInfoProto(name=name) for name in outputs], tensors,
    )  # fmt: skip
    opsets = {**graph.origin.opsets, "": _least_opset(nodes, graph.origin.opsets[""])}
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(body, opset_imports=imports, ir_version=IR_VERSION), large


_ALL_NEEDED = frozenset(("Concat", "Max", "Mean", "Min", "Sum"))
"""Operators of any number of inputs, of which none may be left out: onnxruntime reads from where nothing is."""


def _messages(nodes: Sequence[Node]) -> list[NodeProto]:
    """Messages of nodes, none of which has the name of another: rewrites make several in the place of one."""
    found: dict[str, NodeProto] = {}
    for node in nodes:
        message = _message(node)
        name = message.name or f"node {len(found)}"
        if name in found:
            copy = type(message)()
            copy.CopyFrom(message)
            message, name = copy, next(n for n in (f"{name} {at}" for at in itertools.count(2)) if n not in found)
            message.name = name
        found[name] = message
    return list(found.values())


def _message(node: Node) -> NodeProto:
    """The file's own message of a node, with the names that rewrites gave its inputs; or one that they made."""
    from onnx import NodeProto, helper

    if node.op in _ALL_NEEDED and not node.domain and not all(node.inputs):
        raise ModelError(f"{node.label} leaves an input out; it needs all that it names")
    if node.origin is None:
        return helper.make_node(
            node.op, node.inputs, node.outputs, node.name, domain=node.domain, **node.attributes
        )
    own: NodeProto = node.origin.message
    if tuple(own.input) == node.inputs:
        return own
    message = NodeProto()
    message.CopyFrom(own)
    message.input[:] = node.inputs
    return message


def _least_opset(nodes: Sequence[Node], opset: int) -> int:
    """The oldest opset in which the nodes mean the same: engines trail behind the newest ones."""
    from onnx import defs

    if any(node.captured for node in nodes):
        return opset  # the nodes of subgraphs would have to be asked too
    versions = (
        defs.get_schema(node.op, max_inclusive_version=opset, domain="").since_version
        for node in nodes
        if node.domain == ""
    )
    return int(min(opset, max((_LEAST_OPSET, *versions))))


def _onnxruntime(
    graph: Graph,
    nodes: Sequence[Node],
    inputs: Sequence[Value],
    outputs: Sequence[str],
    constants: Mapping[str, Array],
    threads: int,
) -> tuple[Segment | None, str]:
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as states

    model, large = _submodel(graph, nodes, inputs, outputs, constants)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = _threads(nodes, inputs, threads)
    # Every segment has a pool of its own; one that spins takes the cores from the convolution that follows.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    ask_for_exact_sums(options)
    held = [onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(array)) for array in large.values()]
    if large:
        options.add_external_initializers(list(large), held)
    try:
        session = _opened(model, options)
    except states.NotImplemented as error:
        return None, shorten(str(error))
    except Exception as error:
        if "Opset" in str(error):  # newer than this onnxruntime
            return None, shorten(str(error))
        raise ModelError(f"{_names(nodes)}: onnxruntime refuses: {shorten(str(error), 1000)}") from error
    names = [value.name for value in inputs]
    kinds = {v.name: Value(v.name, v.type, tuple(v.shape) or None) for v in session.get_outputs()}

    def run(arrays: Sequence[Array], _held: object = (large, held)) -> Sequence[Array]:
        try:
            return session.run(outputs, dict(zip(names, arrays, strict=True)))  # type: ignore[no-any-return]
        except Exception as error:
            said = str(error)
            raise ModelError(f"{_blamed(nodes, said)}: onnxruntime stopped: {shorten(said, 1000)}") from error

    bytes_held = sum(np.asarray(array).nbytes for array in constants.values())
    return Segment("onnxruntime", tuple(kinds[name] for name in outputs), run, held=lambda: bytes_held), ""


_CHANGING = ["WeightBiasQuantization"]
"""Optimisers of onnxruntime that change results by more than rounding: this one makes bytes of real weights beside
QuantizeLinear, which moves results by steps."""


def _opened(model: ModelProto, options: Any) -> Any:
    """A session of onnxruntime's: without its optimiser where that stumbles over its own rewrites."""
    import onnxruntime

    data = model.SerializeToString()
    try:
        return onnxruntime.InferenceSession(
            data, options, providers=["CPUExecutionProvider"], disabled_optimizers=_CHANGING
        )
    except Exception as error:  # its exceptions have no common class
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception:
            raise error from None


def _threads(nodes: Sequence[Node], inputs: Sequence[Value], threads: int) -> int:
    """Threads worth having for a group: a model may have hundreds, and each keeps its threads."""
    if any(node.op in _HEAVY or node.domain or node.captured for node in nodes):
        return threads
    elements = [
        math.prod(e for e in v.dims if isinstance(e, int)) if v.dims is not None else _MANY for v in inputs
    ]
    return min(threads, 4) if max(elements, default=0) >= _MANY else 1


def _reference(
    graph: Graph,
    nodes: Sequence[Node],
    inputs: Sequence[Value],
    outputs: Sequence[str],
    constants: Mapping[str, Array],
    refusal: str,
) -> Segment:
    from onnx import TensorProto
    from onnx.reference import ReferenceEvaluator

    model, large = _submodel(graph, nodes, inputs, outputs, constants)
    kept = [t for t in model.graph.initializer if t.data_location != TensorProto.EXTERNAL]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    model.graph.input.extend(value_info(Value(name)) for name in large)
    softmaxes = [_normalising(name, graph.origin.opsets[""]) for name in _SOFT]
    try:
        evaluator = ReferenceEvaluator(model, new_ops=softmaxes)
    except Exception as error:
        raise Unsupported(
            f"{_names(nodes)}: {refusal}, and onnx's reference evaluator cannot run it either: "
            f"{shorten(str(error))}"
        ) from error
    names = [value.name for value in inputs]

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        try:
            with np.errstate(all="ignore"):
                results = evaluator.run(list(outputs), {**large, **dict(zip(names, arrays, strict=True))})
        except Exception as error:
            raise ModelError(
                f"{_names(nodes)}: onnx's reference evaluator stopped: {shorten(str(error))}"
            ) from error
        return [r if isinstance(r, list) else np.asarray(r) for r in results]  # type: ignore[misc]

    return Segment("onnx.reference", tuple(Value(name) for name in outputs), run, views=True)


def _names(nodes: Sequence[Node]) -> str:
    rest = f" and {len(nodes) - 1} nodes after it" if len(nodes) > 1 else ""
    return f"{nodes[0].label}{rest}"


def _blamed(nodes: Sequence[Node], said: str) -> str:
    """The node of a group that an error of onnxruntime's names; all of them where it names none."""
    named = [node for node in nodes if f"Name:'{node.name}'" in said]
    return _names(named or nodes)


def _normalising(name: str, opset: int) -> type[Any]:
    """Softmax or one of its kin for the reference evaluator, whose own loses small values and long sums.

    Before opset 13, which the evaluator does not know, they see the input as a matrix, split before ``axis``, and
    normalise its rows.
    """
    from onnx import defs
    from onnx.reference.op_run import OpRun

    def _run(self: Any, x: Array, axis: int) -> tuple[Array]:
        if not x.size:
            return (x,)
        wide = x.astype(np.result_type(x.dtype, np.float32))
        if opset >= 13:
            return (_SOFT[name](wide, axis).astype(x.dtype),)
        rows = math.prod(x.shape[: axis % max(1, x.ndim)])
        return (_SOFT[name](wide.reshape(rows, -1), 1).astype(x.dtype).reshape(x.shape),)

    schema = defs.get_schema(name, max_inclusive_version=opset, domain="")  # which says the default of axis
    return type(name, (OpRun,), {"op_domain": "", "op_schema": schema, "_run": _run})


def _softmax(x: Array, axis: int) -> Array:
    raised: Array = np.exp(x - x.max(axis=axis, keepdims=True))
    raised /= raised.sum(axis=axis, keepdims=True)
    return raised


def _log_softmax(x: Array, axis: int) -> Array:
    # not the logarithm of the softmax, which is 0 where it underflows
    below: Array = x - x.max(axis=axis, keepdims=True)
    below -= np.log(np.exp(below).sum(axis=axis, keepdims=True))
    return below


def _hardmax(x: Array, axis: int) -> Array:
    result = np.zeros_like(x)
    np.put_along_axis(result, x.argmax(axis=axis, keepdims=True), 1, axis)
    return result


_SOFT: Mapping[str, Callable[[Array, int], Array]] = {
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "Hardmax": _hardmax,
}
