"""PTX text to a list of instructions: labels become indices, names inside braces become names of their own.

Knows how PTX is written, not what any instruction does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Address", "Instruction", "Kernel", "Module", "Operand", "Parameter", "Variable", "parse"]

SIZES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}
"""Bytes of the types, by the digits in their names; f16x2 and bf16x2 have 4."""


@dataclass(frozen=True, slots=True)
class Address:
    """``[base+offset]``, or ``[base, {coordinates}]`` of a tensor."""

    base: str
    offset: int = 0
    coordinates: tuple[str, ...] = ()


Operand = str | Address | tuple[str, ...]
"""A register, immediate or label; an address; or several registers in braces."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; ``opcode`` is its name cut at the dots."""

    opcode: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: str | None
    negated: bool
    text: str

    @property
    def type(self) -> str:
        """The last part of the opcode, which names the type of most instructions."""
        return self.opcode[-1]

    def word(self, i: int) -> str:
        """Operand i, which is a register, an immediate or a label."""
        operand = self.operands[i]
        if not isinstance(operand, str):
            raise NotImplementedError(f"operand {i} of {self.text}")
        return operand

    def address(self, i: int) -> Address:
        """Operand i, which is an address."""
        operand = self.operands[i]
        if not isinstance(operand, Address):
            raise NotImplementedError(f"operand {i} of {self.text}")
        return operand

    def words(self, i: int) -> tuple[str, ...]:
        """Operand i as registers: one, or those in braces."""
        operand = self.operands[i]
        if isinstance(operand, Address):
            raise NotImplementedError(f"operand {i} of {self.text}")
        return (operand,) if isinstance(operand, str) else operand

    def only(self, *known: str) -> None:
        """Refuse what the opcode says beyond the words that the caller understands."""
        for word in self.opcode[1:]:
            if word not in known:
                raise NotImplementedError(f".{word} of {self.text}")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel: its size in bytes and where it lies in the parameter block."""

    name: str
    type: str
    size: int
    offset: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of the module or kernel in some state space; ``values`` are the bytes it starts with."""

    name: str
    space: str
    size: int
    align: int
    external: bool
    values: bytes = b""


@dataclass(frozen=True, slots=True)
class Kernel:
    """An ``.entry``: parameters, instructions, where labels point, register types and limits of a launch."""

    name: str
    parameters: tuple[Parameter, ...]
    code: tuple[Instruction, ...]
    labels: dict[str, int]
    registers: dict[str, str]
    variables: tuple[Variable, ...]
    limits: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Module:
    """All kernels of a text."""

    kernels: dict[str, Kernel]


def size_of(type_: str) -> int:
    """Bytes of a type as PTX names it."""
    if type_.endswith("x2"):
        return 4
    return SIZES[type_.lstrip("busfe")]


@lru_cache(maxsize=256)
def parse(text: str) -> Module:
    """Read a PTX module.

    Raises
    ------
    NotImplementedError
        The module has functions besides kernels, or a directive the emulator does not know.
    """
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"^\s*\.(version|target|address_size)\b[^\n]*", "", text, flags=re.M)
    at, variables, kernels = 0, list[Variable](), {}
    while found := re.compile(r"\s*([^;{]*)([;{])", re.S).match(text, at):
        header, stop = found[1].strip(), found[2]
        if ".entry" in header:
            end = _closing(text, found.end())
            kernel = _kernel(header, text[found.end() : end], tuple(variables))
            kernels[kernel.name] = kernel
            at = end + 1
        elif ".func" in header:
            raise NotImplementedError(f"functions besides kernels: {header}")
        else:
            at = text.index(";", found.end() - (stop == ";"))
            variables.append(_variable(text[found.start(1) : at]))
            at += 1
    return Module(kernels)


def _closing(text: str, at: int) -> int:
    """Position of the brace that closes the one before ``at``."""
    depth = 1
    while True:
        found = re.compile(r"[{}]").search(text, at)
        if found is None:
            raise ValueError("a brace of the module is never closed")
        depth += 1 if found[0] == "{" else -1
        if depth == 0:
            return found.start()
        at = found.end()


def _variable(text: str) -> Variable:
    found = re.fullmatch(
        r"((?:\.(?:extern|visible|weak)\s+)*)\.(shared|global|const|local)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+"
        r"([\w$]+)((?:\[\d*\])*)\s*(?:=\s*(.*))?",
        text.strip(), re.S,
    )  # fmt: skip
    if found is None:
        raise NotImplementedError(f"directive {text.strip()}")
    item = size_of(found[4])
    count = 1
    for extent in re.findall(r"\[(\d*)\]", found[6] or ""):
        count *= int(extent or 0)
    numbers = [int(v, 0) for v in re.findall(r"-?\w+", found[7] or "")]
    values = b"".join((v % (1 << 8 * item)).to_bytes(item, "little") for v in numbers)
    external = "extern" in found[1]
    return Variable(found[5], found[2], count * item, int(found[3] or item), external, values)


def _kernel(header: str, body: str, variables: tuple[Variable, ...]) -> Kernel:
    found = re.search(r"\.entry\s+([\w$]+)\s*(?:\((.*?)\))?([^()]*)$", header, re.S)
    if found is None:
        raise ValueError(f"not the head of a kernel: {header}")
    limits = {
        name: tuple(int(v) for v in re.findall(r"\d+", values))
        for name, values in re.findall(r"\.(maxntid|reqntid|reqnctapercluster)\s+([\d,\s]+)", found[3])
    }
    code, labels, registers, own = _body(body)
    return Kernel(found[1], _parameters(found[2] or ""), code, labels, registers, variables + own, limits)


def _parameters(text: str) -> tuple[Parameter, ...]:
    parameters, offset = list[Parameter](), 0
    for part in filter(None, (p.strip() for p in text.split(","))):
        found = re.fullmatch(r"\.param\s+(.*?)([\w$]+)(?:\[(\d+)\])?", part, re.S)
        if found is None:
            raise NotImplementedError(f"parameter {part}")
        (type_,) = re.findall(r"\.([bsuf]\d+)\b", found[1])
        size = size_of(type_) * int(found[3] or 1)
        stated = re.search(r"\.align\s+(\d+)", found[1])
        align = int(stated[1]) if stated and found[3] else size_of(type_)  # a pointer's is that of its target
        offset = -(-offset // align) * align
        parameters.append(Parameter(found[2], type_, size, offset))
        offset += size
    return tuple(parameters)


def _statements(body: str) -> Iterator[str]:
    """Statements without their semicolons, labels with their colon, and braces that open or close a scope."""
    token = re.compile(r"\s*(?:([{}])|([$\w]+)\s*:(?!:)|([^;{}]*(?:\{[^{}]*\}[^;{}]*)*);)", re.S)
    at, end = 0, len(body.rstrip())
    while at < end:
        found = token.match(body, at)
        if found is None:
            raise ValueError(f"cannot read {body[at : at + 80]!r}")
        at = found.end()
        yield found[1] or (f"{found[2]}:" if found[2] else found[3].strip())


def _body(body: str) -> tuple[tuple[Instruction, ...], dict[str, int], dict[str, str], tuple[Variable, ...]]:
    statements = list(_statements(body))
    code, labels, registers, variables = list[Instruction](), dict[str, int](), dict[str, str](), list[Variable]()
    scopes: list[dict[str, str]] = [{}]
    for i, statement in enumerate(statements):
        if statement == "{":
            scopes.append(scopes[-1] | _locals(statements, i))
        elif statement == "}":
            scopes.pop()
        elif statement.endswith(":"):
            labels[scopes[-1].get(statement[:-1], statement[:-1])] = len(code)
        elif statement.startswith(".reg"):
            _, kind, names = statement.split(maxsplit=2)
            for name in names.split(","):
                bare = re.sub(r"<\d+>", "", name.strip())
                registers[scopes[-1].get(bare, bare)] = kind.lstrip(".")
        elif statement.startswith((".shared", ".local")):
            variables.append(_variable(statement))
        elif statement.startswith(".pragma"):
            continue
        elif statement.startswith("."):
            raise NotImplementedError(f"directive {statement}")
        elif statement:
            code.append(_instruction(statement, scopes[-1]))
    return tuple(code), labels, registers, tuple(variables)


def _locals(statements: list[str], opening: int) -> dict[str, str]:
    """Labels and registers declared directly between a brace and the one that closes it, and their unique names."""
    depth, own = 0, dict[str, str]()
    for statement in statements[opening:]:
        depth += (statement == "{") - (statement == "}")
        if depth == 0:
            break
        if depth == 1 and statement.endswith(":"):
            own[statement[:-1]] = f"{statement[:-1]}@{opening}"
        elif depth == 1 and statement.startswith(".reg"):
            for name in statement.split(maxsplit=2)[2].split(","):
                own[name.strip()] = f"{name.strip()}@{opening}"
    return own


def _instruction(statement: str, names: dict[str, str]) -> Instruction:
    found = re.fullmatch(r"(?:@(!?)([%$\w]+)\s+)?([\w.:]+)\s*(.*)", statement, re.S)
    if found is None:
        raise ValueError(f"not an instruction: {statement}")
    operands = tuple(_operand(o, names) for o in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", found[4]))
    guard = names.get(found[2], found[2])
    text = re.sub(r"\s+", " ", statement)
    return Instruction(tuple(found[3].split(".")), operands, guard, bool(found[1]), text)


def _operand(text: str, names: dict[str, str]) -> Operand:
    def own(word: str) -> str:
        bare = word.lstrip("!")
        return word[: len(word) - len(bare)] + "|".join(names.get(part, part) for part in bare.split("|"))

    if text[0] == "{":
        return tuple(own(word) for word in re.split(r"[,\s]+", text[1:-1].strip()))
    if text[0] == "[":
        base, _, rest = text[1:-1].partition(",")
        found = re.fullmatch(r"\s*([%$\w.]+)\s*(?:([+-])\s*(-?\d+))?\s*", base)
        if found is None:
            raise ValueError(f"not an address: {text}")
        offset = int(found[3] or 0) * (-1 if found[2] == "-" else 1)
        coordinates = tuple(own(c) for c in re.findall(r"[%$\w-]+", rest))
        return Address(own(found[1]), offset, coordinates)
    return own(text)
