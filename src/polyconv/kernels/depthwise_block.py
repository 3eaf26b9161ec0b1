"""Depthwise blocks: rows by columns of outputs by one vector of channels, whose window stays in registers.

An input is loaded once for all outputs of the block that it feeds, along both axes: where pixels lie a multiple of
1 KiB apart, lines of a window push each other out of a cache, and every load that is left out counts.  It knows
neither extents nor pads nor what lies outside the two axes, which is a list of entries.
"""

from __future__ import annotations

from polyconv.dataclass import dataclass
from polyconv.kernels.depthwise_tile import Tile, entry_at, store_sums
from polyconv.kernels.epilogue import EpilogueTables
from polyconv.kernels.language import Buffer, Mask, Module, Type, Value, vector
from polyconv.kernels.record import Record, Word, at_once
from polyconv.kernels.signature import Int, Signature

__all__ = ["BlockOfOutputs", "BlockSettings", "DepthwiseBlock", "depthwise_block"]


class BlockSettings(Record):
    """What all calls of a step share: byte strides, input positions from one tap to the next (``unit``), extents.

    ``x_row`` and ``x_column`` lead from one tap to the next, ``channel`` from one vector to the next, ``ahead`` to what
    is asked for.
    """

    x_row: Word
    x_column: Word
    y_row: Word
    y_column: Word
    r_row: Word
    r_column: Word
    x_channel: Word
    w_channel: Word
    y_channel: Word
    r_channel: Word
    w_tap: Word
    x_pixel: Word
    unit_row: Word
    unit_column: Word
    height: Word
    width: Word
    x_ahead: Word
    y_ahead: Word
    tables: EpilogueTables


class BlockOfOutputs(Signature):
    """A block for ``channels`` from one on; so many lanes are ``used``.

    ``row`` and ``column`` are the input position of its first row and column.
    """

    settings: BlockSettings
    x: Buffer
    entries: Buffer
    weights: Buffer
    y: Buffer
    residual: Buffer
    channel: Int
    channels: Int
    used: Int
    row: Int
    column: Int


@dataclass(frozen=True, slots=True)
class DepthwiseBlock(Tile):
    """A kind of block, beside what all say.

    Parameters
    ----------
    taps, stride : (int, int)
        Along rows and columns.
    ahead : bool
        Ask for the memory of a block further on.
    """

    taps: tuple[int, int]
    stride: tuple[int, int]
    ahead: bool


def depthwise_block(k: Module, name: str, spec: DepthwiseBlock, lanes: int, rows: int, columns: int, *,
                    guarded: bool) -> None:  # fmt: skip
    """Add the block of ``rows`` by ``columns`` outputs.

    Rows outside the input are left out.  A ``guarded`` block also reads columns outside as zeros, where every output
    meets the input, and masks its lanes.
    """
    kind = vector(spec.element, lanes)
    memory = spec.in_memory(lanes)
    (tap_rows, tap_columns), (down, along) = spec.taps, spec.stride
    with k.function(name, BlockOfOutputs) as given:
        s, entries, row, column = at_once(given.settings), given.entries, given.row, given.column
        number_of_entries = k.word(entries)
        mask = k.mask(given.used, lanes) if guarded else None
        wide = (columns - 1) * along + tap_columns
        places: list[tuple[Value, Mask | None]] = [(s.x_column * c, mask) for c in range(wide)]
        if mask is not None:
            for c in {*range(tap_columns - 1), *range(wide - tap_columns + 1, wide)}:
                places[c] = _guarded(k, mask, column + s.unit_column * c, column, s.width, s.x_pixel)
        with k.loop(0, given.channels, lanes, carry=[given.x, given.weights, given.y, given.residual]) as each:
            x, w, y, other = each.values
            with k.loop(0, number_of_entries, carry=[k.constant(kind, 0)] * (rows * columns)) as entry:
                totals = list(entry.values)
                taps = entry_at(k, entries, entry.index)
                line, of_entry = k.rebase(x + taps.input), w + taps.weights
                of_tap = [k.load(kind, of_entry + s.w_tap * t) for t in range(tap_rows * tap_columns)]
                for i in range((rows - 1) * down + tap_rows):
                    fed = [a for a in range(rows) if 0 <= i - a * down < tap_rows]
                    held = [totals[a * columns + b] for a in fed for b in range(columns)]
                    # always so without a guard, where the compiler would else load more ahead than registers hold
                    with k.choice((row + s.unit_row * i).below(s.height), tuple(held)) as there:
                        if spec.ahead and i >= max(0, tap_rows - down):
                            beyond = k.rebase(line + s.x_ahead)
                            for c in range(columns * along):
                                k.prefetch(beyond + s.x_column * c)
                        for c, (offset, active) in enumerate(places):
                            place = line + offset if c or guarded else line
                            value = k.load_first(memory, place, active) if active else k.load(memory, place)
                            value = spec.as_factor(k, value)
                            for at, a in enumerate(fed):
                                for b in range(columns):
                                    if 0 <= c - b * along < tap_columns:
                                        tap = (i - a * down) * tap_columns + c - b * along
                                        held[at * columns + b] = k.fma(value, of_tap[tap], held[at * columns + b])
                        there.next(*held)
                    sums = iter(there.results)
                    for a in fed:
                        totals[a * columns : (a + 1) * columns] = [next(sums) for _ in range(columns)]
                    line = k.rebase(line + s.x_row)
                entry.next(*totals)
            each.next(x + s.x_channel, w + s.w_channel, y + s.y_channel, other + s.r_channel)
            out = spec.way_out(k, "cc", lanes)
            for a in range(rows):
                to, beside = y, other
                for b in range(columns):
                    if spec.ahead:
                        k.prefetch(to + s.y_ahead, writing=True)
                    total, channel = entry.results[a * columns + b], given.channel + each.index
                    store_sums(out, s.tables, total, to, beside, channel, mask)
                    to, beside = to + s.y_column, beside + s.r_column
                y, other = y + s.y_row, other + s.r_row


def _guarded(k: Module, mask: Mask, position: Value, column: Value, width: Value, step: Value) -> tuple[Value, Mask]:
    """Offset and lanes of a column that may lie outside: none of them then, at a place that is inside."""
    inside = position.below(width)
    nearest = k.maximum(k.minimum(position, width - 1), 0)
    whole = Type(f"i{mask.bits.type.lanes}")
    bits = k.select(inside, k.cast("bitcast", mask.bits, whole), k.constant(whole, 0))
    return (nearest - column) * step, Mask(k.cast("bitcast", bits, mask.bits.type), k.select(inside, mask.count, 0))
