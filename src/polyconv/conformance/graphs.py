"""Random ONNX graphs: a seed and an index in, a model with what it is fed and what it must return out.

A graph grows node by node from the values that there are, so that values have several readers, or are returned as well.
The one idea: each node's enclosures are computed as it is drawn, so shapes are known, and what is not finite or too
uncertain to tell anything is left out.  It must not know who runs the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polyconv.conformance.enclosure_rules import enclosed_node
from polyconv.conformance.enclosures import Array, Enclosure, exact
from polyconv.dataclass import dataclass

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

__all__ = ["Drawing", "Drawn", "Unfit", "drawn"]

_MOST_ELEMENTS = 40_000
"""Of a value, so that a graph takes milliseconds."""

_MOST_UNCERTAIN = 1e-2
"""How wide an enclosure may be, of the value's largest magnitude."""

_MOST = 1e6
"""Largest magnitude of a value."""

_OPSETS = (13, 17, 17, 18, 20, 21)


class Unfit(Exception):
    """A step does not go with the value that it was tried on."""


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """A model, what it is fed, and between what each of its outputs must lie.

    Parameters
    ----------
    seed, index : int
        Its name.
    model : onnx.ModelProto
    feeds : mapping
    expected : mapping
    """

    seed: int
    index: int
    model: ModelProto
    feeds: Mapping[str, Array]
    expected: Mapping[str, Enclosure]

    def __str__(self) -> str:
        ops = ", ".join(node.op_type for node in self.model.graph.node if node.op_type != "Constant")
        return f"graph seed={self.seed} index={self.index} ({ops})"


class Drawing:
    """A graph that grows.

    Parameters
    ----------
    rng : numpy.random.Generator
    opset : int
    """

    def __init__(self, rng: np.random.Generator, opset: int) -> None:
        self.rng, self.opset = rng, opset
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.feeds: dict[str, Array] = {}
        self.values: dict[str, Enclosure] = {}
        self.moving: list[str] = []  # values that are no constants
        self._names = 0

    # -- what steps are made of --------------------------------------------------------------------

    def pick(self, among: Sequence[Any]) -> Any:
        """One of some."""
        return among[int(self.rng.integers(len(among)))]

    def chance(self, probability: float) -> bool:
        """Whether something of that probability happens."""
        return bool(self.rng.random() < probability)

    def name(self) -> str:
        """A new one."""
        self._names += 1
        return f"v{self._names}"

    def shape(self, name: str) -> tuple[int, ...]:
        """Extents of a value."""
        return self.values[name].shape

    def constant(self, array: Any, dtype: Any = np.float32) -> str:
        """A known value: an initialiser, or what a Constant node makes."""
        from onnx import helper, numpy_helper

        array, name = np.asarray(array, dtype), self.name()
        self.values[name] = exact(array)
        if self.chance(0.15):
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)))
        else:
            self.constants[name] = array
        return name

    def weights(self, *shape: int, scale: float = 1.0, low: float | None = None) -> str:
        """Random numbers of a type of f32, now and then those of another node: normal, or uniform from ``low`` to 1."""
        same = [n for n, a in self.constants.items() if a.shape == shape and a.dtype == np.float32]
        if low is None and same and self.chance(0.4):
            return str(self.pick(same))
        if low is not None:
            return self.constant(self.rng.uniform(low, 1.0, shape))
        return self.constant(self.rng.standard_normal(shape) * scale)

    def node(self, op: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> list[str]:
        """Append a node; the names of what it makes."""
        from onnx import helper

        names = [self.name() for _ in range(outputs)]
        given = {name: value for name, value in attributes.items() if value is not None}
        message = helper.make_node(op, list(inputs), names, f"n{len(self.nodes)}", **given)
        made = enclosed_node(message, self.values, self.opset)
        for found in made.values():
            _refuse_useless(found)
        self.nodes.append(message)
        self.values |= made
        if any(name in self.moving for name in inputs):
            self.moving += names
        return names

    def one(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Append a node of one result."""
        return self.node(op, inputs, **attributes)[0]

    def operand(self, fits: Callable[[tuple[int, ...]], bool]) -> str:
        """A value of f32 whose extents fit, a late one rather than an early one."""
        found = [n for n in self.moving if self.values[n].dtype == np.float32 and fits(self.shape(n))]
        if not found:
            raise Unfit
        return found[-1 - min(int(self.rng.geometric(0.4)) - 1, len(found) - 1)]

    def attempt(self, step: Callable[[Drawing], None]) -> bool:
        """Take a step, or leave everything as it was if it does not fit."""
        before = len(self.nodes), dict(self.constants), dict(self.values), list(self.moving)
        try:
            step(self)
        except Unfit:
            length, self.constants, self.values, self.moving = before
            del self.nodes[length:]
            return False
        return True


def _refuse_useless(found: Enclosure) -> None:
    """A value that is large, empty, not finite or nearly unknown says nothing of who computed it."""
    if not found.low.size or found.low.size > _MOST_ELEMENTS:
        raise Unfit
    if not found.is_float:
        return
    largest = float(found.largest.max())
    if not largest < _MOST or float(found.radius.max()) > _MOST_UNCERTAIN * max(largest, 1e-3):
        raise Unfit


def drawn(seed: int, index: int) -> Drawn:
    """The graph of that name."""
    from polyconv.conformance.graph_motifs import MOTIFS
    from polyconv.conformance.graph_steps import STEPS

    rng = np.random.default_rng([seed, index])
    d = Drawing(rng, int(rng.choice(_OPSETS)))
    for _ in range(int(rng.choice((1, 1, 2)))):
        _input(d)
    steps, weights = zip(*STEPS, *MOTIFS, strict=True)
    shares = np.array(weights) / sum(weights)
    wanted = int(rng.integers(2, 16))
    for _ in range(20 * wanted):
        wanted -= d.attempt(steps[int(rng.choice(len(steps), p=shares))])
        if not wanted:
            break
    return _finished(d, seed, index)


_EXTENTS = (1, 2, 3, 5, 7, 8, 9, 12, 14, 16, 17, 20)
_CHANNELS = (1, 2, 3, 4, 6, 8, 8, 12, 16, 16, 17, 24, 32)


def _input(d: Drawing) -> None:
    rank = int(d.pick((1, 2, 2, 2, 2, 2, 3)))  # of the spatial part
    shape = (int(d.pick((1, 1, 2, 3))), int(d.pick(_CHANNELS)), *(int(d.pick(_EXTENTS)) for _ in range(rank)))
    if rank == 3:
        shape = (shape[0], min(shape[1], 8), *(min(e, 9) for e in shape[2:]))
    name = f"x{len(d.feeds)}"
    d.feeds[name] = d.rng.standard_normal(shape).astype(np.float32)
    d.values[name] = exact(d.feeds[name])
    d.moving.append(name)


def _finished(d: Drawing, seed: int, index: int) -> Drawn:
    """The model of a drawing: what nobody reads is returned, and some of what is read."""
    from onnx import TensorProto, helper, numpy_helper

    read = {name for node in d.nodes for name in node.input}
    made = [name for node in d.nodes for name in node.output if name in d.moving]
    results = [name for name in made if name not in read or d.chance(0.08)]
    if not results:
        return drawn(seed + (1 << 32), index)  # nothing could be drawn on these inputs
    d.rng.shuffle(results)
    inputs = []
    for name, array in d.feeds.items():
        extents: list[Any] = list(array.shape)
        if d.chance(0.4):
            extents = [f"{name}_{axis}" if d.chance(0.6) else e for axis, e in enumerate(extents)]
        inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, extents))
    outputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(e.dtype), [None] * len(e.shape))
        for name in results for e in (d.values[name],)
    ]
    used = {name: array for name, array in d.constants.items() if name in read}
    graph = helper.make_graph(
        d.nodes, f"graph_{seed}_{index}", inputs, outputs,
        [numpy_helper.from_array(array, name) for name, array in used.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", d.opset)], ir_version=8)
    feeds = {name: array for name, array in d.feeds.items()}
    return Drawn(seed, index, model, feeds, {name: d.values[name] for name in results})
