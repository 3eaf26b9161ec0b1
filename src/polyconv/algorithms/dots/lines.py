"""Depthwise convolutions of bytes over channels-first maps, by dot products along their lines.

Lanes are pixels.  A plane's lines are copied to a panel with their padding round them, which stays there for all
channels of an item; words of four neighbouring pixels then meet the taps where they lie.  Rows of narrow maps share
vectors.  Arrays whose pixels do not lie together are left to ``depthwise``.
Cost: a dot product for each four taps of a line and vector of words, what follows the sums, and copying the lines.
Exact: sums are taken modulo 2^32; zero points as in ``situations``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyconv.algorithms.dots import depthwise
from polyconv.algorithms.dots.dense import DenseForm
from polyconv.algorithms.dots.situations import integer_refusal as no_dots
from polyconv.algorithms.dots.situations import narrow_arithmetic, padding_of, with_bias
from polyconv.algorithms.form import Form, Forms, Refusal
from polyconv.dataclass import dataclass
from polyconv.kernels.dots_lines import BYTES_OF_A_WORD, ByteLines, DotLines, dot_lines
from polyconv.kernels.isa import ARITHMETIC, lanes
from polyconv.kernels.language import Buffer, Module, Value, vector
from polyconv.kernels.record import Function, Memory, Record, Word, filled, words
from polyconv.kernels.signature import Address
from polyconv.lowering.boxes import boxed_words, boxes
from polyconv.lowering.panel import Common, Driver, EpilogueTables, axis_words, decode
from polyconv.lowering.program import Program, Request, Step, address_of, epilogue_tables
from polyconv.lowering.situation import Situation
from polyconv.lowering.sweep import Axis, Lines, Sweep, sweeps
from polyconv.lowering.traffic import far_cycles

__all__ = ["LinesForm", "forms"]

_MOST_LINES, _MOST_WORDS = 7, 2
"""Most lines that taps meet, and words of weights of a line: a kernel has code for each of them."""
_STRIDES = (1, 2, 4)
_MOST_DOWN = 4
"""Largest stride from line to line."""
_NARROW = (16, 32)
"""Bytes of the lines of a panel of which a vector holds several."""
_PANEL_SHARE, _CHUNK_SHARE = 1 / 2, 1 / 8
"""Of the first-level cache, for a panel; of the second-level one, for the input of an item's channels."""


class LineWords(Record):
    """The driver's words.

    A panel of ``panel_bytes`` has the lines of each residue modulo the stride together, ``residue_bytes`` from those of
    the next; the input's columns from ``column`` on, so many ``pixels``, lie at byte ``left`` of its lines.  The input
    has so many ``channels`` of which an item takes ``chunk_channels``; each has ``multiple`` results.
    """

    common: Common
    channels: Word
    chunk_channels: Word
    multiple: Word
    panel_bytes: Word
    line_bytes: Word
    residue_bytes: Word
    residue_lines: Word
    column: Word
    pixels: Word
    left: Word
    padding: Word
    offsets: Memory
    group: Word
    weights: Memory
    w_channel: Word
    vectors: Word
    last: Word
    tables: EpilogueTables
    rows: Function[ByteLines]


def driver(k: Module, name: str, vector_bytes: int, stride: int, is_signed: bool) -> None:
    """Add the driver to a module: an item is a band of rows of some channels."""
    kind = vector("i8", vector_bytes)
    with k.function(name, Driver) as given:
        frame, p = given.frame, LineWords.read(k, given.words)
        c, tables = p.common, p.tables
        item = decode(k, c, given.item, given.workspace)
        panel = given.workspace + c.panel
        padding = k.splat(k.cast("trunc", p.padding, kind.scalar), vector_bytes)
        with k.loop(0, p.panel_bytes, vector_bytes) as at:
            k.store(padding, panel + at.index)
        down = axis_words(c, 0)
        origin, rest = item.origin(0), p.pixels % vector_bytes
        full, mask = p.pixels - rest, k.mask(rest, vector_bytes)
        inside = [_inside(k, p, origin + residue, down.inp, stride) for residue in range(stride)]

        def moved(value: Value) -> Value:
            return value ^ k.splat(k.constant(kind.scalar, -128), vector_bytes) if is_signed else value

        def copy(plane: Buffer) -> None:
            """Bring the lines of a plane."""
            for residue, (low, high) in enumerate(inside):
                source = plane + (origin + residue + low * stride) * down.x_stride
                target = panel + (residue * p.residue_bytes + low * p.line_bytes + p.left)
                with k.loop(low, high, carry=[source, target]) as line:
                    come, go = line.values
                    with k.loop(0, full, vector_bytes) as at:
                        k.store(moved(k.load(kind, come + at.index)), go + at.index)
                    with k.when(rest > 0):
                        k.store_first(moved(k.load_first(kind, come + full, mask)), go + full, mask)
                    line.next(come + down.x_stride * stride, go + p.line_bytes)

        first = item.g * p.chunk_channels
        x = frame.x + (c.x_base + item.n * c.x_n + p.column)
        y = frame.y + (c.y_base + item.n * c.y_n + item.first(0) * down.y_stride)
        with k.loop(first, k.minimum(first + p.chunk_channels, p.channels)) as channel:
            copy(x + channel.index * c.x_c)
            with k.loop(0, p.multiple) as number:
                m = channel.index * p.multiple + number.index
                k.call(p.rows, ByteLines(
                    panel, p.group, p.offsets, p.weights + m * p.w_channel, y + m * c.y_c, down.y_stride,
                    item.extent(0), p.vectors, p.last, tables.bias, tables.scale, tables.constants, m,
                ))  # fmt: skip


def _inside(k: Module, p: LineWords, origin: Value, height: Value, stride: int) -> tuple[Value, Value]:
    """Lines of a residue that lie inside the input: the first, and the one behind the last."""
    low = k.minimum(k.maximum(stride - 1 - origin, 0) // stride, p.residue_lines)
    high = k.minimum(k.maximum(height - origin + (stride - 1), 0) // stride, p.residue_lines)
    return low, k.maximum(low, high)


def forms(s: Situation) -> Forms:
    """The form of a situation, or why there is none."""
    p = s.problem
    if (reason := _refusal(s)) is not None:
        return reason
    (sweep,) = sweeps(p)
    down, along = sweep
    if along.stride not in _STRIDES or along.dilation > 1 or -(-along.taps // BYTES_OF_A_WORD) > _MOST_WORDS:
        return f"computes up to {_MOST_WORDS * BYTES_OF_A_WORD} taps along a line, strides of 1, 2 and 4, no dilation"
    if not 0 < down.taps <= _MOST_LINES or down.stride > _MOST_DOWN or not along.taps:
        return f"computes up to {_MOST_LINES} lines of taps, with strides up to {_MOST_DOWN} from one to the next"
    return (_form(s, sweep),)


def _refusal(s: Situation) -> Refusal | None:
    """Why a problem is none of depthwise planes of bytes; None if it is one."""
    p = s.problem
    if (reason := no_dots(s)) is not None:
        return reason
    if narrow_arithmetic(s).name != "u8s8":
        return "multiplies bytes by dot products, which need a CPU that has them and weights that are numbers of i8"
    if p.op != "conv" or p.rank != 2 or p.layout != "NCHW" or p.c != p.groups or not p.c:
        return "computes channels-first maps, one channel a group"
    if p.residual or p.y not in ("i8", "u8", "i32"):
        return "stores bytes and sums of i32, and adds no residual"
    return None


@dataclass(frozen=True, slots=True)
class LinesForm(Form):
    """Bands of lines of a plane, in a panel.

    Parameters
    ----------
    sweep : Sweep
    band : int
        Rows of outputs of an item.
    together : int
        Rows of outputs that share a vector.
    line_bytes : int
        Of the panel.
    chunk : int
        Channels of an item.
    """

    sweep: Sweep
    band: int
    together: int
    line_bytes: int
    chunk: int

    @property
    def arithmetic(self) -> str:
        """Bytes by bytes."""
        return "u8s8"

    @property
    def workspace(self) -> int:
        """Bytes a thread needs: the item's box and the panel."""
        return _HEADER + _panel_bytes(self.s, self.sweep[0], self.band, self.line_bytes)

    @property
    def vectors(self) -> int:
        """Vectors of a row of outputs."""
        last = self.sweep[-1]
        return 1 if self.together > 1 else max(1, -(-last.out * last.stride // self.s.target.vector_bytes))

    def cost(self) -> dict[str, float]:
        """Cycles: the products or their loads, which mostly cross lines of the cache, what follows sums, and copying.

        The constants are those of 60 layers on a Zen 5, all within a quarter.
        """
        s, p, (down, along) = self.s, self.s.problem, self.sweep
        rates = s.rates(ARITHMETIC["u8s8"])
        sums = BYTES_OF_A_WORD // along.stride
        taps = down.taps * -(-along.taps // BYTES_OF_A_WORD) * sums
        steps = -(-down.out // self.together) * self.vectors
        of_step = taps * max(1 / rates.multiply_adds, 1.95 / rates.loads) + 0.6 * sums + 1.5 + 1.3 * self.together
        lines = min(down.inp, _lines(down, down.out))
        copied = lines * (2.5 + 1.7 * -(-along.inp // s.target.vector_bytes))
        channels = (p.n or 0) * p.c
        return {
            "products": channels * (p.m // p.c) * (steps * of_step + 15.0),
            "moves": channels * (copied + 15.0) + far_cycles(s, channels * down.inp * along.inp),
        }

    def choices(self) -> dict[str, object]:
        """How planes are cut."""
        return {"rows of a band": self.band, "rows of a vector": self.together, "channels of an item": self.chunk}

    def build(self, r: Request) -> Program:
        """Program of a request."""
        if r.x.spatial[-1] != 1 or r.y.spatial[-1] != r.y.itemsize:
            found = depthwise.forms(r.situation)
            return (DenseForm.of(r.situation, r.arith) if isinstance(found, Refusal) else next(iter(found))).build(r)
        keep: list[Any] = []
        step = _step(r, self, keep)
        return Program((step,) if step.items else (), self.workspace, tuple(keep))


_HEADER = 64
"""Bytes before the panel, for the item's box."""


def _form(s: Situation, sweep: Sweep) -> LinesForm:
    p, (down, along), size = s.problem, sweep, s.target.vector_bytes
    held = max(0, along.out - 1) * along.stride + along.taps
    narrow = next((n for n in _NARROW if held <= n <= size // 2), 0)
    line_bytes = narrow or -(-held // size) * size
    budget = s.budget(s.profile.cache("l1", _PANEL_SHARE))
    (band,) = boxes((down.out,), lambda box: _panel_bytes(s, down, box[0], line_bytes), budget)
    chunk = min(p.c, max(1, s.cache("l2", _CHUNK_SHARE) // max(1, down.inp * along.inp)))
    if s.threads > 1:
        bands = (p.n or 0) * -(-down.out // band) if band else 1
        chunk = min(chunk, max(1, p.c * bands // (4 * s.threads)))
    return LinesForm(s, sweep, band, size // narrow if narrow else 1, line_bytes, chunk)


def _lines(down: Axis, rows: int) -> int:
    """Lines of the input that so many rows of outputs meet."""
    return max(0, rows - 1) * down.stride + (down.taps - 1) * down.dilation + 1


def _panel_bytes(s: Situation, down: Axis, band: int, line_bytes: int) -> int:
    """Bytes of a panel, with what vectors read behind its last line."""
    lines = -(-_lines(down, band) // down.stride) * down.stride
    return -(-(lines * line_bytes) // s.target.vector_bytes) * s.target.vector_bytes + 3 * s.target.vector_bytes


def _step(r: Request, form: LinesForm, keep: list[Any]) -> Step:
    p, (down, along), padding = r.problem, form.sweep, padding_of(r)
    is_signed, size = p.x == "i8", r.target.vector_bytes
    w = r.weights(form.sweep)
    r = with_bias(r, w, padding)
    spec = DotLines(
        p.y, r.epilogue, down.taps, -(-along.taps // BYTES_OF_A_WORD), along.stride, form.together,
    )  # fmt: skip
    address = address_of(
        r, f"dot lines {down.stride} {is_signed}", "dot_lines", Driver,
        lambda k, name: driver(k, name, size, down.stride, is_signed),
    )  # fmt: skip
    key = ("dots_lines", tuple((a.taps, a.first_tap, a.tap_step) for a in form.sweep))
    common, items = boxed_words(
        r, form.sweep, (form.band, max(1, along.out)), [Lines((), (), ())] * 2, block_groups=form.chunk, panel=_HEADER,
    )  # fmt: skip
    residue_lines = -(-_lines(down, form.band) // down.stride)
    residue_bytes = residue_lines * form.line_bytes
    met = [t * down.dilation for t in range(down.taps)]
    column, left = max(0, -along.pad), max(0, along.pad)
    results = size // along.stride
    values = LineWords(
        common=common, channels=p.c, chunk_channels=form.chunk, multiple=p.m // p.c,
        panel_bytes=_panel_bytes(r.situation, down, form.band, form.line_bytes), line_bytes=form.line_bytes,
        residue_bytes=residue_bytes, residue_lines=residue_lines, column=column,
        pixels=max(0, min(along.inp - column, form.line_bytes - left)), left=left, padding=padding,
        offsets=words([tap % down.stride * residue_bytes + tap // down.stride * form.line_bytes for tap in met]),
        group=form.together * form.line_bytes, weights=r.packed(key, lambda: _packed(w, down.taps)),
        w_channel=spec.lines * spec.words * BYTES_OF_A_WORD, vectors=form.vectors,
        last=along.out - (form.vectors - 1) * results, tables=epilogue_tables(r), rows=_rows(r, spec),
    )  # fmt: skip
    return Step(address, filled(values, keep), items)


def _rows(r: Request, spec: DotLines) -> Address[ByteLines]:
    """Address of the kernel for a plane's rows."""

    def make(k: Module, name: str) -> None:
        dot_lines(k, name, spec, lanes(r.target, ARITHMETIC["u8s8"]))

    return address_of(r, f"{spec}", "rows", ByteLines, make)


def _packed(w: NDArray[Any], lines: int) -> NDArray[Any]:
    """Weights (c, m/c, 1, taps) as [m][line][tap along it], lines rounded up to whole words."""
    taps = w.shape[3] // lines
    packed = np.zeros((w.shape[0] * w.shape[1], lines, -(-taps // BYTES_OF_A_WORD) * BYTES_OF_A_WORD), w.dtype)
    packed[:, :, :taps] = w.reshape(-1, lines, taps)
    return packed
