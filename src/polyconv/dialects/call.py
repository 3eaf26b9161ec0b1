"""A row of a table turned into a callable: an ``Operator`` computes, infers shapes and binds constants.

A row says everything that is particular to an operator, and here stands what all have in common.  It must not know
the name of any operator, attribute or input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyconv.dataclass import dataclass
from polyconv.dialects import inputs as given
from polyconv.dialects.bound import Bound
from polyconv.dialects.computing import Result, any_on_gpu, compute, compute_on_gpu
from polyconv.dialects.node import Shape
from polyconv.dialects.reading import arrays_of, check_kind, described, lower, values_of
from polyconv.errors import ArgumentError, shown
from polyconv.problem.problem import Problem

if TYPE_CHECKING:
    from polyconv.dialects.rows import Row

__all__ = ["Operator"]

Array = NDArray[Any]
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
        """Compute; weights are packed for this call, unless they are those of calls before.

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
        if not all(value is None or type(value) is np.ndarray for value in inputs) and any_on_gpu(inputs):
            return compute_on_gpu(self, inputs, out)
        arrays = arrays_of(self, inputs)
        return compute(self, lower(self, values_of(self, arrays)), arrays, out)

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
        return described(self, shapes, dtypes, values).shapes

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
        return described(self, shapes, dtypes, values, absent).problem

    def bind(self, constants: Mapping[int, ArrayLike], *, far: bool = False, varies: bool = False,
             device: int | None = None) -> Bound:  # fmt: skip
        """Fix some inputs; where the weights are among them they are packed once, on first use.

        Parameters
        ----------
        constants : mapping
            Input position to array, which must not change afterwards.
        far : bool
            The weights come from memory at each call, as those of a network do that no cache holds; plans heed it.
        varies : bool
            Extents vary from call to call, as those of a network whose file leaves them open; plans heed it.
        device : int, optional
            Number of the GPU on which to compute, and on which inputs will lie; constants are copied there.

        Returns
        -------
        callable
            Takes inputs as the operator does; those of the constants' positions may be None or left out.
        """
        check_kind(constants, Mapping, "constants", "a dict from positions of inputs to arrays")
        fixed: dict[int, Array] = {}
        for at, value in constants.items():
            if not 0 <= given.whole(at, "position of a constant") < len(self.row.inputs):
                raise ArgumentError(
                    f"constants has position {shown(at)}, {self.name} has inputs 0 to "
                    f"{len(self.row.inputs) - 1}: number them in that order"
                )
            fixed[at] = given.array(value, self.row.inputs[at].name)
        return Bound(self, fixed, far=far, varies=varies, device=device)
