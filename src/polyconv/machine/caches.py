"""The caches of the CPU, as the operating system tells them.  It must not know who asks."""

from __future__ import annotations

from pathlib import Path

from polyconv.dataclass import dataclass

__all__ = ["Cache", "caches"]


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache of the CPU: its size, the size of its lines, and which CPUs share it."""

    bytes: int
    line: int
    cpus: str


def caches() -> dict[str, Cache]:
    """The first CPU's caches by name (``L1d``, ``L1i``, ``L2``), from /sys: empty where there is none."""
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size, line, cpus = (
                (index / fact).read_text().strip()
                for fact in ("level", "type", "size", "coherency_line_size", "shared_cpu_list")
            )
            letter = {"Data": "d", "Instruction": "i"}.get(kind, "")
            found[f"L{level}{letter}"] = Cache(1024 * int(size.removesuffix("K")), int(line), cpus)
        except (OSError, ValueError):
            continue
    return found
