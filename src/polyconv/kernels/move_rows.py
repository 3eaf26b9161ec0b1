"""Rows of planes to and from a panel, many at a time: short rows would take less time than a call for each.

A block of channels, rows and pixels is moved channel by channel, with what a move of pixels by channels does to values.
It must know nothing of problems.
"""

from __future__ import annotations

from dataclasses import replace

from polyconv.kernels.language import INT, Buffer, Mask, Module, Type, Value
from polyconv.kernels.layout import Block, Move, MoveIn, MoveOut
from polyconv.kernels.move import ends
from polyconv.kernels.signature import Int, altered

__all__ = ["RowsIn", "RowsOut", "move_rows"]


class RowsIn(MoveIn):
    """Rows on their way into a panel."""

    rows: Int
    source_row: Int
    target_row: Int


class RowsOut(MoveOut):
    """Rows on their way out."""

    rows: Int
    source_row: Int
    target_row: Int
    residual_row: Int


def move_rows(k: Module, name: str, spec: Move, lanes: int, *, f16c: bool) -> None:
    """Add the move of rows whose pixels lie together on both sides, or a step apart, or anywhere."""
    with k.function(name, RowsIn if spec.epilogue is None else RowsOut) as g:
        assert isinstance(g, RowsIn | RowsOut)
        block = Block(k, spec, Type(spec.element, lanes), f16c)
        steps: tuple[Value | int, Value | int] = block.sizes
        if spec.along == "any":
            steps = g.source_pixel, g.target_pixel
            block = replace(block, source_stride=g.source_pixel, target_stride=g.target_pixel)
        full = g.pixels - g.pixels % lanes
        rest = k.mask(g.pixels - full, lanes)
        beside, beside_row = (g.residual, g.residual_row) if isinstance(g, RowsOut) else (g.source, k.constant(INT, 0))

        def row(c: Value, source: Buffer, target: Buffer, beside: Buffer, *, short: bool) -> None:
            load, store = ends(block, altered(g, residual=beside) if isinstance(g, RowsOut) else g)

            def some(p: Value, mask: Mask | None) -> None:
                store(load(source + p * steps[0], mask), target + p * steps[1], p, c, mask)

            if not short:
                with k.loop(0, full, lanes) as p:
                    some(p.index, None)
            with k.when(full < g.pixels):
                some(k.constant(INT, 0) if short else full, rest)

        for short in (True, False):
            with k.when(full.equals(0), otherwise=not short), k.loop(0, g.channels) as c:
                places = [g.source + c.index * g.source_channel, g.target + c.index * g.target_channel, beside]
                with k.loop(0, g.rows, carry=places) as line:
                    row(c.index, *line.values, short=short)
                    line.next(*(place + step for place, step in zip(
                        line.values, (g.source_row, g.target_row, beside_row), strict=True)))  # fmt: skip
