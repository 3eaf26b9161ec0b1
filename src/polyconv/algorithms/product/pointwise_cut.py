"""How pointwise convolutions are cut, into boxes of outputs and sets of output channels, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from polyconv.algorithms.product.axes import folded_as_packed
from polyconv.algorithms.product.sets import (
    OutputSets,
    colliding_cycles,
    cut_outputs,
    late_planes,
    leaving_cycles,
    most_pixels,
    pixel_cycles,
    square_cycles,
)
from polyconv.dataclass import dataclass
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.isa import channel_tile, lanes, pixel_tiles, square_tile
from polyconv.lowering.boxes import boxes, near_equal_sizes
from polyconv.lowering.situation import Situation, arith_of, image_bytes
from polyconv.lowering.sweep import Axis, Sweep, box_count, terms_of
from polyconv.lowering.tiles import is_fusible, tile_cycles
from polyconv.lowering.traffic import (
    apart_cycles,
    crowding_cycles,
    far_cycles,
    is_slow_beyond,
    planes_collide,
    waiting_cycles,
)
from polyconv.problem.problem import Problem

__all__ = [
    "Cut", "beside_bytes", "cost_of", "cut_of", "cuts_of", "is_copied", "is_far", "is_listed",
    "is_readable", "panel_bytes",
]  # fmt: skip

_SLOT_BYTES = 48 << 10
"""Most bytes of sums on their way through a move; with the header below the workspace that is always there."""
_MOST_PIXELS = 512
"""Outputs of a box."""
_STREAMED = 22 / 61
"""Of the bytes a cycle of a second-level cache, those of weights, for which short rows of strided pixels wait."""
_LINES = 30 / 24
"""By the bytes a cycle of a last cache, those of input and result, beyond the second-level one, that come and go group
by group where channels lie together."""
_ROW = 65.0
"""Cycles in which a row begins, beside others of its box, where lanes are pixels.  Measured on Zen 5 with groups of 10
outputs and rows of 6 to 32 pixels: 60 to 95."""
_LATE = 0.45
"""Cycles by which steps of long sums over planes are late.  Measured on Zen 5 with AVX2: 1 to 12 % of their time."""
_PANEL_TILES = 8
"""Tiles of an item that copies the pixels of each: its beginning takes as long as one of few entries."""
_PANEL_SHARE = 1 / 2
"""Of a second-level cache, for the pixels of a tile."""
_COPIED, _TURN = 5.0, 40.0
"""Cycles in which pixels of an entry are copied, beside their vectors; in which a tile is found for every set."""
_SOON = 0.3
"""Of the bytes of a second-level cache, those of an image from which on inputs are asked for early where the last one
is slow."""
_FAR_TILES = 6
"""Tiles of a box that asks early, where the last cache is slow.  Measured on Emerald Rapids: 0-10 % off boxes of 10."""
_LISTED_LATE, _LIST_LOADS = 0.25, 6
"""How much of what comes from memory is not there when a list has asked for it; loads of a step for that."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How sweeps that read the same pixels are cut.

    Parameters
    ----------
    axes : Sweep
        The first sweep, folded.
    box : tuple of int
        Outputs of an item.
    outputs : OutputSets
        They are there for every sweep.
    times, phases : int
        All sweeps are ``times`` as many as there are ``phases``, whose results follow each other along the last axis
        and leave together.
    """

    axes: Sweep
    box: tuple[int, ...]
    outputs: OutputSets
    times: int
    phases: int

    @property
    def last(self) -> Axis:
        """The last axis as results that leave together lie along it."""
        return replace(self.axes[-1], out_step=self.axes[-1].out_step // self.phases)


def is_listed(sweep: Sweep) -> bool:
    """Whether a list says where the entries of a window lie."""
    return any(axis.taps > 1 for axis in sweep)


def cuts_of(s: Situation, alike: Sequence[Sweep]) -> tuple[Cut, ...]:
    """How packed tensors are cut: for all outputs, or for whole vectors of them and for the rest."""
    p, sweep, lane, outputs = s.problem, alike[0], lanes(s.target, arith_of(s)), s.problem.m // s.problem.groups
    axes = folded_as_packed(sweep)
    phases = _phases(alike) if p.layout == "NCHW" else 1
    kinds = [("channel", phases if _slot_pixels(s, cut_outputs(s, "channel"), phases) else 1)]
    if (p.layout == "NCHW" or p.c == 1) and axes[-1].stride == 1 and not is_listed(sweep):
        kinds.append(("pixel", 1))
    if is_copied(s, sweep):
        kinds.append(("panel", 1))
    if p.layout == "NHWC" and not is_listed(sweep) and kinds[-1][0] == "channel":
        kinds.append(("square", 1))
    if not is_readable(s):
        kinds = [("panel", 1)]
    ways: list[tuple[Cut, ...]] = [(cut_of(s, axes, len(alike), kind, phases),) for kind, phases in kinds]
    rest = outputs % lane
    # inputs that are near are soon read twice.  Measured on Zen 5: 5-17 % off for 1 to 6 outputs beside a vector, and
    # from 16 MB on as slow or slower
    near = (p.n or 0) * image_bytes(p)[0] <= s.cache("l3", 1 / 4)
    if ("square", 1) in kinds and near and 0 < rest < outputs and rest <= square_tile(s.target):
        parts = (("channel", (0, outputs - rest)), ("square", (outputs - rest, rest)))
        ways.append(tuple(cut_of(s, axes, len(alike), kind, 1, part) for kind, part in parts))
    return min(ways, key=lambda cuts: s.price(cuts, sum(sum(cost_of(s, cut)) for cut in cuts)))


def is_readable(s: Situation) -> bool:
    """Whether tiles can read inputs as they are: of the type of the sums."""
    return LLVM_NAMES[s.problem.x] == arith_of(s).accumulator


def is_copied(s: Situation, sweep: Sweep) -> bool:
    """Whether tiles may have their pixels copied, and so converted: of planes, in vectors shorter than a cache line.

    Of those a tile reads a line or two of every plane, few of which a first-level cache holds at a time.  Not measured
    with longer ones.
    """
    p = s.problem
    if p.layout != "NCHW" or s.target.vector_bytes >= s.profile.numbers["line"] or is_listed(sweep):
        return False
    panel, beside = panel_bytes(s, cut_outputs(s, "panel"), p.c // p.groups), beside_bytes(p)
    return panel + beside <= s.budget(s.cache("l2", _PANEL_SHARE) + beside)


def beside_bytes(p: Problem) -> int:
    """Bytes that a thread needs beside pixels that are copied: the header, and the sums of a set for a row of a box."""
    return 64 * (p.rank + 2) + _SLOT_BYTES + 256


def panel_bytes(s: Situation, outputs: OutputSets, entries: int) -> int:
    """Bytes of the pixels of a tile, all their entries, where tiles have them copied; else 0."""
    if outputs.kind != "panel":
        return 0
    return entries * outputs.width(s, outputs.most) * s.target.vector_bytes


def _slot_pixels(s: Situation, outputs: OutputSets, phases: int) -> int:
    """Whole vectors of pixels whose sums, of all phases of a set of outputs, have room on their way through a move."""
    arith = arith_of(s)
    lane = lanes(s.target, arith)
    return _SLOT_BYTES // (arith.bytes * outputs.tall(lane) * phases) // lane * lane


def _phases(alike: Sequence[Sweep]) -> int:
    """How many sweeps at a time have results that follow each other along the last axis, if all of them are there."""
    step = alike[0][-1].out_step
    places = [tuple(axis.first_out for axis in sweep) for sweep in alike]
    if step == len(alike) and all(axis.out == 1 for axis in alike[0]):  # all there are, in their order
        return step
    groups = [places[first : first + step] for first in range(0, len(alike), step)]
    together = all(group == [(*group[0][:-1], phase) for phase in range(step)] for group in groups)
    return step if together else 1


def cut_of(s: Situation, axes: Sweep, sweep_count: int, kind: str, phases: int, part: tuple[int, int] | None = None
         ) -> Cut:  # fmt: skip
    """Sizes for sweeps whose axes are folded, and for all outputs or a part: the first, how many.

    An item's input is read once for every set of outputs, from a second-level cache where lanes are channels, else from
    a first-level cache if it fits.
    """
    p, arith = s.problem, arith_of(s)
    lane, outputs = lanes(s.target, arith), cut_outputs(s, kind, part)
    apart = p.c // p.groups * math.prod(i or 0 for i in p.i) // max(1, math.prod(o or 0 for o in p.out))
    read = max(p.c // p.groups, min(terms_of(p, axes), apart)) * arith.bytes  # for a pixel of many
    tall = outputs.tall(lane)
    if outputs.pixels:  # a whole number of the tiles that most outputs take
        least = lane if kind == "square" else lane * pixel_tiles(s.target, arith)[tall]
        wanted = (_far_box(s, least * read) if is_far(s, axes) else s.cache("l1", 2 / 3)) // read // least * least
    else:
        least, wanted = channel_tile(s.target, arith, outputs.vectors), s.cache("l2", 1 / 4) // read
    most = min(max(least, wanted), _MOST_PIXELS, _slot_pixels(s, outputs, phases))
    if kind == "panel":
        most = _PANEL_TILES * lane * outputs.width(s, outputs.most)
    extents = [axis.out for axis in axes]
    if kind == "channel" and extents[-1] > most:  # no rest that starts tiles for a few pixels
        extents[-1] = -(-extents[-1] // -(-extents[-1] // most))
    box = boxes((*extents[:-1], min(extents[-1], most)), math.prod, most)
    return Cut(axes, box, outputs, sweep_count // phases, phases)


def _far_box(s: Situation, tile_bytes: int) -> int:
    """Bytes of the inputs of a box whose last sets ask for those of the next one; nobody asks for the first box's."""
    most = s.cache("l2", 1 / 4)
    return min(most, _FAR_TILES * tile_bytes) if is_slow_beyond(s.profile) else most


def is_far(s: Situation, axes: Sweep) -> bool:
    """Whether only the third cache or memory holds the input, of images that the second does not.

    Items then ask for what the next one reads, and are as large as the second cache likes.  Measured on Zen 5: 5-30 %
    off.  Where the third cache is slow it pays to ask sooner.  Measured on Emerald Rapids: 0-16 % off.
    """
    p = s.problem
    image, _ = image_bytes(p)
    one = len(axes) == axes[0].stride == axes[0].taps == p.groups == 1 and p.m > 0
    whole = math.prod(axis.inp for axis in axes) * p.c * p.x_dtype.itemsize * (p.n or 0)
    if is_slow_beyond(s.profile):
        return one and image > s.cache("l2", _SOON)
    return one and image > s.cache("l2", 1) and whole > s.cache("l2", 3)


# -- cost ----------------------------------------------------------------------------------------------


def cost_of(s: Situation, cut: Cut) -> tuple[float, float]:
    """Cycles of products, multiply-adds or the loads of short tiles, and of the ways in and out."""
    p = s.problem
    rows = math.prod(axis.out for axis in cut.axes[:-1]) * -(-cut.axes[-1].out // cut.box[-1])
    products = moves = 0.0
    for outputs, times in cut.outputs.sizes.items():
        cycles, leaving = _ROW_COST[cut.outputs.kind](s, cut, outputs)
        products, moves = products + times * cycles, moves + times * leaving
    if cut.outputs.kind == "panel":
        moves += sum(each * terms_of(p, cut.axes) * (_COPIED + 2 * n) for n, each in _tiles_of_row(s, cut))
    batch, far = (p.n or 0) * p.groups, 0.0
    if not is_far(s, cut.axes):
        if p.layout == "NHWC":
            far = far_cycles(s, math.prod(axis.out for axis in cut.axes) * terms_of(p, cut.axes) * arith_of(s).bytes)
        else:
            far = waiting_cycles(s, image_bytes(p)[0], apart=True)
        far *= _LISTED_LATE if is_listed(cut.axes) else 1.0
    rows *= cut.times * cut.phases
    moves = (moves * rows + 250.0 * box_count(cut.axes, cut.box) + far) * batch
    if p.layout == "NHWC" and p.groups > 1:  # of every pixel a line or two at a time
        moves += (p.n or 0) * max(0, sum(image_bytes(p)) - s.cache("l2", 1)) / s.profile.stream("l3", _LINES)
    return products * rows * batch, moves


def _square_row(s: Situation, cut: Cut, outputs: int) -> tuple[float, float]:
    """Cycles of products and of the way out for a set of outputs and a row of a box, by squares."""
    lane, out = lanes(s.target, arith_of(s)), cut.axes[-1].out
    vectors = math.ceil(out / lane) / -(-out // cut.box[-1])  # boxes but the last of a row hold whole ones
    channels = -(-terms_of(s.problem, cut.axes) // lane) * lane
    each = square_cycles(outputs) * s.rates(arith_of(s)).slower
    return vectors * (each * channels + 15), vectors * (4.0 if s.problem.m == 1 else lane)


def _pixel_row(s: Situation, cut: Cut, outputs: int) -> tuple[float, float]:
    """The same where pixels lie together."""
    p, arith, out = s.problem, arith_of(s), cut.axes[-1].out
    vectors = int(-(-(out / -(-out // cut.box[-1])) // lanes(s.target, arith)))
    plane = math.prod(i or 0 for i in p.i) * arith.bytes
    leaving = vectors * outputs * (leaving_cycles(p) + apart_cycles(s, cut.axes[-1]))
    leaving += _ROW * (len(cut.axes) > 1) if is_fusible(p) and cut.axes[-1].out_step == 1 else 300.0  # a row is moved
    return pixel_cycles(s, arith, outputs, terms_of(p, cut.axes), vectors, plane), leaving


def _tiles_of_row(s: Situation, cut: Cut) -> list[tuple[int, int]]:
    """Vectors of the tiles of a row of a box that have their pixels copied, and how many such tiles there are."""
    out, most = cut.axes[-1].out, cut.outputs.width(s, cut.outputs.most)
    vectors = -(-(out / -(-out // cut.box[-1])) // lanes(s.target, arith_of(s)))
    return list(near_equal_sizes(int(vectors), most))


def _panel_row(s: Situation, cut: Cut, outputs: int) -> tuple[float, float]:
    """The same where pixels of a tile are copied to lie together."""
    p, rates, entries = s.problem, s.rates(arith_of(s)), terms_of(s.problem, cut.axes)
    products = leaving = 0.0
    for n, each in _tiles_of_row(s, cut):
        products += each * (tile_cycles(rates, outputs, n) * entries + _TURN)
        leaving += each * n * outputs * (leaving_cycles(p) + apart_cycles(s, cut.axes[-1]))
        leaving += each * outputs * crowding_cycles(s, p.m // p.groups)
    return products, leaving


def _channel_row(s: Situation, cut: Cut, outputs: int) -> tuple[float, float]:
    """The same where lanes are output channels."""
    p, arith, last, listed = s.problem, arith_of(s), cut.axes[-1], is_listed(cut.axes)
    rates, lane, entries = s.rates(arith), lanes(s.target, arith), terms_of(s.problem, cut.axes)
    used, width = -(-outputs // lane), last.out / -(-last.out // cut.box[-1])
    pixel_bytes = p.c * arith.bytes * last.stride if p.layout == "NHWC" else arith.bytes
    across = p.layout == "NCHW" and p.m > 1
    # one vector of results a pixel: loads are what tiles wait for, and those of pixels far apart are slow
    apart = _apart(s, cut, entries) if p.layout == "NCHW" else 1.15 if cut.outputs.vectors == 1 else 1.0
    if listed:
        apart = 1.03 if p.layout == "NCHW" else 1.0
    beside = _LIST_LOADS if listed else 0
    streams = used * s.target.vector_bytes / s.profile.stream("l2", _STREAMED) + (1.5 if across and not listed else 0.0)
    if last.stride == 1 or entries * used * s.target.vector_bytes < s.cache("l1", 1 / 3):
        streams = 0.0
    plane = math.prod(i or 0 for i in p.i) * arith.bytes if p.layout == "NCHW" else 0
    streams = max(streams, colliding_cycles(plane, entries, 2))  # a tile's pixels lie in a line of a plane, or in two
    late = late_planes(s, entries, _LATE) if p.layout == "NCHW" else 0.0
    products = 0.0
    for n, each in near_equal_sizes(math.ceil(width), most_pixels(s.target, arith, used, pixel_bytes)):
        cycles = max(tile_cycles(rates, n, used) * apart, streams, (n + used + beside) / rates.loads)
        products += each * ((cycles + late) * entries + 15)
    leaving = leaving_cycles(p)
    if across:
        leaving = (16.0 if planes_collide(p, reading=False) else 8.0) + apart_cycles(s, cut.last)
    if cut.phases > 1 and image_bytes(p)[1] > s.cache("l3", 1 / 4):
        leaving += 12.0  # squares of results, a line or two of many planes
    if cut.phases > 1 and last.out * cut.phases < 3 * lane:
        leaving += 24.0  # and of rows that are as short as these squares
    moved = math.ceil(width / lane) * lane if across and cut.phases == 1 and len(cut.axes) > 1 else width  # squares
    return products, moved * used * leaving


def _apart(s: Situation, cut: Cut, channels: int) -> float:
    """How much longer products take where each channel's pixels lie in lines of their own, a few of each in use."""
    lines_of_row = cut.box[-1] * cut.axes[-1].stride * arith_of(s).bytes / 64 + 0.9
    touched = channels * math.prod(cut.box[:-1]) * lines_of_row * 64
    short = 0.04 if cut.box[-1] < cut.axes[-1].out else 0.0  # no line follows the last of a channel
    return 1.01 + short + min(0.3, max(0.0, 0.6 * (touched - 1.4 * s.cache("l2", 1 / 4)) / s.cache("l2", 1)))


_ROW_COST = {"square": _square_row, "pixel": _pixel_row, "panel": _panel_row, "channel": _channel_row}
