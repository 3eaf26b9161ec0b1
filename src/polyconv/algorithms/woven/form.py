"""Transposed convolution along planes: pixels in the lanes, the phases of the last axis woven together.

Outputs ``s j - p + r`` with r in 0..s, one in each phase of the stride s, read the same inputs.  A box of such groups
gets a zero-padded panel of its inputs, [channel][line][pixel], for all its phases; every tile computes those along the
last axis together, so that inputs are read once and every line of the result is written once, whole.  Tiles go along
rows, to their place; where rows leave lanes unfilled they go along the flattened box, and their sums through slots.
Cost: the products over lane use.  Error: own bound; sums run over the channels, the taps all phases have first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.form import Form, Forms
from polyconv.algorithms.woven.cut import Cut, Taps, arithmetic_of, cost, cut, heights, taps_along
from polyconv.algorithms.woven.driver import PhaseWords, SetWords, WovenWords, address
from polyconv.dataclass import dataclass
from polyconv.kernels.fused import FusedTile, of_sums
from polyconv.kernels.isa import lanes
from polyconv.kernels.layout import Move
from polyconv.kernels.record import filled, word_count, words, words_of
from polyconv.kernels.signature import Address
from polyconv.kernels.weave import Phases, WeaveTile, weave_tile
from polyconv.lowering.boxes import boxed_words, bytes_between, thread_parts
from polyconv.lowering.moves import (
    along_in,
    along_out,
    move_in_address,
    move_out_address,
    moved_by_rows,
    rows_out_address,
    words_in_address,
)
from polyconv.lowering.panel import header_bytes
from polyconv.lowering.program import Program, Request, addresses_of, epilogue_tables, one_step
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Axis, box_count
from polyconv.lowering.tiles import is_fusible

__all__ = ["WovenForm", "forms"]


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    p = s.problem
    if p.op != "conv_transpose":
        return f"computes conv_transpose, not {p.op}"
    if not s.finite:
        return "weights hold Inf or NaN, which would meet the zeros of the padding"
    if p.layout != "NCHW":
        return "weaves pixels that lie together, in NCHW"
    if not p.c or not p.m:
        return "there are no channels"
    if max(p.s) == 1:
        return "there is one phase: nothing to weave"
    if not heights(s):
        return f"has no tiles for a stride of {p.s[-1]} along the last axis"
    return (WovenForm.of(s),)


@dataclass(frozen=True, slots=True)
class WovenForm(Form):
    """Boxes for a packed result, and those whose tiles go along the flattened box, which suit any result."""

    packed: Cut
    flat: Cut

    @classmethod
    def of(cls, s: Situation) -> WovenForm:
        """That of a situation which has one."""
        flat = cut(s, flat=True)
        ways = (cut(s, flat=False), flat) if is_fusible(s.problem) else (flat,)
        return cls(s, min(ways, key=lambda way: s.price(way, sum(cost(s, way).values()))), flat)

    @property
    def is_whole(self) -> bool:
        """It writes whole rows."""
        return True

    @property
    def arithmetic(self) -> str:
        """Dot products of bf16 pairs where there are such; else the accumulator's."""
        return arithmetic_of(self.s).name

    @property
    def workspace(self) -> int:
        """Bytes a thread needs, however the result lies."""
        return max(self.packed.workspace, self.flat.workspace)

    def cost(self) -> Mapping[str, float]:
        """Cycles for packed tensors."""
        return cost(self.s, self.packed)

    def choices(self) -> dict[str, object]:
        """Tiles and boxes for a packed result."""
        c, times = self.packed, self.s.problem.s[-1]
        rows = max(rows for _, rows in c.sets)
        most = min(c.vectors, heights(self.s)[rows])
        tile = f"{rows} channels by {most} vectors of pixels by {times} phases"
        return {"tile": tile, "box": c.box, "along": "box" if c.flat else "rows"}

    def build(self, r: Request) -> Program:
        """Program of a request: one step."""
        last = self.packed.sweep[-1]
        along, keep = along_out(r, replace(last, out_step=1), "p"), list[Any]()
        c = self.packed if along == "pp" else self.flat
        values, items = _words(r, c, along, keep)
        return one_step(address(r), filled(values, keep), items, c.workspace, keep)


def _words(r: Request, c: Cut, along: str, keep: list[Any]) -> tuple[WovenWords, int]:
    """The driver's words, and how many items there are."""
    s, p, arith, last, times = r.situation, r.problem, r.arith, c.sweep[-1], r.problem.s[-1]
    functions, of_sets = _set_tables(r, c)
    phases = [_phase(r, c, phase) for phase in itertools.product(*(range(step) for step in p.s[:-1]))]
    turns = len(c.sets) * len(phases)
    cycles = cost(s, c)
    parts = thread_parts(s.threads, (p.n or 0) * p.groups * box_count(c.sweep, c.box), turns,
                         cycles["panels"] / max(1.0, cycles["products"]))  # fmt: skip
    tiles = -(-turns // parts) * c.walks * -(-c.vectors // max(heights(s).values()))
    ahead, header, last_out = bytes_between(r, c.sweep, c.box), header_bytes(len(c.sweep)), p.out[-1]
    assert last_out is not None
    common, items = boxed_words(r, c.sweep, c.box, c.held, parts, panel=header)
    into, out = _move_in(r, last), Move(arith.accumulator, p.y, along, r.epilogue)
    if arith.channels == 1:
        common = moved_by_rows(common, r, c.sweep, c.held, into)
    rows_out = rows_out_address(r, c.sweep, out) if c.flat else None
    return WovenWords(
        common=common, channels=p.c // p.groups, planes=p.c // p.groups // arith.channels,
        plane_bytes=c.plane_bytes, line_words=c.line_words, line_bytes=c.line_words * arith.bytes,
        word_bytes=arith.bytes, result_bytes=r.y.itemsize, lanes=lanes(r.target, arith), times=times,
        taps=taps_along(p)[-1].common, ahead=s.threads * ahead, ahead_bytes=ahead,
        ahead_step=min(64 << 8, (ahead << 8) // tiles), first_out=last.first_out, last_out=last_out,
        outputs=p.m // p.groups, phases=len(phases),
        phase_words=word_count(PhaseWords) + len(phases[0][1]),
        phase=words_of(*(part for of_phase in phases for part in of_phase), keep=keep), set_count=len(c.sets),
        split_sets=-(-turns // parts), sets=of_sets, functions=functions, flat=int(c.flat),
        row_table=header + c.panel, slots=header + c.panel + c.row_table, slot_channel=c.slot_channel,
        y_pixel=r.y.spatial[-1], r_pixel=0 if r.residual is None else r.residual.spatial[-1],
        tables=epilogue_tables(r), together=int(rows_out is not None), rows_out=rows_out,
        move_in=move_in_address(r, into) if arith.channels == 1 else words_in_address(r, into),
        move_out=move_out_address(r, out),
    ), items  # fmt: skip


def _move_in(r: Request, last: Axis) -> Move:
    """The move of lines of all channels into the panel's planes."""
    if r.arith.channels == 1:
        return Move(r.problem.x, r.arith.accumulator, along_in(r, last, "p"))
    along = along_in(r, last, "c")
    return Move(r.problem.x, "i16", along if along == "pc" else "any", together=r.arith.channels)


def _set_tables(r: Request, c: Cut) -> tuple[list[Address[WeaveTile]], list[SetWords]]:
    """Functions of tiles, and the words of every set of output channels."""
    spec = of_sums(r.arith.name) if c.flat else FusedTile(r.arith.name, r.problem.y, r.epilogue)
    most = heights(r.situation)
    functions: list[Address[WeaveTile]] = []
    places: dict[int, list[int]] = {}
    for rows in dict.fromkeys(rows for _, rows in c.sets):
        places[rows] = []
        for edge in (False, not c.flat):
            places[rows].append(2 * len(functions) - 2)  # the function of n vectors is at word 2 n
            functions += _tiles(r, replace(spec, edge=edge), rows, most[rows])
    return functions, [SetWords(first, rows, most[rows], *places[rows]) for first, rows in c.sets]


def _tiles(r: Request, spec: FusedTile, rows: int, most: int) -> list[Address[WeaveTile]]:
    """Functions of tiles of so many output channels, of one vector of pixels and more."""
    taps, lane = taps_along(r.problem)[-1], lanes(r.target, r.arith)
    phases = Phases(taps.stride, taps.phases, taps.common > 0, taps.longer, taps.step)
    widths = {f"tile{n}": n for n in range(1, most + 1)}
    return list(addresses_of(
        r, f"weave {spec} {rows} {phases}", WeaveTile, widths,
        lambda k, name, n: weave_tile(k, name, spec, lane, rows, phases, n, f16c=r.target.converts_f16),
    ).values())  # fmt: skip


def _phase(r: Request, c: Cut, phase: tuple[int, ...]) -> tuple[PhaseWords, list[int]]:
    """The words of a phase of the outer axes, and behind them of every axis which groups have it."""
    p, outer = r.problem, c.sweep[:-1]
    y = sum(at * stride for at, stride in zip(phase, r.y.spatial, strict=False))
    residual = 0 if r.residual is None else sum(at * step for at, step in zip(phase, r.residual.spatial, strict=False))
    bounds: list[int] = []
    for axis, at, o in zip(outer, phase, p.out, strict=False):
        first = axis.first_out + at
        bounds += (max(0, -(first // axis.out_step)), -((first - int(o or 0)) // axis.out_step))
    places = [0]
    *others, last = taps_along(p)
    for taps, at, held in zip(others, phase, c.held, strict=False):
        places = [place * held.count + held.start[t] for place in places for t in taps.of_phase(at)]
    first_tap, planes = last.span - last.step * (last.common - 1), p.c // p.groups // r.arith.channels
    entries = words([
        word for plane in range(planes) for number, at in enumerate(places) for word in (
            plane * c.plane_bytes + (at * c.line_words + first_tap) * r.arith.bytes,
            plane * r.arith.channels * r.x.c + 64 * number,
        )
    ])  # fmt: skip
    packed = r.packed(("woven", r.arith.name, r.target.level, p.k, p.s, phase), lambda: _weights(r, c, phase))
    own = PhaseWords(
        weights=packed, w_group=packed.nbytes // p.groups, w_output=packed.nbytes // p.m, entries=entries,
        count=planes * len(places), y=y, r=residual,
    )  # fmt: skip
    return own, bounds


def _weights(r: Request, c: Cut, phase: tuple[int, ...]) -> NDArray[Any]:
    """Weights of a phase of the outer axes: by set [plane][outer tap][tap][output channel][phase of the last axis].

    Each is a word, of as many input channels as those of a plane have.  The first phases' tap more follows those that
    all have, in every entry.
    """
    *others, last = taps_along(r.problem)
    groups, together = r.problem.groups, r.arith.channels

    def taken(taps: Taps, axis: Axis, some: Sequence[int]) -> Axis:
        return replace(axis, taps=len(some), first_tap=some[0] if some else 0, tap_step=-taps.period)

    outer = [taken(taps, axis, taps.of_phase(at)) for taps, axis, at in zip(others, c.sweep, phase, strict=False)]
    common = [[t + u * last.period for u in reversed(range(last.common))] for t in range(len(last.phases))]
    longer = [[t + last.common * last.period] for t in range(last.longer)]
    streams = []
    for phases in (common if last.common else [], longer):
        if phases:
            w = np.stack([r.weights((*outer, taken(last, c.sweep[-1], some))) for some in phases], axis=-1)
            m, channels = w.shape[1:3]
            entries = math.prod(axis.taps for axis in outer)
            w = w.reshape(groups, m, channels // together, together, entries, len(phases[0]), len(phases))
            w = w.transpose(0, 2, 4, 5, 1, 6, 3)
            streams.append(w.reshape(groups, channels // together * entries, len(phases[0]), m, len(phases) * together))
    of_sets = []
    for first, rows in c.sets:
        parts = [w[:, :, :, first : first + rows] for w in streams]
        of_set = np.concatenate([w.reshape(*w.shape[:2], math.prod(w.shape[2:])) for w in parts], axis=-1)
        of_sets.append(of_set.reshape(groups, math.prod(of_set.shape[1:])))
    return np.concatenate(of_sets, axis=1).reshape(-1)
