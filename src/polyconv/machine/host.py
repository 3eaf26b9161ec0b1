"""Which profile counts: the one that a setting names, else the preset of this CPU, else the one measured here.

It must not know what prices are made of it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from polyconv.errors import ArgumentError
from polyconv.machine.profile import Profile, of_file, preset, preset_texts
from polyconv.runtime.clock import cycles_a_second
from polyconv.settings import resolve
from polyconv.target import host_target, levels, target

__all__ = ["of_cpu", "profile_in_force"]


def profile_in_force() -> Profile:
    """The profile that plans are made with now.

    Raises
    ------
    ArgumentError
        If the setting names neither a preset nor a file that is a profile.
    """
    name: str | None = resolve("profile")
    return _host() if name is None else _named(name)


def of_cpu(cpu: str) -> Profile | None:
    """The preset of a CPU by LLVM's name, or None."""
    named = (preset(name) for name, text in preset_texts().items() if f'"{cpu}"' in text)
    return next((profile for profile in named if cpu in profile.cpus), None)


@cache
def _named(name: str) -> Profile:
    """A preset, or what a file said when it was first asked for."""
    if name in preset_texts():
        return preset(name)
    if name.endswith(".toml"):
        return of_file(Path(name).expanduser())
    raise ArgumentError(
        f"POLYCONV_PROFILE={name!r} is no machine profile; give {', '.join(preset_texts())}, or a file that ends in "
        f".toml"
    )


@cache
def _host() -> Profile:
    """The preset of this CPU or what was measured of it, at the clock that it runs at now."""
    found = of_cpu(host_target().cpu)
    if found is None:
        from polyconv.machine.calibrate import kept  # here: most machines are known

        found = kept([target(level) for level in levels()], Path(resolve("cache_dir")))
    sources = {**found.sources, "clock": "timed in this process"}
    return replace(found, numbers={**found.numbers, "clock": cycles_a_second()}, sources=sources)
