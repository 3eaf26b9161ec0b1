"""An OpenVINO IR, versions 10 and 11, turned into the neutral graph without the openvino package.

Layers become nodes, edges become value names, Const layers become views of the .bin file's bytes.  The
one idea: only what OpenVINO itself goes by is believed (edges, the order of ports, Parameter shapes);
the extents written at ports are comments.  It must not know which engine runs what.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.errors import ModelError, Unsupported
from polyconv.models.beside import read_bytes
from polyconv.models.elements import BY_OPENVINO
from polyconv.models.graph import Array, Dims, Graph, ModelMetadata, Node, Value, order
from polyconv.models.limits import check_bytes, shorten
from polyconv.models.openvino_xml import Layer, Port, read_layers
from polyconv.models.operators import OPENVINO, is_convolution

__all__ = ["OpenvinoOrigin", "read_openvino"]

_NUMBER = re.compile(r"\s*(\d{1,18})\s*\Z")
_SIGNED = re.compile(r"\s*(-?\d{1,18})\s*\Z")

# Type names compare without case; these are the spellings that the rest of polyconv goes by.
_TYPES = {
    name.lower(): name
    for name in (
        "Add", "Clamp", "Const", "Convert", "Convolution", "ConvolutionBackpropData",
        "DeformableConvolution", "Elu", "Gelu", "GroupConvolution", "GroupConvolutionBackpropData",
        "HSwish", "Mish", "Multiply", "PRelu", "Parameter", "Relu", "Result", "Sigmoid", "Subtract",
        "Swish", "Tanh",
    )
}  # fmt: skip
_RANDOM = frozenset(("randomuniform", "multinomial", "randompoisson", "bernoulli", "dropout"))
_STATE = frozenset(("readvalue", "assign"))

_INTEGERS = frozenset(("strides", "dilations", "pads_begin", "pads_end", "output_padding"))
_INTEGER = frozenset(("group", "deformable_group"))
_FLOAT = frozenset(("min", "max", "alpha"))
_BOOLEAN = frozenset(("bilinear_interpolation_pad",))


@dataclass(frozen=True, slots=True)
class OpenvinoOrigin:
    """What a sub-model needs beside its nodes.

    Parameters
    ----------
    version : str
        Of the IR.
    weights : ndarray of uint8
        The .bin file.
    constants : mapping
        Value name to its Const layer.
    """

    version: str
    weights: Array
    constants: Mapping[str, Layer]


def read_openvino(data: bytes, weights: bytes | None, path: Path | None) -> Graph:
    """Read an IR.

    Parameters
    ----------
    data : bytes
        The .xml file.
    weights : bytes or None
        The .bin file; None takes the one beside ``path``.
    path : Path or None
        Of the .xml file; None for a model given as bytes.

    Raises
    ------
    ModelError
        If the file is damaged or contradicts itself; the layer is named.
    Unsupported
        If defusedxml is missing, or a layer keeps state or has a type of less than a byte.
    """
    net, layers, sources = read_layers(data)
    layers = [replace(layer, type=_TYPES.get(layer.type.lower(), layer.type)) for layer in layers]
    buffer = _weights(layers, weights, path)
    names = _value_names(layers)
    inputs, constants, const_layers, nodes = [], {}, {}, []
    for layer in layers:
        if layer.type in ("Parameter", "Const") and len(layer.outputs) != 1:
            raise ModelError(f"{layer.label} has {len(layer.outputs)} outputs; it must have one")
        if layer.type == "Parameter":
            inputs.append(_parameter(layer, names[layer.id, 0]))
        elif layer.type == "Const":
            constants[names[layer.id, 0]] = _constant(layer, buffer)
            const_layers[names[layer.id, 0]] = layer
        elif layer.type != "Result":
            nodes.append(_node(layer, _reads(layer, sources, names), names))
    results = [(layer, _reads(layer, sources, names)) for layer in layers if layer.type == "Result"]
    for layer, read in results:
        if len(read) != 1:
            raise ModelError(f"{layer.label} has {len(read)} inputs; it must have one")
    outputs, aliases = _public(layers, results, sources, names)
    values = tuple(read[0] for _, read in results)
    given = [value.name for value in inputs]
    if len(set(given)) < len(given):
        raise ModelError(f"the Parameter layers {shorten(given)} repeat a name")
    return Graph(
        format="openvino",
        inputs=tuple(inputs),
        outputs=outputs,
        results=values,
        nodes=order(nodes, {*given, *constants}, values),
        constants=constants,
        aliases=aliases,
        stated={value.name: _with_own_symbols(value) for value in inputs},
        origin=OpenvinoOrigin(net["version"], buffer, const_layers),
        about=ModelMetadata(graph_name=net.get("name", "")),
    )


def _value_names(layers: Sequence[Layer]) -> dict[Port, str]:
    """A name for every output: the tensor's own for Parameters, as a run is fed by it."""
    names = {}
    for layer in layers:
        for index in range(len(layer.outputs)):
            own = layer.names[index][0] if layer.names[index] else layer.name
            names[layer.id, index] = own if layer.type == "Parameter" else f"{layer.id}:{index}"
    return names


def _reads(
    layer: Layer, sources: Mapping[tuple[str, str], Port], names: Mapping[Port, str]
) -> tuple[str, ...]:
    read = []
    for index, port in enumerate(layer.inputs):
        source = sources.get((layer.id, port))
        if source is None:
            raise ModelError(f"{layer.label} has no edge into its input {index}")
        read.append(names[source])
    return tuple(read)


def _public(
    layers: Sequence[Layer],
    results: Sequence[tuple[Layer, tuple[str, ...]]],
    sources: Mapping[tuple[str, str], Port],
    names: Mapping[Port, str],
) -> tuple[tuple[Value, ...], dict[str, str]]:
    """Names of outputs, as OpenVINO gives them, and the other names that inputs and outputs answer to."""
    by_id = {layer.id: layer for layer in layers}
    outputs: list[Value] = []
    aliases: dict[str, str] = {}
    taken: set[str] = set()
    for layer, _ in results:
        producer, index = sources[layer.id, layer.inputs[0]]
        maker = by_id[producer]
        friendly = maker.name if len(maker.outputs) == 1 else f"{maker.name}.{index}"
        candidates = [*maker.names[index], friendly, layer.name]
        name = next((n for n in candidates if n and n not in taken), f"result {layer.id}")
        taken.add(name)
        outputs.append(Value(name))
        for other in candidates:
            aliases.setdefault(other, name)
    for layer in layers:
        if layer.type == "Parameter":
            for other in (*layer.names[0], layer.name):
                aliases.setdefault(other, names[layer.id, 0])
    return tuple(outputs), aliases


def _parameter(layer: Layer, name: str) -> Value:
    kind = layer.data.get("element_type", "")
    if kind != "dynamic" and kind not in BY_OPENVINO:
        raise Unsupported(
            f"{layer.label} has the element type {shorten(kind)!r}; polyconv feeds {', '.join(BY_OPENVINO)}"
        )
    text = layer.data.get("shape")
    if text is None:
        raise ModelError(f"{layer.label} has no shape")
    dims: Dims | None = None
    if text.strip() != "...":
        dims = tuple(_extent(part, layer) for part in text.split(",")) if text.strip() else ()
    return Value(name, BY_OPENVINO[kind].type if kind in BY_OPENVINO else "", dims)


def _extent(text: str, layer: Layer) -> int | None:
    """``3``, or None for ``?``, ``-1`` and intervals such as ``1..8``."""
    text = text.strip()
    if text in ("?", "-1") or re.fullmatch(r"\d{0,18}\.\.\d{0,18}", text):
        return None
    return _number(text, "shape", layer)


def _number(text: str, key: str, layer: Layer, pattern: re.Pattern[str] = _NUMBER) -> int:
    found = pattern.match(text)
    if found is None:
        raise ModelError(
            f"{layer.label} has {key}={shorten(layer.data.get(key, text))!r}, where {shorten(text, 40)!r} is "
            f"no number"
        )
    return int(found[1])


def _with_own_symbols(value: Value) -> Value:
    if value.dims is None:
        return value
    return Value(
        value.name,
        value.type,
        tuple(f"{value.name}[{a}]" if d is None else d for a, d in enumerate(value.dims)),
    )


def _weights(layers: Sequence[Layer], weights: bytes | None, path: Path | None) -> Array:
    if weights is not None:
        return np.frombuffer(weights, np.uint8)
    beside = None if path is None else path.with_suffix(".bin")
    if beside is not None and beside.is_file():
        return read_bytes(beside, 0, beside.stat().st_size, f"the content of {beside.name!r}")
    if any(layer.type == "Const" for layer in layers):
        where = (
            "give it as weights=" if beside is None else f"there is no {beside.name!r} beside the .xml file"
        )
        raise ModelError(f"the IR has constants, which lie in a .bin file: {where}")
    return np.empty(0, np.uint8)


def _constant(layer: Layer, buffer: Array) -> Array:
    kind = layer.data.get("element_type", "")
    row = BY_OPENVINO.get(kind)
    if row is None:
        raise Unsupported(
            f"{layer.label} has the element type {shorten(kind)!r}, which polyconv does not read; it reads "
            f"{', '.join(BY_OPENVINO)}: decompress the model"
        )
    text = layer.data.get("shape", "").strip()
    shape = tuple(_number(part, "shape", layer) for part in text.split(",")) if text else ()
    if len(shape) > 64:
        raise ModelError(f"{layer.label} has {len(shape)} axes; arrays have at most 64")
    offset, size = (_number(layer.data.get(key, ""), key, layer) for key in ("offset", "size"))
    needed = math.prod(shape) * row.numpy.itemsize
    if size < needed:
        raise ModelError(
            f"{layer.label} of shape {shape} and type {kind} needs {needed} bytes, its size is {size}"
        )
    if offset + size > buffer.size:
        raise ModelError(
            f"{layer.label} lies at bytes {offset} to {offset + size}, the .bin file has {buffer.size}"
        )
    check_bytes(layer.label, shape, row.numpy.itemsize)
    # Equal blobs are shared and offsets need no alignment: a view, never a copy.
    view: Array = buffer[offset : offset + needed].view(row.numpy).reshape(shape)
    return view


def _node(layer: Layer, inputs: tuple[str, ...], names: Mapping[Port, str]) -> Node:
    if layer.type.lower() in _STATE:
        raise Unsupported(f"{layer.label} keeps state between runs, which polyconv's sessions do not")
    inner = [element for element in layer.element.iter("layer") if element is not layer.element]
    known = layer.type in _TYPES.values()
    return Node(
        name=layer.name or f"#{layer.id}",
        op=layer.type,
        domain=OPENVINO,
        version=layer.version,
        inputs=inputs,
        outputs=tuple(names[layer.id, index] for index in range(len(layer.outputs))),
        attributes={key: _attribute(layer, key, text) for key, text in layer.data.items()} if known else {},
        hidden=tuple(
            f"{e.get('type')} layer {e.get('name')!r}" for e in inner if is_convolution(e.get("type", ""))
        ),
        varies=any(kind.lower() in _RANDOM for kind in (layer.type, *(e.get("type", "") for e in inner))),
        origin=layer,
    )


def _attribute(layer: Layer, key: str, text: str) -> Any:
    if key in _INTEGERS:
        return [_number(part, key, layer, _SIGNED) for part in text.split(",")] if text.strip() else []
    if key in _INTEGER:
        return _number(text, key, layer, _SIGNED)
    if key in _FLOAT:
        try:
            return float(text)
        except ValueError:
            raise ModelError(f"{layer.label} has {key}={shorten(text)!r}, which is no number") from None
    if key in _BOOLEAN:
        return {"true": True, "1": True, "false": False, "0": False}.get(text.strip().lower(), text)
    return text
