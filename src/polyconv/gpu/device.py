"""What a GPU is and can do: facts that its driver tells, and rates of its architecture.

Prices of forms are made of these numbers, and what was measured on one kind of device is not used on another.
"""

from __future__ import annotations

from functools import cache

from polyconv.dataclass import dataclass
from polyconv.errors import Unsupported
from polyconv.gpu.driver import driver

__all__ = ["Device", "device", "presets"]


@dataclass(frozen=True, slots=True)
class Device:
    """A kind of GPU.

    Parameters
    ----------
    name : str
    major, minor : int
        Compute capability.
    multiprocessors : int
    clock : float
        Cycles a second.
    shared_block, shared_multiprocessor, l2 : int
        Bytes of shared memory that a block and a multiprocessor have at most; of the second cache.
    memory : float
        Bytes a second.
    """

    name: str
    major: int
    minor: int
    multiprocessors: int
    clock: float
    shared_block: int
    shared_multiprocessor: int
    l2: int
    memory: float

    @property
    def architecture(self) -> str:
        """For which code is made: ``sm_90a`` has instructions that no other architecture runs."""
        return "sm_90a" if (self.major, self.minor) == (9, 0) else "sm_80"

    @property
    def generation(self) -> str:
        """Whose rates it has, a key of ``rates.RATES``."""
        return "hopper" if self.major >= 9 else "ampere"

    @property
    def has_groups(self) -> bool:
        """Whether warp groups multiply (``wgmma``)."""
        return self.architecture == "sm_90a"

    @property
    def has_clusters(self) -> bool:
        """Whether blocks reach each other's shared memory."""
        return self.architecture == "sm_90a"

    @property
    def level(self) -> str:
        """How plans and wisdom name it."""
        return f"cuda {self.name} sm_{self.major}{self.minor}"


presets = {
    "H100": Device("NVIDIA H100 80GB HBM3", 9, 0, 132, 1.98e9, 227 << 10, 228 << 10, 50 << 20, 3.35e12),
    "A100": Device("NVIDIA A100-SXM4-80GB", 8, 0, 108, 1.41e9, 163 << 10, 164 << 10, 40 << 20, 2.04e12),
}
"""Devices to plan for where none is at hand."""


@cache
def device(number: int = 0) -> Device:
    """A GPU of this machine.

    Raises
    ------
    Unsupported
        If there is none, or it is older than compute capability 8.0.
    """
    d = driver()
    told = d.attributes(number)
    if told["major"] < 8:
        raise Unsupported(
            f"{d.name(number)} has compute capability {told['major']}.{told['minor']}; kernels need 8.0 (Ampere)"
        )
    memory = 2e3 * told["memory_khz"] * told["memory_bits"] / 8
    return Device(
        d.name(number), told["major"], told["minor"], told["multiprocessors"], 1e3 * told["clock_khz"],
        told["shared_block"], told["shared_multiprocessor"], told["l2_bytes"], memory,
    )  # fmt: skip
