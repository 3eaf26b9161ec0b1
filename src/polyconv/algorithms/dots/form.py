"""Forms whose tiles have channels in the lanes: sweeps with the sizes of their boxes, panels and slots.

It must not know how boxes are chosen, or what a block of outputs is made of.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from polyconv.algorithms.form import Form
from polyconv.dataclass import dataclass
from polyconv.kernels.isa import Arithmetic
from polyconv.lowering.panel import header_bytes
from polyconv.lowering.program import Program, Request, Step, program_of
from polyconv.lowering.sweep import Lines, Sweep

__all__ = ["RUN_PIXELS", "ChannelsForm", "Part", "Sizes"]

RUN_PIXELS = 256
"""Pixels that leave in one move at least, where rows follow each other in the result."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of one sweep's boxes.

    Parameters
    ----------
    box : tuple of int
        Outputs along every axis.
    held : tuple of Lines
        Lines that it needs.
    step : int
        Between neighbouring pixels of a line of the panel.
    planes : bool
        Whether words lie in planes.
    whole_lines : bool
        Whether the taps of a kernel's line follow each other without a gap, and are reduced over as one.
    pixel_bytes, line_bytes, plane_bytes : int
        Of a pixel, a line and a plane of the panel.
    panel : int
        Bytes of the panel.
    vectors, last_vectors, blocks : int
        Vectors of output channels of a block and of the last one, and blocks of a group.
    run_rows : int
        Rows of outputs that leave together, where they leave through slots.
    slots : int
        Bytes of these.
    beside : int
        Groups of a block of outputs, where a box is of all groups: of one, or of several whose outputs lie side by side
        in its vectors.  0 where a box is of a group.
    splits : int
        Parts into which the blocks of a box are cut, for threads.
    """

    box: tuple[int, ...]
    held: tuple[Lines, ...]
    step: int
    planes: bool
    whole_lines: bool
    pixel_bytes: int
    line_bytes: int
    plane_bytes: int
    panel: int
    vectors: int
    last_vectors: int
    blocks: int
    run_rows: int
    slots: int
    beside: int = 0
    splits: int = 1

    @property
    def all_groups(self) -> bool:
        """Whether a box is of all groups."""
        return self.beside > 0

    @property
    def group_blocks(self) -> int:
        """Blocks of output channels of a group."""
        return 1 if self.all_groups else self.blocks

    @property
    def workspace(self) -> int:
        """Bytes a thread needs."""
        return self.header + self.panel + self.slots + 128

    @property
    def header(self) -> int:
        """Bytes before the panel."""
        return header_bytes(len(self.box))


@dataclass(frozen=True, slots=True)
class Part:
    """A sweep, with the sizes of its boxes where channels lie together and where they lie in planes."""

    sweep: Sweep
    together: Sizes
    planes: Sizes


@dataclass(frozen=True, slots=True)
class ChannelsForm(Form):
    """Sweeps of outputs, each with the sizes of its boxes, and how words are multiplied."""

    parts: tuple[Part, ...]
    arith: Arithmetic

    @abstractmethod
    def cycles(self, sweep: Sweep, sizes: Sizes) -> tuple[float, float]:
        """Cycles of an image's products, with what follows sums, and of its moves."""

    @abstractmethod
    def step(self, r: Request, sweep: Sweep, sizes: Sizes, keep: list[Any]) -> Step:
        """Step of a sweep."""

    @property
    def arithmetic(self) -> str:
        """The name of how words are multiplied."""
        return self.arith.name

    @property
    def workspace(self) -> int:
        """Bytes a thread needs, however arrays lie."""
        return max((sizes.workspace for part in self.parts for sizes in (part.together, part.planes)), default=0)

    def cost(self) -> dict[str, float]:
        """Cycles: products, and one pass over input and output, which lie as the layout says."""
        p, products, moves = self.s.problem, 0.0, 0.0
        for part in self.parts:
            some, more = self.cycles(part.sweep, part.planes if p.layout == "NCHW" else part.together)
            products, moves = products + some, moves + more
        return {"products": products * (p.n or 0), "moves": moves * (p.n or 0)}

    @property
    def shown(self) -> Part:
        """What stands for all parts: the first that has taps, or the first."""
        return next((part for part in self.parts if all(axis.taps for axis in part.sweep)), self.parts[0])

    def choices(self) -> dict[str, object]:
        """Boxes of a sweep, which lies as the layout says."""
        if not self.parts:
            return {}
        part = self.shown
        sizes = part.planes if self.s.problem.layout == "NCHW" else part.together
        beside = {"groups side by side": sizes.beside} if sizes.beside > 1 else {}
        return {"box": sizes.box, **beside}

    def build(self, r: Request) -> Program:
        """Program of a request: one step per sweep."""
        keep: list[Any] = []
        together = r.x.c == r.x.itemsize
        return program_of(
            [self.step(r, part.sweep, part.together if together else part.planes, keep) for part in self.parts],
            self.workspace, keep,
        )  # fmt: skip
