"""Deformable convolution: bilinear samples of some pixels as a panel, then tiles whose lanes are pixels.

Offsets move every tap of every pixel, so nothing is contiguous in planes.  Each item therefore copies the rows of its
group's image that its samples meet, channels last: a corner of a sample then is a vector of channels.  Where samples
are few for such a copy, or there is no room for it, they are read one by one.  The panel is [tap][channel][pixel], with
as many taps as a first-level cache holds beside what else is read.
Cost: the copy, four multiply-adds a sample, the corners of every tap once an offset group, and the products.
Error: own bound, (k + 8) eps sum|sample||w|.  Source: ONNX DeformConv-22; corners outside the image count zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from polyconv.algorithms.deformable.driver import Sampling, driver
from polyconv.algorithms.deformable.words import CORNERS, FARTHEST, CopyWords, DeformableWords, FieldWords
from polyconv.algorithms.form import Form, Forms
from polyconv.dataclass import dataclass
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.isa import lanes
from polyconv.kernels.language import Type
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

_PANEL_SHARE = 1 / 2
"""Of a first-level cache, for the panel."""
_VECTORS = (6, 3, 1)
"""Vectors of a segment, the first that leave room for the channels: tiles of eight outputs have three."""
_PART = 384
"""Pixels that are copied at a time: enough whole squares, and few that nothing needs."""
_COPY_SHARE = 1 / 2
"""Of a second-level cache, for what a line of results needs of the copy."""
_PADDED = 1.125
"""Groups are copied one by one, so that this is so, unless vectors of their channels take so many times the room."""
_OFFSETS = 8
"""Rows over which offsets of a few pixels, up and down, spread samples."""
_COPIED, _FAR = 6.0, 2.0
"""Cycles in which a cache line of the copy is made, and more where a second-level cache does not hold the copy."""
_CORNERS, _SQUARE, _NARROW, _SINGLE = 40.0, 6.0, 4.5, 7.0
"""Cycles of the corners of a vector of samples; of a sample of a vector of channels, and of at most half of one; and of
a sample of one number alone.  All six were measured on a Zen 5, in f32 and f64."""
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
    farthest = max(axis.inp + abs(axis.pad) + axis.out * axis.stride + axis.taps * axis.dilation for axis in sweep)
    if max(farthest, math.prod(axis.out for axis in sweep)) >= FARTHEST:
        return f"its positions are numbers of 32 bits, and the image or the result has more than {FARTHEST} pixels"
    found = [_form(s, sweep, copied=copied) for copied in (True, False)]
    limit = min(4 * FARTHEST, math.inf if s.limit is None else s.limit + FREE_BYTES)  # places in a copy have 32 bits
    room = [form for form in found if form.workspace <= limit]
    return tuple(sorted(room or found[1:], key=lambda form: s.price(form, sum(form.cost().values()))))


def _form(s: Situation, sweep: Sweep, *, copied: bool) -> DeformableForm:
    """The most groups, pixels and samples at a time whose panel stays near: all channels of some taps, if possible."""
    p, lane = s.problem, lanes(s.target, arith_of(s))
    group_in, taps = max(1, p.c // p.groups), math.prod(p.k)
    near, limit = s.cache("l1", _PANEL_SHARE), math.inf if s.limit is None else s.limit + FREE_BYTES
    pixels = -(-math.prod(axis.out for axis in sweep) // lane) * lane

    high, pixel = sweep[0], _pixel_bytes(s, p.c)
    rows = (high.taps - 1) * high.dilation + high.stride + _OFFSETS  # of the image, for a line of results
    is_far = rows * sweep[1].inp * pixel > s.cache("l2", _COPY_SHARE)
    apart = copied and is_far and p.groups * _pixel_bytes(s, group_in) <= _PADDED * pixel

    def found() -> Iterator[tuple[int, int, int]]:
        for groups in (groups for groups in range(1 if apart else p.groups, 0, -1) if p.groups % groups == 0):
            for vectors in _VECTORS[:-1]:
                row = min(vectors * lane, pixels) * arith_of(s).bytes
                yield groups, vectors, group_in * max(1, min(taps, near // max(1, groups * group_in * row)))
        for vectors in _VECTORS[1:]:
            chunk = group_in * taps
            while chunk >= (lane if vectors > 1 else 1):
                yield 1, vectors, chunk
                chunk = chunk // 2 if chunk <= group_in else group_in

    for groups, vectors, chunk in found():
        sizes = _sizes(s, sweep, copied, groups, max(lane, min(vectors * lane, pixels)), chunk)
        if sizes.panel_bytes <= near and sizes.near_bytes <= limit:
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
    segment, chunk : int
        Pixels that are sampled at a time, and for each of them samples of a group: a tap and a channel each.
    array : int
        Pixels of the arrays of positions, places and weights.
    row_bytes, slot_bytes : int
        Bytes of a channel's samples of a tap; of the sums of a set of outputs, or 0 where none waits for a next chunk.
    places, weights, panel, zeros, done, copy : int
        Where places of corners begin, behind rows and columns of pixels; weights of corners; samples; what sums start
        from; which parts are copied; the copy, with a pixel of zeros.
    panel_bytes, near_bytes, workspace : int
        Bytes of the panel, all that are written and read with every segment, and all.
    """

    copied: bool
    groups: int
    channels: int
    segment: int
    chunk: int
    array: int
    pixel_bytes: int
    row_bytes: int
    slot_bytes: int
    places: int
    weights: int
    panel: int
    zeros: int
    done: int
    copy: int
    panel_bytes: int
    near_bytes: int
    workspace: int


def _sizes(s: Situation, sweep: Sweep, copied: bool, groups: int, segment: int, chunk: int) -> Sizes:
    p, size, lane = s.problem, arith_of(s).bytes, lanes(s.target, arith_of(s))
    group_in, array, row = p.c // p.groups, _VECTORS[0] * lane, segment * size
    channels, sets = groups * group_in, len(_sets(s))
    slot = 8 * row if chunk < group_in * math.prod(p.k) else 0
    pixel = _pixel_bytes(s, channels)
    places = header_bytes(2) + 2 * 4 * array
    weights = places + CORNERS * (4 if copied else 8) * array
    panel = -(-(weights + CORNERS * array * size) // 64) * 64
    panel_bytes = groups * chunk * row
    zeros = panel + panel_bytes + copied * lane * row  # a square's rows beyond the last channel
    near = zeros + ZERO_BYTES + (slot * sets * groups or 8 * row) + _SPARE
    parts = -(-sweep[0].inp // _part_rows(sweep))
    copy = -(-(near + 8 * parts + _SPARE) // 64) * 64
    behind = copy + (1 + math.prod(axis.inp for axis in sweep)) * pixel + _SPARE
    return Sizes(
        copied, groups, channels, segment, chunk, array, pixel, row, slot, places, weights, panel, zeros, near,
        copy, panel_bytes, near, behind if copied else near,
    )  # fmt: skip


def _pixel_bytes(s: Situation, channels: int) -> int:
    """A pixel of the copy: whole vectors, or a part of one that no cache line cuts."""
    lane = lanes(s.target, arith_of(s))
    pixel = -(-channels // lane) * lane if channels > lane else 1 << (max(1, channels) - 1).bit_length()
    return pixel * _copy(s).element_bytes


def _copy(s: Situation) -> Type:
    """An element of the copy: as the input has it where a CPU widens it, which halves what is moved."""
    x = s.problem.x_dtype
    return Type(LLVM_NAMES[x.name] if x.name == "bf16" or s.target.converts_f16 else arith_of(s).accumulator)


def _sets(s: Situation) -> list[tuple[int, int]]:
    """Sets of a group's output channels: first and number."""
    return tile_rows(s.problem.m // s.problem.groups, s.target, arith_of(s))


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
        run = max(1, min(p.c // p.offset_groups, channels))  # channels that corners serve
        runs, few = -(-channels // run), run % lane
        of_run = run // lane * _SQUARE + (_SQUARE if 2 * few > lane else _NARROW if few else 0.0)
        tiles = sum(tile_cycles(rates, rows, 3) / 3 for _, rows in _sets(s))
        copied = math.prod(axis.inp for axis in self.sweep) * sizes.pixel_bytes if sizes.copied else 0
        line = _COPIED + (_FAR if copied > s.cache("l2", 1.0) else 0.0)
        return {
            "copy": copied / s.profile.numbers["line"] * line,
            "corners": _CORNERS * vectors * runs * rates.moving,
            "samples": vectors * lane * (runs * of_run if sizes.copied else _SINGLE * channels) * rates.moving,
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
            "samples of a pixel at a time": sizes.chunk,
        }  # fmt: skip

    def build(self, r: Request) -> Program:
        """Program of a request: one step."""
        p, arith, keep, taps = r.problem, r.arith, list[Any](), math.prod(r.problem.k)
        (height, width), sizes, sets = self.sweep, self.sizes, _sets(self.s)
        fields = [field for field in (r.offset, r.mask) if field is not None]
        whole = rows_follow(r, self.sweep) and all(_follow(field, width.out) for field in fields)
        together = all(field.spatial[1] == field.itemsize for field in fields)
        spec = Sampling(
            p.x_dtype, arith.accumulator, lanes(r.target, arith), sizes.array, sizes.copied, _copy(self.s).element,
            p.mask, together, r.target.converts_f16,
        )  # fmt: skip
        kind = f"{' copied' * sizes.copied}{' mask' * p.mask}{' together' * together}"
        address = address_of(
            r, f"deformable {p.x} {arith.name}{kind}", "deformable", Driver, lambda k, name: driver(k, name, spec)
        )
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
            ("deformable", arith.name, r.target.level),
            lambda: packed_weights(r, r.weights(self.sweep).swapaxes(2, 3), sets),
        )
        sums = pixel_sums(
            r, weights, sets, self._entries(), taps=1, channels=p.c // p.groups * taps, chunk=sizes.chunk,
            slots=sizes.zeros + ZERO_BYTES, output_bytes=sizes.row_bytes,
            along=contiguous(along_out(r, width, "p"), p.m // p.groups), functions_of=lambda n: panel_tiles(r, n),
        )  # fmt: skip
        assert r.offset is not None
        steps = (width.inp * sizes.pixel_bytes, sizes.pixel_bytes) if sizes.copied else r.x.spatial
        values = DeformableWords(
            common=common, sums=sums, copy=self._copy_words(r), kernel_height=p.k[0], kernel_width=p.k[1],
            dilation_height=p.d[0], dilation_width=p.d[1], stride_height=height.stride, stride_width=width.stride,
            pad_height=height.pad, pad_width=width.pad, width_out=max(1, width.out), height=height.inp, width=width.inp,
            x_height=steps[0], x_width=steps[1], offset=_field_words(r.offset, 2 * taps),
            mask=_field_words(r.mask or Operand(0, 0, (0, 0), 0, 1), taps),
            offset_channels=max(1, p.c // p.offset_groups), segment=sizes.segment, positions=header_bytes(2),
            places=sizes.places, weights=sizes.weights, block_groups=sizes.groups,
            block_channels=max(1, sizes.channels), group_channels=p.c // p.groups, row_bytes=sizes.row_bytes,
            slot_set=sizes.slot_bytes,
        )  # fmt: skip
        return one_step(address, filled(values, keep), items, self.workspace, keep)

    def _entries(self) -> list[int]:
        """Where in the panel the samples of a group's chunk lie: tap by tap all channels of the block."""
        sizes, group_in = self.sizes, max(1, self.s.problem.c // self.s.problem.groups)
        return [(e // group_in * sizes.channels + e % group_in) * sizes.row_bytes for e in range(sizes.chunk)]

    def _copy_words(self, r: Request) -> CopyWords:
        """The words of the copy."""
        height, width = (axis.inp for axis in self.sweep)
        rows = _part_rows(self.sweep)
        as_it_is = ("bf16", "i16") if _copy(self.s).bytes == 2 else (r.problem.x, r.arith.accumulator)
        move = Move(*as_it_is, along_in(r, Axis(width, width, 1, 1, 1, 0), "c"))
        return CopyWords(
            place=self.sizes.copy, done=self.sizes.done, parts=-(-height // rows), part_rows=rows,
            line_rows=rows if _follow(r.x, width) else 1, row_bytes=r.x.spatial[0], pixel_bytes=self.sizes.pixel_bytes,
            move_in=move_in_address(r, move),
        )  # fmt: skip


def _part_rows(sweep: Sweep) -> int:
    """Rows of the image that are copied at a time."""
    return -(-_PART // max(1, sweep[1].inp))


def _follow(o: Operand, width: int) -> bool:
    """Whether every row of an array begins where the one before it ends."""
    return o.spatial[0] == o.spatial[1] * width


def _field_words(o: Operand, channels: int) -> FieldWords:
    """How offsets or masks lie; an offset group has so many channels."""
    return FieldWords(o.offset, o.n, channels * o.c, o.c, *o.spatial)
