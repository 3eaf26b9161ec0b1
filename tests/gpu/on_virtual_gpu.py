"""Problems on the virtual GPU: operands made, laid out, computed by a chosen form, and judged."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from virtual_gpu import virtual_gpu

from polyconv.conformance.judge import complaint, expected
from polyconv.conformance.on_gpu import on_device
from polyconv.conformance.operands import Operands, operands
from polyconv.conformance.trial import state_complaints
from polyconv.gpu.arrays import GpuArray, to_gpu
from polyconv.gpu.forms import Form, Job, forms
from polyconv.gpu.layer import compute
from polyconv.problem.oracle import magnitude
from polyconv.problem.problem import Problem

__all__ = [
    "Choose", "all_forms", "check", "exactly", "nth", "on_gpu", "one_each", "seeded", "shifted", "wrong",
]  # fmt: skip

Array = NDArray[Any]
Choose = Callable[[Job], Form]
"""What picks a form of a job."""

_LOST = {"x3": 2.0**-20, "tf32": 2.0**-9 + 2.0**-20}
"""Of a product, in parts of ``|x||w|``: three passes leave out less than the first; one pass cuts each factor's 13 last
bits, an error below 2^-10 of it."""


def seeded(text: str) -> np.random.Generator:
    """Random numbers that depend on a name only."""
    return np.random.default_rng(zlib.crc32(text.encode()))


def wrong(p: Problem, made: Operands, got: Array, accuracy: str) -> str | None:
    """What is wrong with a result, by the bound of its arithmetic; None when nothing is."""
    want = expected(p, made)
    lost = _LOST.get({"fast": "x3", "tf32": "tf32"}.get(accuracy, ""), 0.0) if p.x == "f32" else 0.0
    if lost:
        with np.errstate(all="ignore"):
            size = magnitude(p, made.x, made.w, made.bias, made.residual, **made.keywords())
            want = replace(want, allowed=want.allowed + lost * size)
    return complaint(p, want, got)


def _laid(a: Array, p: Problem, channels_last: bool) -> Array:
    """The same values; planes lie channels last if so asked."""
    if not channels_last or p.layout == "NHWC":
        return a
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1)


def on_gpu(p: Problem, made: Operands, *, channels_last: bool = False) -> list[Any]:
    """Operands on the GPU: x, w, bias, residual."""
    x, residual = (None if a is None else to_gpu(_laid(a, p, channels_last)) for a in (made.x, made.residual))
    return [x, to_gpu(made.w), None if made.bias is None else to_gpu(made.bias), residual]


def shifted(a: Array, elements: int) -> GpuArray:
    """A copy on the GPU that begins so many elements behind an aligned address."""
    flat = np.zeros(a.size + elements, a.dtype)
    flat[elements:] = a.reshape(-1)
    whole = to_gpu(flat)
    return GpuArray(a.shape, whole.kind, memory=whole.memory, offset=elements * a.itemsize)


def check(line: str, choose: Choose | None = None, *, accuracy: str = "fast", kind: str = "normal",
          channels_last: bool = False) -> None:  # fmt: skip
    """Compute a problem on the GPU and judge the result."""
    p = Problem.parse(line)
    made = operands(p, seeded(line), kind)
    options: dict[str, Any] = {} if choose is None else {"form": choose}
    given = on_device(made, 0)
    if channels_last:
        given |= dict(zip(("x", "w", "bias", "residual"), on_gpu(p, made, channels_last=True), strict=True))
    got = compute(p, **given, accuracy=accuracy, **options)
    if p.op == "causal_conv":
        got, state = got
        assert state_complaints(p, made, state.numpy()) == []
    found = wrong(p, made, got.numpy(), accuracy)
    assert found is None, f"{line}: {found}"


def nth(i: int) -> Choose:
    """The form with this number, counted round and round."""

    def choose(job: Job) -> Form:
        found = list(forms(job))
        return found[i % len(found)]

    return choose


def exactly(form: Form) -> Choose:
    """A form that was found before."""
    return lambda job: form


class _Found(Exception):
    """Carries the forms of a job away before anything is made of them."""


def all_forms(line: str, accuracy: str = "fast", like: str = "H100", kind: str = "normal") -> list[Form]:
    """Forms of a problem whose operands lie without gaps and are of a kind: zero points that are all 0 are left out."""

    def found(job: Job) -> Form:
        raise _Found(list(forms(job)))

    p = Problem.parse(line)
    with virtual_gpu(like), pytest.raises(_Found) as noted:
        compute(p, **on_device(operands(p, seeded(line), kind), 0), accuracy=accuracy, form=found)
    (every,) = noted.value.args
    return list(every)


def one_each(found: list[Form], algorithm: str = "") -> list[Form]:
    """Forms, perhaps of one algorithm, with every shape once; how many blocks share a sum goes round."""
    shapes: dict[str, list[Form]] = {}
    for form in found:
        if algorithm in ("", form.algorithm):
            shapes.setdefault(f"{form.algorithm} {form.steps[0].kernel.shape.partition(' split')[0]}", []).append(form)
    return [same[i % len(same)] for i, same in enumerate(shapes.values())]
