"""Asynchronous copies to shared memory: ``cp.async`` in groups, and bulk copies that an mbarrier counts.

Both land as late as they may: a cp.async when its thread waits for its group, a bulk copy when a thread waits
for its barrier.  Until then the destination holds NaN, and whoever uses it makes a race.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .access import addresses
from .faults import Fault, MemoryFault
from .parser import Instruction
from .registers import Active
from .tensor_map import swizzled

if TYPE_CHECKING:
    from .machine import Machine

__all__ = ["BUILDERS", "BulkCopy", "Groups"]

Array = NDArray[Any]
Run = Callable[[Active], None]


@dataclass(slots=True)
class _Copy:
    """One cp.async of several threads: where it goes, what it brings, which of its thread's groups it is in."""

    lanes: Array
    offsets: Array
    values: Array
    group: Array


class Groups:
    """The cp.async copies in flight; every thread counts its own groups."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._pending = list[_Copy]()
        self._committed = np.zeros(machine.count, np.int64)

    def issue(self, lanes: Array, offsets: Array, values: Array) -> None:
        """Copies that belong to the group their threads commit next."""
        self._machine.shared.begin_write(lanes, offsets, values.shape[1])
        self._pending.append(_Copy(lanes, offsets, values, self._committed[lanes]))

    def commit(self, active: Active) -> None:
        """The copies so far are a group."""
        self._committed[active.lanes] += 1

    def wait(self, active: Active, newest: int | None) -> None:
        """All groups of these threads land but the newest; without a number, what was not committed too."""
        limit = np.full(self._machine.count, -1)
        lanes = active.lanes
        limit[lanes] = self._committed[lanes] - newest if newest is not None else np.iinfo(np.int64).max
        still = list[_Copy]()
        for copy in self._pending:
            due = copy.group < limit[copy.lanes]
            if due.any():
                who = copy.lanes[due]
                self._machine.shared.land(who, copy.offsets[due], copy.values[due], self._machine.order.clock[who])
            if not due.all():
                keep = ~due
                still.append(_Copy(copy.lanes[keep], copy.offsets[keep], copy.values[keep], copy.group[keep]))
        self._pending = still


@dataclass(slots=True)
class BulkCopy:
    """A bulk copy in flight: who issued it and when, and the bytes it brings."""

    lane: int
    clock: int
    offsets: Array
    values: Array


def _copy(machine: Machine, ins: Instruction) -> Run:
    """``cp.async.ca/cg``: 4, 8 or 16 bytes a thread, the rest of them zeros where the source has fewer."""
    ins.only("async", "ca", "cg", "shared", "shared::cta", "global", "L2::64B", "L2::128B", "L2::256B")
    to, of = addresses(machine, ins.address(0)), addresses(machine, ins.address(1))
    size = int(ins.word(2), 0)
    if size not in ((16,) if "cg" in ins.opcode else (4, 8, 16)):
        raise Fault(f"cp.async of {size} bytes: {ins.text}")
    given = machine.registers.source(ins.word(3), "u32") if len(ins.operands) > 3 else np.uint32(size)

    def run(active: Active) -> None:
        lanes = active.lanes
        offsets = machine.shared.locate(lanes, to(lanes), size)
        present = np.broadcast_to(given, machine.count)[lanes]
        if (present > size).any():
            raise Fault(f"cp.async of {size} bytes from a source of {present.max()}", int(lanes[present.argmax()]))
        values, source = np.zeros((len(lanes), size), np.uint8), of(lanes)
        for count in np.unique(present[present > 0]):
            here = present == count
            item = min(8, int(count) & -int(count))  # a power of two that divides both
            who = lanes[here]
            got = machine.memory.load(who, source[here], item, int(count) // item, machine.threads[who], size)
            values[here, : int(count)] = got.view(np.uint8).reshape(len(got), -1)
        machine.groups.issue(lanes, offsets, values)

    return run


def _async(machine: Machine, ins: Instruction) -> Run:
    """``cp.async`` and the instructions that begin with it."""
    what = ins.opcode[2]
    if what == "commit_group":
        return machine.groups.commit
    if what == "wait_group":
        return lambda active: machine.groups.wait(active, int(ins.word(0), 0))
    if what == "wait_all":
        return lambda active: machine.groups.wait(active, None)
    if what == "bulk":
        return _bulk(machine, ins)
    return _copy(machine, ins)


def _bulk(machine: Machine, ins: Instruction) -> Run:
    """``cp.async.bulk``: a run of bytes, or a box of a tensor, brought by the copy engine."""
    tensor = "tensor" in ins.opcode
    ins.only("async", "bulk", "tensor", *(f"{d}d" for d in range(1, 6)), "shared::cluster", "shared::cta", "global",
             "tile", "mbarrier::complete_tx::bytes")  # fmt: skip
    if ins.opcode.index("global") < max(ins.opcode.index(s) for s in ins.opcode if s.startswith("shared")):
        raise NotImplementedError(ins.text)
    to, of, barrier = (addresses(machine, ins.address(i)) for i in (0, 1, 2 if tensor else 3))
    size: Any = None if tensor else machine.registers.source(ins.word(2), "u32")
    coordinates = [machine.registers.source(c, "s32") for c in ins.address(1).coordinates]

    def run(active: Active) -> None:
        for lane in active.lanes:
            one = np.array([lane])
            source, place = int(of(one)[0]), to(one)
            if tensor:
                start = [int(np.broadcast_to(c, machine.count)[lane]) for c in coordinates]
                values, span, align = _box(machine, int(lane), source, start)
            else:
                count = int(np.broadcast_to(size, machine.count)[lane])
                if count % 16 or count == 0:
                    raise Fault(f"a bulk copy of {count} bytes, no multiple of 16", int(lane))
                values, span, align = machine.memory.piece(int(lane), source, count, 16), 0, 16
            first = machine.shared.locate(one, place, len(values), align=align, cluster=True)
            base = first - (place & 0xFFFFFF)  # from addresses, which the swizzle looks at, to offsets
            pieces = (place & 0xFFFFFF) + np.arange(0, len(values), 16)
            offsets = base + swizzled(pieces, span)
            lanes = np.full(len(offsets), lane)
            machine.shared.begin_write(lanes, offsets, 16, proxy=True)
            copy = BulkCopy(int(lane), machine.order.tick(int(lane)), offsets, values.reshape(-1, 16))
            machine.barriers.copy(one, machine.shared.locate(one, barrier(one), 8, cluster=True), copy)

    return run


def _box(machine: Machine, lane: int, address: int, start: list[int]) -> tuple[Array, int, int]:
    """Bytes of a tensor copy, the span of its swizzle, and how its destination is aligned."""
    found = machine.maps.get(address)
    if found is None:
        raise MemoryFault(f"no tensor map lies at {address:#x}", lane)
    map_, region = found
    if len(start) != len(map_.dims):
        raise Fault(f"{len(start)} coordinates for a map of {len(map_.dims)} dimensions", lane)
    values = map_.box_at(machine.memory.bytes_of(region), start)
    return values, map_.swizzle, 128


BUILDERS = {"cp": _async}
