"""An IR's graph with ONNX's operators in place of the layers that mean the same, so that rewrites fit both formats.

Layers are asked in running order, each with what is known of those before it.  The one idea: extents that are known
make shapes numbers, numbers make more extents known, and a product with constant weights is a convolution of 1x1
windows.  What has no such form stays a layer.  It runs nothing but arithmetic on a few numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.models.asking import Facts, who_runs
from polyconv.models.elementwise import ELEMENTWISE
from polyconv.models.fold import fold
from polyconv.models.graph import Array, Dims, Graph, Node, Value, fixed, live
from polyconv.models.native import Translation, broadcast_dims
from polyconv.models.onnx_products import ALL_FLOATS, linear, product
from polyconv.models.onnx_views import onnx_views
from polyconv.models.openvino_integers import CONVOLUTIONS, levels_of, of_bytes
from polyconv.models.openvino_layer import Layer
from polyconv.models.operators import is_convolution
from polyconv.models.options import Options
from polyconv.models.rewriting import View
from polyconv.models.segment import Host

__all__ = ["as_onnx_graph", "opsets"]

opsets: Mapping[str, int] = {"": 13}
"""Version of the nodes that rewrites make of layers."""
_MOST_NUMBERS = 64
"""Of a constant that counts as a few numbers."""


def as_onnx_graph(graph: Graph, options: Options, host: Host, translation: Translation, threads: int
                  ) -> tuple[Graph, dict[str, Array]]:  # fmt: skip
    """The graph of an IR in terms of ONNX, as far as there are such terms, with all extents that follow.

    Parameters
    ----------
    graph : Graph
        As read from an IR.
    options : Options
        Of the session.
    host : Host
        Who computes what layers make of constants alone.
    translation : Translation
        Of the format.
    threads : int
        For the host.

    Returns
    -------
    Graph, dict
        The graph; and values that its nodes read and layers make of constants alone.
    """
    nodes, constants = live(graph.nodes, graph.results), dict(graph.constants)
    same = fixed(nodes, constants, lambda node: is_convolution(node.op))
    steady = [node for node in nodes if same.issuperset(node.writes)]
    moving = [node for node in nodes if not same.issuperset(node.writes)]
    wanted = sorted(same.difference(constants).intersection({name for node in moving for name in node.reads}))
    folded = fold(graph, steady, wanted, constants, {}, host, threads)
    values = {value.name: value for value in graph.inputs} | dict(graph.stated)
    held = constants | folded
    read = {*graph.results, *(name for node in moving for name in node.reads)}
    makers = {name: node for node in steady for name in node.writes}

    def computed(node: Node) -> dict[str, Array]:
        return fold(graph, [node], node.writes, held, {}, host, threads)

    walk = _Walk(Facts(options, held, values, translation), held, makers, frozenset(read), frozenset(graph.results),
                 computed)  # fmt: skip
    for node in moving:
        walk.meet(node)
    counted = [node for node in moving if walk.made.keys() >= set(node.writes)]
    changed = replace(
        graph, nodes=(*steady, *walk.nodes), constants=constants | walk.made, stated=values, removed=tuple(counted)
    )
    return changed, folded


@dataclass(frozen=True, slots=True, eq=False)
class _Walk:
    """The way through a graph.

    Parameters
    ----------
    facts : Facts
        What is known of values.
    constants : dict
        Those of the facts, among which new ones are put.
    makers : mapping
        Nodes that make values of constants alone.
    read, results : frozenset of str
        Values that somebody reads, and those that the graph returns.
    compute : callable
        What a node makes of constants.
    nodes : list of Node
        What was met, in terms of ONNX where there are such.
    made : dict
        The new constants.
    shapes : dict
        Extents of which some may be open, and the type in which a ShapeOf makes them, by its value.
    steady : set of str
        Values that the host will compute of constants, once.
    """

    facts: Facts
    constants: dict[str, Array]
    makers: Mapping[str, Node]
    read: frozenset[str]
    results: frozenset[str]
    compute: Callable[[Node], dict[str, Array]]
    nodes: list[Node] = field(default_factory=list)
    made: dict[str, Array] = field(default_factory=dict)
    shapes: dict[str, tuple[Array, np.dtype[Any]]] = field(default_factory=dict)
    steady: set[str] = field(default_factory=set)

    def keep(self, constants: Mapping[str, Array]) -> None:
        """Take new constants among the others."""
        self.constants.update(constants)
        self.made.update(constants)

    def meet(self, node: Node) -> None:
        """Put the next node in terms of ONNX."""
        numbers = self._numbers(node)
        if numbers is not None:
            self.keep({node.outputs[0]: numbers})
        elif not (self._in_bytes(node) or self._product(node)):
            found, _ = who_runs(self.facts, [node], {}, self.read)
            is_steady = all(name in self.constants or name in self.steady for name in node.reads)
            is_steady = is_steady and not is_convolution(node.op)
            self.nodes.extend([node] if is_steady else found)  # what is the same in every run the host computes, once
            self.steady.update(node.writes if is_steady else ())
            if node.op.lower() == "reshape" and self.facts.known(node.outputs[0]).dims is None:
                self._rank(node)
            if node.op == "FakeQuantize" and self.facts.known(node.outputs[0]).dims is None:
                x, *ends = map(self.facts.known, node.inputs)
                dims = [value.dims for value in (x, *ends) if value.dims is not None]
                together = broadcast_dims(dims) if len(dims) == len(node.inputs) else None
                self.facts.note([Value(node.outputs[0], x.type, together)])

    def _rank(self, node: Node) -> None:
        """Keep in mind how many extents a Reshape makes, and those that it names."""
        asked = self.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
        if asked is not None and asked.ndim == 1 and asked.dtype.kind in "iu":
            dims = tuple(extent if extent > 0 else None for extent in asked.tolist())
            self.facts.note([Value(node.outputs[0], self.facts.known(node.inputs[0]).type, dims)])

    def _put(self, nodes: Sequence[Node], constants: Mapping[str, Array]) -> None:
        """Take nodes, and the constants that they read, in the place of what was met."""
        self.keep(constants)
        self.nodes.extend(who_runs(self.facts, nodes, {}, self.read)[0])

    def _in_bytes(self, node: Node) -> bool:
        """Whether a node rounds to levels, or is a convolution with weights in bytes, and was put in terms of ONNX."""
        if self.facts.options.rewrites != "all" or not node.inputs or self.read.intersection(node.outputs[1:]):
            return False
        layer, found = Layer(node, self.facts.known, self.constants), None
        if node.op.lower() == "fakequantize":
            x = self.facts.known(node.inputs[0])
            found = levels_of(node, layer, len(x.dims)) if x.type == "tensor(float)" and x.dims is not None else None
        elif node.op in CONVOLUTIONS:
            found = of_bytes(layer, self.makers)
        if found is not None:
            self._put(*found)
        return found is not None

    def _numbers(self, node: Node) -> Array | None:
        """Numbers that a node makes in every run: extents that are known, what follows from such, or a constant turned.

        The last may be a bias, which a convolution of integers asks for.
        """
        known, constants, op = self.facts.known, self.constants, node.op.lower()
        if len(node.outputs) != 1 or node.outputs[0] in self.results or not node.inputs:
            return None
        if op == "shapeof":
            dims, kind = known(node.inputs[0]).dims, Layer(node, known, constants).text("output_type", "i64")
            if dims is None:
                return None
            made = np.dtype(np.int32 if kind == "i32" else np.int64)
            self.shapes[node.outputs[0]] = np.array(dims, object), made
            return np.array(dims, made) if all(isinstance(extent, int) for extent in dims) else None
        if op == "reshape" and all(name in constants for name in node.reads):
            return self.compute(node)[node.outputs[0]]
        if op == "gather" and len(node.inputs) > 1 and node.inputs[0] in self.shapes.keys() - constants.keys():
            return self._picked(node)
        given = [constants.get(name) for name in node.inputs]
        if not given or any(a is None or a.size > _MOST_NUMBERS or a.dtype.kind not in "iu" for a in given):
            return None
        return self._counted(node, [a for a in given if a is not None])

    def _picked(self, node: Node) -> Array | None:
        """The extents that a Gather picks of a shape of which others are open."""
        (extents, kind), at = self.shapes[node.inputs[0]], self.constants.get(node.inputs[1])
        if at is None or at.dtype.kind not in "iu" or at.size > _MOST_NUMBERS or (abs(at + 0.5) > len(extents)).any():
            return None
        picked = np.asarray(extents[at.astype(np.int64)], object)
        return picked.astype(kind) if all(isinstance(extent, int) for extent in picked.flat) else None

    def _counted(self, node: Node, given: Sequence[Array]) -> Array | None:
        """What a node makes of a few integers; None where that is left to others."""
        try:
            if node.op.lower() == "divide":  # rounds down, where ONNX leaves out the fraction
                a, b = given
                return np.asarray(a // b, a.dtype) if a.dtype == b.dtype and b.all() else None
            if node.op.lower() == "range":
                made_by = np.arange(*(a.item() for a in given), dtype=given[0].dtype)
                return made_by if made_by.size <= _MOST_NUMBERS else None
            if node.op.lower() == "squeeze":
                return np.squeeze(given[0], tuple(given[1].tolist()) if len(given) > 1 else None)
            made = self.facts.translation.into(node, self.facts.known, self.constants)
            if isinstance(made, Node) and made.op in onnx_views:
                return onnx_views[made.op](made, [self.constants[name] for name in made.reads])
            return ELEMENTWISE[node.op](node, given) if node.op in ELEMENTWISE else None
        except Exception:  # a wrong node is reported by whoever makes it ready
            return None

    def _product(self, node: Node) -> bool:
        """Whether a node is a MatMul: a convolution, if one operand is constant and the other's rank known."""
        if node.op.lower() != "matmul" or len(node.inputs) != 2 or len(node.outputs) != 1:
            return False
        facts, layer = self.facts, Layer(node, self.facts.known, self.constants)
        x, turned = facts.known(node.inputs[0]), [layer.flag(f"transpose_{at}", default=False) for at in "ab"]
        w = self.constants.get(node.inputs[1])
        is_asked = facts.options.rewrites == "all" or facts.options.device is not None  # which has no other kernel
        change = None
        if is_asked and w is not None and w.ndim == 2 and not turned[0]:
            name = f"columns of {node.outputs[0]}"
            plain = Node(node.name, "MatMul", "", opsets[""], (node.inputs[0], name), node.outputs, stands_for=(node,))
            view = View({name: w.T if turned[1] else w}, {}, {}, self.results, {x.name: x}, opsets)
            change = product(plain, view, types=ALL_FLOATS) or linear(plain, view, types=ALL_FLOATS)
        if change is None:
            self.nodes.append(node)
        else:
            self._put(change.nodes, change.constants)
        dims = [facts.known(name).dims for name in node.inputs]
        facts.note([Value(node.outputs[0], x.type, _product_dims(dims, turned))])
        return True


def _product_dims(dims: Sequence[Dims | None], turned: Sequence[bool]) -> Dims | None:
    """Extents of a product of matrices, of which some are transposed; None where a rank is not known, or is 1."""
    (a, b) = dims
    if a is None or b is None or min(len(a), len(b)) < 2:
        return None
    outer = broadcast_dims([a[:-2], b[:-2]])
    return None if outer is None else (*outer, a[-1 if turned[0] else -2], b[-2 if turned[1] else -1])
