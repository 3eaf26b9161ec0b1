"""Launches: a module's text, a grid and arguments to machines that run it, some clusters at a time.

Checks what the driver would refuse, puts arrays into global memory and numbers into the parameter block.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .machine import PARAMETER_BASE, Machine
from .memory import Global, Region
from .parser import Kernel, parse
from .tensor_map import TensorMap

__all__ = ["At", "launch"]

Array = NDArray[Any]

AXIS = 8192
"""Threads that run side by side, unless one cluster has more."""


@dataclass(frozen=True, eq=False, slots=True)
class At:
    """A pointer into an array: so many bytes behind its start."""

    array: Array
    offset: int


def launch(
    ptx: str, name: str, *, grid: int | Sequence[int], threads: int | Sequence[int], arguments: Sequence[Any],
    shared: int = 0, cluster: int = 1, unwritten: Sequence[int] = (),
) -> None:  # fmt: skip
    """Run a kernel of a PTX module.

    Parameters
    ----------
    ptx : str
    name : str
        Its ``.entry``.
    grid, threads : int or up to three ints
    arguments : sequence
        In the order of the kernel's parameters: C-contiguous arrays (a pointer, written in place), `At` for a pointer
        into one, ints, floats, NumPy scalars, or a `TensorMap`.
    shared : int
        Bytes of dynamic shared memory.
    cluster : int
        Blocks of a cluster, along x.
    unwritten : sequence of int
        Arguments whose contents count as never written: to read them before the kernel wrote them is a fault.

    Raises
    ------
    ValueError, TypeError
        A launch that the driver would refuse.
    NotImplementedError
        An instruction that the emulator does not know, named.
    Race, Deadlock, MemoryFault, AsyncFault, Fault
        What the kernel does wrong, with the instruction, block and thread.
    """
    kernels = parse(ptx).kernels
    if name not in kernels:
        raise ValueError(f"the module has no kernel {name}, only {', '.join(kernels)}")
    kernel = kernels[name]
    gx, tx = _three(grid), _three(threads)
    _check_launch(kernel, gx, tx, cluster, shared, len(arguments))
    memory, parameters, maps, special = _place(kernel, arguments, unwritten)
    clusters, width = gx[0] * gx[1] * gx[2] // cluster, tx[0] * tx[1] * tx[2] * cluster
    step = max(1, min(clusters, AXIS // width))
    for first in range(0, clusters, step):
        Machine(
            kernel, grid=gx, threads=tx, cluster=cluster, first=first, clusters=min(step, clusters - first),
            shared=shared, memory=memory, parameters=parameters, maps=maps, special=special,
        ).run()  # fmt: skip
    memory.copy_back()


def _three(extent: int | Sequence[int]) -> tuple[int, int, int]:
    values = (extent,) if isinstance(extent, int) else tuple(extent)
    x, y, z = (*values, 1, 1, 1)[:3]
    return x, y, z


def _check_launch(kernel: Kernel, grid: tuple[int, int, int], threads: tuple[int, int, int], cluster: int, shared: int,
                  arguments: int) -> None:  # fmt: skip
    """Limits of sm_90 and of the kernel itself."""
    count, limits = threads[0] * threads[1] * threads[2], kernel.limits
    most = 1
    for extent in limits.get("maxntid", (1024,)):
        most *= extent
    exact = (*limits["reqntid"], 1, 1)[:3] if "reqntid" in limits else threads
    rules = {
        f"{kernel.name} has {len(kernel.parameters)} parameters, {arguments} arguments came":
            arguments == len(kernel.parameters),
        f"{count} threads a block, of at most {min(most, 1024)}": 1 <= count <= min(most, 1024),
        f"threads {threads}, the kernel requires {exact}": tuple(exact) == tuple(threads),
        f"a grid of {grid}": 1 <= grid[0] < 2**31 and all(1 <= g <= 65535 for g in grid[1:]),
        f"a grid of {grid[0]} along x in clusters of {cluster}": 1 <= cluster <= 8 and grid[0] % cluster == 0,
        f"clusters of {cluster}, the kernel requires {limits.get('reqnctapercluster')}":
            (*limits.get("reqnctapercluster", (cluster,)), 1, 1)[:3] == (cluster, 1, 1),
        f"{shared} bytes of shared memory, of at most 232448": 0 <= shared <= 232448,
    }  # fmt: skip
    for rule, holds in rules.items():
        if not holds:
            raise ValueError(f"launch of {kernel.name}: {rule}")


def _place(
    kernel: Kernel, arguments: Sequence[Any], unwritten: Sequence[int]
) -> tuple[Global, bytes, dict[int, tuple[TensorMap, Region]], dict[str, Any]]:
    """Arrays in global memory, the parameter block, tensor maps by address, and addresses of the module's variables."""
    arrays: dict[int, tuple[str, Array, bool]] = {}

    def add(label: str, array: Array, written: bool) -> int:
        if not array.flags.c_contiguous:
            raise ValueError(f"{label} is not contiguous")
        start = array.__array_interface__["data"][0]
        for key, (other, placed, _) in arrays.items():
            if key != start and np.may_share_memory(array, placed):
                raise ValueError(f"{label} overlaps {other}")
        if start not in arrays or arrays[start][1].nbytes < array.nbytes:
            arrays[start] = (label, array, written)
        return int(start)

    keys = list[int]()
    encoded = {i: np.full(128, 0xA5, np.uint8) for i, a in enumerate(arguments) if isinstance(a, TensorMap)}
    for i, argument in enumerate(arguments):
        label = f"argument {i} ({kernel.parameters[i].name})"
        array = argument.array if isinstance(argument, TensorMap | At) else argument
        keys.append(add(label, array, i not in unwritten) if isinstance(array, np.ndarray) else 0)
        if i in encoded:
            add(f"the tensor map of {label}", encoded[i], True)
    variables = [v for v in kernel.variables if v.space in ("global", "const")]
    tables = {v.name: np.frombuffer(v.values.ljust(v.size, b"\0"), np.uint8) for v in variables}
    for label, table in tables.items():
        add(label, table, True)
    memory = Global(list(arrays.values()))
    region = dict(zip(arrays, memory.regions, strict=True))
    special = {n: memory.address(region[t.__array_interface__["data"][0]]) for n, t in tables.items()}
    block, maps = bytearray(sum(p.size + 16 for p in kernel.parameters)), {}
    for i, (parameter, argument) in enumerate(zip(kernel.parameters, arguments, strict=True)):
        if isinstance(argument, TensorMap):
            place = memory.address(region[encoded[i].__array_interface__["data"][0]])
            maps[place] = maps[PARAMETER_BASE + parameter.offset] = (argument, region[keys[i]])
            raw = encoded[i].tobytes() if parameter.size == 128 else struct.pack("<Q", place)
        elif isinstance(argument, np.ndarray | At):
            offset = argument.offset if isinstance(argument, At) else 0
            raw = struct.pack("<Q", memory.address(region[keys[i]]) + offset)
        else:
            raw = _scalar(argument, parameter.size)
        if len(raw) != parameter.size:
            raise TypeError(f"argument {i} has {len(raw)} bytes, parameter {parameter.name} {parameter.size}")
        block[parameter.offset : parameter.offset + parameter.size] = raw
    return memory, bytes(block), maps, special


def _scalar(value: Any, size: int) -> bytes:
    """A number as a parameter of so many bytes."""
    if isinstance(value, np.generic):
        return value.tobytes()
    if isinstance(value, float):
        return struct.pack({2: "<e", 4: "<f", 8: "<d"}[size], value)
    if isinstance(value, int):
        return (value % (1 << 8 * size)).to_bytes(size, "little")
    raise TypeError(f"a kernel takes arrays, numbers and tensor maps, not {type(value).__name__}")
