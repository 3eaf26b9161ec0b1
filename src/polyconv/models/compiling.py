"""A graph turned into a program: constants folded, convolutions fused, the rest cut into steps.

The one idea: steps are made ready in running order, so that each knows types and extents of what it reads from the
engines that make it.  It knows no file format and no engine by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from time import perf_counter

from polyconv.dataclass import dataclass
from polyconv.errors import Unsupported
from polyconv.in_force import keep_where_settings_say
from polyconv.machine.host import profile_in_force
from polyconv.models.ahead import Ahead
from polyconv.models.asking import WIDENING, Facts, tell_types, who_runs
from polyconv.models.clusters import alike, clustered
from polyconv.models.controlled import holds_graphs
from polyconv.models.convolution import convolution
from polyconv.models.finished import finished
from polyconv.models.fold import Views, fold
from polyconv.models.fuse import TAKES_CONSTANTS, fuse
from polyconv.models.gpu_replay import GpuReplays
from polyconv.models.graph import Array, Graph, Node, Value, cut, fixed, live
from polyconv.models.kept import KeptPlans
from polyconv.models.layout import Layout, joining
from polyconv.models.limits import shorten
from polyconv.models.native import (
    ONNX,
    Here,
    Maker,
    Translation,
    foretold,
    fused_segment,
    own_segment,
    pass_of,
    with_finish,
)
from polyconv.models.on_gpu import There, kept_here, refuse, synchronized, with_copies
from polyconv.models.operators import Epilogue, is_convolution, row_of
from polyconv.models.options import Options
from polyconv.models.program import Program
from polyconv.models.replays import Replays
from polyconv.models.segment import Host
from polyconv.models.steps import Step, bytes_of
from polyconv.models.tables import with_tables
from polyconv.operators.building import Fragment
from polyconv.operators.fusing import operand_count
from polyconv.operators.job import MOST_OPERANDS, Own
from polyconv.operators.views import View
from polyconv.settings import resolve

__all__ = ["compile_graph"]

_HELD = 1 / 4
"""Share of a last cache: constants of a network up to it are found there by its next run."""


@dataclass(frozen=True, slots=True, eq=False)
class _Making:
    """What the steps of one program share while they are made ready."""

    graph: Graph
    host: Host
    facts: Facts
    makers: Mapping[str, Node]  # of values that are the same in every run
    order: Mapping[Node, int]
    layout: Layout
    steps: list[Step] = field(default_factory=list)
    reasons: dict[Node, str] = field(default_factory=dict)

    def maker(self, node: Node) -> Maker:
        """What makes the segments of polyconv's own operators, where such a node runs."""
        options = self.facts.options
        if options.device is None or not self.facts.is_there(node):
            return Here(options.threads)
        return There(options.device, resolve("accuracy", options.accuracy))


def compile_graph(
    graph: Graph, overridden: Collection[str], options: Options, host: Host, views: Views,
    translation: Translation = ONNX, made: Mapping[str, Array] | None = None,
) -> Program:  # fmt: skip
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
    translation : Translation
        Of nodes of its format.
    made : mapping
        Of the values that nodes make of constants alone, those that are known already.

    Raises
    ------
    ModelError
        If a node is wrong; it is named.
    Unsupported
        If a convolution is none of polyconv's, or stands in a branch or loop that cannot be run.
    """
    nodes = live(graph.nodes, graph.results)
    for node in nodes:
        if node.hidden and options.device is not None:
            raise Unsupported(
                f"{node.label} contains the convolution {shorten(node.hidden[0])}; branches and loops with "
                f"convolutions run on the CPU only"
            )
        if is_convolution(node.op):
            row_of(node)
    constants = {name: a for name, a in graph.constants.items() if name not in overridden}
    same = fixed(nodes, constants, _is_ours)
    steady = [node for node in nodes if node.writes and same.issuperset(node.writes)]
    moving = [node for node in nodes if not (node.writes and same.issuperset(node.writes))]
    readers = (
        node for node in moving
        if _is_ours(node) or node.op in TAKES_CONSTANTS or translation.knows(node)
    )  # fmt: skip
    wanted = sorted(same.intersection({name for node in readers for name in node.reads}.union(graph.results)))
    folded = fold(graph, steady, wanted, {**constants, **(made or {})}, views, host, _threads(options))
    known = {**constants, **folded}
    fused = fuse(moving, graph.results, known, graph.stated, is_spelled_out=options.rewrites == "all")
    values = {value.name: value for value in graph.inputs} | dict(graph.stated)
    held = {**known, **fused.constants}
    here = frozenset[str]() if options.device is None else kept_here(fused.nodes, graph.inputs, held)
    asked = resolve("layout", options.layout)
    layout = Layout("model" if asked == "auto" and options.rewrites == "exact" else asked)
    making = _Making(
        graph=graph,
        host=host,
        facts=Facts(options, held, values, translation, far=_are_far(held), here=here),
        makers={name: node for node in steady for name in node.writes},
        order={node: index for index, node in enumerate(nodes)},
        layout=layout,
    )
    tell_types(making.facts, fused.nodes)
    _make_all(making, fused.nodes, fused.epilogues, graph.results)
    read = {*graph.results, *(name for step in making.steps for name in step.reads)}  # a Tile, of a constant too
    results = {name: held[name] for name in read if name in held}
    values = making.facts.values
    unknown = [tuple(name for name in step.writes if bytes_of(values[name]) is None) for step in making.steps]
    told = _of_file(steady), (*graph.removed, *_of_file(fused.unread)), results, values, making.reasons, unknown
    switches = _switches(moving, graph.inputs, constants)
    replays = Replays(switches) if options.device is None else GpuReplays(options.device, is_off=options.is_timed)
    clock = perf_counter if options.device is None else synchronized(options.device) if options.is_timed else None
    counting = _counting(making.steps, graph.inputs)
    return Program(tuple(making.steps), *told, ahead=Ahead(_threads(options), layout), here=here, clock=clock,
                   replays=replays, plans=KeptPlans(graph.digest), counting=counting)  # fmt: skip


_WHOLE = ("tensor(int64)", "tensor(int32)", "tensor(bool)")
"""Types of numbers that models count with."""


def _counting(steps: Sequence[Step], inputs: Sequence[Value]) -> frozenset[int]:
    """Steps of which only extents, and inputs that are whole numbers, say what they make."""
    known, found = {value.name for value in inputs if value.type in _WHOLE}, set[int]()
    for index, step in enumerate(steps):
        if not step.segment.varies and (step.segment.extents or known.issuperset(step.reads)):
            known.update(step.writes)
            found.add(index)
    return frozenset(found)


def _is_ours(node: Node) -> bool:
    """Whether a node is a convolution, or holds graphs that are run here."""
    return is_convolution(node.op) or holds_graphs(node)


def _switches(nodes: Sequence[Node], inputs: Sequence[Value], constants: Collection[str]) -> tuple[str, ...]:
    """Inputs of a single whole number from which alone a branch is chosen."""
    makers = {name: node for node in nodes for name in node.writes}
    single = {v.name for v in inputs if v.dims in ((), (1,)) and v.type in _WHOLE}
    found: set[str] = set()
    for node in nodes:
        waiting, leaves = [node.inputs[0]] if node.op == "If" and not node.domain else [], set[str]()
        while waiting:
            name = waiting.pop()
            if name in makers and not makers[name].varies:
                waiting.extend(makers[name].reads)
            elif name not in constants:
                leaves.add(name)
        found |= leaves if leaves <= single else set()
    return tuple(sorted(found))


def _of_file(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The nodes of the file that some nodes are."""
    return tuple(dict.fromkeys(node for each in nodes for node in each.of_file))


def _threads(options: Options) -> int:
    return int(resolve("threads", options.threads))


def _make_all(
    making: _Making, nodes: Sequence[Node], epilogues: Mapping[Node, Epilogue], results: Sequence[str]
) -> None:
    """Make nodes ready, of which some values must come out: convolutions, own operators, and groups for the host."""
    facts = making.facts
    known, constants = facts.known, facts.constants
    nodes, asked = who_runs(facts, nodes, epilogues, results)
    fragments = {node: found for node, found in asked.items() if isinstance(found, Fragment)}
    own = {node: found for node, found in asked.items() if isinstance(found, Own | View)}
    for node, found in asked.items():
        if isinstance(found, str):
            making.reasons.update(dict.fromkeys(node.of_file, found))
    if not facts.options.is_mixed:
        refuse({node: found for node, found in asked.items() if isinstance(found, str) and facts.is_there(node)})
    steps = cut(
        nodes, lambda node: _is_ours(node) or node in own or node in fragments,
        lambda node: node.op in WIDENING,
    )  # fmt: skip
    steps = with_tables(steps, set(results), partial(_numbers_aside, making, fragments), partial(_is_byte, making))
    groups = clustered(
        steps, set(results), lambda some: _is_one_pass(making, some, fragments), fragments.__contains__
    )
    groups, joint = finished(
        groups, set(results),
        lambda node, after, stored: with_finish(node, own.get(node), after, stored, fragments, known, constants),
    )
    readers: dict[str, list[tuple[int, Node]]] = {}  # by value: the group of each, and the node
    for index, group in enumerate(groups):
        for node in group:
            for name in node.reads:
                readers.setdefault(name, []).append((index, node))
    for index, group in enumerate(groups):
        outputs = tuple(
            name
            for node in group
            for name in node.writes
            if name in results or any(reader != index for reader, _ in readers.get(name, ()))
        )
        if is_convolution(group[0].op):
            _make_convolution(making, group[0], epilogues.get(group[0], Epilogue()))
        elif group[0] in fragments:
            reads, segment = fused_segment(group, fragments, outputs, known, constants, making.maker(group[0]))
            _add(making, Step(_of_file(group), reads, outputs, segment))
        elif group[0] in own:
            node, runs = joint.get(group[0], (group[0], own[group[0]]))
            facts.note(foretold(node, runs, known, constants))
            as_pixels = partial(_is_read_by_pixels, making.layout, node.outputs[0], readers, results)
            reads, segment = own_segment(node, runs, known, constants, making.maker(node), as_pixels)
            _add(making, Step(_of_file(group), reads, node.outputs, segment))
            if (price := joining(node, partial(_copied, making, reads))) is not None:
                making.layout.others.append(price)
        else:
            _make_group(making, group, outputs)


def _is_read_by_pixels(layout: Layout, name: str, readers: Mapping[str, Sequence[tuple[int, Node]]],
                       results: Sequence[str]) -> bool:  # fmt: skip
    """Whether channels are last and convolutions alone read a value, or what keeps its order for them."""
    waiting, seen = [name], set[str]()
    while waiting:
        value = waiting.pop()
        found = readers.get(value, ())
        if value in results or not found:
            return False
        seen.add(value)
        for _, node in found:
            is_first = node.inputs[:1] == (value,) and value not in node.inputs[1:]
            if node.domain or not (is_first or node.op == "Concat"):
                return False
            if node.op in _KEEPS_ORDER and node.outputs[0] not in seen:
                waiting.append(node.outputs[0])
            elif node.op not in ("Conv", "ConvTranspose", *_KEEPS_ORDER):
                return False
    return layout.is_last


_KEEPS_ORDER = ("AveragePool", "Concat", "MaxPool", "Reshape", "Resize")
"""Operators whose results lie as what they read."""


def _numbers_aside(making: _Making, fragments: Mapping[Node, Fragment], node: Node) -> Sequence[str] | None:
    """The values that an element-wise node reads beside single numbers; None of any other, and of one on a GPU."""
    fragment = fragments.get(node)
    if fragment is None or making.facts.is_there(node) or any(array.size != 1 for array in fragment.constants):
        return None
    names, constants = [node.inputs[at] for at in fragment.reads], making.facts.constants
    return [name for name in names if name not in constants or constants[name].size != 1]


def _is_byte(making: _Making, name: str) -> bool:
    return making.facts.known(name).type in ("tensor(uint8)", "tensor(int8)")


def _copied(making: _Making, names: Sequence[str]) -> list[Value]:
    """Values whose makers leave no gaps between pixels, so that a Concat with channels last has to copy them."""
    makers = {name: step.segment for step in making.steps for name in step.writes}
    in_place = {name for name, segment in makers.items() if segment.gaps or segment.looks}
    return [making.facts.known(name) for name in names if name not in in_place]


_MOST_STEPS = 24
"""Steps of an expression, which all live in registers."""


def _is_one_pass(making: _Making, nodes: Sequence[Node], fragments: Mapping[Node, Fragment]) -> bool:
    """Whether element-wise nodes may be one pass: of one shape as far as is known, and not too long."""
    if len({making.facts.is_there(node) for node in nodes}) > 1:
        return False
    dims = [making.facts.known(node.outputs[0]).dims for node in nodes]
    _, one = pass_of(nodes, fragments, nodes[-1].outputs[:1], making.facts.constants)
    steps = sum(len(fragments[node].expression.steps) for node in nodes)
    stored = len(nodes)  # at most: which of them are read elsewhere is not known yet
    within = operand_count(one) + min(stored, 4) <= MOST_OPERANDS and steps <= _MOST_STEPS
    return within and all(alike(d, dims[-1]) for d in dims)


def _are_far(constants: Mapping[str, Array]) -> bool:
    """Whether no cache holds constants from run to run."""
    keep_where_settings_say()  # what times the clock of a profile is a kernel, too, and may be the first of a process
    return sum(a.nbytes for a in constants.values()) > profile_in_force().cache("l3", _HELD)


def _make_convolution(making: _Making, node: Node, epilogue: Epilogue) -> None:
    known = [making.facts.known(name) if name else None for name in node.inputs]
    if epilogue.unless is not None and not _is_proven(making, node, epilogue):
        plain = epilogue.unless
        _make_convolution(making, plain.node, plain.epilogue)
        _make_all(making, plain.rest, {}, plain.rest[-1].writes)
        return
    segment = convolution(node, epilogue, known, making.facts.constants, making.facts.options, far=making.facts.far,
                          layout=making.layout)  # fmt: skip
    reads = tuple(name for name in node.reads if name not in making.facts.constants)
    _add(
        making,
        Step(_of_file(epilogue.stands_for or (node,)), reads, tuple(value.name for value in segment.outputs), segment),
    )


def _is_proven(making: _Making, node: Node, epilogue: Epilogue) -> bool:
    """Whether a residual has the result's extents in every run."""
    assert epilogue.unless is not None
    before = epilogue.unless
    known = [making.facts.known(name) if name else None for name in before.node.inputs]
    segment = convolution(before.node, before.epilogue, known, making.facts.constants, making.facts.options)
    dims = segment.outputs[0].dims
    residual = making.facts.known(node.inputs[-1])  # fusion puts it last
    if dims is None or None in dims or not residual.type:
        return False
    return dims == residual.dims and segment.outputs[0].type == residual.type


def _make_group(making: _Making, group: Sequence[Node], outputs: Sequence[str]) -> None:
    nodes = group if holds_graphs(group[0]) else _with_constant_part(making, group)
    made = {name for node in nodes for name in node.writes}
    outside = tuple(dict.fromkeys(name for node in nodes for name in node.reads if name not in made))
    constants = {name: making.facts.constants[name] for name in outside if name in making.facts.constants}
    inputs = tuple(making.facts.known(name) for name in outside if name not in constants)
    segment = making.host(making.graph, nodes, inputs, outputs, constants, _threads(making.facts.options))
    device = making.facts.options.device
    if device is not None and any(making.facts.is_there(node) for node in group):
        segment = with_copies(segment, device, outputs, making.facts.here)
    segment = replace(segment, varies=any(node.varies for node in nodes))
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


def _add(making: _Making, step: Step) -> None:
    making.steps.append(step)
    making.facts.note(step.segment.outputs)
