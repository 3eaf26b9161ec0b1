"""Kernels by name: compiled once per machine, kept on disk, loaded once per process.

The key of a kernel is everything that shapes its code: its own name, the generator's source, check
mode, LLVM's version and the target.  A file in the cache is used only if it is ours, private and
whole (SHA-256 before LLVM sees it); any trouble means one warning and compiling in memory.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from polyconv.kernels.compile import link, llvm_version, object_code
from polyconv.kernels.language import Module
from polyconv.kernels.signature import Address, Signature
from polyconv.target import Target

__all__ = [
    "EVENTS", "Events", "Take", "cache_folder", "clear_cache", "fingerprint", "generator", "has_folder", "kept",
    "kept_file", "kernel", "kernel_text", "log_compiling", "texts_only", "usable", "use_folder",
]  # fmt: skip

S = TypeVar("S", bound=Signature)

_MAGIC = b"polyconv-object-1\n"
_MOST_BYTES = 256 << 20
_NAME = re.compile(r"[0-9a-f]{64}\.(?:o|\w+\.part)")
_LONGEST_WRITE_SECONDS = 3600.0
_TRIM_BYTES = 16 << 20
_log = logging.getLogger("polyconv")
_lock = threading.RLock()
_loaded: dict[str, dict[str, Any]] = {}

# A fork waits for a compilation under way: the child's LLVM is whole and its locks are free.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


@dataclass(slots=True)
class Events:
    """What this process compiled and loaded, for tests, ``explain`` and ``info``."""

    compiled: int = 0
    loaded: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    sites: list[str] = field(default_factory=list)


EVENTS = Events()
_folder: list[Path | None] = []
_logged = [False]
_untrimmed = _TRIM_BYTES  # bytes written since the folder was last looked through; the first write does
_warned: set[str] = set()


def use_folder(folder: Path | None) -> None:
    """Keep objects in this folder from now on; None keeps them in memory only."""
    _folder[:] = [folder]


def has_folder() -> bool:
    """Whether ``use_folder`` has decided, be it for a folder or for memory."""
    return bool(_folder)


def log_compiling(wanted: bool) -> None:
    """Whether every compiled kernel is logged with its time."""
    _logged[:] = [wanted]


def cache_folder() -> Path | None:
    """Folder in use, or None."""
    return _folder[0] if _folder else None


def _warn(trouble: str, message: str) -> None:
    """Say each kind of trouble once a process, however many kernels meet it."""
    if trouble not in _warned:
        _warned.add(trouble)
        _log.warning("%s", message)


@cache
def generator() -> str:
    """Fingerprint of the code that generates kernels: the contents of its files."""
    root = Path(__file__).parent.parent
    folders = ("kernels", "lowering", "algorithms", "fields", "operators", "machine")
    return fingerprint([
        *(file for name in folders for file in root.glob(f"{name}/**/*.py")), root / "dtypes.py", root / "target.py"
    ])  # fmt: skip


def fingerprint(files: Iterable[Path]) -> str:
    """Fingerprint of the contents of files."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
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
        take(level, stand_ins, _generated(level, functions, build, target, check, 1).text(target.triple))
        return stand_ins
    with _lock:
        found = _loaded.get(level)
        if found is None:
            places = link(_object(level, functions, build, target, check), tuple(functions))
            found = _loaded[level] = {function: Address(places[function], s) for function, s in functions.items()}
        return found


class Take(Protocol):
    """What is told of every kernel instead of compiling it."""

    def __call__(self, label: str, functions: Mapping[str, Address[Any]], text: str, /) -> object:
        """Take a kernel's label, the addresses that stand for its functions, and its LLVM text."""


_taker: ContextVar[Take | None] = ContextVar("taker of texts", default=None)


@contextmanager
def texts_only(take: Take) -> Iterator[None]:
    """Hand the text of every kernel that this thread asks for to ``take``, and compile none.

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


def _generated(level: str, functions: Mapping[str, type[Signature]], build: Callable[[Module], None], target: Target,
               check: bool, first_site: int) -> Module:  # fmt: skip
    k = Module(check=check, fma=target.has_fma, wide=8 * target.vector_bytes, first_site=first_site)
    build(k)
    if k.functions != functions:
        raise TypeError(f"kernel {level} is to define {dict(functions)}, and defines {k.functions}")
    return k


def _object(level: str, functions: Mapping[str, type[Signature]], build: Callable[[Module], None], target: Target,
            check: bool) -> bytes:  # fmt: skip
    def make() -> bytes:
        k = _generated(level, functions, build, target, check, len(EVENTS.sites) + 1)
        EVENTS.sites += [f"{level}: {site}" for site in k.site_names]
        return object_code(k.text(target.triple), target)

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
    folder = cache_folder()
    path = None
    if folder is not None and usable(folder):
        path = folder / _file_name(label, made_for)
        found = _read(path)
        if found is not None:
            EVENTS.loaded += 1
            return found
    start = time.perf_counter()
    made = make()
    EVENTS.compiled += 1
    EVENTS.seconds[label] = time.perf_counter() - start
    if _logged[0]:
        _log.info("compile %s, %.1f ms", label, 1e3 * EVENTS.seconds[label])
    if path is not None:
        _write(path, made)
    return made


def _file_name(label: str, made_for: Sequence[str]) -> str:
    key = "\n".join((label, llvm_version(), *made_for))
    return f"{hashlib.sha256(key.encode()).hexdigest()}.o"


def kept_file(label: str, target: Target) -> Path | None:
    """File of the cache that holds the object of a kernel; None if there is none."""
    folder = cache_folder()
    path = None if folder is None else folder / _file_name(label, _made_for(target))
    return path if path is not None and path.is_file() else None


def usable(folder: Path) -> bool:
    """Whether a folder is ours alone; it is made if it does not exist."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.lstat()
    except OSError as error:
        _warn("folder", f"the object cache {folder} cannot be used ({error}); kernels stay in memory")
        return False
    if not stat.S_ISDIR(info.st_mode) or (hasattr(os, "getuid") and info.st_uid != os.getuid()):
        _warn("folder", f"the object cache {folder} is not a folder of this user; kernels stay in memory")
        return False
    if os.name == "posix" and info.st_mode & 0o022:
        _warn("folder", f"the object cache {folder} can be written by others; kernels stay in memory (chmod 700 it)")
        return False
    return True


def _read(path: Path) -> bytes | None:
    """Payload of a cache file, or None: absent, foreign or damaged."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0))
        with os.fdopen(handle, "rb") as file:
            info = os.fstat(handle)
            own = not hasattr(os, "getuid") or info.st_uid == os.getuid()
            if not stat.S_ISREG(info.st_mode) or not own or info.st_mode & 0o022 or info.st_size > _MOST_BYTES:
                _warn("private", f"{path} in the object cache is not a private file of this user; compiling instead")
                return None
            data = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn("read", f"{path} in the object cache cannot be read ({error}); compiling instead")
        return None
    payload = data[len(_MAGIC) + 32 :]
    if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(payload).digest() != data[len(_MAGIC) : len(_MAGIC) + 32]:
        _warn("damage", f"{path} in the object cache is damaged; compiling instead")
        return None
    return payload


def _write(path: Path, payload: bytes) -> None:
    """Keep an object: a private temporary file, then one rename; older objects go when space runs out."""
    global _untrimmed
    data = _MAGIC + hashlib.sha256(payload).digest() + payload
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem}.", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        _untrimmed += len(data)
        if _untrimmed >= _TRIM_BYTES:
            _untrimmed = 0
            _trim(path.parent)
    except OSError as error:
        _warn("write", f"the object cache {path.parent} cannot be written ({error}); kernels stay in memory")


def _own_files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """(time of change, bytes, path) of the files that this module made; others in the folder are not ours."""
    for entry in os.scandir(folder):
        if not _NAME.fullmatch(entry.name):
            continue
        try:
            info = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # another process trims, too
            continue
        yield info.st_mtime, info.st_size, Path(entry.path)


def _trim(folder: Path) -> None:
    """Delete the oldest objects beyond the size cap, and what processes that died left half written."""
    total = 0
    for changed, size, file in sorted(_own_files(folder), reverse=True):
        total += size
        abandoned = file.suffix == ".part" and time.time() - changed > _LONGEST_WRITE_SECONDS
        if abandoned or (total > _MOST_BYTES and file.suffix == ".o"):
            file.unlink(missing_ok=True)


def clear_cache() -> int:
    """Delete all kept objects; how many there were."""
    folder = cache_folder()
    if folder is None or not folder.is_dir():
        return 0
    files = [file for _, _, file in _own_files(folder) if file.suffix == ".o"]
    for file in files:
        file.unlink(missing_ok=True)
    return len(files)


def kernel_text(
    name: str, functions: tuple[str, ...], text: str, target: Target, symbols: dict[str, int]
) -> dict[str, int]:
    """Addresses of functions written directly in LLVM's text form.

    Parameters
    ----------
    symbols : dict
        Addresses of what the text calls; they are bound when it is loaded and are no part of the code.
    """
    with _lock:
        found = _loaded.get(name)
        if found is None:
            digest = hashlib.sha256(text.encode()).hexdigest()
            whole = f'target triple = "{target.triple}"\n{text}'
            obj = kept(f"{name} {digest}", _made_for(target), lambda: object_code(whole, target))
            found = _loaded[name] = link(obj, functions, symbols)
        return found
