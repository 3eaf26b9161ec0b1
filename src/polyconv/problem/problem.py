"""``Problem``: one convolution, described once, in the one form everything else reads.

Every dialect and the Python facade end here; planning, algorithms and the oracle start here.  It
must know nothing of attribute names, model files, algorithms or machines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field, replace
from functools import lru_cache
from typing import Any

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES, Dtype
from polyconv.problem import validity
from polyconv.problem.epilogue import Activation
from polyconv.problem.extents import Extent, effective_kernel, output_extent
from polyconv.problem.hashed import Hashed
from polyconv.problem.quantisation import QUANTITIES, Quantisation

__all__ = ["Problem"]

class _Found(Hashed):
    """What is found of a problem once, and not pickled."""

    __slots__ = ("_out",)
    _out: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class Problem(_Found):
    """A convolution.

    Parameters
    ----------
    op : str
        ``conv``, ``conv_transpose``, ``deform_conv`` or ``causal_conv``.
    x, w, y : str
        Element types of input, weights and result, as named in ``polyconv.dtypes``.
    layout : str
        ``NCHW`` or ``NHWC``, for any number of spatial axes: axis order of input, result and
        residual.  Weights are always OI.. (``conv_transpose``: IO..).
    n, c, m : int or None
        Batch, input channels, output channels.
    groups : int
        Number of groups; divides c and m.
    i : tuple of int or None
        Spatial input extents.
    k, s, d : tuple of int
        Kernel extents, strides, dilations per spatial axis.
    pads : tuple of (int, int)
        Begin and end padding per spatial axis; negative values crop.  Of a causal convolution: the past.
    output_padding : tuple of int
        Extra elements at the high end of a transposed convolution.
    o : tuple of int or None
        Output extents where they do not follow from the rest; positions that no product reaches
        hold the bias.  The end pads then have no effect.
    bias, residual : bool
        Whether the call has them.
    activation : Activation or None
        Applied after bias and residual.
    overflow : str
        ``wrap`` or ``saturate``: conversion of an integer accumulator to the result.
    quantisation : Quantisation or None
        Zero points and scales.
    offset_groups : int
        Offset groups of a deformable convolution, else 0.
    mask : bool
        Whether a deformable convolution has a modulation mask.

    Examples
    --------
    >>> import polyconv
    >>> problem = polyconv.Problem.parse("conv f32 NCHW n1 c3 i224x224 m64 k7x7 s2 p3")
    >>> problem.w_shape, problem.y_shape
    ((64, 3, 7, 7), (1, 64, 112, 112))
    """

    op: str
    x: str
    w: str
    y: str
    layout: str
    n: Extent
    c: int
    i: tuple[Extent, ...]
    m: int
    k: tuple[int, ...]
    s: tuple[int, ...] = ()
    d: tuple[int, ...] = ()
    pads: tuple[tuple[int, int], ...] = ()
    groups: int = 1
    output_padding: tuple[int, ...] = ()
    o: tuple[int, ...] | None = None
    bias: bool = False
    residual: bool = False
    activation: Activation | None = None
    overflow: str = "wrap"
    quantisation: Quantisation | None = field(default=None)
    offset_groups: int = 0
    mask: bool = False

    __hash__ = Hashed.__hash__

    def __post_init__(self) -> None:
        validity.make_whole(self)
        rank = len(self.i)
        fill = object.__setattr__
        fill(self, "s", self.s or (1,) * rank)
        fill(self, "d", self.d or (1,) * rank)
        past = self.op == "causal_conv" and len(self.k) == rank == 1
        fill(self, "pads", self.pads or (((self.k[0] - 1, 0),) if past else ((0, 0),) * rank))
        fill(self, "output_padding", self.output_padding or (0,) * rank)
        if self.quantisation is not None and self.quantisation == Quantisation():
            fill(self, "quantisation", None)
        validity.check(self)

    @staticmethod
    def parse(text: str) -> Problem:
        """Read a problem from its line of text; ``parse(str(p)) == p``.

        ``op types layout fields``, as in ``conv f32 NCHW n1 c64 i56x56 m64 k3x3 s2 p1 b1 act=Relu``:

        - op: conv, conv_transpose, deform_conv or causal_conv;
        - types of input, weights and result: ``f32``, ``f16>f32``, ``u8*i8>i32``;
        - layout: NCHW or NHWC, for any number of spatial axes;
        - needed: ``n`` batch, ``c`` input channels, ``i`` input extents, ``m`` output channels, ``k`` kernel extents;
        - by axis, or one for all: ``s`` strides, ``p`` pads (``begin:end`` where they differ), ``d`` dilations,
          ``op`` output padding, ``y`` output extents where they do not follow;
        - ``g`` groups, ``b1`` a bias, ``r1`` a residual, ``act=Name(a,b)`` an activation, ``overflow=saturate``;
        - quantised: zero points ``zx zw zy`` and scales ``sx sw sy``, as in ``zx=t sw=c sy=0.5``; of a residual
          ``zr sr``, and of the sum with it ``zs ss``;
        - deformable: ``og`` offset groups, ``mask``.

        docs/problem-text.md has the table, the grammar and examples.

        Raises
        ------
        ArgumentError, DtypeError
            Naming the word that is not understood, or the values that disagree.
        """
        from polyconv.problem.text import parse

        return parse(text)

    def __str__(self) -> str:
        from polyconv.problem.text import spell

        return spell(self)

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.i)

    @property
    def x_dtype(self) -> Dtype:
        """Row of the input's element type."""
        return DTYPES[self.x]

    @property
    def w_dtype(self) -> Dtype:
        """Row of the weights' element type."""
        return DTYPES[self.w]

    @property
    def y_dtype(self) -> Dtype:
        """Row of the result's element type."""
        return DTYPES[self.y]

    def quantity_dtype(self, name: str) -> Dtype:
        """Row of the element type of a zero point or a scale, by its name in ``QUANTITIES``."""
        of = QUANTITIES[name]
        return DTYPES["f32" if of is None else getattr(self, of)]

    @property
    def is_known(self) -> bool:
        """Whether all extents are known."""
        return self.n is not None and all(i is not None for i in self.i)

    @property
    def out(self) -> tuple[Extent, ...]:
        """Spatial output extents; None where the input's is."""
        try:
            return self._out
        except AttributeError:
            pass
        found: tuple[Extent, ...] | None = self.o
        if found is None:
            found = tuple([None if i is None else self._out_axis(a, i) for a, i in enumerate(self.i)])
        object.__setattr__(self, "_out", found)
        return found

    def _out_axis(self, a: int, i: int) -> int:
        (begin, end), k, s, d = self.pads[a], self.k[a], self.s[a], self.d[a]
        if self.op == "conv_transpose":
            natural = (i - 1) * s + effective_kernel(k, d) + self.output_padding[a]
            return natural - begin - end
        return output_extent(i, k, s, d, begin, end)

    @property
    def x_shape(self) -> tuple[Extent, ...]:
        """Shape of the input, in the axis order of ``layout``."""
        return self._ordered(self.c, self.i)

    @property
    def y_shape(self) -> tuple[Extent, ...]:
        """Shape of the result, in the axis order of ``layout``."""
        return self._ordered(self.m, self.out)

    @property
    def w_shape(self) -> tuple[int, ...]:
        """Shape of the weights: OI.. , or IO.. for ``conv_transpose``."""
        if self.op == "conv_transpose":
            return (self.c, self.m // self.groups, *self.k)
        return (self.m, self.c // self.groups, *self.k)

    @property
    def offset_shape(self) -> tuple[Extent, ...]:
        """Shape of a deformable convolution's offsets, channels first: two per offset group, tap and output."""
        return (self.n, 2 * self.offset_groups * math.prod(self.k), *self.out)

    @property
    def mask_shape(self) -> tuple[Extent, ...]:
        """Shape of its mask, channels first: a factor per offset group, tap and output."""
        return (self.n, self.offset_groups * math.prod(self.k), *self.out)

    def _ordered(self, channels: int, spatial: tuple[Extent, ...]) -> tuple[Extent, ...]:
        if self.layout == "NCHW":
            return (self.n, channels, *spatial)
        return (self.n, *spatial, channels)

    @property
    def macs(self) -> int:
        """Multiply-adds, counted on the unpadded side: outputs (inputs, if transposed) x taps."""
        positions = self.i if self.op == "conv_transpose" else self.out
        per_group = (self.c // self.groups) * self.m
        return (self.n or 0) * per_group * math.prod(self.k) * math.prod(p or 0 for p in positions)

    def with_extents(self, n: int, i: tuple[int, ...]) -> Problem:
        """The same convolution for a given batch and spatial input extents."""
        return replace(self, n=n, i=i)

    def along(self, axes: Sequence[int]) -> Problem:
        """The convolution along some of its spatial axes, in the order in which they are given."""
        def of(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple([values[a] for a in axes])

        return replace(
            self, i=of(self.i), k=of(self.k), s=of(self.s), d=of(self.d), pads=of(self.pads),
            output_padding=of(self.output_padding), o=None if self.o is None else of(self.o),
        )  # fmt: skip

    def plain_runs(self) -> tuple[tuple[int, int], ...]:
        """Runs (first axis, end) of spatial axes that make one where they lie together.

        The kernel does nothing along neighbouring axes of a run of several; all extents must be known.
        """
        if self.op not in ("conv", "conv_transpose"):
            return tuple((a, a + 1) for a in range(self.rank))

        def is_plain(a: int) -> bool:
            given = self.k[a], self.s[a], self.pads[a], self.output_padding[a]
            return given == (1, 1, (0, 0), 0) and self.out[a] == self.i[a]

        runs: list[tuple[int, int]] = []
        for a in range(self.rank):
            if runs and is_plain(a - 1) and is_plain(a):
                runs[-1] = runs[-1][0], a + 1
            else:
                runs.append((a, a + 1))
        return tuple(runs)

    def lone_taps(self) -> tuple[int | None, ...]:
        """Of each spatial axis with one input and one output the kernel's tap that joins the two; None of other axes.

        All other taps of such an axis meet padding alone.
        """
        if 1 not in self.i or self.op not in ("conv", "conv_transpose"):
            return (None,) * self.rank

        def joining(a: int) -> int | None:
            tap, rest = divmod(self.pads[a][0], self.d[a])  # transposed or not, output 0 meets input ``tap d - pad``
            return tap if self.i[a] == self.out[a] == 1 and rest == 0 and 0 <= tap < self.k[a] else None

        return tuple(map(joining, range(self.rank)))

    def without_lone_axes(self) -> Problem:
        """The problem without the axes that ``lone_taps`` has a tap of; equal with the weights of these taps alone."""
        return _without_lone_axes(self) if 1 in self.i else self

    def fused(self) -> Problem:
        """The problem without lone axes, each of ``plain_runs`` as one, and images as pixels where they may be.

        Equal with the weights of ``lone_taps``.
        """
        found = self.without_lone_axes().with_runs_joined()
        return found.images_as_pixels() if found.has_images_of_pixels() else found

    def with_runs_joined(self) -> Problem:
        """The equal problem in which each of ``plain_runs`` is one axis."""
        return self if len(self.plain_runs()) == self.rank else _fused(self)

    def has_images_of_pixels(self) -> bool:
        """Whether several images with channels last are as good as one of all their pixels: the kernel has one tap.

        Only of integers, whose sums are the same in any order: a choice for floats must not depend on the batch.
        """
        plain = (self.k, self.s, self.pads, self.output_padding) == ((1,), (1,), ((0, 0),), (0,)) and self.out == self.i
        ours = self.op in ("conv", "conv_transpose") and self.layout == "NHWC" and not self.x_dtype.is_float
        return plain and ours and (self.n or 0) > 1

    def images_as_pixels(self) -> Problem:
        """The equal problem of one image whose first axis goes through the images; see ``has_images_of_pixels``."""
        first = (self.n or 0) * (self.i[0] or 0)
        return replace(self, n=1, i=(first, *self.i[1:]), o=None if self.o is None else (first, *self.o[1:]))

    def canonical(self) -> Problem:
        """The equal problem that a planner hashes.

        Unit spatial axes (input, kernel and output of extent 1, no pads) are dropped; adjacent axes
        on which the kernel does nothing (1 tap, stride 1, no pads) are fused; the end padding takes
        up what output_padding and explicit output extents say.
        """
        if not self.is_known or self.op in ("deform_conv", "causal_conv"):
            return self
        out = self.out
        rows: list[tuple[int, int, int, int, int, int]] = []
        for a, i in enumerate(self.i):
            o, (begin, end) = out[a], self.pads[a]
            assert i is not None and o is not None
            k, s, d = self.k[a], self.s[a], self.d[a]
            if self.op == "conv_transpose":
                end = (i - 1) * s + effective_kernel(k, d) - begin - o
            elif self.o is not None:
                end = (o - 1) * s + effective_kernel(k, d) - i - begin
            if k == 1:
                d = 1
            if o == 1 and self.op == "conv":
                s = 1
                end = effective_kernel(k, d) - i - begin
            plain = k == 1 and s == 1 and begin == 0 and end == 0
            if plain and i == 1:
                continue
            if plain and rows and rows[-1][1:] == (1, 1, 1, 0, 0):
                rows[-1] = (rows[-1][0] * i, 1, 1, 1, 0, 0)
                continue
            rows.append((i, k, s, d, begin, end))
        rows = rows or [(1, 1, 1, 1, 0, 0)]
        return replace(
            self,
            i=tuple(r[0] for r in rows),
            k=tuple(r[1] for r in rows),
            s=tuple(r[2] for r in rows),
            d=tuple(r[3] for r in rows),
            pads=tuple((r[4], r[5]) for r in rows),
            output_padding=(0,) * len(rows),
            o=None,
        )


@lru_cache(256)
def _without_lone_axes(p: Problem) -> Problem:
    axes = [a for a, tap in enumerate(p.lone_taps()) if tap is None]
    if not axes:
        o = None if p.o is None else (1,)
        return replace(p, i=(1,), k=(1,), s=(1,), d=(1,), pads=((0, 0),), output_padding=(0,), o=o)
    return p if len(axes) == p.rank else p.along(axes)


@lru_cache(256)
def _fused(p: Problem) -> Problem:
    runs = p.plain_runs()

    def together(extents: tuple[Extent, ...]) -> tuple[int, ...]:
        return tuple(math.prod(e or 0 for e in extents[first:end]) for first, end in runs)

    firsts = p.along([first for first, _ in runs])
    return replace(firsts, i=together(p.i), o=None if p.o is None else together(p.o))
