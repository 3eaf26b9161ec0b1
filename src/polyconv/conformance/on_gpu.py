"""Random problems on a GPU: a count and a seed in, every disagreement with the oracle out.

Problems, operands and the ways in which they lie are those of the differential fuzz; each is computed by some of its
forms, drawn by chance, in an array that lies between guards, twice.  Forms that name the same arithmetic must give the
same bits, and an image the same alone as in its batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.conformance.judge import Expected, complaint, expected
from polyconv.conformance.operands import Operands
from polyconv.conformance.trial import Trial, drawn, same_bits, state_complaints
from polyconv.dataclass import dataclass
from polyconv.errors import Error
from polyconv.gpu.arrays import GpuArray, to_gpu
from polyconv.gpu.forms import Form, Job, forms
from polyconv.gpu.layer import compute
from polyconv.gpu.plan import LOSSES, choose
from polyconv.problem.oracle import magnitude
from polyconv.problem.problem import Problem

__all__ = ["Report", "on_device", "run"]

Array = NDArray[Any]

_GUARD = 0xA5
_MARGIN = 256
_ACCURACIES = ("fast", "fast", "strict", "tf32")
_IMAGES = ("x", "residual", "offset", "mask", "past")


@dataclass(slots=True)
class Report:
    """Where a campaign stands.

    Parameters
    ----------
    seed : int
    tried : int
        Problems.
    runs : dict
        By arithmetic, how often it ran.
    findings : list of str
    """

    seed: int
    tried: int = 0
    runs: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)


def run(count: int, seed: int = 0, *, device: int = 0, every: int = 2, first: int = 0,
        progress: Callable[[int], None] | None = None) -> Report:  # fmt: skip
    """Try so many problems of a seed, each by ``every`` forms.

    Raises
    ------
    Unsupported
        If there is no GPU.
    """
    report = Report(seed)
    for index in range(first, first + count):
        report.tried += 1
        _try(report, drawn(seed, index), device, every)
        if progress is not None:
            progress(index + 1 - first)
    return report


def _try(report: Report, trial: Trial, device: int, every: int) -> None:
    p, made = trial.problem, trial.operands
    rng = np.random.default_rng([trial.seed, trial.index, 7])
    accuracy = str(rng.choice(_ACCURACIES)) if p.x == "f32" else "fast"
    want = expected(p, made)
    there = on_device(made, device)
    bits: dict[str, tuple[str, Array]] = {}
    for turn in range(every):
        taken: list[Form] = []

        def take(job: Job, turn: int = turn, taken: list[Form] = taken) -> Form:
            if not taken:
                found = [choose(job)] if turn == 0 else list(forms(job))
                taken.append(found[int(rng.integers(len(found)))])
            return taken[0]

        try:
            got, more = _computed(p, made, there, trial.out, accuracy, take, device)
        except Error as error:
            report.findings.append(f"{trial}: {taken[0] if taken else 'no form'}: {type(error).__name__}: {error}")
            continue
        name = f"{accuracy} {taken[0]}" if taken else "nothing to compute"
        arithmetic = taken[0].arithmetic if taken else name
        report.runs[arithmetic] = report.runs.get(arithmetic, 0) + 1
        wrong = complaint(p, _allowed(p, made, want, arithmetic), got)
        report.findings += [f"{trial}: {name}: {message}" for message in (*more, *([wrong] if wrong else []))]
        before, other = bits.setdefault(arithmetic, (name, got))
        if not same_bits(other, got):
            report.findings.append(f"{trial}: {name}: other bits than {before}, though both name {arithmetic}")
        if turn == 0 and (p.n or 0) > 1 and taken:
            report.findings += _alone(trial, there, accuracy, got)


def _allowed(p: Problem, made: Operands, want: Expected, arithmetic: str) -> Expected:
    """The bound of what an arithmetic loses besides rounding its sums."""
    loss = next((loss for name, loss in LOSSES.items() if f" {name} " in f"{arithmetic} "), 0.0)
    if not loss:
        return want
    with np.errstate(all="ignore"):
        size = magnitude(p, made.x, made.w, made.bias, made.residual, **made.keywords())
    return replace(want, allowed=want.allowed + 1.25 * loss * size)


def on_device(made: Operands, device: int) -> dict[str, Any]:
    """Operands on the GPU, by parameter; of zero points and scales that are one value some stay here."""
    names = ("w", "bias", *_IMAGES)
    found = {name: None if (a := getattr(made, name)) is None else to_gpu(a, device) for name in names}
    lone = {name: a for name, a in list(made.quantities.items())[::2] if a.size == 1}
    return found | {"quantities": {name: to_gpu(a, device) for name, a in made.quantities.items()} | lone}


def _run(p: Problem, there: dict[str, Any], **options: Any) -> tuple[Any, Any]:
    """The result, and the state if it leaves one."""
    found = compute(p, **there, **options)
    return found if p.op == "causal_conv" else (found, None)


def _computed(p: Problem, made: Operands, there: dict[str, Any], out: str, accuracy: str, take: Callable[[Job], Form],
              device: int) -> tuple[Array, list[str]]:  # fmt: skip
    """The result, made between guards, and what else is wrong."""
    found = []
    shape = tuple(int(e or 0) for e in p.y_shape)
    guards = np.full(int(np.prod(shape)) * p.y_dtype.itemsize + 2 * _MARGIN, _GUARD, np.uint8)
    whole = to_gpu(guards, device)
    inner = GpuArray(shape, p.y_dtype, device, memory=whole.memory, offset=_MARGIN)
    if out == "residual" and made.residual is not None:  # its memory takes the result
        inner = to_gpu(np.ascontiguousarray(made.residual), device)
        there = {**there, "residual": inner}
    result, state = _run(p, there, out=inner, accuracy=accuracy, form=take)
    if result is not inner:
        found.append("the call returned another array than out")
    found += [] if state is None else state_complaints(p, made, state.numpy())
    got = inner.numpy()
    around = whole.numpy()
    if not ((around[:_MARGIN] == _GUARD).all() and (around[-_MARGIN:] == _GUARD).all()):
        found.append("memory around out was written")
    if out != "residual":
        again = GpuArray(shape, p.y_dtype, device)
        _run(p, there, out=again, accuracy=accuracy, form=take)
        if not same_bits(got, again.numpy()):
            found.append("a second call gave other bits")
    return got, found


def _alone(trial: Trial, there: dict[str, Any], accuracy: str, got: Array) -> list[str]:
    """What is wrong with an image of the batch when it is computed alone."""
    p, made = trial.problem, trial.operands
    last = int(p.n or 0) - 1
    one = replace(p, n=1)
    mine = {name: None if (a := getattr(made, name)) is None else to_gpu(a[last:]) for name in _IMAGES}
    alone = GpuArray([int(e or 0) for e in one.y_shape], p.y_dtype)
    _run(one, {**there, **mine}, out=alone, accuracy=accuracy)
    same = same_bits(alone.numpy(), got[last:])
    return [] if same else [f"{trial}: {accuracy}: the last image alone has other bits than in its batch"]

