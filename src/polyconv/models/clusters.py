"""Element-wise nodes put together: which of them run as one pass.

The one idea: a node joins the pass that makes the last of its inputs, and an earlier pass whose results nobody else
reads is moved to it; so steps stay in an order in which they can run.  It must not know what a node computes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from polyconv.models.graph import Dims, Node, consumers

__all__ = ["alike", "clustered"]


def clustered(steps: Sequence[tuple[Node, ...]], results: Collection[str], fits: Callable[[Sequence[Node]], bool],
              is_elementwise: Callable[[Node], bool]) -> list[tuple[Node, ...]]:  # fmt: skip
    """Put element-wise nodes together.

    Parameters
    ----------
    steps : sequence of tuple of Node
        In running order; an element-wise node is a step of its own.
    results : collection of str
        Values that the graph must deliver.
    fits : callable
        Whether some nodes, in running order, may be one pass.
    is_elementwise : callable
        Whether a node is one of those.
    """
    readers = consumers(node for step in steps for node in step)
    found: list[list[Node]] = []
    passes: set[int] = set()
    maker: dict[str, int] = {}
    written = {name for step in steps for node in step for name in node.writes}

    def waits(node: Node) -> bool:
        """Whether a node is left for the pass of its only reader, which waits for more; what it reads is stored anyway.

        A quantised residual, say: the next convolution reads its bytes, and so does the sum, instead of floats.
        """
        read = [name for name in node.reads if name in maker]
        following = [reader for name in node.writes for reader in readers.get(name, ())]
        if len(read) != 1 or len(following) != 1 or any(name in results for name in node.writes):
            return False
        is_there = read[0] in results or not all(is_elementwise(reader) for reader in readers[read[0]])
        to_come = {*following[0].reads} & written - maker.keys() - {*node.writes}
        return is_there and is_elementwise(following[0]) and bool(to_come)

    for step in steps:
        home = len(found)
        if len(step) == 1 and is_elementwise(step[0]):
            (node,) = step
            last = max((maker.get(name, -1) for name in node.reads), default=-1)
            if last in passes and not waits(node) and fits([*found[last], node]):
                home = last
                found[home].append(node)
            else:
                found.append([node])
                passes.add(home)
            _gather(found, passes, home, node, maker, readers, results, fits)
        else:
            found.append(list(step))
        for each in found[home]:
            maker.update(dict.fromkeys(each.writes, home))
    return [tuple(nodes) for nodes in found if nodes]


def _gather(found: list[list[Node]], passes: set[int], home: int, node: Node, maker: dict[str, int],
            readers: dict[str, list[Node]], results: Collection[str], fits: Callable[[Sequence[Node]], bool]
            ) -> None:  # fmt: skip
    """Move earlier passes to one that alone reads what they make."""
    for other in {maker.get(name, -1) for name in node.reads} & passes - {home}:
        together = [*found[other], *found[home]]
        made = [name for each in found[other] for name in each.writes]
        if any(name in results or any(r not in together for r in readers.get(name, ())) for name in made):
            continue
        if fits(together):
            found[home][:0] = found[other]
            found[other] = []
            passes.discard(other)


def alike(a: Dims | None, b: Dims | None) -> bool:
    """Whether two values may have one shape, and have as far as is known; extents must agree, unknown ones may."""
    if a is None or b is None:
        return True
    return len(a) == len(b) and all(d == e or d is None or e is None for d, e in zip(a, b, strict=True))
