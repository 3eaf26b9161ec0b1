"""An ELF object put into memory and bound to what it calls, so that kernels from the cache need no LLVM.

LLVM's own linker does this and more, but it comes with LLVM: 50 ms and 40 MB of a process that finds all its kernels
compiled.  Generated code is of one simple kind: code and constants that nobody writes, bound by distances of 32 bits.
The one idea: this kind and no other; of anything else ``load`` makes nothing, and LLVM links it.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

__all__ = ["load"]

_FILE = struct.Struct("<16sHH20xQ10xHHH")
"""Of a file's header: identity, type, processor, place of the table of sections, their size, number, names."""
_OBJECT, _X86_64 = 1, 62
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")
_BYTES, _SYMBOLS, _RELOCATIONS, _UNWINDING = 1, 2, 4, 0x70000001
"""Types of sections; what unwinds the stack is left out: no exception passes generated code."""
_WRITE, _IN_MEMORY, _EXECUTE = 1, 2, 4
"""Flags of sections."""
_DISTANCES = (2, 4)
"""R_X86_64_PC32 and R_X86_64_PLT32: how far a symbol lies from a place, in 32 bits."""
_JUMP = struct.Struct("<6sQ2x")
"""``jmp [rip]``, and the address that it jumps to: functions of other libraries lie further away than 32 bits tell."""


class _Section(NamedTuple):
    """A row of the table of sections."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry: int


class _OddError(Exception):
    """The object is of another kind."""


def load(obj: bytes, names: Sequence[str], symbols: Mapping[str, int]) -> dict[str, int] | None:
    """Load an object; addresses of its functions, or None where LLVM has to link it.

    Parameters
    ----------
    obj : bytes
        From ``object_code`` for a target this machine can run.
    names : sequence of str
        Functions to look up.
    symbols : mapping
        Addresses of functions the object calls.
    """
    try:
        image, places = _linked(obj, symbols)
        found = {name: places[name] for name in names}
    except (_OddError, struct.error, IndexError, KeyError, ValueError):
        return None
    base = _mapped(image)
    return None if base is None else {name: base + place for name, place in found.items()}


def _linked(obj: bytes, symbols: Mapping[str, int]) -> tuple[bytearray, dict[str, int]]:
    """What lies in memory, the same wherever that is, and the places of symbols in it."""
    identity, kind, processor, table, size, count, _ = _FILE.unpack_from(obj)
    if not identity.startswith(b"\x7fELF\x02\x01\x01") or (kind, processor, size) != (_OBJECT, _X86_64, _SECTION.size):
        raise _OddError
    sections = [_Section(*_SECTION.unpack_from(obj, table + size * i)) for i in range(count)]
    image = bytearray()
    starts = {i: _placed(image, obj, s) for i, s in sorted(enumerate(sections), key=_code_first) if _is_loaded(s)}
    (listed,) = (s for s in sections if s.type == _SYMBOLS)
    places: list[int | None] = []
    named: dict[str, int] = {}
    for at in range(listed.offset, listed.offset + listed.size, _SYMBOL.size):
        start, _, _, section, value, _ = _SYMBOL.unpack_from(obj, at)
        first = sections[listed.link].offset + start
        name = obj[first : obj.index(0, first)].decode()
        place = starts[section] + value if section in starts else None
        if section == 0 and name:
            place = _aligned(image, 16)
            image += _JUMP.pack(b"\xff\x25\x00\x00\x00\x00", symbols[name])
        if place is not None and name:
            named[name] = place
        places.append(place)
    for s in sections:
        if s.type == _RELOCATIONS and s.info in starts:
            _bind(image, obj, s, starts[s.info], places)
    return image, named


def _code_first(row: tuple[int, _Section]) -> bool:
    return not row[1].flags & _EXECUTE


def _is_loaded(s: _Section) -> bool:
    """Whether a section comes into memory."""
    if not s.flags & _IN_MEMORY or s.type == _UNWINDING:
        return False
    if s.type != _BYTES or s.flags & _WRITE:
        raise _OddError
    return True


def _placed(image: bytearray, obj: bytes, s: _Section) -> int:
    """Put a section behind the others; where it starts."""
    if s.offset + s.size > len(obj) or s.alignment > mmap.PAGESIZE:
        raise _OddError
    start = _aligned(image, max(64, s.alignment))  # code and constants share no line of a cache
    image += obj[s.offset : s.offset + s.size]
    return start


def _aligned(image: bytearray, alignment: int) -> int:
    """Fill up to a multiple of an alignment."""
    image.extend(bytes(-len(image) % alignment))
    return len(image)


def _bind(image: bytearray, obj: bytes, s: _Section, start: int, places: Sequence[int | None]) -> None:
    """Write the distances that a section's relocations ask for."""
    for at in range(s.offset, s.offset + s.size, _RELOCATION.size):
        offset, kind, symbol, addend = _RELOCATION.unpack_from(obj, at)
        place = places[symbol]
        if kind not in _DISTANCES or place is None:
            raise _OddError
        struct.pack_into("<i", image, start + offset, place + addend - (start + offset))


@cache
def _system() -> Any:
    """mmap, mprotect and munmap of the C library."""
    system = ctypes.CDLL(None, use_errno=True)
    word, number = ctypes.c_size_t, ctypes.c_int
    system.mmap.restype, system.mmap.argtypes = ctypes.c_void_p, (word, word, number, number, number, ctypes.c_long)
    system.mprotect.argtypes = (word, word, number)
    system.munmap.argtypes = (word, word)
    return system


def _mapped(image: bytearray) -> int | None:
    """Where an image now lies, to be executed and never freed; None where the system does not allow it."""
    system, private = _system(), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    base = system.mmap(0, len(image), mmap.PROT_READ | mmap.PROT_WRITE, private, -1, 0)
    if base in (None, ctypes.c_void_p(-1).value):
        return None
    ctypes.memmove(base, bytes(image), len(image))
    if system.mprotect(base, len(image), mmap.PROT_READ | mmap.PROT_EXEC):
        system.munmap(base, len(image))
        return None
    return int(base)
