"""Targets that any machine can compile for, and a reader of the ELF objects that come out."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
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


_MAY_CALL = frozenset((
    "call", "fptrunc", "fpext", "uitofp", "sitofp", "fptosi", "fptoui", "udiv", "sdiv", "urem", "srem", "frem", "fdiv",
    "mul", "shl", "lshr", "ashr",
))  # fmt: skip
"""Instructions that LLVM turns into a call of a library on some target, for some types; it optimises nothing, so that
neighbours never become one (loops that fill memory no memset, say)."""
_INSTRUCTION = re.compile(r"^\s*(?:%\S+ = )?(?:tail )?([a-z]+) (.*)$", re.MULTILINE)
_TYPE = re.compile(r"<\d+ x \w+>|(?<!%)\b(?:i\d+|half|float|double|bfloat)\b")


def with_every_instruction(texts: Mapping[str, str]) -> dict[str, str]:
    """The shortest texts that together have all that may become a call: each instruction by its types or its name."""
    seen: set[tuple[str, ...]] = set()
    found: dict[str, str] = {}
    for name, text in sorted(texts.items(), key=lambda item: len(item[1])):
        own = {
            (operation, *(re.findall(r"@([\w.]+)\(", rest)[:1] if operation == "call" else _TYPE.findall(rest)))
            for operation, rest in _INSTRUCTION.findall(text) if operation in _MAY_CALL
        }  # fmt: skip
        if own - seen:
            seen |= own
            found[name] = text
    return found


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


def calls(texts: Mapping[str, str], target: Target) -> dict[str, list[str]]:
    """What kernels call, of those that do: the shortest are compiled that have every instruction that may."""
    found = {name: undefined_symbols(object_code(text, target)) for name, text in with_every_instruction(texts).items()}
    return {name: symbols for name, symbols in found.items() if symbols}
