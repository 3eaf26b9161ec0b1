"""Reductions: means, sums, largest and smallest elements over neighbouring axes, and global pooling.

Turns a tensor into three axes, of which the middle one goes: where the last has one element, vectors run along the
middle one and are joined at the end, else along the last.  The one idea: neighbouring axes of a packed tensor are one
axis.  It must not know pooling by windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.errors import ArgumentError
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.language import Mask, Module, Type, Value, vector
from polyconv.kernels.record import Record, Word, at_once, filled
from polyconv.kernels.values import Buffer
from polyconv.operators.along import Along
from polyconv.operators.functions import FUNCTIONS
from polyconv.operators.job import Conditions, Drive, Operation, Own, Plan, Planning, Step, address_of, constant
from polyconv.operators.lying import Lies, in_memory, is_channels_last
from polyconv.operators.moving import as_packed, without_gaps
from polyconv.operators.rows import each_block, read, write
from polyconv.operators.types import dtype_name, untaken

if TYPE_CHECKING:
    from polyconv.operators.on_gpu.launching import Launching

__all__ = ["Over", "across_lanes", "reduced", "reduction"]

_CHAINS = 4
"""Vectors whose results take turns: one waits for the one before it."""
_PART = 64
"""Additions of a chain before its sum is added to that of the parts before."""


@dataclass(frozen=True, slots=True)
class Over:
    """What a reduction does.

    Parameters
    ----------
    function : str
        What joins elements: ``Add``, ``Max`` or ``Min``.
    dtype : str
    mean : bool
        Whether sums become means.
    before, after : str
        What becomes of each element first, ``Abs`` or ``Square``, and of the sum at last, ``Sqrt``; empty for nothing.
    """

    function: str
    dtype: str
    mean: bool = False
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        words = (self.function, "mean" * self.mean, self.before, self.after, self.dtype)
        return " ".join(word for word in words if word)


def reduction(operation: Operation) -> Own | str:
    """An operation as a reduction, or why not."""
    row = _TABLE[operation.op]
    is_global = operation.op.startswith("Global")
    x = operation.inputs[0] if operation.inputs else None
    if x is None or operation.outputs != 1:
        return "it has no input, or several results"
    dtype = dtype_name(x.dtype, has_halves=operation.on_gpu)
    if dtype is None or DTYPES[dtype].kind not in ("f" if row.is_of_floats or is_global else "fiu"):
        return untaken(x.dtype)
    if operation.on_gpu and row.before:
        return "it is not done on a GPU"
    spec = Over(row.function, dtype, row.mean, row.before, row.after)
    if x.dims is None:
        return _of_any_rank(operation, spec, is_global=is_global)
    rank = len(x.dims)
    axes = tuple(range(2, rank)) if is_global else _axes(operation, rank)
    if axes is None:
        return "its axes are no constants, or it has attributes that are not done here"
    if not axes or axes != tuple(range(axes[0], axes[-1] + 1)):
        return f"the axes {list(axes)} are not neighbours"
    if is_global and (operation.attributes or len(operation.inputs) != 1):
        return "it has attributes that are not done here"
    keep = bool(operation.attributes.get("keepdims", 1))
    return Own((0,), (x.dtype,), lambda given, c: _planned(spec, axes, keep, rank, given, c))


def _of_any_rank(operation: Operation, spec: Over, *, is_global: bool) -> Own | str:
    """A reduction over one axis, or over all spatial ones, however many axes come."""
    if is_global and operation.attributes:
        return "it has attributes"
    count = None if is_global else _axis_count(operation)
    if not is_global and count != 1:
        return "the model does not say the rank of its input"
    keep = is_global or bool(operation.attributes.get("keepdims", 1))

    def planned(given: Sequence[Lies], c: Conditions) -> Plan:
        rank = len(given[0].shape)
        axes = (tuple(range(2, rank)) or None) if is_global else _axes(operation, rank)
        if axes is None:
            missing = "no spatial axes" if is_global else "not the axis that goes"
            raise ArgumentError(f"the input of shape {given[0].shape} has {missing}")
        return _planned(spec, axes, keep, rank, given, c)

    return Own((0,), (DTYPES[spec.dtype].numpy.name,), planned)


def _axis_count(operation: Operation) -> int | None:
    """How many axes go, where the operation says it."""
    given = constant(operation.inputs[1]) if len(operation.inputs) > 1 else None
    axes: Any = operation.attributes.get("axes") if given is None else given.tolist()
    return len(axes) if isinstance(axes, list) else None


def _axes(operation: Operation, rank: int) -> tuple[int, ...] | None:
    """The axes, in order: an attribute in older opsets, else a constant input; by default all."""
    attributes = operation.attributes
    if set(attributes).difference(("axes", "keepdims", "noop_with_empty_axes")):
        return None
    axes = attributes.get("axes")
    if len(operation.inputs) > 1 and operation.inputs[1] is not None:
        given = constant(operation.inputs[1])
        if given is None or given.ndim != 1:
            return None
        axes = given.tolist()
    if not axes:
        return None if attributes.get("noop_with_empty_axes", 0) else tuple(range(rank))
    if any(not isinstance(a, int) or not -rank <= a < rank for a in axes):
        return None
    found = sorted({a % rank for a in axes})
    return tuple(found) if len(found) == len(axes) else None


def _planned(spec: Over, axes: tuple[int, ...], keep: bool, rank: int, given: Sequence[Lies], c: Conditions) -> Plan:
    shape = given[0].shape
    if len(shape) != rank:
        raise ArgumentError(f"the input of shape {shape} does not have the {rank} axes that the model says")
    planning = Planning(given, c)
    first, last = axes[0], axes[-1]
    made = (*shape[:first], *(1,) * (len(axes) * keep), *shape[last + 1 :])
    walked = _as_it_lies(given[0], axes)
    y = planning.result(made, given[0].dtype, alike=c.on_gpu)
    if 0 in made:
        return planning.plan()
    x = 0  # kernels of a GPU read arrays as they lie
    if not c.on_gpu:
        x = as_packed(planning, 0) if walked is None else without_gaps(planning, 0)
    outer, length, inner = walked or _cut(shape, axes)

    def kernels() -> list[Launching]:
        from polyconv.operators.on_gpu.reducing import reduced as launched  # here, as no CPU needs it

        steps = planning.lie(y).strides
        kept = (*steps[:first], *(0,) * len(axes), *steps[len(steps) - (rank - 1 - last) :])
        source, target = Along(given[0].offset, given[0].strides), Along(0, kept)
        neutral = _neutral(spec)
        return [launched(spec.function, spec.dtype, neutral, shape, axes, source, target, (x, y), mean=spec.mean)]

    reduced(planning, spec, x, y, (outer, length, inner), kernels)
    return planning.plan()


def _cut(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, int, int]:
    """A packed array as three axes: what lies before some neighbours, they, and what lies behind them."""
    first, last = axes[0], axes[-1]
    return math.prod(shape[:first]), math.prod(shape[first : last + 1]), math.prod(shape[last + 1 :])


def _as_it_lies(lie: Lies, axes: Sequence[int]) -> tuple[int, int, int] | None:
    """The same of an array with channels last, whose axes need not be neighbours there, and which gets no gaps.

    What is left lies in the order of the model as well: batch and channels, or batch and pixels.
    """
    if not is_channels_last(lie):
        return None
    seen, rank = in_memory(lie), len(lie.shape)
    if tuple(axes) == tuple(range(2, rank)):
        return _cut(seen.shape, range(1, rank - 1))
    return _cut(seen.shape, (rank - 1,)) if tuple(axes) == (1,) else None


def reduced(planning: Planning, spec: Over, x: int, y: int, extents: tuple[int, int, int],
            kernels: Callable[[], list[Launching]] | None = None) -> None:  # fmt: skip
    """Add the job that reduces the middle axis of a packed array of three."""
    c, size = planning.c, DTYPES[spec.dtype].itemsize
    lanes = c.target.vector_bytes // size
    outer, length, inner = extents
    work = outer * length * max(1.0, -(-inner // lanes) if inner > 1 else 1 / lanes) * 1.5 + 20 * outer

    def steps(threads: int) -> list[Step]:
        rows = -(-outer // (4 * threads)) if threads > 1 else outer
        columns = inner
        if threads > 1 and outer < threads and inner > lanes:
            columns = -(-inner // (4 * threads * lanes)) * lanes
        parts = -(-inner // columns)
        keep: list[object] = []
        words = filled(_Reducing(
            outer=outer, rows=rows, parts=parts, columns=columns, inner=inner, length=length,
            x_base=planning.lie(x).offset,
        ), keep)  # fmt: skip
        along = inner == 1
        driver = address_of(
            f"reduce {spec} {'row' if along else 'columns'}",
            lambda k, name: _drive(k, name, spec, lanes, along, c.target.has_masks), c,
        )  # fmt: skip
        return [Step(driver, words, -(-outer // rows) * parts, tuple(keep))]

    planning.job(steps, [x, y], work, kernels=kernels)


class _Reducing(Record):
    """Words of the driver: rows and columns of an item, and the three extents, of which the middle one goes."""

    outer: Word
    rows: Word
    parts: Word
    columns: Word
    inner: Word
    length: Word
    x_base: Word


def _drive(k: Module, name: str, spec: Over, lanes: int, along: bool, masks: bool) -> None:
    """Add the driver; its operands are the tensor and the result."""
    dtype = DTYPES[spec.dtype]
    kind, size = vector(LLVM_NAMES[spec.dtype], lanes), dtype.itemsize
    with k.function(name, Drive) as given:
        w = at_once(_Reducing.read(k, given.words))
        x, y = k.buffer(given.frame) + w.x_base, k.buffer(given.frame, 2)
        first = given.item // w.parts * w.rows
        column = given.item % w.parts * w.columns
        with k.loop(first, k.minimum(first + w.rows, w.outer)) as row:
            source, target = x + row.index * (w.length * w.inner * size), y + row.index * (w.inner * size)
            if along:
                total = _along(k, spec, kind, source, w.length)
                k.store(_finished(k, spec, total, w.length), target)
            else:
                end = k.minimum(column + w.columns, w.inner)
                _columns(k, spec, kind, source, target, column, end, w, masks)


def _neutral(spec: Over) -> float:
    row = DTYPES[spec.dtype]
    if spec.function == "Add":
        return 0
    least = spec.function == "Max"
    return (float("-inf") if least else float("inf")) if row.is_float else row.limits[0 if least else 1]


def _joined(k: Module, spec: Over, a: Value, b: Value) -> Value:
    return FUNCTIONS[spec.function].emit(k, DTYPES[spec.dtype], a, b)


def _begun(k: Module, spec: Over, value: Value) -> Value:
    """What an element counts as."""
    if spec.before == "Square":
        return value * value
    return FUNCTIONS[spec.before].emit(k, DTYPES[spec.dtype], value) if spec.before else value


def _finished(k: Module, spec: Over, total: Value, length: Value) -> Value:
    if spec.after:
        return FUNCTIONS[spec.after].emit(k, DTYPES[spec.dtype], total)
    if not spec.mean:
        return total
    count = k.cast("sitofp", length, total.type.scalar)
    return total / (k.splat(count, total.type.lanes) if total.type.lanes else count)


def _along(k: Module, spec: Over, kind: Type, source: Buffer, length: Value) -> Value:
    """All elements of a row taken together."""
    neutral, size = k.constant(kind, _neutral(spec)), kind.element_bytes
    block = _CHAINS * kind.lanes
    full = length - length % block

    def vectors(index: Value) -> list[Value]:
        place = source + index * size
        return [_begun(k, spec, k.load(kind, place + at * kind.bytes)) for at in range(_CHAINS)]

    each = _chained(k, spec, [neutral] * _CHAINS, full, block, vectors)
    whole = length - length % kind.lanes
    with k.loop(full, whole, kind.lanes, carry=[each[0]]) as one:
        one.next(_joined(k, spec, one.values[0], _begun(k, spec, k.load(kind, source + one.index * size))))
    total = one.results[0]
    for other in each[1:]:
        total = _joined(k, spec, total, other)
    single = across_lanes(k, total, lambda a, b: _joined(k, spec, a, b))
    with k.loop(whole, length, carry=[single]) as rest:
        value = _begun(k, spec, k.load(kind.scalar, source + rest.index * size))
        rest.next(_joined(k, spec, rest.values[0], value))
    (found,) = rest.results
    assert isinstance(found, Value)
    return found


def _chained(k: Module, spec: Over, neutral: Sequence[Value], end: Value, step: int,
             values: Callable[[Value], Sequence[Value]]) -> list[Value]:  # fmt: skip
    """What values from 0 to an end come to, in chains; sums of floats in parts, as each addition rounds what is before.

    Of n values an addend is then rounded about ``_PART + n / _PART`` times and not n times.
    """

    def joined(before: Sequence[Value], after: Sequence[Value]) -> list[Value]:
        return [_joined(k, spec, a, b) for a, b in zip(before, after, strict=True)]

    if spec.function != "Add" or not DTYPES[spec.dtype].is_float:
        with k.loop(0, end, step, carry=neutral) as each:
            each.next(*joined(each.values, values(each.index)))
        return each.results
    with k.loop(0, end, _PART * step, carry=neutral) as part:
        with k.loop(part.index, k.minimum(part.index + _PART * step, end), step, carry=neutral) as each:
            each.next(*joined(each.values, values(each.index)))
        part.next(*joined(part.values, each.results))
    return part.results


def across_lanes(k: Module, value: Value, join: Callable[[Value, Value], Value]) -> Value:
    """The lanes of a vector taken together, half by half."""
    lanes = value.type.lanes
    while lanes > 1:
        lanes //= 2
        low, high = (k.shuffle(value, value, range(first, first + lanes)) for first in (0, lanes))
        value = join(low, high)
    return k.emit(f"extractelement {value.type} {value.name}, i32 0", value.type.scalar)


def _columns(k: Module, spec: Over, kind: Type, source: Buffer, target: Buffer, begin: Value, end: Value,
             w: _Reducing, masks: bool) -> None:  # fmt: skip
    """Vectors of columns, each summed from line to line."""
    size = kind.element_bytes

    def some(at: Value, type_: Type, count: int, mask: Mask | None) -> None:
        neutral = k.constant(type_, _neutral(spec))

        def vectors(line: Value) -> list[Value]:
            place = source + line * (w.inner * size) + at * size
            return [_begun(k, spec, read(k, type_, place + j * type_.bytes, mask)) for j in range(count)]

        for j, total in enumerate(_chained(k, spec, [neutral] * count, w.length, 1, vectors)):
            found = _finished(k, spec, total, w.length)
            write(k, found, target + at * size + j * type_.bytes, mask)

    each_block(k, kind, begin, end, masks, _CHAINS, some)


@dataclass(frozen=True, slots=True)
class _Row:
    """An operator as ``Over`` has it; of floats alone, or of integers as well."""

    function: str
    mean: bool = False
    before: str = ""
    after: str = ""
    is_of_floats: bool = False


_TABLE: Mapping[str, _Row] = {
    "ReduceMean": _Row("Add", mean=True, is_of_floats=True),
    "ReduceSum": _Row("Add"),
    "ReduceL1": _Row("Add", before="Abs", is_of_floats=True),
    "ReduceL2": _Row("Add", before="Square", after="Sqrt", is_of_floats=True),
    "ReduceSumSquare": _Row("Add", before="Square", is_of_floats=True),
    "ReduceMax": _Row("Max"),
    "ReduceMin": _Row("Min"),
    "GlobalAveragePool": _Row("Add", mean=True),
    "GlobalMaxPool": _Row("Max"),
}
"""By operator."""
