"""Rewrites of ONNX graphs by which bytes are moved instead of the real numbers that they stand for.

``Slice(DequantizeLinear(q))`` is ``DequantizeLinear(Slice(q))``.  The one idea: what only moves elements, or picks
some, commutes with what is done to each element; DequantizeLinear goes behind it and QuantizeLinear before it, so that
they meet each other, or what computes.  No bit changes.  It runs nothing.
"""

from __future__ import annotations

from dataclasses import replace

from polyconv.models.graph import Node
from polyconv.models.onnx_quantities import are_equal, quantity, tensor_wide
from polyconv.models.rewriting import Change, View

__all__ = ["MOVES", "again_the_same", "joined_as_bytes", "moved_as_bytes", "quantised_before"]

MOVES = (
    "DepthToSpace", "Flatten", "MaxPool", "Reshape", "Resize", "Slice", "SpaceToDepth", "Split", "Squeeze", "Transpose",
    "Unsqueeze",
)  # fmt: skip
"""Operators of one operand whose results have elements of it alone, by a choice that keeps their order."""

_QUANTISE, _REAL = "QuantizeLinear", "DequantizeLinear"
_OF_BYTES = {"MaxPool": 12}
"""Opsets since which an operator takes bytes, of those that do not always."""


def joined_as_bytes(node: Node, view: View) -> Change | None:
    """``Concat(Dequantize(p), Dequantize(q))`` with the same quantities -> ``Dequantize(Concat(p, q))``."""
    reals = [view.makers.get(name) for name in node.inputs]
    found = [tensor_wide(quantity(real, view, _REAL)) for real in reals]
    first, real = found[0], reals[0]
    if first is None or real is None or any(each is None or not are_equal(each, first) for each in found):
        return None
    joined = view.fresh(f"integers {node.outputs[0]}")
    made = _like(node, tuple(each.integers for each in found if each is not None), (joined,))
    return Change((node,), (made, _like(real, (joined, *real.inputs[1:]), node.outputs)))


def moved_as_bytes(node: Node, view: View) -> Change | None:
    """``Slice(Dequantize(q))`` -> ``Dequantize(Slice(q))``; other moves alike."""
    real = view.makers.get(node.inputs[0])
    found = tensor_wide(quantity(real, view, _REAL))
    if real is None or found is None or not _moves(node, view):
        return None
    moved = [view.fresh(f"integers {name}") if name else "" for name in node.outputs]
    made = [_like(node, (found.integers, *node.inputs[1:]), tuple(moved))]
    made += [_like(real, (name, *real.inputs[1:]), (output,))
             for name, output in zip(moved, node.outputs, strict=True) if name]  # fmt: skip
    return Change((node,), tuple(made))


def quantised_before(node: Node, view: View) -> Change | None:
    """``Quantize(Reshape(x))`` -> ``Reshape(Quantize(x))``; other moves alike, and ``Concat``, whose parts each are.

    Of ``Slice``, elements would be quantised that nobody reads.
    """
    found = tensor_wide(quantity(node, view, _QUANTISE))
    move = view.makers.get(node.inputs[0])
    if found is None or move is None or len(move.outputs) != 1 or view.only_reader(move.outputs[0]) is not node:
        return None
    if (not _moves(move, view) or move.op == "Slice") and (move.op != "Concat" or move.domain):
        return None
    count = len(move.inputs) if move.op == "Concat" else 1
    parts = move.inputs[:count]
    if any(name in view.constants for name in parts):
        return None
    names = {part: view.fresh(f"integers {part} of {node.outputs[0]}") for part in dict.fromkeys(parts)}
    made = [replace(_like(node, (part, *node.inputs[1:]), (name,)), stands_for=node.of_file)
            for part, name in names.items()]  # fmt: skip
    last = _like(move, (*(names[part] for part in parts), *move.inputs[count:]), node.outputs)
    return Change((move, node), (*made, last))


def again_the_same(node: Node, view: View) -> Change | None:
    """``Quantize(Dequantize(q))`` with the same quantities -> ``q``; a result takes over the name of it."""
    real, name = view.makers.get(node.inputs[0]), node.outputs[0]
    x, y = tensor_wide(quantity(real, view, _REAL)), tensor_wide(quantity(node, view, _QUANTISE))
    if real is None or x is None or y is None or not are_equal(x, y):
        return None
    if name not in view.results:
        return Change((node,), renamed={name: x.integers})
    maker = view.makers.get(x.integers)
    alone = view.only_reader(x.integers) is real and view.only_reader(real.outputs[0]) is node
    if maker is None or not alone:
        return None
    outputs = tuple(name if output == x.integers else output for output in maker.outputs)
    file = tuple(each for part in (maker, node) for each in part.of_file)
    return Change((maker, real, node), (replace(maker, outputs=outputs, stands_for=file, origin=None),))


def _moves(node: Node, view: View) -> bool:
    """Whether a node moves elements of its first input by numbers that no run changes."""
    if node.op not in MOVES or node.domain or view.opsets[""] < _OF_BYTES.get(node.op, 0):
        return False
    if node.op == "MaxPool" and len(node.outputs) > 1:
        return False
    return node.op != "Resize" or node.attributes.get("mode", "nearest") == "nearest"


def _like(node: Node, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Node:
    return replace(node, inputs=inputs, outputs=outputs, stands_for=node.of_file, origin=None)
