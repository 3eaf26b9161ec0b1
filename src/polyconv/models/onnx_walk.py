"""Walking through an ONNX model: its nodes, those of subgraphs and functions, and all names.

Turns a model with functions into one without.  The one idea: what would never end, or grow beyond all
bounds, is counted before it is done.  It knows no operator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from polyconv.errors import ModelError
from polyconv.models.limits import MOST_NODES, shorten

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

__all__ = ["all_nodes", "captured", "domain_of", "legible", "subgraphs", "written_out"]

_GRAPH, _GRAPHS = 5, 10  # AttributeProto.AttributeType


def domain_of(domain: str) -> str:
    """A domain's one name: the main domain has two."""
    return "" if domain == "ai.onnx" else domain


def written_out(model: ModelProto) -> ModelProto:
    """``calls -> nodes``: the same model without functions.

    Raises
    ------
    ModelError
        If a function calls itself, is defined twice, or the result has more nodes than are read.
    """
    from onnx import inliner

    _check_functions(model)
    try:
        model = inliner.inline_local_functions(model)
    except Exception as error:
        raise ModelError(f"the model's functions cannot be written out: {shorten(str(error))}") from error
    return legible(model)


def _check_functions(model: ModelProto) -> None:
    """Refuse functions that call themselves, and towers of functions that would explode."""
    calls: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for function in model.functions:
        key = (domain_of(function.domain), function.name)
        if key in calls:
            raise ModelError(f"the function {shorten(function.name)!r} is defined twice")
        calls[key] = [(domain_of(n.domain), n.op_type) for n in all_nodes(function.node)]
    left = {key: iter(called) for key, called in calls.items()}
    size: dict[tuple[str, str], int] = {}
    for start in calls:
        stack = {start: None}  # in order, and quick to search
        while stack:
            key = next(reversed(stack))
            callee = next(left[key], None)
            if callee is None:
                size[key] = sum(size.get(c, 1) for c in calls[key])
                del stack[key]
            elif callee in stack:
                raise ModelError(f"the function {shorten(callee[1])!r} calls itself")
            elif callee in calls and callee not in size:
                stack[callee] = None
    total = sum(size.get((domain_of(n.domain), n.op_type), 1) for n in all_nodes(model.graph.node))
    if total > MOST_NODES:
        raise ModelError(
            f"the model has {total} nodes with its functions written out; at most {MOST_NODES} are read"
        )


def all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Nodes and those of their subgraphs, each before what it contains."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph.node)


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Graphs among a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == _GRAPH:
            yield attribute.g
        elif attribute.type == _GRAPHS:
            yield from attribute.graphs


def captured(message: NodeProto) -> set[str]:
    """Names that a node's subgraphs read and do not define."""
    free: set[str] = set()
    for graph in subgraphs(message):
        bound = {v.name for v in graph.input} | {t.name for t in graph.initializer}
        for node in graph.node:
            free.update(name for name in (*node.input, *captured(node)) if name and name not in bound)
            bound.update(node.output)
        free.update(v.name for v in graph.output if v.name not in bound)
    return free


def legible(model: ModelProto) -> ModelProto:
    """The model, if all its names are text.

    Raises
    ------
    ModelError
        If one is not, as protobuf lets it pass.
    """
    if any(isinstance(text, bytes) for text in _texts(model)):
        raise ModelError("a name in the model is no UTF-8 text; the file is damaged")
    return model


def _texts(model: ModelProto) -> Iterator[str]:
    """Every name in a model, as protobuf gives it: bytes where it is no UTF-8."""
    for row in model.opset_import:
        yield row.domain
    for function in model.functions:
        yield from (function.domain, function.name, *function.input, *function.output)
    graphs = [model.graph]
    while graphs:
        graph = graphs.pop()
        for named in (*graph.input, *graph.output, *graph.initializer):
            yield named.name
        for tensor in graph.initializer:
            for entry in tensor.external_data:
                yield from (entry.key, entry.value)
        for node in graph.node:
            yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
            yield from (name for a in node.attribute for name in (a.name, a.ref_attr_name))
            graphs.extend(subgraphs(node))
