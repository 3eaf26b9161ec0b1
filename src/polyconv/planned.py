"""A plan that runs, and the layer it makes: one object from the description of a convolution to its answer.

A plan is text and numbers.  Called with arrays it computes its problem by the algorithm it names and no other; what
that cannot compute is refused, so that a plan never says one thing and does another.  It must not know how that
algorithm was chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyconv import prepared, unweighted
from polyconv.arguments import bias_of
from polyconv.causal import causal
from polyconv.dataclass import dataclass
from polyconv.dtypes import Dtype
from polyconv.errors import ArgumentError, DtypeError, Unsupported, shown
from polyconv.generated import Arrays, Kernel, kernels
from polyconv.machine.host import profile_in_force
from polyconv.names import checked
from polyconv.operands import check_weights
from polyconv.problem import plan as described
from polyconv.problem.problem import Problem
from polyconv.problem.quantisation import QUANTITIES
from polyconv.runtime.guests import as_array
from polyconv.runtime.memory import allocating
from polyconv.settings import resolve
from polyconv.shown import Shown
from polyconv.target import target

__all__ = ["Kernel", "Plan", "Prepared", "plan"]

Array = NDArray[Any]
_USUAL = {"sx": 2.0**-8, "sw": 2.0**-8, "sy": 2.0**8}
"""Scales of a layer as most are: its sums are scaled by less than one, which has kernels of its own."""


@dataclass(frozen=True, slots=True)
class Plan(described.Plan):
    __doc__ = f"""{described.Plan.__doc__}
    Examples
    --------
    >>> import numpy as np, polyconv
    >>> plan = polyconv.plan("conv f32 NCHW n1 c1 i5 m1 k3 p1")
    >>> plan(np.ones((1, 1, 5), np.float32), np.ones((1, 1, 3), np.float32))
    array([[[2., 3., 3., 3., 2.]]], dtype=float32)
    """

    @classmethod
    def of(cls, given: described.Plan) -> Plan:
        """The plan that runs, of one that describes."""
        return cls(**{row.name: getattr(given, row.name) for row in fields(given)})

    def __call__(self, x: ArrayLike, w: ArrayLike, b: ArrayLike | None = None, *, residual: ArrayLike | None = None,
                 offset: ArrayLike | None = None, mask: ArrayLike | None = None, past: ArrayLike | None = None,
                 out: Any = None, **quantities: ArrayLike) -> Any:  # fmt: skip
        """Compute the problem once; weights are packed for this call.

        Parameters
        ----------
        x, w, b, residual : array_like
            Of the problem's shapes and types; b and residual where it has them.
        offset, mask : array_like
            Of a deformable convolution.
        past : array_like, shape (n, c, k - 1), optional
            State of a causal convolution; zeros by default.
        out : writable array, optional
            Takes the result and is returned.
        **quantities
            Zero points and scales that the problem leaves to the call, as ``zx=t`` does: zx, zw, zy, sx, sw, sy, zr,
            sr, zs, ss.

        Returns
        -------
        ndarray, or (ndarray, ndarray)
            The result; of a causal convolution the result and the state for the next call.

        Raises
        ------
        ArgumentError, DtypeError
            If the arrays are not what the problem says.
        Unsupported
            If the plan's algorithm cannot compute these arrays, as weights with Inf or NaN; or if the plan was made
            for other instructions, or another machine, than this process uses.
        """
        layer = Prepared(self, w, b, quantities, own=False)
        return layer(x, residual=residual, offset=offset, mask=mask, past=past, out=out)

    def kernels(self) -> tuple[Kernel, ...]:
        """The generated code that computes the problem, to be read: nothing is compiled for it, and nothing runs.

        Returns
        -------
        tuple of Kernel
            Each with its label, role, functions, LLVM text (``ir``), ``assembly`` and file in the object cache.  They
            are those of a layer with finite weights, whose sums are scaled by less than one if by scales of the call,
            for arrays without gaps; with POLYCONV_CHECK=1 those with bounds checks.  A problem whose result is empty
            has none.

        Raises
        ------
        Unsupported
            If the plan was made for other instructions, or another machine, than this process uses.
        OutOfMemory
            If the packed weights do not fit into memory.
        """
        p = self.problem
        with allocating(f"the weights and arrays of '{p}' take more", "choose smaller sizes"):
            return kernels(_calls(self))

    def prepare(self, w: ArrayLike, b: ArrayLike | None = None, **quantities: ArrayLike) -> Prepared:
        """Fix the weights: a layer that packs them once and computes this plan for every input.

        Parameters and errors are those of a call.
        """
        return Prepared(self, w, b, quantities, own=True)


class Prepared(Shown):
    """A plan with its weights, as ``Plan.prepare`` makes it.  Safe to call from any thread.

    It takes inputs of the plan's shape; ``polyconv.Conv`` takes any, and plans for each.
    """

    __slots__ = ("_head", "_plan", "_quantities")

    def __init__(self, made_by: Plan, w: ArrayLike, b: ArrayLike | None, quantities: Mapping[str, ArrayLike], *,
                 own: bool) -> None:  # fmt: skip
        p = made_by.problem
        _check_machine(made_by)
        weights = as_array(w, "w", p.w_dtype.numpy)
        if p.bias != (b is not None):
            raise ArgumentError(_unlike(p, "b", b is not None, "b1"))
        bias = bias_of(b, p, weights)
        check_weights(p, weights, bias)
        self._plan, self._quantities = made_by, _checked_quantities(p, quantities)
        options: dict[str, Any] = {
            "layout": p.layout, "accuracy": made_by.accuracy, "threads": made_by.threads, "rigor": "estimate",
            "workspace_limit": made_by.workspace_limit, "quantities": self._quantities, "own": own, "once": not own,
        }  # fmt: skip
        self._layer = prepared.Layer(self._fitting, weights, bias, algorithm=made_by.algorithm, **options)
        self._head: prepared.Layer | None = None
        if p.op == "causal_conv":
            self._head = prepared.Layer(self._fitting, weights, bias, algorithm=_of_head(made_by), **options)

    def __call__(self, x: ArrayLike, *, residual: ArrayLike | None = None, offset: ArrayLike | None = None,
                 mask: ArrayLike | None = None, past: ArrayLike | None = None, out: Any = None) -> Any:  # fmt: skip
        """Compute the plan's problem; see ``Plan.__call__``."""
        p = self._plan.problem
        if p.residual != (residual is not None):
            raise ArgumentError(_unlike(p, "residual", residual is not None, "r1"))
        try:
            if self._head is not None:
                return causal(p, x, past, out, self._part)
            if past is not None:
                raise ArgumentError(f"past is the state of a causal_conv, the plan's problem is '{p}'; leave it out")
            return self._layer(x, residual=residual, out=out, offset=offset, mask=mask)
        except Unsupported as error:
            raise Unsupported(f"{error}; polyconv.conv and polyconv.Conv choose anew for such arrays") from None

    @property
    def problem(self) -> Problem:
        """The convolution."""
        return self._plan.problem

    @property
    def packed_bytes(self) -> int:
        """Bytes of the weights this layer owns, in all forms made so far."""
        return self._layer.packed_bytes + (0 if self._head is None else self._head.packed_bytes)

    def plan(self, shape: Sequence[int] | None = None) -> Plan:
        """The plan; the only input shape it has may be given."""
        if shape is not None and (not isinstance(shape, Sequence) or tuple(shape) != self.problem.x_shape):
            raise ArgumentError(_other_shape(self.problem, shape))
        return replace(self._plan, packed_bytes=self.packed_bytes)

    def part(self, *, is_head: bool = False) -> prepared.Layer:
        """The layer that computes it, or of a causal convolution the first outputs, which reach into the past."""
        layer = self._head if is_head else self._layer
        assert layer is not None
        return layer

    def _part(self, x: Array, y: Array, *, is_head: bool) -> object:
        return self.part(is_head=is_head)(x, out=y)

    def _fitting(self, n: int, i: tuple[int, ...]) -> Problem:
        """The problem for a batch and extents: those of the plan, or of a part of it."""
        p = self._plan.problem
        if p.op == "causal_conv":
            return replace(p, op="conv", pads=((0, 0),), n=n, i=i)
        if (n, i) != (p.n, p.i):
            raise ArgumentError(_other_shape(p, (n, *i, p.c) if p.layout == "NHWC" else (n, p.c, *i)))
        return p

    def _ran(self) -> str:
        return self._plan.algorithm

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (self._plan, self._layer.weights.w, self._layer.weights.bias, self._quantities)


def _calls(made_by: Plan) -> list[tuple[prepared.Layer, Arrays]]:
    """Layers of a plan, with weights of zeros, and the arrays with which a call of the plan calls each."""
    p = made_by.problem

    def blank(shape: Iterable[int | None], dtype: Dtype) -> Array:
        return np.zeros([int(e or 0) for e in shape], dtype.numpy)

    quantities = {
        name: np.full(p.m if form == "c" else (), _USUAL.get(name, 1), p.quantity_dtype(name).numpy)
        for name in QUANTITIES if isinstance(form := getattr(p.quantisation, name, None), str)
    }  # fmt: skip
    layer = Prepared(made_by, blank(p.w_shape, p.w_dtype), blank((p.m,), p.y_dtype) if p.bias else None, quantities,
                     own=False)  # fmt: skip
    x, y = blank(p.x_shape, p.x_dtype), blank(p.y_shape, p.y_dtype)
    calls: list[tuple[prepared.Layer, Arrays]] = []
    if not y.size:
        return calls
    if p.op == "causal_conv":

        def part(x: Array, y: Array, *, is_head: bool) -> None:
            calls.append((layer.part(is_head=is_head), (x, y, None, None, None)))

        causal(p, x, None, y, part)
        return calls
    offset = blank(p.offset_shape, p.x_dtype) if p.op == "deform_conv" else None
    mask = blank(p.mask_shape, p.x_dtype) if p.mask else None
    return [(layer.part(), (x, y, y if p.residual else None, offset, mask))]


def _of_head(made_by: Plan) -> str:
    """Algorithm of the first k - 1 outputs of a causal convolution, which are a problem of another extent."""
    p = made_by.problem
    past = p.k[0] - 1
    head = replace(p, op="conv", pads=((0, 0),), i=(past + max(1, min(past, p.i[0] or 0)),))
    return unweighted.plan(head, accuracy=made_by.accuracy, workspace_limit=made_by.workspace_limit).algorithm


def _remake(made_by: Plan, w: Array, b: Array | None, quantities: dict[str, Array]) -> Prepared:
    return Prepared(made_by, w, b, quantities, own=True)


def _check_machine(made_by: Plan) -> None:
    here = target(resolve("target")).level
    if made_by.target != here:
        raise Unsupported(
            f"the plan is for {made_by.target}, this process uses {here}; make one here: "
            f"polyconv.plan('{made_by.problem}')"
        )
    profile = profile_in_force()
    if made_by.profile != str(profile):  # its forms may be others, and with them the bits
        raise Unsupported(
            f"the plan is for the machine profile {made_by.profile}, this process uses {profile}; set POLYCONV_PROFILE "
            f"to that one, or make a plan here: polyconv.plan('{made_by.problem}')"
        )


def _unlike(p: Problem, name: str, is_given: bool, field: str) -> str:
    if is_given:
        return f"{name} is given, but the plan's problem '{p}' has none; leave it out, or plan with {field}"
    return f"{name} is missing; the plan's problem '{p}' has {field}: give it"


def _other_shape(p: Problem, shape: Any) -> str:
    return (
        f"x has shape {shown(shape)}, the plan's problem '{p}' takes {p.x_shape}; make a plan for that shape, or a "
        f"polyconv.Conv, which takes any"
    )


def _checked_quantities(p: Problem, given: Mapping[str, ArrayLike]) -> dict[str, Array]:
    """Zero points and scales as arrays, each of the form that the problem's text has for it."""
    forms = {name: getattr(p.quantisation, name, None) for name in QUANTITIES}
    at_run_time = {name: form for name, form in forms.items() if isinstance(form, str)}
    if strangers := [name for name in given if name not in at_run_time]:
        names = f"{', '.join(strangers)}: no keyword of this plan"
        raise TypeError(f"{names}, whose problem '{p}' leaves {', '.join(at_run_time) or 'nothing'} to the call")
    made = {}
    for name, form in at_run_time.items():
        if name not in given:
            raise ArgumentError(f"{name} is missing; the plan's problem '{p}' leaves it to the call: give it")
        array = as_array(given[name], name)
        if array.size != 1 if form == "t" else array.shape != (p.m,):
            needed = "one value" if form == "t" else f"shape ({p.m},), one value for each output channel"
            raise ArgumentError(f"{name} has shape {array.shape}, the plan's problem '{p}' needs {needed}")
        operand = QUANTITIES[name]
        if operand is not None:
            low, high = p.quantity_dtype(name).limits
            if array.dtype.kind not in "iu" or array.min() < low or array.max() > high:
                raise ArgumentError(f"{name}={array} must be whole numbers from {low} to {high}, the type of {operand}")
        elif array.dtype.kind not in "iuf":
            raise DtypeError(f"{name} has type {array.dtype}; give numbers, as float32")
        made[name] = np.array(array)
    return made


@checked
def plan(problem: Problem | str, *, rigor: str | None = None, accuracy: str | None = None, threads: int | None = None,
         workspace_limit: int | None = None, once: bool = False) -> Plan:  # fmt: skip
    """Plan a convolution: what will compute it, how fast and how exactly; the plan runs.

    Parameters
    ----------
    problem : Problem or str
        With known extents; a str is its text, as docs/problem-text.md describes it.
    rigor : str
        ``estimate`` chooses by arithmetic; ``measure`` and ``patient`` time the candidates on this machine,
        and every later layer of this process uses what they found.
    accuracy, threads, workspace_limit
        As for ``polyconv.conv``; the plan keeps them.
    once : bool
        Plan as ``conv`` does, where weights come anew with each call and preparing them counts, and not as for a
        layer, which prepares them for all its calls.  Nothing is measured for it.

    Returns
    -------
    Plan
        ``plan(x, w, b)`` computes, ``plan.prepare(w, b)`` makes a layer, ``print(plan)`` explains.

    Raises
    ------
    ArgumentError
        If it is no Problem nor the text of one, or its extents are unknown.
    Unsupported
        If no algorithm can compute it.

    Examples
    --------
    >>> import polyconv
    >>> polyconv.plan("conv f32 NCHW n1 c512 i56x56 m512 k3x3 p1").algorithm
    'winograd'
    """
    if isinstance(problem, str):
        problem = Problem.parse(problem)
    return Plan.of(unweighted.plan(problem, rigor=rigor, accuracy=accuracy, threads=threads,
                                   workspace_limit=workspace_limit, once=once))  # fmt: skip
