"""The code of a layer, to be read: the kernels that its program calls, as LLVM text and as assembly.

The program is made as for a call, but its kernels are only generated: nothing is compiled for it and nothing runs.
It must not know who reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.in_force import target_in_force
from polyconv.kernels import compile as compiler
from polyconv.kernels.objects import kept_file, texts_only
from polyconv.kernels.signature import Address
from polyconv.prepared import Layer
from polyconv.target import Target

__all__ = ["Arrays", "Kernel", "kernels"]

Array = NDArray[Any]

Arrays = tuple[Array, Array, Array | None, Array | None, Array | None]
"""Input, result, residual, offset and mask of a call; only how they lie counts."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Generated functions that are compiled together.

    Parameters
    ----------
    label : str
        What tells the kernel from all others: the instruction set, ``check`` where bounds are checked, its name.
    role : str
        ``driver``, which a call starts; ``packing``, which packs weights before the first call; or ``called``, by one
        of these.
    functions : tuple of (str, str)
        Their names, and what each is: ``PanelTile``, ``MoveIn``, ``Driver`` and so on, a signature of the sources.
    ir : str
        LLVM's intermediate representation, a module that LLVM's tools read.
    target : Target
        The CPU it is made for.
    file : Path or None
        The file of the object cache that holds the compiled kernel; None if there is none.  Kernels with bounds
        checks are never kept.
    """

    label: str
    role: str
    functions: tuple[tuple[str, str], ...]
    ir: str
    target: Target
    file: Path | None

    @property
    def assembly(self) -> str:
        """The assembly of what is compiled for the target, made anew each time."""
        return compiler.assembly(self.ir, self.target)

    @property
    def kinds(self) -> dict[str, int]:
        """What its functions are, and how many of each there are."""
        return dict(Counter(kind for _, kind in self.functions))


def kernels(calls: Iterable[tuple[Layer, Arrays]]) -> tuple[Kernel, ...]:
    """Kernels of some calls, drivers first, each once.

    Parameters
    ----------
    calls : iterable of (Layer, Arrays)
        Layers that are made for this, and never called: their weights stay unpacked.
    """
    here = target_in_force()
    found: dict[str, tuple[Mapping[str, Address[Any]], str]] = {}
    drivers: set[int] = set()
    packing: set[int] = set()

    def take(label: str, functions: Mapping[str, Address[Any]], text: Callable[[], str]) -> None:
        if label not in found:
            found[label] = functions, text()

    with texts_only(take):
        for layer, arrays in calls:
            program = layer.unrun(*arrays, run=lambda step, *_: packing.add(step.driver))
            drivers.update(step.driver for step in program.steps)

    def role(functions: Mapping[str, Address[Any]]) -> str:
        if drivers.intersection(functions.values()):
            return _ROLES[0]
        return _ROLES[1] if packing.intersection(functions.values()) else _ROLES[2]

    def kinds(functions: Mapping[str, Address[Any]]) -> tuple[tuple[str, str], ...]:
        return tuple((name, address.signature.__name__) for name, address in functions.items())

    made = [
        Kernel(" ".join(label.split()), role(functions), kinds(functions), text, here, kept_file(label, here))
        for label, (functions, text) in found.items()
    ]
    return tuple(sorted(made, key=lambda kernel: _ROLES.index(kernel.role)))


_ROLES = ("driver", "packing", "called")
