"""An operator with constant inputs: weights are packed once, and what a set of shapes implies is found once.

It must not know the name of any operator or attribute.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike, NDArray

from polyconv.dataclass import dataclass
from polyconv.dialects.computing import Result, compute, compute_on_gpu
from polyconv.dialects.node import Lowering, join, split
from polyconv.dialects.reading import SIZES, arrays_of, layout_of, lower, operands_of, values_of
from polyconv.errors import ArgumentError
from polyconv.gpu.arrays import to_gpu
from polyconv.gpu.guests import device_of, stand_in
from polyconv.problem.problem import Problem
from polyconv.problem.quantisation import QUANTITIES
from polyconv.runtime.arrays import place
from polyconv.settings import resolve as setting

if TYPE_CHECKING:
    from polyconv.dialects.call import Operator

__all__ = ["Bound"]

Array = NDArray[Any]

_HELD = ("w", "bias", *QUANTITIES)
"""What a layer takes when it is made; the other operands come with every call."""
_MOST_REMEMBERED = 256


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """An operator with constant inputs: what one set of shapes implies is found once and remembered.

    Parameters
    ----------
    operator : Operator
        What to compute.
    constants : dict
        Position to array.
    far : bool
        The weights come from memory at each call.
    varies : bool
        Extents vary from call to call.
    device : int or None
        Number of the GPU on which it computes, and on which its inputs lie.
    """

    operator: Operator
    constants: dict[int, Array]
    far: bool = False
    varies: bool = False
    device: int | None = None
    _lowered: OrderedDict[Any, Lowering] = field(default_factory=OrderedDict, repr=False)
    _layers: dict[Any, Any] = field(default_factory=dict, repr=False)
    _packed: dict[int, Any] = field(default_factory=dict, repr=False)
    _there: dict[int, Any] = field(default_factory=dict, repr=False)

    def __call__(self, *inputs: ArrayLike | None, out: Array | None = None) -> Result:
        """Compute, as the operator does; positions of constants may be None or left out."""
        operator = self.operator
        arrays = self._merged(inputs)
        lowering = self._lowering(arrays)
        layer = self._layer(lowering, arrays)
        if layer is None and self.device is None:
            return compute(operator, lowering, arrays, out)
        if layer is None:
            return compute_on_gpu(operator, [self._sent(at, a) for at, a in enumerate(inputs)], out)
        operands = operands_of(operator, lowering, arrays) if self.device is None else self._moving(inputs)
        if self.device is None and lowering.problem is not None and not lowering.problem.residual:
            layer.tell(lowering.problem)  # which its resolver would find again
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

    def _moving(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """Inputs by role."""
        return {row.role: a for row, a in zip(self.operator.row.inputs, inputs, strict=False) if a is not None}

    def _sent(self, at: int, given: Any) -> Any:
        """An input, or the constant in its place, on the GPU; sizes, and quantities of one value, stay here."""
        constant = self.constants.get(at)
        role = self.operator.row.inputs[at].role
        if constant is None or role == SIZES or (role in QUANTITIES and constant.size == 1):
            return given if constant is None else constant
        assert self.device is not None
        found = self._there.get(at)
        if found is None:
            found = self._there[at] = to_gpu(constant, self.device)
        return found

    def _merged(self, inputs: Sequence[ArrayLike | None]) -> tuple[Array | None, ...]:
        """Inputs and constants, by position; of arrays on a GPU what stands for their shapes and types."""
        merged = list(inputs) + [None] * (max(self.constants, default=-1) + 1 - len(inputs))
        if self.device is not None:
            merged = [a if device_of(a) is None else stand_in(a, "an input") for a in merged]
        for at, constant in self.constants.items():
            if merged[at] is not None:
                name = self.operator.row.inputs[at].name
                raise ArgumentError(f"{name} at position {at} is bound to a constant: give None there")
            merged[at] = constant
        return arrays_of(self.operator, merged)

    @property
    def packed_bytes(self) -> int:
        """Bytes of the constants, and of the forms in which its layers hold them."""
        given = sum(place(constant).size for constant in self.constants.values())
        held = (layer.weights if self.device is None else layer for layer in self._layers.values())
        return given + sum(int(each.packed_bytes) for each in held)

    def let_go(self) -> None:
        """Forget the weights as they were given, where the packed form of a layer has them all.

        Their constant then tells shape and type only; should they be wanted again, the layer puts them together.
        """
        layers = self._layers.values() if self.device is None else ()
        for at, layer in ((at, layer) for layer in layers for at in self.constants):
            is_shared = self.constants[at] is layer.weights.w
            if is_shared and len(self._layers) == 1 and layer.weights.let_go():
                self.constants[at] = layer.weights.w
                self._packed[at] = layer

    def _lowering(self, arrays: Sequence[Array | None]) -> Lowering:
        key = tuple(
            None if a is None else (a.shape, a.dtype, a.tobytes() if row.role == SIZES else b"")
            for at, (a, row) in enumerate(zip(arrays, self.operator.row.inputs, strict=True))
            if at not in self.constants
        )
        lowering = self._lowered.pop(key, None) or lower(self.operator, values_of(self.operator, arrays))
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
            arrays = [self._packed[at].weights.given() if at in self._packed else a for at, a in enumerate(arrays)]
            held = {r: a for r, a in operands_of(self.operator, lowering, arrays).items() if r in _HELD}
            w, bias = held.pop("w"), held.pop("bias", None)
            made = self._made(self._resolver(arrays), w, bias, held)
            layer = self._layers.setdefault(key, made)  # whoever was first, in any thread
        return layer

    def _made(self, resolve: Callable[[int, tuple[int, ...]], Problem], w: Array, bias: Array | None,
              quantities: dict[str, Array]) -> Any:  # fmt: skip
        """A layer with these weights, where this computes."""
        options, layout = self.operator.options, layout_of(self.operator)
        if self.device is None:
            from polyconv.prepared import Layer  # here, so that shape inference needs no compiler

            return Layer(resolve, w, bias, layout=layout, own=False, quantities=quantities, far=self.far,
                         varies=self.varies, **options)  # fmt: skip
        from polyconv.gpu.layer import DeviceLayer

        there = [None if a is None else to_gpu(a, self.device) for a in (w, bias)]
        stays = {name for name, a in quantities.items() if a.size == 1 or not a.any()}  # zeros are left out there
        given = {name: a if name in stays else to_gpu(a, self.device) for name, a in quantities.items()}
        return DeviceLayer(
            resolve, *there, layout=layout, accuracy=setting("accuracy", options.get("accuracy")),
            limit=setting("workspace_limit", options.get("workspace_limit")), rigor=setting("rigor"),
            quantities=given, channels_last=True,
        )  # fmt: skip

    def _resolver(self, arrays: Sequence[Array | None]) -> Callable[[int, tuple[int, ...]], Problem]:
        """How a Layer asks for the problem of other extents."""
        operator = self.operator
        values = values_of(operator, arrays)
        x = values["x"]
        layout = layout_of(operator)
        assert x.shape is not None
        channels = split(x.shape, len(x.shape) - 2, layout)[1]
        unknown = {
            r: replace(v, shape=None) for r, v in values.items() if r in ("residual", "offset", "mask")
        }

        known: Problem | None = None

        def resolve(n: int, i: tuple[int, ...]) -> Problem:
            nonlocal known
            if known is not None:
                with suppress(ArgumentError):  # which lowering says in the operator's words
                    return known.with_extents(n, i)
            sized = replace(x, shape=join(n, channels, i, layout))
            lowering = lower(operator, {**values, **unknown, "x": sized})
            problem = lowering.problem
            assert problem is not None  # constants and x are all that it depends on
            if lowering.is_alike:
                known = problem
            return problem

        return resolve
