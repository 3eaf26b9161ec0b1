"""Native code of ``strassen``: sums of a box's inputs, seven products for each set of outputs, results from their sums.

Boxes with a result that is not finite are done again, for the outputs that have one, by ``careful``.
"""

from __future__ import annotations

from polyconv.algorithms.careful import CarefulBox, CarefulWords
from polyconv.algorithms.product.rows import ProductWords, Row, move_row, multiply
from polyconv.algorithms.product.strassen_panel import PanelWords, copy_windows
from polyconv.kernels.language import INT, Buffer, Module, Value
from polyconv.kernels.record import Function, Link, Memory, Record, Word
from polyconv.kernels.signature import Callee
from polyconv.kernels.strassen import PRODUCTS, InputSums, ResultSums
from polyconv.lowering.panel import Common, Driver, Frame, Item, axis_words, box_rows, decode, row_place, row_source

__all__ = ["BoxWords", "StrassenWords", "driver"]


class BoxWords(Record):
    """Words of the products of a box.  ``folded``: rows of results follow each other as the panel's do.

    Its inputs lie in the tensor (``in_place``) or in the panel, with steps between pixels and between entries.  Their
    ``sums`` for the seven products lie in the workspace.  ``missing`` stands for the partner of the last of an odd
    number of pixels.
    """

    common: Common
    panel: PanelWords
    products: ProductWords
    folded: Word
    in_place: Word
    source_pixel: Word
    source_entry: Word
    half_entries: Word
    sums: Word
    sums_product: Word
    sums_pixel: Word
    sums_entry: Word
    missing: Word
    slot_product: Word


class StrassenWords(Record):
    """The driver's words: those of the seven products, and of the sets whose results are ``leaving``.

    At ``not_finite`` in the workspace it says whether results are not finite, at ``again_box`` the box stands that is
    done again then.
    """

    scheme: BoxWords
    scale_lower: Word
    inputs: Function[InputSums]
    results: Function[ResultSums]
    scales: Memory
    not_finite: Word
    leaving: Link[ProductWords]
    again_box: Word
    again_words: CarefulWords
    again: Function[CarefulBox]


def driver(k: Module, name: str, *, planes: bool) -> None:
    """Add the driver ``name(frame, words, item, workspace)``: pixels of a box lie together, or channels."""
    with k.function(name, Driver) as given:
        frame, workspace = given.frame, given.workspace
        w = StrassenWords.read(k, given.words)
        p, products = w.scheme, w.scheme.products
        item = decode(k, p.common, given.item, workspace)
        count = box_rows(k, p.common, item, 0)
        half = (count + 1) // 2
        _sum_inputs(k, p, w.inputs, _source(k, p, item, frame, workspace), workspace, count, half, planes=planes)
        first = item.split * products.split_sets
        slot, not_finite = workspace + products.slots, workspace + w.not_finite
        with k.loop(first, k.minimum(first + products.split_sets, products.set_count)) as of_set:
            with k.loop(0, PRODUCTS) as product:
                inputs = workspace + (p.sums + product.index * p.sums_product)
                row = _row(k, p, item, frame, of_set.index * PRODUCTS + product.index, inputs, half)
                multiply(k, row, slot + product.index * p.slot_product, pixels=False)
            outputs = products.sets.at(of_set.index * PRODUCTS)
            scales = w.scales + outputs.first * products.word_bytes
            k.call(w.results, ResultSums(
                slot, p.slot_product, products.slot_step, half, outputs.outputs, scales, w.scale_lower, not_finite,
            ))  # fmt: skip
            _leave(k, p, w.leaving, item, frame, of_set.index, slot, half, count)
            with k.when(k.word(not_finite) > 0):
                header, at = workspace + w.again_box, outputs.first
                with k.loop(0, p.common.axes * 3) as word:
                    k.store(k.word(workspace, word.index), header + word.index * 8, 8)
                for first in (at, at + w.again_words.outputs // 2):
                    k.call(w.again, CarefulBox(
                        frame, w.again_words, header, item.n, item.g, first, first + outputs.outputs
                    ))  # fmt: skip


def _source(k: Module, p: BoxWords, item: Item, frame: Frame, workspace: Buffer) -> Buffer:
    """The inputs of a box, where they are: in the tensor, for kernels of one tap, or brought into the panel."""
    panel, in_place = workspace + p.common.panel, p.in_place.equals(1)
    with k.when(in_place, otherwise=True):
        copy_windows(k, p.common, p.panel, item, frame.x, panel)
    return k.either(in_place, frame.x + row_source(k, p.common, item, k.constant(INT, 0)), panel)


def _sum_inputs(k: Module, p: BoxWords, function: Callee[InputSums], source: Buffer, workspace: Buffer, count: Value,
                half: Value, *, planes: bool) -> None:  # fmt: skip
    """Inputs of the products, from those of a box."""
    lower, target = p.half_entries * p.source_entry, workspace + p.sums
    second = source + half * p.source_pixel
    if planes:
        k.call(function, InputSums(
            source, second, p.source_entry, lower, p.half_entries, half, count - half, target,
            p.sums_product, p.sums_entry,
        ))  # fmt: skip
        return
    k.call(function, InputSums(
        source, second, p.source_pixel, lower, count - half, p.half_entries, p.half_entries,
        target, p.sums_product, p.sums_pixel,
    ))  # fmt: skip
    with k.when(count - half < half):  # the last pixel is alone
        last = half - 1
        k.call(function, InputSums(
            source + last * p.source_pixel, workspace + p.missing, 0, lower, 1, p.half_entries,
            0, target + last * p.sums_pixel, p.sums_product, p.sums_pixel,
        ))  # fmt: skip


def _row(k: Module, p: BoxWords, item: Item, frame: Frame, number: Value, inputs: Buffer, pixels: Value) -> Row:
    """A row of pixels for a set of outputs, whose sums go to a slot."""
    of_set, nothing = p.products.sets.at(number), k.constant(INT, 0)
    return Row(
        p.common, p.products, item.g, of_set, inputs, p.sums_pixel, p.sums_entry, p.half_entries, pixels, frame.y,
        nothing, frame.residual, nothing,
    )  # fmt: skip


def _leave(k: Module, p: BoxWords, products: ProductWords, item: Item, frame: Frame, number: Value, slot: Buffer,
           half: Value, count: Value) -> None:  # fmt: skip
    """Results of a pair of sets of outputs, to their places."""
    c = p.common
    last = axis_words(c, c.axes - 1)
    folded = p.folded.equals(1)
    width = k.select(folded, count, item.extent(c.axes - 1))
    with k.loop(0, count // width) as part, k.loop(0, 4) as quarter:
        _, y, r = row_place(k, c, item, part.index)
        begin = (quarter.index & 1) * half
        low = k.maximum(part.index * width, begin)
        high = k.minimum(part.index * width + width, k.select(begin > 0, count, half))
        with k.when(low < high):
            of_set = products.sets.at(number * 2 + (quarter.index >> 1))
            at, nothing = low - part.index * width, k.constant(INT, 0)
            row = Row(
                c, products, item.g, of_set, slot, nothing, nothing, nothing, high - low,
                frame.y + (y + of_set.y + at * last.y_stride), last.y_stride,
                frame.residual + (r + of_set.r + at * last.r_stride), last.r_stride,
            )  # fmt: skip
            move_row(k, row, slot + (quarter.index * p.slot_product + (low - begin) * products.slot_pixel),
                            products.slot_pixel)  # fmt: skip
