"""A machine as numbers: what a core does in a cycle, and its caches; from a table of TOML to a ``Profile``.

Costs of algorithms are made from these numbers.  So they decide which algorithm is taken, and with it bits: a profile
has a digest of its numbers, which plans and wisdom name.  It must not know how numbers are measured, or which profile
counts.
"""

from __future__ import annotations

import hashlib
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any

from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError
from polyconv.target import LEVELS

__all__ = [
    "COMMON", "RATES", "Profile", "Rates", "arithmetics", "of_file", "preset", "preset_texts", "presets",
    "profile_of", "spelled",
]  # fmt: skip

COMMON: dict[str, str] = {
    "clock": "cycles a second",
    "wake": "seconds until a thread that sleeps runs",
    "line": "bytes",
    "page": "bytes",
    "l1.bytes": "bytes",
    "l1.read": "bytes a cycle",
    "l2.bytes": "bytes",
    "l2.read": "bytes a cycle",
    "l3.bytes": "bytes",
    "l3.read": "bytes a cycle",
    "memory.read": "bytes a cycle",
}
"""Numbers of every profile that no instruction set changes, and their units."""

RATES: dict[str, str] = {
    "loads": "vectors a cycle",
    "stores": "vectors a cycle",
    "multiply_adds": "vectors a cycle",
    "latency": "cycles",
}
"""Numbers of a level of instructions, and their units; the last two by arithmetic, as in ``avx2.latency.f32``."""

_BY_ARITHMETIC = ("multiply_adds", "latency")
_MOST_BYTES = 1 << 20
_WAY_OUT = "'polyconv info --machine --toml' prints a profile that is whole"


@dataclass(frozen=True, slots=True)
class Rates:
    """What a core does with vectors of one level and arithmetic.

    Parameters
    ----------
    multiply_adds : float
        A cycle, as many as independent sums allow; a multiplication and an addition where it takes two instructions.
    latency : float
        Cycles from one product added to a sum to the next.
    loads, stores : float
        A cycle, in the nearest cache.
    """

    multiply_adds: float
    latency: float
    loads: float
    stores: float

    @property
    def slower(self) -> float:
        """How much longer arithmetic takes than at two multiply-adds a cycle, as where most costs were measured."""
        return 2.0 / self.multiply_adds

    @property
    def moving(self) -> float:
        """How much longer moves take than at two loads and one store a cycle, as where most costs were measured."""
        return max(1.0, 2.0 / self.loads, 1.0 / self.stores)


@dataclass(frozen=True, slots=True)
class Profile:
    """What a machine can do.  Profiles are equal that have equal names and numbers.

    Parameters
    ----------
    name : str
        Of a preset, of a file without its suffix, or ``calibrated``.
    digest : str
        Fingerprint of the numbers; the clock that was timed in this process is none of them.
    cpus : tuple of str
        As LLVM names them.
    numbers : mapping
        By the keys of ``COMMON`` and, for each level, of ``RATES``: ``avx2.multiply_adds.f32``.
    sources : mapping
        Where numbers come from, by key or by the start of keys: ``avx2.multiply_adds``, ``avx2``.
    rates : mapping
        The numbers of each level and arithmetic.
    """

    name: str
    digest: str
    cpus: tuple[str, ...] = field(compare=False)
    numbers: Mapping[str, float] = field(compare=False, repr=False)
    sources: Mapping[str, str] = field(compare=False, repr=False)
    rates: Mapping[tuple[str, str], Rates] = field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.name} {self.digest}"

    @property
    def clock(self) -> float:
        """Cycles a second."""
        return self.numbers["clock"]

    @property
    def wake(self) -> float:
        """Seconds until a thread that sleeps runs."""
        return self.numbers["wake"]

    def cache(self, level: str, share: float) -> int:
        """Bytes of a share of a cache: ``l1``, ``l2`` or ``l3``."""
        return round(share * self.numbers[f"{level}.bytes"])

    def stream(self, level: str, share: float) -> float:
        """Bytes a cycle: a share of those that come from a cache, ``l1`` to ``l3``, or from ``memory``."""
        return share * self.numbers[f"{level}.read"]

    @property
    def levels(self) -> tuple[str, ...]:
        """Levels of instructions that it has numbers for."""
        return tuple(level for level in LEVELS if (level, "f32") in self.rates)

    def rates_of(self, level: str, arithmetic: str) -> Rates:
        """Rates of an arithmetic with a level's vectors.

        Raises
        ------
        ArgumentError
            If the profile has none for the level.
        """
        found = self.rates.get((level, arithmetic))
        if found is None:
            raise ArgumentError(
                f"the machine profile {self.name} has no numbers for the target {level}, only for "
                f"{', '.join(self.levels)}; choose another POLYCONV_PROFILE or POLYCONV_TARGET"
            )
        return found

    def source(self, key: str) -> str:
        """Where a number comes from; empty if nothing says so."""
        while key not in self.sources and "." in key:
            key = key.rpartition(".")[0]
        return self.sources.get(key, "")

    def rows(self) -> Iterator[tuple[str, float, str, str]]:
        """Key, number, unit and source of every number, in a fixed order."""
        for key in (*COMMON, *(key for level in self.levels for key in _keys(level))):
            unit = COMMON[key] if key in COMMON else RATES[key.split(".")[1]]
            yield key, self.numbers[key], unit, self.source(key)


def arithmetics(level: str) -> tuple[str, ...]:
    """Arithmetics of a level; dot products of bf16 pairs are AVX-512's alone."""
    return ("f32", "f64", "i32", "i64", *(("bf16",) if level == "avx512" else ()))


def _keys(level: str) -> tuple[str, ...]:
    one = tuple(f"{level}.{what}" for what in RATES if what not in _BY_ARITHMETIC)
    return one + tuple(f"{level}.{what}.{name}" for what in _BY_ARITHMETIC for name in arithmetics(level))


def profile_of(name: str, table: Mapping[str, Any], where: str) -> Profile:
    """A profile from a table as TOML gives it.

    Parameters
    ----------
    where : str
        Names the table in errors, and stands for sources that it does not give.

    Raises
    ------
    ArgumentError
        If a number is missing, unknown, or not positive; the message names it.
    """
    rest = dict(table)
    cpus, sources = rest.pop("cpus", []), rest.pop("sources", {})
    if not isinstance(cpus, list) or not all(isinstance(cpu, str) for cpu in cpus):
        raise ArgumentError(f"{where}: cpus={cpus!r} must be a list of LLVM's names of CPUs; {_WAY_OUT}")
    if not isinstance(sources, dict) or not all(isinstance(text, str) for text in sources.values()):
        raise ArgumentError(f"{where}: sources must be a table of texts by key; {_WAY_OUT}")
    numbers = {key: _number(key, value, where) for key, value in _flat(rest)}
    levels = [level for level in LEVELS if level in rest]
    wanted = (*COMMON, *(key for level in levels for key in _keys(level)))
    if unknown := sorted(set(numbers) - set(wanted)):
        raise ArgumentError(f"{where}: there is no number called {', '.join(unknown)}; {_WAY_OUT}")
    if missing := [key for key in wanted if key not in numbers]:
        raise ArgumentError(f"{where} lacks {', '.join(missing)}; {_WAY_OUT}")
    if not levels:
        raise ArgumentError(f"{where} has numbers for no level of instructions ({', '.join(LEVELS)}); {_WAY_OUT}")
    rates = {
        (level, kind): Rates(
            numbers[f"{level}.multiply_adds.{kind}"], numbers[f"{level}.latency.{kind}"],
            numbers[f"{level}.loads"], numbers[f"{level}.stores"],
        )
        for level in levels
        for kind in arithmetics(level)
    }  # fmt: skip
    text = " ".join(f"{key}={numbers[key]!r}" for key in wanted)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return Profile(name, digest, tuple(cpus), numbers, sources or dict.fromkeys(wanted, where), rates)


def _flat(table: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{start}{key}.")
        else:
            yield start + key, value


def _number(key: str, value: Any, where: str) -> float:
    if type(value) not in (int, float) or not 0 < value < 1e300:
        raise ArgumentError(f"{where}: {key}={value!r} must be a positive number")
    return float(value)


def presets() -> dict[str, Profile]:
    """The profiles that the package brings, by name."""
    return {name: preset(name) for name in preset_texts()}


@cache
def preset(name: str) -> Profile:
    """One of the profiles that the package brings."""
    return profile_of(name, tomllib.loads(preset_texts()[name])[name], f"preset {name}")


@cache
def preset_texts() -> dict[str, str]:
    """The tables of TOML of all presets, by name: a process reads one of them, and parsing them all takes 5 ms."""
    text = Path(__file__).with_name("presets.toml").read_text(encoding="utf-8")
    _, *rows = re.split(r"^\[([\w-]+)\]$", text, flags=re.MULTILINE)
    return {name: f"[{name}]{rest}" for name, rest in zip(rows[::2], rows[1::2], strict=True)}


def of_file(file: Path) -> Profile:
    """A profile from a file of TOML.

    Raises
    ------
    ArgumentError
        If it cannot be read, or is no profile; the message names the file and what is wrong.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ArgumentError(f"{file} is no machine profile: it has more than {_MOST_BYTES >> 20} MiB")
        table = tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise ArgumentError(f"{file} cannot be read ({error.strerror}); {_WAY_OUT}") from None
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{file} is no machine profile: it is not TOML ({str(error)[:200]}); {_WAY_OUT}") from None
    return profile_of(file.stem, table, str(file))


def spelled(profile: Profile) -> str:
    """A profile as the text of a file."""
    quoted = ", ".join(_quoted(cpu) for cpu in profile.cpus)
    rows = [f"cpus = [{quoted}]"]
    rows += [f"{key} = {int(value) if value == math.floor(value) else value!r}" for key, value, _, _ in profile.rows()]
    rows += ["", "[sources]"]
    rows += [f"{_quoted(key)} = {_quoted(source)}" for key, _, _, source in profile.rows()]
    return "\n".join(rows) + "\n"


def _quoted(text: str) -> str:
    """As a basic string of TOML."""
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text) + '"'
