"""Winograd's convolution along columns, with the pixels of a row in the lanes: groups of few channels fill no vector.

``columns`` has the scheme, its error and what is computed again.  A box of a group is transformed from where its pixels
lie together, multiplied point by point and transformed back to its place.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, TypeVar

from numpy.typing import NDArray

from polyconv.algorithms.form import Forms
from polyconv.algorithms.winograd import columns
from polyconv.algorithms.winograd.boxes import odd_lines
from polyconv.algorithms.winograd.columns import SCHEME, Box, ColumnsForm, ColumnWords, Sizes, column_words, in_tiles
from polyconv.dataclass import dataclass
from polyconv.kernels.isa import Arithmetic, lanes, pixel_tiles
from polyconv.kernels.language import INT, Module, Value
from polyconv.kernels.layout import Move
from polyconv.kernels.record import Function, Functions, Record, Table, Word, filled
from polyconv.kernels.rows import RowsIn, RowsMultiply, RowsOut, rows_in, rows_multiply, rows_out
from polyconv.kernels.signature import Address
from polyconv.lowering.boxes import boxed_words, boxes, near_equal
from polyconv.lowering.panel import Driver, axis_words, box_rows
from polyconv.lowering.program import Operand, Program, Request, Step, address_of, addresses_of, program_of
from polyconv.lowering.situation import Situation, arith_of, image_bytes, of_one_image
from polyconv.lowering.sweep import Sweep, mean_taps, sweeps, taps_of
from polyconv.lowering.traffic import planes_collide, waiting_cycles
from polyconv.runtime.arrays import aligned
from polyconv.target import Target

__all__ = ["RowsForm", "at_least", "forms"]

_NEAR_SHARE, _BOX_SHARE = 2.0, 3 / 4
"""Workspace of a thread, of a first-level cache, where that takes a row of tiles at least; else, or where lines of
further axes are held as well, of a second-level cache, which also has the weights."""
_HELD_SHARE, _STREAMED = 1 / 2, 16 / 24
"""Share of a second-level cache: weights that stay there.  More stream from the last one, at a share of its bytes a
cycle."""
_SLOWER, _FAR_LINES = 1.04, 1.06
"""Measured over counted cycles of the products, and again where transformed lines of further axes are read."""
_PASS, _FAR_BYTES, _FEW_PLANES = 14.0, 240.0, 16
"""Cycles in which a vector is transformed where a second-level cache holds input and result or a group has few planes;
and bytes that the last cache could send in the cycles that it takes more where not: 10 on a Zen 5, 20 to 30 on an
Emerald Rapids, whose last cache sends two fifths as much."""
_CACHED, _ASKED = 3 / 16, 8 / 24
"""Share of a last cache: input and result beyond it come and go, asked for early, at a share of its bytes a cycle."""
_COLLIDING, _SET_PLANES = 20.0, 32
"""Cycles more that a vector takes where so many planes on both sides lie in the same sets of a cache."""
_FAR_SHARE, _SLOW = 1 / 4, 16.0
"""Results beyond this share of the last cache are asked for before they are written.  Measured on Zen 5: 4 to 16 % off;
with less, 3 % lost.  Where the last cache sends fewer bytes a cycle, as an Emerald Rapids' does, so are those that the
second does not hold: a quarter off."""


class TileWords(Record):
    """A tile of output channels: its first, bytes before its weights, and of them at a point."""

    first: Word
    weights: Word
    point: Word


class RowWords(Record):
    """The driver's words.

    ``pitch`` pixels lie between tiles below each other, among transformed inputs and among sums.  ``multiply`` has for
    every tile its functions of 1, 2, ... ``most_vectors``.
    """

    columns: ColumnWords
    group_in: Word
    group_out: Word
    lanes: Word
    pitch: Word
    transform_in: Function[RowsIn]
    v_channel: Word
    most_vectors: Word
    tiles: Table[TileWords]
    tile_count: Word
    multiply: Functions[RowsMultiply]
    w_group: Word
    s_channel: Word
    transform_out: Function[RowsOut]


def driver(k: Module, name: str) -> None:
    """Add the driver to a module: an item is a box of a group."""
    with k.function(name, Driver) as given:
        p = RowWords.read(k, given.words)
        box = Box.of(k, p.columns, given)
        tall = box.tall
        k.store(k.constant(INT, 0), box.flag, 8)
        with k.loop(0, p.columns.outer_lines) as line, k.loop(0, tall) as tile:
            _transform_inputs(box, p, line.index, tile.index)
        with k.loop(0, box_rows(k, p.columns.common, box.item, 2)) as row:
            _multiply(box, p, row.index)
            with k.loop(0, tall) as tile:
                _transform_back(box, p, row.index, tile.index)
        box.compute_again(box.item.g, box.item.g + 1)


def _transform_inputs(box: Box, p: RowWords, line: Value, tile: Value) -> None:
    """A row of tiles."""
    c = p.columns
    source, there = box.inputs(line, box.k.constant(INT, 0), box.first_line(tile))
    target = c.common.panel + line * c.v_line + tile * p.pitch * c.word_bytes
    box.k.call(p.transform_in, RowsIn(
        source, axis_words(c.common, c.common.axes - 2).x_stride, c.common.x_c, box.workspace + target, c.v_point,
        p.v_channel, p.group_in, *there,
    ))  # fmt: skip


def _multiply(box: Box, p: RowWords, row: Value) -> None:
    """The products of a row of the outer axes: vectors are cut into near-equal parts."""
    k, c = box.k, p.columns
    v, entries, count = box.products(row)
    vectors = ((box.tall - 1) * p.pitch + box.pixels + p.lanes - 1) // p.lanes
    parts = (vectors + p.most_vectors - 1) // p.most_vectors
    with k.loop(0, parts) as part, k.loop(0, p.tile_count) as tile:
        low = part.index * vectors // parts
        here = (part.index + 1) * vectors // parts - low
        of_tile, before = p.tiles.at(tile.index), low * p.lanes * c.word_bytes
        k.call(p.multiply.at(tile.index * p.most_vectors + (here - 1)), RowsMultiply(
            v + before, c.v_point, entries, count, c.weights + (box.item.g * p.w_group + of_tile.weights),
            of_tile.point, box.workspace + (c.sums + of_tile.first * p.s_channel + before), c.s_point, p.s_channel,
            SCHEME.n,
        ))  # fmt: skip


def _transform_back(box: Box, p: RowWords, row: Value, tile: Value) -> None:
    """Results of a row of tiles, to their place."""
    c, zero = p.columns, box.k.constant(INT, 0)
    target, residual = box.results(row * box.tall + tile, zero)
    box.k.call(p.transform_out, RowsOut(
        box.workspace + (c.sums + tile * p.pitch * c.word_bytes), c.s_point, p.s_channel, target, c.y_row, c.common.y_c,
        p.group_out, box.pixels, box.lines_out(tile), c.tables.bias + box.item.g * p.group_out * c.word_bytes,
        residual, c.r_row, c.common.r_c, c.tables.constants, box.flag,
    ))  # fmt: skip


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    reason = columns.refusal(s, "NCHW")
    if reason is not None:
        return reason
    if any(sweep[-1].out_step > 1 for sweep in sweeps(s.problem)):
        return "writes neighbouring outputs of a line together"
    one = of_one_image(s)  # boxes are what is computed again
    return (RowsForm(s, tuple((sweep, _cut(one, sweep)) for sweep in sweeps(s.problem))),)


@dataclass(frozen=True, slots=True)
class RowsForm(ColumnsForm):
    """Boxes of a group for every sweep."""

    def takes(self, x: Operand, y: Operand, residual: Operand | None) -> bool:
        """Whether pixels lie together."""
        return all(o is None or o.spatial[-1] == o.itemsize for o in (x, y, residual))

    def cost(self) -> dict[str, float]:
        """Cycles: products, transforms and moves."""
        terms = [_cycles(self.s, sweep, sizes) for sweep, sizes in self.parts]
        found = {name: sum(of_sweep[name] for of_sweep in terms) for name in terms[0]}
        p, profile = self.s.problem, self.s.profile
        beyond = max(0, sum(image_bytes(p)) - profile.cache("l3", _CACHED))
        far = beyond / profile.stream("l3", _ASKED) + waiting_cycles(self.s, image_bytes(p)[0], apart=False)
        found["moves"] += (p.n or 0) * far
        return found

    def build(self, r: Request) -> Program:
        """Program of a request: one step per sweep."""
        keep: list[Any] = []
        return program_of([_step(r, sweep, sizes, keep) for sweep, sizes in self.parts], self.workspace, keep)


def _vectors(s: Situation, held: int, box: tuple[int, ...]) -> int:
    """Vectors of a channel's sums at a point, where tiles below each other follow after so many inputs."""
    return -(-((box[-2] - 1) * held + box[-1]) // lanes(s.target, arith_of(s)))


def _cycles(s: Situation, sweep: Sweep, sizes: Sizes) -> dict[str, float]:
    """Cycles of the boxes of a sweep."""
    p, arith = s.problem, arith_of(s)
    lane, group_in, group_out = lanes(s.target, arith), p.c // p.groups, p.m // p.groups
    # boxes, the last ones as the part of a box that they are
    count = math.prod(axis.out / b for axis, b in zip(in_tiles(sweep), sizes.box, strict=True))
    times, rows, outer_lines, tall = (p.n or 0) * p.groups * count, sizes.rows, sizes.outer_lines, sizes.box[-2]
    taps = math.prod(mean_taps(axis) for axis in sweep[:-2]) * sweep[-1].taps
    cycles = _point_cycles((_FAR_LINES if outer_lines > 1 else 1.0) * taps, group_in, group_out)
    vectors = _vectors(s, sizes.held[-1].count, sizes.box)
    products = _SLOWER * s.rates(arith).slower * times * rows * vectors * SCHEME.n * cycles
    weights = p.c * group_out * math.prod(axis.taps for axis in sweep) * SCHEME.n // SCHEME.r * arith.bytes
    if weights > s.profile.cache("l2", _HELD_SHARE):
        products += (p.n or 0) * weights / s.profile.stream("l3", _STREAMED)
    across_in, across_out = -(-sizes.held[-1].count // lane), -(-sizes.box[-1] // lane)
    passes = outer_lines * across_in * group_in + rows * across_out * group_out
    transforms = times * tall * (passes * _pass(s) + 60 * (outer_lines + rows))
    return {"products": products, "transforms": transforms, "moves": times * 400}


def _point_cycles(taps: float, group_in: int, group_out: int) -> float:
    """Cycles of the products of a vector at a point, with so many taps that are not transformed."""
    return taps * group_in * (group_out / 2 + 0.6) + group_out + 4


def _pass(s: Situation) -> float:
    """Cycles in which a vector is transformed."""
    p, transforming = s.problem, s.transforming(arith_of(s))
    planes = p.c // p.groups, p.m // p.groups
    if sum(image_bytes(p)) <= s.profile.cache("l2", 1.0) or sum(planes) <= _FEW_PLANES:
        return _PASS * transforming
    collides = planes_collide(p, reading=True) or planes_collide(p, reading=False)
    far = _PASS + _FAR_BYTES / s.profile.stream("l3", 1)
    return far * transforming + (_COLLIDING if collides and min(planes) >= _SET_PLANES else 0.0)


def at_least(s: Situation) -> float:
    """Cycles that products and transforms take, whatever the boxes; infinite where there is no form."""
    p, arith = s.problem, arith_of(s)
    group_in, group_out = p.c // p.groups, p.m // p.groups
    if group_in == 0 or not columns.is_admitted(p):
        return math.inf
    total = 0.0
    for sweep in sweeps(p):
        taps = math.prod(mean_taps(axis) for axis in sweep[:-2]) * sweep[-1].taps
        products = _SLOWER * s.rates(arith).slower * SCHEME.n * _point_cycles(taps, group_in, group_out)
        cycles = products + _PASS * s.transforming(arith) * group_out
        total += math.prod(axis.out for axis in in_tiles(sweep)) * cycles
    return total / lanes(s.target, arith) * (p.n or 0) * p.groups


@lru_cache(512)
def _cut(s: Situation, sweep: Sweep) -> Sizes:
    """The boxes of a sweep."""
    tiled = in_tiles(sweep)
    order = (len(tiled) - 2, *range(len(tiled) - 2), len(tiled) - 1)  # rows of tiles are cut first

    def sizes(cut: tuple[int, ...]) -> Sizes:
        box = dict(zip(order, cut, strict=True))
        return _sizes(s, sweep, tuple(box[a] for a in range(len(cut))))

    whole = [tiled[a].out for a in order]
    room = s.profile.cache("l1", _NEAR_SHARE)
    if len(sweep) > 2 or sizes((1, *whole[1:])).workspace > room:
        room = s.profile.cache("l2", _BOX_SHARE)
    return sizes(boxes(whole, lambda cut: sizes(cut).workspace, s.budget(room)))


def _v_channel(s: Situation, held: int, tall: int) -> int:
    """Bytes of a channel's transformed inputs at a point, which are written by whole vectors."""
    lane, size = lanes(s.target, arith_of(s)), arith_of(s).bytes
    return -(-((tall - 1) * held + -(-held // lane) * lane + 2 * lane) * size // 64) * 64


def _sizes(s: Situation, sweep: Sweep, box: tuple[int, ...]) -> Sizes:
    p, held = s.problem, columns.held_lines(sweep, box)[-1].count
    v_point = odd_lines(p.c // p.groups * _v_channel(s, held, box[-2]))
    s_point = odd_lines(p.m // p.groups * _vectors(s, held, box) * s.target.vector_bytes)
    return columns.sizes(s, sweep, box, v_point, s_point)


def _step(r: Request, sweep: Sweep, sizes: Sizes, keep: list[Any]) -> Step:
    s, p, arith, held = r.situation, r.problem, r.arith, sizes.held[-1].count
    group_in, group_out = p.c // p.groups, p.m // p.groups
    heights, most = _tiles(r.target, arith, group_out)
    of_output = math.prod(axis.taps for axis in sweep) // SCHEME.r * group_in * arith.bytes  # of weights, at a point
    tiles = [TileWords(first, SCHEME.n * first * of_output, height * of_output) for first, height in heights]
    vectors, v_channel = _vectors(s, held, sizes.box), _v_channel(s, held, sizes.box[-2])
    packed = r.packed(
        ("winograd_rows", arith.name, heights, taps_of(sweep)),
        lambda: _packed_weights(r.weights(sweep), sweep[-1].taps, heights),
    )
    entries = columns.entries(sizes, arith.bytes, 1, group_in, v_channel)
    common, items = boxed_words(r, in_tiles(sweep), sizes.box, sizes.held, panel=sizes.panel)
    read, written = ((p.n or 0) * size for size in image_bytes(p))
    values = RowWords(
        columns=column_words(r, common, sweep, sizes, packed, entries), group_in=group_in, group_out=group_out,
        lanes=lanes(r.target, arith), pitch=held, v_channel=v_channel, tiles=tiles, tile_count=len(tiles),
        transform_in=_row(r, Move(p.x, arith.accumulator, "pp"), RowsIn, read > s.cache("l2", 1.0)),
        most_vectors=min(most, vectors), multiply=[f for _, n in heights for f in _functions(r, n, most)[:vectors]],
        w_group=SCHEME.n * group_out * of_output, s_channel=vectors * r.target.vector_bytes,
        transform_out=_row(
            r, Move(arith.accumulator, p.y, "pp", r.epilogue), RowsOut, written > _near_bytes(s)
        ),
    )  # fmt: skip
    address = address_of(r, "winograd_rows", "rows", Driver, driver)
    return Step(address, filled(values, keep), items)


def _near_bytes(s: Situation) -> int:
    """Bytes of results up to which they are written without being asked for."""
    is_slow = s.profile.stream("l3", 1) < _SLOW
    return s.cache("l2", 1.0) if is_slow else s.cache("l3", _FAR_SHARE)


def _tiles(target: Target, arith: Arithmetic, outputs: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """Tiles of output channels: first channel and height of each, and most vectors."""
    sizes = pixel_tiles(target, arith)
    tiles = tuple(near_equal(outputs, max(sizes)))
    highest = max(height for _, height in tiles)
    return tiles, next(sizes[n] for n in sorted(sizes) if n >= highest)


Way = TypeVar("Way", RowsIn, RowsOut)


def _row(r: Request, spec: Move, signature: type[Way], asks: bool) -> Address[Way]:
    """Address of the transform of a row of tiles, one way or the other."""
    lane, f16c = lanes(r.target, r.arith), r.target.converts_f16
    transform = rows_in if spec.epilogue is None else rows_out
    ways = {"row": False, "asking": True}  # both together: a layer that sees images of many sizes compiles once
    return addresses_of(
        r, f"winograd_rows {SCHEME} {spec} {lane}", signature, ways,
        lambda k, name, asks: transform(k, name, spec, SCHEME, lane, f16c=f16c, asks=asks),
    )["asking" if asks else "row"]  # fmt: skip


def _functions(r: Request, height: int, most: int) -> list[Address[RowsMultiply]]:
    """Addresses of the products of so many output channels by 1, 2, ... vectors."""
    element, lane = r.arith.accumulator, lanes(r.target, r.arith)
    widths = {f"multiply{vectors}": vectors for vectors in range(1, most + 1)}
    return list(addresses_of(
        r, f"winograd_rows {element} {lane} {height} {most}", RowsMultiply, widths,
        lambda k, name, vectors: rows_multiply(k, name, element, lane, height, vectors),
    ).values())  # fmt: skip


def _packed_weights(w: NDArray[Any], wide: int, tiles: tuple[tuple[int, int], ...]) -> NDArray[Any]:
    """Weights (groups, m, c, taps) as they stream: [group][tile][point][tap not transformed][channel][output].

    Transformed in float64 and rounded once.
    """
    made = columns.at_points(w, wide).transpose(0, 3, 4, 2, 1)
    packed = aligned((len(w), made[0].size), w.dtype)
    for first, height in tiles:
        begin = first * made[0, ..., 0].size
        part = made[..., first : first + height].reshape(len(w), -1)
        packed[:, begin : begin + part.shape[1]] = part
    return packed
