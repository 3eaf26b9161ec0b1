"""The words of a deformable convolution's driver: kernel, image, where offsets lie, parts of the workspace."""

from __future__ import annotations

from polyconv.kernels.layout import MoveIn
from polyconv.kernels.record import Function, Record, Word
from polyconv.lowering.panel import Common
from polyconv.lowering.pixels import PixelSums

__all__ = ["CORNERS", "FARTHEST", "CopyWords", "DeformableWords", "FieldWords"]

CORNERS = 4
"""Pixels that a sample is interpolated from."""
FARTHEST = 2**30
"""No sample is so many pixels away from where it would be without an offset: positions are numbers of 32 bits."""


class FieldWords(Record):
    """How offsets, or masks, of every tap lie: bytes between images, offset groups, channels, lines and pixels."""

    base: Word
    n: Word
    group: Word
    c: Word
    line: Word
    pixel: Word


class CopyWords(Record):
    """Where a block's channels of an image are copied to, channels last, and how.

    Before the first pixel, at ``place`` in the workspace, lies one of zeros, which stands for all outside the image.
    Of ``parts`` of so many rows each has a word at ``done``: whether it was copied.  Two words more say from which row
    to which all were.  A part is moved by ``line_rows`` at a time: all where rows follow each other, else one.
    """

    place: Word
    done: Word
    parts: Word
    part_rows: Word
    line_rows: Word
    row_bytes: Word
    pixel_bytes: Word
    move_in: Function[MoveIn]


class DeformableWords(Record):
    """The driver's words.

    Results are lines of pixels: rows of the result, ``width_out`` wide, or all rows as one line where they follow each
    other in every array.  A segment of a line is sampled at a time.  Its positions, and places and weights of the
    corners of a tap's samples, lie in the workspace.

    An item has ``block_groups`` groups, with ``block_channels`` channels together, so that corners serve all of them;
    each group has ``group_channels``.  A chunk of samples is in the panel at a time, tap by tap all channels of the
    block.

    In an image neighbours lie ``x_height`` and ``x_width`` bytes apart, of a plane or of the copy.  In the panel there
    are ``row_bytes`` from channel to channel.  Sums of a set of outputs have a
    slot of ``slot_set`` bytes.
    """

    common: Common
    sums: PixelSums
    copy: CopyWords
    kernel_height: Word
    kernel_width: Word
    dilation_height: Word
    dilation_width: Word
    stride_height: Word
    stride_width: Word
    pad_height: Word
    pad_width: Word
    width_out: Word
    height: Word
    width: Word
    x_height: Word
    x_width: Word
    offset: FieldWords
    mask: FieldWords
    offset_channels: Word
    segment: Word
    positions: Word
    places: Word
    weights: Word
    block_groups: Word
    block_channels: Word
    row_bytes: Word
    group_channels: Word
    slot_set: Word
