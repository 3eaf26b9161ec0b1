"""A graph's steps on a GPU: which values stay in the CPU's memory, what makes segments there, and what has no kernel.

Whatever says how kernels are launched, as extents do, is computed on the CPU before them; all else lies on the GPU
from the first step that needs it to the last.  It must not know what a node computes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.errors import Unsupported
from polyconv.gpu.arrays import GpuArray, current_stream, to_gpu
from polyconv.gpu.driver import driver
from polyconv.gpu.work import Work
from polyconv.models.graph import Node, Value
from polyconv.models.native import Given, named
from polyconv.models.segment import ENGINE, Segment
from polyconv.operators.job import Planner
from polyconv.operators.views import Look

__all__ = ["There", "brought_back", "kept_here", "refuse", "synchronize", "synchronized", "with_copies"]

_NUMBERS = ("tensor(int32)", "tensor(int64)")


def kept_here(nodes: Iterable[Node], inputs: Sequence[Value], constants: Collection[str]) -> frozenset[str]:
    """Values that stay in the CPU's memory: whole numbers that a run is fed, extents, and what is made of them.

    Parameters
    ----------
    nodes : iterable of Node
        In running order.
    inputs : sequence of Value
        Of the graph.
    constants : collection of str
        Values that are the same in every run, wherever they lie.
    """
    here = {value.name for value in inputs if value.type in _NUMBERS and value.dims is not None and len(value.dims) < 2}
    for node in nodes:
        moving = [name for name in node.reads if name not in constants]
        if (node.op == "Shape" and not node.domain) or (moving and here.issuperset(moving)):
            here.update(node.writes)
    return frozenset(here)


@dataclass(frozen=True, slots=True)
class There:
    """Makes segments for a GPU; see ``native.Maker``."""

    device: int
    accuracy: str

    def planned(self, label: str, outputs: tuple[Value, ...], planner: Planner, numbers: Sequence[int]) -> Segment:
        """See ``native.Maker``."""
        from polyconv.operators.on_gpu.running import Launched  # here, as on a CPU no kernel of a GPU is needed

        made = Launched(planner, self.device, numbers, self.accuracy)

        def run(arrays: Sequence[Any]) -> Sequence[Any]:
            with named(label):
                return made(arrays)

        def work(arrays: Sequence[Any], results: Sequence[Any]) -> Work | None:
            lie_there = all(type(a) is GpuArray for a in arrays)  # what comes from here differs from run to run
            return made.work(arrays, results) if lie_there else None

        return Segment(ENGINE, outputs, run, device=f"cuda:{self.device}", work=work)

    def viewed(self, label: str, outputs: tuple[Value, ...], look: Look, given: Given, *, looks: bool) -> Segment:
        """See ``native.Maker``."""
        from polyconv.operators.on_gpu.seeing import seen  # here, as on a CPU no kernel of a GPU is needed

        def run(arrays: Sequence[Any]) -> Sequence[Any]:
            with named(label):
                return seen(look, given(arrays))

        return Segment(ENGINE, outputs, run, views=True, looks=looks, device=f"cuda:{self.device}")


def with_copies(segment: Segment, device: int, writes: Sequence[str], here: Collection[str]) -> Segment:
    """A segment of the CPU as one of values on a GPU: what it reads is copied from there, what it makes copied back."""

    def run(arrays: Sequence[Any]) -> Sequence[Any]:
        made = segment.run([brought_back(a) for a in arrays])
        return [a if name in here else _sent(a, device) for a, name in zip(made, writes, strict=True)]

    return replace(segment, run=run, views=False, looks=False, copies=True, ahead=lambda arrays: None)


def synchronize(values: Iterable[Any]) -> None:
    """Wait for all that was started on the GPUs on which some values lie, on whatever stream."""
    for device in {value.device for value in values if type(value) is GpuArray}:
        driver().enter(device)
        driver().synchronize_all()


def synchronized(device: int) -> Callable[[], float]:
    """A clock that waits for all that was started on the current stream of a device."""

    def seconds() -> float:
        driver().enter(device)
        driver().synchronize(current_stream())
        return perf_counter()

    return seconds


def brought_back(value: Any) -> Any:
    """An array in the CPU's memory."""
    return value.numpy() if type(value) is GpuArray else value


def _sent(value: Any, device: int) -> Any:
    """An array on the GPU; what is none, as a list of arrays, stays."""
    return to_gpu(value, device, wait=False) if isinstance(value, np.ndarray) else value


def refuse(reasons: Mapping[Node, str]) -> None:
    """Say which nodes have no kernel on a GPU.

    Raises
    ------
    Unsupported
        If there are some.
    """
    if not reasons:
        return
    some = [f"{node.label} ({reason})" for node, reason in list(reasons.items())[:_MOST_NAMED]]
    more = f" and {len(reasons) - len(some)} more" if len(reasons) > len(some) else ""
    count = "1 node has" if len(reasons) == 1 else f"{len(reasons)} nodes have"
    raise Unsupported(
        f"{count} no kernel on a GPU: {', '.join(some)}{more}; add 'CPUExecutionProvider' to providers, and such nodes "
        f"run on the CPU, with copies there and back"
    )


_MOST_NAMED = 6
