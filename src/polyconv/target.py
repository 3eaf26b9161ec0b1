"""What CPU code is made for: a name LLVM understands, its features, and the widest vectors to use.

The host's own by default; ``POLYCONV_TARGET`` restricts it to ``avx2`` or ``baseline`` (the setting
is read by the caller, which passes the name here).  It must know nothing of kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from polyconv.errors import ArgumentError

__all__ = ["LEVELS", "Target", "host_target", "target"]

LEVELS = ("baseline", "avx2", "avx512")
"""Instruction-set levels on x86-64, in ascending order; elsewhere only ``baseline`` exists."""


@dataclass(frozen=True, slots=True)
class Target:
    """A CPU to generate code for.

    Parameters
    ----------
    level : str
        One of ``LEVELS``.
    triple, cpu, features : str
        As LLVM spells them.
    bf16 : bool
        Whether it has bf16 dot products (AVX512_BF16).
    """

    level: str
    triple: str
    cpu: str
    features: str
    bf16: bool = False

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector register."""
        return {"avx512": 64, "avx2": 32, "baseline": 16}[self.level]

    @property
    def has_fma(self) -> bool:
        """Whether it multiplies and adds in one instruction."""
        return self.level != "baseline" or self.triple.startswith(("aarch64", "arm64"))


@cache
def host_target() -> Target:
    """Everything this machine has."""
    import llvmlite.binding as llvm

    triple = llvm.get_process_triple()
    if not triple.startswith("x86_64"):
        features = llvm.get_host_cpu_features().flatten()
        return Target("baseline", triple, llvm.get_host_cpu_name(), features)
    has = llvm.get_host_cpu_features()
    if all(has.get(f) for f in ("avx512f", "avx512bw", "avx512dq", "avx512vl", "f16c", "fma")):
        return Target("avx512", triple, llvm.get_host_cpu_name(), has.flatten(), bool(has.get("avx512bf16")))
    if all(has.get(f) for f in ("avx2", "fma", "f16c")):
        return Target("avx2", triple, llvm.get_host_cpu_name(), has.flatten())
    return Target("baseline", triple, "x86-64", "")


@cache
def target(level: str | None = None) -> Target:
    """The host, or less of it.

    Parameters
    ----------
    level : str or None
        ``avx512``, ``avx2``, ``baseline``, or None for the host's own.

    Raises
    ------
    ArgumentError
        If the level is unknown or beyond this machine.
    """
    host = host_target()
    if level is None or level == host.level:
        return host
    if level not in LEVELS:
        raise ArgumentError(f"target {level!r} is not one of {', '.join(LEVELS)}")
    if LEVELS.index(level) > LEVELS.index(host.level):
        raise ArgumentError(f"target {level!r} is beyond this machine, which has {host.level}; choose a lower one")
    return Target(level, host.triple, {"avx2": "x86-64-v3", "baseline": "x86-64"}[level], "")
