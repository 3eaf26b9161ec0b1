"""From a Python call to native code: a builtin function made for one program and its arrays' shapes.

The builtin takes exactly (x, out, residual), checks in native code that they are plain arrays of the
expected type object, shape and strides which do not overlap, and runs the program with the shared
workspace; anything else makes it return None and the caller takes the Python path, which explains.
Of CPython's structures only ``Py_buffer`` is read; all else goes through exported functions.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.kernels.objects import kernel_text
from polyconv.kernels.record import words
from polyconv.runtime.control import CONTROL
from polyconv.runtime.runner import native
from polyconv.target import host_target

__all__ = ["Descriptor", "make_entry"]

_API = (
    "PyObject_GetBuffer", "PyBuffer_Release", "Py_IncRef", "Py_DecRef", "PyEval_SaveThread", "PyEval_RestoreThread",
    "PyObject_Type", "PyObject_GetAttr", "PyErr_Clear", "PyByteArray_AsString",
)  # fmt: skip

# Descriptor words, each array with its own group: [type object, dtype, dimensions, offset of the lowest
# address, bytes, then (extent, stride) pairs].
_HEADER = 16
_GROUP = 5 + 2 * 64
_FIELDS = {
    "none": 0, "dtype_name": 1, "control": 2, "steps": 3, "step_count": 4, "items": 5, "workspace": 6,
    "environment": 7, "threads": 8, "wake": 9, "keep_gil": 10, "residual": 11,
}  # fmt: skip

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
  %views = alloca [240 x i8], align 16
  %frame = alloca [10 x i64], align 16
  %job = alloca [11 x i64], align 16
  %d = call ptr @PyByteArray_AsString(ptr %self)
  %none = load ptr, ptr %d
  %three = icmp eq i64 %count, 3
  br i1 %three, label %go, label %refuse
go:
  %x = load ptr, ptr %arguments
  %a1 = getelementptr ptr, ptr %arguments, i64 1
  %out = load ptr, ptr %a1
  %a2 = getelementptr ptr, ptr %arguments, i64 2
  %residual = load ptr, ptr %a2
  %namep = getelementptr i64, ptr %d, i64 1
  %name = load ptr, ptr %namep
  %gx = getelementptr i64, ptr %d, i64 GROUP_X
  %gy = getelementptr i64, ptr %d, i64 GROUP_Y
  %gr = getelementptr i64, ptr %d, i64 GROUP_R
  %fy = getelementptr i64, ptr %frame, i64 2
  %fr = getelementptr i64, ptr %frame, i64 4
  %vy = getelementptr i8, ptr %views, i64 80
  %vr = getelementptr i8, ptr %views, i64 160
  store i64 0, ptr %fr
  %fr1 = getelementptr i64, ptr %fr, i64 1
  store i64 0, ptr %fr1
  %okx = call i64 @fits(ptr %x, ptr %gx, ptr %name, ptr %views, i32 24, ptr %frame)
  %isx = icmp ne i64 %okx, 0
  br i1 %isx, label %second, label %refuse
second:
  %oky = call i64 @fits(ptr %out, ptr %gy, ptr %name, ptr %vy, i32 25, ptr %fy)
  %isy = icmp ne i64 %oky, 0
  br i1 %isy, label %third, label %close_x
third:
  %hasp = getelementptr i64, ptr %d, i64 11
  %has = load i64, ptr %hasp
  %wants = icmp ne i64 %has, 0
  br i1 %wants, label %with, label %without
without:
  %isnone = icmp eq ptr %residual, %none
  br i1 %isnone, label %distinct, label %close_y
with:
  %okr = call i64 @fits(ptr %residual, ptr %gr, ptr %name, ptr %vr, i32 24, ptr %fr)
  %isr = icmp ne i64 %okr, 0
  br i1 %isr, label %apart, label %close_y
apart:
  %over_r = call i1 @overlap(ptr %fr, ptr %fy)
  br i1 %over_r, label %close_r, label %distinct
distinct:
  %over = call i1 @overlap(ptr %frame, ptr %fy)
  br i1 %over, label %close_all, label %lock
lock:
  %cp = getelementptr i64, ptr %d, i64 2
  %control = load ptr, ptr %cp
  %free = call i64 @acquire(ptr %control)
  %locked = icmp ne i64 %free, 0
  br i1 %locked, label %space, label %close_all
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
  br label %close_all
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
  br i1 %wants, label %done_r, label %done_y
done_r:
  call void @PyBuffer_Release(ptr %vr)
  br label %done_y
done_y:
  call void @PyBuffer_Release(ptr %vy)
  call void @PyBuffer_Release(ptr %views)
  call void @Py_IncRef(ptr %out)
  ret ptr %out
close_all:
  br i1 %wants, label %close_r, label %close_y
close_r:
  call void @PyBuffer_Release(ptr %vr)
  br label %close_y
close_y:
  call void @PyBuffer_Release(ptr %vy)
  br label %close_x
close_x:
  call void @PyBuffer_Release(ptr %views)
  br label %refuse
refuse:
  call void @Py_IncRef(ptr %none)
  ret ptr %none
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
    text = _DECLARATIONS + _CHECK + _ENTRY
    for name, number in (("X", 0), ("Y", 1), ("R", 2)):
        text = text.replace(f"GROUP_{name}", str(_HEADER + number * _GROUP))
    symbols = {n: ctypes.cast(getattr(ctypes.pythonapi, n), ctypes.c_void_p).value or 0 for n in _API}
    symbols |= {n: native()[n] for n in ("serial", "shared", "acquire", "release")}
    return kernel_text("entry", ("entry",), text, host_target(), symbols)["entry"]


def make_entry(x: NDArray[Any], out: NDArray[Any], residual: NDArray[Any] | None, steps: NDArray[np.int64],
               items: int, workspace: int, environment: int, threads: int, wake: int, keep_gil: bool,
               keep: tuple[Any, ...]) -> Any:  # fmt: skip
    """Make the builtin of a program for arrays like these; None where native entries do not work.

    Returns
    -------
    callable or None
        ``entry(x, out, residual)`` returns ``out`` after running, or None if it must not run.
    """
    address = _entry()
    if not address:
        return None
    table = [0] * (_HEADER + 3 * _GROUP)
    header = {
        "none": id(None), "dtype_name": id(_NAME), "control": CONTROL, "steps": steps.ctypes.data,
        "step_count": len(steps) // 4, "items": items, "workspace": workspace, "environment": environment,
        "threads": threads, "wake": wake, "keep_gil": int(keep_gil), "residual": int(residual is not None),
    }  # fmt: skip
    for name, value in header.items():
        table[_FIELDS[name]] = value
    dtypes = []
    for number, array in enumerate((x, out, residual)):
        if array is None:
            continue
        low = sum((e - 1) * s for e, s in zip(array.shape, array.strides, strict=True) if s < 0)
        high = sum((e - 1) * s for e, s in zip(array.shape, array.strides, strict=True) if s > 0)
        dtypes.append(array.dtype)
        pairs = [v for pair in zip(array.shape, array.strides, strict=True) for v in pair]
        group = [id(np.ndarray), id(array.dtype), array.ndim, -low, high - low + array.itemsize, *pairs]
        first = _HEADER + number * _GROUP
        table[first : first + len(group)] = group
    descriptor = Descriptor(words(table).tobytes())
    definition = _MethodDef(b"convolve", address, _METH_FASTCALL, None)
    descriptor.keep = (*keep, steps, dtypes)
    descriptor.definition = definition
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    return new(ctypes.addressof(definition), descriptor, None)
