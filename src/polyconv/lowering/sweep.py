"""Forward sweeps: any convolution as one or more stride-phase convolutions with plain axes.

A forward convolution is one sweep.  A transposed one is a sweep per output phase, never through
zero-stuffing: output ``o = o0 + S j`` (S stride, P begin pad, D dilation) receives ``x[i] w[t]`` where
``i S + t D = o + P``.  With g = gcd(S, D) the taps that fit a phase are ``t = t0 + (S/g) u``; their inputs
``i = j + (o0 + P - t D)/S`` step by ``-D/g`` per u.  Read with u descending that is a forward
convolution of stride 1, dilation D/g, begin pad ``-(smallest i at j = 0)``: each output is written once.
An axis of one input is cut by its taps instead, of which an output has one at most.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from polyconv.dataclass import dataclass
from polyconv.errors import Unsupported
from polyconv.problem.problem import Problem

__all__ = [
    "Axis", "Family", "Lines", "Sweep", "anywhere", "box_count", "changes", "families", "line_pixels", "lines",
    "mean_taps", "phases_of", "pieces", "residue_lines", "sweeps", "taps_of", "terms_of", "without_taps",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis of a sweep.

    Output ``o`` (in 0..out) of the sweep reads input ``o * stride - pad + t * dilation`` for its tap t (in
    0..taps), which is the kernel's tap ``first_tap + t * tap_step``, and is the tensor's output
    ``first_out + o * out_step``.
    """

    out: int
    inp: int
    taps: int
    stride: int
    dilation: int
    pad: int
    first_out: int = 0
    out_step: int = 1
    first_tap: int = 0
    tap_step: int = 1

    @property
    def tap_indices(self) -> list[int]:
        """Kernel taps, in the sweep's order."""
        return [self.first_tap + t * self.tap_step for t in range(self.taps)]


Sweep = tuple[Axis, ...]


def box_count(sweep: Sweep, box: Sequence[int]) -> int:
    """Boxes of outputs that a sweep is cut into."""
    return math.prod(-(-axis.out // max(1, b)) for axis, b in zip(sweep, box, strict=True))


def terms_of(p: Problem, sweep: Sweep) -> int:
    """Products of an output's sum."""
    return p.c // p.groups * math.prod(axis.taps for axis in sweep)


def taps_of(sweep: Sweep) -> tuple[tuple[int, int, int], ...]:
    """Which taps of the kernel it has: with them packed weights differ."""
    return tuple((axis.taps, axis.first_tap, axis.tap_step) for axis in sweep)


def anywhere(axis: Axis, pad: int = 0) -> Axis:
    """An axis without where it lies in result and kernel: phases of a stride are often alike but for that."""
    return Axis(axis.out, axis.inp, axis.taps, axis.stride, axis.dilation, pad, out_step=axis.out_step)


def meeting(axis: Axis) -> list[tuple[int, int]]:
    """Of each tap the first output where it meets the input and the end of these, were there outputs on both sides."""
    shifts = [axis.pad - t * axis.dilation for t in range(axis.taps)]  # output o reads o * stride - shift
    return [(-(-shift // axis.stride), (axis.inp - 1 + shift) // axis.stride + 1) for shift in shifts]


def changes(axis: Axis) -> list[int]:
    """Outputs at which a tap begins or ceases to meet the input, the first output and the end among them."""
    return sorted({min(max(o, 0), axis.out) for o in (0, axis.out, *itertools.chain.from_iterable(meeting(axis)))})


def mean_taps(axis: Axis) -> float:
    """Taps that meet the input, on average over the outputs."""
    return sum([max(0, min(axis.out, end) - max(0, first)) for first, end in meeting(axis)]) / max(1, axis.out)


def inside(axis: Axis) -> range:
    """Outputs of which no tap meets padding."""
    last = axis.inp - 1 + axis.pad - (axis.taps - 1) * axis.dilation
    return range(max(0, -(-axis.pad // axis.stride)), max(0, min(axis.out, last // axis.stride + 1)))


@lru_cache(256)
def sweeps(p: Problem) -> tuple[Sweep, ...]:
    """Sweeps of a problem with known extents: together they write every output once that a product reaches.

    ``gaps`` have the others of a transposed convolution; where no output is reached, a sweep without taps has all.
    """
    return tuple(tuple(axis for axis, _ in group) for group in _reached(p, lambda phases: [*map(_alone, phases)]))


_Part = tuple[Axis, list[tuple[Axis, int]]]
"""An axis of a group of phases, and the phases with their shifts."""


def _alone(axis: Axis) -> _Part:
    return axis, [(axis, 0)]


def without_taps(first: int, out: int, step: int = 1) -> Axis:
    """Outputs that no product reaches."""
    return Axis(out, 1, 0, 1, 1, 0, first, step)


def _reached(p: Problem, parted: Callable[[list[Axis]], list[_Part]]) -> Iterator[tuple[_Part, ...]]:
    """Parts of every axis, made of the phases that have taps."""
    found = phases_of(p)
    some = [[axis for axis in phases if axis.taps] for phases in found]
    if all(found) and not all(some):
        return iter([tuple(_alone(without_taps(0, o or 0)) for o in p.out)])
    return itertools.product(*map(parted, some))


_MOST_SWEEPS = 1 << 16
"""Each takes about a millisecond to plan, and a place in every table."""


def phases_of(p: Problem) -> list[list[Axis]]:
    """Phases of every spatial axis."""
    if p.op == "conv_transpose":
        count = math.prod(min(s, o or 0) for s, o in zip(p.s, p.out, strict=True))
        if count > _MOST_SWEEPS:
            raise Unsupported(
                f"strides {p.s} make {count} convolutions of this one, each for outputs a stride apart; at most "
                f"{_MOST_SWEEPS} are computed: lower the strides, and place results with few neighbours yourself"
            )
    per_axis: list[list[Axis]] = []
    for a, i in enumerate(p.i):
        o = p.out[a]
        assert i is not None and o is not None
        k, s, d, begin = p.k[a], p.s[a], p.d[a], p.pads[a][0]
        if p.op == "conv_transpose":
            per_axis.append([_trimmed(axis) for axis in _phases(o, i, k, s, d, begin)])
        else:
            axis = Axis(o, i, k, s, d, begin)
            per_axis.append([axis if p.op == "deform_conv" else _trimmed(axis)])  # its taps wander
    return per_axis


@dataclass(frozen=True, slots=True)
class Family:
    """Sweeps that read the same inputs, as one.

    Output ``j`` of the family's sweep is output ``j - shift`` of each member, where there is one: all members'
    outputs can be rows of the same tiles.

    Parameters
    ----------
    sweep : Sweep
        Without places of outputs and kernel taps, which are the members' own.
    members : tuple of (Sweep, tuple of int)
        Sweeps and their shifts along every axis.
    """

    sweep: Sweep
    members: tuple[tuple[Sweep, tuple[int, ...]], ...]


@lru_cache(256)
def families(p: Problem) -> tuple[Family, ...]:
    """Sweeps of a problem, those with the same taps joined where that adds few outputs; together as ``sweeps``."""
    return tuple(
        Family(
            tuple(axis for axis, _ in group),
            tuple((tuple(m for m, _ in member), tuple(shift for _, shift in member)) for member in members),
        )
        for group in _reached(p, _joined)
        for members in (tuple(itertools.product(*(of_axis for _, of_axis in group))),)
    )


def _joined(phases: list[Axis]) -> list[_Part]:
    """Phases of an axis in groups of equal taps: the axis of a group, and its members with their shifts."""
    groups: list[list[Axis]] = []
    alike: dict[tuple[int, int, int], list[tuple[list[Axis], int, int]]] = {}  # groups with their least and largest pad
    for axis in phases:
        same = alike.setdefault((axis.taps, axis.dilation, axis.stride), [])
        for at, (group, least, most) in enumerate(same):
            least, most = min(least, axis.pad), max(most, axis.pad)
            if 8 * (most - least) <= axis.out:
                group.append(axis)
                same[at] = group, least, most
                break
        else:
            groups.append([axis])
            same.append((groups[-1], axis.pad, axis.pad))
    result = []
    for group in groups:
        pad = max(m.pad for m in group)
        members = [(m, pad - m.pad) for m in group]
        whole = replace(group[0], pad=pad, out=max(m.out + shift for m, shift in members))
        result.append((whole if len(group) == 1 else replace(whole, first_out=0, first_tap=0, tap_step=1), members))
    return result


def _trimmed(axis: Axis) -> Axis:
    """Without the first and last taps that meet padding for every output: on small maps most of a kernel."""
    first = max(0, -((axis.stride * (axis.out - 1) - axis.pad) // axis.dilation))
    end = min(axis.taps, (axis.inp - 1 + axis.pad) // axis.dilation + 1)
    taps = max(0, end - first) if axis.out else 0
    if taps == axis.taps and (taps > 1 or axis.dilation == 1) and not first:
        return axis
    return replace(
        axis, taps=taps, first_tap=axis.first_tap + first * axis.tap_step, pad=axis.pad - first * axis.dilation,
        dilation=axis.dilation if taps > 1 else 1,
    )  # fmt: skip


_LEAST_SAVED = 1 / 16
"""Share of the taps of an axis that must lie in the padding before outputs are told apart by it."""
_MOST_CUTS, _MOST_ALIKE = 33, 257
"""Most places where an axis is cut: with more, pieces are too short, but of few inputs many are alike."""
_FEW = 8
"""Most inputs of such an axis; most parts of the outputs that a tap reaches, of an axis with one input."""


@lru_cache(256)
def pieces(axis: Axis) -> tuple[Axis, ...]:
    """An axis in runs of outputs whose taps that meet no padding are the same, or whole where that saves little.

    With a large dilation on a small map most taps of a kernel meet padding, though each meets an input somewhere.
    """
    cuts = changes(axis)
    if len(cuts) > (_MOST_CUTS if axis.inp > _FEW else _MOST_ALIKE):
        return (axis,)
    found, inside, met = [], 0, meeting(axis)
    for low, high in itertools.pairwise(cuts):
        taps = [t for t, (begin, end) in enumerate(met) if begin <= low < end]
        first = taps[0] if taps else 0
        inside += len(taps) * (high - low)
        found.append(replace(
            axis, out=high - low, taps=len(taps), pad=axis.pad - low * axis.stride - first * axis.dilation,
            first_out=axis.first_out + low * axis.out_step, first_tap=axis.first_tap + first * axis.tap_step,
        ))  # fmt: skip
    saved = 1 - inside / max(1, axis.out * axis.taps)
    return tuple(found) if saved >= _LEAST_SAVED else (axis,)


def _of_one_input(out: int, k: int, d: int, begin: int) -> list[Axis]:
    """Outputs with a tap of their own, in few runs, and those between and around them, which have none."""
    first, end = max(0, -(-begin // d)), min(k, (out - 1 + begin) // d + 1)
    if first >= end:
        return [without_taps(0, out)]
    low, behind, size = first * d - begin, (end - 1) * d - begin + 1, -(-(end - first) // _FEW)
    parts = []
    for t in range(first, end, size):
        taps = min(size, end - t)  # read backwards, the taps of neighbouring outputs are neighbours
        parts.append(Axis(taps, 1, taps, 1, 1, taps - 1, t * d - begin, d, t + taps - 1, -1))
    if end - first < d:
        parts += [without_taps(t * d - begin + 1, d - 1) for t in range(first, end - 1)]
    else:
        parts += [without_taps(low + residue, end - first - 1, d) for residue in range(1, d)]
    return parts + [axis for axis in (without_taps(0, low), without_taps(behind, out - behind)) if axis.out]


def _phases(out: int, inp: int, k: int, s: int, d: int, begin: int) -> list[Axis]:
    if inp == 1 and out > 1 and min(k, d, out) <= max(_FEW, s):  # few gaps between taps
        return _of_one_input(out, k, d, begin)
    period, step = s // math.gcd(s, d), d // math.gcd(s, d)
    phases = []
    for o0 in range(min(s, out)):
        count = (out - o0 + s - 1) // s
        fitting = [t for t in range(min(k, period)) if (o0 + begin - t * d) % s == 0]
        if not fitting:
            phases.append(Axis(count, inp, 0, 1, 1, 0, o0, s))
            continue
        taps = (k - 1 - fitting[0]) // period + 1
        last = fitting[0] + (taps - 1) * period
        lowest = (o0 + begin - last * d) // s
        phases.append(Axis(count, inp, taps, 1, step, -lowest, o0, s, last, -period))
    return phases


@dataclass(frozen=True, slots=True)
class Positions(Sequence[int]):
    """The positions that runs of lines (see ``Lines``) stand for, ``stride`` apart within a run; never listed here."""

    runs: tuple[tuple[int, int, int], ...]
    stride: int

    def __len__(self) -> int:
        return sum(count for _, count, _ in self.runs)

    def __iter__(self) -> Iterator[int]:
        return itertools.chain.from_iterable(
            range(first, first + count * self.stride, self.stride) for _, count, first in self.runs
        )

    def __getitem__(self, at: Any) -> Any:
        return tuple(self)[at]


@dataclass(frozen=True, slots=True)
class Lines:
    """The input positions along one axis that a block of outputs needs, each stored once.

    Positions are relative to ``o * stride - pad`` of the block's first output.  Runs of positions one
    stride apart lie together, so that output b of the block finds its tap t at line ``start[t] + b``.

    Parameters
    ----------
    positions : sequence of int
        Relative input position of every line.
    runs : tuple of (int, int, int)
        First line, number of lines, relative position of the first; lines of a run are one stride apart.
    start : tuple of int
        Line of each tap for the block's first output.
    """

    positions: Sequence[int]
    runs: tuple[tuple[int, int, int], ...]
    start: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of lines: runs follow each other."""
        return self.runs[-1][0] + self.runs[-1][1] if self.runs else 0


def lines(axis: Axis, block: int, taps: range | None = None) -> Lines:
    """Lines of a block of ``block`` outputs, for all taps or a range of them.

    Taps are split by their residue modulo the stride; within a residue, taps whose inputs overlap or
    touch share a run, others get their own, so gaps of large dilations are not stored.
    """
    return _lines(axis.stride, axis.dilation, range(axis.taps) if taps is None else taps, block)


@lru_cache(4096)
def _lines(stride: int, dilation: int, taps: range, block: int) -> Lines:
    offsets = {t: divmod(t * dilation, stride) for t in taps}
    found, start = 0, dict[int, int]()
    runs: list[tuple[int, int, int]] = []
    for residue in sorted({r for _, r in offsets.values()}):
        members = sorted((q, t) for t, (q, r) in offsets.items() if r == residue)
        first = 0
        for end in range(1, len(members) + 1):
            if end < len(members) and members[end][0] - members[end - 1][0] <= block:
                continue
            low, high = members[first][0], members[end - 1][0]
            count = high - low + block
            runs.append((found, count, low * stride + residue))
            for q, t in members[first:end]:
                start[t] = found + q - low
            found += count
            first = end
    return Lines(Positions(tuple(runs), stride), tuple(runs), tuple(start[t] for t in taps))


def line_pixels(axis: Axis, outputs: int, most: int = 1) -> tuple[Lines, int]:
    """The pixels of a line for so many outputs, and the step between them.

    They are all as they lie, or those of each residue modulo the stride, if these are fewer by a factor of ``most``.
    """
    run = lines(axis, outputs)
    span = (outputs - 1) * axis.stride + (axis.taps - 1) * axis.dilation + 1 if axis.taps and outputs else 0
    if span > most * run.count:
        return run, axis.stride
    return Lines(range(span), ((0, span, 0),), tuple(t * axis.dilation for t in range(axis.taps))), 1


def residue_lines(axis: Axis, residues: int, block: int, left_out: int = 0) -> Lines:
    """Lines of ``block`` outputs of each of some neighbouring residues modulo the dilation, at stride 1.

    Outputs of a residue are a convolution without dilation of the inputs of a residue.  Lines go residue by residue
    through inputs a dilation apart, so that those of one residue lie ``residues`` lines apart.  The first and last
    inputs of a residue may be left out.
    """
    return _residue_lines(axis.taps, axis.dilation, residues, range(left_out, block + axis.taps - 1 - left_out))


@lru_cache(4096)
def _residue_lines(taps: int, dilation: int, residues: int, steps: range) -> Lines:
    if residues == dilation:  # no gaps
        runs: tuple[tuple[int, int, int], ...] = ((0, len(steps) * residues, steps.start * dilation),)
    else:
        runs = tuple((number * residues, residues, step * dilation) for number, step in enumerate(steps))
    return Lines(Positions(runs, 1), runs, tuple(t * residues for t in range(taps)))
