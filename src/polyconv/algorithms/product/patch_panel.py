"""The inputs of a box of outputs whose windows do not overlap, copied to a panel in which they are a matrix.

Pixels follow each other across the rows of the box: [entry][pixel] where pixels lie together in the input, else
[pixel][entry]; an entry is a channel of a tap.  Nothing is transposed on the way in, and what lies in the padding is
zero.  It must not know what the matrix is multiplied with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from polyconv.algorithms.product.axes import is_inside
from polyconv.algorithms.product.rows import ProductWords
from polyconv.kernels.isa import lanes
from polyconv.kernels.language import INT, Buffer, Module, Value, vector
from polyconv.kernels.layout import Move, MoveIn, zero_words
from polyconv.kernels.record import Function, Memory, Record, Word, altered, words
from polyconv.kernels.signature import Address
from polyconv.kernels.unzip import STEPS, Unzip, unzip
from polyconv.lowering.boxes import boxed_words
from polyconv.lowering.moves import MOST_STEP, along_in, move_in_address
from polyconv.lowering.panel import Common, Item, axis_words, fill, header_bytes
from polyconv.lowering.program import Request, address_of
from polyconv.lowering.situation import Situation, arith_of
from polyconv.lowering.sweep import Axis, Lines, Sweep, lines
from polyconv.problem.problem import Problem
from polyconv.target import Target

__all__ = ["PatchPanel", "PatchWords", "copy_cycles", "copy_patches", "panel_of", "panel_words", "vector_share"]


class UnzipRows(Record):
    """How rows of a box and taps along the axis they follow each other on lie in the input and in the panel."""

    lines: Word
    taps: Word
    step: Word
    dilation: Word
    row_bytes: Word
    tap_bytes: Word
    row_tap_bytes: Word


class PanelWords(Record):
    """Words of a box's panel.

    Bytes between entries and between pixels, where lines of the box and runs of its last axis begin, and how far taps
    reach along every axis.  Where rows of planes are taken apart in one pass, so many ``row_sets`` of them are.
    """

    channels: Word
    entries: Word
    entry_bytes: Word
    pixel_bytes: Word
    line_places: Memory
    run_places: Memory
    reach: Memory
    row_sets: Word
    rows: UnzipRows
    unzip: Function[Unzip]
    move_in: Function[MoveIn]


class PatchWords(Record):
    """Words of boxes whose inputs are copied.  ``folded``: rows of results follow each other as the panel's do."""

    common: Common
    panel: PanelWords
    products: ProductWords
    folded: Word


# -- copying -------------------------------------------------------------------------------------------


def copy_patches(k: Module, p: PatchWords, item: Item, x: Buffer, panel: Buffer, vector_bytes: int, *, planes: bool
                 ) -> None:  # fmt: skip
    """Copy the inputs of a box."""
    whole = _is_whole(k, p, item) if planes else k.constant(INT, 0)
    with k.when(whole.equals(1)):
        _unzip(k, p, item, x, panel)
    with k.when(whole.equals(1), otherwise=True):
        _copy_lines(k, p, item, x, panel, vector_bytes, planes=planes)


def _is_whole(k: Module, p: PatchWords, item: Item) -> Value:
    """1 if the rows of planes can be taken apart in one pass, and no tap of the box meets the padding."""
    c = p.common
    with k.loop(0, c.axes, carry=[k.select(p.panel.row_sets > 0, 1, k.constant(INT, 0))]) as axis:
        record = axis_words(c, axis.index)
        # lines of the axes outside those rows are all brought, also where the last box has fewer outputs
        outputs = k.select(axis.index < c.axes - 2, record.block, item.extent(axis.index))
        end = (outputs - 1) * record.stride + k.word(p.panel.reach, axis.index)
        first = item.origin(axis.index)
        fits = (first >= 0) & (first + end < record.inp)
        axis.next(axis.values[0] & k.cast("zext", fits, INT))
    inside: Value = axis.results[0]
    return inside


def _unzip(k: Module, p: PatchWords, item: Item, x: Buffer, panel: Buffer) -> None:
    """Copy the inputs of a box, all rows and taps of a row of the kernel at once."""
    c, to, apart = p.common, p.panel, p.panel.rows
    start = c.x_base + item.n * c.x_n + item.g * c.x_g
    start = start + item.origin(c.axes - 1) * axis_words(c, c.axes - 1).x_stride
    rows = k.select(c.axes > 1, item.extent(k.maximum(c.axes - 2, 0)), 1)
    with k.loop(0, to.row_sets) as set_of_rows:
        line = set_of_rows.index * apart.lines  # the first tap's, of the first row
        with k.loop(1, c.axes, carry=[line, start]) as back:
            q, offset = back.values
            axis = c.axes - 1 - back.index
            record = axis_words(c, axis)
            position = item.origin(axis) + k.word(c.positions, record.positions + q % record.lines)
            back.next(q // record.lines, offset + position * record.x_stride)
        k.call(to.unzip, Unzip(
            x + back.results[1], c.x_c, apart.step, apart.dilation,
            panel + k.word(to.line_places, line), to.entry_bytes, apart.row_bytes, apart.row_tap_bytes, apart.tap_bytes,
            to.channels, rows, apart.taps, item.extent(c.axes - 1), c.zero_point,
        ))  # fmt: skip


def _copy_lines(k: Module, p: PatchWords, item: Item, x: Buffer, panel: Buffer, vector_bytes: int, *, planes: bool
                ) -> None:  # fmt: skip
    """Copy the inputs of a box line by line, with zeros for those that are not there."""
    c, to = p.common, p.panel
    pixel_step = c.step * axis_words(c, c.axes - 1).x_stride
    words_of_4 = vector("i32", vector_bytes // 4)

    def clear(target: Buffer, low: Value, high: Value) -> None:
        count = k.maximum(high - low, 0)
        outer, inner = (to.channels, count) if planes else (count, to.channels)
        step = to.entry_bytes if planes else to.pixel_bytes
        with k.loop(0, outer) as at:
            place = target + (low * to.pixel_bytes + at.index * step)
            zero_words(k, place, (inner * p.products.word_bytes) >> 2, words_of_4)

    def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
        place = k.word(to.line_places, line) + k.word(to.run_places, first_line)
        target = panel + place
        clear(target, k.constant(INT, 0), head)
        clear(target, end, count)
        with k.when(end > head):
            k.call(to.move_in, MoveIn(
                source, pixel_step, c.x_c, target + head * to.pixel_bytes, to.pixel_bytes,
                to.entry_bytes, end - head, to.channels, c.zero_point,
            ))  # fmt: skip

    fill(k, c, item, x, k.constant(INT, 0), put)


# -- sizes and words -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PatchPanel:
    """How the inputs of a box lie in its panel.

    Parameters
    ----------
    planes : bool
        Whether its order is [entry][pixel], not [pixel][entry].
    box : tuple of int
        Outputs.
    held : tuple of Lines
        Lines of the input that they take, along every axis.
    entries : int
        Of a pixel.
    entry_bytes, pixel_bytes : int
        From one to the next.
    size : int
        Bytes of the whole.
    """

    planes: bool
    box: tuple[int, ...]
    held: tuple[Lines, ...]
    entries: int
    entry_bytes: int
    pixel_bytes: int
    size: int


def panel_of(s: Situation, sweep: Sweep, box: tuple[int, ...], *, planes: bool) -> PatchPanel:
    """The panel of a box.  Its rows are an odd number of cache lines: no two share all their sets of a cache."""
    size, pixels = arith_of(s).bytes, math.prod(box)
    entries = s.problem.c // s.problem.groups * math.prod(axis.taps for axis in sweep)
    row = (-(-(pixels if planes else entries) * size // 64) | 1) * 64
    steps, rows = ((row, size), entries) if planes else ((size, row), pixels)
    held = tuple(lines(axis, b) for axis, b in zip(sweep, box, strict=True))
    return PatchPanel(planes, box, held, entries, *steps, rows * row)


def _is_run(p: Problem, panel: PatchPanel, last: Axis) -> bool:
    """Whether a window's inputs along the last axis, channels of all taps, follow each other and are there."""
    return not panel.planes and p.groups == last.dilation == 1 and is_inside(p, last)


def vector_share(target: Target) -> float:
    """What a vector takes on its way through caches, as a share of one of 64 bytes; measured with AVX2 and AVX-512."""
    return max(0.5, target.vector_bytes / 64)


def copy_cycles(s: Situation, panel: PatchPanel, sweep: Sweep) -> float:
    """Cycles in which the inputs of a box are copied."""
    p, last, lane = s.problem, sweep[-1], lanes(s.target, arith_of(s))
    calls = math.prod(axis.taps * b for axis, b in zip(sweep[:-1], panel.box[:-1], strict=True))
    channels = p.c // p.groups
    if _is_run(p, panel, last):
        channels *= last.taps
    else:
        calls *= last.taps
    if not panel.planes:
        return calls * (40 + panel.box[-1] * (4 + math.ceil(channels / lane) * 5.0))
    vectors = math.ceil(panel.box[-1] / lane)
    if last.stride in STEPS and last.dilation == 1 and is_inside(p, last):
        return channels * (20 + calls * (6 + vectors * 4.0 * vector_share(s.target)))
    of_pixel = 0.3 * last.stride if last.stride <= MOST_STEP and s.target.has_masks else 1.5  # the move, tap by tap
    return calls * (40 + channels * (4 + vectors * of_pixel * lane))


def panel_words(r: Request, sweep: Sweep, panel: PatchPanel, parts: int) -> tuple[Common, PanelWords, int]:
    """Words of boxes, each cut into parts of its outputs, and of their panels, and how many items there are."""
    p, channels = r.problem, r.problem.c // r.problem.groups
    last, along = sweep[-1], along_in(r, sweep[-1], "p" if panel.planes else "c")
    if _is_run(p, panel, last) and r.x.c == r.x.itemsize and r.x.spatial[-1] == channels * r.x.c:
        channels, along, last = channels * last.taps, "cc", replace(last, taps=1)
        sweep, panel = (*sweep[:-1], last), replace(panel, held=(*panel.held[:-1], lines(last, panel.box[-1])))
    unzips = panel.planes and last.dilation == 1 and last.stride in STEPS and r.x.spatial[-1] == r.x.itemsize
    line_places, run_places = _places(sweep, panel, channels)
    common, items = boxed_words(r, sweep, panel.box, panel.held, parts, panel=header_bytes(len(sweep)))
    return common, PanelWords(
        channels=channels, entries=panel.entries, entry_bytes=panel.entry_bytes, pixel_bytes=panel.pixel_bytes,
        line_places=words(line_places), run_places=words(run_places),
        reach=words([(axis.taps - 1) * axis.dilation for axis in sweep]),
        row_sets=math.prod(h.count for h in panel.held[:-2]) if unzips else 0, rows=_unzip_rows(r, sweep, panel),
        unzip=_unzip_address(r, last) if unzips else None,
        move_in=move_in_address(r, Move(p.x, r.arith.accumulator, along)),
    ), items  # fmt: skip


def _unzip_rows(r: Request, sweep: Sweep, panel: PatchPanel) -> UnzipRows:
    tap = r.problem.c // r.problem.groups * panel.entry_bytes
    found = UnzipRows(1, 1, 0, 0, panel.box[-1] * panel.pixel_bytes, tap, sweep[-1].taps * tap)
    if len(sweep) == 1:
        return found
    axis, stride = sweep[-2], r.x.spatial[-2]
    count = panel.held[-2].count
    return altered(found, lines=count, taps=axis.taps, step=axis.stride * stride, dilation=axis.dilation * stride)


def _unzip_address(r: Request, last: Axis) -> Address[Unzip]:
    """Address of the copy that takes rows of the last axis apart."""
    lane, move = lanes(r.target, r.arith), Move(r.problem.x, r.arith.accumulator, "pp")

    def make(k: Module, name: str) -> None:
        unzip(k, name, move, lane, last.stride, last.taps, f16c=r.target.converts_f16)

    return address_of(r, f"unzip {move} {last.stride} {last.taps}", "unzip", Unzip, make)


def _places(sweep: Sweep, panel: PatchPanel, channels: int) -> tuple[list[int], list[int]]:
    """Bytes at which lines of the outer axes, and lines of the last one, begin in the panel."""
    places: list[tuple[int, int]] = [(0, 0)]  # tap and row, in mixed radix
    for axis, b, held in zip(sweep[:-1], panel.box[:-1], panel.held[:-1], strict=True):
        of_line = {start + row: (t, row) for t, start in enumerate(held.start) for row in range(b)}
        places = [
            (tap * axis.taps + of_line[line][0], row * b + of_line[line][1])
            for tap, row in places for line in range(held.count)
        ]  # fmt: skip
    last, width = sweep[-1], panel.box[-1]
    per_tap = channels * panel.entry_bytes
    outer = [tap * last.taps * per_tap + row * width * panel.pixel_bytes for tap, row in places]
    of_run = {start: t for t, start in enumerate(panel.held[-1].start)}
    runs = [of_run.get(line, 0) * per_tap for line in range(panel.held[-1].count)]
    return outer, runs
