"""Moves between tensors and panels: every element in its place, and nothing beside it written."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from levels import LEVELS

from polyconv.kernels.epilogue import Epilogue
from polyconv.kernels.layout import Move, MoveIn, MoveOut
from polyconv.kernels.move import move
from polyconv.kernels.objects import kernel
from polyconv.kernels.turned import turn_in, turn_out
from polyconv.kernels.unzip import MoveApart, move_apart
from polyconv.target import Target, target

PIXELS, CHANNELS = (1, 5, 16, 17, 33, 70), (1, 3, 16, 21, 32)
PLANES = (4 * 81, 1024, 4096)  # bytes between channels: odd, and where planes meet in few sets of a cache


def _mover(along: str, level: Target, *, out: bool) -> Any:
    lanes = level.vector_bytes // 4
    spec = Move("float", "f32", along, Epilogue()) if out else Move("f32", "float", along)

    def build(k: Any) -> None:
        move(k, "move", spec, lanes, f16c=level.converts_f16)

    address = kernel(f"test {spec} {lanes}", {"move": MoveOut if out else MoveIn}, build, level)["move"]
    p, n = ctypes.c_void_p, ctypes.c_int64
    more = (p, p, p, n, n, p) if out else (n,)
    function = ctypes.CFUNCTYPE(None, p, n, n, p, n, n, n, n, *more)(address)
    table = np.zeros(8)
    rest = (table.ctypes.data,) * 3 + (0, 0, table.ctypes.data) if out else (0,)
    return lambda *block: function(*block, *rest)


def _memory(size: int, phase: int) -> np.ndarray:
    whole = np.full(size // 4 + 1100, np.nan, np.float32)
    first = (-whole.ctypes.data % 4096 + phase) // 4
    return whole[first : first + size // 4]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("out", [False, True])
def test_planes_are_transposed(out: bool, level: str | None) -> None:
    run = _mover("cp" if out else "pc", target(level), out=out)
    for pixels, channels, plane in ((p, c, s) for p in PIXELS for c in CHANNELS for s in PLANES):
        for phase in (0, 16, 60):
            planes = _memory((channels - 1) * plane + pixels * 4, phase)
            rows = _memory(pixels * 160, 0)
            there = np.lib.stride_tricks.as_strided(planes, (pixels, channels), (4, plane))
            here = np.lib.stride_tricks.as_strided(rows, (pixels, channels), (160, 4))
            source, to = (here, there) if out else (there, here)
            source[...] = np.arange(pixels * channels).reshape(pixels, channels)
            places = [planes.ctypes.data, 4, plane], [rows.ctypes.data, 160, 4]
            run(*places[out], *places[not out], pixels, channels)
            np.testing.assert_array_equal(to, source)
            written = planes if out else rows
            assert np.isfinite(written).sum() == pixels * channels


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("out", [False, True])
def test_rows_are_copied(out: bool, level: str | None) -> None:
    run = _mover("cc", target(level), out=out)
    for pixels, channels in ((p, c) for p in PIXELS for c in (*CHANNELS, 64, 70)):
        source, to = _memory(pixels * 320, 16), _memory(pixels * 400, 8)
        source[...] = np.arange(source.size)
        run(source.ctypes.data, 320, 4, to.ctypes.data, 400, 4, pixels, channels)
        np.testing.assert_array_equal(to.reshape(pixels, 100)[:, :channels], source.reshape(pixels, 80)[:, :channels])
        assert np.isfinite(to).sum() == pixels * channels


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("panel", ["p", "c"])
@pytest.mark.parametrize("out", [False, True])
@pytest.mark.parametrize("step", [2, 3, 4, 5])
def test_every_so_many_pixels_of_a_line_are_moved_and_no_other(step: int, panel: str, out: bool, level: str | None
                                                               ) -> None:  # fmt: skip
    run = _mover(f"{panel}{step}" if out else f"{step}{panel}", target(level), out=out)
    for pixels, channels in ((p, c) for p in PIXELS for c in CHANNELS):
        plane = 4 * ((pixels - 1) * step + 1)  # the last pixel of a channel ends where the next channel begins
        planes, panel_ = _memory(channels * plane, 20), _memory(pixels * 160 if panel == "c" else channels * 320, 8)
        there = np.lib.stride_tricks.as_strided(planes, (pixels, channels), (4 * step, plane))
        steps = (160, 4) if panel == "c" else (4, 320)
        here = np.lib.stride_tricks.as_strided(panel_, (pixels, channels), steps)
        source = here if out else there
        source[...] = np.arange(pixels * channels).reshape(pixels, channels)
        places = [planes.ctypes.data, 4 * step, plane], [panel_.ctypes.data, *steps]
        run(*places[out], *places[not out], pixels, channels)
        np.testing.assert_array_equal(there, here)
        assert np.isfinite(planes if out else panel_).sum() == pixels * channels


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("along", "step"), [("pp", 2), ("pp", 3), ("pp", 4), ("pp", 8), ("pc", 2), ("pc", 4)])
def test_residues_go_to_places_of_their_own(along: str, step: int, level: str | None) -> None:
    given = target(level)
    lanes, spec = given.vector_bytes // 4, Move("f32", "float", along)

    def build(k: Any) -> None:
        move_apart(k, "move", spec, lanes, step, f16c=given.converts_f16)

    address = kernel(f"test {spec} {lanes} apart {step}", {"move": MoveApart}, build, given)["move"]
    p, n = ctypes.c_void_p, ctypes.c_int64
    run = ctypes.CFUNCTYPE(None, p, n, n, p, n, n, n, n, n, p, n)(address)
    for pixels, channels, first in ((p, c, f) for p in (*PIXELS, 130) for c in (1, 3, 16, 21) for f in range(step + 2)):
        planes = _memory(channels * 4 * 140, 20)
        planes[...] = np.arange(planes.size)
        rows = -(-(pixels + first) // step) + 2  # of each residue
        pixel, channel, size = (4, rows * step * 4, 1) if along == "pp" else (96, 4, 24)
        to = _memory(rows * step * (channels if along == "pp" else 24) * 4, 0)
        places = np.array([(i % step * rows + i // step) * pixel for i in range(2 * step - 1)], np.int64)
        run(planes.ctypes.data, 4, 560, to.ctypes.data, pixel, channel, pixels, channels, 0, places.ctypes.data, first)
        shape = (channels, step, rows) if along == "pp" else (step, rows, size)
        moved = to.reshape(shape) if along == "pp" else to.reshape(shape)[..., :channels].transpose(2, 0, 1)
        expected = np.full((channels, step, rows), np.nan, np.float32)
        for j in range(pixels):
            expected[:, (first + j) % step, (first + j) // step] = planes.reshape(channels, 140)[:, j]
        np.testing.assert_array_equal(moved, expected)
        assert np.isfinite(to).sum() == pixels * channels


@pytest.mark.skipif(not target().has_masks, reason="needs masks")
@pytest.mark.parametrize("wide", [16, 32, 64])
@pytest.mark.parametrize("out", [False, True])
def test_bytes_are_turned(out: bool, wide: int) -> None:
    spec = Move("i8", "u8", "cp", Epilogue()) if out else Move("u8", "i8", "pc")
    turn, signature = (turn_out, MoveOut) if out else (turn_in, MoveIn)

    def build(k: Any) -> None:
        turn(k, "move", spec, wide)

    address = kernel(f"test {spec} {wide}", {"move": signature}, build, target())["move"]
    p, n = ctypes.c_void_p, ctypes.c_int64
    function = ctypes.CFUNCTYPE(None, p, n, n, p, n, n, n, n, *((p, p, p, n, n, p) if out else (n,)))(address)
    nothing, moved = np.zeros(8), 0 if out else 128  # what is taken off on the way in
    rest = (nothing.ctypes.data,) * 3 + (0, 0, nothing.ctypes.data) if out else (moved,)
    for pixels, channels in ((p, c) for p in (1, 7, 15, 16, 17, 31, 49) for c in (1, 15, 16, 17, 33, 64, 65, 130)):
        planes, rows = np.full(channels * (pixels + 3), 77, np.uint8), np.full(pixels * (channels + 5), 77, np.uint8)
        there = np.lib.stride_tricks.as_strided(planes, (pixels, channels), (1, pixels + 3))
        here = np.lib.stride_tricks.as_strided(rows, (pixels, channels), (channels + 5, 1))
        source, to, written = (here, there, planes) if out else (there, here, rows)
        source[...] = np.random.default_rng(pixels).integers(0, 256, (pixels, channels))
        before = written.copy()
        places = [planes.ctypes.data, 1, pixels + 3], [rows.ctypes.data, channels + 5, 1]
        function(*places[out], *places[not out], pixels, channels, *rest)
        np.testing.assert_array_equal(to, source - np.uint8(moved))
        to[...] = 77  # and nothing beside it is written
        np.testing.assert_array_equal(written, before)


@pytest.mark.skipif(not target().has_masks, reason="needs masks")
@pytest.mark.parametrize("source", ["u8", "i8"])
def test_bytes_become_numbers_of_16_bits(source: str) -> None:
    spec = Move(source, "i16", "pc")

    def build(k: Any) -> None:
        turn_in(k, "move", spec, 64)

    address = kernel(f"test {spec}", {"move": MoveIn}, build, target())["move"]
    p, n = ctypes.c_void_p, ctypes.c_int64
    function = ctypes.CFUNCTYPE(None, p, n, n, p, n, n, n, n, n)(address)
    for pixels, channels in ((p, c) for p in (3, 16, 37) for c in (5, 64, 99)):
        numbers = np.random.default_rng(channels).integers(0, 256, (channels, pixels))
        planes = numbers.astype(np.uint8).view(f"{source[0]}1")
        rows = np.full((pixels, channels + 5), 777, np.int16)
        function(planes.ctypes.data, 1, pixels, rows.ctypes.data, 2 * (channels + 5), 2, pixels, channels, 100)
        np.testing.assert_array_equal(rows[:, :channels], planes.T.astype(np.int16) - 100)
        assert (rows[:, channels:] == 777).all()
