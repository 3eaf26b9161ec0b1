"""Files of a model and beside it, whose bytes are read into memory of this process.

The one idea: whoever reads a mapped file that was cut short meanwhile is killed, so none is mapped.  A model may take
no more memory for a file than the file is long.  It must not know what the bytes mean.
"""

from __future__ import annotations

import os
from io import BufferedReader
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from polyconv.errors import ModelError
from polyconv.models.limits import shorten
from polyconv.runtime.memory import allocating
from polyconv.settings import spelled_bytes

__all__ = ["Beside", "FileBytes", "HeldFile", "Part", "read_bytes"]


def read_bytes(path: Path, offset: int, length: int, who: str) -> NDArray[Any]:
    """So many bytes of a file, read-only.

    Parameters
    ----------
    path : Path
    offset, length : int
        Which lie in the file.
    who : str
        What they are of, for messages.

    Raises
    ------
    ModelError
        If the file ends before them: somebody else is writing it.
    OutOfMemory
        If the system does not give the memory.
    """
    with allocating(f"{who} takes {spelled_bytes(length)}", "run the model on a larger machine"):
        made = np.empty(length, np.uint8)
    at, view = 0, made.data
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        while at < length and (count := file.readinto(view[at:])):
            at += count
    if at < length:
        raise ModelError(f"{who} lies at bytes {offset} to {offset + length} of {path.name!r}, which ended at "
                         f"{offset + at} while it was read")  # fmt: skip
    made.flags.writeable = False
    return made


class Part(NamedTuple):
    """Bytes of a file: from where, and how many."""

    start: int
    length: int


class FileBytes:
    """The bytes of an open file as slices, each read when it is asked for.

    Parameters
    ----------
    file : BufferedReader
        A plain file, which may be cut short meanwhile: slices are shorter then.
    """

    def __init__(self, file: BufferedReader) -> None:
        self._file, self._length = file, os.fstat(file.fileno()).st_size
        self.name = str(file.name)

    def __len__(self) -> int:
        """Bytes of the file when it was opened."""
        return self._length

    def __getitem__(self, where: slice) -> bytes:
        """Some of the bytes, in order."""
        start, end, _ = where.indices(self._length)
        self._file.seek(start)
        return self._file.read(max(0, end - start))

    def is_whole(self) -> bool:
        """Whether it is as long as it was then."""
        return os.fstat(self._file.fileno()).st_size >= self._length

    def held(self) -> HeldFile | None:
        """The same file, open for longer; None where the system has nothing of the kind."""
        return HeldFile(os.dup(self._file.fileno()), self.name) if hasattr(os, "preadv") else None

    def copy(self, target: memoryview, at: int) -> bool:
        """Fill memory with the bytes from a place on; whether there were as many."""
        self._file.seek(at)
        return self._file.readinto(target) == target.nbytes


class HeldFile:
    """A file that stays open as long as this object is there, so that another one in its place is another one.

    Parameters
    ----------
    descriptor : int
        Its own.
    name : str
        For messages.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor, self.name = descriptor, name
        finalize(self, os.close, descriptor)

    def copy(self, target: memoryview, at: int) -> bool:
        """Fill memory with the bytes from a place on; whether there were as many.  Threads may do so at once."""
        done = 0
        while done < target.nbytes and (count := os.preadv(self._descriptor, [target[done:]], at + done)):
            done += count
        return done == target.nbytes


class Beside:
    """The files in a model's folder.

    Parameters
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self._home = folder.resolve()
        self._found: dict[tuple[Path, int, int], NDArray[Any]] = {}
        self._taken: dict[Path, int] = {}

    @property
    def is_used(self) -> bool:
        """Whether any of them was read."""
        return bool(self._found)

    def read(self, location: str, offset: int, length: int, who: str) -> NDArray[Any]:
        """Bytes of a file; the same ones are read once.

        Parameters
        ----------
        location : str
            Path of the file within the folder.
        offset, length : int
        who : str
            What they are of, for messages.

        Raises
        ------
        ModelError
            If the file lies outside the folder or is none, or the bytes lie outside it, or overlap others so often
            that they would take more memory than the file.
        """
        path = self._inside(location, who)
        size, key = path.stat().st_size, (path, offset, length)
        if offset + length > size:
            raise ModelError(
                f"{who} lies at bytes {offset} to {offset + length} of {path.name!r}, which has only {size} bytes"
            )
        if key not in self._found:
            self._taken[path] = self._taken.get(path, 0) + length
            if self._taken[path] > size:
                raise ModelError(
                    f"{who} lies at bytes {offset} to {offset + length} of {path.name!r}, where others lie too: "
                    f"together they take more than the file's {size} bytes; save each tensor at a place of its own"
                )
            self._found[key] = read_bytes(path, offset, length, who)
        return self._found[key]

    def _inside(self, location: str, who: str) -> Path:
        """The regular file at ``location``; links that lead out of the folder are refused."""
        relative = Path(location.replace("\\", "/"))
        if not location or "\0" in location or relative.is_absolute() or ".." in relative.parts:
            raise ModelError(
                f"{who} keeps its data at {shorten(location)!r}; it must name a file in the model's folder"
            )
        try:
            path = (self._home / relative).resolve()
            if not path.is_relative_to(self._home):
                raise ModelError(
                    f"{who} keeps its data at {shorten(location)!r}, a link out of the model's folder"
                )
            is_file = S_ISREG(path.stat().st_mode)
        except (OSError, RuntimeError) as error:  # RuntimeError: a circle of links
            raise ModelError(
                f"{who} keeps its data at {shorten(location)!r}, which cannot be read: {shorten(str(error))}"
            ) from error
        if not is_file:
            raise ModelError(f"{who} keeps its data at {shorten(location)!r}, which is not a plain file")
        return path
