"""The fuzz of whole graphs: a count and a seed in, every result outside its enclosure out, with a model that shows it.

Each graph is run by a session of polyconv in several ways, as an IR that OpenVINO makes of it too, and by onnxruntime,
and all are judged by the enclosures.
The one idea: a graph that fails is made smaller while it fails, and kept as a file.  It must not know how graphs grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from polyconv.conformance.enclosure_rules import enclosed
from polyconv.conformance.enclosures import Array, Enclosure
from polyconv.conformance.graphs import Drawn, drawn
from polyconv.conformance.trial import same_bits
from polyconv.dataclass import dataclass
from polyconv.models.exact_sums import ask_for_exact_sums
from polyconv.models.session import InferenceSession
from polyconv.settings import for_the_process

if TYPE_CHECKING:
    from onnx import ModelProto

__all__ = ["Finding", "Report", "complaint", "complaints", "run", "saved", "smaller"]

_MOST_SMALLER = 60
"""Tries at making a graph smaller."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One graph with a wrong result.

    Parameters
    ----------
    index : int
        With the seed it names the graph.
    engine : str
        ``polyconv`` or ``onnxruntime``.
    graph : str
        Its operators.
    message : str
        What is wrong.
    file : str
        The model that shows it, with its inputs in a .npz beside it; empty where none was written.
    """

    index: int
    engine: str
    graph: str
    message: str
    file: str = ""

    def __str__(self) -> str:
        again = f"; polyconv compare {self.file} -i {Path(self.file).with_suffix('.npz')}" if self.file else ""
        return f"{self.engine}: {self.graph}: {self.message}{again}"


@dataclass(slots=True)
class Report:
    """Where a campaign stands.

    Parameters
    ----------
    seed, next : int
    nodes : dict
        How many of each operator were run.
    outcomes : dict
        How onnxruntime fared, and on how many graphs.
    findings : list of Finding
    """

    seed: int
    next: int = 0
    nodes: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def mismatches(self) -> list[Finding]:
        """Findings of polyconv's own."""
        return [f for f in self.findings if f.engine == "polyconv"]


def run(count: int, seed: int = 0, *, folder: Path | None = None, progress: Callable[[Report], None] | None = None
        ) -> Report:  # fmt: skip
    """Try the graphs 0 .. count - 1 of a seed.

    Parameters
    ----------
    count, seed : int
    folder : Path, optional
        Where models that show a mismatch are written.
    progress : callable, optional
        Called with the report after every graph.
    """
    with for_the_process("kept_runs", "0"):  # sessions go all of their way
        return _run(count, seed, folder, progress)


def _run(count: int, seed: int, folder: Path | None, progress: Callable[[Report], None] | None) -> Report:
    report = Report(seed)
    for index in range(count):
        graph = drawn(seed, index)
        for node in graph.model.graph.node:
            report.nodes[node.op_type] = report.nodes.get(node.op_type, 0) + 1
        wrong = complaints(graph)
        if wrong:
            shown = smaller(graph, lambda one: bool(complaints(one)))
            file = "" if folder is None else str(saved(shown, folder))
            report.findings.append(Finding(index, "polyconv", str(shown), "; ".join(wrong), file))
        outcome, said = _of_onnxruntime(graph)
        report.outcomes[outcome] = report.outcomes.get(outcome, 0) + 1
        report.findings += [Finding(index, "onnxruntime", str(graph), message) for message in said]
        report.next = index + 1
        if progress is not None:
            progress(report)
    return report


def complaints(graph: Drawn) -> list[str]:
    """What is wrong with polyconv's answers to a graph: nothing, if the list is empty.

    The session runs twice by steps, with one set of inputs and another, then replays both, and runs for one output
    alone: no result may change by that.
    """
    names = list(graph.expected)
    feeds = {name: array.copy() for name, array in graph.feeds.items()}
    rewrites = "exact" if graph.index % 5 == 4 else "all"
    layout = "channels_last" if graph.index // 2 % 2 else "model"
    try:
        session = InferenceSession(graph.model, threads=1 + graph.index % 2, rewrites=rewrites, layout=layout)
        first = session.run(names, feeds)
        kept = [np.array(a) for a in first]
        others = {name: -array for name, array in feeds.items()}
        other = [np.array(a) for a in session.run(names, others)]
        again = session.run(names, feeds)
        other_again = session.run(names, others)
        chosen = graph.index % len(names)
        (alone,) = session.run([names[chosen]], feeds)
    except Exception as error:  # whatever it is, the campaign goes on
        return [f"raised {type(error).__name__}: {error}"]
    said = [(name, complaint(graph.expected[name], got)) for name, got in zip(names, first, strict=True)]
    found = [f"the output {name!r}: {message}" for name, message in said if message]
    if not all(map(same_bits, first, kept)):
        found.append("a later run changed an earlier one's results")
    if not all(map(same_bits, [*kept, *other], [*again, *other_again])):
        found.append("a second run gave other bits")
    if not same_bits(kept[chosen], alone):
        found.append(f"the output {names[chosen]!r} alone has other bits")
    if not all(same_bits(feeds[name], array) for name, array in graph.feeds.items()):
        found.append("an input was changed")
    return found + _complaints_of_ir(graph, rewrites)


def _complaints_of_ir(graph: Drawn, rewrites: str) -> list[str]:
    """What is wrong with the answers to an IR that OpenVINO makes of every third graph; nothing where there is none.

    What quantises becomes FakeQuantize there, which rounds otherwise: such graphs are left out.  So are those of which
    OpenVINO's own results lie outside, as its converter forgets dilations beside ``auto_pad``.
    """
    ops = {node.op_type for node in graph.model.graph.node}
    if graph.index % 3 or find_spec("openvino") is None or any("Quant" in op or "QLinear" in op for op in ops):
        return []
    import onnx

    from polyconv.conformance.guests.openvino import as_ir, run_file

    with TemporaryDirectory() as folder:
        file, names = Path(folder) / "graph.xml", [output.name for output in graph.model.graph.output]
        onnx.save(graph.model, file.with_suffix(".onnx"))
        try:
            as_ir(file.with_suffix(".onnx"), file)
        except Exception:  # OpenVINO's own
            return []
        try:
            session = InferenceSession(file, threads=1 + graph.index % 2, rewrites=rewrites)
            inputs = [value.name for value in session.get_inputs()]
            feeds = [graph.feeds[value.name] for value in graph.model.graph.input]
            results = session.run(None, dict(zip(inputs, feeds, strict=True)))
        except Exception as error:  # whatever it is, the campaign goes on
            return [f"as an IR raised {type(error).__name__}: {error}"]
        found = _outside(graph, names, results)
        try:
            return [] if found and _outside(graph, names, run_file(file, feeds)) else found
        except Exception:  # OpenVINO's own
            return found


def _outside(graph: Drawn, names: Sequence[str], results: Sequence[Array]) -> list[str]:
    said = [(name, complaint(graph.expected[name], got)) for name, got in zip(names, results, strict=True)]
    return [f"as an IR, the output {name!r}: {message}" for name, message in said if message]


def complaint(want: Enclosure, got: Array) -> str | None:
    """What is wrong with a result, in one line; None when nothing is.  Ends that are no numbers allow everything."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"is {got.dtype} {got.shape}, must be {want.dtype} {want.shape}"
    wide = got.astype(want.low.dtype)
    wrong = (wide < want.low) | (wide > want.high) | (np.isnan(wide) & np.isfinite(want.low + want.high))
    if not wrong.any():
        return None
    beyond = np.where(wrong, np.maximum(want.low - wide, wide - want.high), -np.inf)
    at = np.unravel_index(int(np.argmax(np.nan_to_num(beyond, nan=np.inf))), got.shape)
    return (
        f"{int(wrong.sum())} of {got.size} outputs wrong; worst at {tuple(map(int, at))}: got {got[at]!s}, "
        f"must lie within {want.low[at]!s} and {want.high[at]!s}"
    )


def _of_onnxruntime(graph: Drawn) -> tuple[str, list[str]]:
    """How onnxruntime fares, and what is wrong with its answers where its optimiser is not to blame."""
    if find_spec("onnxruntime") is None:
        return "not installed", []
    wrong = _wrong_in_onnxruntime(graph, is_optimised=True)
    if wrong == []:
        return "agrees", []
    plain = _wrong_in_onnxruntime(graph, is_optimised=False)
    if plain == []:
        return "agrees without its optimiser", []
    said = wrong or plain or []
    return "differs" if said else "refuses", said


def _wrong_in_onnxruntime(graph: Drawn, *, is_optimised: bool) -> list[str] | None:
    """What is wrong with onnxruntime's answers; None where it gives none."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    ask_for_exact_sums(options)
    if not is_optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(
            graph.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        results = session.run(list(graph.expected), dict(graph.feeds))
    except Exception:  # its exceptions have no common class
        return None
    said = [(n, complaint(e, a)) for (n, e), a in zip(graph.expected.items(), results, strict=True)]
    return [f"the output {name!r}: {message}" for name, message in said if message]


# -- a graph that fails, made smaller ---------------------------------------------------------------


def smaller(graph: Drawn, fails: Callable[[Drawn], bool]) -> Drawn:
    """The graph with as few outputs and nodes as a quick search finds, still failing."""
    tries = 0
    while tries < _MOST_SMALLER:
        for candidate in _candidates(graph):
            tries += 1
            if fails(candidate):
                graph = candidate
                break
            if tries >= _MOST_SMALLER:
                return graph
        else:
            return graph
    return graph


def _candidates(graph: Drawn) -> Iterator[Drawn]:
    """One output alone; then each value that can be fed instead of made, the last ones first."""
    outputs = list(graph.expected)
    if len(outputs) > 1:
        for name in outputs:
            yield _part(graph, [name], {})
    values = enclosed(graph.model, graph.feeds)
    known = {tensor.name for tensor in graph.model.graph.initializer} | set(graph.feeds) | set(outputs)
    for node in reversed(graph.model.graph.node):
        if node.op_type == "Constant":
            continue
        for name in node.output:
            if name and name not in known and values[name].dtype == np.float32:
                yield _part(graph, outputs, {name: values[name].middle.astype(np.float32)})


def _part(graph: Drawn, outputs: list[str], fed: Mapping[str, Array]) -> Drawn:
    """What some outputs need, with some values fed instead of made."""
    from onnx import TensorProto, helper

    old = graph.model.graph
    needed, nodes = set(outputs), []
    for node in reversed(old.node):
        made = [name for name in node.output if name not in fed]
        if needed.intersection(made):
            nodes.append(node)
            needed.update(node.input)
    nodes.reverse()
    feeds = {name: array for name, array in {**graph.feeds, **fed}.items() if name in needed}
    inputs = [value for value in old.input if value.name in feeds]
    new = [name for name in fed if name in feeds]
    inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, feeds[name].shape) for name in new]
    model: ModelProto = helper.make_model(
        helper.make_graph(
            nodes, old.name, inputs, [value for value in old.output if value.name in outputs],
            [tensor for tensor in old.initializer if tensor.name in needed],
        ),
        opset_imports=list(graph.model.opset_import), ir_version=graph.model.ir_version,
    )  # fmt: skip
    values = enclosed(model, feeds)
    return Drawn(graph.seed, graph.index, model, feeds, {name: values[name] for name in outputs})


def saved(graph: Drawn, folder: Path) -> Path:
    """Write ``graph-SEED-INDEX.onnx`` and its inputs beside it as .npz; the path of the model."""
    import onnx

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"graph-{graph.seed}-{graph.index}.onnx"
    onnx.save(graph.model, path)
    np.savez(path.with_suffix(".npz"), allow_pickle=False, **graph.feeds)
    return path
