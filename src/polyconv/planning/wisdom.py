"""Wisdom: what measuring found out, remembered, kept in files and brought to other processes.

An entry names the algorithm that ran a kind of problem fastest on one kind of CPU, with all measured
times.  It is advice, never authority: whatever a file says, an algorithm runs only where it is applicable,
and a file that cannot be read costs a warning.  It must not know how times are measured.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

from polyconv import __version__
from polyconv.algorithms.form import Refusal
from polyconv.algorithms.program import Situation, of_one_image
from polyconv.algorithms.table import ALGORITHMS
from polyconv.errors import ArgumentError
from polyconv.kernels.objects import generator
from polyconv.machine.host import profile_in_force
from polyconv.planning.planner import Decision, arithmetic_name, form_of
from polyconv.settings import resolve
from polyconv.target import host_target

__all__ = [
    "RIGORS", "Entry", "Known", "decision", "entries", "export", "forget", "import_", "known", "merge", "outdated",
    "path", "read", "remember", "save", "write",
]  # fmt: skip

RIGORS = ("measure", "patient")
"""How carefully times were measured, in ascending order; the more careful entry wins."""

_KIND, _SCHEMA = "polyconv wisdom", 1
_MOST_BYTES = 16 << 20
_LONGEST_TEXT = 1000
_LONGEST_SECONDS = 1e9
_LONGEST_WAIT_SECONDS = 10.0
"""For another process that saves; each takes milliseconds."""
_log = logging.getLogger("polyconv")

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
        that algorithms take; the last is empty in entries from before there were any.
    accuracy : str
        ``fast`` or ``strict``.
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


# -- what this process knows ---------------------------------------------------------------------------

Known = Mapping[Key, tuple[Entry, str]]
"""Entries with their source: ``measured`` in this process, or ``wisdom``: measured in an earlier one."""

_known: Known = {}  # never changed, only replaced: whoever holds one still finds in it what it found before
_state = {"loaded": False}
_lock = threading.RLock()


def _after_fork() -> None:
    """In a child, a thread that held the lock is gone."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def known() -> Known:
    """All that this process knows at this moment; nothing that comes later reaches it."""
    if not _state["loaded"]:
        _load()
    return _known


def decision(s: Situation, among: Known | None = None) -> Decision | None:
    """What wisdom says of a situation, or None: nothing, or nothing that may be used here.

    Parameters
    ----------
    among : Known, optional
        What was known at another moment; by default what is known now.
    """
    if among is None:
        among = known()
    if not among:
        return None
    one = of_one_image(s)
    entry, source = among.get(_key(one), (None, ""))
    if entry is None or outdated(entry) is not None:
        return None
    form = ALGORITHMS[entry.algorithm].fitting(one)
    if isinstance(form, Refusal) or arithmetic_name(entry.algorithm, form) != entry.arithmetic:
        return None
    threads = f"{entry.threads} thread" + "s" * (entry.threads > 1)
    return Decision(entry.algorithm, source, entry.seconds, entry.rigor, f"with batch {entry.batch}, {threads}")


def remember(s: Situation, algorithm: str, seconds: dict[str, float], rigor: str) -> None:
    """Keep a measured choice for this process; ``save`` keeps it for others."""
    one, p = of_one_image(s), s.problem
    problem, cpu, level, profile, accuracy, finite, limit = _key(one)
    entry = Entry(
        problem, cpu, level, accuracy, finite, limit, algorithm,
        arithmetic_name(algorithm, form_of(algorithm, one)), rigor, p.n or 0, s.threads,
        {name: float(f"{t:.4g}") for name, t in sorted(seconds.items())}, generator(), __version__, profile,
    )  # fmt: skip
    global _known
    with _lock:
        _known = {**_known, entry.key: (entry, "measured")}


def _key(one: Situation) -> Key:
    text = str(replace(one.problem.canonical(), n=None))
    accuracy = "strict" if one.strict else "fast"
    return text, host_target().cpu, one.target.level, str(one.profile), accuracy, one.finite, one.limit


def outdated(entry: Entry) -> str | None:
    """Why an entry cannot be used by this polyconv on this machine, in words; None if it can."""
    if entry.cpu != host_target().cpu:
        return f"measured on another CPU, {entry.cpu}"
    if entry.profile != str(profile_in_force()):
        return f"measured with another machine profile, {entry.profile or 'from before there were any'}"
    return _stale(entry)


def _stale(entry: Entry) -> str | None:
    """Why no setting makes an entry of this CPU useful again; None if one does."""
    if entry.version != __version__:
        return f"measured by polyconv {entry.version}"
    if entry.generator != generator():
        return "measured with other kernels"
    if entry.algorithm not in ALGORITHMS:
        return f"there is no algorithm {entry.algorithm}"
    return None


# -- the public surface --------------------------------------------------------------------------------


def entries() -> tuple[Entry, ...]:
    """All that this process knows, the user's file included, in a fixed order.

    Examples
    --------
    >>> from polyconv import wisdom
    >>> [entry.problem for entry in wisdom.entries() if entry.rigor == "patient"]
    []
    """
    return _sorted(entry for entry, _ in known().values())


def export(file: File) -> int:
    """Write all that this process knows to a file; how many entries.

    The file is JSON, the same for the same knowledge.  An existing one is replaced at once.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from polyconv import wisdom
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "wisdom.json"
    >>> wisdom.export(file) == len(wisdom.entries())
    True
    """
    found = entries()
    write(Path(file), found)
    return len(found)


def import_(file: File) -> tuple[Entry, ...]:
    """Take what a file says; layers made from now on heed it.

    Returns
    -------
    tuple of Entry
        What the file holds.  Entries of other CPUs and versions are kept, for ``export``, and not used.

    Raises
    ------
    ArgumentError
        If it is no wisdom; then nothing of it is taken.  The message names the file and what is wrong.
    OSError
        If it cannot be read.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from polyconv import wisdom
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "wisdom.json"
    >>> _ = wisdom.export(file)  # in one process
    >>> wisdom.import_(file) == wisdom.entries()  # in another
    True
    """
    found = read(file)
    _load()
    with _lock:
        _take(found, "wisdom")
    return found


def merge(files: Sequence[File], into: File) -> int:
    """Write the entries of several files to one; how many.

    Of two about the same situation the one that can be used here wins, then the one measured with more
    rigour, then the one of the later file.  What this process knows does not change.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from polyconv import wisdom
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> count = wisdom.export(folder / "of-one-machine.json")
    >>> wisdom.merge([folder / "of-one-machine.json"], into=folder / "of-all.json") == count
    True
    """
    merged: dict[Key, Entry] = {}
    for file in files:
        for entry in read(file):
            merged[entry.key] = _better(merged.get(entry.key), entry)
    write(Path(into), _sorted(merged.values()))
    return len(merged)


def forget() -> int:
    """Drop all that this process knows; how many entries.  The user's file stays and is not read again.

    Examples
    --------
    >>> from polyconv import wisdom
    >>> _ = wisdom.forget()
    >>> wisdom.entries()
    ()
    """
    global _known
    with _lock:
        count, _known = len(_known), {}
        _state["loaded"] = True
    return count


def path() -> Path | None:
    """The user's file, which every process reads when it plans for the first time; None if turned off.

    Examples
    --------
    >>> import os
    >>> from polyconv import wisdom
    >>> os.environ["POLYCONV_WISDOM"] = "off"
    >>> wisdom.path() is None
    True
    """
    found: Path | None = resolve("wisdom")
    return found


def save() -> Path | None:
    """Add what this process knows to the user's file; what it measured itself replaces what stands there.

    Entries of this CPU that another version or other kernels made are dropped there.  Processes that save at the same
    time do so one after the other, by a lock beside the file.

    Returns
    -------
    Path or None
        The file; None if it is turned off, or could not be read or written (a warning says so).

    Examples
    --------
    >>> import os, pathlib, tempfile
    >>> from polyconv import wisdom
    >>> os.environ["POLYCONV_WISDOM"] = str(pathlib.Path(tempfile.mkdtemp()) / "wisdom.json")
    >>> wisdom.save() == wisdom.path()
    True
    """
    file = path()
    if file is None:
        return None
    with _lock:
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            from filelock import FileLock  # only here: most processes never save

            with FileLock(f"{file}.lock", timeout=_LONGEST_WAIT_SECONDS, mode=0o600):
                _add_to(file)
        except (OSError, ArgumentError) as error:
            _log.warning("wisdom cannot be saved: %s", error)
            return None
    return file


def _add_to(file: Path) -> None:
    merged = {entry.key: entry for entry in (read(file, private=True) if os.path.lexists(file) else ())}
    for entry, source in _known.values():
        before = None if source == "measured" else merged.get(entry.key)
        merged[entry.key] = _better(before, entry)
    here = host_target().cpu
    write(file, _sorted(e for e in merged.values() if e.cpu != here or _stale(e) is None))


# -- files ---------------------------------------------------------------------------------------------


def _load() -> None:
    """Read the user's file, once a process; any trouble is one warning."""
    with _lock:
        if _state["loaded"]:
            return
        file = path()  # an invalid setting is an error, every time
        _state["loaded"] = True
        if file is None:
            return
        try:
            _take(read(file, private=True), "wisdom")
        except FileNotFoundError:
            return
        except (OSError, ArgumentError) as error:
            _log.warning("%s; going on without wisdom", error)


def _take(found: Iterable[Entry], source: str) -> None:
    global _known
    taken = dict(_known)
    for entry in found:
        before = taken.get(entry.key)
        if before is None or _better(before[0], entry) is entry:
            taken[entry.key] = entry, source
    _known = taken


def _better(one: Entry | None, later: Entry) -> Entry:
    if one is None:
        return later

    def rank(entry: Entry) -> tuple[bool, int]:
        return outdated(entry) is None, RIGORS.index(entry.rigor)

    return one if rank(one) > rank(later) else later


def _sorted(found: Iterable[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(found, key=lambda e: tuple(-1 if part is None else part for part in e.key)))


def write(file: Path, found: Sequence[Entry]) -> None:
    """Write entries to a file in one step: a temporary one beside it, then a rename."""
    content = {"kind": _KIND, "schema_version": _SCHEMA, "entries": [_plain(entry) for entry in found]}
    temporary = file.with_name(f"{file.name}.{os.urandom(8).hex()}.part")
    try:
        with temporary.open("x", encoding="utf-8") as stream:
            stream.write(json.dumps(content, indent=1) + "\n")
        temporary.replace(file)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _plain(entry: Entry) -> dict[str, Any]:
    return {field.name: getattr(entry, field.name) for field in fields(entry)}


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
    "accuracy": (lambda v: v in ("fast", "strict"), "fast or strict"),
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
