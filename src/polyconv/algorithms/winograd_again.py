"""Tiles of a box with results that are not finite, once more by the direct algorithm: few convolutions ever enter here.

Boxes depend on the number of threads and images, tiles do not: so neither do bits, whatever the inputs.
"""

from __future__ import annotations

from polyconv.algorithms.dense.driver import DirectBox
from polyconv.algorithms.panel import Common, Frame, Item, axis_words, box_rows
from polyconv.algorithms.winograd_driver import (
    BoxAgain,
    TileBox,
    TileRun,
    WinogradWords,
    each_run,
    flags_of,
    lines_of_row,
)
from polyconv.kernels.language import INT, Buffer, Module, Value

__all__ = ["again"]


def again(k: Module, name: str) -> None:
    """Add the function that computes the flagged tiles of a block of outputs."""
    with k.function(name, BoxAgain) as given:
        p, box, workspace, block = given.words, given.box, given.workspace, given.block
        item = Item(k, workspace, given.n, given.g, k.constant(INT, 0))
        rows = box_rows(k, p.common, item, p.transformed)
        flags = flags_of(p, workspace, block, rows)
        with k.loop(0, rows) as row:
            _row(k, p, item, box, given.frame, workspace, block, row.index, flags + (row.index * p.tiles + 1) * 8)


def _row(k: Module, p: WinogradWords, item: Item, box: TileBox, frame: Frame, workspace: Buffer, block: Value,
         row: Value, flags: Buffer) -> None:  # fmt: skip
    """The flagged tiles of a row of outer axes.

    Neighbours along the columns are done together, wherever tiles have no outputs of others between theirs.
    """
    c, y_rows = p.common, lines_of_row(k, p, item)
    with k.loop(0, box.record_count) as number:
        record = p.records.at(box.records + number.index)

        def of_run(run: TileRun, tile: Value) -> None:
            found, whole = flags + tile * 8, p.x_apart.equals(1)
            joins = k.select(whole | run.step.equals(1), 1, 0)
            with k.loop(0, run.count, carry=[k.constant(INT, 0)]) as last:
                # tiles of the series of flagged ones that ends here, if it ends
                series = k.select(k.word(found, last.index) > 0, last.values[0] + 1, 0)
                following = k.word(found, k.minimum(last.index + 1, run.count - 1)) > 0
                goes_on = joins.equals(1) & following & (last.index + 1 < run.count)
                last.next(k.select(goes_on, series, 0))
                pixel = run.pixel + (last.index + 1 - series) * run.step
                column = pixel // p.x_residues * p.x_apart + pixel % p.x_residues
                length = k.select(whole, series * run.outputs, series)
                pieces = k.select(whole, 1, run.outputs)
                with k.loop(0, k.select((series > 0) & goes_on.equals(0), pieces, 0)) as j:
                    first = column + j.index * p.x_apart
                    with k.when(first < box.columns):  # the last tile of a run may have less outputs
                        rows(first, length)

        def rows(column: Value, length: Value) -> None:
            whole = p.y_apart.equals(1) | p.transformed.equals(1)
            with k.loop(0, k.select(whole, 1, record.valid)) as i:
                line = row * y_rows + record.line_out + i.index * p.y_apart
                lines = k.select(whole & p.transformed.equals(2), record.valid, 1)
                header = workspace + p.again_header
                _narrow(k, c, item, c.axes - 1, column, length, header)
                with k.loop(1, c.axes, carry=[line]) as back:
                    axis = c.axes - 1 - back.index
                    extent = item.extent(axis)
                    _narrow(k, c, item, axis, back.values[0] % extent, k.select(back.index.equals(1), lines, 1), header)
                    back.next(back.values[0] // extent)
                k.call(p.repair, DirectBox(frame, p.again_words, header, item.n, item.g, block, block + 1))

        each_run(k, p, box, record, of_run)


def _narrow(k: Module, c: Common, item: Item, axis: Value, first: Value, extent: Value, header: Buffer) -> None:
    """Write a part of an axis of the box into a header of its own."""
    place = header + axis * 24
    k.store(item.origin(axis) + first * axis_words(c, axis).stride, place, 8)
    k.store(extent, place + 8, 8)
    k.store(item.first(axis) + first, place + 16, 8)
