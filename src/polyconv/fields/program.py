"""Field filters: sums over windows of an array without channels, whose border is read through a padding mode.

A box of outputs gets a panel: the part of the field that its windows meet, border included, as floats.  The border
comes from a table of positions an axis, so the field is never copied as a whole.  One stage of sums, or several one
after the other while the panels stay in a cache, lead to the result.  A sum's chain of additions is the order of its
taps, however the field is cut.  It knows nothing of problems, modes and kinds of filters: those end in ``Stage``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.fields.driver import TILES, FieldWords, StageWords, driver
from polyconv.fields.plan import Again, Field, Layout, Stage, layout_of
from polyconv.kernels.field import FILLING, FieldLine, LineOfField, field_line, field_tiles
from polyconv.kernels.field_again import DIVISOR, DOUBT, SumAgain
from polyconv.kernels.field_sums import ENTRY_WORDS, TilesOfField
from polyconv.kernels.isa import field_tile
from polyconv.kernels.language import Type
from polyconv.kernels.objects import kernel
from polyconv.kernels.record import filled
from polyconv.kernels.signature import Address, Signature
from polyconv.lowering.panel import AxisWords, BoxWords, Driver, header_bytes
from polyconv.lowering.program import Program, one_step
from polyconv.runtime.arrays import aligned
from polyconv.target import Target

__all__ = ["build"]

_LISTED_ROWS = 2
"""Rows of outputs that share the weights of a list: with four vectors each, enough sums to wait for none."""

_NEAR_BYTES = 1 << 20
"""Field and result beyond this are asked for ahead, lines of the field so many lines."""
_AHEAD = 8


def build(f: Field, target: Target, *, threads: int, limit: int | None, check: bool) -> Program:
    """Program of a field filter.

    Parameters
    ----------
    threads : int
        Most threads that will share its items; no bits depend on it.
    limit : int or None
        Most workspace bytes of a thread beyond those that are always free.

    Raises
    ------
    Unsupported
        If not even one vector of outputs fits the limit.
    """
    layout = layout_of(f, target, threads, limit)
    keep: list[Any] = []
    element, f16c = Type(f.panel), target.converts_f16
    lanes = target.vector_bytes // element.element_bytes
    far = math.prod(axis.extent for axis in f.axes) * sum(f.itemsize) > _NEAR_BYTES
    line = FieldLine(f.source, f.panel, f.axes[-1].x_stride != f.itemsize[0], far)
    bring = kernel(
        f"{line} {lanes}", {"line": LineOfField}, lambda k: field_line(k, "line", line, lanes, f16c=f16c), target,
        check=check,
    )["line"]  # fmt: skip
    name, wide = f"field {f.panel}", target.vector_bytes
    address = kernel(name, {"field": Driver}, lambda k: driver(k, "field", f.panel, wide), target, check=check)["field"]
    stages = [_stage(f, number, layout, target, asks=far, check=check) for number in range(len(f.stages))]
    counts = [-(-axis.outputs // b) for axis, b in zip(f.axes, layout.box, strict=True)]
    items = math.prod(counts)
    axes, positions = _axes(f, layout, counts)
    values = FieldWords(
        boxes=BoxWords(len(f.axes), axes, positions, boxes=items, splits=1, groups=1), x_base=f.offsets[0],
        y_base=f.offsets[1], line=bring, surfaces=_surfaces(f, layout), surface_words=1 + 2 * len(f.axes),
        stage_count=len(f.stages), stages=stages, constants=_constants(f, f.stages[0]), room=header_bytes(len(f.axes)),
        ahead=_AHEAD * f.axes[-2].x_stride,
    )  # fmt: skip
    return one_step(address, filled(values, keep), items, layout.workspace, keep)


def _axes(f: Field, layout: Layout, counts: Sequence[int]) -> tuple[list[AxisWords], NDArray[np.int64]]:
    """Words of the axes, and the positions that stand for those beyond the field."""
    records: list[AxisWords] = []
    tables: list[NDArray[np.int64]] = []
    place = 0
    for axis, b, count in zip(f.axes, layout.box, counts, strict=True):
        records.append(AxisWords(
            inp=axis.extent, x_stride=axis.x_stride, block=b, out=axis.outputs, stride=1,
            pad=axis.before - axis.first, y_stride=0, r_stride=0, boxes=count, lines=0,
            positions=place + axis.before, pitch=0,
        ))  # fmt: skip
        tables.append(axis.beyond)
        place += len(axis.beyond)
    positions = aligned(max(1, place), np.int64)
    positions[:place] = np.concatenate(tables)
    return records, positions


def _surfaces(f: Field, layout: Layout) -> list[int]:
    """Words of the surfaces: the panels, then the result."""
    table: list[int] = []
    for base, left in zip(layout.bases, _lefts(f), strict=True):
        table += [base, *(v for pair in zip(left, layout.steps, strict=True) for v in pair)]
    first = f.offsets[1] + sum(axis.first * axis.y_stride for axis in f.axes)
    return [*table, first, *(v for axis in f.axes for v in (0, axis.y_stride))]


def _lefts(f: Field) -> list[tuple[int, ...]]:
    """Lines of every panel that stages after it still need."""
    left = [tuple(axis.reach for axis in f.axes)]
    for stage in f.stages[:-1]:
        left.append(tuple(n - r for n, r in zip(left[stage.source], stage.reach, strict=True)))
    return left


def _stage(f: Field, number: int, layout: Layout, target: Target, *, asks: bool, check: bool) -> StageWords:
    """Words of a stage."""
    stage, is_last = f.stages[number], number == len(f.stages) - 1
    kind, f16c = _kind(f), target.converts_f16
    lanes = target.vector_bytes // kind.itemsize
    rows, vectors = field_tile(target)
    is_dense = stage.tile.form == "dense"
    *outer, down, along = stage.weights.shape if is_dense else (1,) * len(f.axes)
    rows = min(rows, down if is_dense else _LISTED_ROWS)
    vectors = vectors // 2 if stage.tile.blocked else vectors
    beside = np.moveaxis(np.indices((*outer, 1, 1)), 0, -1).reshape(-1, len(f.axes))
    places = layout.offsets(beside).tolist()
    spread = is_last and f.axes[-1].y_stride != f.itemsize[1]
    spec = replace(stage.tile, spread=spread, inside=not is_last, asks=asks and is_last and not spread)
    again = stage.again or Again(stage.weights[:0], np.zeros((0, len(f.axes)), np.int64), stage.source)
    again_down, again_along = again.beyond()
    functions: dict[str, type[Signature]] = {**dict.fromkeys(TILES, TilesOfField)}
    if spec.doubt:
        functions["again"] = SumAgain
    found: dict[str, Address[Any]] = kernel(
        f"{spec} {lanes} {rows}x{vectors}", functions, lambda k: field_tiles(k, spec, lanes, rows, vectors, f16c=f16c),
        target, check=check,
    )  # fmt: skip
    return StageWords(
        source=stage.source, target=number + 1, is_last=int(is_last), is_blanked=int(stage.is_blanked),
        rows=rows, columns=vectors * lanes, lanes=lanes, tiles=[found[name] for name in TILES],
        entries=aligned(1, np.int64) if is_dense else _entries(stage, layout, kind), entry_count=len(stage.weights),
        weights=_aligned(stage.weights.reshape(-1) if is_dense else stage.weights[:0], kind),
        down=down, along=along, tap=layout.steps[-1] * (stage.reach[-1] // max(1, along - 1)),
        places=places, outer=len(places), again_surface=again.source,
        again=_listed(again.weights, layout.offsets(again.taps)[:, None], np.dtype(np.float64)),
        again_count=len(again.weights), again_down=again_down, again_along=again_along, constants=_constants(f, stage),
    )  # fmt: skip


def _kind(f: Field) -> np.dtype[Any]:
    return np.dtype(np.float32 if f.panel == "float" else np.float64)


def _entries(stage: Stage, layout: Layout, kind: np.dtype[Any]) -> NDArray[np.int64]:
    """Entries of a list of taps, or of pairs of them."""
    sources = stage.sources or (stage.source,) * len(stage.weights)
    starts = np.array(layout.bases)[list(sources)] - layout.bases[stage.source]
    offsets = layout.offsets(stage.taps).reshape(len(stage.weights), ENTRY_WORDS[stage.tile.form] - 1)
    return _listed(stage.weights, offsets + starts[:, None], kind)


def _listed(weights: NDArray[np.float64], offsets: NDArray[np.int64], kind: np.dtype[Any]) -> NDArray[np.int64]:
    """Entries: offsets, then the weight."""
    table = aligned((max(1, len(weights)), offsets.shape[1] + 1), np.int64)
    if len(weights):
        table[:, :-1] = offsets
        table[:, -1:].view(kind)[:, :1] = weights[:, None]
    return table


def _aligned(values: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    copy = aligned(max(1, values.size), kind)
    copy[: values.size] = values
    return copy


def _constants(f: Field, stage: Stage) -> NDArray[np.int64]:
    """What tiles and lines read by name."""
    table = aligned(3, np.int64)
    for place, value in ((DIVISOR, stage.divisor), (DOUBT, stage.doubt), (FILLING, f.filling)):
        table[place // 8 :].view(_kind(f))[0] = value
    return table
