"""Pointwise convolution in place: one tap an axis, or windows that meet no padding; any stride, group and layout.

Every output is a product of weights with the channels of one pixel, or with those of a window, by a list of where its
entries lie: nothing is packed.  There are three kinds of tiles, the first also for windows: lanes are output channels,
with words of the input broadcast from wherever they lie; where pixels lie together and fill vectors, lanes are pixels;
and so they are where channels lie together and outputs are few, or few remain beside whole vectors of them, by squares
of pixels and channels that are transposed in registers.  Axes that lie together are one.  Results go from registers to
their place where lanes lie together in it, else through a move; those of the phases of a transposed convolution leave
together.  Outputs that meet only padding are filled by moves alone.
Cost: the products over lane use.  Error: own bound; sums run over the channels in order.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.form import Form, Forms, Refusal
from polyconv.algorithms.panel import Driver, header_bytes
from polyconv.algorithms.product.folding import folded_as_packed, stacked, with_folded
from polyconv.algorithms.product.padding_only import fill_step, padding_apart
from polyconv.algorithms.product.patch_panel import is_inside
from polyconv.algorithms.product.pointwise_driver import driver, pointwise_words
from polyconv.algorithms.product.sets import (
    Early,
    OutputSets,
    cut_outputs,
    leaving_cycles,
    most_pixels,
    packed_weights,
    pixel_cycles,
    product_words,
    square_cycles,
)
from polyconv.algorithms.program import (
    Operand,
    Program,
    Request,
    Situation,
    Step,
    address_of,
    along_out,
    apart_cycles,
    arith_of,
    boxes,
    far_cycles,
    image_bytes,
    is_fusible,
    near_equal_sizes,
    planes_collide,
    program_of,
    thread_parts,
    tile_cycles,
)
from polyconv.algorithms.sweep import Axis, Sweep, box_count, sweeps, taps_of
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.isa import channel_tile, lanes, pixel_tiles, square_tile
from polyconv.kernels.record import filled
from polyconv.problem.problem import Problem

__all__ = ["forms"]

_REPEATED = 0.02
"""Share of an item's work that every part of its outputs does anew: its inputs come from the third cache once more."""
_EARLY_ENTRIES, _MOST_EARLY = 32, 3
"""Tiles of so many entries take as long as a line of results to come from memory; of fewer entries some tiles.
Measured on Zen 5: 2-40 % off."""
_STREAMED_BYTES = 22.0
"""Bytes a cycle of weights that a first-level cache does not hold: short rows of strided pixels wait for them."""
_SLOT_BYTES = 48 << 10
"""Most bytes of sums on their way through a move; with the header below the workspace that is always there."""
_MOST_PIXELS = 512
_LINES_BYTES = 30.0
"""Bytes a cycle of input and result, beyond the second-level cache, that come and go group by group where channels lie
together."""
_LISTED_LATE, _LIST_LOADS = 0.25, 6
"""How much of what comes from memory is not there when a list has asked for it; loads of a step for that."""
_AHEAD = {"NCHW": 16, "NHWC": 48}
"""Entries of a list by which inputs are asked for early: lines of planes may share the ways of one set of a cache."""

_Alike: TypeAlias = tuple[Sweep, ...]
"""Sweeps that read the same pixels."""


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


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    families = _families(s.problem)
    return _refusal(s) or (PointwiseForm(s, tuple((alike, _cheapest(s, alike)) for alike in families)),)


def _refusal(s: Situation) -> Refusal | None:
    p = s.problem
    if p.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {p.op}"
    if LLVM_NAMES[p.x] != arith_of(s).accumulator:
        return f"reads the input in place, which is not of the sum's type: {p.x}, {arith_of(s).name}"
    if p.quantisation is not None:
        return "inputs with a zero point are converted in a panel"
    if p.c == 0:
        return "there are no channels to add up"
    if not all(axis.taps == 1 or is_inside(p, axis) for sweep in sweeps(p) for axis in sweep):
        return "needs a kernel of one tap, or windows that meet no padding"
    return None


def _is_listed(sweep: Sweep) -> bool:
    """Whether a list says where the entries of a window lie."""
    return any(axis.taps > 1 for axis in sweep)


def _entries(p: Problem, sweep: Sweep) -> int:
    """Entries of an output's sum; of one that meets only padding as if it had one."""
    return p.c // p.groups * math.prod(max(1, axis.taps) for axis in sweep)


@lru_cache(256)
def _families(p: Problem) -> tuple[_Alike, ...]:
    """Sweeps without the outputs that meet only padding, those together that read the same pixels."""
    found: dict[Sweep, list[Sweep]] = {}
    for sweep in sweeps(p):
        inner, _ = padding_apart(sweep)
        if all(axis.out for axis in inner):
            found.setdefault(tuple(replace(axis, first_out=0, first_tap=0) for axis in inner), []).append(inner)
    return tuple(map(tuple, found.values()))


# -- choosing ------------------------------------------------------------------------------------------


def _cheapest(s: Situation, alike: _Alike) -> tuple[Cut, ...]:
    """How packed tensors are cut: for all outputs, or for whole vectors of them and for the rest."""
    p, sweep, lane, outputs = s.problem, alike[0], lanes(s.target, arith_of(s)), s.problem.m // s.problem.groups
    axes = folded_as_packed(sweep)
    kinds = [("channel", _phases(alike) if p.layout == "NCHW" else 1)]
    if (p.layout == "NCHW" or p.c == 1) and axes[-1].stride == 1 and not _is_listed(sweep):
        kinds.append(("pixel", 1))
    elif p.layout == "NHWC" and not _is_listed(sweep):
        kinds.append(("square", 1))
    ways: list[tuple[Cut, ...]] = [(_cut(s, axes, len(alike), kind, phases),) for kind, phases in kinds]
    rest = outputs % lane
    # inputs that are near are soon read twice.  Measured on Zen 5: 5-17 % off for 1 to 6 outputs beside a vector, and
    # from 16 MB on as slow or slower
    near = (p.n or 0) * image_bytes(p)[0] <= s.cache("l3", 1 / 4)
    if ("square", 1) in kinds and near and 0 < rest < outputs and rest <= square_tile(s.target):
        parts = (("channel", (0, outputs - rest)), ("square", (outputs - rest, rest)))
        ways.append(tuple(_cut(s, axes, len(alike), kind, 1, part) for kind, part in parts))
    return min(ways, key=lambda cuts: s.price(cuts, sum(sum(_cost(s, cut)) for cut in cuts)))


def _phases(alike: _Alike) -> int:
    """How many sweeps at a time have results that follow each other along the last axis, if all of them are there."""
    step = alike[0][-1].out_step
    places = [tuple(axis.first_out for axis in sweep) for sweep in alike]
    groups = [places[first : first + step] for first in range(0, len(alike), step)]
    together = all(group == [(*group[0][:-1], phase) for phase in range(step)] for group in groups)
    return step if together else 1


def _cut(s: Situation, axes: Sweep, sweep_count: int, kind: str, phases: int, part: tuple[int, int] | None = None
         ) -> Cut:  # fmt: skip
    """Sizes for sweeps whose axes are folded, and for all outputs or a part: the first, how many.

    An item's input is read once for every set of outputs, from a second-level cache where lanes are channels, else from
    a first-level cache if it fits.
    """
    p, arith = s.problem, arith_of(s)
    lane, outputs = lanes(s.target, arith), cut_outputs(s, kind, part)
    apart = p.c // p.groups * math.prod(i or 0 for i in p.i) // max(1, math.prod(o or 0 for o in p.out))
    read = max(p.c // p.groups, min(_entries(p, axes), apart)) * arith.bytes  # for a pixel of many
    tall = outputs.tall(lane)
    if outputs.pixels:  # a whole number of the tiles that most outputs take
        least = lane if kind == "square" else lane * pixel_tiles(s.target)[tall]
        wanted = (s.cache("l2", 1 / 4) if _is_far(s, axes) else s.cache("l1", 2 / 3)) // read // least * least
    else:
        least, wanted = channel_tile(s.target, outputs.vectors), s.cache("l2", 1 / 4) // read
    slot_pixels = _SLOT_BYTES // (arith.bytes * tall * phases)
    most = min(max(least, wanted), _MOST_PIXELS, slot_pixels // lane * lane)
    extents = [axis.out for axis in axes]
    if kind == "channel" and extents[-1] > most:  # no rest that starts tiles for a few pixels
        extents[-1] = -(-extents[-1] // -(-extents[-1] // most))
    box = boxes((*extents[:-1], min(extents[-1], most)), math.prod, most)
    return Cut(axes, box, outputs, sweep_count // phases, phases)


def _is_far(s: Situation, axes: Sweep) -> bool:
    """Whether only the third cache or memory holds the input, of images that the second does not.

    Items then ask for what the next one reads, and are as large as the second cache likes.  Measured on Zen 5: 5-30 %
    off.
    """
    p = s.problem
    image, _ = image_bytes(p)
    one = len(axes) == axes[0].stride == axes[0].taps == p.groups == 1 and p.m > 0
    whole = math.prod(axis.inp for axis in axes) * p.c * p.x_dtype.itemsize * (p.n or 0)
    return one and image > s.cache("l2", 1) and whole > s.cache("l2", 3)


# -- cost ----------------------------------------------------------------------------------------------


def _cost(s: Situation, cut: Cut) -> tuple[float, float]:
    """Cycles of products, multiply-adds or the loads of short tiles, and of the ways in and out."""
    p = s.problem
    rows = math.prod(axis.out for axis in cut.axes[:-1]) * -(-cut.axes[-1].out // cut.box[-1])
    products = moves = 0.0
    for outputs, times in Counter(outputs for _, outputs in cut.outputs.sets).items():
        cycles, leaving = _ROW_COST[cut.outputs.kind](s, cut, outputs)
        products, moves = products + times * cycles, moves + times * leaving
    batch, far = (p.n or 0) * p.groups, 0.0
    if p.layout == "NHWC" and not _is_far(s, cut.axes):
        read = math.prod(axis.out for axis in cut.axes) * _entries(p, cut.axes) * arith_of(s).bytes
        far = far_cycles(p, read) * (_LISTED_LATE if _is_listed(cut.axes) else 1.0)
    rows *= cut.times * cut.phases
    moves = (moves * rows + 250.0 * box_count(cut.axes, cut.box) + far) * batch
    if p.layout == "NHWC" and p.groups > 1:  # of every pixel a line or two at a time
        moves += (p.n or 0) * max(0, sum(image_bytes(p)) - s.cache("l2", 1)) / _LINES_BYTES
    return products * rows * batch, moves


def _square_row(s: Situation, cut: Cut, outputs: int) -> tuple[float, float]:
    """Cycles of products and of the way out for a set of outputs and a row of a box, by squares."""
    lane, out = lanes(s.target, arith_of(s)), cut.axes[-1].out
    vectors = math.ceil(out / lane) / -(-out // cut.box[-1])  # boxes but the last of a row hold whole ones
    channels = -(-_entries(s.problem, cut.axes) // lane) * lane
    each = square_cycles(outputs) * s.rates(arith_of(s)).slower
    return vectors * (each * channels + 15), vectors * (4.0 if s.problem.m == 1 else lane)


def _pixel_row(s: Situation, cut: Cut, outputs: int) -> tuple[float, float]:
    """The same where pixels lie together."""
    p, arith, out = s.problem, arith_of(s), cut.axes[-1].out
    vectors = int(-(-(out / -(-out // cut.box[-1])) // lanes(s.target, arith)))
    plane = math.prod(i or 0 for i in p.i) * arith.bytes
    leaving = vectors * outputs * (leaving_cycles(p) + apart_cycles(p, cut.axes[-1]))
    leaving += 0.0 if is_fusible(p) and cut.axes[-1].out_step == 1 else 300.0  # a row is moved
    return pixel_cycles(s, arith, outputs, _entries(p, cut.axes), vectors, plane), leaving


def _channel_row(s: Situation, cut: Cut, outputs: int) -> tuple[float, float]:
    """The same where lanes are output channels."""
    p, arith, last, listed = s.problem, arith_of(s), cut.axes[-1], _is_listed(cut.axes)
    rates, lane, entries = s.rates(arith), lanes(s.target, arith), _entries(s.problem, cut.axes)
    used, width = -(-outputs // lane), last.out / -(-last.out // cut.box[-1])
    pixel_bytes = p.c * arith.bytes * last.stride if p.layout == "NHWC" else arith.bytes
    across = p.layout == "NCHW" and p.m > 1
    # one vector of results a pixel: loads are what tiles wait for, and those of pixels far apart are slow
    apart = _apart(s, cut, entries) if p.layout == "NCHW" else 1.15 if cut.outputs.vectors == 1 else 1.0
    if listed:
        apart = 1.03 if p.layout == "NCHW" else 1.0
    beside = _LIST_LOADS if listed else 0
    streams = used * s.target.vector_bytes / _STREAMED_BYTES + (1.5 if across and not listed else 0.0)
    if last.stride == 1 or entries * used * s.target.vector_bytes < s.cache("l1", 1 / 3):
        streams = 0.0
    products = 0.0
    for n, each in near_equal_sizes(math.ceil(width), most_pixels(s.target, used, pixel_bytes)):
        cycles = max(tile_cycles(rates, n, used) * apart, streams, (n + used + beside) / rates.loads)
        products += each * (cycles * entries + 15)
    leaving = leaving_cycles(p)
    if across:
        leaving = (16.0 if planes_collide(p, reading=False) else 8.0) + apart_cycles(p, cut.last)
    if cut.phases > 1 and image_bytes(p)[1] > s.cache("l3", 1 / 4):
        leaving += 12.0  # squares of results, a line or two of many planes
    if cut.phases > 1 and last.out * cut.phases < 3 * lane:
        leaving += 24.0  # and of rows that are as short as these squares
    return products, width * used * leaving


def _apart(s: Situation, cut: Cut, channels: int) -> float:
    """How much longer products take where each channel's pixels lie in lines of their own, a few of each in use."""
    lines_of_row = cut.box[-1] * cut.axes[-1].stride * arith_of(s).bytes / 64 + 0.9
    touched = channels * math.prod(cut.box[:-1]) * lines_of_row * 64
    short = 0.04 if cut.box[-1] < cut.axes[-1].out else 0.0  # no line follows the last of a channel
    return 1.01 + short + min(0.3, max(0.0, 0.6 * (touched - 1.4 * s.cache("l2", 1 / 4)) / s.cache("l2", 1)))


_ROW_COST = {"square": _square_row, "pixel": _pixel_row, "channel": _channel_row}


# -- the form ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PointwiseForm(Form):
    """Sweeps that read the same pixels, and how they are cut where tensors are packed."""

    families: tuple[tuple[_Alike, tuple[Cut, ...]], ...]

    @property
    def workspace(self) -> int:
        """Bytes a thread needs: the header, and the sums of a set of outputs for a row of the box."""
        return 64 * (self.s.problem.rank + 2) + _SLOT_BYTES + 256

    def cost(self) -> dict[str, float]:
        """Cycles of products, and of the ways in and out."""
        p = self.s.problem
        around = [piece for sweep in sweeps(p) for piece in padding_apart(sweep)[1]]
        only_padding = sum(math.prod(axis.out for axis in piece) for piece in around)
        costs = [_cost(self.s, cut) for _, cuts in self.families for cut in cuts]
        moves = only_padding * p.m * (p.n or 0) * 0.5 + sum(moves for _, moves in costs)
        return {"products": sum(products for products, _ in costs), "moves": moves}

    def choices(self) -> Mapping[str, object]:
        """What lanes are and boxes; of a transposed convolution whose phases differ those of the first."""
        cuts = self.families[0][1] if self.families else ()
        return {
            "lanes": " and ".join("pixels" if cut.outputs.pixels else "output channels" for cut in cuts),
            "output channels of a tile": max((m for cut in cuts for _, m in cut.outputs.sets), default=0),
            "box": cuts[0].box if cuts else (),
        }

    def build(self, r: Request) -> Program:
        """One step for every cut, and one for every box of outputs that meet only padding."""
        keep: list[Any] = []
        steps = [fill_step(r, piece, keep) for sweep in sweeps(r.problem) for piece in padding_apart(sweep)[1]]
        steps += [_step(r, alike, cut, keep) for alike, cuts in self.families for cut in cuts]
        return program_of(steps, self.workspace, keep)


# -- building ------------------------------------------------------------------------------------------


def _step(given: Request, alike: _Alike, expected: Cut, keep: list[Any]) -> Step:
    s, arith, p = given.situation, given.arith, given.problem
    r, axes = with_folded(*stacked(given, alike[0]))
    cut = _as_it_lies(r, axes, expected)
    outputs, listed, lane = cut.outputs, _is_listed(alike[0]), lanes(r.target, arith)
    pixels, entries, pixel_bytes = outputs.pixels, _entries(p, alike[0]), axes[-1].stride * r.x.spatial[-1]
    name = f"pointwise {'pixels' if pixels else 'listed' if listed else 'channels'}"
    address = address_of(r, name, "driver", Driver, lambda k, name: driver(k, name, pixels=pixels, listed=listed))
    along = along_out(r, cut.last, "p" if pixels else "c")
    key = ("point", cut.phases, *map(taps_of, alike))
    items = (r.problem.n or 0) * p.groups * box_count(axes, cut.box)
    parts = thread_parts(s.threads, items, cut.times * len(outputs.sets), _REPEATED)
    point = product_words(
        r, replace(outputs, kind="listed") if listed else outputs,
        -(-entries // lane) * lane if outputs.kind == "square" else entries,
        packed_weights(r, key, lambda: _weights(r, alike), outputs, (cut.times, cut.phases)),
        outputs.slots(arith, lane, header_bytes(len(axes)), cut.box[-1], cut.phases), along,
        parts=parts, fused=is_fusible(p) and along in ("cc", "pp"), places=_places(given, alike, cut.phases),
        pixel_bytes=pixel_bytes,
        early=Early(_ahead(r, axes, cut) if _is_far(s, axes) else (0, 0), written=_written_ahead(s, cut)),
    )  # fmt: skip
    tall = most_pixels(r.target, outputs.vectors, pixel_bytes)
    values, items = pointwise_words(
        r, axes, cut.box, parts, point, entries=entries, phases=cut.phases,
        listed=_entry_list(given, alike[0], tall) if listed else None,
    )  # fmt: skip
    return Step(address, filled(values, keep), items)


def _as_it_lies(r: Request, axes: Sweep, cut: Cut) -> Cut:
    """The cut for axes as they fold; lanes are channels where the input does not lie together as packed tensors do."""
    kind = cut.outputs.kind
    step = {"pixel": r.x.spatial[-1] * axes[-1].stride, "square": r.x.c}.get(kind, r.x.itemsize)
    kind = kind if step == r.x.itemsize else "channel"
    return _cut(r.situation, axes, cut.times * cut.phases, kind, cut.phases, cut.outputs.part)


def _ahead(r: Request, axes: Sweep, cut: Cut) -> tuple[int, int]:
    """Bytes from a tile's input to that of a thread's next item, and between what steps of the tile ask for of it.

    That is a line of each channel, or the tile's share of the pixels where channels lie together.
    """
    together = channel_tile(r.target, cut.outputs.vectors) * r.x.itemsize
    return (r.situation.threads * cut.box[-1] * r.x.spatial[-1],
            together if r.x.c == r.x.itemsize else r.x.c)  # fmt: skip


def _written_ahead(s: Situation, cut: Cut) -> int:
    """How many tiles early results are asked for: those that memory holds, not in parts where channels lie together."""
    p = s.problem
    several = p.layout == "NHWC" and (len(cut.outputs.sets) > 1 or cut.outputs.part[1] < p.m // p.groups)
    entries = max(1, _entries(p, cut.axes))
    near = (p.n or 0) * sum(image_bytes(p)) <= s.cache("l3", 1 / 2)
    if near or several or cut.times * cut.phases > 1 or entries > 2 * _EARLY_ENTRIES:
        return 0
    return min(_MOST_EARLY, -(-_EARLY_ENTRIES // entries))


def _weights(r: Request, alike: _Alike) -> NDArray[Any]:
    """Weights (groups, m, entries) of sweeps, one after another; those of one are not copied.

    Entries go through the taps of every channel where pixels lie together, else through the channels of every tap.
    """
    parts = [r.weights(sweep) for sweep in alike]
    by_entry = [(w if r.problem.layout == "NCHW" else w.swapaxes(2, 3)).reshape(*w.shape[:2], -1) for w in parts]
    return by_entry[0] if len(parts) == 1 else np.concatenate(by_entry, axis=1)


def _entry_list(r: Request, sweep: Sweep, tall: int) -> list[int]:
    """Where the entries of a window lie, and meanwhile those of the lines that entries to come have in a tile."""
    taps = [0]
    for axis, stride in zip(sweep, r.x.spatial, strict=True):
        taps = [at + t * axis.dilation * stride for at in taps for t in range(axis.taps)]
    channels = [c * r.x.c for c in range(r.problem.c // r.problem.groups)]
    pixel, run = sweep[-1].stride * r.x.spatial[-1], sweep[-1].taps
    if r.problem.layout == "NCHW":  # runs of a row of the kernel, whose pixels follow each other
        places = [c + at for c in channels for at in taps]
        later = [(i // run * run, i % run * 64) for i in range(len(places))]
    else:
        places = [c + at for at in taps for c in channels]
        later = [(i, min(i % 16, tall - 1) * pixel) for i in range(len(places))]
    ahead = min(_AHEAD[r.problem.layout], len(places))
    places += [tall * pixel + at for at in places]  # the next tile's
    return [word for i, (first, lines) in enumerate(later) for word in (places[i], places[first + ahead] + lines)]


def _places(r: Request, alike: _Alike, phases: int) -> list[list[tuple[int, int]]]:
    """Bytes from the first sweep's results to those of each, in result and residual, by groups of phases."""

    def apart(o: Operand | None, sweep: Sweep) -> int:
        axes = zip(sweep, alike[0], () if o is None else o.spatial, strict=False)
        return sum((axis.first_out - first.first_out) * stride for axis, first, stride in axes)

    places = [(apart(r.y, sweep), apart(r.residual, sweep)) for sweep in alike]
    return [places[first : first + phases] for first in range(0, len(places), phases)]
