"""Which nodes are convolutions, and the dialects' row that each of them is.

The one idea: whatever is called a convolution is either a row of ``polyconv.dialects`` or refused; none
is handed to another engine.  It knows names of domains, not of attributes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from polyconv.dataclass import dataclass
from polyconv.dialects import onnx, openvino, ort
from polyconv.dialects.call import Operator
from polyconv.dialects.node import Lowering
from polyconv.dialects.node import Node as DialectNode
from polyconv.dialects.rows import Input, Row
from polyconv.errors import ArgumentError, DtypeError, ModelError, Unsupported
from polyconv.models.graph import Node
from polyconv.models.limits import shorten
from polyconv.models.options import Options
from polyconv.problem.epilogue import Activation
from polyconv.problem.quantisation import QUANTITIES

__all__ = ["Epilogue", "Unproven", "has_row", "is_convolution", "make", "row_of"]

_CONVOLUTION = re.compile(r"conv(?!ert)", re.IGNORECASE)

OPENVINO = "openvino"
"""Domain of the neutral graph's nodes that come from an IR file."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What a convolution does beyond its own operator, after fusion.

    Parameters
    ----------
    roles : tuple of str
        ``bias`` and ``residual``, and zero points and scales of a sum, for the inputs that fusion put behind the
        operator's own.
    activation : Activation or None
        Applied last.
    stands_for : tuple of Node
        The nodes of the file, in running order: the convolution and what it absorbed.
    unless : Unproven or None
        What to run where the residual's shape is not proven to be the result's.
    """

    roles: tuple[str, ...] = ()
    activation: Activation | None = None
    stands_for: tuple[Node, ...] = ()
    unless: Unproven | None = None


@dataclass(frozen=True, slots=True)
class Unproven:
    """A convolution before it absorbed a residual, and the nodes that must then run after it."""

    node: Node
    epilogue: Epilogue
    rest: tuple[Node, ...]


def is_convolution(op: str) -> bool:
    """Whether an operator is a convolution, by its name; Convert is none."""
    return _CONVOLUTION.search(op) is not None


def has_row(node: Node) -> bool:
    """Whether polyconv computes a convolution node."""
    try:
        row_of(node)
    except Unsupported:
        return False
    return True


def row_of(node: Node) -> Row:
    """The dialects' row of a convolution node.

    Raises
    ------
    Unsupported
        If polyconv does not compute it; no other engine is asked instead.
    """
    find = _TABLES.get(node.domain)
    try:
        if find is not None:
            return find(node)
    except (Unsupported, KeyError):
        pass
    raise Unsupported(
        f"{node.label} of the operator set {shorten(node.domain or 'ai.onnx')!r}, version {node.version}, is "
        f"a convolution that polyconv does not compute; polyconv.dialects lists those that it does"
    )


def _ort_row(node: Node) -> Row:
    version = ort.lookup(node.domain, node.op, node.version)
    return ort.OPERATORS[node.domain, node.op, version]


_TABLES: Mapping[str, Callable[[Node], Row]] = {
    "": lambda node: onnx.OPERATORS[node.op, onnx.lookup(node.op, node.version)],
    ort.NHWC: _ort_row,
    ort.CONTRIB: _ort_row,
    OPENVINO: lambda node: openvino.OPERATORS[node.op, openvino.lookup(node.op, node.version)],
}


def make(node: Node, options: Options, epilogue: Epilogue) -> Operator:
    """The operator of a node, with what fusion added to it.

    Raises
    ------
    ModelError
        If an attribute of the node is invalid.
    Unsupported
        If polyconv does not compute the node.
    """
    row = _extended(row_of(node), epilogue)
    attributes = node.attributes
    if node.domain == OPENVINO:  # whose reader ignores attributes it does not know
        attributes = {name: value for name, value in attributes.items() if name in row.attributes}
    for name in attributes:
        if name not in row.attributes:
            raise ModelError(
                f"{node.label} has no attribute {shorten(name)!r}; it has {', '.join(row.attributes)}"
            )
    # Operators of other domains follow their own engine; the main domain has the choice.
    semantics = options.semantics if node.domain == "" else None
    try:
        return row(
            semantics=semantics,
            accuracy=options.accuracy,
            threads=options.threads,
            workspace_limit=options.workspace_limit,
            **attributes,
        )
    except (ArgumentError, DtypeError) as error:
        raise ModelError(f"{node.label}: {shorten(str(error), 1000)}") from error


def _extended(row: Row, epilogue: Epilogue) -> Row:
    """``conv -> conv, bias, residual, activation``: a row with the inputs and the activation added."""
    if not epilogue.roles and epilogue.activation is None:
        return row

    def lower(node: DialectNode) -> Lowering:
        lowering = row.lower(node)
        if lowering.problem is None:
            return lowering
        problem = lowering.problem
        if epilogue.activation is not None:
            problem = replace(problem, activation=epilogue.activation)
        if problem.quantisation is not None and "ss" in epilogue.roles:
            given = {role: "t" for role in epilogue.roles if role in QUANTITIES and role in node.values}
            problem = replace(problem, quantisation=replace(problem.quantisation, **given))
        return replace(lowering, problem=problem)

    types = {each.role: each.type for each in row.inputs}

    added = (
        Input(role, role, types.get("sy" if role in ("sr", "ss") else "zy", types["x"]), optional=True)
        for role in epilogue.roles
    )  # others are of the result's type
    return replace(row, lower=lower, inputs=(*row.inputs, *added))
