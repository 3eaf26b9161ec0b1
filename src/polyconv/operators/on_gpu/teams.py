"""Threads of a block as teams: each takes a line of elements together, through shared memory.

Where elements of a line lie beside each other, a whole block is one team; where lines lie side by side, 32 teams stand
next to each other, so that neighbouring threads read neighbouring elements either way.  Which thread adds what, and in
which order, follows from the extents alone.  It must not know what is taken together.
"""

from __future__ import annotations

from collections.abc import Callable

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.gpu.kernels.finish import ELEMENTS
from polyconv.gpu.language import Kernel, Pointer, Type, Value
from polyconv.operators.along import Along, joined
from polyconv.operators.on_gpu.walk import Walk

__all__ = ["OfTeams", "Teams", "loaded", "stored", "summed_in", "teams_of", "walks_of"]

Join = Callable[[Value, Value], Value]


@dataclass(frozen=True, slots=True)
class Teams:
    """Teams of a block, side by side, and the threads of each; powers of two."""

    across: int
    along: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.across * self.along

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return self.threads * 8

    def line(self, k: Kernel, lines: Walk) -> Value:
        """The number of a thread's line."""
        return lines.counted(k, k.block[0]) * self.across + lines.counted(k, k.thread % self.across)

    def member(self, k: Kernel) -> Value:
        """The number of a thread in its team."""
        return k.thread // self.across

    def over(self, k: Kernel, line: Walk, start: Value, join: Join, of: Callable[[Value], Value]) -> Value:
        """What ``of`` finds of the elements of a line that a thread has, joined one after another."""
        total = k.variable(start, start.type)
        size = k.numbers[f"{line.name}size"]
        end = size if line.index.bytes == 8 else k.cast("trunc", size, line.index)
        with k.loop(line.counted(k, self.member(k)), end, self.along) as each:
            total.set(join(total.get(), of(each)))
        return total.get()

    def together(self, k: Kernel, value: Value, join: Join) -> Value:
        """The values of a team joined, for each of its threads; all threads of the block come here."""
        size, member = value.type.bytes, self.member(k)
        own = k.base + k.thread * size
        k.store_shared(own, [value])
        k.barrier()
        half = self.along // 2
        while half:
            with k.when(member < half):
                (mine,) = k.load_shared(own, 0, 1, value.type)
                (other,) = k.load_shared(own, half * self.across * size, 1, value.type)
                k.store_shared(own, [join(mine, other)])
            k.barrier()
            half //= 2
        (found,) = k.load_shared(k.base + k.thread % self.across * size, 0, 1, value.type)
        k.barrier()
        return found


def teams_of(step: int, size: int, length: int) -> Teams:
    """Teams for lines of a length, whose elements lie so many bytes apart."""
    if step == size or length == 1:
        return Teams(1, 32 if length <= 256 else 128 if length <= 4096 else 512)
    return Teams(32, 1 if length <= 4 else 8)


def walks_of(extents: tuple[list[int], list[int]], x: tuple[Along, Along], y: tuple[Along, Along], size: int
             ) -> tuple[Walk, Walk]:  # fmt: skip
    """The space of lines and that of a line, of an input and a result, each as extents and steps of both."""
    lines, of_lines = joined(extents[0], [x[0], y[0]])
    line, of_line = joined(extents[1], [x[1], y[1]])
    return (
        Walk(tuple(lines), tuple(o.strides for o in of_lines), (size, size)),
        Walk(tuple(line), tuple(o.strides for o in of_line), (size, size), "line_"),
    )


def summed_in(dtype: str) -> str:
    """The type of at least 32 bits in which elements are taken together."""
    row = DTYPES[dtype]
    return dtype if row.bits >= 32 else "f32" if row.is_float else f"{row.kind}32"


class OfTeams:
    """How kernels are launched that have a line of elements for each team."""

    __slots__ = ()
    lines: Walk
    teams: Teams
    cluster = 1

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.teams.threads

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return self.teams.shared

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks."""
        return -(-self.lines.size // self.teams.across), 1, 1


def loaded(k: Kernel, dtype: str, wide: Type, place: Pointer) -> Value:
    """An element in the type in which it is taken together."""
    value = k.load(ELEMENTS[dtype], place)
    if value.type == wide:
        return value
    return k.cast("fpext" if wide.is_float else "zext" if DTYPES[dtype].kind == "u" else "sext", value, wide)


def stored(k: Kernel, value: Value, dtype: str, place: Pointer) -> None:
    """Store what was taken together as an element."""
    kind = ELEMENTS[dtype]
    narrow = value if value.type == kind else k.cast("fptrunc" if kind.is_float else "trunc", value, kind)
    k.store(narrow, place)
