"""``careful``: every product that meets an input and no other, so that weights of Inf or NaN never meet padding.

Lanes are neighbouring pixels of a row.  Inputs are read where they lie, under masks, and weights as they were given:
nothing is packed and no panel filled, so little is made before a call.  Algorithms whose own results are not finite
have boxes of them computed so once more, by ``CarefulBox``.
Cost: a load of inputs and one of a weight for few products.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.form import Form, Forms
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.isa import lanes
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import Block, Move, MoveIn, MoveOut
from polyconv.kernels.move import converted
from polyconv.kernels.objects import kernel
from polyconv.kernels.record import Function, Memory, Record, Span, Word, filled, words
from polyconv.kernels.signature import Address, Int, Signature
from polyconv.lowering.boxes import boxed_words
from polyconv.lowering.moves import along_in, along_out, move_in_address, move_out_address
from polyconv.lowering.packing import forward_strides
from polyconv.lowering.panel import Common, Driver, EpilogueTables, Frame, Item, axis_words, box_rows, decode, row_place
from polyconv.lowering.panel import header_bytes as bytes_of_header
from polyconv.lowering.program import Program, Request, Step, epilogue_tables, program_of
from polyconv.lowering.situation import Situation, arith_of
from polyconv.lowering.sweep import Axis, Lines, Sweep, box_count, sweeps, taps_of

__all__ = ["CarefulBox", "CarefulWords", "box_bytes", "box_words", "forms", "repair_address"]

_TOGETHER = 8
"""Output channels of a tile: they share what is loaded, and no sum waits for the one before it.  Others are computed
one by one, for so many pixels that the same holds."""
_CHUNK = 32
"""Channels whose weights, of all taps, stay in a first-level cache."""
_PIXELS = 256
"""Most pixels of a row of a box."""


class CarefulWords(Record):
    """The driver's words: channels of a group on both sides, taps, how weights lie.

    Of taps along the outer axes ``tap_places`` says the positions; those along the last are ``dilation`` apart.

    In the workspace are ``places`` of the row at hand, ``slots`` of sums, and a ``scratch`` of inputs.
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
class _Kind:
    """What shapes the code: how inputs become factors, lanes, and whether pixels lie together."""

    spec: Move
    lanes: int
    near: bool
    f16c: bool


@dataclass(frozen=True, slots=True)
class _Place:
    """A tile: its row of the box, its first pixel and first output, and how many pixels are left."""

    item: Item
    frame: Frame
    row: Value
    pixel: Value
    output: Value
    left: Value


def _driver(k: Module, kind: _Kind) -> None:
    """Add ``careful(frame, words, item, workspace)`` and ``careful_box``."""
    alone = (1, 4 if kind.near else 1)
    with k.function("careful_box", CarefulBox) as given:
        p = given.words
        last, item = p.common.axes - 1, Item(k, given.workspace, given.n, given.g, k.constant(INT, 0))
        whole = given.first + (given.end - given.first) // _TOGETHER * _TOGETHER
        for first, end, (rows, vectors) in ((given.first, whole, (_TOGETHER, 1)), (whole, given.end, alone)):
            step = kind.lanes * vectors
            with k.loop(first, end, rows) as output, k.loop(0, box_rows(k, p.common, item)) as row:
                _place_row(k, p, item, row.index)
                with k.loop(0, item.extent(last), step) as pixel:
                    left = k.minimum(item.extent(last) - pixel.index, step)
                    here = _Place(item, given.frame, row.index, pixel.index, output.index, left)
                    _leave(k, kind, p, here, _sums(k, kind, p, here, rows, vectors), rows)
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


def _sums(k: Module, kind: _Kind, p: CarefulWords, at: _Place, rows: int, vectors: int) -> list[Value]:
    """Sums of ``rows`` outputs of ``vectors`` vectors of pixels: [channels that stay near][outer tap][tap][channel]."""
    c, last, item = p.common, p.common.axes - 1, at.item
    along, start = axis_words(c, last), c.x_base + item.n * c.x_n + item.g * c.x_g
    weights = p.weights + (item.g * p.w_group + at.output * p.w_output)
    nothing = [k.constant(vector(kind.spec.element, kind.lanes), 0)] * (rows * vectors)
    with k.loop(0, p.channels, _CHUNK, carry=nothing) as chunk:
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
                added = _added(k, kind, p, at, position, count, x, w, sums, vectors)
                tap.next(position + p.dilation, w + p.w_tap, *added)
            outer.next(*tap.results[2:])
        chunk.next(*outer.results)
    return chunk.results


def _added(k: Module, kind: _Kind, p: CarefulWords, at: _Place, position: Value, count: Value, x: Buffer, w: Buffer,
           sums: Sequence[Value], vectors: int) -> list[Value]:  # fmt: skip
    """The sums with what a tap of some channels adds, where pixels from a ``position`` on are inputs."""
    along, zero, lane, acc = axis_words(p.common, p.common.axes - 1), k.constant(INT, 0), kind.lanes, sums[0].type
    with k.choice(along.stride > 1, [0 - position, along.inp - position]) as strided:
        strided.next(*((n + (along.stride - 1)) / along.stride for n in (0 - position, along.inp - position)))
    low, high = k.maximum(strided.results[0], 0), k.minimum(strided.results[1], at.left)
    step, scratch = along.stride * along.x_stride, at.item.header + p.scratch
    masks = [k.span(low - v * lane, high - v * lane, lane) for v in range(vectors)]
    block, memory = Block(k, kind.spec, acc, kind.f16c), acc.of(LLVM_NAMES[kind.spec.source])
    if not kind.near:
        with k.when(low < high):
            k.call(p.move_in, MoveIn(
                x + low * step, step, p.common.x_c, scratch + low * p.word_bytes, p.word_bytes,
                k.constant(INT, acc.bytes), high - low, count, zero,
            ))  # fmt: skip
    begin = [x if kind.near else scratch, w, *sums]
    with k.loop(0, k.select(low < high, count, 0), carry=begin) as channel:
        x, w, *total = channel.values
        for v, mask in enumerate(masks):
            value = converted(block, k.load_first(memory, x + v * memory.bytes, mask), zero) if kind.near else (
                k.load(acc, x)
            )  # fmt: skip
            for number, place in enumerate(range(v, len(total), vectors)):
                product = k.fma(k.broadcast(acc, w + p.w_output * number), value, total[place])
                total[place] = k.select(mask.bits, product, total[place])
        channel.next(x + (p.common.x_c if kind.near else acc.bytes), w + p.w_channel, *total)
    return channel.results[2:]


def _leave(k: Module, kind: _Kind, p: CarefulWords, at: _Place, sums: Sequence[Value], rows: int) -> None:
    """The way out of a tile."""
    c, slots = p.common, at.item.header + p.slots
    along, size = axis_words(c, c.axes - 1), sums[0].type.bytes
    for number, total in enumerate(sums):
        k.store(total, slots + number * size)
    _, y, r = row_place(k, c, at.item, at.row)
    table = (at.item.g * p.outputs + at.output) * p.word_bytes
    k.call(p.move_out, MoveOut(
        slots, p.word_bytes, k.constant(INT, len(sums) // rows * size),
        at.frame.y + (y + at.output * c.y_c + at.pixel * along.y_stride), along.y_stride, c.y_c, at.left, rows,
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
        group_in, group_out, total = p.c // p.groups, p.m // p.groups, 0.0
        of_channel = group_out // _TOGETHER * 4.5 + group_out % _TOGETHER * 4.0 + -(-group_out // 8) * lane
        for sweep in sweeps(p):
            vectors = math.prod(axis.out for axis in sweep[:-1]) * -(-sweep[-1].out // lane)
            taps = math.prod(axis.taps for axis in sweep)
            total += vectors * (taps * (group_in * of_channel + 40.0) + 9.0 * group_out)
        return {"products": total * (p.n or 0) * p.groups}

    def build(self, r: Request) -> Program:
        """Program of a request: one step per sweep."""
        keep: list[Any] = []
        return program_of([_step(r, sweep, keep) for sweep in sweeps(r.problem)], self.workspace, keep)


def _step(r: Request, sweep: Sweep, keep: list[Any]) -> Step:
    box = (*[1] * (len(sweep) - 1), min(_PIXELS, sweep[-1].out))
    items = (r.problem.n or 0) * r.problem.groups * box_count(sweep, box) if r.problem.m else 0
    return Step(_addresses(r, sweep)[0], filled(box_words(r, sweep, box), keep), items)


def box_bytes(s: Situation, axes: int) -> int:
    """Bytes of the workspace that computing a box takes: its header, positions of a row, sums, inputs."""
    return 2 * bytes_of_header(axes) + (_TOGETHER + _CHUNK) * s.target.vector_bytes


def box_words(r: Request, sweep: Sweep, box: tuple[int, ...] | None = None) -> CarefulWords:
    """Words of a sweep, for boxes of any size; ``box`` is that of the items of a step."""
    p, last, header = r.problem, sweep[-1], bytes_of_header(len(sweep))
    w = r.packed(("given", r.arith.name, taps_of(sweep)), lambda: forward_strides(r.weights(sweep)))
    reach = w.itemsize + sum((extent - 1) * step for extent, step in zip(w.shape, w.strides, strict=True))
    common, _ = boxed_words(r, sweep, box or (1,) * len(sweep), (_NO_LINES,) * len(sweep))
    return CarefulWords(
        common=common, channels=p.c // p.groups, outputs=p.m // p.groups,
        outer_taps=math.prod(axis.taps for axis in sweep[:-1]), taps=last.taps, dilation=last.dilation,
        tap_places=_tap_places(tuple((axis.taps, axis.dilation) for axis in sweep[:-1])),
        weights=Span(w.ctypes.data, reach) if w.size else words([0]), w_group=w.strides[0], w_output=w.strides[1],
        w_channel=w.strides[2], w_tap=w.strides[3], places=header, slots=2 * header,
        scratch=2 * header + _TOGETHER * r.target.vector_bytes, word_bytes=r.arith.bytes,
        tables=epilogue_tables(r),
        move_in=None if _is_near(r, last) else (
            move_in_address(r, Move(p.x, r.arith.accumulator, along_in(r, last, "p")))
        ),
        move_out=move_out_address(r, Move(r.arith.accumulator, p.y, along_out(r, last, "p"), r.epilogue)),
    )  # fmt: skip


_NO_LINES = Lines((), (), ())


@lru_cache(64)
def _tap_places(along: tuple[tuple[int, int], ...]) -> NDArray[np.int64]:
    """Input positions of every tap of some axes, for (taps, dilation) of each."""
    places = itertools.product(*([t * dilation for t in range(taps)] for taps, dilation in along))
    return words(list(itertools.chain.from_iterable(places)))


def _is_near(r: Request, last: Axis) -> bool:
    """Whether neighbouring outputs read neighbouring inputs."""
    return last.stride * r.x.spatial[-1] == r.x.itemsize


def repair_address(r: Request, sweep: Sweep) -> Address[CarefulBox]:
    """Address of what computes a box of a sweep, whose words are ``box_words``."""
    return _addresses(r, sweep)[1]


def _addresses(r: Request, sweep: Sweep) -> tuple[Address[Driver], Address[CarefulBox]]:
    """Addresses of the driver, and of what computes a box for it and for other algorithms."""
    spec = Move(r.problem.x, r.arith.accumulator, "pp")
    kind = _Kind(spec, lanes(r.target, r.arith), _is_near(r, sweep[-1]), r.target.converts_f16)
    functions: dict[str, type[Signature]] = {"careful": Driver, "careful_box": CarefulBox}
    found: dict[str, Address[Any]] = r.once(kind, lambda: kernel(
        f"careful {spec} {kind.lanes} {kind.near}", functions, lambda k: _driver(k, kind), r.target, check=r.check
    ))  # fmt: skip
    return found["careful"], found["careful_box"]
