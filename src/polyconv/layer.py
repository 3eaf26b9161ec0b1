"""The facade: ``conv`` and ``conv_transpose`` for arrays, ``Conv`` and ``ConvTranspose`` for fixed weights.

Arguments as people write them (an int or one per axis, any way to spell pads) become a ``Problem`` for
the extents that arrive.  What runs it, and how, is decided below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from polyconv.arguments import Description, Ints, Pads, axes_disagree, bias_of, describe
from polyconv.errors import ArgumentError
from polyconv.gpu.guests import stand_in, where
from polyconv.in_force import keep_where_settings_say
from polyconv.names import checked
from polyconv.planned import Plan, plan
from polyconv.prepared import Layer
from polyconv.problem.problem import Problem
from polyconv.recent import compute
from polyconv.runtime.guests import as_array, together
from polyconv.settings import resolve as setting
from polyconv.shown import Shown

__all__ = ["Conv", "ConvTranspose", "Layer", "Plan", "compute", "conv", "conv_transpose", "plan"]


@checked
def conv(x: ArrayLike, w: ArrayLike, b: ArrayLike | None = None, *, strides: Ints = 1, pads: Pads = 0,
         auto_pad: str = "NOTSET", dilations: Ints = 1, groups: int = 1, layout: str = "NCHW",
         activation: str | None = None, activation_params: Sequence[float] | None = None,
         residual: ArrayLike | None = None, out: Any = None, out_dtype: DTypeLike | None = None,
         overflow: str | None = None, accuracy: str | None = None, threads: int | None = None,
         workspace_limit: int | None = None) -> Any:  # fmt: skip
    """Convolve (cross-correlate, as neural networks do) an array of any rank.

    Parameters
    ----------
    x : array_like, shape (n, c, extents...) or, with layout NHWC, (n, extents..., c)
        Input; any strides, read-only too.  It is never copied nor written.  Tensors of other libraries do, too; a list
        takes the type of w.  Where all operands lie on one NVIDIA GPU (PyTorch, CuPy, Numba, JAX), the result is made
        there, by the same library, on its current stream.
    w : array_like, shape (m, c / groups, kernel extents...)
        Weights, in this order for both layouts.
    b : array_like, shape (m,), optional
        Bias.
    strides, dilations : int or sequence of int
        One for all spatial axes, or one each.
    pads : int, n ints, n (begin, end) pairs, or the flat list of 2 n of ONNX
        Zeros around the input; they contribute nothing, not even to Inf or NaN weights.
    auto_pad : str
        ``NOTSET``, ``VALID``, ``SAME_UPPER`` or ``SAME_LOWER`` as in ONNX; other than NOTSET excludes pads.
    groups : int
        Divides c and m.
    layout : str
        ``NCHW`` or ``NHWC`` for any rank, or the rank's own spelling (``NCW``, ``NDHWC``).
    activation, activation_params : str, sequence of float
        Applied last; see ``polyconv.problem.epilogue.ACTIVATIONS``.
    residual : array_like, shape of the result
        Added before the activation.
    out : writable array, optional
        Takes the result and is returned; it may be exactly the residual's memory.
    out_dtype : dtype, optional
        x's by default; float32 for float16 and bfloat16, or a wider integer.
    overflow : str, optional
        ``wrap`` (the default) or ``saturate``, for integers whose sums leave the range of the result.
    accuracy : str
        ``fast`` or ``strict`` (own error bounds only, subnormals kept).  On a GPU also ``tf32``: products of float32
        rounded to 11 bits, which nothing else does.
    threads : int
        Most threads.
    workspace_limit : int
        Most bytes the call may take beyond its result.

    Returns
    -------
    ndarray
        C-contiguous in the axis order of ``layout``, whatever x is; ``out`` if that was given.

    Raises
    ------
    ArgumentError, DtypeError
        Naming the argument, the values that disagree and the way out; for a kernel larger than the padded
        image too.  A result is empty only where an operand is: a batch, image or w without elements.
    Unsupported
        If nothing fits into ``workspace_limit``.

    Warns
    -----
    OverflowWarning
        If sums of 8-bit numbers stay in 8 bits and neither ``out_dtype`` nor ``overflow`` says that this is meant.

    Examples
    --------
    >>> import numpy as np, polyconv
    >>> polyconv.conv(np.ones((1, 1, 3)), np.ones((1, 1, 2)))
    array([[[2., 2.]]])

    Sums of pixels need more than 8 bits, or an upper end:

    >>> pixels, box = np.full((1, 1, 3), 200, np.uint8), np.ones((1, 1, 2), np.uint8)
    >>> polyconv.conv(pixels, box, out_dtype=np.int32)
    array([[[400, 400]]], dtype=int32)
    >>> polyconv.conv(pixels, box, overflow="saturate")
    array([[[255, 255]]], dtype=uint8)
    """
    if not (type(x) is type(w) is np.ndarray) and where({"x": x, "w": w}) is not None:
        d = describe("conv", stand_in(x, "x"), stand_in(w, "w"), b, strides, pads, auto_pad, dilations, groups, layout,
                     activation, activation_params, out_dtype, overflow)  # fmt: skip
        return _once_on_gpu(d, x, w, b, residual, out, accuracy, workspace_limit)
    x, w = together(x, w)
    d = describe("conv", x, w, b, strides, pads, auto_pad, dilations, groups, layout, activation, activation_params,
                 out_dtype, overflow)  # fmt: skip
    return _once(d, x, w, b, residual, out, accuracy, threads, workspace_limit)


@checked
def conv_transpose(x: ArrayLike, w: ArrayLike, b: ArrayLike | None = None, *, strides: Ints = 1, pads: Pads = 0,
                   auto_pad: str = "NOTSET", dilations: Ints = 1, groups: int = 1, output_padding: Ints = 0,
                   output_shape: Sequence[int] | None = None, layout: str = "NCHW", activation: str | None = None,
                   activation_params: Sequence[float] | None = None, residual: ArrayLike | None = None,
                   out: Any = None, out_dtype: DTypeLike | None = None, overflow: str | None = None,
                   accuracy: str | None = None, threads: int | None = None,
                   workspace_limit: int | None = None) -> Any:  # fmt: skip
    """Transposed convolution, the adjoint of ``conv``; pads crop the result, as in ONNX ConvTranspose.

    Parameters
    ----------
    w : array_like, shape (c, m / groups, kernel extents...)
        Weights, input channels first, in this order for both layouts.
    output_padding : int or sequence of int
        Extra elements at the high end.
    output_shape : sequence of int, optional
        Spatial extents of the result; the pads follow from them (semantics of ONNX ConvTranspose-11).
    others
        As for ``conv``.

    Examples
    --------
    >>> import numpy as np, polyconv
    >>> polyconv.conv_transpose(np.ones((1, 1, 2)), np.ones((1, 1, 3)), strides=2)
    array([[[1., 1., 2., 1., 1.]]])
    """
    if not (type(x) is type(w) is np.ndarray) and where({"x": x, "w": w}) is not None:
        d = describe("conv_transpose", stand_in(x, "x"), stand_in(w, "w"), b, strides, pads, auto_pad, dilations,
                     groups, layout, activation, activation_params, out_dtype, overflow, output_padding,
                     output_shape)  # fmt: skip
        return _once_on_gpu(d, x, w, b, residual, out, accuracy, workspace_limit)
    x, w = together(x, w)
    d = describe("conv_transpose", x, w, b, strides, pads, auto_pad, dilations, groups, layout, activation,
                 activation_params, out_dtype, overflow, output_padding, output_shape)  # fmt: skip
    return _once(d, x, w, b, residual, out, accuracy, threads, workspace_limit)


class _Described(Shown):
    """What ``Conv`` and ``ConvTranspose`` share: a description, which fits any extents, and a layer."""

    _op = ""
    __slots__ = ("_arguments", "_description")

    def _make(self, w: ArrayLike, b: ArrayLike | None, options: dict[str, Any], **keywords: Any) -> None:
        if where({"w": w}) is not None:
            shown = stand_in(w, "w")
            self._description = d = describe(self._op, None, shown, b, **keywords)
            self._layer = _on_gpu(d, w, b, shown, **options)
        else:
            w = as_array(w, "w")
            self._description = d = describe(self._op, None, w, b, **keywords)
            self._layer = Layer(d.problem, w, bias_of(b, d, w), layout=d.layout, **options)
        given = self._layer.weights
        self._arguments = (given.w, given.bias, {**keywords, **options, "overflow": d.overflow})

    def __call__(self, x: ArrayLike, *, residual: ArrayLike | None = None, out: Any = None) -> Any:
        """Convolve x; see ``conv`` for x, residual, out and errors."""
        return self._layer(x, residual=residual, out=out)

    @property
    def problem(self) -> Problem:
        """The problem, with unknown batch and extents."""
        return self._description.problem(None, (None,) * len(self._description.k))

    @property
    def auto_pad(self) -> str:
        """``NOTSET``, or what makes the pads of each input."""
        return self._description.auto_pad

    def plan(self, shape: Sequence[int], *, rigor: str | None = None) -> Plan:
        """Plan for an input shape; a rigor given decides now, and the layer keeps that choice."""
        return Plan.of(self._layer.plan(shape, rigor=rigor))

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (type(self), *self._arguments)


class Conv(_Described):
    """``conv`` with its weights fixed: they are copied and packed once, for inputs of any extents.

    Weights and geometry are attributes: ``weight``, ``bias``, ``strides``, ``pads``, ``problem`` and so on.  Safe to
    call from any thread.

    Parameters
    ----------
    w, b, strides, pads, auto_pad, dilations, groups, layout, activation, activation_params
        As for ``conv``.
    out_dtype, overflow, threads
        As for ``conv``.
    x_dtype : dtype, optional
        Element type of the inputs to come; that of w by default.  Only uint8 and int8 may differ.
    accuracy, workspace_limit
        As for ``conv``; where they are left out, the settings in force now count, not those of a call.
    rigor : str, optional
        ``estimate`` chooses by arithmetic, ``measure`` and ``patient`` by timing.

    Examples
    --------
    >>> import numpy as np, polyconv
    >>> layer = polyconv.Conv(np.ones((1, 1, 2)), pads=[(1, 0)])
    >>> layer(np.ones((1, 1, 3)))
    array([[[1., 2., 2.]]])
    """

    _op = "conv"
    __slots__ = ()

    @checked
    def __init__(self, w: ArrayLike, b: ArrayLike | None = None, *, strides: Ints = 1, pads: Pads = 0,
                 auto_pad: str = "NOTSET", dilations: Ints = 1, groups: int = 1, layout: str = "NCHW",
                 activation: str | None = None, activation_params: Sequence[float] | None = None,
                 out_dtype: DTypeLike | None = None, x_dtype: DTypeLike | None = None, overflow: str | None = None,
                 accuracy: str | None = None, threads: int | None = None, workspace_limit: int | None = None,
                 rigor: str | None = None) -> None:  # fmt: skip
        options = {"accuracy": accuracy, "threads": threads, "workspace_limit": workspace_limit, "rigor": rigor}
        self._make(w, b, options, strides=strides, pads=pads, auto_pad=auto_pad, dilations=dilations, groups=groups,
                   layout=layout, activation=activation, activation_params=activation_params, out_dtype=out_dtype,
                   overflow=overflow, x_dtype=x_dtype)  # fmt: skip


class ConvTranspose(_Described):
    """``conv_transpose`` with its weights fixed; see ``Conv``.

    Examples
    --------
    >>> import numpy as np, polyconv
    >>> layer = polyconv.ConvTranspose(np.ones((1, 1, 3)), strides=2)
    >>> layer(np.ones((1, 1, 2)))
    array([[[1., 1., 2., 1., 1.]]])
    >>> layer.plan((1, 1, 2)).problem.y_shape
    (1, 1, 5)
    """

    _op = "conv_transpose"
    __slots__ = ()

    @checked
    def __init__(self, w: ArrayLike, b: ArrayLike | None = None, *, strides: Ints = 1, pads: Pads = 0,
                 auto_pad: str = "NOTSET", dilations: Ints = 1, groups: int = 1, output_padding: Ints = 0,
                 output_shape: Sequence[int] | None = None, layout: str = "NCHW", activation: str | None = None,
                 activation_params: Sequence[float] | None = None, out_dtype: DTypeLike | None = None,
                 x_dtype: DTypeLike | None = None, overflow: str | None = None, accuracy: str | None = None,
                 threads: int | None = None, workspace_limit: int | None = None,
                 rigor: str | None = None) -> None:  # fmt: skip
        options = {"accuracy": accuracy, "threads": threads, "workspace_limit": workspace_limit, "rigor": rigor}
        self._make(w, b, options, strides=strides, pads=pads, auto_pad=auto_pad, dilations=dilations, groups=groups,
                   layout=layout, activation=activation, activation_params=activation_params, out_dtype=out_dtype,
                   overflow=overflow, output_padding=output_padding, output_shape=output_shape,
                   x_dtype=x_dtype)  # fmt: skip

    @property
    def output_padding(self) -> tuple[int, ...]:
        """Extra elements at the high end, by axis."""
        return self._description.output_padding

    @property
    def output_shape(self) -> tuple[int, ...] | None:
        """Spatial extents of every result, if they were given."""
        return self._description.output_shape


def _remake(kind: Callable[..., Any], w: Any, b: Any, keywords: dict[str, Any]) -> Any:
    return kind(w, b, **keywords)


def _once(d: Description, x: NDArray[Any], w: NDArray[Any], b: ArrayLike | None, residual: ArrayLike | None, out: Any,
          accuracy: str | None, threads: int | None, workspace_limit: int | None) -> Any:  # fmt: skip
    problem = _fitted(d, x.shape, w.shape, residual is not None)
    return compute(problem, x, w, bias_of(b, d, w), residual, out=out, accuracy=accuracy, threads=threads,
                   workspace_limit=workspace_limit)  # fmt: skip


@lru_cache(256)
def _fitted(d: Description, x: tuple[int, ...], w: tuple[int, ...], residual: bool) -> Problem:
    """The problem of a description for an input of a shape."""
    if len(x) != len(d.k) + 2:
        raise ArgumentError(f"{axes_disagree(len(x) - 2, len(d.k), d.layout)} (x has shape {x}, w {w})")
    n, *rest = x
    c, i = (rest[-1], rest[:-1]) if d.layout == "NHWC" else (rest[0], rest[1:])
    if c != d.c:
        raise ArgumentError(
            f"x has {c} channels (shape {x}, layout {d.layout}), w of shape {w} with groups={d.groups} "
            f"takes {d.c}; check layout, groups or the weights' axis order"
        )
    problem = d.problem(n, tuple(i))
    return replace(problem, residual=True) if residual else problem


# -- arrays on a GPU -------------------------------------------------------------------------------


def _once_on_gpu(d: Description, x: Any, w: Any, b: Any, residual: Any, out: Any, accuracy: str | None,
                 workspace_limit: int | None) -> Any:  # fmt: skip
    from polyconv.gpu.layer import compute as compute_there

    where({"x": x, "w": w, "b": b, "residual": residual, "out": out})
    shown = stand_in(w, "w")
    if b is not None:
        bias_of(stand_in(b, "b"), d, shown)
    problem = _fitted(d, tuple(x.shape), shown.shape, residual is not None)
    keep_where_settings_say()
    return compute_there(problem, x, w, b, residual, out=out, accuracy=_accuracy_there(accuracy),
                         limit=setting("workspace_limit", workspace_limit))  # fmt: skip


def _on_gpu(d: Description, w: Any, b: Any, shown: NDArray[Any], *, accuracy: str | None, threads: int | None,
            workspace_limit: int | None, rigor: str | None) -> Any:  # fmt: skip
    """A layer whose weights lie on a GPU; it has no use for threads."""
    from polyconv.gpu.layer import DeviceLayer

    where({"w": w, "b": b})
    if b is not None:
        bias_of(stand_in(b, "b"), d, shown)
    keep_where_settings_say()
    return DeviceLayer(d.problem, w, b, layout=d.layout, accuracy=_accuracy_there(accuracy),
                       limit=setting("workspace_limit", workspace_limit), rigor=setting("rigor", rigor))  # fmt: skip


def _accuracy_there(given: str | None) -> str:
    """Accuracy on a GPU, which has one more: ``tf32``, products of 11 bits, when it is asked for by name."""
    return "tf32" if given == "tf32" else str(setting("accuracy", given))
