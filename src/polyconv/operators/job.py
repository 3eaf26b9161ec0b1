"""What an operator is asked and what it answers: operands that are known in part, plans of native work.

A plan says, for inputs that lie in a given way, what comes out and which jobs write it; a job is a list of steps for
the pool, each a driver with its table of words.  The one idea: a job names its operands by number, so that a plan is
made once and runs on any memory that lies alike.  It must not know one operator from another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyconv.dataclass import dataclass
from polyconv.errors import OutOfMemory
from polyconv.kernels.language import Module
from polyconv.kernels.objects import kernel
from polyconv.kernels.signature import Address, Int, Signature
from polyconv.kernels.values import Buffer
from polyconv.machine.host import profile_in_force
from polyconv.operators.finish import Finish
from polyconv.operators.lying import Array, Lies, channels_last, is_channels_last, lies, packed
from polyconv.planning.planner import threads_of, waking
from polyconv.runtime.memory import most_bytes, sized
from polyconv.runtime.threads import step_table
from polyconv.settings import spelled_bytes
from polyconv.target import Target

if TYPE_CHECKING:
    from polyconv.operators.on_gpu.launching import Launching

__all__ = [
    "MOST_OPERANDS",
    "Array",
    "Conditions",
    "Drive",
    "Job",
    "Joins",
    "Known",
    "Operation",
    "Own",
    "Plan",
    "Planner",
    "Planning",
    "Step",
    "address_of",
    "constant",
]  # fmt: skip

MOST_OPERANDS = 16
"""Operands that a job may have."""


class Drive(Signature):
    """An item of a step: the job's operands, the step's words, which item it is, and the thread's workspace."""

    frame: Buffer
    words: Buffer
    item: Int
    workspace: Buffer


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of an operand before any run.

    Parameters
    ----------
    dtype : str
        Name of a NumPy dtype; empty where unknown.
    dims : tuple or None
        Extents, each a number or None; None for an unknown rank.
    value : array or None
        Its values, where they are the same in every run.
    """

    dtype: str = ""
    dims: tuple[int | None, ...] | None = None
    value: Array | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator of ONNX's main domain as a model has it.

    Parameters
    ----------
    op : str
    version : int
        Opset.
    attributes : mapping
    inputs : tuple of Known or None
        By position; None where left out.
    outputs : int
        How many it makes.
    on_gpu : bool
        Whether it runs on a GPU, which computes with floats of 16 bits, too.
    """

    op: str
    version: int
    attributes: Mapping[str, Any]
    inputs: tuple[Known | None, ...]
    outputs: int = 1
    on_gpu: bool = False


@dataclass(frozen=True, slots=True)
class Conditions:
    """Under which plans are made: the target, most threads, and whether accesses are checked.

    With ``dry`` a plan has no jobs: only how results will lie is asked.  ``into`` says how they are to lie, where an
    operator can write them so; without it they have no gaps.  ``on_gpu`` asks for kernels of a GPU, of that
    number, whose products of f32 are as accurate as for a convolution.
    """

    target: Target
    threads: int
    check: bool
    dry: bool = False
    into: tuple[Lies, ...] = ()
    on_gpu: bool = False
    device: int = 0
    accuracy: str = "fast"


@dataclass(frozen=True, slots=True)
class Step:
    """A driver's address, its words, how many items it has, and what the words point to."""

    driver: Address[Drive]
    words: NDArray[np.int64]
    items: int
    keep: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """Steps that need nothing of each other, and the operands that their drivers find in the frame, in this order.

    Parameters
    ----------
    steps : array
        Four words each, as ``runtime.runner_text`` takes them.
    operands : tuple of (int or None)
        Numbers of a plan's arrays: inputs, results, arrays between jobs, constants; None where there is none.
    workspace : int
        Bytes each thread needs.
    threads, wake : int
        How many may share the items, and whether those that sleep are woken.
    keep : tuple
        What the words lie in.
    strict : bool
        Whether subnormal numbers count.
    table_bytes : int
        Of the words and the tables that they point to.
    """

    steps: NDArray[np.int64]
    operands: tuple[int | None, ...]
    workspace: int
    threads: int
    wake: int
    keep: tuple[Any, ...] = ()
    strict: bool = True
    table_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Joins:
    """A plan whose only result is nothing but its inputs, one behind another.

    Parameters
    ----------
    inputs : tuple of int
        Numbers of the plan's inputs, in their order in the result.
    begins : tuple of int
        The byte of the result at which each begins; of each of its pixels if they are joined ``in_pixels``.
    copies : callable
        ``copies(places)``: the jobs for those of ``inputs`` alone, if the others lie in the result already.
    in_pixels : bool
        Whether the inputs are channels that lie side by side in every pixel.
    """

    inputs: tuple[int, ...]
    begins: tuple[int, ...]
    copies: Callable[[Collection[int]], tuple[Job, ...]]
    in_pixels: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What runs for inputs that lie in a given way.

    Parameters
    ----------
    results : tuple of Lies
        What comes out, without gaps: packed, or with channels last; on a GPU in the order of an input's axes.
    between : tuple of Lies
        Arrays that one job writes and another reads.
    constants : tuple of array
    jobs : tuple of Job
        In running order.
    launches : tuple of Launching
        The same on a GPU, where there are no jobs.
    joins : Joins or None
        Where all that it does is to put its inputs behind each other.
    """

    results: tuple[Lies, ...]
    jobs: tuple[Job, ...]
    between: tuple[Lies, ...] = ()
    constants: tuple[Array, ...] = ()
    launches: tuple[Launching, ...] = ()
    joins: Joins | None = None

    @property
    def table_bytes(self) -> int:
        """Bytes of the words of its jobs, and of the tables that they point to."""
        return sum(job.table_bytes for job in self.jobs)


Planner = Callable[[Sequence[Lies], Conditions], Plan]
"""What makes plans of an operator, for inputs that lie in a given way; the inputs are those that change."""


@dataclass(frozen=True, slots=True)
class Own:
    """An operator that runs on kernels of its own.

    Parameters
    ----------
    reads : tuple of int
        Positions of the inputs that come with a run.
    dtypes : tuple of str
        NumPy's names of its results' types.
    planner : callable
    numbers : tuple of int
        Which of those inputs are numbers that plans depend on, as sizes are.
    gaps : bool
        Whether its results may lie with gaps between pixels.
    finished : callable or None
        What makes plans of it and of an element-wise pass over its result; None on a GPU.
    look : callable or None
        Its only result as its only input seen in another way, for an operator that copies only to have that packed.
    """

    reads: tuple[int, ...]
    dtypes: tuple[str, ...]
    planner: Planner
    numbers: tuple[int, ...] = ()
    gaps: bool = False
    finished: Callable[[Finish], Planner] | None = None
    look: Callable[[Array], Array] | None = None


def address_of(name: str, build: Callable[[Module, str], None], c: Conditions) -> Address[Drive]:
    """Address of a driver, which ``build(k, "drive")`` adds to a module; its name says all that shapes it."""
    return kernel(name, {"drive": Drive}, lambda k: build(k, "drive"), c.target, check=c.check)["drive"]


class Planning:
    """A plan that grows: arrays by number, and jobs that name them."""

    def __init__(self, given: Sequence[Lies], c: Conditions) -> None:
        self.c = c
        self._kinds = ["input"] * len(given)
        self._lies = list(given)
        self._arrays: dict[int, Array] = {}
        self._repeated: dict[int, tuple[int, int]] = {}
        self._jobs: list[Job] = []
        self._launches: list[Launching] = []

    def _new(self, kind: str, lie: Lies) -> int:
        self._kinds.append(kind)
        self._lies.append(lie)
        return len(self._lies) - 1

    def result(self, shape: Sequence[int], dtype: Any, *, alike: bool = True) -> int:
        """The next thing that comes out; if it is to be ``alike``, in the order of axes that an input has in memory.

        Raises
        ------
        OutOfMemory
            If it is larger than what this machine lends one tensor.
        """
        at = self._kinds.count("result")
        lie = self.c.into[at] if self.c.into else self._new_lie(shape, dtype, alike=alike)
        if lie.size > most_bytes():
            raise OutOfMemory(f"{sized('a result', lie.shape, lie.dtype)}, more than one tensor may have on this "
                              f"machine, {spelled_bytes(most_bytes())}; run smaller inputs")  # fmt: skip
        return self._new("result", lie)

    def between(self, shape: Sequence[int], dtype: Any, *, alike: bool = True) -> int:
        """An array that one job writes and another reads; see ``result``."""
        return self._new("between", self._new_lie(shape, dtype, alike=alike))

    def _new_lie(self, shape: Sequence[int], dtype: Any, *, alike: bool) -> Lies:
        """How a new array will lie."""
        lie = packed(shape, dtype)
        inputs = (x for x, kind in zip(self._lies, self._kinds, strict=True) if kind == "input")
        given = [x for x in inputs if len(x.shape) == len(shape)]
        if not given or not alike:
            return lie
        if not self.c.on_gpu:
            largest = max(given, key=lambda x: math.prod(x.shape))
            return channels_last(shape, dtype) if is_channels_last(largest) else lie
        like = given[0]
        from polyconv.operators.on_gpu.launching import in_order  # here, as on a CPU no kernel of a GPU is needed

        return replace(lie, strides=in_order(shape, like.strides, lie.dtype.itemsize))

    def constant(self, array: Array) -> int:
        """An array that is the same in every run."""
        number = self._new("constant", lies(array))
        self._arrays[number] = array
        return number

    def repeated(self, number: int, times: int) -> int:
        """A constant with the elements of another so many times behind each other."""
        made = self.constant(np.tile(self._arrays[number].reshape(-1), times))
        self._repeated[made] = number, times
        return made

    def origins(self) -> tuple[tuple[int, int], ...]:
        """Of each constant: the number that it is, or that it repeats, among those that were given, and how often."""
        given = {number: at for at, number in enumerate(n for n in self._arrays if n not in self._repeated)}
        return tuple((given[source], times) for source, times in (self._repeated.get(n, (n, 1)) for n in self._arrays))

    def array(self, number: int) -> Array | None:
        """The values of an array that is the same in every run; None of any other."""
        return self._arrays.get(number)

    def lie(self, number: int) -> Lies:
        """How an array lies."""
        return self._lies[number]

    def job(self, steps: Callable[[int], Sequence[Step]], operands: Sequence[int], cycles: float, workspace: int = 0,
            *, kernels: Callable[[], Sequence[Launching]] | None = None) -> None:  # fmt: skip
        """Append a job that takes so many cycles on one thread, or the kernels that do it on a GPU.

        Parameters
        ----------
        steps : callable
            ``steps(threads)``: what it does, cut for so many threads.
        operands : sequence of int
            The arrays that its drivers find in the frame, in this order.
        cycles : float
        workspace : int
            Bytes each thread needs.
        kernels : callable, optional
            On a GPU in the place of all this; callers without them ask for no job there.
        """
        assert len(operands) <= MOST_OPERANDS
        if self.c.dry:
            return
        if self.c.on_gpu:
            assert kernels is not None
            self.launch(kernels)
            return
        profile = profile_in_force()
        seconds = cycles / profile.clock
        threads = threads_of(self.c.threads, None, seconds, workspace)
        made = steps(threads)
        threads = min(threads, max(1, sum(step.items for step in made)))
        tables = sum(a.nbytes for step in made for a in (step.words, *step.keep) if isinstance(a, np.ndarray))
        self._jobs.append(Job(step_table(made), tuple(operands), workspace, threads, waking(profile, seconds),
                              tuple((step.words, step.keep) for step in made), table_bytes=tables))  # fmt: skip

    def launch(self, kernels: Callable[[], Sequence[Launching]]) -> None:
        """Append kernels of a GPU."""
        if not self.c.dry:
            self._launches += kernels()

    def plan(self) -> Plan:
        """What has grown."""
        kinds = ("input", "result", "between", "constant")
        order = sorted(range(len(self._kinds)), key=lambda n: kinds.index(self._kinds[n]))
        places = {number: at for at, number in enumerate(order)}
        jobs = tuple(
            replace(job, operands=tuple(None if n is None else places[n] for n in job.operands)) for job in self._jobs
        )
        launches = tuple(
            replace(one, operands=tuple((places[n], offset) for n, offset in one.operands)) for one in self._launches
        )

        def of(kind: str) -> tuple[Lies, ...]:
            return tuple(lie for lie, k in zip(self._lies, self._kinds, strict=True) if k == kind)

        return Plan(of("result"), jobs, of("between"), tuple(self._arrays.values()), launches)


def constant(given: Known | None) -> Array | None:
    """The values of an operand that is the same in every run; None if it is none."""
    return None if given is None else given.value
