"""Writes the outputs of the filter bank as pictures, and one sheet with all of them and their times.

``python examples/contact_sheet.py FOLDER`` takes what ``make_filter_bank.py`` and ``polyconv run --save FOLDER/onnx``
left in FOLDER, cuts the margin of the photograph off again, and adds filters that ``polyconv.ndimage`` computes from
the photograph itself.  Under each picture stand its algorithms and the median time of warm runs.  Pictures go to
FOLDER/pictures, the sheet is FOLDER/contact-sheet.png.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from make_filter_bank import MARGIN, reflected
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

import polyconv
from polyconv import ndimage

RUNS = 15
COLUMNS, SIDE, GAP, CAPTION = 4, 320, 14, 58
INK, PAPER, GREY = (20, 20, 20), (250, 250, 250), (105, 105, 105)


@dataclass(frozen=True)
class Picture:
    """A picture of the sheet, and the two lines below it."""

    name: str
    pixels: NDArray[np.uint8]
    words: str


def median_seconds(call: Callable[[], object]) -> float:
    """Median of warm runs."""
    call()
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def shown(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """An output [1, c, h, w] as a picture: colours as they are, one map in grey, several maps in a square.

    Responses that mostly stay far below 1, as those of narrow filters do, are brought up to white.
    """
    maps = values[0]
    top = float(np.quantile(maps, 0.98))
    scaled = np.clip(maps / (top if 0 < top < 0.5 else 1.0), 0, 1)
    pixels = np.rint(255 * scaled).astype(np.uint8)
    if len(pixels) == 3:
        return np.ascontiguousarray(np.moveaxis(pixels, 0, -1))
    across = math.isqrt(len(pixels) - 1) + 1
    tiles = np.full((across**2, *pixels.shape[1:]), 255, np.uint8)
    tiles[: len(pixels)] = pixels
    rows = tiles.reshape(across, across, *tiles.shape[1:])
    return np.concatenate([np.concatenate(list(row), axis=1) for row in rows])


def of_the_model(folder: Path, photo: NDArray[np.uint8]) -> list[Picture]:
    """The model's outputs without the margin; the time of an output is that of the nodes named after it."""
    session = polyconv.InferenceSession(folder / "filter_bank.onnx")
    x = np.ascontiguousarray(np.moveaxis(reflected(photo), -1, 0)[None]).astype(np.float32) / 255
    seconds: dict[str, list[float]] = {}
    problems: dict[str, str] = {}
    for run in range(RUNS + 1):
        session.run(None, {"image": x})
        steps = {node.step: node for node in session.nodes if node.problem is not None}
        for node in steps.values() if run else ():
            seconds.setdefault(node.name, []).append(node.seconds or 0.0)
            problems[node.name] = node.problem or ""
    pictures = []
    for output in session.get_outputs():
        values = np.load(folder / "onnx" / f"{output.name}.npy")
        cut = MARGIN * values.shape[-1] // x.shape[-1]
        own = [name for name in seconds if name.partition("/")[0] == output.name]
        algorithms = {polyconv.plan(problems[name]).algorithm for name in own}
        spent = sum(statistics.median(seconds[name]) for name in own)
        words = f"{', '.join(sorted(algorithms))}: {1e3 * spent:.2f} ms"
        pictures.append(Picture(output.name, shown(values[:, :, cut:-cut, cut:-cut]), words))
    return pictures


def of_arrays(photo: NDArray[np.uint8]) -> list[Picture]:
    """Filters without a model; beyond the border they see the photograph reflected."""
    grey = photo.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
    filters: dict[str, Callable[[], NDArray[np.float32]]] = {
        "gaussian_filter, sigma 4": lambda: ndimage.gaussian_filter(grey, 4.0),
        "uniform_filter, 15x15": lambda: ndimage.uniform_filter(grey, 15),
        "gaussian_laplace, sigma 2": lambda: 127 + 12 * ndimage.gaussian_laplace(grey, 2.0),
    }
    return [
        Picture(f"ndimage.{name}", np.clip(np.rint(call()), 0, 255).astype(np.uint8),
                f"borders reflected: {1e3 * median_seconds(call):.2f} ms")
        for name, call in filters.items()
    ]  # fmt: skip


def sheet(pictures: list[Picture]) -> Image.Image:
    """All pictures in rows, each with its name and its words below it."""
    rows = -(-len(pictures) // COLUMNS)
    size = COLUMNS * (SIDE + GAP) + GAP, rows * (SIDE + CAPTION + GAP) + GAP
    page = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(page)
    large, small = ImageFont.load_default(18), ImageFont.load_default(14)
    for number, picture in enumerate(pictures):
        left = GAP + number % COLUMNS * (SIDE + GAP)
        top = GAP + number // COLUMNS * (SIDE + CAPTION + GAP)
        image = Image.fromarray(picture.pixels).convert("RGB")
        image.thumbnail((SIDE, SIDE))
        page.paste(image, (left, top + (SIDE - image.height)))
        draw.text((left, top + SIDE + 6), picture.name, INK, large)
        draw.text((left, top + SIDE + 31), picture.words, GREY, small)
    return page


def main() -> None:
    """Write the pictures and the sheet."""
    folder = Path(sys.argv[1])
    photo = np.asarray(Image.open(folder / "photo.png"))[MARGIN:-MARGIN, MARGIN:-MARGIN]
    pictures = [Picture("photo", photo, f"{photo.shape[1]} x {photo.shape[0]} pixels"), *of_the_model(folder, photo)]
    pictures += of_arrays(photo)
    (folder / "pictures").mkdir(exist_ok=True)
    for picture in pictures:
        name = picture.name.removeprefix("ndimage.").partition(",")[0]
        Image.fromarray(picture.pixels).save(folder / "pictures" / f"{name}.png")
    sheet(pictures).save(folder / "contact-sheet.png")
    print(f"{len(pictures)} pictures; times are medians of {RUNS} warm runs")


if __name__ == "__main__":
    main()
