"""The driver of a deformable convolution: a group's image to channels last, samples to a panel, products to the result.

An item is a band of pixels of a block of groups of an image; it takes a segment of a line at a time, and all channels
of the block, or a chunk of those of its only group.  It must not know how bands and chunks are chosen.
"""

from __future__ import annotations

from polyconv.algorithms.deformable.sampling import Samples, Sampling
from polyconv.algorithms.deformable.words import DeformableWords
from polyconv.kernels.language import Buffer, Module, vector
from polyconv.kernels.layout import MoveIn, zero_words
from polyconv.lowering.panel import Driver, Frame, Item, axis_words, decode, row_place
from polyconv.lowering.pixels import ZERO_BYTES, add_products, move_sums

__all__ = ["driver"]


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
