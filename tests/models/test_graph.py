"""Putting graphs in order and cutting them: what must hold for any graph."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyconv.errors import ModelError
from polyconv.models.graph import Node, cut, fixed, live, order


def node(name: str, op: str, inputs: list[str], outputs: list[str], **more: object) -> Node:
    return Node(name, op, "", 1, tuple(inputs), tuple(outputs), **more)


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    """Nodes n0, n1, ..: each reads some values made before it."""
    nodes = []
    for at in range(draw(st.integers(1, 25))):
        sources = st.sampled_from(["x", *(f"v{i}" for i in range(at))])
        reads = draw(st.lists(sources, min_size=1, max_size=3))
        nodes.append(node(f"n{at}", draw(st.sampled_from(["Conv", "Add"])), reads, [f"v{at}"]))
    return nodes


def can_run(nodes: list[Node]) -> bool:
    made = {"x"}
    for each in nodes:
        if not made.issuperset(each.reads):
            return False
        made.update(each.writes)
    return True


@given(graphs(), st.randoms())
def test_any_order_is_put_right(nodes: list[Node], random: object) -> None:
    shuffled = list(nodes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    ordered = order(shuffled, {"x"}, [])
    assert set(ordered) == set(nodes)
    assert can_run(list(ordered))
    assert order(nodes, {"x"}, []) == tuple(nodes)


@given(graphs())
def test_steps_run_in_order_and_groups_are_few(nodes: list[Node]) -> None:
    steps = cut(nodes, lambda n: n.op == "Conv")
    flat = [each for step in steps for each in step]
    assert can_run(flat)
    assert sorted(n.name for n in flat) == sorted(n.name for n in nodes)
    for step in steps:
        assert len(step) == 1 or all(n.op == "Add" for n in step)
    # as many groups as the path has on which groups and convolutions take turns most often
    turns: dict[str, int] = {"x": 0}
    maker = {name: each for each in nodes for name in each.writes}
    for each in nodes:
        after = [turns[name] + (each.op == "Add" and name in maker and maker[name].op == "Conv") for name in each.reads]
        turns[each.writes[0]] = max(after)
    groups = [step for step in steps if step[0].op == "Add"]
    assert len(groups) == len({turns[n.writes[0]] for n in nodes if n.op == "Add"})


@given(graphs())
def test_what_no_result_needs_is_dropped(nodes: list[Node]) -> None:
    wanted = nodes[-1].writes
    kept = live(nodes, wanted)
    assert can_run(kept)
    read = {name for n in kept for name in n.reads}.union(wanted)
    assert all(not read.isdisjoint(n.writes) for n in kept)


def test_constants_spread_until_something_changes() -> None:
    nodes = [
        node("a", "Neg", ["c"], ["p"]),
        node("b", "Random", ["c"], ["q"], varies=True),
        node("d", "Add", ["p", "q"], ["r"]),
        node("e", "Conv", ["p", "p"], ["s"]),
        node("f", "If", ["p"], ["t"], captured=("x",)),
    ]
    assert fixed(nodes, {"c"}, lambda n: n.op == "Conv") == {"c", "p"}


def test_messages_name_the_node() -> None:
    with pytest.raises(ModelError, match="Neg node 'late'"):
        order([node("late", "Neg", ["ghost"], ["y"])], set(), ["y"])
    with pytest.raises(ModelError, match=r"'b'.*circle"):
        order([node("b", "Neg", ["y"], ["y"])], set(), ["y"])
