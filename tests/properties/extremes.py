"""Operands at the ends of the ranges of small integers, where products and sums are largest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from polyconv.conformance.operands import Operands, operands
from polyconv.problem.problem import Problem

__all__ = ["extreme"]


def extreme(p: Problem, seed: int = 1, most: int | None = None) -> Operands:
    """Operands of integers of which most lie at the ends of their ranges, weights within ``most``; floats are any."""
    rng = np.random.default_rng(seed)
    if p.x_dtype.is_float:
        return operands(p, rng, "normal")
    made = operands(p, rng, "spread")

    def ends(a: Any, most: int | None) -> Any:
        info = np.iinfo(a.dtype)
        low, high = (info.min, info.max) if most is None else (max(-most, info.min), min(most, info.max))
        return np.where(rng.random(a.shape) < 0.7, rng.choice([low, high], a.shape), a).clip(low, high).astype(a.dtype)

    return replace(made, x=ends(made.x, None), w=ends(made.w, most))
