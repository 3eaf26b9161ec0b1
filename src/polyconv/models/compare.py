"""A model held against another engine, one step at a time.

Every step that polyconv runs, with the nodes that it stands for, also runs on the engine that runs the
model's other nodes, on the very arrays that reached it: so a difference belongs to the nodes that show it, not
to some before them.  It knows no engine by name and no file format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES, of_array
from polyconv.errors import Error, ModelError
from polyconv.models.building import compiled, host_of
from polyconv.models.elements import type_of
from polyconv.models.graph import Array, Graph, Node, Value
from polyconv.models.options import Options
from polyconv.models.reading import read_model
from polyconv.models.segment import ENGINE, Segment
from polyconv.models.steps import Step
from polyconv.settings import resolve

__all__ = ["Compared", "Difference", "compared", "difference"]


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two results lie apart.

    Parameters
    ----------
    rms, largest : float
        Of the differences, in units of the rms of the other engine's finite values.
    outputs : int
        How many lie beyond the tolerance, or are not finite where the other's are.
    size : int
        How many there are.
    """

    rms: float
    largest: float
    outputs: int
    size: int


@dataclass(frozen=True, slots=True)
class Compared:
    """One step of a model.

    Parameters
    ----------
    nodes, ops : tuple of str
        The nodes of the file that it stands for.
    problem : str
        The convolution that ran; empty where the step is none.
    engine : str
        Who else ran them; empty if nobody could.
    found : Difference or None
        None where there is nothing to compare.
    remark : str
        Why there is not.
    arrays : mapping
        What went in and came out of both, where they differ.
    """

    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    problem: str
    engine: str
    found: Difference | None
    remark: str = ""
    arrays: Mapping[str, Array] = field(default_factory=dict, repr=False)


def difference(ours: Array, theirs: Array, tolerance: float | None = None) -> Difference:
    """Compare two results.

    Parameters
    ----------
    tolerance : float, optional
        In units of the rms of ``theirs``.  By default a thousand roundings of the accumulator (f32, or f64 for
        f64) and four of the result's type; integers must be equal.
    """
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return Difference(float("inf"), float("inf"), max(ours.size, 1), ours.size)
    kind = of_array(ours.dtype if ours.dtype != np.bool_ else np.dtype(np.uint8), "the result")
    if kind.is_float and tolerance is None:
        tolerance = 1000 * DTYPES["f64" if kind.name == "f64" else "f32"].eps + 4 * kind.eps
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(all="ignore"):
        apart = np.where(finite, np.abs(a - b), 0.0)
    scale = _rms(b[finite]) or 1.0
    if kind.is_float:
        wrong = np.where(finite, apart > (tolerance or 0.0) * scale, ~((a == b) | (np.isnan(a) & np.isnan(b))))
    else:
        wrong = ours != theirs if tolerance is None else apart > tolerance * scale
    return Difference(_rms(apart) / scale, float(apart.max(initial=0.0)) / scale, int(wrong.sum()), ours.size)


def _rms(values: NDArray[np.float64]) -> float:
    largest = float(np.abs(values).max(initial=0.0))
    if largest in (0.0, float("inf")):
        return largest
    return largest * float(np.sqrt(np.mean(np.square(values / largest))))  # squares stay within the range


def compared(path: str | PathLike[str], feeds: Mapping[str, Array], *, semantics: str = "onnx",
             tolerance: float | None = None, progress: Callable[[int, int], None] = lambda done, total: None,
             ) -> Iterator[Compared]:  # fmt: skip
    """Run a model on polyconv and every step that polyconv computes also on the engine of its other nodes.

    Parameters
    ----------
    path : str or PathLike
        An ONNX file or an OpenVINO IR.
    feeds : mapping
        Graph inputs.
    semantics : str
        As for ``InferenceSession``.
    tolerance : float, optional
        As for ``difference``.
    progress : callable
        Told how many steps are done, and of how many.

    Yields
    ------
    Compared
        One for each step, in running order.

    Raises
    ------
    ModelError, Unsupported, OSError
        As ``InferenceSession``.
    """
    graph = read_model(path)
    options = Options(semantics, resolve("accuracy"), resolve("threads"), resolve("workspace_limit"))
    program = compiled(graph, graph.defaults.intersection(feeds), options)
    values = {**program.constants, **feeds}
    total, done = sum(step.segment.engine == ENGINE for step in program.steps), 0
    of_file = {*values, *graph.constants, *(name for node in graph.nodes for name in node.writes)}
    group: list[_Ran] = []
    for step in program.steps:
        arrays = [values[name] for name in step.reads]
        made = step.segment.run(arrays)
        values.update(zip(step.writes, made, strict=False))
        group.append(_Ran(step, made))
        is_between = not of_file.issuperset(step.writes) and step is not program.steps[-1]
        if is_between and len(group) < _MOST_TOGETHER:
            continue
        own = sum(ran.step.segment.engine == ENGINE for ran in group)
        if own:
            yield _held_against(graph, group, values, of_file, tolerance)
            done += own
            progress(done, total)
        group = []


_MOST_TOGETHER = 8
"""Steps that are held against another engine as one, as those between make values that a rewrite put in."""


@dataclass(frozen=True, slots=True)
class _Ran:
    """A step that ran, and what it made."""

    step: Step
    made: Sequence[Array]


def _held_against(graph: Graph, group: Sequence[_Ran], values: Mapping[str, Array], of_file: AbstractSet[str],
                  tolerance: float | None) -> Compared:  # fmt: skip
    """Steps, most often a single one, beside the nodes between what was there before and what they write of the file.

    These may read more than the steps do, as extents of which a rewrite has made constants.
    """
    nodes = tuple(dict.fromkeys(node for ran in group for node in ran.step.nodes))
    names, ops = tuple(node.name for node in nodes), tuple(node.op for node in nodes)
    problem = next((text for ran in group if (text := ran.step.segment.problem())), "")
    made = {name: a for ran in group for name, a in zip(ran.step.writes, ran.made, strict=False)}
    reads = {name for ran in group for name in ran.step.reads if name not in made}
    writes = {name: np.asarray(a) for name, a in made.items() if name in of_file}
    try:
        if not writes or not reads <= of_file:
            raise ModelError("it stands between values of a rewrite, which the file does not have")
        known = {name: a for name, a in values.items() if name in of_file and name not in made}
        given, other = _other(graph, known, tuple(writes))
        theirs = other.run(list(given.values()))
    except Error as error:
        return Compared(names, ops, problem, "", None, str(error))
    founds = [difference(a, np.asarray(b), tolerance) for a, b in zip(writes.values(), theirs, strict=False)]
    worst = max(founds, key=lambda f: (f.outputs, f.largest))
    kept: dict[str, Array] = {}
    if worst.outputs:
        kept = {f"input {name}": a for name, a in given.items()}
        for engine, results in ((ENGINE, writes.values()), (other.engine, theirs)):
            kept |= {f"{engine} {name}": a for name, a in zip(writes, results, strict=False)}
    return Compared(names, ops, problem, other.engine, worst, "", kept)


def _other(graph: Graph, known: Mapping[str, Array], writes: Sequence[str]) -> tuple[dict[str, Array], Segment]:
    """The nodes between values that are known and values that are written, on the host, and which they read."""
    makers: dict[str, Node] = {name: node for node in graph.nodes for name in node.writes}
    nodes: dict[Node, None] = {}
    constants, given = dict[str, Array](), dict[str, Array]()
    waiting = list(writes)
    while waiting:
        name = waiting.pop()
        if name in graph.constants and name not in makers:
            constants[name] = graph.constants[name]
        elif name in known:
            given[name] = known[name]
        elif makers[name] not in nodes:
            nodes[makers[name]] = None
            waiting.extend(makers[name].reads)
    order = {node: at for at, node in enumerate(graph.nodes)}
    inputs = [Value(name, type_of(a.dtype), a.shape) for name, a in given.items()]
    return given, host_of(graph)(
        graph, sorted(nodes, key=order.__getitem__), inputs, writes, constants, int(resolve("threads"))
    )
