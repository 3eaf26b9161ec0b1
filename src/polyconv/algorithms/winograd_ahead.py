"""Which inputs the next item of a Winograd driver needs: they are asked for while it computes, as memory is slow."""

from __future__ import annotations

from polyconv.algorithms.panel import Driver, decode, fill
from polyconv.algorithms.winograd_driver import WinogradWords, place_box
from polyconv.kernels.language import INT, Buffer, Module, Value

__all__ = ["note"]


def note(k: Module, name: str) -> None:
    """Add ``name(frame, words, item, workspace)``: notes where the inputs lie that the next item of a thread needs.

    Notes are: runs of bytes in all, runs asked for so far, then the offset of every row.
    """
    with k.function(name, Driver) as given:
        p = WinogradWords.read(k, given.words)
        c, early = p.common, p.early
        header = given.workspace + early.notes
        notes = header + c.axes * 24
        k.store(k.constant(INT, 0), notes, 8)
        k.store(k.constant(INT, 0), notes + 8, 8)
        following = given.item + early.items_ahead

        def put(source: Buffer, line: Value, first_line: Value, count: Value, head: Value, end: Value) -> None:
            with k.when(first_line.equals(0) & (head < end)):  # other runs of a row lie between the pixels of the first
                rows = k.word(notes)
                k.store(source.total(), notes + (rows * 8 + 16), 8)
                k.store(rows + 1, notes, 8)

        with k.when(following < early.item_count):
            item = decode(k, c, following, header)
            place_box(k, p, item, header)
            fill(k, c, item, given.frame.x, k.constant(INT, 0), put)
            k.store(k.word(notes) * early.runs_a_row, notes, 8)
