"""A convolution bound to its constants, which computes as the model has the axes or with channels last.

The one idea: arrays have the axes of the model at either end; with channels last it sees them through a view, and what
it makes lies so.  It must not know nodes of a file.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from operator import attrgetter
from typing import Any

import numpy as np

from polyconv.dialects.call import Operator
from polyconv.dialects.reading import layout_of
from polyconv.errors import Error
from polyconv.gpu.work import Work
from polyconv.lowering.situation import Situation, changed
from polyconv.models.elements import BY_TYPE
from polyconv.models.graph import STAND_IN, Array, Value
from polyconv.models.layout import Layout
from polyconv.models.limits import check_bytes
from polyconv.models.options import Options
from polyconv.operators.job import Job, Plan
from polyconv.operators.lying import Lies, channels_last, is_channels_last, lies, like, packed
from polyconv.operators.packing import pixels_copy
from polyconv.operators.running import conditions
from polyconv.problem.problem import Problem
from polyconv.problem.quantisation import QUANTITIES

__all__ = ["Ways", "turns"]

_IMAGES = frozenset(("x", "residual"))
"""Roles of inputs that have the order of axes of the layout."""
_TURNED = frozenset((*_IMAGES, "w", "bias", *QUANTITIES))
"""Roles of inputs of convolutions that may be computed with channels last."""


def turns(operator: Operator) -> bool:
    """Whether a convolution with channels second may be computed with channels last."""
    return layout_of(operator) == "NCHW" and _TURNED.issuperset(row.role for row in operator.row.inputs)


class Ways:
    """A convolution in the order of its network, which is decided when it is first made ready.

    Parameters
    ----------
    label, operator, constants, places, options, far, varies
        As for ``_Way``.  Constants are let go once the order is decided; the one that was chosen holds what it needs.
    layout : Layout or None
        Of the network; None where axes stay the model's.
    """

    def __init__(self, label: str, operator: Operator, constants: Mapping[int, Array], places: Sequence[int | None],
                 options: Options, far: bool, varies: bool, layout: Layout | None) -> None:  # fmt: skip
        self.layout = layout
        way = partial(_Way, label, operator, constants, places, options, far, varies)
        self._made: Callable[[bool], _Way] = cache(way)
        self._lock = threading.Lock()
        self._way: _Way | None = None

    @property
    def _chosen(self) -> _Way:
        if self._way is None:
            last = self.layout is not None and self.layout.is_last
            with self._lock:
                if self._way is None:
                    way = self._made(last)
                    self._way, self._made = way, lambda _: way
        return self._way

    def once(self, present: Sequence[bool]) -> bool:
        """See ``Bound.once``."""
        return self._made(False).once(present)

    @property
    def problem(self) -> str | None:
        """What ran last."""
        return self._made(False).problem

    @property
    def held_bytes(self) -> int:
        """Bytes of the constants, in all their forms."""
        return self._made(False).held_bytes

    def run(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """See ``Segment.run``."""
        return self._chosen.run(arrays)

    def plan(self, arrays: Sequence[Array], into: tuple[Lies, ...] = ()) -> Plan | None:
        """See ``Segment.plan``."""
        return self._chosen.plan(arrays, into)

    def work(self, arrays: Sequence[Any], results: Sequence[Any]) -> Work | None:
        """See ``Segment.work``."""
        return self._chosen.work(arrays, results)

    def situation(self, inputs: Sequence[Value | None]) -> Situation | None:
        """What its plans depend on with channels last; see ``Layout``."""
        return self._made(True).situation(inputs)


class _Way:
    """A convolution bound to its constants, computed as the model has the axes, or with channels last.

    Parameters
    ----------
    label : str
        Of the node.
    operator : Operator
        As the model has it.
    constants : mapping
        By position.
    places : sequence of int or None
        By position, which array of a run an input is.
    options : Options
    far, varies, last : bool
        Whether weights come from memory, extents vary from run to run, and channels are last.
    """

    def __init__(self, label: str, operator: Operator, constants: Mapping[int, Array], places: Sequence[int | None],
                 options: Options, far: bool, varies: bool, last: bool) -> None:  # fmt: skip
        self._label, self._operator, self._places, self._options, self._turned = label, operator, places, options, last
        seen = replace(operator, row=replace(operator.row, layout="NHWC")) if last else operator
        self._images = [(at, row.role) for at, row in enumerate(operator.row.inputs) if row.role in _IMAGES]
        self._bound = seen.bind(self._seen(constants), far=far, varies=varies, device=options.device)
        # shapes and types, problem, direct call, of the run before
        self._last: tuple[Any, Any, Any] = (None, None, None)

    def once(self, present: Sequence[bool]) -> bool:
        """See ``Bound.once``."""
        return self._bound.once(present)

    @property
    def problem(self) -> str | None:
        """Of the run before."""
        return None if self._last[1] is None else str(self._last[1])

    @property
    def held_bytes(self) -> int:
        """Of the constants, in all their forms."""
        return self._bound.packed_bytes

    def run(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """See ``Segment.run``."""
        bound = self._bound
        try:
            sizes = [(a.shape, a.dtype) for a in arrays]
            known, problem, direct = self._last  # one tuple, as other threads may run other sizes
            is_resized = sizes != known
            if direct is not None and (not is_resized or self._is_fitting(arrays, sizes, known, direct)):
                layer, at, residual = direct
                x, other = arrays[at], None if residual is None else arrays[residual]
                if self._turned:
                    x, other = _gathered(x), None if other is None else _pixels(other)
                y = layer(x, residual=other)
                if is_resized:
                    bound.let_go()
                return (_planes(y) if self._turned else y,)
            given = self._given(arrays)
            if is_resized:
                problem = self._problem_of(arrays, given)
            result = bound(*given)
            bound.let_go()
            self._last = sizes, problem, self._direct(given)
        except Error as error:
            raise type(error)(f"{self._label}: {error}") from error
        made = result if isinstance(result, tuple) else (result,)
        return [_planes(y) for y in made] if self._turned else made

    def _is_fitting(self, arrays: Sequence[Array], sizes: Sequence[Any], known: Sequence[Any], direct: Any) -> bool:
        """Whether the direct call of known sizes takes inputs of other extents; then it is remembered for these.

        Where they differ in more, or may not fit, all of them have to be looked at.
        """
        layer, x, residual = direct
        new, old = ([(len(shape), dtype) for shape, dtype in some] for some in (sizes, known))
        if self._options.device is not None or new != old:
            return False
        shapes = [(_pixels(a) if self._turned else a).shape for a in arrays]
        with suppress(Error):
            problem = layer.problem_of(shapes[x], residual=residual is not None)
            if residual is None or shapes[residual] == problem.y_shape:
                self._check_bytes(problem)
                self._last = sizes, problem, direct
                return True
        return False

    def plan(self, arrays: Sequence[Array], into: tuple[Lies, ...]) -> Plan | None:
        """See ``Segment.plan``."""
        known, _, found = self._last
        if known != [(a.shape, a.dtype) for a in arrays]:
            found = self._direct(self._given(arrays))
        if found is None:
            return None
        layer, at, residual = found
        source, seen = lies(arrays[at]), _pixels if self._turned else np.asarray
        x, other, y = (None if a is None else seen(a) for a in (
            arrays[at], None if residual is None else arrays[residual], like(into[0]) if into else None))  # fmt: skip
        copy = None
        if self._turned and _are_planes(source):
            x = np.empty(seen(arrays[at]).shape, source.dtype)
            copy = pixels_copy(source, conditions(self._options.threads))
        call = layer.call(x, other, y)
        self._bound.let_go()
        if call.entry is None:  # Python has to look at each call
            return None
        count = len(arrays)
        operands = at if copy is None else count + 1, count, residual, None, None
        job = Job(call.steps, operands, call.program.workspace, call.plan_threads, call.wake, (call,),
                  strict=call.is_strict, table_bytes=call.table_bytes)  # fmt: skip
        shape, dtype = call.shape, call.dtype
        made = channels_last((shape[0], shape[-1], *shape[1:-1]), dtype) if self._turned else packed(shape, dtype)
        if copy is None:
            return Plan(into or (made,), (job,))
        turning = (replace(each, operands=(at, count + 1)) for each in copy.jobs)
        return Plan(into or (made,), (*turning, job), between=copy.results)

    def work(self, arrays: Sequence[Any], results: Sequence[Any]) -> Work | None:
        """See ``Segment.work``."""
        from polyconv.gpu.calling import work_of  # here, as sessions on the CPU need none of a GPU's kernels

        direct = self._last[2]
        if direct is None:
            return None
        layer, x, residual = direct
        call = layer.call(arrays[x], results[0], None if residual is None else arrays[residual])
        return work_of(call, len(arrays), x, residual)

    def situation(self, inputs: Sequence[Value | None]) -> Situation | None:
        """What plans depend on, for one image of what is known of the inputs; None where that is too little."""
        moving = [None if at in self._bound.constants else value for at, value in enumerate(inputs)]
        known = [None if value is None else _stand_in(value) for value in moving]
        if any((a is None) != (value is None) for a, value in zip(known, moving, strict=True)):
            return None
        images = {at for at, _ in self._images} if self._turned else set[int]()
        given: list[Any] = [_pixels(a) if at in images and a is not None else a for at, a in enumerate(known)]
        with suppress(Error):  # a run will say so
            found = self._bound.direct(*given)
            if found is not None:
                layer, x, residual = found
                problem = replace(layer.problem_for(given[x].shape), residual=residual is not None)
                made: Situation = changed(layer.situation(problem), problem=problem.fused())
                return made
        return None

    def _direct(self, given: Sequence[Any]) -> Any:
        """What computes such inputs without looking at them again, and which arrays of a run it reads."""
        found = self._bound.direct(*given)
        return found and (found[0], *(None if at is None else self._places[at] for at in found[1:]))

    def _given(self, arrays: Sequence[Array]) -> list[Any]:
        """Inputs by position, as the operator that computes them sees them; constants are None."""
        given = self._seen({at: arrays[place] for at, place in enumerate(self._places) if place is not None})
        return [given.get(at) for at in range(len(self._places))]

    def _seen(self, inputs: Mapping[int, Array]) -> dict[int, Any]:
        """Some inputs by position, images among them with the axes in the order in which they are computed."""
        seen: dict[int, Any] = dict(inputs)
        for at, role in self._images if self._turned else ():
            if at in seen and seen[at].ndim >= 3:  # else it is none, as an error will say
                seen[at] = (_gathered if role == "x" else _pixels)(seen[at])
        return seen

    def _problem_of(self, arrays: Sequence[Array], given: Sequence[Any]) -> Problem | None:
        """The convolution that inputs amount to, which memory must hold; errors speak of the axes of the model."""
        try:
            problem = self._bound.problem(*given)
        except Error:
            if self._turned:
                self._refuse(arrays)
            raise
        if problem is not None:
            self._check_bytes(problem)
        return problem

    def _check_bytes(self, problem: Problem) -> None:
        """Refuse a result that memory does not hold."""
        if self._options.device is None:
            check_bytes(self._label, [extent or 0 for extent in problem.y_shape], problem.y_dtype.itemsize)

    def _refuse(self, arrays: Sequence[Array]) -> None:
        """Raise what the operator finds wrong with inputs that lie as the model says."""
        held: dict[int, Any] = dict(self._bound.constants)
        for at, _ in self._images:
            if at in held and held[at].ndim >= 3:
                held[at] = _planes(held[at])
        every = [held.get(at) if place is None else arrays[place] for at, place in enumerate(self._places)]
        shapes, dtypes = ([None if a is None else get(a) for a in every] for get in (np.shape, attrgetter("dtype")))
        self._operator.infer(*shapes, dtypes=dtypes)


def _stand_in(value: Value) -> Array | None:
    """An array of one image such as a value will be, without memory; None where its rank or channels are not known."""
    element, dims = BY_TYPE.get(value.type), value.dims
    if element is None or dims is None or len(dims) < 3 or not isinstance(dims[1], int):
        return None
    shape = 1, dims[1], *(d if isinstance(d, int) else STAND_IN for d in dims[2:])
    return np.broadcast_to(np.zeros((), element.numpy), shape)


def _pixels(a: Array) -> Array:
    """An image seen with channels as the last axis."""
    if _lies_both_ways(a.shape[1], a.shape[2:]) and a.flags.c_contiguous:
        return a.reshape(a.shape[0], *a.shape[2:], a.shape[1])
    return a.transpose(0, *range(2, a.ndim), 1)


def _planes(a: Array) -> Array:
    """The same seen with channels second again."""
    if _lies_both_ways(a.shape[-1], a.shape[1:-1]) and a.flags.c_contiguous:
        return a.reshape(a.shape[0], a.shape[-1], *a.shape[1:-1])
    return a.transpose(0, a.ndim - 1, *range(1, a.ndim - 1))


_FEW_CHANNELS = 4
"""Of planes, which algorithms for first layers read as they lie; of more, few read one channel after the other."""


def _gathered(a: Array) -> Array:
    """An image seen with channels as the last axis, where they lie together if they are many: bits may depend on it."""
    seen = _pixels(a)
    return np.ascontiguousarray(seen) if _are_planes(lies(a)) else seen


def _are_planes(lie: Lies) -> bool:
    """Whether channels do not lie together, though they are many."""
    return lie.shape[1] > _FEW_CHANNELS and math.prod(lie.shape[2:]) > 1 and not is_channels_last(lie)


def _lies_both_ways(channels: int, extents: Sequence[int]) -> bool:
    return channels == 1 or math.prod(extents) == 1
