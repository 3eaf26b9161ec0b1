"""The XML of an OpenVINO IR, turned into layers and the edges between their ports.

The one idea: the text is read by a parser that refuses entities, and ids, ports and edges are checked
here, so that a layer's inputs are simply a list.  It knows no layer type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from polyconv.dataclass import dataclass
from polyconv.errors import ModelError, Unsupported
from polyconv.models.limits import shorten

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

__all__ = ["Layer", "Port", "read_layers"]

Port = tuple[str, int]
"""Layer id and index of an output."""

_VERSIONS = ("10", "11")
_ID = re.compile(r"\d{1,18}\Z")
_OPSET = re.compile(r"opset(\d{1,3})\Z")


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A layer of the file.

    Parameters
    ----------
    id, name, type : str
        As in the file.
    version : int
        Number of its operator set; 0 for one without.
    data : mapping
        Attributes of its ``<data>``.
    inputs, outputs : tuple of str
        Port ids; the position in the list is the port's index.
    names : tuple of tuple of str
        Tensor names of every output.
    element : Element
        The XML itself.
    """

    id: str
    name: str
    type: str
    version: int
    data: Mapping[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    element: Element

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"{shorten(self.type, 80)} layer {shorten(self.name, 120)!r}"


def read_layers(data: bytes) -> tuple[Mapping[str, str], list[Layer], dict[tuple[str, str], Port]]:
    """Layers of an IR, and where every input comes from.

    Parameters
    ----------
    data : bytes
        The .xml file.

    Returns
    -------
    mapping, list of Layer, dict
        Attributes of the ``<net>``, version and name; the layers; layer id and input port -> the output it is fed from.

    Raises
    ------
    ModelError
        If the text is no XML, has entities, or is not an IR of version 10 or 11.
    Unsupported
        If defusedxml is missing.
    """
    net = _parse(data)
    version = net.get("version", "")
    if net.tag != "net" or version not in _VERSIONS:
        raise ModelError(
            f"the XML is <{shorten(net.tag, 40)} version={shorten(version, 40)!r}>; polyconv reads "
            f"<net version='10'> and <net version='11'>"
        )
    layers = [_layer(element) for element in net.iterfind("layers/layer")]
    by_id = {layer.id: layer for layer in layers}
    if len(by_id) < len(layers):
        raise ModelError("two layers of the IR have one id")
    return dict(net.attrib), layers, _edges(net, by_id)


def _parse(data: bytes) -> Element:
    try:
        from defusedxml import ElementTree
    except ImportError as error:
        raise Unsupported("reading OpenVINO IR needs defusedxml: pip install polyconv[openvino]") from error
    try:
        return ElementTree.fromstring(data, forbid_dtd=True)  # type: ignore[no-any-return]
    except (
        SyntaxError,
        ValueError,
        LookupError,
    ) as error:  # ParseError, forbidden entities, unknown encodings
        raise ModelError(f"the XML cannot be read: {shorten(str(error) or repr(error))}") from error


def _layer(element: Element) -> Layer:
    name, kind = element.get("name", ""), element.get("type", "")
    who = f"{shorten(kind, 80)} layer {shorten(name, 120)!r}"
    number, version = element.get("id"), element.get("version")
    if number is None or _ID.match(number) is None or not kind:
        raise ModelError(f"{who} has the id {shorten(str(number))!r}; a layer needs a number and a type")
    if version is None:
        raise ModelError(f"{who} does not say which operator set it is of (version)")
    opset = _OPSET.match(version)
    data = element.find("data")
    outputs = element.findall("output/port")
    return Layer(
        id=number,
        name=name,
        type=kind,
        version=int(opset[1]) if opset else 0,
        data={} if data is None else dict(data.attrib),
        inputs=_ports(element.findall("input/port"), who),
        outputs=_ports(outputs, who),
        names=tuple(_tensor_names(port.get("names", "")) for port in outputs),
        element=element,
    )


def _ports(ports: Sequence[Element], who: str) -> tuple[str, ...]:
    ids = tuple(port.get("id", "") for port in ports)
    if len(set(ids)) < len(ids):
        raise ModelError(f"{who} has two ports with one id")
    return ids


def _tensor_names(text: str) -> tuple[str, ...]:
    parts = re.split(r"(?<!\\),", text)
    return tuple(part.replace("\\,", ",") for part in parts if part)


def _edges(net: Element, by_id: Mapping[str, Layer]) -> dict[tuple[str, str], Port]:
    """Input port -> the output it is fed from."""
    sources: dict[tuple[str, str], Port] = {}
    for edge in net.iterfind("edges/edge"):
        ends = [edge.get(key, "") for key in ("from-layer", "from-port", "to-layer", "to-port")]
        start, stop = by_id.get(ends[0]), by_id.get(ends[2])
        if start is None or stop is None or ends[1] not in start.outputs or ends[3] not in stop.inputs:
            raise ModelError(f"the edge {shorten(' '.join(ends))} joins a layer or port that is not there")
        if (stop.id, ends[3]) in sources:
            raise ModelError(f"{stop.label} has two edges into its port {ends[3]}")
        sources[stop.id, ends[3]] = (start.id, start.outputs.index(ends[1]))
    return sources
