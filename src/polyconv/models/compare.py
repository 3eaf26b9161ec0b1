"""A model held against another engine, one step at a time.

Every step that polyconv runs, with the nodes that it stands for, also runs on the engine that runs the
model's other nodes, on the very arrays that reached it: so a difference belongs to the nodes that show it, not
to some before them.  It knows no engine by name and no file format.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.dtypes import DTYPES, of_array
from polyconv.errors import Error, ModelError
from polyconv.models.convolution import ENGINE
from polyconv.models.elements import type_of
from polyconv.models.graph import Array, Graph, Node, Value
from polyconv.models.operators import Options
from polyconv.models.reading import compiled, host_of, read_model
from polyconv.models.segment import Segment
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
    kind = of_array(ours.dtype, "the result")
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
    total = sum(step.segment.engine == ENGINE for step in program.steps)
    done = itertools.count(1)
    for step in program.steps:
        arrays = [values[name] for name in step.reads]
        made = step.segment.run(arrays)
        values.update(zip(step.writes, made, strict=False))
        if step.segment.engine == ENGINE:
            yield _held_against(graph, step, arrays, made, tolerance)
            progress(next(done), total)


def _held_against(graph: Graph, step: Step, arrays: list[Array], made: Any, tolerance: float | None) -> Compared:
    names, ops = tuple(node.name for node in step.nodes), tuple(node.op for node in step.nodes)
    problem = step.segment.problem() or ""
    try:
        other = _other(graph, step, arrays)
        theirs = other.run(arrays)
    except Error as error:
        return Compared(names, ops, problem, "", None, str(error))
    founds = [difference(np.asarray(a), np.asarray(b), tolerance) for a, b in zip(made, theirs, strict=False)]
    worst = max(founds, key=lambda f: (f.outputs, f.largest))
    kept: dict[str, Array] = {}
    if worst.outputs:
        kept = {f"input {name}": a for name, a in zip(step.reads, arrays, strict=True)}
        for engine, results in ((ENGINE, made), (other.engine, theirs)):
            kept |= {f"{engine} {name}": a for name, a in zip(step.writes, results, strict=False)}
    return Compared(names, ops, problem, other.engine, worst, "", kept)


def _other(graph: Graph, step: Step, arrays: list[Array]) -> Segment:
    """The nodes between what a step reads and what it writes, on the host."""
    makers: dict[str, Node] = {name: node for node in graph.nodes for name in node.writes}
    nodes: dict[Node, None] = {}
    constants: dict[str, Array] = {}
    waiting = list(step.writes)
    while waiting:
        name = waiting.pop()
        if name in step.reads:
            continue
        if name in graph.constants:
            constants[name] = graph.constants[name]
        elif name not in makers:
            raise ModelError("it stands between values of a rewrite, which the file does not have")
        elif makers[name] not in nodes:
            nodes[makers[name]] = None
            waiting.extend(makers[name].reads)
    order = {node: at for at, node in enumerate(graph.nodes)}
    inputs = [Value(name, type_of(a.dtype), a.shape) for name, a in zip(step.reads, arrays, strict=True)]
    return host_of(graph)(
        graph, sorted(nodes, key=order.__getitem__), inputs, step.writes, constants, int(resolve("threads"))
    )
