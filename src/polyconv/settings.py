"""The table of settings: one row each, from which resolution, checks and docs/settings.md follow.

A value comes from the call's argument, else the ``settings(...)`` context, else the environment,
else the row's default; a value that cannot be read is an error that names where it stood.  This
file knows words and numbers only: who obeys a setting is not its business.
"""

from __future__ import annotations

import math
import operator
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError
from polyconv.names import unknown

__all__ = [
    "SETTINGS", "Setting", "affinity", "cgroup_quota", "context", "default_threads", "for_the_process", "resolve",
    "settings", "spelled_bytes",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Parameters
    ----------
    name : str
        Keyword of calls and of the ``settings(...)`` context.
    variables : tuple of str
        Environment variables, the first one set and not empty wins.
    read : callable
        Turns a Python value or a variable's text into the value; raises ValueError or TypeError.
    default : callable
        Makes the value where none is given.
    values : str
        What may be given, in words: the way out of every error.
    otherwise : str
        What holds where none is given, in words.
    meaning : str
        What the setting does, in a sentence.
    per_call : bool
        Whether calls and contexts may give it; otherwise it is the process's.
    """

    name: str
    variables: tuple[str, ...]
    read: Callable[[Any], Any]
    default: Callable[[], Any]
    values: str
    otherwise: str
    meaning: str
    per_call: bool = True


def _count(given: Any) -> int:
    if isinstance(given, bool):
        raise TypeError
    value = int(given) if isinstance(given, str) else operator.index(given)
    if value < 1:
        raise ValueError
    return value


_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS |= {f"{_letter}B": 1000**_power, f"{_letter}IB": 1024**_power, _letter: 1024**_power}


def _bytes(given: Any) -> int:
    if isinstance(given, bool):
        raise TypeError
    if not isinstance(given, str):
        value = operator.index(given)
    else:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Z]*)", given.strip().upper())
        if match is None or match[2] not in _UNITS:
            raise ValueError
        number = float(match[1]) if "." in match[1] else int(match[1])
        value = math.floor(number * _UNITS[match[2]])
    if value < 0:
        raise ValueError
    return value


def spelled_bytes(count: int) -> str:
    """Spell a number of bytes as settings read it: ``spelled_bytes(65536) == "64 KiB"``."""
    step = min(4, (max(count, 1).bit_length() - 1) // 10)
    return f"{count / 1024**step:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[step]}"


def _switch(given: Any) -> bool:
    words = {"0": False, "1": True, "false": False, "true": True, "off": False, "on": True}
    return words[str(given).strip().lower()]


def _one_of(*words: str) -> Callable[[Any], str]:
    def read(given: Any) -> str:
        if not isinstance(given, str) or given.strip() not in words:
            raise ValueError
        return given.strip()

    return read


def _some_of(*words: str) -> Callable[[Any], frozenset[str]]:
    def read(given: Any) -> frozenset[str]:
        parts = frozenset(w.strip() for w in (given.split(",") if isinstance(given, str) else given)) - {""}
        if "all" in parts:
            return frozenset(words)
        if not parts <= set(words):
            raise ValueError
        return parts

    return read


def _text(given: Any) -> str:
    if not isinstance(given, str) or not given.isprintable():
        raise ValueError
    return given


def _path(given: Any) -> Path:
    path = Path(given).expanduser()
    if "\0" in str(path):
        raise ValueError
    return path.absolute()


def _path_or_off(given: Any) -> Path | None:
    return None if given == "off" else _path(given)


def _cache_dir() -> Path:
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        return Path(local) / "polyconv" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "polyconv"
    named = os.environ.get("XDG_CACHE_HOME", "")
    # the XDG base directory specification: a relative path is invalid and to be ignored
    return (Path(named) if named.startswith("/") else Path.home() / ".cache") / "polyconv"


def affinity() -> int:
    """Number of CPUs this process may run on, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


@cache
def cgroup_quota(
    root: Path = Path("/sys/fs/cgroup"), member: Path = Path("/proc/self/cgroup")
) -> float | None:
    """CPUs' worth of time that the control groups of this process allow, or None without a limit.

    Parameters
    ----------
    root : Path
        Where the control groups are mounted.
    member : Path
        The file naming this process's groups.  Both files are read once a process.

    Notes
    -----
    The tightest limit on the way from the process's group to the root holds: version 2 states it in
    ``cpu.max``, version 1 in ``cpu.cfs_quota_us`` and ``cpu.cfs_period_us`` (Linux, cgroups(7)).
    """
    limits = []
    try:
        lines = member.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, inside = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "cpu" if controllers else root
        # inside a container the path may be the host's: the mounted top is always looked at too
        for group in (top / inside.strip("/"), *(top / inside.strip("/")).parents):
            if group == top.parent:
                break
            limits += _quota(group, version=1 if controllers else 2)
    return min(limits, default=None)


def _quota(group: Path, version: int) -> list[float]:
    try:
        if version == 2:
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
        return [int(quota) / int(period)] if quota not in ("max", "-1") else []
    except (OSError, ValueError, ZeroDivisionError):
        return []


def default_threads() -> int:
    """Threads used when nobody says a number: the CPUs this process may use, and at least 1."""
    quota = cgroup_quota()
    return max(1, affinity() if quota is None else min(affinity(), math.floor(quota)))


SETTINGS: dict[str, Setting] = {
    row.name: row
    for row in (
        Setting(
            "threads", ("POLYCONV_NUM_THREADS", "OMP_NUM_THREADS"), _count, default_threads,
            "a whole number, at least 1",
            "the CPUs of the affinity mask, or the control group's quota rounded down if that is less",
            "Threads of one call; small problems use fewer.",
        ),
        Setting(
            "accuracy", ("POLYCONV_ACCURACY",), _one_of("fast", "strict"), lambda: "fast",
            "fast or strict", "fast",
            "strict admits only algorithms whose error is bounded by each output's own sum of products, "
            "and keeps subnormal numbers.",
        ),
        Setting(
            "workspace_limit", ("POLYCONV_WORKSPACE_LIMIT",), _bytes, lambda: None,
            "bytes, as a number or with a unit as in 64MB or 64MiB; 0 is valid", "no limit",
            "Memory that one call may take beyond its result.",
        ),
        Setting(
            "kept_weights", ("POLYCONV_KEPT_WEIGHTS",), _bytes, lambda: 64 << 20,
            "bytes, as a number or with a unit as in 64MB or 64MiB; 0 keeps none", "64MiB",
            "Memory for weights that conv and operators of dialects keep prepared, for later calls with the same ones.",
            per_call=False,
        ),
        Setting(
            "rigor", ("POLYCONV_RIGOR",), _one_of("estimate", "measure", "patient"), lambda: "estimate",
            "estimate, measure or patient", "estimate",
            "Whether plans are chosen by arithmetic or by measuring.",
        ),
        Setting(
            "layout", ("POLYCONV_LAYOUT",), _one_of("auto", "model", "channels_last"), lambda: "auto",
            "auto, model or channels_last", "auto",
            "How a network's values lie in memory between its steps: as the model has their axes, with channels last, "
            "or what is predicted to be faster.",
        ),
        Setting(
            "check", ("POLYCONV_CHECK",), _switch, lambda: False,
            "1 or 0", "0",
            "Compiles every load and store of the generated code with a bounds check: slow, for debugging.",
        ),
        Setting(
            "target", ("POLYCONV_TARGET",), _one_of("avx512", "avx2", "baseline", "neon"), lambda: None,
            "avx512, avx2 or baseline; on 64-bit ARM neon", "all that the CPU has",
            "Restricts the instructions that kernels may use.",
            per_call=False,
        ),
        Setting(
            "profile", ("POLYCONV_PROFILE",), _text, lambda: None,
            "the name of a preset, as `polyconv info --machine` lists them, or a file that ends in .toml",
            "the preset of this CPU, else what was measured of it once",
            "The machine that plans are made for: what it does in a cycle, of which predictions are made.",
            per_call=False,
        ),
        Setting(
            "cache_dir", ("POLYCONV_CACHE_DIR",), _path, _cache_dir,
            "a directory; it is made, for its owner alone, when it does not exist",
            "polyconv in the user's cache directory (~/.cache on Linux)",
            "Where compiled kernels are kept, and what is known of models.",
            per_call=False,
        ),
        Setting(
            "kept_runs", ("POLYCONV_KEPT_RUNS",), _bytes, lambda: 384 << 20,
            "bytes, as a number or with a unit as in 64MB or 64MiB; 0 keeps none", "384MiB",
            "Most memory of a network's packed weights and tables that cache_dir keeps for the next process.",
            per_call=False,
        ),
        Setting(
            "helpers", ("POLYCONV_HELPERS",), _switch, lambda: True,
            "1 or 0", "1",
            "Compiles in helper processes where that can be, so that the memory that LLVM takes does not stay; "
            "0 starts no process.",
            per_call=False,
        ),
        Setting(
            "wisdom", ("POLYCONV_WISDOM",), _path_or_off, lambda: Path(resolve("cache_dir")) / "wisdom.json",
            "a file, or off", "wisdom.json in cache_dir",
            "Measured choices of earlier processes, read when the first plan is made; polyconv tune writes them.",
            per_call=False,
        ),
        Setting(
            "verbose", ("POLYCONV_VERBOSE",), _some_of("plan", "compile", "exec", "dispatch"), frozenset,
            "plan, compile, exec, dispatch, several with commas, or all", "nothing",
            "What is logged, to the logger named polyconv.",
            per_call=False,
        ),
    )
}  # fmt: skip

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_context: ContextVar[Mapping[str, Any]] = ContextVar("polyconv_settings", default=_NOTHING)

context = _context.get
"""``context()``: settings given by the ``with`` blocks around the caller; the same object while they are the same."""


@contextmanager
def settings(**values: Any) -> Iterator[None]:
    """Give settings to all calls inside a ``with`` block of this thread or task.

    Parameters
    ----------
    **values
        ``threads``, ``accuracy``, ``workspace_limit``, ``rigor``, ``layout``, ``check``; None leaves a
        setting as it is.  Blocks nest, the inner one wins; an argument of a call wins over all.

    Raises
    ------
    TypeError
        If no such setting exists.
    ArgumentError
        If a value is invalid.

    Examples
    --------
    >>> import polyconv
    >>> with polyconv.settings(threads=1, accuracy="strict"):
    ...     plan = polyconv.plan("conv f32 NCHW n1 c64 i56x56 m64 k3x3 p1")
    >>> plan.threads, plan.accuracy
    (1, 'strict')
    """
    allowed = [row.name for row in SETTINGS.values() if row.per_call]
    if strangers := set(values) - set(allowed):
        raise TypeError(unknown("settings()", {name: values[name] for name in sorted(strangers)}, allowed))
    read = {name: _read(SETTINGS[name], value, name) for name, value in values.items() if value is not None}
    token = _context.set({**_context.get(), **read})
    try:
        yield
    finally:
        _context.reset(token)


def resolve(name: str, argument: Any = None) -> Any:
    """Value of a setting: argument, else context, else environment, else default.

    Parameters
    ----------
    name : str
        Name of a row of ``SETTINGS``.
    argument : optional
        What the call was given; None if nothing.

    Raises
    ------
    ArgumentError
        If the value that counts is invalid; the message names the argument or the variable.
    """
    row = SETTINGS[name]
    if argument is not None:
        return _read(row, argument, name)
    inherited = _context.get()
    if name in inherited:
        return inherited[name]
    for variable in row.variables:
        if text := os.environ.get(variable, "").strip():
            # OpenMP's variable may list one number per nesting level: the outermost counts
            return _read(row, text.split(",")[0] if variable == "OMP_NUM_THREADS" else text, variable)
    return row.default()


def _read(row: Setting, given: Any, where: str) -> Any:
    try:
        return row.read(given)
    except (ValueError, TypeError, KeyError, OverflowError):
        raise ArgumentError(f"{where}={given!r} is not valid; give {row.values}") from None


@contextmanager
def for_the_process(name: str, value: str | None) -> Iterator[None]:
    """Give a setting to all threads for a while, through its environment variable; None leaves it as it is."""
    variable = SETTINGS[name].variables[0]
    before = os.environ.get(variable)
    if value is not None:
        os.environ[variable] = value
    try:
        yield
    finally:
        if value is not None:
            del os.environ[variable]
            if before is not None:
                os.environ[variable] = before
