"""Boxes of outputs: how large they may be, in which items they come, and what rows of them take.

Turns the sweep of a problem and a box into the words that every blocked driver shares.  It must not know what a box is
computed by.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from polyconv.kernels.record import words_of
from polyconv.lowering.bands import Bands, bands, bands_table
from polyconv.lowering.panel import Ahead, AxisWords, Common, ListWords, RowLists, RunWords
from polyconv.lowering.program import Operand, Request, first_output, residual_of
from polyconv.lowering.situation import image_bytes
from polyconv.lowering.sweep import Lines, Sweep

__all__ = [
    "ahead_words", "asks_ahead", "block_row_lists", "boxed_words", "boxes", "busiest", "bytes_between", "in_pieces",
    "lie_together", "near_equal", "near_equal_sizes", "row_lists", "rows_follow", "rows_together", "tap_entries",
    "taps_of_lists", "thread_parts",
]  # fmt: skip

T = TypeVar("T")


def boxes(extents: Sequence[int], cost: Callable[[tuple[int, ...]], int], budget: int) -> tuple[int, ...]:
    """Largest box of outputs whose workspace fits a budget, cutting outer axes first, in near-equal parts."""
    box = tuple(max(1, e) for e in extents)
    for a in range(len(box)):
        if (of_whole := cost(box)) <= budget:
            break
        box = _cut(box, a, cost, of_whole, budget)
    return box


def _cut(box: tuple[int, ...], a: int, cost: Callable[[tuple[int, ...]], int], of_whole: int, budget: int
         ) -> tuple[int, ...]:  # fmt: skip
    """A box that costs too much, cut along an axis into as few parts as fit, or as many as there are.

    A cost grows about evenly with the extent, so parts are guessed, then the next ones looked at, then halves.
    """
    whole = box[a]

    def into(parts: int) -> tuple[int, ...]:
        return (*box[:a], -(-whole // parts), *box[a + 1 :])

    if whole <= 2 or (of_one := cost(into(whole))) > budget:
        return into(whole)
    extent = 1 + (budget - of_one) * (whole - 1) // max(1, of_whole - of_one)
    guess = min(max(-(-whole // extent), 2), whole - 1)
    fewest, most, parts = (1, guess, guess - 1) if cost(into(guess)) <= budget else (guess, whole, guess + 1)
    while most - fewest > 1:  # too few, enough
        fewest, most = (fewest, parts) if cost(into(parts)) <= budget else (parts, most)
        parts = (fewest + most) // 2
    return into(most)


def bytes_between(r: Request, sweep: Sweep, box: Sequence[int]) -> int:
    """Bytes between the inputs of a box and those of the next, along the last axis that is cut.

    In every plane they follow each other.
    """
    steps = reversed([*zip(box, sweep, r.x.spatial, strict=True)])
    return max(0, next((b * axis.stride * step for b, axis, step in steps if b < axis.out), 0))


def ahead_words(r: Request, sweep: Sweep, box: Sequence[int], planes: int) -> Ahead:
    """Words with which a box asks for the inputs of the next one of a thread, where no near cache holds an image.

    In ``planes`` planes they lie together; 0 if they do not.
    """
    read, images = image_bytes(r.problem)[0], r.problem.n or 0
    if not planes or read * images <= r.situation.cache("l2", 1.0):
        return Ahead(0, 0, 0)
    ahead = bytes_between(r, sweep, box)
    if not ahead and images > 1:  # the next box is an image
        return Ahead(r.situation.threads * r.x.n, read, 1)
    return Ahead(r.situation.threads * ahead, ahead, planes)


def asks_ahead(ahead: Ahead) -> bool:
    """Whether a box asks for inputs of another one."""
    return words_of(ahead, keep=[])[0] > 0


def boxed_words(r: Request, sweep: Sweep, box: tuple[int, ...], held: Sequence[Lines], splits: int = 1,
                block_groups: int = 1, *, panel: int = 0, scratch: int = 0) -> tuple[Common, int]:  # fmt: skip
    """The words of every blocked driver, and how many items there are.

    Parameters
    ----------
    held : sequence of Lines
        Along each axis, those that a box needs.
    splits : int
        Into how many items a box is cut, each of which does some of its output channels.
    block_groups : int
        Groups of an item.
    panel, scratch : int
        Where they begin in the workspace.
    """
    p, residual = r.problem, residual_of(r)
    counts = [-(-axis.out // b) if axis.out else 0 for axis, b in zip(sweep, box, strict=True)]
    positions: list[int] = []
    axes: list[AxisWords] = []
    pitches = _pitches(held)
    for a, (axis, b) in enumerate(zip(sweep, box, strict=True)):
        axes.append(AxisWords(
            inp=axis.inp, x_stride=r.x.spatial[a], block=b, out=axis.out, stride=axis.stride, pad=axis.pad,
            y_stride=r.y.spatial[a] * axis.out_step, r_stride=residual.spatial[a] * axis.out_step,
            boxes=counts[a], lines=max(1, held[a].count), positions=len(positions), pitch=pitches[a],
        ))  # fmt: skip
        positions += held[a].positions
    group_in, group_out = p.c // p.groups * block_groups, p.m // p.groups * block_groups
    blocks, total = -(-p.groups // block_groups), math.prod(counts)
    common = Common(
        axes=len(sweep), axis=axes, positions=positions, boxes=max(1, total), splits=splits, groups=blocks,
        line_count=math.prod([h.count for h in held[:-1]]),  # none where a sweep has no taps
        run_count=len(held[-1].runs), runs=[RunWords(*run) for run in held[-1].runs],
        x_base=r.x.offset, x_n=r.x.n, x_g=r.x.c * group_in, x_c=r.x.c,
        y_base=first_output(r.y, sweep), y_n=r.y.n, y_g=r.y.c * group_out, y_c=r.y.c,
        r_base=first_output(residual, sweep), r_n=residual.n, r_g=residual.c * group_out, r_c=residual.c,
        step=sweep[-1].stride, zero_point=r.zero_point, panel=panel, scratch=scratch,
        residues=1, residue_places=[0], move_apart=None, planes=0, plane_places=[0], move_planes=None,
        row_run_count=0, row_runs=[], rows_in=None,
    )  # fmt: skip
    return common, (p.n or 0) * blocks * splits * total if p.m else 0


def _pitches(held: Sequence[Lines]) -> list[int]:
    """Combined lines between neighbours along each outer axis; the last axis is not part of a line."""
    pitches = [1] * len(held)
    for a in range(len(held) - 3, -1, -1):
        pitches[a] = pitches[a + 1] * held[a + 1].count
    return pitches


def tap_entries(held: Sequence[Lines], line_bytes: int, pixel_bytes: int, weight_row: int, channels: int = 1,
                channel_bytes: int = 0) -> list[list[int]]:  # fmt: skip
    """Words of the entries of every combination of outer taps, as ``row_lists`` takes them.

    An entry is a tap of a row and a channel: bytes before what it meets in a panel for the first output of a box, and
    before its weights.

    Parameters
    ----------
    held : sequence of Lines
        Along each axis, those that a box needs.
    line_bytes, pixel_bytes, channel_bytes : int
        Between neighbours in the panel; lines are those of the outer axes combined.
    weight_row : int
        Bytes of the weights of a tap and a channel.
    """
    outer = [0]
    for of_axis in held[:-1]:
        outer = [line * of_axis.count + start for line in outer for start in of_axis.start]
    row = held[-1].start
    return [
        [word for t, pixel in enumerate(row) for c in range(channels)
         for word in (line * line_bytes + c * channel_bytes + pixel * pixel_bytes,
                      ((tap * len(row) + t) * channels + c) * weight_row)]
        for tap, line in enumerate(outer)
    ]  # fmt: skip


_LIST_BYTES = 4 << 20
"""Most bytes of lists of entries; where rows would need more of them, fewer axes tell rows apart."""


def taps_of_lists(axes: Sweep, found: Sequence[Bands]) -> list[list[int]]:
    """The combinations of taps of outer axes that rows of outputs have, by the number of their list."""
    lists: list[list[int]] = []
    for ranges in itertools.product(*(kinds for kinds, _ in found)):
        taps = [0]
        for axis, some in zip(axes, ranges, strict=True):
            taps = [tap * axis.taps + t for tap in taps for t in some]
        lists.append(taps)
    return lists


def row_lists(axes: Sweep, of_taps: Sequence[Sequence[int]], entry_words: int, found: Sequence[Bands] | None = None
              ) -> RowLists:  # fmt: skip
    """Words with which rows of outputs leave out the taps of outer axes that meet only padding.

    Parameters
    ----------
    axes : Sweep
        The outer axes.
    of_taps : sequence of sequence of int
        The words of the entries of every combination of their taps.
    entry_words : int
        Words of an entry.
    found : sequence of Bands, optional
        Which taps rows have, if some that meet padding may be among them.
    """
    if found is None:
        found = bands(axes, _LIST_BYTES // (8 * max(1, sum(map(len, of_taps)))))
    return block_row_lists(axes, [of_taps], entry_words, found)


def block_row_lists(axes: Sweep, of_blocks: Sequence[Sequence[Sequence[int]]], entry_words: int, found: Sequence[Bands]
                    ) -> RowLists:  # fmt: skip
    """The same for blocks that have entries of their own: the lists of a block follow those of the one before it."""
    entries: list[int] = []
    lists: list[ListWords] = []
    of_lists = taps_of_lists(axes, found)
    for of_taps in of_blocks:
        for taps in of_lists:
            begin = len(entries)
            for tap in taps:
                entries += of_taps[tap]
            lists.append(ListWords(begin, (len(entries) - begin) // entry_words))
    return RowLists(bands_table(found), lists, entries)


def rows_together(sweep: Sweep, box: Sequence[int], pixels: int) -> int:
    """Rows of a box of results that have so many pixels, where rows follow each other in a packed result; else 1."""
    cut = next((a for a, b in enumerate(box) if b > 1), len(box) - 1)
    whole = all(b == axis.out for axis, b in zip(sweep[cut + 1 :], box[cut + 1 :], strict=True))
    if not whole or cut == len(box) - 1:
        return 1
    return max(1, min(-(-pixels // max(1, box[-1])), math.prod(box[:-1])))


def rows_follow(r: Request, sweep: Sweep) -> bool:
    """Whether in result and residual every row of pixels begins where the one before it ends."""
    return lie_together(sweep, r.y) and lie_together(sweep, residual_of(r))


def lie_together(sweep: Sweep, o: Operand) -> bool:
    """Whether all results lie one step of the last axis apart in an operand, row after row.

    An axis with a single output takes no step, so it must not stand between its neighbours.
    """
    steps = [(axis.out, stride * axis.out_step) for axis, stride in zip(sweep, o.spatial, strict=True)]
    taken = [*(axis for axis in steps[:-1] if axis[0] > 1), steps[-1]]
    return all(outer == count * inner for (_, outer), (count, inner) in itertools.pairwise(taken))


def near_equal(total: int, most: int) -> list[tuple[int, int]]:
    """Cut ``total`` into the fewest near-equal parts of at most ``most``: (first, size) of each."""
    sizes = [size for size, count in near_equal_sizes(total, most) for _ in range(count)]
    return list(zip(itertools.accumulate(sizes, initial=0), sizes))  # noqa: B905 - where the last ends begins none


def near_equal_sizes(total: int, most: int) -> list[tuple[int, int]]:
    """The same parts by size: (size, how many) of each."""
    if total <= 0:
        return []
    parts = -(-total // most)
    small, larger = divmod(total, parts)
    return [(small + 1, larger), (small, parts - larger)] if larger else [(small, parts)]


def thread_parts(threads: int, items: int, blocks: int, repeated: float) -> int:
    """Into how many parts the blocks of outputs of every item are cut, so that the busiest thread has least to do.

    Parameters
    ----------
    repeated : float
        What every part does anew, its inputs brought in place, as a share of the rest of an item.
    """
    if threads == 1 or not items or not blocks:
        return 1
    parts = range(1, min(blocks, 4 * threads) + 1)
    found = min(parts, key=lambda some: busiest(threads, items, blocks, some, repeated))
    return -(-blocks // -(-blocks // found))


def busiest(threads: int, items: int, blocks: int, parts: int, repeated: float) -> float:
    """How many items' work the busiest thread has where the blocks of each are cut into so many parts."""
    if not blocks:
        return 0.0
    most = -(-blocks // parts)
    return -(-items * -(-blocks // most) // threads) * (most / blocks + repeated)


_MOST_PIECES, _WORTH = 8, 0.85
"""Into how many pieces boxes are cut for threads, and what share of the time must be left, as every piece reads all
weights."""


def in_pieces(threads: int, cut: Callable[[int], tuple[float, T]]) -> T:
    """What ``cut`` makes of boxes in one piece; of more, where that leaves threads less to do.

    Parameters
    ----------
    cut : callable
        ``cut(pieces)``: what the busiest thread has to do, and what is asked for.
    """
    most, whole = cut(1)
    if threads == 1:
        return whole
    least, found = min(map(cut, range(2, min(threads, _MOST_PIECES) + 1)), key=lambda each: each[0])
    return found if least < _WORTH * most else whole

