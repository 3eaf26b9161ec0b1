"""Sizes of boxes, and of the panel and the slots that tiles with channels in the lanes have for them."""

from __future__ import annotations

from dataclasses import dataclass

from polyconv.algorithms.panel import header_bytes
from polyconv.algorithms.sweep import Lines

__all__ = ["RUN_PIXELS", "Sizes"]

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
    all_groups : bool
        Whether a box is of all groups, each of them a block of outputs.
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
    all_groups: bool = False
    splits: int = 1

    @property
    def workspace(self) -> int:
        """Bytes a thread needs."""
        return self.header + self.panel + self.slots + 128

    @property
    def header(self) -> int:
        """Bytes before the panel."""
        return header_bytes(len(self.box))
