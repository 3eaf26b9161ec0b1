"""The inputs of a box whose windows neither overlap nor meet padding, copied to a panel in which they are a matrix.

Pixels follow each other across the rows of the box: [entry][pixel] where pixels lie together in the input, else
[pixel][entry]; an entry is a channel of a tap.  Nothing is transposed on the way in.
"""

from __future__ import annotations

import itertools
import math

from polyconv.algorithms.product.axes import is_inside
from polyconv.dataclass import dataclass
from polyconv.kernels.isa import lanes
from polyconv.kernels.language import Buffer, Module
from polyconv.kernels.layout import Move, MoveIn
from polyconv.kernels.record import Function, Memory, Record, Word, words
from polyconv.lowering.moves import MOST_STEP, along_in, move_in_address
from polyconv.lowering.panel import Common, Item, axis_words, box_rows, row_source
from polyconv.lowering.program import Request
from polyconv.lowering.situation import Situation, arith_of
from polyconv.lowering.sweep import Axis, Sweep

__all__ = ["Panel", "PanelWords", "copy_cycles", "copy_windows", "is_apart", "panel_of", "panel_words", "vector_share"]


class PanelWords(Record):
    """Words of a box's panel: runs of entries, where each lies in a window and in the panel, and how panels lie."""

    runs: Word
    places: Memory
    run_entries: Word
    entry_bytes: Word
    pixel_bytes: Word
    move_in: Function[MoveIn]


def copy_windows(k: Module, c: Common, p: PanelWords, item: Item, x: Buffer, panel: Buffer) -> None:
    """Copy the inputs of a box, a row of it and a run of entries at a time."""
    pixel, width = c.step * axis_words(c, c.axes - 1).x_stride, item.extent(c.axes - 1)
    with k.loop(0, box_rows(k, c, item)) as row:
        source, target = x + row_source(k, c, item, row.index), panel + row.index * width * p.pixel_bytes
        with k.loop(0, p.runs) as run:
            k.call(p.move_in, MoveIn(
                source + k.word(p.places, run.index * 2), pixel, c.x_c, target + k.word(p.places, run.index * 2 + 1),
                p.pixel_bytes, p.entry_bytes, width, p.run_entries, c.zero_point,
            ))  # fmt: skip


# -- sizes and words -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Panel:
    """How the inputs of a box lie in its panel.

    Parameters
    ----------
    planes : bool
        Whether its order is [entry][pixel], not [pixel][entry].
    box : tuple of int
        Outputs.
    entries : int
        Of a pixel.
    entry_bytes, pixel_bytes : int
        From one to the next.
    size : int
        Bytes of the whole.
    """

    planes: bool
    box: tuple[int, ...]
    entries: int
    entry_bytes: int
    pixel_bytes: int
    size: int


def is_apart(axis: Axis) -> bool:
    """Whether no input along an axis meets two taps, and no tap the padding."""
    return is_inside(axis) and (axis.taps - 1) * axis.dilation < axis.stride


def panel_of(s: Situation, sweep: Sweep, box: tuple[int, ...]) -> Panel:
    """The panel of a box.  Its rows are an odd number of cache lines: no two share all their sets of a cache."""
    size, pixels, planes = arith_of(s).bytes, math.prod(box), s.problem.layout == "NCHW"
    entries = s.problem.c * math.prod(axis.taps for axis in sweep)
    row = (-(-(pixels if planes else entries) * size // 64) | 1) * 64
    steps, rows = ((row, size), entries) if planes else ((size, row), pixels)
    return Panel(planes, box, entries, *steps, rows * row)


_ZEN5_SENDS = 61
"""Bytes a cycle that the second-level cache gives of a Zen 5, where the way of short vectors was measured first."""


def vector_share(s: Situation) -> float:
    """What a vector takes on its way through caches, as a share of one of 64 bytes.

    Measured with AVX2 and AVX-512; short vectors wait for a second-level cache that gives less: half on a Zen 3.
    """
    if s.target.vector_bytes >= 64:
        return 1.0
    return max(0.5, s.target.vector_bytes / 64) * max(1.0, _ZEN5_SENDS / s.profile.numbers["l2.read"])


def copy_cycles(s: Situation, panel: Panel, sweep: Sweep) -> float:
    """Cycles in which the inputs of a box are copied."""
    last, lane = sweep[-1], lanes(s.target, arith_of(s))
    runs = math.prod(axis.taps * b for axis, b in zip(sweep[:-1], panel.box[:-1], strict=True))
    if not panel.planes:
        calls, channels = (runs, last.taps * s.problem.c) if last.dilation == 1 else (runs * last.taps, s.problem.c)
        return calls * (40 + panel.box[-1] * (4 + math.ceil(channels / lane) * 5.0))
    of_pixel = 0.3 * last.stride if last.stride <= MOST_STEP else 1.5  # a stride is taken from whole vectors, or not
    return runs * last.taps * (40 + s.problem.c * (4 + math.ceil(panel.box[-1] / lane) * of_pixel * lane))


def panel_words(r: Request, sweep: Sweep, panel: Panel) -> PanelWords:
    """Words of the panels of boxes.  The taps of a row of a window are a run if their channels follow each other."""
    last, channels = sweep[-1], r.problem.c
    together = not panel.planes and last.dilation == 1 and r.x.spatial[-1] == channels * r.x.c
    along = "cc" if together and r.x.c == r.x.itemsize else along_in(r, last, "p" if panel.planes else "c")
    taps = [*(range(axis.taps) for axis in sweep[:-1]), range(1 if together else last.taps)]
    steps = [axis.dilation * stride for axis, stride in zip(sweep, r.x.spatial, strict=True)]
    windows = [sum(t * step for t, step in zip(tap, steps, strict=True)) for tap in itertools.product(*taps)]
    run = channels * last.taps if together else channels
    return PanelWords(
        runs=len(windows), places=words([at for i, x in enumerate(windows) for at in (x, i * run * panel.entry_bytes)]),
        run_entries=run, entry_bytes=panel.entry_bytes, pixel_bytes=panel.pixel_bytes,
        move_in=move_in_address(r, Move(r.problem.x, r.arith.accumulator, along)),
    )  # fmt: skip
