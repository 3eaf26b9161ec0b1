"""What an algorithm is asked and what it answers: requests, steps of native work, programs.

A program is a list of steps; a step is a driver, its table of words and a number of independent
items, each writing its own outputs.  Nothing here runs anything.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.bands import bands, bands_table, whole_bands
from polyconv.algorithms.panel import (
    Ahead,
    AxisWords,
    Common,
    Driver,
    EpilogueTables,
    ListWords,
    RowLists,
    RunWords,
)
from polyconv.algorithms.sweep import Axis, Lines, Sweep
from polyconv.dtypes import DTYPES
from polyconv.kernels.fused import FusedTile, Walk, WordWalk, fused_channel_tile, fused_pixel_tile
from polyconv.kernels.isa import ARITHMETIC, Arithmetic, lanes, pixel_tiles, run_tiles
from polyconv.kernels.isa import channel_tile as most_rows
from polyconv.kernels.language import Module, Type
from polyconv.kernels.layout import Epilogue, Move, MoveIn, MoveOut, move
from polyconv.kernels.objects import kernel
from polyconv.kernels.record import words, words_of
from polyconv.kernels.signature import Address, Signature
from polyconv.kernels.tile import EdgeTile, PanelTile, channel_tile, edge_tile, pixel_tile
from polyconv.kernels.unzip import ListedMoveIn, ListedMoveOut, MoveApart, move_apart, move_listed
from polyconv.machine.host import profile_in_force
from polyconv.machine.profile import Profile, Rates
from polyconv.problem.hashed import Hashed
from polyconv.problem.problem import Problem
from polyconv.runtime.arrays import aligned
from polyconv.target import Target

__all__ = [
    "FREE_BYTES", "MOST_LISTED", "Late", "Operand", "Program", "Request", "Situation", "Step", "accumulator_arithmetic",
    "ahead_words", "along_in", "along_out", "apart_cycles", "arith_of", "boxes", "bytes_between", "edge_address",
    "far_cycles", "fused_address", "image_bytes", "is_apart", "is_fusible", "listed_in_address", "listed_out_address",
    "move_in_address", "move_out_address", "near_equal", "near_equal_sizes", "of_one_image", "one_step", "own_bound",
    "places_of", "planes_collide", "program_of", "row_lists", "rows_follow", "rows_together", "scheme_of",
    "thread_parts", "tile_addresses", "tile_cycles", "transform_refusal", "word_address", "zeros",
]  # fmt: skip

FREE_BYTES = 64 << 10
"""Workspace a thread may always use; it does not count against a limit."""


@dataclass(frozen=True, slots=True)
class Operand:
    """Byte strides of a tensor: batch, channel and spatial, and the offset of its first element."""

    n: int
    c: int
    spatial: tuple[int, ...]
    offset: int
    itemsize: int


@dataclass(frozen=True, slots=True)
class Situation(Hashed):
    """All that choosing an algorithm may depend on.

    Parameters
    ----------
    problem : Problem
        With known extents.
    target : Target
    limit : int or None
        Most workspace bytes of one thread beyond ``FREE_BYTES``; None for no limit.
    threads : int
        Most threads that will share the items; no bits may depend on it.
    strict : bool
        Accuracy "strict": subnormals kept, own error bounds only.
    finite : bool
        Whether all weights are finite.
    once : bool
        The weights come anew with each call, which then also prepares them; else a layer does, for all calls.
    chance : int or None
        A seed by which an algorithm then chooses among its forms, and how large it takes caches to be; None to choose
        by price and for real caches.  For tests: each form must be right wherever it can be built, and with small
        caches a small problem has several boxes.
    narrow : bool
        Whether all weights, of integers of 8 bits less their zero points, are numbers of i8.
    light : bool
        Whether sums of products of those, with inputs less their zero point, stay below 2^25.
    profile : Profile
        What the machine can do, of which prices are made; by default that in force.
    """

    problem: Problem
    target: Target
    limit: int | None = None
    threads: int = 1
    strict: bool = False
    finite: bool = True
    once: bool = False
    chance: int | None = None
    narrow: bool = True
    light: bool = True
    profile: Profile = field(default_factory=profile_in_force)

    __hash__ = Hashed.__hash__

    def rates(self, arith: Arithmetic) -> Rates:
        """What the machine does in a cycle with vectors of an arithmetic."""
        return self.profile.rates_of(self.target.level, arith.rates or arith.name)

    def transforming(self, arith: Arithmetic) -> float:
        """How much longer transforms take than where they were measured: a multiply-add is one or two instructions."""
        instructions = 1.0 if self.target.has_fma else 2.0
        return max(1.0, self.rates(arith).slower / instructions)

    def budget(self, preferred: int) -> int:
        """Workspace bytes a thread may plan with."""
        near = self.near(preferred)
        return near if self.limit is None else min(near, self.limit + FREE_BYTES)

    def cache(self, level: str, share: float) -> int:
        """``near`` of a share of one of the machine's caches: ``l1``, ``l2`` or ``l3``."""
        return self.near(round(share * self.profile.numbers[f"{level}.bytes"]))

    def near(self, size: int) -> int:
        """Bytes that decide how work is cut and what is asked for early, but no value of a result."""
        return size if self.chance is None else max(1, size >> 4 * (_lot(self.chance, size) % 5))

    def price(self, form: object, cycles: float) -> float:
        """What decides among forms, the lowest wins: predicted cycles, or a lot where that is left to chance."""
        return cycles if self.chance is None else float(_lot(self.chance, form))


def of_one_image(s: Situation) -> Situation:
    """A situation without what no choice may depend on."""
    return s if s.problem.n == 1 == s.threads else _alone(s)


@lru_cache(1024)
def _alone(s: Situation) -> Situation:
    return replace(s, problem=replace(s.problem, n=1), threads=1)


def _lot(seed: int, thing: object) -> int:
    """A number that seems random, the same in each process: from a seed and what it is drawn for."""
    return zlib.crc32(f"{seed} {thing!r}".encode())


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Late:
    """Packed weights that native code makes when it first needs them, which is seldom.

    Parameters
    ----------
    weights : array
        Where they go: zeros that nobody has touched.
    words : array
        What packs them; the first says whether they are there.
    source : array
        What they are packed from.
    keep : tuple
        What else the words point to.
    """

    weights: NDArray[Any]
    words: NDArray[np.int64]
    source: NDArray[Any]
    keep: tuple[Any, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the weights, once they are there."""
        return int(self.weights.nbytes) if self.words[0] else 0


@dataclass(frozen=True, slots=True)
class Request:
    """A convolution to be made into a program.

    Parameters
    ----------
    situation : Situation
    arithmetic : str
        Row of ``ARITHMETIC``.
    x, y : Operand
    residual : Operand or None
    check : bool
        Use kernels with bounds checks.
    packed : callable
        ``packed(key, make)``: the array kept under a key, made on first use.
    late : callable
        As ``packed``, for weights that few calls need.
    weights : callable
        ``weights(sweep)``: weights of a sweep as (groups, m/groups, c/groups, taps), in the accumulator's
        type (bf16 for dot products of bf16 pairs).
    bias, scale, constants : arrays
        Per output channel in the accumulator's type; float32 multipliers; activation parameters or zero
        point in 8-byte slots.
    zero_point : int
        Of the input.
    run : callable
        ``run(step, scratch, threads)``: do a step at once, with so many bytes of workspace for each thread.
    offset, mask : Operand or None
        Of a deformable convolution.
    channels : (int, int)
        Channels of input and result where the problem's are rounded up; else 0.
    """

    situation: Situation
    arithmetic: str
    x: Operand
    y: Operand
    residual: Operand | None
    check: bool
    packed: Callable[[Any, Callable[[], NDArray[Any]]], NDArray[Any]]
    late: Callable[[Any, Callable[[], Late]], Late]
    weights: Callable[[Sweep], NDArray[Any]]
    bias: NDArray[Any] | None
    scale: NDArray[Any] | None
    constants: NDArray[Any]
    zero_point: int
    run: Callable[[Step, int, int], object]
    offset: Operand | None = None
    mask: Operand | None = None
    channels: tuple[int, int] = (0, 0)

    @property
    def problem(self) -> Problem:
        """The problem."""
        return self.situation.problem

    @property
    def target(self) -> Target:
        """The target."""
        return self.situation.target

    @property
    def x_channels(self) -> int:
        """Channels that the input has; a problem cut into groups of lanes may count more."""
        return self.channels[0] or self.problem.c

    @property
    def y_channels(self) -> int:
        """Channels that the result has."""
        return self.channels[1] or self.problem.m

    @property
    def arith(self) -> Arithmetic:
        """Row of the arithmetic."""
        return ARITHMETIC[self.arithmetic]

    @property
    def epilogue(self) -> Epilogue:
        """Which epilogue the moves out need."""
        p = self.problem
        return Epilogue(
            bias=self.bias is not None,
            residual=self.residual is not None,
            rescale=self.scale is not None,
            activation="" if p.activation is None else p.activation.name,
            saturate=p.overflow == "saturate" and not p.y_dtype.is_float,
        )


@dataclass(frozen=True, slots=True)
class Step:
    """A driver's address, its words, and how many items it has."""

    driver: Address[Driver]
    words: NDArray[np.int64]
    items: int


@dataclass(frozen=True, slots=True)
class Program:
    """Native work that computes one convolution.

    Parameters
    ----------
    steps : tuple of Step
    workspace : int
        Bytes each thread needs.
    keep : tuple
        Arrays the words point to.
    """

    steps: tuple[Step, ...]
    workspace: int
    keep: tuple[Any, ...] = field(default=())


def boxes(extents: Sequence[int], cost: Callable[[tuple[int, ...]], int], budget: int) -> tuple[int, ...]:
    """Largest box of outputs whose workspace fits a budget, cutting outer axes first, in near-equal parts."""
    box = [max(1, e) for e in extents]
    for a, whole in enumerate(tuple(box)):
        if cost(tuple(box)) <= budget:
            break
        fewest, most = 1, whole  # parts of this axis: too few, enough (or as many as there are)
        while most - fewest > 1:
            parts = (fewest + most) // 2
            box[a] = -(-whole // parts)
            fewest, most = (fewest, parts) if cost(tuple(box)) <= budget else (parts, most)
        box[a] = -(-whole // most)
    return tuple(box)


def bytes_between(r: Request, sweep: Sweep, box: Sequence[int]) -> int:
    """Bytes between the inputs of a box and those of the next, along the last axis that is cut.

    In every plane they follow each other.
    """
    steps = reversed([*zip(box, sweep, r.x.spatial, strict=True)])
    return max(0, next((b * axis.stride * step for b, axis, step in steps if b < axis.out), 0))


_HELD_BYTES = 1 << 20


def ahead_words(r: Request, sweep: Sweep, box: Sequence[int], planes: int) -> Ahead:
    """Words with which a box asks for the inputs of the next one of a thread, where no near cache holds an image.

    In ``planes`` planes they lie together; 0 if they do not.
    """
    read, images = image_bytes(r.problem)[0], r.problem.n or 0
    if not planes or read * images <= r.situation.near(_HELD_BYTES):
        return Ahead(0, 0, 0)
    ahead = bytes_between(r, sweep, box)
    if not ahead and images > 1:  # the next box is an image
        return Ahead(r.situation.threads * r.x.n, read, 1)
    return Ahead(r.situation.threads * ahead, ahead, planes)


def asks_ahead(ahead: Ahead) -> bool:
    """Whether a box asks for inputs of another one."""
    return words_of(ahead)[0] > 0


def accumulator_arithmetic(s: Situation) -> str:
    """Arithmetic of a problem's accumulator.

    Floats: f64 for f64, else f32.  Integers: i32 where the result needs no more than the sum modulo 2^32,
    or the sum cannot leave 32 bits; else i64.
    """
    p = s.problem
    if p.x_dtype.is_float:
        return "f64" if "f64" in (p.x, p.y) else "f32"
    wraps = p.overflow == "wrap" and p.activation is None and p.y_dtype.bits <= 32
    if p.quantisation is not None or wraps:
        return "i32"
    largest = max(abs(v) for v in p.x_dtype.limits) * max(abs(v) for v in p.w_dtype.limits)
    products = (p.c // p.groups) * math.prod(p.k)
    added = (p.bias + p.residual) * max(abs(v) for v in p.y_dtype.limits)
    return "i32" if largest * products + added < 1 << 31 and p.y_dtype.bits <= 32 else "i64"


def arith_of(s: Situation) -> Arithmetic:
    """The row of ``accumulator_arithmetic``."""
    return ARITHMETIC[accumulator_arithmetic(s)]


def boxed_words(r: Request, sweep: Sweep, box: tuple[int, ...], held: Sequence[Lines], splits: int = 1,
                block_groups: int = 1, *, panel: int = 0, scratch: int = 0) -> tuple[Common, int]:  # fmt: skip
    """The words of every blocked driver, and how many items there are.

    Parameters
    ----------
    held : sequence of Lines
        Along each axis, those that a box needs.
    splits : int
        Into how many items a box is cut, each of which does some of its output channels.
    block_groups : int
        Groups of an item.
    panel, scratch : int
        Where they begin in the workspace.
    """
    p = r.problem
    counts = [-(-axis.out // b) if axis.out else 0 for axis, b in zip(sweep, box, strict=True)]
    positions: list[int] = []
    axes: list[AxisWords] = []
    pitches = _pitches(held)
    for a, (axis, b) in enumerate(zip(sweep, box, strict=True)):
        axes.append(AxisWords(
            inp=axis.inp, x_stride=r.x.spatial[a], block=b, out=axis.out, stride=axis.stride, pad=axis.pad,
            y_stride=r.y.spatial[a] * axis.out_step,
            r_stride=r.residual.spatial[a] * axis.out_step if r.residual else 0,
            boxes=counts[a], lines=max(1, held[a].count), positions=len(positions), pitch=pitches[a],
        ))  # fmt: skip
        positions += held[a].positions
    group_in, group_out = p.c // p.groups * block_groups, p.m // p.groups * block_groups
    blocks, total = -(-p.groups // block_groups), math.prod(counts)
    residual = r.residual or Operand(0, 0, (0,) * len(sweep), 0, 1)

    def origin(o: Operand) -> int:
        return o.offset + sum(axis.first_out * step for axis, step in zip(sweep, o.spatial, strict=True))

    common = Common(
        axes=len(sweep), axis=axes, positions=words(positions), boxes=max(1, total), splits=splits, groups=blocks,
        line_count=math.prod(h.count for h in held[:-1]),  # none where a sweep has no taps
        run_count=len(held[-1].runs), runs=[RunWords(*run) for run in held[-1].runs],
        x_base=r.x.offset, x_n=r.x.n, x_g=r.x.c * group_in, x_c=r.x.c,
        y_base=origin(r.y), y_n=r.y.n, y_g=r.y.c * group_out, y_c=r.y.c,
        r_base=origin(residual), r_n=residual.n, r_g=residual.c * group_out, r_c=residual.c,
        step=sweep[-1].stride, zero_point=r.zero_point, panel=panel, scratch=scratch,
        residues=1, residue_places=words([0]), move_apart=None, planes=0, plane_places=words([0]), move_planes=None,
    )  # fmt: skip
    return common, (p.n or 0) * blocks * splits * total if p.m else 0


def epilogue_tables(r: Request) -> EpilogueTables:
    """What the epilogue of a request takes; tables that nobody reads where it has none."""
    return EpilogueTables(zeros() if r.bias is None else r.bias, zeros() if r.scale is None else r.scale, r.constants)


def _pitches(held: Sequence[Lines]) -> list[int]:
    """Combined lines between neighbours along each outer axis; the last axis is not part of a line."""
    pitches = [1] * len(held)
    for a in range(len(held) - 3, -1, -1):
        pitches[a] = pitches[a + 1] * held[a + 1].count
    return pitches


_LIST_BYTES = 4 << 20
"""Most bytes of lists of entries; where rows would need more of them, fewer axes tell rows apart."""


def row_lists(axes: Sweep, of_taps: Sequence[Sequence[int]], entry_words: int, *, whole: bool = False) -> RowLists:
    """Words with which rows of outputs leave out the taps of outer axes that meet only padding.

    Parameters
    ----------
    axes : Sweep
        The outer axes.
    of_taps : sequence of sequence of int
        The words of the entries of every combination of their taps.
    entry_words : int
        Words of an entry.
    whole : bool
        Whether rows have all taps, those that meet padding as well.
    """
    found = whole_bands(axes) if whole else bands(axes, _LIST_BYTES // (8 * max(1, sum(map(len, of_taps)))))
    entries: list[int] = []
    lists: list[ListWords] = []
    for ranges in itertools.product(*(kinds for kinds, _ in found)):
        taps = [0]
        for axis, some in zip(axes, ranges, strict=True):
            taps = [tap * axis.taps + t for tap in taps for t in some]
        begin = len(entries)
        for tap in taps:
            entries += of_taps[tap]
        lists.append(ListWords(begin, (len(entries) - begin) // entry_words))
    return RowLists(words(bands_table(found)), lists, words(entries))


def along_in(r: Request, axis: Axis, panel: str) -> str:
    """Which axes lie contiguous on the way in, as a ``Move`` spells it; ``panel`` is the panel's own axis."""
    found = _contiguous(r.x, r.x_channels, axis.stride, panel)
    if not found and panel == "p" and r.x.spatial[-1] == r.x.itemsize and axis.stride in (3, 4):
        found = str(axis.stride)
    return found + panel if found else "any"


def along_out(r: Request, axis: Axis, panel: str) -> str:
    """The same on the way out, where a residual must lie as the result does."""
    found = _contiguous(r.y, r.y_channels, axis.out_step, panel)
    if r.residual is not None and (
        found == "2" or found != _contiguous(r.residual, r.y_channels, axis.out_step, panel)
    ):
        return "any"
    return panel + found if found else "any"


def _contiguous(o: Operand, channels: int, step: int, panel: str) -> str:
    # a single channel is a vector of one, whatever its stride: better pixels, even ones far apart
    single = channels == 1 and panel == "c"
    if o.c == o.itemsize and not single and not (panel == "p" and o.spatial[-1] * step == o.itemsize):
        return "c"
    if o.spatial[-1] * step == o.itemsize:
        return "p"
    return "2" if o.spatial[-1] == o.itemsize and step == 2 else ""


S = TypeVar("S", bound=Signature)


def address_of(r: Request, label: str, name: str, signature: type[S], make: Callable[[Module, str], None]
               ) -> Address[S]:  # fmt: skip
    """Address of a kernel's only function, which ``make(k, name)`` adds to a module."""
    return kernel(label, {name: signature}, lambda k: make(k, name), r.target, check=r.check)[name]


def move_in_address(r: Request, spec: Move) -> Address[MoveIn]:
    """Address of a move into a panel."""
    return _move_address(r, spec, MoveIn)


def move_out_address(r: Request, spec: Move) -> Address[MoveOut]:
    """Address of a move to the result."""
    return _move_address(r, spec, MoveOut)


def _move_address(r: Request, spec: Move, signature: type[S]) -> Address[S]:
    count, f16c = _elements(r.target, spec), r.target.converts_f16
    return address_of(r, f"{spec} {count}", "move", signature, lambda k, name: move(k, name, spec, count, f16c=f16c))


def _elements(target: Target, spec: Move) -> int:
    """Elements of a panel that a move takes at once; of bytes 16 where it transposes them or the CPU has no masks."""
    element = Type(spec.element)
    large = element.bytes > 1 or (target.has_masks and (spec.along == "cc" or spec.together > 0))
    return (target.vector_bytes if large else 16) // element.bytes


_APART = {"p": (2, 3, 4, 5, 8), "c": (2, 4, 8)}
"""Strides whose residues are told apart while a line is moved, by the panel's own axis."""


def is_apart(p: Problem, axis: Axis, lane: int, panel: str) -> bool:
    """Whether lines of planes are moved once for all residues modulo the stride: all of which the kernel meets."""
    whole = axis.dilation == 1 and axis.taps >= axis.stride
    return p.layout == "NCHW" and whole and axis.stride in _APART[panel] and (panel == "p" or lane % axis.stride == 0)


def moved_apart(common: Common, r: Request, axis: Axis, held: Lines, panel: str, pixel_bytes: int,
                element: str = "") -> Common:  # fmt: skip
    """Words with which lines are moved into the panel once, not once for every residue modulo the stride, if possible.

    Parameters
    ----------
    panel : str
        Its own axis: ``p`` or ``c``.
    pixel_bytes : int
        Bytes between neighbours of a residue in the panel.
    element : str
        LLVM element of the panel, if not the accumulator.
    """
    element = element or r.arith.accumulator
    count = r.target.vector_bytes // (2 if element == "i16" else r.arith.bytes)
    planes = r.x.spatial[-1] == r.x.itemsize
    if not planes or r.x.c == r.x.itemsize or not is_apart(r.problem, axis, count, panel):
        return common
    step, spec = axis.stride, Move(r.problem.x, element, f"p{panel}")
    firsts = [first for first, _, _ in held.runs]
    places = [(firsts[i % step] + i // step) * pixel_bytes for i in range(2 * step - 1)]
    span = max(position + 1 for position in held.positions)

    def make(k: Module, name: str) -> None:
        move_apart(k, name, spec, count, step, f16c=r.target.converts_f16)

    return replace(
        common, step=1, run_count=1, runs=[RunWords(0, span, 0)], residues=step, residue_places=words(places),
        move_apart=address_of(r, f"{spec} {count} apart {step}", "move", MoveApart, make),
    )  # fmt: skip


MOST_LISTED = 1 << 14
"""Most pixels of a list of places."""


def moved_by_planes(common: Common, r: Request, sweep: Sweep, held: Sequence[Lines], line_bytes: int,
                    row_bytes: int) -> Common:  # fmt: skip
    """Words with which all lines of planes come into the panel at once, where these follow each other.

    Squares of pixels and channels then are whole, and calls few.  Measured: layers of Winograd 3 to 25 % off.

    Parameters
    ----------
    held : sequence of Lines
        Those of a box, which has whole lines of the last axis.
    line_bytes, row_bytes : int
        Bytes between lines, and between pixels, in the panel.
    """
    last, count = sweep[-1], lanes(r.target, r.arith)
    if len(sweep) < 2 or r.x.c == r.x.itemsize or count * r.arith.bytes != row_bytes:
        return common
    rows, columns = held[-2:]
    gapless = all(h.runs == ((0, h.count, 0),) for h in held[-2:])
    follow = r.x.spatial[-1] == r.x.itemsize and r.x.spatial[-2] == last.inp * r.x.itemsize
    padded = 0 <= last.pad <= columns.count - last.inp and 0 < rows.count * last.inp <= MOST_LISTED
    if not (follow and padded and last.stride == sweep[-2].stride == 1 and gapless):
        return common
    spec, lines = Move(r.problem.x, r.arith.accumulator, "pc"), min(rows.count, sweep[-2].inp)
    places = places_of(lines, line_bytes, last.inp, row_bytes, count) + last.pad * row_bytes
    return replace(common, planes=1, plane_places=places, move_planes=listed_in_address(r, spec))


def places_of(lines: int, line_bytes: int, pixels: int, pixel_bytes: int, more: int) -> NDArray[np.int64]:
    """Places of the pixels of some lines, for moves that take a list of them: the last one so often again."""
    places = np.add.outer(np.arange(lines, dtype=np.int64) * line_bytes, np.arange(pixels) * pixel_bytes).ravel()
    return np.concatenate([places, places[-1:].repeat(more)])


def listed_in_address(r: Request, spec: Move) -> Address[ListedMoveIn]:
    """Address of a move from planes into a panel that takes a list of places there."""
    return _listed_address(r, spec, ListedMoveIn)


def listed_out_address(r: Request, spec: Move) -> Address[ListedMoveOut]:
    """Address of a move from a panel to planes that takes a list of places in the panel."""
    return _listed_address(r, spec, ListedMoveOut)


def _listed_address(r: Request, spec: Move, signature: type[S]) -> Address[S]:
    count = lanes(r.target, r.arith)

    def make(k: Module, name: str) -> None:
        move_listed(k, name, spec, count, f16c=r.target.converts_f16)

    return address_of(r, f"{spec} {count} listed", "move", signature, make)


def rows_together(sweep: Sweep, box: Sequence[int], pixels: int) -> int:
    """Rows of a box of results that have so many pixels, where rows follow each other in a packed result; else 1."""
    cut = next((a for a, b in enumerate(box) if b > 1), len(box) - 1)
    whole = all(b == axis.out for axis, b in zip(sweep[cut + 1 :], box[cut + 1 :], strict=True))
    if not whole or cut == len(box) - 1:
        return 1
    return max(1, min(-(-pixels // max(1, box[-1])), math.prod(box[:-1])))


def rows_follow(r: Request, sweep: Sweep) -> bool:
    """Whether in result and residual every row of pixels begins where the one before it ends."""
    for o in (r.y, r.residual):
        steps = () if o is None else tuple(step * a.out_step for a, step in zip(sweep, o.spatial, strict=True))
        outs = [axis.out for axis in sweep]
        if any(steps[a] != steps[a + 1] * outs[a + 1] for a in range(len(steps) - 1)):
            return False
    return True


_FAMILY = 7
"""Sizes of tiles that share a kernel: few enough to compile in 50 ms, enough that new extents rarely compile."""


def tile_addresses(r: Request, orientation: str, rows: Sequence[int] | int,
                   vectors: Sequence[int] | int) -> list[Address[PanelTile]]:  # fmt: skip
    """Addresses of a family of tiles, for every number of rows and of vectors."""
    make = {"channel": channel_tile, "pixel": pixel_tile}[orientation]
    count = lanes(r.target, r.arith)
    heights = [rows] if isinstance(rows, int) else rows
    widths = [vectors] if isinstance(vectors, int) else vectors
    sizes = [(n, v) for n in heights for v in widths]
    addresses: list[Address[PanelTile]] = []
    for first in range(0, len(sizes), _FAMILY):
        names = {f"tile{n}x{v}": (n, v) for n, v in sizes[first : first + _FAMILY]}

        def build(k: Any, names: dict[str, tuple[int, int]] = names) -> None:
            for name, (n, v) in names.items():
                make(k, name, r.arith, count, n, v)

        label = f"{orientation} {r.arithmetic} {' '.join(names)}"
        found = kernel(label, dict.fromkeys(names, PanelTile), build, r.target, check=r.check)
        addresses += [found[name] for name in names]
    return addresses


_EDGES = 3
"""The same for tiles that leave out products with padding, three loops each."""


def edge_address(r: Request, rows: int, vectors: int) -> Address[EdgeTile]:
    """Address of a tile that leaves out products with padding."""
    first = (rows - 1) // _EDGES * _EDGES + 1
    names = {f"tile{n}": n for n in range(first, min(first + _EDGES, most_rows(r.target, vectors) + 1))}

    def build(k: Any) -> None:
        for name, n in names.items():
            edge_tile(k, name, r.arith, lanes(r.target, r.arith), n, vectors)

    label = f"edge {r.arithmetic} {vectors} {first}-{first + len(names) - 1}"
    return kernel(label, dict.fromkeys(names, EdgeTile), build, r.target, check=r.check)[f"tile{rows}"]


def is_fusible(p: Problem) -> bool:
    """Whether the epilogue of a problem is cheap enough for fused tiles."""
    return Epilogue(activation="" if p.activation is None else p.activation.name).is_cheap


def fused_address(r: Request, orientation: str, spec: FusedTile, rows: int, vectors: int) -> Address[Walk]:
    """Address of a fused tile."""
    return _fused_address(r, orientation, spec, rows, vectors, Walk)


def word_address(r: Request, spec: FusedTile, rows: int, vectors: int) -> Address[WordWalk]:
    """Address of a fused tile of output channels for words of several channels."""
    return _fused_address(r, "channel", spec, rows, vectors, WordWalk)


def _fused_address(r: Request, orientation: str, spec: FusedTile, rows: int, vectors: int, signature: type[S]
                   ) -> Address[S]:  # fmt: skip
    count, f16c = lanes(r.target, ARITHMETIC[spec.arithmetic]), r.target.converts_f16
    by_rows = orientation == "channel"
    make = fused_channel_tile if by_rows else fused_pixel_tile
    size, most = (rows, run_tiles(r.target)[vectors]) if by_rows else (vectors, pixel_tiles(r.target)[rows])
    first = (size - 1) // _FAMILY * _FAMILY + 1
    names = {f"tile{n}": n for n in range(first, min(first + _FAMILY, most + 1))}

    def build(k: Any) -> None:
        for name, n in names.items():
            make(k, name, spec, count, *((n, vectors) if by_rows else (rows, n)), f16c=f16c)

    label = f"{orientation} {spec} {vectors if by_rows else rows} {first}-{first + len(names) - 1}"
    return kernel(label, dict.fromkeys(names, signature), build, r.target, check=r.check)[f"tile{size}"]


def tile_cycles(rates: Rates, rows: int, vectors: int) -> float:
    """Cycles of one step of a tile: multiply-adds, loads, and the latency of the sums, whichever is longest."""
    return max(rows * vectors / rates.multiply_adds, (rows + vectors) / rates.loads, rates.latency)


@lru_cache(256)
def planes_collide(p: Problem, *, reading: bool) -> bool:
    """Whether channels of the input (or result) lie a multiple of 4 KiB apart: all in the same sets of a cache."""
    extents, dtype = (p.i, p.x_dtype) if reading else (p.out, p.y_dtype)
    size = math.prod(e or 0 for e in extents) * dtype.itemsize
    return p.layout == "NCHW" and size > 0 and size % 4096 == 0


_CACHED_BYTES, _LEAVING_BYTES = 16 << 20, 6 << 20
"""Input and result beyond the first come from memory, call after call; beyond the second some of them does."""
_MEMORY_BYTES = 3.0
"""Bytes a cycle that lines of a panel come from there."""


@lru_cache(256)
def image_bytes(p: Problem) -> tuple[int, int]:
    """Bytes of the input and of the result of one image."""
    read, written = (math.prod(e or 0 for e in extents) for extents in (p.i, p.out))
    return p.c * read * p.x_dtype.itemsize, p.m * written * p.y_dtype.itemsize


def far_cycles(p: Problem, read: float, *, soon: bool = False) -> float:
    """Cycles that bytes of the input take which come from memory, not from a cache; 0 for small problems.

    What boxes read that others read as well comes from memory once.

    Parameters
    ----------
    soon : bool
        Of images that a cache just holds, some counts already: what boxes keep besides pushes it out.
    """
    held, written = image_bytes(p)
    if soon:
        share = (held + written - _LEAVING_BYTES) / (_CACHED_BYTES - _LEAVING_BYTES)
    else:
        share = float(held + written > _CACHED_BYTES)
    return min(1.0, max(0.0, share)) * min(read, held) / _MEMORY_BYTES


def apart_cycles(p: Problem, axis: Axis) -> float:
    """Cycles that a vector of results takes more where those of other phases lie between.

    Every line is written in parts; if a second-level cache does not hold the result it comes and goes for each.
    """
    if p.layout == "NHWC" or axis.out_step == 1:
        return 0.0
    if image_bytes(p)[1] <= 1 << 20:
        return 20.0
    return 50.0 if axis.out_step == 2 else 70.0


def scheme_of(parts: Sequence[str]) -> str:
    """Name of what computes the sweeps of a problem: one if they are alike, else all in their order."""
    return "+".join(parts if len(set(parts)) > 1 else parts[:1])


def own_bound(s: Situation) -> tuple[str, float]:
    """Bound of a plain sum of products: ``(k + 4) eps`` times the output's own ``sum|x||w|``; integers are exact."""
    p = s.problem
    if not p.y_dtype.is_float:
        return "own", 0.0
    return "own", ((p.c // p.groups) * math.prod(p.k) + 4) * DTYPES[accumulator_arithmetic(s)].eps


def transform_refusal(s: Situation) -> str | None:
    """Why nothing that transforms tiles can be used; None if something may be."""
    p = s.problem
    if p.op not in ("conv", "conv_transpose"):
        return f"computes conv and conv_transpose, not {p.op}"
    if s.strict:
        return "its error bound is over a tile's inputs; accuracy='strict' admits bounds over an output's own products"
    if not p.x_dtype.is_float:
        return "transforms floating-point numbers only"
    if not s.finite:
        return "weights hold Inf or NaN"
    return None


def near_equal(total: int, most: int) -> list[tuple[int, int]]:
    """Cut ``total`` into the fewest near-equal parts of at most ``most``: (first, size) of each."""
    if total <= 0:
        return []
    parts = -(-total // most)
    small, larger = divmod(total, parts)
    result, first = [], 0
    for i in range(parts):
        size = small + (i < larger)
        result.append((first, size))
        first += size
    return result


def near_equal_sizes(total: int, most: int) -> list[tuple[int, int]]:
    """The same parts by size: (size, how many) of each."""
    if total <= 0:
        return []
    parts = -(-total // most)
    small, larger = divmod(total, parts)
    return [(small + 1, larger), (small, parts - larger)] if larger else [(small, parts)]


def thread_parts(threads: int, items: int, blocks: int, repeated: float) -> int:
    """Into how many parts the blocks of outputs of every item are cut, so that the busiest thread has least to do.

    Parameters
    ----------
    repeated : float
        What every part does anew, its inputs brought in place, as a share of the rest of an item.
    """
    if threads == 1 or not items or not blocks:
        return 1

    def load(parts: int) -> float:
        most = -(-blocks // parts)
        return -(-items * -(-blocks // most) // threads) * (most / blocks + repeated)

    found = min(range(1, min(blocks, 4 * threads) + 1), key=load)
    return -(-blocks // -(-blocks // found))


def program_of(steps: Sequence[Step], workspace: int, keep: list[Any]) -> Program:
    """Program of some steps, without those that have no items."""
    return Program(tuple(step for step in steps if step.items), workspace, tuple(keep))


def one_step(driver: Address[Driver], table: NDArray[np.int64], items: int, workspace: int, keep: list[Any]) -> Program:
    """Program of a single step."""
    return Program((Step(driver, table, items),) if items else (), workspace, tuple(keep))


@cache
def zeros() -> NDArray[Any]:
    """A table nobody reads, for an absent bias or scale."""
    return aligned(8, np.int64)
