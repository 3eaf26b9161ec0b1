"""Convolution of stride 1 along planes: patches of the image in shared memory, products on shifted views of them.

A block owns ``height`` by ``width`` outputs, in squares of 8 by 8, and ``columns`` output channels.  For each 128 bytes
of channels (and each tap along a third axis) the copy engine brings the patch that all taps of the plane read, zeros
for padding; for each tap, its weights, which lie packed as they are read.  A tap is another start address of the
same patch: 8 pixels of a row are what ``wgmma`` takes together, and from row to row it is told any step.  So an input
travels once per block and not once per tap.

Three passes, parts and the shares of a cluster are as in ``gemm``.
"""

from __future__ import annotations

from polyconv.dataclass import dataclass
from polyconv.gpu.geometry import Geometry, OfGeometry
from polyconv.gpu.kernels.arithmetic import ARITHMETIC, Arithmetic
from polyconv.gpu.kernels.patch_block import PATCHES, ROW, Block
from polyconv.gpu.language import Kernel

__all__ = ["Patch", "PatchTile"]

@dataclass(frozen=True, slots=True)
class PatchTile:
    """Shape of a kernel.

    Parameters
    ----------
    arithmetic : str
        Row of ``ARITHMETIC`` that warp groups have.
    height, width : int
        Outputs of a block, multiples of 8.
    columns : int
        Output channels of a block.
    groups : int
        Warp groups that share the squares.
    slots : int
        Taps whose weights lie in shared memory.
    parts, split : int
        Into which a sum is divided, and blocks that share it: as many, or one.
    """

    arithmetic: str
    height: int
    width: int
    columns: int
    groups: int = 1
    slots: int = 4
    parts: int = 1
    split: int = 1

    def __str__(self) -> str:
        return (
            f"{self.arithmetic} {self.height}x{self.width}x{self.columns} g{self.groups} s{self.slots} "
            f"split{self.split}" + (f" of {self.parts}" if self.parts != self.split else "")
        )


@dataclass(frozen=True)
class Patch(OfGeometry):
    """A kernel to make.

    Parameters
    ----------
    g : Geometry
        One group, of two or three axes, stride 1 along the last two; channels lie together and fill 128 bytes.
    tile : PatchTile
    """

    g: Geometry
    tile: PatchTile

    @property
    def arithmetic(self) -> Arithmetic:
        """In what is multiplied."""
        return ARITHMETIC[self.tile.arithmetic]

    @property
    def channels(self) -> int:
        """Of a patch."""
        return ROW // self.arithmetic.bytes

    @property
    def parts(self) -> int:
        """Numbers that a weight is kept as."""
        return 2 if self.arithmetic.three else 1

    @property
    def box(self) -> tuple[int, int]:
        """Height and width of a patch."""
        above, across = self.g.axes[-2:]
        tile = self.tile
        return tile.height + (above.taps - 1) * above.dilation, tile.width + (across.taps - 1) * across.dilation

    @property
    def patch_bytes(self) -> int:
        """Of a patch, up to a multiple of what a swizzle repeats after."""
        height, width = self.box
        return -(-height * width * ROW // 1024) * 1024

    @property
    def slot_bytes(self) -> int:
        """Of the weights of a tap."""
        return self.tile.columns * ROW * self.parts

    @property
    def barriers(self) -> int:
        """Where barriers lie in shared memory."""
        rows = self.tile.height * self.tile.width
        return max(PATCHES * self.patch_bytes + self.tile.slots * self.slot_bytes, rows * self.pitch)

    @property
    def pitch(self) -> int:
        """Bytes of a row of sums."""
        return (self.tile.columns + 8) * 4

    @property
    def shape(self) -> str:
        """The tile, in short."""
        return str(self.tile)

    @property
    def name(self) -> str:
        """All that shapes the code."""
        return f"patch {self.tile} {self.g}"

    @property
    def threads(self) -> int:
        """Of a block: warp groups, and the warp that copies."""
        return 128 * self.tile.groups + 32

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return self.barriers + 16 * (PATCHES + self.tile.slots)

    @property
    def cluster(self) -> int:
        """Blocks that reach each other's shared memory."""
        return self.tile.split

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks."""
        total = self.tile.split * self.across * self.g.n
        for extent in self.tiles:
            total *= extent
        return total, 1, 1

    @property
    def across(self) -> int:
        """Tiles of output channels."""
        return -(-self.g.m // self.tile.columns)

    @property
    def tiles(self) -> tuple[int, ...]:
        """Tiles along every axis."""
        above, across = self.g.axes[-2:]
        plane = -(-above.out // self.tile.height), -(-across.out // self.tile.width)
        return (*(axis.out for axis in self.g.axes[:-2]), *plane)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the pointers it takes; behind them comes the tensor map."""
        return self.g.arguments

    @property
    def map(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], str]:
        """What the tensor map is made of: extents, steps in bytes (both from the channels out), box, type."""
        g, size = self.g, self.arithmetic.bytes
        extents = (g.c, *(axis.inp for axis in reversed(g.axes)), g.n)
        steps: list[int] = []
        inner = g.c * size
        for extent, step in zip(extents[1:], (*reversed(g.x.spatial), g.x.n), strict=True):
            steps.append(step * size if extent > 1 else inner)  # the step of an extent of 1 is anything
            inner = steps[-1] * extent
        height, width = self.box
        return extents, tuple(steps), (self.channels, width, height, *(1,) * (len(g.axes) - 1)), self.arithmetic.staged

    @property
    def plane_taps(self) -> int:
        """Taps that read one patch."""
        return self.g.axes[-2].taps * self.g.axes[-1].taps

    @property
    def steps(self) -> int:
        """Taps of the whole sum, of each 128 bytes of channels."""
        return self.g.taps * (self.g.c // self.channels)

    def kernel(self) -> Kernel:
        """The kernel."""
        tile = self.tile
        k = Kernel("convolution", self.arguments, self.threads, has_map=True, cluster=tile.split, shared=self.shared)
        at, rank = k.block[0], k.value(0)
        if tile.split > 1:
            at, rank = at // tile.split, at % tile.split
        column, at = (at % self.across, at // self.across) if self.across > 1 else (k.value(0), at)
        first = []
        for extent, size in zip(reversed(self.tiles), (tile.width, tile.height, *(1,) * len(self.tiles)), strict=False):
            first.append((at % extent) * size if extent > 1 else k.value(0))
            at = at // extent if extent > 1 else at
        block = Block(k, self, rank, column, tuple(reversed(first)), at)
        block.run()
        return k
