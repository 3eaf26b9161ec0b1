"""Winograd's convolution along columns, with the pixels of a row in the lanes: groups of few channels fill no vector.

``columns`` has the scheme, its error and what is computed again.  A box of a group is transformed, multiplied point by
point and transformed back.  Where pixels lie together the transforms read inputs and write results as they lie; else
planes are brought and taken away, of so many groups that channels fill vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from numpy.typing import NDArray

from polyconv.algorithms.careful import box_bytes
from polyconv.algorithms.form import Forms
from polyconv.algorithms.winograd import columns
from polyconv.algorithms.winograd.boxes import odd_lines
from polyconv.algorithms.winograd.columns import SCHEME, ColumnsForm, Sizes, column_words, held_lines, in_tiles
from polyconv.algorithms.winograd.rows_driver import RowWords, TileWords, driver
from polyconv.kernels.epilogue import Epilogue
from polyconv.kernels.isa import lanes, pixel_tiles
from polyconv.kernels.layout import Move
from polyconv.kernels.record import filled
from polyconv.kernels.rows import RowsApart, RowsIn, RowsMultiply, RowsOut, rows_apart, rows_in, rows_multiply, rows_out
from polyconv.kernels.signature import Address
from polyconv.lowering.boxes import boxed_words, boxes, near_equal
from polyconv.lowering.moves import along_in, along_out
from polyconv.lowering.panel import Driver, header_bytes
from polyconv.lowering.program import Program, Request, Step, address_of, addresses_of, program_of
from polyconv.lowering.situation import Situation, arith_of, image_bytes, of_one_image
from polyconv.lowering.sweep import Sweep, mean_taps, sweeps, taps_of
from polyconv.lowering.tiles import is_fusible
from polyconv.lowering.traffic import planes_collide
from polyconv.runtime.arrays import aligned
from polyconv.target import Target

__all__ = ["RowsForm", "at_least", "forms"]

_NEAR_SHARE, _BOX_SHARE = 2.0, 3 / 4
"""Workspace of a thread, of a first-level cache, where that takes a row of tiles at least; else, or where lines of
further axes or planes are held as well, of a second-level cache, which also has the weights."""
_HELD_SHARE, _STREAMED = 1 / 2, 16 / 24
"""Share of a second-level cache: weights that stay there.  More stream from the last one, at a share of its bytes a
cycle."""
_SLOWER, _FAR_LINES = 1.04, 1.06
"""Measured over counted cycles of the products, and again where transformed lines of further axes are read."""
_PASS, _FAR_PASS, _FEW_PLANES = 14.0, 24.0, 16
"""Cycles in which a vector is transformed: where a second-level cache holds input and result or a group has few planes,
and where not."""
_FAR, _ASKED = 3 / 24, 8 / 24
"""Shares of the last cache's bytes a cycle at which arrays come and go, and where they are asked for early."""
_COLLIDING, _SET_PLANES = 20.0, 32
"""Cycles more that a vector takes where so many planes on both sides lie in the same sets of a cache."""
_FAR_SHARE = 1 / 4
"""Results beyond this share of the last cache are asked for before they are written.  Measured on Zen 5: 4 to 16 % off;
with less, 3 % lost."""


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    reason = columns.refusal(s)
    if reason is not None:
        return reason
    one, found = of_one_image(s), sweeps(s.problem)  # boxes are what is computed again
    near = s.problem.layout == "NCHW" and is_fusible(s.problem)
    parts, others = (tuple((sweep, _cut(one, sweep, lie)) for sweep in found) for lie in (near, not near))
    return (RowsForm(s, parts, others),)


@dataclass(frozen=True, slots=True)
class RowSizes(Sizes):
    """Sizes of a sweep's boxes, of so many ``groups``: vectors of a row, bytes between planes, and places of flags.

    Planes of inputs and results are held, a group or more, unless both lie as the transforms take them (``near``).
    """

    groups: int
    vectors: int
    channel_bytes: int
    v_channel: int
    out_channel: int
    flags: int

    @property
    def near(self) -> bool:
        """Whether pixels lie together in input and result, so that no planes are held."""
        return not self.channel_bytes


@dataclass(frozen=True, slots=True)
class RowsForm(ColumnsForm):
    """Boxes for every sweep; ``others`` are those for arrays that lie otherwise than the layout says."""

    parts: tuple[tuple[Sweep, RowSizes], ...]
    others: tuple[tuple[Sweep, RowSizes], ...]

    @property
    def workspace(self) -> int:
        """Bytes a thread needs, however arrays lie."""
        return max(sizes.workspace for _, sizes in self.parts + self.others)

    def cost(self) -> dict[str, float]:
        """Cycles: products, transforms and moves."""
        s, terms = self.s, [_cycles(self.s, sweep, sizes) for sweep, sizes in self.parts]
        found = {name: sum(of_sweep[name] for of_sweep in terms) for name in terms[0]}
        found["moves"] += self.far_cycles(_ASKED if s.problem.layout == "NCHW" else _FAR)
        return found

    def build(self, r: Request) -> Program:
        """Program of a request: one step per sweep."""
        keep: list[Any] = []
        steps = [_step(r, ways, keep) for ways in zip(self.parts, self.others, strict=True)]
        return program_of(steps, self.workspace, keep)


def _cycles(s: Situation, sweep: Sweep, sizes: RowSizes) -> dict[str, float]:
    """Cycles of the boxes of a sweep."""
    p, arith = s.problem, arith_of(s)
    lane, group_in, group_out, near = lanes(s.target, arith), p.c // p.groups, p.m // p.groups, p.layout == "NCHW"
    # boxes, the last ones as the part of a box that they are
    count = math.prod(axis.out / b for axis, b in zip(in_tiles(sweep), sizes.box, strict=True))
    times, rows, outer_lines, tall = (p.n or 0) * p.groups * count, sizes.rows, sizes.outer_lines, sizes.box[-2]
    taps = math.prod(mean_taps(axis) for axis in sweep[:-2]) * sweep[-1].taps
    cycles = _point_cycles((_FAR_LINES if outer_lines > 1 else 1.0) * taps, group_in, group_out)
    products = _SLOWER * s.rates(arith).slower * times * rows * sizes.vectors * SCHEME.n * cycles
    weights = p.c * group_out * math.prod(axis.taps for axis in sweep) * SCHEME.n // SCHEME.r * arith.bytes
    if weights > s.profile.cache("l2", _HELD_SHARE):
        products += (p.n or 0) * weights / s.profile.stream("l3", _STREAMED)
    across_in, across_out = -(-sizes.held[-1].count // lane), -(-sizes.box[-1] // lane)
    vectors = outer_lines * across_in * group_in + rows * across_out * group_out
    transforms = times * tall * (vectors * _pass(s) + 60 * (outer_lines + rows))
    moves = times * 400 / sizes.groups
    if not near:
        a_vector = 230 if image_bytes(p)[0] > s.profile.cache("l3", 2 * columns.HELD_SHARE) else 110
        moves += times * outer_lines * (tall * SCHEME.m + 2) * across_in * group_in / lane * a_vector
        moves += times * rows * tall * SCHEME.m * across_out * group_out / lane * 140
    return {"products": products, "transforms": transforms, "moves": moves}


def _point_cycles(taps: float, group_in: int, group_out: int) -> float:
    """Cycles of the products of a vector at a point, with so many taps that are not transformed."""
    return taps * group_in * (group_out / 2 + 0.6) + group_out + 4


def _pass(s: Situation) -> float:
    """Cycles in which a vector is transformed."""
    p, transforming = s.problem, s.transforming(arith_of(s))
    planes = p.c // p.groups, p.m // p.groups
    if p.layout != "NCHW" or sum(image_bytes(p)) <= s.profile.cache("l2", 1.0) or sum(planes) <= _FEW_PLANES:
        return _PASS * transforming
    collides = planes_collide(p, reading=True) or planes_collide(p, reading=False)
    return _FAR_PASS * transforming + (_COLLIDING if collides and min(planes) >= _SET_PLANES else 0.0)


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


def _item_groups(s: Situation) -> int:
    """Groups of an item: as many as fill vectors of channels well, which moves transpose."""
    p, lane = s.problem, lanes(s.target, arith_of(s))
    group = min(p.c, p.m) // p.groups
    most = max(1, min(p.groups, 2 * lane // group))
    return max(range(1, most + 1), key=lambda n: (round(n * group / (-(-n * group // lane) * lane), 1), -n))


@lru_cache(512)
def _cut(s: Situation, sweep: Sweep, near: bool) -> RowSizes:
    """The boxes of a sweep; ``near`` if pixels lie together on both sides."""
    tiled = in_tiles(sweep)
    order = (len(tiled) - 2, *range(len(tiled) - 2), len(tiled) - 1)  # rows of tiles are cut first

    def sizes(cut: tuple[int, ...]) -> RowSizes:
        box = dict(zip(order, cut, strict=True))
        return _sizes(s, sweep, tuple(box[a] for a in range(len(cut))), near)

    whole = [tiled[a].out for a in order]
    room = s.profile.cache("l1", _NEAR_SHARE)
    if not near or len(sweep) > 2 or sizes((1, *whole[1:])).workspace > room:
        room = s.profile.cache("l2", _BOX_SHARE)
    return sizes(boxes(whole, lambda cut: sizes(cut).workspace, s.budget(room)))


def _sizes(s: Situation, sweep: Sweep, box: tuple[int, ...], near: bool) -> RowSizes:
    p, arith, wide = s.problem, arith_of(s), s.target.vector_bytes
    lane, size, group_in, group_out = lanes(s.target, arith), arith.bytes, p.c // p.groups, p.m // p.groups
    held, groups, rows, tall = held_lines(sweep, box), 1 if near else _item_groups(s), math.prod(box[:-2]), box[-2]
    pitch, lines = held[-1].count, math.prod(h.count for h in held[:-1])
    whole = -(-pitch // lane) * lane  # written by whole vectors
    channels = -(-groups * group_in // lane) * lane  # squares of pixels and channels come whole
    channel_bytes = 0 if near else odd_lines((lines * pitch + whole) * size)
    vectors = -(-((tall - 1) * pitch + box[-1]) // lane)
    v_channel = -(-((tall - 1) * pitch + whole + 2 * lane) * size // 64) * 64
    v_point, s_point = odd_lines(group_in * v_channel), odd_lines(group_out * vectors * wide)
    out_line = box[-1] * size
    out_channel = 0 if near else odd_lines(rows * tall * SCHEME.m * out_line + wide)
    panel = header_bytes(len(sweep))
    v = panel + channels * channel_bytes
    sums = v + lines // held[-2].count * SCHEME.n * v_point
    out = sums + SCHEME.n * s_point
    flags = max(out + groups * group_out * out_channel, panel + box_bytes(s, len(sweep)))
    return RowSizes(
        box, held, panel, v, v_point, sums, s_point, out, out_line, flags + 8 * groups, groups, vectors, channel_bytes,
        v_channel, out_channel, flags,
    )  # fmt: skip


def _step(r: Request, ways: Sequence[tuple[Sweep, RowSizes]], keep: list[Any]) -> Step:
    """The step of a sweep, by those boxes that suit how arrays lie."""
    p, arith, last = r.problem, r.arith, ways[0][0][-1]
    move_in = Move(p.x, arith.accumulator, along_in(r, last, "p"))
    move_out = Move(arith.accumulator, p.y, along_out(r, last, "p"), r.epilogue)
    together = move_in.along == move_out.along == "pp" and r.epilogue.is_cheap
    sweep, sizes = next((sweep, sizes) for sweep, sizes in ways if sizes.near == together)
    group_in, group_out, wide = p.c // p.groups, p.m // p.groups, r.target.vector_bytes
    heights, most = _tiles(r.target, group_out)
    of_output = math.prod(axis.taps for axis in sweep) // SCHEME.r * group_in * arith.bytes  # of weights, at a point
    tiles = [TileWords(first, SCHEME.n * first * of_output, height * of_output) for first, height in heights]
    functions = [f for _, height in heights for f in _functions(r, height, most)[: sizes.vectors]]
    packed = r.packed(
        ("winograd_rows", arith.name, heights, taps_of(sweep)),
        lambda: _packed_weights(r.weights(sweep), last.taps, heights),
    )
    entries = columns.entries(sizes, arith.bytes, 1, group_in, sizes.v_channel)
    common, items = boxed_words(
        r, in_tiles(sweep), sizes.box, sizes.held, block_groups=sizes.groups, panel=sizes.panel
    )
    if together:
        read, written = ((p.n or 0) * size for size in image_bytes(p))
        transforms = (
            _row(r, move_in, RowsIn, read > r.situation.cache("l2", 1.0)),
            _row(r, move_out, RowsOut, written > r.situation.cache("l3", _FAR_SHARE)),
        )
    else:
        transforms = (
            _row(r, Move(arith.name, arith.accumulator, "pp"), RowsIn, False),
            _row(r, Move(arith.accumulator, arith.name, "pp", Epilogue()), RowsOut, False),
        )
    values = RowWords(
        columns=column_words(r, common, sweep, sizes, None if together else move_out, packed, entries),
        total_groups=p.groups, item_groups=sizes.groups, group_in=group_in, group_out=group_out,
        lanes=lanes(r.target, arith), pitch=sizes.held[-1].count, channel_bytes=sizes.channel_bytes,
        move_in=None if together else _apart(r, move_in), transform_in=transforms[0], v_channel=sizes.v_channel,
        most_vectors=min(most, sizes.vectors), vector_bytes=wide, tiles=tiles,
        tile_count=len(tiles), multiply=functions, w_group=SCHEME.n * group_out * of_output,
        s_channel=sizes.vectors * wide, transform_out=transforms[1], out_row=sizes.box[-2] * SCHEME.m * sizes.out_line,
        out_channel=sizes.out_channel, flags=sizes.flags,
    )  # fmt: skip
    name = "winograd_rows near" if together else "winograd_rows"
    address = address_of(r, name, "rows", Driver, lambda k, name: driver(k, name, wide, together))
    return Step(address, filled(values, keep), items)


def _tiles(target: Target, outputs: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """Tiles of output channels: first channel and height of each, and most vectors."""
    sizes = pixel_tiles(target)
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


def _apart(r: Request, spec: Move) -> Address[RowsApart]:
    """Address of the way of a row into planes where its pixels lie apart."""
    lane, f16c = lanes(r.target, r.arith), r.target.converts_f16
    spec = replace(spec, along="cp" if spec.along == "cp" else "any")
    return address_of(
        r, f"rows apart {spec} {lane}", "row", RowsApart, lambda k, name: rows_apart(k, name, spec, lane, f16c=f16c)
    )


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
