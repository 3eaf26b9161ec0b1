"""The driver of a deformable convolution: a group's image to channels last, samples to a panel, products to the result.

An item is a band of pixels of a block of groups of an image; it takes a segment of a line at a time, and all channels
of the block, or a chunk of those of its only group.  It must not know how bands and chunks are chosen.

To sample, first the four corners of every sample of a segment are found, in double and vectors of pixels: where each
lies and what it weighs.  They serve all channels of an offset group.  Then the samples: lanes are channels of the
copied image, and squares of pixels by channels are transposed on their way into the panel; without a copy, element by
element.  A corner of weight 0 may stand for one outside the image, or lie there: it adds nothing, whatever the image
holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyconv.algorithms.deformable.words import CORNERS, DeformableWords, FieldWords
from polyconv.dtypes import Dtype
from polyconv.kernels.convert import LLVM_NAMES, widen
from polyconv.kernels.language import INT, Buffer, Mask, Module, Type, Value, vector
from polyconv.kernels.layout import MoveIn, transposed, zero_words
from polyconv.lowering.panel import Driver, Frame, Item, axis_words, decode, row_place
from polyconv.lowering.pixels import ZERO_BYTES, add_products, move_sums

__all__ = ["Sampling", "driver"]

_DOUBLE = Type("double")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How samples are found.

    Parameters
    ----------
    dtype : Dtype
        Of input, offsets and masks.
    element : str
        LLVM type of a sample.
    lanes : int
        Samples in a vector.
    segment : int
        Pixels of the arrays of positions, places and weights.
    copied : bool
        Whether the image is copied, channels last.
    together : bool
        Whether pixels of a line follow each other in offsets and masks.
    f16c : bool
        Whether the CPU converts f16.
    """

    dtype: Dtype
    element: str
    lanes: int
    segment: int
    copied: bool
    together: bool
    f16c: bool


def driver(k: Module, name: str, spec: Sampling) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        p = DeformableWords.read(k, given.words)
        item, s = decode(k, p.common, given.item, workspace), p.sums
        k.clear(workspace + p.common.scratch, ZERO_BYTES)
        samples = Samples(k, spec, p, item, frame, workspace)
        if spec.copied:
            _copy(k, p, spec, item, frame, workspace)
        panel, pixel = workspace + p.common.panel, axis_words(p.common, p.common.axes - 1)
        with k.loop(0, item.extent(0)) as line, k.loop(0, item.extent(1), p.segment) as first:
            pixels = k.minimum(item.extent(1) - first.index, p.segment)
            vectors = (pixels + (spec.lanes - 1)) // spec.lanes
            samples.locate(line.index, first.index, pixels)
            _, y, r = row_place(k, p.common, item, line.index)
            y, r = y + first.index * pixel.y_stride, r + first.index * pixel.r_stride
            with k.loop(0, s.chunks) as chunk:
                low = chunk.index * s.chunk
                end = k.minimum(low + p.chunk_channels, p.block_channels)
                samples.fill(line.index, first.index, pixels, vectors, low, end)
                with k.loop(0, p.block_groups) as group, k.loop(0, s.set_count) as number:
                    of_set, slot = s.sets.at(number.index), s.slots + number.index * p.slot_set
                    add_products(
                        k, s, of_set, panel + group.index * s.channels * p.channel_bytes,
                        item.g * p.block_groups + group.index, chunk.index, workspace, p.common.scratch, slot, vectors,
                    )  # fmt: skip
                    with k.when(chunk.index.equals(s.chunks - 1)):
                        move_sums(
                            k, s, p.common, frame, workspace + slot, item.g * p.block_groups,
                            group.index * s.outputs + of_set.first, of_set.rows, pixels, y, r,
                        )  # fmt: skip


def _copy(k: Module, p: DeformableWords, spec: Sampling, item: Item, frame: Frame, workspace: Buffer) -> None:
    """Copy the block's channels of the image to the workspace, channels last, behind a pixel of zeros."""
    c, copy = p.common, p.copy
    kind, words = vector(spec.element, spec.lanes), copy.pixel_bytes // p.sums.word_bytes
    target = workspace + copy.place
    zero_words(k, target, words + spec.lanes, kind)
    source = frame.x + (c.x_base + item.n * c.x_n + item.g * c.x_g)
    first, bytes_ = target + copy.pixel_bytes, copy.line_pixels * copy.pixel_bytes
    with k.loop(0, copy.lines) as line:
        k.call(copy.move_in, MoveIn(
            source + line.index * copy.line_bytes, axis_words(c, c.axes - 1).x_stride, c.x_c,
            first + line.index * bytes_, copy.pixel_bytes, p.sums.word_bytes, copy.line_pixels, p.block_channels, 0,
        ))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Samples:
    """Code that samples for one item: a box of one group of one image."""

    k: Module
    spec: Sampling
    p: DeformableWords
    item: Item
    frame: Frame
    workspace: Buffer

    def read(self, kind: Type, place: Buffer, to: str, mask: Mask | None = None, stride: Value | None = None) -> Value:
        """Load elements of the input's type, neighbours or ``stride`` bytes apart, as others."""
        k, kind = self.k, kind.of(LLVM_NAMES[self.spec.dtype.name])
        if stride is not None:
            found = k.gather(kind, place, stride, mask)
        else:
            found = k.load(kind, place) if mask is None else k.load_first(kind, place, mask)
        return widen(k, found, self.spec.dtype, to, f16c=self.spec.f16c)

    def locate(self, line: Value, first: Value, pixels: Value) -> None:
        """Write where the first tap of every pixel of a segment lies without an offset: rows, then columns."""
        k, p = self.k, self.p
        begin = self.item.first(1) + first
        row, column = self.item.first(0) + line + begin // p.width_out, begin % p.width_out
        rows = self.workspace + p.positions
        with k.loop(0, pixels, carry=[row, column]) as pixel:
            row, column = pixel.values
            place = rows + pixel.index * 8
            k.store(k.cast("sitofp", row * p.stride_height - p.pad_height, _DOUBLE), place, 8)
            k.store(k.cast("sitofp", column * p.stride_width - p.pad_width, _DOUBLE), place + self.spec.segment * 8, 8)
            ends = (column + 1).equals(p.width_out)
            pixel.next(k.select(ends, row + 1, row), k.select(ends, 0, column + 1))

    def fill(self, line: Value, first: Value, pixels: Value, vectors: Value, low: Value, end: Value) -> None:
        """Fill the panel with samples of the block's channels from ``low`` to ``end``, tap by tap."""
        k, p = self.k, self.p
        base = self.item.g * p.block_channels
        groups = (base + low) // p.offset_channels, (base + end - 1) // p.offset_channels + 1
        with k.loop(0, p.kernel_height) as i, k.loop(0, p.kernel_width) as j:
            tap = i.index * p.kernel_width + j.index
            shift = i.index * p.dilation_height, j.index * p.dilation_width
            with k.loop(*groups) as group:
                self._corners(line, first, pixels, vectors, group.index, tap, shift)
                c0 = k.maximum(group.index * p.offset_channels - base, low)
                c1 = k.minimum((group.index + 1) * p.offset_channels - base, end)
                panel = self.workspace + p.common.panel + (tap * p.row_bytes - low * p.channel_bytes)
                if self.spec.copied:
                    self._squares(panel, c0, c1, vectors)
                else:
                    self._singly(panel, c0, c1, pixels)

    def _field(self, of: FieldWords, memory: Buffer, group: Value, channel: Value, line: Value, first: Value) -> Buffer:
        """Where a channel of offsets or masks begins for a segment."""
        line, pixel = self.item.first(0) + line, self.item.first(1) + first
        at = of.base + self.item.n * of.n + group * of.group + channel * of.c
        return memory + (at + line * of.line + pixel * of.pixel)

    def _corners(self, line: Value, first: Value, pixels: Value, vectors: Value, group: Value, tap: Value,
                 shift: tuple[Value, Value]) -> None:  # fmt: skip
        """Weights and places of the corners of a tap's samples, times its modulation."""
        k, p, spec = self.k, self.p, self.spec
        count = max(2, k.wide // 64)
        kind = vector("double", count)
        rows = self._field(p.offset, self.frame.offset, group, tap * 2, line, first)
        columns = self._field(p.offset, self.frame.offset, group, tap * 2 + 1, line, first)
        masks = self._field(p.mask, self.frame.mask, group, tap, line, first)
        by = [k.splat(k.cast("sitofp", part, _DOUBLE), count) for part in shift]
        with k.loop(0, vectors * spec.lanes, count) as pixel:
            there = k.mask(pixels - pixel.index, count)
            begins = k.minimum(pixel.index, pixels - 1)  # a gather reads its first lane, even where none is there

            def field(of: FieldWords, begin: Buffer, later: int) -> Value:
                at = begin + begins * of.pixel
                k.prefetch(at + of.c * later)  # of the next tap: runs are too short to be foreseen
                return self.read(kind, at, "double", there, None if spec.together else of.pixel)

            own = self.workspace + p.positions + pixel.index * 8
            y = k.load(kind, own) + by[0] + field(p.offset, rows, 2)
            x = k.load(kind, own + spec.segment * 8) + by[1] + field(p.offset, columns, 2)
            with k.choice(p.has_mask.equals(1), [k.constant(kind, 1)]) as masked:
                masked.next(field(p.mask, masks, 1))
            self._weigh(pixel.index, y, x, masked.results[0], there)

    def _weigh(self, pixel: Value, y: Value, x: Value, modulation: Value, there: Mask) -> None:
        """Store the corners of a vector of positions."""
        k, p, spec, kind = self.k, self.p, self.spec, y.type
        extents = [k.splat(k.cast("sitofp", v, _DOUBLE), kind.lanes) for v in (p.height, p.width)]
        inside = there.bits  # NaN compares false: such a sample is outside, as one beyond the image
        for position, extent in zip((y, x), extents, strict=True):
            inside = inside & (position > -1) & (position < extent)
        y, x = (k.select(inside, position, 0.0) for position in (y, x))
        places = [self._floor(position) for position in (y, x)]
        of_axes = []
        for position, place, extent in zip((y, x), places, extents, strict=True):
            begin = k.cast("sitofp", place, kind)
            part = position - begin
            low = k.select(begin >= 0, 1.0 - part, 0.0)
            high = k.select(begin + 1.0 < extent, part, 0.0)
            of_axes.append((low, high))
        begin = places[0] * k.splat(p.x_height, kind.lanes) + places[1] * k.splat(p.x_width, kind.lanes)
        for corner in range(CORNERS):
            down, right = divmod(corner, 2)
            weight = of_axes[0][down] * of_axes[1][right]
            weight = k.select(weight.equals(0), 0.0, weight * modulation)
            weight = k.select(inside, weight, 0.0)
            if spec.element == "float":
                weight = k.cast("fptrunc", weight, kind.of("float"))
            step = (p.x_height if down else k.constant(INT, 0)) + (p.x_width if right else k.constant(INT, 0))
            if spec.copied:
                step = step + p.copy.pixel_bytes  # the first pixel is that of zeros
            place = k.select(weight.equals(0), 0, begin + k.splat(step, kind.lanes))
            of_places, of_weights = self._of(pixel)
            k.store(place, of_places + corner * spec.segment * 8)
            k.store(weight, of_weights + corner * spec.segment * weight.type.element_bytes)

    def _floor(self, position: Value) -> Value:
        """Whole parts, towards -inf, of positions known to lie within an image."""
        k, kind = self.k, position.type
        whole = k.cast("fptosi", position, kind.of("i64"))
        return whole + k.cast("sext", k.cast("sitofp", whole, kind) > position, whole.type)

    def _of(self, pixel: Value) -> tuple[Buffer, Buffer]:
        """Where place and weight of a pixel's first corner are kept; those of the next lie a segment further."""
        size = Type(self.spec.element).element_bytes
        p = self.p
        return self.workspace + (p.places + pixel * 8), self.workspace + (p.weights + pixel * size)

    def _squares(self, panel: Buffer, first: Value, end: Value, vectors: Value) -> None:
        """Samples of some channels of the copy, pixel by pixel."""
        k, p, spec = self.k, self.p, self.spec
        kind = vector(spec.element, spec.lanes)
        size = kind.element_bytes
        with k.loop(0, vectors) as v:
            places, weights = (k.rebase(place) for place in self._of(v.index * spec.lanes))
            with k.loop(first, end, spec.lanes) as c:
                image = k.rebase(self.workspace + (p.copy.place + c.index * size))
                samples = []
                for pixel in range(spec.lanes):
                    total = None
                    for corner in range(CORNERS):
                        number = corner * spec.segment + pixel
                        word = k.broadcast(kind, weights + number * size)
                        value = k.load(kind, image + k.word(places, number))
                        total = word * value if total is None else k.fma(word, value, total)
                    assert total is not None
                    samples.append(total)
                row = panel + (c.index * p.channel_bytes + v.index * kind.bytes)
                for number, of_channel in enumerate(transposed(k, samples)):
                    with k.when(c.index + number < end):
                        k.store(of_channel, row)
                    row = row + p.channel_bytes

    def _singly(self, panel: Buffer, first: Value, end: Value, pixels: Value) -> None:
        """Samples of some channels of the image where it lies."""
        k, p, kind = self.k, self.p, Type(self.spec.element)
        size = kind.element_bytes
        base = p.common.x_base + self.item.n * p.common.x_n + self.item.g * p.common.x_g
        with k.loop(first, end) as c, k.loop(0, pixels) as pixel:
            plane = self.frame.x + (base + c.index * p.common.x_c)
            total = k.constant(kind, 0)
            places, weights = self._of(pixel.index)
            for corner in range(CORNERS):
                number = corner * self.spec.segment
                weight = k.load(kind, weights + number * size)
                value = self.read(kind, plane + k.word(places, number), kind.element)
                total = k.select(weight.equals(0), total, k.fma(weight, value, total))
            k.store(total, panel + (c.index * p.channel_bytes + pixel.index * size))
