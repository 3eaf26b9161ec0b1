"""Copies in which rows become columns: elements that lie together in the source lie apart in the target.

Turns extents and strides into a step.  The one idea: vectors are read along the source's rows and written along the
target's; in between, words change places in registers.  Where one of the two axes is short, whole runs of the other
are merged, or taken apart; where both are long, squares are turned.  It must not know operators.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.language import INT, Mask, Module, Type, Value, vector
from polyconv.kernels.layout import woven
from polyconv.kernels.unzip import residues
from polyconv.kernels.values import Buffer
from polyconv.operators.along import Along, joined
from polyconv.operators.job import Conditions, Step, address_of
from polyconv.operators.rows import each_vector, read, write
from polyconv.operators.strided import walk_step, walked

__all__ = ["is_turned", "turned_step"]

_MOST_SHORT = 8
_MOST_LANES = 16
"""Of a square's side, so that its rows stay in registers."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """All that shapes the code.

    Parameters
    ----------
    way : str
        ``merge`` rows that follow each other along the last axis, ``part`` a run into such rows, or turn a ``square``.
    dtype : str
    rank, short : int
        Axes; elements of the last one, 0 for squares.
    vector_bytes : int
    masks : bool
    """

    way: str
    dtype: str
    rank: int
    short: int
    vector_bytes: int
    masks: bool

    def __str__(self) -> str:
        return f"{self.way} {self.dtype} {self.rank} {self.short}"

    @property
    def kind(self) -> Type:
        """A vector of elements."""
        lanes = self.vector_bytes // DTYPES[self.dtype].itemsize
        return vector(LLVM_NAMES[self.dtype], lanes if self.short else min(lanes, _MOST_LANES))


def turned_step(dtype: str, extents: Sequence[int], source: Along, target: Along, c: Conditions, threads: int
                ) -> Step | None:  # fmt: skip
    """The step of a copy whose rows become columns; None for any other."""
    size = DTYPES[dtype].itemsize
    extents, (source, target) = joined(extents, [source, target])
    found = _way(extents, source, target, size)
    if found is None:
        return None
    way, ahead, behind = found
    last = ahead if way == "part" else behind
    order = [a for a in range(len(extents)) if a not in (ahead, behind)] + [ahead + behind - last, last]
    short = 0 if way == "square" else extents[last]
    spec = _Turn(way, dtype, len(order), short, c.target.vector_bytes, c.target.has_masks)
    driver = address_of(f"turn {spec}", lambda k, name: _drive(k, name, spec), c)
    operands = [Along(a.offset, tuple(a.strides[at] for at in order)) for a in (source, target)]
    return walk_step(driver, [extents[at] for at in order], operands, threads)


def is_turned(extents: Sequence[int], source: Along, target: Along, size: int) -> bool:
    """Whether rows become columns in a copy of elements of some bytes, as ``turned_step`` does it."""
    extents, (source, target) = joined(extents, [source, target])
    return _way(extents, source, target, size) is not None


def _way(extents: Sequence[int], source: Along, target: Along, size: int) -> tuple[str, int, int] | None:
    """How rows become columns, and along which axes those of the source and of the target run."""
    ahead, behind = (
        next((a for a, e in enumerate(extents) if e > 1 and along.strides[a] == size), None)
        for along in (source, target)
    )
    if ahead is None or behind is None or ahead == behind:
        return None
    if extents[behind] <= _MOST_SHORT:
        return ("merge", ahead, behind) if target.strides[ahead] == extents[behind] * size else None
    if extents[ahead] <= _MOST_SHORT:
        return ("part", ahead, behind) if source.strides[behind] == extents[ahead] * size else None
    return "square", ahead, behind


def _drive(k: Module, name: str, spec: _Turn) -> None:
    """Add the driver."""
    ways = {"merge": _merged, "part": _parted, "square": _squares}

    def row(places: list[Buffer], steps: list[list[Value]], ends: list[tuple[Value, Value]]) -> None:
        x, y = (k.rebase(place) for place in places)
        ways[spec.way](k, spec, _Rows(x, y, steps[0], steps[1]), ends)

    walked(k, name, spec.rank, 2, (0, 1), row)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Where source and target begin, and their steps along the last two axes."""

    x: Buffer
    y: Buffer
    x_steps: list[Value]
    y_steps: list[Value]


_Ends = Sequence[tuple[Value, Value]]


def _merged(k: Module, spec: _Turn, rows: _Rows, ends: _Ends) -> None:
    """Rows of the source, one for each element of the last axis, into one run of the target."""
    size, count = spec.kind.element_bytes, spec.short

    def some(at: Value, type_: Type, mask: Mask | None) -> None:
        here = rows.x + at * size
        planes = [read(k, type_, here + rows.x_steps[1] * row, mask) for row in range(count)]
        _run_written(k, planes, rows.y + at * (count * size), mask)

    each_vector(k, spec.kind, *ends[0], spec.masks, some)


def _run_written(k: Module, planes: list[Value], run: Buffer, mask: Mask | None) -> None:
    """Store the first words of all planes, then the second ones, ..."""
    type_ = planes[0].type
    for number, value in enumerate(woven(k, planes) if type_.lanes else planes):
        part = None if mask is None else k.mask(mask.count * len(planes) - number * type_.lanes, type_.lanes)
        write(k, value, run + number * type_.bytes, part)


def _parted(k: Module, spec: _Turn, rows: _Rows, ends: _Ends) -> None:
    """A run of the source into rows of the target, one for each element of the last axis."""
    size, count = spec.kind.element_bytes, spec.short

    def some(at: Value, type_: Type, mask: Mask | None) -> None:
        run, lanes = rows.x + at * (count * size), type_.lanes
        parts = []
        for number in range(count):
            part = None if mask is None else k.mask(mask.count * count - number * lanes, lanes)
            parts.append(read(k, type_, run + number * type_.bytes, part))
        for row, value in enumerate(residues(k, parts) if lanes else parts):
            write(k, value, rows.y + at * size + rows.y_steps[1] * row, mask)

    each_vector(k, spec.kind, *ends[0], spec.masks, some)


def _squares(k: Module, spec: _Turn, rows: _Rows, ends: _Ends) -> None:
    """Squares of both axes; what is left of one at the borders is done with masks, or element by element."""
    kind, lanes = spec.kind, spec.kind.lanes
    (top, bottom), (left, right) = ends
    whole = [end - (end - begin) % lanes for begin, end in ends]

    def square(i: Value, j: Value, high: Value | None, wide: Value | None) -> None:
        """Turn one, of which only the first elements along each axis may be there."""
        x = rows.x + i * kind.element_bytes + rows.x_steps[1] * j
        y = rows.y + j * kind.element_bytes + rows.y_steps[0] * i
        sources, targets = x.rows(lanes, rows.x_steps[1], wide), y.rows(lanes, rows.y_steps[0], high)
        planes = [read(k, kind, here, _there(k, lanes, row, wide, high)) for row, here in enumerate(sources)]
        for row, (value, here) in enumerate(zip(woven(k, planes), targets, strict=True)):
            write(k, value, here, _there(k, lanes, row, high, wide))

    def elements(first: tuple[Value, Value], second: tuple[Value, Value]) -> None:
        with k.loop(*first) as i, k.loop(*second) as j:
            x = rows.x + i.index * kind.element_bytes + rows.x_steps[1] * j.index
            y = rows.y + j.index * kind.element_bytes + rows.y_steps[0] * i.index
            k.store(k.load(kind.scalar, x), y)

    with k.loop(top, whole[0], lanes) as i:
        with k.loop(left, whole[1], lanes) as j:
            square(i.index, j.index, None, None)
        if spec.masks:
            with k.when(whole[1] < right):
                square(i.index, whole[1], None, right - whole[1])
    if spec.masks:
        with k.when(whole[0] < bottom), k.loop(left, right, lanes) as j:
            square(whole[0], j.index, bottom - whole[0], right - j.index)
        return
    elements((top, whole[0]), (whole[1], right))
    elements((whole[0], bottom), (left, right))


def _there(k: Module, lanes: int, row: int, rows: Value | None, count: Value | None) -> Mask | None:
    """Which elements of a row are there, if not all rows are, or not all elements."""
    if rows is None and count is None:
        return None
    every = k.constant(INT, lanes) if count is None else count
    return k.mask(every if rows is None else k.select(rows > row, every, 0), lanes)
