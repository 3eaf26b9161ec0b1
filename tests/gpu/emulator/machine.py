"""Runs a kernel: all threads of many clusters as one axis, whoever is furthest behind first.

Every step takes the lowest instruction at which a thread stands that does not wait, and executes from there to the
next branch or barrier for all threads that stand there too: so threads that went different ways meet again by
themselves.  When nobody can go on and somebody has not ended, that is a deadlock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import access, barriers, convert, copies, matrix, scalar, warpgroup, warps
from .barriers import BlockBarriers, ClusterBarrier, MBarriers
from .copies import Groups
from .faults import AsyncFault, Deadlock, Fault
from .memory import SHARED_BASE, Global, Region, Shared
from .order import Order
from .parser import Address, Instruction, Kernel, size_of
from .registers import Active, Registers
from .tensor_map import TensorMap
from .warpgroup import WarpgroupProducts

__all__ = ["PARAMETER_BASE", "Machine"]

Array = NDArray[Any]
Run = Callable[[Active], None]

PARAMETER_BASE = 1 << 32
"""Address of the parameter block, for kernels that take the address of a parameter."""

_NOWHERE = 2**31 - 1
_FREE, _ENDED, _GATHERING = 0, 1, 2
_HELD = {"barrier": 3, "cluster": 4, "mbarrier": 5}

_BUILDERS = {
    **access.BUILDERS, **barriers.BUILDERS, **convert.BUILDERS, **copies.BUILDERS, **matrix.BUILDERS,
    **scalar.BUILDERS, **warps.BUILDERS, **warpgroup.BUILDERS,
}  # fmt: skip
_WITHOUT_EFFECT = {"griddepcontrol", "setmaxnreg", "prefetch", "prefetchu", "discard", "nanosleep", "pragma"}
"""Instructions that change when things happen, or nothing, but no value."""

_JUMPS = {"bra", "ret", "exit", "trap"}
_TOGETHER = {"mma", "ldmatrix", "stmatrix", "shfl", "vote", "redux", "elect", "wgmma", "bar", "barrier"}


@dataclass(frozen=True, slots=True)
class _Block:
    """Instructions that run one after the other; ``unit`` threads must be there together."""

    steps: tuple[tuple[Instruction, Run, Callable[[], Array] | None], ...]
    unit: int
    end: int


def _unit(ins: Instruction) -> int:
    """How many threads execute an instruction together: 0 where each goes alone."""
    if ins.opcode[:2] == ("wgmma", "mma_async"):
        return 128
    alone = ins.opcode[0] == "barrier" and "aligned" not in ins.opcode
    return 32 if ins.opcode[0] in _TOGETHER and not alone else 0


def _ends_block(ins: Instruction) -> bool:
    return ins.opcode[0] in (*_JUMPS, "bar", "barrier", "mbarrier")


class Machine:
    """The clusters ``first`` to ``first + clusters`` of a grid.

    Parameters
    ----------
    kernel : Kernel
    grid : tuple
        Blocks along x, y and z.
    threads : tuple
        Threads of a block along x, y and z.
    cluster, first, clusters : int
    shared : int
        Bytes of dynamic shared memory.
    memory : Global
    parameters : bytes
    maps : mapping
        Tensor maps and their arrays, by address.
    special : mapping
        Addresses of the module's variables.
    """

    def __init__(
        self, kernel: Kernel, *, grid: tuple[int, int, int], threads: tuple[int, int, int], cluster: int, first: int,
        clusters: int, shared: int, memory: Global, parameters: bytes, maps: dict[int, tuple[TensorMap, Region]],
        special: dict[str, Any],
    ) -> None:  # fmt: skip
        self.kernel, self.grid, self.cluster, self.clusters = kernel, grid, cluster, clusters
        self.memory, self.parameters, self.maps = memory, parameters, maps
        self.parameter_offsets = {p.name: p.offset for p in kernel.parameters}
        self.block_threads = threads[0] * threads[1] * threads[2]
        self.pitch = -(-self.block_threads // 32) * 32
        self.blocks = clusters * cluster
        self.count = self.blocks * self.pitch
        lanes = np.arange(self.count)
        self.block, thread = lanes // self.pitch, lanes % self.pitch
        self._number = first * cluster + self.block
        self.threads = self._number * self.block_threads + thread
        roots = {i.opcode[0] for i in kernel.code}
        proxies = "wgmma" in roots or any("bulk" in i.opcode for i in kernel.code)
        self.order = Order(clusters, cluster * self.pitch, proxies)
        self._meets = "mbarrier" in roots
        variables, size = _shared_layout(kernel, shared)
        grain = min([size_of(i.type) for i in kernel.code if i.opcode[0] in ("ld", "st") and _is_shared(i)], default=4)
        self.shared = Shared(self.blocks, self.pitch, cluster, size, min(grain, 4), self.order)
        names = special | variables | {n: PARAMETER_BASE + o for n, o in self.parameter_offsets.items()}
        self.registers = Registers(kernel, self.count, names | self._special(threads, thread))
        self.groups, self.barriers = Groups(self), MBarriers(self)
        self.block_barriers, self.cluster_barrier = BlockBarriers(self), ClusterBarrier(self)
        self.products = WarpgroupProducts(self, *_product_registers(kernel))
        self.pc = np.zeros(self.count, np.int32)
        self.state = np.where(thread < self.block_threads, _FREE, _ENDED).astype(np.int8)
        self._at = np.zeros(self.count, np.int32)
        self._blocks = self._decode()

    def _special(self, threads: tuple[int, int, int], thread: Array) -> dict[str, Any]:
        """Values of the special registers."""
        t, b, g, c = threads, self._number, self.grid, self.cluster
        values: dict[str, Any] = {
            "%laneid": thread % 32, "%warpid": thread // 32, "%nwarpid": self.pitch // 32,
            "%tid.x": thread % t[0], "%tid.y": thread // t[0] % t[1], "%tid.z": thread // (t[0] * t[1]),
            "%ctaid.x": b % g[0], "%ctaid.y": b // g[0] % g[1], "%ctaid.z": b // (g[0] * g[1]),
            "%clusterid.x": b % g[0] // c, "%clusterid.y": b // g[0] % g[1], "%clusterid.z": b // (g[0] * g[1]),
            "%cluster_ctaid.x": b % c, "%cluster_ctaid.y": 0 * b, "%cluster_ctaid.z": 0 * b, "%cluster_ctarank": b % c,
            "%lanemask_eq": 1 << thread % 32, "%lanemask_lt": (1 << thread % 32) - 1,
            "%lanemask_le": (2 << thread % 32) - 1,
        }  # fmt: skip
        for i, axis in enumerate("xyz"):
            values[f"%ntid.{axis}"], values[f"%nctaid.{axis}"] = t[i], g[i]
            values[f"%cluster_nctaid.{axis}"] = c if i == 0 else 1
            values[f"%nclusterid.{axis}"] = g[i] // c if i == 0 else g[i]
        values["%cluster_nctarank"] = c
        return {name: np.broadcast_to(np.asarray(v).astype(np.uint32), self.count) for name, v in values.items()}

    # decoding
    def _decode(self) -> dict[int, _Block]:
        code = self.kernel.code
        starts = {0, *self.kernel.labels.values()}
        starts |= {i + 1 for i, ins in enumerate(code) if _ends_block(ins)}
        blocks = {}
        for start in sorted(s for s in starts if s < len(code)):
            end = start + 1
            while end < len(code) and end not in starts:
                end += 1
            steps = tuple((i, self._builder(i), self._guard(i)) for i in code[start:end])
            blocks[start] = _Block(steps, max(_unit(i) for i in code[start:end]), end)
        return blocks

    def _guard(self, ins: Instruction) -> Callable[[], Array] | None:
        if ins.guard is None:
            return None
        array = self.registers.view(ins.guard, "pred")
        return (lambda: ~array) if ins.negated else (lambda: array)

    def _builder(self, ins: Instruction) -> Run:
        root = ins.opcode[0]
        if root in _JUMPS:
            return self._jump(ins)
        if root in _WITHOUT_EFFECT:
            return lambda active: None
        key = "bar.warp" if ins.opcode[:2] == ("bar", "warp") else root
        if key not in _BUILDERS:
            raise NotImplementedError(f"{'.'.join(ins.opcode)}, in {ins.text}")
        run = _BUILDERS[key](self, ins)
        return self._watched(ins, self._meeting(ins, run))

    def _meeting(self, ins: Instruction, run: Run) -> Run:
        if not self._meets or not _unit(ins) or ins.opcode[0] in ("bar", "barrier"):
            return run

        def together(active: Active) -> None:
            run(active)
            self.order.meet(active.lanes)

        return together

    def _watched(self, ins: Instruction, run: Run) -> Run:
        """Tell the warpgroup products about ordinary instructions that use their registers."""
        if ins.opcode[0] == "wgmma":
            return run
        words = [w for o in ins.operands if not hasattr(o, "base") for w in ((o,) if isinstance(o, str) else o)]
        words += [o.base for o in ins.operands if isinstance(o, Address)]
        watched = self.products.watched & set(words)
        if not watched:
            return run
        first = ins.operands[0]
        written = watched & set((first,) if isinstance(first, str) else first if isinstance(first, tuple) else ())

        def checked(active: Active) -> None:
            self.products.check_untouched(watched, active)
            run(active)
            self.products.changed(frozenset(written), active)

        return checked

    def _jump(self, ins: Instruction) -> Run:
        if ins.opcode[0] == "bra":
            target = self.kernel.labels[ins.word(0)]

            def branch(active: Active) -> None:
                self.pc[active.lanes] = target

            return branch
        if ins.opcode[0] == "trap":

            def trap(active: Active) -> None:
                raise Fault("the kernel traps", int(active.lanes[0]))

            return trap
        return self._end

    # threads that wait or end
    @property
    def ended(self) -> Array:
        """Whether each thread has ended."""
        return np.asarray(self.state == _ENDED)

    def lanes_of(self, block: int) -> Array:
        """Positions of the threads of a block."""
        return block * self.pitch + np.arange(self.block_threads)

    def hold(self, lanes: Array, why: str) -> None:
        """Threads wait until somebody releases them."""
        self.state[lanes] = _HELD[why]

    def release(self, lanes: Array) -> None:
        """Threads go on."""
        self.state[lanes] = _FREE

    def is_held(self, lanes: Array, why: str) -> Array:
        """Whether threads wait for this."""
        return np.asarray(self.state[lanes] == _HELD[why])

    def _end(self, active: Active) -> None:
        lanes = active.lanes
        self.state[lanes] = _ENDED
        if self.cluster > 1:
            for block in np.unique(self.block[lanes]):
                if self.ended[self.lanes_of(int(block))].all():
                    self.shared.end(int(block), self.lanes_of(int(block)))
            for cluster in np.unique(lanes // self.order.width):
                self.cluster_barrier.check(int(cluster))

    # running
    def run(self) -> None:
        """Run to the end of every thread."""
        with np.errstate(all="ignore"):
            while True:
                front = np.where(self.state == _FREE, self.pc, _NOWHERE)
                at = int(front.min())
                if at == _NOWHERE:
                    break
                block, where = self._blocks.get(at), front == at
                if block is None:  # beyond the last instruction
                    self._end(Active(where, self.count))
                    continue
                if block.unit:
                    where = self._gathered(at, where, block.unit)
                    if not where.any():
                        continue
                self._execute(block, at, Active(True if where.all() else where, self.count))
        if not self.ended.all():
            raise self._deadlock()
        if (lane := self.barriers.in_flight()) is not None:
            raise self._located(AsyncFault("the block ends while a bulk copy is in flight", lane), None)

    def _gathered(self, at: int, where: Array, unit: int) -> Array:
        """Of the threads at a block that needs whole warps, those whose warp is complete; the others wait."""
        if where.all():
            return where
        here = where | (self.state == _GATHERING) & (self.pc == at)
        of_blocks = (here | self.ended).reshape(self.blocks, self.pitch)
        whole = self.pitch // unit * unit
        complete = np.zeros_like(of_blocks)
        groups = of_blocks[:, :whole].reshape(self.blocks, -1, unit)
        complete[:, :whole] = np.repeat(groups.all(axis=2), unit, axis=1)
        go = here & complete.reshape(-1)
        self.state[here & ~go] = _GATHERING
        self.state[go] = _FREE
        return np.asarray(go)

    def _execute(self, block: _Block, at: int, active: Active) -> None:
        if active.where is True:
            self.pc[:] = block.end
            self._at[:] = at
        else:
            np.copyto(self.pc, block.end, where=active.where)
            np.copyto(self._at, at, where=active.where)
        ins = block.steps[0][0]
        try:
            for ins, run, guard in block.steps:  # noqa: B007
                if guard is None:
                    run(active)
                else:
                    some = active.narrowed(guard())
                    if some.any():
                        run(some)
        except Fault as fault:
            raise self._located(fault, ins) from None

    def _located(self, fault: Fault, ins: Instruction | None) -> Fault:
        """The same fault with its instruction, block and thread."""
        parts = [str(fault)]
        if ins is not None:
            parts.append(f"in `{ins.text if len(ins.text) < 200 else ins.text[:197] + '...'}`")
        if fault.lane is not None:
            parts.append(self._thread(fault.lane))
        return type(fault)("; ".join(parts), fault.lane)

    def _thread(self, lane: int) -> str:
        number = int(self._number[lane])
        x, y = self.grid[0], self.grid[1]
        return f"thread {lane % self.pitch} of block ({number % x}, {number // x % y}, {number // (x * y)})"

    def _deadlock(self) -> Deadlock:
        """What the threads that have not ended wait for, one line for every place."""
        lines = []
        alive = np.flatnonzero(~self.ended)
        for at in np.unique(self._at[alive]):
            here = alive[self._at[alive] == at]
            lane, state = int(here[0]), int(self.state[here[0]])
            ins = self._blocks[int(at)].steps[-1][0]
            what = f"{len(here)} threads, first {self._thread(lane)}"
            if state == _GATHERING:
                ins = self._blocks[int(self.pc[lane])].steps[0][0]
                what += f", wait for the rest of their warp before `{ins.text[:120]}`"
            elif state == _HELD["mbarrier"]:
                what += f", wait at `{ins.text}`: {self.barriers.describe(lane)}"
            else:
                what += f", wait at `{ins.text}`"
            lines.append(what)
        return Deadlock("nobody can go on: " + "; ".join(lines))


def _is_shared(ins: Instruction) -> bool:
    return any(part.startswith("shared") for part in ins.opcode)


def _product_registers(kernel: Kernel) -> tuple[frozenset[str], frozenset[str]]:
    """Registers that wgmma instructions accumulate in, and those they take operand A from."""
    accumulators, operands = set[str](), set[str]()
    for ins in kernel.code:
        if _unit(ins) == 128:
            accumulators |= set(ins.words(0))
            operands |= set(ins.words(1)) if isinstance(ins.operands[1], tuple) else set()
    return frozenset(accumulators), frozenset(operands)


def _shared_layout(kernel: Kernel, dynamic: int) -> tuple[dict[str, Any], int]:
    """Addresses of the variables in shared memory, and the bytes of all: static ones first, then the dynamic one."""
    at, places = SHARED_BASE, dict[str, Any]()
    own = [v for v in kernel.variables if v.space == "shared"]
    for variable in sorted(own, key=lambda v: v.external):
        at = -(-at // variable.align) * variable.align
        places[variable.name] = at
        at += 0 if variable.external else variable.size
    return places, at - SHARED_BASE + dynamic
