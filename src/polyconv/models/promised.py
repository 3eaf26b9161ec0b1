"""A program that is compiled when somebody asks for more of it than the runs that an earlier process has left.

Compiling takes a small network as long as all its first run.  The one idea: who finds how such a model ran, and what
its outputs are, need not know what it is made of.  It must not know what is left, nor how.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from polyconv.models.arena import Arena
from polyconv.models.graph import Array, Graph, Value
from polyconv.models.kept_runs import Before, KeptRuns
from polyconv.models.options import Options
from polyconv.models.program import Program, halting, own
from polyconv.models.replay import Replay
from polyconv.models.replays import MOST_BYTES
from polyconv.models.steps import Times

__all__ = ["Promised"]


class Promised:
    """The program of a graph.  It is compiled at once where nothing of it was left, so that what is wrong is said.

    Parameters
    ----------
    graph : Graph
    overridden : frozenset of str
        Inputs with defaults that runs will feed.
    options : Options
    """

    def __init__(self, graph: Graph, overridden: frozenset[str], options: Options) -> None:
        self._lock = threading.RLock()
        self._runs = KeptRuns(graph, overridden, options)
        self._compile: Callable[[], Program] | None = partial(_compiled, graph, overridden, options)
        self._program: Program | None = None
        self._before: Before | None = None  # held to the end, as other sessions of the model share it
        self._replay: Replay | None = None  # of what was left, until the program has it
        outputs = self._runs.outputs
        if outputs is None:
            ends = zip(graph.outputs, graph.results, strict=True)
            outputs = self._runs.outputs = tuple(_described(value, name, self.program) for value, name in ends)
        self.outputs = outputs

    @property
    def program(self) -> Program:
        """All of it."""
        with self._lock:
            if self._program is None:
                assert self._compile is not None
                self._program, self._compile = replace(self._compile(), runs=self._runs), None
                self._hand_over()
            return self._program

    def _hand_over(self) -> None:
        """Give the program what was left, once both are there."""
        if self._program is not None and self._replay is not None:
            assert self._before is not None
            self._program.heard(self._replay, self._before.about)
            self._replay = None

    def run(self, feeds: Mapping[str, Any], results: Sequence[str], is_halted: Callable[[], bool]
            ) -> tuple[list[Array], Times]:  # fmt: skip
        """See ``Program.run``."""
        done = self._as_before(feeds, results, is_halted)
        return self.program.run(feeds, results, is_halted) if done is None else done

    def _as_before(self, feeds: Mapping[str, Any], results: Sequence[str], is_halted: Callable[[], bool]
                   ) -> tuple[list[Array], Times] | None:  # fmt: skip
        """A run as an earlier process has left it; None where it left none like this one."""
        with self._lock:
            before = self._runs.before(results, feeds)
            if before is not None:
                self._before = before
                with suppress(MemoryError):  # runs by steps free as they go
                    self._replay = Replay(before.laid, Arena(MOST_BYTES))
                self._hand_over()
            replay, before = self._replay, self._before
        if replay is None or before is None or not replay.fits(results, feeds):
            return None
        steps = len(before.about.steps)
        times = Times(steps)
        done = replay.run(feeds, times, halting(is_halted, steps))
        return None if done is None else (own(results, *done), times)


def _compiled(graph: Graph, overridden: frozenset[str], options: Options) -> Program:
    from polyconv.models.building import compiled  # here, as who finds what was left needs none of it

    if graph.content is not None:
        graph.content.fill()
    return compiled(graph, overridden, options)


def _described(declared: Value, result: str, program: Program) -> Value:
    """An output as the file declares it; what it leaves open, the engines may know."""
    known = program.values.get(result, declared)
    return Value(
        declared.name, declared.type or known.type, declared.dims if declared.dims is not None else known.dims
    )
