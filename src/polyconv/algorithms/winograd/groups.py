"""Winograd's convolution along columns, with the channels of several small groups in the lanes: no lane ever moves.

``columns`` has the scheme, its error and what is computed again; blocks of groups and their products are those of
``grouped``.  A row of tiles of a block is transformed from where it lies, multiplied point by point and transformed
back to its place, all within a first-level cache.

Cost: half the products of a direct sum, with lanes filled to whole groups, and the additions of each point's distances.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, TypeVar

from numpy.typing import NDArray

from polyconv.algorithms.form import Forms
from polyconv.algorithms.grouped import side_by_side
from polyconv.algorithms.grouped.side_by_side import block_count, lanes_used, most_rows, packed_weights
from polyconv.algorithms.winograd import columns
from polyconv.algorithms.winograd.boxes import odd_lines
from polyconv.algorithms.winograd.columns import SCHEME, Box, ColumnsForm, ColumnWords, Sizes, column_words
from polyconv.dataclass import dataclass
from polyconv.kernels.fused import Walk, of_sums
from polyconv.kernels.grouped import ColumnsIn, ColumnsOut, columns_in, columns_out
from polyconv.kernels.isa import lanes
from polyconv.kernels.language import INT, Module, Value
from polyconv.kernels.layout import Move
from polyconv.kernels.record import Counted, Function, Record, Word, counted_words, filled
from polyconv.kernels.signature import Address
from polyconv.lowering.boxes import boxed_words, boxes, near_equal
from polyconv.lowering.panel import Driver, axis_words, box_rows
from polyconv.lowering.program import Operand, Program, Request, Step, address_of, program_of
from polyconv.lowering.situation import Situation, arith_of, of_one_image
from polyconv.lowering.sweep import Sweep, mean_taps, sweeps, taps_of
from polyconv.lowering.tiles import tile_cycles

__all__ = ["GroupsForm", "forms"]

_NEAR_SHARE, _BOX_SHARE = 2.0, 1 / 4
"""Workspace of a thread: as a share of a first-level cache; of a second-level one where boxes hold lines of further
axes."""
_MOST_BLOCKS = 16
"""Blocks of an item: neighbours in memory, which come together."""

_SHARED, _TOGETHER = 1024, 4
"""Where pixels lie a multiple of so many bytes apart they share few sets of a cache, and what comes of a line for one
block would be gone before the next; so many blocks are transformed side by side there.  Measured: 5 to 40 % off."""


class WalkWords(Record):
    """A walk along a row: its first pixel, how many tiles, and their function."""

    first: Word
    times: Word
    function: Function[Walk]


class GroupWords(Record):
    """The driver's words.

    So many blocks ``together`` are transformed at a time, and all computed again where a result is not finite.
    ``tiles`` holds two tables, of boxes and of those cut short along the last axis: the walks of a row.
    """

    columns: ColumnWords
    lanes_used: Word
    total_channels: Word
    total_blocks: Word
    item_blocks: Word
    block_groups: Word
    total_groups: Word
    vector_bytes: Word
    columns_in: Function[ColumnsIn]
    together: Word
    v_vector: Word
    tiles: Counted[WalkWords]
    table_words: Word
    w_block: Word
    w_point: Word
    sums_vector: Word
    columns_out: Function[ColumnsOut]


def driver(k: Module, name: str) -> None:
    """Add the driver to a module: rows of tiles, of some blocks of groups."""
    with k.function(name, Driver) as given:
        p = GroupWords.read(k, given.words)
        c, box = p.columns, Box.of(k, p.columns, given)
        first, rows = box.item.g * p.item_blocks, box_rows(k, c.common, box.item, 2)
        blocks = k.minimum(p.item_blocks, p.total_blocks - first)
        with k.loop(0, blocks, p.together) as some:
            block, vectors = some.index, k.minimum(p.together, blocks - some.index)
            absolute = first + block
            channels = k.minimum(p.lanes_used, p.total_channels - absolute * p.lanes_used)
            k.store(k.constant(INT, 0), box.flag, 8)
            with k.loop(0, c.outer_lines) as line:
                _transform_inputs(box, p, line.index, block * p.lanes_used, vectors, channels)
            with k.loop(0, rows) as row:
                with k.loop(0, vectors) as v:
                    _multiply(box, p, absolute + v.index, v.index, row.index)
                _transform_back(box, p, block, absolute, vectors, channels, row.index)
            past = k.minimum((absolute + vectors) * p.block_groups, p.total_groups)
            box.compute_again(absolute * p.block_groups, past)


def _transform_inputs(box: Box, p: GroupWords, line: Value, channel: Value, vectors: Value, channels: Value) -> None:
    """A combined line of the outer axes, of some blocks from a channel on."""
    c, last = p.columns, p.columns.common.axes - 1
    y, x = axis_words(c.common, last - 1), axis_words(c.common, last)
    source, there = box.inputs(line, channel, box.first_line(0))
    box.k.call(p.columns_in, ColumnsIn(
        source, y.x_stride, x.x_stride, p.lanes_used * c.common.x_c, box.workspace + (c.common.panel + line * c.v_line),
        c.v_point, p.v_vector, vectors, channels, *there,
    ))  # fmt: skip


def _multiply(box: Box, p: GroupWords, block: Value, beside: Value, row: Value) -> None:
    """The products of a block, for a row of the outer axes."""
    k, c, workspace = box.k, p.columns, box.workspace
    v, entries, count = box.products(row)
    v, sums = v + beside * p.v_vector, workspace + (c.sums + beside * p.sums_vector)
    weights = c.weights + block * p.w_block
    short = box.pixels < axis_words(c.common, c.common.axes - 1).block
    table = p.tiles + k.select(short, p.table_words * 8, 0)
    points = SCHEME.n - k.select(box.lines_out(0) < SCHEME.m, 1, 0)  # that at infinity is of the last line alone
    with k.loop(0, points) as point, k.loop(0, table.count) as tile:
        walk = table.at(tile.index)
        first = walk.first * p.vector_bytes
        k.call(walk.function, Walk(
            v + (point.index * c.v_point + first), p.vector_bytes, entries, count, weights + point.index * p.w_point,
            sums + (point.index * c.s_point + first), p.vector_bytes, workspace, 0, walk.times, p.lanes_used,
            c.tables.bias, c.tables.scale, c.tables.constants, workspace,
        ))  # fmt: skip


def _transform_back(box: Box, p: GroupWords, block: Value, absolute: Value, vectors: Value, channels: Value, row: Value
                    ) -> None:  # fmt: skip
    """Results of a row of the outer axes, to their place."""
    c, last = p.columns, axis_words(p.columns.common, p.columns.common.axes - 1)
    target, residual = box.results(row, block * p.lanes_used)
    box.k.call(p.columns_out, ColumnsOut(
        box.workspace + c.sums, c.s_point, p.sums_vector, target, c.y_row, last.y_stride, p.lanes_used * c.common.y_c,
        vectors, channels, p.lanes_used, box.pixels, box.lines_out(0),
        c.tables.bias + absolute * p.lanes_used * c.word_bytes, residual, c.r_row, last.r_stride, c.common.r_c,
        c.tables.constants, box.flag,
    ))  # fmt: skip


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    p = s.problem
    if p.c != p.m:
        return f"needs groups with as many channels out as in, not {p.c // p.groups} and {p.m // p.groups}"
    if p.c // p.groups > lanes(s.target, arith_of(s)):
        return "a group is wider than a vector"
    if (reason := columns.refusal(s, "NHWC")) is not None:
        return reason
    one = of_one_image(s)  # boxes are what is computed again
    return (GroupsForm(s, tuple((sweep, _cut(one, sweep)) for sweep in sweeps(p))),)


@dataclass(frozen=True, slots=True)
class GroupsForm(ColumnsForm):
    """Boxes for every sweep, of some blocks of groups."""

    def takes(self, x: Operand, y: Operand, residual: Operand | None) -> bool:
        """Whether channels lie together."""
        return all(o is None or o.c == o.itemsize for o in (x, y, residual))

    def cost(self) -> dict[str, float]:
        """Cycles: products and transforms."""
        s, p = self.s, self.s.problem
        terms = [_cycles(s, sweep, sizes) for sweep, sizes in self.parts]
        times = (p.n or 0) * block_count(s, arith_of(s))
        return {name: times * sum(of_sweep[name] for of_sweep in terms) for name in terms[0]}

    def build(self, r: Request) -> Program:
        """Program of a request: one step per sweep."""
        keep: list[Any] = []
        return program_of([_step(r, sweep, sizes, keep) for sweep, sizes in self.parts], self.workspace, keep)


def _cycles(s: Situation, sweep: Sweep, sizes: Sizes) -> dict[str, float]:
    """Cycles of the boxes of a sweep, of a block."""
    group, rates = s.problem.c // s.problem.groups, s.rates(arith_of(s))
    *outer, y, x = sweep
    # rows of tiles, the last of which is short
    count = math.prod(-(-axis.out // b) for axis, b in zip([*outer, x], [*sizes.box[:-2], sizes.box[-1]], strict=True))
    times, rows, lines = count * (y.out / SCHEME.m + 0.2), sizes.rows, sizes.outer_lines
    pixels_in, pixels_out = sizes.held[-1].count, sizes.box[-1]
    taps, far = math.prod(mean_taps(axis) for axis in outer) * x.taps, 1.2 if lines > 1 else 1.0
    each = 10.0 * s.transforming(arith_of(s))
    products = 20.0
    for _, pixels in near_equal(pixels_out, most_rows(s.target, group)):
        alone = group / 2 if pixels == 1 else 0.0  # little else to do while its sums are added
        products += taps * tile_cycles(rates, pixels, group) * far + 4 + 0.35 * pixels * group + alone
    transforms = 200.0 + lines * (40 + pixels_in * each) + rows * (80 + pixels_out * each)
    return {"products": times * rows * SCHEME.n * products, "transforms": times * transforms}


@lru_cache(256)
def _cut(s: Situation, sweep: Sweep) -> Sizes:
    """The boxes of a sweep."""
    whole = tuple(axis.out for axis in (*sweep[:-2], sweep[-1]))
    room = s.profile.cache("l1", _NEAR_SHARE) if len(sweep) == 2 else s.profile.cache("l2", _BOX_SHARE)

    def sizes(cut: tuple[int, ...]) -> Sizes:
        return _sizes(s, sweep, (*cut[:-1], 1, cut[-1]))

    return sizes(boxes(whole, lambda cut: sizes(cut).workspace, s.budget(room)))


def _sizes(s: Situation, sweep: Sweep, box: tuple[int, ...]) -> Sizes:
    pixel = s.target.vector_bytes
    v_point = odd_lines(columns.held_lines(sweep, box)[-1].count * pixel)
    return columns.sizes(s, sweep, box, v_point, odd_lines(box[-1] * pixel), _together(s))


def _together(s: Situation) -> int:
    """Blocks whose columns are transformed side by side."""
    p = s.problem
    whole = p.c % lanes_used(s, arith_of(s)) == 0
    return min(_TOGETHER, block_count(s, arith_of(s))) if whole and p.c * p.x_dtype.itemsize % _SHARED == 0 else 1


def _step(r: Request, sweep: Sweep, sizes: Sizes, keep: list[Any]) -> Step:
    s, p, arith, last = r.situation, r.problem, r.arith, sweep[-1]
    group, used, blocks, lane = p.c // p.groups, lanes_used(s, arith), block_count(s, arith), lanes(r.target, arith)
    pixel, together = r.target.vector_bytes, _together(s)
    of_tap = group * pixel
    w_point = math.prod(axis.taps for axis in sweep) // SCHEME.r * of_tap
    functions, most = side_by_side.tile_functions(r, of_sums(arith.name), group, Walk), most_rows(r.target, group)
    tables = [
        [WalkWords(*walk) for walk in side_by_side.walks_of(functions, pixels, most)]
        for pixels in (sizes.box[-1], last.out % sizes.box[-1])
    ]
    packed = r.packed(
        ("winograd_groups", arith.name, lane, taps_of(sweep)),
        lambda: _packed_weights(r.weights(sweep), last.taps, lane),
    )
    item_blocks = -(-blocks // -(-blocks // _MOST_BLOCKS))
    common, items = boxed_words(
        side_by_side.of_blocks(r), columns.in_tiles(sweep), sizes.box, sizes.held, block_groups=item_blocks,
        panel=sizes.panel,
    )  # fmt: skip
    values = GroupWords(
        columns=column_words(r, common, sweep, sizes, packed, columns.entries(sizes, pixel, of_tap)),
        lanes_used=used, total_channels=p.c, total_blocks=blocks, item_blocks=item_blocks, block_groups=used // group,
        total_groups=p.groups, vector_bytes=pixel, together=together,
        columns_in=_columns(r, Move(p.x, arith.accumulator, "cc"), together > 1, ColumnsIn),
        v_vector=sizes.outer_lines * SCHEME.n * sizes.v_point, tiles=tables,
        table_words=counted_words(WalkWords, tables), w_block=SCHEME.n * w_point, w_point=w_point,
        sums_vector=SCHEME.n * sizes.s_point,
        columns_out=_columns(r, Move(arith.accumulator, p.y, "cc", r.epilogue), together > 1, ColumnsOut),
    )  # fmt: skip
    return Step(address_of(r, "winograd_groups", "groups", Driver, driver), filled(values, keep), items)


Columns = TypeVar("Columns", ColumnsIn, ColumnsOut)


def _columns(r: Request, spec: Move, several: bool, signature: type[Columns]) -> Address[Columns]:
    """Address of the transform of a row of tiles, one way or the other."""
    lane, f16c = lanes(r.target, r.arith), r.target.converts_f16
    make = columns_in if spec.epilogue is None else columns_out

    label = f"columns {SCHEME} {spec} {lane}{' several' * several}"
    return address_of(
        r, label, "columns", signature, lambda k, name: make(k, name, spec, SCHEME, lane, several=several, f16c=f16c)
    )


def _packed_weights(w: NDArray[Any], wide: int, lane: int) -> NDArray[Any]:
    """Weights (groups, m, c, taps) as [block][point][tap not transformed][distance][lane].

    Transformed in float64 and rounded once.
    """
    return packed_weights(columns.at_points(w, wide).reshape(*w.shape[:3], -1).astype(w.dtype), lane)
