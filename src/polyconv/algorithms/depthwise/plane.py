"""``depthwise_plane``: 3x3 taps of channels-first maps, dilated and strided too, in place.

Lanes are pixels of one channel.  A tile is some rows of outputs, all columns of them, strip after strip as wide as a
vector, for every channel of an item.  Masks of loads and stores are tables, so that padding and narrow ends cost no
code.  Arrays whose pixels do not lie together are left to ``slide``.  Error: own bound, k eps sum|x||w|.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TypeAlias

from polyconv.algorithms.depthwise import situations
from polyconv.algorithms.depthwise.maps import TAPS, map_box, map_refusal, map_taps, outer_extent
from polyconv.algorithms.depthwise.parts import near_equal_parts, number_of_parts, sizes_of_parts, tiles_by_size
from polyconv.algorithms.depthwise.requests import item_words, of_every_output, program_of, taps_by_channel
from polyconv.algorithms.depthwise.situations import (
    DepthwiseForm,
    beyond_cycles,
    channel_bytes,
    far_bytes,
    lane_of,
    lies_together,
    of_one_output,
)
from polyconv.algorithms.depthwise.slide import SlideForm
from polyconv.algorithms.depthwise.taps import TapWords, list_words, row_place, workspace_of, write_list
from polyconv.algorithms.form import Forms
from polyconv.dataclass import dataclass
from polyconv.kernels.depthwise_plane import (
    DepthwisePlane,
    FirstStrip,
    LoadWords,
    PlaneSettings,
    RowsOfOutputs,
    StripWords,
    depthwise_plane,
    loads,
)
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.record import Functions, Link, Memory, Record, Table, Word, words_of
from polyconv.kernels.signature import Address
from polyconv.lowering.bands import bands
from polyconv.lowering.boxes import near_equal
from polyconv.lowering.panel import Common, Driver, axis_words, decode
from polyconv.lowering.program import Program, Request, address_of, epilogue_tables, residual_of
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Axis, Sweep, sweeps

__all__ = ["forms"]

_MOST = {1: 14, 2: 8}
"""Rows of the largest tile by stride of the lanes: sums, nine weights and inputs fit 32 registers."""

_MOST_ALONE = 18
"""Where taps load their own inputs: there weights take one register."""

_FEW = 8
"""Outputs of a phase of the rows from which on they share inputs in any case."""

_TOGETHER = 4
"""Heights of tiles that are compiled together where extents vary: images of other sizes soon need the next one."""

_CHUNK = 1 / 8
"""Share of the second-level cache for input and result of the channels of an item."""

_PLANE = 1 / 16
"""Share of the first-level cache, for input and result of a channel, beyond which it is finished before the next one,
so that what is asked for ahead is next."""

_ROW = {1: 4.5, 2: 8.4}
"""Cycles of a vector of outputs, by stride of the lanes: the multiply-adds, or the loads.  Measured on Zen 5."""
_STREAM, _STREAM_AGAIN = 83.3 / 61, 5 / 10.6
"""By the bytes a cycle that the second-level cache gives, and memory, those of input and result, which hardly come
while tiles compute: from there, and from memory where planes come for every tap of outer axes."""

_SHARED = 0.6
"""Of the cycles of a channel where two share vectors."""


class BandWords(Record):
    """Rows that have the same taps inside the input: the first, how many, and at which byte their list lies."""

    first: Word
    rows: Word
    list: Word


class PlaneWords(Record):
    """The driver's words.

    So many channels ``together`` are computed by a tile, of which there are some by their rows.  Where rows stand alone
    they come in ``bands``, whose entries are taps.
    """

    common: Common
    taps: TapWords
    channels: Word
    chunk_channels: Word
    together: Word
    weights: Memory
    w_channel: Word
    phases: Word
    most: Word
    tiles: Functions[RowsOfOutputs]
    settings: Link[PlaneSettings]
    band_count: Word
    bands: Table[BandWords]
    lists: Memory


def driver(k: Module, name: str, alone: bool) -> None:
    """Add the driver ``name(frame, words, item, workspace)`` to a module; rows share inputs or stand ``alone``."""
    with k.function(name, Driver) as given:
        p = PlaneWords.read(k, given.words)
        c, zero = p.common, k.constant(INT, 0)
        item = decode(k, c, given.item, given.workspace)
        down = c.axes - 2
        rows = axis_words(c, down)
        begin = item.g * p.chunk_channels
        end = k.minimum(begin + p.chunk_channels, p.channels)
        x, y, other = row_place(k, c, down, item, given.frame, zero, zero)

        def call(first: Value, o: Value, height: Value, entries: Buffer) -> None:
            row = o * rows.stride
            k.call(p.tiles.at(height - 1), RowsOfOutputs(
                p.settings, x + first * c.x_c + row * rows.x_stride, entries, p.weights + first * p.w_channel,
                y + first * c.y_c + o * rows.y_stride, other + first * c.r_c + o * rows.r_stride,
                first, k.minimum(p.together, end - first), item.origin(down) + row,
            ))  # fmt: skip

        if alone:
            with k.loop(begin, end, p.together) as channel, k.loop(0, p.band_count) as number:
                band = p.bands.at(number.index)
                call(channel.index, band.first, band.rows, p.lists + band.list)
            return
        entries = given.workspace + p.taps.place
        write_list(k, c, p.taps, item, entries, zero)
        with (
            k.loop(begin, end, p.together) as channel,
            near_equal_parts(k, item.extent(down), p.phases, p.most) as (o, height),
        ):
            call(channel.index, o, height, entries)


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    reason = map_refusal(s, "NCHW", lambda axis: axis.out_step == 1, "", several=True)
    return reason or (PlaneForm(s, tuple(_cut_of(of_one_output(s), sweep) for sweep in sweeps(s.problem))),)


Band: TypeAlias = tuple[int, int, int, int]
"""Rows that have the same taps inside the input: the first, how many; the first tap, and how many."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a sweep is cut: into items of ``chunk`` channels by a ``box`` of outputs, and tiles of ``most`` rows at most.

    A tile computes so many channels ``together``, ``shared`` of them (1 or 2) in a vector: narrow maps leave half of
    the lanes to the next one.  There are ``bands`` where taps are so far apart that few rows would share inputs: there
    rows stand alone.  ``ahead`` is what tiles ask for early: ``rows`` where phases of the rows come one after the
    other, else ``lines`` in order.  ``cycles`` are those of a channel of a map.
    """

    sweep: Sweep
    shared: int
    bands: tuple[Band, ...]
    most: int
    chunk: int
    together: int
    box: tuple[int, ...]
    ahead: str
    cycles: float

    @property
    def apart(self) -> bool:
        """Whether taps along the lanes are no neighbours, so that each has loads of its own."""
        columns = self.sweep[-1]
        return columns.stride == 1 and (columns.dilation > 1 or self.shared > 1)


def _cut_of(s: Situation, sweep: Sweep) -> Cut:
    p, lane, slower = s.problem, lane_of(s), situations.rates_of(s).slower
    rows, columns = sweep[-2:]
    plane, wanted = channel_bytes(s, sweep), s.cache("l2", _CHUNK)
    shared = 2 if p.c > 1 and 2 * columns.out <= lane else 1
    chunk = min(p.c, shared * max(1, wanted // max(1, shared * plane)))
    cycles, alone_cycles = _cycles(sweep, lane, slower), _cycles_alone(sweep, lane, slower)
    share = 1.0 if shared == 1 else _SHARED
    if alone_cycles < cycles:
        box = (*(1 for _ in sweep[:-2]), max(1, rows.out), max(1, columns.out))
        return Cut(sweep, shared, _bands(rows), _MOST_ALONE, chunk, chunk, box, "", share * alone_cycles)
    ahead = ""
    if p.c * plane > s.cache("l2", 1):
        ahead = "lines" if rows.dilation == 1 else "rows" if plane > wanted // 2 else ""
    together = shared if ahead and plane > s.cache("l1", _PLANE) else chunk
    most = _MOST[columns.stride]
    return Cut(sweep, shared, (), most, chunk, together, map_box(s, sweep, chunk, most), ahead, share * cycles)


def _cycles(sweep: Sweep, lane: int, slower: float) -> float:
    """Cycles of a channel of a map, all outer taps, where rows share inputs."""
    rows, columns = sweep[-2:]
    strips = -(-columns.out // lane) * outer_extent(sweep)[1]
    tiles = number_of_parts(rows.out, rows.dilation, _MOST[columns.stride])
    return tiles * (20 + 10 * strips) + rows.out * strips * _ROW[columns.stride] * slower


def _cycles_alone(sweep: Sweep, lane: int, slower: float) -> float:
    """The same where taps load their own inputs; infinite where that cannot be."""
    rows, columns = sweep[-2:]
    if len(sweep) > 2 or columns.stride > 1 or columns.dilation == 1 or rows.out > _FEW * rows.dilation:
        return math.inf
    taps = sum(
        column + tap * columns.dilation + lane > 0 and column + tap * columns.dilation < columns.inp
        for column in range(-columns.pad, columns.out - columns.pad, lane)
        for tap in range(TAPS)
    )
    strips = -(-columns.out // lane)
    return sum(20 + 10 * strips + (1.1 * n * slower + 5) * band_taps * taps for _, n, _, band_taps in _bands(rows))


def _bands(axis: Axis) -> tuple[Band, ...]:
    ((ranges, of_output),) = bands((axis,), axis.out + 1)
    found, o = list[Band](), 0
    for kind, alike in itertools.groupby(of_output):
        taps, height = ranges[kind], len(list(alike))
        found += [(o + first, n, taps.start, len(taps)) for first, n in near_equal(height, _MOST_ALONE)]
        o += height
    return tuple(found)


@dataclass(frozen=True, slots=True)
class PlaneForm(DepthwiseForm):
    """Maps, cut into tiles of rows."""

    cuts: tuple[Cut, ...]

    @property
    def workspace(self) -> int:
        """Bytes a thread needs: the item's box and a list of outer taps."""
        return workspace_of(self.s)

    def cost(self) -> dict[str, float]:
        """Cycles: multiply-adds and starts of tiles; the stream of input and result, which hardly overlaps."""
        s, p = self.s, self.s.problem
        cycles = sum(outer_extent(cut.sweep)[0] * p.c * cut.cycles for cut in self.cuts)
        streamed = sum(p.c * channel_bytes(s, cut.sweep) for cut in self.cuts)
        again = streamed > far_bytes(s) and p.rank > 2
        near = streamed / s.profile.stream("l2", _STREAM)
        far = streamed / s.profile.stream("memory", _STREAM_AGAIN) if again else beyond_cycles(s, streamed) or near
        batch = (p.n or 0) * (p.m // p.groups)
        return {"products": cycles * batch, "streams": far * batch}

    def choices(self) -> dict[str, object]:
        """How maps are cut."""
        cut = self.cuts[0]
        rows = "rows that load their own inputs" if cut.bands else "rows"
        return {"tile": f"up to {cut.most} {rows}", "box": cut.box, "channels of an item": cut.chunk}

    def build(self, r: Request) -> Program:
        """Program of a request: a step for every output of a channel and sweep."""
        if not lies_together(r, "pixels"):
            return SlideForm.usual(self.s).build(r)
        return program_of(self, (_step_of(one, cut) for one in of_every_output(r) for cut in self.cuts))


def _step_of(r: Request, cut: Cut) -> tuple[Address[Driver], PlaneWords, int]:
    """Driver, words and number of items of a sweep."""
    sweep, size, rows = cut.sweep, r.arith.bytes, cut.sweep[-2]
    weights = taps_by_channel(r, sweep)
    w_channel = weights.shape[1] * size
    common, items = item_words(r, sweep, cut.box, cut.chunk)
    x_tap, w_tap = rows.dilation * r.x.spatial[-2], TAPS * size
    lists, of_bands = list[int](), list[BandWords]()
    for first, n, tap, taps in cut.bands:
        of_bands.append(BandWords(first, n, 8 * len(lists)))
        lists += list_words([(t * x_tap, t * w_tap) for t in range(tap, tap + taps)])
    name, alone = "planes_alone" if cut.bands else "planes", bool(cut.bands)
    address = address_of(r, f"depthwise {name}", name, Driver, lambda k, name: driver(k, name, alone))
    return address, PlaneWords(
        common=common, taps=map_taps(sweep, size), channels=r.problem.c, chunk_channels=cut.chunk,
        together=cut.together, weights=weights, w_channel=w_channel, phases=rows.dilation, most=cut.most,
        tiles=_tile_addresses(r, cut), settings=_settings(r, cut, w_channel), band_count=len(of_bands), bands=of_bands,
        lists=lists,
    ), items  # fmt: skip


def _settings(r: Request, cut: Cut, w_channel: int) -> PlaneSettings:
    """What the tiles of a step share."""
    rows, columns = cut.sweep[-2:]
    lane, residual = lane_of(r.situation) // cut.shared, residual_of(r)
    places = loads(columns.stride, cut.apart, lane)
    groups, strips = _strips(columns, lane, places, (r.x.itemsize, r.y.itemsize, residual.spatial[-1]))
    step = 1 if cut.bands else rows.dilation  # outputs so far apart are neighbours in a tile
    return PlaneSettings(
        x_row=r.x.spatial[-2] * step, y_row=r.y.spatial[-2] * step, r_row=residual.spatial[-2] * step,
        x_channel=r.x.c, w_channel=w_channel, y_channel=r.y.c, r_channel=residual.c, r_lane=residual.spatial[-1],
        x_strip=-lane * columns.stride * r.x.itemsize, y_strip=-lane * r.y.itemsize,
        r_strip=-lane * residual.spatial[-1], unit=step, height=rows.inp, groups=groups, strips=strips,
        tables=epilogue_tables(r),
    )  # fmt: skip


def _strips(axis: Axis, lane: int, places: Sequence[tuple[int, int]], sizes: tuple[int, int, int]
            ) -> tuple[int, list[int]]:  # fmt: skip
    """Groups of strips that read the same lanes, and the kernel's table of strips, from right to left."""
    x_size, y_size, r_step = sizes

    def load(column: int, there: int) -> LoadWords:
        """Lanes from a column on that lie inside; at a place inside even where there are none."""
        first = min(there, max(0, -column))
        end = max(first, min(there, axis.inp - column))
        if first == end:
            return LoadWords(0, 0, 0, 0)
        return LoadWords(column * x_size, (1 << end) - (1 << first), first, end)

    beyond = axis.out * axis.stride - axis.pad
    lacking = axis.stride == 2 and axis.out % lane == 0 and 0 <= beyond < axis.inp
    counts: list[int] = []
    groups: list[tuple[int, int, list[LoadWords]]] = []  # first output of the rightmost strip, lanes, loads
    before = False  # whether the strip on the right is whole
    for first in reversed(range(0, axis.out, lane)):
        used, column = min(lane, axis.out - first), first * axis.stride - axis.pad
        found = [load(column + step * axis.dilation, there) for step, there in places]
        whole = used == lane and all(
            0 <= column + step * axis.dilation <= axis.inp - there for step, there in places
        )
        if whole and before:
            counts[-1] += 1
        else:
            counts.append(1)
            groups.append((first, used, found))
        before = whole
    records: list[Record] = [FirstStrip(int(lacking), load(beyond, 1))]
    for count, (first, used, found) in zip(counts, groups, strict=True):
        records += [StripWords(count, first * y_size, first * r_step, (1 << used) - 1, used), *found]
    return len(counts), words_of(*records, keep=[])  # integers alone


def _tile_addresses(r: Request, cut: Cut) -> Sequence[Address[RowsOfOutputs] | None]:
    """Addresses of the tiles that a step uses, by rows; None for the others."""
    p, lane, (rows, columns) = r.problem, lane_of(r.situation), cut.sweep[-2:]
    stride, alone = (rows.stride, columns.stride), bool(cut.bands)
    spec = DepthwisePlane(p.x, p.y, r.arith.accumulator, r.epilogue, stride, cut.apart, alone, cut.shared, cut.ahead)
    sizes = {n for _, n, _, _ in cut.bands} or sizes_of_parts(rows, cut.box[-2], rows.dilation, cut.most)

    def tile(k: Module, name: str, n: int) -> None:
        depthwise_plane(k, name, spec, lane, n)

    return tiles_by_size(r, f"{spec} {lane}", RowsOfOutputs, cut.most, sizes, tile, together=_TOGETHER)
