"""The other layers of an IR, run by NumPy or by the openvino package.

Turns a group of nodes into a function: element by element in NumPy if that is all it does, else as an
IR of its own on OpenVINO.  The one idea: a part of an IR is an IR, with a Parameter for every value it
reads, a Result for every value it makes, and the same .bin file.  It must not see a convolution.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any
from xml.etree import ElementTree  # writes only; reading is defusedxml's
from xml.etree.ElementTree import Element, SubElement

import numpy as np

from polyconv.errors import Error, ModelError, Unsupported
from polyconv.models.elements import BY_NUMPY, BY_TYPE, type_of
from polyconv.models.elementwise import ELEMENTWISE, described
from polyconv.models.graph import Array, Graph, Node, Value
from polyconv.models.limits import shorten
from polyconv.models.segment import Segment

__all__ = ["openvino_host"]

# Ports spell element types in another way than constants do; the rest is the same in capitals.
_PRECISIONS = {"f16": "FP16", "f32": "FP32", "f64": "FP64", "boolean": "BOOL"}


def openvino_host(
    graph: Graph,
    nodes: Sequence[Node],
    inputs: Sequence[Value],
    outputs: Sequence[str],
    constants: Mapping[str, Array],
    threads: int,
) -> Segment:
    """Make nodes of an IR ready to run; see ``segment.Host``."""
    if nodes[0].hidden:
        raise Unsupported(
            f"{nodes[0].label} contains the convolution {shorten(nodes[0].hidden[0])}; polyconv computes every "
            f"convolution itself and runs no branches and loops of an IR: write them out, or give the model as ONNX"
        )
    foreign = [node for node in nodes if node.op not in (ELEMENTWISE if inputs else _OF_CONSTANTS)]
    if not foreign and not inputs:
        values = tuple(Value(name) for name in outputs)
        return Segment("numpy", values, lambda arrays: _computed(nodes, constants, outputs))
    if not foreign:
        return _elementwise(nodes, inputs, outputs, constants)
    if find_spec("openvino") is None:
        raise Unsupported(
            f"{foreign[0].label} would run on OpenVINO, which is not installed: pip install openvino"
        )
    if all(value.dims is not None and value.type for value in inputs):
        return _openvino(graph, nodes, inputs, outputs, constants, threads)
    made: dict[tuple[Value, ...], Segment] = {}

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        """OpenVINO takes no inputs of an open rank: what a run brings tells it."""
        told = zip(inputs, arrays, strict=True)
        known = tuple(Value(value.name, type_of(a.dtype), (None,) * a.ndim) for value, a in told)
        if known not in made:
            made[known] = _openvino(graph, nodes, known, outputs, constants, threads)
        return made[known].run(arrays)

    return Segment("openvino", tuple(Value(name) for name in outputs), run)


def _elementwise(
    nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[str], constants: Mapping[str, Array]
) -> Segment:
    known = {value.name: value for value in inputs}
    known.update((name, Value(name, type_of(a.dtype), a.shape)) for name, a in constants.items())
    for node in nodes:
        if len(node.outputs) != 1 or not node.inputs:
            raise ModelError(f"{node.label} has {len(node.inputs)} inputs and {len(node.outputs)} outputs")
        known[node.outputs[0]] = described(node, [known[name] for name in node.inputs])
    names = [value.name for value in inputs]

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        return _computed(nodes, {**constants, **dict(zip(names, arrays, strict=True))}, outputs)

    return Segment("numpy", tuple(known[name] for name in outputs), run)


def _computed(nodes: Sequence[Node], given: Mapping[str, Array], outputs: Sequence[str]) -> Sequence[Array]:
    """What nodes of ``_OF_CONSTANTS`` make of given values."""
    values = dict(given)
    with np.errstate(all="ignore"):
        for node in nodes:
            try:
                values[node.outputs[0]] = _OF_CONSTANTS[node.op](node, [values[name] for name in node.inputs])
            except Error:
                raise
            except Exception as error:
                raise ModelError(f"{node.label} cannot be computed: {shorten(str(error))}") from error
    return [values[name] for name in outputs]


def _reshaped(node: Node, inputs: Sequence[Array]) -> Array:
    """Reshape of a constant; zeros may stand for the extents that it has."""
    data, extents = inputs
    keeps = str(node.origin.data.get("special_zero", "false")).strip().lower() in ("true", "1")
    asked = enumerate(extents.tolist())
    return data.reshape([data.shape[at] if keeps and extent == 0 else extent for at, extent in asked])


def _shape(node: Node, inputs: Sequence[Array]) -> Array:
    """ShapeOf a constant."""
    return np.array(inputs[0].shape, np.int32 if node.origin.data.get("output_type") == "i32" else np.int64)


_OF_CONSTANTS: Mapping[str, Callable[[Node, Sequence[Array]], Array]] = {
    **ELEMENTWISE, "Reshape": _reshaped, "ShapeOf": _shape,
}  # fmt: skip
"""Layers that NumPy computes where all that they read is constant: openvino is not started for weights."""


@cache
def _core() -> Any:
    import openvino

    return openvino.Core()


def _openvino(
    graph: Graph,
    nodes: Sequence[Node],
    inputs: Sequence[Value],
    outputs: Sequence[str],
    constants: Mapping[str, Array],
    threads: int,
) -> Segment:
    import openvino

    held = {name: array for name, array in constants.items() if name in graph.origin.constants}
    fed = {name: array for name, array in constants.items() if name not in held}  # which no layer of the file has
    given = (*inputs, *(Value(name, type_of(array.dtype), array.shape) for name, array in fed.items()))
    text = _submodel(graph, nodes, given, outputs, held)
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    weights = np.ascontiguousarray(graph.origin.weights)
    if not weights.size:
        weights = np.zeros(1, np.uint8)  # an empty tensor is taken for none
    try:
        model = _core().read_model(
            model=text, weights=openvino.Tensor(weights, shared_memory=weights.flags.writeable)
        )
        compiled = _core().compile_model(model, "CPU", config)
    except Exception as error:
        raise ModelError(f"{_names(nodes)}: OpenVINO refuses: {shorten(str(error), 1000)}") from error
    values = tuple(_described(name, port) for name, port in zip(outputs, compiled.outputs, strict=True))

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        try:
            request = compiled.create_infer_request()  # one each: runs may overlap
            request.infer({at: _tensor(array) for at, array in enumerate((*arrays, *fed.values()))})
            found = [request.get_output_tensor(at).data for at in range(len(outputs))]
        except Exception as error:
            raise ModelError(f"{_names(nodes)}: OpenVINO stopped: {shorten(str(error), 1000)}") from error
        return [_copied(array, value) for array, value in zip(found, values, strict=True)]

    return Segment("openvino", values, run)


def _described(name: str, port: Any) -> Value:
    from polyconv.models.elements import BY_OPENVINO

    shape = port.get_partial_shape()
    dims = None
    if not shape.rank.is_dynamic:
        dims = tuple(None if d.is_dynamic else d.get_length() for d in shape)
    row = BY_OPENVINO.get(port.get_element_type().get_type_name())
    return Value(name, row.type if row else "", dims)


def _tensor(array: Array) -> Any:
    import openvino

    array = np.ascontiguousarray(array)
    row = BY_NUMPY[array.dtype]
    if row.openvino == "bf16":  # which NumPy's buffers cannot say
        return openvino.Tensor(array.view(np.uint16), list(array.shape), openvino.Type.bf16)
    return openvino.Tensor(array)


def _copied(array: Array, value: Value) -> Array:
    """The request's memory is its own; bf16 comes under another name."""
    row = BY_TYPE.get(value.type)
    found = np.array(array)
    return found if row is None or found.dtype == row.numpy else found.view(row.numpy)


def _names(nodes: Sequence[Node]) -> str:
    rest = f" and {len(nodes) - 1} layers after it" if len(nodes) > 1 else ""
    return f"{nodes[0].label}{rest}"


def _submodel(
    graph: Graph,
    nodes: Sequence[Node],
    inputs: Sequence[Value],
    outputs: Sequence[str],
    constants: Mapping[str, Array],
) -> bytes:
    """An IR of the nodes alone; layers are numbered anew, ports keep their labels."""
    net = Element("net", name="segment", version=graph.origin.version)
    layers, edges = SubElement(net, "layers"), SubElement(net, "edges")
    source: dict[str, tuple[str, str]] = {}  # value -> layer id, output port

    def number() -> str:
        return str(len(layers))

    for value in inputs:
        row = BY_TYPE.get(value.type)
        if row is None or row.openvino is None:
            raise Unsupported(f"{_names(nodes)}: the type of what it reads is unknown to OpenVINO")
        source[value.name] = (number(), "0")
        layer = SubElement(
            layers, "layer", id=number(), name=f"in {len(layers)}", type="Parameter", version="opset1"
        )
        SubElement(layer, "data", shape=_spelled(value), element_type=row.openvino)
        SubElement(
            SubElement(layer, "output"),
            "port",
            id="0",
            precision=_PRECISIONS.get(row.openvino, row.openvino.upper()),
        )
    for name in constants:
        const = graph.origin.constants[name]
        source[name] = (number(), const.outputs[0])
        layers.append(_numbered(const.element, number()))
    for node in nodes:
        for name, port in zip(node.outputs, node.origin.outputs, strict=True):
            source[name] = (number(), port)
        layers.append(_numbered(node.origin.element, number()))
    ids = {node: str(len(inputs) + len(constants) + at) for at, node in enumerate(nodes)}
    for node in nodes:
        for name, port in zip(node.inputs, node.origin.inputs, strict=True):
            _join(edges, source[name], (ids[node], port))
    for at, name in enumerate(outputs):
        _join(edges, source[name], (number(), "0"))
        layer = SubElement(layers, "layer", id=number(), name=f"out {at}", type="Result", version="opset1")
        SubElement(SubElement(layer, "input"), "port", id="0")
    text: bytes = ElementTree.tostring(net, encoding="utf-8", xml_declaration=True)
    return text


def _numbered(element: Element, number: str) -> Element:
    same = copy.copy(element)
    same.attrib = {**element.attrib, "id": number}
    return same


def _join(edges: Element, start: tuple[str, str], stop: tuple[str, str]) -> None:
    ends = {"from-layer": start[0], "from-port": start[1], "to-layer": stop[0], "to-port": stop[1]}
    SubElement(edges, "edge", ends)


def _spelled(value: Value) -> str:
    if value.dims is None:
        return "..."
    return ",".join(str(extent) if isinstance(extent, int) else "?" for extent in value.dims)
