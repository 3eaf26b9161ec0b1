"""Fused multiply-add of whole arrays: one rounding, which NumPy has no function for.

f32 and f64 come from a loop compiled by LLVM, whose ``fma`` is exact by definition on every machine.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["compiled", "narrow", "rounded_to_bf16"]

Array = NDArray[Any]

_LOOP = """
define void @fma_{type}(i64 %n, ptr %a, i64 %sa, ptr %b, i64 %sb, ptr %c, i64 %sc, ptr %out, ptr %where) {{
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %turn, label %done
turn:
  %i = phi i64 [ 0, %entry ], [ %next, %after ]
  %flag.at = getelementptr i8, ptr %where, i64 %i
  %flag = load i8, ptr %flag.at
  %active = icmp ne i8 %flag, 0
  br i1 %active, label %work, label %after
work:
  %ia = mul i64 %i, %sa
  %ib = mul i64 %i, %sb
  %ic = mul i64 %i, %sc
  %pa = getelementptr {type}, ptr %a, i64 %ia
  %pb = getelementptr {type}, ptr %b, i64 %ib
  %pc = getelementptr {type}, ptr %c, i64 %ic
  %va = load {type}, ptr %pa
  %vb = load {type}, ptr %pb
  %vc = load {type}, ptr %pc
  %sum = call {type} @llvm.fma.{name}({type} %va, {type} %vb, {type} %vc)
  %po = getelementptr {type}, ptr %out, i64 %i
  store {type} %sum, ptr %po
  br label %after
after:
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %turn, label %done
done:
  ret void
}}
declare {type} @llvm.fma.{name}({type}, {type}, {type})
"""


@cache
def _engine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(cpu=llvm.get_host_cpu_name(), opt=2)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    for type_, name in (("float", "f32"), ("double", "f64")):
        engine.add_module(llvm.parse_assembly(_LOOP.format(type=type_, name=name)))
    engine.finalize_object()
    return engine


@cache
def compiled(type_: str) -> Callable[..., None]:
    """The loop for "f32" or "f64": count, three times pointer and step in elements, result, bytes that select."""
    address = _engine().get_function_address({"f32": "fma_float", "f64": "fma_double"}[type_])
    p, n = ctypes.c_void_p, ctypes.c_int64
    return ctypes.CFUNCTYPE(None, n, p, n, p, n, p, n, p, p)(address)


def narrow(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` of f16 or bf16 operands in float64, rounded to odd: any later rounding is then the only one."""
    product = a.astype(np.float64) * b.astype(np.float64)  # at most 22 bits: exact
    c = c.astype(np.float64)
    total = product + c
    high = total - product
    error = (product - (total - high)) + (c - high)
    bits = np.ascontiguousarray(total).view(np.int64)
    inexact = ((error > 0) | (error < 0)) & (bits & 1 == 0)
    return np.where(inexact, bits + np.where((error > 0) == (total > 0), 1, -1), bits).view(np.float64)


def rounded_to_bf16(x: Array) -> Array:
    """Float64 to the nearest bfloat16, ties to even, in one rounding."""
    with np.errstate(all="ignore"):
        single = x.astype(np.float32)
        beyond = np.abs(single.astype(np.float64)) > np.abs(x)
        toward = np.where(beyond, np.nextafter(single, np.float32(0)), single)
        odd = toward.view(np.uint32) | (toward.astype(np.float64) != x) * ~np.isnan(x)
        rounded: Array = odd.astype(np.uint32).view(np.float32).astype(ml_dtypes.bfloat16)
    return rounded
