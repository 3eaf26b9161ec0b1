"""The first lanes of vectors: loaded and stored at every level, whatever instructions it has."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest
from elf import TARGETS, assembly
from levels import LEVELS

from polyconv.kernels.language import Buffer, Module, vector
from polyconv.kernels.objects import kernel, module_for
from polyconv.kernels.parts import store_parts
from polyconv.kernels.signature import Int, Signature
from polyconv.target import target

ELEMENTS = {"i8": np.uint8, "i16": np.uint16, "half": np.uint16, "float": np.float32, "double": np.float64}
AROUND = 64


class Copy(Signature):
    """Copies the first lanes of a vector, and what a load finds in all of them."""

    source: Buffer
    target: Buffer
    whole: Buffer
    count: Int


def copy(k: Module, name: str, element: str, lanes: int) -> None:
    kind = vector(element, lanes)
    with k.function(name, Copy) as given:
        mask = k.mask(given.count, lanes)
        value = k.load_first(kind, given.source, mask)
        k.store(k.bits(value), given.whole)
        k.store_first(value, given.target, mask)


class Apart(Signature):
    """Stores a vector, and its first lanes, to elements that lie apart."""

    source: Buffer
    every: Buffer
    first: Buffer
    count: Int


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("step", [2, 3])
@pytest.mark.parametrize("element", ELEMENTS)
def test_lanes_that_are_stored_apart(element: str, step: int, level: str | None) -> None:
    """Every one of them, or as many as are asked for, and nothing of what lies between."""
    to, kind = target(level), np.dtype(ELEMENTS[element])

    def build(k: Module, lanes: int) -> None:
        with k.function("apart", Apart) as given:
            value = k.bits(k.load(vector(element, lanes), given.source))
            store_parts(k, value, given.every, None, step)
            store_parts(k, value, given.first, k.mask(given.count, lanes).count, step)

    for lanes in (2, 8, to.vector_bytes // kind.itemsize):
        address = kernel(f"test lanes apart {element} {lanes} {step}", {"apart": Apart},
                         lambda k, lanes=lanes: build(k, lanes), to)["apart"]  # fmt: skip
        run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(address)
        source = np.arange(1, lanes + 1).astype(kind)
        for count in range(lanes + 1):
            every, first = (np.full(step * lanes + AROUND, 99, kind) for _ in range(2))
            run(source.ctypes.data, every.ctypes.data, first.ctypes.data, count)
            for written, there in ((every, lanes), (first, count)):
                want = np.full_like(written, 99)
                want[: step * there : step] = source[:there]
                np.testing.assert_array_equal(written, want)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("element", ELEMENTS)
def test_counts_of_lanes(element: str, level: str | None) -> None:
    """As many elements as are asked for, zeros in the other lanes, and no byte beside them; counts are clamped."""
    to, kind = target(level), np.dtype(ELEMENTS[element])
    for lanes in (2, 4, 8, 16):
        if lanes * kind.itemsize > to.vector_bytes:
            continue
        address = kernel(f"test first lanes {element} {lanes}", {"copy": Copy},
                         lambda k, lanes=lanes: copy(k, "copy", element, lanes), to)["copy"]  # fmt: skip
        run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(address)
        source = np.arange(1, lanes + 1).astype(kind)
        for count in (*range(-1, lanes + 2), 1000):
            there = min(max(count, 0), lanes)
            given = source[:there].copy()  # memory behind it is somebody else's
            written, whole = np.full(AROUND + lanes, 99, kind), np.full(lanes, 99, kind)
            run(given.ctypes.data, written.ctypes.data, whole.ctypes.data, count)
            np.testing.assert_array_equal(whole, np.where(np.arange(lanes) < there, source, 0))
            np.testing.assert_array_equal(written[:there], source[:there])
            assert (written[there:] == 99).all(), (element, lanes, count)


@pytest.mark.parametrize("level", ["baseline", "avx2"])
def test_no_lane_has_a_branch_of_its_own(level: str) -> None:
    """Sixteen bytes take a branch for each binary digit of their count, and no masked store of AVX2."""
    to = TARGETS[level]
    for element, lanes in (("i8", 16), ("float", to.vector_bytes // 4)):
        k = module_for(to)
        copy(k, "copy", element, lanes)
        code = assembly(k.text(to.triple), to)
        digits = lanes.bit_length()
        assert len(re.findall(r"^\tj\w+", code, re.M)) <= 2 * (2 * digits + 1), code
        assert not re.search(r"vmaskmov\w+\s+%[xy]mm\d+, %[xy]mm\d+, ", code)
