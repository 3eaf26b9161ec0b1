"""Calls of filters by chance: a function, its arguments and the field, for comparison with scipy.ndimage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

MODES = ("reflect", "constant", "nearest", "mirror", "wrap", "grid-mirror", "grid-constant", "grid-wrap")
TYPES = ("?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")
FUNCTIONS = (
    "correlate", "convolve", "correlate1d", "convolve1d", "gaussian_filter", "gaussian_filter1d", "uniform_filter",
    "uniform_filter1d", "sobel", "prewitt", "laplace", "gaussian_laplace", "gaussian_gradient_magnitude",
)  # fmt: skip


@dataclass
class Call:
    """A call; ``amplitude`` bounds the sum of the sizes of all weights, by which an error may grow."""

    function: str
    input: Array
    arguments: list[Any]
    keywords: dict[str, Any] = field(default_factory=dict)
    amplitude: float = 1.0

    def __str__(self) -> str:
        shapes = [a.shape if isinstance(a, np.ndarray) else a for a in self.arguments]
        x = self.input
        return f"{self.function} of {x.dtype} {x.shape} {x.strides}: {shapes} {self.keywords}"


def lying(rng: np.random.Generator, x: Array) -> Array:
    """The same numbers in memory of another kind: transposed, strided, reversed, or a part of more."""
    kind = rng.integers(5)
    if kind == 1:
        return np.asfortranarray(x)
    if kind == 2:
        view = np.zeros([2 * n for n in x.shape], x.dtype)[tuple(slice(None, None, 2) for _ in x.shape)]
    elif kind == 3:
        view = np.zeros(x.shape, x.dtype)[tuple(slice(None, None, -1) for _ in x.shape)]
    elif kind == 4:
        view = np.zeros([n + 3 for n in x.shape], x.dtype)[tuple(slice(1, 1 + n) for n in x.shape)]
    else:
        return x
    view[...] = x
    return view


def picture(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Numbers of the whole range of a type, or small ones."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    if kind.kind == "f":
        return (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4)).astype(kind)
    info = np.iinfo(kind)
    low, high = (info.min, info.max) if rng.random() < 0.5 else (max(info.min, -50), 100)
    return rng.integers(low, high, shape, dtype=kind, endpoint=True)


def weights(rng: np.random.Generator, shape: tuple[int, ...], whole: bool) -> Array:
    w = rng.integers(-4, 5, shape).astype(float) if whole else rng.standard_normal(shape)
    if rng.random() < 0.2:
        w[rng.random(shape) < 0.5] = 0
    if rng.random() < 0.2:
        w = np.abs(w) / max(1.0, float(np.abs(w).sum()))
    return w


def by_chance(seed: int) -> Call:
    """A call that SciPy takes, on small fields of 1 to 4 axes."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 5))
    most = (0, 400, 40, 14, 8)[rank]
    shape = tuple(int(n) for n in rng.integers(1, most + 1, rank))
    function = str(rng.choice(FUNCTIONS))
    x = lying(rng, picture(rng, shape, str(rng.choice(TYPES))))
    keywords: dict[str, Any] = {"mode": str(rng.choice(MODES)), "cval": float(rng.choice([0, 1.5, -3, 250.25]))}
    if rng.random() < 0.4 or (x.dtype == bool and function not in ("correlate", "convolve", "sobel")):
        keywords["output"] = str(rng.choice(TYPES[1:]))
    call = Call(function, x, [], keywords)
    _ARGUMENTS[function](rng, call)
    return call


def _axes(rng: np.random.Generator, call: Call) -> tuple[int, ...]:
    """Some axes, named if they are not all."""
    rank = call.input.ndim
    axes = tuple(sorted(rng.permutation(rank)[: rng.integers(1, rank + 1)].tolist()))
    if len(axes) < rank:
        call.keywords["axes"] = axes
    return axes


def _origin(rng: np.random.Generator, size: int, is_convolution: bool) -> int:
    low, high = -(size // 2), (size - 1) // 2
    return int(rng.integers(-high, -low + 1) if is_convolution else rng.integers(low, high + 1)) if size > 1 else 0


def _window(rng: np.random.Generator, call: Call) -> None:
    axes = _axes(rng, call)
    reflects = call.keywords["mode"] in ("reflect", "grid-mirror")
    # SciPy reads beyond the field where a window that is reflected is several times as long as it
    most = [min((0, 40, 9, 5, 4)[len(axes)], 2 * call.input.shape[a] if reflects else 99) for a in axes]
    shape = tuple(int(rng.integers(1, n + 1)) for n in most)
    w = weights(rng, shape, rng.random() < 0.5)
    if len(shape) == 2 and rng.random() < 0.25:
        w = np.outer(*(weights(rng, (n,), True) for n in shape))
    is_convolution = call.function == "convolve"
    origins = tuple(_origin(rng, n, is_convolution and n % 2 == 1) if n % 2 or not is_convolution else 0 for n in shape)
    call.keywords["origin"] = origins
    call.arguments, call.amplitude = [w], float(np.abs(w).sum())


def _line(rng: np.random.Generator, call: Call) -> None:
    size = int(rng.integers(1, 30))
    w = weights(rng, (size,), rng.random() < 0.5)
    half = rng.random()
    w = w + w[::-1] if half < 0.3 else w - w[::-1] if half < 0.6 else w
    call.keywords["axis"] = int(rng.integers(-call.input.ndim, call.input.ndim))
    is_convolution = call.function == "convolve1d"
    call.keywords["origin"] = _origin(rng, size, is_convolution) if size % 2 or not is_convolution else 0
    call.arguments, call.amplitude = [w], float(np.abs(w).sum())


def _gaussian(rng: np.random.Generator, call: Call) -> None:
    call.arguments = [float(rng.random() * 3 + 0.5)]
    if call.function == "gaussian_filter1d":
        call.keywords["axis"] = int(rng.integers(-call.input.ndim, call.input.ndim))
    elif call.function != "gaussian_gradient_magnitude":  # there SciPy smooths along axes that are not named
        _axes(rng, call)
    if call.function.startswith("gaussian_filter"):
        call.keywords["order"] = int(rng.integers(0, 3))
    call.amplitude = 100.0


def _mean(rng: np.random.Generator, call: Call) -> None:
    call.arguments = [int(rng.integers(1, 40))]
    if call.function == "uniform_filter1d":
        call.keywords["axis"] = int(rng.integers(-call.input.ndim, call.input.ndim))
    else:
        _axes(rng, call)


def _differences(rng: np.random.Generator, call: Call) -> None:
    call.keywords["axis"] = int(rng.integers(-call.input.ndim, call.input.ndim))
    call.amplitude = 2 * 4.0 ** (call.input.ndim - 1)


def _laplace(rng: np.random.Generator, call: Call) -> None:
    call.amplitude = 4.0 * len(_axes(rng, call))


_ARGUMENTS = {
    "correlate": _window, "convolve": _window, "correlate1d": _line, "convolve1d": _line, "gaussian_filter": _gaussian,
    "gaussian_filter1d": _gaussian, "gaussian_laplace": _gaussian, "gaussian_gradient_magnitude": _gaussian,
    "uniform_filter": _mean, "uniform_filter1d": _mean, "sobel": _differences, "prewitt": _differences,
    "laplace": _laplace,
}  # fmt: skip
