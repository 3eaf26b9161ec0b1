"""Inputs of a box of the Winograd algorithm: a chunk of channels at a time into a panel, from there transformed."""

from __future__ import annotations

from polyconv.algorithms.dense.channel_panel import pack_panel
from polyconv.algorithms.panel import Item, axis_words, fill
from polyconv.algorithms.winograd_driver import BoxInputs, PhaseWords, TileBox, TileRun, WinogradWords, each_run
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.transform import InputTransform

__all__ = ["inputs"]


def inputs(k: Module, name: str) -> None:
    """Add the function that brings all inputs of a box."""
    with k.function(name, BoxInputs) as given:
        p, workspace = given.words, given.workspace
        item, x = Item(k, workspace, given.n, given.g, k.constant(INT, 0)), given.frame.x
        to, panel = p.inputs, workspace + p.common.panel
        with k.loop(0, to.channels, to.chunk) as chunk:
            following = chunk.index + to.chunk
            with k.when(p.asks.equals(1) & (following < to.channels)):
                _ask(k, p, item, x, following)
            pack_panel(k, p.common, to, item, x, panel, chunk.index)
            target = workspace + (p.v + chunk.index // to.block_channels * p.v_block)
            there = k.minimum(to.chunk, to.channels - chunk.index)
            with k.loop(0, there, to.block_channels, [panel, target]) as block:
                _transform(k, p, given.box, *block.values)
                block.next(block.values[0] + to.block_bytes, block.values[1] + p.v_block)


def _ask(k: Module, p: WinogradWords, item: Item, x: Buffer, channel: Value) -> None:
    """Ask for the inputs of the channels from ``channel`` on: weights have driven them out of the caches."""
    c = p.common
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

    fill(k, c, item, x, channel, put)


def _transform(k: Module, p: WinogradWords, box: TileBox, panel: Buffer, v: Buffer) -> None:
    with k.loop(0, p.outer_lines) as outer, k.loop(0, p.phase_count) as number:
        phase, to = p.phases.at(number.index), p.inputs
        with k.loop(0, box.record_count) as r:
            target = v + (outer.index * p.v_line + phase.place)
            record = p.records.at(box.records + r.index)
            at = (outer.index * p.y_lines + phase.line + record.line_in) * to.line_bytes + phase.pixel * to.row_bytes
            line = panel + at

            def transform(run: TileRun, tile: Value, line: Buffer = line, target: Buffer = target,
                          phase: PhaseWords = phase) -> None:  # fmt: skip
                k.call(phase.transform, InputTransform(
                    line + run.pixel * to.row_bytes, p.tile_line, p.tile_pixel,
                    target + tile * to.row_bytes, p.v_point, run.count, run.step * to.row_bytes,
                ))  # fmt: skip

            each_run(k, p, box, record, transform)
