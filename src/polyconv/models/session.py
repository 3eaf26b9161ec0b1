"""``InferenceSession``: a model file made ready once and run on arrays, in onnxruntime's manner.

Reads the file, checks what a run is fed and keeps the books on what ran where.  The one idea: every
convolution runs on polyconv, every other node on the host that is installed, and ``nodes`` says which.
It must not know what a node means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from polyconv.errors import ArgumentError, DtypeError
from polyconv.models.elements import BY_TYPE
from polyconv.models.fold import Views
from polyconv.models.graph import Array, Graph, Value
from polyconv.models.limits import shorten
from polyconv.models.onnx_file import read_onnx
from polyconv.models.onnx_host import onnx_host, onnx_views
from polyconv.models.openvino_file import read_openvino
from polyconv.models.openvino_host import openvino_host
from polyconv.models.operators import Options
from polyconv.models.program import Program, compile_graph
from polyconv.models.segment import Host
from polyconv.runtime.memory import native_order
from polyconv.settings import resolve

__all__ = ["InferenceSession", "NodeRecord", "compiled", "host_of", "read_model"]

PROVIDER = "PolyconvExecutionProvider"

_HOSTS: Mapping[str, tuple[Host, Views]] = {"onnx": (onnx_host, onnx_views), "openvino": (openvino_host, {})}
_HOST_PROVIDERS: Mapping[str, str] = {
    "onnxruntime": "CPUExecutionProvider",
    "onnx.reference": "ReferenceEvaluator",
    "openvino": "OpenVINOExecutionProvider",
    "numpy": "NumPy",
}
FOLDED = "constant"
_SEMANTICS = ("onnx", "onnxruntime")


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What became of one node of the file.

    Parameters
    ----------
    name, op : str
        As in the file.
    engine : str
        ``polyconv``, ``onnxruntime``, ``onnx.reference``, ``openvino``, ``numpy``, or ``constant`` for a
        node that is computed before the first run.
    step : int or None
        Nodes with one number run as one.
    problem : str or None
        The convolution that ran last, as ``polyconv.Problem`` spells it.
    seconds : float or None
        Time of the whole step in the last run; None before it.
    once : bool
        Whether its weights come with each run: every run prepares them, and its plan counts that.
    """

    name: str
    op: str
    engine: str
    step: int | None = None
    problem: str | None = None
    seconds: float | None = None
    once: bool = False


class InferenceSession:
    """A model, ready to run.

    Parameters
    ----------
    path_or_bytes : str, PathLike or bytes
        An ONNX file (with its external data beside it) or an OpenVINO IR (``model.xml`` finds
        ``model.bin`` beside it), or the content of one.
    sess_options : object, optional
        onnxruntime's SessionOptions; its ``intra_op_num_threads`` counts as ``threads``.
    providers, provider_options : sequence, optional
        Accepted and kept, as convolutions run here and all else on what is installed.
    weights : bytes, optional
        The .bin file of an IR given as bytes.
    semantics : str
        ``onnx``, or ``onnxruntime`` where that deviates.
    accuracy, threads, workspace_limit : optional
        As for ``polyconv.conv``; None is the setting.

    Raises
    ------
    ModelError
        If the file is damaged or one of its nodes is invalid; the node is named.
    Unsupported
        If a package is missing, or nothing that is installed can run a node.
    OSError
        If the file cannot be read.
    """

    def __init__(
        self,
        path_or_bytes: str | PathLike[str] | bytes,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        *,
        weights: bytes | None = None,
        semantics: str = "onnx",
        accuracy: str | None = None,
        threads: int | None = None,
        workspace_limit: int | None = None,
    ) -> None:
        if semantics not in _SEMANTICS:
            raise ArgumentError(f"semantics={shorten(semantics)!r} is not known; choose onnx or onnxruntime")
        if threads is None:
            threads = getattr(sess_options, "intra_op_num_threads", 0) or None
        for name, value in (
            ("accuracy", accuracy),
            ("threads", threads),
            ("workspace_limit", workspace_limit),
        ):
            resolve(name, value)  # refuses what is invalid, before the file is read
        self.sess_options, self.providers, self.provider_options = sess_options, providers, provider_options
        self._options = Options(semantics, accuracy, threads, workspace_limit)
        graph = read_model(path_or_bytes, weights)
        self._inputs, self._defaults, self._aliases = graph.inputs, graph.defaults, graph.aliases
        self._program = compiled(graph, frozenset(), self._options)
        self._outputs = tuple(
            _described(v, n, self._program) for v, n in zip(graph.outputs, graph.results, strict=True)
        )
        self._results = dict(zip((v.name for v in graph.outputs), graph.results, strict=True))
        # A run may feed an input that has a default; its program is another, made when it first does.
        self._graph = graph if graph.defaults else None
        self._programs: dict[frozenset[str], Program] = {frozenset(): self._program}
        self._last: tuple[Program, list[float | None]] | None = None

    def get_inputs(self) -> list[Value]:
        """What a run must be fed: objects with name, shape and type."""
        return [value for value in self._inputs if value.name not in self._defaults]

    def get_overridable_initializers(self) -> list[Value]:
        """What a run may be fed in place of a default."""
        return [value for value in self._inputs if value.name in self._defaults]

    def get_outputs(self) -> list[Value]:
        """What a run returns: objects with name, shape and type."""
        return list(self._outputs)

    def get_providers(self) -> list[str]:
        """Who runs the nodes, ours first."""
        engines = dict.fromkeys(step.segment.engine for step in self._program.steps)
        return [PROVIDER, *dict.fromkeys(_HOST_PROVIDERS[e] for e in engines if e in _HOST_PROVIDERS)]

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Array]:
        """Compute outputs.

        Parameters
        ----------
        output_names : sequence of str or None
            Which; None is all.
        input_feed : mapping
            Input names to arrays of their types and shapes.
        run_options : object, optional
            Accepted for onnxruntime's sake.

        Returns
        -------
        list of ndarray
            The outputs in the order of their names, each in memory of its own.

        Raises
        ------
        ArgumentError
            If an input or output is unknown, an input is missing, or its shape does not fit.
        DtypeError
            If an input has another element type.
        ModelError
            If a node fails; it is named.
        OutOfMemory
            If the system does not give the memory for a result.
        """
        feeds = self._checked(input_feed)
        if isinstance(output_names, str | bytes) or not isinstance(output_names, Iterable | None):
            raise ArgumentError(
                f"output_names={shorten(output_names)!r} is no list of names; the model's outputs are "
                f"{shorten(list(self._results))}"
            )
        wanted = (
            [v.name for v in self._outputs]
            if output_names is None
            else [self._output(n) for n in output_names]
        )
        overridden = self._defaults.intersection(feeds)
        program = self._programs.get(overridden)
        if program is None:
            assert self._graph is not None  # kept wherever there are defaults
            program = self._programs.setdefault(overridden, compiled(self._graph, overridden, self._options))
        results, seconds = program.run(feeds, [self._results[name] for name in wanted])
        self._last = program, seconds
        return results

    @property
    def nodes(self) -> tuple[NodeRecord, ...]:
        """What ran where: a record for every node of the file that the outputs need."""
        program, seconds = self._last or (self._program, [None] * len(self._program.steps))
        records = [NodeRecord(node.name, node.op, FOLDED) for node in program.folded]
        for index, (step, time) in enumerate(zip(program.steps, seconds, strict=True)):
            segment = step.segment
            about = segment.engine, index, segment.problem(), time, segment.once
            records += [NodeRecord(node.name, node.op, *about) for node in step.nodes]
        return tuple(records)

    def profile(self) -> dict[str, float]:
        """Seconds of the last run by engine."""
        totals: dict[str, float] = {}
        if self._last is not None:
            program, seconds = self._last
            for step, time in zip(program.steps, seconds, strict=True):
                totals[step.segment.engine] = totals.get(step.segment.engine, 0.0) + (time or 0.0)
        return totals

    def _output(self, name: str) -> str:
        known = isinstance(name, str)
        found = name if known and name in self._results else self._aliases.get(name, "") if known else ""
        if found not in self._results:
            raise ArgumentError(
                f"output_names has {shorten(name)!r}; the model's outputs are {shorten(list(self._results))}"
            )
        return found

    def _checked(self, input_feed: Mapping[str, Any]) -> dict[str, Array]:
        by_name = {value.name: value for value in self._inputs}
        if not isinstance(input_feed, Mapping):
            raise ArgumentError(
                f"input_feed is of type {type(input_feed).__name__}; give a dict from the model's inputs, "
                f"{shorten(list(by_name))}, to arrays"
            )
        feeds: dict[str, Array] = {}
        for given, array in input_feed.items():
            name = given if given in by_name else self._aliases.get(given, "")
            if name not in by_name:
                raise ArgumentError(
                    f"input_feed has {shorten(given)!r}; the model's inputs are {shorten(list(by_name))}"
                )
            if name in feeds:
                raise ArgumentError(f"input_feed has {shorten(name)!r} twice, once as {shorten(given)!r}")
            feeds[name] = _fed(by_name[name], array)
        for name in by_name:
            if name not in feeds and name not in self._defaults:
                raise ArgumentError(
                    f"input_feed lacks {name!r}; the model's inputs are {shorten(list(by_name))}"
                )
        return feeds


def read_model(path_or_bytes: str | PathLike[str] | bytes, weights: bytes | None = None) -> Graph:
    """Read a model file, or the content of one; see ``InferenceSession``."""
    path: Path | None = None
    if isinstance(path_or_bytes, bytes | bytearray | memoryview):
        data = bytes(path_or_bytes)
    elif isinstance(path_or_bytes, str | PathLike):
        path = Path(fspath(path_or_bytes))
        if "\0" in str(path) or path.is_char_device() or path.is_block_device():  # of a device there is no end
            raise ArgumentError(f"path_or_bytes={shorten(str(path))!r} is no model file; give the path of one")
        data = path.read_bytes()
    else:
        raise ArgumentError(
            f"path_or_bytes is of type {type(path_or_bytes).__name__}; give a path or a file's bytes"
        )
    if data[:64].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        return read_openvino(data, weights, path)
    if weights is not None:
        raise ArgumentError("weights= is the .bin of an OpenVINO IR; an ONNX model takes none")
    return read_onnx(data, None if path is None else path.parent)


def host_of(graph: Graph) -> Host:
    """Who runs a graph's other nodes."""
    return _HOSTS[graph.format][0]


def compiled(graph: Graph, overridden: frozenset[str], options: Options) -> Program:
    """Make a graph ready to run; ``overridden`` are the inputs with defaults that runs will feed."""
    host, views = _HOSTS[graph.format]
    return compile_graph(graph, overridden, options, host, views)


def _described(declared: Value, result: str, program: Program) -> Value:
    """An output as the file declares it; what it leaves open, the engines may know."""
    known = program.values.get(result, declared)
    return Value(
        declared.name, declared.type or known.type, declared.dims if declared.dims is not None else known.dims
    )


def _fed(value: Value, given: Any) -> Array:
    """An input as an array of the model's type; its shape fits what the model declares."""
    element = BY_TYPE.get(value.type)
    if element is None:  # a sequence or a type the file does not tell: its host looks at it
        return given  # type: ignore[no-any-return]
    if isinstance(given, np.ma.MaskedArray):
        raise ArgumentError(
            f"the input {value.name!r} is a masked array, whose mask would be lost; give .filled(...)"
        )
    try:
        array = np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"the input {value.name!r} cannot be read as an array ({shorten(str(error))}); give a NumPy array"
        ) from None
    if element.type == "tensor(string)":
        fits = array.dtype.kind in "OUST"
    else:
        fits = array.dtype == element.numpy or array.dtype.newbyteorder("=") == element.numpy
    if not fits:
        raise DtypeError(
            f"the input {value.name!r} has dtype {array.dtype}, the model wants {element.numpy} "
            f"({value.type}): convert it with .astype(...)"
        )
    if value.dims is not None:
        agrees = len(array.shape) == len(value.dims) and all(
            not isinstance(wanted, int) or wanted == got
            for wanted, got in zip(value.dims, array.shape, strict=True)
        )
        if not agrees:
            raise ArgumentError(
                f"the input {value.name!r} has shape {array.shape}, the model wants {list(value.dims)}: "
                f"reshape it"
            )
    return native_order(array, f"the input {value.name!r}")
