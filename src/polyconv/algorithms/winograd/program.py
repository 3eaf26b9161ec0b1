"""The program of matrix products: what the driver's words say for boxes that were chosen, and the kernels it calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from polyconv.algorithms import careful
from polyconv.algorithms.dense.channel_panel import PanelWords
from polyconv.algorithms.winograd import words
from polyconv.algorithms.winograd.boxes import Boxes, outer_bands
from polyconv.algorithms.winograd.cost import is_stacked
from polyconv.algorithms.winograd.driver import driver
from polyconv.algorithms.winograd.inputs import inputs, note
from polyconv.algorithms.winograd.repair import repair
from polyconv.algorithms.winograd.tables import entries, tile_tables
from polyconv.algorithms.winograd.weights import packed_weights, places
from polyconv.kernels.isa import channel_tile
from polyconv.kernels.language import Module
from polyconv.kernels.layout import Move
from polyconv.kernels.record import filled
from polyconv.kernels.signature import Address
from polyconv.kernels.tile import ROW_WORDS
from polyconv.kernels.transform import InputTransform, OutputTransform, input_transform, output_transform
from polyconv.kernels.unzip import ListedMoveOut
from polyconv.lowering import moves
from polyconv.lowering.bands import bands_table
from polyconv.lowering.boxes import boxed_words
from polyconv.lowering.moves import MOST_LISTED, along_in, along_out, listed_address, move_out_address, moved_apart
from polyconv.lowering.panel import Common, Driver
from polyconv.lowering.program import Operand, Request, Step, address_of, epilogue_tables
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Sweep, taps_of
from polyconv.lowering.tiles import tile_addresses

__all__ = ["step", "turned"]

_RUN_BYTES = 1 << 10
"""Inputs that lie together are fetched ahead by so many bytes at a time."""
_DRIVING = 10.0
"""Transformed weights, as a multiple of a second-level cache, that drive inputs out of the caches from call to call:
each chunk is fetched before its turn.  Measured on Zen 5: 2 to 8 % off where channels lie apart, nothing lost where
they lie together."""


def turned(r: Request, axes: tuple[int, ...], situation: Situation) -> Request:
    """The request with its axes in the order in which they are swept, for which the situation stands."""
    if axes == tuple(range(len(axes))):
        return r
    # a single axis with taps has moved: weights lie in the same order
    back = [axes.index(a) for a in range(len(axes))]
    return _viewed(r, situation, lambda o: o.along(axes), lambda sweep: tuple(sweep[a] for a in back))


def _stacked(r: Request) -> Request:
    """The request with its batch as one more axis, the outermost."""
    s = r.situation
    return _viewed(
        r, replace(s, problem=replace(s.problem, n=1)), lambda o: replace(o, n=0, spatial=(o.n, *o.spatial)),
        lambda sweep: sweep[1:],
    )  # fmt: skip


def _viewed(r: Request, situation: Situation, view: Callable[[Operand], Operand], own: Callable[[Sweep], Sweep]
            ) -> Request:  # fmt: skip
    """The request for a situation in which arrays have other axes; ``own`` leads from its sweeps to the problem's."""
    weights = r.weights
    return replace(
        r, situation=situation, x=view(r.x), y=view(r.y), weights=lambda sweep: weights(own(sweep)),
        residual=None if r.residual is None else view(r.residual),
    )  # fmt: skip


def step(r: Request, sweep: Sweep, b: Boxes, splits: int, keep: list[Any]) -> Step:
    """The step of a sweep in boxes, each of which is cut into so many items by output channels."""
    if is_stacked(r.problem, sweep):
        r = _stacked(r)
    p, case, both = r.problem, b.case, b.case.transformed == 2
    group_out, arith, y, x = case.groups[1], case.arith, case.y, case.x
    row_bytes, block_outputs = ROW_WORDS * arith.bytes, case.vectors * case.lane
    sum_row, columns = block_outputs * arith.bytes, b.columns.first
    common, panel, items = _panel(r, sweep, b, splits)
    height = channel_tile(r.target, arith, case.vectors)
    tile_boxes, tile_rows, runs, kind_tiles = tile_tables(b, height)
    widths = case.vectors, case.last_vectors
    of_width = {n: [None, *tile_addresses(r, "channel", range(1, height + 1), n)] for n in dict.fromkeys(widths)}
    bands = outer_bands(case)
    entry_words, entry_lists = entries(b, bands)
    weight_bytes, *point_weights = places(b)
    transforms = {full: _input_transform(r, b, full) for full in {phase.full for phase in case.phases}}
    key = taps_of(sweep[-len(p.k) :])
    packed = r.packed(
        ("winograd", arith.name, case.lane, case.vectors, b.together, y, x, key), lambda: packed_weights(r, sweep, b)
    )
    values = words.ChannelWords(
        common=common, inputs=panel, transformed=case.transformed, y_lines=b.held[-2].count if both else 1,
        y_apart=b.rows.first.apart, x_apart=columns.apart, outer_lines=b.outer_lines, points=y.n * x.n,
        inner_points=x.n, end_row=(y.n - y.ends) * x.n, end_column=x.n - x.ends, boxes=tile_boxes,
        tile_rows=tile_rows, runs=runs, kind_tiles=kind_tiles,
        products=[of_width[n][tiles] for tiles in range(height + 1) for n in widths], most_tiles=height,
        tiles=b.tiles, tile_line=b.rows.first.residues * b.line_bytes, tile_pixel=columns.residues * row_bytes,
        x_residues=columns.residues, v=b.v, v_point=b.v_point, v_line=b.v_line, v_block=b.v_block, sums=b.sums,
        s_point=b.s_point, s_row=b.tiles * sum_row,
        short=int(any([cut.tiles > cut.full for cut, _ in (*b.columns.alike, *b.rows.alike)])), joined_rows=b.row_notes,
        sum_row=sum_row, out=b.out, out_line=b.out_line, out_pixel=columns.residues * sum_row,
        phase_count=len(case.phases),
        phases=[
            words.PhaseWords(b.held[-2].start[phase.taps[0]] if both else 0, b.held[-1].start[phase.taps[1]],
                       number * b.v_phase, transforms[phase.full])
            for number, phase in enumerate(case.phases)
        ],
        bands=bands_table(bands), entries=entry_words, entry_lists=entry_lists, weights=packed,
        point_weights=point_weights, w_group=weight_bytes, together=b.together, outputs=group_out,
        blocks=case.blocks, split_blocks=-(-case.blocks // splits), block_outputs=block_outputs,
        last_outputs=group_out - (case.blocks - 1) * block_outputs, word_bytes=arith.bytes,
        narrow=int(case.last_vectors < case.vectors), flags=b.flags,
        repair=address_of(r, "winograd again", "again", words.RepairBlock, repair), repair_header=b.v,
        again_words=careful.box_words(r, sweep), again=careful.repair_address(r),
        following=_following(r, sweep, b, items),
        fetches=int(packed.nbytes > r.situation.cache("l2", _DRIVING)),
        bring=address_of(r, "winograd inputs", "inputs", words.BoxInputs, inputs),
        output_transforms=[_output_transform(r, b, vectors) for vectors in widths],
        tables=epilogue_tables(r), planes_out=_planes_out(r, sweep, b),
        move_out=move_out_address(r, Move(arith.accumulator, p.y, along_out(r, sweep[-1], "c"), r.epilogue)),
    )  # fmt: skip
    name, wide = "winograd", r.target.vector_bytes
    address = address_of(r, name, name, Driver, lambda k, name: driver(k, name, wide))
    return Step(address, filled(values, keep), items)


def _panel(r: Request, sweep: Sweep, b: Boxes, splits: int) -> tuple[Common, PanelWords, int]:
    """Words of boxes and of their panels, and how many items there are.

    As ``decode`` sees them axes have boxes instead of outputs; a table says where these lie.
    """
    p, last, case = r.problem, sweep[-1], b.case
    row_bytes, both = ROW_WORDS * r.arith.bytes, case.transformed == 2
    cuts = ((len(b.rows.boxes),) if both else ()) + (len(b.columns.boxes),)
    outer = len(b.outer)
    counted = sweep[:outer] + tuple(replace(a, out=count) for a, count in zip(sweep[outer:], cuts, strict=True))
    common, items = boxed_words(
        r, counted, (*b.outer, *(1 for _ in cuts)), b.held, splits, panel=b.panel, scratch=b.panel - words.ZERO_BYTES,
    )  # fmt: skip
    common = moved_apart(common, r, last, b.held[-1], "c", row_bytes)
    if len(b.columns.boxes) == 1:
        common = moves.moved_by_planes(common, r, sweep, b.held, b.line_bytes, row_bytes)
    return common, PanelWords(
        total_channels=p.c, channels=case.groups[0], block_channels=ROW_WORDS, unpaired=0,
        channel_bytes=r.arith.bytes, row_bytes=row_bytes, block_bytes=b.block_bytes, line_bytes=b.line_bytes,
        chunk=b.chunk, gapless=0,
        move_in=moves.move_in_address(r, Move(p.x, r.arith.accumulator, along_in(r, last, "c"))),
    ), items  # fmt: skip


def _planes_out(r: Request, sweep: Sweep, b: Boxes) -> words.PlanesOut:
    """Words with which the lines of a row of tiles leave together for planes, where they follow each other."""
    last, case = sweep[-1], b.case
    nothing = words.PlanesOut(0, [0], 0, None)
    if case.transformed < 2 or len(b.columns.boxes) > 1 or case.lane < ROW_WORDS or last.out * case.y.m > MOST_LISTED:
        return nothing
    follow = all(o is None or o.spatial[-2] == last.out * o.spatial[-1] for o in (r.y, r.residual))
    if not follow or along_out(r, last, "c") != "cp" or {a.dilation * a.out_step for a in sweep[-2:]} != {1}:
        return nothing
    tables = [
        moves.places_of(case.y.m, b.out_line, last.out, vectors * case.lane * r.arith.bytes, case.lane)
        for vectors in dict.fromkeys((case.vectors, case.last_vectors))
    ]
    return words.PlanesOut(
        together=1, places=tables[0] if len(tables) == 1 else np.concatenate(tables), places_bytes=tables[0].nbytes,
        move=listed_address(r, Move(r.arith.accumulator, r.problem.y, "cp", r.epilogue), ListedMoveOut),
    )  # fmt: skip


def _following(r: Request, sweep: Sweep, b: Boxes, items: int) -> words.NextInputs:
    """Words that say in which runs of bytes the inputs of an item are fetched while the item before is computed."""
    p, last, s = r.problem, sweep[-1], r.situation
    row = b.held[-1].runs[0][1] * last.stride * r.x.spatial[-1]
    runs, step, size = 0, 0, 0
    if along_in(r, last, "c")[0] in "p2":
        runs, step, size = p.c // p.groups, r.x.c, row
    elif r.x.c == r.x.itemsize and p.groups == 1:
        runs, step, size = -(-row // _RUN_BYTES), _RUN_BYTES, _RUN_BYTES
    rows = math.prod(h.count for h in b.held[:-1])
    calls = sum(b.case.points) * b.case.blocks * -(-b.tiles // channel_tile(r.target, b.case.arith, b.case.vectors))
    far = (p.n or 0) * p.c * math.prod(a.inp for a in sweep) * r.x.itemsize > s.cache("l2", 1.0)
    return words.NextInputs(
        notes=b.notes, item_count=items, items_ahead=s.threads, runs_a_call=-(-rows * runs // calls) if far else 0,
        runs_a_row=max(1, runs), run_step=step, run_bytes=size,
        note=address_of(r, "winograd note", "note", Driver, note),
    )  # fmt: skip


def _input_transform(r: Request, b: Boxes, full: tuple[bool, bool]) -> Address[InputTransform]:
    """Address of the input transform of phases with all taps, or one less, along the two axes."""
    element, lane, y, x = r.arith.accumulator, b.case.lane, b.case.y, b.case.x

    def make(k: Module, name: str) -> None:
        input_transform(k, name, y, x, element, lane, full)

    return address_of(r, f"winograd input {y} {x} {element} {full}", "transform", InputTransform, make)


def _output_transform(r: Request, b: Boxes, vectors: int) -> Address[OutputTransform]:
    """Address of the output transform of so many vectors."""
    element, lane, y, x = r.arith.accumulator, b.case.lane, b.case.y, b.case.x

    def make(k: Module, name: str) -> None:
        output_transform(k, name, y, x, element, lane, vectors)

    return address_of(r, f"winograd output {y} {x} {element} {vectors}", "transform", OutputTransform, make)
