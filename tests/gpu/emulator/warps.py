"""Instructions of a warp: what its threads exchange, and how they meet.

The machine runs these only for whole warps, so that every thread of one is here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .faults import Fault
from .parser import Instruction
from .registers import NUMPY, Active

if TYPE_CHECKING:
    from .machine import Machine

__all__ = ["BUILDERS"]

Array = NDArray[Any]
Run = Callable[[Active], None]
_EVERYONE = 0xFFFFFFFF


def _full_mask(machine: Machine, ins: Instruction, i: int) -> None:
    """Refuse member masks of less than a warp."""
    word = ins.word(i)
    if machine.registers.is_register(word) or int(word, 0) % (1 << 32) != _EVERYONE:
        raise NotImplementedError(f"a member mask other than the whole warp: {ins.text}")


def _shuffle(machine: Machine, ins: Instruction) -> Run:
    ins.only("sync", "up", "down", "bfly", "idx", "b32")
    _full_mask(machine, ins, 4)
    registers, mode = machine.registers, ins.opcode[2]
    name, _, found = ins.word(0).partition("|")
    source, b, c = (registers.source(ins.word(i), "b32") for i in (1, 2, 3))

    def run(active: Active) -> None:
        lanes = active.lanes
        lane = lanes % 32
        distance, clamp = (np.broadcast_to(v, machine.count)[lanes].astype(np.int64) for v in (b, c))
        distance, segment, limit = distance & 31, clamp >> 8 & 31, clamp & 31
        highest = (lane & segment) | (limit & ~segment)
        lowest = lane & segment
        of = {
            "up": lane - distance, "down": lane + distance, "bfly": lane ^ distance,
            "idx": lowest | (distance & ~segment),
        }[mode]  # fmt: skip
        inside = of >= highest if mode == "up" else of <= highest
        of = np.where(inside, of, lane)
        values = np.broadcast_to(source, machine.count)
        registers.write_lanes(name, lanes, values[lanes - lane + of])
        if found:
            registers.write_lanes(found, lanes, inside)

    return run


def _vote(machine: Machine, ins: Instruction) -> Run:
    ins.only("sync", "all", "any", "uni", "ballot", "pred", "b32")
    _full_mask(machine, ins, 2)
    registers = machine.registers

    def run(active: Active) -> None:
        lanes = active.lanes
        votes = np.broadcast_to(registers.predicate(ins.word(1)), machine.count)[lanes].reshape(-1, 32)
        result: Any
        if "ballot" in ins.opcode:
            result = (votes.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(axis=1).astype(np.uint32)
        elif "uni" in ins.opcode:
            result = votes.all(axis=1) | ~votes.any(axis=1)
        else:
            result = votes.all(axis=1) if "all" in ins.opcode else votes.any(axis=1)
        registers.write_lanes(ins.word(0), lanes, np.repeat(result, 32))

    return run


def _reduce(machine: Machine, ins: Instruction) -> Run:
    ins.only("sync", "add", "min", "max", "and", "or", "xor", ins.type)
    _full_mask(machine, ins, 2)
    registers = machine.registers
    function: Any = {
        "add": np.add, "min": np.minimum, "max": np.maximum,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }[ins.opcode[2]]  # fmt: skip
    source = registers.source(ins.word(1), ins.type)

    def run(active: Active) -> None:
        lanes = active.lanes
        rows = np.broadcast_to(source, machine.count)[lanes].reshape(-1, 32)
        result = reduce(function, rows.T).astype(NUMPY[ins.type])
        registers.write_lanes(ins.word(0), lanes, np.repeat(result, 32))

    return run


def _elect(machine: Machine, ins: Instruction) -> Run:
    ins.only("sync")
    _full_mask(machine, ins, 1)
    name, _, chosen = ins.word(0).partition("|")

    def run(active: Active) -> None:
        lanes = active.lanes
        machine.registers.write_lanes(name, lanes, np.zeros(len(lanes), np.uint32))
        machine.registers.write_lanes(chosen, lanes, lanes % 32 == 0)

    return run


def _active_mask(machine: Machine, ins: Instruction) -> Run:
    ins.only("b32")

    def run(active: Active) -> None:
        bits = (active.mask.reshape(-1, 32).astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(axis=1)
        machine.registers.write(ins.word(0), np.repeat(bits.astype(np.uint32), 32), active)

    return run


def _meet(machine: Machine, ins: Instruction) -> Run:
    """``bar.warp.sync``: what any thread of the warp did is before what any of them does next."""
    _full_mask(machine, ins, 0)
    return lambda active: machine.order.join(active.lanes.reshape(-1, 32))


def whole(active: Active, unit: int) -> Array:
    """Active threads as rows of warps or warpgroups."""
    lanes = active.lanes
    rows = lanes.reshape(-1, unit) if len(lanes) % unit == 0 else None
    if rows is None or (rows[:, -1] - rows[:, 0] != unit - 1).any() or (rows[:, 0] % 32).any():
        raise Fault("an instruction of a whole warp that some of its threads skip", int(lanes[0]))
    return rows


BUILDERS = {
    "shfl": _shuffle, "vote": _vote, "redux": _reduce, "elect": _elect, "activemask": _active_mask, "bar.warp": _meet,
}  # fmt: skip
