"""A model in whatever form it is given, as a graph.

A file's first bytes say what it is, not its name.  It must not know what a node means.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from stat import S_ISREG
from typing import Any

from polyconv.errors import ArgumentError, ModelError
from polyconv.models.beside import FileBytes
from polyconv.models.graph import Graph, Value
from polyconv.models.kept import digest_of
from polyconv.models.limits import shorten
from polyconv.models.onnx_reading import read_onnx
from polyconv.runtime.memory import collecting_later

__all__ = ["Source", "read_model", "source_of", "with_dimensions"]

Source = Path | bytes
"""Where a model comes from: a file, or the content of one."""


def source_of(model: Any) -> Source:
    """A model as a caller gives it: a path, a file's bytes or an ``onnx.ModelProto``.

    Raises
    ------
    ArgumentError
        If it is none of these, a device, or a ModelProto beyond the 2 GiB that can be serialised.
    """
    if isinstance(model, str | PathLike):
        path = Path(fspath(model))
        if "\0" in str(path) or path.is_char_device() or path.is_block_device():  # of a device there is no end
            raise ArgumentError(f"path_or_bytes={shorten(str(path))!r} is no model file; give the path of one")
        return path
    if isinstance(model, bytes | bytearray | memoryview):
        return bytes(model)
    if hasattr(model, "SerializeToString"):
        try:
            return bytes(model.SerializeToString())
        except Exception as error:  # protobuf's own, for more than 2 GiB
            raise ArgumentError(f"the model cannot be serialised ({error}); save it and give its path") from None
    raise ArgumentError(
        f"path_or_bytes is of type {type(model).__name__}; give a path, a file's bytes or an onnx.ModelProto "
        f"(openvino.save_model writes other models to a file)"
    )


@collecting_later()
def read_model(model: Any, weights: bytes | None = None, *, at_once: bool = True) -> Graph:
    """Read a model; see ``InferenceSession``.  What is wrong with a file is said with its name.

    Not ``at_once``, large values may stay in the file until ``Graph.content`` is filled.
    """
    source = source_of(model)
    if isinstance(source, bytes):
        return _named(source, None, weights, at_once)
    with source.open("rb") as file:
        is_plain = S_ISREG(os.fstat(file.fileno()).st_mode)
        return _named(FileBytes(file) if is_plain else file.read(), source, weights, at_once)


def _named(data: bytes | FileBytes, path: Path | None, weights: bytes | None, at_once: bool) -> Graph:
    try:
        return _graph(data, path, weights, at_once)
    except ModelError as error:
        from polyconv.models.foreign import foreign  # here, as few files are of another kind

        what = "the model" if path is None else shorten(str(path))
        if (said := foreign(data[:256])) is not None:
            raise ModelError(f"{what} {said}") from error
        if path is None:
            raise
        raise ModelError(f"{what}: {error}") from error


def _graph(data: bytes | FileBytes, path: Path | None, weights: bytes | None, at_once: bool) -> Graph:
    if data[:64].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        from polyconv.models.openvino_file import read_openvino

        return replace(read_openvino(data[:], weights, path), digest=digest_of(data[:]))
    if weights is not None:
        raise ArgumentError("weights= is the .bin of an OpenVINO IR; an ONNX model takes none")
    return read_onnx(data, None if path is None else path.parent, at_once=at_once)


def with_dimensions(graph: Graph, known: Mapping[str, int]) -> Graph:
    """The graph with dimensions that it leaves open under a name fixed to numbers."""
    if not known:
        return graph

    def fixed(value: Value) -> Value:
        if value.dims is None:
            return value
        return replace(value, dims=tuple(known.get(d, d) if isinstance(d, str) else d for d in value.dims))

    return replace(
        graph,
        digest=digest_of(f"{graph.digest} {sorted(known.items())}".encode()) if graph.digest else "",
        inputs=tuple(map(fixed, graph.inputs)),
        outputs=tuple(map(fixed, graph.outputs)),
        stated={name: fixed(value) for name, value in graph.stated.items()},
    )
