"""Weights of the matrix products: transformed, in the order in which they stream."""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from polyconv.algorithms.winograd.boxes import Boxes
from polyconv.algorithms.winograd.case import Case
from polyconv.kernels.language import Module
from polyconv.kernels.layout import Move, MoveIn
from polyconv.kernels.record import Function, Memory, Record, Table, Word, filled
from polyconv.kernels.signature import Address
from polyconv.kernels.tile import ROW_WORDS
from polyconv.kernels.transform import WeightTransform, weight_transform
from polyconv.lowering.moves import move_in_address
from polyconv.lowering.packing import Set, SourceWords, bring_rows, forward_strides, run, set_words, source_words
from polyconv.lowering.panel import Driver
from polyconv.lowering.program import Request, Step, address_of
from polyconv.lowering.sweep import Sweep
from polyconv.runtime.arrays import unwritten

__all__ = ["packed_weights", "places"]


class PhaseWords(Record):
    """A phase of the taps: the first of them, and the transform of its weights."""

    tap: Word
    transform: Function[WeightTransform]


class StreamWords(Record):
    """Where the weights of a point begin, and how many phases enter."""

    first: Word
    entering: Word


class TransformWords(Record):
    """The driver's words.

    Rows are transformed into ``made``, points ``made_point`` bytes apart, and go on from there; ``before`` says for
    every phase and point how many phases of the point come before it, or -1 where it does not enter.
    """

    weights: SourceWords
    made: Word
    made_point: Word
    points: Word
    outer: Word
    outer_taps: Word
    y_taps: Word
    x_taps: Word
    phase_count: Word
    phases: Table[PhaseWords]
    point_table: Table[StreamWords]
    before: Memory
    place: Function[MoveIn]


def places(boxes: Boxes) -> list[int]:
    """Bytes of a group's transformed weights, then bytes before those of every block and point.

    They stream in the order of products: [blocks whose sums are held together][point][block].
    """
    case = boxes.case
    row = case.outer_taps * case.groups[0] * case.lane * case.arith.bytes
    of_points = tuple([case.entering[kind] for kind in case.kinds])
    return _places(of_points, row, case.blocks, boxes.together, case.vectors, case.last_vectors)


@lru_cache(64)
def _places(of_points: tuple[int, ...], row: int, blocks: int, together: int, vectors: int, last_vectors: int
            ) -> list[int]:  # fmt: skip
    """The same for points that so many phases enter each, and bytes of a vector's row."""
    places = [[0] * len(of_points) for _ in range(blocks)]
    end = 0
    for first in range(0, blocks, together):
        for point, phases in enumerate(of_points):
            for block in range(first, min(first + together, blocks)):
                places[block][point] = end
                end += phases * row * (vectors if block < blocks - 1 else last_vectors)
    return [end, *itertools.chain.from_iterable(places)]


def driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver to a module: an item is a block of outputs' weights."""
    with k.function(name, Driver) as given:
        p, rows = TransformWords.read(k, given.words), given.workspace
        w = p.weights
        of_set, source, target = set_words(w, given.item)
        made, row = rows + p.made, of_set.row
        points = p.point_table + given.item % w.set_count * (p.points * 16)
        with k.loop(0, w.channels, ROW_WORDS) as c:
            count = k.minimum(w.channels - c.index, ROW_WORDS)
            bring_rows(k, w, of_set, source, c.index, count, rows, vector_bytes)
            with k.loop(0, p.phase_count) as phase, k.loop(0, p.outer) as outer:
                of_phase = p.phases.at(phase.index)
                k.call(of_phase.transform, WeightTransform(
                    rows + (outer.index * p.outer_taps + of_phase.tap) * row,
                    w.taps * row, p.y_taps * row, p.x_taps * row, made, p.made_point, count, row,
                ))  # fmt: skip
                with k.loop(0, p.points) as point:
                    of_point = points.at(point.index)
                    before = k.word(p.before, phase.index * p.points + point.index)
                    at = c.index * of_point.entering * p.outer + (before * p.outer + outer.index) * count
                    with k.when(before >= 0):
                        k.call(p.place, MoveIn(
                            made + point.index * p.made_point, w.word_bytes, 0,
                            target + (of_point.first + at * row), w.word_bytes, 0, count * row // w.word_bytes, 1, 0,
                        ))  # fmt: skip


def packed_weights(r: Request, sweep: Sweep, boxes: Boxes) -> NDArray[Any]:
    """Transformed weights as they stream: of a block and point [channel block][phase][outer tap][channel][output].

    The transform is done in float64 and rounded once.
    """
    case, lane = boxes.case, boxes.case.lane
    w = forward_strides(r.weights(sweep))
    groups, m, _, taps = w.shape
    down, last, kinds = sweep[-case.transformed], sweep[-1], case.kinds
    tall, wide = down.taps if case.transformed == 2 else 1, last.taps
    points, row = len(kinds), case.vectors * lane * case.arith.bytes
    enters = [[phase.enters(kind) for kind in kinds] for phase in case.phases]
    before = [
        sum(other[point] for other in enters[:number]) if enters[number][point] else -1
        for number in range(len(enters)) for point in range(points)
    ]  # fmt: skip
    group_bytes, *begins = places(boxes)
    of_group = group_bytes // w.itemsize
    packed = unwritten(groups * of_group, w.dtype)
    sets = []
    for first in range(0, m, case.vectors * lane):
        width = min(case.vectors, -(-(m - first) // lane)) * lane
        sets.append(Set(first, min(width, m - first), width, 0, of_group))
    transforms = {counts: _transform(r, case, counts) for counts in {phase.counts for phase in case.phases}}
    phases = [PhaseWords(phase.taps[0] * wide + phase.taps[1], transforms[phase.counts]) for phase in case.phases]
    streams = [StreamWords(*of) for of in zip(begins, itertools.cycle(case.entering[kind] for kind in kinds))]
    made, made_point = ROW_WORDS * taps * row, (ROW_WORDS * row // 64 | 1) * 64
    values = TransformWords(
        weights=source_words(r, w, sets, packed), made=made, made_point=made_point, points=points,
        outer=case.outer_taps, outer_taps=tall * wide, y_taps=wide * (down.stride if case.transformed == 2 else 1),
        x_taps=last.stride, phase_count=len(phases), phases=phases, point_table=streams, before=before,
        place=move_in_address(r, Move(case.arith.name, case.arith.accumulator, "pp")),
    )  # fmt: skip
    wide_bytes = r.target.vector_bytes
    address = address_of(r, "winograd pack", "pack", Driver, lambda k, name: driver(k, name, wide_bytes))
    keep: list[Any] = []
    run(r, Step(address, filled(values, keep), groups * case.blocks), made + points * made_point, w.nbytes)
    return packed


def _transform(r: Request, case: Case, taps: tuple[int, int]) -> Address[WeightTransform]:
    """Address of the transform of the weights of phases with so many taps along the two axes."""
    element, y, x, count = case.arith.accumulator, case.y, case.x, r.target.vector_bytes // 8
    return address_of(
        r, f"winograd weights {y} {x} {element} {taps}", "transform", WeightTransform,
        lambda k, name: weight_transform(k, name, y, x, element, count, taps),
    )  # fmt: skip
