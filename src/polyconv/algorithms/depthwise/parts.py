"""Extents in parts: the fewest near-equal ones that tiles take, and items for threads.

Generated code, prices and the tables of tiles must cut alike, so all three ways to say it stand here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from polyconv.kernels.language import INT, Module, Value
from polyconv.kernels.signature import Address, Signature
from polyconv.lowering.boxes import busiest, near_equal
from polyconv.lowering.program import Request, address_of
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Axis, Sweep

__all__ = ["ITEMS", "cut_for_threads", "near_equal_parts", "number_of_parts", "sizes_of_parts", "tiles_by_size"]

S = TypeVar("S", bound=Signature)

ITEMS = 4
"""Items that every thread has at least, if there are so many."""


@contextmanager
def near_equal_parts(k: Module, extent: Value, phases: Value, most: Value | int) -> Iterator[tuple[Value, Value]]:
    """Visit the fewest near-equal parts, each at most ``most``, of every phase of an extent: first and number.

    A phase is every ``phases``-th output: of a dilation, those that share inputs.
    """
    with k.loop(0, k.minimum(phases, extent)) as phase:
        outputs = (extent - phase.index + phases - 1) // phases
        parts = (outputs + (most - 1)) // most
        size, larger = outputs // parts, outputs % parts
        with k.loop(0, parts, carry=[k.constant(INT, 0)]) as part:
            (done,) = part.values
            this = size + k.cast("zext", part.index < larger, INT)
            yield phase.index + done * phases, this
            part.next(done + this)


def number_of_parts(extent: int, phases: int, most: int) -> int:
    """Parts that ``near_equal_parts`` visits."""
    size, larger = divmod(extent, phases)
    return larger * -(-(size + 1) // most) + (phases - larger) * -(-size // most)


def sizes_of_parts(axis: Axis, box: int, phases: int, most: int) -> set[int]:
    """Sizes of the parts that it visits, in boxes of so many outputs and in what the last of them leaves."""
    extents = min(box, axis.out), axis.out % box
    outputs = {n for extent in extents for n in (extent // phases, -(-extent // phases))}
    return {size for n in outputs for _, size in near_equal(n, most)}


def tiles_by_size(r: Request, name: str, signature: type[S], most: int, sizes: Iterable[int],
                  make: Callable[[Module, str, int], None], *, together: int = 1, mark: str = ""
                  ) -> Sequence[Address[S] | None]:  # fmt: skip
    """Addresses of tiles of 1 to ``most`` outputs; None for those that no part needs.

    Each is a kernel of its own, compiled in less than 50 ms.

    Parameters
    ----------
    name, mark : str
        Of the kernels, before and after the size.
    make : callable
        ``make(k, name, size)`` adds a tile to a module.
    together : int
        Neighbouring sizes that are compiled together once a layer has met other extents, which soon need them all.
    """
    needed = set(sizes)
    before: set[int] = r.once(("sizes of tiles", name, mark), set)
    varying: set[bool] = r.once("whether extents vary", set)
    if before and needed - before:
        varying.add(True)
    before |= needed
    together = together if varying else 1
    runs = {(most - size) // together for size in needed}

    def address(size: int) -> Address[S]:
        return address_of(r, f"{name} {size}{mark}", "tile", signature, lambda k, name: make(k, name, size))

    return [address(size) if (most - size) // together in runs else None for size in range(1, most + 1)]


def cut_for_threads(s: Situation, sweep: Sweep, box: tuple[int, ...], chunk: int, axis: int, least: int, unit: int = 1
                    ) -> tuple[int, ...]:  # fmt: skip
    """A box of ``chunk`` channels, cut along an axis into parts of ``least`` outputs at least, if threads need more.

    Parts are whole numbers of a ``unit``.  Of as many as threads need to twice as many, those of which the busiest
    thread has the fewest outputs: 28 rows are 14 parts of two for two threads, and not seven of four.
    """
    boxes = math.prod(-(-a.out // b) for a, b in zip(sweep, box, strict=True))
    items = (s.problem.n or 0) * -(-s.problem.m // chunk) * boxes
    if s.threads == 1 or items >= ITEMS * s.threads:
        return box
    units, wanted = max(1, -(-box[axis] // unit)), -(-ITEMS * s.threads // max(1, items))
    parts = range(min(wanted, units), min(2 * wanted, units) + 1)
    found = min(parts, key=lambda some: busiest(s.threads, items, units, some, 0.0))
    cut = max(least, unit * -(-units // found))
    return (*box[:axis], min(box[axis], cut), *box[axis + 1 :])
