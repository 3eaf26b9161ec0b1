"""One level of Strassen's product as kernels: sums of inputs before seven products, sums of these after them.

A matrix product halved along all its three axes takes seven products of halves, not eight (Strassen 1969):

    P0 = (A11 + A22)(B11 + B22)    P1 = (A21 + A22) B11    P2 = A11 (B12 - B22)    P3 = A22 (B21 - B11)
    P4 = (A11 + A12) B22           P5 = (A21 - A11)(B11 + B12)                     P6 = (A12 - A22)(B21 + B22)

    C11 = P0 + P3 - P4 + P6    C12 = P2 + P4    C21 = P1 + P3    C22 = P0 - P1 + P2 + P5

Here A are weights, outputs by channels, B inputs, channels by pixels, and C results, outputs by pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyconv.kernels.language import Buffer, Mask, Module, Value, vector
from polyconv.kernels.signature import Int, Signature

__all__ = [
    "PRODUCTS", "InputSums", "ResultSums", "WeightSums", "input_sums", "result_sums", "weight_sums",
]  # fmt: skip

PRODUCTS = 7


class WeightSums(Signature):
    """Weights of the seven products.

    Rows of ``row`` bytes, those of A11, A12, A21 and A22 ``quarter`` bytes behind each other, are divided by the scales
    of their outputs, those of the first half at ``lower``, and summed; rows of a product go ``product`` bytes behind
    those of the one before it.
    """

    rows: Buffer
    quarter: Int
    count: Int
    row: Int
    lower: Buffer
    upper: Buffer
    target: Buffer
    product: Int


def weight_sums(k: Module, name: str, element: str, lanes: int) -> None:
    """Add the sums of weights."""
    kind = vector(element, lanes)
    with k.function(name, WeightSums) as given, k.loop(0, given.row, kind.bytes) as part:
        scales = [k.load(kind, given.lower + part.index)] * 2 + [k.load(kind, given.upper + part.index)] * 2
        with k.loop(0, given.count, carry=[given.rows + part.index, given.target + part.index]) as one:
            source, place = one.values
            loaded = [k.load(kind, source + given.quarter * i) / scale for i, scale in enumerate(scales)]
            for value in _of_weights(*loaded):
                k.store(value, place)
                place = place + given.product
            one.next(source + given.row, one.values[1] + given.row)


def _of_weights(a11: Value, a12: Value, a21: Value, a22: Value) -> list[Value]:
    return [a11 + a22, a21 + a22, a11, a22, a11 + a12, a21 - a11, a12 - a22]


def _of_inputs(b11: Value, b12: Value, b21: Value, b22: Value) -> list[Value]:
    return [b11 + b22, b11, b12 - b22, b21 - b11, b22, b11 + b12, b21 + b22]


def _of_products(p: Sequence[Value]) -> list[Value]:
    return [p[0] + p[3] - p[4] + p[6], p[2] + p[4], p[1] + p[3], p[0] - p[1] + p[2] + p[5]]


class InputSums(Signature):
    """Inputs of the seven products.

    Rows of the first half of the pixels and of the second, ``step`` bytes apart; the second half of the channels lies
    ``lower`` bytes behind the first.  Rows go to ``target``, as many vectors as hold ``width`` elements, those of
    each product ``product`` bytes behind those of the one before it.  Of the second half there may be less elements
    in a row; those that lack count as zeros.
    """

    first: Buffer
    second: Buffer
    step: Int
    lower: Int
    rows: Int
    width: Int
    second_width: Int
    target: Buffer
    product: Int
    target_step: Int


def input_sums(k: Module, name: str, element: str, lanes: int) -> None:
    """Add the sums of inputs; two of the seven are a quarter of the inputs as it is."""
    kind = vector(element, lanes)
    with k.function(name, InputSums) as given:
        second_width = given.second_width

        def add(a: Buffer, b: Buffer, place: Buffer, masks: tuple[Mask, Mask] | None) -> None:
            loaded = []
            lower = given.lower
            for source, mask in zip((a, b, a + lower, b + lower), (masks or (None, None)) * 2, strict=True):
                loaded.append(k.load(kind, source) if mask is None else k.load_first(kind, source, mask))
            for value in _of_inputs(*loaded):
                k.store(value, place)
                place = place + given.product

        full = second_width - second_width % lanes
        with k.loop(0, given.rows, carry=[given.first, given.second, given.target]) as row:
            a, b, place = row.values
            with k.loop(0, full, lanes) as i:
                at = i.index * kind.element_bytes
                add(a + at, b + at, place + at, None)
            with k.loop(full, given.width, lanes) as i:
                at = i.index * kind.element_bytes
                rest = k.maximum(second_width - i.index, 0)
                beyond = k.select(rest > 0, at, 0)  # a load of nothing, from where something is
                add(a + at, b + beyond, place + at, (k.mask(given.width - i.index, lanes), k.mask(rest, lanes)))
            row.next(a + given.step, b + given.step, place + given.target_step)


class ResultSums(Signature):
    """Products of pairs of pixels, which become results.

    Rows of the seven products, ``step`` bytes apart and ``product`` bytes behind those of the one before it, become
    the four results in the places of the first four products: outputs of the first half for both halves of the
    pixels, then those of the second.  They are multiplied by the scale of their output, which lies ``lower`` bytes
    further for the second half.  The first word of the notes says whether any result is not finite, the others which
    rows have one.
    """

    sums: Buffer
    product: Int
    step: Int
    rows: Int
    width: Int
    scale: Buffer
    lower: Int
    notes: Buffer


def result_sums(k: Module, name: str, element: str, lanes: int) -> None:
    """Add the sums of products."""
    kind = vector(element, lanes)
    with k.function(name, ResultSums) as given:
        width = given.width

        def add(at: Value, row: Buffer, seen: Value, mask: Mask | None) -> Value:
            def load(place: Buffer) -> Value:
                return k.load(kind, place) if mask is None else k.load_first(kind, place, mask)

            products, place = [], row + at
            for _ in range(PRODUCTS):
                products.append(load(place))
                place = place + given.product
            scales = [load(given.scale + at), load(given.scale + at + given.lower)]
            place = row + at
            for i, value in enumerate(_of_products(products)):
                result = value * scales[i // 2]
                k.store(result, place) if mask is None else k.store_first(result, place, mask)
                seen = k.fma(result, k.constant(kind, 0), seen)  # 0 * Inf and 0 * NaN are NaN
                place = place + given.product
            return seen

        nothing = k.constant(kind, 0)
        full = width - width % lanes
        mask = k.mask(width - full, lanes)
        with k.loop(0, given.rows, carry=[given.sums, nothing]) as row:
            here, all_seen = row.values
            with k.loop(0, full, lanes, carry=[nothing]) as i:
                i.next(add(i.index * kind.element_bytes, here, i.values[0], None))
            with k.choice(full < width, carry=i.results) as rest:
                rest.next(add(full * kind.element_bytes, here, i.results[0], mask))
            k.store(k.any(rest.results[0].is_nan()), given.notes + (row.index * 8 + 8))
            row.next(here + given.step, all_seen + rest.results[0])
        k.store(k.any(row.results[1].is_nan()), given.notes)
