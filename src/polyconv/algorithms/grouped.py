"""Depthwise and small groups with channels in the lanes: 1, 2, 4 or 8 channels a group, as many out as in.

The direct algorithm's panel and driver, with 16 channels of several groups as one group: a panel row is
multiplied lane by lane instead of word by word, so every lane does work.  Any rank, stride, dilation and
layout.  Cost: a load and ``group`` multiply-adds (with a permutation each) per tap, 16 channels and output,
plus one pass over input and output.  Error: own bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms import direct
from polyconv.algorithms.program import (
    Program,
    Request,
    Situation,
    Step,
    accumulator_arithmetic,
    boxes,
    fill_words,
    near_equal,
)
from polyconv.algorithms.sweep import Sweep, sweeps
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, lanes
from polyconv.kernels.language import Module
from polyconv.kernels.objects import kernel
from polyconv.kernels.tile import ROW_WORDS, grouped_tile
from polyconv.problem.problem import Problem
from polyconv.runtime.arrays import aligned, words
from polyconv.target import Target

__all__ = ["applicable", "build", "cost", "workspace"]

_GROUPS = (1, 2, 4, 8)
_PANEL_BYTES = 192 << 10

_MOST_TAPS = 3
"""Most taps of a run: with them a panel row is brought to the lanes once for three products."""

# Most sums of a tile by level and channels a group: registers less weights and a row of pixels, and not more code
# than compiles in 50 ms.
_SUMS = {
    "avx512": {1: 14, 2: 10, 4: 8, 8: 8},
    "avx2": {1: 8, 2: 8, 4: 8, 8: 8},
    "baseline": {1: 8, 2: 8, 4: 8, 8: 8},
}


def _as_lanes(p: Problem) -> Problem:
    """The problem with 16 channels a group, the last group filled up."""
    groups = -(-p.c // ROW_WORDS)
    return replace(p, c=groups * ROW_WORDS, m=groups * ROW_WORDS, groups=groups)


def _vectors(target: Target, arith: Arithmetic) -> int:
    return ROW_WORDS // lanes(target, arith)


@lru_cache(256)
def _plan(s: Situation, arith: Arithmetic, sweep: Sweep) -> Any:
    wide = replace(s, problem=_as_lanes(s.problem))
    budget = s.budget(_PANEL_BYTES)
    extents = tuple(axis.out for axis in sweep)
    start = (*extents[:-1], min(extents[-1], 256))

    def sized(box: tuple[int, ...]) -> Any:
        return direct.box_sizes(wide, arith, sweep, box, ROW_WORDS, _vectors(s.target, arith))

    return sized(boxes(start, lambda box: int(sized(box).workspace), budget))


def applicable(s: Situation) -> str | None:
    """None, or why not."""
    p = s.problem
    if p.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {p.op}"
    if p.c != p.m or p.c // p.groups not in _GROUPS:
        return f"needs 1, 2, 4 or 8 channels a group, as many out as in, not {p.c // p.groups} and {p.m // p.groups}"
    if not s.finite:
        return "weights hold Inf or NaN, which would meet the zeros of the padding"
    if p.c // p.groups > lanes(s.target, ARITHMETIC[accumulator_arithmetic(s)]):
        return "a group is wider than a vector"
    return None


def workspace(s: Situation) -> int:
    """Bytes a thread needs."""
    arith = ARITHMETIC[accumulator_arithmetic(s)]
    return max(int(_plan(s, arith, sweep).workspace) for sweep in sweeps(s.problem))


def cost(s: Situation) -> dict[str, float]:
    """Cycles: loads or permutations of taps, starting tiles, and the moves."""
    p, arith = s.problem, ARITHMETIC[accumulator_arithmetic(s)]
    group, vectors = p.c // p.groups, _vectors(s.target, arith)
    most = _SUMS[s.target.level][group]
    products = moves = 0.0
    for sweep in sweeps(p):
        plan = _plan(s, arith, sweep)
        box_count = math.prod(-(-axis.out // max(1, b)) for axis, b in zip(sweep, plan.box, strict=True))
        rows = math.prod(plan.box[:-1]) * box_count
        taps = math.prod(axis.taps for axis in sweep)
        for _, pixels in near_equal(plan.box[-1], max(1, most // vectors)):
            step = vectors * max(pixels * (0.7 if group == 1 else 0.6 * group), 4.0) + 0.5 * group
            products += rows * (taps * step + 25)
        rows_in = math.prod(max(1, h.count) for h in plan.held[:-1])
        per_in, per_out = (2.0, 2.5) if p.layout == "NHWC" else (4.5, 4.5)
        if sweep[-1].stride > 1:  # every second pixel costs a whole line of the cache
            per_in *= 2.0
        moves += box_count * (300 + rows_in * (60 + max(1, plan.held[-1].count) * per_in * vectors))
        moves += rows * (40 + plan.box[-1] * per_out * vectors)
    batch = (p.n or 0) * -(-p.c // ROW_WORDS)
    return {"products": products * batch, "moves": moves * batch}


def build(r: Request) -> Program:
    """Program of a request: one step per sweep."""
    keep: list[Any] = []
    p = r.problem
    wide = replace(r, situation=replace(r.situation, problem=_as_lanes(p)), channels=(p.c, p.m))
    driver = kernel("direct", ("direct",), lambda k: direct.driver(k, "direct"), r.target, check=r.check)["direct"]
    steps = [_step(r, wide, sweep, driver, keep) for sweep in sweeps(p)]
    return Program(tuple(step for step in steps if step.items), workspace(r.situation), tuple(keep))


def _step(r: Request, wide: Request, sweep: Sweep, driver: int, keep: list[Any]) -> Step:
    p, arith = r.problem, r.arith
    group, vectors = p.c // p.groups, _vectors(r.target, arith)
    most = max(1, _SUMS[r.target.level][group] // vectors)
    names = tuple(f"tile{rows}" for rows in range(1, most + 1))
    plan = _plan(r.situation, arith, sweep)
    runs = _runs(plan.held[-1].start)
    lengths = tuple(sorted({len(run) for run in runs}))

    def tiles(k: Module) -> None:
        for rows, name in enumerate(names, 1):
            grouped_tile(k, name, arith, lanes(r.target, arith), rows, vectors, group, lengths)

    label = f"grouped {arith.name} {group} {most}x{vectors} {lengths}"
    found = kernel(label, names, tiles, r.target, check=r.check)
    packed = r.packed(
        ("grouped", arith.name, runs, tuple((a.taps, a.first_tap, a.tap_step) for a in sweep)),
        lambda: _packed_weights(r.weights(sweep), runs),
    )
    functions = [found[name] for name in names]
    steps = math.prod(axis.taps for axis in sweep) * group
    values = direct.step_words(wide, sweep, plan, (functions, functions), packed, steps, steps, False, keep)
    outer = [0]
    for h in plan.held[:-1]:
        outer = [o * h.count + line for o in outer for line in h.start]
    entries = [
        v for o in outer for run in runs
        for v in (o * plan.line_bytes + plan.held[-1].start[run[0]] * plan.row_bytes, len(run), 0)
    ]  # fmt: skip
    count = len(entries) // 3
    values.update({
        "entries": words(entries), "entry_count": count, "chunk_entries": max(1, count),
        "lists": words([0, count, max(1, count)]), "bands": words(direct.bands_table(direct.unbanded(sweep))),
    })  # fmt: skip
    return Step(driver, fill_words(direct.WORDS, values, keep), values["items"])


def _runs(start: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Taps along the last axis in runs whose panel rows, which ``start`` gives, follow each other."""
    runs: list[list[int]] = []
    for tap in sorted(range(len(start)), key=lambda tap: start[tap]):
        if runs and start[tap] == start[runs[-1][-1]] + 1 and len(runs[-1]) < _MOST_TAPS:
            runs[-1].append(tap)
        else:
            runs.append([tap])
    return tuple(tuple(run) for run in runs)


def _packed_weights(w: NDArray[Any], runs: Sequence[Sequence[int]]) -> NDArray[Any]:
    """Weights (groups, m, c, taps) as [16 channels][outer tap][run: [channel within its group][tap]][lane]."""
    groups, m, c, taps = w.shape
    blocks = -(-groups * m // ROW_WORDS)
    if not taps:
        return aligned((blocks, 0), w.dtype)
    flat = w.transpose(3, 2, 0, 1).reshape(-1, sum(len(run) for run in runs), c, groups * m)
    parts = [flat[:, list(run)].transpose(0, 2, 1, 3).reshape(flat.shape[0], -1, groups * m) for run in runs]
    ordered = np.concatenate(parts, axis=1)
    packed = aligned((blocks, *ordered.shape[:2], ROW_WORDS), w.dtype)
    for block in range(blocks):
        part = ordered[:, :, block * ROW_WORDS : (block + 1) * ROW_WORDS]
        packed[block, :, :, : part.shape[2]] = part
    return packed
