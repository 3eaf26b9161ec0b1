"""Causal convolution with state, as one or two plain ones (ONNX CausalConvWithState-27).

Turns input and past into a head, whose outputs reach into the past, and a rest that reads the input where it lies.
It must not know how a plain convolution is computed.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyconv.errors import ArgumentError
from polyconv.operands import operand, result_of
from polyconv.problem.problem import Problem
from polyconv.runtime.arrays import may_overlap
from polyconv.runtime.memory import allocating, sized

__all__ = ["Part", "causal"]

Array = NDArray[Any]

_PARTS = "compute parts of the batch"


class Part(Protocol):
    """What computes a part of a causal convolution as a plain one without pads, into ``y``."""

    def __call__(self, part: Array, y: Array, /, *, is_head: bool) -> object:
        """Compute; ``is_head`` tells the first k - 1 outputs, which reach into the past."""


def causal(p: Problem, x_given: ArrayLike, past: ArrayLike | None, out: Any, run: Part) -> tuple[Any, Array]:
    """Causal convolution with state, as one or two plain ones (ONNX CausalConvWithState-27).

    Outputs from k - 1 on need no history and read x in place; only the first k - 1, which reach into the
    past, read a copy of 2 (k - 1) positions.
    """
    x = operand(x_given, "input", p.x_dtype, p.x_shape)
    (k,), (length,) = p.k, x.shape[2:]
    history_shape = (x.shape[0], x.shape[1], k - 1)
    if past is None:
        with allocating(sized("a past_state of zeros", history_shape, x.dtype), _PARTS):
            history = np.zeros(history_shape, x.dtype)
    else:
        history = operand(past, "past_state", p.x_dtype, history_shape)
    result, y = result_of(p, out)
    for name, other in (("input", x), ("past_state", history)):
        if may_overlap(other, y):
            raise ArgumentError(f"out overlaps {name} in memory; pass an array of its own")
    reach = min(k - 1, length)
    if reach:
        head_shape = (*x.shape[:2], k - 1 + reach)
        with allocating(sized("a copy of the first inputs with their past", head_shape, x.dtype), _PARTS):
            head = np.concatenate([history, x[:, :, :reach]], axis=2)
        run(head, y[:, :, :reach], is_head=True)
    if length > reach:
        run(x, y[:, :, reach:], is_head=False)
    with allocating(sized("present_state", history_shape, x.dtype), _PARTS):
        if length >= k - 1:
            present = x[:, :, length - (k - 1) :].copy()
        else:
            present = np.concatenate([history[:, :, length:], x], axis=2)
    return result, present


