"""What a process leaves the next one about a model: its graph as read, plans of its convolutions, runs laid out.

Files beside the compiled kernels, under names that say all that shapes what is in them: the model's bytes, the code
that read them, the packages it asked.  Any that is absent, damaged or of another kind is made anew.  Like a kernel,
such a file is believed because it is private to its user (``polyconv.cache``): it may make any object.  It must not
know what it keeps.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from polyconv import cache as files
from polyconv import planning, problem
from polyconv.in_force import keep_where_settings_say, target_in_force
from polyconv.kernels.objects import fingerprint, generator
from polyconv.kernels.word import Pointing, pointing
from polyconv.machine.host import profile_in_force
from polyconv.models.graph import Graph, Value
from polyconv.models.laid import Laid
from polyconv.models.operators import Options
from polyconv.planning import wisdom
from polyconv.planning.remembered import Remembered, remembering
from polyconv.runtime.arrays import aligned
from polyconv.settings import context, resolve

__all__ = ["About", "KeptPlans", "KeptRuns", "digest_of", "keep", "kept", "place"]

K = TypeVar("K")

_MOST_BYTES = 16 << 20
"""Of a file: a model whose small constants take more is read as soon as parsed."""
_READ_SOON = 3 << 19
"""Bytes a step of a file that is worth reading: for more it takes longer than making a step ready.  Measured on an
Emerald Rapids: ResNet-18, of which 3 MiB a step would be left, then starts 1.2 times as late, DenseNet-121 with 0.4 in
half of the time."""
_NOTHING = ()
"""Stands for the outputs of a model of which nothing can be left: the next process need not look at its weights."""
_SETTINGS = ("threads", "accuracy", "workspace_limit", "layout")
"""Of those in force, what runs depend on beside target and profile."""


def digest_of(data: bytes) -> str:
    """Name of a content."""
    return hashlib.sha256(data).hexdigest()


def place(kind: str, parts: Sequence[str]) -> Path | None:
    """File for what some texts determine; None where nothing is kept."""
    keep_where_settings_say()
    found = files.place(parts, kind)
    return found if found is not None and files.usable(found.parent) else None


def kept(file: Path | None, read: Callable[[Any], object], kind: type[K],
         room: Callable[[int], memoryview] | None = None) -> K | None:  # fmt: skip
    """What a file holds; None where there is none, or it cannot be read as such a thing.

    Parameters
    ----------
    file : Path or None
    read : callable
        Makes it of the file's bytes.
    kind : type
        What it must be.
    room : callable, optional
        Where the bytes are to lie, as ``polyconv.cache.read_into`` takes it.
    """
    data = None if file is None else files.read(file) if room is None else files.read_into(file, room)
    if data is None:
        return None
    try:
        found = read(data)
    except Exception:  # whatever stands there, it is made anew
        return None
    return found if isinstance(found, kind) else None


def keep(file: Path | None, data: bytes) -> None:
    """Leave bytes for the next process, unless they are many."""
    if file is not None and len(data) <= _MOST_BYTES:
        files.write(file, data)


class KeptPlans:
    """Plans of a model's convolutions: what the processes before have left, and what this one adds.

    Parameters
    ----------
    digest : str
        Fingerprint of the model; empty where there is none, and nothing is left.
    """

    __slots__ = ("_digest", "_file", "_memory")

    def __init__(self, digest: str) -> None:
        self._digest = digest
        self._file: Path | None = None
        self._memory: Remembered | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Remember what is planned within, and leave it for the next process."""
        profile, target = profile_in_force(), target_in_force()
        if self._memory is None:
            made_for = (_code(), generator(), str(profile), target.level, target.triple, target.cpu, target.features)
            self._file = place("plans", (self._digest, *made_for)) if self._digest else None
            found = kept(self._file, lambda data: Remembered.of(data, profile, target), Remembered)
            self._memory = found or Remembered()
        with remembering(self._memory):
            yield
        if self._file is not None and self._memory.is_worth_leaving:
            keep(self._file, self._memory.left(profile, target))


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


class KeptRuns:
    """How a program first ran: what a process before has left of such runs, and what this one leaves.

    Of each program one way of running it is left, that of its first run: feeds that lie as those did, and the same
    results.  The second such run leaves it.

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
    """

    __slots__ = ("_content", "_file", "_made", "_parts", "_told", "outputs")

    def __init__(self, graph: Graph, overridden: frozenset[str], options: Options) -> None:
        self._file: Path | None = None
        self._told: Pointing | None = None
        self._made: Path | None = None
        self.outputs: tuple[Value, ...] | None = None
        self._content = graph.content
        if options.device is not None or not resolve("kept_runs") or not _is_predicted():
            self._content = None
        if self._content is None:
            return
        settings = [resolve(name, getattr(options, name)) for name in _SETTINGS]
        made_for = _running_code(), generator(), str(profile_in_force()), repr(target_in_force())
        self._parts = repr((options, sorted(overridden), settings, resolve("kept_runs"))), *made_for
        self._made = place("made", (graph.digest, *self._parts))
        outputs = kept(self._made, pickle.loads, tuple)
        if outputs == _NOTHING:
            self._content = None
        else:
            self.outputs = outputs
            self._content.begin()

    def before(self, results: Sequence[str], feeds: Mapping[str, Any]) -> tuple[Laid, About] | None:
        """What was left of runs like the first one; of later ones nothing."""
        content, self._content = self._content, None  # which holds the weights
        if content is None:
            return None
        lie = [(name, type(a).__name__, a.shape, a.strides, str(a.dtype)) for name, a in sorted(feeds.items())]
        self._file = place("runs", (content(), *self._parts, repr((context(), list(results), lie))))
        if self._file is None:
            return None
        from polyconv.models.snapshot import laid_of  # here: few processes find one

        target = target_in_force()
        found = kept(self._file, lambda data: laid_of(data, target), tuple, lambda size: aligned(size, np.uint8).data)
        if found is None:
            self._told = Pointing()
        return found

    def noting(self) -> AbstractContextManager[None]:
        """Note meanwhile what tables are made, where these may be left."""
        return nullcontext() if self._told is None else pointing(self._told)

    def leave(self, laid: Laid | None, about: Callable[[], About]) -> None:
        """Leave runs as they were laid out, and what is said of their steps."""
        told, self._told = self._told, None
        if told is None or laid is None or self._file is None:
            return
        from polyconv.models.snapshot import bytes_of  # here: few processes leave one

        data = bytes_of(laid, told, about(), min(resolve("kept_runs"), _READ_SOON * len(laid.told)))
        if data is not None:
            files.write(self._file, data)
        keep(self._made, pickle.dumps(_NOTHING if data is None else self.outputs))


def _is_predicted() -> bool:
    """Whether all choices follow from the situation alone, and nobody wants to see or to check them being made."""
    return not (resolve("verbose") or resolve("check") or wisdom.known()) and resolve("rigor") == "estimate"


@cache
def _running_code() -> str:
    """Fingerprint of the code that makes and runs programs of models, beside that which generates kernels."""
    root = Path(__file__).parent.parent
    folders = (root, *(root / name for name in ("dialects", "models", "planning", "problem", "runtime")))
    return fingerprint(entry.path for folder in folders for entry in os.scandir(folder) if entry.name.endswith(".py"))


@cache
def _code() -> str:
    """Fingerprint of the code that plans, beside the algorithms."""
    return fingerprint(file for part in (planning, problem) for file in Path(part.__path__[0]).glob("*.py"))
