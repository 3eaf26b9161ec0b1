"""Programs of convolution by Fourier transforms: what the driver's words say for a plan, and the kernels it calls."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms import careful
from polyconv.algorithms.fourier import words
from polyconv.algorithms.fourier.driver import driver
from polyconv.algorithms.fourier.plan import Plan
from polyconv.algorithms.fourier.spectra import pairs_of, spectra_of
from polyconv.algorithms.fourier.tiles import radices
from polyconv.kernels import fft
from polyconv.kernels.language import Module
from polyconv.kernels.layout import Move
from polyconv.kernels.objects import kernel
from polyconv.kernels.record import Span, altered, filled
from polyconv.kernels.signature import Address, Signature
from polyconv.lowering.boxes import boxed_words
from polyconv.lowering.moves import along_in, along_out, move_in_address, move_out_address
from polyconv.lowering.panel import Driver
from polyconv.lowering.program import Operand, Request, Step, address_of, residual_of, zeros
from polyconv.lowering.sweep import Axis, Lines, taps_of
from polyconv.runtime.arrays import aligned

__all__ = ["step"]

_NEAR = 1 / 3
"""Share of a first-level cache: lines that a pass goes over before the next one does."""
_NOWHERE = 1 << 40
"""An output beyond all others."""


def step(r: Request, plan: Plan, keep: list[Any]) -> Step:
    """The step of a sweep."""
    p, arith, kind, lane, outputs = r.problem, r.arith, plan.kind, plan.lane, plan.outputs
    group_in, group_out, last = p.c // p.groups, p.m // p.groups, plan.sweep[-1]
    address = address_of(
        r, f"fft {kind} {arith.accumulator}", "fft", Driver,
        lambda k, name: driver(k, name, kind, arith.accumulator, lane),
    )  # fmt: skip
    common, items = boxed_words(
        r, plan.sweep, plan.box, [Lines((), (), ())] * len(plan.sweep), block_groups=lane if kind == "own" else 1
    )
    if kind in ("blocks", "dense"):  # an item has several tiles, each with a box of its own
        boxes = -(-plan.count // plan.together)
        common, items = altered(common, boxes=boxes), (p.n or 0) * p.groups * boxes
    splits = 1
    if kind == "dense" and 0 < items < 2 * r.situation.threads and r.situation.threads > 1:
        splits = -(-outputs // -(-outputs // -(-2 * r.situation.threads // items)))
        common, items = altered(common, splits=splits), items * splits
    pairs, spectrum = pairs_of(plan, np.dtype(np.float64 if arith.bytes == 8 else np.float32))
    key = (taps_of(plan.sweep), tuple(a.dilation for a in plan.sweep), tuple(tile.length for tile in plan.tiles))
    weights = r.packed(
        ("fft", arith.name, kind, lane, *key), lambda: spectra_of(r.weights(plan.sweep), plan, spectrum)
    )
    block_bytes = weights.nbytes // max(1, outputs * (-(-p.groups // lane) if kind == "own" else p.groups))
    bias_words = lane if kind == "blocks" else 1  # a channel's bias stands in the table so often
    moves_in, moves_out = _moves(r, last, plan)
    runs, seen, planes = plan.places
    values = words.FftWords(
        common=common, total=p.c if kind == "own" else plan.count, together=plan.together, inputs=plan.inputs,
        channels=group_in, outputs=outputs, last_outputs=group_out - (outputs - 1) * lane,
        split_outputs=-(-outputs // splits), planes=planes, plane=plan.plane,
        target=(plan.planes - plan.results) * plan.plane, runs=runs, seen=seen,
        tile=_tile(r, plan, keep), pairs=pairs, pair_count=len(pairs), weights=weights, w_g=block_bytes * outputs,
        w_block=block_bytes, functions=_functions(r, plan), slots=pairs[:, [0, 4]].ravel().tolist(),
        beside=_lane_words(r, last, plan), bias_g=arith.bytes * (lane if kind == "own" else group_out * bias_words),
        bias_block=arith.bytes * (1 if kind == "own" else lane),
        bias=zeros() if r.bias is None else r.bias.repeat(bias_words), constants=r.constants,
        move_in=move_in_address(r, Move(p.x, arith.accumulator, moves_in)),
        move_out=move_out_address(r, Move(arith.accumulator, p.y, moves_out, r.epilogue)),
        again_words=careful.box_words(r, plan.sweep), again=careful.repair_address(r),
    )  # fmt: skip
    return Step(address, filled(values, keep), items)


def _lane_words(r: Request, last: Axis, plan: Plan) -> words.LaneWords:
    residual = residual_of(r)
    if plan.kind == "blocks":
        x, y, z = (plan.box[-1] * o.spatial[-1] for o in (r.x, r.y, residual))
        return words.LaneWords(last.stride * x, last.out_step * y, r.y.c, last.out_step * z, residual.c)
    return words.LaneWords(r.x.c, r.y.c, r.y.c * plan.lane, residual.c, residual.c * plan.lane)


def _moves(r: Request, last: Axis, plan: Plan) -> tuple[str, str]:
    """Which axes lie contiguous on the way in and out, as a ``Move`` spells it."""
    step_in, step_out = plan.pixel_step, last.out_step * (1 if last.stride % 2 == 0 else plan.pixel_step)
    if plan.kind != "blocks":
        return along_in(r, replace(last, stride=step_in), "c"), along_out(r, replace(last, out_step=step_out), "c")
    moves_in, moves_out = _pixels(r.x, step_in), _pixels(r.y, step_out)
    if r.residual is not None and (moves_out == "2" or moves_out != _pixels(r.residual, step_out)):
        moves_out = ""
    return moves_in + "c" if moves_in else "any", "c" + moves_out if moves_out else "any"


def _pixels(o: Operand, step: int) -> str:
    """How pixels lie: together, every second one, or any way."""
    if o.spatial[-1] * step == o.itemsize:
        return "p"
    return "2" if o.spatial[-1] == o.itemsize and step == 2 else ""


def _tile(r: Request, plan: Plan, keep: list[Any]) -> words.TileWords:
    """Rows, parts, lines and passes."""
    tiles, axes = plan.tiles, len(plan.tiles)
    rows: list[int] = []
    outer = [range(tile.points) for tile in tiles[:-1]]
    for at in itertools.product(*outer):
        of_parts = [[2 * at[0] + part, *at[1:]] if at else [] for part in range(2)]
        outputs = [_outputs(positions, plan) for positions in of_parts]
        place = sum(q * s for q, s in zip(at, plan.strides, strict=False))
        rows += [place, int(any(_NOWHERE not in some for some in outputs)), *of_parts[0], *outputs[0], *outputs[1]]
    parts, from_step = _parts(plan)
    lines, passes, offsets = _lines(r, plan, keep)
    return words.TileWords(
        rows=math.prod(len(o) for o in outer), row_words=2 + 3 * (axes - 1), row_table=rows,
        points=tiles[-1].points, pixel_step=plan.pixel_step, reaches=[tile.reach for tile in tiles],
        parts=parts, from_step=from_step, lines=lines, passes=passes, offsets=offsets,
    )  # fmt: skip


def _outputs(positions: Sequence[int], plan: Plan) -> list[int]:
    """Outputs of a tile at some positions along the outer axes; beyond all outputs where there are none."""
    return [
        q // axis.stride if q % axis.stride == 0 and q // axis.stride < tile.outputs else _NOWHERE
        for q, axis, tile in zip(positions, plan.sweep, plan.tiles, strict=False)
    ]


def _parts(plan: Plan) -> tuple[list[words.PartWords], int]:
    """Outputs of the real and the imaginary part along the last axis, and points from one to the next."""
    outputs, stride = plan.box[-1], plan.sweep[-1].stride
    if plan.pixel_step == 1:
        return [words.PartWords(0, 1, 0, outputs)] * 2, stride
    if stride % 2 == 0:
        return [words.PartWords(0, 1, 0, outputs), words.PartWords(0, 1, 0, 0)], stride // 2
    even, odd = words.PartWords(0, 2, 0, (outputs + 1) // 2), words.PartWords(1, 2, (stride - 1) // 2, outputs // 2)
    return [even, odd], stride


def _lines(r: Request, plan: Plan, keep: list[Any]) -> tuple[list[words.LineWords], list[words.PassWords], list[int]]:
    """The lines of every axis, their passes both ways, and where the lines begin."""
    lines: list[words.LineWords] = []
    passes: list[words.PassWords] = []
    offsets: list[int] = []
    for a, (tile, stride) in enumerate(zip(plan.tiles, plan.strides, strict=True)):
        forward: list[words.PassWords] = []
        backward: list[words.PassWords] = []
        length = tile.points
        for radix in radices(tile.points):
            outer, outer_step, inner = tile.points // length, length * stride, length // radix
            twiddles = _twiddles(r, radix, length)
            keep.append(twiddles)
            of_pass = inner * stride, inner, stride, outer, outer_step, Span(twiddles.ctypes.data, twiddles.nbytes)
            functions = _pass_functions(r, radix)
            forward.append(words.PassWords(functions["forward" if inner > 1 else "forward_last"], *of_pass))
            backward.insert(0, words.PassWords(functions["backward" if inner > 1 else "backward_first"], *of_pass))
            length = inner
        others = [
            range(0, t.points * s, s) for b, (t, s) in enumerate(zip(plan.tiles, plan.strides, strict=True)) if b != a
        ]  # fmt: skip
        places = [sum(at) for at in itertools.product(*others)]
        near = max(1, min(len(places), r.situation.cache("l1", _NEAR) // (tile.points * plan.strides[-1])))
        first = len(passes)
        lines.append(words.LineWords(first, first + len(forward), len(forward), len(offsets), len(places), near))
        offsets += places
        passes += forward + backward
    return lines, passes, offsets


def _twiddles(r: Request, radix: int, length: int) -> NDArray[Any]:
    """Factors of a pass over parts of so many points: a cosine and a sine for each of the butterflies' further legs."""
    angle = -2 * np.pi * np.outer(np.arange(length // radix), np.arange(1, radix)) / length
    twiddles = aligned(2 * angle.size, np.float64 if r.arith.bytes == 8 else np.float32)
    twiddles[:] = np.stack([np.cos(angle), np.sin(angle)], -1).ravel()
    return twiddles


def _pass_functions(r: Request, radix: int) -> dict[str, Address[fft.Pass]]:
    """Addresses of the passes of a radix."""
    element, count = r.arith.accumulator, r.target.vector_bytes // r.arith.bytes
    names = ("forward", "forward_last", "backward", "backward_first")
    return kernel(
        f"fft radix {radix} {element}", dict.fromkeys(names, fft.Pass), lambda k: fft.passes(k, radix, element, count),
        r.target, check=r.check,
    )  # fmt: skip


_POINT_FUNCTIONS = {"product": fft.PairProduct, "scan": fft.Scan, "apart": fft.Pairs, "unite": fft.Pairs}


def _functions(r: Request, plan: Plan) -> words.PointFunctions:
    """Addresses of the products of a kind, and of what serves them."""
    element, lane, kind = r.arith.accumulator, plan.lane, plan.kind

    def points(k: Module) -> None:
        fft.scan(k, "scan", element, lane)
        if kind == "dense":
            fft.apart(k, "apart", element, lane)
            fft.together(k, "unite", element, lane)
        else:
            fft.pair_product(k, "product", element, lane, kind == "own")

    def of_tiles(tiles: int) -> Address[fft.ChannelProduct] | None:
        if tiles not in (plan.together, plan.count % plan.together):
            return None
        return address_of(
            r, f"fft product {element} {tiles}", "product", fft.ChannelProduct,
            lambda k, name: fft.channel_product(k, name, element, lane, tiles),
        )  # fmt: skip

    names = ("scan", "apart", "unite") if kind == "dense" else ("scan", "product")
    made: dict[str, type[Signature]] = {name: _POINT_FUNCTIONS[name] for name in names}
    found: dict[str, Any] = dict.fromkeys(_POINT_FUNCTIONS)
    found |= kernel(f"fft points {element} {kind}", made, points, r.target, check=r.check)
    many = plan.together if kind == "dense" else 0
    return words.PointFunctions(**found, products=[of_tiles(n + 1) for n in range(many)])
