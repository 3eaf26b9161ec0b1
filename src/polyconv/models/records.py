"""What a session tells of its program: every node, every step, and the memory of a run.

The one idea: records are plain values, made when they are asked for, and change with no later run.  It must not know
how anything runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyconv.dataclass import dataclass
from polyconv.models.program import Program
from polyconv.models.segment import ENGINE
from polyconv.models.steps import bytes_of

__all__ = ["Memory", "NodeRecord", "StepRecord", "memory_of", "nodes_of", "steps_of"]

_FOLDED, _REMOVED = "constant", "removed"


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What became of one node of the file.

    Parameters
    ----------
    name, op : str
        As in the file.
    engine : str
        ``polyconv``, ``onnxruntime``, ``onnx.reference``, ``openvino``, ``numpy``, ``constant`` for a node that is
        computed before the first run, or ``removed`` for one that need not be.
    step : int or None
        Nodes with one number run as one.
    problem : str or None
        The convolution that ran last, as ``polyconv.Problem`` spells it.
    seconds : float or None
        Time of the whole step in the last run; None before it.
    once : bool
        Whether its weights come with each run: every run prepares them, and its plan counts that.
    reason : str
        Of a node that does not run on polyconv: why not.
    device : str
        Where it runs: ``cpu``, or ``cuda:0``; empty where it does not.
    """

    name: str
    op: str
    engine: str
    step: int | None = None
    problem: str | None = None
    seconds: float | None = None
    once: bool = False
    reason: str = ""
    device: str = ""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What runs as one.

    Parameters
    ----------
    nodes, ops : tuple of str
        The nodes of the file that it stands for, and their operators.
    engine : str
        As in ``NodeRecord``.
    problem : str or None
        The convolution that ran last.
    once : bool
        Whether its weights come with each run.
    shapes : tuple
        Extents of its results; None for one that only a run tells.
    result_bytes : int or None
        Of its results; 0 where they are views of what it reads.
    held_bytes : int
        Of its constants, in all forms that are made by now.
    seconds : float or None
        Of the last run; None on a GPU, where nobody waits for a step, unless ``enable_profiling`` asks for it.
    device : str
        As in ``NodeRecord``.
    copies : bool
        Whether what it reads is copied from a GPU before, and what it makes is copied back.
    """

    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    engine: str
    problem: str | None
    once: bool
    shapes: tuple[tuple[int | str | None, ...] | None, ...]
    result_bytes: int | None
    held_bytes: int
    seconds: float | None
    device: str = "cpu"
    copies: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a session.

    Parameters
    ----------
    peak_bytes : int or None
        Of the values that are alive at once in a run by steps, at most: results and what lies between steps, without
        inputs and workspaces.  None where extents are open and no run has told them.
    node : str
        First node of the step during which they are.
    sum_bytes : int or None
        Of all values, as if each had memory of its own.
    held_bytes : int
        Of weights and other constants, in all forms that are made by now.
    replay_bytes : int
        Of what is kept from run to run once two were alike: places for what lies between steps, and the largest
        workspace.  A run that is alike takes besides its results only what steps of other engines make.
    """

    peak_bytes: int | None
    node: str
    sum_bytes: int | None
    held_bytes: int
    replay_bytes: int


def nodes_of(program: Program, seconds: Sequence[float | None]) -> tuple[NodeRecord, ...]:
    """A record for every node of the file that the results need."""
    records = [NodeRecord(node.name, node.op, _FOLDED) for node in program.folded]
    records += [NodeRecord(node.name, node.op, _REMOVED) for node in program.removed]
    for index, (step, time) in enumerate(zip(program.steps, seconds, strict=True)):
        segment = step.segment
        about = segment.engine, index, program.problem(index), time, segment.once
        reasons = {} if segment.engine == ENGINE else program.reasons
        records += [
            NodeRecord(node.name, node.op, *about, reasons.get(node, ""), segment.device) for node in step.nodes
        ]
        for inner in segment.within:
            told = nodes_of(inner, [None] * len(inner.steps))
            records += [replace(record, step=None if record.step is None else index) for record in told]
    return tuple(records)


def steps_of(program: Program, seconds: Sequence[float | None]) -> tuple[StepRecord, ...]:
    """A record for every step, in running order."""
    records, known = [], program.known
    for index, (step, time) in enumerate(zip(program.steps, seconds, strict=True)):
        segment, made = step.segment, [known[name] for name in step.writes]
        sizes = [0 if segment.views and not segment.may_copy else bytes_of(value) for value in made]
        records.append(StepRecord(
            tuple(node.name for node in step.nodes), tuple(node.op for node in step.nodes), segment.engine,
            program.problem(index), segment.once, tuple(value.dims for value in made),
            None if None in sizes else sum(size or 0 for size in sizes), program.held_bytes(index), time,
            segment.device, segment.copies,
        ))  # fmt: skip
    return tuple(records)


def memory_of(program: Program, results: Sequence[str]) -> Memory:
    """Bytes of a run for some results."""
    alive = program.alive(results)
    steps = steps_of(program, [None] * len(program.steps))
    sizes = [step.result_bytes for step in steps]
    return Memory(
        None if alive is None else alive.bytes, "" if alive is None or not steps else steps[alive.step].nodes[0],
        None if None in sizes else sum(size or 0 for size in sizes), sum(step.held_bytes for step in steps),
        program.replays.bytes,
    )  # fmt: skip
