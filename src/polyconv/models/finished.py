"""Element-wise passes over the result of an operator that can do them on its way out: the two are one step.

An image that is enlarged and then quantised, say, is stored in bytes at once.  The one idea: the pass reads nothing but
that result and numbers that are the same in every run, so it can be moved to where the result is made.
It must not know what an operator computes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from polyconv.models.graph import Node, consumers

__all__ = ["finished"]


def finished(groups: Sequence[tuple[Node, ...]], results: Collection[str], takes: Callable[[Node], bool],
             fits: Callable[[Node, Sequence[Node], Sequence[str]], bool]) -> list[tuple[Node, ...]]:  # fmt: skip
    """Put passes behind the nodes that take them in.

    Parameters
    ----------
    groups : sequence of tuple of Node
        In running order.
    results : collection of str
        Values that the graph must deliver.
    takes : callable
        Whether a node takes passes in.
    fits : callable
        Whether a node takes in some nodes in running order, all its readers among them, which store some values.
    """
    readers = consumers(node for group in groups for node in group)
    home = {node: at for at, group in enumerate(groups) for node in group}

    def stored(nodes: Sequence[Node]) -> list[str]:
        made = [name for node in nodes for name in node.writes]
        return [name for name in made if name in results or any(r not in nodes for r in readers.get(name, ()))]

    found: dict[int, tuple[Node, ...]] = dict(enumerate(groups))
    for at, group in enumerate(groups):
        made = group[0].writes
        if at not in found or len(group) != 1 or not takes(group[0]) or any(name in results for name in made):
            continue
        following = {home[reader] for name in made for reader in readers.get(name, ())}
        after = following.pop() if len(following) == 1 else at
        if after != at and fits(group[0], groups[after], stored(groups[after])):
            found[at] += found.pop(after)
    return [found[at] for at in sorted(found)]
