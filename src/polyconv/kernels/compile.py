"""LLVM text to callable machine code: the only file that talks to LLVM.

Text becomes an object file at code-generation level 1 without the middle-end pipeline (same speed
as the higher levels for these kernels, a fraction of the time), and objects are linked by one ORC
JIT for the whole process.  Neither JIT nor code is ever freed: worker threads live inside it.

llvmlite lets one thread at a time into LLVM.  LLVM itself asks for no more than that each has its own context and
target machine, so ``object_code`` calls the library directly, and as many threads compile as there are.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from polyconv.target import Target

__all__ = ["assembly", "compiling", "link", "object_code"]

_names = itertools.count()
_lock = threading.RLock()


class _Machines(threading.local):
    """Target machines of this thread."""

    def __init__(self) -> None:
        self.made: dict[Target, Any] = {}


_machines = _Machines()


class _Inside:
    """Threads that are inside LLVM: a fork waits until the others have left, so that the child's LLVM is whole."""

    def __init__(self) -> None:
        self._change, self._threads, self._holder = threading.Condition(threading.RLock()), list[int](), 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._change:
            while self._holder not in (0, me) and me not in self._threads:
                self._change.wait()
            self._threads.append(me)

    def __exit__(self, *error: object) -> None:
        with self._change:
            self._threads.remove(threading.get_ident())
            self._change.notify_all()

    def hold(self) -> None:
        """Let nobody in, once all have left but the caller, whom a signal may have called away."""
        self._change.acquire()
        self._holder = me = threading.get_ident()
        while any(thread != me for thread in self._threads):
            self._change.wait()

    def release(self) -> None:
        """Let them in again."""
        self._holder = 0
        self._change.notify_all()
        self._change.release()


_inside = _Inside()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_inside.hold, after_in_parent=_inside.release, after_in_child=_inside.release)


@cache
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@cache
def _library() -> Any:
    """The functions of llvmlite's library that ``object_code`` calls, without llvmlite's lock."""
    opened = _llvm().ffi.lib
    library = ctypes.CDLL(opened._name, handle=opened._handle)
    at, text = ctypes.c_void_p, ctypes.c_char_p
    for name, result, *kinds in (
        ("ContextCreate", at), ("ContextDispose", None, at), ("ParseAssembly", at, at, text, at),
        ("DisposeModule", None, at), ("TargetMachineEmitToMemory", at, at, at, ctypes.c_int, at),
        ("GetBufferStart", at, at), ("GetBufferSize", ctypes.c_size_t, at), ("DisposeMemoryBuffer", None, at),
        ("DisposeString", None, at),
    ):  # fmt: skip
        function = getattr(library, f"LLVMPY_{name}")
        function.restype, function.argtypes = result, kinds
    return library


def _machine(target: Target) -> Any:
    llvm = _llvm()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=1, reloc="pic", codemodel="default"
    )


@contextmanager
def compiling() -> Iterator[None]:
    """Hold LLVM as llvmlite knows it, with one context for all: one thread at a time."""
    with _lock, _inside:
        yield


def object_code(text: str, target: Target) -> bytes:
    """Compile LLVM text to an object file; several threads may do so at once.

    Raises
    ------
    RuntimeError
        If LLVM does not understand the text.
    """
    library, machine = _library(), _machines.made.get(target)
    if machine is None:
        machine = _machines.made[target] = _machine(target)
    said = ctypes.c_void_p()
    with _inside:
        context = library.LLVMPY_ContextCreate()
        module = library.LLVMPY_ParseAssembly(context, text.encode(), ctypes.byref(said))
        made = module and library.LLVMPY_TargetMachineEmitToMemory(machine, module, 1, ctypes.byref(said))
        found = made and ctypes.string_at(library.LLVMPY_GetBufferStart(made), library.LLVMPY_GetBufferSize(made))
        library.LLVMPY_DisposeMemoryBuffer(made)
        library.LLVMPY_DisposeModule(module)
        library.LLVMPY_ContextDispose(context)
    if not made:
        why = ctypes.string_at(said.value or 0).decode("utf-8", "replace")
        library.LLVMPY_DisposeString(said)
        raise RuntimeError(why)
    return bytes(found)


def assembly(text: str, target: Target) -> str:
    """Compile LLVM text to assembly, for reading."""
    with compiling():
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
    with compiling():
        tracker = builder.link(_jit(), f"polyconv{next(_names)}")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(tracker))  # code is never unloaded
    return {name: tracker[name] for name in names}
