"""Global memory with guard zones, and the shared memory of all blocks with a record of who used each word.

Addresses are checked here: bounds, alignment, arrays that may not be written, words that two threads use
with nothing between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .faults import AsyncFault, MemoryFault, Race
from .order import IN_FLIGHT, Order
from .registers import poison

__all__ = ["SHARED_BASE", "Global", "Region", "Shared"]

Array = NDArray[Any]
_UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

GLOBAL_BASE = 1 << 33
"""First global address: beyond 32 bits, so that a pointer cut to them is found."""

GUARD = 4096
"""Bytes between two arrays that belong to nobody."""

SHARED_BASE = 1024
"""First address of every block's shared memory."""

_NEVER_ORDERED = np.int32(2**31 - 1)


@dataclass(slots=True)
class Region:
    """An array in global memory."""

    name: str
    array: Array
    start: int
    size: int
    defined: Array | None = None
    stored: bool = False


class Global:
    """All arrays of a launch in one piece of bytes.

    Parameters
    ----------
    arrays : sequence of (name, array, written)
        In what order they lie; ``written`` is False for an array of which nothing may be read before the
        kernel has written it.
    """

    def __init__(self, arrays: Sequence[tuple[str, Array, bool]]) -> None:
        self.regions, at = list[Region](), GUARD
        for name, array, written in arrays:
            defined = None if written else np.zeros(array.nbytes, bool)
            self.regions.append(Region(name, array, at, array.nbytes, defined))
            at += -(-array.nbytes // 256) * 256 + GUARD
        self._bytes = np.zeros(at + 32, np.uint8)
        self._views = {size: self._bytes.view(dtype) for size, dtype in _UNSIGNED.items()}
        self._writer = np.zeros(at, np.int32)
        self._borders = np.array([r.start - GUARD // 2 for r in self.regions] or [at])
        for region in self.regions:
            self._bytes[region.start : region.start + region.size] = np.frombuffer(region.array.tobytes(), np.uint8)

    def address(self, region: Region) -> int:
        """What a kernel gets for the array."""
        return GLOBAL_BASE + region.start

    def copy_back(self) -> None:
        """The arrays as the kernel left them."""
        for region in self.regions:
            if region.stored:
                raw = self._bytes[region.start : region.start + region.size]
                region.array[...] = raw.view(region.array.dtype).reshape(region.array.shape)

    def _locate(self, lanes: Array, addresses: Array, size: int, align: int) -> tuple[Array, list[Region]]:
        """Offsets into the bytes, and the arrays they touch."""
        at = addresses.astype(np.int64) - GLOBAL_BASE
        if (at % align).any():
            k = int(np.flatnonzero(at % align)[0])
            raise MemoryFault(f"{size} bytes at {addresses[k]:#x}, which is no multiple of {align}", int(lanes[k]))
        which = np.searchsorted(self._borders, at, side="right") - 1
        met = np.unique(which)
        for i in met:
            here = which == i
            region = self.regions[max(i, 0)]
            wrong = here & ((at < region.start) | (at + size > region.start + region.size))
            if wrong.any() or not self.regions:
                k = int(np.flatnonzero(wrong)[0])
                raise MemoryFault(
                    f"{size} bytes at {at[k] - region.start} of {region.name}, which has {region.size}", int(lanes[k])
                )
        return at, [self.regions[i] for i in met]

    def load(
        self, lanes: Array, addresses: Array, item: int, count: int, threads: Array, align: int | None = None
    ) -> Array:
        """``count`` items of ``item`` bytes for each lane; ``threads`` numbers the lanes over the whole grid."""
        at, regions = self._locate(lanes, addresses, item * count, align or item * count)
        for region in regions:
            if region.stored or region.defined is not None:
                self._check_read(region, lanes, at, item * count, threads)
        return np.asarray(self._views[item][at[:, None] // item + np.arange(count)])

    def _check_read(self, region: Region, lanes: Array, at: Array, size: int, threads: Array) -> None:
        here = (at >= region.start) & (at < region.start + region.size)
        units = at[here, None] + np.arange(size)
        other = self._writer[units] * (self._writer[units] != threads[here, None] + 1)
        if other.any():
            k = int(np.flatnonzero(other.any(axis=1))[0])
            offset = int(at[here][k] - region.start)
            raise Race(f"reads byte {offset} of {region.name}, which another thread of this launch wrote",
                       int(lanes[here][k]))  # fmt: skip
        if region.defined is not None:
            unknown = ~region.defined[units - region.start].all(axis=1)
            if unknown.any():
                k = int(np.flatnonzero(unknown)[0])
                raise MemoryFault(f"reads byte {int(at[here][k] - region.start)} of {region.name}, never written",
                                  int(lanes[here][k]))  # fmt: skip

    def store(self, lanes: Array, addresses: Array, values: Array, threads: Array) -> None:
        """``values[lane, item]`` at each lane's address."""
        item, count = values.itemsize, values.shape[1]
        at, regions = self._locate(lanes, addresses, item * count, item * count)
        units = at[:, None] + np.arange(item * count)
        owner = (threads + 1)[:, None]
        before = self._writer[units]
        self._writer[units] = owner
        twice = (((before != 0) & (before != owner)) | (self._writer[units] != owner)).any(axis=1)
        if twice.any():
            k = int(np.flatnonzero(twice)[0])
            region = next(r for r in regions if r.start <= at[k] < r.start + r.size)
            raise Race(f"writes byte {int(at[k] - region.start)} of {region.name}, which another thread writes too",
                       int(lanes[k]))  # fmt: skip
        for region in regions:
            if not region.array.flags.writeable:
                raise MemoryFault(f"{region.name} may not be written", int(lanes[0]))
            region.stored = True
            if region.defined is not None:
                region.defined[np.unique(units) - region.start] = True
        self._views[item][at[:, None] // item + np.arange(count)] = values.view(_UNSIGNED[item])

    def piece(self, lane: int, address: int, size: int, align: int) -> Array:
        """Bytes that the copy engine reads for a lane."""
        at, _ = self._locate(np.array([lane]), np.array([address]), size, align)
        return self._bytes[int(at[0]) : int(at[0]) + size].copy()

    def bytes_of(self, region: Region) -> Array:
        """The bytes of an array as they are now."""
        return self._bytes[region.start : region.start + region.size]


class Shared:
    """Shared memory of every block on the axis.

    Parameters
    ----------
    blocks, threads, cluster, size : int
        Blocks on the axis, their threads, blocks of a cluster, bytes of one.
    grain : int
        Bytes that the record tells apart: the narrowest access of the kernel.
    order : Order
    """

    def __init__(self, blocks: int, threads: int, cluster: int, size: int, grain: int, order: Order) -> None:
        self.size, self.pitch = size, -(-max(size, 16) // 16) * 16
        self._threads, self._cluster, self._grain, self._order = threads, cluster, grain, order
        self.bytes = np.empty(blocks * self.pitch, np.uint8)
        poison(self.bytes)
        self.views = {n: self.bytes.view(dtype) for n, dtype in _UNSIGNED.items()}
        self._block = np.arange(blocks * threads) // threads
        units = blocks * self.pitch // grain
        self._units = self.pitch // grain
        self._writer = np.zeros(units, np.int32)
        self._clock = np.zeros(units, np.int32)
        self._generic = np.zeros(units, bool)
        self._write_stamp = np.zeros(units, np.int32)
        self._read_stamp = np.zeros(units, np.int32)
        self._readers = np.zeros((units, order.width // 32), np.int32)
        self._stamp = np.int32(1)
        self._synced = np.zeros(blocks, np.int32)
        self._ended = np.zeros(blocks, bool)

    # where an access lies
    def locate(self, lanes: Array, addresses: Any, size: int, *, align: int = 0, cluster: bool = False) -> Array:
        """Offsets of an access into ``bytes``.

        An address of the cluster window has one more than the rank of its block in bits 24 and up.
        """
        a = np.broadcast_to(addresses, lanes.shape).astype(np.int64)
        block = self._block[lanes]
        if cluster:
            rank = a >> 24
            block = np.where(rank > 0, block // self._cluster * self._cluster + rank - 1, block)
            if (rank > self._cluster).any():
                raise MemoryFault("a shared address of a block outside the cluster", int(lanes[rank.argmax()]))
            a = a & 0xFFFFFF
            if self._ended[block].any():
                raise Race("uses shared memory of a block that may have ended", int(lanes[self._ended[block]][0]))
        at = a - SHARED_BASE
        wrong = (at < 0) | (at + size > self.size) | (a % (align or size) != 0)
        if wrong.any():
            k = int(np.flatnonzero(wrong)[0])
            why = f"of {self.size}" if a[k] % (align or size) == 0 else f"is no multiple of {align or size}"
            raise MemoryFault(f"{size} bytes of shared memory at {at[k]} {why}", int(lanes[k]))
        return np.asarray(block * self.pitch + at)

    def units(self, offsets: Array, size: int) -> Array:
        """Recorded places of accesses of ``size`` bytes: one row each."""
        return np.asarray(offsets[:, None] // self._grain + np.arange(size // self._grain))

    # ordinary accesses
    def read(self, lanes: Array, offsets: Array, item: int, count: int) -> Array:
        """``count`` items a lane."""
        units = self.units(offsets, item * count)
        self.check_read(lanes, units)
        far = self._block[lanes] != offsets // self.pitch
        self._readers[units, (self._order.index[lanes] // 32)[:, None]] = (
            self._order.clock[lanes] << 5 | lanes & 31
        )[:, None]
        self._read_stamp[units] = self._stamp if not far.any() else np.where(far, _NEVER_ORDERED, self._stamp)[:, None]
        return np.asarray(self.views[item][offsets[:, None] // item + np.arange(count)])

    def write(self, lanes: Array, offsets: Array, values: Array) -> None:
        """``values[lane, item]``."""
        item, count = values.itemsize, values.shape[1]
        units = self.units(offsets, item * count)
        self.check_write(lanes, units)
        self.record_write(lanes, units, self._order.clock[lanes], generic=True)
        far = self._block[lanes] != offsets // self.pitch
        if far.any():
            self._write_stamp[units[far]] = _NEVER_ORDERED
        self.views[item][offsets[:, None] // item + np.arange(count)] = values.view(_UNSIGNED[item])

    # the record
    def synchronised(self, blocks: Array) -> None:
        """All threads of these blocks met: nothing before it can race with anything after it."""
        self._stamp += np.int32(1)
        self._synced[blocks] = self._stamp

    def _unordered(self, stamps: Array, lanes: Array, units: Array) -> tuple[Array, Array]:
        """Threads and places of accesses that the last meeting of the whole block does not settle."""
        home = units // self._units
        late = (stamps >= self._synced[home]) | (home != self._block[lanes][:, None])
        rows, columns = np.nonzero(late)
        return lanes[rows], units[rows, columns]

    def check_read(self, lanes: Array, units: Array, *, proxy: bool = False) -> None:
        """Report a write that is not ordered before this read."""
        who, where = self._unordered(self._write_stamp[units], lanes, units)
        if len(who):
            known = self._order.knows(who, self._writer[where], self._clock[where])
            self._report(known, who, where, self._writer[where], "reads", "wrote")
        if proxy:
            who, where = np.repeat(lanes, units.shape[1]), units.reshape(-1)
            generic = self._generic[where]
            who, where = who[generic], where[generic]
            self._check_fence(who, where)

    def _check_fence(self, who: Array, where: Array) -> None:
        fenced = self._order.fenced(who, self._writer[where], self._clock[where])
        if not fenced.all():
            k = int(np.flatnonzero(~fenced)[0])
            raise AsyncFault(
                f"the asynchronous proxy uses byte {self._byte(where[k])} of shared memory, which "
                f"{self._name(self._writer[where[k]])} wrote, without fence.proxy.async between", int(who[k]),
            )  # fmt: skip

    def check_write(self, lanes: Array, units: Array, *, proxy: bool = False) -> None:
        """Report a read or write that is not ordered before this write."""
        stamps = np.maximum(self._write_stamp[units], self._read_stamp[units])
        who, where = self._unordered(stamps, lanes, units)
        if len(who):
            known = self._order.knows(who, self._writer[where], self._clock[where])
            self._report(known, who, where, self._writer[where], "writes", "wrote")
            packed = self._readers[where]
            readers = (packed & 31) + np.arange(0, self._order.width, 32)
            known = self._order.knows(who[:, None], readers, packed >> 5)
            if not known.all():
                row, column = (int(v[0]) for v in np.nonzero(~known))
                self._report(known[row, [column]], who[[row]], where[[row]], readers[row, [column]], "writes", "reads")
        if proxy and (late := self._generic[units]).any():
            rows, columns = np.nonzero(late)
            self._check_fence(lanes[rows], units[rows, columns])

    def record_write(self, lanes: Array, units: Array, clocks: Any, *, generic: bool) -> None:
        """Note who wrote; report two lanes that write one place by one instruction."""
        index = self._order.index[lanes][:, None]
        self._writer[units] = index
        clash = self._writer[units] != index
        if clash.any():
            row, column = (int(v[0]) for v in np.nonzero(clash))
            where = units[row, [column]]
            self._report(np.array([False]), lanes[[row]], where, self._writer[where], "writes", "writes")
        self._clock[units] = np.reshape(clocks, (-1, 1))
        self._generic[units] = generic
        self._write_stamp[units] = self._stamp

    def begin_write(self, lanes: Array, offsets: Array, size: int, *, proxy: bool = False) -> Array:
        """An asynchronous write starts: until it lands the place holds NaN, and any use of it is a race."""
        units = self.units(offsets, size)
        self.check_write(lanes, units, proxy=proxy)
        self.record_write(lanes, units, IN_FLIGHT, generic=not proxy)
        self._write_stamp[units] = _NEVER_ORDERED
        raw = self.views[2]
        raw[offsets[:, None] // 2 + np.arange(size // 2)] = 0x7FFF
        return units

    def land(self, lanes: Array, offsets: Array, values: Array, clocks: Any, *, proxy: bool = False) -> None:
        """It lands: rows of bytes."""
        units = self.units(offsets, values.shape[1])
        self.record_write(lanes, units, clocks, generic=not proxy)
        if proxy and self._cluster > 1:
            self._write_stamp[units] = _NEVER_ORDERED
        self.bytes[offsets[:, None] + np.arange(values.shape[1])] = values

    def begin_read(self, lanes: Array, units: Array) -> None:
        """An asynchronous read starts: until it is waited for, any write is a race."""
        self.check_read(lanes, units, proxy=True)
        self.mark_read(lanes, units, IN_FLIGHT)

    def mark_read(self, lanes: Array, units: Array, clock: int | None = None) -> None:
        """Note readers, at their clocks or at a given one."""
        clocks = self._order.clock[lanes] if clock is None else np.full(len(lanes), clock, np.int32)
        self._readers[units, (self._order.index[lanes] // 32)[:, None]] = (clocks << 5 | lanes & 31)[:, None]
        self._read_stamp[units] = self._stamp if clock is None else _NEVER_ORDERED

    def end(self, block: int, lanes: Array) -> None:
        """A block ends: whoever read its memory from another block must have done so before."""
        self._ended[block] = True
        first, rank = block * self._units, block % self._cluster
        packed = self._readers[first : first + self._units].copy()
        slots = self._threads // 32
        packed[:, rank * slots : (rank + 1) * slots] = 0
        where, slot = np.nonzero(packed)
        readers = (packed[where, slot] & 31) + 32 * slot
        known = self._order.last_known(lanes)[readers] >= packed[where, slot] >> 5
        if not known.all():
            k = int(np.flatnonzero(~known)[0])
            raise Race(f"the block ends while {self._name(readers[k])} may still read byte "
                       f"{self._byte(first + where[k])} of its shared memory", int(lanes[0]))  # fmt: skip

    def _report(self, known: Array, who: Array, where: Array, others: Array, verb: str, past: str) -> None:
        if not known.all():
            k = int(np.flatnonzero(~known)[0])
            raise Race(
                f"{verb} byte {self._byte(where[k])} of shared memory, which {self._name(others[k])} {past} with "
                f"nothing between that orders the two", int(who[k]),
            )  # fmt: skip

    def _byte(self, unit: Any) -> int:
        return int(unit) % self._units * self._grain

    def _name(self, index: Any) -> str:
        block = f" of block {int(index) // self._threads} of the cluster" if self._cluster > 1 else ""
        return f"thread {int(index) % self._threads}{block}"
