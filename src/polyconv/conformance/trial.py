"""One trial: a seed and an index in, polyconv's answer to that problem and all complaints about it out.

Seed and index decide everything: problem, values, memory of the operands, out, threads, accuracy
and the way in (one call or a layer).  It must not know of campaigns, state files or other engines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.conformance import corpus
from polyconv.conformance.judge import Expected, complaint, expected, present_state, widened
from polyconv.conformance.operands import Operands, dressed, operands
from polyconv.dataclass import dataclass
from polyconv.errors import Unsupported
from polyconv.layer import Layer, compute, plan
from polyconv.lowering.situation import Situation
from polyconv.planning.planner import form_of
from polyconv.problem.problem import Problem
from polyconv.settings import resolve
from polyconv.target import target

__all__ = ["Trial", "against", "caller", "complaints", "drawn", "same_bits", "state_complaints"]

Array = NDArray[Any]

_GUARD = 0xA5
_MARGIN = 64
_LIMITS = (None,) * 9 + (0, 1 << 15, 1 << 17)
_DEEP_LIMITS = (None,) * 4 + (0, 1 << 13) * 4
"""Of problems with many input channels, which then are not all held at a time."""
_MANY = 96


@dataclass(frozen=True, slots=True)
class Trial:
    """Everything that one trial fixes.

    Parameters
    ----------
    seed, index : int
        Its name.
    problem : Problem
    operands : Operands
        As the caller's arrays lie in memory.
    forms : str
        How they lie, for the report.
    is_layer : bool
        Whether weights are packed in a layer first.
    out : str
        ``none``, ``plain``, ``strided``, ``reversed`` or ``residual`` (the residual's own memory).
    threads : int
    accuracy : str
    workspace_limit : int or None
        Bytes; a trial that cannot be computed within them is none.
    """

    seed: int
    index: int
    problem: Problem
    operands: Operands
    forms: str
    is_layer: bool
    out: str
    threads: int
    accuracy: str
    workspace_limit: int | None

    def __str__(self) -> str:
        way = "layer" if self.is_layer else "compute"
        limit = "" if self.workspace_limit is None else f" limit={self.workspace_limit}"
        return (
            f"{self.problem} # seed={self.seed} index={self.index} {way} threads={self.threads} "
            f"{self.accuracy}{limit} out:{self.out} {self.forms}"
        )


def drawn(seed: int, index: int, *, operator: str | None = None) -> Trial:
    """The trial of that name; ``operator`` as in ``corpus.problem``."""
    budget = corpus.BUDGET * (20 if index % 10 == 9 else 1)  # some large enough for several boxes and threads
    p = corpus.problem(seed, index, operator=operator, budget=budget)
    rng = np.random.default_rng([seed, index, 1])
    made, forms = dressed(operands(p, rng), rng)
    outs = ["none", "none", "plain", "strided", "reversed"]
    if made.residual is not None:
        outs.append("residual")
    causal = p.op == "causal_conv"
    return Trial(
        seed, index, p, made, forms,
        is_layer=not causal and bool(rng.random() < 0.4),
        out="none" if causal else str(rng.choice(outs)),
        threads=int(rng.integers(1, 3)),
        accuracy=str(rng.choice(["fast", "fast", "fast", "strict"])),
        workspace_limit=(_DEEP_LIMITS if p.c // p.groups > _MANY else _LIMITS)[int(rng.integers(len(_LIMITS)))],
    )  # fmt: skip


def complaints(trial: Trial, *, algorithm: str | None = None) -> list[str]:
    """What is wrong with polyconv's answer to a trial: nothing, if the list is empty.

    Parameters
    ----------
    trial : Trial
    algorithm : str, optional
        Name of the algorithm to force.

    Raises
    ------
    Unsupported
        If the forced algorithm does not apply to the problem, or nothing fits into the limit.
    """
    return against(trial, expected(trial.problem, trial.operands), algorithm=algorithm)


def against(trial: Trial, want: Expected, *, algorithm: str | None = None) -> list[str]:
    """``complaints``, with the oracle's answer already at hand."""
    p, made = trial.problem, trial.operands
    before = _copies(made)
    out, whole = _out(trial)
    if trial.out == "residual":
        before.pop("residual", None)
    others = {}
    try:
        call = caller(trial, trial.threads, algorithm)
        got = call(out)
        if trial.is_layer:  # runs what the first call prepared
            others["a second call of the layer"] = call(_out(trial)[0])
        if trial.index % 8 == 0:
            others[f"threads={3 - trial.threads}"] = caller(trial, 3 - trial.threads, algorithm)(_out(trial)[0])
    except Exception as error:
        if isinstance(error, Unsupported) and (algorithm is not None or trial.workspace_limit is not None):
            raise
        return [f"raised {type(error).__name__}: {error}"]
    found = []
    if p.op == "causal_conv":
        found += state_complaints(p, made, got[1])
        got, others = got[0], {way: result[0] for way, result in others.items()}
    judged = complaint(p, want, got)
    if judged is not None and _is_windowed(trial, algorithm):
        judged = complaint(p, widened(p, made, want), got)
    if judged is not None:
        found.append(judged)
    if out is not None and got is not out:
        found.append("the call returned another array than out")
    if out is not None and not _guards_hold(out, whole):
        found.append("memory around out was written")
    found += [
        f"input {name} was written"
        for name, old in before.items()
        if not same_bits(getattr(made, name), old)
    ]
    found += [f"{way} gave other bits" for way, result in others.items() if not same_bits(got, result)]
    return found


def _is_windowed(trial: Trial, algorithm: str | None) -> bool:
    """Whether the algorithm that a trial runs bounds errors over a window only."""
    p, limit = trial.problem, trial.workspace_limit
    if trial.accuracy == "strict" or not p.x_dtype.is_float:
        return False
    if p.op == "causal_conv":  # computed as one or two plain ones
        p = replace(p, op="conv", pads=((0, 0),), i=(p.k[0] - 1 + int(p.i[0] or 0),))
    options: dict[str, Any] = {"accuracy": trial.accuracy, "workspace_limit": limit, "once": not trial.is_layer}
    name = algorithm or plan(p, **options).algorithm
    return form_of(name, Situation(p, target(resolve("target")), limit)).bound[0] == "window"


def caller(trial: Trial, threads: int, algorithm: str | None, chance: int | None = None
           ) -> Callable[..., Any]:  # fmt: skip
    """The trial as a function of ``out``, and of ``x`` for a layer; ``chance`` as in ``Situation``."""
    p, made = trial.problem, trial.operands
    options: dict[str, Any] = {
        "accuracy": trial.accuracy, "threads": threads, "workspace_limit": trial.workspace_limit,
        "algorithm": algorithm, "quantities": made.quantities, "chance": chance,
    }  # fmt: skip
    if p.op == "causal_conv":
        return lambda out: compute(p, made.x, made.w, made.bias, past=made.past, **options)

    def extra(out: Array | None) -> dict[str, Any]:
        adds_to_out = trial.out == "residual" and out is not None
        residual = out if adds_to_out else made.residual
        return {"residual": residual, "out": out, "offset": made.offset, "mask": made.mask}

    if trial.is_layer:
        layer = Layer(p.with_extents, made.w, made.bias, layout=p.layout, **options)
        return lambda out, x=made.x: layer(x, **extra(out))
    return lambda out: compute(p, made.x, made.w, made.bias, **extra(out), **options)


def _copies(made: Operands) -> dict[str, Array]:
    names = ("x", "w", "bias", "residual", "offset", "mask", "past")
    return {n: np.array(getattr(made, n)) for n in names if getattr(made, n) is not None}


def same_bits(a: Array, b: Array) -> bool:
    """Whether two arrays hold the same bytes, NaN included."""
    return a.shape == b.shape and np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def _out(trial: Trial) -> tuple[Array | None, Array]:
    """An array for the result in the trial's form, and the guarded memory that it lies in."""
    p = trial.problem
    shape, dtype = tuple(int(e or 0) for e in p.y_shape), p.y_dtype.numpy
    spread = 2 if trial.out == "strided" else 1
    size = int(np.prod(shape)) * spread ** len(shape)
    whole = np.full((size + 2 * _MARGIN) * dtype.itemsize, _GUARD, np.uint8)
    if trial.out == "none":
        return None, whole
    inner = whole.view(dtype)[_MARGIN : _MARGIN + size].reshape([spread * e for e in shape])
    if trial.out == "strided":
        inner = inner[tuple(slice(None, None, 2) for _ in shape)]
    if trial.out == "reversed":
        inner = inner[tuple(slice(None, None, -1) for _ in shape)]
    if trial.out == "residual":
        assert trial.operands.residual is not None
        inner[...] = trial.operands.residual
    return inner, whole


def _guards_hold(out: Array, whole: Array) -> bool:
    """Whether all bytes around ``out`` are as they were; destroys ``out``."""
    kept = out.copy()
    out[...] = np.frombuffer(bytes([_GUARD]) * out.itemsize, out.dtype)[0]
    held = bool((whole == _GUARD).all())
    out[...] = kept
    return held


def state_complaints(p: Problem, made: Operands, state: Array) -> list[str]:
    """What is wrong with the state after a causal convolution."""
    return [] if same_bits(np.asarray(state), present_state(p, made)) else ["the present state is wrong"]
