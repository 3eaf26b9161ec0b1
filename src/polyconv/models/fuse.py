"""Nodes after a convolution that its epilogue can do: found, and folded into it where that is exact.

``Conv -> [Add bias] -> [Add residual] -> [activation]`` becomes one node that reads what they read and
makes what the last of them made; quantised convolutions are in ``fuse_bytes``.  The one idea: a value with a
single reader need not exist, if the one rounding that is left gives the same number as the roundings that were.  It
runs nothing.

Exact means: Relu commutes with rounding; so does Clip when the type can spell both bounds.  Other
activations and Adds are fused where the accumulator has the result's type (f32, f64), because nothing is
rounded before them then.  An IR's bias Add is fused for every float type, as OpenVINO does: its
convolutions have no other bias.  Integers wrap, so Adds are exact and activations are not.
BatchNormalization goes into weights before (``onnx_rules``), as that rounds them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES, of_array
from polyconv.errors import DtypeError, Error
from polyconv.models.activations import activation_of, is_broadcast, other_operand, with_affine
from polyconv.models.fuse_bytes import ROLES, ByteSum, byte_sum
from polyconv.models.graph import Array, Node, Value, along, consumers, live
from polyconv.models.operators import (
    OPENVINO,
    Epilogue,
    Unproven,
    has_row,
    make,
    row_of,
)
from polyconv.models.options import Options
from polyconv.models.rewriting import View
from polyconv.models.spelled import spelled_out
from polyconv.problem.epilogue import Activation

__all__ = ["TAKES_CONSTANTS", "Fused", "fuse"]

_ABLE = frozenset(
    [
        "Conv",
        "ConvTranspose",
        "NhwcConv",
        "FusedConv",
        "NhwcFusedConv",
        "Convolution",
        "GroupConvolution",
        "ConvolutionBackpropData",
        "GroupConvolutionBackpropData",
    ]
)
_COMMUTES = ("Relu", "Clip")

TAKES_CONSTANTS = frozenset(("Add", "Sum", "Clip", "PRelu", "Swish"))
"""Operators whose constant inputs decide whether they can be fused."""


@dataclass(frozen=True, slots=True, eq=False)
class Fused:
    """A graph after fusion.

    Parameters
    ----------
    nodes : tuple of Node
        In running order.
    epilogues : mapping
        Of the nodes that absorbed others.
    constants : mapping
        New ones: biases in the shape that a convolution takes.
    unread : tuple of Node
        Those left out because only nodes that were absorbed read what they make.
    """

    nodes: tuple[Node, ...]
    epilogues: Mapping[Node, Epilogue] = field(default_factory=dict)
    constants: Mapping[str, Array] = field(default_factory=dict)
    unread: tuple[Node, ...] = ()


def fuse(
    nodes: Sequence[Node],
    results: Collection[str],
    constants: Mapping[str, Array],
    stated: Mapping[str, Value],
    *,
    is_spelled_out: bool = True,
) -> Fused:
    """Fold what follows convolutions into them.

    Parameters
    ----------
    nodes : sequence of Node
        In running order.
    results : collection of str
        Values that must stay.
    constants : mapping
        Values that are known.
    stated : mapping
        Types of others, as far as they are.
    is_spelled_out : bool
        Whether activations in several nodes become one, which rounds less often.

    Notes
    -----
    A residual is proposed wherever a node adds two values that change; that both have one shape is for
    the caller to prove, who takes ``epilogue.unless`` otherwise.
    """
    readers = consumers(nodes)
    kept = set(results)
    made: dict[str, Array] = {}
    swaps: dict[Node, tuple[Node, Epilogue]] = {}  # the last node absorbed -> what takes its place
    gone: set[Node] = set()
    makers = {name: node for node in nodes for name in node.writes}
    view = View(constants, makers, readers, kept, stated, {})
    for node in nodes:
        if node.op == "QLinearConv" and has_row(node):
            found = byte_sum(node, view)
            if found is not None and gone.isdisjoint(found.absorbed):
                swaps[found.absorbed[-1]] = _with_byte_sum(node, found)
                gone.update((node, *found.absorbed))
            continue
        if (
            node.op not in _ABLE
            or "activation" in node.attributes
            or len(node.outputs) != 1
            or not has_row(node)
        ):
            continue
        chain = _chain(node, readers, kept, constants, gone, made, is_spelled_out)
        if chain.absorbed:
            last = chain.absorbed[-1]
            swaps[last] = chain.ready()
            gone.update((node, *chain.absorbed))
    after = tuple(swaps[n][0] if n in swaps else n for n in nodes if n in swaps or n not in gone)
    read = dict.fromkeys(live(after, kept))
    return Fused(tuple(read), dict(swaps.values()), made, tuple(node for node in after if node not in read))


def _with_byte_sum(node: Node, found: ByteSum) -> tuple[Node, Epilogue]:
    """The one node that stands for a quantised convolution and the sum behind it."""
    own = [*node.inputs, *[""] * (len(row_of(node).inputs) - len(node.inputs))]
    whole = replace(node, inputs=(*own, *found.inputs), outputs=found.absorbed[-1].outputs)
    unproven = Unproven(node, Epilogue(), found.instead)
    return whole, Epilogue(ROLES, None, (node, *found.absorbed), unproven)


@dataclass(slots=True)
class _Chain:
    """A convolution and what it has absorbed so far."""

    origin: Node
    node: Node
    value: str
    roles: list[str] = field(default_factory=list)
    activation: Activation | None = None
    absorbed: list[Node] = field(default_factory=list)
    unproven: tuple[int, Node, Epilogue] | None = None

    def ready(self) -> tuple[Node, Epilogue]:
        """The one node that stands for all of them."""
        epilogue = Epilogue(tuple(self.roles), self.activation, (self.origin, *self.absorbed))
        if self.unproven is not None:
            length, node, before = self.unproven
            epilogue = replace(epilogue, unless=Unproven(node, before, tuple(self.absorbed[length:])))
        return replace(self.node, outputs=(self.value,)), epilogue


def _chain(node: Node, readers: Mapping[str, list[Node]], kept: Collection[str], constants: Mapping[str, Array],
           gone: Collection[Node], made: dict[str, Array], is_spelled_out: bool) -> _Chain:  # fmt: skip
    chain = _Chain(node, node, node.outputs[0])
    dtype = _dtype(node, constants)
    while chain.activation is None and chain.value not in kept:
        following = readers.get(chain.value, [])
        if any(n in gone or len(n.outputs) != 1 for n in following):
            break
        activation: Activation | None
        spelled = spelled_out(chain.value, readers, kept, constants, activation_of) if is_spelled_out else None
        if spelled is not None:
            activation, absorbed = spelled
        elif is_spelled_out and _is_silu(following, readers, kept, chain.value):
            activation, absorbed = Activation("Silu"), sorted(following, key=lambda n: n.op != "Sigmoid")
        elif len(following) == 1:
            activation, absorbed = activation_of(following[0], chain.value, constants), following
        else:
            break
        if activation is not None:
            if not _is_exact(activation, dtype):
                break
            if is_spelled_out and _is_wide(dtype):
                w, value = constants[node.inputs[1]], absorbed[-1].outputs[0]
                activation, further = with_affine(activation, value, readers, kept, constants, w)
                absorbed = [*absorbed, *further]
            chain.activation = activation
        elif not (
            _add_bias(chain, following[0], dtype, constants, made)
            or _add_residual(chain, following[0], dtype, constants)
        ):
            break
        chain.absorbed += absorbed
        chain.value = absorbed[-1].outputs[0]
    return chain


def _dtype(node: Node, constants: Mapping[str, Array]) -> str | None:
    """Element type of a convolution, from its weights; None where they come at run time."""
    weights = constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
    try:
        return None if weights is None else of_array(weights.dtype, "W").name
    except DtypeError:
        return None


def _is_wide(dtype: str | None) -> bool:
    """Whether the accumulator has the result's type, so that nothing is rounded before the epilogue."""
    return dtype is not None and DTYPES[dtype].accumulator == dtype


def _is_exact(activation: Activation, dtype: str | None) -> bool:
    if dtype is None or not DTYPES[dtype].is_float:
        return False
    if _is_wide(dtype):
        return True
    if activation.name not in _COMMUTES:
        return False
    with np.errstate(over="ignore"):
        spelled = np.array(activation.parameters).astype(DTYPES[dtype].numpy).astype(np.float64)
    return bool((spelled == activation.parameters).all())


def _is_add(node: Node) -> bool:
    return is_broadcast(node, ("Add", "Sum"), "Add")


def _add_bias(
    chain: _Chain, node: Node, dtype: str | None, constants: Mapping[str, Array], made: dict[str, Array]
) -> bool:
    """``Add(conv, constant per channel)`` -> bias; changes ``chain`` and ``made`` if it can."""
    other = other_operand(node, chain.value)
    if not _is_add(node) or chain.roles or other is None or other not in constants or dtype is None:
        return False
    if not (_is_wide(dtype) or chain.node.domain == OPENVINO or not DTYPES[dtype].is_float):
        return False
    row = row_of(chain.node)
    position = next((at for at, i in enumerate(row.inputs) if i.role == "bias"), len(row.inputs))
    if position < len(chain.node.inputs) and chain.node.inputs[position]:
        return False
    bias = _per_channel(constants[other], chain.node, constants)
    if bias is None or bias.dtype != DTYPES[dtype].numpy:
        return False
    name = f"{other} as bias of {chain.node.outputs[0]}"
    made[name] = bias
    if position == len(row.inputs):
        chain.roles.append("bias")
    _put(chain, position, name)
    return True


def _per_channel(added: Array, node: Node, constants: Mapping[str, Array]) -> Array | None:
    """The vector of one value per output channel that an addend amounts to, if it does to one."""
    row = row_of(node)
    weights = constants[node.inputs[1]]
    try:
        (shape, *_) = make(node, Options(), Epilogue()).infer(None, weights.shape)
    except Error:  # a wrong node is reported by whoever makes it ready
        return None
    if shape is None:
        return None
    axis = 1 if row.layout == "NCHW" else len(shape) - 1
    m, numbers = shape[axis], along(added, len(shape), axis)
    if not isinstance(m, int) or numbers is None or numbers.size not in (1, m):
        return None
    return np.ascontiguousarray(np.broadcast_to(numbers, (m,)))


def _add_residual(chain: _Chain, node: Node, dtype: str | None, constants: Collection[str]) -> bool:
    """``Add(conv, value)`` -> residual, to be proven of one shape; changes ``chain`` if it can."""
    other = other_operand(node, chain.value)
    row = row_of(chain.node)
    if not _is_add(node) or other is None or other in constants or "residual" in chain.roles or dtype is None:
        return False
    if not (_is_wide(dtype) or not DTYPES[dtype].is_float) or any(i.role == "residual" for i in row.inputs):
        return False
    chain.unproven = (len(chain.absorbed), *chain.ready())
    position = len(row.inputs) + len(chain.roles)
    chain.roles.append("residual")
    _put(chain, position, other)
    return True


def _put(chain: _Chain, position: int, name: str) -> None:
    inputs = list(chain.node.inputs) + [""] * (position + 1 - len(chain.node.inputs))
    inputs[position] = name
    chain.node = replace(chain.node, inputs=tuple(inputs))


def _is_silu(
    following: Sequence[Node], readers: Mapping[str, list[Node]], kept: Collection[str], value: str
) -> bool:
    """Whether the readers of a value are ``Mul(value, Sigmoid(value))`` and nothing else."""
    if sorted(n.op for n in following) not in (["Mul", "Sigmoid"], ["Multiply", "Sigmoid"]):
        return False
    product, sigmoid = sorted(following, key=lambda n: n.op)
    gate = sigmoid.outputs[0]
    return gate not in kept and readers.get(gate) == [product] and set(product.inputs) == {value, gate}
