"""Element-wise nodes that make bytes of one byte each: which of them are looked up in one table.

``DequantizeLinear``, what follows it and ``QuantizeLinear`` again are such nodes.  The one idea: a value has a root,
the one value of bytes of which alone it is made; all that has the same root is one step, of one result or several.
It must not know what a node computes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from polyconv.models.graph import Node, consumers

__all__ = ["with_tables"]

Reads = Callable[[Node], Sequence[str] | None]
"""The values that an element-wise node reads beside single numbers; None of any other node."""


def with_tables(steps: Sequence[tuple[Node, ...]], results: Collection[str], reads: Reads,
                is_byte: Callable[[str], bool]) -> list[tuple[Node, ...]]:  # fmt: skip
    """Put nodes together that make bytes of the same bytes.

    Parameters
    ----------
    steps : sequence of tuple of Node
        In running order; an element-wise node is a step of its own.
    results : collection of str
        Values that the graph must deliver.
    reads : callable
    is_byte : callable
        Whether a value's elements are of 8 bits.
    """
    reading = {step[0]: found for step in steps if len(step) == 1 and (found := reads(step[0])) is not None}
    readers = consumers(node for step in steps for node in step)
    tables: dict[Node, tuple[Node, ...]] = {}
    for root, of_root in _by_root(reading, is_byte).items():
        table = _closed(root, of_root, reading, readers, results, is_byte)
        if len(table) > 1:
            tables |= dict.fromkeys(table, tuple(table))
    return [
        tables.get(step[0], step) for step in steps
        if step[0] not in tables or step[0] is tables[step[0]][0]
    ]  # fmt: skip


def _by_root(reading: Mapping[Node, Sequence[str]], is_byte: Callable[[str], bool]) -> Mapping[str, Sequence[Node]]:
    """The nodes whose values are made of one value of bytes alone, by that value."""
    roots: dict[str, str] = {}
    found: dict[str, list[Node]] = {}
    for node, names in reading.items():
        (made,) = node.outputs
        of_node = {roots.get(name) or (name if is_byte(name) else "") for name in names}
        if len(of_node) == 1 and "" not in of_node:
            roots[made] = of_node.pop()
            found.setdefault(roots[made], []).append(node)
        elif is_byte(made):
            roots[made] = made
    return found


def _closed(root: str, nodes: Sequence[Node], reading: Mapping[Node, Sequence[str]],
            readers: Mapping[str, Sequence[Node]], results: Collection[str], is_byte: Callable[[str], bool]
            ) -> list[Node]:  # fmt: skip
    """Those of the nodes of a root that make bytes of it, and of which nobody else reads anything but bytes."""
    left = list(nodes)
    while True:
        inside, made = set(left), {root, *(node.outputs[0] for node in left)}

        def stays(node: Node, inside: set[Node] = inside, made: set[str] = made) -> bool:
            name = node.outputs[0]
            is_inner = name not in results and inside.issuperset(readers.get(name, ()))
            return made.issuperset(reading[node]) and (is_byte(name) or is_inner)

        found = [node for node in left if stays(node)]
        if len(found) == len(left):
            return found
        left = found
