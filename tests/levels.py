"""Instruction-set levels to run tests at: None is the machine's own, then the lower ones that it has as well."""

from __future__ import annotations

from polyconv.target import levels

__all__ = ["BOTH_ENDS", "HIGHEST_TWO", "LEVELS"]

LEVELS: list[str | None] = [None, *reversed(levels()[:-1])]
HIGHEST_TWO = LEVELS[:2]
BOTH_ENDS = LEVELS[:1] + LEVELS[1:][-1:]
