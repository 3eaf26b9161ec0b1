"""Packing weights: out of the order in which they are given, into that in which tiles stream them, by native code.

Tiles stream rows: the weights that a channel and a tap have for neighbouring outputs.  A *set* of outputs has its
rows as [block of channels][tap][channel], with words of two channels where products are formed in pairs.  Squares of
outputs by channels and taps are transposed in registers, into a scratch where rows go on to other places from there:
memory is read and written in whole lines.  It must know nothing of what streams the weights.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.kernels.address import address
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.isa import Arithmetic
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import Move, MoveIn, zero_words
from polyconv.kernels.record import Function, Memory, Record, Span, Table, Word, filled
from polyconv.lowering.moves import move_in_address
from polyconv.lowering.panel import Driver
from polyconv.lowering.program import Request, Step, address_of
from polyconv.lowering.situation import Situation
from polyconv.runtime.arrays import unwritten

__all__ = [
    "TABLES_CYCLES", "Set", "SetWords", "SourceWords", "bring_rows", "cycles", "forward_strides", "packed_sets", "run",
    "set_words", "source_words", "unpack",
]  # fmt: skip

TABLES_CYCLES = 1.0e6
"""Cycles in which a program is made: its tables of words, in Python."""

_SHARED_BYTES = 1 << 20
"""Weights from which on several threads pack them."""


class SetWords(Record):
    """A set: bytes before its first weight, its outputs, bytes of its rows, and where these go.

    ``target`` are bytes before its rows in the packed weights of the first group, ``group`` from there to the next.
    """

    source: Word
    outputs: Word
    row: Word
    target: Word
    group: Word


class SourceWords(Record):
    """Where weights lie and go.

    Those of a channel are brought in runs: all taps at once where these lie together with the channels, else tap by
    tap.
    """

    source: Memory
    w_group: Word
    w_channel: Word
    w_run: Word
    w_pixel: Word
    w_output: Word
    runs: Word
    run_rows: Word
    channels: Word
    taps: Word
    together: Word
    word_bytes: Word
    move_in: Function[MoveIn]
    set_count: Word
    sets: Table[SetWords]
    target: Memory


class PackWords(Record):
    """The driver's words: rows go ``straight`` to their place, or by a scratch for a ``chunk`` of channels."""

    weights: SourceWords
    straight: Word
    block: Word
    chunk: Word
    place: Function[MoveIn]


@dataclass(frozen=True, slots=True)
class Set:
    """Outputs of a group that tiles compute together.

    Parameters
    ----------
    first, outputs : int
        Which they are.
    width : int
        Weights of a row; those beyond the outputs are zeros.
    target, group : int
        Weights before its rows in the first group's, and from there to the next group's.
    """

    first: int
    outputs: int
    width: int
    target: int
    group: int


def driver(k: Module, name: str, vector_bytes: int) -> None:
    """Add the driver to a module: an item is a set of a group, the workspace a scratch for rows."""
    with k.function(name, Driver) as given:
        p, rows = PackWords.read(k, given.words), given.workspace
        w = p.weights
        of_set, source, target = set_words(w, given.item)
        with k.when(p.straight.equals(1)):
            bring_rows(k, w, of_set, source, k.constant(INT, 0), w.channels, target, vector_bytes)
        with k.when(p.straight.equals(1), otherwise=True), k.loop(0, w.channels, p.chunk) as chunk:
            count = k.minimum(p.chunk, w.channels - chunk.index)
            bring_rows(k, w, of_set, source, chunk.index, count, rows, vector_bytes)
            _place_rows(k, p, of_set, chunk.index, count, rows, target)


def _place_rows(k: Module, p: PackWords, of_set: SetWords, start: Value, count: Value, rows: Buffer, target: Buffer
                ) -> None:  # fmt: skip
    """Rows [channel][tap] of channels from ``start`` on, to where they stream."""
    w = p.weights
    row, width = of_set.row, of_set.row // w.word_bytes
    end = _rounded(w.channels, w.together)
    with k.loop(0, count, w.together) as c:
        channel = start + c.index
        first = channel - channel % p.block
        size = k.minimum(p.block, end - first)
        with k.loop(0, w.taps) as tap:
            source = rows + (c.index * w.taps + tap.index) * row
            at = first * w.taps + tap.index * size + (channel - first)
            k.call(p.place, MoveIn(
                source, w.word_bytes, w.taps * row, target + at * row, w.word_bytes, 0, width, 1, 0
            ))  # fmt: skip


def _rounded(channels: Value, together: Value) -> Value:
    return (channels + (together - 1)) // together * together


def set_words(p: SourceWords, number: Value) -> tuple[SetWords, Buffer, Buffer]:
    """The set that an item is, its first weight and its packed rows."""
    of_set = p.sets.at(number % p.set_count)
    group = number // p.set_count
    source = p.source + (group * p.w_group + of_set.source)
    return of_set, source, p.target + (of_set.target + group * of_set.group)


def bring_rows(k: Module, p: SourceWords, of_set: SetWords, source: Buffer, first: Value, count: Value, rows: Buffer,
               vector_bytes: int) -> None:  # fmt: skip
    """Rows [channel][tap] of ``count`` channels of a set, zeros where it lacks outputs or a word its last channel."""
    together = _rounded(count, p.together)
    with k.when((of_set.outputs * p.word_bytes < of_set.row) | (count < together)):
        size = together * p.taps * of_set.row
        zero_words(k, rows, size // 4, vector("i32", vector_bytes // 4))
    with k.loop(0, p.runs) as run:
        k.call(p.move_in, MoveIn(
            source + (first * p.w_channel + run.index * p.w_run), p.w_pixel, p.w_output,
            rows + run.index * of_set.row, p.runs * of_set.row, p.word_bytes, count * p.run_rows, of_set.outputs, 0,
        ))  # fmt: skip


def packed_sets(r: Request, w: NDArray[Any], sets: Sequence[Set], block: int, size: int) -> NDArray[Any]:
    """Weights (groups, m, c, taps) in streaming order.

    Parameters
    ----------
    sets : sequence of Set
    block : int
        Channels of a block.
    size : int
        Packed weights of all groups.
    """
    packed = unwritten(size, w.dtype)
    if not w.size:
        return packed
    w = forward_strides(w)
    vector_bytes = r.target.vector_bytes
    address = address_of(r, "pack weights", "pack", Driver, lambda k, name: driver(k, name, vector_bytes))
    row = w.shape[3] * max(s.width for s in sets) * w.itemsize
    pair, straight = r.arith.channels, r.arith.channels == 1 and 1 in (block, w.shape[3])
    near = r.situation.profile.cache("l1", 1.0)  # rows stay there on their way
    chunk = max(pair, min(-(-w.shape[2] // pair) * pair, near // row // pair * pair))
    keep: list[Any] = []
    spec = Move(*_types(r.arith), "pp") if pair == 1 else Move(*_types(r.arith), "pc", together=pair)
    values = PackWords(
        weights=source_words(r, w, sets, packed), straight=int(straight), block=block, chunk=chunk,
        place=move_in_address(r, spec),
    )  # fmt: skip
    run(r, Step(address, filled(values, keep), w.shape[0] * len(sets)), chunk * row, w.nbytes)
    spans = sorted((s.first, s.first + s.outputs) for s in sets)
    firsts, ends = zip(*spans, strict=True)
    if (*firsts, w.shape[1]) == (0, *ends):  # all follow each other; there may be another form, for other outputs
        r.moved(w, packed, partial(unpack, sets=sets, block=block, together=pair))
    return packed


def unpack(packed: NDArray[Any], target: NDArray[Any], *, sets: Sequence[Set], block: int, together: int) -> None:
    """Write packed weights, of words of so many channels, as they were given, (groups, m, c, taps)."""
    groups, _, channels, taps = target.shape
    whole = channels - channels % block
    rest = -(-(channels - whole) // together) * together
    for (group, s), (first, count, size) in itertools.product(
        itertools.product(range(groups), sets), ((0, whole, block), (whole, rest, rest))
    ):
        start = s.target + group * s.group + first * taps * s.width
        rows = packed[start : start + count * taps * s.width]
        rows = rows.reshape(-1, taps, max(1, size // together), s.width, together)
        weights = rows[..., : s.outputs, :].transpose(3, 0, 2, 4, 1).reshape(s.outputs, count, taps)
        target[group, s.first : s.first + s.outputs, first : first + count] = weights[:, : channels - first]


def _types(arith: Arithmetic) -> tuple[str, str]:
    """Element of weights, as moves spell it in memory and in a panel."""
    return arith.weight, LLVM_NAMES[arith.weight]


def cycles(s: Situation) -> float:
    """Cycles in which a program is made and the weights brought into another order."""
    p = s.problem
    size = math.prod(e or 0 for e in p.w_shape) * p.w_dtype.itemsize
    return TABLES_CYCLES + size * (1.4 if p.op == "conv_transpose" else 0.7)


def forward_strides(w: NDArray[Any]) -> NDArray[Any]:
    """The weights, or a copy where strides are negative."""
    return np.ascontiguousarray(w) if min(w.strides) < 0 else w


def source_words(r: Request, w: NDArray[Any], sets: Sequence[Set], packed: NDArray[Any]) -> SourceWords:
    """Where weights (groups, m, c, taps) with no negative stride lie, which must outlive their use, and go."""
    _, _, c, taps = w.shape
    w_group, w_output, w_channel, w_tap = w.strides
    flat = (taps == 1 or w_tap == w.itemsize) and (c == 1 or w_channel == taps * w.itemsize)
    reach = w.itemsize + sum((extent - 1) * step for extent, step in zip(w.shape, w.strides, strict=True))
    along = "pc" if flat else "cc" if w_output == w.itemsize and r.arith.channels == 1 else "any"
    of_sets = [
        SetWords(s.first * w_output, s.outputs, s.width * w.itemsize, s.target * w.itemsize, s.group * w.itemsize)
        for s in sets
    ]
    return SourceWords(
        source=Span(address(w), reach), w_group=w_group, w_channel=w_channel, w_run=0 if flat else w_tap,
        w_pixel=w.itemsize if flat else w_channel, w_output=w_output, runs=1 if flat else taps,
        run_rows=taps if flat else 1, channels=c, taps=taps, together=r.arith.channels, word_bytes=w.itemsize,
        move_in=move_in_address(r, Move(*_types(r.arith), along)), set_count=len(sets), sets=of_sets, target=packed,
    )  # fmt: skip


def run(r: Request, step: Step, scratch: int, size: int) -> None:
    """Run a step that packs so many bytes of weights."""
    r.run(step, scratch, r.situation.threads if size >= _SHARED_BYTES else 1)
