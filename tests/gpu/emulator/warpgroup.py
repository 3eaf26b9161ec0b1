"""``wgmma``: products of 64 rows by four warps, from shared memory that descriptors describe.

A product is computed when it is issued and handed over when it is waited for: until then its accumulators may
not be touched, and what it reads from shared memory may not be written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .faults import AsyncFault, Fault
from .matrix import fragment_a, wide
from .order import IN_FLIGHT
from .parser import Instruction
from .registers import Active
from .warps import whole

if TYPE_CHECKING:
    from .machine import Machine

__all__ = ["BUILDERS", "WarpgroupProducts"]

Array = NDArray[Any]
Run = Callable[[Active], None]
_SPANS = {0: 0, 1: 128, 2: 64, 3: 32}
_ITEM = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1, "u8": 1}
_ROW = 32
"""Bytes of K of one instruction, in every type."""


@dataclass(slots=True)
class _Product:
    """An issued product: its warps, the group each will commit it in, its accumulators, who reads what."""

    warps: Array
    group: Array
    names: tuple[str, ...]
    readers: Array
    units: Array

    def of(self, which: Array) -> _Product:
        """The part of some of its warps."""
        warps = self.warps[which]
        reads = np.isin(self.readers // 32, warps)
        return _Product(warps, self.group[which], self.names, self.readers[reads], self.units[reads])

    @property
    def lanes(self) -> Array:
        """All threads of its warps."""
        return (self.warps[:, None] * 32 + np.arange(32)).reshape(-1)


class WarpgroupProducts:
    """Products in flight, and the accumulators they will change."""

    def __init__(self, machine: Machine, accumulators: frozenset[str], operands: frozenset[str]) -> None:
        self._machine = machine
        self._committed = np.zeros(machine.count // 32, np.int64)
        self._pending = list[_Product]()
        self._future = dict[str, Array]()
        self.accumulators, self.watched = accumulators, accumulators | operands
        self._flying = {name: np.zeros(machine.count, bool) for name in accumulators}
        self._changed = {name: np.ones(machine.count, bool) for name in accumulators | operands}
        self._fenced = np.zeros(machine.count, bool)

    def check_untouched(self, names: frozenset[str], active: Active) -> None:
        """Report the use of accumulators that a product in flight still changes."""
        for name in names & self.accumulators if self._pending else ():
            wrong = self._flying[name] & active.mask
            if wrong.any():
                raise AsyncFault(f"{name} is an accumulator of a wgmma that was not waited for",
                                 int(np.flatnonzero(wrong)[0]))  # fmt: skip

    def changed(self, names: frozenset[str], active: Active) -> None:
        """Ordinary instructions wrote these registers: a wgmma may take them only after a wgmma.fence.

        Compilers move such writes past the fence, and ptxas puts that right: so one fence since the last wait is
        enough here, before or after the write.
        """
        for name in names:
            if name in self._changed:
                self._changed[name][active.lanes] = True

    def fence(self, active: Active) -> None:
        """Registers that were written are ordered before the products that follow."""
        self._fenced[active.lanes] = True

    def issue(self, groups: Array, names: tuple[str, ...], also: tuple[str, ...]) -> Array:
        """Accumulators as words ``[register, warpgroup, warp, lane]``, after the check for a missing fence."""
        lanes = groups.reshape(-1)
        for name in (*names, *also):
            if (wrong := self._changed[name][lanes] & ~self._fenced[lanes]).any():
                raise AsyncFault(f"{name} was written and there was no wgmma.fence", int(lanes[wrong][0]))
            self._changed[name][lanes] = False
        words = np.empty((len(names), len(lanes)), np.uint32)
        for i, name in enumerate(names):
            own = self._machine.registers.array(name)[lanes]
            words[i] = np.where(self._flying[name][lanes], self._later(name)[lanes], own)
        return words.reshape(len(names), -1, 4, 32)

    def _later(self, name: str) -> Array:
        return self._future.setdefault(name, np.zeros(self._machine.count, np.uint32))

    def finish(self, groups: Array, names: tuple[str, ...], words: Array, readers: Array, units: Array) -> None:
        """Keep the results until they are waited for."""
        lanes = groups.reshape(-1)
        for i, name in enumerate(names):
            self._later(name)[lanes] = words[i].reshape(-1)
            self._flying[name][lanes] = True
        warps = lanes[::32] // 32
        self._pending.append(_Product(warps, self._committed[warps], names, readers, units))

    def commit(self, active: Active) -> None:
        """The products so far are a group of every warp."""
        self._committed[whole(active, 32)[:, 0] // 32] += 1

    def wait(self, active: Active, newest: int) -> None:
        """All groups of these warps but the newest end: accumulators hold their sums, reads are over."""
        machine, warps = self._machine, whole(active, 32)[:, 0] // 32
        self._fenced[active.lanes] = False
        limit = np.full(len(self._committed), -1)
        limit[warps] = self._committed[warps] - newest
        still, ended = list[_Product](), list[_Product]()
        for product in self._pending:
            due = product.group < limit[product.warps]
            if due.any():
                ended.append(product.of(due) if not due.all() else product)
            if not due.all():
                still.append(product.of(~due) if due.any() else product)
        self._pending = still
        for product in ended:
            for name in product.names:
                self._flying[name][product.lanes] = False
            machine.shared.mark_read(product.readers, product.units)
        for product in still:  # a register or a place that a later product uses too stays in flight
            for name in product.names:
                self._flying[name][product.lanes] = True
            machine.shared.mark_read(product.readers, product.units, IN_FLIGHT)
        for product in ended:
            for name in product.names:
                ready = product.lanes[~self._flying[name][product.lanes]]
                machine.registers.array(name)[ready] = self._later(name)[ready]


def _rows(descriptors: Array, rows: int) -> Array:
    """Shared addresses of the 16-byte pieces ``[warpgroup, row, 2]`` that descriptors describe.

    Eight rows are a core matrix; with a swizzle they lie its span apart, without one they are 16 bytes, and the
    second 16 bytes of K lie the leading offset away.
    """
    d = descriptors.astype(np.uint64)

    def bits(low: int, count: int) -> Array:
        return (d >> np.uint64(low) & np.uint64((1 << count) - 1)).astype(np.int64)

    start, leading, stride = bits(0, 14) << 4, bits(16, 14) << 4, bits(32, 14) << 4
    if bits(49, 3).any():
        raise NotImplementedError("a matrix descriptor with a base offset")
    span = np.array([_SPANS[int(m)] for m in bits(62, 2)])[:, None, None]
    r, piece = np.arange(rows)[None, :, None], np.arange(2)[None, None, :]
    start, leading, stride = (v[:, None, None] for v in (start, leading, stride))
    within = np.where(span > 0, r % 8 * span + piece * 16, r % 8 * 16 + piece * leading)
    logical = start + r // 8 * stride + within
    return np.where(span > 0, logical ^ (logical >> 7 & (span // 16 - 1)) << 4, logical)


def _read(machine: Machine, groups: Array, descriptors: Array, rows: int, *, split: bool) -> tuple[Array, Array, Array]:
    """Rows of 32 bytes ``[warpgroup, row, 8 words]``; who reads, and which places: a row for every 16 bytes.

    All four warps read every row, or with ``split`` each its quarter.
    """
    places, shared, count = _rows(descriptors, rows), machine.shared, len(groups)
    first = np.repeat(groups[:, 0], 2 * rows)
    offsets = shared.locate(first, places.reshape(-1), 16).reshape(count, 2 * rows)
    if split:
        readers, read = np.repeat(groups[:, ::32], rows // 2, axis=1), offsets
    else:
        readers, read = np.repeat(groups[:, ::32], 2 * rows, axis=1), np.tile(offsets, (1, 4))
    lanes, units = readers.reshape(-1), shared.units(read.reshape(-1), 16)
    shared.begin_read(lanes, units)
    words = shared.views[4][offsets[..., None] // 4 + np.arange(4)]
    return words.reshape(count, rows, 8), lanes, units


def _multiply(machine: Machine, ins: Instruction) -> Run:
    """``wgmma.mma_async``."""
    shape = re.fullmatch(r"m64n(\d+)k(\d+)", ins.opcode[4])
    if shape is None or ins.opcode[1:4] != ("mma_async", "sync", "aligned"):
        raise NotImplementedError(ins.text)
    d_type, a_type, b_type = ins.opcode[5:8]
    n, k = int(shape[1]), int(shape[2])
    known = d_type in ("f32", "s32") and k * _ITEM.get(a_type, 0) == _ROW and n in range(8, 257, 8)
    if len(ins.opcode) > 8 or not known:
        raise NotImplementedError(ins.text)
    registers, names = machine.registers, ins.words(0)
    if len(names) != n // 2:
        raise Fault(f"{len(names)} accumulators for m64n{n}: {ins.text}")
    in_registers = isinstance(ins.operands[1], tuple)
    scale, signs = _flags(machine, ins)
    b_source = registers.source(ins.word(2), "b64")
    a_names = ins.words(1) if in_registers else ()
    a_sources = [registers.source(name, "b32" if in_registers else "b64") for name in ins.words(1)]

    def run(active: Active) -> None:
        groups = whole(active, 128)
        words, readers, units = _read(machine, groups, _uniform(b_source, groups), n, split=False)
        b = wide(words, b_type).reshape(len(groups), n, -1)
        if in_registers:
            words = np.stack([s[groups.reshape(-1)] for s in a_sources]).reshape(4, -1, 32)
            a = fragment_a(words, a_type).reshape(len(groups), 64, -1)
        else:
            words, *of_a = _read(machine, groups, _uniform(a_sources[0], groups), 64, split=True)
            a = wide(words, a_type).reshape(len(groups), 64, -1)
            readers, units = (np.concatenate(pair) for pair in zip((readers, units), of_a, strict=True))
        old = machine.products.issue(groups, names, a_names)
        keep = _uniform(np.broadcast_to(scale(), machine.count), groups)
        total = a @ b.transpose(0, 2, 1) * signs
        if keep.any():
            kept = _matrix(old, d_type)
            total = np.where(keep[:, None, None], total + kept, total)
        result = total.astype(np.float32 if d_type == "f32" else np.int32)
        machine.products.finish(groups, names, _spread(result), readers, units)

    return run


def _flags(machine: Machine, ins: Instruction) -> tuple[Callable[[], Any], int]:
    """What reads scale-d, and the product of the two signs."""
    registers, word = machine.registers, ins.word(3)
    rest = [int(ins.word(i), 0) for i in range(4, len(ins.operands))]
    signs, transposed = (rest[:2] or [1, 1]), rest[2:]
    if any(transposed) or any(s not in (1, -1) for s in signs):
        raise NotImplementedError(ins.text)
    return lambda: registers.predicate(word), signs[0] * signs[1]


def _uniform(source: Any, groups: Array) -> Array:
    """One value for each warpgroup, whose threads must agree."""
    values = np.asarray(source)[groups] if np.ndim(source) else np.full(groups.shape, source)
    if (values != values[:, :1]).any():
        raise Fault("threads of a warpgroup disagree about an operand of wgmma", int(groups[0, 0]))
    return np.asarray(values[:, 0])


def _matrix(words: Array, d_type: str) -> Array:
    """Accumulators ``[register, warpgroup, warp, lane]`` as matrices ``[warpgroup, 64, n]``."""
    count, groups = words.shape[:2]
    values = wide(words, d_type)[..., 0].reshape(count // 4, 2, 2, groups, 4, 8, 4)
    return values.transpose(3, 4, 1, 5, 0, 6, 2).reshape(groups, 64, -1)


def _spread(matrix: Array) -> Array:
    """The reverse: ``[register, lanes]`` words."""
    groups, _, n = matrix.shape
    split = matrix.reshape(groups, 4, 2, 8, n // 8, 4, 2)
    return np.ascontiguousarray(split.transpose(4, 2, 6, 0, 1, 3, 5)).view(np.uint32).reshape(n // 2, -1)


def _wgmma(machine: Machine, ins: Instruction) -> Run:
    what = ins.opcode[1]
    if what == "fence":
        return machine.products.fence
    if what == "commit_group":
        return machine.products.commit
    if what == "wait_group":
        return lambda active: machine.products.wait(active, int(ins.word(0), 0))
    return _multiply(machine, ins)


BUILDERS = {"wgmma": _wgmma}
