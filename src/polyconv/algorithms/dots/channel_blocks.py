"""Tiles with output channels in their rows and pixels in the lanes: what ``pixels`` and ``patches`` have in common.

A tile walks over runs of blocks of equally many output channels.  It must not know where pixels come from.
"""

from __future__ import annotations

from polyconv.algorithms.dots.situations import adding_cycles, packs_results, refusal, window_outputs
from polyconv.algorithms.form import Form, Refusal
from polyconv.dataclass import dataclass
from polyconv.kernels.dots_pixels import DotPixels, PixelWalk, dot_pixels
from polyconv.kernels.isa import Arithmetic, lanes
from polyconv.kernels.language import Buffer, Module, Value
from polyconv.kernels.record import Memory, Record, Word
from polyconv.kernels.signature import Address
from polyconv.lowering.panel import Common, EpilogueTables, Item
from polyconv.lowering.program import Request, address_of
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Sweep, sweeps

__all__ = [
    "BLOCK_CYCLES", "PANEL_SHARE", "PATCHES", "ROWS", "ChannelRun", "ChannelWords", "RowsForm", "only_sweep",
    "patch_scheme", "rows_of", "stored_cycles", "tile_address", "walked",
]  # fmt: skip

ROWS = {12: 1, 8: 2, 6: 4, 4: 6, 3: 8, 2: 12, 1: 24}
"""Output channels of a tile by its vectors of pixels: sums, pixels and a weight fit 32 registers."""
PATCHES = (4, 2)
"""Vectors of a tile that weaves: words of four bytes or two numbers come from as many, or twice as many."""
_SUMS = 24
"""Sums of a tile."""
PANEL_SHARE = 3 / 16
"""Of a second-level cache, for the inputs of a box: measured on Zen 5, 3 % slower with half or twice as much."""
BLOCK_CYCLES = 8.0
"""Cycles of a block of output channels, beside its products and results.  Measured on Zen 5, as what follows."""
_STORED, _PAIRED, _PACKED = (1.7, 4.0), (0.5, 1.5), (1.0, 2.0)
"""Cycles of what follows a vector of sums, without gaps to close and with them: one by one, rounded to bf16 in pairs,
or packed to bytes."""


def only_sweep(s: Situation, *, adds: bool = False) -> Sweep | Refusal:
    """The only sweep of a problem, of planes whose results follow each other; or why there is none.

    It may have a residual with a scale of its own if that ``adds``.
    """
    p = s.problem
    if (reason := refusal(s)) is not None:
        return reason
    if p.layout != "NCHW":
        return "computes channels-first maps"
    if p.residual and not (adds and p.quantisation is not None and p.quantisation.adds):
        return "adds residuals with scales of their own, to whole planes, only" if adds else "adds no residual"
    found = sweeps(p)
    if len(found) != 1 or any(axis.out_step > 1 or axis.first_out for axis in found[0]):
        return "computes results in the order in which they lie, not by phases of a stride"
    sweep = found[0]
    if not p.c or not all(axis.taps for axis in sweep):
        return "needs inputs that some tap meets"
    return sweep


def stored_cycles(s: Situation, *, gaps: bool = False) -> float:
    """Cycles of what follows a vector of sums, between which there may be gaps."""
    if gaps and not s.target.vbmi2:
        return _STORED[gaps]
    kind = _PACKED if packs_results(s) else _PAIRED if s.problem.y == "bf16" else _STORED
    return kind[gaps] + adding_cycles(s)


def patch_scheme(sweep: Sweep) -> str:
    """The order in which products of a patch are summed, where it is not tap by tap."""
    return "channel by channel" if any(axis.taps > 1 for axis in sweep) else ""


def rows_of(s: Situation, vectors: int) -> int:
    """Most output channels of a tile of so many vectors; sums of windows take registers of their own."""
    beside = window_outputs(s)
    return max(1, _SUMS // vectors - beside) if beside else ROWS[vectors]


@dataclass(frozen=True, slots=True)
class RowsForm(Form):
    """Boxes of outputs, whose tiles have a few vectors of pixels by some output channels.

    Parameters
    ----------
    sweep : Sweep
    kind : Arithmetic
        How words are multiplied.
    box : tuple of int
        Outputs of an item along every axis.
    vectors : int
        Most vectors of pixels of a tile.
    """

    sweep: Sweep
    kind: Arithmetic
    box: tuple[int, ...]
    vectors: int

    @property
    def arithmetic(self) -> str:
        """Bytes by bytes, or pairs of 16 bits."""
        return self.kind.name

    def choices(self) -> dict[str, object]:
        """Sizes of boxes and tiles."""
        return {"box": self.box, "tile": f"{rows_of(self.s, self.vectors)} channels x {self.vectors} vectors of pixels"}


class ChannelRun(Record):
    """Blocks of as many output channels: the first channel, how many blocks, and bytes of weights before them."""

    channel: Word
    blocks: Word
    weights: Word


class ChannelWords(Record):
    """What all runs have: words of a pixel, a group's outputs and bytes of weights, bytes between pixels of results."""

    common: Common
    words: Word
    weights: Memory
    w_group: Word
    outputs: Word
    tables: EpilogueTables
    y_pixel: Word


def walked(p: ChannelWords, item: Item, run: ChannelRun, y: Buffer, residual: Buffer, pixels: Value
           ) -> tuple[Value, Buffer, Buffer, Buffer, Value, Value, Value, Buffer, Buffer, Buffer, Value]:  # fmt: skip
    """What a ``PixelWalk`` of a run is given, for so many pixels; results of a group's first channel are at ``y``."""
    tables, y_channel, channel = p.tables, p.common.y_c, item.g * p.outputs + run.channel
    before = run.channel * y_channel
    return (
        p.words, p.weights + (item.g * p.w_group + run.weights), y + before, residual + before, y_channel, run.blocks,
        pixels, tables.bias + channel * 4, tables.scale + channel * 4, tables.constants, p.y_pixel,
    )  # fmt: skip


def tile_address(r: Request, spec: DotPixels, rows: int, vectors: int) -> Address[PixelWalk]:
    """Address of a tile."""

    def make(k: Module, name: str) -> None:
        dot_pixels(k, name, spec, lanes(r.target, r.arith), rows, vectors)

    return address_of(r, f"{spec} {rows}x{vectors}", "tile", PixelWalk, make)
