"""A node's sizes turned into output shapes and, if all of them are known, a Problem.

Both questions, "how large is the result" and "which convolution is it", are answered by one walk over the
same checks, axis by axis.  This file must not know arrays, nor what attributes are called.
"""

from __future__ import annotations

from typing import Any

from polyconv.dialects.node import (
    Dim,
    Lowering,
    Node,
    Weights,
    exact,
    expect,
    join,
    known,
    per_axis,
    product,
    spelled,
    split,
)
from polyconv.errors import ArgumentError
from polyconv.problem.extents import effective_kernel, output_extent
from polyconv.problem.padding import (
    Pair,
    Same,
    Transposed,
    forward_pads,
    natural_extent,
    same_pads,
    transposed_pads,
)
from polyconv.problem.problem import Problem

__all__ = ["forward", "transposed"]


def forward(
    node: Node,
    rank: int,
    weights: Weights,
    auto_pad: str,
    pads: tuple[Pair, ...],
    *,
    same: Same = same_pads,
    op: str = "conv",
    y: str | None = None,
    **fields: Any,
) -> Lowering:
    """Lower a forward convolution, plain or deformable (semantics 2.2 to 2.6).

    Parameters
    ----------
    node : Node
        With the attributes strides and dilations.
    rank : int
        Number of spatial axes.
    weights : Weights
        Input channels of one group, all output channels.
    auto_pad : str
        One of ``padding.AUTO_PADS``.
    pads : tuple of (int, int)
        What NOTSET takes.
    same : callable
        The rule of SAME_*.
    op, y, **fields
        Further fields of the Problem; y None is the input's type.

    Raises
    ------
    ArgumentError
        If sizes contradict each other or the output would have a negative extent.
    """
    x = node.values["x"]
    n, c, i = split(x.shape, rank, node.layout)
    s, d = per_axis(node, "strides", rank, 1), per_axis(node, "dilations", rank, 1)
    _check_kernel(node, weights)
    groups, m = weights.groups, weights.outputs
    taken = product(groups, weights.inputs)
    if isinstance(c, int) and taken is not None and c != taken:
        raise ArgumentError(
            f"{x} has {c} input channels, {node.values['w']} with {weights.grouping}={groups} takes "
            f"{groups} * {weights.inputs} = {taken}: change {weights.grouping} or the weights"
        )
    if isinstance(m, int) and isinstance(groups, int) and m % groups:
        raise ArgumentError(
            f"{weights.grouping}={groups} does not divide the {m} output channels of {node.values['w']}: "
            f"choose one that does"
        )
    pairs: list[Pair] = []
    out: list[Dim] = []
    for a in range(rank):
        size, taps = i[a], weights.k[a]
        if not isinstance(size, int) or not isinstance(taps, int):
            out.append(None)
            continue
        pair = forward_pads(auto_pad, size, taps, s[a], d[a], pads[a], same)
        extent = output_extent(size, taps, s[a], d[a], *pair)
        if extent < 0:
            raise ArgumentError(
                f"{x} has extent {size} along spatial axis {a}, with pads {pair} less than the "
                f"{effective_kernel(taps, d[a])} of its kernel ({taps} taps, dilation {d[a]}): "
                f"enlarge the input or the pads"
            )
        pairs.append(pair)
        out.append(extent)
    shape = join(n, m, out, node.layout)
    _check_addends(node, m, shape)
    if not known(n, c, m, groups, *i, *weights.k) or x.dtype is None:
        return Lowering((shape,))
    n, c, m, groups = exact(n, c, m, groups)
    problem = Problem(
        op, x.dtype, node.values["w"].dtype or x.dtype, y or x.dtype, node.layout, n, c, exact(*i), m,
        exact(*weights.k), s, d, tuple(pairs), groups, **_addends(node), **fields,
    )  # fmt: skip
    return Lowering((shape,), problem, is_alike=auto_pad in ("NOTSET", "VALID"))


def transposed(
    node: Node,
    rank: int,
    weights: Weights,
    auto_pad: str,
    pads: tuple[Pair, ...],
    output_padding: tuple[int, ...],
    wanted: tuple[Dim, ...] | None,
    *,
    rule: Transposed = transposed_pads,
    y: str | None = None,
    **fields: Any,
) -> Lowering:
    """Lower a transposed convolution (semantics 4.2 to 4.5, 6.3).

    Parameters
    ----------
    node : Node
        With the attributes strides and dilations.
    rank : int
        Number of spatial axes.
    weights : Weights
        All input channels, output channels of one group.
    auto_pad : str
        One of ``padding.AUTO_PADS``.
    pads : tuple of (int, int)
        What NOTSET takes.
    output_padding : tuple of int
        Extra elements at the high end; negative ones are cut off.
    wanted : tuple of Dim or None
        Output extents, where the caller gives them.
    rule : callable
        How auto_pad and wanted extents become pads.
    y : str or None
        Element type of the result; None for that of x.
    **fields
        Further fields of the Problem.

    Raises
    ------
    ArgumentError
        If sizes contradict each other or the output would have a negative extent.
    """
    x = node.values["x"]
    n, c, i = split(x.shape, rank, node.layout)
    s, d = per_axis(node, "strides", rank, 1), per_axis(node, "dilations", rank, 1)
    _check_kernel(node, weights)
    groups = weights.groups
    if known(c, weights.inputs) and c != weights.inputs:
        raise ArgumentError(
            f"{x} has {c} input channels, {node.values['w']} takes {weights.inputs}: change one of them"
        )
    if isinstance(c, int) and isinstance(groups, int) and c % groups:
        raise ArgumentError(
            f"{weights.grouping}={groups} does not divide the {c} input channels of {x}: choose one that does"
        )
    m = product(groups, weights.outputs)
    pairs: list[Pair] = []
    out: list[Dim] = []
    for a in range(rank):
        size, taps, want = i[a], weights.k[a], None if wanted is None else wanted[a]
        if (
            not isinstance(size, int)
            or not isinstance(taps, int)
            or (wanted is not None and not isinstance(want, int))
        ):
            out.append(want)
            continue
        natural = natural_extent(size, taps, s[a], d[a], output_padding[a])
        asked = want if isinstance(want, int) else None
        begin, end = rule(auto_pad, size, taps, s[a], d[a], output_padding[a], pads[a], asked)
        if natural - begin - end < 0:
            raise ArgumentError(
                f"{x} has extent {size} along spatial axis {a}: the natural output of {natural} elements is "
                f"shorter than the pads {(begin, end)}: enlarge the input or lower the pads"
            )
        pairs.append((begin, end - min(0, output_padding[a])))
        out.append(natural - begin - end)
    shape = join(n, m, out, node.layout)
    _check_addends(node, m, shape)
    if not known(n, c, m, groups, *i, *weights.k, *out) or x.dtype is None:
        return Lowering((shape,))
    n, c, m, groups = exact(n, c, m, groups)
    padding = tuple(max(0, p) for p in output_padding)
    problem = Problem(
        "conv_transpose", x.dtype, node.values["w"].dtype or x.dtype, y or x.dtype, node.layout, n, c,
        exact(*i), m, exact(*weights.k), s, d, tuple(pairs), groups, padding, **_addends(node), **fields,
    )  # fmt: skip
    return Lowering((shape,), problem)


def _check_kernel(node: Node, weights: Weights) -> None:
    if any(k == 0 for k in weights.k):
        raise ArgumentError(
            f"{node.values['w']} has a kernel {spelled(weights.k)} with an extent of 0: every extent must be "
            f"at least 1"
        )
    if weights.groups == 0:
        raise ArgumentError(f"{weights.grouping}=0 in {node.values['w']}: there must be at least 1 group")


def _check_addends(node: Node, m: Dim, shape: tuple[Dim, ...]) -> None:
    expect(node, "bias", (m,), "give one value per output channel")
    expect(node, "residual", shape, "it is added to the output, and is not broadcast")


def _addends(node: Node) -> dict[str, Any]:
    return {"bias": "bias" in node.values, "residual": "residual" in node.values}
