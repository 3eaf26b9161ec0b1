"""A rewrite of ONNX graphs that takes away turns to channels last and back.

``Transpose -> LayerNormalization, products, activations -> Transpose`` becomes the same operators with channels where
they were.  The one idea: if all that reads a turned value can do without the turn, and the last one turns back, nobody
needs either.  It runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.dialects import ort
from polyconv.models.elements import type_of
from polyconv.models.graph import Array, Node, along
from polyconv.models.native import OWN
from polyconv.models.onnx_products import FLOATS
from polyconv.models.onnx_weights import output_channels
from polyconv.models.rewriting import Change, View

__all__ = ["biased", "channels_first"]

_MOST_NODES = 64

_ALONE = frozenset(("Abs", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu",
                    "Log", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sin", "Sqrt", "Tanh"))  # fmt: skip
"""Operators of one operand that see each element alone."""
_BROADCAST = frozenset(("Add", "Div", "Max", "Min", "Mul", "Sub", "Sum"))
"""Operators that broadcast their operands."""


@dataclass(slots=True)
class _Stretch:
    """Nodes between two turns, as they grow.

    Parameters
    ----------
    view : View
    rank : int
    turned : dict
        Values with channels last, to what takes their place.
    gone, nodes : list of Node
        Nodes that go, and those in their place, in running order.
    constants : dict
        New ones.
    """

    view: View
    rank: int
    turned: dict[str, str]
    gone: list[Node] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)

    def turned_constant(self, name: str, owner: Node) -> str | None:
        """A constant operand that is broadcast, with channels where they go; None if it has too many axes."""
        array = self.view.constants[name]
        if array.ndim > self.rank:
            return None
        whole = array.reshape((1,) * (self.rank - array.ndim) + array.shape)
        made = self.view.fresh(f"{name} turned for {owner.outputs[0]}")
        self.constants[made] = whole.transpose(_back(self.rank))
        return made


def channels_first(node: Node, view: View) -> Change | None:
    """``Transpose(f(Transpose(x)))``, to channels last and back -> ``f(x)`` with channels first."""
    value, perm = view.values.get(node.inputs[0]), node.attributes.get("perm")
    if value is None or value.dims is None or not all(isinstance(extent, int) for extent in value.dims):
        return None
    rank = len(value.dims)
    if not 3 <= rank <= 5 or perm is None or tuple(perm) != _turn(rank) or value.type not in _TYPES:
        return None
    stretch = _Stretch(view, rank, {node.outputs[0]: node.inputs[0]}, [node])
    end = _grown(stretch)
    if end is None:
        return None
    if not stretch.nodes:
        return Change((node, end), renamed={end.outputs[0]: node.inputs[0]})
    names = {stretch.turned[end.inputs[0]]: end.outputs[0]}
    nodes = tuple(_renamed(each, names) for each in stretch.nodes)
    return Change((*stretch.gone, end), nodes, stretch.constants)


_TYPES = (*FLOATS, "tensor(uint8)", "tensor(int8)")


def _turn(rank: int) -> tuple[int, ...]:
    """The order of axes by which channels become the last axis."""
    return (0, *range(2, rank), 1)


def _back(rank: int) -> tuple[int, ...]:
    """The order by which they become the second one again."""
    return (0, rank - 1, *range(1, rank - 1))


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    inputs, outputs = (tuple(names.get(name, name) for name in of) for of in (node.inputs, node.outputs))
    return replace(node, inputs=inputs, outputs=outputs)


def _grown(stretch: _Stretch) -> Node | None:
    """Grow a stretch as far as it goes; the one node that turns back, or None if others need a turned value too."""
    view, ends = stretch.view, set[Node]()
    waiting = list(stretch.turned)
    while waiting:
        value = waiting.pop(0)
        if value in view.results or len(stretch.nodes) > _MOST_NODES:
            return None
        for reader in view.readers.get(value, ()):
            if reader in stretch.gone or reader in ends:
                continue
            if value in reader.captured:
                return None
            if reader.op == "Transpose" and not reader.domain:
                if tuple(reader.attributes.get("perm", ())) != _back(stretch.rank):
                    return None
                ends.add(reader)
            elif _is_ready(reader, stretch):
                made = _without_turn(reader, stretch)
                if made is None:
                    return None
                stretch.gone.append(reader)
                stretch.nodes.append(made)
                stretch.turned[reader.outputs[0]] = made.outputs[0]
                waiting.append(reader.outputs[0])
    readers = [reader for value in stretch.turned for reader in view.readers.get(value, ())]
    if len(ends) != 1 or any(reader not in stretch.gone and reader not in ends for reader in readers):
        return None
    return ends.pop()


def _is_ready(node: Node, stretch: _Stretch) -> bool:
    """Whether all that a node reads is turned or constant; if not, it may be once more has grown."""
    return all(name in stretch.turned or name in stretch.view.constants for name in node.reads)


def _without_turn(node: Node, stretch: _Stretch) -> Node | None:
    """What a node is with channels second."""
    if len(node.outputs) != 1:
        return None
    find: Callable[[Node, _Stretch], Node | None] | None = None
    if node.domain == ort.CONTRIB and (node.op == "NhwcConv" or node.attributes.get("channels_last")):
        find = _WITH_CHANNELS_LAST.get(node.op)
    elif not node.domain:
        find = _WITHOUT_DOMAIN.get(node.op, _elementwise if node.op in _ALONE | _BROADCAST else None)
    return None if find is None else find(node, stretch)


def _made(node: Node, stretch: _Stretch, inputs: tuple[str, ...], **fields: Any) -> Node:
    name = stretch.view.fresh(f"{node.outputs[0]}, channels first")
    return replace(node, inputs=inputs, outputs=(name,), stands_for=node.of_file, origin=None, **fields)


def _convolution(node: Node, stretch: _Stretch) -> Node | None:
    """Windows are as they were: weights have channels second in either order."""
    x, *others = node.inputs
    if x not in stretch.turned or any(name in stretch.turned for name in others):
        return None
    op = "Conv" if node.op == "NhwcConv" else node.op
    attributes = {name: value for name, value in node.attributes.items() if name != "channels_last"}
    return _made(node, stretch, (stretch.turned[x], *others), op=op, domain="", attributes=attributes,
                 version=stretch.view.opsets[""])  # fmt: skip


def _normalisation(node: Node, stretch: _Stretch) -> Node | None:
    """Over channels alone: an operator of our own, as ONNX's has no last axis."""
    x, *others = node.inputs
    known = [stretch.view.constants.get(name) for name in others]
    is_last = node.attributes.get("axis", -1) in (-1, stretch.rank - 1)
    if x not in stretch.turned or not is_last or node.attributes.get("stash_type", 1) != 1:
        return None
    if any(array is None or array.ndim != 1 or type_of(array.dtype) not in FLOATS for array in known):
        return None
    attributes = {**node.attributes, "axis": 1, "last_axis": 1}
    return _made(node, stretch, (stretch.turned[x], *others), domain=OWN, attributes=attributes)


def _quantising(node: Node, stretch: _Stretch) -> Node | None:
    """With one scale and one zero point."""
    x, *others = node.inputs
    known = [stretch.view.constants.get(name) for name in others]
    if x not in stretch.turned or any(array is None or array.size != 1 for array in known):
        return None
    return _made(node, stretch, (stretch.turned[x], *others))


def _elementwise(node: Node, stretch: _Stretch) -> Node | None:
    if node.attributes and node.op in _BROADCAST:
        return None
    inputs = [stretch.turned.get(name) or stretch.turned_constant(name, node) for name in node.inputs]
    return None if None in inputs else _made(node, stretch, tuple(name for name in inputs if name is not None))


_WITH_CHANNELS_LAST = {"NhwcConv": _convolution, "QLinearConv": _convolution}
_WITHOUT_DOMAIN = {
    "DequantizeLinear": _quantising, "LayerNormalization": _normalisation, "QuantizeLinear": _quantising,
}  # fmt: skip
"""What makes a node one with channels second, by operator: of com.microsoft, and of ONNX."""


def biased(node: Node, view: View) -> Change | None:
    """``Add(Conv(x, w), b)`` of one number a channel -> ``Conv(x, w, b)``, so that rules for convolutions see it.

    ``ConvTranspose`` alike.  A single number is added to all channels, unless a Clip follows: the two may begin a
    spelled-out activation (``Clip(x + 3, 0, 6) / 6``).  Weights are constant, or made real of a constant.  What the
    convolution adds already is added to that in f64, and the sum rounded once.
    """
    if len(node.inputs) != 2 or node.attributes:
        return None
    at = 0 if view.constant(node, 0) is None else 1
    conv, added = view.makers.get(node.inputs[at]), view.constant(node, 1 - at)
    if conv is None or conv.op not in ("Conv", "ConvTranspose") or conv.domain or len(conv.inputs) > 3:
        return None
    if "activation" in conv.attributes:
        return None
    w, bias = view.constant(conv, 1), view.constant(conv, 2)
    if w is None and (maker := view.makers.get(conv.inputs[1])) is not None and maker.op == "DequantizeLinear":
        w = view.constant(maker, 0)
    if bias is None and len(conv.inputs) > 2 and conv.inputs[2]:
        return None
    if view.only_reader(conv.outputs[0]) is not node or w is None or added is None:
        return None
    whole, kind = along(added, w.ndim, 1), w.dtype if w.dtype.kind == "f" else np.dtype(np.float32)
    m = output_channels(conv, w)
    if added.dtype != kind or type_of(kind) not in FLOATS or whole is None or whole.size not in (1, m):
        return None
    if whole.size != m and any(n.op in ("Clip", "Max", "Min") for n in view.readers.get(node.outputs[0], ())):
        return None
    whole = np.ascontiguousarray(np.broadcast_to(whole, (m,)))
    name = view.fresh(f"bias of {node.outputs[0]}")
    stands_for = (*conv.of_file, *node.of_file)
    made = replace(conv, inputs=(*conv.inputs[:2], name), outputs=node.outputs, stands_for=stands_for, origin=None)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = whole if bias is None else (bias.astype(np.float64) + whole).astype(kind)
    return Change((conv, node), (made,), {name: sums})
