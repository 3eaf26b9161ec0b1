"""``careful``: every product that meets an input and no other, so that weights of Inf or NaN never meet padding.

Lanes are neighbouring pixels of a row, and weights are read as they were given: nothing is packed, so little is made
before a call.  Algorithms whose own results are not finite have boxes of them computed so once more, by ``CarefulBox``.
Cost: a load of inputs and one of a weight for few products.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.form import Form, Forms
from polyconv.dataclass import dataclass
from polyconv.kernels.address import address
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.isa import lanes
from polyconv.kernels.language import INT, Buffer, Module, Type, Value, vector
from polyconv.kernels.layout import Move, MoveIn, MoveOut
from polyconv.kernels.objects import kernel
from polyconv.kernels.record import Function, Memory, Record, Span, Word, filled, words
from polyconv.kernels.signature import Address, Int, Signature
from polyconv.lowering.boxes import boxed_words
from polyconv.lowering.moves import along_in, along_out, move_in_address, move_out_address
from polyconv.lowering.packing import forward_strides
from polyconv.lowering.panel import (
    Common,
    Driver,
    EpilogueTables,
    Frame,
    Item,
    axis_words,
    box_rows,
    decode,
    positions_within,
    row_place,
)
from polyconv.lowering.panel import header_bytes as bytes_of_header
from polyconv.lowering.program import Program, Request, Step, epilogue_tables, program_of
from polyconv.lowering.situation import Situation, arith_of
from polyconv.lowering.sweep import Lines, Sweep, box_count, sweeps, taps_of

__all__ = ["CarefulBox", "CarefulWords", "box_bytes", "box_words", "forms", "repair_address"]

_TOGETHER = 8
"""Output channels of a tile: they share inputs, and no sum waits for the one before it.  Others are computed one by
one."""
_CHUNK = 32
"""Channels whose weights, of all taps, stay in a first-level cache."""
_PIXELS = 256
"""Most pixels of a row of a box."""
_CHANNEL, _TAP, _ALONE = 10.5, 100.0, 5.0
"""Cycles of a vector of pixels for a channel and a tap, and for a tap; for a channel of an output alone.  Measured on
Zen 5."""


class CarefulWords(Record):
    """The driver's words: channels of a group on both sides, taps, how weights lie.

    Of taps along the outer axes ``tap_places`` says the positions; those along the last are ``dilation`` apart.

    In the workspace are ``places`` of the row at hand, ``slots`` of sums, and a ``scratch`` of inputs.  Inputs that lie
    in lines, as they are summed, are read where they are (``near``).
    """

    common: Common
    channels: Word
    outputs: Word
    outer_taps: Word
    tap_places: Memory
    taps: Word
    dilation: Word
    weights: Memory
    w_group: Word
    w_output: Word
    w_channel: Word
    w_tap: Word
    places: Word
    slots: Word
    scratch: Word
    word_bytes: Word
    tables: EpilogueTables
    near: Word
    move_in: Function[MoveIn]
    move_out: Function[MoveOut]


class CarefulBox(Signature):
    """Outputs first..end of a group of a box, which stands in the workspace's header as ``decode`` leaves it."""

    frame: Frame
    words: CarefulWords
    workspace: Buffer
    n: Int
    g: Int
    first: Int
    end: Int


@dataclass(frozen=True, slots=True)
class _Place:
    """A tile: its row of the box, its first pixel and first output, and how many pixels are left."""

    item: Item
    frame: Frame
    row: Value
    pixel: Value
    output: Value
    left: Value


def _driver(k: Module, kind: Type) -> None:
    """Add ``careful(frame, words, item, workspace)`` and ``careful_box``, for vectors of sums of a kind."""
    with k.function("careful_box", CarefulBox) as given:
        p = given.words
        last, item = p.common.axes - 1, Item(k, given.workspace, given.n, given.g, k.constant(INT, 0))
        whole = given.first + (given.end - given.first) // _TOGETHER * _TOGETHER
        for first, end, rows in ((given.first, whole, _TOGETHER), (whole, given.end, 1)):
            with k.loop(first, end, rows) as output, k.loop(0, box_rows(k, p.common, item)) as row:
                _place_row(k, p, item, row.index)
                with k.loop(0, item.extent(last), kind.lanes) as pixel:
                    left = k.minimum(item.extent(last) - pixel.index, kind.lanes)
                    here = _Place(item, given.frame, row.index, pixel.index, output.index, left)
                    _leave(k, p, here, _sums(k, kind, p, here, rows))
    with k.function("careful", Driver) as given:
        p = CarefulWords.read(k, given.words)
        item = decode(k, p.common, given.item, given.workspace)
        k.call("careful_box", CarefulBox(given.frame, p, given.workspace, item.n, item.g, 0, p.outputs))


def _place_row(k: Module, p: CarefulWords, item: Item, row: Value) -> None:
    """Note the input position of tap 0 along the outer axes."""
    with k.loop(1, p.common.axes, carry=[row]) as back:
        axis = p.common.axes - 1 - back.index
        extent = item.extent(axis)
        position = item.origin(axis) + back.values[0] % extent * axis_words(p.common, axis).stride
        k.store(position, item.header + (p.places + axis * 8), 8)
        back.next(back.values[0] // extent)


def _sums(k: Module, kind: Type, p: CarefulWords, at: _Place, rows: int) -> list[Value]:
    """Sums of ``rows`` outputs of a vector of pixels: [channels that stay near][outer tap][tap][channel]."""
    c, last, item = p.common, p.common.axes - 1, at.item
    along, start = axis_words(c, last), c.x_base + item.n * c.x_n + item.g * c.x_g
    weights = p.weights + (item.g * p.w_group + at.output * p.w_output)
    with k.loop(0, p.channels, _CHUNK, carry=[k.constant(kind, 0)] * rows) as chunk:
        count = k.minimum(p.channels - chunk.index, _CHUNK)
        with k.loop(0, p.outer_taps, carry=chunk.values) as outer:
            places = p.tap_places + outer.index * (last * 8)
            with k.loop(0, last, carry=[start + chunk.index * c.x_c, k.constant(INT, 1)]) as axis:
                record = axis_words(c, axis.index)
                position = k.word(item.header + p.places, axis.index) + k.word(places, axis.index)
                within = k.cast("zext", position.below(record.inp), INT)
                axis.next(axis.values[0] + position * record.x_stride, axis.values[1] & within)
            offset, inside = axis.results
            of_outer = weights + (chunk.index * p.w_channel + outer.index * p.taps * p.w_tap)
            begin = [item.origin(last) + at.pixel * along.stride, of_outer, *outer.values]
            with k.loop(0, k.select(inside.equals(1), p.taps, 0), carry=begin) as tap:
                position, w, *sums = tap.values
                x = at.frame.x + (offset + position * along.x_stride)
                tap.next(position + p.dilation, w + p.w_tap, *_added(k, p, at, position, count, x, w, sums))
            outer.next(*tap.results[2:])
        chunk.next(*outer.results)
    return chunk.results


def _added(k: Module, p: CarefulWords, at: _Place, position: Value, count: Value, x: Buffer, w: Buffer,
           sums: Sequence[Value]) -> list[Value]:  # fmt: skip
    """The sums with what a tap of some channels adds, where pixels from a ``position`` on are inputs."""
    along, kind, scratch = axis_words(p.common, p.common.axes - 1), sums[0].type, at.item.header + p.scratch
    low, high = positions_within(k, position, along.stride, along.inp, at.left)
    there, step = k.span(low, high, kind.lanes), along.stride * along.x_stride
    with k.when((low < high) & p.near.equals(0)):
        k.call(p.move_in, MoveIn(
            x + low * step, step, p.common.x_c, scratch + low * p.word_bytes, p.word_bytes, k.constant(INT, kind.bytes),
            high - low, count, 0,
        ))  # fmt: skip
    near = p.near > 0
    begin, channel_step = k.either(near, x, scratch), k.select(near, p.common.x_c, kind.bytes)
    with k.loop(0, k.select(low < high, count, 0), carry=[begin, w, *sums]) as channel:
        inputs, w, *total = channel.values
        value = k.load_first(kind, inputs, there)
        for number, before in enumerate(total):
            product = k.fma(k.broadcast(kind, w + p.w_output * number), value, before)
            total[number] = k.select(there.bits, product, before)
        channel.next(inputs + channel_step, w + p.w_channel, *total)
    return channel.results[2:]


def _leave(k: Module, p: CarefulWords, at: _Place, sums: Sequence[Value]) -> None:
    """The way out of a tile."""
    c, slots = p.common, at.item.header + p.slots
    along, size = axis_words(c, c.axes - 1), sums[0].type.bytes
    for number, total in enumerate(sums):
        k.store(total, slots + number * size)
    _, y, r = row_place(k, c, at.item, at.row)
    table = (at.item.g * p.outputs + at.output) * p.word_bytes
    k.call(p.move_out, MoveOut(
        slots, p.word_bytes, k.constant(INT, size),
        at.frame.y + (y + at.output * c.y_c + at.pixel * along.y_stride), along.y_stride, c.y_c, at.left, len(sums),
        p.tables.bias + table, p.tables.scale + table,
        at.frame.residual + (r + at.output * c.r_c + at.pixel * along.r_stride), along.r_stride, c.r_c,
        p.tables.constants,
    ))  # fmt: skip


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    if s.problem.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {s.problem.op}"
    return "only needed for weights with Inf or NaN: all are finite" if s.finite else (CarefulForm(s),)


@dataclass(frozen=True, slots=True)
class CarefulForm(Form):
    """Rows of outputs; nothing is left to choose."""

    @property
    def workspace(self) -> int:
        """Bytes a thread needs."""
        return box_bytes(self.s, self.s.problem.rank)

    def cost(self) -> dict[str, float]:
        """Cycles: products of tiles, and their way out."""
        p, lane = self.s.problem, lanes(self.s.target, arith_of(self.s))
        group_in, (together, alone), total = p.c // p.groups, divmod(p.m // p.groups, _TOGETHER), 0.0
        of_tap = together * (_CHANNEL * group_in + _TAP) + alone * (_ALONE * group_in + _TAP)
        for sweep in sweeps(p):
            vectors = math.prod(axis.out for axis in sweep[:-1]) * -(-sweep[-1].out // lane)
            total += vectors * (math.prod(axis.taps for axis in sweep) * of_tap + 9.0 * p.m / p.groups)
        return {"products": total * (p.n or 0) * p.groups}

    def build(self, r: Request) -> Program:
        """Program of a request: one step per sweep."""
        keep: list[Any] = []
        return program_of([_step(r, sweep, keep) for sweep in sweeps(r.problem)], self.workspace, keep)


def _step(r: Request, sweep: Sweep, keep: list[Any]) -> Step:
    box = (*[1] * (len(sweep) - 1), min(_PIXELS, sweep[-1].out))
    items = (r.problem.n or 0) * r.problem.groups * box_count(sweep, box) if r.problem.m else 0
    return Step(_addresses(r)[0], filled(box_words(r, sweep, box), keep), items)


def box_bytes(s: Situation, axes: int) -> int:
    """Bytes of the workspace that computing a box takes: its header, positions of a row, sums, inputs."""
    return 2 * bytes_of_header(axes) + (_TOGETHER + _CHUNK) * s.target.vector_bytes


def box_words(r: Request, sweep: Sweep, box: tuple[int, ...] | None = None) -> CarefulWords:
    """Words of a sweep, for boxes of any size; ``box`` is that of the items of a step."""
    p, last, header = r.problem, sweep[-1], bytes_of_header(len(sweep))
    w = r.packed(("given", r.arith.name, taps_of(sweep)), lambda: forward_strides(r.weights(sweep)))
    reach = w.itemsize + sum((extent - 1) * step for extent, step in zip(w.shape, w.strides, strict=True))
    along = along_in(r, last, "p")
    common, _ = boxed_words(r, sweep, box or (1,) * len(sweep), (_NO_LINES,) * len(sweep))
    return CarefulWords(
        common=common, channels=p.c // p.groups, outputs=p.m // p.groups,
        outer_taps=math.prod(axis.taps for axis in sweep[:-1]), taps=last.taps, dilation=last.dilation,
        tap_places=_tap_places(tuple((axis.taps, axis.dilation) for axis in sweep[:-1])),
        weights=Span(address(w), reach) if w.size else words([0]), w_group=w.strides[0], w_output=w.strides[1],
        w_channel=w.strides[2], w_tap=w.strides[3], places=header, slots=2 * header,
        scratch=2 * header + _TOGETHER * r.target.vector_bytes, word_bytes=r.arith.bytes,
        tables=epilogue_tables(r), near=int(along == "pp" and LLVM_NAMES[p.x] == r.arith.accumulator),
        move_in=move_in_address(r, Move(p.x, r.arith.accumulator, along)),
        move_out=move_out_address(r, Move(r.arith.accumulator, p.y, along_out(r, last, "p"), r.epilogue)),
    )  # fmt: skip


_NO_LINES = Lines((), (), ())


@lru_cache(64)
def _tap_places(along: tuple[tuple[int, int], ...]) -> NDArray[np.int64]:
    """Input positions of every tap of some axes, for (taps, dilation) of each."""
    places = itertools.product(*([t * dilation for t in range(taps)] for taps, dilation in along))
    return words(list(itertools.chain.from_iterable(places)))


def repair_address(r: Request) -> Address[CarefulBox]:
    """Address of what computes a box, whose words are ``box_words``."""
    return _addresses(r)[1]


def _addresses(r: Request) -> tuple[Address[Driver], Address[CarefulBox]]:
    """Addresses of the driver, and of what computes a box for it and for other algorithms."""
    kind = vector(r.arith.accumulator, lanes(r.target, r.arith))
    functions: dict[str, type[Signature]] = {"careful": Driver, "careful_box": CarefulBox}
    found: dict[str, Address[Any]] = kernel(
        f"careful {kind}", functions, lambda k: _driver(k, kind), r.target, check=r.check
    )
    return found["careful"], found["careful_box"]
