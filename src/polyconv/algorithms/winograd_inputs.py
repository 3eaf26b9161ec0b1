"""Inputs of a box of the Winograd algorithm: a chunk of channels at a time into a panel, from there transformed."""

from __future__ import annotations

from polyconv.algorithms import direct
from polyconv.algorithms.panel import Item, Words, axis_record, fill
from polyconv.algorithms.winograd_driver import BOX, RECORD, WORDS, BoxInputs, each_run
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.transform import InputTransform

__all__ = ["inputs"]

_PHASE = ("line", "pixel", "place", "*transform")


def inputs(k: Module, name: str) -> None:
    """Add the function that brings all inputs of a box."""
    with k.function(name, BoxInputs) as given:
        p, box, workspace = Words(k, given.words, WORDS), Words(k, given.box, BOX), given.workspace
        item, x = Item(k, workspace, given.n, given.g, k.constant(INT, 0)), k.buffer(given.frame, 0)
        panel = workspace + p.panel
        with k.loop(0, p.channels, p.chunk) as chunk:
            following = chunk.index + p.chunk
            with k.when(p.asks.equals(1) & (following < p.channels)):
                _ask(k, p, item, x, following)
            direct.pack_panel(k, p, item, x, panel, chunk.index)
            target = workspace + (p.v + chunk.index // p.block_channels * p.v_block)
            there = k.minimum(p.chunk, p.channels - chunk.index)
            with k.loop(0, there, p.block_channels, [panel, target]) as block:
                _transform(k, p, box, *block.values)
                block.next(block.values[0] + p.block_bytes, block.values[1] + p.v_block)


def _ask(k: Module, p: Words, item: Item, x: Buffer, channel: Value) -> None:
    """Ask for the inputs of the channels from ``channel`` on: weights have driven them out of the caches."""
    pixel_step = p.step * axis_record(k, p, p.axes - 1).x_stride
    channels = k.minimum(p.channels - channel, p.chunk)
    by_plane = p.x_c > pixel_step

    def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
        pixels = end - head
        step = k.select(by_plane, p.x_c, pixel_step)
        size = k.select(by_plane, pixels * pixel_step, channels * p.x_c)
        with k.loop(0, k.select(by_plane, channels, pixels)) as run:
            place = source + run.index * step
            with k.loop(0, size, 64) as part:
                k.prefetch(place + part.index)
            k.prefetch(place + (size - 1))

    fill(k, p, item, x, channel, put)


def _transform(k: Module, p: Words, box: Words, panel: Buffer, v: Buffer) -> None:
    with k.loop(0, p.outer_lines) as outer, k.loop(0, p.phase_count) as number:
        phase = Words(k, p.buffer("phases"), _PHASE).at(number.index, len(_PHASE) + 1)
        with k.loop(0, box.record_count) as r:
            target = v + (outer.index * p.v_line + phase.place)
            record = Words(k, p.buffer("records"), RECORD).at(box.records + r.index, len(RECORD))
            at = (outer.index * p.y_lines + phase.line + record.line_in) * p.line_bytes + phase.pixel * p.row_bytes
            line = panel + at

            def transform(run: Words, tile: Value, line: Buffer = line, target: Buffer = target,
                          phase: Words = phase) -> None:  # fmt: skip
                k.call(phase.buffer("transform"), InputTransform(
                    line + run.pixel * p.row_bytes, p.tile_line, p.tile_pixel,
                    target + tile * p.row_bytes, p.v_point, run.count, run.step * p.row_bytes,
                ))  # fmt: skip

            each_run(k, p, box, record, transform)
