"""The driver of ``depthwise_last``: planes copied with channels last, windows that slide over the copy, planes again.

An item is a box of outputs of some vectors of channels: whole rows of the first axis, for all phases of a transposed
convolution.  Its words are made in ``last``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from polyconv.algorithms.depthwise.slide_driver import SlideWords, tiles_of_row
from polyconv.algorithms.depthwise.taps import Place, row_offsets, write_list
from polyconv.kernels.epilogue import EpilogueTables
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.layout import MoveIn, MoveOut
from polyconv.kernels.record import Function, Record, Table, Word
from polyconv.lowering.panel import Driver, Frame, Item, write_box

__all__ = ["ArrayWords", "LastWords", "OutputWords", "StepWords", "driver"]


class StepWords(Record):
    """An axis before the last one of an array: its extent, and bytes to the next position there and in a residual."""

    extent: Word
    step: Word
    beside: Word


class ArrayWords(Record):
    """How an array lies: its runs of pixels, which lie ``pixel`` bytes apart.

    A row, a position of the first axis, has ``row_pixels`` pixels in ``row_runs`` runs; where these are 0 all rows of a
    box are one run.  Rows lie ``row`` bytes apart, in a copy of one vector of channels ``copied_row``.
    """

    n: Word
    c: Word
    row: Word
    pixel: Word
    row_pixels: Word
    row_runs: Word
    axis_count: Word
    axes: Table[StepWords]
    extent: Word
    copied_row: Word
    copied_vector: Word


class PhaseWords(Record):
    """A sweep, the bytes of a list of its taps, and how many rows of outputs have theirs at the same time."""

    slide: SlideWords
    list_bytes: Word
    rows: Word


class OutputWords(Record):
    """One output of every channel: its sweeps, where results and residuals begin, and what follows its sums."""

    phases: Table[PhaseWords]
    y_base: Word
    r_base: Word
    tables: EpilogueTables


class LastWords(Record):
    """The driver's words.

    Box ``i`` has outputs from ``i * block * apart`` on, ``block * apart`` rows of them, and reads rows from
    ``i * block * stride + low`` to ``((i + 1) * block - 1) * stride + high``, as far as there are such.  The copies of
    the input and of the results of ``vectors`` vectors of channels lie at ``inputs`` and ``sums`` in the workspace.
    """

    output_count: Word
    outputs: Table[OutputWords]
    phase_count: Word
    boxes: Word
    block: Word
    stride: Word
    apart: Word
    low: Word
    high: Word
    items: Word
    vectors: Word
    vector_count: Word
    channels: Word
    lanes: Word
    x_base: Word
    x: ArrayWords
    y: ArrayWords
    r_n: Word
    r_c: Word
    r_row: Word
    r_pixel: Word
    inputs: Word
    sums: Word
    pixel_bytes: Word
    word_bytes: Word
    zero_point: Word
    move_in: Function[MoveIn]
    move_out: Function[MoveOut]


def driver(k: Module, name: str, *, taken: bool) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module.

    Sums become planes when they are ``taken`` from a copy; else tiles write results where they lie.
    """
    with k.function(name, Driver) as given:
        p, workspace, zero = LastWords.read(k, given.words), given.workspace, k.constant(INT, 0)
        box, rest = given.item % p.boxes, given.item // p.boxes
        n, first = rest // p.items, rest % p.items * p.vectors
        vectors = k.minimum(p.vectors, p.vector_count - first)
        begin = box * p.block
        low = k.maximum(begin * p.stride + p.low, 0)
        end = k.minimum((begin + (p.block - 1)) * p.stride + (p.high + 1), p.x.extent)
        inputs, sums = workspace + p.inputs, workspace + p.sums
        out, frame = begin * p.apart, given.frame
        _bring(k, p, frame, inputs, n, first, vectors, low, k.maximum(end - low, 0))
        copies = inputs + -low * p.x.copied_row, sums + -out * p.y.copied_row if taken else frame.y
        with k.loop(0, p.output_count) as number:
            of_output = p.outputs.at(number.index)
            with k.loop(0, p.phase_count) as phase:
                of_phase = of_output.phases.at(phase.index)
                with k.when(box < of_phase.slide.common.boxes):
                    write_box(k, of_phase.slide.common, box, workspace)
                    item = Item(k, workspace, n, zero, zero)
                    _phase(k, p, of_phase, item, (*copies, frame.residual), first, vectors, taken)
            if taken:
                rows = k.minimum(p.block * p.apart, p.y.extent - out)
                _take(k, p, of_output, frame, sums, n, first, vectors, out, rows)


@contextmanager
def _runs(k: Module, a: ArrayWords, rows: Value) -> Iterator[tuple[Value, Value, Value, Value]]:
    """Visit the runs of so many rows: its first pixel, pixels, and bytes from the first row there and in a residual."""
    whole = a.row_runs.equals(0)
    pixels = k.select(whole, rows * a.row_pixels, a.row_pixels // k.maximum(a.row_runs, 1))
    zero = k.constant(INT, 0)
    with k.loop(0, k.select(whole, k.minimum(rows, 1), rows * a.row_runs)) as run:
        with k.loop(0, a.axis_count, carry=[run.index, zero, zero]) as back:
            q, at, beside = back.values
            axis = a.axes.at(a.axis_count - 1 - back.index)
            own = q % axis.extent
            back.next(q // axis.extent, at + own * axis.step, beside + own * axis.beside)
        _, at, beside = back.results
        yield run.index * pixels, pixels, at, beside


def _bring(k: Module, p: LastWords, frame: Frame, inputs: Buffer, n: Value, first: Value, vectors: Value, low: Value,
           rows: Value) -> None:  # fmt: skip
    """Copy rows of the input from ``low`` on, vector by vector of channels."""
    x = p.x
    source = frame.x + (p.x_base + n * x.n + low * x.row)
    with k.loop(0, vectors) as vector, _runs(k, x, rows) as (pixel, pixels, at, _):
        channel = (first + vector.index) * p.lanes
        k.call(p.move_in, MoveIn(
            source + (channel * x.c + at), x.pixel, x.c,
            inputs + (vector.index * x.copied_vector + pixel * p.pixel_bytes), p.pixel_bytes, p.word_bytes, pixels,
            k.minimum(p.channels - channel, p.lanes), p.zero_point,
        ))  # fmt: skip


_PLACE = 32
"""Where in the header of a list the places of its row stand in input, result and residual; fewer kinds have numbers."""


def _phase(k: Module, p: LastWords, of: PhaseWords, item: Item, arrays: Place, first: Value, vectors: Value,
           taken: bool) -> None:  # fmt: skip
    """The outputs of a sweep in a box, from the copy to sums or results: all vectors share rows' lists of taps."""
    s, c, lists = of.slide, of.slide.common, item.header + of.slide.taps.place
    with k.loop(0, s.taps.slid, carry=[k.constant(INT, 1)]) as axis:
        axis.next(axis.values[0] * item.extent(axis.index))
    with k.loop(0, axis.results[0], of.rows) as some:
        rows = k.minimum(axis.results[0] - some.index, of.rows)
        with k.loop(0, rows) as row:
            entries, number = lists + row.index * of.list_bytes, some.index + row.index
            write_list(k, c, s.taps, item, entries, number)
            for i, at in enumerate(row_offsets(k, c, s.taps.slid, item, number, item.g)):
                k.store(at, entries + (_PLACE + 8 * i), 8)
        with k.loop(0, vectors) as vector, k.loop(0, rows) as row:
            entries, channel = lists + row.index * of.list_bytes, (first + vector.index) * p.lanes
            x, y, r = (array + k.word(entries + (_PLACE + 8 * i)) for i, array in enumerate(arrays))
            x = x + vector.index * p.x.copied_vector
            if taken:
                place, used, masked = (x, y + vector.index * p.y.copied_vector, r), p.lanes, k.constant(INT, 0)
            else:
                place, used = (x, y + channel * c.y_c, r + channel * c.r_c), p.channels - channel
                masked = k.cast("zext", used < p.lanes, INT)
            tiles_of_row(k, s, item, entries, place, channel, k.minimum(used, p.lanes), used, masked)


def _take(k: Module, p: LastWords, of: OutputWords, frame: Frame, sums: Buffer, n: Value, first: Value,
          vectors: Value, out: Value, rows: Value) -> None:  # fmt: skip
    """Move sums of an output to the rows of the result from ``out`` on."""
    y, tables = p.y, of.tables
    to = frame.y + (of.y_base + n * y.n + out * y.row)
    residual = frame.residual + (of.r_base + n * p.r_n + out * p.r_row)
    with k.loop(0, vectors) as vector, _runs(k, y, rows) as (pixel, pixels, at, beside):
        channel = (first + vector.index) * p.lanes
        k.call(p.move_out, MoveOut(
            sums + (vector.index * y.copied_vector + pixel * p.pixel_bytes), p.pixel_bytes, p.word_bytes,
            to + (channel * y.c + at), y.pixel, y.c, pixels, k.minimum(p.channels - channel, p.lanes),
            tables.bias + channel * p.word_bytes, tables.scale + channel * p.word_bytes,
            residual + (channel * p.r_c + beside), p.r_pixel, p.r_c, tables.constants,
        ))  # fmt: skip
