"""Causal convolution with state on a GPU: past and input are joined in memory of the call, then convolved without pads.

It must not know how a plain convolution is computed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from polyconv.gpu.calling import launched
from polyconv.gpu.guests import guest_of
from polyconv.gpu.kernels.joined import Joined
from polyconv.gpu.operands import check_apart, check_operand, operand
from polyconv.problem.problem import Problem

__all__ = ["Run", "causal"]


class Run(Protocol):
    """What computes a plain convolution of an array."""

    def __call__(self, p: Problem, x: Any, /, *, out: Any) -> Any:
        """The result; ``out`` if that was given."""


def causal(p: Problem, x: Any, past: Any, out: Any, run: Run) -> tuple[Any, Any]:
    """Result and present state of a causal convolution (ONNX CausalConvWithState-27).

    Raises
    ------
    ArgumentError, DtypeError
        Naming the operand that does not fit.
    """
    guest = guest_of(x)
    a, before = guest.read(x, "input"), None if past is None else operand(past, "past_state")
    (k,), (length,), n = p.k, p.i, int(p.n or 0)
    history, whole = (n, p.c, k - 1), (n, p.c, k - 1 + int(length or 0))
    check_operand("input", a, p.x_dtype, p.x_shape, a.device)
    if before is not None:
        check_operand("past_state", before, p.x_dtype, history, a.device)
    if out is not None:
        check_apart(operand(out, "out"), input=a, past_state=before)
    stream = guest.stream(a.device)

    def joined(first: int, shape: tuple[int, int, int]) -> Any:
        """Positions of past and input together, from one of them on."""
        made = guest.maker(a.device, shape, p.x_dtype, None)()
        wanted = Joined(shape, k - 1, first, None if before is None else before.strides, a.strides, p.x)
        if wanted.grid[0]:
            places = {"past": before.address if before else 0, "input": a.address, "target": guest.address(made)}
            launched(wanted, places, stream, a.device)
        return made

    plain = replace(p, op="conv", pads=((0, 0),), i=(whole[2],))
    result = run(plain, joined(0, whole), out=out)
    return result, joined(whole[2] - (k - 1), history)
