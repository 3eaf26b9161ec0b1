"""Objects put into memory without LLVM: the same functions as LLVM's linker makes, or None."""

from __future__ import annotations

import ctypes
import platform
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from elf import TARGETS
from elf import object_code as code_for

from polyconv.kernels import elf
from polyconv.kernels.compile import link, object_code
from polyconv.target import host_target

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="objects of Linux on x86-64 only"
)

TEXT = """
declare i64 @outside(i64)

define internal i64 @twice(i64 %a) noinline {
  %b = mul i64 %a, 2
  ret i64 %b
}

; A call within the object, one out of it, and 3 from the constants.
define i64 @both(i64 %a) {
  %b = call i64 @twice(i64 %a)
  %c = call i64 @outside(i64 %b)
  ret i64 %c
}

; One of eight numbers: a table of jumps or of constants.
define double @pick(i64 %a) {
start:
  switch i64 %a, label %none [i64 0, label %l0 i64 1, label %l1 i64 2, label %l2 i64 3, label %l3 i64 4, label %l4]
l0:
  ret double 0x3FF199999999999A
l1:
  %s = call double @scaled(double 3.0)
  ret double %s
l2:
  ret double 2.5
l3:
  %t = call double @scaled(double 5.0)
  ret double %t
l4:
  ret double 4.75
none:
  ret double -1.0
}

define internal double @scaled(double %a) noinline {
  %b = fmul double %a, 0.3
  ret double %b
}

; 16 floats plus those of a constant vector.
define void @add(ptr %a) {
  %x = load <16 x float>, ptr %a, align 4
  %y = fadd <16 x float> %x, <VALUES>
  store <16 x float> %y, ptr %a, align 4
  ret void
}
""".replace("VALUES", ", ".join(f"float {n}.5" for n in range(16)))

NAMES = ("both", "pick", "add")


@pytest.fixture(scope="module")
def obj() -> bytes:
    target = host_target()
    return object_code(f'target triple = "{target.triple}"\n{TEXT}', target)


@pytest.mark.parametrize("loader", [elf.load, link])
def test_functions_compute(obj: bytes, loader: Any) -> None:
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    outside = kind(lambda a: a + 1000)
    address = ctypes.cast(outside, ctypes.c_void_p).value
    found = loader(obj, NAMES, {"outside": address})
    assert [kind(found["both"])(a) for a in (0, 1, -5)] == [1000, 1002, 990]
    pick = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)(found["pick"])
    assert [pick(a) for a in range(6)] == [1.1, 3.0 * 0.3, 2.5, 5.0 * 0.3, 4.75, -1.0]
    floats = (ctypes.c_float * 17)(*[10.0] * 17)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(found["add"])(ctypes.addressof(floats) + 4)
    assert list(floats) == [10.0, *(n + 10.5 for n in range(16))]


def test_what_lies_in_memory_cannot_be_written(obj: bytes) -> None:
    found = elf.load(obj, NAMES, {"outside": 0})
    assert found is not None
    rows = [row.split() for row in Path("/proc/self/maps").read_text().splitlines()]
    modes = [
        mode for ends, mode, *_ in rows
        if int(ends.split("-")[0], 16) <= found["both"] < int(ends.split("-")[1], 16)
    ]  # fmt: skip
    assert modes == ["r-xp"]


@pytest.mark.parametrize("target", [name for name in TARGETS if name == "neon"])
def test_other_processors_are_left_to_llvm(target: str) -> None:
    here = TARGETS[target]
    assert elf.load(code_for(f'target triple = "{here.triple}"\n{TEXT}', here), NAMES, {"outside": 0}) is None


def test_data_that_are_written_are_left_to_llvm() -> None:
    target = host_target()
    text = "@n = global i64 7\ndefine ptr @place() {\n  ret ptr @n\n}\n"
    obj = object_code(f'target triple = "{target.triple}"\n{text}', target)
    assert elf.load(obj, ("place",), {}) is None
    assert link(obj, ("place",))["place"]


def test_a_function_that_is_missing(obj: bytes) -> None:
    assert elf.load(obj, ("absent",), {"outside": 0}) is None
    assert elf.load(obj, NAMES, {}) is None


def test_no_bytes_do_harm(obj: bytes) -> None:
    """Cut or changed objects are linked into an image or refused; nothing else is raised."""
    rng = random.Random(0)
    for length in range(0, len(obj), 97):
        assert elf.load(obj[:length], NAMES, {"outside": 0}) is None
    for _ in range(300):
        damaged = bytearray(obj)
        for _ in range(rng.randint(1, 8)):
            damaged[rng.randrange(len(obj))] = rng.randrange(256)
        elf.load(bytes(damaged), NAMES, {"outside": 0})


def test_where_the_system_forbids_it_llvm_links(obj: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    class System:
        mmap = staticmethod(elf._system().mmap)
        munmap = staticmethod(elf._system().munmap)

        @staticmethod
        def mprotect(base: int, size: int, mode: int) -> int:
            return -1

    monkeypatch.setattr(elf, "_system", System)
    assert elf.load(obj, NAMES, {"outside": 0}) is None
