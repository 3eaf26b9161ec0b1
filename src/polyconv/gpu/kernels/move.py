"""Arrays in another order: inputs channels last, weights as kernels read them.

``Arrange`` writes its result in order, each element from wherever it lies: for weights, and inputs whose channels lie
together.  ``Turn`` reads runs of pixels and writes runs of channels, through a tile of shared memory: for planes.
Both convert, and fill with zeros what the source does not have.  Extents and steps are told to a launch, so that a new
layer needs no new code for them.
"""

from __future__ import annotations

import math
from typing import ClassVar

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES, Dtype
from polyconv.gpu.kernels.finish import ELEMENTS
from polyconv.gpu.language import F32, I32, I64, Kernel, Pointer, Type, Value

__all__ = ["Arrange", "Axis", "Turn", "converted", "widened"]

_THREADS = 256


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of the result: its extent, the step in the source, how many of it the source has; in zero points."""

    extent: int
    step: int
    held: int
    zero_step: int = 0


@dataclass(frozen=True, slots=True)
class Arrange:
    """Elements of a source in the order of a result, without gaps.

    The code depends on types and the number of axes alone: extents and steps are told to a launch.

    Parameters
    ----------
    axes : tuple of Axis
        Of the result, outermost first; steps in elements, which may be negative.
    source, target : str
        Types, names of ``DTYPES``.
    first : int
        Element of the source at which the result begins.
    halves : bool
        Whether the result has two parts: the upper 11 bits of each f32, then what they leave (``units``).
    swizzled : bool
        Whether the last axes are rows, pieces and elements, and piece j of row r lies at place j ^ (r % 8).
    zero : str
        How zero points come that integers are less, a word of ``Quantities``; of ``each`` the axes have steps.
    """

    axes: tuple[Axis, ...]
    source: str
    target: str
    first: int = 0
    halves: bool = False
    swizzled: bool = False
    zero: str = ""
    threads: ClassVar[int] = _THREADS
    shared: ClassVar[int] = 0
    cluster: ClassVar[int] = 1

    @property
    def told(self) -> tuple[Axis, ...]:
        """Axes that kernels are told of: those of extent 1 say nothing."""
        return tuple(axis for axis in self.axes if axis.extent != 1)

    @property
    def index(self) -> Type:
        """Type in which elements are counted."""
        return I32 if self.size < 1 << 31 else I64

    @property
    def name(self) -> str:
        """All that shapes the code."""
        how = " in halves" * self.halves + " swizzled" * self.swizzled + f" less {self.zero}" * bool(self.zero)
        return f"arrange {self.source} as {self.target}{how}, {len(self.told)} axes, counted in {self.index}"

    @property
    def size(self) -> int:
        """Elements of the result, or of one of its parts."""
        return math.prod(axis.extent for axis in self.axes)

    @property
    def bytes(self) -> int:
        """Of the result."""
        return self.size * DTYPES[self.target].itemsize * (2 if self.halves else 1)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks."""
        return -(-self.size // _THREADS), 1, 1

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the pointers it takes."""
        return "source", "target", *(("zero",) if self.zero in ("one", "each") else ())

    @property
    def numbers(self) -> dict[str, int]:
        """What a launch is told."""
        told = {"size": self.size, "first": self.first}
        for i, axis in enumerate(self.told):
            told |= {f"extent{i}": axis.extent, f"step{i}": axis.step, f"held{i}": axis.held}
            told |= {f"zero{i}": axis.zero_step} if self.zero == "each" else {}
        return told | _told_zero(self.zero)

    def kernel(self) -> Kernel:
        """The kernel."""
        k = Kernel("arrange", self.arguments, _THREADS, numbers=tuple(self.numbers))
        wide = self.index

        def counted(name: str) -> Value:
            return k.numbers[name] if wide == I64 else k.cast("trunc", k.numbers[name], I32)

        block, thread = (v if wide == I32 else k.cast("zext", v, I64) for v in (k.block[0], k.thread))
        index = block * _THREADS + thread
        with k.when(index.below(counted("size"))):
            rest, at = index, k.numbers["first"]
            held = index.equals(index)
            found = {}
            for i in reversed(range(len(self.told))):
                found[i], rest = rest % counted(f"extent{i}"), rest // counted(f"extent{i}")
            if self.swizzled:
                row, piece = len(self.told) - 3, len(self.told) - 2
                found[piece] = found[piece] ^ (found[row] & 7)
            for i, here in found.items():
                held = held & here.below(counted(f"held{i}"))
                at = at + (here if wide == I64 else k.cast("zext", here, I64)) * k.numbers[f"step{i}"]
            source, target = DTYPES[self.source], DTYPES[self.target]
            place = k.select(held, at, k.numbers["first"])
            value = k.load(ELEMENTS[source.name], Pointer("source", place * source.itemsize))
            value = converted(k, value, source, target)
            if self.zero:
                value = value - _zero(k, self.zero, self._of_zero(k, found), source, target)
            value = k.select(held, value, 0)
            whole = index if wide == I64 else k.cast("zext", index, I64)
            self._store(k, value, Pointer("target", whole * target.itemsize))
        return k

    def _of_zero(self, k: Kernel, found: dict[int, Value]) -> Value:
        """The number of an element's zero point."""
        at = k.value(0, I64)
        if self.zero == "each":
            for i, here in found.items():
                at = at + (here if here.type == I64 else k.cast("zext", here, I64)) * k.numbers[f"zero{i}"]
        return at

    def _store(self, k: Kernel, value: Value, place: Pointer) -> None:
        if not self.halves:
            k.store(value, place)
            return
        bits = k.cast("bitcast", value, I32)
        high = k.cast("bitcast", (bits + 0x1000) & -0x2000, F32)
        finite = (value - value).equals(0.0) & (high - high).equals(0.0)  # what rounds up to Inf is kept whole
        low = value - high
        k.store(k.select(finite, high, value), place)
        k.store(k.select(finite, low, 0.0), place + k.numbers["size"] * 4)


_SIDE = 32
"""Pixels, and channels, of a tile that is turned."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Planes of an image as pixels of ``groups`` times ``padded`` channels.

    Parameters
    ----------
    n, groups, c, padded : int
        Batch, groups, channels of a group, and so many with the zeros that follow them.
    extents : tuple of int
        Spatial.
    batch, channel : int
        Steps of the source, in elements.
    spatial : tuple of int
    source, target : str
        Types.
    zero : str
        How the zero point comes that integers are less, a word of ``Quantities``.
    """

    n: int
    groups: int
    c: int
    padded: int
    extents: tuple[int, ...]
    batch: int
    channel: int
    spatial: tuple[int, ...]
    source: str
    target: str
    zero: str = ""
    threads: ClassVar[int] = _THREADS
    cluster: ClassVar[int] = 1

    @property
    def name(self) -> str:
        """All that shapes the code."""
        less = f" less {self.zero}" * bool(self.zero)
        return f"turn {self.source} as {self.target}{less}, {len(self.extents)} axes"

    @property
    def numbers(self) -> dict[str, int]:
        """What a launch is told."""
        told = {
            "pixels": self.pixels, "channels": self.groups * self.padded, "c": self.c, "padded": self.padded,
            "batch": self.batch, "channel": self.channel,
        }  # fmt: skip
        for i, (extent, step) in enumerate(zip(self.extents, self.spatial, strict=True)):
            told |= {f"extent{i}": extent, f"step{i}": step}
        return told | _told_zero(self.zero)

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return _SIDE * _pitch(DTYPES[self.target])

    @property
    def pixels(self) -> int:
        """Of one image."""
        return math.prod(self.extents)

    @property
    def bytes(self) -> int:
        """Of the result."""
        return self.n * self.pixels * self.groups * self.padded * DTYPES[self.target].itemsize

    @property
    def grid(self) -> tuple[int, int, int]:
        """Blocks."""
        return self.n * self._tiles[0] * self._tiles[1], 1, 1

    @property
    def _tiles(self) -> tuple[int, int]:
        return -(-self.pixels // _SIDE), -(-self.groups * self.padded // _SIDE)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the pointers it takes."""
        return "source", "target", *(("zero",) if self.zero in ("one", "each") else ())

    def kernel(self) -> Kernel:
        """The kernel: 32 by 32 elements a block; rows of the tile are one longer, so that columns use all banks."""
        source, target = DTYPES[self.source], DTYPES[self.target]
        kept = _kept(target)
        pitch = _pitch(target)
        k = Kernel("turn", self.arguments, _THREADS, numbers=tuple(self.numbers), shared=self.shared)
        pixels, channels, c_held, padded = (
            k.cast("trunc", k.numbers[name], I32) for name in ("pixels", "channels", "c", "padded")
        )
        lane, row = k.thread % _SIDE, k.thread // _SIDE
        across, down = ((extent + (_SIDE - 1)) // _SIDE for extent in (pixels, channels))
        of_pixels, rest = k.block[0] % across, k.block[0] // across
        of_channels, image = rest % down, rest // down
        rows = _THREADS // _SIDE
        for turn in range(_SIDE // rows):
            held = row + turn * rows
            pixel, channel = of_pixels * _SIDE + lane, of_channels * _SIDE + held
            group, c = channel // padded, channel % padded
            value = k.variable(0, kept)
            with k.when(pixel.below(pixels) & channel.below(channels) & c.below(c_held)):
                at = self._in_source(k, image, pixel, group * c_held + c)
                loaded = k.load(ELEMENTS[source.name], Pointer("source", at * source.itemsize))
                moved = converted(k, loaded, source, target)
                if self.zero:
                    moved = moved - _zero(k, self.zero, None, source, target)
                value.set(_as_kept(k, moved, target))
            k.store_shared(k.base + held * pitch + lane * kept.bytes, [value.get()])
        k.barrier()
        for turn in range(_SIDE // rows):
            held = row + turn * rows
            pixel, channel = of_pixels * _SIDE + held, of_channels * _SIDE + lane
            with k.when(pixel.below(pixels) & channel.below(channels)):
                (value_there,) = k.load_shared(k.base + lane * pitch + held * kept.bytes, 0, 1, kept)
                at = k.cast("zext", image, I64) * k.numbers["pixels"] + k.cast("zext", pixel, I64)
                at = at * k.numbers["channels"] + k.cast("zext", channel, I64)
                k.store(_from_kept(k, value_there, target), Pointer("target", at * target.itemsize))
        return k

    def _in_source(self, k: Kernel, image: Value, pixel: Value, channel: Value) -> Value:
        at = k.cast("zext", image, I64) * k.numbers["batch"] + k.cast("zext", channel, I64) * k.numbers["channel"]
        rest = pixel
        for i in reversed(range(len(self.extents))):
            extent = k.cast("trunc", k.numbers[f"extent{i}"], I32)
            at = at + k.cast("zext", rest % extent if i else rest, I64) * k.numbers[f"step{i}"]
            rest = rest // extent if i else rest
        return at


def _told_zero(how: str) -> dict[str, int]:
    return {"zero": 0} if how == "number" else {}


def _zero(k: Kernel, how: str, number: Value | None, source: Dtype, target: Dtype) -> Value:
    """A zero point in the type of the result."""
    if how == "number":
        return converted(k, k.numbers["zero"], DTYPES["i64"], target)
    place = Pointer("zero") if number is None else Pointer("zero", number * source.itemsize)
    return converted(k, k.load(ELEMENTS[source.name], place), source, target)


def converted(k: Kernel, value: Value, source: Dtype, target: Dtype) -> Value:
    """A value in another type of the same kind; integers keep their value where the target holds it."""
    element = ELEMENTS[target.name]
    if value.type == element:
        return value
    if target.is_float:
        return k.cast("fpext" if target.bits > source.bits else "fptrunc", value, element)
    if target.bits < source.bits:
        return k.cast("trunc", value, element)
    return k.cast("zext" if source.kind == "u" else "sext", value, element)


def widened(k: Kernel, value: Value, source: Dtype, sum_: Type) -> Value:
    """An input or weight in the type of sums."""
    names = {"float": "f32", "double": "f64", "i32": "i32", "i64": "i64"}
    return converted(k, value, source, DTYPES[names[sum_.element]])


def _kept(target: Dtype) -> Type:
    """Type in which an element lies in the tile: 4 bytes at least."""
    return I64 if target.bits == 64 else I32


def _pitch(target: Dtype) -> int:
    return (_SIDE + 1) * _kept(target).bytes


def _as_kept(k: Kernel, value: Value, target: Dtype) -> Value:
    if value.type.is_float:
        value = k.cast("bitcast", value, value.type.of(f"i{target.bits}"))
    return k.cast("zext", value, I32) if target.bits < 32 else value


def _from_kept(k: Kernel, value: Value, target: Dtype) -> Value:
    element = ELEMENTS[target.name]
    if target.bits < 32:
        value = k.cast("trunc", value, element.of(f"i{target.bits}"))
    return k.cast("bitcast", value, element) if element.is_float else value
