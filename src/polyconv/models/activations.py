"""Which of our activations the nodes of a graph apply: one node, or one with a scale and a shift behind it.

It changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from polyconv.models.graph import Array, Node
from polyconv.models.operators import OPENVINO
from polyconv.problem.epilogue import WITH_AFFINE, Activation

__all__ = ["activation_of", "is_broadcast", "other_operand", "with_affine"]


def with_affine(activation: Activation, value: str, readers: Mapping[str, Sequence[Node]], kept: Collection[str],
                constants: Mapping[str, Array], weights: Array) -> tuple[Activation, list[Node]]:  # fmt: skip
    """``a f(x) + b`` where ``Mul`` and ``Add`` by single numbers follow an activation, as one, and these nodes.

    Learned scales and shifts behind activations are exported so.  Either of the two may be missing.

    Parameters
    ----------
    activation : Activation
        f.
    value : str
        What it makes.
    readers, kept, constants : mapping, collection and mapping
        Who reads a value, the graph's results, and values that are known.
    weights : array
        Of the convolution: the numbers have their type, and fewer axes.
    """
    further: list[Node] = []
    numbers = {"Mul": 1.0, "Add": 0.0}
    for op, of_ir in (("Mul", "Multiply"), ("Add", "Add")):
        following = readers.get(value, ())
        if activation.name not in WITH_AFFINE or value in kept or len(following) != 1:
            break
        if not is_broadcast(following[0], (op,), of_ir):
            continue
        number = _beside(following[0], value, constants, weights)
        if number is not None:
            numbers[op] = number
            further.append(following[0])
            value = following[0].outputs[0]
    return (Activation(WITH_AFFINE[activation.name], tuple(numbers.values())) if further else activation), further


def _beside(node: Node, value: str, constants: Mapping[str, Array], weights: Array) -> float | None:
    """The single number that a node of two operands has beside a value; None if it has none."""
    other = other_operand(node, value)
    found = None if other is None else constants.get(other)
    if found is None or found.size != 1 or found.dtype != weights.dtype or found.ndim >= weights.ndim:
        return None
    return float(found.reshape(-1)[0])


def is_broadcast(node: Node, ops: Collection[str], of_ir: str) -> bool:
    """Whether a node is an operator of two operands that are broadcast as NumPy's, by ONNX's names and by an IR's."""
    if node.domain == OPENVINO:
        return node.op == of_ir and node.attributes.get("auto_broadcast", "numpy") == "numpy"
    # Before opset 7 attributes told how to broadcast; without them the shapes are equal.
    return node.domain == "" and node.op in ops and len(node.inputs) == 2 and not node.attributes


def other_operand(node: Node, value: str) -> str | None:
    """The other of two operands; None if both are ``value``."""
    others = [name for name in node.inputs if name != value]
    return others[0] if len(others) == 1 else None


def _scalar(constants: Mapping[str, Array], name: str, default: float | None) -> float | None:
    """A one-element constant as a number; the default where the input is left out, None if it varies."""
    if not name:
        return default
    array = constants.get(name)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def _input(node: Node, position: int) -> str:
    return node.inputs[position] if position < len(node.inputs) else ""


def _f32(node: Node, name: str, default: float) -> float:
    """A float attribute; ONNX stores 32 bits, of its defaults too."""
    return float(np.float32(node.attributes.get(name, default)))


def _clip(node: Node, constants: Mapping[str, Array]) -> tuple[float | None, ...]:
    """Clip: bounds are attributes before opset 11, inputs since; without both it depends on the type."""
    if node.version < 11:
        largest = float(np.finfo(np.float32).max)
        return _f32(node, "min", -largest), _f32(node, "max", largest)
    return _scalar(constants, _input(node, 1), None), _scalar(constants, _input(node, 2), None)


Reader = Callable[[Node, Mapping[str, Array]], tuple[float | None, ...]]


def _none(node: Node, constants: Mapping[str, Array]) -> tuple[float | None, ...]:
    return ()


def _erf_only(node: Node, constants: Mapping[str, Array]) -> tuple[float | None, ...]:
    word = node.attributes.get("approximate", node.attributes.get("approximation_mode", "none"))
    return () if str(word).lower() in ("none", "erf") else (None,)


def _unit_beta(node: Node, constants: Mapping[str, Array]) -> tuple[float | None, ...]:
    return () if _scalar(constants, _input(node, 1), 1.0) == 1.0 else (None,)


# Operator -> our activation and its parameters, None among them where it cannot be one.
_ONNX: Mapping[str, tuple[str, Reader]] = {
    "Relu": ("Relu", _none),
    "LeakyRelu": ("LeakyRelu", lambda n, c: (_f32(n, "alpha", 0.01),)),
    "Clip": ("Clip", _clip),
    "HardSigmoid": ("HardSigmoid", lambda n, c: (_f32(n, "alpha", 0.2), _f32(n, "beta", 0.5))),
    "HardSwish": ("HardSwish", _none),
    "Sigmoid": ("Sigmoid", _none),
    "Tanh": ("Tanh", _none),
    "Mish": ("Mish", _none),
    "Gelu": ("Gelu", _erf_only),
    "Elu": ("Elu", lambda n, c: (_f32(n, "alpha", 1.0),)),
    "Swish": ("Silu", lambda n, c: () if n.attributes.get("alpha", 1.0) == 1.0 else (None,)),
}
_IR: Mapping[str, tuple[str, Reader]] = {
    "Relu": ("Relu", _none),
    "Sigmoid": ("Sigmoid", _none),
    "Tanh": ("Tanh", _none),
    "Clamp": ("Clip", lambda n, c: (float(n.attributes["min"]), float(n.attributes["max"]))),
    "Elu": ("Elu", lambda n, c: (float(n.attributes["alpha"]),)),
    "HSwish": ("HardSwish", _none),
    "Swish": ("Silu", _unit_beta),
    "Mish": ("Mish", _none),
    "Gelu": ("Gelu", _erf_only),
    "PRelu": ("LeakyRelu", lambda n, c: (_scalar(c, _input(n, 1), None),)),
}
_MOST_INPUTS = {"Clip": 3, "Swish": 2, "PRelu": 2}
_ACTIVATIONS: Mapping[str, Mapping[str, tuple[str, Reader]]] = {"": _ONNX, OPENVINO: _IR}


def activation_of(node: Node, value: str, constants: Mapping[str, Array]) -> Activation | None:
    """The activation that a node applies to a value; None if it is none or a parameter is not constant."""
    found = _ACTIVATIONS.get(node.domain, {}).get(node.op)
    if found is None or node.inputs[0] != value or len(node.inputs) > _MOST_INPUTS.get(node.op, 1):
        return None
    name, read = found
    try:
        parameters: tuple[Any, ...] = read(node, constants)
    except (KeyError, TypeError, ValueError):  # an attribute is missing or no number: its host will say so
        return None
    return None if None in parameters else Activation(name, parameters)
