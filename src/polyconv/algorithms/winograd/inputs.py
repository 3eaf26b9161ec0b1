"""Inputs of a box: some channels at a time into a padded panel, from there to the points; those of the next, ahead."""

from __future__ import annotations

from polyconv.algorithms.dense.channel_panel import pack_panel
from polyconv.algorithms.winograd.driver import Here, each_run, place_box
from polyconv.algorithms.winograd.words import BoxInputs, ChannelWords, PhaseWords, TileRun
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.transform import InputTransform
from polyconv.lowering.panel import Driver, axis_words, decode, fill

__all__ = ["inputs", "note"]


def inputs(k: Module, name: str) -> None:
    """Add the function that brings all inputs of a box to the points."""
    with k.function(name, BoxInputs) as given:
        here = Here.of(k, given)
        p, workspace, x = here.p, here.workspace, here.frame.x
        to, panel = p.inputs, workspace + p.common.panel
        with k.loop(0, to.channels, to.chunk) as chunk:
            following = chunk.index + to.chunk
            with k.when(p.fetches.equals(1) & (following < to.channels)):
                _fetch(here, x, following)
            pack_panel(k, p.common, to, here.item, x, panel, chunk.index)
            target = workspace + (p.v + chunk.index // to.block_channels * p.v_block)
            there = k.minimum(to.chunk, to.channels - chunk.index)
            with k.loop(0, there, to.block_channels, [panel, target]) as block:
                _transform(here, *block.values)
                block.next(block.values[0] + to.block_bytes, block.values[1] + p.v_block)


def _fetch(here: Here, x: Buffer, channel: Value) -> None:
    """Fetch the inputs of the next chunk, from ``channel`` on: weights have driven them out of the caches."""
    k, p, c = here.k, here.p, here.p.common
    pixel_step = c.step * axis_words(c, c.axes - 1).x_stride
    channels = k.minimum(p.inputs.channels - channel, p.inputs.chunk)
    by_plane = c.x_c > pixel_step

    def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
        pixels = end - head
        step = k.select(by_plane, c.x_c, pixel_step)
        size = k.select(by_plane, pixels * pixel_step, channels * c.x_c)
        with k.loop(0, k.select(by_plane, channels, pixels)) as run:
            place = source + run.index * step
            with k.loop(0, size, 64) as part:
                k.prefetch(place + part.index)
            k.prefetch(place + (size - 1))

    fill(k, c, here.item, x, channel, put)


def _transform(here: Here, panel: Buffer, v: Buffer) -> None:
    """A block of channels from the panel to the points."""
    k, p = here.k, here.p
    with k.loop(0, p.outer_lines) as outer, k.loop(0, p.phase_count) as number:
        phase, to = p.phases.at(number.index), p.inputs
        with k.loop(0, here.box.tile_row_count) as r:
            target = v + (outer.index * p.v_line + phase.place)
            row = p.tile_rows.at(here.box.tile_rows + r.index)
            at = (outer.index * p.y_lines + phase.line + row.line_in) * to.line_bytes + phase.pixel * to.row_bytes
            line = panel + at

            def transform(run: TileRun, tile: Value, line: Buffer = line, target: Buffer = target,
                          phase: PhaseWords = phase) -> None:  # fmt: skip
                k.call(phase.transform, InputTransform(
                    line + run.pixel * to.row_bytes, p.tile_line, p.tile_pixel,
                    target + tile * to.row_bytes, p.v_point, run.count, run.step * to.row_bytes,
                ))  # fmt: skip

            each_run(here, row, transform)


def note(k: Module, name: str) -> None:
    """Add the function that notes where the inputs lie that the next item of a thread needs.

    Notes are: runs of bytes in all, runs fetched so far, then the offset of every row.
    """
    with k.function(name, Driver) as given:
        p = ChannelWords.read(k, given.words)
        c, following = p.common, p.following
        header = given.workspace + following.notes
        notes = header + c.axes * 24
        k.store(k.constant(INT, 0), notes, 8)
        k.store(k.constant(INT, 0), notes + 8, 8)
        of_next = given.item + following.items_ahead

        def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
            with k.when(first_line.equals(0) & (head < end)):  # other runs of a row lie between the pixels of the first
                rows = k.word(notes)
                k.store(source.total(), notes + (rows * 8 + 16), 8)
                k.store(rows + 1, notes, 8)

        with k.when(of_next < following.item_count):
            item = decode(k, c, of_next, header)
            place_box(k, p, item, header)
            fill(k, c, item, given.frame.x, k.constant(INT, 0), put)
            k.store(k.word(notes) * following.runs_a_row, notes, 8)
