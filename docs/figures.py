"""The figures of the site, drawn when it is built: a filtered photograph, borders, errors, memory, predictions, ratios.

What a figure shows is computed here by polyconv and NumPy, or read from a page; none has times measured while building.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from numpy.typing import NDArray

import polyconv
from polyconv import ndimage
from polyconv.kernels.transform import Scheme

HERE = Path(__file__).resolve().parent
INK, SECOND, THIRD, FOURTH = "#1f4e79", "#c8553d", "#588b8b", "#8a8a8a"
Floats = NDArray[np.float32]


def draw(folder: Path) -> None:
    """Draw every figure that ``FIGURES`` names."""
    folder.mkdir(exist_ok=True)
    style = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "polyconv"}
    with plt.rc_context(style):
        for name, figure in FIGURES.items():
            made = figure()
            made.savefig(folder / name, dpi=110, bbox_inches="tight", facecolor="white", metadata=_undated(name))
            plt.close(made)


def _undated(name: str) -> dict[str, None] | None:
    return {"Date": None} if name.endswith(".svg") else None


# -- a photograph -----------------------------------------------------------------------------------------


def photograph() -> Any:
    """What the tutorial does to the photograph."""
    picture = _photograph()
    grey = picture.mean(axis=-1, dtype=np.float32)
    kernel = np.array([[0, -1, 0], [-1, 5, -1], [0, -1, 0]], np.int16)
    weights = np.repeat(kernel[None, None], 3, axis=0)
    sharp = polyconv.conv(picture[None].astype(np.int16), weights, groups=3, pads=1, layout="NHWC")[0]
    twice = np.full((3, 1, 1, 1), 2, np.uint8)
    bright, wrapped = (
        polyconv.conv(picture[None], twice, groups=3, layout="NHWC", overflow=overflow)[0]
        for overflow in ("saturate", "wrap")
    )
    shown = {
        "the photograph": picture,
        "gaussian_filter, sigma 3": ndimage.gaussian_filter(picture, 3, axes=(0, 1)),
        "sobel along both axes": np.hypot(ndimage.sobel(grey, 0), ndimage.sobel(grey, 1)),
        "sharpened in int16, then clipped": sharp.clip(0, 255).astype(np.uint8),
        'twice as bright, overflow="saturate"': bright,
        'twice as bright, overflow="wrap"': wrapped,
    }
    figure, axes = plt.subplots(2, 3, figsize=(9, 6.4), layout="constrained")
    for at, (title, values) in zip(axes.flat, shown.items(), strict=True):
        at.imshow(values, cmap="gray")
        at.set_title(title, fontsize=10)
        at.set_axis_off()
    return figure


def _photograph() -> NDArray[np.uint8]:
    from skimage import data

    picture: NDArray[np.uint8] = data.astronaut()[:320, 60:380]
    return picture


# -- borders ----------------------------------------------------------------------------------------------


def borders() -> Any:
    """What lies beyond the border of a line, by mode: read by a weight that looks so far to the side."""
    line, reach = np.arange(1.0, 6.0), 7
    modes = ("reflect", "mirror", "nearest", "wrap", "constant")
    figure, axes = plt.subplots(len(modes), 1, figsize=(7.5, 6), sharex=True, sharey=True, layout="constrained")
    for at, mode in zip(axes, modes, strict=True):
        beyond = [_neighbour(line, away, mode) for away in range(-reach, len(line) + reach)]
        places = np.arange(-reach, len(line) + reach)
        inside = (places >= 0) & (places < len(line))
        at.bar(places, beyond, color=np.where(inside, INK, "#b7c9dc"))
        at.set_ylabel(mode, rotation=0, ha="right", va="center")
        at.set_yticks([])
    axes[-1].set_xticks(range(-reach, len(line) + reach))
    axes[-1].set_xlabel("place; the array has 0 to 4, the rest is what the mode says")
    return figure


def _neighbour(line: NDArray[np.float64], place: int, mode: str) -> float:
    """The element of a line at a place that may lie beyond its ends, as a filter sees it."""
    weights = np.zeros(2 * abs(place) + 1)
    weights[abs(place) + place] = 1
    return float(ndimage.correlate1d(line, weights, mode=mode)[0])


# -- errors -----------------------------------------------------------------------------------------------


def winograd_error() -> Any:
    """Rms errors of 3x3 layers against float64, by channels: as polyconv computes them, and by usual points."""
    channels = (8, 16, 32, 64, 128, 256)
    usual = {"F(4,3), points 0, +-1, +-2": Scheme(4, 3, (1.0, 2.0)),
             "F(6,3), points 0, +-1, +-2, +-1/2": Scheme(6, 3, (1.0, 2.0, 0.5))}  # fmt: skip
    errors: dict[str, list[float]] = {}
    for c in channels:
        x, w = _random((1, c, 26, 26), c), _random((8, c, 3, 3), c + 1)
        exact = polyconv.conv(x.astype(np.float64), w.astype(np.float64))
        results = {'accuracy="strict": a direct sum': polyconv.conv(x, w, accuracy="strict"),
                   'accuracy="fast": a layer of so many channels': polyconv.Conv(w)(x)}  # fmt: skip
        results |= {name: _tiles(x[0], w, scheme) for name, scheme in usual.items()}
        for name, y in results.items():
            errors.setdefault(name, []).append(_rms(y.reshape(exact.shape) - exact) / _rms(exact))
    figure, at = plt.subplots(figsize=(7.5, 4.4), layout="constrained")
    for (name, values), color, marker in zip(errors.items(), (THIRD, INK, SECOND, FOURTH), "osD^", strict=True):
        at.plot(channels, values, marker=marker, color=color, label=name)
    direct = np.array(errors['accuracy="strict": a direct sum'])
    at.plot(channels, 2 * direct, color=THIRD, linestyle=":", label="twice the direct sum: the limit of fast")
    at.set(xscale="log", yscale="log", xlabel="input channels", ylabel="rms error, relative to the result's rms")
    at.set_xticks(channels, [str(c) for c in channels])
    at.set_yticks([2e-7, 5e-7, 1e-6, 2e-6, 5e-6], ["2e-7", "5e-7", "1e-6", "2e-6", "5e-6"])
    at.minorticks_off()
    at.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    return figure


def _tiles(x: Floats, w: Floats, scheme: Scheme) -> Floats:
    """3x3 by tiles F(m, 3) in two dimensions, every step in float32."""
    forward, weights, back = (a.astype(np.float32) for a in _matrices(scheme))
    m, n = scheme.m, scheme.n
    side = (x.shape[-1] - 2) // m * m
    cut = np.lib.stride_tricks.sliding_window_view(x, (n, n), axis=(1, 2))[:, :side:m, :side:m]
    inputs = np.einsum("ij,ctujk,lk->ctuil", forward, cut, forward)
    transformed = np.einsum("ij,ocjk,lk->ocil", weights, w, weights)
    sums = np.zeros((w.shape[0], *inputs.shape[1:]), np.float32)
    for c in range(x.shape[0]):  # one channel after the other, as a chain of multiply-adds does
        sums += transformed[:, c][:, None, None] * inputs[c]
    y = np.einsum("ij,otujk,lk->otiul", back, sums, back)
    return y.reshape(w.shape[0], side, side)


def _matrices(scheme: Scheme) -> tuple[NDArray[np.float64], ...]:
    """B^T, G and A^T, of which B^T follows from the others: A^T (G g * B^T d) is the correlation of d with g."""
    points = [0.0, *(sign * p for p in scheme.pairs for sign in (1.0, -1.0))]
    back = np.array([[p**t for p in points] + [float(t == scheme.m - 1)] for t in range(scheme.m)])
    g = scheme.weights
    products = np.einsum("tp,pk->tkp", back, g).reshape(-1, scheme.n)
    wanted = np.array([np.eye(scheme.n)[t + k] for t in range(scheme.m) for k in range(scheme.r)])
    return np.linalg.lstsq(products, wanted, rcond=None)[0], g, back


def _random(shape: tuple[int, ...], seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _rms(values: Any) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


# -- plans ------------------------------------------------------------------------------------------------

LAYERS = {
    "3x3, 64 channels, 224 x 224": "conv f32 NCHW n1 c64 i224x224 m64 k3x3 p1",
    "3x3, 512 channels, 28 x 28": "conv f32 NCHW n1 c512 i28x28 m512 k3x3 p1",
    "7x7 stride 2, 3 channels, 224 x 224": "conv f32 NCHW n1 c3 i224x224 m64 k7x7 s2 p3",
    "31x31 depthwise, 128 channels, 56 x 56": "conv f32 NCHW n1 c128 i56x56 m128 k31x31 p15 g128",
    "3x3x3, 32 channels, 64 x 64 x 64": "conv f32 NCHW n1 c32 i64x64x64 m32 k3x3x3 p1",
}


def memory() -> Any:
    """Workspace of plans for one thread, beside the buffer of im2col."""
    plans = {name: polyconv.plan(text, threads=1) for name, text in LAYERS.items()}
    small = {name: polyconv.plan(text, threads=1, workspace_limit=65536) for name, text in LAYERS.items()}
    unrolled = [4 * np.prod(p.problem.out) * np.prod(p.problem.k) * p.problem.c for p in plans.values()]
    bars = {
        "im2col: every window copied": (unrolled, FOURTH),
        "polyconv": ([p.workspace_bytes + 65536 for p in plans.values()], INK),
        "polyconv, workspace_limit 64 KiB": ([p.workspace_bytes + 65536 for p in small.values()], THIRD),
    }  # fmt: skip
    figure, at = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    places = np.arange(len(plans))
    for number, (name, (values, color)) in enumerate(bars.items()):
        at.barh(places + (number - 1) * 0.27, np.array(values) / 2**20, 0.25, color=color, label=name)
    at.set_yticks(places, list(plans))
    at.invert_yaxis()
    at.set(xscale="log", xlabel="MiB, on one thread, the 64 KiB that are always there included")
    at.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.3, -0.14), ncols=1)
    return figure


def candidates() -> Any:
    """Predicted times of all algorithms that can compute a layer."""
    texts = [*list(LAYERS.items())[:2], ("1x1, 256 channels, 56 x 56", "conv f32 NCHW n1 c256 i56x56 m64 k1x1")]
    figure, axes = plt.subplots(1, len(texts), figsize=(9, 3), layout="constrained")
    for at, (name, text) in zip(axes, texts, strict=True):
        plan = polyconv.plan(text, threads=1)
        rows = sorted(plan.candidates, key=lambda c: c.predicted)[:6]
        colors = [INK if c.algorithm == plan.algorithm else "#b7c9dc" for c in rows]
        at.barh([c.algorithm for c in rows], [c.predicted * 1e3 for c in rows], color=colors)
        at.invert_yaxis()
        at.set_title(name, fontsize=10)
        at.set_xlabel("predicted ms")
    return figure


def pipeline() -> Any:
    """From a description to an answer: what is made, and what makes it."""
    steps = [
        ("words of a call,\na node of a model", "dialects,\nlayer, models"),
        ("Problem:\none line of text", "planning asks\nalgorithms"),
        ("Plan: names\nand numbers", "kernels, LLVM"),
        ("machine code,\npacked weights", "runtime: threads,\nworkspace"),
        ("result", ""),
    ]
    figure, at = plt.subplots(figsize=(9, 1.9), layout="constrained")
    for number, (made, maker) in enumerate(steps):
        x = number * 2.0
        box = {"boxstyle": "round,pad=0.5", "facecolor": "#e8eff6", "edgecolor": INK}
        at.text(x, 0, made, ha="center", va="center", fontsize=9, bbox=box)
        if maker:
            arrow = {"arrowstyle": "->", "color": SECOND, "lw": 1.5}
            at.annotate("", (x + 1.3, 0), (x + 0.72, 0), arrowprops=arrow)
            at.text(x + 1.0, -0.62, maker, ha="center", va="center", fontsize=8, color=SECOND)
    at.set(xlim=(-0.9, 8.6), ylim=(-1, 0.6))
    at.set_axis_off()
    return figure


# -- speed ------------------------------------------------------------------------------------------------


def kinds() -> Any:
    """The ratios that docs/benchmarks.md states by kind of layer."""
    text = (HERE / "benchmarks.md").read_text(encoding="utf-8").partition("## By kind of layer")[2]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", text, re.M)]
    head, rows = table[0], []
    for row in table[2:]:
        if row[0] == "network":  # the next table
            break
        rows.append(row)
    first, last = head.index("NCHW"), head.index("NHWC")
    figure, at = plt.subplots(figsize=(7.5, 4.6), layout="constrained")
    places = np.arange(len(rows))
    for column, shift, color, name in ((first, -0.2, INK, "channels first"), (last, 0.2, THIRD, "channels last")):
        at.barh(places + shift, [float(row[column]) for row in rows], 0.38, color=color, label=name)
    at.axvline(1, color=SECOND, lw=1)
    at.set_yticks(places, [row[0] for row in rows])
    at.invert_yaxis()
    at.set_xlabel("time of the fastest other engine / polyconv's time, one thread")
    at.legend(frameon=False, fontsize=9)
    return figure


FIGURES: dict[str, Callable[[], Any]] = {
    "photograph.png": photograph, "borders.svg": borders, "winograd-error.svg": winograd_error,
    "memory.svg": memory, "candidates.svg": candidates, "pipeline.svg": pipeline, "kinds.svg": kinds,
}  # fmt: skip
