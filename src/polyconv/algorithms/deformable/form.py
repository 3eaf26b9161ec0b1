"""Deformable convolution: bilinear samples of some pixels as a panel, then tiles whose lanes are pixels.

Offsets move every tap of every pixel, so nothing is contiguous in planes.  Each item therefore copies its group's image
with channels last first: a corner of a sample then is a vector of channels.  Where samples are few for such a copy, or
there is no room for it, they are read one by one.  The panel is [channel][tap][pixel].
Cost: the copy, four multiply-adds a sample, the corners of every tap once an offset group, and the products.
Error: own bound, (k + 8) eps sum|sample||w|.  Source: ONNX DeformConv-22; corners outside the image count zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from polyconv.algorithms.deformable.driver import driver
from polyconv.algorithms.deformable.sampling import Sampling
from polyconv.algorithms.deformable.words import CORNERS, CopyWords, DeformableWords, FieldWords
from polyconv.algorithms.form import Form, Forms
from polyconv.kernels.isa import lanes
from polyconv.kernels.layout import Move
from polyconv.kernels.record import filled
from polyconv.lowering.boxes import boxed_words, rows_follow, thread_parts
from polyconv.lowering.moves import along_in, along_out, move_in_address
from polyconv.lowering.panel import Driver, header_bytes
from polyconv.lowering.pixels import ZERO_BYTES, contiguous, packed_weights, panel_tiles, pixel_sums, tile_rows
from polyconv.lowering.program import Operand, Program, Request, address_of, one_step
from polyconv.lowering.situation import FREE_BYTES, Situation, arith_of
from polyconv.lowering.sweep import Axis, Sweep, lines, sweeps
from polyconv.lowering.tiles import tile_cycles

__all__ = ["forms"]

_PANEL_SHARE = 1 / 4
"""Of a second-level cache, for the panel."""
_VECTORS = (6, 3)
"""Vectors of a segment, the first that leave room for the channels: tiles of eight outputs have three."""
_COPIED, _FAR = 8.0, 8.0
"""Cycles in which a cache line of the copy is made, and more where a second-level cache does not hold the copy."""
_CORNERS, _SQUARE, _SINGLE = 5.0, 8.0, 12.0
"""Cycles of the corners of a sample, of a sample of a vector of channels, and of a sample of one number alone; all five
were measured on a Zen 5, in f32 and f64."""
_SPARE = 128
"""Bytes behind the sums, so that the last vector may be whole."""


def forms(s: Situation) -> Forms:
    """The forms of a situation, with a copy and without one, that predicted faster first; or why there is none."""
    p = s.problem
    if p.op != "deform_conv":
        return f"computes deform_conv, not {p.op}"
    if p.rank != 2:
        return f"deform_conv is defined for 2 spatial axes, not {p.rank}"
    (sweep,) = sweeps(p)
    found = [_form(s, sweep, copied=copied) for copied in (True, False)]
    room = [form for form in found if s.limit is None or form.workspace <= s.limit + FREE_BYTES]
    return tuple(sorted(room or found[1:], key=lambda form: s.price(form, sum(form.cost().values()))))


def _form(s: Situation, sweep: Sweep, *, copied: bool) -> DeformableForm:
    """The most groups, pixels and channels at a time whose panel stays near."""
    p, lane = s.problem, lanes(s.target, arith_of(s))
    group_in = max(1, p.c // p.groups)
    budget = s.budget(round(_PANEL_SHARE * s.profile.numbers["l2.bytes"]))
    pixels = -(-math.prod(axis.out for axis in sweep) // lane) * lane

    def sizes() -> Iterator[DeformableForm]:
        blocks = [groups for groups in range(p.groups, 0, -1) if p.groups % groups == 0]
        few = [group_in]
        while few[-1] > 1:
            half = -(-few[-1] // 2)
            few.append(-(-half // lane) * lane if half > lane else half)
        whole = [(groups, group_in, vectors) for groups in blocks for vectors in _VECTORS]
        for groups, chunk, vectors in (*whole, *((1, chunk, v) for v in (_VECTORS[-1], 1) for chunk in few)):
            yield DeformableForm(s, sweep, copied, groups, max(lane, min(vectors * lane, pixels)), chunk)

    form = next(sizes())
    for form in sizes():
        if form.near_bytes <= budget:
            break
    return form


@dataclass(frozen=True, slots=True)
class DeformableForm(Form):
    """Whether the image is copied; how many groups an item has, and how many pixels and channels are sampled at a time.

    Channels are those of a group; of several groups all are.
    """

    sweep: Sweep
    copied: bool
    groups: int
    segment: int
    chunk: int

    @property
    def _size(self) -> int:
        """Bytes of a sample."""
        return arith_of(self.s).bytes

    @property
    def _array(self) -> int:
        """Pixels of the arrays of positions, places and weights."""
        return _VECTORS[0] * lanes(self.s.target, arith_of(self.s))

    @property
    def _row_bytes(self) -> int:
        """Bytes of a channel's samples of a tap."""
        return self.segment * self._size

    @property
    def _sets(self) -> list[tuple[int, int]]:
        return tile_rows(self.s.problem.m // self.s.problem.groups, self.s.target)

    @property
    def _channels(self) -> int:
        """Input channels of an item's groups."""
        return self.groups * (self.s.problem.c // self.s.problem.groups)

    @property
    def _chunk_channels(self) -> int:
        """Those that are sampled at a time."""
        return self._channels if self.groups > 1 else self.chunk

    @property
    def _slot_bytes(self) -> int:
        """Bytes of the sums of a set, if those of all sets wait for the next chunk."""
        p = self.s.problem
        return 8 * self._row_bytes if self.chunk < p.c // p.groups else 0

    @property
    def _pixel_bytes(self) -> int:
        """Bytes of a pixel of the copy: whole vectors, or a part of one that no cache line cuts."""
        lane, channels = lanes(self.s.target, arith_of(self.s)), max(1, self._channels)
        return (-(-channels // lane) * lane if channels > lane else 1 << (channels - 1).bit_length()) * self._size

    @property
    def _places(self) -> int:
        """Where in the workspace places of corners begin, behind the rows and columns of pixels."""
        return header_bytes(2) + 2 * 8 * self._array

    @property
    def _weights(self) -> int:
        """Where weights of corners begin."""
        return self._places + CORNERS * 8 * self._array

    @property
    def _panel(self) -> int:
        """Where samples begin."""
        return -(-(self._weights + CORNERS * self._array * self._size) // 64) * 64

    @property
    def _zeros(self) -> int:
        """Where sums start from."""
        return self._panel + self._chunk_channels * math.prod(self.s.problem.k) * self._row_bytes

    @property
    def near_bytes(self) -> int:
        """Bytes that are written and read with every segment."""
        slots = self._slot_bytes * len(self._sets) or 8 * self._row_bytes
        return self._zeros + ZERO_BYTES + slots + _SPARE

    @property
    def _copy(self) -> int:
        """Where the copy begins: with a pixel of zeros."""
        return -(-self.near_bytes // 64) * 64

    @property
    def workspace(self) -> int:
        """Bytes a thread needs."""
        if not self.copied:
            return self.near_bytes
        return self._copy + (1 + math.prod(axis.inp for axis in self.sweep)) * self._pixel_bytes + _SPARE

    @property
    def _parts(self) -> int:
        """Items of a block of an image: threads share its pixels, and each copies all of the image."""
        p, terms = self.s.problem, self._cycles
        rest = sum(terms.values()) - terms["copy"]
        segments = -(-math.prod(axis.out for axis in self.sweep) // self.segment)
        items = (p.n or 0) * p.groups // self.groups
        return thread_parts(self.s.threads, items, segments, terms["copy"] / max(1.0, rest))

    @property
    def _cycles(self) -> dict[str, float]:
        """Cycles of a block of an image."""
        s, p, arith = self.s, self.s.problem, arith_of(self.s)
        lane, rates, channels = lanes(s.target, arith), s.rates(arith), self._channels
        vectors = -(-math.prod(axis.out for axis in self.sweep) // lane) * math.prod(p.k)  # of pixels, tap by tap
        run = max(1, min(p.c // p.offset_groups, self._chunk_channels))  # channels that corners serve
        squares = -(-channels // run) * -(-run // lane)
        tiles = sum(tile_cycles(rates, rows, 3) / 3 for _, rows in self._sets)
        copied = math.prod(axis.inp for axis in self.sweep) * self._pixel_bytes if self.copied else 0
        line = _COPIED + (_FAR if copied > s.cache("l2", 1.0) else 0.0)
        return {
            "copy": copied / s.profile.numbers["line"] * line,
            "corners": _CORNERS * vectors * lane * -(-channels // run) * rates.moving,
            "samples": vectors * lane * (_SQUARE * squares if self.copied else _SINGLE * channels) * rates.moving,
            "products": vectors * channels * tiles,
        }

    def cost(self) -> dict[str, float]:
        """Cycles: the copy, corners of the taps, samples, products."""
        p = self.s.problem
        return {name: (p.n or 0) * p.groups // self.groups * cycles for name, cycles in self._cycles.items()}

    def choices(self) -> dict[str, object]:
        """Where samples come from, and what is sampled at a time."""
        source = "a copy with channels last" if self.copied else "the planes of the input"
        return {
            "samples from": source, "groups of an item": self.groups, "pixels at a time": self.segment,
            "input channels at a time": self.chunk,
        }  # fmt: skip

    def build(self, r: Request) -> Program:
        """Program of a request: one step."""
        p, arith, keep, taps = r.problem, r.arith, list[Any](), math.prod(r.problem.k)
        height, width = self.sweep
        fields = [field for field in (r.offset, r.mask) if field is not None]
        whole = rows_follow(r, self.sweep) and all(_follow(field, width.out) for field in fields)
        together = all(field.spatial[1] == field.itemsize for field in fields)
        spec = Sampling(p.x_dtype, arith.accumulator, lanes(r.target, arith), self._array, self.copied,
                        together, r.target.converts_f16)  # fmt: skip
        address = address_of(
            r, f"deformable {p.x} {arith.name}{' copied' * self.copied}{' together' * together}", "deformable", Driver,
            lambda k, name: driver(k, name, spec),
        )  # fmt: skip
        extents = (1, height.out * width.out) if whole else (height.out, width.out)
        parts = self._parts
        band = -(-extents[1] // (parts * self.segment)) * self.segment
        box = (1, band) if whole else (-(-height.out // parts), width.out)
        axes = tuple(Axis(out, axis.inp, 1, 1, 1, 0) for out, axis in zip(extents, self.sweep, strict=True))
        common, items = boxed_words(
            r, axes, tuple(max(1, b) for b in box), [lines(axis, 1) for axis in axes],
            block_groups=self.groups, panel=self._panel, scratch=self._zeros,
        )  # fmt: skip
        weights = r.packed(
            ("deformable", arith.name, r.target.level), lambda: packed_weights(r, r.weights(self.sweep), self._sets)
        )
        sums = pixel_sums(
            r, weights, self._sets, [e * self._row_bytes for e in range(self.chunk * taps)], taps=taps,
            chunk=self.chunk, slots=self._zeros + ZERO_BYTES,
            output_bytes=self._row_bytes,
            along=contiguous(along_out(r, width, "p"), p.m // p.groups), functions_of=lambda n: panel_tiles(r, n),
        )  # fmt: skip
        assert r.offset is not None
        steps = (width.inp * self._pixel_bytes, self._pixel_bytes) if self.copied else r.x.spatial
        values = DeformableWords(
            common=common, sums=sums, copy=self._copy_words(r), kernel_height=p.k[0], kernel_width=p.k[1],
            dilation_height=p.d[0], dilation_width=p.d[1], stride_height=height.stride, stride_width=width.stride,
            pad_height=height.pad, pad_width=width.pad, width_out=max(1, width.out), height=height.inp, width=width.inp,
            x_height=steps[0], x_width=steps[1], offset=_field_words(r.offset, 2 * taps),
            has_mask=int(r.mask is not None), mask=_field_words(r.mask or Operand(0, 0, (0, 0), 0, 1), taps),
            offset_channels=max(1, p.c // p.offset_groups), segment=self.segment, positions=header_bytes(2),
            places=self._places, weights=self._weights, block_groups=self.groups,
            block_channels=self._channels, chunk_channels=self._chunk_channels, row_bytes=self._row_bytes,
            channel_bytes=taps * self._row_bytes, slot_set=self._slot_bytes,
        )  # fmt: skip
        return one_step(address, filled(values, keep), items, self.workspace, keep)

    def _copy_words(self, r: Request) -> CopyWords:
        """The words of the copy; planes whose rows follow each other are single lines."""
        height, width = (axis.inp for axis in self.sweep)
        line_count, pixels = (1, height * width) if _follow(r.x, width) else (height, width)
        along = along_in(r, Axis(width, width, 1, 1, 1, 0), "c")
        return CopyWords(
            place=self._copy, lines=line_count, line_pixels=pixels, line_bytes=r.x.spatial[0],
            pixel_bytes=self._pixel_bytes, move_in=move_in_address(r, Move(r.problem.x, r.arith.accumulator, along)),
        )  # fmt: skip


def _follow(o: Operand, width: int) -> bool:
    """Whether every row of an array begins where the one before it ends."""
    return o.spatial[0] == o.spatial[1] * width


def _field_words(o: Operand, channels: int) -> FieldWords:
    """How offsets or masks lie; an offset group has so many channels."""
    return FieldWords(o.offset, o.n, channels * o.c, o.c, *o.spatial)
