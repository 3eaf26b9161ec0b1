"""What is known of a graph's values while its steps are made, and who runs each node, asked in running order.

What a file does not say of a value follows from who makes it, so that those who read it can be asked in their turn.
The one idea: who runs a node is decided for all nodes before any is made ready.  It knows no file format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from polyconv.dataclass import dataclass
from polyconv.models.convolution import foretold_results
from polyconv.models.elements import type_of
from polyconv.models.graph import Array, Dims, Node, Value, consumers
from polyconv.models.native import ONNX, Translation, broadcast_dims, foretold, native
from polyconv.models.operators import Epilogue, is_convolution
from polyconv.models.options import Options
from polyconv.operators.table import Taken

__all__ = ["WIDENING", "Facts", "tell_types", "who_runs"]


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """What is known of values.

    Parameters
    ----------
    options : Options
        Of the session.
    constants : mapping
        Values that are the same in every run.
    values : dict
        Types and extents of the others; it grows.
    translation : Translation
        Of nodes of the graph's format.
    far : bool
        No cache holds all constants from run to run.
    here : frozenset of str
        Values in the CPU's memory, where the others lie on a GPU.
    """

    options: Options
    constants: Mapping[str, Array]
    values: dict[str, Value]
    translation: Translation
    far: bool = False
    here: frozenset[str] = frozenset()

    def is_there(self, node: Node) -> bool:
        """Whether a node's results lie on a GPU."""
        return self.options.device is not None and not self.here.issuperset(node.writes)

    def known(self, name: str) -> Value:
        """What is known of a value."""
        constant = self.constants.get(name)
        if constant is not None:
            return Value(name, type_of(constant.dtype), constant.shape)
        return self.values.get(name, Value(name))

    def note(self, values: Iterable[Value]) -> None:
        """Keep what is known of some values."""
        for value in values:
            stated = self.values.get(value.name, value)
            dims = stated.dims if value.dims is None else _filled(value.dims, stated.dims)
            kind = value.type or stated.type
            self.values[value.name] = Value(value.name, kind, dims, value.channels_last)


def _filled(dims: Dims, stated: Dims | None) -> Dims:
    """Extents, with those stated before where they are open: who tells a rank only takes nothing back."""
    if stated is None or len(stated) != len(dims):
        return dims
    return tuple(before if now is None else now for now, before in zip(dims, stated, strict=True))


WIDENING = frozenset(("DequantizeLinear",))
"""Operators whose result is larger than what they read, and which hosts fuse with its readers."""


def _leave_to_hosts(nodes: Sequence[Node], asked: dict[Node, Taken | str]) -> None:
    """Leave nodes that quantise and dequantise beside a host's node to the host, which computes all three as one."""
    readers, makers = consumers(nodes), {name: node for node in nodes for name in node.writes}
    for node, found in asked.items():
        neighbours = []
        if node.op == "DequantizeLinear":
            neighbours = [reader for name in node.writes for reader in readers.get(name, ())]
        elif node.op == "QuantizeLinear":
            neighbours = [makers[node.inputs[0]]] if node.inputs[0] in makers else []
        if neighbours and not isinstance(found, str) and all(isinstance(asked.get(n), str) for n in neighbours):
            asked[node] = f"{neighbours[0].op}, which takes it in, is computed elsewhere"


_TYPE_OF = {
    "QuantizeLinear": 2, "DequantizeLinear": 1, "QLinearConv": 7, "QLinearConvTranspose": 7,
    "QLinearMatMul": 7,
    **dict.fromkeys((
        "Add", "AveragePool", "Clip", "Concat", "Div", "Exp", "Flatten", "GlobalAveragePool", "GlobalMaxPool",
        "HardSigmoid", "HardSwish", "LeakyRelu", "LogSoftmax", "MaxPool", "Mul", "Relu", "Reshape", "Sigmoid", "Slice",
        "Softmax", "Split", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze",
    ), 0),
}  # fmt: skip
"""Operators whose results have the type of an input, and of which."""
_ALIKE = ("QuantizeLinear", "DequantizeLinear", "Clip", "LeakyRelu", "Relu", "Sigmoid", "Tanh")
"""Those of them whose results have the extents of their first input."""


def tell_types(facts: Facts, nodes: Iterable[Node]) -> None:
    """Say of which types and extents values are where the file does not, as behind operators of other domains."""
    for node in nodes:
        at = _TYPE_OF.get(node.op)
        if at is None or at >= len(node.inputs) or not node.inputs[at]:
            continue
        kind = facts.known(node.inputs[at]).type
        dims = facts.known(node.inputs[0]).dims if node.op in _ALIKE else None
        for value in (facts.values.get(name, Value(name)) for name in node.writes):
            found = dims if value.dims is None else value.dims
            facts.values[value.name] = replace(value, type=value.type or kind, dims=found)


def who_runs(facts: Facts, nodes: Sequence[Node], epilogues: Mapping[Node, Epilogue], results: Iterable[str]
             ) -> tuple[list[Node], dict[Node, Taken | str]]:  # fmt: skip
    """What runs each node that is no convolution, and the nodes, translated where polyconv runs them.

    What a node will make is noted on the way where the file does not say it, so that those after it can be asked.
    """
    known, found, asked = facts.known, list[Node](), dict[Node, Taken | str]()
    read = {*results, *(name for node in nodes for name in node.reads)}
    for node in nodes:
        made: tuple[Value, ...] = ()
        is_open = any(not known(name).type or known(name).dims is None for name in node.writes)
        if is_convolution(node.op):
            made = _convolved(facts, node, epilogues.get(node, Epilogue())) if is_open else ()
        else:
            into = facts.translation.into(node, known, facts.constants)
            if isinstance(into, Node) and into.op == "MaxPool" and read.isdisjoint(into.outputs[1:]):
                taken_for = into.stands_for or (into,)  # places of the largest are left out, as nobody reads them
                into = replace(into, outputs=into.outputs[:1], stands_for=taken_for)
            there = facts.is_there(node)
            taken = into if isinstance(into, str) else native(into, known, facts.constants, on_gpu=there)
            node = node if isinstance(into, str) or isinstance(taken, str) else into
            asked[node] = taken
            if is_open and not isinstance(taken, str):
                made = foretold(node, taken, known, facts.constants)
        found.append(node)
        facts.note(made)
    if facts.translation is ONNX:  # another format's host knows no nodes of ONNX
        _leave_to_hosts(found, asked)
    return found, asked


def _convolved(facts: Facts, node: Node, epilogue: Epilogue) -> tuple[Value, ...]:
    """What a convolution will make; a residual that may be broadcast counts as one that is."""
    plain = node if epilogue.unless is None else epilogue.unless.node
    before = epilogue if epilogue.unless is None else epilogue.unless.epilogue
    inputs = [facts.known(name) if name else None for name in plain.inputs]
    made = foretold_results(plain, before, inputs, facts.constants, facts.options)
    if epilogue.unless is None:
        return made
    dims = broadcast_dims([made[0].dims, facts.known(node.inputs[-1]).dims])
    return (Value(node.outputs[0], made[0].type, dims),)
