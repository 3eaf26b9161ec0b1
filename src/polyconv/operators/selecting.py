"""GatherElements by places that are the same in every run: each output is one input, at a distance from a table.

DeBERTa takes so, of what tokens say of every distance between them, that of each pair.  The one idea: with the places
the strides of the input are known, so that a table has bytes and nothing is checked in a run; where places are repeated
along the first axes, so is the table.  It must not know graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from polyconv.dtypes import DTYPES
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.language import Module, Type
from polyconv.kernels.record import Memory, Record, Word, at_once, filled
from polyconv.operators.along import Along, joined
from polyconv.operators.counting import axis_of, check_places
from polyconv.operators.job import Array, Conditions, Drive, Operation, Own, Plan, Planning, Step, address_of, constant
from polyconv.operators.lying import Lies
from polyconv.operators.moving import carrier

__all__ = ["selecting"]

_CYCLES = 1.5
"""Of an element: two loads, a store and the loop."""
_ITEM = 4096
"""Elements of an item."""


def selecting(operation: Operation) -> Own | str:
    """An operation as a table of distances, or why not."""
    x, places = operation.inputs if len(operation.inputs) == 2 else (None, None)
    held = constant(places)
    if x is None or held is None or held.dtype.kind not in "iu" or operation.on_gpu:
        return "its places come with a run, or it is on a GPU"
    if carrier(x.dtype) is None or x.dims is None or constant(x) is not None:
        return "the model does not say the type or the rank of what it picks from"
    return Own((0,), (x.dtype,), partial(_planned, operation, held))


def _planned(operation: Operation, places: Array, given: Sequence[Lies], c: Conditions) -> Plan:
    planning, x = Planning(given, c), given[0]
    axis = axis_of(operation, x.shape, 0)
    check_places(places, x.shape, axis)
    y = planning.result(places.shape, x.dtype, alike=False)
    if places.size and not c.dry:
        planning.job(lambda threads: [_step(places, axis, x, c)], [0, y], _CYCLES * places.size)
    return planning.plan()


class _Words(Record):
    """Words of the driver: places of a table, of an item, and items of a table; bytes between inputs of two tables."""

    count: Word
    chunk: Word
    parts: Word
    step: Word
    table: Memory


def _step(places: Array, axis: int, x: Lies, c: Conditions) -> Step:
    """The step: items are some outputs of a repetition of the table."""
    tables, step, inner = _repeated(places, axis, x)
    table, keep = _distances(places[(0,) * inner], axis - inner, x, inner), list[object]()
    parts = -(-table.size // _ITEM)
    words = filled(_Words(count=table.size, chunk=_ITEM, parts=parts, step=step, table=table), keep)
    kind = carrier(x.dtype)
    assert kind is not None  # as ``selecting`` has seen
    driver = address_of(f"selected {kind}", partial(_drive, kind=kind), c)
    return Step(driver, words, tables * parts, tuple(keep))


def _repeated(places: Array, axis: int, x: Lies) -> tuple[int, int, int]:
    """How often places are repeated, bytes between the inputs of two repetitions, and along how many axes they are.

    Of the first axes those count that the input walks as one.
    """
    inner = 0
    while inner < axis and (places == places.take([0], inner)).all():
        inner += 1
    while True:
        extents, (along,) = joined(places.shape[:inner], [Along(0, x.strides[:inner])])
        if len(extents) == 1:
            return extents[0], along.strides[0], inner
        inner -= 1


def _distances(places: Array, axis: int, x: Lies, inner: int) -> NDArray[np.int64]:
    """Bytes from the begin of the input's memory to what each output is, of the input's axes from one on."""
    extent, found = x.shape[axis + inner], np.full((1,) * places.ndim, x.offset, np.int64)
    for at, step in enumerate(x.strides[inner:]):
        if at != axis:
            along = np.arange(places.shape[at], dtype=np.int64) * step
            found = found + along.reshape(-1, *(1,) * (places.ndim - 1 - at))
    own = np.where(places < 0, places + extent, places).astype(np.int64)
    return (found + own * x.strides[axis + inner]).reshape(-1)


def _drive(k: Module, name: str, kind: str) -> None:
    """Add the driver; its operands are the input and the result."""
    type_, size = Type(LLVM_NAMES[kind]), DTYPES[kind].itemsize
    with k.function(name, Drive) as given:
        w = at_once(_Words.read(k, given.words))
        table, begin = given.item // w.parts, given.item % w.parts * w.chunk
        x, y = k.buffer(given.frame) + table * w.step, k.buffer(given.frame, 2) + table * w.count * size
        with k.loop(begin, k.minimum(begin + w.chunk, w.count)) as each:
            k.store(k.load(type_, x + k.word(w.table, each.index)), y + each.index * size)
