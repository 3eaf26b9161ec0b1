"""Branches, and loops with convolutions in them: ``If``, ``Loop`` and ``Scan``, whose bodies are programs of their own.

The one idea: a body is a graph like any other, compiled like any other, that reads its own inputs and values from
outside; only which body runs next, and on what, is decided here, in Python.  It must not know how a program runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.errors import Error, ModelError, Unsupported
from polyconv.models.elements import BY_TYPE, type_of
from polyconv.models.feeding import fed
from polyconv.models.graph import Array, Dims, Graph, Node, Value
from polyconv.models.kept import digest_of
from polyconv.models.limits import shorten
from polyconv.models.onnx_file import body
from polyconv.models.program import Program
from polyconv.models.replay import copied
from polyconv.models.segment import ENGINE, Chosen, Host, Segment
from polyconv.models.told import Told, renamed, shown_as
from polyconv.operators.lying import lies, packed

__all__ = ["holds_graphs", "with_control_flow"]

Values = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _Body:
    """A subgraph made ready: its graph, whose first inputs are its own, how many these are, and its program."""

    graph: Graph
    formal: int
    program: Program

    def results(self) -> list[Value]:
        """What is known of its results."""
        found = []
        for declared, name in zip(self.graph.outputs, self.graph.results, strict=True):
            constant = self.program.constants.get(name)
            known = self.program.values.get(name, declared)
            if constant is not None:
                known = Value(name, type_of(constant.dtype), constant.shape)
            found.append(Value(name, known.type or declared.type, known.dims))
        return found

    def run(self, formal: Sequence[Any], outside: Values) -> list[Any]:
        """Its results for its own inputs and what is known outside."""
        own = zip(self.graph.inputs[: self.formal], formal, strict=True)
        return self.program.run({**self.around(outside), **{v.name: fed(v, a) for v, a in own}}, self.graph.results)[0]

    def around(self, outside: Values) -> dict[str, Any]:
        """What it reads of the values that are known outside."""
        return {value.name: outside[value.name] for value in self.graph.inputs[self.formal :]}


Making = Callable[[Node, Mapping[str, _Body], Mapping[str, Value]], tuple[list[Value], Callable[[Values], list[Any]]]]
"""What a node will make, and how, from its bodies and from what is known of the values that it reads."""


def with_control_flow(host: Host, compiled: Callable[[Graph], Program]) -> Host:
    """A host that also runs branches, and loops with convolutions in them.

    Parameters
    ----------
    host : Host
        Who runs all other nodes, and branches without convolutions whose graphs are not read here.
    compiled : callable
        Makes a graph ready to run.
    """

    def made(graph: Graph, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[str],
             constants: Mapping[str, Array], threads: int) -> Segment:  # fmt: skip
        if holds_graphs(nodes[0]):
            try:
                return _segment(graph, nodes[0], inputs, outputs, constants, compiled)
            except (ModelError, Unsupported):
                if nodes[0].hidden:
                    raise
        return host(graph, nodes, inputs, outputs, constants, threads)

    return made


def _segment(graph: Graph, node: Node, inputs: Sequence[Value], outputs: Sequence[str],
             constants: Mapping[str, Array], compiled: Callable[[Graph], Program]) -> Segment:  # fmt: skip
    """A node that holds graphs, made ready to run."""
    names, make = _KINDS.get(node.op, ((), _refused)) if not node.domain else ((), _refused)
    if not all(node.inputs[2 * (node.op == "Loop") :]):
        raise ModelError(f"{node.label} leaves out an input that it needs; its inputs are {shorten(list(node.inputs))}")
    known = {value.name: value for value in inputs}
    known |= {name: Value(name, type_of(a.dtype), a.shape) for name, a in constants.items()}
    if node.op == "If" and (is_met := constants.get(node.inputs[0])) is not None:
        names = names[:1] if _truth(node, is_met) else names[1:]
    around = {value.name: value for value in inputs if value.name in node.captured}
    bodies = {}
    for name in names:
        inner = body(node, name, around, constants, graph.origin.opsets)
        inner = replace(inner, digest=digest_of(f"{graph.digest} {node.name} {name}".encode()))
        formal = sum(value.name not in around for value in inner.inputs)
        bodies[name] = _Body(inner, formal, compiled(inner))
    results, run = make(node, bodies, known)
    places = [node.outputs.index(name) for name in outputs]
    told = tuple(replace(results[at], name=name) for at, name in zip(places, outputs, strict=True))

    def done(how: Callable[[Values], T], arrays: Sequence[Array]) -> T:
        values = {**constants, **{value.name: a for value, a in zip(inputs, arrays, strict=True)}}
        try:
            return how(values)
        except Error as error:
            raise ModelError(f"{node.label}: {error}") from error

    def run_all(arrays: Sequence[Array]) -> Sequence[Array]:
        found = done(run, arrays)
        return [found[at] for at in places]

    def telling(arrays: Sequence[Array]) -> tuple[Sequence[Array], Chosen | None]:
        return done(lambda values: _told(node, _met(node, bodies, values), values, outputs), arrays)

    def held() -> int:
        return sum(step.segment.held() for one in bodies.values() for step in one.program.steps)

    segment = Segment(ENGINE, told, run_all, within=tuple(one.program for one in bodies.values()), held=held)
    return replace(segment, telling=telling) if node.op == "If" and len(bodies) == 2 else segment


def holds_graphs(node: Node) -> bool:
    """Whether a node is run here: it holds a convolution, or chooses a branch, whose steps may be those of a replay."""
    return bool(node.hidden) or (node.op == "If" and not node.domain)


def _met(node: Node, bodies: Mapping[str, _Body], values: Values) -> _Body:
    """The branch that is chosen."""
    if len(bodies) == 1:
        return next(iter(bodies.values()))  # the condition is a constant
    return bodies["then_branch" if _truth(node, values[node.inputs[0]]) else "else_branch"]


def _told(node: Node, one: _Body, values: Values, outputs: Sequence[str]) -> tuple[Sequence[Array], Chosen | None]:
    """Outputs by a branch, and its steps as those of the graph round it; None if one may do otherwise the next time."""
    wanted = [one.graph.results[node.outputs.index(name)] for name in outputs]
    found, told = one.program.told(one.around(values), wanted)
    return found, _spliced(node, one, values, outputs, wanted, told)


def _spliced(node: Node, one: _Body, values: Values, outputs: Sequence[str], wanted: Sequence[str],
             told: Sequence[Told | None]) -> Chosen | None:  # fmt: skip
    """What steps of a branch told, as steps of the graph round it."""
    around = {value.name for value in one.graph.inputs}

    def name_of(name: str) -> str:
        return name if name in around else f"{node.outputs[0]}\0{name}"

    steps = [step for step in told if step is not None]
    if len(steps) < len(told) or any(name in one.program.constants for name in wanted):
        return None
    made = {name: lie for step in steps for name, lie in zip(step.writes, step.made, strict=True)}
    made |= {name: lies(values[name]) for name in around if name in wanted}
    if any(made[name] != packed(made[name].shape, made[name].dtype) for name in wanted):
        return None  # a run of the branch itself copies such a result
    shown = [shown_as(name_of(name), output, made[name]) for name, output in zip(wanted, outputs, strict=True)]
    return Chosen(node.inputs[0], (*(renamed(step, name_of) for step in steps), *shown))


def _refused(node: Node, bodies: Mapping[str, _Body], known: Mapping[str, Value]) -> Any:
    raise Unsupported(
        f"{node.label} contains the convolution {shorten(node.hidden[0])}; polyconv computes every convolution "
        f"itself, and of operators that hold graphs it runs {', '.join(_KINDS)}"
    )


def _truth(node: Node, array: Any) -> bool:
    """A condition: an array of one element."""
    return bool(_number(node, array, "condition"))


def _number(node: Node, array: Any, what: str) -> Any:
    """The element of an array of one."""
    if np.size(array) != 1:
        raise ModelError(f"{node.label} has a {what} of {np.size(array)} elements; it takes one")
    return np.asarray(array).item()


def _either(a: Dims | None, b: Dims | None) -> Dims | None:
    """Extents on which two agree."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(d if d == e and isinstance(d, int) else None for d, e in zip(a, b, strict=True))


def _branch(node: Node, bodies: Mapping[str, _Body], known: Mapping[str, Value]
            ) -> tuple[list[Value], Callable[[Values], list[Any]]]:  # fmt: skip
    """If: one of two bodies without inputs."""
    told = [one.results() for one in bodies.values()]
    if any(len(results) != len(node.outputs) for results in told):
        raise ModelError(f"{node.label} has {len(node.outputs)} outputs, its branches {[len(r) for r in told]}")
    results = [
        Value("", a.type if a.type == b.type else "", _either(a.dims, b.dims))
        for a, b in zip(told[0], told[-1], strict=True)
    ]

    return results, lambda values: _met(node, bodies, values).run((), values)


def _loop(node: Node, bodies: Mapping[str, _Body], known: Mapping[str, Value]
          ) -> tuple[list[Value], Callable[[Values], list[Any]]]:  # fmt: skip
    """Loop: ``(trip, condition, carried) -> (condition, carried, scanned)`` until a count or a condition ends it."""
    one = bodies["body"]
    inputs = (*node.inputs, "", "")[: max(2, len(node.inputs))]
    carried = inputs[2:]
    told = one.results()
    scanned = len(told) - 1 - len(carried)
    if one.formal != 2 + len(carried) or scanned < 0 or len(node.outputs) > len(told) - 1:
        raise ModelError(
            f"{node.label} carries {len(carried)} values and has {len(node.outputs)} outputs; its body has "
            f"{one.formal} inputs and {len(told)} outputs"
        )
    ends = told[1 : 1 + len(carried)]
    results = [Value("", v.type, _either(v.dims, known[name].dims)) for v, name in zip(ends, carried, strict=True)]
    results += [Value("", v.type, None if v.dims is None else (None, *v.dims)) for v in told[1 + len(carried) :]]

    def run(values: Values) -> list[Any]:
        most = int(_number(node, values[inputs[0]], "count")) if inputs[0] else None
        goes_on = _truth(node, values[inputs[1]]) if inputs[1] else True
        now, rows = [copied(values[name], name) for name in carried], list[list[Any]]()
        while goes_on and (most is None or len(rows) < most):
            condition, *made = one.run((np.asarray(len(rows), np.int64), np.asarray(goes_on), *now), values)
            goes_on = _truth(node, condition)
            now = made[: len(carried)]
            rows.append(made[len(carried) :])
        return [*now, *(_stacked(v, [row[at] for row in rows], 0) for at, v in enumerate(told[1 + len(carried) :]))]

    return results, run


def _stacked(value: Value, rows: Sequence[Array], axis: int) -> Array:
    """What iterations made, along a new axis; of none of them, nothing."""
    if rows:
        if not -rows[0].ndim - 1 <= axis <= rows[0].ndim:
            raise ModelError(f"{value.name!r} of shape {rows[0].shape} gets no axis {axis}")
        if len({row.shape for row in rows}) > 1:
            raise ModelError(f"its iterations make {value.name!r} of shapes {rows[0].shape} and others")
        return np.stack(rows, axis)
    extents = [d if isinstance(d, int) else 0 for d in value.dims or ()]
    element = BY_TYPE.get(value.type)
    extents.insert(axis if axis >= 0 else axis + len(extents) + 1, 0)
    return np.empty(extents, np.float32 if element is None else element.numpy)


def _scan(node: Node, bodies: Mapping[str, _Body], known: Mapping[str, Value]
          ) -> tuple[list[Value], Callable[[Values], list[Any]]]:  # fmt: skip
    """Scan: ``(state, slices) -> (state, slices)`` for each place along an axis of the inputs that are scanned."""
    if node.version < 9:
        raise Unsupported(f"{node.label} is of opset {node.version}, whose Scan has a batch: convert it to 9 or later")
    one, a = bodies["body"], node.attributes
    told, scanned = one.results(), a.get("num_scan_inputs", 0)
    if not isinstance(scanned, int):
        raise ModelError(f"{node.label} has num_scan_inputs={shorten(scanned)}; it is a number")
    states, made = len(node.inputs) - scanned, len(told) - (len(node.inputs) - scanned)
    fits = 0 < scanned <= len(node.inputs) and made >= 0 and one.formal == len(node.inputs)
    if not fits or "" in node.inputs or len(node.outputs) > len(told):
        raise ModelError(
            f"{node.label} has {len(node.inputs)} inputs, of which it scans {scanned}; its body has {one.formal} "
            f"inputs and {len(told)} outputs"
        )
    counts = {
        "scan_input_axes": scanned, "scan_input_directions": scanned, "scan_output_axes": made,
        "scan_output_directions": made,
    }  # fmt: skip
    lists = {name: a.get(name) or [0] * count for name, count in counts.items()}
    for name, given in lists.items():
        if not isinstance(given, list) or len(given) != counts[name] or not all(isinstance(v, int) for v in given):
            raise ModelError(f"{node.label} has {name}={shorten(given)} for {scanned} inputs and {made} outputs")
    results = [Value("", v.type, v.dims if at < states else None) for at, v in enumerate(told)]

    def run(values: Values) -> list[Any]:
        state = [copied(values[name], name) for name in node.inputs[:states]]
        read = []
        for name, axis, direction in zip(node.inputs[states:], lists["scan_input_axes"],
                                         lists["scan_input_directions"], strict=True):  # fmt: skip
            x = values[name]
            if not -x.ndim <= axis < x.ndim:
                raise ModelError(f"it scans axis {axis} of {shorten(name)!r}, whose shape is {x.shape}")
            turned = np.moveaxis(x, axis, 0)
            read.append(turned[::-1] if direction else turned)
        if len({len(x) for x in read}) > 1:
            raise ModelError(f"it scans extents {[len(x) for x in read]}; they must agree")
        rows = []
        for at in range(len(read[0])):
            found = one.run((*state, *(np.ascontiguousarray(x[at]) for x in read)), values)
            state = found[:states]
            rows.append(found[states:])
        scans = []
        for at, v in enumerate(told[states:]):
            parts = [row[at] for row in rows]
            is_back = lists["scan_output_directions"][at]
            scans.append(_stacked(v, parts[::-1] if is_back else parts, lists["scan_output_axes"][at]))
        return [*state, *scans]

    return results, run


_KINDS: Mapping[str, tuple[tuple[str, ...], Making]] = {
    "If": (("then_branch", "else_branch"), _branch),
    "Loop": (("body",), _loop),
    "Scan": (("body",), _scan),
}
"""Operator -> its bodies and how it runs them."""
