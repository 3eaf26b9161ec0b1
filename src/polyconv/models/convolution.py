"""A convolution node made ready to run on polyconv's own operators.

Turns a node, its constants and what is known of its inputs into a segment.  The one idea: weights that
are constant are bound once, everything else arrives with the run.  It knows no file format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from polyconv.dialects.call import Operator
from polyconv.dialects.reading import SIZES
from polyconv.errors import ArgumentError, DtypeError, ModelError
from polyconv.models.elements import BY_TYPE, type_of
from polyconv.models.graph import Array, Dims, Node, Value
from polyconv.models.layout import Layout
from polyconv.models.limits import shorten
from polyconv.models.operators import Epilogue, make
from polyconv.models.options import Options
from polyconv.models.segment import ENGINE, Segment
from polyconv.models.ways import Ways, turns

__all__ = ["convolution", "foretold_results"]


def convolution(
    node: Node,
    epilogue: Epilogue,
    inputs: Sequence[Value | None],
    constants: Mapping[str, Array],
    options: Options,
    *,
    far: bool = False,
    layout: Layout | None = None,
) -> Segment:
    """Make a convolution ready to run.

    Parameters
    ----------
    node : Node
        With the inputs that fusion added.
    epilogue : Epilogue
        What fusion added.
    inputs : sequence of Value or None
        What is known of each input by position; None where it is absent.
    constants : mapping
        Values that are known.
    options : Options
        Of the session.
    far : bool
        The weights come from memory at each run.
    layout : Layout, optional
        Of the network, which is told of the convolution; without one the axes stay the model's.

    Returns
    -------
    Segment
        Its run takes the inputs that are no constants, each once, in the order of ``node.reads``.

    Raises
    ------
    ModelError
        If attributes and what is known of the inputs do not fit together; the node is named.
    """
    operator = make(node, options, epilogue)
    held = {at: np.asarray(constants[name]) for at, name in enumerate(node.inputs) if name in constants}
    outputs = _inferred(operator, node, inputs, held)
    moving = {name: at for at, name in enumerate(n for n in node.reads if n not in constants)}
    bound = Ways(node.label, operator, held, [moving.get(name) for name in node.inputs], options, far, _varies(inputs),
                 layout if layout is not None and options.device is None and turns(operator) else None)  # fmt: skip
    if bound.layout is not None:
        outputs = tuple(replace(value, channels_last=True) for value in outputs)
        bound.layout.convolutions.append(lambda: bound.situation(inputs))
    made = Segment(
        ENGINE, outputs, bound.run, lambda: bound.problem, bound.once([bool(name) for name in node.inputs]),
        held=lambda: bound.held_bytes, by_image=True,
    )  # fmt: skip
    if options.device is not None:
        return replace(made, device=f"cuda:{options.device}", work=bound.work)
    return replace(made, plan=bound.plan, ahead=bound.plan, gaps=True)


def _varies(inputs: Sequence[Value | None]) -> bool:
    """Whether nothing tells the extents of the image, so that each run may bring others."""
    dims = inputs[0].dims if inputs and inputs[0] is not None else None
    return dims is None or not all(isinstance(extent, int) for extent in dims[1:])


def foretold_results(node: Node, epilogue: Epilogue, inputs: Sequence[Value | None], constants: Mapping[str, Array],
                     options: Options) -> tuple[Value, ...]:  # fmt: skip
    """What a convolution will make, as far as it follows from what is known; see ``convolution``."""
    held = {at: np.asarray(constants[name]) for at, name in enumerate(node.inputs) if name in constants}
    return _inferred(make(node, options, epilogue), node, inputs, held)


def _inferred(
    operator: Operator, node: Node, inputs: Sequence[Value | None], held: Mapping[int, Array]
) -> tuple[Value, ...]:
    """Types and extents of the outputs, as far as they follow from what is known."""
    rows = operator.row.inputs
    if len(inputs) > len(rows):
        raise ModelError(
            f"{node.label} has {len(inputs)} inputs; it takes {', '.join(row.name for row in rows)}"
        )
    for at, row in enumerate(rows):
        if not row.optional and (at >= len(inputs) or inputs[at] is None):
            raise ModelError(f"{node.label} lacks its input {row.name} at position {at}")
    shapes: list[Dims | None] = [
        held[at].shape if at in held else None if value is None else value.dims
        for at, value in enumerate(inputs)
    ]
    dtypes = [held[at].dtype if at in held else _numpy(value) for at, value in enumerate(inputs)]
    sizes = {at: array for at, array in held.items() if rows[at].role == SIZES}
    try:
        found = operator.infer(*shapes, dtypes=dtypes, values=sizes)
    except (ArgumentError, DtypeError) as error:
        raise ModelError(f"{node.label}: {shorten(str(error), 1000)}") from error
    if len(node.outputs) > len(found):
        raise ModelError(f"{node.label} has {len(node.outputs)} outputs; it makes {len(found)}")
    kind = _result_type(operator, dtypes)
    return tuple(Value(name, kind, dims) for name, dims in zip(node.outputs, found, strict=False))


def _numpy(value: Value | None) -> Any:
    element = None if value is None else BY_TYPE.get(value.type)
    return None if element is None else element.numpy


def _result_type(operator: Operator, dtypes: Sequence[Any]) -> str:
    """Element type of the outputs: a requantised result has its zero point's, bare integer sums are int32."""
    roles = {row.role: at for at, row in enumerate(operator.row.inputs)}
    if "zx" in roles and "zy" not in roles:
        return type_of(np.dtype(np.int32))
    dtype = dtypes[roles.get("zy", roles["x"])]
    return "" if dtype is None else type_of(dtype)

