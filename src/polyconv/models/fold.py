"""Values that are the same in every run, computed once when the model is read.

The one idea: only what a convolution or an output needs is computed, and what merely looks at a
constant in another way stays a view.  It knows no operator; the format brings its views and its host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from polyconv.errors import Error, ModelError
from polyconv.models.graph import Array, Graph, Node, live
from polyconv.models.limits import shorten
from polyconv.models.segment import Host

__all__ = ["fold", "looked_at"]

Views = Mapping[str, Callable[[Node, Sequence[Array]], Array | None]]
"""By operator: its one output, from its node and inputs; None where the host is to compute it."""


def fold(
    graph: Graph,
    nodes: Sequence[Node],
    wanted: Sequence[str],
    constants: Mapping[str, Array],
    views: Views,
    host: Host,
    threads: int,
) -> dict[str, Array]:
    """Compute constant values.

    Parameters
    ----------
    graph : Graph
        Which they belong to.
    nodes : sequence of Node
        Nodes that depend on constants only, in running order.
    wanted : sequence of str
        Values to compute.
    constants : mapping
        Values that are known.
    views : mapping
        Operator -> its one output from its node and inputs, without copying what is large.
    host : Host
        Who runs the others.
    threads : int
        For the host.

    Raises
    ------
    ModelError
        If a node cannot be computed; it is named.
    """
    values = {name: constants[name] for name in wanted if name in constants}
    known, left = looked_at(live(nodes, wanted), constants, views)
    values.update((name, known[name]) for name in wanted if name in known)
    rest = [name for name in wanted if name not in values]
    if rest:
        made = {name for node in left for name in node.writes}
        needed = {name: known[name] for node in left for name in node.reads if name not in made}
        segment = host(graph, left, (), rest, needed, threads)
        values.update(zip(rest, segment.run(()), strict=True))
    return values


def looked_at(nodes: Sequence[Node], constants: Mapping[str, Array], views: Views
              ) -> tuple[dict[str, Array], list[Node]]:  # fmt: skip
    """Constants with the values that nodes make by looking at them, or at few numbers, and the nodes that do not.

    Raises
    ------
    ModelError
        If a node cannot be computed; it is named.
    """
    known = dict(constants)
    left: list[Node] = []
    for node in nodes:
        view = views.get(node.op)
        if view is None or node.domain != "" or any(name not in known for name in node.reads):
            left.append(node)
            continue
        try:
            found = view(node, [known[name] for name in node.inputs])
        except Error:
            raise
        except Exception as error:
            raise ModelError(f"{node.label} cannot be computed: {shorten(str(error))}") from error
        if found is None:
            left.append(node)
        else:
            known[node.outputs[0]] = found
    return known, left
