"""A serialised ONNX model without its large initialisers, and where the values of these lie in it.

protobuf keeps a copy of all that it parses for as long as any message of the model lives, and a model's nodes live as
long as its session.  The one idea: only lengths are read here; what is odd in any way stays in the bytes, for the
parser to judge.  It knows field numbers of ``onnx.proto``, and no meaning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from polyconv.models.beside import FileBytes, Part

__all__ = ["without_values"]

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
"""Wire types: what follows a tag."""
_GRAPH, _INITIALIZER, _NAME, _RAW_DATA = (number << 3 | _BYTES for number in (7, 5, 8, 9))
"""Tags of fields of ModelProto, GraphProto and, twice, TensorProto."""
_LARGE = 1 << 16
"""Bytes from which an initialiser's values are taken out."""


class _OddError(Exception):
    """The bytes are not what a writer of models writes."""


class _Field(NamedTuple):
    """A field's tag (its number and wire type), its first byte, and its payload."""

    tag: int
    start: int
    payload: int
    end: int


def without_values(data: bytes | FileBytes) -> tuple[bytes, dict[str, Part]]:
    """A model without the values of large initialisers.

    Parameters
    ----------
    data : bytes or FileBytes
        A serialised ModelProto, or anything else, which is returned as it is.  Of a file, large values are not read.

    Returns
    -------
    bytes, dict of Part
        The model, in which ``raw_data`` of these initialisers is empty, and by name where it lies.
    """
    try:
        (graph,) = [field for field in _fields(data, 0, len(data)) if field.tag == _GRAPH]
        pieces, values = _graph(data, graph)
        if isinstance(data, FileBytes) and not data.is_whole():
            raise _OddError
    except (_OddError, ValueError):  # no graph, or several
        return data[:], {}
    if not values:
        return data[:], {}
    inner = b"".join(pieces)
    return b"".join((data[: graph.start], _head(_GRAPH, len(inner)), inner, data[graph.end :])), values


def _graph(data: bytes | FileBytes, graph: _Field) -> tuple[list[bytes], dict[str, Part]]:
    """Pieces of a graph without large values, and where these lie, by name."""
    pieces: list[bytes] = []
    values: dict[str, Part] = {}
    done = graph.payload
    for field in _fields(data, graph.payload, graph.end):
        if field.tag != _INITIALIZER or field.end - field.payload < _LARGE:
            continue
        parts = list(_fields(data, field.payload, field.end))
        raw = [part for part in parts if part.tag == _RAW_DATA]
        names = [data[part.payload : part.end].decode() for part in parts if part.tag == _NAME]
        if len(raw) != 1 or len(names) != 1:  # its values stand in another field, or in pieces
            continue
        if names[0] in values:
            raise _OddError
        values[names[0]] = Part(raw[0].payload, raw[0].end - raw[0].payload)
        rest = data[field.payload : raw[0].start] + _head(_RAW_DATA, 0) + data[raw[0].end : field.end]
        pieces += [data[done : field.start], _head(_INITIALIZER, len(rest)), rest]
        done = field.end
    return [*pieces, data[done : graph.end]], values


def _fields(data: bytes | FileBytes, at: int, end: int) -> Iterator[_Field]:
    """The fields of a message that lies from ``at`` to ``end``."""
    while at < end:
        start = at
        tag, at = _varint(data, at)
        payload = at
        if tag & 7 == _VARINT:
            _, at = _varint(data, at)
        elif tag & 7 == _BYTES:
            length, payload = _varint(data, at)
            at = payload + length
        elif tag & 7 in (_EIGHT, _FOUR):
            at += 8 if tag & 7 == _EIGHT else 4
        else:
            raise _OddError
        if at > end:
            raise _OddError
        yield _Field(tag, start, payload, at)


def _varint(data: bytes | FileBytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise _OddError


def _head(tag: int, length: int) -> bytes:
    """Tag and length of a field of bytes."""
    made = bytearray((tag,))
    while length > 127:
        made.append(length & 127 | 128)
        length >>= 7
    made.append(length)
    return bytes(made)
