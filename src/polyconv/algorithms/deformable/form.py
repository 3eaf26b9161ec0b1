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

from polyconv.algorithms.deformable.driver import Sampling, driver
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
    budget = s.budget(s.profile.cache("l2", _PANEL_SHARE))
    pixels = -(-math.prod(axis.out for axis in sweep) // lane) * lane

    def found() -> Iterator[Sizes]:
        blocks = [groups for groups in range(p.groups, 0, -1) if p.groups % groups == 0]
        few = [group_in]
        while few[-1] > 1:
            half = -(-few[-1] // 2)
            few.append(-(-half // lane) * lane if half > lane else half)
        whole = [(groups, group_in, vectors) for groups in blocks for vectors in _VECTORS]
        for groups, chunk, vectors in (*whole, *((1, chunk, v) for v in (_VECTORS[-1], 1) for chunk in few)):
            yield _sizes(s, sweep, copied, groups, max(lane, min(vectors * lane, pixels)), chunk)

    sizes = next(found())
    for sizes in found():
        if sizes.near_bytes <= budget:
            break
    return DeformableForm(s, sweep, sizes)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What an item samples at a time, and where things begin in the workspace of its thread.

    Parameters
    ----------
    copied : bool
        Whether the image is copied, channels last; a pixel of the copy has ``pixel_bytes``.
    groups, channels : int
        Groups of an item, and their input channels together.
    segment, chunk, chunk_channels : int
        Pixels that are sampled at a time, input channels of a group, and of all groups of the item.
    array : int
        Pixels of the arrays of positions, places and weights.
    row_bytes, slot_bytes : int
        Bytes of a channel's samples of a tap; of the sums of a set of outputs, or 0 where none waits for a next chunk.
    places, weights, panel, zeros, copy : int
        Where places of corners begin, behind rows and columns of pixels; weights of corners; samples; what sums start
        from; the copy, with a pixel of zeros.
    near_bytes, workspace : int
        Bytes that are written and read with every segment, and all.
    """

    copied: bool
    groups: int
    channels: int
    segment: int
    chunk: int
    chunk_channels: int
    array: int
    pixel_bytes: int
    row_bytes: int
    slot_bytes: int
    places: int
    weights: int
    panel: int
    zeros: int
    copy: int
    near_bytes: int
    workspace: int


def _sizes(s: Situation, sweep: Sweep, copied: bool, groups: int, segment: int, chunk: int) -> Sizes:
    p, size, lane = s.problem, arith_of(s).bytes, lanes(s.target, arith_of(s))
    group_in, array, row = p.c // p.groups, _VECTORS[0] * lane, segment * size
    channels = groups * group_in
    chunk_channels = channels if groups > 1 else chunk
    slot = 8 * row if chunk < group_in else 0
    # a pixel of the copy: whole vectors, or a part of one that no cache line cuts
    pixel = -(-channels // lane) * lane if channels > lane else 1 << (max(1, channels) - 1).bit_length()
    places = header_bytes(2) + 2 * 8 * array
    weights = places + CORNERS * 8 * array
    panel = -(-(weights + CORNERS * array * size) // 64) * 64
    zeros = panel + chunk_channels * math.prod(p.k) * row
    near = zeros + ZERO_BYTES + (slot * len(_sets(s)) or 8 * row) + _SPARE
    copy = -(-near // 64) * 64
    behind = copy + (1 + math.prod(axis.inp for axis in sweep)) * pixel * size + _SPARE
    return Sizes(
        copied, groups, channels, segment, chunk, chunk_channels, array, pixel * size, row, slot, places, weights,
        panel, zeros, copy, near, behind if copied else near,
    )  # fmt: skip


def _sets(s: Situation) -> list[tuple[int, int]]:
    """Sets of a group's output channels: first and number."""
    return tile_rows(s.problem.m // s.problem.groups, s.target)


@dataclass(frozen=True, slots=True)
class DeformableForm(Form):
    """What an item samples at a time, and whether from a copy."""

    sweep: Sweep
    sizes: Sizes

    @property
    def workspace(self) -> int:
        """Bytes a thread needs."""
        return self.sizes.workspace

    @property
    def _parts(self) -> int:
        """Items of a block of an image: threads share its pixels, and each copies all of the image."""
        p, terms = self.s.problem, self._cycles
        rest = sum(terms.values()) - terms["copy"]
        segments = -(-math.prod(axis.out for axis in self.sweep) // self.sizes.segment)
        items = (p.n or 0) * p.groups // self.sizes.groups
        return thread_parts(self.s.threads, items, segments, terms["copy"] / max(1.0, rest))

    @property
    def _cycles(self) -> dict[str, float]:
        """Cycles of a block of an image."""
        s, p, arith, sizes = self.s, self.s.problem, arith_of(self.s), self.sizes
        lane, rates, channels = lanes(s.target, arith), s.rates(arith), sizes.channels
        vectors = -(-math.prod(axis.out for axis in self.sweep) // lane) * math.prod(p.k)  # of pixels, tap by tap
        run = max(1, min(p.c // p.offset_groups, sizes.chunk_channels))  # channels that corners serve
        squares = -(-channels // run) * -(-run // lane)
        tiles = sum(tile_cycles(rates, rows, 3) / 3 for _, rows in _sets(s))
        copied = math.prod(axis.inp for axis in self.sweep) * sizes.pixel_bytes if sizes.copied else 0
        line = _COPIED + (_FAR if copied > s.cache("l2", 1.0) else 0.0)
        return {
            "copy": copied / s.profile.numbers["line"] * line,
            "corners": _CORNERS * vectors * lane * -(-channels // run) * rates.moving,
            "samples": vectors * lane * (_SQUARE * squares if sizes.copied else _SINGLE * channels) * rates.moving,
            "products": vectors * channels * tiles,
        }

    def cost(self) -> dict[str, float]:
        """Cycles: the copy, corners of the taps, samples, products."""
        p = self.s.problem
        return {name: (p.n or 0) * p.groups // self.sizes.groups * cycles for name, cycles in self._cycles.items()}

    def choices(self) -> dict[str, object]:
        """Where samples come from, and what is sampled at a time."""
        sizes = self.sizes
        source = "a copy with channels last" if sizes.copied else "the planes of the input"
        return {
            "samples from": source, "groups of an item": sizes.groups, "pixels at a time": sizes.segment,
            "input channels at a time": sizes.chunk,
        }  # fmt: skip

    def build(self, r: Request) -> Program:
        """Program of a request: one step."""
        p, arith, keep, taps = r.problem, r.arith, list[Any](), math.prod(r.problem.k)
        (height, width), sizes, sets = self.sweep, self.sizes, _sets(self.s)
        fields = [field for field in (r.offset, r.mask) if field is not None]
        whole = rows_follow(r, self.sweep) and all(_follow(field, width.out) for field in fields)
        together = all(field.spatial[1] == field.itemsize for field in fields)
        spec = Sampling(p.x_dtype, arith.accumulator, lanes(r.target, arith), sizes.array, sizes.copied,
                        together, r.target.converts_f16)  # fmt: skip
        address = address_of(
            r, f"deformable {p.x} {arith.name}{' copied' * sizes.copied}{' together' * together}", "deformable", Driver,
            lambda k, name: driver(k, name, spec),
        )  # fmt: skip
        extents = (1, height.out * width.out) if whole else (height.out, width.out)
        parts = self._parts
        band = -(-extents[1] // (parts * sizes.segment)) * sizes.segment
        box = (1, band) if whole else (-(-height.out // parts), width.out)
        axes = tuple(Axis(out, axis.inp, 1, 1, 1, 0) for out, axis in zip(extents, self.sweep, strict=True))
        common, items = boxed_words(
            r, axes, tuple(max(1, b) for b in box), [lines(axis, 1) for axis in axes],
            block_groups=sizes.groups, panel=sizes.panel, scratch=sizes.zeros,
        )  # fmt: skip
        weights = r.packed(
            ("deformable", arith.name, r.target.level), lambda: packed_weights(r, r.weights(self.sweep), sets)
        )
        sums = pixel_sums(
            r, weights, sets, [e * sizes.row_bytes for e in range(sizes.chunk * taps)], taps=taps,
            chunk=sizes.chunk, slots=sizes.zeros + ZERO_BYTES, output_bytes=sizes.row_bytes,
            along=contiguous(along_out(r, width, "p"), p.m // p.groups), functions_of=lambda n: panel_tiles(r, n),
        )  # fmt: skip
        assert r.offset is not None
        steps = (width.inp * sizes.pixel_bytes, sizes.pixel_bytes) if sizes.copied else r.x.spatial
        values = DeformableWords(
            common=common, sums=sums, copy=self._copy_words(r), kernel_height=p.k[0], kernel_width=p.k[1],
            dilation_height=p.d[0], dilation_width=p.d[1], stride_height=height.stride, stride_width=width.stride,
            pad_height=height.pad, pad_width=width.pad, width_out=max(1, width.out), height=height.inp, width=width.inp,
            x_height=steps[0], x_width=steps[1], offset=_field_words(r.offset, 2 * taps),
            has_mask=int(r.mask is not None), mask=_field_words(r.mask or Operand(0, 0, (0, 0), 0, 1), taps),
            offset_channels=max(1, p.c // p.offset_groups), segment=sizes.segment, positions=header_bytes(2),
            places=sizes.places, weights=sizes.weights, block_groups=sizes.groups,
            block_channels=sizes.channels, chunk_channels=sizes.chunk_channels, row_bytes=sizes.row_bytes,
            channel_bytes=taps * sizes.row_bytes, slot_set=sizes.slot_bytes,
        )  # fmt: skip
        return one_step(address, filled(values, keep), items, self.workspace, keep)

    def _copy_words(self, r: Request) -> CopyWords:
        """The words of the copy; planes whose rows follow each other are single lines."""
        height, width = (axis.inp for axis in self.sweep)
        line_count, pixels = (1, height * width) if _follow(r.x, width) else (height, width)
        move = Move(r.problem.x, r.arith.accumulator, along_in(r, Axis(width, width, 1, 1, 1, 0), "c"))
        return CopyWords(
            place=self.sizes.copy, lines=line_count, line_pixels=pixels, line_bytes=r.x.spatial[0],
            pixel_bytes=self.sizes.pixel_bytes, move_in=move_in_address(r, move),
        )  # fmt: skip


def _follow(o: Operand, width: int) -> bool:
    """Whether every row of an array begins where the one before it ends."""
    return o.spatial[0] == o.spatial[1] * width


def _field_words(o: Operand, channels: int) -> FieldWords:
    """How offsets or masks lie; an offset group has so many channels."""
    return FieldWords(o.offset, o.n, channels * o.c, o.c, *o.spatial)
