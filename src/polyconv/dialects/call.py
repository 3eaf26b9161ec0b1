"""A row of a table turned into a callable: an ``Operator`` computes, infers shapes and binds constants.

A row says everything that is particular to an operator, so this file holds what all have in common:
counting and typing inputs, asking the row's function for a Problem, handing that to ``layer``.  It
must not know the name of any operator, attribute or input.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyconv import dtypes as element_types
from polyconv.dialects import inputs as given
from polyconv.dialects.node import Lowering, Node, Shape, Value, join, split
from polyconv.errors import ArgumentError, DtypeError, Unsupported, shown
from polyconv.problem.problem import Problem
from polyconv.settings import resolve

if TYPE_CHECKING:
    from polyconv.dialects.rows import Row

__all__ = ["SIZES", "Bound", "Operator"]

Array = NDArray[Any]
Result = Array | tuple[Array, ...]

SIZES = "sizes"
"""Role of an input that holds sizes: its content is read when the problem is made."""

# What a Layer takes when it is made; the other operands come with every call.
QUANTITIES = ("zx", "zw", "zy", "sx", "sw", "sy")
_HELD = ("w", "bias", *QUANTITIES)
_MOST_REMEMBERED = 256


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Operator:
    """An operator with its attributes, ready for any inputs; immutable.

    Parameters
    ----------
    row : Row
        What it is.
    attributes : dict
        All attributes, as validated; absent lists are None.
    semantics : str
        Whose definition holds where two differ.
    options : dict
        accuracy, threads and workspace_limit, as for ``polyconv.conv``.
    """

    row: Row
    attributes: dict[str, Any]
    semantics: str
    options: dict[str, Any]

    def __repr__(self) -> str:
        """Show what differs from the defaults, as it would be written."""
        rows = self.row.attributes
        other = [
            f"{name}={value!r}" for name, value in self.attributes.items() if value != rows[name].default
        ]
        return f"{self.name}({', '.join([f'version={self.version}', *other])})"

    @property
    def domain(self) -> str:
        """Domain; empty for ONNX's main one."""
        return self.row.domain

    @property
    def name(self) -> str:
        """Name, as in the specification."""
        return self.row.name

    @property
    def version(self) -> int:
        """Version of the operator set that introduced it."""
        return self.row.version

    def __call__(self, *inputs: ArrayLike | None, out: Array | None = None) -> Result:
        """Compute; weights are packed on every call.

        Parameters
        ----------
        *inputs : array or None
            In the order of the specification; None where an optional one is absent.
        out : array, optional
            Where the (first) result goes.

        Returns
        -------
        ndarray, or tuple of ndarray
            The outputs; a tuple if the operator has several.

        Raises
        ------
        ArgumentError, DtypeError
            If the inputs do not fit each other or the attributes.
        """
        if not all(value is None or type(value) is np.ndarray for value in inputs) and _any_on_gpu(inputs):
            return self._compute_on_gpu(inputs, out)
        arrays = self._arrays(inputs)
        return self._compute(self._lower(self._values(arrays)), arrays, out)

    def infer(
        self,
        *shapes: Shape,
        dtypes: Sequence[Any] | None = None,
        values: Mapping[int, ArrayLike] | None = None,
    ) -> tuple[Shape, ...]:
        """Output shapes for input shapes, which may be partly unknown.

        Parameters
        ----------
        *shapes : tuple or None
            One per input: whole numbers, symbols (strings) and None for unknown sizes; None for a shape
            of unknown rank.  Optional inputs at the end may be left out.
        dtypes : sequence, optional
            Element types of the inputs, None where unknown; checked against the operator's.
        values : mapping, optional
            Input position to content, for inputs that hold sizes and are known already.

        Returns
        -------
        tuple of (tuple or None)
            One per output.  Batch and channels keep their symbols; a spatial size that depends on an
            unknown one is None.

        Raises
        ------
        ArgumentError, DtypeError
            If what is known does not fit together.
        """
        return self._described(shapes, dtypes, values).shapes

    def problem(
        self,
        *shapes: Shape,
        dtypes: Sequence[Any] | None = None,
        values: Mapping[int, ArrayLike] | None = None,
    ) -> Problem | None:
        """Convolution that inputs of such shapes and types amount to; None where something is unknown.

        Parameters as for ``infer``, but an optional input whose shape is None is absent.
        """
        absent = [
            at
            for at, (i, s) in enumerate(zip(self.row.inputs, shapes, strict=False))
            if i.optional and s is None
        ]
        return self._described(shapes, dtypes, values, absent).problem

    def bind(self, constants: Mapping[int, ArrayLike]) -> Bound:
        """Fix some inputs; where the weights are among them they are packed once, on first use.

        Parameters
        ----------
        constants : mapping
            Input position to array, which must not change afterwards.

        Returns
        -------
        callable
            Takes inputs as the operator does; those of the constants' positions may be None or left out.
        """
        _check_kind(constants, Mapping, "constants", "a dict from positions of inputs to arrays")
        fixed: dict[int, Array] = {}
        for at, value in constants.items():
            if not 0 <= given.whole(at, "position of a constant") < len(self.row.inputs):
                raise ArgumentError(
                    f"constants has position {shown(at)}, {self.name} has inputs 0 to "
                    f"{len(self.row.inputs) - 1}: number them in that order"
                )
            fixed[at] = given.array(value, self.row.inputs[at].name)
        return Bound(self, fixed)

    def _described(
        self,
        shapes: Sequence[Shape],
        dtypes: Sequence[Any] | None,
        values: Mapping[int, ArrayLike] | None,
        absent: Sequence[int] = (),
    ) -> Lowering:
        """Lowering of inputs of which a caller tells shapes, types and perhaps contents."""
        _check_kind(dtypes, Sequence | None, "dtypes", "a list of element types, one per input")
        _check_kind(values, Mapping | None, "values", "a dict from positions of inputs to their contents")
        self._check_count([True] * len(shapes))
        found = {}
        for at, (row, shape) in enumerate(zip(self.row.inputs, shapes, strict=False)):
            if at in absent:
                continue
            dtype = None if dtypes is None or at >= len(dtypes) else dtypes[at]
            content = None
            if row.role == SIZES and values is not None and at in values:
                content = given.sizes(np.asarray(values[at]), row.name)
            name = None if dtype is None else given.type_name(dtype, row.name)
            found[row.role] = Value(row.name, given.checked_shape(shape, row.name), name, content)
        return self._lower(found)

    def _check_count(self, present: Sequence[bool]) -> None:
        inputs = self.row.inputs
        names = ", ".join(f"[{i.name}]" if i.optional else i.name for i in inputs)
        if len(present) > len(inputs):
            raise ArgumentError(
                f"{self.name} was given {len(present)} inputs, it has at most {len(inputs)} ({names}): "
                f"leave out the rest"
            )
        for at, row in enumerate(inputs):
            if not row.optional and not (at < len(present) and present[at]):
                raise ArgumentError(f"{self.name} lacks its input {row.name} at position {at}: give {names}")

    def _arrays(self, inputs: Sequence[ArrayLike | None]) -> tuple[Array | None, ...]:
        self._check_count([a is not None for a in inputs])
        pairs = zip(inputs, self.row.inputs, strict=False)
        arrays = tuple(None if a is None else given.array(a, row.name) for a, row in pairs)
        return arrays + (None,) * (len(self.row.inputs) - len(arrays))

    def _values(self, arrays: Sequence[Array | None]) -> dict[str, Value]:
        return {
            row.role: Value(
                row.name,
                array.shape,
                element_types.of_array(array.dtype, row.name).name,
                given.sizes(array, row.name) if row.role == SIZES else None,
            )
            for row, array in zip(self.row.inputs, arrays, strict=True)
            if array is not None
        }

    def _lower(self, values: Mapping[str, Value]) -> Lowering:
        self._check_types(values)
        layout = "NHWC" if self.attributes.get("channels_last") else self.row.layout
        return self.row.lower(Node(self.name, self.attributes, layout, self.semantics, values))

    def _check_types(self, values: Mapping[str, Value]) -> None:
        bound: dict[str, Value] = {}
        for row in self.row.inputs:
            value = values.get(row.role)
            if value is None or value.dtype is None:
                continue
            allowed = self.row.types[row.type]
            if value.dtype not in allowed:
                raise DtypeError(
                    f"{row.name} has dtype {value.dtype}, {self.name} version {self.version} takes "
                    f"{', '.join(allowed)} there: convert it with .astype(...) or take another version"
                )
            first = bound.setdefault(row.type, value)
            if first.dtype != value.dtype:
                raise DtypeError(
                    f"{row.name} has dtype {value.dtype}, {first.name} has {first.dtype}; {self.name} takes "
                    f"one type for both: convert one with .astype(...)"
                )

    def _operands(self, lowering: Lowering, arrays: Sequence[Array | None]) -> dict[str, Array]:
        """Operands of ``layer.compute``, by parameter."""
        found = {}
        for row, array in zip(self.row.inputs, arrays, strict=True):
            if array is not None and row.role != SIZES:
                change = lowering.operands.get(row.role)
                found[row.role] = array if change is None else change(array)
        return found

    def _compute(self, lowering: Lowering, arrays: Sequence[Array | None], out: Array | None) -> Result:
        from polyconv.layer import compute  # here, so that shape inference needs no compiler

        assert lowering.problem is not None  # all shapes and types are known
        operands: dict[str, Any] = dict(self._operands(lowering, arrays))
        quantities = {role: operands.pop(role) for role in QUANTITIES if role in operands}
        result: Result = compute(lowering.problem, **operands, out=out, quantities=quantities, **self.options)
        return result


    def _compute_on_gpu(self, inputs: Sequence[Any], out: Any) -> Result:
        """Compute where the inputs lie; those that are sizes lie in the CPU's memory."""
        from polyconv.gpu.guests import stand_in, where  # here, so that shape inference needs no compiler
        from polyconv.gpu.layer import compute
        from polyconv.in_force import keep_where_settings_say

        self._check_count([a is not None for a in inputs])
        rows = self.row.inputs
        padded = (*inputs, *[None] * (len(rows) - len(inputs)))
        where({row.name: value for row, value in zip(rows, padded, strict=True) if row.role != SIZES} | {"out": out})
        shown = tuple(
            None if value is None else given.array(value, row.name) if row.role == SIZES else stand_in(value, row.name)
            for row, value in zip(rows, padded, strict=True)
        )
        lowering = self._lower(self._values(shown))
        assert lowering.problem is not None  # all shapes and types are known
        operands = {r.role: v for r, v in zip(rows, padded, strict=True) if v is not None and r.role != SIZES}
        if changed := [role for role in operands if role not in _ON_GPU or lowering.operands.get(role) is not None]:
            raise Unsupported(f"{self.name} with {', '.join(changed)} is computed on the CPU; copy its inputs there")
        keep_where_settings_say()
        result: Result = compute(
            lowering.problem, **operands, out=out, accuracy=resolve("accuracy", self.options.get("accuracy")),
            limit=resolve("workspace_limit", self.options.get("workspace_limit")),
        )  # fmt: skip
        return result


def _any_on_gpu(inputs: Sequence[Any]) -> bool:
    from polyconv.gpu.guests import device_of

    return any(device_of(value) is not None for value in inputs)


_ON_GPU = ("x", "w", "bias", "residual")
"""Operands that GPUs take."""


def _check_kind(value: Any, kind: Any, name: str, wanted: str) -> None:
    if not isinstance(value, kind):
        raise ArgumentError(f"{name} is of type {type(value).__name__}; give {wanted}")


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """An operator with constant inputs: what one set of shapes implies is found once and remembered.

    Parameters
    ----------
    operator : Operator
        What to compute.
    constants : dict
        Position to array.
    """

    operator: Operator
    constants: dict[int, Array]
    _lowered: OrderedDict[Any, Lowering] = field(default_factory=OrderedDict, repr=False)
    _layers: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __call__(self, *inputs: ArrayLike | None, out: Array | None = None) -> Result:
        """Compute, as the operator does; positions of constants may be None or left out."""
        operator = self.operator
        arrays = self._merged(inputs)
        lowering = self._lowering(arrays)
        layer = self._layer(lowering, arrays)
        if layer is None:
            return operator._compute(lowering, arrays, out)
        operands = operator._operands(lowering, arrays)
        result: Array = layer(
            operands["x"],
            residual=operands.get("residual"),
            out=out,
            offset=operands.get("offset"),
            mask=operands.get("mask"),
        )
        return result

    def problem(self, *inputs: ArrayLike | None) -> Problem | None:
        """Convolution that inputs of such shapes and types amount to; the call with them does not ask again."""
        return self._lowering(self._merged(inputs)).problem

    def direct(self, *inputs: ArrayLike | None) -> tuple[Any, int, int | None] | None:
        """What computes inputs of such types without looking at them again.

        Returns
        -------
        tuple or None
            A ``Layer``, the position of its ``x`` and that of its ``residual``, if there is one; None where a call
            takes more than these two, or takes them in another form.
        """
        arrays = self._merged(inputs)
        lowering = self._lowering(arrays)
        layer = self._layer(lowering, arrays)
        rows = self.operator.row.inputs
        moving = {row.role: at for at, row in enumerate(rows) if arrays[at] is not None and at not in self.constants}
        if layer is None or not {"x"} <= set(moving) <= {"x", "residual"} or set(moving) & set(lowering.operands):
            return None
        return layer, moving["x"], moving.get("residual")

    def once(self, present: Sequence[bool]) -> bool:
        """Whether each call prepares its own weights, as something prepared with them comes with the call.

        Parameters
        ----------
        present : sequence of bool
            By position, whether an input is given or constant.
        """
        inputs = self.operator.row.inputs
        if "past" in (i.role for i in inputs):  # a Layer has no state
            return True
        given = zip(inputs, present, strict=False)
        return any(
            there and i.role in (*_HELD, SIZES) and at not in self.constants for at, (i, there) in enumerate(given)
        )

    def _merged(self, inputs: Sequence[ArrayLike | None]) -> tuple[Array | None, ...]:
        """Inputs and constants, by position."""
        merged = list(inputs) + [None] * (max(self.constants, default=-1) + 1 - len(inputs))
        for at, constant in self.constants.items():
            if merged[at] is not None:
                name = self.operator.row.inputs[at].name
                raise ArgumentError(f"{name} at position {at} is bound to a constant: give None there")
            merged[at] = constant
        return self.operator._arrays(merged)

    @property
    def packed_bytes(self) -> int:
        """Bytes of the constants, and of the forms in which its layers hold them."""
        given = sum(constant.nbytes for constant in self.constants.values())
        return given + sum(int(layer.packed_bytes - layer.weights.w.nbytes) for layer in self._layers.values())

    def _lowering(self, arrays: Sequence[Array | None]) -> Lowering:
        key = tuple(
            None if a is None else (a.shape, a.dtype, a.tobytes() if row.role == SIZES else b"")
            for at, (a, row) in enumerate(zip(arrays, self.operator.row.inputs, strict=True))
            if at not in self.constants
        )
        lowering = self._lowered.pop(key, None) or self.operator._lower(self.operator._values(arrays))
        self._lowered[key] = lowering  # at the end: what was used least recently stands first
        while len(self._lowered) > _MOST_REMEMBERED:
            self._lowered.popitem(last=False)
        return lowering

    def _layer(self, lowering: Lowering, arrays: Sequence[Array | None]) -> Any | None:
        """The Layer for these types and optional inputs; None where one cannot hold what is constant."""
        if self.once([a is not None for a in arrays]):
            return None
        key = tuple(None if a is None else a.dtype for at, a in enumerate(arrays) if at not in self.constants)
        layer = self._layers.get(key)
        if layer is None:
            from polyconv.layer import Layer

            held = {r: a for r, a in self.operator._operands(lowering, arrays).items() if r in _HELD}
            w, bias = held.pop("w"), held.pop("bias", None)
            layout = "NHWC" if self.operator.attributes.get("channels_last") else self.operator.row.layout
            made = Layer(self._resolver(arrays), w, bias, layout=layout, own=False, quantities=held,
                         **self.operator.options)  # fmt: skip
            layer = self._layers.setdefault(key, made)  # whoever was first, in any thread
        return layer

    def _resolver(self, arrays: Sequence[Array | None]) -> Callable[[int, tuple[int, ...]], Problem]:
        """How a Layer asks for the problem of other extents."""
        operator = self.operator
        values = operator._values(arrays)
        x = values["x"]
        layout = "NHWC" if operator.attributes.get("channels_last") else operator.row.layout
        assert x.shape is not None
        channels = split(x.shape, len(x.shape) - 2, layout)[1]
        unknown = {
            r: replace(v, shape=None) for r, v in values.items() if r in ("residual", "offset", "mask")
        }

        def resolve(n: int, i: tuple[int, ...]) -> Problem:
            sized = replace(x, shape=join(n, channels, i, layout))
            problem = operator._lower({**values, **unknown, "x": sized}).problem
            assert problem is not None  # constants and x are all that it depends on
            return problem

        return resolve
