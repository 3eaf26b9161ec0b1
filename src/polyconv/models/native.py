"""Nodes that polyconv computes itself beside convolutions, made ready to run.

Turns nodes of ONNX's main domain into segments of ``polyconv.operators``: a view, an operator of its own, or a pass
over several element-wise ones.  The one idea: what is known of a node's inputs decides who runs it, before anything
is made.  It must not know how an operator is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.errors import Error, ModelError
from polyconv.models.elements import BY_TYPE, type_of
from polyconv.models.graph import STAND_IN, Array, Dims, Node, Value
from polyconv.models.limits import shorten
from polyconv.models.segment import ENGINE, Again, Segment
from polyconv.operators.building import Fragment
from polyconv.operators.fusing import Fused, Member, finish_of, planner_of
from polyconv.operators.images import by_image
from polyconv.operators.job import Known, Operation, Own, Plan, Planner
from polyconv.operators.lying import Lies, channels_last, is_channels_last, lies, lies_like, like, packed
from polyconv.operators.running import Planned, conditions, dry, with_values
from polyconv.operators.table import OPERATORS, Taken, taken
from polyconv.operators.types import TYPES
from polyconv.operators.views import Look, View

__all__ = [
    "ONNX",
    "OPERATORS",
    "OWN",
    "Given",
    "Here",
    "Maker",
    "Translation",
    "broadcast_dims",
    "foreseen",
    "foretold",
    "fused_segment",
    "made_again",
    "named",
    "native",
    "own_segment",
    "pass_of",
    "with_finish",
]  # fmt: skip

OWN = "polyconv"
"""Domain of nodes that rewrites make and ONNX cannot spell; nobody else runs them."""

Lookup = Callable[[str], Value]
"""What is known of a value, by its name."""


@dataclass(frozen=True, slots=True)
class Translation:
    """How nodes of a format are asked for as nodes of ONNX's main domain.

    Parameters
    ----------
    knows : callable
        Whether a node may have one.
    into : callable
        The node that means the same, or why there is none.
    """

    knows: Callable[[Node], bool] = lambda node: node.domain == OWN or (not node.domain and node.op in OPERATORS)
    into: Callable[[Node, Lookup, Mapping[str, Array]], Node | str] = lambda node, known, constants: node


ONNX = Translation()
"""Of nodes that are ONNX's already."""


def foretold(node: Node, found: Taken, known: Lookup, constants: Mapping[str, Array]) -> tuple[Value, ...]:
    """What a node will make: types, and extents where those of all inputs are known, else how many there are."""
    if isinstance(found, Fragment):
        kind = type_of(TYPES[found.expression.made].numpy)
        read = [known(node.inputs[at]).dims for at in found.reads[: 1 if found.follows else None]]
        return (Value(node.outputs[0], kind, broadcast_dims(read)),)
    inputs = [known(name) for name in node.inputs]
    is_open = any(value.dims is not None and not _is_known(value.dims) for value in inputs)
    if is_open:
        inputs = [replace(value, dims=tuple(d if isinstance(d, int) else STAND_IN for d in value.dims))
                  if value.dims is not None else value for value in inputs]  # fmt: skip
    by_name = {value.name: value for value in inputs}
    with suppress(Error):
        _, segment = own_segment(node, found, lambda name: by_name.get(name, Value(name)), constants, Here())
        if not is_open:
            return segment.outputs
        return tuple(replace(v, dims=None if v.dims is None else (None,) * len(v.dims)) for v in segment.outputs)
    return tuple(Value(name) for name in node.outputs)


def _is_known(dims: Dims) -> bool:
    return all(isinstance(extent, int) for extent in dims)


def broadcast_dims(read: Sequence[Dims | None]) -> Dims | None:
    """Extents of what is broadcast to each other, as far as they are known."""
    ranks = [len(dims) for dims in read if dims is not None]
    if len(ranks) < len(read):
        return None
    rank = max(ranks)
    columns = zip(*((1,) * (rank - len(dims)) + dims for dims in read if dims is not None), strict=True)
    return tuple(_extent(set(column) - {1}) for column in columns)


def _extent(others: set[int | str | None]) -> int | str | None:
    """The extent that those that are not 1 make: what they all say, or a number that one of them is."""
    if len(others) < 2:
        return others.pop() if others else 1
    return next((extent for extent in others if isinstance(extent, int)), None)


def native(node: Node, known: Lookup, constants: Mapping[str, Array], *, on_gpu: bool = False) -> Taken | str:
    """What runs a node on polyconv's own kernels, of a GPU if so said, or why nothing does."""
    if node.domain not in ("", OWN):
        return f"operators of {node.domain} are not computed here"
    if node.captured or not all(node.outputs):
        return "it holds a subgraph, or leaves results out"
    return taken(_operation(node, known, constants, on_gpu=on_gpu))


def _operation(node: Node, known: Lookup, constants: Mapping[str, Array], *, on_gpu: bool = False) -> Operation:
    """A node, with what is known of its inputs."""

    def of(name: str) -> Known:
        value = known(name)
        element = BY_TYPE.get(value.type)
        dims = None if value.dims is None else tuple(d if isinstance(d, int) else None for d in value.dims)
        return Known("" if element is None else element.numpy.name, dims, constants.get(name))

    inputs = tuple(of(name) if name else None for name in node.inputs)
    return Operation(node.op, node.version, node.attributes, inputs, len(node.outputs), on_gpu)


def pass_of(nodes: Sequence[Node], fragments: Mapping[Node, Fragment], results: Sequence[str],
            constants: Mapping[str, Array]) -> tuple[tuple[str, ...], Fused]:  # fmt: skip
    """Element-wise nodes in running order as one pass, and the names of the values that it reads."""
    made = {name for node in nodes for name in node.writes}
    read = [node.inputs[at] for node in nodes for at in fragments[node].reads]
    outside = [name for name in dict.fromkeys(read) if name not in made]
    inputs = tuple(name for name in outside if name not in constants)
    held = [name for name in outside if name in constants]
    numbers = {name: at for at, name in enumerate((*inputs, *held))}
    members = []
    for node in nodes:
        fragment = fragments[node]
        members.append(Member(fragment, tuple(numbers[node.inputs[at]] for at in fragment.reads)))
        numbers[node.outputs[0]] = len(numbers)
    arrays = tuple(np.asarray(constants[name]) for name in held)
    return inputs, Fused(len(inputs), arrays, tuple(members), tuple(numbers[name] for name in results))


def with_finish(node: Node, own: Own | View | None, after: Sequence[Node], stored: Sequence[str],
                fragments: Mapping[Node, Fragment], known: Lookup, constants: Mapping[str, Array]
                ) -> tuple[Node, Own] | None:  # fmt: skip
    """A node that does, on its way out, what nodes after it do, which store some values, and what runs it.

    None where it does nothing on its way out, or where those need more than what it makes and single numbers.
    """
    if not isinstance(own, Own) or own.finished is None or not all(each in fragments for each in after):
        return None
    made = known(node.outputs[0])
    inputs, fused = pass_of(after, fragments, stored, constants)
    if made.dims is None or made.type not in BY_TYPE or inputs != node.outputs:
        return None
    finish = finish_of(fused, BY_TYPE[made.type].numpy, len(made.dims))
    if finish is None:
        return None
    dtypes = (TYPES[finish.expression.made].numpy.name,)
    both = replace(own, planner=own.finished(finish), dtypes=dtypes, finished=None)
    return replace(node, outputs=tuple(stored)), both


Given = Callable[[Sequence[Any]], list[Any]]
"""Arrays of a run to all inputs of a node, constants too, None where one is left out."""


class Maker(Protocol):
    """What makes segments of polyconv's own operators for a place where they run."""

    def planned(self, label: str, outputs: tuple[Value, ...], planner: Planner, numbers: Sequence[int]) -> Segment:
        """The segment of plans, of whose inputs some are numbers; see ``Own``."""
        ...

    def viewed(self, label: str, outputs: tuple[Value, ...], look: Look, given: Given, *, looks: bool) -> Segment:
        """The segment of a view of what a run gives it; see ``Segment.looks``."""
        ...


@dataclass(frozen=True, slots=True)
class Here:
    """Makes segments for the CPU, with so many threads; None is the setting."""

    threads: int | None = None

    def planned(self, label: str, outputs: tuple[Value, ...], planner: Planner, numbers: Sequence[int]) -> Segment:
        """See ``Maker``."""
        made = Planned(planner, self.threads, numbers)

        def run(arrays: Sequence[Array]) -> Sequence[Array]:
            with named(label):
                return made(arrays)

        def settled(arrays: Sequence[Array]) -> Segment:
            return self.planned(label, outputs, with_values(planner, arrays, numbers), ())

        found = Segment(ENGINE, outputs, run, plan=made.plan, ahead=made.plan)
        return replace(found, numbers=tuple(numbers), settled=settled) if numbers else found

    def viewed(self, label: str, outputs: tuple[Value, ...], look: Look, given: Given, *, looks: bool) -> Segment:
        """See ``Maker``."""

        def run(arrays: Sequence[Array]) -> Sequence[Array]:
            with named(label):
                return look(given(arrays))

        def plan(arrays: Sequence[Array], into: tuple[Lies, ...]) -> Plan | None:
            if not looks or into:
                return None
            from polyconv.operators.packing import packing  # here, as few networks need it

            return packing(arrays[0], lambda array: look(given([array])), conditions(self.threads))

        return Segment(ENGINE, outputs, run, views=True, looks=looks, plan=plan)


def fused_segment(nodes: Sequence[Node], fragments: Mapping[Node, Fragment], results: Sequence[str], known: Lookup,
                  constants: Mapping[str, Array], maker: Maker) -> tuple[tuple[str, ...], Segment]:  # fmt: skip
    """The segment of element-wise nodes that run as one pass, and the names of the values that it reads."""
    inputs, fused = pass_of(nodes, fragments, results, constants)
    dtypes = {node.outputs[0]: TYPES[fragments[node].expression.made].numpy for node in nodes}
    planner = planner_of(fused)
    outputs = _outputs(results, [dtypes[name] for name in results], _lies_of(planner, [known(name) for name in inputs]))
    label = nodes[0].label if len(nodes) == 1 else f"{nodes[0].label} and {len(nodes) - 1} nodes after it"
    return inputs, replace(maker.planned(label, outputs, planner, ()), by_image=True, gaps=True)


def own_segment(node: Node, found: Own | View, known: Lookup, constants: Mapping[str, Array], maker: Maker,
                as_pixels: Callable[[], bool] = lambda: False) -> tuple[tuple[str, ...], Segment]:  # fmt: skip
    """The segment of a view, or of an operator that runs alone, and the names of the values that it reads.

    ``as_pixels`` says whether what reads the result wants it with channels last.
    """
    if isinstance(found, Own):
        reads = tuple(node.inputs[at] for at in found.reads)
        dtypes = [np.dtype(name) for name in found.dtypes]
        outputs = _outputs(node.outputs, dtypes, _lies_of(found.planner, [known(name) for name in reads]))
        segment = maker.planned(node.label, outputs, found.planner, found.numbers)
        if found.look is not None and isinstance(maker, Here):
            segment = _looking(segment, found.look, as_pixels)
        return reads, replace(segment, by_image=by_image(_operation(node, known, constants)), gaps=found.gaps)
    reads = tuple(name for name in node.reads if name not in constants)
    held = [np.asarray(constants[name]) if name in constants else None for name in node.inputs]
    places = [(at, reads.index(name)) for at, name in enumerate(node.inputs) if name in reads]
    given, first = _given(held, places), known(node.inputs[0])
    kinds = [type_of(np.dtype(dtype)) if dtype else first.type for dtype in found.dtypes]
    kinds *= len(node.outputs) // len(kinds)
    made = tuple(Value(name, kind, found.dims) for name, kind in zip(node.outputs, kinds, strict=True))
    if reads == (first.name,) and not found.counts and (array := foreseen(first)) is not None:
        with suppress(Error), named(node.label):
            shown = [lies(result) for result in found.look(given([array]))]
            made = tuple(Value(name, kind, lie.shape, is_channels_last(lie))
                         for name, kind, lie in zip(node.outputs, kinds, shown, strict=True))  # fmt: skip
    looks, others = places[:1] == [(0, 0)] and not found.counts, places[1:]
    segment = maker.viewed(node.label, made, found.look, given, looks=looks and not others)
    again = Again(node.label, _operation(node, known, constants), tuple(places))
    segment = replace(segment, extents=node.op in ("Shape", "Size"), again=again)
    if not looks or not others or not isinstance(maker, Here):
        return reads, segment

    def settled(arrays: Sequence[Array]) -> Segment:
        return maker.viewed(node.label, made, found.look, _given(given(arrays), places[:1]), looks=True)

    return reads, replace(segment, numbers=tuple(place for _, place in others), settled=settled)


def made_again(again: Again) -> Segment:
    """A segment that NumPy runs, as another process had it; of its outputs nobody asks any more."""
    found, held = taken(again.operation), [None if x is None else x.value for x in again.operation.inputs]
    if not isinstance(found, View):
        raise TypeError(f"{again.label} is no longer run so")
    return Here().viewed(again.label, (), found.look, _given(held, again.places), looks=False)


def _given(held: Sequence[Any], places: Sequence[tuple[int, int]]) -> Given:
    """Puts arrays of a run to the constants of a node: (input, array) of each."""

    def given(arrays: Sequence[Any]) -> list[Any]:
        values = list(held)
        for at, place in places:
            values[at] = arrays[place]
        return values

    return given


def _looking(segment: Segment, look: Callable[[Array], Array], as_pixels: Callable[[], bool]) -> Segment:
    """The segment of an operator that copies what it sees, without a copy where that lies as its readers want it."""
    def shown(array: Array) -> Array | None:
        try:
            view = look(array)
        except ValueError:  # it has another rank, as the operator will say
            return None
        lie = lies(view)
        is_there = lies_like(lie, packed(lie.shape, lie.dtype)) or (is_channels_last(lie) and as_pixels())
        return view if view.size and is_there else None

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        view = shown(arrays[0])
        return segment.run(arrays) if view is None else [view]

    def plan(arrays: Sequence[Array], into: tuple[Lies, ...]) -> Plan | None:
        return segment.plan(arrays, into) if into or shown(arrays[0]) is None else None

    return replace(segment, run=run, plan=plan, ahead=lambda arrays: plan(arrays, ()), views=True, looks=True,
                   may_copy=True)  # fmt: skip


def foreseen(value: Value) -> Array | None:
    """An array such as a value will be, which nobody writes; None where it is not known, or too large."""
    lie = _lie(value)
    try:
        return None if lie is None else like(lie)
    except (MemoryError, ValueError):
        return None


def _lie(value: Value) -> Lies | None:
    element = BY_TYPE.get(value.type)
    if element is None or value.dims is None or not all(isinstance(d, int) for d in value.dims):
        return None
    extents = [d for d in value.dims if isinstance(d, int)]
    return (channels_last if value.channels_last else packed)(extents, element.numpy)


def _lies_of(planner: Planner, inputs: Sequence[Value]) -> Sequence[Lies] | None:
    """How results will lie for inputs whose extents are known; None where they are not, or do not fit together."""
    given = [_lie(value) for value in inputs]
    try:
        return planner([lie for lie in given if lie is not None], dry()).results if None not in given else None
    except Error:  # a run will say so
        return None


def _outputs(names: Sequence[str], dtypes: Sequence[np.dtype[Any]], results: Sequence[Lies] | None
             ) -> tuple[Value, ...]:  # fmt: skip
    if results is None:
        return tuple(Value(name, type_of(kind)) for name, kind in zip(names, dtypes, strict=True))
    every = zip(names, dtypes, results, strict=True)
    return tuple(Value(name, type_of(kind), lie.shape, is_channels_last(lie)) for name, kind, lie in every)


class named:  # noqa: N801 - read as a word in a with statement
    """Errors within the block say which nodes they are of."""

    def __init__(self, label: str) -> None:
        self._label = label

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Error):
            raise type(error)(f"{self._label}: {error}") from error
        if isinstance(error, ValueError | TypeError | IndexError | OverflowError):
            raise ModelError(f"{self._label} cannot be computed: {shorten(str(error))}") from error
