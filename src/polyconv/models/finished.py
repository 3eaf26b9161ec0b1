"""Element-wise passes over the result of an operator that can do them on its way out: the two are one step.

An image that is enlarged and then quantised, say, is stored in bytes at once.  The one idea: the pass reads nothing but
that result and numbers that are the same in every run, so it can be moved to where the result is made.
It must not know what an operator computes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from polyconv.models.graph import Node, consumers

__all__ = ["finished"]

T = TypeVar("T")


def finished(groups: Sequence[tuple[Node, ...]], results: Collection[str],
             joined: Callable[[Node, Sequence[Node], Sequence[str]], T | None]
             ) -> tuple[list[tuple[Node, ...]], dict[Node, T]]:  # fmt: skip
    """Put passes behind the nodes that take them in.

    Parameters
    ----------
    groups : sequence of tuple of Node
        In running order.
    results : collection of str
        Values that the graph must deliver.
    joined : callable
        Of a node, of nodes in running order among which all its readers are, and of the values that these store: what
        stands for all of them; None if the node does not take them in.

    Returns
    -------
    list of tuple of Node, dict
        The groups, and what stands for those whose first node takes the others in, by that node.
    """
    readers = consumers(node for group in groups for node in group)
    home = {node: at for at, group in enumerate(groups) for node in group}

    def stored(nodes: Sequence[Node]) -> list[str]:
        made = [name for node in nodes for name in node.writes]
        return [name for name in made if name in results or any(r not in nodes for r in readers.get(name, ()))]

    found, joint = dict(enumerate(groups)), dict[Node, T]()
    for at, (first, *others) in enumerate(groups):
        following = {home[reader] for name in first.writes for reader in readers.get(name, ())}
        if others or len(following) != 1 or any(name in results for name in first.writes):
            continue
        (after,) = following
        both = joined(first, groups[after], stored(groups[after]))
        if both is not None:
            joint[first] = both
            found[at] += found.pop(after)
    return list(found.values()), joint
