"""How a sweep is computed by Fourier transforms: what lies in the lanes, which tiles, and where a thread keeps them.

Every lane of a vector transforms a tile of its own, so nothing is shuffled; which tiles those are is the plan's kind:

* ``own``: depthwise; lanes are channels.
* ``blocks``: few channels on both sides; lanes are tiles.
* ``dense``: lanes are channels, and a product is one of complex matrices, for several tiles together.

It must not know what a plan costs.
"""

from __future__ import annotations

import math

from polyconv.algorithms.careful import box_bytes
from polyconv.algorithms.depthwise.situations import refusal
from polyconv.algorithms.fourier.tiles import Tile, tiles_of
from polyconv.dataclass import dataclass
from polyconv.kernels.isa import channel_tile, lanes
from polyconv.lowering.situation import Situation, arith_of
from polyconv.lowering.sweep import Sweep

__all__ = ["Plan", "kinds", "options", "sized", "transforms"]

_MOST_BLOCKS = 64
"""Most pairs of channels whose lanes are tiles."""
_MOST_LENGTHS = {1: 16, 2: 8, 3: 4}
"""Lengths tried along an axis, by rank."""
_LEAST_DENSE = 8
"""Least output channels of a group whose lanes are channels: fewer leave most lanes of products empty."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One sweep: its ``tiles`` along every axis, each in one of ``lane`` lanes, ``together`` of them in an item.

    An image has ``count`` tiles, each of so many ``points`` and a ``box`` of outputs.  They are transformed and
    multiplied ``times``, each time so many ``inputs`` and ``outputs``.  A plane holds a tile for every lane:
    ``strides`` are bytes between points along every axis, ``plane`` its own bytes.  ``spectra`` are the bytes of all
    weights' spectra, ``again`` those that computing a tile again takes, where the planes were.
    """

    kind: str
    sweep: Sweep
    tiles: tuple[Tile, ...]
    lane: int
    together: int
    count: int
    points: int
    box: tuple[int, ...]
    times: int
    inputs: int
    outputs: int
    strides: tuple[int, ...]
    plane: int
    spectra: int
    again: int

    @property
    def pixel_step(self) -> int:
        """Pixels from one point of a row to the next: the only axis has two in a point."""
        return 2 if len(self.tiles) == 1 else 1

    @property
    def results(self) -> int:
        """Tiles that are multiplied at a time."""
        return self.together if self.kind == "dense" else 1

    @property
    def planes(self) -> int:
        """Planes of a thread: inputs of some tiles, then a result of each; depthwise products stay where they are."""
        return 1 if self.kind == "own" else self.results * (self.inputs + 1)

    @property
    def places(self) -> tuple[int, int, int]:
        """Where a thread's workspace has, after boxes, runs of lanes, what was seen of every tile, and planes."""
        runs = 24 * len(self.tiles) * (1 + self.together)
        seen = -(-(runs + 8 + 24 * self.lane) // 64) * 64
        return runs, seen, -(-(seen + self.together * self.strides[-1] // 2) // 64) * 64

    @property
    def workspace(self) -> int:
        """Bytes of a thread."""
        return self.places[-1] + max(self.planes * self.plane, self.again)


def kinds(s: Situation) -> list[str]:
    """The kinds that a problem's channels admit."""
    p = s.problem
    group_in, group_out = p.c // p.groups, p.m // p.groups
    found = []
    if group_in == group_out == 1 and p.c > 1 and refusal(s) is None:
        found.append("own")
    if group_in * group_out <= _MOST_BLOCKS:
        found.append("blocks")
    if group_out >= _LEAST_DENSE:
        found.append("dense")
    return found


def transforms(s: Situation, kind: str, tiles: int) -> tuple[int, int, int]:
    """How often tiles are transformed and multiplied together, and how many inputs and outputs each time."""
    p, lane = s.problem, lanes(s.target, arith_of(s))
    group_in, group_out = p.c // p.groups, p.m // p.groups
    if kind == "own":
        return tiles * -(-p.c // lane), 1, 1
    if kind == "dense":
        return p.groups * tiles, -(-group_in // lane), -(-group_out // lane)
    return p.groups * -(-tiles // lane), group_in, group_out


def options(sweep: Sweep, kind: str) -> list[tuple[Tile, ...]]:
    """The tiles tried along every axis."""
    most = _MOST_LENGTHS.get(len(sweep), 3)
    return [tiles_of(axis, halved=a == 0, most=most, few=kind == "dense") for a, axis in enumerate(sweep)]


def sized(s: Situation, sweep: Sweep, kind: str, tiles: tuple[Tile, ...]) -> list[Plan]:
    """The plans of a kind with some tiles, one for each number of tiles that an item may have."""
    p, vector, arith = s.problem, s.target.vector_bytes, arith_of(s)
    lane, group_out = lanes(s.target, arith), p.m // p.groups
    count, points = math.prod([tile.count for tile in tiles]), math.prod([tile.points for tile in tiles])
    strides = [2 * vector]
    for tile in reversed(tiles[1:]):
        # an odd number of points between lines: they fall into different sets of a cache
        strides.insert(0, strides[0] * (tile.points | 1))
    # with places for the pairs that are a single point
    plane = tiles[0].points * strides[0] + 2 ** len(tiles) * 2 * vector + 64
    rows = group_out if kind in ("own", "blocks") else -(-group_out // lane) * lane
    together = [lane if kind == "blocks" else 1]
    if kind == "dense":
        most = channel_tile(s.target, arith, 2) - 1  # a complex sum each, and registers for a weight and a point
        together = sorted({-(-count // -(-count // n)) for n in (most, most // 2, 2, 1) if n <= count or n == 1})
    sizes = count, points, tuple([tile.outputs for tile in tiles]), *transforms(s, kind, count)
    spectra = 2 * points * rows * p.c * arith.bytes
    again = box_bytes(s, len(sweep))
    return [Plan(kind, sweep, tiles, lane, n, *sizes, tuple(strides), plane, spectra, again) for n in together]
