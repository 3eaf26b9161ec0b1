"""One call of a problem, and the layers of calls before: weights that come again are found prepared.

Preparing weights and making a program take longer than most problems do, and ``conv`` is called in loops.  So a problem
that comes a second time keeps its layer, with a copy of the weights.  A later call whose weights are the same, byte by
byte, runs it: plans are those for weights that come with each call, so results have the same bits.  It must not know
what a layer does with weights.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from numpy.typing import ArrayLike, NDArray

from polyconv import operands
from polyconv.causal import causal
from polyconv.prepared import Layer
from polyconv.problem.problem import Problem
from polyconv.runtime.guests import as_array
from polyconv.settings import resolve as setting
from polyconv.weights import TABLES

__all__ = ["compute"]

_MOST_MET = 256
"""Problems that are remembered, those met last; few of them with a layer."""

_met: OrderedDict[Any, Layer | None] = OrderedDict()
"""Layers by all that decides what they compute, but their weights; None after a first call, or one with other weights.

Under ``TABLES``.
"""


def compute(problem: Problem, x: ArrayLike, w: ArrayLike, bias: ArrayLike | None = None,
            residual: ArrayLike | None = None, *, out: Any = None, offset: ArrayLike | None = None,
            mask: ArrayLike | None = None, past: ArrayLike | None = None, accuracy: str | None = None,
            threads: int | None = None, workspace_limit: int | None = None, algorithm: str | None = None,
            quantities: Mapping[str, ArrayLike | None] | None = None, chance: int | None = None) -> Any:  # fmt: skip
    """Compute a problem once: weights are packed for this call, unless they are those of a call before.

    Parameters
    ----------
    problem : Problem
        With known extents.
    x, w, bias, residual, offset, mask, past : array
        Operands in its layout and types.
    algorithm : str, optional
        Row of the table of algorithms to use.
    chance : int, optional
        As in ``Situation``, for tests.

    Returns
    -------
    ndarray
        The result, or (result, present state) of a causal convolution.
    """
    keywords = dict[str, Any](accuracy=accuracy, threads=threads, workspace_limit=workspace_limit,
                              algorithm=algorithm, chance=chance)  # fmt: skip
    if problem.op == "causal_conv":

        def run(part: NDArray[Any], y: NDArray[Any], *, is_head: bool) -> None:
            plain = replace(problem, op="conv", pads=((0, 0),), i=part.shape[2:])
            compute(plain, part, w, bias, out=y, **keywords)

        return causal(problem, x, past, out, run)
    w, bias = as_array(w, "w"), None if bias is None else as_array(bias, "b")
    made = partial(Layer, lambda n, i: problem, w, bias, layout=problem.layout, once=True, quantities=quantities,
                   **keywords)  # fmt: skip
    call = dict[str, Any](residual=residual, out=out, offset=offset, mask=mask)
    most = _most_bytes(workspace_limit)
    if 2 * w.nbytes > most:
        return made(own=False)(x, **call)
    key = _key(problem, keywords)
    with TABLES:
        is_met, layer = key in _met, _met.get(key)
        if is_met:
            _met.move_to_end(key)
    is_found = layer is not None and layer.weights.same_as(w, bias, quantities)
    if not is_found:
        layer = made(own=is_met and layer is None)  # other weights than those of the last call are not copied yet
    assert layer is not None
    if out is not None:  # of a layer's own copies it is apart
        operands.check_apart(operands.result_of(problem, out)[1], w=w, b=bias)
    result = layer(x, **call)
    if not is_found:
        _remember(key, layer if layer.owns else None, most)
    return result


def _most_bytes(workspace_limit: int | None) -> int:
    """Bytes of weights that may be kept: none where a call's memory is limited, or where calls are looked at."""
    if setting("workspace_limit", workspace_limit) is not None or setting("check") or setting("verbose"):
        return -1
    return int(setting("kept_weights"))


def _key(problem: Problem, keywords: dict[str, Any]) -> Any:
    """All that decides what a layer computes, but its weights."""
    chosen = tuple(setting(name, keywords[name]) for name in ("accuracy", "threads"))
    return problem, chosen, setting("target"), setting("profile"), keywords["algorithm"], keywords["chance"]


def _remember(key: Any, layer: Layer | None, most: int) -> None:
    """Remember a call under a key, and let go of the oldest layers while all hold more bytes than they may."""
    with TABLES:
        _met[key] = layer
        _met.move_to_end(key)
        if len(_met) > _MOST_MET:
            _met.popitem(last=False)
        if layer is None:
            return
        sizes = {kept: one.packed_bytes for kept, one in _met.items() if one is not None}
        total = sum(sizes.values())
        for kept, size in sizes.items():
            if total <= most:
                break
            del _met[kept]
            total -= size
