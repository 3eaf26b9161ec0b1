"""What CPU code is made for: a name LLVM understands, its features, and the widest vectors to use.

The host's own by default; ``POLYCONV_TARGET`` restricts it to a lower level of its architecture (the setting
is read by the caller, which passes the name here).  It must know nothing of kernels.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

from polyconv import cache as files
from polyconv.dataclass import dataclass
from polyconv.elsewhere import elsewhere
from polyconv.errors import ArgumentError

__all__ = ["LEVELS", "Target", "host_target", "levels", "llvm_version", "target"]


@dataclass(frozen=True, slots=True)
class _Level:
    """What every CPU of an instruction-set level has.

    Parameters
    ----------
    vector_bytes : int
        Bytes of a vector register.
    registers : int
        Vector registers.
    fma : bool
        Whether it multiplies and adds in one instruction.
    f16 : bool
        Whether it converts between f16 and f32.
    masks : bool
        Whether it has mask registers, so that loads and stores of some lanes cost no more than those of all.
    masked_loads : int
        Bytes of the narrowest lanes that a load may leave out at little cost; 0 if it cannot.
    """

    vector_bytes: int
    registers: int
    fma: bool
    f16: bool
    masks: bool = False
    masked_loads: int = 0


_TABLE = {
    "baseline": _Level(16, 16, fma=False, f16=False),
    "avx2": _Level(32, 16, fma=True, f16=True, masked_loads=4),
    "avx512": _Level(64, 32, fma=True, f16=True, masks=True, masked_loads=1),
    "neon": _Level(16, 32, fma=True, f16=True),
}

LEVELS = tuple(_TABLE)
"""All instruction-set levels."""

_ASCENDING = {"x86_64": ("baseline", "avx2", "avx512"), "aarch64": ("neon",), "arm64": ("neon",)}
"""Levels of an architecture, the first word of LLVM's triple; any other has ``baseline``, which LLVM knows to vectorise
everywhere."""


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
    vnni : bool
        Whether it has dot products of bytes for its vectors (AVX512_VNNI, AVX-VNNI, the I8MM of 64-bit ARM).
    vbmi2 : bool
        Whether it picks bytes of a vector, and moves chosen ones to its beginning (AVX512_VBMI, AVX512_VBMI2).
    matrix : bool
        Whether it has a matrix unit for bytes and bf16 (AMX_TILE, AMX_INT8, AMX_BF16), and this process may use it.
    """

    level: str
    triple: str
    cpu: str
    features: str
    bf16: bool = False
    vnni: bool = False
    vbmi2: bool = False
    matrix: bool = False

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector register."""
        return _TABLE[self.level].vector_bytes

    @property
    def registers(self) -> int:
        """Vector registers."""
        return _TABLE[self.level].registers

    @property
    def has_fma(self) -> bool:
        """Whether it multiplies and adds in one instruction."""
        return _TABLE[self.level].fma

    @property
    def converts_f16(self) -> bool:
        """Whether it converts between f16 and f32."""
        return _TABLE[self.level].f16

    @property
    def has_masks(self) -> bool:
        """Whether it has mask registers: loads and stores of some lanes cost no more than those of all."""
        return _TABLE[self.level].masks

    @property
    def presums(self) -> bool:
        """Whether products of bytes are worth summing in 16 bits first: it has no dot products of bytes."""
        return self.level == "avx2" and not self.vnni

    @property
    def masked_loads(self) -> int:
        """Bytes of the narrowest lanes that a load may leave out at little cost; 0 if it cannot."""
        return _TABLE[self.level].masked_loads


def llvm_version() -> str:
    """Version of LLVM, part of every key of the cache: llvmlite's, which comes with one LLVM, so as not to load it."""
    import llvmlite

    return str(llvmlite.__version__)


@cache
def host_target() -> Target:
    """Everything this machine has, and this process may use: a matrix unit the system has to allow."""
    found = _host_target()
    if not found.matrix or _is_allowed():
        return found
    # what is kept on disk is named by the features: plans of a process that may use the unit are none for this one
    features = ",".join(f for f in found.features.split(",") if not f.startswith("+amx-"))
    return replace(found, matrix=False, features=features)


_ARCH_PRCTL, _ASKS_FOR, _MATRIX_REGISTERS = 158, 0x1023, 18
"""Linux's system call, its request for registers that a process has to ask for, and those of the matrix unit."""


def _is_allowed() -> bool:
    """Whether Linux lets this process use the matrix unit's registers, all its threads and children too."""
    import ctypes

    if sys.platform != "linux":
        return False
    return int(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ASKS_FOR, _MATRIX_REGISTERS)) == 0


def _host_target() -> Target:
    """What LLVM finds, or what it found when a process before asked it."""
    seen = _processor()
    rules = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    path = None if seen is None else files.place((llvm_version(), rules, platform.machine(), seen), "cpu")
    if path is None or not files.usable(path.parent):
        return elsewhere(_found_by_llvm)
    kept = files.read(path)
    if kept is not None:
        return Target(**json.loads(kept))
    found = elsewhere(_found_by_llvm)
    files.write(path, json.dumps(asdict(found)).encode())
    return found


_NAMED = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
_HEAD_BYTES = 1 << 14


def _processor() -> str | None:
    """What Linux says of an x86-64 processor; None where LLVM has to look at it."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            first = file.read(_HEAD_BYTES).split("\n\n")[0]  # those that follow are alike
    except OSError:
        return None
    rows = {name.strip(): value for name, _, value in (line.partition(":") for line in first.splitlines())}
    return "\n".join(rows[name] for name in _NAMED) if set(_NAMED) <= rows.keys() else None


def _found_by_llvm() -> Target:
    import llvmlite.binding as llvm

    triple, cpu = llvm.get_process_triple(), llvm.get_host_cpu_name()
    highest = _of_architecture(triple)[-1]
    has = llvm.get_host_cpu_features()
    if highest != "avx512":
        return Target(highest, triple, cpu, has.flatten(), vnni=highest == "neon" and bool(has.get("i8mm")))
    if all(has.get(f) for f in ("avx512f", "avx512bw", "avx512dq", "avx512vl", "f16c", "fma")):
        bf16, vnni, vbmi, vbmi2 = (bool(has.get(f"avx512{f}")) for f in ("bf16", "vnni", "vbmi", "vbmi2"))
        matrix = all(has.get(f"amx-{f}") for f in ("tile", "int8", "bf16")) and bf16 and vnni
        return Target("avx512", triple, cpu, has.flatten(), bf16, vnni, vbmi and vbmi2, matrix)
    if all(has.get(f) for f in ("avx2", "fma", "f16c")):
        return Target("avx2", triple, cpu, has.flatten(), vnni=bool(has.get("avxvnni")))
    return Target("baseline", triple, "x86-64", "")


def _of_architecture(triple: str) -> tuple[str, ...]:
    return _ASCENDING.get(triple.split("-")[0], ("baseline",))


def levels() -> tuple[str, ...]:
    """Levels this machine can run, in ascending order; the last is its own."""
    host = host_target()
    of_architecture = _of_architecture(host.triple)
    return of_architecture[: of_architecture.index(host.level) + 1]


@cache
def target(level: str | None = None) -> Target:
    """The host, or less of it.

    Parameters
    ----------
    level : str or None
        One of ``levels()``, or None for the host's own.

    Raises
    ------
    ArgumentError
        If the level is unknown, beyond this machine or of another architecture.
    """
    host = host_target()
    if level is None or level == host.level:
        return host
    if level not in LEVELS:
        raise ArgumentError(f"target {level!r} is not one of {', '.join(LEVELS)}")
    if level not in levels():
        raise ArgumentError(
            f"target {level!r} is beyond this machine, which has {host.level}; choose from {', '.join(levels())}"
        )
    return Target(level, host.triple, {"avx2": "x86-64-v3", "baseline": "x86-64"}[level], "")
