"""Steps made ready side by side before they first run: planned, their kernels compiled, their weights packed.

The one idea: the extents that a file states say how arrays will lie in the first run, so that what each step would make
when the run meets it can be made on several threads before.  It must not know what a step computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace

from polyconv.kernels.objects import EVENTS
from polyconv.models.graph import Array, Value
from polyconv.models.layout import Layout
from polyconv.models.native import foreseen
from polyconv.models.steps import Step
from polyconv.settings import resolve

__all__ = ["Ahead"]


class Ahead:
    """Makes the steps of a program ready, once.

    Parameters
    ----------
    threads : int
        Most threads of a run; with one there is nothing to win.
    layout : Layout
        Of the network.
    """

    __slots__ = ("_is_over", "_layout", "_threads")

    def __init__(self, threads: int, layout: Layout) -> None:
        self._threads, self._is_over, self._layout = threads, threads == 1, layout

    def __call__(self, steps: Sequence[Step], values: Mapping[str, Value], feeds: Mapping[str, Array]) -> None:
        """Make steps ready for arrays such as they will be given, as far as that is known.

        Parameters
        ----------
        steps : sequence of Step
            That are about to run.
        values : mapping
            What is known of values.
        feeds : mapping
            Inputs of the run, which say what symbols in shapes stand for.
        """
        if self._is_over:
            return
        self._is_over = True
        if resolve("check") or resolve("rigor") != "estimate":  # the one counts kernels, the other times them
            return
        symbols = {
            symbol: extent
            for name, array in feeds.items()
            for symbol, extent in zip(values[name].dims or (), array.shape, strict=False)
        }

        last = self._layout.is_last

        def ready(step: Step) -> None:
            known = [_with(symbols, last, values.get(name, Value(name))) for name in step.reads]
            arrays = [array for array in map(foreseen, known) if array is not None]
            if len(arrays) == len(known):
                with suppress(Exception):  # what is wrong comes again when the step runs, which says where
                    step.segment.ahead(arrays)

        waiting = iter(steps)
        for step in waiting:
            compiled = EVENTS.compiled
            ready(step)
            if EVENTS.compiled > compiled:  # then those to come are likely to need kernels as well
                break
        from concurrent.futures import ThreadPoolExecutor  # here: most processes find all kernels in the cache

        with ThreadPoolExecutor(self._threads, "polyconv ahead") as pool:
            for step in waiting:
                pool.submit(copy_context().run, ready, step)


def _with(symbols: Mapping[int | str | None, int], last: bool, value: Value) -> Value:
    """A value whose shape has numbers in the place of symbols that are known, in the order of the network's layout."""
    dims = None if value.dims is None else tuple(symbols.get(d, d) for d in value.dims)
    return replace(value, dims=dims, channels_last=value.channels_last and last)
