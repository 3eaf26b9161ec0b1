"""Deformable convolution: bilinear samples of one row of outputs as a panel, then tiles whose lanes are pixels.

The panel is [channel][tap][pixel] for a segment of an output row; coordinates and corner weights are
found once per offset group and tap, in double, and serve all its channels.  Cost: four loads and
multiplies a sample, plus the products.  Error: own bound, (k + 8) eps sum|sample||w|.
Source: ONNX DeformConv-22; corners outside the image count zero (semantics 5.5).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from polyconv.algorithms.form import Form, Forms
from polyconv.dtypes import Dtype
from polyconv.kernels.convert import LLVM_NAMES, widen
from polyconv.kernels.isa import lanes
from polyconv.kernels.language import INT, Buffer, Module, Type, Value
from polyconv.kernels.record import Record, Word, filled
from polyconv.lowering.boxes import boxed_words
from polyconv.lowering.moves import along_out
from polyconv.lowering.panel import Common, Driver, Frame, Item, decode, header_bytes, row_place
from polyconv.lowering.pixels import (
    ZERO_BYTES,
    PixelSums,
    add_products,
    contiguous,
    move_sums,
    packed_weights,
    panel_tiles,
    pixel_sums,
    tile_rows,
)
from polyconv.lowering.program import Operand, Program, Request, address_of, one_step
from polyconv.lowering.situation import Situation, arith_of
from polyconv.lowering.sweep import Sweep, lines, sweeps
from polyconv.lowering.tiles import tile_cycles

__all__ = ["forms"]

_PANEL_SHARE = 1 / 4
"""Of a second-level cache, for the panel."""
_SEGMENT = 64
"""Most pixels of a segment."""
_CORNERS = 4
_RECORD_BYTES = 16 * _CORNERS
"""Of a sample: the weight and the place of every corner."""
_SPARE = 128
"""Bytes behind the sums, so that the last vector may be whole."""

_DOUBLE = Type("double")
_Read: TypeAlias = Callable[[Buffer, str], Value]
"""Reads an element of the input as an LLVM type."""


class FieldWords(Record):
    """How offsets, or masks, of every tap and output lie: bytes between images, offset groups, channels and pixels."""

    base: Word
    n: Word
    group: Word
    c: Word
    height: Word
    width: Word


class DeformableWords(Record):
    """The driver's words: kernel and image, where inputs, offsets and masks lie, and the sums over the samples.

    Sums of a set of outputs have a slot of ``slot_set`` bytes, a row of samples or of sums ``row_bytes``.
    """

    common: Common
    sums: PixelSums
    kernel_height: Word
    kernel_width: Word
    dilation_height: Word
    dilation_width: Word
    height: Word
    width: Word
    x_height: Word
    x_width: Word
    offset: FieldWords
    has_mask: Word
    mask: FieldWords
    offset_channels: Word
    corners: Word
    row_bytes: Word
    slot_set: Word


def _driver(k: Module, name: str, dtype: Dtype, element: str, f16c: bool) -> None:
    def read(place: Buffer, to: str) -> Value:
        return widen(k, k.load(Type(LLVM_NAMES[dtype.name]), place), dtype, to, f16c=f16c)

    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = DeformableWords.read(k, given.words)
        item, s = decode(k, p.common, given.item, workspace), p.sums
        vectors = (item.extent(1) + s.lanes - 1) // s.lanes
        panel = workspace + p.common.panel
        k.clear(workspace + p.common.scratch, ZERO_BYTES)
        with k.loop(0, s.chunks) as chunk:
            _sample(k, p, item, frame, workspace, chunk.index * s.chunk, read, element)
            with k.loop(0, s.set_count) as number:
                of_set, slot = s.sets.at(number.index), s.slots + number.index * p.slot_set
                add_products(k, s, of_set, panel, item.g, chunk.index, workspace, p.common.scratch, slot, vectors)
                with k.when(chunk.index.equals(s.chunks - 1)):
                    _, y, r = row_place(k, p.common, item, k.constant(INT, 0))
                    first, count = of_set.first, of_set.rows
                    move_sums(k, s, p.common, frame, workspace + slot, item.g, first, count, item.extent(1), y, r)


def _sample(k: Module, p: DeformableWords, item: Item, frame: Frame, workspace: Buffer, first: Value, read: _Read,
            element: str) -> None:  # fmt: skip
    """Fill the panel with one chunk of a group's channels, offset group by offset group."""
    end = k.minimum(first + p.sums.chunk, p.sums.channels)
    base = item.g * p.sums.channels
    low, high = (base + first) // p.offset_channels, (base + end - 1) // p.offset_channels
    with k.loop(low, high + 1) as group:
        c0 = k.maximum(group.index * p.offset_channels - base, first)
        c1 = k.minimum((group.index + 1) * p.offset_channels - base, end)
        with k.loop(0, p.kernel_height) as i, k.loop(0, p.kernel_width) as j:
            tap = i.index * p.kernel_width + j.index
            with k.loop(0, item.extent(1)) as pixel:
                at = (group.index, i.index, j.index, tap, pixel.index)
                _corners(k, p, item, frame, workspace + p.corners, *at, read, element)
            with k.loop(c0, c1) as c:
                panel = workspace + p.common.panel + ((c.index - first) * p.sums.taps + tap) * p.row_bytes
                plane = frame.x + (p.common.x_base + item.n * p.common.x_n + (base + c.index) * p.common.x_c)
                with k.loop(0, item.extent(1)) as pixel:
                    record = workspace + p.corners + pixel.index * _RECORD_BYTES
                    total = k.constant(Type(element), 0)
                    for corner in range(_CORNERS):
                        weight = k.load(Type(element), record + 16 * corner)
                        value = read(plane + k.word(record, 2 * corner + 1), element)
                        # a corner of weight 0 may stand for one outside the image: it adds nothing
                        total = k.select(weight.equals(0), total, total + weight * value)
                    k.store(total, panel + pixel.index * p.sums.word_bytes)


def _corners(k: Module, p: DeformableWords, item: Item, frame: Frame, records: Buffer, group: Value, i: Value, j: Value,
             tap: Value, pixel: Value, read: _Read, element: str) -> None:  # fmt: skip
    """Weights and plane offsets of the four corners of one sample, times its modulation."""
    oy, ox = item.first(0), item.first(1) + pixel

    def place(of: FieldWords, channel: Value) -> Value:
        return of.base + item.n * of.n + group * of.group + channel * of.c + oy * of.height + ox * of.width

    at = place(p.offset, tap * 2)
    store = records + pixel * _RECORD_BYTES
    k.store(k.constant(_DOUBLE, 1), store + 8)  # a slot to bring the mask through the branch
    with k.when(p.has_mask.equals(1)):
        k.store(read(frame.mask + place(p.mask, tap), "double"), store + 8)
    modulation = k.load(_DOUBLE, store + 8)
    row, column = item.origin(0) + i * p.dilation_height, item.origin(1) + pixel * p.common.step + j * p.dilation_width
    position_y = k.cast("sitofp", row, _DOUBLE) + read(frame.offset + at, "double")
    position_x = k.cast("sitofp", column, _DOUBLE) + read(frame.offset + (at + p.offset.c), "double")
    height, width = k.cast("sitofp", p.height, _DOUBLE), k.cast("sitofp", p.width, _DOUBLE)
    # NaN compares false: such a sample is outside, as one beyond the image
    inside = (position_y > -1) & (position_y < height) & (position_x > -1) & (position_x < width)
    y0, fy = _floor(k, k.select(inside, position_y, 0.0))
    x0, fx = _floor(k, k.select(inside, position_x, 0.0))
    for corner, (dy, dx) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        weight = (fy if dy else 1.0 - fy) * (fx if dx else 1.0 - fx)
        y, x = y0 + dy, x0 + dx
        real = inside & y.below(p.height) & x.below(p.width)
        weight = k.select(weight.equals(0), 0.0, weight * modulation)
        weight = k.select(real, weight, 0.0)
        if element == "float":
            weight = k.cast("fptrunc", weight, Type("float"))
        k.store(weight, store + 16 * corner)
        k.store(k.select(real, y * p.x_height + x * p.x_width, 0), store + 16 * corner + 8)


def _floor(k: Module, value: Value) -> tuple[Value, Value]:
    """Whole part (towards -inf) and rest of a value known to lie within an image."""
    whole = k.cast("fptosi", value, INT)
    whole = k.select(k.cast("sitofp", whole, _DOUBLE) > value, whole - 1, whole)
    return whole, value - k.cast("sitofp", whole, _DOUBLE)


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none: few channels at a time, then few pixels, if the panel is large."""
    p = s.problem
    if p.op != "deform_conv":
        return f"computes deform_conv, not {p.op}"
    if p.rank != 2:
        return f"deform_conv is defined for 2 spatial axes, not {p.rank}"
    (sweep,) = sweeps(p)
    lane = lanes(s.target, arith_of(s))
    budget = s.budget(round(_PANEL_SHARE * s.profile.numbers["l2.bytes"]))
    form = DeformableForm(s, sweep, min(_SEGMENT, max(1, sweep[1].out)), max(1, p.c // p.groups))
    while form.workspace > budget and (form.chunk > 1 or form.segment > lane):
        if form.chunk > 1:
            form = replace(form, chunk=-(-form.chunk // 2))
        else:
            form = replace(form, segment=max(lane, form.segment // 2))
    return (form,)


@dataclass(frozen=True, slots=True)
class DeformableForm(Form):
    """How many pixels of a row, and how many channels of a group, are sampled at a time."""

    sweep: Sweep
    segment: int
    chunk: int

    @property
    def _row_bytes(self) -> int:
        """Bytes of the samples of a tap: whole vectors."""
        lane, size = lanes(self.s.target, arith_of(self.s)), arith_of(self.s).bytes
        return -(-self.segment // lane) * lane * size

    @property
    def _sets(self) -> list[tuple[int, int]]:
        return tile_rows(self.s.problem.m // self.s.problem.groups, self.s.target)

    @property
    def _slot_bytes(self) -> int:
        """Bytes of the sums of a set, if those of all sets wait for the next chunk."""
        p = self.s.problem
        return 8 * self._row_bytes if self.chunk < p.c // p.groups else 0

    @property
    def _panel(self) -> int:
        """Where in the workspace samples begin."""
        return header_bytes(2) + self.segment * _RECORD_BYTES

    @property
    def _zeros(self) -> int:
        """Where sums start from."""
        return self._panel + self.chunk * math.prod(self.s.problem.k) * self._row_bytes

    @property
    def workspace(self) -> int:
        """Bytes a thread needs."""
        slots = self._slot_bytes * len(self._sets) or 8 * self._row_bytes
        return self._zeros + ZERO_BYTES + slots + _SPARE

    def cost(self) -> dict[str, float]:
        """Cycles: samples, corner coordinates, products."""
        s, p, arith = self.s, self.s.problem, arith_of(self.s)
        samples = (p.n or 0) * math.prod(axis.out for axis in self.sweep) * math.prod(p.k)
        tiles = sum(tile_cycles(s.rates(arith), rows, 2) / 2 for _, rows in self._sets)
        return {
            "samples": samples * (p.c * 8.0 + p.offset_groups * 60.0),
            "products": samples * (p.c // p.groups) * p.groups * tiles / lanes(s.target, arith),
        }

    def choices(self) -> dict[str, object]:
        """What is sampled at a time."""
        return {"pixels of a row": self.segment, "input channels at a time": self.chunk}

    def build(self, r: Request) -> Program:
        """Program of a request: one step."""
        p, arith, keep, taps = r.problem, r.arith, list[Any](), math.prod(r.problem.k)
        sweep, segment, f16c = self.sweep, self.segment, r.target.converts_f16
        address = address_of(
            r, f"deformable {p.x} {arith.name}", "deformable", Driver,
            lambda k, name: _driver(k, name, p.x_dtype, arith.accumulator, f16c),
        )  # fmt: skip
        held = [lines(sweep[0], 1), lines(sweep[1], segment)]
        common, items = boxed_words(r, sweep, (1, segment), held, panel=self._panel, scratch=self._zeros)
        weights = r.packed(
            ("deformable", arith.name, r.target.level), lambda: packed_weights(r, r.weights(sweep), self._sets)
        )
        sums = pixel_sums(
            r, weights, self._sets, [e * self._row_bytes for e in range(self.chunk * taps)], taps=taps,
            chunk=self.chunk, slots=self._zeros + ZERO_BYTES, output_bytes=self._row_bytes,
            along=contiguous(along_out(r, sweep[1], "p"), p.m // p.groups), functions_of=lambda n: panel_tiles(r, n),
        )  # fmt: skip
        assert r.offset is not None
        values = DeformableWords(
            common=common, sums=sums, kernel_height=p.k[0], kernel_width=p.k[1], dilation_height=p.d[0],
            dilation_width=p.d[1], height=sweep[0].inp, width=sweep[1].inp, x_height=r.x.spatial[0],
            x_width=r.x.spatial[1], offset=_field_words(r.offset, 2 * taps), has_mask=int(r.mask is not None),
            mask=_field_words(r.mask or Operand(0, 0, (0, 0), 0, 1), taps), corners=header_bytes(2),
            offset_channels=max(1, p.c // p.offset_groups), row_bytes=self._row_bytes, slot_set=self._slot_bytes,
        )  # fmt: skip
        return one_step(address, filled(values, keep), items, self.workspace, keep)


def _field_words(o: Operand, channels: int) -> FieldWords:
    """How offsets or masks lie; an offset group has so many channels."""
    return FieldWords(o.offset, o.n, channels * o.c, o.c, *o.spatial)
