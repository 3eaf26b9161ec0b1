"""How ``dense`` cuts a sweep into boxes and blocks of outputs, and what its tiles cost.

Pixels lie in the panel as in the tensor: channel after channel, where taps of a kernel's line then follow each other
without a gap; or as planes of words, where channels lie in planes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from polyconv.algorithms.dots.form import RUN_PIXELS, Part, Sizes
from polyconv.algorithms.dots.situations import (
    adding_cycles,
    channel_bytes,
    has_half_word,
    packs_results,
    window_outputs,
    word_cost,
)
from polyconv.kernels.isa import Arithmetic, lanes, run_tiles
from polyconv.kernels.rescale import PACKED
from polyconv.lowering.boxes import boxes, busiest, in_pieces, near_equal_sizes, rows_together, thread_parts
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Sweep, box_count, line_pixels, lines
from polyconv.lowering.tiles import tile_cycles

__all__ = ["ROW_CYCLES", "fitting", "part_of", "row_cycles", "sizes_of_box"]

_PANEL_SHARE = 25 / 64
"""Of a second-level cache, for the workspace of a thread, beside which weights stay there."""
_LINE_PIXELS = 256
"""Most outputs of a box along the last axis."""
_LEAST_ROWS = 4
"""Of outputs of a box of one of several threads."""
_MOST_VECTORS = 2
"""Vectors of outputs of groups that share a panel."""
ROW_CYCLES = 40.0
"""Of a row of outputs in a block, before its tiles: 30 to 110 on Zen 5, in layers with rows of 2 to 10."""
_APART_LOADS, _PICKED = 1.6, 1.3
"""Where lanes pick their words: loads that a vector of a pixel counts as, which most often lies in two cache lines, and
products that one with its picking does.  Measured on Zen 5 as the following: 40 layers of bytes and pairs."""
_NARROW, _ENTRY = 1.1, 4.0
"""How much longer a tile of a vector takes that needs few bytes of each line of a panel of all groups, as many as one
has; and cycles of an entry, which has few words then."""
_MOST_MORE = 2
"""Pixels of a line come as they lie, if those that outputs need are not fewer by more than this factor."""


def part_of(s: Situation, arith: Arithmetic, sweep: Sweep) -> Part:
    """A sweep with its sizes."""
    width = _longest(s, sweep)
    vectors, (beside, wide) = _vectors(s, arith, sweep, width), _side_by_side(s, arith, sweep, width)

    def sizes_of(*, planes: bool = False, beside: int = 0) -> Sizes:
        def sizes(box: tuple[int, ...]) -> Sizes:
            return sizes_of_box(s, arith, sweep, box, wide if beside else vectors, planes=planes, beside=beside)

        return fitting(s, sweep, sizes, planes=planes)

    together = sizes_of(beside=beside) if beside else None
    if together is None or together.workspace > _budget(s):
        together = sizes_of()
    return Part(sweep, together, sizes_of(planes=True))


def _budget(s: Situation) -> int:
    """Bytes of workspace that boxes should not need more of."""
    return s.budget(s.profile.cache("l2", _PANEL_SHARE))


def _longest(s: Situation, sweep: Sweep) -> int:
    """Pixels of the longest line of a box: lines are cut into near-equal parts."""
    return max((size for size, _ in near_equal_sizes(sweep[-1].out, s.near(_LINE_PIXELS))), default=0)


def fitting(s: Situation, sweep: Sweep, sizes: Callable[[tuple[int, ...]], Sizes], *, planes: bool = False) -> Sizes:
    """What ``sizes`` makes of the largest box that fits, cut for threads; tensors may be planes."""
    start = (*(axis.out for axis in sweep[:-1]), _longest(s, sweep))
    if not planes:
        start = _of_threads(s, start)
    box = boxes(start, lambda box: sizes(box).workspace, _budget(s))

    def cut(pieces: int) -> tuple[float, Sizes]:
        found = sizes((-(-box[0] // pieces), *box[1:]))
        sets, repeated = (1, 0.3) if found.all_groups else (s.problem.groups, 0.05)
        items = (s.problem.n or 0) * box_count(sweep, found.box) * sets
        parts = thread_parts(s.threads, items, found.blocks, repeated)
        load = busiest(s.threads, items, found.blocks, parts, repeated) * math.prod(found.box)
        return load, replace(found, splits=parts)

    return in_pieces(s.threads, cut)


def _of_threads(s: Situation, extents: tuple[int, ...]) -> tuple[int, ...]:
    """Extents of boxes of which every thread has one, where channels lie together and there are rows enough.

    Threads that write channels of the same pixels wait for each other's cache lines: 64 channels take longer than on
    one thread so.
    """
    rows, parts = extents[0], -(-s.threads // max(1, s.problem.n or 0))
    return extents if len(extents) == 1 or rows < _LEAST_ROWS * parts else (-(-rows // parts), *extents[1:])


def row_cycles(s: Situation, arith: Arithmetic, vectors: int, last: int, blocks: int, width: int, steps: float,
               beside: int = 0) -> float:  # fmt: skip
    """Cycles of the tiles of a row of outputs in all blocks, ``beside`` as in ``Sizes``.

    Additions beside products of pairs use other ports.  Four vectors of a pixel's results become one that leaves in a
    piece, where channels lie together.  Measured on Zen 5: 1-6 % off two vectors, nothing where weights of a block do
    not stay in a first-level cache.
    """
    rates, total, packs, adding = s.rates(arith), 0.0, packs_results(s), adding_cycles(s)
    words = -(-(s.problem.c // s.problem.groups) // arith.channels)
    block_bytes = steps * PACKED * s.target.vector_bytes
    near = not beside and s.problem.layout == "NHWC" and block_bytes <= s.cache("l1", 1 / 2)
    for some, count in ((vectors, blocks - 1), (last, 1)):
        of_vector = 2.0 if not packs else 1.0 if near and some == PACKED else 1.5
        for rows, alike in near_equal_sizes(width, run_tiles(s.target, arith, picking=beside > 1)[some]):
            step = tile_cycles(rates, rows, some) * word_cost(s, arith)
            if beside == 1:
                step = step * (_NARROW if some == 1 else 1.0) + _ENTRY / words
            if beside > 1:
                step = max(step, rows * (_APART_LOADS / rates.loads + _PICKED * some / rates.multiply_adds))
            total += count * alike * (step * steps + 20 + (of_vector + adding) * rows * some)
    return total


def sizes_of_box(s: Situation, arith: Arithmetic, sweep: Sweep, box: tuple[int, ...], vectors: int, *,
                 planes: bool = False, beside: int = 0) -> Sizes:  # fmt: skip
    """Sizes for a box and so many vectors of output channels."""
    p, last, size = s.problem, sweep[-1], channel_bytes(arith)
    group_in = p.c // p.groups
    run, step = line_pixels(last, box[-1], _MOST_MORE)
    held = (*(lines(axis, b) for axis, b in zip(sweep[:-1], box[:-1], strict=True)), run)
    follow = not beside and (last.taps <= 1 or (last.dilation == 1 and step == 1))
    planes = planes and not (follow and (group_in <= arith.channels or has_half_word(arith, group_in)))
    whole_lines = follow and not planes
    words = -(-group_in // arith.channels)
    channels_in = p.c if beside else group_in if whole_lines else words * arith.channels
    pixel = arith.bytes if planes else channels_in * size
    rows_in = math.prod(max(1, h.count) for h in held[:-1])
    line = run.count * pixel
    plane = (-(-(rows_in * line) // 64) | 1) * 64 + 128  # an odd number of cache lines, and room to read and write more
    panel = plane * (words if planes else 1)
    if beside:
        blocks = -(-p.groups // beside)
        last_vectors = _vectors_of(s, arith, p.groups - (blocks - 1) * beside)
    else:
        blocks, last_vectors = _blocks(s, arith, vectors)
    run_rows = rows_together(sweep, box, RUN_PIXELS)
    slots = run_rows * box[-1] * vectors * s.target.vector_bytes
    return Sizes(
        box, held, step, planes, whole_lines, pixel, line, plane, panel, vectors, last_vectors,
        blocks, run_rows, slots, beside,
    )  # fmt: skip


def _side_by_side(s: Situation, arith: Arithmetic, sweep: Sweep, width: int) -> tuple[int, int]:
    """Groups of a block of outputs, where groups share a panel, and vectors of it; or 0.

    The last words of a group may begin the next, but not if that is another order of sums of floats, as groups with
    half a word can have their own panels as well.  Measured on Zen 5: groups of few vectors, a block each, take 5 %
    less where channels lie together, and nothing less where they lie in planes.
    """
    p, wide = s.problem, s.target.vector_bytes
    if p.groups == 1 or not p.c or not p.m or has_half_word(arith, p.c // p.groups):
        return 0, 0
    group, outputs, lane = p.c // p.groups, p.m // p.groups + window_outputs(s), lanes(s.target, arith)
    steps = math.prod(axis.taps for axis in sweep) * -(-group // arith.channels)
    found = [(1, vectors) for vectors in [-(-outputs // lane)] if vectors <= _MOST_VECTORS]
    if s.target.vbmi2:
        ways = {min(p.groups, lane * vectors // outputs) for vectors in run_tiles(s.target, arith, picking=True)}
        near = 1 + (wide - arith.bytes) // (group * channel_bytes(arith))  # groups whose words are near each other
        ways = {n for n in ways if 1 < n <= min(near, lane) and all(_is_full(s, arith, m) for m in (n, p.groups % n))}
        found += [(n, _vectors_of(s, arith, n)) for n in sorted(ways)]

    def price(way: tuple[int, int]) -> float:
        beside, vectors = way
        blocks = -(-p.groups // beside)
        last = _vectors_of(s, arith, p.groups - (blocks - 1) * beside)
        cycles = row_cycles(s, arith, vectors, last, blocks, max(1, width), steps, beside)
        return s.price(("beside", beside), cycles + blocks * ROW_CYCLES)

    return min(found, key=price, default=(0, 0))


def _is_full(s: Situation, arith: Arithmetic, groups: int) -> bool:
    """Whether no vector but the last has lanes beyond the outputs of so many groups: there are their windows."""
    return groups * (s.problem.m // s.problem.groups) >= (_vectors_of(s, arith, groups) - 1) * lanes(s.target, arith)


def _vectors_of(s: Situation, arith: Arithmetic, groups: int) -> int:
    """Vectors that outputs of so many groups fill, with their windows."""
    return -(-groups * (s.problem.m // s.problem.groups + window_outputs(s)) // lanes(s.target, arith))


def _vectors(s: Situation, arith: Arithmetic, sweep: Sweep, width: int) -> int:
    """Vectors of output channels of a tile: those with which a row takes least."""
    p = s.problem
    most = -(-(p.m // p.groups + window_outputs(s)) // lanes(s.target, arith))
    steps = math.prod(axis.taps for axis in sweep) * -(-(p.c // p.groups) // arith.channels)

    def price(some: int) -> float:
        blocks, last = _blocks(s, arith, some)
        return s.price(("vectors", some), row_cycles(s, arith, some, last, blocks, max(1, width), steps))

    return min((v for v in run_tiles(s.target, arith) if v <= max(1, most)), key=price)


def _blocks(s: Situation, arith: Arithmetic, vectors: int) -> tuple[int, int]:
    """Blocks of so many vectors that have a group's outputs, and vectors of the last; windows take a lane of each."""
    group_out, lane, beside = s.problem.m // s.problem.groups, lanes(s.target, arith), window_outputs(s)
    blocks = max(1, -(-group_out // (vectors * lane - beside)))
    rest = group_out - (blocks - 1) * (vectors * lane - beside)
    return blocks, max(1, -(-(rest + beside) // lane))

