"""An ONNX file, or its bytes, as a graph: as the process before has left it, else read by the onnx package and left.

Importing that package takes longer than all else of a small model's start.  The one idea: what it says of a model
follows from the model's bytes, large values left out, and from the package; so it is asked once.  Only a model whose
values all lie in these bytes, or are just these large values, is left.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polyconv.kernels.objects import fingerprint
from polyconv.models.beside import Beside, FileBytes
from polyconv.models.content import Content
from polyconv.models.elements import BY_TYPE, type_of
from polyconv.models.graph import Array, Graph
from polyconv.models.kept import digest_of, keep, kept, package, place
from polyconv.models.limits import shorten
from polyconv.models.onnx_bytes import without_values
from polyconv.models.onnx_tensor import viewed
from polyconv.settings import resolve as setting

__all__ = ["read_onnx"]


class _Large(NamedTuple):
    """A constant whose values are taken from the file each time: its type and shape."""

    type: str
    shape: tuple[int, ...]


def read_onnx(data: bytes | FileBytes, folder: Path | None, *, at_once: bool = True) -> Graph:
    """Read a model.

    Parameters
    ----------
    data : bytes or FileBytes
        The file's bytes.
    folder : Path or None
        Where its external data may lie; None for a model given as bytes.
    at_once : bool
        False leaves large values in the file until ``Graph.content`` is filled, if it was left what else there is.

    Raises
    ------
    ModelError
        If the file is damaged or contradicts itself; the node or tensor is named.
    Unsupported
        If the onnx package is missing, or older than the file.
    """
    lighter, parts = without_values(data)
    digest = digest_of(lighter)
    file = place("model", (digest, _code(), *package("onnx")))
    graph = kept(file, pickle.loads, Graph)
    large = Content(digest, data, parts)
    is_hashed = sum(part.length for part in parts.values()) <= setting("kept_runs")  # packed, they take no less
    content = large if is_hashed else None
    if graph is None or at_once or content is None:
        large.fill()
    if graph is not None:
        values = {name: _value(name, a, large.arrays) for name, a in graph.constants.items()}
        return replace(graph, constants=values, content=content)
    from polyconv.models.onnx_file import parsed  # here, as most processes find the graph as it was read

    files = None if folder is None else Beside(folder)
    graph = replace(parsed(data, lighter, large.arrays, files), digest=digest)
    if not (files is not None and files.is_used) and _are_all_views(graph.constants, large.arrays):
        small: dict[str, Any] = {
            name: _Large(type_of(a.dtype), a.shape) if name in parts else a for name, a in graph.constants.items()
        }
        keep(file, pickle.dumps(replace(graph, constants=small)))
    return graph if files is not None and files.is_used else replace(graph, content=content)


def _value(name: str, found: Any, large: Mapping[str, Array]) -> Array:
    """The values of a constant that was left."""
    if not isinstance(found, _Large):
        return np.asarray(found)
    return viewed(large[name].data, f"the initialiser {shorten(name)!r}", BY_TYPE[found.type], found.shape)


def _are_all_views(constants: Mapping[str, Array], large: Mapping[str, Array]) -> bool:
    """Whether large values are constants just as they lie in the file: no function renamed them, none were unpacked."""
    return all(name in constants and np.may_share_memory(constants[name], a) for name, a in large.items())


@cache
def _code() -> str:
    """Fingerprint of the code that reads models."""
    folder = Path(__file__).parent
    return fingerprint([*folder.glob("onnx_*.py"), folder / "graph.py", folder / "elements.py", folder / "limits.py"])
