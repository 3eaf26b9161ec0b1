"""Softmax and the normalisations, on lines: which axes a line has, and where lines lie.

Turns an operator into lines of an array of any strides.  The one idea: axes that are taken together and neighbour each
other are one axis, and so are those that are not.  It must not know kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.errors import ArgumentError
from polyconv.operators.along import Along, joined
from polyconv.operators.job import Conditions, Operation, Own, Plan, Planning, Step, constant
from polyconv.operators.lines import LinesSpec, Place, Space, line_step
from polyconv.operators.lying import Lies, channels_last, is_channels_last, lies_like
from polyconv.operators.moving import as_packed
from polyconv.operators.short_lines import is_short, short_step
from polyconv.operators.types import dtype_name, untaken

__all__ = ["normalisation"]


@dataclass(frozen=True, slots=True)
class _Way:
    """How an operator normalises.

    Parameters
    ----------
    function : str
        See ``LinesSpec``.
    axes : tuple of int
        Neighbours, in order: what a line has.
    scaled : str
        See ``LinesSpec``.
    groups : int
        Parts of the channel axis that are lines of their own; 0 where each channel is one, or lines are no channels.
    epsilon : float
    """

    function: str
    axes: tuple[int, ...]
    scaled: str = ""
    groups: int = 0
    epsilon: float = 0.0


def normalisation(operation: Operation) -> Own | str:
    """An operation on lines, or why not."""
    present = [given for given in operation.inputs if given is not None]
    x = operation.inputs[0] if operation.inputs else None
    if x is None or x.dims is None or not x.dims or operation.outputs != 1:
        return "the model does not say the rank of its input, or it has more than one result"
    dtype = dtype_name(x.dtype, has_halves=operation.on_gpu)
    if dtype is None or not DTYPES[dtype].is_float or any(given.dtype != x.dtype for given in present):
        return untaken(x.dtype) if dtype is None else "it is not done here for these types"
    allowed, read = _TABLE[operation.op]
    if set(operation.attributes).difference(allowed):
        return "it has attributes that are not done here"
    way = read(operation, len(x.dims), [given.dims for given in present[1:]])
    if isinstance(way, str):
        return way
    rank, held = len(x.dims), [constant(given) for given in present]
    reads = tuple(at for at, array in enumerate(held) if array is None)

    def planned(given: Sequence[Lies], c: Conditions) -> Plan:
        planning = Planning(given, c)
        numbers = dict(zip(reads, range(len(given)), strict=True))
        operands = [numbers[at] if array is None else planning.constant(array) for at, array in enumerate(held)]
        _plan(planning, way, dtype, rank, operands)
        return planning.plan()

    return Own(reads, (x.dtype,), planned)


_Dims = tuple[int | None, ...] | None


def _softmax(operation: Operation, rank: int, others: Sequence[_Dims]) -> _Way | str:
    """Over an axis; before opset 13 over all axes from there on."""
    axis = operation.attributes.get("axis", -1 if operation.version >= 13 else 1)
    if others or not isinstance(axis, int) or not -rank <= axis < rank:
        return "its axis lies outside the input"
    first = axis % rank
    return _Way(operation.op, (first,) if operation.version >= 13 else tuple(range(first, rank)))


def _layers(operation: Operation, rank: int, others: Sequence[_Dims]) -> _Way | str:
    """LayerNormalization: all from an axis on is a line, to a ``last_axis`` that rewrites know, who need no scales."""
    axis, last = operation.attributes.get("axis", -1), operation.attributes.get("last_axis", rank - 1)
    least = 0 if "last_axis" in operation.attributes and not operation.on_gpu else 1  # a GPU's kernel has scales
    is_axis = isinstance(axis, int) and -rank <= axis < rank
    if not is_axis or not least <= len(others) <= 2 or operation.attributes.get("stash_type", 1) != 1:
        return "its axis lies outside the input, or it computes in another type"
    axes = tuple(range(axis % rank, last + 1))
    known = operation.inputs[0]
    assert known is not None and known.dims is not None
    if any(not _fits(dims, [known.dims[a] for a in axes]) for dims in others):
        return "scale and bias have not the extents of its axes"
    return _Way("Normal", axes, "element" if others else "", epsilon=_epsilon(operation))


def _channels(operation: Operation, rank: int, others: Sequence[_Dims]) -> _Way | str:
    """InstanceNormalization: a channel of an image is a line."""
    if rank < 3 or len(others) != 2 or any(dims is None or len(dims) != 1 for dims in others) or operation.version < 6:
        return _CHANNELS
    return _Way("Normal", tuple(range(2, rank)), "part", epsilon=_epsilon(operation))


def _groups(operation: Operation, rank: int, others: Sequence[_Dims]) -> _Way | str:
    """GroupNormalization: some channels of an image are a line, each with a scale."""
    groups = operation.attributes.get("num_groups", 0)
    if rank < 3 or len(others) != 2 or any(dims is None or len(dims) != 1 for dims in others) or groups < 1:
        return _CHANNELS
    if operation.attributes.get("stash_type", 1) != 1:
        return "it computes in another type"
    return _Way("Normal", tuple(range(1, rank)), "part", groups, _epsilon(operation))


_CHANNELS = "it has not one scale and one bias a channel or group, or no spatial axes"


def _fits(dims: _Dims, wanted: Sequence[int | None]) -> bool:
    """Whether extents may be those wanted, as far as they are known."""
    if dims is None or len(dims) != len(wanted):
        return False
    return all(a is None or b is None or a == b for a, b in zip(dims, wanted, strict=True))


def _epsilon(operation: Operation) -> float:
    """An attribute of ONNX is a float of 32 bits; what a file spells by a constant may be a double."""
    given = operation.attributes.get("epsilon")
    return float(np.float32(1e-5) if given is None else given)


def _plan(planning: Planning, way: _Way, dtype: str, rank: int, operands: Sequence[int]) -> None:
    """Add the job that normalises an array by scales and shifts."""
    lie = planning.lie(operands[0])
    if len(lie.shape) != rank:
        raise ArgumentError(f"the input of shape {lie.shape} does not have the {rank} axes that the model says")
    x = operands[0]
    by_pixel = way.groups == 1 and not planning.c.on_gpu and _is_of_pixels(lie)  # all of an image is one line
    fits = by_pixel or (not way.groups and _laid(way, lie, lie) is not None)
    y = planning.result(lie.shape, lie.dtype, alike=planning.c.on_gpu or fits)
    repeat, pieces = _pieces(way, lie.shape)
    for number in operands[1:]:
        wanted = math.prod(lie.shape[a] for a in way.axes) if way.scaled == "element" else repeat * pieces
        if math.prod(planning.lie(number).shape) != wanted:
            raise ArgumentError(
                f"a scale or bias of shape {planning.lie(number).shape} does not fit the input of shape {lie.shape}, "
                f"which needs {wanted}"
            )
    if 0 in lie.shape:
        return
    if planning.c.on_gpu:
        _on_gpu(planning, way, dtype, [operands[0], y, *operands[1:]], (repeat, pieces))
        return
    found = _pixels(lie, planning.lie(y)) if by_pixel else None if way.groups else _laid(way, lie, planning.lie(y))
    if found is None:
        x = as_packed(planning, x)
        found = _laid(way, planning.lie(x), planning.lie(y))
    assert found is not None
    space, of_x, of_y, along = found
    scales = _scales(planning, operands[1:])
    spec = LinesSpec(way.function, dtype, along, "pixel" if by_pixel else way.scaled)
    c = planning.c
    lanes = c.target.vector_bytes // lie.dtype.itemsize
    vectors = space.outer * space.inner * (
        -(-space.length // lanes) if along else space.length * -(-space.width // lanes)
    )
    short = _is_short(spec, space, c)
    of_vector, of_line = 8.0 if way.function == "Normal" else 30.0, 12.0 if short else 60.0
    cycles = vectors * of_vector + of_line * space.outer * space.inner

    def steps(threads: int) -> list[Step]:
        if not short:
            return [line_step(spec, space, of_x, of_y, (repeat, pieces), way.epsilon, c, threads)]
        x_step, y_step = (p.inner if space.outer == 1 else p.outer for p in (of_x, of_y))
        return [short_step(dtype, space.length, space.outer * space.inner, (of_x.offset, x_step), y_step,
                           bool(spec.scaled), way.epsilon, c, threads)]  # fmt: skip

    planning.job(steps, [x, y, *scales], cycles)


def _is_short(spec: LinesSpec, space: Space, c: Conditions) -> bool:
    """Whether lines stay in registers, and follow each other along one axis."""
    is_plain = spec.function == "Normal" and spec.along and spec.scaled in ("", "element")
    return is_plain and 1 in (space.outer, space.inner) and is_short(spec.dtype, space.length, c)


def _is_of_pixels(lie: Lies) -> bool:
    """Whether an array has channels last and no gaps."""
    return is_channels_last(lie) and lies_like(lie, channels_last(lie.shape, lie.dtype))


def _pixels(x: Lies, y: Lies) -> tuple[Space, Place, Place, bool]:
    """Images with channels last as lines: the pixels of each, one after another."""
    size, whole = x.dtype.itemsize, math.prod(x.shape[1:])
    places = [Place(lie.offset, 0, whole * size, size) for lie in (x, y)]
    return Space(1, x.shape[0], whole, 1), places[0], places[1], True


def _scales(planning: Planning, given: Sequence[int]) -> list[int]:
    """Scales and shifts without gaps; shifts of 0 where there are none."""
    scales = [as_packed(planning, number) for number in given]
    if len(scales) == 1:
        lie = planning.lie(scales[0])
        scales.append(planning.constant(np.zeros(lie.shape, lie.dtype)))
    return scales


def _on_gpu(planning: Planning, way: _Way, dtype: str, operands: Sequence[int], pieces: tuple[int, int]) -> None:
    """The kernel of a GPU, which reads arrays as they lie; groups are an axis of their own."""
    from polyconv.operators.on_gpu.launching import Launching  # here, as on a CPU no kernel of a GPU is needed
    from polyconv.operators.on_gpu.lining import Lines
    from polyconv.operators.on_gpu.teams import teams_of, walks_of

    x, y = (planning.lie(number) for number in operands[:2])
    shape, axes = list(x.shape), list(way.axes)
    steps = [list(lie.strides) for lie in (x, y)]
    if way.groups:
        shape[1:2] = [way.groups, shape[1] // way.groups]
        for each in steps:
            each[1:2] = [each[1] * shape[2], each[1]]
        axes = list(range(2, len(shape)))
    others = [a for a in range(len(shape)) if a not in axes]
    of_lines, of_line = ([Along(0, tuple(each[a] for a in which)) for each in steps] for which in (others, axes))
    lines, line = walks_of(
        ([shape[a] for a in others], [shape[a] for a in axes]), (of_lines[0], of_line[0]), (of_lines[1], of_line[1]),
        x.dtype.itemsize,
    )  # fmt: skip
    teams = teams_of(line.steps[0][-1], x.dtype.itemsize, line.size)
    kernel = Lines(way.function, dtype, way.scaled, lines, line, teams, *pieces, way.epsilon)
    scales = _scales(planning, operands[2:])
    offsets = [x.offset, 0, *(planning.lie(number).offset for number in scales)]
    planning.launch(lambda: [Launching(kernel, tuple(zip((*operands[:2], *scales), offsets, strict=True)))])


def _pieces(way: _Way, shape: Sequence[int]) -> tuple[int, int]:
    """After how many lines scales begin anew, and how many parts of a line have one of their own."""
    if way.scaled != "part":
        return 1, 1
    channels = shape[1]
    if not way.groups:
        return channels, 1
    if channels % way.groups:
        raise ArgumentError(f"{channels} channels are no {way.groups} groups of one size")
    return way.groups, channels // way.groups


def _laid(way: _Way, x: Lies, y: Lies) -> tuple[Space, Place, Place, bool] | None:
    """The space of lines, where they lie, and whether vectors run along them; None where neither way does."""
    lies = x, y
    shape, size = lies[0].shape, lies[0].dtype.itemsize
    lines = [Along(lie.offset, tuple(lie.strides[a] for a in way.axes)) for lie in lies]
    others = [a for a in range(len(shape)) if a not in way.axes]
    around = [Along(lie.offset, tuple(lie.strides[a] for a in others)) for lie in lies]
    length, lines = joined([shape[a] for a in way.axes], lines)
    if len(length) != 1:
        return None
    if way.groups:  # packed; a line is a part of the channel axis, with all that lies behind it
        whole = math.prod(shape[1:])
        length = [whole // way.groups]
        extents = [shape[0] * way.groups]
        around = [Along(a.offset, (length[0] * size,)) for a in around]
    else:
        extents, around = joined([shape[a] for a in others], around)
    steps = [line.strides[0] for line in lines]
    along, width = steps == [size, size] or length == [1], 1
    if not along:
        if way.scaled == "part" or any(a.strides[-1] != size for a in around):
            return None
        width, extents = extents[-1], extents[:-1]
        around = [Along(a.offset, a.strides[:-1]) for a in around]
    if len(extents) > 2:
        return None
    lead = 2 - len(extents)
    outer, inner = (*(1,) * lead, *extents)
    strides = [(*(0,) * lead, *a.strides) for a in around]
    places = [Place(a.offset, s[0], s[1], step) for a, s, step in zip(around, strides, steps, strict=True)]
    return Space(outer, inner, length[0], width), places[0], places[1], along


_Reader = Callable[[Operation, int, Sequence[_Dims]], _Way | str]
_TABLE: Mapping[str, tuple[Sequence[str], _Reader]] = {
    "Softmax": (("axis",), _softmax),
    "LogSoftmax": (("axis",), _softmax),
    "LayerNormalization": (("axis", "epsilon", "last_axis", "stash_type"), _layers),
    "InstanceNormalization": (("epsilon",), _channels),
    "GroupNormalization": (("epsilon", "num_groups", "stash_type"), _groups),
}
"""Operator -> the attributes that it may have, and what reads it."""
