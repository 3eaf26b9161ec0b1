"""A group of nodes that a host runs as one, in terms that every host shares.

The one idea: a host is a function from nodes and the values they read to something that can be run on
arrays; which engine stands behind it is a name to show.  It knows no host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from polyconv.dataclass import dataclass
from polyconv.gpu.work import Work
from polyconv.models.graph import Array, Graph, Node, Value
from polyconv.operators.job import Operation, Plan
from polyconv.operators.lying import Lies

__all__ = ["ENGINE", "Again", "Chosen", "Host", "Segment"]

ENGINE = "polyconv"
"""Who runs what polyconv runs itself."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a branch does as long as its condition is the same.

    Parameters
    ----------
    condition : str
        The value that says which graph runs.
    steps : tuple
        What the steps of this graph told of themselves, as ``told.Told``.
    """

    condition: str
    steps: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Again:
    """What a segment that NumPy runs is made of, from which another process makes it again.

    Parameters
    ----------
    label : str
        How errors name its node.
    operation : Operation
        With the values of its constant inputs.
    places : tuple of (int, int)
        Which input is which of the arrays that a run passes.
    """

    label: str
    operation: Operation
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Nodes made ready to run.

    Parameters
    ----------
    engine : str
        Who runs them, for ``session.nodes``.
    outputs : tuple of Value
        What comes out, with what the engine knows of types and extents.
    run : callable
        Arrays in the order of the inputs given to the host -> arrays in the order of ``outputs``.
    problem : callable
        Text of the convolution that ran last; None where there is none.
    once : bool
        Whether its weights come with each run, so that preparing them is part of every run.
    views : bool
        Whether its results may lie in the memory of its inputs, of its constants or of each other.
    looks : bool
        Whether it does nothing but look at its only input in another way, which follows from extents alone.
    may_copy : bool
        Of one that looks: whether it copies what does not lie as its readers want it; then its memory counts.
    extents : bool
        Whether its results follow from the extents of what it reads alone.
    varies : bool
        Whether two runs on equal arrays may make others (random numbers).
    by_image : bool
        Whether each image of its results, along the first axis, follows from that image of its inputs alone, if all
        have as many and a plan for fewer images makes fewer.
    within : tuple
        Of branches and loops: the programs of their graphs.
    telling : callable or None
        Of a branch: makes of arrays what ``run`` does, and says which steps did it, which stand for its own while its
        condition is the same; None in their place if they may do otherwise the next time.
    plan : callable
        ``plan(arrays, into)``: native work that does what a run does with arrays that lie so; None where there is none.
        ``into`` says how results are to lie, and is empty where that is the segment's own matter.
    numbers : tuple of int
        Of its inputs those whose values its plan follows from; it has none while they are not known.
    settled : callable or None
        Of one with such inputs: ``settled(arrays)`` is the segment to which their values are known.
    again : Again or None
        What it is made of, if NumPy runs it.
    gaps : bool
        Whether results may be asked for that have gaps between pixels.
    ahead : callable
        Makes for arrays that lie so what a run with such would make first: plans, kernels, packed weights.
    held : callable
        Bytes of the constants that it keeps, in all forms that polyconv knows of.
    device : str
        Where it computes: ``cpu``, or ``cuda:0``.
    copies : bool
        Whether what it reads is copied from a GPU, and what it makes is copied back.
    work : callable
        Of arrays and what a run made of them: what it does on a GPU with arrays that lie so; None where there is none.
    """

    engine: str
    outputs: tuple[Value, ...]
    run: Callable[[Sequence[Array]], Sequence[Array]]
    problem: Callable[[], str | None] = lambda: None
    once: bool = False
    views: bool = False
    looks: bool = False
    may_copy: bool = False
    extents: bool = False
    varies: bool = False
    by_image: bool = False
    within: tuple[Any, ...] = ()
    telling: Callable[[Sequence[Array]], tuple[Sequence[Array], Chosen | None]] | None = None
    plan: Callable[[Sequence[Array], tuple[Lies, ...]], Plan | None] = lambda arrays, into: None
    numbers: tuple[int, ...] = ()
    settled: Callable[[Sequence[Array]], Any] | None = None
    again: Again | None = None
    gaps: bool = False
    ahead: Callable[[Sequence[Array]], object] = lambda arrays: None
    held: Callable[[], int] = lambda: 0
    device: str = "cpu"
    copies: bool = False
    work: Callable[[Sequence[Any], Sequence[Any]], Work | None] = lambda arrays, made: None


class Host(Protocol):
    """Whoever runs the nodes that are no convolutions."""

    def __call__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        inputs: Sequence[Value],
        outputs: Sequence[str],
        constants: Mapping[str, Array],
        threads: int,
    ) -> Segment:
        """Make nodes ready to run.

        Parameters
        ----------
        graph : Graph
            Which they belong to.
        nodes : sequence of Node
            In running order.
        inputs : sequence of Value
            What a run will pass, in this order.
        outputs : sequence of str
            What a run must return, in this order.
        constants : mapping
            Every other value that the nodes read.
        threads : int
            Most threads to use.

        Raises
        ------
        ModelError
            If the engine refuses a node.
        Unsupported
            If no engine at hand can run a node.
        """
        ...
