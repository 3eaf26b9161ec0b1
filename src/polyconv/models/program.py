"""A graph made ready to run: steps in order, each a convolution of ours or a group of other nodes.

Constants are folded, convolutions fused, the rest cut into groups for the format's host.  The one idea:
steps are made ready in running order, so that each knows types and extents of what it reads from the
engines that make it.  It knows no file format and no engine by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from polyconv.errors import Error, Unsupported
from polyconv.models.ahead import Ahead
from polyconv.models.clusters import alike, clustered
from polyconv.models.convolution import convolution
from polyconv.models.elements import type_of
from polyconv.models.fold import Views, fold
from polyconv.models.fuse import TAKES_CONSTANTS, fuse
from polyconv.models.graph import Array, Graph, Node, Value, consumers, cut, fixed, live
from polyconv.models.limits import shorten
from polyconv.models.native import OPERATORS, fused_segment, native, own_segment, pass_of
from polyconv.models.operators import Epilogue, Options, is_convolution, row_of
from polyconv.models.replay import Replays, copied
from polyconv.models.segment import Host
from polyconv.models.steps import Alive, Schedule, Step, Times, bytes_of, most_alive, scheduled
from polyconv.models.told import Told, told_of
from polyconv.operators.elementwise import Fragment
from polyconv.operators.fusing import operand_count
from polyconv.operators.job import MOST_OPERANDS, Own
from polyconv.operators.table import Taken
from polyconv.operators.views import View
from polyconv.settings import resolve

__all__ = ["Program", "compile_graph"]


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Steps in running order, and what is known beforehand.

    Parameters
    ----------
    steps : tuple of Step
        In running order.
    folded : tuple of Node
        Nodes that were computed when the model was read, or lie in a step as constants.
    removed : tuple of Node
        Nodes that need no computing.
    constants : mapping
        Results that are the same in every run.
    values : mapping
        What the engines know of every value.
    reasons : mapping
        Why nodes that are on a host are there.
    open : sequence of tuple of str
        By step, the values of which only a run tells the extents.
    replays : Replays
        Of runs that are alike.
    ahead : Ahead
        What makes steps ready before the first run.
    """

    steps: tuple[Step, ...]
    folded: tuple[Node, ...]
    removed: tuple[Node, ...]
    constants: Mapping[str, Array]
    values: Mapping[str, Value]
    reasons: Mapping[Node, str]
    open: Sequence[tuple[str, ...]]
    _schedules: dict[tuple[str, ...], Schedule] = field(default_factory=dict)
    _seen: dict[str, Value] = field(default_factory=dict)
    replays: Replays = field(default_factory=Replays)
    ahead: Ahead = field(kw_only=True)

    def run(
        self, feeds: Mapping[str, Array], results: Sequence[str], is_halted: Callable[[], bool] = lambda: False
    ) -> tuple[list[Array], Times]:
        """Run the steps that some results need.

        Parameters
        ----------
        feeds : mapping
            Graph inputs.
        results : sequence of str
            Values to return, in this order.
        is_halted : callable
            Asked before each step; once it is true, the run ends with an ``Error``.

        Returns
        -------
        list of ndarray, Times
            The results, each in memory of its own, and how long the steps took.
        """
        times = Times(len(self.steps))

        def halt(index: int) -> None:
            if is_halted():
                raise Error(f"the run was asked to end, before its step {index} of {len(self.steps)}")

        replay = self.replays.found(results, feeds)
        done = None if replay is None else replay.run(feeds, times, halt)
        if replay is not None and replay.is_over:
            self.replays.forget(replay)
        again = {} if done is None else done[0]
        self._seen.update({name: _seen(name, again[name]) for names in self.open for name in names if name in again})
        values, fresh = done or self._by_steps(feeds, tuple(results), times, halt)
        found = []
        for name in results:
            found.append(values[name] if name in fresh else copied(values[name], name))
            fresh.discard(name)  # it may be asked for twice
        return found, times

    def _by_steps(self, feeds: Mapping[str, Array], results: tuple[str, ...], times: Times, halt: Callable[[int], None]
                  ) -> tuple[dict[str, Any], set[str]]:  # fmt: skip
        """Run step by step: values by name, and which of them nobody else holds the memory of."""
        values: dict[str, Any] = {**self.constants, **feeds}
        fresh: set[str] = set()
        told: list[Told | None] | None = [] if self.replays.wants(results, feeds) else None
        schedule = self._schedule(results)
        self.ahead([self.steps[index] for index, _ in schedule], self.values, feeds)
        for index, last in schedule:
            step = self.steps[index]
            halt(index)
            start = perf_counter()
            given = [values[name] for name in step.reads]
            made = step.segment.run(given)
            passed = perf_counter() - start
            times.add(index, passed)
            if told is not None:
                told.append(told_of(index, step.reads, step.writes, step.segment, given, made, passed))
            values.update(zip(step.writes, made, strict=False))
            for name in self.open[index]:
                self._seen[name] = _seen(name, values[name])
            if not step.segment.views:
                fresh.update(step.writes)
            for name in last:
                del values[name]
        if told:
            self.replays.learn(told, results, self.constants, feeds)
        return values, fresh

    @property
    def known(self) -> Mapping[str, Value]:
        """What is known of every value: before any run, or else by the last one."""
        return {**self.values, **self._seen}

    def alive(self, results: Sequence[str]) -> Alive | None:
        """Bytes that a run for some results has alive at once; None as long as no run has told open extents."""
        return most_alive(self.steps, self._schedule(tuple(results)), self.known)

    def _schedule(self, results: tuple[str, ...]) -> Schedule:
        found = self._schedules.get(results)
        if found is None:
            found = self._schedules[results] = scheduled(self.steps, results, self.constants)
        return found


def _seen(name: str, made: Any) -> Value:
    """What a run tells of a value."""
    return Value(name, type_of(made.dtype), made.shape) if isinstance(made, np.ndarray) else Value(name)


@dataclass(frozen=True, slots=True, eq=False)
class _Making:
    """What the steps of one program share while they are made ready."""

    graph: Graph
    options: Options
    host: Host
    constants: Mapping[str, Array]
    makers: Mapping[str, Node]  # of values that are the same in every run
    order: Mapping[Node, int]
    values: dict[str, Value]
    steps: list[Step] = field(default_factory=list)
    reasons: dict[Node, str] = field(default_factory=dict)


def compile_graph(graph: Graph, overridden: Collection[str], options: Options, host: Host, views: Views) -> Program:
    """Make a graph ready to run.

    Parameters
    ----------
    graph : Graph
        As read.
    overridden : collection of str
        Inputs with a default that runs will feed all the same.
    options : Options
        Of the session.
    host : Host
        Who runs the nodes that are no convolutions.
    views : mapping
        See ``fold``.

    Raises
    ------
    ModelError
        If a node is wrong; it is named.
    Unsupported
        If a convolution is none of polyconv's, or stands inside control flow.
    """
    nodes = live(graph.nodes, graph.results)
    for node in nodes:
        if node.hidden:
            raise Unsupported(
                f"{node.label} contains the convolution {shorten(node.hidden[0])}; polyconv computes every "
                f"convolution itself and does not run control flow: write the loop or branch out"
            )
        if is_convolution(node.op):
            row_of(node)
    constants = {name: a for name, a in graph.constants.items() if name not in overridden}
    same = fixed(nodes, constants, lambda node: is_convolution(node.op))
    steady = [node for node in nodes if node.writes and same.issuperset(node.writes)]
    moving = [node for node in nodes if not (node.writes and same.issuperset(node.writes))]
    readers = (
        node for node in moving
        if is_convolution(node.op) or node.op in TAKES_CONSTANTS or (node.op in OPERATORS and not node.domain)
    )  # fmt: skip
    wanted = sorted(same.intersection({name for node in readers for name in node.reads}.union(graph.results)))
    folded = fold(graph, steady, wanted, constants, views, host, _threads(options))
    known = {**constants, **folded}
    fused = fuse(moving, graph.results, known, is_spelled_out=options.rewrites == "all")
    making = _Making(
        graph=graph,
        options=options,
        host=host,
        constants={**known, **fused.constants},
        makers={name: node for node in steady for name in node.writes},
        order={node: index for index, node in enumerate(nodes)},
        values={value.name: value for value in graph.inputs} | dict(graph.stated),
    )
    _tell_types(making, fused.nodes)
    _make_all(making, fused.nodes, fused.epilogues, graph.results)
    results = {name: known[name] for name in graph.results if name in known}
    values = making.values
    unknown = [tuple(name for name in step.writes if bytes_of(values[name]) is None) for step in making.steps]
    told = _of_file(steady), graph.removed, results, values, making.reasons, unknown
    return Program(tuple(making.steps), *told, ahead=Ahead(_threads(options)))


def _of_file(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The nodes of the file that some nodes are."""
    return tuple(dict.fromkeys(node for each in nodes for node in each.of_file))


_WIDENING = frozenset(("DequantizeLinear",))
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


def _threads(options: Options) -> int:
    return int(resolve("threads", options.threads))


_TYPE_OF = {
    "QuantizeLinear": 2, "DequantizeLinear": 1, "QLinearConv": 7, "QLinearMatMul": 7,
    **dict.fromkeys((
        "Add", "AveragePool", "Clip", "Concat", "Div", "Exp", "Flatten", "GlobalAveragePool", "GlobalMaxPool",
        "HardSigmoid", "HardSwish", "LeakyRelu", "MaxPool", "Mul", "Relu", "Reshape", "Sigmoid", "Slice", "Softmax",
        "Split", "Squeeze", "Sub", "Tanh", "Transpose", "Unsqueeze",
    ), 0),
}  # fmt: skip
"""Operators whose results have the type of an input, and of which."""
_ALIKE = ("QuantizeLinear", "DequantizeLinear", "Clip", "LeakyRelu", "Relu", "Sigmoid", "Tanh")
"""Those of them whose results have the extents of their first input."""


def _tell_types(making: _Making, nodes: Iterable[Node]) -> None:
    """Say of which types and extents values are where the file does not, as behind operators of other domains."""
    for node in nodes:
        at = _TYPE_OF.get(node.op)
        if at is None or at >= len(node.inputs) or not node.inputs[at]:
            continue
        kind = _known(making, node.inputs[at]).type
        dims = _known(making, node.inputs[0]).dims if node.op in _ALIKE else None
        for value in (making.values.get(name, Value(name)) for name in node.writes):
            found = dims if value.dims is None else value.dims
            making.values[value.name] = replace(value, type=value.type or kind, dims=found)


def _make_all(
    making: _Making, nodes: Sequence[Node], epilogues: Mapping[Node, Epilogue], results: Sequence[str]
) -> None:
    """Make nodes ready, of which some values must come out: convolutions, own operators, and groups for the host."""
    known = partial(_known, making)
    asked = {node: native(node, known, making.constants) for node in nodes if not is_convolution(node.op)}
    _leave_to_hosts(nodes, asked)
    fragments = {node: found for node, found in asked.items() if isinstance(found, Fragment)}
    own = {node: found for node, found in asked.items() if isinstance(found, Own | View)}
    for node, found in asked.items():
        if isinstance(found, str):
            making.reasons.update(dict.fromkeys(node.of_file, found))
    steps = cut(
        nodes, lambda node: is_convolution(node.op) or node in own or node in fragments,
        lambda node: node.op in _WIDENING,
    )  # fmt: skip
    groups = clustered(
        steps, set(results), lambda some: _is_one_pass(making, some, fragments), fragments.__contains__
    )
    readers: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        for node in group:
            for name in node.reads:
                readers.setdefault(name, []).append(index)
    for index, group in enumerate(groups):
        outputs = tuple(
            name for node in group for name in node.writes
            if name in results or any(reader != index for reader in readers.get(name, ()))
        )  # fmt: skip
        if is_convolution(group[0].op):
            _make_convolution(making, group[0], epilogues.get(group[0], Epilogue()))
        elif group[0] in fragments:
            reads, segment = fused_segment(group, fragments, outputs, known, making.constants, making.options.threads)
            _add(making, Step(_of_file(group), reads, outputs, segment))
        elif group[0] in own:
            reads, segment = own_segment(group[0], own[group[0]], known, making.constants, making.options.threads)
            _add(making, Step(_of_file(group), reads, group[0].outputs, segment))
        else:
            _make_group(making, group, outputs)


_MOST_STEPS = 24
"""Steps of an expression, which all live in registers."""


def _is_one_pass(making: _Making, nodes: Sequence[Node], fragments: Mapping[Node, Fragment]) -> bool:
    """Whether element-wise nodes may be one pass: of one shape as far as is known, and not too long."""
    dims = [_known(making, node.outputs[0]).dims for node in nodes]
    _, one = pass_of(nodes, fragments, nodes[-1].outputs[:1], making.constants)
    steps = sum(len(fragments[node].expression.steps) for node in nodes)
    stored = len(nodes)  # at most: which of them are read elsewhere is not known yet
    within = operand_count(one) + min(stored, 4) <= MOST_OPERANDS and steps <= _MOST_STEPS
    return within and all(alike(d, dims[-1]) for d in dims)


def _make_convolution(making: _Making, node: Node, epilogue: Epilogue) -> None:
    known = [_known(making, name) if name else None for name in node.inputs]
    if epilogue.unless is not None and not _is_proven(making, node, epilogue):
        plain = epilogue.unless
        _make_convolution(making, plain.node, plain.epilogue)
        _make_all(making, plain.rest, {}, plain.rest[-1].writes)
        return
    segment = convolution(node, epilogue, known, making.constants, making.options)
    reads = tuple(name for name in node.reads if name not in making.constants)
    writes = tuple(value.name for value in segment.outputs)
    _add(making, Step(_of_file(epilogue.stands_for or (node,)), reads, writes, segment))


def _is_proven(making: _Making, node: Node, epilogue: Epilogue) -> bool:
    """Whether a residual has the result's extents in every run."""
    assert epilogue.unless is not None
    before = epilogue.unless
    known = [_known(making, name) if name else None for name in before.node.inputs]
    segment = convolution(before.node, before.epilogue, known, making.constants, making.options)
    dims = segment.outputs[0].dims
    residual = _known(making, node.inputs[-1])  # fusion puts it last
    if dims is None or None in dims or not residual.type:
        return False
    return dims == residual.dims and segment.outputs[0].type == residual.type


def _make_group(making: _Making, group: Sequence[Node], outputs: Sequence[str]) -> None:
    nodes = _with_constant_part(making, group)
    made = {name for node in nodes for name in node.writes}
    outside = tuple(dict.fromkeys(name for node in nodes for name in node.reads if name not in made))
    constants = {name: making.constants[name] for name in outside if name in making.constants}
    inputs = tuple(_known(making, name) for name in outside if name not in constants)
    segment = making.host(making.graph, nodes, inputs, outputs, constants, _threads(making.options))
    _add(making, Step(_of_file(group), tuple(value.name for value in inputs), tuple(outputs), segment))


def _with_constant_part(making: _Making, group: Sequence[Node]) -> list[Node]:
    """A group with the nodes that make its constants, so that the host can fold them as it likes."""
    nodes = dict.fromkeys(group)
    waiting = list(group)
    while waiting:
        for name in waiting.pop().reads:
            maker = making.makers.get(name)
            if maker is not None and maker not in nodes:
                nodes[maker] = None
                waiting.append(maker)
    return sorted(nodes, key=making.order.__getitem__)


def _known(making: _Making, name: str) -> Value:
    constant = making.constants.get(name)
    if constant is not None:
        return Value(name, type_of(constant.dtype), constant.shape)
    return making.values.get(name, Value(name))


def _add(making: _Making, step: Step) -> None:
    making.steps.append(step)
    for value in step.segment.outputs:
        stated = making.values.get(value.name, value)
        dims = stated.dims if value.dims is None else value.dims
        making.values[value.name] = replace(stated, type=value.type or stated.type, dims=dims)
