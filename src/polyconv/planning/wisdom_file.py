"""The file of wisdom: entries, each a measured choice, written as JSON and read back.

A file may come from anywhere: every field of every entry is checked, and all of it is taken or nothing.  It must not
know which algorithms there are, nor what may be used here.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from typing import Any

from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError

__all__ = ["RIGORS", "Entry", "File", "Key", "read", "write"]

RIGORS = ("measure", "patient")
"""How carefully times were measured, in ascending order; the more careful entry wins."""

_KIND, _SCHEMA = "polyconv wisdom", 1
_MOST_BYTES = 16 << 20
_LONGEST_TEXT = 1000
_LONGEST_SECONDS = 1e9

File = str | PathLike[str]
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One measured choice.

    Parameters
    ----------
    problem : str
        Canonical text, with the batch left open.
    cpu, target, profile : str
        LLVM's name of the CPU, the instruction-set level in use, and the machine's profile, which decides the forms
        that algorithms take; the last is empty in entries from before there were any.  Of a GPU its own name, its
        compute capability, and no profile.
    accuracy : str
        ``fast`` or ``strict``; on a GPU perhaps ``tf32``.
    finite : bool
        Whether all weights are finite.
    workspace_limit : int or None
        Bytes, or None for no limit.
    algorithm, arithmetic : str
        What was chosen, and what fixes the bits of its results.
    rigor : str
        A word of ``RIGORS``.
    batch, threads : int
        With which the times were measured.
    seconds : mapping
        Time of a call by every algorithm that was measured.
    generator, version : str
        Fingerprint of the code that generates kernels, and polyconv's version.
    """

    problem: str
    cpu: str
    target: str
    accuracy: str
    finite: bool
    workspace_limit: int | None
    algorithm: str
    arithmetic: str
    rigor: str
    batch: int
    threads: int
    seconds: dict[str, float]
    generator: str
    version: str
    profile: str = ""

    @property
    def key(self) -> Key:
        """What a choice depends on: never the batch, the threads or the clock."""
        return self.problem, self.cpu, self.target, self.profile, self.accuracy, self.finite, self.workspace_limit


def write(file: Path, found: Sequence[Entry]) -> None:
    """Write entries to a file in one step: a temporary one beside it, then a rename."""
    content = {"kind": _KIND, "schema_version": _SCHEMA, "entries": [asdict(entry) for entry in found]}
    temporary = file.with_name(f"{file.name}.{os.urandom(8).hex()}.part")
    try:
        with temporary.open("x", encoding="utf-8") as stream:
            stream.write(json.dumps(content, indent=1) + "\n")
        temporary.replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def read(file: File, *, private: bool = False) -> tuple[Entry, ...]:
    """Entries of a file.

    Parameters
    ----------
    private : bool
        Refuse what is not a plain file of this user or the system's, or that others may write.

    Raises
    ------
    ArgumentError
        If it is no wisdom; the message names the file and what is wrong.
    OSError
        If it cannot be read.
    """
    data = _bytes(Path(file), private=private)
    try:
        content = json.loads(data.decode("utf-8"), parse_constant=_refused)
    except RecursionError:
        raise ArgumentError(f"{file} is no wisdom: it is nested too deeply") from None
    except ValueError as error:
        raise ArgumentError(f"{file} is no wisdom: it is not JSON in UTF-8 ({str(error)[:200]})") from None
    if not isinstance(content, dict) or content.get("kind") != _KIND:
        raise ArgumentError(f"{file} is no wisdom: it does not say \"kind\": \"{_KIND}\"")
    if content.get("schema_version") != _SCHEMA or type(content["schema_version"]) is not int:
        raise ArgumentError(f"{file} has another schema_version than {_SCHEMA}, which this polyconv reads")
    rows = content.get("entries")
    if not isinstance(rows, list):
        raise ArgumentError(f"{file} is no wisdom: its entries are not a list")
    return tuple(_entry(row, f"{file}: entry {number}") for number, row in enumerate(rows))


def _refused(word: str) -> float:
    raise ValueError(f"{word} is no number")


def _bytes(file: Path, *, private: bool) -> bytes:
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe must not hold us
    handle = os.open(file, flags | (getattr(os, "O_NOFOLLOW", 0) if private else 0))
    with os.fdopen(handle, "rb") as stream:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise ArgumentError(f"{file} is no wisdom: it is not a plain file")
        if private and hasattr(os, "getuid") and (info.st_uid not in (0, os.getuid()) or info.st_mode & 0o022):
            raise ArgumentError(f"{file} is not used: it is another user's, or others may write it")
        data = stream.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ArgumentError(f"{file} is no wisdom: it has more than {_MOST_BYTES >> 20} MiB")
    return data


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_TEXT and value.isprintable()


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_times(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _is_text(name) and type(t) in (int, float) and 0 <= t < _LONGEST_SECONDS for name, t in value.items()
    )


_TEXT: tuple[Callable[[Any], bool], str] = (_is_text, f"a text of at most {_LONGEST_TEXT} printable characters")
_COUNT: tuple[Callable[[Any], bool], str] = (_is_count, "a whole number, at least 0")
_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **{field.name: _TEXT for field in fields(Entry)},
    "accuracy": (lambda v: v in ("fast", "strict", "tf32"), "fast or strict, on a GPU perhaps tf32"),
    "finite": (lambda v: isinstance(v, bool), "true or false"),
    "workspace_limit": (lambda v: v is None or _is_count(v), "null or a whole number, at least 0"),
    "rigor": (lambda v: v in RIGORS, " or ".join(RIGORS)),
    "profile": (lambda v: v == "" or _is_text(v), _TEXT[1]),
    "batch": _COUNT,
    "threads": _COUNT,
    "seconds": (_is_times, "an object of algorithms and their times"),
}


def _short(value: Any) -> str:
    if isinstance(value, dict | list):
        return "{...}" if isinstance(value, dict) else "[...]"
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _entry(row: Any, where: str) -> Entry:
    if not isinstance(row, dict):
        raise ArgumentError(f"{where} is not an object")
    row = {"profile": "", **row}
    for name, (fits, wanted) in _FIELDS.items():
        if name not in row:
            raise ArgumentError(f"{where} lacks {name}")
        if not fits(row[name]):
            raise ArgumentError(f"{where} has {name}={_short(row[name])}; it must be {wanted}")
    values = {name: row[name] for name in _FIELDS}
    return Entry(**{**values, "seconds": {name: float(t) for name, t in row["seconds"].items()}})
