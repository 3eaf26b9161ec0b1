"""The neutral graph: what every model file is turned into, and how it is put in order and cut.

Values have names, nodes read and write them, constants are arrays; cutting puts each convolution
into a step of its own and all nodes between two rows of convolutions into one.  The one idea: a
node's depth is the number of rows of convolutions above it, and equal depths may run together.  It knows
no file format, no engine and no arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.errors import ModelError
from polyconv.models.content import Content
from polyconv.models.limits import MOST_NODES, shorten

__all__ = ["Array", "Dims", "Graph", "ModelMetadata", "Node", "Value", "consumers", "cut", "fixed", "live", "order"]

Array = NDArray[Any]
Dims = tuple[int | str | None, ...]
"""Extents: a number, a name, or None where unknown."""


STAND_IN = 48
"""For an extent that is not known before a run, where only a rank is asked, or what is faster."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor's name, type and extents, as onnxruntime's ``NodeArg`` presents them.

    Parameters
    ----------
    name : str
        Its name.
    type : str
        ``tensor(float)`` and so on; empty where unknown.
    dims : tuple or None
        Extents; None for an unknown rank.
    channels_last : bool
        Whether it will lie so in memory, as far as is known; its extents are in the model's order all the same.
    """

    name: str
    type: str = ""
    dims: Dims | None = None
    channels_last: bool = False

    @property
    def shape(self) -> list[int | str | None]:
        """Extents as a list; empty for a scalar and for an unknown rank, as in onnxruntime."""
        return list(self.dims or ())


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """An operator and the values it reads and writes.

    Parameters
    ----------
    name, op, domain : str
        As in the file; a node without a name is called after its place.
    version : int
        Opset of its domain.
    inputs, outputs : tuple of str
        Value names by position; empty where an optional one is left out.
    attributes : mapping
        Python values, as far as polyconv reads them.
    captured : tuple of str
        Values that its subgraphs read from outside.
    hidden : tuple of str
        Labels of the convolutions inside its subgraphs.
    varies : bool
        Whether two runs on equal inputs may differ (random numbers, state).
    origin : object
        The file's own node, for the host that runs it; None for one that a rewrite made.
    stands_for : tuple of Node
        Nodes of the file whose place it took; none for a node of the file itself.
    """

    name: str
    op: str
    domain: str
    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    captured: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    varies: bool = False
    origin: Any = None
    stands_for: tuple[Node, ...] = ()

    @property
    def of_file(self) -> tuple[Node, ...]:
        """The nodes of the file that it is."""
        return tuple(node for each in self.stands_for for node in each.of_file) or (self,)

    @property
    def label(self) -> str:
        """How messages call it: as in the file, where it stands for one node of it."""
        if len(self.stands_for) == 1:
            return self.stands_for[0].label
        return f"{shorten(self.op, 80)} node {shorten(self.name, 120)!r}"

    @property
    def reads(self) -> tuple[str, ...]:
        """Every value it needs, each once."""
        return tuple(dict.fromkeys(name for name in (*self.inputs, *self.captured) if name))

    @property
    def writes(self) -> tuple[str, ...]:
        """Every value it makes."""
        return tuple(name for name in self.outputs if name)


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What a file says of itself, with the names of onnxruntime's ``ModelMetadata``.

    Parameters
    ----------
    custom_metadata_map : mapping
        Its own keys and values.
    description, domain, producer_name : str
        Of the model; empty where it does not say.
    graph_description, graph_name : str
        Of its graph.
    version : int
        Of the model; 2^63 - 1 where it does not say.
    """

    custom_metadata_map: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    domain: str = ""
    graph_description: str = ""
    graph_name: str = ""
    producer_name: str = ""
    version: int = (1 << 63) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A model.

    Parameters
    ----------
    format : str
        ``onnx`` or ``openvino``: who can run its other nodes.
    inputs : tuple of Value
        What a run must or may be fed, by their public names.
    outputs : tuple of Value
        What a run returns, by their public names.
    results : tuple of str
        The values behind ``outputs``.
    nodes : tuple of Node
        In an order in which they can run.
    constants : mapping
        Values known from the file.
    defaults : frozenset of str
        Inputs that may be left out because a constant has their name.
    aliases : mapping
        Other names of inputs and outputs.
    stated : mapping
        Types and extents of values in between: proven (ONNX) or claimed by the file (OpenVINO).
    origin : object
        What the format's host needs beside the nodes.
    removed : tuple of Node
        Nodes of the file that need no computing, as rewrites found.
    about : ModelMetadata
        What the file says of itself.
    digest : str
        Fingerprint of the file, weights left out; empty where none was made.
    content : Content or None
        The large constants, which are zeros until it is filled, and the fingerprint of the file with them; None where
        that would take too long, or not all lie in it.
    """

    format: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    results: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    defaults: frozenset[str] = frozenset()
    aliases: Mapping[str, str] = field(default_factory=dict)
    stated: Mapping[str, Value] = field(default_factory=dict)
    origin: Any = None
    removed: tuple[Node, ...] = ()
    about: ModelMetadata = field(default_factory=ModelMetadata)
    digest: str = ""
    content: Content | None = None


def order(nodes: Sequence[Node], given: Collection[str], results: Iterable[str]) -> tuple[Node, ...]:
    """Put nodes into an order in which they can run.

    Parameters
    ----------
    nodes : sequence of Node
        As in the file; an order that already works is kept.
    given : collection of str
        Inputs and constants.
    results : iterable of str
        Values the graph must deliver.

    Raises
    ------
    ModelError
        If a value is made twice, or never, or by a circle of nodes; the node is named.
    """
    if len(nodes) > MOST_NODES:
        raise ModelError(f"the graph has {len(nodes)} nodes; polyconv reads at most {MOST_NODES}")
    maker: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.writes:
            if name in maker or name in given:
                other = nodes[maker[name]].label if name in maker else "a graph input or initialiser"
                raise ModelError(f"{node.label} makes the value {name!r}, which {other} makes too")
            maker[name] = index
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        for name in node.reads:
            if name in maker:
                waiting[index] += 1
                readers[maker[name]].append(index)
            elif name not in given:
                raise ModelError(f"{node.label} reads the value {shorten(name)!r}, which nothing makes")
    for name in results:
        if name not in maker and name not in given:
            raise ModelError(f"the graph output {shorten(name)!r} is made by no node")
    if all(maker[name] < index for index, node in enumerate(nodes) for name in node.reads if name in maker):
        return tuple(nodes)
    ready = [index for index, count in enumerate(waiting) if count == 0]
    done: list[Node] = []
    while ready:
        index = ready.pop()
        done.append(nodes[index])
        for reader in readers[index]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.append(reader)
    if len(done) < len(nodes):
        stuck = [node.label for node, count in zip(nodes, waiting, strict=True) if count]
        raise ModelError(f"{stuck[0]} waits for its own result: {len(stuck)} nodes form or follow a circle")
    return tuple(done)


def live(nodes: Sequence[Node], results: Iterable[str]) -> list[Node]:
    """Nodes that some result depends on, in order."""
    needed = set(results)
    kept = []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.writes):
            needed.update(node.reads)
            kept.append(node)
    return kept[::-1]


def fixed(nodes: Iterable[Node], constants: Collection[str], moving: Callable[[Node], bool]) -> set[str]:
    """Names of all values that are the same in every run.

    Parameters
    ----------
    nodes : iterable of Node
        In running order.
    constants : collection of str
        Where it starts.
    moving : callable
        Whether a node counts as changing although its inputs do not.
    """
    names = set(constants)
    for node in nodes:
        if not node.varies and not moving(node) and all(name in names for name in node.reads):
            names.update(node.writes)
    return names


def along(array: Array, rank: int, axis: int) -> Array | None:
    """The numbers along one axis that an array amounts to, broadcast to so many axes; None if it has others."""
    extents = (1,) * (rank - array.ndim) + array.shape
    others = [extent for at, extent in enumerate(extents) if at != axis]
    return array.reshape(-1) if array.ndim <= rank and all(extent == 1 for extent in others) else None


def consumers(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    """Which nodes read a value, once for each reading input."""
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        for name in (*node.inputs, *node.captured):
            if name:
                readers.setdefault(name, []).append(node)
    return readers


def cut(
    nodes: Sequence[Node], alone: Callable[[Node], bool], late: Callable[[Node], bool] = lambda node: False
) -> list[tuple[Node, ...]]:
    """Cut a graph into steps: every node for which ``alone`` holds, and as few groups of the others as there can be.

    A group's depth counts the groups before it on the deepest path to it.  All nodes of one depth form one group,
    which runs before the lonely ones that need it.

    Parameters
    ----------
    nodes : sequence of Node
        In running order.
    alone : callable
        Whether a node is a step of its own.
    late : callable
        Whether a node goes into the group of its first reader, not into the first one in which it can run.
    """
    depths: dict[Node, int] = {}
    makers: dict[str, Node] = {}
    for node in nodes:
        # a group runs before the lonely nodes of its depth
        behind = [
            depths[maker] + (alone(maker) and not alone(node)) for name in node.reads if (maker := makers.get(name))
        ]
        depths[node] = max(behind, default=0)
        makers.update(dict.fromkeys(node.writes, node))
    first: dict[str, int] = {}  # depth of the first reader of a value
    for node in reversed(nodes):
        if late(node) and not alone(node) and all(name in first for name in node.writes):
            depths[node] = max(depths[node], min(first[name] for name in node.writes))
        for name in node.reads:
            first[name] = min(depths[node], first.get(name, depths[node]))
    groups: dict[int, list[Node]] = {}
    lonely: dict[int, list[Node]] = {}
    for node in nodes:
        (lonely if alone(node) else groups).setdefault(depths[node], []).append(node)
    steps: list[tuple[Node, ...]] = []
    for depth in sorted({*groups, *lonely}):
        if depth in groups:
            steps.append(tuple(groups[depth]))
        steps.extend((node,) for node in lonely.get(depth, ()))
    return steps
