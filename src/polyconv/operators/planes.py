"""Planes of results, row by row: how they are cut into items, and a driver's loop over the rows of an item.

Items are some planes each or, where there are fewer planes than threads want items, parts of one.  It must not know
what a row is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyconv.kernels.language import Module, Value
from polyconv.kernels.record import Record, Word
from polyconv.kernels.values import Buffer
from polyconv.operators.job import Drive

__all__ = ["PlaneRows", "cut_planes", "each_row", "some_rows"]


class PlaneRows(Record):
    """How many planes there are and an item has, parts of a plane and rows of a part; where planes lie, in bytes."""

    total: Word
    planes: Word
    parts: Word
    part: Word
    rows: Word
    channels: Word
    x_base: Word
    x_n: Word
    x_c: Word
    y_plane: Word
    y_row: Word


def cut_planes(planes: tuple[int, int], rows: int, row_bytes: int, strides: Sequence[int], offset: int, threads: int
               ) -> tuple[PlaneRows, int]:  # fmt: skip
    """The words, and how many items there are.

    Parameters
    ----------
    planes : (int, int)
        Batch and channels.
    rows, row_bytes : int
        Of a plane of the result, which has no gaps.
    strides : sequence of int
        Of batch and channels of the input, in bytes.
    offset : int
        Of its first element, in bytes.
    """
    total = planes[0] * planes[1]
    parts = 1 if total >= 4 * threads else min(rows, -(-4 * threads // max(1, total)))
    some = max(1, total // (16 * threads)) if parts == 1 else 1
    words = PlaneRows(
        total=total, planes=some, parts=parts, part=-(-rows // parts), rows=rows, channels=planes[1], x_base=offset,
        x_n=strides[0], x_c=strides[1], y_plane=rows * row_bytes, y_row=row_bytes,
    )  # fmt: skip
    return words, -(-total // some) * parts


def each_row(k: Module, given: Drive, w: PlaneRows, body: Callable[[Value, Buffer, Buffer], None]) -> None:
    """Call ``body(row, plane of the input, row of the result)`` for the rows of an item."""
    some_rows(k, given, w, 1, lambda row, count, of_x, of_y: body(row, of_x, of_y))


def some_rows(k: Module, given: Drive, w: PlaneRows, most: Value | int,
              body: Callable[[Value, Value, Buffer, Buffer], None]) -> None:  # fmt: skip
    """Call ``body(row, rows, plane of the input, row of the result)`` for rows of an item, so many at a time."""
    x, y = k.buffer(given.frame) + w.x_base, k.buffer(given.frame, 2)
    first, row = given.item // w.parts * w.planes, given.item % w.parts * w.part
    with k.loop(first, k.minimum(first + w.planes, w.total)) as plane:
        n, c = plane.index // w.channels, plane.index % w.channels
        of_x, of_y = x + n * w.x_n + c * w.x_c, y + plane.index * w.y_plane
        end = k.minimum(row + w.part, w.rows)
        with k.loop(row, end, most) as out:
            body(out.index, k.minimum(end - out.index, most), of_x, of_y + out.index * w.y_row)
