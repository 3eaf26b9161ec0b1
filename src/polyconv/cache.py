"""Bytes that processes leave each other: files of one private folder, each whole or not there.

A file is used only if it is ours, private and whole (checked before anybody looks at it).  Any trouble means one
warning, and what the file held is made again.  It must not know what the bytes mean.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np

__all__ = ["cache_folder", "clear_cache", "has_folder", "place", "read", "read_into", "usable", "use_folder", "write"]

P = TypeVar("P", bytes, memoryview)

_MAGIC = b"polyconv-object-1\n"
_HEAD = len(_MAGIC) + 32
"""Bytes before the payload."""
_MOST_BYTES, _MOST_LARGE = 256 << 20, 1 << 30
"""Of a file and of all files together; of those that are ``_LARGE``."""
_HASHED, _BLOCK, _STAGE = 1 << 20, 4096, 1 << 20
"""Bytes up to which a payload is hashed whole; of a longer one, bytes of its blocks, and of those written at once."""
_NAME = re.compile(r"[0-9a-f]{64}\.(?:o|cpu|model|plans|made|met|runs|\w+\.part)")
_LASTING = (".cpu", ".part")
"""Of what is small and serves every kernel, and of what is being written; the rest goes when space runs out."""
_LARGE = ".runs"
"""What holds the weights of a network."""
_LONGEST_WRITE_SECONDS = 3600.0
_TRIM_BYTES = 16 << 20
_log = logging.getLogger("polyconv")
_folder: list[Path | None] = []
_untrimmed = int.from_bytes(os.urandom(8), "little") % _TRIM_BYTES
"""Bytes written since the folder was last looked through, which takes long where there are many files.

A process begins anywhere, so that many short ones together look through it as often as a long one.
"""
_warned: set[str] = set()


def use_folder(folder: Path | None) -> None:
    """Keep objects in this folder from now on; None keeps them in memory only."""
    _folder[:] = [folder]


def has_folder() -> bool:
    """Whether ``use_folder`` has decided, be it for a folder or for memory."""
    return bool(_folder)


def cache_folder() -> Path | None:
    """Folder in use, or None."""
    return _folder[0] if _folder else None


def _most(name: str) -> int:
    """Bytes that a file of such a name may have, and all that are as large."""
    return _MOST_LARGE if name.endswith(_LARGE) else _MOST_BYTES


def _warn(trouble: str, message: str) -> None:
    """Say each kind of trouble once a process, however many kernels meet it."""
    if trouble not in _warned:
        _warned.add(trouble)
        _log.warning("%s", message)


def place(parts: Sequence[str], kind: str = "o") -> Path | None:
    """File for what some texts determine; None if nothing is kept.

    Parameters
    ----------
    parts : sequence of str
        All that shapes the bytes.
    kind : str
        Suffix of the name: ``o`` for objects, ``cpu`` for what is known of a processor, ``model``, ``plans``,
        ``made``, ``met`` and ``runs`` for what is known of a model.
    """
    folder = cache_folder()
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return None if folder is None else folder / f"{name}.{kind}"


def usable(folder: Path) -> bool:
    """Whether a folder is ours alone; it is made if it does not exist."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.lstat()
    except OSError as error:
        _warn("folder", f"the object cache {folder} cannot be used ({error}); nothing is kept on disk")
        return False
    if not stat.S_ISDIR(info.st_mode) or (hasattr(os, "getuid") and info.st_uid != os.getuid()):
        _warn("folder", f"the object cache {folder} is not a folder of this user; nothing is kept on disk")
        return False
    if os.name == "posix" and info.st_mode & 0o022:
        _warn("folder", f"the object cache {folder} can be written by others; nothing is kept on disk (chmod 700 it)")
        return False
    return True


def read(path: Path) -> bytes | None:
    """Payload of a cache file, or None: absent, foreign or damaged."""
    return _read(path, lambda file, size: file.read())


def read_into(path: Path, room: Callable[[int], memoryview]) -> memoryview | None:
    """The same in memory of the caller: ``room(size)`` gives so many bytes."""
    def rest(file: FileIO, size: int) -> memoryview:
        memory, at = room(size), 0
        while at < size and (count := file.readinto(memory[at:])):
            at += count
        return memory[:at]

    return _read(path, rest)


def _read(path: Path, rest: Callable[[FileIO, int], P]) -> P | None:
    """What ``rest`` reads of a file behind its head, which is so many bytes if nobody cuts it short meanwhile."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0))
        with FileIO(handle, "rb") as file:
            info = os.fstat(handle)
            own = not hasattr(os, "getuid") or info.st_uid == os.getuid()
            if not stat.S_ISREG(info.st_mode) or not own or info.st_mode & 0o022 or info.st_size > _most(path.name):
                _warn("private", f"{path} in the object cache is not a private file of this user; it is made anew")
                return None
            head, payload = file.read(_HEAD), rest(file, max(0, info.st_size - _HEAD))
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn("read", f"{path} in the object cache cannot be read ({error}); it is made anew")
        return None
    if head != _MAGIC + _digest([payload], len(payload)):
        _warn("damage", f"{path} in the object cache is damaged; it is made anew")
        return None
    return payload


def _digest(pieces: Iterable[bytes | memoryview], size: int) -> bytes:
    """What tells whether a payload of so many bytes is as it was written: SHA-256 of it, or of what is found in it.

    Of a long one it hashes the sum of each block's words of 64 bits (modulo 2^64).  That takes a tenth of the time,
    and tells bits that flipped, blocks that are lost or zero, and blocks that changed places.  All pieces but the last
    are blocks.
    """
    found = hashlib.sha256()
    for piece in pieces:
        whole = 0 if size <= _HASHED else len(piece) - len(piece) % _BLOCK
        words = np.frombuffer(piece, np.uint64, whole // 8).reshape(-1, _BLOCK // 8)
        found.update(words.sum(axis=1).tobytes())
        found.update(piece[whole:])
    return found.digest()


def _written(pieces: Sequence[bytes | memoryview], size: int, file: BinaryIO) -> Iterator[memoryview]:
    """Write pieces of so many bytes together; what is written, so many at a time, until the next comes."""
    room, at = memoryview(bytearray(min(size, _STAGE))), 0
    for piece in pieces:
        begin, view = 0, memoryview(piece)
        while begin < len(view):
            count = min(len(view) - begin, len(room) - at)
            room[at : at + count] = view[begin : begin + count]
            begin, at = begin + count, at + count
            if at == len(room):
                file.write(room)
                yield room
                at = 0
    file.write(room[:at])
    yield room[:at]


def write(path: Path, *pieces: bytes | memoryview) -> None:
    """Keep an object: a private temporary file, then one rename; older objects go when space runs out.

    One that is too large to be read again is not kept.  Of long pieces no copy is made.
    """
    global _untrimmed
    size = sum(map(len, pieces))
    if _HEAD + size > _most(path.name):
        return
    try:
        temporary = path.with_name(f"{path.stem}.{os.urandom(8).hex()}.part")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.seek(_HEAD)
                digest = _digest(_written(pieces, size, file), size)
                file.seek(0)
                file.write(_MAGIC + digest)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _untrimmed += _HEAD + size
        if _untrimmed >= _TRIM_BYTES:
            _untrimmed = 0
            _trim(path.parent)
    except OSError as error:
        _warn("write", f"the object cache {path.parent} cannot be written ({error}); nothing is kept on disk")


def _own_files(folder: Path) -> Iterator[tuple[float, int, str]]:
    """(time of change, bytes, path) of the files that this module made; others in the folder are not ours."""
    for entry in os.scandir(folder):
        if not _NAME.fullmatch(entry.name):
            continue
        try:
            info = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # another process trims, too
            continue
        yield info.st_mtime, info.st_size, entry.path


def _trim(folder: Path) -> None:
    """Delete the oldest objects beyond the size cap, and what processes that died left half written.

    What is large has a cap of its own, so that it drives out no kernels.
    """
    totals, long_ago = {True: 0, False: 0}, time.time() - _LONGEST_WRITE_SECONDS
    for changed, size, file in sorted(_own_files(folder), reverse=True):
        totals[file.endswith(_LARGE)] += size
        abandoned = changed < long_ago and file.endswith(".part")
        if abandoned or (totals[file.endswith(_LARGE)] > _most(file) and not file.endswith(_LASTING)):
            Path(file).unlink(missing_ok=True)


def clear_cache() -> int:
    """Delete all that is kept but what is known of the processor; how many files there were."""
    folder = cache_folder()
    if folder is None or not folder.is_dir():
        return 0
    files = [file for _, _, file in _own_files(folder) if not file.endswith(_LASTING)]
    for file in files:
        Path(file).unlink(missing_ok=True)
    return len(files)
