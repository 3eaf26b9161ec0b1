"""Nodes that polyconv computes itself beside convolutions, made ready to run.

Turns nodes of ONNX's main domain into segments of ``polyconv.operators``: a view, an operator of its own, or a pass
over several element-wise ones.  The one idea: what is known of a node's inputs decides who runs it, before anything
is made.  It must not know how an operator is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from polyconv.dtypes import DTYPES
from polyconv.errors import Error, ModelError
from polyconv.models.convolution import ENGINE
from polyconv.models.elements import BY_TYPE, type_of
from polyconv.models.graph import Array, Node, Value
from polyconv.models.limits import shorten
from polyconv.models.segment import Segment
from polyconv.operators.elementwise import Fragment
from polyconv.operators.fusing import Fused, Member, planned
from polyconv.operators.job import Known, Operation, Own
from polyconv.operators.running import Planned
from polyconv.operators.table import OPERATORS, Taken, taken

__all__ = ["OPERATORS", "fused_segment", "native", "own_segment", "pass_of"]


def native(node: Node, known: Callable[[str], Value], constants: Mapping[str, Array]) -> Taken | str:
    """What runs a node on polyconv's own kernels, or why nothing does."""
    if node.domain:
        return f"operators of {node.domain} are not computed here"
    if node.captured or not all(node.outputs):
        return "it holds a subgraph, or leaves results out"

    def of(name: str) -> Known:
        value = known(name)
        element = BY_TYPE.get(value.type)
        dims = None if value.dims is None else tuple(d if isinstance(d, int) else None for d in value.dims)
        return Known("" if element is None else element.numpy.name, dims, constants.get(name))

    inputs = tuple(of(name) if name else None for name in node.inputs)
    return taken(Operation(node.op, node.version, node.attributes, inputs, len(node.outputs)))


def pass_of(nodes: Sequence[Node], fragments: Mapping[Node, Fragment], results: Sequence[str],
            constants: Mapping[str, Array]) -> tuple[tuple[str, ...], Fused]:  # fmt: skip
    """Element-wise nodes in running order as one pass, and the names of the values that it reads."""
    made = {name for node in nodes for name in node.writes}
    read = [node.inputs[at] for node in nodes for at in fragments[node].reads]
    outside = [name for name in dict.fromkeys(read) if name not in made]
    inputs = tuple(name for name in outside if name not in constants)
    held = [name for name in outside if name in constants]
    numbers = {name: at for at, name in enumerate((*inputs, *held))}
    members = []
    for node in nodes:
        fragment = fragments[node]
        members.append(Member(fragment, tuple(numbers[node.inputs[at]] for at in fragment.reads)))
        numbers[node.outputs[0]] = len(numbers)
    arrays = tuple(np.asarray(constants[name]) for name in held)
    return inputs, Fused(len(inputs), arrays, tuple(members), tuple(numbers[name] for name in results))


def fused_segment(nodes: Sequence[Node], fragments: Mapping[Node, Fragment], results: Sequence[str],
                  constants: Mapping[str, Array], threads: int | None) -> tuple[tuple[str, ...], Segment]:  # fmt: skip
    """The segment of element-wise nodes that run as one pass, and the names of the values that it reads."""
    inputs, fused = pass_of(nodes, fragments, results, constants)
    dtypes = {node.outputs[0]: _result_dtype(fragments[node]) for node in nodes}
    outputs = tuple(Value(name, type_of(DTYPES[dtypes[name]].numpy)) for name in results)
    label = nodes[0].label if len(nodes) == 1 else f"{nodes[0].label} and {len(nodes) - 1} nodes after it"
    return inputs, _segment(label, outputs, Planned(lambda given, c: planned(fused, given, c), threads))


def _result_dtype(fragment: Fragment) -> str:
    return fragment.expression.dtype(fragment.expression.results[0])


def own_segment(node: Node, found: Taken, constants: Mapping[str, Array], threads: int | None
                ) -> tuple[tuple[str, ...], Segment]:  # fmt: skip
    """The segment of a view, or of an operator that runs alone, and the names of the values that it reads."""
    if isinstance(found, Own):
        outputs = tuple(
            Value(name, type_of(DTYPES[dtype].numpy)) for name, dtype in zip(node.outputs, found.dtypes, strict=True)
        )
        planner = Planned(found.planner, threads)
        return tuple(node.inputs[at] for at in found.reads), _segment(node.label, outputs, planner)
    assert not isinstance(found, Fragment)
    look = found
    reads = tuple(name for name in node.reads if name not in constants)
    held = {name: np.asarray(constants[name]) for name in node.reads if name in constants}

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        values = held | dict(zip(reads, arrays, strict=True))
        with _named(node.label):
            return look([values[name] if name else None for name in node.inputs])

    return reads, Segment(ENGINE, tuple(Value(name) for name in node.outputs), run, views=True)


class _named:  # noqa: N801 - read as a word in a with statement
    """Errors within the block say which nodes they are of."""

    def __init__(self, label: str) -> None:
        self._label = label

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Error):
            raise type(error)(f"{self._label}: {error}") from error
        if isinstance(error, ValueError | TypeError | IndexError | OverflowError):
            raise ModelError(f"{self._label} cannot be computed: {shorten(str(error))}") from error


def _segment(label: str, outputs: tuple[Value, ...], planner: Planned) -> Segment:
    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        with _named(label):
            return planner(arrays)

    return Segment(ENGINE, outputs, run)
