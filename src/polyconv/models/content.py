"""The large values of a model, read when somebody needs them, and the fingerprint of the model with all of them.

Who finds how a model ran before needs none of its values, only that they are the same as then; they may take as much
memory as all else.  The one idea: arrays have their places from the start, and are filled later, from the file that
stays open; should that have been written over meanwhile, the fingerprint tells.  It must not know what values mean.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping

import numpy as np

from polyconv.errors import ModelError
from polyconv.models.beside import FileBytes, HeldFile, Part
from polyconv.models.limits import shorten
from polyconv.runtime.arrays import aligned

__all__ = ["Content"]

_WAY_OUT = "open it again, and let other models be written to new files"
_PIECE = 1 << 20
"""Bytes that are read at once by who needs no more than the fingerprint: a second-level cache holds them."""


class Content:
    """Large values of a model, and the fingerprint of all that it is.

    Parameters
    ----------
    digest : str
        Fingerprint of the model without large values.
    data : bytes or FileBytes
        The model.
    parts : mapping
        Where in it the large values lie, by name.

    Attributes
    ----------
    arrays : mapping
        Their bytes, read-only; zeros until ``fill``.

    Raises
    ------
    ModelError
        If the file was cut short meanwhile.
    """

    def __init__(self, digest: str, data: bytes | FileBytes, parts: Mapping[str, Part]) -> None:
        self._digest, self._parts = digest, sorted(parts.items())
        self._memory = {name: aligned(part.length, np.uint8) for name, part in self._parts}
        self.arrays = {name: a.view() for name, a in self._memory.items()}
        for a in self.arrays.values():
            a.flags.writeable = False
        self._file = data.held() if isinstance(data, FileBytes) else None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._found = ""
        if self._file is None:
            self._read(data)

    def _read(self, data: bytes | FileBytes | HeldFile) -> None:
        for name, part in self._parts:
            target = self._memory[name].data
            if isinstance(data, bytes):
                target[:] = memoryview(data)[part.start : part.start + part.length]
            elif not data.copy(target, part.start):
                raise ModelError(f"{shorten(data.name)} was cut short after it was opened; {_WAY_OUT}")

    def fill(self) -> None:
        """Have all values in their arrays.

        Raises
        ------
        ModelError
            If the file was written over since it was opened.
        """
        with self._lock:
            if self._file is None:
                return
            known = self() if self._thread is not None else ""
            self._read(self._file)
            if known and self._fingerprint(None) != known:
                raise ModelError(f"{shorten(self._file.name)} was written over after it was opened; {_WAY_OUT}")
            self._file = None

    def begin(self) -> None:
        """Begin to find the fingerprint, while others do something else."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._find, daemon=True)
            self._thread.start()

    def _find(self) -> None:
        self._found = self._fingerprint(self._file)

    def __call__(self) -> str:
        """The fingerprint."""
        if self._thread is not None:
            self._thread.join()
        if not self._found:  # the thread is lost in a fork
            self._find()
        return self._found

    def _fingerprint(self, file: HeldFile | None) -> str:
        """Of the values in a file, or in the arrays; that of a file which was cut short is no other's."""
        whole = hashlib.sha256(self._digest.encode())
        for name, part in self._parts:
            whole.update(f"\n{name}\n{part.length}\n".encode())
            for piece in [self._memory[name].data] if file is None else _pieces(file, part):
                whole.update(piece)
        return whole.hexdigest()


def _pieces(file: HeldFile, part: Part) -> Iterator[memoryview]:
    """A part of a file as far as it is there, piece by piece in the same memory."""
    memory = memoryview(bytearray(min(_PIECE, part.length)))
    for at in range(0, part.length, _PIECE):
        piece = memory[: part.length - at]
        if not file.copy(piece, part.start + at):
            return
        yield piece
