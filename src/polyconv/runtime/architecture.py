"""What differs between CPU architectures in the runner of jobs: a machine's name to pieces of LLVM text and numbers.

An architecture is a row.  It must not know what the runner does with them.
"""

from __future__ import annotations

from polyconv.dataclass import dataclass

__all__ = ["ARM", "X86", "Architecture", "architecture_of"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture's own words (inline assembly would need LLVM's parser of it).

    Parameters
    ----------
    exchange : str
        Defines a function that exchanges the floating-point environment with 64 bits in memory.
    fast, strict : int
        That environment: nearest, exceptions masked; subnormals flushed or kept.
    pause : str
        Tells the CPU that the thread spins.
    futex : int or None
        Number of Linux's system call.
    """

    exchange: str
    fast: int
    strict: int
    pause: str
    futex: int | None


X86 = Architecture(
    """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
declare void @llvm.x86.sse2.pause()
define internal void @exchange(ptr %word) {
  %old = alloca i32
  %new = load i32, ptr %word
  call void @llvm.x86.sse.stmxcsr(ptr %old)
  call void @llvm.x86.sse.ldmxcsr(ptr %word)
  %kept = load i32, ptr %old
  store i32 %kept, ptr %word
  ret void
}
""",
    0x9FC0, 0x1F80, "call void @llvm.x86.sse2.pause()", 202,
)  # fmt: skip

# Rounding and flushing are in one register, the exceptions that have happened in another: upper half of the 64 bits.
ARM = Architecture(
    """
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
declare i64 @llvm.aarch64.get.fpsr()
declare void @llvm.aarch64.set.fpsr(i64)
declare void @llvm.aarch64.hint(i32)
define internal void @exchange(ptr %word) {
  %new = load i64, ptr %word
  %control = call i64 @llvm.aarch64.get.fpcr()
  %happened = call i64 @llvm.aarch64.get.fpsr()
  %newcontrol = and i64 %new, 4294967295
  %newhappened = lshr i64 %new, 32
  call void @llvm.aarch64.set.fpcr(i64 %newcontrol)
  call void @llvm.aarch64.set.fpsr(i64 %newhappened)
  %upper = shl i64 %happened, 32
  %lower = and i64 %control, 4294967295
  %kept = or i64 %upper, %lower
  store i64 %kept, ptr %word
  ret void
}
""",
    1 << 24, 0, "call void @llvm.aarch64.hint(i32 1)", 98,
)  # fmt: skip

_OTHER = Architecture("define internal void @exchange(ptr %word) {\n  ret void\n}\n", 0, 0, "", None)

_ROWS = {"x86_64": X86, "AMD64": X86, "aarch64": ARM, "arm64": ARM, "ARM64": ARM}


def architecture_of(machine: str) -> Architecture:
    """Row of a machine, as Python names it on any system; of an unknown one that leaves the environment as it is."""
    return _ROWS.get(machine, _OTHER)
