"""Rewrites of ONNX graphs by which recurrent layers are a convolution over all steps, and what follows step by step.

The one idea: what inputs give the gates depends on no state, so that it is one product of matrices.  It runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from polyconv.dialects import ort
from polyconv.models.elements import type_of
from polyconv.models.graph import Array, Node
from polyconv.models.native import OWN
from polyconv.models.rewriting import Change, View

__all__ = ["recurrent"]

_ALLOWED: Mapping[str, object] = {"input_forget": 0, "layout": 0, "output_sequence": 0}
"""Attributes that a layer may have beside its direction and its states, and their values."""

_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def recurrent(node: Node, view: View) -> Change | None:
    """``LSTM``, ``GRU`` or ``RNN`` with constant weights -> a convolution of 1x1 windows, and ``Recurrence``.

    With the activations that are the default, and no peepholes; a GRU resets after its product.
    """
    kind, a = node.op, node.attributes
    x, _, _, _, lengths, h, *more = (*node.inputs, *("",) * 8)[:8]
    c, peepholes = more if kind == "LSTM" else ("", "")
    w, r, b = (view.constant(node, at) for at in (1, 2, 3))
    if w is None or r is None or peepholes or node.version < 7 or not _is_plain(node):
        return None
    from polyconv.operators.recurrence import GATES  # here, as few networks need it

    value, direction = view.values.get(x), str(a.get("direction", "forward"))
    directions, gates = 2 if direction == "bidirectional" else 1, GATES[kind]
    if value is None or value.type != type_of(w.dtype) or w.dtype not in (np.float32, np.float64) or w.ndim != 3:
        return None
    states = w.shape[1] // gates
    fits = w.shape[:2] == (directions, gates * states) and r.shape == (directions, gates * states, states)
    kept = 3 if kind == "LSTM" else 2
    if not fits or r.dtype != w.dtype or not w.size or len(node.outputs) > kept:
        return None
    if len(node.inputs) > 3 and node.inputs[3] and b is None:
        return None
    if b is not None and (b.shape != (directions, 2 * gates * states) or b.dtype != w.dtype):
        return None
    biases = np.zeros((directions, 2, gates, states), w.dtype) if b is None else b.reshape(directions, 2, gates, states)
    whole = biases[:, 0].astype(np.float64) + biases[:, 1]
    if kind == "GRU":
        whole[:, 2] = biases[:, 0, 2]  # the other one is reset
    of_inputs = _padded(whole[:, :, :, None]).reshape(-1).astype(w.dtype)
    windows = _padded(w.reshape(directions, gates, states, -1)).reshape(-1, w.shape[2], 1)
    name, file, version = node.outputs[0] or node.name, node.of_file, view.opsets[""]
    roles = ("windows", "bias", "weights", "bias of weights", "shape of steps", "steps", "gates")
    names = [view.fresh(f"{role} of {name}") for role in roles]
    held: list[Array] = [windows, of_inputs, r, np.ascontiguousarray(biases[:, 1, -1]), np.array([1, -1, w.shape[2]])]
    constants = dict(zip(names, held, strict=False))
    *_, of_steps, together = names
    results = [*node.outputs, "", "", ""][:kept]
    made = tuple(name or view.fresh(f"state {at} of {node.name}") for at, name in enumerate(results))
    operands = (together, x, names[2], names[3], lengths, h, *((c,) if kind == "LSTM" else ()))
    nodes = (
        Node(node.name, "Reshape", "", version, (x, names[4]), (of_steps,), stands_for=file),
        Node(node.name, "NhwcConv", ort.CONTRIB, 1, (of_steps, names[0], names[1]), (together,), stands_for=file),
        Node(node.name, "Recurrence", OWN, 1, operands, made, {"kind": kind, "direction": direction}, stands_for=file),
    )
    return Change((node,), nodes, constants)


def _is_plain(node: Node) -> bool:
    """Whether the attributes are those of a layer that is computed here."""
    a = node.attributes
    others = set(a) - {"direction", "hidden_size", "activations", "linear_before_reset"}
    if any(name not in _ALLOWED or a[name] != _ALLOWED[name] for name in others):
        return False
    given, default = a.get("activations"), _ACTIVATIONS[node.op]
    is_default = given is None or list(given) in (default, default * 2)
    resets_last = node.op != "GRU" or a.get("linear_before_reset") == 1
    return is_default and resets_last and a.get("direction", "forward") in ("forward", "reverse", "bidirectional")


def _padded(array: Array) -> Array:
    """States of each gate with zeros behind them, up to a multiple of ``UNITS``."""
    from polyconv.operators.recurrence import UNITS

    states = array.shape[2]
    return np.pad(array, ((0, 0), (0, 0), (0, -states % UNITS), (0, 0)))
