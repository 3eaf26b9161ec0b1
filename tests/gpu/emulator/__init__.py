"""A GPU on the CPU: executes PTX text with NumPy and reports what the text does wrong.

For tests on machines without a GPU.  `launch` takes the PTX that LLVM emitted and NumPy arrays; it checks what a GPU
does not: bounds, races, missing waits and fences, deadlocks.

Known limits, each refused or stated where it stands: products of matrices are rounded once, where tensor cores cut
digits as they add; approximate functions give the nearest number; a waiting thread never gives up, so nothing that
spins on memory ends; no generic addresses, local memory, atomics, copies to several blocks or back to global memory.
"""

from __future__ import annotations

from .faults import AsyncFault, Deadlock, Fault, MemoryFault, Race
from .launch import At, launch
from .parser import parse
from .tensor_map import TensorMap

__all__ = ["AsyncFault", "At", "Deadlock", "Fault", "MemoryFault", "Race", "TensorMap", "launch", "parse"]
