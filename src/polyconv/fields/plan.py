"""Field filters described, and cut: what is summed along which axes, and boxes of outputs whose panels fit a cache.

A box is as large as panels may be, cut so that borders of boxes, which are brought once more, stay small.  How it is
cut changes no bit: a sum's chain of additions is the order of its taps.  It must not know drivers or words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.errors import Unsupported
from polyconv.kernels.field_sums import FieldTile
from polyconv.kernels.isa import field_tile
from polyconv.kernels.language import Type
from polyconv.lowering.panel import header_bytes
from polyconv.lowering.situation import FREE_BYTES
from polyconv.target import Target

__all__ = ["PANEL_BYTES", "Again", "Field", "FieldAxis", "Layout", "Stage", "layout_of"]

PANEL_BYTES = 384 << 10
"""Panels of a box: less than half of a second-level cache of 1 MiB."""

_PARTED = 0.1
"""Share that a box costs more with every halving of the lines that it takes: memory gives whole lines fastest."""

_LINE = 64
_COLLIDING = 4096
"""Lines of a panel that lie a multiple of this apart share a set of a first-level cache."""


@dataclass(frozen=True, slots=True)
class FieldAxis:
    """An axis of a field.

    Parameters
    ----------
    extent : int
        Positions of the field.
    before : int
        Positions that the window of an output begins before it.
    reach : int
        Positions that all windows together are longer than 1.
    beyond : array of int64
        Positions that stand for -before, ..., -1 and for extent, ...; -1 where the constant of the border stands.
    x_stride, y_stride : int
        Bytes between neighbours in field and result.
    some : (int, int) or None
        Which outputs are computed, from the first to before the second, if not all.
    """

    extent: int
    before: int
    reach: int
    beyond: NDArray[np.int64]
    x_stride: int
    y_stride: int
    some: tuple[int, int] | None = None

    @property
    def first(self) -> int:
        """First output."""
        return 0 if self.some is None else self.some[0]

    @property
    def outputs(self) -> int:
        """How many outputs are computed."""
        return self.extent if self.some is None else self.some[1] - self.some[0]


@dataclass(frozen=True, slots=True, eq=False)
class Again:
    """Taps in the order in which sums in doubt are done again: weights, positions in the window, surface they read."""

    weights: NDArray[np.float64]
    taps: NDArray[np.int64]
    source: int = 0

    def beyond(self) -> tuple[int, int]:
        """Rows and columns that a window is longer than 1; rows -1 if it is longer along other axes, too."""
        *outer, down, along = (int(n) for n in self.taps.max(axis=0, initial=0))
        return -1 if any(outer) else down, along


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """Sums over one window.

    Parameters
    ----------
    tile : FieldTile
        Its ``spread`` and ``inside`` are filled in.
    reach : tuple of int
        Positions that its windows are longer than 1, axis by axis.
    weights : array of float64
        Of all taps of the window for the form ``dense``, an axis each; else of the entries.
    taps : array of int, (entries, axes) or for pairs (entries, 2, axes)
        Position in the window of every entry.
    sources : tuple of int
        For every entry the surface that it reads, if that is not the stage's own: 0 is the field.
    source : int
        The surface that it reads.
    is_blanked : bool
        Whether its results are replaced by the border's constant where they lie beyond the field.
    divisor, doubt : float
        Constants of the tile.
    again : Again or None
        What sums in doubt are done again with.
    """

    tile: FieldTile
    reach: tuple[int, ...]
    weights: NDArray[np.float64]
    taps: NDArray[np.int64]
    sources: tuple[int, ...] = ()
    source: int = 0
    is_blanked: bool = False
    divisor: float = 1.0
    doubt: float = 0.0
    again: Again | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """What is to be computed.

    Parameters
    ----------
    axes : tuple of FieldAxis
        Two at least; the last lies along the lanes.
    source : str
        dtype of the field.
    itemsize : (int, int)
        Bytes of an element of field and result.
    offsets : (int, int)
        Of the first element of field and result from their lowest address.
    stages : tuple of Stage
        Stage number n writes surface n + 1, the last one the result; all have panels of the same element.
    filling : float
        What lies beyond a border of constants.
    """

    axes: tuple[FieldAxis, ...]
    source: str
    itemsize: tuple[int, int]
    offsets: tuple[int, int]
    stages: tuple[Stage, ...]
    filling: float = 0.0

    @property
    def panel(self) -> str:
        """LLVM element of the panels."""
        return self.stages[0].tile.panel


@dataclass(frozen=True, slots=True)
class Layout:
    """How a field is cut: outputs of a box, bytes between lines of a panel along every axis, where panels begin."""

    box: tuple[int, ...]
    steps: tuple[int, ...]
    bases: tuple[int, ...]
    workspace: int

    def offsets(self, taps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes from a window's first position to taps, whose positions lie along the last axis."""
        found: NDArray[np.int64] = taps @ np.array(self.steps)
        return found


def layout_of(f: Field, target: Target, threads: int, limit: int | None) -> Layout:
    """The box that brings the fewest elements an output, in a workspace within limits."""
    size = Type(f.panel).element_bytes
    rows, vectors = field_tile(target)
    lanes = target.vector_bytes // size
    header = header_bytes(len(f.axes)) + 2 * _LINE  # and room for a vector and two numbers
    slots = _slots(f)
    budget = PANEL_BYTES if limit is None else min(PANEL_BYTES, limit + FREE_BYTES)

    def sizes(box: tuple[int, ...]) -> Layout:
        *outer, columns = (b + axis.reach for b, axis in zip(box, f.axes, strict=True))
        # tiles are whole vectors, and taps may begin anywhere: room for one more
        step = -(-(columns + vectors * lanes) * size // _LINE) * _LINE
        step += _LINE * (step % _COLLIDING == 0)
        steps = [size]
        for extent in reversed(outer):
            steps.insert(0, step)
            step *= extent
        bases = tuple(header + slot * step for slot in slots)
        return Layout(box, tuple(steps), bases, header + (max(slots) + 1) * step)

    def brought(box: tuple[int, ...]) -> float:
        return math.prod((b + axis.reach) / b for b, axis in zip(box, f.axes, strict=True))

    extents = [max(1, axis.outputs) for axis in f.axes]
    best: tuple[float, Layout] | None = None
    width = extents[-1]
    least = min(width, 4 * vectors * lanes)
    for parts in sorted({-(-width // w) for w in (width, 4096, 2048, 1024, 512, 256, least) if w >= least}):
        columns = _rounded_up(-(-width // parts), vectors * lanes, width)
        found = _grown(f, extents, columns, rows, lambda box: sizes(box).workspace, budget)
        price = brought(found) * (1 + _PARTED * math.log2(parts))
        if best is None or (sizes(found).workspace <= budget, -price) > (best[1].workspace <= budget, -best[0]):
            best = price, sizes(found)
    assert best is not None
    layout = best[1]
    if layout.workspace > budget:
        layout = sizes((*(1 for _ in f.axes[:-1]), min(width, lanes)))
    if limit is not None and layout.workspace > limit + FREE_BYTES:
        raise Unsupported(
            f"the window needs {layout.workspace - FREE_BYTES} bytes of workspace, the limit is {limit}; raise "
            "workspace_limit or use a smaller window"
        )
    return sizes(_shared(f, layout.box, rows, threads))


def _grown(f: Field, extents: Sequence[int], columns: int, rows: int, workspace: Any, budget: int) -> tuple[int, ...]:
    """The box whose outer axes were doubled, each time the one that saves most, while it fits."""
    box = [1] * (len(extents) - 1) + [columns]

    def saved(axis: int) -> float:
        reach, b = f.axes[axis].reach, box[axis]
        return reach / (b + reach) + (1e-3 if axis == len(box) - 2 else 0.0)

    open_ = [a for a in range(len(box) - 1) if extents[a] > 1]
    while open_:
        axis = max(open_, key=saved)
        wider = [*box]
        wider[axis] = min(extents[axis], 2 * box[axis])
        if workspace(tuple(wider)) > budget:
            open_.remove(axis)
            continue
        box = wider
        if box[axis] >= extents[axis]:
            open_.remove(axis)
    # what doubling left unused, along rows
    row = len(box) - 2
    step = max(1, min(rows, extents[row]))
    while box[row] + step <= extents[row] and workspace((*box[:row], box[row] + step, *box[row + 1 :])) <= budget:
        box[row] += step
    return (*(_near_equal(extents[a], b, rows if a == row else 1) for a, b in enumerate(box[:-1])), columns)


def _near_equal(extent: int, most: int, multiple: int) -> int:
    """Size of near-equal parts of at most ``most``, rounded up to a multiple where that is no more."""
    size = -(-extent // -(-extent // most))
    return min(most, _rounded_up(size, multiple, extent))


def _rounded_up(size: int, multiple: int, most: int) -> int:
    return min(most, -(-size // multiple) * multiple)


def _shared(f: Field, box: tuple[int, ...], rows: int, threads: int) -> tuple[int, ...]:
    """A smaller box if there are too few for all threads: four each, cut along the outermost axes first."""
    smaller = [*box]
    for a, axis in enumerate(f.axes[:-1]):
        items = math.prod(-(-one.outputs // b) for one, b in zip(f.axes, smaller, strict=True))
        wanted = 4 * threads
        if threads == 1 or items >= wanted:
            break
        n, multiple = axis.outputs, rows if a == len(box) - 2 else 1
        parts = min(n, -(-n // smaller[a]) * -(-wanted // items))
        smaller[a] = max(1, min(smaller[a], _rounded_up(-(-n // parts), multiple, n)))
    return tuple(smaller)


def _slots(f: Field) -> list[int]:
    """Which piece of the workspace every panel takes: one that no later stage reads anything else in."""
    until = [0] * len(f.stages)  # the last stage that reads a panel
    for number, stage in enumerate(f.stages):
        for surface in {stage.source, *stage.sources, stage.source if stage.again is None else stage.again.source}:
            until[surface] = number
    slots = [0]
    for surface in range(1, len(f.stages)):  # stage surface - 1 writes it
        taken = {slots[other] for other in range(surface) if until[other] >= surface - 1}
        slots.append(min(set(range(surface + 1)) - taken))
    return slots
