"""Depthwise tiles: a window slides along one axis, so that an input is loaded once for all outputs it feeds.

A tile is ``rows`` outputs along the sliding axis by one vector; an entry of its list is one row of ``taps``
neighbouring taps along that axis: ``rows + taps - 1`` loads for ``rows * taps`` multiply-adds.  Lanes are
channels, each with weights of its own, or pixels of one channel side by side.  It knows neither extents nor
kernel size.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from polyconv.kernels.language import Buffer, Module, Type, Value, vector
from polyconv.kernels.layout import Block, Epilogue, Move, load_in, store_out

__all__ = ["ENTRY", "SETTINGS", "DepthwiseTile", "depthwise_tile"]

ENTRY = ("input", "weights", "position", "first_lane", "end_lane")
"""Words of an entry: offsets in bytes, position along the sliding axis, lanes of pixels that are not padding."""

SETTINGS = (
    "x_channel", "x_step", "x_lane", "w_channel", "y_channel", "y_step", "y_lane", "r_channel", "r_step", "r_lane",
    "unit", "extent", "*bias", "*scale", "*constants",
)  # fmt: skip
"""What all calls of a step share: byte strides (``channel``: from one vector to the next where lanes are channels),
input positions from one step to the next, input extent."""

# settings, input, entries, how many have the first and the second number of taps, weights, result, residual, channel,
# channels, lanes that count, input position of the first step
_SIGNATURE = (
    "buffer", "buffer", "buffer", "int", "int", "buffer", "buffer", "buffer", "int", "int", "int", "int",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DepthwiseTile:
    """A kind of tile.

    Parameters
    ----------
    source, target : str
        dtypes of input and result.
    element : str
        LLVM accumulator.
    epilogue : Epilogue
    lanes : str
        ``c`` for channels, ``p`` for pixels.
    reads, writes : str
        How the lanes lie in input and result (with residual): ``1`` together, ``2`` every second element, ``any``.
    stride : int
        Steps from one output to the next.
    taps : (int, int)
        Taps of an entry, in the first and in the second part of the list.
    """

    source: str
    target: str
    element: str
    epilogue: Epilogue
    lanes: str
    reads: str
    writes: str
    stride: int
    taps: tuple[int, int]

    def block(self, k: Module, kind: Type, f16c: bool, x_lane: Value, y_lane: Value) -> tuple[Block, Block]:
        """Ways in and out."""
        inward = f"{'2' if self.reads == '2' else self.lanes}{self.lanes}"
        outward = f"{self.lanes}{'2' if self.writes == '2' else self.lanes}"
        return (
            Block(k, Move(self.source, self.element, inward), kind, f16c, x_lane if self.reads == "any" else None),
            Block(k, Move(self.element, self.target, outward, self.epilogue), kind, f16c, None,
                  y_lane if self.writes == "any" else None),
        )  # fmt: skip


def depthwise_tile(k: Module, name: str, spec: DepthwiseTile, lanes: int, rows: int, *, f16c: bool, edge: bool,
                   masked: bool) -> None:  # fmt: skip
    """Add the tile of ``rows`` outputs.

    At an ``edge`` positions outside the input are left out; ``masked`` tiles have lanes that do not count: channels
    beyond the last, or pixels.  The loop over channels is inside, since a call costs as much as some taps.
    """
    kind = vector(spec.element, lanes)
    channels = spec.lanes == "c"
    with k.function(name, *_SIGNATURE) as given:
        settings, x, entries, first, second, weights, y, residual, channel, count, used, position = given
        s = {n: k.word(settings, i) for i, n in enumerate(SETTINGS[:12])}
        bias, scale, constants = (k.buffer(settings, 12 + 2 * i) for i in range(3))
        zero = k.constant(count.type, 0)
        inward, outward = spec.block(k, kind, f16c, s["x_lane"], s["y_lane"])
        load = load_in(inward, zero)
        out_mask = k.mask(used, lanes) if masked else None

        def row_of_taps(place: Buffer, taps: int, x: Buffer, w: Buffer, totals: list[Value]) -> list[Value]:
            """One entry: every position is loaded once and multiplied for all outputs that it feeds."""
            mask = out_mask
            if masked and not channels:
                mask = k.span(k.word(place, 3), k.word(place, 4), lanes)
            here, at, w = x + k.word(place), position + k.word(place, 2), w + k.word(place, 1)
            read, size = (k.load, kind.bytes) if channels else (k.broadcast, kind.element_bytes)
            of_tap = [read(kind, w + t * size) for t in range(taps)]
            for p in range((rows - 1) * spec.stride + taps):
                fed = [r for r in range(rows) if 0 <= p - r * spec.stride < taps]
                following = [totals[r] for r in fed]
                with nullcontext() if not edge else k.choice(at.below(s["extent"]), following) as inside:
                    value = load(here, mask)
                    following = [k.fma(value, of_tap[p - r * spec.stride], totals[r]) for r in fed]
                    if inside is not None:
                        inside.next(*following)
                for r, total in zip(fed, following if inside is None else inside.results, strict=True):
                    totals[r] = total
                here, at = here + s["x_step"], at + s["unit"]
            return totals

        with k.loop(0, count, lanes if channels else 1, carry=[x, weights, y, residual]) as each:
            x, w, y, other = each.values
            totals: list[Value] = [k.constant(kind, 0)] * rows
            here = k.rebase(x)
            for taps, start, end in ((spec.taps[0], zero, first), (spec.taps[1], first, first + second)):
                if taps:
                    with k.loop(start, end, carry=totals) as entry:
                        place = entries + entry.index * (8 * len(ENTRY))
                        entry.next(*row_of_taps(place, taps, here, w, list(entry.values)))
                    totals = entry.results
            each.next(x + s["x_channel"], w + s["w_channel"], y + s["y_channel"], other + s["r_channel"])
            for total in totals:
                store = store_out(outward, bias, scale, other, s["r_lane"], zero, constants)
                store(total, y, zero, channel + each.index, out_mask)
                y, other = y + s["y_step"], other + s["r_step"]
