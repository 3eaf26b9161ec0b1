"""Pointwise convolution: one tap an axis, or windows; no padding; any stride, group and layout.

Every output is a product of weights with the channels of one pixel, or with those of a window, by a list of where its
entries lie.  There are three kinds of tiles, the first also for windows: lanes are output channels, with words of the
input broadcast from wherever they lie; where pixels lie together and fill vectors, lanes are pixels, in place or, with
short vectors, in a panel to which those of a tile are copied; and so they are where channels lie together and outputs
are few, or few remain beside whole vectors of them, by squares of pixels and channels that are transposed in registers.
Axes that lie together are one.  Results go from registers to their place where lanes lie together in it, else through a
move; those of the phases of a transposed convolution leave together.
Cost: the products over lane use.  Error: own bound; sums run over the channels in order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.form import Form, Forms, Refusal
from polyconv.algorithms.product.axes import is_inside, stacked, with_folded
from polyconv.algorithms.product.pointwise_cut import (
    Cut,
    beside_bytes,
    cost_of,
    cut_of,
    cuts_of,
    is_copied,
    is_far,
    is_listed,
    is_readable,
    panel_bytes,
)
from polyconv.algorithms.product.pointwise_driver import driver, panel_driver, pointwise_words
from polyconv.algorithms.product.sets import Early, most_pixels, packed_weights, product_words
from polyconv.dataclass import dataclass
from polyconv.kernels.isa import channel_tile, lanes
from polyconv.kernels.record import filled
from polyconv.lowering.boxes import busiest, in_pieces, thread_parts
from polyconv.lowering.moves import along_out
from polyconv.lowering.panel import Driver, header_bytes
from polyconv.lowering.program import Operand, Program, Request, Step, address_of, program_of
from polyconv.lowering.situation import Situation, arith_of, image_bytes
from polyconv.lowering.sweep import Sweep, box_count, sweeps, taps_of, terms_of
from polyconv.lowering.tiles import is_fusible
from polyconv.problem.problem import Problem

__all__ = ["forms"]

_REPEATED = 0.02
"""Share of an item's work that every part of its outputs does anew: its inputs come from the third cache once more."""
_EARLY_ENTRIES, _MOST_EARLY = 32, 3
"""Tiles of so many entries take as long as a line of results to come from memory; of fewer entries some tiles.
Measured on Zen 5: 2-40 % off."""
_AHEAD = {"NCHW": 16, "NHWC": 48}
"""Entries of a list by which inputs are asked for early: lines of planes may share the ways of one set of a cache."""

_Alike: TypeAlias = tuple[Sweep, ...]
"""Sweeps that read the same pixels."""


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    reason = _refusal(s)
    if reason is not None:
        return reason
    return (PointwiseForm(s, tuple((alike, cuts_of(s, alike)) for alike in _alike(s.problem))),)


def _refusal(s: Situation) -> Refusal | None:
    p = s.problem
    if p.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {p.op}"
    if p.c == 0:
        return "there are no channels to add up"
    if not is_readable(s) and not any(is_copied(s, sweep) for sweep in sweeps(p)[:1]):
        return f"reads the input in place, which is not of the sum's type: {p.x}, {arith_of(s).name}"
    if p.quantisation is not None:
        return "inputs with a zero point are converted in a panel"
    if not all(is_inside(axis) and (axis.taps == 1 or p.op == "conv") for sweep in sweeps(p) for axis in sweep):
        return "needs windows that meet no padding, of one tap in transposed convolutions"
    return None


def _alike(p: Problem) -> list[_Alike]:
    """Sweeps, those together that read the same pixels; all results of one pixel's planes are phases of a row."""
    found: dict[Sweep, list[Sweep]] = {}
    for sweep in sweeps(p):
        found.setdefault(tuple(replace(axis, first_out=0, first_tap=0) for axis in sweep), []).append(sweep)
    ways = [tuple(alike) for alike in found.values()]
    if p.layout == "NCHW" and p.n == len(ways) == 1 and len(ways[0]) == math.prod(o or 0 for o in p.out):
        return [tuple((*sweep[:-1], replace(sweep[-1], out_step=len(ways[0]))) for sweep in ways[0])]
    return ways


# -- the form ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PointwiseForm(Form):
    """Sweeps that read the same pixels and their cuts where tensors are packed."""

    families: tuple[tuple[_Alike, tuple[Cut, ...]], ...]

    @property
    def workspace(self) -> int:
        """Bytes a thread needs: the header, the sums of a set of outputs for a row of the box, and pixels of a tile."""
        cuts = [cut for _, cuts in self.families for cut in cuts]
        panels = [panel_bytes(self.s, cut.outputs, terms_of(self.s.problem, cut.axes)) for cut in cuts]
        return beside_bytes(self.s.problem) + max(panels, default=0)

    def cost(self) -> dict[str, float]:
        """Cycles of products, and of the ways in and out."""
        costs = [cost_of(self.s, cut) for _, cuts in self.families for cut in cuts]
        return {"products": sum(products for products, _ in costs), "moves": sum(moves for _, moves in costs)}

    def choices(self) -> Mapping[str, object]:
        """Tiles and boxes; of a transposed convolution those of the first phase."""
        cuts = self.families[0][1]
        return {"tile": " and ".join(cut.outputs.tile(self.s) for cut in cuts), "box": cuts[0].box}

    def build(self, r: Request) -> Program:
        """One step for every cut."""
        keep: list[Any] = []
        steps = [_step(r, alike, cut, keep) for alike, cuts in self.families for cut in cuts]
        return program_of(steps, self.workspace, keep)


# -- building ------------------------------------------------------------------------------------------


def _step(given: Request, alike: _Alike, expected: Cut, keep: list[Any]) -> Step:
    arith, p = given.arith, given.problem
    r, axes = with_folded(*stacked(given, alike[0]))
    s = r.situation if r.problem.i != p.i else given.situation  # images of one pixel are one image
    places = _places(given, alike, expected.phases)
    cut = _as_it_lies(r, axes, expected, places)
    outputs, listed, lane = cut.outputs, is_listed(alike[0]), lanes(r.target, arith)
    pixels, entries, pixel_bytes = outputs.pixels, terms_of(p, alike[0]), axes[-1].stride * r.x.spatial[-1]
    copied = panel_bytes(s, outputs, entries)
    name = f"pointwise {outputs.kind if copied else 'pixels' if pixels else 'listed' if listed else 'channels'}"
    make = panel_driver if copied else partial(driver, pixels=pixels, listed=listed)
    address = address_of(r, name, "driver", Driver, make)
    along = along_out(r, cut.last, "p" if pixels else "c")
    key = ("point", cut.phases, *map(taps_of, alike))
    cut, parts = _shared(s, axes, cut, (r.problem.n or 0) * p.groups)
    ahead = _ahead(r, axes, cut) if is_far(s, axes) and not copied else (0, 0)
    products = product_words(
        r, replace(outputs, kind="listed") if listed else outputs,
        -(-entries // lane) * lane if outputs.kind == "square" else entries,
        packed_weights(r, key, lambda: _weights(r, alike), outputs, (cut.times, cut.phases)),
        outputs.slots(arith, lane, header_bytes(len(axes)) + copied, cut.box[-1], cut.phases), along,
        parts=parts, fused=is_fusible(p) and along in ("cc", "pp"), places=_places(given, alike, cut.phases),
        pixel_bytes=pixel_bytes,
        early=Early(ahead, written=_written_ahead(s, cut)),
    )  # fmt: skip
    tall = most_pixels(r.target, r.arith, outputs.vectors, pixel_bytes)
    values, items = pointwise_words(
        r, axes, cut.box, parts, products, entries=entries, phases=cut.phases,
        listed=_entry_list(given, alike[0], tall) if listed else None, copied=copied,
    )  # fmt: skip
    return Step(address, filled(values, keep), items)


def _as_it_lies(r: Request, axes: Sweep, cut: Cut, places: list[list[tuple[int, int]]]) -> Cut:
    """The cut for axes as they fold; lanes are channels where the input does not lie together as packed tensors do.

    Results of phases leave one by one where they do not follow each other as in packed tensors.
    """
    apart = [0 if o is None else cut.last.out_step * o.spatial[-1] for o in (r.y, r.residual)]
    even = all(b - a == step for group in places for one, two in itertools.pairwise(group)
               for a, b, step in zip(one, two, apart, strict=True))  # fmt: skip
    kind = cut.outputs.kind
    step = {"pixel": r.x.spatial[-1] * axes[-1].stride, "square": r.x.c}.get(kind, r.x.itemsize)
    kind = kind if step == r.x.itemsize else "channel"
    phases = cut.phases if even else 1
    return cut_of(r.situation, axes, cut.times * cut.phases, kind, phases, cut.outputs.part)


def _shared(s: Situation, axes: Sweep, cut: Cut, images: int) -> tuple[Cut, int]:
    """The cut for threads, and into how many parts sets of outputs are cut: boxes are smaller where sets are few."""
    sets, unit = cut.times * len(cut.outputs.sets), lanes(s.target, arith_of(s)) if cut.outputs.pixels else 1

    def cut_in(pieces: int) -> tuple[float, tuple[Cut, int]]:
        size = -(-cut.box[-1] // (pieces * unit)) * unit if pieces > 1 else cut.box[-1]
        box = (*cut.box[:-1], size)
        items = images * box_count(axes, box)
        parts = thread_parts(s.threads, items, sets, _REPEATED)
        load = busiest(s.threads, items, sets, parts, _REPEATED) * math.prod(box)
        return load, (replace(cut, box=box), parts)

    return in_pieces(s.threads, cut_in)


def _ahead(r: Request, axes: Sweep, cut: Cut) -> tuple[int, int]:
    """Bytes from a tile's input to that of a thread's next item, and between what steps of the tile ask for of it.

    That is a line of each channel, or the tile's share of the pixels where channels lie together.
    """
    together = channel_tile(r.target, r.arith, cut.outputs.vectors) * r.x.itemsize
    return (r.situation.threads * cut.box[-1] * r.x.spatial[-1],
            together if r.x.c == r.x.itemsize else r.x.c)  # fmt: skip


def _written_ahead(s: Situation, cut: Cut) -> int:
    """How many tiles early results are asked for: those that memory holds, not in parts where channels lie together."""
    p = s.problem
    several = p.layout == "NHWC" and (len(cut.outputs.sets) > 1 or cut.outputs.part[1] < p.m // p.groups)
    entries = max(1, terms_of(p, cut.axes))
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
