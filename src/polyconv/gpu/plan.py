"""What computes a problem on a GPU, chosen by price or by the clock, and described as a ``Plan``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from polyconv.errors import ArgumentError
from polyconv.gpu.device import Device
from polyconv.gpu.forms import Form, Job, forms
from polyconv.gpu.geometry import Lie, packed
from polyconv.gpu.quantities import described as described_quantities
from polyconv.gpu.remembered import Decision
from polyconv.problem.plan import Candidate, Plan, spelled
from polyconv.problem.problem import Problem

__all__ = ["LOSSES", "choose", "described", "job_of", "lies_of", "measured", "plan", "without_past"]

_MEASURED = {"measure": 6, "patient": 24}
"""Forms that are timed, those predicted fastest; with six the best of all is missed by 4 % (gpu.md)."""


@lru_cache(512)
def choose(job: Job) -> Form:
    """The form predicted fastest, with the bits that one image would have."""
    one = replace(job, problem=replace(job.problem, n=1)) if (job.problem.n or 0) > 1 else job
    best = min(forms(one), key=lambda form: form.seconds)
    if one is job:
        return best
    same = [form for form in forms(job) if form.arithmetic == best.arithmetic]
    return min(same or forms(job), key=lambda form: form.seconds)


def measured(job: Job, rigor: str, time: Callable[[Form], float]) -> tuple[Form, dict[str, float]]:
    """The form that runs fastest of those predicted so, and the seconds of all that were timed."""
    likely = sorted(forms(job), key=lambda form: form.seconds)[: _MEASURED[rigor]]
    seconds = {form: time(form) for form in likely}
    best = min(likely, key=lambda form: seconds[form])
    return best, {str(form): found for form, found in seconds.items()}


def lies_of(p: Problem) -> tuple[Lie, Lie, tuple[int, ...]]:
    """How input, result and weights lie where they have no gaps, in the order of the problem's layout."""

    def lie(c: int, extents: tuple[int, ...]) -> Lie:
        if p.layout == "NHWC":
            found = packed(p.n or 0, c, extents)
        else:
            steps = [math.prod(extents[a + 1 :]) for a in range(len(extents))]
            pixels = math.prod(extents)
            found = Lie(c * pixels, pixels, tuple(steps))
        steps = [0 if extent == 1 else step for extent, step in zip(extents, found.spatial, strict=True)]
        return Lie(0 if p.n == 1 else found.n, 0 if c == 1 else found.c, tuple(steps))

    x = lie(p.c, tuple(e or 0 for e in p.i))
    shape = p.w_shape
    w = tuple(math.prod(shape[a + 1 :]) for a in range(len(shape)))
    return replace(x, c=1) if p.c == 1 else x, lie(p.m, tuple(e or 0 for e in p.out)), w


def plan(problem: Problem, device: Device, *, accuracy: str = "fast", workspace_limit: int | None = None) -> Plan:
    """How a problem would be computed on a GPU, for operands without gaps in the order of its layout.

    Parameters
    ----------
    device : Device
        One of this machine (``device.device``), or of ``device.presets``.

    Raises
    ------
    ArgumentError
        If extents are unknown.
    """
    job = job_of(problem, device, accuracy=accuracy, workspace_limit=workspace_limit)
    return described(job, choose(job))


def job_of(problem: Problem, device: Device, *, accuracy: str = "fast", workspace_limit: int | None = None) -> Job:
    """What a plan is made for; see ``plan``."""
    if not problem.is_known:
        raise ArgumentError(f"'{problem}' has unknown extents; a plan needs all of them: give n and i")
    p = without_past(problem)
    x, y, w = lies_of(p)
    fields = [_field(shape) for shape in (p.offset_shape, p.mask_shape)]
    offset, mask = fields[0] if p.op == "deform_conv" else None, fields[1] if p.mask else None
    return Job(p, x, y, y if p.residual else None, w, accuracy, device, workspace_limit, described_quantities(p),
               offset, mask)  # fmt: skip


def without_past(p: Problem) -> Problem:
    """A problem as it is computed: past and input of a causal one are joined, and then convolved without pads."""
    if p.op != "causal_conv":
        return p
    return replace(p, op="conv", pads=((0, 0),), i=(p.k[0] - 1 + int(p.i[0] or 0),))


def _field(shape: Sequence[int | None]) -> Lie:
    """How offsets or masks lie that have no gaps."""
    sizes = [e or 0 for e in shape]
    n, c, *spatial = (math.prod(sizes[a + 1 :]) for a in range(len(sizes)))
    return Lie(n, c, tuple(spatial))


LOSSES = {"x3": 2.0**-20, "tf32": 2.0**-9}
"""What products lose beyond the rounding of their sum."""


def described(job: Job, form: Form, decision: Decision | None = None, packed_bytes: int = 0) -> Plan:
    """The plan of a form, which a decision may have chosen."""
    p = job.problem
    seconds = {} if decision is None else decision.seconds
    everything = sorted(forms(job), key=lambda one: one.seconds)
    terms = (p.c // max(1, p.groups)) * math.prod(p.k)
    accumulator = 2.0**-52 if p.x == "f64" else 2.0**-23
    extra = next((loss for name, loss in LOSSES.items() if f" {name} " in f"{form.arithmetic} "), 0.0)
    bound = (terms + 4) * accumulator + extra if p.y_dtype.is_float else 0.0


    def reason(one: Form) -> str:
        text = f"predicted {spelled(one.seconds)}"
        return f"{text}, measured {spelled(seconds[str(one)])}" if str(one) in seconds else text

    refused = tuple((str(one), reason(one)) for one in everything if str(one) != str(form))
    notes = ("input is copied channels last before each call",) if form.moved is not None else ()
    return Plan(
        problem=p, algorithm=form.algorithm, arithmetic=form.arithmetic, target=job.device.level, threads=1,
        workspace_bytes=form.workspace, packed_bytes=packed_bytes, error_bound=bound, bound_kind="own",
        seconds=form.seconds, cycles=(), refused=refused,
        notes=(f"kernel: {form}", *notes), source="estimate" if decision is None else decision.source,
        candidates=tuple(
            Candidate(str(one), one.seconds, seconds.get(str(one))) for one in everything
        ),
        conditions="" if decision is None else decision.conditions, accuracy=job.accuracy, workspace_limit=job.limit,
    )  # fmt: skip
