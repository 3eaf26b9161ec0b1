"""Targets that any machine can compile for, and a reader of the ELF objects that come out."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from polyconv.conformance import kernel_texts
from polyconv.kernels import compile as compiler
from polyconv.target import Target

TARGETS = {
    **kernel_texts.TARGETS,
    "neon": Target("neon", "aarch64-unknown-linux-gnu", "generic", ""),
}
"""One for each level of x86-64, and 64-bit ARM, whatever this machine is."""


@cache
def _all_targets() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def object_code(text: str, target: Target) -> bytes:
    """The object file of LLVM text, also for other processors than this machine's."""
    _all_targets()
    return compiler.object_code(text, target)


def assembly(text: str, target: Target) -> str:
    """The same as assembly."""
    _all_targets()
    return compiler.assembly(text, target)


def undefined_symbols(obj: bytes) -> list[str]:
    """Names a 64-bit little-endian ELF object expects from elsewhere."""
    (table,) = struct.unpack_from("<Q", obj, 0x28)
    size, count = struct.unpack_from("<HH", obj, 0x3A)
    # of a section header: name, type, flags, address, offset, size, link
    sections: list[tuple[Any, ...]] = [struct.unpack_from("<IIQQQQI", obj, table + i * size) for i in range(count)]
    names = []
    for _, type_, _, _, offset, length, strings in sections:
        if type_ != 2:  # the symbol table
            continue
        for at in range(offset + 24, offset + length, 24):  # after the null symbol
            name, _, _, section = struct.unpack_from("<IBBH", obj, at)
            if section == 0:
                start = sections[strings][4] + name
                names.append(obj[start : obj.index(0, start)].decode())
    return names
