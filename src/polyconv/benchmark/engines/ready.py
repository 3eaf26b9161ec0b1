"""What a guest makes of a problem: a function that computes it, and what there is to say about it.

The contract between the worker and the files of the guests, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.problem.problem import Problem

__all__ = ["Lacking", "Ready", "Task", "channels_last", "check_geometry", "check_plain", "keeping"]


class Lacking(Exception):
    """The guest cannot compute the problem; the message says why."""


@dataclass(frozen=True, slots=True)
class Task:
    """How to compute.

    Parameters
    ----------
    threads : int
    cpus : tuple of int
        The CPUs of the process, one per thread.
    accuracy : str
        polyconv's.
    algorithm : str or None
        polyconv's; None is the planner's choice.
    """

    threads: int = 1
    cpus: tuple[int, ...] = ()
    accuracy: str = "fast"
    algorithm: str | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """A problem prepared for calls.

    Parameters
    ----------
    run : callable
        One call, all of its results left where ``result`` finds them.
    result : callable
        The last call's result as a NumPy array, channels first.
    facts : callable
        What is known after a first call: ``precision``, ``kernel``, ``remark``, and seconds of parts of
        the preparation by name.
    visit : callable
        Of a model: a run with other feeds.
    """

    run: Callable[[], object]
    result: Callable[[], NDArray[Any]]
    facts: Callable[[], dict[str, Any]] = field(default=dict)
    visit: Callable[[dict[str, NDArray[Any]]], object] = field(default=lambda feeds: None)


def check_plain(p: Problem, axes: int) -> None:
    """Leave out all but f32 convolutions, forward and transposed.

    Raises
    ------
    Lacking
        For others, and as ``check_geometry``.
    """
    if p.op not in ("conv", "conv_transpose") or not p.x == p.w == p.y == "f32" or p.quantisation is not None:
        raise Lacking("f32 convolutions and transposed ones only")
    check_geometry(p, axes)


def check_geometry(p: Problem, axes: int) -> None:
    """Leave out extents and pads that networks do not have.

    Raises
    ------
    Lacking
        Unless there are one to ``axes`` spatial axes, something to compute, and pads that crop nothing.
    """
    if not 1 <= p.rank <= axes:
        raise Lacking(f"no operator with {p.rank} spatial axes")
    if 0 in (*p.x_shape, *p.y_shape):
        raise Lacking("zero sizes")
    if any(pad < 0 for pair in p.pads for pad in pair):
        raise Lacking("negative pads")


def channels_last(a: NDArray[Any]) -> NDArray[Any]:
    """A copy with the channels innermost."""
    return np.ascontiguousarray(np.moveaxis(a, 1, -1))


def keeping(run: Callable[[], Any]) -> tuple[Callable[[], object], Callable[[], Any]]:
    """A function that keeps what it returned last, and one that tells it."""
    kept: list[Any] = [None]

    def call() -> object:
        kept[0] = run()
        return kept[0]

    return call, lambda: kept[0]
