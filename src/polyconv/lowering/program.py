"""Requests and programs: what a form is asked to build, and the steps of native work it answers with.

A program is a list of steps; a step is a driver, its table of words and a number of independent items, each of which
writes its own outputs.  Nothing here runs anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.kernels.epilogue import Epilogue
from polyconv.kernels.isa import ARITHMETIC, Arithmetic
from polyconv.kernels.language import Module
from polyconv.kernels.objects import kernel
from polyconv.kernels.signature import Address, Signature
from polyconv.lowering.panel import Driver, EpilogueTables
from polyconv.lowering.rescaling import adds_by
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Sweep
from polyconv.problem.problem import Problem
from polyconv.runtime.arrays import aligned
from polyconv.target import Target

__all__ = [
    "Operand", "Program", "Request", "Step", "address_of", "addresses_of", "epilogue_tables", "first_output",
    "one_step", "program_of", "residual_of", "zeros",
]  # fmt: skip


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Operand:
    """Byte strides of a tensor: batch, channel and spatial, and the offset of its first element."""

    n: int
    c: int
    spatial: tuple[int, ...]
    offset: int
    itemsize: int

    def along(self, axes: Sequence[int]) -> Operand:
        """The same tensor seen along some of its spatial axes, in the order in which they are given."""
        return replace(self, spatial=tuple([self.spatial[a] for a in axes]))


@dataclass(frozen=True, slots=True)
class Request:
    """A convolution to be made into a program.

    Parameters
    ----------
    situation : Situation
    arithmetic : str
        Row of ``ARITHMETIC``.
    x, y : Operand
    residual : Operand or None
    check : bool
        Use kernels with bounds checks.
    packed : callable
        ``packed(key, make)``: the array kept under a key, made on first use.
    weights : callable
        ``weights(sweep)``: weights of a sweep as (groups, m/groups, c/groups, taps), in the accumulator's
        type (bf16 for dot products of bf16 pairs).
    bias, scale, constants : arrays
        Per output channel in the accumulator's type; float32 multipliers; activation parameters or zero
        point in 8-byte slots.
    zero_point : int
        Of the input.
    run : callable
        ``run(step, scratch, threads)``: do a step at once, with so many bytes of workspace for each thread.
    moved : callable
        ``moved(w, packed, back)``: told that ``packed`` holds weights ``w`` bit by bit, in another order, and that
        ``back(packed, target)`` writes them as they were.
    offset, mask : Operand or None
        Of a deformable convolution.
    zero_left : array, optional
        What is still to be taken off all weights, or those of each output channel.
    channels : (int, int)
        Channels of input and result where the problem's are rounded up; else 0.
    known : dict
        Of ``once``, shared by the programs of a layer.
    problem, target, arith
        Of the situation, and the row of the arithmetic.
    """

    situation: Situation
    arithmetic: str
    x: Operand
    y: Operand
    residual: Operand | None
    check: bool
    packed: Callable[[Any, Callable[[], NDArray[Any]]], NDArray[Any]]
    weights: Callable[[Sweep], NDArray[Any]]
    bias: NDArray[Any] | None
    scale: NDArray[Any] | None
    constants: NDArray[Any]
    zero_point: int
    run: Callable[[Step, int, int], object]
    moved: Callable[[NDArray[Any], NDArray[Any], Callable[[NDArray[Any], NDArray[Any]], None]], None]
    offset: Operand | None = None
    mask: Operand | None = None
    zero_left: NDArray[Any] | None = None
    channels: tuple[int, int] = (0, 0)
    known: dict[Any, Any] = field(default_factory=dict)
    problem: Problem = field(init=False)
    target: Target = field(init=False)
    arith: Arithmetic = field(init=False)

    def __post_init__(self) -> None:
        fill = object.__setattr__
        fill(self, "problem", self.situation.problem)
        fill(self, "target", self.situation.target)
        fill(self, "arith", ARITHMETIC[self.arithmetic])

    def once(self, key: object, find: Callable[[], T]) -> T:
        """What is found once for a layer, whatever the extents: addresses of kernels, by all that shapes these."""
        found: T | None = self.known.get(key)
        if found is None:
            found = self.known[key] = find()
        return found

    @property
    def x_channels(self) -> int:
        """Channels that the input has; a problem cut into groups of lanes may count more."""
        return self.channels[0] or self.problem.c

    @property
    def y_channels(self) -> int:
        """Channels that the result has."""
        return self.channels[1] or self.problem.m

    @property
    def epilogue(self) -> Epilogue:
        """Which epilogue the moves out need."""
        p = self.problem
        return Epilogue(
            bias=self.bias is not None,
            residual=self.residual is not None,
            rescale=self.scale is not None,
            activation="" if p.activation is None else p.activation.name,
            saturate=p.overflow == "saturate" and not p.y_dtype.is_float,
            flushed=p.y == "bf16" and self.target.bf16 and not self.situation.strict,
            adds=adds_by(p, self.constants, self.target.has_fma),
            below_one=self.scale is not None and bool((np.abs(self.scale) < 1).all()),
        )


@dataclass(frozen=True, slots=True)
class Step:
    """A driver's address, its words, and how many items it has."""

    driver: Address[Driver]
    words: NDArray[np.int64]
    items: int


@dataclass(frozen=True, slots=True)
class Program:
    """Native work that computes one convolution.

    Parameters
    ----------
    steps : tuple of Step
    workspace : int
        Bytes each thread needs.
    keep : tuple
        Arrays the words point to.
    """

    steps: tuple[Step, ...]
    workspace: int
    keep: tuple[Any, ...] = field(default=())

    @property
    def table_bytes(self) -> int:
        """Bytes of the words and of the tables that they point to, weights left out."""
        words = [step.words for step in self.steps] + [a for a in self.keep if a.__class__ is memoryview]
        return sum(a.nbytes for a in words)


def residual_of(r: Request) -> Operand:
    """The residual, or an operand that nobody reads."""
    return r.residual or _nowhere(len(r.y.spatial))


@cache
def _nowhere(rank: int) -> Operand:
    return Operand(0, 0, (0,) * rank, 0, 1)


def first_output(o: Operand, sweep: Sweep) -> int:
    """Bytes before the first output of a sweep."""
    return o.offset + sum([axis.first_out * step for axis, step in zip(sweep, o.spatial, strict=True)])


def epilogue_tables(r: Request) -> EpilogueTables:
    """What the epilogue of a request takes; tables that nobody reads where it has none."""
    return EpilogueTables(zeros() if r.bias is None else r.bias, zeros() if r.scale is None else r.scale, r.constants)


S = TypeVar("S", bound=Signature)


def address_of(r: Request, label: str, name: str, signature: type[S], make: Callable[[Module, str], None]
               ) -> Address[S]:  # fmt: skip
    """Address of a kernel's only function, which ``make(k, name)`` adds to a module."""
    return kernel(label, {name: signature}, lambda k: make(k, name), r.target, check=r.check)[name]


def addresses_of(r: Request, label: str, signature: type[S], functions: Mapping[str, T],
                 make: Callable[[Module, str, T], None]) -> dict[str, Address[S]]:  # fmt: skip
    """Addresses of a kernel's functions by name, each of which ``make(k, name, functions[name])`` adds to a module."""
    def build(k: Module) -> None:
        for name, given in functions.items():
            make(k, name, given)

    return kernel(label, dict.fromkeys(functions, signature), build, r.target, check=r.check)


def program_of(steps: Sequence[Step], workspace: int, keep: list[Any]) -> Program:
    """Program of some steps, without those that have no items."""
    return Program(tuple(step for step in steps if step.items), workspace, tuple(keep))


def one_step(driver: Address[Driver], table: NDArray[np.int64], items: int, workspace: int, keep: list[Any]) -> Program:
    """Program of a single step."""
    return Program((Step(driver, table, items),) if items else (), workspace, tuple(keep))


@cache
def zeros() -> NDArray[Any]:
    """A table nobody reads, for an absent bias or scale."""
    return aligned(8, np.int64)
