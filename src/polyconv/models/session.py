"""``InferenceSession``: a model file made ready once and run on arrays, in onnxruntime's manner.

Reads the file, checks what a run is fed and keeps the books on what ran where.  The one idea: every
convolution runs on polyconv, every other node on the host that is installed, and ``nodes`` says which.
What few sessions need is imported by those, as a third of a small network's start is imports.
It must not know what a node means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from threading import Thread
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from polyconv.errors import ArgumentError
from polyconv.models.asked import Names
from polyconv.models.feeding import fed
from polyconv.models.gpu_runs import fed_there, run_there, stream_for, wait_unless_left
from polyconv.models.graph import Array, ModelMetadata, Value
from polyconv.models.limits import shorten
from polyconv.models.options import Options
from polyconv.models.ort_value import OrtValue
from polyconv.models.program import Program
from polyconv.models.promised import Promised
from polyconv.models.providers import CPU, GPU, PROVIDER, device_asked_for, provider_options_of
from polyconv.models.reading import read_model, source_of, with_dimensions
from polyconv.models.records import Memory, NodeRecord, StepRecord, memory_of, nodes_of, steps_of
from polyconv.models.session_options import GraphOptimizationLevel, SessionOptions, warn_of_ignored
from polyconv.models.steps import Times
from polyconv.models.trace import Trace
from polyconv.names import checked

if TYPE_CHECKING:
    from polyconv.models.io_binding import IOBinding

__all__ = ["InferenceSession", "Memory", "NodeRecord", "StepRecord"]

_HOST_PROVIDERS: Mapping[str, str] = {
    "onnxruntime": "CPUExecutionProvider",
    "onnx.reference": "ReferenceEvaluator",
    "openvino": "OpenVINOExecutionProvider",
    "numpy": "NumPy",
}


class InferenceSession:
    """A model, ready to run; docs/sessions.md says what of onnxruntime's interface it has.

    Parameters
    ----------
    path_or_bytes : str, PathLike, bytes or onnx.ModelProto
        An ONNX file (with its external data beside it) or an OpenVINO IR (``model.xml`` finds
        ``model.bin`` beside it), or the content of one.
    sess_options : SessionOptions, optional
        polyconv's or onnxruntime's; ``intra_op_num_threads`` counts as ``threads``.
    providers, provider_options : sequence, optional
        ``CUDAExecutionProvider`` first runs all on a GPU, of the number ``device_id``; nodes without a kernel there run
        on the CPU if ``CPUExecutionProvider`` is named as well, and are an error if not.  Others are kept.
    weights : bytes, optional
        The .bin file of an IR given as bytes.
    semantics : str
        ``onnx``, or ``onnxruntime`` where that deviates.
    rewrites : str
        ``all``; or ``exact``, which leaves out what may change a bit of a result: BatchNormalization and factors in
        the weights before them, quantised graphs in integers, products as convolutions, activations that are spelled
        out.  ``graph_optimization_level=ORT_DISABLE_ALL`` says ``exact`` too.
    layout : str, optional
        How values lie in memory between steps: ``channels_last``, as the ``model`` has their axes, or ``auto``, what is
        predicted to be faster; with ``rewrites="exact"`` that is the model's.  None is the setting.
    accuracy, threads, workspace_limit : optional
        As for ``polyconv.conv``; None is the setting.

    Notes
    -----
    A session pickles as what it was made from: a path, or the file's bytes, which it then keeps.

    Warns
    -----
    IgnoredWarning
        For each option and provider that has no effect here, by name.

    Raises
    ------
    ModelError
        If the file is damaged or one of its nodes is invalid; the node is named.
    Unsupported
        If a package is missing, or nothing that is installed can run a node; if a GPU is asked for alone and there is
        none, or it has no kernel for a node.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> import numpy as np, onnx.parser, polyconv
    >>> model = onnx.parser.parse_model('''
    ...     <ir_version: 10, opset_import: ["" : 17]>
    ...     edges (float[1, 1, h, w] x) => (float[1, 1, h, w] y)
    ...     <float[1, 1, 1, 2] weights = {-1, 1}> { y = Conv <pads = [0, 1, 0, 0]> (x, weights) }
    ... ''')
    >>> session = polyconv.InferenceSession(model)
    >>> session.run(["y"], {"x": np.array([[[[1, 2, 4, 4]]]], np.float32)})
    [array([[[[1., 1., 2., 0.]]]], dtype=float32)]
    """

    @checked
    def __init__(
        self,
        path_or_bytes: str | PathLike[str] | bytes | Any,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        *,
        weights: bytes | None = None,
        semantics: str = "onnx",
        rewrites: str = "all",
        layout: str | None = None,
        accuracy: str | None = None,
        threads: int | None = None,
        workspace_limit: int | None = None,
    ) -> None:
        chosen = Options(semantics, accuracy, threads, workspace_limit, rewrites, layout)  # refuses what is invalid
        options = SessionOptions.of(sess_options)
        if options.graph_optimization_level == GraphOptimizationLevel.ORT_DISABLE_ALL:
            chosen = replace(chosen, rewrites="exact")
        warn_of_ignored(options)
        if threads is None:
            chosen = replace(chosen, threads=options.intra_op_num_threads or None)
        self.sess_options, self.providers, self.provider_options = sess_options, providers, provider_options
        self._provider_options = asked = options.providers | provider_options_of(providers, provider_options)
        device, is_mixed = device_asked_for(asked), CPU in asked and options.has_fallback
        self._session_options = options
        self._options = replace(chosen, device=device, is_mixed=is_mixed, is_timed=options.enable_profiling)
        source = source_of(path_or_bytes)
        graph = with_dimensions(read_model(source, weights, at_once=False), options.free_dimensions)
        self._source, self._weights = source.absolute() if isinstance(source, Path) else source, weights
        self._about = graph.about
        inputs = {value.name: value for value in graph.inputs}
        self._names = Names(inputs, tuple(value.name for value in graph.outputs), graph.defaults, graph.aliases)
        self._promised = Promised(graph, frozenset(), self._options)
        self._results = dict(zip((v.name for v in graph.outputs), graph.results, strict=True))
        # A run may feed an input that has a default; its program is another, made when it first does.
        self._graph = graph if graph.defaults else None
        self._programs: dict[frozenset[str], Promised] = {frozenset(): self._promised}
        self._last: tuple[Promised, Times] | None = None
        self._trace = Trace() if options.enable_profiling else None

    # -- what the model and the session are --------------------------------------------------------

    def get_inputs(self) -> list[Value]:
        """What a run must be fed: objects with name, shape and type."""
        return [value for value in self._names.inputs.values() if value.name not in self._names.defaults]

    def get_overridable_initializers(self) -> list[Value]:
        """What a run may be fed in place of a default."""
        return [value for value in self._names.inputs.values() if value.name in self._names.defaults]

    def get_outputs(self) -> list[Value]:
        """What a run returns: objects with name, shape and type."""
        return list(self._promised.outputs)

    def get_modelmeta(self) -> ModelMetadata:
        """What the file says of itself: producer, version, descriptions, its own keys."""
        return self._about

    def get_providers(self) -> list[str]:
        """Who runs the nodes, ours first."""
        segments = [step.segment for step in self._promised.program.steps]
        hosts = dict.fromkeys(_HOST_PROVIDERS[s.engine] for s in segments if s.engine in _HOST_PROVIDERS)
        return [PROVIDER if self._options.device is None else GPU, *hosts]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Who runs the nodes, with the options that were given; none has an effect."""
        return {name: self._provider_options.get(name, {}) for name in self.get_providers()}

    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Any] | None = None
    ) -> None:
        """Take other providers; where they ask for another device, the session is made anew from its source."""
        asked = provider_options_of(providers, provider_options)
        if device_asked_for(asked) == self._options.device:
            self._provider_options, self.providers, self.provider_options = asked, providers, provider_options
            return
        make, (source, options, _, _, keywords) = self.__reduce__()
        self.__dict__.update(make(source, options, providers, provider_options, keywords).__dict__)

    def get_session_options(self) -> SessionOptions:
        """The options that the session was made with; changing them changes nothing here."""
        return self._session_options.copy()

    def disable_fallback(self) -> None:
        """Do nothing: there is no provider to fall back from."""

    def enable_fallback(self) -> None:
        """Do nothing: there is no provider to fall back from."""

    def __repr__(self) -> str:
        """``InferenceSession('model.onnx': x[1, 3, h, w] -> y[1, 10]; nodes: 20 polyconv, 4 onnxruntime)``."""
        where = repr(str(self._source)) if isinstance(self._source, Path) else f"{len(self._source)} bytes"
        pairs = self.get_inputs(), self.get_outputs()
        ends = (", ".join(f"{shorten(v.name, 40)}{v.shape}" for v in e) for e in pairs)
        engines = Counter(record.engine for record in self.nodes)
        ran = ", ".join(f"{count} {engine}" for engine, count in engines.most_common())
        return f"InferenceSession({where}: {shorten(' -> '.join(ends), 400)}; nodes: {ran or 'none'})"

    def __reduce__(self) -> tuple[Any, ...]:
        o = self._options
        keywords = {
            "weights": self._weights, "semantics": o.semantics, "accuracy": o.accuracy, "threads": o.threads,
            "workspace_limit": o.workspace_limit, "rewrites": o.rewrites, "layout": o.layout,
        }  # fmt: skip
        return _opened, (self._source, self._session_options, self.providers, self.provider_options, keywords)

    # -- running -----------------------------------------------------------------------------------

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Array]:
        """Compute outputs.

        Parameters
        ----------
        output_names : sequence of str or None
            Which; None, or none, is all.
        input_feed : mapping
            Input names to arrays of their types and shapes; tensors, lists and OrtValues will do.
        run_options : RunOptions, optional
            polyconv's or onnxruntime's; ``terminate`` ends the run before its next step.

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
        return self._brought_back(self._names.wanted(output_names), self._fed(input_feed), run_options)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Array], Any, str], object],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """Compute outputs in a thread of its own, as ``run`` does.

        Parameters
        ----------
        callback : callable
            ``callback(results, user_data, error)`` in that thread: the outputs and an empty str, or no outputs and
            what went wrong.
        """
        wanted, feeds = self._names.wanted(output_names), self._fed(input_feed)

        def compute() -> None:
            results: list[Array] = []
            said = ""
            try:
                results = self._brought_back(wanted, feeds, run_options)
            except Exception as error:  # whatever it is, the caller hears of it
                said = str(error) or repr(error)
            callback(results, user_data, said)

        Thread(target=compute, name="polyconv run_async").start()

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> list[OrtValue]:
        """Compute outputs as ``run`` does, from OrtValues of polyconv or onnxruntime to polyconv's."""
        return [OrtValue(a) for a in self.run(output_names, input_dict_ort_values, run_options)]

    def io_binding(self) -> IOBinding:
        """What binds inputs and outputs to memory, for ``run_with_iobinding``."""
        from polyconv.models.io_binding import IOBinding

        return IOBinding(self, lambda name, given: self._read(self._names.input(name), given), self._names.outputs)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Compute the bound outputs from the bound inputs.

        On a GPU this returns when they are there; the entry ``disable_synchronize_execution_providers`` of
        ``run_options`` set to ``1`` leaves them to the stream on which they are made, as does one that is captured.

        Raises
        ------
        ArgumentError
            If the binding is another session's, no output is bound, an input is missing, or the memory bound to an
            output has not its shape and type.
        """
        from polyconv.models.gpu_replay import into

        if getattr(iobinding, "session", None) is not self:
            raise ArgumentError("iobinding is of another session; make one with this session's io_binding()")
        if not iobinding.outputs:
            raise ArgumentError("iobinding has no output; bind one with bind_output(name)")
        feeds, device = self._fed(iobinding.inputs), self._options.device
        wanted = self._names.wanted(list(iobinding.outputs))
        targets = iobinding.targets(self._results)
        with stream_for((*feeds.values(), *targets.values()), device), into(targets, feeds.values(), device):
            iobinding.filled(self._run(wanted, feeds, run_options))
            wait_unless_left(run_options, device)

    def get_profiling_start_time_ns(self) -> int:
        """When profiling began, by ``time.monotonic_ns``; 0 where it did not."""
        return 0 if self._trace is None else self._trace.start_ns

    def end_profiling(self) -> str:
        """Write what ran, and when, to a file that trace viewers open; its name, or nothing if nothing is recorded."""
        trace, self._trace = self._trace, None
        return "" if trace is None else trace.written(self._session_options.profile_file_prefix)

    @property
    def nodes(self) -> tuple[NodeRecord, ...]:
        """What ran where: a record for every node of the file that the outputs need."""
        return nodes_of(*self._ran())

    @property
    def steps(self) -> tuple[StepRecord, ...]:
        """What runs as one, in running order: nodes, results with their bytes, and the seconds of the last run."""
        return steps_of(*self._ran())

    @property
    def memory(self) -> Memory:
        """Bytes of a run for all outputs, by the extents that are known: before any run where the file states them."""
        program, _ = self._ran()
        return memory_of(program, list(self._results.values()))

    def profile(self) -> dict[str, float]:
        """Seconds of the last run by engine."""
        totals: dict[str, float] = {}
        program, seconds = self._ran()
        for step, time in zip(program.steps, seconds, strict=True):
            if time is not None:
                totals[step.segment.engine] = totals.get(step.segment.engine, 0.0) + time
        return totals

    def _ran(self) -> tuple[Program, list[float | None]]:
        """The program that ran last, and the seconds of its steps."""
        promised, times = self._last or (self._promised, None)
        program = promised.program
        return program, (times or Times(len(program.steps))).seconds()

    def _fed(self, input_feed: Mapping[str, Any]) -> dict[str, Array]:
        return self._names.fed(input_feed, self._read)

    def _read(self, value: Value, given: Any) -> Any:
        device = self._options.device
        return fed(value, given) if device is None else fed_there(value, given, device)

    def _brought_back(self, wanted: Sequence[str], feeds: Mapping[str, Any], run_options: Any) -> list[Array]:
        """Outputs in the CPU's memory."""
        if self._options.device is None:
            return self._run(wanted, feeds, run_options)
        from polyconv.models.on_gpu import brought_back

        with stream_for(feeds.values(), self._options.device):
            return [brought_back(a) for a in self._run(wanted, feeds, run_options)]

    def _run(self, wanted: Sequence[str], feeds: Mapping[str, Array], run_options: Any) -> list[Array]:
        """Outputs by name, of inputs that are checked."""
        overridden = frozenset(self._names.defaults).intersection(feeds)
        promised = self._programs.get(overridden)
        if promised is None:
            assert self._graph is not None  # kept wherever there are defaults
            promised = self._programs.setdefault(overridden, Promised(self._graph, overridden, self._options))
        began, trace = monotonic_ns(), self._trace

        def is_halted() -> bool:
            return bool(getattr(run_options, "terminate", False))

        named = [self._results[name] for name in wanted]
        device = self._options.device
        results, times = (
            promised.run(feeds, named, is_halted) if device is None
            else run_there(promised.program, feeds, named, is_halted, device)
        )  # fmt: skip
        if trace is not None:
            trace.add_run(promised.program, times.seconds(), began)
        self._last = promised, times
        return results


def _opened(source: Path | bytes, options: SessionOptions, providers: Any, provider_options: Any,
            keywords: dict[str, Any]) -> InferenceSession:  # fmt: skip
    return InferenceSession(source, options, providers, provider_options, **keywords)
