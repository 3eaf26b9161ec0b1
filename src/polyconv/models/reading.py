"""A model in whatever form it is given, as a graph; and a graph made ready to run on the host of its format.

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
from polyconv.models.compiling import compile_graph
from polyconv.models.controlled import with_control_flow
from polyconv.models.fold import Views, looked_at
from polyconv.models.foreign import foreign
from polyconv.models.graph import Array, Graph, Value, live
from polyconv.models.kept import digest_of
from polyconv.models.limits import shorten
from polyconv.models.native import ONNX, Translation
from polyconv.models.onnx_host import onnx_host, onnx_views
from polyconv.models.onnx_reading import read_onnx
from polyconv.models.onnx_rules import LAST_RULES, LATE_RULES, ON_CPU, ON_GPU, RULES
from polyconv.models.operators import Options
from polyconv.models.program import Program
from polyconv.models.rewriting import rewritten
from polyconv.models.segment import Host
from polyconv.runtime.memory import collecting_later
from polyconv.settings import resolve

__all__ = ["Source", "compiled", "host_of", "read_model", "source_of", "with_dimensions"]

Source = Path | bytes
"""Where a model comes from: a file, or the content of one."""


def _engines(form: str) -> tuple[Host, Views, Translation]:
    """Who runs the other nodes of a format, and how these read."""
    if form == "onnx":
        return onnx_host, onnx_views, ONNX
    from polyconv.models.openvino_host import openvino_host  # here, as most models are of ONNX
    from polyconv.models.openvino_layers import as_onnx, has_form

    return openvino_host, {}, Translation(has_form, as_onnx)


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
def read_model(model: Any, weights: bytes | None = None) -> Graph:
    """Read a model; see ``InferenceSession``.  What is wrong with a file is said with its name."""
    source = source_of(model)
    if isinstance(source, bytes):
        return _named(source, None, weights)
    with source.open("rb") as file:
        is_plain = S_ISREG(os.fstat(file.fileno()).st_mode)
        return _named(FileBytes(file) if is_plain else file.read(), source, weights)


def _named(data: bytes | FileBytes, path: Path | None, weights: bytes | None) -> Graph:
    try:
        return _graph(data, path, weights)
    except ModelError as error:
        what = "the model" if path is None else shorten(str(path))
        if (said := foreign(data[:256])) is not None:
            raise ModelError(f"{what} {said}") from error
        if path is None:
            raise
        raise ModelError(f"{what}: {error}") from error


def _graph(data: bytes | FileBytes, path: Path | None, weights: bytes | None) -> Graph:
    if data[:64].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        from polyconv.models.openvino_file import read_openvino

        return replace(read_openvino(data[:], weights, path), digest=digest_of(data[:]))
    if weights is not None:
        raise ArgumentError("weights= is the .bin of an OpenVINO IR; an ONNX model takes none")
    return read_onnx(data, None if path is None else path.parent)


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
        inputs=tuple(map(fixed, graph.inputs)),
        outputs=tuple(map(fixed, graph.outputs)),
        stated={name: fixed(value) for name, value in graph.stated.items()},
    )


def host_of(graph: Graph) -> Host:
    """Who runs a graph's other nodes."""
    return _engines(graph.format)[0]


@collecting_later()
def compiled(graph: Graph, overridden: frozenset[str], options: Options) -> Program:
    """Make a graph ready to run; ``overridden`` are the inputs with defaults that runs will feed."""
    host, views, translation = _engines(graph.format)
    if graph.format == "onnx":
        if options.device is None:
            host = with_control_flow(host, lambda body: compiled(body, frozenset(), options))
        opsets = graph.origin.opsets
        constants = {name: array for name, array in graph.constants.items() if name not in overridden}
        known, _ = looked_at(live(graph.nodes, graph.results), constants, views)
        made: dict[str, Array] = {}
    else:
        from polyconv.models.openvino_graph import as_onnx_graph, opsets

        graph, made = as_onnx_graph(graph, options, host, translation, int(resolve("threads", options.threads)))
        known = {**graph.constants, **made}
    early = (*RULES, *(ON_CPU if options.device is None else ON_GPU))
    for stage in (early, LATE_RULES, LAST_RULES, early):
        rules = [rule for rule in stage if rule.is_exact or options.rewrites == "all"]
        own = {name: array for name, array in graph.constants.items() if name not in overridden}
        graph = rewritten(graph, rules, {**known, **own}, opsets)
        if not any(node.op == "DequantizeLinear" for node in graph.nodes):
            break
    return compile_graph(graph, overridden, options, host, views, translation, made)
