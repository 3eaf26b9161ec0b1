"""Barriers of blocks and clusters, and mbarriers: who waits, what completes, and what those who waited learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .access import addresses
from .copies import BulkCopy
from .faults import AsyncFault, Fault
from .parser import Instruction
from .registers import Active

if TYPE_CHECKING:
    from .machine import Machine

__all__ = ["BUILDERS", "BlockBarriers", "ClusterBarrier", "MBarriers"]

Array = NDArray[Any]
Run = Callable[[Active], None]


class BlockBarriers:
    """The sixteen barriers of every block."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._arrived = np.zeros((machine.blocks, 16), np.int64)
        self._expected = np.zeros((machine.blocks, 16), np.int64)
        self._knowledge = dict[tuple[int, int], Array]()
        self.at = np.full(machine.count, -1)

    def arrive(self, lanes: Array, number: Array, count: Array, *, wait: bool) -> None:
        """Threads come to barriers; those that wait are held, and let go where all have come."""
        machine, block = self._machine, self._machine.block[lanes]
        for b, n in np.unique(np.stack([block, number], axis=1), axis=0):
            here = (block == b) & (number == n)
            who, wanted = lanes[here], int(count[here][0])
            before = self._expected[b, n]
            if (count[here] != wanted).any() or (before and before != wanted):
                some, others = max(before, wanted), count[here].min()
                raise Fault(f"barrier {n}: some threads expect {some}, others {others}", int(who[0]))
            self._expected[b, n] = wanted
            self._arrived[b, n] += len(who)
            if wait:
                self.at[who] = n
            else:
                old = self._knowledge.get((int(b), int(n)), machine.order.nothing())
                self._knowledge[int(b), int(n)] = np.maximum(old, machine.order.publish(who))
            if self._arrived[b, n] > wanted:
                raise Fault(f"barrier {n} expects {wanted} threads, {self._arrived[b, n]} came", int(who[0]))
            if self._arrived[b, n] == wanted:
                self._complete(int(b), int(n))

    def _complete(self, block: int, number: int) -> None:
        machine = self._machine
        lanes = machine.lanes_of(block)
        waiting = lanes[(self.at[lanes] == number)]
        if number == 0 and len(waiting) == machine.block_threads:
            machine.order.join(waiting[None])
            machine.shared.synchronised(np.array([block]))
        elif len(waiting):
            knowledge = np.maximum(
                self._knowledge.get((block, number), machine.order.nothing()), machine.order.publish(waiting)
            )
            machine.order.learn(waiting, knowledge)
        self._knowledge.pop((block, number), None)
        self._arrived[block, number] = self._expected[block, number] = 0
        self.at[waiting] = -1
        machine.release(waiting)

    def all_blocks(self, lanes: Array) -> None:
        """The common case at once: barrier 0, all threads of these blocks, none of which waits anywhere."""
        machine = self._machine
        machine.order.join(lanes.reshape(-1, machine.block_threads))
        machine.shared.synchronised(np.unique(machine.block[lanes]))

    def idle(self, blocks: Array) -> bool:
        """Whether nobody waits at barrier 0 of these blocks."""
        return not self._arrived[blocks, 0].any()


class ClusterBarrier:
    """The one barrier of every cluster, with arrival and waiting apart."""

    def __init__(self, machine: Machine) -> None:
        self._machine, clusters = machine, machine.clusters
        self._arrived = np.zeros(machine.count, bool)
        self._knowledge = [machine.order.nothing() for _ in range(clusters)]
        self._done = [machine.order.nothing() for _ in range(clusters)]
        self._phase = np.zeros(machine.count, np.int64)
        self._completed = np.zeros(clusters, np.int64)

    def arrive(self, active: Active) -> None:
        """Threads arrive, publish what they know and go on."""
        lanes, machine = active.lanes, self._machine
        if self._arrived[lanes].any():
            raise Fault("a second barrier.cluster.arrive before its wait", int(lanes[self._arrived[lanes]][0]))
        self._arrived[lanes] = True
        cluster = lanes // machine.order.width
        for c in np.unique(cluster):
            self._knowledge[c] = np.maximum(self._knowledge[c], machine.order.publish(lanes[cluster == c]))
            self.check(int(c))

    def check(self, cluster: int) -> None:
        """Complete the phase once every thread that has not ended has arrived."""
        machine = self._machine
        lanes = np.arange(cluster * machine.order.width, (cluster + 1) * machine.order.width)
        alive = lanes[~machine.ended[lanes]]
        if not len(alive) or not (self._arrived[alive] | (self._phase[alive] > self._completed[cluster])).all():
            return
        waiting = alive[machine.is_held(alive, "cluster")]
        self._completed[cluster] += 1
        self._done[cluster] = self._knowledge[cluster]
        self._knowledge[cluster] = machine.order.nothing()
        self._pass(waiting, cluster)
        machine.release(waiting)

    def _pass(self, lanes: Array, cluster: int) -> None:
        self._machine.order.learn(lanes, self._done[cluster])
        self._arrived[lanes] = False
        self._phase[lanes] += 1

    def wait(self, lanes: Array) -> Array:
        """Those of these threads that must be held; the others go on."""
        if not self._arrived[lanes].all():
            raise Fault("barrier.cluster.wait without an arrive", int(lanes[~self._arrived[lanes]][0]))
        cluster = lanes // self._machine.order.width
        through = self._phase[lanes] < self._completed[cluster]
        for c in np.unique(cluster[through]):
            self._pass(lanes[through & (cluster == c)], int(c))
        return np.asarray(lanes[~through])


@dataclass(slots=True)
class _Waiting:
    """Threads held at a try_wait, and the predicate to set when they are let go."""

    lanes: Array
    predicate: str


@dataclass(slots=True)
class _MBarrier:
    """One mbarrier: arrivals and bytes still missing in this phase, and what those who wait will learn."""

    by: int
    expected: int
    missing: int
    gathered: Array
    released: Array
    bytes: int = 0
    phase: int = 0
    fenced: bool = False
    copies: list[BulkCopy] = field(default_factory=list)
    waiting: list[_Waiting] = field(default_factory=list)

    def describe(self) -> str:
        """What the phase lacks."""
        return f"{self.missing} of {self.expected} arrivals and {self.bytes} bytes are missing in phase {self.phase}"


class MBarriers:
    """All mbarriers, by where they lie in the shared memory of all blocks."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._at = dict[int, _MBarrier]()

    def _get(self, lanes: Array, offset: int) -> _MBarrier:
        """The barrier there, which these threads know to be initialised."""
        if offset not in self._at:
            raise Fault("this address holds no mbarrier", int(lanes[0]))
        shared = self._machine.shared
        shared.check_read(lanes, shared.units(np.full(len(lanes), offset), 8))
        return self._at[offset]

    def init(self, lane: int, offset: int, count: int) -> None:
        """A new barrier that ``count`` arrivals complete."""
        if not 1 <= count < 1 << 20:
            raise Fault(f"an mbarrier of {count} arrivals", lane)
        shared, order, one = self._machine.shared, self._machine.order, np.array([lane])
        units = shared.units(np.array([offset]), 8)
        shared.check_write(one, units)
        shared.record_write(one, units, order.clock[one], generic=True)
        self._at[offset] = _MBarrier(lane, count, count, order.nothing(), order.nothing())

    def remove(self, lane: int, offset: int) -> None:
        """``inval``: the place is memory again."""
        self._get(np.array([lane]), offset)
        del self._at[offset]

    def fence(self, lanes: Array) -> None:
        """The barriers that these threads initialised are visible to the copy engine."""
        for barrier in self._at.values():
            if barrier.by in lanes:
                barrier.fenced = True

    def arrive(self, lane: int, offset: int, count: int, bytes_: int) -> None:
        """A thread arrives, perhaps announcing bytes that copies will bring."""
        barrier = self._get(np.array([lane]), offset)
        barrier.bytes += bytes_
        if count > barrier.missing:
            raise Fault(f"one arrival more than the {barrier.expected} of the mbarrier", lane)
        if count:
            barrier.missing -= count
            knowledge = self._machine.order.publish(np.array([lane]))
            barrier.gathered = np.maximum(barrier.gathered, knowledge)
        self._advance(barrier)

    def copy(self, lane: Array, offset: Array, copy: BulkCopy) -> None:
        """A bulk copy that this barrier counts."""
        barrier = self._get(lane, int(offset[0]))
        if not barrier.fenced:
            raise AsyncFault("the copy engine uses an mbarrier without fence.mbarrier_init or fence.proxy.async after "
                             "its init", int(lane[0]))  # fmt: skip
        barrier.copies.append(copy)
        self._advance(barrier)

    def wait(self, lanes: Array, offsets: Array, parity: Array, predicate: str) -> Array:
        """Threads wait for the phase of a parity to complete; those that must be held."""
        held = list[Array]()
        for offset in np.unique(offsets):
            who = lanes[offsets == offset]
            barrier = self._get(who, int(offset))
            wanted = parity[offsets == offset]
            for p in np.unique(wanted):
                those = who[wanted == p]
                if barrier.phase & 1 == p:
                    barrier.waiting.append(_Waiting(those, predicate))
                    self._advance(barrier)
                    if barrier.phase & 1 == p:
                        held.append(those)
                else:
                    self._let_go(barrier, _Waiting(those, predicate))
        return np.concatenate(held) if held else np.zeros(0, np.int64)

    def _advance(self, barrier: _MBarrier) -> None:
        """Land what is due, and complete the phase if nothing is missing."""
        machine = self._machine
        if barrier.waiting:
            for copy in barrier.copies:
                lanes = np.full(len(copy.offsets), copy.lane)
                machine.shared.land(lanes, copy.offsets, copy.values, copy.clock, proxy=True)
                index = machine.order.index[copy.lane]
                barrier.gathered[0, index] = max(barrier.gathered[0, index], copy.clock)
                barrier.bytes -= copy.values.size
            barrier.copies.clear()
        if barrier.missing == 0 and barrier.bytes == 0 and not barrier.copies:
            barrier.missing, barrier.phase = barrier.expected, barrier.phase + 1
            barrier.released = np.maximum(barrier.released, barrier.gathered)
            barrier.gathered = machine.order.nothing()
            for waiting in barrier.waiting:
                self._let_go(barrier, waiting)
                machine.release(waiting.lanes)
            barrier.waiting.clear()

    def _let_go(self, barrier: _MBarrier, waiting: _Waiting) -> None:
        machine = self._machine
        machine.order.learn(waiting.lanes, barrier.released)
        machine.registers.write_lanes(waiting.predicate, waiting.lanes, True)

    def describe(self, lane: int) -> str:
        """What a held thread waits for."""
        for barrier in self._at.values():
            if any(lane in waiting.lanes for waiting in barrier.waiting):
                return barrier.describe()
        return "nothing"

    def in_flight(self) -> int | None:
        """A thread whose bulk copy nobody waited for."""
        return next((c.lane for barrier in self._at.values() for c in barrier.copies), None)


# builders -----------------------------------------------------------------------------------------------------
def _bar(machine: Machine, ins: Instruction) -> Run:
    """``bar.sync``, ``bar.arrive`` and their long names."""
    ins.only("cta", "sync", "arrive", "aligned")
    registers, wait = machine.registers, "sync" in ins.opcode
    number = registers.source(ins.word(0), "u32") if ins.operands else np.uint32(0)
    given = len(ins.operands) > 1
    count = registers.source(ins.word(1), "u32") if given else np.uint32(machine.block_threads)
    simple = wait and not given and not np.ndim(number) and number == 0

    def run(active: Active) -> None:
        lanes = active.lanes
        if simple and len(lanes) % machine.block_threads == 0:
            blocks = machine.block[lanes]
            whole = np.bincount(blocks, minlength=machine.blocks)[np.unique(blocks)] == machine.block_threads
            if whole.all() and machine.block_barriers.idle(np.unique(blocks)):
                machine.block_barriers.all_blocks(lanes)
                return
        n, c = (np.broadcast_to(v, machine.count)[lanes].astype(np.int64) for v in (number, count))
        if (n > 15).any() or (given and (c % 32 != 0).any()) or (c > machine.block_threads).any():
            raise Fault(f"barrier {n.max()} for {c.max()} threads", int(lanes[0]))
        if wait:
            machine.hold(lanes, "barrier")
        machine.block_barriers.arrive(lanes, n, c, wait=wait)

    return run


def _cluster(machine: Machine, ins: Instruction) -> Run:
    """``barrier.cluster.arrive`` and ``.wait``."""
    ins.only("cluster", "arrive", "wait", "aligned", "release", "acquire", "relaxed")
    if "relaxed" in ins.opcode:
        raise NotImplementedError(ins.text)
    if "arrive" in ins.opcode:
        return machine.cluster_barrier.arrive
    return lambda active: machine.hold(machine.cluster_barrier.wait(active.lanes), "cluster")


def _barrier(machine: Machine, ins: Instruction) -> Run:
    return _cluster(machine, ins) if "cluster" in ins.opcode else _bar(machine, ins)


def _mbarrier(machine: Machine, ins: Instruction) -> Run:
    """``mbarrier.init``, ``arrive``, ``expect_tx``, ``complete_tx``, ``try_wait``, ``inval``."""
    ins.only("init", "inval", "arrive", "expect_tx", "complete_tx", "try_wait", "test_wait", "parity", "shared",
             "shared::cta", "shared::cluster", "release", "acquire", "relaxed", "cta", "cluster", "b64")  # fmt: skip
    what = ins.opcode[1]
    if what in ("try_wait", "test_wait"):
        return _try_wait(machine, ins)
    arrives, remote = what == "arrive", "shared::cluster" in ins.opcode
    if arrives and ins.word(0) != "_":
        raise NotImplementedError(f"the state that an arrival returns: {ins.text}")
    where = addresses(machine, ins.address(1 if arrives else 0))
    last = len(ins.operands) - 1
    amount = machine.registers.source(ins.word(last), "u32") if last > arrives else np.uint32(1)

    def run(active: Active) -> None:
        lanes = active.lanes
        offsets = machine.shared.locate(lanes, where(lanes), 8, cluster=remote)
        values = np.broadcast_to(amount, machine.count)[lanes]
        for lane, offset, value in zip(lanes.tolist(), offsets.tolist(), values.tolist(), strict=True):
            if what == "init":
                machine.barriers.init(lane, offset, value)
            elif what == "inval":
                machine.barriers.remove(lane, offset)
            elif what == "expect_tx":
                machine.barriers.arrive(lane, offset, 0, value)
            elif what == "complete_tx":
                machine.barriers.arrive(lane, offset, 0, -value)
            elif "expect_tx" in ins.opcode:
                machine.barriers.arrive(lane, offset, 1, value)
            else:
                machine.barriers.arrive(lane, offset, value, 0)

    return run


def _try_wait(machine: Machine, ins: Instruction) -> Run:
    """Wait without giving up: the hardware's time limit and the loop around it are the same in the end."""
    if "parity" not in ins.opcode:
        raise NotImplementedError(ins.text)
    where = addresses(machine, ins.address(1))
    parity = machine.registers.source(ins.word(2), "u32")

    def run(active: Active) -> None:
        lanes = active.lanes
        offsets = machine.shared.locate(lanes, where(lanes), 8)
        wanted = np.broadcast_to(parity, machine.count)[lanes]
        machine.hold(machine.barriers.wait(lanes, offsets, wanted, ins.word(0)), "mbarrier")

    return run


def _fence(machine: Machine, ins: Instruction) -> Run:
    """``fence.proxy.async`` and ``fence.mbarrier_init``; other fences order nothing that barriers do not."""
    if "mbarrier_init" in ins.opcode:
        return lambda active: machine.barriers.fence(active.lanes)
    if "proxy" not in ins.opcode:
        ins.only("acq_rel", "sc", "acquire", "release", "cta", "cluster", "gpu", "sys", "gl")
        return lambda active: None
    ins.only("proxy", "async", "async::generic", "shared::cta", "shared::cluster", "global")

    def run(active: Active) -> None:
        machine.order.fence(active.lanes)
        machine.barriers.fence(active.lanes)

    return run


BUILDERS = {"bar": _bar, "barrier": _barrier, "mbarrier": _mbarrier, "fence": _fence, "membar": _fence}
