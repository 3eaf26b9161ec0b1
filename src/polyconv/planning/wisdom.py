"""Wisdom: what measuring found out, remembered, saved for later processes and brought to others.

An entry names the algorithm that ran a kind of problem fastest on one kind of CPU, with all measured
times.  It is advice, never authority: whatever a file says, an algorithm runs only where it is applicable,
and a file that cannot be read costs a warning.  It must not know how times are measured.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from polyconv import __version__
from polyconv.algorithms.form import Refusal
from polyconv.algorithms.table import ALGORITHMS
from polyconv.errors import ArgumentError
from polyconv.kernels.objects import generator
from polyconv.lowering.situation import Situation, of_one_image
from polyconv.machine.host import profile_in_force
from polyconv.planning.planner import Decision, arithmetic_name, form_of
from polyconv.planning.wisdom_file import RIGORS, Entry, File, Key, read, write
from polyconv.settings import resolve
from polyconv.target import host_target

__all__ = [
    "Entry", "Known", "decision", "entries", "export", "forget", "import_", "keep", "known", "merge", "outdated",
    "path", "remember", "save",
]  # fmt: skip

_LONGEST_WAIT_SECONDS = 10.0
"""For another process that saves; each takes milliseconds."""
_GPU = "cuda "
"""How the targets of entries begin that arrays on a GPU heed; the GPU's name takes the place of the CPU's."""
_log = logging.getLogger("polyconv")

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
    keep(entry)


def keep(entry: Entry) -> None:
    """Keep what this process measured."""
    global _known
    _load()
    with _lock:
        _known = {**_known, entry.key: (entry, "measured")}


def _key(one: Situation) -> Key:
    text = str(replace(one.problem.canonical(), n=None))
    accuracy = "strict" if one.strict else "fast"
    return text, host_target().cpu, one.target.level, str(one.profile), accuracy, one.finite, one.limit


def outdated(entry: Entry) -> str | None:
    """Why an entry cannot be used by this polyconv on this machine, in words; None if it can."""
    if entry.target.startswith(_GPU):
        return f"measured on a GPU, {entry.cpu}"
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


# -- merging ---------------------------------------------------------------------------------------------


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
