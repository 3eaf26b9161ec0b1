"""The generic algorithm: any rank, type, group and layout; lanes are pixels.

A box of outputs gets a zero-padded panel of inputs, [channel][line][pixel].  Pixels a stride apart lie together there,
so what a tap meets is a contiguous vector, whatever stride and dilation.
Cost: the products over lane use, plus a pass over the inputs of every group.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.form import Form, Forms
from polyconv.algorithms.generic.cut import CALL_CYCLES, FUSED_CYCLES, Cut, cost, cut_of, cut_with_slots
from polyconv.algorithms.generic.driver import GenericWords, driver
from polyconv.algorithms.generic.parts import in_pieces
from polyconv.algorithms.least import least
from polyconv.dataclass import dataclass
from polyconv.kernels.fused import FusedTile, Walk
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, lanes, pixel_tiles
from polyconv.kernels.layout import Move
from polyconv.kernels.record import filled, words
from polyconv.kernels.signature import Address
from polyconv.kernels.tile import PanelTile
from polyconv.lowering.boxes import ahead_words, asks_ahead, boxed_words, near_equal
from polyconv.lowering.moves import (
    SHORT,
    along_in,
    along_out,
    move_in_address,
    moved_apart,
    moved_by_rows,
    row_cycles,
    rows_out_address,
)
from polyconv.lowering.panel import Ahead, Driver, header_bytes
from polyconv.lowering.pixels import ZERO_BYTES, contiguous, packed_weights, panel_tiles, pixel_sums, tile_rows
from polyconv.lowering.program import Operand, Program, Request, Step, address_of, program_of
from polyconv.lowering.situation import Situation, lane_arithmetic, of_one_image
from polyconv.lowering.sweep import Family, families, sweeps, taps_of
from polyconv.lowering.tiles import fused_address, is_fusible
from polyconv.problem.problem import Problem

__all__ = ["at_least", "forms"]


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    if s.problem.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {s.problem.op}"
    if not s.finite:
        return "weights hold Inf or NaN, which would meet the zeros of the padding"
    cuts = _cheapest_cuts(s)
    return (GenericForm(s, cuts, tuple(cut_with_slots(s, _arith_of(s), cut) for cut in cuts)),)


def _arith_of(s: Situation) -> Arithmetic:
    return ARITHMETIC[lane_arithmetic(s)]


_MOST_PIECES, _WORTH, _GAIN = 128, 0.8, 0.9
"""Most pieces that are planned, as each takes half a millisecond; what share of the products must be left to plan them,
and of the predicted time to take them, as prices of many small boxes are off by a tenth."""
_STEP_CYCLES = 3000.0
"""Cycles in which a step begins and ends."""


def _cheapest_cuts(s: Situation) -> tuple[Cut, ...]:
    """Cuts of families, whole or in pieces whose taps meet no padding: those left out would add zeros."""
    whole, arith, work = _families(s.problem), _arith_of(s), least(s.problem)
    if work.met > _WORTH * work.taken:  # no pieces leave out so much
        return tuple(cut_of(s, arith, family) for family in whole)
    ways = [whole]
    for joined in sorted({False, s.problem.groups == 1}):
        cut = in_pieces(whole, joined=joined)
        fewer = _products(cut) <= _WORTH * _products(whole) and cut not in ways
        if fewer and len(cut) <= max(_MOST_PIECES, 2 * len(whole)):
            ways.append(cut)
    best = whole
    if len(ways) > 1:
        one = of_one_image(s)
        best = min(ways, key=lambda way: s.price(way, _cycles(one, way) * (1.0 if way is whole else 1 / _GAIN)))
    return tuple(cut_of(s, arith, family) for family in best)


def _cycles(s: Situation, way: Sequence[Family]) -> float:
    arith = _arith_of(s)
    cuts = [cut_of(s, arith, family) for family in way]
    return sum(_STEP_CYCLES + sum(cost(s, arith, cut).values()) for cut in cuts)


def _products(way: Sequence[Family]) -> int:
    """Pairs of an output and a tap."""
    return sum(math.prod(a.out * a.taps for a in family.sweep) * len(family.members) for family in way)


def _families(p: Problem) -> tuple[Family, ...]:
    """What is computed together: phases that read the same inputs, where there is one group."""
    if p.groups == 1:
        return families(p)
    return tuple(Family(sweep, ((sweep, (0,) * len(sweep)),)) for sweep in sweeps(p))


def at_least(s: Situation) -> float:
    """Cycles that products, and the ways in and out take, whatever the boxes, the order of axes and the tiles."""
    p, arith, work = s.problem, _arith_of(s), least(s.problem)
    group_in, group_out = p.c // p.groups, p.m // p.groups
    lane, planes = lanes(s.target, arith), p.layout == "NCHW"
    if not work.taken or not group_in:
        return 0.0
    leaving, coming = 0.4 if planes or p.m == 1 else 0.6, 0.3 if planes else 0.35
    if planes and p.rank > 1:  # short rows, the longest of them
        least_of_row = row_cycles(SHORT, lane) / SHORT
        leaving, coming = min(leaving, least_of_row), min(coming, least_of_row)
    may_be_cut = work.met <= _WORTH * work.taken  # into pieces, which leave out products with padding
    pairs = work.met if may_be_cut else work.taken
    products = pairs * group_in * group_out / (lane * s.rates(arith).multiply_adds)
    cycles = products + leaving * s.moving * work.outputs * group_out
    if planes and is_fusible(p):  # from registers, where every set of outputs is called for every row
        (sweep, *others), tallest = sweeps(p), max(pixel_tiles(s.target, arith))
        of_row = max(1, sweep[-1].out)
        rows = 0 if others else work.outputs // of_row
        share = 1.0 if others or may_be_cut else of_row / (-(-of_row // lane) * lane)  # of lanes that hold a pixel
        calls = CALL_CYCLES * rows * -(-group_out // tallest)
        cycles = min(cycles, products / share + FUSED_CYCLES / lane * work.outputs * group_out + calls)
    cycles += work.brought * group_in * coming * s.moving
    return cycles * (p.n or 0) * p.groups


@dataclass(frozen=True, slots=True)
class GenericForm(Form):
    """Every sweep, or family of sweeps, cut into boxes; and how it is cut where results cannot leave from registers."""

    cuts: tuple[Cut, ...]
    with_slots: tuple[Cut, ...]

    @property
    def arithmetic(self) -> str:
        """Of 16 bits where these are enough; else the accumulator's."""
        return lane_arithmetic(self.s)

    @property
    def workspace(self) -> int:
        """Bytes a thread needs, wherever results lie."""
        return max((cut.workspace for cut in self.cuts + self.with_slots), default=0)

    @property
    def scheme(self) -> str:
        """The order of the axes, where it is not their own, and which parts have it: taps are summed in it."""
        parts: dict[tuple[int, ...], list[int]] = {}
        for number, cut in enumerate(self.cuts):
            parts.setdefault(cut.order, []).append(number)
        own = tuple(range(self.s.problem.rank))
        return " ".join(
            f"axes {','.join(map(str, order))}" + (f" of parts {_ranges(some)}" if len(parts) > 1 else "")
            for order, some in sorted(parts.items()) if order != own
        )  # fmt: skip

    def cost(self) -> dict[str, float]:
        """Cycles: multiply-adds with the lanes that rows or boxes fill, and the moves."""
        terms = [cost(self.s, _arith_of(self.s), cut) for cut in self.cuts]
        return {name: sum(t[name] for t in terms) for name in terms[0]} if terms else {"products": 0.0}

    def choices(self) -> dict[str, object]:
        """How the sweep with the most outputs is cut."""
        if not self.cuts:
            return {}
        cut = max(self.cuts, key=lambda cut: math.prod(axis.out for axis in cut.sweep))
        return {
            "order of axes": cut.order, "box": cut.box, "lanes": f"pixels of a {'box' if cut.flat else 'row'}",
            "results leave": "from registers" if cut.fused else "from the workspace",
            "groups of an item": cut.block_groups, "input channels at a time": cut.chunk,
        }  # fmt: skip

    def build(self, r: Request) -> Program:
        """One step for every family of sweeps; results that do not lie as their layout says leave by way of slots."""
        keep: list[Any] = []
        suited = [
            slots if cut.fused and along_out(r, cut.sweep[-1], "p") != "pp" else cut
            for cut, slots in zip(self.cuts, self.with_slots, strict=True)
        ]
        return program_of([_step(r, cut, keep) for cut in suited], self.workspace, keep)


def _ranges(numbers: Sequence[int]) -> str:
    """Rising numbers, neighbours as ``first-last``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" if first < last else str(first) for first, last in runs)


def _step(given: Request, cut: Cut, keep: list[Any]) -> Step:
    r = replace(
        given, x=_in_order(given.x, cut), y=_in_order(given.y, cut),
        residual=None if given.residual is None else _in_order(given.residual, cut),
    )  # fmt: skip
    p, arith, last = r.problem, r.arith, cut.sweep[-1]
    sets = tile_rows(cut.outputs, r.target, arith)
    panel = header_bytes(len(cut.sweep))
    zeros = panel + cut.panel
    common, items = boxed_words(
        r, cut.sweep, cut.box, cut.held, cut.splits, cut.block_groups, panel=panel, scratch=zeros
    )
    ahead = ahead_words(r, cut.sweep, cut.box, p.c // p.groups if r.x.spatial[-1] == r.x.itemsize else 0)

    def functions_of(rows: int) -> Sequence[Address[PanelTile | Walk] | None]:
        return _fused_tiles(r, cut, rows, ahead) if cut.fused else panel_tiles(r, rows)

    along = contiguous(along_out(r, last, "p"), p.m // p.groups * cut.block_groups)
    out = Move(arith.accumulator, p.y, along, r.epilogue)
    sums = pixel_sums(
        r, _packed(r, cut, sets), sets, _places(cut, arith.bytes), taps=cut.taps, chunk=cut.chunk,
        slots=zeros + ZERO_BYTES, output_bytes=cut.output_bytes, functions_of=functions_of,
        along=out.along,
    )  # fmt: skip
    into = Move(p.x, arith.accumulator, contiguous(along_in(r, last, "p"), p.c // p.groups * cut.block_groups))
    common = moved_by_rows(common, r, cut.sweep, cut.held, into)
    rows_out = None if cut.fused else rows_out_address(r, cut.sweep, out)
    address = address_of(
        r, "generic", "generic", Driver, lambda k, name: driver(k, name, r.target.vector_bytes)
    )
    values = GenericWords(
        common=moved_apart(common, r, last, cut.held[-1], "p", arith.bytes), sums=sums, block_groups=cut.block_groups,
        group_total=p.groups, plane_bytes=cut.plane_bytes, line_bytes=cut.line_pixels * arith.bytes,
        move_in=move_in_address(r, into), ahead=ahead, together=int(rows_out is not None), rows_out=rows_out,
        split_sets=-(-len(sets) // cut.splits), flat=int(cut.flat), fused=int(cut.fused), slot_bytes=cut.slot_bytes,
        row_bytes=cut.row_bytes, member_count=cut.members, members=words(_members(r, cut)),
    )  # fmt: skip
    return Step(address, filled(values, keep), items if cut.outputs else 0)


def _in_order(o: Operand, cut: Cut) -> Operand:
    return replace(o, spatial=tuple(o.spatial[a] for a in cut.order))


def _places(cut: Cut, size: int) -> list[int]:
    """Where in the panel taps meet the first pixel, for every channel of a chunk."""
    outer = [0]
    for h in cut.held[:-1]:
        outer = [o * h.count + s for o in outer for s in h.start]
    taps = [(o * cut.line_pixels + s) * size for o in outer for s in cut.held[-1].start]
    return [c * cut.plane_bytes + at for c in range(cut.chunk) for at in taps]


def _fused_tiles(r: Request, cut: Cut, rows: int, ahead: Ahead) -> list[Address[PanelTile | Walk] | None]:
    """Tiles of 1, 2, ... vectors, then those whose last vector is masked; None for sizes that no row is cut into."""
    lane, most = lanes(r.target, r.arith), pixel_tiles(r.target, r.arith)[rows]
    whole, masked = set(), set()
    for width in (cut.box[-1], cut.sweep[-1].out % cut.box[-1]):
        sizes = [size for _, size in near_equal(-(-width // lane), most)]
        masked |= set(sizes[-1:]) if width % lane else set()
        whole |= set(sizes[: -1 if width % lane else None])
    spec = FusedTile(r.arith.name, r.problem.y, r.epilogue, asked=int(asks_ahead(ahead)))
    return [
        fused_address(r, "pixel", kind, rows, size) if size in wanted else None
        for kind, wanted in ((spec, whole), (replace(spec, edge=True), masked))
        for size in range(1, most + 1)
    ]


def _members(r: Request, cut: Cut) -> list[int]:
    """Records of the members of a family; ``r`` has its axes in order already."""
    strides = [o.spatial if o is not None else (0,) * len(cut.order) for o in (r.y, r.residual)]
    records: list[int] = []
    for member, shifts in cut.family.members:
        ordered = [(cut.family.sweep[a], member[a], shifts[a]) for a in cut.order]
        places = [own.first_out - whole.first_out - shift * whole.out_step for whole, own, shift in ordered]
        records += [sum(at * step for at, step in zip(places, of, strict=True)) for of in strides]
        records += [v for _, own, shift in ordered for v in (shift, shift + own.out)]
    return records


def _packed(r: Request, cut: Cut, sets: Sequence[tuple[int, int]]) -> NDArray[Any]:
    """Weights of a family, one member after the other, with taps in the order of the axes."""

    def make() -> NDArray[Any]:
        parts = []
        for member, _ in cut.family.members:
            w = r.weights(member)
            spread = w.reshape(*w.shape[:3], *(axis.taps for axis in member))
            parts.append(spread.transpose(0, 1, 2, *(3 + a for a in cut.order)).reshape(w.shape))
        return packed_weights(r, np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0], sets)

    taps = tuple(taps_of(member) for member, _ in cut.family.members)
    return r.packed(("generic", r.arith.name, r.target.level, cut.order, taps), make)
