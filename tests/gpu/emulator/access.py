"""Loads and stores of every state space, and the addresses they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .faults import MemoryFault
from .parser import Address, Instruction, size_of
from .registers import NUMPY, Active

if TYPE_CHECKING:
    from .machine import Machine

__all__ = ["BUILDERS", "addresses"]

Array = NDArray[Any]
Run = Callable[[Active], None]
_SPACES = ("global", "shared", "shared::cta", "shared::cluster", "param", "const")
_HINTS = ("nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "volatile", "weak", "relaxed", "acquire", "release", "cta",
          "gpu", "sys", "cluster", "v2", "v4", "v8", "L1::no_allocate", "L1::evict_last", "L1::evict_first",
          "L2::64B", "L2::128B", "L2::256B")  # fmt: skip
"""Words that say how wide an access is or where it is kept, not what it reads."""


def addresses(machine: Machine, address: Address) -> Callable[[Array], Array]:
    """Function from lanes to the byte addresses of an operand."""
    registers = machine.registers
    if registers.is_register(address.base):
        base = registers.array(address.base)
        return lambda lanes: base[lanes].astype(np.int64) + address.offset
    known = registers.special.get(address.base)
    at = int(known if known is not None else int(address.base, 0)) + address.offset
    return lambda lanes: np.full(len(lanes), at, np.int64)


def _space(ins: Instruction) -> str:
    ins.only(*_SPACES, *_HINTS, ins.type)
    found = [part for part in ins.opcode if part in _SPACES]
    if len(found) != 1:
        raise NotImplementedError(f"generic addresses: {ins.text}")
    return found[0]


def _load(machine: Machine, ins: Instruction) -> Run:
    space, names, size = _space(ins), ins.words(0), size_of(ins.type)
    unsigned, registers = np.dtype(f"u{size}"), machine.registers
    value_type = NUMPY[ins.type] if ins.type[0] == "s" else unsigned
    if space == "param":
        return _load_parameter(machine, ins, names, value_type)
    where = addresses(machine, ins.address(1))

    def run(active: Active) -> None:
        lanes = active.lanes
        if space in ("global", "const"):
            rows = machine.memory.load(lanes, where(lanes), size, len(names), machine.threads[lanes])
        else:
            at = machine.shared.locate(lanes, where(lanes), size * len(names), cluster=space == "shared::cluster")
            rows = machine.shared.read(lanes, at, size, len(names))
        for i, name in enumerate(names):
            registers.write_lanes(name, lanes, rows[:, i].view(value_type))

    return run


def _load_parameter(machine: Machine, ins: Instruction, names: tuple[str, ...], type_: Any) -> Run:
    address, size = ins.address(1), np.dtype(type_).itemsize
    start = machine.parameter_offsets[address.base] + address.offset
    values = [np.frombuffer(machine.parameters, type_, 1, start + i * size)[0] for i in range(len(names))]

    def run(active: Active) -> None:
        for name, value in zip(names, values, strict=True):
            machine.registers.write(name, value, active)

    return run


def _store(machine: Machine, ins: Instruction) -> Run:
    space, names, size = _space(ins), ins.words(1), size_of(ins.type)
    where, bits = addresses(machine, ins.address(0)), f"b{8 * size}"
    sources = [machine.registers.source(name, bits) for name in names]

    def run(active: Active) -> None:
        lanes = active.lanes
        values = np.empty((len(lanes), len(names)), f"u{size}")
        for i, source in enumerate(sources):
            values[:, i] = source[lanes] if np.ndim(source) else source
        if space == "global":
            machine.memory.store(lanes, where(lanes), values, machine.threads[lanes])
        elif space in ("const", "param"):
            raise MemoryFault(f"a store to .{space}", int(lanes[0]))
        else:
            at = machine.shared.locate(lanes, where(lanes), size * len(names), cluster=space == "shared::cluster")
            machine.shared.write(lanes, at, values)

    return run


def _map_shared(machine: Machine, ins: Instruction) -> Run:
    """``mapa``: an address of this block's shared memory as one of another block of the cluster."""
    ins.only("shared::cluster", "u32")
    source, rank = (machine.registers.source(ins.word(i), "u32") for i in (1, 2))

    def run(active: Active) -> None:
        wrong = np.broadcast_to(rank >= machine.cluster, machine.count) & active.mask
        if wrong.any():
            raise MemoryFault(f"block {rank} of a cluster of {machine.cluster}", int(np.flatnonzero(wrong)[0]))
        machine.registers.write(ins.word(0), (source & 0xFFFFFF) | (rank + np.uint32(1)) << np.uint32(24), active)

    return run


def _convert_address(machine: Machine, ins: Instruction) -> Run:
    """``cvta``: global and constant addresses are generic ones here; shared ones have no generic form."""
    if not {"global", "const", "param"} & set(ins.opcode):
        raise NotImplementedError(f"generic addresses: {ins.text}")
    source = machine.registers.source(ins.word(1), ins.type)
    return lambda active: machine.registers.write(ins.word(0), source, active)


BUILDERS = {"ld": _load, "st": _store, "mapa": _map_shared, "cvta": _convert_address}
