"""``Problem``: one convolution, described once, in the one form everything else reads.

Every dialect and the Python facade end here; planning, algorithms and the oracle start here.  It
must know nothing of attribute names, model files, algorithms or machines.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from polyconv.dtypes import DTYPES, Dtype
from polyconv.errors import ArgumentError, DtypeError
from polyconv.problem.epilogue import Activation
from polyconv.problem.hashed import Hashed
from polyconv.problem.operators import check_operator, check_types

__all__ = ["Extent", "Problem", "Quantisation", "effective_kernel", "output_extent"]

Extent = int | None
"""A size; None where it is known only when an array arrives."""

# 64-bit index arithmetic in the generated code must never overflow: the product of all extents of
# any tensor, in bytes, stays below 2^62.
_MOST_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class Quantisation:
    """Zero points and scales of the integer operators.

    Each is a number, ``"t"`` (one value given at run time), ``"c"`` (one per output channel given
    at run time) or None (absent: 0 for zero points, no requantisation for scales).
    ``y = saturate(round_half_even(acc * (sx * sw / sy)) + zy)`` with
    ``acc = conv(x - zx, w - zw) + bias``, when scales are present; else ``y = acc``.
    """

    zx: float | str | None = None
    zw: float | str | None = None
    zy: float | str | None = None
    sx: float | str | None = None
    sw: float | str | None = None
    sy: float | str | None = None

    @property
    def rescales(self) -> bool:
        """Whether the accumulator is scaled to the result."""
        return self.sx is not None


def effective_kernel(kernel: int, dilation: int) -> int:
    """Extent covered by a kernel of ``kernel`` taps: ``(kernel - 1) * dilation + 1``."""
    return (kernel - 1) * dilation + 1


def output_extent(i: int, k: int, s: int, d: int, begin: int, end: int) -> int:
    """Forward output extent ``floor((i + begin + end - ke) / s) + 1`` (semantics 2.2); may be <= 0."""
    return (i + begin + end - effective_kernel(k, d)) // s + 1


@dataclass(frozen=True, slots=True)
class Problem(Hashed):
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
        _make_whole(self)
        rank = len(self.i)
        fill = object.__setattr__
        fill(self, "s", self.s or (1,) * rank)
        fill(self, "d", self.d or (1,) * rank)
        past = self.op == "causal_conv" and len(self.k) == rank == 1
        fill(self, "pads", self.pads or (((self.k[0] - 1, 0),) if past else ((0, 0),) * rank))
        fill(self, "output_padding", self.output_padding or (0,) * rank)
        if self.quantisation == Quantisation():
            fill(self, "quantisation", None)
        _validate(self)

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
        - quantised: zero points ``zx zw zy`` and scales ``sx sw sy``, as in ``zx=t sw=c sy=0.5``;
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

    @property
    def is_known(self) -> bool:
        """Whether all extents are known."""
        return self.n is not None and all(i is not None for i in self.i)

    @property
    def out(self) -> tuple[Extent, ...]:
        """Spatial output extents; None where the input's is."""
        if self.o is not None:
            return self.o
        return tuple(None if i is None else self._out_axis(a, i) for a, i in enumerate(self.i))

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

    def fused(self) -> Problem:
        """The equal problem in which each of ``plain_runs`` is one axis."""
        return self if len(self.plain_runs()) == self.rank else _fused(self)

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
def _fused(p: Problem) -> Problem:
    runs = p.plain_runs()

    def of(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(values[first] for first, _ in runs)

    def together(extents: tuple[Extent, ...]) -> tuple[int, ...]:
        return tuple(math.prod(e or 0 for e in extents[first:end]) for first, end in runs)

    return replace(
        p, i=together(p.i), k=of(p.k), s=of(p.s), d=of(p.d), pads=of(p.pads), output_padding=of(p.output_padding),
        o=None if p.o is None else together(p.o),
    )  # fmt: skip


_NUMBERS = ("n", "c", "m", "groups", "offset_groups")
_BY_AXIS = ("i", "k", "s", "d", "output_padding", "o")
_OPEN = ("n", "i")


def _make_whole(p: Problem) -> None:
    """Make every size an int, and every list of them a tuple.

    Tables look problems up by value: 8.0 and True would find what was made for 8 and 1, or the other way round.
    """
    fill = object.__setattr__
    for name in _NUMBERS:
        value = getattr(p, name)
        if type(value) is not int:
            fill(p, name, _whole(value, name))
    for name in _BY_AXIS:
        values = getattr(p, name)
        if name == "o" and values is None:
            continue
        if type(values) is not tuple or any(type(v) is not int for v in values):
            fill(p, name, tuple(_whole(v, name) for v in _entries(values, name)))
    if type(p.pads) is not tuple or any(type(v) is not tuple or any(type(e) is not int for e in v) for v in p.pads):
        pairs = (_entries(pair, "pads") for pair in _entries(p.pads, "pads"))
        fill(p, "pads", tuple(tuple(_whole(e, "pads") for e in pair) for pair in pairs))
    if any(len(pair) != 2 for pair in p.pads):
        raise ArgumentError(f"pads={p.pads} must be (begin, end) pairs, one per axis")


def _entries(values: Any, name: str) -> Iterable[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ArgumentError(f"{name}={values!r} must be a list with an entry per axis")
    return values


def _whole(value: Any, name: str) -> int | None:
    if value is None and name in _OPEN:
        return None
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name}={value!r} must be a whole number") from None


def _validate(p: Problem) -> None:
    rank = len(p.i)
    if p.op not in ("conv", "conv_transpose", "deform_conv", "causal_conv"):
        raise ArgumentError(f"op {p.op!r} is not conv, conv_transpose, deform_conv or causal_conv")
    for role in (p.x, p.w, p.y):
        if role not in DTYPES:
            raise DtypeError(f"dtype {role!r} is not one of {', '.join(DTYPES)}")
    if p.layout not in ("NCHW", "NHWC"):
        raise ArgumentError(f"layout {p.layout!r} is not NCHW or NHWC")
    if rank < 1:
        raise ArgumentError("a convolution needs at least one spatial axis; x has none")
    for name, values in (
        ("kernel", p.k),
        ("strides", p.s),
        ("dilations", p.d),
        ("pads", p.pads),
        ("output_padding", p.output_padding),
        *((("output extents", p.o),) if p.o is not None else ()),
    ):
        if len(values) != rank:
            raise ArgumentError(
                f"{name} {values} has {len(values)} entries, x has {rank} spatial axes; give one entry per axis"
            )
    for name, values in (("kernel", p.k), ("strides", p.s), ("dilations", p.d)):
        if any(v < 1 for v in values):
            raise ArgumentError(f"{name} {values} must be positive along every axis")
    sizes = [p.n, p.c, p.m, *p.i]
    if any(v is not None and v < 0 for v in sizes):
        raise ArgumentError(f"sizes n={p.n} c={p.c} i={p.i} m={p.m} must not be negative")
    if p.groups < 1:
        raise ArgumentError(f"groups={p.groups} must be at least 1")
    if p.c % p.groups or p.m % p.groups:
        raise ArgumentError(
            f"groups={p.groups} divides neither or only one of c={p.c} and m={p.m}; choose groups that divide both"
        )
    if p.overflow not in ("wrap", "saturate"):
        raise ArgumentError(f"overflow {p.overflow!r} is not wrap or saturate")
    if not isinstance(p.activation, Activation | None):
        raise ArgumentError(f"activation {p.activation!r} must be an Activation, with its parameters, or None")
    if not isinstance(p.quantisation, Quantisation | None):
        raise ArgumentError(f"quantisation {p.quantisation!r} must be a Quantisation or None")
    check_operator(p)
    check_types(p)
    if p.is_known:
        if any(e is not None and e < 0 for e in p.out):
            raise ArgumentError(
                f"the output extents {p.out} are negative: the kernel {p.k} with dilations {p.d} is "
                f"larger than the input {p.i} with pads {p.pads}; enlarge the input or the pads"
            )
        _check_size(p)


def _check_size(p: Problem) -> None:
    for name, shape, dtype in (
        ("x", p.x_shape, p.x_dtype),
        ("w", p.w_shape, p.w_dtype),
        ("y", p.y_shape, p.y_dtype),
    ):
        total = 8 * math.prod(max(1, e or 1) for e in shape)
        if total >= _MOST_BYTES:
            raise ArgumentError(
                f"{name} of shape {shape} and type {dtype.name} exceeds the addressable size; split the problem"
            )
    reach = [effective_kernel(k, d) + abs(b) + abs(e) for k, d, (b, e) in zip(p.k, p.d, p.pads, strict=True)]
    if any(r >= 1 << 40 for r in reach) or any(s >= 1 << 40 for s in p.s):
        raise ArgumentError(f"kernel {p.k}, dilations {p.d}, strides {p.s} or pads {p.pads} reach beyond 2^40 elements")
