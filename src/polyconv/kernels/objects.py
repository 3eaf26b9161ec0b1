"""Kernels by name: compiled once per machine, kept on disk, loaded once per process.

The key of a kernel is everything that shapes its code: its own name, the generator's source, check
mode, LLVM's version and the target.  What the cache has not, or not whole, is compiled.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from polyconv import cache as files
from polyconv.dataclass import dataclass
from polyconv.elsewhere import elsewhere
from polyconv.kernels import elf
from polyconv.kernels.compile import link, object_code
from polyconv.kernels.isa import steps_together
from polyconv.kernels.language import Module
from polyconv.kernels.signature import Address, Signature
from polyconv.target import Target, llvm_version

__all__ = [
    "EVENTS", "Events", "Take", "fingerprint", "found_again", "functions_by_address", "generator", "kept", "kept_file",
    "kernel", "kernel_text", "log_compiling", "module_for", "texts_only",
]  # fmt: skip

S = TypeVar("S", bound=Signature)
T = TypeVar("T", bound=int)

_log = logging.getLogger("polyconv")
_lock = threading.RLock()
"""Held while text is generated, which one thread does at a time; LLVM compiles without it."""
_loaded: dict[str, dict[str, Any]] = {}
_loaded_again: dict[str, dict[str, int]] = {}
"""What ``found_again`` has loaded, so that many sessions of a model load it once."""
_making: dict[str, threading.RLock] = {}
"""Kernels that are under way: whoever asks for one of them waits, others are not held up."""


def _forget_others() -> None:
    """In a child there is nobody to finish what other threads were making."""
    _making.clear()
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_forget_others)


@dataclass(slots=True)
class Events:
    """What this process compiled and loaded, for tests, ``explain`` and ``info``."""

    compiled: int = 0
    loaded: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    sites: list[str] = field(default_factory=list)


EVENTS = Events()
_logged = [False]


def log_compiling(wanted: bool) -> None:
    """Whether every compiled kernel is logged with its time."""
    _logged[:] = [wanted]


@cache
def generator() -> str:
    """Fingerprint of the code that generates kernels: the contents of its files."""
    root = Path(__file__).parent.parent
    folders = ("kernels", "lowering", "algorithms", "fields", "operators", "machine")
    inner = (place for name in folders for place in os.walk(root / name))  # Path.glob takes three times as long
    sources = (f"{folder}/{name}" for folder, _, names in inner for name in names if name.endswith(".py"))
    return fingerprint([*sources, f"{root}/dtypes.py", f"{root}/target.py"])


def fingerprint(files: Iterable[str | Path]) -> str:
    """Fingerprint of the contents of files."""
    digest = hashlib.sha256()
    for file in sorted(str(file) for file in files):
        with open(file, "rb", buffering=0) as stream:  # noqa: PTH123  at every start, and half as long as Path.open
            contents = stream.read()
        digest.update(b"%d " % len(contents) + contents)
    return digest.hexdigest()[:16]


generator()  # now: the files may change while this process lives, the code that it has read does not


def kernel(name: str, functions: Mapping[str, type[S]], build: Callable[[Module], None], target: Target,
           *, check: bool = False) -> dict[str, Address[S]]:  # fmt: skip
    """Addresses of a kernel's functions.

    Parameters
    ----------
    name : str
        Says all that shapes the code, with target, check mode and generator.
    functions : dict
        Names of what ``build`` defines, and the signature of each.
    build : callable
        Adds the functions to a module.

    Raises
    ------
    TypeError
        If ``build`` defines other functions, or with other signatures.
    """
    level = f"{target.level} {'check' if check else ''} {name}"
    take = _taker.get()
    if take is not None:
        stand_ins = {function: Address(_stand_in(level, function), s) for function, s in functions.items()}
        take(level, stand_ins, lambda: _generated(level, functions, build, target, check, 1).text(target.triple))
        return stand_ins

    def made() -> dict[str, Address[S]]:
        places = _linked(_object(level, functions, build, target, check), tuple(functions), {})
        return {function: Address(places[function], s) for function, s in functions.items()}

    return _once(level, made)


def functions_by_address() -> dict[int, tuple[str, str]]:
    """Kernel and name of every function that this process has loaded, as ``found_again`` takes them."""
    return {address: (level, name) for level, of_kernel in [*_loaded.items()] for name, address in of_kernel.items()}


def found_again(level: str, names: Sequence[str], target: Target) -> dict[str, int] | None:
    """Addresses of a kernel's functions without what builds it, if they are loaded or the cache has them; else None."""
    loaded = _loaded.get(level) or _loaded_again.get(level) or {}
    if not loaded.keys() >= set(names):
        path = _file(level, _made_for(target))
        code = None if path is None else _read(path)
        if code is None:
            return None
        loaded = _loaded_again[level] = _linked(code, tuple(names), {})
    return {name: loaded[name] for name in names}


def _once(label: str, make: Callable[[], dict[str, T]]) -> dict[str, T]:
    """What a label stands for in this process, made by the first thread that asks."""
    found = _loaded.get(label)
    if found is not None:
        return found
    with _making.setdefault(label, threading.RLock()):
        found = _loaded.get(label)
        if found is None:
            found = _loaded[label] = make()
    _making.pop(label, None)
    return found


class Take(Protocol):
    """What is told of every kernel instead of compiling it."""

    def __call__(self, label: str, functions: Mapping[str, Address[Any]], text: Callable[[], str], /) -> object:
        """Take a kernel's label, the addresses that stand for its functions, and what writes its LLVM text."""


_taker: ContextVar[Take | None] = ContextVar("taker of texts", default=None)


@contextmanager
def texts_only(take: Take) -> Iterator[None]:
    """Hand every kernel that this thread asks for to ``take``, which may have its text written, and compile none.

    The addresses that ``kernel`` gives meanwhile tell functions apart, and stand for no code: a program made of them
    can be looked at, not run.
    """
    before = _taker.set(take)
    try:
        yield
    finally:
        _taker.reset(before)


def _stand_in(level: str, function: str) -> int:
    """A number in the place of an address, the same in every process."""
    return int.from_bytes(hashlib.sha256(f"{level} {function}".encode()).digest()[:5], "big") << 4


def module_for(target: Target, *, check: bool = False, first_site: int = 1) -> Module:
    """An empty unit for a target, as all kernels are made in."""
    return Module(
        check=check, fma=target.has_fma, wide=8 * target.vector_bytes, first_site=first_site,
        together=steps_together(target), masked_loads=target.masked_loads, masked_stores=target.has_masks,
    )  # fmt: skip


def _generated(level: str, functions: Mapping[str, type[Signature]], build: Callable[[Module], None], target: Target,
               check: bool, first_site: int) -> Module:  # fmt: skip
    k = module_for(target, check=check, first_site=first_site)
    build(k)
    if k.functions != functions:
        raise TypeError(f"kernel {level} is to define {dict(functions)}, and defines {k.functions}")
    return k


def _object(level: str, functions: Mapping[str, type[Signature]], build: Callable[[Module], None], target: Target,
            check: bool) -> bytes:  # fmt: skip
    def make() -> bytes:
        with _lock:
            k = _generated(level, functions, build, target, check, len(EVENTS.sites) + 1)
            EVENTS.sites += [f"{level}: {site}" for site in k.site_names]
            text = k.text(target.triple)
        return elsewhere(object_code, text, target)

    return make() if check else kept(label=level, made_for=_made_for(target), make=make)


def _made_for(target: Target) -> tuple[str, ...]:
    return generator(), target.triple, target.cpu, target.features


def kept(label: str, made_for: Sequence[str], make: Callable[[], bytes]) -> bytes:
    """Code from the cache, else made and kept there.

    Parameters
    ----------
    label : str
        Says all that shapes the code.
    made_for : sequence of str
        What made it, and for which machine.
    make : callable
    """
    path = _file(label, made_for)
    if path is not None and not files.usable(path.parent):
        path = None
    if path is not None:
        found = _read(path)
        if found is not None:
            return found
    start = time.perf_counter()
    made = make()
    with _lock:
        EVENTS.compiled += 1
        EVENTS.seconds[label] = time.perf_counter() - start
    if _logged[0]:
        _log.info("compile %s, %.1f ms", label, 1e3 * EVENTS.seconds[label])
    if path is not None:
        files.write(path, made)
    return made


def _read(path: Path) -> bytes | None:
    """Code that the cache has; None if it has none."""
    found = files.read(path)
    if found is not None:
        with _lock:
            EVENTS.loaded += 1
    return found


def _file(label: str, made_for: Sequence[str]) -> Path | None:
    return files.place((label, llvm_version(), *made_for))


def kept_file(label: str, target: Target) -> Path | None:
    """File of the cache that holds the object of a kernel; None if there is none."""
    path = _file(label, _made_for(target))
    return path if path is not None and path.is_file() else None


def _linked(obj: bytes, names: tuple[str, ...], symbols: dict[str, int]) -> dict[str, int]:
    """Addresses of an object's functions."""
    found = elf.load(obj, names, symbols)
    return link(obj, names, symbols) if found is None else found


def kernel_text(
    name: str, functions: tuple[str, ...], text: str, target: Target, symbols: dict[str, int]
) -> dict[str, int]:
    """Addresses of functions written directly in LLVM's text form.

    Parameters
    ----------
    symbols : dict
        Addresses of what the text calls; they are bound when it is loaded and are no part of the code.
    """

    def made() -> dict[str, int]:
        digest = hashlib.sha256(text.encode()).hexdigest()
        whole = f'target triple = "{target.triple}"\n{text}'
        obj = kept(f"{name} {digest}", _made_for(target), lambda: elsewhere(object_code, whole, target))
        return _linked(obj, functions, symbols)

    return _once(name, made)
