"""``auto_pad`` and explicit output extents turned into one (begin, end) pair of pads per spatial axis.

Each rule is a function of the whole numbers of one axis (extent ``n``, taps ``k``, stride ``s``, dilation
``d``), so that a rule reads like its formula and can be tested exhaustively.  It must not know which
dialect asks, what its attributes are called, nor what to do with sizes that are not known yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyconv.problem.extents import effective_kernel

__all__ = [
    "AUTO_PADS",
    "backprop_pads",
    "forward_axes",
    "forward_pads",
    "natural_extent",
    "same_pads",
    "same_pads_onnxruntime",
    "transposed_axes",
    "transposed_pads",
]

Pair = tuple[int, int]
Same = Callable[[int, int, int, int, bool], Pair]
Transposed = Callable[[str, int, int, int, int, int, Pair, "int | None"], Pair]

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def same_pads(n: int, k: int, s: int, d: int, upper: bool) -> Pair:
    """Pads that make a forward output ``ceil(n / s)`` long (semantics 2.3).

    The total is ``max(0, (o - 1) s + ke - n)``; an odd one puts the extra element at the end if ``upper``,
    else at the beginning.  Where the stride exceeds the kernel nothing is cropped.
    """
    total = max(0, (-(-n // s) - 1) * s + effective_kernel(k, d) - n)
    less, more = total // 2, total - total // 2
    return (less, more) if upper else (more, less)


def same_pads_onnxruntime(n: int, k: int, s: int, d: int, upper: bool) -> Pair:
    """Like ``same_pads``, but as ONNX Runtime computes it: a negative total crops (semantics 2.3).

    A negative total grows by one, because the engine finds its trial output short, and half of it,
    rounded towards zero, comes off the beginning: the output is still ``ceil(n / s)`` long, but all windows
    move towards the end.
    The engine refuses dilated kernels here, so for them the specification's rule holds.
    """
    total = (-(-n // s) - 1) * s + k - n
    if d != 1 or total >= 0:
        return same_pads(n, k, s, d, upper)
    total += 1
    crop = (-total if upper else max(0, -total - 1)) // 2
    return -crop, crop


def forward_pads(auto_pad: str, n: int, k: int, s: int, d: int, pads: Pair, same: Same = same_pads) -> Pair:
    """Pads of a forward convolution along one axis (semantics 2.2, 2.3).

    Parameters
    ----------
    auto_pad : str
        One of ``AUTO_PADS``.
    n, k, s, d : int
        Input extent, taps, stride, dilation.
    pads : (int, int)
        What NOTSET takes.
    same : callable
        The rule of SAME_UPPER and SAME_LOWER.
    """
    if auto_pad == "NOTSET":
        return pads
    if auto_pad == "VALID":
        return 0, 0
    return same(n, k, s, d, auto_pad == "SAME_UPPER")


def natural_extent(n: int, k: int, s: int, d: int, output_padding: int) -> int:
    """Extent of a transposed convolution before pads crop it: ``(n - 1) s + ke + output_padding``."""
    return (n - 1) * s + effective_kernel(k, d) + output_padding


def transposed_pads(
    auto_pad: str, n: int, k: int, s: int, d: int, output_padding: int, pads: Pair, out: int | None = None
) -> Pair:
    """Pads of an ONNX ConvTranspose along one axis, the same for all versions (semantics 4.2, 4.3).

    The output is ``natural_extent - begin - end`` long.  A given ``out`` longer than natural gives a
    negative end: the missing elements are appended there and hold the bias.

    Parameters
    ----------
    auto_pad : str
        One of ``AUTO_PADS``.  Without ``out`` SAME_* asks for ``n * s`` elements and takes fewer where
        there are fewer; with it the word only says on which side an odd total has its extra element:
        at the end for SAME_UPPER, else at the beginning.
    n, k, s, d, output_padding : int
        Input extent, taps, stride, dilation, extra elements at the high end.
    pads : (int, int)
        What NOTSET takes when no ``out`` is given.
    out : int, optional
        Requested output extent (the attribute output_shape).
    """
    natural = natural_extent(n, k, s, d, output_padding)
    if out is None and auto_pad == "NOTSET":
        return pads
    if out is None and auto_pad == "VALID":
        return 0, 0
    total = max(0, natural - (n * s if out is None else out))
    begin = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
    return begin, (total if out is None else natural - out) - begin


def backprop_pads(
    auto_pad: str, n: int, k: int, s: int, d: int, output_padding: int, pads: Pair, out: int | None = None
) -> Pair:
    """Pads of an OpenVINO ConvolutionBackpropData along one axis, as its engine has them (semantics 6.3).

    Parameters and result as in ``transposed_pads``; three things differ.  SAME_* without ``out`` pads
    nothing; with it the sides are mirrored; and NOTSET keeps its begin pad when ``out`` is given.
    """
    natural = natural_extent(n, k, s, d, output_padding)
    if out is None:
        return pads if auto_pad == "NOTSET" else (0, 0)
    total = max(0, natural - out)
    begin = {
        "NOTSET": pads[0],
        "VALID": 0,
        "SAME_UPPER": total - total // 2,
        "SAME_LOWER": total // 2,
    }[auto_pad]
    return begin, natural - out - begin


def forward_axes(
    auto_pad: str,
    n: Sequence[int],
    k: Sequence[int],
    s: Sequence[int],
    d: Sequence[int],
    pads: Sequence[Pair],
    same: Same = same_pads,
) -> tuple[Pair, ...]:
    """``forward_pads`` along every axis; one entry per axis in each sequence."""
    axes = zip(n, k, s, d, pads, strict=True)
    return tuple(forward_pads(auto_pad, *axis, same) for axis in axes)


def transposed_axes(
    auto_pad: str,
    n: Sequence[int],
    k: Sequence[int],
    s: Sequence[int],
    d: Sequence[int],
    output_padding: Sequence[int],
    pads: Sequence[Pair],
    out: Sequence[int] | None = None,
    rule: Transposed = transposed_pads,
) -> tuple[Pair, ...]:
    """``transposed_pads`` (or ``backprop_pads``) along every axis; one entry per axis in each sequence."""
    wanted: Sequence[int | None] = (None,) * len(n) if out is None else out
    axes = zip(n, k, s, d, output_padding, pads, wanted, strict=True)
    return tuple(rule(auto_pad, *axis) for axis in axes)
