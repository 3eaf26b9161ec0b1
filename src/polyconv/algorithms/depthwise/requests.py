"""Requests as depthwise tiles take them: one output of every channel, axes in the order in which they slide.

And what all forms make of them: words of items, weights, a program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.depthwise.situations import of_one_output
from polyconv.algorithms.form import Form
from polyconv.kernels.record import Record, filled
from polyconv.kernels.signature import Address
from polyconv.lowering.boxes import boxed_words
from polyconv.lowering.panel import Common, Driver
from polyconv.lowering.program import Operand, Program, Request, Step
from polyconv.lowering.sweep import Lines, Sweep, taps_of
from polyconv.runtime.arrays import aligned

__all__ = [
    "StepOf", "item_words", "key_of", "of_every_output", "program_of", "taps_by_channel", "turned",
]  # fmt: skip

StepOf: TypeAlias = tuple[Address[Driver], Record, int]
"""Driver, words and number of items of a sweep."""


def program_of(form: Form, steps: Iterable[StepOf]) -> Program:
    """The program of a form, of the steps that have items."""
    keep: list[Any] = []
    found = tuple(Step(address, filled(values, keep), items) for address, values, items in steps if items)
    return Program(found, form.workspace, tuple(keep))


def item_words(r: Request, sweep: Sweep, box: tuple[int, ...], channels: int, *, panel: int = 0) -> tuple[Common, int]:
    """Words of boxes of outputs of so many channels, and how many there are."""
    return boxed_words(r, sweep, box, [Lines((), (), ())] * len(sweep), block_groups=channels, panel=panel)


def taps_by_channel(r: Request, sweep: Sweep) -> NDArray[Any]:
    """Weights of a sweep as (channels, taps), one output of every channel."""

    def packed() -> NDArray[Any]:
        w = r.weights(sweep)
        found = aligned((w.shape[0], w.shape[3]), w.dtype)
        found[:] = w[:, 0, 0]
        return found

    return r.packed(key_of("depthwise taps", r, sweep), packed)


def key_of(name: str, r: Request, sweep: Sweep, *more: object) -> tuple[object, ...]:
    """Key under which the weights of a sweep are kept."""
    return (name, r.arith.name, *more, taps_of(sweep))


def of_every_output(r: Request) -> list[Request]:
    """Requests for one output of every channel each, for lanes that are pixels."""
    times = r.problem.m // r.problem.groups
    if times == 1:
        return [r]

    def of_output(j: int) -> Request:
        def of(o: Operand) -> Operand:
            return replace(o, c=o.c * times, offset=o.offset + j * o.c)

        def packed(key: Any, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
            return r.packed((j, key), make)

        def some(a: NDArray[Any] | None) -> NDArray[Any] | None:
            return None if a is None else np.ascontiguousarray(a[j::times])

        return replace(
            r, situation=of_one_output(r.situation), y=of(r.y), residual=r.residual and of(r.residual),
            weights=lambda sweep: r.weights(sweep)[:, j : j + 1], packed=packed, bias=some(r.bias), scale=some(r.scale),
        )  # fmt: skip

    return [of_output(j) for j in range(times)]


def turned(r: Request, sweep: Sweep, order: tuple[int, ...]) -> Request:
    """A request with its axes in another order, in which -1 stands for an axis of one more output."""
    if order == tuple(range(len(sweep))):
        return r

    def of(o: Operand) -> Operand:
        return replace(o, spatial=tuple(0 if a < 0 else o.spatial[a] for a in order))

    def weights(_: Sweep) -> NDArray[Any]:
        w = r.weights(sweep)
        apart = w.reshape(*w.shape[:3], *(axis.taps for axis in sweep))
        return apart.transpose(0, 1, 2, *(3 + a for a in order if a >= 0)).reshape(w.shape)

    return replace(
        r, x=of(r.x), y=of(r.y), residual=r.residual and of(r.residual), weights=weights,
        packed=lambda key, make: r.packed((order, key), make),
    )  # fmt: skip
