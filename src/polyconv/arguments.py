"""Arguments as people write them (an int or one per axis, any way to spell pads) made into a ``Description``.

A description is checked as far as it can be without the extents of an input; ``problem`` fits it to them and
gives the normal form.  It must not know who computes.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES, Dtype, of_array
from polyconv.errors import ArgumentError, DtypeError, OverflowWarning, shown, warn
from polyconv.names import advice
from polyconv.problem.epilogue import Activation, activation
from polyconv.problem.extents import effective_kernel
from polyconv.problem.padding import AUTO_PADS, forward_axes, natural_extent, transposed_axes
from polyconv.problem.problem import Problem
from polyconv.runtime.guests import as_array

__all__ = ["Description", "Ints", "Pads", "axes_disagree", "bias_of", "describe"]

Ints = int | Sequence[int]
Pads = int | Sequence[int] | Sequence[tuple[int, int]]

_FIRST = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
_LAST = {1: "NWC", 2: "NHWC", 3: "NDHWC"}


@dataclass(frozen=True, slots=True)
class Description:
    """A convolution as the facade was told it; ``problem`` fits it to extents."""

    op: str
    x: str
    w: str
    y: str
    layout: str
    c: int
    m: int
    groups: int
    k: tuple[int, ...]
    s: tuple[int, ...]
    d: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    auto_pad: str
    bias: bool
    activation: Activation | None
    overflow: str
    output_padding: tuple[int, ...] = ()
    output_shape: tuple[int, ...] | None = None

    def problem(self, n: int | None, i: tuple[int | None, ...]) -> Problem:
        """The problem for a batch and spatial extents; unknown ones need pads that do not follow from them."""
        pads = self.pads
        known = [e for e in i if e is not None]
        if len(i) != len(self.k):
            raise ArgumentError(axes_disagree(len(i), len(self.k), self.layout))
        if len(known) == len(i):
            if self.op == "conv_transpose":
                pads = transposed_axes(
                    self.auto_pad, known, self.k, self.s, self.d, self.output_padding, self.pads, self.output_shape
                )
            else:
                pads = forward_axes(self.auto_pad, known, self.k, self.s, self.d, self.pads)
            self._refuse_nothing(known, pads)
        return Problem(
            op=self.op, x=self.x, w=self.w, y=self.y, layout=self.layout, n=n, c=self.c, i=i, m=self.m, k=self.k,
            s=self.s, d=self.d, pads=pads, groups=self.groups, output_padding=self.output_padding, bias=self.bias,
            activation=self.activation, overflow=self.overflow,
        )  # fmt: skip

    def _refuse_nothing(self, i: Sequence[int], pads: Sequence[tuple[int, int]]) -> None:
        """Refuse extents that leave no result: one is empty only where an operand is (no batch, no pixels, no m).

        An operator of a specification may leave none, so a Problem may; who calls the facade meant something else.
        """
        for axis, (extent, (begin, end)) in enumerate(zip(i, pads, strict=True)):
            k, s, d = self.k[axis], self.s[axis], self.d[axis]
            reach = effective_kernel(k, d)
            if self.op == "conv" and 0 < extent < reach - begin - end:
                raise ArgumentError(
                    f"the kernel of w covers {reach} elements of spatial axis {axis} (extent {k}, dilations {d}), but "
                    f"x has {extent} there and pads add {begin} + {end}: enlarge x or give pads (auto_pad='SAME_UPPER')"
                )
            if self.op == "conv_transpose" and extent > 0:
                natural = natural_extent(extent, k, s, d, self.output_padding[axis])
                if natural <= begin + end:
                    raise ArgumentError(
                        f"pads {begin} + {end} crop all {natural} elements of the result along spatial axis {axis}: "
                        f"give smaller pads or a larger x"
                    )


def describe(op: str, x: NDArray[Any] | None, w: NDArray[Any], b: ArrayLike | None, strides: Ints, pads: Pads,
             auto_pad: str, dilations: Ints, groups: int, layout: str, activation: str | None,
             activation_params: Sequence[float] | None, out_dtype: DTypeLike | None, overflow: str | None,
             output_padding: Ints = 0, output_shape: Sequence[int] | None = None,
             x_dtype: DTypeLike | None = None) -> Description:  # fmt: skip
    rank = w.ndim - 2
    if rank < 1:
        given = "" if x is None else f" (x has shape {x.shape})"
        raise ArgumentError(
            f"w has shape {w.shape}{given}; it needs two channel axes and at least one spatial axis"
            + ("" if w.ndim else ": give the weights themselves, not their sizes")
        )
    if any(e == 0 for e in w.shape[2:]):
        raise ArgumentError(f"w has shape {w.shape}: a kernel extent of 0 has no meaning; every one must be at least 1")
    groups = _int(groups, "groups", least=1)
    x_type = w_type = of_array(w.dtype, "w")
    if x is not None:
        x_type = of_array(x.dtype, "x")
    elif x_dtype is not None:
        x_type = of_array(_dtype(x_dtype, "x_dtype"), "x_dtype")
    y_type = _result_type(x_type, w_type, out_dtype)
    c, m = _channels(op, w.shape, groups)
    auto_pad = _auto_pad(auto_pad)
    pairs = _pad_pairs(pads, rank)
    if auto_pad != "NOTSET" and any(v for pair in pairs for v in pair):
        raise ArgumentError(f"pads={shown(pads)} cannot be given together with auto_pad={auto_pad!r}; leave one out")
    shape = None if output_shape is None else _ints(output_shape, rank, "output_shape", least=1)
    s = _ints(strides, rank, "strides", least=1)
    d = _ints(dilations, rank, "dilations", least=1)
    extra = _ints(output_padding, rank, "output_padding", least=0)
    if any(e and e >= max(step, gap) for e, step, gap in zip(extra, s, d, strict=True)):
        raise ArgumentError(
            f"output_padding={shown(list(extra))} must be less than stride {s} or dilation {d} along every axis"
        )
    return Description(
        op=op, x=x_type.name, w=w_type.name, y=y_type.name, layout=_layout(layout, rank), c=c, m=m, groups=groups,
        k=tuple(w.shape[2:]), s=s, d=d,
        pads=pairs, auto_pad=auto_pad, bias=b is not None,
        activation=_activation(activation, activation_params, y_type),
        overflow=_overflow(overflow, y_type, is_chosen=out_dtype is not None), output_padding=extra, output_shape=shape,
    )  # fmt: skip


def axes_disagree(of_x: int, of_w: int, layout: str) -> str:
    """Message about numbers of spatial axes; an array without a batch, as pictures are, is the usual case."""
    text = f"x has {of_x + 2} axes, {of_x} of them spatial, w has {of_w} spatial axes; they must agree"
    if of_x == of_w - 1:
        picture = "" if layout == "NHWC" else " (a picture has its channels last: layout='NHWC')"
        return f"{text}: does x lack the axis of the batch? numpy.asarray(x)[None] has it{picture}"
    if of_x == of_w - 2:
        return f"{text}: does x lack those of batch and channels? numpy.asarray(x)[None, None] has them"
    return text


def _channels(op: str, shape: tuple[int, ...], groups: int) -> tuple[int, int]:
    """Input and output channels that weights of a shape connect."""
    if op == "conv":
        c, m = shape[1] * groups, shape[0]
        if m % groups:
            raise ArgumentError(f"groups={groups} does not divide the {m} output channels of w {shape}")
    else:
        c, m = shape[0], shape[1] * groups
        if c % groups:
            raise ArgumentError(f"groups={groups} does not divide the {c} input channels of w {shape}")
    return c, m


def _overflow(given: str | None, y: Dtype, *, is_chosen: bool) -> str:
    """What integers do that leave the range of the result; ``is_chosen`` tells whether the caller named its type."""
    if given is None:
        if y.name in ("u8", "i8") and not is_chosen:
            _warn_of_wrapping(y)
        return "wrap"
    if given not in ("wrap", "saturate"):
        raise ArgumentError(f"overflow={shown(given)} is not 'wrap' or 'saturate'{advice('overflow', given)}")
    if given == "saturate" and y.is_float:
        raise ArgumentError(f"overflow='saturate' is for integers; the result is {y.name}: leave it out")
    return given


def _warn_of_wrapping(y: Dtype) -> None:
    low, high = y.limits
    warn(
        f"sums of {y.name} are kept as {y.name}, x's type, and wrap beyond {low} to {high}: give out_dtype=numpy.int32 "
        f"for the whole sums, overflow='saturate' to clip them, or overflow='wrap' if wrapping is meant",
        OverflowWarning,
    )


def _activation(name: str | None, parameters: Sequence[float] | None, y: Dtype) -> Activation | None:
    return activation(name, parameters, is_float=y.is_float)


def _result_type(x: Dtype, w: Dtype, out_dtype: DTypeLike | None) -> Dtype:
    y = x if out_dtype is None else of_array(_dtype(out_dtype, "out_dtype"), "out_dtype")
    if x is not w:
        if not {x.name, w.name} <= {"u8", "i8"}:
            raise DtypeError(
                f"x has type {x.name}, w has type {w.name}; convert one of them (only u8 and i8 may be mixed)"
            )
        if y.name not in ("i32", "i64"):
            raise DtypeError(f"x of {x.name} with w of {w.name} needs out_dtype int32 or int64, not {y.name}")
        return y
    wider_float = x.name in ("f16", "bf16") and y.name == "f32"
    wider_integer = not x.is_float and not y.is_float and (y.bits > x.bits)
    if y is x or wider_float or wider_integer:
        return y
    raise DtypeError(
        f"out_dtype {y.name} does not fit inputs of type {x.name}; choose {x.name}"
        + (" or f32" if x.name in ("f16", "bf16") else "" if x.is_float else " or a wider integer")
    )


def _dtype(given: DTypeLike, name: str) -> np.dtype[Any]:
    try:
        return np.dtype(given)
    except TypeError:
        word = str(given).removeprefix("torch.")
        meant = next((row.numpy.name for row in DTYPES.values() if word in (row.name, row.numpy.name)), "float32")
        raise DtypeError(f"{name}={shown(given)} is not a dtype; pass one such as numpy.{meant}") from None


def bias_of(b: ArrayLike | None, d: Description | Problem, w: NDArray[Any]) -> NDArray[Any] | None:
    """The bias, whose type must be one that a sum of such products can take."""
    if b is None:
        return None
    y = DTYPES[d.y]
    array = as_array(b, "b", y.numpy if y.is_float else np.dtype(np.int64))
    given = of_array(array.dtype, "b")
    accumulator = "f64" if d.x == "f64" else "f32" if of_array(w.dtype, "w").is_float else None
    allowed = {d.w, d.y, accumulator} if accumulator else {d.w, d.y, "i32", "i64"}
    if given.name not in allowed:
        names = ", ".join(sorted(a for a in allowed if a))
        raise DtypeError(
            f"b has type {given.name}; with weights of {d.w} and a result of {d.y} it may be "
            f"{names}: convert it with b.astype"
        )
    if array.shape != (d.m,):
        raise ArgumentError(f"b has shape {array.shape}, the {d.m} output channels need ({d.m},)")
    return array


def _auto_pad(given: str) -> str:
    word = given.upper() if isinstance(given, str) else None
    if word not in AUTO_PADS:
        meant = advice("auto_pad", given, AUTO_PADS)
        raise ArgumentError(f"auto_pad={shown(given)} is not one of {', '.join(AUTO_PADS)}{meant}")
    return word


def _layout(given: str, rank: int) -> str:
    word = given.upper() if isinstance(given, str) else None
    if word in ("NCHW", _FIRST.get(rank, "NCHW")):
        return "NCHW"
    if word in ("NHWC", _LAST.get(rank, "NHWC")):
        return "NHWC"
    own = f" (or {_FIRST[rank]} and {_LAST[rank]})" if rank in (1, 3) else ""
    raise ArgumentError(
        f"layout={shown(given)} does not fit {rank} spatial axes; use NCHW or NHWC{own}{advice('layout', given)}"
    )


def _int(value: Any, name: str, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name}={shown(value)} must be a whole number") from None
    if number < least or isinstance(value, bool):
        raise ArgumentError(f"{name}={shown(value)} must be a whole number, at least {least}")
    if number >= 1 << 62:
        raise ArgumentError(f"{name}={shown(value)} is beyond 64-bit arithmetic; choose a smaller one")
    return number


def _ints(given: Ints, rank: int, name: str, least: int) -> tuple[int, ...]:
    if not isinstance(given, Sequence | np.ndarray) or isinstance(given, str):
        return (_int(given, name, least),) * rank
    if len(given) != rank:
        raise ArgumentError(
            f"{name}={shown(list(given))} has {len(given)} entries, w has {rank} spatial axes; give one per axis"
        )
    return tuple(_int(v, name, least) for v in given)


def _pad_pairs(given: Pads, rank: int) -> tuple[tuple[int, int], ...]:
    """Pads in any of the four spellings, as pairs."""
    if isinstance(given, str):
        raise ArgumentError(
            f"pads={shown(given)} must be a whole number or a list of them; words are for auto_pad"
            f"{advice('pads', given)}"
        )
    if not isinstance(given, Sequence | np.ndarray):
        one = _int(given, "pads", 0)
        return ((one, one),) * rank
    nested = [isinstance(v, Sequence | np.ndarray) and not isinstance(v, str) for v in given[: 2 * rank + 1]]
    if any(nested):
        if len(given) == rank and all(nested) and all(len(pair) == 2 for pair in given):  # type: ignore[arg-type]
            return tuple((_int(b, "pads", 0), _int(e, "pads", 0)) for b, e in given)  # type: ignore[misc]
    elif len(given) == rank:
        return tuple((one, one) for one in (_int(v, "pads", 0) for v in given))
    elif len(given) == 2 * rank:
        flat = [_int(v, "pads", 0) for v in given]
        return tuple(zip(flat[:rank], flat[rank:], strict=True))
    raise ArgumentError(
        f"pads={shown(list(given))} does not fit {rank} spatial axes; give an int, {rank} ints, {rank} (begin, end) "
        f"pairs, or {2 * rank} ints with all begins first"
    )
