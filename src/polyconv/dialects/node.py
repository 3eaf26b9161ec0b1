"""What is known of one node, and the questions to ask of it: ranks, sizes, whether shapes agree.

An unknown size stays unknown and agrees with everything.  The names of attributes and inputs come from
the dialects; this file must not know arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError, shown
from polyconv.problem.problem import Problem

__all__ = [
    "Dim",
    "Lowering",
    "Node",
    "Shape",
    "Value",
    "Weights",
    "exact",
    "expect",
    "join",
    "known",
    "per_axis",
    "product",
    "spatial_rank",
    "spelled",
    "split",
]

Dim = int | str | None
"""A size, the symbol that stands for one, or None."""

Shape = tuple[Dim, ...] | None
"""Sizes of all axes; None where not even their number is known."""


@dataclass(frozen=True, slots=True)
class Value:
    """What is known of one input.

    Parameters
    ----------
    name : str
        As in the specification.
    shape : Shape
        Its sizes.
    dtype : str or None
        Short name of its element type.
    content : tuple of int or None
        Its elements, for an input that holds sizes.
    """

    name: str
    shape: Shape
    dtype: str | None = None
    content: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return self.name if self.shape is None else f"{self.name} of shape {spelled(self.shape)}"


@dataclass(frozen=True, slots=True)
class Node:
    """One operator with its attributes and inputs.

    Parameters
    ----------
    operator : str
        Its name.
    attributes : mapping
        All attributes, checked one by one.
    layout : str
        ``NCHW`` or ``NHWC``: axis order of input, result and residual.
    semantics : str
        Whose definition decides where two differ.
    values : mapping
        Inputs that are there, by the parameter of ``layer.compute`` that they become.
    """

    operator: str
    attributes: Mapping[str, Any]
    layout: str
    semantics: str
    values: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Lowering:
    """What a node comes to.

    Parameters
    ----------
    shapes : tuple of Shape
        Shapes of its outputs.
    problem : Problem or None
        The convolution; None as long as a size or type is unknown.
    operands : mapping
        For inputs that are not passed on as they are: what to make of them.
    is_alike : bool
        Whether the problems of other extents of the image, and of other batches, differ in these alone.
    """

    shapes: tuple[Shape, ...]
    problem: Problem | None = None
    operands: Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]] = field(default_factory=dict)
    is_alike: bool = False


@dataclass(frozen=True, slots=True)
class Weights:
    """Sizes read from the weights, whatever the order of their axes.

    Parameters
    ----------
    inputs, outputs : Dim
        Input and output channels that they connect: those of one group on the side that the
        specification counts per group, else all.
    k : tuple of Dim
        Kernel extents.
    groups : Dim
        Number of groups.
    grouping : str
        Where that number stands, for messages.
    """

    inputs: Dim
    outputs: Dim
    k: tuple[Dim, ...]
    groups: Dim
    grouping: str


def known(*dims: Dim) -> bool:
    """Whether every size is a number."""
    return all(isinstance(d, int) for d in dims)


def exact(*dims: Dim) -> tuple[int, ...]:
    """Sizes of which ``known`` holds, as numbers."""
    numbers = tuple(d for d in dims if isinstance(d, int))
    assert len(numbers) == len(dims)
    return numbers


def product(*dims: Dim) -> int | None:
    """Product of sizes; None where one is unknown."""
    return math.prod(exact(*dims)) if known(*dims) else None


def spelled(shape: Sequence[Dim]) -> str:
    """A shape as messages show it, ``?`` where unknown."""
    inner = ", ".join("?" if d is None else str(d) for d in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def spatial_rank(node: Node, leading: int = 2) -> int | None:
    """Number of spatial axes, from input and weights; None where neither rank is known.

    Parameters
    ----------
    node : Node
    leading : int
        Axes of the weights that are not spatial.

    Raises
    ------
    ArgumentError
        If there are none, or input and weights disagree.
    """
    x, w = node.values["x"], node.values["w"]
    if x.shape is not None and len(x.shape) < 3:
        raise ArgumentError(
            f"{x} has {len(x.shape)} axes, {node.operator} needs batch, channels and at least one spatial "
            f"axis: reshape it to 3 or more"
        )
    if w.shape is not None and len(w.shape) <= leading:
        raise ArgumentError(
            f"{w} has {len(w.shape)} axes, {node.operator} needs {leading} and one per spatial axis: "
            f"reshape it to {leading + 1} or more"
        )
    if x.shape is None:
        return None if w.shape is None else len(w.shape) - leading
    rank = len(x.shape) - 2
    if w.shape is not None and len(w.shape) - leading != rank:
        raise ArgumentError(
            f"{x} has {rank} spatial axes, {w} has {len(w.shape) - leading}: reshape one to match the other"
        )
    return rank


def split(shape: Shape, rank: int, layout: str) -> tuple[Dim, Dim, tuple[Dim, ...]]:
    """Batch, channels and spatial sizes of an input; all unknown if its rank is."""
    if shape is None:
        return None, None, (None,) * rank
    if layout == "NHWC":
        return shape[0], shape[-1], shape[1:-1]
    return shape[0], shape[1], shape[2:]


def join(n: Dim, channels: Dim, spatial: Sequence[Dim], layout: str) -> tuple[Dim, ...]:
    """Shape of a tensor in the axis order of a layout; ``split`` undoes it."""
    return (n, *spatial, channels) if layout == "NHWC" else (n, channels, *spatial)


def per_axis(node: Node, name: str, rank: int, default: int) -> tuple[int, ...]:
    """A list attribute with one entry per spatial axis, or a default for each.

    Raises
    ------
    ArgumentError
        If it has another number of entries.
    """
    values: tuple[int, ...] | None = node.attributes.get(name)
    if values is None:
        return (default,) * rank
    if len(values) != rank:
        raise ArgumentError(
            f"{name}={shown(list(values))} has {len(values)} entries, {node.values['x']} has {rank} "
            f"spatial axes: give one entry per axis"
        )
    return values


def expect(node: Node, role: str, shape: Sequence[Dim], reason: str) -> None:
    """Refuse an input whose shape contradicts what the others imply; absent and unknown ones pass.

    Raises
    ------
    ArgumentError
        Naming the input, both shapes and the reason for the second.
    """
    value = node.values.get(role)
    if value is None or value.shape is None:
        return
    pairs = zip(value.shape, shape, strict=False)
    if len(value.shape) != len(shape) or any(known(a, b) and a != b for a, b in pairs):
        raise ArgumentError(f"{value} must have shape {spelled(shape)}: {reason}")
