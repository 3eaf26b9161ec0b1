"""The words people bring from other libraries, and the word that is meant here: one table for keywords, one for values.

A callable looks an unknown keyword up among its own, so ``stride`` is answered with ``strides`` by the facade and
by every dialect that has it.  It must not know what any word does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from polyconv.errors import shown

__all__ = ["advice", "checked", "nearest", "unknown"]

P = ParamSpec("P")
R = TypeVar("R")

_SAME = (
    ("x", "X", "input", "inputs", "data", "image", "images", "img", "volume", "array", "lhs", "in1"),
    ("w", "W", "weight", "weights", "kernel", "kernels", "filter", "filters", "rhs", "in2"),
    ("b", "B", "bias", "biases"),
    ("residual", "Z", "z", "skip", "add", "addend", "shortcut"),
    ("out", "output", "y", "Y", "dst", "result"),
    ("strides", "stride", "subsample", "window_strides", "step", "steps"),
    ("pads", "pads_begin", "padding", "pad", "paddings", "pads_end"),
    ("auto_pad", "autopad", "auto_padding", "pad_mode", "mode"),
    ("dilations", "dilation", "dilation_rate", "rate", "rhs_dilation", "atrous"),
    ("groups", "group", "num_groups", "feature_group_count", "n_groups"),
    ("layout", "data_format", "memory_format", "data_layout", "dimension_numbers", "channels_last", "format"),
    ("activation", "act", "activations", "nonlinearity", "fused_activation", "activation_function"),
    ("activation_params", "activation_parameters", "act_params", "alpha", "negative_slope"),
    ("out_dtype", "dtype", "output_dtype", "result_dtype", "preferred_element_type", "out_type"),
    ("overflow", "saturate", "clip", "clamp"),
    ("accuracy", "precision"),
    ("threads", "num_threads", "n_threads", "nthreads", "n_jobs", "workers", "intra_op_num_threads"),
    ("workspace_limit", "workspace", "memory_limit", "max_workspace", "workspace_size"),
    ("rigor", "effort", "tune", "flags"),
    ("output_padding", "output_pad", "out_pad", "adj", "adjs"),
    ("output_shape", "output_size", "out_shape", "out_size"),
    ("sess_options", "session_options", "options"),
    ("path_or_bytes", "model", "path", "model_path", "model_bytes", "path_or_bytes_or_model"),
    ("weights", "bin", "bin_path"),
)  # fmt: skip
"""Words that mean the same; those of the callable asked are among them."""

_SIZES = "the weights w carry their sizes: an array of shape (out channels, in channels / groups, *kernel extents)"
_ZEROS = "pads are zeros here; for other borders pad x with numpy.pad"
_NONE_SUCH = {
    "kernel_size": _SIZES, "kernel_shape": _SIZES, "in_channels": _SIZES, "out_channels": _SIZES,
    "padding_mode": _ZEROS, "boundary": _ZEROS, "fillvalue": _ZEROS, "cval": _ZEROS,
    "device": "convolutions run on the CPU", "requires_grad": "there are no gradients here",
}  # fmt: skip
"""Words that have no counterpart, with the reason."""

_SIDES = "'SAME_UPPER' (an odd element of padding at the end, as in TensorFlow and PyTorch) or 'SAME_LOWER' (first)"
_VALUES: Mapping[str, Mapping[str, str]] = {
    "auto_pad": {
        "same": _SIDES, "explicit": "'NOTSET', and the numbers as pads", "none": "'NOTSET'", "zeros": "'NOTSET'",
        "full": "pads of (kernel - 1) * dilation instead",
    },
    "pads": {
        "same": f"auto_pad={_SIDES}", "same_upper": "auto_pad='SAME_UPPER'", "same_lower": "auto_pad='SAME_LOWER'",
        "valid": "pads=0 or auto_pad='VALID'", "full": "pads of (kernel - 1) * dilation",
    },
    "layout": {
        "channels_last": "'NHWC'", "channels_first": "'NCHW'", "nlc": "'NWC'", "ncl": "'NCW'",
        "hwc": "'NHWC', and x[None] for the batch axis", "chw": "'NCHW', and x[None] for the batch axis",
        "hw": "'NCHW', and x[None, None] for the axes of batch and channels",
    },
    "activation": {
        "swish": "'Silu'", "sigmoidlinearunit": "'Silu'", "relu6": "'Clip' with activation_params=[0, 6]",
        "clamp": "'Clip'", "hardtanh": "'Clip' with activation_params=[-1, 1]", "hswish": "'HardSwish'",
        "linear": "None", "identity": "None", "none": "None", "": "None",
    },
    "overflow": {"clip": "'saturate'", "clamp": "'saturate'", "saturating": "'saturate'", "wrapping": "'wrap'"},
}  # fmt: skip
"""By keyword, values that other libraries use there, in lower case without underscores between words."""

_ORDER = ("strides", "pads", "dilations", "groups")
_TRANSPOSED_ORDER = ("strides", "pads", "output_padding", "groups", "dilations")
"""What follows the bias by position in ``torch.nn.functional.conv2d`` and ``conv_transpose2d``."""


def nearest(word: str, known: Collection[str]) -> str | None:
    """The known word that somebody may have meant: another's word for the same thing, or one spelled alike."""
    for same in _SAME:
        if word in same:
            found = next((name for name in same if name in known), None)
            if found is not None:
                return found
    from difflib import get_close_matches  # here, as only errors need it

    lower = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), list(lower), 1, 0.6)
    return lower[close[0]] if close else None


def advice(keyword: str, value: Any, known: Collection[str] = ()) -> str:
    """``; did you mean ...`` for a value that a keyword does not take, or nothing.

    Parameters
    ----------
    known : collection of str
        The values that it takes.
    """
    if not isinstance(value, str):
        return ""
    from difflib import get_close_matches  # here, as only errors need it

    table = _VALUES.get(keyword, {})
    said = table.get(value.lower()) or table.get(value.lower().replace("_", ""))
    if said is None:
        plain = {name.lower().replace("_", ""): name for name in known}
        close = get_close_matches(value.lower().replace("_", ""), list(plain), 1, 0.75)
        said = repr(plain[close[0]]) if close else None
    return "" if said is None else f"; did you mean {said}?"


def unknown(owner: str, given: Mapping[str, Any], known: Sequence[str]) -> str:
    """Message about keywords that a callable does not have.

    Parameters
    ----------
    owner : str
        The callable's name.
    given : mapping
        The unknown keywords and their values.
    known : sequence of str
        Its own keywords.
    """
    meant, reasons, lost = [], [], []
    for name, value in given.items():
        word = nearest(name, known)
        if name in _NONE_SUCH:
            reasons.append(_NONE_SUCH[name])
        elif word is None:
            lost.append(name)
        else:
            meant.append(_keyword(word, value))
    text = f"{owner} has no keyword {', '.join(repr(name) for name in given)}"
    if meant:
        text += f"; did you mean {', '.join(meant)}?"
    for reason in dict.fromkeys(reasons):
        text += f"; {reason}"
    return text + (f"; it takes {', '.join(known)}" if lost else "")


def _keyword(name: str, value: Any) -> str:
    """A keyword with its value, where that is short; a word given for pads is one for auto_pad."""
    if name == "pads" and isinstance(value, str):
        return _VALUES["pads"].get(value.lower(), f"auto_pad={value!r}")
    if isinstance(value, bool) or not isinstance(value, int | float | str | list | tuple):
        return name
    text = shown(value)
    return f"{name}={text}" if len(text) <= 40 else name


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose error for unknown keywords, or too many arguments by position, says what was meant."""
    code = function.__code__
    by_position, count = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[:count]
    of_class = names[0] == "self"
    known = names[of_class:]
    owner = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        if len(args) > by_position:
            raise TypeError(_too_many(owner, args[of_class:], known, by_position - of_class))
        if strangers := {name: value for name, value in keywords.items() if name not in known}:
            raise TypeError(unknown(f"{owner}()", strangers, known))
        return function(*args, **keywords)

    return call


def _too_many(owner: str, args: Sequence[Any], known: Sequence[str], most: int) -> str:
    leading = ", ".join(known[:most])
    if all(isinstance(value, int) for value in args):
        return f"{owner}() takes {leading} by position, and was given {len(args)} numbers: {_SIZES}"
    order = _TRANSPOSED_ORDER if "output_padding" in known else _ORDER
    if not set(order).issubset(known) or len(args) > most + len(order):
        return f"{owner}() takes {leading} by position, and was given {len(args)} arguments: give the others by name"
    words = ", ".join(_keyword(name, value) for name, value in zip(order, args[most:], strict=False))
    return f"{owner}() takes {leading} by position and the rest by name: did you mean {words}?"

