"""From a Python call to native code: a builtin function made for one program and its arrays' shapes.

The builtin takes exactly (x, out, residual), of a deformable convolution also (offset, mask), checks in native code
that they are plain arrays of the expected type object, shape and strides which do not overlap the result, and runs the
program with the shared workspace; anything else makes it return None and the caller takes the Python path, which
explains.
Of CPython's structures only ``Py_buffer`` is read; all else goes through exported functions.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.kernels.address import address
from polyconv.kernels.objects import kernel_text
from polyconv.kernels.record import words
from polyconv.runtime.arrays import reach
from polyconv.runtime.control import CONTROL
from polyconv.runtime.runner import native
from polyconv.target import host_target

__all__ = ["Descriptor", "entry_text", "make_entry"]

_API = (
    "PyObject_GetBuffer", "PyBuffer_Release", "Py_IncRef", "Py_DecRef", "PyEval_SaveThread", "PyEval_RestoreThread",
    "PyObject_Type", "PyObject_GetAttr", "PyErr_Clear", "PyByteArray_AsString",
)  # fmt: skip

# Descriptor words: None, the name "dtype", the pool's control words, the steps and their number, items, workspace,
# environment, threads, wake, whether the GIL is kept, number of operands.  Then each operand has its own group: [type
# object, dtype, dimensions, offset of the lowest address, bytes, then (extent, stride) pairs]; of one that must be None
# they are zeros.
_HEADER = 16
_GROUP = 5 + 2 * 64

_CHECK = """
; Compare an array with its group of the descriptor; 1 and a filled frame slot if all is as expected.
define internal i64 @fits(ptr %array, ptr %group, ptr %name, ptr %view, i32 %flags, ptr %frame) {
entry:
  %type = call ptr @PyObject_Type(ptr %array)
  call void @Py_DecRef(ptr %type)
  %type0 = load ptr, ptr %group
  %plain = icmp eq ptr %type, %type0
  br i1 %plain, label %typed, label %no
typed:
  %dtype = call ptr @PyObject_GetAttr(ptr %array, ptr %name)
  %got = icmp ne ptr %dtype, null
  br i1 %got, label %named, label %cleared
cleared:
  call void @PyErr_Clear()
  br label %no
named:
  call void @Py_DecRef(ptr %dtype)
  %g1 = getelementptr i64, ptr %group, i64 1
  %dtype0 = load ptr, ptr %g1
  %same = icmp eq ptr %dtype, %dtype0
  br i1 %same, label %open, label %no
open:
  %failed = call i32 @PyObject_GetBuffer(ptr %array, ptr %view, i32 %flags)
  %bad = icmp ne i32 %failed, 0
  br i1 %bad, label %cleared, label %shape
shape:
  %vn = getelementptr i8, ptr %view, i64 36
  %n32 = load i32, ptr %vn
  %n = sext i32 %n32 to i64
  %g2 = getelementptr i64, ptr %group, i64 2
  %n0 = load i64, ptr %g2
  %rank = icmp eq i64 %n, %n0
  br i1 %rank, label %axes, label %close
axes:
  %vs = getelementptr i8, ptr %view, i64 48
  %extents = load ptr, ptr %vs
  %vt = getelementptr i8, ptr %view, i64 56
  %strides = load ptr, ptr %vt
  br label %axis
axis:
  %i = phi i64 [0, %axes], [%next, %equal]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %compare, label %yes
compare:
  %ep = getelementptr i64, ptr %extents, i64 %i
  %e = load i64, ptr %ep
  %sp = getelementptr i64, ptr %strides, i64 %i
  %s = load i64, ptr %sp
  %twice = mul i64 %i, 2
  %place = add i64 %twice, 5
  %wp = getelementptr i64, ptr %group, i64 %place
  %e0 = load i64, ptr %wp
  %wq = getelementptr i64, ptr %wp, i64 1
  %s0 = load i64, ptr %wq
  %c0 = icmp eq i64 %e, %e0
  %c1 = icmp eq i64 %s, %s0
  %unit = icmp eq i64 %e0, 1 ; NumPy and its buffers may spell the stride of one element differently
  %c2 = or i1 %c1, %unit
  %c = and i1 %c0, %c2
  br i1 %c, label %equal, label %close
equal:
  %next = add i64 %i, 1
  br label %axis
yes:
  %first = load ptr, ptr %view
  %g3 = getelementptr i64, ptr %group, i64 3
  %low = load i64, ptr %g3
  %down = sub i64 0, %low
  %lowest = getelementptr i8, ptr %first, i64 %down
  store ptr %lowest, ptr %frame
  %g4 = getelementptr i64, ptr %group, i64 4
  %bytes = load i64, ptr %g4
  %f1 = getelementptr i64, ptr %frame, i64 1
  store i64 %bytes, ptr %f1
  ret i64 1
close:
  call void @PyBuffer_Release(ptr %view)
  br label %no
no:
  ret i64 0
}

; Whether two frame slots share memory.
define internal i1 @overlap(ptr %a, ptr %b) {
  %a0 = load i64, ptr %a
  %ap = getelementptr i64, ptr %a, i64 1
  %an = load i64, ptr %ap
  %b0 = load i64, ptr %b
  %bp = getelementptr i64, ptr %b, i64 1
  %bn = load i64, ptr %bp
  %a1 = add i64 %a0, %an
  %b1 = add i64 %b0, %bn
  %c0 = icmp ult i64 %a0, %b1
  %c1 = icmp ult i64 %b0, %a1
  %c = and i1 %c0, %c1
  ret i1 %c
}
"""

_ENTRY = """
define ptr @entry(ptr %self, ptr %arguments, i64 %count) {
start:
  %views = alloca [400 x i8], align 16
  %frame = alloca [10 x i64], align 16
  %job = alloca [11 x i64], align 16
  store [10 x i64] zeroinitializer, ptr %frame
  %d = call ptr @PyByteArray_AsString(ptr %self)
  %none = load ptr, ptr %d
  %namep = getelementptr i64, ptr %d, i64 1
  %name = load ptr, ptr %namep
  %groups = getelementptr i64, ptr %d, i64 HEADER
  %fy = getelementptr i64, ptr %frame, i64 2
  %expected_p = getelementptr i64, ptr %d, i64 11
  %expected = load i64, ptr %expected_p
  %complete = icmp eq i64 %count, %expected
  br i1 %complete, label %operand, label %close
operand:
  %i = phi i64 [0, %start], [%next, %fitting]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %look, label %others
look:
  %ap = getelementptr ptr, ptr %arguments, i64 %i
  %array = load ptr, ptr %ap
  %group = getelementptr [GROUP x i64], ptr %groups, i64 %i
  %type = load i64, ptr %group
  %wanted = icmp ne i64 %type, 0
  br i1 %wanted, label %given, label %left_out
left_out:
  %absent = icmp eq ptr %array, %none
  br i1 %absent, label %fitting, label %close
given:
  %view = getelementptr [80 x i8], ptr %views, i64 %i
  %slot = getelementptr [2 x i64], ptr %frame, i64 %i
  %written = icmp eq i64 %i, 1
  %flags = select i1 %written, i32 25, i32 24
  %ok = call i64 @fits(ptr %array, ptr %group, ptr %name, ptr %view, i32 %flags, ptr %slot)
  %is = icmp ne i64 %ok, 0
  br i1 %is, label %fitting, label %close
fitting:
  %next = add i64 %i, 1
  br label %operand
others:
  %j = phi i64 [0, %operand], [%after, %distinct]
  %left = icmp slt i64 %j, %count
  br i1 %left, label %other, label %lock
other:
  %fj = getelementptr [2 x i64], ptr %frame, i64 %j
  %over = call i1 @overlap(ptr %fj, ptr %fy)
  %itself = icmp eq i64 %j, 1
  %apart = xor i1 %itself, true
  %shared_memory = and i1 %over, %apart
  br i1 %shared_memory, label %close, label %distinct
distinct:
  %after = add i64 %j, 1
  br label %others
lock:
  %cp = getelementptr i64, ptr %d, i64 2
  %control = load ptr, ptr %cp
  %free = call i64 @acquire(ptr %control)
  %locked = icmp ne i64 %free, 0
  br i1 %locked, label %space, label %close
space:
  %sp = getelementptr i8, ptr %control, i64 264
  %workspace = load ptr, ptr %sp
  %bp = getelementptr i8, ptr %control, i64 272
  %bytes = load i64, ptr %bp
  %share_p = getelementptr i64, ptr %d, i64 6
  %share = load i64, ptr %share_p
  %tp = getelementptr i64, ptr %d, i64 8
  %threads = load i64, ptr %tp
  %need = mul i64 %share, %threads
  %enough = icmp sge i64 %bytes, %need
  br i1 %enough, label %prepare, label %unlock
unlock:
  call void @release(ptr %control)
  br label %close
prepare:
  %d3 = getelementptr i64, ptr %d, i64 3
  %steps = load i64, ptr %d3
  store i64 %steps, ptr %job
  %d4 = getelementptr i64, ptr %d, i64 4
  %step_count = load i64, ptr %d4
  %j1 = getelementptr i64, ptr %job, i64 1
  store i64 %step_count, ptr %j1
  %d5 = getelementptr i64, ptr %d, i64 5
  %items = load i64, ptr %d5
  %j2 = getelementptr i64, ptr %job, i64 2
  store i64 %items, ptr %j2
  %j3 = getelementptr i64, ptr %job, i64 3
  store ptr %frame, ptr %j3
  %j4 = getelementptr i64, ptr %job, i64 4
  store ptr %workspace, ptr %j4
  %j5 = getelementptr i64, ptr %job, i64 5
  store i64 %share, ptr %j5
  %d7 = getelementptr i64, ptr %d, i64 7
  %environment = load i64, ptr %d7
  %j6 = getelementptr i64, ptr %job, i64 6
  store i64 %environment, ptr %j6
  %j7 = getelementptr i64, ptr %job, i64 7
  store i64 0, ptr %j7
  %j9 = getelementptr i64, ptr %job, i64 9
  store i64 %threads, ptr %j9
  %d9 = getelementptr i64, ptr %d, i64 9
  %wake = load i64, ptr %d9
  %j10 = getelementptr i64, ptr %job, i64 10
  store i64 %wake, ptr %j10
  %d10 = getelementptr i64, ptr %d, i64 10
  %keep = load i64, ptr %d10
  %short = icmp ne i64 %keep, 0
  br i1 %short, label %quick, label %long
quick:
  call void @serial(ptr %job)
  br label %done
long:
  %state = call ptr @PyEval_SaveThread()
  call void @shared(ptr %control, ptr %job)
  call void @PyEval_RestoreThread(ptr %state)
  br label %done
done:
  call void @release(ptr %control)
  %op = getelementptr ptr, ptr %arguments, i64 1
  %out = load ptr, ptr %op
  br label %close
close:
  %seen = phi i64 [0, %start], [%i, %left_out], [%i, %given], [%count, %other], [%count, %lock], [%count, %unlock],
                  [%count, %done]
  %answer = phi ptr [%none, %start], [%none, %left_out], [%none, %given], [%none, %other], [%none, %lock],
                    [%none, %unlock], [%out, %done]
  br label %each
each:
  %v = phi i64 [0, %close], [%following, %released]
  %open = icmp slt i64 %v, %seen
  br i1 %open, label %held, label %answered
held:
  %of_view = getelementptr [GROUP x i64], ptr %groups, i64 %v
  %kind = load i64, ptr %of_view
  %had = icmp ne i64 %kind, 0
  br i1 %had, label %release_view, label %released
release_view:
  %view_v = getelementptr [80 x i8], ptr %views, i64 %v
  call void @PyBuffer_Release(ptr %view_v)
  br label %released
released:
  %following = add i64 %v, 1
  br label %each
answered:
  call void @Py_IncRef(ptr %answer)
  ret ptr %answer
}
"""

_DECLARATIONS = """
declare i32 @PyObject_GetBuffer(ptr, ptr, i32)
declare void @PyBuffer_Release(ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyObject_Type(ptr)
declare ptr @PyObject_GetAttr(ptr, ptr)
declare void @PyErr_Clear()
declare ptr @PyByteArray_AsString(ptr)
declare void @serial(ptr)
declare void @shared(ptr, ptr)
declare i64 @acquire(ptr)
declare void @release(ptr)
"""


class Descriptor(bytearray):
    """The words a builtin reads, as its ``self``; it owns all that its words point to."""

    keep: tuple[Any, ...]
    definition: Any


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("method", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p),
    )  # fmt: skip


_METH_FASTCALL = 0x0080
_NAME = sys.intern("dtype")


@cache
def _entry() -> int:
    """Address of the native entry; 0 where it cannot be used."""
    if sys.implementation.name != "cpython" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return 0
    symbols = {n: ctypes.cast(getattr(ctypes.pythonapi, n), ctypes.c_void_p).value or 0 for n in _API}
    symbols |= {n: native()[n] for n in ("serial", "shared", "acquire", "release")}
    return kernel_text("entry", ("entry",), entry_text(), host_target(), symbols)["entry"]


def entry_text() -> str:
    """LLVM text of the native entry."""
    return (_DECLARATIONS + _CHECK + _ENTRY).replace("HEADER", str(_HEADER)).replace("GROUP", str(_GROUP))


def make_entry(arrays: Sequence[NDArray[Any] | None], steps: NDArray[np.int64], items: int, workspace: int,
               environment: int, threads: int, wake: int, keep_gil: bool, keep: tuple[Any, ...]) -> Any:  # fmt: skip
    """Make the builtin of a program for arrays like these; None where native entries do not work.

    Parameters
    ----------
    arrays : sequence
        Input, result, and residual or None; of a deformable convolution offset and mask as well.

    Returns
    -------
    callable or None
        ``entry(x, out, residual)``, or with offset and mask, returns ``out`` after running, or None if it must not run.
    """
    entry = _entry()
    if not entry:
        return None
    descriptor = Descriptor(8 * (_HEADER + len(arrays) * _GROUP))
    _write(descriptor, 0, [
        id(None), id(_NAME), CONTROL, address(steps), len(steps) // 4, items, workspace, environment, threads, wake,
        int(keep_gil), len(arrays),
    ])  # fmt: skip
    for number, array in enumerate(arrays):
        if array is None:
            continue
        size, offset = reach(array)
        pairs = [v for pair in zip(array.shape, array.strides, strict=True) for v in pair]
        group = id(np.ndarray), id(array.dtype), array.ndim, offset, size, *pairs
        _write(descriptor, _HEADER + number * _GROUP, group)
    definition = _MethodDef(b"convolve", entry, _METH_FASTCALL, None)
    descriptor.keep = (*keep, steps, [array.dtype for array in arrays if array is not None])
    descriptor.definition = definition
    return _builtin()(ctypes.addressof(definition), descriptor, None)


def _write(descriptor: Descriptor, first: int, values: Sequence[int]) -> None:
    """Write words into a descriptor."""
    descriptor[8 * first : 8 * (first + len(values))] = words([*values]).tobytes()


@cache
def _builtin() -> Any:
    """CPython's function that makes a builtin of a definition and its ``self``."""
    made = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return made(("PyCFunction_NewEx", ctypes.pythonapi))
