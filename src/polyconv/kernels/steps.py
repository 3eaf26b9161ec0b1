"""The loop over a tile's steps: several of them stand in one turn where the target asks for that.

What a loop takes beside its steps, to count and to jump, is little then.  It must not know what a step does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from polyconv.kernels.isa import Arithmetic
from polyconv.kernels.language import INT, Module, Value

__all__ = ["repeated"]


def repeated(k: Module, arithmetic: Arithmetic, count: Value, carry: Sequence[Any],
             step: Callable[[Value, list[Any]], Sequence[Any]], *, runs: bool = True, alone: bool = False
             ) -> list[Any]:  # fmt: skip
    """What ``carry`` becomes by ``count`` steps ``step(number, values)``; with ``runs`` there is at least one.

    Each stands ``alone`` where that is said, and so do those of integers, of which two are no faster.  Measured on a
    Zen 3.
    """
    is_alone = alone or arithmetic.accumulator not in ("float", "double")
    start, together = k.constant(INT, 0), 1 if is_alone else k.together
    if together > 1:
        with k.loop(0, count - (together - 1), together, carry) as several:
            values = several.values
            for number in range(together):
                values = list(step(several.index + number, values))
            several.next(*values)
        start, carry, runs = several.index, several.results, False
    with k.loop(start, count, carry=carry, runs=runs) as one:
        one.next(*step(one.index, one.values))
    return one.results
