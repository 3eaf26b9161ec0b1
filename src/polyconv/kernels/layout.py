"""Blocks of pixels by channels that are brought from one layout to another: what a move is, and its loops.

A block is read and written in whole vectors, whatever lies contiguous on either side: by rows, transposed in registers,
or element by element.  It must not know what values become on their way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from polyconv.dataclass import dataclass
from polyconv.dtypes import DTYPES
from polyconv.kernels.epilogue import Epilogue
from polyconv.kernels.language import Buffer, Mask, Module, Type, Value
from polyconv.kernels.parts import has_parts, store_every, store_parts
from polyconv.kernels.signature import Int, Signature

__all__ = [
    "Apart", "Block", "Listed", "Load", "Move", "MoveBlock", "MoveIn", "MoveOut", "Store", "transposed", "woven",
    "zero_rows", "zero_words",
]  # fmt: skip


class MoveBlock(Signature):
    """A block of pixels by channels: two buffers with their byte strides, and its size."""

    source: Buffer
    source_pixel: Int
    source_channel: Int
    target: Buffer
    target_pixel: Int
    target_channel: Int
    pixels: Int
    channels: Int


class MoveIn(MoveBlock):
    """A block on its way into a panel."""

    zero_point: Int


class MoveOut(MoveBlock):
    """A block on its way out: constants are activation parameters, or of a scaled sum what ``SLOTS`` names."""

    bias: Buffer
    scale: Buffer
    residual: Buffer
    residual_pixel: Int
    residual_channel: Int
    constants: Buffer


@dataclass(frozen=True, slots=True)
class Move:
    """A kind of move.

    Parameters
    ----------
    source, target : str
        dtype in the tensor, or LLVM accumulator element in the panel: a move in goes from dtype to
        element, a move out from element to dtype.
    along : str
        Contiguous axes of source and target: ``c`` channel, ``p`` pixel, ``2`` every second pixel of
        contiguous ones, and so on to ``5``, as in ``cc``, ``pc`` or ``2c``; or ``any`` for a move element by element.
    epilogue : Epilogue or None
        None for a move in.
    together : int
        For a ``pc`` move: the number of channels, if they are few and pixels follow each other in the target.
    """

    source: str
    target: str
    along: str
    epilogue: Epilogue | None = None
    together: int = 0

    @property
    def element(self) -> str:
        """LLVM element of the panel."""
        return self.target if self.epilogue is None else self.source


def zero_words(k: Module, target: Buffer, count: Value, kind: Type) -> None:
    """Fill ``count`` words with zeros."""
    zero_rows(k, target, k.constant(_INT, 0), k.constant(_INT, 1), count, kind)


def zero_rows(k: Module, target: Buffer, step: Value, rows: Value, count: Value, kind: Type) -> None:
    """Fill the first ``count`` words of some rows with zeros."""
    nothing = k.constant(kind, 0)
    full = count - count % kind.lanes
    rest = count - full
    mask = k.mask(rest, kind.lanes)
    with k.loop(0, rows) as row:
        here = target + row.index * step
        with k.loop(0, full, kind.lanes) as i:
            k.store(nothing, here + i.index * kind.element_bytes)
        with k.when(rest > 0):
            k.store_first(nothing, here + full * kind.element_bytes, mask)


Load = Callable[[Buffer, Mask | None], Value]
Store = Callable[[Value, Buffer, Value, Value, Mask | None], None]


class Apart(NamedTuple):
    """Where pixels of a row go whose residues modulo a step lie apart.

    ``table`` has a word for each of the first ``2 * step - 1`` pixels of a row, the bytes before it; a row is moved
    from its pixel ``first`` on.
    """

    table: Buffer
    first: Value
    step: int

    def places(self, k: Module, target: Buffer, pixel: Value, pixel_step: Value) -> list[Buffer]:
        """Places of ``step`` pixels from ``pixel`` of the move on; the next of each lies ``pixel_step`` further."""
        number = self.first + pixel
        round_, residue = number // self.step, number % self.step
        return [
            target + (round_ * pixel_step + k.word(self.table, residue + later)) for later in range(self.step)
        ]


class Listed(NamedTuple):
    """Where pixels of a panel lie that are neighbours in a plane.

    ``table`` has a word for each, bytes from the first, and ``lanes`` more.
    """

    table: Buffer
    lanes: int

    def places(self, k: Module, begin: Buffer, pixel: Value, pixel_step: Value) -> list[Buffer]:
        """Places of a vector's worth of pixels from ``pixel`` on."""
        return [begin + k.word(self.table, pixel + later) for later in range(self.lanes)]


@dataclass(frozen=True, slots=True)
class Block:
    """The loops of a move; ``load`` gives accumulators, ``store`` takes them with their pixel and channel.

    Strides are given where the elements of a vector do not lie together.
    """

    k: Module
    spec: Move
    kind: Type
    f16c: bool
    source_stride: Value | None = None
    target_stride: Value | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes between neighbours in source and target, along the axes that are contiguous there."""
        return _sizes(self.spec)

    def read(self, kind: Type, place: Buffer, mask: Mask | None, stride: Value | None) -> Value:
        """Load a vector or a scalar."""
        if stride is not None:
            return self.k.gather(kind, place, stride, mask)
        if self.spec.along[0].isdigit() and kind.lanes:
            return self._every(int(self.spec.along[0]), kind, place, mask)
        return self.k.load(kind, place) if mask is None else self.k.load_first(kind, place, mask)

    def write(self, value: Value, place: Buffer, mask: Mask | None) -> None:
        """Store a vector or a scalar."""
        if self.target_stride is not None:
            self.k.scatter(value, place, self.target_stride, mask)
        elif self.spec.along[1].isdigit() and value.type.lanes:
            self._to_every(int(self.spec.along[1]), value, place, mask)
        elif mask is None:
            self.k.store(value, place)
        else:
            self.k.store_first(value, place, mask)

    def _every(self, step: int, kind: Type, place: Buffer, mask: Mask | None) -> Value:
        """Elements 0, ``step``, ... of contiguous ones; as many loads, the last of which ends with the last needed."""
        k, n = self.k, kind.lanes
        starts = [min(part * n, (n - 1) * (step - 1)) for part in range(step)]
        parts = []
        for start in starts:
            source = place + start * kind.element_bytes
            if mask is None:
                parts.append(k.load(kind, source))
                continue
            needed = mask.count * step - (step - 1) - start
            there = k.mask(needed, n) if mask.first is None else k.span(mask.first * step - start, needed, n)
            parts.append(k.load_first(kind, source, there))
        merged = parts[0]
        for part in range(1, step):
            own = [lane * step // n for lane in range(n)]  # the part that holds a lane's element
            kept = [lane * step if part == 1 and own[lane] == 0 else lane for lane in range(n)]
            picks = [n + i * step - starts[part] if own[i] == part else kept[i] for i in range(n)]
            merged = k.shuffle(merged, parts[part], picks)
        return merged

    def _to_every(self, step: int, value: Value, place: Buffer, mask: Mask | None) -> None:
        """Store to elements 0, ``step``, ...; what lies between is not touched."""
        k, n = self.k, value.type.lanes
        if not k.masked_stores and (mask is None or (mask.first is None and has_parts(value.type))):
            store_parts(k, k.bits(value), place, None if mask is None else mask.count, step)
            return
        count = k.constant(_INT, n) if mask is None else mask.count
        for part in range(step):
            stored = -(-part * n // step)  # lanes that lie in parts before
            spread = k.shuffle(value, value, [min((part * n + i) // step, n - 1) for i in range(n)])
            first = stored * step - part * n
            store_every(k, spread, place + part * n * value.type.element_bytes, step, first, count - stored)

    def each(self, g: MoveBlock, wide: tuple[Load, Store], single: tuple[Load, Store]) -> None:
        """Pixel by pixel, a vector's worth at a time: for strides that leave nothing together."""
        k, lanes = self.k, self.kind.lanes

        def one(ends: tuple[Load, Store], p: Value, c: Value) -> None:
            load, store = ends
            value = load(g.source + p * g.source_pixel + c * g.source_channel, None)
            store(value, g.target + p * g.target_pixel + c * g.target_channel, p, c, None)

        full = g.pixels - g.pixels % lanes
        with k.loop(0, g.channels) as c:
            with k.loop(0, full, lanes) as p:
                one(wide, p.index, c.index)
            with k.loop(full, g.pixels) as p:
                one(single, p.index, c.index)

    def rows(self, g: MoveBlock, load: Load, store: Store) -> None:
        """Vectors along the axis that is contiguous on both sides."""
        k, lanes = self.k, self.kind.lanes
        by_channel = self.spec.along[0] == "c"
        rows, columns = (g.pixels, g.channels) if by_channel else (g.channels, g.pixels)
        step_s = g.source_pixel if by_channel else g.source_channel
        step_t = g.target_pixel if by_channel else g.target_channel
        from_bytes, to_bytes = _sizes(self.spec)
        full = columns - columns % lanes

        def one(row: Value, column: Value, mask: Mask | None) -> None:
            s, t = g.source + row * step_s, g.target + row * step_t
            p, c = (row, column) if by_channel else (column, row)
            store(load(s + column * from_bytes, mask), t + column * to_bytes, p, c, mask)

        for vectors in (1, 2):  # a loop over so few would take longer than they do
            with k.when(full.equals(vectors * lanes)), k.loop(0, rows) as r:
                for j in range(vectors):
                    one(r.index, k.constant(_INT, j * lanes), None)
        with k.when(full > 2 * lanes), k.loop(0, rows) as r, k.loop(0, full, lanes) as i:
            one(r.index, i.index, None)
        with k.when(full < columns):
            mask = k.mask(columns - full, lanes)
            with k.loop(0, rows) as r:
                one(r.index, full, mask)

    def interleaved(self, g: MoveBlock, load: Load, store: Store) -> None:
        """Vectors of pixels of a few channels, merged into one run: pixel by pixel, all its channels."""
        k, lanes, count = self.k, self.kind.lanes, self.spec.together
        from_bytes, to_bytes = _sizes(self.spec)
        zero = k.constant(_INT, 0)

        def merge(pixel: Value, mask: Mask | None) -> None:
            planes = [load(g.source + pixel * from_bytes + g.source_channel * c, mask) for c in range(count)]
            target = g.target + pixel * (count * to_bytes)
            for v, merged in enumerate(woven(k, planes)):
                here = None if mask is None else k.mask(mask.count * count - v * lanes, lanes)
                store(merged, target + v * lanes * to_bytes, zero, zero, here)

        full = g.pixels - g.pixels % lanes
        with k.loop(0, full, lanes) as p:
            merge(p.index, None)
        with k.when(full < g.pixels):
            merge(full, k.mask(g.pixels - full, lanes))

    def transposed(self, g: MoveBlock, load: Load, store: Store, apart: Apart | Listed | None = None) -> None:
        """Squares of vectors, loaded along one axis and stored along the other."""
        k, lanes = self.k, self.kind.lanes
        to_channel = self.spec.along[1] == "c"
        from_bytes, to_bytes = _sizes(self.spec)
        if to_channel:
            head = self._to_line(g.source, g.source_channel, from_bytes, g.pixels)
        else:
            head = self._to_line(g.target, g.target_channel, to_bytes, g.pixels)
        # a: contiguous in the source; b: contiguous in the target
        sb = g.source_channel if to_channel else g.source_pixel
        ta = g.target_pixel if to_channel else g.target_channel

        def square(a: Value, b: Value, na: Value, nb: Value, source_mask: Mask | None = None,
                   target_mask: Mask | None = None) -> None:  # fmt: skip
            source = g.source + a * from_bytes + b * sb
            starts = None if to_channel or apart is None else apart.places(k, g.source + a * from_bytes, b, sb)
            rows = [load(source if starts is None else starts[0], source_mask)]
            for j in range(1, lanes):  # rows beyond the block have the place of the last: where memory ends, a CPU
                # takes hundreds of cycles to find that an empty mask asks for nothing
                source = source + (sb if source_mask is None else k.select(nb > j, sb, 0))
                rows.append(load(source if starts is None else starts[j], source_mask))
            # pixels of as many residues as there are places go round to them
            target = g.target + b * to_bytes
            places = [target + a * ta] if apart is None or not to_channel else apart.places(k, target, a, ta)
            for j, row in enumerate(transposed(k, rows)):
                p, c = (a + j, b) if to_channel else (b, a + j)
                here = places[j % len(places)]
                places[j % len(places)] = here + ta
                if target_mask is None or not j:
                    store(row, here, p, c, target_mask)
                    continue
                with k.when(na > j):
                    store(row, here, p, c, target_mask)

        def place(pixel: Value, channel: Value) -> None:
            first = k.maximum(pixel, 0)
            pixels = k.minimum(pixel + lanes, g.pixels) - first
            channels = k.minimum(g.channels - channel, lanes)
            a, b, na, nb = (first, channel, pixels, channels) if to_channel else (channel, first, channels, pixels)
            masked = k.mask(na, lanes), k.mask(nb, lanes)
            if self.spec.epilogue is not None and not self.spec.epilogue.is_cheap:  # too long to be written twice
                square(a, b, na, nb, *masked)
                return
            whole = (na >= lanes) & (nb >= lanes)
            with k.when(whole):
                square(a, b, na, nb)
            with k.when(whole, otherwise=True):
                square(a, b, na, nb, *masked)

        start = k.select(head > 0, head - lanes, 0)
        with k.loop(0, g.channels, lanes) as c, k.loop(start, g.pixels, lanes) as p:
            place(p.index, c.index)

    def _to_line(self, planes: Buffer, step: Value, size: int, pixels: Value) -> Value:
        """Pixels before the first cache line's begin, where planes meet in few sets of a cache; else 0.

        There a vector that lies across two lines brings each of them in twice.
        """
        k = self.k
        if self.kind.lanes * size != _LINE:
            return k.constant(_INT, 0)
        apart = (step & (_COLLIDING - 1)).equals(0) & (pixels > self.kind.lanes)
        return k.select(apart, ((0 - k.address(planes)) & (_LINE - 1)) // size, 0)


_INT = Type("i64")
_LINE, _COLLIDING = 64, 1024
"""Bytes of a cache line, and distance of planes at which 16 of them share 4 sets of a first-level cache."""


def transposed(k: Module, rows: list[Value]) -> list[Value]:
    """Transpose a square of vectors: first pieces of 128 bits, between rows of which a CPU moves words fastest.

    Vectors of more elements than there are rows hold several squares.
    """
    n, lanes = len(rows), rows[0].type.lanes
    piece = min(n, 16 // rows[0].type.element_bytes)
    for step in (1 << bit for bit in range(n.bit_length() - 1)):
        if step < piece:  # the first halves of all pieces, in turns of ``step`` words; the second halves
            turns = [(at + j, at + j + lanes) for at in range(0, lanes, piece) for j in range(0, piece // 2, step)]
            low = [first + word for turn in turns for first in turn for word in range(step)]
            high = [word + piece // 2 for word in low]
        else:  # every second piece, of one row and of the other
            low = [side + at + word for first in range(0, lanes, n) for side in (first, first + lanes)
                   for at in range(0, n, 2 * piece) for word in range(piece)]  # fmt: skip
            high = [word + piece for word in low]
        firsts = [i for i in range(n) if not i & step]
        pairs = {i: (rows[i], rows[i + step]) for i in firsts}
        for i, (a, b) in pairs.items():
            rows[i], rows[i + step] = k.shuffle(a, b, low), k.shuffle(a, b, high)
    bits = piece.bit_length() - 1
    reverse = [sum(1 << (bits - 1 - bit) for bit in range(bits) if j >> bit & 1) for j in range(piece)]
    return [rows[at + j] for at in range(0, n, piece) for j in reverse]


def woven(k: Module, planes: Sequence[Value]) -> list[Value]:
    """Vectors merged into one run: the first word of each, the second of each, ..."""
    count, lanes = len(planes), planes[0].type.lanes
    if count > 1 and count % 2 == 0:
        halves = zip(woven(k, planes[::2]), woven(k, planes[1::2]), strict=True)
        turns = [[word for i in range(first, first + lanes // 2) for word in (i, i + lanes)]
                 for first in (0, lanes // 2)]  # fmt: skip
        return [k.shuffle(a, b, picks) for a, b in halves for picks in turns]
    run = []
    for v in range(count):
        places = [divmod(v * lanes + lane, count) for lane in range(lanes)]  # word and plane of each lane
        merged = planes[0]
        for c in range(count):  # lanes of planes up to c are right
            picks = [lane if own < c else lanes * (c > 0) + at for lane, (at, own) in enumerate(places)]
            merged = k.shuffle(merged, planes[c], picks)
        run.append(merged)
    return run


def _sizes(spec: Move) -> tuple[int, int]:
    """Bytes between neighbours in source and target."""
    word = Type(spec.element).element_bytes
    source, target = DTYPES.get(spec.source), DTYPES.get(spec.target)
    from_bytes = word if spec.epilogue is not None or source is None else source.itemsize
    to_bytes = word if spec.epilogue is None or target is None else target.itemsize
    apart = [int(a) if a.isdigit() else 1 for a in spec.along[:2]]
    return from_bytes * apart[0], to_bytes * apart[1]


