"""A convolution node made ready to run on polyconv's own operators.

Turns a node, its constants and what is known of its inputs into a segment.  The one idea: weights that
are constant are bound once, everything else arrives with the run.  It knows no file format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from polyconv.calls import Call
from polyconv.dialects.call import Operator
from polyconv.dialects.reading import SIZES
from polyconv.errors import ArgumentError, DtypeError, Error, ModelError
from polyconv.gpu.work import Work
from polyconv.models.elements import BY_TYPE, type_of
from polyconv.models.graph import Array, Dims, Node, Value
from polyconv.models.limits import check_bytes, shorten
from polyconv.models.operators import Epilogue, Options, make
from polyconv.models.segment import Segment
from polyconv.operators.job import Job, Plan, packed

__all__ = ["ENGINE", "convolution", "foretold_results"]

ENGINE = "polyconv"


def convolution(
    node: Node,
    epilogue: Epilogue,
    inputs: Sequence[Value | None],
    constants: Mapping[str, Array],
    options: Options,
    *,
    far: bool = False,
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
    bound = operator.bind(held, far=far, device=options.device)
    moving = {name: at for at, name in enumerate(n for n in node.reads if n not in constants)}
    places = [moving.get(name) for name in node.inputs]
    last: tuple[Any, Any, Any] = (None, None, None)  # shapes and types, problem, direct call, of the run before

    def run(arrays: Sequence[Array]) -> Sequence[Array]:
        nonlocal last
        try:
            sizes = [(a.shape, a.dtype) for a in arrays]
            known, problem, direct = last  # one tuple, as other threads may run other sizes
            if direct is not None and sizes == known:
                layer, x, residual = direct
                return (layer(arrays[x], residual=None if residual is None else arrays[residual]),)
            given = [None if at is None else arrays[at] for at in places]
            if sizes != known:
                problem = bound.problem(*given)
                if problem is not None and options.device is None:  # refuse what memory cannot hold
                    check_bytes(node.label, [extent or 0 for extent in problem.y_shape], problem.y_dtype.itemsize)
            result = bound(*given)
            bound.let_go()
            found = bound.direct(*given)
            last = sizes, problem, found and (found[0], *(None if at is None else places[at] for at in found[1:]))
        except Error as error:
            raise type(error)(f"{node.label}: {error}") from error
        return result if isinstance(result, tuple) else (result,)

    def plan(arrays: Sequence[Array]) -> Plan | None:
        given = [None if at is None else arrays[at] for at in places]
        found = bound.direct(*given)
        if found is None:
            return None
        layer, x, residual = found
        call = layer.call(given[x], None if residual is None else given[residual])
        bound.let_go()
        return _plan_of(call, len(arrays), places[x], None if residual is None else places[residual])

    def work(arrays: Sequence[Any], results: Sequence[Any]) -> Work | None:
        from polyconv.gpu.calling import work_of  # here, as sessions on the CPU need none of a GPU's kernels

        direct = last[2]
        if direct is None:
            return None
        layer, x, residual = direct
        call = layer.call(arrays[x], results[0], None if residual is None else arrays[residual])
        return work_of(call, len(arrays), x, residual)

    once = bound.once([bool(name) for name in node.inputs])
    made = Segment(
        ENGINE, outputs, run, lambda: None if last[1] is None else str(last[1]), once, held=lambda: bound.packed_bytes,
        by_image=True,
    )  # fmt: skip
    if options.device is not None:
        return replace(made, device=f"cuda:{options.device}", work=work)
    return replace(made, plan=plan, ahead=plan)


def foretold_results(node: Node, epilogue: Epilogue, inputs: Sequence[Value | None], constants: Mapping[str, Array],
                     options: Options) -> tuple[Value, ...]:  # fmt: skip
    """What a convolution will make, as far as it follows from what is known; see ``convolution``."""
    held = {at: np.asarray(constants[name]) for at, name in enumerate(node.inputs) if name in constants}
    return _inferred(make(node, options, epilogue), node, inputs, held)


def _plan_of(call: Call, count: int, x: int | None, residual: int | None) -> Plan | None:
    """A call of a layer as native work on one of ``count`` arrays; None where Python has to look at each call."""
    if call.entry is None:
        return None
    job = Job(
        call.steps, (x, count, residual, None, None), call.program.workspace, call.plan_threads, call.wake, (call,),
        strict=call.is_strict,
    )  # fmt: skip
    return Plan((packed(call.shape, call.dtype),), (job,))


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

