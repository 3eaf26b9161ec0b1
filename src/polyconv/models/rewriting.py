"""Rules that turn some nodes of a graph into fewer or cheaper ones, applied until none fits any more.

A rule looks at one node and what lies round it and says what takes the place of which nodes.  The one idea: a rule is a
pure function with a name, so that each can be read, tested and left out alone.  It knows no operator and no format.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from polyconv.dataclass import dataclass
from polyconv.models.graph import Array, Graph, Node, Value, live

__all__ = ["Change", "Rule", "View", "rewritten", "standing_for"]

_MOST_PASSES = 100


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """What a rule sees of a graph.

    Parameters
    ----------
    constants : mapping
        Values that are known.
    makers : mapping
        The node that makes a value.
    readers : mapping
        The nodes that read a value, once for each reading input.
    results : collection of str
        Values that the graph returns.
    values : mapping
        Types and extents, as far as they are proven.
    opsets : mapping
        Version of every operator set.
    """

    constants: Mapping[str, Array]
    makers: Mapping[str, Node]
    readers: Mapping[str, Sequence[Node]]
    results: Collection[str]
    values: Mapping[str, Value]
    opsets: Mapping[str, int]

    def only_reader(self, name: str) -> Node | None:
        """The one node that reads a value which nobody else needs; None where there are more, or it is returned."""
        found = self.readers.get(name, ())
        return found[0] if len(found) == 1 and name not in self.results and name not in found[0].captured else None

    def constant(self, node: Node, position: int) -> Array | None:
        """The constant that a node reads there; None where it reads none, or nothing."""
        name = node.inputs[position] if position < len(node.inputs) else ""
        return self.constants.get(name) if name else None

    def fresh(self, name: str) -> str:
        """A name that no value has, near the given one."""
        while name in self.constants or name in self.makers or name in self.readers:
            name += "'"
        return name


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """What a rule proposes.

    Parameters
    ----------
    gone : tuple of Node
        Nodes that are no longer needed, in running order.
    nodes : tuple of Node
        What stands in the place of the last of them.
    constants : mapping
        New ones, which the new nodes read.
    renamed : mapping
        Values that nobody makes any more, to what is read instead.
    """

    gone: tuple[Node, ...]
    nodes: tuple[Node, ...] = ()
    constants: Mapping[str, Array] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule by the operators of the node that it looks at.

    Parameters
    ----------
    ops : frozenset of str
        Operators.
    apply : callable
        ``apply(node, view)``: the change, or None.
    is_exact : bool
        Whether every bit of every result stays as it was.
    domains : frozenset of str
        Of the operators: others may have their names.
    """

    ops: frozenset[str]
    apply: Callable[[Node, View], Change | None]
    is_exact: bool
    domains: frozenset[str] = frozenset(("",))


def standing_for(like: Node, taken: Sequence[Node], **fields: Any) -> Node:
    """A node like another, in the place of some."""
    stands_for = tuple(node for each in taken for node in each.of_file)
    return replace(like, **fields, origin=None, stands_for=stands_for)


def rewritten(graph: Graph, rules: Iterable[Rule], known: Mapping[str, Array], opsets: Mapping[str, int]) -> Graph:
    """Apply rules to a graph until none fits.

    Parameters
    ----------
    graph : Graph
        As read.
    rules : iterable of Rule
        In the order in which they are tried on a node.
    known : mapping
        Values that are the same in every run: constants, and what nodes make of them.
    opsets : mapping
        Version of every operator set.
    """
    by_op: dict[str, list[Rule]] = {}
    for rule in rules:
        for op in rule.ops:
            by_op.setdefault(op, []).append(rule)
    nodes = live(graph.nodes, graph.results)
    constants = dict(known)
    before = nodes
    for _ in range(_MOST_PASSES):
        changes = _found(nodes, constants, graph, by_op, opsets)
        if not changes:
            break
        for change in changes:
            constants |= change.constants
        nodes = live(_applied(nodes, changes), graph.results)
    needed = {name for node in nodes for name in node.reads}.union(graph.results, graph.defaults)
    needed -= {name for node in nodes for name in node.writes}
    kept = {name: array for name, array in {**graph.constants, **constants}.items() if name in needed}
    there = {node for each in nodes for node in each.of_file}
    removed = tuple(node for each in before for node in each.of_file if node not in there)
    return replace(graph, nodes=tuple(nodes), constants=kept, removed=(*graph.removed, *removed))


def _found(nodes: Sequence[Node], constants: Mapping[str, Array], graph: Graph, by_op: Mapping[str, list[Rule]],
           opsets: Mapping[str, int]) -> list[Change]:  # fmt: skip
    """Changes of one pass, none of which touches a node or a value of another."""
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        for name in (*node.inputs, *node.captured):
            if name:
                readers.setdefault(name, []).append(node)
    makers = {name: node for node in nodes for name in node.writes}
    view = View(constants, makers, readers, frozenset(graph.results), graph.stated, opsets)
    touched: set[Node] = set()
    read_instead, vanished = set[str](), set[str]()
    changes = []
    for node in nodes:
        for rule in by_op.get(node.op, ()):
            change = None if node in touched or node.domain not in rule.domains else rule.apply(node, view)
            if change is None or not _is_free(change, view, touched):
                continue
            lost = _vanishing(change)  # what one change leads readers to, another one must leave there
            if not (lost.isdisjoint(read_instead) and vanished.isdisjoint(change.renamed.values())):
                continue
            read_instead.update(change.renamed.values())
            vanished |= lost
            touched.update(change.gone)
            touched.update(reader for name in change.renamed for reader in readers.get(name, ()))
            changes.append(change)
            break
    return changes


def _is_free(change: Change, view: View, touched: Collection[Node]) -> bool:
    """Whether a change can be made: of values it renames none is returned or read by a subgraph."""
    around = [reader for name in change.renamed for reader in view.readers.get(name, ())]
    if any(node in touched for node in (*change.gone, *around)):
        return False
    return not any(
        name in view.results or any(name in reader.captured for reader in view.readers.get(name, ()))
        for name in change.renamed
    )


def _vanishing(change: Change) -> set[str]:
    """Values that nobody makes any more, and nothing takes the place of."""
    made = {name for node in change.nodes for name in node.writes}
    return {name for node in change.gone for name in node.writes} - made - set(change.renamed)


def _applied(nodes: Sequence[Node], changes: Sequence[Change]) -> list[Node]:
    gone = {node for change in changes for node in change.gone}
    places = {change.gone[-1]: change.nodes for change in changes}
    renamed = {old: new for change in changes for old, new in change.renamed.items()}
    for old, new in renamed.items():  # which another change may have renamed in turn
        while new in renamed:
            new = renamed[new]
        renamed[old] = new
    found: list[Node] = []
    for node in nodes:
        kept = places.get(node, ()) if node in gone else (node,)
        found += (_renamed(each, renamed) for each in kept)
    return found


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    if not any(name in names for name in node.inputs):
        return node
    stands_for = node.stands_for or (node,)
    return replace(node, inputs=tuple(names.get(name, name) for name in node.inputs), stands_for=stands_for)
