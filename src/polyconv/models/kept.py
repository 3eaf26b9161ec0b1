"""What a process leaves the next one about a model: its graph as it was read, and the plans of its convolutions.

Files beside the compiled kernels, under names that say all that shapes what is in them: the model's bytes, the code
that read them, the packages it asked.  Any that is absent, damaged or of another kind is made anew.  Like a kernel,
such a file is believed because it is private to its user (``polyconv.cache``): it may make any object.  It must not
know what it keeps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from polyconv import cache as files
from polyconv import planning, problem
from polyconv.in_force import keep_where_settings_say, target_in_force
from polyconv.kernels.objects import fingerprint, generator
from polyconv.machine.host import profile_in_force
from polyconv.planning.remembered import Remembered, remembering

__all__ = ["KeptPlans", "digest_of", "keep", "kept", "package", "place"]

K = TypeVar("K")

_MOST_BYTES = 16 << 20
"""Of a file: a model whose small constants take more is read as soon as parsed."""


def digest_of(data: bytes) -> str:
    """Name of a content."""
    return hashlib.sha256(data).hexdigest()


def package(name: str) -> tuple[str, ...]:
    """Which package of a name is installed, found without importing it; empty where there is none."""
    found = find_spec(name)
    if found is None or found.origin is None:
        return ()
    status = Path(found.origin).stat()
    return found.origin, str(status.st_mtime_ns), str(status.st_size)


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


@cache
def _code() -> str:
    """Fingerprint of the code that plans, beside the algorithms."""
    return fingerprint(file for part in (planning, problem) for file in Path(part.__path__[0]).glob("*.py"))
