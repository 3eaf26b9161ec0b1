"""How a program first ran: what a process before has left of such runs, and what this one leaves.

The one idea: of each program one way of running it is left, that of its first run: feeds that lie as those did, and the
same results.  The second such run leaves it, be it of the same process or of the next one, under a name that says all
that it depends on.  It must not know how runs become bytes.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from polyconv import cache as files
from polyconv.in_force import target_in_force
from polyconv.kernels.objects import fingerprint, generator
from polyconv.kernels.word import Pointing, pointing
from polyconv.machine.host import profile_in_force
from polyconv.models.graph import Graph, Value
from polyconv.models.kept import keep, kept, package, place
from polyconv.models.laid import Laid
from polyconv.models.options import Options
from polyconv.planning import wisdom
from polyconv.runtime.arrays import aligned
from polyconv.settings import context, resolve

__all__ = ["About", "Before", "KeptRuns"]

_NOTHING = ()
"""Stands for the outputs of a model of which nothing can be left: the next process need not look at its weights."""
_SETTINGS = ("threads", "accuracy", "workspace_limit", "layout")
"""Of those in force, what runs depend on beside target and profile."""


class About(NamedTuple):
    """What is said of runs that are left.

    Parameters
    ----------
    steps : tuple of (str or None, int)
        Of each step: the convolution that it ran last, and the bytes of its constants.
    values : mapping
        Values whose extents only a run tells, as it told them.
    """

    steps: tuple[tuple[str | None, int], ...]
    values: Mapping[str, Value]


class Before:
    """Runs as a process before has left them.  Sessions of a model share them while one of them lives.

    Parameters
    ----------
    laid : Laid
    about : About
    """

    __slots__ = ("__weakref__", "about", "laid")

    def __init__(self, laid: Laid, about: About) -> None:
        self.laid, self.about = laid, about


_SHARED: WeakValueDictionary[Path, Before] = WeakValueDictionary()
"""By file; their weights and tables, which no run writes to, are there once."""


class KeptRuns:
    """What was left of a program's runs, and what is to be left.

    Parameters
    ----------
    graph : Graph
        Of a model of which it is known what all of its weights are; else nothing is left.
    overridden : frozenset of str
        Inputs with defaults that runs feed.
    options : Options
        What the session's caller chose.

    Attributes
    ----------
    outputs : tuple of Value or None
        What comes out of the program, if it was left; else whoever finds that says it here.
    are_again : bool
        Whether an earlier process began with such a run and left nothing: this one's first run is the second.
    """

    __slots__ = ("_asked", "_content", "_file", "_made", "_options", "_told", "_way", "are_again", "outputs")

    def __init__(self, graph: Graph, overridden: frozenset[str], options: Options) -> None:
        packages = package("onnx"), package("onnxruntime")  # they compute what depends on constants alone
        self._options, self._asked = options, (graph.digest, repr((options, sorted(overridden), packages)))
        self._way = "", ""  # fingerprint of the weights, and how the first run is asked for
        self._file: Path | None = None
        self._told: Pointing | None = None
        self.outputs: tuple[Value, ...] | None = None
        self.are_again = False
        self._content = graph.content if options.device is None and _is_predicted() else None
        self._made = None if self._content is None else place("made", self._parts())
        outputs = kept(self._made, pickle.loads, tuple)
        if outputs == _NOTHING:
            self._content = None
        if self._content is not None:
            self.outputs = outputs
            if outputs is None:  # the program is compiled at once
                self._content.fill()
            self._content.begin()

    def _parts(self) -> tuple[str, ...]:
        """All that shapes runs beside weights, feeds and results, as it is now."""
        settings = [resolve(name, getattr(self._options, name)) for name in _SETTINGS]
        return (*self._asked, repr((settings, resolve("kept_runs"))), _code(), generator(), str(profile_in_force()),
                repr(target_in_force()))  # fmt: skip

    def before(self, results: Sequence[str], feeds: Mapping[str, Any]) -> Before | None:
        """What was left of runs like the first one; of later ones nothing."""
        content, self._content = self._content, None  # which holds the weights
        if content is None or not _is_predicted() or any(type(a) is not np.ndarray for a in feeds.values()):
            return None
        lie = [(name, a.shape, a.strides, str(a.dtype)) for name, a in sorted(feeds.items())]
        self._way = content(), repr((list(results), lie))
        self._file, target = self._place(), target_in_force()
        if self._file is None:
            return None
        from polyconv.models.snapshot import laid_of  # here: few processes find one

        shared = _SHARED.get(self._file)
        if shared is not None:
            return shared
        try:
            found = kept(self._file, lambda data: laid_of(data, target), tuple, _room)
        except MemoryError:  # a run by steps takes less at once
            return None
        if found is None:
            self._told = Pointing()
            met = self._place("met")
            self.are_again = kept(met, bytes, bytes) is not None
            if not self.are_again:
                keep(met, b"")
            return None
        return _SHARED.setdefault(self._file, Before(*found))

    def _place(self, kind: str = "runs") -> Path | None:
        """File for runs like the first one under the settings of now."""
        return place(kind, (*self._way, *self._parts(), repr(context())))

    def noting(self) -> AbstractContextManager[None]:
        """Note meanwhile what tables are made, where these may be left."""
        return nullcontext() if self._told is None else pointing(self._told)

    def leave(self, laid: Laid | None, about: Callable[[], About], *, is_like_the_first: bool) -> None:
        """Leave runs as they were laid out, if they can be, unless settings are others by now.

        Parameters
        ----------
        laid : Laid or None
            None if the second run told nothing that can be left.
        about : callable
            What is said of their steps.
        is_like_the_first : bool
            Whether the second run was; of others nothing is left.
        """
        told, self._told = self._told, None
        if told is None or self._file is None or not is_like_the_first or self._file != self._place():
            return
        pieces = None
        if laid is not None:
            from polyconv.models.snapshot import bytes_of  # here: few processes leave one

            with suppress(MemoryError):
                pieces = bytes_of(laid, told, about(), resolve("kept_runs"))
        if pieces is not None:
            files.write(self._file, *pieces)
        keep(self._made, pickle.dumps(_NOTHING if pieces is None else self.outputs))


def _room(size: int) -> memoryview:
    return aligned(size, np.uint8).data


def _is_predicted() -> bool:
    """Whether all choices follow from the situation alone, and nobody wants to see or to check them being made."""
    looks = resolve("verbose") or resolve("check") or resolve("rigor") != "estimate"
    return bool(resolve("kept_runs")) and not looks and not wisdom.known()


@cache
def _code() -> str:
    """Fingerprint of the code that makes and runs programs of models, beside that which generates kernels."""
    root = Path(__file__).parent.parent
    folders = (root, *(root / name for name in ("dialects", "models", "planning", "problem", "runtime")))
    return fingerprint(entry.path for folder in folders for entry in os.scandir(folder) if entry.name.endswith(".py"))
