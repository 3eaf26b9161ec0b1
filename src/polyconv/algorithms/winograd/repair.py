"""Tiles of a box with results that are not finite, once more by ``careful``: few convolutions ever enter here.

Boxes depend on the number of threads and images, tiles do not: so neither do bits, whatever the inputs.
"""

from __future__ import annotations

from polyconv.algorithms.careful import CarefulBox
from polyconv.algorithms.winograd.driver import Here, each_run, flags_of
from polyconv.algorithms.winograd.words import RepairBlock, TileRun
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.lowering.panel import axis_words, box_rows

__all__ = ["repair"]


def repair(k: Module, name: str) -> None:
    """Add the function that computes the flagged tiles of a block of outputs."""
    with k.function(name, RepairBlock) as given:
        here, block = Here.of(k, given), given.block
        p = here.p
        rows = box_rows(k, p.common, here.item, p.transformed)
        flags = flags_of(p, here.workspace, block, rows)
        with k.loop(0, rows) as row:
            _row(here, block, row.index, flags + (row.index * p.tiles + 1) * 8)


def _row(here: Here, block: Value, row: Value, flags: Buffer) -> None:
    """The flagged tiles of a row of the axes that are not transformed.

    Neighbours along the columns are done together, wherever tiles have no outputs of others between theirs.
    """
    k, p, box = here.k, here.p, here.box
    y_lines = here.y_lines
    with k.loop(0, box.tile_row_count) as number:
        tiles = p.tile_rows.at(box.tile_rows + number.index)

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
                        of_lines(first, length)

        def of_lines(column: Value, length: Value) -> None:
            whole = p.y_apart.equals(1) | p.transformed.equals(1)
            with k.loop(0, k.select(whole, 1, tiles.lines)) as i:
                line = row * y_lines + tiles.line_out + i.index * p.y_apart
                lines = k.select(whole & p.transformed.equals(2), tiles.lines, 1)
                header = here.workspace + p.repair_header
                _write_box(here, header, line, lines, column, length)
                outputs = block * p.block_outputs
                k.call(p.again, CarefulBox(
                    here.frame, p.again_words, header, here.item.n, here.item.g, outputs,
                    k.minimum(outputs + p.block_outputs, p.outputs),
                ))  # fmt: skip

        each_run(here, tiles, of_run)


def _write_box(here: Here, header: Buffer, line: Value, lines: Value, column: Value, length: Value) -> None:
    """Write a part of the box as one of its own: so many lines from ``line`` on, so many columns."""
    k, c, item = here.k, here.p.common, here.item

    def write(axis: Value, first: Value, extent: Value) -> None:
        place = header + axis * 24
        k.store(item.origin(axis) + first * axis_words(c, axis).stride, place, 8)
        k.store(extent, place + 8, 8)
        k.store(item.first(axis) + first, place + 16, 8)

    write(c.axes - 1, column, length)
    with k.loop(1, c.axes, carry=[line]) as back:
        axis = c.axes - 1 - back.index
        extent = item.extent(axis)
        write(axis, back.values[0] % extent, k.select(back.index.equals(1), lines, 1))
        back.next(back.values[0] // extent)
