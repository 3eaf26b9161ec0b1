"""Recurrent layers (LSTM, GRU, RNN): what a step adds to its gates from the state before, and the state after it.

The products of inputs and weights are one convolution over all steps and come as they are; a step multiplies the state
h by R and applies the gates. With r, z and the others sigmoids of their sums,

    LSTM   c' = f c + i tanh(g),               h' = o tanh(c')
    GRU    h' = (1 - z) tanh(x + r R h) + z h
    RNN    h' = tanh(x + R h)

The one idea: the gates of some states stand side by side in registers, so that a pass over R makes their sums, and
their next states follow at once.  It must not know where the sums of inputs come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.errors import ArgumentError
from polyconv.kernels import mathfn
from polyconv.kernels.convert import LLVM_NAMES
from polyconv.kernels.language import INT, Module, Type, Value, vector
from polyconv.kernels.record import Record, Word, at_once, filled
from polyconv.kernels.values import Buffer
from polyconv.machine.host import profile_in_force
from polyconv.operators.functions import FUNCTIONS
from polyconv.operators.job import Array, Conditions, Drive, Operation, Own, Plan, Planning, Step, address_of, constant
from polyconv.operators.lying import Lies
from polyconv.operators.moving import as_packed
from polyconv.operators.rows import each_vector, read, write
from polyconv.operators.types import dtype_name

__all__ = ["GATES", "UNITS", "Cell", "drive", "recurrence"]

GATES: Mapping[str, int] = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Kind -> gates of a state: input, output, forget and cell; update, reset and hidden; the hidden one."""

UNITS = 16
"""The states of a direction are padded to a multiple of it: elements of the widest vector."""

_BESIDE = 4
"""Registers for other things than sums of gates."""


@dataclass(frozen=True, slots=True)
class Cell:
    """All that shapes the code of a layer.

    Parameters
    ----------
    kind, dtype : str
    direction : str
        ``forward``, ``reverse`` or ``bidirectional``.
    block, rest : int
        Vectors of states whose gates are summed together, and those of the last block.
    lanes : int
    masks : bool
    given : str
        What comes with a run: ``h`` and ``c``, states before the first step, which are 0 else; ``l``, lengths of
        sequences.
    """

    kind: str
    dtype: str
    direction: str
    block: int
    rest: int
    lanes: int
    masks: bool
    given: str

    def __str__(self) -> str:
        return f"{self.kind} {self.dtype} {self.direction} {self.block} {self.rest} {self.given}"


def recurrence(operation: Operation) -> Own | str:
    """``Recurrence(gates, x, R, bias, lengths, h, c)`` -> all states, the last h and an LSTM's last c; or why not.

    ``gates`` is ``[1, T B, D G H']``: for each of T steps of B sequences what inputs and biases give the G gates of the
    H states of D directions, padded to H'.  ``x``, ``[T, B, ...]``, says only how many steps there are.  ``R`` is
    ONNX's, ``bias`` what is added to ``R h`` of a GRU's hidden gate; states before the first step may be left out, and
    so may the lengths of sequences: states behind an end are 0, and what goes backwards begins there.
    """
    kind, direction = (str(operation.attributes.get(name)) for name in ("kind", "direction"))
    gates, x, r, bias, lengths, *states = (*operation.inputs, None, None, None)[:7]
    held = constant(r), constant(bias)
    if gates is None or x is None or held[0] is None or kind not in GATES or operation.on_gpu:
        return "it takes gates, inputs and constant weights, on a CPU"
    if lengths is not None and lengths.dtype != "int32":
        return "lengths of sequences are numbers of i32"
    dtype = dtype_name(gates.dtype) or ""
    if not dtype or not DTYPES[dtype].is_float or any(s is not None and s.dtype != gates.dtype for s in states):
        return "it is computed for floats of 32 and 64 bits"
    present = [at for at, given in enumerate(operation.inputs) if given is not None]
    reads = tuple(at for at in present if at not in (2, 3) and constant(operation.inputs[at]) is None)
    fixed = {at: constant(operation.inputs[at]) for at in present if at >= 4}
    packed: dict[tuple[int, int], Array] = {}

    def planned(given: Sequence[Lies], c: Conditions) -> Plan:
        planning = Planning(given, c)
        numbers = {at: number for number, at in enumerate(reads)}
        others = [
            numbers.get(at, None if (array := fixed.get(at)) is None else planning.constant(array)) for at in (4, 5, 6)
        ]
        assert held[0] is not None
        _plan(planning, kind, direction, dtype, (held[0], held[1]), others, packed)
        return planning.plan()

    return Own(reads, (gates.dtype,) * (3 if kind == "LSTM" else 2), planned)


def _plan(planning: Planning, kind: str, direction: str, dtype: str, held: tuple[Array, Array | None],
          others: Sequence[int | None], packed: dict[tuple[int, int], Array]) -> None:  # fmt: skip
    """Add the results of a layer and the job that makes them."""
    r, bias = held
    directions, _, states = r.shape
    gates, c, size = GATES[kind], planning.c, DTYPES[dtype].itemsize
    if len(planning.lie(1).shape) != 3:
        raise ArgumentError(f"the input has the shape {planning.lie(1).shape}, not one of steps, sequences and numbers")
    steps, batch, _ = planning.lie(1).shape
    padded = -(-states // UNITS) * UNITS
    wanted = (1, steps * batch, directions * gates * padded)
    if planning.lie(0).shape != wanted:
        raise ArgumentError(f"the gates have the shape {planning.lie(0).shape}, not {wanted}")
    kept = 2 if kind == "LSTM" else 1
    given = dict(zip("lhc"[: 1 + kept], others, strict=False))
    for word, number in given.items():
        expected = (batch,) if word == "l" else (directions, batch, states)
        if number is not None and planning.lie(number).shape != expected:
            what = "lengths of sequences have" if word == "l" else "a state before the first step has"
            raise ArgumentError(f"{what} the shape {planning.lie(number).shape}, not {expected}")
    results = [planning.result((steps, directions, batch, states), DTYPES[dtype].numpy, alike=False)]
    results += [planning.result((directions, batch, states), DTYPES[dtype].numpy, alike=False) for _ in range(kept)]
    if not batch or not states:
        return
    lanes = c.target.vector_bytes // size
    vectors = padded // lanes
    blocks = -(-vectors // max(1, (c.target.registers - _BESIDE) // gates))
    block = -(-vectors // blocks)
    rest = vectors - (blocks - 1) * block
    words_given = "".join(word for word, number in given.items() if number is not None)
    spec = Cell(kind, dtype, direction, block, rest, lanes, c.target.has_masks, words_given)
    form = block, lanes
    if form not in packed:
        packed[form] = _packed(r, gates, padded, block, lanes)
    weights = planning.constant(packed[form])
    beside = np.zeros((directions, padded), DTYPES[dtype].numpy)
    if bias is not None:
        beside[:, :states] = bias
    state = planning.between((directions * batch, 3, padded), DTYPES[dtype].numpy, alike=False)
    before = [results[0] if (n := given.get(word)) is None else as_packed(planning, n) for word in "lhc"]
    operands = [as_packed(planning, 0), weights, planning.constant(beside), state, *before, *results]
    keep: list[object] = []
    words = filled(_Recurring(
        steps=steps, batch=batch, directions=directions, states=states, padded=padded, blocks=blocks - 1,
    ), keep)  # fmt: skip

    def steps_of(threads: int) -> list[Step]:
        driver = address_of(f"recurrence {spec}", lambda k, name: drive(k, name, spec), c)
        return [Step(driver, words, directions * batch, tuple(keep))]

    planning.job(steps_of, operands, directions * batch * steps * _cycles(states, gates, vectors, lanes * size))


def _cycles(states: int, gates: int, vectors: int, vector_bytes: int) -> float:
    """About the cycles of a step: R comes from the cache that holds it."""
    profile, loads = profile_in_force(), states * gates * vectors
    level = next((level for level in ("l1", "l2") if loads * vector_bytes <= profile.cache(level, 1.0)), "l3")
    functions = vectors * (gates + 1) * FUNCTIONS["Tanh"].cycles
    return loads * max(0.5, vector_bytes / profile.stream(level, 1.0)) + functions


def _packed(r: Array, gates: int, padded: int, block: int, lanes: int) -> Array:
    """R as it is read: of a block of states, for each state before, the gates of each vector of states side by side."""
    directions, _, states = r.shape
    whole = np.zeros((directions, gates, padded, states), r.dtype)
    whole[:, :, :states] = r.reshape(directions, gates, states, states)
    by_vector = whole.reshape(directions, gates, padded // lanes, lanes, states).transpose(0, 2, 4, 1, 3)
    parts = [
        by_vector[:, first : first + block].transpose(0, 2, 3, 1, 4).reshape(directions, -1)
        for first in range(0, padded // lanes, block)
    ]
    return np.ascontiguousarray(np.concatenate(parts, axis=1))


class _Recurring(Record):
    """Words of the driver: extents, and how many blocks of states there are before the last one."""

    steps: Word
    batch: Word
    directions: Word
    states: Word
    padded: Word
    blocks: Word


@dataclass(frozen=True, slots=True)
class _Places:
    """Where a step of a sequence reads: gates, R, the bias of ``R h``, the state h, and where h and c are written."""

    gates: Buffer
    weights: Buffer
    bias: Buffer
    before: Buffer
    after: Buffer
    cells: Buffer


def drive(k: Module, name: str, spec: Cell) -> None:
    """Add the driver; an item is a sequence in a direction."""
    kind = vector(LLVM_NAMES[spec.dtype], spec.lanes)
    size, gates = kind.element_bytes, GATES[spec.kind]
    with k.function(name, Drive) as given:
        w = at_once(_Recurring.read(k, given.words))
        count = 10 if spec.kind == "LSTM" else 9
        x, weights, bias, state, lengths, h0, c0, y, *last = (k.buffer(given.frame, 2 * at) for at in range(count))
        direction, sequence = given.item // w.batch, given.item % w.batch
        row = w.padded * size
        state = state + given.item * (3 * row)
        cells = state + 2 * row
        for place, before, word in ((state, h0, "h"), (cells, c0, "c")):
            _cleared(k, kind, place, w.padded, spec.masks)
            if word in spec.given:
                _copied(k, kind, before + given.item * (w.states * size), place, w.states, spec.masks)
        of_direction = direction * (w.states * gates * row)
        is_back = direction.equals(1 if spec.direction == "bidirectional" else 0)
        steps = w.steps
        if "l" in spec.given:
            length = k.cast("sext", k.load(Type("i32"), lengths + sequence * 4), INT)
            steps = k.maximum(k.minimum(length, steps), 0)
        with k.loop(0, steps, carry=[state, state + row]) as step:
            h, following = step.values
            number = step.index
            if spec.direction != "forward":
                number = k.select(is_back, steps - 1 - number, number)
            line = (number * w.batch + sequence) * w.directions + direction
            at = _Places(x + line * (gates * row), weights + of_direction, bias + direction * row, h, following, cells)
            _all_states(k, spec, kind, at, w, (step.index & 1).equals(1))
            target = (number * w.directions + direction) * w.batch + sequence
            _copied(k, kind, following, y + target * (w.states * size), w.states, spec.masks)
            step.next(following, h)
        with k.loop(steps, w.steps) as rest:  # behind the end of a sequence
            target = (rest.index * w.directions + direction) * w.batch + sequence
            _cleared(k, kind, y + target * (w.states * size), w.states, spec.masks)
        for now, into in zip((step.results[0], cells), last, strict=False):
            _copied(k, kind, now, into + given.item * (w.states * size), w.states, spec.masks)


def _cleared(k: Module, kind: Type, target: Buffer, elements: Value, masks: bool) -> None:
    size = kind.element_bytes
    each_vector(
        k, kind, 0, elements, masks,
        lambda at, type_, mask: write(k, k.constant(type_, 0.0), target + at * size, mask),
    )  # fmt: skip


def _copied(k: Module, kind: Type, source: Buffer, target: Buffer, elements: Value, masks: bool) -> None:
    size = kind.element_bytes
    each_vector(
        k, kind, 0, elements, masks,
        lambda at, type_, mask: write(k, read(k, type_, source + at * size, mask), target + at * size, mask),
    )  # fmt: skip


def _all_states(k: Module, spec: Cell, kind: Type, at: _Places, w: _Recurring, is_back: Value) -> None:
    """A step: blocks of states, the last of which may have fewer vectors.

    Every other step goes from the last block to the first, so that a cache that cannot hold all of R has the part that
    the step before it read last.
    """
    gates, some = GATES[spec.kind], spec.block * kind.bytes
    part = w.states * (gates * some)

    def last_block() -> None:
        _states(k, spec, kind, at, at.weights + w.blocks * part, w.blocks * some, spec.rest, w)

    with k.when(is_back):
        last_block()
    with k.loop(0, w.blocks) as each:
        block = k.select(is_back, w.blocks - 1 - each.index, each.index)
        _states(k, spec, kind, at, at.weights + block * part, block * some, spec.block, w)
    with k.when(is_back.equals(0)):
        last_block()


def _states(k: Module, spec: Cell, kind: Type, at: _Places, weights: Buffer, first: Value, count: int,
            w: _Recurring) -> None:  # fmt: skip
    """The next states of some vectors."""
    gates, row = GATES[spec.kind], w.padded * kind.element_bytes
    of_inputs = [
        [k.load(kind, at.gates + g * row + first + u * kind.bytes) for u in range(count)] for g in range(gates)
    ]
    sums = [value for gate in of_inputs for value in gate]
    if spec.kind == "GRU":
        sums[2 * count :] = [k.load(kind, at.bias + first + u * kind.bytes) for u in range(count)]
    with k.loop(0, w.states, carry=sums) as each:
        state = k.broadcast(kind, at.before + each.index * kind.element_bytes)
        line = weights + each.index * (gates * count * kind.bytes)
        each.next(*(k.fma(state, k.load(kind, line + n * kind.bytes), total) for n, total in enumerate(each.values)))
    for u in range(count):
        summed = [each.results[g * count + u] for g in range(gates)]
        place = first + u * kind.bytes
        if spec.kind == "LSTM":
            into, out, forget = (_sigmoid(k, total) for total in summed[:3])
            cell = k.fma(forget, k.load(kind, at.cells + place), into * _tanh(k, summed[3]))
            k.store(cell, at.cells + place)
            found = out * _tanh(k, cell)
        elif spec.kind == "GRU":
            update, reset = (_sigmoid(k, total) for total in summed[:2])
            hidden = _tanh(k, k.fma(reset, summed[2], of_inputs[2][u]))
            found = k.fma(update, k.load(kind, at.before + place) - hidden, hidden)
        else:
            found = _tanh(k, summed[0])
        k.store(found, at.after + place)


def _sigmoid(k: Module, value: Value) -> Value:
    return mathfn.apply(k, "Sigmoid", value, ())


def _tanh(k: Module, value: Value) -> Value:
    return mathfn.apply(k, "Tanh", value, ())
