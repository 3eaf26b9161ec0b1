"""Programs of the Winograd algorithm: the words and tables of its driver, and the transforms it calls.

What they carry out, its cost and its error are in ``winograd_plan``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.dense import direct
from polyconv.algorithms.dense.channel_panel import PanelWords
from polyconv.algorithms.panel import Common, Driver
from polyconv.algorithms.program import (
    MOST_LISTED,
    Operand,
    Program,
    Request,
    Step,
    address_of,
    along_in,
    along_out,
    boxed_words,
    epilogue_tables,
    listed_out_address,
    move_in_address,
    move_out_address,
    moved_apart,
    moved_by_planes,
    places_of,
    tile_addresses,
)
from polyconv.algorithms.sweep import Bands, Sweep, bands_table
from polyconv.algorithms.winograd_again import again
from polyconv.algorithms.winograd_ahead import note
from polyconv.algorithms.winograd_driver import (
    BoxAgain,
    BoxInputs,
    EarlyWords,
    EntryList,
    KindTiles,
    PhaseWords,
    PlanesOut,
    TileBox,
    TileRow,
    TileRun,
    WinogradWords,
    driver,
)
from polyconv.algorithms.winograd_inputs import inputs as bring
from polyconv.algorithms.winograd_plan import (
    NEAR_BYTES,
    Cut,
    Plan,
    again_box,
    is_stacked,
    order,
    outer_bands,
    parts,
    shared,
    turned,
    workspace,
)
from polyconv.algorithms.winograd_weights import packed_weights, places
from polyconv.kernels.isa import channel_tile, lanes
from polyconv.kernels.language import Module
from polyconv.kernels.layout import Move
from polyconv.kernels.record import filled, words
from polyconv.kernels.signature import Address, Signature
from polyconv.kernels.tile import ROW_WORDS
from polyconv.kernels.transform import InputTransform, OutputTransform, input_transform, output_transform

__all__ = ["build"]

_RUN_BYTES = 1 << 10
"""Inputs that lie together are asked for by so many bytes at a time."""
_DRIVING_BYTES = 10 << 20
"""Transformed weights that drive inputs out of the caches from call to call: each chunk is asked for before its turn.
Measured: 2 to 8 % off where channels lie apart, nothing to lose where they lie together."""

def build(r: Request) -> Program:
    """Program of a request: one step per sweep."""
    r = _turned(r)
    keep: list[Any] = []
    name, wide = "winograd", r.target.vector_bytes
    address = address_of(r, name, name, Driver, lambda k, name: driver(k, name, wide))
    steps = [
        direct.sweep_step(r, sweep, keep) if plan is None
        else _step(_stacked(r) if is_stacked(r.problem, sweep) else r, sweep, plan, address, keep)
        for sweep, plan in parts(r.situation)
    ]
    return Program(tuple(step for step in steps if step.items), workspace(r.situation), tuple(keep))


def _turned(r: Request) -> Request:
    """The request with its axes in the order in which they are swept."""
    axes, weights = order(r.problem), r.weights
    if axes == tuple(range(len(axes))):
        return r

    def turn(o: Operand) -> Operand:
        return replace(o, spatial=tuple(o.spatial[a] for a in axes))

    def of_sweep(sweep: Sweep) -> NDArray[Any]:  # a single axis with taps has moved: they lie in the same order
        return weights(tuple(sweep[axes.index(a)] for a in range(len(axes))))

    return replace(
        r, situation=turned(r.situation), x=turn(r.x), y=turn(r.y), weights=of_sweep,
        residual=None if r.residual is None else turn(r.residual),
    )  # fmt: skip


def _stacked(r: Request) -> Request:
    """The request with its batch as one more axis, the outermost."""
    def stack(o: Operand) -> Operand:
        return replace(o, n=0, spatial=(o.n, *o.spatial))

    weights, s = r.weights, r.situation
    return replace(
        r, situation=replace(s, problem=replace(s.problem, n=1)), x=stack(r.x), y=stack(r.y),
        weights=lambda sweep: weights(sweep[1:]), residual=None if r.residual is None else stack(r.residual),
    )  # fmt: skip


def _step(r: Request, sweep: Sweep, alone: Plan, address: Address[Driver], keep: list[Any]) -> Step:
    p, arith = r.problem, r.arith
    plan, splits = shared(r.situation, arith, sweep, alone)
    group_in, group_out = p.c // p.groups, p.m // p.groups
    lane = lanes(r.target, arith)
    row_bytes, block_outputs = ROW_WORDS * arith.bytes, plan.vectors * lane
    sum_row = block_outputs * arith.bytes
    common, inputs, items = _panel(r, sweep, plan, splits)
    boxes, records, runs, lists = _tables(r, plan)
    height = channel_tile(r.target, plan.vectors)
    functions = [
        [None, *tile_addresses(r, "channel", range(1, height + 1), last)] for last in (plan.vectors, plan.last_vectors)
    ]
    found = outer_bands(sweep, plan.transformed, len(plan.phases), group_in)
    entries, kinds = _entries(plan, found, group_in)
    weight_bytes, *point_weights = places(r, sweep, plan)
    transforms = {full: _input_transform(r, plan, full) for full in {phase.full for phase in plan.phases}}
    key = tuple((a.taps, a.first_tap, a.tap_step) for a in sweep[-len(p.k) :])
    packed = r.packed(
        ("winograd", arith.name, lane, plan.vectors, plan.together, plan.y, plan.x, key),
        lambda: packed_weights(r, sweep, plan),
    )
    most = again_box(plan.transformed, plan.rows, plan.columns, plan.outer)
    values = WinogradWords(
        common=common, inputs=inputs, transformed=plan.transformed,
        y_lines=plan.held[-2].count if plan.transformed == 2 else 1, y_apart=plan.rows[0].apart,
        x_apart=plan.columns[0].apart, outer_lines=math.prod(h.count for h in plan.held[: len(plan.outer)]),
        points=plan.y.n * plan.x.n, inner_points=plan.x.n, end_row=(plan.y.n - plan.y.ends) * plan.x.n,
        end_column=plan.x.n - plan.x.ends, boxes=boxes, records=records, runs=runs, lists=lists,
        functions=[function for pair in zip(*functions, strict=True) for function in pair], most_tiles=height,
        tiles=plan.tiles, tile_line=plan.rows[0].residues * plan.line_bytes,
        tile_pixel=plan.columns[0].residues * row_bytes, x_residues=plan.columns[0].residues,
        v=plan.v, v_point=plan.v_point, v_line=plan.v_line, v_block=plan.v_block, sums=plan.sums,
        s_point=plan.s_point, s_row=plan.tiles * sum_row, short=int(_has_short(plan)), rows=plan.row_notes,
        sum_row=sum_row, out=plan.out, out_line=plan.out_line, out_pixel=plan.columns[0].residues * sum_row,
        phase_count=len(plan.phases),
        phases=[
            PhaseWords(phase.line, phase.pixel, number * plan.v_phase, transforms[phase.full])
            for number, phase in enumerate(plan.phases)
        ],
        bands=words(bands_table(found)), entries=words(entries), kinds=kinds, weights=packed,
        point_weights=words(point_weights), w_group=weight_bytes, together=plan.together, outputs=group_out,
        blocks=plan.blocks, split_blocks=-(-plan.blocks // splits), block_outputs=block_outputs,
        last_outputs=group_out - (plan.blocks - 1) * block_outputs, word_bytes=arith.bytes,
        narrow=int(plan.last_vectors < plan.vectors), flags=plan.flags, again=_part(r, again, BoxAgain),
        again_header=plan.v, again_words=direct.again_words(r, sweep, most, plan.vectors),
        repair=direct.repair_address(r), early=_early(r, sweep, plan, items),
        asks=int(packed.nbytes > r.situation.near(_DRIVING_BYTES)), bring=_part(r, bring, BoxInputs),
        output_transforms=[_output_transform(r, plan, vectors) for vectors in (plan.vectors, plan.last_vectors)],
        tables=epilogue_tables(r), planes_out=_planes_out(r, sweep, plan),
        move_out=move_out_address(r, Move(arith.accumulator, p.y, along_out(r, sweep[-1], "c"), r.epilogue)),
    )  # fmt: skip
    return Step(address, filled(values, keep), items)


def _panel(r: Request, sweep: Sweep, plan: Plan, splits: int) -> tuple[Common, PanelWords, int]:
    """Words of boxes and of their panels, and how many items there are.

    As ``decode`` sees them axes have boxes instead of outputs; a table says where these lie.
    """
    p, last, both = r.problem, sweep[-1], plan.transformed == 2
    row_bytes, outer_axes = ROW_WORDS * r.arith.bytes, len(sweep) - plan.transformed
    cuts = ((len(plan.rows),) if both else ()) + (len(plan.columns),)
    counted = sweep[:outer_axes] + tuple(
        replace(axis, out=count) for axis, count in zip(sweep[outer_axes:], cuts, strict=True)
    )
    common, items = boxed_words(
        r, counted, (*plan.outer, *((1, 1) if both else (1,))), plan.held, splits,
        panel=plan.panel, scratch=plan.panel - 256,
    )  # fmt: skip
    common = moved_apart(common, r, last, plan.held[-1], "c", row_bytes)
    if len(plan.columns) == 1:
        common = moved_by_planes(common, r, sweep, plan.held, plan.line_bytes, row_bytes)
    return common, PanelWords(
        total_channels=p.c, channels=p.c // p.groups, block_channels=ROW_WORDS, unpaired=0,
        channel_bytes=r.arith.bytes, row_bytes=row_bytes, block_bytes=plan.block_bytes, line_bytes=plan.line_bytes,
        chunk=plan.chunk, move_in=move_in_address(r, Move(p.x, r.arith.accumulator, along_in(r, last, "c"))),
    ), items  # fmt: skip


def _planes_out(r: Request, sweep: Sweep, plan: Plan) -> PlanesOut:
    """Words with which the lines of a row of tiles leave together for planes, where they follow each other."""
    last, lane = sweep[-1], lanes(r.target, r.arith)
    nothing = PlanesOut(0, words([0]), 0, None)
    if plan.transformed < 2 or len(plan.columns) > 1 or lane < ROW_WORDS or last.out * plan.y.m > MOST_LISTED:
        return nothing
    follow = all(o is None or o.spatial[-2] == last.out * o.spatial[-1] for o in (r.y, r.residual))
    if not follow or along_out(r, last, "c") != "cp" or {a.dilation * a.out_step for a in sweep[-2:]} != {1}:
        return nothing
    tables = [
        places_of(plan.y.m, plan.out_line, last.out, vectors * lane * r.arith.bytes, lane)
        for vectors in (plan.vectors, plan.last_vectors)
    ]
    return PlanesOut(
        together=1, places=np.concatenate(tables), places_bytes=tables[0].nbytes,
        move=listed_out_address(r, Move(r.arith.accumulator, r.problem.y, "cp", r.epilogue)),
    )  # fmt: skip


def _early(r: Request, sweep: Sweep, plan: Plan, items: int) -> EarlyWords:
    """Words that say in which runs of bytes the inputs of an item are asked for while the item before is computed."""
    p, last = r.problem, sweep[-1]
    row = plan.held[-1].runs[0][1] * last.stride * r.x.spatial[-1]
    runs, step, size = 0, 0, 0
    if along_in(r, last, "c")[0] in "p2":
        runs, step, size = p.c // p.groups, r.x.c, row
    elif r.x.c == r.x.itemsize and p.groups == 1:
        runs, step, size = -(-row // _RUN_BYTES), _RUN_BYTES, _RUN_BYTES
    rows = math.prod(h.count for h in plan.held[:-1])
    calls = plan.y.n * plan.x.n * plan.blocks * -(-plan.tiles // channel_tile(r.target, plan.vectors))
    far = (p.n or 0) * p.c * math.prod(axis.inp for axis in sweep) * r.x.itemsize > r.situation.near(NEAR_BYTES)
    return EarlyWords(
        notes=plan.notes, item_count=items, items_ahead=r.situation.threads,
        runs_a_call=-(-rows * runs // calls) if far else 0, runs_a_row=max(1, runs), run_step=step,
        run_bytes=size, note=_part(r, note, Driver),
    )  # fmt: skip


def _entries(plan: Plan, found: Sequence[Bands], group_in: int
             ) -> tuple[list[int], list[EntryList]]:  # fmt: skip
    """Entries of the channel tiles, and which of them every combination of bands and kind of point has."""
    held = plan.held[: len(found)]
    taps = math.prod(len(h.start) for h in held)
    entries: list[int] = []
    kinds: list[EntryList] = []
    for ranges in itertools.product(*(kinds for kinds, _ in found)):
        outer = [(0, 0)]
        for h, some in zip(held, ranges, strict=True):
            outer = [(o * h.count + h.start[t], tap * len(h.start) + t) for o, tap in outer for t in some]
        for kind in range(4):
            entering = [number for number, phase in enumerate(plan.phases) if phase.enters(kind)]
            at = len(entries) // 3
            for block, first in enumerate(range(0, group_in, ROW_WORDS)):
                count = min(ROW_WORDS, group_in - first)
                for place, number in enumerate(entering):
                    before = (first * len(entering) + place * count) * taps
                    for o, tap in outer:
                        where = o * plan.v_line + number * plan.v_phase + block * plan.v_block
                        entries += (where, count, before + tap * count)
            kinds.append(EntryList(at, len(entries) // 3 - at))
    return entries, kinds


def _tables(r: Request, plan: Plan) -> tuple[list[TileBox], list[TileRow], list[TileRun], list[KindTiles]]:
    """Boxes, the rows of tiles of each, the runs of a row, and for each kind of point its tiles.

    The tiles of a box are numbered so that those a point needs are neighbours: short row and full column,
    full both, short column, short both.  The point at infinity of an axis does without its short tiles.
    """
    most = channel_tile(r.target, plan.vectors)
    boxes: list[TileBox] = []
    records: list[TileRow] = []
    runs: list[TileRun] = []
    lists: list[KindTiles] = []
    runs_at = []
    for columns in plan.columns:
        here = _row_of_tiles(columns, plan.x.m, plan.columns[0].residues)
        runs_at.append((len(runs), len(here)))
        runs += here
    for rows in plan.rows:
        for columns, runs_here in zip(plan.columns, runs_at, strict=True):
            ends = _class_ends(plan, rows, columns)
            of_box = _records(plan, rows, columns)
            boxes.append(TileBox(
                rows.first, rows.span, columns.first, columns.span, *columns.segments, len(records), len(of_box),
                *runs_here, len(lists), joins=int(ends[-1] == plan.tiles),
            ))  # fmt: skip
            records += of_box
            for low, high in ((0, 4), (0, 2), (1, 3), (1, 2)):
                tiles = ends[high] - ends[low]
                calls = -(-tiles // most)
                lists.append(KindTiles(ends[low], calls, *divmod(tiles, max(1, calls))))
    return boxes, records, runs, lists


def _class_ends(plan: Plan, rows: Cut, columns: Cut) -> list[int]:
    """Where the four classes of tiles begin, and where the last ends."""
    full_rows, full_columns = rows.full, columns.full
    short_rows, short_columns = rows.tiles - full_rows, columns.tiles - full_columns
    counts = (
        short_rows * full_columns, full_rows * full_columns, full_rows * short_columns, short_rows * short_columns,
    )  # fmt: skip
    return [0, *itertools.accumulate(counts)]


def _row_of_tiles(columns: Cut, m: int, pitch: int) -> list[TileRun]:
    """Runs of tiles next to each other: those of a residue, or of residues alike, whichever are fewer.

    Neighbours in a tile lie ``pitch`` pixels apart in the panel.
    """
    by_residue = [
        (low + r + pitch * sum(sizes[:first]), sizes[first], count, pitch * sizes[first])
        for low, residues, sizes in columns.alike for r in range(residues)
        for first, count in ((0, sizes.count(m)), (sizes.count(m), len(sizes) - sizes.count(m))) if count
    ]  # fmt: skip
    by_tile = [
        (low + pitch * sum(sizes[:i]), size, residues, 1)
        for low, residues, sizes in columns.alike for i, size in enumerate(sizes)
    ]  # fmt: skip
    runs: list[TileRun] = []
    full = short = 0
    for pixel, size, count, step in min(by_residue, by_tile, key=len):
        if size == m:
            runs.append(TileRun(pixel, full, count, step, size, short=0))
            full += count
        else:
            runs.append(TileRun(pixel, short, count, step, size, short=1))
            short += count
    return runs


def _records(plan: Plan, rows: Cut, columns: Cut) -> list[TileRow]:
    """The rows of tiles of a box."""
    full_columns = columns.full
    short_columns = columns.tiles - full_columns
    _, class_1, class_2, class_3, _ = _class_ends(plan, rows, columns)
    records: list[TileRow] = []
    full, short, pitch = 0, 0, plan.rows[0].residues
    for low, residues, sizes in rows.alike:
        for r in range(low, low + residues):
            done = 0
            for size in sizes:
                if size == plan.y.m:
                    tiles = class_1 + full * full_columns, class_2 + full * short_columns
                    full += 1
                else:
                    tiles = short * full_columns, class_3 + short * short_columns
                    short += 1
                records.append(TileRow(pitch * done + r, rows.apart * done + r, size, *tiles))
                done += size
    return records


def _has_short(plan: Plan) -> bool:
    return any(cut.tiles > cut.full for cut in (*plan.columns, *plan.rows))


S = TypeVar("S", bound=Signature)


def _part(r: Request, make: Callable[[Module, str], None], signature: type[S]) -> Address[S]:
    """Address of a part of the driver's work that is a kernel of its own."""
    return address_of(r, f"winograd {make.__name__}", make.__name__, signature, make)


def _input_transform(r: Request, plan: Plan, full: tuple[bool, bool]) -> Address[InputTransform]:
    """Address of the input transform of phases with all taps, or one less, along the two axes."""
    element, lane, y, x = r.arith.accumulator, lanes(r.target, r.arith), plan.y, plan.x

    def make(k: Module, name: str) -> None:
        input_transform(k, name, y, x, element, lane, full)

    return address_of(r, f"winograd input {y} {x} {element} {full}", "transform", InputTransform, make)


def _output_transform(r: Request, plan: Plan, vectors: int) -> Address[OutputTransform]:
    """Address of the output transform of so many vectors."""
    element, lane, y, x = r.arith.accumulator, lanes(r.target, r.arith), plan.y, plan.x

    def make(k: Module, name: str) -> None:
        output_transform(k, name, y, x, element, lane, vectors)

    return address_of(r, f"winograd output {y} {x} {element} {vectors}", "transform", OutputTransform, make)
