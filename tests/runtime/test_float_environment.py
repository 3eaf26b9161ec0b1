"""The floating-point environment: kernels set their own in every thread, and the caller finds its own again."""

from __future__ import annotations

import ctypes
import itertools
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

import polyconv
from polyconv.kernels.compile import link, object_code
from polyconv.kernels.record import words
from polyconv.operands import span
from polyconv.runtime import threads as pool
from polyconv.runtime.architecture import ARM, X86, architecture_of
from polyconv.target import host_target

ARCHITECTURE = architecture_of(platform.machine())
pytestmark = pytest.mark.skipif(ARCHITECTURE not in (X86, ARM), reason="knows the control words of x86-64 and ARM")


@dataclass(frozen=True, slots=True)
class Bits:
    """Where a control word has what; flags: exceptions that have happened, underflow among them."""

    text: str
    default: int
    flush: int
    rounding: tuple[int, ...]
    flags: int
    underflow: int


X86_BITS = Bits("""
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define void @read(ptr %word) {
  call void @llvm.x86.sse.stmxcsr(ptr %word)
  ret void
}
define void @write(ptr %word) {
  call void @llvm.x86.sse.ldmxcsr(ptr %word)
  ret void
}
""", 0x1F80, 0x8040, (0, 0x2000, 0x4000, 0x6000), 0x3F, 0x10)  # fmt: skip

# FPCR below, FPSR above
ARM_BITS = Bits("""
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
declare i64 @llvm.aarch64.get.fpsr()
declare void @llvm.aarch64.set.fpsr(i64)
define void @read(ptr %word) {
  %control = call i64 @llvm.aarch64.get.fpcr()
  %flags = call i64 @llvm.aarch64.get.fpsr()
  %upper = shl i64 %flags, 32
  %both = or i64 %upper, %control
  store i64 %both, ptr %word
  ret void
}
define void @write(ptr %word) {
  %both = load i64, ptr %word
  %control = and i64 %both, 4294967295
  %flags = lshr i64 %both, 32
  call void @llvm.aarch64.set.fpcr(i64 %control)
  call void @llvm.aarch64.set.fpsr(i64 %flags)
  ret void
}
""", 0, 1 << 24, (0, 1 << 22, 2 << 22, 3 << 22), 0x9F << 32, 0x8 << 32)  # fmt: skip

BITS = ARM_BITS if ARCHITECTURE is ARM else X86_BITS


@cache
def native(name: str) -> Any:
    target = host_target()
    obj = object_code(f'target triple = "{target.triple}"\n{BITS.text}', target)
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(link(obj, (name,))[name])


def control_word() -> int:
    word = ctypes.c_uint64()
    native("read")(ctypes.addressof(word))
    return word.value


@contextmanager
def environment(word: int) -> Iterator[None]:
    """Have this control word for a while; nothing in between may compute with floats but what is tested."""
    before, given = ctypes.c_uint64(control_word()), ctypes.c_uint64(word)
    native("write")(ctypes.addressof(given))
    try:
        yield
    finally:
        native("write")(ctypes.addressof(before))


def layer(values: Any, **options: Any) -> polyconv.Conv:
    """A kernel of one tap per channel: each output is one product, the others meet zeros."""
    w = np.zeros((32, 32, 3, 3), values.dtype)
    w[np.arange(32), np.arange(32), 1, 1] = values
    return polyconv.Conv(w, pads=1, **options)


WORDS = [mode | flush | BITS.default for mode, flush in itertools.product(BITS.rounding, (0, BITS.flush))]


@pytest.mark.parametrize("accuracy", ["fast", "strict"])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_caller_finds_its_own_again(threads: int, accuracy: str) -> None:
    """Rounding and flushing, whatever flags of past exceptions there are, after a first call and a native entry."""
    x = np.full((1, 32, 56, 56), 1e-30, np.float32)
    out = np.empty_like(x)
    for word in WORDS:
        one = layer(np.full(32, 1e-15, np.float32), threads=threads, accuracy=accuracy)  # every product underflows
        for given in (word, word, word | BITS.flags):
            with environment(given):
                one(x, out=out)
                after = control_word()
            assert after & ~BITS.flags == given & ~BITS.flags
    with environment(BITS.default):
        one(x, out=out)
        after = control_word()
    assert not after & BITS.underflow  # no flag is left that NumPy would warn of


@pytest.mark.parametrize("threads", [1, 2])
def test_each_job_of_a_chain_has_its_own(threads: int) -> None:
    """Jobs that flush and jobs that do not, in turn: whoever goes from one to the next takes its environment."""
    x = np.full((1, 32, 56, 56), 1e-30, np.float32)
    one = layer(np.full(32, 1e-10, np.float32), threads=threads, accuracy="strict")  # every product is subnormal
    right = one(x)
    call, made = one._layer.call(x, None), [np.ones_like(x) for _ in range(20)]
    jobs = [
        pool.Ready(call.steps, words([v for a in (x, y) for v in span(a)] + [0] * 6), call.program.workspace,
                   environment=pool.control_word(strict=at % 2 == 1), threads=threads, wake=2)
        for at, y in enumerate(made)
    ]  # fmt: skip
    pool.Chain(jobs, 2)()
    assert (right > 0).all()
    assert not any(y.any() for y in made[::2])
    assert all((y == right).all() for y in made[1::2])


@pytest.mark.parametrize("threads", [1, 2])
def test_the_callers_own_changes_nothing(threads: int) -> None:
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((1, 32, 56, 56), (32, 32, 3, 3)))
    x.flat[::7] = 1e-42
    for accuracy in ("fast", "strict"):
        one = polyconv.Conv(w, pads=1, activation="Sigmoid", threads=threads, accuracy=accuracy)
        right = one(x).tobytes()
        out = np.empty_like(x)
        for word in WORDS:
            with environment(word):
                one(x, out=out)
            assert out.tobytes() == right


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("dtype", "large", "small"), [(np.float32, 1e-30, 1e-10), (np.float64, 1e-300, 1e-20)])
def test_subnormals_are_flushed_in_fast_and_kept_in_strict(
    dtype: Any, large: float, small: float, threads: int
) -> None:
    """Products below the normal numbers, and operands that are; on all threads: all outputs are equal."""
    tiny = np.finfo(dtype).smallest_normal / dtype(16)
    cases = [(dtype(large), dtype(small)), (tiny, dtype(1)), (dtype(1), tiny)]
    for (value, weight), accuracy in itertools.product(cases, ("fast", "strict")):
        product = value * weight
        assert 0 < product < np.finfo(dtype).smallest_normal
        one = layer(np.full(32, weight, dtype), threads=threads, accuracy=accuracy)
        x = np.full((1, 32, 56, 56), value, dtype)
        assert one.plan(x.shape).threads == threads
        for _ in range(3):
            assert (one(x) == (product if accuracy == "strict" else 0)).all()


def test_strict_keeps_subnormal_halves() -> None:
    value = np.float16(6e-8)
    assert 0 < value < np.finfo(np.float16).smallest_normal
    x = np.full((1, 32, 28, 28), value)
    assert (layer(np.ones(32, np.float16), accuracy="strict")(x) == value).all()


def test_numpy_computes_as_before() -> None:
    """Subnormal products of the caller survive any number of calls that flush theirs."""
    tiny = np.full(64, 1e-30, np.float32)
    one, x = layer(np.full(32, 1e-15, np.float32), accuracy="fast"), np.full((1, 32, 56, 56), 1e-30, np.float32)
    before = tiny * np.float32(1e-12)
    assert (before > 0).all()
    for _ in range(5):
        assert (one(x) == 0).all()
        assert ((tiny * np.float32(1e-12)) == before).all()
