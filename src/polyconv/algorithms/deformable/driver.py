"""The driver of a deformable convolution: a group's image to channels last, samples to a panel, products to the result.

An item is a band of pixels of a block of groups of an image; it takes a segment of a line at a time, and all samples of
its pixels, or a chunk of them.  It must not know how bands and chunks are chosen.

To sample, first the four corners of every sample of a tap are found, in vectors of pixels: where each lies and what it
weighs.  The fraction of an offset is taken before it moves a position, so neither is rounded.  Corners serve all
channels of an offset group.  Rows of the image that they need are copied, channels last, unless they have been.  Then
the samples: lanes are channels of the copy, of a pixel or, where they are few, of several pixels, and squares of pixels
by channels are transposed on their way into the panel; without a copy, element by element.  A corner of weight 0 may
stand for one outside the image, or lie there: it adds nothing, whatever the image holds.
"""

from __future__ import annotations

from polyconv.algorithms.deformable.words import CORNERS, FARTHEST, DeformableWords, FieldWords
from polyconv.dataclass import dataclass
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
    copy : str
        LLVM type of its elements.
    masked : bool
        Whether samples are modulated.
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
    copy: str
    masked: bool
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
            samples.forget()
        panel, pixel = workspace + p.common.panel, axis_words(p.common, p.common.axes - 1)
        with k.loop(0, item.extent(0)) as line, k.loop(0, item.extent(1), p.segment) as first:
            pixels = k.minimum(item.extent(1) - first.index, p.segment)
            vectors = (pixels + (spec.lanes - 1)) // spec.lanes
            samples.locate(line.index, first.index, vectors)
            _, y, r = row_place(k, p.common, item, line.index)
            y, r = y + first.index * pixel.y_stride, r + first.index * pixel.r_stride
            with k.loop(0, s.chunks) as chunk:
                low = chunk.index * s.chunk
                end = k.minimum(low + s.chunk, s.channels)
                samples.fill(line.index, first.index, pixels, vectors, low * p.block_groups, end * p.block_groups)
                with k.loop(0, p.block_groups) as group, k.loop(0, s.set_count) as number:
                    of_set = s.sets.at(number.index)
                    slot = s.slots + (group.index * s.set_count + number.index) * p.slot_set
                    add_products(
                        k, s, of_set, panel + group.index * p.group_channels * p.row_bytes,
                        item.g * p.block_groups + group.index, chunk.index, workspace, p.common.scratch, slot, vectors,
                    )  # fmt: skip
                    with k.when(chunk.index.equals(s.chunks - 1)):
                        move_sums(
                            k, s, p.common, frame, workspace + slot, item.g * p.block_groups,
                            group.index * s.outputs + of_set.first, of_set.rows, pixels, y, r,
                        )  # fmt: skip


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

    def locate(self, line: Value, first: Value, vectors: Value) -> None:
        """Write where the first tap of every pixel of a segment lies without an offset: rows, then columns."""
        k, p, lanes = self.k, self.p, self.spec.lanes
        kind, width = vector("i32", lanes), k.cast("sitofp", p.width_out, _DOUBLE)
        ramp = Value(k, f"<{', '.join(f'i32 {lane}' for lane in range(lanes))}>", kind)
        with k.loop(0, vectors) as v:
            number = ramp + self._splat(self.item.first(1) + first + v.index * lanes)
            # exact: half a pixel more is no nearer than 1 / (2 width) to a whole row, which rounding does not reach
            row = k.cast("fptosi", (k.cast("sitofp", number, kind.of("double")) + 0.5) / k.splat(width, lanes), kind)
            column, row = number - row * self._splat(p.width_out), row + self._splat(self.item.first(0) + line)
            place = self.workspace + p.positions + v.index * kind.bytes
            k.store(row * self._splat(p.stride_height) - self._splat(p.pad_height), place)
            column = column * self._splat(p.stride_width) - self._splat(p.pad_width)
            k.store(column, place + self.spec.segment * 4)

    def forget(self) -> None:
        """Begin a copy of the block's channels of the image, channels last: a pixel of zeros, and no rows yet."""
        k, copy = self.k, self.p.copy
        kind = vector("i16", self.spec.lanes)
        zero_words(k, self.workspace + copy.place, copy.pixel_bytes // kind.element_bytes + 4 * self.spec.lanes, kind)
        zero_words(k, self.workspace + copy.done, copy.parts + 2, vector("i64", self.spec.lanes))

    def _copy(self, first: Value, end: Value) -> None:
        """Copy the parts of the image that have rows ``first`` to ``end`` and have not been copied."""
        k, p, copy = self.k, self.p, self.p.copy
        c, first, end = p.common, k.maximum(first, 0), k.minimum(end, p.height)
        source = self.frame.x + (c.x_base + self.item.n * c.x_n + self.item.g * c.x_g)
        target = self.workspace + copy.place + copy.pixel_bytes
        held = self.workspace + copy.done + copy.parts * 8  # rows from one to another, all copied: a CPU foresees that
        low, high = k.word(held), k.word(held, 1)
        with k.when((first < end) & ((first < low) | (end > high))):
            parts = first // copy.part_rows, (end - 1) // copy.part_rows + 1
            with k.loop(*parts) as part:
                done = self.workspace + copy.done + part.index * 8
                begin = part.index * copy.part_rows
                with k.when(k.word(done).equals(0)):
                    k.store(k.constant(INT, 1), done, 8)
                    with k.loop(begin, k.minimum(begin + copy.part_rows, p.height), copy.line_rows) as row:
                        rows = k.minimum(copy.line_rows, p.height - row.index)
                        k.call(copy.move_in, MoveIn(
                            source + row.index * copy.row_bytes, axis_words(c, c.axes - 1).x_stride, c.x_c,
                            target + row.index * p.x_height, copy.pixel_bytes, Type(self.spec.copy).element_bytes,
                            rows * p.width, p.block_channels, 0,
                        ))  # fmt: skip
            first, end = parts[0] * copy.part_rows, k.minimum(parts[1] * copy.part_rows, p.height)
            meet = (first <= high) & (end >= low)
            k.store(k.select(meet, k.minimum(first, low), first), held, 8)
            k.store(k.select(meet, k.maximum(end, high), end), held + 8, 8)

    def _splat(self, value: Value, element: str = "i32") -> Value:
        """A 64-bit integer in every lane."""
        value = value if element == "i64" else self.k.cast("trunc", value, Type(element))
        return self.k.splat(value, self.spec.lanes)

    def fill(self, line: Value, first: Value, pixels: Value, vectors: Value, low: Value, end: Value) -> None:
        """Fill the panel with samples ``low`` to ``end``, which count tap by tap all channels of the block."""
        k, p, channels = self.k, self.p, self.p.block_channels
        base = self.item.g * channels
        with k.loop(low // channels, (end + channels - 1) // channels) as tap:
            begin = tap.index * channels
            c_low, c_end = k.maximum(low - begin, 0), k.minimum(end - begin, channels)
            i, j = tap.index // p.kernel_width, tap.index % p.kernel_width
            shift = i * p.dilation_height, j * p.dilation_width
            panel = self.workspace + p.common.panel + (begin - low) * p.row_bytes
            groups = (base + c_low) // p.offset_channels, (base + c_end - 1) // p.offset_channels + 1
            with k.loop(*groups) as group:
                self._corners(line, first, pixels, vectors, group.index, tap.index, shift)
                c0 = k.maximum(group.index * p.offset_channels - base, c_low)
                c1 = k.minimum((group.index + 1) * p.offset_channels - base, c_end)
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
        kind = vector(spec.element, spec.lanes)
        rows = self._field(p.offset, self.frame.offset, group, tap * 2, line, first)
        columns = self._field(p.offset, self.frame.offset, group, tap * 2 + 1, line, first)
        masks = self._field(p.mask, self.frame.mask, group, tap, line, first)
        by = [self._splat(part) for part in shift]
        extents = [self._splat(extent) for extent in (p.height, p.width)]
        steps = [spec.dtype.itemsize if spec.together else of.pixel for of in (p.offset, p.mask)]
        soon, positions = (p.offset.c * 2, p.mask.c), self.workspace + p.positions
        far = k.splat(k.constant(Type("i32"), FARTHEST), spec.lanes)
        with k.loop(0, vectors * spec.lanes, spec.lanes, carry=[far, 0 - far]) as pixel:
            there = k.mask(pixels - pixel.index, spec.lanes)

            def field(begin: Buffer, step: Value | int, later: Value) -> Value:
                at = begin + pixel.index * step
                k.prefetch(at + later)  # of the next tap: runs are too short to be foreseen
                return self.read(kind, at, spec.element, there, step if isinstance(step, Value) else None)

            own = positions + pixel.index * 4
            offsets = [field(begin, steps[0], soon[0]) for begin in (rows, columns)]
            axes = [
                self._axis(k.load(by[a].type, own + spec.segment * 4 * a) + by[a], offsets[a], extents[a])
                for a in range(2)
            ]
            self._weigh(pixel.index, axes, field(masks, steps[1], soon[1]) if spec.masked else None)
            (least, most), row = pixel.values, axes[0][0]
            pixel.next(k.intrinsic("smin", row.type, least, row), k.intrinsic("smax", row.type, most, row))
        if spec.copied:
            least, most = pixel.results
            self._copy(self._reduced("smin", least), self._reduced("smax", most) + 2)  # corners of two rows

    def _reduced(self, by: str, of: Value) -> Value:
        """The least or the greatest of a vector's lanes."""
        name = f"llvm.vector.reduce.{by}.{of.type.suffix}"
        return self.k.cast("sext", self.k.target_intrinsic(name, of.type.scalar, str(of.type), [of]), INT)

    def _axis(self, position: Value, offset: Value, extent: Value) -> tuple[Value, list[Value]]:
        """The lower corners of samples along an axis, and what both corners weigh: nothing outside the image."""
        k, kind = self.k, offset.type
        offset = k.select(offset < FARTHEST, offset, float(FARTHEST))  # NaN compares false
        offset = k.select(offset > -FARTHEST, offset, float(-FARTHEST))  # so far from any position, it is outside
        whole = k.cast("fptosi", offset, position.type)
        back = k.cast("sitofp", whole, kind)
        above = back > offset  # whole parts are towards -inf
        part = offset - k.select(above, back - 1.0, back)
        at = position + whole + k.cast("sext", above, position.type)
        weights = [k.select((at + corner).below(extent), weight, 0.0)
                   for corner, weight in enumerate((1.0 - part, part))]  # fmt: skip
        return at, weights

    def _weigh(self, pixel: Value, axes: list[tuple[Value, list[Value]]], modulation: Value | None) -> None:
        """Store the corners of a vector of samples."""
        k, p, spec = self.k, self.p, self.spec
        of_places, of_weights = self._of(pixel)
        (row, of_rows), (column, of_columns) = axes
        if self._place.element == "i64":
            row, column = (k.cast("sext", at, row.type.of("i64")) for at in (row, column))
        steps = [self._splat(step, self._place.element) for step in (p.x_height, p.x_width)]
        begin = row * steps[0] + column * steps[1]
        if spec.copied:
            begin = begin + self._splat(p.copy.pixel_bytes)  # the first pixel is that of zeros
        for corner in range(CORNERS):
            down, right = divmod(corner, 2)
            weight = of_rows[down] * of_columns[right]
            if modulation is not None:
                weight = k.select(weight.equals(0), 0.0, weight * modulation)
            place = begin + steps[0] if down else begin
            place = k.select(weight.equals(0), 0, place + steps[1] if right else place)
            k.store(place, of_places + corner * spec.segment * self._place.bytes)
            k.store(weight, of_weights + corner * spec.segment * weight.type.element_bytes)

    @property
    def _place(self) -> Type:
        """Of places in bytes: a copy is small enough for the narrow one, strides of a tensor may not be."""
        return Type("i32" if self.spec.copied else "i64")

    def _of(self, pixel: Value) -> tuple[Buffer, Buffer]:
        """Where place and weight of a pixel's first corner are kept; those of the next lie a segment further."""
        p, size = self.p, Type(self.spec.element).element_bytes
        return self.workspace + (p.places + pixel * self._place.bytes), self.workspace + (p.weights + pixel * size)

    def _squares(self, panel: Buffer, first: Value, end: Value, vectors: Value) -> None:
        """Samples of some channels of the copy, a vector of pixels at a time: two vectors of channels, one, or less.

        Numbers that are widened keep other units busy than loads do: two vectors of them are no faster.
        """
        k, lanes, element = self.k, self.spec.lanes, self.spec.element
        least, most = 16 // Type(element).element_bytes, 2 * lanes if self.spec.copy == element else lanes
        widths = [most >> halved for halved in range(most) if most >> halved >= least]
        rest = (end - first) % widths[0]
        whole = end - rest
        with k.loop(0, vectors) as v:
            with k.loop(first, k.select(rest > most // 2, end, whole) if len(widths) > 1 else end, most) as c:
                self._square(panel, c.index, end, v.index, most)
            for width in widths[1:]:
                fewer = 0 if width == widths[-1] else width // 2
                with k.when((rest > fewer) & (rest <= width)):
                    self._square(panel, whole, end, v.index, width)

    def _square(self, panel: Buffer, c: Value, end: Value, v: Value, width: int) -> None:
        """Samples of up to ``width`` channels for a vector of pixels: a row for each channel.

        Few channels share a vector with those of other pixels: lane ``j * width + i`` of a result is that of the piece
        ``j`` of the ``i``-th.  Two vectors of channels share weights and places; so that all sums stay in registers,
        they are those of half as many pixels at a time, unless elements are long.
        """
        k, p, spec = self.k, self.p, self.spec
        kind, part = vector(spec.element, spec.lanes), vector(spec.copy, min(width, spec.lanes))
        size, held = kind.element_bytes, -(-width // spec.lanes)
        rows = min(part.lanes, kind.bytes // (4 * held))
        pixels = rows * (spec.lanes // part.lanes)
        image = k.rebase(self.workspace + (p.copy.place + c * part.element_bytes))
        with k.loop(v * spec.lanes, (v + 1) * spec.lanes, pixels) as begin:
            samples = self._interpolated(image, begin.index, part, [range(i, pixels, rows) for i in range(rows)], held)
            step = p.row_bytes
            row = panel + (c * step + begin.index * size)
            for turned in (transposed(k, of_pixels) for of_pixels in samples):
                for first in range(0, spec.lanes, pixels):
                    for square in turned:  # a row beyond the last is written over, or lies behind the panel
                        lanes = range(first, first + pixels)
                        k.store(k.shuffle(square, square, lanes) if len(lanes) < spec.lanes else square, row)
                        row = row + step

    def _interpolated(self, image: Buffer, first: Value, part: Type, together: list[range], held: int
                      ) -> list[list[Value]]:  # fmt: skip
        """Samples of pixels from ``first`` on: vectors by what they hold together, for each of ``held`` of channels."""
        k, spec, kind = self.k, self.spec, vector(self.spec.element, self.spec.lanes)
        places, weights = (k.rebase(place) for place in self._of(first))
        samples: list[list[Value]] = [[] for _ in range(held)]
        pairs: dict[int, Value] = {}

        def place_of(number: int) -> Value:
            if len(together[0]) > 1:
                return k.cast("zext", k.load(Type("i32"), places + number * 4), INT)
            if number % 2 == 0:  # those of two pixels are loaded together
                pairs[number + 1] = k.load(INT, places + number * 4)
            return pairs[number] >> 32 if number % 2 else pairs[number + 1] & 0xFFFFFFFF

        for pixels in together:
            for corner in range(CORNERS):
                begin = corner * spec.segment
                if len(pixels) == 1:
                    word = k.broadcast(kind, weights + (begin + pixels[0]) * kind.element_bytes)
                else:
                    picks = [pixel for pixel in pixels for _ in range(part.lanes)]
                    word = k.load(kind, weights + begin * kind.element_bytes)
                    word = k.shuffle(word, word, picks)
                at = [image + place_of(begin + pixel) for pixel in pixels]
                for j, sums in enumerate(samples):
                    value = k.joined([k.load(part, place + j * part.bytes) for place in at])
                    value = widen(k, value, spec.dtype, spec.element, f16c=spec.f16c)
                    sums.append(k.fma(word, value, sums.pop()) if corner else word * value)
        return samples

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
            k.store(total, panel + (c.index * p.row_bytes + pixel.index * size))
