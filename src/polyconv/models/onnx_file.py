"""An ONNX model turned into the neutral graph, by the onnx package.

Functions are written out, initialisers and Constant nodes become arrays, every other node keeps its
own protobuf message for the host.  The one idea: the file is checked here once, so that whoever
reads the graph may believe it.  It must not know which engine runs what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.errors import ModelError, Unsupported
from polyconv.models.beside import Beside, FileBytes
from polyconv.models.elements import BY_ONNX
from polyconv.models.graph import Array, Dims, Graph, ModelMetadata, Node, Value, order
from polyconv.models.limits import shorten
from polyconv.models.onnx_node import OnnxNode
from polyconv.models.onnx_shapes import stated
from polyconv.models.onnx_tensor import EXTERNAL, tensor_array
from polyconv.models.onnx_walk import all_nodes, captured, domain_of, legible, subgraphs, written_out
from polyconv.models.operators import is_convolution

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto

__all__ = ["IR_VERSION", "OnnxOrigin", "body", "parsed"]

_FLOAT, _INT, _STRING, _TENSOR = 1, 2, 3, 4  # AttributeProto.AttributeType
_FLOATS, _INTS, _STRINGS = 6, 7, 8
IR_VERSION = 10
"""Of the models that hosts are given; it allows initialisers that are no inputs."""

_DETERMINISTIC_DOMAINS = ("", "ai.onnx.ml")
_RANDOM = frozenset(
    (
        "Bernoulli",
        "Dropout",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    )
)


@dataclass(frozen=True, slots=True)
class OnnxOrigin:
    """What a sub-model needs beside its nodes: the opset of every domain."""

    opsets: Mapping[str, int]


def parsed(data: bytes | FileBytes, lighter: bytes, taken_out: Mapping[str, Array], files: Beside | None) -> Graph:
    """Read a model by the onnx package.

    Parameters
    ----------
    data : bytes or FileBytes
        The file's bytes.
    lighter : bytes
        The same without large values.
    taken_out : mapping
        These by name.
    files : Beside or None
        Where its external data may lie; None for a model given as bytes.

    Raises
    ------
    ModelError
        If the file is damaged or contradicts itself; the node or tensor is named.
    Unsupported
        If the onnx package is missing, or older than the file.
    """
    model = _parse(lighter)
    about = _about(model)
    opsets = _opsets(model)
    if model.functions:
        model, taken_out = written_out(_parse(data[:])), {}  # what writes them out may rename initialisers
    graph = model.graph
    if not graph.node and not graph.output:
        raise ModelError("the file holds no graph; is it an ONNX model?")
    constants, nodes = _contents(graph, opsets, files, taken_out)
    for tensor in graph.initializer:
        tensor.ClearField("raw_data")  # the arrays have their own copies
    inputs, outputs = _ends(graph)
    defaults = {value.name for value in inputs}.intersection(tensor.name for tensor in graph.initializer)
    return replace(_graph(nodes, inputs, outputs, constants, opsets), defaults=frozenset(defaults), about=about)


def body(node: Node, attribute: str, outside: Mapping[str, Value], constants: Mapping[str, Array],
         opsets: Mapping[str, int]) -> Graph:  # fmt: skip
    """A subgraph of a node, whose inputs are its own and then those values that it reads from outside.

    Parameters
    ----------
    node : Node
        The node, with the file's own message.
    attribute : str
        Which subgraph.
    outside : mapping
        What is known of the values that the node's subgraphs read.
    constants : mapping
        Those of them that are the same in every run.
    opsets : mapping
        Version of every domain.

    Raises
    ------
    ModelError
        If it is missing or contradicts itself; its node is named.
    """
    graph = next((a.g for a in node.origin.message.attribute if a.name == attribute and a.HasField("g")), None)
    if graph is None:
        raise ModelError(f"{node.label} has no subgraph {attribute!r}")
    try:
        own, nodes = _contents(graph, opsets, None, {})
        formal, results = _ends(graph)
        inner = {*own, *(value.name for value in formal), *(name for each in nodes for name in each.writes)}
        known = {name: array for name, array in constants.items() if name not in inner}
        around = (value for name, value in outside.items() if name not in inner and name not in known)
        return _graph(nodes, (*formal, *around), results, {**known, **own}, opsets)
    except ModelError as error:
        raise ModelError(f"{node.label}, {attribute}: {error}") from error


def _ends(graph: GraphProto) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Inputs and outputs as a graph declares them."""
    inputs = tuple(_value(v.name, v.type, "graph input") for v in graph.input)
    outputs = tuple(_value(v.name, v.type, "graph output") for v in graph.output)
    for role, values in (("input", inputs), ("output", outputs)):
        names = [value.name for value in values]
        if len(set(names)) < len(names):
            raise ModelError(f"the graph {role}s {shorten(names)} repeat a name")
    return inputs, outputs


def _graph(nodes: list[Node], inputs: tuple[Value, ...], outputs: tuple[Value, ...], constants: Mapping[str, Array],
           opsets: Mapping[str, int]) -> Graph:  # fmt: skip
    """Nodes in order and checked, with what can be proven of the values between them."""
    results = tuple(value.name for value in outputs)
    ordered = order(nodes, {value.name for value in inputs} | set(constants), results)
    _check_nodes(ordered, opsets)
    return Graph(
        format="onnx",
        inputs=inputs,
        outputs=outputs,
        results=results,
        nodes=ordered,
        constants=constants,
        stated=stated(ordered, inputs, constants, opsets),
        origin=OnnxOrigin(opsets),
    )


def _contents(graph: GraphProto, opsets: Mapping[str, int], files: Beside | None, taken_out: Mapping[str, Array]
              ) -> tuple[dict[str, Array], list[Node]]:  # fmt: skip
    """Constants and nodes as they stand in a graph."""
    if graph.sparse_initializer:
        raise Unsupported("the model has sparse initialisers; store them dense")
    constants = _initialisers(graph, files, taken_out)
    nodes = []
    for index, message in enumerate(graph.node):
        node = _node(message, index, opsets)
        if node.op == "Constant" and node.domain == "":
            if len(node.writes) != 1 or node.outputs[0] in constants:
                raise ModelError(f"{node.label} must make one value of its own, it makes {node.outputs}")
            constants[node.outputs[0]] = _constant(message, node, files)
        else:
            nodes.append(node)
    return constants, nodes


def _about(model: ModelProto) -> ModelMetadata:
    about = ModelMetadata(
        custom_metadata_map={_text(row.key): _text(row.value) for row in model.metadata_props},
        description=_text(model.doc_string), domain=_text(model.domain), producer_name=_text(model.producer_name),
        graph_description=_text(model.graph.doc_string), graph_name=_text(model.graph.name),
    )  # fmt: skip
    return replace(about, version=model.model_version) if model.HasField("model_version") else about


def _text(value: str | bytes) -> str:
    """A text of no consequence, which need not be UTF-8."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _parse(data: bytes) -> ModelProto:
    try:
        import onnx
    except ImportError as error:
        raise Unsupported("reading ONNX models needs the onnx package: pip install polyconv[onnx]") from error
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # DecodeError is protobuf's own
        raise ModelError(f"the bytes are no ONNX model, or a damaged one: {shorten(str(error))}") from error
    return legible(model)


def _opsets(model: ModelProto) -> dict[str, int]:
    import onnx

    newest = onnx.defs.onnx_opset_version()
    opsets: dict[str, int] = {}
    for row in model.opset_import:
        domain = domain_of(row.domain)
        if row.version < 1 or opsets.get(domain, row.version) != row.version:
            raise ModelError(
                f"the model imports version {row.version} of the operator set {domain!r}, or two versions"
            )
        opsets[domain] = row.version
    if "" not in opsets:
        opsets[""] = 1  # before IR version 3 no import meant the first operator set
    if opsets[""] > newest:
        raise Unsupported(
            f"the model uses ONNX opset {opsets['']}, the installed onnx package knows {newest}: upgrade onnx"
        )
    return opsets


def _initialisers(graph: GraphProto, files: Beside | None, taken_out: Mapping[str, Array]) -> dict[str, Array]:
    constants: dict[str, Array] = {}
    for tensor in graph.initializer:
        if not tensor.name or tensor.name in constants:
            raise ModelError(
                f"the initialiser {shorten(tensor.name)!r} has no name, or one that another has too"
            )
        who = f"the initialiser {shorten(tensor.name)!r}"
        constants[tensor.name] = tensor_array(tensor, who, files, taken_out.get(tensor.name))
    return constants


def _value(name: str, kind: TypeProto, role: str) -> Value:
    if not name:
        raise ModelError(f"a {role} has no name")
    which = kind.WhichOneof("value")
    if which == "sequence_type":
        inner = _value(name, kind.sequence_type.elem_type, role)
        return Value(name, f"seq({inner.type})" if inner.type else "")
    if which != "tensor_type":
        return Value(name)
    row = BY_ONNX.get(kind.tensor_type.elem_type)
    dims: Dims | None = None
    if kind.tensor_type.HasField("shape"):
        dims = tuple(_extent(name, d, role) for d in kind.tensor_type.shape.dim)
    return Value(name, row.type if row else "", dims)


def _extent(name: str, dim: Any, role: str) -> int | str | None:
    if dim.HasField("dim_value"):
        if dim.dim_value < -1:
            raise ModelError(f"the {role} {shorten(name)!r} declares the extent {dim.dim_value}")
        return None if dim.dim_value == -1 else int(dim.dim_value)  # many exporters write -1 for unknown
    return dim.dim_param if dim.dim_param and isinstance(dim.dim_param, str) else None


def _node(message: NodeProto, index: int, opsets: Mapping[str, int]) -> Node:
    inner = tuple(node for graph in subgraphs(message) for node in all_nodes(graph.node))
    for each in (message, *inner):
        each.domain = domain_of(each.domain)
    domain = message.domain
    node = Node(
        name=message.name or f"#{index}",
        op=message.op_type,
        domain=domain,
        # onnxruntime's own domains are often left out of the imports; their first version is meant.
        version=opsets.get(domain, 1 if domain.startswith("com.m") else 0),
        inputs=tuple(message.input),
        outputs=tuple(message.output),
        captured=tuple(sorted(captured(message))),
        hidden=tuple(f"{n.op_type} node {n.name!r}" for n in inner if is_convolution(n.op_type)),
        varies=any(
            n.op_type in _RANDOM or domain_of(n.domain) not in _DETERMINISTIC_DOMAINS
            for n in (message, *inner)
        ),
        origin=OnnxNode(message),
    )
    if not node.version:
        raise ModelError(
            f"{node.label} is of the operator set {shorten(domain)!r}, which the model does not import"
        )
    if not (node.op == "Constant" and domain == ""):
        _refuse_external(message, node.label)
    return replace(node, attributes=_attributes(message, node.label, is_convolution(node.op)))


def _check_nodes(nodes: Iterable[Node], opsets: Mapping[str, int]) -> None:
    """Compare nodes with their operators' definitions; dialects do that for convolutions."""
    from onnx import checker
    from onnx.onnx_cpp2py_export.checker import CheckerContext

    context = CheckerContext()
    context.ir_version = IR_VERSION
    context.opset_imports = dict(opsets)
    for node in nodes:
        # The checker takes what a subgraph reads from outside for missing; the host looks at those.
        if not is_convolution(node.op) and not any(subgraphs(node.origin.message)):
            try:
                checker.check_node(node.origin.message, context)
            except Exception as error:
                raise ModelError(f"{node.label} is not a valid ONNX node: {shorten(str(error))}") from error


def _refuse_external(message: NodeProto, label: str) -> None:
    """A host would look for a tensor's file beside the process, not beside the model."""
    for attribute in message.attribute:
        tensors = [attribute.t, *attribute.tensors]
        for graph in subgraphs(message):
            tensors += graph.initializer
        if any(tensor.data_location == EXTERNAL for tensor in tensors):
            raise Unsupported(
                f"{label} keeps a tensor in another file, as only initialisers may: save it in the model"
            )
    for graph in subgraphs(message):
        for node in graph.node:
            _refuse_external(node, label)


def _attributes(message: NodeProto, label: str, is_ours: bool) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for attribute in message.attribute:
        name = shorten(attribute.name)
        if attribute.name in values:
            raise ModelError(f"{label} has the attribute {name!r} twice")
        if attribute.ref_attr_name:
            raise ModelError(
                f"{label}: the attribute {name!r} refers to a function's, and the node is in no function"
            )
        read = _READ.get(attribute.type)
        if read is not None:
            values[attribute.name] = read(attribute)
        elif attribute.type == _TENSOR and message.op_type == "ConstantOfShape":
            values[attribute.name] = tensor_array(attribute.t, label, None)
        elif is_ours:
            raise ModelError(
                f"{label}: the attribute {name!r} has the type number {attribute.type}; attributes of a "
                f"convolution are numbers, strings and lists of them"
            )
    return values


_READ: Mapping[int, Any] = {
    _FLOAT: lambda a: a.f,
    _INT: lambda a: a.i,
    _STRING: lambda a: a.s.decode("utf-8", "replace"),
    _FLOATS: lambda a: list(a.floats),
    _INTS: lambda a: list(a.ints),
    _STRINGS: lambda a: [s.decode("utf-8", "replace") for s in a.strings],
}


def _constant(message: NodeProto, node: Node, files: Beside | None) -> Array:
    """Value of a Constant node, whose forms are the attributes of Constant-1 to Constant-13."""
    if len(message.attribute) != 1:
        raise ModelError(f"{node.label} must have one value, it has {len(message.attribute)} attributes")
    attribute: AttributeProto = message.attribute[0]
    if attribute.name == "value" and attribute.type == _TENSOR:
        return tensor_array(attribute.t, node.label, files)
    form = _CONSTANTS.get((attribute.name, attribute.type))
    if form is None:
        raise ModelError(
            f"{node.label} has the attribute {shorten(attribute.name)!r} of type number {attribute.type}; "
            f"Constant takes value, value_float(s), value_int(s) or value_string(s)"
        )
    return np.asarray(_READ[attribute.type](attribute), form)


_CONSTANTS = {
    ("value_float", _FLOAT): np.float32,
    ("value_floats", _FLOATS): np.float32,
    ("value_int", _INT): np.int64,
    ("value_ints", _INTS): np.int64,
    ("value_string", _STRING): np.object_,
    ("value_strings", _STRINGS): np.object_,
}
