"""A graph made ready to run on the host of its format: rewritten by the rules that apply, and compiled.

It must not know what a node means.
"""

from __future__ import annotations

from polyconv.models.compiling import compile_graph
from polyconv.models.controlled import with_control_flow
from polyconv.models.fold import Views, looked_at
from polyconv.models.graph import Array, Graph, live
from polyconv.models.native import ONNX, Translation
from polyconv.models.onnx_host import onnx_host
from polyconv.models.onnx_rules import LAST_RULES, LATE_RULES, ON_CPU, ON_GPU, RULES
from polyconv.models.onnx_shapes import counted
from polyconv.models.onnx_views import onnx_views
from polyconv.models.options import Options
from polyconv.models.program import Program
from polyconv.models.rewriting import rewritten
from polyconv.models.segment import Host
from polyconv.runtime.memory import collecting_later
from polyconv.settings import resolve

__all__ = ["compiled", "host_of"]


def _engines(form: str) -> tuple[Host, Views, Translation]:
    """Who runs the other nodes of a format, and how these read."""
    if form == "onnx":
        return onnx_host, onnx_views, ONNX
    from polyconv.models.openvino_host import openvino_host  # here, as most models are of ONNX
    from polyconv.models.openvino_layers import as_onnx, has_form

    return openvino_host, {}, Translation(has_form, as_onnx)


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
        nodes, values = live(graph.nodes, graph.results), {value.name: value for value in graph.inputs}
        known, _ = looked_at(nodes, constants, views)
        known |= counted(nodes, values | dict(graph.stated), known)
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
