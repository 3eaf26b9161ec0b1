"""LLVM text to callable machine code: the only file that talks to LLVM.

Text becomes an object file at code-generation level 1 without the middle-end pipeline (same speed
as the higher levels for these kernels, a fraction of the time), and objects are linked by one ORC
JIT for the whole process.  Neither JIT nor code is ever freed: worker threads live inside it.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from polyconv.target import Target

__all__ = ["assembly", "compiling", "link", "object_code"]

_names = itertools.count()
_lock = threading.RLock()


@cache
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def _machine(target: Target) -> Any:
    llvm = _llvm()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=1, reloc="pic", codemodel="default"
    )


def compiling() -> AbstractContextManager[Any]:
    """Hold LLVM, which compiles one thing at a time."""
    return _lock


def object_code(text: str, target: Target) -> bytes:
    """Compile LLVM text to an object file."""
    with _lock:
        module = _llvm().parse_assembly(text)
        return bytes(_machine(target).emit_object(module))


def assembly(text: str, target: Target) -> str:
    """Compile LLVM text to assembly, for reading."""
    with _lock:
        return str(_machine(target).emit_assembly(_llvm().parse_assembly(text)))


@cache
def _jit() -> Any:
    # JITLink keeps code and constants of an object in one piece of memory.  LLVM's older linker may get pieces more
    # than 2 GiB apart in a process that holds much, and aborts over the 32-bit distances between them.
    in_one_piece = sys.platform != "win32"
    jit = _llvm().create_lljit_compiler(_machine_for_jit(), use_jit_link=in_one_piece, suppress_errors=True)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(jit))  # never disposed, not even at exit
    return jit


def _machine_for_jit() -> Any:
    llvm = _llvm()
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True, codemodel="jitdefault")


def link(obj: bytes, names: tuple[str, ...], symbols: dict[str, int] | None = None) -> dict[str, int]:
    """Load an object file; addresses of its functions.

    Parameters
    ----------
    obj : bytes
        From ``object_code`` for a target this machine can run.
    names : tuple of str
        Functions to look up.
    symbols : dict, optional
        Addresses of functions the object calls.
    """
    llvm = _llvm()
    builder = llvm.JITLibraryBuilder().add_object_img(obj)
    for name in names:
        builder.export_symbol(name)
    for name, address in (symbols or {}).items():
        builder.import_symbol(name, address)
    with _lock:
        tracker = builder.link(_jit(), f"polyconv{next(_names)}")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(tracker))  # code is never unloaded
    return {name: tracker[name] for name in names}
